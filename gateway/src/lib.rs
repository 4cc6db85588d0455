//! The public listener: HTTP requests for content, and their responses.
//!
//! Goals: one request can be read from top to bottom in [`pipeline`]; decisions without I/O are pure functions with
//! table tests; an incomplete response never looks complete.
//!
//! Non-goals: IPFS data formats (`content`), storage (`cache`), the network (`p2p-bridge`), the admin API (`admin`),
//! and starting a node (`causeway`).
//!
//! In the order of a request:
//!
//! | module | concern |
//! |---|---|
//! | [`public`] | the sockets of the public listener, served by the pipeline |
//! | [`listen`] | connections: limits, timeouts, tunnels, graceful drain |
//! | [`pipeline`] | one request, top to bottom |
//! | [`request`] | parsing of the request's head |
//! | [`resolve`] | resolution of paths, and the sources of blocks |
//! | [`represent`] | the response: one module for each representation of content |
//! | [`prefetch`] | what a browser loads for a page is fetched in the background |
//! | [`respond`], [`body`], [`headers`] | the headers that all responses share, and bodies |
//! | [`errors`] | the status and text of each error |
//! | [`routing_v1`] | the Delegated Routing V1 HTTP API |
//! | [`limits`], [`workers`] | limits of one request; threads for CPU-bound responses |
//! | [`running`], [`access_log`] | requests in progress; the logs of ended and of slow requests |
//! | [`recent_errors`] | the latest responses that failed |
//! | [`trace`] | the spans of a request that is traced |
//! | [`metrics`], [`latency`] | metrics; histograms of latencies whose quantiles can be read |
//! | [`landing`], [`mod@html`] | the page at `/`; parts that all pages share |
//! | [`invalidate`] | cache invalidation by a purge |

#![allow(clippy::result_large_err, reason = "problems name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod access_log;
pub mod body;
pub mod errors;
pub mod headers;
pub mod html;
pub mod invalidate;
pub mod landing;
pub mod latency;
pub mod limits;
pub mod listen;
pub mod metrics;
pub mod pipeline;
pub mod prefetch;
pub mod public;
pub mod recent_errors;
pub mod represent;
pub mod request;
pub mod resolve;
pub mod respond;
pub mod routing_v1;
pub mod running;
pub mod trace;
pub mod workers;
