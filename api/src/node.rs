//! The node: release, listeners, identity.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Its name among peers.
    pub peer_id: String,
    /// Where peers reach it now; nowhere if it is offline.
    pub addresses: Vec<String>,
    /// The release.
    pub version: String,
    /// When it was started.
    pub started_at: u64,
    /// For how long it has run.
    pub uptime_seconds: f64,
    /// Addresses and ports that answer the public.
    pub gateway_listeners: Vec<String>,
    /// Addresses and ports that answer the operator.
    pub admin_listeners: Vec<String>,
    /// `starting`, `serving` or `draining`.
    pub stage: String,
    /// Whether the process is about to end.
    pub stopping: bool,
    /// Whether it asks nobody and answers no peers.
    pub offline: bool,
    /// Connected peers.
    #[serde(default)]
    pub peers: usize,
    /// What to do if it has none although it is online.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The root of the welcome site, unless it is switched off or unpinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub welcome: Option<String>,
}
