//! [`Publisher`]: publishes IPNS names and keeps them published.
//!
//! Goals: an acknowledged publication is never lost: a record is on disk before it is acknowledged; publishing does not
//! wait for the network, which may be offline, except once for a bounded time; the node's own resolver returns the new
//! value at once; records are renewed and put on schedule, across restarts, and failures are retried with back-off.
//!
//! How a value is published:
//!
//! 1. if the store has no record of the key, which may have been imported, the records of others are searched for
//!    (`comparison.rs`): it has to continue their sequence;
//! 2. the record is signed with a sequence number above all known ones, written ([`NameStore`]: in a file, or in the
//!    database of a site) and passed to the resolver;
//! 3. the task of the name continues (`entry.rs`): unless that was done just now, it searches once for newer records of
//!    others and signs above them if there are any; then it puts the record to every [`Target`]: the two DHTs, and the
//!    routers if any are configured;
//! 4. every few hours the record is signed again with a later end of life, and put again.
//!
//! A renewal keeps sequence number and value, so that of two nodes with the same key the one that published last wins;
//! the other one logs that its record is superseded, and stops renewing it.
//!
//! *Names of a site.* Every gateway has a task for each name that the site publishes, and all see the same publications.
//! When a step is due, one of them takes it ([`NameStore::work`]); the others find that it is done, or take it when
//! that one has ended. A gateway that was paused meanwhile can at worst put an older record, which the network has a
//! newer one of: peers and routers keep the one with the higher sequence number, or of two with the same the one that
//! is valid for longer. It takes no step while the only one is a put to a target that has no peers.
//!
//! Non-goals: the content that a path leads to, and whether it exists.

mod book;
mod comparison;
mod entry;
mod metrics;
mod target;
#[cfg(test)]
mod tests;

pub use book::PublicationStore;
pub use comparison::KnownRecords;
pub use entry::{Published, Put, SignRecordError, Terms};
pub use target::{Target, targets};

use super::dht::RecordSource;
use super::keystore::{KeyError, KeyInfo};
use super::shared::{ChangeFor, KnownNames};
use super::store::{NameStore, PublicationChange};
use super::{Clock, DEPTH_MAX, Names, SYSTEM_CLOCK};
use crate::essential::SupervisedTasks;
use crate::options::PublishOptions;
use comparison::Comparison;
use content::Name;
use content::ipns::Record;
use content::names::Key;
use content::path::{ContentPath, PathError, Root};
use entry::{PendingSteps, Step, StepContext};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use libp2p::identity::Keypair;
use metrics::Metrics;
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The minimum lifetime of a record, which is renewed after half of it.
pub const LIFETIME_MIN: Duration = Duration::from_secs(10);
/// The minimum lifetime of a record of a site: clocks of gateways differ, and another one may have to take over.
pub const SHARED_LIFETIME_MIN: Duration = Duration::from_secs(300);
/// The maximum lifetime of a record.
pub const LIFETIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// The maximum time to live of a record.
pub const TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum concurrent searches for newer records in the background. Look-ups of clients have priority.
const COMPARISONS_MAX: usize = 8;

/// Why a name was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The key is not available.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The value is not a valid path.
    #[error("\"{value}\" is not a valid path: {reason}")]
    Path {
        /// The value, shortened.
        value: String,
        /// What is wrong with it.
        reason: PathError,
    },
    /// The value is the name itself.
    #[error("a name cannot point to itself")]
    Loop,
    /// The lifetime or the time to live is out of range.
    #[error(
        "the lifetime must be between {} seconds and {} days, and the time to live at most {} days",
        LIFETIME_MIN.as_secs(), LIFETIME_MAX.as_secs() / 86_400, TTL_MAX.as_secs() / 86_400
    )]
    Terms,
    /// The lifetime is too short for a name of a site.
    #[error(
        "the lifetime of a name that the gateways of a site share must be at least {} seconds",
        SHARED_LIFETIME_MIN.as_secs()
    )]
    SharedLifetime,
    /// The record could not be created.
    #[error(transparent)]
    Entry(#[from] SignRecordError),
    /// The publication could not be written, so it would be lost.
    #[error("could not access {path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
}

/// Publishes names, and keeps them published until it is dropped.
pub struct Publisher {
    inner: Arc<Inner>,
    /// The task that follows the names of the site.
    following: Option<AbortHandle>,
}

struct Inner {
    store: NameStore,
    names: Arc<Names>,
    /// `None` if the node is offline.
    records: Option<Arc<dyn RecordSource>>,
    targets: Vec<(String, Arc<dyn Target>)>,
    target_names: Vec<String>,
    options: PublishOptions,
    clock: Clock,
    comparisons: Semaphore,
    tasks: Mutex<HashMap<Key, NameTask>>,
    /// Held while signing with a key of this node or removing one, until the files, the resolver and the tasks agree:
    /// nothing is published with a key that is removed concurrently, and the resolver has the record that was signed
    /// last.
    changing: Mutex<()>,
    /// The names of the site that the resolver and the tasks have.
    shown: Mutex<Arc<KnownNames>>,
    /// Incremented after each put, for waiting callers.
    puts_ended: watch::Sender<u64>,
    metrics: Metrics,
    /// The tasks of all names.
    essential: SupervisedTasks,
}

/// The task of a name.
struct NameTask {
    changed: Arc<Notify>,
    handle: AbortHandle,
}

impl Publisher {
    /// Resumes publishing all names in the store. Must be called inside a Tokio runtime. Without targets, records are
    /// signed and written, and put once there are targets.
    pub fn start(
        options: PublishOptions,
        store: NameStore,
        names: Arc<Names>,
        targets: Vec<Arc<dyn Target>>,
        registry: &mut Registry,
    ) -> Self {
        let records = names.inner.records.clone();
        Self::with(options, store, names, records, targets, SYSTEM_CLOCK, registry)
    }

    fn with(
        options: PublishOptions,
        store: NameStore,
        names: Arc<Names>,
        records: Option<Arc<dyn RecordSource>>,
        targets: Vec<Arc<dyn Target>>,
        clock: Clock,
        registry: &mut Registry,
    ) -> Self {
        let targets: Vec<_> = targets.into_iter().map(|target| (target.name(), target)).collect();
        let inner = Arc::new(Inner {
            store,
            names,
            records,
            target_names: targets.iter().map(|(name, _)| name.clone()).collect(),
            targets,
            options,
            clock,
            comparisons: Semaphore::new(COMPARISONS_MAX),
            tasks: Mutex::default(),
            changing: Mutex::default(),
            shown: Mutex::default(),
            puts_ended: watch::Sender::default(),
            metrics: Metrics::register(registry),
            essential: SupervisedTasks::default(),
        });
        for entry in inner.store.own_publications() {
            if inner.store.find(&entry.key).is_none() {
                tracing::warn!(name = %entry.key, "the key of a published name is missing: the name is not renewed");
                continue;
            }
            inner.show(&entry);
        }
        inner.show_shared();
        inner.count();
        let following = inner.store.watch().map(|known| {
            let task = inner.essential.clone().guard(follow(Arc::downgrade(&inner), known));
            tokio::spawn(task).abort_handle()
        });
        Self { inner, following }
    }

    /// Publishes a path with a key. When this returns, the record is durable and the node's own resolver has it; it is
    /// put in the background. The first publication of a key continues the sequence of the records that other nodes
    /// have, for which it searches at most for [`PublishOptions::comparison_timeout`]. Lifetime and time to live
    /// default to the options.
    ///
    /// # Errors
    /// [`PublishError`]; nothing has changed then, unless it is [`KeyError::Unavailable`] or [`KeyError::Shared`].
    pub async fn publish(
        &self,
        key_name: &str,
        path: &str,
        lifetime: Option<Duration>,
        ttl: Option<Duration>,
    ) -> Result<Published, PublishError> {
        let (inner, key_name, path) = (Arc::clone(&self.inner), key_name.to_owned(), path.to_owned());
        let options = &inner.options;
        let terms = Terms { lifetime: lifetime.unwrap_or(options.lifetime), ttl: ttl.unwrap_or(options.ttl) };
        // A look-up waits while another task writes a key to the disk.
        let reading = Arc::clone(&inner);
        let key = blocking(move || Ok(reading.store.get(&key_name)?.0.key)).await?;
        checked_value(&path, &key, terms)?;
        check_lifetime(&inner.store, &key, terms)?;
        let found = inner.compare_unless_published(key).await;
        blocking(move || {
            let wall = (inner.clock.wall)();
            let entry = inner.change_and_show(ChangeFor::Request, &key, &|before, keypair| {
                let known = inner.names.known(&key).map(|record| record.sequence());
                let known = KnownRecords { sequence: known.max(found.sequence), ..found };
                signed(keypair, &path, terms, known, before, wall).map(Some)
            })?;
            if let Some(entry) = &entry {
                inner.wake_or_start(entry.key);
            }
            entry.ok_or(PublishError::Stopping)
        })
        .await
    }

    /// Waits until a target has accepted the record, or none ever will, at most for `patience`. Returns the state of
    /// the publication; the name may have another value by then.
    pub async fn settled(&self, published: Published, patience: Duration) -> Published {
        let mut puts_ended = self.inner.puts_ended.subscribe();
        let mut latest = published;
        let settling = async {
            loop {
                match self.inner.store.publication(&latest.key) {
                    Some(entry) => latest = entry,
                    None => return,
                }
                if !latest.puts.is_empty() || self.inner.targets.is_empty() || puts_ended.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(patience, settling).await;
        latest
    }

    /// All published names, with their keys.
    pub fn list(&self) -> Vec<(Option<KeyInfo>, Published)> {
        let named = |entry: Published| (self.inner.store.find(&entry.key).map(|(info, _)| info), entry);
        self.inner.store.publications().into_iter().map(named).collect()
    }

    /// The names of the targets.
    pub fn targets(&self) -> &[String] {
        &self.inner.target_names
    }

    /// The keys. Use [`Publisher::remove_key`] to remove one.
    pub fn keys(&self) -> &NameStore {
        &self.inner.store
    }

    /// Updates the metrics after keys were created, imported or renamed.
    pub fn keys_changed(&self) {
        self.inner.count();
    }

    /// Removes a key permanently and stops renewing its name. Records already put stay valid until their end of life.
    ///
    /// # Errors
    /// [`PublishError`] if the key is missing or reserved, or could not be removed.
    pub async fn remove_key(&self, name: &str) -> Result<KeyInfo, PublishError> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        blocking(move || {
            let (info, _) = inner.store.get(&name)?;
            // The order of changes of the site is that of the site.
            let _changing = (!info.of_site).then(|| inner.changing());
            let info = inner.store.remove(&name)?;
            match info.of_site {
                true => inner.show_shared(),
                false => inner.stop_publishing(&info.key),
            }
            inner.count();
            Ok(info)
        })
        .await
    }

    /// Completes when the task of a name has panicked: its name is no longer renewed.
    pub fn failed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.inner.essential.failed()
    }

    /// Stops all puts and renewals. Publications are already durable.
    pub fn stop(&self) {
        self.following.iter().for_each(AbortHandle::abort);
        self.inner.tasks().drain().for_each(|(_, task)| task.handle.abort());
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Signs a value with a key and stores it. Without a running node, the next one puts it. Blocks, on a thread of Tokio's
/// that may block.
///
/// # Errors
/// [`PublishError`]; nothing has changed then, unless it is [`KeyError::Unavailable`] or [`KeyError::Shared`].
pub fn sign(
    store: &NameStore,
    key: &Key,
    path: &str,
    terms: Terms,
    known: KnownRecords,
    now: std::time::SystemTime,
) -> Result<Published, PublishError> {
    check_lifetime(store, key, terms)?;
    let entry = store.change(key, &|before, keypair| signed(keypair, path, terms, known, before, now).map(Some))?;
    entry.ok_or(PublishError::Stopping)
}

/// A new publication above the former one, and above what is known of the records of others.
fn signed(
    keypair: &Keypair,
    path: &str,
    terms: Terms,
    known: KnownRecords,
    before: Option<&Published>,
    now: std::time::SystemTime,
) -> Result<Published, PublishError> {
    let value = checked_value(path, &Key::from(keypair.public().to_peer_id()), terms)?;
    let sequence = known.sequence.max(before.map(|before| before.record.sequence()));
    let entry = Published::new(keypair, &value, terms, sequence, now)?;
    let last_put = before.and_then(|before| before.last_put);
    Ok(Published { compared: known.compared, last_put, ..entry })
}

/// The value of a record: a valid path, where a CID is short for `/ipfs/CID`. Checks the durations as well.
fn checked_value(path: &str, own: &Key, terms: Terms) -> Result<String, PublishError> {
    if !(LIFETIME_MIN..=LIFETIME_MAX).contains(&terms.lifetime) || terms.ttl > TTL_MAX {
        return Err(PublishError::Terms);
    }
    let value = if path.starts_with('/') { path.to_owned() } else { format!("/ipfs/{path}") };
    let wrong = |reason| PublishError::Path { value: path.chars().take(200).collect(), reason };
    match ContentPath::read(&value, DEPTH_MAX).map_err(wrong)?.root {
        Root::Name(Name::Key(key)) if key == *own => Err(PublishError::Loop),
        _ => Ok(value),
    }
}

/// Checks the lifetime of a name of a site.
fn check_lifetime(store: &NameStore, key: &Key, terms: Terms) -> Result<(), PublishError> {
    match store.is_shared(key) && terms.lifetime < SHARED_LIFETIME_MIN {
        true => Err(PublishError::SharedLifetime),
        false => Ok(()),
    }
}

/// Runs blocking work on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PublishError> + Send + 'static,
) -> Result<T, PublishError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(PublishError::Stopping))
}

/// The result of a put: the target, the record, and how many accepted it.
type PutResult = (String, Record, Result<usize, String>);

impl Inner {
    fn tasks(&self) -> MutexGuard<'_, HashMap<Key, NameTask>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the resolver and the task of a name up to date.
    fn show(self: &Arc<Self>, entry: &Published) {
        self.names.add_published(entry.key, entry.record.clone());
        self.wake_or_start(entry.key);
    }

    /// Ends the task of a name of this node that is published no longer, and removes it from the resolver.
    fn stop_publishing(&self, key: &Key) {
        if let Some(task) = self.tasks().remove(key) {
            task.handle.abort();
        }
        self.names.remove_published(key);
    }

    /// Removes a name of the site that is published no longer from the resolver. Its task finds that and ends, after it
    /// has released its claim.
    fn withdraw(&self, key: &Key) {
        self.names.remove_published(key);
        if let Some(task) = self.tasks().get(key) {
            task.changed.notify_one();
        }
    }

    /// Whether a task ends, since its name is published no longer. A later publication starts another one.
    fn ends(&self, key: &Key, changed: &Arc<Notify>) -> bool {
        let mut tasks = self.tasks();
        if self.store.publication(key).is_some() {
            return false;
        }
        if tasks.get(key).is_some_and(|task| Arc::ptr_eq(&task.changed, changed)) {
            tasks.remove(key);
        }
        true
    }

    /// Brings the resolver and the tasks up to date with what is known of the names of the site.
    fn show_shared(self: &Arc<Self>) {
        let Some(known) = self.store.watch() else { return };
        // What is known is read under the lock, so that it is never older than what is shown.
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let known = Arc::clone(&known.borrow());
        if Arc::ptr_eq(&known, &shown) {
            return;
        }
        let (before, now) = (by_key(&shown), by_key(&known));
        for (key, entry) in &now {
            if before.get(key) != Some(entry) {
                self.show(entry);
            }
        }
        before.keys().filter(|key| !now.contains_key(key)).for_each(|key| self.withdraw(key));
        drop((before, now));
        *shown = known;
        drop(shown);
        self.store.log_unused();
        self.puts_ended.send_modify(|puts_ended| *puts_ended += 1);
        self.count();
    }

    /// Changes a publication and brings the resolver up to date. Blocks.
    fn change_and_show(
        self: &Arc<Self>,
        made_for: ChangeFor,
        key: &Key,
        change: &PublicationChange<'_>,
    ) -> Result<Option<Published>, PublishError> {
        // The order of changes of the site is that of the site, and waiting for it must not delay others.
        let is_shared = self.store.is_shared(key);
        let _changing = (!is_shared).then(|| self.changing());
        let changed = self.store.change_for(made_for, key, change)?;
        match &changed {
            _ if is_shared => self.show_shared(),
            Some(entry) => self.names.add_published(entry.key, entry.record.clone()),
            None => {}
        }
        self.count();
        Ok(changed)
    }

    /// Wakes the task of a name, or starts it.
    fn wake_or_start(self: &Arc<Self>, key: Key) {
        let mut tasks = self.tasks();
        match tasks.get(&key).filter(|task| !task.handle.is_finished()) {
            Some(task) => task.changed.notify_one(),
            None => {
                let changed = Arc::new(Notify::new());
                let task = self.essential.clone().guard(run_task(Arc::clone(self), key, Arc::clone(&changed)));
                let task = tokio::spawn(task);
                tasks.insert(key, NameTask { changed, handle: task.abort_handle() });
            }
        }
    }

    /// The known record of another node that supersedes the one of this node.
    fn superseding(&self, entry: &Published) -> Option<Record> {
        let wall = (self.clock.wall)();
        self.names.known(&entry.key).filter(|known| known.newer_than(&entry.record) && known.is_valid_at(wall))
    }

    fn next(&self, entry: &Published, superseded: bool, pending: &PendingSteps) -> Step {
        let context = StepContext {
            now: (self.clock.now)(),
            wall: (self.clock.wall)(),
            every: self.options.every,
            comparable: self.records.is_some(),
            superseded,
            shared: self.store.is_shared(&entry.key),
            targets: &self.target_names,
        };
        pending.next(entry, context)
    }

    /// Searches for the records of others if the name is not published.
    async fn compare_unless_published(&self, key: Key) -> KnownRecords {
        let Some(records) = self.records.as_ref().filter(|_| self.store.publication(&key).is_none()) else {
            return KnownRecords::default();
        };
        let comparison = Comparison::search(&**records, key, self.options.comparison_timeout).await;
        let known = comparison.known();
        if let Some(sequence) = known.sequence {
            tracing::info!(name = %key, sequence, "the name was published before: continuing its sequence");
        }
        known
    }

    /// Changes a publication and updates the resolver, unless the record differs from the one that the caller has seen.
    async fn change(
        self: &Arc<Self>,
        seen: &Published,
        change: impl Fn(&Published, &Keypair) -> Result<Published, SignRecordError> + Send + 'static,
    ) -> Result<(), PublishError> {
        let (inner, seen) = (Arc::clone(self), seen.clone());
        blocking(move || {
            let changed = inner.change_and_show(ChangeFor::Task, &seen.key, &|entry, keypair| match entry {
                Some(entry) if entry.record == seen.record => Ok(Some(change(entry, keypair)?)),
                _ => Ok(None),
            });
            changed.map(|_| ())
        })
        .await
    }

    /// Renews a record. Returns whether that succeeded.
    async fn renew(self: &Arc<Self>, entry: &Published) -> bool {
        let wall = (self.clock.wall)();
        let renewed = self.change(entry, move |entry, keypair| entry.renewed(keypair, wall)).await;
        self.metrics.renewed(renewed.is_ok());
        if let Err(error) = &renewed {
            tracing::warn!(name = %entry.key, %error, "could not renew a published name: retrying later");
        }
        renewed.is_ok()
    }

    /// Searches for newer records of others. Returns whether any source could be asked.
    async fn compare(self: &Arc<Self>, entry: &Published) -> bool {
        let Some(records) = &self.records else { return false };
        let Ok(_permit) = self.comparisons.acquire().await else { return false };
        let Comparison { newest, asked } =
            Comparison::search(&**records, entry.key, self.options.comparison_timeout).await;
        if !asked {
            return false;
        }
        let wall = (self.clock.wall)();
        let newer = newest.filter(|newest| newest.newer_than(&entry.record)).map(|newest| newest.sequence());
        if let Some(sequence) = newer {
            tracing::info!(name = %entry.key, sequence, "another node has a newer record: signing above it");
        }
        let compared = self.change(entry, move |entry, keypair| match newer {
            Some(sequence) => entry.signed_above(keypair, sequence, wall),
            None => Ok(Published { compared: true, ..entry.clone() }),
        });
        compared
            .await
            .inspect_err(|error| tracing::error!(name = %entry.key, %error, "could not write a publication"))
            .is_ok()
    }

    fn put(&self, entry: &Published, name: String) -> BoxFuture<'static, PutResult> {
        let target = self.targets.iter().find(|(target, _)| *target == name);
        let Some((_, target)) = target else { return std::future::pending().boxed() };
        let (record, putting) = (entry.record.clone(), target.put(entry.key, entry.record.clone()));
        async move { (name, record, putting.await) }.boxed()
    }

    /// Whether a put to a target would start now.
    async fn is_ready(&self, name: &str) -> bool {
        match self.targets.iter().find(|(target, _)| target == name) {
            Some((_, target)) => target.is_ready().await,
            None => false,
        }
    }

    /// Records the result of a put.
    async fn put_ended(
        self: &Arc<Self>,
        entry: &Published,
        pending: &mut PendingSteps,
        (target, record, took): PutResult,
    ) {
        self.metrics.put(&target, took.is_ok());
        let (now, wall) = ((self.clock.now)(), (self.clock.wall)());
        let done = match took {
            Ok(peers) => {
                tracing::info!(name = %entry.key, target, peers, "put a published name");
                let (seen, taker) = (Published { record, ..entry.clone() }, target.clone());
                let written = self.change(&seen, move |entry, _| Ok(entry.put(&taker, peers, wall))).await;
                written
                    .inspect_err(
                        |error| tracing::error!(name = %entry.key, %error, "could not write the result of a put"),
                    )
                    .is_ok()
            }
            Err(reason) => {
                tracing::warn!(name = %entry.key, target, reason, "could not put a published name: retrying later");
                false
            }
        };
        pending.ended(&target, done, now);
        self.puts_ended.send_modify(|puts_ended| *puts_ended += 1);
    }

    /// Updates the gauges.
    fn count(&self) {
        self.metrics.set(self.store.list().len(), &self.store.publications());
    }
}

/// Advises the operator, who has the same key on two nodes.
fn log_superseded(key: &Key, by: &Record) {
    let (name, sequence, value) = (key, by.sequence(), by.value());
    tracing::warn!(
        %name,
        sequence,
        value,
        "another node publishes this name, and its record is newer: this node does not renew its own. Publish the name \
         on one node only; publishing it again here supersedes the other record"
    );
}

fn by_key(names: &KnownNames) -> HashMap<Key, &Published> {
    names.publications().map(|entry| (entry.key, entry)).collect()
}

/// Follows the names of the site.
async fn follow(inner: Weak<Inner>, mut known: watch::Receiver<Arc<KnownNames>>) {
    while known.changed().await.is_ok() {
        let Some(inner) = inner.upgrade() else { return };
        inner.show_shared();
    }
}

/// The task of a name, which runs while the name is published. When nothing is due, it waits without the permission to
/// work for the name.
async fn run_task(inner: Arc<Inner>, key: Key, changed: Arc<Notify>) {
    let mut steps = NameSteps::new(&inner, key, &changed);
    loop {
        let Some(entry) = steps.entry() else {
            if inner.ends(&key, &changed) {
                return;
            }
            continue;
        };
        let wait = match steps.next(&entry).await {
            Step::Rest(rest) => rest,
            _ => match inner.store.work(key, steps.run().boxed()).await {
                Ok(()) => continue,
                Err(wait) => wait,
            },
        };
        steps.interrupt();
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// The steps for a name.
struct NameSteps<'a> {
    inner: &'a Arc<Inner>,
    key: Key,
    changed: &'a Notify,
    pending: PendingSteps,
    puts: FuturesUnordered<BoxFuture<'static, PutResult>>,
    /// The record that these steps are for.
    last: Option<Record>,
    /// The record that was logged as superseding it.
    logged: Option<Record>,
}

impl<'a> NameSteps<'a> {
    fn new(inner: &'a Arc<Inner>, key: Key, changed: &'a Notify) -> Self {
        let (pending, puts) = (PendingSteps::default(), FuturesUnordered::new());
        Self { inner, key, changed, pending, puts, last: None, logged: None }
    }

    /// The publication. If its record is another one than before, the pending puts are cancelled.
    fn entry(&mut self) -> Option<Published> {
        let entry = self.inner.store.publication(&self.key)?;
        if self.last.as_ref() != Some(&entry.record) {
            (self.pending, self.puts) = (PendingSteps::default(), FuturesUnordered::new());
            self.last = Some(entry.record.clone());
        }
        Some(entry)
    }

    /// The next step. Of a name of a site, it is no put to a target without peers: other gateways may have some.
    async fn next(&mut self, entry: &Published) -> Step {
        loop {
            match self.next_of_any_target(entry) {
                Step::Put(target) if self.inner.store.is_shared(&self.key) && !self.inner.is_ready(&target).await => {
                    self.pending.not_begun(&target, (self.inner.clock.now)());
                }
                step => return step,
            }
        }
    }

    fn next_of_any_target(&mut self, entry: &Published) -> Step {
        let superseding = self.inner.superseding(entry);
        if let Some(record) = superseding.as_ref().filter(|_| entry.compared)
            && self.logged.as_ref() != Some(record)
        {
            log_superseded(&entry.key, record);
            self.logged = Some(record.clone());
        }
        self.inner.next(entry, superseding.is_some(), &self.pending)
    }

    /// Takes steps until none is due and no put is pending, or the name is published no longer.
    async fn run(&mut self) {
        while let Some(entry) = self.entry() {
            match self.next(&entry).await {
                Step::Rest(_) if self.puts.is_empty() => return,
                step => self.take(&entry, step).await,
            }
        }
    }

    async fn take(&mut self, entry: &Published, step: Step) {
        let Self { inner, changed, pending, puts, .. } = self;
        match step {
            Step::Renew => {
                if !inner.renew(entry).await {
                    pending.not_renewed((inner.clock.now)());
                }
            }
            Step::Compare => tokio::select! {
                compared = inner.compare(entry) => if !compared { pending.not_compared((inner.clock.now)()) },
                () = changed.notified() => {}
            },
            Step::Put(target) => {
                pending.begun(&target);
                puts.push(inner.put(entry, target));
            }
            Step::Rest(rest) => tokio::select! {
                Some(outcome) = puts.next(), if !puts.is_empty() => inner.put_ended(entry, pending, outcome).await,
                () = changed.notified() => {}
                () = tokio::time::sleep(rest) => {}
            },
        }
    }

    /// Cancels the pending puts, if there are any.
    fn interrupt(&mut self) {
        if !self.puts.is_empty() {
            self.puts = FuturesUnordered::new();
        }
        self.pending.interrupted((self.inner.clock.now)());
    }
}
