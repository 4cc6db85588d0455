//! [`Loaded`]: the settings, and which layer each comes from; [`ConfigError`]: why they cannot be followed.

use crate::schema::Config;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    #[default]
    Default,
    /// A line of the configuration file.
    File(PathBuf, usize),
    /// An environment variable.
    Variable(String),
    /// A command-line flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// What is wrong with the settings: always one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {} cannot be read: {reason}", path.display())]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{origin}: not valid TOML: {reason}")]
    Syntax {
        /// The line.
        origin: Origin,
        /// What the parser found.
        reason: String,
    },
    /// There is no such key.
    #[error("{origin}: there is no setting \"{key}\"; the nearest is \"{nearest}\"")]
    UnknownKey {
        /// What was written.
        key: String,
        /// What was perhaps meant.
        nearest: String,
        /// Where.
        origin: Origin,
    },
    /// A variable with our prefix names no key.
    #[error("environment variable {name}: there is no such setting; the nearest is {nearest} (\"{key}\")")]
    UnknownVariable {
        /// What was set.
        name: String,
        /// What was perhaps meant.
        nearest: String,
        /// The key of that.
        key: String,
    },
    /// The value does not fit the key.
    #[error("{key}: {reason} (set by {origin})")]
    Value {
        /// The key.
        key: String,
        /// What is wrong.
        reason: String,
        /// Who set it.
        origin: Origin,
    },
}

/// Settings and, for each key that is not at its default, who set it.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// Who set what, by key.
    pub origins: BTreeMap<String, Origin>,
}

impl Loaded {
    /// Who set a key.
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or_default()
    }

    /// An error about a key's value, found out later than here (a port in use, for example), in the same words.
    pub fn error(&self, key: &str, reason: impl Into<String>) -> ConfigError {
        ConfigError::Value { key: key.to_owned(), reason: reason.into(), origin: self.origin(key) }
    }
}
