//! [`Transfers`]: the transfers that are served, as a state machine: which requests are accepted, and which transfer has
//! the next turn.
//!
//! Without I/O; the caller passes the clock in, runs the turns, and owns the streams. The turns of peers are those of
//! the [ledger](crate::fairness), which Bitswap shares; the transfers of a peer take turns among themselves.
//!
//! Bounds: transfers for each connection, each peer and in all; requests in time; the memory of traversals, of which a
//! peer has a part. A transfer that waits for credit ends after [`CREDIT_TIMEOUT`], or earlier if others need its place.

use super::outbox::Outbox;
use super::streams::{Asker, Serial};
use super::traversal::{Traversal, TurnEnd, TurnLimits, TurnResult};
use crate::dag::message::{Answer, BUDGET_BYTES_MAX, BUDGET_BYTES_MIN, Control, EndStatus, Request, TransferId};
use crate::fairness::{QUANTUM, Service, SharedLedger, Turn};
use content::Cid;
use content::budget::{Budget, Share};
use libp2p::PeerId;
use libp2p::swarm::ConnectionId;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// The maximum number of transfers of one connection.
pub const TRANSFERS_PER_CONNECTION: usize = 64;
/// The maximum number of transfers of one peer.
pub const TRANSFERS_PER_PEER: usize = 128;
/// The maximum number of transfers.
pub const TRANSFERS_MAX: usize = 4_096;
/// The maximum number of streams of one transfer.
pub const STREAMS_PER_TRANSFER: usize = 32;
/// How long a transfer waits for credit.
pub const CREDIT_TIMEOUT: Duration = Duration::from_secs(20);
/// If there is no room for another transfer, one that has waited longer for credit ends.
const CREDIT_TIMEOUT_UNDER_PRESSURE: Duration = Duration::from_secs(2);
/// The look-ups of a turn of a peer that is alone.
const LOOKUPS_PER_TURN: usize = 4;
/// The maximum memory of all traversals, in bytes.
pub const MEMORY_MAX: usize = 64 * 1024 * 1024;
/// The maximum memory of the traversals of one peer, in bytes.
pub const MEMORY_PER_PEER: usize = 16 * 1024 * 1024;
/// The number of requests that a peer may send at once.
const REQUESTS_BURST: u32 = 256;
/// A peer may send one more request in this time.
const REQUEST_REFILL: Duration = Duration::from_millis(4);
/// So many rejected requests without an accepted one are an offence.
const REJECTED_MAX: u32 = 256;
/// The number of ended transfers of a connection that are remembered, for streams that join too late.
const ENDED_MAX: usize = 64;
/// Children of the traversal that cost as much as a look-up.
const STEPS_PER_READ: usize = 64;

/// The outcome of a request.
#[derive(Debug)]
pub enum Admission {
    /// It is served.
    Accepted(Serial, Arc<Outbox>),
    /// A limit is exceeded.
    Busy,
    /// A limit is exceeded, again and again.
    Flood,
    /// There is such a transfer already.
    Duplicate,
    /// The budget does not suffice for any block.
    NoBudget,
}

/// The outcome of a join.
#[derive(Debug)]
pub enum Joining {
    /// The stream is used.
    Accepted(Serial, Arc<Outbox>),
    /// The transfer has ended, or has enough streams.
    NotNeeded,
    /// There is no such transfer so far.
    Unknown,
}

/// A turn of a transfer, to be run by the caller.
#[derive(Debug)]
pub struct TurnJob {
    /// The transfer.
    pub serial: Serial,
    /// The turn in the ledger.
    pub turn: Turn,
    /// The traversal, which [`Transfers::turn_ended`] takes back.
    pub traversal: Box<Traversal>,
    /// The limits of the turn.
    pub limits: TurnLimits,
}

/// The state of a connected peer.
#[derive(Debug)]
struct PeerState {
    connections: usize,
    transfers: usize,
    /// Transfers that can go on, in the order of their turns.
    ready: VecDeque<Serial>,
    requests: RequestRate,
    memory: Arc<Budget>,
}

#[derive(Debug)]
struct Transfer {
    asker: Asker,
    id: TransferId,
    outbox: Arc<Outbox>,
    state: State,
    /// What may still be sent.
    budget_bytes: u64,
    /// The budget without which the next block cannot be sent.
    needed_bytes: u64,
    /// Bytes in the outbox, or taken by a stream and not written.
    in_flight_bytes: usize,
    streams: usize,
    /// Since when it waits for credit.
    waiting_since: Option<Instant>,
    memory: Share,
}

#[derive(Debug)]
enum State {
    /// It waits for its turn, or for credit.
    Waiting(Box<Traversal>),
    /// A turn is running. These subtrees are to be skipped after it.
    Running { abort: Option<AbortHandle>, skips: Vec<Cid> },
    /// Its end is in the outbox.
    Ending,
}

/// The transfers.
#[derive(Debug)]
pub struct Transfers {
    ledger: SharedLedger,
    transfers: HashMap<Serial, Transfer>,
    by_id: HashMap<(ConnectionId, TransferId), Serial>,
    /// Transfers of each connection that has any, and its latest ended ones.
    connections: HashMap<ConnectionId, ConnectionState>,
    peers: HashMap<PeerId, PeerState>,
    memory: Arc<Budget>,
    serial_next: u64,
}

#[derive(Debug, Default)]
struct ConnectionState {
    transfers: usize,
    ended: VecDeque<TransferId>,
}

impl ConnectionState {
    fn note_ended(&mut self, id: TransferId) {
        self.ended.push_back(id);
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }
}

/// Limits requests in time (generic cell rate algorithm).
#[derive(Debug, Default)]
struct RequestRate {
    /// When all tokens are there again.
    full_at: Option<Instant>,
    rejected: u32,
}

impl RequestRate {
    fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + REQUEST_REFILL;
        let accepted = full_at.saturating_duration_since(now) <= REQUEST_REFILL * REQUESTS_BURST;
        if accepted {
            self.full_at = Some(full_at);
            self.rejected = 0;
        }
        accepted
    }

    /// Counts a rejected request; `true` if it is one too many.
    fn is_flood(&mut self) -> bool {
        self.rejected += 1;
        let is_flood = self.rejected >= REJECTED_MAX;
        if is_flood {
            self.rejected = 0;
        }
        is_flood
    }
}

impl Transfers {
    /// No transfers. The ledger is shared with Bitswap.
    pub fn new(ledger: SharedLedger) -> Self {
        Self {
            ledger,
            transfers: HashMap::new(),
            by_id: HashMap::new(),
            connections: HashMap::new(),
            peers: HashMap::new(),
            memory: Arc::new(Budget::new(MEMORY_MAX)),
            serial_next: 0,
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &SharedLedger {
        &self.ledger
    }

    /// The number of transfers.
    pub fn count(&self) -> usize {
        self.transfers.len()
    }

    /// A connection was established.
    pub fn connected(&mut self, asker: Asker) {
        let memory = &self.memory;
        let peer = self.peers.entry(asker.peer).or_insert_with(|| PeerState {
            connections: 0,
            transfers: 0,
            ready: VecDeque::new(),
            requests: RequestRate::default(),
            memory: Arc::new(Budget::within(Arc::clone(memory), MEMORY_PER_PEER)),
        });
        peer.connections += 1;
        self.connections.entry(asker.connection).or_default();
    }

    /// A connection was closed. Returns the number of its transfers.
    pub fn disconnected(&mut self, asker: Asker) -> usize {
        let lost: Vec<Serial> = self
            .transfers
            .iter()
            .filter(|(_, transfer)| transfer.asker.connection == asker.connection)
            .map(|(serial, _)| *serial)
            .collect();
        lost.iter().for_each(|serial| _ = self.cancelled(*serial));
        self.connections.remove(&asker.connection);
        if let Some(peer) = self.peers.get_mut(&asker.peer) {
            peer.connections -= 1;
            if peer.connections == 0 {
                self.peers.remove(&asker.peer);
            }
        }
        lost.len()
    }

    /// A request was received. With [`Admission::Accepted`], the caller serves the stream from the outbox.
    pub fn request(&mut self, asker: Asker, request: &Request, now: Instant) -> Admission {
        if self.by_id.contains_key(&(asker.connection, request.transfer)) {
            return Admission::Duplicate;
        }
        let Some(peer) = self.peers.get_mut(&asker.peer) else { return Admission::Busy };
        // The connection may have been closed since the request was read.
        let Some(connection) = self.connections.get(&asker.connection) else { return Admission::Busy };
        let has_room = connection.transfers < TRANSFERS_PER_CONNECTION && peer.transfers < TRANSFERS_PER_PEER;
        if !peer.requests.take(now) || !has_room {
            return if peer.requests.is_flood() { Admission::Flood } else { Admission::Busy };
        }
        if request.budget_bytes < BUDGET_BYTES_MIN {
            return Admission::NoBudget;
        }
        if self.transfers.len() >= TRANSFERS_MAX && !self.make_room(now) {
            return Admission::Busy;
        }
        self.accept(asker, request)
    }

    fn accept(&mut self, asker: Asker, request: &Request) -> Admission {
        let Some(peer) = self.peers.get_mut(&asker.peer) else { return Admission::Busy };
        let Some(connection) = self.connections.get_mut(&asker.connection) else { return Admission::Busy };
        peer.transfers += 1;
        let serial = Serial(self.serial_next);
        self.serial_next += 1;
        connection.transfers += 1;
        connection.ended.retain(|ended| *ended != request.transfer);
        let outbox = Arc::new(Outbox::new(request.fragments));
        let transfer = Transfer {
            asker,
            id: request.transfer,
            outbox: Arc::clone(&outbox),
            state: State::Waiting(Box::new(Traversal::new(request))),
            budget_bytes: request.budget_bytes.min(BUDGET_BYTES_MAX),
            needed_bytes: 0,
            in_flight_bytes: 0,
            streams: 1,
            waiting_since: None,
            memory: Share::of(Some(Arc::clone(&peer.memory))),
        };
        self.transfers.insert(serial, transfer);
        self.by_id.insert((asker.connection, request.transfer), serial);
        self.schedule(serial, None);
        Admission::Accepted(serial, outbox)
    }

    /// Drops the transfer that has waited longest for credit; `false` if none has waited long.
    fn make_room(&mut self, now: Instant) -> bool {
        let waiting = self.transfers.iter().filter_map(|(serial, transfer)| Some((transfer.waiting_since?, *serial)));
        let Some((since, serial)) = waiting.min() else { return false };
        now.saturating_duration_since(since) >= CREDIT_TIMEOUT_UNDER_PRESSURE && self.cancelled(serial)
    }

    /// A request was refused: streams that join its transfer are not needed.
    pub fn refused(&mut self, asker: Asker, id: TransferId) {
        if let Some(connection) = self.connections.get_mut(&asker.connection) {
            connection.note_ended(id);
        }
    }

    /// A further stream of a transfer was opened.
    pub fn join(&mut self, asker: Asker, id: TransferId) -> Joining {
        let Some(serial) = self.by_id.get(&(asker.connection, id)) else {
            let connection = self.connections.get(&asker.connection);
            let may_begin = connection.is_some_and(|connection| !connection.ended.contains(&id));
            return if may_begin { Joining::Unknown } else { Joining::NotNeeded };
        };
        let Some(transfer) = self.transfers.get_mut(serial) else { return Joining::NotNeeded };
        if transfer.streams >= STREAMS_PER_TRANSFER {
            return Joining::NotNeeded;
        }
        transfer.streams += 1;
        Joining::Accepted(*serial, Arc::clone(&transfer.outbox))
    }

    /// A control message was received.
    pub fn control(&mut self, serial: Serial, control: Control, now: Instant) {
        let Some(transfer) = self.transfers.get_mut(&serial) else { return };
        match control {
            Control::Credit(bytes) => {
                transfer.budget_bytes = transfer.budget_bytes.saturating_add(bytes).min(BUDGET_BYTES_MAX);
            }
            Control::Skip(cid) => match &mut transfer.state {
                State::Waiting(traversal) => traversal.skip(&cid),
                State::Running { skips, .. } if skips.len() < super::traversal::HELD_MAX => skips.push(cid),
                State::Running { .. } | State::Ending => {}
            },
        }
        self.schedule(serial, Some(now));
    }

    /// The next turn, if there is one.
    pub fn next_turn(&mut self) -> Option<TurnJob> {
        loop {
            let turn = self.ledger.get().next_turn(Service::Dag, LOOKUPS_PER_TURN)?;
            let serial = self.peers.get_mut(&turn.peer).and_then(|peer| peer.ready.pop_front());
            let job = serial.and_then(|serial| self.begin_turn(serial, turn));
            if job.is_none() {
                self.ledger.get().looked_up(turn.peer, turn.lookups, 0, 0);
            }
            self.tell_ledger(turn.peer);
            if job.is_some() {
                return job;
            }
        }
    }

    fn begin_turn(&mut self, serial: Serial, turn: Turn) -> Option<TurnJob> {
        let transfer = self.transfers.get_mut(&serial)?;
        let running = State::Running { abort: None, skips: Vec::new() };
        match std::mem::replace(&mut transfer.state, running) {
            State::Waiting(traversal) => {
                let limits = TurnLimits { wire_bytes: QUANTUM * turn.lookups, budget_bytes: transfer.budget_bytes };
                Some(TurnJob { serial, turn, traversal, limits })
            }
            other => {
                transfer.state = other;
                None
            }
        }
    }

    /// Sets the handle by which a running turn is aborted.
    pub fn set_abort(&mut self, serial: Serial, handle: AbortHandle) {
        if let Some(Transfer { state: State::Running { abort, .. }, .. }) = self.transfers.get_mut(&serial) {
            *abort = Some(handle);
        }
    }

    /// A turn has ended; without a result, it was aborted or has panicked. Its answers are put into the outbox.
    pub fn turn_ended(
        &mut self,
        serial: Serial,
        turn: Turn,
        result: Option<(Box<Traversal>, TurnResult)>,
        now: Instant,
    ) {
        let Some((mut traversal, result)) = result else {
            // What it has read is not known: it is charged what the turn may send.
            self.ledger.get().looked_up(turn.peer, turn.lookups, turn.lookups, QUANTUM * turn.lookups);
            return self.end(serial, EndStatus::Failed);
        };
        let bytes: usize = result.answers.iter().map(Answer::wire_bytes).sum();
        let reads = result.reads + result.steps / STEPS_PER_READ;
        let transfer = self.transfers.get_mut(&serial);
        {
            let mut ledger = self.ledger.get();
            if transfer.is_some() {
                ledger.queued(turn.peer, Service::Dag, bytes);
            }
            ledger.looked_up(turn.peer, turn.lookups, reads, bytes + result.unsent_bytes);
        }
        // It may have been cancelled.
        let Some(transfer) = transfer else { return };
        transfer.in_flight_bytes += bytes;
        let spent: u64 = result.answers.iter().map(Answer::budget_bytes).sum();
        transfer.budget_bytes = transfer.budget_bytes.saturating_sub(spent);
        transfer.outbox.push(result.answers);
        if let State::Running { skips, .. } = &transfer.state {
            skips.iter().for_each(|cid| traversal.skip(cid));
        }
        let has_memory = transfer.memory.resize(traversal.memory_bytes());
        match result.end {
            TurnEnd::Ended(status) => return self.end(serial, status),
            _ if !has_memory => return self.end(serial, EndStatus::Failed),
            TurnEnd::Budget(needed) => transfer.needed_bytes = needed,
            TurnEnd::More => transfer.needed_bytes = 0,
        }
        transfer.state = State::Waiting(traversal);
        self.schedule(serial, Some(now));
    }

    /// Bytes of a transfer were written.
    pub fn written(&mut self, serial: Serial, bytes: usize) {
        let Some(transfer) = self.transfers.get_mut(&serial) else { return };
        let bytes = bytes.min(transfer.in_flight_bytes);
        transfer.in_flight_bytes -= bytes;
        self.ledger.get().sent(transfer.asker.peer, Service::Dag, bytes);
    }

    /// The end of a transfer was written. Returns whether there was one.
    pub fn ended(&mut self, serial: Serial) -> bool {
        self.remove(serial).is_some()
    }

    /// A transfer was cancelled: its answers are dropped. Returns whether there was one.
    pub fn cancelled(&mut self, serial: Serial) -> bool {
        let Some(transfer) = self.remove(serial) else { return false };
        transfer.outbox.cancel();
        true
    }

    /// The asker of a transfer does not read: the transfer is dropped, and its peer's allowance is reset.
    pub fn stalled(&mut self, serial: Serial) -> Option<PeerId> {
        let transfer = self.remove(serial)?;
        transfer.outbox.cancel();
        self.ledger.get().dropped(transfer.asker.peer, Service::Dag, 0);
        Some(transfer.asker.peer)
    }

    /// Ends transfers that have waited too long for credit.
    pub fn tick(&mut self, now: Instant) {
        let is_late = |since: Instant| now.saturating_duration_since(since) >= CREDIT_TIMEOUT;
        let waiting = self.transfers.iter().filter(|(_, transfer)| transfer.waiting_since.is_some_and(is_late));
        let late: Vec<Serial> = waiting.map(|(serial, _)| *serial).collect();
        late.into_iter().for_each(|serial| self.end(serial, EndStatus::Budget));
    }

    /// The status with which a transfer ends follows its answers.
    fn end(&mut self, serial: Serial, status: EndStatus) {
        let Some(transfer) = self.transfers.get_mut(&serial) else { return };
        transfer.outbox.end(status);
        transfer.state = State::Ending;
        transfer.waiting_since = None;
        transfer.memory.resize(0);
        self.unschedule(serial);
    }

    fn remove(&mut self, serial: Serial) -> Option<Transfer> {
        self.unschedule(serial);
        let transfer = self.transfers.remove(&serial)?;
        let Asker { peer, connection } = transfer.asker;
        self.by_id.remove(&(connection, transfer.id));
        if let State::Running { abort: Some(abort), .. } = &transfer.state {
            abort.abort();
        }
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.transfers -= 1;
            connection.note_ended(transfer.id);
        }
        if let Some(state) = self.peers.get_mut(&peer) {
            state.transfers -= 1;
        }
        self.ledger.get().withdrawn(peer, Service::Dag, transfer.in_flight_bytes);
        Some(transfer)
    }

    /// Puts a transfer among those that can go on, or notes since when it waits for credit.
    fn schedule(&mut self, serial: Serial, now: Option<Instant>) {
        let Some(transfer) = self.transfers.get_mut(&serial) else { return };
        if !matches!(transfer.state, State::Waiting(_)) {
            return;
        }
        if transfer.budget_bytes < transfer.needed_bytes {
            transfer.waiting_since = transfer.waiting_since.or(now);
            return;
        }
        transfer.waiting_since = None;
        let peer_id = transfer.asker.peer;
        if let Some(peer) = self.peers.get_mut(&peer_id)
            && !peer.ready.contains(&serial)
        {
            peer.ready.push_back(serial);
            self.tell_ledger(peer_id);
        }
    }

    fn unschedule(&mut self, serial: Serial) {
        let Some(peer_id) = self.transfers.get(&serial).map(|transfer| transfer.asker.peer) else { return };
        if let Some(peer) = self.peers.get_mut(&peer_id) {
            peer.ready.retain(|other| *other != serial);
        }
        self.tell_ledger(peer_id);
    }

    fn tell_ledger(&self, peer: PeerId) {
        let waiting = self.peers.get(&peer).is_some_and(|peer| !peer.ready.is_empty());
        self.ledger.get().set_waiting(peer, Service::Dag, waiting);
    }
}

#[cfg(test)]
#[path = "transfers_tests.rs"]
mod tests;
