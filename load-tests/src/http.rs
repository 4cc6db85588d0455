//! GET requests: timed to the first and the last byte of the body, and compared with what the body should be.

use anyhow::{Context, Result, bail, ensure};
use reqwest::header::HeaderMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Longer than anything that is measured.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Keeps its connections.
pub struct Client(reqwest::Client);

#[derive(Debug)]
pub struct Response {
    pub url: String,
    pub status: u16,
    headers: HeaderMap,
    /// With its content coding.
    pub body: Vec<u8>,
    /// From the request to the first byte of the body; to its end if it is empty.
    pub first_byte: Duration,
    pub complete: Duration,
}

impl Client {
    pub fn new() -> Result<Self> {
        Ok(Self(reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?))
    }

    /// A client for servers with certificates of our own, over HTTP/1.1.
    pub fn trusting_any_certificate() -> Result<Self> {
        let builder = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).http1_only();
        Ok(Self(builder.tls_danger_accept_invalid_certs(true).build()?))
    }

    /// A response of any status. Headers are "Name: value".
    pub async fn request(&self, url: &str, headers: &[String]) -> Result<Response> {
        let mut request = self.0.get(url);
        for header in headers {
            let (name, value) = header.split_once(": ").with_context(|| format!("{header:?} is no header"))?;
            request = request.header(name, value);
        }
        let begun = Instant::now();
        let mut response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut body = Vec::with_capacity(usize::try_from(response.content_length().unwrap_or_default())?);
        let mut first_byte = None;
        while let Some(chunk) = response.chunk().await? {
            first_byte.get_or_insert_with(|| begun.elapsed());
            body.extend_from_slice(&chunk);
        }
        let complete = begun.elapsed();
        let first_byte = first_byte.unwrap_or(complete);
        Ok(Response { url: url.to_owned(), status, headers, body, first_byte, complete })
    }

    /// Fails unless the status is 200.
    pub async fn get(&self, url: &str) -> Result<Response> {
        self.request(url, &[]).await?.of_status(200)
    }
}

/// Gets a whole file over a connection of its own.
pub async fn get(url: &str) -> Result<Response> {
    Client::new()?.get(url).await
}

/// Gets a part of a file over a connection of its own.
pub async fn get_range(url: &str, range: &RangeInclusive<usize>) -> Result<Response> {
    let header = format!("Range: bytes={}-{}", range.start(), range.end());
    Client::new()?.request(url, &[header]).await?.of_status(206)
}

impl Response {
    pub fn of_status(self, expected: u16) -> Result<Self> {
        let Self { url, status, body, .. } = &self;
        ensure!(*status == expected, "{url}: {status}: {}", String::from_utf8_lossy(&body[..body.len().min(1000)]));
        Ok(self)
    }

    /// Fails unless the body is this.
    pub fn of_content(self, expected: &[u8]) -> Result<Self> {
        ensure!(self.body == expected, "{}: wrong bytes", self.url);
        Ok(self)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub fn coding(&self) -> &str {
        self.header("content-encoding").unwrap_or("identity")
    }

    /// The body without its content coding.
    pub fn decoded(&self) -> Result<Vec<u8>> {
        match self.coding() {
            "identity" => Ok(self.body.clone()),
            // All frames, however many there are.
            "zstd" => Ok(zstd::decode_all(&self.body[..])?),
            other => bail!("{}: {other} was not accepted", self.url),
        }
    }
}

#[test]
fn bodies_are_decoded_by_their_content_coding() {
    let decoded = |coding: &'static str, body: &[u8]| {
        let headers = HeaderMap::from_iter([(reqwest::header::CONTENT_ENCODING, coding.parse().expect("it is ASCII"))]);
        let [first_byte, complete] = [Duration::ZERO; 2];
        Response { url: String::new(), status: 200, headers, body: body.to_vec(), first_byte, complete }.decoded()
    };
    let frame = |text: &[u8]| zstd::encode_all(text, 3).expect("memory does not fail");
    let frames = [frame(b"one "), frame(b"two")].concat();
    assert_eq!(decoded("zstd", &frames).ok().as_deref(), Some(&b"one two"[..]));
    assert_eq!(decoded("identity", b"one").ok().as_deref(), Some(&b"one"[..]));
    assert!(decoded("zstd", &frames[..frames.len() - 1]).is_err(), "cut off");
    assert!(decoded("gzip", b"one").is_err());
}
