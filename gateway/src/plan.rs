//! What a response will be: decided without I/O, from the request's head and what the path leads to.

use crate::conditional::{none_match, range_counts};
use crate::negotiate;
use crate::range::{Selection, select};
use crate::request::Ask;
use crate::resolve::{Entity, Trail};
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap,
    HeaderName, HeaderValue, LOCATION, RANGE, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::ops::Range;

/// Content below a CID never changes (<https://specs.ipfs.tech/http-gateways/path-gateway/#cache-control-response-header>).
pub const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=29030400, immutable");
/// Generated listings may look different after an update of this software.
pub const LISTING_CACHE: HeaderValue =
    HeaderValue::from_static("public, max-age=604800, stale-while-revalidate=2678400");

const X_IPFS_PATH: HeaderName = HeaderName::from_static("x-ipfs-path");
const X_IPFS_ROOTS: HeaderName = HeaderName::from_static("x-ipfs-roots");
const RAW_TYPE: HeaderValue = HeaderValue::from_static(negotiate::RAW);

/// What is sent of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The client has it (304).
    NotModified,
    /// The range is outside (416).
    Unsatisfiable,
    /// All of it (200).
    Whole,
    /// A part (206).
    Part(Range<u64>),
}

impl Decision {
    /// Decides by the request's conditions and range.
    pub fn of(ask: &Ask<'_>, etag: &HeaderValue, size: u64) -> Self {
        if none_match(ask.headers, etag.as_bytes(), true) {
            return Self::NotModified;
        }
        let range = ask.headers.get(RANGE).filter(|_| range_counts(ask.headers, etag.as_bytes()));
        match select(range, size) {
            Selection::Whole => Self::Whole,
            Selection::Part(range) => Self::Part(range),
            Selection::Unsatisfiable => Self::Unsatisfiable,
        }
    }

    /// The bytes that are sent; `None` when there is no body.
    pub fn range(&self, size: u64) -> Option<Range<u64>> {
        match self {
            Self::NotModified | Self::Unsatisfiable => None,
            Self::Whole => Some(0..size),
            Self::Part(range) => Some(range.clone()),
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NotModified => StatusCode::NOT_MODIFIED,
            Self::Unsatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::Whole => StatusCode::OK,
            Self::Part(_) => StatusCode::PARTIAL_CONTENT,
        }
    }
}

/// The head of a response, before it has a body.
pub type Head = Response<()>;

fn head(status: StatusCode, headers: HeaderMap) -> Head {
    let mut head = Response::new(());
    *head.status_mut() = status;
    *head.headers_mut() = headers;
    head
}

/// The head for a file of which `decision` is sent.
pub fn file(ask: &Ask<'_>, entity: &Entity, decision: &Decision) -> Head {
    let mut headers = common(&entity.etag, IMMUTABLE);
    trail(&mut headers, &entity.trail);
    body_headers(&mut headers, decision, entity.size);
    if decision.range(entity.size).is_some() {
        let by_filename = ask.filename.as_deref().and_then(crate::content_type::by_name);
        if let Some(content_type) = by_filename.or_else(|| entity.content_type.clone()) {
            headers.insert(CONTENT_TYPE, content_type);
        }
        if ask.filename.is_some() || ask.download {
            headers.insert(CONTENT_DISPOSITION, disposition(ask, None));
        }
    }
    head(decision.status(), headers)
}

/// The head for one block as it is hashed.
pub fn raw(ask: &Ask<'_>, entity: &Entity, decision: &Decision) -> Head {
    let mut headers = common(&entity.etag, IMMUTABLE);
    trail(&mut headers, &entity.trail);
    body_headers(&mut headers, decision, entity.size);
    if decision.range(entity.size).is_some() {
        headers.insert(CONTENT_TYPE, RAW_TYPE);
        headers.insert(CONTENT_DISPOSITION, disposition(ask, Some(format!("{}.bin", entity.cid))));
    }
    head(decision.status(), headers)
}

/// The head for a generated listing.
pub fn listing(etag: &HeaderValue, way: &Trail) -> Head {
    let mut headers = common(etag, LISTING_CACHE);
    trail(&mut headers, way);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    head(StatusCode::OK, headers)
}

/// The head of a 304 that needs no block.
pub fn not_modified(etag: &HeaderValue, cache_control: HeaderValue, way: &Trail) -> Head {
    let mut headers = common(etag, cache_control);
    trail(&mut headers, way);
    head(StatusCode::NOT_MODIFIED, headers)
}

/// To the same path with a slash at its end, keeping the query
/// (<https://specs.ipfs.tech/http-gateways/path-gateway/#301-moved-permanently>).
pub fn add_slash(ask: &Ask<'_>, way: &Trail) -> Head {
    let query = ask.query.map(|query| format!("?{query}")).unwrap_or_default();
    let mut headers = HeaderMap::with_capacity(12);
    headers.insert(LOCATION, crate::resolve::header(&format!("{}/{query}", ask.path)));
    headers.insert(CACHE_CONTROL, IMMUTABLE);
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    trail(&mut headers, way);
    head(StatusCode::MOVED_PERMANENTLY, headers)
}

/// To another place, for now.
pub fn redirect(location: HeaderValue) -> Head {
    let headers = HeaderMap::from_iter([(LOCATION, location), (CACHE_CONTROL, HeaderValue::from_static("no-cache"))]);
    head(StatusCode::FOUND, headers)
}

/// What 200, 206, 304 and 416 have in common (RFC 9110, section 15.4.5).
fn common(etag: &HeaderValue, cache_control: HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(20);
    headers.insert(ETAG, etag.clone());
    headers.insert(CACHE_CONTROL, cache_control);
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers
}

fn trail(headers: &mut HeaderMap, trail: &Trail) {
    headers.insert(X_IPFS_PATH, trail.path.clone());
    headers.insert(X_IPFS_ROOTS, trail.roots.clone());
}

fn body_headers(headers: &mut HeaderMap, decision: &Decision, size: u64) {
    match decision {
        Decision::NotModified => return,
        Decision::Unsatisfiable => {
            headers.insert(CONTENT_RANGE, crate::resolve::header(&format!("bytes */{size}")));
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            return;
        }
        Decision::Whole => _ = headers.insert(CONTENT_LENGTH, HeaderValue::from(size)),
        Decision::Part(Range { start, end }) => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(end - start));
            let range = format!("bytes {start}-{}/{size}", end.saturating_sub(1));
            headers.insert(CONTENT_RANGE, crate::resolve::header(&range));
        }
    }
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// Characters that RFC 8187 allows unencoded in `filename*`.
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

/// `Content-Disposition` (RFC 6266): a quoted ASCII name, and the true one if that differs. A `fallback` is the name of
/// something that is not for showing.
fn disposition(ask: &Ask<'_>, fallback: Option<String>) -> HeaderValue {
    let kind = if ask.download || fallback.is_some() { "attachment" } else { "inline" };
    let from_path = || Some(ask.path.trim_end_matches('/').rsplit('/').next()?.to_owned()).map(|name| decoded(&name));
    let name = ask.filename.clone().or(fallback).or_else(from_path).unwrap_or_default();
    let name: String = name.chars().map(|c| if c.is_control() || matches!(c, '/' | '\\') { '_' } else { c }).collect();
    let ascii: String = name.chars().map(|c| if !c.is_ascii() || c == '"' { '_' } else { c }).collect();
    if ascii == name {
        return crate::resolve::header(&format!("{kind}; filename=\"{ascii}\""));
    }
    let encoded = utf8_percent_encode(&name, PLAIN);
    crate::resolve::header(&format!("{kind}; filename=\"{ascii}\"; filename*=UTF-8''{encoded}"))
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
        let table: [(&[(&str, &str)], Decision); 7] = [
            (&[], Decision::Whole),
            (&[("range", "bytes=1-2")], Decision::Part(1..3)),
            (&[("range", "bytes=10-")], Decision::Unsatisfiable),
            (&[("range", "bytes=1-2"), ("if-none-match", "\"a\"")], Decision::NotModified),
            (&[("range", "bytes=1-2"), ("if-range", "\"a\"")], Decision::Part(1..3)),
            (&[("range", "bytes=1-2"), ("if-range", "\"b\"")], Decision::Whole),
            (&[("if-none-match", "\"b\"")], Decision::Whole),
        ];
        for (headers, expected) in table {
            let head = request("/ipfs/x", headers);
            assert_eq!(Decision::of(&Ask::read(&head).expect("reads"), &etag, 10), expected, "{headers:?}");
        }
    }

    #[test]
    fn file_names_are_made_safe() {
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
            assert_eq!(disposition(&ask, fallback.map(str::to_owned)), expected, "{target}");
        }
    }
}
