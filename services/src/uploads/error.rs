//! [`UploadError`]: why an upload was not taken in, by who can do something about it.

use crate::pinning::adopt::AdoptError;
use cache::{AddError, PinError, StoreError};
use content::car::CarError;
use content::dag::DagError;
use content::importer::{ImportError, ProfileError};
use content::policy::Verdict;
use content::{Cid, SourceError};
use http::StatusCode;
use std::io;

/// What the client hears when the process ends.
pub const STOPPING: &str = "the gateway is stopping";

/// Why an upload was not taken in. Nothing of it is pinned then.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The sender has to send something else.
    #[error("{0}")]
    Invalid(String),
    /// What was sent is of a kind that is not taken in.
    #[error("{0}")]
    Unsupported(String),
    /// More came than one upload may have.
    #[error("an upload may have {bytes_max} bytes (uploads.bytes_max), and this one has more")]
    TooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// More came than the owner may keep.
    #[error("this does not fit in the token's quota: {left} of {bytes_max} bytes are left")]
    Quota {
        /// What the owner may keep.
        bytes_max: u64,
        /// What is left of it.
        left: u64,
    },
    /// The owner has as many pins as it may.
    #[error("{0}")]
    Pins(String),
    /// What was to be used is not there any more.
    #[error("{0}")]
    Conflict(String),
    /// As many uploads as there may be are under way.
    #[error("{0} uploads are being taken in: try again when one has ended")]
    Busy(usize),
    /// The token has its share of the uploads that may be under way.
    #[error("this token has as many uploads under way as one token may have: try again when one has ended")]
    Share,
    /// Whose it would become may have nothing here any more.
    #[error("the token that this was begun with was revoked, or has expired")]
    Revoked,
    /// Uploads have as much memory as they may.
    #[error(
        "uploads and imports have all but too little of the {bytes_max} bytes of memory that they may take together \
         (uploads.memory_bytes_max): try again when one has ended"
    )]
    Memory {
        /// What they may have.
        bytes_max: usize,
    },
    /// The operator does not have this here.
    #[error("{cid} must not be kept here: {}", why(*.verdict))]
    Denied {
        /// The first block that was refused.
        cid: Cid,
        /// What the policy says.
        verdict: Verdict,
    },
    /// The import, or the sink that it wrote to.
    #[error(transparent)]
    Import(ImportError),
    /// The choices do not go together.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The archive is not one.
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
    /// What was to be read could not be read: a body, or a file.
    #[error(transparent)]
    Read(io::Error),
    /// The gateway's own folder failed it.
    #[error("the folder for uploads cannot be used: {0}")]
    Scratch(io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// What was to be left to the cache is more than it could hold if it held nothing else.
    #[error(
        "the cache has room for {bytes_max} bytes in all, and this takes more. Pin it, or give the cache more room \
         (cache.disk_bytes_max, cache.memory_bytes_max)"
    )]
    LargerThanCache {
        /// What the cache has room for.
        bytes_max: u64,
    },
    /// What was left to the cache is not all there. A block that it had already may have been its oldest, and comes back as its
    /// newest when it is sent again.
    #[error(
        "the cache did not keep this: of {blocks} blocks {gone} are gone already. Try once more; if that is of no use, \
         pin it, or give the cache more room (cache.disk_bytes_max, cache.memory_bytes_max)"
    )]
    NotCached {
        /// How many blocks are not there.
        gone: u64,
        /// How many came, repeated ones included.
        blocks: u64,
    },
    /// A pin failed.
    #[error("{root} could not be pinned: {error}")]
    Pin {
        /// The root.
        root: Cid,
        /// What went wrong.
        error: Box<PinError>,
    },
    /// Somebody takes too long to read what is said about the upload.
    #[error("nobody reads how the upload goes")]
    Unheard,
    /// The gateway ends, or what it did has panicked.
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
    /// What to answer to a request that failed so.
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
            Self::Busy(_) | Self::Share => StatusCode::TOO_MANY_REQUESTS,
            Self::Denied { verdict: Verdict::Legal, .. } => StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS,
            Self::Denied { .. } => StatusCode::GONE,
            Self::Unheard => StatusCode::REQUEST_TIMEOUT,
            Self::Scratch(error) if error.kind() == io::ErrorKind::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
            Self::Scratch(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Store(error) => of_store(error),
            Self::Pin { error, .. } => of_pin(error),
            Self::Memory { .. } | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl UploadError {
    /// Whether it may be taken in when others have ended.
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
        StoreError::Closed => StatusCode::SERVICE_UNAVAILABLE,
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
            // A block that cannot be understood, or none that could.
            _ => StatusCode::BAD_REQUEST,
        },
        PinError::RootMissing { .. } | PinError::NameTooLong { .. } => StatusCode::BAD_REQUEST,
    }
}

impl UploadError {
    /// What the client is answered with: a status, and what went wrong.
    pub fn failure(&self) -> (StatusCode, String) {
        match self.status() {
            status @ StatusCode::SERVICE_UNAVAILABLE if !self.is_short_of_memory() => (status, STOPPING.to_owned()),
            status => (status, self.to_string()),
        }
    }
}

/// What comes through a reader may be one of ours.
impl From<io::Error> for UploadError {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(error) => Self::Read(error),
        }
    }
}

/// What comes through a sink may be one of ours.
impl From<ImportError> for UploadError {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Sink(error) => match error.downcast::<Self>() {
                Ok(ours) => *ours,
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
                ours => ours,
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
                Ok(ours) => *ours,
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
