//! What can be told from an index.

use crate::pinning::index::{Entry, Index, Outcome, Root, time};
use crate::pinning::record::Work;
use crate::pinning::request::{Request, Status};
use content::Cid;
use libp2p::Multiaddr;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Index {
    /// What is known of a root.
    pub fn root(&self, cid: &Cid) -> Option<&Root> {
        self.roots.get(cid)
    }

    /// Every root that anything is known of.
    pub fn roots(&self) -> impl Iterator<Item = (&Cid, &Root)> {
        self.roots.iter()
    }

    /// Whether anything keeps a root's pin in the store.
    pub fn is_needed(&self, cid: &Cid) -> bool {
        self.roots.get(cid).is_some_and(Root::is_needed)
    }

    /// Whether anybody waits for a root.
    pub fn is_pending(&self, cid: &Cid) -> bool {
        self.roots.get(cid).is_some_and(|root| !root.pending.is_empty())
    }

    /// Whether an owner has a live request for a root.
    pub fn is_live(&self, owner: &str, cid: &Cid) -> bool {
        self.roots.get(cid).is_some_and(|root| root.live.contains_key(owner))
    }

    /// The identifiers of requests for a root, by what they are.
    pub fn requests_for(&self, cid: &Cid, meant: impl Fn(&Entry) -> bool) -> Vec<Arc<str>> {
        let Some(root) = self.roots.get(cid) else { return Vec::new() };
        let entry = |(at, owner): (&u64, &Arc<str>)| self.owners.get(owner)?.requests.get(at);
        root.requests.iter().filter_map(entry).filter(|entry| meant(entry)).map(|entry| Arc::clone(&entry.id)).collect()
    }

    /// Where the providers of a root were said to be, by those who wait for it.
    pub fn origins(&self, cid: &Cid, most: usize) -> Vec<Multiaddr> {
        let mut origins: Vec<Multiaddr> = Vec::new();
        for id in self.requests_for(cid, Entry::is_pending) {
            let Some(entry) = self.entry(&id) else { continue };
            for origin in entry.origins.iter() {
                if origins.len() < most && !origins.contains(origin) {
                    origins.push(origin.clone());
                }
            }
        }
        origins
    }

    /// A request as it is kept.
    pub fn entry(&self, id: &str) -> Option<&Entry> {
        let (owner, created_ms) = self.ids.get(id)?;
        self.owners.get(owner)?.requests.get(created_ms)
    }

    /// A request as it is shown, if it is the owner's.
    pub fn get(&self, owner: &str, id: &str) -> Option<Request> {
        let entry = self.entry(id)?;
        (&*entry.owner == owner).then(|| self.show(entry))
    }

    /// So many of an owner's requests from before a time, newest first.
    pub fn newest_of(&self, owner: &str, before_ms: u64, most: usize) -> Stretch<'_> {
        let Some(rows) = self.owners.get(owner) else { return Stretch::default() };
        Stretch::of(rows.requests.range(..before_ms).rev().take(most).map(|(at, entry)| (*at, Some(entry))), most)
    }

    /// So many of everybody's requests from before a time, newest first.
    pub fn newest(&self, before_ms: u64, most: usize) -> Stretch<'_> {
        let newest = self.times.range(..before_ms).rev().take(most);
        Stretch::of(newest.map(|(at, owner)| (*at, self.at(owner, *at))), most)
    }

    /// So many requests for any of these roots from before a time, newest first; of those, an owner's if one is named.
    pub fn newest_for(&self, roots: &[Cid], owner: Option<&str>, before_ms: u64, most: usize) -> Stretch<'_> {
        let of_root = |cid: &Cid| {
            let root = self.roots.get(cid).into_iter();
            root.flat_map(move |root| root.requests.range(..before_ms).rev().take(most))
        };
        let mut newest: Vec<(&u64, &Arc<str>)> = roots.iter().flat_map(of_root).collect();
        newest.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(**at));
        newest.truncate(most);
        let is_meant = |of: &Arc<str>| owner.is_none_or(|owner| **of == *owner);
        Stretch::of(newest.into_iter().map(|(at, of)| (*at, self.at(of, *at).filter(|_| is_meant(of)))), most)
    }

    fn at(&self, owner: &str, created_ms: u64) -> Option<&Entry> {
        self.owners.get(owner)?.requests.get(&created_ms)
    }

    /// Everybody's requests, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Entry> {
        self.owners.values().flat_map(|rows| rows.requests.values())
    }

    /// Everybody who has requests.
    pub fn owners(&self) -> impl Iterator<Item = &Arc<str>> {
        self.owners.keys()
    }

    /// How many requests an owner has, and how many bytes.
    pub fn used(&self, owner: &str) -> (u64, u64) {
        self.owners.get(owner).map_or((0, 0), |rows| (rows.requests.len() as u64, rows.bytes))
    }

    /// The owners of live requests for a root who have more bytes than they may, with what they may have.
    pub fn exceeded(&self, cid: &Cid) -> Vec<(Arc<str>, u64)> {
        let Some(root) = self.roots.get(cid) else { return Vec::new() };
        let over = |owner: &Arc<str>| {
            let rows = self.owners.get(owner)?;
            rows.bytes_max.filter(|most| rows.bytes > *most).map(|most| (Arc::clone(owner), most))
        };
        root.live.keys().filter_map(over).collect()
    }

    /// What an owner would have fewer without a request, in bytes.
    pub fn freed_by(&self, entry: &Entry) -> u64 {
        let root = self.roots.get(&entry.root).filter(|_| entry.is_live());
        let last = root.filter(|root| root.live.get(&entry.owner) == Some(&1));
        last.map_or(0, |root| root.progress.bytes)
    }

    /// The roots whose pins nobody needs any more when requests become something else, or nothing.
    pub fn left_by<'a>(&self, changes: impl IntoIterator<Item = (&'a Entry, Option<&'a Entry>)>) -> Vec<Cid> {
        let mut leaving: BTreeMap<Cid, (usize, usize)> = BTreeMap::new();
        let mut staying: BTreeMap<Cid, (usize, usize)> = BTreeMap::new();
        for (former, next) in changes {
            former.needs(&mut leaving);
            next.into_iter().for_each(|next| next.needs(&mut staying));
        }
        let is_left = |(cid, (live, holds)): &(Cid, (usize, usize))| {
            let Some(root) = self.roots.get(cid) else { return false };
            let (live_after, holds_after) = staying.get(cid).copied().unwrap_or_default();
            root.live.values().sum::<usize>() + live_after <= *live && root.holds + holds_after <= *holds
        };
        leaving.into_iter().filter(is_left).map(|(cid, _)| cid).collect()
    }

    /// How far a request has come.
    pub fn status(&self, entry: &Entry) -> Status {
        match entry.outcome {
            Outcome::Pinned => Status::Pinned,
            Outcome::Failed(_) | Outcome::Withheld(_) => Status::Failed,
            Outcome::Pending if self.roots.get(&entry.root).is_some_and(|root| root.active) => Status::Pinning,
            Outcome::Pending => Status::Queued,
        }
    }

    /// A request as it is shown.
    pub fn show(&self, entry: &Entry) -> Request {
        let root = self.roots.get(&entry.root);
        let status = self.status(entry);
        let pending = entry.is_pending();
        let work = root.map(|root| &root.work).filter(|_| pending);
        let details = match &entry.outcome {
            Outcome::Failed(reason) | Outcome::Withheld(reason) => Some(Arc::clone(reason)),
            _ => work.and_then(details),
        };
        let attempts = work.map_or(0, |work| work.attempts);
        let due = work.filter(|_| attempts > 0 && status == Status::Queued).map(|work| self.clock.wall(work.due_ms));
        let progress = root.filter(|_| entry.is_live()).map(|root| root.progress).unwrap_or_default();
        Request {
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

/// Some requests in a row, newest first.
#[derive(Debug, Default)]
pub struct Stretch<'a> {
    /// The requests.
    pub entries: Vec<&'a Entry>,
    /// The time before which to go on, unless that was all.
    pub next_ms: Option<u64>,
}

impl<'a> Stretch<'a> {
    /// What was looked at, of which some is meant. As many as there may be are followed by more.
    fn of(looked_at: impl Iterator<Item = (u64, Option<&'a Entry>)>, most: usize) -> Self {
        let (mut stretch, mut count) = (Self::default(), 0);
        for (at, entry) in looked_at {
            count += 1;
            stretch.entries.extend(entry);
            stretch.next_ms = (count == most).then_some(at);
        }
        stretch
    }
}

/// What stopped the last attempt, and that blocks were lost.
fn details(work: &Work) -> Option<Arc<str>> {
    let reason = work.reason.as_deref();
    if !work.lost {
        return reason.map(Arc::from);
    }
    let words = "it was here in full; blocks of it were lost since, and are fetched again";
    Some(reason.map_or_else(|| words.into(), |reason| format!("{words}: {reason}").into()))
}
