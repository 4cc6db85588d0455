//! [`MemoryIndex`]: the in-memory index of a store: its blocks, pins and eviction order. No I/O.
//!
//! Goals: every query is answered from memory; members of pins, complete or not, and of temporary pins are never in the
//! eviction queue; a block is reference-counted by its pins; the oldest block is evicted first, unless its reference
//! bit is set or it is in the RAM cache, in which case it gets a second chance (CLOCK).
//!
//! Memory: about 250 bytes for each block with a sha2-256, and 28 more for each pin that has it.
//!
//! Non-goals: values and their locations; durability.

use crate::disk::IncompletePin;
use crate::pins::{PinId, PinRecord, PinState, PinSummary};
use crate::reports::MissingBlocks;
use content::stored::Shape;
use content::{BlockKey, Cid};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A binary multihash.
pub(crate) type Key = Arc<[u8]>;

/// What the index has about a stored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueInfo {
    /// Its size in the store, in bytes.
    pub(crate) bytes: u64,
    /// Its form, if known.
    pub(crate) shape: Option<Shape>,
    /// Whether it was written durably.
    pub(crate) durable: bool,
}

/// A stored block, or a lost block that a pin has.
#[derive(Debug, Default)]
struct IndexEntry {
    value: Option<ValueInfo>,
    /// The number of pins and temporary pins that have it.
    pins: u32,
    /// Its position in the eviction queue, if it is queued.
    position: u64,
    /// The reference bit: read since it was stored, or since it was last spared.
    referenced: AtomicBool,
}

/// A pin or a temporary pin.
#[derive(Debug)]
struct Pin {
    /// `None` for a temporary pin.
    root: Option<Cid>,
    /// As last written; its counts were acknowledged.
    record: PinRecord,
    /// With their sizes as blocks, in bytes.
    members: BTreeMap<Key, u32>,
    /// Size of the members as blocks, in bytes.
    bytes: u64,
}

/// Some members of a pin that were looked up.
#[derive(Debug)]
pub(crate) struct MissingChunk {
    /// The last of them.
    pub(crate) last: Key,
    /// Those of them that are not stored, with their sizes as blocks, in bytes.
    pub(crate) missing: Vec<(Key, u32)>,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct MemoryIndex {
    blocks: HashMap<Key, IndexEntry>,
    /// Blocks that may be evicted, oldest first.
    eviction_queue: BTreeMap<u64, Key>,
    next_position: u64,
    pins: BTreeMap<PinId, Pin>,
    roots: HashMap<Cid, PinId>,
    /// Members of removed pins that are not unpinned yet.
    unpinning: Vec<Vec<Key>>,
    cached_bytes: u64,
    pinned_bytes: u64,
    count: u64,
    /// The credit for second chances, in bytes. Evicted bytes add to it, so that eviction always makes progress.
    second_chance_bytes: u64,
}

impl Default for MemoryIndex {
    fn default() -> Self {
        Self {
            blocks: HashMap::new(),
            eviction_queue: BTreeMap::new(),
            next_position: 1,
            pins: BTreeMap::new(),
            roots: HashMap::new(),
            unpinning: Vec::new(),
            cached_bytes: 0,
            pinned_bytes: 0,
            count: 0,
            second_chance_bytes: u64::MAX,
        }
    }
}

impl MemoryIndex {
    /// Size of the blocks that may be evicted, in bytes.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    /// Size of the pinned blocks, in bytes.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// The number of cached and pinned blocks.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The stored value of a block, if there is one.
    pub(crate) fn value(&self, key: &[u8]) -> Option<ValueInfo> {
        self.blocks.get(key)?.value
    }

    /// Sets a block's reference bit; returns whether it is stored.
    pub(crate) fn touch(&self, key: &[u8]) -> bool {
        let entry = self.blocks.get(key).filter(|entry| entry.value.is_some());
        entry.map(|entry| entry.referenced.store(true, Ordering::Relaxed)).is_some()
    }

    /// Whether a pin or temporary pin has the block, stored or not.
    pub(crate) fn has_pin(&self, key: &[u8]) -> bool {
        self.blocks.get(key).is_some_and(|entry| entry.pins > 0)
    }

    /// Records the form of a stored value.
    pub(crate) fn set_shape(&mut self, key: &[u8], shape: Shape) {
        if let Some(value) = self.blocks.get_mut(key).and_then(|entry| entry.value.as_mut()) {
            value.shape = Some(shape);
        }
    }

    /// Records that a value is durable.
    pub(crate) fn mark_durable(&mut self, key: &[u8]) {
        if let Some(value) = self.blocks.get_mut(key).and_then(|entry| entry.value.as_mut()) {
            value.durable = true;
        }
    }

    /// Inserts or replaces a value. Unless a pin has it, it becomes the newest in the eviction queue.
    pub(crate) fn put(&mut self, key: &Key, value: ValueInfo) {
        self.remove_value(key);
        let entry = self.blocks.entry(Arc::clone(key)).or_default();
        entry.value = Some(value);
        entry.referenced.store(false, Ordering::Relaxed);
        self.count += 1;
        if entry.pins > 0 {
            self.pinned_bytes += value.bytes;
        } else {
            entry.position = enqueue(&mut self.eviction_queue, &mut self.next_position, key);
            self.cached_bytes += value.bytes;
        }
    }

    /// Removes a value; returns whether it was stored. The block stays a member of its pins.
    pub(crate) fn remove_value(&mut self, key: &[u8]) -> bool {
        let Some(entry) = self.blocks.get_mut(key) else { return false };
        let Some(value) = entry.value.take() else { return false };
        self.count -= 1;
        if entry.pins > 0 {
            self.pinned_bytes -= value.bytes;
        } else {
            self.cached_bytes -= value.bytes;
            self.eviction_queue.remove(&entry.position);
            self.blocks.remove(key);
        }
        true
    }

    /// Removes the oldest cached blocks until the rest takes at most `target_bytes`, examining at most `examined_max`.
    /// Referenced blocks, and those that `is_hot`, get a second chance and become the newest: at first at most half of
    /// the target, then as many bytes as are evicted.
    pub(crate) fn evict(
        &mut self,
        target_bytes: u64,
        examined_max: usize,
        is_hot: impl Fn(&[u8]) -> bool,
    ) -> Vec<(Key, u64)> {
        let second_chance_max = target_bytes / 2;
        self.second_chance_bytes = self.second_chance_bytes.min(second_chance_max);
        let mut removed = Vec::new();
        for _ in 0..examined_max {
            if self.cached_bytes <= target_bytes {
                break;
            }
            let Some((_, key)) = self.eviction_queue.pop_first() else { break };
            let Some(entry) = self.blocks.get_mut(&key) else { continue };
            let bytes = entry.value.map_or(0, |value| value.bytes);
            let spared = entry.referenced.swap(false, Ordering::Relaxed) || is_hot(&key);
            if spared && bytes <= self.second_chance_bytes {
                self.second_chance_bytes -= bytes;
                entry.position = enqueue(&mut self.eviction_queue, &mut self.next_position, &key);
                continue;
            }
            self.second_chance_bytes = self.second_chance_bytes.saturating_add(bytes).min(second_chance_max);
            self.cached_bytes -= bytes;
            self.count -= 1;
            self.blocks.remove(&key);
            removed.push((key, bytes));
        }
        removed
    }

    /// The pins that have a block, stored or not, with their roots and current records; no temporary pins. Iterates
    /// over every pin.
    pub(crate) fn pins_with(&self, key: &[u8]) -> Vec<(Cid, PinRecord)> {
        if !self.has_pin(key) {
            return Vec::new();
        }
        let pins = self.pins.iter().filter(|(_, pin)| pin.members.contains_key(key));
        pins.filter_map(|(id, pin)| Some((pin.root?, self.current(*id)?))).collect()
    }

    /// Makes complete pins with missing blocks partial.
    pub(crate) fn mark_lacking(&mut self) {
        for IncompletePin { root, .. } in self.lacking(&HashSet::new(), &|_| false) {
            if let Some(record) = self.pin_of(&root).and_then(|pin| self.record(pin).cloned()) {
                self.set_pin(Some(root), PinRecord { state: PinState::Partial, ..record });
            }
        }
    }

    /// Whether some pin is partial.
    pub(crate) fn has_partial_pins(&self) -> bool {
        self.pins.values().any(|pin| pin.root.is_some() && pin.record.state == PinState::Partial)
    }

    /// The pin of a root.
    pub(crate) fn pin_of(&self, root: &Cid) -> Option<PinId> {
        self.roots.get(root).copied()
    }

    /// Whether the pin or temporary pin exists.
    pub(crate) fn has(&self, pin: PinId) -> bool {
        self.pins.contains_key(&pin)
    }

    /// A pin's record, as it was last written.
    pub(crate) fn record(&self, pin: PinId) -> Option<&PinRecord> {
        self.pins.get(&pin).map(|pin| &pin.record)
    }

    /// A pin's record with its current counts.
    pub(crate) fn current(&self, pin: PinId) -> Option<PinRecord> {
        let Pin { record, members, bytes, .. } = self.pins.get(&pin)?;
        Some(PinRecord { blocks: members.len() as u64, bytes: *bytes, ..record.clone() })
    }

    /// Inserts a pin, or replaces its record; without a root, it is a temporary pin.
    pub(crate) fn set_pin(&mut self, root: Option<Cid>, record: PinRecord) {
        root.map(|root| self.roots.insert(root, record.id));
        match self.pins.get_mut(&record.id) {
            Some(pin) => pin.record = record,
            None => _ = self.pins.insert(record.id, Pin { root, record, members: BTreeMap::new(), bytes: 0 }),
        }
    }

    /// Whether a pin has the block.
    pub(crate) fn is_member(&self, pin: PinId, key: &[u8]) -> bool {
        self.pins.get(&pin).is_some_and(|pin| pin.members.contains_key(key))
    }

    /// Adds a block to a pin; returns whether it is a new member.
    pub(crate) fn add_member(&mut self, pin: PinId, key: &Key, block_bytes: u64) -> bool {
        let Some(pin) = self.pins.get_mut(&pin) else { return false };
        let entry = self.blocks.entry(Arc::clone(key)).or_default();
        if pin.members.contains_key(key) {
            return false;
        }
        pin.members.insert(Arc::clone(key), u32::try_from(block_bytes).unwrap_or(u32::MAX));
        pin.bytes += block_bytes;
        entry.pins += 1;
        if let (1, Some(value)) = (entry.pins, entry.value) {
            self.eviction_queue.remove(&entry.position);
            self.cached_bytes -= value.bytes;
            self.pinned_bytes += value.bytes;
        }
        true
    }

    /// Removes a pin or temporary pin, if it exists. Its members are unpinned later, in chunks.
    pub(crate) fn remove_pin(&mut self, pin: PinId) {
        let Some(pin) = self.pins.remove(&pin) else { return };
        pin.root.map(|root| self.roots.remove(&root));
        self.unpinning.push(pin.members.into_keys().collect());
    }

    /// Whether members of removed pins are still to be unpinned.
    pub(crate) fn is_unpinning(&self) -> bool {
        !self.unpinning.is_empty()
    }

    /// Unpins some members of removed pins, and returns those that are removed: no other pin has them and they are not
    /// hot. Hot blocks become the newest in the eviction queue.
    pub(crate) fn unpin_chunk(&mut self, members_max: usize, is_hot: impl Fn(&[u8]) -> bool) -> Vec<Key> {
        let mut removed = Vec::new();
        for _ in 0..members_max {
            let Some(members) = self.unpinning.last_mut() else { break };
            let Some(key) = members.pop() else {
                self.unpinning.pop();
                continue;
            };
            let Some(entry) = self.blocks.get_mut(&key) else { continue };
            entry.pins = entry.pins.saturating_sub(1);
            if entry.pins > 0 {
                continue;
            }
            let Some(value) = entry.value else {
                self.blocks.remove(&key);
                continue;
            };
            self.pinned_bytes -= value.bytes;
            if is_hot(&key) {
                entry.position = enqueue(&mut self.eviction_queue, &mut self.next_position, &key);
                self.cached_bytes += value.bytes;
            } else {
                self.count -= 1;
                self.blocks.remove(&key);
                removed.push(key);
            }
        }
        removed
    }

    /// Every pin, by root.
    pub(crate) fn summaries(&self) -> Vec<PinSummary> {
        let mut roots: Vec<_> = self.roots.iter().collect();
        roots.sort_unstable();
        roots.into_iter().filter_map(|(root, pin)| Some(self.current(*pin)?.summary(*root))).collect()
    }

    /// The pins with missing blocks, by root. Blocks that a reader found `damaged` count as missing.
    pub(crate) fn lacking(
        &self,
        damaged: &HashSet<Key>,
        is_withheld: &dyn Fn(&BlockKey) -> bool,
    ) -> Vec<IncompletePin> {
        let lacks = |summary: PinSummary| {
            let pin = self.pins.get(&PinId(summary.id))?;
            let MissingBlocks { blocks: missing, withheld, .. } = self.missing_members(pin, is_withheld);
            let is_damaged = |key: &&Key| damaged.contains(*key) && self.value(key).is_some();
            let missing = missing + pin.members.keys().filter(is_damaged).count() as u64;
            let PinSummary { root, name, blocks, .. } = summary;
            (missing > 0).then_some(IncompletePin { root, name, missing, withheld, blocks })
        };
        self.summaries().into_iter().filter_map(lacks).collect()
    }

    /// Looks up at most `members_max` members of a partial pin, those after the last one of an earlier chunk; `None` at
    /// the end, or if there is no such pin.
    pub(crate) fn missing_chunk(&self, pin: PinId, after: Option<&Key>, members_max: usize) -> Option<MissingChunk> {
        let pin = self.pins.get(&pin).filter(|pin| pin.record.state == PinState::Partial)?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let members = pin.members.range::<Key, _>((from, Bound::Unbounded)).take(members_max);
        let mut chunk = None;
        for (key, block_bytes) in members {
            let chunk = chunk.get_or_insert_with(|| MissingChunk { last: Arc::clone(key), missing: Vec::new() });
            chunk.last = Arc::clone(key);
            if self.value(key).is_none() {
                chunk.missing.push((Arc::clone(key), *block_bytes));
            }
        }
        chunk
    }

    fn missing_members(&self, pin: &Pin, is_withheld: &dyn Fn(&BlockKey) -> bool) -> MissingBlocks {
        let mut missing = MissingBlocks::default();
        for (key, block_bytes) in pin.members.iter().filter(|(key, _)| self.value(key).is_none()) {
            missing.add(key, *block_bytes, is_withheld);
        }
        missing
    }

    /// Every stored block, in no order, with its value and whether it is pinned.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&Key, ValueInfo, bool)> {
        self.blocks.iter().filter_map(|(key, entry)| Some((key, entry.value?, entry.pins > 0)))
    }
}

/// Appends a block to the eviction queue and returns its position.
fn enqueue(queue: &mut BTreeMap<u64, Key>, next_position: &mut u64, key: &Key) -> u64 {
    let position = *next_position;
    *next_position += 1;
    queue.insert(position, Arc::clone(key));
    position
}
