//! What is remembered of names, and how good it still is.
//!
//! A record is *fresh* for its time to live and then *stale* until its end of life: it still holds, for its owner signed
//! it to that end, but there may be a newer one. A DNSLink has a time to live only. That a name could not be resolved is
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
/// How long a stale record is left in peace after a search that found none.
const REFRESH_PAUSE: Duration = Duration::from_secs(30);
/// The first moment after an answer does not count, so that a minute is a minute to everybody who asked together.
pub(super) const MOMENT: Duration = Duration::from_secs(1);
/// Failures that are remembered at most. They have a room of their own, so that names that do not exist, of which there is
/// no end, displace none that do.
const FAILURES_MAX: u64 = 4096;
/// The weight of one entry, in bytes: what a usual record takes.
const ENTRY_BYTES: usize = 1024;

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
    /// When it was learnt.
    pub learnt: Instant,
    fresh_until: Instant,
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
    },
    /// No longer good for anything.
    Gone,
}

impl Entry {
    pub fn new(outcome: Result<Answer, NameError>, ttl: Duration, now: Instant) -> Self {
        let fresh_until = now + ttl.min(TTL_MAX);
        Self { outcome, learnt: now, fresh_until, refresh_after: fresh_until }
    }

    /// A record from an earlier run of the node: good, but to be refreshed when it is first asked for.
    pub fn kept(record: Record, now: Instant) -> Self {
        Self::new(Ok(Answer::Record(record)), Duration::ZERO, now)
    }

    pub fn standing(&self, now: Instant, wall: SystemTime) -> Standing {
        let now = if now.saturating_duration_since(self.learnt) < MOMENT { self.learnt } else { now };
        let fresh = self.fresh_until.saturating_duration_since(now);
        let Ok(Answer::Record(record)) = &self.outcome else {
            return if fresh.is_zero() { Standing::Gone } else { Standing::Fresh(fresh) };
        };
        match record.end_of_life().duration_since(wall) {
            Err(_) => Standing::Gone,
            Ok(life) if !fresh.is_zero() => Standing::Fresh(fresh.min(life)),
            Ok(life) => Standing::Stale { ttl: STALE_TTL.min(life), refresh: now >= self.refresh_after },
        }
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
    answers: Moka<Name, Arc<Entry>>,
    failures: Moka<Name, Arc<Entry>>,
}

impl Cache {
    /// Room for so many usual answers; larger ones count as several. Failures have room beside them.
    pub fn new(entries_max: u64) -> Self {
        let room = |max: u64| Moka::builder().max_capacity(max).eviction_policy(EvictionPolicy::lru());
        let answers = room(entries_max).weigher(|_: &Name, entry: &Arc<Entry>| entry.weight()).build();
        Self { answers, failures: room(entries_max.min(FAILURES_MAX)).build() }
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

    /// A record was found: the better one of it and what is known is fresh from now on. Returns that, and whether it is the
    /// one that was found.
    pub fn improve(&self, name: &Name, found: Record, now: Instant, wall: SystemTime) -> (Arc<Entry>, bool) {
        let mut news = true;
        let entry = self.answers.entry_by_ref(name).and_upsert_with(|known| {
            let known = known.map(moka::Entry::into_value);
            let best = match known.as_ref().map(|entry| &entry.outcome) {
                Some(Ok(Answer::Record(known))) if known.is_valid_at(wall) && !found.newer_than(known) => {
                    news = false;
                    known.clone()
                }
                _ => found.clone(),
            };
            let ttl = best.ttl();
            Arc::new(Entry::new(Ok(Answer::Record(best)), ttl, now))
        });
        self.failures.invalidate(name);
        (entry.into_value(), news)
    }

    /// A search failed. A record that holds is left as it is, for a while without another search; otherwise the failure
    /// is remembered. Returns what counts now.
    pub fn fail(&self, name: &Name, error: NameError, ttl: Duration, now: Instant, wall: SystemTime) -> Arc<Entry> {
        let mut counts = Arc::new(Entry::new(Err(error), ttl, now));
        let _ = self.answers.entry_by_ref(name).and_compute_with(|known| match known.map(moka::Entry::into_value) {
            Some(entry) if entry.standing(now, wall) != Standing::Gone => {
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
