//! What becomes of requests: settled, failed or removed; and the pins that nobody needs after that.

use crate::pinning::index::{Entry, Outcome};
use crate::pinning::record::{self, Work};
use crate::pinning::service::{FollowUp, Pins, PinsError, now_ms};
use cache::register::Change;
use content::Cid;
use std::sync::Arc;

impl Pins {
    /// Removes a request, and the store's pin with the last request for its root.
    ///
    /// # Errors
    /// [`PinsError::NotFound`] or [`PinsError::Store`].
    pub async fn remove(self: &Arc<Self>, owner: &str, id: &str) -> Result<(), PinsError> {
        let (pins, owner, id) = (Arc::clone(self), owner.to_owned(), id.to_owned());
        self.apart(async move {
            let entry = pins.index().entry(&id).filter(|entry| *entry.owner == owner).cloned();
            pins.remove_now(vec![entry.ok_or(PinsError::NotFound)?]).await
        })
        .await
    }

    /// Removes a request, whoever's it is: for the operator.
    ///
    /// # Errors
    /// As [`Pins::remove`].
    pub async fn remove_any(self: &Arc<Self>, id: &str) -> Result<(), PinsError> {
        let owner = self.index().entry(id).map(|entry| Arc::clone(&entry.owner)).ok_or(PinsError::NotFound)?;
        self.remove(&owner, id).await
    }

    /// Removes every request of an owner for a root. Returns how many there were.
    ///
    /// # Errors
    /// [`PinsError::Store`].
    pub async fn remove_root(self: &Arc<Self>, owner: &str, root: &Cid) -> Result<usize, PinsError> {
        let (pins, owner, root) = (Arc::clone(self), owner.to_owned(), *root);
        self.apart(async move {
            let entries: Vec<Entry> = {
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

    async fn remove_now(&self, entries: Vec<Entry>) -> Result<(), PinsError> {
        let left = self.index().left_by(entries.iter().map(|entry| (entry, None)));
        let changes = entries.iter().map(|entry| record::delete(&entry.id)).collect();
        self.write(changes, &left).await?;
        {
            let mut index = self.index_mut();
            entries.iter().for_each(|entry| _ = index.remove(&entry.id));
        }
        self.drop_pins(left);
        self.changed();
        Ok(())
    }

    /// Fails every request for a root, whoever's it is, and removes the store's pin: for content that was taken down.
    /// Returns how many requests there were.
    ///
    /// # Errors
    /// [`PinsError::Store`].
    pub async fn take_down(self: &Arc<Self>, root: &Cid, reason: &str) -> Result<usize, PinsError> {
        let (pins, root, reason) = (Arc::clone(self), *root, Arc::<str>::from(reason));
        self.apart(async move {
            let ids = pins.index().requests_for(&root, Entry::is_live);
            let count = ids.len();
            pins.settle(ids.into_iter().map(|id| (id, Outcome::Failed(Arc::clone(&reason)))).collect()).await?;
            Ok(count)
        })
        .await
    }

    /// Says what has become of requests, under the lock of changes.
    pub(in crate::pinning) async fn settle(&self, outcomes: Vec<(Arc<str>, Outcome)>) -> Result<(), PinsError> {
        let (changed, left) = {
            let index = self.index();
            let settled = |(id, outcome): &(Arc<str>, Outcome)| {
                let former = index.entry(id)?;
                Some((former.clone(), Entry { outcome: outcome.clone(), keeps: None, ..former.clone() }))
            };
            let changed: Vec<(Entry, Entry)> = outcomes.iter().filter_map(settled).collect();
            let left = index.left_by(changed.iter().map(|(former, entry)| (former, Some(entry))));
            (changed, left)
        };
        if changed.is_empty() {
            return Ok(());
        }
        let changes = changed.iter().map(|(_, entry)| record::put(entry)).collect::<Result<_, _>>()?;
        self.write(changes, &left).await?;
        {
            let mut index = self.index_mut();
            outcomes.into_iter().for_each(|(id, outcome)| _ = index.settle(&id, outcome));
        }
        self.drop_pins(left);
        self.changed();
        Ok(())
    }

    /// Settles those who wait for a root that is complete: as failed whoever has more bytes than they may.
    pub(in crate::pinning) async fn settle_complete(&self, root: &Cid) -> Result<(), PinsError> {
        self.settle_exceeding(root).await?;
        let pending = self.index().requests_for(root, |entry| entry.outcome == Outcome::Pending);
        self.settle(pending.into_iter().map(|id| (id, Outcome::Pinned)).collect()).await
    }

    /// Fails those who wait for a root and have more bytes than they may.
    pub(in crate::pinning) async fn settle_exceeding(&self, root: &Cid) -> Result<(), PinsError> {
        let outcomes: Vec<_> = {
            let index = self.index();
            // What was here in full was acknowledged.
            let lost = index.root(root).is_some_and(|root| root.work.lost);
            let exceeded = if lost { Vec::new() } else { index.exceeded(root) };
            let fail = |(owner, most): (Arc<str>, u64)| {
                let reason = format!("the token may have {most} bytes pinned, and this is more than is left of them");
                let reason: Arc<str> = reason.into();
                let pending = |entry: &Entry| entry.owner == owner && entry.outcome == Outcome::Pending;
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

    /// Notes how the work for a root goes.
    pub(in crate::pinning) async fn note_work(&self, root: &Cid, work: Work) -> Result<(), PinsError> {
        self.register.write(vec![record::put_work(root, &work)?]).await?;
        self.index_mut().note_work(root, work);
        Ok(())
    }

    /// Forgets the attempts of a root that is settled.
    pub(in crate::pinning) async fn forget_work(&self, root: &Cid) -> Result<(), PinsError> {
        self.index_mut().note_work(root, Work::default());
        Ok(self.register.write(vec![record::delete_work(root)]).await?)
    }

    /// Writes changes, with a note of every root whose pin is to go.
    pub(super) async fn write(&self, mut changes: Vec<Change>, left: &[Cid]) -> Result<(), PinsError> {
        let at_ms = now_ms();
        for root in left {
            changes.push(record::put_orphan(root, at_ms)?);
            changes.push(record::delete_work(root));
        }
        Ok(self.register.write(changes).await?)
    }

    /// Removes pins that nothing needs any more. Where a worker is at one, that ends first. What fails is done at the
    /// next start.
    pub(in crate::pinning) fn drop_pins(&self, roots: Vec<Cid>) {
        for root in roots {
            let worker = self.workers().get(&root).cloned();
            match worker {
                Some(worker) => worker.cancel(),
                None => self.drop_pin(&root),
            }
        }
    }

    /// Has one removed at which no worker is, once the next change may begin.
    pub(in crate::pinning) fn drop_pin(&self, root: &Cid) {
        if self.index_mut().begin_removal(root) {
            self.follow_ups().push(FollowUp::Remove(*root));
        }
    }

    /// Does what a change left, outside of the lock of changes.
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
            tracing::warn!(%root, %error, "a pin that nobody wants could not be removed; the next start tries again");
            return;
        }
        self.reach.withdraw(root, &*self.store).await;
    }
}
