use super::audit::audit;
use super::{Random, budget, cache, flip, forge, key, noisy, open, open_with, overwrite, place_of, raw, supply};
use crate::reports::raw_cid;
use crate::{Disk, Fault, Finding, IncompletePin, ScrubProgress};
use content::{Block, BlockSource};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;
use tokio::sync::Notify;

/// A complete pass without a rate limit, and its findings.
async fn scrub(disk: &Disk) -> (ScrubProgress, Vec<Finding>, Vec<IncompletePin>) {
    let mut found = Vec::new();
    let report = disk.scrub(None, |_, findings| found.extend_from_slice(findings)).await.expect("scrubs");
    (report.progress, found, report.lacking)
}

async fn is_stored(disk: &Disk, block: &Block) -> bool {
    disk.has(block.cid()).await.expect("reads")
}

#[tokio::test]
async fn every_kind_of_corruption_is_found_and_deleted_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let pinned: Vec<_> = (0..6).map(|seed| noisy(seed, 5_000)).collect();
    let mut cached: Vec<_> = (10..16).map(|seed| noisy(seed, 5_000)).collect();
    cached.push(raw(b"words that shrink ".repeat(1_000)));
    disk.pin_recursive(*pinned[0].cid(), Some("mine".to_owned()), supply(&pinned)).await.expect("pins");
    disk.pin_recursive(*pinned[5].cid(), None, supply(&pinned[5..])).await.expect("pins");
    cache(&disk, &cached).await;
    let (clean, found, lacking) = scrub(&disk).await;
    assert_eq!((clean.blocks, clean.damaged, found, lacking), (13, 0, vec![], vec![]));
    assert_eq!(disk.stats().scrubbed_bytes, clean.bytes);

    flip(&disk, &pinned[1]);
    flip(&disk, &cached[6]);
    forge(&disk, &pinned[2]);
    forge(&disk, &cached[1]);
    // A valid record, but of another block.
    let (from, to) = (place_of(&disk, &cached[2]), place_of(&disk, &cached[3]));
    let record = disk.store().files.read(from.segment, from.offset, 10 + 34 + 5 + 5_000).expect("reads");
    overwrite(&disk, to, 0, &record);

    let bad = [&pinned[1], &pinned[2], &cached[1], &cached[3], &cached[6]];
    let (progress, found, lacking) = scrub(&disk).await;
    assert_eq!((progress.blocks, progress.damaged, progress.unreadable), (13, 5, 0));
    let expected = bad.map(|block| Finding { cid: raw_cid(&key(block)), fault: Fault::Damaged });
    assert_eq!(found.len(), 5);
    assert!(expected.iter().all(|finding| found.contains(finding)), "{found:?}");
    let mine =
        IncompletePin { root: *pinned[0].cid(), name: Some("mine".to_owned()), missing: 2, withheld: 0, blocks: 6 };
    assert_eq!(lacking, [mine]);
    assert_eq!((disk.stats().corrupt_blocks, disk.stats().lacking_pins), (5, 1));
    for block in pinned.iter().chain(&cached) {
        assert_eq!(is_stored(&disk, block).await, !bad.contains(&block), "{}", block.cid());
    }

    cache(&disk, &[&pinned[..], &cached[..]].concat()).await;
    assert!(disk.is_pinned(&key(&pinned[2])).await.expect("reads"), "a member comes back as one");
    let (progress, _, lacking) = scrub(&disk).await;
    assert_eq!((progress.blocks, progress.damaged, lacking), (13, 0, vec![]));
    assert_eq!((disk.stats().scrub_passes, disk.stats().lacking_pins), (3, 0));
    audit(&disk);
}

#[tokio::test]
async fn a_segment_without_its_file_is_deleted() {
    let dir = tempfile::tempdir().expect("a directory");
    let blocks: Vec<_> = (0..20).map(|seed| noisy(seed, 5_000)).collect();
    let disk = open(dir.path());
    cache(&disk, &blocks[..10]).await;
    disk.pin_recursive(*blocks[10].cid(), None, supply(&blocks[10..])).await.expect("pins");
    let lost = place_of(&disk, &blocks[0]).segment;
    disk.store().files.delete(lost).expect("deletes");
    drop(disk);
    let disk = open(dir.path());
    assert_eq!(scrub(&disk).await.0.damaged, 10);
    assert_eq!(disk.stats().blocks, 10);
    audit(&disk);
    cache(&disk, &blocks).await;
    assert_ne!(place_of(&disk, &blocks[0]).segment, lost);
    audit(&disk);
}

#[tokio::test]
async fn an_interrupted_pass_is_resumed_and_the_next_starts_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let blocks: Vec<_> = (0..24).map(|seed| noisy(seed, 1 << 20)).collect();
    cache(&disk, &blocks).await;
    let (enough, mut first) = (Notify::new(), 0);
    let pass = disk.scrub(None, |progress, _| {
        first = progress.blocks;
        if progress.blocks == 10 {
            enough.notify_one();
        }
    });
    tokio::select! {
        biased;
        () = enough.notified() => {}
        ended = pass => panic!("{ended:?}"),
    }
    assert_eq!(disk.scrubbed_at().await.expect("reads"), None);
    drop(disk);
    let disk = open(dir.path());
    let rest = scrub(&disk).await.0.blocks;
    assert!(rest < 24 && first + rest >= 24, "{first} blocks, then {rest}");
    assert_eq!(scrub(&disk).await.0.blocks, 24);
    assert_eq!(disk.scrub_all(None, |_, _| ()).await.expect("scrubs").progress.blocks, 24);
    drop(disk);
    let ended = open(dir.path()).scrubbed_at().await.expect("reads").expect("a pass reached the end");
    assert!(SystemTime::now().duration_since(ended).expect("in the past").as_secs() < 60);
}

#[tokio::test]
async fn scrubs_and_looks_give_no_second_chance() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(100_000)).expect("opens");
    let blocks: Vec<_> = (0..5).map(|seed| noisy(seed, 5_000)).collect();
    cache(&disk, &blocks).await;
    disk.get(blocks[1].cid()).await.expect("it is held");
    scrub(&disk).await;
    let looked_at = disk.look(&key(&blocks[4])).await.expect("reads");
    assert_eq!(looked_at.as_ref(), Some(blocks[4].data()));
    let touched = |block| {
        let place = place_of(&disk, block);
        disk.store().reference_bits.is_referenced(place.segment, place.offset)
    };
    assert!(touched(&blocks[1]) && !touched(&blocks[4]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn blocks_moved_or_deleted_during_a_scrub_are_not_corrupt() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = crate::DiskOptions { segment_bytes_max: 60_000, ..budget(200_000) };
    let disk = open_with(dir.path(), options).expect("opens");
    let (enough, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let churn = tokio::spawn({
        let (disk, enough, ended) = (disk.clone(), Arc::clone(&enough), Arc::clone(&ended));
        async move {
            let mut random = Random(1);
            // However slow the concurrent scrub is.
            for round in (0_u64..).take_while(|round| *round < 150 || !enough.load(Ordering::Relaxed)) {
                let blocks: Vec<_> = (0..20).map(|_| noisy(random.below(300), 3_000)).collect();
                disk.pin_recursive(*blocks[0].cid(), None, supply(&blocks[..10])).await.expect("pins");
                for block in &blocks[10..] {
                    disk.put_cached(block.clone()).await;
                }
                if round % 3 > 0 {
                    disk.remove_pin(blocks[0].cid()).await.expect("removes");
                }
            }
            ended.store(true, Ordering::Relaxed);
        }
    });
    let mut checked = 0;
    while !ended.load(Ordering::Relaxed) {
        let (progress, found, _) = scrub(&disk).await;
        assert!(progress.is_clean(), "{found:?}");
        checked += progress.blocks;
        enough.store(checked > 100, Ordering::Relaxed);
    }
    churn.await.expect("does not panic");
    disk.flush().await.expect("flushes");
    assert_eq!(disk.stats().corrupt_blocks, 0);
    audit(&disk);
}
