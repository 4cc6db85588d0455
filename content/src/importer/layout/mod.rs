//! How the leaves of a file hang together (<https://specs.ipfs.tech/unixfs/#layout>).
//!
//! Leaves come one by one in the order of the file, and an inner node is made as soon as it is full. So what is in memory
//! is one unfinished node for each level, with a link of some 50 bytes for each child.

mod balanced;
mod trickle;

pub(super) use self::trickle::SUBTREES_OF_A_DEPTH;

use self::balanced::Balanced;
use self::trickle::Trickle;
use super::leaf::Leaves;
use super::pb::{Message, put_part};
use super::{Attributes, BlockSink, ImportError, Layout, Naming, Output, Part, Profile, send};
use crate::unixfs::Data;

/// Builds the inner nodes of one file.
#[derive(Debug)]
pub struct FileLayout {
    shape: Shape,
    naming: Naming,
    attributes: Attributes,
    /// For the leaf of an empty file.
    leaves: Leaves,
}

#[derive(Debug)]
enum Shape {
    Balanced(Balanced),
    Trickle(Trickle),
}

impl FileLayout {
    pub(super) fn new(profile: &Profile, naming: Naming, attributes: Attributes) -> Self {
        let shape = match profile.layout {
            Layout::Balanced => Shape::Balanced(Balanced::new(profile.file_links_max)),
            Layout::Trickle => Shape::Trickle(Trickle::new(profile.file_links_max)),
        };
        let leaves = Leaves::new(profile, naming, attributes);
        Self { shape, naming, attributes: attributes.of_file(), leaves }
    }

    /// Takes the leaf that comes next in the file. Its block is the caller's to store.
    ///
    /// # Errors
    /// [`ImportError`], after which the file cannot be finished.
    pub fn push(&mut self, leaf: Part, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        let mut output = Output { naming: &self.naming, sink };
        match &mut self.shape {
            Shape::Balanced(balanced) => balanced.push(leaf, &mut output),
            Shape::Trickle(trickle) => trickle.push(&leaf, &mut output),
        }
    }

    /// What the inner nodes hold that are not finished, in bytes: no more than [`Profile::layout_bytes_max`] says.
    pub fn held_bytes(&self) -> usize {
        match &self.shape {
            Shape::Balanced(balanced) => balanced.held_bytes(),
            Shape::Trickle(trickle) => trickle.held_bytes(),
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// As for [`FileLayout::push`].
    pub fn finish(self, sink: &mut dyn BlockSink) -> Result<Part, ImportError> {
        let mut output = Output { naming: &self.naming, sink };
        let root = match self.shape {
            Shape::Balanced(balanced) => balanced.finish(self.attributes, &mut output)?,
            Shape::Trickle(trickle) => Some(trickle.finish(self.attributes, &mut output)?),
        };
        if let Some(root) = root {
            return Ok(root);
        }
        let (root, block) = self.leaves.empty()?;
        send(sink, block)?;
        Ok(root)
    }
}

/// An inner node that is being filled. Links are kept as they will be written.
#[derive(Debug, Default)]
struct Inner {
    links: Vec<u8>,
    sizes: Vec<u64>,
    file_bytes: u64,
    dag_bytes: u64,
}

impl Inner {
    /// How many children it has.
    fn len(&self) -> usize {
        self.sizes.len()
    }

    /// What it holds, in bytes.
    fn held_bytes(&self) -> usize {
        self.links.capacity() + self.sizes.capacity() * size_of::<u64>()
    }

    fn push(&mut self, child: &Part) {
        put_part(&mut self.links, &child.cid, child.dag_bytes);
        self.sizes.push(child.file_bytes);
        self.file_bytes = self.file_bytes.saturating_add(child.file_bytes);
        self.dag_bytes = self.dag_bytes.saturating_add(child.dag_bytes);
    }

    fn finish(self, attributes: Attributes, output: &mut Output<'_>) -> Result<Part, ImportError> {
        let message = Message {
            kind: Data::FILE,
            file_size: Some(self.file_bytes),
            block_sizes: &self.sizes,
            attributes,
            ..Message::default()
        };
        output.node(message.into_node(self.links), self.file_bytes, self.dag_bytes)
    }
}
