//! Reading an archive block by block, from any `AsyncRead`. For an archive in memory, use `&[u8]`.

use crate::block::{Block, BlockError, MAX_BLOCK_BYTES};
use crate::cid::{Cid, MAX_DIGEST_BYTES, codec};
use bytes::{Buf, Bytes, BytesMut};
use futures::stream::{self, Stream};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use unsigned_varint::decode::{self, Error as VarintError};

/// The maximum size of a header, in bytes: some 25,000 roots.
const HEADER_BYTES_MAX: usize = 1024 * 1024;
/// The maximum size of a CID: version, codec, hash function and digest length of up to ten bytes each, and the digest.
const CID_BYTES_MAX: usize = 4 * 10 + MAX_DIGEST_BYTES;
/// The size of reads, in bytes: large, because each read of a file may be handed to a blocking thread.
const CHUNK_BYTES: usize = 128 * 1024;

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CarError {
    /// Reading failed.
    #[error("the archive cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The archive is truncated.
    #[error("the archive ends in the middle of {0}")]
    Truncated(&'static str),
    /// The header is not a CARv1 header.
    #[error("the archive has an invalid CAR header: {0}")]
    Header(String),
    /// The archive has another version.
    #[error("the archive is of CAR version {version}, but only version 1 is supported; convert it to CARv1 first")]
    Version {
        /// The version in its header.
        version: u64,
    },
    /// A length is not an unsigned varint, or exceeds its maximum.
    #[error("the length of {what} is invalid: {reason}")]
    Length {
        /// The item with this length.
        what: &'static str,
        /// What is wrong with the length.
        reason: String,
    },
    /// A section does not begin with a CID.
    #[error("a section does not begin with a CID: {0}")]
    Cid(String),
    /// The last block is not a list of roots.
    #[error("the archive does not end with a list of its roots: {0}")]
    Roots(String),
    /// The bytes of a section do not match its CID.
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// The header of both versions; that of CARv2 has no roots.
#[derive(Deserialize)]
struct Header {
    version: u64,
    roots: Option<Vec<Cid>>,
}

/// A section: a CID and the bytes that are claimed to be its block. Not verified.
#[derive(Debug, Clone)]
pub struct Section {
    cid: Cid,
    bytes: Bytes,
}

impl Section {
    /// The claimed CID.
    pub fn cid(&self) -> &Cid {
        &self.cid
    }

    /// The size of the block, in bytes.
    pub fn block_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The claimed CID, and the bytes, which are not verified.
    pub fn into_parts(self) -> (Cid, Bytes) {
        (self.cid, self.bytes)
    }

    /// Verifies the block.
    ///
    /// # Errors
    /// [`BlockError`] when the bytes do not match the CID.
    pub fn verify(self) -> Result<Block, BlockError> {
        Block::verify(self.cid, self.bytes)
    }
}

/// A reader of an archive. After an error or the end it returns `None`.
#[derive(Debug)]
pub struct CarReader<R> {
    reader: R,
    buffer: BytesMut,
    roots: Vec<Cid>,
    /// The length of the next section, once it was read.
    next_bytes: Option<usize>,
    done: bool,
}

impl<R: AsyncRead + Unpin> CarReader<R> {
    /// Reads the header. `reader` needs no buffer of its own.
    ///
    /// # Errors
    /// [`CarError`] when it is not a valid CARv1 header.
    pub async fn new(reader: R) -> Result<Self, CarError> {
        Self::with_short_header(reader, HEADER_BYTES_MAX).await
    }

    /// The same for an archive whose header may have so many bytes.
    ///
    /// # Errors
    /// The same.
    pub async fn with_short_header(reader: R, header_bytes_max: usize) -> Result<Self, CarError> {
        let mut car = Self { reader, buffer: BytesMut::new(), roots: Vec::new(), next_bytes: None, done: false };
        let length = car.read_length("the header", header_bytes_max).await?.ok_or(CarError::Truncated("the header"))?;
        car.fill(length, "the header").await?;
        car.roots = parse_header(&car.buffer[..length])?;
        car.buffer.advance(length);
        Ok(car)
    }

    /// The roots in the header. Their blocks are not necessarily in the archive.
    pub fn roots(&self) -> &[Cid] {
        &self.roots
    }

    /// The next block, verified; `None` at the end of the archive. It is a copy, which keeps no buffer alive.
    pub async fn next_block(&mut self) -> Option<Result<Block, CarError>> {
        let section = self.next_section().await?;
        let block = section.and_then(|section| Ok(section.verify()?));
        self.done |= block.is_err();
        Some(block)
    }

    /// The length of the next section with its CID, in bytes, before the section is read, for callers that take memory
    /// for it; `None` at the end of the archive.
    pub async fn next_section_bytes(&mut self) -> Option<Result<usize, CarError>> {
        if self.done {
            return None;
        }
        let length = self.read_section_length().await.transpose();
        self.done = !matches!(length, Some(Ok(_)));
        length
    }

    /// Reads until so many bytes of the next section have arrived, or all of it, for callers that take memory for a
    /// part of it first.
    ///
    /// # Errors
    /// [`CarError`].
    pub async fn buffer_section(&mut self, bytes: usize) -> Result<(), CarError> {
        if self.done {
            return Ok(());
        }
        let buffered = match self.read_section_length().await {
            Ok(Some(length)) => self.fill(length.min(bytes), "a section").await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        self.done |= buffered.is_err();
        buffered
    }

    /// The next section, not verified, for callers that verify several at a time.
    pub async fn next_section(&mut self) -> Option<Result<Section, CarError>> {
        if self.done {
            return None;
        }
        let section = self.read_section().await.transpose();
        self.done = !matches!(section, Some(Ok(_)));
        section
    }

    /// The remaining blocks as a stream.
    pub fn into_blocks(self) -> impl Stream<Item = Result<Block, CarError>> {
        stream::unfold(self, |mut car| async move { car.next_block().await.map(|block| (block, car)) })
    }

    /// The remaining sections as a stream.
    pub fn into_sections(self) -> impl Stream<Item = Result<Section, CarError>> {
        stream::unfold(self, |mut car| async move { car.next_section().await.map(|section| (section, car)) })
    }

    async fn read_section(&mut self) -> Result<Option<Section>, CarError> {
        let Some(length) = self.read_section_length().await? else { return Ok(None) };
        self.fill(length, "a section").await?;
        self.next_bytes = None;
        let mut section = &self.buffer[..length];
        let cid = Cid::read_bytes(&mut section).map_err(|error| CarError::Cid(error.to_string()))?;
        let section = Section { cid, bytes: Bytes::copy_from_slice(section) };
        self.buffer.advance(length);
        Ok(Some(section))
    }

    async fn read_section_length(&mut self) -> Result<Option<usize>, CarError> {
        if self.next_bytes.is_none() {
            self.next_bytes = self.read_length("a section", CID_BYTES_MAX + MAX_BLOCK_BYTES).await?;
        }
        Ok(self.next_bytes)
    }

    /// Reads a length, which must not be zero; `None` at the end of the archive.
    async fn read_length(&mut self, what: &'static str, max: usize) -> Result<Option<usize>, CarError> {
        loop {
            match decode::u64(&self.buffer) {
                Ok((length, rest)) => {
                    let used = self.buffer.len() - rest.len();
                    self.buffer.advance(used);
                    return check_length(what, length, max).map(Some);
                }
                Err(VarintError::Insufficient) => {}
                Err(error) => return Err(CarError::Length { what, reason: error.to_string() }),
            }
            if !self.read_more().await? {
                return if self.buffer.is_empty() { Ok(None) } else { Err(CarError::Truncated(what)) };
            }
        }
    }

    /// Reads until the buffer holds `length` bytes.
    async fn fill(&mut self, length: usize, what: &'static str) -> Result<(), CarError> {
        while self.buffer.len() < length {
            if !self.read_more().await? {
                return Err(CarError::Truncated(what));
            }
        }
        Ok(())
    }

    /// Reads up to a chunk; `false` at the end. The buffer grows with the bytes received, not by the length that was
    /// claimed.
    async fn read_more(&mut self) -> Result<bool, CarError> {
        self.buffer.reserve(CHUNK_BYTES);
        Ok(self.reader.read_buf(&mut self.buffer).await? > 0)
    }
}

/// The roots in a list that [`super::roots_block`] made.
///
/// # Errors
/// [`CarError::Roots`] when the block is not such a list.
pub fn read_roots(list: &Block) -> Result<Vec<Cid>, CarError> {
    if list.cid().codec() != codec::DAG_CBOR {
        return Err(CarError::Roots(format!("{} is not dag-cbor", list.cid())));
    }
    serde_ipld_dagcbor::from_slice(list.data()).map_err(|error| CarError::Roots(error.to_string()))
}

fn check_length(what: &'static str, length: u64, max: usize) -> Result<usize, CarError> {
    let fits = usize::try_from(length).ok().filter(|length| *length <= max);
    match fits {
        Some(0) => Err(CarError::Length { what, reason: "it is zero".to_owned() }),
        Some(length) => Ok(length),
        None => Err(CarError::Length { what, reason: format!("{length} bytes are over the limit of {max}") }),
    }
}

fn parse_header(bytes: &[u8]) -> Result<Vec<Cid>, CarError> {
    let header: Header = serde_ipld_dagcbor::from_slice(bytes).map_err(|error| CarError::Header(error.to_string()))?;
    if header.version != 1 {
        return Err(CarError::Version { version: header.version });
    }
    header.roots.ok_or_else(|| CarError::Header("it has no roots".to_owned()))
}
