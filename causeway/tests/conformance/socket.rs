//! Raw HTTP requests: HTTP clients normalise paths, and hide how a response ended.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Longer than all timeouts of Causeway.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A response, which may be truncated.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// Whether the response is complete according to its framing.
    pub complete: bool,
}

impl Reply {
    /// A header's value; several of one name are joined (RFC 9110, section 5.2); empty if there is none.
    pub fn header(&self, name: &str) -> Option<String> {
        let values: Vec<&str> = self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    /// The body as text, for messages.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends a head with `Connection: close`, and reads until the connection is closed. `Err` is the reason why there
/// is no response at all.
pub async fn exchange(address: SocketAddr, head: &str) -> Result<Reply, String> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| format!("no connection: {error}"))?;
    stream.write_all(head.as_bytes()).await.map_err(|error| format!("not sent: {error}"))?;
    read(&mut stream, head.starts_with("HEAD ")).await
}

/// Reads a response and the end of the connection.
pub async fn read(stream: &mut TcpStream, headless: bool) -> Result<Reply, String> {
    let mut bytes = Vec::new();
    let end = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut bytes)).await;
    let orderly = matches!(end, Ok(Ok(_)));
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
    parse(&bytes, headless, orderly).ok_or_else(|| format!("no response, but {shown:?}; then {end:?}"))
}

fn parse(bytes: &[u8], headless: bool, orderly: bool) -> Option<Reply> {
    let split = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..split]).ok()?;
    let (first, lines) = head.split_once("\r\n").unwrap_or((head, ""));
    let status = first.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    let mut headers = HeaderMap::new();
    for line in lines.lines() {
        let (name, value) = line.split_once(':')?;
        headers.append(HeaderName::try_from(name).ok()?, HeaderValue::from_str(value.trim()).ok()?);
    }
    let mut reply = Reply { status, headers, ..Reply::default() };
    (reply.body, reply.complete) = body(&reply, &bytes[split + 4..], headless, orderly);
    Some(reply)
}

/// The body without its framing (RFC 9112, section 6), and whether it is complete.
fn body(reply: &Reply, bytes: &[u8], headless: bool, orderly: bool) -> (Vec<u8>, bool) {
    if headless || matches!(reply.status, 100..200 | 204 | 304) {
        return (bytes.to_vec(), true);
    }
    if reply.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        return unchunk(bytes);
    }
    let length = reply.header("content-length").and_then(|length| length.parse::<usize>().ok());
    (bytes.to_vec(), length.map_or(orderly, |length| length == bytes.len()))
}

fn unchunk(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some((chunk, rest)) = take_chunk(bytes) {
        if chunk.is_empty() {
            return (body, true);
        }
        body.extend_from_slice(chunk);
        bytes = rest;
    }
    (body, false)
}

fn take_chunk(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = bytes.windows(2).position(|window| window == b"\r\n")?;
    let size = std::str::from_utf8(&bytes[..line]).ok()?.split(';').next()?;
    let size = usize::from_str_radix(size.trim(), 16).ok()?;
    let (chunk, rest) = bytes[line + 2..].split_at_checked(size)?;
    Some((chunk, rest.strip_prefix(b"\r\n")?))
}

#[test]
fn truncated_responses_are_detected() {
    let table = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", true, "ab"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", false, "ab"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", true, "ab"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", false, "ab"),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", true, ""),
        ("HTTP/1.0 200 OK\r\n\r\nab", true, "ab"),
    ];
    for (sent, complete, body) in table {
        let reply = parse(sent.as_bytes(), false, true).expect("a response");
        assert_eq!((reply.complete, reply.text().as_str()), (complete, body), "{sent:?}");
    }
    assert!(!parse(b"HTTP/1.0 200 OK\r\n\r\nab", false, false).expect("a response").complete, "reset");
    assert!(parse(b"HTTP/1.1 2", false, true).is_none());
}
