//! Outcomes of requests: pinned, failed, withheld; and the records of attempts.

use crate::pinning::index::{Index, PinOutcome, StoredRequest};
use crate::pinning::metrics::OVER_QUOTA;
use crate::pinning::record::{PinChange, Work};
use crate::pinning::service::{Pins, PinsError};
use content::Cid;
use std::sync::Arc;

impl Pins {
    /// Settles the requests for a root to which `outcome` gives one. Returns their number. The caller holds the lock of
    /// changes.
    pub(in crate::pinning) async fn settle(
        &self,
        root: &Cid,
        outcome: impl Fn(&Index, &StoredRequest) -> Option<PinOutcome>,
    ) -> Result<usize, PinsError> {
        let settled = |index: &Index, id: Arc<str>| {
            let former = index.entry(&id)?;
            let outcome = outcome(index, former)?;
            Some(PinChange::Request(StoredRequest { outcome, keeps: None, ..former.clone() }))
        };
        let decide = |index: &Index| {
            let ids = index.requests_for(root, |_| true);
            let changes: Vec<_> = ids.into_iter().filter_map(|id| settled(index, id)).collect();
            let count = changes.len();
            Ok((changes, count))
        };
        let count = self.commit(decide).await?;
        if count > 0 {
            self.changed();
        }
        Ok(count)
    }

    /// Settles the pending requests for a root.
    pub(in crate::pinning) async fn settle_pending(&self, root: &Cid, outcome: &PinOutcome) -> Result<(), PinsError> {
        self.settle(root, |_, entry| entry.is_pending().then(|| outcome.clone())).await.map(|_| ())
    }

    /// Settles the pending requests for a complete root: as failed if the owner exceeds its quota, else as pinned. If
    /// another service has removed its pin or is about to, they stay pending.
    pub(in crate::pinning) async fn settle_complete(&self, root: &Cid) -> Result<(), PinsError> {
        self.settle_exceeding(root).await?;
        let outcome = |index: &Index, entry: &StoredRequest| {
            let is_complete = index.root(root).is_some_and(|root| root.complete) && !index.is_removing(root);
            (entry.is_pending() && is_complete).then_some(PinOutcome::Pinned)
        };
        self.settle(root, outcome).await.map(|_| ())
    }

    /// Fails the pending requests for a root whose owners exceed their byte quota.
    pub(in crate::pinning) async fn settle_exceeding(&self, root: &Cid) -> Result<(), PinsError> {
        let outcome = |index: &Index, entry: &StoredRequest| {
            // Pins that were complete were acknowledged, and do not fail.
            let is_lost = index.root(root).is_some_and(|root| root.work.lost);
            let most = index.exceeds(&entry.owner).filter(|_| entry.is_pending() && !is_lost)?;
            let reason = format!("the DAG exceeds the rest of the token's quota of {most} bytes");
            Some(PinOutcome::Failed(reason.into()))
        };
        if self.settle(root, outcome).await? > 0 {
            self.metrics.failed(OVER_QUOTA);
        }
        Ok(())
    }

    /// Writes the work of a root, unless its last request was removed meanwhile.
    pub(in crate::pinning) async fn write_work(&self, root: &Cid, work: Work) -> Result<(), PinsError> {
        let decide = |index: &Index| {
            let change = index.is_needed(root).then(|| PinChange::Work(*root, work.clone()));
            Ok((change.into_iter().collect(), ()))
        };
        self.commit(decide).await
    }

    /// Deletes the work of a settled root.
    pub(in crate::pinning) async fn delete_work(&self, root: &Cid) -> Result<(), PinsError> {
        self.commit(|_| Ok((vec![PinChange::RemoveWork(*root)], ()))).await
    }
}
