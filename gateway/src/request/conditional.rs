//! `If-Match`, `If-Unmodified-Since`, `If-None-Match`, `If-Modified-Since` and `If-Range` (RFC 9110, section 13).
//!
//! Content has a date only if its publisher stored one (UnixFS `mtime`); conditions by date apply only in the absence
//! of conditions by entity tag.

use http::header::{
    ETAG, HeaderMap, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
    LAST_MODIFIED,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `Last-Modified` of a date, in whole seconds; `None` before 1970, which HTTP dates of other software cannot
/// represent.
pub fn http_date(date: SystemTime) -> Option<HeaderValue> {
    let seconds = date.duration_since(UNIX_EPOCH).ok()?.as_secs();
    // The last second of the year 9999 (RFC 9110, section 5.6.7).
    let date = (seconds <= 253_402_300_799).then(|| UNIX_EPOCH + Duration::from_secs(seconds))?;
    HeaderValue::from_str(&httpdate::fmt_http_date(date)).ok()
}

/// Whether `If-Modified-Since` is the modification date. It is ignored beside `If-None-Match`, and for content without
/// a date. The dates must be equal, since a name may change to older content.
pub fn unmodified_since(headers: &HeaderMap, modified: Option<SystemTime>) -> bool {
    let (Some(modified), false) = (modified, headers.contains_key(IF_NONE_MATCH)) else { return false };
    let since = headers.get(IF_MODIFIED_SINCE).and_then(|value| httpdate::parse_http_date(value.to_str().ok()?).ok());
    // HTTP dates have whole seconds.
    since.is_some_and(|since| since <= modified && modified < since + Duration::from_secs(1))
}

/// Whether a request has a precondition that [`precondition_holds`] evaluates.
pub fn has_precondition(asked: &HeaderMap) -> bool {
    asked.contains_key(IF_MATCH) || asked.contains_key(IF_UNMODIFIED_SINCE)
}

/// Whether `If-Match`, or in its absence `If-Unmodified-Since`, is true for a response with these headers. Entity tags
/// are compared strongly, so a weak one never matches.
pub fn precondition_holds(asked: &HeaderMap, answer: &HeaderMap) -> bool {
    let etag = answer.get(ETAG).map_or(&b""[..], HeaderValue::as_bytes);
    if asked.contains_key(IF_MATCH) {
        let names_it = |value: &[u8]| strong_tags(value).any(|tag| tag == etag);
        return asked
            .get_all(IF_MATCH)
            .iter()
            .any(|value| value.as_bytes().trim_ascii() == b"*" || names_it(value.as_bytes()));
    }
    let date = |headers: &HeaderMap, name| httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok();
    match (date(asked, IF_UNMODIFIED_SINCE), date(answer, LAST_MODIFIED)) {
        (Some(since), Some(modified)) => modified <= since,
        // Invalid dates, and content without a date, make no condition (section 13.1.4).
        _ => true,
    }
}

/// Whether `If-None-Match` contains the entity tag, by weak comparison. `*` matches only if the content is known to
/// exist.
pub fn none_match(headers: &HeaderMap, etag: &[u8], exists: bool) -> bool {
    let etag = etag.strip_prefix(b"W/").unwrap_or(etag);
    headers.get_all(IF_NONE_MATCH).iter().any(|value| {
        let value = value.as_bytes();
        value == etag || (value.trim_ascii() == b"*" && exists) || tags(value).any(|tag| tag == etag)
    })
}

/// Whether `Range` applies: without `If-Range`, or if that contains the entity tag, by strong comparison.
pub fn range_counts(headers: &HeaderMap, etag: &[u8]) -> bool {
    headers.get(IF_RANGE).is_none_or(|value| value.as_bytes().trim_ascii() == etag)
}

/// The quoted tags of a list, with quotes and without `W/`.
fn tags(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    each_tag(list).map(|(tag, _)| tag)
}

/// The strong tags of a list.
fn strong_tags(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    each_tag(list).filter(|(_, is_weak)| !is_weak).map(|(tag, _)| tag)
}

/// The quoted tags of a list, and whether each is weak. A tag may contain commas.
fn each_tag(mut list: &[u8]) -> impl Iterator<Item = (&[u8], bool)> {
    std::iter::from_fn(move || {
        let start = list.iter().position(|byte| *byte == b'"')?;
        let length = list[start + 1..].iter().position(|byte| *byte == b'"')? + 2;
        let tag = (&list[start..start + length], list[..start].ends_with(b"W/"));
        list = &list[start + length..];
        Some(tag)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_weak_tags_and_the_star_match() {
        let table = [
            ("\"a\"", true),
            ("W/\"a\"", true),
            ("\"b\", \"a\"", true),
            ("\"b\",W/\"a\" ,\"c\"", true),
            ("*", true),
            (" * ", true),
            ("\"b\"", false),
            ("a", false),
            ("\"a", false),
            ("\"x,\"a\"\"", false),
            ("", false),
        ];
        for (value, expected) in table {
            let headers = HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::from_str(value).expect("a header"))]);
            assert_eq!(none_match(&headers, b"\"a\"", true), expected, "{value}");
        }
        let star = HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::from_static("*"))]);
        assert!(!none_match(&star, b"\"a\"", false));
        assert!(!none_match(&HeaderMap::new(), b"\"a\"", true));
    }

    #[test]
    fn dates_count_without_entity_tags() {
        let modified = UNIX_EPOCH + Duration::from_millis(784_111_777_500);
        assert_eq!(http_date(modified).expect("a date"), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(UNIX_EPOCH - Duration::from_secs(1)), None);
        let since =
            |value: &str| HeaderMap::from_iter([(IF_MODIFIED_SINCE, HeaderValue::from_str(value).expect("a header"))]);
        let table = [
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
            ("Sun, 06 Nov 1994 08:49:36 GMT", false),
            ("Sunday, 06-Nov-94 08:49:37 GMT", true),
            ("yesterday", false),
        ];
        for (value, expected) in table {
            assert_eq!(unmodified_since(&since(value), Some(modified)), expected, "{value}");
        }
        assert!(!unmodified_since(&since("Sun, 06 Nov 1994 08:49:37 GMT"), None));
        let mut both = since("Sun, 06 Nov 1994 08:49:37 GMT");
        both.insert(IF_NONE_MATCH, HeaderValue::from_static("\"b\""));
        assert!(!unmodified_since(&both, Some(modified)));
    }

    #[test]
    fn preconditions_compare_strongly() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let answer = |etag: &'static str| {
            HeaderMap::from_iter([
                (ETAG, HeaderValue::from_static(etag)),
                (LAST_MODIFIED, HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT")),
            ])
        };
        let table = [
            (IF_MATCH, "\"a\"", "\"a\"", true),
            (IF_MATCH, "\"b\", \"a\"", "\"a\"", true),
            (IF_MATCH, "*", "W/\"a\"", true),
            (IF_MATCH, "\"b\"", "\"a\"", false),
            (IF_MATCH, "W/\"a\"", "\"a\"", false),
            (IF_MATCH, "\"a\"", "W/\"a\"", false),
            (IF_MATCH, "", "\"a\"", false),
            (IF_UNMODIFIED_SINCE, date, "\"a\"", true),
            (IF_UNMODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:38 GMT", "\"a\"", true),
            (IF_UNMODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:36 GMT", "\"a\"", false),
            (IF_UNMODIFIED_SINCE, "yesterday", "\"a\"", true),
        ];
        for (name, value, etag, expected) in table {
            let asked = HeaderMap::from_iter([(name.clone(), HeaderValue::from_static(value))]);
            assert!(has_precondition(&asked));
            assert_eq!(precondition_holds(&asked, &answer(etag)), expected, "{name}: {value} of {etag}");
        }
        let old = HeaderValue::from_static("Sun, 06 Nov 1994 08:49:36 GMT");
        let mut both = HeaderMap::from_iter([(IF_UNMODIFIED_SINCE, old)]);
        assert!(precondition_holds(&both, &HeaderMap::new()), "what has no date was not changed");
        both.insert(IF_MATCH, HeaderValue::from_static("\"a\""));
        assert!(precondition_holds(&both, &answer("\"a\"")), "a date does not count beside a tag");
        assert!(!has_precondition(&HeaderMap::new()));
    }

    #[test]
    fn a_range_counts_only_for_the_same_bytes() {
        let table = [("\"a\"", true), ("\"b\"", false), ("W/\"a\"", false), ("Sat, 29 Oct 1994 19:43:31 GMT", false)];
        for (value, expected) in table {
            let headers = HeaderMap::from_iter([(IF_RANGE, HeaderValue::from_static(value))]);
            assert_eq!(range_counts(&headers, b"\"a\""), expected, "{value}");
        }
        assert!(range_counts(&HeaderMap::new(), b"\"a\""));
    }
}
