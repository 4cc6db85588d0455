//! [`Ledger`]: which blocks a store holds, which pins hold them, and which of them go first. Without I/O.
//!
//! Goals: every question is answered from memory; what a pin has, complete or not, and what a temporary pin has never stands in the
//! line of what may be evicted; a block is counted once for each pin that has it; the oldest goes first, but for what was read
//! since it came or is wanted by somebody else, which gets a second chance.
//!
//! What it costs: about 250 bytes for each block with a sha2-256, and 20 more for each pin that has it.
//!
//! Non-goals: values and where they are; whether what it says is on the disk.

use crate::disk::LackingPin;
use crate::pins::{PinId, PinRecord, PinState, PinSummary};
use crate::stored::Shape;
use content::Cid;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A binary multihash.
pub(crate) type Key = Arc<[u8]>;

/// A value that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// What it takes where it is kept, in bytes.
    pub(crate) bytes: u64,
    /// Its form, once somebody looked.
    pub(crate) shape: Option<Shape>,
    /// Whether it is kept for good: written through to the disk.
    pub(crate) durable: bool,
}

/// A block that is held, or that a pin has and that was lost.
#[derive(Debug, Default)]
struct Entry {
    held: Option<Held>,
    /// Pins and temporary pins that have it.
    pins: u32,
    /// Its place in the line, if it stands there.
    turn: u64,
    /// Read since it came, or since it was last spared.
    touched: AtomicBool,
}

/// A pin or a temporary pin.
#[derive(Debug)]
struct Pin {
    /// `None` for a temporary pin.
    root: Option<Cid>,
    /// As it was last written; what it counts was acknowledged.
    record: PinRecord,
    members: HashSet<Key>,
    /// Bytes of the members, as blocks.
    bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ledger {
    blocks: HashMap<Key, Entry>,
    /// What may be evicted, oldest first.
    line: BTreeMap<u64, Key>,
    next_turn: u64,
    pins: BTreeMap<PinId, Pin>,
    roots: HashMap<Cid, PinId>,
    /// Members of pins that were removed.
    leaving: Vec<Vec<Key>>,
    cached_bytes: u64,
    pinned_bytes: u64,
    count: u64,
    /// What may still be spared. What is evicted adds to it, so that eviction gets on whatever is wanted.
    mercy_bytes: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            blocks: HashMap::new(),
            line: BTreeMap::new(),
            next_turn: 1,
            pins: BTreeMap::new(),
            roots: HashMap::new(),
            leaving: Vec::new(),
            cached_bytes: 0,
            pinned_bytes: 0,
            count: 0,
            mercy_bytes: u64::MAX,
        }
    }
}

impl Ledger {
    /// What blocks take that may be evicted, in bytes.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    /// What pinned blocks take, in bytes.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// Blocks of both kinds.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// What is known of a block that is held.
    pub(crate) fn held(&self, key: &[u8]) -> Option<Held> {
        self.blocks.get(key)?.held
    }

    /// Whether a block is held; it counts as read from now on.
    pub(crate) fn touch(&self, key: &[u8]) -> bool {
        let entry = self.blocks.get(key).filter(|entry| entry.held.is_some());
        entry.map(|entry| entry.touched.store(true, Ordering::Relaxed)).is_some()
    }

    /// Whether a pin or temporary pin has the block, held or not.
    pub(crate) fn has_pin(&self, key: &[u8]) -> bool {
        self.blocks.get(key).is_some_and(|entry| entry.pins > 0)
    }

    /// Notes the form of a value that is held.
    pub(crate) fn learn(&mut self, key: &[u8], shape: Shape) {
        if let Some(held) = self.blocks.get_mut(key).and_then(|entry| entry.held.as_mut()) {
            held.shape = Some(shape);
        }
    }

    /// Notes that a value is kept for good.
    pub(crate) fn mark_durable(&mut self, key: &[u8]) {
        if let Some(held) = self.blocks.get_mut(key).and_then(|entry| entry.held.as_mut()) {
            held.durable = true;
        }
    }

    /// Takes a value in, in the place of a former one if there is one. Unless a pin has it, it is the newest in the line.
    pub(crate) fn put(&mut self, key: &Key, held: Held) {
        self.lose(key);
        let entry = self.blocks.entry(Arc::clone(key)).or_default();
        entry.held = Some(held);
        entry.touched.store(false, Ordering::Relaxed);
        self.count += 1;
        if entry.pins > 0 {
            self.pinned_bytes += held.bytes;
        } else {
            entry.turn = stand_in(&mut self.line, &mut self.next_turn, key);
            self.cached_bytes += held.bytes;
        }
    }

    /// Notes that a value is gone, and says whether it was held. Pins that have the block go on having it.
    pub(crate) fn lose(&mut self, key: &[u8]) -> bool {
        let Some(entry) = self.blocks.get_mut(key) else { return false };
        let Some(held) = entry.held.take() else { return false };
        self.count -= 1;
        if entry.pins > 0 {
            self.pinned_bytes -= held.bytes;
        } else {
            self.cached_bytes -= held.bytes;
            self.line.remove(&entry.turn);
            self.blocks.remove(key);
        }
        true
    }

    /// Takes the oldest out of the ledger until what may be evicted takes no more than `target_bytes`, or until it has looked
    /// at `looks_max` of them. What was read, or `is_wanted`, becomes the newest instead: at most half of the target to begin
    /// with, and then as much as goes.
    pub(crate) fn evict(
        &mut self,
        target_bytes: u64,
        looks_max: usize,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Vec<(Key, u64)> {
        let mercy_max = target_bytes / 2;
        self.mercy_bytes = self.mercy_bytes.min(mercy_max);
        let mut gone = Vec::new();
        for _ in 0..looks_max {
            if self.cached_bytes <= target_bytes {
                break;
            }
            let Some((_, key)) = self.line.pop_first() else { break };
            let Some(entry) = self.blocks.get_mut(&key) else { continue };
            let bytes = entry.held.map_or(0, |held| held.bytes);
            let wanted = entry.touched.swap(false, Ordering::Relaxed) || is_wanted(&key);
            if wanted && bytes <= self.mercy_bytes {
                self.mercy_bytes -= bytes;
                entry.turn = stand_in(&mut self.line, &mut self.next_turn, &key);
                continue;
            }
            self.mercy_bytes = self.mercy_bytes.saturating_add(bytes).min(mercy_max);
            self.cached_bytes -= bytes;
            self.count -= 1;
            self.blocks.remove(&key);
            gone.push((key, bytes));
        }
        gone
    }

    /// The pins that have a block, held or not, with their roots and what they have now. Temporary pins are not among them. Looks
    /// at every pin.
    pub(crate) fn pins_with(&self, key: &[u8]) -> Vec<(Cid, PinRecord)> {
        if !self.has_pin(key) {
            return Vec::new();
        }
        let having = self.pins.iter().filter(|(_, pin)| pin.members.contains(key));
        having.filter_map(|(id, pin)| Some((pin.root?, self.current(*id)?))).collect()
    }

    /// Makes pins partial that lack blocks: of what was complete, something was lost.
    pub(crate) fn mark_lacking(&mut self) {
        for LackingPin { root, .. } in self.lacking(&HashSet::new()) {
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

    /// Whether there is such a pin or temporary pin.
    pub(crate) fn has(&self, pin: PinId) -> bool {
        self.pins.contains_key(&pin)
    }

    /// A pin's record, as it was last written.
    pub(crate) fn record(&self, pin: PinId) -> Option<&PinRecord> {
        self.pins.get(&pin).map(|pin| &pin.record)
    }

    /// A pin's record, counting what it has now.
    pub(crate) fn current(&self, pin: PinId) -> Option<PinRecord> {
        let Pin { record, members, bytes, .. } = self.pins.get(&pin)?;
        Some(PinRecord { blocks: members.len() as u64, bytes: *bytes, ..record.clone() })
    }

    /// Takes a pin in, or its record as it is written now; without a root, it is a temporary pin.
    pub(crate) fn set_pin(&mut self, root: Option<Cid>, record: PinRecord) {
        root.map(|root| self.roots.insert(root, record.id));
        match self.pins.get_mut(&record.id) {
            Some(pin) => pin.record = record,
            None => _ = self.pins.insert(record.id, Pin { root, record, members: HashSet::new(), bytes: 0 }),
        }
    }

    /// Whether a pin has the block.
    pub(crate) fn is_member(&self, pin: PinId, key: &[u8]) -> bool {
        self.pins.get(&pin).is_some_and(|pin| pin.members.contains(key))
    }

    /// Gives a block to a pin, and says whether that is news.
    pub(crate) fn add_member(&mut self, pin: PinId, key: &Key, block_bytes: u64) -> bool {
        let Some(pin) = self.pins.get_mut(&pin) else { return false };
        let entry = self.blocks.entry(Arc::clone(key)).or_default();
        if !pin.members.insert(Arc::clone(key)) {
            return false;
        }
        pin.bytes += block_bytes;
        entry.pins += 1;
        if let (1, Some(held)) = (entry.pins, entry.held) {
            self.line.remove(&entry.turn);
            self.cached_bytes -= held.bytes;
            self.pinned_bytes += held.bytes;
        }
        true
    }

    /// Removes a pin or temporary pin, if there is such a one. Its members are let go by and by.
    pub(crate) fn remove_pin(&mut self, pin: PinId) {
        let Some(pin) = self.pins.remove(&pin) else { return };
        pin.root.map(|root| self.roots.remove(&root));
        self.leaving.push(pin.members.into_iter().collect());
    }

    /// Whether members of removed pins are still to be let go.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Lets go of some members of removed pins, and gives those that nothing keeps: no other pin has them and they are not
    /// `wanted`. What is wanted becomes the newest in the line.
    pub(crate) fn let_go(&mut self, members_max: usize, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<Key> {
        let mut gone = Vec::new();
        for _ in 0..members_max {
            let Some(members) = self.leaving.last_mut() else { break };
            let Some(key) = members.pop() else {
                self.leaving.pop();
                continue;
            };
            let Some(entry) = self.blocks.get_mut(&key) else { continue };
            entry.pins = entry.pins.saturating_sub(1);
            if entry.pins > 0 {
                continue;
            }
            let Some(held) = entry.held else {
                self.blocks.remove(&key);
                continue;
            };
            self.pinned_bytes -= held.bytes;
            if is_wanted(&key) {
                entry.turn = stand_in(&mut self.line, &mut self.next_turn, &key);
                self.cached_bytes += held.bytes;
            } else {
                self.count -= 1;
                self.blocks.remove(&key);
                gone.push(key);
            }
        }
        gone
    }

    /// Every pin, by root.
    pub(crate) fn summaries(&self) -> Vec<PinSummary> {
        let mut roots: Vec<_> = self.roots.iter().collect();
        roots.sort_unstable();
        roots.into_iter().filter_map(|(root, pin)| Some(self.current(*pin)?.summary(*root))).collect()
    }

    /// The pins that have blocks which are not held, by root. Those that a reader found `damaged` are not held either.
    pub(crate) fn lacking(&self, damaged: &HashSet<Key>) -> Vec<LackingPin> {
        let is_missing = |key: &&Key| self.held(key).is_none() || damaged.contains(*key);
        let lacks = |summary: PinSummary| {
            let members = &self.pins.get(&PinId(summary.id))?.members;
            let missing = members.iter().filter(is_missing).count() as u64;
            let PinSummary { root, name, blocks, .. } = summary;
            (missing > 0).then_some(LackingPin { root, name, missing, blocks })
        };
        self.summaries().into_iter().filter_map(lacks).collect()
    }

    /// Every block that is held, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&Key, Held, bool)> {
        self.blocks.iter().filter_map(|(key, entry)| Some((key, entry.held?, entry.pins > 0)))
    }
}

/// Puts a block at the end of the line.
fn stand_in(line: &mut BTreeMap<u64, Key>, next_turn: &mut u64, key: &Key) -> u64 {
    let turn = *next_turn;
    *next_turn += 1;
    line.insert(turn, Arc::clone(key));
    turn
}
