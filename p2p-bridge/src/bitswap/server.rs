//! The answering side of Bitswap as a state machine: whose question is looked up next, and when an answer leaves.
//!
//! Goals: peers take turns, however much one of them asks; what waits for a peer is bounded in entries and in bytes; no
//! I/O and no clock.
//!
//! Non-goals: fetching. Questions are answered from the local tiers alone, never by asking the network on a stranger's
//! behalf. A want that cannot be served now is answered (or dropped) now, not remembered until the block turns up.

use super::message::{Ask, MAX_WANTS_PER_PEER, WantEntry};
use content::{Block, Cid};
use libp2p::PeerId;
use std::collections::{HashMap, VecDeque};

/// Bytes of answers that may be on their way to one peer. Twice the Go implementation's, so as not to starve a long link.
const IN_FLIGHT_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Look-ups under way over all peers.
const LOOKUPS_MAX: usize = 32;
/// Look-ups under way for one peer.
const LOOKUPS_PER_PEER: usize = 8;
/// An answer leaves when it has this many bytes of blocks, or when nothing more is being looked up for the peer.
const ANSWER_BYTES: usize = 512 * 1024;
/// An answer leaves when it has this many presences.
const ANSWER_PRESENCES: usize = 512;

/// A question for the local tiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// Who asked.
    pub peer: PeerId,
    /// What was asked.
    pub want: WantEntry,
}

/// What the local tiers said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The block, because it was asked for.
    Block(Block),
    /// It is held.
    Has,
    /// It is not held, or may not be given.
    Nothing,
}

/// An answer that is ready to leave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Blocks to send.
    pub blocks: Vec<Block>,
    /// Presences to send.
    pub presences: Vec<(Cid, bool)>,
}

impl Answer {
    /// Bytes of blocks.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.data().len()).sum()
    }

    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.presences.is_empty()
    }

    fn is_full(&self) -> bool {
        self.bytes() >= ANSWER_BYTES || self.presences.len() >= ANSWER_PRESENCES
    }
}

#[derive(Default)]
struct Ledger {
    queue: VecDeque<WantEntry>,
    lookups: usize,
    answer: Answer,
    in_flight_bytes: usize,
    waiting_turn: bool,
}

impl Ledger {
    fn may_look_up(&self) -> bool {
        !self.queue.is_empty()
            && self.lookups < LOOKUPS_PER_PEER
            && self.in_flight_bytes + self.answer.bytes() < IN_FLIGHT_BYTES_MAX
    }

    fn is_unused(&self) -> bool {
        self.queue.is_empty() && self.lookups == 0 && self.answer.is_empty() && self.in_flight_bytes == 0
    }
}

/// The state machine.
#[derive(Default)]
pub struct Server {
    ledgers: HashMap<PeerId, Ledger>,
    /// Peers with something to look up, in the order of their turns.
    turns: VecDeque<PeerId>,
    lookups: usize,
}

impl Server {
    /// A peer changed its wantlist. Questions beyond [`MAX_WANTS_PER_PEER`] are dropped: an honest peer keeps the limit.
    pub fn asked(&mut self, peer: PeerId, wants: Vec<WantEntry>, full: bool) {
        let ledger = self.ledgers.entry(peer).or_default();
        if full {
            ledger.queue.clear();
        }
        for want in wants {
            match want.ask {
                Ask::Cancel => ledger.queue.retain(|queued| queued.cid != want.cid),
                _ if ledger.queue.len() < MAX_WANTS_PER_PEER => ledger.queue.push_back(want),
                _ => {}
            }
        }
        self.settle(peer);
    }

    /// The next question to look up, taking turns over peers.
    pub fn next_lookup(&mut self) -> Option<Lookup> {
        if self.lookups >= LOOKUPS_MAX {
            return None;
        }
        while let Some(peer) = self.turns.pop_front() {
            let Some(ledger) = self.ledgers.get_mut(&peer) else { continue };
            ledger.waiting_turn = false;
            if !ledger.may_look_up() {
                continue;
            }
            let Some(want) = ledger.queue.pop_front() else { continue };
            ledger.lookups += 1;
            self.lookups += 1;
            self.settle(peer);
            return Some(Lookup { peer, want });
        }
        None
    }

    /// A look-up ended. Returns the peer's answer once it is worth sending.
    pub fn looked_up(&mut self, lookup: Lookup, found: Found) -> Option<(PeerId, Answer)> {
        self.lookups = self.lookups.saturating_sub(1);
        let Lookup { peer, want } = lookup;
        // The peer may have left meanwhile.
        let ledger = self.ledgers.get_mut(&peer)?;
        ledger.lookups = ledger.lookups.saturating_sub(1);
        match found {
            Found::Block(block) => ledger.answer.blocks.push(block),
            Found::Has => ledger.answer.presences.push((want.cid, true)),
            Found::Nothing if want.send_dont_have => ledger.answer.presences.push((want.cid, false)),
            Found::Nothing => {}
        }
        let last = ledger.lookups == 0 && !ledger.may_look_up();
        let ready = !ledger.answer.is_empty() && (ledger.answer.is_full() || last);
        let answer = ready.then(|| std::mem::take(&mut ledger.answer));
        if let Some(answer) = &answer {
            ledger.in_flight_bytes += answer.bytes();
        }
        self.settle(peer);
        answer.map(|answer| (peer, answer))
    }

    /// Bytes of blocks were handed to the network, or could not be.
    pub fn sent(&mut self, peer: PeerId, bytes: usize) {
        if let Some(ledger) = self.ledgers.get_mut(&peer) {
            ledger.in_flight_bytes = ledger.in_flight_bytes.saturating_sub(bytes);
        }
        self.settle(peer);
    }

    /// The connection that answers were written to is gone; what was under way on it will never be reported as sent.
    pub fn answers_lost(&mut self, peer: PeerId) {
        self.sent(peer, usize::MAX);
    }

    /// A peer is gone, and its questions with it.
    pub fn disconnected(&mut self, peer: PeerId) {
        self.ledgers.remove(&peer);
    }

    /// Puts a peer in line when it has something to look up, and forgets it when it has nothing at all.
    fn settle(&mut self, peer: PeerId) {
        let Some(ledger) = self.ledgers.get_mut(&peer) else { return };
        if ledger.may_look_up() && !ledger.waiting_turn {
            ledger.waiting_turn = true;
            self.turns.push_back(peer);
        }
        if ledger.is_unused() {
            self.ledgers.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use content::{codec, hashes};

    fn block(n: usize, bytes: usize) -> Block {
        let mut data = vec![0; bytes];
        data[..8].copy_from_slice(&n.to_be_bytes());
        Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(data)).expect("block")
    }

    fn want(cid: Cid, ask: Ask) -> WantEntry {
        WantEntry { cid, ask, send_dont_have: true }
    }

    #[test]
    fn peers_take_turns_however_much_one_asks() {
        let (greedy, modest) = (PeerId::random(), PeerId::random());
        let mut server = Server::default();
        let many = (0..MAX_WANTS_PER_PEER * 2).map(|n| want(*block(n, 8).cid(), Ask::Have)).collect();
        server.asked(greedy, many, false);
        server.asked(modest, vec![want(*block(7, 8).cid(), Ask::Have)], false);
        let first: Vec<PeerId> = (0..3).filter_map(|_| server.next_lookup()).map(|lookup| lookup.peer).collect();
        assert!(first.contains(&modest));
        // The rest of the greedy peer's questions is bounded.
        let mut answered = 0;
        let mut pending: Vec<Lookup> = Vec::new();
        loop {
            while let Some(lookup) = server.next_lookup() {
                pending.push(lookup);
            }
            assert!(pending.len() <= LOOKUPS_MAX);
            let Some(lookup) = pending.pop() else { break };
            answered += 1;
            server.looked_up(lookup, Found::Nothing);
        }
        assert!(answered <= MAX_WANTS_PER_PEER);
    }

    #[test]
    fn a_peer_that_does_not_read_stops_being_read_for() {
        let peer = PeerId::random();
        let mut server = Server::default();
        let size = 256 * 1024;
        let blocks: Vec<Block> = (0..64).map(|n| block(n, size)).collect();
        server.asked(peer, blocks.iter().map(|b| want(*b.cid(), Ask::Block)).collect(), false);
        let mut out = Vec::new();
        while let Some(lookup) = server.next_lookup() {
            let block = blocks.iter().find(|b| *b.cid() == lookup.want.cid).expect("asked for").clone();
            out.extend(server.looked_up(lookup, Found::Block(block)));
        }
        let waiting: usize = out.iter().map(|(_, answer)| answer.bytes()).sum();
        assert!(waiting <= IN_FLIGHT_BYTES_MAX + LOOKUPS_PER_PEER * size, "{waiting}");
        assert!(waiting >= IN_FLIGHT_BYTES_MAX - ANSWER_BYTES, "{waiting}");
        server.sent(peer, waiting);
        assert!(server.next_lookup().is_some(), "room again");
    }

    #[test]
    fn cancels_full_lists_and_departures_drop_questions() {
        let peer = PeerId::random();
        let (a, b) = (*block(1, 8).cid(), *block(2, 8).cid());
        let mut server = Server::default();
        server.asked(peer, vec![want(a, Ask::Block), want(b, Ask::Block)], false);
        server.asked(peer, vec![want(a, Ask::Cancel)], false);
        assert_eq!(server.next_lookup().map(|lookup| lookup.want.cid), Some(b));
        server.asked(peer, vec![want(a, Ask::Block)], false);
        server.asked(peer, vec![], true);
        assert_eq!(server.next_lookup(), None);
        server.asked(peer, vec![want(a, Ask::Have)], false);
        let lookup = server.next_lookup().expect("asked");
        server.disconnected(peer);
        assert_eq!(server.looked_up(lookup, Found::Has), None);
        assert!(server.ledgers.is_empty());
    }

    #[test]
    fn an_answer_says_no_only_when_asked_to() {
        let peer = PeerId::random();
        let mut server = Server::default();
        let quiet = WantEntry { send_dont_have: false, ..want(*block(1, 8).cid(), Ask::Block) };
        let loud = want(*block(2, 8).cid(), Ask::Have);
        server.asked(peer, vec![quiet, loud.clone()], false);
        let first = server.next_lookup().expect("first");
        let second = server.next_lookup().expect("second");
        assert_eq!(server.looked_up(first, Found::Nothing), None);
        let answer = Answer { blocks: vec![], presences: vec![(loud.cid, false)] };
        assert_eq!(server.looked_up(second, Found::Nothing), Some((peer, answer)));
    }
}
