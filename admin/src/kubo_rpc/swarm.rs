//! `swarm/…`: connected peers, their addresses, and connecting on request.

use crate::kubo_rpc::answer::{self, Answer, Output};
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::command::{self, Answers, Arguments, Command, Input};
use crate::kubo_rpc::node::IdView;
use crate::kubo_rpc::problem::RpcError;
use crate::kubo_rpc::{Rpc, duration};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use content::names::Key;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::connecting::{AddressOrigin, ConnectError};
use p2p_bridge::peers::{ConnectedPeer, Direction};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use utoipa::ToSchema;

/// The timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The error of an offline node.
const OFFLINE: &str = "this node is offline: it has no peers";

/// `swarm/peers`
pub static PEERS: Command = Command {
    path: "swarm/peers",
    arguments: Arguments::NONE,
    options: &[
        command::flag("verbose", "Whether all of the following is shown.").or("v"),
        command::flag("streams", "Whether the protocols of each peer are shown."),
        command::flag("latency", "Whether the latest round-trip time of a ping is shown."),
        command::flag("direction", "Whether the direction of each connection is shown."),
        command::flag("identify", "Whether each peer's identify information is shown."),
    ],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `swarm/connect`
pub static CONNECT: Command = Command {
    path: "swarm/connect",
    arguments: Arguments::several(1, "Multiaddrs that end in /p2p/ID, or /p2p/ID alone."),
    options: &[],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `swarm/addrs`
pub static ADDRS: Command = Command {
    path: "swarm/addrs",
    arguments: Arguments::NONE,
    options: &[],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// `swarm/addrs/local`
pub static ADDRS_LOCAL: Command = Command {
    path: "swarm/addrs/local",
    arguments: Arguments::NONE,
    options: &[command::flag("id", "Whether the addresses end in the node's peer ID.")],
    body: Input::Arguments,
    answers: Answers::Value,
};

/// Connected peers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct SwarmPeersView {
    /// One entry for each connection, sorted by peer.
    pub peers: Vec<SwarmPeerView>,
}

/// A connection with a peer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct SwarmPeerView {
    /// The peer's address.
    pub addr: String,
    /// Its peer ID.
    pub peer: String,
    /// The round-trip time of a ping, with the option "latency".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
    /// 1 for inbound, 2 for outbound, with the option "direction".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<u8>,
    /// The peer's protocols, with the option "streams".
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<SwarmStreamView>,
    /// The peer's identify information; empty without the option "identify".
    pub identify: IdView,
}

/// A protocol.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct SwarmStreamView {
    /// Its name.
    pub protocol: String,
}

impl Output for SwarmPeersView {
    fn text(&self) -> String {
        let line = |peer: &SwarmPeerView| {
            let latency = peer.latency.as_ref().map(|latency| format!(" {latency}")).unwrap_or_default();
            format!("{}/p2p/{}{latency}\n", peer.addr, peer.peer)
        };
        self.peers.iter().map(line).collect()
    }
}

/// Strings.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct StringsView {
    /// The strings.
    pub strings: Vec<String>,
}

impl Output for StringsView {
    fn text(&self) -> String {
        self.strings.iter().map(|text| format!("{text}\n")).collect()
    }
}

/// Addresses of peers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub struct SwarmAddrsView {
    /// The addresses by peer ID.
    pub addrs: BTreeMap<String, Vec<String>>,
}

impl Output for SwarmAddrsView {
    fn text(&self) -> String {
        let peer = |(peer, addresses): (&String, &Vec<String>)| {
            let lines: String = addresses.iter().map(|address| format!("\t{address}\n")).collect();
            format!("{peer} ({})\n{lines}", addresses.len())
        };
        self.addrs.iter().map(peer).collect()
    }
}

/// Lists connected peers.
#[utoipa::path(post, path = "/api/v0/swarm/peers", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The connections.", body = SwarmPeersView)))]
pub async fn peers(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::of(&PEERS, &request.into_parts().0)?;
    call.within(async {
        let mut peers: Vec<_> = rpc.connected().await.iter().flat_map(|peer| views(&call, peer)).collect();
        peers.sort_by(|one, other| (&one.peer, &one.addr).cmp(&(&other.peer, &other.addr)));
        Ok(answer::once(&call, &SwarmPeersView { peers }))
    })
    .await
}

fn views(call: &Call, peer: &ConnectedPeer) -> Vec<SwarmPeerView> {
    let is_requested = |name| call.flag("verbose") == Some(true) || call.flag(name) == Some(true);
    let [latency, direction, streams, identify] = ["latency", "direction", "streams", "identify"].map(is_requested);
    let id = peer.peer.to_base58();
    let view = |connection: &p2p_bridge::peers::PeerConnection| SwarmPeerView {
        addr: without_peer(&connection.address).to_string(),
        peer: id.clone(),
        latency: latency.then(|| peer.rtt.map_or_else(|| "n/a".to_owned(), duration::show)),
        direction: direction.then_some(match connection.direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        }),
        streams: match streams {
            true => peer.protocols.iter().map(|protocol| SwarmStreamView { protocol: protocol.clone() }).collect(),
            false => Vec::new(),
        },
        identify: if identify { identity(peer) } else { IdView::default() },
    };
    peer.connections.iter().map(view).collect()
}

/// The identify information of a connected peer.
pub fn identity(peer: &ConnectedPeer) -> IdView {
    let id = peer.peer.to_base58();
    let addresses = peer.connections.iter().map(|connection| format!("{}/p2p/{id}", without_peer(&connection.address)));
    let mut protocols = peer.protocols.clone();
    protocols.sort_unstable();
    IdView {
        addresses: addresses.collect(),
        id,
        public_key: String::new(),
        agent_version: peer.agent.as_deref().unwrap_or_default().to_owned(),
        protocols,
    }
}

/// An address without its final peer ID.
fn without_peer(address: &Multiaddr) -> Multiaddr {
    let mut address = address.clone();
    if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
        address.pop();
    }
    address
}

/// Lists the addresses of connected peers.
#[utoipa::path(post, path = "/api/v0/swarm/addrs", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The addresses, by peer.", body = SwarmAddrsView)))]
pub async fn addrs(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::of(&ADDRS, &request.into_parts().0)?;
    call.within(async {
        let connected = rpc.connected().await;
        let of = |peer: &ConnectedPeer| {
            let addresses = peer.connections.iter().map(|connection| without_peer(&connection.address).to_string());
            (peer.peer.to_base58(), addresses.collect())
        };
        Ok(answer::once(&call, &SwarmAddrsView { addrs: connected.iter().map(of).collect() }))
    })
    .await
}

/// Lists this node's own addresses.
#[utoipa::path(post, path = "/api/v0/swarm/addrs/local", tag = "kubo", security(("bearer" = ["read"])), responses(
    (status = 200, description = "The addresses.", body = StringsView)))]
pub async fn addrs_local(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::of(&ADDRS_LOCAL, &request.into_parts().0)?;
    let mut strings = rpc.addresses().await;
    if call.flag("id") != Some(true) {
        let short = |address: &String| address.parse().map(|address| without_peer(&address).to_string());
        strings = strings.iter().filter_map(|address| short(address).ok()).collect();
    }
    Ok(answer::once(&call, &StringsView { strings }))
}

/// Connects to peers.
#[utoipa::path(post, path = "/api/v0/swarm/connect", tag = "kubo", security(("bearer" = ["operate"])), responses(
    (status = 200, description = "A string for each peer.", body = StringsView)))]
pub async fn connect(State(rpc): State<Rpc>, request: Request) -> Answer {
    let call = Call::receive(&CONNECT, request).await?;
    let peers = by_peer(&call.arguments)?;
    call.within(async {
        let bridge = rpc.bridge.as_ref().ok_or_else(|| RpcError::unprocessable(OFFLINE))?;
        let mut strings = Vec::with_capacity(peers.len());
        for (peer, addresses) in peers {
            let connected = bridge.connect(peer, addresses, AddressOrigin::Operator, CONNECT_TIMEOUT).await;
            connected.map_err(|error| failed(&peer, &error))?;
            strings.push(format!("connect {peer} success"));
        }
        Ok(answer::once(&call, &StringsView { strings }))
    })
    .await
}

fn failed(peer: &PeerId, error: &ConnectError) -> RpcError {
    let status = match error {
        ConnectError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
        ConnectError::NoRoom => StatusCode::TOO_MANY_REQUESTS,
        // An unreachable peer is not an error of the node.
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    RpcError { status, message: format!("connect {peer} failure: {error}") }
}

/// The addresses of each peer, in the order of the peers' first arguments.
fn by_peer(arguments: &[String]) -> Result<Vec<(PeerId, Vec<Multiaddr>)>, RpcError> {
    let mut peers: Vec<(PeerId, Vec<Multiaddr>)> = Vec::new();
    for argument in arguments {
        let bad =
            |reason: String| RpcError::bad_request(format!("\"{argument}\" is not the address of a peer: {reason}"));
        let address: Multiaddr = argument.parse().map_err(|error| bad(format!("{error}")))?;
        let Some(Protocol::P2p(peer)) = address.iter().last() else {
            return Err(bad("it does not end in /p2p/ and a peer ID".to_owned()));
        };
        let index = peers.iter().position(|(known, _)| *known == peer).unwrap_or_else(|| {
            peers.push((peer, Vec::new()));
            peers.len() - 1
        });
        let bare = without_peer(&address);
        if let Some((_, addresses)) = peers.get_mut(index).filter(|_| !bare.is_empty()) {
            addresses.push(bare);
        }
    }
    Ok(peers)
}

impl Rpc {
    async fn connected(&self) -> Vec<ConnectedPeer> {
        match &self.bridge {
            Some(bridge) => bridge.peers().await,
            None => Vec::new(),
        }
    }

    /// The identify information of another peer, if it is connected.
    pub async fn peer(&self, key: &Key) -> Option<IdView> {
        let connected = self.connected().await;
        connected.iter().find(|peer| peer.peer == *key.peer_id()).map(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
    const OTHER: &str = "12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK";

    #[test]
    fn addresses_are_grouped_by_peer() {
        let arguments = [
            format!("/ip4/127.0.0.1/tcp/1/p2p/{ONE}"),
            format!("/p2p/{OTHER}"),
            format!("/ip4/127.0.0.1/udp/2/quic-v1/p2p/{ONE}"),
        ];
        let found = by_peer(&arguments).expect("addresses");
        let shown: Vec<_> = found.iter().map(|(peer, addresses)| (peer.to_string(), addresses.len())).collect();
        assert_eq!(shown, [(ONE.to_owned(), 2), (OTHER.to_owned(), 0)]);
        for bad in ["", "hello", "/ip4/127.0.0.1/tcp/1", "/ip4/1/tcp/1/p2p/x", &format!("/p2p/{ONE}/p2p-circuit")] {
            assert_eq!(by_peer(&[bad.to_owned()]).expect_err(bad).status, 400, "{bad}");
        }
    }
}
