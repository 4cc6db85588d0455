//! Short frames on a stream: the requests and the control messages of an asker.
//!
//! Goals: memory only for bytes that were received; a bounded time from the first byte of a frame to its last. Answers,
//! which are large, are read with [`crate::framing`].

use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt};
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// The initial size of the buffer, in bytes.
const FIRST_ALLOCATION_BYTES: usize = 512;

/// Reads the next frame, of at most `bytes_max`, without its length; `None` if the stream ends before it.
///
/// A stream may be idle between frames without limit, but a frame has to be complete within `time`.
///
/// # Errors
/// `InvalidData` for a longer frame, `TimedOut`, `UnexpectedEof` if the stream ends within a frame, and errors of the
/// stream.
pub async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    bytes_max: usize,
    time: Duration,
) -> io::Result<Option<Bytes>> {
    let mut first = [0];
    if stream.read(&mut first).await? == 0 {
        return Ok(None);
    }
    let read = timeout(time, read_rest(first[0], stream, bytes_max)).await;
    read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map(Some)
}

async fn read_rest(first: u8, stream: &mut (impl AsyncRead + Unpin), bytes_max: usize) -> io::Result<Bytes> {
    let length = read_length(first, stream, bytes_max).await?;
    let mut frame = Vec::new();
    while frame.len() < length {
        let read = frame.len();
        frame.resize(length.min((2 * read).max(FIRST_ALLOCATION_BYTES)), 0);
        stream.read_exact(&mut frame[read..]).await?;
    }
    Ok(frame.into())
}

/// Reads the rest of an unsigned varint.
async fn read_length(first: u8, stream: &mut (impl AsyncRead + Unpin), bytes_max: usize) -> io::Result<usize> {
    let (mut byte, mut value) = ([first], 0_u64);
    for shift in (0..).step_by(7) {
        value |= u64::from(byte[0] & 0x7f) << shift;
        if value > bytes_max as u64 || shift >= 28 {
            let reason = format!("a message exceeds the limit of {bytes_max} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        if byte[0] & 0x80 == 0 {
            break;
        }
        stream.read_exact(&mut byte).await?;
    }
    // At most the limit.
    Ok(value as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::io::Cursor;

    const MAX: usize = 32 * 1024;
    const TIME: Duration = Duration::from_millis(50);

    fn read(bytes: Vec<u8>) -> Result<Option<usize>, io::ErrorKind> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let frame = runtime.block_on(read_frame(&mut Cursor::new(bytes), MAX, TIME));
        frame.map(|frame| frame.map(|frame| frame.len())).map_err(|error| error.kind())
    }

    fn framed(length: usize, sent: usize) -> Vec<u8> {
        let mut out = Vec::new();
        prost::encoding::encode_varint(length as u64, &mut out);
        out.resize(out.len() + sent, 7);
        out
    }

    #[test]
    fn frames_within_the_limit_are_read() {
        for length in [0, 1, 127, 128, 511, 512, 513, 5_000, MAX] {
            assert_eq!(read(framed(length, length)), Ok(Some(length)));
        }
        assert_eq!(read(vec![]), Ok(None));
    }

    #[test]
    fn long_and_truncated_frames_are_errors() {
        let table = [
            (framed(MAX + 1, MAX + 1), io::ErrorKind::InvalidData),
            (vec![0xff; 20], io::ErrorKind::InvalidData),
            (vec![0x80; 20], io::ErrorKind::InvalidData),
            (vec![0x80], io::ErrorKind::UnexpectedEof),
            (framed(100, 99), io::ErrorKind::UnexpectedEof),
        ];
        for (bytes, error) in table {
            assert_eq!(read(bytes.clone()), Err(error), "{:?}", &bytes[..bytes.len().min(8)]);
        }
    }

    #[tokio::test]
    async fn an_incomplete_frame_times_out_and_an_idle_stream_does_not() {
        struct Never;
        impl AsyncRead for Never {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
                _: &mut [u8],
            ) -> std::task::Poll<io::Result<usize>> {
                std::task::Poll::Pending
            }
        }
        let mut stream = Cursor::new(framed(1_000, 10)).chain(Never);
        let error = read_frame(&mut stream, MAX, TIME).await.expect_err("is incomplete");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let idle = timeout(4 * TIME, read_frame(&mut Never, MAX, TIME)).await;
        assert!(idle.is_err());
    }

    #[test]
    fn frames_follow_each_other() {
        let mut stream = Cursor::new([framed(3, 3), framed(0, 0), framed(200, 200)].concat());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let lengths: Vec<usize> = runtime.block_on(async {
            let mut lengths = Vec::new();
            while let Some(frame) = read_frame(&mut stream, MAX, TIME).await.expect("reads") {
                lengths.push(frame.len());
            }
            lengths
        });
        assert_eq!(lengths, [3, 0, 200]);
    }
}
