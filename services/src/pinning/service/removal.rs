//! Unpinning: who may remove which request, and the removal of pins that are then no longer needed.
//!
//! An owner removes its own requests, the operator those of all owners. That a client has the scope for it, `admin` has
//! checked.

use crate::pinning::index::{Index, PinOutcome, RETRIED_MAX, RemovalEnd, StoredRequest};
use crate::pinning::record::PinChange;
use crate::pinning::service::{FollowUp, Pins, PinsError};
use cache::StoreError;
use content::Cid;
use futures::future::{BoxFuture, FutureExt as _};
use std::sync::Arc;

impl Pins {
    /// Removes a request, and the store's pin with the last request for its root.
    ///
    /// # Errors
    /// [`PinsError::NotFound`] or [`PinsError::Store`].
    pub async fn remove(self: &Arc<Self>, owner: &str, id: &str) -> Result<(), PinsError> {
        self.remove_of(Some(owner), id).await
    }

    /// Removes a request of any owner. The caller checks that the token has the scope `operate`.
    ///
    /// # Errors
    /// As [`Pins::remove`].
    pub async fn remove_any(self: &Arc<Self>, id: &str) -> Result<(), PinsError> {
        self.remove_of(None, id).await
    }

    async fn remove_of(self: &Arc<Self>, owner: Option<&str>, id: &str) -> Result<(), PinsError> {
        let (pins, owner, id) = (Arc::clone(self), owner.map(str::to_owned), id.to_owned());
        self.spawn_change(async move {
            let is_owned = |entry: &&StoredRequest| owner.as_deref().is_none_or(|owner| *entry.owner == *owner);
            let decide = |index: &Index| match index.entry(&id).filter(is_owned) {
                Some(entry) => Ok((vec![PinChange::RemoveRequest(Arc::clone(&entry.id))], ())),
                None => Err(PinsError::NotFound),
            };
            pins.commit(decide).await?;
            pins.changed();
            Ok(())
        })
        .await
    }

    /// Removes all requests of an owner for a root. Returns their number.
    ///
    /// # Errors
    /// [`PinsError::Store`].
    pub async fn remove_root(self: &Arc<Self>, owner: &str, root: &Cid) -> Result<usize, PinsError> {
        let (pins, owner, root) = (Arc::clone(self), owner.to_owned(), *root);
        self.spawn_change(async move {
            let decide = |index: &Index| {
                let ids = index.requests_for(&root, |entry| *entry.owner == owner);
                let count = ids.len();
                Ok((ids.into_iter().map(PinChange::RemoveRequest).collect(), count))
            };
            let count = pins.commit(decide).await?;
            pins.changed();
            Ok(count)
        })
        .await
    }

    /// Fails all requests of all owners for a root, and removes the store's pin: for content that was taken down.
    /// Returns the number of requests.
    ///
    /// # Errors
    /// [`PinsError::Store`].
    pub async fn take_down(self: &Arc<Self>, root: &Cid, reason: &str) -> Result<usize, PinsError> {
        let (pins, root, reason) = (Arc::clone(self), *root, Arc::<str>::from(reason));
        self.spawn_change(async move {
            pins.settle(&root, |_, entry| entry.is_live().then(|| PinOutcome::Failed(Arc::clone(&reason)))).await
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
        let begun = self.index_mut().begin_removal(root);
        if let Some(number) = begun {
            self.follow_ups().push(FollowUp::Remove(*root, number));
        }
    }

    /// Runs a follow-up, without the lock of changes. A boxed future, because a follow-up may be a change with further
    /// ones.
    pub(in crate::pinning) fn follow_up(self: &Arc<Self>, follow_up: FollowUp) -> BoxFuture<'_, ()> {
        self.run_follow_up(follow_up).boxed()
    }

    async fn run_follow_up(self: &Arc<Self>, follow_up: FollowUp) {
        match follow_up {
            FollowUp::Remove(root, number) => match self.remove_pin(&root, number).await {
                Ok(zstd_file) => {
                    self.withdraw_unneeded(&root).await;
                    if let Some(zstd_file) = zstd_file {
                        self.withdraw_unneeded(&zstd_file).await;
                    }
                }
                Err(error) => {
                    let retried = if self.is_shared() { "soon" } else { "at the next start" };
                    tracing::warn!(%root, %error, retried, "removing a pin that is no longer needed failed");
                }
            },
            FollowUp::Announce(root) => {
                self.reach.announce(&root).await;
                if let Some(zstd_file) = self.store.zstd_file(&root) {
                    self.reach.announce(&zstd_file).await;
                }
                // It may have been unpinned meanwhile.
                self.withdraw_unneeded(&root).await;
            }
            FollowUp::RemoveUnneeded(root) => {
                if let Err(error) = self.remove_unneeded(root).await {
                    let retried = self.is_shared();
                    tracing::warn!(%root, %error, retried, "removing a pin that is no longer needed failed");
                }
            }
        }
    }

    /// Has the decision on a removal repeated by the task that follows other services, if there are any: after its
    /// back-off, if it was repeated before.
    pub(super) fn retry_removal(&self, root: Cid) {
        if self.is_shared() {
            let now_ms = self.index().clock.now_ms();
            self.left_over().insert(root, now_ms, self.options.removal_retry_max);
        }
    }

    /// The decision on a removal has been written, or is not needed: those on others may succeed as well.
    pub(super) fn end_retries(&self, root: &Cid) {
        let now_ms = self.index().clock.now_ms();
        let mut left_over = self.left_over();
        left_over.remove(root);
        left_over.wake(now_ms, RETRIED_MAX);
    }

    /// Removes the store's pin of a root, and returns the zstd file if it was that of a packed file.
    async fn remove_pin(self: &Arc<Self>, root: &Cid, number: u64) -> Result<Option<Cid>, StoreError> {
        let end = if self.is_shared() { RemovalEnd::Unknown } else { RemovalEnd::Failed };
        let mut removal = RunningRemoval { pins: self, root, number, end };
        let zstd_file = self.store.zstd_file(root);
        match self.is_shared() {
            true => self.remove_shared_pin(root, number).await?,
            false => _ = self.store.remove_pin(root).await?,
        }
        removal.end = RemovalEnd::Removed;
        drop(removal);
        // The next entry clears the note: that of a change that waits already, or this one.
        let clearing = async {
            let cleared = self.read_log().await;
            // Another service may have pinned it again since.
            self.reread(root).await;
            cleared
        };
        if let (Err(error), _) = self.change(clearing).await {
            tracing::warn!(%root, %error, "recording that a pin was removed failed; it will be retried");
        }
        Ok(zstd_file)
    }

    /// Removes the pin of a root from a store that services share, unless another one has taken the removal over: then
    /// the pin of that root may be a later one.
    async fn remove_shared_pin(self: &Arc<Self>, root: &Cid, number: u64) -> Result<(), StoreError> {
        // First, because this pin is the one to remove if the log still says so afterwards.
        let found = self.store.current_pin(root).await?;
        let (caught_up, _) = self.change(self.read_log()).await;
        match caught_up {
            Err(PinsError::Store(error)) => return Err(error),
            Err(error) => return Err(StoreError::Io(error.to_string().into())),
            Ok(()) => {}
        }
        if let Some(pin) = found.filter(|_| self.index().runs_removal(root, number)) {
            self.store.remove_pin_by_id(root, Some(pin.id)).await?;
        }
        Ok(())
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

/// A removal of the store's pin of a root. However it ends, the root is available again, now or after another attempt.
struct RunningRemoval<'a> {
    pins: &'a Pins,
    root: &'a Cid,
    number: u64,
    end: RemovalEnd,
}

impl Drop for RunningRemoval<'_> {
    fn drop(&mut self) {
        self.pins.index_mut().end_removal(self.root, self.number, self.end);
        self.pins.changed();
    }
}
