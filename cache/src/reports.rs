//! What a store says of itself: what it holds, and what work on it came to.

use content::Cid;
use content::cid::BlockKey;
use content::cid::codec;

/// How far a pass has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Blocks that were checked.
    pub blocks: u64,
    /// Their bytes on the disk.
    pub bytes: u64,
    /// Blocks whose value is not what was written, or not what their hash says.
    pub damaged: u64,
    /// Blocks that the system refused to read.
    pub unreadable: u64,
}

/// What is wrong with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its value is not what was written, or not what its hash says.
    Damaged,
    /// The system refused to read it.
    Unreadable,
}

/// A block that did not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// Its name: a CIDv1 of the raw codec, since the store does not know which codec it is asked for by.
    pub cid: Cid,
    /// What is wrong with it.
    pub fault: Fault,
}

/// A pin of which blocks are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LackingPin {
    /// The root of the DAG.
    pub root: Cid,
    /// What the operator calls it.
    pub name: Option<String>,
    /// How many of its blocks are not here, or are damaged.
    pub missing: u64,
    /// How many it has.
    pub blocks: u64,
}

/// What a pass came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// What was checked.
    pub progress: ScrubProgress,
    /// Pins that lack blocks, by root. Those that were forgotten in earlier passes count as well.
    pub lacking: Vec<LackingPin>,
}

impl Finding {
    pub(crate) fn new(key: &BlockKey, fault: Fault) -> Self {
        Self { cid: raw_cid(key), fault }
    }

    pub(crate) fn key(&self) -> Option<BlockKey> {
        BlockKey::of(&self.cid)
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recompressed {
    /// Blocks that were looked at.
    pub blocks: u64,
    /// Those that became smaller.
    pub smaller: u64,
    /// By how many bytes.
    pub saved_bytes: u64,
}

/// Blocks of one sort.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many.
    pub blocks: u64,
    /// Their bytes, as blocks.
    pub block_bytes: u64,
    /// Their bytes, as they are stored.
    pub stored_bytes: u64,
}

/// The segment files of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentsAmount {
    /// How many.
    pub segments: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Those of them that nothing needs any more.
    pub dead_bytes: u64,
}

/// What a store holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Blocks that may be evicted.
    pub cached: Amount,
    /// Blocks that a pin protects.
    pub pinned: Amount,
    /// Blocks that are stored as they are.
    pub raw: Amount,
    /// Blocks that are stored as one zstd frame.
    pub framed: Amount,
    /// Leaves of which the file's bytes are a zstd frame.
    pub enveloped: Amount,
    /// The segments of cached blocks, in a store that has segments.
    pub cached_segments: SegmentsAmount,
    /// The segments of pinned blocks.
    pub pinned_segments: SegmentsAmount,
    /// Pins that are complete.
    pub pins: u64,
    /// Pins that are not.
    pub partial_pins: u64,
}

/// A block's name where its codec is not known.
pub(crate) fn raw_cid(key: &BlockKey) -> Cid {
    Cid::new_v1(codec::RAW, *key.multihash())
}
