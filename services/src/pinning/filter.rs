//! [`Filter`]: selects the requests of a listing.

use crate::pinning::index::{Index, StoredRequest, millis};
use crate::pinning::request::{Meta, PinRequest, Status};
use content::Cid;
use std::collections::HashSet;
use std::time::{Duration, SystemTime};

/// How names are compared (schema "TextMatchingStrategy" of the Pinning Service API).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NameMatch {
    /// Equal.
    #[default]
    Exact,
    /// Equal, ignoring case.
    IgnoringCase,
    /// A substring.
    Partial,
    /// A substring, ignoring case.
    PartialIgnoringCase,
}

/// Selects the requests that match all given criteria; by default all requests.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Any of these roots, in any CID version. Empty: any root.
    pub roots: Vec<Cid>,
    /// The name.
    pub name: Option<(String, NameMatch)>,
    /// Any of these statuses. Empty: any status.
    pub statuses: Vec<Status>,
    /// Created before this time.
    pub before: Option<SystemTime>,
    /// Created after this time.
    pub after: Option<SystemTime>,
    /// Has all of these pairs.
    pub meta: Meta,
    /// The maximum number of requests on the page. Zero: requests are only counted.
    pub limit: usize,
}

/// The newest matching requests, newest first.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The number of matching requests.
    pub count: usize,
    /// The requests on the page.
    pub requests: Vec<PinRequest>,
    /// The number of requests that match apart from their status, for each status.
    pub by_status: StatusCounts,
}

/// Numbers of requests by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatusCounts {
    /// Waiting for a slot, or for the next attempt.
    pub queued: usize,
    /// Being fetched.
    pub pinning: usize,
    /// Complete.
    pub pinned: usize,
    /// Failed, or with withheld blocks.
    pub failed: usize,
}

impl StatusCounts {
    fn add(&mut self, status: Status) {
        let count = match status {
            Status::Queued => &mut self.queued,
            Status::Pinning => &mut self.pinning,
            Status::Pinned => &mut self.pinned,
            Status::Failed => &mut self.failed,
        };
        *count += 1;
    }
}

/// The number of requests that are examined before the task yields: a fraction of a millisecond.
const BATCH: usize = 512;

impl Page {
    /// Adds requests of an owner, or of all owners, that were created before a time, newest first. Returns the time at
    /// which to continue, or `None` at the end.
    pub(super) fn extend(
        &mut self,
        index: &Index,
        owner: Option<&str>,
        filter: &PreparedFilter<'_>,
        before_ms: u64,
    ) -> Option<u64> {
        let batch = match (filter.roots.is_empty(), owner) {
            (false, _) => index.newest_for(&filter.versions, owner, before_ms, BATCH),
            (true, Some(owner)) => index.newest_of(owner, before_ms, BATCH),
            (true, None) => index.newest(before_ms, BATCH),
        };
        for entry in batch.entries {
            if entry.created_ms < filter.after_ms {
                return None;
            }
            if !filter.matches(entry) {
                continue;
            }
            let status = index.status(entry);
            self.by_status.add(status);
            if filter.has_status(status) {
                self.count += 1;
                if self.requests.len() < filter.filter.limit {
                    self.requests.push(index.show(entry));
                }
            }
        }
        batch.next_ms
    }
}

/// A filter that is prepared for matching many requests.
pub(super) struct PreparedFilter<'a> {
    filter: &'a Filter,
    roots: HashSet<Cid>,
    /// The roots in all CID versions that requests may have.
    versions: Vec<Cid>,
    /// In lower case if case is ignored.
    name: Option<(String, NameMatch)>,
    /// Requests match if they were created before this time…
    before_ms: u64,
    /// … and not before this one.
    after_ms: u64,
}

impl<'a> PreparedFilter<'a> {
    pub(super) fn of(filter: &'a Filter) -> Self {
        let folded = |(name, how): &(String, NameMatch)| match how {
            NameMatch::Exact | NameMatch::Partial => (name.clone(), *how),
            NameMatch::IgnoringCase | NameMatch::PartialIgnoringCase => (name.to_lowercase(), *how),
        };
        // A fraction of a millisecond is before the next whole one, and after its own.
        let up = Duration::from_nanos(999_999);
        Self {
            filter,
            roots: filter.roots.iter().map(as_v1).collect(),
            versions: versions(&filter.roots),
            name: filter.name.as_ref().map(folded),
            before_ms: filter.before.map_or(u64::MAX, |before| before.checked_add(up).map_or(u64::MAX, millis)),
            after_ms: filter.after.map_or(0, |after| millis(after) + 1),
        }
    }

    /// The time before which requests match.
    pub(super) fn before_ms(&self) -> u64 {
        self.before_ms
    }

    fn has_status(&self, status: Status) -> bool {
        self.filter.statuses.is_empty() || self.filter.statuses.contains(&status)
    }

    /// Whether a request matches, whatever its status.
    fn matches(&self, entry: &StoredRequest) -> bool {
        entry.created_ms < self.before_ms
            && entry.created_ms >= self.after_ms
            && (self.roots.is_empty() || self.roots.contains(&as_v1(&entry.root)))
            && self.filter.meta.iter().all(|(key, value)| entry.meta.get(key) == Some(value))
            && self.matches_name(entry.name.as_deref())
    }

    fn matches_name(&self, name: Option<&str>) -> bool {
        let Some((sought, how)) = &self.name else { return true };
        let Some(name) = name else { return false };
        match how {
            NameMatch::Exact => name == sought,
            NameMatch::Partial => name.contains(sought.as_str()),
            NameMatch::IgnoringCase => name.to_lowercase() == *sought,
            NameMatch::PartialIgnoringCase => name.to_lowercase().contains(sought.as_str()),
        }
    }
}

/// The roots in all their CID versions, without duplicates.
fn versions(roots: &[Cid]) -> Vec<Cid> {
    let both = |root: &Cid| [Some(as_v1(root)), Cid::new_v0(*root.hash()).ok()];
    let same = |root: &Cid, version: &Cid| version.codec() == root.codec();
    let versions = roots.iter().flat_map(|root| both(root).into_iter().flatten().filter(|version| same(root, version)));
    versions.collect::<HashSet<_>>().into_iter().collect()
}

fn as_v1(cid: &Cid) -> Cid {
    Cid::new_v1(cid.codec(), *cid.hash())
}
