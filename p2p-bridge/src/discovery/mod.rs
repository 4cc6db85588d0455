//! Provider search: finding peers that have a DAG, beyond the connected peers.
//!
//! Goals: all sources of providers are queried in parallel (known providers, both DHTs, delegated routers), and found
//! providers are dialled while the others still search; slow dials delay nothing, even a hundred of them; a flood of
//! provider records costs bounded dials and memory, and harms no third party; a request for a block that was not found
//! shortly before fails at once, and the search is repeated in the background.
//!
//! Non-goals: whether a provider really has the blocks; [`crate::bitswap::client`] finds that out by asking.
//!
//! | module | concern |
//! |---|---|
//! | [`plan`] | which of the found providers are dialled, and when: one per search |
//! | [`dialer`] | the dials of all searches: their budget and their results |
//! | [`dial_times`] | how long successful dials take, and when a dial is overdue |
//! | [`mod@unreachable`] | the negative cache of dials, and peers seen alive |
//! | [`rate_limits`] | rate limits per dialled host |
//! | [`memory`] | the known providers of DAGs, saved across restarts |
//! | [`negative_cache`] | the negative cache of blocks |
//! | [`history`] | how the last searches went |

pub mod dial_times;
pub mod dialer;
pub mod history;
pub mod memory;
pub mod negative_cache;
pub mod plan;
pub mod rate_limits;
pub mod unreachable;
