//! The one thread that changes the store.
//!
//! Commands are taken as they came, grouped, and each group is written as one: its values are appended to segment files,
//! then one batch makes them known, with the records of the segments. A group is in the store as a whole or not at all.
//! Between groups the thread evicts what is over budget, lets go of the members of removed pins and moves together what
//! is left of sparse segments, a chunk at a time, so that nothing holds up what is waiting for long.
//!
//! A write that fails takes its group with it: cached blocks are dropped and counted, pins get the error. Values that were appended
//! for it are cut off again, unless RocksDB was asked to write the rows: those may be found in the log after a crash, so segment
//! and pin numbers that they used are not used again by this process, and files that hold their values stay until the store is
//! next opened.
//!
//! What power loss may leave: a value that the index knows and the disk never got. It is told by its checksum: a cached one is
//! forgotten when it is read, a pinned one when the store is opened. Pins are acknowledged when their values, then the batch that
//! names them, have been synced; that batch says as well up to where pinned values are.
//!
//! | module | concern |
//! |---|---|
//! | [`queue`] | what can be asked for, and the bounded way to here |
//! | [`group`] | values and rows of one batch, staged and written |
//! | [`pinning`] | pins, their members and temporary pins |
//! | [`loss`] | pins that lose blocks |
//! | [`reclaim`] | eviction, sparse segments, damaged blocks |
//! | [`shortage`] | a disk that is full: what is given up for it, and when it is over |
//! | [`waiting`] | the writer of a store whose index cannot be opened for writing yet |

mod group;
mod loss;
mod pinning;
mod queue;
mod reclaim;
mod shortage;
mod waiting;

pub(crate) use self::queue::{Command, Queue, start};

use self::group::{Group, Tails};
use super::schema::{Counters, KEY_SYNCED, Kind, META, PLACES, PinId, Place, SegmentRecord, released_pin};
use super::store::Store;
use super::{DiskOptions, StoreError, rebuild};
use crate::pins::{Losses, PinChanges};
use crate::queue::{PROBE_EVERY, Reply, Wait, next_command};
use crate::store::{Stats, Trouble};
use crate::stored::Encoder;
use content::{Block, BlockKey};
use rocksdb::WriteBatch;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use tokio::sync::Semaphore;
use tracing::{debug, error, info, warn};

/// The most rows that one batch of eviction, release or collection changes.
const CHUNK_ROWS: usize = 1024;

/// Whether the thread goes on.
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
    /// A pinned segment, and how much of it the disk has been asked to write.
    flowing: Option<(u32, u32)>,
    /// Whether files were created since that was last synced.
    names_unsynced: bool,
    /// What the disk said when it refused to sync values. What it had not written then may be lost although a later sync
    /// succeeds, so nothing is acknowledged until the store is opened again.
    unsyncable: Option<StoreError>,
    /// Pinned segments of which little is left.
    sparse: BTreeSet<u32>,
    /// Those of them whose dead space was given back where it is, and how much was live then, in bytes.
    punched: BTreeMap<u32, u32>,
    /// The segment that is being evicted, and what was given a second chance of what it costs.
    rescued: (u32, u64),
    /// Whether eviction is worth a try: not after it failed or found nothing, until something else was written.
    evicts: bool,
    /// What pins lost since the store was opened.
    losses: Losses,
    /// Which root each pin has, once that was needed.
    roots: RefCell<Option<loss::Roots>>,
    /// Pins whose members are still to be let go.
    releasing: VecDeque<PinId>,
    /// The last member of the first of them that was let go: what lies before it is not gone through for each chunk again.
    released_to: Vec<u8>,
    /// Whether that is worth a try, as with eviction.
    releases: bool,
    /// What the disk said when it last refused that.
    unreleased: Option<StoreError>,
    /// Whether every segment that is worth it is to be collected, once all members have been let go.
    compacts: bool,
    /// What the disk said of a sparse segment since that was asked for.
    uncollected: Option<StoreError>,
    /// Whoever waits for all of that to end.
    flushes: Vec<Flush>,
    /// Why the disk refuses writes, if it does: said once, not for every batch.
    failing: Option<Trouble>,
    room: Arc<Semaphore>,
}

/// Somebody who waits until there is nothing left to do.
struct Flush {
    reply: Reply<Result<(), StoreError>>,
    /// Space was asked for, so a segment that could not be collected is an answer too.
    compacts: bool,
}

/// What segments cost, by what they hold.
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
    /// However the thread ends, nobody must wait for room that will never come.
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
        Self::check_mounted(store.files.list()?.len(), store.segments()?.len())?;
        Self::take_in_unnamed(&store)?;
        let mut writer = Self {
            encoder: Encoder::new(options.zstd).map_err(StoreError::io)?,
            counters: store.counters()?,
            segments: store.segments()?.into_iter().collect(),
            releasing: leftovers(&store)?,
            released_to: Vec::new(),
            store,
            stats,
            options: options.clone(),
            tails: Tails::default(),
            sums: Sums::default(),
            unsynced: BTreeMap::new(),
            flowing: None,
            names_unsynced: false,
            unsyncable: None,
            sparse: BTreeSet::new(),
            punched: BTreeMap::new(),
            rescued: (0, 0),
            losses: Losses::default(),
            roots: RefCell::default(),
            evicts: true,
            releases: true,
            unreleased: None,
            compacts: false,
            uncollected: None,
            flushes: Vec::new(),
            failing: None,
            room,
        };
        writer.take_stock()?;
        let checked = writer.check_unsynced();
        if let Err(error @ StoreError::IndexDamaged(_)) = checked {
            return Err(error);
        }
        if let Err(error) = checked {
            error!(%error, "what was written last cannot be checked: no pin is made until the store is opened again");
            writer.unsyncable = Some(error);
        }
        writer.losses = Losses::new(changes, writer.has_partial_pins()?);
        if let Err(error) = writer.check_members() {
            error!(%error, "whether pins lack blocks cannot be checked; the next scrub tells");
        }
        writer.look_at_the_disk();
        writer.note_shortage();
        writer.publish();
        Ok(writer)
    }

    /// Sums up the segments, and goes on with the youngest of each kind.
    fn take_stock(&mut self) -> Result<(), StoreError> {
        let files: BTreeSet<u32> = self.store.files.list()?.into_iter().collect();
        let synced = self.store.synced()?.unwrap_or_default();
        for (segment, record) in &self.segments {
            self.sums.add(*record);
            // One whose file is lost is not gone on with: it goes with the last block that is missed.
            if files.contains(segment) {
                self.tails.set(record.kind, Some(*segment));
            }
            match record.kind {
                Kind::Cached => {
                    let bytes = record.written.max(self.segment_bytes_max(record.kind));
                    self.store.touched.watch(*segment, bytes);
                }
                // Whoever wrote it may have been killed before it was synced.
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

    /// After power loss a file may be missing that nothing acknowledged needs. All of them are never missing by that.
    fn check_mounted(files: usize, segments: usize) -> Result<(), StoreError> {
        if files == 0 && segments > 1 {
            return Err(StoreError::io("the folder of segments is empty: is what it is on not mounted?"));
        }
        Ok(())
    }

    /// Deletes files of segments that the index let go or that a write which was cut off left, and takes in those that it
    /// may have lost.
    fn take_in_unnamed(store: &Store) -> Result<(), StoreError> {
        let named: BTreeMap<u32, SegmentRecord> = store.segments()?.into_iter().collect();
        let counters = store.counters()?;
        for segment in store.files.list()?.into_iter().filter(|segment| !named.contains_key(segment)) {
            // Numbers grow: an index that has everything named this one, and let it go.
            let was_let_go = store.is_whole() && segment < counters.segment;
            if store.keys_with_prefix(PLACES, &segment.to_be_bytes())?.next().transpose()?.is_some() {
                warn!(segment, "a segment with blocks in it has no record: causeway store repair makes a new one");
            } else if was_let_go || !rebuild::adopt(store, segment)? {
                store.files.delete(segment)?;
            }
        }
        Ok(())
    }

    pub(super) fn run(self, commands: &Receiver<Command>) {
        self.run_from(None, commands);
    }

    /// Runs with a command that was taken already, if there is one.
    pub(super) fn run_from(mut self, mut taken: Option<Command>, commands: &Receiver<Command>) {
        self.evict();
        while let Some(first) = self.next(&mut taken, commands) {
            match first {
                Some(first) => {
                    if self.group(first, commands) == Next::Stop {
                        return;
                    }
                    (self.evicts, self.releases) = (true, true);
                }
                None => self.tidy(),
            }
            self.evict();
            self.answer_flushes();
        }
        if let Err(error) = self.sync() {
            error!(%error, "the disk refused to sync when the store was closed");
        }
    }

    fn next(&self, taken: &mut Option<Command>, commands: &Receiver<Command>) -> Option<Option<Command>> {
        let wait = match self.is_tidy() {
            false => Wait::Never,
            true if self.failing.is_some() || self.wants_reserve() => Wait::For(PROBE_EVERY),
            true => Wait::Forever,
        };
        taken.take().map(Some).or_else(|| next_command(commands, wait))
    }

    fn is_tidy(&self) -> bool {
        !self.has_to_release() && self.sparse.is_empty() && !self.has_to_evict()
    }

    /// A chunk of background work. Eviction follows whatever is done.
    fn tidy(&mut self) {
        if self.has_to_release() {
            self.release_chunk();
        } else if !self.sparse.is_empty() {
            self.collect_chunk();
        } else if !self.has_to_evict() {
            self.look_at_the_disk();
        }
    }

    /// Takes commands until the group is full or nobody waits, and writes it.
    fn group(&mut self, first: Command, commands: &Receiver<Command>) -> Next {
        let mut group = self.begin();
        let mut command = Some(first);
        while let Some(current) = command {
            match current {
                Command::Written { reply } => {
                    self.commit(group);
                    _ = reply.send(());
                    return Next::Continue;
                }
                Command::Flush { reply } => {
                    self.commit(group);
                    self.flushes.push(Flush { reply, compacts: false });
                    return Next::Continue;
                }
                Command::Compact { reply } => {
                    self.commit(group);
                    (self.compacts, self.uncollected) = (true, None);
                    self.flushes.push(Flush { reply, compacts: true });
                    return Next::Continue;
                }
                Command::Close { reply } => {
                    self.commit(group);
                    return self.close(reply);
                }
                Command::Forget { key, room } => {
                    // Read and judged again with nothing pending: the block may have been replaced meanwhile.
                    self.commit(group);
                    self.forget(&key);
                    drop(room);
                    return Next::Continue;
                }
                Command::Evict { keys, which, reply } => {
                    self.commit(group);
                    _ = reply.send(self.evict_keys(&keys, which));
                    return Next::Continue;
                }
                Command::Shrink { cached_bytes, reply } => {
                    self.commit(group);
                    _ = reply.send(self.shrink(cached_bytes));
                    return Next::Continue;
                }
                Command::Lacking { roots, reply } => {
                    self.commit(group);
                    _ = reply.send(self.mark_lacking(&roots));
                    return Next::Continue;
                }
                Command::Remove { root, reply } => {
                    self.commit(group);
                    self.remove(root, reply);
                    return Next::Continue;
                }
                Command::Release { pin } => {
                    self.commit(group);
                    self.releasing.push_back(pin);
                    return Next::Continue;
                }
                other => self.stage(&mut group, other),
            }
            command = if group.full() { None } else { commands.try_recv().ok() };
        }
        self.commit(group);
        Next::Continue
    }

    /// Adds a command to the group. One that cannot be added fails by itself and leaves the group as it was: rows are
    /// looked up before any is staged.
    fn stage(&mut self, group: &mut Group, command: Command) {
        match command {
            Command::Cache { block, room } => {
                group.rooms.push(room);
                match self.stage_cached(group, &block) {
                    Ok(()) => group.cached += 1,
                    Err(error) => self.drop_cached(1, &error),
                }
            }
            Command::Member { block, attempt, room } => {
                let staged = self.stage_member(group, &block, &attempt);
                group.attempted(attempt, staged, room);
            }
            Command::Held { cid, attempt, room } => {
                let staged = self.stage_held(group, &cid, &attempt);
                group.attempted(attempt, staged, room);
            }
            Command::Replace { key, place, value, room } => {
                group.rooms.push(room);
                if let Err(error) = self.stage_replacement(group, key, place, value) {
                    debug!(?key, %error, "a block was not recompressed");
                }
            }
            Command::Remember { key, record } => {
                if let Ok(meta) = self.store.family(META) {
                    group.batch.put_cf(meta, key, record);
                }
            }
            Command::Begin { root, name, reply } => {
                let pin = self.stage_begin(group, root, name);
                group.notify(pin.map(|pin| self.losses.begun(pin)), reply);
            }
            Command::BeginTemporary { reply } => {
                let pin = self.stage_temporary_pin(group);
                group.notify(pin.map(|pin| self.losses.begun(pin)), reply);
            }
            Command::Finish { attempt, reply } => self.stage_finish(group, attempt, reply),
            // Handled by `group`.
            Command::Forget { .. }
            | Command::Evict { .. }
            | Command::Shrink { .. }
            | Command::Lacking { .. }
            | Command::Remove { .. }
            | Command::Release { .. }
            | Command::Written { .. }
            | Command::Flush { .. }
            | Command::Compact { .. }
            | Command::Close { .. } => {}
        }
    }

    fn stage_cached(&mut self, group: &mut Group, block: &Block) -> Result<(), StoreError> {
        let Some(key) = block.key() else { return Ok(()) };
        if self.index(group, &key)?.is_some() {
            return Ok(());
        }
        // A member of a pin that was found damaged and forgotten comes back as a member.
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

    /// Says when the disk begins to refuse writes and when it stops. That rows of what goes are taken is no sign of that:
    /// a full disk takes those.
    fn note(&mut self, written: &Result<(), StoreError>, has_values: bool) {
        match written {
            Ok(()) if has_values => self.note_recovery(),
            Ok(()) => {}
            Err(error) => {
                self.stats.write_errors.inc();
                if self.failing.is_none() {
                    error!(%error, "the disk refuses writes: nothing is cached on it and pins fail until it recovers");
                }
                self.failing = Some(Trouble::of(error));
            }
        }
    }

    fn note_recovery(&mut self) {
        if self.failing.take().is_some() {
            info!("the disk takes writes again");
        }
    }

    fn drop_cached(&self, blocks: u64, error: &StoreError) {
        if blocks > 0 {
            self.stats.dropped_writes.inc_by(blocks);
            debug!(blocks, %error, "blocks were not cached");
        }
    }

    fn publish(&self) {
        self.stats.cached_bytes.store(self.sums.cached_bytes, Ordering::Relaxed);
        self.stats.pinned_bytes.store(self.sums.pinned_bytes, Ordering::Relaxed);
        self.stats.blocks.store(self.sums.blocks, Ordering::Relaxed);
        self.stats.set_trouble(self.unsyncable.as_ref().map_or(self.failing, |_| Some(Trouble::Broken)));
    }

    /// Forces everything to the disk.
    pub(super) fn sync(&mut self) -> Result<(), StoreError> {
        self.sync_values(&[Kind::Pinned, Kind::Cached])?;
        let synced = self.pinned_end(&self.begin()).to_key();
        let mut batch = WriteBatch::default();
        batch.put_cf(self.store.family(META)?, KEY_SYNCED, synced);
        // What is not noted is checked once more.
        _ = self.store.write(batch, false);
        self.store.sync_log()
    }

    /// Forces values to the disk, and the names of their files.
    fn sync_values(&mut self, kinds: &[Kind]) -> Result<(), StoreError> {
        if let Some(error) = &self.unsyncable {
            return Err(error.clone());
        }
        let files = &self.store.files;
        // A cached segment that was given up for its space has no file any more.
        let is_there = |segment: u32, kind: Kind| kind == Kind::Pinned || files.has(segment);
        let mut unsynced =
            self.unsynced.iter().filter(|(segment, kind)| kinds.contains(kind) && is_there(**segment, **kind));
        let values = unsynced.try_for_each(|(segment, _)| files.sync(*segment));
        let synced = values.and_then(|()| if self.names_unsynced { files.sync_names() } else { Ok(()) });
        if let Err(error) = synced.map_err(|error| self.told(error)) {
            error!(%error, "the disk refused to keep what it had taken: no pin is made until the store is opened again");
            self.unsyncable = Some(error.clone());
            self.publish();
            return Err(error);
        }
        self.names_unsynced = false;
        self.unsynced.retain(|_, kind| !kinds.contains(kind));
        Ok(())
    }

    /// Checks what the process before this one may have left unsynced, and forgets what is not on the disk. It was never
    /// acknowledged, and a pin that is gone on with must not believe in it: the index may be all that outlived a power cut, and
    /// after a sync that failed a value can be read from the system's memory although the disk does not have it.
    fn check_unsynced(&mut self) -> Result<(), StoreError> {
        // A store of an earlier build, which did not note it.
        let Some(synced) = self.store.synced()? else { return Ok(()) };
        let pinned = self.segments.range(synced.segment..).filter(|(_, record)| record.kind == Kind::Pinned);
        let doubted: Vec<Place> =
            pinned.map(|(segment, _)| Place { segment: *segment, offset: 0 }.max(synced)).collect();
        let (mut checked, mut lost) = (0, 0);
        for from in doubted {
            self.check_segment(from, &mut checked, &mut lost)?;
        }
        if checked > 0 {
            info!(blocks = checked, "checked what was not known to be on the disk when the store was last left");
            // If that is not noted, they are checked once more.
            _ = self.sync();
        }
        if lost > 0 {
            warn!(blocks = lost, "blocks of pins that were not complete never reached the disk: pin again to go on");
        }
        Ok(())
    }

    /// The same for the values of one segment from a place on. Counts how many there are and are forgotten. One that cannot
    /// be read for whatever reason is nothing to rely on.
    fn check_segment(&mut self, from: Place, checked: &mut u64, lost: &mut u64) -> Result<(), StoreError> {
        let store = Arc::clone(&self.store);
        store.files.forget_cached(from.segment)?;
        let (mut group, mut staged) = (self.begin(), 0);
        for row in store.rows_from(PLACES, &from.to_key())? {
            let (place, block) = row?;
            // Rows that are malformed or that the index disagrees with are for the repair of the index.
            let (Some(place), Some(key)) = (Place::from_key(&place), BlockKey::from_bytes(&block)) else { continue };
            if place.segment != from.segment {
                break;
            }
            let held = match self.index(&group, &key) {
                Err(StoreError::Corrupt(_)) => continue,
                held => held?.filter(|held| held.place == place),
            };
            let Some(held) = held else { continue };
            *checked += 1;
            if let Err(error) = store.verified(&key, held) {
                debug!(?key, %error, "a block never reached the disk: forgotten");
                self.stage_loss(&mut group, &key, held)?;
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
        if !self.is_tidy() || self.flushes.is_empty() {
            return;
        }
        if std::mem::take(&mut self.compacts) {
            self.sparse.extend(self.worth_compacting());
            return self.answer_flushes();
        }
        let released = self.unreleased.clone().map_or(Ok(()), Err);
        let done = self.sync().and(released);
        for Flush { reply, compacts } in self.flushes.drain(..) {
            let uncollected = self.uncollected.clone().filter(|_| compacts);
            _ = reply.send(uncollected.map_or(done.clone(), Err));
        }
    }

    fn close(&mut self, reply: Reply<Result<(), StoreError>>) -> Next {
        // From here on callers are refused instead of waiting for room.
        self.room.close();
        let synced = self.sync();
        for flush in self.flushes.drain(..) {
            _ = flush.reply.send(synced.clone());
        }
        _ = reply.send(synced);
        Next::Stop
    }
}

/// Pins that were being released, and temporary pins that stood, when the store was last closed or its process killed.
fn leftovers(store: &Store) -> Result<VecDeque<PinId>, StoreError> {
    let rows = store.keys_with_prefix(META, b"release/")?;
    rows.filter_map(|row| row.map(|key| released_pin(&key)).transpose()).collect()
}
