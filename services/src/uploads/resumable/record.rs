//! [`Record`]: what is known of a resumable upload.

use api::uploads::{FailureView, UploadView};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The record of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The ID of the owner's token.
    pub owner: String,
    /// The length of the upload, in bytes.
    pub length: u64,
    /// The number of bytes that are received and synced.
    pub offset: u64,
    /// The parameters of `POST /upload`.
    pub query: String,
    /// The media type.
    pub media_type: String,
    /// The name.
    pub name: Option<String>,
    /// When it was created, in seconds since the Unix epoch.
    pub created_at: u64,
    /// When it last changed.
    pub touched_at: u64,
    /// The outcome, when it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<UploadOutcome>,
}

/// The outcome of a complete upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UploadOutcome {
    /// It is pinned.
    Done(UploadView),
    /// It failed. The bytes are kept if the gateway is the cause.
    Failed(FailureView),
}

impl UploadOutcome {
    /// The outcome in JSON.
    pub fn to_json(&self) -> String {
        // Numbers and strings always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses it; `None` if it is not one of this release.
    pub fn of_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether the upload is still to be imported: the gateway is the cause.
    pub fn leaves_open(&self) -> bool {
        match self {
            Self::Failed(failure) => failure.status >= 500,
            Self::Done(_) => false,
        }
    }
}

impl Record {
    /// Whether it is still to be received or imported.
    pub fn is_open(&self) -> bool {
        self.outcome.as_ref().is_none_or(UploadOutcome::leaves_open)
    }
}

/// The seconds since the Unix epoch.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
