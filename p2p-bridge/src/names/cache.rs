//! What is remembered of names, and how good it still is.
//!
//! A record is *fresh* for its time to live and then *stale* until its end of life: it still holds, for its owner signed
//! it to that end, but there may be a newer one. A DNSLink has a time to live only. That a name could not be resolved is
//! remembered as well, for a moment, so that a popular name that is gone costs one search and not one for each reader.

use content::ipns::Record;
use content::{Name, NameError};
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
const MOMENT: Duration = Duration::from_secs(1);
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

    fn weight(&self) -> u32 {
        let bytes = match &self.outcome {
            Ok(Answer::Record(record)) => record.bytes().len() + record.value().len(),
            Ok(Answer::Link(link)) => link.len(),
            Err(_) => 0,
        };
        u32::try_from(bytes.div_ceil(ENTRY_BYTES).max(1)).unwrap_or(u32::MAX)
    }
}

/// The memory of names, least recently used out first.
pub(super) struct Cache(Moka<Name, Arc<Entry>>);

impl Cache {
    /// Room for so many usual entries; larger ones count as several.
    pub fn new(entries_max: u64) -> Self {
        let weigher = |_: &Name, entry: &Arc<Entry>| entry.weight();
        Self(Moka::builder().max_capacity(entries_max).weigher(weigher).build())
    }

    pub fn get(&self, name: &Name) -> Option<Arc<Entry>> {
        self.0.get(name)
    }

    pub fn put(&self, name: Name, entry: Arc<Entry>) {
        self.0.insert(name, entry);
    }

    pub fn forget(&self, name: &Name) {
        self.0.invalidate(name);
    }

    /// A record was found: the better one of it and what is known is fresh from now on. Returns that, and whether it is the
    /// one that was found.
    pub fn improve(&self, name: &Name, found: Record, now: Instant, wall: SystemTime) -> (Arc<Entry>, bool) {
        let mut news = true;
        let entry = self.0.entry_by_ref(name).and_upsert_with(|known| {
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
        (entry.into_value(), news)
    }

    /// A search failed. A record that holds is left as it is, for a while without another search; otherwise the failure
    /// is remembered. Returns what counts now.
    pub fn fail(&self, name: &Name, error: NameError, ttl: Duration, now: Instant, wall: SystemTime) -> Arc<Entry> {
        let entry = self.0.entry_by_ref(name).and_upsert_with(|known| {
            let known = known.map(moka::Entry::into_value);
            match known {
                Some(entry) if entry.outcome.is_ok() && entry.standing(now, wall) != Standing::Gone => {
                    Arc::new(Entry { refresh_after: now + REFRESH_PAUSE, ..Entry::clone(&entry) })
                }
                _ => Arc::new(Entry::new(Err(error.clone()), ttl, now)),
            }
        });
        entry.into_value()
    }

    /// Every record that is known, in no order.
    pub fn records(&self) -> Vec<(Name, Arc<Entry>)> {
        let records = self.0.iter().filter(|(_, entry)| matches!(entry.outcome, Ok(Answer::Record(_))));
        records.map(|(name, entry)| (Name::clone(&name), entry)).collect()
    }
}
