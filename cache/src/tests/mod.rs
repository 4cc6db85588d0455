//! Tests of the crate's parts against real files and a real runtime, and what they share.

mod add;
mod audit;
mod crash;
mod disk;
mod flight;
mod import;
mod migrate;
mod pins;
mod power;
mod ram;
mod sources;
mod tiers;

use crate::{Disk, DiskOptions, StoreError};
use bytes::Bytes;
use content::{Block, BlockKey, Cid, codec, hashes};
use futures::StreamExt as _;
use std::path::Path;

/// Bytes that do not compress, the same for the same seed.
fn noise(seed: u64, len: usize) -> Bytes {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes.truncate(len);
    Bytes::from(bytes)
}

/// splitmix64: small, seeded, and good enough to vary a test.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

fn block_of(codec: u64, data: impl Into<Bytes>) -> Block {
    let data = data.into();
    let hash = hashes::digest(hashes::SHA2_256, 32, &data).expect("sha2-256 is accepted");
    Block::verify(Cid::new_v1(codec, hash), data).expect("hashed just now")
}

fn raw(data: impl Into<Bytes>) -> Block {
    block_of(codec::RAW, data)
}

/// A raw block of `len` bytes of noise.
fn noisy(seed: u64, len: usize) -> Block {
    raw(noise(seed, len))
}

fn key(block: &Block) -> BlockKey {
    block.key().expect("not an inline block")
}

/// Waits for room to run, again and again, until a condition holds.
async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::task::yield_now().await;
    }
}

fn open(dir: &Path) -> Disk {
    open_with(dir, DiskOptions::default()).expect("opens")
}

fn open_with(dir: &Path, options: DiskOptions) -> Result<Disk, StoreError> {
    Disk::open(dir, options)
}

fn budget(cache_bytes_max: u64) -> DiskOptions {
    DiskOptions { cache_bytes_max, ..DiskOptions::default() }
}

/// Caches blocks and waits until they are written.
async fn cache(disk: &Disk, blocks: &[Block]) {
    for block in blocks {
        disk.put_cached(block.clone()).await;
    }
    disk.flush().await.expect("flushes");
}

/// A stream of blocks that does not fail.
fn supply(blocks: &[Block]) -> impl futures::Stream<Item = Result<Block, std::io::Error>> + Send + use<> {
    futures::stream::iter(blocks.to_vec()).map(Ok)
}
