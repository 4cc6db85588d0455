//! Blocks for tests: a minimal encoder of dag-pb and UnixFS.

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

/// A block with an identity CID.
pub fn inline(data: &[u8]) -> Block {
    Block::of(codec::RAW, hashes::IDENTITY, data.len(), Bytes::copy_from_slice(data)).expect("short enough")
}

/// An empty dag-cbor map.
pub fn cbor() -> Block {
    cbor_of(vec![0xa0])
}

/// A dag-cbor block of these bytes.
pub fn cbor_of(data: Vec<u8>) -> Block {
    block(codec::DAG_CBOR, data)
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

fn node<N: AsRef<[u8]>>(links: &[(N, &Cid, u64)], unixfs: &[u8]) -> Block {
    let mut out = Vec::new();
    for (name, cid, size) in links {
        let mut link = Vec::new();
        bytes(1, &cid.to_bytes(), &mut link);
        bytes(2, name.as_ref(), &mut link);
        number(3, *size, &mut link);
        bytes(2, &link, &mut out);
    }
    bytes(1, unixfs, &mut out);
    block(codec::DAG_PB, out)
}

/// A file with these leaves.
pub fn file(leaves: &[Block]) -> Block {
    let sizes: Vec<u64> = leaves.iter().map(|leaf| leaf.data().len() as u64).collect();
    let mut unixfs = Vec::new();
    number(1, FILE, &mut unixfs);
    number(3, sizes.iter().sum(), &mut unixfs);
    sizes.iter().for_each(|size| number(4, *size, &mut unixfs));
    let links: Vec<_> = leaves.iter().zip(&sizes).map(|(leaf, size)| ("", leaf.cid(), *size)).collect();
    node(&links, &unixfs)
}

/// A file without leaves.
pub fn file_in_one_block(data: &[u8]) -> Block {
    let mut unixfs = Vec::new();
    number(1, FILE, &mut unixfs);
    bytes(2, data, &mut unixfs);
    node::<&str>(&[], &unixfs)
}

/// A few blocks of a file that repeats a leaf 2^`times` times, the leaf first and the root last.
pub fn doubled_file(leaf: &Block, times: u32) -> Vec<Block> {
    let mut blocks = vec![leaf.clone()];
    let mut half = leaf.data().len() as u64;
    for _ in 0..times {
        let child = &blocks[blocks.len() - 1];
        let mut unixfs = Vec::new();
        number(1, FILE, &mut unixfs);
        number(3, 2 * half, &mut unixfs);
        [half, half].iter().for_each(|size| number(4, *size, &mut unixfs));
        let parent = node(&[("", child.cid(), half), ("", child.cid(), half)], &unixfs);
        half *= 2;
        blocks.push(parent);
    }
    blocks
}

/// Blocks of a file with one leaf below `times` nodes with one child each, the leaf first and the root last.
pub fn chained_file(leaf: &Block, times: u32) -> Vec<Block> {
    let (mut blocks, size) = (vec![leaf.clone()], leaf.data().len() as u64);
    for _ in 0..times {
        let mut unixfs = Vec::new();
        number(1, FILE, &mut unixfs);
        number(3, size, &mut unixfs);
        number(4, size, &mut unixfs);
        let parent = node(&[("", blocks[blocks.len() - 1].cid(), size)], &unixfs);
        blocks.push(parent);
    }
    blocks
}

/// A few blocks of a tree of 2^`times` empty directories, the innermost first and the root last.
pub fn doubled_directory(times: u32) -> Vec<Block> {
    let mut blocks = vec![directory(&[])];
    for _ in 0..times {
        let child = &blocks[blocks.len() - 1];
        let parent = directory(&[("a", child), ("b", child)]);
        blocks.push(parent);
    }
    blocks
}

/// A directory; the names must be sorted.
pub fn directory(entries: &[(&str, &Block)]) -> Block {
    directory_of_bytes(&entries.iter().map(|(name, block)| (name.as_bytes(), *block)).collect::<Vec<_>>())
}

/// A directory whose names need not be UTF-8.
pub fn directory_of_bytes(entries: &[(&[u8], &Block)]) -> Block {
    let mut unixfs = Vec::new();
    number(1, DIRECTORY, &mut unixfs);
    let links: Vec<_> = entries.iter().map(|(name, block)| (*name, block.cid(), block.data().len() as u64)).collect();
    node(&links, &unixfs)
}

pub fn symlink(target: &str) -> Block {
    let mut unixfs = Vec::new();
    number(1, SYMLINK, &mut unixfs);
    bytes(2, target.as_bytes(), &mut unixfs);
    node::<&str>(&[], &unixfs)
}

/// A sharded directory with eight slots: an entry in the first, and in the second a shard that does not exist.
pub fn broken_shard(name: &str, entry: &Block, missing: &Cid) -> Block {
    let mut unixfs = Vec::new();
    number(1, HAMT_SHARD, &mut unixfs);
    bytes(2, &[0b11], &mut unixfs);
    number(5, 0x22, &mut unixfs);
    number(6, 8, &mut unixfs);
    node(&[(&*format!("0{name}"), entry.cid(), 1), ("1", missing, 1)], &unixfs)
}

/// A sharded directory with 256 slots a shard, in which every name links to `entry`: its shards, the root last. Names
/// have at most eight bytes.
pub fn sharded(names: &[Vec<u8>], entry: &Block) -> Vec<Block> {
    let mut shards = Vec::new();
    let hashed = names.iter().map(|name| (name_hash(name), name.as_slice())).collect();
    let root = shard(hashed, 0, entry, &mut shards);
    shards.push(root);
    shards
}

/// The shard of names with the same first `depth` bytes of their hash. Child shards are appended to `shards`.
fn shard(mut names: Vec<(u64, &[u8])>, depth: u32, entry: &Block, shards: &mut Vec<Block>) -> Block {
    let slot_of = |hash: u64| (hash >> (56 - 8 * depth)) as u8;
    names.sort_by_key(|(hash, _)| slot_of(*hash));
    let (mut links, mut bitmap) = (Vec::new(), [0_u8; 32]);
    for names in names.chunk_by(|(one, _), (other, _)| slot_of(*one) == slot_of(*other)) {
        let slot = slot_of(names[0].0);
        bitmap[31 - usize::from(slot / 8)] |= 1 << (slot % 8);
        let prefix = format!("{slot:02X}").into_bytes();
        if let [(_, name)] = names {
            links.push(([&prefix[..], name].concat(), *entry.cid()));
        } else {
            let child = shard(names.to_vec(), depth + 1, entry, shards);
            links.push((prefix, *child.cid()));
            shards.push(child);
        }
    }
    let mut unixfs = Vec::new();
    number(1, HAMT_SHARD, &mut unixfs);
    bytes(2, &bitmap, &mut unixfs);
    number(5, 0x22, &mut unixfs);
    number(6, 256, &mut unixfs);
    let links: Vec<_> = links.iter().map(|(name, cid)| (name, cid, 1)).collect();
    node(&links, &unixfs)
}

/// MurmurHash3-x64-64 of at most eight bytes: only the tail and the finalisation of the algorithm.
fn name_hash(name: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..name.len()].copy_from_slice(name);
    let mixed = u64::from_le_bytes(word).wrapping_mul(0x87c3_7b91_1142_53d5).rotate_left(31);
    let length = name.len() as u64;
    let first = (mixed.wrapping_mul(0x4cf5_ad43_2745_937f) ^ length).wrapping_add(length);
    let second = first.wrapping_add(length);
    let scramble = |mut half: u64| {
        half = (half ^ half >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        half = (half ^ half >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        half ^ half >> 33
    };
    scramble(first).wrapping_add(scramble(second))
}

/// Incompressible bytes, different for each seed, that are not sniffed as text.
pub fn noise(seed: u8, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 0x9e37_79b9_7f4a_7c15;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(step).collect()
}
