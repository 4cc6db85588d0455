//! Resolved IPNS names and DNSLinks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Resolves a name again.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RefreshRequest {
    /// An IPNS key or a domain, with or without `/ipns/` before it.
    pub name: String,
}

/// The cached state of a name on a path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NameStepView {
    /// The name.
    pub name: String,
    /// The source of the value: `list` (names.dnslink_map), `published` (by this node), `network`, `dns`, or `unknown`:
    /// a look-up would be needed.
    pub source: String,
    /// The value of the name.
    pub value: Option<String>,
    /// The error of the resolution.
    pub error: Option<String>,
    /// The age of the value, in seconds.
    pub age_seconds: Option<f64>,
    /// How long the value is fresh, in seconds. `null`: it is used until the record expires, and refreshed in the
    /// background.
    pub fresh_for_seconds: Option<f64>,
    /// When the record expires, in seconds since the Unix epoch.
    pub valid_until_at: Option<u64>,
    /// The sequence number of the record.
    pub sequence: Option<u64>,
}

/// The result of resolving a name again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RefreshedView {
    /// The name.
    pub name: String,
    /// The previous path, if one was cached.
    pub old: Option<String>,
    /// The new path.
    pub new: Option<String>,
    /// The error of the resolution. If the previous value is still valid, it stays in use.
    pub error: Option<String>,
    /// Whether the path changed.
    pub changed: bool,
    /// The new state of each name on the path.
    pub steps: Vec<NameStepView>,
}
