//! A gateway's hit rates over a trace, without a gateway: the memory tier itself ([`cache::Ram`]) with the blocks of
//! the trace's objects, and a store behind it.
//!
//! How: each request reads its file's blocks as the gateway does: blocks that are not in memory are offered to it. A
//! request is a hit if all blocks of its file are in memory. Blocks are slices of one buffer, so that a simulated tier
//! takes no memory here but for small blocks. Non-goals: time, and requests for the same blocks while these are
//! fetched.

use super::tier::{ByTier, Tier};
use super::workload::{Object, Trace};
use bytes::Bytes;
use cache::{Ram, RamPolicy};
use content::hashes::SHA2_256;
use content::{BlockKey, Cid, Multihash, codec};
use serde::Serialize;
use std::ops::Range;
use std::time::Duration;

/// The policies, and their names.
pub const POLICIES: [(RamPolicy, &str); 2] = [(RamPolicy::Lru, "lru"), (RamPolicy::TinyLfu, "tinylfu")];

/// Bytes of a leaf, as Kubo chunks files.
const LEAF_BYTES: usize = 256 * 1024;
/// Bytes of each link in a file's root: nearly all of it.
const LINK_BYTES: usize = 57;

static LEAF: [u8; LEAF_BYTES] = [0; LEAF_BYTES];

/// Shares of all requests and of all bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Share {
    pub requests: f64,
    pub bytes: f64,
}

/// A very long file that is read once, at an even pace, beside the requests of a trace.
#[derive(Debug, Clone)]
pub struct Scan {
    pub bytes: u64,
    /// Since the trace begins.
    pub during: Range<Duration>,
}

/// Whether each request of a trace is a hit. The memory tier is empty at first.
pub fn hits(trace: &Trace, policy: RamPolicy, ram_bytes: u64, scan: Option<&Scan>) -> Vec<bool> {
    let ram = Ram::with_policy(ram_bytes, policy);
    let mut scanned = 0;
    let mut hits = Vec::with_capacity(trace.requests.len());
    for request in &trace.requests {
        if let Some(Scan { bytes, during }) = scan {
            let progress = request.at.saturating_sub(during.start).as_secs_f64()
                / during.end.saturating_sub(during.start).as_secs_f64();
            let due = (bytes.div_ceil(LEAF_BYTES as u64) as f64 * progress.min(1.0)) as u64;
            for leaf in scanned..due {
                read(&ram, key(u32::MAX, leaf), LEAF_BYTES);
            }
            scanned = scanned.max(due);
        }
        let blocks = block_sizes(trace.object_of(request)).zip(0..);
        let found = blocks.map(|(bytes, block)| read(&ram, key(request.object, block), bytes));
        // All of them are read, found or not.
        hits.push(found.fold(true, |hit, found| hit & found));
    }
    hits
}

/// The sizes of a file's blocks: leaves, and a root above them if there are several.
fn block_sizes(object: &Object) -> impl Iterator<Item = usize> {
    let leaves = object.bytes.div_ceil(LEAF_BYTES as u64).max(1);
    let last = object.bytes - (leaves - 1) * LEAF_BYTES as u64;
    let root = (leaves > 1).then_some((leaves as usize * LINK_BYTES).min(LEAF_BYTES));
    let leaf = move |leaf: u64| if leaf + 1 == leaves { last as usize } else { LEAF_BYTES };
    root.into_iter().chain((0..leaves).map(leaf))
}

/// A block's key: no hash, but as unique as one.
fn key(object: u32, block: u64) -> Option<BlockKey> {
    let mut digest = [0; 32];
    digest[..4].copy_from_slice(&object.to_be_bytes());
    digest[24..].copy_from_slice(&block.to_be_bytes());
    BlockKey::of(&Cid::new_v1(codec::RAW, Multihash::wrap(SHA2_256, &digest).ok()?))
}

/// Reads a block as the gateway does, and returns whether it was in memory.
fn read(ram: &Ram, key: Option<BlockKey>, bytes: usize) -> bool {
    let Some(key) = key else { return false };
    let hit = ram.find(&key).is_some();
    if !hit {
        ram.insert(key, &Bytes::from_static(&LEAF[..bytes]));
    }
    hit
}

/// The content of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// Pinned content: the paper's node store.
    Pins,
    /// Pinned content, and everything that was fetched.
    PinsAndFetched,
}

/// What each tier serves of some requests: hits come from memory, other content from the disk if it is there, else from
/// the network. Requests before these have filled the disk.
pub fn shares(trace: &Trace, hits: &[bool], store: Store, requests: Range<usize>) -> ByTier<Share> {
    let mut on_disk: Vec<bool> = trace.objects.iter().map(|object| object.pinned).collect();
    let mut counts = Counts::default();
    for (index, (request, hit)) in trace.requests.iter().zip(hits).enumerate().take(requests.end) {
        let stored = &mut on_disk[request.object as usize];
        let tier = match (hit, *stored) {
            (true, _) => Tier::Ram,
            (false, true) => Tier::Disk,
            (false, false) => Tier::Network,
        };
        *stored |= store == Store::PinsAndFetched;
        if index >= requests.start {
            counts.add(tier, trace.object_of(request).bytes);
        }
    }
    counts.shares()
}

/// Requests and bytes of each tier.
#[derive(Debug, Default)]
pub struct Counts {
    requests: ByTier<u64>,
    bytes: ByTier<u64>,
}

impl Counts {
    pub fn add(&mut self, tier: Tier, bytes: u64) {
        *self.requests.of_mut(tier) += 1;
        *self.bytes.of_mut(tier) += bytes;
    }

    /// Zero if there were no requests.
    pub fn shares(&self) -> ByTier<Share> {
        let share = |counts: &ByTier<u64>, tier| *counts.of(tier) as f64 / counts.sum().max(1) as f64;
        ByTier::from_fn(|tier| Share { requests: share(&self.requests, tier), bytes: share(&self.bytes, tier) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::Draw;
    use super::super::{CACHE_SHARE, paper};
    use super::*;

    fn day(seed: u64, cids: u32) -> Trace {
        let draw = Draw { seed, cids, hours: 0.0..24.0, scale_max: 1.0, bytes_max: u64::MAX };
        draw.draw().expect("it is a day")
    }

    #[test]
    fn a_file_s_blocks_are_its_leaves_and_a_root_above_several() {
        let leaf = LEAF_BYTES as u64;
        let table = [
            (1, vec![1]),
            (leaf, vec![LEAF_BYTES]),
            (leaf + 1, vec![2 * LINK_BYTES, LEAF_BYTES, 1]),
            (3 * leaf, vec![3 * LINK_BYTES, LEAF_BYTES, LEAF_BYTES, LEAF_BYTES]),
        ];
        for (bytes, expected) in table {
            let object = Object { bytes, seed: 0, pinned: false };
            assert_eq!(block_sizes(&object).collect::<Vec<_>>(), expected, "{bytes}");
        }
    }

    /// On a small day, a scan of many times the memory costs LRU its hits and TinyLFU next to nothing.
    #[test]
    fn a_scan_flushes_lru_and_not_tiny_lfu() {
        let trace = day(1, 2_000);
        let ram_bytes = trace.day_bytes / 50;
        let during = Duration::from_hours(6)..Duration::from_hours(7);
        let requests = trace.first_at(during.start)..trace.first_at(during.end);
        let scan = Scan { bytes: 40 * ram_bytes, during };
        let lost = |policy| {
            let [without, with] = [None, Some(&scan)].map(|scan| {
                shares(&trace, &hits(&trace, policy, ram_bytes, scan), Store::Pins, requests.clone()).ram.requests
            });
            without - with
        };
        // moka hashes with a random seed, so that no two runs are alike.
        let (lru, tiny_lfu) = (lost(RamPolicy::Lru), lost(RamPolicy::TinyLfu));
        assert!(lru > 0.1 && tiny_lfu < lru / 2.0, "{lru} and {tiny_lfu}");
    }

    /// The fit of popularity and pins, checked where it matters: with the cache that it was fitted with, a day's
    /// responses come from where the paper's came from.
    #[test]
    fn a_cache_for_the_fitted_share_of_a_day_leads_to_table_5() {
        for (seed, cids) in [(1, 10_000), (2, 30_000)] {
            let trace = day(seed, cids);
            let ram_bytes = (trace.day_bytes as f64 * CACHE_SHARE) as u64;
            let (hits, all) = (hits(&trace, RamPolicy::Lru, ram_bytes, None), 0..trace.requests.len());
            let as_printed = shares(&trace, &hits, Store::Pins, all.clone());
            for (share, column) in as_printed.iter().zip(paper::TABLE_5.iter()) {
                assert!((share.requests - column.requests).abs() < 0.02, "{}: {share:?}", column.name);
                assert!((share.bytes - column.bytes).abs() < 0.04, "{}: {share:?}", column.name);
            }
            let with_fetched = shares(&trace, &hits, Store::PinsAndFetched, all);
            assert_eq!(with_fetched.ram, as_printed.ram);
            // A quarter of the CIDs, once each, of 25.9 requests for each CID.
            assert!((with_fetched.network.requests - 0.256 / 25.9).abs() < 0.001, "{with_fetched:?}");
        }
    }
}
