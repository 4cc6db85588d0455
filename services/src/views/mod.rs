//! API views ([`api`]) of stores, tokens and keys, for the admin API and the commands.
//!
//! Commands print the same for a data directory without a gateway as the API answers for one with a gateway.

pub mod keys;
pub mod store;
pub mod tokens;
