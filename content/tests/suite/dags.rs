//! Path resolution, links, and traversal of whole DAGs.

use crate::support::*;
use content::dag::{DagError, Visited, links, walk_all, walk_links};
use content::unixfs::NodeError;
use content::walk::{Resolved, WalkError, resolve};
use content::{Block, BlockSource, Cid, MemoryBlocks, SourceError, codec};
use futures::stream::StreamExt as _;
use std::collections::BTreeSet;
use std::sync::Arc;

pub fn walk(source: &dyn BlockSource, root: Cid, path: &str) -> Result<Resolved, WalkError> {
    let segments: Vec<String> = path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect();
    block_on(resolve(source, root, &segments))
}

pub fn directory(blocks: &MemoryBlocks, entries: &[(&str, &Block)]) -> Block {
    let links: Vec<Link> = entries.iter().map(|(name, block)| Link::to(*block.cid(), name)).collect();
    add(blocks, codec::DAG_PB, pb_node(&links, Some(&Message::default().varint(1, DIRECTORY).0), false))
}

#[test]
fn a_path_resolves_to_its_block_and_roots_or_fails_at_a_segment() {
    let blocks = MemoryBlocks::new();
    let file = leaf(&blocks, LeafKind::PbFile, b"file");
    let raw = leaf(&blocks, LeafKind::RawCodec, b"raw");
    let tiny = inline(codec::RAW, b"tiny");
    let symlink = pb_node(&[], Some(&Message::default().varint(1, SYMLINK).bytes(2, b"a/file").0), false);
    let symlink = add(&blocks, codec::DAG_PB, symlink);
    let cbor = add(&blocks, codec::DAG_CBOR, vec![0xa0]);
    let git = add(&blocks, 0x78, b"blob 0\0".to_vec());
    let broken = add(&blocks, codec::DAG_PB, b"garbage".to_vec());
    let lost = Block::of(codec::RAW, content::hashes::SHA2_256, 32, "lost".into()).expect("block");
    let plain = add(&blocks, codec::DAG_PB, pb_node(&[Link::to(*raw.cid(), "raw")], None, false));
    let a = directory(&blocks, &[("file", &file), ("raw", &raw), ("lost", &lost)]);
    let top = [("a", &a), ("tiny", &tiny), ("link", &symlink), ("cbor", &cbor), ("broken", &broken), ("plain", &plain)];
    let root = directory(&blocks, &[&top[..], &[("git", &git)]].concat());
    let source = RemoteSource::new(blocks, 1, 2);

    let found: [(&str, &[&Block]); 8] = [
        ("", &[]),
        ("a", &[&a]),
        ("a/file", &[&a, &file]),
        ("a/raw", &[&a, &raw]),
        ("tiny", &[&tiny]),
        ("link", &[&symlink]),
        ("cbor", &[&cbor]),
        ("plain/raw", &[&plain, &raw]),
    ];
    for (path, blocks) in found {
        let resolved = walk(&source, *root.cid(), path).expect(path);
        let roots: Vec<Cid> = std::iter::once(&root).chain(blocks.iter().copied()).map(|block| *block.cid()).collect();
        assert_eq!(resolved.roots, roots, "{path}");
        assert_eq!((&resolved.passed[..], &resolved.remainder[..]), (&roots[..roots.len() - 1], &[][..]), "{path}");
        assert_eq!(&resolved.block, *blocks.last().unwrap_or(&&root), "{path}");
    }

    let no_link = |parent: &Block, name: &str| WalkError::NoLink { parent: *parent.cid(), name: name.to_owned() };
    let not_a_directory = |block: &Block| WalkError::NotADirectory { cid: *block.cid(), name: "x".to_owned() };
    let not_found = WalkError::Source(SourceError::NotFound { cid: *lost.cid() });
    let failing = [
        ("b", no_link(&root, "b")),
        ("a/b", no_link(&a, "b")),
        ("a/b/c", no_link(&a, "b")),
        ("plain/x", no_link(&plain, "x")),
        ("a/file/x", not_a_directory(&file)),
        ("a/raw/x/y", not_a_directory(&raw)),
        ("tiny/x", not_a_directory(&tiny)),
        ("link/x", not_a_directory(&symlink)),
        ("cbor/x", no_link(&cbor, "x")),
        ("git/x", WalkError::Unsupported { cid: *git.cid(), codec: 0x78 }),
        ("a/lost", not_found.clone()),
        ("a/lost/x", not_found),
    ];
    for (path, error) in failing {
        assert_eq!(walk(&source, *root.cid(), path), Err(error), "{path}");
    }
    assert!(
        matches!(walk(&source, *root.cid(), "broken/x"), Err(WalkError::Malformed { cid, .. }) if cid == *broken.cid())
    );
    assert!(walk(&source, *root.cid(), "broken").is_ok(), "only the blocks before the last one are decoded");
}

#[test]
fn links_depend_on_the_codec() {
    let (a, b) = (*inline(codec::RAW, b"a").cid(), *inline(codec::RAW, &[7; 128]).cid());
    let pb = pb_node(&[Link::to(a, "x"), Link::to(b, "y"), Link::to(a, "z")], None, false);
    let block =
        |codec, data: &[u8]| Block::of(codec, content::hashes::SHA2_256, 32, data.to_vec().into()).expect("block");
    assert_eq!(links(&block(codec::DAG_PB, &pb)), Ok(vec![a, b, a]));
    assert_eq!(links(&block(codec::RAW, &pb)), Ok(vec![]));
    // {"a": 1.5, "b": [link, null, -1, {"c": link}], "cc": "text"}, with a digest longer than most libraries support.
    let mut cbor = b"\xa3\x61a\xfb\x3f\xf8\0\0\0\0\0\0\x61b\x84\xd8\x2a\x46\0".to_vec();
    cbor.extend_from_slice(&a.to_bytes());
    cbor.extend_from_slice(b"\xf6\x20\xa1\x61c\xd8\x2a\x58\x86\0");
    cbor.extend_from_slice(&b.to_bytes());
    cbor.extend_from_slice(b"\x62cc\x64text");
    assert_eq!(links(&block(codec::DAG_CBOR, &cbor)), Ok(vec![a, b]));
    // Deep nesting and negative zero are valid.
    let deep = [vec![0x81; 100_000], vec![0xd8, 0x2a, 0x46, 0], a.to_bytes()].concat();
    assert_eq!(links(&block(codec::DAG_CBOR, &deep)), Ok(vec![a]));
    assert_eq!(links(&block(codec::DAG_CBOR, b"\xfb\x80\0\0\0\0\0\0\0")), Ok(vec![]));
    let endless = [b"\x9b".to_vec(), vec![0xff; 8], vec![0; 100]].concat();
    for malformed in [&cbor[..cbor.len() - 1], &[cbor.clone(), vec![0]].concat(), b"", b"\xd8\x2a\x41\0", &endless] {
        assert!(matches!(links(&block(codec::DAG_CBOR, malformed)), Err(NodeError::Malformed { .. })));
    }
    assert!(matches!(links(&block(codec::DAG_PB, b"garbage")), Err(NodeError::Malformed { .. })));
    let json = format!(
        r#"{{"a": 1.5, "b": [{{"/": "{a}"}}, null, {{"c": {{"/": "{a}"}}}}], "d": {{"/": {{"bytes": "YQ"}}}}}}"#
    );
    assert_eq!(links(&block(codec::DAG_JSON, json.as_bytes())), Ok(vec![a, a]));
    // Decoding base58 takes quadratic time: this text would take minutes.
    let long = format!("{{\"/\":\"z{}\"}}", "2".repeat(1_900_000));
    assert!(matches!(links(&block(codec::DAG_JSON, long.as_bytes())), Err(NodeError::Malformed { .. })));
    let deep = [&[b'['; 100_000][..], &[b']'; 100_000]].concat();
    for malformed in [&b"{"[..], b"", b"{} {}", br#"{"/": "no CID"}"#, &deep] {
        assert!(matches!(links(&block(codec::DAG_JSON, malformed)), Err(NodeError::Malformed { .. })));
    }
    for codec in [codec::CBOR, codec::JSON] {
        assert_eq!(links(&block(codec, json.as_bytes())), Ok(vec![]), "{codec:x}");
    }
    for codec in [codec::LIBP2P_KEY, 0x78] {
        assert!(matches!(links(&block(codec, b"{}")), Err(NodeError::Unsupported { .. })), "{codec:x}");
    }
}

fn walk_dag(source: Arc<dyn BlockSource>, root: Cid, concurrency: usize) -> Result<Vec<Block>, DagError> {
    block_on(walk_all(source, root, concurrency).collect::<Vec<_>>()).into_iter().collect()
}

#[test]
fn every_block_is_visited_once_with_bounded_concurrency() {
    let blocks = Arc::new(MemoryBlocks::new());
    let bytes = [&content(1, 5_000)[..], &content(1, 5_000)].concat();
    let file = balanced(&blocks, &bytes, 100, 5, LeafKind::RawCodec);
    let twin = leaf(&blocks, LeafKind::PbFile, b"twin");
    let as_raw = twin.under(&Cid::new_v1(codec::RAW, *twin.cid().hash())).expect("same hash");
    let v0 = twin.under(&Cid::new_v0(*twin.cid().hash()).expect("v0")).expect("same hash");
    let inlined = inline(codec::DAG_PB, &pb_node(&[Link::to(*twin.cid(), "twin")], None, false));
    let entries = [("f", &file), ("again", &file), ("raw", &as_raw), ("v0", &v0), ("pb", &twin), ("in", &inlined)];
    let root = directory(&blocks, &entries);
    for (seed, concurrency) in [(1, 0), (2, 1), (3, 7), (4, 1_000)] {
        let source = Arc::new(RemoteSource::new(blocks.clone(), seed, 9));
        let walked = walk_dag(source.clone(), *root.cid(), concurrency).expect("all there");
        let keys: BTreeSet<_> = walked.iter().filter_map(Block::key).collect();
        assert_eq!(keys.len(), blocks.len(), "every block");
        assert_eq!(walked.len(), blocks.len() + 1, "once, except the one that is linked as raw as well");
        assert_eq!(Counts::get(&source.counts.gets), walked.len());
        assert!(Counts::get(&source.counts.in_flight_max) <= concurrency.max(1));
    }
}

/// A traversal by links emits the same CIDs without reading leaves, which may be missing.
#[test]
fn walk_links_reads_no_leaf_and_emits_all_cids() {
    let blocks = Arc::new(MemoryBlocks::new());
    let file = balanced(&blocks, &content(1, 5_000), 100, 5, LeafKind::RawCodec);
    let pb = leaf(&blocks, LeafKind::PbFile, b"has no links, but may");
    let entries = [("f", &file), ("again", &file), ("pb", &pb), ("in", &inline(codec::RAW, b"nothing to keep"))];
    let root = directory(&blocks, &entries);
    let cids = |visited: &[Visited]| -> BTreeSet<Cid> {
        let cid = |visited: &Visited| match visited {
            Visited::Block(block) => *block.cid(),
            Visited::Leaf(cid) => *cid,
        };
        visited.iter().map(cid).collect()
    };
    let all = walk_dag(blocks.clone(), *root.cid(), 4).expect("all there");
    let raw: Vec<&Block> = all.iter().filter(|block| block.cid().codec() == codec::RAW).collect();
    assert!(raw.len() > 40);
    raw.iter().for_each(|block| assert!(blocks.remove(block.cid())));
    for concurrency in [1, 5] {
        let walk = walk_links(blocks.clone(), *root.cid(), concurrency, None).collect::<Vec<_>>();
        let visited = block_on(walk).into_iter().collect::<Result<Vec<_>, _>>().expect("no leaf is read");
        assert_eq!(visited.len(), all.len());
        assert_eq!(cids(&visited), all.iter().map(|block| *block.cid()).collect());
        assert_eq!(visited.iter().filter(|visited| matches!(visited, Visited::Leaf(_))).count(), raw.len());
    }
}

#[test]
fn a_traversal_fails_at_missing_and_malformed_blocks() {
    let blocks = Arc::new(MemoryBlocks::new());
    let lost = Block::of(codec::RAW, content::hashes::SHA2_256, 32, "lost".into()).expect("block");
    let root = directory(&blocks, &[("lost", &lost)]);
    let error = DagError::Source(SourceError::NotFound { cid: *lost.cid() });
    assert_eq!(walk_dag(blocks.clone(), *root.cid(), 4), Err(error));
    let git = add(&blocks, 0x78, b"{}".to_vec());
    let root = directory(&blocks, &[("git", &git)]);
    let error = DagError::Node(NodeError::Unsupported { cid: *git.cid(), codec: 0x78 });
    assert_eq!(walk_dag(blocks, *root.cid(), 4), Err(error));
}

#[test]
fn readers_and_streams_are_send() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    fn is_send_and_unpin<T: Send + Unpin>(_: &T) {}
    let source: Arc<dyn BlockSource> = Arc::new(MemoryBlocks::new());
    let root = inline(codec::RAW, b"hello");
    let resolved = block_on(is_send(resolve(&*source, *root.cid(), &[]))).expect("inline");
    assert_eq!(resolved.block, root);
    drop(is_send(content::unixfs::dir::lookup(&*source, &root, "x")));
    is_send_and_unpin(&content::unixfs::dir::list(source.clone(), root.clone()));
    is_send_and_unpin(&walk_all(source.clone(), *root.cid(), 1));
    drop(is_send(content::car::CarReader::new(&b""[..])));
    let reader = content::unixfs::file::FileReader::new(source, root, 0..5, Default::default()).expect("a file");
    is_send_and_unpin(&reader);
}
