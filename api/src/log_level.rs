//! The log level of a running process.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A change of the log level.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LevelRequest {
    /// A filter as in `log.level`: "info", or "info,p2p_bridge=debug".
    pub level: String,
    /// The time after which the configured level is restored, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604800)]
    pub duration_seconds: Option<u64>,
}

/// The current log level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LevelView {
    /// The level.
    pub level: String,
    /// The configured level.
    pub configured: String,
    /// When the configured level is restored, in seconds since the Unix epoch.
    pub until_at: Option<u64>,
}
