//! One connection's Bitswap: reads messages on any number of streams, writes questions on one and answers on a few.
//!
//! A stream of ours is opened with a single version, the newest that the peer may be expected to speak, so that the first
//! message travels with the proposal instead of a round trip later (multistream-select's lazy form). Whoever declines is
//! proposed every version, and asked again. The stream for questions is opened as soon as the peer says that it speaks
//! Bitswap.
//!
//! A multiplexer lets 256 KiB of a new stream be under way and doubles that every round trip at best. So answers go out on one
//! stream until it is stuck while more are waiting, and then on a second beside it, and so on ([`Widening`]); one more for each
//! large message that the peer took in quickly, and back to one for each that took long, so that a slow peer has no more
//! under way than one stream lets be.
//!
//! Goals: decoding, hashing and delivery of blocks happen here, in the connection's own task; Go peers may answer every
//! message on a new stream; our questions never queue behind our answers, which have a stream of their own; memory per
//! connection is bounded ([`super::framing`]); whoever stops in the middle of a message, reading or writing, is waited for
//! for a bounded time and reported.

use super::framing::{Budgets, Frame, Memory};
use super::message::{Ask, Message, RawBlock, Version, WantEntry, encode_answer, encode_wants_from, parse_prefix};
use super::outbox::Outbox;
use super::server::Answer;
use super::traffic::Traffic;
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

/// Streams that a peer may have open towards us at once.
const INBOUND_STREAMS_MAX: usize = 256;
/// Streams that a peer may decline or reset before it is taken for one that speaks no Bitswap.
const DECLINED_MAX: u32 = 2;
/// Streams that answers are written on at once.
const ANSWER_STREAMS_MAX: usize = 16;
/// When none of them takes anything for this long and answers wait, there is one more.
const STUCK_FOR: Duration = Duration::from_millis(5);
/// Messages from this size on show how fast the peer takes in what is sent.
const TELLING_BYTES: usize = 128 * 1024;
/// One that it took in within this time earns another stream.
const QUICK: Duration = Duration::from_millis(500);
/// One that took it longer takes all but the first away.
const SLUGGISH: Duration = Duration::from_secs(2);
/// How long a peer may take to decline a stream.
const DOUBT: Duration = Duration::from_secs(10);
/// A connection is in use for this long after our last question to the peer.
const KEPT_ALIVE_FOR: Duration = Duration::from_secs(60);
/// The priority of the first question; it falls from question to question, and starts again before it is used up.
const FIRST_PRIORITY: i32 = i32::MAX;
/// Below this it starts again: far more than one message has questions.
const LAST_PRIORITY: i32 = 1 << 20;

/// How long writing may take.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// For one message.
    message: Duration,
    /// Without the peer taking in anything of it.
    stall: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { message: Duration::from_secs(60), stall: Duration::from_secs(20) }
    }
}

/// What the behaviour tells a connection.
#[derive(Debug)]
pub enum Command {
    /// Send wantlist changes.
    Ask(Vec<WantEntry>),
    /// Send an answer.
    Answer(Answer),
    /// Whether the connection stays open when it is idle.
    Keep(bool),
}

/// What a connection tells the behaviour.
#[derive(Debug)]
pub enum Event {
    /// A message came. Its blocks have been hashed and delivered.
    Received(Received),
    /// A message broke the protocol.
    Fault(String),
    /// The peer speaks no Bitswap, or its stream cannot be kept open.
    Unreachable,
    /// A message could not be taken in for want of memory. What it answered has to be asked again.
    Lost,
    /// The peer declined the stream that our questions were written on, and is being proposed another.
    Declined,
    /// The peer stopped in the middle of a message, or does not take in what it asked for.
    Stalled,
    /// An answer left.
    Answered {
        /// Blocks in it.
        blocks: usize,
        /// Their bytes.
        bytes: usize,
        /// What it took in memory.
        cost: usize,
    },
    /// An answer was given up: the peer does not read, or cannot be written to.
    Dropped {
        /// What it took in memory.
        cost: usize,
    },
}

impl Event {
    fn answered(answer: &Answer) -> Self {
        Self::Answered { blocks: answer.blocks.len(), bytes: answer.bytes(), cost: answer.cost() }
    }
}

/// A message, after its blocks went to their waiters.
#[derive(Debug, Default)]
pub struct Received {
    /// The peer's questions.
    pub wants: Vec<WantEntry>,
    /// Whether they replace all earlier ones.
    pub full: bool,
    /// Keys and sizes of the blocks.
    pub blocks: Vec<(BlockKey, usize)>,
    /// What the peer has and has not.
    pub presences: Vec<(Cid, bool)>,
}

/// Which versions of Bitswap are negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Negotiate {
    /// Any, newest first.
    Any,
    /// This one, without waiting for the peer's consent.
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

/// Which of the outgoing streams is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Our questions.
    Ask,
    /// Our answers, by the number of the stream.
    Answer(usize),
}

enum LaneState {
    Closed,
    Opening,
    Open(Stream, Version),
    Writing(BoxFuture<'static, Result<(Stream, Version), Unwritten>>),
}

/// Why a message was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unwritten {
    /// The stream broke.
    Broken,
    /// The peer does not read.
    Late,
    /// The peer reads, but too slowly.
    Slow,
}

/// An outgoing stream and what waits for it. It stays open.
struct Outgoing {
    lane: Lane,
    /// What the next stream is opened with.
    proposal: Negotiate,
    /// When the open stream was opened, as long as the peer may still decline what it was opened with.
    opened: Option<Instant>,
    /// Streams that it declined.
    declined: u32,
    /// As one, however many commands they came in.
    questions: Outbox,
    /// That of the next question.
    priority: i32,
    /// Open a stream though there is nothing to send yet, so that the first question need not wait for it.
    prepare: bool,
    /// What is being written, kept for a second try on a new stream.
    current: Option<Command>,
    /// When that was begun.
    began: Instant,
    tried_again: bool,
    /// It failed while others work: nothing is written on it any more.
    retired: bool,
    /// How all streams of the connection get on.
    pace: Arc<Pace>,
    state: LaneState,
}

/// How the streams of a connection get on.
#[derive(Debug)]
struct Pace {
    /// What they have taken, in bytes.
    taken: AtomicU64,
    /// How many of them answers may be on.
    earned: AtomicUsize,
    /// What all connections with the peer share.
    traffic: Arc<Traffic>,
}

impl Pace {
    fn new(traffic: Arc<Traffic>) -> Self {
        Self { taken: AtomicU64::new(0), earned: AtomicUsize::new(1), traffic }
    }

    /// The peer took in so many bytes.
    fn took(&self, bytes: usize) {
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        self.traffic.count_sent(bytes);
    }

    /// A message of answers left, after so long.
    fn left(&self, bytes: usize, took: Duration) {
        let earned = self.earned.load(Ordering::Relaxed);
        if took > SLUGGISH {
            self.earned.store(1, Ordering::Relaxed);
        } else if bytes >= TELLING_BYTES && took < QUICK {
            self.earned.store((earned + 1).min(ANSWER_STREAMS_MAX), Ordering::Relaxed);
        }
    }
}

impl Outgoing {
    fn new(lane: Lane, pace: &Arc<Pace>) -> Self {
        Self {
            lane,
            // Questions can be asked again. An answer that was written for nothing is lost, so its version is waited for unless
            // it is known.
            proposal: if lane == Lane::Ask { Negotiate::Only(Version::V1_2) } else { Negotiate::Any },
            opened: None,
            declined: 0,
            questions: Outbox::default(),
            priority: FIRST_PRIORITY,
            prepare: false,
            current: None,
            began: Instant::now(),
            tried_again: false,
            retired: false,
            pace: Arc::clone(pace),
            state: LaneState::Closed,
        }
    }

    /// What is to be written next: our questions, or an answer that waits for any stream.
    fn next(&mut self, answers: &mut Answers) -> Option<Command> {
        match self.lane {
            Lane::Ask if self.questions.is_empty() => None,
            Lane::Ask => Some(Command::Ask(self.questions.take())),
            Lane::Answer(_) if !self.is_earned() => None,
            Lane::Answer(_) => answers.pop_front().map(Command::Answer),
        }
    }

    /// Whether something may be begun on it.
    fn is_earned(&self) -> bool {
        match self.lane {
            Lane::Ask => true,
            Lane::Answer(number) => !self.retired && number < self.pace.earned.load(Ordering::Relaxed),
        }
    }

    fn has_next(&self, answers: &Answers) -> bool {
        match self.lane {
            Lane::Ask => !self.questions.is_empty(),
            Lane::Answer(_) => self.is_earned() && !answers.is_empty(),
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

    /// Gives up on everything that waits, reporting answers so that their bytes return to the peer's budget. Whoever let
    /// answers wait that it had asked for is reported for that.
    fn abandon(&mut self, why: Unwritten, answers: &mut Answers, events: &mut VecDeque<Event>) {
        self.state = LaneState::Closed;
        self.tried_again = false;
        let current = self.current.take();
        if self.lane == Lane::Ask {
            self.questions.take();
            events.push_back(Event::Unreachable);
            return;
        }
        let current =
            current.and_then(|command| if let Command::Answer(answer) = command { Some(answer) } else { None });
        if matches!(self.lane, Lane::Answer(1..)) && (why == Unwritten::Broken || current.is_none()) {
            // The peer may take fewer streams. The others go on with what was to be written here.
            self.retired = true;
            current.into_iter().for_each(|answer| answers.push_front(answer));
            return;
        }
        if why == Unwritten::Late {
            events.push_back(Event::Stalled);
        }
        let dropped = current.into_iter().chain(answers.drain(..));
        events.extend(dropped.map(|answer| Event::Dropped { cost: answer.cost() }));
    }

    /// The peer is known to speak this version. Whoever declined a proposal is believed that instead.
    fn spoken(&mut self, version: Version) {
        if self.declined == 0 {
            self.proposal = Negotiate::Only(version);
        }
    }

    fn opened(&mut self, stream: Stream, version: Version) {
        self.opened = Some(Instant::now());
        self.state = LaneState::Open(stream, version);
    }

    /// Whether the peer may still decline the open stream. One that does is heard of within a round trip; what goes wrong
    /// with a stream that has stood for long says nothing about its version.
    fn in_doubt(&mut self) -> bool {
        if self.opened.is_some_and(|opened| opened.elapsed() > DOUBT) {
            self.opened = None;
            self.declined = 0;
        }
        self.opened.is_some()
    }

    /// Whether the peer declined the version that a stream was opened with. Peers write nothing else on these streams.
    fn is_declined(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> bool {
        if !self.in_doubt() {
            return false;
        }
        match Pin::new(stream).poll_read(cx, &mut [0; 1]) {
            Poll::Pending => false,
            Poll::Ready(Ok(_)) => {
                self.opened = None;
                false
            }
            // A peer that declines may reset the stream before its refusal is read, so every error counts as one.
            Poll::Ready(Err(_)) => true,
        }
    }

    /// Questions that were written on a stream which the peer declined did not arrive: once more, with every version to choose
    /// from. The last of them is not waited for either, so a peer that speaks none is told by its declining everything.
    fn declined(&mut self, answers: &mut Answers, events: &mut VecDeque<Event>) {
        self.opened = None;
        self.declined += 1;
        if self.declined > DECLINED_MAX {
            return self.abandon(Unwritten::Broken, answers, events);
        }
        self.proposal = Negotiate::Any;
        self.prepare = true;
        if self.lane == Lane::Ask {
            events.push_back(Event::Declined);
        }
    }

    /// Moves as far as possible without waiting. `true` asks for a stream to be opened.
    fn poll(&mut self, cx: &mut Context<'_>, answers: &mut Answers, events: &mut VecDeque<Event>) -> bool {
        loop {
            match std::mem::replace(&mut self.state, LaneState::Closed) {
                LaneState::Closed if self.current.is_none() && !self.has_next(answers) && !self.prepare => {
                    return false;
                }
                LaneState::Closed => {
                    self.prepare = false;
                    self.state = LaneState::Opening;
                    return true;
                }
                LaneState::Opening => {
                    self.state = LaneState::Opening;
                    return false;
                }
                LaneState::Open(mut stream, version) => {
                    if self.is_declined(&mut stream, cx) {
                        self.declined(answers, events);
                        continue;
                    }
                    let Some(command) = self.current.take().or_else(|| self.next(answers)) else {
                        self.state = LaneState::Open(stream, version);
                        return false;
                    };
                    let parts = self.encode(&command, version);
                    (self.current, self.began) = (Some(command), Instant::now());
                    let written = write(stream, parts, Patience::default(), Arc::clone(&self.pace));
                    self.state = LaneState::Writing(written.map_ok(move |stream| (stream, version)).boxed());
                }
                LaneState::Writing(mut writing) => match writing.poll_unpin(cx) {
                    Poll::Pending => {
                        self.state = LaneState::Writing(writing);
                        return false;
                    }
                    Poll::Ready(Ok((stream, version))) => {
                        self.tried_again = false;
                        if let Some(Command::Answer(answer)) = self.current.take() {
                            self.pace.left(answer.bytes(), self.began.elapsed());
                            events.push_back(Event::answered(&answer));
                        }
                        self.state = LaneState::Open(stream, version);
                    }
                    Poll::Ready(Err(Unwritten::Broken)) if self.in_doubt() => self.declined(answers, events),
                    // The peer may have closed an idle stream: once more on a new one.
                    Poll::Ready(Err(Unwritten::Broken)) if !self.tried_again => self.tried_again = true,
                    Poll::Ready(Err(why)) => {
                        self.abandon(why, answers, events);
                        return false;
                    }
                },
            }
        }
    }
}

/// Answers that wait for a stream. Bounded by the machine that fills it: answer bytes per peer.
type Answers = VecDeque<Answer>;

/// When there is to be another stream for answers: when those that there are have taken nothing for [`STUCK_FOR`]. One that is
/// merely slow takes something now and then.
struct Widening {
    /// What they had taken when that was last looked at, and the time until it is again.
    since: Option<(u64, Pin<Box<Sleep>>)>,
}

impl Widening {
    /// Whether it is time. To be asked while answers wait and every stream has something to write.
    fn poll(&mut self, taken: u64, cx: &mut Context<'_>) -> bool {
        loop {
            let (then, sleep) = self.since.get_or_insert_with(|| (taken, Box::pin(sleep(STUCK_FOR))));
            if sleep.poll_unpin(cx).is_pending() {
                return false;
            }
            let stuck = *then == taken;
            self.since = None;
            if stuck {
                return true;
            }
        }
    }
}

/// Writes a message; the stream, if it can take another.
async fn write<S: AsyncWrite + Unpin>(
    mut stream: S,
    parts: Vec<Bytes>,
    patience: Patience,
    pace: Arc<Pace>,
) -> Result<S, Unwritten> {
    let all = async {
        for mut part in parts {
            while !part.is_empty() {
                let taken = in_time(patience.stall, stream.write(&part)).await?;
                if taken == 0 {
                    return Err(Unwritten::Broken);
                }
                pace.took(taken);
                part.advance(taken);
            }
        }
        in_time(patience.stall, stream.flush()).await
    };
    timeout(patience.message, all).await.map_err(|_| Unwritten::Slow)??;
    Ok(stream)
}

async fn in_time<T>(time: Duration, step: impl Future<Output = io::Result<T>>) -> Result<T, Unwritten> {
    timeout(time, step).await.map_err(|_| Unwritten::Late)?.map_err(|_| Unwritten::Broken)
}

/// What every reading stream of a connection shares.
#[derive(Clone)]
struct Reading {
    wants: Arc<Wants>,
    budgets: Budgets,
}

/// Where a reading stream is.
enum Reader<S> {
    Open(S),
    /// Its last message was broken.
    Broken(String),
    Over,
}

impl Reading {
    /// Every message of a stream until it ends. A broken message ends the stream.
    fn messages<S: AsyncRead + Unpin + Send + 'static>(self, stream: S) -> BoxStream<'static, Event> {
        futures::stream::unfold(Reader::Open(stream), move |reader| {
            let reading = self.clone();
            async move {
                match reader {
                    Reader::Open(stream) => reading.next_message(stream).await,
                    Reader::Broken(reason) => Some((Event::Fault(reason), Reader::Over)),
                    Reader::Over => None,
                }
            }
        })
        .boxed()
    }

    async fn next_message<S: AsyncRead + Unpin>(&self, mut stream: S) -> Option<(Event, Reader<S>)> {
        match self.budgets.read_frame(&mut stream).await {
            Ok(Frame::Whole(bytes, permits)) => {
                let (received, fault) = self.take_in(bytes);
                drop(permits);
                Some((Event::Received(received), fault.map_or(Reader::Open(stream), Reader::Broken)))
            }
            Ok(Frame::Unsolicited) => {
                Some((Event::Fault("a large message that nobody asked for".to_owned()), Reader::Over))
            }
            Ok(Frame::Stalled) => Some((Event::Stalled, Reader::Over)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Some((Event::Fault(error.to_string()), Reader::Over))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::TimedOut) => {
                Some((Event::Lost, Reader::Over))
            }
            // Streams end for many reasons that are nobody's fault.
            Ok(Frame::End) | Err(_) => None,
        }
    }

    /// Decodes a frame, hashes its blocks and hands them to their waiters. If something in it is broken, what came before
    /// that was received all the same, and those who keep books have to hear of it.
    fn take_in(&self, frame: Bytes) -> (Received, Option<String>) {
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
            self.wants.deliver(&block);
            received.blocks.push((key, block.data().len()));
        }
        (received, None)
    }
}

/// Computes a block's CID from its bytes. A small block out of a large frame is copied, so as not to keep the whole frame.
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
    /// At least one.
    answering: Vec<Outgoing>,
    answers: Answers,
    widening: Widening,
    pace: Arc<Pace>,
    events: VecDeque<Event>,
    kept: bool,
}

impl Handler {
    /// A handler for a connection with the peer whose traffic this is. Received blocks go to `wants`.
    pub fn new(wants: Arc<Wants>, memory: Memory, traffic: Arc<Traffic>) -> Self {
        let pace = Arc::new(Pace::new(Arc::clone(&traffic)));
        Self {
            reading: Reading { wants, budgets: Budgets::new(memory, Arc::clone(&traffic)) },
            traffic,
            inbound: SelectAll::new(),
            asking: Outgoing::new(Lane::Ask, &pace),
            answering: vec![Outgoing::new(Lane::Answer(0), &pace)],
            answers: Answers::new(),
            widening: Widening { since: None },
            pace,
            events: VecDeque::new(),
            kept: false,
        }
    }

    fn lane(&mut self, lane: Lane) -> &mut Outgoing {
        match lane {
            Lane::Ask => &mut self.asking,
            Lane::Answer(number) => &mut self.answering[number],
        }
    }

    fn lanes(&mut self) -> impl Iterator<Item = &mut Outgoing> {
        std::iter::once(&mut self.asking).chain(&mut self.answering)
    }

    fn is_writing(&self) -> bool {
        let questions = self.asking.current.is_some() || !self.asking.questions.is_empty();
        questions || !self.answers.is_empty() || self.answering.iter().any(|lane| lane.current.is_some())
    }

    /// One more stream for answers, if those that there are have been stuck for a while; whether there is one.
    fn widen(&mut self, cx: &mut Context<'_>) -> bool {
        let all_busy = self.answering.iter().all(|lane| lane.retired || matches!(lane.state, LaneState::Writing(_)));
        // A peer that refused one is offered no more.
        let earned = self.answering.len() < self.pace.earned.load(Ordering::Relaxed)
            && !self.answering.iter().any(|lane| lane.retired);
        if self.answers.is_empty() || !all_busy || !earned {
            self.widening.since = None;
            return false;
        }
        if !self.widening.poll(self.pace.taken.load(Ordering::Relaxed), cx) {
            return false;
        }
        let mut lane = Outgoing::new(Lane::Answer(self.answering.len()), &self.pace);
        lane.proposal = self.answering[0].proposal;
        self.answering.push(lane);
        true
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Command;
    type ToBehaviour = Event;
    type InboundProtocol = Negotiate;
    type OutboundProtocol = Negotiate;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Lane;

    fn listen_protocol(&self) -> SubstreamProtocol<Negotiate> {
        SubstreamProtocol::new(Negotiate::Any, ())
    }

    /// Streams stay open between messages, so they say nothing about use; these do.
    fn connection_keep_alive(&self) -> bool {
        self.kept || self.is_writing() || self.traffic.asked_within(KEPT_ALIVE_FOR)
    }

    fn on_behaviour_event(&mut self, command: Command) {
        match command {
            Command::Ask(entries) => {
                if entries.iter().any(|entry| entry.ask != Ask::Cancel) {
                    self.traffic.note_question();
                }
                self.asking.questions.extend(entries);
            }
            Command::Answer(answer) => self.answers.push_back(answer),
            Command::Keep(kept) => self.kept = kept,
        }
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Negotiate, Negotiate, (), Lane>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (mut stream, version), ..
            }) => {
                stream.ignore_for_keep_alive();
                self.answering.iter_mut().for_each(|lane| lane.spoken(version));
                // Beyond the limit the stream is dropped, which resets it.
                if self.inbound.len() < INBOUND_STREAMS_MAX {
                    self.inbound.push(self.reading.clone().messages(stream));
                }
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound {
                protocol: (mut stream, version),
                info,
            }) => {
                stream.ignore_for_keep_alive();
                self.lane(info).opened(stream, version);
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                let lane = match info {
                    Lane::Ask => &mut self.asking,
                    Lane::Answer(number) => &mut self.answering[number],
                };
                if matches!(error, StreamUpgradeError::NegotiationFailed) || lane.tried_again {
                    let is_late = matches!(error, StreamUpgradeError::Timeout);
                    let why = if is_late { Unwritten::Late } else { Unwritten::Broken };
                    lane.abandon(why, &mut self.answers, &mut self.events);
                } else {
                    lane.tried_again = true;
                    lane.state = LaneState::Closed;
                }
            }
            ConnectionEvent::RemoteProtocolsChange(ProtocolsChange::Added(protocols)) => {
                let version = |protocol: &StreamProtocol| Version::ALL.into_iter().find(|v| v.protocol() == *protocol);
                if let Some(newest) = protocols.filter_map(version).min() {
                    self.lanes().for_each(|lane| lane.spoken(newest));
                    self.asking.prepare = true;
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Negotiate, Lane, Event>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(event));
            }
            for outgoing in std::iter::once(&mut self.asking).chain(&mut self.answering) {
                if outgoing.poll(cx, &mut self.answers, &mut self.events) {
                    let protocol = SubstreamProtocol::new(outgoing.proposal, outgoing.lane);
                    return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
                }
            }
            if !self.events.is_empty() || self.widen(cx) {
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
