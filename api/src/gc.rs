//! Garbage collection of cached blocks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How much is to go.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CollectRequest {
    /// How much cached blocks may take after it, in bytes. All of them go if this is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_bytes_max: Option<u64>,
    /// Whether to say only what would go.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// What went; of a dry run, what would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CollectedView {
    /// Blocks that went. Left out of a dry run that would keep some: it is not known which go before they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    /// What these took.
    pub bytes: u64,
    /// What cached blocks take after it.
    pub cached_bytes: u64,
    /// What pinned blocks take, which never go.
    pub pinned_bytes: u64,
}
