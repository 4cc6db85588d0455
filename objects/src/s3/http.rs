//! Our HTTP client below `object_store`: the workspace's reqwest, with AWS-LC and the certificates that the system
//! trusts or those of a file. It turns answers that are no success into errors of a known type, and bounds what is
//! read of an answer.

use super::endpoint::Endpoint;
use super::failure::{Certificate, Status};
use crate::error::OpenError;
use crate::options::StoreOptions;
use crate::tls::client_tls;
use futures::future::BoxFuture;
use http::header::RETRY_AFTER;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use reqwest::redirect::Policy;
use rustls::ClientConfig;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How much is read of an answer that is an error.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// How much is read of a listing: 1,000 objects with the longest names and every part that S3 knows.
const LISTING_BYTES_MAX: usize = 8 << 20;
/// How long a connection is kept without requests. Servers end them after a time of their own.
const IDLE: Duration = Duration::from_secs(20);
/// After how much time without data the operating system asks whether the server still exists.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Makes the clients: one for S3, and one for the source of credentials.
#[derive(Debug)]
pub(super) struct Connector {
    tls: ClientConfig,
    connect_timeout: Duration,
    request_timeout: Duration,
    addresses: Vec<(String, SocketAddr)>,
    /// The host and port of S3.
    authority: Arc<str>,
    bytes_max: usize,
}

impl Connector {
    pub(super) fn new(endpoint: &Endpoint, options: &StoreOptions) -> Result<Self, OpenError> {
        let bytes_max = usize::try_from(options.bytes_max).unwrap_or(usize::MAX);
        Ok(Self {
            tls: client_tls(&options.ca, "S3 servers").map_err(OpenError::new)?,
            connect_timeout: options.connect_timeout,
            request_timeout: options.request_timeout,
            addresses: options.addresses.clone(),
            authority: endpoint.authority.as_str().into(),
            bytes_max,
        })
    }

    fn client(&self, allow_http: bool) -> Result<reqwest::Client, reqwest::Error> {
        let builder = reqwest::Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .user_agent("causeway")
            .https_only(!allow_http)
            .http1_only()
            .no_proxy()
            // A signature is for one host, and `retry` decides about attempts.
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(self.connect_timeout)
            .timeout(self.request_timeout)
            .pool_idle_timeout(IDLE)
            .tcp_keepalive(KEEPALIVE);
        let with =
            |builder: reqwest::ClientBuilder, (host, address): &(String, SocketAddr)| builder.resolve(host, *address);
        self.addresses.iter().fold(builder, with).build()
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let client = self
            .client(allow_http)
            .map_err(|error| object_store::Error::Generic { store: "HTTP client", source: error.into() })?;
        Ok(HttpClient::new(Service { client, authority: Arc::clone(&self.authority), bytes_max: self.bytes_max }))
    }
}

#[derive(Debug)]
struct Service {
    client: reqwest::Client,
    authority: Arc<str>,
    bytes_max: usize,
}

impl Service {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let kind = Kind::of(&request, &self.authority);
        let answer = self.client.call(request).await.map_err(|error| match Certificate::of(&error) {
            // `object_store` does not repeat what it does not know.
            Some(certificate) => HttpError::new(HttpErrorKind::Unknown, certificate),
            None => error,
        })?;
        let (head, body) = answer.into_parts();
        let status = head.status.as_u16();
        let failed = |body: &[u8], after| {
            let is_s3 = !matches!(kind, Kind::Credentials);
            HttpError::new(HttpErrorKind::Unknown, Status::new(is_s3, status, body, after))
        };
        if kind.is_success(head.status) {
            let body = match kind {
                Kind::Object | Kind::Change => bounded(body, self.bytes_max),
                Kind::Listing => {
                    let listing = bounded(body, LISTING_BYTES_MAX).bytes().await?;
                    if !is_listing(&listing) {
                        return Err(failed(&listing, None));
                    }
                    HttpResponseBody::from(listing)
                }
                Kind::Credentials => {
                    let answer = bounded(body, ERROR_BYTES_MAX).bytes().await?;
                    let answer = answer.slice_ref(answer.trim_ascii());
                    if !is_document(&answer) && !answer.iter().all(u8::is_ascii_graphic) {
                        return Err(failed(b"", None));
                    }
                    HttpResponseBody::from(answer)
                }
            };
            return Ok(HttpResponse::from_parts(head, body));
        }
        // What is too long to be an error of S3's is none.
        let body = match bounded(body, ERROR_BYTES_MAX).bytes().await {
            Err(error) if error.kind() != HttpErrorKind::Decode => return Err(error),
            body => body.unwrap_or_default(),
        };
        let after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Err(failed(&body, after.map(Duration::from_secs)))
    }
}

/// What is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An object of S3's.
    Object,
    /// A page of a listing.
    Listing,
    /// That an object is written or deleted.
    Change,
    /// Something of the source of credentials: a token, a name or a document.
    Credentials,
}

impl Kind {
    fn of(request: &HttpRequest, authority: &str) -> Self {
        let uri = request.uri();
        if uri.authority().is_none_or(|of_request| of_request.as_str() != authority) {
            return Self::Credentials;
        }
        let is_listing = uri.query().is_some_and(|query| query.split('&').any(|part| part == "list-type=2"));
        match *request.method() {
            Method::GET if is_listing => Self::Listing,
            Method::GET => Self::Object,
            _ => Self::Change,
        }
    }

    /// Whether it was answered as S3 answers. Any other success is that of another kind of server, such as a proxy's
    /// page, or a part of an object.
    fn is_success(self, status: StatusCode) -> bool {
        match self {
            Self::Object | Self::Listing => status == StatusCode::OK,
            Self::Change => matches!(status, StatusCode::OK | StatusCode::NO_CONTENT),
            Self::Credentials => status.is_success(),
        }
    }
}

/// Whether a document is a page of a listing of `ListObjectsV2`
/// (<https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html>) that says how to go on. `object_store`
/// takes every other document for a listing without objects.
fn is_listing(document: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(document) else { return false };
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let root = match text.strip_prefix("<?") {
        Some(declaration) => declaration.split_once("?>").map_or("", |(_, root)| root.trim_start()),
        None => text,
    };
    let is_root =
        root.strip_prefix("<ListBucketResult").is_some_and(|rest| rest.starts_with([' ', '>', '\n', '\t', '\r']));
    let is_last = root.contains("<IsTruncated>false<");
    let goes_on = root.contains("<IsTruncated>true<") && root.contains("<NextContinuationToken>");
    is_root && (is_last || goes_on)
}

/// Whether an answer is in JSON or XML.
fn is_document(answer: &[u8]) -> bool {
    matches!(answer.first(), Some(b'{' | b'<'))
}

impl HttpService for Service {
    // What `async_trait` makes of `async fn call(&self, request: HttpRequest)`.
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(self.send(request))
    }
}

/// A body that fails when it is longer than that.
fn bounded(body: HttpResponseBody, bytes_max: usize) -> HttpResponseBody {
    HttpResponseBody::new(Limited::new(body, bytes_max).map_err(|error| match error.downcast::<HttpError>() {
        Ok(error) => *error,
        Err(error) if error.is::<LengthLimitError>() => HttpError::new_boxed(HttpErrorKind::Decode, error),
        Err(error) => HttpError::new_boxed(HttpErrorKind::Unknown, error),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listings_are_listings() {
        let head =
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/\">";
        let table = [
            (format!("{head}<IsTruncated>false</IsTruncated></ListBucketResult>"), true),
            ("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>".to_owned(), true),
            (format!("{head}<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"), true),
            // Version 1, whose next page is requested otherwise.
            (format!("{head}<IsTruncated>true</IsTruncated><NextMarker>x</NextMarker></ListBucketResult>"), false),
            (format!("{head}</ListBucketResult>"), false),
            ("<ListAllMyBucketsResult><IsTruncated>false</IsTruncated></ListAllMyBucketsResult>".to_owned(), false),
            ("<ListBucketResults><IsTruncated>false</IsTruncated>".to_owned(), false),
            ("<!DOCTYPE html><html><body>Welcome</body></html>".to_owned(), false),
            (String::new(), false),
        ];
        for (document, expected) in table {
            assert_eq!(is_listing(document.as_bytes()), expected, "{document}");
        }
    }

    #[test]
    fn only_answers_of_s3_are_successes() {
        let table = [
            (Kind::Object, 200, true),
            (Kind::Object, 206, false),
            (Kind::Object, 204, false),
            (Kind::Listing, 200, true),
            (Kind::Listing, 203, false),
            (Kind::Change, 204, true),
            (Kind::Change, 202, false),
            (Kind::Credentials, 200, true),
            (Kind::Credentials, 404, false),
        ];
        for (kind, status, expected) in table {
            let status = StatusCode::from_u16(status).expect("is a status");
            assert_eq!(kind.is_success(status), expected, "{kind:?} {status}");
        }
    }

    #[tokio::test]
    async fn no_more_is_read_of_a_body_than_allowed() {
        for (bytes, fits) in [(9, true), (10, true), (11, false)] {
            let body = bounded(HttpResponseBody::from(vec![0_u8; bytes]), 10);
            assert_eq!(body.bytes().await.is_ok(), fits, "{bytes}");
        }
    }
}
