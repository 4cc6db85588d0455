//! Writing an archive: its header, then one section for each block. An archive has no end mark.

use crate::block::{Block, BlockError};
use crate::cid::{Cid, codec};
use crate::hashes;
use bytes::Bytes;
use unsigned_varint::encode;

/// The major types of CBOR that a header uses (RFC 8949, section 3.1), in the upper three bits of an item's first byte.
mod major {
    pub const BYTES: u8 = 2 << 5;
    pub const TEXT: u8 = 3 << 5;
    pub const ARRAY: u8 = 4 << 5;
    pub const MAP: u8 = 5 << 5;
    pub const TAG: u8 = 6 << 5;
}

/// The CBOR tag of a link, whose content is a zero byte and the CID.
const LINK_TAG: u64 = 42;

/// What an archive begins with: the header that names `roots`, after its length.
pub fn header(roots: &[Cid]) -> Bytes {
    let mut map = Vec::new();
    put_head(&mut map, major::MAP, 2);
    put_text(&mut map, "roots");
    put_head(&mut map, major::ARRAY, roots.len() as u64);
    roots.iter().for_each(|root| put_link(&mut map, root));
    put_text(&mut map, "version");
    map.push(1);
    let mut out = length(map.len());
    out.extend_from_slice(&map);
    out.into()
}

/// A list of roots as a block: a dag-cbor list of links (<https://ipld.io/specs/codecs/dag-cbor/spec/>). [`super::read_roots`]
/// reads it.
///
/// # Errors
/// [`BlockError::TooLarge`]: some 50,000 roots are too many.
pub fn roots_block(roots: &[Cid]) -> Result<Block, BlockError> {
    let mut list = Vec::new();
    put_head(&mut list, major::ARRAY, roots.len() as u64);
    roots.iter().for_each(|root| put_link(&mut list, root));
    Block::of(codec::DAG_CBOR, hashes::SHA2_256, 32, list.into())
}

/// A block's section in two parts, to be written one after the other: its length and the CID, then the block's own bytes,
/// which are shared and not copied.
pub fn section(block: &Block) -> (Bytes, Bytes) {
    let cid = block.cid().to_bytes();
    let mut out = length(cid.len() + block.data().len());
    out.extend_from_slice(&cid);
    (out.into(), block.data().clone())
}

/// A section that names a block and does not bring it: as if that had no bytes. Whoever hashes it sees that it has not been brought.
pub fn reference(cid: &Cid) -> Bytes {
    let cid = cid.to_bytes();
    let mut out = length(cid.len());
    out.extend_from_slice(&cid);
    out.into()
}

/// A length as a varint.
fn length(bytes: usize) -> Vec<u8> {
    encode::u64(bytes as u64, &mut encode::u64_buffer()).to_vec()
}

/// The first bytes of a CBOR item: its major type and its number, in the shortest form, as dag-cbor demands.
fn put_head(out: &mut Vec<u8>, major: u8, number: u64) {
    match number {
        0..24 => out.push(major | number as u8),
        24..0x100 => out.extend_from_slice(&[major | 24, number as u8]),
        0x100..0x1_0000 => {
            out.push(major | 25);
            out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..0x1_0000_0000 => {
            out.push(major | 26);
            out.extend_from_slice(&(number as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_head(out, major::TEXT, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_link(out: &mut Vec<u8>, cid: &Cid) {
    let cid = cid.to_bytes();
    put_head(out, major::TAG, LINK_TAG);
    put_head(out, major::BYTES, cid.len() as u64 + 1);
    out.push(0);
    out.extend_from_slice(&cid);
}
