//! Selection of peers for wants.

use super::state::{Request, Session, Want};
use super::{Action, BlockUse, Client};
use crate::bitswap::message::{Ask, WantEntry};
use crate::dag::message::TransferId;
use crate::wants::SessionId;
use content::{BlockKey, codec};
use libp2p::PeerId;
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// The maximum number of members of a session; more add duplicates, not speed.
const MEMBERS_MAX: usize = 16;
/// The maximum number of wants of a session without members that are requested at once.
const PROBED_WANTS_MAX: usize = 4;
/// The maximum number of unrelated peers that are asked per search.
const PROBED_PEERS_MAX: usize = 64;
/// How long unrelated peers are not asked while the first block of a session is outstanding.
const PROOF_TIME: Duration = Duration::from_secs(1);
/// The maximum number of queued wants that are considered, oldest first, when a peer's window has space.
const CONSIDERED_WANTS_MAX: usize = 256;
/// Added to the expected delivery time of a stalled peer.
const STALL_PENALTY: Duration = Duration::from_secs(60);

/// The result of selecting a peer for a block.
enum Choice {
    /// Ask this peer.
    Ask(PeerId),
    /// Wait for a peer whose window is full.
    Wait,
    /// No member may have it.
    NoMember,
}

impl Client {
    /// Requests a block from the best peer.
    pub(super) fn assign(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        if want.is_requested() || self.attach(key, now) {
            return;
        }
        let Some(want) = self.wants.get(&key) else { return };
        let queued =
            |id| self.sessions.get(id).map_or(0, |s| s.queued.range(..want.order).take(CONSIDERED_WANTS_MAX).count());
        let before = want.sessions.iter().map(queued).max().unwrap_or(0);
        match self.choose(want, before, now) {
            Choice::Ask(peer) => self.ask(peer, key, true, now),
            Choice::Wait => {}
            Choice::NoMember => {
                self.orphaned(key, now);
                self.probe(key, now);
            }
        }
    }

    /// No member has a block. If this is new, it triggers a search.
    fn orphaned(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get_mut(&key) else { return };
        if std::mem::replace(&mut want.orphaned, true) {
            return;
        }
        for id in want.sessions.clone() {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.orphaned = Some(now);
            }
            self.search_if_needed(id, now);
        }
    }

    /// The member with the shortest expected delivery time, outstanding blocks included. `before`: the number of wants
    /// that are queued before this one.
    fn choose(&self, want: &Want, before: usize, now: Instant) -> Choice {
        let bytes = self.expected_bytes(want);
        let queued_bytes = bytes.saturating_mul(before);
        let best = self
            .proven(want)
            .map(|(peer, peer_state)| {
                let penalty = if peer_state.is_stalled(now) { STALL_PENALTY } else { Duration::ZERO };
                (peer_state.cost(bytes, queued_bytes).saturating_add(penalty), peer, peer_state)
            })
            .min_by_key(|(cost, ..)| *cost);
        match best {
            Some((_, peer, peer_state)) if peer_state.has_room() => Choice::Ask(peer),
            Some(_) => Choice::Wait,
            None => Choice::NoMember,
        }
    }

    /// Another member that could deliver a block soon, for a hedged request. If it is urgent, the member's window may
    /// be full; otherwise the hedge would overtake queued wants.
    pub(super) fn second_choice(&self, want: &Want, urgent: bool, now: Instant) -> Option<PeerId> {
        let bytes = self.expected_bytes(want);
        self.proven(want)
            .filter(|(_, peer_state)| peer_state.has_room() || urgent && peer_state.has_slot())
            .filter(|(_, peer_state)| !peer_state.is_stalled(now))
            .min_by_key(|(_, peer_state)| peer_state.cost(bytes, 0))
            .map(|(peer, _)| peer)
    }

    /// The members that did not deny the block and were not asked for it.
    fn proven<'a>(&'a self, want: &'a Want) -> impl Iterator<Item = (PeerId, &'a super::Peer)> {
        let members = want.sessions.iter().filter_map(|id| self.sessions.get(id)).flat_map(|session| &session.members);
        want.has
            .iter()
            .chain(members)
            .filter(|peer| !want.denied.contains(peer) && !want.is_requested_from(peer))
            .filter_map(|peer| Some((*peer, self.peers.get(peer)?)))
    }

    fn expected_bytes(&self, want: &Want) -> usize {
        let sessions = want.sessions.iter().filter_map(|id| self.sessions.get(id));
        sessions.map(Session::block_bytes).max().unwrap_or(0)
    }

    /// Asks peers that are no members yet: one for the block, others for its presence.
    pub(super) fn probe(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        if !want.sessions.iter().any(|id| self.may_probe(id, &key, now)) {
            return;
        }
        let sessions: Vec<&Session> = want.sessions.iter().filter_map(|id| self.sessions.get(id)).collect();
        let is_known = |peer: &PeerId| sessions.iter().any(|session| session.known_providers.contains(peer));
        let unrelated = |peer: &PeerId| {
            let room = |session: &&Session| {
                session.probed_peers.len() < PROBED_PEERS_MAX && !session.probed_peers.contains(peer)
            };
            !want.is_asked(peer) && sessions.iter().any(room)
        };
        let mut candidates: Vec<(PeerId, bool, Option<Instant>)> = self
            .peers
            .iter()
            .filter(|(peer, peer_state)| peer_state.has_slot() && !want.denied.contains(peer))
            .map(|(peer, peer_state)| (*peer, peer_state.favoured || is_known(peer), peer_state.useful))
            .filter(|(peer, preferred, _)| *preferred || unrelated(peer))
            .collect();
        candidates.sort_by_key(|(_, preferred, useful)| Reverse((*preferred, *useful)));
        candidates.truncate(self.config.probes_max);
        let mut outstanding = want.is_requested();
        let asked: Vec<PeerId> = want.asked.iter().map(|request| request.peer).collect();
        for (peer, preferred, useful) in candidates {
            // A peer that served other blocks recently is likely to have this one; unrelated peers are only asked for
            // presence.
            let block = !outstanding && (preferred || useful.is_some());
            outstanding |= block;
            // A peer with a pending want-have may be asked for the block.
            if block || !asked.contains(&peer) {
                self.note_probe(key, peer, preferred);
                self.ask(peer, key, block, now);
            }
        }
    }

    fn note_probe(&mut self, key: BlockKey, peer: PeerId, preferred: bool) {
        let Some(want) = self.wants.get(&key) else { return };
        for id in &want.sessions {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            session.probed.insert(key);
            if !preferred && session.probed_peers.len() < PROBED_PEERS_MAX {
                session.probed_peers.insert(peer);
            }
        }
    }

    /// Whether unrelated peers may be asked about another want of a session: only for a few at a time, and not while a
    /// peer may be about to become a member.
    fn may_probe(&self, session_id: &SessionId, key: &BlockKey, now: Instant) -> bool {
        let Some(session) = self.sessions.get(session_id) else { return false };
        let has_requests = session.queued.len() < session.wants.len();
        let recent = now.saturating_duration_since(session.progress) < PROOF_TIME;
        if session.members.is_empty() && has_requests && recent && !self.wants.get(key).is_some_and(Want::is_requested)
        {
            return false;
        }
        let open = |key: &&BlockKey| self.wants.get(*key).is_some_and(|want| !want.asked.is_empty());
        session.probed.contains(key) || session.probed.iter().filter(open).count() < PROBED_WANTS_MAX
    }

    /// Requests some of a session's wants from a provider that has just connected.
    pub(super) fn offer(&mut self, session_id: SessionId, peer: PeerId, now: Instant) {
        let Some(session) = self.sessions.get(&session_id) else { return };
        if session.members.contains(&peer) {
            return;
        }
        // A few requests suffice to find out whether it has blocks of the DAG; as a member it then gets its share. One
        // suffices if there are members.
        let count = if session.members.is_empty() { PROBED_WANTS_MAX } else { 1 };
        let queued = session.queued.values();
        // The newest outstanding ones: old ones are received before the answer, which then shows nothing.
        let outstanding = session
            .wants
            .keys()
            .filter_map(|key| Some((self.wants.get(key).filter(|want| want.is_requested())?.order, key)));
        let mut others: Vec<(u64, &BlockKey)> = outstanding.collect();
        others.sort_unstable_by_key(|(order, _)| Reverse(*order));
        let keys: Vec<BlockKey> = queued
            .chain(others.into_iter().map(|(_, key)| key))
            .filter(|key| {
                let want = self.wants.get(key);
                want.is_some_and(|want| !want.is_asked(&peer) && !want.denied.contains(&peer))
            })
            .copied()
            .take(count)
            .collect();
        for key in keys {
            let block = self.wants.get(&key).is_some_and(|want| !want.is_requested());
            self.ask(peer, key, block, now);
        }
    }

    /// Requests a block or its presence from a peer, which may not have been asked about it before. A block is requested
    /// by a transfer if the peer and the reader allow it.
    pub(super) fn ask(&mut self, peer: PeerId, key: BlockKey, block: bool, now: Instant) {
        if block && self.attach(key, now) {
            return;
        }
        let has_slot = self.peers.get(&peer).is_some_and(super::Peer::has_slot);
        let transfer = if block && has_slot { self.start_transfer(peer, &key, now) } else { None };
        self.request(peer, key, block, transfer, now);
    }

    /// Requests a block or its presence from a peer, by an entry in its wantlist unless a transfer brings it.
    pub(super) fn request(
        &mut self,
        peer: PeerId,
        key: BlockKey,
        block: bool,
        transfer: Option<TransferId>,
        now: Instant,
    ) {
        let Some(want) = self.wants.get(&key) else { return };
        let bytes = if block { self.expected_bytes(want) } else { 0 };
        let ahead = want.ahead.as_ref().map(|(_, ahead)| &**ahead);
        let distance = transfer.and_then(|transfer| self.planner.distance(transfer, &key, ahead));
        let (Some(peer_state), Some(want)) = (self.peers.get_mut(&peer), self.wants.get_mut(&key)) else { return };
        if transfer.is_none() && !peer_state.has_slot() {
            return;
        }
        let replaced = want.discard_answers(&peer);
        want.orphaned &= !block;
        let (queued_bytes, idle) = peer_state.ask(key, block.then_some(bytes), transfer.is_none(), now);
        let queued_bytes = distance.map_or(queued_bytes, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let is_placed = distance.is_some();
        want.asked.push(Request { peer, block, at: now, queued_bytes, idle, transfer, is_placed });
        for id in &want.sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.asked.insert(peer);
                if block {
                    session.queued.remove(&want.order);
                }
            }
        }
        if let Some(replaced) = replaced {
            self.planner.detach(replaced, &key);
        }
        if let Some(transfer) = transfer {
            return self.planner.attach(transfer, key, now);
        }
        let ask = if block { Ask::Block } else { Ask::Have };
        self.outbox.entry(peer).or_default().push(WantEntry { cid: want.cid, ask, send_dont_have: true });
    }

    /// A peer does not have a block, or does not send it: the next one is asked.
    pub(super) fn deny(&mut self, key: BlockKey, peer: PeerId, now: Instant) {
        if let Some(peer_state) = self.peers.get_mut(&peer) {
            peer_state.settle(&key, now);
            // Go peers keep the want, and send the block when they receive it. A block that was in flight when the peer
            // failed is late too, and not invalid.
            peer_state.expect_late(key);
        }
        let Some(want) = self.wants.get_mut(&key) else { return };
        if let Some(transfer) = want.discard_answers(&peer) {
            self.planner.detach(transfer, &key);
        }
        want.denied.insert(peer);
        if !want.is_requested() {
            for id in &want.sessions {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.queued.insert(want.order, key);
                }
            }
        }
        self.assign(key, now);
    }

    /// The same for several blocks, in the order of wants.
    pub(super) fn deny_all(&mut self, mut keys: Vec<BlockKey>, peer: PeerId, now: Instant) {
        keys.sort_by_key(|key| self.wants.get(key).map(|want| want.order));
        for key in keys {
            self.deny(key, peer, now);
        }
    }

    /// A peer sent an unsolicited block. Its outstanding blocks are requested from others.
    pub(super) fn sent_invalid_block(&mut self, peer: PeerId, now: Instant) -> BlockUse {
        let outstanding: Vec<BlockKey> =
            self.peers.get(&peer).map(|peer_state| peer_state.outstanding().copied().collect()).unwrap_or_default();
        for key in outstanding {
            if let Some(want) = self.wants.get_mut(&key) {
                want.corrupt = true;
            }
        }
        self.peer_failed(peer, now);
        BlockUse::Invalid
    }

    /// A peer is known to have blocks of a session's DAG: it sent a block, or HAVE. If there are too many members, a
    /// peer that sent a block replaces one that only sent HAVE: many peers have only the root of a DAG.
    /// [`Client::fill`] then requests its share.
    pub(super) fn joined(&mut self, session_id: SessionId, peer: PeerId, gave: bool, now: Instant) {
        if !self.peers.contains_key(&peer) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&session_id) else { return };
        session.answered.insert(peer);
        if !session.discovered {
            session.discovered = true;
            let took = now.saturating_duration_since(session.started);
            self.metrics.discovery_seconds.observe(took.as_secs_f64());
        }
        if !session.members.contains(&peer) {
            if session.members.len() >= MEMBERS_MAX {
                let idle = session.members.iter().find(|member| !session.senders.contains(member)).copied();
                let Some(idle) = idle.filter(|_| gave) else { return };
                session.left(&idle);
                if let Some(idle) = self.peers.get_mut(&idle) {
                    idle.sessions.remove(&session_id);
                }
            }
            session.members.push(peer);
            if let Some(peer_state) = self.peers.get_mut(&peer) {
                peer_state.sessions.insert(session_id);
            }
            self.actions.push_back(Action::Joined(session_id, peer));
            if gave {
                session.senders.insert(peer);
            }
            return self.member_joined(&session_id, &peer);
        }
        if gave {
            session.senders.insert(peer);
        }
    }

    /// Requests queued wants from a member whose window has space, one want of each of its sessions in turn.
    pub(super) fn fill(&mut self, peer: PeerId, now: Instant) {
        let Some(peer_state) = self.peers.get(&peer) else { return };
        let waits = |id: &&SessionId| self.sessions.get(*id).is_some_and(|session| !session.queued.is_empty());
        let mut sessions: Vec<SessionId> = peer_state.sessions.iter().filter(waits).copied().collect();
        while !sessions.is_empty() && self.peers.get(&peer).is_some_and(super::Peer::has_room) {
            sessions.retain(|id| match self.next_for_members(id, now) {
                Some((peer, key)) => {
                    self.ask(peer, key, true, now);
                    true
                }
                None => false,
            });
        }
    }

    /// The oldest want of a session that can be requested from a member now.
    fn next_for_members(&self, session_id: &SessionId, now: Instant) -> Option<(PeerId, BlockKey)> {
        let mut queue = self.sessions.get(session_id)?.queued.values().take(CONSIDERED_WANTS_MAX).enumerate();
        queue.find_map(|(before, key)| match self.choose(self.wants.get(key)?, before, now) {
            Choice::Ask(peer) => Some((peer, *key)),
            Choice::Wait | Choice::NoMember => None,
        })
    }

    /// Cancels all pending requests of a want that ended, except for the peer that answered it.
    pub(super) fn retract(&mut self, key: BlockKey, want: &Want, with_predictor: Option<PeerId>, now: Instant) {
        let others = || want.asked.iter().filter(|request| Some(request.peer) != with_predictor);
        for request in &want.asked {
            self.detach(request, &key);
        }
        for Request { peer, block, transfer, .. } in others() {
            let Some(peer_state) = self.peers.get_mut(peer) else { continue };
            peer_state.settle(&key, now);
            peer_state.expect_late(key);
            if !block {
                peer_state.cancel_probe(key, &want.sessions);
            }
            if let Some(transfer) = transfer {
                // Another peer has sent it.
                if with_predictor.is_some() && want.cid.codec() == codec::RAW {
                    self.planner.skip(*transfer, want.cid);
                }
                continue;
            }
            let cancel = WantEntry { cid: want.cid, ask: Ask::Cancel, send_dont_have: false };
            self.outbox.entry(*peer).or_default().push(cancel);
        }
        others().for_each(|request| self.fill(request.peer, now));
    }

    /// Evicts the least recently used session if there are too many.
    pub(super) fn evict_for(&mut self, id: &SessionId) {
        if self.sessions.len() < self.config.sessions_max || self.sessions.contains_key(id) {
            return;
        }
        let unused = self.sessions.iter().filter(|(_, session)| session.wants.is_empty());
        if let Some(id) = unused.min_by_key(|(_, session)| session.used).map(|(id, _)| *id) {
            self.remove_session(id);
        }
    }

    /// Removes an unused session.
    pub(super) fn remove_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        for member in session.members {
            if let Some(peer_state) = self.peers.get_mut(&member) {
                peer_state.sessions.remove(&id);
            }
        }
        if session.search == super::Search::Running {
            self.actions.push_back(Action::StopSearch(id));
        }
    }
}
