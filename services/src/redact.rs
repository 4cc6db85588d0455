//! Redaction of URIs for logs.
//!
//! Tokens are accepted in the `Authorization` header only. Clients put them into the query by mistake, as other
//! services allow, and logs have more readers than tokens should.
//!
//! Two levels: the process log gets the names of query parameters without values ([`without_values`]); the audit log
//! gets the whole query, except parameters with names of secrets, and values that look like tokens
//! ([`without_secrets`]).

use http::Uri;
use percent_encoding::percent_decode_str;

/// Replaces a redacted value.
const HIDDEN: &str = "…";
/// Parts of the names of parameters with secrets.
const SECRET_NAMES: [&str; 11] =
    ["token", "auth", "secret", "passw", "pwd", "credential", "apikey", "api_key", "api-key", "signature", "session"];
/// The prefix of this gateway's tokens, and their minimum length.
const TOKEN: (&str, usize) = ("cw_", 20);

/// The path, and the names of the query parameters.
pub fn without_values(uri: &Uri) -> String {
    of(uri, |_, _| true)
}

/// The path and the query, without parameters with names of secrets and without tokens.
pub fn without_secrets(uri: &Uri) -> String {
    of(uri, |name, value| {
        let name = decoded(name).to_ascii_lowercase();
        SECRET_NAMES.iter().any(|secret| name.contains(secret)) || has_token(value)
    })
}

fn of(uri: &Uri, hides: impl Fn(&str, &str) -> bool) -> String {
    let segments = uri.path().split('/').map(|segment| if has_token(segment) { HIDDEN } else { segment });
    let path = segments.collect::<Vec<_>>().join("/");
    let Some(query) = uri.query() else { return path };
    let shown = query.split('&').map(|part| match part.split_once('=') {
        Some((name, _)) if has_token(name) => format!("{HIDDEN}={HIDDEN}"),
        Some((name, value)) if hides(name, value) => format!("{name}={HIDDEN}"),
        Some(_) => part.to_owned(),
        None if has_token(part) => HIDDEN.to_owned(),
        None => part.to_owned(),
    });
    format!("{path}?{}", shown.collect::<Vec<_>>().join("&"))
}

fn has_token(text: &str) -> bool {
    let text = decoded(text);
    text.len() >= TOKEN.1 && text.to_ascii_lowercase().contains(TOKEN.0)
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "cw_abcdefghij_abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";

    #[test]
    fn logged_uris_have_no_secrets() {
        // The request; the audit log; the process log.
        let table = [
            ("/api/v1/purge".to_owned(), "/api/v1/purge", "/api/v1/purge"),
            ("/api/v0/pin/rm?arg=bafy&x".to_owned(), "/api/v0/pin/rm?arg=bafy&x", "/api/v0/pin/rm?arg=…&x"),
            ("/a?token=word&limit=3".to_owned(), "/a?token=…&limit=3", "/a?token=…&limit=…"),
            ("/a?access_token=word".to_owned(), "/a?access_token=…", "/a?access_token=…"),
            ("/a?%74oken=word".to_owned(), "/a?%74oken=…", "/a?%74oken=…"),
            ("/a?Authorization=Bearer+word".to_owned(), "/a?Authorization=…", "/a?Authorization=…"),
            ("/a?api-key=word&password=word".to_owned(), "/a?api-key=…&password=…", "/a?api-key=…&password=…"),
            (format!("/a?arg={TOKEN}"), "/a?arg=…", "/a?arg=…"),
            (format!("/a?arg=Bearer%20{}", TOKEN.replace('_', "%5F")), "/a?arg=…", "/a?arg=…"),
            (format!("/a?{TOKEN}"), "/a?…", "/a?…"),
            (format!("/a?{TOKEN}=1"), "/a?…=…", "/a?…=…"),
            (format!("/a/{TOKEN}/b"), "/a/…/b", "/a/…/b"),
        ];
        for (uri, audit, log) in table {
            let uri = uri.parse().expect("a path");
            assert_eq!((&*without_secrets(&uri), &*without_values(&uri)), (audit, log), "{uri}");
        }
    }
}
