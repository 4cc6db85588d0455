//! Outcomes of requests: pinned, failed, withheld; and the records of attempts.

use crate::pinning::index::{PinOutcome, StoredRequest};
use crate::pinning::metrics::OVER_QUOTA;
use crate::pinning::record::{self, Work};
use crate::pinning::service::{Pins, PinsError, now_ms};
use cache::metadata_store::Change;
use content::Cid;
use std::sync::Arc;

impl Pins {
    /// Sets the outcomes of requests. The caller holds the lock of changes.
    pub(in crate::pinning) async fn settle(&self, outcomes: Vec<(Arc<str>, PinOutcome)>) -> Result<(), PinsError> {
        let (changed, released) = {
            let index = self.index();
            let settled = |(id, outcome): &(Arc<str>, PinOutcome)| {
                let former = index.entry(id)?;
                Some((former.clone(), StoredRequest { outcome: outcome.clone(), keeps: None, ..former.clone() }))
            };
            let changed: Vec<(StoredRequest, StoredRequest)> = outcomes.iter().filter_map(settled).collect();
            let released = index.released_by(changed.iter().map(|(former, entry)| (former, Some(entry))));
            (changed, released)
        };
        if changed.is_empty() {
            return Ok(());
        }
        let changes = changed.iter().map(|(_, entry)| record::put(entry)).collect::<Result<_, _>>()?;
        self.write(changes, &released).await?;
        {
            let mut index = self.index_mut();
            outcomes.into_iter().for_each(|(id, outcome)| _ = index.settle(&id, outcome));
        }
        self.drop_pins(released);
        self.changed();
        Ok(())
    }

    /// Settles the pending requests for a complete root: as failed if the owner exceeds its quota, else as pinned.
    pub(in crate::pinning) async fn settle_complete(&self, root: &Cid) -> Result<(), PinsError> {
        self.settle_exceeding(root).await?;
        let pending = self.index().requests_for(root, |entry| entry.outcome == PinOutcome::Pending);
        self.settle(pending.into_iter().map(|id| (id, PinOutcome::Pinned)).collect()).await
    }

    /// Fails the pending requests for a root whose owners exceed their byte quota.
    pub(in crate::pinning) async fn settle_exceeding(&self, root: &Cid) -> Result<(), PinsError> {
        let outcomes: Vec<_> = {
            let index = self.index();
            // Pins that were complete were acknowledged, and do not fail.
            let lost = index.root(root).is_some_and(|root| root.work.lost);
            let exceeded = if lost { Vec::new() } else { index.exceeded(root) };
            let fail = |(owner, most): (Arc<str>, u64)| {
                let reason = format!("the DAG exceeds the rest of the token's quota of {most} bytes");
                let reason: Arc<str> = reason.into();
                let pending = |entry: &StoredRequest| entry.owner == owner && entry.outcome == PinOutcome::Pending;
                let ids = index.requests_for(root, pending);
                ids.into_iter().map(move |id| (id, PinOutcome::Failed(Arc::clone(&reason)))).collect::<Vec<_>>()
            };
            exceeded.into_iter().flat_map(fail).collect()
        };
        if !outcomes.is_empty() {
            self.metrics.failed(OVER_QUOTA);
        }
        self.settle(outcomes).await
    }

    /// Writes the work of a root.
    pub(in crate::pinning) async fn write_work(&self, root: &Cid, work: Work) -> Result<(), PinsError> {
        self.register.write(vec![record::put_work(root, &work)?]).await?;
        self.index_mut().set_work(root, work);
        Ok(())
    }

    /// Deletes the work of a settled root.
    pub(in crate::pinning) async fn delete_work(&self, root: &Cid) -> Result<(), PinsError> {
        self.index_mut().set_work(root, Work::default());
        Ok(self.register.write(vec![record::delete_work(root)]).await?)
    }

    /// Writes changes, and that the pins of the released roots are to be removed.
    pub(super) async fn write(&self, mut changes: Vec<Change>, released: &[Cid]) -> Result<(), PinsError> {
        let at_ms = now_ms();
        for root in released {
            changes.push(record::put_orphan(root, at_ms)?);
            changes.push(record::delete_work(root));
        }
        Ok(self.register.write(changes).await?)
    }
}
