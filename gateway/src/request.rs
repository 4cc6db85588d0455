//! [`Ask`]: what a content request asks for, read from its head alone.

use crate::errors::Problem;
use crate::negotiate::{self, Format};
use http::request::Parts;
use http::{HeaderMap, Method};
use percent_encoding::percent_decode;
use std::borrow::Cow;

/// What a request is about, by its method and path.
#[derive(Debug, PartialEq, Eq)]
pub enum Subject {
    /// A CORS preflight, or any other `OPTIONS`.
    Options,
    /// The landing page.
    Landing,
    /// `/healthz`: whether the process runs.
    Health,
    /// `/readyz`: whether it can answer.
    Ready,
    /// Content below `/ipfs/`.
    Content,
}

/// Sorts a request.
///
/// # Errors
/// [`Problem`] when nothing here answers it.
pub fn subject(head: &Parts, url_bytes_max: usize) -> Result<Subject, Problem> {
    let path = head.uri.path();
    if head.method == Method::OPTIONS {
        return Ok(Subject::Options);
    }
    if head.method != Method::GET && head.method != Method::HEAD {
        return Err(Problem::Method);
    }
    if path.len() + head.uri.query().map_or(0, str::len) > url_bytes_max {
        return Err(Problem::UrlTooLong { max: url_bytes_max });
    }
    match path {
        _ if path.starts_with("/ipfs/") => Ok(Subject::Content),
        "/" => Ok(Subject::Landing),
        "/healthz" => Ok(Subject::Health),
        "/readyz" => Ok(Subject::Ready),
        _ if path.starts_with("/ipns/") => Err(Problem::Ipns),
        _ => Err(Problem::NoSuchPage),
    }
}

/// A request for content.
#[derive(Debug)]
pub struct Ask<'a> {
    /// Whether only the head is wanted.
    pub head_only: bool,
    /// The path as it was sent, percent-encoded.
    pub path: &'a str,
    /// The query as it was sent.
    pub query: Option<&'a str>,
    /// The headers that conditions, ranges and formats are read from.
    pub headers: &'a HeaderMap,
    /// The format of the answer.
    pub format: Format,
    /// `?filename=`: what the file is to be called, and typed by.
    pub filename: Option<String>,
    /// `?download=true`: to be saved rather than shown.
    pub download: bool,
}

impl<'a> Ask<'a> {
    /// Reads a request's head.
    ///
    /// # Errors
    /// [`Problem::Format`] when the format is not supported.
    pub fn read(head: &'a Parts) -> Result<Self, Problem> {
        let query = head.uri.query();
        let parameter = |name| query.and_then(|query| parameter(query, name));
        Ok(Self {
            head_only: head.method == Method::HEAD,
            path: head.uri.path(),
            query,
            headers: &head.headers,
            format: negotiate::format(parameter("format").as_deref(), &head.headers)?,
            filename: parameter("filename").filter(|name| !name.is_empty()).map(Cow::into_owned),
            download: parameter("download").is_some_and(|value| value == "true"),
        })
    }
}

/// The first value of a query parameter, decoded as forms are: `+` is a space
/// (<https://url.spec.whatwg.org/#urlencoded-parsing>).
fn parameter<'a>(query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let pair = query.split('&').find_map(|pair| match pair.split_once('=') {
        Some((key, value)) => (key == name).then_some(value),
        None => (pair == name).then_some(""),
    })?;
    if !pair.contains(['%', '+']) {
        return Some(Cow::Borrowed(pair));
    }
    let spaced = pair.replace('+', " ");
    Some(Cow::Owned(percent_decode(spaced.as_bytes()).decode_utf8_lossy().into_owned()))
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
            ("GET", "/", Ok(Subject::Landing)),
            ("GET", "/?x", Ok(Subject::Landing)),
            ("HEAD", "/ipfs/bafy", Ok(Subject::Content)),
            ("GET", "/ipfs/", Ok(Subject::Content)),
            ("GET", "/healthz", Ok(Subject::Health)),
            ("GET", "/readyz", Ok(Subject::Ready)),
            ("OPTIONS", "/anything", Ok(Subject::Options)),
            ("POST", "/ipfs/bafy", Err(Problem::Method)),
            ("GET", "/ipns/example.org", Err(Problem::Ipns)),
            ("GET", "/ipfs", Err(Problem::NoSuchPage)),
            ("GET", "/favicon.ico", Err(Problem::NoSuchPage)),
            ("GET", "/ipfs/0123456789012345678901234567890?q", Err(Problem::UrlTooLong { max: 32 })),
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
        assert!(Ask::read(&head("GET", "/ipfs/x?format=tar")).is_err());
    }
}
