//! [`parse`]: a line of an access log, of any format that Causeway writes, or of a server with the combined format.
//!
//! Goals: the format is detected for each line, so that logs can be mixed; nothing is believed of a line that is not
//! whole; texts are made printable, whatever the file has.
//!
//! Non-goals: files, decompression and the length of lines, which the caller bounds.

use super::record::{AccessRecord, ContentTier, UNKNOWN, clean, microseconds, root_of};
use serde::Deserialize;
use std::borrow::Cow;
use time::format_description::well_known::Rfc3339;
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time, UtcOffset};

/// The target of the access log's events in the log of the process.
pub const TARGET: &str = "access";
/// Milliseconds that a duration cannot reach.
const MILLISECONDS_MAX: f64 = 1e13;

/// Why a line is no record of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A line of the log that is about something else.
    #[error("a line of the log that is no request")]
    OtherLine,
    /// No known format.
    #[error("the line is in none of the known formats")]
    Format,
    /// A value that cannot be.
    #[error("a time, status, size or duration is invalid")]
    Value,
}

/// Parses a line, without its line break.
///
/// # Errors
/// [`ParseError`] when it is no record of a request.
pub fn parse(line: &str) -> Result<AccessRecord<'_>, ParseError> {
    let line = line.trim();
    let text = || line.starts_with("time=").then(|| parse_logfmt(line, None));
    let json = || json_part(line).map(parse_json);
    let log = || log_part(line).map(|part| part.and_then(|(at, fields)| parse_logfmt(fields, Some(at))));
    // A line that begins like one format can be one of another.
    let is_of_format = |parsed: &Result<_, _>| !matches!(parsed, Err(ParseError::Format));
    let parsed = text().filter(is_of_format).or_else(|| json().filter(is_of_format));
    parsed.or_else(|| log().filter(is_of_format)).unwrap_or_else(|| parse_combined(line))
}

/// The object of a line, also after the prefix of journald or syslog, which has neither quotes nor braces.
fn json_part(line: &str) -> Option<&str> {
    let start = line.find(['{', '"'])?;
    line[start..].starts_with('{').then(|| &line[start..])
}

/// The time and the fields of a line in the log's text format: "2026-11-26T08:00:00.123456Z  INFO access: client=…",
/// also after the prefix of journald or syslog. Texts of clients are in quotes, and come later.
fn log_part(line: &str) -> Option<Result<(i64, &str), ParseError>> {
    let unquoted = line.split('"').next().unwrap_or_default();
    let (level_at, level) = [" ERROR ", " WARN ", " INFO ", " DEBUG ", " TRACE "]
        .into_iter()
        .filter_map(|level| Some((unquoted.find(level)?, level)))
        .min_by_key(|(at, _)| *at)?;
    let at = line[..level_at].split_whitespace().next_back().and_then(timestamp)?;
    let rest = line[level_at + level.len()..].strip_prefix(TARGET).and_then(|rest| rest.strip_prefix(": "));
    Some(rest.map(|fields| (at, fields)).ok_or(ParseError::OtherLine))
}

/// The fields of a JSON object: our own, or those of the log, which are in `fields`.
#[derive(Deserialize)]
struct JsonFields<'a> {
    #[serde(borrow, default)]
    time: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    timestamp: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    target: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    fields: Option<Box<JsonFields<'a>>>,
    #[serde(borrow, default)]
    client: Cow<'a, str>,
    #[serde(borrow, default)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    host: Cow<'a, str>,
    #[serde(borrow, default)]
    path: Cow<'a, str>,
    #[serde(borrow, default)]
    protocol: Cow<'a, str>,
    #[serde(default)]
    status: Option<u16>,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    duration_ms: Option<f64>,
    #[serde(default)]
    first_byte_ms: Option<f64>,
    #[serde(borrow, default)]
    tier: Cow<'a, str>,
    #[serde(borrow, default)]
    root: Cow<'a, str>,
    #[serde(borrow, default)]
    referer: Cow<'a, str>,
    #[serde(borrow, default)]
    user_agent: Cow<'a, str>,
    #[serde(default)]
    complete: Option<bool>,
    #[serde(borrow, default)]
    trace_id: Cow<'a, str>,
}

fn parse_json(line: &str) -> Result<AccessRecord<'_>, ParseError> {
    let object: JsonFields<'_> = serde_json::from_str(line).map_err(|_| ParseError::Format)?;
    let (fields, ended) = match (object.fields, object.timestamp) {
        (Some(fields), Some(at)) => {
            if object.target.as_deref() != Some(TARGET) {
                return Err(ParseError::OtherLine);
            }
            (*fields, Some(timestamp(&at).ok_or(ParseError::Value)?))
        }
        (None, None) => (JsonFields { fields: None, timestamp: None, ..object }, None),
        _ => return Err(ParseError::Format),
    };
    let duration_us = fields.duration_ms.map(whole_us).transpose()?;
    let received_us = match (ended, fields.time) {
        (Some(ended), _) => before(ended, duration_us),
        (None, Some(time)) => timestamp(&time).ok_or(ParseError::Value)?,
        (None, None) => return Err(ParseError::Format),
    };
    Ok(AccessRecord {
        received_us,
        client: known(fields.client),
        method: known(fields.method),
        host: known(fields.host),
        path: known(fields.path),
        protocol: known(fields.protocol),
        status: fields.status.filter(is_status).ok_or(ParseError::Value)?,
        bytes: fields.bytes,
        duration_us,
        first_byte_us: fields.first_byte_ms.map(whole_us).transpose()?,
        tier: ContentTier::named(&fields.tier),
        root: known(fields.root),
        referer: known(fields.referer),
        user_agent: known(fields.user_agent),
        complete: fields.complete,
        trace_id: known(fields.trace_id),
    })
}

/// Parses `name=value` pairs. `ended` is the time of a line of the log, which is written when the response has ended.
fn parse_logfmt(line: &str, ended: Option<i64>) -> Result<AccessRecord<'_>, ParseError> {
    let mut record = AccessRecord::default();
    let (mut received, mut has_status) = (None, false);
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (name, value, after) = pair(rest)?;
        rest = after.trim_start();
        let is_known = value != UNKNOWN;
        match name {
            "time" => received = Some(timestamp(&value).ok_or(ParseError::Value)?),
            "client" => record.client = known(value),
            "method" => record.method = known(value),
            "host" => record.host = known(value),
            "path" => record.path = known(value),
            "protocol" => record.protocol = known(value),
            "status" => {
                record.status = value.parse().ok().filter(is_status).ok_or(ParseError::Value)?;
                has_status = true;
            }
            "bytes" => record.bytes = value.parse().map_err(|_| ParseError::Value)?,
            "duration_ms" if is_known => record.duration_us = Some(whole_us_of(&value)?),
            "first_byte_ms" if is_known => record.first_byte_us = Some(whole_us_of(&value)?),
            "tier" => record.tier = ContentTier::named(&value),
            "root" => record.root = known(value),
            "referer" => record.referer = known(value),
            "user_agent" => record.user_agent = known(value),
            "trace_id" => record.trace_id = known(value),
            "complete" if is_known => record.complete = Some(value.parse().map_err(|_| ParseError::Value)?),
            _ => {}
        }
    }
    record.received_us = match (ended, received) {
        (Some(ended), _) => before(ended, record.duration_us),
        (None, received) => received.ok_or(ParseError::Format)?,
    };
    if has_status { Ok(record) } else { Err(ParseError::Format) }
}

/// The first pair of a line, and the rest.
fn pair(line: &str) -> Result<(&str, Cow<'_, str>, &str), ParseError> {
    let (name, rest) = line.split_once('=').ok_or(ParseError::Format)?;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
        return Err(ParseError::Format);
    }
    match rest.strip_prefix('"') {
        Some(quoted) => quoted_text(quoted).map(|(value, rest)| (name, value, rest)),
        None => {
            let end = rest.find(' ').unwrap_or(rest.len());
            Ok((name, Cow::Borrowed(&rest[..end]), &rest[end..]))
        }
    }
}

/// The text up to the closing quote, and the rest. Escaped quotes and backslashes are unescaped; other escapes, such
/// as `\x0A`, stay.
fn quoted_text(quoted: &str) -> Result<(Cow<'_, str>, &str), ParseError> {
    let (mut text, mut from, bytes) = (String::new(), 0, quoted.as_bytes());
    let mut at = 0;
    loop {
        match bytes.get(at) {
            None => return Err(ParseError::Format),
            Some(b'"') => break,
            Some(b'\\') if matches!(bytes.get(at + 1), Some(b'"' | b'\\')) => {
                text.push_str(&quoted[from..at]);
                from = at + 1;
                at += 2;
            }
            Some(_) => at += 1,
        }
    }
    let whole = match text.is_empty() && from == 0 {
        true => Cow::Borrowed(&quoted[..at]),
        false => Cow::Owned(text + &quoted[from..at]),
    };
    Ok((whole, &quoted[at + 1..]))
}

/// `CLIENT IDENT USER [26/Nov/2026:08:00:00 +0000] "METHOD PATH PROTOCOL" STATUS BYTES "REFERER" "USER AGENT"`. The
/// common log format lacks the last two.
fn parse_combined(line: &str) -> Result<AccessRecord<'_>, ParseError> {
    let (head, rest) = line.split_once(" [").ok_or(ParseError::Format)?;
    let client = head.split(' ').next().unwrap_or_default();
    let (time, rest) = rest.split_once("] \"").ok_or(ParseError::Format)?;
    let received_us = combined_time(time).ok_or(ParseError::Value)?;
    let (request, rest) = quoted_text(rest)?;
    let mut numbers = rest.trim_start().splitn(3, ' ');
    let status = numbers.next().and_then(|text| text.parse().ok()).filter(is_status).ok_or(ParseError::Value)?;
    let bytes = match numbers.next().unwrap_or_default() {
        UNKNOWN => 0,
        text => text.parse().map_err(|_| ParseError::Value)?,
    };
    let mut rest = numbers.next().unwrap_or_default();
    let mut next = || -> Result<Cow<'_, str>, ParseError> {
        let Some(quoted) = rest.trim_start().strip_prefix('"') else { return Ok(Cow::Borrowed("")) };
        let (text, after) = quoted_text(quoted)?;
        rest = after;
        Ok(known(text))
    };
    let (referer, user_agent) = (next()?, next()?);
    let word = |text: Option<&str>| known(Cow::Owned(text.unwrap_or_default().to_owned()));
    let mut words = request.splitn(3, ' ');
    let (method, target, protocol) = (words.next(), words.next(), words.next());
    // Servers that log the query: it is no part of the path.
    let path = target.and_then(|target| target.split('?').next());
    Ok(AccessRecord {
        received_us,
        client: known(Cow::Borrowed(client)),
        method: word(method),
        path: word(path),
        protocol: word(protocol),
        status,
        bytes,
        root: word(path.map(root_of)),
        // Servers that log the whole header.
        referer: Cow::Owned(super::record::origin(&referer)),
        user_agent,
        ..AccessRecord::default()
    })
}

/// "26/Nov/2026:08:00:00 +0000" in microseconds since the Unix epoch.
fn combined_time(text: &str) -> Option<i64> {
    let (at, zone) = text.split_once(' ')?;
    let mut parts = at.splitn(3, '/');
    let (day, month, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let mut numbers = rest.split(':').map(|part| part.parse::<u16>().ok());
    let mut next = || numbers.next().flatten();
    let (year, hour, minute, second) = (next()?, next()?, next()?, next()?);
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let number = months.iter().zip(1_u8..).find(|(name, _)| **name == month)?.1;
    let date = Date::from_calendar_date(i32::from(year), Month::try_from(number).ok()?, day.parse().ok()?).ok()?;
    let small = |number: u16| u8::try_from(number).ok();
    // A leap second is the second before it.
    let time = Time::from_hms(small(hour)?, small(minute)?, small(second)?.min(59)).ok()?;
    let (sign, digits) = (if zone.starts_with('-') { -1 } else { 1 }, zone.get(1..).filter(|text| text.len() == 4)?);
    let (hours, minutes): (i8, i8) = (digits.get(..2)?.parse().ok()?, digits.get(2..)?.parse().ok()?);
    let offset = UtcOffset::from_hms(sign * hours, sign * minutes, 0).ok()?;
    Some(PrimitiveDateTime::new(date, time).assume_offset(offset).unix_timestamp().saturating_mul(1_000_000))
}

/// A time as RFC 3339 has it, in microseconds since the Unix epoch.
fn timestamp(text: &str) -> Option<i64> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    if at.unix_timestamp() < 0 { None } else { Some(microseconds(at.into())) }
}

fn before(ended_us: i64, duration_us: Option<u64>) -> i64 {
    ended_us.saturating_sub(i64::try_from(duration_us.unwrap_or_default()).unwrap_or_default())
}

fn whole_us_of(text: &str) -> Result<u64, ParseError> {
    whole_us(text.parse().map_err(|_| ParseError::Value)?)
}

fn whole_us(milliseconds: f64) -> Result<u64, ParseError> {
    match milliseconds {
        0.0..MILLISECONDS_MAX => Ok((milliseconds * 1e3).round() as u64),
        _ => Err(ParseError::Value),
    }
}

fn is_status(status: &u16) -> bool {
    (100..1000).contains(status)
}

/// A text in printable characters; empty for an unknown value.
fn known(text: Cow<'_, str>) -> Cow<'_, str> {
    if *text == *UNKNOWN {
        return Cow::Borrowed("");
    }
    match text {
        Cow::Borrowed(text) => clean(text),
        Cow::Owned(text) => match clean(&text) {
            Cow::Borrowed(_) => Cow::Owned(text),
            Cow::Owned(cleaned) => Cow::Owned(cleaned),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{LineFormat, printable};
    use super::*;
    use proptest::prelude::*;

    fn full() -> AccessRecord<'static> {
        AccessRecord {
            received_us: 1_795_680_000_123_000,
            client: "2001:db8::1".into(),
            method: "GET".into(),
            host: "gateway.example.org".into(),
            path: "/ipfs/bafkqaaa/a%20b".into(),
            protocol: "HTTP/1.1".into(),
            status: 206,
            bytes: 1 << 40,
            duration_us: Some(1_234_567),
            first_byte_us: Some(1),
            tier: Some(ContentTier::Network),
            root: "/ipfs/bafkqaaa".into(),
            referer: "https://example.org".into(),
            user_agent: r"a \x22b\x22 \x5C c".into(),
            complete: Some(false),
            trace_id: "4bf92f3577b34da6a3ce929d0e0e4736".into(),
        }
    }

    #[test]
    fn lines_of_the_log_are_read() {
        let expected = AccessRecord {
            received_us: 1_795_680_000_000_000,
            client: "127.0.0.1".into(),
            method: "GET".into(),
            host: "localhost:8080".into(),
            path: "/ipfs/bafkqaaa".into(),
            status: 200,
            bytes: 11,
            duration_us: Some(123_456),
            first_byte_us: Some(500),
            tier: Some(ContentTier::Ram),
            root: "/ipfs/bafkqaaa".into(),
            user_agent: r"a\x09b".into(),
            complete: Some(true),
            trace_id: "".into(),
            ..AccessRecord::default()
        };
        let fields = "client=127.0.0.1 method=\"GET\" host=\"localhost:8080\" path=\"/ipfs/bafkqaaa\" status=200 \
                      duration_ms=123.456 first_byte_ms=0.5 bytes=11 tier=\"ram\" root=\"/ipfs/bafkqaaa\" \
                      user_agent=\"a\\\\x09b\" complete=true";
        let json = "{\"timestamp\":\"2026-11-26T08:00:00.123456Z\",\"level\":\"INFO\",\"fields\":{\"client\":\
                    \"127.0.0.1\",\"method\":\"GET\",\"host\":\"localhost:8080\",\"path\":\"/ipfs/bafkqaaa\",\
                    \"status\":200,\"duration_ms\":123.456,\"first_byte_ms\":0.5,\"bytes\":11,\"tier\":\"ram\",\
                    \"root\":\"/ipfs/bafkqaaa\",\"user_agent\":\"a\\\\x09b\",\"complete\":true},\"target\":\"access\"}";
        let text = format!("2026-11-26T08:00:00.123456Z  INFO access: {fields}");
        let of_journald = "Nov 26 08:00:00 host causeway[12]: ";
        for line in [text.clone(), json.to_owned(), format!("{of_journald}{text}"), format!("{of_journald}{json}")] {
            assert_eq!(parse(&line), Ok(expected.clone()), "{line}");
        }
    }

    #[test]
    fn lines_of_other_servers_are_read() {
        let combined = AccessRecord {
            received_us: 1_795_680_000_000_000,
            client: "203.0.113.7".into(),
            method: "GET".into(),
            path: "/ipfs/bafkqaaa/a".into(),
            protocol: "HTTP/2.0".into(),
            status: 200,
            bytes: 612,
            root: "/ipfs/bafkqaaa".into(),
            referer: "https://example.org".into(),
            user_agent: r"Mozilla/5.0 \x22x\x22 \xC3\xA9".into(),
            ..AccessRecord::default()
        };
        let line = "203.0.113.7 - user [26/Nov/2026:09:00:00 +0100] \"GET /ipfs/bafkqaaa/a?q=1 HTTP/2.0\" 200 612 \
                    \"https://example.org/page?private\" \"Mozilla/5.0 \\\"x\\\" é\" more";
        assert_eq!(parse(line), Ok(combined.clone()));
        let common = "203.0.113.7 - - [26/Nov/2026:08:00:00 +0000] \"-\" 408 -";
        let expected = AccessRecord {
            received_us: 1_795_680_000_000_000,
            client: "203.0.113.7".into(),
            status: 408,
            ..AccessRecord::default()
        };
        assert_eq!(parse(common), Ok(expected));
    }

    #[test]
    fn other_lines_are_told_from_broken_ones() {
        let spoof = "2026-11-26T08:00:00Z DEBUG gateway: path=\"/ INFO access: client=192.0.2.1 status=200 bytes=9\"";
        let table = [
            ("", ParseError::Format),
            ("hello", ParseError::Format),
            ("{", ParseError::Format),
            ("{}", ParseError::Format),
            ("[1]", ParseError::Format),
            ("{\"time\":\"2026-11-26T08:00:00Z\"}", ParseError::Value),
            ("{\"time\":\"yesterday\",\"status\":200}", ParseError::Value),
            ("{\"time\":\"1969-11-26T08:00:00Z\",\"status\":200}", ParseError::Value),
            ("{\"time\":\"2026-11-26T08:00:00Z\",\"status\":99}", ParseError::Value),
            ("{\"time\":\"2026-11-26T08:00:00Z\",\"status\":200,\"duration_ms\":-1}", ParseError::Value),
            ("{\"time\":\"2026-11-26T08:00:00Z\",\"status\":200,\"bytes\":-1}", ParseError::Format),
            ("{\"timestamp\":\"2026-11-26T08:00:00Z\",\"fields\":{},\"target\":\"gateway\"}", ParseError::OtherLine),
            ("2026-11-26T08:00:00.1Z  WARN gateway: a word", ParseError::OtherLine),
            (spoof, ParseError::OtherLine),
            ("2026-11-26T08:00:00.1Z  INFO access: client=", ParseError::Format),
            ("time=2026-11-26T08:00:00Z client=a", ParseError::Format),
            ("time=2026-11-26T08:00:00Z status=200 path=\"/open", ParseError::Format),
            ("time=2026-11-26T08:00:00Z status=200 duration_ms=NaN", ParseError::Value),
            ("a - - [26/Nov/2026:08:00:00 +0000] \"GET / HTTP/1.1\" 2000 1", ParseError::Value),
            ("a - - [32/Nov/2026:08:00:00 +0000] \"GET / HTTP/1.1\" 200 1", ParseError::Value),
            ("a - - [26/Nov/2026:08:00:00 +00é] \"GET / HTTP/1.1\" 200 1", ParseError::Value),
            ("a - - [26/Nov/2026:08:00:00 +0000] \"GET /", ParseError::Format),
        ];
        for (line, expected) in table {
            assert_eq!(parse(line), Err(expected), "{line}");
        }
    }

    #[test]
    fn records_without_anything_optional_are_read() {
        let least = AccessRecord { status: 499, ..AccessRecord::default() };
        for format in [LineFormat::Text, LineFormat::Json, LineFormat::Combined] {
            let mut line = String::new();
            least.append_to(&mut line, format);
            assert_eq!(parse(&line), Ok(least.clone()), "{line}");
        }
    }

    /// What the combined format has.
    fn combined(record: &AccessRecord<'_>) -> AccessRecord<'static> {
        let owned = |text: &str| Cow::<'static, str>::Owned(text.to_owned());
        AccessRecord {
            received_us: record.received_us / 1_000_000 * 1_000_000,
            client: owned(&record.client),
            method: owned(&record.method),
            path: owned(&record.path),
            protocol: owned(&record.protocol),
            status: record.status,
            bytes: record.bytes,
            root: owned(root_of(&record.path)),
            referer: owned(&record.referer),
            user_agent: owned(&record.user_agent),
            ..AccessRecord::default()
        }
    }

    fn check_round_trip(record: &AccessRecord<'_>) {
        for format in [LineFormat::Text, LineFormat::Json, LineFormat::Combined] {
            let mut line = String::new();
            record.append_to(&mut line, format);
            assert!(line.ends_with('\n') && line.trim_end_matches('\n').bytes().all(|b| (b' '..=b'~').contains(&b)));
            let expected = if format == LineFormat::Combined { combined(record) } else { record.clone() };
            assert_eq!(parse(&line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn each_format_is_read_as_it_was_written() {
        check_round_trip(&full());
    }

    proptest! {
        /// Texts are what a client may send, as the gateway records them.
        #[test]
        fn whatever_a_client_sends_is_written_on_one_line_and_read_again(
            sent in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 3),
            numbers in (0_i64..253_402_300_799_999, 100_u16..1000, any::<u64>()),
            times in (0_u64..1_000_000_000_000, 0_u64..1_000_000_000_000),
        ) {
            let text = |index: usize| Cow::<'static, str>::from(printable(&sent[index], 200));
            let word = |index: usize| Cow::<'static, str>::from(text(index).replace(' ', ""));
            let unknown = |text: &Cow<'_, str>| text == UNKNOWN || text.trim() != text;
            prop_assume!(!unknown(&text(0)) && !unknown(&text(1)) && !unknown(&word(2)));
            let record = AccessRecord {
                received_us: numbers.0 * 1_000,
                status: numbers.1,
                bytes: numbers.2,
                duration_us: Some(times.0),
                first_byte_us: Some(times.1),
                host: text(0),
                user_agent: text(1),
                path: format!("/{}", word(2).replace('?', "")).into(),
                root: root_of(&format!("/{}", word(2).replace('?', ""))).to_owned().into(),
                ..full()
            };
            check_round_trip(&record);
        }

        /// Texts that were not made printable before.
        #[test]
        fn no_text_breaks_a_line(texts in proptest::collection::vec(".*", 8), raw in any::<String>()) {
            let text = |index: usize| Cow::<'static, str>::from(texts[index].clone() + &raw);
            let record = AccessRecord {
                client: text(0),
                method: text(1),
                host: text(2),
                path: text(3),
                protocol: text(4),
                root: text(5),
                referer: text(6),
                user_agent: (texts[7].clone() + "\\").into(),
                status: 200,
                ..AccessRecord::default()
            };
            for format in [LineFormat::Text, LineFormat::Json, LineFormat::Combined] {
                let mut line = String::new();
                record.append_to(&mut line, format);
                prop_assert!(line.trim_end_matches('\n').bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
                prop_assert!(line.matches('\n').count() == 1);
                prop_assert!(parse(&line).is_ok(), "{line}");
            }
        }

        #[test]
        fn any_line_is_read_or_refused(
            line in any::<String>(), bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            _ = parse(&line);
            _ = parse(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn a_line_that_was_cut_or_changed_is_no_panic(cut in 0_usize..400, at in 0_usize..400, byte in any::<u8>()) {
            for format in [LineFormat::Text, LineFormat::Json, LineFormat::Combined] {
                let mut line = String::new();
                full().append_to(&mut line, format);
                let mut bytes = line.into_bytes();
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
                bytes.truncate(cut);
                _ = parse(&String::from_utf8_lossy(&bytes));
            }
        }
    }
}
