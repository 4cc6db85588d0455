use super::super::{key, noisy, supply};
use super::{Home, Setup, on_every_store};
use crate::{PinError, StoreError};

on_every_store!(
    eviction_removes_the_oldest_and_keeps_the_budget,
    referenced_and_hot_blocks_are_kept_longest,
    a_cache_with_only_hot_blocks_still_keeps_its_budget,
    a_full_file_system_shrinks_the_cache_and_then_stores_nothing,
    shrinking_evicts_the_oldest_until_the_target_is_reached,
);

async fn eviction_removes_the_oldest_and_keeps_the_budget(home: Home) {
    let cost = home.cost(10_000);
    let store = home.open_for(10 * cost).await;
    let blocks: Vec<_> = (0..100).map(|seed| noisy(seed, 10_000)).collect();
    for block in &blocks {
        store.cache(std::slice::from_ref(block)).await;
        assert!(store.stats().cached_bytes <= 10 * cost);
    }
    store.settle().await;
    let stats = store.stats();
    assert_eq!(stats.blocks + stats.evicted_blocks, 100);
    assert_eq!(stats.cached_bytes + stats.evicted_bytes, 100 * cost);
    assert!(stats.blocks >= 8, "no more than necessary is evicted: {stats:?}");
    for (i, block) in blocks.iter().enumerate() {
        assert_eq!(store.has(block.cid()).await, Ok(i as u64 >= stats.evicted_blocks), "{i}");
    }
    store.shut().await;
    if home.lasts() {
        // A smaller budget applies when the store is opened.
        let store = home.open_for(2 * cost).await;
        store.settle().await;
        assert!((1..=2).contains(&store.stats().blocks));
        // Across restarts, age has the resolution of the file system's timestamps.
        assert!(!store.holds(&blocks[50]).await);
    }
}

async fn shrinking_evicts_the_oldest_until_the_target_is_reached(home: Home) {
    let cost = home.cost(10_000);
    let store = home.open_for(1_000 * cost).await;
    let pinned: Vec<_> = (100..103).map(|seed| noisy(seed, 10_000)).collect();
    store.pin_recursive(*pinned[0].cid(), None, supply(&pinned)).await.expect("pins");
    let blocks: Vec<_> = (0..60).map(|seed| noisy(seed, 10_000)).collect();
    store.cache(&blocks).await;
    store.set_is_hot(Box::new(|_| true));
    let shrink = async |bytes: u64| {
        for _ in 0..1_000 {
            if !store.shrink(bytes).await.expect("shrinks") {
                return;
            }
        }
        panic!("shrinking does not end: {:?}", store.stats());
    };
    shrink(60 * cost).await;
    assert_eq!((store.stats().evicted_blocks, store.stats().cached_bytes), (0, 60 * cost), "it is small enough");
    shrink(20 * cost).await;
    let stats = store.stats();
    assert!(stats.cached_bytes <= 20 * cost && stats.evicted_blocks >= 40, "{stats:?}");
    for (i, block) in blocks.iter().enumerate() {
        assert_eq!(store.has(block.cid()).await, Ok(i as u64 >= stats.evicted_blocks), "{i}");
    }
    shrink(0).await;
    assert_eq!((store.stats().cached_bytes, store.stats().evicted_blocks), (0, 60), "also those in the RAM cache");
    for block in &pinned {
        assert!(store.holds(block).await, "pinned blocks stay");
    }
    store.cache(&blocks[..5]).await;
    assert!(store.holds(&blocks[4]).await, "caching works as before");
    store.settle().await;
}

async fn referenced_and_hot_blocks_are_kept_longest(home: Home) {
    let store = home.open_for(100 * home.cost(10_000)).await;
    let (read, favoured) = (noisy(1, 10_000), noisy(2, 10_000));
    let favourite = key(&favoured);
    store.set_is_hot(Box::new(move |key| *key == favourite));
    store.cache(&[read.clone(), favoured.clone(), noisy(3, 10_000)]).await;
    for seed in 100..500 {
        assert!(store.holds(&read).await, "{seed}");
        store.cache(&[noisy(seed, 10_000)]).await;
    }
    assert!(store.holds(&favoured).await);
    assert!(!store.holds(&noisy(3, 10_000)).await);
    store.settle().await;
}

async fn a_cache_with_only_hot_blocks_still_keeps_its_budget(home: Home) {
    let budget = 30 * home.cost(10_000);
    let store = home.open_for(budget).await;
    store.set_is_hot(Box::new(|_| true));
    for seed in 0..200 {
        store.cache(&[noisy(seed, 10_000)]).await;
        assert!(store.stats().cached_bytes <= budget);
    }
    // For tiny blocks, the overhead exceeds the values.
    let tiny: Vec<_> = (1_000..3_000).map(|seed| noisy(seed, 20)).collect();
    store.cache(&tiny).await;
    assert!(store.stats().cached_bytes <= budget);
    store.settle().await;
}

async fn a_full_file_system_shrinks_the_cache_and_then_stores_nothing(home: Home) {
    if !home.lasts() {
        return;
    }
    let blocks: Vec<_> = (0..20).map(|seed| noisy(seed, 10_000)).collect();
    let store = home.open(Setup::default()).await;
    store.cache(&blocks[..10]).await;
    store.pin_recursive(*blocks[10].cid(), None, supply(&blocks[10..11])).await.expect("pins");
    store.shut().await;
    let store = home.open(Setup { free_bytes_min: u64::MAX / 2, ..Setup::default() }).await;
    store.put_cached(blocks[11].clone()).await;
    let pinned = store.pin_recursive(*blocks[12].cid(), None, supply(&blocks[12..13])).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Full { .. }))), "{pinned:?}");
    store.flush().await.expect("flushes");
    assert!(store.stats().degraded());
    assert_eq!((store.stats().blocks, store.stats().cached_bytes), (1, 0), "only the pin is left");
    assert!(store.stats().dropped_writes > 0 && store.stats().write_errors > 0);
    assert!(store.holds(&blocks[10]).await, "it serves");
    store.settle().await;
    store.shut().await;
    let store = home.open(Setup::default()).await;
    store.cache(&blocks).await;
    assert_eq!(store.stats().blocks, 20);
    assert!(!store.stats().degraded());
    store.settle().await;
}
