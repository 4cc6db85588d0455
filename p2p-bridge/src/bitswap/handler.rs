//! The Bitswap handler of one connection: reads messages on any number of streams, writes requests on one and responses
//! on others.
//!
//! An outbound stream proposes a single version, the newest that the peer is expected to support, so that the first
//! message is sent with the proposal and saves a round trip (multistream-select's lazy form). If the peer declines it,
//! all versions are proposed, and the requests are sent again. The stream for requests is opened as soon as the peer
//! announces Bitswap.
//!
//! A multiplexer's window starts at 256 KiB per stream and doubles at most once per round trip. So responses use one
//! stream until it is blocked while more responses are queued, then a second one, and so on ([`Widening`]); each large
//! message that was written quickly allows one more stream, and each that was written slowly resets the limit to one,
//! so that a slow peer has no more data in flight than one stream's window.
//!
//! Goals: blocks are decoded, verified and delivered in the connection's own task; Go peers may send each message on a
//! new stream; requests never queue behind responses, which have their own streams; memory per connection is bounded
//! ([`crate::framing`]); a peer that stalls in the middle of a message, reading or writing, is reported after a bounded
//! time.

use super::message::{Ask, Message, RawBlock, Version, WantEntry, encode_answer, encode_wants_from, parse_prefix};
use super::outbox::Outbox;
use super::server::Answer;
use crate::framing::{Budgets, Frame, Memory};
use crate::observers::BlockTransport;
use crate::traffic::Traffic;
use crate::wants::Wants;
use bytes::{Buf, Bytes};
use content::{Block, BlockKey, Cid};
use futures::future::{BoxFuture, Ready, ready};
use futures::stream::{BoxStream, SelectAll};
use futures::{AsyncRead, AsyncWrite, AsyncWriteExt, FutureExt, StreamExt, TryFutureExt};
use libp2p::StreamProtocol;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound, ProtocolsChange,
};
use libp2p::swarm::{ConnectionHandler, ConnectionHandlerEvent, Stream, StreamUpgradeError, SubstreamProtocol};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Sleep, sleep, timeout};

/// The maximum number of concurrent inbound streams.
const INBOUND_STREAMS_MAX: usize = 256;
/// The number of streams that a peer may decline or reset before it counts as not supporting Bitswap.
const DECLINED_MAX: u32 = 2;
/// The maximum number of concurrent streams for responses.
const ANSWER_STREAMS_MAX: usize = 16;
/// If no stream makes progress for this long while responses are queued, another stream is opened.
const STALLED_FOR: Duration = Duration::from_millis(5);
/// Messages of at least this size measure how fast the peer reads.
const SAMPLE_BYTES_MIN: usize = 128 * 1024;
/// A message written within this time allows another stream.
const FAST_WRITE: Duration = Duration::from_millis(500);
/// A message that took longer resets the limit to one stream.
const SLOW_WRITE: Duration = Duration::from_secs(2);
/// How long a peer may take to decline a stream.
const DECLINE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection is kept alive after the last request.
const KEPT_ALIVE_FOR: Duration = Duration::from_secs(60);
/// The priority of the first want. It decreases from want to want, and restarts before it is exhausted.
const FIRST_PRIORITY: i32 = i32::MAX;
/// The priority restarts below this, which is far more than the number of wants in a message.
const LAST_PRIORITY: i32 = 1 << 20;

/// Timeouts for writing.
#[derive(Debug, Clone, Copy)]
struct Timeouts {
    /// For a message.
    message: Duration,
    /// Without any progress.
    stall: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { message: Duration::from_secs(60), stall: Duration::from_secs(20) }
    }
}

/// A command of the behaviour to a connection.
#[derive(Debug)]
pub enum Command {
    /// Send wantlist changes.
    Ask(Vec<WantEntry>),
    /// Send a response.
    Answer(Answer),
    /// Whether to keep an idle connection alive.
    Keep(bool),
}

/// An event of a connection for the behaviour.
#[derive(Debug)]
pub enum Event {
    /// A message was received. Its blocks were verified and delivered.
    Received(Received),
    /// A message violated the protocol.
    Fault(String),
    /// The peer does not support Bitswap, or streams cannot be kept open.
    Unreachable,
    /// A message was dropped for lack of memory, or was received too slowly. Its blocks must be requested again.
    Lost,
    /// The peer declined the stream for requests; another version is being proposed.
    Declined,
    /// The peer stopped in the middle of a message, or does not read the responses to its wants.
    Stalled,
    /// A response was sent.
    Answered {
        /// The number of its blocks.
        blocks: usize,
        /// The bytes of its blocks.
        bytes: usize,
        /// Its memory, in bytes.
        cost: usize,
    },
    /// A response was dropped: the peer does not read, or the stream failed.
    Dropped {
        /// Its memory, in bytes.
        cost: usize,
    },
}

impl Event {
    fn answered(answer: &Answer) -> Self {
        Self::Answered { blocks: answer.blocks.len(), bytes: answer.bytes(), cost: answer.cost() }
    }
}

/// A received message, after its blocks were delivered.
#[derive(Debug, Default)]
pub struct Received {
    /// The peer's wants.
    pub wants: Vec<WantEntry>,
    /// Whether they replace its wantlist.
    pub full: bool,
    /// Keys and sizes of its blocks.
    pub blocks: Vec<(BlockKey, usize)>,
    /// Presences: HAVE (`true`) and DONT_HAVE (`false`).
    pub presences: Vec<(Cid, bool)>,
}

/// The versions that are proposed or accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Negotiate {
    /// All, newest first.
    Any,
    /// This one, without waiting for the peer's confirmation.
    Only(Version),
}

impl UpgradeInfo for Negotiate {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        let protocols = match self {
            Self::Any => Version::ALL.map(Version::protocol).to_vec(),
            Self::Only(version) => vec![version.protocol()],
        };
        protocols.into_iter()
    }
}

fn negotiated(stream: Stream, info: &StreamProtocol) -> Ready<Result<(Stream, Version), Infallible>> {
    let version = Version::ALL.into_iter().find(|version| version.protocol() == *info).unwrap_or(Version::V1_2);
    ready(Ok((stream, version)))
}

impl InboundUpgrade<Stream> for Negotiate {
    type Output = (Stream, Version);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, info: StreamProtocol) -> Self::Future {
        negotiated(stream, &info)
    }
}

impl OutboundUpgrade<Stream> for Negotiate {
    type Output = (Stream, Version);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, info: StreamProtocol) -> Self::Future {
        negotiated(stream, &info)
    }
}

/// The purpose of an outbound stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamRole {
    /// Requests.
    Ask,
    /// Responses, with the number of the stream.
    Answer(usize),
}

enum StreamState {
    Closed,
    Opening,
    Open(Stream, Version),
    Writing(BoxFuture<'static, Result<(Stream, Version), WriteError>>),
}

/// Why a message was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteError {
    /// The stream failed.
    Broken,
    /// The peer does not read.
    Stalled,
    /// The peer reads, but too slowly.
    Slow,
}

/// An outbound stream and its queue. It stays open between messages.
struct Outgoing {
    role: StreamRole,
    /// The versions to propose for the next stream.
    proposal: Negotiate,
    /// When the stream was opened, while the peer may still decline its proposal.
    opened: Option<Instant>,
    /// The number of streams that the peer declined.
    declined: u32,
    /// Pending wantlist changes, merged over all commands.
    wants: Outbox,
    /// The priority of the next want.
    priority: i32,
    /// Opens a stream before there is anything to send, so that the first request need not wait for it.
    prepare: bool,
    /// The message that is being written, kept for a retry on a new stream.
    current: Option<Command>,
    /// When that write started.
    began: Instant,
    tried_again: bool,
    /// The stream failed while others work, and is not used any more.
    retired: bool,
    /// The write progress of all streams.
    progress: Arc<WriteProgress>,
    state: StreamState,
}

/// The write progress of a connection's streams.
#[derive(Debug)]
struct WriteProgress {
    /// Bytes written.
    written: AtomicU64,
    /// The number of streams that responses may use.
    streams_max: AtomicUsize,
    /// The state that the connections to the peer share.
    traffic: Arc<Traffic>,
}

impl WriteProgress {
    fn new(traffic: Arc<Traffic>) -> Self {
        Self { written: AtomicU64::new(0), streams_max: AtomicUsize::new(1), traffic }
    }

    /// Bytes were written.
    fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        self.traffic.count_sent(bytes);
    }

    /// A response was written completely.
    fn message_written(&self, bytes: usize, took: Duration) {
        let streams_max = self.streams_max.load(Ordering::Relaxed);
        if took > SLOW_WRITE {
            self.streams_max.store(1, Ordering::Relaxed);
        } else if bytes >= SAMPLE_BYTES_MIN && took < FAST_WRITE {
            self.streams_max.store((streams_max + 1).min(ANSWER_STREAMS_MAX), Ordering::Relaxed);
        }
    }
}

impl Outgoing {
    fn new(role: StreamRole, progress: &Arc<WriteProgress>) -> Self {
        Self {
            role,
            // Requests can be repeated. A response on a declined stream would be lost, so it waits for the negotiation,
            // unless the peer's version is known.
            proposal: if role == StreamRole::Ask { Negotiate::Only(Version::V1_2) } else { Negotiate::Any },
            opened: None,
            declined: 0,
            wants: Outbox::default(),
            priority: FIRST_PRIORITY,
            prepare: false,
            current: None,
            began: Instant::now(),
            tried_again: false,
            retired: false,
            progress: Arc::clone(progress),
            state: StreamState::Closed,
        }
    }

    /// The next message to write: requests, or a response that waits for any stream.
    fn next(&mut self, answers: &mut Answers) -> Option<Command> {
        match self.role {
            StreamRole::Ask if self.wants.is_empty() => None,
            StreamRole::Ask => Some(Command::Ask(self.wants.take())),
            StreamRole::Answer(_) if !self.may_write() => None,
            StreamRole::Answer(_) => answers.pop_front().map(Command::Answer),
        }
    }

    /// Whether the stream may start another message.
    fn may_write(&self) -> bool {
        match self.role {
            StreamRole::Ask => true,
            StreamRole::Answer(number) => !self.retired && number < self.progress.streams_max.load(Ordering::Relaxed),
        }
    }

    fn has_next(&self, answers: &Answers) -> bool {
        match self.role {
            StreamRole::Ask => !self.wants.is_empty(),
            StreamRole::Answer(_) => self.may_write() && !answers.is_empty(),
        }
    }

    fn encode(&mut self, command: &Command, version: Version) -> Vec<Bytes> {
        match command {
            Command::Ask(entries) => {
                let first = self.priority;
                let next = first.saturating_sub(i32::try_from(entries.len()).unwrap_or(i32::MAX));
                self.priority = if next < LAST_PRIORITY { FIRST_PRIORITY } else { next };
                vec![encode_wants_from(first, entries, version)]
            }
            Command::Answer(answer) => encode_answer(&answer.blocks, &answer.presences, version),
            Command::Keep(_) => Vec::new(),
        }
    }

    /// Drops all queued messages. Responses are reported, so that their bytes return to the peer's budget, and a peer
    /// that does not read requested responses is reported as stalled.
    fn abandon(&mut self, why: WriteError, answers: &mut Answers, events: &mut VecDeque<Event>) {
        self.state = StreamState::Closed;
        self.tried_again = false;
        let current = self.current.take();
        if self.role == StreamRole::Ask {
            self.wants.take();
            events.push_back(Event::Unreachable);
            return;
        }
        let current =
            current.and_then(|command| if let Command::Answer(answer) = command { Some(answer) } else { None });
        if matches!(self.role, StreamRole::Answer(1..)) && (why == WriteError::Broken || current.is_none()) {
            // The peer may accept fewer streams; the others write what was queued here.
            self.retired = true;
            current.into_iter().for_each(|answer| answers.push_front(answer));
            return;
        }
        if why == WriteError::Stalled {
            events.push_back(Event::Stalled);
        }
        let dropped = current.into_iter().chain(answers.drain(..));
        events.extend(dropped.map(|answer| Event::Dropped { cost: answer.cost() }));
    }

    /// Records the version that the peer supports, unless it declined proposals.
    fn spoken(&mut self, version: Version) {
        if self.declined == 0 {
            self.proposal = Negotiate::Only(version);
        }
    }

    fn opened(&mut self, stream: Stream, version: Version) {
        self.opened = Some(Instant::now());
        self.state = StreamState::Open(stream, version);
    }

    /// Whether the peer may still decline the open stream. It would do so within a round trip; later errors are not
    /// about the version.
    fn may_be_declined(&mut self) -> bool {
        if self.opened.is_some_and(|opened| opened.elapsed() > DECLINE_TIMEOUT) {
            self.opened = None;
            self.declined = 0;
        }
        self.opened.is_some()
    }

    /// Whether the peer declined the proposed version. Peers write nothing else on these streams.
    fn is_declined(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> bool {
        if !self.may_be_declined() {
            return false;
        }
        match Pin::new(stream).poll_read(cx, &mut [0; 1]) {
            Poll::Pending => false,
            Poll::Ready(Ok(_)) => {
                self.opened = None;
                false
            }
            // A peer that declines may reset the stream before its answer is read, so any error counts.
            Poll::Ready(Err(_)) => true,
        }
    }

    /// Requests on a stream that the peer declined were lost: sends them again, proposing all versions. The last of
    /// these is not confirmed either, so a peer without any version is recognised by declining all proposals.
    fn declined(&mut self, answers: &mut Answers, events: &mut VecDeque<Event>) {
        self.opened = None;
        self.declined += 1;
        if self.declined > DECLINED_MAX {
            return self.abandon(WriteError::Broken, answers, events);
        }
        self.proposal = Negotiate::Any;
        self.prepare = true;
        if self.role == StreamRole::Ask {
            events.push_back(Event::Declined);
        }
    }

    /// Makes progress without waiting. Returns whether a stream is to be opened.
    fn poll(&mut self, cx: &mut Context<'_>, answers: &mut Answers, events: &mut VecDeque<Event>) -> bool {
        loop {
            match std::mem::replace(&mut self.state, StreamState::Closed) {
                StreamState::Closed if self.current.is_none() && !self.has_next(answers) && !self.prepare => {
                    return false;
                }
                StreamState::Closed => {
                    self.prepare = false;
                    self.state = StreamState::Opening;
                    return true;
                }
                StreamState::Opening => {
                    self.state = StreamState::Opening;
                    return false;
                }
                StreamState::Open(mut stream, version) => {
                    if self.is_declined(&mut stream, cx) {
                        self.declined(answers, events);
                        continue;
                    }
                    let Some(command) = self.current.take().or_else(|| self.next(answers)) else {
                        self.state = StreamState::Open(stream, version);
                        return false;
                    };
                    let parts = self.encode(&command, version);
                    (self.current, self.began) = (Some(command), Instant::now());
                    let written = write(stream, parts, Timeouts::default(), Arc::clone(&self.progress));
                    self.state = StreamState::Writing(written.map_ok(move |stream| (stream, version)).boxed());
                }
                StreamState::Writing(mut writing) => match writing.poll_unpin(cx) {
                    Poll::Pending => {
                        self.state = StreamState::Writing(writing);
                        return false;
                    }
                    Poll::Ready(Ok((stream, version))) => {
                        self.message_written(events);
                        self.state = StreamState::Open(stream, version);
                    }
                    Poll::Ready(Err(why)) => {
                        if !self.write_failed(why, answers, events) {
                            return false;
                        }
                    }
                },
            }
        }
    }

    fn message_written(&mut self, events: &mut VecDeque<Event>) {
        self.tried_again = false;
        if let Some(Command::Answer(answer)) = self.current.take() {
            self.progress.message_written(answer.bytes(), self.began.elapsed());
            events.push_back(Event::answered(&answer));
        }
    }

    /// Returns whether the message is tried once more, on another stream.
    fn write_failed(&mut self, why: WriteError, answers: &mut Answers, events: &mut VecDeque<Event>) -> bool {
        match why {
            WriteError::Broken if self.may_be_declined() => self.declined(answers, events),
            // The peer may have closed the idle stream.
            WriteError::Broken if !self.tried_again => self.tried_again = true,
            why => {
                self.abandon(why, answers, events);
                return false;
            }
        }
        true
    }
}

/// Responses that wait for a stream. Bounded by the server's limit of bytes per peer.
type Answers = VecDeque<Answer>;

/// Decides when to open another stream for responses: when the existing ones made no progress for [`STALLED_FOR`]. Slow
/// streams make some progress in that time.
struct Widening {
    /// The bytes written at the last check, and the timer until the next.
    since: Option<(u64, Pin<Box<Sleep>>)>,
}

impl Widening {
    /// Whether to open a stream. Polled while responses are queued and all streams are writing.
    fn poll(&mut self, written: u64, cx: &mut Context<'_>) -> bool {
        loop {
            let (then, sleep) = self.since.get_or_insert_with(|| (written, Box::pin(sleep(STALLED_FOR))));
            if sleep.poll_unpin(cx).is_pending() {
                return false;
            }
            let stuck = *then == written;
            self.since = None;
            if stuck {
                return true;
            }
        }
    }
}

/// Writes a message; returns the stream, for the next message.
async fn write<S: AsyncWrite + Unpin>(
    mut stream: S,
    parts: Vec<Bytes>,
    timeouts: Timeouts,
    progress: Arc<WriteProgress>,
) -> Result<S, WriteError> {
    let all = async {
        for mut part in parts {
            while !part.is_empty() {
                let written = in_time(timeouts.stall, stream.write(&part)).await?;
                if written == 0 {
                    return Err(WriteError::Broken);
                }
                progress.wrote(written);
                part.advance(written);
            }
        }
        in_time(timeouts.stall, stream.flush()).await
    };
    timeout(timeouts.message, all).await.map_err(|_| WriteError::Slow)??;
    Ok(stream)
}

async fn in_time<T>(time: Duration, step: impl Future<Output = io::Result<T>>) -> Result<T, WriteError> {
    timeout(time, step).await.map_err(|_| WriteError::Stalled)?.map_err(|_| WriteError::Broken)
}

/// The state that a connection's inbound streams share.
#[derive(Clone)]
struct Reading {
    wants: Arc<Wants>,
    budgets: Budgets,
}

/// The state of an inbound stream.
enum Reader<S> {
    Open(S),
    /// Its last message was invalid.
    Broken(String),
    Ended,
}

impl Reading {
    /// The messages of a stream until it ends. An invalid message ends the stream.
    fn messages<S: AsyncRead + Unpin + Send + 'static>(self, stream: S) -> BoxStream<'static, Event> {
        futures::stream::unfold(Reader::Open(stream), move |reader| {
            let reading = self.clone();
            async move {
                match reader {
                    Reader::Open(stream) => reading.next_message(stream).await,
                    Reader::Broken(reason) => Some((Event::Fault(reason), Reader::Ended)),
                    Reader::Ended => None,
                }
            }
        })
        .boxed()
    }

    async fn next_message<S: AsyncRead + Unpin>(&self, mut stream: S) -> Option<(Event, Reader<S>)> {
        match self.budgets.read_frame(&mut stream).await {
            Ok(Frame::Whole(bytes, permits)) => {
                let (received, fault) = self.process(bytes);
                drop(permits);
                Some((Event::Received(received), fault.map_or(Reader::Open(stream), Reader::Broken)))
            }
            Ok(Frame::Unsolicited) => Some((Event::Fault("a large unsolicited message".to_owned()), Reader::Ended)),
            Ok(Frame::Stalled) => Some((Event::Stalled, Reader::Ended)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Some((Event::Fault(error.to_string()), Reader::Ended))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::TimedOut) => {
                Some((Event::Lost, Reader::Ended))
            }
            // Streams end for many legitimate reasons.
            Ok(Frame::End) | Err(_) => None,
        }
    }

    /// Decodes a frame, verifies its blocks and delivers them to the waiters. If a block is invalid, the blocks before
    /// it are still received and reported.
    fn process(&self, frame: Bytes) -> (Received, Option<String>) {
        let frame_bytes = frame.len();
        let message = match Message::decode(frame) {
            Ok(message) => message,
            Err(error) => return (Received::default(), Some(error.to_string())),
        };
        let mut received =
            Received { wants: message.wants, full: message.full, presences: message.presences, blocks: Vec::new() };
        for raw in message.blocks {
            let block = match hash(raw, frame_bytes) {
                Ok(block) => block,
                Err(reason) => return (received, Some(reason)),
            };
            let Some(key) = block.key() else { continue };
            self.wants.deliver(&block, BlockTransport::Bitswap);
            received.blocks.push((key, block.data().len()));
        }
        (received, None)
    }
}

/// Computes a block's CID. A small block of a large frame is copied, so that it does not keep the frame in memory.
fn hash(raw: RawBlock, frame_bytes: usize) -> Result<Block, String> {
    let (codec, hash_code, digest_bytes) = parse_prefix(raw.prefix).map_err(|error| error.to_string())?;
    let shares_frame = raw.data.len() >= frame_bytes / 2;
    let data = if shares_frame { raw.data } else { Bytes::copy_from_slice(&raw.data) };
    Block::of(codec, hash_code, digest_bytes, data).map_err(|error| error.to_string())
}

/// The connection handler. See the module's documentation.
pub struct Handler {
    reading: Reading,
    traffic: Arc<Traffic>,
    inbound: SelectAll<BoxStream<'static, Event>>,
    asking: Outgoing,
    /// Never empty.
    answering: Vec<Outgoing>,
    answers: Answers,
    widening: Widening,
    progress: Arc<WriteProgress>,
    events: VecDeque<Event>,
    kept: bool,
}

impl Handler {
    /// Creates the handler of a connection to the peer with this traffic state. Received blocks go to `wants`.
    pub fn new(wants: Arc<Wants>, memory: Memory, traffic: Arc<Traffic>) -> Self {
        let progress = Arc::new(WriteProgress::new(Arc::clone(&traffic)));
        Self {
            reading: Reading { wants, budgets: Budgets::new(memory, Arc::clone(&traffic)) },
            traffic,
            inbound: SelectAll::new(),
            asking: Outgoing::new(StreamRole::Ask, &progress),
            answering: vec![Outgoing::new(StreamRole::Answer(0), &progress)],
            answers: Answers::new(),
            widening: Widening { since: None },
            progress,
            events: VecDeque::new(),
            kept: false,
        }
    }

    fn outgoing(&mut self, role: StreamRole) -> &mut Outgoing {
        match role {
            StreamRole::Ask => &mut self.asking,
            StreamRole::Answer(number) => &mut self.answering[number],
        }
    }

    fn streams(&mut self) -> impl Iterator<Item = &mut Outgoing> {
        std::iter::once(&mut self.asking).chain(&mut self.answering)
    }

    fn is_writing(&self) -> bool {
        let wants = self.asking.current.is_some() || !self.asking.wants.is_empty();
        wants || !self.answers.is_empty() || self.answering.iter().any(|stream| stream.current.is_some())
    }

    /// Adds a stream for responses if the existing ones are blocked; returns whether it did.
    fn add_stream(&mut self, cx: &mut Context<'_>) -> bool {
        let all_busy =
            self.answering.iter().all(|stream| stream.retired || matches!(stream.state, StreamState::Writing(_)));
        // A peer that declined one is not offered more.
        let allowed = self.answering.len() < self.progress.streams_max.load(Ordering::Relaxed)
            && !self.answering.iter().any(|stream| stream.retired);
        if self.answers.is_empty() || !all_busy || !allowed {
            self.widening.since = None;
            return false;
        }
        if !self.widening.poll(self.progress.written.load(Ordering::Relaxed), cx) {
            return false;
        }
        let mut stream = Outgoing::new(StreamRole::Answer(self.answering.len()), &self.progress);
        stream.proposal = self.answering[0].proposal;
        self.answering.push(stream);
        true
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Command;
    type ToBehaviour = Event;
    type InboundProtocol = Negotiate;
    type OutboundProtocol = Negotiate;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = StreamRole;

    fn listen_protocol(&self) -> SubstreamProtocol<Negotiate> {
        SubstreamProtocol::new(Negotiate::Any, ())
    }

    /// Streams stay open between messages, so they do not show use; requests do.
    fn connection_keep_alive(&self) -> bool {
        self.kept || self.is_writing() || self.traffic.asked_within(KEPT_ALIVE_FOR)
    }

    fn on_behaviour_event(&mut self, command: Command) {
        match command {
            Command::Ask(entries) => {
                if entries.iter().any(|entry| entry.ask != Ask::Cancel) {
                    self.traffic.record_request();
                }
                self.asking.wants.extend(entries);
            }
            Command::Answer(answer) => self.answers.push_back(answer),
            Command::Keep(kept) => self.kept = kept,
        }
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Negotiate, Negotiate, (), StreamRole>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (mut stream, version), ..
            }) => {
                stream.ignore_for_keep_alive();
                self.answering.iter_mut().for_each(|stream| stream.spoken(version));
                // Beyond the limit, the stream is dropped, which resets it.
                if self.inbound.len() < INBOUND_STREAMS_MAX {
                    self.inbound.push(self.reading.clone().messages(stream));
                }
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: (mut stream, version),
                info,
            }) => {
                stream.ignore_for_keep_alive();
                self.outgoing(info).opened(stream, version);
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                let outgoing = match info {
                    StreamRole::Ask => &mut self.asking,
                    StreamRole::Answer(number) => &mut self.answering[number],
                };
                if matches!(error, StreamUpgradeError::NegotiationFailed) || outgoing.tried_again {
                    let is_late = matches!(error, StreamUpgradeError::Timeout);
                    let why = if is_late { WriteError::Stalled } else { WriteError::Broken };
                    outgoing.abandon(why, &mut self.answers, &mut self.events);
                } else {
                    outgoing.tried_again = true;
                    outgoing.state = StreamState::Closed;
                }
            }
            ConnectionEvent::RemoteProtocolsChange(ProtocolsChange::Added(protocols)) => {
                let version = |protocol: &StreamProtocol| Version::ALL.into_iter().find(|v| v.protocol() == *protocol);
                if let Some(newest) = protocols.filter_map(version).min() {
                    self.streams().for_each(|stream| stream.spoken(newest));
                    self.asking.prepare = true;
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Negotiate, StreamRole, Event>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(event));
            }
            for outgoing in std::iter::once(&mut self.asking).chain(&mut self.answering) {
                if outgoing.poll(cx, &mut self.answers, &mut self.events) {
                    let protocol = SubstreamProtocol::new(outgoing.proposal, outgoing.role);
                    return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
                }
            }
            if !self.events.is_empty() || self.add_stream(cx) {
                continue;
            }
            match self.inbound.poll_next_unpin(cx) {
                Poll::Ready(Some(event)) => self.events.push_back(event),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
#[path = "handler_tests.rs"]
mod tests;
