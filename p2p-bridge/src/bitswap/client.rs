//! The asking side of Bitswap as a state machine: which peer is asked for which block, and when another one is.
//!
//! Goals: no I/O and no clock of its own, so that property tests and simulated networks can drive it; a search for
//! providers that starts together with the first question, not a second later; few duplicates; fail-over well under a
//! second; nothing that grows with what peers send.
//!
//! Non-goals: dialling, routing, bytes. Blocks never pass through here: connection tasks hash and deliver them, and this
//! machine is told afterwards ([`Client::received_block`]).
//!
//! How it decides, per DAG root (a *session*, shared by everyone who reads that DAG):
//!
//! 1. The first want of a session starts a search for providers of the root and, at the same moment, asks connected
//!    peers: the block itself from one favoured peer (a configured peering), "do you have it" from up to
//!    [`Config::probes_max`] others. Later wants never go to peers that proved nothing.
//! 2. A peer that sends a block or says HAVE becomes a *member*. Every further want goes to the member with the least
//!    outstanding work for its measured rate. A provider that routing named is asked for the block at once.
//! 3. DONT_HAVE, a disconnect or a lie moves the want to the next peer. Silence longer than a few round trips asks a
//!    second member as well (a hedge), and starts the search again if there is none.
//! 4. A want fails when nothing came for [`Config::stall_timeout`]: as corrupt if a peer sent other bytes instead.

use super::message::{Ask, MAX_WANTS_PER_PEER, WantEntry};
use crate::metrics::Metrics;
use crate::wants::SessionId;
use content::{BlockKey, Cid, SourceError, Stall};
use libp2p::PeerId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// What the machine is tuned by.
#[derive(Debug, Clone)]
pub struct Config {
    /// How long a want may see no progress before it fails.
    pub stall_timeout: Duration,
    /// Connected peers that are asked about the first want of a session.
    pub probes_max: usize,
    /// How long an unused session remembers its members.
    pub linger: Duration,
    /// Sessions remembered at most; the longest unused go first.
    pub sessions_max: usize,
    /// How long to wait before providers are searched again.
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

/// Bounds of the silence after which a second peer is asked.
const PATIENCE: std::ops::RangeInclusive<Duration> = Duration::from_millis(250)..=Duration::from_secs(2);
/// The same for a peer that never answered anything yet.
const UNKNOWN_PATIENCE: Duration = Duration::from_millis(400);
/// Peers that may owe us the same block at once.
const HEDGES_MAX: usize = 3;
/// A want that its peers keep overtaking fails after this many stall timeouts, however busy they are.
const OVERTAKEN_STALLS: u32 = 4;
/// How long a session without wants keeps its search for providers going.
const SEARCH_LINGER: Duration = Duration::from_secs(2);
/// Providers of one session that are remembered; whoever answers a search can name as many as it likes.
const NAMED_MAX: usize = 1_024;
/// Members of one session; more add duplicates, not speed.
const MEMBERS_MAX: usize = 16;
/// Cancelled wants remembered per peer, so that a late block is told from a lie.
const LATE_MAX: usize = 2 * MAX_WANTS_PER_PEER;
/// The rate assumed of a peer that was never measured, in bytes a second: enough to be tried early.
const UNKNOWN_RATE: f64 = 50_000_000.0;

/// What the machine wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send these wantlist changes to a connected peer.
    Send {
        /// The peer.
        peer: PeerId,
        /// The changes.
        entries: Vec<WantEntry>,
    },
    /// Search for providers of a session's root; report them with [`Client::provider_found`].
    Search(SessionId),
    /// The search is no longer needed.
    StopSearch(SessionId),
    /// A peer proved to hold a session's DAG.
    Joined(SessionId, PeerId),
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

#[derive(Debug)]
struct Question {
    peer: PeerId,
    block: bool,
    at: Instant,
}

#[derive(Debug)]
struct Want {
    cid: Cid,
    sessions: Vec<SessionId>,
    since: Instant,
    /// Questions without an answer.
    asked: Vec<Question>,
    /// Peers that said no, lied or left.
    denied: HashSet<PeerId>,
    /// Peers that said HAVE and owe nothing yet.
    has: Vec<PeerId>,
    corrupt: bool,
    /// Whether strangers were asked because the only debtor was silent: once is enough.
    probed_in_need: bool,
}

impl Want {
    fn blocks_asked(&self) -> usize {
        self.asked.iter().filter(|question| question.block).count()
    }

    fn is_asked(&self, peer: &PeerId) -> bool {
        self.asked.iter().any(|question| question.peer == *peer)
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Search {
    #[default]
    Idle,
    Running,
    Done(Instant),
}

#[derive(Debug)]
struct Session {
    members: Vec<PeerId>,
    /// Providers that routing named, connected or not.
    named: HashSet<PeerId>,
    wants: HashSet<BlockKey>,
    /// Wants that found no peer with room.
    backlog: VecDeque<BlockKey>,
    search: Search,
    started: Instant,
    discovered: bool,
    progress: Instant,
    asked: HashSet<PeerId>,
    answered: HashSet<PeerId>,
    used: Instant,
}

impl Session {
    fn new(now: Instant) -> Self {
        Self {
            members: Vec::new(),
            named: HashSet::new(),
            wants: HashSet::new(),
            backlog: VecDeque::new(),
            search: Search::Idle,
            started: now,
            discovered: false,
            progress: now,
            asked: HashSet::new(),
            answered: HashSet::new(),
            used: now,
        }
    }

    fn stall(&self, waited: Duration) -> Stall {
        let count = |set: &HashSet<PeerId>| u32::try_from(set.len()).unwrap_or(u32::MAX);
        Stall {
            waited,
            providers_found: count(&self.named),
            peers_asked: count(&self.asked),
            peers_answered: count(&self.answered),
        }
    }
}

#[derive(Debug)]
struct Peer {
    favoured: bool,
    /// Blocks that it owes us.
    owed: HashSet<BlockKey>,
    /// Questions about presence without an answer.
    probed: HashSet<BlockKey>,
    late: HashSet<BlockKey>,
    late_order: VecDeque<BlockKey>,
    /// Bytes a second while it owes us something, smoothed.
    rate: Option<f64>,
    /// Time from a question to its answer, smoothed.
    response: Option<Duration>,
    useful: Option<Instant>,
}

impl Peer {
    fn new(favoured: bool) -> Self {
        Self {
            favoured,
            owed: HashSet::new(),
            probed: HashSet::new(),
            late: HashSet::new(),
            late_order: VecDeque::new(),
            rate: None,
            response: None,
            useful: None,
        }
    }

    fn has_room(&self) -> bool {
        self.owed.len() + self.probed.len() < MAX_WANTS_PER_PEER
    }

    /// Expected relative time until one more block arrives: less is better.
    fn cost(&self) -> f64 {
        let owed = u32::try_from(self.owed.len()).unwrap_or(u32::MAX);
        (f64::from(owed) + 1.0) / self.rate.unwrap_or(UNKNOWN_RATE).max(1.0)
    }

    fn patience(&self) -> Duration {
        self.response.map_or(UNKNOWN_PATIENCE, |response| (response * 4).clamp(*PATIENCE.start(), *PATIENCE.end()))
    }

    fn given_up(&mut self, key: BlockKey) {
        if self.late.insert(key) {
            self.late_order.push_back(key);
        }
        while self.late_order.len() > LATE_MAX {
            if let Some(old) = self.late_order.pop_front() {
                self.late.remove(&old);
            }
        }
    }

    fn answered(&mut self, took: Duration) {
        let smoothed = self.response.map_or(took, |old| (old * 7 + took) / 8);
        self.response = Some(smoothed);
    }

    fn delivered(&mut self, bytes: usize, asked_at: Instant, now: Instant) {
        let idle_until = self.useful.map_or(asked_at, |useful| useful.max(asked_at));
        let seconds = now.saturating_duration_since(idle_until).as_secs_f64().max(1e-6);
        let rate = u32::try_from(bytes).map_or(f64::MAX, f64::from) / seconds;
        self.rate = Some(self.rate.map_or(rate, |old| 0.9 * old + 0.1 * rate));
        self.useful = Some(now);
    }
}

/// The state machine. Every method that depends on time is handed the clock.
pub struct Client {
    config: Config,
    metrics: Metrics,
    peers: HashMap<PeerId, Peer>,
    sessions: HashMap<SessionId, Session>,
    wants: HashMap<BlockKey, Want>,
    outbox: HashMap<PeerId, Vec<WantEntry>>,
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
        let entries = self.outbox.remove(&peer)?;
        Some(Action::Send { peer, entries })
    }

    /// Whether [`Client::tick`] has anything to watch.
    pub fn is_idle(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Whether a peer owes us anything, and when it last gave us something.
    pub fn usefulness(&self, peer: &PeerId) -> (bool, Option<Instant>) {
        self.peers.get(peer).map_or((false, None), |known| (!known.owed.is_empty(), known.useful))
    }

    /// How many connected peers proved to hold a session's DAG.
    pub fn members(&self, session: &SessionId) -> usize {
        self.sessions.get(session).map_or(0, |session| session.members.len())
    }

    /// A block that a session waits for, besides its root.
    pub fn wanted_below(&self, session_id: &SessionId) -> Option<BlockKey> {
        let session = self.sessions.get(session_id)?;
        let wants = session.wants.iter().filter_map(|key| Some((key, self.wants.get(key)?)));
        let below = wants.filter(|(_, want)| want.cid.hash() != session_id);
        below.min_by_key(|(_, want)| want.since).map(|(key, _)| *key)
    }

    /// Somebody in a session waits for a block.
    pub fn want(&mut self, session_id: SessionId, cid: Cid, now: Instant) {
        let Some(key) = BlockKey::of(&cid) else { return };
        self.make_room_for(&session_id);
        let session = self.sessions.entry(session_id).or_insert_with(|| Session::new(now));
        if session.wants.is_empty() {
            // Time spent without any want is nobody's stall.
            session.progress = now;
            if !session.discovered {
                session.started = now;
            }
        }
        session.wants.insert(key);
        session.used = now;
        let search = session.search == Search::Idle && session.members.is_empty();
        let want = self.wants.entry(key).or_insert_with(|| Want {
            cid,
            sessions: Vec::new(),
            since: now,
            asked: Vec::new(),
            denied: HashSet::new(),
            has: Vec::new(),
            corrupt: false,
            probed_in_need: false,
        });
        if !want.sessions.contains(&session_id) {
            want.sessions.push(session_id);
        }
        if search {
            self.start_search(session_id);
        }
        self.assign(key, now);
    }

    /// Nobody in a session waits for a block any more.
    pub fn cancel(&mut self, session_id: SessionId, key: BlockKey, now: Instant) {
        if let Some(session) = self.sessions.get_mut(&session_id) {
            session.wants.remove(&key);
            session.used = now;
        }
        let Some(want) = self.wants.get_mut(&key) else { return };
        want.sessions.retain(|id| *id != session_id);
        if want.sessions.is_empty()
            && let Some(want) = self.wants.remove(&key)
        {
            self.retract(key, &want, None);
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
        let waiting: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.named.contains(&peer) || (favoured && session.members.is_empty()))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.offer(id, peer, now);
        }
    }

    /// A peer is gone; what it owed is asked of others.
    pub fn peer_disconnected(&mut self, peer: PeerId, now: Instant) {
        self.outbox.remove(&peer);
        let Some(gone) = self.peers.remove(&peer) else { return };
        for session in self.sessions.values_mut() {
            session.members.retain(|member| *member != peer);
        }
        for key in gone.owed.into_iter().chain(gone.probed) {
            self.deny(key, peer, now);
        }
    }

    /// A connection to a peer was replaced by another: whatever was asked is asked again.
    pub fn ask_again(&mut self, peer: PeerId) {
        let Some(known) = self.peers.get(&peer) else { return };
        let owed = known.owed.iter().map(|key| (*key, Ask::Block));
        let probed = known.probed.iter().map(|key| (*key, Ask::Have));
        let entries: Vec<WantEntry> = owed
            .chain(probed)
            .filter_map(|(key, ask)| Some(WantEntry { cid: self.wants.get(&key)?.cid, ask, send_dont_have: true }))
            .collect();
        if !entries.is_empty() {
            self.outbox.entry(peer).or_default().extend(entries);
        }
    }

    /// Routing named a provider of a session's root.
    pub fn provider_found(&mut self, session_id: SessionId, peer: PeerId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&session_id) else { return };
        if session.named.len() >= NAMED_MAX {
            return;
        }
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
        let Some(known) = self.peers.get_mut(&peer) else { return Use::Duplicate };
        let owed = known.owed.remove(&key) | known.probed.remove(&key);
        if !owed && !known.late.contains(&key) {
            return self.lied(peer, now);
        }
        // It may send the block again: after a question for presence that it answered with a small block at once, say.
        known.given_up(key);
        let Some(want) = self.wants.remove(&key) else { return Use::Duplicate };
        if let Some(question) = want.asked.iter().find(|question| question.peer == peer) {
            let took = now.saturating_duration_since(question.at);
            known.delivered(bytes, question.at, now);
            self.metrics.transfer_seconds.observe(took.as_secs_f64());
        }
        for id in &want.sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.wants.remove(&key);
                session.progress = now;
                session.used = now;
            }
        }
        self.retract(key, &want, Some(peer));
        for id in want.sessions {
            if self.joined(id, peer, now) {
                self.assign_unasked(id, now);
            }
            self.drain_backlog(id, now);
        }
        Use::Wanted
    }

    /// A peer said HAVE (`true`) or DONT_HAVE.
    pub fn received_presence(&mut self, peer: PeerId, cid: &Cid, has: bool, now: Instant) {
        let Some(key) = BlockKey::of(cid) else { return };
        let Some(want) = self.wants.get_mut(&key) else {
            if let Some(known) = self.peers.get_mut(&peer) {
                known.probed.remove(&key);
                known.owed.remove(&key);
            }
            return;
        };
        let Some(index) = want.asked.iter().position(|question| question.peer == peer) else { return };
        let took = now.saturating_duration_since(want.asked[index].at);
        let sessions = want.sessions.clone();
        if let Some(known) = self.peers.get_mut(&peer) {
            known.answered(took);
        }
        for id in &sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.answered.insert(peer);
            }
        }
        if !has {
            return self.deny(key, peer, now);
        }
        if !want.asked[index].block {
            want.asked.remove(index);
            want.has.push(peer);
            if let Some(known) = self.peers.get_mut(&peer) {
                known.probed.remove(&key);
            }
        }
        for id in sessions {
            if self.joined(id, peer, now) {
                self.assign_unasked(id, now);
            }
        }
        self.assign(key, now);
    }

    /// A peer broke the protocol or cannot be written to: whatever it owes is asked of others.
    pub fn peer_failed(&mut self, peer: PeerId, now: Instant) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        let keys: Vec<BlockKey> = known.owed.drain().chain(known.probed.drain()).collect();
        // Blocks that are under way already are late, not lies.
        keys.iter().for_each(|key| known.given_up(*key));
        for session in self.sessions.values_mut() {
            session.members.retain(|member| *member != peer);
        }
        for key in keys {
            self.deny(key, peer, now);
        }
    }

    /// Hedges, searches again, fails what stalled and forgets what nobody uses. Call it about every 100 ms.
    pub fn tick(&mut self, now: Instant) {
        let keys: Vec<BlockKey> = self.wants.keys().copied().collect();
        for key in keys {
            if !self.fail_if_stalled(key, now) {
                self.hedge(key, now);
            }
        }
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            self.tend_session(id, now);
        }
    }

    // --- deciding whom to ask -----------------------------------------------------------------------------------------

    /// Asks the best peer for a block that nobody owes us.
    fn assign(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        if want.blocks_asked() > 0 {
            return;
        }
        if let Some(peer) = self.best_member(want) {
            return self.ask(peer, key, true, now);
        }
        let sessions = want.sessions.clone();
        let mut queued = false;
        for id in &sessions {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            // Every member that may have it is full: it waits for the next block from one of them.
            if session.members.iter().any(|member| !want.denied.contains(member)) {
                session.backlog.push_back(key);
                queued = true;
            }
        }
        if queued {
            return;
        }
        self.probe(key, now);
    }

    /// The connected peer that proved to hold this want's DAG and will be done soonest.
    fn best_member(&self, want: &Want) -> Option<PeerId> {
        let members = want.sessions.iter().filter_map(|id| self.sessions.get(id)).flat_map(|s| &s.members);
        want.has
            .iter()
            .chain(members)
            .filter(|peer| !want.denied.contains(peer) && !want.asked.iter().any(|q| q.peer == **peer && q.block))
            .filter_map(|peer| Some((peer, self.peers.get(peer)?)))
            .filter(|(_, known)| known.has_room())
            .min_by(|(_, a), (_, b)| a.cost().total_cmp(&b.cost()))
            .map(|(peer, _)| *peer)
    }

    /// Asks peers that proved nothing yet: the block of one favoured or named peer, presence of some others.
    fn probe(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        let named = |peer: &PeerId| {
            want.sessions.iter().any(|id| self.sessions.get(id).is_some_and(|s| s.named.contains(peer)))
        };
        let mut candidates: Vec<(PeerId, bool, bool)> = self
            .peers
            .iter()
            .filter(|(peer, known)| known.has_room() && !want.denied.contains(peer))
            .map(|(peer, known)| (*peer, known.favoured || named(peer), known.useful.is_some()))
            // A peer that is only asked for presence so far may be asked for the block.
            .filter(|(peer, preferred, _)| *preferred || !want.is_asked(peer))
            .collect();
        candidates.sort_by_key(|(_, preferred, useful)| (!preferred, !useful));
        candidates.truncate(self.config.probes_max);
        let asked: HashSet<PeerId> = want.asked.iter().map(|question| question.peer).collect();
        let mut block_asked = want.blocks_asked() > 0;
        for (peer, preferred, _) in candidates {
            let block = preferred && !block_asked;
            if block || !asked.contains(&peer) {
                block_asked |= block;
                self.ask(peer, key, block, now);
            }
        }
    }

    /// Offers a session's wants to a provider that has just become reachable.
    fn offer(&mut self, session_id: SessionId, peer: PeerId, now: Instant) {
        let Some(session) = self.sessions.get(&session_id) else { return };
        let proven = !session.members.is_empty();
        let keys: Vec<BlockKey> = session.wants.iter().copied().collect();
        for key in keys {
            let Some(want) = self.wants.get(&key) else { continue };
            if want.is_asked(&peer) || want.denied.contains(&peer) {
                continue;
            }
            let block = want.blocks_asked() == 0;
            self.ask(peer, key, block, now);
            if proven {
                // One question is enough to learn whether it belongs to the session.
                break;
            }
        }
    }

    fn ask(&mut self, peer: PeerId, key: BlockKey, block: bool, now: Instant) {
        let (Some(known), Some(want)) = (self.peers.get_mut(&peer), self.wants.get_mut(&key)) else { return };
        want.asked.retain(|question| question.peer != peer);
        want.has.retain(|other| *other != peer);
        want.asked.push(Question { peer, block, at: now });
        known.probed.remove(&key);
        if block {
            known.owed.insert(key)
        } else {
            known.probed.insert(key)
        };
        for id in &want.sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.asked.insert(peer);
            }
        }
        let ask = if block { Ask::Block } else { Ask::Have };
        self.outbox.entry(peer).or_default().push(WantEntry { cid: want.cid, ask, send_dont_have: true });
    }

    /// A peer does not have, or does not give, a block.
    fn deny(&mut self, key: BlockKey, peer: PeerId, now: Instant) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.owed.remove(&key);
            known.probed.remove(&key);
            // Go peers remember the question, and send the block when they come to have it.
            known.given_up(key);
        }
        let Some(want) = self.wants.get_mut(&key) else { return };
        want.asked.retain(|question| question.peer != peer);
        want.has.retain(|other| *other != peer);
        want.denied.insert(peer);
        self.assign(key, now);
    }

    /// A peer sent bytes that nobody asked it for. Whatever it owes is suspect from now on.
    fn lied(&mut self, peer: PeerId, now: Instant) -> Use {
        let owed: Vec<BlockKey> =
            self.peers.get(&peer).map(|known| known.owed.iter().copied().collect()).unwrap_or_default();
        for key in owed {
            if let Some(want) = self.wants.get_mut(&key) {
                want.corrupt = true;
            }
        }
        self.peer_failed(peer, now);
        Use::Lie
    }

    /// A peer proved to hold a session's DAG; `true` if that is news.
    fn joined(&mut self, session_id: SessionId, peer: PeerId, now: Instant) -> bool {
        let Some(session) = self.sessions.get_mut(&session_id) else { return false };
        session.answered.insert(peer);
        if !session.discovered {
            session.discovered = true;
            let took = now.saturating_duration_since(session.started);
            self.metrics.discovery_seconds.observe(took.as_secs_f64());
        }
        let room = session.members.len() < MEMBERS_MAX;
        let news = room && !session.members.contains(&peer) && self.peers.contains_key(&peer);
        if news {
            session.members.push(peer);
            self.actions.push_back(Action::Joined(session_id, peer));
        }
        news
    }

    /// Wants that nobody owes us, now that the session has a member.
    fn assign_unasked(&mut self, session_id: SessionId, now: Instant) {
        let Some(session) = self.sessions.get(&session_id) else { return };
        let unasked: Vec<BlockKey> = session
            .wants
            .iter()
            .filter(|key| self.wants.get(key).is_some_and(|w| w.blocks_asked() == 0))
            .copied()
            .collect();
        for key in unasked {
            self.assign(key, now);
        }
    }

    /// Wants that found every member full, now that one has room again.
    fn drain_backlog(&mut self, session_id: SessionId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&session_id) else { return };
        if let Some(key) = session.backlog.pop_front() {
            self.assign(key, now);
        }
    }

    /// Takes back every open question about a block, except of the peer that answered it.
    fn retract(&mut self, key: BlockKey, want: &Want, answered_by: Option<PeerId>) {
        for question in &want.asked {
            if Some(question.peer) == answered_by {
                continue;
            }
            let Some(known) = self.peers.get_mut(&question.peer) else { continue };
            known.owed.remove(&key);
            known.probed.remove(&key);
            known.given_up(key);
            let cancel = WantEntry { cid: want.cid, ask: Ask::Cancel, send_dont_have: false };
            self.outbox.entry(question.peer).or_default().push(cancel);
        }
    }

    // --- time -----------------------------------------------------------------------------------------------------------

    /// Asks one more peer for a block whose debtors have been silent for too long.
    fn hedge(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        let debtors: Vec<&Question> = want.asked.iter().filter(|question| question.block).collect();
        let silent = |question: &&Question| {
            self.peers.get(&question.peer).is_none_or(|known| {
                let since = known.useful.map_or(question.at, |useful| useful.max(question.at));
                now.saturating_duration_since(since) > known.patience()
            })
        };
        if debtors.len() >= HEDGES_MAX || !debtors.iter().all(silent) {
            return;
        }
        let debtors = debtors.len();
        match self.best_member(want) {
            Some(peer) => {
                if debtors > 0 {
                    self.metrics.hedges.inc();
                }
                self.ask(peer, key, true, now);
            }
            None if debtors == 1 && !want.probed_in_need => {
                if let Some(want) = self.wants.get_mut(&key) {
                    want.probed_in_need = true;
                }
                self.probe(key, now);
            }
            None => {}
        }
    }

    /// Fails a want that saw no progress for too long; `true` if it did.
    fn fail_if_stalled(&mut self, key: BlockKey, now: Instant) -> bool {
        let Some(want) = self.wants.get(&key) else { return true };
        let debtor_progress =
            want.asked.iter().filter(|q| q.block).filter_map(|q| self.peers.get(&q.peer)?.useful).max();
        let progress = debtor_progress.map_or(want.since, |useful| useful.max(want.since));
        let waited = now.saturating_duration_since(progress);
        let overtaken = now.saturating_duration_since(want.since) > self.config.stall_timeout * OVERTAKEN_STALLS;
        if waited < self.config.stall_timeout && !overtaken {
            return false;
        }
        let Some(want) = self.wants.remove(&key) else { return true };
        self.retract(key, &want, None);
        for session_id in &want.sessions {
            let Some(session) = self.sessions.get_mut(session_id) else { continue };
            session.wants.remove(&key);
            session.used = now;
            let error = if want.corrupt {
                SourceError::Corrupt { cid: want.cid }
            } else {
                SourceError::Stalled { cid: want.cid, stall: session.stall(now.saturating_duration_since(want.since)) }
            };
            self.actions.push_back(Action::Fail(Box::new(Failure { key, session: *session_id, error })));
        }
        true
    }

    fn tend_session(&mut self, id: SessionId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let unused = now.saturating_duration_since(session.used);
        if session.wants.is_empty() {
            if session.search == Search::Running && unused > SEARCH_LINGER {
                session.search = Search::Done(now);
                self.actions.push_back(Action::StopSearch(id));
            }
            if unused > self.config.linger {
                self.sessions.remove(&id);
            }
            return;
        }
        let stalled = session.members.is_empty()
            || now.saturating_duration_since(session.progress) > self.config.search_again / 2;
        let rested = match session.search {
            Search::Idle => true,
            Search::Running => false,
            Search::Done(at) => now.saturating_duration_since(at) > self.config.search_again,
        };
        if stalled && rested {
            self.start_search(id);
        }
    }

    fn start_search(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.search = Search::Running;
            self.actions.push_back(Action::Search(id));
        }
    }

    /// Forgets the longest unused session when there is no room for another.
    fn make_room_for(&mut self, id: &SessionId) {
        if self.sessions.len() < self.config.sessions_max || self.sessions.contains_key(id) {
            return;
        }
        let idle =
            self.sessions.iter().filter(|(_, s)| s.wants.is_empty()).min_by_key(|(_, s)| s.used).map(|(id, _)| *id);
        if let Some(idle) = idle
            && let Some(session) = self.sessions.remove(&idle)
            && session.search == Search::Running
        {
            self.actions.push_back(Action::StopSearch(idle));
        }
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
