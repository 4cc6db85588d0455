use super::audit::audit;
use super::rebuild::tamper;
use super::{cache, flip, forge, key, noisy, open, place_of, raw, supply};
use crate::disk::faults::Call;
use crate::disk::schema::{INDEX, KEY_COUNTERS, KEY_SYNCED, Kind, META, PLACES, Place, SEGMENTS, SegmentRecord};
use crate::reports::raw_cid;
use crate::{
    BlockStore as _, CheckReport, Disk, DiskOptions, Evict, Fault, Finding, Inconsistencies, Offline, PinState,
    StoreError,
};
use content::{Block, BlockKey, BlockSource};
use rocksdb::WriteBatch;
use rustix::io::Errno;
use std::path::Path;

fn offline(dir: &Path) -> Offline {
    Offline::open(dir, &DiskOptions::default()).expect("opens")
}

fn check(dir: &Path) -> (CheckReport, Vec<Finding>) {
    let mut found = Vec::new();
    let report = offline(dir).check(&|_| false, |_, findings| found.extend_from_slice(findings)).expect("reads");
    (report, found)
}

/// Ten pinned blocks and ten cached ones.
async fn filled(dir: &Path) -> (Disk, Vec<Block>) {
    let disk = open(dir);
    let blocks: Vec<_> = (0..20).map(|seed| noisy(seed, 3_000)).collect();
    disk.pin_recursive(*blocks[0].cid(), Some("ten".to_owned()), supply(&blocks[..10])).await.expect("pins");
    cache(&disk, &blocks).await;
    (disk, blocks)
}

async fn is_stored(disk: &Disk, block: &Block) -> bool {
    disk.get(block.cid()).await.is_ok_and(|got| got.data() == block.data())
}

#[tokio::test]
async fn missing_stores_and_stores_in_use_are_not_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    let open_offline = || Offline::open(dir.path(), &DiskOptions::default());
    assert!(matches!(open_offline(), Err(StoreError::Missing { .. })));
    assert_eq!(std::fs::read_dir(dir.path()).expect("reads").count(), 0, "nothing was made");
    let disk = open(dir.path());
    assert!(matches!(open_offline(), Err(StoreError::InUse { .. })));
    drop(disk);
    assert!(open_offline().expect("opens").check(&|_| false, |_, _| ()).expect("reads").is_clean());
}

/// A store whose only missing blocks are withheld is clean, and needs no repair.
#[tokio::test]
async fn withheld_blocks_are_not_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let (disk, blocks) = filled(dir.path()).await;
    let withheld = key(&blocks[4]);
    disk.handle().evict(vec![withheld], Evict::Everything).await.expect("evicts");
    drop(disk);
    let is_withheld = |key: &BlockKey| *key == withheld;
    let report = offline(dir.path()).check(&is_withheld, |_, _| ()).expect("reads");
    assert!(report.is_clean() && !check(dir.path()).0.is_clean(), "{report:?}");
    assert_eq!((report.lacking[0].missing, report.lacking[0].withheld), (1, 1));
    let repaired = Offline::repair(dir.path(), &DiskOptions::default(), &is_withheld, &mut |_| ()).expect("repairs");
    assert!(repaired.rebuilt.is_none(), "{repaired:?}");
}

#[tokio::test]
async fn figures_come_from_the_index() {
    let dir = tempfile::tempdir().expect("a directory");
    let (disk, blocks) = filled(dir.path()).await;
    cache(&disk, &[raw(b"words that shrink ".repeat(1_000))]).await;
    disk.pin_recursive(*blocks[15].cid(), None, supply(&blocks[15..16])).await.expect("pins");
    drop(disk);
    let figures = offline(dir.path()).figures().expect("reads");
    assert_eq!((figures.cached.blocks, figures.pinned.blocks), (10, 11));
    assert_eq!((figures.raw.blocks, figures.framed.blocks, figures.enveloped.blocks), (20, 1, 0));
    assert_eq!((figures.raw.block_bytes, figures.raw.stored_bytes), (20 * 3_000, 20 * 3_005));
    assert_eq!(figures.framed.block_bytes, 18_000);
    assert!(figures.framed.stored_bytes < 1_000);
    assert_eq!(figures.all().blocks, 21);
    // The value that was pinned later is dead in the cached segment.
    assert_eq!((figures.cached_segments.dead_bytes, figures.pinned_segments.dead_bytes), (10 + 34 + 3_005, 0));
    assert_eq!((figures.pins, figures.partial_pins), (2, 0));
}

#[tokio::test]
async fn a_check_marks_corrupt_blocks_for_the_writer() {
    let dir = tempfile::tempdir().expect("a directory");
    let (disk, blocks) = filled(dir.path()).await;
    drop(disk);
    assert!(check(dir.path()).0.is_clean());
    let disk = open(dir.path());
    flip(&disk, &blocks[3]);
    forge(&disk, &blocks[13]);
    let stale = place_of(&disk, &blocks[14]).to_key();
    tamper(&disk, |batch| batch.delete_cf(disk.store().family(PLACES).expect("there"), stale));
    drop(disk);
    let expected = [&blocks[3], &blocks[13]].map(|block| Finding { cid: raw_cid(&key(block)), fault: Fault::Damaged });
    for _ in 0..2 {
        let (report, found) = check(dir.path());
        assert!(found.len() == 2 && expected.iter().all(|finding| found.contains(finding)), "{found:?}");
        assert_eq!((report.progress.blocks, report.progress.damaged), (19, 2));
        assert_eq!(report.index, Inconsistencies { places: 1, ..Inconsistencies::default() });
        let [pin] = &*report.lacking else { panic!("{:?}", report.lacking) };
        assert_eq!((pin.root, pin.missing, pin.blocks), (*blocks[0].cid(), 1, 10));
    }
    // The pin is partial before the writer runs, which then deletes the marked blocks.
    let looked = offline(dir.path());
    assert_eq!(looked.noted().expect("reads").len(), 2);
    assert_eq!(looked.figures().expect("reads").partial_pins, 1);
    drop(looked);
    assert_eq!(open(dir.path()).stats().blocks, 18);
    let looked = offline(dir.path());
    assert!(looked.noted().expect("reads").is_empty());
}

/// A change of rows of the index.
type Mishap = fn(&Disk, &[Block], &mut WriteBatch);

#[tokio::test]
async fn the_index_is_repaired_whatever_row_is_lost_or_wrong() {
    let lost_or_wrong: [(&str, Mishap); 7] = [
        ("places are lost", |disk, blocks, batch| {
            let family = disk.store().family(PLACES).expect("there");
            blocks.iter().for_each(|block| batch.delete_cf(family, place_of(disk, block).to_key()));
        }),
        ("a place is another block's", |disk, blocks, batch| {
            let family = disk.store().family(PLACES).expect("there");
            batch.put_cf(family, place_of(disk, &blocks[2]).to_key(), key(&blocks[12]).to_bytes());
        }),
        ("a place of no block", |disk, blocks, batch| {
            let mut place = place_of(disk, &blocks[2]);
            place.offset += 1;
            batch.put_cf(disk.store().family(PLACES).expect("there"), place.to_key(), b"no block");
        }),
        ("segments are lost", |disk, _, batch| {
            let family = disk.store().family(SEGMENTS).expect("there");
            for (segment, _) in disk.store().segments().expect("reads") {
                batch.delete_cf(family, segment.to_be_bytes());
            }
        }),
        ("segments have wrong counts", |disk, _, batch| {
            let family = disk.store().family(SEGMENTS).expect("there");
            for (segment, mut record) in disk.store().segments().expect("reads") {
                record.live -= 1;
                record.blocks += 1;
                record.written = 7;
                batch.put_cf(family, segment.to_be_bytes(), record.to_bytes());
            }
        }),
        ("a segment is malformed, another is empty", |disk, _, batch| {
            let family = disk.store().family(SEGMENTS).expect("there");
            batch.put_cf(family, 1_u32.to_be_bytes(), b"?");
            batch.put_cf(family, 99_u32.to_be_bytes(), SegmentRecord::new(Kind::Pinned).to_bytes());
        }),
        ("the next IDs are lost", |disk, _, batch| {
            batch.delete_cf(disk.store().family(META).expect("there"), KEY_COUNTERS);
        }),
    ];
    for (what, change) in lost_or_wrong {
        let dir = tempfile::tempdir().expect("a directory");
        let (disk, blocks) = filled(dir.path()).await;
        tamper(&disk, |batch| change(&disk, &blocks, batch));
        disk.store().files.write(77, 0, b"no row refers to this", false).expect("writes");
        drop(disk);
        let (seen, found) = check(dir.path());
        assert!(seen.index.total() >= 2 && found.is_empty(), "{what}: {seen:?} {found:?}");
        let store = offline(dir.path());
        let repaired = store.repair_index().expect("repairs");
        assert_eq!(repaired.blocks, 0, "{what}");
        assert_eq!(repaired.files, 1, "{what}");
        assert_eq!(store.repair_index().expect("repairs"), Inconsistencies::default(), "{what}: one repair is enough");
        drop(store);
        let disk = open(dir.path());
        disk.flush().await.expect("flushes");
        audit(&disk);
        for block in &blocks {
            assert!(is_stored(&disk, block).await, "{what}");
        }
        let more = noisy(1_000, 3_000);
        let pin = disk.pin_recursive(*more.cid(), None, supply(std::slice::from_ref(&more))).await.expect("pins");
        assert_eq!(pin.state, PinState::Complete);
        assert!(disk.pins().await.expect("reads").iter().all(|other| other.root == pin.root || other.id < pin.id));
        audit(&disk);
        drop(disk);
        assert!(check(dir.path()).0.is_clean(), "{what}");
    }
}

/// A value before the synced place would not be verified after power loss.
#[tokio::test]
async fn new_segments_follow_the_synced_place() {
    for (offset, least) in [(0, 50), (7, 51)] {
        let dir = tempfile::tempdir().expect("a directory");
        let (disk, _) = filled(dir.path()).await;
        let meta = disk.store().family(META).expect("there");
        tamper(&disk, |batch| {
            batch.put_cf(meta, KEY_SYNCED, Place { segment: 50, offset }.to_key());
            batch.delete_cf(meta, KEY_COUNTERS);
        });
        // No write updates the synced place any more.
        disk.store().files.faults.refuse(Call::Batch, Errno::IO);
        drop(disk);
        let store = offline(dir.path());
        store.repair_index().expect("repairs");
        drop(store);
        assert_eq!(open(dir.path()).store().counters().expect("reads").segment, least);
    }
}

#[tokio::test]
async fn two_blocks_never_share_a_place() {
    for (right, wrong) in [(2, 3), (3, 2), (12, 2), (2, 12), (13, 12), (12, 13)] {
        let dir = tempfile::tempdir().expect("a directory");
        let (disk, blocks) = filled(dir.path()).await;
        let (right, wrong) = (&blocks[right], &blocks[wrong]);
        let (index, places) = (disk.store().family(INDEX).expect("there"), disk.store().family(PLACES).expect("there"));
        let [taken, left] = [right, wrong].map(|block| place_of(&disk, block));
        let mut record = disk.store().index(&key(wrong).to_bytes()).expect("reads").expect("it is held");
        record.place = taken;
        tamper(&disk, |batch| {
            batch.put_cf(index, key(wrong).to_bytes(), record.to_bytes());
            batch.delete_cf(places, left.to_key());
            batch.put_cf(places, taken.to_key(), key(wrong).to_bytes());
        });
        drop(disk);
        let store = offline(dir.path());
        assert_eq!(store.repair_index().expect("repairs").blocks, 1);
        drop(store);
        let disk = open(dir.path());
        assert!(is_stored(&disk, right).await && !is_stored(&disk, wrong).await);
        assert_eq!(disk.stats().blocks, 19);
        let lacking = disk.scrub(None, |_, _| ()).await.expect("scrubs").lacking;
        assert_eq!(lacking.len(), usize::from(wrong.cid() == blocks[2].cid() || wrong.cid() == blocks[3].cid()));
        cache(&disk, std::slice::from_ref(wrong)).await;
        assert!(is_stored(&disk, wrong).await);
        drop(disk);
        assert!(check(dir.path()).0.is_clean());
    }
}

#[tokio::test]
async fn a_segment_with_blocks_but_without_a_record_is_not_deleted() {
    let dir = tempfile::tempdir().expect("a directory");
    let (disk, blocks) = filled(dir.path()).await;
    let family = disk.store().family(SEGMENTS).expect("there");
    let lost = place_of(&disk, &blocks[0]).segment;
    tamper(&disk, |batch| batch.delete_cf(family, lost.to_be_bytes()));
    drop(disk);
    let disk = open(dir.path());
    assert!(is_stored(&disk, &blocks[0]).await);
    drop(disk);
    assert_eq!(offline(dir.path()).repair_index().expect("repairs").segments, 1);
    let disk = open(dir.path());
    assert!(disk.is_pinned(&key(&blocks[0])).await.expect("reads"));
    audit(&disk);
}

#[tokio::test]
async fn a_segment_without_live_values_is_consistent() {
    let dir = tempfile::tempdir().expect("a directory");
    let (disk, block) = (open(dir.path()), noisy(1, 3_000));
    cache(&disk, std::slice::from_ref(&block)).await;
    disk.pin_recursive(*block.cid(), None, supply(std::slice::from_ref(&block))).await.expect("pins");
    drop(disk);
    let (report, _) = check(dir.path());
    assert!(report.is_clean(), "{report:?}");
}

#[tokio::test]
async fn compaction_reclaims_the_space_of_sparse_segments() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = DiskOptions { segment_bytes_max: 100_000, ..DiskOptions::default() };
    let disk = Disk::open(dir.path(), options).expect("opens");
    let dags: Vec<Vec<Block>> = (0..5).map(|dag| (0..40).map(|i| noisy(dag * 100 + i, 5_000)).collect()).collect();
    // Interleaved, so that every segment has some of each.
    let all: Vec<Block> = (0..40).flat_map(|i| dags.iter().map(move |dag| dag[i].clone())).collect();
    disk.pin_recursive(*noisy(1_000, 10).cid(), None, supply(&all)).await.expect_err("its root is missing");
    for dag in &dags {
        disk.pin_recursive(*dag[0].cid(), None, supply(dag)).await.expect("pins");
    }
    disk.remove_pin(noisy(1_000, 10).cid()).await.expect("removes");
    disk.remove_pin(dags[1][0].cid()).await.expect("removes");
    disk.flush().await.expect("flushes");
    let before = disk.stats().pinned_bytes;
    disk.compact().await.expect("compacts");
    let after = disk.stats().pinned_bytes;
    assert!(before > 5 * 40 * 5_000 * 9 / 10 && after < 4 * 40 * 5_300, "{before} bytes, then {after}");
    for block in dags.iter().enumerate().filter(|(dag, _)| *dag != 1).flat_map(|(_, dag)| dag) {
        assert!(is_stored(&disk, block).await);
    }
    audit(&disk);
}

#[tokio::test]
async fn pinned_values_are_recompressed_once_and_cached_ones_are_not() {
    let dir = tempfile::tempdir().expect("a directory");
    // Text that a higher level compresses better.
    let text = |seed: u64| {
        let mut random = super::Random(seed);
        let word = |n: u64| format!("{:x} ", n * n * 2_654_435_761);
        raw((0..20_000).map(|_| word(random.below(3_000))).collect::<String>())
    };
    let mut blocks: Vec<_> = (0..8).map(text).collect();
    blocks.push(noisy(1, 100_000));
    let disk = open(dir.path());
    disk.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    let cached = text(99);
    cache(&disk, std::slice::from_ref(&cached)).await;
    let (was, cached_was) = (disk.store().index(&key(&blocks[3]).to_bytes()), place_of(&disk, &cached));
    let was = was.expect("reads").expect("it is held").shape.value_bytes();
    let done = disk.recompress_pinned(19, None).await.expect("works");
    disk.flush().await.expect("flushes");
    assert_eq!((done.blocks, done.smaller), (9, 8));
    assert_eq!(disk.stats().recompressed_saved_bytes, done.saved_bytes);
    let now = disk.store().index(&key(&blocks[3]).to_bytes()).expect("reads").expect("it is held");
    assert!(now.pinned() && now.shape.value_bytes() < was - was / 32, "{was} bytes, then {now:?}");
    assert_eq!(place_of(&disk, &cached), cached_was);
    audit(&disk);
    drop(disk);
    let disk = open(dir.path());
    for block in blocks.iter().chain([&cached]) {
        assert!(is_stored(&disk, block).await);
    }
    // Recompressed values are tried once more, and then none.
    let again = disk.recompress_pinned(19, None).await.expect("works");
    assert_eq!((again.blocks, again.smaller), (8, 0));
    assert_eq!(disk.recompress_pinned(19, None).await.expect("works").blocks, 0);
    assert_eq!(
        disk.recompress_pinned(20, None).await.expect("works").blocks,
        9,
        "all values are tried at another level"
    );
    assert!(disk.scrub(None, |_, _| ()).await.expect("scrubs").progress.is_clean());
    audit(&disk);
}
