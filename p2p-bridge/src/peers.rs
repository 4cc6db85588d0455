//! What is known of connected peers, and of those who have a DAG, for whoever looks after the node.
//!
//! It is put together when somebody asks. What peers say of themselves is cut to a length, and nothing that they send
//! makes a list longer than the constants here.

use crate::bitswap::client::inspection::SessionState;
pub use crate::bitswap::traffic::BitswapBytes;
use crate::discovery::history::SearchRecord;
use libp2p::{Multiaddr, PeerId, StreamProtocol, identify};
use std::sync::Arc;
use std::time::Duration;

/// Characters of what a peer calls itself.
const AGENT_CHARS_MAX: usize = 96;
/// Protocols of one peer, and characters of one.
const PROTOCOLS_MAX: usize = 64;
const PROTOCOL_CHARS_MAX: usize = 96;

/// Who opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The peer.
    Inbound,
    /// We.
    Outbound,
}

/// One connection with a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConnection {
    /// Where the peer is.
    pub address: Multiaddr,
    /// Who opened it.
    pub direction: Direction,
}

/// A connected peer.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectedPeer {
    /// Its name.
    pub peer: PeerId,
    /// Its connections, oldest first.
    pub connections: Vec<PeerConnection>,
    /// For how long it has been connected.
    pub connected_for: Duration,
    /// What it calls itself, once it said so.
    pub agent: Option<Arc<str>>,
    /// The protocols that it speaks, as it says.
    pub protocols: Vec<String>,
    /// The last round trip of a ping.
    pub rtt: Option<Duration>,
    /// What Bitswap had from it and gave it, framing included.
    pub bitswap: BitswapBytes,
    /// Whether it owes us blocks now.
    pub owes_blocks: bool,
    /// How long ago it sent a block that was wanted.
    pub useful_ago: Option<Duration>,
    /// Whether the operator named it.
    pub is_trusted: bool,
    /// Whether it is served last, for what it did.
    pub is_throttled: bool,
}

/// What is known of a DAG and of those who have it.
#[derive(Debug, Clone, PartialEq)]
pub struct RootState {
    /// What those who read it share; none if nobody has of late.
    pub session: Option<SessionState>,
    /// How the last search for its providers went, if there was one.
    pub search: Option<SearchRecord>,
    /// Who had it when it was last read, and where they were, best first.
    pub remembered: Vec<(PeerId, Vec<Multiaddr>)>,
}

/// How much the network has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Connected peers.
    pub peers: usize,
    /// DAGs that are being read, or were a moment ago.
    pub sessions: usize,
    /// Blocks that somebody waits for.
    pub wants: usize,
    /// Searches for providers under way.
    pub searches: usize,
}

/// How long the network takes: sums of seconds, and how many were added up, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latency {
    /// Until the first peer proved to hold a DAG.
    pub discovery: (f64, u64),
    /// From asking a peer for a block to its arrival.
    pub transfer: (f64, u64),
}

/// What a peer said of itself, cut to size.
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
