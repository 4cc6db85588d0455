//! Blocks made by hand: just enough of dag-pb and UnixFS to write what the tests read.

use bytes::Bytes;
use content::cid::codec;
use content::{Block, Cid, hashes};

/// UnixFS types (<https://specs.ipfs.tech/unixfs/#data-field>).
const DIRECTORY: u64 = 1;
const FILE: u64 = 2;
const SYMLINK: u64 = 4;
const HAMT_SHARD: u64 = 5;

fn block(codec: u64, data: impl Into<Bytes>) -> Block {
    let data = data.into();
    let hash = hashes::digest(hashes::SHA2_256, 32, &data).expect("SHA2-256 is accepted");
    Block::verify(Cid::new_v1(codec, hash), data).expect("its own hash matches")
}

pub fn raw(data: impl Into<Bytes>) -> Block {
    block(codec::RAW, data)
}

/// A dag-cbor block that says `{}`.
pub fn cbor() -> Block {
    block(codec::DAG_CBOR, vec![0xa0])
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(field: u64, value: u64, out: &mut Vec<u8>) {
    varint(field << 3, out);
    varint(value, out);
}

fn bytes(field: u64, value: &[u8], out: &mut Vec<u8>) {
    varint(field << 3 | 2, out);
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn node(links: &[(&str, &Cid, u64)], unixfs: &[u8]) -> Block {
    let mut out = Vec::new();
    for (name, cid, size) in links {
        let mut link = Vec::new();
        bytes(1, &cid.to_bytes(), &mut link);
        bytes(2, name.as_bytes(), &mut link);
        number(3, *size, &mut link);
        bytes(2, &link, &mut out);
    }
    bytes(1, unixfs, &mut out);
    block(codec::DAG_PB, out)
}

/// A file of the given leaves.
pub fn file(leaves: &[Block]) -> Block {
    let sizes: Vec<u64> = leaves.iter().map(|leaf| leaf.data().len() as u64).collect();
    let mut unixfs = Vec::new();
    number(1, FILE, &mut unixfs);
    number(3, sizes.iter().sum(), &mut unixfs);
    sizes.iter().for_each(|size| number(4, *size, &mut unixfs));
    let links: Vec<_> = leaves.iter().zip(&sizes).map(|(leaf, size)| ("", leaf.cid(), *size)).collect();
    node(&links, &unixfs)
}

/// A directory; names have to be in order.
pub fn directory(entries: &[(&str, &Block)]) -> Block {
    let mut unixfs = Vec::new();
    number(1, DIRECTORY, &mut unixfs);
    let links: Vec<_> = entries.iter().map(|(name, block)| (*name, block.cid(), block.data().len() as u64)).collect();
    node(&links, &unixfs)
}

pub fn symlink(target: &str) -> Block {
    let mut unixfs = Vec::new();
    number(1, SYMLINK, &mut unixfs);
    bytes(2, target.as_bytes(), &mut unixfs);
    node(&[], &unixfs)
}

/// A sharded directory of eight slots: an entry in the first, and in the second a shard that is only named.
pub fn broken_shard(name: &str, entry: &Block, missing: &Cid) -> Block {
    let mut unixfs = Vec::new();
    number(1, HAMT_SHARD, &mut unixfs);
    bytes(2, &[0b11], &mut unixfs);
    number(5, 0x22, &mut unixfs);
    number(6, 8, &mut unixfs);
    node(&[(&format!("0{name}"), entry.cid(), 1), ("1", missing, 1)], &unixfs)
}

/// Bytes that differ from one seed to the next and do not look like text.
pub fn noise(seed: u8, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 0x9e37_79b9_7f4a_7c15;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(step).collect()
}
