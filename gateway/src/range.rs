//! Single byte ranges (RFC 9110, section 14).
//!
//! Departure: several ranges in one request are answered with the whole representation, which section 14.2 permits.

use http::HeaderValue;
use std::ops::Range;

/// Which bytes of a representation to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// All of them: no range was asked for, or none that has to be honoured.
    Whole,
    /// These: never empty, and inside the representation.
    Part(Range<u64>),
    /// The range that was asked for has no byte in common with the representation (416).
    Unsatisfiable,
}

/// What a `Range` header selects from a representation of `size` bytes. A header that is not valid is ignored, as section
/// 14.2 demands.
pub fn select(header: Option<&HeaderValue>, size: u64) -> Selection {
    let Some(header) = header else { return Selection::Whole };
    header.to_str().ok().and_then(|text| parse(text, size)).unwrap_or(Selection::Whole)
}

/// `None` for anything but one valid byte range.
fn parse(text: &str, size: u64) -> Option<Selection> {
    let (unit, set) = text.trim().split_once('=')?;
    if !unit.eq_ignore_ascii_case("bytes") || set.contains(',') {
        return None;
    }
    let (first, last) = set.trim().split_once('-')?;
    let range = match (first.trim(), last.trim()) {
        // Section 14.1.2 calls any suffix satisfiable; of nothing it is all there is.
        ("", suffix) if size == 0 && number(suffix)? > 0 => return Some(Selection::Whole),
        ("", suffix) => size.saturating_sub(number(suffix)?)..size,
        (first, "") => number(first)?..size,
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return None;
            }
            first..last.saturating_add(1).min(size)
        }
    };
    Some(if range.start < range.end { Selection::Part(range) } else { Selection::Unsatisfiable })
}

/// Digits alone: no sign and no space, unlike `parse`. A number over 64 bits is beyond every representation.
fn number(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str, size: u64) -> Selection {
        select(Some(&HeaderValue::from_str(text).expect("a header")), size)
    }

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        use Selection::{Part, Unsatisfiable, Whole};
        let table = [
            ("bytes=0-0", 10, Part(0..1)),
            ("bytes=0-9", 10, Part(0..10)),
            ("bytes=0-99", 10, Part(0..10)),
            ("bytes=3-5", 10, Part(3..6)),
            ("bytes=3-", 10, Part(3..10)),
            ("bytes=-3", 10, Part(7..10)),
            ("bytes=-30", 10, Part(0..10)),
            ("Bytes = 1-2", 10, Whole),
            ("BYTES=1-2", 10, Part(1..3)),
            ("bytes= 1 - 2 ", 10, Part(1..3)),
            ("bytes=0-18446744073709551615", 10, Part(0..10)),
            ("bytes=0-99999999999999999999999", 10, Part(0..10)),
            ("bytes=10-", 10, Unsatisfiable),
            ("bytes=99999999999999999999999-", 10, Unsatisfiable),
            ("bytes=10-20", 10, Unsatisfiable),
            ("bytes=-0", 10, Unsatisfiable),
            ("bytes=0-", 0, Unsatisfiable),
            ("bytes=-0", 0, Unsatisfiable),
            ("bytes=-1", 0, Whole),
            ("bytes=5-3", 10, Whole),
            ("bytes=0-1,3-4", 10, Whole),
            ("bytes=", 10, Whole),
            ("bytes=-", 10, Whole),
            ("bytes=+1-2", 10, Whole),
            ("bytes=a-b", 10, Whole),
            ("items=0-1", 10, Whole),
            ("0-1", 10, Whole),
        ];
        for (text, size, expected) in table {
            assert_eq!(of(text, size), expected, "{text} of {size}");
        }
        assert_eq!(select(None, 10), Whole);
    }

    proptest! {
        #[test]
        fn a_selection_is_what_slicing_gives(first in 0_u64..300, length in 0_u64..300, size in 0_u64..200) {
            let last = first + length;
            let expected: Vec<u64> = (0..size).filter(|at| (first..=last).contains(at)).collect();
            match of(&format!("bytes={first}-{last}"), size) {
                Selection::Part(range) => prop_assert_eq!(range.collect::<Vec<_>>(), expected),
                Selection::Unsatisfiable => prop_assert!(expected.is_empty()),
                Selection::Whole => prop_assert!(false),
            }
        }

        #[test]
        fn a_suffix_is_the_end(suffix in 0_u64..300, size in 0_u64..200) {
            let expected: Vec<u64> = (0..size).filter(|at| at + suffix >= size).collect();
            match of(&format!("bytes=-{suffix}"), size) {
                Selection::Part(range) => prop_assert_eq!(range.collect::<Vec<_>>(), expected),
                Selection::Unsatisfiable => prop_assert!(suffix == 0),
                Selection::Whole => prop_assert!(size == 0),
            }
        }

        #[test]
        fn any_text_is_inside_the_representation(text in "bytes=[-0-9, ]{0,30}", size in any::<u64>()) {
            if let Selection::Part(range) = of(&text, size) {
                prop_assert!(range.start < range.end && range.end <= size);
            }
        }
    }
}
