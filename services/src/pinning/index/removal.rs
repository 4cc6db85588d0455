//! Removals of pins from the block store, which are in the log from the decision until they are complete.

use crate::pinning::index::{Index, Root};
use crate::pinning::record::Work;
use crate::pinning::request::Progress;
use content::Cid;

/// The removal of a root's pin from the block store. The log has a note of it in all states but `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum RemovalState {
    /// The pin is not to be removed.
    #[default]
    None,
    /// This service is to remove it. It has not begun, or has failed.
    Decided,
    /// This service removes it.
    Running,
    /// It is removed, or needed again. This service has yet to clear the note: its next entry does.
    Unlogged,
    /// Another service is to remove it, or removes it.
    Elsewhere,
}

impl RemovalState {
    /// Whether no worker and no upload may use the root.
    pub(super) fn is_removing(self) -> bool {
        matches!(self, Self::Running | Self::Elsewhere)
    }
}

impl Index {
    /// Requests the removal of a root's pin as soon as nothing needs it. Returns whether it can be removed now.
    pub fn request_removal(&mut self, cid: &Cid) -> bool {
        let Some(root) = self.roots.get_mut(cid) else { return true };
        root.removal_pending = root.live.is_empty();
        !root.is_needed()
    }

    /// Begins to remove a root's pin from the store, unless it is needed or already being removed; if it is only
    /// retained, its removal is pending. Returns whether the caller must remove it, and then call
    /// [`Index::end_removal`].
    pub fn begin_removal(&mut self, cid: &Cid) -> bool {
        let root = self.roots.entry(*cid).or_default();
        if root.is_needed() || root.active {
            root.removal_pending = root.live.is_empty();
            return false;
        }
        if root.is_removing() {
            return false;
        }
        root.removal_pending = false;
        self.reset(cid);
        self.set_removal(cid, RemovalState::Running);
        true
    }

    /// Ends the removal of a root's pin from the store by this service. Requests that arrived meanwhile are queued.
    pub fn end_removal(&mut self, cid: &Cid, is_removed: bool) {
        let Some(root) = self.roots.get(cid).filter(|root| root.removal == RemovalState::Running) else { return };
        let is_over = is_removed || !root.live.is_empty();
        self.set_removal(cid, if is_over { RemovalState::Unlogged } else { RemovalState::Decided });
    }

    /// Whether a root's pin is being removed from the store. Until that has ended, no worker and no upload uses it.
    pub fn is_removing(&self, cid: &Cid) -> bool {
        self.roots.get(cid).is_some_and(Root::is_removing)
    }

    /// Whether this service is to remove a root's pin, and does not do so yet.
    pub fn is_removal_decided(&self, cid: &Cid) -> bool {
        self.removal(cid) == RemovalState::Decided
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

    /// The log says that this service is to remove a root's pin.
    pub(super) fn decide_removal(&mut self, cid: &Cid) {
        if self.removal(cid) != RemovalState::Running {
            self.set_removal(cid, RemovalState::Decided);
        }
    }

    /// The log says that another service is to remove a root's pin. Until it has done so, the root waits here.
    pub(super) fn remove_elsewhere(&mut self, cid: &Cid) {
        self.set_removal(cid, RemovalState::Elsewhere);
        self.reset(cid);
    }

    /// The log says that a root's pin is not to be removed any more.
    pub(super) fn clear_removal(&mut self, cid: &Cid) {
        if self.removal(cid) != RemovalState::Running {
            self.set_removal(cid, RemovalState::None);
        }
    }

    /// The roots with notes in the log, except those whose pin this service removes.
    pub(super) fn noted_removals(&self) -> impl Iterator<Item = &Cid> {
        let is_noted = |root: &Root| !matches!(root.removal, RemovalState::None | RemovalState::Running);
        self.roots.iter().filter(move |(_, root)| is_noted(root)).map(|(cid, _)| cid)
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
        match state {
            RemovalState::Unlogged => _ = self.unlogged_removals.insert(*cid),
            _ => _ = self.unlogged_removals.remove(cid),
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
