//! Pins that lose blocks: their requests become pending until they are complete again, or withheld.
//!
//! The block store records a loss, however it is detected, and notifies this service ([`cache::pins::PinChanges`]).
//! Then the requests report it, and a worker fetches the missing blocks. A pin that was complete never fails, because
//! the rest of it would be evicted.

use crate::pinning::index::{Index, PinOutcome, Root, StoredRequest};
use crate::pinning::record::{PinChange, Work};
use crate::pinning::service::{Pins, PinsError, progress};
use cache::pins::PinChanges;
use cache::{MissingBlocks, PinState, PinSummary};
use content::Cid;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long after a missing block was stored in another way the pin is checked: more may follow.
const AFTER_RETURN: Duration = Duration::from_secs(1);

/// Checks every pin that the store reports as changed, until the service stops. Looks up no members, so that the loss
/// of one pin does not wait for another pin.
pub(super) async fn watch(pins: Weak<Pins>, stopping: CancellationToken, changes: Arc<PinChanges>) {
    loop {
        let roots = tokio::select! {
            () = stopping.cancelled() => return,
            roots = changes.next() => roots,
        };
        for root in roots {
            let Some(pins) = pins.upgrade() else { return };
            let changing = Arc::clone(&pins);
            if let Err(error) = pins.spawn_worker_change(async move { changing.pin_changed(&root).await }).await {
                tracing::warn!(%root, %error, "recording that a pin lost blocks failed; the next start does it");
            }
        }
    }
}

/// Counts the missing blocks of the roots that wait for it, one root at a time.
pub(super) async fn measure_waiting(pins: Weak<Pins>, unmeasured: Arc<PinChanges>) {
    loop {
        for root in unmeasured.next().await {
            let Some(pins) = pins.upgrade() else { return };
            pins.measure_inactive(&root).await;
            pins.changed();
        }
    }
}

impl Pins {
    /// Checks all pins with missing withheld blocks again, because the rules have changed.
    pub fn recheck_withheld(&self) {
        let roots: Vec<Cid> = {
            let index = self.index();
            if index.counts().withheld == 0 {
                return;
            }
            index
                .all()
                .filter(|entry| matches!(entry.outcome, PinOutcome::Withheld(_)))
                .map(|entry| entry.root)
                .collect()
        };
        let changes = self.store.pin_changes();
        roots.into_iter().for_each(|root| changes.note(root));
    }

    /// Updates the number of missing blocks of an incomplete root, for the worker that fetches it. Looks up every
    /// member.
    pub(in crate::pinning) async fn measure(&self, root: &Cid) {
        if let Some(missing) = self.count_missing(root).await {
            self.set_missing(&mut self.index_mut(), root, missing);
        }
    }

    /// The same for a root that no worker fetches. If a worker has begun meanwhile, its figures are newer.
    pub(in crate::pinning) async fn measure_inactive(&self, root: &Cid) {
        let former = |index: &Index| {
            let root = index.root(root).filter(|root| !root.complete && !root.active);
            root.map(|root| root.missing)
        };
        let before = former(&self.index());
        if before.is_some()
            && let Some(missing) = self.count_missing(root).await
        {
            let mut index = self.index_mut();
            if former(&index) == before {
                self.set_missing(&mut index, root, missing);
            }
        }
    }

    async fn count_missing(&self, root: &Cid) -> Option<MissingBlocks> {
        let missing = self.store.missing(root).await;
        missing.inspect_err(|error| tracing::warn!(%root, %error, "counting the missing blocks of a pin failed")).ok()
    }

    fn set_missing(&self, index: &mut Index, root: &Cid, missing: MissingBlocks) {
        if index.set_missing(root, missing) {
            self.metrics.losses.inc();
            tracing::warn!(%root, blocks = missing.lost(), "a pin has lost blocks: they are fetched again");
        }
    }

    /// The incomplete roots whose missing blocks are counted after the start.
    pub(super) fn incomplete(&self) -> Vec<Cid> {
        let is_incomplete = |root: &Root| !root.complete && root.progress.blocks > 0;
        self.index().roots().filter(|(_, root)| is_incomplete(root)).map(|(cid, _)| *cid).collect()
    }

    /// Compares the requests for a root with the pin in the store, before another one is decided. Requests whose blocks
    /// are withheld stay so until the store or the rules change. The caller holds the lock of changes.
    pub(super) async fn refresh(&self, root: &Cid) -> Result<(), PinsError> {
        self.compare(root, |outcome| *outcome == PinOutcome::Pinned).await
    }

    /// The pin in the store, or the rules, have changed: requests whose blocks are withheld are tried again as well.
    async fn pin_changed(&self, root: &Cid) -> Result<(), PinsError> {
        self.compare(root, |outcome| matches!(outcome, PinOutcome::Pinned | PinOutcome::Withheld(_))).await?;
        self.schedule_soon(root);
        Ok(())
    }

    /// Compares the requests for a root with the pin in the store. If it is incomplete, the `affected` ones are pending
    /// again. Its missing blocks are counted later, without the lock of changes.
    async fn compare(&self, root: &Cid, affected: fn(&PinOutcome) -> bool) -> Result<(), PinsError> {
        {
            let index = self.index();
            if index.root(root).is_none() || index.is_removing(root) {
                return Ok(());
            }
        }
        match self.store.pin(root).await? {
            Some(pin) if pin.state == PinState::Partial => self.lose(root, &pin, affected).await,
            Some(pin) => self.gain(root, &pin).await,
            None => Ok(()),
        }
    }

    /// A pending pin was completed in another way, such as an import.
    async fn gain(&self, root: &Cid, pin: &PinSummary) -> Result<(), PinsError> {
        if self.index().root(root).is_none_or(|root| root.complete || root.active) {
            return Ok(());
        }
        self.index_mut().set_progress(root, progress(pin), true);
        self.settle_complete(root).await?;
        self.delete_work(root).await
    }

    /// A complete pin has lost blocks: its requests become pending.
    async fn lose(&self, root: &Cid, pin: &PinSummary, affected: fn(&PinOutcome) -> bool) -> Result<(), PinsError> {
        let decide = |index: &Index| {
            let ids = index.requests_for(root, |entry| affected(&entry.outcome));
            let entries = ids.iter().filter_map(|id| index.entry(id).cloned());
            let pending = |entry| PinChange::Request(StoredRequest { outcome: PinOutcome::Pending, ..entry });
            let mut changes: Vec<_> = entries.map(pending).collect();
            let is_affected = !changes.is_empty();
            changes.extend(is_affected.then(|| PinChange::Work(*root, restarted_work(index))));
            Ok((changes, is_affected))
        };
        let apply = |index: &mut Index, changes: &[PinChange], is_affected: bool| {
            if is_affected {
                index.set_progress(root, progress(pin), false);
                index.expect_loss(root);
                index.apply(changes);
            }
            is_affected
        };
        if !self.commit_with(decide, apply).await? {
            return Ok(());
        }
        self.unmeasured.note(*root);
        self.changed();
        Ok(())
    }

    /// Schedules an attempt soon, because missing blocks may have been stored in another way.
    fn schedule_soon(&self, root: &Cid) {
        let mut index = self.index_mut();
        let due_ms = index.clock.now_ms() + u64::try_from(AFTER_RETURN.as_millis()).unwrap_or_default();
        if index.root(root).is_some_and(|root| root.work.lost && !root.active) {
            index.schedule_early(root, due_ms);
            drop(index);
            self.wake.notify_one();
        }
    }

    /// A pin lost a block during its last attempt: schedules another one.
    pub(in crate::pinning) async fn restart_work(&self, root: &Cid) -> Result<(), PinsError> {
        let work = restarted_work(&self.index());
        self.write_work(root, work).await
    }

    /// Settles the requests for a pin whose missing blocks are withheld, until the rules change.
    pub(in crate::pinning) async fn withhold(&self, root: &Cid, reason: String) -> Result<(), PinsError> {
        self.settle_pending(root, &PinOutcome::Withheld(reason.into())).await?;
        self.delete_work(root).await
    }
}

fn restarted_work(index: &Index) -> Work {
    let now_ms = index.clock.now_ms();
    Work { since_ms: now_ms, due_ms: now_ms, lost: true, ..Work::default() }
}
