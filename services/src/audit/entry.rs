//! [`AuditEntry`]: a record of the audit log.

use crate::access::Principal;
use crate::audit::context::shortened;
use crate::redact;
use api::access::{OPERATOR, Scope};
use api::audit::AuditEntry;
use api::text::seconds;
use config::{ShownAddress, UNIX_PEER};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// The maximum length of a path, in bytes.
pub(super) const PATH_BYTES_MAX: usize = 2048;
/// The maximum size of a record: a path of which each byte is escaped, the details
/// ([`crate::audit::context::BYTES_MAX`]), and the rest.
pub(super) const RECORD_BYTES_MAX: u64 = 24 * 1024;

/// The record as a line of the log.
pub(super) fn line(entry: &AuditEntry) -> Vec<u8> {
    // Serialising texts and numbers cannot fail.
    let mut line = serde_json::to_vec(entry).unwrap_or_default();
    line.push(b'\n');
    line
}

/// A change before its outcome is known.
#[derive(Debug)]
pub struct PendingChange {
    id: String,
    token: Arc<str>,
    name: Arc<str>,
    scope: Scope,
    from: Option<String>,
    method: String,
    path: String,
    since: SystemTime,
}

impl PendingChange {
    /// A change that `principal` requests.
    pub fn new(
        principal: &Principal,
        scope: Scope,
        from: Option<SocketAddr>,
        method: &http::Method,
        uri: &http::Uri,
    ) -> Self {
        let path = redact::without_secrets(uri);
        Self {
            id: next_id(),
            token: Arc::clone(&principal.id),
            name: Arc::clone(&principal.name),
            scope,
            from: from.map(shown),
            method: method.to_string(),
            path: path[..path.floor_char_boundary(PATH_BYTES_MAX)].to_owned(),
            since: SystemTime::now(),
        }
    }

    /// A change by a command that works on the data directory without a gateway.
    pub(super) fn by_command(words: &str) -> Self {
        Self {
            id: next_id(),
            token: OPERATOR.into(),
            name: OPERATOR.into(),
            scope: Scope::Operate,
            from: Some(format!("uid {}", rustix::process::getuid().as_raw())),
            method: "command".to_owned(),
            path: words.to_owned(),
            since: SystemTime::now(),
        }
    }

    /// An action of the gateway itself that follows from a change.
    pub(super) fn by_gateway(method: &str, about: &str) -> Self {
        Self {
            token: "gateway".into(),
            name: "gateway".into(),
            from: None,
            method: method.to_owned(),
            path: about[..about.floor_char_boundary(PATH_BYTES_MAX)].to_owned(),
            ..Self::by_command("")
        }
    }

    /// The record before the change.
    pub(super) fn intent(&self, detail: Option<Value>) -> AuditEntry {
        self.entry(self.since, None, detail)
    }

    /// The record after the change.
    pub(super) fn outcome(&self, status: u16, detail: Option<Value>) -> AuditEntry {
        self.entry(SystemTime::now(), Some(status), detail)
    }

    fn entry(&self, at: SystemTime, status: Option<u16>, detail: Option<Value>) -> AuditEntry {
        AuditEntry {
            id: self.id.clone(),
            at: seconds(at.duration_since(UNIX_EPOCH).unwrap_or_default()),
            token: self.token.to_string(),
            name: self.name.to_string(),
            scope: self.scope,
            from: self.from.clone(),
            method: self.method.clone(),
            path: self.path.clone(),
            status,
            seconds: status.map(|_| seconds(at.duration_since(self.since).unwrap_or_default())),
            detail: detail.map(shortened),
        }
    }
}

/// The address of a client, as in the access log: a Unix socket has none.
fn shown(from: SocketAddr) -> String {
    if from.ip() == UNIX_PEER { ShownAddress(UNIX_PEER).to_string() } else { from.to_string() }
}

/// A unique ID: of the process, by its start time and process ID, and of the change within it.
fn next_id() -> String {
    static PROCESS: LazyLock<u128> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_nanos() << 32 | u128::from(std::process::id())
    });
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{:x}-{:x}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::context::BYTES_MAX;
    use serde_json::json;

    #[test]
    fn long_values_are_truncated() {
        let uri = format!("/{}", "\"".repeat(9000)).parse().expect("a path");
        let begun = PendingChange::new(&Principal::operator(), Scope::Pin, None, &http::Method::PUT, &uri);
        let entry = begun.outcome(200, Some(json!({"cid": "x", "words": "\u{1}".repeat(BYTES_MAX)})));
        assert_eq!(entry.path.len(), PATH_BYTES_MAX);
        let detail = entry.detail.clone().expect("is there");
        assert!(detail["cid"] == json!("x") && detail.to_string().len() <= BYTES_MAX, "{detail}");
        assert!(line(&entry).len() as u64 <= RECORD_BYTES_MAX, "{}", line(&entry).len());
    }
}
