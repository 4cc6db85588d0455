//! A site: several gateways that share pins and blocks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The site that a gateway belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SiteView {
    /// The name of the site.
    pub name: String,
    /// The name and hosts of its database.
    pub database: String,
    /// The URL of its storage.
    pub storage: String,
    /// The gateways, in the order of their peer IDs, with those that have stopped in the last 24 hours without leaving.
    pub gateways: Vec<SiteGatewayView>,
    /// The number of complete pins.
    pub pins: u64,
    /// The number of partial pins.
    pub partial_pins: u64,
    /// The number of blocks in the storage that pins have.
    pub pinned_blocks: u64,
    /// Their size as stored, in bytes.
    pub pinned_bytes: u64,
    /// The number of other blocks in the storage.
    pub cached_blocks: u64,
    /// Their size as stored, in bytes.
    pub cached_bytes: u64,
    /// The size of other blocks that the storage may keep, in bytes (`site.cache_bytes_max` of the gateway that answers).
    pub cache_bytes_max: u64,
    /// Objects that are being written or deleted, or were left behind by a gateway that has stopped.
    pub pending_objects: u64,
}

/// A gateway of a site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SiteGatewayView {
    /// Its peer ID.
    pub peer_id: String,
    /// The host that it runs on.
    pub host: String,
    /// Its release.
    pub version: String,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    /// The time since it was last heard of, in seconds.
    pub seen_seconds_ago: f64,
    /// Whether it runs: it was heard of in the last 15 seconds.
    pub is_alive: bool,
    /// Whether it is the gateway that answers.
    pub is_this: bool,
}

/// Asks for a comparison of the storage with the index in the database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReconcileRequest {
    /// Only count what would be changed.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a comparison of the storage with the index has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReconcileView {
    /// Whether it was only counted.
    pub dry_run: bool,
    /// The parts of the storage that were compared, of 256.
    pub parts: u32,
    /// The objects in them.
    pub objects: u64,
    /// Those of them that the index does not know, and that were deleted.
    pub orphans: u64,
    /// Names that are not those of objects, which are left alone.
    pub foreign: u64,
    /// Blocks whose objects are missing or damaged. Pins that have one are incomplete, and fetch it again.
    pub lost_blocks: u64,
}

/// A line of the response to a comparison. The last line is a report or an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReconcileLine {
    /// What was found until now.
    Progress(ReconcileView),
    /// What was found in all of the storage.
    Report(ReconcileView),
    /// The error that ended it. What was done until then is done.
    Error(String),
}
