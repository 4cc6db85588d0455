//! Requests in progress.

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
