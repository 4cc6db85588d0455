//! Bitswap 1.2.0 (and 1.1.0, 1.0.0 to older peers): asking for blocks and answering for them.
//!
//! | module | concern |
//! |---|---|
//! | [`message`] | the wire format, decoded within limits |
//! | [`framing`] | length-prefixed frames, read within a byte budget |
//! | [`client`] | whom to ask for what: a state machine without I/O |
//! | [`server`] | whom to answer next: a state machine without I/O |
//! | [`handler`] | one connection: streams, hashing, delivery |
//! | [`behaviour`] | joins them to the swarm |

pub mod behaviour;
pub mod client;
pub mod framing;
pub mod handler;
pub mod message;
pub mod server;
