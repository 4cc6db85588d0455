//! The last step of every response: what all of them carry, and what HTTP/1.0 needs.

use crate::body::{Body, Content};
use crate::errors::Problem;
use crate::metrics::Exchange;
use crate::server::Connection;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, CONTENT_LENGTH, HeaderMap, HeaderValue,
};
use std::sync::Arc;

/// A response that is complete but for what [`finish`] adds.
pub type Draft = Response<Content>;

/// A page of ours as a response.
pub fn page(response: Response<String>) -> Draft {
    let mut draft = response.map(|text| Content::Bytes(Bytes::from(text)));
    let length = draft.body().length().unwrap_or_default();
    draft.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    draft
}

/// Every origin may read what is public (<https://specs.ipfs.tech/http-gateways/path-gateway/#access-control-allow-origin-response-header>).
fn allow_every_origin(headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, OPTIONS"));
    headers.insert(
        ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("Content-Type, Range, User-Agent, X-Requested-With"),
    );
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(
            "Content-Length, Content-Range, X-Chunked-Output, X-Ipfs-Path, X-Ipfs-Roots, X-Stream-Output",
        ),
    );
}

/// Adds what every response has, and ties the body to the exchange that it ends.
pub fn finish(
    mut draft: Draft,
    head_only: bool,
    mut exchange: Exchange,
    connection: Arc<Connection>,
) -> Response<Body> {
    allow_every_origin(draft.headers_mut());
    exchange.head(draft.status());
    draft.map(|content| Body::counted(if head_only { Content::Empty } else { content }, exchange, Some(connection)))
}

/// For a client of HTTP/1.0, to whom a page of unknown length that broke off would look complete: collects the page.
///
/// # Errors
/// [`Problem::NeedsHttp11`] when it has more than `bytes_max`, or whatever the page broke off with.
pub async fn with_known_length(mut draft: Draft, bytes_max: u64) -> Result<Draft, Problem> {
    let Content::Page(stream) = draft.body_mut() else { return Ok(draft) };
    let mut collected = BytesMut::new();
    while let Some(chunk) = stream.next().await {
        collected.extend_from_slice(&chunk?);
        if collected.len() as u64 > bytes_max {
            return Err(Problem::NeedsHttp11 { max: bytes_max });
        }
    }
    draft.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(collected.len()));
    *draft.body_mut() = Content::Bytes(collected.freeze());
    Ok(draft)
}
