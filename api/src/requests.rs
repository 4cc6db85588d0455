//! Requests that are being answered.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request that is being answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestView {
    /// Tells it from others, for as long as it is there.
    pub id: u64,
    /// Its method.
    pub method: String,
    /// Its path and query, cut if they are long.
    pub path: String,
    /// The host that it asks.
    pub host: String,
    /// Who asks: an IPv4 address, or an IPv6 network of 64 bits.
    pub client: String,
    /// How long it has been here.
    pub seconds: f64,
    /// The status of its response, once that has begun.
    pub status: Option<u16>,
    /// Bytes of the body that were handed over to be sent.
    pub sent_bytes: u64,
    /// What it waits for: `route` (where its host leads), `name`, `content`, `more` (of the content), or `client` (who
    /// has yet to take in what was sent).
    pub waits_for: String,
}

/// Requests that are being answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestsView {
    /// How many there are.
    pub count: usize,
    /// Those that have been here for longest come first.
    pub requests: Vec<RequestView>,
}
