//! Trustless gateways as block sources, in addition to Bitswap peers.
//!
//! Specification: <https://specs.ipfs.tech/http-gateways/trustless-gateway/>. For the Bitswap client
//! ([`crate::bitswap::client`]) a gateway is another peer: "connected" while it is known, asked with the same wantlist
//! entries, and responding with blocks and presences. So wants are distributed by measured rate over gateways and
//! Bitswap peers, stalled ones are hedged, and invalid blocks are handled by the same rules. If what a reader will
//! request after a block is known, all of it is one request for a CAR, as it is one transfer from a peer that speaks
//! the DAG protocol.
//!
//! Goals: blocks are verified like all others; gateways race with Bitswap and never delay it; a broken gateway costs a
//! few requests; no provider record refers into a private network; bounded requests, bytes, gateways and time.
//!
//! Non-goals: responses that need trust in a gateway (deserialised responses, index pages), and finding gateways: they
//! are in provider records or configured.
//!
//! | module | concern |
//! |---|---|
//! | [`address`] | parses multiaddrs and URLs into base URLs, and rejects unsafe ones |
//! | [`breaker`] | circuit breakers: a state machine without I/O |
//! | [`dialling`] | HTTP clients that connect only to permitted addresses |
//! | [`client`] | one request for a single block to one gateway |
//! | [`car`] | a part of a DAG from one gateway, as a CAR |
//! | [`crate::bitswap::http_peers`] | the known gateways, their requests and limits |
//! | `source` | one gateway: its wants and its queue |
//! | [`metrics`] | metrics |

pub mod address;
pub mod breaker;
pub mod car;
pub mod client;
pub mod dialling;
pub mod metrics;
pub(crate) mod source;
#[cfg(test)]
pub(crate) mod test_server;

pub use address::AddressError;
