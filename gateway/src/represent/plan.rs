//! Status and headers of a response, decided without I/O from the request's head and the resolved content.

use crate::headers::header;
use crate::request::Ask;
use crate::request::conditional::{has_precondition, http_date, none_match, range_counts, unmodified_since};
use crate::request::negotiate::{Coding, Format};
use crate::request::range::{Multipart, Selection, select};
use crate::request::route::with_query;
use crate::resolve::source::{SERVER_TIMING, Tier};
use crate::resolve::{Entity, Freshness};
use crate::respond::SURROGATE_KEY;
use http::header::{
    ACCEPT_RANGES, AGE, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_LOCATION,
    CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED, LOCATION, RANGE, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::ops::Range;
use std::time::SystemTime;

/// Content of a CID never changes
/// (<https://specs.ipfs.tech/http-gateways/path-gateway/#cache-control-response-header>).
const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=29030400, immutable");
/// Generated pages may change with an update of this software.
const GENERATED: HeaderValue = HeaderValue::from_static("public, max-age=604800, stale-while-revalidate=2678400");

const X_IPFS_PATH: HeaderName = HeaderName::from_static("x-ipfs-path");
const X_IPFS_ROOTS: HeaderName = HeaderName::from_static("x-ipfs-roots");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

impl Freshness {
    /// `Cache-Control` of content as long as the names on its path are valid, or of a page `generated` from it.
    pub fn cache_control(self, generated: bool) -> HeaderValue {
        match self {
            Self::Immutable if generated => GENERATED,
            Self::Immutable => IMMUTABLE,
            Self::For(ttl) | Self::Stale { ttl, .. } => header(&format!("public, max-age={}", ttl.as_secs())),
        }
    }

    /// Sets `Cache-Control`, and for stale content `Age` (RFC 9111, section 5.1), which exceeds its short `max-age`, so
    /// that caches see that it is stale.
    pub fn set_headers(self, headers: &mut HeaderMap, generated: bool) {
        headers.insert(CACHE_CONTROL, self.cache_control(generated));
        if let Self::Stale { age, .. } = self {
            headers.insert(AGE, HeaderValue::from(age.as_secs()));
        }
    }
}

/// The part of a representation that is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing, because the client has it (304).
    NotModified,
    /// Nothing, because the range is out of bounds (416).
    Unsatisfiable,
    /// The whole (200).
    Whole,
    /// One range (206).
    Part(Range<u64>),
    /// Several ranges (206).
    Parts(Vec<Range<u64>>),
}

impl Decision {
    /// Evaluates the request's conditions and range.
    pub fn of(ask: &Ask<'_>, etag: &HeaderValue, modified: Option<SystemTime>, size: u64) -> Self {
        if none_match(ask.headers, etag.as_bytes(), true) || unmodified_since(ask.headers, modified) {
            return Self::NotModified;
        }
        // `Range` is defined for GET alone (RFC 9110, section 14.2).
        let range = ask.headers.get(RANGE).filter(|_| !ask.head_only && range_counts(ask.headers, etag.as_bytes()));
        match select(range, size) {
            Selection::Whole => Self::Whole,
            Selection::Part(range) => Self::Part(range),
            Selection::Parts(parts) => Self::Parts(parts),
            Selection::Unsatisfiable => Self::Unsatisfiable,
        }
    }

    /// Whether the response has content.
    pub fn has_body(&self) -> bool {
        !matches!(self, Self::NotModified | Self::Unsatisfiable)
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NotModified => StatusCode::NOT_MODIFIED,
            Self::Unsatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::Whole => StatusCode::OK,
            Self::Part(_) | Self::Parts(_) => StatusCode::PARTIAL_CONTENT,
        }
    }
}

/// The head of a response, without a body.
pub type Head = Response<()>;

/// Data of the request that its response's head needs.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// The request.
    pub ask: &'a Ask<'a>,
    /// How long the response is valid.
    pub freshness: Freshness,
    /// `X-Ipfs-Roots`.
    pub roots: &'a HeaderValue,
    /// The farthest tier that was read.
    pub tier: Tier,
}

impl About<'_> {
    /// The headers of all responses, 304 and 416 included (RFC 9110, section 15.4.5).
    fn common(&self, etag: &HeaderValue, generated: bool) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(24);
        headers.insert(ETAG, etag.clone());
        self.freshness.set_headers(&mut headers, generated);
        self.common_ipfs_headers(&mut headers);
        if self.ask.wanted.by_accept {
            headers.insert(CONTENT_LOCATION, self.location_of_format());
        }
        headers
    }

    fn common_ipfs_headers(&self, headers: &mut HeaderMap) {
        let is_encoded = self.ask.wanted.format.is_encoded();
        headers.insert(VARY, HeaderValue::from_static(if is_encoded { "Accept, Accept-Encoding" } else { "Accept" }));
        headers.insert(X_IPFS_PATH, header(&self.ask.path));
        headers.insert(X_IPFS_ROOTS, self.roots.clone());
        headers.insert(SERVER_TIMING, self.tier.server_timing());
    }

    /// The URL of this format alone, for caches that ignore `Accept`
    /// (<https://specs.ipfs.tech/http-gateways/path-gateway/#content-location-response-header>).
    fn location_of_format(&self) -> HeaderValue {
        let Ask { sent, query, ref wanted, .. } = *self.ask;
        // An empty `format` would take precedence over the appended one.
        let others = query.map(|query| query.split('&').filter(|pair| !matches!(*pair, "format=" | "format" | "")));
        let others = others.map(|pairs| pairs.collect::<Vec<_>>().join("&")).filter(|query| !query.is_empty());
        let mut location = with_query(sent, others.as_deref());
        let mut add = |name: &str, value: &str| {
            location.push(if location.contains('?') { '&' } else { '?' });
            location.push_str(&format!("{name}={}", utf8_percent_encode(value, PLAIN)));
        };
        add("format", wanted.format.name());
        if wanted.format == Format::Car {
            for (name, value) in &wanted.parameters {
                let known = ["version", "order", "dups"].contains(&name.as_str());
                if known && self.ask.parameter(&format!("car-{name}")).is_none() {
                    add(&format!("car-{name}"), value);
                }
            }
        }
        header(&location)
    }
}

fn head(status: StatusCode, headers: HeaderMap) -> Head {
    let mut head = Response::new(());
    *head.status_mut() = status;
    *head.headers_mut() = headers;
    head
}

/// The metadata of a representation of known length.
#[derive(Debug)]
pub struct Representation<'a> {
    /// Its entity tag.
    pub etag: &'a HeaderValue,
    /// Its modification time, if known.
    pub modified: Option<SystemTime>,
    /// Its length, in bytes.
    pub size: u64,
    /// Its media type, if known.
    pub content_type: Option<HeaderValue>,
    /// `Content-Disposition`, if it needs one.
    pub disposition: Option<HeaderValue>,
    /// The framing of several ranges.
    pub multipart: Option<&'a Multipart>,
    /// A surrogate key besides those of its roots.
    pub further_key: Option<&'a HeaderValue>,
}

/// The head for a representation of known length.
pub fn sized(about: &About<'_>, it: &Representation<'_>, decision: &Decision) -> Head {
    let mut headers = about.common(it.etag, false);
    if let Some(modified) = it.modified.and_then(http_date) {
        headers.insert(LAST_MODIFIED, modified);
    }
    if let Some(key) = it.further_key {
        headers.insert(SURROGATE_KEY, key.clone());
    }
    body_headers(&mut headers, decision, it);
    if decision.has_body() {
        let content_type = it.multipart.map(|multipart| multipart.content_type.clone());
        if let Some(content_type) = content_type.or_else(|| it.content_type.clone()) {
            headers.insert(CONTENT_TYPE, content_type);
        }
        if let Some(disposition) = &it.disposition {
            headers.insert(CONTENT_DISPOSITION, disposition.clone());
        }
    }
    head(decision.status(), headers)
}

/// The media type of a file: by `?filename=` if present, else its own.
pub fn file_type(ask: &Ask<'_>, entity: &Entity) -> Option<HeaderValue> {
    let by_filename = ask.filename.as_deref().and_then(crate::resolve::content_type::by_name);
    by_filename.or_else(|| entity.content_type.clone())
}

/// `Content-Disposition` of a file, if the request has `filename` or `download`.
pub fn file_disposition(ask: &Ask<'_>) -> Option<HeaderValue> {
    (ask.filename.is_some() || ask.download).then(|| disposition(ask, false, None))
}

/// The head of a stream of unknown length, which has no ranges: a page or an archive.
pub fn stream(about: &About<'_>, etag: &HeaderValue, content_type: HeaderValue, generated: bool) -> Head {
    let mut headers = about.common(etag, generated);
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    head(StatusCode::OK, headers)
}

/// The head of a 304, if the client has the representation with this entity tag. Needs no block.
pub fn not_modified(about: &About<'_>, etag: &HeaderValue, generated: bool) -> Option<Head> {
    not_modified_if(none_match(about.ask.headers, etag.as_bytes(), true), about, etag, generated)
}

/// The same for content that is not known to exist, so that `If-None-Match: *` does not match.
pub fn not_modified_unseen(about: &About<'_>, etag: &HeaderValue, generated: bool) -> Option<Head> {
    not_modified_if(none_match(about.ask.headers, etag.as_bytes(), false), about, etag, generated)
}

fn not_modified_if(matches: bool, about: &About<'_>, etag: &HeaderValue, generated: bool) -> Option<Head> {
    matches.then(|| head(StatusCode::NOT_MODIFIED, about.common(etag, generated)))
}

/// Whether the request may be answered with an encoded representation: that has no ranges, which refer to the unencoded
/// bytes, and its weak entity tag never meets `If-Match`.
pub fn may_be_encoded(ask: &Ask<'_>) -> bool {
    !ask.headers.contains_key(RANGE) && !has_precondition(ask.headers)
}

/// The entity tag of an encoded representation: weak, because its bytes depend on how and when its blocks were stored.
pub fn encoded_etag(etag: &HeaderValue, coding: Coding) -> HeaderValue {
    let tag = String::from_utf8_lossy(etag.as_bytes());
    let tag = tag.strip_prefix("W/").unwrap_or(&tag);
    header(&format!("W/{}.{}\"", tag.trim_end_matches('"'), coding.name()))
}

/// Makes a head that of an encoded representation, which has no ranges.
pub fn set_coding(head: &mut Head, coding: Coding) {
    head.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    head.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
}

/// A redirect to the same path with a trailing slash and the same query
/// (<https://specs.ipfs.tech/http-gateways/path-gateway/#301-moved-permanently>).
pub fn add_slash(about: &About<'_>) -> Head {
    let mut headers = HeaderMap::with_capacity(12);
    headers.insert(LOCATION, header(&with_query(&format!("{}/", about.ask.sent), about.ask.query)));
    about.freshness.set_headers(&mut headers, false);
    about.common_ipfs_headers(&mut headers);
    head(StatusCode::MOVED_PERMANENTLY, headers)
}

/// A redirect.
pub fn redirect(status: StatusCode, location: HeaderValue, cache_control: HeaderValue) -> Head {
    head(status, HeaderMap::from_iter([(LOCATION, location), (CACHE_CONTROL, cache_control)]))
}

fn body_headers(headers: &mut HeaderMap, decision: &Decision, it: &Representation<'_>) {
    let size = it.size;
    let length = match decision {
        Decision::NotModified => return,
        Decision::Unsatisfiable => {
            headers.insert(CONTENT_RANGE, header(&format!("bytes */{size}")));
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            return;
        }
        Decision::Whole => size,
        Decision::Part(Range { start, end }) => {
            let range = format!("bytes {start}-{}/{size}", end.saturating_sub(1));
            headers.insert(CONTENT_RANGE, header(&range));
            end - start
        }
        Decision::Parts(_) => it.multipart.map_or(0, |multipart| multipart.content_length),
    };
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
}

/// The characters that RFC 8187 allows unencoded in `filename*`.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// `Content-Disposition` (RFC 6266): a quoted ASCII name, and the original name if it differs. Content that browsers do
/// not display is always an `attachment`; `fallback` is its name if the request has none.
pub fn disposition(ask: &Ask<'_>, attachment: bool, fallback: Option<String>) -> HeaderValue {
    let kind = if ask.download || attachment { "attachment" } else { "inline" };
    let from_path = || Some(decoded(ask.path.trim_end_matches('/').rsplit('/').next()?));
    let name = ask.filename.clone().or(fallback).or_else(from_path).unwrap_or_default();
    let name: String = name.chars().map(|c| if c.is_control() || matches!(c, '/' | '\\') { '_' } else { c }).collect();
    let ascii: String = name.chars().map(|c| if !c.is_ascii() || c == '"' { '_' } else { c }).collect();
    if ascii == name {
        return header(&format!("{kind}; filename=\"{ascii}\""));
    }
    let encoded = utf8_percent_encode(&name, PLAIN);
    header(&format!("{kind}; filename=\"{ascii}\"; filename*=UTF-8''{encoded}"))
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use http::request::Parts;

    fn request(target: &str, headers: &[(&str, &str)]) -> Parts {
        let mut builder = Request::builder().uri(target);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn conditions_come_before_ranges() {
        let etag = HeaderValue::from_static("\"a\"");
        let table: [(&[(&str, &str)], Decision); 8] = [
            (&[], Decision::Whole),
            (&[("range", "bytes=1-2")], Decision::Part(1..3)),
            (&[("range", "bytes=1-2,5-5")], Decision::Parts(vec![1..3, 5..6])),
            (&[("range", "bytes=10-")], Decision::Unsatisfiable),
            (&[("range", "bytes=1-2"), ("if-none-match", "\"a\"")], Decision::NotModified),
            (&[("range", "bytes=1-2"), ("if-range", "\"a\"")], Decision::Part(1..3)),
            (&[("range", "bytes=1-2"), ("if-range", "\"b\"")], Decision::Whole),
            (&[("if-none-match", "\"b\"")], Decision::Whole),
        ];
        for (headers, expected) in table {
            let head = request("/ipfs/x", headers);
            assert_eq!(Decision::of(&Ask::read(&head).expect("reads"), &etag, None, 10), expected, "{headers:?}");
        }
    }

    #[test]
    fn encoded_representations_have_weak_entity_tags_of_their_own() {
        for (etag, expected) in [("\"a\"", "W/\"a.zstd\""), ("W/\"a.car.all\"", "W/\"a.car.all.zstd\"")] {
            assert_eq!(encoded_etag(&HeaderValue::from_static(etag), Coding::Zstd), expected);
        }
    }

    #[test]
    fn file_names_are_sanitised() {
        let table = [
            ("/ipfs/x?filename=a.txt", None, "inline; filename=\"a.txt\""),
            ("/ipfs/x/b%20c.txt?download=true", None, "attachment; filename=\"b c.txt\""),
            ("/ipfs/x?filename=%22%0d%0aX:%20y", None, "inline; filename=\"___X: y\"; filename*=UTF-8''%22__X%3A%20y"),
            ("/ipfs/x?filename=../../etc", None, "inline; filename=\".._.._etc\""),
            ("/ipfs/x?filename=%C3%A4.txt", None, "inline; filename=\"_.txt\"; filename*=UTF-8''%C3%A4.txt"),
            ("/ipfs/x", Some("x.bin"), "attachment; filename=\"x.bin\""),
            ("/ipfs/x?filename=b", Some("x.bin"), "attachment; filename=\"b\""),
        ];
        for (target, fallback, expected) in table {
            let head = request(target, &[]);
            let ask = Ask::read(&head).expect("reads");
            assert_eq!(disposition(&ask, fallback.is_some(), fallback.map(str::to_owned)), expected, "{target}");
        }
    }
}
