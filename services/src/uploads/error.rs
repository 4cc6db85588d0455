//! [`UploadError`]: why an upload failed, by who can fix it.

use crate::pinning::adopt::AdoptError;
use cache::{AddError, PinError, StoreError};
use content::car::CarError;
use content::dag::DagError;
use content::importer::{ImportError, ProfileError};
use content::policy::Verdict;
use content::{Cid, SourceError};
use http::StatusCode;
use std::io;

/// The message to clients when the process stops.
pub const STOPPING: &str = "the gateway is stopping";

/// Why an upload failed. Nothing of it is pinned then.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The format of the body is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// The upload exceeds the maximum size.
    #[error("the upload exceeds the maximum of {bytes_max} bytes (uploads.bytes_max)")]
    TooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// The upload exceeds the owner's byte quota.
    #[error("the upload exceeds the token's quota: {left} of {bytes_max} bytes are left")]
    Quota {
        /// The quota.
        bytes_max: u64,
        /// What is left of the quota.
        left: u64,
    },
    /// The quota of pins is used up.
    #[error("{0}")]
    Pins(String),
    /// A used object has been removed.
    #[error("{0}")]
    Conflict(String),
    /// A root was no longer pinned when its pin was to be recorded.
    #[error("{0}")]
    Unpinned(String),
    /// Another run of the import has taken over: whether the upload is pinned is for it to decide.
    #[error("the import of the upload was taken over, and continues elsewhere")]
    TakenOver,
    /// The maximum number of concurrent uploads is reached.
    #[error("the maximum of {0} concurrent uploads is reached: try again when one has ended")]
    Busy(usize),
    /// The token's limit of concurrent uploads is reached.
    #[error("the token has reached its limit of concurrent uploads: try again when one has ended")]
    TokenLimit,
    /// The token is no longer valid.
    #[error("the token that created the upload was revoked or has expired")]
    Revoked,
    /// The memory budget of uploads is used up.
    #[error(
        "uploads and imports use up their memory of {bytes_max} bytes (uploads.memory_bytes_max): try again when one \
         has ended"
    )]
    Memory {
        /// The budget.
        bytes_max: usize,
    },
    /// The pieces of resumable uploads that are being received use up their part of the memory.
    #[error(
        "the pieces that are being received for resumable uploads, of this token or of all, use up their part of \
         uploads.memory_bytes_max: try again when one has ended"
    )]
    PiecesMemory,
    /// The policy withholds the content.
    #[error("the policy rejects {cid}: {}", why(*.verdict))]
    Withheld {
        /// The first withheld block.
        cid: Cid,
        /// The verdict.
        verdict: Verdict,
    },
    /// Importing failed, or its sink did.
    #[error(transparent)]
    Import(ImportError),
    /// The options are inconsistent.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The CAR is invalid.
    #[error(transparent)]
    Car(CarError),
    /// Part of a DAG is neither in the archive nor in the store.
    #[error("the DAG of {root} is incomplete: {missing} is neither in the upload nor in the store")]
    Incomplete {
        /// The root of that DAG.
        root: Cid,
        /// The first block found missing.
        missing: Cid,
    },
    /// Reading a body or a file failed.
    #[error(transparent)]
    Read(io::Error),
    /// The folder for temporary files failed.
    #[error("the folder for temporary files of uploads failed: {0}")]
    TemporaryFile(io::Error),
    /// Bytes that were received are missing from the shared storage of a site, or damaged.
    #[error("a part of the upload is missing from the storage of the site, or damaged: upload the content again")]
    PartLost,
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// The upload exceeds the capacity of the cache.
    #[error(
        "the upload exceeds the capacity of the cache of {bytes_max} bytes: pin it, or increase the capacity \
         (cache.disk_bytes_max, cache.memory_bytes_max)"
    )]
    LargerThanCache {
        /// The capacity of the cache.
        bytes_max: u64,
    },
    /// Blocks were evicted from the cache during the upload. A block that was cached before may have been the oldest,
    /// and becomes the newest when it is sent again.
    #[error(
        "the cache evicted {gone} of {blocks} blocks during the upload: try again; if that fails too, pin the content \
         or increase the capacity (cache.disk_bytes_max, cache.memory_bytes_max)"
    )]
    NotCached {
        /// The number of evicted blocks.
        gone: u64,
        /// The number of uploaded blocks, including repeated ones.
        blocks: u64,
    },
    /// Pinning failed.
    #[error("pinning {root} failed: {error}")]
    Pin {
        /// The root.
        root: Cid,
        /// The error.
        error: Box<PinError>,
    },
    /// Bytes that are stored could not be imported now, for a reason that is not in them.
    #[error("the upload could not be imported, which is repeated: {0}")]
    Postponed(Box<UploadError>),
    /// The client does not read the progress events.
    #[error("the client does not read the progress events of the upload")]
    EventsStalled,
    /// The gateway is stopping, or the upload panicked.
    #[error("the gateway is stopping")]
    Stopping,
}

fn why(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Legal => "it is withheld for legal reasons",
        _ => "it was removed by the operator",
    }
}

impl UploadError {
    /// The HTTP status of the error.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Invalid(_) | Self::Profile(_) | Self::Incomplete { .. } => StatusCode::BAD_REQUEST,
            Self::Import(error) => match error {
                ImportError::Sink(_) => StatusCode::INTERNAL_SERVER_ERROR,
                _ => StatusCode::BAD_REQUEST,
            },
            Self::Car(CarError::Io(error)) | Self::Read(error) => match error.kind() {
                io::ErrorKind::TimedOut => StatusCode::REQUEST_TIMEOUT,
                _ => StatusCode::BAD_REQUEST,
            },
            Self::Car(_) => StatusCode::BAD_REQUEST,
            Self::Unsupported(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Quota { .. } | Self::Pins(_) => StatusCode::INSUFFICIENT_STORAGE,
            Self::LargerThanCache { .. } | Self::NotCached { .. } => StatusCode::INSUFFICIENT_STORAGE,
            Self::Conflict(_) | Self::Unpinned(_) => StatusCode::CONFLICT,
            Self::TakenOver => StatusCode::LOCKED,
            Self::Revoked => StatusCode::FORBIDDEN,
            Self::Busy(_) | Self::TokenLimit => StatusCode::TOO_MANY_REQUESTS,
            Self::Withheld { verdict: Verdict::Legal, .. } => StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS,
            Self::Withheld { .. } => StatusCode::GONE,
            Self::EventsStalled => StatusCode::REQUEST_TIMEOUT,
            Self::TemporaryFile(error) if error.kind() == io::ErrorKind::StorageFull => {
                StatusCode::INSUFFICIENT_STORAGE
            }
            Self::TemporaryFile(_) | Self::PartLost => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Store(error) => of_store(error),
            Self::Pin { error, .. } => of_pin(error),
            Self::Memory { .. } | Self::PiecesMemory | Self::Postponed(_) | Self::Stopping => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }
}

impl UploadError {
    /// The error of an import of stored bytes. Those of the gateway or of its site that may pass are
    /// [`UploadError::Postponed`]: no client has to send the bytes again. `is_whole`: all blocks are from these bytes.
    #[must_use]
    pub fn of_stored(self, is_whole: bool) -> Self {
        let passes = match &self {
            Self::Incomplete { .. } | Self::Conflict(_) => is_whole,
            // A pin became partial, or was removed, since an object was missing or another gateway removed it.
            Self::Unpinned(_) => true,
            Self::Pin { error, .. } => match &**error {
                PinError::Removed { .. } | PinError::Lost { .. } => true,
                PinError::Blocks(error) => error.downcast_ref().is_some_and(is_of_source),
                PinError::Store(_) | PinError::RootMissing { .. } | PinError::NameTooLong { .. } => false,
            },
            _ => false,
        };
        if passes { Self::Postponed(Box::new(self)) } else { self }
    }

    /// Whether a retry may succeed when other uploads have ended.
    fn is_short_of_memory(&self) -> bool {
        match self {
            Self::Memory { .. } | Self::PiecesMemory => true,
            Self::Pin { error, .. } => match &**error {
                PinError::Blocks(error) => matches!(error.downcast_ref(), Some(DagError::Memory)),
                _ => false,
            },
            _ => false,
        }
    }
}

/// Whether a source could not return a block that it may return later. Its other errors are 500, or in the content.
fn is_of_source(error: &DagError) -> bool {
    use SourceError::{Busy, RateLimited, Stalled};
    matches!(error, DagError::Source(Stalled { .. } | Busy { .. } | RateLimited { .. }))
}

fn of_store(error: &StoreError) -> StatusCode {
    match error {
        error if error.is_full() => StatusCode::INSUFFICIENT_STORAGE,
        StoreError::Closed | StoreError::Busy | StoreError::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn of_pin(error: &PinError) -> StatusCode {
    match error {
        PinError::Store(error) => of_store(error),
        PinError::Removed { .. } | PinError::Lost { .. } => StatusCode::CONFLICT,
        PinError::Blocks(error) => match error.downcast_ref() {
            Some(DagError::Source(SourceError::Closed) | DagError::Memory) => StatusCode::SERVICE_UNAVAILABLE,
            Some(DagError::Source(SourceError::Store(_))) => StatusCode::INTERNAL_SERVER_ERROR,
            // A block that cannot be decoded.
            _ => StatusCode::BAD_REQUEST,
        },
        PinError::RootMissing { .. } | PinError::NameTooLong { .. } => StatusCode::BAD_REQUEST,
    }
}

impl UploadError {
    /// Whether the gateway ends: nothing else is to be repeated with another gateway.
    fn is_of_stopping(&self) -> bool {
        let can_be_repeated = |error: &StoreError| matches!(error, StoreError::Busy | StoreError::Unavailable { .. });
        !self.is_short_of_memory()
            && match self {
                Self::Store(error) => !can_be_repeated(error),
                Self::Postponed(_) => false,
                Self::Pin { error, .. } => match &**error {
                    PinError::Store(error) => !can_be_repeated(error),
                    _ => true,
                },
                _ => true,
            }
    }

    /// The status and the message for the client.
    pub fn failure(&self) -> (StatusCode, String) {
        match self.status() {
            status @ StatusCode::SERVICE_UNAVAILABLE if self.is_of_stopping() => (status, STOPPING.to_owned()),
            status => (status, self.to_string()),
        }
    }
}

/// A reader's error may wrap an [`UploadError`].
impl From<io::Error> for UploadError {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => error,
            Err(error) => Self::Read(error),
        }
    }
}

/// A sink's error may wrap an [`UploadError`].
impl From<ImportError> for UploadError {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Sink(error) => match error.downcast::<Self>() {
                Ok(error) => *error,
                Err(error) => Self::Import(ImportError::Sink(error)),
            },
            error => Self::Import(error),
        }
    }
}

impl From<StoreError> for UploadError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<CarError> for UploadError {
    fn from(error: CarError) -> Self {
        match error {
            CarError::Io(error) => match Self::from(error) {
                Self::Read(error) => Self::Car(CarError::Io(error)),
                error => error,
            },
            error => Self::Car(error),
        }
    }
}

impl From<cache::ImportError> for UploadError {
    fn from(error: cache::ImportError) -> Self {
        match error {
            cache::ImportError::Car(error) => error.into(),
            cache::ImportError::Incomplete { root, missing } => Self::Incomplete { root, missing },
            cache::ImportError::Pin { root, error } => Self::Pin { root, error: Box::new(error) },
            cache::ImportError::Store(error) => Self::Store(error),
            cache::ImportError::Refused(error) => match error.downcast::<Self>() {
                Ok(error) => *error,
                Err(error) => Self::Invalid(error.to_string()),
            },
            error @ cache::ImportError::Gone { .. } => Self::Conflict(error.to_string()),
            error @ cache::ImportError::NoRoots => Self::Invalid(error.to_string()),
        }
    }
}

impl From<AdoptError> for UploadError {
    fn from(error: AdoptError) -> Self {
        match error {
            AdoptError::Add(error) => error.into(),
            AdoptError::Pins(error) => error.into(),
        }
    }
}

impl From<AddError> for UploadError {
    fn from(error: AddError) -> Self {
        cache::ImportError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn root() -> Cid {
        Cid::new_v1(0x55, content::hashes::digest(0x1e, 32, b"x").expect("is known"))
    }

    fn of_blocks(error: impl Into<DagError>) -> PinError {
        PinError::Blocks(Box::new(error.into()))
    }

    #[test]
    fn stored_bytes_are_kept_for_what_is_not_in_them() {
        let root = root();
        let pin = |error: PinError| UploadError::Pin { root, error: Box::new(error) };
        let unavailable = || StoreError::Unavailable { reason: "the storage cannot be reached".into() };
        let incomplete = || UploadError::Incomplete { root, missing: root };
        let table = [
            (pin(PinError::Lost { root }), true, 503),
            (pin(PinError::Removed { root }), false, 503),
            (pin(of_blocks(SourceError::Busy { retry_after: Duration::ZERO })), false, 503),
            (pin(of_blocks(SourceError::Store("the disk".into()))), false, 500),
            (pin(PinError::Store(unavailable())), false, 503),
            (pin(of_blocks(DagError::TooManyBlocks { max: 1 })), true, 400),
            (UploadError::Unpinned("it is not pinned".into()), false, 503),
            (incomplete(), true, 503),
            // What is missing may be for the client to send.
            (incomplete(), false, 400),
            (UploadError::PartLost, true, 500),
            (UploadError::Revoked, true, 403),
        ];
        for (error, is_whole, status) in table {
            let words = error.to_string();
            let (found, message) = error.of_stored(is_whole).failure();
            assert_eq!(found.as_u16(), status, "{words}");
            assert!(message.contains(&words), "{message}");
        }
    }
}
