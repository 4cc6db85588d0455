//! `If-None-Match` and `If-Range` (RFC 9110, section 13). Every entity tag of ours is strong; there are no dates.

use http::header::{HeaderMap, IF_NONE_MATCH, IF_RANGE};

/// Whether `If-None-Match` names the entity tag, by weak comparison. `*` counts only if `exists` is known.
pub fn none_match(headers: &HeaderMap, etag: &[u8], exists: bool) -> bool {
    headers.get_all(IF_NONE_MATCH).iter().any(|value| {
        let value = value.as_bytes();
        value == etag || (value.trim_ascii() == b"*" && exists) || tags(value).any(|tag| tag == etag)
    })
}

/// Whether a `Range` header counts: without `If-Range`, or when that names the entity tag by strong comparison.
pub fn range_counts(headers: &HeaderMap, etag: &[u8]) -> bool {
    headers.get(IF_RANGE).is_none_or(|value| value.as_bytes().trim_ascii() == etag)
}

/// The quoted tags of a list, quotes included, without `W/`. A tag may contain commas, so the quotes decide.
fn tags(mut list: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let start = list.iter().position(|byte| *byte == b'"')?;
        let length = list[start + 1..].iter().position(|byte| *byte == b'"')? + 2;
        let tag = &list[start..start + length];
        list = &list[start + length..];
        Some(tag)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

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
    fn a_range_counts_only_for_the_same_bytes() {
        let table = [("\"a\"", true), ("\"b\"", false), ("W/\"a\"", false), ("Sat, 29 Oct 1994 19:43:31 GMT", false)];
        for (value, expected) in table {
            let headers = HeaderMap::from_iter([(IF_RANGE, HeaderValue::from_static(value))]);
            assert_eq!(range_counts(&headers, b"\"a\""), expected, "{value}");
        }
        assert!(range_counts(&HeaderMap::new(), b"\"a\""));
    }
}
