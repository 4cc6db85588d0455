//! The answering side of Bitswap as a state machine: whose question is looked up next, and when an answer leaves.
//!
//! Goals: peers take turns, and turns are paid for in bytes, so that somebody who asks for much delays nobody who asks for
//! little; what waits for a peer is bounded in entries and in bytes, and so is what waits for all of them; a long link is kept
//! full; no I/O and no clock.
//!
//! Non-goals: fetching. Questions are answered from the local tiers alone, never by asking the network on a stranger's
//! behalf. A want that cannot be served now is answered (or dropped) now, not remembered until the block turns up.
//!
//! *Allowance.* What may be under way to a peer starts at [`ALLOWANCE_MIN`] and doubles each time the peer has taken in as much
//! as it is, up to [`ALLOWANCE_MAX`]: whoever reads fast over a long link soon has a whole bandwidth-delay product under way (16 MiB
//! are 2.5 Gbit/s at 50 ms, while the Go implementation stops at 1 MiB), and whoever does not read has cost us half a megabyte.
//!
//! *Turns.* A deficit round robin (Shreedhar and Varghese, 1995) that charges afterwards, since the size of a block is known only
//! when it was read: who is in debt by more than a [`QUANTUM`] sits out as many turns as that is, unless nobody else waits.

use super::message::{Ask, MAX_WANTS_PER_PEER, WantEntry};
use content::{Block, Cid};
use libp2p::PeerId;
use std::collections::{HashMap, HashSet, VecDeque};

/// Bytes of answers that may be on their way to a peer that has not shown yet that it reads.
pub const ALLOWANCE_MIN: usize = 512 * 1024;
/// Bytes of answers that may be on their way to one peer at most.
pub const ALLOWANCE_MAX: usize = 16 * 1024 * 1024;
/// Bytes of answers that may be on their way to all peers.
pub const IN_FLIGHT_TOTAL_MAX: usize = 128 * 1024 * 1024;
/// Bytes that a peer is served in one turn.
pub const QUANTUM: usize = 256 * 1024;
/// What a look-up costs besides the bytes that it finds.
const LOOKUP_COST: usize = 1024;
/// What a look-up for a block counts for while it is under way: a block of the usual size.
const EXPECTED_BYTES: usize = 256 * 1024;
/// What a block counts for besides its bytes, and a presence in all: CIDs and what holds them.
const ENTRY_COST: usize = 256;
/// Look-ups under way over all peers.
const LOOKUPS_MAX: usize = 32;
/// Look-ups under way for one peer.
const LOOKUPS_PER_PEER: usize = 8;
/// An answer leaves when it has this many bytes of blocks, or when nothing more is being looked up for the peer. One leaf of
/// the usual size is more than a new stream lets be under way; two would keep the first waiting for yet another round trip.
const ANSWER_BYTES: usize = 256 * 1024;
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

    /// What it takes in memory until it has left, in bytes.
    pub fn cost(&self) -> usize {
        self.bytes() + (self.blocks.len() + self.presences.len()) * ENTRY_COST
    }

    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.presences.is_empty()
    }

    fn is_full(&self) -> bool {
        self.cost() >= ANSWER_BYTES || self.presences.len() >= ANSWER_PRESENCES
    }
}

/// What a peer wants, each CID once, in the order in which it was first asked for.
#[derive(Default)]
struct Queue {
    order: VecDeque<Cid>,
    wants: HashMap<Cid, WantEntry>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.wants.is_empty()
    }

    /// Adds a want, or replaces what was asked about its CID before; `false` if there is no room.
    fn push(&mut self, want: WantEntry) -> bool {
        let known = self.wants.contains_key(&want.cid);
        if !known && self.wants.len() >= MAX_WANTS_PER_PEER {
            return false;
        }
        if !known {
            self.order.push_back(want.cid);
            self.forget_cancelled();
        }
        self.wants.insert(want.cid, want);
        true
    }

    fn cancel(&mut self, cid: &Cid) {
        self.wants.remove(cid);
    }

    fn pop(&mut self) -> Option<WantEntry> {
        while let Some(cid) = self.order.pop_front() {
            if let Some(want) = self.wants.remove(&cid) {
                return Some(want);
            }
        }
        None
    }

    /// Cancelled wants stay in the order until their turn comes, unless there are too many of them.
    fn forget_cancelled(&mut self) {
        if self.order.len() > 2 * MAX_WANTS_PER_PEER {
            let mut seen = HashSet::new();
            self.order.retain(|cid| self.wants.contains_key(cid) && seen.insert(*cid));
        }
    }
}

struct Ledger {
    queue: Queue,
    lookups: usize,
    answer: Answer,
    in_flight_bytes: usize,
    /// Bytes that may be under way.
    allowance: usize,
    /// Bytes taken in since the allowance last grew.
    taken_in: usize,
    /// Bytes served in advance of its turns.
    debt: usize,
    waiting_turn: bool,
    throttled: bool,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            queue: Queue::default(),
            lookups: 0,
            answer: Answer::default(),
            in_flight_bytes: 0,
            allowance: ALLOWANCE_MIN,
            taken_in: 0,
            debt: 0,
            waiting_turn: false,
            throttled: false,
        }
    }
}

impl Ledger {
    fn may_look_up(&self) -> bool {
        let lookups_max = if self.throttled { 1 } else { LOOKUPS_PER_PEER };
        !self.queue.is_empty()
            && self.lookups < lookups_max
            && self.in_flight_bytes + self.answer.cost() + self.lookups * EXPECTED_BYTES < self.allowance
    }

    /// An allowance that was earned is worth remembering as long as the peer stays.
    fn is_unused(&self) -> bool {
        let idle = self.queue.is_empty() && self.lookups == 0 && self.answer.is_empty() && self.in_flight_bytes == 0;
        idle && !self.throttled && self.allowance == ALLOWANCE_MIN
    }

    fn took_in(&mut self, bytes: usize) {
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(bytes);
        self.taken_in = self.taken_in.saturating_add(bytes);
        if self.taken_in >= self.allowance {
            self.taken_in = 0;
            self.allowance = (self.allowance * 2).min(ALLOWANCE_MAX);
        }
    }
}

/// The state machine.
#[derive(Default)]
pub struct Server {
    ledgers: HashMap<PeerId, Ledger>,
    /// Peers with something to look up, in the order of their turns.
    turns: VecDeque<PeerId>,
    lookups: usize,
    in_flight_bytes: usize,
}

impl Server {
    /// A peer changed its wantlist. Returns how many questions were dropped, because they were more than
    /// [`MAX_WANTS_PER_PEER`]: an honest peer keeps that limit.
    pub fn asked(&mut self, peer: PeerId, wants: Vec<WantEntry>, full: bool) -> usize {
        let ledger = self.ledgers.entry(peer).or_default();
        if full {
            ledger.queue = Queue::default();
        }
        let mut dropped = 0;
        for want in wants {
            if want.ask == Ask::Cancel {
                ledger.queue.cancel(&want.cid);
                ledger.answer.blocks.retain(|block| *block.cid() != want.cid);
            } else if !ledger.queue.push(want) {
                dropped += 1;
            }
        }
        self.settle(peer);
        dropped
    }

    /// The next question to look up, taking turns over peers.
    pub fn next_lookup(&mut self) -> Option<Lookup> {
        if self.lookups >= LOOKUPS_MAX || self.in_flight_bytes >= IN_FLIGHT_TOTAL_MAX {
            return None;
        }
        while let Some(peer) = self.turns.pop_front() {
            let Some(ledger) = self.ledgers.get_mut(&peer) else { continue };
            ledger.waiting_turn = false;
            if !ledger.may_look_up() {
                continue;
            }
            if ledger.debt > QUANTUM && !self.turns.is_empty() {
                ledger.debt -= QUANTUM;
                self.settle(peer);
                continue;
            }
            let Some(want) = ledger.queue.pop() else { continue };
            // Whoever is alone runs up debts with nobody; a later peer is owed no more than a turn for them.
            let debt = if self.turns.is_empty() { ledger.debt.min(QUANTUM) } else { ledger.debt };
            ledger.debt = debt.saturating_sub(QUANTUM);
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
        ledger.debt += LOOKUP_COST;
        match found {
            Found::Block(block) => {
                ledger.debt += block.data().len();
                ledger.answer.blocks.push(block);
            }
            Found::Has => ledger.answer.presences.push((want.cid, true)),
            Found::Nothing if want.send_dont_have => ledger.answer.presences.push((want.cid, false)),
            Found::Nothing => {}
        }
        let last = ledger.lookups == 0 && !ledger.may_look_up();
        let ready = !ledger.answer.is_empty() && (ledger.answer.is_full() || last);
        let answer = ready.then(|| std::mem::take(&mut ledger.answer));
        if let Some(answer) = &answer {
            ledger.in_flight_bytes += answer.cost();
            self.in_flight_bytes += answer.cost();
        }
        self.settle(peer);
        answer.map(|answer| (peer, answer))
    }

    /// An answer of that [cost](Answer::cost) was handed to the network.
    pub fn sent(&mut self, peer: PeerId, cost: usize) {
        if let Some(ledger) = self.ledgers.get_mut(&peer) {
            let cost = cost.min(ledger.in_flight_bytes);
            self.in_flight_bytes -= cost;
            ledger.took_in(cost);
        }
        self.settle(peer);
    }

    /// An answer of that cost was given up, because the peer does not read. It has to prove itself anew.
    pub fn dropped(&mut self, peer: PeerId, cost: usize) {
        if let Some(ledger) = self.ledgers.get_mut(&peer) {
            let cost = cost.min(ledger.in_flight_bytes);
            self.in_flight_bytes -= cost;
            ledger.in_flight_bytes -= cost;
            ledger.allowance = ALLOWANCE_MIN;
            ledger.taken_in = 0;
            ledger.queue = Queue::default();
        }
        self.settle(peer);
    }

    /// A peer that is given nothing asks. It hears that nothing is here, as if it were so, within the same bounds as others.
    pub fn refused(&mut self, peer: PeerId, wants: Vec<WantEntry>) -> Option<Answer> {
        let ledger = self.ledgers.entry(peer).or_default();
        let absent = wants.into_iter().filter(|want| want.ask != Ask::Cancel && want.send_dont_have);
        let room = ALLOWANCE_MIN.saturating_sub(ledger.in_flight_bytes) / ENTRY_COST;
        let presences: Vec<_> = absent.take(room.min(MAX_WANTS_PER_PEER)).map(|want| (want.cid, false)).collect();
        let answer = Answer { presences, ..Answer::default() };
        ledger.in_flight_bytes += answer.cost();
        self.in_flight_bytes += answer.cost();
        self.settle(peer);
        (!answer.is_empty()).then_some(answer)
    }

    /// The connection that answers were written to is gone; what was under way on it will never be reported as sent.
    pub fn answers_lost(&mut self, peer: PeerId) {
        if let Some(ledger) = self.ledgers.get_mut(&peer) {
            self.in_flight_bytes -= std::mem::take(&mut ledger.in_flight_bytes);
            ledger.allowance = ALLOWANCE_MIN;
            ledger.taken_in = 0;
        }
        self.settle(peer);
    }

    /// A peer is gone, and its questions with it.
    pub fn disconnected(&mut self, peer: PeerId) {
        if let Some(ledger) = self.ledgers.remove(&peer) {
            self.in_flight_bytes -= ledger.in_flight_bytes;
        }
    }

    /// Whether a peer is served one look-up at a time only.
    pub fn throttle(&mut self, peer: PeerId, throttled: bool) {
        if throttled || self.ledgers.contains_key(&peer) {
            self.ledgers.entry(peer).or_default().throttled = throttled;
            self.settle(peer);
        }
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

    /// Everything that can leave now, where every question finds a block of that peer's size.
    fn serve(server: &mut Server, found: impl Fn(&PeerId) -> Block) -> Vec<(PeerId, Answer)> {
        let mut out = Vec::new();
        while let Some(lookup) = server.next_lookup() {
            let block = found(&lookup.peer);
            out.extend(server.looked_up(lookup, Found::Block(block)));
        }
        out
    }

    fn wants(cids: std::ops::Range<usize>) -> Vec<WantEntry> {
        cids.map(|n| want(*block(n, 8).cid(), Ask::Block)).collect()
    }

    fn bytes(answers: &[(PeerId, Answer)]) -> usize {
        answers.iter().map(|(_, answer)| answer.bytes()).sum()
    }

    #[test]
    fn a_peer_that_does_not_read_costs_little_and_one_that_does_soon_has_a_long_link_full() {
        let peer = PeerId::random();
        let mut server = Server::default();
        let block = block(0, 256 * 1024);
        server.asked(peer, wants(0..1_000), false);
        let slack = LOOKUPS_PER_PEER * block.data().len();
        let mut allowance = ALLOWANCE_MIN;
        for _ in 0..8 {
            let waiting = bytes(&serve(&mut server, |_| block.clone()));
            assert!((allowance..=allowance + slack).contains(&waiting), "{waiting} of {allowance}");
            assert_eq!(serve(&mut server, |_| block.clone()), [], "nothing more until it reads");
            server.sent(peer, waiting);
            server.asked(peer, wants(0..1_000), false);
            allowance = (allowance * 2).min(ALLOWANCE_MAX);
        }
        assert_eq!(allowance, ALLOWANCE_MAX);
        server.answers_lost(peer);
        assert_eq!(server.ledgers[&peer].allowance, ALLOWANCE_MIN, "another connection proves itself anew");
        assert_eq!(server.in_flight_bytes, 0);
    }

    #[test]
    fn all_peers_together_have_a_bound() {
        let mut server = Server::default();
        let block = block(0, 1024 * 1024);
        let peers: Vec<PeerId> = (0..1_000).map(|_| PeerId::random()).collect();
        for peer in &peers {
            server.asked(*peer, wants(0..8), false);
        }
        let answers = serve(&mut server, |_| block.clone());
        let most = IN_FLIGHT_TOTAL_MAX + LOOKUPS_MAX * block.data().len();
        assert!((IN_FLIGHT_TOTAL_MAX..=most).contains(&bytes(&answers)), "{}", bytes(&answers));
        for (peer, answer) in answers {
            server.sent(peer, answer.bytes());
        }
        assert!(server.next_lookup().is_some(), "room again");
        for peer in peers {
            server.disconnected(peer);
        }
        assert_eq!(server.in_flight_bytes, 0);
    }

    #[test]
    fn turns_are_paid_in_bytes() {
        let (bulky, modest) = (PeerId::random(), PeerId::random());
        let mut server = Server::default();
        let (large, small) = (block(0, 1024 * 1024), block(1, 64 * 1024));
        server.asked(bulky, wants(0..256), false);
        server.asked(modest, wants(0..256), false);
        let mut served: HashMap<PeerId, usize> = HashMap::new();
        while server.ledgers.get(&modest).is_some_and(|ledger| !ledger.queue.is_empty()) {
            let answers = serve(&mut server, |peer| if *peer == bulky { large.clone() } else { small.clone() });
            for (peer, answer) in answers {
                *served.entry(peer).or_default() += answer.bytes();
                server.sent(peer, answer.bytes());
            }
        }
        let (bulky, modest) = (served[&bulky], served[&modest]);
        // Look-ups that are under way when a debt arises come on top.
        assert!(bulky < 3 * modest, "{bulky} against {modest}");
    }

    #[test]
    fn a_cid_is_looked_up_once_however_often_it_is_asked_for() {
        let peer = PeerId::random();
        let mut server = Server::default();
        let block = block(1, 8);
        for ask in [Ask::Have, Ask::Block, Ask::Block] {
            assert_eq!(server.asked(peer, vec![want(*block.cid(), ask)], false), 0);
        }
        assert_eq!(server.next_lookup().map(|lookup| lookup.want.ask), Some(Ask::Block));
        assert_eq!(server.next_lookup(), None);
        // Wants that come and go leave nothing behind.
        for n in 0..10 * MAX_WANTS_PER_PEER {
            let cid = *super::tests::block(n, 8).cid();
            server.asked(peer, vec![want(cid, Ask::Have), want(cid, Ask::Cancel)], false);
        }
        assert!(server.ledgers[&peer].queue.order.len() <= 2 * MAX_WANTS_PER_PEER + 1);
        assert_eq!(server.next_lookup(), None);
    }

    #[test]
    fn a_flood_is_counted_and_a_throttled_peer_has_one_question_at_a_time() {
        let peer = PeerId::random();
        let mut server = Server::default();
        let many: Vec<WantEntry> = (0..MAX_WANTS_PER_PEER + 10).map(|n| want(*block(n, 8).cid(), Ask::Have)).collect();
        assert_eq!(server.asked(peer, many, false), 10);
        server.throttle(peer, true);
        let first = server.next_lookup().expect("one");
        assert_eq!(server.next_lookup(), None);
        server.looked_up(first, Found::Has);
        assert!(server.next_lookup().is_some());
        server.throttle(peer, false);
        assert!(server.next_lookup().is_some());
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
        // What was found but has not left is dropped with the want.
        server.asked(peer, vec![want(a, Ask::Block), want(b, Ask::Block)], false);
        let first = server.next_lookup().expect("first");
        let second = server.next_lookup().expect("second");
        assert_eq!(server.looked_up(first, Found::Block(block(1, 8))), None);
        server.asked(peer, vec![want(a, Ask::Cancel)], false);
        let (_, answer) = server.looked_up(second, Found::Block(block(2, 8))).expect("answer");
        assert_eq!(answer.blocks.iter().map(|block| *block.cid()).collect::<Vec<_>>(), [b]);
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
