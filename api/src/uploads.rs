//! Uploads, whole and resumable.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The result of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadView {
    /// The top-level entries of the upload, sorted by name; or the directory that wraps them; or the distinct roots of
    /// a CAR.
    pub roots: Vec<RootView>,
    /// The number of bytes received: of files, or of a CAR's blocks.
    pub bytes: u64,
    /// The number of blocks that were created or received, duplicates included.
    pub blocks: u64,
}

/// A root of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RootView {
    /// The name in the upload; `null` for a wrapping directory and in a CAR.
    pub name: Option<String>,
    /// The CID.
    pub cid: String,
    /// The path on a gateway.
    pub path: String,
    /// The size of the files in it, in bytes; for a CAR's root, the size of its distinct blocks.
    pub bytes: u64,
    /// The ID of the pin; `null` if nothing was pinned.
    pub pin: Option<String>,
    /// The zstd file of a packed file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<PackedView>,
    /// Why a file that was to be packed is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The zstd file of a packed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PackedView {
    /// The CID of the zstd file, which any node can read and `zstd -d` decompresses.
    pub zstd: String,
    /// The CID of the plain content by the zstd file: its multihash with a codec of multicodec's private range.
    pub cid: String,
    /// The size of the zstd file, in bytes.
    pub bytes: u64,
}

/// The progress of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GlanceView {
    /// The number of complete files and symlinks.
    pub files: u64,
    /// The number of bytes read.
    pub bytes: u64,
    /// The name of the current file; empty if it has none.
    pub path: String,
}

/// The error of an upload, after the status was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureView {
    /// The status that the error would have had.
    pub status: u16,
    /// The cause, and how to resolve it.
    pub error: String,
}

/// A line of the response. The last line is `done` or `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum UploadLine {
    /// The progress.
    Progress(GlanceView),
    /// The result.
    Done(UploadView),
    /// The error.
    Error(FailureView),
}

/// A resumable upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartialView {
    /// The ID of the upload.
    pub id: String,
    /// The path of the upload, to which chunks are sent.
    pub path: String,
    /// `open`: bytes are missing; `complete`: all bytes were received and are being imported; `done`; `failed`.
    pub state: PartialState,
    /// The number of bytes received.
    pub offset: u64,
    /// The total number of bytes.
    pub length: u64,
    /// The name of the content.
    pub name: Option<String>,
    /// When it was created, in seconds since the Unix epoch.
    pub created_at: u64,
    /// When it expires if no more bytes are sent, in seconds since the Unix epoch.
    pub expires_at: u64,
    /// The result.
    pub result: Option<UploadView>,
    /// The error.
    pub failure: Option<FailureView>,
}

/// The state of a resumable upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartialState {
    /// Bytes are missing.
    Open,
    /// All bytes were received; they are being imported, or wait for it.
    Complete,
    /// The content is pinned.
    Done,
    /// The import failed.
    Failed,
}

/// The resumable uploads of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartialsView {
    /// The uploads, the oldest first.
    pub uploads: Vec<PartialView>,
}
