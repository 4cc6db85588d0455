//! [`File`]: a stream of bytes as a file.
//!
//! To hash on several threads, take the file apart: push bytes into the chunker; give each chunk to [`Leaves::leaf`], on
//! any thread; and push the parts that come out into the layout, in the order of the chunks. Which leaf is ready first
//! does not matter to anything but the caller's patience.

use super::chunker::{Chunk, Chunker};
use super::layout::FileLayout;
use super::leaf::Leaves;
use super::{BlockSink, ImportError, Part, send};

/// A file that is being imported: its three stages, and one after the other on one thread.
#[derive(Debug)]
pub struct File {
    /// From bytes to chunks.
    pub chunker: Chunker,
    /// From a chunk to its block.
    pub leaves: Leaves,
    /// From the parts that leaves are to the root.
    pub layout: FileLayout,
}

impl File {
    /// Takes the bytes that come next.
    ///
    /// # Errors
    /// [`ImportError`], after which the file cannot be finished.
    pub fn write(&mut self, mut bytes: &[u8], sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        while let Some(chunk) = self.chunker.push(&mut bytes) {
            link(&self.leaves, &mut self.layout, chunk, sink)?;
        }
        Ok(())
    }

    /// Ends the file.
    ///
    /// # Errors
    /// As for [`File::write`].
    pub fn finish(mut self, sink: &mut dyn BlockSink) -> Result<Part, ImportError> {
        if let Some(chunk) = self.chunker.finish() {
            link(&self.leaves, &mut self.layout, chunk, sink)?;
        }
        self.layout.finish(sink)
    }
}

fn link(leaves: &Leaves, layout: &mut FileLayout, chunk: Chunk, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
    let (part, block) = leaves.leaf(chunk)?;
    send(sink, block)?;
    layout.push(part, sink)
}
