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
            Self::Conflict(_) => StatusCode::CONFLICT,
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
            Self::Memory { .. } | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl UploadError {
    /// Whether a retry may succeed when other uploads have ended.
    fn is_short_of_memory(&self) -> bool {
        match self {
            Self::Memory { .. } => true,
            Self::Pin { error, .. } => match &**error {
                PinError::Blocks(error) => matches!(error.downcast_ref(), Some(DagError::Memory)),
                _ => false,
            },
            _ => false,
        }
    }
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
