//! What the admin API sends and receives: the JSON bodies of requests and responses, error bodies, scopes and quotas.
//!
//! Goals: one definition for the server, the commands and the description of the API; each type can be written and read; text for
//! people that the commands print alike for a running gateway and for a store on the disk.
//!
//! Non-goals: how a request is answered, which `admin` does; any I/O.

pub mod access;
pub mod audit;
pub mod denylists;
pub mod drain;
pub mod error;
pub mod explain;
pub mod gc;
pub mod keys;
pub mod log_level;
pub mod names;
pub mod node;
pub mod peers;
pub mod pins;
pub mod purge;
pub mod requests;
pub mod settings;
pub mod stats;
pub mod store;
pub mod text;
pub mod tokens;
pub mod uploads;
pub mod warm;
