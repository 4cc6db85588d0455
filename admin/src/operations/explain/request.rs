//! [`ExplainedRequest`]: a request as a client would send it; and the views of its route and of its answer.

use crate::http::answer::ApiError;
use crate::http::parameters::bad_request;
use api::explain::{AnswerView, RouteView};
use content::SourceError;
use gateway::errors::Problem;
use gateway::pipeline::Gateway;
use gateway::request::client::Client;
use gateway::request::route::{Links, Place, Route};
use gateway::request::{Ask, subject};
use gateway::respond::Draft;
use http::header::{CACHE_CONTROL, HOST, LOCATION};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use reqwest::Url;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// The maximum number of characters of a header's value that are shown.
const VALUE_CHARS_MAX: usize = 2048;

/// The host of a request that names none. No such domain exists (RFC 6761, section 6.4).
const NO_HOST: &str = "nobody.invalid";

/// A request to explain.
pub(super) struct ExplainedRequest {
    target: Uri,
    host: Option<String>,
    https: bool,
}

impl ExplainedRequest {
    /// A request for a path, without a host.
    pub(super) fn of_path(path: &str) -> Result<Self, ApiError> {
        if !path.starts_with('/') {
            return Err(bad_request("a path must begin with a slash: /ipfs/CID or /ipns/NAME"));
        }
        Ok(Self { target: read(path)?, host: None, https: false })
    }

    /// A request for a URL.
    pub(super) fn of_url(url: &str) -> Result<Self, ApiError> {
        let uri = read(url)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(bad_request("a URL must have a scheme and a host: http://HOST/ipfs/CID"));
        };
        if !matches!(scheme, "http" | "https") {
            return Err(bad_request("a URL must begin with http:// or https://"));
        }
        let host = authority.as_str().rsplit('@').next().unwrap_or_default().to_owned();
        let target = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self { target: read(target)?, host: Some(host), https: scheme == "https" })
    }

    pub(super) fn host(&self) -> Option<String> {
        self.host.clone()
    }

    pub(super) fn path(&self) -> String {
        self.target.to_string()
    }

    /// The request that follows a redirect to `location`; none if the redirect leaves the gateway: its host must be the
    /// same, or a parent domain or subdomain of it.
    pub(super) fn redirected(&self, location: &str) -> Option<Self> {
        let scheme = if self.https { "https" } else { "http" };
        let host = self.host.as_deref().unwrap_or(NO_HOST);
        let base = Url::parse(&format!("{scheme}://{host}{}", self.target)).ok()?;
        let next = base.join(location).ok()?;
        let (from, to) = (base.host_str()?, next.host_str()?);
        let is_below = |one: &str, other: &str| one.strip_suffix(other).is_some_and(|rest| rest.ends_with('.'));
        if !matches!(next.scheme(), "http" | "https") || !(from == to || is_below(from, to) || is_below(to, from)) {
            return None;
        }
        let query = next.query().map(|query| format!("?{query}")).unwrap_or_default();
        let target = format!("{}{query}", next.path()).parse().ok()?;
        let port = next.port().map(|port| format!(":{port}")).unwrap_or_default();
        let host = self.host.is_some().then(|| format!("{to}{port}"));
        Some(Self { target, host, https: next.scheme() == "https" })
    }

    /// The request's head, with `Cache-Control: only-if-cached` if nothing is to be fetched.
    pub(super) fn head(&self, only_if_cached: bool) -> Parts {
        let mut head = Request::new(()).into_parts().0;
        head.uri = self.target.clone();
        if let Some(Ok(host)) = self.host.as_deref().map(HeaderValue::from_str) {
            head.headers.insert(HOST, host);
        }
        if only_if_cached {
            head.headers.insert(CACHE_CONTROL, HeaderValue::from_static("only-if-cached"));
        }
        head
    }

    /// The client: the local host, with the scheme of the URL.
    pub(super) fn client(&self) -> Client {
        Client::new(Ipv4Addr::LOCALHOST.into(), self.host.clone().unwrap_or_default(), self.https)
    }
}

fn read(text: &str) -> Result<Uri, ApiError> {
    text.parse().map_err(|error| bad_request(format!("this is not a valid path or URL: {error}")))
}

/// Parses a request for content.
pub(super) fn ask_of<'a>(head: &'a Parts, gateway: &Gateway) -> Result<Ask<'a>, Problem> {
    subject(head, gateway.limits().url_bytes_max)?;
    Ok(Ask::read(head)?)
}

/// The view of a route.
pub(super) fn route_view(route: &Result<Route, Problem>, ask: &Ask<'_>) -> RouteView {
    let nothing = RouteView {
        kind: "landing".to_owned(),
        path: None,
        links: None,
        isolated: None,
        deserialized: None,
        location: None,
        error: None,
    };
    match route {
        Ok(Route::Landing) => nothing,
        Ok(Route::Redirect(_, location)) => {
            let location = Some(String::from_utf8_lossy(location.as_bytes()).into_owned());
            RouteView { kind: "redirect".to_owned(), location, ..nothing }
        }
        Ok(Route::Content(Place { links, isolated, deserialized, .. })) => {
            let links = match links {
                Links::Path => "path",
                Links::Subdomain(_) => "subdomain",
                Links::DnsLink(_) => "dnslink",
            };
            RouteView {
                kind: "content".to_owned(),
                path: Some(ask.path.to_string()),
                links: Some(links.to_owned()),
                isolated: Some(*isolated),
                deserialized: Some(*deserialized),
                ..nothing
            }
        }
        Err(problem) => RouteView { kind: "error".to_owned(), error: Some(problem.to_string()), ..nothing },
    }
}

/// Whether an answer failed because a block is not stored locally.
pub(super) fn is_missing_blocks(problem: &Problem) -> bool {
    let missing = |error: &SourceError| matches!(error, SourceError::NotFound { .. } | SourceError::Stalled { .. });
    matches!(problem, Problem::NotCached { .. }) || problem.source_error().is_some_and(missing)
}

/// The view of an answer.
pub(super) fn answer_of(outcome: Result<Draft, Problem>, head: &Parts) -> AnswerView {
    match outcome {
        Ok(draft) => {
            let problem = problem_of(&draft).map(|problem| problem.to_string());
            view(draft.status(), draft.headers(), draft.body().length(), problem)
        }
        Err(problem) => problem_view(&problem, head),
    }
}

/// The problem that a cacheable error page carries in its extensions.
pub(super) fn problem_of(draft: &Draft) -> Option<Arc<Problem>> {
    draft.extensions().get().cloned()
}

/// The view of the answer to a problem.
pub(super) fn problem_view(problem: &Problem, head: &Parts) -> AnswerView {
    let response = problem.response(&head.headers);
    let length = response.body().len() as u64;
    view(response.status(), response.headers(), Some(length), Some(problem.to_string()))
}

fn view(status: StatusCode, headers: &HeaderMap, bytes: Option<u64>, problem: Option<String>) -> AnswerView {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).chars().take(VALUE_CHARS_MAX).collect();
    let location = headers.get(LOCATION).map(text);
    let mut shown: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        let value: String = text(value);
        shown.entry(name.to_string()).and_modify(|known| *known = format!("{known}, {value}")).or_insert(value);
    }
    AnswerView { status: status.as_u16(), headers: shown, bytes, location, problem, breaks_off: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_followed_within_the_gateway() {
        // The request, the location of the redirect, and the next request.
        let table = [
            ("/ipfs/x", "/ipfs/x/?a=b", Some((None, "/ipfs/x/?a=b"))),
            ("/ipfs/x/y", "z", Some((None, "/ipfs/x/z"))),
            ("/ipfs/x", "https://example.org/", None),
            ("http://host:8080/ipfs/x/", "http://x.ipfs.host:8080/", Some((Some("x.ipfs.host:8080"), "/"))),
            ("http://x.ipfs.host/", "http://host/ipfs/y", Some((Some("host"), "/ipfs/y"))),
            ("http://host/ipfs/x", "https://host/ipfs/x", Some((Some("host"), "/ipfs/x"))),
            ("http://host/ipfs/x", "//elsewhere/", None),
            ("http://host/ipfs/x", "http://myhost/", None),
            ("http://host/ipfs/x", "ftp://host/", None),
        ];
        for (request, location, expected) in table {
            let request = if request.starts_with('/') {
                ExplainedRequest::of_path(request)
            } else {
                ExplainedRequest::of_url(request)
            };
            let next = request.expect("a request").redirected(location).map(|next| (next.host(), next.path()));
            let expected =
                expected.map(|(host, path): (Option<&str>, &str)| (host.map(str::to_owned), path.to_owned()));
            assert_eq!(next, expected, "{location}");
        }
    }

    #[test]
    fn requests_are_as_a_client_would_send_them() {
        let url = ExplainedRequest::of_url("https://user@Example.org:8443/ipfs/x?format=car").expect("an address");
        assert_eq!((url.host().as_deref(), url.path().as_str()), (Some("Example.org:8443"), "/ipfs/x?format=car"));
        assert!(url.client().https && url.client().host() == "example.org");
        let head = url.head(true);
        assert_eq!((&head.headers[HOST], head.uri.path()), (&HeaderValue::from_static("Example.org:8443"), "/ipfs/x"));
        assert!(
            Ask::read(&head).expect("reads").only_if_cached
                && !Ask::read(&url.head(false)).expect("reads").only_if_cached
        );
        let bare = ExplainedRequest::of_url("http://example.org").expect("an address");
        assert_eq!(bare.path(), "/");
        let path = ExplainedRequest::of_path("/ipns/example.org/a%20b").expect("a path");
        assert!(path.host().is_none() && path.client().authority.is_empty());
        for wrong in ["example.org", "ftp://example.org/", "/ipfs/x", "http:///x"] {
            assert!(ExplainedRequest::of_url(wrong).is_err(), "{wrong}");
        }
        for wrong in ["ipfs/x", "", "http://example.org/", "/ipfs/a b"] {
            assert!(ExplainedRequest::of_path(wrong).is_err(), "{wrong}");
        }
    }
}
