//! The asking side of the DAG protocol: which blocks a transfer brings, and what becomes of them.
//!
//! Goals: a block is unpacked, hashed and delivered only if a verified block has named it; memory is bounded whatever the
//! peer sends; what a transfer does not bring is asked for by Bitswap at once; a block that is stored compressed at the
//! peer is kept as it was received.
//!
//! Gateways send the same DAGs as CARs over HTTP ([`crate::http_source::car`]): their blocks are named, verified,
//! buffered and bounded here as well.
//!
//! Non-goals: which peer is asked, and when another one is, which [`crate::bitswap::client`] decides for both protocols.
//!
//! | module | concern |
//! |---|---|
//! | [`transfer`] | one transfer as a state machine: what is named, the budget, the end |
//! | [`naming`] | the blocks that a transfer has named |
//! | [`planner`] | the running transfers of all sessions |
//! | [`active`] | the streams of a transfer: reading, verification, delivery, credit |
//! | [`pushed`] | blocks that were received before a reader requested them |
//! | [`outbound`] | the part of a connection's handler that opens streams |
//! | [`metrics`] | metrics |

pub mod active;
#[cfg(test)]
pub mod fixture;
pub mod metrics;
pub mod naming;
pub mod outbound;
pub mod planner;
pub mod pushed;
pub mod transfer;
