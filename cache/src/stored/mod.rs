//! [`Stored`]: how a block's bytes lie on disk, and how they get from there to a browser without being unpacked.
//!
//! Goals: spend no time on bytes that do not shrink (most of the web's are images, video and archives, compressed long
//! before); give back the exact block or an error, and never hand out more than a block can be; have at hand the frame
//! that a client who accepts `zstd` can be sent as it is.
//!
//! | module | concern |
//! |---|---|
//! | [`mod@encoder`] | [`Encoder`]: from a block to its stored form, and to a smaller one later |
//! | `estimate`, `formats` | whether compressing is worth trying |
//! | [`mod@body`] | the leaves of a file as one `Content-Encoding: zstd` body |
//! | [`mod@frame`] | what has to be known of the zstd format (RFC 8878) |
//!
//! A stored value begins with a tag, which is also its version:
//!
//! | tag | what follows |
//! |---|---|
//! | 0 | the block, as earlier releases stored it; read, not written any more, for it does not tell when it was cut |
//! | 1 | one zstd frame of the block |
//! | 2 | the block's length in bytes (4 bytes, big-endian), the block |
//! | 3 | an *envelope*: length of the prefix (1 byte), length of the suffix (1 byte), prefix, suffix, one zstd frame |
//!
//! The envelope is for dag-pb leaves, which CIDv0 implies: the bytes of a file inside of two protobuf messages. The
//! frame is of the file's bytes alone, and the block is prefix, payload, suffix. It is the payload that
//! [`content::unixfs::Node`] finds, so a reader and a stored value never differ about what the file's bytes are.
//!
//! Nothing here has a checksum. Whoever keeps values protects them ([`crate::disk`] does), and whoever doubts a block hashes
//! it. What is promised of a damaged value is no panic, no more memory than a block takes, and, but for tag 0, no
//! length that differs from the block's, unless it is the tag itself that was hit.
//!
//! Non-goals: where values are kept; HTTP; dictionaries, which a browser does not have.

pub mod body;
pub mod encoder;
mod estimate;
mod formats;
pub mod frame;
#[cfg(test)]
mod tests;

pub use self::encoder::{Encoder, Options};

use bytes::Bytes;
use content::MAX_BLOCK_BYTES;
use std::cell::RefCell;
use std::io::Cursor;
use std::ops::Range;
use zstd::zstd_safe::DCtx;

const TAG_RAW_UNSIZED: u8 = 0;
const TAG_FRAME: u8 = 1;
const TAG_RAW: u8 = 2;
const TAG_ENVELOPE: u8 = 3;

/// Tag and length before a block that is stored raw.
const RAW_HEAD_BYTES: usize = 5;
/// The tag before a frame.
const FRAME_HEAD_BYTES: usize = 1;
/// Tag and two lengths before an envelope.
const ENVELOPE_HEAD_BYTES: usize = 3;

/// As much of a value as tells its form, in bytes: the longest envelope, and the longest head of a frame (RFC 8878,
/// section 3.1.1).
pub(crate) const SHAPE_HEAD_BYTES: usize = ENVELOPE_HEAD_BYTES + 2 * 255 + 18;

/// Why a stored value cannot be read back. But for [`ValueError::Memory`] the block has to be fetched again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// There is not even a tag.
    #[error("the value is empty")]
    Empty,
    /// The tag is damaged, or of a release to come.
    #[error("tag {0} is unknown")]
    Tag(u8),
    /// The lengths that the value tells do not match its own.
    #[error("the value is cut short or too long")]
    Length,
    /// It would be a larger block than any.
    #[error("the value is of more than the {MAX_BLOCK_BYTES} bytes that a block has at most")]
    TooLarge,
    /// The frame is damaged, or is not one that was stored.
    #[error("the zstd frame is malformed")]
    Frame,
    /// The system refused the memory for unpacking. It says nothing about the value.
    #[error("there is no memory to unpack with")]
    Memory,
}

/// The form of a stored value, in lengths: enough to tell how long a body made of it will be
/// ([`body::encoded_bytes`]). All are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The block as it is.
    Raw {
        /// Of the block.
        block_bytes: usize,
    },
    /// One frame of the block.
    Frame {
        /// Of the block.
        block_bytes: usize,
        /// Of the frame.
        frame_bytes: usize,
    },
    /// A frame of the file's bytes, and what is around them in the block.
    Envelope {
        /// Of the block before the file's bytes.
        prefix_bytes: usize,
        /// Of the file's bytes.
        payload_bytes: usize,
        /// Of the block after the file's bytes.
        suffix_bytes: usize,
        /// Of the frame.
        frame_bytes: usize,
    },
}

impl Shape {
    /// The form of a value by its first [`SHAPE_HEAD_BYTES`] and its length, if it is one that was stored. Nothing is checked
    /// that only all of it tells.
    pub(crate) fn from_head(head: &[u8], value_bytes: usize) -> Option<Self> {
        let (tag, rest) = head.split_first()?;
        let shape = match *tag {
            TAG_RAW_UNSIZED => Self::Raw { block_bytes: value_bytes.checked_sub(1)? },
            TAG_FRAME => Self::Frame {
                block_bytes: frame::announced_bytes(rest)?,
                frame_bytes: value_bytes.checked_sub(FRAME_HEAD_BYTES)?,
            },
            TAG_RAW => Self::Raw { block_bytes: usize::try_from(u32::from_be_bytes(*rest.first_chunk()?)).ok()? },
            TAG_ENVELOPE => {
                let ([prefix, suffix], rest) = rest.split_first_chunk()?;
                let (prefix_bytes, suffix_bytes) = (usize::from(*prefix), usize::from(*suffix));
                let around = prefix_bytes + suffix_bytes;
                Self::Envelope {
                    prefix_bytes,
                    payload_bytes: frame::announced_bytes(rest.get(around..)?)?,
                    suffix_bytes,
                    frame_bytes: value_bytes.checked_sub(ENVELOPE_HEAD_BYTES + around)?,
                }
            }
            _ => return None,
        };
        (shape.block_bytes() <= MAX_BLOCK_BYTES).then_some(shape)
    }

    /// The length of the block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Raw { block_bytes } | Self::Frame { block_bytes, .. } => block_bytes,
            Self::Envelope { prefix_bytes, payload_bytes, suffix_bytes, .. } => {
                prefix_bytes + payload_bytes + suffix_bytes
            }
        }
    }

    /// The length of the value, as encoders write it.
    pub fn value_bytes(self) -> usize {
        match self {
            Self::Raw { block_bytes } => RAW_HEAD_BYTES + block_bytes,
            Self::Frame { frame_bytes, .. } => FRAME_HEAD_BYTES + frame_bytes,
            Self::Envelope { prefix_bytes, suffix_bytes, frame_bytes, .. } => {
                ENVELOPE_HEAD_BYTES + prefix_bytes + suffix_bytes + frame_bytes
            }
        }
    }
}

/// A value whose form has been checked: the lengths are right and its frame is whole. Cloning shares the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    value: Bytes,
    layout: Layout,
}

impl Stored {
    /// Takes a value that an [`Encoder`] made, of this release or an earlier one. Nothing is copied or unpacked.
    ///
    /// # Errors
    /// [`ValueError`] when the value is not one that was stored.
    pub fn read(value: Bytes) -> Result<Self, ValueError> {
        let layout = Layout::of(&value)?;
        Ok(Self { value, layout })
    }

    /// The block as it is.
    fn raw(block: &[u8]) -> Self {
        let block_bytes = block.len();
        let value = [&raw_head(block_bytes), block].concat().into();
        Self { value, layout: Layout { shape: Shape::Raw { block_bytes }, body_start: RAW_HEAD_BYTES } }
    }

    /// The bytes to be kept.
    pub fn value(&self) -> &Bytes {
        &self.value
    }

    /// The value in pieces as [`Encoder::encode_in_pieces`] gives them. One that an earlier release stored takes on the
    /// form that is written now.
    pub(crate) fn into_pieces(self) -> (Shape, [Bytes; 2]) {
        let shape = self.shape();
        match shape {
            Shape::Raw { block_bytes } => (shape, [Bytes::copy_from_slice(&raw_head(block_bytes)), self.body()]),
            Shape::Frame { .. } | Shape::Envelope { .. } => (shape, [Bytes::new(), self.value]),
        }
    }

    /// The lengths of the parts.
    pub fn shape(&self) -> Shape {
        self.layout.shape
    }

    /// The block. What is stored raw is shared, what is compressed is unpacked. Each thread that unpacks keeps a zstd
    /// context of 93 KiB for as long as it lives, instead of one for each value.
    ///
    /// # Errors
    /// [`ValueError`] when the frame does not unpack to what it says.
    pub fn block(&self) -> Result<Bytes, ValueError> {
        match self.layout.shape {
            Shape::Raw { .. } => Ok(self.body()),
            Shape::Frame { .. } | Shape::Envelope { .. } => self.layout.unpack(&self.value),
        }
    }

    /// The frame, or the block if there is none.
    fn body(&self) -> Bytes {
        self.value.slice(self.layout.body_start..)
    }

    fn prefix(&self) -> Bytes {
        self.value.slice(self.layout.prefix())
    }

    fn suffix(&self) -> Bytes {
        self.value.slice(self.layout.suffix())
    }
}

/// What comes before a block that is stored as it is. No block is anywhere near 4 GiB: one that was would be refused when
/// it is read, as is any over the limit.
fn raw_head(block_bytes: usize) -> [u8; RAW_HEAD_BYTES] {
    let [a, b, c, d] = u32::try_from(block_bytes).unwrap_or(u32::MAX).to_be_bytes();
    [TAG_RAW, a, b, c, d]
}

/// Where the parts of a value are. Made only by [`Layout::of`] and by encoders, so that the ranges are inside of the
/// value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    shape: Shape,
    /// Where the frame, or the raw block, begins. It always reaches to the end of the value.
    body_start: usize,
}

impl Layout {
    fn of(value: &[u8]) -> Result<Self, ValueError> {
        let (tag, rest) = value.split_first().ok_or(ValueError::Empty)?;
        let layout = match *tag {
            TAG_RAW_UNSIZED => Self { shape: Shape::Raw { block_bytes: rest.len() }, body_start: 1 },
            TAG_FRAME => {
                let shape = Shape::Frame { block_bytes: frame::content_bytes(rest)?, frame_bytes: rest.len() };
                Self { shape, body_start: FRAME_HEAD_BYTES }
            }
            TAG_RAW => Self::raw(rest)?,
            TAG_ENVELOPE => Self::envelope(rest)?,
            tag => return Err(ValueError::Tag(tag)),
        };
        if layout.shape.block_bytes() > MAX_BLOCK_BYTES { Err(ValueError::TooLarge) } else { Ok(layout) }
    }

    fn raw(rest: &[u8]) -> Result<Self, ValueError> {
        let (length, block) = rest.split_first_chunk().ok_or(ValueError::Length)?;
        if usize::try_from(u32::from_be_bytes(*length)) != Ok(block.len()) {
            return Err(ValueError::Length);
        }
        Ok(Self { shape: Shape::Raw { block_bytes: block.len() }, body_start: RAW_HEAD_BYTES })
    }

    fn envelope(rest: &[u8]) -> Result<Self, ValueError> {
        let ([prefix, suffix], rest) = rest.split_first_chunk().ok_or(ValueError::Length)?;
        let (prefix_bytes, suffix_bytes) = (usize::from(*prefix), usize::from(*suffix));
        let frame = rest.get(prefix_bytes + suffix_bytes..).ok_or(ValueError::Length)?;
        let payload_bytes = frame::content_bytes(frame)?;
        let shape = Shape::Envelope { prefix_bytes, payload_bytes, suffix_bytes, frame_bytes: frame.len() };
        Ok(Self { shape, body_start: ENVELOPE_HEAD_BYTES + prefix_bytes + suffix_bytes })
    }

    /// What is around the payload in the block, as lengths; nothing unless this is an envelope.
    fn around(self) -> (usize, usize) {
        match self.shape {
            Shape::Envelope { prefix_bytes, suffix_bytes, .. } => (prefix_bytes, suffix_bytes),
            Shape::Raw { .. } | Shape::Frame { .. } => (0, 0),
        }
    }

    fn prefix(self) -> Range<usize> {
        let (prefix, suffix) = self.around();
        let end = self.body_start - suffix;
        end - prefix..end
    }

    fn suffix(self) -> Range<usize> {
        let (_, suffix) = self.around();
        self.body_start - suffix..self.body_start
    }

    /// Unpacks the frame and puts the block together. Memory is asked for once, and no more than a block takes: the
    /// frame says how much, and zstd stops where it ends.
    fn unpack(self, value: &[u8]) -> Result<Bytes, ValueError> {
        let (prefix, suffix) = (&value[self.prefix()], &value[self.suffix()]);
        let mut block = Vec::with_capacity(self.shape.block_bytes());
        block.extend_from_slice(prefix);
        inflate_onto(&mut block, &value[self.body_start..])?;
        block.extend_from_slice(suffix);
        if block.len() == self.shape.block_bytes() { Ok(block.into()) } else { Err(ValueError::Frame) }
    }
}

/// Unpacks a frame to the end of `out`, within its capacity.
fn inflate_onto(out: &mut Vec<u8>, frame: &[u8]) -> Result<(), ValueError> {
    thread_local! {
        static CONTEXT: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    }
    CONTEXT.with_borrow_mut(|context| {
        if context.is_none() {
            *context = DCtx::try_create();
        }
        let context = context.as_mut().ok_or(ValueError::Memory)?;
        let mut out = at_end(out);
        context.decompress(&mut out, frame).map_err(|_| ValueError::Frame)?;
        Ok(())
    })
}

/// A place for zstd to write to: what is left of the capacity after what is there.
fn at_end(out: &mut Vec<u8>) -> Cursor<&mut Vec<u8>> {
    let end = out.len() as u64;
    let mut cursor = Cursor::new(out);
    cursor.set_position(end);
    cursor
}
