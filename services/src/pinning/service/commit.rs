//! Decisions become changes of the log, and then of the index; the changes of other services become changes of this
//! index.
//!
//! Goals: every decision is made on the state that the log has when its changes are appended; nothing is visible that
//! a power failure may undo; own changes and those of others are applied by the same code.

use crate::pinning::clock::whole_millis;
use crate::pinning::index::{Index, PinOutcome, RETRIED_MAX, Retries};
use crate::pinning::record::{self, Orphan, PinChange};
use crate::pinning::repeatable::Fence;
use crate::pinning::service::{FollowUp, Pins, PinsError, now_ms, progress};
use crate::pinning::workers::wait_max;
use cache::metadata_store::{Appended, Change, LogEntry, LogPosition};
use cache::{PinState, PinSummary, StoreError};
use content::Cid;
use p2p_bridge::back_off;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often a service asks for changes of others without being told of one.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// How often a change is decided again because others have appended first. Then it fails, and may be retried.
const ATTEMPTS_MAX: u32 = 64;

/// After how many attempts there is a pause before each further group of so many.
const ATTEMPTS_WITHOUT_PAUSE: u32 = 8;

/// The first pause, which doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(5);

/// The longest pause, before jitter.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How long a change is decided again: each attempt may read all records.
const ATTEMPTS_TIME_MAX: Duration = Duration::from_secs(30);

/// Applies what other services append to the log, until this one stops.
pub(super) async fn follow(pins: Weak<Pins>, stopping: CancellationToken, latest: watch::Receiver<LogPosition>) {
    let mut latest = Some(latest);
    // Whatever hints come: after a failover they may be of a log that is behind this service.
    let mut poll = tokio::time::interval(POLL_EVERY);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let hint = async {
            match &mut latest {
                Some(latest) => latest.changed().await.map(|()| *latest.borrow_and_update()),
                None => std::future::pending().await,
            }
        };
        let hint = tokio::select! {
            () = stopping.cancelled() => return,
            hint = hint => Some(hint),
            _ = poll.tick() => None,
        };
        let Some(pins) = pins.upgrade() else { return };
        match hint {
            Some(Ok(position)) if position <= pins.index().position => continue,
            // There are no more hints.
            Some(Err(_)) => latest = None,
            _ => {}
        }
        // Removals are tried again at intervals, however often others append.
        let caught_up = if hint.is_some() { pins.know_latest().await } else { pins.catch_up().await };
        if let Err(error) = caught_up {
            tracing::warn!(%error, "reading the changes of other gateways failed; it will be retried");
        }
    }
}

impl Pins {
    /// Applies what other services have appended so far, if there are any.
    pub(in crate::pinning) async fn know_latest(self: &Arc<Self>) -> Result<(), PinsError> {
        let pins = Arc::clone(self);
        self.spawn_worker_change(async move { pins.read_log().await }).await
    }

    /// The same for a caller that holds the lock of changes. Also clears the notes of removals that have ended.
    pub(super) async fn read_log(&self) -> Result<(), PinsError> {
        self.commit(|_| Ok((Vec::new(), ()))).await
    }

    /// The same. Then repeats removals that failed, also those of others: some of them, after their back-off.
    pub(in crate::pinning) async fn catch_up(self: &Arc<Self>) -> Result<(), PinsError> {
        let pins = Arc::clone(self);
        let change = async move {
            pins.read_log().await?;
            pins.take_over_removals().await?;
            let due = pins.index_mut().take_due_removals();
            due.iter().for_each(|root| pins.resume_removal(root));
            pins.repeat_decisions();
            Ok(())
        };
        self.spawn_worker_change(change).await
    }

    /// Repeats decisions to remove pins that could not be written.
    fn repeat_decisions(&self) {
        let now_ms = self.index().clock.now_ms();
        let mut left_over = self.left_over();
        let due = left_over.take_due(now_ms, self.options.removal_retry_max, RETRIED_MAX);
        due.iter().for_each(|root| left_over.begin(root));
        self.follow_ups().extend(due.into_iter().map(FollowUp::RemoveUnneeded));
    }

    /// Takes over the removal of pins that other services have not completed for long.
    async fn take_over_removals(&self) -> Result<(), PinsError> {
        let after_ms = whole_millis(self.options.removals_taken_over_after);
        let abandoned = |index: &Index| {
            let known_ms = index.clock.now_ms().saturating_sub(after_ms);
            let mut roots = index.removals_elsewhere_until(known_ms);
            roots.truncate(RETRIED_MAX);
            roots
        };
        if abandoned(&self.index()).is_empty() {
            return Ok(());
        }
        let decide = |index: &Index| {
            let roots = abandoned(index);
            let count = roots.len();
            Ok((roots.into_iter().map(|root| self.note_of(root)).collect(), count))
        };
        let count = self.commit(decide).await?;
        if count > 0 {
            tracing::info!(
                count,
                "removing pins in place of other gateways, which have begun that and not completed it"
            );
        }
        Ok(())
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
        self.commit_fenced(None, decide, apply).await
    }

    /// The same. A fence is asked before each attempt to append changes, after the position was read at which they are
    /// appended ([`crate::pinning::repeatable`]). [`PinsError::TakenOver`] is its no.
    pub(in crate::pinning) async fn commit_fenced<T, R>(
        &self,
        fence: Option<&Fence>,
        decide: impl Fn(&Index) -> Result<(Vec<PinChange>, T), PinsError>,
        apply: impl FnOnce(&mut Index, &[PinChange], T) -> R,
    ) -> Result<R, PinsError> {
        let mut attempts = Attempts::new();
        loop {
            self.check_halted()?;
            let (after, unlogged, decided) = {
                let index = self.index();
                let decided = decide(&index).map(|(changes, decided)| (self.with_removals(&index, changes), decided));
                (index.position, index.unlogged_removals(), decided)
            };
            let changes = decided.as_ref().map_or(&[][..], |(changes, _)| changes.as_slice());
            if !changes.is_empty() {
                check_fence(fence).await?;
            }
            // First, because a root may be released again in the same entry.
            let mut cleared: Vec<_> = unlogged.into_iter().map(PinChange::RemoveOrphan).collect();
            let records: Vec<Change> =
                cleared.iter().chain(changes).map(PinChange::encode).collect::<Result<_, _>>()?;
            let appended = match records.is_empty() && !self.is_shared() {
                true => Ok(Some(after)),
                false => self.append(after, records).await,
            };
            let position = match appended {
                Ok(Some(position)) => position,
                Ok(None) => {
                    attempts.next().await?;
                    continue;
                }
                // The next entry clears them.
                Err(error) if changes.is_empty() && self.decides_alone(&error) => {
                    tracing::warn!(%error, "recording that pins were removed failed; it will be retried");
                    cleared.clear();
                    after
                }
                Err(error) => return Err(error.into()),
            };
            let (applied, released) = {
                let mut index = self.index_mut();
                index.position = position;
                index.apply(&cleared);
                let (changes, decided) = decided?;
                let released = changes.iter().filter_map(PinChange::released_root).collect();
                (apply(&mut index, &changes, decided), released)
            };
            self.drop_pins(released);
            return Ok(applied);
        }
    }

    /// Whether a decision without changes holds although an append failed: it does not depend on others.
    fn decides_alone(&self, error: &StoreError) -> bool {
        !self.is_shared() && !matches!(error, StoreError::OtherWriter)
    }

    /// Appends changes; `None` if others had appended first, whose changes are then applied.
    async fn append(&self, after: LogPosition, changes: Vec<Change>) -> Result<Option<LogPosition>, StoreError> {
        match self.log.append(after, changes).await? {
            Appended::At(position) => return Ok(Some(position)),
            Appended::Behind(_) | Appended::Truncated if !self.is_shared() => {
                tracing::error!("the pin metadata was changed by another writer, which is a defect");
                return Err(StoreError::OtherWriter);
            }
            Appended::Behind(entries) => {
                for LogEntry { position, changes } in entries {
                    let changes = record::decode_all(&changes).map_err(|error| self.halt(error))?;
                    self.apply_foreign(position, changes).await;
                }
            }
            Appended::Truncated => self.reload().await?,
        }
        self.changed();
        Ok(None)
    }

    /// Stops the service because of a change that this release cannot apply. It would decide on a state that lacks it.
    fn halt(&self, error: StoreError) -> StoreError {
        if self.halted.set(error.clone()).is_ok() {
            tracing::error!(%error, "the pin service stops, because it cannot apply a change of another gateway");
            self.stopping.cancel();
            self.ended.cancel();
        }
        error
    }

    fn check_halted(&self) -> Result<(), StoreError> {
        self.halted.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Reads all records, because the log no longer has all changes since those that are applied. Pins that were
    /// removed from the block store meanwhile may leave no trace in them, so that it is read as well.
    async fn reload(&self) -> Result<(), StoreError> {
        tracing::info!("the log no longer has all changes of other gateways: all records are read again");
        let found = self.read_records().await.map_err(|error| match error {
            error @ StoreError::NewerSchema { .. } => self.halt(error),
            error => error,
        })?;
        found.check_readable().map_err(|error| self.halt(error))?;
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
            // A worker knows more of what it has stored itself.
            let is_doubtful = index.root(&root).is_some_and(|root| !root.active || root.complete);
            if is_doubtful && !index.is_removing(&root) {
                let (progress, state) = pin.map(|pin| (progress(pin), pin.state)).unzip();
                index.set_progress(&root, progress.unwrap_or_default(), state == Some(PinState::Complete));
            }
            if pin.is_some() && !index.is_needed(&root) && !index.is_removing(&root) {
                self.follow_ups().push(FollowUp::RemoveUnneeded(root));
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
        let completed = self.completed_by_others(&changes).await;
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
            self.resume_removal(&root);
        }
        for change in &changes {
            if let PinChange::RemoveOrphan(root) = change {
                self.remove_left_over(root).await;
            }
        }
    }

    /// Carries out a removal that this service is to make according to the log; or withdraws it if it has not begun, and
    /// others have requested the root since, and wait. What this service has appended itself is applied.
    fn resume_removal(&self, root: &Cid) {
        let is_to_begin = {
            let mut index = self.index_mut();
            index.is_removal_decided(root) && !index.withdraw_removal(root)
        };
        if is_to_begin {
            self.drop_pins(vec![*root]);
        }
    }

    /// Removes what a service has stored of a root after another one had removed its pin, and before it learned that.
    async fn remove_left_over(&self, root: &Cid) {
        let is_idle = |index: &Index| !index.is_needed(root) && !index.is_removing(root);
        if !is_idle(&self.index()) {
            return;
        }
        match self.store.current_pin(root).await {
            Ok(None) => {}
            Ok(Some(_)) => self.follow_ups().push(FollowUp::RemoveUnneeded(*root)),
            Err(error) => {
                tracing::warn!(%root, %error, "reading a pin failed; it is removed if nothing needs it");
                self.retry_removal(*root);
            }
        }
    }

    /// The store's pins of the roots that other services have completed.
    async fn completed_by_others(&self, changes: &[PinChange]) -> Vec<PinSummary> {
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
    fn with_removals(&self, index: &Index, mut changes: Vec<PinChange>) -> Vec<PinChange> {
        let released = index.released(&changes);
        changes.extend(released.into_iter().flat_map(|root| self.removal_of(root)));
        changes
    }

    /// That the pin of a root is to be removed, by this service.
    pub(super) fn removal_of(&self, root: Cid) -> [PinChange; 2] {
        [self.note_of(root), PinChange::RemoveWork(root)]
    }

    fn note_of(&self, root: Cid) -> PinChange {
        let removed_by = self.is_shared().then(|| self.name.clone());
        PinChange::Orphan(root, Orphan { at_ms: now_ms(), removed_by })
    }

    /// The roots whose pins are to be removed as soon as the log can say so.
    pub(super) fn left_over(&self) -> MutexGuard<'_, Retries> {
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

async fn check_fence(fence: Option<&Fence>) -> Result<(), PinsError> {
    match fence {
        Some(fence) if !fence().await? => Err(PinsError::TakenOver),
        _ => Ok(()),
    }
}

/// Shows how much of a root is stored that another service has completed.
fn show_completed(index: &mut Index, pin: &PinSummary) {
    if index.is_pinned(&pin.root) && !index.is_removing(&pin.root) {
        index.set_progress(&pin.root, progress(pin), pin.state == PinState::Complete);
    }
}

/// Attempts to append, each after others have appended first.
pub(super) struct Attempts {
    count: u32,
    begun: Instant,
}

impl Attempts {
    pub(super) fn new() -> Self {
        Self { count: 1, begun: Instant::now() }
    }

    /// Another attempt, after a pause if there were many.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if there were too many.
    pub(super) async fn next(&mut self) -> Result<(), StoreError> {
        // The first one may have had to read all records.
        let is_late = self.count > 1 && self.begun.elapsed() >= ATTEMPTS_TIME_MAX;
        if self.count >= ATTEMPTS_MAX || is_late {
            tracing::warn!(attempts = self.count, "a change of pins failed, because other gateways append too often");
            return Err(StoreError::Busy);
        }
        if let Some(pause) = pause(self.count) {
            tokio::time::sleep(back_off::with_jitter(pause)).await;
        }
        self.count += 1;
        Ok(())
    }
}

/// The pause after so many attempts, before jitter.
fn pause(attempts: u32) -> Option<Duration> {
    let groups = attempts / ATTEMPTS_WITHOUT_PAUSE;
    (groups > 0 && attempts.is_multiple_of(ATTEMPTS_WITHOUT_PAUSE))
        .then(|| back_off::exponential(PAUSE_FIRST, PAUSE_MAX, groups - 1))
}
