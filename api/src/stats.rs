//! Statistics of the running node: totals, and rates since the last sample.

use crate::peers::CarriedView;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Look-ups in a tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TierView {
    /// The number of blocks found, since the start.
    pub hits: u64,
    /// The number of blocks not found.
    pub misses: u64,
    /// The number of failed look-ups.
    pub errors: u64,
    /// The size of the blocks found, in bytes.
    pub bytes: u64,
}

/// The local tiers and the network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TiersView {
    /// Memory.
    pub ram: TierView,
    /// The block store.
    pub disk: TierView,
    /// The network.
    pub network: TierView,
}

/// The public listener, since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HttpView {
    /// Answered requests by class of status: `2xx` to `5xx`.
    pub requests: BTreeMap<String, u64>,
    /// Requests in progress.
    pub in_flight: i64,
    /// Requests in progress that were not answered at once.
    pub waiting: usize,
    /// Open connections, including those of the admin listener.
    pub connections: i64,
    /// Bytes of response bodies.
    pub sent_bytes: u64,
    /// Aborted responses.
    pub aborted: u64,
    /// Answered requests by the farthest tier that was read for the first byte of the response: `ram`, `disk` or
    /// `network`, or `none` for responses without content.
    #[serde(default)]
    pub tiers: BTreeMap<String, ResponseTierView>,
}

/// Responses of one tier, since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseTierView {
    /// Answered requests.
    pub requests: u64,
    /// Bytes of response bodies.
    pub sent_bytes: u64,
    /// The median time to the first byte, in seconds, interpolated between bounds of buckets; `null` without requests.
    pub first_byte_median_seconds: Option<f64>,
    /// The 95th percentile of that time.
    pub first_byte_p95_seconds: Option<f64>,
}

/// The block store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoreView {
    /// Bytes in memory.
    pub ram_bytes: u64,
    /// Blocks in memory.
    pub ram_blocks: u64,
    /// Blocks on the disk.
    pub blocks: u64,
    /// The size of blocks that may be evicted, in bytes.
    pub cached_bytes: u64,
    /// The size of pinned blocks, in bytes.
    pub pinned_bytes: u64,
    /// Blocks evicted since the start.
    pub evicted_blocks: u64,
    /// Whether the store currently accepts no blocks.
    pub degraded: bool,
    /// The reason: `full`, `no_inodes`, `failing` or `broken`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkView {
    /// Connected peers.
    pub peers: usize,
    /// The number of DAGs that are or recently were read from the network.
    pub sessions: usize,
    /// The number of blocks that are waited for.
    pub wanted_blocks: usize,
    /// The number of provider searches in progress.
    pub searches: usize,
    /// The traffic of each transport since the start.
    pub transports: Vec<CarriedView>,
    /// The average time until the first peer proved to have a DAG, of the searches in the last interval, in seconds.
    pub discovery_seconds: Option<f64>,
    /// The average time from the request of a block to its receipt, in the last interval, in seconds.
    pub transfer_seconds: Option<f64>,
}

/// Rates per second since the last sample; `null` in the first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RatesView {
    /// Answered requests.
    pub requests: f64,
    /// Bytes of response bodies.
    pub sent_bytes: f64,
    /// Blocks from memory.
    pub ram_hits: f64,
    /// Blocks from the disk.
    pub disk_hits: f64,
    /// Blocks from the network.
    pub network_hits: f64,
    /// Bytes received from peers.
    pub p2p_received_bytes: f64,
    /// Bytes sent to peers.
    pub p2p_sent_bytes: f64,
}

/// A sample of the statistics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatsView {
    /// When it was taken, in seconds since the Unix epoch.
    pub taken_at: u64,
    /// The time since the start, in seconds.
    pub uptime_seconds: f64,
    /// `starting`, `serving` or `draining`.
    pub stage: String,
    /// The public listener.
    pub http: HttpView,
    /// The tiers.
    pub tiers: TiersView,
    /// The store.
    pub store: StoreView,
    /// The network.
    pub network: NetworkView,
    /// Pins: the numbers of `pinned`, `pending` and `failed` ones, and of roots that are being fetched (`active_roots`)
    /// or queued (`queued_roots`).
    pub pins: BTreeMap<String, u64>,
    /// Rates per second.
    pub rates: Option<RatesView>,
}
