//! A graceful drain.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Options of a drain.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DrainRequest {
    /// `true`: the process stops gracefully, as after SIGTERM.
    pub stop: bool,
}

/// The lifecycle stage of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageView {
    /// `starting`, `serving` or `draining`.
    pub stage: String,
    /// Whether the process is about to stop.
    pub stopping: bool,
}
