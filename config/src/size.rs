//! Sizes: a whole number of bytes, with or without a unit.
//!
//! The units are those of IEC 80000-13 (KiB, MiB, GiB, TiB: powers of 1024) and of the SI (kB, MB, GB, TB: powers of
//! 1000), the same in the configuration file, in environment variables and on the command line.

use toml::Value;

const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// A number of bytes: "4096", "4096B", "500kB" or "1GiB", with or without a space before the unit.
///
/// # Errors
/// What a size is written like.
pub fn bytes(text: &str) -> Result<u64, String> {
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit.unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
    let digits = number.trim_end();
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten();
    number.and_then(|number| number.checked_mul(unit)).ok_or_else(|| {
        format!("\"{text}\" is not a size: write a whole number of bytes, or of kB, MB, GB, TB, KiB, MiB, GiB or TiB")
    })
}

/// Parses a size into a value of the configuration.
///
/// # Errors
/// What a size is written like, or that it exceeds what the configuration can hold.
pub(crate) fn toml_value(text: &str) -> Result<Value, String> {
    let bytes = bytes(text)?;
    i64::try_from(bytes).map(Value::Integer).map_err(|_| format!("\"{text}\" is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_perhaps_with_a_unit() {
        let table = [
            ("0", Some(0)),
            ("1", Some(1)),
            ("4096B", Some(4096)),
            ("500kB", Some(500_000)),
            ("4MiB", Some(4 << 20)),
            ("4 MiB", Some(4 << 20)),
            ("2GB", Some(2_000_000_000)),
            ("1GiB", Some(1 << 30)),
            ("3TiB", Some(3 << 40)),
            ("1TB", Some(1_000_000_000_000)),
            ("", None),
            ("B", None),
            ("MiB", None),
            ("fast", None),
            ("-1", None),
            ("+1", None),
            ("1.5MiB", None),
            ("1gib", None),
            ("99999999999GiB", None),
            ("18446744073709551616", None),
        ];
        for (text, expected) in table {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
        assert!(toml_value("18446744073709551615").is_err_and(|reason| reason.contains("too large")));
    }
}
