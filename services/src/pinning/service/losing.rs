//! Pins that lose blocks: what was pinned is pending again until it is whole, and what is withheld is told apart.
//!
//! The store notes a loss, whatever finds it, and this service hears of it ([`cache::pins::PinChanges`]). From then on its
//! requests say so, and a worker goes for what is missing. A pin that was here in full is never given up, since that would let
//! go of the rest.

use crate::pinning::index::{Entry, Index, Outcome};
use crate::pinning::record::{self, Work};
use crate::pinning::service::{Pins, PinsError, progress};
use cache::pins::PinChanges;
use cache::{PinState, PinSummary};
use content::Cid;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long after a missing block came by another way the rest is looked for: many may come at once.
const AFTER_RETURN: Duration = Duration::from_secs(1);

/// Looks at every pin that changes until the service stops.
pub(super) async fn watch(pins: Weak<Pins>, stopping: CancellationToken, changes: Arc<PinChanges>) {
    loop {
        let roots = tokio::select! {
            () = stopping.cancelled() => return,
            roots = changes.next() => roots,
        };
        for root in roots {
            let Some(pins) = pins.upgrade() else { return };
            let turn = Arc::clone(&pins);
            if let Err(error) = pins.apart(async move { turn.look_at(&root).await }).await {
                tracing::warn!(%root, %error, "that a pin lacks blocks could not be written; the next start tells");
            }
        }
    }
}

impl Pins {
    /// Has every pin looked at that lacks blocks which were withheld: the rules have changed.
    pub fn rules_changed(&self) {
        let roots: Vec<Cid> = {
            let index = self.index();
            if index.counts().withheld == 0 {
                return;
            }
            index.all().filter(|entry| matches!(entry.outcome, Outcome::Withheld(_))).map(|entry| entry.root).collect()
        };
        let changes = self.store.pin_changes();
        roots.into_iter().for_each(|root| changes.note(root));
    }

    /// Compares what is said of a root with what the store has, under the lock of changes.
    pub(super) async fn look_at(&self, root: &Cid) -> Result<(), PinsError> {
        {
            let index = self.index();
            if index.root(root).is_none() || index.is_removing(root) {
                return Ok(());
            }
        }
        match self.store.pin(root).await? {
            Some(pin) if pin.state == PinState::Partial => self.lose(root, &pin).await,
            Some(pin) => self.gain(root, &pin).await,
            None => Ok(()),
        }
    }

    /// What a worker waited for was made complete by somebody else, such as an import.
    async fn gain(&self, root: &Cid, pin: &PinSummary) -> Result<(), PinsError> {
        if self.index().root(root).is_none_or(|root| root.complete || root.active) {
            return Ok(());
        }
        self.index_mut().note_progress(root, progress(pin), true);
        self.settle_complete(root).await?;
        self.forget_work(root).await
    }

    /// What was said to be pinned waits for what is missing.
    async fn lose(&self, root: &Cid, pin: &PinSummary) -> Result<(), PinsError> {
        let said = {
            let index = self.index();
            let ids = index.requests_for(root, |entry| matches!(entry.outcome, Outcome::Pinned | Outcome::Withheld(_)));
            ids.iter().filter_map(|id| index.entry(id).cloned()).collect::<Vec<Entry>>()
        };
        if said.is_empty() {
            self.hasten(root);
            return Ok(());
        }
        let work = begun_anew(&self.index());
        let mut changes = vec![record::put_work(root, &work)?];
        for entry in &said {
            changes.push(record::put(&Entry { outcome: Outcome::Pending, ..entry.clone() })?);
        }
        self.register.write(changes).await?;
        {
            let mut index = self.index_mut();
            index.note_progress(root, progress(pin), false);
            said.iter().for_each(|entry| _ = index.settle(&entry.id, Outcome::Pending));
            index.note_work(root, work);
        }
        if said.iter().any(|entry| entry.outcome == Outcome::Pinned) {
            self.metrics.lost();
            tracing::warn!(%root, "a pin lacks blocks that it had: they are fetched again");
        }
        self.changed();
        Ok(())
    }

    /// Something of a pin that waits for the rest may have come.
    fn hasten(&self, root: &Cid) {
        let mut index = self.index_mut();
        let due_ms = index.clock.now_ms() + u64::try_from(AFTER_RETURN.as_millis()).unwrap_or_default();
        if index.root(root).is_some_and(|root| root.work.lost && !root.active) {
            index.hasten(root, due_ms);
            drop(index);
            self.wake.notify_one();
        }
    }

    /// A pin lost a block between its last one and now: its worker goes for it once more.
    pub(in crate::pinning) async fn begin_anew(&self, root: &Cid) -> Result<(), PinsError> {
        let work = begun_anew(&self.index());
        self.note_work(root, work).await
    }

    /// Nothing more can come of a pin until the rules change: what it lacks is withheld.
    pub(in crate::pinning) async fn withhold(&self, root: &Cid, reason: String) -> Result<(), PinsError> {
        let reason: Arc<str> = reason.into();
        let pending = self.index().requests_for(root, Entry::is_pending);
        self.settle(pending.into_iter().map(|id| (id, Outcome::Withheld(Arc::clone(&reason)))).collect()).await?;
        self.forget_work(root).await
    }
}

fn begun_anew(index: &Index) -> Work {
    let now_ms = index.clock.now_ms();
    Work { since_ms: now_ms, due_ms: now_ms, lost: true, ..Work::default() }
}
