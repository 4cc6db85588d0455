//! [`Loaded`]: the settings and the layer that set each; [`ConfigError`]: why a configuration is invalid.

use crate::schema::Config;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The layer that set a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origin {
    /// The value is the default.
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

/// An invalid configuration. The message is always one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {} cannot be read: {reason}", path.display())]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{origin}: not valid TOML: {reason}")]
    Syntax {
        /// The line.
        origin: Origin,
        /// The error of the parser.
        reason: String,
    },
    /// The key does not exist.
    #[error("{origin}: unknown setting \"{key}\"; the most similar one is \"{nearest}\"")]
    UnknownKey {
        /// The unknown key.
        key: String,
        /// What was perhaps meant.
        nearest: String,
        /// The layer that set it.
        origin: Origin,
    },
    /// An environment variable with Causeway's prefix matches no key.
    #[error("environment variable {name}: there is no such setting; the most similar one is {nearest} (\"{key}\")")]
    UnknownVariable {
        /// The name of the variable.
        name: String,
        /// What was perhaps meant.
        nearest: String,
        /// The key of that variable.
        key: String,
    },
    /// The value is invalid for the key.
    #[error("{key}: {reason} (set by {origin})")]
    Value {
        /// The key.
        key: String,
        /// Why it is invalid.
        reason: String,
        /// The layer that set it.
        origin: Origin,
    },
}

/// The settings and, for each key that is not at its default, the layer that set it.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// The layer that set each key.
    pub origins: BTreeMap<String, Origin>,
}

impl Loaded {
    /// The layer that set a key.
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or_default()
    }

    /// An error about a key's value that is detected after loading (a port in use, for example), in the same format.
    pub fn error(&self, key: &str, reason: impl Into<String>) -> ConfigError {
        ConfigError::Value { key: key.to_owned(), reason: reason.into(), origin: self.origin(key) }
    }
}
