//! Imported content is read back with the UnixFS readers.

use super::{Attributes, RecordingSink, content, import, importer};
use crate::dag;
use crate::importer::{Chunking, Estimate, Importer, Layout, Part, Profile, ProfileError, Sharding, Version};
use crate::source::MemoryBlocks;
use crate::unixfs::dir::{list, lookup};
use crate::unixfs::file::{FileReader, ReadLimits};
use crate::unixfs::{FileNode, Node};
use crate::{Block, Cid};
use futures::StreamExt as _;
use futures::executor::block_on;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

fn file_of(block: &Block) -> FileNode {
    match Node::decode(block) {
        Ok(Node::File(file)) => file,
        other => panic!("{other:?} is not a file"),
    }
}

fn read(blocks: &Arc<MemoryBlocks>, root: &Block, size: u64) -> Vec<u8> {
    let reader = FileReader::new(blocks.clone(), root.clone(), 0..size, ReadLimits::default()).expect("a file");
    block_on(reader.map(|chunk| chunk.expect("every block was sent").to_vec()).collect::<Vec<_>>()).concat()
}

/// Collects the CIDs of the DAG below a root, and returns the cumulative size of its blocks, repeats included.
fn below(sink: &RecordingSink, cid: &Cid, found: &mut BTreeSet<Vec<u8>>) -> u64 {
    let block = sink.block(cid);
    if block.key().is_some() {
        found.insert(cid.to_bytes());
    }
    let links = dag::links(&block).expect("a node");
    block.data().len() as u64 + links.iter().map(|link| below(sink, link, found)).sum::<u64>()
}

/// Checks that exactly the blocks of the DAG were sent, and that the sizes are right.
fn check_sent(sink: &RecordingSink, root: &Part) {
    let mut found = BTreeSet::new();
    assert_eq!(below(sink, &root.cid, &mut found), root.dag_bytes);
    assert_eq!(found, sink.cids);
}

fn profiles() -> impl Strategy<Value = Profile> {
    let chunking = prop_oneof![
        (1_usize..400).prop_map(|size| Chunking::size(size).expect("in bounds")),
        (16_usize..100).prop_map(|min| Chunking::rabin(min, min * 2, min * 4).expect("in order")),
    ];
    let layout = prop::sample::select(vec![Layout::Balanced, Layout::Trickle]);
    let version = prop::sample::select(vec![Version::V0, Version::V1]);
    (chunking, layout, version, any::<bool>(), 2_usize..12, prop::option::of(0_usize..=128)).prop_map(
        |(chunking, layout, cid_version, raw_leaves, file_links_max, inline_bytes_max)| Profile {
            chunking,
            layout,
            cid_version,
            raw_leaves,
            file_links_max,
            inline_bytes_max,
            ..Profile::default()
        },
    )
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let times = (0_u64..4_000_000_000, 0_u32..1_000_000_000);
    let modified = prop::option::of(times.prop_map(|(seconds, nanos)| UNIX_EPOCH + Duration::new(seconds, nanos)));
    (prop::option::of(1_u32..=0o7777), modified).prop_map(|(mode, modified)| Attributes { mode, modified })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn files_are_read_back(profile in profiles(), attributes in attributes(), size in 0_usize..9_000, seed: u64) {
        let (importer, data) = (importer(&profile), content(seed, size));
        let mut sink = RecordingSink::default();
        let root = import(&importer, &data, attributes, &mut sink);
        check_sent(&sink, &root);
        let block = sink.block(&root.cid);
        let file = file_of(&block);
        prop_assert_eq!((root.file_bytes, file.size()), (size as u64, size as u64));
        prop_assert_eq!(file.modified(), attributes.modified);
        prop_assert_eq!(read(&Arc::new(sink.blocks), &block, size as u64), data);
    }

    #[test]
    fn directories_are_read_back(
        names in prop::collection::btree_set("[a-zA-Zä-ü0-9. _-]{1,12}", 0..200),
        width in 3_u32..=10, threshold_bytes in 0_usize..20_000, inline_bytes_max in prop::option::of(0_usize..64),
        estimate in prop::sample::select(vec![Estimate::Links, Estimate::Block, Estimate::Off]),
    ) {
        let sharding = Sharding { estimate, threshold_bytes, links_max: Some(150), fanout: 1 << width };
        let importer = importer(&Profile { sharding, inline_bytes_max, ..Profile::default().with_cid_v1() });
        let mut sink = RecordingSink::default();
        let mut expected = BTreeMap::new();
        let mut directory = importer.directory(Attributes::default());
        for name in names.iter().filter(|name| !matches!(name.as_str(), "." | "..")) {
            let part = import(&importer, name.as_bytes(), Attributes::default(), &mut sink);
            directory.add(name.as_bytes(), &part).expect("a name");
            expected.insert(name.clone(), (part.cid, Some(part.dag_bytes)));
        }
        let root = directory.finish(&mut sink).expect("the sink takes everything");
        check_sent(&sink, &root);
        let (block, blocks) = (sink.block(&root.cid), Arc::new(sink.blocks));
        let listed = block_on(list(blocks.clone(), block.clone()).collect::<Vec<_>>());
        let listed = listed.into_iter().map(|entry| entry.map(|entry| (entry.name, (entry.cid, entry.tsize))));
        prop_assert_eq!(listed.collect::<Result<BTreeMap<_, _>, _>>(), Ok(expected.clone()));
        for (name, (cid, _)) in &expected {
            prop_assert_eq!(block_on(lookup(&*blocks, &block, name)), Ok(Some(*cid)));
        }
        prop_assert_eq!(block_on(lookup(&*blocks, &block, "none of them")), Ok(None));
    }
}

#[test]
fn symlinks_are_read_back() {
    let mut sink = RecordingSink::default();
    let root = importer(&Profile::default()).symlink(b"../a", Attributes::default(), &mut sink).expect("short");
    check_sent(&sink, &root);
    assert!(matches!(Node::decode(&sink.block(&root.cid)), Ok(Node::Symlink { target }) if target == "../a"));
}

#[test]
fn chunker_specifications_are_parsed_and_displayed() {
    let table = [
        ("size-262144", Some("size-262144")),
        ("size-1", Some("size-1")),
        ("size-2096896", Some("size-2096896")),
        ("rabin", Some("rabin-87381-262144-393216")),
        ("rabin-48", Some("rabin-16-48-72")),
        ("rabin-min:16-avg:17-max:18", Some("rabin-16-17-18")),
        ("buzhash", Some("buzhash")),
        ("size-0", None),
        ("size-2096897", None),
        ("size-", None),
        ("size-1-2", None),
        ("size--1", None),
        ("rabin-47", None),
        ("rabin-1397932", None),
        ("rabin-18446744073709551615", None),
        ("rabin-15-20-30", None),
        ("rabin-20-20-30", None),
        ("rabin-16-30-30", None),
        ("rabin-16-30-2096897", None),
        ("rabin-16-30", None),
        ("rabin-max:16-17-18", None),
        ("buzhash-1", None),
        ("default", None),
        ("", None),
    ];
    for (text, expected) in table {
        let chunking = text.parse::<Chunking>().ok();
        assert_eq!(chunking.map(|chunking| chunking.to_string()).as_deref(), expected, "{text}");
    }
}

#[test]
fn invalid_profiles_are_rejected() {
    let base = Profile::default;
    let sharded = |fanout| Profile { sharding: Sharding { fanout, ..base().sharding }, ..base() };
    let table = [
        (base(), None),
        (base().with_hash((0x1e, 32)), None),
        (Profile { cid_version: Version::V0, ..base().with_hash((0x1e, 32)) }, Some(ProfileError::Version)),
        (base().with_hash((0xd5, 16)), Some(ProfileError::Hash { code: 0xd5, bytes: 16 })),
        (base().with_hash((0x12, 19)), Some(ProfileError::Hash { code: 0x12, bytes: 19 })),
        (base().with_hash((0, 0)), Some(ProfileError::Hash { code: 0, bytes: 0 })),
        (Profile { file_links_max: 1, ..base() }, Some(ProfileError::FileLinks { links: 1 })),
        (Profile { inline_bytes_max: Some(129), ..base() }, Some(ProfileError::Inline { bytes: 129 })),
        (sharded(8), None),
        (sharded(1024), None),
        (sharded(4), Some(ProfileError::Fanout { fanout: 4 })),
        (sharded(100), Some(ProfileError::Fanout { fanout: 100 })),
        (sharded(2048), Some(ProfileError::Fanout { fanout: 2048 })),
        (sharded(0), Some(ProfileError::Fanout { fanout: 0 })),
    ];
    for (profile, expected) in table {
        assert_eq!(Importer::new(profile.clone()).err(), expected, "{profile:?}");
    }
    assert!(Profile::NAMES.iter().all(|name| Profile::named(name).is_some_and(|profile| profile.check().is_ok())));
    assert_eq!(Profile::named("unixfs-v2"), None);
}
