//! [`Upload`]: a reader of a request's body, with a timeout if the client stalls.

use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The timeout of a read while the client sends nothing. Time in which the gateway does not read does not count.
const STALL: Duration = Duration::from_secs(60);

/// Why reading a body failed.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// The body of a request, independent of the HTTP library.
pub type RequestBody = UnsyncBoxBody<Bytes, BodyError>;

/// Converts the body of a request of any HTTP library.
pub fn boxed<B>(body: B) -> RequestBody
where
    B: http_body::Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
{
    body.map_err(Into::into).boxed_unsync()
}

/// A body that is read in a streaming fashion: only the last piece is buffered.
pub struct Upload {
    body: RequestBody,
    piece: Bytes,
    timeout: Duration,
    stall: Pin<Box<Sleep>>,
    waiting: bool,
}

impl Upload {
    /// Reads a body.
    pub fn new(body: RequestBody) -> Self {
        Self::with_timeout(body, STALL)
    }

    fn with_timeout(body: RequestBody, timeout: Duration) -> Self {
        let stall = Box::pin(tokio::time::sleep(timeout));
        Self { body, piece: Bytes::new(), timeout, stall, waiting: false }
    }

    /// The unread rest of the body.
    pub fn into_rest(self) -> RequestBody {
        self.body
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        while let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(cx) {
            self.waiting = false;
            let Some(frame) = next.transpose().map_err(broken)? else { return Poll::Ready(Ok(None)) };
            // Trailers are ignored.
            if let Ok(piece) = frame.into_data() {
                return Poll::Ready(Ok(Some(piece)));
            }
        }
        if !std::mem::replace(&mut self.waiting, true) {
            let until = Instant::now() + self.timeout;
            self.stall.as_mut().reset(until);
        }
        std::task::ready!(self.stall.as_mut().poll(cx));
        let words = format!("the client sent nothing for {} s", self.timeout.as_secs());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, words)))
    }
}

/// Converts the error of a body: [`io::ErrorKind::TimedOut`] if the client is too slow, which its connection reports
/// with the same kind, or [`io::ErrorKind::ConnectionAborted`].
pub fn broken(error: BodyError) -> io::Error {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(found) = cause {
        match found.downcast_ref::<io::Error>() {
            Some(slow) if slow.kind() == io::ErrorKind::TimedOut => {
                return io::Error::new(io::ErrorKind::TimedOut, slow.to_string());
            }
            _ => cause = found.source(),
        }
    }
    io::Error::new(io::ErrorKind::ConnectionAborted, error)
}

impl AsyncRead for Upload {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.piece.is_empty() {
            match std::task::ready!(self.poll_piece(cx))? {
                Some(piece) => self.piece = piece,
                None => return Poll::Ready(Ok(())),
            }
        }
        let taken = self.piece.len().min(buf.remaining());
        buf.put_slice(&self.piece.split_to(taken));
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::io::AsyncReadExt as _;

    fn body_of(pieces: impl futures::Stream<Item = io::Result<Bytes>> + Send + 'static) -> RequestBody {
        boxed(StreamBody::new(pieces.map(|piece| piece.map(Frame::data))))
    }

    fn pieces(pieces: &[&'static str]) -> Vec<io::Result<Bytes>> {
        pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect()
    }

    #[tokio::test]
    async fn a_body_is_read_and_its_unread_rest_returned() {
        let mut upload = Upload::new(body_of(stream::iter(pieces(&["one", "", "two", "three"]))));
        let mut read = [0; 5];
        upload.read_exact(&mut read).await.expect("it was sent");
        assert_eq!(&read, b"onetw");
        let rest = upload.into_rest().collect().await.expect("reads").to_bytes();
        assert_eq!(rest, "three");
    }

    #[tokio::test]
    async fn a_stalled_client_times_out() {
        let silent = stream::iter(pieces(&["one", "two"])).chain(stream::pending());
        let mut upload = Upload::with_timeout(body_of(silent), Duration::from_millis(10));
        let mut read = Vec::new();
        let error = upload.read_to_end(&mut read).await.expect_err("it never ends");
        assert_eq!((error.kind(), &read[..]), (io::ErrorKind::TimedOut, &b"onetwo"[..]));
        for (kind, expected) in [
            (io::ErrorKind::Other, io::ErrorKind::ConnectionAborted),
            (io::ErrorKind::TimedOut, io::ErrorKind::TimedOut),
        ] {
            let broken = stream::iter([Err::<Bytes, _>(io::Error::new(kind, "what went wrong"))]);
            let error = Upload::new(body_of(broken)).read_to_end(&mut read).await.expect_err("broken off");
            assert_eq!(error.kind(), expected);
        }
    }
}
