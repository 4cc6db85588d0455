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
    /// The storage that the gateways of a site share; only if the gateway belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<TierView>,
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
    /// `network`, or `none` for responses without content; `site` only if the shared storage of a site was read.
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
    /// The 99th percentile of that time.
    #[serde(default)]
    pub first_byte_p99_seconds: Option<f64>,
}

/// Responses of one tier in the last minute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecentTierView {
    /// Answered requests.
    pub requests: u64,
    /// The median time to the first byte, in seconds, interpolated between bounds of buckets; `null` without requests.
    pub p50_seconds: Option<f64>,
    /// The 95th percentile of that time.
    pub p95_seconds: Option<f64>,
    /// The 99th percentile of that time.
    pub p99_seconds: Option<f64>,
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
    /// The reason: `full`, `no_inodes`, `failing`, `broken` or `index_damaged`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The maximum size of the blocks that may be evicted, in bytes (`cache.disk_bytes_max`). Pinned blocks do not
    /// count.
    #[serde(default)]
    pub disk_budget_bytes: u64,
    /// The size of all stored blocks, in bytes.
    #[serde(default)]
    pub disk_used_bytes: u64,
    /// The space of the data folder's file system that the process may still use, in bytes; `null` while it cannot be
    /// read.
    #[serde(default)]
    pub disk_free_bytes: Option<u64>,
    /// The size of the data folder's file system, in bytes; `null` while it cannot be read.
    #[serde(default)]
    pub disk_size_bytes: Option<u64>,
    /// The maximum of bytes in memory (`cache.ram_bytes_max`).
    #[serde(default)]
    pub ram_budget_bytes: u64,
}

/// The resource usage of the process. Each is `null` where the operating system does not tell it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessView {
    /// CPU time since the start, in user space and in the kernel, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory, in bytes.
    pub resident_bytes: Option<u64>,
    /// Open file descriptors, of which each connection takes one.
    pub open_files: Option<u64>,
    /// The maximum number of open file descriptors.
    pub open_files_max: Option<u64>,
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
    /// Blocks from the shared storage of the site; only if the gateway belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site_hits: Option<f64>,
    /// Blocks from the network.
    pub network_hits: f64,
    /// Bytes received from peers.
    pub p2p_received_bytes: f64,
    /// Bytes sent to peers.
    pub p2p_sent_bytes: f64,
    /// Responses with a status of the class 5xx.
    #[serde(default)]
    pub errors: f64,
    /// Answered requests by tier, as in `http.tiers`.
    #[serde(default)]
    pub requests_by_tier: BTreeMap<String, f64>,
    /// Bytes of response bodies by tier.
    #[serde(default)]
    pub bytes_by_tier: BTreeMap<String, f64>,
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
    /// The responses of the last minute by tier, as in `http.tiers`; of the time since the start if that is shorter.
    #[serde(default)]
    pub recent: BTreeMap<String, RecentTierView>,
    /// The process.
    #[serde(default)]
    pub process: ProcessView,
}
