//! Entries of the audit log.

use crate::access::Scope;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The last changes.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// The newest first.
    pub entries: Vec<Entry>,
}

/// A change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// Tells changes apart: the record that is written before a change and the one that is written after it have the
    /// same. Empty in records of releases that wrote one record only.
    #[serde(default)]
    pub id: String,
    /// When its answer began, in seconds since the Unix epoch; of a change without a status, when it was begun.
    pub at: f64,
    /// The id of the token that was sent.
    pub token: String,
    /// What the operator calls the token.
    pub name: String,
    /// The scope that the change needs.
    pub scope: Scope,
    /// Where the request came from: an address and a port. Of a command on the data folder itself, "uid" and the user's
    /// number.
    pub from: Option<String>,
    /// The method of the request; "command" for a command on the data folder itself.
    pub method: String,
    /// Its path and query; the words of a command.
    pub path: String,
    /// The status of the answer; 499 if the client left before there was one. Left out while the change is under way,
    /// and for ever if the process ended before it was done: then it may have been made or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long the answer took, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// What the operation says besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Value>,
}

/// What is written for the status when the client left before there was an answer: what it began may have been done.
pub const LEFT: u16 = 499;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_former_releases_are_read() {
        let line = r#"{"at":1.5,"token":"operator","name":"operator","scope":"operate","from":null,"method":"POST","path":"/x",
            "status":200,"seconds":0.25}"#;
        let entry: Entry = serde_json::from_str(line).expect("reads");
        assert_eq!((entry.id.as_str(), entry.status, entry.seconds), ("", Some(200), Some(0.25)));
    }
}
