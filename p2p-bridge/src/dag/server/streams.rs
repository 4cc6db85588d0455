//! The tasks of inbound streams: they read what the asker says, and write what the outbox has.
//!
//! Each stream has a task of its own, so that encoding and encryption of several streams use several processors. A task
//! ends with its stream, with its transfer, or at a timeout; it never outlives its connection by more than a timeout.
//!
//! | stream | reads | writes |
//! |---|---|---|
//! | any | its opening | nothing until it is assigned |
//! | the first of a transfer | credits and skips, until it ends, which cancels the transfer | answers, and the end |
//! | further ones | nothing | answers |
//! | of a refused request | nothing | the end |

use super::outbox::{Batch, Next, Outbox, Piece, Written};
use crate::dag::framing::read_frame;
use crate::dag::message::{Answer, CONTROL_BYTES_MAX, Control, DagMessageError, EndStatus, OPENING_BYTES_MAX, Opening};
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::{Either, select};
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::PeerId;
use libp2p::swarm::ConnectionId;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep_until, timeout};

/// The time for the first message of a stream, and for each control message from its first byte on.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an asker may stay on a stream that has ended, to read what is under way.
const LINGER: Duration = Duration::from_secs(10);
/// A stream that takes nothing for this long has stalled. Shorter in tests.
const STALL_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 20 });
/// The time for writing answers that are taken together: a block of the maximum size passes at 7 KB/s.
const WRITE_TIMEOUT: Duration = Duration::from_secs(300);
/// The number of control messages of a transfer in a [`CONTROL_PERIOD`]. More are read later, so that an asker cannot
/// occupy the swarm task.
const CONTROLS_PER_PERIOD: u32 = 64;
const CONTROL_PERIOD: Duration = Duration::from_millis(100);
/// Shorter parts of messages are copied together, so that each does not become a frame of the multiplexer.
const SHORT_PART_BYTES: usize = 4 * 1024;

/// The server's own number of a transfer, which is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(pub u64);

/// The connection of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Asker {
    /// The peer.
    pub peer: PeerId,
    /// The connection.
    pub connection: ConnectionId,
}

/// An inbound stream, which counts among those of its connection.
#[derive(Debug)]
pub struct InboundStream<S> {
    /// The stream.
    pub stream: S,
    /// Released when the stream has ended.
    pub permit: OwnedSemaphorePermit,
}

/// What stream tasks report.
#[derive(Debug)]
pub enum StreamEvent<S> {
    /// A stream was opened with this message.
    Opened(Asker, Box<Opening>, InboundStream<S>),
    /// The asker of a transfer sent a control message.
    Control(Serial, Control),
    /// Answers were written.
    Written(Serial, Written),
    /// The end of a transfer was written.
    Ended(Serial, EndStatus),
    /// The asker has cancelled a transfer, or its first stream broke.
    Cancelled(Serial),
    /// The asker does not read.
    Stalled(Serial),
    /// A peer violated the protocol, with a message of a transfer if there is one.
    Fault(Asker, Option<Serial>, String),
}

/// Where the tasks of streams report. Bounded, so that they wait while the swarm task is busy.
pub type Events<S> = mpsc::Sender<StreamEvent<S>>;

/// Reads the first message of a stream, and hands the stream over with it. A scope of a later release is refused: the
/// asker then uses Bitswap.
pub async fn open<S: AsyncRead + AsyncWrite + Unpin>(asker: Asker, mut inbound: InboundStream<S>, events: Events<S>) {
    let read = timeout(READ_TIMEOUT, read_frame(&mut inbound.stream, OPENING_BYTES_MAX, READ_TIMEOUT)).await;
    let event = match read {
        Ok(Ok(Some(frame))) => match Opening::decode(frame) {
            Ok(opening) => StreamEvent::Opened(asker, Box::new(opening), inbound),
            Err(DagMessageError::UnknownScope) => return refuse(inbound, EndStatus::Refused).await,
            Err(error) => StreamEvent::Fault(asker, None, error.to_string()),
        },
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            StreamEvent::Fault(asker, None, error.to_string())
        }
        // The asker thought better of it, or is slow.
        Ok(Ok(None) | Err(_)) | Err(_) => return,
    };
    // Fails when the network stops.
    let _ = events.send(event).await;
}

/// Serves the first stream of a transfer until the transfer ends.
pub async fn serve_first<S: AsyncRead + AsyncWrite + Unpin>(
    serial: Serial,
    asker: Asker,
    inbound: InboundStream<S>,
    outbox: Arc<Outbox>,
    events: Events<S>,
) {
    let InboundStream { stream, permit } = inbound;
    let (reader, writer) = stream.split();
    let controls = pin!(read_controls(serial, asker, reader, &events));
    let answers = pin!(write_answers(serial, writer, true, &outbox, &events));
    match select(controls, answers).await {
        Either::Left((event, _)) => report(&events, event).await,
        Either::Right((Ok(()), controls)) => {
            // Dropping the stream at once might discard what the asker has not read.
            let _ = timeout(LINGER, controls).await;
        }
        Either::Right((Err(error), _)) => report(&events, error.event(serial)).await,
    }
    drop(permit);
}

/// Writes answers on a further stream of a transfer.
pub async fn serve_further<S: AsyncRead + AsyncWrite + Unpin>(
    serial: Serial,
    inbound: InboundStream<S>,
    outbox: Arc<Outbox>,
    events: Events<S>,
) {
    let InboundStream { stream, permit } = inbound;
    let (mut reader, writer) = stream.split();
    match write_answers(serial, writer, false, &outbox, &events).await {
        Ok(()) => linger(&mut reader).await,
        Err(WriteError::Stalled) => report(&events, StreamEvent::Stalled(serial)).await,
        // Other streams write what this one has not.
        Err(WriteError::Broken) => {}
    }
    drop(permit);
}

/// Ends a request that is not accepted.
pub async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(inbound: InboundStream<S>, status: EndStatus) {
    let InboundStream { mut stream, permit } = inbound;
    let written = write_all(&mut stream, Answer::End(status).encode()).await;
    if written.is_ok() && timeout(STALL_TIMEOUT, stream.close()).await.is_ok() {
        linger(&mut stream).await;
    }
    drop(permit);
}

/// Closes a stream that joins a transfer which has ended.
pub async fn close<S: AsyncRead + AsyncWrite + Unpin>(inbound: InboundStream<S>) {
    let InboundStream { mut stream, permit } = inbound;
    if timeout(STALL_TIMEOUT, stream.close()).await.is_ok() {
        linger(&mut stream).await;
    }
    drop(permit);
}

async fn report<S>(events: &Events<S>, event: StreamEvent<S>) {
    // Fails when the network stops.
    let _ = events.send(event).await;
}

/// Waits for the asker to close its half of a stream.
async fn linger(reader: &mut (impl AsyncRead + Unpin)) {
    let _ = timeout(LINGER, reader.read(&mut [0])).await;
}

/// Reads control messages until the stream ends, which cancels the transfer, or violates the protocol.
async fn read_controls<S>(
    serial: Serial,
    asker: Asker,
    mut reader: impl AsyncRead + Unpin,
    events: &Events<S>,
) -> StreamEvent<S> {
    let mut pace = Pace::default();
    loop {
        let control = match read_frame(&mut reader, CONTROL_BYTES_MAX, READ_TIMEOUT).await {
            Ok(Some(frame)) => Control::decode(frame),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return StreamEvent::Fault(asker, Some(serial), error.to_string());
            }
            Ok(None) | Err(_) => return StreamEvent::Cancelled(serial),
        };
        match control {
            Ok(control) => report(events, StreamEvent::Control(serial, control)).await,
            Err(error) => return StreamEvent::Fault(asker, Some(serial), error.to_string()),
        }
        pace.wait().await;
    }
}

/// Limits the rate of control messages.
struct Pace {
    since: Instant,
    count: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { since: Instant::now(), count: 0 }
    }
}

impl Pace {
    async fn wait(&mut self) {
        self.count += 1;
        if self.since.elapsed() >= CONTROL_PERIOD {
            *self = Self::default();
        } else if self.count >= CONTROLS_PER_PERIOD {
            sleep_until(self.since + CONTROL_PERIOD).await;
            *self = Self::default();
        }
    }
}

/// Why a stream cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteError {
    /// The stream failed.
    Broken,
    /// The asker does not read, or too slowly.
    Stalled,
}

impl WriteError {
    fn event<S>(self, serial: Serial) -> StreamEvent<S> {
        match self {
            Self::Broken => StreamEvent::Cancelled(serial),
            Self::Stalled => StreamEvent::Stalled(serial),
        }
    }
}

/// Writes what the outbox has, until the transfer ends, and closes the stream.
async fn write_answers<S>(
    serial: Serial,
    mut stream: impl AsyncWrite + Unpin,
    is_first: bool,
    outbox: &Outbox,
    events: &Events<S>,
) -> Result<(), WriteError> {
    let mut taker = outbox.stream(is_first);
    loop {
        match taker.next().await {
            Next::Write(batch) => write_batch(serial, &mut stream, batch, outbox, events).await?,
            Next::End(status) => {
                write_all(&mut stream, Answer::End(status).encode()).await?;
                report(events, StreamEvent::Ended(serial, status)).await;
                break;
            }
            Next::Close => break,
        }
    }
    in_time(stream.close()).await
}

async fn write_batch<S>(
    serial: Serial,
    stream: &mut (impl AsyncWrite + Unpin),
    batch: Batch,
    outbox: &Outbox,
    events: &Events<S>,
) -> Result<(), WriteError> {
    let parts = coalesced(batch.pieces.iter().flat_map(Piece::encode));
    let written = {
        let writing = pin!(timeout(WRITE_TIMEOUT, write_all(stream, parts)));
        match select(writing, pin!(outbox.cancelled())).await {
            Either::Left((written, _)) => written.unwrap_or(Err(WriteError::Stalled)),
            // The stream is dropped in the middle of a message, which resets it.
            Either::Right(_) => Err(WriteError::Broken),
        }
    };
    match written {
        Ok(()) => {
            report(events, StreamEvent::Written(serial, batch.written())).await;
            outbox.written();
            Ok(())
        }
        Err(error) => {
            outbox.put_back(batch);
            Err(error)
        }
    }
}

/// The parts of messages, of which short ones are joined.
fn coalesced(parts: impl IntoIterator<Item = Bytes>) -> Vec<Bytes> {
    let (mut out, mut short) = (Vec::new(), BytesMut::new());
    for part in parts {
        if part.len() < SHORT_PART_BYTES {
            short.put_slice(&part);
            continue;
        }
        if !short.is_empty() {
            out.push(short.split().freeze());
        }
        out.push(part);
    }
    if !short.is_empty() {
        out.push(short.freeze());
    }
    out
}

async fn write_all(stream: &mut (impl AsyncWrite + Unpin), parts: Vec<Bytes>) -> Result<(), WriteError> {
    for part in parts {
        let mut rest = &part[..];
        while !rest.is_empty() {
            let written = in_time(stream.write(rest)).await?;
            if written == 0 {
                return Err(WriteError::Broken);
            }
            rest = &rest[written..];
        }
    }
    in_time(stream.flush()).await
}

async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> Result<T, WriteError> {
    timeout(STALL_TIMEOUT, step).await.map_err(|_| WriteError::Stalled)?.map_err(|_| WriteError::Broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn joined_parts_have_the_same_bytes_and_long_ones_are_not_copied(
            lengths in prop::collection::vec(prop_oneof![0..200_usize, 0..3 * SHORT_PART_BYTES], 0..30)
        ) {
            let parts: Vec<Bytes> =
                lengths.iter().zip(0_u8..).map(|(length, byte)| Bytes::from(vec![byte; *length])).collect();
            let joined = coalesced(parts.clone());
            prop_assert_eq!(joined.concat(), parts.concat());
            for part in parts.iter().filter(|part| part.len() >= SHORT_PART_BYTES) {
                prop_assert!(joined.iter().any(|other| other.as_ptr() == part.as_ptr()));
            }
            let shorts = joined.windows(2).filter(|pair| pair.iter().all(|part| part.len() < SHORT_PART_BYTES));
            prop_assert_eq!(shorts.count(), 0);
        }
    }

    #[tokio::test]
    async fn control_messages_have_a_rate() {
        let start = Instant::now();
        let mut pace = Pace::default();
        for _ in 0..3 * CONTROLS_PER_PERIOD {
            pace.wait().await;
        }
        assert!(start.elapsed() >= 3 * CONTROL_PERIOD);
    }
}
