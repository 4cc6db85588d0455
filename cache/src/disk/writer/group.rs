//! [`Group`]: one batch in the making, with a view of the rows that it changes, so that later commands of a group see
//! the earlier ones; and how it is written.

use super::super::StoreError;
use super::super::files::Files;
use super::super::record;
use super::super::schema::{
    Counters, INDEX, IndexRecord, KEY_COUNTERS, KEY_SYNCED, Kind, META, PINS, PINS_BY_BLOCK, PLACES, PinId, PinRecord,
    Place, SEGMENTS, SegmentRecord, pin_of_block,
};
use super::{CHUNK_ROWS, Writer};
use crate::pins::{Attempt, MemberFailure};
use crate::queue::{Reply, Room};
use crate::stored::Shape;
use bytes::Bytes;
use content::{BlockKey, Cid};
use rocksdb::WriteBatch;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tracing::warn;

/// A group is written when its values have grown to this size, or when nothing more is waiting.
pub(super) const GROUP_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Pieces from this size on are written from where they are; smaller ones are gathered first.
const GATHER_BELOW_BYTES: usize = 32 * 1024;

/// So much of a pinned segment is given to the disk at a time before anybody syncs it.
const FLOW_BYTES: u32 = 4 * 1024 * 1024;

/// What a caller hears when its group is written or is not.
type Notice = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The segments that values are appended to, if there are any.
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

/// A record that is to be appended.
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
    /// Pins that were begun or completed: they are entered in the journal when they are in the index.
    pub(super) entered: Vec<(Cid, PinRecord)>,
    /// Pins that lose blocks by it.
    pub(super) lost: Vec<(PinId, Cid)>,
    /// Roots of pins that may have a block back by it.
    pub(super) returned: Vec<Cid>,
    pub(super) counters: Counters,
    /// On the disk when it is written, with all before it.
    pub(crate) sync: bool,
    /// Its values are on the disk before its rows may be: what those replace is all that is kept of pinned blocks.
    pub(crate) values_first: bool,
    /// It gives back more than it takes, so it may use the space that is to stay free.
    pub(crate) into_reserve: bool,
    pub(super) cached: u64,
    pub(super) attempts: Vec<Arc<Attempt>>,
    pub(super) notices: Vec<Notice>,
    pub(super) rooms: Vec<Room>,
    /// The segments that it changes, as they will be.
    segments: BTreeMap<u32, SegmentRecord>,
    tails: Tails,
    appends: Vec<Append>,
    appended_bytes: usize,
    /// Its values are being written to files.
    appending: bool,
    /// RocksDB has been asked to write it, so it may have, whatever it says.
    handed_over: bool,
}

impl Group {
    pub(crate) fn full(&self) -> bool {
        self.appended_bytes >= GROUP_BYTES_MAX || self.rooms.len() >= CHUNK_ROWS
    }

    /// Takes note of a member that was staged for a pin, or could not be.
    pub(super) fn attempted(&mut self, attempt: Arc<Attempt>, staged: Result<(), MemberFailure>, room: Room) {
        self.rooms.push(room);
        if let Err(failure) = staged {
            attempt.fail(failure);
        }
        if self.attempts.last().is_none_or(|last| !Arc::ptr_eq(last, &attempt)) {
            self.attempts.push(attempt);
        }
    }

    /// Answers with what was staged when it is written, or at once with what kept it from being staged.
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
            entered: Vec::new(),
            lost: Vec::new(),
            returned: Vec::new(),
            counters: self.counters,
            sync: false,
            values_first: false,
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
            handed_over: false,
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

    /// Whether a pin other than `except` has the block as a member, by what is written.
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

    /// Stages a value at the end of its kind. A value that the block has elsewhere is dead from then on.
    pub(crate) fn stage_value(
        &self,
        group: &mut Group,
        key: BlockKey,
        kind: Kind,
        shape: Shape,
        value: [Bytes; 2],
    ) -> Result<(), StoreError> {
        let (index, places) = (self.store.family(INDEX)?, self.store.family(PLACES)?);
        let held = self.index(group, &key)?;
        let block = key.to_bytes();
        let too_large = || StoreError::io("a block is too large for a record");
        let head = record::head(&block, &value).ok_or_else(too_large)?;
        let bytes = record_bytes(&block, shape).ok_or_else(too_large)?;
        let place = self.place(group, kind, bytes)?;
        if let Some(held) = held {
            // The log may reach the disk by itself, and must not name a new place before the value is there: the former
            // one would be lost with a power cut.
            group.values_first |= held.pinned() && kind == Kind::Pinned;
            self.stage_dead(group, &block, held)?;
        }
        let record = IndexRecord { shape, kind, place };
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

    /// Stages that a block is gone.
    pub(super) fn stage_removal(&self, group: &mut Group, key: &BlockKey, held: IndexRecord) -> Result<(), StoreError> {
        let (index, block) = (self.store.family(INDEX)?, key.to_bytes());
        self.stage_dead(group, &block, held)?;
        group.batch.delete_cf(index, &block);
        group.index.insert(*key, None);
        Ok(())
    }

    fn stage_dead(&self, group: &mut Group, block: &[u8], held: IndexRecord) -> Result<(), StoreError> {
        group.batch.delete_cf(self.store.family(PLACES)?, held.place.to_key());
        if let Some(mut segment) = self.segment(group, held.place.segment) {
            // Sums never go below zero: a difference left behind by a disk that failed must not stop the store.
            segment.live = segment.live.saturating_sub(record_bytes(block, held.shape).unwrap_or_default());
            segment.blocks = segment.blocks.saturating_sub(1);
            group.segments.insert(held.place.segment, segment);
        }
        Ok(())
    }

    /// Stages that nothing in a segment is named any more, whatever its record says.
    pub(super) fn stage_empty(&self, group: &mut Group, segment: u32) {
        if let Some(record) = self.segment(group, segment) {
            group.segments.insert(segment, SegmentRecord { live: 0, blocks: 0, ..record });
        }
    }

    fn segment(&self, group: &Group, segment: u32) -> Option<SegmentRecord> {
        group.segments.get(&segment).or_else(|| self.segments.get(&segment)).copied()
    }

    /// The end of a kind's segment, or the beginning of a new one when it is full.
    fn place(&self, group: &mut Group, kind: Kind, bytes: u32) -> Result<Place, StoreError> {
        let tail = group.tails.get(kind).and_then(|tail| Some((tail, self.segment(group, tail)?.written)));
        if let Some((segment, written)) = tail
            && (written == 0 || written.saturating_add(bytes) <= self.segment_bytes_max(kind))
        {
            return Ok(Place { segment, offset: written });
        }
        // One that is full is synced, so that there is little to check when the store is opened after a power cut.
        group.values_first |= kind == Kind::Pinned && tail.is_some();
        let segment = group.counters.segment;
        let next = segment.checked_add(1).ok_or_else(|| StoreError::io("there are no segment numbers left"))?;
        group.counters.segment = next;
        group.tails.set(kind, Some(segment));
        Ok(Place { segment, offset: 0 })
    }

    /// Where pinned values end: those that come go there, or beyond.
    pub(super) fn pinned_end(&self, group: &Group) -> Place {
        let tail = group.tails.get(Kind::Pinned).and_then(|tail| Some((tail, self.segment(group, tail)?.written)));
        let (segment, offset) = tail.unwrap_or((group.counters.segment, 0));
        Place { segment, offset }
    }

    /// How long a segment of a kind grows. Cached ones are evicted whole, a sixteenth of the budget at a time.
    pub(super) fn segment_bytes_max(&self, kind: Kind) -> u32 {
        let budget = match kind {
            Kind::Cached => u32::try_from(self.options.cache_bytes_max / 16).unwrap_or(u32::MAX),
            Kind::Pinned => u32::MAX,
        };
        budget.min(self.options.segment_bytes_max)
    }

    /// Writes the group and tells everyone who has a part in it.
    pub(super) fn commit(&mut self, mut group: Group) {
        let written = self.write(&mut group).and_then(|()| self.enter_pins(&group));
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

    /// Enters pins in the journal before they are acknowledged. One that was only begun does without if need be.
    fn enter_pins(&self, group: &Group) -> Result<(), StoreError> {
        let entered = self.store.enter_pins(&group.entered, group.sync);
        if group.sync { entered.map_err(|error| self.told(error)) } else { Ok(()) }
    }

    pub(crate) fn write(&mut self, group: &mut Group) -> Result<(), StoreError> {
        if group.batch.is_empty() && group.segments.is_empty() && !group.sync {
            return Ok(());
        }
        self.keep_headroom();
        let written = self.write_parts(group).map_err(|error| self.told(error));
        match &written {
            Ok(()) => self.adopt(group),
            Err(_) => self.abandon(group),
        }
        self.note(&written, !group.appends.is_empty());
        self.publish();
        written
    }

    fn write_parts(&mut self, group: &mut Group) -> Result<(), StoreError> {
        self.append(group)?;
        // The rows that take the last of a pinned segment away are on the disk before its file is deleted.
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
        group.handed_over = true;
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
            // Values whose rows are refused are cut off by the next start only: attempt after attempt would fill the disk.
            self.probe_index()?;
        }
        group.appending = true;
        self.names_unsynced |= group.segments.keys().any(|segment| !self.segments.contains_key(segment));
        let mut gathered = Gathered::at(&self.store.files, group.appends[0].place);
        for Append { place, head, value } in &group.appends {
            let kind = group.segments.get(&place.segment).map_or(Kind::Cached, |segment| segment.kind);
            self.unsynced.insert(place.segment, kind);
            gathered.go_to(*place, kind)?;
            gathered.put(head)?;
            value.iter().try_for_each(|piece| gathered.put(piece))?;
        }
        gathered.write()?;
        self.let_flow(group);
        Ok(())
    }

    /// What will be synced is on its way to the disk while more of it comes, instead of all at the end.
    fn let_flow(&mut self, group: &Group) {
        for (segment, record) in group.segments.iter().filter(|(_, record)| record.kind == Kind::Pinned) {
            let before = self.segments.get(segment).map_or(0, |before| before.written);
            if record.written == before {
                continue;
            }
            let begun = self.flowing.filter(|(flowing, _)| flowing == segment).map_or(before, |(_, begun)| begun);
            let waiting = record.written.saturating_sub(begun);
            let flows = waiting >= FLOW_BYTES;
            if flows {
                self.store.files.begin_to_write(*segment, begun, waiting);
            }
            self.flowing = Some((*segment, if flows { record.written } else { begun }));
        }
    }

    /// The group is in the store.
    fn adopt(&mut self, group: &mut Group) {
        (self.counters, self.tails) = (group.counters, group.tails);
        group.lost.drain(..).for_each(|(pin, root)| self.losses.lost(pin, root));
        group.returned.drain(..).for_each(|root| self.losses.returned(root));
        for (segment, record) in std::mem::take(&mut group.segments) {
            let former = self.segments.insert(segment, record);
            former.into_iter().for_each(|former| self.sums.remove(former));
            self.sums.add(record);
            if former.is_none() && record.kind == Kind::Cached {
                self.store.touched.watch(segment, record.written.max(self.segment_bytes_max(Kind::Cached)));
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
        self.store.touched.forget(segment);
        if let Err(error) = self.store.files.delete(segment) {
            warn!(%error, "a segment could not be deleted; it is when the store is next opened");
        }
    }

    /// The group is not in the store, or only in a log that may come back: what it took is not used again. One that came to
    /// nothing before any of it was written took nothing: a disk that is full for long uses up no numbers. Values that no row
    /// can name are cut off, for nobody would ever give their space back.
    fn abandon(&mut self, group: &Group) {
        if !group.appending && !group.handed_over {
            return;
        }
        self.counters = group.counters;
        for segment in group.appends.iter().map(|append| append.place.segment).collect::<BTreeSet<_>>() {
            match self.segments.get(&segment).copied() {
                Some(record) => {
                    // Something may lie beyond its end, all the same.
                    self.tails.set(record.kind, None);
                    if !group.handed_over
                        && let Err(error) = self.store.files.cut(segment, record.written)
                    {
                        warn!(segment, %error, "what was written in vain could not be cut off");
                    }
                }
                None if group.handed_over => {}
                None => {
                    self.unsynced.remove(&segment);
                    _ = self.store.files.delete(segment);
                }
            }
        }
    }
}

fn record_bytes(block: &[u8], shape: Shape) -> Option<u32> {
    u32::try_from(record::record_bytes(block, shape.value_bytes())).ok()
}

/// Small pieces on their way to one place, so that they are written together.
struct Gathered<'a> {
    files: &'a Files,
    place: Place,
    kind: Kind,
    bytes: Vec<u8>,
}

impl<'a> Gathered<'a> {
    fn at(files: &'a Files, place: Place) -> Self {
        Self { files, place, kind: Kind::Cached, bytes: Vec::new() }
    }

    /// Goes to a place in a segment of a kind.
    fn go_to(&mut self, place: Place, kind: Kind) -> Result<(), StoreError> {
        let end = u64::from(self.place.offset) + self.bytes.len() as u64;
        if place.segment != self.place.segment || u64::from(place.offset) != end {
            self.write()?;
            self.place = place;
        }
        self.kind = kind;
        Ok(())
    }

    fn put(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        if piece.len() < GATHER_BELOW_BYTES {
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
