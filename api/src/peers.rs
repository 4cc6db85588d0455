//! Connected peers and bandwidth.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A connection with a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionView {
    /// Where the peer is.
    pub address: String,
    /// `in`: the peer opened it; `out`: we did.
    pub direction: String,
}

/// A connected peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PeerView {
    /// Its name.
    pub peer_id: String,
    /// Its connections, oldest first.
    pub connections: Vec<ConnectionView>,
    /// For how long it has been connected.
    pub connected_seconds: f64,
    /// What it calls itself, once it said so.
    pub agent: Option<String>,
    /// The protocols that it says it speaks.
    pub protocols: Vec<String>,
    /// The last round trip of a ping.
    pub rtt_seconds: Option<f64>,
    /// Bytes of its Bitswap messages.
    pub bitswap_received_bytes: u64,
    /// Bytes of Bitswap messages that it took.
    pub bitswap_sent_bytes: u64,
    /// Whether it owes us blocks now.
    pub owes_blocks: bool,
    /// How long ago it sent a block that was wanted.
    pub useful_seconds_ago: Option<f64>,
    /// Whether the operator named it: it always has a place.
    pub is_trusted: bool,
    /// Whether it is served last, for what it did.
    pub is_throttled: bool,
}

/// The connected peers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PeersView {
    /// How many there are.
    pub count: usize,
    /// Those that have been connected for longest come first.
    pub peers: Vec<PeerView>,
}

/// Whom to connect with.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectRequest {
    /// A multiaddr that ends in `/p2p/ID`; or `/p2p/ID` alone, or an ID, for which the DHT is asked.
    pub address: String,
    /// How long it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 120)]
    pub timeout_seconds: Option<u64>,
}

/// A connection that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectedView {
    /// The peer.
    pub peer_id: String,
    /// Where it is.
    pub address: String,
    /// Whether it was connected before.
    pub already: bool,
}

/// A peer that was let go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DisconnectedView {
    /// The peer.
    pub peer_id: String,
}

/// What travelled between peers, in bytes since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BandwidthView {
    /// What came, over all transports but circuits, whose bytes come over another.
    pub received_bytes: u64,
    /// What left.
    pub sent_bytes: u64,
    /// The same by transport: `tcp`, `quic`, `websocket`, `circuit`.
    pub transports: Vec<CarriedView>,
    /// Bitswap's part of it with the peers that are connected now.
    pub bitswap: TrafficView,
}

/// What a transport carried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CarriedView {
    /// Its name.
    pub transport: String,
    /// Bytes that came.
    pub received_bytes: u64,
    /// Bytes that left.
    pub sent_bytes: u64,
}

/// Bytes both ways.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrafficView {
    /// Bytes that came.
    pub received_bytes: u64,
    /// Bytes that left.
    pub sent_bytes: u64,
}
