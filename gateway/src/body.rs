//! [`Body`]: the body of a response.
//!
//! Goals: an incomplete body never looks complete: it ends in an error, and hyper closes the connection; bytes are not
//! copied; nothing is produced before it is polled.

use crate::errors::Problem;
use crate::listen::connection::Connection;
use crate::metrics::Exchange;
use crate::prefetch::PageTap;
use crate::recent_errors::RecentErrors;
use crate::running::RunningRequest;
use bytes::Bytes;
use content::unixfs::file::FileReader;
use futures::stream::{BoxStream, Stream, StreamExt as _};
use http_body::{Frame, SizeHint};
use services::limiter::Permit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A response's body, which ends its exchange.
pub struct Body {
    content: Content,
    exchange: Exchange,
    connection: Arc<Connection>,
    limits: BodyLimits,
    /// Its entry in the list of running requests, unless the whole body was available at once.
    listed: Option<ListedRequest>,
    /// Reads the body, if it is a page whose subresources are prefetched.
    page: Option<PageTap>,
    /// The permit of a client whose requests are limited.
    _permit: Option<Permit>,
}

/// The entry of a request in the list of running requests, and the list of errors for which it is described there.
pub struct ListedRequest {
    /// The entry.
    pub entry: RunningRequest,
    /// The latest errors.
    pub errors: Arc<RecentErrors>,
}

/// The source of a response's bytes.
pub enum Content {
    /// No (more) bytes.
    Empty,
    /// Bytes in memory.
    Bytes(Bytes),
    /// A file.
    File {
        /// The bytes that were read already.
        first: Option<Bytes>,
        /// The rest.
        reader: Box<FileReader>,
        /// The number of remaining bytes, those in `first` included.
        remaining: u64,
    },
    /// A page, an archive or a multipart range.
    Stream {
        /// The bytes.
        stream: BoxStream<'static, Result<Bytes, Problem>>,
        /// The number of remaining bytes, if known.
        remaining: Option<u64>,
    },
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Content({:?} bytes)", self.length())
    }
}

impl Content {
    /// The number of remaining bytes, if known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::File { remaining, .. } => Some(*remaining),
            Self::Stream { remaining, .. } => *remaining,
        }
    }

    /// Whether one poll returns the whole content.
    pub fn is_in_memory(&self) -> bool {
        match self {
            Self::Empty | Self::Bytes(_) => true,
            Self::File { first, remaining, .. } => first.as_ref().is_some_and(|first| first.len() as u64 == *remaining),
            Self::Stream { .. } => false,
        }
    }

    /// The next bytes; `None` only at the true end.
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

    /// Checks the length of a source against its declared length. Sources check it as well; this is a second check,
    /// because the `Content-Length` was already sent.
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

/// The limits of a response.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// The maximum length, in bytes.
    pub bytes_max: u64,
    /// The deadline of the last byte.
    pub deadline: Instant,
}

impl Body {
    /// A body that ends its exchange, and resets the connection if it is aborted.
    pub fn new(content: Content, mut exchange: Exchange, connection: Arc<Connection>, limits: BodyLimits) -> Self {
        if content.length() == Some(0) {
            exchange.complete();
        }
        Self { content, exchange, connection, limits, listed: None, page: None, _permit: None }
    }

    /// Keeps the entry in the list of running requests until the body is dropped.
    #[must_use]
    pub fn listed(self, listed: Option<ListedRequest>) -> Self {
        Self { listed, ..self }
    }

    /// Lets a page be read as it is sent.
    #[must_use]
    pub fn with_page(self, page: Option<PageTap>) -> Self {
        Self { page, ..self }
    }

    /// Keeps a permit until the body is dropped.
    #[must_use]
    pub fn with_permit(self, permit: Option<Permit>) -> Self {
        Self { _permit: permit, ..self }
    }

    /// Fetches have stall timeouts and writes have send timeouts, so the deadline is checked only when there are bytes
    /// to send. Content that was available at once is sent even after the deadline: it includes the error page of the
    /// timeout.
    fn check(&mut self, next: Option<Result<Bytes, Problem>>, in_memory: bool) -> Option<Result<Bytes, Problem>> {
        let Some(Ok(bytes)) = next else { return next };
        let BodyLimits { bytes_max, deadline } = self.limits;
        let left = bytes_max.checked_sub(bytes.len() as u64);
        let problem = match left {
            None => Problem::TooLong,
            Some(_) if !in_memory && Instant::now() > deadline => Problem::TooSlow,
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
                    listed.entry.sent(bytes.len());
                }
                if let Some(page) = &mut self.page {
                    page.pass(bytes);
                }
                if self.content.length() == Some(0) {
                    self.complete();
                }
            }
            Some(Err(problem)) => {
                self.connection.response_aborted();
                tracing::warn!(%problem, "a response was aborted after its head was sent");
                // Only bodies that need more than one step can fail, and they are listed.
                if let Some(ListedRequest { entry, errors }) = &self.listed {
                    errors.aborted(entry.snapshot(), problem, self.exchange.trace_id());
                }
                self.exchange.abort(problem.abort_reason());
            }
            None => self.complete(),
        }
    }

    /// The whole body was sent.
    fn complete(&mut self) {
        self.exchange.complete();
        if let Some(mut page) = self.page.take() {
            page.end();
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Problem;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Problem>>> {
        let in_memory = matches!(self.content, Content::Bytes(_));
        let Poll::Ready(next) = self.content.poll_bytes(cx) else {
            if let Some(listed) = &self.listed {
                listed.entry.waits();
            }
            self.exchange.waits_for_content(true);
            return Poll::Pending;
        };
        self.exchange.waits_for_content(false);
        let next = self.check(next, in_memory);
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
