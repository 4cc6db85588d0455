//! Bitswap 1.2.0 (1.1.0 and 1.0.0 with older peers), client and server.
//!
//! | module | concern |
//! |---|---|
//! | [`message`] | the wire format, decoded within limits |
//! | [`framing`](crate::framing) | length-prefixed frames, read within a byte budget |
//! | [`client`] | client: which peers to ask for which blocks, a state machine without I/O |
//! | [`outbox`] | pending wantlist changes, the latest for each CID |
//! | [`server`] | server: which want to answer next, a state machine without I/O |
//! | [`traffic`](crate::traffic) | traffic state that the connections to a peer share |
//! | [`handler`] | connection handler: streams, verification, delivery |
//! | [`behaviour`] | the network behaviour |

pub mod behaviour;
pub mod client;
pub mod handler;
pub mod http_peers;
pub mod message;
pub mod outbox;
pub mod server;
