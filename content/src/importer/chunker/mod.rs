//! Splits a stream into chunks.
//!
//! Goals: the memory of one or two chunks, for any input; each byte is copied once, into the buffer of its chunk, which
//! becomes the block of the leaf; the boundaries do not depend on how the input is split into calls.
//!
//! A chunk that is much smaller than the maximum is copied out of its buffer, so that its block does not keep unused
//! memory alive.

mod buzhash;
mod rabin;

use self::buzhash::Buzhash;
use self::rabin::Rabin;
use super::pb::{HEAD_ROOM, TAIL_ROOM};
use crate::block::MAX_BLOCK_BYTES;
use std::fmt;
use std::str::FromStr;

/// The maximum size of a chunk, in bytes: that of a block less the 256 bytes that Kubo reserves for the dag-pb framing.
pub const CHUNK_BYTES_MAX: usize = MAX_BLOCK_BYTES - 256;

/// How streams are split into chunks, with the syntax of `ipfs add --chunker`: `size-N`, `rabin`, `rabin-AVERAGE`,
/// `rabin-MIN-AVERAGE-MAX`, `buzhash`; sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunking(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Size(usize),
    Rabin { min: usize, average: usize, max: usize },
    Buzhash,
}

/// Why a chunker specification is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkingError {
    /// It has none of the supported forms.
    #[error("\"{0}\" is not size-N, rabin, rabin-AVERAGE, rabin-MIN-AVERAGE-MAX or buzhash")]
    Form(String),
    /// A size is out of range.
    #[error("the size of a chunk must be 1 to {CHUNK_BYTES_MAX} bytes, not {0}")]
    Size(usize),
    /// The sizes of `rabin` are not ascending, or the minimum is smaller than the window.
    #[error("the sizes of rabin must be ascending, and at least {} bytes", rabin::WINDOW_BYTES)]
    Rabin,
}

impl Chunking {
    /// `size-262144`.
    pub const SIZE_256_KIB: Self = Self(Kind::Size(256 * 1024));
    /// `size-1048576`.
    pub const SIZE_1_MIB: Self = Self(Kind::Size(1024 * 1024));
    /// Content-defined, with Kubo's fixed parameters: chunks of 128 to 512 KiB.
    pub const BUZHASH: Self = Self(Kind::Buzhash);

    /// Chunks of a fixed size in bytes. The last one may be smaller.
    ///
    /// # Errors
    /// [`ChunkingError::Size`].
    pub fn size(bytes: usize) -> Result<Self, ChunkingError> {
        Ok(Self(Kind::Size(in_bounds(bytes)?)))
    }

    /// Content-defined by a Rabin fingerprint, with sizes in bytes; the average is rounded down to a power of two.
    ///
    /// # Errors
    /// [`ChunkingError::Size`] or [`ChunkingError::Rabin`].
    pub fn rabin(min: usize, average: usize, max: usize) -> Result<Self, ChunkingError> {
        let max = in_bounds(max)?;
        let ordered = rabin::WINDOW_BYTES <= min && min < average && average < max;
        if ordered { Ok(Self(Kind::Rabin { min, average, max })) } else { Err(ChunkingError::Rabin) }
    }

    /// [`Chunking::rabin`] with a minimum of a third of the average, and a maximum of one and a half of it.
    fn rabin_around(average: usize) -> Result<Self, ChunkingError> {
        Self::rabin(average / 3, average, average.saturating_add(average / 2))
    }

    /// The minimum size of a chunk, in bytes; the last one of a stream may be smaller.
    pub fn bytes_min(&self) -> usize {
        match self.0 {
            Kind::Size(bytes) => bytes,
            Kind::Rabin { min, .. } => min,
            Kind::Buzhash => buzhash::BYTES_MIN,
        }
    }

    /// The maximum size of a chunk, in bytes.
    pub fn bytes_max(&self) -> usize {
        match self.0 {
            Kind::Size(bytes) => bytes,
            Kind::Rabin { max, .. } => max,
            Kind::Buzhash => buzhash::BYTES_MAX,
        }
    }
}

fn in_bounds(bytes: usize) -> Result<usize, ChunkingError> {
    if (1..=CHUNK_BYTES_MAX).contains(&bytes) { Ok(bytes) } else { Err(ChunkingError::Size(bytes)) }
}

impl FromStr for Chunking {
    type Err = ChunkingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || ChunkingError::Form(text.chars().take(80).collect());
        let number = |part: &str| part.parse::<usize>().map_err(|_| form());
        // Kubo allows labels for the sizes of rabin.
        let labelled = |label: &str, part: &str| number(part.strip_prefix(label).unwrap_or(part));
        match *text.split('-').collect::<Vec<_>>() {
            ["size", bytes] => Self::size(number(bytes)?),
            ["rabin"] => Self::rabin_around(256 * 1024),
            ["rabin", average] => Self::rabin_around(number(average)?),
            ["rabin", min, average, max] => {
                Self::rabin(labelled("min:", min)?, labelled("avg:", average)?, labelled("max:", max)?)
            }
            ["buzhash"] => Ok(Self::BUZHASH),
            _ => Err(form()),
        }
    }
}

impl fmt::Display for Chunking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Size(bytes) => write!(f, "size-{bytes}"),
            Kind::Rabin { min, average, max } => write!(f, "rabin-{min}-{average}-{max}"),
            Kind::Buzhash => f.write_str("buzhash"),
        }
    }
}

/// A chunk of a stream, which becomes a leaf.
#[derive(Debug)]
pub struct Chunk {
    /// The content after [`HEAD_ROOM`] bytes, which are reserved for the dag-pb header of the leaf.
    pub(super) buffer: Vec<u8>,
    /// Whether it is the only chunk of the stream. Then its leaf is the root of the file, and has the file's
    /// attributes.
    pub(super) whole: bool,
}

impl Chunk {
    /// The content.
    pub fn data(&self) -> &[u8] {
        self.buffer.get(HEAD_ROOM..).unwrap_or_default()
    }
}

/// Finds the end of a chunk.
#[derive(Debug)]
enum Scanner {
    Size { size: usize, left: usize },
    Rabin(Rabin),
    Buzhash(Buzhash),
}

impl Scanner {
    fn new(chunking: Chunking) -> Self {
        match chunking.0 {
            Kind::Size(size) => Self::Size { size, left: size },
            Kind::Rabin { min, average, max } => Self::Rabin(Rabin::new(min, average, max)),
            Kind::Buzhash => Self::Buzhash(Buzhash::new()),
        }
    }

    /// Processes the next bytes of the stream. Returns the number of bytes before the end of the chunk, or `None` if
    /// all bytes belong to it.
    fn scan(&mut self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Size { size, left } if bytes.len() >= *left => Some(std::mem::replace(left, *size)),
            Self::Size { left, .. } => {
                *left -= bytes.len();
                None
            }
            Self::Rabin(rabin) => rabin.scan(bytes),
            Self::Buzhash(buzhash) => buzhash.scan(bytes),
        }
    }
}

/// Splits one stream into chunks.
#[derive(Debug)]
pub struct Chunker {
    scanner: Scanner,
    bytes_max: usize,
    buffer: Vec<u8>,
    /// Whether a chunk is complete.
    started: bool,
    /// The first chunk, until it is known whether another follows.
    first: Option<Chunk>,
}

impl Chunker {
    /// Starts a stream.
    pub fn new(chunking: Chunking) -> Self {
        let (scanner, bytes_max) = (Scanner::new(chunking), chunking.bytes_max());
        Self { scanner, bytes_max, buffer: vec![0; HEAD_ROOM], started: false, first: None }
    }

    /// Takes bytes from the front of `input` until a chunk is complete, and returns it; `None` when `input` is used up.
    /// Call it again until then.
    pub fn push(&mut self, input: &mut &[u8]) -> Option<Chunk> {
        while !input.is_empty() {
            if let Some(first) = self.first.take() {
                return Some(first);
            }
            let end = self.scanner.scan(input);
            let (taken, rest) = input.split_at(end.unwrap_or(input.len()));
            *input = rest;
            self.append(taken);
            end?;
            let chunk = self.take_chunk();
            if std::mem::replace(&mut self.started, true) {
                return Some(chunk);
            }
            self.first = Some(chunk);
        }
        None
    }

    /// Ends the stream; returns the last chunk, unless it is empty or was returned already.
    pub fn finish(mut self) -> Option<Chunk> {
        if let Some(first) = self.first {
            return Some(Chunk { whole: true, ..first });
        }
        let whole = !self.started;
        (self.buffer.len() > HEAD_ROOM).then(|| Chunk { whole, ..self.take_chunk() })
    }

    /// Appends to the buffer. It allocates a whole chunk only when the stream has more than its first bytes.
    fn append(&mut self, bytes: &[u8]) {
        let used = self.buffer.len() - HEAD_ROOM;
        let room = if self.started || used > 0 { self.bytes_max - used } else { bytes.len() };
        self.buffer.reserve_exact(room + TAIL_ROOM);
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the chunk out of the buffer, with the buffer itself if that is nearly full.
    fn take_chunk(&mut self) -> Chunk {
        let (length, capacity) = (self.buffer.len() + TAIL_ROOM, self.buffer.capacity());
        if length >= capacity - capacity / 8 {
            return Chunk { buffer: std::mem::replace(&mut self.buffer, vec![0; HEAD_ROOM]), whole: false };
        }
        let mut buffer = Vec::with_capacity(length);
        buffer.extend_from_slice(&self.buffer);
        self.buffer.truncate(HEAD_ROOM);
        Chunk { buffer, whole: false }
    }
}
