//! Leaves of a file as parts of one `Content-Encoding: zstd` body (<https://www.rfc-editor.org/rfc/rfc8878>, section 3:
//! any number of frames is the concatenation of what is in them).
//!
//! Goals: a stored frame goes out as it is; what is stored raw goes out as a frame of raw blocks, some bytes longer and
//! not copied; the length of the body is known from the stored lengths alone, so that it can be announced before any
//! value is read.
//!
//! | stored as | read by a raw CID | read by a dag-pb CID |
//! |---|---|---|
//! | raw | raw frame of the block | raw frame of the payload |
//! | frame | the frame | unpacked, raw frame of the payload |
//! | envelope | raw frame of the prefix, the frame, raw frame of the suffix | the frame |
//!
//! The two that cost something or save little are rare: a block is stored for the codec that it was first fetched by,
//! and whole frames of dag-pb leaves come from stores of earlier releases, until they are recompressed.
//!
//! What a stored frame unpacks to is not looked at here. It was made of a block that had been checked, and the store's
//! checksums vouch for it since, as they do for what is stored raw. Trustless forms are for clients who check themselves.
//!
//! Non-goals: inner nodes, whose bytes of their own (there hardly ever are any) are [`frame::raw`]; ranges, which are
//! of the identity; negotiation.

use super::frame::{raw, raw_bytes};
use super::{Shape, Stored, ValueError};
use bytes::Bytes;
use content::unixfs::{Node, NodeError};
use content::{Block, Cid, codec};

#[cfg(doc)]
use super::frame;

/// Why a leaf cannot be part of a body. The body has to end in an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The value cannot be unpacked.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The block is not UnixFS.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The block is not a leaf of a file, or not of so many bytes as its parent says.
    #[error("{cid} is not a leaf of {file_bytes} bytes")]
    Leaf {
        /// The block.
        cid: Cid,
        /// The length that was expected of its part of the file.
        file_bytes: u64,
    },
}

/// What is done with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// Its frame is sent as it is.
    Frame { frame_bytes: usize },
    /// Its frame is sent as it is, between raw frames of what is around it.
    Around { prefix_bytes: usize, frame_bytes: usize, suffix_bytes: usize },
    /// The file's bytes are sent as a raw frame.
    Raw,
}

impl Plan {
    /// `None` if the codec is not one of files, or the lengths contradict each other.
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
            // How much of it is the file's only shows when it is read.
            (codec::DAG_PB, _) if file_bytes <= shape.block_bytes() as u64 => return Some(Self::Raw),
            _ => return None,
        };
        (expected as u64 == file_bytes).then_some(plan)
    }
}

/// The length of what [`parts`] gives for a leaf, in bytes. `file_bytes` is how much of the file the leaf is, as its
/// parent says. `None` if there is no such leaf: then the file has to be sent as it is, and its reader will find out
/// why.
pub fn encoded_bytes(shape: Shape, codec: u64, file_bytes: u64) -> Option<u64> {
    Some(match Plan::of(shape, codec, file_bytes)? {
        Plan::Frame { frame_bytes } => frame_bytes as u64,
        Plan::Around { prefix_bytes, frame_bytes, suffix_bytes } => {
            raw_bytes(prefix_bytes as u64) + frame_bytes as u64 + raw_bytes(suffix_bytes as u64)
        }
        Plan::Raw => raw_bytes(file_bytes),
    })
}

/// The bytes of a leaf as one or more whole frames, in order; an empty leaf is an empty frame, so that no body is
/// empty.
///
/// # Errors
/// [`BodyError`]; nothing of the leaf must be sent then.
pub fn parts(stored: &Stored, cid: &Cid, file_bytes: u64) -> Result<Vec<Bytes>, BodyError> {
    let not_a_leaf = || BodyError::Leaf { cid: *cid, file_bytes };
    match Plan::of(stored.shape(), cid.codec(), file_bytes).ok_or_else(not_a_leaf)? {
        Plan::Frame { .. } => Ok(vec![stored.body()]),
        Plan::Around { .. } => Ok([raw(&stored.prefix()), vec![stored.body()], raw(&stored.suffix())].concat()),
        Plan::Raw => match Node::decode(&Block::from_checked(*cid, stored.block()?))? {
            Node::File(file) if file.child_count() == 0 && file.data().len() as u64 == file_bytes => {
                Ok(raw(file.data()))
            }
            _ => Err(not_a_leaf()),
        },
    }
}
