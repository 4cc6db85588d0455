//! Requests in progress, and the latest that failed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestView {
    /// An ID, unique among requests in progress.
    pub id: u64,
    /// The method.
    pub method: String,
    /// The path and query, truncated if long.
    pub path: String,
    /// The requested host.
    pub host: String,
    /// The client: an IPv4 address, or an IPv6 network of 64 bits.
    pub client: String,
    /// The time since the request was received, in seconds.
    pub seconds: f64,
    /// The status of the response, once it has begun.
    pub status: Option<u16>,
    /// Bytes of the body that were passed to the connection.
    pub sent_bytes: u64,
    /// What it waits for: `route` (its host), `name` (name resolution), `content` (the first block), `more` (further
    /// blocks), or `client` (which has not received all that was sent).
    pub waits_for: String,
}

/// Requests in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestsView {
    /// The number of requests.
    pub count: usize,
    /// The requests, the oldest first.
    pub requests: Vec<RequestView>,
}

/// A response that failed: with a status of the class 5xx, or aborted because the rest of the content did not arrive or
/// is invalid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestErrorView {
    /// When it failed, in seconds since the Unix epoch.
    pub at: u64,
    /// The method.
    pub method: String,
    /// The path without its query, truncated if long.
    pub path: String,
    /// The requested host.
    pub host: String,
    /// The client: an IPv4 address or an IPv6 network of 64 bits, as `log.access_addresses` shows it; empty if it shows
    /// no addresses.
    pub client: String,
    /// The status of the response.
    pub status: Option<u16>,
    /// The error that was sent, or `aborted: ` and the error.
    pub reason: String,
    /// The time from the request until it failed, in seconds.
    pub seconds: f64,
    /// The trace, if the request is traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// The latest responses that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestErrorsView {
    /// At most 200, of which one client has a quarter; the newest first.
    pub errors: Vec<RequestErrorView>,
}
