//! What a request asks for, read from its head.
//!
//! Goals: pure functions with tables of tests. The one exception is [`route`], which has to know whether a host name is a website.
//!
//! Non-goals: content, which [`crate::resolve`] finds.
//!
//! | module | concern |
//! |---|---|
//! | [`client`] | the address of the client, and the host name that it asks: `X-Forwarded-*` of trusted proxies |
//! | [`negotiate`] | formats and content codings: `?format=`, `Accept`, `Accept-Encoding` |
//! | [`hosts`], [`route`] | what a host name stands for, and where that leads |
//! | [`conditional`] | conditional requests: `If-None-Match` and its kin |
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

/// Where the paths of the routing API begin (<https://specs.ipfs.tech/routing/http-routing-v1/>).
pub const ROUTING: &str = "/routing/v1/";

/// What a request is about, by its method and path.
#[derive(Debug, PartialEq, Eq)]
pub enum Subject {
    /// A CORS preflight, or any other `OPTIONS`.
    Options,
    /// A tunnel, through which requests for the sites here follow.
    Tunnel,
    /// `/healthz`: whether the process runs.
    Health,
    /// `/readyz`: whether it can answer.
    Ready,
    /// Something below `/routing/v1/`: where providers, peers and records are to be found.
    Routing,
    /// Anything else: where it leads depends on the host.
    Content,
}

/// That a request of HTTP/1.1 has one header `Host`, and no request more than one, and that it can be understood (RFC 9112, section
/// 3.2). A proxy in front may have gone by another one than we would.
///
/// # Errors
/// [`RequestError::Host`].
pub fn check_host(head: &Parts) -> Result<(), RequestError> {
    let mut hosts = head.headers.get_all(HOST).iter();
    let is_good = match (hosts.next(), hosts.next()) {
        (None, _) => head.version < Version::HTTP_11,
        // An empty one is for URLs without a host.
        (Some(host), None) => host.is_empty() || is_authority(host),
        (Some(_), Some(_)) => false,
    };
    if is_good { Ok(()) } else { Err(RequestError::Host) }
}

fn is_authority(host: &HeaderValue) -> bool {
    let authority = Authority::try_from(host.as_bytes());
    authority.is_ok_and(|authority| !authority.as_str().contains('@'))
}

/// Whether a path asks for the health of the process, which is answered however many connections there are.
pub fn is_about_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Sorts a request.
///
/// # Errors
/// [`RequestError`] when nothing here answers it.
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
    /// Whether only the head is wanted.
    pub head_only: bool,
    /// The path of the URL as it was sent, percent-encoded: what links and redirects go by.
    pub sent: &'a str,
    /// The path to the content, percent-encoded: the same, or what it stands for below the origin that was asked.
    pub path: Cow<'a, str>,
    /// The query as it was sent.
    pub query: Option<&'a str>,
    /// The headers that conditions, ranges and formats are read from.
    pub headers: &'a HeaderMap,
    /// The format of the answer.
    pub wanted: Wanted,
    /// `?filename=`: what the file is to be called, and typed by.
    pub filename: Option<String>,
    /// `?download=true`: to be saved rather than shown.
    pub download: bool,
    /// `Cache-Control: only-if-cached`: not to be fetched from anybody.
    pub only_if_cached: bool,
}

impl<'a> Ask<'a> {
    /// Reads a request's head.
    ///
    /// # Errors
    /// [`RequestError::Format`] when the format does not exist.
    pub fn read(head: &'a Parts) -> Result<Self, RequestError> {
        let query = head.uri.query();
        let parameter = |name| query.and_then(|query| parameter(query, name));
        Ok(Self {
            head_only: head.method == Method::HEAD,
            sent: one_slash(head.uri.path()),
            path: Cow::Borrowed(one_slash(head.uri.path())),
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

    /// The same, where it need not be text.
    pub fn parameter_bytes(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        parameter_bytes(self.query?, name)
    }
}

/// A path with one slash at its beginning: two of them would make an address of another host out of a link that is made
/// from it.
fn one_slash(path: &str) -> &str {
    let rest = path.trim_start_matches('/');
    // An absolute URL may have no path at all.
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
    fn requests_are_sorted_by_method_and_path() {
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
            assert_eq!(one_slash(target), expected, "{target}");
        }
        assert_eq!(one_slash(""), "/");
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
