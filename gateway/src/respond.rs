//! The last step of every response: common headers, and buffering for HTTP/1.0.

use crate::body::{Body, BodyLimits, Content, ListedRequest};
use crate::errors::Problem;
use crate::headers::header;
use crate::limits::ClientMemory;
use crate::listen::connection::Connection;
use crate::metrics::Exchange;
use crate::prefetch::{Page, PageTap};
use crate::resolve::source::Tier;
use bytes::{Bytes, BytesMut};
use content::budget::Share;
use content::cid;
use futures::StreamExt as _;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue,
};
use http::{Response, StatusCode};
use services::limiter::Permit;
use services::surrogate_keys;
use std::sync::Arc;
use std::time::Duration;

/// The surrogate keys of a response; before [`add_surrogate_keys`], the one that is not among its roots.
pub const SURROGATE_KEY: HeaderName = HeaderName::from_static("surrogate-key");
const CACHE_TAG: HeaderName = HeaderName::from_static("cache-tag");

/// The maximum number of a path's CIDs among the surrogate keys.
const ROOTS_KEYED_MAX: usize = 16;

/// A response before [`finish`].
pub type Draft = Response<Content>;

/// A generated page as a response.
pub fn page(response: Response<String>) -> Draft {
    let mut draft = response.map(|text| Content::Bytes(Bytes::from(text)));
    let length = draft.body().length().unwrap_or_default();
    draft.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    draft
}

/// Limits the age in shared caches: adds `s-maxage` (RFC 9111, section 5.2.2.10) if `max-age`, which then applies to
/// private caches only, is longer.
pub fn bound_shared_age(headers: &mut HeaderMap, seconds: u64) {
    let Some(cache_control) = headers.get(CACHE_CONTROL).and_then(|value| value.to_str().ok()) else { return };
    let directives = || cache_control.split(',').map(str::trim);
    let max_age = directives().find_map(|directive| directive.strip_prefix("max-age=")?.parse::<u64>().ok());
    let is_shared = directives().any(|directive| directive == "public");
    if is_shared && max_age.is_some_and(|max_age| max_age > seconds) {
        let bounded = header(&format!("{cache_control}, s-maxage={seconds}"));
        headers.insert(CACHE_CONTROL, bounded);
    }
}

/// Adds the surrogate keys, by which content delivery networks purge: the CIDs on the response's path, beginning with
/// the root, that of the `index.html` which represents a directory, and the name if the path has one. `Surrogate-Key`
/// separates them by spaces, `Cache-Tag` by commas. Responses without content have none, since they are cached only for
/// a short time. A 304 may come from the root's CID alone, and has none either, so that a cache keeps those of its copy
/// (RFC 9111, section 3.2).
pub fn add_surrogate_keys(status: StatusCode, headers: &mut HeaderMap) {
    let further = headers.remove(SURROGATE_KEY);
    if status == StatusCode::NOT_MODIFIED {
        return;
    }
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let roots: Vec<&str> = text("x-ipfs-roots").unwrap_or_default().split(',').collect();
    // The root and the last CIDs: the content and its nearest parent directories.
    let skipped = roots.len().saturating_sub(ROOTS_KEYED_MAX - 1).max(1);
    let keyed = roots.iter().take(1).chain(roots.iter().skip(skipped));
    let keyed = keyed.filter_map(|root| cid::parse(root).ok()).map(|root| surrogate_keys::of_root(&root));
    let further = further.as_ref().and_then(|key| key.to_str().ok()).map(str::to_owned);
    let name = text("x-ipfs-path").and_then(surrogate_keys::of_path);
    let mut keys: Vec<String> = Vec::new();
    for key in keyed.chain(further).chain(name) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    if !keys.is_empty() {
        headers.insert(SURROGATE_KEY, header(&keys.join(" ")));
        headers.insert(CACHE_TAG, header(&keys.join(",")));
    }
}

/// CORS for all origins
/// (<https://specs.ipfs.tech/http-gateways/path-gateway/#access-control-allow-origin-response-header>).
fn allow_every_origin(headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, OPTIONS"));
    headers.insert(
        ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("Content-Type, If-None-Match, If-Range, Range, User-Agent, X-Requested-With"),
    );
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(
            "Content-Length, Content-Location, Content-Range, ETag, Server-Timing, X-Chunked-Output, X-Ipfs-Path, \
             X-Ipfs-Roots, X-Stream-Output",
        ),
    );
}

/// The parameters of [`finish`].
pub struct Finish {
    /// Whether the method is HEAD.
    pub head_only: bool,
    /// The exchange of the request.
    pub exchange: Exchange,
    /// The connection.
    pub connection: Arc<Connection>,
    /// The maximum length of the response, in bytes.
    pub response_bytes_max: u64,
    /// The timeout of the exchange.
    pub request_timeout: Duration,
    /// The request's entry in the list of running requests, if it has one.
    pub listed: Option<ListedRequest>,
    /// The permit of a client whose requests are limited.
    pub permit: Option<Permit>,
}

/// Adds the common headers, and attaches the exchange to the body, which ends it.
pub fn finish(mut draft: Draft, finish: Finish) -> Response<Body> {
    let Finish { head_only, mut exchange, connection, response_bytes_max, request_timeout, listed, permit } = finish;
    allow_every_origin(draft.headers_mut());
    let took = header(&format!("total;dur={:.3}", exchange.elapsed().as_secs_f64() * 1e3));
    draft.headers_mut().append("server-timing", took);
    exchange.head(draft.status(), draft.headers(), Tier::named_in(draft.headers()));
    if let Some(listed) = &listed {
        listed.entry.answered(draft.status());
    }
    let page = draft.extensions_mut().remove::<Arc<Page>>().filter(|_| !head_only).map(PageTap::new);
    let limits = BodyLimits { bytes_max: response_bytes_max, deadline: exchange.started() + request_timeout };
    let body = |content| Body::new(if head_only { Content::Empty } else { content }, exchange, connection, limits);
    draft.map(|content| body(content).listed(listed).with_page(page).with_permit(permit))
}

/// A buffered body, counted against the memory of its client.
struct BufferedBody {
    bytes: BytesMut,
    _share: Share,
}

impl AsRef<[u8]> for BufferedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Buffers a page of unknown length for an HTTP/1.0 client, to which an aborted page would look complete. The buffer
/// counts against `memory` until it is sent.
///
/// # Errors
/// [`Problem::NeedsHttp11`] when the page exceeds `bytes_max`, [`Problem::Http10BufferFull`] when the budget is used
/// up, or the error of the page.
pub async fn with_known_length(mut draft: Draft, bytes_max: u64, memory: ClientMemory<'_>) -> Result<Draft, Problem> {
    let Content::Stream { stream, remaining: None } = draft.body_mut() else { return Ok(draft) };
    let (mut collected, mut share) = (BytesMut::new(), memory.share());
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        if (collected.len() + chunk.len()) as u64 > bytes_max {
            return Err(Problem::NeedsHttp11 { max: bytes_max });
        }
        if !share.grow(chunk.len()) {
            return Err(Problem::Http10BufferFull);
        }
        collected.extend_from_slice(&chunk);
    }
    draft.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(collected.len()));
    *draft.body_mut() = Content::Bytes(Bytes::from_owner(BufferedBody { bytes: collected, _share: share }));
    Ok(draft)
}
