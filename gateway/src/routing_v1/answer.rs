//! Responses of the routing API.

use super::Audience;
use crate::body::Content;
use crate::headers::header;
use crate::represent::record::etag;
use crate::request::conditional::{http_date, none_match};
use crate::respond::Draft;
use bytes::Bytes;
use content::ipns::Record;
use content::names::Key;
use futures::stream::{self, BoxStream, StreamExt as _};
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, ETAG, EXPIRES, HeaderMap, HeaderValue,
    LAST_MODIFIED, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use p2p_bridge::routing_v1::client::{IPNS_RECORD, JSON, NDJSON};
use p2p_bridge::routing_v1::{PeerRecord, types};
use std::time::{Duration, SystemTime};

/// The `max-age` of a response with records (<https://specs.ipfs.tech/routing/http-routing-v1/#response-headers>).
const MAX_AGE_WITH_RECORDS: Duration = Duration::from_secs(300);
/// The `max-age` of a response without records.
const MAX_AGE_WITHOUT_RECORDS: Duration = Duration::from_secs(15);
/// How long a stale response may be used: the validity of provider records.
const STALE_MAX_AGE: Duration = Duration::from_secs(48 * 3600);

/// `Cache-Control` with stale-while-revalidate and stale-if-error.
fn cache_control(fresh: Duration, stale: Duration) -> HeaderValue {
    let (fresh, stale) = (fresh.as_secs(), stale.as_secs());
    header(&format!("public, max-age={fresh}, stale-while-revalidate={stale}, stale-if-error={stale}"))
}

/// Responses to the local network may contain private addresses, so shared caches must not store them.
fn records_cache_control(any: bool, audience: Audience) -> HeaderValue {
    let fresh = if any { MAX_AGE_WITH_RECORDS } else { MAX_AGE_WITHOUT_RECORDS };
    match audience {
        Audience::Outside => cache_control(fresh, STALE_MAX_AGE),
        Audience::Inside => header(&format!("private, max-age={}", fresh.as_secs())),
    }
}

/// A response without a body.
fn head(content_type: &'static str, cache_control: HeaderValue) -> Draft {
    let mut draft = Response::new(Content::Empty);
    let headers = draft.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, cache_control);
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(now) = http_date(SystemTime::now()) {
        headers.insert(LAST_MODIFIED, now);
    }
    draft
}

fn with_bytes(mut draft: Draft, bytes: impl Into<Bytes>) -> Draft {
    let bytes = bytes.into();
    draft.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    draft.map(|_| Content::Bytes(bytes))
}

/// A response with all records in one JSON object.
pub fn list(name: &str, records: &[PeerRecord], audience: Audience) -> Draft {
    with_bytes(head(JSON, records_cache_control(!records.is_empty(), audience)), types::to_json_list(name, records))
}

/// A streamed response with one record a line, and whether it has any. Its head waits for the first record, on which
/// the `max-age` depends.
pub async fn lines(mut records: BoxStream<'static, PeerRecord>, audience: Audience) -> (Draft, bool) {
    let first = records.next().await;
    let any = first.is_some();
    let line = |record: PeerRecord| Ok(Bytes::from(record.to_json() + "\n"));
    let stream = stream::iter(first).chain(records).map(line).boxed();
    let draft = head(NDJSON, records_cache_control(any, audience));
    if !any {
        return (with_bytes(draft, Bytes::new()), false);
    }
    (draft.map(|_| Content::Stream { stream, remaining: None }), true)
}

/// An IPNS record.
pub fn record(key: &Key, record: &Record, request: &HeaderMap) -> Draft {
    let left = record.end_of_life().duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
    let fresh = record.ttl().min(left);
    let mut draft = head(IPNS_RECORD, cache_control(fresh, left));
    let etag = etag(record.bytes());
    let headers = draft.headers_mut();
    headers.insert(ETAG, etag.clone());
    headers.insert(CONTENT_DISPOSITION, header(&format!("attachment; filename=\"{key}.ipns-record\"")));
    if let Some(end) = http_date(record.end_of_life()) {
        headers.insert(EXPIRES, end);
    }
    if none_match(request, etag.as_bytes(), true) {
        *draft.status_mut() = StatusCode::NOT_MODIFIED;
        return draft;
    }
    with_bytes(draft, record.bytes().clone())
}

/// A response with the reason why there is no record (IPIP-0513).
pub fn no_record(reason: &str) -> Draft {
    with_bytes(
        head("text/plain; charset=utf-8", records_cache_control(false, Audience::Outside)),
        format!("{reason}\n"),
    )
}
