//! The same answers over each version of HTTP.

use crate::dag::{directory, file, noise, raw};
use crate::http2::clients;
use crate::quic::{Http3, read};
use crate::site::{Setup, Site};
use bytes::Bytes;
use content::Block;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version};

/// Headers that depend on the time, or on the version: its framing, and what is announced over TLS over TCP.
const VARYING: [&str; 4] = ["alt-svc", "date", "server-timing", "transfer-encoding"];

/// An answer with its whole body.
struct Answer {
    version: Version,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    /// The headers that are the same over each version.
    fn compared(&self) -> Vec<(String, HeaderValue)> {
        let named = self.headers.iter().filter(|(name, _)| !VARYING.contains(&name.as_str()));
        let mut named: Vec<_> = named.map(|(name, value)| (name.to_string(), value.clone())).collect();
        named.sort();
        named
    }
}

/// The answers to a request over HTTP/1.1 without and with TLS, HTTP/2 and HTTP/3.
async fn answers(site: &Site, http3: &mut Http3, method: &Method, path: &str, headers: &[(&str, &str)]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for (version, base, client) in clients(site) {
        let request = client.request(method.clone(), format!("{base}{path}"));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = request.send().await.expect("answers");
        assert_eq!(response.version(), version);
        let (status, headers) = (response.status(), response.headers().clone());
        answers.push(Answer { version, status, headers, body: response.bytes().await.expect("a body") });
    }
    let request = Request::builder().method(method).uri(site.encrypted().url(path));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let (head, stream) = http3.send(request.body(()).expect("a request")).await.expect("answers");
    let (version, status, headers) = (head.version(), head.status(), head.headers().clone());
    answers.push(Answer { version, status, headers, body: read(stream).await.expect("a body").into() });
    answers
}

#[tokio::test]
async fn answers_are_the_same_over_every_version() {
    let leaves: Vec<Block> = (0..5).map(|seed| raw(noise(seed, 100_000))).collect();
    let (text, large) = (raw("hello, world\n"), file(&leaves));
    let root = directory(&[("hello.txt", &text), ("large.bin", &large)]);
    let bytes: Vec<u8> = leaves.iter().flat_map(|leaf| leaf.data().to_vec()).collect();
    let blocks: Vec<&Block> = leaves.iter().chain([&text, &large, &root]).collect();
    let site = Setup { tls: true, ..Setup::new(&blocks) }.start().await;
    let mut http3 = Http3::connect(&site).await;
    let tag = format!("\"{}\"", text.cid());
    let below = |path: &str| format!("/ipfs/{}{path}", root.cid());
    let (hello, large, folder) = (below("/hello.txt"), below("/large.bin"), below("/"));
    let (missing, car) = (below("/missing"), below("?format=car"));
    let range = [("range", "bytes=99990-200009")];
    type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16, Option<&'a [u8]>);
    let table: [Row<'_>; 11] = [
        ("GET", &hello, &[], 200, Some(text.data())),
        ("HEAD", &hello, &[], 200, Some(b"")),
        ("GET", &hello, &[("if-none-match", &tag)], 304, Some(b"")),
        ("GET", &large, &[], 200, Some(&bytes)),
        ("GET", &large, &range, 206, Some(&bytes[99_990..200_010])),
        ("GET", &large, &[("range", "bytes=900000-")], 416, None),
        ("GET", &folder, &[], 200, None),
        ("GET", &car, &[], 200, None),
        ("GET", &missing, &[], 404, None),
        ("POST", &hello, &[], 405, None),
        ("OPTIONS", "/", &[], 204, Some(b"")),
    ];
    for (method, path, headers, status, body) in table {
        let method: Method = method.parse().expect("a method");
        let answers = answers(&site, &mut http3, &method, path, headers).await;
        for answer in &answers {
            let what = format!("{method} {path} over {:?}", answer.version);
            assert_eq!(answer.status.as_u16(), status, "{what}");
            assert_eq!(answer.compared(), answers[0].compared(), "{what}");
            assert!(answer.headers.contains_key("date") && !answer.headers.contains_key("connection"), "{what}");
            let is_expected = answer.body == answers[0].body && body.is_none_or(|body| answer.body == body);
            assert!(is_expected, "{what}: {} bytes", answer.body.len());
        }
        assert_eq!(answers.last().map(|answer| answer.version), Some(Version::HTTP_3));
    }
    site.until_metric("causeway_http_requests_in_flight", 0).await;
    for version in ["2", "3"] {
        assert_eq!(site.metric(&format!("causeway_http_version_requests_total{{version=\"{version}\"}}")), 11);
    }
}
