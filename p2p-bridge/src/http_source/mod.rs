//! Trustless gateways as sources of blocks, beside Bitswap peers.
//!
//! Specification: <https://specs.ipfs.tech/http-gateways/trustless-gateway/>. To the state machine that decides whom to ask
//! ([`crate::bitswap::client`]) a gateway is one more peer: "connected" once it is known, asked with the same entries,
//! answering with blocks and presences. So wants are shared out by measured rate between gateways and Bitswap peers,
//! silent ones are hedged, and a liar is dealt with as one, without a second set of rules.
//!
//! Goals: verified like anybody's bytes; raced with Bitswap, never waited for; a broken gateway costs a few requests; no
//! stranger's record leads into a private network; bounded requests, bytes, gateways and time.
//!
//! Non-goals: anything that needs trust in a gateway (deserialised responses, its index pages), and finding gateways:
//! provider records name them, or the operator.
//!
//! | module | concern |
//! |---|---|
//! | [`address`] | multiaddr or URL → base URL, and which are refused |
//! | [`breaker`] | when a gateway is left alone: a state machine without I/O |
//! | [`dialling`] | HTTP clients that reach only where they may |
//! | [`client`] | one question to one gateway |
//! | [`crate::bitswap::http_peers`] | the gateways that are known, what each owes, and how much is asked at once |
//! | `source` | one gateway: what it owes, what waits |
//! | [`metrics`] | requests, blocks, breakers |

pub mod address;
pub mod breaker;
pub mod client;
pub mod dialling;
pub mod metrics;
pub(crate) mod source;
#[cfg(test)]
pub(crate) mod test_server;

pub use address::AddressError;
