//! What is remembered of names, and how good it still is.
//!
//! An answer is *fresh* for its time to live and then *stale*: a record still holds until its end of life, for its owner
//! signed it to that end, but there may be a newer one. How stale an answer may be is bounded as HTTP caches do it (RFC 5861):
//! for a short time it is given at once, and refreshed behind (`stale-while-revalidate`); for a longer one it is given only if
//! the look-up that was waited for brings nothing (`stale-if-error`); then it is gone. That a name could not be resolved is
//! remembered as well, for a moment, so that a popular name that is gone costs one search and not one for each reader.

use content::ipns::Record;
use content::{Name, NameError};
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;
use moka::sync::Cache as Moka;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The longest time that anything is taken for fresh.
pub(super) const TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long an answer may be taken for true while a newer one is looked for.
pub(super) const STALE_TTL: Duration = Duration::from_secs(5);
/// How long a stale answer is left in peace after a look-up that found none.
const REFRESH_PAUSE: Duration = Duration::from_secs(30);
/// The first moment after an answer does not count, so that a minute is a minute to everybody who asked together.
pub(super) const MOMENT: Duration = Duration::from_secs(1);
/// Failures that are remembered at most. They have a room of their own, so that names that do not exist, of which there is
/// no end, displace none that do.
const FAILURES_MAX: u64 = 4096;
/// The weight of one entry, in bytes: what a usual record takes.
const ENTRY_BYTES: usize = 1024;

/// How long after its time to live an answer may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staleness {
    /// At once, while it is refreshed behind.
    pub while_revalidate: Duration,
    /// If a look-up that is waited for brings nothing: never less than `while_revalidate`.
    pub if_error: Duration,
}

impl Default for Staleness {
    fn default() -> Self {
        Self { while_revalidate: Duration::from_secs(60), if_error: Duration::from_secs(48 * 3600) }
    }
}

/// Peers that agree on a record, so that it is taken for the newest.
pub(super) const AGREED: u32 = 4;

/// What was learnt of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The best record of a key.
    Record(Record),
    /// The DNSLink of a domain.
    Link(Arc<str>),
}

/// An answer, or why there is none, and when that was.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub outcome: Result<Answer, NameError>,
    /// When it was learnt in this run.
    pub learnt: Instant,
    /// How long it had been known by then, from an earlier run.
    known_before: Duration,
    /// How many sources of the look-up that brought it have said the same, or something older.
    pub agreed: u32,
    fresh_for: Duration,
    refresh_after: Instant,
}

/// How good an entry is at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// As good as asking again, for so long.
    Fresh(Duration),
    /// It holds, but there may be something newer, which should be looked for now or was just looked for.
    Stale {
        /// How long to take it for true.
        ttl: Duration,
        /// Whether to look for something newer.
        refresh: bool,
        /// Whether to wait for that, because it has been stale for long.
        wait: bool,
    },
    /// No longer good for anything.
    Gone,
}

impl Entry {
    pub fn new(outcome: Result<Answer, NameError>, ttl: Duration, now: Instant) -> Self {
        let fresh_for = ttl.min(TTL_MAX);
        // What the DNS says is final; records gather votes.
        let agreed = if matches!(outcome, Ok(Answer::Record(_))) { 1 } else { AGREED };
        Self { outcome, learnt: now, known_before: Duration::ZERO, agreed, fresh_for, refresh_after: now }
    }

    /// A record from an earlier run of the node, which learnt it so long ago.
    pub fn kept(record: Record, known_before: Duration, now: Instant) -> Self {
        let ttl = record.ttl();
        Self { known_before, ..Self::new(Ok(Answer::Record(record)), ttl, now) }
    }

    /// How long ago it was learnt.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.learnt).saturating_add(self.known_before)
    }

    fn standing(&self, staleness: Staleness, now: Instant, wall: SystemTime) -> Standing {
        let passed = now.saturating_duration_since(self.learnt);
        let age = self.age(if passed < MOMENT { self.learnt } else { now });
        let left = match &self.outcome {
            Ok(Answer::Record(record)) => match record.end_of_life().duration_since(wall) {
                Ok(life) => life,
                Err(_) => return Standing::Gone,
            },
            Ok(Answer::Link(_)) | Err(_) => Duration::MAX,
        };
        if let Some(fresh) = self.fresh_for.checked_sub(age).filter(|fresh| !fresh.is_zero()) {
            return Standing::Fresh(fresh.min(left));
        }
        let stale_for = age.saturating_sub(self.fresh_for);
        let wait = stale_for >= staleness.while_revalidate;
        if self.outcome.is_err() || (wait && stale_for >= staleness.if_error) {
            return Standing::Gone;
        }
        Standing::Stale { ttl: STALE_TTL.min(left), refresh: now >= self.refresh_after, wait }
    }

    /// Whether it may be handed to somebody who waited for it. A record may have died while it was on its way; a DNSLink
    /// that is as old as that is what the DNS says all the same.
    pub fn holds(&self, wall: SystemTime) -> bool {
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

/// The memory of names: what was used least recently goes first, whatever was popular once.
pub(super) struct Cache {
    staleness: Staleness,
    answers: Moka<Name, Arc<Entry>>,
    failures: Moka<Name, Arc<Entry>>,
}

impl Cache {
    /// Room for so many usual answers; larger ones count as several. Failures have room beside them.
    pub fn new(entries_max: u64, staleness: Staleness) -> Self {
        let room = |max: u64| Moka::builder().max_capacity(max).eviction_policy(EvictionPolicy::lru());
        let answers = room(entries_max).weigher(|_: &Name, entry: &Arc<Entry>| entry.weight()).build();
        Self { staleness, answers, failures: room(entries_max.min(FAILURES_MAX)).build() }
    }

    /// How stale an answer may be.
    pub fn staleness(&self) -> Staleness {
        self.staleness
    }

    /// How good an entry is.
    pub fn standing(&self, entry: &Entry, now: Instant, wall: SystemTime) -> Standing {
        entry.standing(self.staleness, now, wall)
    }

    pub fn get(&self, name: &Name) -> Option<Arc<Entry>> {
        self.answers.get(name).or_else(|| self.failures.get(name))
    }

    pub fn put(&self, name: Name, entry: Arc<Entry>) {
        let (right, wrong) =
            if entry.outcome.is_ok() { (&self.answers, &self.failures) } else { (&self.failures, &self.answers) };
        wrong.invalidate(&name);
        right.insert(name, entry);
    }

    /// Forgets a name; whether it was known.
    pub fn remove(&self, name: &Name) -> bool {
        let failure = self.failures.remove(name).is_some();
        self.answers.remove(name).is_some() || failure
    }

    /// A record was found: the better one of it and what is known is fresh from now on. `agreed` says how many sources have
    /// said so; as long as these are few, they make nothing fresh again that had become stale, for the next one may have
    /// something newer. Returns what counts, and whether it is the record that was found.
    pub fn improve(
        &self,
        name: &Name,
        found: Record,
        agreed: u32,
        now: Instant,
        wall: SystemTime,
    ) -> (Arc<Entry>, bool) {
        let mut news = true;
        let entry = self.answers.entry_by_ref(name).and_upsert_with(|known| {
            let known = known.map(moka::Entry::into_value);
            let best = match known.as_ref().map(|entry| (entry, &entry.outcome)) {
                Some((entry, Ok(Answer::Record(record)))) if record.is_valid_at(wall) && !found.newer_than(record) => {
                    news = false;
                    if agreed < AGREED && matches!(self.standing(entry, now, wall), Standing::Stale { .. }) {
                        return Arc::new(Entry { agreed, ..Entry::clone(entry) });
                    }
                    record.clone()
                }
                _ => found.clone(),
            };
            let ttl = best.ttl();
            Arc::new(Entry { agreed, ..Entry::new(Ok(Answer::Record(best)), ttl, now) })
        });
        self.failures.invalidate(name);
        (entry.into_value(), news)
    }

    /// A look-up failed. An answer that may still be given is left as it is, for a while without another look-up; otherwise
    /// the failure is remembered. Returns what counts now.
    pub fn fail(&self, name: &Name, error: NameError, ttl: Duration, now: Instant, wall: SystemTime) -> Arc<Entry> {
        let mut counts = Arc::new(Entry::new(Err(error), ttl, now));
        let _ = self.answers.entry_by_ref(name).and_compute_with(|known| match known.map(moka::Entry::into_value) {
            Some(entry) if self.standing(&entry, now, wall) != Standing::Gone => {
                counts = Arc::new(Entry { refresh_after: now + REFRESH_PAUSE, ..Entry::clone(&entry) });
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

    /// There is no room for a look-up: what is known is given for a while without another one.
    pub fn leave_in_peace(&self, name: &Name, now: Instant) {
        let _ = self.answers.entry_by_ref(name).and_compute_with(|known| match known.map(moka::Entry::into_value) {
            Some(entry) => Op::Put(Arc::new(Entry { refresh_after: now + REFRESH_PAUSE, ..Entry::clone(&entry) })),
            None => Op::Nop,
        });
    }

    /// Every record that is known, in no order.
    pub fn records(&self) -> Vec<(Name, Arc<Entry>)> {
        let records = self.answers.iter().filter(|(_, entry)| matches!(entry.outcome, Ok(Answer::Record(_))));
        records.map(|(name, entry)| (Name::clone(&name), entry)).collect()
    }

    #[cfg(test)]
    pub fn clear(&self) {
        self.answers.invalidate_all();
        self.failures.invalidate_all();
    }

    /// Lets go at once of what is too much, which otherwise happens now and then.
    #[cfg(test)]
    pub fn settle(&self) {
        self.answers.run_pending_tasks();
        self.failures.run_pending_tasks();
    }
}
