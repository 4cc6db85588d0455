//! [`Index`]: every request in memory, by owner and time, by identifier and by root; and the queue of roots to be
//! fetched.
//!
//! Goals: everything that the service decides is decided here, without I/O, so that it can be tested with tables;
//! listing reads one owner's requests in their order; quotas are counted and not summed up.
//!
//! | module | concern |
//! |---|---|
//! | `reading` | what can be told from it |
//! | `queue` | which root is fetched next |
//!
//! Terms: a request is *live* while it is pending or pinned, also if some of its blocks are withheld; a failed one holds nothing. A root is *needed* while it
//! has a live request, or while somebody keeps its pin for another reason (a replacement under way, an upload about to
//! be recorded).

mod queue;
mod reading;

pub use self::reading::Stretch;

use crate::pinning::clock::Clock;
use crate::pinning::record::Work;
use crate::pinning::request::{Progress, Wanted};
use content::Cid;
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// What has become of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Nothing yet.
    Pending,
    /// Its DAG is here.
    Pinned,
    /// It will not come, for this reason.
    Failed(#[serde(with = "text")] Arc<str>),
    /// It was here; blocks of it are missing now and must not be fetched. The rest is kept.
    #[serde(skip)]
    Withheld(Arc<str>),
}

/// A shared text, written as any other.
mod text {
    use serde::{Deserialize as _, Deserializer, Serializer};
    use std::sync::Arc;

    pub fn serialize<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(from).map(Arc::from)
    }
}

/// A request as it is kept. Reads as what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is called by.
    pub id: Arc<str>,
    /// Whose it is.
    pub owner: Arc<str>,
    /// What was asked for.
    pub wanted: Arc<Wanted>,
    /// When it was asked for, in milliseconds since the epoch.
    pub created_ms: u64,
    /// What has become of it.
    pub outcome: Outcome,
    /// The owner's quota when this was asked for.
    pub bytes_max: Option<u64>,
    /// A root whose pin stays until this is settled.
    pub keeps: Option<Cid>,
    /// The pin was there and nobody had asked for it.
    pub taken_in: bool,
}

impl Deref for Entry {
    type Target = Wanted;

    fn deref(&self) -> &Wanted {
        &self.wanted
    }
}

impl Entry {
    /// It keeps what is here of its DAG: it is pending, pinned, or pinned but for what is withheld.
    pub fn is_live(&self) -> bool {
        !matches!(self.outcome, Outcome::Failed(_))
    }

    /// Nothing has become of it yet.
    pub fn is_pending(&self) -> bool {
        self.outcome == Outcome::Pending
    }

    /// Counts the roots that it needs: as live, and as held.
    fn needs(&self, roots: &mut BTreeMap<Cid, (usize, usize)>) {
        if self.is_live() {
            roots.entry(self.root).or_default().0 += 1;
        }
        if let Some(kept) = self.keeps.filter(|_| self.is_pending()) {
            roots.entry(kept).or_default().1 += 1;
        }
    }

    /// What its texts take in memory, in bytes.
    fn text_bytes(&self) -> u64 {
        let meta: usize = self.meta.iter().map(|(key, value)| key.len() + value.len()).sum();
        let origins: usize = self.origins.iter().map(Multiaddr::len).sum();
        (meta + origins + self.name.as_deref().map_or(0, str::len)) as u64
    }
}

/// A root that somebody asked for.
#[derive(Debug, Default)]
pub struct Root {
    /// Whose the requests are, by their times.
    requests: BTreeMap<u64, Arc<str>>,
    /// Those of them that are pending.
    pending: BTreeMap<u64, Arc<str>>,
    /// How many live requests each owner has.
    live: BTreeMap<Arc<str>, usize>,
    /// How many keep its pin for another reason.
    holds: usize,
    /// Its pin is to go as soon as nothing needs it.
    to_go: bool,
    /// Its pin is being removed from the store. Until that has ended, no worker and no upload touches it.
    removing: bool,
    /// Tells of changes of the root and of the requests for it; `None` while nothing waits for them.
    changes: Option<watch::Sender<()>>,
    /// The pin in the store is complete.
    pub complete: bool,
    /// What the store has of it.
    pub progress: Progress,
    /// A worker is at it.
    pub active: bool,
    /// The attempts so far.
    pub work: Work,
    /// Its place in the queue: whose, when and behind whom.
    queued: Option<(Arc<str>, u64, u64)>,
}

impl Root {
    fn is_needed(&self) -> bool {
        self.holds > 0 || !self.live.is_empty()
    }

    fn is_unknown(&self) -> bool {
        !self.is_needed() && self.requests.is_empty() && !self.active && !self.removing
    }

    fn notify(&mut self) {
        // The send fails if no receiver is left.
        if self.changes.as_ref().is_some_and(|changes| changes.send(()).is_err()) {
            self.changes = None;
        }
    }
}

#[derive(Debug, Default)]
struct OwnerRows {
    requests: BTreeMap<u64, Entry>,
    /// What the DAGs of live requests take, each once.
    bytes: u64,
    /// As of the newest request.
    bytes_max: Option<u64>,
    /// Roots to be fetched, by when, and in their order.
    queue: BTreeSet<(u64, u64, Cid)>,
    /// Roots that a worker is at, for this owner.
    active: usize,
    /// When a worker last took one, in turns.
    turn: u64,
}

/// How many requests there are of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that wait, and those that a worker is at.
    pub pending: u64,
    /// Those whose DAG is here.
    pub pinned: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those whose DAG was here, and lacks blocks now that are withheld.
    pub withheld: u64,
    /// Roots of DAGs that were here, lost blocks, and are being fetched again.
    pub incomplete_roots: u64,
    /// Roots that wait for their turn.
    pub queued_roots: u64,
    /// Roots that a worker is at.
    pub active_roots: u64,
}

/// Every request.
#[derive(Debug, Default)]
pub struct Index {
    owners: BTreeMap<Arc<str>, OwnerRows>,
    ids: HashMap<Arc<str>, (Arc<str>, u64)>,
    /// Everybody's requests by their times: whose they are.
    times: BTreeMap<u64, Arc<str>>,
    roots: HashMap<Cid, Root>,
    /// Roots of DAGs that lost blocks, which are to be fetched again.
    lost: HashSet<Cid>,
    /// Whom each active root is fetched for.
    fetched_for: HashMap<Cid, Arc<str>>,
    /// By which roots are due.
    pub clock: Clock,
    newest_ms: u64,
    text_bytes: u64,
    turns: u64,
    counts: Counts,
}
impl Index {
    /// A time that no request has: now, or a little later. Milliseconds, because that is what clients in JavaScript
    /// page by.
    pub fn next_created_ms(&self, now_ms: u64) -> u64 {
        now_ms.max(self.newest_ms + 1)
    }

    /// How many requests there are.
    pub fn count_of_all(&self) -> usize {
        self.ids.len()
    }

    /// What the texts of all requests take in memory, in bytes.
    pub fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// How many there are of each kind.
    pub fn counts(&self) -> Counts {
        Counts { incomplete_roots: self.lost.len() as u64, ..self.counts }
    }

    /// Takes a request in, and puts its root into the queue if it is pending and the root's work is known to be due
    /// then.
    pub fn insert(&mut self, entry: Entry) {
        let (owner, root, created_ms) = (Arc::clone(&entry.owner), entry.root, entry.created_ms);
        self.newest_ms = self.newest_ms.max(created_ms);
        self.text_bytes += entry.text_bytes();
        self.ids.insert(Arc::clone(&entry.id), (Arc::clone(&owner), created_ms));
        self.times.insert(created_ms, Arc::clone(&owner));
        self.count(&entry, true);
        if let Some(kept) = entry.keeps.filter(|_| entry.is_pending()) {
            self.hold(kept);
        }
        let rows = self.owners.entry(Arc::clone(&owner)).or_default();
        if rows.requests.last_key_value().is_none_or(|(newest, _)| *newest < created_ms) {
            rows.bytes_max = entry.bytes_max;
        }
        self.roots.entry(root).or_default().requests.insert(created_ms, Arc::clone(&owner));
        if entry.is_live() {
            self.enliven(&entry);
        }
        if let Some(rows) = self.owners.get_mut(&owner) {
            rows.requests.insert(created_ms, entry);
        }
        self.requeue(&root);
    }

    /// Takes a request out.
    pub fn remove(&mut self, id: &str) -> Option<Entry> {
        let (owner, created_ms) = self.ids.remove(id)?;
        self.times.remove(&created_ms);
        let rows = self.owners.get_mut(&owner)?;
        let entry = rows.requests.remove(&created_ms)?;
        self.text_bytes = self.text_bytes.saturating_sub(entry.text_bytes());
        self.count(&entry, false);
        if let Some(root) = self.roots.get_mut(&entry.root) {
            root.requests.remove(&created_ms);
            root.notify();
        }
        if entry.is_live() {
            self.deaden(&entry);
        }
        // Before anything is forgotten, since it may keep the very root that it is for.
        self.requeue(&entry.root);
        if let Some(kept) = entry.keeps.filter(|_| entry.is_pending()) {
            self.let_go(&kept);
        }
        self.forget_if_unknown(&entry.root);
        self.forget_owner_if_empty(&owner);
        Some(entry)
    }

    /// Says what has become of a request.
    pub fn settle(&mut self, id: &str, outcome: Outcome) -> Option<Entry> {
        let (owner, created_ms) = self.ids.get(id).cloned()?;
        let former = self.owners.get(&owner)?.requests.get(&created_ms)?.clone();
        self.count(&former, false);
        let keeps = if outcome == Outcome::Pending { former.keeps } else { None };
        let entry = Entry { outcome, keeps, ..former.clone() };
        self.count(&entry, true);
        // In this order, so that what is live before and after is so in between.
        if entry.is_live() {
            self.enliven(&entry);
        }
        if former.is_live() {
            self.deaden(&former);
        }
        if let Some(root) = self.roots.get_mut(&entry.root).filter(|_| entry.is_pending()) {
            root.pending.insert(created_ms, Arc::clone(&owner));
        }
        if let Some(kept) = former.keeps.filter(|_| former.is_pending() && !entry.is_pending()) {
            self.let_go(&kept);
        }
        self.owners.get_mut(&owner)?.requests.insert(created_ms, entry.clone());
        self.requeue(&entry.root);
        if let Some(root) = self.roots.get_mut(&entry.root) {
            root.notify();
        }
        Some(entry)
    }

    fn count(&mut self, entry: &Entry, more: bool) {
        let count = match entry.outcome {
            Outcome::Pending => &mut self.counts.pending,
            Outcome::Pinned => &mut self.counts.pinned,
            Outcome::Failed(_) => &mut self.counts.failed,
            Outcome::Withheld(_) => &mut self.counts.withheld,
        };
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
    }

    fn enliven(&mut self, entry: &Entry) {
        let root = self.roots.entry(entry.root).or_default();
        if entry.is_pending() {
            root.pending.insert(entry.created_ms, Arc::clone(&entry.owner));
        }
        let live = root.live.entry(Arc::clone(&entry.owner)).or_default();
        *live += 1;
        root.to_go = false;
        if *live == 1
            && let Some(rows) = self.owners.get_mut(&entry.owner)
        {
            rows.bytes += root.progress.bytes;
        }
    }

    fn deaden(&mut self, entry: &Entry) {
        let Some(root) = self.roots.get_mut(&entry.root) else { return };
        root.pending.remove(&entry.created_ms);
        let Some(live) = root.live.get_mut(&entry.owner) else { return };
        *live -= 1;
        if *live == 0 {
            root.live.remove(&entry.owner);
            if let Some(rows) = self.owners.get_mut(&entry.owner) {
                rows.bytes = rows.bytes.saturating_sub(root.progress.bytes);
            }
        }
    }

    /// Keeps a root's pin, whoever lets go of it.
    pub fn hold(&mut self, root: Cid) {
        self.roots.entry(root).or_default().holds += 1;
    }

    /// No longer. Returns whether somebody wanted it to go meanwhile, and now nothing needs it.
    pub fn let_go(&mut self, cid: &Cid) -> bool {
        let Some(root) = self.roots.get_mut(cid) else { return false };
        root.holds = root.holds.saturating_sub(1);
        let goes = root.to_go && !root.is_needed();
        self.forget_if_unknown(cid);
        goes
    }

    /// Has a root's pin go as soon as nothing needs it. Returns whether that is now.
    pub fn want_to_go(&mut self, cid: &Cid) -> bool {
        let Some(root) = self.roots.get_mut(cid) else { return true };
        root.to_go = root.live.is_empty();
        !root.is_needed()
    }

    /// Begins to remove a root's pin from the store, unless that is under way or something needs the pin; if it is only held, it
    /// goes when it is no longer. Returns whether the caller is to remove it, and to call [`Index::end_removal`] after that.
    pub fn begin_removal(&mut self, cid: &Cid) -> bool {
        let root = self.roots.entry(*cid).or_default();
        if root.is_needed() || root.active {
            root.to_go = root.live.is_empty();
            return false;
        }
        if root.removing {
            return false;
        }
        (root.removing, root.to_go) = (true, false);
        self.note_progress(cid, Progress::default(), false);
        self.note_work(cid, Work::default());
        true
    }

    /// The store's pin of a root is gone. Requests that arrived meanwhile are queued.
    pub fn end_removal(&mut self, cid: &Cid) {
        if let Some(root) = self.roots.get_mut(cid) {
            root.removing = false;
            root.notify();
        }
        self.requeue(cid);
        self.forget_if_unknown(cid);
    }

    /// Whether a root's pin is being removed from the store.
    pub fn is_removing(&self, cid: &Cid) -> bool {
        self.roots.get(cid).is_some_and(|root| root.removing)
    }

    /// A receiver of changes of a root and of the requests for it, from now on. It closes when nothing is known of the root.
    pub fn watch(&mut self, cid: &Cid) -> Option<watch::Receiver<()>> {
        let root = self.roots.get_mut(cid)?;
        Some(root.changes.get_or_insert_with(|| watch::Sender::new(())).subscribe())
    }

    /// Says what the store has of a root.
    pub fn note_progress(&mut self, cid: &Cid, progress: Progress, complete: bool) {
        let Some(root) = self.roots.get_mut(cid) else { return };
        let (before, after) = (root.progress.bytes, progress.bytes);
        (root.progress, root.complete) = (progress, complete);
        root.notify();
        for owner in root.live.keys() {
            if let Some(rows) = self.owners.get_mut(owner) {
                rows.bytes = rows.bytes.saturating_sub(before) + after;
            }
        }
    }

    /// Says that so much of a root came by, of which some may have been here before. Returns whether somebody who waits
    /// for it has more than they may now.
    pub fn note_step(&mut self, cid: &Cid, seen: Progress) -> bool {
        let Some(root) = self.roots.get(cid) else { return false };
        let Progress { blocks, bytes } = root.progress;
        if seen.bytes > bytes || seen.blocks > blocks {
            let progress = Progress { blocks: blocks.max(seen.blocks), bytes: bytes.max(seen.bytes) };
            self.note_progress(cid, progress, root.complete);
        }
        !self.exceeded(cid).is_empty()
    }

    fn forget_if_unknown(&mut self, cid: &Cid) {
        if self.roots.get(cid).is_some_and(Root::is_unknown) {
            self.roots.remove(cid);
        }
    }

    fn forget_owner_if_empty(&mut self, owner: &str) {
        if self.owners.get(owner).is_some_and(|rows| rows.requests.is_empty() && rows.active == 0) {
            self.owners.remove(owner);
        }
    }
}

/// Milliseconds since the epoch as a time.
pub fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}

/// A time as milliseconds since the epoch.
pub fn millis(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}
