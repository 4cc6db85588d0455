//! [`Publisher`]: publishes IPNS names and keeps them published.
//!
//! Goals: an acknowledged publication is never lost: a record is on disk before it is acknowledged; publishing does not
//! wait for the network, which may be offline, except once for a bounded time; the node's own resolver returns the new
//! value at once; records are renewed and put on schedule, across restarts, and failures are retried with back-off.
//!
//! How a value is published:
//!
//! 1. if the book has no record of the key, which may have been imported, the records of others are searched for
//!    (`comparison.rs`): it has to continue their sequence;
//! 2. the record is signed with a sequence number above all known ones, written (`book.rs`) and passed to the resolver;
//! 3. the task of the name continues (`entry.rs`): unless that was done just now, it searches once for newer records of
//!    others and signs above them if there are any; then it puts the record to every [`Target`]: the two DHTs, and the
//!    routers if any are configured;
//! 4. every few hours the record is signed again with a later end of life, and put again.
//!
//! A renewal keeps sequence number and value, so that of two nodes with the same key the one that published last wins;
//! the other one logs that its record is superseded, and stops renewing it.
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
use super::keystore::{KeyError, KeyInfo, Keystore};
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
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The minimum lifetime of a record, which is renewed after half of it.
pub const LIFETIME_MIN: Duration = Duration::from_secs(10);
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
}

struct Inner {
    keys: Arc<Keystore>,
    book: PublicationStore,
    names: Arc<Names>,
    /// `None` if the node is offline.
    records: Option<Arc<dyn RecordSource>>,
    targets: Vec<(String, Arc<dyn Target>)>,
    target_names: Vec<String>,
    options: PublishOptions,
    clock: Clock,
    comparisons: Semaphore,
    tasks: Mutex<HashMap<Key, NameTask>>,
    /// Held while signing with a key or removing one, until the book, the resolver and the tasks agree: nothing is
    /// published with a key that is removed concurrently, and the resolver has the record that was signed last.
    changing: Mutex<()>,
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
    /// Resumes publishing all names in the book. Must be called inside a Tokio runtime. Without targets, records are
    /// signed and written, and put once there are targets.
    ///
    /// # Errors
    /// [`PublishError::Io`] if the book cannot be read.
    pub fn start(
        options: PublishOptions,
        state_dir: &Path,
        keys: Arc<Keystore>,
        names: Arc<Names>,
        targets: Vec<Arc<dyn Target>>,
        registry: &mut Registry,
    ) -> Result<Self, PublishError> {
        let records = names.inner.records.clone();
        Self::with(options, state_dir, keys, names, records, targets, SYSTEM_CLOCK, registry)
    }

    #[allow(clippy::too_many_arguments, reason = "dependencies that tests replace")]
    fn with(
        options: PublishOptions,
        state_dir: &Path,
        keys: Arc<Keystore>,
        names: Arc<Names>,
        records: Option<Arc<dyn RecordSource>>,
        targets: Vec<Arc<dyn Target>>,
        clock: Clock,
        registry: &mut Registry,
    ) -> Result<Self, PublishError> {
        let targets: Vec<_> = targets.into_iter().map(|target| (target.name(), target)).collect();
        let inner = Arc::new(Inner {
            keys,
            book: PublicationStore::open(state_dir)?,
            names,
            records,
            target_names: targets.iter().map(|(name, _)| name.clone()).collect(),
            targets,
            options,
            clock,
            comparisons: Semaphore::new(COMPARISONS_MAX),
            tasks: Mutex::default(),
            changing: Mutex::default(),
            puts_ended: watch::Sender::default(),
            metrics: Metrics::register(registry),
            essential: SupervisedTasks::default(),
        });
        for entry in inner.book.list() {
            if inner.keys.find(&entry.key).is_none() {
                tracing::warn!(name = %entry.key, "the key of a published name is missing: the name is not renewed");
                continue;
            }
            inner.names.add_published(entry.key, entry.record);
            inner.wake_or_start(entry.key);
        }
        inner.count();
        Ok(Self { inner })
    }

    /// Publishes a path with a key. When this returns, the record is on disk and the node's own resolver has it; it is
    /// put in the background. The first publication of a key continues the sequence of the records that other nodes
    /// have, for which it searches at most for [`PublishOptions::comparison_timeout`]. Lifetime and time to live
    /// default to the options.
    ///
    /// # Errors
    /// [`PublishError`]; nothing has changed then.
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
        let (keys, wanted) = (Arc::clone(&inner.keys), key_name.clone());
        let key = blocking(move || Ok(keys.get(&wanted)?.0.key)).await?;
        checked_value(&path, &key, terms)?;
        let found = inner.compare_unless_published(key).await;
        blocking(move || {
            let _changing = inner.changing();
            let (_, keypair) = inner.keys.find(&key).ok_or(KeyError::Missing(key_name))?;
            let known = inner.names.known(&key).map(|record| record.sequence());
            let known = KnownRecords { sequence: known.max(found.sequence), ..found };
            let entry = sign(&inner.book, &keypair, &path, terms, known, (inner.clock.wall)())?;
            inner.names.add_published(entry.key, entry.record.clone());
            inner.wake_or_start(entry.key);
            inner.count();
            Ok(entry)
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
                match self.inner.book.get(&latest.key) {
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
        let named = |entry: Published| (self.inner.keys.find(&entry.key).map(|(info, _)| info), entry);
        self.inner.book.list().into_iter().map(named).collect()
    }

    /// The names of the targets.
    pub fn targets(&self) -> &[String] {
        &self.inner.target_names
    }

    /// The keystore. Use [`Publisher::remove_key`] to remove a key.
    pub fn keys(&self) -> &Arc<Keystore> {
        &self.inner.keys
    }

    /// Updates the metrics after keys were created, imported or renamed.
    pub fn keys_changed(&self) {
        self.inner.count();
    }

    /// Removes a key permanently and stops renewing its name. Records already put stay valid until their end of life.
    ///
    /// # Errors
    /// [`PublishError`] if the key is missing or reserved, or the disk fails.
    pub async fn remove_key(&self, name: &str) -> Result<KeyInfo, PublishError> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        blocking(move || {
            let _changing = inner.changing();
            let (info, _) = inner.keys.get(&name)?;
            let info = remove_key(&inner.keys, &inner.book, &info)?;
            if let Some(task) = inner.tasks().remove(&info.key) {
                task.handle.abort();
            }
            inner.names.remove_published(&info.key);
            inner.count();
            Ok(info)
        })
        .await
    }

    /// Completes when the task of a name has panicked: its name is no longer renewed.
    pub fn failed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.inner.essential.failed()
    }

    /// Stops all puts and renewals. Publications are already on disk.
    pub fn stop(&self) {
        self.inner.tasks().drain().for_each(|(_, task)| task.handle.abort());
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Signs a value with a key and writes it to the book. Without a running node, the next one puts it.
///
/// # Errors
/// [`PublishError`]; nothing has changed then.
pub fn sign(
    book: &PublicationStore,
    keypair: &Keypair,
    path: &str,
    terms: Terms,
    known: KnownRecords,
    now: std::time::SystemTime,
) -> Result<Published, PublishError> {
    let key = Key::from(keypair.public().to_peer_id());
    let value = checked_value(path, &key, terms)?;
    let entry = book.change(&key, |before| {
        let sequence = known.sequence.max(before.map(|before| before.record.sequence()));
        let entry = Published::new(keypair, &value, terms, sequence, now)?;
        let last_put = before.and_then(|before| before.last_put);
        Ok(Some(Published { compared: known.compared, last_put, ..entry }))
    })?;
    entry.ok_or(PublishError::Stopping)
}

/// Removes a key and its publication, in an order that is safe if the process crashes in between.
///
/// # Errors
/// [`PublishError`] if the key is reserved or the disk fails.
pub fn remove_key(keys: &Keystore, book: &PublicationStore, info: &KeyInfo) -> Result<KeyInfo, PublishError> {
    if info.name == super::keystore::SELF {
        return Err(KeyError::Reserved.into());
    }
    book.remove(&info.key)?;
    Ok(keys.remove(&info.name)?)
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
            targets: &self.target_names,
        };
        pending.next(entry, context)
    }

    /// Searches for the records of others if this node has not published with a key.
    async fn compare_unless_published(&self, key: Key) -> KnownRecords {
        let Some(records) = self.records.as_ref().filter(|_| self.book.get(&key).is_none()) else {
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
        change: impl FnOnce(&Published, &Keypair) -> Result<Published, SignRecordError> + Send + 'static,
    ) -> Result<(), PublishError> {
        let (inner, seen) = (Arc::clone(self), seen.clone());
        blocking(move || {
            let _changing = inner.changing();
            let keypair = inner.keys.find(&seen.key).ok_or_else(|| KeyError::Missing(seen.key.to_string()))?.1;
            let changed = inner.book.change(&seen.key, |entry| match entry {
                Some(entry) if entry.record == seen.record => Ok(Some(change(entry, &keypair)?)),
                _ => Ok(None),
            });
            if let Some(entry) = changed? {
                inner.names.add_published(entry.key, entry.record);
            }
            inner.count();
            Ok(())
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
        self.metrics.set(self.keys.list().len(), &self.book.list());
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

/// The task of a name, which runs while the name is published.
async fn run_task(inner: Arc<Inner>, key: Key, changed: Arc<Notify>) {
    let (mut pending, mut puts) = (PendingSteps::default(), FuturesUnordered::new());
    let mut last: Option<Record> = None;
    let mut logged: Option<Record> = None;
    while let Some(entry) = inner.book.get(&key) {
        if last.as_ref() != Some(&entry.record) {
            // Dropping the pending puts cancels them: the previous record is obsolete.
            (pending, puts) = (PendingSteps::default(), FuturesUnordered::new());
            last = Some(entry.record.clone());
        }
        let superseding = inner.superseding(&entry);
        if let Some(record) = superseding.as_ref().filter(|_| entry.compared)
            && logged.as_ref() != Some(record)
        {
            log_superseded(&entry.key, record);
            logged = Some(record.clone());
        }
        match inner.next(&entry, superseding.is_some(), &pending) {
            Step::Renew => {
                if !inner.renew(&entry).await {
                    pending.not_renewed((inner.clock.now)());
                }
            }
            Step::Compare => tokio::select! {
                compared = inner.compare(&entry) => if !compared { pending.not_compared((inner.clock.now)()) },
                () = changed.notified() => {}
            },
            Step::Put(target) => {
                pending.begun(&target);
                puts.push(inner.put(&entry, target));
            }
            Step::Rest(rest) => tokio::select! {
                Some(outcome) = puts.next(), if !puts.is_empty() => {
                    inner.put_ended(&entry, &mut pending, outcome).await;
                }
                () = changed.notified() => {}
                () = tokio::time::sleep(rest) => {}
            },
        }
    }
}
