//! Whom to ask: the rules by which wants find peers.

use super::state::{Question, Session, Want};
use super::{Action, Client, Use};
use crate::bitswap::message::{Ask, WantEntry};
use crate::wants::SessionId;
use content::BlockKey;
use libp2p::PeerId;
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// Members of one session; more add duplicates, not speed.
const MEMBERS_MAX: usize = 16;
/// Wants of a session without members that are asked about at once.
const PROBED_WANTS_MAX: usize = 4;
/// Strangers that are asked for one search.
const STRANGERS_MAX: usize = 64;
/// How long others are spared while somebody owes a session its first block.
const PROOF_TIME: Duration = Duration::from_secs(1);
/// Wants that are looked at, oldest first, when a peer can take one more.
const LOOKED_AT_MAX: usize = 256;
/// What a silent peer's delivery is reckoned to be late by.
const SILENCE_PENALTY: Duration = Duration::from_secs(60);

/// Whom to ask for a block.
enum Choice {
    /// This one.
    Ask(PeerId),
    /// One that may owe no more for now.
    Wait,
    /// No member may have it.
    Nobody,
}

impl Client {
    /// Asks the best peer for a block that nobody owes us.
    pub(super) fn find_debtor(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        if want.is_owed() {
            return;
        }
        let line = |id| self.sessions.get(id).map_or(0, |s| s.unasked.range(..want.order).take(LOOKED_AT_MAX).count());
        let before = want.sessions.iter().map(line).max().unwrap_or(0);
        match self.choose(want, before, now) {
            Choice::Ask(peer) => self.ask(peer, key, true, now),
            Choice::Wait => {}
            Choice::Nobody => {
                self.orphaned(key, now);
                self.probe(key, now);
            }
        }
    }

    /// It turned out that no member has a block. If that is news, it is worth a search.
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

    /// The peer that proved to hold this want's DAG and will be done soonest, what it owes already included. That many
    /// wants are in line before this one.
    fn choose(&self, want: &Want, before: usize, now: Instant) -> Choice {
        let bytes = self.expected_bytes(want);
        let line_bytes = bytes.saturating_mul(before);
        let best = self
            .proven(want)
            .map(|(peer, known)| {
                let penalty = if known.is_silent(now) { SILENCE_PENALTY } else { Duration::ZERO };
                (known.cost(bytes, line_bytes).saturating_add(penalty), peer, known)
            })
            .min_by_key(|(cost, ..)| *cost);
        match best {
            Some((_, peer, known)) if known.has_room() => Choice::Ask(peer),
            Some(_) => Choice::Wait,
            None => Choice::Nobody,
        }
    }

    /// Somebody else who could deliver a block soon: for one that its debtors may not deliver. If it is urgent, that may
    /// be somebody who owes as much as is good for its link; else whoever is behind in the line would go first.
    pub(super) fn second_choice(&self, want: &Want, urgent: bool, now: Instant) -> Option<PeerId> {
        let bytes = self.expected_bytes(want);
        self.proven(want)
            .filter(|(_, known)| known.has_room() || urgent && known.has_slot())
            .filter(|(_, known)| !known.is_silent(now))
            .min_by_key(|(_, known)| known.cost(bytes, 0))
            .map(|(peer, _)| peer)
    }

    /// Peers that proved to hold a want's DAG, and did not deny or owe the block.
    fn proven<'a>(&'a self, want: &'a Want) -> impl Iterator<Item = (PeerId, &'a super::Peer)> {
        let members = want.sessions.iter().filter_map(|id| self.sessions.get(id)).flat_map(|session| &session.members);
        want.has
            .iter()
            .chain(members)
            .filter(|peer| !want.denied.contains(peer) && !want.is_owed_by(peer))
            .filter_map(|peer| Some((*peer, self.peers.get(peer)?)))
    }

    fn expected_bytes(&self, want: &Want) -> usize {
        let sessions = want.sessions.iter().filter_map(|id| self.sessions.get(id));
        sessions.map(Session::block_bytes).max().unwrap_or(0)
    }

    /// Asks peers that proved nothing yet: one for the block, some others whether they have it.
    pub(super) fn probe(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        if !want.sessions.iter().any(|id| self.may_probe(id, &key, now)) {
            return;
        }
        let sessions: Vec<&Session> = want.sessions.iter().filter_map(|id| self.sessions.get(id)).collect();
        let named = |peer: &PeerId| sessions.iter().any(|session| session.named.contains(peer));
        let strange = |peer: &PeerId| {
            let room =
                |session: &&Session| session.strangers.len() < STRANGERS_MAX && !session.strangers.contains(peer);
            !want.is_asked(peer) && sessions.iter().any(room)
        };
        let mut candidates: Vec<(PeerId, bool, Option<Instant>)> = self
            .peers
            .iter()
            .filter(|(peer, known)| known.has_slot() && !want.denied.contains(peer))
            .map(|(peer, known)| (*peer, known.favoured || named(peer), known.useful))
            .filter(|(peer, preferred, _)| *preferred || strange(peer))
            .collect();
        candidates.sort_by_key(|(_, preferred, useful)| Reverse((*preferred, *useful)));
        candidates.truncate(self.config.probes_max);
        let mut owed = want.is_owed();
        let asked: Vec<PeerId> = want.asked.iter().map(|question| question.peer).collect();
        for (peer, preferred, useful) in candidates {
            // Whoever served others lately is likely to serve this; of strangers only a presence is asked.
            let block = !owed && (preferred || useful.is_some());
            owed |= block;
            // One that was asked whether it has the block may be asked for it.
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
            if !preferred && session.strangers.len() < STRANGERS_MAX {
                session.strangers.insert(peer);
            }
        }
    }

    /// Whether strangers may be asked about one more want of a session: only few at a time, and not yet if somebody may be
    /// about to prove that he has it all.
    fn may_probe(&self, session_id: &SessionId, key: &BlockKey, now: Instant) -> bool {
        let Some(session) = self.sessions.get(session_id) else { return false };
        let owes = session.unasked.len() < session.wants.len();
        let recent = now.saturating_duration_since(session.progress) < PROOF_TIME;
        if session.members.is_empty() && owes && recent && !self.wants.get(key).is_some_and(Want::is_owed) {
            return false;
        }
        let open = |key: &&BlockKey| self.wants.get(*key).is_some_and(|want| !want.asked.is_empty());
        session.probed.contains(key) || session.probed.iter().filter(open).count() < PROBED_WANTS_MAX
    }

    /// Offers a session's wants to a provider that has just become reachable.
    pub(super) fn offer(&mut self, session_id: SessionId, peer: PeerId, now: Instant) {
        let Some(session) = self.sessions.get(&session_id) else { return };
        if session.members.contains(&peer) {
            return;
        }
        // A few questions are enough to learn whether it belongs to the session; it then gets its share of the rest. One
        // is enough if others do.
        let count = if session.members.is_empty() { PROBED_WANTS_MAX } else { 1 };
        let unasked = session.unasked.values();
        // The newest of those that are owed: an old one comes before the answer, and says nothing.
        let owed = session
            .wants
            .keys()
            .filter_map(|key| Some((self.wants.get(key).filter(|want| want.is_owed())?.order, key)));
        let mut others: Vec<(u64, &BlockKey)> = owed.collect();
        others.sort_unstable_by_key(|(order, _)| Reverse(*order));
        let keys: Vec<BlockKey> = unasked
            .chain(others.into_iter().map(|(_, key)| key))
            .filter(|key| {
                let want = self.wants.get(key);
                want.is_some_and(|want| !want.is_asked(&peer) && !want.denied.contains(&peer))
            })
            .copied()
            .take(count)
            .collect();
        for key in keys {
            let block = self.wants.get(&key).is_some_and(|want| !want.is_owed());
            self.ask(peer, key, block, now);
        }
    }

    /// Asks a peer, which need not have been asked anything about the block before.
    pub(super) fn ask(&mut self, peer: PeerId, key: BlockKey, block: bool, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        let bytes = if block { self.expected_bytes(want) } else { 0 };
        let (Some(known), Some(want)) = (self.peers.get_mut(&peer), self.wants.get_mut(&key)) else { return };
        if !known.has_slot() {
            return;
        }
        want.forget(&peer);
        want.orphaned &= !block;
        let (queued_bytes, idle) = known.ask(key, block.then_some(bytes), now);
        want.asked.push(Question { peer, block, at: now, queued_bytes, idle });
        for id in &want.sessions {
            if let Some(session) = self.sessions.get_mut(id) {
                session.asked.insert(peer);
                if block {
                    session.unasked.remove(&want.order);
                }
            }
        }
        let ask = if block { Ask::Block } else { Ask::Have };
        self.outbox.entry(peer).or_default().push(WantEntry { cid: want.cid, ask, send_dont_have: true });
    }

    /// A peer does not have, or does not give, a block: the next one is asked.
    pub(super) fn deny(&mut self, key: BlockKey, peer: PeerId, now: Instant) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.settle(&key, now);
            // Go peers remember the question, and send the block when they come to have it. What was under way when the
            // peer failed is late too, and no lie.
            known.given_up(key);
        }
        let Some(want) = self.wants.get_mut(&key) else { return };
        want.forget(&peer);
        want.denied.insert(peer);
        if !want.is_owed() {
            for id in &want.sessions {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.unasked.insert(want.order, key);
                }
            }
        }
        self.find_debtor(key, now);
    }

    /// The same for many blocks, in the order in which they were wanted.
    pub(super) fn deny_all(&mut self, mut keys: Vec<BlockKey>, peer: PeerId, now: Instant) {
        keys.sort_by_key(|key| self.wants.get(key).map(|want| want.order));
        for key in keys {
            self.deny(key, peer, now);
        }
    }

    /// A peer sent bytes that nobody asked it for. Whatever it owes is suspect from now on.
    pub(super) fn lied(&mut self, peer: PeerId, now: Instant) -> Use {
        let owed: Vec<BlockKey> =
            self.peers.get(&peer).map(|known| known.owed().copied().collect()).unwrap_or_default();
        for key in owed {
            if let Some(want) = self.wants.get_mut(&key) {
                want.corrupt = true;
            }
        }
        self.peer_failed(peer, now);
        Use::Lie
    }

    /// A peer proved to hold a session's DAG: it gave a block of it, or said that it has one. When there are too many, who
    /// only says so makes room for who gives: many hold a DAG's root and nothing else. What the peer is to be asked for is
    /// left to [`Client::fill`].
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
                let idle = session.members.iter().find(|member| !session.givers.contains(member)).copied();
                let Some(idle) = idle.filter(|_| gave) else { return };
                session.left(&idle);
                if let Some(idle) = self.peers.get_mut(&idle) {
                    idle.sessions.remove(&session_id);
                }
            }
            session.members.push(peer);
            if let Some(known) = self.peers.get_mut(&peer) {
                known.sessions.insert(session_id);
            }
            self.actions.push_back(Action::Joined(session_id, peer));
        }
        if gave {
            session.givers.insert(peer);
        }
    }

    /// Gives a member that may owe more its share of what waits, one want of each of its sessions in turn.
    pub(super) fn fill(&mut self, peer: PeerId, now: Instant) {
        let Some(known) = self.peers.get(&peer) else { return };
        let waits = |id: &&SessionId| self.sessions.get(*id).is_some_and(|session| !session.unasked.is_empty());
        let mut sessions: Vec<SessionId> = known.sessions.iter().filter(waits).copied().collect();
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

    /// The oldest want of a session that a member can be asked for now.
    fn next_for_members(&self, session_id: &SessionId, now: Instant) -> Option<(PeerId, BlockKey)> {
        let mut line = self.sessions.get(session_id)?.unasked.values().take(LOOKED_AT_MAX).enumerate();
        line.find_map(|(before, key)| match self.choose(self.wants.get(key)?, before, now) {
            Choice::Ask(peer) => Some((peer, *key)),
            Choice::Wait | Choice::Nobody => None,
        })
    }

    /// Takes back every open question about a want that ended, except of the peer that answered it.
    pub(super) fn retract(&mut self, key: BlockKey, want: &Want, answered_by: Option<PeerId>, now: Instant) {
        let others = || want.asked.iter().filter(|question| Some(question.peer) != answered_by);
        for Question { peer, block, .. } in others() {
            let Some(known) = self.peers.get_mut(peer) else { continue };
            known.settle(&key, now);
            known.given_up(key);
            if !block {
                known.leave_unheard(key, &want.sessions);
            }
            let cancel = WantEntry { cid: want.cid, ask: Ask::Cancel, send_dont_have: false };
            self.outbox.entry(*peer).or_default().push(cancel);
        }
        others().for_each(|question| self.fill(question.peer, now));
    }

    /// Forgets the longest unused session when there is no room for another.
    pub(super) fn make_room_for(&mut self, id: &SessionId) {
        if self.sessions.len() < self.config.sessions_max || self.sessions.contains_key(id) {
            return;
        }
        let unused = self.sessions.iter().filter(|(_, session)| session.wants.is_empty());
        if let Some(id) = unused.min_by_key(|(_, session)| session.used).map(|(id, _)| *id) {
            self.forget_session(id);
        }
    }

    /// Forgets a session that nobody uses.
    pub(super) fn forget_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        for member in session.members {
            if let Some(known) = self.peers.get_mut(&member) {
                known.sessions.remove(&id);
            }
        }
        if session.search == super::Search::Running {
            self.actions.push_back(Action::StopSearch(id));
        }
    }
}
