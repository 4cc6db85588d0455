//! Length-prefixed frames on a Bitswap stream, read within a budget.
//!
//! Goals: a peer pays for memory with bytes that it really sent. The declared length only bounds a frame; the buffer
//! starts small and takes its full size once the peer has proved that it sends. Frames of a connection share a byte
//! budget, and a frame that nobody can have asked for is read and thrown away without being kept.

use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::message::MAX_MESSAGE_BYTES;

/// What the buffer holds before the peer has sent anything, in bytes.
const FIRST_ALLOCATION_BYTES: usize = 64 * 1024;
/// Frames from a peer that we asked nothing of are kept up to this size: a full wantlist and room to spare.
pub const UNSOLICITED_BYTES_MAX: usize = 512 * 1024;
/// Bytes of frames that one connection may hold in memory at once.
pub const CONNECTION_BUDGET_BYTES: usize = 2 * MAX_MESSAGE_BYTES;

/// What became of a frame.
pub enum Frame {
    /// A frame to decode; the permit returns its bytes to the connection's budget when dropped.
    Whole(Bytes, OwnedSemaphorePermit),
    /// A large frame that nothing was asked for; it was skipped.
    Unsolicited,
    /// The peer closed the stream.
    End,
}

/// Reads the next frame. `solicited` says whether this peer owes us blocks.
///
/// # Errors
/// `InvalidData` when the declared length is over the protocol's limit, `UnexpectedEof` when the stream ends inside a
/// frame, `TimedOut` when a frame that began does not end within `patience`, and whatever the stream itself reports.
pub async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    budget: &Arc<Semaphore>,
    solicited: impl Fn() -> bool,
    patience: Duration,
) -> io::Result<Frame> {
    // A stream may rest between frames for as long as it likes; a frame that began has to end.
    let Some(length) = read_length(stream).await? else { return Ok(Frame::End) };
    timeout(patience, read_body(stream, length, budget, solicited)).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn read_body(
    stream: &mut (impl AsyncRead + Unpin),
    length: usize,
    budget: &Arc<Semaphore>,
    solicited: impl Fn() -> bool,
) -> io::Result<Frame> {
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {length} bytes is over the limit"),
        ));
    }
    if length > UNSOLICITED_BYTES_MAX && !solicited() {
        skip(stream, length).await?;
        return Ok(Frame::Unsolicited);
    }
    let permits = u32::try_from(length).map_err(io::Error::other)?;
    let permit = budget.clone().acquire_many_owned(permits).await.map_err(io::Error::other)?;
    let mut buffer = vec![0; length.min(FIRST_ALLOCATION_BYTES)];
    stream.read_exact(&mut buffer).await?;
    if length > buffer.len() {
        let read = buffer.len();
        buffer.reserve_exact(length - read);
        buffer.resize(length, 0);
        stream.read_exact(&mut buffer[read..]).await?;
    }
    Ok(Frame::Whole(buffer.into(), permit))
}

/// An unsigned varint, or `None` at a clean end of the stream.
async fn read_length(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<usize>> {
    let mut value: u64 = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        if stream.read(&mut byte).await? == 0 {
            return if shift == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return Ok(Some(usize::try_from(value).unwrap_or(usize::MAX)));
        }
        // Already more than any accepted length: read no further digits of it.
        if value > MAX_MESSAGE_BYTES as u64 {
            return Ok(Some(usize::MAX));
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "a length prefix without end"))
}

async fn skip(stream: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<()> {
    let mut scratch = [0; 16 * 1024];
    let mut left = length;
    while left > 0 {
        let part = left.min(scratch.len());
        stream.read_exact(&mut scratch[..part]).await?;
        left -= part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::io::Cursor;

    fn read(bytes: Vec<u8>, solicited: bool) -> io::Result<Frame> {
        let budget = Arc::new(Semaphore::new(CONNECTION_BUDGET_BYTES));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let patience = Duration::from_secs(60);
        runtime.block_on(read_frame(&mut Cursor::new(bytes), &budget, || solicited, patience))
    }

    fn framed(length: usize) -> Vec<u8> {
        let mut out = Vec::new();
        prost::encoding::encode_varint(length as u64, &mut out);
        out.resize(out.len() + length, 7);
        out
    }

    #[test]
    fn frames_of_every_size_come_whole() {
        for length in [0, 1, 127, 128, FIRST_ALLOCATION_BYTES, FIRST_ALLOCATION_BYTES + 1, MAX_MESSAGE_BYTES] {
            match read(framed(length), true).expect("reads") {
                Frame::Whole(bytes, _) => assert_eq!(bytes.len(), length),
                _ => panic!("{length}"),
            }
        }
    }

    #[test]
    fn endings_and_excess_are_told_apart() {
        assert!(matches!(read(vec![], true), Ok(Frame::End)));
        assert_eq!(read(vec![5, 1], true).err().map(|e| e.kind()), Some(io::ErrorKind::UnexpectedEof));
        assert_eq!(read(vec![0x80], true).err().map(|e| e.kind()), Some(io::ErrorKind::UnexpectedEof));
        assert_eq!(read(vec![0xff; 20], true).err().map(|e| e.kind()), Some(io::ErrorKind::InvalidData));
        let over = framed(MAX_MESSAGE_BYTES + 1);
        assert_eq!(read(over, true).err().map(|e| e.kind()), Some(io::ErrorKind::InvalidData));
    }

    #[test]
    fn a_large_frame_that_nobody_asked_for_is_not_kept() {
        assert!(matches!(read(framed(UNSOLICITED_BYTES_MAX + 1), false), Ok(Frame::Unsolicited)));
        assert!(matches!(read(framed(UNSOLICITED_BYTES_MAX), false), Ok(Frame::Whole(..))));
    }
}
