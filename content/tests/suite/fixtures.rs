//! Archives made by Kubo and by the gateway conformance suite, read with all parts of this crate: CAR, sources, path
//! resolution, directories and files. `tests/fixtures/README.md` describes them.

use crate::dags::walk;
use crate::directories::list_all;
use crate::support::*;
use bytes::Bytes;
use content::dag::{links, walk_all};
use content::unixfs::file::{FileReader, ReadError, ReadLimits, file_size};
use content::unixfs::{Node, dir};
use content::walk::WalkError;
use content::{Block, BlockSource, Cid, MemoryBlocks, SourceError, cid, codec};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use std::collections::BTreeSet;
use std::sync::Arc;

/// An archive made by Kubo; its root is compared with the one that Kubo printed.
fn kubo(name: &str) -> (Cid, Arc<MemoryBlocks>) {
    let (root, blocks) = fixture_car(&format!("kubo/{name}.car"));
    let roots = String::from_utf8(fixture("kubo/roots.txt")).expect("text");
    let printed = roots.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).expect("listed");
    assert_eq!(root.to_string(), printed);
    (root, blocks)
}

fn read(source: Arc<dyn BlockSource>, root: &Block, range: std::ops::Range<u64>) -> Result<Bytes, ReadError> {
    let reader = FileReader::new(source, root.clone(), range, ReadLimits::default())?;
    let chunks: Vec<Bytes> = block_on(reader.try_collect())?;
    Ok(chunks.concat().into())
}

fn read_path(blocks: &Arc<MemoryBlocks>, root: Cid, path: &str) -> Bytes {
    let block = walk(&**blocks, root, path).expect(path).block;
    let size = file_size(&block).expect("a file");
    read(Arc::new(RemoteSource::new(blocks.clone(), 5, 7)), &block, 0..size).expect("readable")
}

/// The files that `make.sh` makes: name, seed, size, and the minimum number of blocks.
const FILES: [(&str, u64, usize, usize); 12] = [
    ("single-v0", 1, 1_000, 1),
    ("single-raw", 2, 1_000, 1),
    ("empty-v0", 3, 0, 1),
    ("balanced-v0", 4, 10_000, 27),
    ("balanced-raw", 5, 10_000, 27),
    ("balanced-v1-pb", 6, 10_000, 27),
    ("trickle-v0", 7, 10_000, 50),
    ("trickle-raw", 8, 10_000, 50),
    ("rabin-raw", 9, 10_000, 20),
    ("wide-v0", 10, 20_000, 202),
    ("inline-leaves", 11, 1_000, 1),
    ("mode-mtime", 12, 1_000, 5),
];

const HASHES: [&str; 15] = [
    "sha1",
    "sha2-512",
    "sha3-224",
    "sha3-256",
    "sha3-384",
    "sha3-512",
    "shake-256",
    "keccak-256",
    "keccak-512",
    "dbl-sha2-256",
    "blake3",
    "blake2b-160",
    "blake2b-256",
    "blake2b-512",
    "blake2s-256",
];

fn check_file(name: &str, seed: u64, size: usize, blocks_min: usize) {
    let (root, blocks) = kubo(name);
    assert!(blocks.len() >= blocks_min, "{name} has {} blocks", blocks.len());
    let expected = content(seed, size);
    assert_eq!(read_path(&blocks, root, ""), expected, "{name}");
    let block = blocks.peek(&root).expect("the root");
    assert_eq!(file_size(&block), Ok(size as u64), "{name}");
    let step = (size / 37).max(1);
    for start in (0..size).step_by(step) {
        for length in [1, 255, 256, 257, 513] {
            let end = (start + length).min(size);
            let found = read(blocks.clone(), &block, start as u64..end as u64);
            assert_eq!(found.expect("readable"), expected.slice(start..end), "{name} {start}..{end}");
        }
    }
    let walked: Vec<Block> = block_on(walk_all(blocks.clone(), root, 4).try_collect()).expect("complete");
    assert_eq!(walked.len(), blocks.len(), "{name}: the archive has exactly the DAG");
}

#[test]
fn files_of_every_layout_read_as_kubo_wrote_them() {
    FILES.iter().for_each(|(name, seed, size, blocks_min)| check_file(name, *seed, *size, *blocks_min));
}

#[test]
fn files_under_every_hash_function_read_as_kubo_wrote_them() {
    HASHES.iter().for_each(|hash| check_file(&format!("hash-{hash}"), 20, 1_000, 5));
}

#[test]
fn trees_are_resolved_listed_and_read() {
    for (name, in_cid) in [("tree-v0", false), ("tree-v1", true)] {
        let (root, blocks) = kubo(name);
        let files = [
            ("a.bin", 30, 700),
            ("sub/b.bin", 31, 10),
            ("sub/deeper/c.bin", 32, 3_000),
            ("ą/ę &%?#.txt", 33, 20),
            ("empty", 0, 0),
        ];
        for (path, seed, size) in files {
            assert_eq!(read_path(&blocks, root, path), content(seed, size), "{name}/{path}");
        }
        let block = blocks.peek(&root).expect("the root");
        let entries = list_all(blocks.clone(), &block).expect("a directory");
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["a.bin", "empty", "empty-dir", "link", "sub", "ą"]);
        assert!(entries.iter().all(|entry| entry.tsize.is_some()));
        let link = walk(&*blocks, root, "link").expect("a symlink").block;
        assert!(matches!(Node::decode(&link), Ok(Node::Symlink { target }) if target == "sub/b.bin"));
        let empty = walk(&*blocks, root, "empty-dir").expect("a directory").block;
        assert_eq!(list_all(blocks.clone(), &empty), Ok(Vec::new()));
        let resolved = walk(&*blocks, root, "sub/b.bin").expect("a file");
        assert_eq!(resolved.roots.len(), 3);
        assert_eq!(resolved.block.key().is_none(), in_cid, "small files of tree-v1 are inline");
        assert!(matches!(walk(&*blocks, root, "link/x"), Err(WalkError::NotADirectory { .. })));
        assert!(matches!(walk(&*blocks, root, "sub/missing"), Err(WalkError::NoLink { .. })));
    }
}

#[test]
fn sharded_directories_of_every_fanout_are_looked_up_and_listed() {
    let table = [
        ("hamt-8", 8, 200),
        ("hamt-16", 16, 200),
        ("hamt-64", 64, 300),
        ("hamt-256", 256, 600),
        ("hamt-512", 512, 300),
        ("hamt-1024", 1_024, 1_200),
    ];
    for (name, fanout, entries) in table {
        let (root, blocks) = kubo(name);
        let block = blocks.peek(&root).expect("the root");
        let Ok(Node::HamtShard(shard)) = Node::decode(&block) else { panic!("{name} is not a shard") };
        assert_eq!(shard.fanout(), fanout);
        assert!(blocks.len() > 5, "{name} has shards below its root: {}", blocks.len());
        let (mut expected, mut shards) = (Vec::new(), BTreeSet::new());
        for number in 0..entries {
            let number = format!("{number:04}");
            let entry = format!("entry-{number}.txt");
            let resolved = walk(&*blocks, root, &entry).expect("an entry");
            assert_eq!(resolved.roots, [root, *resolved.block.cid()], "inner shards are not roots");
            assert_eq!(resolved.passed.first(), Some(&root));
            shards.extend(resolved.passed);
            assert_eq!(read(blocks.clone(), &resolved.block, 0..4), Ok(number.into()));
            expected.push(entry);
        }
        assert_eq!(shards.len(), blocks.len(), "{name}: the paths of all entries include every shard");
        for missing in ["entry-9999.txt", "entry-", "x"] {
            assert_eq!(block_on(dir::lookup(&*blocks, &block, missing)), Ok(None), "{name}/{missing}");
        }
        let mut names: Vec<String> =
            list_all(blocks.clone(), &block).expect("lists").into_iter().map(|entry| entry.name).collect();
        names.sort();
        assert_eq!(names, expected, "{name}");
    }
}

#[test]
fn links_of_dag_cbor_and_plain_dag_pb_are_followed() {
    let (root, blocks) = kubo("dag-cbor");
    let block = blocks.peek(&root).expect("the root");
    assert_eq!(root.codec(), codec::DAG_CBOR);
    assert_eq!(links(&block).expect("links").len(), 2);
    let walked: Vec<Block> = block_on(walk_all(blocks.clone(), root, 2).try_collect()).expect("complete");
    assert_eq!((walked.len(), blocks.len()), (3, 3));
    let list = walk(&*blocks, root, "list").expect("a value");
    assert_eq!((list.block.cid(), &list.remainder[..]), (&root, &["list".to_owned()][..]));

    let (root, blocks) = kubo("plain-pb");
    assert_eq!(read_path(&blocks, root, "leaf"), content(40, 100));
    let block = blocks.peek(&root).expect("the root");
    assert!(matches!(Node::decode(&block), Ok(Node::Plain(_))));
}

fn conformance(name: &str) -> (Cid, Arc<MemoryBlocks>) {
    fixture_car(&format!("conformance/{name}.car"))
}

#[test]
fn trees_of_the_conformance_suite_are_read() {
    let table = [
        ("symlink", "foo", "content\n"),
        ("dir-with-files", "ascii.txt", "hello application/vnd.ipld.car\n"),
        ("dir-with-files", "hello.txt", "hello world\n"),
        ("gateway-cache", "root2/root3/root4/index.html", "hello\n"),
    ];
    for (name, path, expected) in table {
        let (root, blocks) = conformance(name);
        assert_eq!(read_path(&blocks, root, path), expected, "{name}/{path}");
    }
    let (root, blocks) = conformance("symlink");
    let bar = walk(&*blocks, root, "bar").expect("a symlink").block;
    assert!(matches!(Node::decode(&bar), Ok(Node::Symlink { target }) if target == "foo"));
    let (root, blocks) = conformance("dir_listing");
    assert!(walk(&*blocks, root, "ą/ę/file-źł.txt").is_ok());
    let (root, blocks) = conformance("gateway-cache");
    assert_eq!(walk(&*blocks, root, "root2/root3/root4").expect("there").roots.len(), 4);
}

#[test]
fn a_multi_block_file_reads_by_ranges() {
    let (root, blocks) = conformance("dir-with-files");
    let whole = read_path(&blocks, root, "multiblock.txt");
    let block = walk(&*blocks, root, "multiblock.txt").expect("there").block;
    assert_eq!((whole.len() as u64, whole.len() > 512), (file_size(&block).expect("a file"), true));
    for range in [0..1_usize, 255..257, 256..512, 500..whole.len()] {
        let found = read(blocks.clone(), &block, range.start as u64..range.end as u64);
        assert_eq!(found, Ok(whole.slice(range)));
    }
}

#[test]
fn ranges_without_the_missing_block_are_read() {
    let (root, blocks) = conformance("file-3k-and-3-blocks-missing-block");
    let block = blocks.peek(&root).expect("the root");
    let size = file_size(&block).expect("a file");
    assert_eq!(size, 3 * 1_024);
    assert_eq!(read(blocks.clone(), &block, 0..1_024).map(|bytes| bytes.len()), Ok(1_024));
    assert_eq!(read(blocks.clone(), &block, 2_048..size).map(|bytes| bytes.len()), Ok(1_024));
    for range in [0..size, 1_023..1_025, 2_047..2_049] {
        let error = read(blocks.clone(), &block, range);
        assert!(matches!(error, Err(ReadError::Source(SourceError::NotFound { .. }))), "{error:?}");
    }
}

#[test]
fn a_sharded_directory_of_the_conformance_suite_is_listed_and_looked_up() {
    let (root, blocks) = conformance("single-layer-hamt-with-multi-block-files");
    let block = blocks.peek(&root).expect("the root");
    let entries = list_all(blocks.clone(), &block).expect("a directory");
    assert!(entries.len() > 100, "{}", entries.len());
    for entry in &entries {
        assert_eq!(block_on(dir::lookup(&*blocks, &block, &entry.name)), Ok(Some(entry.cid)));
    }
}

#[test]
fn unusual_documents_and_names_are_read() {
    let (root, blocks) = conformance("dir-with-dag-cbor-with-links");
    let walked: Vec<Block> = block_on(walk_all(blocks.clone(), root, 3).try_collect()).expect("complete");
    assert_eq!(walked.len(), blocks.len());
    for name in ["dag-json-traversal", "plain-cbor", "dag-cbor-traversal"] {
        let (root, blocks) = conformance(name);
        assert_eq!(walk(&*blocks, root, "").expect("the block").block.cid(), &root);
        assert!(matches!(walk(&*blocks, root, "foo/nothing"), Err(WalkError::NoLink { .. })), "{name}");
    }
    let (root, blocks) = conformance("outside-root");
    let block = blocks.peek(&root).expect("the root");
    let names: Vec<String> =
        block_on(dir::list(blocks.clone(), block).map(|entry| entry.expect("an entry").name).collect());
    assert!(names.iter().any(|name| name.contains("..")), "{names:?}");
    let (root, blocks) = conformance("dag-pb");
    assert_eq!(walk(&*blocks, root, "foo.txt").expect("there").roots[1], cid::parse(FOO_TXT).expect("a CID"));
}

/// From `dag-pb.json` of the conformance suite.
const FOO_TXT: &str = "bafkreic3ondyhizrzeoufvoodehinugpj3ecruwokaygl7elezhn2khqfa";
