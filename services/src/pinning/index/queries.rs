//! Read access to an index.

use crate::pinning::index::{Index, PinOutcome, Root, StoredRequest, time};
use crate::pinning::record::PinChange;
use crate::pinning::request::{PinRequest, Status};
use content::Cid;
use libp2p::Multiaddr;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Index {
    /// Finds a root.
    pub fn root(&self, cid: &Cid) -> Option<&Root> {
        self.roots.get(cid)
    }

    /// All roots.
    pub fn roots(&self) -> impl Iterator<Item = (&Cid, &Root)> {
        self.roots.iter()
    }

    /// Whether the pin of a root in the store is needed.
    pub fn is_needed(&self, cid: &Cid) -> bool {
        self.roots.get(cid).is_some_and(Root::is_needed)
    }

    /// Whether a root has a pending request.
    pub fn is_pending(&self, cid: &Cid) -> bool {
        self.roots.get(cid).is_some_and(|root| !root.pending.is_empty())
    }

    /// Whether a root has a request whose DAG is complete.
    pub fn is_pinned(&self, cid: &Cid) -> bool {
        !self.requests_for(cid, |entry| entry.outcome == PinOutcome::Pinned).is_empty()
    }

    /// Whether an owner has a live request for a root.
    pub fn is_live(&self, owner: &str, cid: &Cid) -> bool {
        self.roots.get(cid).is_some_and(|root| root.live.contains_key(owner))
    }

    /// The IDs of requests for a root that match a predicate.
    pub fn requests_for(&self, cid: &Cid, matches: impl Fn(&StoredRequest) -> bool) -> Vec<Arc<str>> {
        let Some(root) = self.roots.get(cid) else { return Vec::new() };
        let entry = |(at, owner): (&u64, &Arc<str>)| self.owners.get(owner)?.requests.get(at);
        let entries = root.requests.iter().filter_map(entry).filter(|entry| matches(entry));
        entries.map(|entry| Arc::clone(&entry.id)).collect()
    }

    /// Why blocks of a root are withheld, if its missing blocks are not fetched for that reason.
    pub fn withheld(&self, cid: &Cid) -> Option<Arc<str>> {
        let root = self.roots.get(cid).filter(|root| root.pending.is_empty())?;
        root.requests.iter().find_map(|(at, owner)| match &self.at(owner, *at)?.outcome {
            PinOutcome::Withheld(reason) => Some(Arc::clone(reason)),
            _ => None,
        })
    }

    /// The origins that the pending requests for a root name.
    pub fn origins(&self, cid: &Cid, most: usize) -> Vec<Multiaddr> {
        let mut origins: Vec<Multiaddr> = Vec::new();
        for id in self.requests_for(cid, StoredRequest::is_pending) {
            let Some(entry) = self.entry(&id) else { continue };
            for origin in entry.origins.iter() {
                if origins.len() < most && !origins.contains(origin) {
                    origins.push(origin.clone());
                }
            }
        }
        origins
    }

    /// Finds a stored request.
    pub fn entry(&self, id: &str) -> Option<&StoredRequest> {
        let (owner, created_ms) = self.ids.get(id)?;
        self.owners.get(owner)?.requests.get(created_ms)
    }

    /// A snapshot of a request of this owner.
    pub fn get(&self, owner: &str, id: &str) -> Option<PinRequest> {
        let entry = self.entry(id)?;
        (&*entry.owner == owner).then(|| self.show(entry))
    }

    /// At most `most` requests of an owner from before a time, newest first.
    pub fn newest_of(&self, owner: &str, before_ms: u64, most: usize) -> Batch<'_> {
        let Some(rows) = self.owners.get(owner) else { return Batch::default() };
        Batch::of(rows.requests.range(..before_ms).rev().take(most).map(|(at, entry)| (*at, Some(entry))), most)
    }

    /// At most `most` requests of all owners from before a time, newest first.
    pub fn newest(&self, before_ms: u64, most: usize) -> Batch<'_> {
        let newest = self.times.range(..before_ms).rev().take(most);
        Batch::of(newest.map(|(at, owner)| (*at, self.at(owner, *at))), most)
    }

    /// At most `most` requests for any of these roots from before a time, newest first; only an owner's if one is
    /// given.
    pub fn newest_for(&self, roots: &[Cid], owner: Option<&str>, before_ms: u64, most: usize) -> Batch<'_> {
        let of_root = |cid: &Cid| {
            let root = self.roots.get(cid).into_iter();
            root.flat_map(move |root| root.requests.range(..before_ms).rev().take(most))
        };
        let mut newest: Vec<(&u64, &Arc<str>)> = roots.iter().flat_map(of_root).collect();
        newest.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(**at));
        newest.truncate(most);
        let is_owned = |of: &Arc<str>| owner.is_none_or(|owner| **of == *owner);
        Batch::of(newest.into_iter().map(|(at, of)| (*at, self.at(of, *at).filter(|_| is_owned(of)))), most)
    }

    pub(super) fn at(&self, owner: &str, created_ms: u64) -> Option<&StoredRequest> {
        self.owners.get(owner)?.requests.get(&created_ms)
    }

    /// The requests of all owners, unordered.
    pub fn all(&self) -> impl Iterator<Item = &StoredRequest> {
        self.owners.values().flat_map(|rows| rows.requests.values())
    }

    /// All owners of requests.
    pub fn owners(&self) -> impl Iterator<Item = &Arc<str>> {
        self.owners.keys()
    }

    /// The number of requests of an owner, and their bytes.
    pub fn used(&self, owner: &str) -> (u64, u64) {
        self.owners.get(owner).map_or((0, 0), |rows| (rows.requests.len() as u64, rows.bytes))
    }

    /// Whether an owner of a live request for a root exceeds its byte quota.
    pub fn is_exceeded(&self, cid: &Cid) -> bool {
        self.roots.get(cid).is_some_and(|root| root.live.keys().any(|owner| self.exceeds(owner).is_some()))
    }

    /// The byte quota of an owner, if it exceeds it.
    pub fn exceeds(&self, owner: &str) -> Option<u64> {
        let rows = self.owners.get(owner)?;
        rows.bytes_max.filter(|most| rows.bytes > *most)
    }

    /// The bytes that removing a request would free of its owner's quota.
    pub fn freed_by(&self, entry: &StoredRequest) -> u64 {
        let root = self.roots.get(&entry.root).filter(|_| entry.is_live());
        let last = root.filter(|root| root.live.get(&entry.owner) == Some(&1));
        last.map_or(0, |root| root.progress.bytes)
    }

    /// The roots whose pins are no longer needed after changes, and are not being removed already.
    pub fn released(&self, changes: &[PinChange]) -> Vec<Cid> {
        let before_and_after = changes.iter().filter_map(|change| match change {
            PinChange::Request(entry) => Some((self.entry(&entry.id), Some(entry))),
            PinChange::RemoveRequest(id) => Some((self.entry(id), None)),
            _ => None,
        });
        let mut released = self.released_by(before_and_after);
        released.retain(|root| !self.is_removing(root));
        released
    }

    /// The roots whose pins are no longer needed after requests are created, changed or removed.
    pub fn released_by<'a>(
        &self,
        changes: impl IntoIterator<Item = (Option<&'a StoredRequest>, Option<&'a StoredRequest>)>,
    ) -> Vec<Cid> {
        let mut leaving: BTreeMap<Cid, (usize, usize)> = BTreeMap::new();
        let mut staying: BTreeMap<Cid, (usize, usize)> = BTreeMap::new();
        for (former, next) in changes {
            former.into_iter().for_each(|former| former.needs(&mut leaving));
            next.into_iter().for_each(|next| next.needs(&mut staying));
        }
        let is_released = |(cid, (live, retained)): &(Cid, (usize, usize))| {
            let Some(root) = self.roots.get(cid) else { return false };
            let (live_after, retained_after) = staying.get(cid).copied().unwrap_or_default();
            root.live.values().sum::<usize>() + live_after <= *live && root.retained + retained_after <= *retained
        };
        leaving.into_iter().filter(is_released).map(|(cid, _)| cid).collect()
    }

    /// The status of a request.
    pub fn status(&self, entry: &StoredRequest) -> Status {
        match entry.outcome {
            PinOutcome::Pinned => Status::Pinned,
            PinOutcome::Failed(_) | PinOutcome::Withheld(_) => Status::Failed,
            PinOutcome::Pending if self.roots.get(&entry.root).is_some_and(|root| self.is_fetched(root)) => {
                Status::Pinning
            }
            PinOutcome::Pending => Status::Queued,
        }
    }

    /// Whether this service or another one fetches a root.
    fn is_fetched(&self, root: &Root) -> bool {
        root.active || (root.elsewhere_until_ms > 0 && self.clock.now_ms() < root.elsewhere_until_ms)
    }

    /// A snapshot of a request.
    pub fn show(&self, entry: &StoredRequest) -> PinRequest {
        let root = self.roots.get(&entry.root);
        let status = self.status(entry);
        let pending = entry.is_pending();
        let work = root.map(|root| &root.work).filter(|_| pending);
        let details = match &entry.outcome {
            PinOutcome::Failed(reason) | PinOutcome::Withheld(reason) => Some(Arc::clone(reason)),
            _ => root.filter(|_| pending).and_then(details),
        };
        let attempts = work.map_or(0, |work| work.attempts);
        let due = work.filter(|_| attempts > 0 && status == Status::Queued).map(|work| self.clock.wall(work.due_ms));
        let progress = root.filter(|_| entry.is_live()).map(Root::stored).unwrap_or_default();
        PinRequest {
            id: Arc::clone(&entry.id),
            owner: Arc::clone(&entry.owner),
            wanted: Arc::clone(&entry.wanted),
            created: time(entry.created_ms),
            status,
            progress,
            details,
            attempts,
            next_attempt: due,
        }
    }
}

/// A batch of requests, newest first.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// The requests.
    pub entries: Vec<&'a StoredRequest>,
    /// The time before which to continue; `None` at the end.
    pub next_ms: Option<u64>,
}

impl<'a> Batch<'a> {
    /// A batch of the examined requests, some of which match. If there are as many as `most`, more may follow.
    fn of(examined: impl Iterator<Item = (u64, Option<&'a StoredRequest>)>, most: usize) -> Self {
        let (mut batch, mut count) = (Self::default(), 0);
        for (at, entry) in examined {
            count += 1;
            batch.entries.extend(entry);
            batch.next_ms = (count == most).then_some(at);
        }
        batch
    }
}

/// Why the last attempt failed, and whether blocks were lost or are withheld.
fn details(root: &Root) -> Option<Arc<str>> {
    let reason = root.work.reason.as_deref();
    if !root.work.lost {
        return reason.map(Arc::from);
    }
    let words = match root.missing.is_withheld() {
        true => "the pin was complete; blocks of it are withheld by a rule of this gateway",
        false => "the pin was complete; blocks of it were lost, and are fetched again",
    };
    Some(reason.map_or_else(|| words.into(), |reason| format!("{words}: {reason}").into()))
}
