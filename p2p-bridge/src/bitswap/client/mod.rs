//! The Bitswap client as a state machine: which peers are asked for which blocks, and when another peer is asked.
//!
//! Goals: no I/O and no clock of its own, so that property tests and simulated networks can drive it; the search for
//! providers starts with the first request, not a second later; full links; few duplicates; fail-over well under a
//! second; bounded memory whatever peers send.
//!
//! Non-goals: dialling, routing and block data. Connection tasks verify and deliver blocks, and notify this machine
//! afterwards ([`Client::received_block`]).
//!
//! The rules, per DAG root (a *session*, shared by all readers of that DAG):
//!
//! 1. The first want of a session starts a search for providers of the root and, at the same time, asks connected
//!    peers: a want-block to one of them (a provider that routing found, a configured peering, or the most recently
//!    useful peer), and want-have to up to [`Config::probes_max`] others. While no peer is known to have blocks of the
//!    DAG, only the first few wants are requested, and an unrelated peer is asked for one of them.
//! 2. A peer that sends a block or HAVE becomes a *member* for the lifetime of the session. A want is requested from
//!    the member with the shortest expected delivery time: its response time, plus its outstanding bytes at its
//!    measured rate ([`link`]). If that member's window is full, and it would still deliver sooner than another after
//!    all queued wants, the want waits in the queue. So blocks are distributed by rate, at a time when the rates are
//!    known.
//! 3. A member's window grows until its link is full.
//! 4. DONT_HAVE, a disconnect or an invalid block moves the want to the next member immediately; if there is none, the
//!    search starts again and other connected peers are asked.
//! 5. A member with outstanding blocks that is *stalled* (nothing received for two response times and four times its
//!    usual gap between blocks; 250 ms to 5 s) gets no new requests, and its outstanding blocks are also requested from
//!    others. A block that only takes more than twice as long as expected is hedged within a budget of one in
//!    [`BLOCKS_PER_HEDGE`]. A block that was requested from a non-member, while another peer says HAVE, is late once it
//!    takes longer than expected.
//! 6. A want fails if nothing was received for [`Config::stall_timeout`]: as corrupt if a peer sent an invalid block.
//!    It fails immediately if there are no peers to ask ([`crate::no_peers`]). Wants that fail at the same time do so
//!    in steps ([`failing`]).
//!
//! | module | concern |
//! |---|---|
//! | `state` | state of peers, sessions and wants |
//! | `link` | measurements of one peer |
//! | `asking` | selection of peers |
//! | `time` | timers: hedging, searches, expiry |
//! | `failing` | wants that fail, a few at a time |
//! | `transfers` | wants that transfers of the DAG protocol bring |
//! | [`inspection`] | snapshots for the API |

mod asking;
mod failing;
pub mod inspection;
mod link;
mod state;
mod time;
mod transfers;

use super::message::{Ask, WantEntry};
use super::outbox::Outbox;
use crate::dag::client::active::ActiveTransfer;
use crate::dag::client::planner::Planner;
use crate::metrics::Metrics;
use crate::wants::SessionId;
use content::{BlockKey, Cid, ReadAhead, SourceError};
pub use failing::STEP;
use libp2p::PeerId;
use state::{Peer, Search, Session, Want};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use time::TICK;

/// Parameters of the client.
#[derive(Debug, Clone)]
pub struct Config {
    /// The maximum time without progress before a want fails.
    pub stall_timeout: Duration,
    /// The number of connected peers that are asked for a want of a session without members.
    pub probes_max: usize,
    /// How long an unused session is kept.
    pub linger: Duration,
    /// The maximum number of sessions; the least recently used are evicted.
    pub sessions_max: usize,
    /// The minimum time between searches for providers, unless there are new wants.
    pub search_again: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            stall_timeout: Duration::from_secs(30),
            probes_max: 16,
            linger: Duration::from_secs(60),
            sessions_max: 1_024,
            search_again: Duration::from_secs(10),
        }
    }
}

/// The maximum number of providers of a session; a search result can name any number.
const PROVIDERS_MAX: usize = 1_024;
/// The number of received blocks that allow one hedged request for a late block.
const BLOCKS_PER_HEDGE: f64 = 40.0;
/// The initial and maximum budget of hedged requests for late blocks.
const HEDGE_BUDGET_MAX: f64 = 4.0;

/// An action for the caller.
pub enum Action {
    /// Send wantlist changes to a connected peer.
    Send {
        /// The peer.
        peer: PeerId,
        /// The changes, one per CID.
        entries: Vec<WantEntry>,
    },
    /// Start a transfer from a connected peer.
    Transfer(Arc<ActiveTransfer>),
    /// Search for providers of a session's root, and report them with [`Client::provider_found`].
    Search(SessionId),
    /// The search is no longer needed.
    StopSearch(SessionId),
    /// A peer has blocks of a session's DAG.
    Joined(SessionId, PeerId),
    /// A peer with an outstanding block sent nothing until the want was due to fail.
    Stalled(PeerId),
    /// Fail the waiters of a block.
    Fail(Box<Failure>),
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { peer, entries } => write!(f, "Send({peer}, {entries:?})"),
            Self::Transfer(active) => write!(f, "Transfer({:?})", active.id),
            Self::Search(session) => write!(f, "Search({session:?})"),
            Self::StopSearch(session) => write!(f, "StopSearch({session:?})"),
            Self::Joined(session, peer) => write!(f, "Joined({session:?}, {peer})"),
            Self::Stalled(peer) => write!(f, "Stalled({peer})"),
            Self::Fail(failure) => write!(f, "Fail({failure:?})"),
        }
    }
}

/// A failed want.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The block.
    pub key: BlockKey,
    /// The session that asked.
    pub session: SessionId,
    /// Why.
    pub error: SourceError,
}

/// How a received block was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockUse {
    /// It was wanted, and this is the first copy.
    Wanted,
    /// A duplicate: another peer's copy was received first, or the want was cancelled.
    Duplicate,
    /// It was not requested from this peer: the bytes do not match the requested CID.
    Invalid,
}

/// The state machine. Methods that depend on time take the current time.
pub struct Client {
    config: Config,
    metrics: Metrics,
    peers: HashMap<PeerId, Peer>,
    sessions: HashMap<SessionId, Session>,
    wants: HashMap<BlockKey, Want>,
    next_order: u64,
    /// The budget of hedged requests for late blocks.
    hedge_budget: f64,
    outbox: HashMap<PeerId, Outbox>,
    actions: VecDeque<Action>,
    /// The wants that are to fail.
    failing: failing::Failing,
    /// Whether all wants are to fail, because there are no peers to ask.
    is_without_peers: bool,
    /// The transfers of the DAG protocol.
    planner: Planner,
}

impl Client {
    /// A client without peers and wants.
    pub fn new(config: Config, metrics: Metrics) -> Self {
        Self {
            config,
            metrics,
            peers: HashMap::new(),
            sessions: HashMap::new(),
            wants: HashMap::new(),
            next_order: 0,
            hedge_budget: HEDGE_BUDGET_MAX,
            outbox: HashMap::new(),
            actions: VecDeque::new(),
            failing: failing::Failing::default(),
            is_without_peers: false,
            planner: Planner::default(),
        }
    }

    /// The next action. Pending wantlist changes for one peer are sent together.
    pub fn poll_action(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        let peer = *self.outbox.keys().next()?;
        let entries = self.outbox.remove(&peer)?.take();
        Some(Action::Send { peer, entries })
    }

    /// Whether [`Client::tick`] has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.sessions.is_empty() && !self.planner.has_any()
    }

    /// Whether any peer is connected.
    pub fn has_sources(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Whether a peer has outstanding blocks, and when it last sent a wanted block.
    pub fn usefulness(&self, peer: &PeerId) -> (bool, Option<Instant>) {
        self.peers
            .get(peer)
            .map_or((false, None), |peer_state| (peer_state.outstanding().next().is_some(), peer_state.useful))
    }

    /// The number of connected members of a session.
    pub fn members(&self, session: &SessionId) -> usize {
        self.sessions.get(session).map_or(0, |session| session.members.len())
    }

    /// The sessions that wait for a block.
    pub fn sessions_of(&self, key: &BlockKey) -> &[SessionId] {
        self.wants.get(key).map_or(&[], |want| &want.sessions)
    }

    /// A block other than the root that a session waits for.
    pub fn wanted_below(&self, session_id: &SessionId) -> Option<BlockKey> {
        let session = self.sessions.get(session_id)?;
        let wants = session.wants.keys().filter_map(|key| Some((key, self.wants.get(key)?)));
        let below = wants.filter(|(_, want)| want.cid.hash() != session_id);
        below.min_by_key(|(_, want)| want.order).map(|(key, _)| *key)
    }

    /// A session waits for a block.
    pub fn want(&mut self, session_id: SessionId, cid: Cid, now: Instant) {
        self.want_ahead(session_id, cid, None, now);
    }

    /// The same, with what its reader will request after it.
    pub fn want_ahead(&mut self, session_id: SessionId, cid: Cid, ahead: Option<Arc<ReadAhead>>, now: Instant) {
        let Some(key) = BlockKey::of(&cid) else { return };
        self.evict_for(&session_id);
        let order = self.next_order;
        let want = self.wants.entry(key).or_insert_with(|| Want::new(cid, order, now));
        self.next_order += u64::from(want.order == order);
        want.ahead = ahead.map(|ahead| (session_id, ahead)).or_else(|| want.ahead.take());
        let session = self.sessions.entry(session_id).or_insert_with(|| Session::new(now));
        session.used = now;
        if session.wants.is_empty() {
            // Time without wants is no stall.
            session.progress = now;
            if !session.discovered {
                session.started = now;
            }
        }
        session.wants.entry(key).or_insert(now);
        if !want.sessions.contains(&session_id) {
            want.sessions.push(session_id);
        }
        if !want.is_requested() {
            session.queued.insert(want.order, key);
        }
        self.search_if_needed(session_id, now);
        self.assign(key, now);
    }

    /// A session no longer waits for a block.
    pub fn cancel(&mut self, session_id: SessionId, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get_mut(&key) else { return };
        want.remove_session(&session_id);
        if let Some(session) = self.sessions.get_mut(&session_id) {
            session.ended(&key, want.order, now);
        }
        if want.sessions.is_empty()
            && let Some(want) = self.wants.remove(&key)
        {
            self.retract(key, &want, None, now);
        }
    }

    /// A peer connected. Favoured peers are asked first.
    pub fn peer_connected(&mut self, peer: PeerId, favoured: bool, now: Instant) {
        let peer_state = self.peers.entry(peer).or_insert_with(|| Peer::new(favoured));
        peer_state.favoured |= favoured;
        self.is_without_peers = false;
        // Failures on an earlier connection do not count.
        for want in self.wants.values_mut() {
            want.denied.remove(&peer);
        }
        for session in self.sessions.values_mut() {
            session.probed_peers.remove(&peer);
        }
        let waiting: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| favoured || session.known_providers.contains(&peer))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.offer(id, peer, now);
        }
    }

    /// A peer disconnected; its outstanding blocks are requested from others.
    pub fn peer_disconnected(&mut self, peer: PeerId, now: Instant) {
        self.outbox.remove(&peer);
        self.planner.disconnected(&peer);
        let Some(mut gone) = self.peers.remove(&peer) else { return };
        for id in &gone.sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.left(&peer);
                // If it reconnects, it is asked first.
                if session.known_providers.len() < PROVIDERS_MAX {
                    session.known_providers.insert(peer);
                }
            }
        }
        self.deny_all(gone.settle_all(), peer, now);
        gone.sessions.into_iter().for_each(|id| self.search_if_needed(id, now));
    }

    /// A response of a peer was lost; it is not known to which requests.
    pub fn answer_lost(&mut self, peer: PeerId, now: Instant) {
        let Some(peer_state) = self.peers.get_mut(&peer) else { return };
        peer_state.answer_lost();
        if peer_state.must_resend_requests(now) {
            self.resend_requests(peer);
        }
    }

    /// A connection to a peer was replaced: all requests are sent again.
    pub fn resend_requests(&mut self, peer: PeerId) {
        let Some(peer_state) = self.peers.get(&peer) else { return };
        let outbox = self.outbox.entry(peer).or_default();
        for (key, block) in peer_state.open() {
            let Some(want) = self.wants.get(key) else { continue };
            // A transfer reports itself what it does not bring.
            if want.is_transferred_from(&peer) {
                continue;
            }
            let ask = if block { Ask::Block } else { Ask::Have };
            outbox.push(WantEntry { cid: want.cid, ask, send_dont_have: true });
        }
        if outbox.is_empty() {
            self.outbox.remove(&peer);
        }
    }

    /// Routing found a provider of a session's root.
    pub fn provider_found(&mut self, session_id: SessionId, peer: PeerId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&session_id) else { return };
        if session.known_providers.len() >= PROVIDERS_MAX {
            return;
        }
        session.providers.insert(peer);
        session.known_providers.insert(peer);
        if self.peers.contains_key(&peer) {
            self.offer(session_id, peer, now);
        }
    }

    /// The search for a session's providers has finished.
    pub fn search_finished(&mut self, session_id: SessionId, now: Instant) {
        if let Some(session) = self.sessions.get_mut(&session_id) {
            session.search = Search::Done(now);
        }
    }

    /// A peer sent a block with this key, already verified and delivered.
    pub fn received_block(&mut self, peer: PeerId, key: BlockKey, bytes: usize, now: Instant) -> BlockUse {
        let Some(peer_state) = self.peers.get_mut(&peer) else {
            // The peer has disconnected, but its block was delivered.
            return if self.fulfilled(key, bytes, None, now) { BlockUse::Wanted } else { BlockUse::Duplicate };
        };
        let request = self.wants.get(&key).and_then(|want| want.asked.iter().find(|request| request.peer == peer));
        if let Some(request) = request {
            peer_state.delivered(bytes, request.idle.then_some(request.at), now);
            self.metrics.transfer_seconds.observe(now.saturating_duration_since(request.at).as_secs_f64());
        }
        if !peer_state.settle(&key, now) && !peer_state.may_be_late(&key) {
            return self.sent_invalid_block(peer, now);
        }
        // It may send the block again, for example after a want-have that it answered with a small block.
        peer_state.expect_late(key);
        let wanted = self.wants.contains_key(&key);
        if wanted {
            peer_state.useful = Some(now);
            self.hedge_budget = (self.hedge_budget + 1.0 / BLOCKS_PER_HEDGE).min(HEDGE_BUDGET_MAX);
            self.fulfilled(key, bytes, Some(peer), now);
        }
        self.fill(peer, now);
        if wanted { BlockUse::Wanted } else { BlockUse::Duplicate }
    }

    /// A block was delivered to its waiters, if there were any.
    fn fulfilled(&mut self, key: BlockKey, bytes: usize, sender: Option<PeerId>, now: Instant) -> bool {
        let Some(want) = self.wants.remove(&key) else { return false };
        for id in &want.sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.ended(&key, want.order, now);
                session.received(bytes, now);
            }
            if let Some(sender) = sender {
                self.joined(*id, sender, true, now);
            }
        }
        self.retract(key, &want, sender, now);
        true
    }

    /// A peer sent HAVE (`true`) or DONT_HAVE.
    pub fn received_presence(&mut self, peer: PeerId, cid: &Cid, has: bool, now: Instant) {
        let Some(key) = BlockKey::of(cid) else { return };
        let Some(peer_state) = self.peers.get_mut(&peer) else { return };
        let Some(want) = self.wants.get_mut(&key) else {
            peer_state.settle(&key, now);
            let sessions = peer_state.cancelled_probe_answered(&key);
            if has {
                sessions.into_iter().for_each(|id| self.joined(id, peer, false, now));
                self.fill(peer, now);
            }
            return;
        };
        let Some(request) = want.asked.iter().find(|request| request.peer == peer) else { return };
        let block = request.block;
        peer_state.link.answered(request.idle.then_some(request.at), now);
        let sessions = want.sessions.clone();
        for id in &sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.answered.insert(peer);
            }
        }
        if !has {
            self.deny(key, peer, now);
            return self.fill(peer, now);
        }
        if !block {
            peer_state.settle(&key, now);
            // It is no request for the block, so that no transfer brings it.
            let _ = want.discard_answers(&peer);
            want.has.push(peer);
        }
        for id in sessions {
            self.joined(id, peer, false, now);
        }
        self.assign(key, now);
        self.fill(peer, now);
    }

    /// Bytes of an incomplete message were received from a peer at a time.
    pub fn peer_progressed(&mut self, peer: PeerId, at: Instant) {
        if let Some(peer_state) = self.peers.get_mut(&peer) {
            peer_state.link.progressed(at);
        }
    }

    /// A peer violated the protocol or cannot be written to: its outstanding blocks are requested from others.
    pub fn peer_failed(&mut self, peer: PeerId, now: Instant) {
        self.planner.cancel_from(&peer);
        let Some(peer_state) = self.peers.get_mut(&peer) else { return };
        let keys = peer_state.settle_all();
        peer_state.link.end(now);
        let sessions: Vec<SessionId> = peer_state.sessions.drain().collect();
        for id in &sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.left(&peer);
            }
        }
        self.deny_all(keys, peer, now);
        // Wants that were queued for this peer were not requested from any.
        sessions.into_iter().for_each(|id| self.search_if_needed(id, now));
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
