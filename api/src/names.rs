//! Resolved IPNS names and DNSLinks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which name is looked up.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RefreshRequest {
    /// An IPNS key or a domain, with or without `/ipns/` before it.
    pub name: String,
}

/// What is known of one of the names on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NameStepView {
    /// The name.
    pub name: String,
    /// Where that comes from: `list` (names.dnslink_map), `published` (here), `network`, `dns`, or `unknown`: it would
    /// have to be looked up.
    pub source: String,
    /// What it stands for.
    pub value: Option<String>,
    /// Why it stands for nothing.
    pub error: Option<String>,
    /// How long that has been known.
    pub age_seconds: Option<f64>,
    /// How long it counts as fresh. `null`: readers get it as long as it holds, and it is looked up again behind.
    pub fresh_for_seconds: Option<f64>,
    /// Until when the record holds.
    pub valid_until_at: Option<u64>,
    /// How often the record was changed.
    pub sequence: Option<u64>,
}

/// What a name stood for and stands for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RefreshedView {
    /// The name.
    pub name: String,
    /// Where it led to as far as was known, as a path.
    pub old: Option<String>,
    /// Where it leads to.
    pub new: Option<String>,
    /// Why it leads nowhere, or could not be looked up: what was known and still holds is answered with.
    pub error: Option<String>,
    /// Whether it leads elsewhere now.
    pub changed: bool,
    /// What is known now of each name on the way.
    pub steps: Vec<NameStepView>,
}
