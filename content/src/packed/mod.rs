//! Packed files: a file as a seekable zstd file, whose leaves are also the leaves of the plain file.
//!
//! A packed file has three CIDs: that of the *plain file*; that of the *zstd file*, an ordinary UnixFS file that any
//! node can read and `zstd -d` decompresses; and the [*packed CID*](packed_cid), which has the multihash of the zstd
//! file's root and a codec of its own, and names the plain content by it.
//!
//! Goals: the plain file is read in any range by reading the frames of that range; every frame can be sent as
//! `Content-Encoding: zstd` (<https://www.rfc-editor.org/rfc/rfc9659>); each byte is stored once; one pass over a
//! stream of unknown length, in bounded memory.
//!
//! How: each chunk of the plain file becomes one frame, and each frame one raw leaf of the zstd file. The seek table
//! follows the last frame in its leaf. A leaf of the plain file is stored as a [`Slice`] of the leaf that has its
//! frame.
//!
//! | module | concern |
//! |---|---|
//! | [`seek_table`] | the format of the seek table |
//! | [`reader`] | [`PackedFile`]: reads the plain file from the zstd file alone |
//!
//! [`crate::importer::packer`] makes both files from the leaves of the plain file.
//!
//! Departures from *IPFSz*: the paper compresses a file as a whole and marks its multihash, which no other node can
//! parse. Frames of one chunk are a few per cent larger, and are read in any order.
//!
//! Non-goals: dictionaries, which browsers do not have; storing (`cache`).

pub mod reader;
pub mod seek_table;

pub use self::reader::{PackedError, PackedFile};
pub use self::seek_table::{SeekTable, SeekTableError};

#[cfg(doc)]
use crate::stored::Slice;

use crate::cid::{BlockKey, Cid, codec};

/// The maximum size of a chunk of a packed file, in bytes.
pub const CHUNK_BYTES_MAX: usize = 1024 * 1024;

/// Why a file cannot be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The chunks are too large for frames.
    #[error(
        "chunks of up to {bytes} bytes cannot be packed: use a chunker with at most {CHUNK_BYTES_MAX} bytes, such as \
         size-{CHUNK_BYTES_MAX}"
    )]
    Chunks {
        /// The maximum size of a chunk, in bytes.
        bytes: usize,
    },
    /// The seek table would be too large.
    #[error(
        "a packed file has at most {} chunks: use larger chunks, or add the file without packing it",
        seek_table::FRAMES_MAX
    )]
    Frames,
    /// A leaf has another form than those of the importer.
    #[error("a leaf of the file does not have its {bytes} bytes in one piece")]
    Leaf {
        /// The length of its file data.
        bytes: u64,
    },
    /// zstd failed.
    #[error("a chunk could not be compressed: {0}")]
    Zstd(String),
}

/// The packed CID of a zstd file.
pub fn packed_cid(zstd_file: &Cid) -> Cid {
    Cid::new_v1(codec::PACKED_FILE, *zstd_file.hash())
}

/// The key of the zstd file's root, if this is a packed CID.
pub fn zstd_file_of(cid: &Cid) -> Option<BlockKey> {
    BlockKey::of(cid).filter(|_| cid.codec() == codec::PACKED_FILE)
}
