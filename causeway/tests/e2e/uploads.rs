//! Uploads over the admin listener: the CIDs of `ipfs add`, in little memory, and durable across a kill.

use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, client, eventually};
use bytes::Bytes;
use content::{Block, car, codec, hashes};
use futures::stream;
use serde_json::Value;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);
const TAR: &str = "application/x-tar";
const CAR: &str = "application/vnd.ipld.car";

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// An upload's status and answer.
async fn upload(node: &Causeway, query: &str, media_type: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let url = format!("{}/upload?{query}", node.admin_url());
    let request = client().post(url).timeout(Duration::from_secs(600)).bearer_auth(TOKEN);
    let response = request.header("content-type", media_type).body(body).send().await.expect("is answered");
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&response.bytes().await.expect("an answer")).unwrap_or_default())
}

/// The only root of a successful upload.
fn root((status, answer): (u16, Value)) -> String {
    let roots = answer["roots"].as_array().unwrap_or_else(|| panic!("{status}: {answer}"));
    assert_eq!((status, roots.len()), (200, 1), "{answer}");
    assert!(roots[0]["pin"].is_string(), "{answer}");
    roots[0]["cid"].as_str().expect("a CID").to_owned()
}

/// Files of many sizes, nested folders, names of many kinds, and a symlink.
fn fill(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let files: Vec<(String, Vec<u8>)> = vec![
        ("site/index.html".into(), b"<p>Hello.".to_vec()),
        ("site/nothing".into(), Vec::new()),
        ("site/img/large".into(), Noise::bytes(41, 3_000_000)),
        ("site/img/\u{e4} b+c%41.png".into(), Noise::bytes(42, 300_000)),
        (format!("site/{}/deep", "d".repeat(150)), b"x".to_vec()),
    ];
    for (path, content) in &files {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is ours");
        fs::write(path, content).expect("the folder is ours");
    }
    fs::create_dir(dir.join("site/empty")).expect("the folder is ours");
    files
}

const FORM: &str = "multipart/form-data; boundary=XX";

/// A multipart form as Kubo's clients send it.
fn form(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut part = |name: &str, kind: &str, content: &[u8]| {
        let name: String =
            percent_encoding::percent_encode(name.as_bytes(), percent_encoding::NON_ALPHANUMERIC).collect();
        let head = format!(
            "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: {kind}\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    };
    part("site", "application/x-directory", b"");
    part("site/empty", "application/x-directory", b"");
    files.iter().for_each(|(path, content)| part(path, "application/octet-stream", content));
    body.extend_from_slice(b"--XX--\r\n");
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_have_the_cids_of_ipfs_add() {
    let (content, data) = (folder(), folder());
    let files = fill(content.path());
    let kubo = Kubo::start().await;
    let node = Launch::new(data.path()).start().await;
    let site = content.path().join("site");
    let archive = |dir: &Path| {
        let mut builder = tar::Builder::new(Vec::new());
        builder.follow_symlinks(false);
        builder.append_dir_all("site", dir).expect("reads");
        builder.into_inner().expect("is whole")
    };
    let table: [(&[&str], &str); 5] = [
        (&[], ""),
        (&["--cid-version=1"], "cid-version=1"),
        (&["--raw-leaves", "--chunker=size-100000"], "raw-leaves=true&chunker=size-100000"),
        (&["--cid-version=1", "--chunker=rabin"], "cid-version=1&chunker=rabin"),
        (&["--chunker=buzhash", "-w"], "chunker=buzhash&wrap=true"),
    ];
    for (flags, query) in table {
        let expected = kubo.add_folder(&site, flags);
        assert_eq!(root(upload(&node, query, FORM, form(&files)).await), expected, "{flags:?} as a form");
        assert_eq!(root(upload(&node, query, TAR, archive(&site)).await), expected, "{flags:?} as a TAR");
        let large = &files[2].1;
        let flags: Vec<&str> = flags.iter().copied().filter(|flag| *flag != "-w").collect();
        let query = query.replace("&wrap=true", "");
        let expected = kubo.add(&large[..], &flags);
        assert_eq!(root(upload(&node, &query, "image/png", large.clone()).await), expected, "{flags:?} as a file");
        let got = node.get(&format!("/ipfs/{expected}")).await;
        assert_same_bytes(&expected, &got.body, large);
    }
    symlink("img/large", site.join("link")).expect("the folder is ours");
    let expected = kubo.add_folder(&site, &[]);
    assert_eq!(root(upload(&node, "", TAR, archive(&site)).await), expected, "with a symlink");
    node.expect(&format!("/ipfs/{expected}/index.html"), b"<p>Hello.").await;

    let car = content.path().join("site.car");
    let wide = kubo.add_folder(&site, &["--cid-version=1", "--chunker=size-77777"]);
    kubo.export(&wide, &car);
    let car = fs::read(car).expect("reads");
    assert_eq!(root(upload(&node, "name=from+a+CAR", CAR, car.clone()).await), wide);
    let (status, answer) = upload(&node, "", CAR, car[..car.len() - 1].to_vec()).await;
    assert!(status == 400 && answer["error"].as_str().is_some_and(|words| words.contains("ends in")), "{answer}");
    let (status, pins) = node.admin("GET", "/psa/pins?name=from%20a%20CAR", None).await;
    assert_eq!((status, &pins["results"][0]["pin"]["cid"]), (200, &wide.into()), "{pins}");
    node.stop().await;
    kubo.stop().await;
}

/// A body that is generated while it is sent.
fn made(len: u64, seed: u64) -> reqwest::Body {
    let pieces = stream::unfold((Noise::new(seed), len), |(mut noise, left)| async move {
        let now = usize::try_from(left.min(MIB)).expect("small");
        if now == 0 {
            return None;
        }
        let mut piece = vec![0; now];
        noise.fill(&mut piece);
        Some((Ok::<_, io::Error>(Bytes::from(piece)), (noise, left - now as u64)))
    });
    reqwest::Body::wrap_stream(pieces)
}

/// A TAR of so many files of 100 bytes in one folder, generated while it is sent.
fn many(files: u32) -> reqwest::Body {
    let pieces = stream::iter((0..files.div_ceil(1_000)).map(move |piece| {
        let mut builder = tar::Builder::new(Vec::new());
        for number in piece * 1_000..files.min((piece + 1) * 1_000) {
            let mut header = tar::Header::new_gnu();
            header.set_path(format!("many/file-{number}")).expect("short");
            header.set_size(100);
            header.set_cksum();
            builder.append(&header, &Noise::bytes(u64::from(number), 100)[..]).expect("appends");
        }
        // Without its end-of-archive marker, which the last chunk has.
        let mut bytes = builder.into_inner().expect("is whole");
        bytes.truncate(bytes.len() - 1024);
        if (piece + 1) * 1_000 >= files {
            bytes.extend_from_slice(&[0; 1024]);
        }
        Ok::<_, io::Error>(Bytes::from(bytes))
    }));
    reqwest::Body::wrap_stream(pieces)
}

/// The allowed growth of memory during uploads of any size and number, in addition to the store's own memory.
const GROWTH_MAX: u64 = 192 * MIB;

#[tokio::test(flavor = "multi_thread")]
async fn large_and_many_files_take_little_memory() {
    let data = folder();
    let launch = Launch::new(data.path()).set("CAUSEWAY_CACHE_RAM_BYTES_MAX", 8 * MIB);
    let node = launch.start().await;
    let idle = node.process.resident_bytes();
    let mut grown = Vec::new();
    let uploads = [
        ("400 MiB in one file", "application/octet-stream", made(400 * MIB, 50), 400 * MIB),
        ("100,000 files in one folder", TAR, many(100_000), 10_000_000),
    ];
    for (what, media_type, body, bytes) in uploads {
        node.process.reset_resident_peak();
        let answer = upload(&node, "cid-version=1", media_type, body).await;
        assert_eq!(answer.1["bytes"], bytes, "{answer:?}");
        let cid = root(answer);
        let more = node.process.resident_peak_bytes().saturating_sub(idle);
        println!("{what}: {} MiB resident when idle, {} MiB more at the peak", idle / MIB, more / MIB);
        grown.push((what, more, cid));
    }
    node.expect(&format!("/ipfs/{}/file-77777", grown[1].2), &Noise::bytes(77_777, 100)).await;
    for (what, more, _) in grown {
        assert!(more < GROWTH_MAX, "{what}: memory grew by {} MiB", more / MIB);
    }
    node.stop().await;
}

/// A dag-pb block of the maximum size that has as many links as possible: to identity CIDs, which are all different.
fn wide_block(number: u32) -> Block {
    const LINK_BYTES: u32 = 12;
    let links = content::MAX_BLOCK_BYTES as u32 / LINK_BYTES;
    let link = |index: u32| {
        let [a, b, c, d] = (number * links + index).to_be_bytes();
        // PBLink.Hash is a CIDv1: raw, an identity digest of four bytes.
        [0x12, 10, 0x0a, 8, 1, 0x55, 0, 4, a, b, c, d]
    };
    let bytes: Vec<u8> = (0..links).flat_map(link).collect();
    Block::of(codec::DAG_PB, hashes::SHA2_256, 32, bytes.into()).expect("a block")
}

/// An archive of so many such blocks below one root.
fn wide_archive(blocks: u32) -> Vec<u8> {
    let wide: Vec<_> = (0..blocks).map(wide_block).collect();
    let links = wide.iter().flat_map(|block| {
        let cid = block.cid().to_bytes();
        [&[0x12, cid.len() as u8 + 2, 0x0a, cid.len() as u8][..], &cid].concat()
    });
    let root = Block::of(codec::DAG_PB, hashes::SHA2_256, 32, links.collect()).expect("a block");
    let mut archive = car::header(&[*root.cid()]).to_vec();
    for block in [root].iter().chain(&wide) {
        let (head, data) = car::section(block);
        archive.extend_from_slice(&head);
        archive.extend_from_slice(&data);
    }
    archive
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_uploads_stay_within_the_memory_of_uploads() {
    const UPLOADS_BYTES: u64 = 64 * MIB;
    /// Blocks on their way to the disk, and what the allocator keeps.
    const OTHER_BYTES: u64 = 64 * MIB;
    let data = folder();
    let launch = Launch::new(data.path())
        .set("CAUSEWAY_CACHE_RAM_BYTES_MAX", 8 * MIB)
        .set("CAUSEWAY_UPLOADS_MEMORY_BYTES_MAX", UPLOADS_BYTES);
    let token = launch.run(&["token", "create", "--scope", "pin"]).expect("is created");
    let node = launch.start().await;
    let send = async |path: &str, media_type: &str, body: Vec<u8>| {
        let request = client().post(format!("{}{path}", node.admin_url())).timeout(Duration::from_secs(600));
        let request = request.bearer_auth(&token).header("content-type", media_type).body(body);
        let response = request.send().await.expect("is answered");
        (response.status().as_u16(), response.text().await.expect("an answer"))
    };
    let form = |bytes: usize| form(&[("file".to_owned(), Noise::bytes(65, bytes))]);
    let idle = node.process.resident_bytes();
    node.process.reset_resident_peak();

    let tiny = "/api/v0/add?only-hash=true&chunker=size-1&max-file-links=";
    let (status, refusal) = send(&format!("{tiny}{}", i32::MAX), FORM, form(40 << 20)).await;
    assert_eq!(status, 400, "{refusal}");
    let most = refusal.split_once("a node has at most ").and_then(|(_, rest)| rest.split_once(" links"));
    let (most, _) = most.unwrap_or_else(|| panic!("{refusal}"));
    let (status, answer) = send(&format!("{tiny}{most}"), FORM, form(1 << 20)).await;
    assert!([200, 400, 503].contains(&status), "{status}: {answer}");

    let archive = wide_archive(24);
    let head = b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
    let in_form = [&head[..], &archive, b"\r\n--XX--\r\n"].concat();
    for (path, media_type, body) in [("/upload", CAR, archive), ("/api/v0/dag/import", FORM, in_form)] {
        let (status, answer) = send(path, media_type, body).await;
        assert!([200, 503].contains(&status), "{path}: {status}: {answer}");
    }

    let more = node.process.resident_peak_bytes().saturating_sub(idle);
    println!("{} MiB resident when idle, {} MiB more at the peak", idle / MIB, more / MIB);
    assert!(more < UPLOADS_BYTES + OTHER_BYTES, "memory grew by {} MiB", more / MIB);
    // All of the budget is released.
    let content = Noise::bytes(66, 3_000_000);
    let cid = root(upload(&node, "", "", content.clone()).await);
    node.expect(&format!("/ipfs/{cid}"), &content).await;
    node.assert_healthy().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_uploads_survive_a_kill() {
    let data = folder();
    let launch = Launch::new(data.path());
    let node = launch.start().await;
    let content = Noise::bytes(60, 5_000_000);
    let cid = root(upload(&node, "pin-name=kept", "", content.clone()).await);
    // SIGKILL, like a power cut.
    drop(node);
    let node = launch.start().await;
    node.expect(&format!("/ipfs/{cid}"), &content).await;
    let (_, pins) = node.admin("GET", "/psa/pins?name=kept", None).await;
    assert_eq!((&pins["count"], &pins["results"][0]["pin"]["cid"]), (&1.into(), &cid.into()), "{pins}");
    node.stop().await;
    let printed = launch.run(&["store", "check"]).expect("the store is whole");
    assert!(printed.contains("0 damaged") && !printed.contains("lacks"), "{printed}");
}

/// Sends a tus request: the status, the offset and the path of the answer.
pub async fn tus(
    node: &Causeway,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<reqwest::Body>,
) -> Result<(u16, Option<u64>, String), reqwest::Error> {
    tus_at(node.admin_url(), method, path, headers, body).await
}

/// The same, to the admin listener at a URL.
pub async fn tus_at(
    admin: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<reqwest::Body>,
) -> Result<(u16, Option<u64>, String), reqwest::Error> {
    let url = format!("{admin}{path}");
    let request = client().request(method.parse().expect("a method"), url).bearer_auth(TOKEN).body(body);
    let request = headers
        .iter()
        .fold(request.header("tus-resumable", "1.0.0"), |request, (name, value)| request.header(*name, *value));
    let response = request.send().await?;
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let offset = header("upload-offset").and_then(|text| text.parse().ok());
    let path = header("location").or_else(|| header("x-ipfs-path")).unwrap_or_default();
    Ok((response.status().as_u16(), offset, path))
}

/// The media type of a piece.
pub const PIECE: (&str, &str) = ("content-type", "application/offset+octet-stream");

#[tokio::test(flavor = "multi_thread")]
async fn a_resumable_upload_continues_after_a_kill() {
    const LEN: u64 = 100 * MIB;
    let data = folder();
    let launch = Launch::new(data.path());
    let node = launch.start().await;
    let length = LEN.to_string();
    let created = tus(&node, "POST", "/api/v1/uploads?cid-version=1", &[("upload-length", &length)], "").await;
    let (status, _, place) = created.expect("is answered");
    assert_eq!(status, 201);
    // The first 60 MiB are sent, the upload stalls, and then the gateway is killed.
    let mut noise = Noise::new(70);
    let mut first = vec![0; 60 << 20];
    noise.fill(&mut first);
    let endless =
        stream::StreamExt::chain(stream::iter([Ok::<_, io::Error>(Bytes::from(first.clone()))]), stream::pending());
    let sending = {
        let (url, body) = (format!("{}{place}", node.admin_url()), reqwest::Body::wrap_stream(endless));
        let request = client().patch(url).bearer_auth(TOKEN).header("upload-offset", "0").header(PIECE.0, PIECE.1);
        tokio::spawn(request.body(body).send())
    };
    let known = eventually("the upload gets on", TIMEOUT, async || {
        let (_, view) = node.admin("GET", &place, None).await;
        let offset = view["offset"].as_u64().unwrap_or(0);
        if offset >= 32 * MIB { Ok(offset) } else { Err(view) }
    });
    let known = known.await;
    drop(node);
    assert!(sending.await.expect("ends").is_err(), "the gateway was killed");
    let node = launch.start().await;
    let (status, offset, _) = tus(&node, "HEAD", &place, &[], "").await.expect("is answered");
    let offset = offset.expect("an offset");
    assert!(status == 200 && offset >= known, "{offset} of {known} acknowledged bytes");
    let mut whole = first;
    whole.resize(usize::try_from(LEN).expect("fits"), 0);
    noise.fill(&mut whole[60 << 20..]);
    let from = usize::try_from(offset).expect("fits");
    let text = offset.to_string();
    let last = tus(&node, "PATCH", &place, &[("upload-offset", &text), PIECE], whole[from..].to_vec()).await;
    let (status, offset, path) = last.expect("is answered");
    assert_eq!((status, offset), (204, Some(LEN)));
    let expected = launch.pipe(data.path(), &["add", "-n", "-Q", "--cid-version=1", "-"], &whole).expect("is hashed");
    assert_eq!(path, format!("/ipfs/{}", String::from_utf8_lossy(&expected).trim()));
    let got = node.get(&path).await;
    assert_same_bytes(&path, &got.body, &whole);
    node.stop().await;
    let left: u64 = fs::read_dir(data.path().join("data/uploads/parts"))
        .expect("lists")
        .map(|entry| entry.expect("an entry").metadata().expect("is there").len())
        .sum();
    assert!(left < 10_000, "the parts are gone: {left} bytes are left");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_upload_leaves_nothing_pinned() {
    let data = folder();
    let launch = Launch::new(data.path());
    let node = launch.start().await;
    let before = launch.run(&["store", "stats", "--json"]).expect("stats");
    let pieces = stream::iter([Ok(Bytes::from(Noise::bytes(80, 20 << 20))), Err(io::Error::other("gone"))]);
    let url = format!("{}/upload", node.admin_url());
    let sent = client().post(url).bearer_auth(TOKEN).body(reqwest::Body::wrap_stream(pieces)).send().await;
    assert!(sent.is_err(), "{sent:?}");
    eventually("it is over", TIMEOUT, async || {
        let (_, log) = node.admin("GET", "/api/v1/audit", None).await;
        // Without a status, the upload is in progress.
        let is_over = |entry: &Value| entry["path"] == "/upload" && entry["status"].is_number();
        let over = log["entries"].as_array().is_some_and(|all| all.iter().any(is_over));
        if over { Ok(()) } else { Err(log) }
    })
    .await;
    let before: Value = serde_json::from_str(&before).expect("JSON");
    eventually("nothing is protected", TIMEOUT, async || {
        let now = launch.run(&["store", "stats", "--json"])?;
        let now: Value = serde_json::from_str(&now).map_err(|error| error.to_string())?;
        let same = ["pins", "partial_pins", "pinned"].iter().all(|figure| now[figure] == before[figure]);
        if same { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_gateway_does_not_wait_for_uploads() {
    let data = folder();
    let launch = Launch::new(data.path());
    let node = launch.start().await;
    let begun = |kind: &'static str, from: &[(&'static str, &'static str)], method: reqwest::Method, path: String| {
        let endless = stream::StreamExt::chain(
            stream::iter([Ok::<_, io::Error>(Bytes::from(Noise::bytes(90, 1 << 20)))]),
            stream::pending(),
        );
        let request = client().request(method, format!("{}{path}", node.admin_url())).bearer_auth(TOKEN);
        let request = from
            .iter()
            .fold(request.header("content-type", kind), |request, (name, value)| request.header(*name, *value));
        tokio::spawn(request.body(reqwest::Body::wrap_stream(endless)).send())
    };
    let created = tus(&node, "POST", "/api/v1/uploads", &[("upload-length", "10000000")], "").await;
    let (_, _, place) = created.expect("is answered");
    let senders = [
        begun("text/plain", &[], reqwest::Method::POST, "/upload".to_owned()),
        begun(FORM, &[], reqwest::Method::POST, "/upload".to_owned()),
        begun(TAR, &[], reqwest::Method::POST, "/upload".to_owned()),
        begun(CAR, &[], reqwest::Method::POST, "/upload".to_owned()),
        begun(PIECE.1, &[("upload-offset", "0")], reqwest::Method::PATCH, place.clone()),
    ];
    let parts = data.path().join("data/uploads/parts");
    eventually("the piece is being written", TIMEOUT, async || {
        let sizes = fs::read_dir(&parts).map_err(|error| error.to_string())?;
        let sizes: Vec<u64> = sizes.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).collect();
        if sizes.iter().any(|size| *size >= MIB) { Ok(()) } else { Err(format!("{sizes:?}")) }
    })
    .await;
    let asked = std::time::Instant::now();
    node.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(20), "it took {:?}", asked.elapsed());
    for sender in senders {
        _ = sender.await.expect("ends");
    }
}
