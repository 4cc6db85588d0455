//! What the admin API and the commands say of stores, tokens and keys: views of [`api`] made of what other crates have.
//!
//! Commands print the same of a data folder that no gateway uses as the API answers of one that a gateway uses.

pub mod keys;
pub mod store;
pub mod tokens;
