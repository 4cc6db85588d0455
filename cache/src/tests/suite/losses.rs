//! Pins that lose blocks: they become partial, are reported, and can be completed again.

use super::super::{key, noisy, supply};
use super::{Home, Opened, Setup, on_every_store};
use crate::{Evict, MissingBlocks, PinError, PinState, ScrubPass};
use content::{Block, Cid};
use std::collections::BTreeSet;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

on_every_store!(
    a_pin_that_loses_a_block_is_partial_until_it_has_it_again,
    every_pin_that_has_a_block_loses_it,
    corruption_found_by_a_read_makes_its_pins_partial,
    corruption_found_by_a_scrub_makes_its_pins_partial,
    a_pin_that_loses_a_block_while_in_progress_is_not_complete,
    missing_blocks_are_counted_and_withheld_ones_are_told_apart,
    blocks_are_written_while_missing_ones_are_checked_against_the_rules,
);

fn blocks(seeds: std::ops::Range<u64>) -> Vec<Block> {
    seeds.map(|seed| noisy(seed, 5_000)).collect()
}

async fn pin(store: &Opened, blocks: &[Block]) -> Cid {
    let root = *blocks[0].cid();
    store.pin_recursive(root, None, supply(blocks)).await.expect("pins");
    root
}

async fn state(store: &Opened, root: &Cid) -> PinState {
    store.pin(root).await.expect("reads").expect("there is a pin").state
}

async fn remove(store: &Opened, block: &Block) {
    let evicted = store.evict(vec![key(block)], Evict::Everything).await.expect("evicts");
    assert_eq!(evicted.blocks, 1);
}

/// The reported roots, of changes that have happened already.
async fn changed_roots(store: &Opened) -> BTreeSet<Cid> {
    let changes = store.pin_changes();
    tokio::time::timeout(Duration::from_secs(30), changes.next()).await.expect("a change is reported")
}

async fn a_pin_that_loses_a_block_is_partial_until_it_has_it_again(home: Home) {
    let mut store = home.open(Setup::default()).await;
    let dag = blocks(0..6);
    let root = pin(&store, &dag).await;
    remove(&store, &dag[4]).await;
    assert_eq!(state(&store, &root).await, PinState::Partial);
    assert_eq!(changed_roots(&store).await, [root].into());
    store.settle_lacking(1).await;
    if home.lasts() {
        store.shut().await;
        store = home.open(Setup::default()).await;
        assert_eq!(state(&store, &root).await, PinState::Partial, "it is durable");
    }
    // The block is cached again: the pin service is notified, and resumes the pin.
    store.cache(&dag[4..5]).await;
    assert_eq!(changed_roots(&store).await, [root].into());
    assert!(store.is_pinned(&key(&dag[4])).await.expect("reads"));
    let again = store.pin_recursive(root, None, supply(&dag)).await.expect("pins");
    assert_eq!((again.state, again.blocks, again.bytes), (PinState::Complete, 6, 30_000));
    store.settle().await;
    if home.lasts() {
        store.shut().await;
        store = home.open(Setup::default()).await;
        assert_eq!(state(&store, &root).await, PinState::Complete);
    }
    store.settle().await;
}

async fn every_pin_that_has_a_block_loses_it(home: Home) {
    let store = home.open(Setup::default()).await;
    let shared = blocks(100..101);
    let dags: Vec<Vec<Block>> = (0..5).map(|dag| [blocks(dag * 10..dag * 10 + 3), shared.clone()].concat()).collect();
    let other = pin(&store, &blocks(200..203)).await;
    let mut roots = BTreeSet::new();
    for dag in &dags {
        roots.insert(pin(&store, dag).await);
    }
    let gone = pin(&store, &[blocks(90..91), shared.clone()].concat()).await;
    assert!(store.remove_pin(&gone).await.expect("removes"));
    remove(&store, &shared[0]).await;
    assert_eq!(changed_roots(&store).await, roots);
    for root in &roots {
        assert_eq!(state(&store, root).await, PinState::Partial);
    }
    assert_eq!(state(&store, &other).await, PinState::Complete);
    // Storing it again for one pin restores it for all of them.
    pin(&store, &dags[0]).await;
    assert_eq!(changed_roots(&store).await, roots);
    for dag in &dags[1..] {
        pin(&store, dag).await;
    }
    store.settle().await;
}

async fn corruption_found_by_a_read_makes_its_pins_partial(home: Home) {
    if !home.lasts() {
        return;
    }
    let store = home.open(Setup::default()).await;
    let dag = blocks(0..4);
    let root = pin(&store, &dag).await;
    store.shut().await;
    home.damage(&dag[2]);
    let store = home.open(Setup::default()).await;
    assert_eq!(state(&store, &root).await, PinState::Complete, "the block was not read yet");
    assert!(!store.holds(&dag[2]).await);
    assert_eq!(changed_roots(&store).await, [root].into());
    assert_eq!(state(&store, &root).await, PinState::Partial);
    store.settle_lacking(1).await;
}

async fn corruption_found_by_a_scrub_makes_its_pins_partial(home: Home) {
    if !home.lasts() {
        return;
    }
    let store = home.open(Setup::default()).await;
    let (dag, whole) = (blocks(0..4), blocks(10..14));
    let (root, other) = (pin(&store, &dag).await, pin(&store, &whole).await);
    store.shut().await;
    home.damage(&dag[2]);
    let store = home.open(Setup::default()).await;
    let report = store.scrub(ScrubPass::All, None, &mut |_, _| ()).await.expect("scrubs");
    assert_eq!(report.lacking.len(), 1);
    assert_eq!(changed_roots(&store).await, [root].into());
    assert_eq!(state(&store, &root).await, PinState::Partial);
    assert_eq!(state(&store, &other).await, PinState::Complete);
    store.settle_lacking(1).await;
}

async fn a_pin_that_loses_a_block_while_in_progress_is_not_complete(home: Home) {
    let store = home.open(Setup::default()).await;
    let dag = blocks(0..4);
    let root = *dag[0].cid();
    let attempt = store.begin_pin(root, None).await.expect("begins");
    for block in &dag {
        store.put_member(block, &attempt).await.expect("puts");
    }
    store.written().await.expect("writes");
    remove(&store, &dag[2]).await;
    let finished = store.finish_pin(attempt).await;
    assert!(matches!(finished, Err(PinError::Lost { .. })), "{finished:?}");
    assert_eq!(state(&store, &root).await, PinState::Partial);
    assert_eq!(pin(&store, &dag).await, root);
    assert_eq!(state(&store, &root).await, PinState::Complete);
    store.settle().await;
}

async fn missing_blocks_are_counted_and_withheld_ones_are_told_apart(home: Home) {
    let store = home.open(Setup::default()).await;
    let dag = blocks(0..5);
    let withheld = key(&dag[3]);
    store.set_is_withheld(Box::new(move |key| *key == withheld));
    let root = pin(&store, &dag).await;
    let missing = async || store.missing(&root).await.expect("reads");
    assert_eq!(missing().await, MissingBlocks::default());
    assert_eq!(store.missing(dag[1].cid()).await.expect("reads"), MissingBlocks::default(), "it has no pin");
    remove(&store, &dag[3]).await;
    let report = store.scrub(ScrubPass::All, None, &mut |_, _| ()).await.expect("scrubs");
    let [pin] = &*report.lacking else { panic!("{report:?}") };
    assert_eq!((pin.missing, pin.withheld, pin.is_damaged(), store.stats().lacking_pins), (1, 1, false, 0));
    remove(&store, &dag[2]).await;
    assert_eq!(missing().await, MissingBlocks { blocks: 2, bytes: 10_000, withheld: 1 });
    let report = store.scrub(ScrubPass::All, None, &mut |_, _| ()).await.expect("scrubs");
    let [pin] = &*report.lacking else { panic!("{report:?}") };
    assert_eq!((pin.missing, pin.withheld, pin.is_damaged(), store.stats().lacking_pins), (2, 1, true, 1));
    store.cache(&dag[2..3]).await;
    assert_eq!(missing().await, MissingBlocks { blocks: 1, bytes: 5_000, withheld: 1 });
    store.settle_lacking(1).await;
}

async fn blocks_are_written_while_missing_ones_are_checked_against_the_rules(home: Home) {
    let store = home.open(Setup::default()).await;
    let (entered, is_checking) = tokio::sync::oneshot::channel();
    let (proceed, may_proceed) = mpsc::channel::<()>();
    let gate = Mutex::new((Some(entered), may_proceed));
    store.set_is_withheld(Box::new(move |_| {
        let mut gate = gate.lock().expect("locks");
        gate.0.take().is_some_and(|entered| entered.send(()).is_ok()) && gate.1.recv().is_ok()
    }));
    let dag = blocks(0..4);
    let root = pin(&store, &dag).await;
    remove(&store, &dag[2]).await;
    let writes = async {
        is_checking.await.expect("a missing block is checked");
        let written = tokio::time::timeout(Duration::from_secs(30), store.cache(&blocks(50..52))).await;
        proceed.send(()).expect("the check waits");
        written.expect("they are written while the check waits");
    };
    let (missing, ()) = tokio::join!(store.missing(&root), writes);
    assert_eq!(missing.expect("reads"), MissingBlocks { blocks: 1, bytes: 5_000, withheld: 1 });
    store.settle_lacking(1).await;
}
