//! Reads from the disk: without waiting from memory, and batched otherwise.

use super::{budget, cache, flip, key, noisy, open, open_with, raw};
use crate::disk::DiskOptions;
use bytes::Bytes;
use content::{Block, BlockSource as _};
use futures::future::join_all;
use std::task::Poll;
use tempfile::tempdir;

/// Blocks of many lengths, some of them compressible.
fn blocks(count: u64) -> Vec<Block> {
    let block = |seed: u64| match seed % 3 {
        0 => raw(format!("{seed} again and again ").repeat(5_000)),
        1 => noisy(seed, 100 + seed as usize),
        _ => noisy(seed, 200_000),
    };
    (0..count).map(block).collect()
}

#[tokio::test]
async fn recently_written_blocks_are_read_without_waiting() {
    let dir = tempdir().expect("a folder");
    let disk = open(dir.path());
    let blocks = blocks(9);
    cache(&disk, &blocks[..8]).await;
    for block in &blocks[..8] {
        // The writer has the file open, and its bytes are in the page cache.
        assert_eq!(disk.read_now(block.cid()).as_ref(), Some(block));
    }
    assert_eq!(disk.read_now(blocks[8].cid()), None);
    flip(&disk, &blocks[1]);
    assert_eq!(disk.read_now(blocks[1].cid()), None, "a corrupt block is never served");
    assert_eq!(disk.find(&key(&blocks[1])).await.expect("reads"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_reads_return_their_own_blocks() {
    let dir = tempdir().expect("a folder");
    for reads_max in [1, 3] {
        let options = DiskOptions { reads_max, ..budget(1 << 30) };
        let disk = open_with(dir.path(), options).expect("opens");
        let blocks = blocks(60);
        cache(&disk, &blocks[..50]).await;
        for round in 0..20 {
            let reads = blocks.iter().cycle().skip(round * 7).take(100).map(|block| {
                let (disk, block) = (disk.clone(), block.clone());
                tokio::spawn(async move {
                    let found = disk.find(&key(&block)).await.expect("reads");
                    let held = disk.stored(&key(&block)).await.expect("reads");
                    assert_eq!(held.map(|stored| stored.block().expect("decompresses")), found);
                    (block, found)
                })
            });
            for read in join_all(reads).await {
                let (block, found) = read.expect("no panic");
                let expected = blocks[..50].contains(&block).then(|| block.data().clone());
                assert_eq!(found, expected);
            }
        }
        disk.close().await.expect("closes");
    }
}

/// A dropped read makes room for others, and does not affect adjacent reads. Most reads wait when some are dropped; on
/// a busy machine a thread may have completed one before its first poll.
#[tokio::test]
async fn dropped_reads_do_not_delay_others() {
    let dir = tempdir().expect("a folder");
    let disk = open_with(dir.path(), DiskOptions { reads_max: 1, ..budget(1 << 30) }).expect("opens");
    let blocks = blocks(30);
    cache(&disk, &blocks).await;
    for leaving in 0..3 {
        let find = |block: &Block| {
            let (disk, key) = (disk.clone(), key(block));
            Some(Box::pin(async move { disk.find(&key).await }))
        };
        let mut reads: Vec<_> = blocks.iter().map(find).collect();
        for (slot, block) in reads.iter_mut().zip(&blocks) {
            let read = slot.as_mut().expect("no read was dropped yet");
            if let Poll::Ready(found) = futures::poll!(read.as_mut()) {
                assert_eq!(found.expect("reads").as_ref(), Some(block.data()));
                *slot = None;
            }
        }
        reads.iter_mut().skip(leaving).step_by(3).for_each(|read| *read = None);
        for (read, block) in reads.into_iter().zip(&blocks) {
            let Some(read) = read else { continue };
            assert_eq!(read.await.expect("reads").as_ref(), Some(block.data()));
        }
    }
}

#[tokio::test]
async fn a_corrupt_value_does_not_affect_adjacent_ones() {
    let dir = tempdir().expect("a folder");
    let disk = open(dir.path());
    let blocks: Vec<Block> = (0..8).map(|seed| noisy(seed, 10_000)).collect();
    cache(&disk, &blocks).await;
    flip(&disk, &blocks[3]);
    let found: Vec<Option<Bytes>> =
        join_all(blocks.iter().map(|block| async { disk.find(&key(block)).await.expect("reads") })).await;
    for (index, (block, found)) in blocks.iter().zip(found).enumerate() {
        assert_eq!(found.as_ref(), (index != 3).then_some(block.data()), "{index}");
    }
}
