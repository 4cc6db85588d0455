//! The blocks that gateways share: their index in PostgreSQL, their objects in a folder.

use crate::support::{Postgres, TIMEOUT, until};
use bytes::Bytes;
use cache::{PinError, PinState, StoreError};
use content::stored::{CompressionOptions, Encoder};
use content::{Block, BlockKey, Cid, codec, hashes};
use futures::StreamExt as _;
use objects::{Objects, StoreOptions};
use site::blocks::{BlockIndex, Listed, ObjectId, SharedBlock, SharedBlocks, index_suite};
use site::database::{Database, DatabaseIndex, IndexOptions};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Gateways that work at the same time, and what each of them does.
const GATEWAYS: usize = 4;
const CHANGES: usize = 40;
/// Blocks that there are. A DAG has so many of them.
const BLOCKS: u64 = 12;
const DAG_BLOCKS: u64 = 4;

pub fn index(server: &Postgres, site: &str) -> Arc<dyn BlockIndex> {
    let database = Database::new(&server.options(site)).expect("the settings are valid");
    Arc::new(DatabaseIndex::new(database, IndexOptions { used_precision: Duration::ZERO }))
}

pub fn folder(dir: &TempDir) -> Arc<dyn Objects> {
    let url = format!("file://{}", dir.path().display());
    objects::open(&url, &StoreOptions::default()).expect("opens")
}

fn content_of(number: u64) -> Bytes {
    Bytes::from(number.to_string().repeat(100))
}

fn block(number: u64) -> (Cid, SharedBlock) {
    let block = Block::of(codec::RAW, hashes::SHA2_256, 32, content_of(number)).expect("a block");
    let stored = Encoder::new(CompressionOptions::default()).expect("an encoder").encode(&block);
    (*block.cid(), SharedBlock { key: BlockKey::of(block.cid()).expect("has a key"), stored })
}

/// The blocks of a DAG, with its root first.
fn dag(root: u64) -> Vec<(Cid, SharedBlock)> {
    (root..root + DAG_BLOCKS).map(|number| block(number % BLOCKS)).collect()
}

async fn pin(shared: &SharedBlocks, root: u64) -> Result<(), PinError> {
    let blocks = dag(root);
    let attempt = shared.begin_pin(blocks[0].0, None).await?;
    shared.put(blocks.into_iter().map(|(_, block)| block).collect(), Some(&attempt)).await?;
    let summary = shared.finish_pin(attempt).await?;
    assert_eq!((summary.state, summary.blocks), (PinState::Complete, DAG_BLOCKS));
    Ok(())
}

/// Reads a DAG. Whether all of its blocks are there.
async fn has_all(shared: &SharedBlocks, root: u64) -> Result<bool, StoreError> {
    let keys: Vec<BlockKey> = dag(root).iter().map(|(_, block)| block.key).collect();
    let mut has_all = true;
    for (number, stored) in (root..).zip(shared.get(&keys).await) {
        let stored = stored?;
        let is_block = |content| content == content_of(number % BLOCKS);
        assert!(stored.as_ref().is_none_or(|stored| stored.block().is_ok_and(is_block)), "a wrong block");
        has_all &= stored.is_some();
    }
    Ok(has_all)
}

/// Those in the folder.
async fn objects_in(objects: &dyn Objects) -> BTreeSet<ObjectId> {
    let listed: Vec<_> = objects.list("v1/").collect().await;
    let name = |listed: Result<objects::ListedObject, _>| listed.expect("is listed").name;
    listed.into_iter().map(name).map(|name| ObjectId::of_name(&name).expect("is that of a block")).collect()
}

/// Those that the index has.
async fn objects_of(index: &dyn BlockIndex) -> BTreeSet<ObjectId> {
    let mut objects = BTreeSet::new();
    for slot in 0..=u8::MAX {
        objects.extend(index.objects_of_slot(slot, Listed::Stored, None, 1000).await.expect("is read"));
    }
    objects
}

/// A site with a server and a folder.
struct Site {
    server: Postgres,
    dir: TempDir,
}

impl Site {
    async fn new() -> Self {
        let server = Postgres::start().await;
        drop(server.open("blocks").await);
        Self { server, dir: TempDir::new().expect("the temporary folder is writable") }
    }

    /// A gateway, with connections of its own.
    async fn gateway(&self) -> SharedBlocks {
        let opened = SharedBlocks::open(index(&self.server, "blocks"), folder(&self.dir), "blocks").await;
        opened.expect("opens").with_pending_age(Duration::ZERO)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_index_of_a_site_is_a_block_index() {
    let server = Postgres::start().await;
    let sites = AtomicUsize::new(0);
    let open = || {
        let site = format!("site-{}", sites.fetch_add(1, Ordering::Relaxed));
        let opening = server.open(&site);
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(opening));
        index(&server, &site)
    };
    index_suite::check_all(&open).await;
}

/// What a gateway does, in an order of its own. Counts the pins that it has completed.
async fn work(shared: SharedBlocks, gateway: usize, changes: usize, pinned: Arc<AtomicUsize>) {
    for change in 0..changes {
        let number = (gateway * 7 + change * 5) as u64 % BLOCKS;
        // The database may be stopped.
        match change % 9 {
            0..3 => {
                if pin(&shared, number).await.is_ok() {
                    pinned.fetch_add(1, Ordering::Relaxed);
                }
            }
            3 => _ = shared.remove_pin(dag(number)[0].0, None).await,
            4 => while let Ok(true) = shared.release_members().await {},
            5 => _ = has_all(&shared, number).await,
            6 if gateway.is_multiple_of(2) => _ = shared.evict(0, usize::MAX).await,
            6 => _ = shared.evict_unpinned(&[block(number).1.key]).await,
            7 => _ = shared.put(vec![block(number).1], None).await,
            _ if gateway.is_multiple_of(2) => _ = shared.sweep().await,
            _ => _ = shared.reconcile(slot_of(number), u64::MAX).await,
        }
    }
}

fn slot_of(number: u64) -> u8 {
    ObjectId { key: block(number).1.key, generation: 0 }.slot()
}

/// Each complete pin has its blocks, and each object is that of a block.
async fn check(site: &Site) {
    let (shared, index) = (site.gateway().await, index(&site.server, "blocks"));
    let deadline = Instant::now() + TIMEOUT;
    while let Err(error) = shared.sweep().await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    while shared.release_members().await.expect("releases") {}
    while shared.sweep().await.expect("sweeps") > 0 {}
    let mut lost = 0;
    for slot in 0..=u8::MAX {
        lost += shared.reconcile(slot, u64::MAX).await.expect("reconciles").lost;
    }
    assert_eq!(lost, 0, "no object that the index has is missing");
    let objects = folder(&site.dir);
    assert_eq!(objects_in(&*objects).await, objects_of(&*index).await);
    assert_eq!(shared.figures().await.expect("counts").pending_objects, 0);
    let wrong = "SELECT count(*)::text FROM \"causeway_blocks\".block
        WHERE pinned <> EXISTS (SELECT FROM \"causeway_blocks\".member WHERE member.key = block.key)";
    assert_eq!(site.server.sql(wrong).await.expect("is asked"), ["0"]);
    for root in 0..BLOCKS {
        let pin = shared.pin(dag(root)[0].0).await.expect("is read");
        if pin.is_some_and(|pin| pin.state == PinState::Complete) {
            assert!(has_all(&shared, root).await.expect("reads"), "the pin of {root}");
        }
        shared.remove_pin(dag(root)[0].0, None).await.expect("is removed");
    }
    while shared.release_members().await.expect("releases") {}
    shared.evict(0, usize::MAX).await.expect("evicts");
    assert_eq!(objects_in(&*objects).await, BTreeSet::new(), "without pins nothing is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gateways_that_change_the_same_blocks_lose_none_that_a_pin_has() {
    let site = Site::new().await;
    let (mut gateways, pinned) = (JoinSet::new(), Arc::<AtomicUsize>::default());
    for gateway in 0..GATEWAYS {
        gateways.spawn(work(site.gateway().await, gateway, CHANGES, Arc::clone(&pinned)));
    }
    gateways.join_all().await;
    assert!(pinned.load(Ordering::Relaxed) > CHANGES, "most pins are completed");
    check(&site).await;
}

/// The same, and all processes of the server are killed three times, and each time the gateways stop with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_when_the_database_and_gateways_are_killed() {
    let mut site = Site::new().await;
    for round in 0..3 {
        let (mut gateways, pinned) = (JoinSet::new(), Arc::<AtomicUsize>::default());
        for gateway in 0..GATEWAYS {
            gateways.spawn(work(site.gateway().await, gateway + round, usize::MAX, Arc::clone(&pinned)));
        }
        until("pins are completed", async || pinned.load(Ordering::Relaxed) > 2 * GATEWAYS).await;
        site.server.kill();
        // Their requests to the storage may be carried out later.
        gateways.abort_all();
        while gateways.join_next().await.is_some() {}
        site.server.restart().await;
    }
    check(&site).await;
}

/// Hits go on without the database; changes fail.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_blocks_are_read_and_none_is_stored() {
    let mut site = Site::new().await;
    let shared = site.gateway().await;
    pin(&shared, 0).await.expect("is pinned");
    site.server.stop();
    assert!(has_all(&shared, 0).await.expect("reads"));
    assert!(!has_all(&shared, DAG_BLOCKS).await.expect("reads"), "these were never stored");
    let error = pin(&shared, DAG_BLOCKS).await.expect_err("it cannot be");
    assert!(matches!(error, PinError::Store(StoreError::Unavailable { .. })), "{error}");
    site.server.restart().await;
    until("the database is used again", async || pin(&shared, DAG_BLOCKS).await.is_ok()).await;
    assert!(has_all(&shared, DAG_BLOCKS).await.expect("reads"));
}

/// An object that was deleted or damaged in the storage, and a storage that is another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_lost_only_if_the_storage_is_that_of_the_site() {
    let site = Site::new().await;
    let shared = site.gateway().await;
    pin(&shared, 0).await.expect("is pinned");
    let index = index(&site.server, "blocks");
    let row = index.locate(vec![dag(0)[1].1.key]).await.expect("is asked")[0];
    let path = site.dir.path().join(row.object.name());
    // The folder is empty, as is a mount point without its file system.
    let elsewhere = TempDir::new().expect("the temporary folder is writable");
    let aside = elsewhere.path().join("aside");
    std::fs::rename(site.dir.path(), &aside).expect("is moved");
    std::fs::create_dir(site.dir.path()).expect("is created");
    let error = has_all(&shared, 0).await.expect_err("is not the storage");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    let opened = SharedBlocks::open(Arc::clone(&index), folder(&site.dir), "blocks").await;
    assert!(opened.is_err(), "its storage had been marked");
    std::fs::remove_dir(site.dir.path()).expect("is empty");
    std::fs::rename(&aside, site.dir.path()).expect("is moved back");
    assert!(has_all(&shared, 0).await.expect("reads"), "nothing was lost");
    std::fs::write(&path, b"damaged").expect("is damaged");
    assert!(!has_all(&shared, 0).await.expect("reads"));
    let summary = index.pin(dag(0)[0].0).await.expect("is read").expect("exists");
    assert_eq!(summary.state, PinState::Partial);
    assert!(!path.exists(), "the damaged object is deleted");
    pin(&shared, 0).await.expect("is completed again");
    assert!(has_all(&shared, 0).await.expect("reads"));
}

/// A database that was created again does not know the objects, and would have them deleted.
#[tokio::test(flavor = "multi_thread")]
async fn another_database_does_not_open_the_storage() {
    let site = Site::new().await;
    pin(&site.gateway().await, 0).await.expect("is pinned");
    let other = Postgres::start().await;
    drop(other.open("blocks").await);
    let opened = SharedBlocks::open(index(&other, "blocks"), folder(&site.dir), "blocks").await;
    let Err(StoreError::Unavailable { reason }) = opened else { panic!("it has another number") };
    assert!(reason.contains("is that of the site"), "{reason}");
    assert!(has_all(&site.gateway().await, 0).await.expect("reads"));
}

/// A server that was replaced answers look-ups, but accepts no changes: nothing is deleted because of what it answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_replaced_deletes_no_orphans() {
    let site = Site::new().await;
    let shared = site.gateway().await;
    let orphan = ObjectId { key: block(0).1.key, generation: 1 };
    folder(&site.dir).put(&orphan.name(), content_of(0)).await.expect("is written");
    let read_only = "ALTER SYSTEM SET default_transaction_read_only = on";
    for statement in [read_only, "SELECT pg_reload_conf()"] {
        site.server.sql(statement).await.expect("is done");
    }
    let shown = "SHOW default_transaction_read_only";
    until("it is read-only", async || site.server.sql(shown).await.is_ok_and(|shown| shown == ["on"])).await;
    until("the session is", async || shared.begin_pin(dag(0)[0].0, None).await.is_err()).await;
    assert!(shared.reconcile(orphan.slot(), u64::MAX).await.is_err());
    assert_eq!(objects_in(&*folder(&site.dir)).await, [orphan].into());
    for statement in ["ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"] {
        site.server.sql(statement).await.expect("is done");
    }
    let is_deleted = async || shared.reconcile(orphan.slot(), u64::MAX).await.is_ok_and(|found| found.orphans == 1);
    until("it accepts changes again", is_deleted).await;
    assert_eq!(objects_in(&*folder(&site.dir)).await, BTreeSet::new());
}

/// Many at the same time, most of them for blocks that are not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn look_ups_of_many_callers_are_answered_each_with_its_blocks() {
    let site = Site::new().await;
    let shared = site.gateway().await;
    shared.put((0..BLOCKS).map(|number| block(number).1).collect(), None).await.expect("are stored");
    let index = index(&site.server, "blocks");
    let keys: Arc<Vec<BlockKey>> = Arc::new((0..40).map(|number| block(number).1.key).collect());
    let mut looking = JoinSet::new();
    for caller in 0..4000 {
        let (asked, all) = (Arc::clone(&index), Arc::clone(&keys));
        looking.spawn(async move {
            let wanted = [caller % 40, caller % 7, caller % 7];
            let rows = asked.locate(wanted.iter().map(|number| all[*number]).collect()).await.expect("is answered");
            let located: BTreeSet<BlockKey> = rows.iter().map(|row| row.object.key).collect();
            let expected = wanted.iter().filter(|number| **number < BLOCKS as usize).map(|number| all[*number]);
            assert_eq!(located, expected.collect());
            assert_eq!(rows.len(), located.len(), "each once");
        });
        // Some leave before they are answered.
        if caller % 10 == 0 {
            let index = Arc::clone(&index);
            let keys = Arc::clone(&keys);
            looking.spawn(async move {
                _ = tokio::time::timeout(Duration::ZERO, index.locate(keys.to_vec())).await;
            });
        }
    }
    looking.join_all().await;
}

/// No more orphans are deleted at a time than the caller allows, and a batch.
#[tokio::test(flavor = "multi_thread")]
async fn many_orphans_are_not_deleted_at_once() {
    let site = Site::new().await;
    let (shared, objects) = (site.gateway().await, folder(&site.dir));
    let slot = slot_of(0);
    for generation in 0..600 {
        let orphan = ObjectId { key: block(0).1.key, generation };
        objects.put(&orphan.name(), Bytes::from_static(b"orphan")).await.expect("is written");
    }
    std::fs::write(site.dir.path().join(format!("v1/blocks/{slot:02x}/notes.txt")), "of an operator").expect("writes");
    let found = shared.reconcile(slot, 100).await.expect("reconciles");
    assert!(found.has_more_orphans && found.orphans >= 100 && found.orphans < 400, "{found:?}");
    assert_eq!((found.objects, found.foreign), (600, 1));
    let rest = shared.reconcile(slot, u64::MAX).await.expect("reconciles");
    assert_eq!((rest.orphans, rest.has_more_orphans), (600 - found.orphans, false));
}
