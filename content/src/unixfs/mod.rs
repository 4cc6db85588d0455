//! UnixFS (<https://specs.ipfs.tech/unixfs/>): decodes blocks as files, directories and symlinks.
//!
//! Goals: strict decoding in one place: sizes that do not add up are errors here, so that readers can rely on them and
//! `Content-Length` is always right.
//!
//! | module | concern |
//! |---|---|
//! | [`mod@file`] | streaming the bytes of a file, or a range of them |
//! | [`mod@dir`] | looking up a name in a directory, and listing it |
//!
//! Non-goals: encoding, which [`crate::importer`] does; modes, which the gateway does not show; the `Metadata` type,
//! which no importer writes.

pub mod dir;
pub mod file;

use crate::block::Block;
use crate::cid::{Cid, codec};
use crate::dagpb::{PbError, PbNode, take_delimited};
use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A decoded block.
#[derive(Debug, Clone)]
pub enum Node {
    /// A file or a part of one: UnixFS types `Raw` and `File`, and blocks with the raw codec.
    File(FileNode),
    /// A directory whose links are its entries.
    Directory(PbNode),
    /// A HAMT shard of a large directory: its root, or an inner node.
    HamtShard(ShardNode),
    /// A symbolic link.
    Symlink {
        /// The target, as stored; need not be UTF-8.
        target: Bytes,
    },
    /// A dag-pb node that is not UnixFS, with named links.
    Plain(PbNode),
}

/// A file or a part of one: its own data, then the data of its children in order.
#[derive(Debug, Clone)]
pub struct FileNode {
    data: Bytes,
    size: u64,
    modified: Option<SystemTime>,
    children: Option<Children>,
}

/// The children of an inner node of a file. There is one size for each link.
#[derive(Debug, Clone)]
struct Children {
    node: PbNode,
    sizes: Vec<u64>,
}

/// A HAMT directory shard (<https://specs.ipfs.tech/unixfs/#dag-pb-hamtdirectory>), validated: the number of slots is a
/// power of two, and there is one link for each bit of the bitfield.
#[derive(Debug, Clone)]
pub struct ShardNode {
    node: PbNode,
    fanout: usize,
    /// Big-endian, with the lowest slot in the last bit; leading zero bytes may be missing.
    bitfield: Bytes,
}

/// Why a block cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The codec is not used by UnixFS.
    #[error("{cid} has the codec 0x{codec:x}, which is not UnixFS")]
    Unsupported {
        /// The block.
        cid: Cid,
        /// Its multicodec.
        codec: u64,
    },
    /// The bytes violate the rules of the format.
    #[error("{cid} is malformed: {reason}")]
    Malformed {
        /// The block.
        cid: Cid,
        /// The violation.
        reason: String,
    },
}

impl NodeError {
    pub(crate) fn malformed(cid: &Cid, reason: impl ToString) -> Self {
        Self::Malformed { cid: *cid, reason: reason.to_string() }
    }
}

impl Node {
    /// Decodes a block by the codec of its CID.
    ///
    /// # Errors
    /// [`NodeError::Unsupported`] for codecs other than raw and dag-pb, [`NodeError::Malformed`] for malformed blocks.
    pub fn decode(block: &Block) -> Result<Self, NodeError> {
        let cid = block.cid();
        match cid.codec() {
            codec::RAW => Ok(Self::File(FileNode::leaf(block.data().clone()))),
            codec::DAG_PB => Self::decode_pb(block.data()).map_err(|reason| NodeError::malformed(cid, reason)),
            codec => Err(NodeError::Unsupported { cid: *cid, codec }),
        }
    }

    fn decode_pb(block: &Bytes) -> Result<Self, Reason> {
        let node = PbNode::decode(block.clone())?;
        let Some(data) = node.data() else { return Ok(Self::Plain(node)) };
        let data = Data::decode(data, node.link_count())?;
        match data.data_type {
            Some(Data::RAW | Data::FILE) => Ok(Self::File(FileNode::new(node, data)?)),
            Some(Data::DIRECTORY) => Ok(Self::Directory(node)),
            Some(Data::SYMLINK) => Ok(Self::Symlink { target: data.data }),
            Some(Data::HAMT_SHARD) => Ok(Self::HamtShard(ShardNode::new(node, data)?)),
            Some(other) => Err(Reason::Type(other)),
            None => Err(Reason::NoType),
        }
    }
}

impl FileNode {
    fn leaf(data: Bytes) -> Self {
        Self { size: data.len() as u64, data, modified: None, children: None }
    }

    fn new(node: PbNode, data: Data) -> Result<Self, Reason> {
        let (links, sizes) = (node.link_count(), data.block_sizes.len());
        if links != sizes {
            return Err(Reason::SizeCount { links, sizes });
        }
        let own = data.data.len() as u64;
        let size = data.block_sizes.iter().try_fold(own, |sum, size| sum.checked_add(*size)).ok_or(Reason::Overflow)?;
        if let Some(file_size) = data.file_size.filter(|file_size| *file_size != size) {
            return Err(Reason::FileSize { file_size, size });
        }
        let children = (links > 0).then(|| Children { node, sizes: data.block_sizes });
        Ok(Self { data: data.data, size, modified: data.modified, children })
    }

    /// The size of the file or part in bytes: its own data and the declared sizes of its children.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The modification time of the file (UnixFS 1.5). Meaningless for a part of a file.
    pub fn modified(&self) -> Option<SystemTime> {
        self.modified
    }

    /// The node's own data, which precedes that of its children.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The number of children; zero for a leaf.
    pub fn child_count(&self) -> usize {
        self.children.as_ref().map_or(0, |children| children.sizes.len())
    }

    /// The children in order: their CIDs, and their declared sizes in bytes.
    pub fn children(&self) -> impl Iterator<Item = Result<(Cid, u64), PbError>> + '_ {
        (0..self.child_count()).filter_map(|index| {
            let (cid, size) = (self.child_cid(index)?, self.child_size(index)?);
            Some(cid.map(|cid| (cid, size)))
        })
    }

    /// The declared size of a child, in bytes; `None` beyond the last.
    pub(crate) fn child_size(&self, index: usize) -> Option<u64> {
        self.children.as_ref().and_then(|children| children.sizes.get(index)).copied()
    }

    /// The CID of a child; `None` beyond the last.
    pub(crate) fn child_cid(&self, index: usize) -> Option<Result<Cid, PbError>> {
        let link = self.children.as_ref()?.node.link(index)?;
        Some(link.and_then(|link| link.cid()))
    }
}

impl ShardNode {
    /// The maximum fanout, which is Kubo's limit.
    pub(crate) const FANOUT_MAX: u64 = 1_024;
    /// The minimum fanout: bitfields are whole bytes.
    pub(crate) const FANOUT_MIN: u64 = 8;
    /// Multihash code of MurmurHash3-x64-64, the only hash function of HAMT directories.
    pub(crate) const MURMUR3_X64_64: u64 = 0x22;

    fn new(node: PbNode, data: Data) -> Result<Self, Reason> {
        if data.hash_type != Some(Self::MURMUR3_X64_64) {
            return Err(Reason::HashType(data.hash_type.unwrap_or_default()));
        }
        let fanout = data
            .fanout
            .filter(|fanout| fanout.is_power_of_two() && (Self::FANOUT_MIN..=Self::FANOUT_MAX).contains(fanout));
        let fanout = fanout.ok_or(Reason::Fanout(data.fanout.unwrap_or_default()))? as usize;
        let bits: u32 = data.data.iter().map(|byte| byte.count_ones()).sum();
        if data.data.len() > fanout / 8 || bits as usize != node.link_count() {
            return Err(Reason::Bitfield);
        }
        Ok(Self { node, fanout, bitfield: data.data })
    }

    /// The number of slots of the shard.
    pub fn fanout(&self) -> usize {
        self.fanout
    }

    /// The number of bits of a name's hash that select a slot.
    pub(crate) fn slot_bits(&self) -> u32 {
        self.fanout.ilog2()
    }

    /// The number of hexadecimal digits of the slot before the name in every link.
    fn prefix_len(&self) -> usize {
        self.slot_bits().div_ceil(4) as usize
    }

    /// The index of the link of a slot, or `None` if the slot is empty.
    fn link_index(&self, slot: usize) -> Option<usize> {
        let byte = self.bitfield.len().checked_sub(slot / 8 + 1)?;
        let bit = 1_u8 << (slot % 8);
        if self.bitfield[byte] & bit == 0 {
            return None;
        }
        let in_byte = (self.bitfield[byte] & (bit - 1)).count_ones();
        let below: u32 = self.bitfield[byte + 1..].iter().map(|byte| byte.count_ones()).sum();
        Some((in_byte + below) as usize)
    }
}

/// The rule of the format that a block violates.
#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error(transparent)]
    Pb(#[from] PbError),
    #[error("its UnixFS data is not protobuf: {0}")]
    Wire(#[from] prost::DecodeError),
    #[error("its UnixFS data has no type")]
    NoType,
    #[error("UnixFS type {0} is not supported")]
    Type(u64),
    #[error("it has {links} links, but {sizes} block sizes")]
    SizeCount { links: usize, sizes: usize },
    #[error("the sum of its block sizes exceeds 64 bits")]
    Overflow,
    #[error("its declared size is {file_size} bytes, but its parts have {size}")]
    FileSize { file_size: u64, size: u64 },
    #[error("HAMT hash function 0x{0:x} is not supported, only murmur3-x64-64 is")]
    HashType(u64),
    #[error("its HAMT fanout is {0}, not a power of two from 8 to 1024")]
    Fanout(u64),
    #[error("its HAMT bitfield does not match its links")]
    Bitfield,
}

/// The UnixFS message inside a dag-pb node (<https://specs.ipfs.tech/unixfs/#data-field>).
#[derive(Debug, Default)]
pub(crate) struct Data {
    data_type: Option<u64>,
    data: Bytes,
    file_size: Option<u64>,
    block_sizes: Vec<u64>,
    hash_type: Option<u64>,
    fanout: Option<u64>,
    modified: Option<SystemTime>,
}

impl Data {
    pub(crate) const RAW: u64 = 0;
    pub(crate) const DIRECTORY: u64 = 1;
    pub(crate) const FILE: u64 = 2;
    pub(crate) const SYMLINK: u64 = 4;
    pub(crate) const HAMT_SHARD: u64 = 5;

    /// Decodes the message. At most `links` block sizes are accepted, which bounds their memory. Unused fields (mode)
    /// and unknown fields are skipped.
    fn decode(bytes: &Bytes, links: usize) -> Result<Self, Reason> {
        let mut out = Self::default();
        let mut rest = &bytes[..];
        while rest.has_remaining() {
            let (tag, wire_type) = decode_key(&mut rest)?;
            match (tag, wire_type) {
                (1, WireType::Varint) => out.data_type = Some(decode_varint(&mut rest)?),
                (2, WireType::LengthDelimited) => out.data = bytes.slice_ref(take_delimited(&mut rest)?),
                (3, WireType::Varint) => out.file_size = Some(decode_varint(&mut rest)?),
                (4, WireType::Varint) => out.push_size(decode_varint(&mut rest)?, links)?,
                (4, WireType::LengthDelimited) => out.push_packed(take_delimited(&mut rest)?, links)?,
                (5, WireType::Varint) => out.hash_type = Some(decode_varint(&mut rest)?),
                (6, WireType::Varint) => out.fanout = Some(decode_varint(&mut rest)?),
                (8, WireType::LengthDelimited) => out.modified = decode_time(take_delimited(&mut rest)?)?,
                (1..=6 | 8, _) => return Err(PbError::Unexpected { tag, wire_type }.into()),
                _ => skip_field(wire_type, tag, &mut rest, DecodeContext::default())?,
            }
        }
        Ok(out)
    }

    fn push_packed(&mut self, mut packed: &[u8], links: usize) -> Result<(), Reason> {
        while packed.has_remaining() {
            self.push_size(decode_varint(&mut packed)?, links)?;
        }
        Ok(())
    }

    fn push_size(&mut self, size: u64, links: usize) -> Result<(), Reason> {
        if self.block_sizes.len() >= links {
            return Err(Reason::SizeCount { links, sizes: links + 1 });
        }
        self.block_sizes.push(size);
        Ok(())
    }
}

/// A time: seconds since 1970, which may be negative, and nanoseconds. `None` if it is out of the clock's range.
fn decode_time(mut rest: &[u8]) -> Result<Option<SystemTime>, Reason> {
    let (mut seconds, mut nanos) = (0_i64, 0_u32);
    while rest.has_remaining() {
        match decode_key(&mut rest)? {
            (1, WireType::Varint) => seconds = decode_varint(&mut rest)? as i64,
            (2, WireType::ThirtyTwoBit) if rest.len() >= 4 => nanos = rest.get_u32_le(),
            (tag @ (1 | 2), wire_type) => return Err(PbError::Unexpected { tag, wire_type }.into()),
            (tag, wire_type) => skip_field(wire_type, tag, &mut rest, DecodeContext::default())?,
        }
    }
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let date = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    Ok(date.and_then(|date| date.checked_add(Duration::from_nanos(nanos.into()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_decoded_without_overflow() {
        let table: [(&[u8], Option<i64>); 5] = [
            (&[], Some(0)),
            (&[0x08, 0x2a], Some(42)),
            (&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], Some(-1)),
            (&[0x08, 0x2a, 0x15, 0x00, 0xca, 0x9a, 0x3b], Some(43)),
            (&[0x18, 0x01], Some(0)),
        ];
        for (bytes, seconds) in table {
            let found = decode_time(bytes).expect("reads").map(|date| match date.duration_since(UNIX_EPOCH) {
                Ok(after) => i64::try_from(after.as_secs()).expect("fits"),
                Err(before) => -i64::try_from(before.duration().as_secs()).expect("fits"),
            });
            assert_eq!(found, seconds, "{bytes:?}");
        }
        for bytes in [&[0x08][..], &[0x15, 0x00], &[0x0d, 0, 0, 0, 0]] {
            assert!(decode_time(bytes).is_err(), "{bytes:?}");
        }
        let far = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert!(decode_time(&far).is_ok());
    }
}
