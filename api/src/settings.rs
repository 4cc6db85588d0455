//! Settings with their origins.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SettingView {
    /// The value, with secrets hidden.
    pub value: Value,
    /// The origin: "the default", a file and line, an environment variable, or a flag.
    pub origin: String,
}

/// The settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SettingsView {
    /// The settings by key, such as `http.listen`.
    pub settings: BTreeMap<String, SettingView>,
}
