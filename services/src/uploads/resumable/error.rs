//! [`ResumableError`]: why an operation on a resumable upload failed.

use crate::uploads::UploadError;
use api::uploads::FailureView;
use cache::StoreError;
use http::StatusCode;
use std::io;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ResumableError {
    /// There is no such upload of this token.
    #[error("there is no such upload: it was removed, or has expired")]
    Missing,
    /// The request's offset is not that of the upload.
    #[error("the offset of the upload is {offset}: query it with HEAD, and continue from there")]
    Offset {
        /// The offset of the upload.
        offset: u64,
    },
    /// The client sent more than the declared length.
    #[error("the client sent more than the declared length of {length} bytes")]
    TooLong {
        /// The declared length.
        length: u64,
    },
    /// Another request uses the upload and did not end in time.
    #[error("another request is using this upload: try again later")]
    Locked,
    /// A limit of open uploads is reached.
    #[error("{0}")]
    Full(String),
    /// Reading the body failed.
    #[error("the body was interrupted: {0}")]
    BrokenOff(io::Error),
    /// The upload is complete, and importing it failed.
    #[error("{}", .0.error)]
    Failed(FailureView),
    /// Another error of uploads.
    #[error(transparent)]
    Uploads(Box<UploadError>),
}

impl From<UploadError> for ResumableError {
    fn from(error: UploadError) -> Self {
        Self::Uploads(Box::new(error))
    }
}

impl From<StoreError> for ResumableError {
    fn from(error: StoreError) -> Self {
        UploadError::Store(error).into()
    }
}

impl ResumableError {
    /// A token has so many open uploads, the maximum.
    pub fn too_many(token_max: usize) -> Self {
        Self::Full(format!(
            "the limit of {token_max} open uploads is reached (uploads.parts_token_max): complete or remove one first"
        ))
    }

    /// The open uploads are as large as they may be.
    pub fn too_little_space() -> Self {
        let words = "the open uploads leave too little space for this one (uploads.parts_token_bytes_max, \
                     parts_bytes_max): complete or remove one first";
        Self::Full(words.to_owned())
    }

    /// The status and the message for the client.
    pub fn failure(&self) -> (StatusCode, String) {
        let status = match self {
            Self::Missing => StatusCode::NOT_FOUND,
            Self::Offset { .. } => StatusCode::CONFLICT,
            Self::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Locked => StatusCode::LOCKED,
            Self::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
            Self::BrokenOff(error) if error.kind() == io::ErrorKind::TimedOut => StatusCode::REQUEST_TIMEOUT,
            Self::BrokenOff(_) => StatusCode::BAD_REQUEST,
            Self::Failed(failure) => StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            Self::Uploads(error) => return error.failure(),
        };
        (status, self.to_string())
    }
}
