//! Whose an upload becomes, and whether it may: what is asked of the pin service.

use crate::access::Principal;
use crate::pinning::{Owner, Pins, PinsError};
use crate::uploads::UploadError;

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
