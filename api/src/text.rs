//! Numbers as text and as JSON.

use std::time::Duration;

/// A count with its noun.
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A size in binary units.
pub fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, bits)| bytes >> bits > 0) {
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << bits) as f64),
        None => format!("{bytes} B"),
    }
}

/// A duration in JSON: seconds, rounded to microseconds.
pub fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        let table = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_500_000, "1.4 MiB"), (3 << 40, "3.0 TiB")];
        for (bytes, expected) in table {
            assert_eq!(size(bytes), expected);
        }
    }
}
