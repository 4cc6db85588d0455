//! Byte ranges (RFC 9110, section 14), single and multiple, and the framing of `multipart/byteranges`.
//!
//! Goals: no byte is sent twice for any request, so a response is never longer than the representation and its framing;
//! the selection and its exact length are known before the first byte is fetched.
//!
//! Section 14.2 leaves some choices. Ranges that overlap or touch are merged, at the position of the first of them in
//! the request; ranges with a gap are not merged, however small the gap. The header is ignored if it has more than
//! [`PARTS_MAX`] parts, or if the representation is empty.

use bytes::Bytes;
use content::scope::EntityBytes;
use http::HeaderValue;
use std::ops::Range;

/// The maximum number of parts of a response, which limits the framing.
pub const PARTS_MAX: usize = 64;

/// The selected bytes of a representation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// All: there is no range, or none that must be honoured.
    Whole,
    /// One range, not empty and within the representation.
    Part(Range<u64>),
    /// Several ranges in this order: at least two and at most [`PARTS_MAX`], each as in [`Selection::Part`], with a gap
    /// between any two of them.
    Parts(Vec<Range<u64>>),
    /// No range overlaps the representation (416).
    Unsatisfiable,
}

/// The selection of a `Range` header in a representation of `size` bytes. An invalid header is ignored, as section 14.2
/// requires.
pub fn select(header: Option<&HeaderValue>, size: u64) -> Selection {
    let Some(header) = header else { return Selection::Whole };
    header.to_str().ok().and_then(|text| parse(text, size)).unwrap_or(Selection::Whole)
}

/// The range of a `Range` header before the size of the representation is known, if there is exactly one.
pub fn single(header: Option<&HeaderValue>) -> Option<EntityBytes> {
    let (unit, member) = header?.to_str().ok()?.trim().split_once('=')?;
    if !unit.eq_ignore_ascii_case("bytes") || member.contains(',') {
        return None;
    }
    let bound = |text: &str| number(text.trim()).and_then(|offset| i64::try_from(offset).ok());
    match member.split_once('-')? {
        ("", suffix) => EntityBytes::new(-bound(suffix)?, None).ok(),
        (first, "") => EntityBytes::new(bound(first)?, None).ok(),
        (first, last) => EntityBytes::new(bound(first)?, Some(bound(last)?)).ok(),
    }
}

/// `None` unless the text is a valid set of byte ranges.
fn parse(text: &str, size: u64) -> Option<Selection> {
    let (unit, set) = text.trim().split_once('=')?;
    // List elements may be empty (section 5.6.1), but not all of them.
    let mut members = set.split(',').map(str::trim).filter(|member| !member.is_empty()).peekable();
    if !unit.eq_ignore_ascii_case("bytes") || members.peek().is_none() {
        return None;
    }
    let mut asked = Vec::new();
    for member in members {
        match parse_member(member, size)? {
            Member::Suffix(length) => asked.push(size.saturating_sub(length)..size),
            Member::Range(range) => asked.push(range),
        }
    }
    // A range of an empty representation is ignored and not an error.
    if size == 0 {
        return None;
    }
    asked.retain(|range| range.start < range.end);
    let mut parts = coalesce(asked);
    Some(match parts.len() {
        0 => Selection::Unsatisfiable,
        1 => Selection::Part(parts.remove(0)),
        2..=PARTS_MAX => Selection::Parts(parts),
        _ => Selection::Whole,
    })
}

/// A range as requested.
enum Member {
    /// A number of bytes from the end.
    Suffix(u64),
    /// A range, cut off at the end of the representation; empty if it begins after the end.
    Range(Range<u64>),
}

fn parse_member(member: &str, size: u64) -> Option<Member> {
    let (first, last) = member.split_once('-')?;
    Some(match (first.trim(), last.trim()) {
        ("", suffix) => Member::Suffix(number(suffix)?),
        (first, "") => Member::Range(number(first)?..size),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return None;
            }
            Member::Range(first..last.saturating_add(1).min(size))
        }
    })
}

/// A number of digits, without sign or space, unlike `parse`. More than 64 bits are beyond the end of every
/// representation.
fn number(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().unwrap_or(u64::MAX))
}

/// Merges ranges, and keeps the order in which the first of each was requested.
fn coalesce(asked: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut by_start: Vec<(usize, Range<u64>)> = asked.into_iter().enumerate().collect();
    by_start.sort_unstable_by_key(|(_, range)| range.start);
    let mut joined: Vec<(usize, Range<u64>)> = Vec::new();
    for (order, range) in by_start {
        match joined.last_mut() {
            Some((first, last)) if range.start <= last.end => {
                last.end = last.end.max(range.end);
                *first = order.min(*first);
            }
            _ => joined.push((order, range)),
        }
    }
    joined.sort_unstable_by_key(|(order, _)| *order);
    joined.into_iter().map(|(_, range)| range).collect()
}

/// A `multipart/byteranges` body (section 14.6): the head of each frame with its bytes, and [`Multipart::end`] after
/// the last of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multipart {
    /// The `Content-Type` of the response. The parts have `Content-Range`, the response has none.
    pub content_type: HeaderValue,
    /// The exact length of the body.
    pub content_length: u64,
    /// The parts, in the given order.
    pub frames: Vec<Frame>,
    /// The closing delimiter.
    pub end: Bytes,
}

/// A part of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The delimiter and the part's header.
    pub head: Bytes,
    /// The part's bytes in the representation.
    pub range: Range<u64>,
}

impl Multipart {
    /// Frames the parts, none of them empty, of a representation of `size` bytes and of type `content_type`.
    ///
    /// The boundary must be random for each response, so that content cannot contain it and forge the end of a part.
    /// All boundaries have the same length, so the length of the body does not depend on it, and that of HEAD equals
    /// that of GET.
    pub fn new(boundary: u128, content_type: &HeaderValue, size: u64, parts: Vec<Range<u64>>) -> Self {
        let mut frames: Vec<Frame> = Vec::with_capacity(parts.len());
        for range in parts {
            let separator = if frames.is_empty() { "" } else { "\r\n" };
            frames.push(Frame::new(separator, boundary, content_type, size, range));
        }
        let end = Bytes::from(format!("\r\n--{boundary:032x}--\r\n"));
        // Lengths beyond 64 bits are never sent.
        let content_length =
            frames.iter().map(Frame::length).fold(end.len() as u64, |sum, length| sum.saturating_add(length));
        Self { content_type: byteranges(boundary), content_length, frames, end }
    }
}

impl Frame {
    fn new(separator: &str, boundary: u128, content_type: &HeaderValue, size: u64, range: Range<u64>) -> Self {
        let (first, last) = (range.start, range.end.saturating_sub(1));
        let before = format!("{separator}--{boundary:032x}\r\nContent-Type: ");
        let after = format!("\r\nContent-Range: bytes {first}-{last}/{size}\r\n\r\n");
        let head = [before.as_bytes(), content_type.as_bytes(), after.as_bytes()];
        Self { head: head.concat().into(), range }
    }

    fn length(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start).saturating_add(self.head.len() as u64)
    }
}

fn byteranges(boundary: u128) -> HeaderValue {
    // Hexadecimal digits, which are valid in every header.
    HeaderValue::from_str(&format!("multipart/byteranges; boundary={boundary:032x}"))
        .unwrap_or(HeaderValue::from_static("multipart/byteranges"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str, size: u64) -> Selection {
        select(Some(&HeaderValue::from_str(text).expect("a header")), size)
    }

    #[test]
    fn a_single_range_is_known_before_the_size() {
        let table = [
            ("bytes=10-19", Some(10..20)),
            ("bytes=90-", Some(90..100)),
            ("bytes=-5", Some(95..100)),
            ("bytes=10-19,30-39", None),
            ("bytes=19-10", None),
            ("bytes=x-1", None),
            ("lines=1-2", None),
            ("bytes=-0", Some(0..100)),
        ];
        for (text, expected) in table {
            let found = single(Some(&HeaderValue::from_static(text))).and_then(|range| range.resolve(100));
            assert_eq!(found, expected, "{text}");
        }
        assert_eq!(single(None), None);
    }

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        use Selection::{Part, Parts, Unsatisfiable, Whole};
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
            ("bytes=0-", 0, Whole),
            ("bytes=-0", 0, Whole),
            ("bytes=-1", 0, Whole),
            ("bytes=5-3", 10, Whole),
            ("bytes=0-1,3-4", 10, Parts(vec![0..2, 3..5])),
            ("bytes=6-8,0-3", 10, Parts(vec![6..9, 0..4])),
            ("bytes= 6 - 8 , , 0-3,", 10, Parts(vec![6..9, 0..4])),
            ("bytes=-2,0-0", 10, Parts(vec![8..10, 0..1])),
            ("bytes=0-1,20-30,3-4", 10, Parts(vec![0..2, 3..5])),
            ("bytes=5-6,20-", 10, Part(5..7)),
            ("bytes=5-6,-0", 10, Part(5..7)),
            ("bytes=20-,30-40,-0", 10, Unsatisfiable),
            ("bytes=0-1,2-3", 10, Part(0..4)),
            ("bytes=4-6,0-4", 10, Part(0..7)),
            ("bytes=0-,-1,3-4", 10, Part(0..10)),
            ("bytes=8-9,3-4,0-0,4-5,1-1", 10, Parts(vec![8..10, 3..6, 0..2])),
            ("bytes=3-3,8-9,0-0,1-2", 10, Parts(vec![0..4, 8..10])),
            ("bytes=0-0,0-0,0-0", 10, Part(0..1)),
            ("bytes=0-0,-1", 0, Whole),
            ("bytes=0-0,-0", 0, Whole),
            ("bytes=0-1,5-3", 10, Whole),
            ("bytes=0-1,x", 10, Whole),
            ("bytes=-1,x", 0, Whole),
            ("bytes=,", 10, Whole),
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
                Selection::Unsatisfiable => prop_assert!(expected.is_empty() && size > 0),
                Selection::Whole => prop_assert!(size == 0),
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn a_suffix_is_the_end(suffix in 0_u64..300, size in 0_u64..200) {
            let expected: Vec<u64> = (0..size).filter(|at| at + suffix >= size).collect();
            match of(&format!("bytes=-{suffix}"), size) {
                Selection::Part(range) => prop_assert_eq!(range.collect::<Vec<_>>(), expected),
                Selection::Unsatisfiable => prop_assert!(suffix == 0 && size > 0),
                Selection::Whole => prop_assert!(size == 0),
                Selection::Parts(_) => prop_assert!(false),
            }
        }

        #[test]
        fn several_ranges_are_what_slicing_gives(
            asked in prop::collection::vec((0_u64..220, 0_u64..30), 1..12), size in 1_u64..200,
        ) {
            let members: Vec<String> = asked.iter().map(|(first, more)| format!("{first}-{}", first + more)).collect();
            let wanted = |at: &u64| asked.iter().any(|(first, more)| (*first..=first + more).contains(at));
            let parts = match of(&format!("bytes={}", members.join(",")), size) {
                Selection::Part(part) => vec![part],
                Selection::Parts(parts) => {
                    prop_assert!(parts.len() > 1);
                    parts
                }
                Selection::Unsatisfiable => Vec::new(),
                Selection::Whole => return Err(TestCaseError::fail("a valid header was ignored")),
            };
            let mut sent: Vec<u64> = parts.iter().cloned().flatten().collect();
            sent.sort_unstable();
            prop_assert_eq!(sent, (0..size).filter(wanted).collect::<Vec<_>>(), "each byte once");
            let position = |part: &Range<u64>| asked.iter().position(|(first, _)| part.contains(first));
            prop_assert!(parts.is_sorted_by_key(position), "{:?}", parts);
            prop_assert!(parts.iter().all(|part| parts.iter().all(|other| part.end != other.start)), "{:?}", parts);
        }

        #[test]
        fn a_body_has_its_declared_length(
            boundary: u128, parts in prop::collection::vec((0_u64..1000, 1_u64..1000), 1..8), size in 2000_u64..1_000_000,
        ) {
            let parts: Vec<Range<u64>> = parts.into_iter().map(|(start, length)| start..start + length).collect();
            let multipart = Multipart::new(boundary, &HeaderValue::from_static("text/plain"), size, parts.clone());
            let mut body = Vec::new();
            for frame in &multipart.frames {
                body.extend_from_slice(&frame.head);
                body.extend(frame.range.clone().map(|at| u8::try_from(at % 251).expect("small")));
            }
            body.extend_from_slice(&multipart.end);
            prop_assert_eq!(body.len() as u64, multipart.content_length);
            prop_assert_eq!(read_back(&multipart.content_type, &body, size), parts);
        }

        #[test]
        fn any_text_is_inside_the_representation(text in "bytes=[-0-9, ]{0,30}", size in any::<u64>()) {
            let parts = match of(&text, size) {
                Selection::Part(range) => vec![range],
                Selection::Parts(parts) => parts,
                Selection::Whole | Selection::Unsatisfiable => Vec::new(),
            };
            prop_assert!(parts.len() <= PARTS_MAX);
            prop_assert!(parts.iter().all(|range| range.start < range.end && range.end <= size));
        }
    }

    /// Parses a body by its delimiters alone, as a client does.
    fn read_back(content_type: &HeaderValue, body: &[u8], size: u64) -> Vec<Range<u64>> {
        let boundary =
            content_type.to_str().expect("text").strip_prefix("multipart/byteranges; boundary=").expect("one");
        let body = [b"\r\n", body].concat();
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        let starts = (0..body.len()).filter(|at| body[*at..].starts_with(&delimiter));
        let after: Vec<&[u8]> = starts.map(|at| &body[at + delimiter.len()..]).collect();
        let (end, parts) = after.split_last().expect("an end");
        assert_eq!(*end, b"--\r\n");
        let read = |part: &&[u8]| {
            let at = part.windows(4).position(|window| window == b"\r\n\r\n").expect("an end of the header");
            let (header, bytes) = (str::from_utf8(&part[..at]).expect("text"), &part[at + 4..]);
            let range = header.strip_prefix("\r\nContent-Type: text/plain\r\nContent-Range: bytes ").expect("headers");
            let (range, of) = range.split_once('/').expect("a size");
            let (first, last) = range.split_once('-').expect("a range");
            let range = first.parse().expect("a number")..last.parse::<u64>().expect("a number") + 1;
            assert_eq!(of.parse(), Ok(size));
            assert!(range.clone().zip(bytes).all(|(at, byte)| at % 251 == u64::from(*byte)), "{range:?}");
            range
        };
        parts.iter().map(read).collect()
    }

    #[test]
    fn frames_look_as_in_the_rfc() {
        let multipart = Multipart::new(
            10,
            &HeaderValue::from_static("text/html; charset=utf-8"),
            8000,
            vec![500..1000, 7000..8000],
        );
        let boundary = "0000000000000000000000000000000a";
        assert_eq!(multipart.content_type, format!("multipart/byteranges; boundary={boundary}").as_str());
        let head = |separator: &str, range: &str| {
            format!(
                "{separator}--{boundary}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Range: bytes {range}/8000\r\n\r\n"
            )
        };
        let heads: Vec<&[u8]> = multipart.frames.iter().map(|frame| &frame.head[..]).collect();
        assert_eq!(heads, [head("", "500-999").as_bytes(), head("\r\n", "7000-7999").as_bytes()]);
        assert_eq!(multipart.end, format!("\r\n--{boundary}--\r\n"));
    }

    #[test]
    fn too_many_parts_are_ignored() {
        let header = |count: u64| (0..count).map(|at| format!("{}-{}", 2 * at, 2 * at)).collect::<Vec<_>>().join(",");
        let most = PARTS_MAX as u64;
        assert!(
            matches!(of(&format!("bytes={}", header(most)), 1000), Selection::Parts(parts) if parts.len() == PARTS_MAX)
        );
        assert_eq!(of(&format!("bytes={}", header(most + 1)), 1000), Selection::Whole);
        assert_eq!(of(&format!("bytes={},0-999", header(most + 1)), 1000), Selection::Part(0..1000));
        let overlapping = "0-,".repeat(5_000);
        assert_eq!(of(&format!("bytes={overlapping}"), 1000), Selection::Part(0..1000));
    }

    #[test]
    fn lengths_beyond_64_bits_do_not_overflow() {
        let content_type = HeaderValue::from_static("text/plain");
        let multipart =
            Multipart::new(u128::MAX, &content_type, u64::MAX, vec![0..u64::MAX - 2, u64::MAX - 1..u64::MAX]);
        assert_eq!(multipart.content_length, u64::MAX);
    }
}
