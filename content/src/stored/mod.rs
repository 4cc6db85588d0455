//! [`Stored`]: the stored form of a block, compressed where that saves space, and sent to a browser without
//! decompression.
//!
//! Goals: no time is spent on incompressible bytes (most of the web's are images, video and archives); reading returns
//! the exact block or an error, and never more than the maximum size of a block; a stored frame can be sent unchanged
//! to a client that accepts `zstd`.
//!
//! | module | concern |
//! |---|---|
//! | [`mod@encoder`] | [`Encoder`]: encodes a block into its stored form, and recompresses it later |
//! | `estimate`, `formats` | estimate whether compression is worthwhile |
//! | [`mod@body`] | the leaves of a file as one `Content-Encoding: zstd` body |
//! | [`mod@coding`] | bodies in the content coding `zstd`, decoded and encoded as they are transferred |
//! | [`mod@slice`] | [`Slice`]: a block whose frame is part of another block |
//! | [`mod@frame`] | the zstd frame format (RFC 8878) |
//!
//! A stored value begins with a tag, which is also its version:
//!
//! | tag | content |
//! |---|---|
//! | 0 | the block, as earlier releases stored it; no longer written, since truncation is not detected |
//! | 1 | one zstd frame of the block |
//! | 2 | the block's length in bytes (4 bytes, big-endian), the block |
//! | 3 | an *envelope*: length of the prefix (1 byte), length of the suffix (1 byte), prefix, suffix, one zstd frame |
//! | 4 | a [`Slice`]: the place of a zstd frame in another block, and the bytes around its content |
//!
//! The envelope is for dag-pb leaves, which CIDv0 implies: file data inside of two protobuf messages. The frame has
//! only the file data, and the block is prefix, payload, suffix. The payload is found by [`crate::unixfs::Node`], so
//! readers and stored values always agree on it.
//!
//! Values have no checksum. A store may add one, and a block's hash can always be verified. For a damaged value there
//! is no panic, no more memory than a block takes, and, except for tag 0 or a damaged tag, no wrong length.
//!
//! Non-goals: storing values; HTTP; dictionaries, which browsers do not have.

pub mod body;
pub mod coding;
pub mod encoder;
mod estimate;
mod formats;
pub mod frame;
pub mod slice;
#[cfg(test)]
mod tests;

pub use self::encoder::{CompressionOptions, Encoder, RAW_UP_TO_BYTES};
pub use self::slice::Slice;

use crate::MAX_BLOCK_BYTES;
use bytes::Bytes;
use std::cell::RefCell;
use std::io::Cursor;
use std::ops::Range;
use zstd::zstd_safe::DCtx;

const TAG_RAW_UNSIZED: u8 = 0;
const TAG_FRAME: u8 = 1;
const TAG_RAW: u8 = 2;
const TAG_ENVELOPE: u8 = 3;
const TAG_SLICE: u8 = 4;

/// Tag and length before a block that is stored raw.
const RAW_HEAD_BYTES: usize = 5;
/// The tag before a frame.
const FRAME_HEAD_BYTES: usize = 1;
/// Tag and two lengths before an envelope.
const ENVELOPE_HEAD_BYTES: usize = 3;

/// The part of a value that determines its form, in bytes: the longest envelope, and the longest head of a frame (RFC
/// 8878, section 3.1.1).
pub const SHAPE_HEAD_BYTES: usize = ENVELOPE_HEAD_BYTES + 2 * 255 + 18;

/// Why a stored value cannot be decoded. Except for [`ValueError::Memory`], the block must be fetched again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The value is empty.
    #[error("the value is empty")]
    Empty,
    /// The tag is damaged, or of a later release.
    #[error("tag {0} is unknown")]
    Tag(u8),
    /// The lengths in the value do not match its length.
    #[error("the value is truncated or too long")]
    Length,
    /// The block would exceed the maximum size of a block.
    #[error("the value's block exceeds the maximum of {MAX_BLOCK_BYTES} bytes")]
    TooLarge,
    /// The frame is damaged, or not one that an encoder writes.
    #[error("the zstd frame is malformed")]
    Frame,
    /// A slice refers to bytes that its block does not have, or to a frame of another length.
    #[error("a slice does not match the block that it is part of")]
    Slice,
    /// Memory for decompression could not be allocated. The value may be intact.
    #[error("there is not enough memory for decompression")]
    Memory,
}

/// The form of a stored value, with its lengths in bytes, from which the length of a body follows
/// ([`body::encoded_bytes`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The block, uncompressed.
    Raw {
        /// The length of the block.
        block_bytes: usize,
    },
    /// One frame of the whole block.
    Frame {
        /// The length of the block.
        block_bytes: usize,
        /// The length of the frame.
        frame_bytes: usize,
    },
    /// A frame of the file data, with the block's bytes around it.
    Envelope {
        /// The length of the block before the file data.
        prefix_bytes: usize,
        /// The length of the file data.
        payload_bytes: usize,
        /// The length of the block after the file data.
        suffix_bytes: usize,
        /// The length of the frame.
        frame_bytes: usize,
    },
}

impl Shape {
    /// The form of a value from its first [`SHAPE_HEAD_BYTES`] and its length. Does not verify the rest.
    pub fn from_head(head: &[u8], value_bytes: usize) -> Option<Self> {
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

    /// The length of the value, as written by encoders.
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

/// A value of a verified form: its lengths are consistent and its frame is complete. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    value: Bytes,
    layout: Layout,
}

impl Stored {
    /// Parses a value of an [`Encoder`] of this or an earlier release. Copies and decompresses nothing.
    ///
    /// # Errors
    /// [`ValueError`] if the value is invalid.
    pub fn read(value: Bytes) -> Result<Self, ValueError> {
        let layout = Layout::of(&value)?;
        Ok(Self { value, layout })
    }

    /// The stored form of its [parts](Stored::packed_parts), from an untrusted source. It takes less memory than the
    /// parts and a few bytes, and decompresses nothing: [`Shape::block_bytes`] is what decompression may take.
    ///
    /// # Errors
    /// [`ValueError`] if the frame is not exactly one zstd frame with its content size, without a dictionary and with a
    /// window of at most 8 MiB; if the parts do not fit a value; or if they are more than a block.
    pub fn from_packed_parts([prefix, frame, suffix]: [&[u8]; 3]) -> Result<Self, ValueError> {
        let mut value = Vec::with_capacity(ENVELOPE_HEAD_BYTES + prefix.len() + suffix.len() + frame.len());
        if prefix.is_empty() && suffix.is_empty() {
            value.push(TAG_FRAME);
        } else {
            let length = |part: &[u8]| u8::try_from(part.len()).map_err(|_| ValueError::Length);
            value.extend_from_slice(&[TAG_ENVELOPE, length(prefix)?, length(suffix)?]);
            value.extend_from_slice(prefix);
            value.extend_from_slice(suffix);
        }
        value.extend_from_slice(frame);
        Self::read(value.into())
    }

    /// The prefix, the zstd frame and the suffix, to be sent as they are: the block is the prefix, the content of the
    /// frame, and the suffix. `None` if the block is stored uncompressed.
    pub fn packed_parts(&self) -> Option<[Bytes; 3]> {
        match self.shape() {
            Shape::Raw { .. } => None,
            Shape::Frame { .. } | Shape::Envelope { .. } => Some([self.prefix(), self.body(), self.suffix()]),
        }
    }

    /// The block, uncompressed.
    fn raw(block: &[u8]) -> Self {
        let block_bytes = block.len();
        let value = [&raw_head(block_bytes), block].concat().into();
        Self { value, layout: Layout { shape: Shape::Raw { block_bytes }, body_start: RAW_HEAD_BYTES } }
    }

    /// A frame, and the bytes of the block before and after its content.
    fn around_frame(prefix: &[u8], frame: &[u8], suffix: &[u8]) -> Result<Self, ValueError> {
        let mut value = Vec::with_capacity(ENVELOPE_HEAD_BYTES + prefix.len() + suffix.len() + frame.len());
        encoder::put_head(&mut value, prefix, suffix).ok_or(ValueError::Length)?;
        value.extend_from_slice(frame);
        Self::read(value.into())
    }

    /// The bytes to store.
    pub fn value(&self) -> &Bytes {
        &self.value
    }

    /// The value in pieces, like [`Encoder::encode_in_pieces`]. A value of an earlier release is converted to the
    /// current form.
    pub fn into_pieces(self) -> (Shape, [Bytes; 2]) {
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

    /// The block. Raw values are shared, compressed ones are decompressed. Each thread that decompresses keeps a zstd
    /// context of 93 KiB, instead of one for each value.
    ///
    /// # Errors
    /// [`ValueError`] if the frame is damaged.
    pub fn block(&self) -> Result<Bytes, ValueError> {
        match self.layout.shape {
            Shape::Raw { .. } => Ok(self.body()),
            Shape::Frame { .. } | Shape::Envelope { .. } => self.layout.decompress(&self.value),
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

/// The head of a raw value. No block is near 4 GiB: reading rejects blocks over the maximum size.
fn raw_head(block_bytes: usize) -> [u8; RAW_HEAD_BYTES] {
    let [a, b, c, d] = u32::try_from(block_bytes).unwrap_or(u32::MAX).to_be_bytes();
    [TAG_RAW, a, b, c, d]
}

/// The positions of a value's parts. Created only by [`Layout::of`] and by encoders, so that the ranges are within the
/// value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    shape: Shape,
    /// The start of the frame, or of the raw block, which extends to the end of the value.
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

    /// The lengths of the prefix and the suffix; zero unless this is an envelope.
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

    /// Decompresses the frame and assembles the block. Allocates memory once, at most the maximum size of a block: the
    /// frame has its content size, and zstd stops there.
    fn decompress(self, value: &[u8]) -> Result<Bytes, ValueError> {
        let (prefix, suffix) = (&value[self.prefix()], &value[self.suffix()]);
        let mut block = Vec::with_capacity(self.shape.block_bytes());
        block.extend_from_slice(prefix);
        inflate_onto(&mut block, &value[self.body_start..])?;
        block.extend_from_slice(suffix);
        if block.len() == self.shape.block_bytes() { Ok(block.into()) } else { Err(ValueError::Frame) }
    }
}

/// Decompresses a frame to the end of `out`, within its capacity.
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

/// The content of a zstd frame, which announces its length; at most the maximum size of a block.
///
/// # Errors
/// [`ValueError`].
pub fn inflate(frame: &[u8]) -> Result<Bytes, ValueError> {
    let bytes = frame::content_bytes(frame)?;
    let mut content = Vec::with_capacity(bytes);
    inflate_onto(&mut content, frame)?;
    if content.len() == bytes { Ok(content.into()) } else { Err(ValueError::Frame) }
}

/// A cursor at the end of `out`, for zstd to write into its spare capacity.
fn at_end(out: &mut Vec<u8>) -> Cursor<&mut Vec<u8>> {
    let end = out.len() as u64;
    let mut cursor = Cursor::new(out);
    cursor.set_position(end);
    cursor
}
