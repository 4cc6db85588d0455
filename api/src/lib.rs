//! The types of the admin API: JSON bodies of requests and responses, error bodies, scopes and quotas.
//!
//! Goals: one definition for the server, the commands and the OpenAPI document; each type can be serialised and
//! deserialised; commands print the same text for a running gateway and for a store on the disk.
//!
//! Non-goals: handling of requests (`admin`), and any I/O.

pub mod access;
pub mod audit;
pub mod denylists;
pub mod drain;
pub mod error;
pub mod explain;
pub mod gc;
pub mod health;
pub mod history;
pub mod keys;
pub mod log_level;
pub mod names;
pub mod node;
pub mod peers;
pub mod pins;
pub mod purge;
pub mod requests;
pub mod settings;
pub mod site;
pub mod stats;
pub mod store;
pub mod text;
pub mod tokens;
pub mod uploads;
pub mod warm;
