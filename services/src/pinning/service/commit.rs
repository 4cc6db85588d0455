//! Decisions become changes of the log, and then of the index; the changes of other services become changes of this
//! index.
//!
//! Goals: every decision is made on the state that the log has when its changes are appended; nothing is visible that
//! a power failure may undo; own changes and those of others are applied by the same code.

use crate::pinning::index::{Index, PinOutcome};
use crate::pinning::record::{self, Orphan, PinChange};
use crate::pinning::service::{FollowUp, Pins, PinsError, now_ms, progress};
use crate::pinning::workers::wait_max;
use cache::metadata_store::{Appended, Change, LogEntry, LogPosition};
use cache::{PinState, PinSummary, StoreError};
use content::Cid;
use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often a service asks for changes of others without being told of one.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Applies what other services append to the log, until this one stops.
pub(super) async fn follow(pins: Weak<Pins>, stopping: CancellationToken, mut latest: watch::Receiver<LogPosition>) {
    loop {
        let told = tokio::select! {
            () = stopping.cancelled() => return,
            told = latest.changed() => match told {
                Ok(()) => true,
                // The log is closed.
                Err(_) => return,
            },
            () = tokio::time::sleep(POLL_EVERY) => false,
        };
        let Some(pins) = pins.upgrade() else { return };
        if told && *latest.borrow_and_update() <= pins.index().position {
            continue;
        }
        if let Err(error) = pins.catch_up().await {
            tracing::warn!(%error, "reading the changes of other gateways failed; it will be retried");
        }
    }
}

impl Pins {
    /// Applies what other services have appended so far. Then repeats removals that could not be appended.
    pub(in crate::pinning) async fn catch_up(self: &Arc<Self>) -> Result<(), PinsError> {
        let pins = Arc::clone(self);
        let change = async move {
            pins.commit(|_| Ok((Vec::new(), ()))).await?;
            let left_over = mem::take(&mut *pins.left_over());
            pins.follow_ups().extend(left_over.into_iter().map(FollowUp::LetGo));
            Ok(())
        };
        self.spawn_worker_change(change).await
    }

    /// Decides, appends the changes, and applies them when they are durable. Decides again if others have appended
    /// meanwhile, also if nothing or an error was decided. The caller holds the lock of changes.
    ///
    /// That the pins of roots which nothing needs any more are to be removed is part of the changes.
    pub(in crate::pinning) async fn commit<T>(
        &self,
        decide: impl Fn(&Index) -> Result<(Vec<PinChange>, T), PinsError>,
    ) -> Result<T, PinsError> {
        let apply = |index: &mut Index, changes: &[PinChange], decided| {
            index.apply(changes);
            decided
        };
        self.commit_with(decide, apply).await
    }

    /// The same; `apply` applies the changes to the index, and may do more under the same lock.
    pub(in crate::pinning) async fn commit_with<T, R>(
        &self,
        decide: impl Fn(&Index) -> Result<(Vec<PinChange>, T), PinsError>,
        apply: impl FnOnce(&mut Index, &[PinChange], T) -> R,
    ) -> Result<R, PinsError> {
        let mut removed = mem::take(&mut *self.removed());
        loop {
            let (after, decided) = {
                let index = self.index();
                // Another service has seen that the removal is complete, and has begun another one.
                removed.retain(|root| !index.is_removing_elsewhere(root));
                (index.position, decide(&index).map(|(changes, decided)| (self.complete(&index, changes), decided)))
            };
            let changes = decided.as_ref().map_or(&[][..], |(changes, _)| changes.as_slice());
            // First, because a root may be released again in the same entry.
            let removals = removed.iter().map(|root| PinChange::RemoveOrphan(*root).encode());
            let records: Vec<Change> =
                removals.chain(changes.iter().map(PinChange::encode)).collect::<Result<_, _>>()?;
            let appended = match records.is_empty() && !self.is_shared() {
                true => Ok(Some(after)),
                false => self.append(after, records).await,
            };
            // The next entry says what was removed.
            let appended = appended.inspect_err(|_| self.removed().extend(&removed));
            let Some(position) = appended? else { continue };
            let (applied, released) = {
                let mut index = self.index_mut();
                index.position = position;
                let (changes, decided) = decided?;
                let released = changes.iter().filter_map(PinChange::released_root).collect();
                (apply(&mut index, &changes, decided), released)
            };
            self.drop_pins(released);
            return Ok(applied);
        }
    }

    /// Appends changes; `None` if others had appended first, whose changes are then applied.
    async fn append(&self, after: LogPosition, changes: Vec<Change>) -> Result<Option<LogPosition>, PinsError> {
        match self.log.append(after, changes).await? {
            Appended::At(position) => return Ok(Some(position)),
            Appended::Behind(entries) => {
                for LogEntry { position, changes } in entries {
                    let changes: Vec<_> = changes.iter().filter_map(PinChange::decode).collect();
                    self.apply_foreign(position, changes).await;
                }
            }
            Appended::Truncated => self.reload().await?,
        }
        self.changed();
        Ok(None)
    }

    /// Reads all records, because the log no longer has all changes since those that are applied. Pins that were removed
    /// from the block store meanwhile may leave no trace in them, so that it is read as well.
    async fn reload(&self) -> Result<(), StoreError> {
        let found = self.read_records().await?;
        let stored = self.store.pins().await?;
        let stored: HashMap<Cid, PinSummary> = stored.into_iter().map(|pin| (pin.root, pin)).collect();
        let position = found.position;
        let (changes, known) = {
            let index = self.index();
            (index.difference(found), index.roots().map(|(cid, _)| *cid).collect::<Vec<_>>())
        };
        self.apply_foreign(position, changes).await;
        let mut index = self.index_mut();
        for root in known {
            let pin = stored.get(&root);
            if index.root(&root).is_some_and(|root| !root.active) && !index.is_removing(&root) {
                let (progress, state) = pin.map(|pin| (progress(pin), pin.state)).unzip();
                index.set_progress(&root, progress.unwrap_or_default(), state == Some(PinState::Complete));
            }
            if pin.is_some() && !index.is_needed(&root) && !index.is_removing(&root) {
                self.follow_ups().push(FollowUp::LetGo(root));
            }
        }
        Ok(())
    }

    pub(super) async fn read_records(&self) -> Result<record::Records, StoreError> {
        let log = Arc::clone(&self.log);
        tokio::task::spawn_blocking(move || record::load(&*log)).await.map_err(|_| StoreError::Closed)?
    }

    /// Applies changes of another service, up to a position of the log.
    async fn apply_foreign(&self, position: LogPosition, changes: Vec<PinChange>) {
        // Before the outcomes are visible.
        let completed = self.completed(&changes).await;
        let affected: BTreeSet<Cid> = {
            let mut index = self.index_mut();
            let affected = index.apply_foreign(&changes, &self.name, wait_max(&self.options));
            completed.iter().for_each(|pin| show_completed(&mut index, pin));
            index.position = position;
            affected.into_iter().collect()
        };
        for root in affected {
            self.reread(&root).await;
            if !self.index().is_pending(&root)
                && let Some(worker) = self.workers().get(&root)
            {
                worker.cancel();
            }
        }
        for change in &changes {
            if let Some(root) = change.released_root_of(&self.name) {
                self.resume_removal(root);
            } else if let PinChange::RemoveOrphan(root) = change {
                self.remove_left_over(root).await;
            }
        }
    }

    /// Carries out a removal that this service has decided without knowing that it was appended.
    fn resume_removal(&self, root: Cid) {
        let (is_removing, is_needed) = {
            let index = self.index();
            (index.is_removing(&root), index.is_needed(&root))
        };
        match (is_removing, is_needed) {
            (true, _) => {}
            // There is nothing to remove any more, and the others wait to be told.
            (false, true) => self.removed().push(root),
            (false, false) => self.drop_pins(vec![root]),
        }
    }

    /// Removes what a service has stored of a root after another one had removed its pin, and before it learned that.
    async fn remove_left_over(&self, root: &Cid) {
        let is_idle = |index: &Index| !index.is_needed(root) && !index.is_removing(root);
        if !is_idle(&self.index()) {
            return;
        }
        if self.stored_pin(root).await.is_some() {
            self.follow_ups().push(FollowUp::LetGo(*root));
        }
    }

    /// The store's pins of the roots that other services have completed.
    async fn completed(&self, changes: &[PinChange]) -> Vec<PinSummary> {
        let mut completed = Vec::new();
        for change in changes {
            if let PinChange::Request(entry) = change
                && entry.outcome == PinOutcome::Pinned
            {
                completed.extend(self.stored_pin(&entry.root).await);
            }
        }
        completed
    }

    async fn stored_pin(&self, root: &Cid) -> Option<PinSummary> {
        let pin = self.store.pin(root).await;
        pin.inspect_err(|error| tracing::warn!(%root, %error, "reading a pin of another gateway failed")).ok()?
    }

    /// Reads how much of a root is stored, which a change of another service may have changed.
    pub(super) async fn reread(&self, root: &Cid) {
        let is_doubtful = |index: &Index| {
            let known = index.root(root).filter(|_| index.is_needed(root) && !index.is_removing(root));
            known.is_some_and(|known| !known.complete || index.is_pending(root))
        };
        if !is_doubtful(&self.index()) {
            return;
        }
        if let Some(pin) = self.stored_pin(root).await {
            let (mut index, is_complete) = (self.index_mut(), pin.state == PinState::Complete);
            // A worker knows more of what it has stored itself.
            if is_complete || index.root(root).is_some_and(|root| !root.active) {
                index.set_progress(root, progress(&pin), is_complete);
            }
        }
    }

    /// Adds to changes that the pins which they release are to be removed.
    fn complete(&self, index: &Index, mut changes: Vec<PinChange>) -> Vec<PinChange> {
        let released = index.released(&changes);
        changes.extend(released.into_iter().flat_map(|root| self.removal_of(root)));
        changes
    }

    /// That the pin of a root is to be removed, by this service.
    pub(super) fn removal_of(&self, root: Cid) -> [PinChange; 2] {
        let by = self.is_shared().then(|| self.name.clone());
        [PinChange::Orphan(root, Orphan { at_ms: now_ms(), by }), PinChange::RemoveWork(root)]
    }

    /// The roots whose pins were removed, which the log does not say yet.
    pub(super) fn removed(&self) -> MutexGuard<'_, Vec<Cid>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The roots whose pins are to be removed as soon as the log can say so.
    pub(super) fn left_over(&self) -> MutexGuard<'_, Vec<Cid>> {
        self.left_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether follow-ups run or are to be run, for tests.
    #[cfg(test)]
    pub(in crate::pinning) fn follows_up(&self) -> bool {
        !self.follow_up_tasks.is_empty() || !self.follow_ups().is_empty() || !self.left_over().is_empty()
    }

    /// Whether other services append to the log.
    pub(in crate::pinning) fn is_shared(&self) -> bool {
        self.is_shared
    }
}

/// Shows how much of a root is stored that another service has completed.
fn show_completed(index: &mut Index, pin: &PinSummary) {
    if index.is_pinned(&pin.root) && !index.is_removing(&pin.root) {
        index.set_progress(&pin.root, progress(pin), pin.state == PinState::Complete);
    }
}
