//! The console: the web page of the admin listener, at `/`.
//!
//! The files of `admin/console` are embedded in the binary by `build.rs`. `/` is `index.html`, and `/console/PATH` is
//! any of them. They need no token, as they say nothing about the node; everything that the page shows comes from
//! `/api/v1`, with a token.
//!
//! **Signing in.** The page holds a bearer token in memory and sends it in the header `Authorization`. There is no
//! cookie: browsers send the cookies of a host to every port of it, so also to the public listener, whose content is
//! anybody's, and to other services of the machine. Nor does a page of another origin gain anything: a browser adds
//! no bearer token by itself, and [`crate::http::guard`] rejects cross-site requests to the API before it looks at the
//! token.
//!
//! **Scripts.** The Content Security Policy admits scripts and styles of this origin and nothing else: no inline
//! scripts, no assets and requests of other hosts. Trusted Types forbid the page to make markup or scripts out of text,
//! so content names, peers' agents and paths, which are anybody's words, stay text. No other page can embed this one.
//!
//! Goals: no file is needed at run time; a file is compressed once; a browser asks again whether a file has changed
//! (`ETag`), so that an upgrade of the gateway is an upgrade of the page.
//!
//! Non-goals: the page itself, and what it shows ([`crate::operations`]).

use crate::http::answer::ApiError;
use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use gateway::request::conditional::none_match;
use gateway::request::negotiate::{Coding, codings};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{LazyLock, OnceLock};

include!(concat!(env!("OUT_DIR"), "/console.rs"));

/// The page.
const INDEX: &str = "index.html";
/// Half of a SHA-256, as an entity tag.
const ETAG_BYTES: usize = 16;

/// The headers of every response.
const HEADERS: [(HeaderName, &str); 8] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
    ),
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), \
         microphone=(), midi=(), payment=(), screen-wake-lock=(), serial=(), usb=()",
    ),
    // Stored, and used once the gateway has said that it is unchanged.
    (CACHE_CONTROL, "no-cache"),
];

/// A file of the console.
struct Asset {
    content: &'static [u8],
    media_type: &'static str,
    /// The entity tags of the file as it is, and of the compressed one.
    etags: [HeaderValue; 2],
    /// The compressed file, once a client accepted it; `None` if it is not smaller.
    gzip: OnceLock<Option<Bytes>>,
}

static ASSETS: LazyLock<HashMap<&str, Asset>> =
    LazyLock::new(|| FILES.iter().filter_map(|(path, content)| Some((*path, Asset::new(path, content)?))).collect());

/// The media type by the extension of a file; `None` for files that are not served.
fn media_type(path: &str) -> Option<&'static str> {
    Some(match path.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "woff2" => "font/woff2",
        _ => return None,
    })
}

impl Asset {
    fn new(path: &str, content: &'static [u8]) -> Option<Self> {
        let media_type = media_type(path)?;
        let digest = Sha256::digest(content);
        let hash: String = digest.iter().take(ETAG_BYTES).map(|byte| format!("{byte:02x}")).collect();
        let etag = |suffix| HeaderValue::try_from(format!("\"{hash}{suffix}\"")).ok();
        Some(Self { content, media_type, etags: [etag("")?, etag("-gzip")?], gzip: OnceLock::new() })
    }

    /// The compressed file, unless its format is compressed already.
    fn gzip(&self) -> Option<Bytes> {
        let compress = || {
            let is_text = !matches!(self.media_type, "image/png" | "font/woff2");
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(self.content).ok().filter(|()| is_text)?;
            encoder.finish().ok().filter(|gzip| gzip.len() < self.content.len()).map(Bytes::from)
        };
        self.gzip.get_or_init(compress).clone()
    }

    fn answer(&self, asked: &HeaderMap) -> Response {
        let accepts_gzip = codings(asked).any(|coding| coding == Coding::Gzip);
        let (content, is_gzip) = match self.gzip().filter(|_| accepts_gzip) {
            Some(gzip) => (gzip, true),
            None => (Bytes::from_static(self.content), false),
        };
        let etag = &self.etags[usize::from(is_gzip)];
        let is_unchanged = none_match(asked, etag.as_bytes(), true);
        let mut response = Response::new(if is_unchanged { Body::empty() } else { Body::from(content.clone()) });
        let headers = response.headers_mut();
        headers.insert(ETAG, etag.clone());
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        if !is_unchanged {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
            headers.insert(CONTENT_LENGTH, HeaderValue::from(content.len()));
            if is_gzip {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
        }
        if is_unchanged {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        response
    }
}

/// The routes, which need no token.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(index)).route("/console/{*path}", get(file))
}

async fn index(headers: HeaderMap) -> Response {
    answer(INDEX, &headers)
}

async fn file(path: Result<Path<String>, PathRejection>, headers: HeaderMap) -> Response {
    // A path that is not UTF-8 does not exist.
    let path = path.map_or_else(|_| String::new(), |Path(path)| path);
    answer(&path, &headers)
}

fn answer(path: &str, asked: &HeaderMap) -> Response {
    let missing = || ApiError(StatusCode::NOT_FOUND, "the console has no such file".to_owned()).into_response();
    let mut response = ASSETS.get(path).map_or_else(missing, |asset| asset.answer(asked));
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use axum::http::header::{ACCEPT_ENCODING, ALLOW, IF_NONE_MATCH};
    use http_body_util::BodyExt as _;
    use std::io::Read as _;
    use tower::ServiceExt as _;

    async fn ask(method: &str, path: &str, headers: &[(HeaderName, &str)]) -> Response<Bytes> {
        let request = Request::builder().method(method).uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(name, *value));
        let request = request.body(Body::empty()).expect("a request");
        let (head, body) = routes::<()>().oneshot(request).await.expect("answers").into_parts();
        Response::from_parts(head, body.collect().await.expect("a body").to_bytes())
    }

    #[test]
    fn every_embedded_file_is_served() {
        assert!(FILES.iter().any(|(path, _)| *path == INDEX));
        for (path, content) in FILES {
            let asset = ASSETS.get(path).unwrap_or_else(|| panic!("{path} has no media type"));
            assert_eq!(&asset.content, content, "{path}");
        }
    }

    #[tokio::test]
    async fn each_response_has_the_headers_that_protect_the_page() {
        let etag = ask("GET", "/", &[]).await.headers()[ETAG].to_str().expect("text").to_owned();
        // The request, the status, and the media type.
        let table = [
            ("GET", "/", None, 200, Some("text/html; charset=utf-8")),
            ("HEAD", "/", None, 200, Some("text/html; charset=utf-8")),
            ("GET", "/", Some((IF_NONE_MATCH, &*etag)), 304, None),
            ("GET", "/", Some((IF_NONE_MATCH, "\"another\"")), 200, Some("text/html; charset=utf-8")),
            ("GET", "/console/index.html", None, 200, Some("text/html; charset=utf-8")),
            ("GET", "/console/app.js", None, 200, Some("text/javascript; charset=utf-8")),
            ("GET", "/console/style.css", None, 200, Some("text/css; charset=utf-8")),
            ("GET", "/console/nothing.js", None, 404, Some("application/json")),
            ("GET", "/console/../Cargo.toml", None, 404, Some("application/json")),
            ("GET", "/console/%2e%2e/index.html", None, 404, Some("application/json")),
            ("GET", "/console/%ff.js", None, 404, Some("application/json")),
        ];
        for (method, path, header, status, media_type) in table {
            let response = ask(method, path, header.as_slice()).await;
            let headers = response.headers();
            assert_eq!(response.status().as_u16(), status, "{method} {path}");
            assert_eq!(headers.get(CONTENT_TYPE).map(|value| value.to_str().expect("text")), media_type, "{path}");
            for (name, value) in HEADERS {
                assert_eq!(headers.get_all(&name).iter().collect::<Vec<_>>(), [value], "{method} {path} {name}");
            }
            let has_body = method == "GET" && status != 304;
            assert_eq!(!response.body().is_empty(), has_body, "{method} {path}");
            assert_eq!(headers.contains_key(ETAG), status < 400, "{method} {path}");
        }
        let length = |response: &Response<Bytes>| response.headers()[CONTENT_LENGTH].clone();
        assert_eq!(length(&ask("HEAD", "/", &[]).await), length(&ask("GET", "/", &[]).await));
        let response = ask("POST", "/", &[]).await;
        assert_eq!((response.status().as_u16(), response.headers()[ALLOW].as_bytes()), (405, &b"GET,HEAD"[..]));
    }

    #[tokio::test]
    async fn a_policy_has_every_directive() {
        let response = ask("GET", "/", &[]).await;
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().expect("text");
        let directives: Vec<&str> = policy.split("; ").collect();
        let expected = [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ];
        assert_eq!(directives, expected);
    }

    #[tokio::test]
    async fn clients_that_accept_gzip_get_the_same_file_compressed() {
        const TEXT: &[u8] = &[b'a'; 10_000];
        let plain = Asset::new("a.js", TEXT).expect("is served");
        let asked = |values: &[(HeaderName, &str)]| {
            let values = values.iter().map(|(name, value)| (name.clone(), value.parse().expect("a header")));
            values.collect::<HeaderMap>()
        };
        let gzip = plain.answer(&asked(&[(ACCEPT_ENCODING, "br, gzip")]));
        assert_eq!(gzip.headers()[CONTENT_ENCODING], "gzip");
        assert_eq!(gzip.headers()[VARY], "accept-encoding");
        let etag = gzip.headers()[ETAG].to_str().expect("text").to_owned();
        let body = gzip.into_body().collect().await.expect("a body").to_bytes();
        let mut decoded = Vec::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut decoded).expect("decodes");
        assert!(decoded == TEXT && body.len() < 200);
        // Representations have tags of their own (RFC 9110, section 8.8.3.3).
        let identity = plain.answer(&asked(&[]));
        assert!(!identity.headers().contains_key(CONTENT_ENCODING) && identity.headers()[ETAG] != *etag);
        let again = |coding| plain.answer(&asked(&[(ACCEPT_ENCODING, coding), (IF_NONE_MATCH, &etag)])).status();
        assert_eq!((again("gzip").as_u16(), again("identity").as_u16()), (304, 200));
        // Formats that are compressed, and files that would grow, are sent as they are.
        for (path, content) in [("a.png", TEXT), ("a.woff2", TEXT), ("a.js", b"a".as_slice())] {
            let asset = Asset::new(path, content).expect("is served");
            let answer = asset.answer(&asked(&[(ACCEPT_ENCODING, "gzip")]));
            assert!(!answer.headers().contains_key(CONTENT_ENCODING), "{path}");
        }
        assert!(Asset::new("a.toml", TEXT).is_none() && Asset::new("toml", TEXT).is_none());
    }
}
