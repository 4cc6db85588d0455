//! The asking side of Bitswap as a state machine: which peer is asked for which block, and when another one is.
//!
//! Goals: no I/O and no clock of its own, so that property tests and simulated networks can drive it; a search for
//! providers that starts together with the first question, not a second later; links that are full; few duplicates;
//! fail-over well under a second; nothing that grows with what peers send.
//!
//! Non-goals: dialling, routing, bytes. Blocks never pass through here: connection tasks hash and deliver them, and this
//! machine is told afterwards ([`Client::received_block`]).
//!
//! How it decides, per DAG root (a *session*, shared by everyone who reads that DAG):
//!
//! 1. The first want of a session starts a search for providers of the root and, at the same moment, asks connected
//!    peers: the block itself from one of them (a provider that routing named, a configured peering, or else whoever was
//!    useful last), "do you have it" from up to [`Config::probes_max`] others. While nobody has proved anything, only the
//!    first few wants are asked about, and a stranger about one of them.
//! 2. A peer that sends a block or says HAVE becomes a *member*, and remains one as long as the session is remembered. A
//!    want goes to the member that should have delivered it first: response time, plus what it owes already at its
//!    measured rate ([`link`]). If that member may owe no more for now, and with all that is in line before this want would
//!    still be faster than another, the want waits, in order. So blocks are shared out by rate, and late enough for the
//!    shares to be right.
//! 3. What a member may owe grows until its link is full, and no further.
//! 4. DONT_HAVE, a disconnect or a lie moves the want to the next member at once; if there is none, the search starts
//!    again and strangers are asked.
//! 5. A member that owes something and is *silent* (nothing for two responses and four times its usual gap between
//!    blocks; 250 ms to 5 s) gets nothing new, and all that it owes is asked of others too. A block that merely takes more
//!    than twice as long as it should is asked of a second member only within a budget of one in [`BLOCKS_PER_HEDGE`]. One
//!    that is owed by a peer that proved nothing, while another says HAVE, is late as soon as it takes longer than it should.
//! 6. A want fails when nothing came for [`Config::stall_timeout`]: as corrupt if a peer sent other bytes instead. It fails
//!    at once when nobody is there to ask ([`crate::no_peers`]).
//!
//! | module | concern |
//! |---|---|
//! | `state` | what is remembered of peers, sessions and wants |
//! | `link` | the measure of one peer |
//! | `asking` | whom to ask |
//! | `time` | what happens because time passes |
//! | [`inspection`] | what is known, for whoever asks |

mod asking;
pub mod inspection;
mod link;
mod state;
mod time;

use super::message::{Ask, WantEntry};
use super::outbox::Outbox;
use crate::metrics::Metrics;
use crate::wants::SessionId;
use content::{BlockKey, Cid, SourceError};
use libp2p::PeerId;
use state::{Peer, Search, Session, Want};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// What the machine is tuned by.
#[derive(Debug, Clone)]
pub struct Config {
    /// How long a want may see no progress before it fails.
    pub stall_timeout: Duration,
    /// Connected peers that are asked about a want of a session without members.
    pub probes_max: usize,
    /// How long an unused session remembers its members.
    pub linger: Duration,
    /// Sessions remembered at most; the longest unused go first.
    pub sessions_max: usize,
    /// How long to wait before providers are searched again, if nothing new happened meanwhile.
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

/// Providers of one session that are remembered; whoever answers a search can name as many as it likes.
const NAMED_MAX: usize = 1_024;
/// Blocks that have to come for each that may be asked twice because it is late.
const BLOCKS_PER_HEDGE: f64 = 40.0;
/// Late blocks that may be asked twice before any came, and at most at once.
const HEDGES_SAVED_MAX: f64 = 4.0;

/// What the machine wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send these wantlist changes to a connected peer.
    Send {
        /// The peer.
        peer: PeerId,
        /// The changes; one about each CID.
        entries: Vec<WantEntry>,
    },
    /// Search for providers of a session's root; report them with [`Client::provider_found`].
    Search(SessionId),
    /// The search is no longer needed.
    StopSearch(SessionId),
    /// A peer proved to hold a session's DAG.
    Joined(SessionId, PeerId),
    /// A peer owed a block and sent nothing at all until the want failed.
    Stalled(PeerId),
    /// Tell those who wait that a block will not come.
    Fail(Box<Failure>),
}

/// A want that ended without its block.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The block.
    pub key: BlockKey,
    /// The session that asked.
    pub session: SessionId,
    /// Why.
    pub error: SourceError,
}

/// What a received block was to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// It was wanted, and this is the first copy.
    Wanted,
    /// It had been wanted of this peer, but came elsewhere first or was given up.
    Duplicate,
    /// It was never asked of this peer: its bytes are not what it was asked for.
    Lie,
}

/// The state machine. Every method that depends on time is handed the clock.
pub struct Client {
    config: Config,
    metrics: Metrics,
    peers: HashMap<PeerId, Peer>,
    sessions: HashMap<SessionId, Session>,
    wants: HashMap<BlockKey, Want>,
    next_order: u64,
    /// How many late blocks may be asked twice now.
    hedges_saved: f64,
    outbox: HashMap<PeerId, Outbox>,
    actions: VecDeque<Action>,
}

impl Client {
    /// An empty machine.
    pub fn new(config: Config, metrics: Metrics) -> Self {
        Self {
            config,
            metrics,
            peers: HashMap::new(),
            sessions: HashMap::new(),
            wants: HashMap::new(),
            next_order: 0,
            hedges_saved: HEDGES_SAVED_MAX,
            outbox: HashMap::new(),
            actions: VecDeque::new(),
        }
    }

    /// The next thing to do. Questions to one peer that arose together leave together.
    pub fn poll_action(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        let peer = *self.outbox.keys().next()?;
        let entries = self.outbox.remove(&peer)?.take();
        Some(Action::Send { peer, entries })
    }

    /// Whether [`Client::tick`] has anything to watch.
    pub fn is_idle(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Whether anybody is connected.
    pub fn has_sources(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Whether a peer owes us anything, and when it last gave us something.
    pub fn usefulness(&self, peer: &PeerId) -> (bool, Option<Instant>) {
        self.peers.get(peer).map_or((false, None), |known| (known.owed().next().is_some(), known.useful))
    }

    /// How many connected peers proved to hold a session's DAG.
    pub fn members(&self, session: &SessionId) -> usize {
        self.sessions.get(session).map_or(0, |session| session.members.len())
    }

    /// A block that a session waits for, besides its root.
    pub fn wanted_below(&self, session_id: &SessionId) -> Option<BlockKey> {
        let session = self.sessions.get(session_id)?;
        let wants = session.wants.keys().filter_map(|key| Some((key, self.wants.get(key)?)));
        let below = wants.filter(|(_, want)| want.cid.hash() != session_id);
        below.min_by_key(|(_, want)| want.order).map(|(key, _)| *key)
    }

    /// Somebody in a session waits for a block.
    pub fn want(&mut self, session_id: SessionId, cid: Cid, now: Instant) {
        let Some(key) = BlockKey::of(&cid) else { return };
        self.make_room_for(&session_id);
        let order = self.next_order;
        let want = self.wants.entry(key).or_insert_with(|| Want::new(cid, order, now));
        self.next_order += u64::from(want.order == order);
        let session = self.sessions.entry(session_id).or_insert_with(|| Session::new(now));
        session.used = now;
        if session.wants.is_empty() {
            // Time spent without any want is nobody's stall.
            session.progress = now;
            if !session.discovered {
                session.started = now;
            }
        }
        session.wants.entry(key).or_insert(now);
        if !want.sessions.contains(&session_id) {
            want.sessions.push(session_id);
        }
        if !want.is_owed() {
            session.unasked.insert(want.order, key);
        }
        self.search_if_needed(session_id, now);
        self.find_debtor(key, now);
    }

    /// Nobody in a session waits for a block any more.
    pub fn cancel(&mut self, session_id: SessionId, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get_mut(&key) else { return };
        want.sessions.retain(|id| *id != session_id);
        if let Some(session) = self.sessions.get_mut(&session_id) {
            session.ended(&key, want.order, now);
        }
        if want.sessions.is_empty()
            && let Some(want) = self.wants.remove(&key)
        {
            self.retract(key, &want, None, now);
        }
    }

    /// A peer is connected. Favoured peers are asked first.
    pub fn peer_connected(&mut self, peer: PeerId, favoured: bool, now: Instant) {
        let known = self.peers.entry(peer).or_insert_with(|| Peer::new(favoured));
        known.favoured |= favoured;
        // What went wrong on an earlier connection is no reason not to ask on this one.
        for want in self.wants.values_mut() {
            want.denied.remove(&peer);
        }
        for session in self.sessions.values_mut() {
            session.strangers.remove(&peer);
        }
        let waiting: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| favoured || session.named.contains(&peer))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.offer(id, peer, now);
        }
    }

    /// A peer is gone; what it owed is asked of others.
    pub fn peer_disconnected(&mut self, peer: PeerId, now: Instant) {
        self.outbox.remove(&peer);
        let Some(mut gone) = self.peers.remove(&peer) else { return };
        for id in &gone.sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.left(&peer);
                // When it comes back, it is asked first.
                if session.named.len() < NAMED_MAX {
                    session.named.insert(peer);
                }
            }
        }
        self.deny_all(gone.settle_all(), peer, now);
        gone.sessions.into_iter().for_each(|id| self.search_if_needed(id, now));
    }

    /// An answer of a peer could not be taken in, nobody knows to what.
    pub fn answer_lost(&mut self, peer: PeerId, now: Instant) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.answer_lost();
        if known.is_to_be_asked_again(now) {
            self.ask_again(peer);
        }
    }

    /// A connection to a peer was replaced by another: whatever was asked is asked again.
    pub fn ask_again(&mut self, peer: PeerId) {
        let Some(known) = self.peers.get(&peer) else { return };
        let outbox = self.outbox.entry(peer).or_default();
        for (key, block) in known.open() {
            let Some(want) = self.wants.get(key) else { continue };
            let ask = if block { Ask::Block } else { Ask::Have };
            outbox.push(WantEntry { cid: want.cid, ask, send_dont_have: true });
        }
        if outbox.is_empty() {
            self.outbox.remove(&peer);
        }
    }

    /// Routing named a provider of a session's root.
    pub fn provider_found(&mut self, session_id: SessionId, peer: PeerId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&session_id) else { return };
        if session.named.len() >= NAMED_MAX {
            return;
        }
        session.providers.insert(peer);
        session.named.insert(peer);
        if self.peers.contains_key(&peer) {
            self.offer(session_id, peer, now);
        }
    }

    /// The search for a session's providers ended.
    pub fn search_finished(&mut self, session_id: SessionId, now: Instant) {
        if let Some(session) = self.sessions.get_mut(&session_id) {
            session.search = Search::Done(now);
        }
    }

    /// A peer sent a block with this key, already hashed and delivered.
    pub fn received_block(&mut self, peer: PeerId, key: BlockKey, bytes: usize, now: Instant) -> Use {
        let Some(known) = self.peers.get_mut(&peer) else {
            // It left meanwhile. Its block was delivered all the same.
            return if self.fulfilled(key, bytes, None, now) { Use::Wanted } else { Use::Duplicate };
        };
        let question = self.wants.get(&key).and_then(|want| want.asked.iter().find(|question| question.peer == peer));
        if let Some(question) = question {
            known.delivered(bytes, question.idle.then_some(question.at), now);
            self.metrics.transfer_seconds.observe(now.saturating_duration_since(question.at).as_secs_f64());
        }
        if !known.settle(&key, now) && !known.may_be_late(&key) {
            return self.lied(peer, now);
        }
        // It may send the block again: after a question for presence that it answered with a small block at once, say.
        known.given_up(key);
        let wanted = self.wants.contains_key(&key);
        if wanted {
            known.useful = Some(now);
            self.hedges_saved = (self.hedges_saved + 1.0 / BLOCKS_PER_HEDGE).min(HEDGES_SAVED_MAX);
            self.fulfilled(key, bytes, Some(peer), now);
        }
        self.fill(peer, now);
        if wanted { Use::Wanted } else { Use::Duplicate }
    }

    /// A block was delivered to everyone who waited for it, if anyone did.
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

    /// A peer said HAVE (`true`) or DONT_HAVE.
    pub fn received_presence(&mut self, peer: PeerId, cid: &Cid, has: bool, now: Instant) {
        let Some(key) = BlockKey::of(cid) else { return };
        let Some(known) = self.peers.get_mut(&peer) else { return };
        let Some(want) = self.wants.get_mut(&key) else {
            known.settle(&key, now);
            let sessions = known.heard_of(&key);
            if has {
                sessions.into_iter().for_each(|id| self.joined(id, peer, false, now));
                self.fill(peer, now);
            }
            return;
        };
        let Some(question) = want.asked.iter().find(|question| question.peer == peer) else { return };
        let block = question.block;
        known.link.answered(question.idle.then_some(question.at), now);
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
            known.settle(&key, now);
            want.forget(&peer);
            want.has.push(peer);
        }
        for id in sessions {
            self.joined(id, peer, false, now);
        }
        self.find_debtor(key, now);
        self.fill(peer, now);
    }

    /// Bytes of an answer that is not complete yet came from a peer, at that time.
    pub fn peer_progressed(&mut self, peer: PeerId, at: Instant) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.link.progressed(at);
        }
    }

    /// A peer broke the protocol or cannot be written to: whatever it owes is asked of others.
    pub fn peer_failed(&mut self, peer: PeerId, now: Instant) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        let keys = known.settle_all();
        known.link.end(now);
        let sessions: Vec<SessionId> = known.sessions.drain().collect();
        for id in &sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.left(&peer);
            }
        }
        self.deny_all(keys, peer, now);
        // What waited for its turn with this peer was owed by nobody.
        sessions.into_iter().for_each(|id| self.search_if_needed(id, now));
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
