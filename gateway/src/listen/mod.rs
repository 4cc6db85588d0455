//! Client connections: admission, limits and timeouts.
//!
//! Goals: no client can keep a connection open without progress, or exhaust the connections of others; requests that
//! are not strictly valid HTTP are rejected before they are interpreted.
//!
//! Non-goals: what a request means, which [`crate::pipeline`] decides.
//!
//! | module | concern |
//! |---|---|
//! | [`server`] | accept loop, TLS, tunnels |
//! | [`socket`], [`unix`] | TCP and Unix sockets |
//! | [`proxy_protocol`] | addresses of clients from a proxy in front of TLS and HTTP |
//! | [`connection`] | the state of one connection |
//! | [`monitored`] | its socket: a write timeout, a minimum read rate, resets |
//! | [`http1`], [`http2`] | its requests |
//! | [`http3`] | accept loop, connections and requests of HTTP/3 over QUIC |
//! | [`drain`] | graceful drain |
//! | [`admission`] | connection limits, in total and for each client |
//! | [`tls`] | certificates from files, and TLS handshakes |
//! | [`wire`] | strict line endings, against request smuggling |
//! | [`rate`] | minimum transfer rates, against slow clients |
//! | [`unit_budget`] | what a client may send beside requests, over HTTP/2 and HTTP/3 |

pub mod admission;
pub mod connection;
pub mod drain;
mod http1;
mod http2;
pub mod http3;
mod monitored;
pub mod proxy_protocol;
pub mod rate;
pub mod server;
pub mod socket;
pub mod tls;
mod unit_budget;
pub mod unix;
pub mod wire;
