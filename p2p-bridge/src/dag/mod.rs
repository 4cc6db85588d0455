//! `/causeway/dag/1.0.0`: the blocks of a DAG in one answer, between two Causeways.
//!
//! Bitswap asks for blocks by name, so that a reader learns the next names a round trip later. Here a peer asks once for
//! what its reader will need (a root, a path, a scope and a range of bytes, as in the requests of a trustless gateway),
//! and is sent the blocks in order, inner nodes first, each plain or compressed as it is stored, over several streams.
//! It is spoken beside Bitswap, which fetches whatever a transfer does not bring.
//!
//! | module | concern |
//! |---|---|
//! | [`message`] | the wire format, decoded within limits |
//! | [`framing`] | short frames: requests and control messages |
//! | [`fragments`] | long answers in fragments, which several streams carry |
//! | [`server`] | answers the requests of peers |
//! | [`client`] | asks peers, and verifies and delivers what they send |
//! | [`handler`] | the connection handler: streams in either direction |
//! | [`behaviour`] | the network behaviour |

pub mod behaviour;
pub mod client;
pub mod fragments;
pub mod framing;
pub mod handler;
pub mod message;
pub mod server;
#[cfg(test)]
pub mod test_support;
