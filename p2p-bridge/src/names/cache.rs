//! The cache of names, with the freshness of each answer.
//!
//! An answer is *fresh* for its time to live and then *stale*: a record is valid until its signed end of life, but
//! there may be a newer one. Staleness is bounded as in HTTP caches (RFC 5861): for a short time a stale answer is
//! returned at once and refreshed in the background (`stale-while-revalidate`); for a longer time it is returned only
//! if the awaited look-up fails (`stale-if-error`); after that it is discarded. Failures are cached for a short time as
//! well (negative cache), so that a popular name without a record costs one search and not one per client.

use content::ipns::Record;
use content::{Name, NameError};
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;
use moka::sync::Cache as Moka;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The maximum time that an answer is fresh.
pub(super) const TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The time to live of a stale answer while a newer one is looked up.
pub(super) const STALE_TTL: Duration = Duration::from_secs(5);
/// The pause between look-ups of a stale answer after one that found nothing newer.
const REFRESH_BACK_OFF: Duration = Duration::from_secs(30);
/// The first second after an answer does not count, so that all callers of one look-up get the same time to live.
pub(super) const ROUNDING: Duration = Duration::from_secs(1);
/// Maximum cached failures. They have their own cache, so that nonexistent names, of which there is no end, evict no
/// answers.
const FAILURES_MAX: u64 = 4096;
/// Bytes per unit of weight: the size of a typical record.
const ENTRY_BYTES: usize = 1024;

/// How long after its time to live an answer may be returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staleness {
    /// At once, while it is refreshed in the background.
    pub while_revalidate: Duration,
    /// If an awaited look-up fails: never less than `while_revalidate`.
    pub if_error: Duration,
}

impl Default for Staleness {
    fn default() -> Self {
        Self { while_revalidate: Duration::from_secs(60), if_error: Duration::from_secs(48 * 3600) }
    }
}

/// Sources that must confirm a record before it counts as the newest.
pub(super) const QUORUM: u32 = 4;

/// The answer for one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The newest known record of a key.
    Record(Record),
    /// The DNSLink of a domain.
    Link(Arc<str>),
}

/// A cached answer or failure.
#[derive(Debug, Clone)]
pub(super) struct CacheEntry {
    pub outcome: Result<Answer, NameError>,
    /// When it was received in this run.
    pub received: Instant,
    /// Its age at that time, from an earlier run.
    age_before: Duration,
    /// Sources of this look-up that returned the same or an older record.
    pub confirmations: u32,
    fresh_for: Duration,
    refresh_after: Instant,
}

/// The state of an entry at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Fresh for the given time.
    Fresh(Duration),
    /// Usable, but there may be a newer answer.
    Stale {
        /// The time to live of the stale answer.
        ttl: Duration,
        /// Whether a look-up is due.
        refresh: bool,
        /// Whether to wait for the look-up, because the answer has been stale for long.
        wait: bool,
    },
    /// Unusable.
    Expired,
}

impl CacheEntry {
    pub fn new(outcome: Result<Answer, NameError>, ttl: Duration, now: Instant) -> Self {
        let fresh_for = ttl.min(TTL_MAX);
        // A DNS answer is final; records need confirmations.
        let confirmations = if matches!(outcome, Ok(Answer::Record(_))) { 1 } else { QUORUM };
        Self { outcome, received: now, age_before: Duration::ZERO, confirmations, fresh_for, refresh_after: now }
    }

    /// A record that an earlier run received `age_before` ago.
    pub fn saved(record: Record, age_before: Duration, now: Instant) -> Self {
        let ttl = record.ttl();
        Self { age_before, ..Self::new(Ok(Answer::Record(record)), ttl, now) }
    }

    /// The age of the answer.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.received).saturating_add(self.age_before)
    }

    fn freshness(&self, staleness: Staleness, now: Instant, wall: SystemTime) -> Freshness {
        let passed = now.saturating_duration_since(self.received);
        let age = self.age(if passed < ROUNDING { self.received } else { now });
        let left = match &self.outcome {
            Ok(Answer::Record(record)) => match record.end_of_life().duration_since(wall) {
                Ok(life) => life,
                Err(_) => return Freshness::Expired,
            },
            Ok(Answer::Link(_)) | Err(_) => Duration::MAX,
        };
        if let Some(fresh) = self.fresh_for.checked_sub(age).filter(|fresh| !fresh.is_zero()) {
            return Freshness::Fresh(fresh.min(left));
        }
        let stale_for = age.saturating_sub(self.fresh_for);
        let wait = stale_for >= staleness.while_revalidate;
        if self.outcome.is_err() || (wait && stale_for >= staleness.if_error) {
            return Freshness::Expired;
        }
        Freshness::Stale { ttl: STALE_TTL.min(left), refresh: now >= self.refresh_after, wait }
    }

    /// Whether it may be returned to a caller that waited for it. A record may have expired meanwhile; a DNSLink of
    /// that age is still the answer of the DNS.
    pub fn is_valid(&self, wall: SystemTime) -> bool {
        match &self.outcome {
            Ok(Answer::Record(record)) => record.is_valid_at(wall),
            Ok(Answer::Link(_)) | Err(_) => true,
        }
    }

    fn weight(&self) -> u32 {
        let bytes = match &self.outcome {
            Ok(Answer::Record(record)) => record.bytes().len() + record.value().len(),
            Ok(Answer::Link(link)) => link.len(),
            Err(_) => 0,
        };
        u32::try_from(bytes.div_ceil(ENTRY_BYTES).max(1)).unwrap_or(u32::MAX)
    }
}

/// The cache, with LRU eviction.
pub(super) struct Cache {
    staleness: Staleness,
    answers: Moka<Name, Arc<CacheEntry>>,
    failures: Moka<Name, Arc<CacheEntry>>,
}

impl Cache {
    /// A cache of `entries_max` typical answers; larger ones count as several. Failures have additional space.
    pub fn new(entries_max: u64, staleness: Staleness) -> Self {
        let room = |max: u64| Moka::builder().max_capacity(max).eviction_policy(EvictionPolicy::lru());
        let answers = room(entries_max).weigher(|_: &Name, entry: &Arc<CacheEntry>| entry.weight()).build();
        Self { staleness, answers, failures: room(entries_max.min(FAILURES_MAX)).build() }
    }

    /// The configured staleness.
    pub fn staleness(&self) -> Staleness {
        self.staleness
    }

    /// The state of an entry.
    pub fn freshness(&self, entry: &CacheEntry, now: Instant, wall: SystemTime) -> Freshness {
        entry.freshness(self.staleness, now, wall)
    }

    pub fn get(&self, name: &Name) -> Option<Arc<CacheEntry>> {
        self.answers.get(name).or_else(|| self.failures.get(name))
    }

    pub fn put(&self, name: Name, entry: Arc<CacheEntry>) {
        let (right, wrong) =
            if entry.outcome.is_ok() { (&self.answers, &self.failures) } else { (&self.failures, &self.answers) };
        wrong.invalidate(&name);
        right.insert(name, entry);
    }

    /// Invalidates a name. Returns whether it was cached.
    pub fn remove(&self, name: &Name) -> bool {
        let failure = self.failures.remove(name).is_some();
        self.answers.remove(name).is_some() || failure
    }

    /// Caches the newer of a found record and the cached one, as fresh. `confirmations` is the number of sources that
    /// confirmed it; below [`QUORUM`], a stale answer stays stale, because the next source may have a newer record.
    /// Returns the cached entry, and whether it is the found record.
    pub fn insert_newer(
        &self,
        name: &Name,
        found: Record,
        confirmations: u32,
        now: Instant,
        wall: SystemTime,
    ) -> (Arc<CacheEntry>, bool) {
        let mut is_new = true;
        let entry = self.answers.entry_by_ref(name).and_upsert_with(|known| {
            let known = known.map(moka::Entry::into_value);
            let best = match known.as_ref().map(|entry| (entry, &entry.outcome)) {
                Some((entry, Ok(Answer::Record(record)))) if record.is_valid_at(wall) && !found.newer_than(record) => {
                    is_new = false;
                    if confirmations < QUORUM && matches!(self.freshness(entry, now, wall), Freshness::Stale { .. }) {
                        return Arc::new(CacheEntry { confirmations, ..CacheEntry::clone(entry) });
                    }
                    record.clone()
                }
                _ => found.clone(),
            };
            let ttl = best.ttl();
            Arc::new(CacheEntry { confirmations, ..CacheEntry::new(Ok(Answer::Record(best)), ttl, now) })
        });
        self.failures.invalidate(name);
        (entry.into_value(), is_new)
    }

    /// Handles a failed look-up. A usable answer stays, with a pause until the next look-up; otherwise the failure is
    /// cached. Returns the resulting entry.
    pub fn insert_failure(
        &self,
        name: &Name,
        error: NameError,
        ttl: Duration,
        now: Instant,
        wall: SystemTime,
    ) -> Arc<CacheEntry> {
        let mut counts = Arc::new(CacheEntry::new(Err(error), ttl, now));
        let _ = self.answers.entry_by_ref(name).and_compute_with(|known| match known.map(moka::Entry::into_value) {
            Some(entry) if self.freshness(&entry, now, wall) != Freshness::Expired => {
                counts = Arc::new(CacheEntry { refresh_after: now + REFRESH_BACK_OFF, ..CacheEntry::clone(&entry) });
                Op::Put(Arc::clone(&counts))
            }
            Some(_) => Op::Remove,
            None => Op::Nop,
        });
        if counts.outcome.is_err() {
            self.failures.insert(name.clone(), Arc::clone(&counts));
        }
        counts
    }

    /// Pauses look-ups of a name, because a look-up was cancelled for lack of slots.
    pub fn back_off(&self, name: &Name, now: Instant) {
        let _ = self.answers.entry_by_ref(name).and_compute_with(|known| match known.map(moka::Entry::into_value) {
            Some(entry) => {
                Op::Put(Arc::new(CacheEntry { refresh_after: now + REFRESH_BACK_OFF, ..CacheEntry::clone(&entry) }))
            }
            None => Op::Nop,
        });
    }

    /// All cached records, in no order.
    pub fn records(&self) -> Vec<(Name, Arc<CacheEntry>)> {
        let records = self.answers.iter().filter(|(_, entry)| matches!(entry.outcome, Ok(Answer::Record(_))));
        records.map(|(name, entry)| (Name::clone(&name), entry)).collect()
    }

    #[cfg(test)]
    pub fn clear(&self) {
        self.answers.invalidate_all();
        self.failures.invalidate_all();
    }

    /// Evicts excess entries now, which otherwise happens with a delay.
    #[cfg(test)]
    pub fn run_pending_tasks(&self) {
        self.answers.run_pending_tasks();
        self.failures.run_pending_tasks();
    }
}
