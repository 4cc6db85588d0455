//! Durations in Go's format (<https://pkg.go.dev/time#ParseDuration>): `1h30m`, `1.5s`, `250ms`.
//!
//! Departure: negative durations are rejected, since no option can be negative.

use std::time::Duration;

/// The units, in nanoseconds.
const UNITS: [(&str, f64); 8] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];

/// The maximum of Go's type, in nanoseconds.
const NANOS_MAX: f64 = i64::MAX as f64;

/// Parses a duration; `None` if it is invalid, or longer than 292 years.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let (unit, scale) =
            UNITS.into_iter().filter(|(unit, _)| tail.starts_with(unit)).max_by_key(|(u, _)| u.len())?;
        // Rust rejects "" and ".", which are not numbers, and accepts all other strings of digits and a point.
        nanos += number.parse::<f64>().ok()? * scale;
        rest = &tail[unit.len()..];
    }
    (nanos <= NANOS_MAX).then(|| Duration::from_nanos(nanos as u64))
}

/// Formats a duration, as short as possible.
pub fn show(duration: Duration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    if seconds == 0 {
        return match nanos {
            0 => "0s".to_owned(),
            1_000_000.. => format!("{}ms", f64::from(nanos) / 1e6),
            1_000.. => format!("{}µs", f64::from(nanos) / 1e3),
            _ => format!("{nanos}ns"),
        };
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let rest = (seconds % 60) as f64 + f64::from(nanos) / 1e9;
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let table = [
            ("0", ms(0)),
            ("0s", ms(0)),
            ("5s", ms(5_000)),
            ("+1.5s", ms(1_500)),
            (".5s", ms(500)),
            ("2.s", ms(2_000)),
            ("1h30m", ms(5_400_000)),
            ("48h0m0s", ms(48 * 3_600_000)),
            ("250ms", ms(250)),
            ("1m1ms", ms(60_001)),
            ("2000us", ms(2)),
            ("2000µs", ms(2)),
            ("3000000ns", ms(3)),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text), expected, "{text}");
        }
        for text in ["", "+", "5", "-5s", "s", ".s", "1.2.3s", "5 s", "1d", "1x", "99999999999h", "5S"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_short_to_read() {
        let table = [(0, "0s"), (999, "999ns"), (1_500, "1.5µs"), (250_000_000, "250ms"), (90_000_000_000, "1m30s")];
        for (nanos, expected) in table {
            assert_eq!(show(Duration::from_nanos(nanos)), expected);
        }
        assert_eq!(show(Duration::from_secs(48 * 3600)), "48h0m0s");
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[-+0-9.hmsnuµ ]{0,20}") {
            _ = parse(&text);
        }

        #[test]
        fn whole_milliseconds_come_back(ms in 0_u64..10_000_000_000) {
            let duration = Duration::from_millis(ms);
            let read = parse(&show(duration)).expect("reads");
            let differs = read.abs_diff(duration);
            prop_assert!(differs < Duration::from_micros(1), "{}", show(duration));
        }
    }
}
