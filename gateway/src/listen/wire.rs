//! [`StrictLines`]: a connection whose requests may end their lines with CR LF only.
//!
//! RFC 9112, section 2.2, permits a server to take a bare LF for the end of a line, and hyper does. A proxy in front that takes it for
//! part of a header's value sees another request than the gateway does: that is how requests are smuggled. So a bare LF in the head of a
//! request, in the size of a chunk or in a trailer is refused here: it is replaced by a zero byte, which belongs nowhere there, upon which
//! hyper answers 400 and closes the connection.
//!
//! To know what is a head, the framing of bodies is followed ([`Follower`]). What is not understood is left for hyper to refuse.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The longest line that may say how long a body is, in bytes.
const FRAMING_LINE_BYTES_MAX: usize = 128;
/// The names of headers that do.
const CONTENT_LENGTH: &[u8] = b"content-length:";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding:";

/// Where in the requests of a connection the bytes are that came last.
#[derive(Debug)]
enum Place {
    /// In the head of a request, or before it.
    Head,
    /// In a body, of which so many bytes are to come.
    Body(u64),
    /// In the line before a chunk.
    ChunkSize,
    /// In a chunk, of which so many bytes are to come, and the end of a line.
    Chunk(u64),
    /// In what follows the last chunk.
    Trailer,
    /// Somewhere unknown: what came was refused, or will be.
    Lost,
}

/// Follows requests as they are read.
#[derive(Debug)]
pub struct Follower {
    place: Place,
    /// The beginning of the line, and its length.
    line: Vec<u8>,
    line_bytes: u64,
    last: u8,
    /// Lines of this head that were not empty.
    lines: u64,
    content_length: u64,
    chunked: bool,
}

impl Default for Follower {
    fn default() -> Self {
        Self {
            place: Place::Head,
            line: Vec::with_capacity(FRAMING_LINE_BYTES_MAX),
            line_bytes: 0,
            last: 0,
            lines: 0,
            content_length: 0,
            chunked: false,
        }
    }
}

impl Follower {
    /// Looks at the bytes that come next, and makes a bare LF what nobody takes for the end of a line.
    pub fn follow(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let taken = match &mut self.place {
                Place::Lost => return,
                Place::Body(left) | Place::Chunk(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= taken as u64;
                    self.end_of_bytes();
                    taken
                }
                Place::Head | Place::ChunkSize | Place::Trailer => self.in_line(bytes),
            };
            bytes = &mut bytes[taken..];
        }
    }

    fn end_of_bytes(&mut self) {
        match self.place {
            Place::Body(0) => self.place = Place::Head,
            Place::Chunk(0) => self.place = Place::ChunkSize,
            _ => {}
        }
    }

    /// Takes bytes to the end of a line, if it is there.
    fn in_line(&mut self, bytes: &mut [u8]) -> usize {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let of_line = &bytes[..end.unwrap_or(bytes.len())];
        let room = FRAMING_LINE_BYTES_MAX - self.line.len();
        self.line.extend_from_slice(&of_line[..room.min(of_line.len())]);
        self.line_bytes += of_line.len() as u64;
        self.last = of_line.last().copied().unwrap_or(self.last);
        let Some(end) = end else { return bytes.len() };
        // What frames a body has to be known whole: padding would hide it.
        let is_hidden = self.line_bytes > FRAMING_LINE_BYTES_MAX as u64 && self.is_framing();
        if self.line_bytes == 0 || self.last != b'\r' || is_hidden {
            bytes[end] = 0;
            self.place = Place::Lost;
            return bytes.len();
        }
        self.end_of_line();
        self.line.clear();
        (self.line_bytes, self.last) = (0, 0);
        end + 1
    }

    fn end_of_line(&mut self) {
        let is_empty = self.line_bytes == 1;
        match self.place {
            // An empty line before a request is none of its own (RFC 9112, section 2.2).
            Place::Head if is_empty && self.lines == 0 => {}
            Place::Head if is_empty => self.end_of_head(),
            Place::Head => {
                self.lines += 1;
                self.note_framing();
            }
            Place::ChunkSize => self.place = self.after_chunk_size(),
            Place::Trailer if is_empty => self.place = Place::Head,
            _ => {}
        }
    }

    fn begins(&self, name: &[u8]) -> bool {
        self.line.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name))
    }

    fn is_framing(&self) -> bool {
        match self.place {
            Place::Head => self.begins(TRANSFER_ENCODING) || self.begins(CONTENT_LENGTH),
            Place::ChunkSize => true,
            _ => false,
        }
    }

    fn note_framing(&mut self) {
        if self.begins(TRANSFER_ENCODING) {
            self.chunked = true;
        } else if self.begins(CONTENT_LENGTH) {
            let value = self.line.get(CONTENT_LENGTH.len()..).unwrap_or_default().trim_ascii();
            self.content_length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        }
    }

    fn end_of_head(&mut self) {
        self.place = match (self.chunked, self.content_length) {
            (true, _) => Place::ChunkSize,
            (false, 0) => Place::Head,
            (false, bytes) => Place::Body(bytes),
        };
        (self.lines, self.content_length, self.chunked) = (0, 0, false);
    }

    fn after_chunk_size(&self) -> Place {
        let digits = self.line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let size = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        match size {
            Some(0) => Place::Trailer,
            Some(bytes) => bytes.checked_add(2).map_or(Place::Lost, Place::Chunk),
            None => Place::Lost,
        }
    }
}

/// A connection that is read strictly.
pub struct StrictLines<S> {
    stream: S,
    follower: Follower,
}

impl<S> StrictLines<S> {
    /// A connection whose first request begins now.
    pub fn new(stream: S) -> Self {
        Self { stream, follower: Follower::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StrictLines<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.follower.follow(&mut buf.filled_mut()[before..]);
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

    /// What is left of requests that come in pieces of a size.
    fn followed(requests: &str, piece: usize) -> Vec<u8> {
        let mut bytes = requests.as_bytes().to_vec();
        let mut follower = Follower::default();
        bytes.chunks_mut(piece).for_each(|piece| follower.follow(piece));
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
                assert_eq!(followed(first, piece), first.as_bytes(), "{first:?}");
                for second in GOOD {
                    let both = format!("{first}{second}");
                    assert_eq!(followed(&both, piece), both.as_bytes(), "{both:?}");
                }
                for bad in BAD {
                    let both = format!("{first}{bad}");
                    let expected = format!("{}\0", &both[..both.len() - 1]);
                    assert_eq!(followed(&both, piece), expected.as_bytes(), "{both:?}");
                }
            }
        }
    }

    #[test]
    fn what_frames_a_body_is_not_hidden_by_padding() {
        let padding = " ".repeat(FRAMING_LINE_BYTES_MAX);
        let zeros = "0".repeat(FRAMING_LINE_BYTES_MAX + 1);
        for bad in [
            format!("POST / HTTP/1.1\r\nContent-Length:{padding}1\r\n"),
            format!("POST / HTTP/1.1\r\ntransfer-encoding:{padding}chunked\r\n"),
            format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{zeros}\r\n"),
        ] {
            for piece in [1, 7, 1000] {
                assert_eq!(followed(&bad, piece), format!("{}\0", &bad[..bad.len() - 1]).as_bytes(), "{bad:?}");
            }
        }
        let good = format!("GET / HTTP/1.1\r\nX-Padded:{padding}1\r\n\r\n");
        assert_eq!(followed(&good, 7), good.as_bytes());
    }

    proptest! {
        /// Whatever comes, in whatever pieces: nothing but line feeds is changed, at most one, and what is held is bounded.
        #[test]
        fn what_is_done_does_not_depend_on_the_pieces(text in "[GPaH0-9:; \r\n]{0,300}", piece in 1_usize..50) {
            let (whole, pieces) = (followed(&text, text.len().max(1)), followed(&text, piece));
            prop_assert_eq!(&whole, &pieces);
            let changed: Vec<_> = text.bytes().zip(whole).filter(|(before, after)| before != after).collect();
            prop_assert!(changed.len() <= 1 && changed.iter().all(|change| *change == (b'\n', 0)));
        }
    }
}
