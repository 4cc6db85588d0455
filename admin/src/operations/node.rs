//! `GET /api/v1/node`: the identity, addresses and state of the node.

use crate::http::answer::{Answer, json};
use crate::http::error_responses::BadRequest;
use crate::http::parameters::Parameters;
use crate::operations::Operations;
use api::node::NodeView;
use api::text::seconds;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use p2p_bridge::epoch;
use p2p_bridge::no_peers::ADVICE;

/// The identity, addresses and state of the node.
#[utoipa::path(get, path = "/api/v1/node", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The node", body = NodeView), BadRequest))]
pub async fn read(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let parts = operations.parts();
    let (addresses, peers) = match &parts.bridge {
        Some(bridge) => (bridge.addresses().await, bridge.load().await.peers),
        None => (Vec::new(), 0),
    };
    let (started_at, started) = operations.inner.started;
    let stage = operations.stage();
    let gateway = parts.addresses.gateway.iter().chain(&parts.addresses.gateway_tls);
    let view = NodeView {
        peer_id: parts.addresses.peer_id.to_string(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: epoch::seconds(started_at),
        uptime_seconds: seconds(started.elapsed()),
        gateway_listeners: gateway.map(ToString::to_string).collect(),
        admin_listeners: parts.addresses.admin.iter().map(ToString::to_string).collect(),
        stage: stage.stage,
        stopping: stage.stopping,
        offline: parts.bridge.is_none(),
        peers,
        advice: (parts.bridge.is_some() && peers == 0).then(|| format!("this node has no peers: {ADVICE}")),
        welcome: parts.addresses.welcome.as_ref().map(ToString::to_string),
    };
    Ok(json(StatusCode::OK, &view))
}
