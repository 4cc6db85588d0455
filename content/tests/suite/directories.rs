//! Directories, plain and sharded: look-ups and listings, and malformed shards.

use crate::support::*;
use content::unixfs::NodeError;
use content::unixfs::dir::{DirEntry, DirError, list, lookup};
use content::{Block, BlockSource, Cid, MemoryBlocks, SourceError, codec};
use futures::stream::StreamExt as _;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

pub fn list_all(source: Arc<dyn BlockSource>, dir: &Block) -> Result<Vec<DirEntry>, DirError> {
    block_on(list(source, dir.clone()).collect::<Vec<_>>()).into_iter().collect()
}

fn find(source: &dyn BlockSource, dir: &Block, name: &str) -> Result<Option<Cid>, DirError> {
    block_on(lookup(source, dir, name))
}

fn directory(links: &[Link]) -> Vec<u8> {
    pb_node(links, Some(&Message::default().varint(1, DIRECTORY).0), false)
}

/// The CID of an entry in the tests: it has the name inlined.
fn target(name: &str) -> Cid {
    *inline(codec::RAW, &name.as_bytes()[..name.len().min(100)]).cid()
}

#[test]
fn a_plain_directory_is_looked_up_by_name_and_listed_in_stored_order() {
    let names = ["b", "a", "ą ę", "a/b", "..", "b", "", "a%20"];
    let block = add(&MemoryBlocks::new(), codec::DAG_PB, directory(&names.map(|name| Link::to(target(name), name))));
    let nothing: Arc<dyn BlockSource> = Arc::new(MemoryBlocks::new());
    for name in names {
        assert_eq!(find(&*nothing, &block, name), Ok(Some(target(name))), "{name}");
    }
    for name in ["c", "A", "a ", "ą"] {
        assert_eq!(find(&*nothing, &block, name), Ok(None), "{name}");
    }
    let entries = list_all(nothing, &block).expect("a directory");
    let expected =
        names.map(|name| DirEntry { name: name.to_owned(), not_text: None, cid: target(name), tsize: Some(0) });
    assert_eq!(entries, expected);
}

#[test]
fn names_and_sizes_in_a_listing() {
    let block = |link: &[u8]| {
        let message = Message::default().bytes(2, link).bytes(1, &Message::default().varint(1, DIRECTORY).0);
        add(&MemoryBlocks::new(), codec::DAG_PB, message.0)
    };
    let cid = target("x").to_bytes();
    let table: [(Vec<u8>, &str, Option<u64>); 4] = [
        (Message::default().bytes(1, &cid).0, "", None),
        (Message::default().bytes(1, &cid).bytes(2, b"n").0, "n", None),
        (Message::default().bytes(1, &cid).bytes(2, b"n").varint(3, u64::MAX).0, "n", Some(u64::MAX)),
        (Message::default().bytes(1, &cid).bytes(2, b"\xff\xfe").varint(3, 7).0, "\u{fffd}\u{fffd}", Some(7)),
    ];
    for (link, name, tsize) in table {
        let entries = list_all(Arc::new(MemoryBlocks::new()), &block(&link)).expect("a directory");
        let not_text = name.starts_with('\u{fffd}').then(|| b"\xff\xfe"[..].into());
        assert_eq!(entries, [DirEntry { name: name.to_owned(), not_text, cid: target("x"), tsize }]);
        assert_eq!(entries[0].name_bytes() == name.as_bytes(), entries[0].not_text.is_none());
    }
}

#[test]
fn blocks_other_than_directories_are_rejected() {
    let of_type = |data_type| {
        let message = Message::default().varint(1, data_type);
        add(&MemoryBlocks::new(), codec::DAG_PB, pb_node(&[], Some(&message.0), false))
    };
    let plain = add(&MemoryBlocks::new(), codec::DAG_PB, pb_node(&[Link::to(target("a"), "a")], None, false));
    let source: Arc<dyn BlockSource> = Arc::new(MemoryBlocks::new());
    for block in [of_type(FILE), of_type(RAW), of_type(SYMLINK), inline(codec::RAW, b"hello"), plain] {
        let error = DirError::NotADirectory { cid: *block.cid() };
        assert_eq!(find(&*source, &block, "a"), Err(error.clone()));
        assert_eq!(list_all(source.clone(), &block), Err(error));
    }
    for block in [of_type(METADATA), inline(codec::DAG_CBOR, b"\x80"), inline(codec::DAG_PB, b"garbage")] {
        assert!(matches!(find(&*source, &block, "a"), Err(DirError::Node(_))));
        assert!(matches!(list_all(source.clone(), &block), Err(DirError::Node(_))));
    }
}

/// A sharded directory that is being built: in each slot an entry or a child shard.
#[derive(Default)]
struct Shard {
    slots: BTreeMap<usize, Slot>,
}

enum Slot {
    Entry(String),
    Shard(Shard),
}

/// An independent implementation of the HAMT rules: the hash as a string of binary digits.
fn hash_bits(name: &str) -> String {
    let hash = murmur3::murmur3_x64_128(&mut name.as_bytes(), 0).expect("memory");
    format!("{:064b}", hash as u64)
}

impl Shard {
    fn insert(&mut self, name: &str, width: usize, depth: usize) {
        let digits = &hash_bits(name)[depth * width..(depth + 1) * width];
        let slot = usize::from_str_radix(digits, 2).expect("binary");
        match self.slots.remove(&slot) {
            None => _ = self.slots.insert(slot, Slot::Entry(name.to_owned())),
            Some(Slot::Shard(mut shard)) => {
                shard.insert(name, width, depth + 1);
                self.slots.insert(slot, Slot::Shard(shard));
            }
            Some(Slot::Entry(other)) => {
                let mut shard = Shard::default();
                shard.insert(&other, width, depth + 1);
                shard.insert(name, width, depth + 1);
                self.slots.insert(slot, Slot::Shard(shard));
            }
        }
    }

    fn write(&self, blocks: &MemoryBlocks, fanout: usize) -> Block {
        let digits = format!("{:X}", fanout - 1).len();
        let mut bitfield = vec![0_u8; fanout / 8];
        let mut links = Vec::new();
        for (slot, content) in &self.slots {
            bitfield[fanout / 8 - 1 - slot / 8] |= 1 << (slot % 8);
            let prefix = format!("{slot:0digits$X}");
            links.push(match content {
                Slot::Entry(name) => Link::to(target(name), &format!("{prefix}{name}")),
                Slot::Shard(shard) => Link::to(*shard.write(blocks, fanout).cid(), &prefix),
            });
        }
        let zeros = bitfield.iter().take_while(|byte| **byte == 0).count();
        add(blocks, codec::DAG_PB, shard_node(&links, &bitfield[zeros..], fanout as u64))
    }

    /// Names in stored order, each with the number of shards above it.
    fn names(&self, depth: usize, out: &mut Vec<(String, usize)>) {
        for slot in self.slots.values() {
            match slot {
                Slot::Entry(name) => out.push((name.clone(), depth)),
                Slot::Shard(shard) => shard.names(depth + 1, out),
            }
        }
    }
}

pub fn shard_node(links: &[Link], bitfield: &[u8], fanout: u64) -> Vec<u8> {
    let data = Message::default().varint(1, HAMT_SHARD).bytes(2, bitfield).varint(5, 0x22).varint(6, fanout);
    pb_node(links, Some(&data.0), false)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_name_of_a_sharded_directory_is_found_by_hash_and_listed(
        names in prop::collection::btree_set("[a-zą-ž0-9. _-]{1,12}", 0..300),
        width in 3_usize..=10, seed: u64,
    ) {
        let mut hamt = Shard::default();
        names.iter().for_each(|name| hamt.insert(name, width, 0));
        let blocks = Arc::new(MemoryBlocks::new());
        let root = hamt.write(&blocks, 1 << width);
        let mut expected = Vec::new();
        hamt.names(0, &mut expected);
        for (name, depth) in &expected {
            let source = RemoteSource::new(blocks.clone(), seed, 3);
            prop_assert_eq!(find(&source, &root, name), Ok(Some(target(name))));
            prop_assert_eq!(Counts::get(&source.counts.gets), *depth, "one shard for each level");
        }
        prop_assert_eq!(find(&*blocks, &root, "not there at all"), Ok(None));
        let source = Arc::new(RemoteSource::new(blocks, seed, 9));
        let listed: Vec<String> =
            list_all(source, &root).expect("lists").into_iter().map(|entry| entry.name).collect();
        let expected: Vec<String> = expected.into_iter().map(|(name, _)| name).collect();
        prop_assert_eq!(listed, expected);
    }
}

#[test]
fn a_listing_is_lazy_and_prefetches_few_shards() {
    let mut hamt = Shard::default();
    (0..4_000).for_each(|i| hamt.insert(&format!("entry {i}"), 8, 0));
    let blocks = MemoryBlocks::new();
    let root = hamt.write(&blocks, 256);
    let shards = blocks.len();
    assert!(shards > 200, "{shards}");
    let source = Arc::new(RemoteSource::new(blocks, 1, 5));
    let mut entries = list(source.clone(), root);
    assert_eq!(Counts::get(&source.counts.gets), 0);
    for _ in 0..20 {
        assert!(matches!(block_on(entries.next()), Some(Ok(_))));
    }
    assert!(Counts::get(&source.counts.gets) < 20, "{}", Counts::get(&source.counts.gets));
    assert_eq!(block_on(entries.by_ref().count()), 3_980);
    assert_eq!(Counts::get(&source.counts.gets), shards - 1, "every shard once");
    let most = Counts::get(&source.counts.in_flight_max);
    assert!((2..=8).contains(&most), "{most}");
}

#[test]
fn a_missing_shard_ends_the_listing_at_its_place() {
    let mut hamt = Shard::default();
    (0..200).for_each(|i| hamt.insert(&format!("entry {i}"), 4, 0));
    let blocks = MemoryBlocks::new();
    let root = hamt.write(&blocks, 16);
    let lost = content::dag::links(&root).expect("links")[7];
    assert!(blocks.remove(&lost));
    let error = DirError::Source(SourceError::NotFound { cid: lost });
    let listed = block_on(list(Arc::new(blocks), root).collect::<Vec<_>>());
    let (last, before) = listed.split_last().expect("not empty");
    assert_eq!(last, &Err(error));
    let mut names = Vec::new();
    hamt.names(0, &mut names);
    let names: Vec<&String> = names.iter().map(|(name, _)| name).take(before.len()).collect();
    assert!(before.len() > 50);
    assert_eq!(before.iter().map(|entry| &entry.as_ref().expect("an entry").name).collect::<Vec<_>>(), names);
}

#[test]
fn malformed_shards_are_rejected() {
    let link = |name: &str| Link::to(target("x"), name);
    let data = |fanout, hash| {
        let message = Message::default().varint(1, HAMT_SHARD).bytes(2, &[1]).varint(6, fanout);
        pb_node(&[link("00x")], Some(&message.varint(5, hash).0), false)
    };
    let no_hash = Message::default().varint(1, HAMT_SHARD).varint(6, 256).0;
    let no_fanout = Message::default().varint(1, HAMT_SHARD).varint(5, 0x22).0;
    let table: [(&str, Vec<u8>); 12] = [
        ("fanout 0", data(0, 0x22)),
        ("fanout 4", data(4, 0x22)),
        ("fanout 12", data(12, 0x22)),
        ("fanout 2048", data(2_048, 0x22)),
        ("fanout 2^63", data(1 << 63, 0x22)),
        ("another hash function", data(256, 0x12)),
        ("no hash function", pb_node(&[], Some(&no_hash), false)),
        ("no fanout", pb_node(&[], Some(&no_fanout), false)),
        ("a bitfield that is too long", shard_node(&[link("0x")], &[1, 0], 8)),
        ("fewer links than bits", shard_node(&[link("00x")], &[3], 256)),
        ("more links than bits", shard_node(&[link("00x"), link("01y")], &[1], 256)),
        ("links and no bitfield", shard_node(&[link("00x")], &[], 256)),
    ];
    let source: Arc<dyn BlockSource> = Arc::new(MemoryBlocks::new());
    for (name, block) in table {
        let block = add(&MemoryBlocks::new(), codec::DAG_PB, block);
        let is_malformed = |error| matches!(error, DirError::Node(NodeError::Malformed { .. }));
        assert!(find(&*source, &block, "x").is_err_and(is_malformed), "{name}");
        assert!(list_all(source.clone(), &block).is_err_and(is_malformed), "{name}");
    }
}

#[test]
fn prefixes_must_match_their_slot() {
    let name = "entry";
    let slot = usize::from_str_radix(&hash_bits(name)[..8], 2).expect("binary");
    let mut bitfield = [0_u8; 32];
    bitfield[31 - slot / 8] |= 1 << (slot % 8);
    let shard = |prefix: &str| {
        let link = Link::to(target(name), &format!("{prefix}{name}"));
        add(&MemoryBlocks::new(), codec::DAG_PB, shard_node(&[link], &bitfield, 256))
    };
    let source = MemoryBlocks::new();
    assert_eq!(find(&source, &shard(&format!("{slot:02X}")), name), Ok(Some(target(name))));
    assert_eq!(find(&source, &shard(&format!("{slot:02x}")), name), Ok(Some(target(name))));
    assert!(find(&source, &shard(&format!("{:02X}", slot ^ 1)), name).is_err());
    let short = add(&source, codec::DAG_PB, shard_node(&[Link::to(target(name), "0")], &bitfield, 256));
    assert!(find(&source, &short, name).is_err());
    assert!(list_all(Arc::new(MemoryBlocks::new()), &short).is_err());
}

#[test]
fn the_depth_of_shards_is_bounded_by_the_hash() {
    // A shard whose slots all have itself: no hash function allows it, but a broken store or a long chain looks like
    // this.
    for fanout in [8_usize, 256, 1_024] {
        let digits = format!("{:X}", fanout - 1).len();
        let cid = *leaf(&MemoryBlocks::new(), LeafKind::PbFile, b"whatever").cid();
        let links: Vec<Link> = (0..fanout).map(|slot| Link::to(cid, &format!("{slot:0digits$X}"))).collect();
        let node = shard_node(&links, &vec![0xff; fanout / 8], fanout as u64);
        let block = Block::from_verified(cid, node.into());
        let blocks = MemoryBlocks::new();
        blocks.insert(&block);
        let is_malformed = |error| matches!(error, DirError::Node(NodeError::Malformed { .. }));
        assert!(find(&blocks, &block, "name").is_err_and(is_malformed));
        assert!(list_all(Arc::new(blocks), &block).is_err_and(is_malformed));
    }
}

#[test]
fn malicious_shards_without_entries_are_rejected_at_once() {
    let blocks = MemoryBlocks::new();
    let mut below = add(&blocks, codec::DAG_PB, shard_node(&[], &[], 1_024));
    for _ in 0..4 {
        let links: Vec<Link> = (0..1_024).map(|slot| Link::to(*below.cid(), &format!("{slot:03X}"))).collect();
        below = add(&blocks, codec::DAG_PB, shard_node(&links, &[0xff; 128], 1_024));
    }
    let error = list_all(Arc::new(blocks), &below).expect_err("refused");
    assert!(matches!(error, DirError::Node(NodeError::Malformed { .. })), "{error}");
}

#[test]
fn a_child_that_is_not_a_shard_is_an_error() {
    let blocks = MemoryBlocks::new();
    let links: Vec<Link> = (0..16).map(|slot| Link::to(target("file"), &format!("{slot:X}"))).collect();
    let root = add(&blocks, codec::DAG_PB, shard_node(&links, &[0xff, 0xff], 16));
    assert!(matches!(find(&blocks, &root, "name"), Err(DirError::Node(NodeError::Malformed { .. }))));
    assert!(list_all(Arc::new(blocks), &root).is_err());
}
