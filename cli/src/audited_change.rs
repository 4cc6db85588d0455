//! [`AuditedChange`]: the audit log entry of a change that a command makes without a gateway.
//!
//! Goals: changes of tokens, keys, names and pins are logged, whether a gateway or a command makes them.
//!
//! Non-goals: commands that read, check, repair or export blocks. What `store repair` releases on request is logged.

use p2p_bridge::names::keystore::KeyError;
use p2p_bridge::names::publish::PublishError;
use serde_json::{Value, json};
use services::access::token_store::TokenStoreError;
use services::audit::LocalChange;
use services::logging::chain;
use services::views::keys;
use std::path::Path;

/// A change whose start is logged.
#[must_use = "the result must be logged as well"]
pub struct AuditedChange {
    record: LocalChange,
    request: Value,
}

impl AuditedChange {
    /// Logs the start of a change by `command` with the arguments `request`. Blocks the thread.
    ///
    /// # Errors
    /// When the entry cannot be written. The change must not be made then.
    pub fn begin(data_dir: &Path, command: &str, request: Value) -> anyhow::Result<Self> {
        Ok(Self { record: LocalChange::begin(data_dir, command, &request)?, request })
    }

    /// Ends a change, unless it failed before it was begun.
    ///
    /// # Errors
    /// The error of the change.
    pub fn end_if_begun<T>(
        begun: Option<Self>,
        changed: anyhow::Result<T>,
        detail: impl FnOnce(&T) -> Value,
    ) -> anyhow::Result<T> {
        match begun {
            Some(begun) => begun.end(changed, detail),
            None => changed,
        }
    }

    /// Logs the result with `detail` of a success, and returns the result. Blocks the thread.
    ///
    /// # Errors
    /// The error of the change.
    pub fn end<T>(self, changed: anyhow::Result<T>, detail: impl FnOnce(&T) -> Value) -> anyhow::Result<T> {
        let ended = match &changed {
            Ok(changed) => self.record.end(200, &detail(changed)),
            Err(error) => {
                self.record.end(status(error), &json!({ "asked": self.request, "error": chain(error).to_string() }))
            }
        };
        if let Err(error) = ended {
            eprintln!(
                "warning: the audit log has the start of this change, but its result could not be written: {error}"
            );
        }
        changed
    }
}

/// The error of a key because of which a name was not published or removed.
fn key_error(error: &PublishError) -> Option<&KeyError> {
    match error {
        PublishError::Key(error) => Some(error),
        _ => None,
    }
}

/// The status with which the admin API would answer an error; 500 for errors without one.
fn status(error: &anyhow::Error) -> u16 {
    let of_token = error.downcast_ref::<TokenStoreError>().map(TokenStoreError::status);
    let of_key = || error.downcast_ref::<KeyError>().or_else(|| key_error(error.downcast_ref()?)).map(keys::status);
    of_token.or_else(of_key).map_or(500, |status| status.as_u16())
}
