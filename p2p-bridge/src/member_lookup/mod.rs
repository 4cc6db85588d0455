//! `/causeway/site/1.0.0`: a gateway of a site asks another one for a block.
//!
//! Each root has an owner among the gateways of a site. The others ask it for the blocks below the root, so that the
//! site searches for the providers of a DAG once and fetches it once, however many gateways are asked for it. A gateway
//! fetches for another one what it would fetch for a client of its own; for a peer that is not one of the site, it does
//! nothing.
//!
//! ```text
//! client.rs      a stream of the owner that is idle, or a new one → the look-up → waits → the block, verified
//! breaker.rs     whether a gateway is asked
//! dialling.rs    opens a connection of its own to a gateway
//! handler.rs     streams of a connection, in either direction
//! behaviour.rs   which connection a stream is opened on
//! server.rs      is the peer a gateway of the site? → reads the block, says each second that it is at work → the answer
//! message.rs     the wire format
//! ```
//!
//! Goals: an owner that has ended or hangs costs the first requests a bounded time, and later ones nothing; a look-up ends
//! when its client leaves; what is received is verified; nothing is passed on twice, because a gateway that is asked asks
//! no other one.
//!
//! Non-goals: who is the owner, and who is a gateway of the site, which the `site` crate knows; a DAG in one answer, as
//! in [`crate::dag`]: between gateways that are close to each other, a round trip costs little, and a block is asked for
//! when it is needed. What will be needed next is part of the look-up, because the owner may be far from its source.

pub mod behaviour;
mod breaker;
pub mod client;
pub mod dialling;
pub mod handler;
pub mod message;
pub mod metrics;
pub mod server;
#[cfg(test)]
mod tests;

use content::{Cid, ReadAhead};
use libp2p::{Multiaddr, PeerId, StreamProtocol};

/// The protocol ID.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/causeway/site/1.0.0");

/// A gateway of the site, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberAddress {
    /// Its peer ID.
    pub peer: PeerId,
    /// Its addresses, of which the first few are dialled.
    pub addresses: Vec<Multiaddr>,
}

/// What a gateway asks another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The root below which the block is: searches for providers begin with it.
    pub root: Cid,
    /// The block.
    pub cid: Cid,
    /// Whether a block that is not stored is fetched from the network.
    pub may_fetch: bool,
    /// What will be needed after the block.
    pub ahead: Option<ReadAhead>,
}
