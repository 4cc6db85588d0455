//! `GET /api/v1/config`: the effective settings, with the origin of each.
//!
//! Secrets are redacted: tokens, and the user information and the query of URLs, where services expect keys.

use crate::http::answer::{Answer, ApiError, json};
use crate::http::error_responses::BadRequest;
use crate::http::parameters::Parameters;
use crate::operations::Operations;
use api::settings::{SettingView, SettingsView};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use config::{Config, Loaded};
use serde_json::Value;
use std::collections::BTreeMap;

/// The effective settings, with the origin of each.
#[utoipa::path(get, path = "/api/v1/config", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The settings", body = SettingsView), BadRequest))]
pub async fn read(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let view = of(&operations.parts().loaded).map_err(|error| {
        ApiError(StatusCode::INTERNAL_SERVER_ERROR, format!("the settings cannot be serialised: {error}"))
    })?;
    Ok(json(StatusCode::OK, &view))
}

/// The view of the settings.
fn of(loaded: &Loaded) -> Result<SettingsView, serde_json::Error> {
    let mut settings = BTreeMap::new();
    collect("", tree(&loaded.config)?, loaded, &mut settings);
    Ok(SettingsView { settings })
}

fn tree(config: &Config) -> Result<Value, serde_json::Error> {
    serde_json::to_value(config)
}

/// Flattens a section into its keys. Only objects are sections.
fn collect(prefix: &str, value: Value, loaded: &Loaded, settings: &mut BTreeMap<String, SettingView>) {
    match value {
        Value::Object(section) => {
            for (name, value) in section {
                let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
                collect(&key, value, loaded, settings);
            }
        }
        value => {
            let origin = loaded.origin(prefix).to_string();
            settings.insert(prefix.to_owned(), SettingView { value: without_secrets(value), origin });
        }
    }
}

/// A value with the user information and the query of URLs redacted.
fn without_secrets(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(config::values::without_secrets(&text)),
        Value::Array(values) => Value::Array(values.into_iter().map(without_secrets).collect()),
        Value::Object(values) => {
            Value::Object(values.into_iter().map(|(name, value)| (name, without_secrets(value))).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_shown_with_its_origin_and_secrets_are_redacted() {
        let flags = config::Flags { admin_token: Some("hush".to_owned()), ..config::Flags::default() };
        let size = ("CAUSEWAY_CACHE_RAM_BYTES_MAX".into(), "1048576".into());
        let known = config::keys::all();
        let loaded = config::load(&flags, [size]).expect("good settings");
        let view = of(&loaded).expect("can be written");
        for (key, _) in known {
            assert!(view.settings.contains_key(&key), "{key} is missing");
        }
        let text = serde_json::to_string(&view).expect("can be written");
        assert!(!text.contains("hush"), "{text}");
        let token = &view.settings["admin.token"];
        assert!(token.value == "***" && token.origin.contains("--admin-token"), "{token:?}");
        let ram = &view.settings["cache.ram_bytes_max"];
        assert!(ram.value == 1_048_576 && ram.origin.contains("CAUSEWAY_CACHE_RAM_BYTES_MAX"), "{ram:?}");
        assert_eq!(view.settings["http.zstd"].origin, "the default");
    }
}
