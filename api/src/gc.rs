//! Garbage collection of cached blocks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Options of a garbage collection.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CollectRequest {
    /// The maximum size of cached blocks afterwards, in bytes. By default all are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_bytes_max: Option<u64>,
    /// Report what would be deleted, without deleting it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// The result of a garbage collection, or of a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CollectedView {
    /// The number of deleted blocks. Omitted in a dry run that would keep some, since it does not select them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    /// The size of the deleted blocks on the disk, in bytes.
    pub bytes: u64,
    /// The size of cached blocks afterwards, in bytes.
    pub cached_bytes: u64,
    /// The size of pinned blocks, which are never deleted, in bytes.
    pub pinned_bytes: u64,
}
