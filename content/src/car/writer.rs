//! Writing an archive: the header, then one section for each block. The format has no end mark.

use crate::block::{Block, BlockError};
use crate::cid::{Cid, codec};
use crate::hashes;
use bytes::Bytes;
use unsigned_varint::encode;

/// The CBOR major types that are used (RFC 8949, section 3.1), in the upper three bits of an item's first byte.
mod major {
    pub const BYTES: u8 = 2 << 5;
    pub const TEXT: u8 = 3 << 5;
    pub const ARRAY: u8 = 4 << 5;
    pub const MAP: u8 = 5 << 5;
    pub const TAG: u8 = 6 << 5;
}

/// The CBOR tag of a link, whose content is a zero byte and the CID.
const LINK_TAG: u64 = 42;

/// The header of an archive with these roots, after its length.
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

/// A list of roots as a dag-cbor block (<https://ipld.io/specs/codecs/dag-cbor/spec/>), for [`super::read_roots`].
///
/// # Errors
/// [`BlockError::TooLarge`] for more than some 50,000 roots.
pub fn roots_block(roots: &[Cid]) -> Result<Block, BlockError> {
    let mut list = Vec::new();
    put_head(&mut list, major::ARRAY, roots.len() as u64);
    roots.iter().for_each(|root| put_link(&mut list, root));
    Block::of(codec::DAG_CBOR, hashes::SHA2_256, 32, list.into())
}

/// The section of a block in two parts, to be written one after the other: its length and CID, then its bytes, which
/// are shared and not copied.
pub fn section(block: &Block) -> (Bytes, Bytes) {
    let cid = block.cid().to_bytes();
    let mut out = length(cid.len() + block.data().len());
    out.extend_from_slice(&cid);
    (out.into(), block.data().clone())
}

/// A section that references a block without its data. Verifying the section fails, which shows that the data is left
/// out.
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

/// The head of a CBOR item: its major type and argument, in the shortest form, which dag-cbor requires.
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
