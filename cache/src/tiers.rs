//! [`Tiers`]: RAM, disk, the owner of a root and the shared storage of a site, and an upstream as one source.
//!
//! The order of checks for a request: the policy; an identity CID, which contains its block; hash functions that are
//! not accepted; RAM; then the disk, if the operating system has the block in its page cache; then one singleflight
//! call per block, which reads the disk, the storage that the gateways of a site share, if this gateway belongs to one,
//! and then the upstream, and fills the faster tiers.
//!
//! In a site, each root has an owner among the gateways, which the others ask before they read the shared storage
//! ([`Through::with_owner`]). What the owner returns is put into RAM and on the own disk only: it is the owner that puts
//! it into the shared storage. Singleflight calls that ask an owner are not those that ask the upstream: two gateways
//! may ask each other for one block, below two roots, and would wait for each other.
//!
//! Goals: a block that the policy rejects is not served by any tier; a hit in RAM takes no lock, future or allocation;
//! one fetch per block; a failing disk, or a shared storage that cannot be reached, costs only speed.
//!
//! What the shared storage returns is verified by its hash, since other gateways have written it. That it does not have
//! a block is not cached: another gateway may store the block at any time.
//!
//! [`Tiers::local`] never asks the upstream. It neither joins nor starts a singleflight call, so that serving untrusted
//! peers can neither start a fetch nor wait for one, and it fills neither RAM nor the disk, so that untrusted peers
//! cannot evict the blocks that this gateway's own clients use.

use crate::disk::StoreError;
use crate::metrics::{Tier, TierMetrics, TiersFigures};
use crate::ram::Ram;
use crate::singleflight::{FetchResult, Singleflight};
use crate::store::{BlockStore, Evict, Evicted, withheld_by};
use bytes::Bytes;
use content::stored::{Shape, Stored};
use content::{Block, BlockError, BlockKey, BlockSource, Cid, Policy, ReadAhead, SourceError, Verdict, hashes};
use futures::future::{BoxFuture, FutureExt as _, ready};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

/// The maximum wait of a fetched block for room in the disk's queue. Waiting is the backpressure that bounds memory; a
/// disk that accepts nothing for this long counts as stuck, and later blocks do not wait until it has room.
const DISK_ROOM_WAIT_MAX: Duration = Duration::from_secs(5);

/// After so many reads of the shared storage in a row that did not end in time, it is not read for a moment.
const SITE_LATE_READS_MAX: u32 = 8;
const SITE_PAUSE: Duration = Duration::from_secs(5);

/// Blocks evicted in one call, so that reads and writes can happen in between.
const EVICTED_AT_ONCE: usize = 1024;

/// Learns how the blocks of one request are looked up, for its trace. It is called in the middle of look-ups, and must
/// not block.
pub trait LookupObserver: Send + Sync {
    /// The disk was read for a block from `since` until now; `hit` is whether it has the block.
    fn disk_read(&self, cid: &Cid, since: Instant, hit: bool);

    /// The shared storage of the site was read for a block from `since` until now; `hit` is whether it has the block.
    fn site_read(&self, cid: &Cid, since: Instant, hit: bool);

    /// The gateway of the site that owns the root was asked for a block from `since` until now; `hit` is whether it
    /// returned it.
    fn owner_asked(&self, cid: &Cid, since: Instant, hit: bool);

    /// The block is being fetched for another request, whose result this request shares.
    fn follows(&self, cid: &Cid);
}

/// The upstream of a reader, and its observer if it has one.
#[derive(Clone)]
struct Upstream {
    source: Arc<dyn BlockSource>,
    /// The gateway of the site that owns the root, if it is another one.
    owner: Option<Arc<dyn BlockSource>>,
    observer: Option<Arc<dyn LookupObserver>>,
    /// What is requested after the block, if it is known.
    ahead: Option<Arc<ReadAhead>>,
}

impl Upstream {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, FetchResult> {
        self.get_from(&self.source, cid)
    }

    fn get_from(&self, source: &Arc<dyn BlockSource>, cid: &Cid) -> BoxFuture<'static, FetchResult> {
        match &self.ahead {
            Some(ahead) => source.get_ahead(cid, ahead),
            None => source.get(cid),
        }
    }
}

/// What a gateway of a site shares with the others.
#[derive(Clone)]
pub struct SiteTier {
    /// The own disk and the shared storage as one store: it has the pins, and what is fetched is put here.
    pub store: Arc<dyn BlockStore>,
    /// The blocks in the shared storage, for the gateway's own clients. Of its methods, `get_stored` and `has` are used.
    pub blocks: Arc<dyn BlockSource>,
    /// The same for untrusted peers: a source that gives up sooner (it does not search the storage while the index is
    /// away).
    pub blocks_for_peers: Arc<dyn BlockSource>,
    /// How long a request waits for one of them before it is sent to the upstream.
    pub wait_max: Duration,
}

impl std::fmt::Debug for SiteTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SiteTier").field("store", &self.store).finish_non_exhaustive()
    }
}

/// The shared storage of a site, as a tier.
struct Site {
    blocks: Arc<dyn BlockSource>,
    blocks_for_peers: Arc<dyn BlockSource>,
    tier: Tier,
    wait_max: Duration,
    late_reads: [LateReads; 2],
}

impl Site {
    fn source(&self, reader: Reader) -> &Arc<dyn BlockSource> {
        match reader {
            Reader::Client => &self.blocks,
            Reader::Peer => &self.blocks_for_peers,
        }
    }

    /// A block in its stored form. A storage that hangs is asked seldom, so that it does not delay what others have.
    async fn read(&self, cid: &Cid, reader: Reader) -> Result<Option<Stored>, SourceError> {
        let late_reads = &self.late_reads[reader as usize];
        if late_reads.are_too_many() {
            return Err(SourceError::Store("the shared storage does not answer in time".into()));
        }
        let Ok(read) = tokio::time::timeout(self.wait_max, self.source(reader).get_stored(cid)).await else {
            late_reads.add();
            return Err(SourceError::Store("the shared storage did not answer in time".into()));
        };
        late_reads.in_a_row.store(0, Ordering::Relaxed);
        read
    }
}

/// Reads of the shared storage that did not end in time.
#[derive(Default)]
struct LateReads {
    in_a_row: AtomicU32,
    /// Until when it is not read.
    pause_end: Mutex<Option<Instant>>,
}

impl LateReads {
    fn add(&self) {
        if self.in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= SITE_LATE_READS_MAX {
            *self.pause_end.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + SITE_PAUSE);
        }
    }

    fn are_too_many(&self) -> bool {
        let pause_end = *self.pause_end.lock().unwrap_or_else(PoisonError::into_inner);
        pause_end.is_some_and(|end| Instant::now() < end)
    }
}

/// For whom blocks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// The gateway's own clients: what is read fills the faster tiers.
    Client,
    /// Untrusted peers, and work of the gateway that must not displace what clients use: what is read fills no tier.
    Peer,
}

/// A store that blocks are put into to be cached.
struct FillTarget {
    store: Arc<dyn BlockStore>,
    /// Whether the last write timed out after [`DISK_ROOM_WAIT_MAX`].
    is_stuck: AtomicBool,
}

impl FillTarget {
    fn new(store: Arc<dyn BlockStore>) -> Self {
        Self { store, is_stuck: AtomicBool::new(false) }
    }

    async fn put(&self, block: Block) {
        let stuck = self.is_stuck.load(Ordering::Relaxed);
        let timeout = if stuck { Duration::ZERO } else { DISK_ROOM_WAIT_MAX };
        let taken = tokio::time::timeout(timeout, self.store.put_cached(block)).await.is_ok();
        if !taken {
            self.store.count_dropped_write();
        }
        self.is_stuck.store(!taken, Ordering::Relaxed);
    }
}

/// The local tiers. Clones are handles to the same ones.
#[derive(Clone)]
pub struct Tiers {
    inner: Arc<Inner>,
}

struct Inner {
    ram: Ram,
    /// The own disk, into which blocks of the shared storage are put.
    disk: FillTarget,
    /// The store with the pins, into which fetched blocks are put: the own disk, or that of a site.
    store: FillTarget,
    /// The shared storage, if this gateway belongs to a site.
    site: Option<Site>,
    policy: Arc<dyn Policy>,
    metrics: TierMetrics,
    flights: Singleflight<BlockKey, FetchResult>,
    /// Those that ask the owner of a root.
    owner_flights: Singleflight<BlockKey, FetchResult>,
}

impl std::fmt::Debug for Tiers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { ram, store, flights, .. } = &*self.inner;
        let mut fields = f.debug_struct("Tiers");
        fields.field("ram", ram).field("store", &store.store).field("flights", flights).finish_non_exhaustive()
    }
}

impl Tiers {
    /// Combines the tiers of a gateway that is alone. `disk` may be any kind of store.
    pub fn new(ram: Ram, disk: Arc<dyn BlockStore>, policy: Arc<dyn Policy>, metrics: TierMetrics) -> Self {
        Self::combine(ram, [Arc::clone(&disk), disk], None, policy, metrics)
    }

    /// Combines the tiers of a gateway that belongs to a site. `disk` is its own disk.
    pub fn of_site(
        ram: Ram,
        disk: Arc<dyn BlockStore>,
        site: SiteTier,
        policy: Arc<dyn Policy>,
        metrics: TierMetrics,
    ) -> Self {
        let SiteTier { store, blocks, blocks_for_peers, wait_max } = site;
        let late_reads = Default::default();
        let site = Site { blocks, blocks_for_peers, tier: metrics.add_site(), wait_max, late_reads };
        Self::combine(ram, [disk, store], Some(site), policy, metrics)
    }

    fn combine(
        ram: Ram,
        [disk, store]: [Arc<dyn BlockStore>; 2],
        site: Option<Site>,
        policy: Arc<dyn Policy>,
        metrics: TierMetrics,
    ) -> Self {
        metrics.attach(&ram, &*disk);
        for store in [&disk, &store] {
            let hot = ram.clone();
            store.set_is_hot(Box::new(move |key| hot.holds(key)));
            store.set_is_withheld(withheld_by(&policy));
        }
        let (disk, store) = (FillTarget::new(disk), FillTarget::new(store));
        let [flights, owner_flights] = Default::default();
        Self { inner: Arc::new(Inner { ram, disk, store, site, policy, metrics, flights, owner_flights }) }
    }

    /// The blocks stored locally or in the shared storage, for untrusted peers, and for work of the gateway that must
    /// not displace what clients use. A block in RAM is read from there and counts as used; other blocks fill no tier.
    pub fn local(&self) -> Local {
        Local { inner: Arc::clone(&self.inner), reader: Reader::Peer }
    }

    /// The same for the gateway's own clients (`Cache-Control: only-if-cached`): blocks read from disk fill RAM, and
    /// blocks read from the shared storage fill RAM and the disk.
    pub fn held(&self) -> Local {
        Local { inner: Arc::clone(&self.inner), reader: Reader::Client }
    }

    /// The blocks stored locally, in the shared storage, or available from `upstream`.
    ///
    /// All requests for a block share one singleflight call, even with different upstreams: the call asks the leader's
    /// upstream, and its error applies to the followers, except for followers that joined late, which then ask their
    /// own upstream.
    pub fn through(&self, upstream: Arc<dyn BlockSource>) -> Through {
        self.observed(upstream, None)
    }

    /// The same, with an observer of the look-ups of one request.
    pub fn observed(&self, upstream: Arc<dyn BlockSource>, observer: Option<Arc<dyn LookupObserver>>) -> Through {
        let upstream = Upstream { source: upstream, owner: None, observer, ahead: None };
        Through { inner: Arc::clone(&self.inner), upstream }
    }

    /// An upstream whose blocks are counted as those of the network tier, for a reader that stores them itself. It
    /// reads no other tier.
    pub fn counted(&self, upstream: Arc<dyn BlockSource>) -> Counted {
        Counted { network: self.inner.metrics.network.clone(), upstream }
    }

    /// The stored forms of blocks, without reading them: in the order of the CIDs, `None` for a missing block.
    ///
    /// # Errors
    /// [`SourceError::Refused`] if the policy rejects any of them, or an error of the store.
    pub async fn shapes(&self, cids: &[Cid]) -> Result<Vec<Option<Shape>>, SourceError> {
        let mut keys = Vec::with_capacity(cids.len());
        for cid in cids {
            match self.inner.admit(cid)? {
                Admitted::Stored(key) => keys.push(key),
                Admitted::Inline(_) => return Ok(vec![None; cids.len()]),
            }
        }
        Ok(self.inner.store.store.shapes(keys).await?)
    }

    /// A block in its stored form, if it is on the disk or in the shared storage.
    ///
    /// # Errors
    /// The same.
    pub async fn stored(&self, cid: &Cid) -> Result<Option<Stored>, SourceError> {
        self.inner.stored(cid, Reader::Client).await
    }

    /// A block that is stored locally, whatever the policy says of it: for traversals that do not serve it. It does not
    /// count as used.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn look(&self, cid: &Cid) -> Result<Option<Block>, StoreError> {
        let Some(key) = BlockKey::of(cid) else { return Ok(Block::inline(cid)) };
        let data = match self.inner.ram.find(&key) {
            Some(data) => Some(data),
            None => self.inner.store.store.look(&key).await?,
        };
        Ok(data.map(|data| Block::from_verified(*cid, data)))
    }

    /// Deletes blocks from every tier. A fetch in flight may store one again, unless the policy rejects it by then.
    ///
    /// # Errors
    /// [`StoreError`]; some blocks may have been deleted.
    pub async fn evict(&self, keys: &[BlockKey], which: Evict) -> Result<Evicted, StoreError> {
        self.evict_from(&self.inner.store.store, keys, which).await
    }

    async fn evict_from(
        &self,
        store: &Arc<dyn BlockStore>,
        keys: &[BlockKey],
        which: Evict,
    ) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        for keys in keys.chunks(EVICTED_AT_ONCE) {
            keys.iter().for_each(|key| self.inner.ram.remove(key));
            evicted += store.evict(keys.to_vec(), which).await?;
            // A concurrent read may have filled RAM from the disk.
            keys.iter().for_each(|key| self.inner.ram.remove(key));
        }
        Ok(evicted)
    }

    /// Deletes blocks from RAM and the own disk, also those that pins on the own disk have. The shared storage of a
    /// site keeps them.
    ///
    /// # Errors
    /// [`StoreError`]; some blocks may have been deleted.
    pub async fn evict_from_own(&self, keys: &[BlockKey]) -> Result<Evicted, StoreError> {
        self.evict_from(&self.inner.disk.store, keys, Evict::Everything).await
    }

    /// Requests of the tiers since the start.
    pub fn figures(&self) -> TiersFigures {
        self.inner.metrics.figures()
    }

    /// The policy that decides which blocks are served.
    pub fn policy(&self) -> &Arc<dyn Policy> {
        &self.inner.policy
    }

    /// The block store, which has the pins: the own disk, or that of a site, which is the own disk and the shared
    /// storage.
    pub fn store(&self) -> &Arc<dyn BlockStore> {
        &self.inner.store.store
    }

    /// The own disk: what this gateway reads without asking others.
    pub fn disk(&self) -> &Arc<dyn BlockStore> {
        &self.inner.disk.store
    }

    /// Whether the shared storage has a block; `None` if this gateway belongs to no site.
    ///
    /// # Errors
    /// Those of the shared storage.
    pub async fn is_in_site(&self, cid: &Cid) -> Result<Option<bool>, SourceError> {
        match &self.inner.site {
            Some(site) => site.blocks.has(cid).await.map(Some),
            None => Ok(None),
        }
    }

    /// The RAM cache.
    pub fn ram(&self) -> &Ram {
        &self.inner.ram
    }
}

/// A request that passed the checks.
enum Admitted {
    /// An identity CID, which contains its block.
    Inline(Block),
    /// A block to look up in the tiers.
    Stored(BlockKey),
}

impl Inner {
    /// The checks before any look-up.
    fn admit(&self, cid: &Cid) -> Result<Admitted, SourceError> {
        self.check_policy(cid)?;
        let Some(key) = BlockKey::of(cid) else {
            return Block::inline(cid).map(Admitted::Inline).ok_or(SourceError::NotFound { cid: *cid });
        };
        hashes::check_accepted(cid.hash()).map_err(BlockError::from)?;
        Ok(Admitted::Stored(key))
    }

    fn check_policy(&self, cid: &Cid) -> Result<(), SourceError> {
        match self.policy.check(cid) {
            Verdict::Allow => Ok(()),
            verdict => Err(SourceError::Refused { cid: *cid, verdict }),
        }
    }

    /// The block of an identity CID, unless the policy rejects it.
    fn inline(&self, cid: &Cid) -> Option<Block> {
        Block::inline(cid).filter(|_| self.check_policy(cid).is_ok())
    }

    /// A block available without waiting. `None` also if the policy rejects it: `get` returns the reason.
    fn peek(&self, cid: &Cid) -> Option<Block> {
        match self.admit(cid).ok()? {
            Admitted::Inline(block) => Some(block),
            Admitted::Stored(key) => self.peek_ram(cid, &key),
        }
    }

    fn peek_ram(&self, cid: &Cid, key: &BlockKey) -> Option<Block> {
        let start = self.metrics.ram.sample();
        let data = self.ram.find(key)?;
        self.metrics.ram.hit(data.len());
        if let Some(start) = start {
            self.metrics.ram.observe_since(start);
        }
        Some(Block::from_verified(*cid, data))
    }

    /// A block that the disk returns without waiting.
    fn read_now(&self, cid: &Cid, reader: Reader) -> Option<Block> {
        let Admitted::Stored(key) = self.admit(cid).ok()? else { return None };
        let start = Instant::now();
        let block = self.disk.store.read_now(cid)?;
        self.metrics.disk.hit(block.data().len());
        self.metrics.disk.observe_since(start);
        if reader == Reader::Client {
            self.fill_ram(cid, key, block.data()).ok()?;
        }
        Some(block)
    }

    /// Counts a miss in RAM for a block found below it. If nothing was found, the caller calls `get`, which counts the
    /// miss.
    fn count_ram_miss(&self, below: Option<Block>) -> Option<Block> {
        below.inspect(|_| _ = self.metrics.ram.misses.inc())
    }

    async fn find_on_disk(&self, key: &BlockKey) -> Result<Option<Bytes>, SourceError> {
        let (tier, start) = (&self.metrics.disk, Instant::now());
        let found = self.disk.store.find(key).await;
        tier.observe_since(start);
        match &found {
            Ok(Some(data)) => tier.hit(data.len()),
            Ok(None) => _ = tier.misses.inc(),
            Err(_) => _ = tier.errors.inc(),
        }
        Ok(found?)
    }

    /// A block in its stored form, if it is on the disk or in the shared storage.
    async fn stored(self: &Arc<Self>, cid: &Cid, reader: Reader) -> Result<Option<Stored>, SourceError> {
        let Admitted::Stored(key) = self.admit(cid)? else { return Ok(None) };
        let (tier, start) = (&self.metrics.disk, Instant::now());
        let found = self.disk.store.stored(&key).await;
        tier.observe_since(start);
        match &found {
            Ok(Some(stored)) => tier.hit(stored.value().len()),
            Ok(None) => _ = tier.misses.inc(),
            Err(_) => _ = tier.errors.inc(),
        }
        let found = match found {
            Ok(Some(stored)) => Some(stored),
            missing => match self.find_below_disk(cid, reader, missing.err().map(Into::into)).await? {
                None => None,
                Some(block) => {
                    let stored = block.stored().map(|stored| (**stored).clone());
                    if reader == Reader::Client {
                        self.spawn_keep(key, block).await?;
                    }
                    stored
                }
            },
        };
        // The policy may have changed during the read.
        self.check_policy(cid)?;
        Ok(found)
    }

    /// A block in the shared storage, for a reader that does not use the upstream; `failed` is the disk's error.
    async fn find_below_disk(
        &self,
        cid: &Cid,
        reader: Reader,
        failed: Option<SourceError>,
    ) -> Result<Option<Block>, SourceError> {
        match (self.find_in_site(cid, reader).await, failed) {
            (Ok(Some(block)), _) => Ok(Some(block)),
            (_, Some(failed)) | (Err(failed), None) => Err(failed),
            (Ok(None), None) => Ok(None),
        }
    }

    /// A block in the shared storage, with its stored form; `None` if it is not there, or there is no such storage.
    async fn find_in_site(&self, cid: &Cid, reader: Reader) -> Result<Option<Block>, SourceError> {
        let Some(site) = &self.site else { return Ok(None) };
        let (tier, start) = (&site.tier, Instant::now());
        let found = match site.read(cid, reader).await {
            Ok(Some(stored)) => verify(*cid, stored).await.map(Some),
            Ok(None) | Err(SourceError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        tier.observe_since(start);
        match &found {
            Ok(Some(block)) => tier.hit(block.data().len()),
            Ok(None) => _ = tier.misses.inc(),
            Err(error) => {
                tier.errors.inc();
                debug!(%cid, %error, "the shared storage cannot be read");
            }
        }
        found
    }

    async fn get_upstream(&self, upstream: &Upstream, cid: &Cid) -> FetchResult {
        let outcome = get_counted(&self.metrics.network, upstream.get(cid)).await;
        outcome?.under(cid).ok_or(SourceError::Corrupt { cid: *cid })
    }

    /// Fetches a block in a task of its own, which is aborted when the last caller leaves. A client that does not read
    /// does not poll the fetch either, and must not occupy a slot in a queue meanwhile.
    async fn spawn_fetch(self: Arc<Self>, upstream: Upstream, cid: Cid, key: BlockKey) -> FetchResult {
        let task = tokio::spawn(self.fetch(upstream, cid, key));
        AbortOnDropHandle::new(task).await.unwrap_or(Err(SourceError::Closed))
    }

    /// Fetches a block from the disk, the shared storage or the upstream.
    async fn fetch(self: Arc<Self>, upstream: Upstream, cid: Cid, key: BlockKey) -> FetchResult {
        // An earlier call may have completed between this caller's look-up in RAM and the start of this call.
        if let Some(data) = self.ram.find_again(&key) {
            return Ok(Block::from_verified(cid, data));
        }
        let since = upstream.observer.is_some().then(Instant::now);
        let found = self.find_on_disk(&key).await;
        if let (Some(observer), Some(since)) = (&upstream.observer, since) {
            observer.disk_read(&cid, since, matches!(found, Ok(Some(_))));
        }
        let disk_failed = match found {
            Ok(Some(data)) => {
                self.fill_ram(&cid, key, &data)?;
                return Ok(Block::from_verified(cid, data));
            }
            Ok(None) => None,
            Err(error) => {
                debug!(%cid, %error, "the disk read failed; the block is requested from other tiers");
                Some(error)
            }
        };
        if let Some(block) = Block::empty(&cid) {
            self.fill_ram(&cid, key, block.data())?;
            return Ok(block);
        }
        if let Some(owner) = &upstream.owner {
            return match self.ask_owner(owner, &upstream, &cid).await {
                // It cannot be asked. What others fetch without it is shared.
                Err(SourceError::Closed) => self.fetch_without_owner(upstream, cid, key).await,
                // What follows the block is requested from the owner, and not a second time.
                Err(SourceError::NotFound { .. }) => {
                    self.fetch_without_owner(Upstream { ahead: None, ..upstream }, cid, key).await
                }
                // It may be unable to read the shared storage.
                Err(error @ SourceError::Stalled { .. }) => match self.find_in_site_observed(&upstream, &cid).await {
                    Ok(Some(block)) => self.keep(key, block, &self.disk).await,
                    _ => Err(error),
                },
                returned => self.keep(key, returned?, &self.disk).await,
            };
        }
        let site_failed = match self.find_in_site_observed(&upstream, &cid).await {
            Ok(Some(block)) => return self.keep(key, block, &self.disk).await,
            missing => missing.err(),
        };
        let block = match (self.get_upstream(&upstream, &cid).await, disk_failed.or(site_failed)) {
            // The upstream does not have it, but the disk or the shared storage may: report the error of that.
            (Err(SourceError::NotFound { .. }), Some(failed)) => return Err(failed),
            (result, _) => result?,
        };
        self.keep(key, block, &self.store).await
    }

    /// Joins the call of those that do not ask the owner. Its type is not the caller's own, which calls it.
    fn fetch_without_owner(
        self: Arc<Self>,
        upstream: Upstream,
        cid: Cid,
        key: BlockKey,
    ) -> BoxFuture<'static, FetchResult> {
        self.join(Upstream { owner: None, ..upstream }, cid, key).boxed()
    }

    /// Asks the owner of a root. What it returns is verified.
    async fn ask_owner(&self, owner: &Arc<dyn BlockSource>, upstream: &Upstream, cid: &Cid) -> FetchResult {
        let since = Instant::now();
        let returned = upstream.get_from(owner, cid).await;
        if let Some(observer) = &upstream.observer {
            observer.owner_asked(cid, since, returned.is_ok());
        }
        returned?.under(cid).ok_or(SourceError::Corrupt { cid: *cid })
    }

    async fn find_in_site_observed(&self, upstream: &Upstream, cid: &Cid) -> Result<Option<Block>, SourceError> {
        let since = Instant::now();
        let found = self.find_in_site(cid, Reader::Client).await;
        if let (Some(observer), Some(_)) = (&upstream.observer, &self.site) {
            observer.site_read(cid, since, matches!(found, Ok(Some(_))));
        }
        found
    }

    /// Stores a block in RAM, and in a store to be cached, unless the policy rejects it by then.
    async fn keep(&self, key: BlockKey, block: Block, target: &FillTarget) -> FetchResult {
        self.fill_ram(block.cid(), key, block.data())?;
        target.put(block.clone()).await;
        if self.check_policy(block.cid()).is_err() {
            _ = target.store.evict(vec![key], Evict::Unpinned).await;
        }
        // The windows of readers count the bytes of blocks, and the store has taken what it writes.
        Ok(block.without_stored())
    }

    /// [`Self::keep`] on the own disk, in a task of its own, for the reason of [`Self::spawn_fetch`].
    async fn spawn_keep(self: &Arc<Self>, key: BlockKey, block: Block) -> FetchResult {
        let inner = Arc::clone(self);
        let task = tokio::spawn(async move { inner.keep(key, block, &inner.disk).await });
        AbortOnDropHandle::new(task).await.unwrap_or(Err(SourceError::Closed))
    }

    /// Stores a block in RAM, unless the policy rejects it by then. A takedown updates the policy before it evicts, so
    /// that either its eviction sees this block or this check sees the new policy.
    fn fill_ram(&self, cid: &Cid, key: BlockKey, data: &Bytes) -> Result<(), SourceError> {
        self.ram.insert(key, data);
        self.check_policy(cid).inspect_err(|_| self.ram.remove(&key))
    }

    async fn join(self: Arc<Self>, upstream: Upstream, cid: Cid, key: BlockKey) -> FetchResult {
        let start = Instant::now();
        let flights = if upstream.owner.is_some() { &self.owner_flights } else { &self.flights };
        let fetch = || Arc::clone(&self).spawn_fetch(upstream.clone(), cid, key);
        let call = flights.join(key, fetch);
        if call.1 {
            self.metrics.followers.inc();
            if let Some(observer) = &upstream.observer {
                observer.follows(&cid);
            }
        }
        // The limits of the leader's client do not apply to followers.
        let leader_only = |outcome: &FetchResult| outcome.as_ref().is_err_and(SourceError::is_of_client);
        let (outcome, is_follower) = flights.land(key, call, fetch, leader_only).await;
        let outcome = match outcome {
            // The leader may have asked another upstream. A follower that joined late still has time for a search.
            Err(SourceError::Stalled { stall, .. }) if is_follower && start.elapsed() < stall.waited / 2 => {
                Arc::clone(&self).spawn_fetch(upstream, cid, key).await
            }
            outcome => outcome,
        };
        let block = outcome.map_err(|error| rename(error, &cid))?;
        // The policy may have changed during the fetch.
        self.check_policy(&cid)?;
        block.under(&cid).ok_or(SourceError::Corrupt { cid })
    }

    async fn get_local(self: Arc<Self>, cid: Cid, key: BlockKey, reader: Reader) -> FetchResult {
        // The Bitswap server does not call `read_now` before this.
        if let Some(block) = self.read_now(&cid, reader) {
            return Ok(block);
        }
        let failed = match self.find_on_disk(&key).await {
            Ok(Some(data)) => {
                match reader {
                    Reader::Client => self.fill_ram(&cid, key, &data)?,
                    Reader::Peer => self.check_policy(&cid)?,
                }
                return Ok(Block::from_verified(cid, data));
            }
            missing => missing.err(),
        };
        let block = self.find_below_disk(&cid, reader, failed).await?.ok_or(SourceError::NotFound { cid })?;
        match reader {
            Reader::Client => self.spawn_keep(key, block).await,
            Reader::Peer => self.check_policy(&cid).map(|()| block.without_stored()),
        }
    }

    fn has(self: &Arc<Self>, cid: &Cid, reader: Reader) -> BoxFuture<'static, Result<bool, SourceError>> {
        match self.admit(cid) {
            Err(error) => return ready(Err(error)).boxed(),
            Ok(Admitted::Inline(_)) => return ready(Ok(true)).boxed(),
            Ok(Admitted::Stored(key)) if self.ram.holds(&key) => return ready(Ok(true)).boxed(),
            Ok(Admitted::Stored(_)) => {}
        }
        let on_disk = self.disk.store.has(cid);
        let Some(site) = &self.site else { return on_disk };
        let (shared, cid) = (Arc::clone(site.source(reader)), *cid);
        async move {
            let on_disk = on_disk.await;
            if on_disk == Ok(true) {
                return on_disk;
            }
            match shared.has(&cid).await {
                Ok(true) => Ok(true),
                Ok(false) => on_disk,
                Err(error) => on_disk.and(Err(error)),
            }
        }
        .boxed()
    }

    /// Reads a block from RAM, or else with `below`.
    fn get(
        self: &Arc<Self>,
        cid: &Cid,
        below: impl FnOnce(Arc<Self>, BlockKey) -> BoxFuture<'static, FetchResult>,
    ) -> BoxFuture<'static, FetchResult> {
        let key = match self.admit(cid) {
            Err(error) => return ready(Err(error)).boxed(),
            Ok(Admitted::Inline(block)) => return ready(Ok(block)).boxed(),
            Ok(Admitted::Stored(key)) => key,
        };
        // A caller that called `peek` before is not counted twice.
        if self.ram.holds(&key)
            && let Some(block) = self.peek_ram(cid, &key)
        {
            return ready(Ok(block)).boxed();
        }
        self.metrics.ram.misses.inc();
        below(Arc::clone(self), key)
    }
}

/// Verifies a block of the shared storage, on a thread for blocking work: it is decompressed and hashed.
async fn verify(cid: Cid, stored: Stored) -> FetchResult {
    let verified = tokio::task::spawn_blocking(move || Block::verify_stored(cid, stored)).await;
    verified.map_err(|_| SourceError::Closed)?.map_err(|error| {
        warn!(%cid, %error, "the shared storage has an invalid block");
        // Followers may have asked with another codec.
        SourceError::Store("the shared storage has a block that does not match its hash".into())
    })
}

/// Fetches a block, and counts the outcome in the network tier.
async fn get_counted(network: &Tier, get: impl Future<Output = FetchResult>) -> FetchResult {
    let start = Instant::now();
    let outcome = get.await;
    network.observe_since(start);
    match &outcome {
        Ok(block) => network.hit(block.data().len()),
        Err(SourceError::NotFound { .. } | SourceError::Stalled { .. }) => _ = network.misses.inc(),
        Err(_) => _ = network.errors.inc(),
    }
    outcome
}

/// Replaces the leader's CID in an error, which may have another codec, by this caller's.
fn rename(error: SourceError, cid: &Cid) -> SourceError {
    let cid = *cid;
    match error {
        SourceError::NotFound { .. } => SourceError::NotFound { cid },
        SourceError::Stalled { stall, .. } => SourceError::Stalled { cid, stall },
        SourceError::Corrupt { .. } => SourceError::Corrupt { cid },
        SourceError::Refused { verdict, .. } => SourceError::Refused { cid, verdict },
        other => other,
    }
}

/// The tiers without an upstream: see [`Tiers::local`] and [`Tiers::held`].
#[derive(Clone)]
pub struct Local {
    inner: Arc<Inner>,
    reader: Reader,
}

impl BlockSource for Local {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.inner.peek(cid)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.inner.inline(cid)
    }

    fn read_now(&self, cid: &Cid) -> Option<Block> {
        self.inner.count_ram_miss(self.inner.read_now(cid, self.reader))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (wanted, reader) = (*cid, self.reader);
        self.inner.get(cid, move |inner, key| inner.get_local(wanted, key, reader).boxed())
    }

    /// A block that is only in RAM has no stored form.
    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        let (inner, cid, reader) = (Arc::clone(&self.inner), *cid, self.reader);
        async move { inner.stored(&cid, reader).await }.boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.inner.has(cid, self.reader)
    }
}

/// The tiers with an upstream: see [`Tiers::through`].
#[derive(Clone)]
pub struct Through {
    inner: Arc<Inner>,
    upstream: Upstream,
}

impl Through {
    /// Blocks that are neither in RAM nor on the disk are requested from `owner`, the gateway of the site that owns the
    /// root, before the shared storage is read. If it fails with [`SourceError::Closed`], it cannot be asked, and the block
    /// is looked up in the shared storage and the upstream; the same with [`SourceError::NotFound`], but what follows the
    /// block is not read ahead, since the owner is asked for it. Its other errors are those of the look-up.
    #[must_use]
    pub fn with_owner(mut self, owner: Option<Arc<dyn BlockSource>>) -> Self {
        self.upstream.owner = owner;
        self
    }
}

impl BlockSource for Through {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.inner.peek(cid)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.inner.inline(cid)
    }

    fn read_now(&self, cid: &Cid) -> Option<Block> {
        self.inner.count_ram_miss(self.inner.read_now(cid, Reader::Client))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (wanted, upstream) = (*cid, self.upstream.clone());
        self.inner.get(cid, move |inner, key| inner.join(upstream, wanted, key).boxed())
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (wanted, upstream) = (*cid, &self.upstream);
        self.inner.get(cid, move |inner, key| {
            // Of those that wait for the block, the leader's is used.
            let upstream = Upstream { ahead: Some(Arc::new(ahead.clone())), ..upstream.clone() };
            inner.join(upstream, wanted, key).boxed()
        })
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.inner.has(cid, Reader::Client)
    }
}

/// An upstream that is counted: see [`Tiers::counted`].
#[derive(Clone)]
pub struct Counted {
    network: Tier,
    upstream: Arc<dyn BlockSource>,
}

impl BlockSource for Counted {
    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.upstream.inline(cid)
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (network, getting) = (self.network.clone(), self.upstream.get(cid));
        async move { get_counted(&network, getting).await }.boxed()
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (network, getting) = (self.network.clone(), self.upstream.get_ahead(cid, ahead));
        async move { get_counted(&network, getting).await }.boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.upstream.has(cid)
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Through {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Through").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted").finish_non_exhaustive()
    }
}
