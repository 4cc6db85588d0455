//! Figures of the running node, in total and for the last second.

use crate::peers::CarriedView;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// What a tier was asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TierView {
    /// Blocks that it had, since the start.
    pub hits: u64,
    /// Blocks that it did not have.
    pub misses: u64,
    /// Questions that it failed to answer.
    pub errors: u64,
    /// Bytes of the blocks that it had.
    pub bytes: u64,
}

/// The local tiers and the network behind them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TiersView {
    /// Memory.
    pub ram: TierView,
    /// The store.
    pub disk: TierView,
    /// Whoever is asked for what is not here.
    pub network: TierView,
}

/// What the public listener did since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HttpView {
    /// Requests that were answered, by the class of the status: `2xx` to `5xx`.
    pub requests: BTreeMap<String, u64>,
    /// Requests that are being answered.
    pub in_flight: i64,
    /// Those of them that were not answered at once.
    pub waiting: usize,
    /// Open connections, the operator's included.
    pub connections: i64,
    /// Bytes of response bodies.
    pub sent_bytes: u64,
    /// Responses that broke off.
    pub aborted: u64,
}

/// What is stored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoreView {
    /// Bytes in memory.
    pub ram_bytes: u64,
    /// Blocks in memory.
    pub ram_blocks: u64,
    /// Blocks on the disk.
    pub blocks: u64,
    /// What those take that may be evicted.
    pub cached_bytes: u64,
    /// What those take that are pinned.
    pub pinned_bytes: u64,
    /// Blocks evicted since the start.
    pub evicted_blocks: u64,
    /// Whether nothing is stored at the moment.
    pub degraded: bool,
    /// Why: `full`, `no_inodes`, `failing` or `broken`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkView {
    /// Connected peers.
    pub peers: usize,
    /// DAGs that are being read from the network, or were a moment ago.
    pub sessions: usize,
    /// Blocks that somebody waits for.
    pub wanted_blocks: usize,
    /// Searches for providers under way.
    pub searches: usize,
    /// What each transport carried since the start.
    pub transports: Vec<CarriedView>,
    /// How long it took on average until the first peer proved to hold a DAG, of those that were found in the last
    /// interval.
    pub discovery_seconds: Option<f64>,
    /// How long it took on average until a block came that a peer was asked for, in the last interval.
    pub transfer_seconds: Option<f64>,
}

/// What happened each second, on average since the last figures; none of it in the first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RatesView {
    /// Requests that were answered.
    pub requests: f64,
    /// Bytes of response bodies.
    pub sent_bytes: f64,
    /// Blocks from memory.
    pub ram_hits: f64,
    /// Blocks from the disk.
    pub disk_hits: f64,
    /// Blocks from the network.
    pub network_hits: f64,
    /// Bytes from peers.
    pub p2p_received_bytes: f64,
    /// Bytes to peers.
    pub p2p_sent_bytes: f64,
}

/// The figures of a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatsView {
    /// When.
    pub taken_at: u64,
    /// For how long the node has run.
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
    /// Pins: `pinned`, `pending` and `failed` ones, and how many roots are being fetched (`active_roots`) or wait for that
    /// (`queued_roots`).
    pub pins: BTreeMap<String, u64>,
    /// What happened each second.
    pub rates: Option<RatesView>,
}
