//! The HTTP front end, the admin listener and the `causeway` binary that wires everything.
//!
//! Goals: one request can be read from top to bottom in [`pipeline`]; everything that can be decided without I/O is a
//! pure function with a table of tests; a response that cannot be completed never looks complete.
//!
//! Non-goals here: what IPFS data means (`content`), how it is kept (`cache`), and where it is found (`p2p-bridge`).
//!
//! In the order that a request meets them:
//!
//! | module | concern |
//! |---|---|
//! | [`server`], [`tls`] | connections: limits, timeouts, tunnels, TLS, drain |
//! | [`admission`], [`wire`], [`rate`] | how many connections each client has; strict lines; how slow a client may be |
//! | [`pipeline`] | one request, top to bottom |
//! | [`client`] | who asks, and under which host name |
//! | [`request`], [`negotiate`] | what a request is about, and which format it asks for |
//! | [`hosts`], [`route`] | what a host name stands for, and where that leads |
//! | [`resolve`], [`walks`] | what a path leads to, and the memory of it; one walk for all who ask at the same time |
//! | [`source`] | where blocks come from |
//! | [`limiter`] | how much of what is limited one client may have |
//! | [`conditional`], [`range`] | what the client has, and which part it wants |
//! | [`plan`] | status and headers |
//! | [`answer`] | one module for each representation that content has |
//! | [`listings`] | pages of listings, written once and remembered |
//! | [`content_type`] | what a file is |
//! | [`encoded`] | files as zstd, made of what their blocks are stored as |
//! | [`routing_v1`] | the API by which light clients find providers and peers |
//! | [`respond`], [`body`] | what every response carries, and its bytes |
//! | [`supervision`] | the parts that the gateway cannot do without, and what happens when one ends |
//! | [`surrogate`] | what content delivery networks purge responses by |
//! | [`workers`] | threads for answers that are made and not just read |
//! | [`running`], [`access_log`] | the requests that are being answered; those that were |
//! | [`errors`], [`landing`] | every problem's status and words; the page at `/` |
//! | [`html`] | what all pages have in common |
//!
//! Around them: [`node`] (start and end), [`network`], [`welcome`], [`admin`], [`health`] and [`metrics`]. [`upkeep`] keeps the
//! store in order while the gateway runs; [`forget`] is what a purge does to what is remembered; [`control`] knows what is withheld; [`pinning`] keeps what was asked to be kept, and
//! fetches it; [`caches`] tells caches in front of take-downs; [`intake`] takes uploads in; [`kubo_rpc`] answers Kubo's
//! clients; [`stores`] says which store that is; [`stamp`] tells whether a file was changed. [`commands`] is the
//! command line; one that finds a gateway running works through its admin listener. [`operations`] is what an operator
//! does with a node that runs, [`logging`] what it says meanwhile, and [`redact`] what it does not say. [`preflight`] checks
//! what a start would read, [`reload`] reads it again on SIGHUP, and [`process`] has the figures of the process.

#![allow(clippy::result_large_err, reason = "problems name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod access_log;
pub mod admin;
pub mod admission;
pub mod answer;
pub mod body;
pub mod caches;
pub mod client;
pub mod commands;
pub mod conditional;
pub mod content_type;
pub mod control;
pub mod encoded;
pub mod errors;
pub mod forget;
pub mod health;
pub mod hosts;
pub mod html;
pub mod intake;
pub mod kubo_rpc;
pub mod landing;
pub mod limiter;
pub mod listings;
pub mod logging;
pub mod metrics;
pub mod negotiate;
pub mod network;
pub mod node;
pub mod operations;
pub mod pinning;
pub mod pipeline;
pub mod plan;
pub mod preflight;
pub mod process;
pub mod range;
pub mod rate;
pub mod redact;
pub mod reload;
pub mod request;
pub mod resolve;
pub mod respond;
pub mod route;
pub mod routing_v1;
pub mod running;
pub mod server;
#[cfg(test)]
mod small_disk;
pub mod source;
pub mod stamp;
pub mod stores;
pub mod supervision;
pub mod surrogate;
pub mod tls;
pub mod upkeep;
pub mod walks;
pub mod welcome;
pub mod wire;
pub mod workers;
