//! [`Profile`]: every choice that decides which CID some content gets.
//!
//! The published ones are those of IPIP-0499 (<https://specs.ipfs.tech/ipips/ipip-0499/>).

use super::chunker::Chunking;
use super::layout::SUBTREES_OF_A_DEPTH;
use super::pb;
use crate::block::MAX_BLOCK_BYTES;
use crate::cid::MAX_DIGEST_BYTES;
use crate::hashes;
use crate::unixfs::ShardNode;
use cid::Version;

/// How content becomes blocks. The default is that of Kubo, [`Profile::UNIXFS_V0_2015`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The version of CIDs. Version 0 can only name dag-pb nodes hashed with SHA2-256; raw leaves have version 1 anyway.
    pub cid_version: Version,
    /// The multihash code of the hash function ([`hashes::named`]).
    pub hash_code: u64,
    /// The length of digests, in bytes.
    pub digest_bytes: usize,
    /// Whether the leaves of files are bare bytes (codec raw) or UnixFS messages in dag-pb nodes. Files that have
    /// [attributes](super::Attributes) are made as if this were `false`, as Kubo does, since a file that is one raw block
    /// has no room for them.
    pub raw_leaves: bool,
    /// Where files are cut.
    pub chunking: Chunking,
    /// How the leaves of a file hang together.
    pub layout: Layout,
    /// How many links an inner node of a file has; at least 2. In a trickle layout, how many leaves.
    pub file_links_max: usize,
    /// Blocks up to this size, in bytes, are written into their CID (identity multihash); 128 at most.
    pub inline_bytes_max: Option<usize>,
    /// When directories are sharded, and how.
    pub sharding: Sharding,
}

/// How the leaves of a file hang together (<https://specs.ipfs.tech/unixfs/#layout>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Every leaf is as far from the root as any other.
    Balanced,
    /// Leaves at the start of the file are near the root: for reading from the start.
    Trickle,
}

/// When a directory becomes a HAMT (<https://specs.ipfs.tech/unixfs/#dag-pb-hamtdirectory>), and of which shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharding {
    /// How the size of a directory is estimated.
    pub estimate: Estimate,
    /// A directory whose estimated size is above this, in bytes, is sharded.
    pub threshold_bytes: usize,
    /// A directory with more entries is sharded, whatever its size.
    pub links_max: Option<usize>,
    /// How many slots a shard has: a power of two from 8 to 1024.
    pub fanout: usize,
}

/// How the size of a directory is estimated, for it to be compared with [`Sharding::threshold_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    /// The bytes of names and CIDs alone: `links-bytes` of IPIP-0499.
    Links,
    /// The bytes of the whole block, exactly: `block-bytes` of IPIP-0499.
    Block,
    /// The size does not count, only [`Sharding::links_max`] does. Kubo's threshold of zero is this without a `links_max`.
    Off,
}

/// Why nothing can be imported with a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The hash function is not accepted, or the length of its digest is not.
    #[error("hash function 0x{code:x} with a digest of {bytes} bytes cannot be used")]
    Hash {
        /// The multihash code.
        code: u64,
        /// The length of the digest.
        bytes: usize,
    },
    /// CIDv0 knows SHA2-256 only.
    #[error("CIDv0 only supports sha2-256; another hash function takes CIDv1")]
    Version,
    /// A file of more than one chunk could not be linked together.
    #[error("an inner node of a file has at least 2 links, not {links}")]
    FileLinks {
        /// The number found.
        links: usize,
    },
    /// An inner node would be larger than a block may be.
    #[error(
        "an inner node of {links} links would be larger than a block may be ({MAX_BLOCK_BYTES} bytes): \
         with these choices, a node has at most {links_max} links"
    )]
    FileNode {
        /// The number found.
        links: usize,
        /// The most that fits.
        links_max: usize,
    },
    /// More than a CID holds.
    #[error("blocks of up to {MAX_DIGEST_BYTES} bytes can be written into their CID, not of {bytes}")]
    Inline {
        /// The number found.
        bytes: usize,
    },
    /// No reader would accept the shards.
    #[error("the fanout of a sharded directory is a power of two from 8 to 1024, not {fanout}")]
    Fanout {
        /// The number found.
        fanout: usize,
    },
}

impl Profile {
    /// What Kubo always did, and does by default; `legacy-cid-v0` is the same.
    pub const UNIXFS_V0_2015: Self = Self {
        cid_version: Version::V0,
        hash_code: hashes::SHA2_256,
        digest_bytes: 32,
        raw_leaves: false,
        chunking: Chunking::SIZE_256_KIB,
        layout: Layout::Balanced,
        file_links_max: 174,
        inline_bytes_max: None,
        sharding: Sharding { estimate: Estimate::Links, threshold_bytes: 256 * 1024, links_max: None, fanout: 256 },
    };

    /// What new content should use, so that every implementation gives it the same CID.
    pub const UNIXFS_V1_2025: Self = Self {
        cid_version: Version::V1,
        raw_leaves: true,
        chunking: Chunking::SIZE_1_MIB,
        file_links_max: 1024,
        sharding: Sharding { estimate: Estimate::Block, ..Self::UNIXFS_V0_2015.sharding },
        ..Self::UNIXFS_V0_2015
    };

    /// Kubo's test profile of 2024 to 2025 (versions 0.29 to 0.39).
    pub const TEST_CID_V1: Self =
        Self { file_links_max: 174, sharding: Self::UNIXFS_V0_2015.sharding, ..Self::UNIXFS_V1_2025 };

    /// Kubo's wide test profile of 2025 (versions 0.35 to 0.39).
    pub const TEST_CID_V1_WIDE: Self = Self {
        file_links_max: 1024,
        sharding: Sharding { threshold_bytes: 1024 * 1024, fanout: 1024, ..Self::UNIXFS_V0_2015.sharding },
        ..Self::UNIXFS_V1_2025
    };

    /// The names that [`Profile::named`] knows.
    pub const NAMES: [&str; 5] =
        ["unixfs-v0-2015", "unixfs-v1-2025", "legacy-cid-v0", "test-cid-v1", "test-cid-v1-wide"];

    /// A profile by the name that it was published under.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "unixfs-v0-2015" | "legacy-cid-v0" => Self::UNIXFS_V0_2015,
            "unixfs-v1-2025" => Self::UNIXFS_V1_2025,
            "test-cid-v1" => Self::TEST_CID_V1,
            "test-cid-v1-wide" => Self::TEST_CID_V1_WIDE,
            _ => return None,
        })
    }

    /// With CIDv1 and raw leaves, as `ipfs add --cid-version=1` does.
    #[must_use]
    pub fn with_cid_v1(self) -> Self {
        Self { cid_version: Version::V1, raw_leaves: true, ..self }
    }

    /// With another hash function, and CIDv1 and raw leaves if that takes it, as `ipfs add --hash` does.
    #[must_use]
    pub fn with_hash(self, (hash_code, digest_bytes): (u64, usize)) -> Self {
        let hashed = Self { hash_code, digest_bytes, ..self };
        if hashed.fits_v0() { hashed } else { hashed.with_cid_v1() }
    }

    fn fits_v0(&self) -> bool {
        (self.hash_code, self.digest_bytes) == (hashes::SHA2_256, 32)
    }

    /// The most links that an inner node of a file may have, so that it fits in a block whatever the sizes are that it names.
    fn file_links_bound(&self) -> usize {
        // What a trickle node has besides its leaves: four sub-trees of each depth, of which there are fewer than 64.
        let (subtrees, room) = (SUBTREES_MAX * self.file_link_bytes_max(), MAX_BLOCK_BYTES - NODE_ROOM_BYTES);
        (room - if self.layout == Layout::Trickle { subtrees } else { 0 }) / self.file_link_bytes_max()
    }

    /// What a child takes in an inner node at most, in bytes: the link, and the size of its content.
    fn file_link_bytes_max(&self) -> usize {
        // The version and the codec, and the multihash: its function, its length and the digest.
        let cid_bytes = |code: u64, digest: usize| 2 + varint_bytes(code) + varint_bytes(digest as u64) + digest;
        let inlined = cid_bytes(hashes::IDENTITY, self.inline_bytes_max.unwrap_or(0));
        let cid_bytes = cid_bytes(self.hash_code, self.digest_bytes).max(inlined);
        pb::link_bytes(cid_bytes, 0, u64::MAX) + pb::BLOCK_SIZE_BYTES_MAX
    }

    /// What the inner nodes of one file hold while it is made, in bytes, if the file has so many bytes at most: an unfinished
    /// node for each level.
    pub fn layout_bytes_max(&self, file_bytes_max: u64) -> usize {
        let subtrees = if self.layout == Layout::Trickle { SUBTREES_MAX } else { 0 };
        // The links as they will be written and the sizes as numbers, in lists that double as they grow.
        let node = 2
            * (self.file_links_max.saturating_add(subtrees))
                .saturating_mul(self.file_link_bytes_max() + size_of::<u64>());
        let leaves = (file_bytes_max / self.chunking.bytes_min().max(1) as u64).saturating_add(1);
        // A trickle file has five times as many leaves for each level below the first.
        let base = match self.layout {
            Layout::Balanced => self.file_links_max as u64,
            Layout::Trickle => SUBTREES_OF_A_DEPTH as u64 + 1,
        };
        // A file of a few leaves has a few links, however many there may be.
        let few = usize::try_from(leaves).unwrap_or(usize::MAX).saturating_mul(node / self.file_links_max.max(1) + 1);
        node.saturating_mul(levels(leaves, base)).min(few.saturating_mul(2))
    }

    /// Whether blocks can be made with it, and read back.
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        let (code, bytes) = (self.hash_code, self.digest_bytes);
        if code == hashes::IDENTITY || hashes::digest(code, bytes, &[]).is_err() {
            return Err(ProfileError::Hash { code, bytes });
        }
        if self.cid_version == Version::V0 && !self.fits_v0() {
            return Err(ProfileError::Version);
        }
        if self.file_links_max < 2 {
            return Err(ProfileError::FileLinks { links: self.file_links_max });
        }
        let links_max = self.file_links_bound();
        if self.file_links_max > links_max {
            return Err(ProfileError::FileNode { links: self.file_links_max, links_max });
        }
        if let Some(bytes) = self.inline_bytes_max.filter(|bytes| *bytes > MAX_DIGEST_BYTES) {
            return Err(ProfileError::Inline { bytes });
        }
        let fanout = self.sharding.fanout;
        let accepted = (ShardNode::FANOUT_MIN..=ShardNode::FANOUT_MAX).contains(&(fanout as u64));
        if accepted && fanout.is_power_of_two() { Ok(()) } else { Err(ProfileError::Fanout { fanout }) }
    }
}

/// Sub-trees of a trickle node.
const SUBTREES_MAX: usize = 64 * SUBTREES_OF_A_DEPTH;
/// What an inner node has besides its links and their sizes at most, in bytes.
const NODE_ROOM_BYTES: usize = 128;

/// The bytes of a number as a varint.
fn varint_bytes(number: u64) -> usize {
    (64 - number.leading_zeros() as usize).div_ceil(7).max(1)
}

/// How many levels it takes above so many leaves, the root's included.
fn levels(leaves: u64, base: u64) -> usize {
    let (mut reached, mut levels) = (1_u64, 1);
    while reached < leaves {
        reached = reached.saturating_mul(base.max(2));
        levels += 1;
    }
    levels
}

impl Default for Profile {
    fn default() -> Self {
        Self::UNIXFS_V0_2015
    }
}
