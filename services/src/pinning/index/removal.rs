//! Removals of pins from the block store, which are in the log from the decision until they are complete.

use crate::pinning::index::{Index, Root};
use crate::pinning::record::Work;
use crate::pinning::request::Progress;
use content::Cid;

/// How many removals that have failed are tried again at a time.
pub const RETRIED_MAX: usize = 256;

/// The removal of a root's pin from the block store. The log has a note of it in all states but `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum RemovalState {
    /// The pin is not to be removed.
    #[default]
    None,
    /// This service is to remove it, and has not begun: it need not, if the root is requested again.
    Decided,
    /// This service is to remove it. Whether an attempt has taken effect, or will, is unknown: one has failed that
    /// another service can delay, such as a database; or another process began one. The root waits until one succeeds.
    Unfinished,
    /// This service removes it. Removals are numbered, because another service may take one over before it ends here.
    Running(u64),
    /// It is removed, or needed again. This service has yet to clear the note: its next entry does.
    Unlogged,
    /// Another service is to remove it, or removes it.
    Elsewhere,
}

impl RemovalState {
    /// Whether no worker and no upload may use the root.
    pub(super) fn is_removing(self) -> bool {
        matches!(self, Self::Unfinished | Self::Running(_) | Self::Elsewhere)
    }
}

/// A removal by another service.
#[derive(Debug)]
pub(super) struct RemovalElsewhere {
    /// That service.
    by: Option<Box<str>>,
    /// Since when it is known, by the clock of the index.
    since_ms: u64,
}

/// How an attempt to remove a pin has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalEnd {
    /// There is no such pin any more.
    Removed,
    /// The pin is as it was.
    Failed,
    /// The pin may be removed now or later.
    Unknown,
}

impl Index {
    /// Requests the removal of a root's pin as soon as nothing needs it. Returns whether it can be removed now.
    pub fn request_removal(&mut self, cid: &Cid) -> bool {
        let Some(root) = self.roots.get_mut(cid) else { return true };
        root.removal_pending = root.live.is_empty();
        !root.is_needed()
    }

    /// Begins to remove a root's pin from the store, unless it is needed or already being removed; if it is only
    /// retained, its removal is pending. One that is unfinished is repeated also if the root has been requested again.
    /// Returns the number of the removal if the caller must remove it, and then call [`Index::end_removal`].
    pub fn begin_removal(&mut self, cid: &Cid) -> Option<u64> {
        let root = self.roots.entry(*cid).or_default();
        let is_unfinished = root.removal == RemovalState::Unfinished;
        if root.retained > 0 || root.active || (!root.live.is_empty() && !is_unfinished) {
            root.removal_pending = root.live.is_empty();
            return None;
        }
        if root.is_removing() && !is_unfinished {
            return None;
        }
        root.removal_pending = false;
        self.removals += 1;
        let number = self.removals;
        self.reset(cid);
        self.set_removal(cid, RemovalState::Running(number));
        Some(number)
    }

    /// Ends the removal of a root's pin from the store by this service. Requests that arrived meanwhile are queued.
    pub fn end_removal(&mut self, cid: &Cid, number: u64, end: RemovalEnd) {
        let runs = |root: &&Root| root.removal == RemovalState::Running(number);
        let Some(root) = self.roots.get(cid).filter(runs) else { return };
        let state = match end {
            RemovalEnd::Removed => RemovalState::Unlogged,
            RemovalEnd::Failed if !root.live.is_empty() => RemovalState::Unlogged,
            RemovalEnd::Failed => RemovalState::Decided,
            RemovalEnd::Unknown => RemovalState::Unfinished,
        };
        self.set_removal(cid, state);
        if end == RemovalEnd::Removed {
            self.removals_to_retry.wake(self.clock.now_ms(), RETRIED_MAX);
        }
    }

    /// Whether this removal of a root's pin is still to be made by this service.
    pub fn runs_removal(&self, cid: &Cid, number: u64) -> bool {
        self.removal(cid) == RemovalState::Running(number)
    }

    /// Whether a root's pin is being removed from the store. Until that has ended, no worker and no upload uses it.
    pub fn is_removing(&self, cid: &Cid) -> bool {
        self.roots.get(cid).is_some_and(Root::is_removing)
    }

    /// Whether this service is to remove a root's pin, and does not do so yet.
    pub fn is_removal_decided(&self, cid: &Cid) -> bool {
        matches!(self.removal(cid), RemovalState::Decided | RemovalState::Unfinished)
    }

    /// Takes some of the roots whose pins this service is to remove, and does not remove yet: an attempt has failed, or
    /// an upload or a worker uses the root. Each is due again after its back-off.
    pub fn take_due_removals(&mut self) -> Vec<Cid> {
        self.removals_to_retry.take_due(self.clock.now_ms(), self.removal_retry_max, RETRIED_MAX)
    }

    /// The roots whose pins another service is to remove, as this one has known since a time or for longer. That
    /// service may no longer exist.
    pub fn removals_elsewhere_until(&self, known_ms: u64) -> Vec<Cid> {
        let known = self.removals_elsewhere.iter().filter(|(_, noted)| noted.since_ms <= known_ms);
        known.map(|(cid, _)| *cid).collect()
    }

    /// The log had the note of a removal when this service started. That of a former process of the same node is to be
    /// taken over at once.
    pub fn leave_noted(&mut self, cid: &Cid, removed_by: Option<&str>, by_former: bool) {
        self.remove_elsewhere(cid, removed_by);
        if let Some(noted) = self.removals_elsewhere.get_mut(cid).filter(|_| by_former) {
            noted.since_ms = 0;
        }
    }

    /// Withdraws the removal of a root's pin that has not begun, if a request needs it again. Returns whether it did.
    pub fn withdraw_removal(&mut self, cid: &Cid) -> bool {
        let is_decided = |root: &&Root| root.removal == RemovalState::Decided && !root.live.is_empty();
        let is_withdrawn = self.roots.get(cid).filter(is_decided).is_some();
        if is_withdrawn {
            self.set_removal(cid, RemovalState::Unlogged);
        }
        is_withdrawn
    }

    /// The roots whose notes this service has yet to clear.
    pub fn unlogged_removals(&self) -> Vec<Cid> {
        self.unlogged_removals.iter().copied().collect()
    }

    /// The log says that this service is to remove a root's pin. It may take over from another one that has begun.
    pub(super) fn decide_removal(&mut self, cid: &Cid) {
        match self.removal(cid) {
            RemovalState::Running(_) | RemovalState::Unfinished => {}
            RemovalState::Elsewhere => self.set_removal(cid, RemovalState::Unfinished),
            _ => self.set_removal(cid, RemovalState::Decided),
        }
    }

    /// The log says that another service is to remove a root's pin. Until it has done so, the root waits here.
    pub(super) fn remove_elsewhere(&mut self, cid: &Cid, removed_by: Option<&str>) {
        self.set_removal(cid, RemovalState::Elsewhere);
        // It is known already if all records are read again. A third service may have taken over.
        let is_known = self.removals_elsewhere.get(cid).is_some_and(|noted| noted.by.as_deref() == removed_by);
        if !is_known {
            let noted = RemovalElsewhere { by: removed_by.map(Box::from), since_ms: self.clock.now_ms() };
            self.removals_elsewhere.insert(*cid, noted);
        }
        self.reset(cid);
    }

    /// The log says that a root's pin is not to be removed any more. If this service was removing it, another one has
    /// taken over, and removed it.
    pub(super) fn clear_removal(&mut self, cid: &Cid) {
        self.set_removal(cid, RemovalState::None);
    }

    /// The roots with notes in the log.
    pub(super) fn noted_removals(&self) -> impl Iterator<Item = &Cid> {
        self.roots.iter().filter(|(_, root)| root.removal != RemovalState::None).map(|(cid, _)| cid)
    }

    fn removal(&self, cid: &Cid) -> RemovalState {
        self.roots.get(cid).map(|root| root.removal).unwrap_or_default()
    }

    fn set_removal(&mut self, cid: &Cid, state: RemovalState) {
        if self.removal(cid) == state {
            return;
        }
        let root = self.roots.entry(*cid).or_default();
        root.removal = state;
        root.notify();
        self.unlogged_removals.remove(cid);
        self.removals_elsewhere.remove(cid);
        match state {
            RemovalState::Decided | RemovalState::Unfinished => {
                self.removals_to_retry.insert(*cid, self.clock.now_ms(), self.removal_retry_max);
            }
            RemovalState::Running(_) => self.removals_to_retry.begin(cid),
            RemovalState::None | RemovalState::Unlogged | RemovalState::Elsewhere => self.removals_to_retry.remove(cid),
        }
        if state == RemovalState::Unlogged {
            self.unlogged_removals.insert(*cid);
        }
        self.requeue(cid);
        self.remove_root_if_unused(cid);
    }

    /// Nothing of a root is stored any more.
    fn reset(&mut self, cid: &Cid) {
        self.set_progress(cid, Progress::default(), false);
        self.set_work(cid, Work::default());
    }
}
