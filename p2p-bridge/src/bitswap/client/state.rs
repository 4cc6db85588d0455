//! State of the client: peers, sessions and wants, with their own invariants; the rules are in other modules.

use super::link::Link;
use crate::bitswap::message::MAX_WANTS_PER_PEER;
use crate::dag::message::TransferId;
use crate::recent::{Recent, recent};
use crate::wants::SessionId;
use content::{BlockKey, Cid, ReadAhead, Stall};
use libp2p::PeerId;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of cancelled or received blocks per peer that may still be received late, to distinguish them
/// from invalid blocks.
const LATE_MAX: usize = 2 * MAX_WANTS_PER_PEER;
/// The maximum number of cancelled want-haves whose answers are expected.
const CANCELLED_PROBES_MAX: usize = 64;
/// The expected size of blocks before one of the session was received, in bytes: the usual chunk size.
const BLOCK_BYTES_EXPECTED: usize = 256 * 1024;

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    /// Whether it is asked first.
    pub favoured: bool,
    pub link: Link,
    /// When it last sent a wanted block.
    pub useful: Option<Instant>,
    /// The sessions of which it is a member.
    pub sessions: HashSet<SessionId>,
    /// Outstanding blocks.
    outstanding: HashMap<BlockKey, OutstandingBlock>,
    outstanding_bytes: usize,
    /// Those that are in its wantlist: others are brought by transfers, and take neither its entries nor its window.
    listed: usize,
    listed_bytes: usize,
    /// Want-haves without an answer.
    probed: HashSet<BlockKey>,
    /// Cancelled want-haves whose answers may be on their way, and the sessions that asked.
    cancelled_probes: HashMap<BlockKey, Vec<SessionId>>,
    /// Whether a response was lost since the requests were last sent again, and when that was.
    answer_lost: bool,
    requests_resent: Option<Instant>,
    late: Recent<BlockKey, ()>,
}

/// A block that was requested and not received.
#[derive(Debug)]
struct OutstandingBlock {
    /// Its expected size.
    bytes: usize,
    /// Whether it is in the peer's wantlist.
    is_listed: bool,
}

impl Peer {
    pub fn new(favoured: bool) -> Self {
        Self {
            favoured,
            link: Link::default(),
            useful: None,
            sessions: HashSet::new(),
            outstanding: HashMap::new(),
            outstanding_bytes: 0,
            listed: 0,
            listed_bytes: 0,
            probed: HashSet::new(),
            cancelled_probes: HashMap::new(),
            answer_lost: false,
            requests_resent: None,
            late: recent(LATE_MAX),
        }
    }

    /// Whether its wantlist has a free entry.
    pub fn has_slot(&self) -> bool {
        self.listed + self.probed.len() < MAX_WANTS_PER_PEER
    }

    /// Whether its window allows another block. A peer without outstanding blocks may always be asked for one.
    pub fn has_room(&self) -> bool {
        self.has_slot() && (self.listed == 0 || self.listed_bytes < self.link.window_bytes())
    }

    /// The expected time until another block of this size is received. If the window is full, queued wants come first.
    pub fn cost(&self, bytes: usize, queued_bytes: usize) -> Duration {
        let queued_bytes = if self.has_room() { 0 } else { queued_bytes };
        self.link.time_for(self.outstanding_bytes.saturating_add(bytes).saturating_add(queued_bytes))
    }

    /// Whether it has outstanding blocks and is stalled.
    pub fn is_stalled(&self, now: Instant) -> bool {
        !self.outstanding.is_empty() && self.link.is_stalled(now)
    }

    /// Records a request for a block of about this size, or for its presence, by an entry in the peer's wantlist or by a
    /// transfer. Returns the bytes that the peer will have to send until the answer is complete, and whether it had no
    /// outstanding blocks before.
    pub fn ask(&mut self, key: BlockKey, block: Option<usize>, is_listed: bool, now: Instant) -> (usize, bool) {
        self.settle(&key, now);
        let idle = self.outstanding.is_empty();
        if idle && (block.is_some() || self.probed.is_empty()) {
            self.link.begin(now);
        }
        match block {
            Some(bytes) => {
                self.outstanding.insert(key, OutstandingBlock { bytes, is_listed });
                self.outstanding_bytes += bytes;
                self.listed += usize::from(is_listed);
                self.listed_bytes += if is_listed { bytes } else { 0 };
            }
            None => _ = self.probed.insert(key),
        }
        (self.outstanding_bytes, idle)
    }

    /// An outstanding block was received. The request is yet to be settled.
    pub fn delivered(&mut self, bytes: usize, asked_at: Option<Instant>, now: Instant) {
        self.link.delivered(bytes, self.outstanding_bytes, asked_at, now);
    }

    /// A request was answered or cancelled; returns whether it was pending.
    pub fn settle(&mut self, key: &BlockKey, now: Instant) -> bool {
        let outstanding = self.outstanding.remove(key);
        if let Some(OutstandingBlock { bytes, is_listed }) = outstanding {
            self.outstanding_bytes -= bytes;
            self.listed -= usize::from(is_listed);
            self.listed_bytes -= if is_listed { bytes } else { 0 };
        }
        let open = self.probed.remove(key) || outstanding.is_some();
        if open && self.outstanding.is_empty() {
            self.link.end(now);
        }
        open
    }

    /// Cancels all pending requests.
    pub fn settle_all(&mut self) -> Vec<BlockKey> {
        (self.outstanding_bytes, self.listed, self.listed_bytes) = (0, 0, 0);
        self.outstanding.drain().map(|(key, _)| key).chain(self.probed.drain()).collect()
    }

    /// All pending requests, and whether they are for the block or its presence.
    pub fn open(&self) -> impl Iterator<Item = (&BlockKey, bool)> {
        self.outstanding.keys().map(|key| (key, true)).chain(self.probed.iter().map(|key| (key, false)))
    }

    /// A want-have is cancelled, because another peer sent the block. Its answer still shows whether this peer has
    /// blocks of a session's DAG.
    pub fn cancel_probe(&mut self, key: BlockKey, sessions: &[SessionId]) {
        if self.cancelled_probes.len() >= CANCELLED_PROBES_MAX {
            self.cancelled_probes.clear();
        }
        self.cancelled_probes.insert(key, sessions.to_vec());
    }

    /// The answer to a cancelled want-have was received. Returns the sessions.
    pub fn cancelled_probe_answered(&mut self, key: &BlockKey) -> Vec<SessionId> {
        self.cancelled_probes.remove(key).unwrap_or_default()
    }

    /// A response was lost.
    pub fn answer_lost(&mut self) {
        self.answer_lost = true;
    }

    /// Whether a response was lost and the pending requests must be sent again now. They are sent at most once per
    /// stall threshold.
    pub fn must_resend_requests(&mut self, now: Instant) -> bool {
        let recently = |at: Instant| now.saturating_duration_since(at) < self.link.stall_threshold();
        if !self.answer_lost || self.requests_resent.is_some_and(recently) {
            return false;
        }
        self.answer_lost = false;
        self.requests_resent = Some(now);
        true
    }

    /// The outstanding blocks.
    pub fn outstanding(&self) -> impl Iterator<Item = &BlockKey> {
        self.outstanding.keys()
    }

    /// Their expected size, in bytes.
    pub fn outstanding_bytes(&self) -> usize {
        self.outstanding_bytes
    }

    /// Whether a block was once requested from it.
    pub fn may_be_late(&self, key: &BlockKey) -> bool {
        self.late.contains_key(key)
    }

    /// Expects a late block, which no session waits for any more.
    pub fn expect_late(&mut self, key: BlockKey) {
        self.late.insert(key, ());
    }
}

/// A pending request.
#[derive(Debug)]
pub(super) struct Request {
    pub peer: PeerId,
    /// For the block, not only for its presence.
    pub block: bool,
    pub at: Instant,
    /// The bytes that the peer had to send until the answer was complete, or before it in a CAR.
    pub queued_bytes: usize,
    /// Whether the peer had no other outstanding blocks.
    pub idle: bool,
    /// The transfer that brings it, in place of a wantlist entry.
    pub transfer: Option<TransferId>,
    /// Whether that is a CAR whose place of the block is known.
    pub is_placed: bool,
}

/// A wanted block.
#[derive(Debug)]
pub(super) struct Want {
    pub cid: Cid,
    /// The position in the order of wants.
    pub order: u64,
    pub sessions: Vec<SessionId>,
    pub since: Instant,
    /// Pending requests, one per peer.
    pub asked: Vec<Request>,
    /// Peers that sent DONT_HAVE or an invalid block, or disconnected.
    pub denied: HashSet<PeerId>,
    /// Peers that sent HAVE and were not asked for the block yet.
    pub has: Vec<PeerId>,
    /// A peer sent an invalid block instead.
    pub corrupt: bool,
    /// Whether unrelated peers were asked because the asked ones had stalled: this happens once.
    pub probed_when_stalled: bool,
    /// Whether no member has it.
    pub orphaned: bool,
    /// Whether it was found to be due ([`super::failing`]).
    pub due: bool,
    /// What its reader will request after it, and the session of the reader.
    pub ahead: Option<(SessionId, Arc<ReadAhead>)>,
    /// Whether a transfer has failed to bring it, so that it is requested by entries only.
    pub is_untransferable: bool,
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
            probed_when_stalled: false,
            orphaned: false,
            due: false,
            ahead: None,
            is_untransferable: false,
        }
    }

    /// A session does not wait for it any more.
    pub fn remove_session(&mut self, id: &SessionId) {
        self.sessions.retain(|other| other != id);
        // A transfer for readers that have left would end at once.
        self.ahead.take_if(|(session, _)| session == id);
    }

    /// Pending requests for the block itself.
    pub fn block_requests(&self) -> impl Iterator<Item = &Request> {
        self.asked.iter().filter(|request| request.block)
    }

    pub fn is_requested(&self) -> bool {
        self.block_requests().next().is_some()
    }

    pub fn is_asked(&self, peer: &PeerId) -> bool {
        self.asked.iter().any(|request| request.peer == *peer)
    }

    pub fn is_requested_from(&self, peer: &PeerId) -> bool {
        self.block_requests().any(|request| request.peer == *peer)
    }

    /// Whether a transfer from the peer brings it.
    pub fn is_transferred_from(&self, peer: &PeerId) -> bool {
        self.asked.iter().any(|request| request.peer == *peer && request.transfer.is_some())
    }

    /// Discards what a peer said about the block, and the request to it. Returns the transfer that the request waits for.
    #[must_use]
    pub fn discard_answers(&mut self, peer: &PeerId) -> Option<TransferId> {
        let transfer = self.asked.iter().find(|request| request.peer == *peer).and_then(|request| request.transfer);
        self.asked.retain(|request| request.peer != *peer);
        self.has.retain(|other| other != peer);
        transfer
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

/// The state of one DAG.
#[derive(Debug)]
pub(super) struct Session {
    /// Peers that have blocks of it.
    pub members: Vec<PeerId>,
    /// The members that sent a block of it.
    pub senders: HashSet<PeerId>,
    /// Providers that routing found, and members of former connections.
    pub known_providers: HashSet<PeerId>,
    /// Providers that routing found.
    pub providers: HashSet<PeerId>,
    /// Wanted blocks, and since when.
    pub wants: HashMap<BlockKey, Instant>,
    /// Wants that are not requested from any peer, in order.
    pub queued: BTreeMap<u64, BlockKey>,
    /// Wants that unrelated peers were asked about.
    pub probed: HashSet<BlockKey>,
    /// Unrelated peers that were asked since the search began. A peer without one block is not asked about others.
    pub probed_peers: HashSet<PeerId>,
    pub search: Search,
    /// When a want was last found to have no member.
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
            senders: HashSet::new(),
            known_providers: HashSet::new(),
            providers: HashSet::new(),
            wants: HashMap::new(),
            queued: BTreeMap::new(),
            probed: HashSet::new(),
            probed_peers: HashSet::new(),
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

    /// The expected size of its next block, in bytes.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Removes a member.
    pub fn left(&mut self, peer: &PeerId) {
        self.members.retain(|member| member != peer);
        self.senders.remove(peer);
    }

    /// A want of this session ended.
    pub fn ended(&mut self, key: &BlockKey, order: u64, now: Instant) {
        self.wants.remove(key);
        self.queued.remove(&order);
        self.probed.remove(key);
        self.used = now;
    }

    /// A block of this session was received.
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
