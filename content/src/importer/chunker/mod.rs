//! Cutting a stream into chunks.
//!
//! Goals: memory of one or two chunks, whatever is pushed; a byte is copied once into the buffer of its chunk, which then
//! becomes the leaf's block; where the cuts are does not depend on how the stream was pushed.
//!
//! A chunk that is much smaller than the largest is copied out of its buffer, so that its block does not hold on to more
//! memory than it has bytes.

mod buzhash;
mod rabin;

use self::buzhash::Buzhash;
use self::rabin::Rabin;
use super::pb::{HEAD_ROOM, TAIL_ROOM};
use crate::block::MAX_BLOCK_BYTES;
use std::fmt;
use std::str::FromStr;

/// The largest chunk, in bytes: a block without the 256 bytes that Kubo sets aside for what goes around the content.
pub const CHUNK_BYTES_MAX: usize = MAX_BLOCK_BYTES - 256;

/// Where a stream is cut, in the words of `ipfs add --chunker`: `size-N`, `rabin`, `rabin-AVERAGE`,
/// `rabin-MIN-AVERAGE-MAX`, `buzhash`; sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunking(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Size(usize),
    Rabin { min: usize, average: usize, max: usize },
    Buzhash,
}

/// Why a text does not say where to cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkingError {
    /// It is not one of the forms.
    #[error("\"{0}\" is not size-N, rabin, rabin-AVERAGE, rabin-MIN-AVERAGE-MAX or buzhash")]
    Form(String),
    /// A size is out of bounds.
    #[error("a chunk has 1 to {CHUNK_BYTES_MAX} bytes, not {0}")]
    Size(usize),
    /// The sizes of `rabin` are not in order, or the smallest is smaller than the window.
    #[error("the sizes of rabin have to grow and start at {} or more", rabin::WINDOW_BYTES)]
    Rabin,
}

impl Chunking {
    /// `size-262144`.
    pub const SIZE_256_KIB: Self = Self(Kind::Size(256 * 1024));
    /// `size-1048576`.
    pub const SIZE_1_MIB: Self = Self(Kind::Size(1024 * 1024));
    /// By content, with Kubo's fixed parameters: chunks of 128 to 512 KiB.
    pub const BUZHASH: Self = Self(Kind::Buzhash);

    /// Chunks of a fixed size in bytes. The last one may be smaller.
    ///
    /// # Errors
    /// [`ChunkingError::Size`].
    pub fn size(bytes: usize) -> Result<Self, ChunkingError> {
        Ok(Self(Kind::Size(in_bounds(bytes)?)))
    }

    /// By content, with a Rabin fingerprint and sizes in bytes; the average is rounded down to a power of two.
    ///
    /// # Errors
    /// [`ChunkingError::Size`] or [`ChunkingError::Rabin`].
    pub fn rabin(min: usize, average: usize, max: usize) -> Result<Self, ChunkingError> {
        let max = in_bounds(max)?;
        let ordered = rabin::WINDOW_BYTES <= min && min < average && average < max;
        if ordered { Ok(Self(Kind::Rabin { min, average, max })) } else { Err(ChunkingError::Rabin) }
    }

    /// [`Chunking::rabin`] with a third of the average as the smallest size and one and a half of it as the largest.
    fn rabin_around(average: usize) -> Result<Self, ChunkingError> {
        Self::rabin(average / 3, average, average.saturating_add(average / 2))
    }

    /// The smallest chunk that it makes, in bytes; the last of a stream may be smaller.
    pub fn bytes_min(&self) -> usize {
        match self.0 {
            Kind::Size(bytes) => bytes,
            Kind::Rabin { min, .. } => min,
            Kind::Buzhash => buzhash::BYTES_MIN,
        }
    }

    /// The largest chunk that it makes, in bytes.
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
        // Kubo lets the sizes of rabin be labelled.
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

/// A piece of a stream: what becomes a leaf.
#[derive(Debug)]
pub struct Chunk {
    /// The content after [`HEAD_ROOM`] bytes, into which a leaf writes what comes before it.
    pub(super) buffer: Vec<u8>,
    /// Whether the stream has no other. Its leaf is then the root of the file, and has the file's attributes.
    pub(super) whole: bool,
}

impl Chunk {
    /// The content.
    pub fn data(&self) -> &[u8] {
        self.buffer.get(HEAD_ROOM..).unwrap_or_default()
    }
}

/// What looks for the end of a chunk.
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

    /// Looks at the bytes that come next in the stream. Either the chunk ends with the first so many of them, and another
    /// begins behind, or all of them belong to it (`None`).
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

/// Cuts one stream.
#[derive(Debug)]
pub struct Chunker {
    scanner: Scanner,
    bytes_max: usize,
    buffer: Vec<u8>,
    /// Whether a chunk is complete already.
    started: bool,
    /// The first chunk, until it is known whether another follows.
    first: Option<Chunk>,
}

impl Chunker {
    /// Begins a stream.
    pub fn new(chunking: Chunking) -> Self {
        let (scanner, bytes_max) = (Scanner::new(chunking), chunking.bytes_max());
        Self { scanner, bytes_max, buffer: vec![0; HEAD_ROOM], started: false, first: None }
    }

    /// Takes bytes off the front of `input` until a chunk is complete, and returns it; `None` when `input` is used up. To
    /// be called again until then.
    pub fn push(&mut self, input: &mut &[u8]) -> Option<Chunk> {
        while !input.is_empty() {
            if let Some(first) = self.first.take() {
                return Some(first);
            }
            let end = self.scanner.scan(input);
            let (taken, rest) = input.split_at(end.unwrap_or(input.len()));
            *input = rest;
            self.keep(taken);
            end?;
            let chunk = self.take();
            if std::mem::replace(&mut self.started, true) {
                return Some(chunk);
            }
            self.first = Some(chunk);
        }
        None
    }

    /// Ends the stream: the last chunk, unless the stream was empty or ended with a cut that was returned already.
    pub fn finish(mut self) -> Option<Chunk> {
        if let Some(first) = self.first {
            return Some(Chunk { whole: true, ..first });
        }
        let whole = !self.started;
        (self.buffer.len() > HEAD_ROOM).then(|| Chunk { whole, ..self.take() })
    }

    /// Adds to the buffer. The first bytes of a stream may be all there are; more of them take the room of a whole chunk.
    fn keep(&mut self, bytes: &[u8]) {
        let kept = self.buffer.len() - HEAD_ROOM;
        let room = if self.started || kept > 0 { self.bytes_max - kept } else { bytes.len() };
        self.buffer.reserve_exact(room + TAIL_ROOM);
        self.buffer.extend_from_slice(bytes);
    }

    /// Empties the buffer, by giving it away if it is nearly full.
    fn take(&mut self) -> Chunk {
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
