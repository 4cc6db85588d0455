//! Reading an archive block by block. It may come from any `AsyncRead`; one in memory is read through `&[u8]`.

use crate::block::{Block, BlockError, MAX_BLOCK_BYTES};
use crate::cid::{Cid, MAX_DIGEST_BYTES, codec};
use bytes::{Buf, Bytes, BytesMut};
use futures::stream::{self, Stream};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use unsigned_varint::decode::{self, Error as VarintError};

/// The largest header that is read, in bytes: some 25,000 roots.
const HEADER_BYTES_MAX: usize = 1024 * 1024;
/// The largest CID: version, codec, hash function and digest length of up to ten bytes each, and the digest.
const CID_BYTES_MAX: usize = 4 * 10 + MAX_DIGEST_BYTES;
/// How much is read at a time, in bytes: not little, for each read of a file may be a visit to another thread.
const CHUNK_BYTES: usize = 128 * 1024;

/// Why an archive cannot be read, or cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum CarError {
    /// Reading failed.
    #[error("the archive cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The archive ends in the middle of something.
    #[error("the archive ends in the middle of {0}")]
    Truncated(&'static str),
    /// The header is not that of a CAR.
    #[error("the header is not that of a CAR: {0}")]
    Header(String),
    /// The archive is of another version.
    #[error("the archive is of CAR version {version}, but only version 1 is supported; convert it to CARv1 first")]
    Version {
        /// The version that its header says.
        version: u64,
    },
    /// A length is not an unsigned varint, or is longer than anything valid.
    #[error("the length of {what} is not valid: {reason}")]
    Length {
        /// What it is the length of.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A section does not begin with a CID.
    #[error("a section does not begin with a CID: {0}")]
    Cid(String),
    /// The last block was to be a list of roots.
    #[error("the archive does not end with a list of its roots: {0}")]
    Roots(String),
    /// A section's bytes are not the block that its CID names.
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// The header of either version; CARv2 begins with one that has a version only.
#[derive(Deserialize)]
struct Header {
    version: u64,
    roots: Option<Vec<Cid>>,
}

/// What an archive says is a block. Whether it is, only its hash tells.
#[derive(Debug, Clone)]
pub struct Section {
    cid: Cid,
    bytes: Bytes,
}

impl Section {
    /// What it is said to be.
    pub fn cid(&self) -> &Cid {
        &self.cid
    }

    /// How many bytes it would have as a block.
    pub fn block_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The block.
    ///
    /// # Errors
    /// When the bytes are not what the CID names.
    pub fn verify(self) -> Result<Block, BlockError> {
        Block::verify(self.cid, self.bytes)
    }
}

/// An archive that is being read. After an error, or the end, it gives nothing more.
#[derive(Debug)]
pub struct CarReader<R> {
    reader: R,
    buffer: BytesMut,
    roots: Vec<Cid>,
    done: bool,
}

impl<R: AsyncRead + Unpin> CarReader<R> {
    /// Reads the header. The reader needs no buffer of its own.
    ///
    /// # Errors
    /// [`CarError`] when it is not that of a CARv1.
    pub async fn new(reader: R) -> Result<Self, CarError> {
        let mut car = Self { reader, buffer: BytesMut::new(), roots: Vec::new(), done: false };
        let length = car.read_length("the header", HEADER_BYTES_MAX).await?.ok_or(CarError::Truncated("the header"))?;
        car.fill(length, "the header").await?;
        car.roots = parse_header(&car.buffer[..length])?;
        car.buffer.advance(length);
        Ok(car)
    }

    /// The roots that the header names. Nothing says that their blocks are in the archive.
    pub fn roots(&self) -> &[Cid] {
        &self.roots
    }

    /// The next block, verified; `None` at the end of the archive. Its bytes are its own: it holds on to no buffer.
    pub async fn next_block(&mut self) -> Option<Result<Block, CarError>> {
        let section = self.next_section().await?;
        let block = section.and_then(|section| Ok(section.verify()?));
        self.done |= block.is_err();
        Some(block)
    }

    /// The next block unverified, for who verifies several at a time.
    pub async fn next_section(&mut self) -> Option<Result<Section, CarError>> {
        if self.done {
            return None;
        }
        let section = self.read_section().await.transpose();
        self.done = !matches!(section, Some(Ok(_)));
        section
    }

    /// The rest of the blocks as a stream.
    pub fn into_blocks(self) -> impl Stream<Item = Result<Block, CarError>> {
        stream::unfold(self, |mut car| async move { car.next_block().await.map(|block| (block, car)) })
    }

    /// The rest of the sections as a stream.
    pub fn into_sections(self) -> impl Stream<Item = Result<Section, CarError>> {
        stream::unfold(self, |mut car| async move { car.next_section().await.map(|section| (section, car)) })
    }

    async fn read_section(&mut self) -> Result<Option<Section>, CarError> {
        let Some(length) = self.read_length("a section", CID_BYTES_MAX + MAX_BLOCK_BYTES).await? else {
            return Ok(None);
        };
        self.fill(length, "a section").await?;
        let mut section = &self.buffer[..length];
        let cid = Cid::read_bytes(&mut section).map_err(|error| CarError::Cid(error.to_string()))?;
        let section = Section { cid, bytes: Bytes::copy_from_slice(section) };
        self.buffer.advance(length);
        Ok(Some(section))
    }

    /// Reads a length, which must not be zero; `None` when the archive ends before it.
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

    /// Reads what there is, up to a chunk; `false` at the end. The buffer grows by what arrived, not by what a length
    /// promised.
    async fn read_more(&mut self) -> Result<bool, CarError> {
        self.buffer.reserve(CHUNK_BYTES);
        Ok(self.reader.read_buf(&mut self.buffer).await? > 0)
    }
}

/// The roots that a list names: what [`super::roots_block`] wrote.
///
/// # Errors
/// [`CarError::Roots`] when it is something else.
pub fn read_roots(list: &Block) -> Result<Vec<Cid>, CarError> {
    if list.cid().codec() != codec::DAG_CBOR {
        return Err(CarError::Roots(format!("{} is no dag-cbor", list.cid())));
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
    header.roots.ok_or_else(|| CarError::Header("it names no roots".to_owned()))
}
