//! Which format a request asks for (<https://specs.ipfs.tech/http-gateways/path-gateway/#accept-request-header>).
//!
//! `?format=` beats `Accept`. A format of IPFS that is not supported is refused rather than answered with something else;
//! any other media type means the file or page itself.

use http::header::{ACCEPT, HeaderMap};

/// What a response's body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The file, web page or listing.
    Unixfs,
    /// The one block that the path leads to, as it is hashed (`application/vnd.ipld.raw`).
    Raw,
}

/// A format that was asked for and is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the format \"{asked}\" is not supported; use ?format=raw (application/vnd.ipld.raw), or no format at all")]
pub struct NotSupported {
    asked: String,
}

/// The media type of a raw block (<https://www.iana.org/assignments/media-types/application/vnd.ipld.raw>).
pub const RAW: &str = "application/vnd.ipld.raw";

/// Media types by which other gateways choose formats that this one does not have.
const OTHER_FORMATS: [&str; 6] = [
    "application/vnd.ipld.car",
    "application/vnd.ipld.dag-json",
    "application/vnd.ipld.dag-cbor",
    "application/vnd.ipfs.ipns-record",
    "application/x-tar",
    "application/cbor",
];

/// The format that a query's `format` and the `Accept` headers ask for.
///
/// # Errors
/// [`NotSupported`] names the format.
pub fn format(query: Option<&str>, headers: &HeaderMap) -> Result<Format, NotSupported> {
    match query {
        Some("raw") => Ok(Format::Raw),
        Some(other) => Err(NotSupported { asked: other.chars().take(80).collect() }),
        None => by_accept(headers),
    }
}

fn by_accept(headers: &HeaderMap) -> Result<Format, NotSupported> {
    let mut other = None;
    let mut anything_else = false;
    for range in headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|list| list.split(','))
    {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        if media_type.is_empty() || parts.any(is_refusal) {
            continue;
        }
        if media_type.eq_ignore_ascii_case(RAW) {
            return Ok(Format::Raw);
        }
        match OTHER_FORMATS.into_iter().find(|format| media_type.eq_ignore_ascii_case(format)) {
            Some(format) => other = Some(format),
            None => anything_else = true,
        }
    }
    match other {
        Some(format) if !anything_else => Err(NotSupported { asked: format.to_owned() }),
        _ => Ok(Format::Unixfs),
    }
}

/// A weight of zero: "not this" (RFC 9110, section 12.4.2).
fn is_refusal(parameter: &str) -> bool {
    let weight = parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q="));
    weight.and_then(|weight| weight.trim().parse::<f32>().ok()) == Some(0.0)
}

/// Whether the client would rather read HTML than plain text: browsers say so.
pub fn wants_html(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(|list| list.contains("text/html")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn the_query_beats_accept_and_unknown_formats_are_refused() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8";
        let table = [
            (None, "", Some(Format::Unixfs)),
            (None, browser, Some(Format::Unixfs)),
            (None, "*/*", Some(Format::Unixfs)),
            (None, "application/json", Some(Format::Unixfs)),
            (None, "application/vnd.ipld.raw", Some(Format::Raw)),
            (None, "application/vnd.ipld.car, application/vnd.ipld.raw;q=0.5", Some(Format::Raw)),
            (None, "Application/Vnd.Ipld.Raw;q=0, text/html", Some(Format::Unixfs)),
            (None, "application/vnd.ipld.car; version=1", None),
            (None, "application/vnd.ipld.car, */*;q=0.1", Some(Format::Unixfs)),
            (None, "application/vnd.ipfs.ipns-record", None),
            (Some("raw"), browser, Some(Format::Raw)),
            (Some("raw"), "application/vnd.ipld.car", Some(Format::Raw)),
            (Some("car"), browser, None),
            (Some("bogus"), "application/vnd.ipld.raw", None),
            (Some(""), "", None),
        ];
        for (query, accept, expected) in table {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(format(query, &headers).ok(), expected, "{query:?} {accept}");
        }
        assert!(NotSupported { asked: "car".to_owned() }.to_string().contains("application/vnd.ipld.raw"));
    }
}
