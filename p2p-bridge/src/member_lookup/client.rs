//! Asks the other gateways of a site for blocks.
//!
//! Each gateway that is asked has a pool of streams, so that a look-up seldom waits for a stream to be opened, and windows
//! of flow control have grown. They are streams of a connection that was opened for look-ups ([`super::dialling`]), or
//! of any other one while that cannot be opened. A gateway that cannot be reached, or does not answer, is not asked for
//! some seconds (a circuit breaker): the caller then reads the block elsewhere.
//!
//! Memory: replies are messages of peers, whose bytes are taken from the network's budget as they are received, and
//! from a smaller one of the gateway that sends them ([`crate::framing`]).

use super::behaviour::{Choice, Ends, Opening};
use super::breaker::Breaker;
use super::dialling::Dialler;
use super::handler::{OUTBOUND_MAX, OutboundStream};
use super::message::{REPLY_BYTES_MAX, Reply};
use super::metrics::{LookupResult, Metrics};
use super::server::WAITING_INTERVAL;
use super::{Lookup, MemberAddress};
use crate::framing::{Budgets, Frame, Memory, Permits};
use crate::smoothed_time::SmoothedTime;
use crate::traffic::Traffic;
use bytes::Bytes;
use content::source_error::Stall;
use content::{Block, Cid};
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use futures::io::BufReader;
use futures::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _};
use libp2p::PeerId;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};

/// The maximum number of look-ups in progress at one gateway that may fetch, and of others, which are faster. Further ones
/// wait. Together they are the streams of a connection.
const FETCHES_MAX: usize = OUTBOUND_MAX / 2;
const READS_MAX: usize = OUTBOUND_MAX - FETCHES_MAX;
/// How long they wait: fetches may take long, so that waiting for one of them to end is of little use.
const FETCH_SLOT_TIMEOUT: Duration = Duration::from_millis(500);
const READ_SLOT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a stream may take to be opened.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long no connection is requested of a gateway that could not be dialled, while there is another one.
const REDIAL_AFTER: Duration = Duration::from_secs(60);
/// The time for the first reply: the minimum, before any was received, and the maximum. It is generous, because a gateway
/// whose processors are busy with cache hits answers late, and what is fetched without it is fetched twice. Longer in
/// tests, which are not about it.
const REPLY_TIMEOUTS: [Duration; 3] = {
    let milliseconds = if cfg!(test) { [2_000, 2_000, 4_000] } else { [1_000, 2_000, 5_000] };
    let [min, initial, max] = milliseconds;
    [Duration::from_millis(min), Duration::from_millis(initial), Duration::from_millis(max)]
};
/// A gateway that has replied once and then sends nothing for this long hangs.
const SILENCE_MAX: Duration = Duration::from_secs(3 * WAITING_INTERVAL.as_secs());
/// The time for a reply from its first byte to its last, and for the memory that it takes.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a look-up may take in all.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum number of idle streams to one gateway, and how long each is kept.
const IDLE_MAX: usize = 32;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of gateways whose state is kept.
const PEERS_MAX: usize = 1000;

/// A block that another gateway has returned, verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundBlock {
    /// The block.
    pub block: Block,
    /// Whether it was fetched from the network, as far as the gateway can tell.
    pub fetched: bool,
}

/// Why a look-up returned neither a block nor that it is not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The gateway has searched the network, which made no progress.
    #[error("the gateway of the site that was asked did not find the block: {0}")]
    NotFound(Stall),
    /// The gateway was not asked, or could not answer. The block may be available elsewhere.
    #[error("another gateway of the site could not be asked: {reason}")]
    Unavailable {
        /// Why.
        reason: Arc<str>,
        /// Whether look-ups of other blocks are expected to fail as well.
        is_lasting: bool,
    },
}

impl LookupError {
    /// For all blocks.
    pub(crate) fn lasting(reason: impl Into<Arc<str>>) -> Self {
        Self::Unavailable { reason: reason.into(), is_lasting: true }
    }

    /// For this block.
    fn once(reason: impl Into<Arc<str>>) -> Self {
        Self::Unavailable { reason: reason.into(), is_lasting: false }
    }
}

/// How an exchange on a stream failed.
#[derive(Debug)]
enum Failure {
    /// Before anything was received: an idle stream may have been closed by the other gateway.
    Unanswered(io::Error),
    /// No reply was received in time.
    Late,
    /// The stream broke after the first reply.
    Broken(io::Error),
    /// There was too little memory for the reply.
    NoMemory,
    /// What was received is no reply, or not the block.
    Invalid(String),
}

/// What is known of a gateway that is asked.
#[derive(Debug)]
struct Peer {
    fetches: Semaphore,
    reads: Semaphore,
    /// Of the replies that are being received.
    budgets: Budgets,
    state: Mutex<PeerState>,
}

/// A stream of the pool.
#[derive(Debug)]
struct PooledStream {
    stream: BufReader<OutboundStream>,
    generation: u64,
}

#[derive(Debug, Default)]
struct PeerState {
    /// The latest one last.
    idle: Vec<(Instant, PooledStream)>,
    /// Streams of earlier generations do not become idle: they are of connections that are not used any more.
    generation: u64,
    breaker: Breaker,
    /// The time until the first reply. After one that was not received within its time, it is that time, which doubles
    /// the next one (RFC 6298, section 5.5).
    first_reply: Option<SmoothedTime>,
    /// The dial in progress.
    dial: Option<Dialled>,
    /// When the latest dial failed.
    dial_failed: Option<Instant>,
}

/// The end of a dial. The error is a reason for the log.
type Dialled = Shared<BoxFuture<'static, Result<(), Arc<str>>>>;

/// How long the next first reply is waited for: twice the mean, since a look-up may have to read a disk.
fn reply_timeout(estimate: Option<SmoothedTime>) -> Duration {
    let [min, initial, max] = REPLY_TIMEOUTS;
    estimate.map_or(initial, |estimate| estimate.limit(2.0).clamp(min, max))
}

impl Peer {
    fn new(memory: &Memory) -> Self {
        let [fetches, reads] = [FETCHES_MAX, READS_MAX].map(Semaphore::new);
        let budgets = Budgets::new(memory.clone(), Arc::new(Traffic::default()));
        Self { fetches, reads, budgets, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<PooledStream> {
        let mut state = self.state();
        state.drop_old();
        state.idle.pop().map(|(_, stream)| stream)
    }

    /// Keeps a stream for the next look-up. One with bytes that belong to no look-up is of no use.
    fn keep_idle(&self, stream: PooledStream) {
        let mut state = self.state();
        state.drop_old();
        let is_clean = stream.stream.buffer().is_empty() && stream.generation == state.generation;
        if state.idle.len() < IDLE_MAX && is_clean {
            state.idle.push((Instant::now(), stream));
        }
    }

    fn first_reply_timeout(&self) -> Duration {
        reply_timeout(self.state().first_reply)
    }

    fn replied_after(&self, time: Duration) {
        let mut state = self.state();
        state.first_reply = Some(SmoothedTime::after(state.first_reply, time));
    }

    fn has_not_replied_within(&self, timeout: Duration) {
        self.state().first_reply = Some(SmoothedTime::exactly(timeout));
    }
}

impl PeerState {
    fn dial_ended(&mut self, is_open: bool) {
        self.dial = None;
        self.dial_failed = (!is_open).then(Instant::now);
        if is_open {
            self.discard_streams();
        }
    }

    /// From now on, streams are opened.
    fn discard_streams(&mut self) {
        self.idle.clear();
        self.generation += 1;
    }

    fn drop_old(&mut self) {
        self.idle.retain(|(since, _)| since.elapsed() < IDLE_TIMEOUT);
    }
}

/// The asking side.
#[derive(Debug)]
pub struct Client {
    opening: mpsc::Sender<Opening>,
    dialler: Dialler,
    peers: Mutex<HashMap<PeerId, Arc<Peer>>>,
    memory: Memory,
    metrics: Metrics,
}

impl Client {
    /// A client that opens connections and streams by a behaviour. Replies take their memory from a budget.
    pub fn new(ends: &Ends, dialler: Dialler, memory: Memory, metrics: Metrics) -> Self {
        Self { opening: ends.opening.clone(), dialler, peers: Mutex::default(), memory, metrics }
    }

    /// Asks a gateway for a block; `None` if it is not stored there and was not to be fetched.
    ///
    /// # Errors
    /// [`LookupError`].
    pub async fn look_up(&self, member: MemberAddress, lookup: &Lookup) -> Result<Option<FoundBlock>, LookupError> {
        let (since, peer) = (Instant::now(), member.peer);
        let asking = self.ask(member, lookup);
        let asked = timeout(LOOKUP_TIMEOUT, asking).await;
        let (result, reply) = asked.unwrap_or_else(|_| {
            (LookupResult::Unavailable, Err(LookupError::once("it has not finished the look-up in time")))
        });
        self.metrics.asked(result);
        match &reply {
            Ok(Some(found)) => _ = self.metrics.received_bytes.inc_by(found.block.data().len() as u64),
            Err(LookupError::Unavailable { reason, .. }) => {
                tracing::debug!(%peer, cid = %lookup.cid, %reason, "a look-up at another gateway of the site failed");
            }
            Ok(None) | Err(LookupError::NotFound(_)) => {}
        }
        self.metrics.seconds.observe(since.elapsed().as_secs_f64());
        reply
    }

    async fn ask(
        &self,
        member: MemberAddress,
        lookup: &Lookup,
    ) -> (LookupResult, Result<Option<FoundBlock>, LookupError>) {
        let open = || (LookupResult::Unavailable, Err(LookupError::lasting(OPEN)));
        let (peer_id, peer) = (member.peer, self.peer(member.peer));
        if peer.state().breaker.is_open(Instant::now()) {
            return open();
        }
        let (slots, patience) = match lookup.may_fetch {
            true => (&peer.fetches, FETCH_SLOT_TIMEOUT),
            false => (&peer.reads, READ_SLOT_TIMEOUT),
        };
        let Ok(Ok(_slot)) = timeout(patience, slots.acquire()).await else {
            return (LookupResult::Unavailable, Err(LookupError::once("too many look-ups are in progress")));
        };
        // It may have opened since.
        let Some(admitted) = Admitted::by(&peer) else { return open() };
        let reply = match self.exchange_with(&peer, member, lookup, admitted.is_probe).await {
            Ok(reply) => reply,
            Err(error) => {
                let is_lasting = !error.is_own && admitted.failed(error.is_definite);
                if is_lasting {
                    self.dialler.distrust(peer_id).await;
                }
                return (error.result, Err(LookupError::Unavailable { reason: error.reason.into(), is_lasting }));
            }
        };
        admitted.succeeded();
        let result = reply.result();
        let answer = match reply {
            Received::Block(found) => Ok(Some(found)),
            Received::Other(Reply::NotStored) => Ok(None),
            Received::Other(Reply::NotFound(stall)) => Err(LookupError::NotFound(stall)),
            Received::Other(Reply::Busy) => Err(LookupError::once("it has too many look-ups in progress")),
            Received::Other(_) => Err(LookupError::lasting("it could not read the block")),
        };
        (result, answer)
    }

    fn peer(&self, peer: PeerId) -> Arc<Peer> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= PEERS_MAX && !peers.contains_key(&peer) {
            peers.clear();
        }
        Arc::clone(peers.entry(peer).or_insert_with(|| Arc::new(Peer::new(&self.memory))))
    }

    async fn exchange_with(
        &self,
        peer: &Arc<Peer>,
        member: MemberAddress,
        lookup: &Lookup,
        is_probe: bool,
    ) -> Result<Received, AskError> {
        if let Some(stream) = peer.take_idle() {
            match exchange(peer, stream, lookup).await {
                // The other gateway may have been started again: the other idle streams are of no use either.
                Err(Failure::Unanswered(_)) => peer.state().discard_streams(),
                received => return received.map_err(AskError::from),
            }
        }
        let generation = peer.state().generation;
        let stream = BufReader::new(self.open(peer, member, is_probe).await?);
        Ok(exchange(peer, PooledStream { stream, generation }, lookup).await?)
    }

    /// A new stream, on the connection that was opened for look-ups. While there is none, on any other one; if there is
    /// no other one either, the dial is waited for. A probe waits for it in any case: the others may be broken.
    async fn open(&self, peer: &Arc<Peer>, member: MemberAddress, is_probe: bool) -> Result<OutboundStream, AskError> {
        let peer_id = member.peer;
        if let Some(stream) = self.open_on(peer_id, Choice::Requested).await {
            return Ok(stream);
        }
        let mut dialled = Ok(());
        if let Some(dial) = self.dial(peer, &member, is_probe)
            && is_probe
        {
            dialled = dial.await;
        }
        if let Some(stream) = self.open_on(peer_id, Choice::Any).await {
            return Ok(stream);
        }
        if let Some(dial) = self.dial(peer, &member, dialled.is_ok()) {
            dialled = dial.await;
        }
        match (self.open_on(peer_id, Choice::Any).await, dialled) {
            (Some(stream), _) => Ok(stream),
            (None, Err(reason)) => Err(AskError::unavailable(&*reason, true)),
            (None, Ok(())) => Err(AskError::unavailable("it accepts no further stream", false)),
        }
    }

    /// The dial in progress, or a new one, which goes on when the look-up ends. `None` if one has failed lately, unless
    /// it is `needed`.
    fn dial(&self, peer: &Arc<Peer>, member: &MemberAddress, needed: bool) -> Option<Dialled> {
        let mut state = peer.state();
        if state.dial.is_some() {
            return state.dial.clone();
        }
        if !needed && state.dial_failed.is_some_and(|failed| failed.elapsed() < REDIAL_AFTER) {
            return None;
        }
        let (dialler, member, peer) = (self.dialler.clone(), member.clone(), Arc::clone(peer));
        let dialling = tokio::spawn(async move {
            let dialled = dialler.dial(member).await.map_err(Arc::from);
            peer.state().dial_ended(dialled.is_ok());
            dialled
        });
        let stopped = |_| Err(Arc::from("the network has stopped"));
        let dial = dialling.map(move |ended| ended.unwrap_or_else(stopped)).boxed().shared();
        state.dial = Some(dial.clone());
        Some(dial)
    }

    async fn open_on(&self, peer: PeerId, choice: Choice) -> Option<OutboundStream> {
        let (waiter, opened) = oneshot::channel();
        self.opening.send(Opening { peer, choice, waiter }).await.ok()?;
        timeout(OPEN_TIMEOUT, opened).await.ok()?.ok()
    }
}

/// The reason while the circuit breaker is open.
const OPEN: &str = "it could not be reached, or did not answer, a moment ago";

/// Why a gateway gave no reply.
#[derive(Debug)]
struct AskError {
    reason: String,
    result: LookupResult,
    /// Whether the next look-up would fail as well.
    is_definite: bool,
    /// Whether it says nothing of the gateway that was asked.
    is_own: bool,
}

impl AskError {
    fn unavailable(reason: impl Into<String>, is_definite: bool) -> Self {
        Self { reason: reason.into(), result: LookupResult::Unavailable, is_definite, is_own: false }
    }
}

impl From<Failure> for AskError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unanswered(error) | Failure::Broken(error) => {
                Self::unavailable(format!("the stream broke: {error}"), false)
            }
            Failure::Late => Self::unavailable("it did not answer in time", false),
            Failure::NoMemory => {
                let reason = "messages of peers use up the memory for them (p2p.network_memory_bytes_max)";
                Self { is_own: true, ..Self::unavailable(reason, false) }
            }
            Failure::Invalid(reason) => Self { result: LookupResult::Invalid, ..Self::unavailable(reason, true) },
        }
    }
}

/// A look-up that the circuit breaker has admitted. One that is dropped says nothing of the gateway.
struct Admitted<'a> {
    peer: &'a Peer,
    is_probe: bool,
}

impl<'a> Admitted<'a> {
    fn by(peer: &'a Peer) -> Option<Self> {
        let is_probe = peer.state().breaker.admit(Instant::now())?;
        Some(Self { peer, is_probe })
    }

    fn succeeded(self) {
        self.peer.state().breaker.succeeded();
    }

    /// Whether it is open from now on.
    fn failed(self, is_definite: bool) -> bool {
        let mut state = self.peer.state();
        state.breaker.failed(self.is_probe, is_definite, Instant::now());
        let is_open = state.breaker.is_open(Instant::now());
        if is_open {
            state.discard_streams();
        }
        is_open
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if self.is_probe {
            self.peer.state().breaker.probe_ended();
        }
    }
}

/// The last reply to a look-up, with its block verified.
#[derive(Debug)]
enum Received {
    Block(FoundBlock),
    Other(Reply),
}

impl Received {
    fn result(&self) -> LookupResult {
        match self {
            Self::Block(FoundBlock { fetched: true, .. }) => LookupResult::Fetched,
            Self::Block(_) => LookupResult::Stored,
            Self::Other(reply) => reply.result(),
        }
    }
}

/// Sends a look-up, and waits for its last reply. The stream becomes idle then.
async fn exchange(peer: &Peer, mut pooled: PooledStream, lookup: &Lookup) -> Result<Received, Failure> {
    let stream = &mut pooled.stream;
    let first_reply = peer.first_reply_timeout();
    let (asked, since) = (lookup.encode(), Instant::now());
    peer.budgets.traffic().record_request();
    let late = || {
        peer.has_not_replied_within(first_reply);
        Failure::Late
    };
    let sending = timeout(first_reply, send(stream.get_mut(), &asked)).await;
    sending.map_err(|_| late())?.map_err(Failure::Unanswered)?;
    let first = timeout(first_reply, stream.fill_buf()).await.map_err(|_| late())?;
    if first.map_err(Failure::Unanswered)?.is_empty() {
        return Err(Failure::Unanswered(io::ErrorKind::UnexpectedEof.into()));
    }
    peer.replied_after(since.elapsed());
    loop {
        let next = timeout(SILENCE_MAX, stream.fill_buf()).await.map_err(|_| Failure::Late)?;
        if next.map_err(Failure::Broken)?.is_empty() {
            return Err(Failure::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
        // Its memory counts until the block is verified.
        let (reply, _memory) = read_reply(&peer.budgets, stream).await?;
        match reply {
            Reply::Waiting => {}
            Reply::Block { data, fetched } => {
                let block = verify(lookup.cid, data)?;
                peer.keep_idle(pooled);
                return Ok(Received::Block(FoundBlock { block, fetched }));
            }
            reply => {
                peer.keep_idle(pooled);
                return Ok(Received::Other(reply));
            }
        }
    }
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), lookup: &[u8]) -> io::Result<()> {
    stream.write_all(lookup).await?;
    stream.flush().await
}

/// Reads a reply, and takes the memory of its bytes.
async fn read_reply(budgets: &Budgets, stream: &mut (impl AsyncRead + Unpin)) -> Result<(Reply, Permits), Failure> {
    let read = timeout(READ_TIMEOUT, budgets.read_frame(stream)).await.map_err(|_| Failure::Late)?;
    let failure = |error: io::Error| match error.kind() {
        io::ErrorKind::OutOfMemory => Failure::NoMemory,
        _ => Failure::Broken(error),
    };
    let (frame, memory) = match read.map_err(failure)? {
        Frame::Whole(frame, memory) => (frame, memory),
        Frame::Stalled | Frame::Unsolicited => return Err(Failure::Late),
        Frame::End => return Err(Failure::Broken(io::ErrorKind::UnexpectedEof.into())),
    };
    if frame.len() > REPLY_BYTES_MAX {
        return Err(Failure::Invalid(format!("it sent a reply of {} bytes", frame.len())));
    }
    let reply = Reply::decode(frame).map_err(|error| Failure::Invalid(format!("it sent no reply: {error}")))?;
    Ok((reply, memory))
}

fn verify(cid: Cid, data: Bytes) -> Result<Block, Failure> {
    Block::verify(cid, data).map_err(|error| Failure::Invalid(format!("it sent an invalid block {cid}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::{CONNECTION_BUDGET_BYTES, MAX_MESSAGE_BYTES};
    use futures::io::Cursor;

    #[tokio::test]
    async fn a_reply_takes_memory_of_the_network_until_it_is_dropped() {
        let memory = Memory::with_short_timeouts(MAX_MESSAGE_BYTES);
        let peer = Peer::new(&memory);
        peer.budgets.traffic().record_request();
        let data = Bytes::from(vec![7; 1 << 20]);
        let encoded = Reply::Block { data: data.clone(), fetched: true }.encode().concat();
        let read = async || read_reply(&peer.budgets, &mut Cursor::new(encoded.clone())).await;
        let (reply, taken) = read().await.expect("is received");
        assert_eq!(reply, Reply::Block { data, fetched: true });
        assert!(memory.try_take(MAX_MESSAGE_BYTES - (1 << 20) + 1).is_none(), "it is taken");
        drop(taken);
        // Others have all of it.
        let all = memory.try_take(MAX_MESSAGE_BYTES).expect("it is returned");
        let refused = read().await.map(|_| ()).expect_err("there is none");
        assert!(matches!(refused, Failure::NoMemory), "{refused:?}");
        drop(all);
        read().await.expect("is received");
    }

    #[tokio::test]
    async fn a_long_reply_is_invalid() {
        let peer = Peer::new(&Memory::with_short_timeouts(CONNECTION_BUDGET_BYTES));
        peer.budgets.traffic().record_request();
        for (bytes, words) in [(REPLY_BYTES_MAX + 1, "bytes"), (16, "no reply")] {
            let mut encoded = Vec::new();
            prost::encoding::encode_varint(bytes as u64, &mut encoded);
            encoded.resize(encoded.len() + bytes, 0xff);
            let read = read_reply(&peer.budgets, &mut Cursor::new(encoded)).await;
            let error = read.map(|_| ()).expect_err("is invalid");
            assert!(matches!(&error, Failure::Invalid(reason) if reason.contains(words)), "{error:?}");
        }
    }

    #[test]
    fn the_time_for_a_reply_follows_what_was_measured_within_bounds() {
        let [min, initial, max] = REPLY_TIMEOUTS;
        assert_eq!(reply_timeout(None), initial);
        let after =
            |sample: Duration, times: usize| (0..times).fold(None, |sum, _| Some(SmoothedTime::after(sum, sample)));
        assert_eq!(reply_timeout(after(Duration::from_millis(1), 1)), min);
        assert_eq!(reply_timeout(after(Duration::from_secs(30), 3)), max);
        let usual = Duration::from_millis(1_400);
        let timeout = reply_timeout(after(usual, 50));
        assert!((2 * usual..2 * usual + Duration::from_millis(10)).contains(&timeout), "{timeout:?}");
        // A gateway that has become slower is waited for longer, and is measured again.
        assert_eq!(reply_timeout(Some(SmoothedTime::exactly(min))), (2 * min).min(max));
        assert_eq!(reply_timeout(Some(SmoothedTime::exactly(max))), max);
    }
}
