//! The stores of gateways of a site: each with a disk of its own, and with the pins and the storage of the site.

use crate::blocks::{folder, index};
use crate::support::{Postgres, until};
use bytes::Bytes;
use cache::memory::{self, MemoryOptions};
use cache::pins::PinAttempt;
use cache::{BlockStore, Evict, Held, PinError, PinState, StoreError, raw_cid};
use content::{Block, BlockKey, BlockSource, Cid, SourceError, codec, hashes};
use futures::{StreamExt as _, TryStreamExt as _};
use objects::Objects;
use services::pinning::coordination::{Claims, SingleService};
use site::blocks::{ObjectId, SharedBlocks};
use site::database::{ClaimOptions, Database, DatabaseClaims};
use site::store::reconcile::{ReconcileError, ReconcileProgress, SLOTS};
use site::store::{SiteStore, SiteStoreOptions};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const NAME: &str = "store";
/// Often, so that the tests do not wait.
const UPKEEP: Duration = Duration::from_millis(50);

/// A site, without its gateways.
pub struct Site {
    pub server: Postgres,
    pub dir: TempDir,
    options: SiteStoreOptions,
}

/// A gateway's store, and its disk.
struct Gateway {
    store: SiteStore,
    disk: Arc<dyn BlockStore>,
}

impl Site {
    pub async fn new() -> Self {
        let server = Postgres::start().await;
        drop(server.open(NAME).await);
        let options = SiteStoreOptions { upkeep_interval: UPKEEP, ..SiteStoreOptions::default() };
        Self { server, dir: TempDir::new().expect("the temporary folder is writable"), options }
    }

    async fn caching(cached_bytes_max: u64) -> Self {
        let mut site = Self::new().await;
        site.options.cached_bytes_max = cached_bytes_max;
        site
    }

    /// Gateways that look so often for what is to be done.
    pub async fn with_upkeep(interval: Duration) -> Self {
        let mut site = Self::new().await;
        site.options.upkeep_interval = interval;
        site
    }

    pub async fn shared(&self) -> SharedBlocks {
        SharedBlocks::open(index(&self.server, NAME), folder(&self.dir), NAME).await.expect("opens")
    }

    async fn gateway(&self) -> Gateway {
        let disk = memory::open(&MemoryOptions::default()).expect("opens");
        let store = SiteStore::new(Arc::clone(&disk), self.shared().await, &self.options);
        Gateway { store, disk }
    }

    /// The store of another gateway.
    pub async fn site_store(&self) -> SiteStore {
        self.gateway().await.store
    }

    /// The store of a gateway, as its users see it.
    pub async fn store(&self) -> Arc<dyn BlockStore> {
        self.gateway().await.store.handle()
    }

    async fn objects(&self) -> usize {
        self.names().await.len()
    }

    /// The names of all objects.
    async fn names(&self) -> BTreeSet<String> {
        let objects = folder(&self.dir);
        let listed = objects.list("v1/").map_ok(|listed| listed.name).try_collect();
        listed.await.expect("is listed")
    }

    async fn pending_objects(&self) -> u64 {
        self.shared().await.figures().await.expect("are read").pending_objects
    }

    /// Waits until so many blocks are cached in the storage.
    async fn until_cached(&self, blocks: u64) {
        let shared = self.shared().await;
        let are_cached = async || shared.figures().await.is_ok_and(|figures| figures.cached_blocks == blocks);
        until("they are in the storage", are_cached).await;
    }
}

impl Gateway {
    fn store(&self) -> &(dyn BlockStore + 'static) {
        &self.store
    }

    async fn pin(&self, blocks: &[Block]) -> Result<cache::PinSummary, PinError> {
        let supply = futures::stream::iter(blocks.to_vec()).map(Ok::<_, std::io::Error>);
        self.store().pin_recursive(*blocks[0].cid(), Some("a name".to_owned()), supply).await
    }

    /// Whether it can read these blocks, and finds that they are stored.
    async fn has_all(&self, blocks: &[Block]) -> bool {
        for block in blocks {
            let read = self.store.get(block.cid()).await;
            if let Ok(read) = &read {
                assert_eq!(read.data(), block.data(), "a wrong block");
            }
            let has = self.store.has(block.cid()).await.expect("is asked");
            assert_eq!(read.is_ok(), has, "{read:?}");
            if !has {
                return false;
            }
        }
        true
    }

    /// Puts blocks under a temporary pin, as an upload does.
    async fn put_temporary(&self, blocks: &[Block]) -> Arc<PinAttempt> {
        let temporary = self.store().begin_temporary_pin().await.expect("begins");
        for block in blocks {
            self.store().put_member(block, &temporary).await.expect("is put");
        }
        self.store().written().await.expect("is written");
        temporary
    }

    /// The same, until all of them are written ahead.
    async fn upload(&self, site: &Site, blocks: &[Block]) -> Arc<PinAttempt> {
        let temporary = self.put_temporary(blocks).await;
        until("they are written ahead", async || site.objects().await == blocks.len()).await;
        temporary
    }

    /// Pins blocks that are on the own disk.
    async fn pin_held(&self, blocks: &[Block]) -> Result<cache::PinSummary, PinError> {
        let attempt = self.store().begin_pin(*blocks[0].cid(), None).await.expect("begins");
        for block in blocks {
            self.store().put_held_member(*block.cid(), &attempt).await?;
        }
        self.store().finish_pin(attempt).await
    }

    async fn state(&self, root: &Cid) -> Option<PinState> {
        Some(self.store().pin(root).await.expect("is read")?.state)
    }
}

fn key(block: &Block) -> BlockKey {
    block.key().expect("has a key")
}

/// Blocks of text, which can be compressed; the first one stands for the root.
fn blocks(name: &str, count: usize) -> Vec<Block> {
    let block = |number: usize| {
        let content = Bytes::from(format!("{name} {number} ").repeat(50));
        Block::of(codec::RAW, hashes::SHA2_256, 32, content).expect("a block")
    };
    (0..count).map(block).collect()
}

/// Blocks of 64 KiB, so that few fill a queue.
fn large_blocks(seed: usize, count: usize) -> Vec<Block> {
    let block = |number: usize| {
        let content = Bytes::from(format!("{seed:08} {number:08} ").repeat(3600));
        Block::of(codec::RAW, hashes::SHA2_256, 32, content).expect("a block")
    };
    (0..count).map(block).collect()
}

fn keys(blocks: &[Block]) -> Vec<BlockKey> {
    blocks.iter().map(key).collect()
}

fn visited(store: &SiteStore, which: Held) -> BTreeSet<Vec<u8>> {
    let mut visited = BTreeSet::new();
    let visiting = || store.visit_keys(which, &mut |key| _ = visited.insert(key.to_vec()));
    tokio::task::block_in_place(visiting).expect("are visited");
    visited
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_gateway_pins_all_have() {
    let site = Site::new().await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let (dag, twig) = (blocks("dag", 700), blocks("dag", 3));
    let summary = one.pin(&dag).await.expect("is pinned");
    let bytes: usize = dag.iter().map(|block| block.data().len()).sum();
    assert_eq!((summary.blocks, summary.bytes, summary.state), (700, bytes as u64, PinState::Complete));
    assert_eq!(other.store().pins().await.expect("are read"), vec![summary.clone()]);
    assert_eq!(other.store().pin(dag[0].cid()).await.expect("is read"), Some(summary));
    assert!(other.has_all(&dag).await);
    assert!(!other.disk.has(dag[0].cid()).await.expect("is asked"), "they are those of the storage");
    assert!(other.store().is_pinned(&key(&dag[5])).await.expect("is asked"));
    for read in [other.store().find(&key(&dag[5])).await, other.store().look(&key(&dag[5])).await] {
        assert_eq!(read.expect("reads").as_ref(), Some(dag[5].data()));
    }
    let stored = other.store().stored(&key(&dag[5])).await.expect("reads").expect("is stored");
    let shapes = other.store().shapes(keys(&dag[4..6])).await.expect("are read");
    assert_eq!(shapes[1], Some(stored.shape()));
    let absent = blocks("absent", 2);
    assert_eq!(other.store().shapes(keys(&absent)).await.expect("are read"), [None, None]);
    assert!(matches!(other.store.get(absent[0].cid()).await, Err(SourceError::NotFound { .. })));
    assert_eq!(visited(&other.store, Held::Roots), [key(&dag[0]).to_bytes()].into());
    assert_eq!(visited(&other.store, Held::Pinned).len(), 700);
    let figures = other.store().figures().await.expect("are read");
    assert_eq!((figures.pinned.blocks, figures.pinned.block_bytes, figures.pins), (700, bytes as u64, 1));
    assert_eq!(other.store().stats().pinned_bytes, 0, "they are not on its disk");
    // Another pin shares blocks with the first one, and keeps them.
    let another: Vec<Block> = twig.into_iter().rev().collect();
    assert_eq!(other.pin(&another).await.expect("is pinned").blocks, 3);
    assert_eq!(site.objects().await, 700, "each block is one object");
    assert!(other.store().remove_pin(dag[0].cid()).await.expect("is removed"));
    assert!(!one.store().remove_pin(dag[0].cid()).await.expect("is asked"), "it is removed at every gateway");
    until("its blocks have no pin", async || visited(&one.store, Held::Pinned).len() == 3).await;
    assert!(one.has_all(&another).await);
}

/// An upload is on the disk of its gateway until its roots are known.
#[tokio::test(flavor = "multi_thread")]
async fn a_temporary_pin_is_that_of_the_own_disk() {
    let site = Site::caching(0).await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let upload = blocks("upload", 5);
    let temporary = one.put_temporary(&upload).await;
    assert!(one.has_all(&upload).await);
    assert!(site.shared().await.locate(&keys(&upload)).await.expect("is read").is_empty(), "it is not pinned yet");
    assert_eq!(one.pin_held(&upload).await.expect("is pinned").blocks, 5);
    one.store().release(&temporary);
    one.store().flush().await.expect("is released");
    assert!(other.has_all(&upload).await);
    // Another upload refers to what the storage has.
    let temporary = other.store().begin_temporary_pin().await.expect("begins");
    other.store().put_held_member(*upload[4].cid(), &temporary).await.expect("is held");
    other.store().written().await.expect("is written");
    assert!(other.disk.has(upload[4].cid()).await.expect("is asked"), "on the own disk");
    other.store().release(&temporary);
    // Blocks in the storage become members without being read; one that is nowhere does not.
    let attempt = other.store().begin_pin(*upload[1].cid(), None).await.expect("begins");
    let absent = blocks("absent", 1).remove(0);
    for cid in [upload[1].cid(), upload[2].cid(), absent.cid()] {
        other.store().put_held_member(*cid, &attempt).await.expect("is queued");
    }
    let failed = other.store().finish_pin(attempt).await.expect_err("a block is missing");
    assert!(
        matches!(failed, PinError::Blocks(_)) && failed.to_string().contains(&absent.cid().to_string()),
        "{failed}"
    );
    assert_eq!(other.state(upload[1].cid()).await, Some(PinState::Partial));
    assert!(one.store().remove_pin(upload[1].cid()).await.expect("is removed"));
    let root_only = other.pin(&upload[3..]).await.expect("is pinned");
    assert_eq!(root_only.blocks, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_written_ahead_of_its_pin() {
    let site = Site::caching(0).await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let upload = blocks("upload", 100);
    let temporary = one.upload(&site, &upload).await;
    let ahead = site.names().await;
    assert_eq!(site.pending_objects().await, 100);
    assert!(!other.has_all(&upload[..1]).await, "it is no block's object yet");
    let (needed, rest) = upload.split_at(98);
    assert_eq!(one.pin_held(needed).await.expect("is pinned").blocks, 98);
    assert!(other.has_all(needed).await);
    assert_eq!(site.names().await, ahead, "nothing was written again");
    one.store().release(&temporary);
    until("the rest is deleted", async || site.pending_objects().await == 0).await;
    assert_eq!(site.objects().await, 98);
    assert!(!other.has_all(rest).await);
}

/// A pin that begins while blocks are queued and being written.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_pinned_at_once_leaves_one_object_for_each_block() {
    let site = Site::caching(0).await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let upload = blocks("upload", 600);
    let temporary = one.put_temporary(&upload).await;
    assert_eq!(one.pin_held(&upload).await.expect("is pinned").blocks, 600);
    one.store().release(&temporary);
    until("what is not needed is deleted", async || site.pending_objects().await == 0).await;
    until("it is deleted", async || site.objects().await == 600).await;
    assert!(other.has_all(&upload).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_down_deletes_what_was_written_ahead() {
    let site = Site::caching(0).await;
    let gateway = site.gateway().await;
    let (upload, is_denied) = (blocks("upload", 5), Arc::new(AtomicBool::new(false)));
    gateway.store().set_is_withheld(Box::new({
        let (withheld, is_denied) = (key(&upload[3]), Arc::clone(&is_denied));
        move |key| *key == withheld && is_denied.load(Ordering::SeqCst)
    }));
    let temporary = gateway.upload(&site, &upload).await;
    let evict = async || gateway.store().evict(keys(&upload[3..]), Evict::Everything).await.expect("evicts");
    evict().await;
    assert_eq!(site.objects().await, 5, "it is not withheld yet");
    is_denied.store(true, Ordering::SeqCst);
    evict().await;
    until("one is deleted", async || (site.objects().await, site.pending_objects().await) == (4, 4)).await;
    gateway.store().release(&temporary);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_deletes_what_was_written_ahead() {
    let site = Site::caching(0).await;
    let gateway = site.gateway().await;
    let _temporary = gateway.upload(&site, &blocks("upload", 300)).await;
    gateway.store().close().await.expect("closes");
    assert_eq!((site.objects().await, site.pending_objects().await), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_without_a_pin_leaves_nothing_in_the_storage() {
    let site = Site::caching(0).await;
    let gateway = site.gateway().await;
    let temporary = gateway.upload(&site, &blocks("upload", 20)).await;
    gateway.store().release(&temporary);
    until("it is deleted", async || site.pending_objects().await == 0).await;
    assert_eq!(site.objects().await, 0);
}

/// An upload may take longer than objects may be pending.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_swept_is_written_again_when_it_is_pinned() {
    let site = Site::caching(0).await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let upload = blocks("upload", 20);
    let temporary = one.upload(&site, &upload).await;
    let ahead = site.names().await;
    site.shared().await.with_pending_age(Duration::ZERO).sweep().await.expect("sweeps");
    assert_eq!(site.objects().await, 0);
    assert_eq!(one.pin_held(&upload).await.expect("is pinned").blocks, 20);
    one.store().release(&temporary);
    assert!(other.has_all(&upload).await && site.names().await.is_disjoint(&ahead));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_withheld_after_it_was_written_ahead_is_not_pinned() {
    let site = Site::caching(0).await;
    let gateway = site.gateway().await;
    let (upload, is_denied) = (blocks("upload", 5), Arc::new(AtomicBool::new(false)));
    gateway.store().set_is_withheld(Box::new({
        let (withheld, is_denied) = (key(&upload[3]), Arc::clone(&is_denied));
        move |key| *key == withheld && is_denied.load(Ordering::SeqCst)
    }));
    let temporary = gateway.upload(&site, &upload).await;
    is_denied.store(true, Ordering::SeqCst);
    let failed = gateway.pin_held(&upload).await.expect_err("a block of it is withheld");
    assert!(matches!(failed, PinError::Blocks(_)), "{failed}");
    gateway.store().release(&temporary);
    until("it is deleted", async || site.pending_objects().await == 0).await;
    assert!(!site.shared().await.locate(&keys(&upload)).await.expect("is read").contains_key(&key(&upload[3])));
}

/// Several pins at the same time, each block of which is written once.
#[tokio::test(flavor = "multi_thread")]
async fn pins_in_progress_do_not_mix_their_members() {
    let site = Site::new().await;
    let gateway = Arc::new(site.gateway().await);
    let dags: Vec<Vec<Block>> = (0..8).map(|dag| blocks(&format!("dag {dag}"), 40 + dag)).collect();
    let pinning = dags.iter().cloned().map(|dag| {
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move { gateway.pin(&dag).await.expect("is pinned").blocks })
    });
    let counts = futures::future::join_all(pinning.collect::<Vec<_>>()).await;
    let counts: Vec<u64> = counts.into_iter().map(|count| count.expect("runs")).collect();
    assert_eq!(counts, (40..48).collect::<Vec<u64>>());
    assert_eq!(site.objects().await, (40..48).sum::<usize>());
    // One that is removed while it is in progress.
    let attempt = gateway.store().begin_pin(*dags[0][1].cid(), None).await.expect("begins");
    assert!(gateway.store().remove_pin(dags[0][1].cid()).await.expect("is removed"));
    gateway.store().put_member(&dags[0][1], &attempt).await.expect("is queued");
    let failed = gateway.store().finish_pin(attempt).await.expect_err("it was removed");
    assert!(matches!(failed, PinError::Removed { .. }), "{failed}");
    // Without its root.
    let attempt = gateway.store().begin_pin(*dags[0][2].cid(), None).await.expect("begins");
    gateway.store().put_member(&dags[0][1], &attempt).await.expect("is queued");
    let failed = gateway.store().finish_pin(attempt).await.expect_err("its root is missing");
    assert!(matches!(failed, PinError::RootMissing { .. }), "{failed}");
}

/// What a gateway has fetched, others have, as long as the storage has room for it.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_were_fetched_are_kept_within_a_budget() {
    let site = Site::caching(2_000).await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let (pinned, fetched) = (blocks("pinned", 40), blocks("fetched", 60));
    one.pin(&pinned).await.expect("is pinned");
    for block in &fetched {
        one.store().put_cached(block.clone()).await;
    }
    one.store().written().await.expect("are written");
    let shared = site.shared().await;
    let cached = async || shared.figures().await.expect("are read").cached_bytes;
    until("the others are evicted", async || (1..=2_000).contains(&cached().await)).await;
    // Objects are deleted after the index has them no longer.
    until("their objects are deleted", async || site.objects().await < pinned.len() + fetched.len()).await;
    assert!(other.has_all(&pinned).await, "blocks that a pin has are not");
    let mut kept = 0;
    for block in &fetched {
        kept += usize::from(other.store.get(block.cid()).await.is_ok());
    }
    assert!((1..fetched.len()).contains(&kept), "{kept}");
    assert!(one.has_all(&fetched).await, "its own disk has all");
    let none = Site::caching(0).await;
    let gateway = none.gateway().await;
    gateway.store().put_cached(fetched[0].clone()).await;
    gateway.store().written().await.expect("is written");
    assert_eq!(none.objects().await, 0);
    assert!(gateway.has_all(&fetched[..1]).await);
}

/// Reading a block in the storage counts as use.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_is_evicted_last() {
    let site = Site::new().await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let fetched = blocks("fetched", 6);
    for block in &fetched {
        one.store().put_cached(block.clone()).await;
    }
    site.until_cached(6).await;
    let shared = site.shared().await;
    let total = shared.figures().await.expect("are read").cached_bytes;
    let long_ago = "UPDATE causeway_store.block SET used = used - interval '1 hour'";
    site.server.sql(long_ago).await.expect("is done");
    let used = "SELECT count(*)::text FROM causeway_store.block WHERE used > clock_timestamp() - interval '30 minutes'";
    for number in [1, 4] {
        other.store.get(fetched[number].cid()).await.expect("is read");
    }
    other.store.source().for_peers().get(fetched[2].cid()).await.expect("is read");
    until("the use is recorded", async || site.server.sql(used).await == Ok(vec!["2".to_owned()])).await;
    while shared.figures().await.expect("are read").cached_blocks > 2 {
        let bytes = shared.figures().await.expect("are read").cached_bytes;
        shared.evict(bytes - 1, usize::MAX).await.expect("evicts");
    }
    assert!(shared.figures().await.expect("are read").cached_bytes < total);
    let kept = shared.locate(&keys(&fetched)).await.expect("are read");
    assert_eq!(kept.into_keys().collect::<BTreeSet<_>>(), [key(&fetched[1]), key(&fetched[4])].into());
}

/// A take-down deletes blocks everywhere, and every gateway learns which pins lack blocks.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_down_deletes_what_pins_have() {
    let site = Site::new().await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let (dag, fetched) = (blocks("dag", 4), blocks("fetched", 2));
    let root = dag[0].cid();
    one.pin(&dag).await.expect("is pinned");
    for block in &fetched {
        one.store().put_cached(block.clone()).await;
    }
    site.until_cached(2).await;
    let some = [keys(&dag[1..3]), keys(&fetched[..1])].concat();
    let would = other.store().evictable(some.clone()).await.expect("are counted");
    let kept = other.store().evict(some.clone(), Evict::Unpinned).await.expect("evicts");
    assert_eq!((would, kept.blocks, kept.pinned), (kept, 1, 2));
    assert!(one.has_all(&dag).await);
    one.store().set_is_withheld(Box::new({
        let withheld = key(&dag[1]);
        move |key| *key == withheld
    }));
    let evicted = one.store().evict(some, Evict::Everything).await.expect("evicts");
    assert!(evicted.blocks >= 2 && evicted.bytes > 0 && evicted.pinned == 0, "{evicted:?}");
    for gateway in [&one, &other] {
        assert_eq!(gateway.state(root).await, Some(PinState::Partial));
        assert_eq!(gateway.store().pin_changes().next().await, [*root].into());
        assert!(!gateway.store.has(dag[1].cid()).await.expect("is asked"));
        assert!(gateway.store().is_pinned(&key(&dag[1])).await.expect("is asked"), "it is still a member");
    }
    let missing = one.store().missing(root).await.expect("are read");
    let bytes = dag[1].data().len() + dag[2].data().len();
    assert_eq!((missing.blocks, missing.bytes, missing.withheld), (2, bytes as u64, 1));
    other.pin(&dag).await.expect("is completed again where it is not withheld");
    assert_eq!(one.state(root).await, Some(PinState::Complete));
    assert_eq!(one.store().missing(root).await.expect("are read").blocks, 0);
}

/// Reads go on without the database, those of clients also by searching the storage; changes fail.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_clients_read_and_peers_are_refused() {
    let mut site = Site::new().await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let dag = blocks("dag", 3);
    one.pin(&dag).await.expect("is pinned");
    other.store().put_cached(dag[2].clone()).await;
    other.store().written().await.expect("is written");
    site.server.stop();
    for block in &dag {
        assert_eq!(other.store.get(block.cid()).await.expect("is read").data(), block.data());
    }
    let of_peers = other.store.source().for_peers();
    assert!(matches!(of_peers.get(dag[0].cid()).await, Err(SourceError::Store(_))), "it is not searched for");
    let failed = one.store().begin_pin(*dag[1].cid(), None).await.expect_err("it cannot be");
    assert!(matches!(failed, StoreError::Unavailable { .. }), "{failed}");
    // A cached block is not acknowledged, and changes nothing for the client.
    let fetched = blocks("fetched", 1);
    other.store().put_cached(fetched[0].clone()).await;
    other.store().written().await.expect("has failed or is written");
    assert_eq!(other.store.get(fetched[0].cid()).await.expect("is on the disk").data(), fetched[0].data());
    site.server.restart().await;
    until("pins are accepted again", async || one.pin(&dag[1..]).await.is_ok()).await;
    until("peers are served", async || of_peers.get(dag[0].cid()).await.is_ok()).await;
}

/// What the storage has is verified by its hash, although it has the right checksum.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_object_is_not_served() {
    let site = Site::new().await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let dag = blocks("dag", 2);
    one.pin(&dag).await.expect("is pinned");
    let objects = folder(&site.dir);
    let listed: Vec<_> = objects.list("v1/").map(|listed| listed.expect("is listed").name).collect().await;
    let name_of = |block: &Block| {
        let is_of = |name: &&String| ObjectId::of_name(name).is_some_and(|object| object.key == key(block));
        listed.iter().find(is_of).expect("has an object")
    };
    forge(&*objects, &site, name_of(&dag[0]), name_of(&dag[1])).await;
    let error = other.store.get(dag[0].cid()).await.expect_err("is not the block");
    assert!(matches!(error, SourceError::Corrupt { .. }), "{error}");
    assert!(other.store().look(&key(&dag[0])).await.is_err());
    assert!(other.has_all(&dag[1..]).await);
}

/// Writes the value of one object into another one, with the right head and checksum.
async fn forge(objects: &dyn Objects, site: &Site, target: &str, from: &str) {
    let read = async |name: &str| objects.get(name).await.expect("is read").expect("exists").to_vec();
    let (target_bytes, from_bytes) = (read(target).await, read(from).await);
    // A head of 9 bytes, of which the last four are the length of the value, and a key of 34.
    let forged =
        [&target_bytes[..5], &from_bytes[5..9], &target_bytes[9..43], &from_bytes[43..from_bytes.len() - 16]].concat();
    let checksum = hashes::digest(0x1e, 32, &forged).expect("is accepted");
    let forged = [forged, checksum.digest()[..16].to_vec()].concat();
    std::fs::write(site.dir.path().join(target), forged).expect("is written");
}

/// Members that were queued when a gateway stops are written; blocks that are only to be cached need not be.
#[tokio::test(flavor = "multi_thread")]
async fn closing_writes_the_members_that_are_queued() {
    let site = Site::new().await;
    let gateway = site.gateway().await;
    let (dag, fetched) = (blocks("dag", 300), blocks("fetched", 300));
    let attempt = gateway.store().begin_pin(*dag[0].cid(), None).await.expect("begins");
    for (member, cached) in dag.iter().zip(&fetched) {
        gateway.store().put_cached(cached.clone()).await;
        gateway.store().put_member(member, &attempt).await.expect("is queued");
    }
    gateway.store().close().await.expect("closes");
    assert_eq!(site.shared().await.locate(&keys(&dag)).await.expect("is read").len(), 300);
    let refused = gateway.store().put_member(&dag[0], &attempt).await;
    assert!(matches!(refused, Err(PinError::Store(StoreError::Closed))), "{refused:?}");
    gateway.store().close().await.expect("is closed");
    // Another one completes the pin.
    assert_eq!(site.gateway().await.pin(&dag).await.expect("is pinned").blocks, 300);
}

/// What is waited for is what was put before, and not what others put meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_writes_ends_while_a_large_pin_goes_on() {
    let site = Site::new().await;
    let gateway = Arc::new(site.gateway().await);
    let attempt = gateway.store().begin_pin(*blocks("large", 1)[0].cid(), None).await.expect("begins");
    let endless = {
        let (gateway, attempt) = (Arc::clone(&gateway), Arc::clone(&attempt));
        tokio::spawn(async move {
            for number in 0.. {
                for block in large_blocks(number, 500) {
                    gateway.store().put_cached(block.clone()).await;
                    gateway.store().put_member(&block, &attempt).await.expect("is put");
                }
            }
        })
    };
    let shared = site.shared().await;
    until("it is being written", async || shared.figures().await.is_ok_and(|figures| figures.pinned_blocks > 0)).await;
    tokio::time::timeout(crate::support::TIMEOUT, gateway.store().written()).await.expect("ends").expect("writes");
    let evicted = gateway.store().evict(keys(&blocks("other", 1)), Evict::Everything);
    tokio::time::timeout(crate::support::TIMEOUT, evicted).await.expect("ends").expect("evicts");
    assert!(!endless.is_finished());
    endless.abort();
}

/// Also if it was queued before it was withheld.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_withheld_is_not_put_into_the_storage() {
    let site = Site::new().await;
    let gateway = site.gateway().await;
    let dag = blocks("dag", 3);
    gateway.store().set_is_withheld(Box::new({
        let withheld = key(&dag[1]);
        move |key| *key == withheld
    }));
    gateway.store().put_cached(dag[1].clone()).await;
    let failed = gateway.pin(&dag).await.expect_err("a block of it is withheld");
    assert!(matches!(failed, PinError::Blocks(_)), "{failed}");
    gateway.store().flush().await.expect("is written");
    let stored = site.shared().await.locate(&keys(&dag)).await.expect("is read");
    assert!(!stored.contains_key(&key(&dag[1])), "{stored:?}");
}

/// Objects that are lost are found by reading, by whichever gateway, and pinning again mends the pin.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_one_gateway_finds_all_learn() {
    let site = Site::new().await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let dag = blocks("dag", 3);
    one.pin(&dag).await.expect("is pinned");
    let row = site.shared().await.locate(&keys(&dag[1..2])).await.expect("is read")[&key(&dag[1])];
    std::fs::remove_file(site.dir.path().join(row.object.name())).expect("is deleted");
    assert!(matches!(other.store.get(dag[1].cid()).await, Err(SourceError::NotFound { .. })));
    for gateway in [&one, &other] {
        assert_eq!(gateway.store().pin_changes().next().await, [*dag[0].cid()].into());
    }
    assert_eq!(one.store().missing(dag[0].cid()).await.expect("is read").blocks, 1);
    one.pin(&dag).await.expect("is pinned again");
    assert!(other.has_all(&dag).await);
    assert_eq!(raw_cid(&key(&dag[1])), *dag[1].cid());
}

/// What an operator sees of a comparison: objects, orphans and lost blocks.
async fn reconciled(
    gateway: &Gateway,
    claims: &Arc<dyn Claims>,
    dry_run: bool,
) -> Result<(u64, u64, u64), ReconcileError> {
    let mut slots = Vec::new();
    let report = |progress: &ReconcileProgress| slots.push(progress.slots);
    let done = gateway.store.reconcile(Arc::clone(claims), dry_run, report).await?;
    assert_eq!((slots, done.slots), ((1..=SLOTS).collect(), SLOTS));
    Ok((done.found.objects, done.found.orphans, done.found.lost))
}

/// Objects that the index does not know are deleted, and blocks without an object are lost; a dry run changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_storage_is_reconciled_by_one_gateway_at_a_time() {
    let site = Site::new().await;
    let (one, other) = (site.gateway().await, site.gateway().await);
    let database = Database::new(&site.server.options(NAME)).expect("the settings are valid");
    let claims = || -> Arc<dyn Claims> {
        Arc::new(DatabaseClaims::new(database.clone(), &ClaimOptions::default()).expect("has random numbers"))
    };
    let (of_one, of_other) = (claims(), claims());
    let dag = blocks("dag", 5);
    one.pin(&dag).await.expect("is pinned");
    let row = site.shared().await.locate(&keys(&dag[2..3])).await.expect("is read")[&key(&dag[2])];
    let objects = folder(&site.dir);
    objects.delete(&row.object.name()).await.expect("is deleted");
    let orphans = [3_u64, 4].map(|number| ObjectId { key: key(&dag[number as usize]), generation: number });
    for orphan in &orphans {
        objects.put(&orphan.name(), Bytes::from_static(b"an orphan")).await.expect("is written");
    }
    assert_eq!(site.objects().await, 6);
    for _ in 0..2 {
        assert_eq!(reconciled(&one, &of_one, true).await.expect("is compared"), (6, 2, 1));
        assert_eq!((site.objects().await, one.state(dag[0].cid()).await), (6, Some(PinState::Complete)));
    }
    // Neither another gateway nor another client of this one begins the same meanwhile.
    let (reached, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let report = move |_: &ReconcileProgress| _ = reached.send(());
    let mut running = Box::pin(one.store.reconcile(Arc::clone(&of_one), true, report));
    tokio::select! {
        done = &mut running => panic!("it has ended before the first report was read: {done:?}"),
        first = receiver.recv() => first.expect("it has begun"),
    }
    for (gateway, claims) in [(&one, &of_one), (&other, &of_other)] {
        let refused = reconciled(gateway, claims, false).await;
        assert!(matches!(refused, Err(ReconcileError::Running)), "{refused:?}");
    }
    // Its client has left.
    drop(running);
    let done = until_some("the claim is released", async || reconciled(&other, &of_other, false).await.ok()).await;
    assert_eq!(done, (6, 2, 1));
    assert_eq!((site.objects().await, one.state(dag[0].cid()).await), (4, Some(PinState::Partial)));
    assert_eq!(one.store().pin_changes().next().await, [*dag[0].cid()].into(), "the pin service learns of it");
    one.pin(&dag).await.expect("is pinned again");
    assert!(other.has_all(&dag).await);
    assert_eq!(reconciled(&one, &of_one, false).await.expect("is compared"), (5, 0, 0));
}

/// Another storage, or none, is no reason to lose a block.
#[tokio::test(flavor = "multi_thread")]
async fn a_storage_without_its_mark_is_not_reconciled() {
    let site = Site::new().await;
    let gateway = site.gateway().await;
    let claims: Arc<dyn Claims> = Arc::new(SingleService);
    let dag = blocks("dag", 3);
    gateway.pin(&dag).await.expect("is pinned");
    let elsewhere = site.dir.path().with_extension("elsewhere");
    std::fs::rename(site.dir.path(), &elsewhere).expect("is unmounted");
    std::fs::create_dir(site.dir.path()).expect("the mount point");
    for dry_run in [true, false] {
        let refused = reconciled(&gateway, &claims, dry_run).await;
        assert!(matches!(refused, Err(ReconcileError::Store(StoreError::Unavailable { .. }))), "{refused:?}");
    }
    std::fs::remove_dir(site.dir.path()).expect("nothing was written");
    std::fs::rename(&elsewhere, site.dir.path()).expect("is mounted");
    assert_eq!(reconciled(&gateway, &claims, false).await.expect("is compared"), (3, 0, 0));
    assert_eq!(gateway.state(dag[0].cid()).await, Some(PinState::Complete));
}

/// What a condition finds, when it does.
async fn until_some<T>(what: &str, condition: impl AsyncFn() -> Option<T>) -> T {
    let found = std::sync::Mutex::new(None);
    until(what, async || {
        let now = condition().await;
        let is_found = now.is_some();
        *found.lock().expect("not poisoned") = now;
        is_found
    })
    .await;
    found.into_inner().expect("not poisoned").expect("was found")
}

/// Gateways that pin and unpin the same DAGs, while the server is killed: what was acknowledged is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn acknowledged_pins_survive_the_database_and_the_gateways() {
    let mut site = Site::new().await;
    let acknowledged = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    for round in 0..2 {
        let mut working = tokio::task::JoinSet::new();
        let completed = Arc::new(AtomicUsize::new(0));
        for number in 0..3 {
            let gateway = site.gateway().await;
            let (acknowledged, completed) = (Arc::clone(&acknowledged), Arc::clone(&completed));
            working.spawn(async move {
                for dag in 0.. {
                    let name = (round, number, dag);
                    if gateway.pin(&blocks(&format!("{name:?}"), 5)).await.is_ok() {
                        acknowledged.lock().expect("no test panics with it").insert(name);
                        completed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        until("pins are completed", async || completed.load(Ordering::Relaxed) > 10).await;
        site.server.kill();
        working.abort_all();
        while working.join_next().await.is_some() {}
        site.server.restart().await;
    }
    let gateway = site.gateway().await;
    let acknowledged = acknowledged.lock().expect("no test panics with it").clone();
    assert!(acknowledged.len() > 20);
    for name in acknowledged {
        let dag = blocks(&format!("{name:?}"), 5);
        until("it can be read", async || gateway.store().pin(dag[0].cid()).await.is_ok()).await;
        assert_eq!(gateway.state(dag[0].cid()).await, Some(PinState::Complete), "{name:?}");
        assert!(gateway.has_all(&dag).await, "{name:?}");
    }
}
