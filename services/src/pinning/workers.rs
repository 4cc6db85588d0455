//! The workers: a limited number of DAGs is fetched concurrently, and failures are retried.
//!
//! One task takes roots from the queue and spawns a task for each attempt, which begins when it has claimed the root
//! ([`Claims`](crate::pinning::coordination::Claims)). Queued roots take no tasks. Owners take
//! turns (fair queueing); while others are queued, one owner gets at most three quarters of the workers, so that huge
//! DAGs of one owner do not block small ones of another.

use crate::pinning::clock::whole_millis;
use crate::pinning::coordination::{self, Claim, Claimed};
use crate::pinning::fetch::{FailureKind, Fetch, FetchError, Step};
use crate::pinning::index::PinOutcome;
use crate::pinning::record::Work;
use crate::pinning::request::ORIGINS_MAX;
use crate::pinning::service::{FollowUp, PinOptions, Pins, PinsError, progress};
use crate::pinning::walk::BlockSources;
use cache::{PinState, PinSummary};
use content::Cid;
use futures::FutureExt as _;
use p2p_bridge::back_off;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long after a pin was removed during its attempt it is started again, if it is still requested.
const AFTER_REMOVAL: Duration = Duration::from_secs(1);

/// The first back-off after a failure of the store, or after it has lost blocks during the attempt. It doubles up to
/// the first one of other failures: such an attempt says nothing about whether peers have the DAG.
const AFTER_STORE_FAILURE: Duration = Duration::from_secs(1);

/// The result of an attempt; `None` if it was cancelled.
pub(super) type Attempted = Option<Result<PinSummary, FetchError>>;

impl Pins {
    /// Dispatches roots until the service stops, and returns when the last worker has ended.
    pub(super) async fn dispatch(self: Arc<Self>) {
        let mut working = JoinSet::new();
        let most = self.options.workers_max.max(1);
        while !self.stopping.is_cancelled() {
            while working.len() < most
                && let Some((root, worker)) = self.take_next(most)
            {
                working.spawn(Arc::clone(&self).work(root, worker));
            }
            let due = if working.len() < most { self.until_due(most) } else { None };
            tokio::select! {
                () = self.stopping.cancelled() => {}
                () = self.wake.notified() => {}
                _ = working.join_next(), if !working.is_empty() => {}
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {}
            }
        }
        while working.join_next().await.is_some() {}
    }

    /// The next due root, and the token that cancels its worker. Both are set under one lock.
    pub(super) fn take_next(&self, most: usize) -> Option<(Cid, CancellationToken)> {
        let mut workers = self.workers();
        let mut index = self.index_mut();
        let share = most - most / 4;
        let now_ms = index.clock.now_ms();
        let root = index.take_next(now_ms, share).or_else(|| index.take_next(now_ms, most))?;
        self.metrics.show(&index.counts());
        let worker = self.stopping.child_token();
        workers.insert(root, worker.clone());
        Some((root, worker))
    }

    fn until_due(&self, most: usize) -> Option<Duration> {
        let index = self.index();
        let due_ms = index.next_due_ms(most)?;
        Some(Duration::from_millis(due_ms.saturating_sub(index.clock.now_ms())))
    }

    async fn work(self: Arc<Self>, root: Cid, worker: CancellationToken) {
        let (arrived, claim) = (AtomicBool::new(false), Mutex::new(None));
        let attempted = tokio::select! {
            // A panic fails one attempt and not the service.
            attempted = AssertUnwindSafe(self.claim_and_attempt(&root, &claim, &arrived)).catch_unwind() => {
                attempted.unwrap_or(Some(Err(FetchError::Internal)))
            }
            () = worker.cancelled() => None,
        };
        if let Some(Err(_)) = &attempted {
            self.measure(&root).await;
        }
        let claim = claim.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (pins, arrived, held) = (Arc::clone(&self), arrived.into_inner(), claim.clone());
        let ended = self.spawn_worker_change(async move {
            let is_valid = held.is_none_or(|claim: Claim| claim.is_valid(Instant::now()));
            pins.end(&root, attempted.filter(|_| is_valid), arrived).await
        });
        if let Err(error) = ended.await {
            tracing::warn!(%root, %error, "recording the result of a pin failed");
        }
        if let Some(claim) = claim {
            coordination::release(&*self.claims, claim).await;
        }
    }

    /// One attempt, while the root is claimed: if another service has claimed it, it is a candidate again later.
    async fn claim_and_attempt(
        self: &Arc<Self>,
        root: &Cid,
        held: &Mutex<Option<Claim>>,
        arrived: &AtomicBool,
    ) -> Attempted {
        let hold = |claim: &Claim| *held.lock().unwrap_or_else(PoisonError::into_inner) = Some(claim.clone());
        let claim = match self.claims.claim(root).await {
            Ok(Claimed::Granted(claim)) => claim,
            Ok(Claimed::Held { retry_after }) => {
                self.index_mut().leave_to_other(root, retry_after);
                return None;
            }
            Err(error) => {
                tracing::warn!(%root, %error, "claiming the work on a pin failed; it will be retried");
                self.index_mut().postpone(root, self.options.retry_first);
                return None;
            }
        };
        hold(&claim);
        tokio::select! {
            attempted = self.attempt(root, arrived) => Some(attempted),
            () = coordination::keep(&*self.claims, claim, hold) => {
                tracing::info!(%root, "another service has taken over the work on a pin");
                None
            }
        }
    }

    /// One attempt to fetch a DAG completely.
    async fn attempt(self: &Arc<Self>, root: &Cid, arrived: &AtomicBool) -> Result<PinSummary, FetchError> {
        let origins = self.index().origins(root, ORIGINS_MAX);
        self.reach.dial(root, origins).await;
        self.measure(root).await;
        let sources = BlockSources {
            store: Arc::clone(&self.store),
            local: Arc::clone(&self.reach.local),
            upstream: (self.reach.session)(root),
            policy: Arc::clone(&self.reach.policy),
            passes_withheld: self.index().root(root).is_some_and(|root| root.work.lost),
        };
        let mut fetch = Fetch::begin(sources, *root).await?;
        while let Some(step) = fetch.step().await? {
            self.add_step(root, step, arrived).await;
        }
        fetch.finish().await
    }

    async fn add_step(self: &Arc<Self>, root: &Cid, step: Step, arrived: &AtomicBool) {
        if let Some(bytes) = step.fetched_bytes {
            arrived.store(true, Ordering::Relaxed);
            self.metrics.fetched_blocks.inc();
            self.metrics.fetched_bytes.inc_by(bytes);
        }
        if !self.index_mut().raise_progress(root, step.progress, step.fetched_bytes) {
            return;
        }
        // If no request is left, this cancels the worker.
        let (pins, root) = (Arc::clone(self), *root);
        let settled = self.spawn_worker_change(async move { pins.settle_exceeding(&root).await }).await;
        if let Err(error) = settled {
            tracing::warn!(%root, %error, "recording that a pin exceeds its quota failed");
        }
    }

    /// Handles the result of an attempt, as one change.
    pub(super) async fn end(&self, root: &Cid, attempted: Attempted, arrived: bool) -> Result<(), PinsError> {
        self.workers().remove(root);
        let handled = match attempted {
            Some(Ok(summary)) => self.end_well(root, &summary).await,
            Some(Err(error)) if !self.stopping.is_cancelled() => self.end_badly(root, &error, arrived).await,
            _ => Ok(()),
        };
        // By now its next attempt is scheduled, if there is one.
        self.index_mut().end_work(root);
        if !self.index().is_needed(root) {
            self.drop_unneeded(root);
        }
        self.changed();
        handled
    }

    async fn end_well(&self, root: &Cid, summary: &PinSummary) -> Result<(), PinsError> {
        // The pin may have lost a block since. The store records that before it notifies this service.
        match self.store.pin(root).await? {
            Some(pin) if pin.state == PinState::Partial => return self.restart_work(root).await,
            Some(_) => {}
            // It was removed.
            None => {
                self.index_mut().postpone(root, AFTER_REMOVAL);
                return Ok(());
            }
        }
        self.index_mut().set_progress(root, progress(summary), true);
        self.settle_complete(root).await?;
        self.delete_work(root).await?;
        let is_pinned = {
            let index = self.index();
            index.is_needed(root) && !index.is_pending(root)
        };
        if is_pinned {
            tracing::info!(%root, blocks = summary.blocks, bytes = summary.bytes, "pinned");
            self.follow_ups().push(FollowUp::Announce(*root));
        }
        Ok(())
    }

    async fn end_badly(&self, root: &Cid, error: &FetchError, arrived: bool) -> Result<(), PinsError> {
        let (kind, reason) = error.kind();
        let former = self.index().root(root).map(|root| root.work.clone()).unwrap_or_default();
        let now = self.index().clock.now_ms();
        match kind {
            FailureKind::Removed => {
                let due_ms = now + whole_millis(AFTER_REMOVAL);
                self.index_mut().set_work(root, Work { due_ms, ..former });
                return Ok(());
            }
            FailureKind::Withheld => {
                tracing::info!(%root, %error, "a pin has missing blocks that are withheld");
                return self.withhold(root, error.to_string()).await;
            }
            // A pin that was complete never fails: the rest of it would be evicted.
            FailureKind::Permanent if !former.lost => {
                self.metrics.failed(reason);
                tracing::info!(%root, %error, "a pin failed");
                return self.give_up(root, error.to_string()).await;
            }
            FailureKind::Permanent | FailureKind::Temporary | FailureKind::Store => self.metrics.failed(reason),
        }
        let work = next_work(&former, error, arrived, now, &self.options);
        if !work.lost && now.saturating_sub(work.since_ms) >= whole_millis(self.options.give_up) {
            tracing::info!(%root, %error, attempts = work.attempts, "a pin failed after all retries");
            let hours = self.options.give_up.as_secs() / 3600;
            return self.give_up(root, format!("given up after {hours} hours without a new block: {error}")).await;
        }
        tracing::debug!(%root, %error, attempts = work.attempts, "fetching a pin failed; it will be retried");
        self.write_work(root, work).await
    }

    /// Removes the pin of a root that lost its last request during an attempt.
    fn drop_unneeded(&self, root: &Cid) {
        match self.is_shared() {
            // The log has to say so first, unless another service removes it. It may no longer say so if the answer to
            // an append was lost.
            true => self.follow_ups().push(FollowUp::RemoveUnneeded(*root)),
            false => self.drop_pin(root),
        }
    }

    async fn give_up(&self, root: &Cid, reason: String) -> Result<(), PinsError> {
        self.settle_pending(root, &PinOutcome::Failed(reason.into())).await?;
        self.delete_work(root).await
    }
}

/// The work after a failed attempt. Received blocks reset the back-off.
fn next_work(former: &Work, error: &FetchError, arrived: bool, now_ms: u64, options: &PinOptions) -> Work {
    let attempts = if arrived { 1 } else { former.attempts.saturating_add(1) };
    let since_ms = if arrived || former.since_ms == 0 { now_ms } else { former.since_ms };
    let (first, max) = match error.kind() {
        (FailureKind::Store, _) => (AFTER_STORE_FAILURE.min(options.retry_first), options.retry_first),
        _ => (options.retry_first, options.retry_max),
    };
    let back_off = back_off::exponential(first, max, attempts.saturating_sub(1));
    Work {
        attempts,
        since_ms,
        due_ms: now_ms.saturating_add(whole_millis(back_off::with_jitter(back_off))),
        reason: Some(error.to_string()),
        waited_ms: now_ms.saturating_sub(since_ms),
        lost: former.lost,
    }
}

/// The longest back-off, with jitter.
pub(super) fn wait_max(options: &PinOptions) -> Duration {
    back_off::with_jitter_max(options.retry_max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cache::{PinError, StoreError};
    use content::dag::DagError;

    #[test]
    fn received_blocks_reset_the_back_off() {
        let options = PinOptions::default();
        let error = FetchError::Dag(DagError::TooManyBlocks { max: 7 });
        let former = Work { attempts: 5, since_ms: 1000, due_ms: 2000, ..Work::default() };
        let work = next_work(&former, &error, false, 9000, &options);
        assert_eq!((work.attempts, work.since_ms, work.waited_ms), (6, 1000, 8000));
        assert_eq!(work.reason.as_deref(), Some("the DAG has more than 7 blocks"));
        let work = next_work(&former, &error, true, 9000, &options);
        assert_eq!((work.attempts, work.since_ms), (1, 9000));
        let first = next_work(&Work::default(), &error, false, 9000, &options);
        assert_eq!((first.attempts, first.since_ms), (1, 9000));
    }

    #[test]
    fn a_failure_of_the_store_is_retried_soon() {
        let (options, root) = (PinOptions::default(), Cid::default());
        let errors = [PinError::Lost { root }.into(), PinError::missing(root).into(), StoreError::Closed.into()];
        for error in errors {
            let (mut work, mut now_ms, mut waits) = (Work::default(), 1_000, Vec::new());
            for _ in 0..8 {
                work = next_work(&work, &error, false, now_ms, &options);
                waits.push(work.due_ms - now_ms);
                now_ms = work.due_ms;
            }
            assert!(waits[0] <= 1_250 && waits[1] >= 1_500 && waits[2] >= 3_000, "{waits:?}: {error}");
            assert!(waits[7] <= 37_500, "{waits:?}: {error}");
        }
        let error = FetchError::Dag(DagError::Source(content::SourceError::NotFound { cid: root }));
        let work = next_work(&Work::default(), &error, false, 0, &options);
        assert!(work.due_ms >= 22_500, "{work:?}");
    }
}
