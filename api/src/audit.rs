//! Entries of the audit log.

use crate::access::Scope;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The latest entries of the audit log.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// The entries, the newest first.
    pub entries: Vec<AuditEntry>,
}

/// An entry of the audit log: a change that was requested.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Entry)]
pub struct AuditEntry {
    /// Identifies the change: the entry that is written before the change and the one that is written after it have the
    /// same ID. Empty in entries of releases that wrote only one.
    #[serde(default)]
    pub id: String,
    /// When the response began, in seconds since the Unix epoch; in an entry without a status, when the change began.
    pub at: f64,
    /// The ID of the token.
    pub token: String,
    /// The name of the token.
    pub name: String,
    /// The required scope.
    pub scope: Scope,
    /// The client's address and port. For a command that uses the data folder directly, "uid" and the user's number.
    pub from: Option<String>,
    /// The method of the request; "command" for a command that uses the data folder directly.
    pub method: String,
    /// The path and query; for a command, its arguments.
    pub path: String,
    /// The status of the response; 499 if the client disconnected before it. Omitted while the change is in progress,
    /// and if the process ended before it was completed: then the change may have been made or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The duration of the request, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// More details of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Value>,
}

/// The status when the client disconnected before the response: the change may have been made.
pub const CLIENT_DISCONNECTED: u16 = 499;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_earlier_releases_are_read() {
        let line = r#"{"at":1.5,"token":"operator","name":"operator","scope":"operate","from":null,"method":"POST","path":"/x",
            "status":200,"seconds":0.25}"#;
        let entry: AuditEntry = serde_json::from_str(line).expect("reads");
        assert_eq!((entry.id.as_str(), entry.status, entry.seconds), ("", Some(200), Some(0.25)));
    }
}
