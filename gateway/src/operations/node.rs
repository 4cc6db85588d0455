//! `GET /api/v1/node`: which node this is, and where it is to be found.

use super::Operations;
use crate::admin::answer::{Answer, json, seconds};
use crate::admin::parameters::Parameters;
use crate::admin::refusals::WrongRequest;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use p2p_bridge::epoch;
use p2p_bridge::no_peers::ADVICE;
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

/// Which node this is, and where it is to be found.
#[utoipa::path(get, path = "/api/v1/node", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The node", body = NodeView), WrongRequest))]
pub async fn read(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let parts = operations.parts();
    let (addresses, peers) = match &parts.bridge {
        Some(bridge) => (bridge.addresses().await, bridge.load().await.peers),
        None => (Vec::new(), 0),
    };
    let (started, since) = operations.inner.since;
    let stage = operations.stage();
    let view = NodeView {
        peer_id: parts.places.peer_id.to_string(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: epoch::seconds(started),
        uptime_seconds: seconds(since.elapsed()),
        gateway_listeners: parts.places.gateway.iter().map(ToString::to_string).collect(),
        admin_listeners: parts.places.admin.iter().map(ToString::to_string).collect(),
        stage: stage.stage,
        stopping: stage.stopping,
        offline: parts.bridge.is_none(),
        peers,
        advice: (parts.bridge.is_some() && peers == 0).then(|| format!("this node has no peers: {ADVICE}")),
        welcome: parts.places.welcome.as_ref().map(ToString::to_string),
    };
    Ok(json(StatusCode::OK, &view))
}
