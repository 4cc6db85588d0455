//! The node: release, listeners, identity.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Its peer ID.
    pub peer_id: String,
    /// The addresses that peers can reach; empty if it is offline.
    pub addresses: Vec<String>,
    /// The version of Causeway.
    pub version: String,
    /// When it was started, in seconds since the Unix epoch.
    pub started_at: u64,
    /// The time since the start, in seconds.
    pub uptime_seconds: f64,
    /// The addresses and ports of the public listener.
    pub gateway_listeners: Vec<String>,
    /// The addresses and ports of the admin listener.
    pub admin_listeners: Vec<String>,
    /// `starting`, `serving` or `draining`.
    pub stage: String,
    /// Whether the process is about to stop.
    pub stopping: bool,
    /// Whether it is offline: without any peer-to-peer network.
    pub offline: bool,
    /// The number of connected peers.
    #[serde(default)]
    pub peers: usize,
    /// What to do if it is online without peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The root of the welcome site, unless it is disabled or unpinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub welcome: Option<String>,
}
