//! Fetching content ahead of requests.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is to be fetched: a CID or a path.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WarmRequest {
    /// A root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cid: Option<String>,
    /// A path, `/ipfs/…` or `/ipns/…`: the blocks on the way, and what it leads to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How far below that: 0 is the block alone, 1 what it links to as well. All of it if this is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Ends when the blocks have so many bytes in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
}

/// How far it has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WarmProgress {
    /// Where it began: the root, or what the path leads to.
    pub root: String,
    /// Blocks that are here now.
    pub blocks: u64,
    /// Their bytes, as far as they were read: leaves that were here before are not.
    pub bytes: u64,
    /// Those of them that came from the network.
    pub fetched_blocks: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Blocks that did not come.
    pub failed_blocks: u64,
    /// For how long.
    pub seconds: f64,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WarmReport {
    /// How far it came.
    #[serde(flatten)]
    pub progress: WarmProgress,
    /// Whether everything that was asked for is here.
    pub complete: bool,
    /// Why not: `bytes_max`, `blocks` (http.dag_blocks_max), `links` (more beside each other than may wait) or `failures`.
    pub stopped_by: Option<String>,
    /// What went wrong with the first blocks that did not come.
    pub failures: Vec<WarmFailure>,
}

/// A block that did not come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarmFailure {
    /// The block.
    pub cid: String,
    /// Why.
    pub error: String,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WarmLine {
    /// How far it has come.
    Progress(WarmProgress),
    /// The last line: how it ended.
    Report(WarmReport),
    /// The last line, if it could not begin.
    Error(String),
}
