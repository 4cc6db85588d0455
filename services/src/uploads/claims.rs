//! Quotas of uploads, and errors of the pin service.

use crate::access::Principal;
use crate::pinning::{Owner, Pins, PinsError};
use crate::uploads::UploadError;

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

impl From<PinsError> for UploadError {
    fn from(error: PinsError) -> Self {
        match error {
            PinsError::Invalid(words) => Self::Invalid(words),
            PinsError::Quota(words) | PinsError::Full(words) => Self::Pins(words),
            PinsError::Store(error) => Self::Store(error),
            PinsError::TakenOver => Self::TakenOver,
            error @ PinsError::NotFound => Self::Conflict(error.to_string()),
            error @ PinsError::NotPinned { .. } => Self::Unpinned(error.to_string()),
        }
    }
}
