//! The server of the DAG protocol: answers the requests of peers from the local tiers.
//!
//! | module | concern |
//! |---|---|
//! | [`traversal`] | which blocks a transfer has, and in which order |
//! | [`transfers`] | which requests are accepted, and which transfer has the next turn: a state machine |
//! | [`outbox`] | the answers of a transfer that wait for a stream |
//! | [`streams`] | the tasks of streams |
//! | [`early_joins`] | streams that wait for the request of their transfer |
//! | [`inbound`] | the part of a connection's handler that accepts streams |
//! | [`metrics`] | metrics |
//!
//! The path of a request: the connection's handler passes on an inbound stream; a task reads its first message; the
//! [`transfers`] accept it, and give it turns; a turn is a task that reads blocks and decodes inner nodes; the tasks of the
//! streams write what it found. Nothing here runs in the swarm task but the state machine.
//!
//! Goals: nothing is fetched for a peer, and nothing is read that it has no budget for; a peer has the same share of the
//! node whatever protocols it uses ([`crate::fairness`]); a cancelled transfer ends at once; memory is bounded for each
//! peer and in all.
//!
//! Non-goals: paths that the policy withholds. As in Bitswap, it decides on blocks, which the source asks it for.

pub mod early_joins;
pub mod inbound;
pub mod metrics;
pub mod outbox;
pub mod streams;
pub mod transfers;
pub mod traversal;

use self::early_joins::EarlyJoins;
use self::metrics::{Metrics, ServedEnd};
use self::streams::{Asker, Events, InboundStream, Serial, StreamEvent};
use self::transfers::{Admission, Joining, Transfers, TurnJob};
use self::traversal::{Traversal, TurnResult};
use super::message::{EndStatus, Opening, Request, TransferId};
use crate::admission::reputation::Offence;
use crate::fairness::{Service, SharedLedger, Turn};
use crate::options::ServeTo;
use content::BlockSource;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{AsyncRead, AsyncWrite, FutureExt, StreamExt};
use libp2p::PeerId;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

/// How often transfers are looked at that wait for something.
const TICK: Duration = Duration::from_secs(1);
/// The maximum number of queued events of stream tasks, which wait when there are more.
const EVENTS_MAX: usize = 1_024;
/// The maximum number of events of stream tasks per poll.
const EVENTS_PER_POLL: usize = 256;
/// Stalls within this time count once: when a link fails, all its streams stall.
const STALL_PERIOD: Duration = Duration::from_secs(10);

/// A turn that has ended; without a result, it was aborted or has panicked.
type EndedTurn = (Serial, Turn, Option<(Box<Traversal>, TurnResult)>);

/// The server. `S` is the type of streams.
pub struct Server<S> {
    transfers: Transfers,
    local: Arc<dyn BlockSource>,
    serve_to: ServeTo,
    metrics: Metrics,
    sender: Events<S>,
    events: mpsc::Receiver<StreamEvent<S>>,
    turns: FuturesUnordered<BoxFuture<'static, EndedTurn>>,
    early_joins: EarlyJoins<S>,
    offences: VecDeque<(PeerId, Offence)>,
    /// When peers stalled.
    stalls: HashMap<PeerId, Instant>,
    ticker: Interval,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Server<S> {
    /// Serves blocks of `local`, which must not fetch from the network, to the peers of `serve_to`, within the shares of
    /// the ledger.
    pub fn new(local: Arc<dyn BlockSource>, serve_to: ServeTo, ledger: SharedLedger, metrics: Metrics) -> Self {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let mut ticker = tokio::time::interval(TICK);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            transfers: Transfers::new(ledger),
            local,
            serve_to,
            metrics,
            sender,
            events,
            turns: FuturesUnordered::new(),
            early_joins: EarlyJoins::default(),
            offences: VecDeque::new(),
            stalls: HashMap::new(),
            ticker,
        }
    }

    /// A connection was established.
    pub fn connected(&mut self, asker: Asker) {
        self.transfers.connected(asker);
    }

    /// A connection was closed: its transfers end.
    pub fn disconnected(&mut self, asker: Asker) {
        self.early_joins.disconnected(asker);
        for _ in 0..self.transfers.disconnected(asker) {
            self.metrics.ended(ServedEnd::Cancelled);
        }
        self.count_active();
    }

    /// A peer opened a stream.
    pub fn opened(&self, asker: Asker, stream: InboundStream<S>) {
        tokio::spawn(streams::open(asker, stream, self.sender.clone()));
    }

    /// The transfers that are being served.
    pub fn active(&self) -> usize {
        self.transfers.count()
    }

    fn on_event(&mut self, event: StreamEvent<S>, now: Instant) {
        match event {
            StreamEvent::Opened(asker, opening, stream) => match *opening {
                Opening::Request(request) => self.requested(asker, &request, stream, now),
                Opening::Join(transfer) => self.joined(asker, transfer, stream, now),
            },
            StreamEvent::Control(serial, control) => self.transfers.control(serial, control, now),
            StreamEvent::Written(serial, written) => {
                self.metrics.sent(&written);
                self.transfers.written(serial, written.wire_bytes);
            }
            StreamEvent::Ended(serial, status) => {
                if self.transfers.ended(serial) {
                    self.metrics.ended(status.into());
                }
            }
            StreamEvent::Cancelled(serial) => {
                if self.transfers.cancelled(serial) {
                    self.metrics.ended(ServedEnd::Cancelled);
                }
            }
            StreamEvent::Stalled(serial) => self.stalled(serial, now),
            StreamEvent::Fault(asker, serial, reason) => self.fault(asker, serial, &reason),
        }
        self.count_active();
    }

    fn requested(&mut self, asker: Asker, request: &Request, stream: InboundStream<S>, now: Instant) {
        if !self.serve_to.admits(&asker.peer) {
            return self.refuse(asker, request.transfer, stream, EndStatus::Refused, now);
        }
        match self.transfers.request(asker, request, now) {
            Admission::Accepted(serial, outbox) => {
                tokio::spawn(streams::serve_first(serial, asker, stream, outbox, self.sender.clone()));
                self.join_early(asker, request.transfer, now);
            }
            Admission::Busy => self.refuse(asker, request.transfer, stream, EndStatus::Busy, now),
            Admission::Flood => {
                self.refuse(asker, request.transfer, stream, EndStatus::Busy, now);
                self.offences.push_back((asker.peer, Offence::Flood));
            }
            Admission::NoBudget => self.refuse(asker, request.transfer, stream, EndStatus::Budget, now),
            Admission::Duplicate => self.fault(asker, None, "a transfer was requested twice"),
        }
    }

    fn refuse(
        &mut self,
        asker: Asker,
        transfer: TransferId,
        stream: InboundStream<S>,
        status: EndStatus,
        now: Instant,
    ) {
        self.metrics.ended(status.into());
        tokio::spawn(streams::refuse(stream, status));
        self.transfers.refused(asker, transfer);
        self.join_early(asker, transfer, now);
    }

    fn joined(&mut self, asker: Asker, transfer: TransferId, stream: InboundStream<S>, now: Instant) {
        match self.transfers.join(asker, transfer) {
            Joining::Accepted(serial, outbox) => {
                tokio::spawn(streams::serve_further(serial, stream, outbox, self.sender.clone()));
            }
            Joining::NotNeeded => _ = tokio::spawn(streams::close(stream)),
            Joining::Unknown => {
                if let Some(stream) = self.early_joins.push(asker, transfer, stream, now) {
                    tokio::spawn(streams::close(stream));
                }
            }
        }
    }

    /// Adds the streams that were opened before the request was read.
    fn join_early(&mut self, asker: Asker, transfer: TransferId, now: Instant) {
        for stream in self.early_joins.take(asker, transfer) {
            self.joined(asker, transfer, stream, now);
        }
    }

    fn stalled(&mut self, serial: Serial, now: Instant) {
        let Some(peer) = self.transfers.stalled(serial) else { return };
        self.metrics.ended(ServedEnd::Stalled);
        let last = self.stalls.insert(peer, now);
        if last.is_none_or(|last| now.saturating_duration_since(last) >= STALL_PERIOD) {
            tracing::debug!(%peer, "the peer does not read the blocks of a transfer");
            self.offences.push_back((peer, Offence::Stall));
        }
    }

    fn fault(&mut self, asker: Asker, serial: Option<Serial>, reason: &str) {
        tracing::debug!(peer = %asker.peer, reason, "the peer violated the DAG protocol");
        self.metrics.faults.inc();
        self.offences.push_back((asker.peer, Offence::Protocol));
        if serial.is_some_and(|serial| self.transfers.cancelled(serial)) {
            self.metrics.ended(ServedEnd::Cancelled);
        }
    }

    fn count_active(&self) {
        self.metrics.active.set(i64::try_from(self.transfers.count()).unwrap_or(i64::MAX));
    }

    fn start_turns(&mut self) {
        while let Some(job) = self.transfers.next_turn() {
            let TurnJob { serial, turn, mut traversal, limits } = job;
            let local = Arc::clone(&self.local);
            let task = AbortOnDropHandle::new(tokio::spawn(async move {
                let result = traversal.turn(&*local, limits).await;
                (traversal, result)
            }));
            self.transfers.set_abort(serial, task.abort_handle());
            self.turns.push(async move { (serial, turn, task.await.ok()) }.boxed());
        }
    }

    fn tick(&mut self, now: Instant) {
        self.transfers.tick(now);
        self.stalls.retain(|_, at| now.saturating_duration_since(*at) < STALL_PERIOD);
        self.early_joins.expire(now);
    }

    /// Takes events and runs turns. Returns offences of peers.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(PeerId, Offence)> {
        let now = Instant::now();
        self.take_events(cx, now);
        self.start_turns();
        while let Poll::Ready(Some((serial, turn, result))) = self.turns.poll_next_unpin(cx) {
            self.transfers.turn_ended(serial, turn, result, now);
            self.start_turns();
        }
        while self.ticker.poll_tick(cx).is_ready() {
            self.tick(now);
        }
        if self.transfers.ledger().get().is_turn_of(Service::Bitswap) {
            // Bitswap may have been polled before.
            cx.waker().wake_by_ref();
        }
        self.offences.pop_front().map_or(Poll::Pending, Poll::Ready)
    }

    fn take_events(&mut self, cx: &mut Context<'_>, now: Instant) {
        for _ in 0..EVENTS_PER_POLL {
            match self.events.poll_recv(cx) {
                Poll::Ready(Some(event)) => self.on_event(event, now),
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
        // There may be more events, for which there is no further wake-up.
        cx.waker().wake_by_ref();
    }
}
