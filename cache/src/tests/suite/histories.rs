//! Random histories: pinned DAGs stay complete, and the store stays consistent.

use super::super::{noisy, supply};
use super::{Home, Kind, Setup};
use crate::{Evict, PinState};
use content::Block;
use futures::StreamExt as _;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
enum Step {
    Cache(usize),
    Pin { root: usize, members: usize, fails: bool },
    Unpin(usize),
    Read(usize),
    Evict(usize),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..40_usize).prop_map(Step::Cache),
        3 => (0..8_usize, 0..12_usize, any::<bool>())
            .prop_map(|(root, members, fails)| Step::Pin { root, members, fails }),
        2 => (0..8_usize).prop_map(Step::Unpin),
        3 => (0..40_usize).prop_map(Step::Read),
        2 => (0..40_usize).prop_map(Step::Evict),
        1 => Just(Step::Reopen),
    ]
}

/// The model: the members of each pin, and whether it is complete.
type Model = BTreeMap<usize, (BTreeSet<usize>, bool)>;

async fn run(kind: Kind, steps: Vec<Step>) {
    let home = Home::new(kind);
    let setup = Setup { cache_bytes_max: 12 * home.cost(2_000), ..Setup::default() };
    let blocks: Vec<_> = (0..40).map(|seed| noisy(seed, 200 + 50 * usize::try_from(seed).expect("small"))).collect();
    let mut store = home.open(setup.clone()).await;
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Cache(i) => store.put_cached(blocks[i].clone()).await,
            Step::Read(i) => _ = store.holds(&blocks[i]).await,
            Step::Evict(i) => {
                let keys = vec![super::super::key(&blocks[i])];
                let evicted = store.evict(keys, Evict::Unpinned).await.expect("evicts");
                let pinned = model.values().any(|(members, _)| members.contains(&i));
                assert!(evicted.blocks == 0 || !pinned && !store.holds(&blocks[i]).await, "{evicted:?}");
                assert!(evicted.pinned <= u64::from(pinned) || evicted.blocks == 0);
            }
            Step::Pin { root, members, fails } => {
                let failure = fails.then(|| Err(std::io::Error::other("the walk failed")));
                let range = root..(root + members + 1).min(40);
                let stream = supply(&blocks[range.clone()]).chain(futures::stream::iter(failure));
                let result = store.pin_recursive(*blocks[root].cid(), None, stream).await;
                assert_eq!(result.is_err(), fails);
                let (pinned, complete) = model.entry(root).or_default();
                pinned.extend(range);
                *complete |= !fails;
            }
            Step::Unpin(root) => {
                let was = store.remove_pin(blocks[root].cid()).await.expect("removes");
                assert_eq!(was, model.remove(&root).is_some());
            }
            Step::Reopen if home.lasts() => {
                drop(store);
                store = home.open(setup.clone()).await;
            }
            Step::Reopen => {}
        }
    }
    store.settle().await;
    assert!(store.stats().cached_bytes <= setup.cache_bytes_max);
    let mut pins = store.pins().await.expect("lists");
    pins.sort_by_key(|pin| blocks.iter().position(|block| *block.cid() == pin.root));
    assert_eq!(pins.len(), model.len());
    let data = |i: &usize| blocks[*i].data().len() as u64;
    for (pin, (root, (members, complete))) in pins.iter().zip(&model) {
        let state = if *complete { PinState::Complete } else { PinState::Partial };
        assert_eq!((pin.root, pin.state), (*blocks[*root].cid(), state));
        assert_eq!((pin.blocks, pin.bytes), (members.len() as u64, members.iter().map(data).sum()));
    }
    let pinned: BTreeSet<usize> = model.values().flat_map(|(members, _)| members.iter().copied()).collect();
    for (i, block) in blocks.iter().enumerate() {
        assert_eq!(store.is_pinned(&super::super::key(block)).await.expect("reads"), pinned.contains(&i), "{i}");
    }
    let pinned: Vec<Block> = pinned.iter().map(|i| blocks[*i].clone()).collect();
    assert!(store.holds_all(&pinned).await);
    let cost: u64 = pinned.iter().map(|block| home.cost(block.data().len() as u64)).sum();
    assert!(store.stats().pinned_bytes >= cost && (kind == Kind::Rocksdb || store.stats().pinned_bytes == cost));
}

fn check(kind: Kind, steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run(kind, steps));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn rocksdb(steps in proptest::collection::vec(step(), 1..40)) {
        check(Kind::Rocksdb, steps);
    }

    #[test]
    fn flat(steps in proptest::collection::vec(step(), 1..40)) {
        check(Kind::Flat, steps);
    }

    #[test]
    fn memory(steps in proptest::collection::vec(step(), 1..40)) {
        check(Kind::Memory, steps);
    }
}
