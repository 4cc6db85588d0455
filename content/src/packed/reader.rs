//! [`PackedFile`]: reads the plain file of a zstd file by its seek table, without the plain file's own blocks.
//!
//! Goals: a range costs the frames that it touches, and the table; memory of a few frames; what the table says is
//! checked against each frame before its content is passed on.
//!
//! Non-goals: zstd files without a seek table, or with frames that are larger than a block or without their content
//! size.

use super::seek_table::{FramePlace, SeekTable, SeekTableError};
use crate::block::MAX_BLOCK_BYTES;
use crate::cid::{Cid, codec};
use crate::stored::frame::MAGIC;
use crate::stored::{ValueError, inflate};
use crate::unixfs::file::{FileReader, ReadError, ReadLimits, file_size};
use crate::{Block, BlockSource, Work};
use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream, StreamExt as _};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The memory of a reader besides its read-ahead, in bytes: a frame, its content, and what is being passed on.
pub const MEMORY_BYTES_MAX: usize = 3 * MAX_BLOCK_BYTES;

/// Why the plain file of a zstd file cannot be read. The zstd file itself may be intact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackedError {
    /// The zstd file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It has no valid seek table.
    #[error(transparent)]
    Table(#[from] SeekTableError),
    /// The table describes another number of bytes.
    #[error("the seek table describes {frame_bytes} bytes of a file that has {bytes} before it")]
    Size {
        /// The length of all frames according to the table, in bytes.
        frame_bytes: u64,
        /// The length of the file without the table, in bytes.
        bytes: u64,
    },
    /// A frame is too large.
    #[error("frame {index} exceeds {MAX_BLOCK_BYTES} bytes")]
    TooLarge {
        /// The number of the frame.
        index: usize,
    },
    /// A frame is not what the table says.
    #[error("frame {index} does not agree with the seek table: {error}")]
    Frame {
        /// The number of the frame.
        index: usize,
        /// What is wrong with it.
        error: ValueError,
    },
}

/// The plain file of a zstd file. Clones share the table.
#[derive(Debug, Clone)]
pub struct PackedFile {
    zstd_file: Block,
    table: Arc<SeekTable>,
}

impl PackedFile {
    /// Reads the table. `root` is the root of the zstd file under any codec.
    ///
    /// # Errors
    /// [`PackedError`].
    pub async fn open(source: Arc<dyn BlockSource>, root: &Block) -> Result<Self, PackedError> {
        let zstd_file = as_file(root);
        let size = file_size(&zstd_file)?;
        let read = async |bytes: usize| {
            let range = size.saturating_sub(bytes as u64)..size;
            let mut reader = FileReader::new(Arc::clone(&source), zstd_file.clone(), range, ReadLimits::default())?;
            let mut tail = BytesMut::new();
            while let Some(bytes) = reader.next().await {
                tail.extend_from_slice(&bytes?);
            }
            Ok::<_, ReadError>(tail)
        };
        let table_bytes = SeekTable::bytes_by_footer(&read(SeekTable::FOOTER_BYTES).await?)?;
        let (table, _) = SeekTable::read_tail(&read(table_bytes).await?)?;
        let (frame_bytes, bytes) = (table.frame_bytes(), size.saturating_sub(table_bytes as u64));
        if frame_bytes != bytes {
            return Err(PackedError::Size { frame_bytes, bytes });
        }
        Ok(Self { zstd_file, table: Arc::new(table) })
    }

    /// The length of the plain file, in bytes.
    pub fn size(&self) -> u64 {
        self.table.plain_bytes()
    }

    /// The bytes of a range of the plain file, which ends at its end at the latest. Each item is of one frame.
    ///
    /// # Errors
    /// [`PackedError`], here or as the last item.
    pub fn read(
        &self,
        source: Arc<dyn BlockSource>,
        range: Range<u64>,
        limits: ReadLimits,
    ) -> Result<impl Stream<Item = Result<Bytes, PackedError>> + Send + use<>, PackedError> {
        let is_wanted = |place: &FramePlace| {
            let end = place.plain_start + u64::from(place.lengths.plain_bytes);
            place.plain_start < range.end && end > range.start
        };
        let places: VecDeque<FramePlace> = self.table.places().filter(is_wanted).collect();
        let end = |place: &FramePlace| place.frame_start + u64::from(place.lengths.frame_bytes);
        let frames = match (places.front(), places.back()) {
            (Some(first), Some(last)) => first.frame_start..end(last),
            _ => 0..0,
        };
        let is_large = |bytes: u32| bytes as usize > MAX_BLOCK_BYTES;
        let large = |place: &&FramePlace| is_large(place.lengths.frame_bytes) || is_large(place.lengths.plain_bytes);
        if let Some(place) = places.iter().find(large) {
            return Err(PackedError::TooLarge { index: place.index });
        }
        let work = source.work();
        let reader = FileReader::new(source, self.zstd_file.clone(), frames, limits)?;
        let frames = Frames { reader, work, ahead: BytesMut::new(), places, range };
        Ok(stream::try_unfold(
            frames,
            |mut frames| async move { Ok(frames.next().await?.map(|bytes| (bytes, frames))) },
        ))
    }
}

/// Frames that are being read.
struct Frames {
    reader: FileReader,
    work: Work,
    /// Bytes of the next frame.
    ahead: BytesMut,
    places: VecDeque<FramePlace>,
    range: Range<u64>,
}

impl Frames {
    async fn next(&mut self) -> Result<Option<Bytes>, PackedError> {
        while let Some(place) = self.places.pop_front() {
            // Many empty frames can be in one leaf.
            self.work.charge(1);
            self.work.turn().await.map_err(ReadError::Source)?;
            let content = self.content(&place).await?;
            let at = |position: u64| {
                let within = position.saturating_sub(place.plain_start);
                usize::try_from(within).unwrap_or(usize::MAX).min(content.len())
            };
            let wanted = content.slice(at(self.range.start)..at(self.range.end));
            // A frame may be empty.
            if !wanted.is_empty() {
                return Ok(Some(wanted));
            }
        }
        Ok(None)
    }

    async fn content(&mut self, place: &FramePlace) -> Result<Bytes, PackedError> {
        let (index, frame_bytes) = (place.index, place.lengths.frame_bytes as usize);
        while self.ahead.len() < frame_bytes {
            match self.reader.next().await.transpose()? {
                Some(bytes) => self.ahead.extend_from_slice(&bytes),
                None => return Err(PackedError::Frame { index, error: ValueError::Length }),
            }
        }
        let frame = self.ahead.split_to(frame_bytes);
        let content = inflate(&frame).map_err(|error| PackedError::Frame { index, error })?;
        match content.len() == place.lengths.plain_bytes as usize {
            true => Ok(content),
            false => Err(PackedError::Frame { index, error: ValueError::Length }),
        }
    }
}

/// The root of a zstd file under the codec of its bytes: one frame is a raw leaf, and more are below a dag-pb node,
/// which does not begin like a frame.
fn as_file(root: &Block) -> Block {
    let codec = if root.data().starts_with(&MAGIC) { codec::RAW } else { codec::DAG_PB };
    root.under(&Cid::new_v1(codec, *root.cid().hash())).unwrap_or_else(|| root.clone())
}
