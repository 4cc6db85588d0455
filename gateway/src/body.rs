//! [`Body`]: what hyper pulls a response's bytes from.
//!
//! Goals: a body that cannot be completed is never made to look complete: it ends in an error, upon which hyper breaks the
//! connection; bytes travel uncopied; nothing is produced before it is asked for.

use crate::errors::Problem;
use crate::metrics::Exchange;
use crate::server::Connection;
use bytes::Bytes;
use content::unixfs::file::FileReader;
use futures::stream::{BoxStream, StreamExt as _};
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A response's body and the end of its exchange.
pub struct Body {
    content: Content,
    exchange: Option<Exchange>,
    connection: Option<Arc<Connection>>,
}

/// Where the bytes of a response come from.
pub enum Content {
    /// There are none (left).
    Empty,
    /// They are at hand.
    Bytes(Bytes),
    /// A file, of which this much is left.
    File {
        /// What was read already.
        first: Option<Bytes>,
        /// The rest.
        reader: Box<FileReader>,
        /// Bytes to come, the first ones included.
        remaining: u64,
    },
    /// A generated page of unknown length.
    Page(BoxStream<'static, Result<Bytes, Problem>>),
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Content({:?} bytes)", self.length())
    }
}

impl Content {
    /// How many bytes there are, if that is known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::File { remaining, .. } => Some(*remaining),
            Self::Page(_) => None,
        }
    }

    /// The next bytes; `None` only at a true end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Problem>>> {
        match std::mem::replace(self, Self::Empty) {
            Self::Empty => Poll::Ready(None),
            Self::Bytes(bytes) => Poll::Ready((!bytes.is_empty()).then_some(Ok(bytes))),
            Self::File { mut first, mut reader, remaining } => {
                let next = match first.take() {
                    Some(bytes) => Poll::Ready(Some(Ok(bytes))),
                    None => reader.poll_next_unpin(cx),
                };
                self.file_step(next.map_err(Problem::from), reader, remaining)
            }
            Self::Page(mut stream) => {
                let next = stream.poll_next_unpin(cx);
                if !matches!(next, Poll::Ready(None | Some(Err(_)))) {
                    *self = Self::Page(stream);
                }
                next
            }
        }
    }

    /// Counts what a file's reader gave. The reader checks lengths as well: this is the last line of defence, because a
    /// `Content-Length` was sent.
    fn file_step(
        &mut self,
        next: Poll<Option<Result<Bytes, Problem>>>,
        reader: Box<FileReader>,
        remaining: u64,
    ) -> Poll<Option<Result<Bytes, Problem>>> {
        let left = match &next {
            Poll::Pending => Some(remaining),
            Poll::Ready(Some(Ok(bytes))) => remaining.checked_sub(bytes.len() as u64),
            Poll::Ready(_) => None,
        };
        match left {
            Some(0) => {}
            Some(remaining) => *self = Self::File { first: None, reader, remaining },
            None if matches!(next, Poll::Ready(Some(Err(_)))) => {}
            None => return Poll::Ready(Some(Err(Problem::Length))),
        }
        next
    }
}

impl Body {
    /// A body that nobody counts.
    pub fn new(content: Content) -> Self {
        Self { content, exchange: None, connection: None }
    }

    /// Ends the exchange when the body ends, and has the connection reset if it breaks off.
    pub fn counted(content: Content, mut exchange: Exchange, connection: Option<Arc<Connection>>) -> Self {
        if content.length() == Some(0) {
            exchange.complete();
        }
        Self { content, exchange: Some(exchange), connection }
    }

    fn note(&mut self, next: &Option<Result<Bytes, Problem>>) {
        if let (Some(Err(_)), Some(connection)) = (next, &self.connection) {
            connection.reset_on_close();
        }
        let Some(exchange) = &mut self.exchange else { return };
        match next {
            Some(Ok(bytes)) => {
                exchange.sent(bytes.len());
                if self.content.length() == Some(0) {
                    exchange.complete();
                }
            }
            Some(Err(problem)) => {
                tracing::warn!(%problem, "a response broke off after its head");
                exchange.abort(problem.abort_reason());
            }
            None => exchange.complete(),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Problem;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Problem>>> {
        let next = std::task::ready!(self.content.poll_next(cx));
        self.note(&next);
        Poll::Ready(next.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        self.content.length().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
