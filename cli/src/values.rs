//! Parsing of sizes and durations of the command line, and printing of dates.

use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Parses "4MiB", "500kB" or a number of bytes, above zero.
///
/// # Errors
/// A message for the user that says which values are valid.
pub fn bytes(text: &str) -> Result<u64, String> {
    match config::size::bytes(text)? {
        0 => Err("must be above zero".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses "90s", "5m", "48h" or "7d".
///
/// # Errors
/// A message for the user that says which values are valid.
pub fn duration(text: &str) -> Result<Duration, String> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*seconds)
    });
    parsed
        .map(Duration::from_secs)
        .ok_or_else(|| "must be a whole number followed by s, m, h or d, such as 48h".to_owned())
}

/// Parses "KEY=VALUE".
///
/// # Errors
/// A message for the user that says which values are valid.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| "must be KEY=VALUE".to_owned())
}

/// A time in seconds since the Unix epoch as a date and time in UTC (RFC 3339); "never" beyond the year 9999.
pub fn moment(seconds: u64) -> String {
    let moment = i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    moment.and_then(|moment| moment.format(&Rfc3339).ok()).unwrap_or_else(|| "never".to_owned())
}

/// A share as a percentage; "-" of nothing.
pub fn share(part: u64, all: u64) -> String {
    if all == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / all as f64) }
}

/// A latency in seconds with a unit and three digits.
pub fn latency(seconds: f64) -> String {
    let (value, unit) = match seconds {
        _ if seconds >= 1.0 => (seconds, "s"),
        _ if seconds >= 1e-3 => (seconds * 1e3, "ms"),
        _ => (seconds * 1e6, "µs"),
    };
    let digits = if value >= 100.0 || value == 0.0 { 0 } else { 2 - usize::from(value >= 10.0) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_above_zero() {
        let table = [("1", Some(1)), ("4 MiB", Some(4 << 20)), ("0", None), ("0MiB", None), ("fast", None)];
        for (text, expected) in table {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn durations_are_numbers_with_a_unit() {
        let table = [
            ("90s", Some(90)),
            ("5m", Some(300)),
            ("48h", Some(172_800)),
            ("7d", Some(604_800)),
            ("", None),
            ("48", None),
            ("h", None),
            ("-1h", None),
            ("99999999999999999999d", None),
            ("18446744073709551615d", None),
        ];
        for (text, expected) in table {
            assert_eq!(duration(text).ok(), expected.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn pairs_have_a_key() {
        let pair_of = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(pair("a=b=c"), pair_of("a", "b=c"));
        assert_eq!(pair("a="), pair_of("a", ""));
        assert!(pair("a").is_err() && pair("=b").is_err());
    }

    #[test]
    fn times_are_printed_as_dates() {
        assert_eq!(moment(0), "1970-01-01T00:00:00Z");
        assert_eq!(moment(1_795_305_600), "2026-11-22T00:00:00Z");
        assert_eq!(moment(u64::MAX), "never");
    }

    #[test]
    fn shares_and_latencies_are_short() {
        assert_eq!([share(1, 3), share(0, 5), share(5, 5), share(0, 0)], ["33.3 %", "0.0 %", "100.0 %", "-"]);
        let table = [
            (0.0, "0 µs"),
            (0.000_025, "25.0 µs"),
            (0.000_123_4, "123 µs"),
            (0.008, "8.00 ms"),
            (0.024, "24.0 ms"),
            (4.04, "4.04 s"),
            (120.0, "120 s"),
        ];
        for (seconds, expected) in table {
            assert_eq!(latency(seconds), expected);
        }
    }
}
