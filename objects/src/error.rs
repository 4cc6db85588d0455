//! [`ObjectError`] and [`OpenError`], by what the caller can do.

use std::sync::Arc;

/// Why an operation on an object has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The storage does not answer, or not in time, or asks for patience. To be repeated later.
    #[error("the object storage is unavailable: {reason}")]
    Unavailable {
        /// What has happened.
        reason: Arc<str>,
    },
    /// The storage refuses. The operator has to do something; repeating does not help until then.
    #[error("the object storage refuses: {reason}")]
    Refused {
        /// What has happened, and what the operator can do.
        reason: Arc<str>,
    },
    /// The object is longer than any may be.
    #[error("the object {name} has {bytes} bytes, and at most {bytes_max} are allowed")]
    TooLong {
        /// The name of the object.
        name: Arc<str>,
        /// Its length in bytes, as far as is known.
        bytes: u64,
        /// The greatest length that is allowed, in bytes.
        bytes_max: u64,
    },
    /// No object can have this name.
    #[error("invalid name of an object, {name:?}: {reason}")]
    Name {
        /// The name, cut off if it is long.
        name: Arc<str>,
        /// Why it is invalid.
        reason: &'static str,
    },
}

impl ObjectError {
    pub(crate) fn unavailable(reason: impl Into<Arc<str>>) -> Self {
        Self::Unavailable { reason: reason.into() }
    }

    pub(crate) fn refused(reason: impl Into<Arc<str>>) -> Self {
        Self::Refused { reason: reason.into() }
    }

    pub(crate) fn too_long(name: &str, bytes: u64, bytes_max: u64) -> Self {
        Self::TooLong { name: name.into(), bytes, bytes_max }
    }
}

/// Why object storage cannot be opened, in a sentence for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct OpenError {
    reason: Arc<str>,
    option: StoreOption,
}

/// An option of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOption {
    /// The URL of the store.
    Url,
    /// The server, its region, and where requests name the bucket.
    Endpoint,
    /// Where the keys are.
    Credentials,
    /// The file of authorities.
    Ca,
}

impl OpenError {
    /// An error about the URL, or about what it leads to.
    pub(crate) fn new(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), option: StoreOption::Url }
    }

    /// The same about another option.
    pub(crate) fn about(self, option: StoreOption) -> Self {
        Self { option, ..self }
    }

    /// The option that it is about.
    pub fn option(&self) -> StoreOption {
        self.option
    }
}
