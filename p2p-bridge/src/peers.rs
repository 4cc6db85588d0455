//! The state of connected peers, and of a DAG's providers, for the API.
//!
//! It is collected on request. Values that peers report are truncated to the limits here.

use crate::bitswap::client::inspection::SessionState;
use crate::discovery::history::SearchRecord;
pub use crate::traffic::BitswapBytes;
use libp2p::{Multiaddr, PeerId, StreamProtocol, identify};
use std::sync::Arc;
use std::time::Duration;

/// The maximum length of a peer's agent version, in characters.
const AGENT_CHARS_MAX: usize = 96;
/// The maximum number of a peer's protocols, and the maximum length of one in characters.
const PROTOCOLS_MAX: usize = 64;
const PROTOCOL_CHARS_MAX: usize = 96;

/// Who opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The peer opened it.
    Inbound,
    /// This node opened it.
    Outbound,
}

/// One connection with a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConnection {
    /// The peer's address.
    pub address: Multiaddr,
    /// Who opened it.
    pub direction: Direction,
}

/// A connected peer.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectedPeer {
    /// Its peer ID.
    pub peer: PeerId,
    /// Its connections, oldest first.
    pub connections: Vec<PeerConnection>,
    /// How long it has been connected.
    pub connected_for: Duration,
    /// Its agent version, once identify has received it.
    pub agent: Option<Arc<str>>,
    /// The protocols that it reported by identify.
    pub protocols: Vec<String>,
    /// The round-trip time of the last ping.
    pub rtt: Option<Duration>,
    /// Bytes that Bitswap received from it and sent to it, framing included.
    pub bitswap: BitswapBytes,
    /// Whether requested blocks are outstanding.
    pub owes_blocks: bool,
    /// The time since it last sent a wanted block.
    pub useful_ago: Option<Duration>,
    /// Whether the operator configured it.
    pub is_trusted: bool,
    /// Whether it is served with lower priority because of misbehaviour.
    pub is_throttled: bool,
}

/// The state of a DAG and its providers.
#[derive(Debug, Clone, PartialEq)]
pub struct RootState {
    /// The session of the DAG, if one is open.
    pub session: Option<SessionState>,
    /// The result of the last search for its providers, if there was one.
    pub search: Option<SearchRecord>,
    /// Cached providers and their addresses, best first.
    pub remembered: Vec<(PeerId, Vec<Multiaddr>)>,
}

/// The load of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Connected peers.
    pub peers: usize,
    /// Open sessions: DAGs that are being read, or were until recently.
    pub sessions: usize,
    /// Blocks that are waited for.
    pub wants: usize,
    /// Running searches for providers.
    pub searches: usize,
}

/// Latencies since the start: sums in seconds, and numbers of observations.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latency {
    /// From a session's start to the first peer that has blocks of its DAG.
    pub discovery: (f64, u64),
    /// From requesting a block from a peer to receiving it.
    pub transfer: (f64, u64),
}

/// What a peer reported by identify, truncated.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub agent: Arc<str>,
    pub protocols: Vec<StreamProtocol>,
}

impl Identity {
    pub fn of(info: &identify::Info) -> Self {
        let agent: String = info.agent_version.chars().filter(|c| !c.is_control()).take(AGENT_CHARS_MAX).collect();
        let short = |protocol: &&StreamProtocol| protocol.as_ref().len() <= PROTOCOL_CHARS_MAX;
        let protocols = info.protocols.iter().filter(short).take(PROTOCOLS_MAX).cloned().collect();
        Self { agent: agent.into(), protocols }
    }
}
