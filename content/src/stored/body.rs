//! The leaves of a file as one `Content-Encoding: zstd` body (<https://www.rfc-editor.org/rfc/rfc8878>, section 3:
//! concatenated frames decode to the concatenation of their contents).
//!
//! Goals: stored frames are sent unchanged; raw values are sent as a frame of raw blocks, which is a few bytes longer
//! and not copied; the length of the body follows from the stored lengths alone, so that `Content-Length` is known
//! before any value is read.
//!
//! | stored as | read by a raw CID | read by a dag-pb CID |
//! |---|---|---|
//! | raw | raw frame of the block | raw frame of the payload |
//! | frame | the frame | decompressed, raw frame of the payload |
//! | envelope | raw frame of the prefix, the frame, raw frame of the suffix | the frame |
//!
//! The two expensive combinations are rare: a block is stored for the codec with which it was first fetched, and frames
//! of whole dag-pb leaves come from stores of earlier releases, until they are recompressed.
//!
//! The contents of stored frames are not verified here. They were made from verified blocks and are protected by the
//! store's checksums, like raw values. Clients that verify use the trustless formats.
//!
//! A whole block is sent as by a raw CID, whatever its codec is ([`block_bytes`], [`block_parts`]). In an archive, the
//! head of its section comes before it ([`section_parts`]).
//!
//! Non-goals: the file data of inner nodes, which hardly ever exists ([`frame::raw`]); ranges, which use the identity
//! coding; content negotiation.

use super::frame::{raw, raw_bytes};
use super::{Shape, Stored, ValueError};
use crate::{Block, Cid, Node, NodeError, codec};
use bytes::Bytes;

#[cfg(doc)]
use super::frame;

/// Why a leaf cannot be part of a body. The body must end with an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The value cannot be decompressed.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The block is not UnixFS.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The block is not a leaf of a file, or its length differs from that in its parent.
    #[error("{cid} is not a leaf of {file_bytes} bytes")]
    Leaf {
        /// The block.
        cid: Cid,
        /// The expected length of its file data.
        file_bytes: u64,
    },
}

/// How a value is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// Its frame is sent unchanged.
    Frame { frame_bytes: usize },
    /// Its frame is sent unchanged, between raw frames of the prefix and the suffix.
    Around { prefix_bytes: usize, frame_bytes: usize, suffix_bytes: usize },
    /// The file data is sent as a raw frame.
    Raw,
}

impl Plan {
    /// `None` if the codec is not used for files, or the lengths are inconsistent.
    fn of(shape: Shape, codec: u64, file_bytes: u64) -> Option<Self> {
        let (plan, expected) = match (codec, shape) {
            (codec::RAW, Shape::Raw { block_bytes }) => (Self::Raw, block_bytes),
            (codec::RAW, Shape::Frame { block_bytes, frame_bytes }) => (Self::Frame { frame_bytes }, block_bytes),
            (codec::RAW, Shape::Envelope { prefix_bytes, suffix_bytes, frame_bytes, .. }) => {
                (Self::Around { prefix_bytes, frame_bytes, suffix_bytes }, shape.block_bytes())
            }
            (codec::DAG_PB, Shape::Envelope { payload_bytes, frame_bytes, .. }) => {
                (Self::Frame { frame_bytes }, payload_bytes)
            }
            // The length of the file data is known only after reading the value.
            (codec::DAG_PB, _) if file_bytes <= shape.block_bytes() as u64 => return Some(Self::Raw),
            _ => return None,
        };
        (expected as u64 == file_bytes).then_some(plan)
    }
}

/// The length of the result of [`parts`] for a leaf, in bytes. `file_bytes` is the length of its file data according to
/// its parent. `None` if there is no such leaf: then the file must be sent with the identity coding, which reports the
/// error.
pub fn encoded_bytes(shape: Shape, codec: u64, file_bytes: u64) -> Option<u64> {
    Some(match Plan::of(shape, codec, file_bytes)? {
        Plan::Frame { frame_bytes } => frame_bytes as u64,
        Plan::Around { prefix_bytes, frame_bytes, suffix_bytes } => {
            raw_bytes(prefix_bytes as u64) + frame_bytes as u64 + raw_bytes(suffix_bytes as u64)
        }
        Plan::Raw => raw_bytes(file_bytes),
    })
}

/// The file data of a leaf as one or more complete frames, in order; an empty leaf is an empty frame, so that no body
/// is empty.
///
/// # Errors
/// [`BodyError`]; then no part of the leaf must be sent.
pub fn parts(stored: &Stored, cid: &Cid, file_bytes: u64) -> Result<Vec<Bytes>, BodyError> {
    let not_a_leaf = || BodyError::Leaf { cid: *cid, file_bytes };
    match Plan::of(stored.shape(), cid.codec(), file_bytes).ok_or_else(not_a_leaf)? {
        Plan::Frame { .. } => Ok(vec![stored.body()]),
        Plan::Around { .. } => Ok(around(stored)),
        Plan::Raw => match Node::decode(&Block::from_verified(*cid, stored.block()?))? {
            Node::File(file) if file.child_count() == 0 && file.data().len() as u64 == file_bytes => {
                Ok(raw(file.data()))
            }
            _ => Err(not_a_leaf()),
        },
    }
}

/// The length of the result of [`block_parts`], in bytes; `None` if the block is not stored compressed.
pub fn block_bytes(shape: Shape) -> Option<u64> {
    match shape {
        Shape::Raw { .. } => None,
        _ => encoded_bytes(shape, codec::RAW, shape.block_bytes() as u64),
    }
}

/// A whole block as one or more complete frames, in order; `None` if it is not stored compressed.
pub fn block_parts(stored: &Stored) -> Option<Vec<Bytes>> {
    match stored.shape() {
        Shape::Raw { .. } => None,
        Shape::Frame { .. } => Some(vec![stored.body()]),
        Shape::Envelope { .. } => Some(around(stored)),
    }
}

/// The frame of an envelope, between raw frames of its prefix and its suffix.
fn around(stored: &Stored) -> Vec<Bytes> {
    [raw(&stored.prefix()), vec![stored.body()], raw(&stored.suffix())].concat()
}

/// Blocks up to this size share a frame with the head of their section, which copies them, in bytes.
const SHARED_FRAME_BYTES_MAX: usize = 4096;

/// A section of an archive as one or more complete frames, in order: its head, and the block as it is stored, if it is
/// known to be stored compressed.
pub fn section_parts(head: &Bytes, block: &Bytes, stored: Option<&Stored>) -> Vec<Bytes> {
    // What is stored for another block would make the archive useless.
    let stored = stored.filter(|stored| stored.shape().block_bytes() == block.len());
    let compressed = stored.filter(|stored| !matches!(stored.shape(), Shape::Raw { .. }));
    let Some(stored) = compressed else {
        return match block.len() {
            0..=SHARED_FRAME_BYTES_MAX => vec![short(&[head, block])],
            _ => [vec![short(&[head])], raw(block)].concat(),
        };
    };
    let (prefix, suffix) = (stored.prefix(), stored.suffix());
    let mut parts = vec![short(&[head, &prefix]), stored.body()];
    if !suffix.is_empty() {
        parts.push(short(&[&suffix]));
    }
    parts
}

/// A few bytes as one raw frame in one piece: many small pieces cost more than their copies.
fn short(bytes: &[&[u8]]) -> Bytes {
    raw(&bytes.concat().into()).concat().into()
}
