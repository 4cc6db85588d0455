//! Bitswap 1.2.0 (and 1.1.0, 1.0.0 to older peers): asking for blocks and answering for them.
//!
//! | module | concern |
//! |---|---|
//! | [`message`] | the wire format, decoded within limits |
//! | [`framing`] | length-prefixed frames, read within a byte budget |
//! | [`client`] | whom to ask for what: a state machine without I/O |
//! | [`outbox`] | changes to a wantlist, the last about each CID |
//! | [`server`] | whom to answer next: a state machine without I/O |
//! | [`traffic`] | what the connections with one peer share |
//! | [`handler`] | one connection: streams, hashing, delivery |
//! | [`behaviour`] | joins them to the swarm |

pub mod behaviour;
pub mod client;
pub mod framing;
pub mod handler;
pub mod http_peers;
pub mod message;
pub mod outbox;
pub mod server;
pub mod traffic;
