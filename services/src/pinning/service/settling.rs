//! Outcomes and removal of requests, and removal of the pins that are then no longer needed.

use crate::pinning::index::{Outcome, StoredRequest};
use crate::pinning::record::{self, Work};
use crate::pinning::service::{FollowUp, Pins, PinsError, now_ms};
use cache::metadata_store::Change;
use content::Cid;
use std::sync::Arc;

impl Pins {
    /// Removes a request, and the store's pin with the last request for its root.
    ///
    /// # Errors
    /// [`PinsError::NotFound`] or [`PinsError::Store`].
    pub async fn remove(self: &Arc<Self>, owner: &str, id: &str) -> Result<(), PinsError> {
        let (pins, owner, id) = (Arc::clone(self), owner.to_owned(), id.to_owned());
        self.spawn_change(async move {
            let entry = pins.index().entry(&id).filter(|entry| *entry.owner == owner).cloned();
            pins.remove_now(vec![entry.ok_or(PinsError::NotFound)?]).await
        })
        .await
    }

    /// Removes a request of any owner, for the operator.
    ///
    /// # Errors
    /// As [`Pins::remove`].
    pub async fn remove_any(self: &Arc<Self>, id: &str) -> Result<(), PinsError> {
        let owner = self.index().entry(id).map(|entry| Arc::clone(&entry.owner)).ok_or(PinsError::NotFound)?;
        self.remove(&owner, id).await
    }

    /// Removes all requests of an owner for a root. Returns their number.
    ///
    /// # Errors
    /// [`PinsError::Store`].
    pub async fn remove_root(self: &Arc<Self>, owner: &str, root: &Cid) -> Result<usize, PinsError> {
        let (pins, owner, root) = (Arc::clone(self), owner.to_owned(), *root);
        self.spawn_change(async move {
            let entries: Vec<StoredRequest> = {
                let index = pins.index();
                let ids = index.requests_for(&root, |entry| *entry.owner == owner);
                ids.iter().filter_map(|id| index.entry(id).cloned()).collect()
            };
            let count = entries.len();
            pins.remove_now(entries).await?;
            Ok(count)
        })
        .await
    }

    async fn remove_now(&self, entries: Vec<StoredRequest>) -> Result<(), PinsError> {
        let released = self.index().released_by(entries.iter().map(|entry| (entry, None)));
        let changes = entries.iter().map(|entry| record::delete(&entry.id)).collect();
        self.write(changes, &released).await?;
        {
            let mut index = self.index_mut();
            entries.iter().for_each(|entry| _ = index.remove(&entry.id));
        }
        self.drop_pins(released);
        self.changed();
        Ok(())
    }

    /// Fails all requests of all owners for a root, and removes the store's pin: for content that was taken down.
    /// Returns the number of requests.
    ///
    /// # Errors
    /// [`PinsError::Store`].
    pub async fn take_down(self: &Arc<Self>, root: &Cid, reason: &str) -> Result<usize, PinsError> {
        let (pins, root, reason) = (Arc::clone(self), *root, Arc::<str>::from(reason));
        self.spawn_change(async move {
            let ids = pins.index().requests_for(&root, StoredRequest::is_live);
            let count = ids.len();
            pins.settle(ids.into_iter().map(|id| (id, Outcome::Failed(Arc::clone(&reason)))).collect()).await?;
            Ok(count)
        })
        .await
    }

    /// Sets the outcomes of requests. The caller holds the lock of changes.
    pub(in crate::pinning) async fn settle(&self, outcomes: Vec<(Arc<str>, Outcome)>) -> Result<(), PinsError> {
        let (changed, released) = {
            let index = self.index();
            let settled = |(id, outcome): &(Arc<str>, Outcome)| {
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
        let pending = self.index().requests_for(root, |entry| entry.outcome == Outcome::Pending);
        self.settle(pending.into_iter().map(|id| (id, Outcome::Pinned)).collect()).await
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
                let pending = |entry: &StoredRequest| entry.owner == owner && entry.outcome == Outcome::Pending;
                let ids = index.requests_for(root, pending);
                ids.into_iter().map(move |id| (id, Outcome::Failed(Arc::clone(&reason)))).collect::<Vec<_>>()
            };
            exceeded.into_iter().flat_map(fail).collect()
        };
        if !outcomes.is_empty() {
            self.metrics.failed("quota");
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

    /// Removes pins that are no longer needed. If a worker fetches one, it is cancelled first. After a failure, the
    /// next start removes them.
    pub(in crate::pinning) fn drop_pins(&self, roots: Vec<Cid>) {
        for root in roots {
            let worker = self.workers().get(&root).cloned();
            match worker {
                Some(worker) => worker.cancel(),
                None => self.drop_pin(&root),
            }
        }
    }

    /// Removes a pin that no worker fetches, as a follow-up.
    pub(in crate::pinning) fn drop_pin(&self, root: &Cid) {
        if self.index_mut().begin_removal(root) {
            self.follow_ups().push(FollowUp::Remove(*root));
        }
    }

    /// Runs a follow-up, without the lock of changes.
    pub(in crate::pinning) async fn follow_up(&self, follow_up: FollowUp) {
        match follow_up {
            FollowUp::Remove(root) => {
                self.remove_pin(&root).await;
                self.index_mut().end_removal(&root);
                self.changed();
            }
            FollowUp::Announce(root) => {
                self.reach.announce(&root).await;
                // It may have been unpinned meanwhile.
                if !self.index().is_needed(&root) {
                    self.reach.withdraw(&root, &*self.store).await;
                }
            }
        }
    }

    async fn remove_pin(&self, root: &Cid) {
        let removed = self.store.remove_pin(root).await;
        let noted = match removed {
            Ok(_) => self.register.write(vec![record::delete_orphan(root)]).await,
            Err(error) => Err(error),
        };
        if let Err(error) = noted {
            tracing::warn!(%root, %error, "removing a pin that is no longer needed failed; the next start tries again");
            return;
        }
        self.reach.withdraw(root, &*self.store).await;
    }
}
