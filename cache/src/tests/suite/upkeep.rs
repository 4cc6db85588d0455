use super::super::{key, noisy, raw, supply};
use super::{Home, Opened, Setup, on_every_store};
use crate::reports::raw_cid;
use crate::{Fault, Finding, IncompletePin, ScrubPass, ScrubProgress};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;
use tokio::sync::Notify;

on_every_store!(
    corruption_is_found_and_deleted_and_nothing_else,
    an_interrupted_pass_is_resumed_and_the_next_starts_again,
    blocks_deleted_during_a_scrub_are_not_corrupt,
    compaction_reclaims_space_and_loses_nothing,
);

/// A complete pass without a rate limit, and its findings.
async fn scrub(store: &Opened, pass: ScrubPass) -> (ScrubProgress, Vec<Finding>, Vec<IncompletePin>) {
    let mut found = Vec::new();
    let mut note = |_: &ScrubProgress, findings: &[Finding]| found.extend_from_slice(findings);
    let report = store.scrub(pass, None, &mut note).await.expect("scrubs");
    (report.progress, found, report.lacking)
}

async fn corruption_is_found_and_deleted_and_nothing_else(home: Home) {
    let store = home.open(Setup::default()).await;
    let pinned: Vec<_> = (0..6).map(|seed| noisy(seed, 5_000)).collect();
    let mut cached: Vec<_> = (10..16).map(|seed| noisy(seed, 5_000)).collect();
    cached.push(raw(b"words that shrink ".repeat(1_000)));
    store.pin_recursive(*pinned[0].cid(), Some("mine".to_owned()), supply(&pinned)).await.expect("pins");
    store.pin_recursive(*pinned[5].cid(), None, supply(&pinned[5..])).await.expect("pins");
    store.cache(&cached).await;
    let (clean, found, lacking) = scrub(&store, ScrubPass::GoOn).await;
    assert_eq!((clean.blocks, clean.damaged, found, lacking), (13, 0, vec![], vec![]));
    assert_eq!((store.stats().scrubbed_blocks, store.stats().scrub_passes), (13, 1));
    assert!(store.scrubbed_at().await.expect("reads").is_some());
    store.shut().await;
    if !home.lasts() {
        return;
    }
    let bad = [&pinned[1], &pinned[2], &cached[1], &cached[3]];
    bad.iter().for_each(|block| home.damage(block));
    let store = home.open(Setup::default()).await;
    let (progress, found, lacking) = scrub(&store, ScrubPass::GoOn).await;
    assert_eq!((progress.blocks, progress.damaged, progress.unreadable), (13, 4, 0));
    let expected = bad.map(|block| Finding { cid: raw_cid(&key(block)), fault: Fault::Damaged });
    assert!(found.len() == 4 && expected.iter().all(|finding| found.contains(finding)), "{found:?}");
    let mine =
        IncompletePin { root: *pinned[0].cid(), name: Some("mine".to_owned()), missing: 2, withheld: 0, blocks: 6 };
    assert_eq!(lacking, [mine]);
    assert_eq!((store.stats().corrupt_blocks, store.stats().lacking_pins), (4, 1));
    for block in pinned.iter().chain(&cached) {
        assert_eq!(store.has(block.cid()).await, Ok(!bad.contains(&block)), "{}", block.cid());
    }
    store.cache(&[&pinned[..], &cached[..]].concat()).await;
    assert!(store.is_pinned(&key(&pinned[2])).await.expect("reads"), "a member comes back as one");
    let (progress, _, lacking) = scrub(&store, ScrubPass::All).await;
    assert_eq!((progress.blocks, progress.damaged, lacking), (13, 0, vec![]));
    assert_eq!(store.stats().lacking_pins, 0);
    store.settle().await;
}

async fn an_interrupted_pass_is_resumed_and_the_next_starts_again(home: Home) {
    let mut store = home.open(Setup::default()).await;
    let blocks: Vec<_> = (0..24).map(|seed| noisy(seed, 1 << 20)).collect();
    store.cache(&blocks).await;
    let (enough, mut first) = (Notify::new(), 0);
    let mut note = |progress: &ScrubProgress, _: &[Finding]| {
        first = progress.blocks;
        if progress.blocks == 10 {
            enough.notify_one();
        }
    };
    tokio::select! {
        biased;
        () = enough.notified() => {}
        ended = store.scrub(ScrubPass::GoOn, None, &mut note) => panic!("{ended:?}"),
    }
    assert_eq!(store.scrubbed_at().await.expect("reads"), None);
    if home.lasts() {
        drop(store);
        store = home.open(Setup::default()).await;
    }
    let rest = scrub(&store, ScrubPass::GoOn).await.0.blocks;
    assert!(rest < 24 && first + rest >= 24, "{first} blocks, then {rest}");
    assert_eq!(scrub(&store, ScrubPass::GoOn).await.0.blocks, 24);
    assert_eq!(scrub(&store, ScrubPass::All).await.0.blocks, 24);
    if home.lasts() {
        drop(store);
        store = home.open(Setup::default()).await;
    }
    let ended = store.scrubbed_at().await.expect("reads").expect("a pass reached the end");
    assert!(SystemTime::now().duration_since(ended).expect("in the past").as_secs() < 60);
}

async fn blocks_deleted_during_a_scrub_are_not_corrupt(home: Home) {
    let store = home.open_for(40 * home.cost(3_000)).await;
    let ended = AtomicBool::new(false);
    let churn = async {
        for round in 0..60_u64 {
            let blocks: Vec<_> = (0..20).map(|seed| noisy(round * 7 + seed, 3_000)).collect();
            store.pin_recursive(*blocks[0].cid(), None, supply(&blocks[..10])).await.expect("pins");
            store.cache(&blocks[10..]).await;
            if round % 3 > 0 {
                store.remove_pin(blocks[0].cid()).await.expect("removes");
            }
        }
        ended.store(true, Ordering::Relaxed);
    };
    let scrubbing = async {
        let mut checked = 0;
        while !ended.load(Ordering::Relaxed) {
            let (progress, found, _) = scrub(&store, ScrubPass::GoOn).await;
            assert!(progress.is_clean(), "{found:?}");
            checked += progress.blocks;
        }
        assert!(checked > 100);
    };
    tokio::join!(churn, scrubbing);
    assert_eq!(store.stats().corrupt_blocks, 0);
    store.settle().await;
}

async fn compaction_reclaims_space_and_loses_nothing(home: Home) {
    let store = home.open(Setup::default()).await;
    let dags: Vec<Vec<_>> = (0..3).map(|dag| (0..40).map(|seed| noisy(dag * 100 + seed, 20_000)).collect()).collect();
    let pin = |dag: usize| store.pin_recursive(*dags[dag][0].cid(), None, supply(&dags[dag]));
    futures::future::join_all((0..3).map(pin)).await.into_iter().for_each(|pin| assert!(pin.is_ok()));
    assert!(store.remove_pin(dags[1][0].cid()).await.expect("removes"));
    store.compact().await.expect("compacts");
    assert_eq!(store.stats().pinned_bytes, 80 * home.cost(20_000));
    assert!(store.holds_all(&dags[0]).await && store.holds_all(&dags[2]).await);
    store.settle().await;
}
