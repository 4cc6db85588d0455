//! Finding who has a DAG, beyond asking those who are connected.
//!
//! Goals: everything that may find a provider begins at the same moment (remembered providers, both DHTs, routers over HTTP),
//! and whoever is found is dialled while the others still search; a slow dial holds nothing up, and neither do a hundred; a
//! flood of provider records costs bounded dials and memory, and harms nobody; what failed a moment ago fails at once, and is
//! searched again behind.
//!
//! Non-goals: whether a provider is any good; [`crate::bitswap::client`] finds that out by asking.
//!
//! | module | concern |
//! |---|---|
//! | [`plan`] | which of the found providers are dialled, and when: one for each search |
//! | [`dialer`] | the dials of all searches: their budget, and what is learnt of them |
//! | [`dial_times`] | how long dials take that succeed, and when one is overdue |
//! | [`mod@unreachable`] | the negative cache of dials, and who was seen alive |
//! | [`targets`] | how often one host is dialled |
//! | [`memory`] | who had which DAG, over restarts |
//! | [`absent`] | what nobody had a moment ago |
//! | [`history`] | how the last searches went |

pub mod absent;
pub mod dial_times;
pub mod dialer;
pub mod history;
pub mod memory;
pub mod plan;
mod recent;
pub mod targets;
pub mod unreachable;
