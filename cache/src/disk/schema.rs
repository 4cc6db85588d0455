//! The column families, and how their keys and records are written.
//!
//! | family | key | value |
//! |---|---|---|
//! | `meta` | a name | schema version; [`Totals`]; `release/` + pin id for members that are to be let go |
//! | `blocks` | multihash | tag byte and data ([`super::value`]) |
//! | `index` | multihash | [`IndexRecord`]: answers `has` and sizes without touching a value |
//! | `fifo` | sequence | multihash of a block that is not pinned, oldest first |
//! | `pins` | root CID | [`PinRecord`] |
//! | `pins_by_block` | multihash, pin id | nothing |
//! | `blocks_by_pin` | pin id, multihash | nothing |
//!
//! Numbers are big-endian, so that keys sort by them. A binary multihash tells its own length: none is a prefix of
//! another, and whatever follows one in a key can be told apart.

use crate::pins::{PinState, PinSummary};
use content::Cid;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The layout that this release reads and writes. A change that an older release would misread adds one.
pub(crate) const SCHEMA: u32 = 1;

pub(crate) const META: &str = "meta";
pub(crate) const BLOCKS: &str = "blocks";
pub(crate) const INDEX: &str = "index";
pub(crate) const FIFO: &str = "fifo";
pub(crate) const PINS: &str = "pins";
pub(crate) const PINS_BY_BLOCK: &str = "pins_by_block";
pub(crate) const BLOCKS_BY_PIN: &str = "blocks_by_pin";

/// Every family that this release knows. RocksDB insists on "default", which stays empty.
pub(crate) const FAMILIES: [&str; 8] = ["default", META, BLOCKS, INDEX, FIFO, PINS, PINS_BY_BLOCK, BLOCKS_BY_PIN];

pub(crate) const KEY_SCHEMA: &[u8] = b"schema";
pub(crate) const KEY_TOTALS: &[u8] = b"totals";
const RELEASE: &[u8] = b"release/";

/// What a block costs on disk beside its value, in bytes: its key in `blocks`, `index` and `fifo`, their records and
/// RocksDB's own framing and filters. Counted so that a cache full of tiny blocks stays within its budget too.
pub(crate) const ROW_OVERHEAD_BYTES: u64 = 160;

/// Names one pin for as long as the store lives; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PinId(pub(crate) u64);

/// What the presence index says about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexRecord {
    /// Bytes of the block.
    pub(crate) size: u32,
    /// Bytes of the value it is stored as.
    pub(crate) stored: u32,
    /// Its place in `fifo`; 0 when it is pinned and has none.
    pub(crate) seq: u64,
}

impl IndexRecord {
    pub(crate) fn pinned(self) -> bool {
        self.seq == 0
    }

    /// What the block counts for in the totals.
    pub(crate) fn cost(self) -> u64 {
        u64::from(self.stored) + ROW_OVERHEAD_BYTES
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..4].copy_from_slice(&self.size.to_be_bytes());
        out[4..8].copy_from_slice(&self.stored.to_be_bytes());
        out[8..].copy_from_slice(&self.seq.to_be_bytes());
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let (size, stored, seq) = (take_u32(&mut rest)?, take_u32(&mut rest)?, take_u64(&mut rest)?);
        rest.is_empty().then_some(Self { size, stored, seq })
    }
}

/// Sums and counters, rewritten in the same batch as the rows that they describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Cost of the blocks that may be evicted.
    pub(crate) cached_bytes: u64,
    /// Cost of the blocks that are pinned.
    pub(crate) pinned_bytes: u64,
    /// Blocks of both kinds.
    pub(crate) blocks: u64,
    /// The next place in `fifo`; starts at 1, as 0 means "pinned".
    pub(crate) next_seq: u64,
    /// No `fifo` row lies before this one: look-ups start here, past the tombstones of what was evicted.
    pub(crate) head: u64,
    /// The id of the next pin.
    pub(crate) next_pin: u64,
}

impl Default for Totals {
    fn default() -> Self {
        Self { cached_bytes: 0, pinned_bytes: 0, blocks: 0, next_seq: 1, head: 1, next_pin: 1 }
    }
}

impl Totals {
    pub(crate) fn take_seq(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }

    /// Sums never go below zero: a difference left behind by a disk that failed must not stop the store.
    pub(crate) fn add(&mut self, record: IndexRecord) {
        let sum = if record.pinned() { &mut self.pinned_bytes } else { &mut self.cached_bytes };
        *sum = sum.saturating_add(record.cost());
        self.blocks = self.blocks.saturating_add(1);
    }

    pub(crate) fn remove(&mut self, record: IndexRecord) {
        let sum = if record.pinned() { &mut self.pinned_bytes } else { &mut self.cached_bytes };
        *sum = sum.saturating_sub(record.cost());
        self.blocks = self.blocks.saturating_sub(1);
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let Self { cached_bytes, pinned_bytes, blocks, next_seq, head, next_pin } = self;
        [cached_bytes, pinned_bytes, blocks, next_seq, head, next_pin].iter().flat_map(|n| n.to_be_bytes()).collect()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let totals = Self {
            cached_bytes: take_u64(&mut rest)?,
            pinned_bytes: take_u64(&mut rest)?,
            blocks: take_u64(&mut rest)?,
            next_seq: take_u64(&mut rest)?,
            head: take_u64(&mut rest)?,
            next_pin: take_u64(&mut rest)?,
        };
        rest.is_empty().then_some(totals)
    }
}

/// One recursive pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinRecord {
    pub(crate) id: PinId,
    pub(crate) created: SystemTime,
    pub(crate) state: PinState,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) name: Option<String>,
}

impl PinRecord {
    pub(crate) fn new(id: PinId, name: Option<String>) -> Self {
        Self { id, created: SystemTime::now(), state: PinState::Partial, blocks: 0, bytes: 0, name }
    }

    pub(crate) fn summary(&self, root: Cid) -> PinSummary {
        let Self { id, created, state, blocks, bytes, name } = self.clone();
        PinSummary { root, id: id.0, name, created, state, blocks, bytes }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let created_ms = self.created.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let mut out = Vec::with_capacity(64);
        for number in [self.id.0, u64::try_from(created_ms).unwrap_or(u64::MAX), self.blocks, self.bytes] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(u8::from(self.state == PinState::Complete));
        out.push(u8::from(self.name.is_some()));
        out.extend_from_slice(self.name.as_deref().unwrap_or_default().as_bytes());
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let (id, created_ms) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
        let (blocks, bytes) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
        let (complete, named, name) = match rest {
            [complete @ 0..=1, named @ 0..=1, name @ ..] => (*complete == 1, *named == 1, name),
            _ => return None,
        };
        let name = std::str::from_utf8(name).ok()?.to_owned();
        Some(Self {
            id: PinId(id),
            created: UNIX_EPOCH.checked_add(Duration::from_millis(created_ms))?,
            state: if complete { PinState::Complete } else { PinState::Partial },
            blocks,
            bytes,
            name: named.then_some(name),
        })
    }
}

/// Key in `pins_by_block`.
pub(crate) fn pin_of_block(block: &[u8], pin: PinId) -> Vec<u8> {
    [block, &pin.0.to_be_bytes()].concat()
}

/// Key in `blocks_by_pin`.
pub(crate) fn block_of_pin(pin: PinId, block: &[u8]) -> Vec<u8> {
    [&pin.0.to_be_bytes(), block].concat()
}

/// The block of a key in `blocks_by_pin`, if the key belongs to `pin`.
pub(crate) fn member(key: &[u8], pin: PinId) -> Option<&[u8]> {
    key.strip_prefix(pin.0.to_be_bytes().as_slice())
}

/// Key in `meta` of a pin whose members are to be let go: it was removed, or was only ever a scaffold.
pub(crate) fn release_key(pin: PinId) -> Vec<u8> {
    [RELEASE, &pin.0.to_be_bytes()].concat()
}

/// The pin of a [`release_key`].
pub(crate) fn released_pin(key: &[u8]) -> Option<PinId> {
    take_u64(&mut key.strip_prefix(RELEASE)?).map(PinId)
}

pub(crate) fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u64::from_be_bytes(*head))
}

pub(crate) fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u32::from_be_bytes(*head))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_come_back_as_they_were_written(
            numbers in proptest::array::uniform6(any::<u64>()), size: u32, stored: u32, name: Option<String>,
            complete: bool, created_ms in 0..u64::from(u32::MAX) * 1_000
        ) {
            let [cached_bytes, pinned_bytes, blocks, next_seq, head, next_pin] = numbers;
            let totals = Totals { cached_bytes, pinned_bytes, blocks, next_seq, head, next_pin };
            prop_assert_eq!(Totals::from_bytes(&totals.to_bytes()), Some(totals));
            let index = IndexRecord { size, stored, seq: next_seq };
            prop_assert_eq!(IndexRecord::from_bytes(&index.to_bytes()), Some(index));
            let pin = PinRecord {
                id: PinId(next_pin),
                created: UNIX_EPOCH + Duration::from_millis(created_ms),
                state: if complete { PinState::Complete } else { PinState::Partial },
                blocks,
                bytes: cached_bytes,
                name,
            };
            prop_assert_eq!(PinRecord::from_bytes(&pin.to_bytes()), Some(pin.clone()));
            prop_assert_eq!(released_pin(&release_key(pin.id)), Some(pin.id));
        }

        #[test]
        fn damaged_records_are_no_records(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            _ = (Totals::from_bytes(&bytes), IndexRecord::from_bytes(&bytes), PinRecord::from_bytes(&bytes));
        }
    }
}
