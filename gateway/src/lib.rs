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
//! | [`server`], [`tls`] | connections: limits, timeouts, tunnels, TLS, graceful drain |
//! | [`admission`], [`wire`], [`rate`] | admission control of connections; strict lines; minimum rates |
//! | [`pipeline`] | one request, top to bottom |
//! | [`limits`] | what one request may cost |
//! | [`client`] | the address of the client and the host name that it asks |
//! | [`request`], [`negotiate`] | what a request is about, and which format it asks for |
//! | [`hosts`], [`route`] | what a host name stands for, and where that leads |
//! | [`resolve`], [`walks`] | what a path leads to, and the cache of it; one walk for all requests that need it at the same time |
//! | [`redirects`] | the cached `_redirects` of sites |
//! | [`source`] | where blocks come from |
//! | [`conditional`], [`range`] | conditional requests and ranges |
//! | [`plan`] | status and headers |
//! | [`mod@answer`] | one module for each representation that content has |
//! | [`listings`] | pages of directory listings, written once and cached |
//! | [`content_type`] | the media type of a file |
//! | [`encoded`] | files as zstd, made of what their blocks are stored as |
//! | [`routing_v1`] | the Delegated Routing V1 HTTP API |
//! | [`respond`], [`body`], [`headers`] | what every response carries, and its bytes |
//! | [`workers`] | threads for responses that take processor time |
//! | [`running`], [`access_log`], [`metrics`] | requests under way; requests that ended; what is counted of them |
//! | [`errors`], [`landing`] | the status and text of every problem; the page at `/` |
//! | [`mod@html`] | what all pages have in common |
//! | [`forget`] | what a purge does to caches |

#![allow(clippy::result_large_err, reason = "problems name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod access_log;
pub mod admission;
pub mod answer;
pub mod body;
pub mod client;
pub mod conditional;
pub mod content_type;
pub mod encoded;
pub mod errors;
pub mod forget;
pub mod headers;
pub mod hosts;
pub mod html;
pub mod landing;
pub mod limits;
pub mod listings;
pub mod metrics;
pub mod negotiate;
pub mod pipeline;
pub mod plan;
pub mod range;
pub mod rate;
pub mod redirects;
pub mod request;
pub mod resolve;
pub mod respond;
pub mod route;
pub mod routing_v1;
pub mod running;
pub mod server;
pub mod source;
pub mod tls;
pub mod walks;
pub mod wire;
pub mod workers;
