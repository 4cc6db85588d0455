//! [`Names`]: what names stand for, by the operator's list, IPNS records from the DHT, and DNSLinks from the DNS.
//!
//! Goals: a name that is resolved now and then is answered at once, also after a restart, and refreshed behind; what is
//! answered is bounded in how stale it is, unless nobody can be asked; nobody waits for more than the first peer that has a
//! good record when nothing is known, nor for longer than a bound when something is; whatever is asked of us, look-ups are
//! bounded in number and time, and a name costs one of them at a time.
//!
//! How a name is resolved, step by step, for names stand for names:
//!
//! 1. the operator's list, which beats everything;
//! 2. what is remembered (`cache.rs`): fresh, or stale for a short time and refreshed behind;
//! 3. one look-up for all who wait: the DHT (`dht.rs`) for a key, the DNS (`dns.rs`) for a domain. Who waits although something
//!    is remembered, because it has been stale for longer, waits up to a bound, and then gets that, with its age.
//!
//! Names whose keys are kept here are published by [`publish`], and what is published here is known without a search.
//!
//! Non-goals: what content a path leads to.

mod cache;
mod dht;
mod dns;
mod flight;
mod inspect;
mod kept;
pub mod key_format;
pub mod keystore;
mod metrics;
pub mod publish;
#[cfg(test)]
mod stale_tests;
#[cfg(test)]
mod tests;

pub use cache::Staleness;
pub use dns::DohError;
pub use inspect::{NameStep, Refreshed, StepSource};

use crate::bridge::Bridge;
use crate::obeyed::Obeyed;
use cache::{Answer, Cache, Entry, Standing};
use content::dnslink::{self, StaticMap};
use content::ipns::Record;
use content::names::Key;
use content::path::{ContentPath, Root};
use content::{Name, NameError, NameResolver, Resolution, Verdict};
use dht::Records;
use dns::{Dns, Links};
use flight::Flights;
use futures::FutureExt;
use futures::future::BoxFuture;
use kept::Kept;
use metrics::{Hit, Metrics};
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{Mutex, Notify};

/// Names that stand for names are followed so far (<https://specs.ipfs.tech/ipns/ipns-record/> leaves it open; Kubo follows
/// 32).
pub const STEPS_MAX: usize = 32;
/// Segments that all names on the way may add.
const DEPTH_MAX: usize = 256;
/// How long what the operator's list says is good. The list changes when the operator has it read again.
const MAP_TTL: Duration = Duration::from_secs(60);
/// How long it is remembered that the DHT has no record of a key.
const FAILURE_TTL: Duration = Duration::from_secs(10);
/// How long after the first record of a search others may say that there is a newer one, before it counts as the newest.
const SETTLE: Duration = Duration::from_secs(1);
/// How long after a change the records are written.
const SAVE_AFTER: Duration = Duration::from_secs(5);

/// What names are resolved with.
#[derive(Debug, Clone)]
pub struct NamesOptions {
    /// Names that the operator decided about.
    pub static_map: StaticMap,
    /// Pairs of a suffix ("eth", "example.org" or "." for everything) and the URL of the DNS-over-HTTPS service that is asked
    /// for the DNSLinks of names below it.
    pub doh: Vec<(String, String)>,
    /// DNS servers to ask instead of the system's; usually none.
    pub dns_servers: Vec<SocketAddr>,
    /// Names that are remembered. A record of more than 1 KiB counts as several.
    pub cache_entries_max: u64,
    /// Look-ups that run at once, in the DHT and in the DNS each; half of them at most may be ones that nobody waits for.
    pub lookups_max: usize,
    /// How long a name may be searched for in the DHT.
    pub timeout: Duration,
    /// How long after its time to live an answer may be given.
    pub staleness: Staleness,
    /// How long a refresh may be waited for while there is an answer, if a stale one. Counted from the refresh's beginning.
    pub refresh_wait: Duration,
    /// Contact nobody, not even DNS servers.
    pub offline: bool,
    /// Where records are kept over a restart. Nowhere if it is not set.
    pub state_dir: Option<PathBuf>,
    /// Which names are neither resolved nor told.
    pub policy: Obeyed,
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
            policy: Obeyed::default(),
        }
    }
}

/// Why names cannot be resolved as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamesError {
    /// A DNS-over-HTTPS route cannot be followed.
    #[error(transparent)]
    Doh(#[from] DohError),
}

/// Resolves names. Meant to be shared; records are written for the last time by [`Names::save`].
pub struct Names {
    inner: Arc<Inner>,
}

/// What time it is. Only tests have another than the system's.
#[derive(Clone, Copy)]
struct Clock {
    /// What times to live are counted by.
    now: fn() -> Instant,
    /// The time of day, which ends lives.
    wall: fn() -> SystemTime,
}

const SYSTEM_CLOCK: Clock = Clock { now: Instant::now, wall: SystemTime::now };

/// What look-ups share.
struct Inner {
    static_map: RwLock<StaticMap>,
    /// None: nobody is there to ask.
    records: Option<Arc<dyn Records>>,
    /// None: nobody is there to ask.
    links: Option<Arc<dyn Links>>,
    cache: Cache,
    /// The records that are published here, which nobody has to be asked for.
    own: RwLock<HashMap<Key, Record>>,
    flights: Flights,
    timeout: Duration,
    refresh_wait: Duration,
    clock: Clock,
    kept: Option<Kept>,
    changed: Arc<Notify>,
    /// Held by whoever writes.
    saving: Mutex<()>,
    metrics: Metrics,
    policy: Obeyed,
}

impl Names {
    /// Reads the records of the last run. Must be called inside a Tokio runtime. Without a bridge, IPNS names are known from
    /// the list and from the last run only.
    ///
    /// # Errors
    /// [`NamesError`] names the setting that cannot be followed.
    pub fn new(
        options: NamesOptions,
        bridge: Option<Bridge>,
        registry: &mut Registry,
    ) -> Result<Arc<Self>, NamesError> {
        let dns = Dns::new(&options.doh, &options.dns_servers, options.lookups_max)?;
        let online = !options.offline;
        let links = online.then(|| Arc::new(dns) as Arc<dyn Links>);
        let records = bridge.filter(|_| online).map(|bridge| Arc::new(bridge) as Arc<dyn Records>);
        Ok(Self::with(options, records, links, SYSTEM_CLOCK, registry))
    }

    fn with(
        options: NamesOptions,
        records: Option<Arc<dyn Records>>,
        links: Option<Arc<dyn Links>>,
        clock: Clock,
        registry: &mut Registry,
    ) -> Arc<Self> {
        let mut staleness = options.staleness;
        if records.is_none() && links.is_none() {
            // Nobody will ever say anything newer.
            staleness.if_error = Duration::MAX;
        }
        let inner = Arc::new(Inner {
            static_map: RwLock::new(options.static_map),
            records,
            links,
            cache: Cache::new(options.cache_entries_max, staleness),
            own: RwLock::default(),
            flights: Flights::new(options.lookups_max),
            timeout: options.timeout,
            refresh_wait: options.refresh_wait,
            clock,
            kept: options.state_dir.as_deref().map(Kept::new),
            changed: Arc::default(),
            saving: Mutex::default(),
            metrics: Metrics::register(registry),
            policy: options.policy,
        });
        inner.remember();
        if inner.kept.is_some() {
            tokio::spawn(keep_saving(Arc::downgrade(&inner), Arc::clone(&inner.changed)));
        }
        Arc::new(Self { inner })
    }

    /// A record is published here: from now on it answers, unless there is a newer one.
    fn own(&self, key: Key, record: Record) {
        let name = Name::Key(key);
        let mut own = self.inner.own.write().unwrap_or_else(PoisonError::into_inner);
        if own.get(&key).is_none_or(|known| record.newer_than(known)) {
            own.insert(key, record.clone());
        }
        drop(own);
        if record.is_valid_at((self.inner.clock.wall)()) {
            self.inner.improve(&name, record, cache::AGREED);
        }
    }

    /// A name is published here no longer.
    fn disown(&self, key: &Key) {
        self.inner.own.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// The newest record of a key that is known without asking anybody, whether or not it still holds.
    fn known(&self, key: &Key) -> Option<Record> {
        let own = self.inner.own.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        let cached = self.inner.cache.get(&Name::Key(*key)).and_then(|entry| match &entry.outcome {
            Ok(Answer::Record(record)) => Some(record.clone()),
            _ => None,
        });
        match (own, cached) {
            (Some(own), Some(cached)) => Some(if cached.newer_than(&own) { cached } else { own }),
            (own, cached) => own.or(cached),
        }
    }

    /// Puts another list of the operator's in the place of the one that is in force.
    pub fn set_static_map(&self, map: StaticMap) {
        *self.inner.static_map.write().unwrap_or_else(PoisonError::into_inner) = map;
    }

    /// Writes the records that are to outlive a restart. Otherwise that happens a few seconds after a change.
    pub async fn save(&self) {
        self.inner.save().await;
    }
}

impl NameResolver for Names {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        let (inner, name) = (Arc::clone(&self.inner), name.clone());
        async move { resolve(&inner, name).await }.boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        let (inner, key) = (Arc::clone(&self.inner), *key);
        async move {
            inner.check_policy(&Name::Key(key), &[])?;
            match inner.answer(&Name::Key(key)).await? {
                Said { answer: Answer::Record(record), .. } => Ok(record),
                Said { answer: Answer::Link(_), .. } => {
                    Err(NameError::Refused { key, reason: "a DNSLink is no record".to_owned() })
                }
            }
        }
        .boxed()
    }
}

/// Follows names until one stands for content. What the first one says may no longer hold when the last one is known: then
/// they are all followed once more, by what is remembered now.
async fn resolve(inner: &Arc<Inner>, first: Name) -> Result<Resolution, NameError> {
    let limit = 2 * inner.timeout.max(dns::LOOKUP_TIMEOUT);
    let following = async {
        for _ in 0..2 {
            if let Some(resolution) = follow(inner, &first, Ask::IfNeeded).await? {
                return Ok(Some(resolution));
            }
        }
        Ok(None)
    };
    let begun = Instant::now();
    let followed = tokio::time::timeout(limit, following).await.unwrap_or(Ok(None))?;
    followed.ok_or_else(|| NameError::TooSlow { name: first.clone(), waited: begun.elapsed() })
}

/// Whether anybody is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// If nothing is known that holds.
    IfNeeded,
    /// Never; and that somebody looks at what is known has no consequences.
    Nobody,
}

/// What one name stands for, as it is told.
#[derive(Debug, Clone)]
struct Said<T = Answer> {
    answer: T,
    /// How long to take it for true.
    ttl: Duration,
    /// How long ago it was learnt, if that is longer than it is fresh.
    stale: Option<Duration>,
}

/// Where a name leads to; `None` if that was over before the end was reached.
async fn follow(inner: &Arc<Inner>, first: &Name, ask: Ask) -> Result<Option<Resolution>, NameError> {
    let (mut name, mut below, mut lease, mut hops) = (first.clone(), Vec::new(), None, Vec::new());
    let mut oldest: Option<Duration> = None;
    for _ in 0..STEPS_MAX {
        inner.check_policy(&name, &below)?;
        hops.push((name.clone(), below.join("/")));
        let Said { answer: path, ttl, stale } = inner.step(&name, ask).await?;
        oldest = oldest.max(stale);
        lease = Some(Lease::new(ttl, (inner.clock.now)()).or_shorter(lease));
        let mut segments = path.segments;
        if segments.len() + below.len() > DEPTH_MAX {
            return Err(not_a_path(&name, &segments.join("/")));
        }
        segments.append(&mut below);
        match path.root {
            Root::Cid(root) => {
                let left = lease.and_then(|lease| lease.left((inner.clock.now)()));
                return Ok(left.map(|ttl| Resolution { root, segments, ttl, stale: oldest, hops }));
            }
            Root::Name(next) => (name, below) = (next, segments),
        }
    }
    Err(NameError::TooManySteps { name: first.clone(), max: STEPS_MAX })
}

/// How long something is good, from some moment on.
#[derive(Debug, Clone, Copy)]
struct Lease {
    ttl: Duration,
    from: Instant,
}

impl Lease {
    fn new(ttl: Duration, from: Instant) -> Self {
        Self { ttl, from }
    }

    /// The one that ends first.
    fn or_shorter(self, other: Option<Self>) -> Self {
        other.filter(|other| other.from + other.ttl < self.from + self.ttl).unwrap_or(self)
    }

    /// What is left of it. As with what is remembered, the first moment does not count.
    fn left(self, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.from);
        if passed < cache::MOMENT { Some(self.ttl) } else { self.ttl.checked_sub(passed) }
    }
}

fn not_a_path(name: &Name, value: &str) -> NameError {
    NameError::Value { name: name.clone(), value: value.chars().take(200).collect() }
}

/// What an answer says, as a path.
fn path_of(name: &Name, answer: &Answer) -> Result<ContentPath, NameError> {
    let (value, path) = match answer {
        Answer::Record(record) => (record.value(), ContentPath::read(record.value(), DEPTH_MAX)),
        Answer::Link(link) => (&**link, dnslink::read(link)),
    };
    path.map_err(|_| not_a_path(name, value))
}

impl Inner {
    /// Whether a name may be resolved, to follow these segments from there.
    fn check_policy(&self, name: &Name, below: &[String]) -> Result<(), NameError> {
        let policy = &self.policy.0;
        let mut verdict = policy.check_name(name, "");
        if verdict == Verdict::Allow && !below.is_empty() {
            verdict = policy.check_name(name, &below.join("/"));
        }
        match verdict {
            Verdict::Allow => Ok(()),
            verdict => Err(NameError::Withheld { name: name.clone(), verdict }),
        }
    }

    /// What the operator's list says of a name.
    fn mapped(&self, name: &Name) -> Option<ContentPath> {
        self.static_map.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// What one name stands for, and for how long.
    async fn step(self: &Arc<Self>, name: &Name, ask: Ask) -> Result<Said<ContentPath>, NameError> {
        if let Some(answer) = self.mapped(name) {
            if ask == Ask::IfNeeded {
                self.metrics.hit(Hit::Map);
            }
            return Ok(Said { answer, ttl: MAP_TTL, stale: None });
        }
        let Said { answer, ttl, stale } = match ask {
            Ask::IfNeeded => self.answer(name).await?,
            Ask::Nobody => self.known(name).ok_or_else(|| NameError::Offline { name: name.clone() })??,
        };
        Ok(Said { answer: path_of(name, &answer)?, ttl, stale })
    }

    fn standing(&self, entry: &Entry) -> Standing {
        self.cache.standing(entry, (self.clock.now)(), (self.clock.wall)())
    }

    /// An entry as it is told.
    fn say(&self, entry: &Entry) -> Result<Said, NameError> {
        let (ttl, stale) = match self.standing(entry) {
            Standing::Fresh(ttl) => (ttl, None),
            Standing::Stale { ttl, .. } => (ttl, Some(entry.age((self.clock.now)()))),
            Standing::Gone => (Duration::ZERO, None),
        };
        entry.outcome.clone().map(|answer| Said { answer, ttl, stale })
    }

    /// What is known of a name that holds, and for how long.
    fn known(&self, name: &Name) -> Option<Result<Said, NameError>> {
        if let Some(entry) = self.cache.get(name)
            && self.standing(&entry) != Standing::Gone
        {
            return Some(self.say(&entry));
        }
        self.own_record(name).map(|record| {
            let ttl = record.ttl();
            Ok(Said { answer: Answer::Record(record), ttl, stale: None })
        })
    }

    /// What is known of a name, or else what a look-up finds.
    async fn answer(self: &Arc<Self>, name: &Name) -> Result<Said, NameError> {
        let known = self.cache.get(name);
        if let Some(entry) = &known {
            match self.standing(entry) {
                Standing::Fresh(_) => {
                    self.metrics.hit(if entry.outcome.is_ok() { Hit::Fresh } else { Hit::Failure });
                    return self.say(entry);
                }
                Standing::Stale { refresh, wait, .. } if !(refresh && wait && self.is_reachable(name)) => {
                    self.metrics.hit(Hit::Stale);
                    if refresh {
                        self.refresh(name);
                    }
                    return self.say(entry);
                }
                Standing::Stale { .. } | Standing::Gone => {}
            }
        }
        if let Some(record) = self.own_record(name) {
            return self.say(&self.improve(name, record, cache::AGREED).0);
        }
        match known.filter(|entry| self.standing(entry) != Standing::Gone) {
            Some(stale) => self.await_refresh(name, &stale).await,
            None => self.say(&*self.look_up(name).await?),
        }
    }

    /// What a refresh brings within the time that it may be waited for, or else what is known, which has been stale for long.
    async fn await_refresh(self: &Arc<Self>, name: &Name, stale: &Entry) -> Result<Said, NameError> {
        // With as much to do as there may be, what is known is told.
        let flight = self.flights.refresh(self, name).or_else(|| self.flights.join(self, name));
        if let Some(flight) = flight {
            let patience = self.refresh_wait.saturating_sub(flight.age());
            // The time alone that passes is no failure: the look-up goes on behind.
            let _ = tokio::time::timeout(patience, flight.settled(stale)).await;
        }
        let known = self.cache.get(name);
        match known.filter(|entry| self.standing(entry) != Standing::Gone) {
            Some(entry) => {
                if !matches!(self.standing(&entry), Standing::Fresh(_)) {
                    self.metrics.hit(Hit::Stale);
                }
                self.say(&entry)
            }
            None => self.say(&*self.look_up(name).await?),
        }
    }

    /// Whether there is anybody to ask about a name.
    fn is_reachable(&self, name: &Name) -> bool {
        match name {
            Name::Key(_) => self.records.is_some(),
            Name::Domain(_) => self.links.is_some(),
        }
    }

    /// Looks a name up, together with everybody else who wants it.
    async fn look_up(self: &Arc<Self>, name: &Name) -> Result<Arc<Entry>, NameError> {
        if !self.is_reachable(name) {
            return Err(NameError::Offline { name: name.clone() });
        }
        // A search that goes on behind may have found nothing but a record that has died since. Then its end is waited for,
        // which may bring a better one, and after it there is a new search.
        for _ in 0..2 {
            let Some(flight) = self.flights.join(self, name) else {
                self.metrics.busy(name);
                return Err(NameError::Busy);
            };
            if let Some(entry) = flight.answer(|entry| entry.holds((self.clock.wall)())).await {
                return Ok(entry);
            }
        }
        let known = self.cache.get(name);
        match name {
            Name::Key(key) if known.is_some_and(|entry| !entry.holds((self.clock.wall)())) => {
                Err(NameError::Refused { key: *key, reason: dht::EXPIRED.to_owned() })
            }
            // A look-up that vanishes was ended with the process, or by a defect.
            _ => Err(NameError::Busy),
        }
    }

    /// Looks for something newer, if nobody does and there is time for it.
    fn refresh(self: &Arc<Self>, name: &Name) {
        if self.is_reachable(name) {
            let _ = self.flights.refresh(self, name);
        }
    }

    /// The look-up itself; `answer` hears of every better answer, the first as soon as it is there.
    async fn fly(&self, name: &Name, mut answer: impl FnMut(Arc<Entry>)) {
        match (name, &self.records, &self.links) {
            (Name::Key(key), Some(records), _) => dht::search(self, records.as_ref(), *key, answer).await,
            (Name::Domain(domain), _, Some(links)) => {
                let begun = Instant::now();
                let (outcome, ttl) = links.look_up(domain.clone()).await;
                self.metrics.looked_up(name, outcome.as_ref().err(), begun.elapsed());
                answer(self.learn(name, outcome, ttl));
            }
            _ => {}
        }
    }

    /// Remembers what a domain stands for, or that it stands for nothing. What the DNS cannot say for a moment is no reason
    /// to forget what it said.
    fn learn(&self, name: &Name, outcome: Result<Answer, NameError>, ttl: Duration) -> Arc<Entry> {
        if let Err(error @ NameError::Dns { .. }) = &outcome {
            self.fail(name, error.clone(), ttl);
            return Arc::new(Entry::new(outcome, ttl, (self.clock.now)()));
        }
        let entry = Arc::new(Entry::new(outcome, ttl, (self.clock.now)()));
        // That we are busy says nothing about the domain.
        if entry.outcome != Err(NameError::Busy) {
            self.cache.put(name.clone(), Arc::clone(&entry));
        }
        entry
    }

    /// The record that is published here for a name, if it holds.
    fn own_record(&self, name: &Name) -> Option<Record> {
        let Name::Key(key) = name else { return None };
        let own = self.own.read().unwrap_or_else(PoisonError::into_inner);
        own.get(key).filter(|record| record.is_valid_at((self.clock.wall)())).cloned()
    }

    /// See [`Cache::improve`]. What is published here may be better than what was found.
    fn improve(&self, name: &Name, record: Record, agreed: u32) -> (Arc<Entry>, bool) {
        let record = self.own_record(name).filter(|own| own.newer_than(&record)).unwrap_or(record);
        let (entry, news) = self.cache.improve(name, record, agreed, (self.clock.now)(), (self.clock.wall)());
        if news {
            self.changed.notify_one();
        }
        (entry, news)
    }

    /// See [`Cache::fail`].
    fn fail(&self, name: &Name, error: NameError, ttl: Duration) -> Arc<Entry> {
        if let Some(own) = self.own_record(name) {
            return self.improve(name, own, cache::AGREED).0;
        }
        self.cache.fail(name, error, ttl, (self.clock.now)(), (self.clock.wall)())
    }

    /// See [`Cache::leave_in_peace`].
    fn leave_in_peace(&self, name: &Name) {
        self.cache.leave_in_peace(name, (self.clock.now)());
    }

    /// Takes the records of the last run.
    fn remember(&self) {
        let Some(kept) = &self.kept else { return };
        for (key, record, age) in kept.load((self.clock.wall)()) {
            let age = age.unwrap_or_else(|| record.ttl().saturating_add(self.cache.staleness().while_revalidate));
            self.cache.put(Name::Key(key), Arc::new(Entry::kept(record, age, (self.clock.now)())));
        }
    }

    /// Writes the records, those that were learnt last if they are too many.
    async fn save(&self) {
        let Some(kept) = self.kept.clone() else { return };
        let _saving = self.saving.lock().await;
        let mut records = self.cache.records();
        records.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.learnt));
        let (now, wall) = ((self.clock.now)(), (self.clock.wall)());
        let write = move || {
            let entries = records.iter().filter_map(|(name, entry)| match (name, &entry.outcome) {
                (Name::Key(key), Ok(Answer::Record(record))) => Some((*key, record, entry.age(now))),
                _ => None,
            });
            kept.save(entries, wall);
        };
        let _ = tokio::task::spawn_blocking(write).await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Whoever saves finds nothing left to save, and ends.
        self.changed.notify_one();
    }
}

/// Writes the records some time after each change, as long as there is anything to write.
async fn keep_saving(inner: Weak<Inner>, changed: Arc<Notify>) {
    loop {
        changed.notified().await;
        if inner.strong_count() > 0 {
            tokio::time::sleep(SAVE_AFTER).await;
        }
        let Some(inner) = inner.upgrade() else { return };
        inner.save().await;
    }
}
