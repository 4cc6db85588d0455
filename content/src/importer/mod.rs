//! Making UnixFS (<https://specs.ipfs.tech/unixfs/>) out of bytes and names: the blocks, and the CID of their root.
//!
//! Goals: the CID that `ipfs add` of Kubo 0.41 prints for the same content and the same choices, which a [`Profile`] holds;
//! streams of unknown length, in memory that grows with the depth of the DAG and not with the stream; hashing on as many
//! threads as the caller has; one pass over the bytes, and one copy of them.
//!
//! | module | concern |
//! |---|---|
//! | [`profile`] | every choice that decides which CID some content gets, and the published sets of them |
//! | [`chunker`] | where a stream is cut |
//! | [`leaf`] | a chunk as a block: the work that can be spread over threads |
//! | [`layout`] | how the leaves of a file hang together |
//! | [`file`](mod@file) | the three above, for one file |
//! | [`dir`] | a directory, plain or sharded |
//! | [`tree`] | directories in directories, from the paths of what is in them |
//!
//! Non-goals: reading files and walking folders; which of them are left out; storing blocks, and waiting while a store is
//! busy. Blocks go to a [`BlockSink`], each after those that it links to, so that a root is the last of its DAG.
//!
//! Departure from Kubo: whether a directory is sharded depends on what is in it in the end and on nothing else. Kubo
//! decides anew with each entry, and may come back from a HAMT to a plain directory when sub-directories of one that is just
//! above the threshold are written again.

pub mod chunker;
pub mod dir;
pub mod file;
mod hamt;
pub mod layout;
pub mod leaf;
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
pub use self::profile::{Estimate, Layout, Profile, ProfileError, Sharding};
pub use self::tree::Tree;
pub use ::cid::Version;

use self::pb::Message;
use crate::block::{Block, BlockError};
use crate::cid::{Cid, codec};
use crate::hashes;
use crate::unixfs::Data;
use bytes::Bytes;
use std::time::SystemTime;

/// Why a sink did not take a block: whatever its owner says.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Where blocks go. A closure is one.
pub trait BlockSink {
    /// Takes a block, waiting for as long as it has to. The same block may come more than once. Blocks that are written into
    /// their CID do not come.
    ///
    /// # Errors
    /// Any error ends the import, as [`ImportError::Sink`].
    fn put(&mut self, block: Block) -> Result<(), SinkError>;
}

impl<F: FnMut(Block) -> Result<(), SinkError>> BlockSink for F {
    fn put(&mut self, block: Block) -> Result<(), SinkError> {
        self(block)
    }
}

/// Why content cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A block would be larger than any that is exchanged: a directory that is not sharded, or a file with too many links
    /// to a node.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// A directory must not have an entry of this name.
    #[error("{name:?} cannot be the name of an entry: {reason}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Two entries of a directory have the same name.
    #[error("two entries of a directory are called {name:?}, or a path came back to a directory that it had left")]
    Repeated {
        /// The name.
        name: String,
    },
    /// Two names of a sharded directory have the same hash, so that no shard can hold them apart.
    #[error("the directory cannot be sharded: {name:?} has the hash of another name in it")]
    HashCollision {
        /// One of the names.
        name: String,
    },
    /// The sink did not take a block.
    #[error("a block could not be stored: {0}")]
    Sink(SinkError),
}

/// What UnixFS 1.5 keeps of a file besides its content (<https://specs.ipfs.tech/unixfs/#metadata>).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The permissions of POSIX and the three bits above them (octal 7777); other bits are not kept. A file's mode of zero
    /// is not written.
    pub mode: Option<u32>,
    /// When it was changed last.
    pub modified: Option<SystemTime>,
}

impl Attributes {
    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// As a file has them.
    fn of_file(self) -> Self {
        Self { mode: self.mode.filter(|mode| mode & pb::MODE_BITS != 0), ..self }
    }
}

/// A finished part of a DAG: what has to be known for a link to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its root.
    pub cid: Cid,
    /// The content of the files in it, in bytes.
    pub file_bytes: u64,
    /// The blocks of it, in bytes, each as often as it is linked to: the `Tsize` of a link.
    pub dag_bytes: u64,
}

/// How blocks get their CIDs.
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
        // A checked profile of version 0 has the one hash that it allows.
        let v0 = Cid::new_v0(*block.cid().hash()).ok();
        Ok(v0.and_then(|cid| block.under(&cid)).unwrap_or(block))
    }
}

/// Where inner blocks are named and sent.
struct Output<'a> {
    naming: &'a Naming,
    sink: &'a mut dyn BlockSink,
}

impl Output<'_> {
    /// Makes a dag-pb block and sends it; the part that it is the root of.
    fn node(&mut self, data: Bytes, file_bytes: u64, linked_bytes: u64) -> Result<Part, ImportError> {
        let block = self.naming.block(codec::DAG_PB, data)?;
        let dag_bytes = linked_bytes.saturating_add(block.data().len() as u64);
        let part = Part { cid: *block.cid(), file_bytes, dag_bytes };
        send(self.sink, block)?;
        Ok(part)
    }
}

/// Hands a block over, unless its CID holds it.
fn send(sink: &mut dyn BlockSink, block: Block) -> Result<(), ImportError> {
    if block.key().is_some() { sink.put(block).map_err(ImportError::Sink) } else { Ok(()) }
}

/// Begins files, directories and trees of one [`Profile`].
#[derive(Debug, Clone)]
pub struct Importer {
    profile: Profile,
    naming: Naming,
}

impl Importer {
    /// An importer by a profile.
    ///
    /// # Errors
    /// [`ProfileError`] if the choices do not go together.
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

    /// The choices.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Begins a file.
    pub fn file(&self, attributes: Attributes) -> File {
        let leaves = Leaves::new(&self.profile, self.naming, attributes);
        let layout = FileLayout::new(&self.profile, self.naming, attributes);
        File { chunker: Chunker::new(self.profile.chunking), leaves, layout }
    }

    /// Begins a directory.
    pub fn directory(&self, attributes: Attributes) -> Directory {
        Directory::new(self.profile.sharding, self.naming, attributes)
    }

    /// Begins a directory that is sharded whatever its size, and whose entries come in order.
    pub fn sharded(&self, attributes: Attributes) -> Sharded {
        Sharded::new(self.profile.sharding.fanout, self.naming, attributes)
    }

    /// Begins a tree of directories, whose root has the attributes.
    pub fn tree(&self, attributes: Attributes) -> Tree {
        Tree::new(self.clone(), attributes)
    }

    /// Makes a symlink (<https://specs.ipfs.tech/unixfs/#dag-pb-symlink>) to `target`. It keeps the time and not the mode,
    /// which means nothing.
    ///
    /// # Errors
    /// [`ImportError`] when the target is too long for a block, or the sink does not take it.
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
