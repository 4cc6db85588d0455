//! Whose an upload becomes, and whether it may: what is asked of the pin service.

use crate::access::Principal;
use crate::pinning::{Owner, Pins, PinsError, Status};
use crate::uploads::UploadError;
use content::Cid;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What an owner may keep and what is left of that, in bytes; nothing if there is no limit.
///
/// # Errors
/// [`UploadError::Pins`] when the owner has no pin left, and [`UploadError::Quota`] when it has no byte left.
pub fn quota(pins: &Pins, bearer: &Principal) -> Result<Option<(u64, u64)>, UploadError> {
    let room = pins.room(&Owner::from(bearer));
    if room.pins == Some(0) {
        let most = bearer.quota.pins_max.unwrap_or(0);
        return Err(UploadError::Pins(format!("this token may have {most} pins, and has them: remove some")));
    }
    match bearer.quota.bytes_max.zip(room.bytes) {
        Some((bytes_max, 0)) => Err(UploadError::Quota { bytes_max, left: 0 }),
        quota => Ok(quota),
    }
}

/// Puts pins down as somebody's: the identifier of each request. None of them if that fails for one. What the owner has already under
/// the same name stays as it is.
///
/// # Errors
/// [`UploadError::Pins`], and what the disk said.
pub async fn record(
    pins: &Arc<Pins>,
    bearer: &Principal,
    roots: &[Cid],
    name: Option<&str>,
    meta: &BTreeMap<String, String>,
) -> Result<Vec<String>, UploadError> {
    let owner = Owner::from(bearer);
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
            tracing::warn!(%id, %error, "the pin of an upload that failed could not be removed");
        }
    }
}

/// Removes the pins of roots that nobody asked for: of an upload that failed while it was pinned.
pub async fn let_go(pins: &Arc<Pins>, roots: &[Cid]) {
    for root in roots {
        if let Err(error) = pins.let_go(*root).await {
            tracing::warn!(%root, %error, "the pin of an upload that failed could not be removed");
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
