//! Fetching content ahead of requests.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The content to fetch: a CID or a path.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WarmRequest {
    /// A root CID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cid: Option<String>,
    /// A path, `/ipfs/…` or `/ipns/…`: its blocks, and its target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The maximum depth below the root: 0 is the block alone, 1 includes its links. By default everything is fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Stops when the blocks reach this total size, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
}

/// The progress.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WarmProgress {
    /// The root: the CID, or the target of the path.
    pub root: String,
    /// The number of blocks that are stored locally now.
    pub blocks: u64,
    /// The size of the blocks that were read, in bytes; leaves that were already stored are not read.
    pub bytes: u64,
    /// The number of blocks that were fetched from the network.
    pub fetched_blocks: u64,
    /// Their size, in bytes.
    pub fetched_bytes: u64,
    /// The number of blocks that could not be fetched.
    pub failed_blocks: u64,
    /// The duration so far, in seconds.
    pub seconds: f64,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WarmReport {
    /// The final progress.
    #[serde(flatten)]
    pub progress: WarmProgress,
    /// Whether all requested blocks are stored locally.
    pub complete: bool,
    /// Why not: `bytes_max`, `blocks` (http.dag_blocks_max), `links` (too many pending links on one level) or
    /// `failures`.
    pub stopped_by: Option<String>,
    /// The errors of the first blocks that could not be fetched.
    pub failures: Vec<WarmFailure>,
}

/// A block that could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarmFailure {
    /// The block.
    pub cid: String,
    /// The error.
    pub error: String,
}

/// A line of the response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WarmLine {
    /// The progress.
    Progress(WarmProgress),
    /// The last line: the result.
    Report(WarmReport),
    /// The last line, if the operation could not begin.
    Error(String),
}
