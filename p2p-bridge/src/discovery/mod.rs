//! Finding who has a DAG, beyond asking those who are connected.
//!
//! Goals: everything that may find a provider begins at the same moment (remembered providers, both DHTs, routers over HTTP),
//! and whoever is found is dialled while the others still search; a slow dial holds nothing up; what failed a moment ago fails
//! at once, and is searched again behind.
//!
//! Non-goals: whether a provider is any good; [`crate::bitswap::client`] finds that out by asking.
//!
//! | module | concern |
//! |---|---|
//! | [`plan`] | which of the found providers are dialled, and when |
//! | [`memory`] | who had which DAG, over restarts |
//! | [`absent`] | what nobody had a moment ago |
//! | [`history`] | how the last searches went |

pub mod absent;
pub mod history;
pub mod memory;
pub mod plan;
