//! Archives with withheld blocks, and blocks in identity CIDs: withheld content is not served, and all methods get the
//! same status.

use crate::control::matcher;
use crate::dag::{cbor_of, directory, file, inline, raw, symlink};
use crate::site::{FailingNetwork, Setup, Site, header};
use content::{Block, BlockSource, Cid, SourceError};
use gateway::limits::RequestLimits;
use services::denylists::Running;
use services::denylists::running::Rules;
use std::sync::Arc;

struct World {
    site: Site,
    policy: Arc<Running>,
}

impl World {
    async fn of(blocks: &[&Block]) -> Self {
        let policy = Arc::<Running>::default();
        let limits = RequestLimits { convert_codecs: true, ..RequestLimits::default() };
        let upstream: Option<Arc<dyn BlockSource>> = Some(FailingNetwork::at_once(|cid| SourceError::NotFound { cid }));
        let setup = Setup { policy: Arc::clone(&policy) as _, limits, upstream, ..Setup::new(blocks) };
        Self { site: setup.start().await, policy }
    }

    fn withhold(&self, cid: &Cid) {
        self.policy.swap(Rules { deny: matcher(&format!("/ipfs/{cid}")), allow: None });
    }

    /// The status of a complete response; an aborted one has none.
    async fn status(&self, method: &str, path: &str, etag: Option<&str>) -> Option<u16> {
        let headers: Vec<_> = etag.map(|etag| ("if-none-match", etag)).into_iter().collect();
        let response = self.site.try_send(method, path, &headers).await.ok()?;
        let status = response.status().as_u16();
        response.bytes().await.ok().map(|_| status)
    }
}

#[tokio::test]
async fn withheld_identity_cids_are_withheld_everywhere() {
    let (secret, other) = (inline(b"the secret"), raw("something else"));
    let chunks = file(&[other.clone(), secret.clone()]);
    let inner = directory(&[("secret.txt", &secret)]);
    let root = directory(&[("chunks.txt", &chunks), ("inner", &inner), ("other.txt", &other)]);
    // A dag-cbor list of the one link.
    let link = secret.cid().to_bytes();
    let head = [0x81, 0xd8, 42, 0x40 | (link.len() as u8 + 1), 0];
    assert!(link.len() < 23, "its length fits into the head");
    let document = cbor_of([&head[..], &link].concat());
    let world = World::of(&[&other, &chunks, &inner, &root, &document]).await;
    let (root, inner, chunks, document) = (root.cid(), inner.cid(), chunks.cid(), document.cid());
    let as_raw = Cid::new_v1(content::codec::RAW, *inner.hash());
    let carries = [
        format!("/ipfs/{}", secret.cid()),
        format!("/ipfs/{}?format=raw", secret.cid()),
        format!("/ipfs/{root}/inner/secret.txt"),
        format!("/ipfs/{inner}?format=raw"),
        format!("/ipfs/{as_raw}?format=raw"),
        format!("/ipfs/{inner}?format=dag-json"),
        format!("/ipfs/{inner}?format=car&dag-scope=block"),
        format!("/ipfs/{inner}?format=car&dag-scope=entity"),
        format!("/ipfs/{inner}?format=car"),
        format!("/ipfs/{inner}?format=tar"),
        format!("/ipfs/{root}?format=car"),
        format!("/ipfs/{root}?format=tar"),
        format!("/ipfs/{root}/inner/secret.txt?format=car"),
        format!("/ipfs/{chunks}?format=raw"),
        format!("/ipfs/{chunks}?format=car"),
        format!("/ipfs/{document}"),
        format!("/ipfs/{document}?format=raw"),
        format!("/ipfs/{document}?format=dag-json"),
        format!("/ipfs/{document}?format=car&dag-scope=block"),
    ];
    for path in &carries {
        assert_eq!(world.status("GET", path, None).await, Some(200), "{path}");
    }
    world.withhold(secret.cid());
    for path in &carries {
        for method in ["GET", "HEAD"] {
            assert_eq!(world.status(method, path, None).await, Some(410), "{method} {path}");
        }
    }
    let text = secret.cid().to_string();
    for path in [format!("/ipfs/{inner}/"), format!("/ipfs/{inner}/?format=json")] {
        let listing = world.site.get(&path).await.text().await.expect("text");
        assert!(listing.contains("secret.txt") && !listing.contains(&text), "{path}: {listing}");
    }
    // The beginning was sent before.
    assert_eq!(world.status("GET", &format!("/ipfs/{root}/chunks.txt"), None).await, None);
    for path in ["other.txt", "?format=raw", "inner/"] {
        assert_eq!(world.status("GET", &format!("/ipfs/{root}/{path}"), None).await, Some(200), "{path}");
    }
}

#[tokio::test]
async fn after_a_take_down_archives_are_rejected_before_the_first_byte() {
    let (secret, open) = (raw("the secret"), raw("open to all"));
    let low = directory(&[("secret.txt", &secret)]);
    let root = directory(&[("a.txt", &open), ("low", &low)]);
    let world = World::of(&[&secret, &open, &low, &root]).await;
    let path = |query: &str| format!("/ipfs/{}?format={query}", root.cid());
    let (whole, part) = (["car", "tar", "car&car-dups=y"], ["car&dag-scope=entity", "car&dag-scope=block"]);
    let mut tags = Vec::new();
    for query in whole.iter().chain(&part) {
        let response = world.site.get(&path(query)).await;
        let tag = header(&response, "etag").to_owned();
        assert_eq!(world.status("GET", &path(query), Some(&tag)).await, Some(304), "{query}");
        tags.push((*query, tag));
    }
    world.withhold(secret.cid());
    for (query, tag) in &tags {
        let served = part.contains(query);
        for (method, etag) in [("GET", None), ("HEAD", None), ("GET", Some(tag.as_str())), ("HEAD", Some(tag.as_str()))]
        {
            let expected = match (served, etag) {
                (false, _) => 410,
                (true, None) => 200,
                (true, Some(_)) => 304,
            };
            assert_eq!(world.status(method, &path(query), etag).await, Some(expected), "{method} {query} {etag:?}");
        }
    }
}

#[tokio::test]
async fn an_archive_that_cannot_be_checked_gets_no_304() {
    let (secret, open) = (raw("the secret"), raw("open to all"));
    let low = directory(&[("secret.txt", &secret)]);
    // The missing block comes before it, and its content is unknown.
    let lost = directory(&[("open.txt", &open)]);
    let root = directory(&[("0.txt", &open), ("a", &lost), ("b", &low)]);
    let world = World::of(&[&secret, &open, &low, &root]).await;
    for query in ["car", "tar"] {
        let path = format!("/ipfs/{}?format={query}", root.cid());
        let tag = header(&world.site.send("HEAD", &path, &[]).await, "etag").to_owned();
        assert_eq!(world.status("GET", &path, Some(&tag)).await, Some(304), "{query}: nothing is withheld at all");
        world.withhold(secret.cid());
        assert_ne!(world.status("GET", &path, Some(&tag)).await, Some(304), "{query}");
        assert_eq!(world.status("GET", &path, None).await, None, "{query}: it breaks off");
        world.policy.swap(Rules::default());
    }
}

#[tokio::test]
async fn the_entity_tag_of_unavailable_content_gets_no_304() {
    let (held, lost) = (raw("held"), raw("nobody has this"));
    let folder = directory(&[("held.txt", &held)]);
    let world = World::of(&[&held, &folder]).await;
    for (cid, held) in [(held.cid(), true), (folder.cid(), true), (lost.cid(), false)] {
        for suffix in ["", "?format=raw"] {
            let tag = format!("\"{cid}{}\"", suffix.replace("?format=", "."));
            let slash = if cid == folder.cid() && suffix.is_empty() { "/" } else { "" };
            let status = world.status("GET", &format!("/ipfs/{cid}{slash}{suffix}"), Some(&tag)).await;
            assert_eq!(status, Some(if held { 304 } else { 404 }), "{cid}{suffix}");
        }
    }
}

#[tokio::test]
async fn archives_omit_symlinks_that_lead_out_and_keep_invalid_documents() {
    let (text, out, inside) = (raw("text"), symlink("/etc/passwd"), symlink("text.txt"));
    let broken = cbor_of(vec![0xa0, 0xff]);
    let folder = directory(&[("a-out", &out), ("in", &inside), ("text.txt", &text)]);
    let root = directory(&[("broken", &broken), ("text.txt", &text)]);
    let world = World::of(&[&text, &out, &inside, &broken, &folder, &root]).await;
    let response = world.site.get(&format!("/ipfs/{}?format=tar", folder.cid())).await;
    assert_eq!(response.status(), 200);
    let archive = response.bytes().await.expect("all of it");
    let names: Vec<String> = archive
        .chunks(512)
        .filter(|block| block[257..].starts_with(b"ustar"))
        .map(|block| String::from_utf8_lossy(&block[..100]).trim_end_matches('\0').to_owned())
        .collect();
    let cid = folder.cid();
    assert_eq!(names, [format!("{cid}"), format!("{cid}/in"), format!("{cid}/text.txt")]);
    assert_eq!(world.status("GET", &format!("/ipfs/{}?format=tar", out.cid()), None).await, Some(400));
    let response = world.site.get(&format!("/ipfs/{}?format=car", root.cid())).await;
    let car = response.bytes().await.expect("all of it");
    for block in [&root, &broken, &text] {
        assert!(car.windows(block.data().len()).any(|part| part == block.data()), "{}", block.cid());
    }
}
