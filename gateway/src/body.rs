//! [`Body`]: what hyper pulls a response's bytes from.
//!
//! Goals: a body that cannot be completed is never made to look complete: it ends in an error, upon which hyper breaks the
//! connection; bytes travel uncopied; nothing is produced before it is asked for.

use crate::errors::Problem;
use crate::listen::server::Connection;
use crate::metrics::Exchange;
use crate::running::Listed;
use bytes::Bytes;
use content::unixfs::file::FileReader;
use futures::stream::{BoxStream, Stream, StreamExt as _};
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A response's body and the end of its exchange.
pub struct Body {
    content: Content,
    exchange: Exchange,
    connection: Arc<Connection>,
    limits: BodyLimits,
    /// In the list of running requests, unless all of it was at hand.
    listed: Option<Listed>,
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
    /// A page, an archive or several parts of a file.
    Stream {
        /// The bytes.
        stream: BoxStream<'static, Result<Bytes, Problem>>,
        /// Bytes to come, if that is known.
        remaining: Option<u64>,
    },
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
            Self::Stream { remaining, .. } => *remaining,
        }
    }

    /// Whether the first step gives all that there is.
    pub fn is_at_hand(&self) -> bool {
        match self {
            Self::Empty | Self::Bytes(_) => true,
            Self::File { first, remaining, .. } => first.as_ref().is_some_and(|first| first.len() as u64 == *remaining),
            Self::Stream { .. } => false,
        }
    }

    /// The next bytes; `None` only at a true end.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Problem>>> {
        match std::mem::replace(self, Self::Empty) {
            Self::Empty => Poll::Ready(None),
            Self::Bytes(bytes) => Poll::Ready((!bytes.is_empty()).then_some(Ok(bytes))),
            Self::File { mut first, mut reader, remaining } => {
                let next = match first.take() {
                    Some(bytes) => Poll::Ready(Some(Ok(bytes))),
                    None => reader.poll_next_unpin(cx),
                };
                let next = next.map_err(Problem::from);
                self.count(next, remaining, |remaining| Self::File { first: None, reader, remaining })
            }
            Self::Stream { mut stream, remaining: None } => {
                let next = stream.poll_next_unpin(cx);
                if !matches!(next, Poll::Ready(None | Some(Err(_)))) {
                    *self = Self::Stream { stream, remaining: None };
                }
                next
            }
            Self::Stream { mut stream, remaining: Some(remaining) } => {
                let next = stream.poll_next_unpin(cx);
                self.count(next, remaining, |remaining| Self::Stream { stream, remaining: Some(remaining) })
            }
        }
    }

    /// Counts what a source of known length gave. Sources check lengths as well: this is the last line of defence, because
    /// a `Content-Length` was sent.
    fn count(
        &mut self,
        next: Poll<Option<Result<Bytes, Problem>>>,
        remaining: u64,
        rest: impl FnOnce(u64) -> Self,
    ) -> Poll<Option<Result<Bytes, Problem>>> {
        let left = match &next {
            Poll::Pending => Some(remaining),
            Poll::Ready(Some(Ok(bytes))) => remaining.checked_sub(bytes.len() as u64),
            Poll::Ready(_) => None,
        };
        match left {
            Some(0) => {}
            Some(remaining) => *self = rest(remaining),
            None if matches!(next, Poll::Ready(Some(Err(_)))) => {}
            None => return Poll::Ready(Some(Err(Problem::Length))),
        }
        next
    }
}

impl Stream for Content {
    type Item = Result<Bytes, Problem>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_bytes(cx)
    }
}

/// What a response may cost until its last byte.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Bytes of it.
    pub bytes_max: u64,
    /// When it has to be over.
    pub deadline: Instant,
}

impl Body {
    /// A body that ends its exchange when it ends, and has the connection reset if it breaks off.
    pub fn new(content: Content, mut exchange: Exchange, connection: Arc<Connection>, limits: BodyLimits) -> Self {
        if content.length() == Some(0) {
            exchange.complete();
        }
        Self { content, exchange, connection, limits, listed: None }
    }

    /// The same for a request that is listed as running, until the body is dropped.
    #[must_use]
    pub fn listed(self, listed: Option<Listed>) -> Self {
        Self { listed, ..self }
    }

    /// Waits are bounded by the stall time of what is fetched and the send time-out of who reads, so it suffices to look at
    /// the clock when there is something to send. What was at hand as a whole is sent, late or not: among it are the pages
    /// that say that something took too long.
    fn check(&mut self, next: Option<Result<Bytes, Problem>>, at_hand: bool) -> Option<Result<Bytes, Problem>> {
        let Some(Ok(bytes)) = next else { return next };
        let BodyLimits { bytes_max, deadline } = self.limits;
        let left = bytes_max.checked_sub(bytes.len() as u64);
        let problem = match left {
            None => Problem::TooLong,
            Some(_) if !at_hand && Instant::now() > deadline => Problem::TooSlow,
            Some(left) => {
                self.limits.bytes_max = left;
                return Some(Ok(bytes));
            }
        };
        self.content = Content::Empty;
        Some(Err(problem))
    }

    fn note(&mut self, next: &Option<Result<Bytes, Problem>>) {
        match next {
            Some(Ok(bytes)) => {
                self.exchange.sent(bytes.len());
                if let Some(listed) = &self.listed {
                    listed.sent(bytes.len());
                }
                if self.content.length() == Some(0) {
                    self.exchange.complete();
                }
            }
            Some(Err(problem)) => {
                self.connection.reset_on_close();
                tracing::warn!(%problem, "a response broke off after its head");
                self.exchange.abort(problem.abort_reason());
            }
            None => self.exchange.complete(),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Problem;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Problem>>> {
        let at_hand = matches!(self.content, Content::Bytes(_));
        let Poll::Ready(next) = self.content.poll_bytes(cx) else {
            if let Some(listed) = &self.listed {
                listed.waits();
            }
            return Poll::Pending;
        };
        let next = self.check(next, at_hand);
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
