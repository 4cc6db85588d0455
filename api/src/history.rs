//! The statistics of the last hour.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A sample: rates are averages over the interval before it, other figures those of its moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistorySampleView {
    /// When it was taken, in seconds since the Unix epoch.
    pub at: u64,
    /// Answered requests per second.
    pub requests: f64,
    /// Responses per second with a status of the class 5xx.
    pub errors: f64,
    /// Bytes of response bodies per second.
    pub sent_bytes: f64,
    /// Blocks from memory per second.
    pub ram_hits: f64,
    /// Blocks from the disk per second.
    pub disk_hits: f64,
    /// Blocks from the shared storage of the site per second; only if the gateway belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site_hits: Option<f64>,
    /// Blocks from the network per second.
    pub network_hits: f64,
    /// The median time to the first byte of the interval's responses, in seconds; `null` without responses.
    pub p50_seconds: Option<f64>,
    /// The 95th percentile of that time.
    pub p95_seconds: Option<f64>,
    /// The 99th percentile of that time.
    pub p99_seconds: Option<f64>,
    /// Connected peers.
    pub peers: usize,
    /// Requests in progress.
    pub in_flight: i64,
    /// Requests in progress that were not answered at once.
    pub waiting: usize,
    /// Bytes received from peers per second.
    pub p2p_received_bytes: f64,
    /// Bytes sent to peers per second.
    pub p2p_sent_bytes: f64,
    /// The size of all stored blocks, in bytes.
    pub disk_used_bytes: u64,
    /// Bytes of blocks in memory.
    pub ram_bytes: u64,
    /// Resident memory of the process, in bytes; `null` where the operating system does not tell it.
    pub resident_bytes: Option<u64>,
}

/// The statistics of the last hour, or since the start of the gateway if that is later.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryView {
    /// The interval between two samples, in seconds.
    pub interval_seconds: u64,
    /// The samples, the oldest first.
    pub samples: Vec<HistorySampleView>,
}
