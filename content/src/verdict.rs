//! What a policy says of content or of a name.

/// What a policy says about a piece of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// May be emitted.
    Allow,
    /// Removed by the operator (HTTP 410).
    Gone,
    /// Withheld for legal reasons (HTTP 451, RFC 7725).
    Legal,
    /// Not among what this node serves, which serves nothing else (HTTP 403).
    Unlisted,
}
