//! Files, raw blocks and CARs as `Content-Encoding: zstd`.

use crate::dag::{cbor_of, chained_file, directory, doubled_file, file, file_in_one_block, noise, raw};
use crate::site::{Setup, Site, header};
use content::{Block, Cid, DenyList, MemoryBlocks};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io::Read as _;
use std::sync::Arc;

const ZSTD: (&str, &str) = ("accept-encoding", "gzip, deflate, br, zstd");

fn text(leaf: usize) -> Vec<u8> {
    (0..4_000).flat_map(|line| format!("line {line} of leaf {leaf} is a line\n").into_bytes()).collect()
}

/// Bytes of which more than a third are compressible.
fn mixed(leaf: u8) -> Vec<u8> {
    [noise(leaf, 150_000), vec![b' '; 100_000]].concat()
}

/// A directory of files, its blocks, and the files' bytes by name.
struct Tree {
    root: Cid,
    blocks: Vec<Block>,
    files: Vec<(&'static str, Block, Vec<u8>)>,
}

fn tree() -> Tree {
    let leaves = |of: Vec<Vec<u8>>| of.into_iter().map(raw).collect::<Vec<_>>();
    let texts = leaves((0..5).map(text).collect());
    let large = leaves((0..20).map(mixed).collect());
    let images = leaves((0..4).map(|seed| noise(seed, 100_000)).collect());
    let nested = doubled_file(&texts[0], 3);
    let mut files = Vec::new();
    for (name, root, leaves) in [
        ("image.png", file(&images), &images[..]),
        ("large.txt", file(&large), &large[..]),
        ("nested.txt", nested[3].clone(), &vec![texts[0].clone(); 8][..]),
        ("one.txt", texts[0].clone(), &texts[..1]),
        ("text.txt", file(&texts), &texts[..]),
    ] {
        files.push((name, root, leaves.iter().flat_map(|leaf| leaf.data().to_vec()).collect::<Vec<u8>>()));
    }
    let entries: Vec<_> = files.iter().map(|(name, root, _)| (*name, root)).collect();
    let root = directory(&entries);
    let mut blocks = vec![root.clone()];
    blocks.extend(files.iter().map(|(_, root, _)| root.clone()));
    blocks.extend([texts, large, images, nested].concat());
    Tree { root: *root.cid(), blocks, files }
}

async fn site(tree: &Tree) -> Site {
    Setup::new(&tree.blocks.iter().collect::<Vec<_>>()).start().await
}

#[tokio::test]
async fn files_stored_as_zstd_are_sent_as_zstd_to_clients_that_accept_it() {
    let tree = tree();
    let site = site(&tree).await;
    for (name, root, bytes) in &tree.files {
        let path = format!("/ipfs/{}/{name}", tree.root);
        // The first request analyses the file; the decision is cached for later ones.
        for _ in 0..3 {
            let response = site.send("GET", &path, &[ZSTD]).await;
            assert_eq!(response.status(), 200);
            assert_eq!(header(&response, "vary"), "Accept, Accept-Encoding");
            let (encoding, etag) = (header(&response, "content-encoding"), header(&response, "etag").to_owned());
            let length: usize = header(&response, "content-length").parse().expect("a length");
            if *name == "image.png" {
                assert_eq!((encoding, etag), ("", format!("\"{}\"", root.cid())));
                assert_eq!(&response.bytes().await.expect("a body")[..], bytes);
                continue;
            }
            assert_eq!((encoding, etag), ("zstd", format!("W/\"{}.zstd\"", root.cid())), "{name}");
            assert_eq!(header(&response, "accept-ranges"), "none");
            assert!(header(&response, "content-type").starts_with("text/plain"));
            let body = response.bytes().await.expect("a body");
            assert_eq!(body.len(), length);
            assert!(body.len() < bytes.len() * 7 / 10, "{name}: {} of {}", body.len(), bytes.len());
            assert_eq!(&zstd::decode_all(&body[..]).expect("decodes"), bytes, "{name}");
        }
        let plain = site.get(&path).await;
        assert_eq!((header(&plain, "content-encoding"), header(&plain, "accept-ranges")), ("", "bytes"));
        assert_eq!(&plain.bytes().await.expect("a body")[..], bytes);
    }
}

#[tokio::test]
async fn head_and_ranges_of_encoded_files_have_their_own_entity_tags() {
    let tree = tree();
    let site = site(&tree).await;
    let (name, root, bytes) = &tree.files[4];
    let path = format!("/ipfs/{}/{name}", tree.root);
    let (plain, encoded) = (format!("\"{}\"", root.cid()), format!("W/\"{}.zstd\"", root.cid()));
    let whole = site.send("GET", &path, &[ZSTD]).await;
    let head = site.send("HEAD", &path, &[ZSTD]).await;
    for name in ["content-length", "content-encoding", "content-type", "etag", "vary", "accept-ranges"] {
        assert_eq!(header(&head, name), header(&whole, name), "{name}");
    }
    let part = site.send("GET", &path, &[ZSTD, ("range", "bytes=100000-100009")]).await;
    assert_eq!((part.status().as_u16(), header(&part, "content-encoding")), (206, ""));
    assert_eq!(header(&part, "etag"), plain);
    assert_eq!(&part.bytes().await.expect("a body")[..], &bytes[100_000..100_010]);
    // A range of an encoded response cannot be resumed: the whole is sent.
    let resumed = site.send("GET", &path, &[ZSTD, ("range", "bytes=5-"), ("if-range", &encoded)]).await;
    assert_eq!((resumed.status().as_u16(), header(&resumed, "etag")), (200, &*plain));

    let table = [
        (&encoded, Some(ZSTD), 304, &encoded),
        (&plain, None, 304, &plain),
        (&encoded, None, 200, &plain),
        (&plain, Some(ZSTD), 304, &plain),
        (&plain, Some(("accept-encoding", "zstd;q=0, gzip")), 304, &plain),
        (&plain, Some(("accept-encoding", "*")), 304, &plain),
    ];
    for (tag, accepts, status, found) in table {
        let mut headers = vec![("if-none-match", tag.as_str())];
        headers.extend(accepts);
        let response = site.send("GET", &path, &headers).await;
        assert_eq!((response.status().as_u16(), header(&response, "etag")), (status, found.as_str()), "{headers:?}");
        assert_eq!(header(&response, "vary"), "Accept, Accept-Encoding");
    }
}

/// Files without extensions, with their sniffed media types.
fn nameless() -> Vec<(&'static str, Vec<Block>, &'static str)> {
    let leaves = |of: Vec<Vec<u8>>| of.into_iter().map(raw).collect::<Vec<_>>();
    let page = [b"<!doctype html><p>".to_vec(), text(1)].concat();
    let json =
        [b"[\"".to_vec(), text(2).iter().map(|byte| byte.max(&b' ')).copied().collect(), b"\"]".to_vec()].concat();
    vec![
        ("LICENSE", leaves((0..3).map(text).collect()), "text/plain; charset=utf-8"),
        ("data", leaves(vec![json]), "application/json"),
        ("large", leaves((0..20).map(mixed).collect()), "application/octet-stream"),
        ("page", leaves(vec![page]), "text/html"),
    ]
}

#[tokio::test]
async fn a_sniffed_media_type_does_not_depend_on_the_coding() {
    for (name, leaves, media_type) in nameless() {
        let root = if let [leaf] = &leaves[..] { leaf.clone() } else { file(&leaves) };
        let folder = directory(&[(name, &root)]);
        let blocks: Vec<&Block> = leaves.iter().chain([&root, &folder]).collect();
        let bytes: Vec<u8> = leaves.iter().flat_map(|leaf| leaf.data().to_vec()).collect();
        let encoded = format!("W/\"{}.zstd\"", root.cid());
        let path = format!("/ipfs/{}/{name}", folder.cid());

        // Each of these is the first request to its gateway.
        let plain = Setup::new(&blocks).start().await.get(&path).await;
        assert_eq!((header(&plain, "content-type"), header(&plain, "content-encoding")), (media_type, ""), "{name}");
        let head = Setup::new(&blocks).start().await.send("HEAD", &path, &[ZSTD]).await;
        let revalidated = [ZSTD, ("if-none-match", &*encoded)];
        let revalidated = Setup::new(&blocks).start().await.send("GET", &path, &revalidated).await;
        assert_eq!((revalidated.status().as_u16(), header(&revalidated, "etag")), (304, &*encoded), "{name}");

        let site = Setup::new(&blocks).start().await;
        for turn in 0..3 {
            let response = site.send("GET", &path, &[ZSTD]).await;
            assert_eq!(header(&response, "content-encoding"), "zstd", "{name} {turn}");
            assert_eq!(header(&response, "content-type"), media_type, "{name} {turn}");
            assert_eq!(header(&response, "etag"), encoded, "{name} {turn}");
            assert_eq!(header(&response, "vary"), "Accept, Accept-Encoding");
            for of_both in ["content-length", "content-encoding", "content-type", "etag", "vary", "accept-ranges"] {
                assert_eq!(header(&head, of_both), header(&response, of_both), "{name} {of_both}");
            }
            let body = response.bytes().await.expect("a body");
            assert_eq!(zstd::decode_all(&body[..]).expect("decodes"), bytes, "{name} {turn}");
            // Once the media type is known, the file is not sniffed again.
            let look_ups = if leaves.len() == 1 { 1 + turn } else { 1 };
            assert_eq!(site.look_ups(&leaves[0]), look_ups, "{name} {turn}");
        }
    }
}

#[tokio::test]
async fn a_file_without_extension_that_is_stored_uncompressed_is_sent_unencoded() {
    let leaves: Vec<Block> = (0..3).map(|seed| raw(noise(seed, 50_000))).collect();
    let root = file(&leaves);
    let blocks: Vec<&Block> = leaves.iter().chain([&root]).collect();
    let site = Setup::new(&blocks).start().await;
    for _ in 0..2 {
        let response = site.send("GET", &format!("/ipfs/{}", root.cid()), &[ZSTD]).await;
        assert_eq!(header(&response, "content-encoding"), "");
        assert_eq!(header(&response, "content-type"), "application/octet-stream");
        assert_eq!(header(&response, "etag"), format!("\"{}\"", root.cid()));
    }
}

#[tokio::test]
async fn conditional_requests_for_encoded_files_read_nothing() {
    let tree = tree();
    let site = site(&tree).await;
    let (name, root, _) = &tree.files[1];
    let (path, encoded) = (format!("/ipfs/{}/{name}", tree.root), format!("W/\"{}.zstd\"", root.cid()));
    let whole = site.send("GET", &path, &[ZSTD]).await;
    assert_eq!((header(&whole, "etag"), header(&whole, "content-encoding")), (&*encoded, "zstd"));
    whole.bytes().await.expect("a body");
    let reads = || site.metric("causeway_tier_hits_total{tier=\"disk\"}");
    let before = reads();
    for _ in 0..3 {
        let response = site.send("GET", &path, &[ZSTD, ("if-none-match", &encoded)]).await;
        assert_eq!((response.status().as_u16(), header(&response, "etag")), (304, &*encoded));
    }
    assert_eq!(reads(), before);
}

#[tokio::test]
async fn clients_without_zstd_get_brotli_or_gzip_of_small_files_after_transcoding() {
    let tree = tree();
    let site = site(&tree).await;
    let (name, root, bytes) = &tree.files[4];
    let path = format!("/ipfs/{}/{name}", tree.root);
    for (accepted, coding) in [("gzip, deflate, br", "br"), ("gzip", "gzip"), ("br;q=0, gzip;q=0.5", "gzip")] {
        let accepts = ("accept-encoding", accepted);
        let etag = format!("W/\"{}.{coding}\"", root.cid());
        let response = loop {
            let response = site.send("GET", &path, &[accepts]).await;
            assert_eq!(header(&response, "vary"), "Accept, Accept-Encoding");
            if header(&response, "content-encoding") == coding {
                break response;
            }
            // The encoding is in progress.
            assert_eq!(header(&response, "etag"), format!("\"{}\"", root.cid()));
            assert_eq!(&response.bytes().await.expect("a body")[..], bytes);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        };
        assert_eq!((header(&response, "etag"), header(&response, "accept-ranges")), (&*etag, "none"));
        let length: usize = header(&response, "content-length").parse().expect("a length");
        let body = response.bytes().await.expect("a body");
        assert!(body.len() == length && length < bytes.len() / 4, "{accepted}: {length} of {}", bytes.len());
        let mut decoded = Vec::new();
        match coding {
            "br" => brotli::BrotliDecompress(&mut &body[..], &mut decoded).map(|()| 0).expect("decodes"),
            _ => flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut decoded).expect("decodes"),
        };
        assert!(decoded == *bytes, "{accepted}");
        let known = site.send("GET", &path, &[accepts, ("if-none-match", &etag)]).await;
        assert_eq!((known.status().as_u16(), header(&known, "etag")), (304, &*etag));
        let part = site.send("GET", &path, &[accepts, ("range", "bytes=5-9")]).await;
        assert_eq!((part.status().as_u16(), header(&part, "content-encoding")), (206, ""));
        let head = site.send("HEAD", &path, &[accepts]).await;
        assert_eq!((header(&head, "content-encoding"), header(&head, "etag")), (coding, &*etag));
    }
    // Large files are not transcoded.
    let large = format!("/ipfs/{}/large.txt", tree.root);
    for _ in 0..3 {
        let response = site.send("HEAD", &large, &[("accept-encoding", "gzip, br")]).await;
        assert_eq!(header(&response, "content-encoding"), "");
    }
}

#[tokio::test]
async fn a_file_with_too_many_inner_nodes_is_not_analysed() {
    let leaf = raw(text(0));
    for (times, status, encoding) in [(60, 200, "zstd"), (70, 502, ""), (2_000, 502, "")] {
        let chain = chained_file(&leaf, times);
        let site = Setup::new(&chain.iter().collect::<Vec<_>>()).start().await;
        let path = format!("/ipfs/{}?filename=a.txt", chain[chain.len() - 1].cid());
        let response = site.send("GET", &path, &[ZSTD]).await;
        assert_eq!((response.status().as_u16(), header(&response, "content-encoding")), (status, encoding), "{times}");
        let reads = site.metric("causeway_tier_hits_total{tier=\"disk\"}");
        assert!(reads < 300, "{reads} blocks were read for {times}");
    }
}

/// Raw blocks, by how they are stored: as a frame, as an envelope, and raw.
fn raw_blocks() -> [(&'static str, Block, bool); 5] {
    let cbor = [&[0x79, 0x40, 0][..], &[b'a'; 0x4000]].concat();
    [
        ("a leaf of text", raw(text(1)), true),
        ("a dag-pb leaf of text", file_in_one_block(&text(1)), true),
        ("a document", cbor_of(cbor), true),
        ("noise", raw(noise(1, 100_000)), false),
        ("a short block", raw("short"), false),
    ]
}

#[tokio::test]
async fn raw_blocks_are_sent_as_they_are_stored() {
    let blocks = raw_blocks();
    let folder = directory(&[("a", &blocks[0].1), ("b", &blocks[1].1)]);
    let site = Setup::new(&blocks.iter().map(|(_, block, _)| block).chain([&folder]).collect::<Vec<_>>()).start().await;
    for (name, block, compressed) in &blocks {
        let path = format!("/ipfs/{}?format=raw", block.cid());
        let (plain, encoded) = (format!("\"{}.raw\"", block.cid()), format!("W/\"{}.raw.zstd\"", block.cid()));
        for _ in 0..2 {
            let response = site.send("GET", &path, &[ZSTD]).await;
            assert_eq!((response.status().as_u16(), header(&response, "vary")), (200, "Accept, Accept-Encoding"));
            assert_eq!(header(&response, "content-type"), "application/vnd.ipld.raw", "{name}");
            let head = site.send("HEAD", &path, &[ZSTD]).await;
            for of_both in HEADERS {
                assert_eq!(header(&head, of_both), header(&response, of_both), "{name} {of_both}");
            }
            let (coding, etag) = if *compressed { ("zstd", &encoded) } else { ("", &plain) };
            assert_eq!((header(&response, "content-encoding"), header(&response, "etag")), (coding, &**etag), "{name}");
            let length: usize = header(&response, "content-length").parse().expect("a length");
            let body = response.bytes().await.expect("a body");
            assert_eq!(body.len(), length, "{name}");
            if *compressed {
                assert!(length < block.data().len() / 2, "{name}: {length} of {}", block.data().len());
                assert!(zstd::decode_all(&body[..]).expect("decodes") == *block.data(), "{name}");
            } else {
                assert_eq!(body, block.data(), "{name}");
            }
        }
        let as_is = site.get(&path).await;
        assert_eq!((header(&as_is, "content-encoding"), header(&as_is, "etag")), ("", &*plain), "{name}");
        assert_eq!(header(&as_is, "vary"), "Accept, Accept-Encoding");
        assert_eq!(as_is.bytes().await.expect("a body"), block.data());
        let part = site.send("GET", &path, &[ZSTD, ("range", "bytes=1-3")]).await;
        assert_eq!((part.status().as_u16(), header(&part, "content-encoding")), (206, ""), "{name}");
        assert_eq!(part.bytes().await.expect("a body"), block.data().slice(1..4), "{name}");
        let table = [
            (&plain, vec![ZSTD], 304, Some(&plain)),
            (&plain, vec![], 304, Some(&plain)),
            (&encoded, vec![ZSTD], 304, Some(&encoded)),
            (&encoded, vec![], 200, Some(&plain)),
            (&encoded, vec![("accept-encoding", "zstd;q=0, br")], 200, Some(&plain)),
        ];
        for (tag, mut headers, status, etag) in table {
            headers.push(("if-none-match", tag));
            let response = site.send("GET", &path, &headers).await;
            assert_eq!(response.status().as_u16(), status, "{name} {headers:?}");
            assert_eq!(Some(header(&response, "etag")), etag.map(String::as_str), "{name} {headers:?}");
            assert_eq!(header(&response, "vary"), "Accept, Accept-Encoding");
        }
        let matched = site.send("GET", &path, &[ZSTD, ("if-match", &plain)]).await;
        assert_eq!((matched.status().as_u16(), header(&matched, "content-encoding")), (200, ""), "{name}");
    }
    // By a path.
    for (name, (_, block, _)) in ["a", "b"].iter().zip(&blocks) {
        let path = format!("/ipfs/{}/{name}?format=raw", folder.cid());
        let response = site.send("GET", &path, &[ZSTD]).await;
        assert_eq!(header(&response, "x-ipfs-roots"), format!("{},{}", folder.cid(), block.cid()));
        assert_eq!(header(&response, "content-encoding"), "zstd");
        let body = response.bytes().await.expect("a body");
        assert!(zstd::decode_all(&body[..]).expect("decodes") == *block.data());
        let etag = format!("W/\"{}.raw.zstd\"", block.cid());
        let known = site.send("GET", &path, &[ZSTD, ("if-none-match", &etag)]).await;
        assert_eq!((known.status().as_u16(), header(&known, "etag")), (304, &*etag));
    }
}

/// Headers that GET and HEAD have in common.
const HEADERS: [&str; 8] = [
    "content-length",
    "content-encoding",
    "content-type",
    "content-disposition",
    "etag",
    "vary",
    "accept-ranges",
    "x-ipfs-roots",
];

#[tokio::test]
async fn a_compressed_leaf_is_sent_raw_without_reading_it() {
    let leaf = raw(text(1));
    let site = Setup::new(&[&leaf]).start().await;
    let path = format!("/ipfs/{}?format=raw", leaf.cid());
    for method in ["HEAD", "GET"] {
        let response = site.send(method, &path, &[ZSTD]).await;
        assert_eq!((header(&response, "content-encoding"), site.look_ups(&leaf)), ("zstd", 0), "{method}");
    }
    let missing = format!("/ipfs/{}?format=raw", raw(text(2)).cid());
    let headers = [ZSTD, ("cache-control", "only-if-cached")];
    assert_eq!(site.send("GET", &missing, &headers).await.status(), 412);
}

#[tokio::test]
async fn cars_are_sent_as_zstd_to_clients_that_accept_it() {
    let tree = tree();
    let site = site(&tree).await;
    let queries = [
        "",
        "&dag-scope=all",
        "&dag-scope=entity",
        "&dag-scope=block",
        "&car-dups=y",
        "&entity-bytes=1000:200000",
        "&entity-bytes=-5:*",
    ];
    for (name, root, bytes) in &tree.files {
        for query in queries {
            let path = format!("/ipfs/{}/{name}?format=car{query}", tree.root);
            let plain = site.get(&path).await;
            let etag = header(&plain, "etag").to_owned();
            assert_eq!((header(&plain, "content-encoding"), header(&plain, "vary")), ("", "Accept, Accept-Encoding"));
            let plain = plain.bytes().await.expect("a body");
            let response = site.send("GET", &path, &[ZSTD]).await;
            let encoded = format!("{}.zstd\"", etag.trim_end_matches('"'));
            assert!(etag.starts_with(&format!("W/\"{}.car", root.cid())), "{etag}");
            assert_eq!((header(&response, "content-encoding"), header(&response, "etag")), ("zstd", &*encoded));
            let head = site.send("HEAD", &path, &[ZSTD]).await;
            for of_both in HEADERS {
                assert_eq!(header(&head, of_both), header(&response, of_both), "{path} {of_both}");
            }
            let body = response.bytes().await.expect("a body");
            assert!(zstd::decode_all(&body[..]).expect("decodes") == plain, "{path}");
            let bound = match *name {
                "image.png" => plain.len() + plain.len() / 1000 + 200,
                _ if plain.len() < 4_000 => plain.len() + 200,
                _ => plain.len() * 7 / 10,
            };
            assert!(body.len() < bound, "{path}: {} of {} bytes, {}", body.len(), plain.len(), bytes.len());
            for (tag, accepts, status) in
                [(&encoded, true, 304), (&etag, true, 304), (&etag, false, 304), (&encoded, false, 200)]
            {
                let mut headers = vec![("if-none-match", tag.as_str())];
                headers.extend(accepts.then_some(ZSTD));
                let response = site.send("GET", &path, &headers).await;
                assert_eq!(response.status().as_u16(), status, "{path} {headers:?}");
                if status == 304 {
                    assert_eq!(header(&response, "etag"), tag.as_str(), "{path}");
                }
            }
        }
        let path = format!("/ipfs/{}?format=car", root.cid());
        let ranged = site.send("GET", &path, &[ZSTD, ("range", "bytes=0-9")]).await;
        assert_eq!((ranged.status().as_u16(), header(&ranged, "content-encoding")), (200, ""), "{name}");
    }
}

#[tokio::test]
async fn encoding_can_be_disabled() {
    let tree = tree();
    let blocks: Vec<_> = tree.blocks.iter().collect();
    let http = config::Http { zstd: false, ..config::Http::default() };
    let disabled = Setup { http, ..Setup::new(&blocks) }.start().await;
    for query in ["", "?format=raw", "?format=car"] {
        let response = disabled.send("GET", &format!("/ipfs/{}/text.txt{query}", tree.root), &[ZSTD]).await;
        assert_eq!((response.status().as_u16(), header(&response, "content-encoding")), (200, ""), "{query}");
    }
}

/// Blocks that are only with another source, and so not on the disk when a response begins.
#[tokio::test]
async fn a_car_of_blocks_that_are_being_fetched_is_complete() {
    let tree = tree();
    let upstream: Arc<dyn content::BlockSource> = Arc::new(tree.blocks.iter().cloned().collect::<MemoryBlocks>());
    let site = Setup { upstream: Some(upstream), ..Setup::new(&[]) }.start().await;
    let path = format!("/ipfs/{}?format=car", tree.root);
    let cold = site.send("GET", &path, &[ZSTD]).await;
    assert_eq!(header(&cold, "content-encoding"), "zstd");
    let cold = zstd::decode_all(&cold.bytes().await.expect("a body")[..]).expect("decodes");
    assert!(cold == site.get(&path).await.bytes().await.expect("a body"));
}

/// A leaf: its kind, its length, and its seed.
type Leaf = (u8, usize, u8);

fn any_leaf((kind, length, seed): Leaf) -> Block {
    let content = match kind {
        0 => noise(seed, length),
        1 => text(usize::from(seed)).into_iter().cycle().take(length).collect(),
        2 => [noise(seed, length / 2), vec![b' '; length - length / 2]].concat(),
        3 => return file_in_one_block(&text(usize::from(seed))[..length.min(50_000)]),
        _ => return cbor_of([&[0x59, (length >> 8) as u8, length as u8][..], &vec![seed; length & 0xffff]].concat()),
    };
    raw(content)
}

#[test]
fn any_dag_is_the_same_as_zstd_and_without() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let leaf = (0_u8..5, 0_usize..60_000, any::<u8>());
    let folders = proptest::collection::vec(proptest::collection::vec(leaf, 0..5), 1..5);
    let mut runner = TestRunner::new(Config { cases: 24, ..Config::default() });
    let same = |folders: Vec<Vec<Leaf>>| {
        let mut blocks = Vec::new();
        let mut below = Vec::new();
        for leaves in folders {
            let leaves: Vec<Block> = leaves.into_iter().map(any_leaf).collect();
            let names: Vec<String> = (0..leaves.len()).map(|number| number.to_string()).collect();
            let entries: Vec<_> = names.iter().map(String::as_str).zip(&leaves).collect();
            below.push(directory(&entries));
            blocks.extend(leaves);
        }
        let names: Vec<String> = (0..below.len()).map(|number| number.to_string()).collect();
        let root = directory(&names.iter().map(String::as_str).zip(&below).collect::<Vec<_>>());
        blocks.extend(below);
        blocks.push(root.clone());
        runtime.block_on(async {
            let site = Setup::new(&blocks.iter().collect::<Vec<_>>()).start().await;
            let mut paths: Vec<String> =
                blocks.iter().map(|block| format!("/ipfs/{}?format=raw", block.cid())).collect();
            paths.extend(
                ["", "&car-dups=y", "&dag-scope=entity"].map(|q| format!("/ipfs/{}?format=car{q}", root.cid())),
            );
            for path in paths {
                let plain = site.get(&path).await.bytes().await.expect("a body");
                let response = site.send("GET", &path, &[ZSTD]).await;
                let is_encoded = header(&response, "content-encoding") == "zstd";
                let length = response.content_length();
                let body = response.bytes().await.expect("a body");
                assert!(length.is_none_or(|length| length == body.len() as u64), "{path}");
                let decoded = if is_encoded { zstd::decode_all(&body[..]).expect("decodes") } else { body.to_vec() };
                assert!(decoded == plain, "{path}");
                assert!(is_encoded || path.contains("raw"), "{path}");
            }
        });
        Ok(())
    };
    runner.run(&folders, same).unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn a_withheld_leaf_is_not_sent_encoded_either() {
    let tree = tree();
    let denied = *tree.blocks.iter().find(|block| block.data()[..] == text(1)[..]).expect("is there").cid();
    let policy = Arc::new(DenyList::new([denied]));
    let blocks: Vec<_> = tree.blocks.iter().collect();
    let site = Setup { policy, ..Setup::new(&blocks) }.start().await;
    for _ in 0..2 {
        let response = site.send("GET", &format!("/ipfs/{}/text.txt", tree.root), &[ZSTD]).await;
        assert_eq!(header(&response, "content-encoding"), "");
        assert!(response.bytes().await.is_err(), "it breaks off at that leaf");
    }
    for method in ["GET", "HEAD"] {
        for path in [format!("{denied}?format=raw"), format!("{}/text.txt?format=car", tree.root)] {
            let response = site.send(method, &format!("/ipfs/{path}"), &[ZSTD]).await;
            assert_eq!(response.status(), 410, "{method} {path}");
        }
        let tag = format!("W/\"{denied}.raw.zstd\"");
        let headers = [ZSTD, ("if-none-match", &*tag)];
        assert_eq!(site.send(method, &format!("/ipfs/{denied}?format=raw"), &headers).await.status(), 410);
    }
}
