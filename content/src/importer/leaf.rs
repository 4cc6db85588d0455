//! [`Leaves`]: makes the block of a chunk. Pure, so that several threads can do it at a time: it takes most of the time
//! of an import.

use super::chunker::Chunk;
use super::pb::{HEAD_ROOM, leaf_node};
use super::{Attributes, Layout, Naming, Part, Profile};
use crate::block::{Block, BlockError};
use crate::cid::codec;
use crate::unixfs::Data;
use bytes::Bytes;

/// Makes the leaves of a file.
#[derive(Debug, Clone)]
pub struct Leaves {
    naming: Naming,
    raw: bool,
    /// The UnixFS type of leaves that are not raw.
    kind: u64,
    /// The attributes for a leaf that is the whole file.
    attributes: Attributes,
}

impl Leaves {
    pub(super) fn new(profile: &Profile, naming: Naming, attributes: Attributes) -> Self {
        let raw = profile.raw_leaves && attributes.is_empty();
        // Readers treat both types alike. The root of a trickle file is never a leaf.
        let (kind, attributes) = match profile.layout {
            Layout::Balanced => (Data::FILE, attributes.of_file()),
            Layout::Trickle => (Data::RAW, Attributes::default()),
        };
        Self { naming, raw, kind, attributes }
    }

    /// The block of a chunk, and the link data for it.
    ///
    /// # Errors
    /// [`BlockError`], which does not occur for chunks of [`super::Chunker`].
    pub fn leaf(&self, chunk: Chunk) -> Result<(Part, Block), BlockError> {
        let file_bytes = chunk.data().len() as u64;
        let attributes = if chunk.whole { self.attributes } else { Attributes::default() };
        let block = match self.raw {
            true => self.naming.block(codec::RAW, Bytes::from(chunk.buffer).slice(HEAD_ROOM..))?,
            false => self.naming.block(codec::DAG_PB, leaf_node(chunk.buffer, self.kind, &attributes))?,
        };
        Ok((Part { cid: *block.cid(), file_bytes, dag_bytes: block.data().len() as u64 }, block))
    }

    /// The leaf of an empty file.
    pub(super) fn empty(&self) -> Result<(Part, Block), BlockError> {
        self.leaf(Chunk { buffer: vec![0; HEAD_ROOM], whole: true })
    }
}
