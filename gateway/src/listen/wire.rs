//! [`StrictLines`]: a connection that accepts only CR LF as the end of a line.
//!
//! RFC 9112, section 2.2, permits a server to accept a bare LF as the end of a line, and hyper does. If a proxy in
//! front takes a bare LF for part of a header's value, the proxy and the gateway see different requests, which allows
//! request smuggling. So a bare LF in the head of a request, in a chunk size line or in a trailer is replaced by a zero
//! byte, which is invalid there: hyper answers 400 and closes the connection.
//!
//! To find heads, [`FramingParser`] follows the framing of bodies. hyper rejects what the parser does not understand.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The maximum length of a line that determines the framing of a body, in bytes.
const FRAMING_LINE_BYTES_MAX: usize = 128;
/// The headers that determine it.
const CONTENT_LENGTH: &[u8] = b"content-length:";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding:";

/// The parser's position in the requests of a connection.
#[derive(Debug)]
enum State {
    /// In the head of a request, or before it.
    Head,
    /// In a body with this many remaining bytes.
    Body(u64),
    /// In a chunk size line.
    ChunkSize,
    /// In a chunk with this many remaining bytes, its CR LF included.
    Chunk(u64),
    /// In the trailer section.
    Trailer,
    /// Unknown: the request was rejected, or hyper will reject it.
    Rejected,
}

/// Follows the framing of requests as they are read.
#[derive(Debug)]
pub struct FramingParser {
    state: State,
    /// The beginning of the line, and its whole length.
    line: Vec<u8>,
    line_bytes: u64,
    last: u8,
    /// The number of non-empty lines of this head.
    lines: u64,
    content_length: u64,
    chunked: bool,
}

impl Default for FramingParser {
    fn default() -> Self {
        Self {
            state: State::Head,
            line: Vec::with_capacity(FRAMING_LINE_BYTES_MAX),
            line_bytes: 0,
            last: 0,
            lines: 0,
            content_length: 0,
            chunked: false,
        }
    }
}

impl FramingParser {
    /// Parses the next bytes, and replaces a bare LF by a zero byte.
    pub fn parse(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let taken = match &mut self.state {
                State::Rejected => return,
                State::Body(left) | State::Chunk(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= taken as u64;
                    self.end_of_data();
                    taken
                }
                State::Head | State::ChunkSize | State::Trailer => self.consume_line(bytes),
            };
            bytes = &mut bytes[taken..];
        }
    }

    fn end_of_data(&mut self) {
        match self.state {
            State::Body(0) => self.state = State::Head,
            State::Chunk(0) => self.state = State::ChunkSize,
            _ => {}
        }
    }

    /// Consumes bytes up to the end of the line; returns how many.
    fn consume_line(&mut self, bytes: &mut [u8]) -> usize {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let of_line = &bytes[..end.unwrap_or(bytes.len())];
        let room = FRAMING_LINE_BYTES_MAX - self.line.len();
        self.line.extend_from_slice(&of_line[..room.min(of_line.len())]);
        self.line_bytes += of_line.len() as u64;
        self.last = of_line.last().copied().unwrap_or(self.last);
        let Some(end) = end else { return bytes.len() };
        // A line that determines the framing must fit the buffer: padding could hide its value.
        let is_hidden = self.line_bytes > FRAMING_LINE_BYTES_MAX as u64 && self.is_framing();
        if self.line_bytes == 0 || self.last != b'\r' || is_hidden {
            bytes[end] = 0;
            self.state = State::Rejected;
            return bytes.len();
        }
        self.end_of_line();
        self.line.clear();
        (self.line_bytes, self.last) = (0, 0);
        end + 1
    }

    fn end_of_line(&mut self) {
        let is_empty = self.line_bytes == 1;
        match self.state {
            // An empty line before a request is ignored (RFC 9112, section 2.2).
            State::Head if is_empty && self.lines == 0 => {}
            State::Head if is_empty => self.end_of_head(),
            State::Head => {
                self.lines += 1;
                self.read_framing_header();
            }
            State::ChunkSize => self.state = self.after_chunk_size(),
            State::Trailer if is_empty => self.state = State::Head,
            _ => {}
        }
    }

    fn begins(&self, name: &[u8]) -> bool {
        self.line.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name))
    }

    fn is_framing(&self) -> bool {
        match self.state {
            State::Head => self.begins(TRANSFER_ENCODING) || self.begins(CONTENT_LENGTH),
            State::ChunkSize => true,
            _ => false,
        }
    }

    fn read_framing_header(&mut self) {
        if self.begins(TRANSFER_ENCODING) {
            self.chunked = true;
        } else if self.begins(CONTENT_LENGTH) {
            let value = self.line.get(CONTENT_LENGTH.len()..).unwrap_or_default().trim_ascii();
            self.content_length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        }
    }

    fn end_of_head(&mut self) {
        self.state = match (self.chunked, self.content_length) {
            (true, _) => State::ChunkSize,
            (false, 0) => State::Head,
            (false, bytes) => State::Body(bytes),
        };
        (self.lines, self.content_length, self.chunked) = (0, 0, false);
    }

    fn after_chunk_size(&self) -> State {
        let digits = self.line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let size = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        match size {
            Some(0) => State::Trailer,
            Some(bytes) => bytes.checked_add(2).map_or(State::Rejected, State::Chunk),
            None => State::Rejected,
        }
    }
}

/// A connection with strict line endings.
pub struct StrictLines<S> {
    stream: S,
    parser: FramingParser,
}

impl<S> StrictLines<S> {
    /// A connection before its first request.
    pub fn new(stream: S) -> Self {
        Self { stream, parser: FramingParser::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StrictLines<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.parser.parse(&mut buf.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StrictLines<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes after parsing, fed in pieces of this size.
    fn parsed(requests: &str, piece: usize) -> Vec<u8> {
        let mut bytes = requests.as_bytes().to_vec();
        let mut parser = FramingParser::default();
        bytes.chunks_mut(piece).for_each(|piece| parser.parse(piece));
        bytes
    }

    const GOOD: [&str; 5] = [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\ncontent-Length:  9 \r\n\r\na\nb\n\r\n\r\n\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\n\n\n\n\r\n0A\r\n\n23456789\n\r\n0\r\nT: v\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ];

    const BAD: [&str; 9] = [
        "\n",
        "GET / HTTP/1.1\n",
        "GET / HTTP/1.1\r\nHost: x\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n\n\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;a\r\nx\r\n2\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: v\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n",
    ];

    #[test]
    fn a_bare_line_feed_is_replaced_where_lines_end_and_nowhere_else() {
        for piece in [1, 2, 3, 7, 1000] {
            for first in GOOD {
                assert_eq!(parsed(first, piece), first.as_bytes(), "{first:?}");
                for second in GOOD {
                    let both = format!("{first}{second}");
                    assert_eq!(parsed(&both, piece), both.as_bytes(), "{both:?}");
                }
                for bad in BAD {
                    let both = format!("{first}{bad}");
                    let expected = format!("{}\0", &both[..both.len() - 1]);
                    assert_eq!(parsed(&both, piece), expected.as_bytes(), "{both:?}");
                }
            }
        }
    }

    #[test]
    fn padding_does_not_hide_framing_headers() {
        let padding = " ".repeat(FRAMING_LINE_BYTES_MAX);
        let zeros = "0".repeat(FRAMING_LINE_BYTES_MAX + 1);
        for bad in [
            format!("POST / HTTP/1.1\r\nContent-Length:{padding}1\r\n"),
            format!("POST / HTTP/1.1\r\ntransfer-encoding:{padding}chunked\r\n"),
            format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{zeros}\r\n"),
        ] {
            for piece in [1, 7, 1000] {
                assert_eq!(parsed(&bad, piece), format!("{}\0", &bad[..bad.len() - 1]).as_bytes(), "{bad:?}");
            }
        }
        let good = format!("GET / HTTP/1.1\r\nX-Padded:{padding}1\r\n\r\n");
        assert_eq!(parsed(&good, 7), good.as_bytes());
    }

    proptest! {
        /// For any bytes in any pieces: at most one byte is changed, which is a line feed, and the buffer is bounded.
        #[test]
        fn the_result_does_not_depend_on_the_pieces(text in "[GPaH0-9:; \r\n]{0,300}", piece in 1_usize..50) {
            let (whole, pieces) = (parsed(&text, text.len().max(1)), parsed(&text, piece));
            prop_assert_eq!(&whole, &pieces);
            let changed: Vec<_> = text.bytes().zip(whole).filter(|(before, after)| before != after).collect();
            prop_assert!(changed.len() <= 1 && changed.iter().all(|change| *change == (b'\n', 0)));
        }
    }
}
