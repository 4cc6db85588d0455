//! Why the parameters of a CAR request are invalid.

/// A parameter of a CAR request is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CarOptionsError {
    /// The version of the format is not 1.
    #[error("CAR version {0:?} is not supported, only version 1 is")]
    Version(String),
    /// The block order is not supported.
    #[error("CAR order {0:?} is not supported, only dfs and unk are")]
    Order(String),
    /// `dups` is neither `y` nor `n`.
    #[error("dups={0:?} is invalid, it must be y or n")]
    Duplicates(String),
    /// The `dag-scope` is unknown.
    #[error("dag-scope={0:?} is not supported, only block, entity and all are")]
    Scope(String),
    /// The byte range is invalid.
    #[error("entity-bytes={asked:?} is invalid: {reason}")]
    EntityBytes {
        /// The value that was sent.
        asked: String,
        /// Why it is invalid.
        reason: String,
    },
}
