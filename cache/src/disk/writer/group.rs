//! [`Group`]: a batch being staged, with a view of the rows that it changes, so that later commands of a group see the
//! earlier ones; and how it is written.

use super::super::StoreError;
use super::super::files::Files;
use super::super::record;
use super::super::schema::{
    Counters, INDEX, IndexRecord, KEY_COUNTERS, KEY_SYNCED, Kind, META, PINS, PINS_BY_BLOCK, PLACES, PinId, PinRecord,
    Place, SEGMENTS, SegmentRecord, pin_of_block,
};
use super::{CHUNK_ROWS, Writer};
use crate::pins::{MemberFailure, PinAttempt};
use crate::queue::{Reply, Room};
use bytes::Bytes;
use content::stored::Shape;
use content::{BlockKey, Cid};
use rocksdb::WriteBatch;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tracing::warn;

/// A group is written when its values reach this size, or when the queue is empty.
pub(super) const GROUP_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Larger pieces are written directly; smaller ones are buffered.
const BUFFER_BELOW_BYTES: usize = 32 * 1024;

/// Writeback of a pinned segment is started each time this many bytes were written, ahead of the sync.
const WRITEBACK_BYTES: u32 = 4 * 1024 * 1024;

/// Called with the result of writing a group.
type Notice = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The segments that values are appended to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tails {
    cached: Option<u32>,
    pinned: Option<u32>,
}

impl Tails {
    pub(super) fn get(self, kind: Kind) -> Option<u32> {
        match kind {
            Kind::Cached => self.cached,
            Kind::Pinned => self.pinned,
        }
    }

    pub(super) fn set(&mut self, kind: Kind, segment: Option<u32>) {
        match kind {
            Kind::Cached => self.cached = segment,
            Kind::Pinned => self.pinned = segment,
        }
    }

    pub(super) fn contain(self, segment: u32) -> bool {
        self.cached == Some(segment) || self.pinned == Some(segment)
    }
}

/// A value to store.
pub(super) struct NewValue {
    pub(super) kind: Kind,
    pub(super) shape: Shape,
    /// The base, if it is a slice.
    pub(super) base: Option<BlockKey>,
    pub(super) value: [Bytes; 2],
}

/// A record to append.
struct Append {
    place: Place,
    head: Vec<u8>,
    value: [Bytes; 2],
}

pub(crate) struct Group {
    pub(crate) batch: WriteBatch,
    pub(crate) index: HashMap<BlockKey, Option<IndexRecord>>,
    pub(super) members: HashSet<(BlockKey, PinId)>,
    pub(super) pins: HashMap<Cid, Option<PinRecord>>,
    /// Pins begun or completed by this group: they are appended to the journal after they are written to the index.
    pub(super) journal_entries: Vec<(Cid, PinRecord)>,
    /// Pins that lose blocks with this group.
    pub(super) lost: Vec<(PinId, Cid)>,
    /// Roots of pins that may get a block back with this group.
    pub(super) returned: Vec<Cid>,
    pub(super) counters: Counters,
    /// Whether the group, and all before it, are synced when it is written.
    pub(crate) sync: bool,
    /// Whether values are synced before rows are written, because they replace the only copy of pinned blocks.
    pub(crate) values_first: bool,
    /// Whether the batch raises the schema version.
    pub(super) raises_schema: bool,
    /// Whether the group may use space that must stay free, because it reclaims more than it takes.
    pub(crate) into_reserve: bool,
    pub(super) cached: u64,
    pub(super) attempts: Vec<Arc<PinAttempt>>,
    pub(super) notices: Vec<Notice>,
    pub(super) rooms: Vec<Room>,
    /// The changed segments, in their new state.
    segments: BTreeMap<u32, SegmentRecord>,
    tails: Tails,
    appends: Vec<Append>,
    appended_bytes: usize,
    /// Whether writing values to files has started.
    appending: bool,
    /// Whether the batch was submitted to RocksDB, which may have written it even if it returns an error.
    submitted: bool,
}

impl Group {
    pub(crate) fn full(&self) -> bool {
        self.appended_bytes >= GROUP_BYTES_MAX || self.rooms.len() >= CHUNK_ROWS
    }

    /// Records the result of staging a member of a pin.
    pub(super) fn add_member_result(
        &mut self,
        attempt: Arc<PinAttempt>,
        staged: Result<(), MemberFailure>,
        room: Room,
    ) {
        self.rooms.push(room);
        if let Err(failure) = staged {
            attempt.fail(failure);
        }
        if self.attempts.last().is_none_or(|last| !Arc::ptr_eq(last, &attempt)) {
            self.attempts.push(attempt);
        }
    }

    /// Replies when the staged change is written, or at once if it could not be staged.
    pub(super) fn notify<T: Send + 'static>(
        &mut self,
        staged: Result<T, StoreError>,
        reply: Reply<Result<T, StoreError>>,
    ) {
        match staged {
            Ok(value) => self.notices.push(Box::new(move |written| _ = reply.send(written.map(|()| value)))),
            Err(error) => _ = reply.send(Err(error)),
        }
    }
}

impl Writer {
    pub(crate) fn begin(&self) -> Group {
        Group {
            batch: WriteBatch::default(),
            index: HashMap::new(),
            members: HashSet::new(),
            pins: HashMap::new(),
            journal_entries: Vec::new(),
            lost: Vec::new(),
            returned: Vec::new(),
            counters: self.counters,
            sync: false,
            values_first: false,
            raises_schema: false,
            into_reserve: false,
            cached: 0,
            attempts: Vec::new(),
            notices: Vec::new(),
            rooms: Vec::new(),
            segments: BTreeMap::new(),
            tails: self.tails,
            appends: Vec::new(),
            appended_bytes: 0,
            appending: false,
            submitted: false,
        }
    }

    pub(super) fn index(&self, group: &Group, key: &BlockKey) -> Result<Option<IndexRecord>, StoreError> {
        match group.index.get(key) {
            Some(staged) => Ok(*staged),
            None => self.store.index(&key.to_bytes()),
        }
    }

    pub(super) fn pin(&self, group: &Group, root: Cid) -> Result<Option<PinRecord>, StoreError> {
        match group.pins.get(&root) {
            Some(staged) => Ok(staged.clone()),
            None => self.store.pin(&root.to_bytes()),
        }
    }

    /// Whether a pin other than `except` has the block as a member, as far as it is written.
    pub(super) fn has_pin(&self, key: &BlockKey, except: Option<PinId>) -> Result<bool, StoreError> {
        let block = key.to_bytes();
        let except = except.map(|pin| pin_of_block(&block, pin));
        for row in self.store.keys_with_prefix(PINS_BY_BLOCK, &block)? {
            if except.as_deref() != Some(&*row?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn stage_pin(&self, group: &mut Group, root: Cid, record: PinRecord) -> Result<(), StoreError> {
        group.batch.put_cf(self.store.family(PINS)?, root.to_bytes(), record.to_bytes());
        group.pins.insert(root, Some(record));
        Ok(())
    }

    /// Stages a value to be appended to the segment of its kind. An existing value of the block becomes dead.
    pub(crate) fn stage_value(
        &self,
        group: &mut Group,
        key: BlockKey,
        kind: Kind,
        shape: Shape,
        value: [Bytes; 2],
    ) -> Result<(), StoreError> {
        self.stage_record(group, key, NewValue { kind, shape, base: None, value })
    }

    /// Stages a value, which may be a slice, like [`Self::stage_value`].
    pub(super) fn stage_record(&self, group: &mut Group, key: BlockKey, value: NewValue) -> Result<(), StoreError> {
        let NewValue { kind, shape, base, value } = value;
        let (index, places) = (self.store.family(INDEX)?, self.store.family(PLACES)?);
        let indexed = self.index(group, &key)?;
        let block = key.to_bytes();
        let too_large = || StoreError::io("a block is too large for a record");
        let head = record::head(&block, &value).ok_or_else(too_large)?;
        let value_bytes = value.iter().map(Bytes::len).sum();
        let bytes = u32::try_from(record::record_bytes(&block, value_bytes)).map_err(|_| too_large())?;
        let place = self.place(group, kind, bytes)?;
        if let Some(indexed) = indexed {
            // The write-ahead log may be synced first, and must not refer to the new place before the value is synced:
            // after power loss the old value would be unreachable.
            group.values_first |= indexed.pinned() && kind == Kind::Pinned;
            self.stage_dead_value(group, &block, indexed)?;
        }
        let record = IndexRecord { shape, kind, place, base };
        group.batch.put_cf(index, &block, record.to_bytes());
        group.batch.put_cf(places, place.to_key(), &block);
        group.index.insert(key, Some(record));
        let mut segment = self.segment(group, place.segment).unwrap_or_else(|| SegmentRecord::new(kind));
        segment.written += bytes;
        segment.live += bytes;
        segment.blocks += 1;
        group.segments.insert(place.segment, segment);
        group.appended_bytes += head.len() + value.iter().map(Bytes::len).sum::<usize>();
        group.appends.push(Append { place, head, value });
        Ok(())
    }

    /// Stages the removal of a block.
    pub(super) fn stage_removal(
        &self,
        group: &mut Group,
        key: &BlockKey,
        indexed: IndexRecord,
    ) -> Result<(), StoreError> {
        let (index, block) = (self.store.family(INDEX)?, key.to_bytes());
        self.stage_dead_value(group, &block, indexed)?;
        group.batch.delete_cf(index, &block);
        group.index.insert(*key, None);
        Ok(())
    }

    fn stage_dead_value(&self, group: &mut Group, block: &[u8], indexed: IndexRecord) -> Result<(), StoreError> {
        group.batch.delete_cf(self.store.family(PLACES)?, indexed.place.to_key());
        if let Some(mut segment) = self.segment(group, indexed.place.segment) {
            // Saturating: an inconsistency after a disk failure must not stop the store.
            segment.live = segment.live.saturating_sub(record_bytes(block, indexed).unwrap_or_default());
            segment.blocks = segment.blocks.saturating_sub(1);
            group.segments.insert(indexed.place.segment, segment);
        }
        Ok(())
    }

    /// Stages that a segment has no live values, even if its record differs.
    pub(super) fn stage_empty(&self, group: &mut Group, segment: u32) {
        if let Some(record) = self.segment(group, segment) {
            group.segments.insert(segment, SegmentRecord { live: 0, blocks: 0, ..record });
        }
    }

    fn segment(&self, group: &Group, segment: u32) -> Option<SegmentRecord> {
        group.segments.get(&segment).or_else(|| self.segments.get(&segment)).copied()
    }

    /// The end of the current segment of a kind, or the beginning of a new one if it is full.
    fn place(&self, group: &mut Group, kind: Kind, bytes: u32) -> Result<Place, StoreError> {
        let tail = group.tails.get(kind).and_then(|tail| Some((tail, self.segment(group, tail)?.written)));
        if let Some((segment, written)) = tail
            && (written == 0 || written.saturating_add(bytes) <= self.segment_bytes_max(kind))
        {
            return Ok(Place { segment, offset: written });
        }
        // A full segment is synced, so that there is little to check at the start after power loss.
        group.values_first |= kind == Kind::Pinned && tail.is_some();
        let segment = group.counters.segment;
        let next = segment.checked_add(1).ok_or_else(|| {
            StoreError::io("all segment numbers are used: export the pinned content and import it into a new store")
        })?;
        group.counters.segment = next;
        group.tails.set(kind, Some(segment));
        Ok(Place { segment, offset: 0 })
    }

    /// The end of pinned values: new ones are written there, or after it.
    pub(super) fn pinned_end(&self, group: &Group) -> Place {
        let tail = group.tails.get(Kind::Pinned).and_then(|tail| Some((tail, self.segment(group, tail)?.written)));
        let (segment, offset) = tail.unwrap_or((group.counters.segment, 0));
        Place { segment, offset }
    }

    /// The maximum size of a segment of a kind. Cached segments are evicted as a whole, so they are limited to a
    /// sixteenth of the budget.
    pub(super) fn segment_bytes_max(&self, kind: Kind) -> u32 {
        let budget = match kind {
            Kind::Cached => u32::try_from(self.options.cache_bytes_max / 16).unwrap_or(u32::MAX),
            Kind::Pinned => u32::MAX,
        };
        budget.min(self.options.segment_bytes_max)
    }

    /// Writes the group and notifies all callers.
    pub(super) fn commit(&mut self, mut group: Group) {
        let written = self.write(&mut group).and_then(|()| self.append_pins(&group));
        if let Err(error) = &written {
            self.drop_cached(group.cached, error);
            for attempt in &group.attempts {
                attempt.fail(MemberFailure::Store(error.clone()));
            }
        }
        for notice in group.notices {
            notice(written.clone());
        }
    }

    /// Appends pins to the journal before they are acknowledged. For a pin that was only begun, an error is ignored.
    fn append_pins(&self, group: &Group) -> Result<(), StoreError> {
        let appended = self.store.append_pins(&group.journal_entries, group.sync);
        if group.sync { appended.map_err(|error| self.with_space_figures(error)) } else { Ok(()) }
    }

    pub(crate) fn write(&mut self, group: &mut Group) -> Result<(), StoreError> {
        if group.batch.is_empty() && group.segments.is_empty() && !group.sync {
            return Ok(());
        }
        self.keep_headroom();
        let written = self.write_parts(group).map_err(|error| self.with_space_figures(error));
        match &written {
            Ok(()) => self.apply(group),
            Err(_) => self.roll_back(group),
        }
        self.record_result(&written, !group.appends.is_empty());
        self.publish();
        written
    }

    fn write_parts(&mut self, group: &mut Group) -> Result<(), StoreError> {
        self.append(group)?;
        // Rows that empty a pinned segment are synced before its file is deleted.
        let deletes_pinned = |(segment, record): (&u32, &SegmentRecord)| {
            record.kind == Kind::Pinned && record.blocks == 0 && !group.tails.contain(*segment)
        };
        let sync = group.sync || group.segments.iter().any(deletes_pinned);
        let values_first = sync || group.values_first;
        if values_first {
            self.sync_values(&[Kind::Pinned])?;
        }
        let (segments, meta) = (self.store.family(SEGMENTS)?, self.store.family(META)?);
        let mut batch = std::mem::take(&mut group.batch);
        if values_first {
            batch.put_cf(meta, KEY_SYNCED, self.pinned_end(group).to_key());
        }
        for (segment, record) in &group.segments {
            if record.blocks == 0 && !group.tails.contain(*segment) {
                batch.delete_cf(segments, segment.to_be_bytes());
            } else {
                batch.put_cf(segments, segment.to_be_bytes(), record.to_bytes());
            }
        }
        batch.put_cf(meta, KEY_COUNTERS, group.counters.to_bytes());
        group.submitted = true;
        if group.appends.is_empty() { self.write_rows(batch, sync) } else { self.store.write(batch, sync) }
    }

    /// Appends the group's values to their segments.
    fn append(&mut self, group: &mut Group) -> Result<(), StoreError> {
        if group.appends.is_empty() {
            return Ok(());
        }
        let needed = if group.into_reserve { self.headroom_bytes() } else { self.free_bytes_min() };
        self.check_free_space(needed, group.appended_bytes)?;
        if self.failing.is_some() {
            // Values whose rows fail are truncated only by the next start: repeated attempts would fill the disk.
            self.probe_index()?;
        }
        group.appending = true;
        self.names_unsynced |= group.segments.keys().any(|segment| !self.segments.contains_key(segment));
        let mut buffer = AppendBuffer::at(&self.store.files, group.appends[0].place);
        for Append { place, head, value } in &group.appends {
            let kind = group.segments.get(&place.segment).map_or(Kind::Cached, |segment| segment.kind);
            self.unsynced.insert(place.segment, kind);
            buffer.seek(*place, kind)?;
            buffer.put(head)?;
            value.iter().try_for_each(|piece| buffer.put(piece))?;
        }
        buffer.write()?;
        self.start_writeback(group);
        Ok(())
    }

    /// Starts writeback of pinned values early, so that the final sync is short.
    fn start_writeback(&mut self, group: &Group) {
        for (segment, record) in group.segments.iter().filter(|(_, record)| record.kind == Kind::Pinned) {
            let before = self.segments.get(segment).map_or(0, |before| before.written);
            if record.written == before {
                continue;
            }
            let started =
                self.writeback.filter(|(current, _)| current == segment).map_or(before, |(_, started)| started);
            let pending = record.written.saturating_sub(started);
            let starts = pending >= WRITEBACK_BYTES;
            if starts {
                self.store.files.start_writeback(*segment, started, pending);
            }
            self.writeback = Some((*segment, if starts { record.written } else { started }));
        }
    }

    /// Applies a written group to the writer's state.
    fn apply(&mut self, group: &mut Group) {
        (self.counters, self.tails) = (group.counters, group.tails);
        if group.raises_schema {
            self.store.raised_schema();
        }
        for (root, record) in &group.pins {
            if let Some(PinRecord { packed: Some(packed), .. }) = record {
                self.store.set_packed(*root, Some(packed));
            }
        }
        group.lost.drain(..).for_each(|(pin, root)| self.losses.lost(pin, root));
        group.returned.drain(..).for_each(|root| self.losses.returned(root));
        for (segment, record) in std::mem::take(&mut group.segments) {
            let former = self.segments.insert(segment, record);
            former.into_iter().for_each(|former| self.sums.remove(former));
            self.sums.add(record);
            if former.is_none() && record.kind == Kind::Cached {
                self.store.reference_bits.watch(segment, record.written.max(self.segment_bytes_max(Kind::Cached)));
            }
            if former.is_some_and(|former| former.written != record.written) {
                self.punched.remove(&segment);
            }
            if record.blocks == 0 && !self.tails.contain(segment) {
                self.delete_segment(segment, record);
            } else if self.is_sparse(segment) {
                self.sparse.insert(segment);
            }
        }
    }

    fn delete_segment(&mut self, segment: u32, record: SegmentRecord) {
        self.sums.remove(record);
        self.segments.remove(&segment);
        self.unsynced.remove(&segment);
        self.sparse.remove(&segment);
        self.punched.remove(&segment);
        self.store.reference_bits.unwatch(segment);
        if let Err(error) = self.store.files.delete(segment) {
            warn!(%error, "a segment could not be deleted; the next start deletes it");
        }
    }

    /// Rolls back a group that failed. It may still be in the write-ahead log and reappear, so its segment and pin
    /// numbers are not reused, unless nothing of it was written: then a disk that stays full uses up no numbers. Values
    /// that no row can refer to are truncated, since nothing else would reclaim their space.
    fn roll_back(&mut self, group: &Group) {
        if !group.appending && !group.submitted {
            return;
        }
        self.counters = group.counters;
        for segment in group.appends.iter().map(|append| append.place.segment).collect::<BTreeSet<_>>() {
            match self.segments.get(&segment).copied() {
                Some(record) => {
                    // There may be data beyond its end nevertheless.
                    self.tails.set(record.kind, None);
                    if !group.submitted
                        && let Err(error) = self.store.files.truncate(segment, record.written)
                    {
                        warn!(segment, %error, "the values of a failed write could not be truncated");
                    }
                }
                None if group.submitted => {}
                None => {
                    self.unsynced.remove(&segment);
                    _ = self.store.files.delete(segment);
                }
            }
        }
    }
}

fn record_bytes(block: &[u8], record: IndexRecord) -> Option<u32> {
    u32::try_from(record::record_bytes(block, record.value_bytes())).ok()
}

/// Buffers small adjacent pieces, so that they are written together.
struct AppendBuffer<'a> {
    files: &'a Files,
    place: Place,
    kind: Kind,
    bytes: Vec<u8>,
}

impl<'a> AppendBuffer<'a> {
    fn at(files: &'a Files, place: Place) -> Self {
        Self { files, place, kind: Kind::Cached, bytes: Vec::new() }
    }

    /// Sets the place of the next piece.
    fn seek(&mut self, place: Place, kind: Kind) -> Result<(), StoreError> {
        let end = u64::from(self.place.offset) + self.bytes.len() as u64;
        if place.segment != self.place.segment || u64::from(place.offset) != end {
            self.write()?;
            self.place = place;
        }
        self.kind = kind;
        Ok(())
    }

    fn put(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        if piece.len() < BUFFER_BELOW_BYTES {
            self.bytes.extend_from_slice(piece);
            return Ok(());
        }
        self.write()?;
        self.write_piece(piece)
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let written = self.write_piece(&bytes);
        bytes.clear();
        self.bytes = bytes;
        written
    }

    fn write_piece(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        if piece.is_empty() {
            return Ok(());
        }
        self.files.write(self.place.segment, self.place.offset, piece, self.kind == Kind::Pinned)?;
        self.place.offset += u32::try_from(piece.len()).map_err(|_| StoreError::io("a piece is larger than 4 GiB"))?;
        Ok(())
    }
}
