//! [`EntityBytes`]: the `entity-bytes` parameter of a request.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// A range of a file's bytes, both ends inclusive, as in the `entity-bytes` parameter
/// (<https://specs.ipfs.tech/http-gateways/trustless-gateway/#entity-bytes-request-query-parameter>): `from:to`, where
/// a negative number counts from the end of the file (-1 is its last byte) and `*` as `to` is the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntityBytes {
    from: i64,
    to: Option<i64>,
}

/// Why a text is not a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntityBytesError {
    /// The text has another form.
    #[error("a range of bytes must be from:to, two whole numbers, of which the second may be *")]
    Malformed,
    /// The range ends before it begins, for every size of the file.
    #[error("a range of bytes must not begin at {from} and end at {to}")]
    Reversed {
        /// The first byte.
        from: i64,
        /// The last byte.
        to: i64,
    },
}

impl EntityBytes {
    /// The bytes from `from` to `to`, both inclusive.
    ///
    /// # Errors
    /// [`EntityBytesError::Reversed`] when both count from the same end and `to` is before `from`. Other ranges are
    /// checked against the size of the file.
    pub fn new(from: i64, to: Option<i64>) -> Result<Self, EntityBytesError> {
        match to {
            Some(to) if to < from && (from < 0) == (to < 0) => Err(EntityBytesError::Reversed { from, to }),
            _ => Ok(Self { from, to }),
        }
    }

    /// The two numbers of the range: the first byte and the last, which is the end of the file if there is none.
    pub fn bounds(&self) -> (i64, Option<i64>) {
        (self.from, self.to)
    }

    /// The range of offsets in a file of `size` bytes, with an exclusive end; `None` if it is empty. The range is
    /// clipped to the file.
    pub fn resolve(&self, size: u64) -> Option<Range<u64>> {
        let offset = |number: i64| i128::from(number) + if number < 0 { i128::from(size) } else { 0 };
        let start = offset(self.from).max(0);
        let end = self.to.map_or(i128::from(size), |to| (offset(to) + 1).min(i128::from(size)));
        // In a range that is not empty, both are between zero and a 64-bit size.
        (start < end).then_some(start as u64..end as u64)
    }
}

impl FromStr for EntityBytes {
    type Err = EntityBytesError;

    fn from_str(text: &str) -> Result<Self, EntityBytesError> {
        let (from, to) = text.split_once(':').ok_or(EntityBytesError::Malformed)?;
        let to = if to == "*" { None } else { Some(parse_number(to)?) };
        Self::new(parse_number(from)?, to)
    }
}

impl fmt::Display for EntityBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to {
            Some(to) => write!(f, "{}:{to}", self.from),
            None => write!(f, "{}:*", self.from),
        }
    }
}

/// Parses digits with an optional minus. The standard parser accepts a plus as well, which in a query is a space.
fn parse_number(text: &str) -> Result<i64, EntityBytesError> {
    match text.parse() {
        Ok(number) if !text.starts_with('+') => Ok(number),
        _ => Err(EntityBytesError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_parsed_strictly() {
        let good = [
            ("0:*", 0, None),
            ("-1024:*", -1024, None),
            ("5:10", 5, Some(10)),
            ("7:7", 7, Some(7)),
            ("5:-1", 5, Some(-1)),
            ("-5:3", -5, Some(3)),
            ("-9999:-3", -9999, Some(-3)),
            ("9223372036854775807:*", i64::MAX, None),
            ("-9223372036854775808:-1", i64::MIN, Some(-1)),
        ];
        for (text, from, to) in good {
            let parsed: EntityBytes = text.parse().expect(text);
            assert_eq!(parsed, EntityBytes { from, to }, "{text}");
            assert_eq!(parsed.to_string(), text);
        }
        let malformed = [
            "",
            ":",
            "0",
            "0:",
            ":0",
            "*:*",
            "*:5",
            "0:*:",
            "0:1:2",
            " 0:1",
            "0: 1",
            "+1:2",
            "1:+2",
            "1:**",
            "a:b",
            "0x1:2",
            "1.5:2",
            "--1:2",
            "-:2",
            "9223372036854775808:*",
            "0:99999999999999999999",
            "１:２",
        ];
        for text in malformed {
            assert_eq!(text.parse::<EntityBytes>(), Err(EntityBytesError::Malformed), "{text}");
        }
        for (text, from, to) in [("5:4", 5, 4), ("-3:-4", -3, -4), ("1:0", 1, 0)] {
            assert_eq!(text.parse::<EntityBytes>(), Err(EntityBytesError::Reversed { from, to }));
        }
    }

    #[test]
    fn ranges_resolve_against_sizes_of_every_magnitude() {
        let table = [
            ("0:*", 0, None),
            ("0:*", 1026, Some(0..1026)),
            ("0:0", 1026, Some(0..1)),
            ("512:1023", 1026, Some(512..1024)),
            ("512:-256", 1026, Some(512..771)),
            ("-5:*", 1026, Some(1021..1026)),
            ("-9999:-3", 1026, Some(0..1024)),
            ("1026:*", 1026, None),
            ("0:-2000", 1026, None),
            ("-1:0", 1026, None),
            ("-1:0", 1, Some(0..1)),
            ("0:*", u64::MAX, Some(0..u64::MAX)),
            ("9223372036854775807:*", u64::MAX, Some(i64::MAX as u64..u64::MAX)),
            ("-9223372036854775808:*", u64::MAX, Some((1 << 63) - 1..u64::MAX)),
        ];
        for (text, size, expected) in table {
            assert_eq!(text.parse::<EntityBytes>().expect(text).resolve(size), expected, "{text} of {size}");
        }
    }

    proptest! {
        #[test]
        fn a_range_has_the_bytes_between_its_ends(
            from in -40_i64..40,
            to in prop::option::of(-40_i64..40),
            size in 0_i64..30,
        ) {
            let Ok(bytes) = EntityBytes::new(from, to) else {
                // For every size, no byte is between the ends.
                let to = to.expect("an open range is never reversed");
                prop_assert!(to < from && (from < 0) == (to < 0));
                return Ok(());
            };
            let absolute = |number: i64| if number < 0 { size + number } else { number };
            let last = to.map_or(size, absolute);
            let expected: Vec<u64> =
                (0..size).filter(|byte| *byte >= absolute(from) && *byte <= last).map(|byte| byte as u64).collect();
            let found = bytes.resolve(size as u64);
            prop_assert!(found.as_ref().is_none_or(|range| !range.is_empty()));
            prop_assert_eq!(found.map_or(Vec::new(), Iterator::collect), expected);
        }
    }
}
