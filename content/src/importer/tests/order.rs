//! The order of hashing, the boundaries of writes and the order of entries do not matter.

use super::{Attributes, RecordingSink, content, discard, import, importer};
use crate::block::Block;
use crate::importer::{
    Chunk, Chunker, Chunking, Estimate, ImportError, Importer, Layout, Leaves, Part, Profile, Sharding, send,
};
use proptest::prelude::*;
use std::sync::Mutex;

/// All chunks of a stream.
fn chunks(chunker: &mut Chunker, mut data: &[u8]) -> Vec<Chunk> {
    std::iter::from_fn(|| chunker.push(&mut data)).collect()
}

/// Hashes chunks on four threads that take them from the end, so that leaves complete out of order.
fn hash_out_of_order(leaves: &Leaves, chunks: Vec<Chunk>) -> Vec<(usize, Part, Block)> {
    let (left, ready) = (Mutex::new(chunks.into_iter().enumerate().collect::<Vec<_>>()), Mutex::new(Vec::new()));
    let work = || {
        while let Some((index, chunk)) = { left.lock().expect("no panics").pop() } {
            let (part, block) = leaves.leaf(chunk).expect("a leaf");
            ready.lock().expect("no panics").push((index, part, block));
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    ready.into_inner().expect("no panics")
}

fn import_out_of_order(importer: &Importer, data: &[u8], attributes: Attributes, sink: &mut RecordingSink) -> Part {
    let mut file = importer.file(attributes);
    let mut stream = chunks(&mut file.chunker, data);
    stream.extend(file.chunker.finish());
    let mut ready = hash_out_of_order(&file.leaves, stream);
    assert!(ready.len() < 2 || !ready.is_sorted_by_key(|(index, ..)| *index), "the last chunk is hashed first");
    for (_, _, block) in &ready {
        send(sink, block.clone()).expect("the sink takes everything");
    }
    ready.sort_by_key(|(index, ..)| *index);
    for (_, part, _) in ready {
        file.layout.push(part, sink).expect("the sink takes everything");
    }
    file.layout.finish(sink).expect("the sink takes everything")
}

#[test]
fn the_order_of_hashing_does_not_matter() {
    let attributes = Attributes { mode: Some(0o600), modified: None };
    for (size, layout, attributes) in [
        (0, Layout::Balanced, Attributes::default()),
        (99, Layout::Balanced, attributes),
        (100, Layout::Balanced, attributes),
        (50_001, Layout::Balanced, Attributes::default()),
        (50_001, Layout::Balanced, attributes),
        (50_001, Layout::Trickle, Attributes::default()),
    ] {
        let chunking = "size-100".parse().expect("a form");
        let importer = importer(&Profile { chunking, layout, file_links_max: 5, ..Profile::default().with_cid_v1() });
        let (mut one, mut other) = (RecordingSink::default(), RecordingSink::default());
        let expected = import(&importer, &content(1, size), attributes, &mut one);
        let found = import_out_of_order(&importer, &content(1, size), attributes, &mut other);
        assert_eq!(found, expected, "{size} {layout:?}");
        assert_eq!(one.cids, other.cids, "{size} {layout:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn boundaries_do_not_depend_on_how_the_input_is_split(
        form in prop::sample::select(vec!["size-1000", "size-1", "rabin-16-32-64", "rabin-100-300-900"]),
        size in 0_usize..6_000, pieces in prop::collection::vec(0_usize..1_500, 0..20), seed: u64,
    ) {
        let data = content(seed, size);
        let chunking: Chunking = form.parse().expect("a form");
        let mut whole = Chunker::new(chunking);
        let mut expected = chunks(&mut whole, &data);
        expected.extend(whole.finish());

        let (mut chunker, mut found, mut rest) = (Chunker::new(chunking), Vec::new(), &data[..]);
        for piece in pieces {
            let (piece, after) = rest.split_at(piece.min(rest.len()));
            found.extend(chunks(&mut chunker, piece));
            rest = after;
        }
        found.extend(chunks(&mut chunker, rest));
        found.extend(chunker.finish());

        let content_of = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.data().to_vec()).collect::<Vec<_>>();
        prop_assert_eq!(content_of(&found), content_of(&expected));
        prop_assert_eq!(found.concat_data(), data);
        for (index, chunk) in found.iter().enumerate() {
            prop_assert!((1..=chunking.bytes_max()).contains(&chunk.data().len()));
            prop_assert_eq!(chunk.whole, found.len() == 1, "{}", index);
            let (used, allocated) = (chunk.buffer.len(), chunk.buffer.capacity());
            prop_assert!(allocated <= used * 8 / 7 + 64, "no chunk keeps much unused memory");
        }
    }

    #[test]
    fn entries_may_be_added_in_any_order(
        names in prop::collection::hash_set("[a-z]{1,8}", 0..60), threshold_bytes in 0_usize..4_000, seed: u64,
    ) {
        let sharding = Sharding { estimate: Estimate::Block, threshold_bytes, links_max: None, fanout: 16 };
        let importer = importer(&Profile { sharding, ..Profile::default() });
        let part = import(&importer, &content(seed, 10), Attributes::default(), &mut discard);
        let of = |names: &mut dyn Iterator<Item = &String>| {
            let mut directory = importer.directory(Attributes::default());
            names.for_each(|name| directory.add(name.as_bytes(), &part).expect("a name"));
            directory.finish(&mut discard).expect("unique names")
        };
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort();
        prop_assert_eq!(of(&mut names.iter()), of(&mut sorted.into_iter().rev()));
    }
}

trait ConcatData {
    fn concat_data(&self) -> Vec<u8>;
}

impl ConcatData for Vec<Chunk> {
    fn concat_data(&self) -> Vec<u8> {
        self.iter().flat_map(|chunk| chunk.data().to_vec()).collect()
    }
}

#[test]
fn the_first_chunk_is_returned_when_another_follows() {
    let mut chunker = Chunker::new("size-4".parse().expect("a form"));
    assert!(chunker.push(&mut &b"abcd"[..]).is_none());
    let mut more = &b"efghi"[..];
    let first = chunker.push(&mut more).expect("another follows");
    assert_eq!((first.data(), first.whole), (&b"abcd"[..], false));
    let second = chunker.push(&mut more).expect("complete");
    assert_eq!((second.data(), more), (&b"efgh"[..], &b"i"[..]));
    assert!(chunker.push(&mut more).is_none() && more.is_empty());
    assert_eq!(chunker.finish().expect("the rest").data(), b"i");
    assert!(Chunker::new("size-4".parse().expect("a form")).finish().is_none());
}

#[test]
fn trees_are_the_same_as_nested_directories() {
    let importer = importer(&Profile::default());
    let part = import(&importer, b"x", Attributes::default(), &mut discard);
    let mut tree = importer.tree(Attributes::default());
    for path in ["b/c/d", "b/c/e", "b/f", "a", "g/h"] {
        tree.add(path.as_bytes(), &part, &mut discard).expect("depth first");
    }
    tree.directory(b"g/i", Attributes::default(), &mut discard).expect("depth first");

    let directory = |entries: &[(&str, &Part)]| {
        let mut directory = importer.directory(Attributes::default());
        entries.iter().for_each(|(name, part)| directory.add(name.as_bytes(), part).expect("a name"));
        directory.finish(&mut discard).expect("unique names")
    };
    let c = directory(&[("d", &part), ("e", &part)]);
    let b = directory(&[("c", &c), ("f", &part)]);
    let g = directory(&[("h", &part), ("i", &directory(&[]))]);
    let root = directory(&[("a", &part), ("b", &b), ("g", &g)]);
    assert_eq!(tree.finish(&mut discard).expect("unique names"), root);
    assert_eq!(root.file_bytes, 5);
}

#[test]
fn invalid_and_duplicate_names_are_rejected() {
    let importer = importer(&Profile::default());
    let part = import(&importer, b"x", Attributes::default(), &mut discard);
    for path in ["", ".", "..", "a/", "/a", "a//b", "a/../b", "./a", "a\0"] {
        let result = importer.tree(Attributes::default()).add(path.as_bytes(), &part, &mut discard);
        assert!(matches!(result, Err(ImportError::Name { .. })), "{path:?}");
    }
    for paths in [&["a", "a"][..], &["a/b", "c", "a/d"], &["a", "a/b"]] {
        let mut tree = importer.tree(Attributes::default());
        paths.iter().try_for_each(|path| tree.add(path.as_bytes(), &part, &mut discard)).expect("depth first");
        let result = tree.finish(&mut discard);
        assert!(matches!(result, Err(ImportError::Repeated { name }) if name == "a"), "{paths:?}");
    }
}
