//! Parsing of a request's head.
//!
//! Goals: pure functions with table tests. The only exception is [`route`], which looks up whether a host name has a
//! DNSLink.
//!
//! Non-goals: content, which [`crate::resolve`] finds.
//!
//! | module | concern |
//! |---|---|
//! | [`client`] | the client's address, and the requested host: `X-Forwarded-*` of trusted proxies |
//! | [`negotiate`] | formats and content codings: `?format=`, `Accept`, `Accept-Encoding` |
//! | [`hosts`], [`route`] | the meaning of host names, and routing |
//! | [`conditional`] | conditional requests |
//! | [`range`] | range requests |

pub mod client;
pub mod conditional;
mod error;
pub mod hosts;
pub mod negotiate;
pub mod range;
pub mod route;

pub use self::error::RequestError;

use self::negotiate::Wanted;
use http::header::{CACHE_CONTROL, HOST};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Version};
use services::url::{parameter, parameter_bytes};
use std::borrow::Cow;

/// The path prefix of the routing API (<https://specs.ipfs.tech/routing/http-routing-v1/>).
pub const ROUTING: &str = "/routing/v1/";

/// The kind of a request, by its method and path.
#[derive(Debug, PartialEq, Eq)]
pub enum Subject {
    /// A CORS preflight, or any other `OPTIONS`.
    Options,
    /// `CONNECT`: a tunnel for requests to this gateway.
    Tunnel,
    /// `/healthz`: liveness.
    Health,
    /// `/readyz`: readiness.
    Ready,
    /// A path below `/routing/v1/`.
    Routing,
    /// Any other path, whose meaning depends on the host.
    Content,
}

/// Checks that an HTTP/1.1 request has exactly one valid header `Host`, and an older one at most one (RFC 9112, section
/// 3.2). With several, a proxy in front could use another one than the gateway. An HTTP/2 request with `:authority` has
/// none, or the same (RFC 9113, section 8.3.1).
///
/// # Errors
/// [`RequestError::Host`].
pub fn check_host(head: &Parts) -> Result<(), RequestError> {
    let mut hosts = head.headers.get_all(HOST).iter();
    if head.version >= Version::HTTP_2
        && let Some(authority) = head.uri.authority()
    {
        let same = |host: &HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
        let is_good = !authority.as_str().contains('@') && hosts.all(same);
        return if is_good { Ok(()) } else { Err(RequestError::Host) };
    }
    let is_good = match (hosts.next(), hosts.next()) {
        (None, _) => head.version < Version::HTTP_11,
        // URIs without a host have an empty one.
        (Some(host), None) => host.is_empty() || is_authority(host),
        (Some(_), Some(_)) => false,
    };
    if is_good { Ok(()) } else { Err(RequestError::Host) }
}

fn is_authority(host: &HeaderValue) -> bool {
    let authority = Authority::try_from(host.as_bytes());
    authority.is_ok_and(|authority| !authority.as_str().contains('@'))
}

/// Whether a path is a health check, which is answered without admission.
pub fn is_health_check(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// The kind of a request.
///
/// # Errors
/// [`RequestError`] when the method or the length of the URL is not accepted.
pub fn subject(head: &Parts, url_bytes_max: usize) -> Result<Subject, RequestError> {
    let path = head.uri.path();
    match head.method {
        Method::OPTIONS => return Ok(Subject::Options),
        Method::CONNECT => return Ok(Subject::Tunnel),
        Method::GET | Method::HEAD => {}
        _ => return Err(RequestError::Method),
    }
    if path.len() + head.uri.query().map_or(0, str::len) > url_bytes_max {
        return Err(RequestError::UrlTooLong { max: url_bytes_max });
    }
    match path {
        "/healthz" => Ok(Subject::Health),
        "/readyz" => Ok(Subject::Ready),
        _ if path.starts_with(ROUTING) => Ok(Subject::Routing),
        _ => Ok(Subject::Content),
    }
}

/// A request for content.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// Whether the method is HEAD.
    pub head_only: bool,
    /// The path of the URL as sent, percent-encoded: the base of links and redirects.
    pub sent: &'a str,
    /// The content path, percent-encoded: that of the URL, or of the site that the origin belongs to.
    pub path: Cow<'a, str>,
    /// The query as sent.
    pub query: Option<&'a str>,
    /// The headers with conditions, ranges and formats.
    pub headers: &'a HeaderMap,
    /// The requested format.
    pub wanted: Wanted,
    /// `?filename=`: the name of the file, which also determines its media type.
    pub filename: Option<String>,
    /// `?download=true`: send the content as an attachment.
    pub download: bool,
    /// `Cache-Control: only-if-cached`: do not fetch from the network.
    pub only_if_cached: bool,
}

impl<'a> Ask<'a> {
    /// Parses a request's head.
    ///
    /// # Errors
    /// [`RequestError::Format`] when the format is not supported.
    pub fn read(head: &'a Parts) -> Result<Self, RequestError> {
        let query = head.uri.query();
        let parameter = |name| query.and_then(|query| parameter(query, name));
        Ok(Self {
            head_only: head.method == Method::HEAD,
            sent: single_leading_slash(head.uri.path()),
            path: Cow::Borrowed(single_leading_slash(head.uri.path())),
            query,
            headers: &head.headers,
            wanted: negotiate::wanted(parameter("format").as_deref(), &head.headers)?,
            filename: parameter("filename").filter(|name| !name.is_empty()).map(Cow::into_owned),
            download: parameter("download").is_some_and(|value| value == "true"),
            only_if_cached: only_if_cached(&head.headers),
        })
    }

    /// The first value of a query parameter, decoded.
    pub fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        parameter(self.query?, name)
    }

    /// The same as bytes, which need not be UTF-8.
    pub fn parameter_bytes(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        parameter_bytes(self.query?, name)
    }
}

/// A path with one leading slash: a link that is made from a path with two would lead to another host.
fn single_leading_slash(path: &str) -> &str {
    let rest = path.trim_start_matches('/');
    // An absolute URI may have an empty path.
    if path.is_empty() { "/" } else { &path[path.len() - rest.len() - usize::from(rest.len() < path.len())..] }
}

fn only_if_cached(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|directive| directive.trim().eq_ignore_ascii_case("only-if-cached"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn head(method: &str, target: &str) -> Parts {
        Request::builder().method(method).uri(target).body(()).expect("a request").into_parts().0
    }

    #[test]
    fn requests_are_classified_by_method_and_path() {
        let table = [
            ("GET", "/", Ok(Subject::Content)),
            ("HEAD", "/ipfs/bafy", Ok(Subject::Content)),
            ("GET", "/healthz", Ok(Subject::Health)),
            ("GET", "/readyz", Ok(Subject::Ready)),
            ("GET", "/routing/v1/providers/bafy", Ok(Subject::Routing)),
            ("GET", "/routing/v1", Ok(Subject::Content)),
            ("OPTIONS", "/anything", Ok(Subject::Options)),
            ("CONNECT", "example.com:80", Ok(Subject::Tunnel)),
            ("POST", "/ipfs/bafy", Err(RequestError::Method)),
            ("GET", "/ipfs/0123456789012345678901234567890?q", Err(RequestError::UrlTooLong { max: 32 })),
        ];
        for (method, target, expected) in table {
            assert_eq!(subject(&head(method, target), 32), expected, "{method} {target}");
        }
    }

    #[test]
    fn an_http2_request_has_one_host() {
        let table: [(&str, &[&str], bool); 8] = [
            ("https://a.example/", &[], true),
            ("https://a.example:8443/", &["A.example:8443"], true),
            ("https://a.example/", &["b.example"], false),
            ("https://a.example/", &["a.example", "b.example"], false),
            ("https://user@a.example/", &[], false),
            ("/", &["a.example"], true),
            ("/", &[], false),
            ("/", &["a.example", "a.example"], false),
        ];
        for (target, hosts, is_good) in table {
            let builder = Request::builder().version(Version::HTTP_2).uri(target);
            let request = hosts.iter().fold(builder, |builder, host| builder.header(HOST, *host)).body(());
            let head = request.expect("a request").into_parts().0;
            assert_eq!(check_host(&head).is_ok(), is_good, "{target} {hosts:?}");
        }
    }

    #[test]
    fn parameters_are_decoded_once() {
        let read = |query: &str| {
            let head = head("GET", &format!("/ipfs/x?{query}"));
            let ask = Ask::read(&head).expect("is supported");
            (ask.filename, ask.download)
        };
        assert_eq!(read("filename=a+b%2Bc%2525.txt&download=true"), (Some("a b+c%25.txt".to_owned()), true));
        assert_eq!(read("download&filename="), (None, false));
        assert_eq!(read("xfilename=no&filename=a&filename=b"), (Some("a".to_owned()), false));
        assert!(Ask::read(&head("GET", "/ipfs/x?format=bogus")).is_err());
    }

    #[test]
    fn no_path_begins_with_two_slashes() {
        for (target, expected) in [("//evil.example/a//b", "/evil.example/a//b"), ("///", "/"), ("/a", "/a")] {
            assert_eq!(single_leading_slash(target), expected, "{target}");
        }
        assert_eq!(single_leading_slash(""), "/");
    }

    #[test]
    fn only_if_cached_is_one_directive_of_a_list() {
        let table = [("only-if-cached", true), ("no-store, Only-If-Cached", true), ("max-age=0", false), ("", false)];
        for (value, expected) in table {
            let request = Request::builder().uri("/ipfs/x").header("cache-control", value).body(()).expect("a request");
            let head = request.into_parts().0;
            assert_eq!(Ask::read(&head).expect("reads").only_if_cached, expected, "{value}");
        }
    }
}
