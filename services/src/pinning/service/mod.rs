//! [`Pins`]: the operations on requests.
//!
//! | module | concern |
//! |---|---|
//! | `commit` | decisions become changes of the log and of the index; changes of other services |
//! | `adding` | creation of requests |
//! | `settling` | outcomes of requests |
//! | `removal` | unpinning: who may remove which request, and the removal of pins that are no longer needed |
//! | `retry` | retries at an operator's word |
//! | `loading` | the start of the service |
//! | `block_loss` | pins that lose blocks |
//! | `origins` | origins that connect |
//!
//! Changes are serialised: each is decided on the index, appended to the log, and only then applied to the index, so
//! that nothing is visible that a power failure may undo. A change completes even if its caller is cancelled. Removing
//! the store's pins and announcing roots are follow-ups, during which the next change may begin: removing a pin of a
//! million blocks delays no request of another owner. Requests for a root whose pin is being removed wait in the queue.
//!
//! The store's pin of a root is removed when it is no longer needed. That it is to be removed is written with the
//! change that decides it, and cleared after the removal, so that a process that is killed in between leaves no pin
//! without a request.
//!
//! Services that share a store agree on removals by the log. While it has the note of one, no service acknowledges the
//! root as pinned. The note is cleared when the pin is known to be removed, so that what is stored afterwards is
//! another pin, with another ID. A service that was paused, or whose statement is delayed on its way to the database,
//! removes only the pin that it found before it last saw its note. If a service does not complete a removal, others
//! take it over.

pub use self::loading::DamageReport;

mod adding;
mod block_loss;
mod commit;
mod loading;
mod origins;
mod removal;
mod retry;
mod settling;

use crate::pinning::clock::whole_millis;
use crate::pinning::coordination::{Claims, Coordination};
use crate::pinning::filter::{Filter, Page, PreparedFilter};
use crate::pinning::index::{Counts, Index, Retries, millis, time};
use crate::pinning::metrics::PinMetrics;
use crate::pinning::reach::PinNetwork;
use crate::pinning::request::{Owner, PinRequest, Progress, Status};
use cache::pins::PinChanges;
use cache::{BlockStore, MetadataLog, MetadataStore, PinSummary, Ram, StoreError, TierMetrics, Tiers};
use content::{AllowAll, Cid, Policy};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use libp2p::Multiaddr;
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The maximum number of concurrent dials for requests that are added while their root is being fetched.
const DIALS_MAX: usize = 16;

/// Options of the service.
#[derive(Debug, Clone)]
pub struct PinOptions {
    /// The maximum number of DAGs that are fetched concurrently.
    pub workers_max: usize,
    /// The maximum number of requests of all owners.
    pub pins_max: usize,
    /// How long after the last received block a DAG is retried.
    pub give_up: Duration,
    /// The back-off after the first failure, and the longest one after failures of the store. It doubles with each
    /// further one.
    pub retry_first: Duration,
    /// The longest back-off.
    pub retry_max: Duration,
    /// How old a pin without a request has to be to get one, if services share the store: until then, another one may
    /// be making it.
    pub adopted_after: Duration,
    /// After how long a service takes over the removal of a pin that another one has not completed: it may have stopped
    /// for good.
    pub removals_taken_over_after: Duration,
    /// The longest back-off of the removal of a pin that fails, if services share the store. It begins with a second.
    pub removal_retry_max: Duration,
}

impl Default for PinOptions {
    fn default() -> Self {
        Self {
            workers_max: 8,
            pins_max: 200_000,
            give_up: Duration::from_hours(24),
            retry_first: Duration::from_secs(30),
            retry_max: Duration::from_hours(1),
            adopted_after: Duration::from_hours(24),
            removals_taken_over_after: Duration::from_secs(60),
            removal_retry_max: Duration::from_secs(30),
        }
    }
}

/// Why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PinsError {
    /// The owner has no such request.
    #[error("there is no such pin")]
    NotFound,
    /// A parameter exceeds its limit.
    #[error("{0}")]
    Invalid(String),
    /// The owner has reached its quota of pins or bytes.
    #[error("{0}")]
    Quota(String),
    /// The service has reached its maximum number of requests.
    #[error("{0}")]
    Full(String),
    /// The root to record is not pinned in the store.
    #[error("{root} is not pinned in the store")]
    NotPinned {
        /// The root to record.
        root: Cid,
    },
    /// Another run of the import has taken over ([`RepeatableImport`](crate::pinning::RepeatableImport)).
    #[error("the import was taken over, and continues elsewhere")]
    TakenOver,
    /// The disk failed, or the service is stopped.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What an owner uses of its quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaUsage {
    /// The number of requests, in any state.
    pub pins: u64,
    /// The stored bytes of their DAGs; a DAG that is requested twice counts once.
    pub bytes: u64,
}

/// What remains of an owner's quota; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemainingQuota {
    /// Requests.
    pub pins: Option<u64>,
    /// Bytes.
    pub bytes: Option<u64>,
}

/// A slow action after a change: writes of the store, or queues of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pinning) enum FollowUp {
    /// Removes the store's pin of a root, which [`Index::begin_removal`] has marked, and numbered.
    Remove(Cid, u64),
    /// Announces a pinned root.
    Announce(Cid),
    /// Removes the store's pin of a root that nothing needs, after the log says so.
    RemoveUnneeded(Cid),
}

/// Protects the store's pin of a root from removal until it is dropped.
#[must_use]
pub struct Protection {
    pins: Arc<Pins>,
    root: Cid,
}

impl Drop for Protection {
    fn drop(&mut self) {
        let is_removable = self.pins.index_mut().release(&self.root);
        if let (true, Ok(runtime)) = (is_removable, Handle::try_current()) {
            let (pins, root) = (Arc::clone(&self.pins), self.root);
            runtime.spawn(async move {
                if let Err(error) = pins.remove_unneeded(root).await {
                    tracing::warn!(%root, %error, "removing a pin that is no longer needed failed");
                }
            });
        }
    }
}

/// The pin service. Changes of requests are on the disk when a method returns.
pub struct Pins {
    pub(in crate::pinning) options: PinOptions,
    pub(in crate::pinning) store: Arc<dyn BlockStore>,
    pub(in crate::pinning) reach: PinNetwork,
    pub(in crate::pinning) metrics: PinMetrics,
    /// Notified when a root may have become due.
    pub(in crate::pinning) wake: Notify,
    pub(in crate::pinning) stopping: CancellationToken,
    /// The tokens that cancel the workers, by root.
    pub(in crate::pinning) workers: Mutex<HashMap<Cid, CancellationToken>>,
    /// The permits of dials for requests that are added while their root is being fetched.
    dials: Arc<Semaphore>,
    log: Arc<dyn MetadataLog>,
    pub(in crate::pinning) claims: Arc<dyn Claims>,
    /// Other services append to the log.
    is_shared: bool,
    /// The name of this process in the log: the peer ID of its node, and when it began. A former process of the node may
    /// only have been paused.
    name: String,
    index: RwLock<Index>,
    /// Serialises changes.
    changes: tokio::sync::Mutex<()>,
    /// Roots that nothing needs, whose pins this service could not remove because the log or the store failed.
    left_over: Mutex<Retries>,
    /// The follow-ups of the change in progress.
    follow_ups: Mutex<Vec<FollowUp>>,
    /// The follow-ups that run.
    follow_up_tasks: TaskTracker,
    /// The roots whose missing blocks are to be counted.
    unmeasured: Arc<PinChanges>,
    /// One adoption records its requests at a time.
    pub(in crate::pinning) adoptions: tokio::sync::Mutex<()>,
    dispatcher: Mutex<Option<JoinHandle<()>>>,
    /// Cancelled when the dispatcher, or a task that watches pin changes or other services, has ended.
    ended: CancellationToken,
    /// Why no more changes are made, if the log has one that this release cannot apply.
    halted: OnceLock<StoreError>,
    damage: Mutex<Option<DamageReport>>,
}

impl Pins {
    /// Starts the service with the pin metadata and the block store, and resumes pending requests.
    ///
    /// # Errors
    /// The error of the disk, or that the pin metadata store cannot be read.
    pub fn start(
        options: PinOptions,
        coordination: Coordination,
        store: Arc<dyn BlockStore>,
        reach: PinNetwork,
        metrics: PinMetrics,
    ) -> BoxFuture<'static, Result<Arc<Self>, StoreError>> {
        let starting = async move {
            let pins = Arc::new(Self::new(options, coordination, store, reach, metrics));
            pins.load().await?;
            pins.incomplete().into_iter().for_each(|root| pins.unmeasured.note(root));
            let measuring = block_loss::measure_waiting(Arc::downgrade(&pins), Arc::clone(&pins.unmeasured));
            pins.follow_up_tasks.spawn(pins.stopping.clone().run_until_cancelled_owned(measuring));
            let (dispatching, ended) = (Arc::clone(&pins).dispatch(), pins.ended.clone().drop_guard());
            *pins.dispatcher() = Some(tokio::spawn(async move {
                let _ended = ended;
                dispatching.await;
            }));
            let watching = block_loss::watch(Arc::downgrade(&pins), pins.stopping.clone(), pins.store.pin_changes());
            let ended = pins.ended.clone().drop_guard();
            tokio::spawn(async move {
                let _ended = ended;
                watching.await;
            });
            if let Some(latest) = pins.log.watch() {
                let following = commit::follow(Arc::downgrade(&pins), pins.stopping.clone(), latest);
                let ended = pins.ended.clone().drop_guard();
                tokio::spawn(async move {
                    let _ended = ended;
                    following.await;
                });
            }
            if let Some(bridge) = &pins.reach.bridge {
                let connections = bridge.inbound_connections();
                tokio::spawn(origins::watch(Arc::downgrade(&pins), pins.stopping.clone(), connections));
            }
            Ok(pins)
        };
        starting.boxed()
    }

    /// A service for commands that run without a gateway. It does everything but fetch.
    ///
    /// # Errors
    /// As [`Pins::start`].
    pub async fn alone(coordination: Coordination, store: &Arc<dyn BlockStore>) -> Result<Arc<Self>, StoreError> {
        Self::alone_with(PinOptions::default(), coordination, store).await
    }

    /// The same with options.
    pub(in crate::pinning) async fn alone_with(
        options: PinOptions,
        coordination: Coordination,
        store: &Arc<dyn BlockStore>,
    ) -> Result<Arc<Self>, StoreError> {
        let pins = Self::without_workers(options, coordination, store);
        pins.load().await?;
        for root in pins.incomplete() {
            pins.measure_inactive(&root).await;
        }
        pins.changed();
        Ok(pins)
    }

    /// An empty service in memory that does not fetch, for tests.
    pub fn idle(store: &Arc<dyn BlockStore>) -> Arc<Self> {
        Self::without_workers(PinOptions::default(), Coordination::single(MetadataStore::memory()), store)
    }

    fn without_workers(options: PinOptions, coordination: Coordination, store: &Arc<dyn BlockStore>) -> Arc<Self> {
        let policy: Arc<dyn Policy> = Arc::new(AllowAll);
        let tiers = TierMetrics::register(&mut Registry::default());
        let tiers = Tiers::new(Ram::new(1 << 20), Arc::clone(store), Arc::clone(&policy), tiers);
        let reach = PinNetwork::local_only(&tiers, policy);
        Arc::new(Self::new(options, coordination, Arc::clone(store), reach, PinMetrics::default()))
    }

    fn new(
        options: PinOptions,
        coordination: Coordination,
        store: Arc<dyn BlockStore>,
        reach: PinNetwork,
        metrics: PinMetrics,
    ) -> Self {
        let Coordination { log, claims } = coordination;
        let mut index = Index::default();
        index.retry_first_ms = whole_millis(options.retry_first);
        index.removal_retry_max = options.removal_retry_max;
        Self {
            options,
            store,
            name: format!("{}/{}", reach.peer_id, now_ms()),
            reach,
            metrics,
            wake: Notify::new(),
            stopping: CancellationToken::new(),
            workers: Mutex::default(),
            dials: Arc::new(Semaphore::new(DIALS_MAX)),
            is_shared: log.watch().is_some(),
            log,
            claims,
            index: RwLock::new(index),
            changes: tokio::sync::Mutex::default(),
            left_over: Mutex::default(),
            follow_ups: Mutex::default(),
            follow_up_tasks: TaskTracker::new(),
            unmeasured: Arc::default(),
            adoptions: tokio::sync::Mutex::default(),
            dispatcher: Mutex::default(),
            ended: CancellationToken::new(),
            halted: OnceLock::new(),
            damage: Mutex::default(),
        }
    }

    /// The damage of the pin metadata store that was found at the start, if any.
    pub fn damage(&self) -> Option<DamageReport> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops the workers, and waits for them. Fetched blocks are kept, and the next start continues.
    pub async fn stop(&self) {
        self.stopping.cancel();
        let dispatcher = self.dispatcher().take();
        if let Some(dispatcher) = dispatcher {
            _ = dispatcher.await;
        }
        self.follow_up_tasks.close();
        self.follow_up_tasks.wait().await;
    }

    /// Waits until the service fetches no more: it was stopped, or failed because of a defect.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.ended.clone().cancelled_owned()
    }

    /// A request of an owner.
    pub fn get(&self, owner: &str, id: &str) -> Option<PinRequest> {
        self.index().get(owner, id)
    }

    /// The requests of an owner for a root.
    pub fn of_root(&self, owner: &str, root: &Cid) -> Vec<PinRequest> {
        let index = self.index();
        let ids = index.requests_for(root, |entry| *entry.owner == *owner);
        ids.iter().filter_map(|id| index.get(owner, id)).collect()
    }

    /// Lists the requests of an owner that match a filter. The task yields in between, and can be cancelled; concurrent
    /// changes may or may not be included.
    pub async fn list(&self, owner: &str, filter: &Filter) -> Page {
        self.list_of(Some(owner), filter).await
    }

    /// Lists the requests of all owners that match a filter, for the operator.
    pub async fn list_all(&self, filter: &Filter) -> Page {
        self.list_of(None, filter).await
    }

    async fn list_of(&self, owner: Option<&str>, filter: &Filter) -> Page {
        let (filter, mut page) = (PreparedFilter::of(filter), Page::default());
        let mut before_ms = filter.before_ms();
        loop {
            // The lock is held briefly.
            let next_ms = page.extend(&self.index(), owner, &filter, before_ms);
            let Some(next_ms) = next_ms else { return page };
            before_ms = next_ms;
            tokio::task::yield_now().await;
        }
    }

    /// The creation time of a request of any owner.
    pub fn created(&self, id: &str) -> Option<SystemTime> {
        self.index().entry(id).map(|entry| time(entry.created_ms))
    }

    /// All owners of requests, and what they use of their quotas.
    pub fn owners(&self) -> Vec<(Arc<str>, QuotaUsage)> {
        let index = self.index();
        let used = |owner: &Arc<str>| {
            let (pins, bytes) = index.used(owner);
            (Arc::clone(owner), QuotaUsage { pins, bytes })
        };
        index.owners().map(used).collect()
    }

    /// The numbers of requests and roots.
    pub fn counts(&self) -> Counts {
        self.index().counts()
    }

    /// Whether the pin metadata is damaged and can only be read, so that pins cannot be changed.
    pub fn is_read_only(&self) -> bool {
        self.log.is_read_only()
    }

    /// What an owner uses of its quota.
    pub fn used(&self, owner: &str) -> QuotaUsage {
        let (pins, bytes) = self.index().used(owner);
        QuotaUsage { pins, bytes }
    }

    /// What remains of an owner's quota: to be checked before and during an upload.
    pub fn room(&self, owner: &Owner) -> RemainingQuota {
        let used = self.used(&owner.id);
        RemainingQuota {
            pins: owner.pins_max.map(|most| most.saturating_sub(used.pins)),
            bytes: owner.bytes_max.map(|most| most.saturating_sub(used.bytes)),
        }
    }

    /// The zstd file of a pinned root, if it is that of a packed file.
    pub fn zstd_file(&self, root: &Cid) -> Option<Cid> {
        self.store.zstd_file(root)
    }

    /// The addresses to which pinning clients may connect to provide content; between 1 and 20.
    pub async fn delegates(&self) -> Vec<Multiaddr> {
        self.reach.delegates().await
    }

    /// Waits until a request is pinned or has failed, and returns it. `on_change` is called first and after each change
    /// of its progress.
    ///
    /// # Errors
    /// [`PinsError::NotFound`] if there is no such request, or it is removed meanwhile.
    pub async fn settled(
        &self,
        owner: &str,
        id: &str,
        mut on_change: impl FnMut(&PinRequest),
    ) -> Result<PinRequest, PinsError> {
        loop {
            let root = self.get(owner, id).ok_or(PinsError::NotFound)?.root;
            let Some(mut changes) = self.index_mut().watch(&root) else { continue };
            loop {
                let request = self.get(owner, id).ok_or(PinsError::NotFound)?;
                on_change(&request);
                if matches!(request.status, Status::Pinned | Status::Failed) {
                    return Ok(request);
                }
                if changes.changed().await.is_err() {
                    break;
                }
            }
        }
    }

    /// Runs a change in a cancellation-safe task, after the changes before it. Returns when its follow-ups are
    /// complete, for which later changes do not wait.
    pub(in crate::pinning) async fn spawn_change<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl Future<Output = Result<T, PinsError>> + Send + 'static,
    ) -> Result<T, PinsError> {
        self.spawn(change, true).await
    }

    /// The same, for workers, which do not wait for the follow-ups either.
    pub(in crate::pinning) async fn spawn_worker_change<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl Future<Output = Result<T, PinsError>> + Send + 'static,
    ) -> Result<T, PinsError> {
        self.spawn(change, false).await
    }

    async fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl Future<Output = Result<T, PinsError>> + Send + 'static,
        waits: bool,
    ) -> Result<T, PinsError> {
        let pins = Arc::clone(self);
        let working = tokio::spawn(async move {
            let (changed, follow_ups) = pins.change(change).await;
            if waits {
                join_all(follow_ups).await;
            }
            changed
        });
        working.await.unwrap_or(Err(PinsError::Store(StoreError::Closed)))
    }

    /// Runs a change under the lock of changes, and starts its follow-ups.
    async fn change<T>(self: &Arc<Self>, change: impl Future<Output = T>) -> (T, Vec<JoinHandle<()>>) {
        let (changed, follow_ups) = {
            let _turn = self.changes.lock().await;
            let changed = change.await;
            (changed, std::mem::take(&mut *self.follow_ups()))
        };
        let start = |follow_up| {
            let pins = Arc::clone(self);
            self.follow_up_tasks.spawn(async move { pins.follow_up(follow_up).await })
        };
        (changed, follow_ups.into_iter().map(start).collect())
    }

    pub(in crate::pinning) fn follow_ups(&self) -> MutexGuard<'_, Vec<FollowUp>> {
        self.follow_ups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the metrics, and wakes the dispatcher.
    pub(in crate::pinning) fn changed(&self) {
        self.metrics.show(&self.index().counts());
        self.wake.notify_one();
    }

    pub(in crate::pinning) fn index(&self) -> RwLockReadGuard<'_, Index> {
        // A lock holder leaves the index inconsistent only by a defect, from which a restart recovers.
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::pinning) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::pinning) fn workers(&self) -> MutexGuard<'_, HashMap<Cid, CancellationToken>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dispatcher(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.dispatcher.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(in crate::pinning) fn progress(pin: &PinSummary) -> Progress {
    Progress { blocks: pin.blocks, bytes: pin.bytes }
}

pub(in crate::pinning) fn now_ms() -> u64 {
    millis(SystemTime::now())
}
