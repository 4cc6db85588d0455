//! The column families, and the formats of their keys and records.
//!
//! | family | key | value |
//! |---|---|---|
//! | `meta` | a name | schema version; [`Counters`]; [`ScrubRecord`]; [`RecompressRecord`]; synced place; `members` |
//! | `meta` | `release/`, pin ID | empty: a pin to unpin |
//! | `meta` | `damaged/`, multihash | empty: a corrupt block to delete |
//! | `meta` | `unverified/`, [`Place`] | during a rebuild: a slice that was found there |
//! | `index` | multihash | [`IndexRecord`]: the place of the value; answers `has` and sizes without reading it |
//! | `places` | [`Place`] | multihash of the block whose value is there; sorted by place |
//! | `segments` | segment | [`SegmentRecord`] |
//! | `pins` | root CID | [`PinRecord`] |
//! | `pins_by_block` | multihash, pin ID | empty |
//! | `blocks_by_pin` | pin ID, multihash | empty |
//!
//! The index row of a slice ([`content::stored::Slice`]) names the block whose frame it is, its *base*, so that the
//! slice counts as missing while its base is missing, and is there again when the base is. A pin that has a slice has
//! its base too. The first slice, or the first pin of a packed file, raises the schema version from
//! [`SCHEMA_UNPACKED`].
//!
//! Numbers are big-endian, so that keys sort by them. A binary multihash contains its length, so none is a prefix of
//! another, and what follows one in a key is unambiguous.

pub(crate) use crate::pins::{PinId, PinRecord};

use super::record::record_bytes;
use content::BlockKey;
use content::stored::{Shape, slice};

/// The schema version that this release reads and writes. It is incremented for changes that older releases would
/// misread.
pub(crate) const SCHEMA: u32 = 3;

/// The schema version of a store without slices and packed pins, which older releases read.
pub(crate) const SCHEMA_UNPACKED: u32 = 2;

pub(crate) const META: &str = "meta";
pub(crate) const INDEX: &str = "index";
pub(crate) const PLACES: &str = "places";
pub(crate) const SEGMENTS: &str = "segments";
pub(crate) const PINS: &str = "pins";
pub(crate) const PINS_BY_BLOCK: &str = "pins_by_block";
pub(crate) const BLOCKS_BY_PIN: &str = "blocks_by_pin";

/// Every family of this schema. RocksDB requires "default", which stays empty.
pub(crate) const FAMILIES: [&str; 8] = ["default", META, INDEX, PLACES, SEGMENTS, PINS, PINS_BY_BLOCK, BLOCKS_BY_PIN];

pub(crate) const KEY_SCHEMA: &[u8] = b"schema";
pub(crate) const KEY_COUNTERS: &[u8] = b"counters";
pub(crate) const KEY_SCRUB: &[u8] = b"scrub";
/// The [`Place`] before which every pinned value is synced. Earlier releases ignore it.
pub(crate) const KEY_SYNCED: &[u8] = b"synced";
pub(crate) const KEY_TRIED: &[u8] = b"recompressed";
/// Set if every pin was compared with the stored blocks, and losses have been recorded since. If it is absent, the
/// comparison is done when the store is opened.
pub(crate) const KEY_MEMBERS: &[u8] = b"members";
/// The prefix, before the multihash, of the keys of blocks that an offline check found corrupt.
pub(crate) const DAMAGED: &[u8] = b"damaged/";
/// The prefix, before a place, of the keys of slices that a rebuild has not verified yet; their rows are the length of
/// the multihash (1 byte), the multihash and an [`IndexRecord`].
pub(crate) const UNVERIFIED: &[u8] = b"unverified/";
const RELEASE: &[u8] = b"release/";

/// The overhead of a block on the disk, in bytes: its rows in `index` and `places`, and RocksDB's framing and filters.
/// Counted so that a cache full of tiny blocks stays within its budget.
pub(crate) const ROW_OVERHEAD_BYTES: u64 = 160;

/// The kind of values in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Values that may be evicted.
    Cached,
    /// Pinned values.
    Pinned,
}

/// The location of a value's record. Sorts in disk order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The segment. Numbers increase and are never reused.
    pub(crate) segment: u32,
    /// The offset in its file, in bytes.
    pub(crate) offset: u32,
}

impl Place {
    /// Key in `places`.
    pub(crate) fn to_key(self) -> [u8; 8] {
        (u64::from(self.segment) << 32 | u64::from(self.offset)).to_be_bytes()
    }

    /// Parses [`Place::to_key`].
    pub(crate) fn from_key(key: &[u8]) -> Option<Self> {
        let mut rest = key;
        let (segment, offset) = (take_u32(&mut rest)?, take_u32(&mut rest)?);
        rest.is_empty().then_some(Self { segment, offset })
    }
}

/// The index row of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexRecord {
    /// The form in which a reader gets the block, and its lengths: those of its value, unless it is a slice.
    pub(crate) shape: Shape,
    /// The kind of its value's segment.
    pub(crate) kind: Kind,
    /// The place of its value.
    pub(crate) place: Place,
    /// The block that has its frame, if the value is a slice.
    pub(crate) base: Option<BlockKey>,
}

impl IndexRecord {
    pub(crate) fn pinned(self) -> bool {
        self.kind == Kind::Pinned
    }

    /// The length of the value, in bytes.
    pub(crate) fn value_bytes(self) -> usize {
        self.base.map_or(self.shape.value_bytes(), |base| slice::value_bytes(self.shape, &base))
    }

    /// The size of a block in the store, in bytes.
    pub(crate) fn cost(self, block: &[u8]) -> u64 {
        record_bytes(block, self.value_bytes()) as u64 + ROW_OVERHEAD_BYTES
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let (form, [first, second, third, fourth]) = match self.shape {
            Shape::Raw { block_bytes } => (0, [block_bytes, 0, 0, 0]),
            Shape::Frame { block_bytes, frame_bytes } => (1, [block_bytes, frame_bytes, 0, 0]),
            Shape::Envelope { prefix_bytes, payload_bytes, suffix_bytes, frame_bytes } => {
                (2, [payload_bytes, frame_bytes, prefix_bytes, suffix_bytes])
            }
        };
        let number = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
        let byte = |bytes: usize| u8::try_from(bytes).unwrap_or(u8::MAX);
        let form = if self.base.is_some() { form | SLICE } else { form };
        let mut out = Vec::with_capacity(INDEX_BYTES);
        out.extend_from_slice(&[u8::from(self.pinned()), form, byte(third), byte(fourth)]);
        out.extend_from_slice(&number(first));
        out.extend_from_slice(&number(second));
        out.extend_from_slice(&self.place.to_key());
        self.base.iter().for_each(|base| out.extend_from_slice(&base.to_bytes()));
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (bytes, base) = bytes.split_first_chunk::<INDEX_BYTES>()?;
        let [pinned @ 0..=1, form, third, fourth, rest @ ..] = bytes else { return None };
        let base = match form & SLICE {
            0 => base.is_empty().then_some(None)?,
            _ => Some(BlockKey::from_bytes(base)?),
        };
        let mut rest = rest.as_slice();
        let first = usize::try_from(take_u32(&mut rest)?).ok()?;
        let second = usize::try_from(take_u32(&mut rest)?).ok()?;
        let shape = match form & !SLICE {
            0 if base.is_none() => Shape::Raw { block_bytes: first },
            1 => Shape::Frame { block_bytes: first, frame_bytes: second },
            2 => Shape::Envelope {
                prefix_bytes: usize::from(*third),
                payload_bytes: first,
                suffix_bytes: usize::from(*fourth),
                frame_bytes: second,
            },
            _ => return None,
        };
        let kind = if *pinned == 1 { Kind::Pinned } else { Kind::Cached };
        Some(Self { shape, kind, place: Place::from_key(rest)?, base })
    }
}

/// The bit of an index row's form for slices, whose rows end with the key of the base.
const SLICE: u8 = 1 << 7;

/// The size of an [`IndexRecord`] without a base; it was 16 in schema 1.
pub(crate) const INDEX_BYTES: usize = 20;

/// The row of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentRecord {
    /// The kind of its values.
    pub(crate) kind: Kind,
    /// The size of its file, and the offset of the next record.
    pub(crate) written: u32,
    /// The size of its live records, in bytes.
    pub(crate) live: u32,
    /// The number of its live records.
    pub(crate) blocks: u32,
}

impl SegmentRecord {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, written: 0, live: 0, blocks: 0 }
    }

    /// Its size on the disk, in bytes.
    pub(crate) fn cost(self) -> u64 {
        u64::from(self.written) + u64::from(self.blocks) * ROW_OVERHEAD_BYTES
    }

    pub(crate) fn to_bytes(self) -> [u8; 13] {
        let mut out = [0; 13];
        out[0] = u8::from(self.kind == Kind::Pinned);
        out[1..5].copy_from_slice(&self.written.to_be_bytes());
        out[5..9].copy_from_slice(&self.live.to_be_bytes());
        out[9..].copy_from_slice(&self.blocks.to_be_bytes());
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (pinned @ 0..=1, rest) = bytes.split_first()? else { return None };
        let mut rest = rest;
        let (written, live, blocks) = (take_u32(&mut rest)?, take_u32(&mut rest)?, take_u32(&mut rest)?);
        let kind = if *pinned == 1 { Kind::Pinned } else { Kind::Cached };
        rest.is_empty().then_some(Self { kind, written, live, blocks })
    }
}

/// The next IDs, written in the same batch as the rows that use the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    /// The next segment.
    pub(crate) segment: u32,
    /// The ID of the next pin.
    pub(crate) pin: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { segment: 1, pin: 1 }
    }
}

impl Counters {
    pub(crate) fn allocate_pin_id(&mut self) -> PinId {
        let pin = PinId(self.pin);
        self.pin += 1;
        pin
    }

    pub(crate) fn to_bytes(self) -> [u8; 12] {
        let mut out = [0; 12];
        out[..4].copy_from_slice(&self.segment.to_be_bytes());
        out[4..].copy_from_slice(&self.pin.to_be_bytes());
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let (segment, pin) = (take_u32(&mut rest)?, take_u64(&mut rest)?);
        rest.is_empty().then_some(Self { segment, pin })
    }
}

/// The position of the scrub, from which it resumes after a restart. Advisory: earlier releases ignore it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ScrubRecord {
    /// When the last complete pass ended, in milliseconds since 1970; 0 if there was none.
    pub(crate) ended_ms: u64,
    /// The start of the next step; zero if no pass is in progress.
    pub(crate) at: Place,
}

impl ScrubRecord {
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.ended_ms.to_be_bytes());
        out[8..].copy_from_slice(&self.at.to_key());
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        Some(Self { ended_ms: take_u64(&mut rest)?, at: Place::from_key(rest)? })
    }
}

/// The progress of recompressing pinned values. Advisory, like [`ScrubRecord`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RecompressRecord {
    /// The zstd level.
    pub(crate) level: u8,
    /// Values before this place were tried at that level.
    pub(crate) before: Place,
}

impl RecompressRecord {
    pub(crate) fn to_bytes(self) -> [u8; 9] {
        let mut out = [self.level; 9];
        out[1..].copy_from_slice(&self.before.to_key());
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (level, before) = bytes.split_first()?;
        Some(Self { level: *level, before: Place::from_key(before)? })
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

/// Key in `meta` of a pin whose members are to be unpinned: a removed or a temporary pin.
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
    use crate::pins::PinState;
    use proptest::prelude::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn shape() -> impl Strategy<Value = Shape> {
        let bytes = 0..4_usize << 20;
        (0..3, bytes.clone(), bytes, 0..256_usize, 0..256_usize).prop_map(|(form, first, second, prefix, suffix)| {
            match form {
                0 => Shape::Raw { block_bytes: first },
                1 => Shape::Frame { block_bytes: first, frame_bytes: second },
                _ => Shape::Envelope {
                    prefix_bytes: prefix,
                    payload_bytes: first,
                    suffix_bytes: suffix,
                    frame_bytes: second,
                },
            }
        })
    }

    proptest! {
        #[test]
        fn records_round_trip(
            shape in shape(), place in (any::<u32>(), any::<u32>()), numbers: [u32; 4], large: [u64; 3],
            pinned: bool, name: Option<String>, created_ms in 0..u64::from(u32::MAX) * 1_000,
            base in proptest::option::of(any::<[u8; 32]>())
        ) {
            let base = base.map(|digest| {
                let hash = content::Multihash::wrap(content::hashes::SHA2_256, &digest).expect("32 bytes fit");
                content::Cid::new_v1(content::codec::DAG_PB, hash)
            });
            let kind = if pinned { Kind::Pinned } else { Kind::Cached };
            let (place, [written, live, blocks, segment]) = (Place { segment: place.0, offset: place.1 }, numbers);
            prop_assert_eq!(Place::from_key(&place.to_key()), Some(place));
            let is_compressed = !matches!(shape, Shape::Raw { .. });
            let base_key = base.as_ref().and_then(BlockKey::of).filter(|_| is_compressed);
            let index = IndexRecord { shape, kind, place, base: base_key };
            prop_assert_eq!(IndexRecord::from_bytes(&index.to_bytes()), Some(index));
            let record = SegmentRecord { kind, written, live, blocks };
            prop_assert_eq!(SegmentRecord::from_bytes(&record.to_bytes()), Some(record));
            let scrub = ScrubRecord { ended_ms: large[1], at: place };
            prop_assert_eq!(ScrubRecord::from_bytes(&scrub.to_bytes()), Some(scrub));
            let tried = RecompressRecord { level: 19, before: place };
            prop_assert_eq!(RecompressRecord::from_bytes(&tried.to_bytes()), Some(tried));
            let counters = Counters { segment, pin: large[0] };
            prop_assert_eq!(Counters::from_bytes(&counters.to_bytes()), Some(counters));
            let pin = PinRecord {
                id: PinId(large[0]),
                created: UNIX_EPOCH + Duration::from_millis(created_ms),
                state: if pinned { PinState::Complete } else { PinState::Partial },
                blocks: large[1],
                bytes: large[2],
                name,
                packed: base,
            };
            prop_assert_eq!(PinRecord::from_bytes(&pin.to_bytes()), Some(pin.clone()));
            prop_assert_eq!(released_pin(&release_key(pin.id)), Some(pin.id));
        }

        #[test]
        fn damaged_records_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            _ = (Counters::from_bytes(&bytes), IndexRecord::from_bytes(&bytes), PinRecord::from_bytes(&bytes));
            _ = (SegmentRecord::from_bytes(&bytes), Place::from_key(&bytes), ScrubRecord::from_bytes(&bytes));
            _ = RecompressRecord::from_bytes(&bytes);
        }
    }
}
