//! The contract of `BlockSource`, tested with every source of this crate.

use super::suite::{Home, Kind, Setup};
use super::{cache, key, noisy, open};
use crate::{BlockStore as _, Disk, Ram, TierMetrics, Tiers};
use content::{AllowAll, Block, BlockSource, Cid, MemoryBlocks, SourceError, codec};
use futures::future::join_all;
use prometheus_client::registry::Registry;
use std::sync::Arc;

pub(super) fn tiers(ram: Ram, disk: &Disk) -> Tiers {
    Tiers::new(ram, disk.handle(), Arc::new(AllowAll), TierMetrics::register(&mut Registry::default()))
}

async fn check(name: &str, source: &dyn BlockSource, held: &Block, absent: &Cid) {
    let hash = *held.cid().hash();
    let names = [*held.cid(), Cid::new_v1(codec::DAG_PB, hash), Cid::new_v0(hash).expect("sha2-256")];
    for cid in names {
        let block = source.get(&cid).await.expect(name);
        assert_eq!((block.cid(), block.data()), (&cid, held.data()), "{name}");
        assert_eq!(source.has(&cid).await, Ok(true), "{name}");
        if let Some(peeked) = source.peek(&cid) {
            assert_eq!(peeked, block, "{name}");
        }
    }
    assert_eq!(source.get(absent).await, Err(SourceError::NotFound { cid: *absent }), "{name}");
    assert_eq!(source.has(absent).await, Ok(false), "{name}");
    assert_eq!(source.peek(absent), None, "{name}");

    let inline = content::cid::parse("bafkqaddjnzzxazldoqwxizltoq").expect("an identity CID");
    assert_eq!(source.get(&inline).await.ok(), Block::inline(&inline), "{name}");
    assert_eq!(source.has(&inline).await, Ok(true), "{name}");

    drop(source.get(held.cid()));
    let mut left = source.get(absent);
    _ = futures::poll!(&mut left);
    drop(left);
    let gets = join_all((0..50).map(|_| source.get(held.cid()))).await;
    assert!(gets.iter().all(|got| got.as_ref().is_ok_and(|block| block.data() == held.data())), "{name}");
}

#[tokio::test]
async fn every_source_keeps_the_contract() {
    let dir = tempfile::tempdir().expect("a directory");
    let absent = *noisy(2, 100).cid();
    for len in [0, 1, 600, 5_000, 300_000, content::MAX_BLOCK_BYTES] {
        let held = noisy(len as u64, len);
        let ram = Ram::new(1 << 24);
        ram.insert(key(&held), held.data());
        check("ram", &ram, &held, &absent).await;

        let disk = open(&dir.path().join(len.to_string()));
        cache(&disk, std::slice::from_ref(&held)).await;
        check("disk", &disk, &held, &absent).await;
        for kind in [Kind::Flat, Kind::Memory] {
            let home = Home::new(kind);
            let store = home.open(Setup::default()).await;
            store.cache(std::slice::from_ref(&held)).await;
            check(&format!("{kind:?}"), &*store, &held, &absent).await;
        }

        check("local, in RAM", &tiers(ram.clone(), &disk).local(), &held, &absent).await;
        check("local, on disk", &tiers(Ram::new(0), &disk).local(), &held, &absent).await;
        let nothing = Arc::new(MemoryBlocks::new());
        check("through, in RAM", &tiers(ram, &disk).through(nothing.clone()), &held, &absent).await;
        check("through, on disk", &tiers(Ram::new(1 << 24), &disk).through(nothing), &held, &absent).await;
        let empty = open(&dir.path().join(format!("{len} empty")));
        let upstream: Arc<MemoryBlocks> = Arc::new([held.clone()].into_iter().collect());
        let fetching = tiers(Ram::new(1 << 24), &empty).through(upstream);
        fetching.get(held.cid()).await.expect("fetches");
        check("through, fetched", &fetching, &held, &absent).await;
    }
}
