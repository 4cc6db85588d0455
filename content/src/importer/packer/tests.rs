//! Tests of packed files: against the library's decoder, and against the plain import.

use super::*;
use crate::importer::{Chunking, SinkError};
use crate::packed::{PackedError, PackedFile, SeekTableError, zstd_file_of};
use crate::unixfs::file::{FileReader, ReadLimits};
use crate::work::STEPS_PER_YIELD;
use crate::{BlockSource, MemoryBlocks, SourceError, Work};
use futures::StreamExt as _;
use futures::executor::block_on;
use futures::future::BoxFuture;
use proptest::prelude::*;
use std::collections::HashMap;

/// Keeps blocks and slices.
#[derive(Default)]
struct Kept {
    blocks: MemoryBlocks,
    slices: HashMap<Cid, Slice>,
}

impl BlockSink for Kept {
    fn put(&mut self, block: Block) -> Result<(), SinkError> {
        self.blocks.insert(&block);
        Ok(())
    }

    fn put_slice(&mut self, leaf: &Cid, slice: Slice) -> Result<(), SinkError> {
        self.slices.insert(*leaf, slice);
        Ok(())
    }
}

fn add(profile: &Profile, bytes: &[u8], sink: &mut dyn BlockSink) -> Result<(Part, Option<Packed>), ImportError> {
    let packing = Packing::new(profile, CompressionOptions::default())?;
    let File { mut chunker, leaves, mut layout } =
        Importer::new(profile.clone()).expect("a profile").file(Attributes::default());
    let mut packer = Packer::new()?;
    let is_plain = packer.is_plain();
    let mut rest = bytes;
    let mut chunks = std::iter::from_fn(|| chunker.push(&mut rest)).collect::<Vec<_>>();
    chunks.extend(chunker.finish());
    for chunk in chunks {
        let (part, leaf) = leaves.leaf(chunk)?;
        match is_plain.load(Ordering::Relaxed) {
            true => packer.push_plain(leaf, sink)?,
            false => packer.push(packing.pack(leaf, part.file_bytes)?, sink)?,
        }
        layout.push(part, sink)?;
    }
    let packed = packer.finish(sink)?;
    Ok((layout.finish(sink)?, packed))
}

/// The plain import.
fn plain(profile: &Profile, bytes: &[u8]) -> Part {
    let mut sink = |_| Ok(());
    let mut file = Importer::new(profile.clone()).expect("a profile").file(Attributes::default());
    file.write(bytes, &mut sink).expect("imports");
    file.finish(&mut sink).expect("imports")
}

fn read(blocks: &Arc<MemoryBlocks>, root: Cid) -> Vec<u8> {
    let block = blocks.peek(&root).expect("the root is stored");
    let size = crate::unixfs::file::file_size(&block).expect("a file");
    let source = Arc::clone(blocks) as Arc<dyn BlockSource>;
    let reader = FileReader::new(source, block, 0..size, ReadLimits::default()).expect("a file");
    let chunks: Vec<_> = block_on(reader.collect());
    chunks.into_iter().flat_map(|bytes| bytes.expect("is read")).collect()
}

fn lines(bytes: usize) -> Vec<u8> {
    let line = |line: u32| format!("{line};{};a line\n", line.wrapping_mul(0x9e37_79b9)).into_bytes();
    (0..).flat_map(line).take(bytes).collect()
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        })
        .collect()
}

/// Checks everything that a packed file promises.
fn check(profile: &Profile, bytes: &[u8]) -> Option<Packed> {
    let mut kept = Kept::default();
    let (part, packed) = add(profile, bytes, &mut kept).expect("imports");
    assert_eq!(part, plain(profile, bytes), "the plain file has the CID of a plain import");
    let Kept { blocks, slices } = kept;
    let blocks = Arc::new(blocks);
    let Some(packed) = packed else {
        assert!(slices.is_empty());
        assert_eq!(read(&blocks, part.cid), bytes);
        return None;
    };
    assert_eq!(zstd_file_of(&packed.cid), BlockKey::of(&packed.zstd_file.cid));
    assert_eq!(zstd_file_of(&packed.zstd_file.cid), None);
    let file = read(&blocks, packed.zstd_file.cid);
    assert_eq!(file.len() as u64, packed.zstd_file.file_bytes);
    assert_eq!(zstd::decode_all(&file[..]).expect("zstd -d"), bytes);
    let (table, table_bytes) = SeekTable::read_tail(&file).expect("a table");
    assert_eq!(table.frame_bytes() + table_bytes as u64, file.len() as u64);
    assert_eq!(table.plain_bytes(), bytes.len() as u64);
    for place in table.places() {
        let start = usize::try_from(place.frame_start).expect("small");
        let frame = &file[start..][..place.lengths.frame_bytes as usize];
        let start = usize::try_from(place.plain_start).expect("small");
        let content = &bytes[start..][..place.lengths.plain_bytes as usize];
        assert_eq!(zstd::bulk::decompress(frame, CHUNK_BYTES_MAX).expect("a frame"), content);
    }
    for (leaf, slice) in &slices {
        let base = blocks.peek(&Cid::new_v1(codec::RAW, *slice.base.multihash())).expect("the base is stored");
        let stored = slice.resolve(base.data()).expect("it has the frame");
        let block = Block::verify(*leaf, stored.block().expect("decompresses")).expect("it is the leaf");
        assert!(blocks.peek(leaf).is_none(), "no byte is stored twice");
        blocks.insert(&block);
    }
    assert_eq!(read(&blocks, part.cid), bytes);
    check_reader(&blocks, &packed.cid, bytes);
    Some(packed)
}

/// Reads the plain file from the zstd file alone, by the packed CID.
fn check_reader(blocks: &Arc<MemoryBlocks>, packed: &Cid, bytes: &[u8]) {
    let root = blocks.peek(packed).expect("the root has the same hash");
    let source = || Arc::clone(blocks) as Arc<dyn BlockSource>;
    let file = block_on(PackedFile::open(source(), &root)).expect("has a table");
    assert_eq!(file.size(), bytes.len() as u64);
    let end = bytes.len();
    for (start, end) in [(0, end), (0, 1), (end - 1, end), (end / 3, end / 2), (end / 2, end / 2), (end, end)] {
        let range = start as u64..end as u64;
        let chunks = file.read(source(), range, ReadLimits::default()).expect("frames are small");
        let chunks: Vec<_> = block_on(chunks.collect());
        let read: Vec<u8> = chunks.into_iter().flat_map(|bytes| bytes.expect("is read")).collect();
        assert_eq!(read, &bytes[start..end], "{start}..{end}");
    }
}

/// A zstd file with another table, or other frames: its root.
fn zstd_file(blocks: &Arc<MemoryBlocks>, bytes: &[u8]) -> Block {
    let mut sink = |block: Block| {
        blocks.insert(&block);
        Ok(())
    };
    let mut file = Importer::new(ZSTD_FILE_PROFILE).expect("a profile").file(Attributes::default());
    file.write(bytes, &mut sink).expect("imports");
    let root = file.finish(&mut sink).expect("imports").cid;
    blocks.peek(&packed_cid(&root)).expect("is stored")
}

fn table_of(frames: &[(usize, usize)]) -> Vec<u8> {
    let mut table = SeekTable::default();
    for (frame_bytes, plain_bytes) in frames {
        let length = |bytes: &usize| u32::try_from(*bytes).expect("small");
        table.push(FrameLengths { frame_bytes: length(frame_bytes), plain_bytes: length(plain_bytes) });
    }
    table.to_frame().expect("small").to_vec()
}

/// A name, frames, the lengths of frames and contents in the table, and a part of the error.
type DamagedFile = (&'static str, Vec<u8>, Vec<(usize, usize)>, &'static str);

#[test]
fn a_table_that_disagrees_with_its_frames_is_an_error() {
    let blocks = Arc::new(MemoryBlocks::new());
    let (text, large) = (lines(50_000), vec![7; 3 << 20]);
    let [first, second] = [&text[..30_000], &text[30_000..]].map(|part| zstd::bulk::compress(part, 3).expect("zstd"));
    let frames = [&first[..], &second].concat();
    let huge = zstd::bulk::compress(&large, 3).expect("zstd");
    let unsized_frame = zstd::encode_all(&text[..], 3).expect("zstd");
    let table: [DamagedFile; 8] = [
        ("as it is", frames.clone(), vec![(first.len(), 30_000), (second.len(), 20_000)], ""),
        ("a frame less", frames.clone(), vec![(first.len(), 30_000)], "describes"),
        ("another length of a frame", frames.clone(), vec![(first.len() - 1, 30_000), (second.len() + 1, 20_000)], "0"),
        ("another length of a content", frames.clone(), vec![(first.len(), 29_999), (second.len(), 20_001)], "0"),
        ("two frames as one", frames.clone(), vec![(frames.len(), 50_000)], "0"),
        ("a bomb", huge.clone(), vec![(huge.len(), 3 << 20)], "exceeds"),
        ("a bomb that is said to be small", huge.clone(), vec![(huge.len(), 1_000)], "0"),
        ("a frame without its content size", unsized_frame.clone(), vec![(unsized_frame.len(), 50_000)], "0"),
    ];
    for (name, frames, lengths, words) in table {
        let root = zstd_file(&blocks, &[&frames[..], &table_of(&lengths)].concat());
        let source = || Arc::clone(&blocks) as Arc<dyn BlockSource>;
        let read = block_on(async {
            let file = PackedFile::open(source(), &root).await?;
            let chunks = file.read(source(), 0..file.size(), ReadLimits::default())?;
            chunks.collect::<Vec<_>>().await.into_iter().collect::<Result<Vec<_>, _>>()
        });
        match (read, words) {
            (Ok(read), "") => assert_eq!(read.concat(), text),
            (Err(error), words) if !words.is_empty() => assert!(error.to_string().contains(words), "{name}: {error}"),
            (read, _) => panic!("{name}: {read:?}"),
        }
    }
    let plain = zstd_file(&blocks, &frames);
    let opened = block_on(PackedFile::open(Arc::clone(&blocks) as Arc<dyn BlockSource>, &plain));
    assert!(matches!(opened, Err(PackedError::Table(SeekTableError::Missing))), "{opened:?}");
}

/// Blocks, and the work of reading them.
struct CountedBlocks(Arc<MemoryBlocks>, Work);

impl BlockSource for CountedBlocks {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.0.peek(cid)
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.0.get(cid)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.0.has(cid)
    }

    fn work(&self) -> Work {
        self.1.clone()
    }
}

#[test]
fn a_reader_yields_among_empty_frames() {
    let blocks = Arc::new(MemoryBlocks::new());
    let frame = |content: &[u8]| zstd::bulk::compress(content, 3).expect("zstd");
    let (first, empty) = (frame(b"first"), frame(b""));
    let count = 5 * usize::try_from(STEPS_PER_YIELD).expect("small");
    let frames = [first.clone(), empty.repeat(count), first.clone()].concat();
    let ends = [(first.len(), 5)];
    let lengths = [&ends[..], &vec![(empty.len(), 0); count], &ends].concat();
    let root = zstd_file(&blocks, &[&frames[..], &table_of(&lengths)].concat());
    let source = Arc::new(CountedBlocks(blocks, Work::unlimited()));
    let opened = PackedFile::open(Arc::clone(&source) as Arc<dyn BlockSource>, &root);
    let file = block_on(opened).expect("has a table");
    let chunks = file.read(Arc::clone(&source) as _, 0..10, ReadLimits::default()).expect("frames are small");
    let read: Vec<_> = block_on(chunks.collect());
    assert_eq!(read, [Ok(Bytes::from("first")), Ok(Bytes::from("first"))]);
    assert!(source.1.spent() > count as u64, "each frame is counted");
    assert!(source.1.longest_run() <= 2 * STEPS_PER_YIELD, "{}", source.1.longest_run());
}

fn chunks_of(bytes: usize, profile: Profile) -> Profile {
    Profile { chunking: Chunking::size(bytes).expect("a size"), ..profile }
}

#[test]
fn text_is_packed_with_every_profile() {
    let text = lines(3_000_000);
    for name in Profile::NAMES {
        let packed = check(&Profile::named(name).expect("a profile"), &text).expect("text shrinks");
        assert!(packed.zstd_file.file_bytes < text.len() as u64 / 2, "{name}");
    }
    let inline = Profile { inline_bytes_max: Some(128), ..chunks_of(100_000, Profile::UNIXFS_V1_2025) };
    assert!(check(&inline, &text[..2_000_050]).is_some(), "its last leaf is inline");
    let rabin = Profile { chunking: "rabin-8192".parse().expect("a chunker"), ..Profile::UNIXFS_V1_2025 };
    assert!(check(&rabin, &text).is_some());
}

#[test]
fn what_does_not_shrink_stays_plain() {
    let profile = Profile::UNIXFS_V1_2025;
    for bytes in [&[][..], b"x", b"a short text", &noise(100_000), &noise(SAMPLE_BYTES + 3_000_000)] {
        assert_eq!(check(&profile, bytes), None, "{} bytes", bytes.len());
    }
    // The first leaves decide.
    let (text, noise) = (lines(SAMPLE_BYTES), noise(3_000_000));
    assert!(check(&profile, &[&text[..], &noise].concat()).is_some());
    assert_eq!(check(&profile, &[&noise[..], &noise, &text].concat()), None);
}

#[test]
fn repeated_chunks_are_packed() {
    let zeros = vec![0; 10 << 20];
    let packed = check(&Profile::UNIXFS_V1_2025, &zeros).expect("zeros shrink");
    assert!(packed.zstd_file.file_bytes < 10_000);
}

#[test]
fn limits_are_errors() {
    let large = chunks_of(CHUNK_BYTES_MAX + 1, Profile::UNIXFS_V1_2025);
    let refused = Packing::new(&large, CompressionOptions::default()).map(drop);
    assert_eq!(refused, Err(PackError::Chunks { bytes: CHUNK_BYTES_MAX + 1 }));
    // A file of tiny chunks shrinks only if they are not too tiny.
    let tiny = chunks_of(64, Profile::UNIXFS_V1_2025);
    let zeros = vec![0; 64 * (FRAMES_MAX + 1)];
    assert!(check(&tiny, &zeros[..64 * 1_000]).is_some());
    let result = add(&tiny, &zeros, &mut Kept::default()).map(drop);
    assert!(matches!(result, Err(ImportError::Pack(PackError::Frames))), "{result:?}");
    // A sink of plain blocks refuses slices.
    let mut plain_sink = |_| Ok(());
    let result = add(&Profile::UNIXFS_V1_2025, &lines(100_000), &mut plain_sink).map(drop);
    assert!(matches!(result, Err(ImportError::Sink(_))), "{result:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_in_any_chunks_are_packed_or_plain(
        pieces in proptest::collection::vec((any::<u8>(), 1..4_000_usize, any::<bool>()), 0..30),
        chunk in 1..20_000_usize, raw in any::<bool>()
    ) {
        let mut bytes = Vec::new();
        for (seed, length, is_noise) in pieces {
            match is_noise {
                true => bytes.extend_from_slice(&noise(length)[..length]),
                false => bytes.resize(bytes.len() + length, seed),
            }
        }
        let chunk = chunk.max(bytes.len() / 500 + 1);
        let profile = Profile { raw_leaves: raw, ..chunks_of(chunk, Profile::UNIXFS_V1_2025) };
        check(&profile, &bytes);
    }
}
