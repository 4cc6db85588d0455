//! Tests with real files and a real runtime, and their helpers.

mod add;
mod audit;
mod corruption;
mod crash;
mod device;
mod disk;
mod failing;
mod faults;
mod flat;
mod full;
mod import;
mod interleavings;
mod memory;
mod memory_index;
mod metadata_store;
mod million;
mod offline;
mod packed;
mod power;
mod power_flat;
mod ram;
mod reads;
mod rebuild;
mod scrub;
mod singleflight;
mod site_tier;
mod small;
mod sources;
mod suite;
mod tiers;
mod waiting;

use crate::disk::record;
use crate::disk::schema::Place;
use crate::{BlockStore, Disk, DiskOptions, PinError, PinSummary, StoreError};
use bytes::Bytes;
use content::{Block, BlockKey, Cid, codec, hashes};
use futures::StreamExt as _;
use std::path::Path;

/// Incompressible bytes, deterministic for a seed.
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

/// Yields until a condition holds.
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

/// The place of a block's value.
fn place_of(disk: &Disk, block: &Block) -> Place {
    disk.store().index(&key(block).to_bytes()).expect("reads").expect("it is held").place
}

/// Overwrites bytes in a segment file, `at` bytes after a place.
fn overwrite(disk: &Disk, place: Place, at: usize, bytes: &[u8]) {
    let at = u32::try_from(at).expect("small");
    disk.store().files.write(place.segment, place.offset + at, bytes, false).expect("writes");
}

/// Flips a bit in the middle of a block's record.
fn flip(disk: &Disk, block: &Block) {
    let record = disk.store().index(&key(block).to_bytes()).expect("reads").expect("it is held");
    let (place, at) = (record.place, 10 + 34 + record.value_bytes() / 2);
    let byte = disk.store().files.read(place.segment, place.offset + u32::try_from(at).expect("small"), 1);
    overwrite(disk, place, at, &[byte.expect("reads")[0] ^ 1]);
}

/// Replaces a block's record by one with a valid checksum and wrong bytes, which only the hash detects.
fn forge(disk: &Disk, block: &Block) {
    let mut data = block.data().to_vec();
    data[0] ^= 1;
    let len = u32::try_from(data.len()).expect("small").to_be_bytes();
    let value = [Bytes::from([&[2_u8], &len[..]].concat()), Bytes::from(data)];
    let head = record::head(&key(block).to_bytes(), &value).expect("a record");
    overwrite(disk, place_of(disk, block), 0, &[head, value.concat()].concat());
}

impl Disk {
    /// Like [`BlockStore::pin_recursive`], for tests of this store.
    async fn pin_recursive<E: std::error::Error + Send + Sync + 'static>(
        &self,
        root: Cid,
        name: Option<String>,
        blocks: impl futures::Stream<Item = Result<Block, E>> + Send,
    ) -> Result<PinSummary, PinError> {
        (self as &dyn BlockStore).pin_recursive(root, name, blocks).await
    }

    async fn remove_pin(&self, root: &Cid) -> Result<bool, StoreError> {
        BlockStore::remove_pin(self, root).await
    }
}

/// A stream of blocks that does not fail.
fn supply(blocks: &[Block]) -> impl futures::Stream<Item = Result<Block, std::io::Error>> + Send + use<> {
    futures::stream::iter(blocks.to_vec()).map(Ok)
}
