//! MerkleDAG protobuf nodes (<https://ipld.io/specs/codecs/dag-pb/spec/>), decoded in place.
//!
//! Goals: no copies, and memory of at most a few bytes for each byte of the block, even if it is malicious. So a
//! [`PbNode`] has only the offsets of its links, and decodes a link on access.
//!
//! Accepts the same as Kubo: links before data (the canonical order) or data before links, and names that are not
//! UTF-8. Unknown and repeated fields are errors, as are links both before and after the data.
//!
//! Non-goal: encoding, which [`crate::importer`] does for UnixFS.

use crate::cid::Cid;
use bytes::{Buf, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint};

/// Why bytes are not a MerkleDAG protobuf node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PbError {
    /// The bytes are not protobuf.
    #[error("not protobuf: {0}")]
    Wire(#[from] prost::DecodeError),
    /// The length of a field exceeds the rest of the bytes.
    #[error("a field is longer than the bytes that are left")]
    Truncated,
    /// An unknown field, or one of the wrong wire type.
    #[error("field {tag} of wire type {wire_type:?} is not allowed here")]
    Unexpected {
        /// The protobuf field number.
        tag: u32,
        /// The wire type found.
        wire_type: WireType,
    },
    /// A field is repeated, or links are both before and after the data.
    #[error("field {tag} is repeated")]
    Repeated {
        /// The protobuf field number.
        tag: u32,
    },
    /// A link has no CID, or an invalid one.
    #[error("a link has no valid CID: {0}")]
    Cid(String),
}

/// A decoded node. Cloning shares the bytes of the block.
#[derive(Debug, Clone)]
pub struct PbNode {
    block: Bytes,
    data: Option<Bytes>,
    links: Vec<Span>,
}

/// The offsets of a link in the block. 32 bits suffice for blocks, and the small size matters: a malicious link has
/// only eight bytes.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u32,
    end: u32,
}

/// One link, borrowed from its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PbLink<'a> {
    pub(crate) hash: &'a [u8],
    /// Whether the name field is present. Only the logical form of a node distinguishes absent and empty names.
    pub(crate) named: bool,
    /// The name, which need not be UTF-8. UnixFS treats absent and empty names alike.
    pub name: &'a [u8],
    /// The cumulative size of the DAG below this link as declared by the writer, in bytes. Not trustworthy.
    pub tsize: Option<u64>,
}

impl PbNode {
    const DATA: u32 = 1;
    const LINKS: u32 = 2;

    /// Decodes the data and the offsets of the links. Links are validated on access.
    ///
    /// # Errors
    /// [`PbError`] when the bytes are not a node.
    pub fn decode(block: Bytes) -> Result<Self, PbError> {
        let mut rest = &block[..];
        let (mut data, mut links, mut links_ended) = (None, Vec::new(), false);
        while rest.has_remaining() {
            match decode_key(&mut rest)? {
                (Self::DATA, WireType::LengthDelimited) => {
                    links_ended = !links.is_empty();
                    let found = block.slice_ref(take_delimited(&mut rest)?);
                    if data.replace(found).is_some() {
                        return Err(PbError::Repeated { tag: Self::DATA });
                    }
                }
                (Self::LINKS, WireType::LengthDelimited) if links_ended => {
                    return Err(PbError::Repeated { tag: Self::LINKS });
                }
                (Self::LINKS, WireType::LengthDelimited) => {
                    let length = take_delimited(&mut rest)?.len();
                    links.push(Span::before(&block, rest.len(), length)?);
                }
                (tag, wire_type) => return Err(PbError::Unexpected { tag, wire_type }),
            }
        }
        Ok(Self { block, data, links })
    }

    /// The data of the node. For UnixFS it is another protobuf message, see [`crate::unixfs`].
    pub fn data(&self) -> Option<&Bytes> {
        self.data.as_ref()
    }

    /// The number of links.
    pub fn link_count(&self) -> usize {
        self.links.len()
    }

    /// The size of the block that this node keeps alive, in bytes.
    pub fn block_bytes(&self) -> usize {
        self.block.len()
    }

    /// The link at `index`, in stored order; `None` beyond the last.
    ///
    /// [`PbError`] when the link is malformed.
    /// [`PbError`] when the bytes there are not a link.
    pub fn link(&self, index: usize) -> Option<Result<PbLink<'_>, PbError>> {
        let span = self.links.get(index)?;
        Some(PbLink::decode(&self.block[span.start as usize..span.end as usize]))
    }

    /// All links, in stored order.
    pub fn links(&self) -> impl Iterator<Item = Result<PbLink<'_>, PbError>> {
        (0..self.link_count()).filter_map(|index| self.link(index))
    }
}

impl Span {
    /// The span of `length` bytes before the last `rest` bytes of the block.
    fn before(block: &Bytes, rest: usize, length: usize) -> Result<Self, PbError> {
        let end = block.len() - rest;
        let (Ok(start), Ok(end)) = (u32::try_from(end - length), u32::try_from(end)) else {
            return Err(PbError::Truncated);
        };
        Ok(Self { start, end })
    }
}

impl<'a> PbLink<'a> {
    const HASH: u32 = 1;
    const NAME: u32 = 2;
    const TSIZE: u32 = 3;

    fn decode(mut rest: &'a [u8]) -> Result<Self, PbError> {
        let (mut hash, mut name, mut tsize) = (None, None, None);
        while rest.has_remaining() {
            let key = decode_key(&mut rest)?;
            let repeated = match key {
                (Self::HASH, WireType::LengthDelimited) => hash.replace(take_delimited(&mut rest)?).is_some(),
                (Self::NAME, WireType::LengthDelimited) => name.replace(take_delimited(&mut rest)?).is_some(),
                (Self::TSIZE, WireType::Varint) => tsize.replace(decode_varint(&mut rest)?).is_some(),
                (tag, wire_type) => return Err(PbError::Unexpected { tag, wire_type }),
            };
            if repeated {
                return Err(PbError::Repeated { tag: key.0 });
            }
        }
        let hash = hash.ok_or_else(|| PbError::Cid("it is missing".to_owned()))?;
        Ok(Self { hash, named: name.is_some(), name: name.unwrap_or_default(), tsize })
    }

    /// The name, or `None` if the field is absent.
    pub(crate) fn written_name(&self) -> Option<&'a [u8]> {
        self.named.then_some(self.name)
    }

    /// Whether the link has its target inlined: a CIDv1 with an identity hash, whose code is zero.
    pub(crate) fn is_inline(&self) -> bool {
        let mut rest = self.hash;
        let version = decode_varint(&mut rest);
        version.is_ok_and(|version| version == 1) && decode_varint(&mut rest).is_ok() && rest.first() == Some(&0)
    }

    /// The CID of the target. Decoded on access, so that looking for a name does not decode every CID.
    ///
    /// # Errors
    /// [`PbError::Cid`] when the CID is malformed. Whether its hash function is accepted is checked when it is fetched.
    pub fn cid(&self) -> Result<Cid, PbError> {
        Cid::try_from(self.hash).map_err(|error| PbError::Cid(crate::cid::why(&error).to_owned()))
    }
}

/// Takes a length-delimited field from the front of `rest`.
pub(crate) fn take_delimited<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], PbError> {
    let length = usize::try_from(decode_varint(rest)?).map_err(|_| PbError::Truncated)?;
    let (taken, after) = rest.split_at_checked(length).ok_or(PbError::Truncated)?;
    *rest = after;
    Ok(taken)
}
