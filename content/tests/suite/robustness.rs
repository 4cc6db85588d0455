//! Decoders on untrusted bytes: they return an error or a value, never panic, and take no more memory than a small
//! multiple of the input.

use crate::support::*;
use content::car::CarReader;
use content::dagpb::{PbError, PbNode};
use content::unixfs::file::{FileReader, ReadLimits};
use content::unixfs::{Node, dir};
use content::{Block, BlockSource, MemoryBlocks, codec, dag, ipld};
use futures::stream::StreamExt as _;
use proptest::prelude::*;
use std::sync::Arc;

/// The codecs of documents.
const DOCUMENTS: [u64; 4] = [codec::DAG_CBOR, codec::CBOR, codec::DAG_JSON, codec::JSON];

/// Passes a block to every function that takes one.
fn exercise(block: &Block) {
    let source: Arc<dyn BlockSource> = Arc::new(MemoryBlocks::from_iter([block.clone()]));
    let _ = Node::decode(block);
    let _ = dag::links(block);
    let _ = block_on(content::walk::resolve(&*source, *block.cid(), &["a".to_owned(), "0".to_owned()]));
    for to in DOCUMENTS {
        if let Ok(converted) = ipld::convert(block, to) {
            assert!(converted.len() <= 16 * block.data().len() + 64, "no bombs");
        }
    }
    if let Ok(document) = ipld::decode(block) {
        let limits = ipld::OutlineLimits { lines: 20, text: 10 };
        assert!(ipld::outline(&document, limits).lines.len() <= limits.lines);
    }
    let _ = block_on(dir::lookup(&*source, block, "name"));
    block_on(dir::list(source.clone(), block.clone()).for_each(|_| async {}));
    if let Ok(Node::File(file)) = Node::decode(block) {
        let (size, limits) = (file.size(), ReadLimits::default());
        for range in [0..size, size / 2..size, 0..size / 3] {
            if let Ok(reader) = FileReader::new(source.clone(), block.clone(), range.clone(), limits.clone()) {
                let read = block_on(reader.fold(Ok(0), |sum: Result<u64, ()>, chunk| async move {
                    Ok(sum? + chunk.map_err(|_| ())?.len() as u64)
                }));
                assert!(read.is_err() || read == Ok(range.end - range.start));
            }
        }
    }
}

fn block(codec: u64, data: Vec<u8>) -> Block {
    Block::of(codec, content::hashes::SHA2_256, 32, data.into()).expect("a block")
}

/// Valid blocks of every kind, to be corrupted.
fn valid_blocks() -> Vec<(u64, Vec<u8>)> {
    let names =
        ["single-v0", "balanced-v0", "trickle-raw", "tree-v1", "hamt-8", "hamt-256", "dag-cbor", "inline-leaves"];
    let mut out = Vec::new();
    for name in names {
        let (root, blocks) = fixture_car(&format!("kubo/{name}.car"));
        let root = blocks.peek(&root).expect("the root");
        out.push((root.cid().codec(), root.data().to_vec()));
        for link in dag::links(&root).expect("links").into_iter().take(2) {
            let child = blocks.peek(&link).expect("a stored block");
            out.push((link.codec(), child.data().to_vec()));
        }
    }
    for name in ["dag-json-traversal", "dag-cbor-traversal", "plain-json", "plain-cbor"] {
        let (root, blocks) = fixture_car(&format!("conformance/{name}.car"));
        out.push((root.codec(), blocks.peek(&root).expect("the root").data().to_vec()));
    }
    out
}

/// Overwrites, deletes and inserts single bytes.
fn damage(bytes: &mut Vec<u8>, edits: &[(u16, u8, u8)]) {
    for (at, kind, value) in edits {
        let at = *at as usize % (bytes.len() + 1);
        match kind % 4 {
            0 => bytes.insert(at, *value),
            1 if at < bytes.len() => _ = bytes.remove(at),
            2 => bytes.truncate(at),
            _ if at < bytes.len() => bytes[at] = *value,
            _ => {}
        }
    }
}

fn edits() -> impl Strategy<Value = Vec<(u16, u8, u8)>> {
    prop::collection::vec(any::<(u16, u8, u8)>(), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..200)) {
        for codec in [codec::DAG_PB, codec::RAW].into_iter().chain(DOCUMENTS) {
            exercise(&block(codec, data.clone()));
        }
        let car = [&car_header(&[])[..], &data].concat();
        let mut prefixed = vec![u8::try_from(car_header(&[]).len()).expect("short")];
        prefixed.extend_from_slice(&car);
        read_car(&prefixed);
        read_car(&data);
    }

    #[test]
    fn random_messages_never_panic(
        data_type in 0_u64..7, fields in prop::collection::vec((1_u32..9, any::<u64>(), any::<bool>()), 0..12),
        bytes in prop::collection::vec(any::<u8>(), 0..40), links in 0_usize..6,
    ) {
        let mut data = Message::default().varint(1, data_type).bytes(2, &bytes);
        for (tag, value, small) in fields {
            data = data.varint(tag, if small { value % 300 } else { value });
        }
        let link = |i: usize| Link::to(*inline(codec::RAW, &bytes[..i.min(bytes.len())]).cid(), "00");
        let links: Vec<Link> = (0..links).map(link).collect();
        exercise(&block(codec::DAG_PB, pb_node(&links, Some(&data.0), bytes.len() % 2 == 0)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn damaged_blocks_never_panic(pick: prop::sample::Index, edits in edits()) {
        thread_local!(static GOOD: Vec<(u64, Vec<u8>)> = valid_blocks());
        let (codec, mut bytes) = GOOD.with(|good| good[pick.index(good.len())].clone());
        damage(&mut bytes, &edits);
        exercise(&block(codec, bytes));
    }

    #[test]
    fn damaged_archives_never_panic_and_never_give_damaged_blocks(edits in edits()) {
        thread_local!(static GOOD: Vec<u8> = fixture("kubo/tree-v0.car"));
        let mut bytes = GOOD.with(Clone::clone);
        damage(&mut bytes, &edits);
        read_car(&bytes);
    }
}

/// Reads an archive to its end or error; each block has to match its CID.
fn read_car(bytes: &[u8]) {
    block_on(async {
        let Ok(mut car) = CarReader::new(bytes).await else { return };
        while let Some(Ok(block)) = car.next_block().await {
            assert_eq!(Block::verify(*block.cid(), block.data().clone()).as_ref(), Ok(&block));
        }
    });
}

#[test]
fn dag_pb_nodes_are_accepted_and_rejected_as_by_kubo() {
    let cid = inline(codec::RAW, b"x").cid().to_bytes();
    let link = Message::default().bytes(1, &cid).bytes(2, b"name").varint(3, 9).0;
    let node = || Message::default();
    let accepted: [(&str, Message, usize, bool); 6] = [
        ("empty", node(), 0, false),
        ("links, then data", node().bytes(2, &link).bytes(2, &link).bytes(1, b"d"), 2, true),
        ("data, then links", node().bytes(1, b"d").bytes(2, &link), 1, true),
        ("links only", node().bytes(2, &link), 1, false),
        ("data only", node().bytes(1, b"d"), 0, true),
        ("empty data", node().bytes(1, b""), 0, true),
    ];
    for (name, message, count, has_data) in accepted {
        let node = PbNode::decode(message.0.into()).expect(name);
        assert_eq!((node.link_count(), node.data().is_some()), (count, has_data), "{name}");
        for link in node.links() {
            let link = link.expect("a link");
            assert_eq!(
                (link.name, link.tsize, link.cid().expect("a CID").to_bytes()),
                (&b"name"[..], Some(9), cid.clone())
            );
        }
        assert!(node.link(count).is_none());
    }
    type Check = fn(&PbError) -> bool;
    let refused: [(&str, Message, Check); 7] = [
        ("data twice", node().bytes(1, b"a").bytes(1, b"b"), |e| matches!(e, PbError::Repeated { tag: 1 })),
        ("links around data", node().bytes(2, &link).bytes(1, b"a").bytes(2, &link), |e| {
            matches!(e, PbError::Repeated { tag: 2 })
        }),
        ("an unknown field", node().bytes(3, b"a"), |e| matches!(e, PbError::Unexpected { tag: 3, .. })),
        ("data as a number", node().varint(1, 7), |e| matches!(e, PbError::Unexpected { tag: 1, .. })),
        ("a field that is too long", Message(vec![0x0a, 5, 1]), |e| matches!(e, PbError::Truncated)),
        ("a length of 2^64", Message([&[0x0a][..], &[0xff; 9], &[1]].concat()), |e| matches!(e, PbError::Truncated)),
        ("half a varint", Message(vec![0x0a, 0x80]), |e| matches!(e, PbError::Wire(_))),
    ];
    for (name, message, expected) in refused {
        let error = PbNode::decode(message.0.into()).expect_err(name);
        assert!(expected(&error), "{name}: {error:?}");
    }
    let bad_links: [(&str, Message); 7] = [
        ("no hash", Message::default().bytes(2, b"name")),
        ("an empty hash", Message::default().bytes(1, b"")),
        ("a hash that is not a CID", Message::default().bytes(1, b"garbage")),
        ("two hashes", Message::default().bytes(1, &cid).bytes(1, &cid)),
        ("two names", Message::default().bytes(1, &cid).bytes(2, b"a").bytes(2, b"b")),
        ("a size in bytes", Message::default().bytes(1, &cid).bytes(3, b"a")),
        ("an unknown field", Message::default().bytes(1, &cid).varint(4, 1)),
    ];
    for (name, link) in bad_links {
        let node = PbNode::decode(Message::default().bytes(2, &link.0).0.into()).expect(name);
        let link = node.link(0).expect("there").and_then(|link| link.cid());
        assert!(link.is_err(), "{name}");
        assert!(dag::links(&block(codec::DAG_PB, Message::default().bytes(2, b"").0)).is_err());
    }
}

#[test]
fn decoded_slices_share_the_blocks_bytes() {
    let data = Message::default().varint(1, FILE).bytes(2, &content(1, 1_000)).0;
    let block = block(codec::DAG_PB, pb_node(&[], Some(&data), false));
    let Ok(Node::File(file)) = Node::decode(&block) else { panic!("not a file") };
    assert!(block.data().as_ptr_range().contains(&file.data().as_ptr()));
    assert_eq!(file.data(), &content(1, 1_000));
}

#[test]
fn unknown_fields_in_unixfs_data_are_skipped() {
    let time = Message::default().varint(1, 1_700_000_000).0;
    let data = Message::default().varint(1, FILE).bytes(2, b"hello").varint(7, 0o644).bytes(8, &time).varint(99, 1);
    let good = block(codec::DAG_PB, pb_node(&[], Some(&data.0), false));
    assert!(matches!(Node::decode(&good), Ok(Node::File(file)) if file.size() == 5));
    let wrong_type = Message::default().bytes(1, b"file");
    assert!(Node::decode(&block(codec::DAG_PB, pb_node(&[], Some(&wrong_type.0), false))).is_err());
}

#[test]
fn a_memory_source_ignores_codecs_and_stores_no_inline_blocks() {
    let blocks = MemoryBlocks::new();
    assert!(blocks.is_empty());
    let raw = add(&blocks, codec::RAW, b"hello".to_vec());
    let inlined = inline(codec::RAW, b"hello");
    blocks.insert(&inlined);
    assert_eq!(blocks.len(), 1);
    let as_pb = content::Cid::new_v1(codec::DAG_PB, *raw.cid().hash());
    assert_eq!(blocks.peek(&as_pb).expect("by hash").cid(), &as_pb);
    assert_eq!(block_on(blocks.get(inlined.cid())), Ok(inlined.clone()));
    assert_eq!(block_on(blocks.has(raw.cid())), Ok(true));
    assert!(blocks.remove(raw.cid()) && !blocks.remove(raw.cid()) && !blocks.remove(inlined.cid()));
    assert_eq!(block_on(blocks.has(raw.cid())), Ok(false));
    let error = content::SourceError::NotFound { cid: *raw.cid() };
    assert_eq!(block_on(blocks.get(raw.cid())), Err(error));
}
