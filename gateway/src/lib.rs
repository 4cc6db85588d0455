//! The public front: HTTP requests for content, and the responses to them.
//!
//! Goals: one request can be read from top to bottom in [`pipeline`]; everything that can be decided without I/O is a
//! pure function with a table of tests; a response that cannot be completed never looks complete.
//!
//! Non-goals: what IPFS data means (`content`), how it is stored (`cache`), where it is found (`p2p-bridge`), what operators ask of a
//! node (`admin`), and how a node is started (`causeway`).
//!
//! In the order that a request meets them:
//!
//! | module | concern |
//! |---|---|
//! | [`listen`] | connections: limits, timeouts, tunnels, graceful drain |
//! | [`pipeline`] | one request, top to bottom |
//! | [`request`] | what a request asks for, read from its head |
//! | [`resolve`] | what a path leads to, and where blocks come from |
//! | [`represent`] | the response: one module for each representation that content has |
//! | [`respond`], [`body`], [`headers`] | what every response carries, and its bytes |
//! | [`errors`] | the status and text of every problem |
//! | [`routing_v1`] | the Delegated Routing V1 HTTP API |
//! | [`limits`], [`workers`] | what one request may cost; threads for responses that take processor time |
//! | [`running`], [`access_log`], [`metrics`] | requests under way; requests that ended; what is counted of them |
//! | [`landing`], [`mod@html`] | the page at `/`; what all pages have in common |
//! | [`invalidate`] | how a purge invalidates caches |

#![allow(clippy::result_large_err, reason = "problems name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod access_log;
pub mod body;
pub mod errors;
pub mod headers;
pub mod html;
pub mod invalidate;
pub mod landing;
pub mod limits;
pub mod listen;
pub mod metrics;
pub mod pipeline;
pub mod represent;
pub mod request;
pub mod resolve;
pub mod respond;
pub mod routing_v1;
pub mod running;
pub mod workers;
