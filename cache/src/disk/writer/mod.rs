//! The writer thread, which makes all changes of the store.
//!
//! Commands are processed in order and grouped, and each group is written atomically: its values are appended to
//! segment files, then one RocksDB batch adds their index rows and the records of the segments. Between groups the
//! thread evicts segments over budget, unpins the members of removed pins and garbage-collects sparse segments, in
//! chunks, so that commands are not delayed for long.
//!
//! A failed write fails its whole group: cached blocks are dropped and counted, pins get the error. Its appended values
//! are truncated, unless the rows were submitted to RocksDB: those may reappear from the write-ahead log after a crash,
//! so the segment and pin numbers of the group are not reused by this process, and files with its values stay until the
//! next start.
//!
//! After power loss, the index may refer to a value that was never synced. Its checksum detects this: a cached value is
//! deleted when it is read, a pinned one when the store is opened. Pins are acknowledged after their values and then
//! the batch with their rows have been synced; the batch also records up to which place pinned values are synced.
//!
//! | module | concern |
//! |---|---|
//! | [`queue`] | the commands and their bounded queue |
//! | [`group`] | stages and writes the values and rows of one batch |
//! | [`pinning`] | pins, their members and temporary pins |
//! | [`slices`] | blocks whose frames are parts of other blocks |
//! | [`loss`] | pins that lose blocks |
//! | [`reclaim`] | eviction, garbage collection of segments, corrupt blocks |
//! | [`shortage`] | handling of a full disk |
//! | [`read_only`] | the writer of a store whose index cannot be opened for writing yet |

mod group;
mod loss;
mod pinning;
mod queue;
mod read_only;
mod reclaim;
mod shortage;
mod slices;

pub(crate) use self::queue::{Barrier, Change, Command, Queue, start};

use self::group::{Group, Tails};
use super::schema::{Counters, KEY_SYNCED, Kind, META, PLACES, PinId, Place, SegmentRecord, released_pin};
use super::store::Store;
use super::{DiskOptions, StoreError, rebuild};
use crate::pins::{PinChanges, PinLosses};
use crate::queue::{PROBE_EVERY, Reply, Wait, next_command};
use crate::store::{DegradedReason, Stats};
use content::stored::Encoder;
use content::{Block, BlockKey};
use rocksdb::WriteBatch;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use tokio::sync::Semaphore;
use tracing::{debug, error, info, warn};

/// The maximum number of rows that one batch of eviction, unpinning or garbage collection changes.
const CHUNK_ROWS: usize = 1024;

/// The maximum number of segments of a store all of whose files may be lost with a power cut. A full cache has sixteen.
const YOUNG_SEGMENTS_MAX: usize = 8;

/// Whether the thread continues.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

pub(crate) struct Writer {
    pub(super) store: Arc<Store>,
    stats: Arc<Stats>,
    encoder: Encoder,
    options: DiskOptions,
    pub(super) counters: Counters,
    /// Every segment, oldest first.
    segments: BTreeMap<u32, SegmentRecord>,
    /// The segments that values are appended to.
    tails: Tails,
    sums: Sums,
    /// Segments that were written to since they were last synced.
    unsynced: BTreeMap<u32, Kind>,
    /// A pinned segment, and up to which offset writeback was started.
    writeback: Option<(u32, u32)>,
    /// Whether files were created whose directory entries are not synced.
    names_unsynced: bool,
    /// The error of a failed sync of values. Data not written by then may be lost even if a later sync succeeds, so
    /// nothing is acknowledged until the store is reopened.
    sync_error: Option<StoreError>,
    /// Pinned segments with few live values.
    sparse: BTreeSet<u32>,
    /// Sparse segments in which holes were punched, and their live bytes at that time.
    punched: BTreeMap<u32, u32>,
    /// The segment being evicted, and how many bytes of it were given a second chance.
    second_chances: (u32, u64),
    /// Whether eviction may be tried: after a failure, only once another command was processed.
    may_evict: bool,
    /// Losses of pins since the store was opened.
    losses: PinLosses,
    /// The root of each pin; loaded when it is first needed.
    roots: RefCell<Option<loss::Roots>>,
    /// Removed pins whose members are still to be unpinned.
    unpin_queue: VecDeque<PinId>,
    /// The last unpinned member of the first of them, so that each chunk resumes after it.
    unpin_cursor: Vec<u8>,
    /// Whether unpinning may be tried, as with eviction.
    may_unpin: bool,
    /// The error of the last attempt to unpin.
    unpin_error: Option<StoreError>,
    /// Whether to garbage-collect all worthwhile segments after unpinning.
    compacts: bool,
    /// The error of collecting a sparse segment since that was requested.
    collect_error: Option<StoreError>,
    /// Flush commands waiting for a reply.
    flushes: Vec<Flush>,
    /// Why writes fail, if they do; logged once, not for every batch.
    failing: Option<DegradedReason>,
    room: Arc<Semaphore>,
}

/// A flush or compaction waiting until the writer is idle.
struct Flush {
    reply: Reply<Result<(), StoreError>>,
    /// Whether it is a compaction, which also reports failed garbage collection.
    compacts: bool,
}

/// The total size of segments, by kind.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    cached_bytes: u64,
    pinned_bytes: u64,
    blocks: u64,
}

impl Sums {
    fn add(&mut self, record: SegmentRecord) {
        *self.of(record.kind) += record.cost();
        self.blocks += u64::from(record.blocks);
    }

    fn remove(&mut self, record: SegmentRecord) {
        *self.of(record.kind) -= record.cost();
        self.blocks -= u64::from(record.blocks);
    }

    fn of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Cached => &mut self.cached_bytes,
            Kind::Pinned => &mut self.pinned_bytes,
        }
    }
}

impl Drop for Writer {
    /// However the thread ends, callers must not wait for room forever.
    fn drop(&mut self) {
        self.room.close();
    }
}

impl Writer {
    pub(super) fn new(
        store: Arc<Store>,
        stats: Arc<Stats>,
        changes: Arc<PinChanges>,
        options: &DiskOptions,
        room: Arc<Semaphore>,
    ) -> Result<Self, StoreError> {
        Self::check_mounted(&store)?;
        Self::adopt_unnamed_segments(&store)?;
        let mut writer = Self {
            encoder: Encoder::new(options.zstd).map_err(StoreError::io)?,
            counters: store.counters()?,
            segments: store.segments()?.into_iter().collect(),
            unpin_queue: pins_to_unpin(&store)?,
            unpin_cursor: Vec::new(),
            store,
            stats,
            options: options.clone(),
            tails: Tails::default(),
            sums: Sums::default(),
            unsynced: BTreeMap::new(),
            writeback: None,
            names_unsynced: false,
            sync_error: None,
            sparse: BTreeSet::new(),
            punched: BTreeMap::new(),
            second_chances: (0, 0),
            losses: PinLosses::default(),
            roots: RefCell::default(),
            may_evict: true,
            may_unpin: true,
            unpin_error: None,
            compacts: false,
            collect_error: None,
            flushes: Vec::new(),
            failing: None,
            room,
        };
        writer.load_segments()?;
        let checked = writer.check_unsynced();
        if let Err(error @ StoreError::IndexDamaged(_)) = checked {
            return Err(error);
        }
        if let Err(error) = checked {
            error!(
                %error,
                "the last writes cannot be verified: no pin can be completed until the gateway is restarted"
            );
            writer.sync_error = Some(error);
        }
        writer.losses = PinLosses::new(changes, writer.has_partial_pins()?);
        if let Err(error) = writer.check_members() {
            error!(%error, "pins cannot be checked for missing blocks now; the next scrub checks them");
        }
        writer.probe_disk();
        writer.note_shortage();
        writer.publish();
        Ok(writer)
    }

    /// Loads the segments, and continues the newest of each kind.
    fn load_segments(&mut self) -> Result<(), StoreError> {
        let files: BTreeSet<u32> = self.store.files.list()?.into_iter().collect();
        let synced = self.store.synced()?.unwrap_or_default();
        for (segment, record) in &self.segments {
            self.sums.add(*record);
            // A segment without its file is not continued; it is removed with its last missing block.
            if files.contains(segment) {
                self.tails.set(record.kind, Some(*segment));
            }
            match record.kind {
                Kind::Cached => {
                    let bytes = record.written.max(self.segment_bytes_max(record.kind));
                    self.store.reference_bits.watch(*segment, bytes);
                }
                // The previous process may have been killed before it synced this segment.
                Kind::Pinned if *segment >= synced.segment && files.contains(segment) => {
                    self.unsynced.insert(*segment, Kind::Pinned);
                }
                Kind::Pinned => {}
            }
        }
        self.names_unsynced = !self.unsynced.is_empty();
        self.sparse = self.segments.keys().copied().filter(|segment| self.is_sparse(*segment)).collect();
        Ok(())
    }

    /// Fails if all files are missing, and one of them had synced values of pins, or they were many. After power loss,
    /// only files without acknowledged data can be missing; in a young store these may be all.
    fn check_mounted(store: &Store) -> Result<(), StoreError> {
        let synced = store.synced()?.unwrap_or_default();
        let begins_before = |segment: u32| Place { segment, offset: 0 } < synced;
        let has_synced = |(segment, record): &(u32, SegmentRecord)| {
            record.kind == Kind::Pinned && record.blocks > 0 && begins_before(*segment)
        };
        let segments = store.segments()?;
        let had_been_written = segments.len() > YOUNG_SEGMENTS_MAX || segments.iter().any(has_synced);
        if had_been_written && store.files.list()?.is_empty() {
            return Err(StoreError::io(
                "the directory of segments is empty: mount the file system that it is on, and start again",
            ));
        }
        Ok(())
    }

    /// Deletes files of segments that the index removed or that an interrupted write left, and adopts those that the
    /// index may have lost.
    fn adopt_unnamed_segments(store: &Store) -> Result<(), StoreError> {
        let named: BTreeMap<u32, SegmentRecord> = store.segments()?.into_iter().collect();
        let counters = store.counters()?;
        for segment in store.files.list()?.into_iter().filter(|segment| !named.contains_key(segment)) {
            // Numbers increase: a complete index had this segment, and removed it.
            let was_removed = store.is_complete() && segment < counters.segment;
            if store.keys_with_prefix(PLACES, &segment.to_be_bytes())?.next().transpose()?.is_some() {
                warn!(
                    segment,
                    "a segment with blocks has no record: stop the gateway and run \"causeway store repair\", which \
                     recreates it"
                );
            } else if was_removed || !rebuild::adopt(store, segment)? {
                store.files.delete(segment)?;
            }
        }
        Ok(())
    }

    pub(super) fn run(self, commands: &Receiver<Command>) {
        self.run_from(None, commands);
    }

    /// Runs, starting with a command that was already taken from the queue, if there is one.
    pub(super) fn run_from(mut self, mut taken: Option<Command>, commands: &Receiver<Command>) {
        self.evict();
        while let Some(first) = self.next(&mut taken, commands) {
            match first {
                Some(first) => {
                    if self.group(first, commands) == Next::Stop {
                        return;
                    }
                    (self.may_evict, self.may_unpin) = (true, true);
                }
                None => self.background_chunk(),
            }
            self.evict();
            self.answer_flushes();
        }
        if let Err(error) = self.sync() {
            error!(%error, "the final sync failed when the store was closed");
        }
    }

    fn next(&self, taken: &mut Option<Command>, commands: &Receiver<Command>) -> Option<Option<Command>> {
        let wait = match self.is_idle() {
            false => Wait::Never,
            true if self.failing.is_some() || self.wants_reserve() => Wait::For(PROBE_EVERY),
            true => Wait::Forever,
        };
        taken.take().map(Some).or_else(|| next_command(commands, wait))
    }

    fn is_idle(&self) -> bool {
        !self.has_to_unpin() && self.sparse.is_empty() && !self.has_to_evict()
    }

    /// Does a chunk of background work. The caller evicts afterwards.
    fn background_chunk(&mut self) {
        if self.has_to_unpin() {
            self.unpin_chunk();
        } else if !self.sparse.is_empty() {
            self.collect_chunk();
        } else if !self.has_to_evict() {
            self.probe_disk();
        }
    }

    /// Collects changes until the group is full, the queue is empty or a barrier follows, and writes them.
    fn group(&mut self, first: Command, commands: &Receiver<Command>) -> Next {
        let mut group = self.begin();
        let mut command = Some(first);
        while let Some(current) = command {
            match current {
                Command::Change(change) => self.stage(&mut group, change),
                Command::Barrier(barrier) => {
                    self.commit(group);
                    return self.handle(barrier);
                }
            }
            command = if group.full() { None } else { commands.try_recv().ok() };
        }
        self.commit(group);
        Next::Continue
    }

    /// Handles a command that finds all earlier changes written.
    fn handle(&mut self, barrier: Barrier) -> Next {
        match barrier {
            Barrier::Written { reply } => _ = reply.send(()),
            Barrier::Flush { reply } => self.flushes.push(Flush { reply, compacts: false }),
            Barrier::Compact { reply } => {
                (self.compacts, self.collect_error) = (true, None);
                self.flushes.push(Flush { reply, compacts: true });
            }
            Barrier::Close { reply } => return self.close(reply),
            Barrier::DropCorrupt { key, room } => {
                // Verified again, since the block may have been replaced meanwhile.
                self.drop_corrupt(&key);
                drop(room);
            }
            Barrier::Evict { keys, which, reply } => _ = reply.send(self.evict_keys(&keys, which)),
            Barrier::Shrink { cached_bytes, reply } => _ = reply.send(self.shrink(cached_bytes)),
            Barrier::MarkPartial { roots, reply } => _ = reply.send(self.mark_partial(&roots)),
            Barrier::Remove { root, id, reply } => self.remove(root, id, reply),
            Barrier::Release { pin } => self.unpin_queue.push_back(pin),
        }
        Next::Continue
    }

    /// Adds a change to the group. If it cannot be added, it fails alone and leaves the group unchanged: rows are read
    /// before any is staged.
    fn stage(&mut self, group: &mut Group, change: Change) {
        match change {
            Change::Cache { block, room } => {
                group.rooms.push(room);
                match self.stage_cached(group, &block) {
                    Ok(()) => group.cached += 1,
                    Err(error) => self.drop_cached(1, &error),
                }
            }
            Change::Member { block, attempt, room } => {
                let staged = self.stage_member(group, &block, &attempt);
                group.add_member_result(attempt, staged, room);
            }
            Change::Slice { slice, attempt, room } => {
                let (key, slice) = *slice;
                let staged = self.stage_slice(group, key, &slice, &attempt);
                group.add_member_result(attempt, staged, room);
            }
            Change::StoredMember { cid, attempt, room } => {
                let staged = self.stage_stored_member(group, &cid, &attempt);
                group.add_member_result(attempt, staged, room);
            }
            Change::Replace { key, place, value, room } => {
                group.rooms.push(room);
                if let Err(error) = self.stage_replacement(group, key, place, value) {
                    debug!(?key, %error, "a block could not be recompressed");
                }
            }
            Change::PutMeta { key, record } => {
                if let Ok(meta) = self.store.family(META) {
                    group.batch.put_cf(meta, key, record);
                }
            }
            Change::Begin { root, name, reply } => {
                let pin = self.stage_begin(group, root, name);
                group.notify(pin.map(|pin| self.losses.begin(pin)), reply);
            }
            Change::BeginTemporary { reply } => {
                let pin = self.stage_temporary_pin(group);
                group.notify(pin.map(|pin| self.losses.begin(pin)), reply);
            }
            Change::Finish { attempt, reply } => self.stage_finish(group, attempt, reply),
        }
    }

    fn stage_cached(&mut self, group: &mut Group, block: &Block) -> Result<(), StoreError> {
        let Some(key) = block.key() else { return Ok(()) };
        if self.held(group, &key)?.is_some() {
            return Ok(());
        }
        // A member of a pin that was deleted as corrupt becomes a member again.
        let kind = if self.has_pin(&key, None)? { Kind::Pinned } else { Kind::Cached };
        self.stage_block(group, key, block, kind)
    }

    fn stage_block(&mut self, group: &mut Group, key: BlockKey, block: &Block, kind: Kind) -> Result<(), StoreError> {
        if kind == Kind::Pinned {
            self.stage_return(group, &key)?;
        }
        let (shape, value) = self.encoder.encode_in_pieces(block);
        self.stage_value(group, key, kind, shape, value)
    }

    /// Logs when writes start to fail and when they succeed again. Successful writes of rows alone do not count, since
    /// a full disk accepts them.
    fn record_result(&mut self, written: &Result<(), StoreError>, has_values: bool) {
        match written {
            Ok(()) if has_values => self.note_recovery(),
            Ok(()) => {}
            Err(error) => {
                self.stats.write_errors.inc();
                if self.failing.is_none() {
                    error!(%error, "writes to the disk fail: nothing is cached on it and pins fail until it recovers");
                }
                self.failing = Some(DegradedReason::of(error));
            }
        }
    }

    fn note_recovery(&mut self) {
        if self.failing.take().is_some() {
            info!("writes to the disk succeed again");
        }
    }

    fn drop_cached(&self, blocks: u64, error: &StoreError) {
        if blocks > 0 {
            self.stats.dropped_writes.inc_by(blocks);
            debug!(blocks, %error, "blocks could not be cached");
        }
    }

    fn publish(&self) {
        self.stats.cached_bytes.store(self.sums.cached_bytes, Ordering::Relaxed);
        self.stats.pinned_bytes.store(self.sums.pinned_bytes, Ordering::Relaxed);
        self.stats.blocks.store(self.sums.blocks, Ordering::Relaxed);
        self.stats.set_trouble(self.sync_error.as_ref().map_or(self.failing, |_| Some(DegradedReason::Broken)));
    }

    /// Syncs everything.
    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        self.sync_values(&[Kind::Pinned, Kind::Cached])?;
        let synced = self.pinned_end(&self.begin()).to_key();
        let mut batch = WriteBatch::default();
        batch.put_cf(self.store.family(META)?, KEY_SYNCED, synced);
        // If this fails, the next start checks the values once more.
        _ = self.store.write(batch, false);
        self.store.sync_log()
    }

    /// Syncs values, and the directory entries of their files.
    fn sync_values(&mut self, kinds: &[Kind]) -> Result<(), StoreError> {
        if let Some(error) = &self.sync_error {
            return Err(error.clone());
        }
        let files = &self.store.files;
        // The file of a cached segment may have been deleted for its space.
        let has_file = |segment: u32, kind: Kind| kind == Kind::Pinned || files.has(segment);
        let mut unsynced =
            self.unsynced.iter().filter(|(segment, kind)| kinds.contains(kind) && has_file(**segment, **kind));
        let values = unsynced.try_for_each(|(segment, _)| files.sync(*segment));
        let synced = values.and_then(|()| if self.names_unsynced { files.sync_names() } else { Ok(()) });
        if let Err(error) = synced.map_err(|error| self.with_space_figures(error)) {
            error!(
                %error,
                "the disk failed to sync, so that written data may be lost: no pin can be completed until the gateway \
                 is restarted"
            );
            self.sync_error = Some(error.clone());
            self.publish();
            return Err(error);
        }
        self.names_unsynced = false;
        self.unsynced.retain(|_, kind| !kinds.contains(kind));
        Ok(())
    }

    /// Verifies the values that the previous process may not have synced, and removes those that are not on the disk.
    /// They were never acknowledged, and a resumed pin must not rely on them: after power loss, the index may have rows
    /// of lost values, and after a failed sync, a value may be readable from the page cache without being on the disk.
    fn check_unsynced(&mut self) -> Result<(), StoreError> {
        // A store of an earlier release, which did not record the synced place.
        let Some(synced) = self.store.synced()? else { return Ok(()) };
        let pinned = self.segments.range(synced.segment..).filter(|(_, record)| record.kind == Kind::Pinned);
        let unverified: Vec<Place> =
            pinned.map(|(segment, _)| Place { segment: *segment, offset: 0 }.max(synced)).collect();
        let (mut checked, mut lost) = (0, 0);
        for from in unverified {
            self.check_segment(from, &mut checked, &mut lost)?;
        }
        if checked > 0 {
            info!(
                blocks = checked,
                "verified the blocks that were not known to be synced when the store was last open"
            );
            // If this fails, the next start checks them once more.
            _ = self.sync();
        }
        if lost > 0 {
            warn!(blocks = lost, "blocks of incomplete pins were not written to the disk: pin again to resume");
        }
        Ok(())
    }

    /// Verifies the values of one segment from a place on, and counts the verified and the lost ones. A value that
    /// cannot be read for any reason counts as lost.
    fn check_segment(&mut self, from: Place, checked: &mut u64, lost: &mut u64) -> Result<(), StoreError> {
        let store = Arc::clone(&self.store);
        store.files.drop_page_cache(from.segment)?;
        let (mut group, mut staged) = (self.begin(), 0);
        for row in store.rows_from(PLACES, &from.to_key())? {
            let (place, block) = row?;
            // Rows that are malformed or that the index disagrees with are for the repair of the index.
            let (Some(place), Some(key)) = (Place::from_key(&place), BlockKey::from_bytes(&block)) else { continue };
            if place.segment != from.segment {
                break;
            }
            let indexed = match self.index(&group, &key) {
                Err(StoreError::Corrupt(_)) => continue,
                indexed => indexed?.filter(|indexed| indexed.place == place),
            };
            let Some(indexed) = indexed else { continue };
            *checked += 1;
            if let Err(error) = store.verified(&key, indexed) {
                debug!(?key, %error, "a block was not written to the disk and is removed from the index");
                self.stage_loss(&mut group, &key, indexed)?;
                (*lost, staged) = (*lost + 1, staged + 1);
            }
            if staged == CHUNK_ROWS {
                self.write(&mut group)?;
                (group, staged) = (self.begin(), 0);
            }
        }
        self.write(&mut group)
    }

    fn answer_flushes(&mut self) {
        if !self.is_idle() || self.flushes.is_empty() {
            return;
        }
        if std::mem::take(&mut self.compacts) {
            self.sparse.extend(self.worth_compacting());
            return self.answer_flushes();
        }
        let unpinned = self.unpin_error.clone().map_or(Ok(()), Err);
        let done = self.sync().and(unpinned);
        for Flush { reply, compacts } in self.flushes.drain(..) {
            let collect_error = self.collect_error.clone().filter(|_| compacts);
            _ = reply.send(collect_error.map_or(done.clone(), Err));
        }
    }

    fn close(&mut self, reply: Reply<Result<(), StoreError>>) -> Next {
        // From here on callers get an error instead of waiting for room.
        self.room.close();
        let synced = self.sync();
        for flush in self.flushes.drain(..) {
            _ = flush.reply.send(synced.clone());
        }
        _ = reply.send(synced);
        Next::Stop
    }
}

/// Removed pins, and temporary pins, whose members were not unpinned when the store was last closed or its process
/// killed.
fn pins_to_unpin(store: &Store) -> Result<VecDeque<PinId>, StoreError> {
    let rows = store.keys_with_prefix(META, b"release/")?;
    rows.filter_map(|row| row.map(|key| released_pin(&key)).transpose()).collect()
}
