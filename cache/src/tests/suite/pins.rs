use super::super::{key, noisy, supply};
use super::{Home, Kind, Opened, Setup, on_every_store};
use crate::{Addition, BlockStore, Evict, Held, PinError, PinState, import_car};
use content::{Block, BlockSource, Cid};
use futures::StreamExt as _;
use std::sync::Arc;

on_every_store!(
    a_pin_is_complete_listed_kept_and_counted,
    keys_are_listed_by_roots_pinned_and_all,
    an_interrupted_pin_stays_partial_and_is_resumed,
    a_partial_pin_is_durable_and_is_resumed,
    a_removed_pin_deletes_blocks_that_no_other_pin_has,
    an_interrupted_removal_is_completed_when_the_store_is_opened,
    large_pins_are_unpinned_while_others_write_and_read,
    hot_blocks_are_cached_when_they_are_unpinned,
    a_pin_needs_its_root_and_a_name_within_the_maximum,
    a_pin_that_is_removed_while_in_progress_fails,
    concurrent_pins_share_blocks_and_never_lose_one,
    a_temporary_pin_protects_until_it_is_released_or_the_store_is_opened_again,
    additions_are_pinned_and_dropped_ones_are_not,
    evicted_blocks_are_deleted_and_pinned_ones_only_on_request,
    an_archive_is_imported_and_its_blocks_can_be_exported,
);

fn blocks(seeds: std::ops::Range<u64>) -> Vec<Block> {
    seeds.map(|seed| noisy(seed, 5_000)).collect()
}

/// A store with room for ten blocks.
async fn small(home: &Home) -> Opened {
    home.open_for(10 * home.cost(5_000)).await
}

/// Fills the cache beyond its budget, so that everything evictable is evicted.
async fn flood(store: &Opened) {
    store.cache(&blocks(1_000..1_100)).await;
}

async fn a_pin_is_complete_listed_kept_and_counted(home: Home) {
    let store = small(&home).await;
    let dag = blocks(0..20);
    // Some blocks are cached already, and one occurs twice.
    store.cache(&dag[..5]).await;
    let mut stream = dag.clone();
    stream.push(dag[3].clone());
    let root = *dag[0].cid();
    let pin = store.pin_recursive(root, Some("a site".to_owned()), supply(&stream)).await.expect("pins");
    assert_eq!((pin.root, pin.blocks, pin.bytes, pin.state), (root, 20, 100_000, PinState::Complete));
    assert_eq!(pin.name.as_deref(), Some("a site"));
    flood(&store).await;
    assert!(store.holds_all(&dag).await);
    assert!(store.stats().evicted_blocks > 80);
    assert_eq!(store.stats().pinned_bytes, 20 * home.cost(5_000));
    assert!(store.is_pinned(&key(&dag[7])).await.expect("reads"));
    assert!(!store.is_pinned(&key(&noisy(1_099, 5_000))).await.expect("reads"));
    store.settle().await;
    store.shut().await;
    if !home.lasts() {
        return;
    }
    let store = small(&home).await;
    let pins = store.pins().await.expect("lists");
    assert_eq!((pins.len(), pins[0].id, &pins[0].name, pins[0].state), (1, pin.id, &pin.name, PinState::Complete));
    assert_eq!((pins[0].blocks, pins[0].bytes), (20, 100_000));
    assert!(pin.created.duration_since(pins[0].created).expect("not later").as_millis() <= 1);
    flood(&store).await;
    assert!(store.holds_all(&dag).await);
    let other = store.pin_recursive(*dag[9].cid(), None, supply(&dag[9..10])).await.expect("pins");
    assert!(other.id > pin.id, "IDs are not reused");
}

async fn keys_are_listed_by_roots_pinned_and_all(home: Home) {
    let store = home.open_for(1 << 20).await;
    let (whole, part, cached) = (blocks(0..5), blocks(10..13), blocks(20..24));
    store.pin_recursive(*whole[0].cid(), None, supply(&whole)).await.expect("pins");
    // A pin without its root stays partial.
    let lacking = *noisy(99, 5_000).cid();
    store.pin_recursive(lacking, None, supply(&part)).await.expect_err("has no root");
    store.cache(&cached).await;
    let table = [
        (Held::Roots, whole[..1].to_vec()),
        (Held::Pinned, [&whole[..], &part].concat()),
        (Held::All, [&whole[..], &part, &cached].concat()),
    ];
    for (held, expected) in table {
        let mut found = Vec::new();
        store.visit_keys(held, &mut |key| found.push(key.to_vec())).expect("reads");
        let mut expected: Vec<Vec<u8>> = expected.iter().map(|block| key(block).to_bytes()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{held:?}");
    }
    let figures = store.figures().await.expect("reads");
    assert_eq!((figures.pins, figures.partial_pins), (1, 1));
    assert_eq!((figures.pinned.blocks, figures.cached.blocks), (8, 4));
}

async fn an_interrupted_pin_stays_partial_and_is_resumed(home: Home) {
    let store = small(&home).await;
    let dag = blocks(0..10);
    let root = *dag[0].cid();
    let failing = supply(&dag[..6]).chain(futures::stream::iter([Err(std::io::Error::other("the peer left"))]));
    let error = store.pin_recursive(root, Some("first".to_owned()), failing).await.expect_err("fails");
    assert!(matches!(&error, PinError::Blocks(_)) && error.to_string().contains("the peer left"), "{error}");
    flood(&store).await;
    let partial = store.pins().await.expect("lists").remove(0);
    assert_eq!((partial.state, partial.blocks), (PinState::Partial, 6));
    assert!(store.holds_all(&dag[..6]).await, "its blocks are protected");

    let whole = store.pin_recursive(root, None, supply(&dag)).await.expect("pins");
    assert_eq!((whole.id, whole.blocks, whole.name.as_deref()), (partial.id, 10, Some("first")));
    let again = store.pin_recursive(root, Some("second".to_owned()), supply(&dag)).await.expect("pins");
    assert_eq!((again.id, again.blocks, again.name.as_deref()), (partial.id, 10, Some("second")));
    let failing = supply(&dag[..2]).chain(futures::stream::iter([Err(std::io::Error::other("again"))]));
    assert!(store.pin_recursive(root, None, failing).await.is_err());
    assert_eq!(store.pins().await.expect("lists"), [again], "a complete pin stays complete");
    store.settle().await;
}

async fn a_partial_pin_is_durable_and_is_resumed(home: Home) {
    if !home.lasts() {
        return;
    }
    let store = small(&home).await;
    let dag = blocks(0..10);
    let root = *dag[0].cid();
    let failing = supply(&dag[..6]).chain(futures::stream::iter([Err(std::io::Error::other("the peer left"))]));
    store.pin_recursive(root, Some("mine".to_owned()), failing).await.expect_err("fails");
    store.shut().await;
    let store = small(&home).await;
    flood(&store).await;
    let partial = store.pins().await.expect("lists").remove(0);
    assert_eq!((partial.state, partial.blocks, partial.name.as_deref()), (PinState::Partial, 6, Some("mine")));
    assert!(store.holds_all(&dag[..6]).await, "its blocks are protected");
    let whole = store.pin_recursive(root, None, supply(&dag)).await.expect("pins");
    assert_eq!((whole.id, whole.blocks, whole.bytes), (partial.id, 10, 50_000));
    store.settle().await;
    store.shut().await;
    let store = small(&home).await;
    flood(&store).await;
    assert_eq!(store.pins().await.expect("lists")[0].state, PinState::Complete);
    assert!(store.holds_all(&dag).await);
}

async fn a_removed_pin_deletes_blocks_that_no_other_pin_has(home: Home) {
    let store = small(&home).await;
    let dag = blocks(0..1_500);
    let (first, second) = (&dag[..1_250], &dag[1_200..]);
    store.pin_recursive(*first[0].cid(), None, supply(first)).await.expect("pins");
    store.pin_recursive(*second[0].cid(), None, supply(second)).await.expect("pins");
    assert_eq!(store.stats().pinned_bytes, 1_500 * home.cost(5_000), "shared blocks are stored once");
    let id = store.pin(first[0].cid()).await.expect("reads").expect("a pin").id;
    assert!(!store.remove_pin_by_id(first[0].cid(), Some(id + 1000)).await.expect("has another ID"));
    assert_eq!(store.pins().await.expect("lists").len(), 2);
    assert!(store.remove_pin_by_id(first[0].cid(), Some(id)).await.expect("removes"));
    assert!(!store.remove_pin_by_id(first[0].cid(), Some(id)).await.expect("removes"), "it is removed at once");
    assert!(!store.remove_pin(first[0].cid()).await.expect("removes"), "it is removed at once");
    store.settle().await;
    assert!(store.holds_all(second).await);
    assert_eq!(store.stats().pinned_bytes, 300 * home.cost(5_000));
    assert!(store.stats().cached_bytes <= 10 * home.cost(5_000));
    assert_eq!(store.pins().await.expect("lists").len(), 1);
}

async fn an_interrupted_removal_is_completed_when_the_store_is_opened(home: Home) {
    let store = small(&home).await;
    let dag = blocks(0..1_500);
    store.pin_recursive(*dag[0].cid(), None, supply(&dag)).await.expect("pins");
    assert!(store.remove_pin(dag[0].cid()).await.expect("removes"));
    drop(store);
    let store = small(&home).await;
    store.settle().await;
    assert_eq!((store.stats().pinned_bytes, store.pins().await.expect("lists").len()), (0, 0));
    assert!(store.stats().cached_bytes <= 10 * home.cost(5_000));
    if home.kind == Kind::Rocksdb {
        assert_eq!(store.stats().blocks, 0);
    }
}

async fn large_pins_are_unpinned_while_others_write_and_read(home: Home) {
    let store = home.open(Setup::default()).await;
    // More than a few chunks of each, and some shared ones.
    let dags = [1_000..4_000, 3_500..6_000].map(|seeds| seeds.map(|seed| noisy(seed, 40)).collect::<Vec<_>>());
    for dag in &dags {
        store.pin_recursive(*dag[0].cid(), None, supply(dag)).await.expect("pins");
    }
    store.settle().await;
    assert_eq!(store.stats().blocks, 5_000);
    for dag in &dags {
        assert!(store.remove_pin(dag[0].cid()).await.expect("removes"));
    }
    let fresh = blocks(0..5);
    for block in &fresh {
        store.put_cached(block.clone()).await;
    }
    store.written().await.expect("writes");
    assert!(store.holds_all(&fresh).await, "they can be read before the unpinning ends");
    store.settle().await;
    assert_eq!((store.stats().blocks, store.stats().pinned_bytes), (5, 0));
    assert!(!store.holds(&dags[1][2_000]).await);
}

async fn hot_blocks_are_cached_when_they_are_unpinned(home: Home) {
    let store = small(&home).await;
    let dag = blocks(0..5);
    let favourite = key(&dag[2]);
    store.set_is_hot(Box::new(move |key| *key == favourite));
    store.pin_recursive(*dag[0].cid(), None, supply(&dag)).await.expect("pins");
    assert!(store.remove_pin(dag[0].cid()).await.expect("removes"));
    store.settle().await;
    assert!(store.holds(&dag[2]).await);
    assert_eq!((store.stats().blocks, store.stats().pinned_bytes), (1, 0));
}

async fn a_pin_needs_its_root_and_a_name_within_the_maximum(home: Home) {
    let store = home.open_for(1 << 20).await;
    let dag = blocks(0..3);
    let root = *dag[0].cid();
    let pinned = store.pin_recursive(root, None, supply(&dag[1..])).await;
    assert!(matches!(pinned, Err(PinError::RootMissing { root: missing }) if missing == root));
    let pinned = store.pin_recursive(root, Some("n".repeat(256)), supply(&dag)).await;
    assert!(matches!(pinned, Err(PinError::NameTooLong { chars: 256 })));
    store.settle().await;
}

async fn a_pin_that_is_removed_while_in_progress_fails(home: Home) {
    let store = home.open_for(1 << 20).await;
    let dag = blocks(0..3);
    let root = *dag[0].cid();
    let remover = store.handle();
    let stream = futures::stream::iter(dag.clone()).enumerate().then(move |(i, block)| {
        let store = Arc::clone(&remover);
        async move {
            if i == 2 {
                assert!(store.remove_pin(&root).await.expect("removes"));
            }
            Ok::<_, std::io::Error>(block)
        }
    });
    let pinned = store.pin_recursive(root, None, stream).await;
    assert!(matches!(pinned, Err(PinError::Removed { .. })), "{pinned:?}");
    store.settle().await;
    assert_eq!(store.stats().pinned_bytes, 0);
}

async fn concurrent_pins_share_blocks_and_never_lose_one(home: Home) {
    let store = small(&home).await;
    let dag = Arc::new(blocks(0..60));
    let pin = |first: usize| {
        let (store, dag) = (store.handle(), Arc::clone(&dag));
        tokio::spawn(async move { store.pin_recursive(*dag[first].cid(), None, supply(&dag[first..])).await })
    };
    let tasks: Vec<_> = (0..30).flat_map(|first| [pin(first), pin(first)]).collect();
    for task in tasks {
        assert_eq!(task.await.expect("no panic").expect("pins").state, PinState::Complete);
    }
    for first in (0..30).step_by(2) {
        assert!(store.remove_pin(dag[first].cid()).await.expect("removes"));
    }
    flood(&store).await;
    assert!(store.holds_all(&dag[1..]).await);
    store.settle().await;
}

async fn a_temporary_pin_protects_until_it_is_released_or_the_store_is_opened_again(home: Home) {
    let store = small(&home).await;
    let (first, second) = (blocks(0..4), blocks(10..14));
    let temporary_pin = store.begin_temporary_pin().await.expect("begins");
    for block in &first {
        store.put_member(block, &temporary_pin).await.expect("puts");
    }
    flood(&store).await;
    assert!(store.holds_all(&first).await && store.is_pinned(&key(&first[0])).await.expect("reads"));
    assert_eq!(store.pins().await.expect("lists"), [], "a temporary pin is not listed");
    store.release(&temporary_pin);
    flood(&store).await;
    assert!(!store.is_pinned(&key(&first[0])).await.expect("reads") && !store.holds(&first[0]).await);
    let temporary_pin = store.begin_temporary_pin().await.expect("begins");
    for block in &second {
        store.put_member(block, &temporary_pin).await.expect("puts");
    }
    store.settle().await;
    assert_eq!(store.stats().pinned_bytes, 4 * home.cost(5_000));
    drop(store);
    let store = small(&home).await;
    store.settle().await;
    assert_eq!(store.stats().pinned_bytes, 0);
    assert!(!store.is_pinned(&key(&second[0])).await.expect("reads"));
}

async fn additions_are_pinned_and_dropped_ones_are_not(home: Home) {
    let store = small(&home).await;
    let (roots, stray) = (blocks(0..30), noisy(99, 5_000));
    let addition = Addition::begin(&*store).await.expect("begins");
    for block in roots.iter().chain([&stray]) {
        addition.put(block).await.expect("takes it");
    }
    let cids: Vec<Cid> = roots.iter().map(|block| *block.cid()).collect();
    let pins = addition.pin(&cids, Some("many")).await.expect("pins");
    assert!(pins.len() == 30 && pins.iter().all(|pin| pin.state == PinState::Complete && pin.blocks == 1));
    store.settle().await;
    assert!(!store.is_pinned(&key(&stray)).await.expect("reads"));
    let before = store.stats();
    let addition = Addition::begin(&*store).await.expect("begins");
    for block in &roots {
        addition.put(block).await.expect("takes it");
    }
    addition.pin(&cids, None).await.expect("pins");
    store.settle().await;
    assert_eq!(store.stats(), before, "stored blocks are not written again");
    let addition = Addition::begin(&*store).await.expect("begins");
    addition.put(&noisy(100, 5_000)).await.expect("takes it");
    drop(addition);
    store.settle().await;
    assert!(!store.is_pinned(&key(&noisy(100, 5_000))).await.expect("reads"));
}

async fn an_archive_is_imported_and_its_blocks_can_be_exported(home: Home) {
    let store = small(&home).await;
    let blocks = blocks(0..20);
    let roots: Vec<Cid> = blocks[..2].iter().map(|block| *block.cid()).collect();
    let mut car = content::car::header(&roots).to_vec();
    for block in &blocks {
        let (head, data) = content::car::section(block);
        car.extend_from_slice(&head);
        car.extend_from_slice(&data);
    }
    let summary = import_car(&*store, &car[..], Some("an archive".to_owned())).await.expect("imports");
    assert_eq!((summary.blocks, summary.pins.len()), (20, 2));
    store.settle().await;
    let source: Arc<dyn BlockStore> = store.handle();
    for block in &blocks[..2] {
        assert_eq!(BlockSource::get(&source, block.cid()).await.as_ref(), Ok(block));
    }
}

async fn evicted_blocks_are_deleted_and_pinned_ones_only_on_request(home: Home) {
    let store = home.open(Setup::default()).await;
    let (blocks, pinned) = (blocks(0..6), blocks(10..13));
    store.cache(&blocks).await;
    store.pin_recursive(*pinned[0].cid(), None, supply(&pinned)).await.expect("pins");
    let before = store.stats();
    // Cached blocks, one of them twice, a pinned one and a missing one.
    let mut keys: Vec<_> = blocks[..3].iter().chain([&pinned[1]]).map(key).collect();
    keys.push(key(&noisy(99, 100)));
    let evictable = store.evictable(keys.clone()).await.expect("reads");
    assert_eq!((evictable.blocks, evictable.pinned, evictable.bytes), (3, 1, 3 * home.cost(5_000)));
    assert_eq!(store.stats().blocks, before.blocks, "nothing was deleted");
    keys.push(key(&blocks[0]));
    let evicted = store.evict(keys, Evict::Unpinned).await.expect("evicts");
    assert_eq!((evicted.blocks, evicted.pinned, evicted.bytes), (3, 1, 3 * home.cost(5_000)));
    for (index, block) in blocks.iter().enumerate() {
        assert_eq!(store.holds(block).await, index >= 3, "{index}");
    }
    assert!(store.holds_all(&pinned).await);
    assert_eq!((store.stats().blocks, store.stats().pinned_bytes), (before.blocks - 3, before.pinned_bytes));
    let evicted = store.evict(vec![key(&pinned[1])], Evict::Everything).await.expect("evicts");
    assert_eq!((evicted.blocks, evicted.pinned), (1, 0));
    assert!(!store.holds(&pinned[1]).await && store.holds(&pinned[0]).await);
    store.settle_lacking(1).await;
    // The pin is partial; the block becomes a member again when it is stored again.
    assert_eq!(store.pins().await.expect("lists").len(), 1);
    store.cache(&blocks[..1]).await;
    assert!(store.holds(&blocks[0]).await, "an evicted block can be stored again");
    store.cache(&pinned[1..2]).await;
    assert!(store.is_pinned(&key(&pinned[1])).await.expect("reads"));
    store.settle().await;
    if home.lasts() {
        store.evict(vec![key(&blocks[4]), key(&pinned[2])], Evict::Everything).await.expect("evicts");
        store.shut().await;
        let store = home.open(Setup::default()).await;
        assert!(!store.holds(&blocks[4]).await && !store.holds(&pinned[2]).await, "the deletion is durable");
        assert!(store.holds(&blocks[5]).await);
        store.settle_lacking(1).await;
    }
}
