//! Encodes dag-pb nodes (<https://ipld.io/specs/codecs/dag-pb/spec/>) and the UnixFS message inside them
//! (<https://specs.ipfs.tech/unixfs/#data-field>) exactly like Kubo: links before data, fields in ascending order, all
//! links with a name and a size even if they are empty, block sizes not packed.

use super::Attributes;
use crate::cid::Cid;
use crate::unixfs::ShardNode;
use bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use std::time::{SystemTime, UNIX_EPOCH};

/// Fields of a node.
mod node {
    pub const DATA: u32 = 1;
    pub const LINK: u32 = 2;
}

/// Fields of a link.
mod link {
    pub const HASH: u32 = 1;
    pub const NAME: u32 = 2;
    pub const TSIZE: u32 = 3;
}

/// Fields of the UnixFS message.
mod data {
    pub const TYPE: u32 = 1;
    pub const DATA: u32 = 2;
    pub const FILE_SIZE: u32 = 3;
    pub const BLOCK_SIZE: u32 = 4;
    pub const HASH_TYPE: u32 = 5;
    pub const FANOUT: u32 = 6;
    pub const MODE: u32 = 7;
    pub const MTIME: u32 = 8;
}

/// The mode bits that are written: permissions, set-user-ID, set-group-ID and sticky.
pub(super) const MODE_BITS: u32 = 0o7777;

/// The maximum size of what precedes the content in a dag-pb leaf, in bytes: three keys, the type, and two lengths.
pub(super) const HEAD_ROOM: usize = 16;
/// The maximum size of what follows the content in a dag-pb leaf without attributes, in bytes.
pub(super) const TAIL_ROOM: usize = 8;

/// The maximum size of a block size in a message, in bytes: a key, and a varint.
pub(super) const BLOCK_SIZE_BYTES_MAX: usize = 11;

fn put_varint(out: &mut Vec<u8>, tag: u32, value: u64) {
    encode_key(tag, WireType::Varint, out);
    encode_varint(value, out);
}

/// Appends the key and the length of a length-delimited field.
fn put_length(out: &mut Vec<u8>, tag: u32, bytes: usize) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(bytes as u64, out);
}

fn put_bytes(out: &mut Vec<u8>, tag: u32, bytes: &[u8]) {
    put_length(out, tag, bytes.len());
    out.extend_from_slice(bytes);
}

/// The size of a length-delimited field with a number below 16, in bytes: key, length and value.
fn field_bytes(bytes: usize) -> usize {
    1 + encoded_len_varint(bytes as u64) + bytes
}

fn link_message_bytes(cid: usize, name: usize, tsize: u64) -> usize {
    field_bytes(cid) + field_bytes(name) + 1 + encoded_len_varint(tsize)
}

/// The size of a link in its node, in bytes. `cid` and `name` are lengths.
pub(super) fn link_bytes(cid: usize, name: usize, tsize: u64) -> usize {
    field_bytes(link_message_bytes(cid, name, tsize))
}

/// Appends a link to a node, before its data. The name is in two parts, of which either may be empty.
pub(super) fn put_link(out: &mut Vec<u8>, cid: &[u8], name: [&[u8]; 2], tsize: u64) {
    let name_bytes = name[0].len() + name[1].len();
    put_length(out, node::LINK, link_message_bytes(cid.len(), name_bytes, tsize));
    put_bytes(out, link::HASH, cid);
    put_length(out, link::NAME, name_bytes);
    out.extend_from_slice(name[0]);
    out.extend_from_slice(name[1]);
    put_varint(out, link::TSIZE, tsize);
}

/// [`put_link`] for a part of a file, which has no name.
pub(super) fn put_part(out: &mut Vec<u8>, cid: &Cid, tsize: u64) {
    put_link(out, &cid.to_bytes(), [&[], &[]], tsize);
}

/// A UnixFS message.
#[derive(Default)]
pub(super) struct Message<'a> {
    /// The type, such as [`crate::unixfs::Data::FILE`].
    pub kind: u64,
    pub data: Option<&'a [u8]>,
    pub file_size: Option<u64>,
    pub block_sizes: &'a [u64],
    /// The number of slots of a HAMT shard.
    pub fanout: Option<usize>,
    pub attributes: Attributes,
}

impl Message<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.data.map_or(0, <[u8]>::len) + 4 * self.block_sizes.len());
        put_varint(&mut out, data::TYPE, self.kind);
        if let Some(bytes) = self.data {
            put_bytes(&mut out, data::DATA, bytes);
        }
        if let Some(file_size) = self.file_size {
            put_varint(&mut out, data::FILE_SIZE, file_size);
        }
        self.block_sizes.iter().for_each(|size| put_varint(&mut out, data::BLOCK_SIZE, *size));
        if let Some(fanout) = self.fanout {
            put_varint(&mut out, data::HASH_TYPE, ShardNode::MURMUR3_X64_64);
            put_varint(&mut out, data::FANOUT, fanout as u64);
        }
        put_attributes(&mut out, &self.attributes);
        out
    }

    /// The size of the message as the data of a node, in bytes.
    pub fn field_bytes(&self) -> usize {
        field_bytes(self.encode().len())
    }

    /// The node with this message and links that [`put_link`] encoded.
    pub fn into_node(self, mut links: Vec<u8>) -> Bytes {
        let message = self.encode();
        links.reserve_exact(field_bytes(message.len()));
        put_bytes(&mut links, node::DATA, &message);
        links.into()
    }
}

/// The node of a leaf, encoded in place: `buffer` has [`HEAD_ROOM`] bytes for the header before the content, and room
/// for the trailer after it.
pub(super) fn leaf_node(mut buffer: Vec<u8>, kind: u64, attributes: &Attributes) -> Bytes {
    let (end, size) = (buffer.len(), buffer.len() - HEAD_ROOM);
    if size == 0 {
        return Message { kind, file_size: Some(0), attributes: *attributes, ..Message::default() }
            .into_node(Vec::new());
    }
    put_varint(&mut buffer, data::FILE_SIZE, size as u64);
    put_attributes(&mut buffer, attributes);
    let mut inner = Vec::with_capacity(HEAD_ROOM);
    put_varint(&mut inner, data::TYPE, kind);
    put_length(&mut inner, data::DATA, size);
    let mut head = Vec::with_capacity(HEAD_ROOM);
    put_length(&mut head, node::DATA, inner.len() + size + buffer.len() - end);
    head.extend_from_slice(&inner);
    let start = HEAD_ROOM - head.len();
    buffer[start..HEAD_ROOM].copy_from_slice(&head);
    Bytes::from(buffer).slice(start..)
}

/// Mode and time of UnixFS 1.5 (<https://specs.ipfs.tech/unixfs/#metadata>).
fn put_attributes(out: &mut Vec<u8>, attributes: &Attributes) {
    if let Some(mode) = attributes.mode {
        put_varint(out, data::MODE, (mode & MODE_BITS).into());
    }
    if let Some(modified) = attributes.modified {
        put_bytes(out, data::MTIME, &time(modified));
    }
}

/// Encodes a time as seconds since 1970, rounded down, and nanoseconds unless they are zero.
fn time(modified: SystemTime) -> Vec<u8> {
    let (seconds, nanos) = match modified.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
        Err(before) => match (before.duration().as_secs() as i64, before.duration().subsec_nanos()) {
            (seconds, 0) => (seconds.saturating_neg(), 0),
            (seconds, nanos) => (seconds.saturating_neg().saturating_sub(1), 1_000_000_000 - nanos),
        },
    };
    let mut out = Vec::new();
    put_varint(&mut out, 1, seconds as u64);
    if nanos > 0 {
        encode_key(2, WireType::ThirtyTwoBit, &mut out);
        out.extend_from_slice(&nanos.to_le_bytes());
    }
    out
}
