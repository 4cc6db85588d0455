//! Unpinning: who may remove which request, and the removal of pins that are then no longer needed.
//!
//! An owner removes its own requests, the operator those of all owners. That a client has the scope for it, `admin` has
//! checked.

use crate::pinning::index::{PinOutcome, StoredRequest};
use crate::pinning::record;
use crate::pinning::service::{FollowUp, Pins, PinsError};
use cache::StoreError;
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

    /// Removes a request of any owner. The caller checks that the token has the scope `operate`.
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
            pins.settle(ids.into_iter().map(|id| (id, PinOutcome::Failed(Arc::clone(&reason)))).collect()).await?;
            Ok(count)
        })
        .await
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
            FollowUp::Remove(root) => match self.remove_pin(&root).await {
                Ok(zstd_file) => {
                    self.withdraw_unneeded(&root).await;
                    if let Some(zstd_file) = zstd_file {
                        self.withdraw_unneeded(&zstd_file).await;
                    }
                }
                Err(error) => tracing::warn!(
                    %root, %error, "removing a pin that is no longer needed failed; the next start tries again"
                ),
            },
            FollowUp::Announce(root) => {
                self.reach.announce(&root).await;
                if let Some(zstd_file) = self.store.zstd_file(&root) {
                    self.reach.announce(&zstd_file).await;
                }
                // It may have been unpinned meanwhile.
                self.withdraw_unneeded(&root).await;
            }
        }
    }

    /// Removes the store's pin of a root, and returns the zstd file if it was that of a packed file.
    async fn remove_pin(&self, root: &Cid) -> Result<Option<Cid>, StoreError> {
        let mut removal = Removal { pins: self, root: Some(root) };
        let zstd_file = self.store.zstd_file(root);
        self.store.remove_pin(root).await?;
        self.register.write(vec![record::delete_orphan(root)]).await?;
        if removal.end() {
            // A further removal, decided meanwhile, has written that row again.
            self.register.write(vec![record::delete_orphan(root)]).await?;
        }
        Ok(zstd_file)
    }

    /// Withdraws the announcement of a root, unless it has been pinned again.
    async fn withdraw_unneeded(&self, root: &Cid) {
        if self.index().is_needed(root) {
            return;
        }
        self.reach.withdraw(root, &*self.store).await;
        if self.index().root(root).is_some_and(|root| root.complete) {
            self.reach.announce(root).await;
        }
    }
}

/// A removal of the store's pin of a root. However it ends, the root is available again.
struct Removal<'a> {
    pins: &'a Pins,
    root: Option<&'a Cid>,
}

impl Removal<'_> {
    /// Ends the removal; returns whether it was requested once more meanwhile.
    fn end(&mut self) -> bool {
        let Some(root) = self.root.take() else { return false };
        let again = self.pins.index_mut().end_removal(root);
        self.pins.changed();
        again
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
