//! Reports of a store: its contents, and the results of scrubs and recompression.

use content::Cid;
use content::cid::BlockKey;
use content::cid::codec;

/// Progress of a scrub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Blocks checked.
    pub blocks: u64,
    /// Their size on the disk, in bytes.
    pub bytes: u64,
    /// Corrupt blocks: the value differs from what was written, or does not match the hash.
    pub damaged: u64,
    /// Blocks whose read failed.
    pub unreadable: u64,
}

/// What is wrong with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The value differs from what was written, or does not match the hash.
    Damaged,
    /// The read failed.
    Unreadable,
}

/// A block that failed the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// A CIDv1 with the raw codec, since the store does not know the block's codec.
    pub cid: Cid,
    /// What is wrong with it.
    pub fault: Fault,
}

/// A pin with missing blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompletePin {
    /// The root of the DAG.
    pub root: Cid,
    /// The pin's name.
    pub name: Option<String>,
    /// The number of its blocks that are missing or corrupt.
    pub missing: u64,
    /// Those of them that are missing and withheld.
    pub withheld: u64,
    /// The number of its blocks.
    pub blocks: u64,
}

impl IncompletePin {
    /// Whether blocks are missing or corrupt that are not withheld.
    pub fn is_damaged(&self) -> bool {
        self.missing > self.withheld
    }
}

/// The members of a pin that are not stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MissingBlocks {
    /// Their number.
    pub blocks: u64,
    /// Their size as blocks, in bytes.
    pub bytes: u64,
    /// The number of those that the content policy withholds.
    pub withheld: u64,
}

impl MissingBlocks {
    /// Adds a missing block with this binary multihash.
    pub fn add(&mut self, key: &[u8], block_bytes: u32, is_withheld: &dyn Fn(&BlockKey) -> bool) {
        self.blocks += 1;
        self.bytes += u64::from(block_bytes);
        self.withheld += u64::from(BlockKey::from_bytes(key).as_ref().is_some_and(is_withheld));
    }

    /// The number of those that were lost, and not withheld.
    pub fn lost(&self) -> u64 {
        self.blocks.saturating_sub(self.withheld)
    }

    /// Whether there are some, and all of them are withheld.
    pub fn is_withheld(&self) -> bool {
        self.blocks > 0 && self.lost() == 0
    }
}

/// The result of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// What the scrub checked.
    pub progress: ScrubProgress,
    /// Pins with missing blocks, by root. Blocks deleted in earlier passes count as well.
    pub lacking: Vec<IncompletePin>,
}

impl Finding {
    pub(crate) fn new(key: &BlockKey, fault: Fault) -> Self {
        Self { cid: raw_cid(key), fault }
    }

    pub(crate) fn key(&self) -> Option<BlockKey> {
        BlockKey::of(&self.cid)
    }
}

/// The result of recompressing pinned blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recompressed {
    /// Blocks examined.
    pub blocks: u64,
    /// Blocks that became smaller.
    pub smaller: u64,
    /// The bytes saved.
    pub saved_bytes: u64,
}

/// An amount of blocks of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// The number.
    pub blocks: u64,
    /// Their size as blocks, in bytes.
    pub block_bytes: u64,
    /// Their size as stored, in bytes.
    pub stored_bytes: u64,
}

/// An amount of segment files of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentsAmount {
    /// The number.
    pub segments: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// The bytes in them that can be reclaimed.
    pub dead_bytes: u64,
}

/// The contents of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Blocks that may be evicted.
    pub cached: Amount,
    /// Pinned blocks.
    pub pinned: Amount,
    /// Blocks stored uncompressed.
    pub raw: Amount,
    /// Blocks stored as one zstd frame.
    pub framed: Amount,
    /// UnixFS leaves whose file data is stored as a zstd frame.
    pub enveloped: Amount,
    /// The segments of cached blocks, if the store has segments.
    pub cached_segments: SegmentsAmount,
    /// The segments of pinned blocks.
    pub pinned_segments: SegmentsAmount,
    /// Complete pins.
    pub pins: u64,
    /// Partial pins.
    pub partial_pins: u64,
}

/// The CID of a block whose codec is unknown.
pub fn raw_cid(key: &BlockKey) -> Cid {
    Cid::new_v1(codec::RAW, *key.multihash())
}
