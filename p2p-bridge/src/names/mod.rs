//! [`Names`]: name resolution, from the operator's static map, IPNS records of the DHT, and DNSLinks of the DNS.
//!
//! Goals: a cached name is answered at once, also after a restart, and refreshed in the background; staleness is
//! bounded, unless no source can be asked; an uncached name waits only for the first valid record, and a stale one only
//! for a bounded time; look-ups are bounded in number and time, and a name has one of them at a time.
//!
//! Names may point to names, so each step is resolved in this order:
//!
//! 1. the static map, which overrides everything;
//! 2. the cache (`cache.rs`): a fresh answer, or one that has been stale for a short time and is refreshed in the
//!    background;
//! 3. one look-up for all waiting clients (`singleflight.rs`): the DHT (`dht.rs`) for a key, the DNS (`dns.rs`) for a
//!    domain. If the cache has an answer that has been stale for longer, the wait is bounded, and then that answer is
//!    returned with its age.
//!
//! [`publish`] publishes names whose keys are in the local keystore, or are those of a site ([`store`]); these names
//! need no look-up.
//!
//! Non-goals: the content that a path leads to.

mod cache;
mod dht;
mod dns;
mod inspect;
pub mod key_format;
pub mod keystore;
mod metrics;
mod observed;
pub mod publish;
mod saved;
pub mod shared;
mod singleflight;
#[cfg(test)]
mod stale_tests;
pub mod store;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
mod tests;

pub use cache::Staleness;
pub use dns::DohError;
pub use inspect::{NameStep, Refreshed, StepSource};

use crate::bridge::Bridge;
use crate::network_policy::NetworkPolicy;
use cache::{Answer, Cache, CacheEntry, Freshness};
use content::dnslink::{self, StaticMap};
use content::ipns::Record;
use content::names::Key;
use content::path::{ContentPath, Root};
use content::{Name, NameError, NameObserver, NameResolver, Resolution, Verdict};
use dht::RecordSource;
use dns::{Dns, DnsLinkSource};
use futures::FutureExt;
use futures::future::BoxFuture;
use metrics::{Hit, Metrics};
use observed::{ObservedNames, Observer, Waiting};
use prometheus_client::registry::Registry;
use saved::SavedNames;
use singleflight::LookUps;
use std::collections::HashMap;
use std::iter;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Mutex, Notify};

/// The maximum number of steps from name to name (<https://specs.ipfs.tech/ipns/ipns-record/> leaves it open; Kubo
/// follows 32).
pub const STEPS_MAX: usize = 32;
/// Maximum path segments that all names together may add.
const DEPTH_MAX: usize = 256;
/// The time to live of entries of the static map, which changes when the operator reloads it.
const MAP_TTL: Duration = Duration::from_secs(60);
/// How long it is cached that the DHT has no record of a key.
const FAILURE_TTL: Duration = Duration::from_secs(10);
/// How long a search waits for a newer record after the first one, before that one counts as the newest.
const QUORUM_WAIT: Duration = Duration::from_secs(1);
/// How long after a change the records are saved.
const SAVE_AFTER: Duration = Duration::from_secs(5);

/// Options of name resolution.
#[derive(Debug, Clone)]
pub struct NamesOptions {
    /// The operator's static map.
    pub static_map: StaticMap,
    /// Pairs of a suffix ("eth", "example.org" or "." for everything) and the URL of the DNS-over-HTTPS service for the
    /// DNSLinks of names below it.
    pub doh: Vec<(String, String)>,
    /// DNS servers to use instead of those of the system; usually none.
    pub dns_servers: Vec<SocketAddr>,
    /// Maximum cached names. A record of more than 1 KiB counts as several.
    pub cache_entries_max: u64,
    /// Maximum concurrent look-ups, in the DHT and in the DNS each; at most half of them may be in the background.
    pub lookups_max: usize,
    /// The timeout of a search in the DHT.
    pub timeout: Duration,
    /// How stale an answer may be.
    pub staleness: Staleness,
    /// The maximum wait for a refresh while there is a stale answer, counted from the start of the refresh.
    pub refresh_wait: Duration,
    /// Use no network, not even DNS.
    pub offline: bool,
    /// The folder for the saved records. They are not saved if it is not set.
    pub state_dir: Option<PathBuf>,
    /// The policy: withheld names are not resolved.
    pub policy: NetworkPolicy,
}

impl Default for NamesOptions {
    fn default() -> Self {
        Self {
            static_map: StaticMap::default(),
            doh: Vec::new(),
            dns_servers: Vec::new(),
            cache_entries_max: 16 * 1024,
            lookups_max: 256,
            timeout: Duration::from_secs(30),
            staleness: Staleness::default(),
            refresh_wait: Duration::from_secs(5),
            offline: false,
            state_dir: None,
            policy: NetworkPolicy::default(),
        }
    }
}

/// Why the configuration of name resolution is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamesError {
    /// A DNS-over-HTTPS route is invalid.
    #[error(transparent)]
    Doh(#[from] DohError),
}

/// Resolves names. Meant to be shared; call [`Names::save`] before the process ends.
pub struct Names {
    inner: Arc<Inner>,
}

/// The clocks; tests replace them.
#[derive(Clone, Copy)]
struct Clock {
    /// The clock of times to live.
    now: fn() -> Instant,
    /// The wall clock, for ends of life.
    wall: fn() -> SystemTime,
}

const SYSTEM_CLOCK: Clock = Clock { now: Instant::now, wall: SystemTime::now };

/// The shared state of look-ups.
struct Inner {
    static_map: RwLock<StaticMap>,
    /// `None` if the node is offline.
    records: Option<Arc<dyn RecordSource>>,
    /// `None` if the node is offline.
    links: Option<Arc<dyn DnsLinkSource>>,
    cache: Cache,
    /// The records published by this node, which need no look-up.
    published: RwLock<HashMap<Key, Record>>,
    look_ups: LookUps,
    timeout: Duration,
    refresh_wait: Duration,
    clock: Clock,
    saved: Option<SavedNames>,
    changed: Arc<Notify>,
    /// Held while records are saved.
    saving: Mutex<()>,
    metrics: Metrics,
    policy: NetworkPolicy,
}

impl Names {
    /// Loads the saved records. Must be called inside a Tokio runtime. Without a bridge, IPNS names are resolved only
    /// from the static map and the saved records.
    ///
    /// # Errors
    /// [`NamesError`] names the invalid setting.
    pub fn new(
        options: NamesOptions,
        bridge: Option<Bridge>,
        registry: &mut Registry,
    ) -> Result<Arc<Self>, NamesError> {
        let dns = Dns::new(&options.doh, &options.dns_servers, options.lookups_max)?;
        let online = !options.offline;
        let links = online.then(|| Arc::new(dns) as Arc<dyn DnsLinkSource>);
        let records = bridge.filter(|_| online).map(|bridge| Arc::new(bridge) as Arc<dyn RecordSource>);
        Ok(Self::with(options, records, links, SYSTEM_CLOCK, registry))
    }

    fn with(
        options: NamesOptions,
        records: Option<Arc<dyn RecordSource>>,
        links: Option<Arc<dyn DnsLinkSource>>,
        clock: Clock,
        registry: &mut Registry,
    ) -> Arc<Self> {
        let mut staleness = options.staleness;
        if records.is_none() && links.is_none() {
            // No newer answer can be found.
            staleness.if_error = Duration::MAX;
        }
        let inner = Arc::new(Inner {
            static_map: RwLock::new(options.static_map),
            records,
            links,
            cache: Cache::new(options.cache_entries_max, staleness),
            published: RwLock::default(),
            look_ups: LookUps::new(options.lookups_max),
            timeout: options.timeout,
            refresh_wait: options.refresh_wait,
            clock,
            saved: options.state_dir.as_deref().map(SavedNames::new),
            changed: Arc::default(),
            saving: Mutex::default(),
            metrics: Metrics::register(registry),
            policy: options.policy,
        });
        inner.load_saved();
        if inner.saved.is_some() {
            tokio::spawn(save_on_change(Arc::downgrade(&inner), Arc::clone(&inner.changed)));
        }
        Arc::new(Self { inner })
    }

    /// Adds a record published by this node: from now on it is the answer, unless a newer one is cached.
    fn add_published(&self, key: Key, record: Record) {
        let name = Name::Key(key);
        let mut own = self.inner.published.write().unwrap_or_else(PoisonError::into_inner);
        if own.get(&key).is_none_or(|known| record.newer_than(known)) {
            own.insert(key, record.clone());
        }
        drop(own);
        if record.is_valid_at((self.inner.clock.wall)()) {
            self.inner.insert_newer(&name, record, cache::QUORUM);
        }
    }

    /// Removes the record of a name that is no longer published.
    fn remove_published(&self, key: &Key) {
        self.inner.published.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// The newest published or cached record of a key, also if it has expired.
    fn known(&self, key: &Key) -> Option<Record> {
        let own = self.inner.published.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        let cached = self.inner.cache.get(&Name::Key(*key)).and_then(|entry| match &entry.outcome {
            Ok(Answer::Record(record)) => Some(record.clone()),
            _ => None,
        });
        match (own, cached) {
            (Some(own), Some(cached)) => Some(if cached.newer_than(&own) { cached } else { own }),
            (own, cached) => own.or(cached),
        }
    }

    /// Replaces the static map.
    pub fn set_static_map(&self, map: StaticMap) {
        *self.inner.static_map.write().unwrap_or_else(PoisonError::into_inner) = map;
    }

    /// Saves the records now. Otherwise they are saved a few seconds after a change.
    pub async fn save(&self) {
        self.inner.save().await;
    }
}

impl NameResolver for Names {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        async move { resolve(&inner, name, None).await }.boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        let (inner, key) = (Arc::clone(&self.inner), *key);
        async move { newest_record(&inner, key, None).await }.boxed()
    }

    fn observed(&self, observer: Arc<dyn NameObserver>) -> Option<Arc<dyn NameResolver>> {
        Some(Arc::new(ObservedNames { inner: Arc::clone(&self.inner), observer }))
    }
}

/// The newest valid record of a key.
async fn newest_record(inner: &Arc<Inner>, key: Key, observer: Observer<'_>) -> Result<Record, NameError> {
    inner.check_policy(&Name::Key(key), &[])?;
    match inner.answer(&Name::Key(key), observer).await? {
        StepAnswer { answer: Answer::Record(record), .. } => Ok(record),
        StepAnswer { answer: Answer::Link(_), .. } => {
            Err(NameError::Refused { key, reason: "a DNSLink has no IPNS record".to_owned() })
        }
    }
}

/// Follows names until one points to content. If the answer for the first name expired before the last one was
/// resolved, all are followed once more, now from the cache.
async fn resolve(inner: &Arc<Inner>, first: Name, observer: Observer<'_>) -> Result<Resolution, NameError> {
    let limit = 2 * inner.timeout.max(dns::LOOKUP_TIMEOUT);
    let following = async {
        for _ in 0..2 {
            if let Some(resolution) = follow(inner, &first, LookUpMode::IfNeeded(observer)).await? {
                return Ok(Some(resolution));
            }
        }
        Ok(None)
    };
    let begun = Instant::now();
    let followed = tokio::time::timeout(limit, following).await.unwrap_or(Ok(None))?;
    followed.ok_or_else(|| NameError::TooSlow { name: first.clone(), waited: begun.elapsed() })
}

/// Whether look-ups are allowed.
#[derive(Clone, Copy)]
enum LookUpMode<'a> {
    /// Look names up if the cache has no usable answer, and tell the observer.
    IfNeeded(Observer<'a>),
    /// Use only the cache, and do not count as use of it.
    CacheOnly,
}

/// The answer for one name.
#[derive(Debug, Clone)]
struct StepAnswer<T = Answer> {
    answer: T,
    /// The remaining time to live.
    ttl: Duration,
    /// The age of the answer, if it is stale.
    stale: Option<Duration>,
}

/// Where a name leads to; `None` if an answer expired before the end was reached.
async fn follow(inner: &Arc<Inner>, first: &Name, mode: LookUpMode<'_>) -> Result<Option<Resolution>, NameError> {
    let (mut name, mut below, mut validity, mut hops) = (first.clone(), Vec::new(), None, Vec::new());
    let mut oldest: Option<Duration> = None;
    for _ in 0..STEPS_MAX {
        inner.check_policy(&name, &below)?;
        hops.push((name.clone(), below.join("/")));
        let StepAnswer { answer: path, ttl, stale } = inner.step(&name, mode).await?;
        oldest = oldest.max(stale);
        validity = Some(Validity::new(ttl, (inner.clock.now)()).or_shorter(validity));
        let mut segments = path.segments;
        if segments.len() + below.len() > DEPTH_MAX {
            return Err(not_a_path(&name, &segments.join("/")));
        }
        segments.append(&mut below);
        match path.root {
            Root::Cid(root) => {
                let remaining = validity.and_then(|validity| validity.remaining((inner.clock.now)()));
                return Ok(remaining.map(|ttl| Resolution { root, segments, ttl, stale: oldest, hops }));
            }
            Root::Name(next) => (name, below) = (next, segments),
        }
    }
    Err(NameError::ChainTooLong { name: first.clone(), max: STEPS_MAX })
}

/// A time to live that starts at some moment.
#[derive(Debug, Clone, Copy)]
struct Validity {
    ttl: Duration,
    from: Instant,
}

impl Validity {
    fn new(ttl: Duration, from: Instant) -> Self {
        Self { ttl, from }
    }

    /// The one that ends first.
    fn or_shorter(self, other: Option<Self>) -> Self {
        other.filter(|other| other.from + other.ttl < self.from + self.ttl).unwrap_or(self)
    }

    /// The remaining time. As in the cache, the first second does not count.
    fn remaining(self, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.from);
        if passed < cache::ROUNDING { Some(self.ttl) } else { self.ttl.checked_sub(passed) }
    }
}

fn not_a_path(name: &Name, value: &str) -> NameError {
    NameError::Value { name: name.clone(), value: value.chars().take(200).collect() }
}

/// The answer as a path.
fn path_of(name: &Name, answer: &Answer) -> Result<ContentPath, NameError> {
    let (value, path) = match answer {
        Answer::Record(record) => (record.value(), ContentPath::read(record.value(), DEPTH_MAX)),
        Answer::Link(link) => (&**link, dnslink::read(link)),
    };
    path.map_err(|_| not_a_path(name, value))
}

impl Inner {
    /// Whether the policy allows resolving a name with these path segments below it.
    fn check_policy(&self, name: &Name, below: &[String]) -> Result<(), NameError> {
        let below = Some(below.join("/")).filter(|below| !below.is_empty());
        for path in iter::once(String::new()).chain(below) {
            match self.policy.0.check_name(name, &path) {
                Verdict::Allow => {}
                verdict => return Err(NameError::Withheld { name: name.clone(), path, verdict }),
            }
        }
        Ok(())
    }

    /// The entry of the static map for a name.
    fn static_entry(&self, name: &Name) -> Option<ContentPath> {
        self.static_map.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The answer for one name, as a path.
    async fn step(self: &Arc<Self>, name: &Name, mode: LookUpMode<'_>) -> Result<StepAnswer<ContentPath>, NameError> {
        if let Some(answer) = self.static_entry(name) {
            if matches!(mode, LookUpMode::IfNeeded(_)) {
                self.metrics.hit(Hit::Map);
            }
            return Ok(StepAnswer { answer, ttl: MAP_TTL, stale: None });
        }
        let StepAnswer { answer, ttl, stale } = match mode {
            LookUpMode::IfNeeded(observer) => self.answer(name, observer).await?,
            LookUpMode::CacheOnly => self.known(name).ok_or_else(|| NameError::Offline { name: name.clone() })??,
        };
        Ok(StepAnswer { answer: path_of(name, &answer)?, ttl, stale })
    }

    fn freshness(&self, entry: &CacheEntry) -> Freshness {
        self.cache.freshness(entry, (self.clock.now)(), (self.clock.wall)())
    }

    /// The answer of a cache entry.
    fn step_answer(&self, entry: &CacheEntry) -> Result<StepAnswer, NameError> {
        let (ttl, stale) = match self.freshness(entry) {
            Freshness::Fresh(ttl) => (ttl, None),
            Freshness::Stale { ttl, .. } => (ttl, Some(entry.age((self.clock.now)()))),
            Freshness::Expired => (Duration::ZERO, None),
        };
        entry.outcome.clone().map(|answer| StepAnswer { answer, ttl, stale })
    }

    /// The usable answer for a name that needs no look-up.
    fn known(&self, name: &Name) -> Option<Result<StepAnswer, NameError>> {
        if let Some(entry) = self.cache.get(name)
            && self.freshness(&entry) != Freshness::Expired
        {
            return Some(self.step_answer(&entry));
        }
        self.published_record(name).map(|record| {
            let ttl = record.ttl();
            Ok(StepAnswer { answer: Answer::Record(record), ttl, stale: None })
        })
    }

    /// The cached answer for a name, or the result of a look-up.
    async fn answer(self: &Arc<Self>, name: &Name, observer: Observer<'_>) -> Result<StepAnswer, NameError> {
        let known = self.cache.get(name);
        if let Some(entry) = &known {
            match self.freshness(entry) {
                Freshness::Fresh(_) => {
                    self.metrics.hit(if entry.outcome.is_ok() { Hit::Fresh } else { Hit::Failure });
                    return self.step_answer(entry);
                }
                Freshness::Stale { refresh, wait, .. } if !(refresh && wait && self.is_reachable(name)) => {
                    self.metrics.hit(Hit::Stale);
                    if refresh {
                        self.refresh(name);
                    }
                    return self.step_answer(entry);
                }
                Freshness::Stale { .. } | Freshness::Expired => {}
            }
        }
        if let Some(record) = self.published_record(name) {
            return self.step_answer(&self.insert_newer(name, record, cache::QUORUM).0);
        }
        match known.filter(|entry| self.freshness(entry) != Freshness::Expired) {
            Some(stale) => self.await_refresh(name, &stale, observer).await,
            None => self.step_answer(&*self.look_up(name, observer).await?),
        }
    }

    /// The result of a refresh within [`NamesOptions::refresh_wait`], or else the stale answer.
    async fn await_refresh(
        self: &Arc<Self>,
        name: &Name,
        stale: &CacheEntry,
        observer: Observer<'_>,
    ) -> Result<StepAnswer, NameError> {
        // If the maximum of look-ups is reached, the stale answer is returned.
        let look_up = self.look_ups.refresh(self, name).or_else(|| self.look_ups.join(self, name));
        if let Some(look_up) = look_up {
            let wait = self.refresh_wait.saturating_sub(look_up.age());
            let waiting = Waiting::begin(observer, name, look_up.is_shared());
            // A timeout is no failure: the look-up continues in the background.
            if tokio::time::timeout(wait, look_up.settled(stale)).await.is_ok() {
                waiting.end(Ok(()));
            }
        }
        let known = self.cache.get(name);
        match known.filter(|entry| self.freshness(entry) != Freshness::Expired) {
            Some(entry) => {
                if !matches!(self.freshness(&entry), Freshness::Fresh(_)) {
                    self.metrics.hit(Hit::Stale);
                }
                self.step_answer(&entry)
            }
            None => self.step_answer(&*self.look_up(name, observer).await?),
        }
    }

    /// Whether a look-up of a name is possible.
    fn is_reachable(&self, name: &Name) -> bool {
        match name {
            Name::Key(_) => self.records.is_some(),
            Name::Domain(_) => self.links.is_some(),
        }
    }

    /// Looks a name up, sharing the look-up with other clients.
    async fn look_up(self: &Arc<Self>, name: &Name, observer: Observer<'_>) -> Result<Arc<CacheEntry>, NameError> {
        if !self.is_reachable(name) {
            return Err(NameError::Offline { name: name.clone() });
        }
        // A background search may have found only a record that has expired since. Then its end is awaited, which may
        // bring a better one, and otherwise a new search starts.
        for _ in 0..2 {
            let Some(look_up) = self.look_ups.join(self, name) else {
                self.metrics.busy(name);
                return Err(NameError::Busy);
            };
            let waiting = Waiting::begin(observer, name, look_up.is_shared());
            if let Some(entry) = look_up.answer(|entry| entry.is_valid((self.clock.wall)())).await {
                waiting.end(entry.outcome.as_ref().map(|_| ()));
                return Ok(entry);
            }
        }
        let known = self.cache.get(name);
        match name {
            Name::Key(key) if known.is_some_and(|entry| !entry.is_valid((self.clock.wall)())) => {
                Err(NameError::Refused { key: *key, reason: dht::EXPIRED.to_owned() })
            }
            // The look-up was cancelled with the process, or panicked.
            _ => Err(NameError::Busy),
        }
    }

    /// Starts a background look-up, unless one runs or the maximum is reached.
    fn refresh(self: &Arc<Self>, name: &Name) {
        if self.is_reachable(name) {
            let _ = self.look_ups.refresh(self, name);
        }
    }

    /// Runs a look-up; `answer` is called with every better answer, the first as soon as it arrives.
    async fn run_look_up(&self, name: &Name, mut answer: impl FnMut(Arc<CacheEntry>)) {
        match (name, &self.records, &self.links) {
            (Name::Key(key), Some(records), _) => dht::search(self, records.as_ref(), *key, answer).await,
            (Name::Domain(domain), _, Some(links)) => {
                let begun = Instant::now();
                let (outcome, ttl) = links.look_up(domain.clone()).await;
                self.metrics.looked_up(name, outcome.as_ref().err(), begun.elapsed());
                answer(self.insert_dns_answer(name, outcome, ttl));
            }
            _ => {}
        }
    }

    /// Caches the result for a domain, including that it has no DNSLink. A temporary DNS failure does not replace a
    /// cached answer.
    fn insert_dns_answer(&self, name: &Name, outcome: Result<Answer, NameError>, ttl: Duration) -> Arc<CacheEntry> {
        if let Err(error @ NameError::Dns { .. }) = &outcome {
            self.insert_failure(name, error.clone(), ttl);
            return Arc::new(CacheEntry::new(outcome, ttl, (self.clock.now)()));
        }
        let entry = Arc::new(CacheEntry::new(outcome, ttl, (self.clock.now)()));
        // That the resolver is busy is no property of the domain.
        if entry.outcome != Err(NameError::Busy) {
            self.cache.put(name.clone(), Arc::clone(&entry));
        }
        entry
    }

    /// The unexpired record that this node publishes for a name.
    fn published_record(&self, name: &Name) -> Option<Record> {
        let Name::Key(key) = name else { return None };
        let own = self.published.read().unwrap_or_else(PoisonError::into_inner);
        own.get(key).filter(|record| record.is_valid_at((self.clock.wall)())).cloned()
    }

    /// See [`Cache::insert_newer`]. The published record may be newer than the one found.
    fn insert_newer(&self, name: &Name, record: Record, confirmations: u32) -> (Arc<CacheEntry>, bool) {
        let record = self.published_record(name).filter(|own| own.newer_than(&record)).unwrap_or(record);
        let (entry, is_new) =
            self.cache.insert_newer(name, record, confirmations, (self.clock.now)(), (self.clock.wall)());
        if is_new {
            self.changed.notify_one();
        }
        (entry, is_new)
    }

    /// See [`Cache::insert_failure`].
    fn insert_failure(&self, name: &Name, error: NameError, ttl: Duration) -> Arc<CacheEntry> {
        if let Some(own) = self.published_record(name) {
            return self.insert_newer(name, own, cache::QUORUM).0;
        }
        self.cache.insert_failure(name, error, ttl, (self.clock.now)(), (self.clock.wall)())
    }

    /// See [`Cache::back_off`].
    fn back_off(&self, name: &Name) {
        self.cache.back_off(name, (self.clock.now)());
    }

    /// Loads the saved records into the cache.
    fn load_saved(&self) {
        let Some(saved) = &self.saved else { return };
        for (key, record, age) in saved.load((self.clock.wall)()) {
            let age = age.unwrap_or_else(|| record.ttl().saturating_add(self.cache.staleness().while_revalidate));
            self.cache.put(Name::Key(key), Arc::new(CacheEntry::saved(record, age, (self.clock.now)())));
        }
    }

    /// Saves the records; if there are too many, the latest.
    async fn save(&self) {
        let Some(saved) = self.saved.clone() else { return };
        let _saving = self.saving.lock().await;
        let mut records = self.cache.records();
        records.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.received));
        let (now, wall) = ((self.clock.now)(), (self.clock.wall)());
        let write = move || {
            let entries = records.iter().filter_map(|(name, entry)| match (name, &entry.outcome) {
                (Name::Key(key), Ok(Answer::Record(record))) => Some((*key, record, entry.age(now))),
                _ => None,
            });
            saved.save(entries, wall);
        };
        let _ = tokio::task::spawn_blocking(write).await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The saving task notices that the state is gone, and ends.
        self.changed.notify_one();
    }
}

/// Saves the records some time after each change, until the state is dropped.
async fn save_on_change(inner: Weak<Inner>, changed: Arc<Notify>) {
    loop {
        changed.notified().await;
        if inner.strong_count() > 0 {
            tokio::time::sleep(SAVE_AFTER).await;
        }
        let Some(inner) = inner.upgrade() else { return };
        inner.save().await;
    }
}
