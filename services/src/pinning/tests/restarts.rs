//! Restarts.

use crate::pinning::index::PinOutcome;
use crate::pinning::record::{Orphan, PinChange};
use crate::pinning::tests::*;
use crate::pinning::{Filter, OPERATOR, record};
use crate::small_disk::SmallDisk;
use cache::PinState;
use cache::metadata_store::Change;

async fn store(world: &World, blocks: &[Block], name: &str) {
    let supply = futures::stream::iter(blocks.iter().cloned().map(Ok::<_, SourceError>));
    world.store.pin_recursive(*blocks[0].cid(), Some(name.to_owned()), supply).await.expect("pins");
}

fn written(change: PinChange) -> Change {
    change.encode().expect("can be written")
}

fn orphan(root: Cid, at_ms: u64) -> Change {
    written(PinChange::Orphan(root, Orphan { at_ms, removed_by: None }))
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let blocks = dag("one", 0..5);
    let missing = dag("missing", 0..1);
    let meta: crate::pinning::Meta = [("app".to_owned(), "7".to_owned())].into();
    let (pinned, queued, failed) = {
        let world = World::on_disk(dir.path());
        world.upstream.has(&blocks);
        let pins = world.start().await;
        let wanted = PinParameters { meta, ..named(&blocks, "name") };
        let pinned = pin(&pins, &owner("alice"), wanted).await;
        let queued =
            pins.request(&owner("alice"), crate::pinning::tests::wanted(&missing)).await.expect("is asked for");
        let poor = Owner { bytes_max: Some(1), ..owner("poor") };
        let unlucky = dag("unlucky", 0..2);
        world.upstream.has(&unlucky);
        let failed = pins.request(&poor, crate::pinning::tests::wanted(&unlucky)).await.expect("is asked for");
        let failed = becomes(&pins, &failed, Status::Failed).await;
        pins.stop().await;
        world.store.close().await.expect("closes");
        (pinned, queued, failed)
    };
    let world = World::on_disk(dir.path());
    let pins = world.start().await;
    assert_eq!(pins.get("alice", &pinned.id).as_ref(), Some(&pinned));
    assert_eq!(pins.get("poor", &failed.id).as_ref(), Some(&failed));
    assert_eq!(pins.used("alice").bytes, bytes_of(&blocks));
    world.upstream.has(&missing);
    becomes(&pins, &queued, Status::Pinned).await;
    let newest = pins.request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
    assert!(newest.created > queued.created && newest.status == Status::Pinned);
}

#[tokio::test]
async fn an_interrupted_fetch_continues() {
    let dir = tempfile::tempdir().expect("a directory");
    let blocks = dag("one", 0..100);
    let id = {
        let mut world = World::on_disk(dir.path());
        world.upstream = Upstream::new(60);
        world.upstream.has(&blocks);
        let pins = world.start().await;
        let request = pins.request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
        until("some came", async || pins.get("alice", &request.id).filter(|now| now.progress.blocks == 60)).await;
        pins.stop().await;
        world.store.flush().await.expect("flushes");
        // No orderly end, as when the process is killed: the handles are dropped without being closed.
        request.id
    };
    let mut world = World::on_disk(dir.path());
    world.upstream = Upstream::new(1000);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let now = pins.get("alice", &id).expect("is there");
    assert_eq!(now.progress.blocks, 60, "its progress is known immediately");
    becomes(&pins, &now, Status::Pinned).await;
    assert_eq!(world.upstream.asked(), 41);
}

#[tokio::test]
async fn pins_without_requests_belong_to_the_operator() {
    let world = World::new();
    let (first, second) = (dag("first", 0..3), dag("second", 3..6));
    store(&world, &first, "first").await;
    store(&world, &second, "second").await;
    let pins = world.start().await;
    let page = pins.list(OPERATOR, &Filter { limit: 10, ..Filter::default() }).await;
    let names: Vec<_> = page.requests.iter().map(|request| request.name.as_deref().expect("a name")).collect();
    assert_eq!((page.count, names), (2, vec!["second", "first"]));
    assert_eq!(pins.used(OPERATOR).bytes, bytes_of(&first) + bytes_of(&second));
    pins.remove(OPERATOR, &page.requests[0].id).await.expect("removes");
    assert_eq!(world.pinned().await, [*first[0].cid()]);
    pins.stop().await;
    // The same pin is the same request.
    let pins = world.start().await;
    assert_eq!(pins.get(OPERATOR, &page.requests[1].id).as_ref(), Some(&page.requests[1]));
    pins.stop().await;
    // A pin that was removed while no service ran is gone.
    world.store.remove_pin(first[0].cid()).await.expect("removes");
    let pins = world.start().await;
    assert_eq!(pins.list(OPERATOR, &Filter::default()).await.count, 0);
}

#[tokio::test]
async fn blocks_that_the_store_lost_are_fetched_again() {
    let world = World::new();
    let blocks = dag("one", 0..3);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let request = pin(&pins, &owner("alice"), wanted(&blocks)).await;
    pins.stop().await;
    world.store.remove_pin(blocks[0].cid()).await.expect("removes");
    let pins = world.start().await;
    becomes(&pins, &request, Status::Pinned).await;
    assert_eq!(world.store.pins().await.expect("reads")[0].state, PinState::Complete);
}

#[tokio::test]
async fn an_interrupted_removal_is_completed() {
    let world = World::new();
    let (gone, kept, later) = (dag("gone", 0..3), dag("kept", 3..6), dag("later", 6..9));
    store(&world, &gone, "gone").await;
    store(&world, &kept, "kept").await;
    store(&world, &later, "later").await;
    // The pin metadata store when a process is killed between the change and the removal of the pin; and when the pin
    // was removed and created again.
    let far = crate::pinning::service::now_ms() + 60_000;
    let orphans = [(*gone[0].cid(), far), (*later[0].cid(), 0)];
    let mut changes = orphans.map(|(root, at)| orphan(root, at)).to_vec();
    let outcome = PinOutcome::Failed("beyond its quota".into());
    let failed = model::entry(7, "alice", *gone[0].cid(), outcome, None);
    changes.push(written(PinChange::Request(failed)));
    world.register.write(changes).await.expect("writes");
    let pins = world.start().await;
    assert_eq!(pins.list(OPERATOR, &Filter::default()).await.count, 2);
    assert!(!world.pinned().await.contains(gone[0].cid()));
    assert_eq!(record::load(&world.register).expect("reads").orphans, []);
    let again = pins.request(&owner("alice"), wanted(&gone)).await.expect("is asked for");
    assert_ne!(again.status, Status::Pinned, "it is no longer stored");
}

#[tokio::test]
async fn a_pin_that_was_completed_but_not_recorded_is_pinned() {
    let world = World::new();
    let blocks = dag("one", 0..3);
    let pins = world.start().await;
    let request = pins.request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
    pins.stop().await;
    store(&world, &blocks, "").await;
    let pins = world.start().await;
    let now = pins.get("alice", &request.id).expect("is there");
    assert_eq!(now.status, Status::Pinned);
    assert_eq!(world.pinned().await.len(), 1);
}

#[tokio::test]
async fn a_damaged_pin_store_is_rebuilt_and_no_pin_is_lost() {
    const PINS: u64 = 60;
    let dir = tempfile::tempdir().expect("a directory");
    let alice = owner("alice");
    {
        let world = World::on_disk(dir.path());
        let pins = world.start().await;
        for number in 0..PINS {
            let blocks = dag(&format!("dag {number}"), number * 10..number * 10 + 2);
            world.upstream.has(&blocks);
            pin(
                &pins,
                &alice,
                PinParameters { meta: [("text".to_owned(), "x".repeat(2_000))].into(), ..wanted(&blocks) },
            )
            .await;
        }
        pins.stop().await;
        world.store.close().await.expect("closes");
    }
    let log = longest_log(&dir.path().join("pins"));
    let mut bytes = std::fs::read(&log).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xff);
    std::fs::write(&log, bytes).expect("writes");

    let world = World::on_disk(dir.path());
    let pins = world.start().await;
    let damage = pins.damage().expect("it is told of");
    let kept = damage.salvage.as_ref().and_then(|salvage| salvage.kept.clone()).expect("the damaged files are kept");
    assert!(kept.join(log.file_name().expect("a name")).exists());
    let (own, operators) = (pins.used("alice").pins, pins.used(OPERATOR).pins);
    assert!(own > 0 && operators > 0 && own + operators == PINS, "{own} and {operators}");
    assert_eq!(damage.taken_in.len() as u64, operators, "each pin that lost its owner is reported");
    assert_eq!((pins.counts().pinned, world.pinned().await.len() as u64), (PINS, PINS));
    let blocks = dag("later", 0..1);
    world.upstream.has(&blocks);
    pin(&pins, &alice, wanted(&blocks)).await;
    pins.stop().await;
    let pins = world.start().await;
    assert_eq!(pins.counts().pinned, PINS + 1);
    pins.stop().await;
}

/// The record of the last change is damaged, which RocksDB takes for one that was never acknowledged.
#[tokio::test]
async fn a_pin_whose_record_was_the_last_of_a_damaged_log_stays_pinned() {
    let dir = tempfile::tempdir().expect("a directory");
    let blocks = dag("one", 0..3);
    let root = *blocks[0].cid();
    {
        let world = World::on_disk(dir.path());
        store(&world, &blocks, "one").await;
        // A removal of the pin was decided and not completed. Then it was requested again.
        let far = crate::pinning::service::now_ms() + 60_000;
        world.register.write(vec![orphan(root, far)]).await.expect("writes");
        let again = written(PinChange::Request(model::entry(7, "alice", root, PinOutcome::Pinned, None)));
        world.register.write(vec![again, written(PinChange::RemoveOrphan(root))]).await.expect("writes");
        world.store.close().await.expect("closes");
    }
    let log = longest_log(&dir.path().join("pins"));
    let mut bytes = std::fs::read(&log).expect("reads");
    *bytes.last_mut().expect("is not empty") ^= 1;
    std::fs::write(&log, bytes).expect("writes");

    let world = World::on_disk(dir.path());
    let pins = world.start().await;
    assert_eq!(world.pinned().await, [root], "an acknowledged pin is not removed");
    assert_eq!(pins.damage().expect("it is reported").taken_in, [root]);
    assert_eq!(pins.of_root(OPERATOR, &root).len(), 1);
    pins.stop().await;
    let pins = world.start().await;
    assert_eq!((pins.counts().pinned, world.pinned().await), (1, vec![root]));
    pins.stop().await;
}

/// The longest log of a pin metadata store.
fn longest_log(dir: &std::path::Path) -> std::path::PathBuf {
    let files = std::fs::read_dir(dir).expect("lists").map(|entry| entry.expect("lists").path());
    let logs = files.filter(|path| path.extension().is_some_and(|end| end == "log"));
    logs.max_by_key(|path| std::fs::metadata(path).expect("is there").len()).expect("a log")
}

/// Other files fill the disk to its last byte, and everything stored is pinned.
#[tokio::test]
async fn content_is_unpinned_on_a_full_disk() {
    const PINS: u64 = 60;
    let Some(disk) = SmallDisk::mount(96) else { return };
    let mut requests = Vec::new();
    {
        let world = World::on_disk(&disk.path());
        let pins = world.start().await;
        for number in 0..PINS {
            let blocks = dag(&format!("dag {number}"), number * 10..number * 10 + 3);
            world.upstream.has(&blocks);
            requests.push(pin(&pins, &owner("alice"), wanted(&blocks)).await);
        }
        _ = disk.fill();
        for request in requests.drain(..20) {
            pins.remove("alice", &request.id).await.expect("the reserve is for this");
        }
        pins.stop().await;
        world.store.close().await.expect("closes");
    }
    // The list of pins and the store open with what is left of their reserves.
    let world = World::on_disk(&disk.path());
    let pins = world.start().await;
    for request in requests.drain(..20) {
        pins.remove("alice", &request.id).await.expect("the reserve is for this");
    }
    let mut kept: Vec<_> = requests.iter().map(|request| request.root).collect();
    kept.sort_unstable();
    assert_eq!(world.pinned().await, kept);
    assert_eq!(pins.counts().pinned, kept.len() as u64);
    pins.stop().await;
}

/// The reserve was released, and other files took its space.
#[tokio::test]
async fn an_unpin_without_any_space_is_answered() {
    let Some(disk) = SmallDisk::mount(96) else { return };
    let world = World::on_disk(&disk.path());
    let pins = world.start().await;
    let mut requests = Vec::new();
    for number in 0..40 {
        let blocks = dag(&format!("dag {number}"), number * 10..number * 10 + 3);
        world.upstream.has(&blocks);
        requests.push(pin(&pins, &owner("alice"), wanted(&blocks)).await);
    }
    _ = disk.fill();
    pins.remove("alice", &requests.remove(0).id).await.expect("the reserve is for this");
    let filling = disk.fill();
    for request in &requests[..20] {
        let removed = tokio::time::timeout(PATIENCE, pins.remove("alice", &request.id)).await.expect("is answered");
        assert!(removed.map_or_else(|error| matches!(error, PinsError::Store(error) if error.is_full()), |()| true));
    }
    std::fs::remove_file(filling).expect("removes");
    for request in requests.drain(..20) {
        let gone = async || match pins.remove("alice", &request.id).await {
            Ok(()) | Err(PinsError::NotFound) => Some(()),
            Err(_) => None,
        };
        until("there is space again", gone).await;
    }
    pins.stop().await;
    // It completes removals that failed.
    let pins = world.start().await;
    let mut kept: Vec<_> = requests.iter().map(|request| request.root).collect();
    kept.sort_unstable();
    assert_eq!(world.pinned().await, kept);
    pins.stop().await;
}

/// The last blocks of a pin filled the disk, so that it could not be recorded as pinned.
#[tokio::test]
async fn a_full_disk_does_not_prevent_the_start() {
    let Some(disk) = SmallDisk::mount(24) else { return };
    let dir = disk.path().join("pins");
    let (blocks, gone) = (dag("one", 0..3), dag("gone", 3..6));
    let mut world = World { register: MetadataStore::open_or_salvage(&dir).expect("opens"), ..World::new() };
    world.upstream = Upstream::new(0);
    let pins = world.start().await;
    let request = pins.request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
    pins.stop().await;
    drop(pins);
    store(&world, &blocks, "one").await;
    store(&world, &gone, "gone").await;
    let far = crate::pinning::service::now_ms() + 60_000;
    world.register.write(vec![orphan(*gone[0].cid(), far)]).await.expect("writes");
    world.register = MetadataStore::memory();
    let filling = disk.fill();
    world.register = until("the former is closed", async || MetadataStore::open_or_salvage(&dir).ok()).await;
    let pins = world.start().await;
    let now = pins.get("alice", &request.id).expect("is there");
    assert_eq!(now.progress.blocks, 4, "{now:?}");
    std::fs::remove_file(filling).expect("removes");
    becomes(&pins, &request, Status::Pinned).await;
    pins.stop().await;
    let pins = world.start().await;
    assert_eq!(pins.get("alice", &request.id).map(|request| request.status), Some(Status::Pinned));
}
