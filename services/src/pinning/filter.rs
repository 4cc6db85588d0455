//! [`Filter`]: which requests are listed.

use crate::pinning::index::{Entry, Index, millis};
use crate::pinning::request::{Meta, Request, Status};
use content::Cid;
use std::collections::HashSet;
use std::time::{Duration, SystemTime};

/// How a name is compared (schema "TextMatchingStrategy" of the pinning service API).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NameMatch {
    /// The same characters.
    #[default]
    Exact,
    /// The same characters, whatever their case.
    IgnoringCase,
    /// Part of the name.
    Partial,
    /// Part of the name, whatever the case.
    PartialIgnoringCase,
}

/// Which requests are meant: those that everything given here is true of. The default is all of them.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Roots, whatever their CIDs' version. Empty: any.
    pub roots: Vec<Cid>,
    /// The name.
    pub name: Option<(String, NameMatch)>,
    /// Any of these. Empty: any at all.
    pub statuses: Vec<Status>,
    /// Asked for before this moment.
    pub before: Option<SystemTime>,
    /// Asked for after this moment.
    pub after: Option<SystemTime>,
    /// All of these pairs.
    pub meta: Meta,
    /// The most that are shown. Zero: none, but they are counted.
    pub limit: usize,
}

/// The newest of the requests that were meant, newest first.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// How many were meant.
    pub count: usize,
    /// As many of them as were to be shown.
    pub requests: Vec<Request>,
}

/// Requests that are looked at in one go, before others get their turn: a fraction of a millisecond.
const AT_ONCE: usize = 512;

impl Page {
    /// Adds some requests: of an owner, or everybody's; those from before a time, the newest first. Returns the time before which
    /// to go on, unless that was all.
    pub(super) fn extend(
        &mut self,
        index: &Index,
        owner: Option<&str>,
        sieve: &Sieve<'_>,
        before_ms: u64,
    ) -> Option<u64> {
        let stretch = match (sieve.roots.is_empty(), owner) {
            (false, _) => index.newest_for(&sieve.versions, owner, before_ms, AT_ONCE),
            (true, Some(owner)) => index.newest_of(owner, before_ms, AT_ONCE),
            (true, None) => index.newest(before_ms, AT_ONCE),
        };
        for entry in stretch.entries {
            if entry.created_ms < sieve.after_ms {
                return None;
            }
            if sieve.admits(index, entry) {
                self.count += 1;
                if self.requests.len() < sieve.filter.limit {
                    self.requests.push(index.show(entry));
                }
            }
        }
        stretch.next_ms
    }
}

/// A filter that is made ready to be asked of thousands.
pub(super) struct Sieve<'a> {
    filter: &'a Filter,
    roots: HashSet<Cid>,
    /// The same, in every version that requests may have.
    versions: Vec<Cid>,
    /// As it is compared.
    name: Option<(String, NameMatch)>,
    /// Times below this one are before.
    before_ms: u64,
    /// Times from this one on are after.
    after_ms: u64,
}

impl<'a> Sieve<'a> {
    pub(super) fn of(filter: &'a Filter) -> Self {
        let folded = |(name, how): &(String, NameMatch)| match how {
            NameMatch::Exact | NameMatch::Partial => (name.clone(), *how),
            NameMatch::IgnoringCase | NameMatch::PartialIgnoringCase => (name.to_lowercase(), *how),
        };
        // A fraction of a millisecond lies before the next whole one, and after the one that it belongs to.
        let up = Duration::from_nanos(999_999);
        Self {
            filter,
            roots: filter.roots.iter().map(whatever_version).collect(),
            versions: versions(&filter.roots),
            name: filter.name.as_ref().map(folded),
            before_ms: filter.before.map_or(u64::MAX, |before| before.checked_add(up).map_or(u64::MAX, millis)),
            after_ms: filter.after.map_or(0, |after| millis(after) + 1),
        }
    }

    /// The time before which requests are meant.
    pub(super) fn before_ms(&self) -> u64 {
        self.before_ms
    }

    fn admits(&self, index: &Index, entry: &Entry) -> bool {
        entry.created_ms < self.before_ms
            && entry.created_ms >= self.after_ms
            && (self.filter.statuses.is_empty() || self.filter.statuses.contains(&index.status(entry)))
            && (self.roots.is_empty() || self.roots.contains(&whatever_version(&entry.root)))
            && self.filter.meta.iter().all(|(key, value)| entry.meta.get(key) == Some(value))
            && self.is_called(entry.name.as_deref())
    }

    fn is_called(&self, name: Option<&str>) -> bool {
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

/// Roots in every version that they can have, each once.
fn versions(roots: &[Cid]) -> Vec<Cid> {
    let both = |root: &Cid| [Some(whatever_version(root)), Cid::new_v0(*root.hash()).ok()];
    let same = |root: &Cid, version: &Cid| version.codec() == root.codec();
    let versions = roots.iter().flat_map(|root| both(root).into_iter().flatten().filter(|version| same(root, version)));
    versions.collect::<HashSet<_>>().into_iter().collect()
}

fn whatever_version(cid: &Cid) -> Cid {
    Cid::new_v1(cid.codec(), *cid.hash())
}
