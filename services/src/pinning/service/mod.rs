//! [`Pins`]: everything that is done with requests.
//!
//! | module | concern |
//! |---|---|
//! | `adding` | new requests |
//! | `settling` | what becomes of them, and of pins that nobody needs any more |
//! | `loading` | what a service begins with |
//! | `losing` | pins that lose blocks |
//!
//! One change at a time: it is decided from the index, written, and only then made in the index, so that nobody sees
//! what a power cut may undo. A change goes on when whoever asked for it leaves. The store's pins are removed, and roots
//! announced, after the next change may begin: removing a pin of a million blocks delays no request of another owner. A root
//! whose pin is being removed is marked, so that requests for it wait in the queue.
//!
//! The store's pin of a root goes when nothing needs it any more. That it is to go is written with the change that
//! decided it, and taken back once it has gone, so that a process which is killed in between leaves no pin that belongs
//! to nobody.

pub use self::loading::DamageReport;

mod adding;
mod loading;
mod losing;
mod settling;

use crate::pinning::filter::{Filter, Page, Sieve};
use crate::pinning::index::{Counts, Index, millis, time};
use crate::pinning::metrics::PinMetrics;
use crate::pinning::reach::Reach;
use crate::pinning::request::{Owner, Progress, Request, Status};
use cache::{BlockStore, PinSummary, Ram, Register, StoreError, TierMetrics, Tiers};
use content::{AllowAll, Cid, Policy};
use libp2p::Multiaddr;
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Late requests whose origins are dialled at a time.
const DIALS_MAX: usize = 16;

/// How the service is run.
#[derive(Debug, Clone)]
pub struct PinOptions {
    /// DAGs that are fetched at a time.
    pub workers_max: usize,
    /// Requests of everybody together.
    pub pins_max: usize,
    /// How long a DAG is tried of which nothing more arrives.
    pub give_up: Duration,
    /// How long after the first failure the next attempt follows. Each further one waits twice as long.
    pub retry_first: Duration,
    /// The longest wait between attempts.
    pub retry_max: Duration,
}

impl Default for PinOptions {
    fn default() -> Self {
        Self {
            workers_max: 8,
            pins_max: 200_000,
            give_up: Duration::from_hours(24),
            retry_first: Duration::from_secs(30),
            retry_max: Duration::from_hours(1),
        }
    }
}

/// Why something was not done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PinsError {
    /// The owner has no such request.
    #[error("there is no such pin")]
    NotFound,
    /// Something is beyond its limits; the words say what.
    #[error("{0}")]
    Invalid(String),
    /// The owner has as many pins, or as many bytes, as the token allows.
    #[error("{0}")]
    Quota(String),
    /// The service has as many requests as it may have.
    #[error("{0}")]
    Full(String),
    /// What was to be recorded is not pinned in the store, or is no longer.
    #[error("{root} is not pinned here")]
    NotHeld {
        /// The root that was to be recorded.
        root: Cid,
    },
    /// The disk failed, or the service has stopped.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What an owner has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Requests, whatever became of them.
    pub pins: u64,
    /// Bytes of the blocks of their DAGs, as far as they are here; a DAG that is asked for twice counts once.
    pub bytes: u64,
}

/// What an owner may still have; `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Requests.
    pub pins: Option<u64>,
    /// Bytes.
    pub bytes: Option<u64>,
}

/// What follows from a change and takes long: the store's writes and the network's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pinning) enum FollowUp {
    /// Removes the store's pin of a root. [`Index::begin_removal`] has marked it.
    Remove(Cid),
    /// Announces a root that was pinned.
    Announce(Cid),
}

/// While this is held, the store's pin of a root is not removed, whoever lets go of it.
#[must_use]
pub struct Protection {
    pins: Arc<Pins>,
    root: Cid,
}

impl Drop for Protection {
    fn drop(&mut self) {
        let goes = self.pins.index_mut().let_go(&self.root);
        if let (true, Ok(runtime)) = (goes, Handle::try_current()) {
            let (pins, root) = (Arc::clone(&self.pins), self.root);
            runtime.spawn(async move {
                if let Err(error) = pins.let_go(root).await {
                    tracing::warn!(%root, %error, "what nobody wanted pinned could not be let go");
                }
            });
        }
    }
}

/// The pin service. Everything that changes a request is on the disk when it returns.
pub struct Pins {
    pub(in crate::pinning) options: PinOptions,
    pub(in crate::pinning) store: Arc<dyn BlockStore>,
    pub(in crate::pinning) reach: Reach,
    pub(in crate::pinning) metrics: PinMetrics,
    /// Something may have become due.
    pub(in crate::pinning) wake: Notify,
    pub(in crate::pinning) stopping: CancellationToken,
    /// How to end the workers that are at a root.
    pub(in crate::pinning) workers: Mutex<HashMap<Cid, CancellationToken>>,
    /// Who dials for requests that came while their root was being fetched.
    dials: Arc<Semaphore>,
    register: Register,
    index: RwLock<Index>,
    /// One change at a time.
    changes: tokio::sync::Mutex<()>,
    /// What the change under way leaves to be done once the next one may begin.
    follow_ups: Mutex<Vec<FollowUp>>,
    dispatcher: Mutex<Option<JoinHandle<()>>>,
    /// Cancelled when the dispatcher has ended, or who hears of lost blocks.
    ended: CancellationToken,
    damage: Mutex<Option<DamageReport>>,
}

impl Pins {
    /// Starts with what the register says and the store has, and goes on with what was under way.
    ///
    /// # Errors
    /// What the disk said, or that the register cannot be read.
    pub async fn start(
        options: PinOptions,
        register: Register,
        store: Arc<dyn BlockStore>,
        reach: Reach,
        metrics: PinMetrics,
    ) -> Result<Arc<Self>, StoreError> {
        let pins = Arc::new(Self::new(options, register, store, reach, metrics));
        pins.load().await?;
        let (dispatching, ended) = (Arc::clone(&pins).dispatch(), pins.ended.clone().drop_guard());
        *pins.dispatcher() = Some(tokio::spawn(async move {
            let _ended = ended;
            dispatching.await;
        }));
        let watching = losing::watch(Arc::downgrade(&pins), pins.stopping.clone(), pins.store.pin_changes());
        let ended = pins.ended.clone().drop_guard();
        tokio::spawn(async move {
            let _ended = ended;
            watching.await;
        });
        Ok(pins)
    }

    /// A service for commands while no gateway runs, which does everything but fetch.
    ///
    /// # Errors
    /// As [`Pins::start`].
    pub async fn alone(register: Register, store: &Arc<dyn BlockStore>) -> Result<Arc<Self>, StoreError> {
        let pins = Self::workless(register, store);
        pins.load().await?;
        Ok(pins)
    }

    /// The same with nothing in it, which ends with the process: for tests of whoever records.
    pub fn idle(store: &Arc<dyn BlockStore>) -> Arc<Self> {
        Self::workless(Register::memory(), store)
    }

    fn workless(register: Register, store: &Arc<dyn BlockStore>) -> Arc<Self> {
        let policy: Arc<dyn Policy> = Arc::new(AllowAll);
        let tiers = TierMetrics::register(&mut Registry::default());
        let tiers = Tiers::new(Ram::new(1 << 20), Arc::clone(store), Arc::clone(&policy), tiers);
        let reach = Reach::nobody(&tiers, policy);
        let (options, metrics) = (PinOptions::default(), PinMetrics::default());
        Arc::new(Self::new(options, register, Arc::clone(store), reach, metrics))
    }

    fn new(
        options: PinOptions,
        register: Register,
        store: Arc<dyn BlockStore>,
        reach: Reach,
        metrics: PinMetrics,
    ) -> Self {
        Self {
            options,
            store,
            reach,
            metrics,
            wake: Notify::new(),
            stopping: CancellationToken::new(),
            workers: Mutex::default(),
            dials: Arc::new(Semaphore::new(DIALS_MAX)),
            register,
            index: RwLock::default(),
            changes: tokio::sync::Mutex::default(),
            follow_ups: Mutex::default(),
            dispatcher: Mutex::default(),
            ended: CancellationToken::new(),
            damage: Mutex::default(),
        }
    }

    /// What was lost of the register before this began, if anything was.
    pub fn damage(&self) -> Option<DamageReport> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the workers, and waits until they have. What they fetched stays; the next start goes on with it.
    pub async fn stop(&self) {
        self.stopping.cancel();
        let dispatcher = self.dispatcher().take();
        if let Some(dispatcher) = dispatcher {
            _ = dispatcher.await;
        }
    }

    /// Waits until nothing is fetched for pins any more: the service was stopped, or ended because of a defect.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.ended.clone().cancelled_owned()
    }

    /// An owner's request.
    pub fn get(&self, owner: &str, id: &str) -> Option<Request> {
        self.index().get(owner, id)
    }

    /// An owner's requests for a root.
    pub fn of_root(&self, owner: &str, root: &Cid) -> Vec<Request> {
        let index = self.index();
        let ids = index.requests_for(root, |entry| *entry.owner == *owner);
        ids.iter().filter_map(|id| index.get(owner, id)).collect()
    }

    /// Those of an owner's requests that a filter means. Others get their turn in between, and work that nobody waits for any
    /// more ends; what changes meanwhile may be shown as it was before or after.
    pub async fn list(&self, owner: &str, filter: &Filter) -> Page {
        self.list_of(Some(owner), filter).await
    }

    /// Those of everybody's requests that a filter means, in the same way: for the operator.
    pub async fn list_all(&self, filter: &Filter) -> Page {
        self.list_of(None, filter).await
    }

    async fn list_of(&self, owner: Option<&str>, filter: &Filter) -> Page {
        let (sieve, mut page) = (Sieve::of(filter), Page::default());
        let mut before_ms = sieve.before_ms();
        loop {
            // The lock is held for a moment at a time.
            let next_ms = page.extend(&self.index(), owner, &sieve, before_ms);
            let Some(next_ms) = next_ms else { return page };
            before_ms = next_ms;
            tokio::task::yield_now().await;
        }
    }

    /// When a request was made, whoever's it is.
    pub fn created(&self, id: &str) -> Option<SystemTime> {
        self.index().entry(id).map(|entry| time(entry.created_ms))
    }

    /// Everybody who has requests, with what they have.
    pub fn owners(&self) -> Vec<(Arc<str>, Used)> {
        let index = self.index();
        let used = |owner: &Arc<str>| {
            let (pins, bytes) = index.used(owner);
            (Arc::clone(owner), Used { pins, bytes })
        };
        index.owners().map(used).collect()
    }

    /// How many requests there are of each kind.
    pub fn counts(&self) -> Counts {
        self.index().counts()
    }

    /// What an owner has.
    pub fn used(&self, owner: &str) -> Used {
        let (pins, bytes) = self.index().used(owner);
        Used { pins, bytes }
    }

    /// What an owner may still have: to be asked before an upload is read, and for as long as it is read.
    pub fn room(&self, owner: &Owner) -> Room {
        let used = self.used(&owner.id);
        Room {
            pins: owner.pins_max.map(|most| most.saturating_sub(used.pins)),
            bytes: owner.bytes_max.map(|most| most.saturating_sub(used.bytes)),
        }
    }

    /// Where clients that have what they want pinned may connect to; 20 at most, and one at least.
    pub async fn delegates(&self) -> Vec<Multiaddr> {
        self.reach.delegates().await
    }

    /// Waits until a request is pinned or has failed, and returns it. `on_change` sees it at first and after each change.
    ///
    /// # Errors
    /// [`PinsError::NotFound`] if there is no such request, or it is removed meanwhile.
    pub async fn settled(
        &self,
        owner: &str,
        id: &str,
        mut on_change: impl FnMut(&Request),
    ) -> Result<Request, PinsError> {
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

    /// A change that goes on when its caller leaves, and waits for those before it. It returns when its follow-ups are done, which
    /// other changes do not wait for.
    pub(in crate::pinning) async fn apart<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl Future<Output = Result<T, PinsError>> + Send + 'static,
    ) -> Result<T, PinsError> {
        let pins = Arc::clone(self);
        let working = tokio::spawn(async move { pins.change(change).await });
        working.await.unwrap_or(Err(PinsError::Store(StoreError::Closed)))
    }

    /// One change under the lock of changes, and its follow-ups without it.
    async fn change<T>(&self, change: impl Future<Output = T>) -> T {
        let (changed, follow_ups) = {
            let _turn = self.changes.lock().await;
            let changed = change.await;
            (changed, std::mem::take(&mut *self.follow_ups()))
        };
        for follow_up in follow_ups {
            self.follow_up(follow_up).await;
        }
        changed
    }

    pub(in crate::pinning) fn follow_ups(&self) -> MutexGuard<'_, Vec<FollowUp>> {
        self.follow_ups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the figures, and has the dispatcher look again.
    pub(in crate::pinning) fn changed(&self) {
        self.metrics.show(&self.index().counts());
        self.wake.notify_one();
    }

    pub(in crate::pinning) fn index(&self) -> RwLockReadGuard<'_, Index> {
        // No code that holds the lock can leave the index half changed but by a defect, which a restart mends.
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
