//! `/api/v1/peers` and `/api/v1/bandwidth`: connected peers, their traffic, and connecting and disconnecting on
//! request.

use crate::http::answer::{Answer, ApiError, json, stopping};
use crate::http::error_responses::BadRequest;
use crate::http::extract::Audited;
use crate::http::parameters::{Parameters, bad_request, read_body};
use crate::operations::Operations;
use api::error::ErrorView;
use api::peers::{
    BandwidthView, CarriedView, ConnectRequest, ConnectedView, ConnectionView, DisconnectedView, PeerView, PeersView,
    TrafficView,
};
use api::text::seconds;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use bytes::Bytes;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::connecting::{AddressOrigin, ConnectError};
use p2p_bridge::peers::{ConnectedPeer, Direction};
use p2p_bridge::redial::peer_of;
use services::audit::ResponseDetail;
use std::time::Duration;

/// The default and maximum number of peers in an answer.
const PEERS_MAX: usize = 10_000;
/// The default timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum timeout of a connection attempt, in seconds.
const CONNECT_TIMEOUT_SECONDS_MAX: u64 = 120;

pub(super) fn peer_view(peer: ConnectedPeer) -> PeerView {
    let connections = peer.connections.iter().map(|connection| ConnectionView {
        address: connection.address.to_string(),
        direction: match connection.direction {
            Direction::Inbound => "in".to_owned(),
            Direction::Outbound => "out".to_owned(),
        },
    });
    PeerView {
        peer_id: peer.peer.to_string(),
        connections: connections.collect(),
        connected_seconds: seconds(peer.connected_for),
        agent: peer.agent.map(|agent| agent.to_string()),
        protocols: peer.protocols,
        rtt_seconds: peer.rtt.map(seconds),
        bitswap_received_bytes: peer.bitswap.received,
        bitswap_sent_bytes: peer.bitswap.sent,
        owes_blocks: peer.owes_blocks,
        useful_seconds_ago: peer.useful_ago.map(seconds),
        is_trusted: peer.is_trusted,
        is_throttled: peer.is_throttled,
    }
}

/// The connected peers.
#[utoipa::path(get, path = "/api/v1/peers", tag = "operations", security(("bearer" = ["read"])),
    params(("limit" = Option<usize>, Query, minimum = 1, maximum = 10000, description = "The maximum number of peers")),
    responses((status = 200, description = "The peers", body = PeersView), BadRequest))]
pub async fn list(State(operations): State<Operations>, uri: Uri) -> Answer {
    let limit = Parameters::of(&uri, &["limit"])?.number("limit", 1..=PEERS_MAX)?.unwrap_or(PEERS_MAX);
    let peers = match &operations.parts().bridge {
        Some(bridge) => bridge.peers().await,
        None => Vec::new(),
    };
    let count = peers.len();
    Ok(json(StatusCode::OK, &PeersView { count, peers: peers.into_iter().take(limit).map(peer_view).collect() }))
}

/// Connects to a peer, and waits for the result.
#[utoipa::path(post, path = "/api/v1/peers/connect", tag = "operations", security(("bearer" = ["operate"])),
    request_body(content = ConnectRequest, content_type = "application/json"),
    responses((status = 200, description = "The peer is connected", body = ConnectedView), BadRequest,
        (status = 409, description = "The gateway is offline, or the peer ID is its own", body = ErrorView),
        (status = 422, description = "The peer cannot be reached; the error says why", body = ErrorView)))]
pub async fn connect(State(operations): State<Operations>, Audited(audit_context): Audited, body: Bytes) -> Answer {
    let request: ConnectRequest = read_body(&body)?;
    audit_context.note(&request);
    let ConnectRequest { address, timeout_seconds } = request;
    let (peer, addresses) = read_peer(&address)?;
    let connect_timeout = match timeout_seconds {
        None => CONNECT_TIMEOUT,
        Some(connect_timeout) if (1..=CONNECT_TIMEOUT_SECONDS_MAX).contains(&connect_timeout) => {
            Duration::from_secs(connect_timeout)
        }
        Some(_) => return Err(bad_request(format!("timeout_seconds must be from 1 to {CONNECT_TIMEOUT_SECONDS_MAX}"))),
    };
    let connected = operations.bridge()?.connect(peer, addresses, AddressOrigin::Operator, connect_timeout).await;
    let connected = connected.map_err(|error| connect_error(&error))?;
    let (peer_id, address) = (connected.peer.to_string(), connected.address.to_string());
    let view = ConnectedView { peer_id, address, already: connected.already };
    Ok(ResponseDetail::of(&view).with(json(StatusCode::OK, &view)))
}

/// Closes all connections with a peer. The peer may connect again.
#[utoipa::path(delete, path = "/api/v1/peers/{peer_id}", tag = "operations", security(("bearer" = ["operate"])),
    params(("peer_id" = String, Path, description = "The peer ID")),
    responses((status = 200, description = "The peer is disconnected", body = DisconnectedView), BadRequest,
        (status = 409, description = "The gateway is offline", body = ErrorView)))]
pub async fn disconnect(State(operations): State<Operations>, Path(peer_id): Path<String>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let peer: PeerId = peer_id.parse().map_err(|_| not_a_peer(&peer_id))?;
    if !operations.bridge()?.disconnect(peer).await {
        return Err(ApiError(StatusCode::NOT_FOUND, format!("{peer} is not connected")));
    }
    Ok(json(StatusCode::OK, &DisconnectedView { peer_id: peer.to_string() }))
}

/// The traffic with peers since the start.
#[utoipa::path(get, path = "/api/v1/bandwidth", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The traffic in bytes", body = BandwidthView), BadRequest))]
pub async fn bandwidth(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    Ok(json(StatusCode::OK, &operations.bandwidth_view().await))
}

impl Operations {
    async fn bandwidth_view(&self) -> BandwidthView {
        let mut bitswap = TrafficView::default();
        let transports = self.carried();
        if let Some(bridge) = &self.parts().bridge {
            for peer in bridge.peers().await {
                bitswap.received_bytes += peer.bitswap.received;
                bitswap.sent_bytes += peer.bitswap.sent;
            }
        }
        let direct = || transports.iter().filter(|carried| carried.transport != "circuit");
        BandwidthView {
            received_bytes: direct().map(|carried| carried.received_bytes).sum(),
            sent_bytes: direct().map(|carried| carried.sent_bytes).sum(),
            transports: transports.clone(),
            bitswap,
        }
    }

    /// The traffic by transport.
    pub(super) fn carried(&self) -> Vec<CarriedView> {
        let carried = self.parts().bridge.as_ref().map(p2p_bridge::Bridge::carried).unwrap_or_default();
        let view = |carried: p2p_bridge::counted::TransportBytes| CarriedView {
            transport: carried.via.label().to_owned(),
            received_bytes: carried.received,
            sent_bytes: carried.sent,
        };
        carried.into_iter().map(view).collect()
    }
}

fn not_a_peer(text: &str) -> ApiError {
    let text: String = text.chars().take(100).collect();
    bad_request(format!("\"{text}\" is neither a peer ID, such as 12D3KooW…, nor a multiaddr that ends in /p2p/ID"))
}

/// Parses a peer ID, or a multiaddr that ends in one.
fn read_peer(text: &str) -> Result<(PeerId, Vec<Multiaddr>), ApiError> {
    let bare = text.strip_prefix("/p2p/").unwrap_or(text);
    if let Ok(peer) = bare.parse() {
        return Ok((peer, Vec::new()));
    }
    let address: Multiaddr = text.parse().map_err(|_| not_a_peer(text))?;
    let peer = peer_of(&address).ok_or_else(|| not_a_peer(text))?;
    Ok((peer, vec![address]))
}

fn connect_error(error: &ConnectError) -> ApiError {
    let status = match error {
        ConnectError::Ourselves => StatusCode::CONFLICT,
        ConnectError::TooMany => StatusCode::BAD_REQUEST,
        ConnectError::Stopped => return stopping(),
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    ApiError(status, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_with_and_without_an_address() {
        const PEER: &str = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo";
        let table = [
            (PEER.to_owned(), Some(0)),
            (format!("/p2p/{PEER}"), Some(0)),
            (format!("/ip4/192.0.2.1/tcp/4001/p2p/{PEER}"), Some(1)),
            (format!("/ip4/192.0.2.1/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{PEER}"), Some(1)),
            ("/ip4/192.0.2.1/tcp/4001".to_owned(), None),
            (format!("/ip4/192.0.2.1/tcp/4001/p2p/{PEER}/p2p-circuit"), None),
            ("nobody".to_owned(), None),
            (String::new(), None),
        ];
        for (text, expected) in table {
            let read = read_peer(&text).map(|(peer, addresses)| (peer.to_string(), addresses.len()));
            assert_eq!(read.ok(), expected.map(|count| (PEER.to_owned(), count)), "{text}");
        }
    }
}
