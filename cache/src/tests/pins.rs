use super::audit::audit;
use super::{budget, cache, key, noisy, open, open_with, supply};
use crate::disk::schema::ROW_OVERHEAD_BYTES;
use crate::{Disk, Held, PinError, PinState};
use content::{Block, BlockSource};
use futures::StreamExt as _;

/// What one of our blocks takes: head, key, tag, length and noise, and its rows.
const COST: u64 = 10 + 34 + 5 + 5_000 + ROW_OVERHEAD_BYTES;

fn blocks(seeds: std::ops::Range<u64>) -> Vec<Block> {
    seeds.map(|seed| noisy(seed, 5_000)).collect()
}

async fn all_held(disk: &Disk, blocks: &[Block]) -> bool {
    for block in blocks {
        if disk.get(block.cid()).await.as_ref() != Ok(block) {
            return false;
        }
    }
    true
}

/// Fills the cache over its budget, so that whatever may be evicted is.
async fn flood(disk: &Disk) {
    cache(disk, &blocks(1_000..1_100)).await;
}

#[tokio::test]
async fn a_pin_is_complete_listed_kept_and_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(50_000)).expect("opens");
    let dag = blocks(0..20);
    // Some of it is cached already, and one block comes twice.
    cache(&disk, &dag[..5]).await;
    let mut stream = dag.clone();
    stream.push(dag[3].clone());
    let root = *dag[0].cid();
    let pin = disk.pin_recursive(root, Some("a site".to_owned()), supply(&stream)).await.expect("pins");
    assert_eq!((pin.root, pin.blocks, pin.bytes, pin.state), (root, 20, 100_000, PinState::Complete));
    assert_eq!(pin.name.as_deref(), Some("a site"));
    flood(&disk).await;
    assert!(all_held(&disk, &dag).await);
    assert!(disk.stats().evicted_blocks > 80);
    assert_eq!(disk.stats().pinned_bytes, 20 * COST);
    assert!(disk.is_pinned(&key(&dag[7])).await.expect("reads"));
    assert!(!disk.is_pinned(&key(&noisy(1_099, 5_000))).await.expect("reads"));
    audit(&disk);
    drop(disk);
    let disk = open(dir.path());
    let pins = disk.pins().await.expect("lists");
    assert_eq!((pins.len(), pins[0].id, &pins[0].name, pins[0].state), (1, pin.id, &pin.name, PinState::Complete));
    assert!(pin.created.duration_since(pins[0].created).expect("not later").as_millis() <= 1);
    assert!(all_held(&disk, &dag).await);
}

#[tokio::test]
async fn the_keys_of_roots_of_pins_and_of_everything_are_told_apart() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let (whole, part, cached) = (blocks(0..5), blocks(10..13), blocks(20..24));
    disk.pin_recursive(*whole[0].cid(), None, supply(&whole)).await.expect("pins");
    // A pin that lacks its root stays partial.
    let lacking = *noisy(99, 5_000).cid();
    disk.pin_recursive(lacking, None, supply(&part)).await.expect_err("has no root");
    cache(&disk, &cached).await;
    let table = [
        (Held::Roots, whole[..1].to_vec()),
        (Held::Pinned, [&whole[..], &part].concat()),
        (Held::All, [&whole[..], &part, &cached].concat()),
    ];
    for (held, expected) in table {
        let mut found = Vec::new();
        disk.visit_keys(held, &mut |key| found.push(key.to_vec())).expect("reads");
        let mut expected: Vec<Vec<u8>> = expected.iter().map(|block| key(block).to_bytes()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{held:?}");
    }
}

#[tokio::test]
async fn an_interrupted_pin_stays_partial_and_is_gone_on_with() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(20_000)).expect("opens");
    let dag = blocks(0..10);
    let root = *dag[0].cid();
    let failing = supply(&dag[..6]).chain(futures::stream::iter([Err(std::io::Error::other("the peer left"))]));
    let error = disk.pin_recursive(root, Some("first".to_owned()), failing).await.expect_err("fails");
    assert!(matches!(&error, PinError::Blocks(_)) && error.to_string().contains("the peer left"), "{error}");
    flood(&disk).await;
    let partial = disk.pins().await.expect("lists").remove(0);
    assert_eq!((partial.state, partial.blocks), (PinState::Partial, 6));
    assert!(all_held(&disk, &dag[..6]).await, "what it has is protected");

    let whole = disk.pin_recursive(root, None, supply(&dag)).await.expect("pins");
    assert_eq!((whole.id, whole.blocks, whole.name.as_deref()), (partial.id, 10, Some("first")));
    let again = disk.pin_recursive(root, Some("second".to_owned()), supply(&dag)).await.expect("pins");
    assert_eq!((again.id, again.blocks, again.name.as_deref()), (partial.id, 10, Some("second")));
    let failing = supply(&dag[..2]).chain(futures::stream::iter([Err(std::io::Error::other("again"))]));
    assert!(disk.pin_recursive(root, None, failing).await.is_err());
    assert_eq!(disk.pins().await.expect("lists"), [again], "a complete pin stays complete");
    audit(&disk);
}

#[tokio::test]
async fn a_removed_pin_frees_what_no_other_pin_has() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(20_000)).expect("opens");
    let dag = blocks(0..3_000);
    let (first, second) = (&dag[..2_500], &dag[2_400..]);
    disk.pin_recursive(*first[0].cid(), None, supply(first)).await.expect("pins");
    disk.pin_recursive(*second[0].cid(), None, supply(second)).await.expect("pins");
    assert!(disk.remove_pin(first[0].cid()).await.expect("removes"));
    assert!(!disk.remove_pin(first[0].cid()).await.expect("removes"), "it is gone at once");
    disk.flush().await.expect("flushes");
    audit(&disk);
    assert!(all_held(&disk, second).await);
    assert_eq!(disk.stats().pinned_bytes, 600 * COST);
    assert!(disk.stats().cached_bytes <= 20_000);
    assert_eq!(disk.pins().await.expect("lists").len(), 1);
}

#[tokio::test]
async fn a_removal_that_is_cut_off_is_finished_when_the_store_is_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let dag = blocks(0..3_000);
    disk.pin_recursive(*dag[0].cid(), None, supply(&dag)).await.expect("pins");
    assert!(disk.remove_pin(dag[0].cid()).await.expect("removes"));
    drop(disk);
    let disk = open(dir.path());
    disk.flush().await.expect("flushes");
    assert_eq!((disk.stats().pinned_bytes, disk.stats().blocks), (0, 0));
    audit(&disk);
}

#[tokio::test]
async fn a_pin_needs_its_root_and_a_name_of_reasonable_length() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let dag = blocks(0..3);
    let root = *dag[0].cid();
    let pinned = disk.pin_recursive(root, None, supply(&dag[1..])).await;
    assert!(matches!(pinned, Err(PinError::RootMissing { root: missing }) if missing == root));
    let pinned = disk.pin_recursive(root, Some("n".repeat(256)), supply(&dag)).await;
    assert!(matches!(pinned, Err(PinError::NameTooLong { chars: 256 })));
    let inline = content::cid::parse("bafkqaddjnzzxazldoqwxizltoq").expect("an identity CID");
    let block = Block::inline(&inline).expect("inline");
    let pin = disk.pin_recursive(inline, None, supply(&[block])).await.expect("pins");
    assert_eq!((pin.state, pin.blocks), (PinState::Complete, 0), "an inline root has nothing to keep");
    disk.flush().await.expect("flushes");
    audit(&disk);
}

#[tokio::test]
async fn a_pin_that_is_removed_while_it_is_made_fails() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let dag = blocks(0..3);
    let root = *dag[0].cid();
    let remover = disk.clone();
    let stream = futures::stream::iter(dag.clone()).enumerate().then(move |(i, block)| {
        let disk = remover.clone();
        async move {
            if i == 2 {
                assert!(disk.remove_pin(&root).await.expect("removes"));
            }
            Ok::<_, std::io::Error>(block)
        }
    });
    let pinned = disk.pin_recursive(root, None, stream).await;
    assert!(matches!(pinned, Err(PinError::Removed { .. })), "{pinned:?}");
    disk.flush().await.expect("flushes");
    assert_eq!(disk.stats().pinned_bytes, 0);
    audit(&disk);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pins_made_at_the_same_time_share_blocks_and_never_lose_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(20_000)).expect("opens");
    let dag = std::sync::Arc::new(blocks(0..60));
    let pin = |first: usize| {
        let (disk, dag) = (disk.clone(), std::sync::Arc::clone(&dag));
        tokio::spawn(async move { disk.pin_recursive(*dag[first].cid(), None, supply(&dag[first..])).await })
    };
    let tasks: Vec<_> = (0..30).flat_map(|first| [pin(first), pin(first)]).collect();
    for task in tasks {
        assert_eq!(task.await.expect("no panic").expect("pins").state, PinState::Complete);
    }
    for first in (0..30).step_by(2) {
        assert!(disk.remove_pin(dag[first].cid()).await.expect("removes"));
    }
    flood(&disk).await;
    assert!(all_held(&disk, &dag[1..]).await);
    audit(&disk);
}
