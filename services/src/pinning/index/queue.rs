//! The fetch queue: which root is fetched next, and for which owner.

use crate::pinning::clock::whole_millis;
use crate::pinning::index::{Index, OwnerRows, Root};
use crate::pinning::record::Work;
use content::Cid;
use std::sync::Arc;
use std::time::Duration;

impl Index {
    /// Takes the next due root from the queue: of the owners with the fewest workers, and fewer than `share`, the one
    /// that had a worker least recently.
    pub fn take_next(&mut self, now_ms: u64, share: usize) -> Option<Cid> {
        let is_due =
            |rows: &OwnerRows| rows.active < share && rows.queue.first().is_some_and(|(due, ..)| *due <= now_ms);
        let due = self.owners.iter().filter(|(_, rows)| is_due(rows));
        let owner = Arc::clone(due.min_by_key(|(_, rows)| (rows.active, rows.turn))?.0);
        let rows = self.owners.get_mut(&owner)?;
        let (.., cid) = *rows.queue.first()?;
        self.turns += 1;
        (rows.turn, rows.active) = (self.turns, rows.active + 1);
        self.dequeue(&cid);
        let root = self.roots.get_mut(&cid)?;
        (root.active, root.origin_connected, root.elsewhere_until_ms) = (true, false, 0);
        self.counts.active_roots += 1;
        self.fetched_for.insert(cid, owner);
        Some(cid)
    }

    /// Ends the work of a root's worker.
    pub fn end_work(&mut self, cid: &Cid) {
        let Some(owner) = self.fetched_for.remove(cid) else { return };
        self.counts.active_roots = self.counts.active_roots.saturating_sub(1);
        if let Some(rows) = self.owners.get_mut(&owner) {
            rows.active = rows.active.saturating_sub(1);
        }
        let now_ms = self.clock.now_ms();
        let mut connected = false;
        if let Some(root) = self.roots.get_mut(cid) {
            root.active = false;
            connected = std::mem::take(&mut root.origin_connected);
        }
        self.requeue(cid);
        if connected {
            self.schedule_early(cid, now_ms);
        }
        self.remove_root_if_unused(cid);
        self.remove_owner_if_empty(&owner);
    }

    /// When the next root is due, with `share` as for [`Index::take_next`].
    pub fn next_due_ms(&self, share: usize) -> Option<u64> {
        let waiting = self.owners.values().filter(|rows| rows.active < share);
        waiting.filter_map(|rows| rows.queue.first().map(|(due, ..)| *due)).min()
    }

    /// Makes a root due now, because it was just requested.
    pub fn schedule_now(&mut self, cid: &Cid, now_ms: u64) {
        let Some(root) = self.roots.get_mut(cid) else { return };
        let work = &mut root.work;
        if root.pending.len() <= 1 {
            *work = Work { since_ms: now_ms, lost: work.lost, ..Work::default() };
        }
        work.due_ms = now_ms;
        self.requeue(cid);
    }

    /// Makes a queued root due before its back-off has ended, at `due_ms`, because an attempt may succeed: at most once
    /// per first back-off, so that frequent events do not cancel the back-off.
    pub fn schedule_early(&mut self, cid: &Cid, due_ms: u64) {
        let interval_ms = self.retry_first_ms;
        let Some(root) = self.roots.get_mut(cid) else { return };
        let due_ms = due_ms.max(root.early_ms.saturating_add(interval_ms));
        if root.work.due_ms > due_ms {
            (root.work.due_ms, root.early_ms) = (due_ms, due_ms);
            self.requeue(cid);
        }
    }

    /// Makes a root due later, because another service works on it until then.
    pub fn leave_to_other(&mut self, cid: &Cid, wait: Duration) {
        self.postpone(cid, wait);
        let now_ms = self.clock.now_ms();
        if let Some(root) = self.roots.get_mut(cid) {
            root.elsewhere_until_ms = now_ms.saturating_add(whole_millis(wait));
        }
    }

    /// Makes a root due later, without an attempt.
    pub fn postpone(&mut self, cid: &Cid, wait: Duration) {
        let due_ms = self.clock.now_ms().saturating_add(whole_millis(wait));
        if let Some(root) = self.roots.get_mut(cid) {
            root.work.due_ms = root.work.due_ms.max(due_ms);
        }
        self.requeue(cid);
    }

    /// Sets the work of a root, and queues it accordingly.
    pub fn set_work(&mut self, cid: &Cid, work: Work) {
        if let Some(root) = self.roots.get_mut(cid) {
            (root.work, root.elsewhere_until_ms) = (work, 0);
        }
        self.requeue(cid);
    }

    /// Updates the position of a root in the queue, or removes it.
    pub(super) fn requeue(&mut self, cid: &Cid) {
        self.dequeue(cid);
        self.update_lost(cid);
        let Some(root) = self.roots.get(cid) else { return };
        let Some((created_ms, owner)) = root.pending.first_key_value().filter(|_| !root.active && !root.is_removing())
        else {
            return;
        };
        let (created_ms, owner, due_ms) = (*created_ms, Arc::clone(owner), root.work.due_ms);
        let Some(rows) = self.owners.get_mut(&owner) else { return };
        rows.queue.insert((due_ms, created_ms, *cid));
        self.counts.queued_roots += 1;
        if let Some(root) = self.roots.get_mut(cid) {
            root.queued = Some((owner, due_ms, created_ms));
        }
    }

    pub(super) fn update_lost(&mut self, cid: &Cid) {
        let is_lost = |root: &Root| root.work.lost && !root.pending.is_empty() && !root.missing.is_withheld();
        if self.roots.get(cid).is_some_and(is_lost) {
            self.lost.insert(*cid);
        } else {
            self.lost.remove(cid);
        }
    }

    fn dequeue(&mut self, cid: &Cid) {
        let Some((owner, due_ms, created_ms)) = self.roots.get_mut(cid).and_then(|root| root.queued.take()) else {
            return;
        };
        self.counts.queued_roots = self.counts.queued_roots.saturating_sub(1);
        if let Some(rows) = self.owners.get_mut(&owner) {
            rows.queue.remove(&(due_ms, created_ms, *cid));
        }
    }
}
