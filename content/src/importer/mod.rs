//! Imports bytes and names as UnixFS (<https://specs.ipfs.tech/unixfs/>): makes the blocks, and the CID of their root.
//!
//! Goals: the same CIDs as `ipfs add` of Kubo 0.41 for the same content and settings, which a [`Profile`] has; streams
//! of unknown length, in memory that grows with the depth of the DAG and not with the stream; hashing on as many
//! threads as the caller has; one pass over the bytes, and one copy of them.
//!
//! | module | concern |
//! |---|---|
//! | [`profile`] | all settings that determine CIDs, and their published combinations |
//! | [`chunker`] | splitting a stream into chunks |
//! | [`leaf`] | the block of a chunk: the part that can run on several threads |
//! | [`layout`] | the inner nodes of a file |
//! | [`file`](mod@file) | the three above, for one file |
//! | [`dir`] | a directory, plain or sharded |
//! | [`packer`] | a file as seekable zstd as well |
//! | [`tree`] | nested directories, from the paths of their entries |
//!
//! Non-goals: reading files and walking folders; filtering them; storing blocks, and backpressure of a store. Blocks go
//! to a [`BlockSink`], each after the blocks that it links to, so the root of a DAG comes last.
//!
//! Departure from Kubo: whether a directory is sharded depends only on its final entries. Kubo decides at each entry,
//! and may change a HAMT back to a plain directory when sub-directories of one just above the threshold are rewritten.

pub mod chunker;
pub mod dir;
pub mod file;
mod hamt;
pub mod layout;
pub mod leaf;
pub mod packer;
mod pb;
pub mod profile;
#[cfg(test)]
mod tests;
pub mod tree;

pub use self::chunker::{Chunk, Chunker, Chunking};
pub use self::dir::Directory;
pub use self::file::File;
pub use self::hamt::Sharded;
pub use self::layout::FileLayout;
pub use self::leaf::Leaves;
pub use self::packer::{Packed, PackedLeaf, Packer, Packing};
pub use self::profile::{Estimate, Layout, Profile, ProfileError, Sharding};
pub use self::tree::Tree;
pub use ::cid::Version;

use self::pb::Message;
use crate::block::{Block, BlockError};
use crate::cid::{Cid, codec};
use crate::hashes;
use crate::packed::PackError;
use crate::stored::Slice;
use crate::unixfs::Data;
use bytes::Bytes;
use std::time::SystemTime;

/// The error of a sink.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// A receiver of blocks, such as a closure.
pub trait BlockSink {
    /// Stores a block, and blocks the thread while the store is busy. The same block may be put more than once. Inline
    /// blocks are not put.
    ///
    /// # Errors
    /// An error ends the import, as [`ImportError::Sink`].
    fn put(&mut self, block: Block) -> Result<(), SinkError>;

    /// Stores a leaf as a slice of a block that was put before. Called for packed files only.
    ///
    /// # Errors
    /// As [`BlockSink::put`]. By default, packed files are refused.
    fn put_slice(&mut self, leaf: &Cid, slice: Slice) -> Result<(), SinkError> {
        let _ = (leaf, slice);
        Err("packed files cannot be stored here".into())
    }
}

impl<F: FnMut(Block) -> Result<(), SinkError>> BlockSink for F {
    fn put(&mut self, block: Block) -> Result<(), SinkError> {
        self(block)
    }
}

/// Why content cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A block exceeds the maximum size: an unsharded directory, or a file with too many links for each node.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The name of an entry is not allowed.
    #[error("{name:?} is not allowed as the name of an entry: {reason}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with the name.
        reason: &'static str,
    },
    /// Two entries of a directory have the same name.
    #[error("a directory has two entries with the name {name:?}, or the paths of its entries were not added together")]
    Repeated {
        /// The name.
        name: String,
    },
    /// Two names in a sharded directory have the same hash.
    #[error("the directory cannot be sharded: {name:?} has the same hash as another name")]
    HashCollision {
        /// One of the names.
        name: String,
    },
    /// The file cannot be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The sink rejected a block.
    #[error("a block could not be stored: {0}")]
    Sink(SinkError),
}

/// UnixFS 1.5 metadata of a file (<https://specs.ipfs.tech/unixfs/#metadata>).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The POSIX permissions with set-user-ID, set-group-ID and sticky (octal 7777); other bits are dropped. A mode of
    /// zero is not written for files.
    pub mode: Option<u32>,
    /// The modification time.
    pub modified: Option<SystemTime>,
}

impl Attributes {
    /// Whether there is no metadata.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The attributes as they are written for files.
    fn of_file(self) -> Self {
        Self { mode: self.mode.filter(|mode| mode & pb::MODE_BITS != 0), ..self }
    }
}

/// An imported DAG: what a link to it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The CID of its root.
    pub cid: Cid,
    /// The size of its files, in bytes.
    pub file_bytes: u64,
    /// The cumulative size of its blocks in bytes, repeats included: the `Tsize` of a link.
    pub dag_bytes: u64,
}

/// How CIDs are made.
#[derive(Debug, Clone, Copy)]
struct Naming {
    version: Version,
    hash_code: u64,
    digest_bytes: usize,
    inline_bytes_max: Option<usize>,
}

impl Naming {
    fn block(&self, codec: u64, data: Bytes) -> Result<Block, BlockError> {
        if self.inline_bytes_max.is_some_and(|bytes_max| data.len() <= bytes_max) {
            return Block::of(codec, hashes::IDENTITY, data.len(), data);
        }
        let block = Block::of(codec, self.hash_code, self.digest_bytes, data)?;
        if self.version == Version::V1 || codec != codec::DAG_PB {
            return Ok(block);
        }
        // A validated profile of version 0 has the only hash that CIDv0 allows.
        let v0 = Cid::new_v0(*block.cid().hash()).ok();
        Ok(v0.and_then(|cid| block.under(&cid)).unwrap_or(block))
    }
}

/// Makes and sends inner blocks.
struct Output<'a> {
    naming: &'a Naming,
    sink: &'a mut dyn BlockSink,
}

impl Output<'_> {
    /// Makes a dag-pb block and sends it; returns the DAG of which it is the root.
    fn node(&mut self, data: Bytes, file_bytes: u64, linked_bytes: u64) -> Result<Part, ImportError> {
        let block = self.naming.block(codec::DAG_PB, data)?;
        let dag_bytes = linked_bytes.saturating_add(block.data().len() as u64);
        let part = Part { cid: *block.cid(), file_bytes, dag_bytes };
        send(self.sink, block)?;
        Ok(part)
    }
}

/// Puts a block into the sink, unless it is inline.
fn send(sink: &mut dyn BlockSink, block: Block) -> Result<(), ImportError> {
    if block.key().is_some() { sink.put(block).map_err(ImportError::Sink) } else { Ok(()) }
}

/// Imports files, directories and trees with one [`Profile`].
#[derive(Debug, Clone)]
pub struct Importer {
    profile: Profile,
    naming: Naming,
}

impl Importer {
    /// An importer with a profile.
    ///
    /// # Errors
    /// [`ProfileError`] if the profile is invalid.
    pub fn new(profile: Profile) -> Result<Self, ProfileError> {
        profile.check()?;
        let naming = Naming {
            version: profile.cid_version,
            hash_code: profile.hash_code,
            digest_bytes: profile.digest_bytes,
            inline_bytes_max: profile.inline_bytes_max,
        };
        Ok(Self { profile, naming })
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Starts a file.
    pub fn file(&self, attributes: Attributes) -> File {
        let leaves = Leaves::new(&self.profile, self.naming, attributes);
        let layout = FileLayout::new(&self.profile, self.naming, attributes);
        File { chunker: Chunker::new(self.profile.chunking), leaves, layout }
    }

    /// Starts a directory.
    pub fn directory(&self, attributes: Attributes) -> Directory {
        Directory::new(self.profile.sharding, self.naming, attributes)
    }

    /// Starts a directory that is always sharded, and whose entries are added in the order of their hashes.
    pub fn sharded(&self, attributes: Attributes) -> Sharded {
        Sharded::new(self.profile.sharding.fanout, self.naming, attributes)
    }

    /// Starts a tree of directories. The attributes are those of its root.
    pub fn tree(&self, attributes: Attributes) -> Tree {
        Tree::new(self.clone(), attributes)
    }

    /// Makes a symlink (<https://specs.ipfs.tech/unixfs/#dag-pb-symlink>) to `target`. The mode, which has no meaning,
    /// is dropped.
    ///
    /// # Errors
    /// [`ImportError`] when the target is too long for a block, or the sink fails.
    pub fn symlink(
        &self,
        target: &[u8],
        attributes: Attributes,
        sink: &mut dyn BlockSink,
    ) -> Result<Part, ImportError> {
        let attributes = Attributes { mode: None, ..attributes };
        let message = Message { kind: Data::SYMLINK, data: Some(target), attributes, ..Message::default() };
        Output { naming: &self.naming, sink }.node(message.into_node(Vec::new()), 0, 0)
    }
}
