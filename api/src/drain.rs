//! A graceful drain.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether that is all.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DrainRequest {
    /// `true`: the process ends in good order, as after SIGTERM.
    pub stop: bool,
}

/// How far along its life the process is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageView {
    /// `starting`, `serving` or `draining`.
    pub stage: String,
    /// Whether the process is about to end.
    pub stopping: bool,
}
