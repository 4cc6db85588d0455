//! Packed files in the RocksDB store: slices, their bases, and the pins that have both. `kill -9` and power loss are
//! tested in [`super::crash`] and [`super::power`].

use super::audit::{audit, audit_lacking};
use super::rebuild::tamper;
use super::{Random, block_of, cache, flip, key, noisy, open, open_with, supply};
use crate::disk::faults::{Call, Fault};
use crate::disk::schema::{Counters, INDEX, KEY_COUNTERS, META, PLACES, SCHEMA, SCHEMA_UNPACKED, SEGMENTS};
use crate::flat::{self, FlatOptions};
use crate::memory::{self, MemoryOptions};
use crate::pin_journal::{self, PinJournal};
use crate::{AddError, Addition, BlockStore, Disk, DiskOptions, Evict, Held, Offline, PinState, PinSummary};
use content::importer::{Attributes, BlockSink, Chunking, File, Importer, Packer, Packing, Profile, SinkError};
use content::packed::packed_cid;
use content::stored::{CompressionOptions, Shape, Slice};
use content::{Block, BlockKey, BlockSource as _, Cid, SourceError, codec, hashes};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a store is given of a packed file, in order.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "a few of them, in tests")]
enum Item {
    Block(Block),
    Leaf(Block, Slice),
}

/// A packed file.
#[derive(Debug, Clone)]
pub(super) struct PackedFile {
    pub(super) root: Cid,
    pub(super) zstd_file: Cid,
    items: Vec<Item>,
}

#[derive(Default)]
struct Items {
    items: Vec<Item>,
    leaves: Vec<Block>,
}

impl BlockSink for Items {
    fn put(&mut self, block: Block) -> Result<(), SinkError> {
        self.items.push(Item::Block(block));
        Ok(())
    }

    fn put_slice(&mut self, leaf: &Cid, slice: Slice) -> Result<(), SinkError> {
        let leaf = self.leaves.iter().find(|block| block.cid() == leaf).ok_or("an unknown leaf")?;
        self.items.push(Item::Leaf(leaf.clone(), slice));
        Ok(())
    }
}

/// A packed file of text, in chunks of 4,000 bytes; every second one has dag-pb leaves.
pub(super) fn file(seed: u64, bytes: usize) -> PackedFile {
    let (mut random, mut text) = (Random(seed), String::new());
    while text.len() < bytes {
        let word = random.below(900);
        text += &format!("{:x} ", word * word * 2_654_435_761);
    }
    let profile = Profile {
        chunking: Chunking::size(4_000).expect("a size"),
        raw_leaves: seed.is_multiple_of(2),
        ..Profile::UNIXFS_V1_2025
    };
    let packing = Packing::new(&profile, CompressionOptions::default()).expect("small chunks");
    let File { mut chunker, leaves, mut layout } =
        Importer::new(profile).expect("a profile").file(Attributes::default());
    let (mut sink, mut packer) = (Items::default(), Packer::new().expect("a packer"));
    let mut rest = &text.as_bytes()[..bytes];
    let mut chunks: Vec<_> = std::iter::from_fn(|| chunker.push(&mut rest)).collect();
    chunks.extend(chunker.finish());
    for chunk in chunks {
        let (part, leaf) = leaves.leaf(chunk).expect("small");
        sink.leaves.push(leaf.clone());
        packer.push(packing.pack(leaf, part.file_bytes).expect("compresses"), &mut sink).expect("is taken");
        layout.push(part, &mut sink).expect("is taken");
    }
    let zstd_file = packer.finish(&mut sink).expect("is taken").expect("text shrinks").zstd_file.cid;
    let root = layout.finish(&mut sink).expect("is taken").cid;
    PackedFile { root, zstd_file, items: sink.items }
}

impl PackedFile {
    /// Every block, the root of the plain file first.
    pub(super) fn blocks(&self) -> Vec<Block> {
        let block = |item: &Item| match item {
            Item::Block(block) | Item::Leaf(block, _) => block.clone(),
        };
        let mut seen = HashSet::new();
        let (root, others): (Vec<_>, Vec<_>) = self
            .items
            .iter()
            .map(block)
            .filter(|block| seen.insert(*block.cid()))
            .partition(|block| *block.cid() == self.root);
        [root, others].concat()
    }

    fn leaves(&self) -> Vec<(Block, Slice)> {
        let leaf = |item: &Item| match item {
            Item::Leaf(block, slice) => Some((block.clone(), slice.clone())),
            Item::Block(_) => None,
        };
        self.items.iter().filter_map(leaf).collect()
    }

    /// The blocks of the plain file, its root last.
    fn plain_blocks(&self) -> Vec<Block> {
        let blocks = self.blocks();
        let leaves = self.leaves().into_iter().map(|(leaf, _)| leaf);
        leaves.chain(blocks.into_iter().filter(|block| *block.cid() == self.root)).collect()
    }

    /// The block with the frame of a leaf.
    fn base(&self, leaf: usize) -> Block {
        let base = self.leaves()[leaf].1.base;
        self.blocks().into_iter().find(|block| key(block) == base).expect("is among them")
    }

    pub(super) async fn add(&self, store: &dyn BlockStore) -> Result<PinSummary, AddError> {
        let mut addition = Addition::begin(store).await?;
        for item in &self.items {
            match item {
                Item::Block(block) => addition.put(block).await?,
                Item::Leaf(block, slice) => addition.put_slice(block.cid(), slice.clone()).await?,
            }
        }
        addition.set_packed(self.root, self.zstd_file);
        Ok(addition.pin(&[self.root], None).await?.remove(0))
    }

    pub(super) fn zstd_key(&self) -> BlockKey {
        BlockKey::of(&self.zstd_file).expect("not inline")
    }
}

/// Checks that a store has all of a packed file, whichever way it is read.
async fn assert_held(disk: &Disk, file: &PackedFile) {
    assert_eq!(disk.plain_file(&file.zstd_key()), Some(file.root));
    assert_eq!(BlockStore::zstd_file(disk, &file.root), Some(file.zstd_file));
    let pin = disk.pin(&file.root).await.expect("reads").expect("is pinned");
    assert_eq!((pin.state, pin.packed), (PinState::Complete, Some(file.zstd_file)));
    for block in file.blocks() {
        assert_reads(disk, &block).await;
    }
}

async fn assert_reads(disk: &Disk, block: &Block) {
    assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
    assert_eq!(disk.has(block.cid()).await, Ok(true));
    let looked = disk.look(&key(block)).await.expect("reads");
    assert_eq!(looked.as_ref(), Some(block.data()));
    let stored = disk.stored(&key(block)).await.expect("reads").expect("is stored");
    assert_eq!(stored.block().as_ref(), Ok(block.data()));
    let shape = disk.shapes(vec![key(block)]).await.expect("reads").remove(0).expect("is stored");
    assert_eq!(shape, stored.shape());
    assert!(disk.read_now(block.cid()).is_none_or(|now| now == *block));
}

async fn is_missing(disk: &Disk, block: &Block) -> bool {
    let got = disk.get(block.cid()).await;
    let is_missing = matches!(got, Err(SourceError::NotFound { .. }));
    assert_eq!(disk.has(block.cid()).await, Ok(!is_missing));
    assert_eq!(disk.shapes(vec![key(block)]).await.expect("reads")[0].is_none(), is_missing);
    is_missing
}

fn small() -> DiskOptions {
    DiskOptions { segment_bytes_max: 60_000, ..DiskOptions::default() }
}

#[tokio::test]
async fn a_packed_file_is_stored_once_and_read_as_both() {
    for seed in [1, 2] {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = open(dir.path());
        let file = file(seed, 400_000);
        for _ in 0..2 {
            let pin = file.add(&disk).await.expect("adds");
            assert_eq!((pin.root, pin.blocks), (file.root, file.blocks().len() as u64));
            disk.flush().await.expect("flushes");
            audit(&disk);
            assert_held(&disk, &file).await;
        }
        let figures = disk.figures().await.expect("reads");
        let frames: usize = (0..file.leaves().len()).map(|leaf| file.base(leaf).data().len()).sum();
        let most = frames as u64 + 100 * figures.pinned.blocks + 20_000;
        assert!(figures.pinned.stored_bytes < most, "{figures:?}");
        assert!(file.leaves().iter().all(|(_, slice)| !matches!(slice.shape(), Shape::Raw { .. })));
        let mut roots = HashSet::new();
        disk.visit_keys(Held::Roots, &mut |key| _ = roots.insert(key.to_vec())).expect("reads");
        assert_eq!(roots, [file.root, file.zstd_file].map(|cid| cid.hash().to_bytes()).into());
        let report = disk.scrub_all(None, |_, _| ()).await.expect("reads");
        assert!(report.progress.is_clean() && report.lacking.is_empty(), "{report:?}");
        disk.close().await.expect("closes");
        drop(disk);
        let disk = open(dir.path());
        assert_held(&disk, &file).await;
        audit(&disk);
    }
}

#[tokio::test]
async fn one_pin_has_both_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let (file, other) = (file(1, 100_000), file(3, 60_000));
    file.add(&disk).await.expect("adds");
    other.add(&disk).await.expect("adds");
    assert!(disk.remove_pin(&file.root).await.expect("removes"));
    assert_eq!(disk.plain_file(&file.zstd_key()), None);
    disk.flush().await.expect("flushes");
    audit(&disk);
    for block in file.blocks() {
        assert!(is_missing(&disk, &block).await);
    }
    assert_held(&disk, &other).await;
    assert_eq!(disk.stats().blocks, other.blocks().len() as u64);
    drop(disk);
    let disk = open(dir.path());
    assert_eq!(disk.plain_file(&file.zstd_key()), None);
    assert_held(&disk, &other).await;
}

/// Whether the other pin is made from blocks or from what is stored.
#[tokio::test]
async fn another_pin_of_the_leaves_has_their_frames() {
    for by_reference in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = open(dir.path());
        let file = file(2, 100_000);
        file.add(&disk).await.expect("adds");
        let other = noisy(1, 500);
        if by_reference {
            let attempt = disk.begin_pin(*other.cid(), None).await.expect("begins");
            disk.put_member(&other, &attempt).await.expect("is taken");
            for block in file.plain_blocks() {
                disk.put_held_member(*block.cid(), &attempt).await.expect("is taken");
            }
            disk.finish_pin(attempt).await.expect("pins");
        } else {
            let blocks = [vec![other.clone()], file.plain_blocks()].concat();
            disk.pin_recursive(*other.cid(), None, supply(&blocks)).await.expect("pins");
        }
        assert!(disk.remove_pin(&file.root).await.expect("removes"));
        disk.flush().await.expect("flushes");
        audit(&disk);
        assert_eq!(disk.plain_file(&file.zstd_key()), None);
        for block in file.plain_blocks() {
            assert_reads(&disk, &block).await;
        }
        let zstd_root = file.blocks().into_iter().find(|block| *block.cid() == file.zstd_file).expect("is there");
        assert!(is_missing(&disk, &zstd_root).await, "only the frames are needed");
    }
}

/// A pin of a directory with the plain file, which a rebuild finds by its links.
#[tokio::test]
async fn a_rebuilt_pin_of_a_plain_file_has_its_frames() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let file = file(2, 100_000);
    file.add(&disk).await.expect("adds");
    let above = super::import::node(&[&file.plain_blocks().pop().expect("a root")]);
    let blocks = [vec![above.clone()], file.plain_blocks()].concat();
    disk.pin_recursive(*above.cid(), None, supply(&blocks)).await.expect("pins");
    let before = disk.pin(above.cid()).await.expect("reads").expect("is pinned");
    drop(disk);
    fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
    let disk = open(dir.path());
    assert_eq!(disk.pin(above.cid()).await.expect("reads"), Some(before));
    assert_held(&disk, &file).await;
    assert!(disk.remove_pin(&file.root).await.expect("removes"));
    disk.flush().await.expect("flushes");
    audit(&disk);
    for block in file.plain_blocks() {
        assert_reads(&disk, &block).await;
    }
}

#[tokio::test]
async fn leaves_that_are_pinned_already_stay_as_they_are_and_cached_ones_are_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let (pinned, cached) = (file(2, 60_000), file(4, 60_000));
    let blocks = pinned.plain_blocks();
    disk.pin_recursive(pinned.root, None, supply(&blocks)).await.expect("pins");
    cache(&disk, &cached.blocks()).await;
    for file in [&pinned, &cached] {
        file.add(&disk).await.expect("adds");
        assert_held(&disk, file).await;
        let is_slice = |block: &Block| {
            let record = disk.store().index(&key(block).to_bytes()).expect("reads").expect("is stored");
            assert!(record.pinned());
            record.base.is_some()
        };
        assert!(file.leaves().iter().all(|(leaf, _)| is_slice(leaf) == (file.root == cached.root)));
    }
    disk.flush().await.expect("flushes");
    audit(&disk);
    assert!(disk.remove_pin(&pinned.root).await.expect("removes"));
    assert!(disk.remove_pin(&cached.root).await.expect("removes"));
    disk.flush().await.expect("flushes");
    audit(&disk);
    assert_eq!((disk.stats().blocks, disk.stats().pinned_bytes), (0, 0));
}

/// However the frame is lost: found corrupt by a read or by a scrub, or taken down.
#[tokio::test]
async fn a_leaf_whose_frame_is_lost_is_missing_until_the_frame_is_back() {
    for how in ["read", "scrub", "take-down"] {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = open(dir.path());
        let file = file(2, 100_000);
        file.add(&disk).await.expect("adds");
        let (leaf, base) = (file.leaves()[3].0.clone(), file.base(3));
        match how {
            "take-down" => {
                disk.evict(vec![key(&base)], Evict::Everything).await.expect("evicts");
            }
            _ => flip(&disk, &base),
        }
        if how == "scrub" {
            let report = disk.scrub_all(None, |_, _| ()).await.expect("reads");
            assert_eq!(report.lacking.len(), 1);
        } else {
            assert!(disk.get(leaf.cid()).await.is_err(), "{how}");
            disk.flush().await.expect("flushes");
        }
        assert!(is_missing(&disk, &leaf).await && is_missing(&disk, &base).await, "{how}");
        audit_lacking(&disk, 1);
        let pin = disk.pin(&file.root).await.expect("reads").expect("is pinned");
        assert_eq!((pin.state, pin.packed), (PinState::Partial, Some(file.zstd_file)), "{how}");
        assert_eq!(disk.missing(&file.root).await.expect("reads").blocks, 2, "{how}: the leaf and its frame");
        let offline = |dir: &Path| {
            let report = Offline::open(dir, &DiskOptions::default()).expect("opens").check(&|_| false, |_, _| ());
            report.expect("reads").lacking[0].missing
        };
        drop(disk);
        assert_eq!(offline(dir.path()), 2, "{how}");
        let disk = open(dir.path());
        // A cached frame is a member again, and the leaf can be read.
        cache(&disk, std::slice::from_ref(&base)).await;
        assert_reads(&disk, &leaf).await;
        audit(&disk);
        let visited = file.blocks();
        let pin = disk.pin_recursive(file.root, None, supply(&visited)).await.expect("pins");
        assert_eq!(pin.state, PinState::Complete);
        assert_held(&disk, &file).await;
    }
}

#[tokio::test]
async fn a_leaf_that_arrives_without_its_frame_is_stored_plain() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let file = file(2, 100_000);
    file.add(&disk).await.expect("adds");
    let (leaf, base) = (file.leaves()[3].0.clone(), file.base(3));
    disk.evict(vec![key(&base)], Evict::Everything).await.expect("evicts");
    let refused = disk.begin_pin(file.root, None).await.expect("begins");
    disk.put_held_member(*leaf.cid(), &refused).await.expect("is queued");
    assert!(disk.finish_pin(refused).await.is_err(), "it is missing");
    cache(&disk, std::slice::from_ref(&leaf)).await;
    assert_reads(&disk, &leaf).await;
    assert!(is_missing(&disk, &base).await);
    audit_lacking(&disk, 1);
}

/// What is read without being hashed is what was added; a scrub finds a slice that gives other bytes.
#[tokio::test]
async fn a_slice_of_other_bytes_is_not_held_and_the_zstd_file_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let mut file = file(2, 100_000);
    let [first, second] = [0, 1].map(|leaf| file.leaves()[leaf].1.clone());
    for item in &mut file.items {
        match item {
            Item::Leaf(_, slice) if *slice == second => *slice = first.clone(),
            _ => {}
        }
    }
    let wrong = file.leaves()[1].0.clone();
    file.add(&disk).await.expect("is not hashed again");
    assert_eq!(disk.look(&key(&wrong)).await.expect("reads"), None);
    let report = disk.scrub_all(None, |_, _| ()).await.expect("reads");
    assert_eq!(report.lacking.len(), 1);
    disk.flush().await.expect("flushes");
    assert!(is_missing(&disk, &wrong).await);
    for block in file.blocks().iter().filter(|block| *block != &wrong) {
        assert_reads(&disk, block).await;
    }
    // A slice that does not even fit its base is found by a read.
    let too_long = Slice { frame_bytes: first.frame_bytes + 1, ..first };
    let attempt = disk.begin_temporary_pin().await.expect("begins");
    disk.put_slice(wrong.cid(), too_long, &attempt).await.expect("is queued");
    disk.written().await.expect("writes");
    assert!(disk.get(wrong.cid()).await.is_err());
    disk.flush().await.expect("flushes");
    assert!(is_missing(&disk, &wrong).await);
}

#[tokio::test]
async fn slices_need_a_stored_base_that_is_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let file = file(2, 20_000);
    let (leaf, slice) = file.leaves()[0].clone();
    let attempt = disk.begin_temporary_pin().await.expect("begins");
    disk.put_slice(leaf.cid(), slice.clone(), &attempt).await.expect("is queued");
    disk.written().await.expect("writes");
    assert!(disk.put_member(&leaf, &attempt).await.is_err(), "its base is missing");
    file.add(&disk).await.expect("adds");
    let attempt = disk.begin_temporary_pin().await.expect("begins");
    let of_slice = Slice { base: key(&leaf), ..slice };
    disk.put_slice(noisy(1, 10).cid(), of_slice, &attempt).await.expect("is queued");
    disk.written().await.expect("writes");
    assert!(disk.put_member(&leaf, &attempt).await.is_err(), "a slice is no base");
    assert!(is_missing(&disk, &noisy(1, 10)).await);
}

#[tokio::test]
async fn the_pin_needs_the_root_of_the_zstd_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let block = noisy(1, 100);
    let attempt = disk.begin_pin(*block.cid(), None).await.expect("begins");
    attempt.set_packed(*noisy(2, 100).cid());
    disk.put_member(&block, &attempt).await.expect("is taken");
    assert!(disk.finish_pin(attempt).await.is_err());
    assert_eq!(disk.plain_file(&key(&noisy(2, 100))), None);
}

#[tokio::test]
async fn stores_without_slices_refuse_packed_files_and_say_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let flat = flat::open(dir.path(), &FlatOptions::default()).expect("opens");
    let memory = memory::open(&MemoryOptions::default()).expect("opens");
    for store in [flat, memory] {
        assert!(!store.takes_slices());
        let error = file(1, 20_000).add(&*store).await.expect_err("is refused").to_string();
        assert!(error.contains("cache.store"), "{error}");
        store.flush().await.expect("flushes");
        assert_eq!(store.pins().await.expect("lists").len(), 0);
    }
}

#[tokio::test]
async fn moved_and_recompressed_stores_have_their_packed_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), small()).expect("opens");
    let files: Vec<_> = (1..9).map(|seed| file(seed, 60_000)).collect();
    for (number, file) in files.iter().enumerate() {
        file.add(&disk).await.expect("adds");
        let other = noisy(number as u64, 40_000);
        disk.pin_recursive(*other.cid(), None, supply(&[other])).await.expect("pins");
    }
    for number in 0..8 {
        assert!(disk.remove_pin(noisy(number, 40_000).cid()).await.expect("removes"));
    }
    assert!(disk.remove_pin(&files[2].root).await.expect("removes"));
    disk.compact().await.expect("compacts");
    disk.recompress_pinned(19, None).await.expect("recompresses");
    disk.compact().await.expect("compacts");
    audit(&disk);
    for (number, file) in files.iter().enumerate().filter(|(number, _)| *number != 2) {
        assert_held(&disk, file).await;
        let is_slice = |(leaf, _): &(Block, Slice)| {
            disk.store().index(&key(leaf).to_bytes()).expect("reads").is_some_and(|record| record.base.is_some())
        };
        assert!(file.leaves().iter().all(is_slice), "{number}");
    }
    // The bases were moved behind the slices, or before them.
    drop(disk);
    fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
    let disk = open_with(dir.path(), small()).expect("opens");
    assert_eq!(disk.stats().index_rebuilds, 1);
    for file in files.iter().filter(|file| file.root != files[2].root) {
        assert_held(&disk, file).await;
    }
    disk.flush().await.expect("flushes");
    audit(&disk);
}

#[tokio::test]
async fn a_lost_index_or_journal_loses_no_packed_file() {
    for lost in ["index", "journal", "journal, then index"] {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = open_with(dir.path(), small()).expect("opens");
        let files = [file(1, 100_000), file(2, 100_000)];
        for file in &files {
            file.add(&disk).await.expect("adds");
        }
        disk.close().await.expect("closes");
        drop(disk);
        for part in lost.split(", then ") {
            let name = if part == "index" { "CURRENT" } else { pin_journal::NAME };
            fs::remove_file(dir.path().join(name)).expect("deletes");
            let disk = open_with(dir.path(), small()).expect("opens");
            assert_eq!(disk.stats().index_rebuilds, u64::from(part == "index"), "{lost}");
            for file in &files {
                assert_held(&disk, file).await;
            }
            disk.flush().await.expect("flushes");
            audit(&disk);
        }
    }
}

#[tokio::test]
async fn without_index_and_journal_slices_stay_until_they_are_released() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), small()).expect("opens");
    let file = file(2, 100_000);
    file.add(&disk).await.expect("adds");
    disk.close().await.expect("closes");
    drop(disk);
    fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
    fs::remove_file(dir.path().join(pin_journal::NAME)).expect("deletes");
    let disk = open_with(dir.path(), small()).expect("opens");
    for block in file.blocks() {
        assert_reads(&disk, &block).await;
    }
    assert_eq!(disk.plain_file(&file.zstd_key()), None, "the pin had the mapping");
    // Adding it again stores no block.
    let before = disk.stats().blocks;
    file.add(&disk).await.expect("adds");
    assert_eq!(disk.stats().blocks, before);
    assert_held(&disk, &file).await;
    drop(disk);
    let offline = Offline::open(dir.path(), &small()).expect("opens");
    offline.release_unclaimed().expect("writes");
    drop(offline);
    let disk = open_with(dir.path(), small()).expect("opens");
    disk.flush().await.expect("flushes");
    assert_held(&disk, &file).await;
    audit(&disk);
}

/// A slice in a segment whose rows the index lost.
#[tokio::test]
async fn slices_in_a_segment_that_the_index_lost_are_adopted() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let file = file(2, 60_000);
    file.add(&disk).await.expect("adds");
    disk.flush().await.expect("flushes");
    let blocks = file.blocks();
    let family = |name| disk.store().family(name).expect("there");
    let places: Vec<_> = blocks.iter().map(|block| super::place_of(&disk, block)).collect();
    tamper(&disk, |batch| {
        for (block, place) in blocks.iter().zip(&places) {
            batch.delete_cf(family(INDEX), key(block).to_bytes());
            batch.delete_cf(family(PLACES), place.to_key());
            batch.delete_cf(family(SEGMENTS), place.segment.to_be_bytes());
        }
        let counters = Counters { segment: 1, ..disk.store().counters().expect("reads") };
        batch.put_cf(family(META), KEY_COUNTERS, counters.to_bytes());
    });
    // The writer must not overwrite these changes.
    disk.store().files.faults.refuse(Call::Batch, Errno::IO);
    drop(disk);
    let disk = open(dir.path());
    assert_eq!(disk.stats().index_rebuilds, 0);
    assert_held(&disk, &file).await;
    disk.flush().await.expect("flushes");
    audit(&disk);
}

/// A record within the content of a block that looks like a slice of another block, found because the head of the outer
/// record is damaged.
#[tokio::test]
async fn a_forged_slice_is_not_rebuilt() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let file = file(2, 60_000);
    let (_, slice) = file.leaves()[0].clone();
    let victim = noisy(5, 2_000);
    let value = [slice.to_value().expect("small"), bytes::Bytes::new()];
    let head = crate::disk::record::head(&key(&victim).to_bytes(), &value).expect("small");
    let outer = block_of(codec::RAW, [&head[..], &value[0], noisy(6, 3_000).data()].concat());
    file.add(&disk).await.expect("adds");
    disk.pin_recursive(*victim.cid(), None, supply(std::slice::from_ref(&victim))).await.expect("pins");
    disk.pin_recursive(*outer.cid(), None, supply(std::slice::from_ref(&outer))).await.expect("pins");
    super::overwrite(&disk, super::place_of(&disk, &outer), 0, &[0]);
    disk.close().await.expect("closes");
    drop(disk);
    fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
    let disk = open(dir.path());
    assert_eq!(disk.stats().index_rebuilds, 1);
    assert_reads(&disk, &victim).await;
    assert!(is_missing(&disk, &outer).await);
    assert_held(&disk, &file).await;
}

#[tokio::test]
async fn the_first_packed_file_raises_the_schema_version() {
    let dir = tempfile::tempdir().expect("a directory");
    let journal = || PinJournal::read(dir.path()).expect("reads").schema;
    let disk = open(dir.path());
    let other = noisy(1, 100);
    disk.pin_recursive(*other.cid(), None, supply(&[other])).await.expect("pins");
    assert_eq!(disk.store().schema(), SCHEMA_UNPACKED);
    file(1, 20_000).add(&disk).await.expect("adds");
    assert_eq!((disk.store().schema(), journal()), (SCHEMA, Some(SCHEMA)));
    drop(disk);
    for _ in 0..2 {
        let disk = open(dir.path());
        assert_eq!((disk.store().schema(), journal()), (SCHEMA, Some(SCHEMA)));
        drop(disk);
        fs::remove_file(dir.path().join("CURRENT")).expect("deletes");
    }
}

/// Fails every file system call of an addition in turn. Whatever fails, the store is consistent, and the same addition
/// succeeds afterwards.
#[tokio::test]
async fn an_addition_survives_every_failing_call() {
    let file = file(2, 30_000);
    let mut failing = 0;
    loop {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = open_with(dir.path(), small()).expect("opens");
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        disk.store().files.faults.plan(move |call| {
            let number = counted.fetch_add(usize::from(call != Call::Read), Ordering::Relaxed);
            (call != Call::Read && number == failing).then_some(Fault::Refused(Errno::IO))
        });
        let added = file.add(&disk).await;
        disk.store().files.faults.clear();
        if added.is_ok() {
            assert_held(&disk, &file).await;
        }
        drop(disk);
        let disk = open_with(dir.path(), small()).expect("opens");
        if added.is_ok() {
            assert_held(&disk, &file).await;
        }
        file.add(&disk).await.expect("adds");
        disk.flush().await.expect("flushes");
        assert_held(&disk, &file).await;
        audit(&disk);
        if calls.load(Ordering::Relaxed) <= failing {
            break;
        }
        failing += 1;
    }
    assert!(failing > 5, "{failing} calls");
}

#[test]
fn a_packed_cid_has_the_key_of_the_zstd_file() {
    let file = file(1, 20_000);
    let packed = packed_cid(&file.zstd_file);
    assert_eq!(content::packed::zstd_file_of(&packed), Some(file.zstd_key()));
    assert_eq!(packed.hash().code(), hashes::SHA2_256);
}
