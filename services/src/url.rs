//! Encoding and decoding of paths and queries of URLs.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode};
use std::borrow::Cow;

/// The characters that are encoded in a path segment: all but those that browsers leave unencoded (RFC 3986, section
/// 3.3, "pchar").
pub const PATH_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// The first value of a query parameter, decoded as forms are: `+` is a space
/// (<https://url.spec.whatwg.org/#urlencoded-parsing>).
pub fn parameter<'a>(query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    Some(match parameter_bytes(query, name)? {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    })
}

/// Like [`parameter`], for values that need not be text.
pub fn parameter_bytes<'a>(query: &'a str, name: &str) -> Option<Cow<'a, [u8]>> {
    let (_, value) = pairs(query).find(|(key, _)| *key == name)?;
    if !value.contains(['%', '+']) {
        return Some(Cow::Borrowed(value.as_bytes()));
    }
    Some(Cow::Owned(form_decoded(value.as_bytes())))
}

/// The names and values of a query, encoded. A name alone has an empty value.
pub fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Decodes a name or value of a form: `+` is a space (<https://url.spec.whatwg.org/#urlencoded-parsing>). Invalid
/// escapes are kept.
pub fn form_decoded(text: &[u8]) -> Vec<u8> {
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_decode(&spaced).collect()
}
