//! Why a request for a CAR is refused before its path is walked.

/// Why there is no such CAR.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CarOptionsError {
    /// Another version of the format.
    #[error("CAR version {0:?} is not supported, only version 1 is")]
    Version(String),
    /// An order that nobody promises.
    #[error("CAR order {0:?} is not supported; there are dfs and unk")]
    Order(String),
    /// Neither yes nor no.
    #[error("dups={0:?} is neither y nor n")]
    Duplicates(String),
    /// A part of a DAG that has no name.
    #[error("dag-scope={0:?} is not supported; there are block, entity and all")]
    Scope(String),
    /// No range of bytes.
    #[error("entity-bytes={asked:?}: {reason}")]
    EntityBytes {
        /// What was asked.
        asked: String,
        /// What is wrong with it.
        reason: String,
    },
}
