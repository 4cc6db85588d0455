//! Length-prefixed frames on a stream of Bitswap, the DAG protocol or look-ups of a site, read within memory budgets
//! and timeouts.
//!
//! Goals: a peer gets memory only for bytes that it has sent, and only while it makes progress. The declared length is
//! only an upper bound; the buffer starts small and doubles as it fills. The frames of all connections share one budget
//! ([`Memory`]), those of a connection have a smaller one, and large unsolicited frames are skipped without buffering.
//!
//! Fairness: each doubling must be filled within a timeout, which is shorter while less than a quarter of the budget is
//! free ([`Timeouts`]), so slow senders hold little memory for a short time. Slowness is no offence; having stopped at
//! the timeout is ([`Frame::Stalled`]). A frame that finds the budget exhausted waits for a while and is then dropped,
//! and its blocks are requested again.

use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::traffic::Traffic;

/// The maximum length of a received message, in bytes: the maximum that the Go implementation sends.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// The initial size of the buffer, in bytes.
const FIRST_ALLOCATION_BYTES: usize = 4 * 1024;
/// Smaller frames do not count as progress of requested blocks: a peer with outstanding blocks may still send wants.
const PROGRESS_BYTES_MIN: usize = 16 * 1024;
/// The maximum size of unsolicited frames: more than a full wantlist.
pub const UNSOLICITED_BYTES_MAX: usize = 512 * 1024;
/// The memory budget of one connection's frames, in bytes.
pub const CONNECTION_BUDGET_BYTES: usize = 2 * MAX_MESSAGE_BYTES;
/// How long after the last request a peer may send large messages.
const SOLICITED_FOR: Duration = Duration::from_secs(600);

/// Timeouts for reading a frame.
#[derive(Debug, Clone, Copy)]
struct Timeouts {
    /// For filling the buffer before it is doubled.
    step: Duration,
    /// The same while memory is short.
    step_under_pressure: Duration,
    /// At the timeout, a peer that sent nothing for this long has stalled; otherwise it is slow.
    quiet: Duration,
    /// For waiting for memory.
    memory: Duration,
}

impl Default for Timeouts {
    /// 256 KiB frames pass at 7 KB/s or more, 4 MiB frames at 105 KB/s.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { step: seconds(20), step_under_pressure: seconds(5), quiet: seconds(4), memory: seconds(5) }
    }
}

/// The result of reading a frame.
pub enum Frame {
    /// A complete frame. Its memory is returned to the budgets when the permits are dropped.
    Whole(Bytes, Permits),
    /// A large unsolicited frame, which was skipped, or timed out.
    Unsolicited,
    /// The peer stopped in the middle of the frame.
    Stalled,
    /// The peer closed the stream.
    End,
}

/// A frame's permits of its connection's budget and the shared one.
pub struct Permits {
    connection: OwnedSemaphorePermit,
    memory: OwnedSemaphorePermit,
}

impl Permits {
    /// The permit of the connection's budget, and that of the shared one.
    pub fn split(self) -> (OwnedSemaphorePermit, OwnedSemaphorePermit) {
        (self.connection, self.memory)
    }
}

/// The memory budget of all connections' frames, in bytes. Clones share it.
#[derive(Debug, Clone)]
pub struct Memory {
    bytes: Arc<Semaphore>,
    bytes_max: usize,
    timeouts: Timeouts,
}

impl Memory {
    /// A budget of at least one message and at most what a semaphore can count.
    pub fn new(bytes: usize) -> Self {
        let bytes_max = bytes.clamp(MAX_MESSAGE_BYTES, Semaphore::MAX_PERMITS);
        Self { bytes: Arc::new(Semaphore::new(bytes_max)), bytes_max, timeouts: Timeouts::default() }
    }

    /// A budget with short timeouts, for tests.
    #[cfg(test)]
    pub(super) fn with_short_timeouts(bytes: usize) -> Self {
        let [step, quiet] = [20, 10].map(Duration::from_millis);
        let timeouts = Timeouts { step, step_under_pressure: step, quiet, memory: step };
        Self { timeouts, ..Self::new(bytes) }
    }

    /// A budget that is short of time while memory is short, for tests.
    #[cfg(test)]
    pub(super) fn hasty_under_pressure(bytes: usize, quiet: Duration) -> Self {
        let timeouts = Timeouts { step_under_pressure: Duration::from_millis(20), quiet, ..Timeouts::default() };
        Self { timeouts, ..Self::new(bytes) }
    }

    /// Takes bytes, and waits for them for a few seconds.
    ///
    /// # Errors
    /// `OutOfMemory` if they are not free by then.
    pub async fn take(&self, bytes: usize) -> io::Result<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes).map_err(io::Error::other)?;
        let taken = timeout(self.timeouts.memory, Arc::clone(&self.bytes).acquire_many_owned(permits)).await;
        taken.map_err(|_| io::ErrorKind::OutOfMemory)?.map_err(io::Error::other)
    }

    /// Takes bytes if they are free.
    pub fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.bytes).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }

    /// The size of the budget, in bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// How long a peer may take to send as much as it has sent of a message: less while memory is short.
    pub fn step_timeout(&self) -> Duration {
        let short = self.bytes.available_permits() < self.bytes_max / 4;
        if short { self.timeouts.step_under_pressure } else { self.timeouts.step }
    }

    /// The same while memory is not short.
    pub fn step_timeout_max(&self) -> Duration {
        self.timeouts.step
    }

    /// How long a peer sends nothing that has stalled, if it is late. Otherwise it is slow.
    pub fn quiet_timeout(&self) -> Duration {
        self.timeouts.quiet
    }
}

/// The budgets of one connection.
#[derive(Debug, Clone)]
pub struct Budgets {
    memory: Memory,
    connection: Arc<Semaphore>,
    traffic: Arc<Traffic>,
}

impl Budgets {
    /// The budgets of a new connection to a peer.
    pub fn new(memory: Memory, traffic: Arc<Traffic>) -> Self {
        Self { memory, connection: Arc::new(Semaphore::new(CONNECTION_BUDGET_BYTES)), traffic }
    }

    /// The state that the connections to the peer share.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Reads the next frame.
    ///
    /// # Errors
    /// `InvalidData` if the declared length exceeds the protocol's limit, `UnexpectedEof` if the stream ends within a
    /// frame, `TimedOut` if the peer sends too slowly, `OutOfMemory` if the shared budget is exhausted for too long,
    /// and errors of the stream.
    ///
    /// The time for a frame is bounded from its first byte on, excluding the wait for memory.
    pub async fn read_frame(&self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
        // A stream may be idle between frames without limit, but not within one.
        let mut first = [0];
        if stream.read(&mut first).await? == 0 {
            return Ok(Frame::End);
        }
        let length = timeout(self.memory.timeouts.step, read_length(first, stream)).await;
        let Ok(length) = length else { return Ok(Frame::Stalled) };
        let length = length?;
        if length > MAX_MESSAGE_BYTES {
            let reason = format!("a message of {length} bytes exceeds the limit");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        if length > UNSOLICITED_BYTES_MAX && !self.traffic.asked_within(SOLICITED_FOR) {
            let skipped = timeout(self.memory.timeouts.step, skip(stream, length)).await;
            return skipped.unwrap_or(Ok(())).map(|()| Frame::Unsolicited);
        }
        self.read_body(stream, length).await
    }

    async fn read_body(&self, stream: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<Frame> {
        let permits = u32::try_from(length).map_err(io::Error::other)?;
        let connection = Arc::clone(&self.connection).acquire_many_owned(permits).await.map_err(io::Error::other)?;
        let mut buffer = Vec::new();
        let mut memory = self.memory.take(0).await?;
        while buffer.len() < length {
            let read = buffer.len();
            let capacity = length.min((read * 2).max(FIRST_ALLOCATION_BYTES));
            memory.merge(self.memory.take(capacity - read).await?);
            buffer.reserve_exact(capacity - read);
            buffer.resize(capacity, 0);
            let mut last_read = Instant::now();
            let step = self.fill(stream, &mut buffer[read..], length >= PROGRESS_BYTES_MIN, &mut last_read);
            match timeout(self.memory.step_timeout(), step).await {
                Ok(filled) => filled?,
                Err(_) if last_read.elapsed() >= self.memory.timeouts.quiet => return Ok(Frame::Stalled),
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        Ok(Frame::Whole(buffer.into(), Permits { connection, memory }))
    }

    async fn fill(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        mut buffer: &mut [u8],
        is_progress: bool,
        last_read: &mut Instant,
    ) -> io::Result<()> {
        while !buffer.is_empty() {
            let read = stream.read(buffer).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            *last_read = Instant::now();
            self.traffic.count_received(read);
            if is_progress {
                self.traffic.note_bytes();
            }
            buffer = &mut buffer[read..];
        }
        Ok(())
    }
}

/// Reads the rest of an unsigned varint.
async fn read_length(mut byte: [u8; 1], stream: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
    let mut value: u64 = 0;
    for shift in (0..64).step_by(7) {
        if shift > 0 && stream.read(&mut byte).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return Ok(usize::try_from(value).unwrap_or(usize::MAX));
        }
        // It exceeds the limit already.
        if value > MAX_MESSAGE_BYTES as u64 {
            return Ok(usize::MAX);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the length prefix of a message is not terminated"))
}

async fn skip(stream: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<()> {
    let mut scratch = [0; 16 * 1024];
    let mut remaining = length;
    while remaining > 0 {
        let part = remaining.min(scratch.len());
        stream.read_exact(&mut scratch[..part]).await?;
        remaining -= part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::io::Cursor;
    use futures::{FutureExt, StreamExt, TryStreamExt};
    use std::pin::Pin;
    use std::task::{Context, Poll};

    const MIB: usize = 1024 * 1024;
    const MS: Duration = Duration::from_millis(1);

    fn budgets(solicited: bool, memory: &Memory) -> Budgets {
        let traffic = Arc::new(Traffic::default());
        if solicited {
            traffic.record_request();
        }
        Budgets::new(memory.clone(), traffic)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
    }

    fn read(bytes: Vec<u8>, solicited: bool) -> io::Result<Frame> {
        let budgets = budgets(solicited, &Memory::new(256 * MIB));
        runtime().block_on(budgets.read_frame(&mut Cursor::new(bytes)))
    }

    fn framed(length: usize) -> Vec<u8> {
        let mut out = Vec::new();
        prost::encoding::encode_varint(length as u64, &mut out);
        out.resize(out.len() + length, 7);
        out
    }

    #[test]
    fn frames_of_all_sizes_are_read() {
        for length in [0, 1, 127, 128, FIRST_ALLOCATION_BYTES, FIRST_ALLOCATION_BYTES + 1, MAX_MESSAGE_BYTES] {
            match read(framed(length), true).expect("reads") {
                Frame::Whole(bytes, _) => assert!(bytes.len() == length && bytes.iter().all(|byte| *byte == 7)),
                _ => panic!("{length}"),
            }
        }
    }

    #[test]
    fn ends_and_oversized_frames_are_distinguished() {
        assert!(matches!(read(vec![], true), Ok(Frame::End)));
        assert_eq!(read(vec![5, 1], true).err().map(|e| e.kind()), Some(io::ErrorKind::UnexpectedEof));
        assert_eq!(read(vec![0x80], true).err().map(|e| e.kind()), Some(io::ErrorKind::UnexpectedEof));
        assert_eq!(read(vec![0xff; 20], true).err().map(|e| e.kind()), Some(io::ErrorKind::InvalidData));
        let over = framed(MAX_MESSAGE_BYTES + 1);
        assert_eq!(read(over, true).err().map(|e| e.kind()), Some(io::ErrorKind::InvalidData));
    }

    #[test]
    fn large_unsolicited_frames_are_skipped() {
        assert!(matches!(read(framed(UNSOLICITED_BYTES_MAX + 1), false), Ok(Frame::Unsolicited)));
        assert!(matches!(read(framed(UNSOLICITED_BYTES_MAX), false), Ok(Frame::Whole(..))));
    }

    #[test]
    fn memory_grows_with_received_bytes_and_is_returned() {
        let memory = Memory::new(64 * MIB);
        let budgets = budgets(true, &memory);
        let frame = framed(MAX_MESSAGE_BYTES);
        // Bytes of the frame that were sent, and the maximum memory for them.
        for (sent, taken_max) in [(5, 64 << 10), (100 << 10, 128 << 10), (300 << 10, 512 << 10), (3 * MIB, 4 * MIB)] {
            let mut stream = unfinished(&frame[..sent]);
            runtime().block_on(async {
                let mut reading = Box::pin(budgets.read_frame(&mut stream));
                assert!((&mut reading).now_or_never().is_none());
                let taken = memory.bytes_max - memory.bytes.available_permits();
                assert!(taken > 0 && taken <= taken_max, "{taken} taken for {sent}");
            });
            assert_eq!(memory.bytes.available_permits(), memory.bytes_max);
        }
    }

    #[test]
    fn slow_senders_time_out_and_sooner_under_memory_pressure() {
        let frame = framed(MAX_MESSAGE_BYTES);
        let timeouts = Timeouts { step: 400 * MS, step_under_pressure: 20 * MS, quiet: 10 * MS, memory: 20 * MS };
        for (others_bytes, expected) in [(0, 400 * MS..Duration::MAX), (7 * MIB, 20 * MS..400 * MS)] {
            let memory = Memory { timeouts, ..Memory::new(8 * MIB) };
            let budgets = budgets(true, &memory);
            runtime().block_on(async {
                let others = memory.take(others_bytes).await.expect("there is capacity");
                let started = Instant::now();
                let result = budgets.read_frame(&mut unfinished(&frame[..1_000])).await;
                assert!(matches!(result, Ok(Frame::Stalled)));
                assert!(expected.contains(&started.elapsed()), "{:?}, not {expected:?}", started.elapsed());
                drop(others);
            });
        }
    }

    #[test]
    fn a_frame_without_memory_times_out() {
        let timeouts = Timeouts { memory: 20 * MS, ..Timeouts::default() };
        let memory = Memory { timeouts, ..Memory::new(8 * MIB) };
        let budgets = budgets(true, &memory);
        runtime().block_on(async {
            let _others = memory.take(8 * MIB).await.expect("there is capacity");
            let result = budgets.read_frame(&mut Cursor::new(framed(MIB))).await;
            assert_eq!(result.err().map(|error| error.kind()), Some(io::ErrorKind::OutOfMemory));
        });
    }

    #[test]
    fn stalled_and_slow_senders_are_distinguished() {
        let memory = Memory::with_short_timeouts(64 * MIB);
        let large = framed(UNSOLICITED_BYTES_MAX + 1);
        // Stops within the length, directly after it, in the first buffer and in a later one.
        let (long, started) = (framed(MIB), [1, 3, 1_000, 100_000]);
        for sent in started {
            let result = runtime().block_on(budgets(true, &memory).read_frame(&mut unfinished(&long[..sent])));
            assert!(matches!(result, Ok(Frame::Stalled)), "{sent}");
            assert_eq!(memory.bytes.available_permits(), memory.bytes_max, "{sent}: memory is returned");
        }
        let result = runtime().block_on(budgets(false, &memory).read_frame(&mut unfinished(&large[..1_000])));
        assert!(matches!(result, Ok(Frame::Unsolicited)), "an incomplete unsolicited frame is still unsolicited");
        // One byte at a time: never quiet, but never complete.
        let memory = Memory { timeouts: Timeouts { step: 400 * MS, quiet: 200 * MS, ..memory.timeouts }, ..memory };
        let bytes = futures::stream::unfold((), |()| async {
            tokio::time::sleep(5 * MS).await;
            Some((Ok::<_, io::Error>([7]), ()))
        });
        let mut slow = Cursor::new(long[..3].to_vec()).chain(bytes.boxed().into_async_read());
        let result = runtime().block_on(budgets(true, &memory).read_frame(&mut slow));
        assert_eq!(result.err().map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
    }

    /// A frame whose rest never arrives.
    fn unfinished(bytes: &[u8]) -> impl AsyncRead + Unpin {
        struct Never;
        impl AsyncRead for Never {
            fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
                Poll::Pending
            }
        }
        Cursor::new(bytes.to_vec()).chain(Never)
    }
}
