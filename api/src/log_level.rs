//! The log level of a running process.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How much is to be said.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LevelRequest {
    /// As `log.level` has it: "info", or "info,p2p_bridge=debug".
    pub level: String,
    /// After that time it is what the settings say again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604800)]
    pub duration_seconds: Option<u64>,
}

/// How much is said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LevelView {
    /// The level.
    pub level: String,
    /// That of the settings.
    pub configured: String,
    /// When it goes back to that by itself.
    pub until_at: Option<u64>,
}
