//! [`ActiveTransfer`]: a transfer whose streams are open: reads answers, verifies blocks, and delivers them.
//!
//! Each stream is read by a task of its own, and blocks are verified by further ones, so that neither decryption on the
//! connection's task nor hashing limits a transfer to one processor. A block is delivered to its waiters, or else
//! buffered ([`Pushed`]).
//!
//! Memory: a frame takes its bytes from the connection's and the network's budgets before it is read
//! ([`crate::framing`]), and a packed block takes those of the block before it is unpacked.

use super::metrics::{BlockForm, Metrics};
use super::pushed::{Pushed, Readers};
use super::transfer::{Arrival, Expanded, Payload, Transfer, Verify, Violation, children, has_links};
use crate::dag::fragments::Reassembly;
use crate::dag::message::{ANSWER_BYTES_MAX, Answer, Control, EndStatus, Opening, Request, TransferId};
use crate::framing::{Budgets, Frame, Memory};
use crate::network_policy::NetworkPolicy;
use crate::observers::BlockTransport;
use crate::traffic::Traffic;
use crate::wants::{SessionId, Wants};
use bytes::Bytes;
use content::budget::{Budget, Share};
use content::scope::Child;
use content::{Block, BlockError, BlockKey, Cid, UnpackError};
use futures::future::{Either, select};
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::PeerId;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long writing a message of the asker may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the further streams may take to end after the first one has reported the end, while nothing is received.
/// Shorter in tests.
const STREAMS_END_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 5 });
/// The same while bytes are received: a server may take as long to write what its streams have taken.
const STREAMS_END_MAX: Duration = Duration::from_secs(300);
/// How far a reader may be from the order in which blocks are sent, in bytes: more than its window.
const READER_BYTES_MAX: u64 = 12 * 1024 * 1024;
/// How far ahead of leaves inner nodes are sent at most, in bytes.
const SERVER_WINDOW_BYTES: u64 = crate::dag::server::traversal::WINDOW_BYTES as u64;
/// The names of the blocks of all transfers take as much as one part in so many of the memory of messages, in addition.
const NAMES_PART: usize = 4;
/// The maximum number of streams of one transfer. A server of an earlier release takes 16, and closes the others.
pub const STREAMS_MAX: usize = 32;
/// The same for an answer that is smaller than [`LARGE_BYTES`].
const STREAMS_SMALL_MAX: usize = STREAMS_MAX / 2;
/// An answer of so many bytes goes on for long enough that twice as many streams are of use.
const LARGE_BYTES: u64 = 32 * 1024 * 1024;
/// How many of the blocks that were taken last show where readers are.
const TAKEN_MAX: usize = 8;
/// What a new stream carries in its first round trip: the initial window of yamux.
const STREAM_BYTES: u64 = 256 * 1024;
/// What is assumed of a file of unknown size: its streams are opened together with the request, since they would carry
/// nothing for one round trip more if they were opened once its root has arrived.
const ASSUMED_BYTES: u64 = 1024 * 1024;
/// The same while few of the connection's streams are opened for such a guess.
const ASSUMED_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// What transfers share.
pub struct Context {
    /// The waiters for blocks.
    pub wants: Arc<Wants>,
    /// The buffered blocks.
    pub pushed: Arc<Pushed>,
    /// The readers of sessions.
    pub readers: Arc<Readers>,
    /// What is not fetched.
    pub policy: NetworkPolicy,
    /// The memory of the network's messages.
    pub memory: Memory,
    /// The memory of the names of blocks, as of [`names_budget`].
    pub names: Arc<Budget>,
    /// Where transfers report.
    pub events: mpsc::UnboundedSender<TransferEvent>,
    /// The metrics.
    pub metrics: Metrics,
    /// How blocks are transferred: in streams of the DAG protocol, or in the bodies of responses of gateways.
    pub over: BlockTransport,
}

/// The budget of the names of blocks of all transfers: a part of the memory of messages.
pub fn names_budget(memory: &Memory) -> Arc<Budget> {
    Arc::new(Budget::new(memory.bytes_max() / NAMES_PART))
}

/// An event of a transfer, for the client.
#[derive(Debug)]
pub enum TransferEvent {
    /// A block was verified, and delivered or buffered.
    Received {
        /// The transfer.
        transfer: TransferId,
        /// The block.
        key: BlockKey,
        /// Its size.
        bytes: usize,
    },
    /// The server does not have a named block.
    Absent {
        /// The transfer.
        transfer: TransferId,
        /// The block.
        cid: Cid,
    },
    /// A named block was dropped here, for lack of memory.
    Dropped {
        /// The transfer.
        transfer: TransferId,
        /// The block.
        cid: Cid,
    },
    /// A connected peer speaks the protocol, or does not any more.
    Speaks {
        /// The peer.
        peer: PeerId,
        /// Whether it does.
        speaks: bool,
    },
    /// The transfer has ended. All its blocks were reported before.
    Ended {
        /// The transfer.
        transfer: TransferId,
        /// How.
        end: TransferEnd,
    },
}

/// How a transfer has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferEnd {
    /// The server has reported its end.
    Status(EndStatus),
    /// Its streams cannot be opened, or have failed.
    Lost,
    /// The peer stopped in the middle of a message, or does not read.
    Stalled,
    /// The peer sent nothing of what was awaited.
    GivenUp,
    /// It has more blocks than are recorded. The rest can be requested again.
    TooManyBlocks,
    /// A block with others below it was dropped here, so that what follows is not known.
    NamesLost,
    /// The peer sent a block whose hash does not match.
    InvalidBlock,
    /// The peer violated the protocol.
    Fault(String),
    /// It was cancelled here.
    Cancelled,
    /// A gateway did not send the DAG.
    Declined(Decline),
}

/// Why a gateway did not send a DAG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decline {
    /// It does not have it, or does not serve it.
    Lacks,
    /// It sent a part of it, and no more.
    Incomplete,
    /// It does not answer such requests.
    Unsupported,
    /// It has refused this one.
    Refused,
    /// It is overloaded, possibly with `Retry-After`.
    Busy(Option<Duration>),
    /// It cannot be reached, did not respond in time, or responded with an error.
    Failed,
}

/// The blocks that a transfer has buffered.
#[derive(Debug, Default)]
struct Buffered {
    /// Blocks without children, in the order in which readers take them. Some may have been taken.
    leaves: BTreeMap<Place, BlockKey>,
    /// Other blocks, which are sent long before a reader needs them, by where what is below them ends. Those that a
    /// reader has requested alone before are not taken.
    inner: BTreeMap<Place, BlockKey>,
    /// The bytes of all blocks that were received.
    received_bytes: u64,
    /// The blocks that were received.
    received: u64,
    /// The places of the blocks that readers have taken last.
    taken: VecDeque<u64>,
}

impl Buffered {
    /// A reader has taken a block.
    fn note_taken(&mut self, at: u64) {
        self.taken.truncate(TAKEN_MAX - 1);
        self.taken.push_front(at);
    }

    /// Where the last of the readers is: there may be several, and one may be far ahead.
    fn passed(&self) -> u64 {
        self.taken.iter().copied().min().unwrap_or_default()
    }

    /// A block that readers have passed by far, which is not kept any more.
    fn take_passed(&mut self) -> Option<BlockKey> {
        let passed = self.passed();
        [&mut self.leaves, &mut self.inner].into_iter().find_map(|blocks| {
            let first = blocks.first_entry()?;
            (first.key().at.saturating_add(first.key().lag) < passed).then(|| first.remove())
        })
    }

    /// The next block to make room: one that readers have passed, or else the one that they need last.
    fn evicted(&mut self) -> Option<BlockKey> {
        let passed = self.passed();
        let first_passed = [&mut self.inner, &mut self.leaves].into_iter().find_map(|blocks| {
            let first = blocks.first_entry()?;
            (first.key().at < passed).then(|| first.remove())
        });
        first_passed.or_else(|| self.leaves.pop_last().or_else(|| self.inner.pop_first()).map(|(_, key)| key))
    }

    /// Counts a block that was received. Returns the bytes of all of them, and a number.
    fn note_received(&mut self, bytes: u64) -> (u64, u64) {
        self.received_bytes += bytes;
        self.received += 1;
        (self.received_bytes, self.received)
    }
}

/// Where a block is in the order of the readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Where it begins in its file, or where that part of the file ends if it has others below it; or else the bytes
    /// that were received up to it, which is about the same order.
    at: u64,
    /// How far readers may have passed it before it is dropped, in bytes.
    lag: u64,
    /// Distinguishes blocks of the same place.
    number: u64,
}

/// The number of streams of a transfer, with the first one.
#[derive(Debug)]
struct Streams {
    /// As many as the bytes need that are expected.
    needed: usize,
    /// As many as were opened, or are being opened. One that the peer declines is not opened again.
    opened: usize,
    /// Whether the size of the answer is not known.
    is_guess: bool,
    /// The permits of the open ones while it is not known.
    guesses: Option<OwnedSemaphorePermit>,
}

impl Default for Streams {
    fn default() -> Self {
        Self { needed: 1, opened: 1, is_guess: true, guesses: None }
    }
}

/// A transfer and its streams. See the module's documentation.
pub struct ActiveTransfer {
    /// Its number.
    pub id: TransferId,
    /// The peer that is asked.
    pub peer: PeerId,
    /// The session that it is for.
    pub session: SessionId,
    context: Arc<Context>,
    request: Request,
    state: Mutex<Transfer>,
    /// The memory of the names of its blocks.
    names: Mutex<Share>,
    /// The blocks that were buffered.
    buffered: Mutex<Buffered>,
    /// Control messages besides credit.
    skips: Mutex<VecDeque<Cid>>,
    /// Wakes the writer.
    control: Notify,
    cancelled: CancellationToken,
    verifying: TaskTracker,
    /// The further streams.
    joined: TaskTracker,
    streams: Mutex<Streams>,
    /// The number of messages that were received.
    messages: AtomicUsize,
    /// Where further streams are requested.
    widen: Mutex<Option<mpsc::UnboundedSender<Arc<ActiveTransfer>>>>,
    has_reported_end: AtomicBool,
    /// Answers of which some fragments have arrived.
    fragments: Mutex<Reassembly<OwnedSemaphorePermit>>,
    /// Whether the server has reported the end.
    has_answered: AtomicBool,
    /// The traffic of its connection, once it has one.
    traffic: Mutex<Option<Arc<Traffic>>>,
}

impl fmt::Debug for ActiveTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveTransfer").field("id", &self.id).field("peer", &self.peer).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds one of these locks can leave its value half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ActiveTransfer {
    /// A transfer that is to be started.
    pub fn new(context: Arc<Context>, peer: PeerId, session: SessionId, request: Request) -> Arc<Self> {
        Arc::new(Self {
            id: request.transfer,
            peer,
            session,
            names: Mutex::new(Share::of(Some(Arc::clone(&context.names)))),
            context,
            state: Mutex::new(Transfer::new(&request)),
            request,
            buffered: Mutex::default(),
            skips: Mutex::default(),
            control: Notify::new(),
            cancelled: CancellationToken::new(),
            verifying: TaskTracker::new(),
            joined: TaskTracker::new(),
            streams: Mutex::default(),
            messages: AtomicUsize::new(0),
            widen: Mutex::default(),
            has_reported_end: AtomicBool::new(false),
            fragments: Mutex::default(),
            has_answered: AtomicBool::new(false),
            traffic: Mutex::default(),
        })
    }

    /// What it shares with others.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// How its blocks are transferred.
    pub fn over(&self) -> BlockTransport {
        self.context.over
    }

    /// The request.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Its state.
    pub fn state(&self) -> MutexGuard<'_, Transfer> {
        lock(&self.state)
    }

    /// The window, which is reserved while the transfer is active.
    pub fn window_bytes(&self) -> u64 {
        self.state().window_bytes()
    }

    /// The bytes of the file that it is for, if they are known.
    pub fn expected_bytes(&self) -> Option<u64> {
        self.state().expected_bytes()
    }

    /// Widens the window, for which credit is given.
    pub fn widen_window(&self, bytes: u64) {
        self.state().widen_window(bytes);
        self.control.notify_one();
    }

    /// Bytes that were received are not kept any more: gives credit if it is due.
    pub fn release(&self, budget_bytes: u64) {
        self.state().release(budget_bytes);
        self.control.notify_one();
    }

    /// Tells the server that a block is not needed. A gateway cannot be told: what it sends of it is dropped, and its
    /// CAR ends as soon as it brings nothing else.
    pub fn skip(&self, cid: Cid) {
        match self.over() {
            BlockTransport::Http => self.state().skip(&cid),
            _ => self.tell_skipped([cid]),
        }
    }

    fn tell_skipped(&self, cids: impl IntoIterator<Item = Cid>) {
        if self.over() != BlockTransport::Http {
            lock(&self.skips).extend(cids);
            self.control.notify_one();
        }
    }

    /// Ends the transfer: its streams are reset.
    pub fn cancel(&self) {
        self.state().stop();
        self.cancelled.cancel();
        self.report_end(TransferEnd::Cancelled);
    }

    /// Ends the transfer because it brings nothing.
    pub fn give_up(&self) {
        self.fail(TransferEnd::GivenUp);
    }

    /// Ends the transfer because it has brought all that its budget allows.
    pub fn use_up(&self) {
        self.fail(TransferEnd::Status(EndStatus::Budget));
    }

    /// When the peer last sent bytes, on a stream of any transfer.
    pub fn received_at(&self) -> Option<Instant> {
        lock(&self.traffic).as_ref().and_then(|traffic| traffic.received_at())
    }

    /// Whether blocks are buffered, some of which may have been taken.
    pub fn has_buffered(&self) -> bool {
        let mut buffered = lock(&self.buffered);
        let Buffered { leaves, inner, .. } = &mut *buffered;
        let holds = |key: &BlockKey| self.context.pushed.holds_of(key, self);
        for blocks in [&mut *leaves, &mut *inner] {
            while blocks.first_key_value().is_some_and(|(_, key)| !holds(key)) {
                blocks.pop_first();
            }
        }
        !leaves.is_empty() || !inner.is_empty()
    }

    /// Drops buffered blocks until these bytes of the budget are released.
    pub fn evict(&self, bytes: u64) {
        let mut evicted = 0;
        while evicted < bytes {
            let Some(key) = lock(&self.buffered).evicted() else { break };
            evicted += self.drop_buffered(&key);
        }
    }

    /// Drops a buffered block; returns its size, or zero if it was taken.
    fn drop_buffered(&self, key: &BlockKey) -> u64 {
        let Some(block) = self.context.pushed.remove_of(key, self) else { return 0 };
        self.context.metrics.dropped_blocks.inc();
        block.data().len() as u64
    }

    /// A reader has taken a block. Readers take blocks in order, so those that precede by far what was taken last are
    /// not needed: they are stored already.
    pub fn read_up_to(&self, place: Place) {
        lock(&self.buffered).note_taken(place.at);
        loop {
            let Some(key) = lock(&self.buffered).take_passed() else { return };
            self.drop_buffered(&key);
        }
    }

    /// The place of a block without children that was received, of so many bytes, which begins at `offset` of its file
    /// if it is a part of one.
    ///
    /// Blocks arrive over several streams, so that one that is late in its file may be received long before those that
    /// precede it: as much as the window. If there is no offset, that has to be waited for.
    fn place(&self, bytes: u64, offset: Option<u64>) -> Place {
        let window = self.window_bytes();
        let (received_bytes, number) = lock(&self.buffered).note_received(bytes);
        match offset {
            Some(at) => Place { at, lag: READER_BYTES_MAX.min(window / 2), number },
            None => Place { at: received_bytes, lag: window, number },
        }
    }

    /// The same for a block with others below it, where a part of the file ends if it is one. It is sent before leaves
    /// that precede it, up to a window of the server. A reader that has passed what is below it has had it, or has
    /// requested it alone.
    fn place_of_node(&self, bytes: u64, end: Option<u64>) -> Place {
        let Place { at, lag, number } = self.place(bytes, end);
        let ahead = if end.is_some() { 0 } else { SERVER_WINDOW_BYTES };
        Place { at: at.saturating_add(ahead), lag, number }
    }

    fn report(&self, event: TransferEvent) {
        // The swarm task may have ended.
        let _ = self.context.events.send(event);
    }

    fn report_end(&self, end: TransferEnd) {
        // A transfer may be kept for what it has buffered, but no memory for what is incomplete, or was to follow.
        *lock(&self.fragments) = Reassembly::default();
        self.reserve_names();
        if !self.has_reported_end.swap(true, Ordering::Relaxed) {
            self.report(TransferEvent::Ended { transfer: self.id, end });
        }
    }

    /// Its first stream cannot be opened, or is gone.
    pub fn lost(&self) {
        self.fail(TransferEnd::Lost);
    }

    /// Asks on the first stream, and reads its answers until the end. `widen` opens further streams.
    pub async fn run_first<S>(
        self: Arc<Self>,
        stream: S,
        budgets: Budgets,
        widen: mpsc::UnboundedSender<Arc<ActiveTransfer>>,
    ) where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        budgets.traffic().record_request();
        *lock(&self.traffic) = Some(Arc::clone(budgets.traffic()));
        self.request_streams(widen);
        let this = Arc::clone(&self);
        let conversation = async move {
            let end = this.converse(stream, budgets).await;
            *lock(&this.widen) = None;
            end
        };
        self.run(conversation).await;
    }

    /// Requests further streams: as many as the requested bytes need, or those of a small file.
    pub(super) fn request_streams(self: &Arc<Self>, widen: mpsc::UnboundedSender<Arc<ActiveTransfer>>) {
        *lock(&self.widen) = Some(widen);
        match super::transfer::expected_bytes(&self.request.scope, None) {
            Some(bytes) => self.widen_for(bytes, false),
            None => self.widen_for(ASSUMED_BYTES, true),
        }
    }

    /// The connection has streams to spare: more are to be opened if the size of the answer is not known.
    pub(super) fn assume_more(&self) {
        let mut streams = lock(&self.streams);
        if streams.is_guess {
            streams.needed = streams.needed.max(streams_for(ASSUMED_BYTES_MAX));
        }
    }

    /// How many further streams are to be opened.
    pub(super) fn lacking_streams(&self) -> usize {
        if self.state().has_ended() {
            return 0;
        }
        let streams = lock(&self.streams);
        streams.needed.saturating_sub(streams.opened)
    }

    /// Whether the number of its streams is a guess, because the size of the answer is not known.
    pub(super) fn guesses_streams(&self) -> bool {
        lock(&self.streams).is_guess
    }

    /// A further stream is being opened, possibly with the permit of a guess.
    pub(super) fn opens_stream(&self, guess: Option<OwnedSemaphorePermit>) {
        let mut streams = lock(&self.streams);
        streams.opened += 1;
        // The size may have become known since the permit was acquired.
        let Some(guess) = guess.filter(|_| streams.is_guess) else { return };
        match &mut streams.guesses {
            Some(guesses) => guesses.merge(guess),
            None => streams.guesses = Some(guess),
        }
    }

    /// A further stream has ended, or was not opened: its permit, if it was a guess to the end, is released.
    pub(super) fn stream_ended(&self) {
        drop(lock(&self.streams).guesses.as_mut().and_then(|guesses| guesses.split(1)));
    }

    /// Runs the transfer to its end, which `conversation` returns unless the transfer is cancelled before.
    pub async fn run(self: Arc<Self>, conversation: impl Future<Output = TransferEnd>) {
        // The task is aborted when the connection ends.
        let _lost = LostWhenDropped(Arc::clone(&self));
        let end = {
            let running = pin!(conversation);
            let cancelled = pin!(self.cancelled.cancelled());
            match select(running, cancelled).await {
                Either::Left((end, _)) => end,
                Either::Right(_) => TransferEnd::Cancelled,
            }
        };
        *lock(&self.widen) = None;
        let end = self.finish(end).await;
        self.report_end(end);
    }

    /// The transfer cannot be started.
    pub fn reject(&self, end: TransferEnd) {
        self.fail(end);
    }

    /// Waits until the window has room for a block of so many bytes, for a peer that sends as fast as it is read;
    /// `false` if blocks that nothing has named take the room.
    pub async fn room_for(&self, block_bytes: u64) -> bool {
        loop {
            {
                let mut state = self.state();
                state.credit();
                if state.has_room_for(block_bytes) {
                    return true;
                }
                if state.is_full_of_early(block_bytes) {
                    return false;
                }
            }
            self.control.notified().await;
        }
    }

    /// Takes a block for which there is room; returns how the transfer ends, if the peer may not send it.
    pub async fn take_block(
        self: &Arc<Self>,
        cid: Cid,
        data: Bytes,
        memory: OwnedSemaphorePermit,
    ) -> Option<TransferEnd> {
        let arrival = self.state().arrived(Answer::Block { cid, data }, Some(memory));
        match arrival {
            // Its children are named before the next block is taken.
            Ok(Arrival::Verify(verify)) if has_links(&cid) => self.verify(*verify).await,
            Ok(Arrival::Verify(verify)) => self.spawn_verify(*verify, None),
            Ok(Arrival::Nothing | Arrival::Absent(_) | Arrival::End(_)) => {}
            Err(violation) => return Some(violated(violation)),
        }
        None
    }

    /// The peer does not have the root, whose next source is asked at once.
    pub fn lacks_root(&self) {
        self.report(TransferEvent::Absent { transfer: self.id, cid: self.request.root });
    }

    /// Waits for the blocks that are being verified.
    pub async fn verified(&self) {
        self.verifying.close();
        self.verifying.wait().await;
        self.verifying.reopen();
    }

    /// Bytes of a block have arrived.
    pub fn note_bytes(&self) {
        lock(&self.traffic).get_or_insert_default().note_bytes();
    }

    /// Waits for the other streams, and for the blocks that are being verified.
    async fn finish(&self, end: TransferEnd) -> TransferEnd {
        self.joined.close();
        let complete = matches!(end, TransferEnd::Status(_));
        if !complete || !self.further_streams_end().await {
            self.cancelled.cancel();
            self.joined.wait().await;
        }
        self.verifying.close();
        self.verifying.wait().await;
        let mut state = self.state();
        let status = if let TransferEnd::Status(status) = end { status } else { EndStatus::Failed };
        match state.end(status) {
            // A gateway may send more than was requested.
            Err(violation) if self.over() == BlockTransport::Dag => violated(violation),
            Ok(()) | Err(_) => end,
        }
    }

    /// Waits for the further streams, which the end overtakes over QUIC; `false` if they do not end.
    async fn further_streams_end(&self) -> bool {
        let deadline = Instant::now() + STREAMS_END_MAX;
        let received = || (self.messages.load(Ordering::Relaxed), self.received_at());
        let mut before = received();
        while tokio::time::timeout(STREAMS_END_TIMEOUT, self.joined.wait()).await.is_err() {
            let now = received();
            if now == before || Instant::now() >= deadline {
                return false;
            }
            before = now;
        }
        true
    }

    async fn converse<S>(self: &Arc<Self>, mut stream: S, budgets: Budgets) -> TransferEnd
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let opening = Opening::Request(self.request.clone()).encode();
        if write_all(&mut stream, opening).await.is_err() {
            return TransferEnd::Lost;
        }
        let (mut reader, mut writer) = stream.split();
        let reading = pin!(self.read(&mut reader, &budgets));
        let writing = pin!(self.write(&mut writer));
        match select(reading, writing).await {
            // The server may close the stream without its end.
            Either::Left((end, _)) => end.unwrap_or(TransferEnd::Lost),
            Either::Right((error, reading)) => {
                // What was sent before is read.
                match tokio::time::timeout(Duration::ZERO, reading).await {
                    Ok(Some(end)) => end,
                    _ if error.kind() == io::ErrorKind::TimedOut => TransferEnd::Stalled,
                    _ => TransferEnd::Lost,
                }
            }
        }
    }

    /// Adds a stream, and reads its answers.
    pub async fn run_joined<S>(self: Arc<Self>, mut stream: S, budgets: Budgets)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let token = self.joined.token();
        let reading = async {
            // A stream that the server declines carries nothing.
            write_all(&mut stream, Opening::Join(self.id).encode()).await.ok()?;
            self.read(&mut stream, &budgets).await
        };
        let end = match select(pin!(reading), pin!(self.cancelled.cancelled())).await {
            Either::Left((end, _)) => end,
            Either::Right(_) => None,
        };
        drop(token);
        match end {
            // Only the first stream has an end.
            Some(TransferEnd::Status(_)) => self.fail(TransferEnd::Fault("an end on a further stream".to_owned())),
            // The server may reset it, such as at its limit of streams. What it had carried is requested otherwise when
            // the transfer ends.
            Some(TransferEnd::Lost) => {}
            Some(end) => self.fail(end),
            None => {}
        }
    }

    /// Ends the transfer with an error.
    fn fail(&self, end: TransferEnd) {
        self.state().stop();
        self.report_end(end);
        self.cancelled.cancel();
    }

    /// Writes credit and other control messages until the stream fails.
    async fn write<S: AsyncWrite + Unpin>(&self, stream: &mut S) -> io::Error {
        loop {
            let credit = self.state().credit();
            let skips: Vec<Cid> = lock(&self.skips).drain(..).collect();
            let controls = credit.map(Control::Credit).into_iter().chain(skips.into_iter().map(Control::Skip));
            let messages: Vec<Bytes> = controls.flat_map(|control| control.encode()).collect();
            if messages.is_empty() {
                self.control.notified().await;
            } else {
                if let Some(traffic) = &*lock(&self.traffic) {
                    // Large messages are expected for as long as credit is given.
                    traffic.record_request();
                }
                if let Err(error) = write_all(stream, messages).await {
                    return error;
                }
            }
        }
    }

    /// Reads answers until the stream or the transfer ends; `None` at the end of the stream.
    async fn read<S: AsyncRead + Unpin>(self: &Arc<Self>, stream: &mut S, budgets: &Budgets) -> Option<TransferEnd> {
        loop {
            let (frame, permits) = match budgets.read_frame(stream).await {
                Ok(Frame::Whole(frame, permits)) => (frame, permits),
                Ok(Frame::End) => return None,
                Ok(Frame::Stalled | Frame::Unsolicited) => return Some(TransferEnd::Stalled),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Some(TransferEnd::Fault(error.to_string()));
                }
                Err(_) => return Some(TransferEnd::Lost),
            };
            self.messages.fetch_add(1, Ordering::Relaxed);
            if frame.len() > ANSWER_BYTES_MAX {
                return Some(TransferEnd::Fault(format!("a message of {} bytes", frame.len())));
            }
            let (of_connection, memory) = permits.split();
            let (answer, memory) = match self.decode(frame, memory) {
                Ok(Some(decoded)) => decoded,
                Ok(None) => continue,
                Err(reason) => return Some(TransferEnd::Fault(reason)),
            };
            let arrival = self.state().arrived(answer, Some(memory));
            match arrival {
                Ok(Arrival::Verify(verify)) => self.spawn_verify(*verify, Some(of_connection)),
                Ok(Arrival::Nothing) => {}
                Ok(Arrival::Absent(cid)) => self.report(TransferEvent::Absent { transfer: self.id, cid }),
                Ok(Arrival::End(status)) => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    return Some(TransferEnd::Status(status));
                }
                Err(violation) => return Some(violated(violation)),
            }
            // What was dropped is given back as credit.
            self.control.notify_one();
        }
    }

    /// The answer in a frame, or the one that a fragment completes, with its memory.
    fn decode(
        &self,
        frame: Bytes,
        memory: OwnedSemaphorePermit,
    ) -> Result<Option<(Answer, OwnedSemaphorePermit)>, String> {
        let fragment = match Answer::decode(frame).map_err(|error| error.to_string())? {
            Answer::Fragment(fragment) => fragment,
            answer => return Ok(Some((answer, memory))),
        };
        let bytes_max = self.window_bytes() as usize + ANSWER_BYTES_MAX;
        let complete = {
            let mut fragments = lock(&self.fragments);
            let complete = fragments.push(fragment, memory).map_err(|error| error.to_string())?;
            if fragments.bytes() > bytes_max {
                return Err(Violation::OverBudget.to_string());
            }
            complete
        };
        let Some((message, permits)) = complete else { return Ok(None) };
        let merged = permits.into_iter().reduce(|mut all, permit| {
            all.merge(permit);
            all
        });
        let answer = Answer::decode(message).map_err(|error| error.to_string())?;
        Ok(merged.map(|memory| (answer, memory)))
    }

    fn spawn_verify(self: &Arc<Self>, verify: Verify, of_connection: Option<OwnedSemaphorePermit>) {
        let this = Arc::clone(self);
        self.verifying.spawn(async move {
            this.verify(verify).await;
            drop(of_connection);
        });
    }

    /// Verifies a block, delivers it, and verifies what was waiting for it.
    async fn verify(self: &Arc<Self>, mut verify: Verify) {
        let mut memory: Vec<OwnedSemaphorePermit> = verify.memory.take().into_iter().collect();
        let (cid, budget_bytes) = (verify.cid, verify.budget_bytes);
        let form = match &verify.payload {
            Payload::Plain(_) => BlockForm::Plain,
            Payload::Packed(stored) => {
                match self.context.memory.take(stored.shape().block_bytes()).await {
                    Ok(permit) => memory.push(permit),
                    Err(_) => return self.drop_unverified(&verify),
                }
                BlockForm::Packed
            }
        };
        // What arrived before the stream was closed is verified, so that a lie is found.
        if self.has_reported_end.load(Ordering::Relaxed) {
            return;
        }
        let wire_bytes = verify.payload.wire_bytes();
        let block = match verify.take_payload() {
            Payload::Plain(data) => Block::verify(cid, data).map_err(UnpackError::from),
            Payload::Packed(stored) => Block::verify_stored(cid, stored),
        };
        let block = match block {
            Ok(block) => block,
            Err(UnpackError::Block(BlockError::Mismatch { .. })) => return self.fail(TransferEnd::InvalidBlock),
            Err(error) => return self.fail(TransferEnd::Fault(error.to_string())),
        };
        self.context.metrics.received(form, block.data().len(), wire_bytes);
        let mut children = children(&verify, &block);
        let is_leaf = children.is_empty();
        self.refuse(&mut children);
        // Its children are named before a reader can request them.
        let expanded = self.state().verified(&verify, &block, &children);
        let has_room = self.reserve_names();
        let bytes = block.data().len() as u64;
        let place = match is_leaf {
            true => self.place(bytes, verify.offset()),
            false => self.place_of_node(bytes, verify.end()),
        };
        let key = block.key();
        self.deliver(block, is_leaf, place, budget_bytes, memory);
        let is_past_end = {
            let mut state = self.state();
            state.delivered(&verify);
            state.is_past_end(&verify)
        };
        if let Some(key) = key {
            // No want is attached here for it any more.
            if is_past_end {
                self.release_unawaited(&key);
            }
            self.report(TransferEvent::Received { transfer: self.id, key, bytes: bytes as usize });
        }
        match expanded {
            Ok(Expanded { verify, absent, dropped }) if has_room => {
                verify.into_iter().for_each(|verify| self.spawn_verify(verify, None));
                let transfer = self.id;
                absent.into_iter().for_each(|cid| self.report(TransferEvent::Absent { transfer, cid }));
                let loses_names = dropped.iter().any(has_links);
                if !dropped.is_empty() {
                    // Their bytes were released.
                    self.control.notify_one();
                }
                dropped.into_iter().for_each(|cid| self.report(TransferEvent::Dropped { transfer, cid }));
                if loses_names {
                    return self.fail(TransferEnd::NamesLost);
                }
            }
            Ok(_) | Err(_) => return self.fail(TransferEnd::TooManyBlocks),
        }
        let expected = self.state().expected_bytes();
        expected.into_iter().for_each(|bytes| self.widen_for(bytes, false));
    }

    /// Reserves the memory of the names of its blocks; `false` if there is not enough.
    fn reserve_names(&self) -> bool {
        let state = self.state();
        lock(&self.names).resize(state.names_bytes())
    }

    /// Removes children that the policy refuses, which the server is told to skip.
    fn refuse(&self, children: &mut Vec<Child>) {
        let is_refused = |child: &mut Child| self.context.policy.check(&child.cid).is_err();
        let refused: Vec<Child> = children.extract_if(.., is_refused).collect();
        if !refused.is_empty() {
            let skipped = self.state().refuse(&refused);
            self.tell_skipped(skipped);
        }
    }

    /// Drops a block for lack of memory: it is fetched otherwise.
    fn drop_unverified(&self, verify: &Verify) {
        self.context.metrics.dropped_blocks.inc();
        self.state().dropped(verify);
        self.report(TransferEvent::Dropped { transfer: self.id, cid: verify.cid });
        if has_links(&verify.cid) {
            // What follows it cannot be told from what was not requested.
            return self.fail(TransferEnd::NamesLost);
        }
        self.control.notify_one();
    }

    /// Delivers a block to its waiters, or buffers it. The caller reports that it was received.
    fn deliver(
        self: &Arc<Self>,
        block: Block,
        is_leaf: bool,
        place: Place,
        budget_bytes: u64,
        memory: Vec<OwnedSemaphorePermit>,
    ) {
        let Some(key) = block.key() else { return };
        let Context { wants, pushed, .. } = &*self.context;
        if wants.deliver(&block, self.context.over) {
            self.release(budget_bytes);
            if is_leaf {
                self.read_up_to(place);
            }
        } else if pushed.insert(key, block, Arc::downgrade(self), (budget_bytes, is_leaf.then_some(place)), memory) {
            let mut buffered = lock(&self.buffered);
            match is_leaf {
                true => _ = buffered.leaves.insert(place, key),
                false => _ = buffered.inner.insert(place, key),
            }
            drop(buffered);
            // A reader that has looked for it in between registered before it looked again.
            if wants.is_awaited(&key)
                && let Some(block) = pushed.remove(&key)
            {
                wants.deliver(&block, self.context.over);
            }
        } else {
            self.release(budget_bytes);
        }
    }

    /// Does not keep a buffered block that another transfer brings: it would keep the window reserved after the end.
    fn release_unawaited(&self, key: &BlockKey) {
        let Context { wants, pushed, metrics, .. } = &*self.context;
        let Some(block) = pushed.remove_of(key, self) else { return };
        // A reader may have registered after it was buffered, and not have looked again so far.
        if !wants.deliver(&block, self.context.over) {
            metrics.dropped_blocks.inc();
        }
    }

    /// Requests as many streams as so many bytes need, which may be a guess. Once it is none, the open streams count as
    /// guesses no longer, so that other transfers may guess.
    pub(super) fn widen_for(self: &Arc<Self>, bytes: u64, is_guess: bool) {
        let needed = streams_for(bytes);
        let (is_news, guesses) = {
            let mut streams = lock(&self.streams);
            let before = (streams.needed, streams.is_guess);
            (streams.needed, streams.is_guess) = (needed, is_guess);
            let guesses = streams.guesses.take_if(|_| !is_guess);
            (before != (needed, is_guess) && streams.opened < needed || guesses.is_some(), guesses)
        };
        drop(guesses);
        if is_news && let Some(widen) = lock(&self.widen).as_ref() {
            // The connection may have ended.
            let _ = widen.send(Arc::clone(self));
        }
    }
}

/// A transfer that ends as lost when this is dropped, unless it has ended. It is owned by what stands for its first
/// stream: the request to open it, and then the task that reads it. So a transfer whose connection is gone ends at once.
#[derive(Debug)]
pub struct LostWhenDropped(pub Arc<ActiveTransfer>);

impl Drop for LostWhenDropped {
    fn drop(&mut self) {
        self.0.lost();
    }
}

impl Drop for ActiveTransfer {
    /// Drops what is buffered.
    fn drop(&mut self) {
        let Buffered { leaves, inner, .. } = std::mem::take(&mut *lock(&self.buffered));
        for key in leaves.into_values().chain(inner.into_values()) {
            self.context.pushed.remove_of(&key, self);
        }
    }
}

/// How many streams an answer of so many bytes needs.
fn streams_for(bytes: u64) -> usize {
    let most = if bytes < LARGE_BYTES { STREAMS_SMALL_MAX } else { STREAMS_MAX };
    usize::try_from(bytes.div_ceil(STREAM_BYTES)).unwrap_or(most).clamp(1, most)
}

fn violated(violation: Violation) -> TransferEnd {
    match violation {
        Violation::Unnamed => TransferEnd::NamesLost,
        Violation::OverBudget | Violation::Unsolicited => TransferEnd::Fault(violation.to_string()),
    }
}

async fn write_all<S: AsyncWrite + Unpin>(stream: &mut S, parts: Vec<Bytes>) -> io::Result<()> {
    let writing = async {
        for part in parts {
            stream.write_all(&part).await?;
        }
        stream.flush().await
    };
    tokio::time::timeout(WRITE_TIMEOUT, writing).await.map_err(|_| io::ErrorKind::TimedOut)?
}

#[cfg(test)]
#[path = "active_tests.rs"]
mod tests;
