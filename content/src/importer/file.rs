//! [`File`]: imports a stream of bytes as a file.
//!
//! To hash on several threads, use the stages of the file separately: push bytes into the chunker; pass each chunk to
//! [`Leaves::leaf`], on any thread; and push the resulting leaves into the layout, in the order of the chunks.

use super::chunker::{Chunk, Chunker};
use super::layout::FileLayout;
use super::leaf::Leaves;
use super::{BlockSink, ImportError, Part, send};

/// A file that is being imported: its three stages, which its methods run on one thread.
#[derive(Debug)]
pub struct File {
    /// Splits bytes into chunks.
    pub chunker: Chunker,
    /// Makes the block of a chunk.
    pub leaves: Leaves,
    /// Makes the inner nodes from the leaves.
    pub layout: FileLayout,
}

impl File {
    /// Adds the next bytes.
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
