//! Tests of the memory store alone; [`super::suite`] has those of all stores.

use super::{noisy, supply};
use crate::memory::{self, MemoryOptions};
use crate::{PinError, PinState, StoreError};
use content::Block;

const COST: u64 = 5 + 10_000 + 512;

fn blocks(seeds: std::ops::Range<u64>) -> Vec<Block> {
    seeds.map(|seed| noisy(seed, 10_000)).collect()
}

#[tokio::test]
async fn pins_evict_cached_blocks_and_fail_beyond_the_budget() {
    let options = MemoryOptions { bytes_max: 20 * COST, ..MemoryOptions::default() };
    let store = memory::open(&options).expect("opens");
    for block in blocks(0..100) {
        store.put_cached(block).await;
    }
    store.flush().await.expect("flushes");
    assert_eq!((store.stats().cached_bytes, store.stats().pinned_bytes), (20 * COST, 0));

    // Two of these are cached, and one occurs twice.
    let first = [blocks(98..100), blocks(200..213), blocks(200..201)].concat();
    store.pin_recursive(*first[0].cid(), None, supply(&first)).await.expect("there is room");
    store.flush().await.expect("flushes");
    assert_eq!((store.stats().cached_bytes, store.stats().pinned_bytes), (5 * COST, 15 * COST));

    let second = blocks(300..310);
    let pinned = store.pin_recursive(*second[0].cid(), None, supply(&second)).await;
    let Err(PinError::Store(error)) = pinned else { panic!("{pinned:?}") };
    assert!(matches!(error, StoreError::MemoryFull { bytes_max } if bytes_max == 20 * COST), "{error}");
    assert!(error.to_string().contains("cache.memory_bytes_max"), "{error}");
    store.flush().await.expect("flushes");
    assert_eq!((store.stats().cached_bytes, store.stats().pinned_bytes), (0, 20 * COST));
    let states: Vec<_> = store.pins().await.expect("lists").into_iter().map(|pin| (pin.root, pin.state)).collect();
    assert!(states.contains(&(*second[0].cid(), PinState::Partial)) && states.len() == 2);
    assert!(!store.stats().degraded(), "only the budget for pins is exhausted");

    // Unpinning makes room.
    assert!(store.remove_pin(first[0].cid()).await.expect("removes"));
    store.flush().await.expect("flushes");
    let pin = store.pin_recursive(*second[0].cid(), None, supply(&second)).await.expect("there is room again");
    assert_eq!((pin.state, pin.blocks), (PinState::Complete, 10));
}

#[tokio::test]
async fn reads_without_waiting_count_as_use() {
    let options = MemoryOptions { bytes_max: 20 * COST, ..MemoryOptions::default() };
    let store = memory::open(&options).expect("opens");
    let read = noisy(0, 10_000);
    store.put_cached(read.clone()).await;
    for block in blocks(1..100) {
        store.flush().await.expect("flushes");
        assert_eq!(store.read_now(read.cid()).as_ref(), Some(&read));
        store.put_cached(block).await;
    }
}

#[tokio::test]
async fn a_block_that_is_a_slice_of_a_large_buffer_is_copied() {
    let store = memory::open(&MemoryOptions::default()).expect("opens");
    let message = super::noise(1, 1 << 20);
    let block = super::raw(message.slice(500..1_500));
    store.put_cached(block.clone()).await;
    drop(block);
    store.flush().await.expect("flushes");
    assert!(message.is_unique(), "the store has a copy of its own");
}
