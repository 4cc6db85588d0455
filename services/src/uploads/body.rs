//! [`Meter`]: a metered body with limits.
//!
//! After an upload fails, the rest of its body must be read for a while (lingering close), or the client would not
//! receive the error. So the body is shared between the reader and the handler.

use super::request_body::{RequestBody, Upload, boxed};
use crate::uploads::limits::UploadAllowance;
use crate::uploads::resumable::store::StoredBytes;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, ReadBuf};

/// A metered body.
#[derive(Clone)]
pub struct Meter(Arc<Mutex<Inner>>);

struct Inner {
    /// The source, until the rest of it is taken back.
    source: Option<Source>,
    /// The reader, if it waits for the source.
    waiting: Option<Waker>,
    bytes_read: u64,
    allowance: UploadAllowance,
}

enum Source {
    Upload(Upload),
    Stored(StoredBytes),
}

impl Meter {
    /// Reads the body of a request, with a timeout if the client stalls.
    pub fn of_body(body: RequestBody, allowance: UploadAllowance) -> Self {
        Self::new(Source::Upload(Upload::new(body)), allowance)
    }

    /// Reads bytes that are stored.
    pub fn of_stored(bytes: StoredBytes, allowance: UploadAllowance) -> Self {
        Self::new(Source::Stored(bytes), allowance)
    }

    fn new(source: Source, allowance: UploadAllowance) -> Self {
        Self(Arc::new(Mutex::new(Inner { source: Some(source), waiting: None, bytes_read: 0, allowance })))
    }

    /// The number of bytes that were read.
    pub fn bytes_read(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).bytes_read
    }

    /// Takes the unread rest. Nothing can be read after this; a reader that waits ends with an error.
    pub fn into_rest(self) -> RequestBody {
        let (source, waiting) = {
            let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (inner.source.take(), inner.waiting.take())
        };
        waiting.into_iter().for_each(Waker::wake);
        match source {
            Some(Source::Upload(upload)) => upload.into_rest(),
            Some(Source::Stored(_)) | None => boxed(http_body_util::Empty::new()),
        }
    }
}

impl AsyncRead for Meter {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { source, waiting, bytes_read, allowance } = &mut *inner;
        let before = buf.filled().len();
        let read = match source {
            Some(Source::Upload(upload)) => Pin::new(upload).poll_read(cx, buf),
            Some(Source::Stored(bytes)) => bytes.as_mut().poll_read(cx, buf),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        };
        *waiting = read.is_pending().then(|| cx.waker().clone());
        std::task::ready!(read)?;
        *bytes_read += (buf.filled().len() - before) as u64;
        Poll::Ready(allowance.check(*bytes_read).map_err(io::Error::other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uploads::UploadError;
    use http_body_util::{BodyExt as _, Full};
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn a_body_ends_at_its_limits_with_an_error_that_names_them() {
        let table = [
            (10, None, Some(10), "complete"),
            (9, None, None, "uploads.bytes_max"),
            (100, Some((50, 9)), None, "9 of 50 bytes are left"),
            (100, None, Some(9), "cache.disk_bytes_max"),
        ];
        for (bytes_max, quota, cache_bytes_max, words) in table {
            let allowance = UploadAllowance { bytes_max, quota, cache_bytes_max };
            let meter = Meter::of_body(boxed(Full::from("0123456789")), allowance);
            let read = meter.clone().read_to_end(&mut Vec::new()).await;
            let said = read.map_or_else(|error| UploadError::from(error).to_string(), |_| "complete".to_owned());
            assert!(said.contains(words), "{said}");
            assert_eq!(meter.bytes_read(), 10);
        }
    }

    #[tokio::test]
    async fn the_unread_rest_can_be_taken_back() {
        let allowance = UploadAllowance { bytes_max: 100, quota: None, cache_bytes_max: None };
        let meter = Meter::of_body(boxed(Full::from("0123456789")), allowance);
        let mut reader = meter.clone();
        reader.read_exact(&mut [0; 0]).await.expect("nothing");
        let rest = meter.into_rest().collect().await.expect("reads").to_bytes();
        assert_eq!(rest, "0123456789");
        assert!(reader.read(&mut [0; 4]).await.is_err());
    }

    #[tokio::test]
    async fn a_reader_that_waits_ends_when_the_rest_is_taken_back() {
        let allowance = UploadAllowance { bytes_max: 100, quota: None, cache_bytes_max: None };
        // Of a writer that writes nothing.
        let (_writer, bytes) = tokio::io::duplex(16);
        let meter = Meter::of_stored(Box::pin(bytes), allowance);
        let mut reader = meter.clone();
        let reading = async move { reader.read(&mut [0; 4]).await };
        let ending = async {
            tokio::task::yield_now().await;
            drop(meter.into_rest());
        };
        let ended = tokio::time::timeout(std::time::Duration::from_secs(30), async { tokio::join!(reading, ending) });
        let (read, ()) = ended.await.expect("it ends");
        assert_eq!(read.expect_err("nothing is left").kind(), io::ErrorKind::BrokenPipe);
    }
}
