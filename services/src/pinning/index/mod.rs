//! [`Index`]: all requests in memory, by owner and time, by ID and by root; and the fetch queue.
//!
//! Goals: all decisions of the service are made here, without I/O, so that they can be tested with tables; listings
//! read one owner's requests in order; quotas are counted incrementally.
//!
//! |---|---|
//! | `applying` | own changes and those of other services |
//! | `removal` | removals of pins from the block store |
//! | `queries` | read access |
//! | `queue` | the fetch queue |
//! | `retries` | when unfinished work is tried again |
//! | `origins` | the peers that requests name as origins |
//!
//! Terms: a request is *live* while it is pending or pinned, also if some of its blocks are withheld; a failed request
//! keeps no blocks. A root is *needed* while it has a live request, or its pin is retained for another reason (a
//! replacement in progress, an upload about to be recorded).

mod applying;
mod origins;
mod queries;
mod queue;
mod removal;
mod retries;

pub use self::queries::Batch;
pub use self::removal::{RETRIED_MAX, RemovalEnd};
pub use self::retries::Retries;

use self::removal::{RemovalElsewhere, RemovalState};
use crate::pinning::clock::{Clock, whole_millis};
use crate::pinning::record::Work;
use crate::pinning::request::{PinParameters, Progress};
use cache::MissingBlocks;
use cache::metadata_store::LogPosition;
use content::Cid;
use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PinOutcome {
    /// None yet.
    Pending,
    /// Its DAG is stored completely.
    Pinned,
    /// It failed, for this reason.
    Failed(#[serde(with = "text")] Arc<str>),
    /// It was complete, but the policy withholds blocks that are now missing. The rest is kept.
    #[serde(skip)]
    Withheld(Arc<str>),
}

/// Serialises a shared string.
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

/// A stored request. Dereferences to its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRequest {
    /// Its ID.
    pub id: Arc<str>,
    /// The ID of the owner's token.
    pub owner: Arc<str>,
    /// The parameters.
    pub wanted: Arc<PinParameters>,
    /// The creation time, in milliseconds since the epoch.
    pub created_ms: u64,
    /// The outcome.
    pub outcome: PinOutcome,
    /// The owner's byte quota when the request was created.
    pub bytes_max: Option<u64>,
    /// A root whose pin is retained until this request is settled.
    pub keeps: Option<Cid>,
    /// The request was created for a pin of the store that had no request.
    pub taken_in: bool,
}

impl Deref for StoredRequest {
    type Target = PinParameters;

    fn deref(&self) -> &PinParameters {
        &self.wanted
    }
}

impl StoredRequest {
    /// Whether it keeps the stored blocks of its DAG: it is pending, pinned, or pinned except for withheld blocks.
    pub fn is_live(&self) -> bool {
        !matches!(self.outcome, PinOutcome::Failed(_))
    }

    /// Whether it has no outcome yet.
    pub fn is_pending(&self) -> bool {
        self.outcome == PinOutcome::Pending
    }

    /// Counts the roots that it needs: by live requests, and by retained pins.
    fn needs(&self, roots: &mut BTreeMap<Cid, (usize, usize)>) {
        if self.is_live() {
            roots.entry(self.root).or_default().0 += 1;
        }
        if let Some(kept) = self.keeps.filter(|_| self.is_pending()) {
            roots.entry(kept).or_default().1 += 1;
        }
    }

    /// The memory of its texts, in bytes.
    fn text_bytes(&self) -> u64 {
        let meta: usize = self.meta.iter().map(|(key, value)| key.len() + value.len()).sum();
        let origins: usize = self.origins.iter().map(Multiaddr::len).sum();
        (meta + origins + self.name.as_deref().map_or(0, str::len)) as u64
    }
}

/// A requested root.
#[derive(Debug, Default)]
pub struct Root {
    /// Its requests: the owners, by creation time.
    requests: BTreeMap<u64, Arc<str>>,
    /// The pending ones.
    pending: BTreeMap<u64, Arc<str>>,
    /// The number of live requests of each owner.
    live: BTreeMap<Arc<str>, usize>,
    /// How many times its pin is retained for another reason.
    retained: usize,
    /// Its pin is to be removed as soon as it is not needed.
    removal_pending: bool,
    /// The removal of its pin from the store.
    removal: RemovalState,
    /// Notifies of changes of the root and of its requests; `None` without receivers.
    changes: Option<watch::Sender<()>>,
    /// The pin in the store is complete.
    pub complete: bool,
    /// The blocks that its pin has as members, stored or not.
    pub progress: Progress,
    /// Those of them that are not stored, as far as the store was asked.
    pub missing: MissingBlocks,
    /// The number of blocks that were missing before a loss that is not counted yet.
    missing_before: Option<u64>,
    /// A worker fetches it.
    pub active: bool,
    /// Until when another service works on it, as far as is known.
    elsewhere_until_ms: u64,
    /// An origin has connected since the worker began.
    origin_connected: bool,
    /// The attempts to fetch it.
    pub work: Work,
    /// When an attempt was last due before the end of its back-off.
    early_ms: u64,
    /// Its position in the queue: the owner, the due time, and the creation time of the request.
    queued: Option<(Arc<str>, u64, u64)>,
}

impl Root {
    fn is_needed(&self) -> bool {
        self.retained > 0 || !self.live.is_empty()
    }

    /// The blocks that are stored.
    fn stored(&self) -> Progress {
        let Progress { blocks, bytes } = self.progress;
        Progress { blocks: blocks.saturating_sub(self.missing.blocks), bytes: bytes.saturating_sub(self.missing.bytes) }
    }

    fn is_unused(&self) -> bool {
        !self.is_needed() && self.requests.is_empty() && !self.active && self.removal == RemovalState::None
    }

    fn is_removing(&self) -> bool {
        self.removal.is_removing()
    }

    fn notify(&mut self) {
        // The send fails if no receiver is released.
        if self.changes.as_ref().is_some_and(|changes| changes.send(()).is_err()) {
            self.changes = None;
        }
    }
}

#[derive(Debug, Default)]
struct OwnerRows {
    requests: BTreeMap<u64, StoredRequest>,
    /// The bytes of the DAGs of live requests, each counted once.
    bytes: u64,
    /// The byte quota as of the newest request.
    bytes_max: Option<u64>,
    /// Queued roots, by due time and creation time.
    queue: BTreeSet<(u64, u64, Cid)>,
    /// The number of indexed origins of its requests.
    origins: usize,
    /// The number of roots that a worker fetches for this owner.
    active: usize,
    /// When a worker last took one, as a sequence number.
    turn: u64,
}

/// The number of requests by outcome, and of roots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pending requests, queued and being fetched.
    pub pending: u64,
    /// Pinned requests.
    pub pinned: u64,
    /// Failed requests.
    pub failed: u64,
    /// Requests whose DAG lacks withheld blocks.
    pub withheld: u64,
    /// Roots of complete DAGs that lost blocks, which are being fetched again. DAGs that lack only withheld blocks are
    /// not among them.
    pub incomplete_roots: u64,
    /// Queued roots.
    pub queued_roots: u64,
    /// Roots that a worker fetches.
    pub active_roots: u64,
}

/// All requests.
#[derive(Debug, Default)]
pub struct Index {
    owners: BTreeMap<Arc<str>, OwnerRows>,
    ids: HashMap<Arc<str>, (Arc<str>, u64)>,
    /// The owners of all requests, by creation time.
    times: BTreeMap<u64, Arc<str>>,
    roots: HashMap<Cid, Root>,
    /// The origins of pending requests, with the creation times of the requests.
    origin_peers: BTreeSet<(PeerId, u64)>,
    /// Roots of DAGs that lost blocks.
    lost: HashSet<Cid>,
    /// Roots in [`RemovalState::Unlogged`].
    unlogged_removals: BTreeSet<Cid>,
    /// Roots in [`RemovalState::Decided`], [`RemovalState::Unfinished`] and [`RemovalState::Running`].
    removals_to_retry: Retries,
    /// Roots in [`RemovalState::Elsewhere`].
    removals_elsewhere: BTreeMap<Cid, RemovalElsewhere>,
    /// How many removals this service has begun.
    removals: u64,
    /// The owner for whom each active root is fetched.
    fetched_for: HashMap<Cid, Arc<str>>,
    /// The position in the log up to which its changes are applied.
    pub position: LogPosition,
    /// The clock of due times, and of removals by others.
    pub clock: Clock,
    /// The first back-off, in milliseconds.
    pub retry_first_ms: u64,
    /// The longest back-off of removals that fail.
    pub removal_retry_max: Duration,
    newest_ms: u64,
    text_bytes: u64,
    turns: u64,
    counts: Counts,
}

impl Index {
    /// A unique creation time: now, or slightly later. In milliseconds, by which JavaScript clients page.
    pub fn next_created_ms(&self, now_ms: u64) -> u64 {
        now_ms.max(self.newest_ms + 1)
    }

    /// The number of all requests.
    pub fn count_of_all(&self) -> usize {
        self.ids.len()
    }

    /// The memory of the texts of all requests, in bytes.
    pub fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// The numbers of requests and roots.
    pub fn counts(&self) -> Counts {
        Counts { incomplete_roots: self.lost.len() as u64, ..self.counts }
    }

    /// Inserts a request, and queues its root if it is pending.
    pub fn insert(&mut self, entry: StoredRequest) {
        let (owner, root, created_ms) = (Arc::clone(&entry.owner), entry.root, entry.created_ms);
        self.newest_ms = self.newest_ms.max(created_ms);
        self.text_bytes += entry.text_bytes();
        self.ids.insert(Arc::clone(&entry.id), (Arc::clone(&owner), created_ms));
        self.times.insert(created_ms, Arc::clone(&owner));
        if let Some(kept) = entry.keeps.filter(|_| entry.is_pending()) {
            self.retain(kept);
        }
        let rows = self.owners.entry(Arc::clone(&owner)).or_default();
        if rows.requests.last_key_value().is_none_or(|(newest, _)| *newest < created_ms) {
            rows.bytes_max = entry.bytes_max;
        }
        self.count(&entry, true);
        self.roots.entry(root).or_default().requests.insert(created_ms, Arc::clone(&owner));
        if entry.is_live() {
            self.add_live(&entry);
        }
        if let Some(rows) = self.owners.get_mut(&owner) {
            rows.requests.insert(created_ms, entry);
        }
        self.requeue(&root);
    }

    /// Removes a request.
    pub fn remove(&mut self, id: &str) -> Option<StoredRequest> {
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
            self.remove_live(&entry);
        }
        // Before unused roots are removed, because it may retain its own root.
        self.requeue(&entry.root);
        if let Some(kept) = entry.keeps.filter(|_| entry.is_pending()) {
            self.release(&kept);
        }
        self.remove_root_if_unused(&entry.root);
        self.remove_owner_if_empty(&owner);
        Some(entry)
    }

    /// Sets the outcome of a request.
    pub fn settle(&mut self, id: &str, outcome: PinOutcome) -> Option<StoredRequest> {
        let (owner, created_ms) = self.ids.get(id).cloned()?;
        let former = self.owners.get(&owner)?.requests.get(&created_ms)?.clone();
        self.count(&former, false);
        let keeps = if outcome == PinOutcome::Pending { former.keeps } else { None };
        let entry = StoredRequest { outcome, keeps, ..former.clone() };
        self.count(&entry, true);
        // In this order, so that a root that is live before and after is live in between.
        if entry.is_live() {
            self.add_live(&entry);
        }
        if former.is_live() {
            self.remove_live(&former);
        }
        if let Some(root) = self.roots.get_mut(&entry.root).filter(|_| entry.is_pending()) {
            root.pending.insert(created_ms, Arc::clone(&owner));
        }
        if let Some(kept) = former.keeps.filter(|_| former.is_pending() && !entry.is_pending()) {
            self.release(&kept);
        }
        self.owners.get_mut(&owner)?.requests.insert(created_ms, entry.clone());
        self.requeue(&entry.root);
        if let Some(root) = self.roots.get_mut(&entry.root) {
            root.notify();
        }
        Some(entry)
    }

    /// Adds a request to the counts and to the indexed origins, or removes it.
    fn count(&mut self, entry: &StoredRequest, more: bool) {
        if entry.is_pending() {
            self.index_origins(entry, more);
        }
        let count = match entry.outcome {
            PinOutcome::Pending => &mut self.counts.pending,
            PinOutcome::Pinned => &mut self.counts.pinned,
            PinOutcome::Failed(_) => &mut self.counts.failed,
            PinOutcome::Withheld(_) => &mut self.counts.withheld,
        };
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
    }

    fn add_live(&mut self, entry: &StoredRequest) {
        let root = self.roots.entry(entry.root).or_default();
        if entry.is_pending() {
            root.pending.insert(entry.created_ms, Arc::clone(&entry.owner));
        }
        let live = root.live.entry(Arc::clone(&entry.owner)).or_default();
        *live += 1;
        root.removal_pending = false;
        if *live == 1
            && let Some(rows) = self.owners.get_mut(&entry.owner)
        {
            rows.bytes += root.progress.bytes;
        }
    }

    fn remove_live(&mut self, entry: &StoredRequest) {
        let Some(root) = self.roots.get_mut(&entry.root) else { return };
        root.pending.remove(&entry.created_ms);
        let Some(live) = root.live.get_mut(&entry.owner) else { return };
        *live -= 1;
        if *live == 0 {
            root.live.remove(&entry.owner);
            // Then it is removed when it is released.
            root.removal_pending |= root.live.is_empty() && root.retained > 0;
            if let Some(rows) = self.owners.get_mut(&entry.owner) {
                rows.bytes = rows.bytes.saturating_sub(root.progress.bytes);
            }
        }
    }

    /// Retains a root's pin independently of requests.
    pub fn retain(&mut self, root: Cid) {
        self.roots.entry(root).or_default().retained += 1;
    }

    /// Releases a retained pin. Returns whether its removal is pending and nothing needs it any more.
    pub fn release(&mut self, cid: &Cid) -> bool {
        let Some(root) = self.roots.get_mut(cid) else { return false };
        root.retained = root.retained.saturating_sub(1);
        let is_removable = root.removal_pending && !root.is_needed();
        self.remove_root_if_unused(cid);
        is_removable
    }

    /// A receiver of changes of a root and of its requests. It closes when the root is removed from the index.
    pub fn watch(&mut self, cid: &Cid) -> Option<watch::Receiver<()>> {
        let root = self.roots.get_mut(cid)?;
        Some(root.changes.get_or_insert_with(|| watch::Sender::new(())).subscribe())
    }

    /// Sets which blocks the pin of a root has. While that is being removed, it has none: what is stored meanwhile may be
    /// removed as well.
    pub fn set_progress(&mut self, cid: &Cid, progress: Progress, complete: bool) {
        let Some(root) = self.roots.get_mut(cid) else { return };
        let (progress, complete) = if root.is_removing() { Default::default() } else { (progress, complete) };
        let (before, after) = (root.progress.bytes, progress.bytes);
        (root.progress, root.complete) = (progress, complete);
        if complete || progress == Progress::default() {
            (root.missing, root.missing_before) = (MissingBlocks::default(), None);
        }
        root.notify();
        for owner in root.live.keys() {
            if let Some(rows) = self.owners.get_mut(owner) {
                rows.bytes = rows.bytes.saturating_sub(before) + after;
            }
        }
    }

    /// A root has lost blocks, which the next [`Index::set_missing`] counts.
    pub fn expect_loss(&mut self, cid: &Cid) {
        if let Some(root) = self.roots.get_mut(cid) {
            root.missing_before.get_or_insert(root.missing.blocks);
        }
    }

    /// Sets which blocks of an incomplete root are not stored. The size of the DAG, and so the usage of its owners, is
    /// unchanged. Returns whether there are more since [`Index::expect_loss`]; a block that a rule withheld is not
    /// lost, also after the rule was removed.
    pub fn set_missing(&mut self, cid: &Cid, missing: MissingBlocks) -> bool {
        let Some(root) = self.roots.get_mut(cid).filter(|root| !root.complete) else { return false };
        root.missing = missing;
        let before = root.missing_before.take();
        root.notify();
        self.update_lost(cid);
        before.is_some_and(|before| missing.blocks > before) && !missing.is_withheld()
    }

    /// Raises the progress of a root to what an attempt has seen, part of which may have been stored before. Of the
    /// block that was just seen, `fetched_bytes` is the length if it was fetched. Returns whether an owner of a live
    /// request now exceeds its quota.
    pub fn raise_progress(&mut self, cid: &Cid, seen: Progress, fetched_bytes: Option<u64>) -> bool {
        let Some(root) = self.roots.get_mut(cid) else { return false };
        if let Some(fetched_bytes) = fetched_bytes.filter(|_| root.missing.blocks > 0) {
            root.missing.blocks -= 1;
            root.missing.bytes = root.missing.bytes.saturating_sub(fetched_bytes);
            root.notify();
        }
        let (Progress { blocks, bytes }, complete) = (root.progress, root.complete);
        if seen.bytes > bytes || seen.blocks > blocks {
            let progress = Progress { blocks: blocks.max(seen.blocks), bytes: bytes.max(seen.bytes) };
            self.set_progress(cid, progress, complete);
        }
        self.is_exceeded(cid)
    }

    fn remove_root_if_unused(&mut self, cid: &Cid) {
        if self.roots.get(cid).is_some_and(Root::is_unused) {
            self.roots.remove(cid);
        }
    }

    fn remove_owner_if_empty(&mut self, owner: &str) {
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
    whole_millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
