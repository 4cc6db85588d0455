//! Connections of clients: who may have one, what it may cost, when it ends.
//!
//! Goals: no client can hold a connection without making progress, nor keep others out; what arrives is HTTP/1.1 to the letter before
//! anything interprets it.
//!
//! Non-goals: what a request means, which [`crate::pipeline`] decides.
//!
//! | module | concern |
//! |---|---|
//! | [`server`] | accepting, timeouts, tunnels, graceful drain |
//! | [`admission`] | connection limiting: in all, and of one client |
//! | [`tls`] | TLS of the admin listener |
//! | [`wire`] | strict framing of lines, against request smuggling |
//! | [`rate`] | minimum rates, against slow readers and writers |

pub mod admission;
pub mod rate;
pub mod server;
pub mod tls;
pub mod wire;
