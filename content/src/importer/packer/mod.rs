//! [`Packer`]: makes the blocks of a packed file ([`crate::packed`]) from the leaves of the plain file.
//!
//! Compression is a step of its own ([`Packing::pack`]), for several threads. The packer takes the results in the order
//! of the file and sends blocks to a [`BlockSink`]: each leaf of the zstd file, then the slice that refers to it.
//!
//! Whether a file is worth packing is decided from its first leaves, up to [`SAMPLE_BYTES`]. If they do not shrink by a
//! sixteenth, the file is stored plain, and the rest of it is not compressed.

#[cfg(test)]
mod tests;

use super::{Attributes, BlockSink, File, FileLayout, ImportError, Importer, Part, Profile};
use crate::cid::{Cid, codec};
use crate::hashes;
use crate::packed::seek_table::{FRAMES_MAX, FrameLengths, SeekTable};
use crate::packed::{CHUNK_BYTES_MAX, PackError, packed_cid};
use crate::stored::{CompressionOptions, Slice, encoder};
use crate::{Block, BlockKey};
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use zstd::zstd_safe::{CCtx, compress_bound, get_error_name};

/// The size of the leaves from which it is decided whether a file is packed, in bytes.
pub const SAMPLE_BYTES: usize = 4 * 1024 * 1024;

/// What users are told about a file that is not worth packing.
pub const PLAIN_NOTE: &str =
    "the beginning of the file does not shrink by a sixteenth, so it is stored plain and not packed";

/// The settings of the zstd file, which do not depend on those of the plain file.
pub const ZSTD_FILE_PROFILE: Profile = Profile::UNIXFS_V1_2025;

/// The frames must be smaller than the plain leaves by one part in this many.
const SAVING_MIN: usize = 16;

/// The memory that a [`Packer`] takes while a file is sampled, in bytes, for chunks of this size.
pub fn memory_bytes_max(chunk_bytes_max: usize) -> usize {
    2 * (SAMPLE_BYTES + chunk_bytes_max) + FRAMES_MAX * size_of::<FrameLengths>()
}

/// Compresses leaves. Clones share zstd's working memory, of which each thread that compresses at the moment takes some
/// 1.5 MiB at level 3.
#[derive(Clone)]
pub struct Packing {
    options: CompressionOptions,
    contexts: Arc<Mutex<Vec<CCtx<'static>>>>,
}

/// A leaf of the plain file, and its frame.
#[derive(Debug)]
pub struct PackedLeaf {
    /// The leaf of the plain file.
    leaf: Block,
    /// The frame, as a leaf of the zstd file.
    frame: Block,
    /// The leaf without its file data.
    prefix: Bytes,
    suffix: Bytes,
    /// The length of its file data.
    content_bytes: usize,
}

/// A finished packed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// The zstd file.
    pub zstd_file: Part,
    /// The packed CID.
    pub cid: Cid,
}

impl Packing {
    /// Compresses leaves of a profile.
    ///
    /// # Errors
    /// [`PackError::Chunks`] when its chunks may be too large.
    pub fn new(profile: &Profile, options: CompressionOptions) -> Result<Self, PackError> {
        let bytes = profile.chunking.bytes_max();
        if bytes > CHUNK_BYTES_MAX {
            return Err(PackError::Chunks { bytes });
        }
        Ok(Self { options, contexts: Arc::default() })
    }

    /// Compresses the file data of a leaf, which has this length in bytes, and hashes the frame.
    ///
    /// # Errors
    /// [`PackError`].
    pub fn pack(&self, leaf: Block, file_bytes: u64) -> Result<PackedLeaf, PackError> {
        let range = encoder::payload(&leaf);
        if range.len() as u64 != file_bytes {
            return Err(PackError::Leaf { bytes: file_bytes });
        }
        let (prefix, suffix) = (leaf.data().slice(..range.start), leaf.data().slice(range.end..));
        let content_bytes = range.len();
        let frame = self.compress(&leaf.data()[range])?;
        let frame = Block::of(codec::RAW, hashes::SHA2_256, 32, frame).map_err(zstd_failed)?;
        Ok(PackedLeaf { leaf, frame, prefix, suffix, content_bytes })
    }

    fn compress(&self, content: &[u8]) -> Result<Bytes, PackError> {
        let free = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut context = match free {
            Some(context) => context,
            None => encoder::context(self.options.level).map_err(zstd_failed)?,
        };
        let mut frame = Vec::with_capacity(compress_bound(content.len()));
        context.compress2(&mut frame, content).map_err(|code| zstd_failed(get_error_name(code)))?;
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        frame.shrink_to_fit();
        Ok(frame.into())
    }
}

fn zstd_failed(error: impl ToString) -> PackError {
    PackError::Zstd(error.to_string())
}

impl std::fmt::Debug for Packing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packing").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Whether a file is packed.
#[derive(Debug)]
enum State {
    /// The first leaves are held, with the lengths of their contents and frames in bytes.
    Sampling { held: Vec<PackedLeaf>, content_bytes: usize, frame_bytes: usize },
    /// Yes. The last leaf is held, since the table may follow it.
    Packing { last: Box<PackedLeaf> },
    /// No.
    Plain,
}

/// Makes a packed file.
#[derive(Debug)]
pub struct Packer {
    state: State,
    layout: FileLayout,
    table: SeekTable,
    is_plain: Arc<AtomicBool>,
}

impl Packer {
    /// Starts a file.
    ///
    /// # Errors
    /// [`PackError`].
    pub fn new() -> Result<Self, PackError> {
        let File { layout, .. } = Importer::new(ZSTD_FILE_PROFILE).map_err(zstd_failed)?.file(Attributes::default());
        let state = State::Sampling { held: Vec::new(), content_bytes: 0, frame_bytes: 0 };
        Ok(Self { state, layout, table: SeekTable::default(), is_plain: Arc::default() })
    }

    /// Set once the file turned out not to be worth packing: its further leaves need not be compressed.
    pub fn is_plain(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_plain)
    }

    /// Adds the next leaf of the plain file, and stores it.
    ///
    /// # Errors
    /// [`ImportError`], after which the file cannot be finished.
    pub fn push(&mut self, next: PackedLeaf, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        match &mut self.state {
            State::Plain => put(next.leaf, sink),
            State::Sampling { held, content_bytes, frame_bytes } => {
                *content_bytes += next.content_bytes;
                *frame_bytes += next.frame.data().len();
                held.push(next);
                if *content_bytes >= SAMPLE_BYTES { self.decide(sink) } else { Ok(()) }
            }
            State::Packing { last } => {
                let before = std::mem::replace(&mut **last, next);
                self.put_packed(before, sink)
            }
        }
    }

    /// Adds a leaf of a file that is not packed, and stores it.
    ///
    /// # Errors
    /// [`ImportError`].
    pub fn push_plain(&mut self, leaf: Block, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        self.give_up(sink)?;
        put(leaf, sink)
    }

    /// Ends the file. `None` if it is not packed.
    ///
    /// # Errors
    /// As for [`Packer::push`].
    pub fn finish(mut self, sink: &mut dyn BlockSink) -> Result<Option<Packed>, ImportError> {
        if matches!(self.state, State::Sampling { .. }) {
            self.decide(sink)?;
        }
        let State::Packing { last } = std::mem::replace(&mut self.state, State::Plain) else { return Ok(None) };
        let mut last = *last;
        self.count(&last)?;
        let table = self.table.to_frame().ok_or(PackError::Frames)?;
        let frame_bytes = last.frame.data().len();
        let data = [&**last.frame.data(), &table].concat();
        last.frame = Block::of(codec::RAW, hashes::SHA2_256, 32, data.into())?;
        self.put_pair(last, frame_bytes, sink)?;
        let zstd_file = self.layout.finish(sink)?;
        Ok(Some(Packed { zstd_file, cid: packed_cid(&zstd_file.cid) }))
    }

    /// Decides whether the file is packed, and stores the leaves that were held.
    fn decide(&mut self, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        let State::Sampling { held, content_bytes, frame_bytes } = &mut self.state else { return Ok(()) };
        // The table is a part of a small file that counts.
        let table = SeekTable::bytes_of(held.len());
        if held.is_empty() || *frame_bytes + table > *content_bytes - *content_bytes / SAVING_MIN {
            return self.give_up(sink);
        }
        let mut held = std::mem::take(held);
        let Some(last) = held.pop() else { return Ok(()) };
        self.state = State::Packing { last: Box::new(last) };
        held.into_iter().try_for_each(|leaf| self.put_packed(leaf, sink))
    }

    /// Stores the leaves that were held as plain ones. A file that is being packed stays packed.
    fn give_up(&mut self, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        let State::Sampling { held, .. } = &mut self.state else { return Ok(()) };
        let held = std::mem::take(held);
        self.state = State::Plain;
        self.is_plain.store(true, Ordering::Relaxed);
        held.into_iter().try_for_each(|leaf| put(leaf.leaf, sink))
    }

    fn put_packed(&mut self, leaf: PackedLeaf, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        self.count(&leaf)?;
        let frame_bytes = leaf.frame.data().len();
        self.put_pair(leaf, frame_bytes, sink)
    }

    fn count(&mut self, leaf: &PackedLeaf) -> Result<(), PackError> {
        if self.table.frames().len() == FRAMES_MAX {
            return Err(PackError::Frames);
        }
        let length = |bytes: usize| u32::try_from(bytes).map_err(|_| PackError::Frames);
        let (frame_bytes, plain_bytes) = (length(leaf.frame.data().len())?, length(leaf.content_bytes)?);
        self.table.push(FrameLengths { frame_bytes, plain_bytes });
        Ok(())
    }

    /// Stores a leaf of the zstd file, and the leaf of the plain file as a slice of it.
    fn put_pair(&mut self, leaf: PackedLeaf, frame_bytes: usize, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        let PackedLeaf { leaf, frame, prefix, suffix, content_bytes } = leaf;
        let bytes = frame.data().len() as u64;
        let part = Part { cid: *frame.cid(), file_bytes: bytes, dag_bytes: bytes };
        let base = BlockKey::of(frame.cid());
        sink.put(frame).map_err(ImportError::Sink)?;
        // Inline leaves are not stored.
        if let (Some(base), Some(_)) = (base, leaf.key()) {
            let slice = Slice { base, frame_start: 0, frame_bytes, content_bytes, prefix, suffix };
            sink.put_slice(leaf.cid(), slice).map_err(ImportError::Sink)?;
        }
        self.layout.push(part, sink)
    }
}

fn put(leaf: Block, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
    if leaf.key().is_some() { sink.put(leaf).map_err(ImportError::Sink) } else { Ok(()) }
}
