//! Comparing all of the shared storage with the index, when an operator asks for it.
//!
//! Goals: objects that the index does not know are deleted, and blocks without an object are recorded as lost, so that
//! their pins are fetched again; one gateway of the site does it at a time; it can be stopped after any step, as the
//! gateway can, and what was done until then is done.
//!
//! Non-goals: what a gateway that has stopped in the middle of a write leaves behind, which upkeep deletes after an
//! hour; reading every object: one that is there is not examined until it is read.
//!
//! That one gateway does it at a time saves requests to the storage. Nothing is lost if several do
//! ([`SharedBlocks::reconcile`](crate::blocks::SharedBlocks::reconcile)), so that no change depends on the claim.

use super::SiteStore;
use crate::blocks::Reconciled;
use cache::StoreError;
use content::{Cid, codec, hashes};
use services::pinning::coordination::{self, Claim, Claimed, Claims};
use std::sync::Arc;
use tokio::runtime::Handle;

/// The number of slots of the storage.
pub const SLOTS: u32 = 256;
/// What the claim is named after: no block has it as its content.
const CLAIMED: &[u8] = b"causeway: the storage of a site is compared with its index";

/// What was found until now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReconcileProgress {
    /// The slots that were compared, of [`SLOTS`].
    pub slots: u32,
    /// The sums of what was found in them.
    pub found: Reconciled,
}

/// Why the comparison ended.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A gateway of the site does the same.
    #[error("a gateway of the site compares the storage with the index already: try again when it has ended")]
    Running,
    /// The claim on the work could not be renewed in time.
    #[error("the database could not be reached in time, and another gateway may have begun the same: run it again")]
    ClaimLost,
    /// The database or the storage failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SiteStore {
    /// Compares the storage with the index, slot by slot, and calls `report` after each. With `dry_run` nothing is
    /// changed, and what would be deleted is counted. Dropping the future stops it after any step.
    ///
    /// # Errors
    /// [`ReconcileError`]. What was done until then is done.
    pub async fn reconcile(
        &self,
        claims: Arc<dyn Claims>,
        dry_run: bool,
        report: impl FnMut(&ReconcileProgress) + Send,
    ) -> Result<ReconcileProgress, ReconcileError> {
        // The claim tells gateways from each other, but not two requests to one.
        let _turn = Arc::clone(&self.inner.reconciling).try_lock_owned().map_err(|_| ReconcileError::Running)?;
        let claimed = HeldClaim::take(claims).await?;
        let done = tokio::select! {
            () = claimed.until_lost() => Err(ReconcileError::ClaimLost),
            done = self.reconcile_all(dry_run, report) => done,
        };
        claimed.release().await;
        done
    }

    async fn reconcile_all(
        &self,
        dry_run: bool,
        mut report: impl FnMut(&ReconcileProgress) + Send,
    ) -> Result<ReconcileProgress, ReconcileError> {
        let shared = &self.inner.shared;
        // A storage that is not that of the site has none of its objects.
        shared.check_storage().await?;
        let mut progress = ReconcileProgress::default();
        for slot in 0..=u8::MAX {
            progress.found += match dry_run {
                true => shared.plan_reconcile(slot).await?,
                false => shared.reconcile(slot, u64::MAX).await?,
            };
            progress.slots += 1;
            report(&progress);
        }
        Ok(progress)
    }
}

/// The claim on this work, which is released when this is dropped.
struct HeldClaim {
    claims: Arc<dyn Claims>,
    /// `None` when it has been released.
    claim: Option<Claim>,
}

impl HeldClaim {
    async fn take(claims: Arc<dyn Claims>) -> Result<Self, ReconcileError> {
        match claims.claim(&claimed()?).await? {
            Claimed::Granted(claim) => Ok(Self { claims, claim: Some(claim) }),
            // It was released in between.
            Claimed::Held { retry_after } if retry_after.is_zero() => Err(StoreError::Busy.into()),
            Claimed::Held { .. } => Err(ReconcileError::Running),
        }
    }

    async fn until_lost(&self) {
        if let Some(claim) = self.claim.clone() {
            coordination::keep(&*self.claims, claim, |_| ()).await;
        }
    }

    async fn release(mut self) {
        if let Some(claim) = self.claim.take() {
            coordination::release(&*self.claims, claim).await;
        }
    }
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else { return };
        // Without a runtime, and if it fails, the claim ends with its lease.
        let Ok(runtime) = Handle::try_current() else { return };
        let claims = Arc::clone(&self.claims);
        runtime.spawn(async move { claims.release(claim).await });
    }
}

/// What the claim is for, in the place of a root.
fn claimed() -> Result<Cid, StoreError> {
    let hash = hashes::digest(hashes::SHA2_256, 32, CLAIMED);
    let hash = hash.map_err(|error| StoreError::Io(error.to_string().into()))?;
    Ok(Cid::new_v1(codec::RAW, hash))
}
