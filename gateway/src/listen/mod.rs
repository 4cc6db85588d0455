//! Client connections: admission, limits and timeouts.
//!
//! Goals: no client can keep a connection open without progress, or exhaust the connections of others; requests that
//! are not strictly valid HTTP/1.1 are rejected before they are interpreted.
//!
//! Non-goals: what a request means, which [`crate::pipeline`] decides.
//!
//! | module | concern |
//! |---|---|
//! | [`server`] | accept loop, timeouts, tunnels, graceful drain |
//! | [`admission`] | connection limits, in total and for each client |
//! | [`tls`] | TLS of the admin listener |
//! | [`wire`] | strict line endings, against request smuggling |
//! | [`rate`] | minimum transfer rates, against slow clients |

pub mod admission;
pub mod rate;
pub mod server;
pub mod tls;
pub mod wire;
