//! A failing file system: whichever call fails, nothing acknowledged is lost, nothing wrong is served, callers get
//! errors, and the store recovers when the file system does.
//!
//! A failed sync is different: its data may be lost although it can still be read, so the store acknowledges no pin
//! until it is reopened.

use super::audit::audit;
use super::crash;
use super::import::node;
use super::power::begin_pin;
use super::{Random, noisy, open_with, supply, until};
use crate::disk::faults::{Call, Fault, OPENING};
use crate::{Disk, DiskOptions, PinError, PinState, StoreError};
use content::{Block, BlockSource, SourceError};
use futures::StreamExt as _;
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tempfile::TempDir;

/// The number of blocks in histories.
const BLOCKS: u64 = 60;

fn options() -> DiskOptions {
    // Many small segments, and a small budget.
    DiskOptions { cache_bytes_max: 60_000, segment_bytes_max: 20_000, free_bytes_min: 0, ..DiskOptions::default() }
}

fn block(seed: u64) -> Block {
    noisy(seed, usize::try_from(200 + seed * 50).expect("small"))
}

/// The DAG of a number: a node and the blocks that it links to, which are shared with other numbers' DAGs. A rebuild of
/// the index finds them by their links.
fn dag(root: u64) -> Vec<Block> {
    let children: Vec<Block> = (root..root + 1 + root % 12).map(block).collect();
    let node = node(&children.iter().collect::<Vec<_>>());
    std::iter::once(node).chain(children).collect()
}

/// A planned fault.
#[derive(Debug, Clone)]
struct Arming {
    calls: Vec<Call>,
    fault: Fault,
    /// The number of calls that succeed before it.
    after: u64,
    /// Whether later calls fail too.
    lasts: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Cache(u64),
    Read(u64),
    Pin(u64),
    Unpin(u64),
    Flush,
    Compact,
    Scrub,
    Reopen,
    Fail(Arming),
    Heal,
}

fn arming() -> impl Strategy<Value = Arming> {
    let calls = prop_oneof![
        4 => Just(vec![Call::Write]),
        2 => Just(vec![Call::Create]),
        4 => Just(vec![Call::Batch]),
        2 => Just(vec![Call::Sync]),
        1 => Just(vec![Call::SyncNames]),
        1 => Just(vec![Call::SyncLog]),
        2 => Just(vec![Call::Read]),
        2 => Just(vec![Call::Delete]),
        2 => Just(vec![Call::Write, Call::Create, Call::Batch]),
        1 => Just(vec![
            Call::Write,
            Call::Create,
            Call::Batch,
            Call::Sync,
            Call::SyncNames,
            Call::SyncLog,
            Call::Delete,
        ]),
    ];
    let errno = prop_oneof![Just(Errno::IO), Just(Errno::NOSPC)];
    let fault = (0..3_u8, errno).prop_map(|(kind, errno)| match kind {
        0 => Fault::Refused(errno),
        1 => Fault::Half(errno),
        _ => Fault::Unheard(errno),
    });
    (calls, fault, 0..8_u64, any::<bool>()).prop_map(|(calls, fault, after, lasts)| Arming {
        calls,
        fault,
        after,
        lasts,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..BLOCKS).prop_map(Step::Cache),
        3 => (0..BLOCKS).prop_map(Step::Read),
        5 => (0..BLOCKS - 12).prop_map(Step::Pin),
        4 => (0..BLOCKS - 12).prop_map(Step::Unpin),
        2 => Just(Step::Flush),
        1 => Just(Step::Compact),
        1 => Just(Step::Scrub),
        1 => Just(Step::Reopen),
        4 => arming().prop_map(Step::Fail),
        2 => Just(Step::Heal),
    ]
}

/// The expected state of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Complete,
    Partial,
    /// Either, since the operation returned an error.
    Unsure,
}

/// A store on a disk with injected faults, and its expected state.
struct Trial {
    disk: Option<Disk>,
    dir: TempDir,
    pins: BTreeMap<u64, Known>,
    /// Whether calls may fail.
    armed: bool,
    /// Whether reads may fail.
    reads_fail: bool,
    /// The faults that occurred.
    seen: Arc<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// A sync failed, so that the store must be reopened.
    sync_failed: AtomicBool,
    /// Unsynced data is lost.
    lost: AtomicBool,
    /// RocksDB does not know whether it wrote a batch, and rejects further ones.
    stopped: AtomicBool,
}

impl Seen {
    fn get(flag: &AtomicBool) -> bool {
        flag.load(Ordering::SeqCst)
    }

    /// The effect of a fault.
    fn fail(&self, call: Call, arming: &Arming) -> Fault {
        match (call, arming.fault) {
            (Call::Sync, Fault::Half(_)) => {
                self.lost.store(true, Ordering::SeqCst);
                self.fail_sync(arming.fault)
            }
            (Call::Sync | Call::SyncNames, fault) => self.fail_sync(fault),
            (Call::Batch, fault @ Fault::Unheard(_)) => {
                self.stopped.store(true, Ordering::SeqCst);
                fault
            }
            (_, fault) => fault,
        }
    }

    fn fail_sync(&self, fault: Fault) -> Fault {
        self.sync_failed.store(true, Ordering::SeqCst);
        fault
    }

    /// Whether the store must be reopened.
    fn has_to_reopen(&self) -> bool {
        Self::get(&self.sync_failed) || Self::get(&self.stopped)
    }
}

impl Trial {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = Some(open_with(dir.path(), options()).expect("opens"));
        Self { dir, disk, pins: BTreeMap::new(), armed: false, reads_fail: false, seen: Arc::default() }
    }

    fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("it is open")
    }

    fn fail(&mut self, arming: Arming) {
        (self.armed, self.reads_fail) = (true, arming.calls.contains(&Call::Read));
        let (seen, mut met) = (Arc::clone(&self.seen), 0);
        self.disk().store().files.faults.plan(move |call| {
            if let Some(stopped) = stop(&seen, call) {
                return Some(stopped);
            }
            if !arming.calls.contains(&call) {
                return None;
            }
            met += 1;
            let fails = if arming.lasts { met > arming.after } else { met == arming.after + 1 };
            fails.then(|| seen.fail(call, &arming))
        });
    }

    fn heal(&mut self) {
        let seen = Arc::clone(&self.seen);
        self.disk().store().files.faults.plan(move |call| stop(&seen, call));
        (self.armed, self.reads_fail) = (false, false);
    }

    /// Checks that an error was caused by a fault.
    fn excuse(&self, error: &StoreError) {
        let excused = self.armed || self.seen.has_to_reopen();
        assert!(excused && matches!(error, StoreError::Io(_)), "{error}");
    }

    async fn run(&mut self, step: Step) {
        match step {
            Step::Cache(seed) => self.disk().put_cached(block(seed)).await,
            Step::Read(seed) => _ = self.is_stored(&block(seed)).await,
            Step::Pin(root) => self.pin(root).await,
            Step::Unpin(root) => self.unpin(root).await,
            Step::Flush => {
                if let Err(error) = self.disk().flush().await {
                    self.excuse(&error);
                }
            }
            Step::Compact => {
                if let Err(error) = self.disk().compact().await {
                    self.excuse(&error);
                }
            }
            Step::Scrub => match self.disk().scrub_all(None, |_, _| ()).await {
                // Partial values without rows do not count as corruption.
                Ok(report) => assert!(report.progress.damaged == 0 || Seen::get(&self.seen.lost)),
                Err(error) => self.excuse(&error),
            },
            Step::Reopen => self.reopen().await,
            Step::Fail(arming) => self.fail(arming),
            Step::Heal => self.heal(),
        }
    }

    /// Whether a block is stored; checks its bytes.
    async fn is_stored(&self, block: &Block) -> bool {
        match self.disk().get(block.cid()).await {
            Ok(got) => {
                assert_eq!(got.data(), block.data());
                true
            }
            Err(SourceError::NotFound { .. }) => false,
            Err(error) => {
                assert!(self.reads_fail, "{error}");
                false
            }
        }
    }

    async fn pin(&mut self, root: u64) {
        let blocks = dag(root);
        match self.disk().pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await {
            Ok(pin) => {
                assert_eq!((pin.state, pin.blocks), (PinState::Complete, blocks.len() as u64));
                self.pins.insert(root, Known::Complete);
            }
            Err(PinError::Store(error)) => {
                self.excuse(&error);
                // A complete pin stays complete.
                let known = self.pins.entry(root).or_insert(Known::Unsure);
                *known = if *known == Known::Partial { Known::Unsure } else { *known };
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn unpin(&mut self, root: u64) {
        let known = self.pins.remove(&root);
        match self.disk().remove_pin(dag(root)[0].cid()).await {
            Ok(was) => assert!(known == Some(Known::Unsure) || was == known.is_some(), "{known:?}, {was}"),
            Err(error) => {
                self.excuse(&error);
                known.into_iter().for_each(|_| _ = self.pins.insert(root, Known::Unsure));
            }
        }
    }

    async fn reopen(&mut self) {
        // The process ends without the disk recovering.
        self.disk = None;
        (self.armed, self.reads_fail) = (false, false);
        self.seen.sync_failed.store(false, Ordering::SeqCst);
        self.seen.stopped.store(false, Ordering::SeqCst);
        self.disk = Some(reopened(self.dir.path()));
        // Uncertain states are resolved now.
        let pins = self.disk().pins().await.expect("lists");
        let found = |root: &u64| pins.iter().find(|pin| pin.root == *dag(*root)[0].cid()).map(|pin| pin.state);
        self.pins.retain(|root, known| {
            let found = found(root);
            match (*known, found) {
                (Known::Complete, Some(PinState::Complete)) | (Known::Partial, Some(PinState::Partial)) => true,
                (Known::Unsure, Some(state)) => {
                    *known = if state == PinState::Complete { Known::Complete } else { Known::Partial };
                    true
                }
                (Known::Unsure, None) => false,
                (known, found) => panic!("{root} was {known:?} and is {found:?}"),
            }
        });
        self.check().await;
    }

    /// Checks that all acknowledged pins have their blocks.
    async fn check(&self) {
        for (root, known) in &self.pins {
            for block in dag(*root).iter().filter(|_| *known == Known::Complete) {
                assert!(self.is_stored(block).await, "a block of {root}");
            }
        }
    }

    /// The disk recovers. The store must be reopened only after failed syncs and uncertain batches.
    async fn end(&mut self) {
        self.heal();
        self.check().await;
        if self.seen.has_to_reopen() {
            assert!(self.disk().stats().degraded() || !Seen::get(&self.seen.sync_failed), "it says so");
            self.reopen().await;
        }
        self.works().await;
        self.reopen().await;
        self.works().await;
        if Seen::get(&self.seen.lost) {
            // Corruption of cached blocks is detected only when they are read.
            self.disk().scrub_all(None, |_, _| ()).await.expect("scrubs");
            self.check().await;
        }
        audit(self.disk());
        assert_eq!(self.disk().stats().dropped_writes, 0);
    }

    /// Checks that the store caches blocks, completes partial pins, and removes all pins.
    async fn works(&mut self) {
        let fresh: Vec<_> = (1_000..1_003).map(|seed| noisy(seed, 300)).collect();
        for block in &fresh {
            self.disk().put_cached(block.clone()).await;
        }
        self.disk().flush().await.expect("flushes");
        for block in &fresh {
            assert!(self.is_stored(block).await, "it is cached");
        }
        assert!(!self.disk().stats().degraded());
        for root in self.pins.keys().copied().collect::<Vec<_>>() {
            self.pin(root).await;
        }
        assert!(self.pins.values().all(|known| *known == Known::Complete));
        self.check().await;
        let most: Vec<u64> = self.pins.keys().copied().skip(1).collect();
        for root in most {
            self.unpin(root).await;
        }
        self.disk().flush().await.expect("flushes");
        self.check().await;
        assert!(self.disk().stats().cached_bytes <= options().cache_bytes_max);
    }
}

/// Fails batches once RocksDB has stopped.
fn stop(seen: &Seen, call: Call) -> Option<Fault> {
    (Seen::get(&seen.stopped) && matches!(call, Call::Batch | Call::SyncLog)).then_some(Fault::Refused(Errno::IO))
}

fn reopened(dir: &Path) -> Disk {
    open_with(dir, options()).expect("opens")
}

fn run(steps: impl IntoIterator<Item = Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut trial = Trial::new();
        for step in steps {
            trial.run(step).await;
        }
        trial.end().await;
    });
}

fn rounds(default: u32) -> u32 {
    u32::try_from(crash::rounds(default.into())).unwrap_or(u32::MAX)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20 * rounds(3), ..ProptestConfig::default() })]
    #[test]
    fn no_fault_loses_acknowledged_pins(steps in proptest::collection::vec(step(), 1..50)) {
        run(steps);
    }
}

/// A removal that took effect but returned an error: at the next start, the index lacks a pin that the pin journal has.
/// The index is rebuilt, and no pin loses a block.
#[test]
fn a_removal_that_took_effect_despite_an_error_costs_no_pin_its_blocks() {
    let (batch, errno) = (vec![Call::Batch], Errno::IO);
    for lasts in [false, true] {
        let arming = Arming { calls: batch.clone(), fault: Fault::Unheard(errno), after: 0, lasts };
        run([
            Step::Pin(27),
            Step::Pin(23),
            Step::Pin(11),
            Step::Flush,
            Step::Fail(arming),
            Step::Unpin(27),
            Step::Reopen,
        ]);
    }
}

/// A history with every kind of step.
fn history() -> Vec<Step> {
    let mut random = Random(7);
    let mut steps = Vec::new();
    for _ in 0..6 {
        steps.extend((0..6).map(|_| Step::Cache(random.below(BLOCKS))));
        steps.push(Step::Pin(random.below(BLOCKS - 12)));
        steps.push(Step::Unpin(random.below(BLOCKS - 12)));
        steps.push(Step::Flush);
    }
    steps.extend([Step::Compact, Step::Scrub]);
    steps
}

/// Every kind of call fails in every way, once or permanently.
#[test]
fn each_kind_of_call_may_fail_at_any_moment_of_a_history() {
    let (refused, half, unheard) = (Fault::Refused(Errno::IO), Fault::Half(Errno::IO), Fault::Unheard(Errno::IO));
    let table = [
        (Call::Create, vec![refused]),
        (Call::Write, vec![refused, half, unheard]),
        (Call::Sync, vec![refused, half]),
        (Call::SyncNames, vec![refused]),
        (Call::Delete, vec![refused]),
        (Call::Batch, vec![refused, unheard]),
        (Call::SyncLog, vec![refused]),
    ];
    let moments: Vec<_> = if rounds(1) > 10 { (0..40).collect() } else { vec![0, 4] };
    for (call, faults) in table {
        for (fault, after) in faults.into_iter().flat_map(|fault| moments.iter().map(move |after| (fault, *after))) {
            for lasts in [false, true] {
                let arming = Arming { calls: vec![call], fault, after, lasts };
                run(std::iter::once(Step::Fail(arming)).chain(history()));
            }
        }
    }
}

#[tokio::test]
async fn blocks_lost_by_a_failed_sync_are_removed_at_the_next_start() {
    let dir = tempfile::tempdir().expect("a directory");
    // One segment has all of it, since a full segment would be synced.
    let disk = open_with(dir.path(), DiskOptions { segment_bytes_max: 1 << 20, ..options() }).expect("opens");
    let (kept, lost) = (dag(11), dag(23));
    disk.pin_recursive(*kept[0].cid(), None, supply(&kept)).await.expect("pins");
    // Written but not synced when the disk begins to fail.
    let (before, broken_off) = (disk.stats().blocks, futures::stream::iter([Err(std::io::Error::other("later"))]));
    let pinned = disk.pin_recursive(*lost[0].cid(), None, supply(&lost).chain(broken_off)).await;
    assert!(matches!(pinned, Err(PinError::Blocks(_))), "{pinned:?}");
    until(|| disk.stats().blocks == before + lost.len() as u64).await;
    disk.store().files.faults.plan(|call| (call == Call::Sync).then_some(Fault::Half(Errno::IO)));
    let pinned = disk.pin_recursive(*lost[0].cid(), None, supply(&lost)).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "{pinned:?}");
    disk.store().files.faults.clear();
    let pinned = disk.pin_recursive(*lost[0].cid(), None, supply(&lost)).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Io(_)))), "a later successful sync does not count");
    assert!(disk.stats().degraded());
    drop(disk);
    let disk = reopened(dir.path());
    disk.pin_recursive(*lost[0].cid(), None, supply(&lost)).await.expect("pins");
    for block in kept.iter().chain(&lost) {
        assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
    }
    assert!(!disk.stats().degraded());
    audit(&disk);
}

#[tokio::test]
async fn members_that_could_not_be_unpinned_are_when_the_disk_works_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), options()).expect("opens");
    let blocks = dag(11);
    disk.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    // The removal itself succeeds.
    let mut batches = 0;
    disk.store().files.faults.plan(move |call| {
        batches += u32::from(call == Call::Batch);
        (call == Call::Batch && batches > 1).then_some(Fault::Refused(Errno::NOSPC))
    });
    assert!(disk.remove_pin(blocks[0].cid()).await.expect("removes"));
    assert!(
        matches!(disk.flush().await, Err(StoreError::Io(_))),
        "the space is not reclaimed, and the error is returned"
    );
    disk.store().files.faults.clear();
    disk.flush().await.expect("flushes");
    assert_eq!((disk.stats().blocks, disk.stats().pinned_bytes), (0, 0));
    audit(&disk);
}

#[tokio::test]
async fn a_segment_that_cannot_be_collected_fails_a_compaction_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), options()).expect("opens");
    let blocks = dag(11);
    for root in [11, 23] {
        disk.pin_recursive(*dag(root)[0].cid(), None, supply(&dag(root))).await.expect("pins");
    }
    disk.store().files.faults.refuse(Call::Read, Errno::IO);
    assert!(disk.remove_pin(blocks[0].cid()).await.expect("removes"));
    assert!(matches!(disk.compact().await, Err(StoreError::Io(_))));
    disk.flush().await.expect("flushes");
    disk.store().files.faults.clear();
    disk.compact().await.expect("compacts");
    for block in dag(23) {
        assert_eq!(disk.get(block.cid()).await, Ok(block));
    }
    audit(&disk);
}

#[tokio::test]
async fn unreadable_blocks_are_errors_and_are_not_deleted() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), options()).expect("opens");
    let blocks = dag(11);
    disk.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    disk.store().files.faults.refuse(Call::Read, Errno::IO);
    for block in &blocks {
        assert!(matches!(disk.get(block.cid()).await, Err(SourceError::Store(_))));
        assert_eq!(disk.has(block.cid()).await, Ok(true), "the index says so");
    }
    let report = disk.scrub_all(None, |_, _| ()).await.expect("scrubs");
    assert_eq!((report.progress.unreadable, report.progress.damaged), (blocks.len() as u64, 0));
    disk.store().files.faults.clear();
    for block in &blocks {
        assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
    }
    assert_eq!(disk.stats().corrupt_blocks, 0);
}

#[tokio::test]
async fn every_block_put_is_cached_or_counted_as_dropped() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), DiskOptions { cache_bytes_max: 1 << 30, ..options() }).expect("opens");
    let calls = Arc::<AtomicU64>::default();
    // Irregularly: with every third call, the same call of every group might fail.
    let (met, mut random) = (Arc::clone(&calls), Random(1));
    disk.store().files.faults.plan(move |call| {
        let writes = matches!(call, Call::Write | Call::Batch);
        met.fetch_add(u64::from(writes), Ordering::SeqCst);
        (writes && random.below(3) == 0).then_some(Fault::Half(Errno::NOSPC))
    });
    let blocks: Vec<_> = (0..200).map(|seed| noisy(seed, 2_000)).collect();
    for some in blocks.chunks(7) {
        for block in some {
            disk.put_cached(block.clone()).await;
        }
        disk.flush().await.expect("flushes");
    }
    let mut held = 0;
    for block in &blocks {
        held += u64::from(disk.get(block.cid()).await.as_ref() == Ok(block));
    }
    let stats = disk.stats();
    assert!(held > 0 && stats.dropped_writes > 0, "{stats:?}");
    assert_eq!((held, held + stats.dropped_writes), (stats.blocks, 200));
    assert!(calls.load(Ordering::SeqCst) > 30);
}

/// A disk that stays full uses up no segment numbers, which are limited.
#[tokio::test]
async fn a_disk_that_stays_full_uses_up_no_numbers() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), options()).expect("opens");
    disk.pin_recursive(*dag(1)[0].cid(), None, supply(&dag(1))).await.expect("pins");
    let before = disk.store().counters().expect("reads");
    drop(disk);
    let full = DiskOptions { free_bytes_min: u64::MAX / 2, ..options() };
    let disk = open_with(dir.path(), full).expect("a full disk opens");
    for _ in 0..50 {
        let pinned = disk.pin_recursive(*dag(13)[0].cid(), None, supply(&dag(13))).await;
        assert!(matches!(pinned, Err(PinError::Store(StoreError::Full { .. }))), "{pinned:?}");
    }
    // A write uses the next numbers.
    assert!(disk.remove_pin(dag(1)[0].cid()).await.expect("removes"));
    let after = disk.store().counters().expect("reads");
    assert_eq!(after.segment, before.segment);
}

/// Values not known to be synced were never acknowledged: if they cannot be read, a pin must not rely on them.
#[tokio::test]
async fn values_that_cannot_be_read_at_the_start_are_written_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), options()).expect("opens");
    let (kept, begun) = (dag(11), dag(23));
    disk.pin_recursive(*kept[0].cid(), None, supply(&kept)).await.expect("pins");
    begin_pin(&disk, &begun[..3]).await;
    let unsynced = disk.store().files.volatile.lock().expect("not poisoned").values.len();
    assert!(unsynced > 0);
    // Simulates a kill.
    disk.store().files.faults.refuse(Call::Sync, Errno::IO);
    drop(disk);
    OPENING.set(Some(Box::new(|call| (call == Call::Read).then_some(Fault::Refused(Errno::IO)))));
    let disk = open_with(dir.path(), options()).expect("opens");
    disk.store().files.faults.clear();
    assert_eq!(disk.stats().blocks, kept.len() as u64, "acknowledged blocks are kept, unacknowledged ones are not");
    disk.pin_recursive(*begun[0].cid(), None, supply(&begun)).await.expect("pins");
    for block in kept.iter().chain(&begun) {
        assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
    }
    audit(&disk);
}

/// The first pin after a start syncs only what was not synced before.
#[tokio::test]
async fn synced_segments_are_not_synced_again_at_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), options()).expect("opens");
    let blocks: Vec<_> = (0..100).map(|seed| noisy(seed, 2_000)).collect();
    disk.pin_recursive(*blocks[0].cid(), None, supply(&blocks)).await.expect("pins");
    assert!(disk.store().segments().expect("reads").len() > 9);
    drop(disk);
    let (synced, read) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (syncs, reads) = (Arc::clone(&synced), Arc::clone(&read));
    OPENING.set(Some(Box::new(move |call| {
        match call {
            Call::Sync => _ = syncs.fetch_add(1, Ordering::SeqCst),
            Call::Read => _ = reads.fetch_add(1, Ordering::SeqCst),
            _ => {}
        }
        None
    })));
    let disk = open_with(dir.path(), options()).expect("opens");
    disk.pin_recursive(*dag(1)[0].cid(), None, supply(&dag(1))).await.expect("pins");
    let (synced, read) = (synced.load(Ordering::SeqCst), read.load(Ordering::SeqCst));
    assert!((1..=2).contains(&synced) && read == 0, "{synced} segments, {read} values");
}
