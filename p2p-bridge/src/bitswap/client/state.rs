//! What the client machine remembers: peers, sessions and wants. Each keeps its own book; the rules are elsewhere.

use super::link::Link;
use crate::bitswap::message::MAX_WANTS_PER_PEER;
use crate::wants::SessionId;
use content::{BlockKey, Cid, Stall};
use libp2p::PeerId;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Wants given up, and blocks received, that are remembered per peer, so that a late block is told from a lie.
const LATE_MAX: usize = 2 * MAX_WANTS_PER_PEER;
/// Questions about presence that were taken back and are remembered.
const UNHEARD_MAX: usize = 64;
/// What a block is expected to have before any of its session came, in bytes: what files are commonly cut into.
const BLOCK_BYTES_EXPECTED: usize = 256 * 1024;

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    /// Asked first.
    pub favoured: bool,
    pub link: Link,
    /// When it last sent a block that was wanted.
    pub useful: Option<Instant>,
    /// The sessions that it is a member of.
    pub sessions: HashSet<SessionId>,
    /// Blocks that it owes us, and what they are expected to have in bytes.
    owed: HashMap<BlockKey, usize>,
    owed_bytes: usize,
    /// Questions about presence without an answer.
    probed: HashSet<BlockKey>,
    /// Questions about presence that were taken back while the answer may have been on its way, and who asked.
    unheard: HashMap<BlockKey, Vec<SessionId>>,
    /// Whether an answer of it was lost since it was last asked everything again, and when that was.
    answer_lost: bool,
    asked_again: Option<Instant>,
    late: HashSet<BlockKey>,
    late_order: VecDeque<BlockKey>,
}

impl Peer {
    pub fn new(favoured: bool) -> Self {
        Self {
            favoured,
            link: Link::default(),
            useful: None,
            sessions: HashSet::new(),
            owed: HashMap::new(),
            owed_bytes: 0,
            probed: HashSet::new(),
            unheard: HashMap::new(),
            answer_lost: false,
            asked_again: None,
            late: HashSet::new(),
            late_order: VecDeque::new(),
        }
    }

    /// Whether it may be asked anything more.
    pub fn has_slot(&self) -> bool {
        self.owed.len() + self.probed.len() < MAX_WANTS_PER_PEER
    }

    /// Whether it may owe us another block. Whoever owes nothing may owe one, however large.
    pub fn has_room(&self) -> bool {
        self.has_slot() && (self.owed.is_empty() || self.owed_bytes < self.link.window_bytes())
    }

    /// Expected time until one more block of that size would be here. If the peer may owe no more for now, what waits in
    /// line before the block comes first.
    pub fn cost(&self, bytes: usize, line_bytes: usize) -> Duration {
        let line_bytes = if self.has_room() { 0 } else { line_bytes };
        self.link.time_for(self.owed_bytes.saturating_add(bytes).saturating_add(line_bytes))
    }

    /// Whether it owes us blocks and lets us wait for too long.
    pub fn is_silent(&self, now: Instant) -> bool {
        !self.owed.is_empty() && self.link.is_silent(now)
    }

    /// Notes a question for a block of about that size, or for its presence. What the peer will then have to send until
    /// the answer is complete, in bytes, and whether it owed nothing before.
    pub fn ask(&mut self, key: BlockKey, block: Option<usize>, now: Instant) -> (usize, bool) {
        self.settle(&key, now);
        let idle = self.owed.is_empty();
        if idle && (block.is_some() || self.probed.is_empty()) {
            self.link.begin(now);
        }
        match block {
            Some(bytes) => {
                self.owed.insert(key, bytes);
                self.owed_bytes += bytes;
            }
            None => _ = self.probed.insert(key),
        }
        (self.owed_bytes, idle)
    }

    /// A block that it owed came. The question is yet to be settled.
    pub fn delivered(&mut self, bytes: usize, asked_at: Option<Instant>, now: Instant) {
        self.link.delivered(bytes, self.owed_bytes, asked_at, now);
    }

    /// A question is answered or taken back; whether it was open.
    pub fn settle(&mut self, key: &BlockKey, now: Instant) -> bool {
        let owed = self.owed.remove(key);
        self.owed_bytes -= owed.unwrap_or(0);
        let open = self.probed.remove(key) || owed.is_some();
        if open && self.owed.is_empty() {
            self.link.end(now);
        }
        open
    }

    /// Takes back every open question.
    pub fn settle_all(&mut self) -> Vec<BlockKey> {
        self.owed_bytes = 0;
        self.owed.drain().map(|(key, _)| key).chain(self.probed.drain()).collect()
    }

    /// Every open question: the block, or whether it is there.
    pub fn open(&self) -> impl Iterator<Item = (&BlockKey, bool)> {
        self.owed.keys().map(|key| (key, true)).chain(self.probed.iter().map(|key| (key, false)))
    }

    /// A question about presence is taken back, because somebody else sent the block. The answer says all the same whether
    /// this peer holds a session's DAG.
    pub fn leave_unheard(&mut self, key: BlockKey, sessions: &[SessionId]) {
        if self.unheard.len() >= UNHEARD_MAX {
            self.unheard.clear();
        }
        self.unheard.insert(key, sessions.to_vec());
    }

    /// The answer to such a question came: whom it concerns.
    pub fn heard_of(&mut self, key: &BlockKey) -> Vec<SessionId> {
        self.unheard.remove(key).unwrap_or_default()
    }

    /// An answer of it was lost.
    pub fn answer_lost(&mut self) {
        self.answer_lost = true;
    }

    /// Whether an answer was lost and everything open has to be asked again now. Whatever it does to our answers, it is
    /// not asked more often than we would wait for one.
    pub fn is_to_be_asked_again(&mut self, now: Instant) -> bool {
        let recently = |at: Instant| now.saturating_duration_since(at) < self.link.patience();
        if !self.answer_lost || self.asked_again.is_some_and(recently) {
            return false;
        }
        self.answer_lost = false;
        self.asked_again = Some(now);
        true
    }

    /// The blocks that it owes us.
    pub fn owed(&self) -> impl Iterator<Item = &BlockKey> {
        self.owed.keys()
    }

    /// What these are expected to have, in bytes.
    pub fn owed_bytes(&self) -> usize {
        self.owed_bytes
    }

    /// Whether a block is one that we once asked it for.
    pub fn may_be_late(&self, key: &BlockKey) -> bool {
        self.late.contains(key)
    }

    /// It may send this block, though nobody waits for it any more.
    pub fn given_up(&mut self, key: BlockKey) {
        if self.late.insert(key) {
            self.late_order.push_back(key);
        }
        while self.late_order.len() > LATE_MAX {
            if let Some(old) = self.late_order.pop_front() {
                self.late.remove(&old);
            }
        }
    }
}

/// A question without an answer.
#[derive(Debug)]
pub(super) struct Question {
    pub peer: PeerId,
    /// For the block, and not only for its presence.
    pub block: bool,
    pub at: Instant,
    /// What the peer had to send until the answer was complete, in bytes.
    pub queued_bytes: usize,
    /// Whether the peer owed us nothing else at the time.
    pub idle: bool,
}

/// A block that somebody waits for.
#[derive(Debug)]
pub(super) struct Want {
    pub cid: Cid,
    /// Its place in the order in which blocks were wanted.
    pub order: u64,
    pub sessions: Vec<SessionId>,
    pub since: Instant,
    /// Questions without an answer, one a peer.
    pub asked: Vec<Question>,
    /// Peers that said no, lied or left.
    pub denied: HashSet<PeerId>,
    /// Peers that said HAVE and owe nothing yet.
    pub has: Vec<PeerId>,
    /// Somebody who owed it sent other bytes.
    pub corrupt: bool,
    /// Strangers were asked because its debtors were silent: once is enough.
    pub probed_in_need: bool,
    /// It is known that no member has it.
    pub orphaned: bool,
}

impl Want {
    pub fn new(cid: Cid, order: u64, now: Instant) -> Self {
        Self {
            cid,
            order,
            sessions: Vec::new(),
            since: now,
            asked: Vec::new(),
            denied: HashSet::new(),
            has: Vec::new(),
            corrupt: false,
            probed_in_need: false,
            orphaned: false,
        }
    }

    /// Peers that owe the block.
    pub fn debtors(&self) -> impl Iterator<Item = &Question> {
        self.asked.iter().filter(|question| question.block)
    }

    pub fn is_owed(&self) -> bool {
        self.debtors().next().is_some()
    }

    pub fn is_asked(&self, peer: &PeerId) -> bool {
        self.asked.iter().any(|question| question.peer == *peer)
    }

    pub fn is_owed_by(&self, peer: &PeerId) -> bool {
        self.debtors().any(|question| question.peer == *peer)
    }

    /// Whatever it said about the block counts no longer.
    pub fn forget(&mut self, peer: &PeerId) {
        self.asked.retain(|question| question.peer != *peer);
        self.has.retain(|other| other != peer);
    }
}

/// The search for a session's providers.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) enum Search {
    #[default]
    Idle,
    Running,
    Done(Instant),
}

/// What is known of one DAG.
#[derive(Debug)]
pub(super) struct Session {
    /// Peers that proved to hold it.
    pub members: Vec<PeerId>,
    /// Those of them that sent a block of it.
    pub givers: HashSet<PeerId>,
    /// Providers that routing named, and members of former connections.
    pub named: HashSet<PeerId>,
    /// Those of them that routing named.
    pub providers: HashSet<PeerId>,
    /// What somebody waits for, and since when.
    pub wants: HashMap<BlockKey, Instant>,
    /// Wants that nobody owes us, in order.
    pub unasked: BTreeMap<u64, BlockKey>,
    /// Wants that strangers were asked about.
    pub probed: HashSet<BlockKey>,
    /// Strangers that were asked since the search began. Whoever does not have one block is not asked about others.
    pub strangers: HashSet<PeerId>,
    pub search: Search,
    /// When it last turned out that no member has something.
    pub orphaned: Option<Instant>,
    pub started: Instant,
    pub discovered: bool,
    pub progress: Instant,
    pub asked: HashSet<PeerId>,
    pub answered: HashSet<PeerId>,
    pub used: Instant,
    block_bytes: usize,
}

impl Session {
    pub fn new(now: Instant) -> Self {
        Self {
            members: Vec::new(),
            givers: HashSet::new(),
            named: HashSet::new(),
            providers: HashSet::new(),
            wants: HashMap::new(),
            unasked: BTreeMap::new(),
            probed: HashSet::new(),
            strangers: HashSet::new(),
            search: Search::Idle,
            orphaned: None,
            started: now,
            discovered: false,
            progress: now,
            asked: HashSet::new(),
            answered: HashSet::new(),
            used: now,
            block_bytes: BLOCK_BYTES_EXPECTED,
        }
    }

    /// What its next block is expected to have, in bytes.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// A peer is no member any more.
    pub fn left(&mut self, peer: &PeerId) {
        self.members.retain(|member| member != peer);
        self.givers.remove(peer);
    }

    /// A want of this session ended.
    pub fn ended(&mut self, key: &BlockKey, order: u64, now: Instant) {
        self.wants.remove(key);
        self.unasked.remove(&order);
        self.probed.remove(key);
        self.used = now;
    }

    /// A block of this session came.
    pub fn received(&mut self, bytes: usize, now: Instant) {
        self.progress = now;
        self.block_bytes = (self.block_bytes / 8 * 7 + bytes / 8).max(1);
    }

    pub fn stall(&self, waited: Duration) -> Stall {
        let count = |set: &HashSet<PeerId>| u32::try_from(set.len()).unwrap_or(u32::MAX);
        Stall {
            waited,
            providers_found: count(&self.providers),
            peers_asked: count(&self.asked),
            peers_answered: count(&self.answered),
            no_peers: false,
        }
    }
}
