//! [`Verdict`]: the decision of a policy on content or a name.

/// The decision of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// May be served.
    Allow,
    /// Removed by the operator (HTTP 410).
    Gone,
    /// Withheld for legal reasons (HTTP 451, RFC 7725).
    Legal,
    /// Not on the allowlist of a node that serves only listed content (HTTP 403).
    Unlisted,
}
