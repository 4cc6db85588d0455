//! A single gateway whose log fails, or has a writer that it does not expect.

use crate::pinning::Meta;
use crate::pinning::index::{Index, StoredRequest};
use crate::pinning::record;
use crate::pinning::service::FollowUp;
use crate::pinning::tests::shared::{Fault, HeldChange, Site};
use crate::pinning::tests::*;
use cache::StoreError;
use cache::metadata_store::Change;
use futures::FutureExt as _;

fn sorted(mut entries: Vec<StoredRequest>) -> Vec<StoredRequest> {
    entries.sort_unstable_by_key(|entry| entry.created_ms);
    entries
}

/// The requests in memory, which must be those of the records.
fn requests(site: &Site) -> Vec<StoredRequest> {
    let known = sorted(site.services[0].index().all().cloned().collect());
    assert_eq!(known, sorted(record::load(&site.world.register).expect("reads").entries));
    known
}

async fn restart(site: &mut Site) {
    site.connections[0].repair();
    site.services[0] = site.connections[0].start(&site.world).await.expect("starts");
}

#[tokio::test]
async fn a_change_that_fails_changes_nothing() {
    let mut site = Site::single(World::new()).await;
    let (dags, alice) = ([0, 10, 20].map(|from| dag(&format!("dag {from}"), from..from + 2)), owner("alice"));
    let (pins, connection) = (Arc::clone(&site.services[0]), Arc::clone(&site.connections[0]));
    let pinned = pins.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    site.complete(0, &dags[0]).await.expect("is pinned");
    let failed = pins.request(&alice, wanted(&dags[1])).await.expect("is asked for");
    pins.take_down(&failed.root, "taken down").await.expect("fails it");
    let pending = pins.request(&alice, wanted(&dags[1])).await.expect("is asked for");
    let before = requests(&site);
    for change in 0..7 {
        connection.fail(Fault::Fails);
        let changed = match change {
            0 => pins.remove("alice", &pinned.id).await,
            1 => pins.remove_root("alice", &pinned.root).await.map(|_| ()),
            2 => pins.replace(&alice, &pinned.id, wanted(&dags[2])).await.map(|_| ()),
            3 => pins.request(&alice, wanted(&dags[2])).await.map(|_| ()),
            4 => pins.take_down(&pinned.root, "taken down").await.map(|_| ()),
            5 => pins.retry(&failed.id).await.map(|_| ()),
            _ => site.complete(0, &dags[1]).await,
        };
        assert!(matches!(changed, Err(PinsError::Store(StoreError::Io(_)))), "{change}: {changed:?}");
        assert_eq!(requests(&site), before, "{change}");
    }
    // It is stored, and its outcome could not be written: the start does it.
    restart(&mut site).await;
    let shown = site.services[0].get("alice", &pending.id).expect("is kept");
    assert_eq!((shown.status, requests(&site).len()), (Status::Pinned, 3));
    site.agrees().await;
}

/// A pin is removed. That it is complete cannot be written.
#[tokio::test]
async fn a_removal_whose_end_is_not_written_is_complete() {
    for (restarts, requests_again) in [(false, true), (true, false), (true, true)] {
        let mut site = Site::single(World::new()).await;
        let (blocks, alice) = (dag("one", 0..3), owner("alice"));
        let pins = Arc::clone(&site.services[0]);
        let request = pins.request(&alice, wanted(&blocks)).await.expect("is asked for");
        site.complete(0, &blocks).await.expect("is pinned");
        site.connections[0].fail(Fault::None);
        site.connections[0].fail(Fault::Fails);
        pins.remove("alice", &request.id).await.expect("removes");
        assert_eq!((site.world.pinned().await, requests(&site)), (vec![], vec![]));
        assert_eq!(record::load(&site.world.register).expect("reads").orphans.len(), 1);
        // A decision without changes does not depend on what is to be written.
        site.connections[0].fail(Fault::Fails);
        let removed = pins.remove("alice", &request.id).await;
        assert!(matches!(removed, Err(PinsError::NotFound)), "{removed:?}");
        site.connections[0].fail(Fault::Fails);
        assert_eq!(pins.remove_root("alice", &request.root).await.expect("there is none"), 0);
        let mut acknowledged = None;
        if requests_again {
            acknowledged = Some(pins.request(&alice, wanted(&blocks)).await.expect("is asked for"));
            site.complete(0, &blocks).await.expect("is pinned");
        }
        if restarts {
            restart(&mut site).await;
        }
        let entries = site.agrees().await;
        assert_eq!(entries.len(), usize::from(requests_again));
        if let Some(request) = acknowledged {
            let shown = site.services[0].get("alice", &request.id).expect("is kept");
            assert_eq!((shown.status, site.world.pinned().await), (Status::Pinned, vec![request.root]));
        }
    }
}

/// The block store fails when a pin is to be removed. It may have been requested again before.
#[tokio::test]
async fn a_removal_that_the_store_fails_is_completed_or_withdrawn() {
    for requests_again in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let blocks = dag("one", 0..3);
        {
            let site = Site::single(World::on_disk(dir.path())).await;
            let pins = Arc::clone(&site.services[0]);
            let request = pins.request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
            site.complete(0, &blocks).await.expect("is pinned");
            let mut removing = HeldChange::queue(&pins, Some(Arc::clone(&request.id)));
            removing.commit().await;
            // What follows from the change is done below.
            assert_eq!(std::mem::take(&mut *pins.follow_ups()), [FollowUp::Remove(request.root, 1)]);
            removing.end().await.expect("removes");
            if requests_again {
                let again = pins.request(&owner("bob"), wanted(&blocks)).await.expect("is asked for");
                assert_eq!(again.status, Status::Queued);
            }
            site.world.store.close().await.expect("closes");
            pins.follow_up(FollowUp::Remove(request.root, 1)).await;
            let is_removing = |index: &Index| index.is_removing(&request.root);
            assert!(!is_removing(&pins.index()), "the root is available");
            assert_eq!(requests(&site).len(), usize::from(requests_again));
        }
        let opens = async || {
            let options = cache::DiskOptions { free_bytes_min: 0, ..cache::DiskOptions::default() };
            cache::Disk::open(&dir.path().join("store"), options).ok()
        };
        drop(until("the store is released", opens).await);
        let site = Site::single(World::on_disk(dir.path())).await;
        let entries = site.agrees().await;
        assert_eq!(
            (entries.len(), site.world.pinned().await.len()),
            match requests_again {
                true => (1, 1),
                false => (0, 0),
            }
        );
        assert_eq!(site.services[0].counts().pinned, u64::from(requests_again));
    }
}

/// A defect: the service does not know all records. It decides nothing more, and no root waits.
#[tokio::test]
async fn a_writer_that_is_not_expected_is_an_error() {
    let mut site = Site::single(World::new()).await;
    let (blocks, alice) = (dag("one", 0..3), owner("alice"));
    let pins = Arc::clone(&site.services[0]);
    let request = pins.request(&alice, wanted(&blocks)).await.expect("is asked for");
    site.complete(0, &blocks).await.expect("is pinned");
    // It has removed a pin, which the next entry is to say.
    let other = dag("other", 3..6);
    let removed = pins.request(&alice, wanted(&other)).await.expect("is asked for");
    site.connections[0].fail(Fault::None);
    site.connections[0].fail(Fault::Fails);
    pins.remove("alice", &removed.id).await.expect("removes");
    site.world.register.write(vec![Change::Put(b"other/1".to_vec(), b"1".to_vec())]).await.expect("writes");
    for _ in 0..2 {
        let changed = pins.remove("alice", &request.id).await;
        assert!(matches!(changed, Err(PinsError::Store(StoreError::OtherWriter))), "{changed:?}");
        let unknown = pins.remove("alice", "unknown").await;
        assert!(matches!(unknown, Err(PinsError::Store(StoreError::OtherWriter))), "{unknown:?}");
    }
    for root in [request.root, removed.root] {
        assert!(!pins.index().is_removing(&root) && pins.protect(root).now_or_never().is_some());
    }
    assert_eq!(pins.get("alice", &request.id).map(|request| request.status), Some(Status::Pinned));
    restart(&mut site).await;
    let uploaded = site.services[0].record(&alice, request.root, None, Meta::new()).await;
    assert_eq!(uploaded.expect("is recorded").status, Status::Pinned);
    assert_eq!(site.agrees().await.len(), 2);
}
