//! Purging cached content.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is to be purged: one of these.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PurgeRequest {
    /// A block, and everything below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cid: Option<String>,
    /// What a path leads to, `/ipfs/…` or `/ipns/…`, and everything below that; and what is known of the name that it
    /// begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// A key of the header `Surrogate-Key`: a root CID, for everything below it; or a name, for what is known of it and
    /// everything that it stood for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surrogate_key: Option<String>,
    /// An IPNS key or a domain: what is known of it. What it stood for stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `false`: the block alone, and nothing below it. Everything below it goes if this is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<bool>,
    /// Whether to say only what would be purged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// What was purged; of a dry run, what would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PurgedView {
    /// Where the purge began.
    pub roots: Vec<String>,
    /// Blocks that were in memory.
    pub ram_blocks: u64,
    /// Blocks that were cached on the disk.
    pub disk_blocks: u64,
    /// What these took there.
    pub disk_bytes: u64,
    /// Blocks that stay on the disk because they are pinned.
    pub pinned_blocks: u64,
    /// Blocks that are not here, so that what is below them could not be found.
    pub missing_blocks: u64,
    /// Remembered paths.
    pub paths: u64,
    /// Remembered pages of listings.
    pub listings: u64,
    /// Sites of which it was known what they say of missing paths.
    pub sites: u64,
    /// Files of which it was known how they are sent compressed.
    pub encoded: u64,
    /// Names that are known no longer.
    pub names: Vec<String>,
    /// Caches in front of the gateway that are sent a purge request, now or as soon as they can be reached.
    #[serde(default)]
    pub caches_notified: u64,
}
