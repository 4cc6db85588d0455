//! Connected peers and bandwidth.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A connection to a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionView {
    /// The remote address.
    pub address: String,
    /// The direction: `in` if the peer dialled, `out` if this node did.
    pub direction: String,
}

/// A connected peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PeerView {
    /// The peer ID.
    pub peer_id: String,
    /// The connections, oldest first.
    pub connections: Vec<ConnectionView>,
    /// How long it has been connected, in seconds.
    pub connected_seconds: f64,
    /// The agent version from the identify protocol.
    pub agent: Option<String>,
    /// The protocols from the identify protocol.
    pub protocols: Vec<String>,
    /// The last round-trip time of a ping, in seconds.
    pub rtt_seconds: Option<f64>,
    /// Bytes of Bitswap messages from the peer.
    pub bitswap_received_bytes: u64,
    /// Bytes of Bitswap messages to the peer.
    pub bitswap_sent_bytes: u64,
    /// Whether requested blocks of this peer are outstanding.
    pub owes_blocks: bool,
    /// The time since it last sent a requested block, in seconds.
    pub useful_seconds_ago: Option<f64>,
    /// Whether it is a configured peer, which always has a slot.
    pub is_trusted: bool,
    /// Whether it is served with the lowest priority, because it misbehaved.
    pub is_throttled: bool,
}

/// The connected peers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PeersView {
    /// The number of peers.
    pub count: usize,
    /// The peers, the oldest connections first.
    pub peers: Vec<PeerView>,
}

/// Connects to a peer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectRequest {
    /// A multiaddr that ends in `/p2p/ID`; or `/p2p/ID` or an ID alone, whose addresses are looked up in the DHT.
    pub address: String,
    /// The timeout, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 120)]
    pub timeout_seconds: Option<u64>,
}

/// The result of connecting to a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectedView {
    /// The peer.
    pub peer_id: String,
    /// The remote address.
    pub address: String,
    /// Whether it was already connected.
    pub already: bool,
}

/// The result of disconnecting from a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DisconnectedView {
    /// The peer.
    pub peer_id: String,
}

/// The traffic with peers, in bytes since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BandwidthView {
    /// Bytes received over all transports, except circuits, whose bytes are counted in another transport.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// The same by transport: `tcp`, `quic`, `websocket`, `circuit`.
    pub transports: Vec<CarriedView>,
    /// The Bitswap traffic with the peers that are connected now.
    pub bitswap: TrafficView,
}

/// The traffic of a transport.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CarriedView {
    /// Its name.
    pub transport: String,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}

/// Traffic in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrafficView {
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}
