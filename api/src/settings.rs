//! Settings and where each comes from.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SettingView {
    /// Its value, with secrets hidden.
    pub value: Value,
    /// Who set it: "the default", a file and line, an environment variable, or a flag.
    pub origin: String,
}

/// The settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SettingsView {
    /// By key, such as `http.listen`.
    pub settings: BTreeMap<String, SettingView>,
}
