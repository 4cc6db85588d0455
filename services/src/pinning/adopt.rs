//! Adoption of stored blocks as pins of an owner: the last step of uploads, imports and Kubo's commands.
//!
//! Goals: either all roots are pinned in the store and recorded for the owner, or nothing of the addition stays pinned
//! except what other requests need. Non-goals: storing the blocks ([`cache::add`]); fetching missing ones
//! ([`Pins::request`]).

use crate::pinning::repeatable::RepeatableImport;
use crate::pinning::request::{Meta, Owner, PinParameters, PinRequest, Status};
use crate::pinning::service::{Pins, PinsError};
use cache::{AddError, Addition, PinSummary};
use content::Cid;
use std::sync::Arc;

/// How the roots of an addition are recorded.
#[derive(Debug, Clone, Copy)]
pub struct Adoption<'a> {
    /// The owner.
    pub owner: &'a Owner,
    /// The name of the pins.
    pub name: Option<&'a str>,
    /// The metadata of the requests.
    pub meta: &'a Meta,
    /// Whether a pin that the owner has under another name is renamed. Otherwise it gets a second request.
    pub renames: bool,
    /// The import that adopts them, if it may run again. Only without `renames`.
    pub import: Option<&'a RepeatableImport>,
}

/// A pinned root, and the request for it.
#[derive(Debug, Clone)]
pub struct Adopted {
    /// The store's pin.
    pub pin: PinSummary,
    /// The owner's request.
    pub request: PinRequest,
}

/// Why an adoption failed.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The store could not pin a root.
    #[error(transparent)]
    Add(#[from] AddError),
    /// The pin service rejected a root, or could not record it.
    #[error(transparent)]
    Pins(#[from] PinsError),
}

impl Pins {
    /// Pins the roots of an addition and records them for an owner. A root that the owner has pinned under the same
    /// name keeps its request. Not cancellation-safe: a caller whose client may disconnect spawns it.
    ///
    /// # Errors
    /// [`AdoptError`]. No new request and no pin stays then, except those that other requests need. A pin of the owner
    /// that was renamed stays renamed.
    pub async fn adopt(
        self: &Arc<Self>,
        addition: Addition,
        roots: &[Cid],
        adoption: Adoption<'_>,
    ) -> Result<Vec<Adopted>, AdoptError> {
        // Removals by other requests wait until the pins are recorded.
        let protections = self.protect_all(roots).await;
        let adopted = self.pin_and_record(addition, roots, adoption).await;
        drop(protections);
        if adopted.is_err() {
            self.release(roots).await;
        }
        adopted
    }

    async fn pin_and_record(
        self: &Arc<Self>,
        addition: Addition,
        roots: &[Cid],
        adoption: Adoption<'_>,
    ) -> Result<Vec<Adopted>, AdoptError> {
        let pins = addition.pin(roots, adoption.name).await?;
        // So that no request is reused that another adoption withdraws.
        let _turn = self.adoptions.lock().await;
        let requests = match adoption.renames {
            true => self.record_each(&pins, adoption).await?,
            false => self.record_together(&pins, adoption).await?,
        };
        Ok(pins.into_iter().zip(requests).map(|(pin, request)| Adopted { pin, request }).collect())
    }

    /// Records all requests at once: so none has to be withdrawn.
    async fn record_together(
        self: &Arc<Self>,
        pins: &[PinSummary],
        Adoption { owner, name, meta, import, .. }: Adoption<'_>,
    ) -> Result<Vec<PinRequest>, PinsError> {
        let wanted = |pin: &PinSummary| {
            let (name, meta) = (name.map(str::to_owned), meta.clone());
            PinParameters { name, meta, ..PinParameters::new(pin.root) }
        };
        self.record_all(owner, pins.iter().map(wanted).collect(), import).await
    }

    /// Records one request after the other, and withdraws those that are new if one fails.
    async fn record_each(
        self: &Arc<Self>,
        pins: &[PinSummary],
        adoption: Adoption<'_>,
    ) -> Result<Vec<PinRequest>, PinsError> {
        let (mut requests, mut new) = (Vec::with_capacity(pins.len()), Vec::new());
        for pin in pins {
            match self.record_renamed(pin.root, adoption).await {
                Ok((request, is_new)) => {
                    new.extend(is_new.then(|| Arc::clone(&request.id)));
                    requests.push(request);
                }
                Err(error) => {
                    self.withdraw(adoption.owner, &new).await;
                    return Err(error);
                }
            }
        }
        Ok(requests)
    }

    /// Pins the roots of an addition, and so completes the requests that exist for them: for blocks that were sent by
    /// another gateway. Creates no request. Not cancellation-safe: a caller whose client may disconnect spawns it.
    ///
    /// # Errors
    /// [`AdoptError`]: [`PinsError::NotFound`] if there is no request for a root, [`PinsError::Quota`] if all have
    /// failed because of it. No pin stays then, except those that requests need.
    pub async fn supply(self: &Arc<Self>, addition: Addition, roots: &[Cid]) -> Result<Vec<PinSummary>, AdoptError> {
        let protections = self.protect_all(roots).await;
        let supplied = self.pin_requested(addition, roots).await;
        drop(protections);
        if supplied.is_err() {
            self.release(roots).await;
        }
        supplied
    }

    async fn pin_requested(self: &Arc<Self>, addition: Addition, roots: &[Cid]) -> Result<Vec<PinSummary>, AdoptError> {
        // Before much is written.
        if !roots.iter().all(|root| self.is_requested(root)) {
            return Err(PinsError::NotFound.into());
        }
        let pins = addition.pin(roots, None).await?;
        for root in roots {
            self.settle_supplied(*root).await?;
        }
        Ok(pins)
    }

    /// The owner's request that already equals the one to record.
    fn known(&self, root: Cid, Adoption { owner, name, meta, .. }: Adoption<'_>) -> Option<PinRequest> {
        let is_same = |request: &PinRequest| {
            let is_named = name.is_none() || request.name.as_deref() == name;
            is_named && meta.is_empty() && request.status == Status::Pinned
        };
        self.of_root(&owner.id, &root).into_iter().find(is_same)
    }

    /// The request that keeps a root for the owner, and whether it is one more than before.
    async fn record_renamed(
        self: &Arc<Self>,
        root: Cid,
        adoption: Adoption<'_>,
    ) -> Result<(PinRequest, bool), PinsError> {
        let Adoption { owner, name, .. } = adoption;
        // Another gateway may have removed what is known here.
        self.know_latest().await?;
        if let Some(known) = self.known(root, adoption) {
            return Ok((known, false));
        }
        let name = name.map(str::to_owned);
        let has_one = self.of_root(&owner.id, &root).iter().any(|request| request.status != Status::Failed);
        Ok((self.record_once(owner, root, name).await?, !has_one))
    }

    async fn withdraw(self: &Arc<Self>, owner: &Owner, requests: &[Arc<str>]) {
        for id in requests {
            if let Err(error) = self.remove(&owner.id, id).await {
                tracing::warn!(%id, %error, "removing the pin of a failed upload failed");
            }
        }
    }

    async fn release(self: &Arc<Self>, roots: &[Cid]) {
        for root in roots {
            if let Err(error) = self.remove_unneeded(*root).await {
                tracing::warn!(%root, %error, "removing the pin of a failed upload failed");
            }
        }
    }
}
