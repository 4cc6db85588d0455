//! [`Upkeep`]: what any gateway does for all: it releases members of removed pins, evicts cached blocks, deletes what
//! gateways have left behind, compares a part of the storage with the index, and learns of losses that others found.
//!
//! Goals: each of these may be done by several gateways at the same time, may fail, and may stop at any moment
//! ([`SharedBlocks`]), so that no gateway is needed for it.
//!
//! Non-goals: dividing this work, which costs little when there is nothing to do.

use super::source::UsedBlocks;
use crate::blocks::SharedBlocks;
use crate::engine_state::EngineState;
use cache::StoreError;
use cache::pins::PinChanges;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Objects that were left behind are looked for in each of so many rounds.
const SWEEP_ROUNDS: u32 = 12;
/// A slot of the storage is compared with the index in each of so many rounds: with an interval of five seconds, as many
/// as there are slots in four days.
const RECONCILE_ROUNDS: u32 = 256;
/// Objects of a slot that the index does not know are deleted up to this number. More are not a gateway's leavings.
const ORPHANS_MAX: u64 = 256;
/// Losses are looked for in the time of so many rounds before, so that none is missed. Each is reported several times.
const LOSS_ROUNDS: u32 = 6;
/// Batches of one kind of work in a round, so that the others have their turn.
const STEPS_MAX: usize = 64;

/// What the work in the background needs.
pub(super) struct Upkeep {
    pub(super) shared: SharedBlocks,
    pub(super) used: UsedBlocks,
    pub(super) changes: Arc<PinChanges>,
    pub(super) removed: Arc<Notify>,
    /// The state of the storage, as upkeep finds out.
    pub(super) storage: EngineState,
    pub(super) cached_bytes_max: u64,
    pub(super) interval: Duration,
}

impl Upkeep {
    /// Works until it is aborted.
    pub(super) async fn run(self) {
        let mut rounds = interval(self.interval);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut round = 0_u32;
        let (mut learnt, mut failures) = (Instant::now(), Failures::default());
        loop {
            tokio::select! {
                _ = rounds.tick() => round = round.wrapping_add(1),
                // Members that are left are released without waiting for the next round.
                () = self.removed.notified() => {}
            }
            // First, because the rest waits for the storage if it does not answer.
            let mut is_done = failures.log(self.storage.observe(self.shared.check_storage()).await);
            // Also those of the time in which the database could not be reached.
            let since = learnt.elapsed() + self.interval * LOSS_ROUNDS;
            let has_learnt = failures.log(self.learn_losses(since).await);
            if has_learnt {
                learnt = Instant::now();
            }
            is_done &= has_learnt;
            is_done &= failures.log(self.release().await);
            is_done &= failures.log(self.record_use().await);
            is_done &= failures.log(self.evict().await);
            if round.is_multiple_of(SWEEP_ROUNDS) {
                is_done &= failures.log(self.sweep().await);
            }
            if round.is_multiple_of(RECONCILE_ROUNDS) {
                is_done &= failures.log(self.reconcile().await);
            }
            if is_done {
                failures.end();
            }
        }
    }

    async fn learn_losses(&self, within: Duration) -> Result<(), StoreError> {
        for root in self.shared.pins_with_losses(within).await? {
            self.changes.note(root);
        }
        Ok(())
    }

    async fn release(&self) -> Result<(), StoreError> {
        for _ in 0..STEPS_MAX {
            if !self.shared.release_members().await? {
                return Ok(());
            }
        }
        self.removed.notify_one();
        Ok(())
    }

    async fn record_use(&self) -> Result<(), StoreError> {
        let used = self.used.take();
        if used.is_empty() {
            return Ok(());
        }
        self.shared.mark_used(used.into_iter().collect()).await
    }

    async fn evict(&self) -> Result<(), StoreError> {
        let evicted = self.shared.evict(self.cached_bytes_max, STEPS_MAX).await?;
        if evicted.blocks > 0 {
            tracing::debug!(blocks = evicted.blocks, bytes = evicted.bytes, "blocks of the site were evicted");
        }
        Ok(())
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        for _ in 0..STEPS_MAX {
            if self.shared.sweep().await? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// One slot at random, because other gateways do the same.
    async fn reconcile(&self) -> Result<(), StoreError> {
        let [slot, ..] = getrandom::u32().unwrap_or_default().to_le_bytes();
        let found = self.shared.reconcile(slot, ORPHANS_MAX).await?;
        if found.lost > 0 || found.orphans > 0 {
            tracing::warn!(slot, ?found, "the site's storage and its index differed");
        }
        Ok(())
    }
}

/// Logs the first failure of many, and that the work succeeds again.
#[derive(Default)]
struct Failures {
    since: Option<Instant>,
}

impl Failures {
    /// Whether it was done. Otherwise the next round does it.
    fn log(&mut self, done: Result<(), StoreError>) -> bool {
        match (&done, self.since) {
            (Err(error), None) => {
                tracing::warn!(%error, "the upkeep of the site's storage has failed, and is repeated");
                self.since = Some(Instant::now());
            }
            (Err(error), Some(_)) => tracing::debug!(%error, "the upkeep of the site's storage has failed again"),
            _ => {}
        }
        done.is_ok()
    }

    /// A round has ended, and all of it was done.
    fn end(&mut self) {
        if let Some(since) = self.since.take() {
            let seconds = since.elapsed().as_secs();
            tracing::info!(seconds, "the upkeep of the site's storage works again");
        }
    }
}
