//! Uploads, whole and resumable.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What became of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadView {
    /// Each thing at the top of the upload, in the order of names; or the folder around them; or the distinct roots of a CAR.
    pub roots: Vec<RootView>,
    /// Bytes of content that came: of files, or of a CAR's blocks.
    pub bytes: u64,
    /// Blocks that were made or came, repeated ones included.
    pub blocks: u64,
}

/// A root of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RootView {
    /// Its name in the upload; `null` for a folder around everything and in a CAR.
    pub name: Option<String>,
    /// Its CID.
    pub cid: String,
    /// Where a gateway serves it.
    pub path: String,
    /// The content of the files in it, in bytes; of a CAR's root, the bytes of its distinct blocks.
    pub bytes: u64,
    /// The request in the pin service that keeps it; `null` if nothing was pinned.
    pub pin: Option<String>,
}

/// How far an upload has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GlanceView {
    /// Files and symlinks that are complete.
    pub files: u64,
    /// Bytes of content that were read.
    pub bytes: u64,
    /// The file that is being read; empty if it has no name.
    pub path: String,
}

/// Why an upload was not taken in, where the status was sent already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureView {
    /// The status that it would have had.
    pub status: u16,
    /// What went wrong, and what to do.
    pub error: String,
}

/// A line of the answer. The last is `done` or `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum UploadLine {
    /// How far it has come.
    Progress(GlanceView),
    /// What became of it.
    Done(UploadView),
    /// Why nothing became of it.
    Error(FailureView),
}

/// How a resumable upload goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartialView {
    /// What it is called by.
    pub id: String,
    /// Where it is: the path that pieces are sent to.
    pub path: String,
    /// `open`: bytes are to come; `complete`: all are here and are being taken in; `done`; `failed`.
    pub state: PartialState,
    /// How many bytes are here.
    pub offset: u64,
    /// How many it will have.
    pub length: u64,
    /// What the content is called.
    pub name: Option<String>,
    /// When it was begun, in seconds since the Unix epoch.
    pub created_at: u64,
    /// When it is removed if nothing more is done with it.
    pub expires_at: u64,
    /// What became of it.
    pub result: Option<UploadView>,
    /// Why nothing became of it.
    pub failure: Option<FailureView>,
}

/// How far a resumable upload has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartialState {
    /// Bytes are to come.
    Open,
    /// All bytes are here; they are being taken in, or wait for that.
    Complete,
    /// It is pinned.
    Done,
    /// It was not taken in.
    Failed,
}

/// A token's resumable uploads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartialsView {
    /// The oldest first.
    pub uploads: Vec<PartialView>,
}
