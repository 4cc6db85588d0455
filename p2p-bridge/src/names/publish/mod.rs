//! [`Publisher`]: names of our own, put into the world and kept there.
//!
//! Goals: what was acknowledged is not lost, whatever happens to the process: a record is on disk before anybody hears of
//! it; whoever publishes does not wait for the network, which need not even be there; our own resolver answers the new
//! value at once; a record is renewed and put again on schedule, also over restarts, and tried again when that fails.
//!
//! How a value is published, step by step:
//!
//! 1. it is signed above every sequence number that is known here, written (`book.rs`) and told to the resolver;
//! 2. a task of the name does what comes next (`entry.rs`): others are asked once whether they have a newer record, above
//!    which ours is then signed again, and the record is put into every [`Target`]: the two DHTs, and the routers if there are any;
//! 3. every few hours it is signed again with a later end of life, and put again.
//!
//! A renewal has the sequence number and value of the record before, so that of two nodes with the same key the one that
//! published last counts.
//!
//! Non-goals: what content a path leads to, and whether it is there.

mod book;
mod entry;
mod metrics;
mod target;
#[cfg(test)]
mod tests;

pub use book::Book;
pub use entry::{EntryError, Published, Put, Terms};
pub use target::{Target, targets};

use super::dht::Records;
use super::keystore::{KeyError, KeyInfo, Keystore};
use super::{Clock, DEPTH_MAX, Names, SYSTEM_CLOCK};
use crate::essential::EssentialTasks;
use crate::lookups::Holder;
use crate::options::PublishOptions;
use content::Name;
use content::ipns::Record;
use content::names::Key;
use content::path::{ContentPath, PathError, Root};
use entry::{Agenda, Circumstances, Step};
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

/// The shortest life of a record: it is renewed after half of it.
pub const LIFETIME_MIN: Duration = Duration::from_secs(10);
/// The longest life of a record.
pub const LIFETIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// The longest time that others may be told to remember a record.
pub const TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long others are asked for a newer record at most.
const COMPARISON: Duration = Duration::from_secs(10);
/// Names that are compared at once. Searches of readers come first.
const COMPARISONS_MAX: usize = 8;

/// Why a name is not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The key cannot be had.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The value is no path to content.
    #[error("\"{value}\" cannot be published: {reason}")]
    Path {
        /// The value, shortened.
        value: String,
        /// What is wrong with it.
        reason: PathError,
    },
    /// The value is the name itself.
    #[error("a name cannot stand for itself")]
    Loop,
    /// The record would live too short or too long.
    #[error(
        "a record lives for {} seconds at least and {} days at most, and is remembered for {} days at most",
        LIFETIME_MIN.as_secs(), LIFETIME_MAX.as_secs() / 86_400, TTL_MAX.as_secs() / 86_400
    )]
    Terms,
    /// The record cannot be made.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// What is published cannot be written down, so that it would be forgotten.
    #[error("cannot access {path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
}

/// Publishes names, and keeps them published for as long as it is there.
pub struct Publisher {
    inner: Arc<Inner>,
}

struct Inner {
    keys: Arc<Keystore>,
    book: Book,
    names: Arc<Names>,
    /// None: nobody is there to ask.
    records: Option<Arc<dyn Records>>,
    targets: Vec<(String, Arc<dyn Target>)>,
    target_names: Vec<String>,
    options: PublishOptions,
    clock: Clock,
    comparisons: Semaphore,
    tended: Mutex<HashMap<Key, Tended>>,
    /// Held by whoever signs with a key or removes one, until the book, the resolver and the tasks agree: nothing is published
    /// with a key that was removed in the meantime, and what the resolver was told last is what was signed last.
    changing: Mutex<()>,
    /// Counts what becomes of puts, for those who wait for them.
    rounds: watch::Sender<u64>,
    metrics: Metrics,
    /// The tasks of all names.
    essential: EssentialTasks,
}

/// The task of a name.
struct Tended {
    changed: Arc<Notify>,
    task: AbortHandle,
}

impl Publisher {
    /// Goes on with what was published before. Must be called inside a Tokio runtime. Without targets, names are published
    /// on paper only, and put once there are some.
    ///
    /// # Errors
    /// [`PublishError::Io`].
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

    #[allow(clippy::too_many_arguments, reason = "what tests replace, once")]
    fn with(
        options: PublishOptions,
        state_dir: &Path,
        keys: Arc<Keystore>,
        names: Arc<Names>,
        records: Option<Arc<dyn Records>>,
        targets: Vec<Arc<dyn Target>>,
        clock: Clock,
        registry: &mut Registry,
    ) -> Result<Self, PublishError> {
        let targets: Vec<_> = targets.into_iter().map(|target| (target.name(), target)).collect();
        let inner = Arc::new(Inner {
            keys,
            book: Book::open(state_dir)?,
            names,
            records,
            target_names: targets.iter().map(|(name, _)| name.clone()).collect(),
            targets,
            options,
            clock,
            comparisons: Semaphore::new(COMPARISONS_MAX),
            tended: Mutex::default(),
            changing: Mutex::default(),
            rounds: watch::Sender::default(),
            metrics: Metrics::register(registry),
            essential: EssentialTasks::default(),
        });
        for entry in inner.book.list() {
            if inner.keys.find(&entry.key).is_none() {
                tracing::warn!(name = %entry.key, "a name is published whose key is not here; it is not renewed");
                continue;
            }
            inner.names.own(entry.key, entry.record);
            inner.tend(entry.key);
        }
        inner.count();
        Ok(Self { inner })
    }

    /// Publishes a path with a key. When this returns, the value is safe and our own resolver knows it; it is put behind.
    /// Without terms, the options' count.
    ///
    /// # Errors
    /// [`PublishError`] says what stands against it; nothing has changed then.
    pub async fn publish(
        &self,
        key_name: &str,
        path: &str,
        lifetime: Option<Duration>,
        ttl: Option<Duration>,
    ) -> Result<Published, PublishError> {
        let (inner, key_name, path) = (Arc::clone(&self.inner), key_name.to_owned(), path.to_owned());
        let (options, wall) = (&inner.options, (inner.clock.wall)());
        let terms = Terms { lifetime: lifetime.unwrap_or(options.lifetime), ttl: ttl.unwrap_or(options.ttl) };
        blocking(move || {
            let _changing = inner.changing();
            let (info, keypair) = inner.keys.get(&key_name)?;
            let known = inner.names.known(&info.key).map(|record| record.sequence());
            let entry = sign(&inner.book, &keypair, &path, terms, known, wall)?;
            inner.names.own(entry.key, entry.record.clone());
            inner.tend(entry.key);
            inner.count();
            Ok(entry)
        })
        .await
    }

    /// What has become of a record, at the latest after `patience`, and sooner if anybody has taken it or if nobody ever
    /// will. The name may stand for something else by then.
    pub async fn settled(&self, published: Published, patience: Duration) -> Published {
        let mut rounds = self.inner.rounds.subscribe();
        let mut latest = published;
        let settling = async {
            loop {
                match self.inner.book.get(&latest.key) {
                    Some(entry) => latest = entry,
                    None => return,
                }
                if !latest.puts.is_empty() || self.inner.targets.is_empty() || rounds.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(patience, settling).await;
        latest
    }

    /// Everything that is published, and what the keys are called.
    pub fn list(&self) -> Vec<(Option<KeyInfo>, Published)> {
        let named = |entry: Published| (self.inner.keys.find(&entry.key).map(|(info, _)| info), entry);
        self.inner.book.list().into_iter().map(named).collect()
    }

    /// Where records are put.
    pub fn targets(&self) -> &[String] {
        &self.inner.target_names
    }

    /// The keys, for whoever manages them. Removing one is [`Publisher::remove_key`]'s.
    pub fn keys(&self) -> &Arc<Keystore> {
        &self.inner.keys
    }

    /// Tells that keys were made, imported or renamed.
    pub fn keys_changed(&self) {
        self.inner.count();
    }

    /// Removes a key for good, and renews no longer what is published with it. Records that are out live until their end.
    ///
    /// # Errors
    /// [`PublishError`] says what stands against it.
    pub async fn remove_key(&self, name: &str) -> Result<KeyInfo, PublishError> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        blocking(move || {
            let _changing = inner.changing();
            let (info, _) = inner.keys.get(&name)?;
            let info = remove_key(&inner.keys, &inner.book, &info)?;
            if let Some(tended) = inner.tended().remove(&info.key) {
                tended.task.abort();
            }
            inner.names.disown(&info.key);
            inner.count();
            Ok(info)
        })
        .await
    }

    /// Waits until the task of a name has panicked: what is published is renewed no longer.
    pub fn failed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.inner.essential.failed()
    }

    /// Puts nothing any more. What is published is written already.
    pub fn stop(&self) {
        self.inner.tended().drain().for_each(|(_, tended)| tended.task.abort());
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Signs a value with a key and writes it down. A node puts it; without one, that waits until there is one.
///
/// # Errors
/// [`PublishError`] says what stands against it; nothing has changed then.
pub fn sign(
    book: &Book,
    keypair: &Keypair,
    path: &str,
    terms: Terms,
    known: Option<u64>,
    now: std::time::SystemTime,
) -> Result<Published, PublishError> {
    let key = Key::from(keypair.public().to_peer_id());
    let value = value(path, &key)?;
    if !(LIFETIME_MIN..=LIFETIME_MAX).contains(&terms.lifetime) || terms.ttl > TTL_MAX {
        return Err(PublishError::Terms);
    }
    let entry = book.change(&key, |before| {
        let known = known.max(before.map(|before| before.record.sequence()));
        let entry = Published::new(keypair, &value, terms, known, now)?;
        Ok(Some(Published { last_put: before.and_then(|before| before.last_put), ..entry }))
    })?;
    entry.ok_or(PublishError::Stopping)
}

/// Removes a key and what is published with it, in the order in which a crash between does no harm.
///
/// # Errors
/// [`PublishError`] says what stands against it.
pub fn remove_key(keys: &Keystore, book: &Book, info: &KeyInfo) -> Result<KeyInfo, PublishError> {
    if info.name == super::keystore::SELF {
        return Err(KeyError::Reserved.into());
    }
    book.remove(&info.key)?;
    Ok(keys.remove(&info.name)?)
}

/// A value that a record may have: a path to content, or a CID as short for one.
fn value(path: &str, own: &Key) -> Result<String, PublishError> {
    let value = if path.starts_with('/') { path.to_owned() } else { format!("/ipfs/{path}") };
    let wrong = |reason| PublishError::Path { value: path.chars().take(200).collect(), reason };
    match ContentPath::read(&value, DEPTH_MAX).map_err(wrong)?.root {
        Root::Name(Name::Key(key)) if key == *own => Err(PublishError::Loop),
        _ => Ok(value),
    }
}

/// Runs what may block where that harms nobody.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PublishError> + Send + 'static,
) -> Result<T, PublishError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(PublishError::Stopping))
}

/// What a put came to: where, of which record, and how many took it.
type Outcome = (String, Record, Result<usize, String>);

impl Inner {
    fn tended(&self) -> MutexGuard<'_, HashMap<Key, Tended>> {
        self.tended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the task of a name, or starts it.
    fn tend(self: &Arc<Self>, key: Key) {
        let mut tended = self.tended();
        match tended.get(&key).filter(|tended| !tended.task.is_finished()) {
            Some(tended) => tended.changed.notify_one(),
            None => {
                let changed = Arc::new(Notify::new());
                let task = self.essential.clone().guard(tend(Arc::clone(self), key, Arc::clone(&changed)));
                let task = tokio::spawn(task);
                tended.insert(key, Tended { changed, task: task.abort_handle() });
            }
        }
    }

    fn next(&self, entry: &Published, agenda: &Agenda) -> Step {
        let (now, wall) = ((self.clock.now)(), (self.clock.wall)());
        let replaces = |known: &Record| known.newer_than(&entry.record) && known.is_valid_at(wall);
        let superseded = self.names.known(&entry.key).as_ref().is_some_and(replaces);
        let circumstances = Circumstances {
            now,
            wall,
            every: self.options.every,
            comparable: self.records.is_some(),
            superseded,
            targets: &self.target_names,
        };
        agenda.next(entry, circumstances)
    }

    /// Changes what is published with a key, if it is still what the caller has seen, and tells the resolver.
    async fn change(
        self: &Arc<Self>,
        seen: &Published,
        change: impl FnOnce(&Published, &Keypair) -> Result<Published, EntryError> + Send + 'static,
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
                inner.names.own(entry.key, entry.record);
            }
            inner.count();
            Ok(())
        })
        .await
    }

    /// Signs a record again for longer. Returns whether that went well.
    async fn renew(self: &Arc<Self>, entry: &Published) -> bool {
        let wall = (self.clock.wall)();
        let renewed = self.change(entry, move |entry, keypair| entry.renewed(keypair, wall)).await;
        self.metrics.renewed(renewed.is_ok());
        if let Err(error) = &renewed {
            tracing::warn!(name = %entry.key, %error, "a published name could not be renewed; it is tried again");
        }
        renewed.is_ok()
    }

    /// Asks others for newer records. Returns whether anybody could be asked.
    async fn compare(self: &Arc<Self>, entry: &Published) -> bool {
        let Some(records) = &self.records else { return false };
        let Ok(_permit) = self.comparisons.acquire().await else { return false };
        let mut newest: Option<Record> = None;
        let mut asked = 0;
        let searching = async {
            let mut search = records.find(entry.key).await;
            while let Some(found) = search.next().await {
                // Routers are no peers of the DHT, but somebody; we are nobody who could know more.
                if found.holder != Holder::Ourselves {
                    asked = 1;
                }
                // One that is past its end of life counts as well: its sequence number is known.
                if let Ok(record) = Record::verify(&entry.key, found.bytes)
                    && newest.as_ref().is_none_or(|newest| record.newer_than(newest))
                {
                    newest = Some(record);
                }
            }
            asked = asked.max(search.peers_asked());
        };
        let _ = timeout(COMPARISON, searching).await;
        if asked == 0 {
            return false;
        }
        let wall = (self.clock.wall)();
        let newer = newest.filter(|newest| newest.newer_than(&entry.record)).map(|newest| newest.sequence());
        if let Some(sequence) = newer {
            tracing::info!(name = %entry.key, sequence, "others have a newer record of a published name; signing above it");
        }
        let compared = self.change(entry, move |entry, keypair| match newer {
            Some(sequence) => entry.above(keypair, sequence, wall),
            None => Ok(Published { compared: true, ..entry.clone() }),
        });
        compared.await.inspect_err(|error| tracing::error!(name = %entry.key, %error, "not written")).is_ok()
    }

    fn put(&self, entry: &Published, name: String) -> BoxFuture<'static, Outcome> {
        let target = self.targets.iter().find(|(target, _)| *target == name);
        let Some((_, target)) = target else { return std::future::pending().boxed() };
        let (record, putting) = (entry.record.clone(), target.put(entry.key, entry.record.clone()));
        async move { (name, record, putting.await) }.boxed()
    }

    /// Writes down what a put came to.
    async fn put_ended(self: &Arc<Self>, entry: &Published, agenda: &mut Agenda, (target, record, took): Outcome) {
        self.metrics.put(&target, took.is_ok());
        let (now, wall) = ((self.clock.now)(), (self.clock.wall)());
        let done = match took {
            Ok(peers) => {
                tracing::info!(name = %entry.key, target, peers, "a published name was put");
                let (seen, taker) = (Published { record, ..entry.clone() }, target.clone());
                let written = self.change(&seen, move |entry, _| Ok(entry.put(&taker, peers, wall))).await;
                written.inspect_err(|error| tracing::error!(name = %entry.key, %error, "a put was not written")).is_ok()
            }
            Err(reason) => {
                tracing::warn!(name = %entry.key, target, reason, "a published name was not put; it is tried again");
                false
            }
        };
        agenda.ended(&target, done, now);
        self.rounds.send_modify(|rounds| *rounds += 1);
    }

    /// Counts everything anew.
    fn count(&self) {
        self.metrics.set(self.keys.list().len(), &self.book.list());
    }
}

/// Does for a name what is to be done, for as long as it is published.
async fn tend(inner: Arc<Inner>, key: Key, changed: Arc<Notify>) {
    let (mut agenda, mut puts) = (Agenda::default(), FuturesUnordered::new());
    let mut last: Option<Record> = None;
    while let Some(entry) = inner.book.get(&key) {
        if last.as_ref() != Some(&entry.record) {
            // Dropping what is under way ends it: nobody needs the record before any more.
            (agenda, puts) = (Agenda::default(), FuturesUnordered::new());
            last = Some(entry.record.clone());
        }
        match inner.next(&entry, &agenda) {
            Step::Renew => {
                if !inner.renew(&entry).await {
                    agenda.not_renewed((inner.clock.now)());
                }
            }
            Step::Compare => tokio::select! {
                compared = inner.compare(&entry) => if !compared { agenda.not_compared((inner.clock.now)()) },
                () = changed.notified() => {}
            },
            Step::Put(target) => {
                agenda.begun(&target);
                puts.push(inner.put(&entry, target));
            }
            Step::Rest(rest) => tokio::select! {
                Some(outcome) = puts.next(), if !puts.is_empty() => {
                    inner.put_ended(&entry, &mut agenda, outcome).await;
                }
                () = changed.notified() => {}
                () = tokio::time::sleep(rest) => {}
            },
        }
    }
}
