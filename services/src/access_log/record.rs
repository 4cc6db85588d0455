//! [`AccessRecord`]: a record of an ended request, and its line in each format.
//!
//! | format | line |
//! |---|---|
//! | text | logfmt: `name=value`, separated by spaces; text in quotes |
//! | JSON | one object with the same names |
//! | combined | the combined log format of Apache and nginx, without further fields |

use config::AccessFormat;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

/// What stands for a value that is not known, as in Apache and nginx.
pub const UNKNOWN: &str = "-";
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The tier that the content of a response came from: the farthest one that was read for its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContentTier {
    /// Memory.
    Ram,
    /// The block store.
    Disk,
    /// The storage that the gateways of a site share.
    Site,
    /// The network.
    Network,
}

impl ContentTier {
    /// All tiers, the nearest first.
    pub const ALL: [Self; 4] = [Self::Ram, Self::Disk, Self::Site, Self::Network];

    /// The name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Disk => "disk",
            Self::Site => "site",
            Self::Network => "network",
        }
    }

    /// The tier with a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

/// The format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFormat {
    /// logfmt.
    Text,
    /// JSON.
    Json,
    /// The combined log format.
    Combined,
}

impl LineFormat {
    /// The format of a setting; `None` for the log's own format.
    pub const fn of(format: AccessFormat) -> Option<Self> {
        match format {
            AccessFormat::Log => None,
            AccessFormat::Text => Some(Self::Text),
            AccessFormat::Json => Some(Self::Json),
            AccessFormat::Combined => Some(Self::Combined),
        }
    }
}

/// A record of an ended request. Texts are empty if they are not known. They consist of printable ASCII characters
/// without quotes, in which all others are escaped ([`printable`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessRecord<'a> {
    /// When the request was received, in microseconds since the Unix epoch.
    pub received_us: i64,
    /// The client's address, anonymised if so configured.
    pub client: Cow<'a, str>,
    /// The method.
    pub method: Cow<'a, str>,
    /// The requested host.
    pub host: Cow<'a, str>,
    /// The path, percent-encoded, without the query.
    pub path: Cow<'a, str>,
    /// The version of HTTP, such as `HTTP/1.1`.
    pub protocol: Cow<'a, str>,
    /// The status of the response; 499, as in nginx, if the client disconnected before it.
    pub status: u16,
    /// Bytes of the body.
    pub bytes: u64,
    /// The time to the end of the response, in microseconds.
    pub duration_us: Option<u64>,
    /// The time to the head of the response, in microseconds.
    pub first_byte_us: Option<u64>,
    /// The tier of the content, if the response has content.
    pub tier: Option<ContentTier>,
    /// The root of the content path: `/ipfs/CID` or `/ipns/NAME`.
    pub root: Cow<'a, str>,
    /// The origin of the page that links to the content: the header `Referer` without its path.
    pub referer: Cow<'a, str>,
    /// The header `User-Agent`.
    pub user_agent: Cow<'a, str>,
    /// Whether the whole response was sent.
    pub complete: Option<bool>,
    /// The identifier of the trace, in hexadecimal digits, if the request was traced.
    pub trace_id: Cow<'a, str>,
}

/// The fields in JSON, in their order.
#[derive(Serialize)]
struct JsonLine<'a> {
    time: &'a str,
    client: &'a str,
    method: &'a str,
    host: &'a str,
    path: &'a str,
    protocol: &'a str,
    status: u16,
    bytes: u64,
    duration_ms: Option<f64>,
    first_byte_ms: Option<f64>,
    tier: &'a str,
    root: &'a str,
    referer: &'a str,
    user_agent: &'a str,
    complete: Option<bool>,
    #[serde(skip_serializing_if = "str::is_empty")]
    trace_id: &'a str,
}

impl AccessRecord<'_> {
    /// Appends the line of this record in a format, with its line break.
    pub fn append_to(&self, line: &mut String, format: LineFormat) {
        match format {
            LineFormat::Text => self.append_text(line),
            LineFormat::Json => self.append_json(line),
            LineFormat::Combined => self.append_combined(line),
        }
        line.push('\n');
    }

    // Writing to a string does not fail.
    fn append_text(&self, line: &mut String) {
        _ = write!(line, "time={} client=", rfc3339(self.received_us));
        push_word(line, &self.client);
        line.push_str(" method=");
        push_word(line, &self.method);
        push_quoted(line, " host=", &self.host);
        push_quoted(line, " path=", &self.path);
        line.push_str(" protocol=");
        push_word(line, &self.protocol);
        _ = write!(line, " status={} bytes={}", self.status, self.bytes);
        for (name, time) in [(" duration_ms=", self.duration_us), (" first_byte_ms=", self.first_byte_us)] {
            line.push_str(name);
            match time {
                Some(time) => _ = write!(line, "{}", milliseconds(time)),
                None => line.push_str(UNKNOWN),
            }
        }
        _ = write!(line, " tier={}", self.tier.map_or(UNKNOWN, ContentTier::name));
        push_quoted(line, " root=", &self.root);
        push_quoted(line, " referer=", &self.referer);
        push_quoted(line, " user_agent=", &self.user_agent);
        let complete = self.complete.map_or(UNKNOWN, |complete| if complete { "true" } else { "false" });
        _ = write!(line, " complete={complete}");
        if !self.trace_id.is_empty() {
            line.push_str(" trace_id=");
            push_word(line, &self.trace_id);
        }
    }

    fn append_json(&self, line: &mut String) {
        let fields = JsonLine {
            time: &rfc3339(self.received_us),
            client: &clean(&self.client),
            method: &clean(&self.method),
            host: &clean(&self.host),
            path: &clean(&self.path),
            protocol: &clean(&self.protocol),
            status: self.status,
            bytes: self.bytes,
            duration_ms: self.duration_us.map(milliseconds),
            first_byte_ms: self.first_byte_us.map(milliseconds),
            tier: self.tier.map_or("", ContentTier::name),
            root: &clean(&self.root),
            referer: &clean(&self.referer),
            user_agent: &clean(&self.user_agent),
            complete: self.complete,
            trace_id: &clean(&self.trace_id),
        };
        // Serialising strings and numbers does not fail.
        line.push_str(&serde_json::to_string(&fields).unwrap_or_default());
    }

    fn append_combined(&self, line: &mut String) {
        push_word(line, &self.client);
        let at = moment(self.received_us);
        let month = MONTHS.get(usize::from(u8::from(at.month())) - 1).copied().unwrap_or_default();
        _ = write!(
            line,
            " - - [{:02}/{month}/{:04}:{:02}:{:02}:{:02} +0000] \"",
            at.day(),
            at.year(),
            at.hour(),
            at.minute(),
            at.second()
        );
        push_word(line, &self.method);
        line.push(' ');
        push_word(line, &self.path);
        line.push(' ');
        push_word(line, &self.protocol);
        _ = write!(line, "\" {} {} \"", self.status, self.bytes);
        push_clean(line, if self.referer.is_empty() { UNKNOWN } else { &self.referer });
        line.push_str("\" \"");
        push_clean(line, if self.user_agent.is_empty() { UNKNOWN } else { &self.user_agent });
        line.push('"');
    }
}

/// The beginning of a client's text as printable ASCII: other bytes, quotes and backslashes are escaped as in nginx
/// (`\x1B`).
pub fn printable(bytes: &[u8], bytes_max: usize) -> String {
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

/// The origin of a `Referer` (RFC 6454, section 6.2), in lower case and without user information; empty if it has none.
/// Paths and queries of other sites may be private.
pub fn origin(referer: &str) -> String {
    let Some((scheme, rest)) = referer.split_once("://") else { return String::new() };
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let is_scheme = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    if host.is_empty() || scheme.is_empty() || !is_scheme {
        return String::new();
    }
    format!("{scheme}://{host}").to_ascii_lowercase()
}

/// The first two segments of a content path: the namespace and the root. Empty if it is none.
pub fn root_of(path: &str) -> &str {
    let Some((namespace, below)) = content::path::Namespace::split(path) else { return "" };
    let root = below.find('/').unwrap_or(below.len());
    if root == 0 { "" } else { &path[..namespace.prefix().len() + root] }
}

/// A time in microseconds since the Unix epoch.
pub fn microseconds(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A duration in whole microseconds.
pub fn whole_microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A time in UTC as RFC 3339 has it, in milliseconds.
pub fn rfc3339(us: i64) -> String {
    let at = moment(us);
    let (date, time) = ((at.year(), u8::from(at.month()), at.day()), (at.hour(), at.minute(), at.second()));
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        date.0,
        date.1,
        date.2,
        time.0,
        time.1,
        time.2,
        at.millisecond()
    )
}

/// A time that the calendar has: years 0 to 9999.
fn moment(us: i64) -> OffsetDateTime {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(us) * 1000).ok();
    at.filter(|at| (0..=9999).contains(&at.year())).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn milliseconds(us: u64) -> f64 {
    us as f64 / 1e3
}

/// Whether a text needs no escapes and has none.
fn is_clean(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
}

/// Whether a text begins with an escape such as `\x0A`.
fn begins_with_escape(text: &[u8]) -> bool {
    matches!(text, [b'\\', b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

/// A text that is certain not to leave its place in a line. Escapes stay as they are.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    if is_clean(text) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len() + 16);
    push_clean(&mut cleaned, text);
    Cow::Owned(cleaned)
}

fn push_clean(line: &mut String, text: &str) {
    if is_clean(text) {
        line.push_str(text);
        return;
    }
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\\' if begins_with_escape(&bytes[at..]) => line.push('\\'),
            b' '..=b'~' if !matches!(byte, b'"' | b'\\') => line.push(char::from(*byte)),
            // Writing to a string does not fail.
            _ => _ = write!(line, "\\x{byte:02X}"),
        }
    }
}

fn push_quoted(line: &mut String, name: &str, text: &str) {
    line.push_str(name);
    line.push('"');
    push_clean(line, text);
    line.push('"');
}

/// A text that has no spaces, or the sign for an unknown value.
fn push_word(line: &mut String, text: &str) {
    if text.is_empty() {
        line.push_str(UNKNOWN);
    } else if text.contains(' ') {
        push_clean(line, &text.replace(' ', "\\x20"));
    } else {
        push_clean(line, text);
    }
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

    #[test]
    fn a_referer_is_reduced_to_its_origin() {
        let table = [
            ("https://Example.org/private?q=1#f", "https://example.org"),
            ("https://user:secret@example.org:8443/", "https://example.org:8443"),
            ("http://[::1]:80", "http://[::1]:80"),
            ("android-app://com.example/", "android-app://com.example"),
            ("https://example.org?q", "https://example.org"),
            ("about:blank", ""),
            ("/ipfs/x", ""),
            ("https://", ""),
            ("ht tp://example.org", ""),
            ("", ""),
        ];
        for (referer, expected) in table {
            assert_eq!(origin(referer), expected, "{referer}");
        }
    }

    #[test]
    fn a_content_path_has_a_root() {
        let table = [
            ("/ipfs/bafy/a/b", "/ipfs/bafy"),
            ("/ipfs/bafy", "/ipfs/bafy"),
            ("/ipns/example.org/", "/ipns/example.org"),
            ("/ipfs/", ""),
            ("/ipfs//a", ""),
            ("/other", ""),
            ("", ""),
        ];
        for (path, expected) in table {
            assert_eq!(root_of(path), expected, "{path}");
        }
    }

    #[test]
    fn lines_are_those_of_each_format() {
        let record = AccessRecord {
            received_us: 1_795_680_000_123_456,
            client: "203.0.113.7".into(),
            method: "GET".into(),
            host: "gateway.example.org".into(),
            path: "/ipfs/bafkqaaa/a%20b".into(),
            protocol: "HTTP/1.1".into(),
            status: 200,
            bytes: 11,
            duration_us: Some(1_234),
            first_byte_us: Some(500),
            tier: Some(ContentTier::Ram),
            root: "/ipfs/bafkqaaa".into(),
            referer: "https://example.org".into(),
            user_agent: "curl/8.5.0 (x)".into(),
            complete: Some(true),
            trace_id: "".into(),
        };
        let line = |record: &AccessRecord<'_>, format| {
            let mut line = String::new();
            record.append_to(&mut line, format);
            line
        };
        let table = [
            (
                LineFormat::Text,
                "time=2026-11-26T08:00:00.123Z client=203.0.113.7 method=GET host=\"gateway.example.org\" \
                 path=\"/ipfs/bafkqaaa/a%20b\" protocol=HTTP/1.1 status=200 bytes=11 duration_ms=1.234 \
                 first_byte_ms=0.5 tier=ram root=\"/ipfs/bafkqaaa\" referer=\"https://example.org\" \
                 user_agent=\"curl/8.5.0 (x)\" complete=true\n",
            ),
            (
                LineFormat::Json,
                "{\"time\":\"2026-11-26T08:00:00.123Z\",\"client\":\"203.0.113.7\",\"method\":\"GET\",\
                 \"host\":\"gateway.example.org\",\"path\":\"/ipfs/bafkqaaa/a%20b\",\"protocol\":\"HTTP/1.1\",\
                 \"status\":200,\"bytes\":11,\"duration_ms\":1.234,\"first_byte_ms\":0.5,\"tier\":\"ram\",\
                 \"root\":\"/ipfs/bafkqaaa\",\"referer\":\"https://example.org\",\"user_agent\":\"curl/8.5.0 (x)\",\
                 \"complete\":true}\n",
            ),
            (
                LineFormat::Combined,
                "203.0.113.7 - - [26/Nov/2026:08:00:00 +0000] \"GET /ipfs/bafkqaaa/a%20b HTTP/1.1\" 200 11 \
                 \"https://example.org\" \"curl/8.5.0 (x)\"\n",
            ),
        ];
        for (format, expected) in table {
            assert_eq!(line(&record, format), expected);
        }
        let unknown = AccessRecord::default();
        assert_eq!(
            line(&unknown, LineFormat::Combined),
            "- - - [01/Jan/1970:00:00:00 +0000] \"- - -\" 0 0 \"-\" \"-\"\n"
        );
        assert!(line(&unknown, LineFormat::Text).contains(" client=- method=- host=\"\" "));
    }
}
