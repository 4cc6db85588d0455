//! Purging cached content.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Options of a purge. Exactly one of the first four fields is required.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PurgeRequest {
    /// A block, with everything below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cid: Option<String>,
    /// The target of a path, `/ipfs/…` or `/ipns/…`, with everything below it; and the cached state of the path's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// A key of the header `Surrogate-Key`: a root CID, with everything below it; or a name, with its cached state and
    /// everything that it resolved to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surrogate_key: Option<String>,
    /// An IPNS key or a domain: its cached state only, without the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `false`: only the block itself. By default everything below it is purged too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<bool>,
    /// Report what would be purged, without purging it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// The result of a purge, or of a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PurgedView {
    /// The roots of the purge.
    pub roots: Vec<String>,
    /// The number of blocks that were in memory.
    pub ram_blocks: u64,
    /// The number of cached blocks that were on the disk.
    pub disk_blocks: u64,
    /// The size of these blocks on the disk, in bytes.
    pub disk_bytes: u64,
    /// The number of blocks that stay on the disk because they are pinned.
    pub pinned_blocks: u64,
    /// The number of blocks that are not stored locally; what is below them is unknown.
    pub missing_blocks: u64,
    /// The number of cached paths.
    pub paths: u64,
    /// The number of cached pages of listings.
    pub listings: u64,
    /// The number of sites with cached `_redirects`.
    pub sites: u64,
    /// The number of files with a cached content encoding.
    pub encoded: u64,
    /// The names whose cached state was deleted.
    pub names: Vec<String>,
    /// The number of caches in front of the gateway that are sent a purge request, now or when they become reachable.
    #[serde(default)]
    pub caches_notified: u64,
}
