//! [`Entry`]: a change, as the audit log has it.

use crate::access::Principal;
use crate::audit::context::shortened;
use crate::redact;
use api::access::{OPERATOR, Scope};
use api::audit::Entry;
use api::text::seconds;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// The longest path that is written, in bytes.
pub(super) const PATH_BYTES_MAX: usize = 2048;
/// The longest record: a path of which each byte is escaped, a detail ([`crate::audit::context::BYTES_MAX`]), and the
/// rest.
pub(super) const RECORD_BYTES_MAX: u64 = 24 * 1024;

/// The record as a line of the log.
pub(super) fn line(entry: &Entry) -> Vec<u8> {
    // A record of texts and numbers can be written.
    let mut line = serde_json::to_vec(entry).unwrap_or_default();
    line.push(b'\n');
    line
}

/// What is known of a change before its outcome is.
#[derive(Debug)]
pub struct Begun {
    id: String,
    token: Arc<str>,
    name: Arc<str>,
    scope: Scope,
    from: Option<String>,
    method: String,
    path: String,
    since: SystemTime,
}

impl Begun {
    /// A change that `bearer` asks for.
    pub fn new(
        bearer: &Principal,
        scope: Scope,
        from: Option<SocketAddr>,
        method: &http::Method,
        uri: &http::Uri,
    ) -> Self {
        let path = redact::without_secrets(uri);
        Self {
            id: next_id(),
            token: Arc::clone(&bearer.id),
            name: Arc::clone(&bearer.name),
            scope,
            from: from.map(|from| from.to_string()),
            method: method.to_string(),
            path: path[..path.floor_char_boundary(PATH_BYTES_MAX)].to_owned(),
            since: SystemTime::now(),
        }
    }

    /// A change that a command makes of the data folder itself, without a gateway.
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

    /// Something that the gateway does by itself, because of a change.
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
    pub(super) fn intent(&self, detail: Option<Value>) -> Entry {
        self.entry(self.since, None, detail)
    }

    /// The record after it.
    pub(super) fn outcome(&self, status: u16, detail: Option<Value>) -> Entry {
        self.entry(SystemTime::now(), Some(status), detail)
    }

    fn entry(&self, at: SystemTime, status: Option<u16>, detail: Option<Value>) -> Entry {
        Entry {
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

/// An id that no other change has: of the process, which two at a time do not share, and of the change in it.
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
    fn what_is_too_long_is_cut() {
        let uri = format!("/{}", "\"".repeat(9000)).parse().expect("a path");
        let begun = Begun::new(&Principal::operator(), Scope::Pin, None, &http::Method::PUT, &uri);
        let entry = begun.outcome(200, Some(json!({"cid": "x", "words": "\u{1}".repeat(BYTES_MAX)})));
        assert_eq!(entry.path.len(), PATH_BYTES_MAX);
        let detail = entry.detail.clone().expect("is there");
        assert!(detail["cid"] == json!("x") && detail.to_string().len() <= BYTES_MAX, "{detail}");
        assert!(line(&entry).len() as u64 <= RECORD_BYTES_MAX, "{}", line(&entry).len());
    }
}
