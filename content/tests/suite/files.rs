//! Reading files: all layouts and ranges, bounded prefetching, and malformed files.

use crate::support::*;
use bytes::Bytes;
use content::budget::Budget;
use content::unixfs::NodeError;
use content::unixfs::file::{FileReader, ReadError, ReadLimits, file_size};
use content::{Block, BlockSource, Cid, MemoryBlocks, ReadAhead, SourceError, codec};
use futures::future::BoxFuture;
use futures::stream::{Stream as _, StreamExt as _};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

const MIB: usize = 1024 * 1024;
/// The window of a reader that has not waited.
const WINDOW_BYTES_START: usize = MIB + 64 * 1024;

/// The bytes of a range, and the error that ended the stream.
fn read_all(source: Arc<dyn BlockSource>, root: &Block, range: Range<u64>) -> (Vec<u8>, Option<ReadError>) {
    let mut reader = match FileReader::new(source, root.clone(), range, ReadLimits::default()) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut out = Vec::new();
    while let Some(chunk) = block_on(reader.next()) {
        match chunk {
            Ok(chunk) => {
                assert!(!chunk.is_empty() && chunk.len() <= content::MAX_BLOCK_BYTES);
                out.extend_from_slice(&chunk);
            }
            Err(error) => {
                assert_eq!(block_on(reader.next()), None, "nothing follows an error");
                return (out, Some(error));
            }
        }
    }
    (out, None)
}

fn read_range(source: Arc<dyn BlockSource>, root: &Block, range: Range<u64>) -> Vec<u8> {
    let (bytes, error) = read_all(source, root, range);
    assert_eq!(error, None);
    bytes
}

/// The DAG of a file, in any shape.
#[derive(Debug, Clone)]
enum Shape {
    Leaf { kind: LeafKind, bytes: Vec<u8> },
    Inner { own: Vec<u8>, children: Vec<Shape>, packed: bool, data_first: bool },
}

impl Shape {
    fn write(&self, blocks: &MemoryBlocks, out: &mut Vec<u8>) -> Block {
        match self {
            Self::Leaf { kind, bytes } => {
                out.extend_from_slice(bytes);
                leaf(blocks, *kind, bytes)
            }
            Self::Inner { own, children, packed, data_first } => {
                out.extend_from_slice(own);
                let mut links = Vec::new();
                for child in children {
                    let before = out.len();
                    let block = child.write(blocks, out);
                    links.push((*block.cid(), (out.len() - before) as u64));
                }
                add(blocks, codec::DAG_PB, file_node(own, &links, *packed, *data_first))
            }
        }
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..300);
    let leaf = (prop::sample::select(&LEAF_KINDS[..]), bytes()).prop_map(|(kind, bytes)| Shape::Leaf { kind, bytes });
    leaf.prop_recursive(5, 60, 6, move |child| {
        let own = prop_oneof![3 => Just(Vec::new()), 1 => bytes()];
        (own, prop::collection::vec(child, 0..6), any::<bool>(), any::<bool>())
            .prop_map(|(own, children, packed, data_first)| Shape::Inner { own, children, packed, data_first })
    })
}

/// A range given as two fractions of a length.
fn range_of((a, b): (u16, u16), length: usize) -> Range<usize> {
    let at = |fraction: u16| length * fraction as usize / u16::MAX as usize;
    at(a.min(b))..at(a.max(b))
}

fn as_u64(range: &Range<usize>) -> Range<u64> {
    range.start as u64..range.end as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_range_is_a_slice_of_the_files_bytes(
        shape in shapes(), fractions: (u16, u16), seed: u64, polls_max in 0_u64..12,
    ) {
        let (blocks, mut bytes) = (MemoryBlocks::new(), Vec::new());
        let root = shape.write(&blocks, &mut bytes);
        prop_assert_eq!(file_size(&root), Ok(bytes.len() as u64));
        let range = range_of(fractions, bytes.len());
        let remote = Arc::new(RemoteSource::new(blocks, seed, polls_max));
        prop_assert_eq!(&read_range(remote.clone(), &root, as_u64(&range)), &bytes[range.clone()]);
        let local: Arc<dyn BlockSource> = remote.blocks.clone();
        prop_assert_eq!(&read_range(local.clone(), &root, as_u64(&range)), &bytes[range]);
        prop_assert_eq!(&read_range(local, &root, 0..bytes.len() as u64), &bytes);
    }

    #[test]
    fn balanced_and_trickle_files_are_read_in_order_when_blocks_arrive_out_of_order(
        size in 0_usize..20_000, chunk in 1_usize..700, width in 2_usize..9, trickled: bool,
        kind in prop::sample::select(&LEAF_KINDS[..]), fractions: (u16, u16), seed: u64,
    ) {
        let chunk = chunk.max(size / 200);
        let (blocks, bytes) = (MemoryBlocks::new(), content(seed, size));
        let layout = if trickled { trickle } else { balanced };
        let root = layout(&blocks, &bytes, chunk, width, kind);
        let range = range_of(fractions, size);
        let source = Arc::new(RemoteSource::new(blocks, seed, 30));
        prop_assert_eq!(&read_range(source.clone(), &root, as_u64(&range))[..], &bytes[range]);
        prop_assert_eq!(&read_range(source, &root, 0..size as u64)[..], &bytes[..]);
    }
}

/// A remote file of `leaves` leaves of 256 KiB, all equal so that it is cheap to make, below nodes of `width` children.
fn large_file(leaves: usize, width: usize, seed: u64, polls_max: u64) -> (Arc<RemoteSource>, Block, u64) {
    let blocks = MemoryBlocks::new();
    let chunk = content(1, MIB / 4);
    let leaf = leaf(&blocks, LeafKind::PbFile, &chunk);
    let mut level = vec![(*leaf.cid(), chunk.len() as u64); leaves];
    let mut root = leaf;
    while level.len() > 1 {
        let mut above = Vec::new();
        for nodes in level.chunks(width) {
            root = add(&blocks, codec::DAG_PB, file_node(&[], nodes, false, false));
            above.push((*root.cid(), nodes.iter().map(|(_, size)| size).sum()));
        }
        level = above;
    }
    let size = file_size(&root).expect("a file");
    (Arc::new(RemoteSource::new(blocks, seed, polls_max)), root, size)
}

fn drain(mut reader: FileReader, source: &RemoteSource, mut each: impl FnMut(&FileReader)) -> u64 {
    let mut total = 0;
    while let Some(chunk) = block_on(reader.next()) {
        let length = chunk.expect("no error").len();
        source.counts.consumed_bytes.fetch_add(length, Ordering::Relaxed);
        total += length as u64;
        each(&reader);
    }
    total
}

#[test]
fn the_window_grows_for_a_fast_reader_and_is_not_exceeded() {
    for window_bytes_max in [0, MIB / 2, MIB, 3 * MIB, 8 * MIB] {
        for width in [5, 174] {
            let (source, root, size) = large_file(300, width, width as u64 + window_bytes_max as u64, 50);
            let limits = ReadLimits { window_bytes_max, shared: None };
            let reader = FileReader::new(source.clone(), root, 0..size, limits).expect("a file");
            let mut window_bytes = 0;
            let total = drain(reader, &source, |reader| window_bytes = reader.window_bytes());
            assert_eq!(total, size);
            assert_eq!(window_bytes, window_bytes_max, "the reader waited often enough");
            // The maximum by which the prefetcher is ahead: the window, the first block, and all inner nodes and
            // framing, which are never "consumed".
            let overhead = Counts::get(&source.counts.requested_bytes) - size as usize;
            let ahead = Counts::get(&source.counts.prefetched_bytes_max);
            assert!(ahead <= window_bytes_max + MIB / 4 + overhead, "{ahead} with {window_bytes_max} and {width}");
            if window_bytes_max >= MIB {
                assert!(ahead > window_bytes_max / 2, "{ahead} with {window_bytes_max}: the window is used");
                assert!(Counts::get(&source.counts.in_flight_max) >= window_bytes_max / (MIB / 2));
            }
        }
    }
}

#[test]
fn the_window_is_bounded_by_the_bytes_read() {
    let (source, root, size) = large_file(300, 174, 11, 50);
    let limits = ReadLimits { window_bytes_max: 64 * MIB, shared: None };
    let reader = FileReader::new(source.clone(), root, 0..size, limits).expect("a file");
    let (mut read_bytes, mut window_bytes) = (0, 0);
    drain(reader, &source, |reader| {
        read_bytes = size - reader.remaining();
        window_bytes = reader.window_bytes();
        assert!(window_bytes <= WINDOW_BYTES_START + read_bytes as usize, "{window_bytes} after {read_bytes}");
    });
    assert!(window_bytes > 16 * MIB, "{window_bytes}: a fast reader gets a large one");
}

/// Records how many blocks were requested before each inner node, and whether it was requested alone.
struct InnerNodes {
    blocks: Arc<RemoteSource>,
    requested: std::sync::Mutex<(usize, Vec<(usize, bool)>)>,
}

impl BlockSource for InnerNodes {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.blocks.get(cid)
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        let mut requested = self.requested.lock().expect("not poisoned");
        requested.0 += 1;
        let inner = self.blocks.blocks.peek(cid).is_some_and(|block| block.data().len() < MIB / 8);
        if inner {
            let before = requested.0;
            requested.1.push((before, ahead.is_single_block()));
        }
        self.blocks.get(cid)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.blocks.has(cid)
    }
}

#[test]
fn inner_nodes_are_requested_well_before_their_leaves() {
    let (blocks, root, size) = large_file(64, 16, 0, 0);
    let source = Arc::new(InnerNodes { blocks: blocks.clone(), requested: Default::default() });
    let limits = ReadLimits { window_bytes_max: MIB, shared: None };
    let reader = FileReader::new(source.clone(), root, 0..size, limits).expect("a file");
    assert_eq!(drain(reader, &blocks, |_| {}), size);
    let requested = source.requested.lock().expect("not poisoned");
    let [first, second, third, fourth] = requested.1[..] else { panic!("{requested:?}") };
    // Each has 16 leaves, of which the window has room for four.
    // What follows the first one is read next, but not what follows the others.
    assert_eq!(first, (1, false));
    for ((requested_before, alone), other_nodes, leaves_before) in [(second, 2, 16), (third, 3, 32), (fourth, 4, 48)] {
        assert!(requested_before - other_nodes + 8 <= leaves_before && alone, "{requested:?}");
    }
}

#[test]
fn the_window_stays_small_for_a_slow_reader() {
    // Fetches complete as soon as they are polled, so the reader never waits after the first bytes.
    let (source, root, size) = large_file(300, 174, 7, 0);
    let reader = FileReader::new(source.clone(), root, 0..size, ReadLimits::default()).expect("a file");
    let total = drain(reader, &source, |reader| assert_eq!(reader.window_bytes(), WINDOW_BYTES_START));
    assert_eq!(total, size);
}

/// All blocks but one are available at once; peeks and gets are counted.
struct LocalSource {
    remote: RemoteSource,
    but: Option<Cid>,
}

impl BlockSource for LocalSource {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.remote.peek(cid);
        if self.but == Some(*cid) { None } else { self.remote.blocks.peek(cid) }
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.remote.get(cid)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.remote.has(cid)
    }
}

#[test]
fn blocks_that_are_available_at_once_are_not_prefetched() {
    let (source, root, size) = large_file(40, 174, 0, 0);
    let source = Arc::new(LocalSource { remote: Arc::into_inner(source).expect("only one"), but: None });
    let leaf = *leaf(&MemoryBlocks::new(), LeafKind::PbFile, &content(1, MIB / 4)).cid();
    let leaf = source.remote.blocks.peek(&leaf).expect("a stored block");
    let mut reader = FileReader::new(source.clone(), root, 0..size, ReadLimits::default()).expect("a file");
    for read in 1..=3 {
        let chunk = block_on(reader.next()).expect("more").expect("bytes");
        assert_eq!(Counts::get(&source.remote.counts.peeks), read, "one block for each chunk");
        assert!(leaf.data().as_ptr_range().contains(&chunk.as_ptr()), "a slice of the block, not a copy");
    }
    assert_eq!(Counts::get(&source.remote.counts.gets), 0);
}

#[test]
fn many_tiny_blocks_do_not_fill_memory() {
    let blocks = MemoryBlocks::new();
    let head = leaf(&blocks, LeafKind::RawCodec, b"hello");
    let tiny = leaf(&blocks, LeafKind::RawCodec, b"!");
    let mut children = vec![(*head.cid(), 5)];
    children.resize(15_000, (*tiny.cid(), 1));
    let root = add(&blocks, codec::DAG_PB, file_node(&[], &children, true, false));
    let source = Arc::new(LocalSource { remote: RemoteSource::stalled(blocks), but: Some(*head.cid()) });
    let mut reader = FileReader::new(source.clone(), root, 0..15_004, ReadLimits::default()).expect("a file");
    let mut cx = Context::from_waker(Waker::noop());
    // More blocks than between two yields.
    for _ in 0..100 {
        assert!(std::pin::Pin::new(&mut reader).poll_next(&mut cx).is_pending());
    }
    let looked_at = Counts::get(&source.remote.counts.peeks);
    assert!((2..MIB / 256).contains(&looked_at), "{looked_at}");
}

#[test]
fn a_malformed_link_is_an_error_at_its_place() {
    let good = inline(codec::RAW, b"good");
    let bad = Message::default().bytes(1, b"no CID").0;
    let data = file().packed(4, &[4, 4, 4]).0;
    let good_link = Link::to(*good.cid(), "").encode();
    let node = Message::default().bytes(2, &good_link).bytes(2, &bad).bytes(2, &good_link).bytes(1, &data).0;
    let root = add(&MemoryBlocks::new(), codec::DAG_PB, node);
    let source: Arc<dyn BlockSource> = Arc::new(MemoryBlocks::new());
    let (bytes, error) = read_all(source.clone(), &root, 0..12);
    assert_eq!(bytes, b"good");
    assert!(matches!(error, Some(ReadError::Node(NodeError::Malformed { cid, .. })) if cid == *root.cid()));
    assert_eq!(read_range(source, &root, 8..12), b"good");
}

#[test]
fn a_range_fetches_only_its_leaves_and_their_parents() {
    let blocks = Arc::new(MemoryBlocks::new());
    let bytes = content(3, 81 * 100);
    let root = balanced(&blocks, &bytes, 100, 3, LeafKind::RawCodec);
    for start in [0, 99, 100, 4_050, 8_099] {
        let source = Arc::new(RemoteSource::new(blocks.clone(), 1, 3));
        let range = start..start + 1;
        assert_eq!(read_range(source.clone(), &root, range.clone()), &bytes[range.start as usize..range.end as usize]);
        assert_eq!(Counts::get(&source.counts.gets), 4, "three inner nodes below the root, and the leaf");
    }
    let source = Arc::new(RemoteSource::new(blocks, 1, 3));
    assert_eq!(read_range(source.clone(), &root, 5_000..5_000), b"");
    assert_eq!(Counts::get(&source.counts.gets), 0, "an empty range fetches nothing");
}

#[test]
fn dropping_the_reader_cancels_its_fetches() {
    let (remote, root, size) = large_file(20, 174, 0, 0);
    let source = Arc::new(RemoteSource::stalled(remote.blocks.clone()));
    let mut reader = FileReader::new(source.clone(), root, 0..size, ReadLimits::default()).expect("a file");
    let mut cx = Context::from_waker(Waker::noop());
    assert!(std::pin::Pin::new(&mut reader).poll_next(&mut cx).is_pending());
    assert!(Counts::get(&source.counts.in_flight) > 1, "the first part and the next ones are being fetched");
    drop(reader);
    assert_eq!(Counts::get(&source.counts.in_flight), 0);
}

#[test]
fn a_few_bytes_do_not_keep_a_fetched_block_alive() {
    let blocks = MemoryBlocks::new();
    let chunk = content(1, 10_000);
    let child = leaf(&blocks, LeafKind::RawCodec, &chunk);
    let root = add(&blocks, codec::DAG_PB, file_node(&[], &[(*child.cid(), 10_000)], false, false));
    let source = Arc::new(RemoteSource::new(blocks, 0, 0));
    let held = source.blocks.peek(child.cid()).expect("a stored block").data().clone();
    for (range, shared) in [(10_u64..20, false), (10..9_990, true)] {
        let mut reader = FileReader::new(source.clone(), root.clone(), range, ReadLimits::default()).expect("a file");
        let chunk = block_on(reader.next()).expect("more").expect("bytes");
        assert_eq!(held.as_ptr_range().contains(&chunk.as_ptr()), shared);
    }
}

/// A root with one child, whose declared size is `size`.
fn root_over(blocks: &MemoryBlocks, child: &Cid, size: u64) -> Block {
    add(blocks, codec::DAG_PB, file_node(&[], &[(*child, size)], false, false))
}

#[test]
fn wrong_sizes_are_errors() {
    let blocks = Arc::new(MemoryBlocks::new());
    let small = leaf(&blocks, LeafKind::PbFile, b"hello");
    let raw = leaf(&blocks, LeafKind::RawCodec, b"hello");
    for (child, claimed) in [(&small, 4), (&small, 6), (&raw, 4), (&raw, 6), (&raw, u64::MAX)] {
        let root = root_over(&blocks, child.cid(), claimed);
        let source: Arc<dyn BlockSource> = Arc::new(RemoteSource::new(blocks.clone(), 0, 2));
        let expected = ReadError::SizeMismatch { cid: *child.cid(), expected: claimed, actual: 5 };
        assert_eq!(read_all(source, &root, 0..claimed), (Vec::new(), Some(expected)));
    }
}

#[test]
fn the_bytes_before_a_missing_block_are_emitted() {
    let blocks = Arc::new(MemoryBlocks::new());
    let good = leaf(&blocks, LeafKind::RawCodec, b"good");
    let lost = Block::of(codec::RAW, content::hashes::SHA2_256, 32, Bytes::from_static(b"lost")).expect("block");
    let children = [(*good.cid(), 4), (*good.cid(), 4), (*lost.cid(), 4), (*good.cid(), 4)];
    let root = add(&blocks, codec::DAG_PB, file_node(b"own ", &children, false, false));
    let missing = ReadError::Source(SourceError::NotFound { cid: *lost.cid() });
    for seed in 0..20 {
        let source = Arc::new(RemoteSource::new(blocks.clone(), seed, 9));
        assert_eq!(read_all(source.clone(), &root, 0..20), (b"own goodgood".to_vec(), Some(missing.clone())));
        assert_eq!(read_all(source.clone(), &root, 0..12), (b"own goodgood".to_vec(), None));
        assert_eq!(read_all(source, &root, 16..20), (b"good".to_vec(), None), "a range may avoid it");
    }
}

fn pb_file(message: Message, links: &[Link]) -> Block {
    add(&MemoryBlocks::new(), codec::DAG_PB, pb_node(links, Some(&message.0), false))
}

fn file() -> Message {
    Message::default().varint(1, FILE)
}

#[test]
fn malformed_file_nodes_are_rejected() {
    let leaf = inline(codec::RAW, b"hello");
    let link = || Link::to(*leaf.cid(), "");
    let table: [(&str, Block); 8] = [
        ("links without sizes", pb_file(file(), &[link()])),
        ("more links than sizes", pb_file(file().varint(4, 5), &[link(), link()])),
        ("more sizes than links", pb_file(file().varint(4, 5).varint(4, 5), &[link()])),
        ("more packed sizes than links", pb_file(file().packed(4, &[5, 5]), &[link()])),
        ("a sum that overflows", pb_file(file().varint(4, u64::MAX).varint(4, 1), &[link(), link()])),
        ("another file size than the sum", pb_file(file().varint(3, 6).varint(4, 5), &[link()])),
        ("another file size than the data", pb_file(file().varint(3, 6).bytes(2, b"hello"), &[])),
        ("no type", pb_file(Message::default().bytes(2, b"hello"), &[])),
    ];
    for (name, root) in table {
        assert!(matches!(file_size(&root), Err(ReadError::Node(NodeError::Malformed { .. }))), "{name}");
    }
    // The file size is optional.
    assert_eq!(file_size(&pb_file(file().bytes(2, b"hello"), &[])), Ok(5));
    assert_eq!(file_size(&pb_file(file().varint(4, 5), &[link()])), Ok(5));
    assert_eq!(file_size(&pb_file(file(), &[])), Ok(0));
}

#[test]
fn blocks_other_than_files_are_rejected() {
    let blocks = Arc::new(MemoryBlocks::new());
    let of_type = |data_type| pb_node(&[], Some(&Message::default().varint(1, data_type).0), false);
    let shard = Message::default().varint(1, HAMT_SHARD).varint(5, 0x22).varint(6, 8);
    let not_files = [
        add(&blocks, codec::DAG_PB, of_type(DIRECTORY)),
        add(&blocks, codec::DAG_PB, of_type(SYMLINK)),
        add(&blocks, codec::DAG_PB, pb_node(&[], Some(&shard.0), false)),
        add(&blocks, codec::DAG_PB, pb_node(&[], None, false)),
    ];
    let others = [
        add(&blocks, codec::DAG_PB, of_type(METADATA)),
        add(&blocks, codec::DAG_PB, of_type(99)),
        add(&blocks, codec::DAG_PB, b"garbage".to_vec()),
        add(&blocks, codec::DAG_CBOR, vec![0x80]),
    ];
    for block in &not_files {
        let error = Some(ReadError::NotAFile { cid: *block.cid() });
        assert_eq!(read_all(Arc::new(MemoryBlocks::new()), block, 0..0).1, error);
        let root = root_over(&blocks, block.cid(), 3);
        assert_eq!(read_all(blocks.clone(), &root, 0..3).1, error);
    }
    for block in &others {
        assert!(matches!(file_size(block), Err(ReadError::Node(_))), "{}", block.cid());
        let root = root_over(&blocks, block.cid(), 3);
        let error = read_all(blocks.clone(), &root, 0..3).1;
        assert!(matches!(error, Some(ReadError::Node(_))), "{error:?}");
    }
}

#[test]
fn ranges_outside_the_file_are_rejected() {
    let root = inline(codec::RAW, b"hello");
    let source: Arc<dyn BlockSource> = Arc::new(MemoryBlocks::new());
    for (start, end) in [(0, 6), (6, 6), (u64::MAX, u64::MAX), (0, u64::MAX), (3, 2)] {
        let error = ReadError::OutOfRange { start, end, size: 5 };
        assert_eq!(read_all(source.clone(), &root, start..end).1, Some(error));
    }
    for (start, end) in [(0, 5), (5, 5), (2, 4)] {
        assert_eq!(read_range(source.clone(), &root, start..end), &b"hello"[start as usize..end as usize]);
    }
}

/// A chain of `levels` nodes with one child each, down to a leaf of five bytes.
fn chain(blocks: &MemoryBlocks, levels: usize) -> Block {
    (0..levels).fold(leaf(blocks, LeafKind::RawCodec, b"hello"), |child, _| root_over(blocks, child.cid(), 5))
}

#[test]
fn nesting_is_bounded() {
    for (levels, readable) in [(1, true), (64, true), (65, false), (1_000, false)] {
        let blocks = MemoryBlocks::new();
        let root = chain(&blocks, levels);
        let (bytes, error) = read_all(Arc::new(RemoteSource::new(blocks, 1, 1)), &root, 0..5);
        assert_eq!((bytes == b"hello", matches!(error, Some(ReadError::TooDeep { .. }))), (readable, !readable));
    }
}

#[test]
fn a_cycle_ends_with_an_error() {
    // No hash function allows it, but a broken store might.
    let cid = *leaf(&MemoryBlocks::new(), LeafKind::PbFile, b"whatever").cid();
    let blocks = MemoryBlocks::new();
    let block = Block::from_verified(cid, file_node(&[], &[(cid, 5)], false, false).into());
    blocks.insert(&block);
    let (bytes, error) = read_all(Arc::new(blocks), &block, 0..5);
    assert_eq!((bytes, error), (Vec::new(), Some(ReadError::TooDeep { cid })));
}

#[test]
fn the_memory_and_work_for_large_inner_nodes_are_bounded() {
    // Each level is a node of almost the maximum size, with empty children around the next level.
    for (last_has_bytes, levels, readable) in [(false, 4, true), (true, 4, true), (false, 10, false), (true, 10, false)]
    {
        let blocks = MemoryBlocks::new();
        let (empty, last) = (*inline(codec::RAW, b"").cid(), *inline(codec::RAW, b"!").cid());
        let mut root = leaf(&blocks, LeafKind::RawCodec, b"hello");
        for _ in 0..levels {
            let mut children = vec![(*root.cid(), file_size(&root).expect("a file"))];
            children.resize(135_000, (empty, 0));
            children.extend(last_has_bytes.then_some((last, 1)));
            root = add(&blocks, codec::DAG_PB, file_node(&[], &children, true, false));
        }
        let size = file_size(&root).expect("a file");
        let (bytes, error) = read_all(Arc::new(blocks), &root, 0..size);
        assert_eq!(
            (bytes.starts_with(b"hello"), matches!(error, Some(ReadError::TooDeep { .. }))),
            (readable, !readable)
        );
    }
}

#[test]
fn a_pending_reader_is_woken_by_any_block() {
    let (source, root, size) = large_file(8, 174, 3, 5);
    let mut reader = FileReader::new(source, root, 0..size, ReadLimits::default()).expect("a file");
    let mut cx = Context::from_waker(Waker::noop());
    let (mut total, mut polls) = (0, 0);
    while polls < 1_000 {
        polls += 1;
        match std::pin::Pin::new(&mut reader).poll_next(&mut cx) {
            Poll::Ready(Some(chunk)) => total += chunk.expect("bytes").len() as u64,
            Poll::Ready(None) => break,
            Poll::Pending => {}
        }
    }
    assert_eq!((total, reader.remaining()), (size, 0));
}

#[test]
fn windows_share_a_budget_and_release_it() {
    let (blocks, mut bytes) = (Arc::new(MemoryBlocks::new()), Vec::new());
    let leaves = (0..40).map(|leaf| Shape::Leaf { kind: LeafKind::RawCodec, bytes: vec![leaf; 50_000] }).collect();
    let shape = Shape::Inner { own: Vec::new(), children: leaves, packed: false, data_first: false };
    let root = shape.write(&blocks, &mut bytes);
    let shared = Arc::new(Budget::new(1_500_000));
    let limits = ReadLimits { window_bytes_max: 4 << 20, shared: Some(Arc::clone(&shared)) };
    let open = || FileReader::new(blocks.clone(), root.clone(), 0..bytes.len() as u64, limits.clone()).expect("a file");
    let (first, second) = (open(), open());
    assert_eq!(shared.left(), 1_500_000 - WINDOW_BYTES_START);
    assert!(second.window_bytes() < first.window_bytes());
    let third = open();
    assert!(third.window_bytes() <= 32 << 10, "{}", third.window_bytes());
    drop(third);
    for mut reader in [first, second] {
        let mut read = Vec::new();
        while let Some(chunk) = block_on(reader.next()) {
            read.extend_from_slice(&chunk.expect("reads"));
        }
        assert_eq!(read, bytes);
    }
    assert_eq!(shared.left(), 1_500_000);
}
