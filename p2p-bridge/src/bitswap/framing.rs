//! Length-prefixed frames on a Bitswap stream, read within budgets.
//!
//! Goals: a peer pays for memory with bytes that it really sent, and keeps it only as long as it goes on sending. The
//! declared length only bounds a frame; its buffer starts small and doubles as it fills. All frames of all connections
//! share one budget ([`Memory`]), those of a connection a smaller one, and a frame that nobody can have asked for is read
//! and thrown away without being kept.
//!
//! Fairness: each doubling has to fill in time, and sooner while less than a quarter of the budget is left ([`Patience`]),
//! so slow senders keep little and not for long. To be slow is no offence; to have stopped when time is up is one
//! ([`Frame::Stalled`]). Whoever finds nothing left waits in line for a while; then the frame is given up, and what it
//! answered is asked again.

use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::message::MAX_MESSAGE_BYTES;
use super::traffic::Traffic;

/// What the buffer holds before the peer has sent anything, in bytes.
const FIRST_ALLOCATION_BYTES: usize = 4 * 1024;
/// Frames below this say nothing about blocks that are on their way: a peer that owes us some may go on asking for others.
const PROGRESS_BYTES_MIN: usize = 16 * 1024;
/// Frames from a peer that we asked nothing of are kept up to this size: a full wantlist and room to spare.
pub const UNSOLICITED_BYTES_MAX: usize = 512 * 1024;
/// Bytes of frames that one connection may hold in memory at once.
pub const CONNECTION_BUDGET_BYTES: usize = 2 * MAX_MESSAGE_BYTES;
/// How long after our last question a peer may send large messages.
const SOLICITED_FOR: Duration = Duration::from_secs(600);

/// How long frames may take.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// For a buffer to fill before it is doubled.
    step: Duration,
    /// The same when memory is short.
    step_under_pressure: Duration,
    /// Who sent nothing for so long when time was up has stopped; whoever sent something is slow.
    quiet: Duration,
    /// For memory to be had.
    memory: Duration,
}

impl Default for Patience {
    /// A frame of 256 KiB passes at 7 KB/s, one of 4 MiB at 105 KB/s.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { step: seconds(20), step_under_pressure: seconds(5), quiet: seconds(4), memory: seconds(5) }
    }
}

/// What became of a frame.
pub enum Frame {
    /// A frame to decode; what it holds of the budgets returns when the permits are dropped.
    Whole(Bytes, Permits),
    /// A large frame that nothing was asked for; it was skipped, or did not even come in time.
    Unsolicited,
    /// The peer stopped in the middle of it.
    Stalled,
    /// The peer closed the stream.
    End,
}

/// A frame's share of its connection's budget and of everybody's.
pub struct Permits {
    _connection: OwnedSemaphorePermit,
    _memory: OwnedSemaphorePermit,
}

/// Bytes that the frames of all connections may take in memory. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Memory {
    bytes: Arc<Semaphore>,
    bytes_max: usize,
    patience: Patience,
}

impl Memory {
    /// A budget of that many bytes: at least one message, at most what a semaphore can count.
    pub fn new(bytes: usize) -> Self {
        let bytes_max = bytes.clamp(MAX_MESSAGE_BYTES, Semaphore::MAX_PERMITS);
        Self { bytes: Arc::new(Semaphore::new(bytes_max)), bytes_max, patience: Patience::default() }
    }

    /// A budget whose patience is soon at an end, for tests.
    #[cfg(test)]
    pub(super) fn impatient(bytes: usize) -> Self {
        let [step, quiet] = [20, 10].map(Duration::from_millis);
        let patience = Patience { step, step_under_pressure: step, quiet, memory: step };
        Self { patience, ..Self::new(bytes) }
    }

    async fn take(&self, bytes: usize) -> io::Result<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes).map_err(io::Error::other)?;
        let taken = timeout(self.patience.memory, Arc::clone(&self.bytes).acquire_many_owned(permits)).await;
        taken.map_err(|_| io::ErrorKind::OutOfMemory)?.map_err(io::Error::other)
    }

    fn step_timeout(&self) -> Duration {
        let short = self.bytes.available_permits() < self.bytes_max / 4;
        if short { self.patience.step_under_pressure } else { self.patience.step }
    }
}

/// What the frames of one connection are read within.
#[derive(Clone)]
pub struct Budgets {
    memory: Memory,
    connection: Arc<Semaphore>,
    traffic: Arc<Traffic>,
}

impl Budgets {
    /// Those of a new connection with a peer.
    pub fn new(memory: Memory, traffic: Arc<Traffic>) -> Self {
        Self { memory, connection: Arc::new(Semaphore::new(CONNECTION_BUDGET_BYTES)), traffic }
    }

    /// Reads the next frame.
    ///
    /// # Errors
    /// `InvalidData` when the declared length is over the protocol's limit, `UnexpectedEof` when the stream ends inside a
    /// frame, `TimedOut` when it comes too slowly, `OutOfMemory` when the budget of all connections is used up for too
    /// long, and whatever the stream itself reports.
    ///
    /// A frame takes a bounded time, which begins with its first byte; what waits for memory is not counted.
    pub async fn read_frame(&self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
        // A stream may rest between frames for as long as it likes; a frame that began has to go on.
        let mut first = [0];
        if stream.read(&mut first).await? == 0 {
            return Ok(Frame::End);
        }
        let length = timeout(self.memory.patience.step, read_length(first, stream)).await;
        let Ok(length) = length else { return Ok(Frame::Stalled) };
        let length = length?;
        if length > MAX_MESSAGE_BYTES {
            let reason = format!("a message of {length} bytes is over the limit");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        if length > UNSOLICITED_BYTES_MAX && !self.traffic.asked_within(SOLICITED_FOR) {
            let skipped = timeout(self.memory.patience.step, skip(stream, length)).await;
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
            let room = length.min((read * 2).max(FIRST_ALLOCATION_BYTES));
            memory.merge(self.memory.take(room - read).await?);
            buffer.reserve_exact(room - read);
            buffer.resize(room, 0);
            let mut heard = Instant::now();
            let step = self.fill(stream, &mut buffer[read..], length >= PROGRESS_BYTES_MIN, &mut heard);
            match timeout(self.memory.step_timeout(), step).await {
                Ok(filled) => filled?,
                Err(_) if heard.elapsed() >= self.memory.patience.quiet => return Ok(Frame::Stalled),
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        Ok(Frame::Whole(buffer.into(), Permits { _connection: connection, _memory: memory }))
    }

    async fn fill(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        mut buffer: &mut [u8],
        is_progress: bool,
        heard: &mut Instant,
    ) -> io::Result<()> {
        while !buffer.is_empty() {
            let read = stream.read(buffer).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            *heard = Instant::now();
            self.traffic.count_received(read);
            if is_progress {
                self.traffic.note_bytes();
            }
            buffer = &mut buffer[read..];
        }
        Ok(())
    }
}

/// An unsigned varint that begins with that byte.
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
        // Already more than any accepted length: read no further digits of it.
        if value > MAX_MESSAGE_BYTES as u64 {
            return Ok(usize::MAX);
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
    use futures::{FutureExt, StreamExt, TryStreamExt};
    use std::pin::Pin;
    use std::task::{Context, Poll};

    const MIB: usize = 1024 * 1024;
    const MS: Duration = Duration::from_millis(1);

    fn budgets(solicited: bool, memory: &Memory) -> Budgets {
        let traffic = Arc::new(Traffic::default());
        if solicited {
            traffic.note_question();
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
    fn frames_of_every_size_come_whole() {
        for length in [0, 1, 127, 128, FIRST_ALLOCATION_BYTES, FIRST_ALLOCATION_BYTES + 1, MAX_MESSAGE_BYTES] {
            match read(framed(length), true).expect("reads") {
                Frame::Whole(bytes, _) => assert!(bytes.len() == length && bytes.iter().all(|byte| *byte == 7)),
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

    #[test]
    fn memory_is_bought_with_bytes_and_comes_back() {
        let memory = Memory::new(64 * MIB);
        let budgets = budgets(true, &memory);
        let frame = framed(MAX_MESSAGE_BYTES);
        // What was sent of the frame, and what it may have taken.
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
    fn slow_senders_lose_their_memory_and_sooner_when_it_is_short() {
        let frame = framed(MAX_MESSAGE_BYTES);
        let patience = Patience { step: 400 * MS, step_under_pressure: 20 * MS, quiet: 10 * MS, memory: 20 * MS };
        for (others_bytes, expected) in [(0, 400 * MS..Duration::MAX), (7 * MIB, 20 * MS..400 * MS)] {
            let memory = Memory { patience, ..Memory::new(8 * MIB) };
            let budgets = budgets(true, &memory);
            runtime().block_on(async {
                let others = memory.take(others_bytes).await.expect("there is room");
                let begun = Instant::now();
                let result = budgets.read_frame(&mut unfinished(&frame[..1_000])).await;
                assert!(matches!(result, Ok(Frame::Stalled)));
                assert!(expected.contains(&begun.elapsed()), "{:?}, not {expected:?}", begun.elapsed());
                drop(others);
            });
        }
    }

    #[test]
    fn a_frame_for_which_there_is_no_memory_is_given_up_in_time() {
        let patience = Patience { memory: 20 * MS, ..Patience::default() };
        let memory = Memory { patience, ..Memory::new(8 * MIB) };
        let budgets = budgets(true, &memory);
        runtime().block_on(async {
            let _others = memory.take(8 * MIB).await.expect("there is room");
            let result = budgets.read_frame(&mut Cursor::new(framed(MIB))).await;
            assert_eq!(result.err().map(|error| error.kind()), Some(io::ErrorKind::OutOfMemory));
        });
    }

    #[test]
    fn who_stops_inside_a_frame_is_told_from_who_is_slow() {
        let memory = Memory::impatient(64 * MIB);
        let large = framed(UNSOLICITED_BYTES_MAX + 1);
        // In the length, at once after it, in the first buffer and in a later one.
        let (long, begun) = (framed(MIB), [1, 3, 1_000, 100_000]);
        for sent in begun {
            let result = runtime().block_on(budgets(true, &memory).read_frame(&mut unfinished(&long[..sent])));
            assert!(matches!(result, Ok(Frame::Stalled)), "{sent}");
            assert_eq!(memory.bytes.available_permits(), memory.bytes_max, "{sent}: memory comes back");
        }
        let result = runtime().block_on(budgets(false, &memory).read_frame(&mut unfinished(&large[..1_000])));
        assert!(matches!(result, Ok(Frame::Unsolicited)), "what nobody asked for is so however much of it comes");
        // A byte at a time: never quiet and never done.
        let memory = Memory { patience: Patience { step: 400 * MS, quiet: 200 * MS, ..memory.patience }, ..memory };
        let bytes = futures::stream::unfold((), |()| async {
            tokio::time::sleep(5 * MS).await;
            Some((Ok::<_, io::Error>([7]), ()))
        });
        let mut slow = Cursor::new(long[..3].to_vec()).chain(bytes.boxed().into_async_read());
        let result = runtime().block_on(budgets(true, &memory).read_frame(&mut slow));
        assert_eq!(result.err().map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
    }

    /// What was sent of a frame whose rest does not come.
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
