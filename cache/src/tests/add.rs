use super::audit::audit;
use super::{block_of, budget, cache, flip, key, noisy, open_with};
use crate::{AddError, Addition, PinError, PinState};
use content::importer::{Attributes, Chunking, Importer, Part, Profile};
use content::{Block, BlockSource, codec};

/// The blocks of a file of noise, its root the last of them.
fn file(seed: u64, bytes: usize) -> (Part, Vec<Block>) {
    let chunking = Chunking::size(4_000).expect("a size");
    let importer = Importer::new(Profile { chunking, ..Profile::default() }).expect("a profile");
    let mut blocks = Vec::new();
    let mut sink = |block| {
        blocks.push(block);
        Ok(())
    };
    let mut file = importer.file(Attributes::default());
    file.write(&super::noise(seed, bytes), &mut sink).expect("the sink takes everything");
    let part = file.finish(&mut sink).expect("the sink takes everything");
    (part, blocks)
}

#[tokio::test]
async fn content_larger_than_the_cache_is_pinned_and_stored_blocks_are_not_written_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(20_000)).expect("opens");
    let (part, blocks) = file(1, 100_000);
    for round in 0..2 {
        let before = disk.stats();
        let addition = Addition::begin(&disk).await.expect("begins");
        for block in &blocks {
            addition.put(block).await.expect("takes it");
        }
        let name = (round == 0).then_some("noise");
        let pins = addition.pin(&[part.cid, part.cid], name).await.expect("pins");
        assert_eq!((pins.len(), pins[0].root, pins[0].blocks), (1, part.cid, 26));
        assert_eq!((pins[0].state, pins[0].name.as_deref()), (PinState::Complete, Some("noise")));
        disk.flush().await.expect("flushes");
        audit(&disk);
        if round == 1 {
            assert_eq!(disk.stats(), before);
        }
    }
    for block in &blocks {
        assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
    }
}

#[tokio::test]
async fn blocks_of_a_dropped_addition_are_not_protected() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(1 << 20)).expect("opens");
    let addition = Addition::begin(&disk).await.expect("begins");
    addition.put(&noisy(1, 1_000)).await.expect("takes it");
    disk.flush().await.expect("flushes");
    assert!(disk.is_pinned(&key(&noisy(1, 1_000))).await.expect("reads"));
    drop(addition);
    disk.flush().await.expect("flushes");
    assert!(!disk.is_pinned(&key(&noisy(1, 1_000))).await.expect("reads"));

    let addition = Addition::begin(&disk).await.expect("begins");
    let root = *block_of(codec::DAG_PB, vec![]).cid();
    let error = addition.pin(&[root], None).await.expect_err("its block was never put");
    let AddError::Pin { root: named, error } = error else { panic!("{error}") };
    assert!(named == root && matches!(*error, PinError::Blocks(_)), "{error}");
    disk.flush().await.expect("flushes");
    audit(&disk);
}

/// A leaf that was not added but is cached is pinned without being read twice; one that turns out corrupt is missing.
#[tokio::test]
async fn leaves_that_were_cached_before_become_members() {
    for damaged in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = open_with(dir.path(), budget(1 << 20)).expect("opens");
        let (part, blocks) = file(3, 20_000);
        let (root, leaves) = blocks.split_last().expect("a root");
        cache(&disk, &leaves[..3]).await;
        if damaged {
            flip(&disk, &leaves[1]);
        }
        let addition = Addition::begin(&disk).await.expect("begins");
        for block in leaves[3..].iter().chain([root]) {
            addition.put(block).await.expect("takes it");
        }
        let pins = addition.pin(&[part.cid], None).await;
        disk.flush().await.expect("flushes");
        match pins {
            Ok(pins) => {
                assert!(!damaged);
                assert_eq!((pins[0].blocks, pins[0].state), (blocks.len() as u64, PinState::Complete));
                for block in &blocks {
                    assert!(disk.is_pinned(&key(block)).await.expect("reads"));
                    assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
                }
            }
            Err(error) => {
                assert!(damaged, "{error}");
                assert!(error.to_string().contains(&leaves[1].cid().to_string()), "{error}");
            }
        }
        audit(&disk);
    }
}
