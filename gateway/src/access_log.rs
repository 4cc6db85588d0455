//! [`AccessLine`]: the access log's record of a request, written when the response has ended (`log.access`).
//!
//! A record is a log event with the target `access` and the level info; its data are fields, in the log's format. It
//! has the path without its query, which may contain private data, and no header but `User-Agent`.

use crate::request::client::Client;
use config::ShownAddress;
use http::header::{HeaderMap, USER_AGENT};
use http::request::Parts;
use http::{Method, StatusCode};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

/// The target of access log records.
pub const TARGET: &str = "access";
/// The maximum lengths of paths and hosts, and of user agents, in bytes.
const TEXT_BYTES_MAX: usize = 1024;
const AGENT_BYTES_MAX: usize = 256;

/// A record, until it is written.
#[derive(Debug)]
pub struct AccessLine {
    client: IpAddr,
    method: Method,
    host: String,
    path: String,
    user_agent: String,
    status: u16,
    tier: &'static str,
    bytes: u64,
}

impl AccessLine {
    /// A record of a request, if the access log is enabled.
    pub fn begin(head: &Parts, client: &Client) -> Option<Box<Self>> {
        if !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
            return None;
        }
        Some(Box::new(Self {
            client: client.address,
            method: head.method.clone(),
            host: printable(client.authority.as_bytes(), TEXT_BYTES_MAX),
            path: printable(head.uri.path().as_bytes(), TEXT_BYTES_MAX),
            user_agent: agent_of(&head.headers),
            status: 0,
            tier: "",
            bytes: 0,
        }))
    }

    /// Records the response's head; `tier` is the source of the content, if the response has content.
    pub fn head(&mut self, status: StatusCode, tier: Option<&'static str>) {
        self.status = status.as_u16();
        self.tier = tier.unwrap_or("");
    }

    /// Counts bytes of the body.
    pub fn sent(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Writes the record. The status is 499, as in nginx, if the client disconnected before the response; `complete` is
    /// false if the response was aborted.
    pub fn write(&self, took: Duration, complete: bool) {
        let Self { client, method, host, path, user_agent, status, tier, bytes } = self;
        let status = if *status == 0 { 499 } else { *status };
        let client = ShownAddress(*client);
        let duration_ms = (took.as_secs_f64() * 1e6).round() / 1e3;
        tracing::info!(
            target: "access", %client, method = method.as_str(), host, path, status, duration_ms, bytes, tier,
            user_agent, complete
        );
    }
}

fn agent_of(headers: &HeaderMap) -> String {
    headers.get(USER_AGENT).map(|agent| printable(agent.as_bytes(), AGENT_BYTES_MAX)).unwrap_or_default()
}

/// The beginning of a text as printable ASCII: other bytes, quotes and backslashes are escaped as in nginx (`\x1B`).
fn printable(bytes: &[u8], bytes_max: usize) -> String {
    let mut text = String::with_capacity(bytes.len().min(bytes_max));
    for byte in bytes {
        let room = bytes_max - text.len();
        match byte {
            b' '..=b'~' if !matches!(byte, b'"' | b'\\') && room >= 1 => text.push(char::from(*byte)),
            // Writing to a string does not fail.
            _ if room >= 4 => _ = write!(text, "\\x{byte:02X}"),
            _ => break,
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_text_is_short_and_printable() {
        let table: [(&[u8], usize, &str); 7] = [
            (b"curl/8.5.0", 256, "curl/8.5.0"),
            (b"", 256, ""),
            (b"a\r\nb\x1b[31m\t", 256, r"a\x0D\x0Ab\x1B[31m\x09"),
            (b"\"quoted\" \\", 256, r"\x22quoted\x22 \x5C"),
            ("\u{e9}\u{202e}".as_bytes(), 256, r"\xC3\xA9\xE2\x80\xAE"),
            (b"abcdef", 3, "abc"),
            (b"ab\ncdef", 5, "ab"),
        ];
        for (bytes, max, expected) in table {
            assert_eq!(printable(bytes, max), expected);
        }
    }
}
