//! [`Profile`]: all settings that determine CIDs.
//!
//! The published profiles are those of IPIP-0499 (<https://specs.ipfs.tech/ipips/ipip-0499/>).

use super::chunker::Chunking;
use super::layout::SUBTREES_OF_A_DEPTH;
use super::pb;
use crate::block::MAX_BLOCK_BYTES;
use crate::cid::MAX_DIGEST_BYTES;
use crate::hashes;
use crate::unixfs::ShardNode;
use cid::Version;

/// The settings of an import. The default is that of Kubo, [`Profile::UNIXFS_V0_2015`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The version of CIDs. Version 0 supports only dag-pb with SHA2-256; raw leaves always have version 1.
    pub cid_version: Version,
    /// The multihash code of the hash function ([`hashes::named`]).
    pub hash_code: u64,
    /// The length of digests, in bytes.
    pub digest_bytes: usize,
    /// Whether the leaves of files are raw blocks, or UnixFS messages in dag-pb nodes. Files with
    /// [attributes](super::Attributes) always have dag-pb leaves, as in Kubo, because a file of one raw block has no
    /// place for attributes.
    pub raw_leaves: bool,
    /// How files are split into chunks.
    pub chunking: Chunking,
    /// The layout of the inner nodes of files.
    pub layout: Layout,
    /// The maximum number of links of a file's inner node; at least 2. In a trickle layout, of leaves.
    pub file_links_max: usize,
    /// The maximum size of inline blocks (identity multihash), in bytes; 128 at most.
    pub inline_bytes_max: Option<usize>,
    /// When and how directories are sharded.
    pub sharding: Sharding,
}

/// The layout of a file's DAG (<https://specs.ipfs.tech/unixfs/#layout>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// All leaves have the same depth.
    Balanced,
    /// Leaves at the start of the file are near the root, for sequential reading.
    Trickle,
}

/// When a directory is sharded as a HAMT (<https://specs.ipfs.tech/unixfs/#dag-pb-hamtdirectory>), and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharding {
    /// How the size of a directory is estimated.
    pub estimate: Estimate,
    /// Directories with a larger estimated size, in bytes, are sharded.
    pub threshold_bytes: usize,
    /// Directories with more entries are sharded, whatever their size.
    pub links_max: Option<usize>,
    /// The number of slots of a shard: a power of two from 8 to 1024.
    pub fanout: usize,
}

/// How the size of a directory is estimated for [`Sharding::threshold_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    /// The bytes of names and CIDs: `links-bytes` of IPIP-0499.
    Links,
    /// The exact size of the block: `block-bytes` of IPIP-0499.
    Block,
    /// The size is ignored; only [`Sharding::links_max`] counts. Without a `links_max`, this is Kubo's threshold of
    /// zero.
    Off,
}

/// Why a profile is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The hash function, or the length of its digest, is not accepted.
    #[error("hash function 0x{code:x} with a digest of {bytes} bytes cannot be used")]
    Hash {
        /// The multihash code.
        code: u64,
        /// The length of the digest, in bytes.
        bytes: usize,
    },
    /// CIDv0 supports only SHA2-256.
    #[error("CIDv0 only supports sha2-256; use CIDv1 with another hash function")]
    Version,
    /// An inner node of one link cannot form a tree.
    #[error("an inner node of a file must have at least 2 links, not {links}")]
    FileLinks {
        /// The number of links.
        links: usize,
    },
    /// An inner node would exceed the maximum size of a block.
    #[error(
        "an inner node with {links} links would exceed the maximum size of a block ({MAX_BLOCK_BYTES} bytes): \
         with these settings, a node has at most {links_max} links"
    )]
    FileNode {
        /// The number of links.
        links: usize,
        /// The maximum.
        links_max: usize,
    },
    /// Inline blocks would exceed the maximum size of an identity digest.
    #[error("inline blocks can have at most {MAX_DIGEST_BYTES} bytes, not {bytes}")]
    Inline {
        /// The size.
        bytes: usize,
    },
    /// The fanout is not supported by readers.
    #[error("the fanout of a sharded directory must be a power of two from 8 to 1024, not {fanout}")]
    Fanout {
        /// The fanout.
        fanout: usize,
    },
}

impl Profile {
    /// The default of all versions of Kubo; `legacy-cid-v0` is the same.
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

    /// The recommended profile for new content, for the same CIDs in all implementations.
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

    /// The names for [`Profile::named`].
    pub const NAMES: [&str; 5] =
        ["unixfs-v0-2015", "unixfs-v1-2025", "legacy-cid-v0", "test-cid-v1", "test-cid-v1-wide"];

    /// A profile by its published name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "unixfs-v0-2015" | "legacy-cid-v0" => Self::UNIXFS_V0_2015,
            "unixfs-v1-2025" => Self::UNIXFS_V1_2025,
            "test-cid-v1" => Self::TEST_CID_V1,
            "test-cid-v1-wide" => Self::TEST_CID_V1_WIDE,
            _ => return None,
        })
    }

    /// The profile with CIDv1 and raw leaves, as with `ipfs add --cid-version=1`.
    #[must_use]
    pub fn with_cid_v1(self) -> Self {
        Self { cid_version: Version::V1, raw_leaves: true, ..self }
    }

    /// The profile with another hash function, and with CIDv1 and raw leaves if it needs them, as with `ipfs add
    /// --hash`.
    #[must_use]
    pub fn with_hash(self, (hash_code, digest_bytes): (u64, usize)) -> Self {
        let hashed = Self { hash_code, digest_bytes, ..self };
        if hashed.fits_v0() { hashed } else { hashed.with_cid_v1() }
    }

    fn fits_v0(&self) -> bool {
        (self.hash_code, self.digest_bytes) == (hashes::SHA2_256, 32)
    }

    /// The maximum number of links of a file's inner node, so that it fits in a block for any sizes of its children.
    fn file_links_bound(&self) -> usize {
        // A trickle node also has four sub-trees of each depth, of which there are fewer than 64.
        let (subtrees, room) = (SUBTREES_MAX * self.file_link_bytes_max(), MAX_BLOCK_BYTES - NODE_ROOM_BYTES);
        (room - if self.layout == Layout::Trickle { subtrees } else { 0 }) / self.file_link_bytes_max()
    }

    /// The maximum size of a child in an inner node, in bytes: its link, and its block size.
    fn file_link_bytes_max(&self) -> usize {
        // Version, codec, and the multihash: function, length and digest.
        let cid_bytes = |code: u64, digest: usize| 2 + varint_bytes(code) + varint_bytes(digest as u64) + digest;
        let inlined = cid_bytes(hashes::IDENTITY, self.inline_bytes_max.unwrap_or(0));
        let cid_bytes = cid_bytes(self.hash_code, self.digest_bytes).max(inlined);
        pb::link_bytes(cid_bytes, 0, u64::MAX) + pb::BLOCK_SIZE_BYTES_MAX
    }

    /// The maximum memory for the inner nodes of a file of at most `file_bytes_max` bytes while it is imported, in
    /// bytes: one unfinished node for each level.
    pub fn layout_bytes_max(&self, file_bytes_max: u64) -> usize {
        let subtrees = if self.layout == Layout::Trickle { SUBTREES_MAX } else { 0 };
        // The encoded links, and the sizes as integers, in vectors that double as they grow.
        let node = 2
            * (self.file_links_max.saturating_add(subtrees))
                .saturating_mul(self.file_link_bytes_max() + size_of::<u64>());
        let leaves = (file_bytes_max / self.chunking.bytes_min().max(1) as u64).saturating_add(1);
        // Each level of a trickle file multiplies its leaves by five.
        let base = match self.layout {
            Layout::Balanced => self.file_links_max as u64,
            Layout::Trickle => SUBTREES_OF_A_DEPTH as u64 + 1,
        };
        // A file with few leaves has few links.
        let few = usize::try_from(leaves).unwrap_or(usize::MAX).saturating_mul(node / self.file_links_max.max(1) + 1);
        node.saturating_mul(levels(leaves, base)).min(few.saturating_mul(2))
    }

    /// Validates the profile: whether the blocks can be made, and read.
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

/// The maximum number of sub-trees of a trickle node.
const SUBTREES_MAX: usize = 64 * SUBTREES_OF_A_DEPTH;
/// The maximum overhead of an inner node besides its links and their sizes, in bytes.
const NODE_ROOM_BYTES: usize = 128;

/// The length of a number as a varint, in bytes.
fn varint_bytes(number: u64) -> usize {
    (64 - number.leading_zeros() as usize).div_ceil(7).max(1)
}

/// The number of levels above so many leaves, the root included.
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
