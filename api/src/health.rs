//! The health of the node: what is wrong, in words.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How much a finding matters, the most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    /// A part of the gateway does not work.
    Error,
    /// Something will stop working, or works with less than it should.
    Warning,
    /// Something that the operator may want to know.
    Info,
}

impl FindingLevel {
    /// The level as one word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthFindingView {
    /// How much it matters.
    pub level: FindingLevel,
    /// What it is about: `process`, `store`, `disk`, `memory`, `clock`, `peers`, `reachability`, `pins`, `denylists` or
    /// `certificates`.
    pub subject: String,
    /// What is wrong, as a sentence.
    pub text: String,
    /// What to do about it, as a sentence; `null` if there is nothing to do.
    pub advice: Option<String>,
}

/// Whether peers can open connections to the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReachabilityView {
    /// `public` if they can, `private` if they cannot, or `unknown`: offline, or not yet known.
    pub state: String,
    /// The addresses at which they can, confirmed by peers, announced by the operator, or at a relay.
    pub addresses: Vec<String>,
}

/// The health of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthView {
    /// Whether load balancers should send requests: whether `/readyz` is 200.
    pub ready: bool,
    /// `starting`, `serving` or `draining`.
    pub stage: String,
    /// What is wrong, the most severe first; empty if all is well.
    pub findings: Vec<HealthFindingView>,
    /// Whether peers can open connections to the node.
    pub reachability: ReachabilityView,
}
