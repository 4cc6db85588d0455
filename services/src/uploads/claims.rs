//! Quotas of uploads, and recording their pins for the owner in the pin service.

use crate::access::Principal;
use crate::pinning::{Owner, Pins, PinsError, Status};
use crate::uploads::UploadError;
use content::Cid;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The owner's byte quota and what is left of it; `None` if it is unlimited.
///
/// # Errors
/// [`UploadError::Pins`] when the quota of pins is used up, and [`UploadError::Quota`] when the quota of bytes is.
pub fn quota(pins: &Pins, principal: &Principal) -> Result<Option<(u64, u64)>, UploadError> {
    let room = pins.room(&Owner::from(principal));
    if room.pins == Some(0) {
        let most = principal.quota.pins_max.unwrap_or(0);
        return Err(UploadError::Pins(format!("the token has reached its quota of {most} pins: remove some")));
    }
    match principal.quota.bytes_max.zip(room.bytes) {
        Some((bytes_max, 0)) => Err(UploadError::Quota { bytes_max, left: 0 }),
        quota => Ok(quota),
    }
}

/// Records pins for an owner, and returns the IDs of the requests; all of them, or none if one fails. Requests that the
/// owner already has with the same name are reused.
///
/// # Errors
/// [`UploadError::Pins`], and errors of the disk.
pub async fn record(
    pins: &Arc<Pins>,
    principal: &Principal,
    roots: &[Cid],
    name: Option<&str>,
    meta: &BTreeMap<String, String>,
) -> Result<Vec<String>, UploadError> {
    let owner = Owner::from(principal);
    let (mut requests, mut made) = (Vec::with_capacity(roots.len()), Vec::new());
    for root in roots {
        let own = pins.of_root(&owner.id, root).into_iter().find(|request| {
            let same = name.is_none() || request.name.as_deref() == name;
            same && meta.is_empty() && request.status == Status::Pinned
        });
        if let Some(own) = own {
            requests.push(own.id.to_string());
            continue;
        }
        match pins.record(&owner, *root, name.map(str::to_owned), meta.clone()).await {
            Ok(request) => {
                requests.push(request.id.to_string());
                made.push(request.id);
            }
            Err(error) => {
                undo(pins, &owner, &made).await;
                return Err(error.into());
            }
        }
    }
    Ok(requests)
}

async fn undo(pins: &Arc<Pins>, owner: &Owner, made: &[Arc<str>]) {
    for id in made {
        if let Err(error) = pins.remove(&owner.id, id).await {
            tracing::warn!(%id, %error, "removing the pin of a failed upload failed");
        }
    }
}

/// Removes the pins of roots without requests, after an upload failed while it was pinned.
pub async fn let_go(pins: &Arc<Pins>, roots: &[Cid]) {
    for root in roots {
        if let Err(error) = pins.let_go(*root).await {
            tracing::warn!(%root, %error, "removing the pin of a failed upload failed");
        }
    }
}

impl From<PinsError> for UploadError {
    fn from(error: PinsError) -> Self {
        match error {
            PinsError::Invalid(words) => Self::Invalid(words),
            PinsError::Quota(words) | PinsError::Full(words) => Self::Pins(words),
            PinsError::Store(error) => Self::Store(error),
            error @ (PinsError::NotFound | PinsError::NotHeld { .. }) => Self::Conflict(error.to_string()),
        }
    }
}
