//! The inner nodes of a file (<https://specs.ipfs.tech/unixfs/#layout>).
//!
//! Leaves are added one by one in file order, and an inner node is made when it is full. So there is one unfinished
//! node for each level in memory, with some 50 bytes for each child.

mod balanced;
mod trickle;

pub(super) use self::trickle::SUBTREES_OF_A_DEPTH;

use self::balanced::Balanced;
use self::trickle::Trickle;
use super::leaf::Leaves;
use super::pb::{Message, put_part};
use super::{Attributes, BlockSink, ImportError, Layout, Naming, Output, Part, Profile, send};
use crate::unixfs::Data;

/// Makes the inner nodes of a file.
#[derive(Debug)]
pub struct FileLayout {
    shape: Shape,
    naming: Naming,
    attributes: Attributes,
    /// For empty files, which are a leaf.
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

    /// Adds the next leaf of the file. The caller stores its block.
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

    /// The memory of the unfinished nodes, in bytes; at most [`Profile::layout_bytes_max`].
    pub fn memory_bytes(&self) -> usize {
        match &self.shape {
            Shape::Balanced(balanced) => balanced.memory_bytes(),
            Shape::Trickle(trickle) => trickle.memory_bytes(),
        }
    }

    /// Finishes the file; returns its root.
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

/// An inner node that is being filled. Its links are encoded already.
#[derive(Debug, Default)]
struct Inner {
    links: Vec<u8>,
    sizes: Vec<u64>,
    file_bytes: u64,
    dag_bytes: u64,
}

impl Inner {
    /// The number of children.
    fn len(&self) -> usize {
        self.sizes.len()
    }

    /// The memory of the node, in bytes.
    fn memory_bytes(&self) -> usize {
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
