use super::super::{Random, block_of, key, noise, noisy, raw, supply};
use super::{Home, Kind, Opened, Setup, on_every_store};
use crate::{Held, PinError, StoreError};
use bytes::Bytes;
use content::stored::Shape;
use content::{Block, Cid, SourceError, codec};
use futures::FutureExt as _;
use std::sync::Arc;

on_every_store!(
    stored_blocks_are_found_by_every_cid_of_their_hash,
    blocks_in_memory_are_read_without_waiting,
    missing_blocks_are_not_found,
    identity_cids_need_no_space,
    blocks_and_figures_are_durable,
    a_dropped_store_writes_its_queue,
    a_closed_store_reads_and_rejects_writes,
    a_store_cannot_be_opened_twice,
    writes_beyond_the_queue_wait_and_are_all_written,
    corrupt_values_are_never_served_and_can_be_stored_again,
    readers_and_writers_run_concurrently,
);

/// Blocks of every form: small, large, the largest, empty; compressible and not; a leaf with an envelope.
fn samples() -> Vec<Block> {
    let text = b"words words words ".repeat(1_000);
    let mut blocks = vec![noisy(1, 10), noisy(2, 5_000), noisy(3, 300_000), noisy(4, content::MAX_BLOCK_BYTES)];
    blocks.extend([raw(Bytes::new()), raw(text.clone()), leaf(&text), leaf(&noise(5, 3_000))]);
    blocks
}

/// A hand-written dag-pb leaf of a UnixFS file: type, data and file size in nested messages.
fn leaf(data: &[u8]) -> Block {
    let varint = |mut number: usize| {
        let mut out = Vec::new();
        while number >= 0x80 {
            out.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
            number >>= 7;
        }
        out.push(u8::try_from(number).expect("seven bits"));
        out
    };
    let length = varint(data.len());
    let unixfs = [&[0x08, 0x02, 0x12][..], &length, data, &[0x18], &length].concat();
    block_of(codec::DAG_PB, [&[0x0a][..], &varint(unixfs.len()), &unixfs].concat())
}

async fn stored_blocks_are_found_by_every_cid_of_their_hash(home: Home) {
    let store = home.open(Setup::default()).await;
    let blocks = samples();
    store.cache(&blocks).await;
    store.cache(&blocks).await;
    assert_eq!((store.stats().blocks, store.stats().dropped_writes), (8, 0), "each is stored once");
    let shapes = store.shapes(blocks.iter().map(key).collect()).await.expect("reads");
    for (block, shape) in blocks.iter().zip(shapes) {
        let shape = shape.expect("it is held");
        for codec in [codec::RAW, codec::DAG_PB, codec::DAG_CBOR] {
            let cid = Cid::new_v1(codec, *block.cid().hash());
            let got = store.get(&cid).await.expect("it is held");
            assert_eq!((got.cid(), got.data()), (&cid, block.data()));
            assert_eq!(store.has(&cid).await, Ok(true));
            let stored = store.get_stored(&cid).await.expect("reads").expect("it is held");
            assert_eq!((stored.shape(), stored.block().as_ref()), (shape, Ok(block.data())));
        }
        assert_eq!(store.find(&key(block)).await.expect("reads").as_ref(), Some(block.data()));
        assert_eq!(store.look(&key(block)).await.expect("reads").as_ref(), Some(block.data()));
        let stored = store.stored(&key(block)).await.expect("reads").expect("it is held");
        assert_eq!((stored.shape(), stored.block().as_ref()), (shape, Ok(block.data())));
        assert_eq!(shape.block_bytes(), block.data().len());
        assert!(!store.is_pinned(&key(block)).await.expect("reads"));
    }
    let shapes = store.shapes(blocks[5..7].iter().map(key).collect()).await.expect("reads");
    assert!(matches!(shapes[..], [Some(Shape::Frame { .. }), Some(Shape::Envelope { .. })]), "{shapes:?}");
    let figures = store.figures().await.expect("reads");
    assert_eq!((figures.raw.blocks, figures.framed.blocks, figures.enveloped.blocks), (6, 1, 1));
    let bytes: usize = blocks.iter().map(|block| block.data().len()).sum();
    assert_eq!((figures.cached.blocks, figures.cached.block_bytes), (8, bytes as u64));
    store.settle().await;
}

async fn blocks_in_memory_are_read_without_waiting(home: Home) {
    let store = home.open(Setup::default()).await;
    let (blocks, absent) = (samples(), noisy(100, 1_000));
    store.cache(&blocks).await;
    for block in &blocks {
        for codec in [codec::RAW, codec::DAG_PB] {
            let cid = Cid::new_v1(codec, *block.cid().hash());
            let read = store.read_now(&cid);
            match home.kind {
                // Depends on the page cache, which usually has recent writes.
                Kind::Rocksdb => {}
                // The file would have to be opened first, which may block.
                Kind::Flat => assert_eq!(read, None, "{cid}"),
                Kind::Memory => assert!(read.is_some(), "{cid}"),
            }
            assert!(read.is_none_or(|read| (read.cid(), read.data()) == (&cid, block.data())));
        }
    }
    assert_eq!(store.read_now(absent.cid()), None);
    if home.kind != Kind::Rocksdb {
        let keys: Vec<_> = blocks.iter().chain([&absent]).map(key).collect();
        let shapes = store.shapes(keys).now_or_never().expect("what was written is known").expect("reads");
        let lengths: Vec<_> = shapes.iter().map(|shape| shape.map(Shape::block_bytes)).collect();
        let expected = blocks.iter().map(|block| Some(block.data().len())).chain([None]);
        assert_eq!(lengths, expected.collect::<Vec<_>>());
    }
    store.settle().await;
}

async fn missing_blocks_are_not_found(home: Home) {
    let store = home.open(Setup::default()).await;
    let (here, absent) = (noisy(1, 1_000), noisy(2, 1_000));
    store.cache(std::slice::from_ref(&here)).await;
    assert_eq!(store.get(absent.cid()).await, Err(SourceError::NotFound { cid: *absent.cid() }));
    assert_eq!(store.has(absent.cid()).await, Ok(false));
    assert_eq!(store.find(&key(&absent)).await.expect("reads"), None);
    assert_eq!(store.look(&key(&absent)).await.expect("reads"), None);
    assert_eq!(store.stored(&key(&absent)).await.expect("reads"), None);
    assert_eq!(store.get_stored(absent.cid()).await, Ok(None));
    let shapes = store.shapes(vec![key(&absent), key(&here), key(&absent)]).await.expect("reads");
    assert!(matches!(shapes[..], [None, Some(Shape::Raw { block_bytes: 1_000 }), None]), "{shapes:?}");
    assert!(!store.is_pinned(&key(&absent)).await.expect("reads"));
    assert_eq!(store.pins().await.expect("lists"), []);
    assert!(!store.remove_pin(absent.cid()).await.expect("there is none"));
}

async fn identity_cids_need_no_space(home: Home) {
    let store = home.open(Setup::default()).await;
    let inline = content::cid::parse("bafkqaddjnzzxazldoqwxizltoq").expect("an identity CID");
    let block = Block::inline(&inline).expect("inline");
    store.cache(std::slice::from_ref(&block)).await;
    assert_eq!(store.stats().blocks, 0);
    assert_eq!(store.get(&inline).await, Ok(block.clone()));
    assert_eq!(store.get_stored(&inline).await, Ok(None));
    assert_eq!(store.has(&inline).await, Ok(true));
    let pin = store.pin_recursive(inline, None, supply(&[block])).await.expect("pins");
    assert_eq!(pin.blocks, 0, "an identity CID has no stored block");
    store.settle().await;
}

async fn blocks_and_figures_are_durable(home: Home) {
    let blocks = samples();
    let store = home.open(Setup::default()).await;
    store.cache(&blocks).await;
    store.pin_recursive(*blocks[1].cid(), None, supply(&blocks[1..3])).await.expect("pins");
    let (stats, figures) = (store.stats(), store.figures().await.expect("reads"));
    store.close().await.expect("closes");
    store.shut().await;
    if !home.lasts() {
        assert_eq!(home.open(Setup::default()).await.stats().blocks, 0);
        return;
    }
    let store = home.open(Setup::default()).await;
    let again = store.stats();
    assert_eq!(
        (again.blocks, again.cached_bytes, again.pinned_bytes),
        (stats.blocks, stats.cached_bytes, stats.pinned_bytes)
    );
    assert!(store.holds_all(&blocks).await);
    let shapes = store.shapes(blocks.iter().map(key).collect()).await.expect("reads");
    for (block, shape) in blocks.iter().zip(shapes) {
        let stored = store.stored(&key(block)).await.expect("reads").expect("it is held");
        assert_eq!(Some(stored.shape()), shape);
    }
    assert_eq!(store.figures().await.expect("reads"), figures);
    store.settle().await;
}

async fn a_dropped_store_writes_its_queue(home: Home) {
    let blocks: Vec<_> = (0..50).map(|seed| noisy(seed, 10_000)).collect();
    let store = home.open(Setup::default()).await;
    for block in &blocks {
        store.put_cached(block.clone()).await;
    }
    drop(store);
    let store = home.open(Setup::default()).await;
    assert_eq!(store.holds_all(&blocks).await, home.lasts());
}

async fn a_closed_store_reads_and_rejects_writes(home: Home) {
    let store = home.open(Setup::default()).await;
    let (old, new) = (noisy(1, 100), noisy(2, 100));
    store.cache(std::slice::from_ref(&old)).await;
    store.close().await.expect("closes");
    store.close().await.expect("closing twice is not an error");
    store.put_cached(new.clone()).await;
    assert_eq!(store.stats().dropped_writes, 1);
    assert!(store.holds(&old).await);
    assert!(!store.holds(&new).await);
    assert!(matches!(store.flush().await, Err(StoreError::Closed)));
    assert!(matches!(store.remove_pin(old.cid()).await, Err(StoreError::Closed)));
    let pinned = store.pin_recursive(*old.cid(), None, supply(&[old])).await;
    assert!(matches!(pinned, Err(PinError::Store(StoreError::Closed))));
}

async fn a_store_cannot_be_opened_twice(home: Home) {
    let store = home.open(Setup::default()).await;
    if home.lasts() {
        let error = home.try_open(Setup::default()).map(drop).expect_err("in use");
        assert!(matches!(&error, StoreError::InUse { dir } if dir == home.dir.path()));
        let message = error.to_string();
        let dir = home.dir.path().to_string_lossy();
        assert!(message.contains(&*dir) && message.contains("stop that process"), "{message}");
    }
    let handle = store.handle();
    drop(store);
    if home.lasts() {
        assert!(home.try_open(Setup::default()).is_err(), "another handle is open");
    }
    drop(handle);
    drop(home.open(Setup::default()).await);
}

async fn writes_beyond_the_queue_wait_and_are_all_written(home: Home) {
    let store = home.open(Setup { queue_bytes_max: 0, ..Setup::default() }).await;
    let blocks: Vec<_> = (0..40).map(|seed| noisy(seed, 1 << 20)).collect();
    store.cache(&blocks).await;
    assert_eq!((store.stats().blocks, store.stats().dropped_writes), (40, 0));
    store.settle().await;
}

async fn corrupt_values_are_never_served_and_can_be_stored_again(home: Home) {
    if !home.lasts() {
        return;
    }
    for (round, len) in [100_000, 3_000].into_iter().enumerate() {
        let blocks: Vec<_> = (0..3).map(|seed| noisy(10 * round as u64 + seed, len)).collect();
        let store = home.open(Setup::default()).await;
        store.pin_recursive(*blocks[0].cid(), None, supply(&blocks[..1])).await.expect("pins");
        store.cache(&blocks).await;
        let held = store.stats().blocks;
        store.shut().await;
        blocks[..2].iter().for_each(|block| home.damage(block));
        let store = home.open(Setup::default()).await;
        for block in &blocks[..2] {
            assert_eq!(store.look(&key(block)).await.expect("reads"), None);
            assert!(!store.holds(block).await);
            assert!(!store.holds(block).await);
        }
        assert!(store.holds(&blocks[2]).await);
        store.flush().await.expect("flushes");
        assert_eq!(store.stats().corrupt_blocks, 2, "each is counted once");
        assert_eq!(store.stats().blocks, held - 2);
        assert_eq!(store.has(blocks[1].cid()).await, Ok(false));
        store.cache(&blocks).await;
        assert!(store.holds_all(&blocks).await);
        assert!(store.is_pinned(&key(&blocks[0])).await.expect("reads"), "it comes back as the member that it was");
        assert!(!store.is_pinned(&key(&blocks[1])).await.expect("reads"));
        let mut pinned = Vec::new();
        store.visit_keys(Held::Pinned, &mut |key| pinned.push(key.to_vec())).expect("reads");
        assert!(pinned.contains(&key(&blocks[0]).to_bytes()));
        store.settle().await;
        store.shut().await;
    }
}

async fn readers_and_writers_run_concurrently(home: Home) {
    let store = Arc::new(home.open_for(50 * home.cost(6_000)).await);
    let blocks: Arc<Vec<Block>> = Arc::new((0..100).map(|seed| noisy(seed, 6_000)).collect());
    let work = |seed| {
        let (store, blocks) = (Arc::clone(&store), Arc::clone(&blocks));
        async move {
            let mut random = Random(seed);
            for _ in 0..300 {
                let block = &blocks[usize::try_from(random.below(100)).expect("small")];
                match random.below(20) {
                    0 => {
                        let only = supply(std::slice::from_ref(block));
                        let pinned = store.pin_recursive(*block.cid(), None, only).await;
                        assert!(matches!(pinned, Ok(_) | Err(PinError::Removed { .. })), "{pinned:?}");
                    }
                    1 => _ = store.remove_pin(block.cid()).await.expect("removes"),
                    _ if is_readable(&store, block).await => {}
                    _ => store.put_cached(block.clone()).await,
                }
            }
        }
    };
    let tasks: Vec<_> = (0..8).map(|seed| tokio::spawn(work(seed))).collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    store.settle().await;
    for pin in store.pins().await.expect("lists") {
        assert!(store.has(&pin.root).await.expect("reads"), "pinned blocks are stored");
    }
    assert!(store.stats().cached_bytes <= 50 * home.cost(6_000));
}

/// Whether the block could be read; it may be evicted at any time.
async fn is_readable(store: &Opened, block: &Block) -> bool {
    let got = store.get(block.cid()).await;
    got.is_ok_and(|got| {
        assert_eq!(got.data(), block.data());
        true
    })
}
