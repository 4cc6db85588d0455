//! URIs as logs may have them: without what a client should have put into a header.
//!
//! A token belongs into `Authorization`, and nothing here reads it from anywhere else. People put it into the query all
//! the same, as other services have it, and logs are read by more people than tokens are for.
//!
//! Two degrees: the log of the process tells which parameters there were and none of their values ([`without_values`]);
//! the audit log tells what was asked for, but for parameters that are called like secrets and for whatever looks like
//! a token ([`without_secrets`]).

use http::Uri;
use percent_encoding::percent_decode_str;

/// What stands in the place of a value.
const HIDDEN: &str = "…";
/// What parameters with secrets are called, or have in their names.
const SECRET_NAMES: [&str; 11] =
    ["token", "auth", "secret", "passw", "pwd", "credential", "apikey", "api_key", "api-key", "signature", "session"];
/// What tokens begin with that this gateway makes, and how many bytes a text has at least that may be one.
const TOKEN: (&str, usize) = ("cw_", 20);

/// The path, and the names of the query's parameters.
pub fn without_values(uri: &Uri) -> String {
    of(uri, |_, _| true)
}

/// The path and the query, without parameters that are called like secrets and without tokens.
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
    fn what_is_logged_has_no_secret() {
        // What was asked for; what the audit log has; what the log of the process has.
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
