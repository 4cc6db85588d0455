//! Retries of requests at an operator's word, before their back-off has ended or after they have failed.

use crate::pinning::index::{Index, PinOutcome, StoredRequest};
use crate::pinning::record::PinChange;
use crate::pinning::request::PinRequest;
use crate::pinning::service::{Pins, PinsError};
use std::sync::Arc;

impl Pins {
    /// Has the DAG of a failed or waiting request of any owner fetched as soon as a worker is free. One that is being
    /// fetched is left alone. The caller checks that the token has the scope `operate`.
    ///
    /// # Errors
    /// [`PinsError::NotFound`]; [`PinsError::Invalid`] if there is nothing to retry; [`PinsError::Quota`] if what is
    /// stored of the DAG exceeds the quota that the owner had when it requested it; [`PinsError::Store`].
    pub async fn retry(self: &Arc<Self>, id: &str) -> Result<PinRequest, PinsError> {
        let (pins, id) = (Arc::clone(self), id.to_owned());
        self.spawn_change(async move { pins.retry_now(&id).await }).await
    }

    async fn retry_now(&self, id: &str) -> Result<PinRequest, PinsError> {
        let root = self.index().entry(id).map(|entry| entry.root).ok_or(PinsError::NotFound)?;
        self.refresh(&root).await?;
        let apply = |index: &mut Index, changes: &[PinChange], owner: Arc<str>| {
            index.apply(changes);
            let now_ms = index.clock.now_ms();
            if index.root(&root).is_some_and(|root| !root.active) && index.is_pending(&root) {
                index.schedule_now(&root, now_ms);
            }
            index.get(&owner, id)
        };
        let shown = self.commit_with(|index| decide(index, id), apply).await?;
        self.changed();
        shown.ok_or(PinsError::NotFound)
    }
}

/// Decides what becomes of a request that is to be retried. Returns its owner.
fn decide(index: &Index, id: &str) -> Result<(Vec<PinChange>, Arc<str>), PinsError> {
    let entry = index.entry(id).ok_or(PinsError::NotFound)?;
    let changes = match &entry.outcome {
        PinOutcome::Pending => Vec::new(),
        PinOutcome::Failed(_) => revive(index, entry)?,
        PinOutcome::Pinned => return Err(PinsError::Invalid("the pin is complete".to_owned())),
        PinOutcome::Withheld(reason) => {
            return Err(PinsError::Invalid(format!("the missing blocks are not fetched: {reason}")));
        }
    };
    Ok((changes, Arc::clone(&entry.owner)))
}

/// Makes a failed request a pending one, or a pinned one if its DAG is stored completely.
fn revive(index: &Index, failed: &StoredRequest) -> Result<Vec<PinChange>, PinsError> {
    check_quota(index, failed)?;
    let is_removing = index.is_removing(&failed.root);
    let outcome = match index.root(&failed.root) {
        Some(root) if root.complete && !is_removing => PinOutcome::Pinned,
        _ => index.withheld(&failed.root).map_or(PinOutcome::Pending, PinOutcome::Withheld),
    };
    let mut changes = vec![PinChange::Request(StoredRequest { outcome, ..failed.clone() })];
    changes.extend((!is_removing).then_some(PinChange::RemoveOrphan(failed.root)));
    Ok(changes)
}

/// A failed request counts no bytes. What is stored of its DAG for others counts again.
fn check_quota(index: &Index, failed: &StoredRequest) -> Result<(), PinsError> {
    let (_, used) = index.used(&failed.owner);
    let has_it = index.is_live(&failed.owner, &failed.root);
    let further = index.root(&failed.root).filter(|_| !has_it).map_or(0, |root| root.progress.bytes);
    let after = used.saturating_add(further);
    match failed.bytes_max.filter(|most| after > *most || (after == *most && further == 0 && !has_it)) {
        Some(most) => {
            let words = format!("the token has {used} bytes pinned, with a quota of {most} bytes: remove some pins");
            Err(PinsError::Quota(words))
        }
        None => Ok(()),
    }
}
