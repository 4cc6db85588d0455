//! The Bitswap server as a state machine: which peer's want is looked up next, and when a response is sent.
//!
//! Goals: fair shares in bytes, so that a peer with many wants does not delay others; bounds for the entries and bytes
//! that are queued for one peer and for all; full use of long links; no I/O and no clock.
//!
//! Non-goals: fetching. Wants are answered from the local tiers only, never by fetching on behalf of an untrusted peer.
//! A want that cannot be served is answered (or dropped) immediately, and not kept until the block is stored.
//!
//! *Allowance.* The bytes in flight to a peer are limited to [`ALLOWANCE_MIN`] at first. The limit doubles each time
//! the peer has received as much as the limit, up to [`ALLOWANCE_MAX`]: a fast reader over a long link soon has a full
//! bandwidth-delay product in flight (16 MiB are 2.5 Gbit/s at 50 ms; the Go implementation stops at 1 MiB), and a peer
//! that does not read costs half a megabyte.
//!
//! *Fairness.* Deficit round robin (Shreedhar and Varghese, 1995), charged afterwards, since the size of a block is
//! only known when it was read: a peer whose debt exceeds a [`QUANTUM`] skips turns until it is paid, unless no other
//! peer waits.

use super::message::{Ask, MAX_WANTS_PER_PEER, WantEntry};
use content::{Block, Cid};
use hashlink::LinkedHashMap;
use libp2p::PeerId;
use std::collections::{HashMap, VecDeque};
use std::hash::RandomState;

/// The initial limit of bytes in flight to a peer, until it has proved to read.
pub const ALLOWANCE_MIN: usize = 512 * 1024;
/// The maximum limit of bytes in flight to a peer.
pub const ALLOWANCE_MAX: usize = 16 * 1024 * 1024;
/// The maximum of bytes in flight to all peers.
pub const IN_FLIGHT_TOTAL_MAX: usize = 128 * 1024 * 1024;
/// The bytes that a peer is served per turn.
pub const QUANTUM: usize = 256 * 1024;
/// The cost of a lookup, in addition to the bytes found.
const LOOKUP_COST: usize = 1024;
/// The assumed size of a block while it is looked up: a block of the usual size.
const EXPECTED_BYTES: usize = 256 * 1024;
/// The overhead of a block, and the cost of a presence: CIDs and their containers.
const ENTRY_COST: usize = 256;
/// The maximum number of concurrent lookups over all peers.
const LOOKUPS_MAX: usize = 32;
/// The maximum number of concurrent lookups for one peer.
const LOOKUPS_PER_PEER: usize = 8;
/// A response is sent when it has this many bytes of blocks, or when no more lookups are pending for the peer. One leaf
/// of the usual size exceeds the initial window of a stream; with two, the first would wait for another round trip.
const ANSWER_BYTES: usize = 256 * 1024;
/// A response is sent when it has this many presences.
const ANSWER_PRESENCES: usize = 512;

/// A lookup in the local tiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The peer that asked.
    pub peer: PeerId,
    /// The wantlist entry.
    pub want: WantEntry,
}

/// The result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupResult {
    /// The block, for a want-block.
    Block(Block),
    /// The block is stored, for a want-have.
    Has,
    /// The block is not stored, or may not be served.
    Nothing,
}

/// A response that is ready to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// Blocks to send.
    pub blocks: Vec<Block>,
    /// Presences to send.
    pub presences: Vec<(Cid, bool)>,
}

impl Answer {
    /// Bytes of block data.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| block.data().len()).sum()
    }

    /// Memory until it is sent, in bytes.
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

/// A peer's wantlist, each CID once, in order of arrival. The hashes are keyed, so that it cannot construct collisions.
#[derive(Default)]
struct Queue(LinkedHashMap<Cid, WantEntry, RandomState>);

impl Queue {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a want, or replaces the one for its CID; `false` if the queue is full.
    fn push(&mut self, want: WantEntry) -> bool {
        let fits = self.0.len() < MAX_WANTS_PER_PEER || self.0.contains_key(&want.cid);
        if fits {
            self.0.replace(want.cid, want);
        }
        fits
    }

    fn cancel(&mut self, cid: &Cid) {
        self.0.remove(cid);
    }

    fn pop(&mut self) -> Option<WantEntry> {
        self.0.pop_front().map(|(_, want)| want)
    }
}

struct Ledger {
    queue: Queue,
    lookups: usize,
    answer: Answer,
    in_flight_bytes: usize,
    /// The limit of bytes in flight.
    allowance: usize,
    /// Bytes sent since the limit last grew.
    sent_bytes: usize,
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
            sent_bytes: 0,
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

    /// A raised limit is kept while the peer is connected.
    fn is_unused(&self) -> bool {
        let idle = self.queue.is_empty() && self.lookups == 0 && self.answer.is_empty() && self.in_flight_bytes == 0;
        idle && !self.throttled && self.allowance == ALLOWANCE_MIN
    }

    fn on_sent(&mut self, bytes: usize) {
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(bytes);
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
        if self.sent_bytes >= self.allowance {
            self.sent_bytes = 0;
            self.allowance = (self.allowance * 2).min(ALLOWANCE_MAX);
        }
    }
}

/// The state machine.
#[derive(Default)]
pub struct Server {
    ledgers: HashMap<PeerId, Ledger>,
    /// Peers with pending lookups, in the order of their turns.
    turns: VecDeque<PeerId>,
    lookups: usize,
    in_flight_bytes: usize,
}

impl Server {
    /// Updates a peer's wantlist. Returns the number of dropped wants, which exceeded [`MAX_WANTS_PER_PEER`];
    /// conforming peers keep that limit.
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

    /// The next lookup, in round robin over peers.
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
            // Debts of a peer that is alone are limited, so that a peer that arrives later is not preferred for more
            // than a turn.
            let debt = if self.turns.is_empty() { ledger.debt.min(QUANTUM) } else { ledger.debt };
            ledger.debt = debt.saturating_sub(QUANTUM);
            ledger.lookups += 1;
            self.lookups += 1;
            self.settle(peer);
            return Some(Lookup { peer, want });
        }
        None
    }

    /// Completes a lookup. Returns the peer's response once it should be sent.
    pub fn looked_up(&mut self, lookup: Lookup, found: LookupResult) -> Option<(PeerId, Answer)> {
        self.lookups = self.lookups.saturating_sub(1);
        let Lookup { peer, want } = lookup;
        // The peer may have disconnected.
        let ledger = self.ledgers.get_mut(&peer)?;
        ledger.lookups = ledger.lookups.saturating_sub(1);
        ledger.debt += LOOKUP_COST;
        match found {
            LookupResult::Block(block) => {
                ledger.debt += block.data().len();
                ledger.answer.blocks.push(block);
            }
            LookupResult::Has => ledger.answer.presences.push((want.cid, true)),
            LookupResult::Nothing if want.send_dont_have => ledger.answer.presences.push((want.cid, false)),
            LookupResult::Nothing => {}
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

    /// A response of that [cost](Answer::cost) was sent.
    pub fn sent(&mut self, peer: PeerId, cost: usize) {
        if let Some(ledger) = self.ledgers.get_mut(&peer) {
            let cost = cost.min(ledger.in_flight_bytes);
            self.in_flight_bytes -= cost;
            ledger.on_sent(cost);
        }
        self.settle(peer);
    }

    /// A response of that cost was dropped, because the peer does not read. Its limit is reset.
    pub fn dropped(&mut self, peer: PeerId, cost: usize) {
        if let Some(ledger) = self.ledgers.get_mut(&peer) {
            let cost = cost.min(ledger.in_flight_bytes);
            self.in_flight_bytes -= cost;
            ledger.in_flight_bytes -= cost;
            ledger.allowance = ALLOWANCE_MIN;
            ledger.sent_bytes = 0;
            ledger.queue = Queue::default();
        }
        self.settle(peer);
    }

    /// Answers a peer that is not served: DONT_HAVE for its wants, within the usual limits.
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

    /// A connection was closed, and the responses on it will not be reported as sent.
    pub fn answers_lost(&mut self, peer: PeerId) {
        if let Some(ledger) = self.ledgers.get_mut(&peer) {
            self.in_flight_bytes -= std::mem::take(&mut ledger.in_flight_bytes);
            ledger.allowance = ALLOWANCE_MIN;
            ledger.sent_bytes = 0;
        }
        self.settle(peer);
    }

    /// Removes a disconnected peer.
    pub fn disconnected(&mut self, peer: PeerId) {
        if let Some(ledger) = self.ledgers.remove(&peer) {
            self.in_flight_bytes -= ledger.in_flight_bytes;
        }
    }

    /// Limits a peer to one lookup at a time, or lifts the limit.
    pub fn throttle(&mut self, peer: PeerId, throttled: bool) {
        if throttled || self.ledgers.contains_key(&peer) {
            self.ledgers.entry(peer).or_default().throttled = throttled;
            self.settle(peer);
        }
    }

    /// Schedules a peer that has pending lookups, and removes an idle one.
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
    fn peers_take_turns_whatever_the_length_of_their_wantlists() {
        let (greedy, modest) = (PeerId::random(), PeerId::random());
        let mut server = Server::default();
        let many = (0..MAX_WANTS_PER_PEER * 2).map(|n| want(*block(n, 8).cid(), Ask::Have)).collect();
        server.asked(greedy, many, false);
        server.asked(modest, vec![want(*block(7, 8).cid(), Ask::Have)], false);
        let first: Vec<PeerId> = (0..3).filter_map(|_| server.next_lookup()).map(|lookup| lookup.peer).collect();
        assert!(first.contains(&modest));
        // The rest of the greedy peer's wants is bounded.
        let mut answered = 0;
        let mut pending: Vec<Lookup> = Vec::new();
        loop {
            while let Some(lookup) = server.next_lookup() {
                pending.push(lookup);
            }
            assert!(pending.len() <= LOOKUPS_MAX);
            let Some(lookup) = pending.pop() else { break };
            answered += 1;
            server.looked_up(lookup, LookupResult::Nothing);
        }
        assert!(answered <= MAX_WANTS_PER_PEER);
    }

    /// All responses that can be sent now, if each lookup finds a block of that peer's size.
    fn serve(server: &mut Server, found: impl Fn(&PeerId) -> Block) -> Vec<(PeerId, Answer)> {
        let mut out = Vec::new();
        while let Some(lookup) = server.next_lookup() {
            let block = found(&lookup.peer);
            out.extend(server.looked_up(lookup, LookupResult::Block(block)));
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
    fn the_limit_of_bytes_in_flight_grows_with_what_a_peer_reads() {
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
        assert_eq!(server.ledgers[&peer].allowance, ALLOWANCE_MIN, "a new connection starts with the initial limit");
        assert_eq!(server.in_flight_bytes, 0);
    }

    #[test]
    fn the_bytes_in_flight_to_all_peers_are_bounded() {
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
    fn turns_are_charged_in_bytes() {
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
        // Lookups in progress when a debt arises are added to it.
        assert!(bulky < 3 * modest, "{bulky} against {modest}");
    }

    #[test]
    fn repeated_wants_are_looked_up_once() {
        let peer = PeerId::random();
        let mut server = Server::default();
        let block = block(1, 8);
        for ask in [Ask::Have, Ask::Block, Ask::Block] {
            assert_eq!(server.asked(peer, vec![want(*block.cid(), ask)], false), 0);
        }
        assert_eq!(server.next_lookup().map(|lookup| lookup.want.ask), Some(Ask::Block));
        assert_eq!(server.next_lookup(), None);
        // Cancelled wants leave no state.
        for n in 0..10 * MAX_WANTS_PER_PEER {
            let cid = *super::tests::block(n, 8).cid();
            server.asked(peer, vec![want(cid, Ask::Have), want(cid, Ask::Cancel)], false);
        }
        assert!(server.ledgers[&peer].queue.is_empty());
        assert_eq!(server.next_lookup(), None);
    }

    #[test]
    fn excess_wants_are_counted_and_a_throttled_peer_has_one_lookup_at_a_time() {
        let peer = PeerId::random();
        let mut server = Server::default();
        let many: Vec<WantEntry> = (0..MAX_WANTS_PER_PEER + 10).map(|n| want(*block(n, 8).cid(), Ask::Have)).collect();
        assert_eq!(server.asked(peer, many, false), 10);
        server.throttle(peer, true);
        let first = server.next_lookup().expect("one");
        assert_eq!(server.next_lookup(), None);
        server.looked_up(first, LookupResult::Has);
        assert!(server.next_lookup().is_some());
        server.throttle(peer, false);
        assert!(server.next_lookup().is_some());
    }

    #[test]
    fn cancels_full_wantlists_and_disconnects_drop_wants() {
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
        assert_eq!(server.looked_up(lookup, LookupResult::Has), None);
        assert!(server.ledgers.is_empty());
        // A block that was found but not sent is dropped with its want.
        server.asked(peer, vec![want(a, Ask::Block), want(b, Ask::Block)], false);
        let first = server.next_lookup().expect("first");
        let second = server.next_lookup().expect("second");
        assert_eq!(server.looked_up(first, LookupResult::Block(block(1, 8))), None);
        server.asked(peer, vec![want(a, Ask::Cancel)], false);
        let (_, answer) = server.looked_up(second, LookupResult::Block(block(2, 8))).expect("answer");
        assert_eq!(answer.blocks.iter().map(|block| *block.cid()).collect::<Vec<_>>(), [b]);
    }

    #[test]
    fn dont_have_is_sent_only_on_request() {
        let peer = PeerId::random();
        let mut server = Server::default();
        let without_dont_have = WantEntry { send_dont_have: false, ..want(*block(1, 8).cid(), Ask::Block) };
        let with_dont_have = want(*block(2, 8).cid(), Ask::Have);
        server.asked(peer, vec![without_dont_have, with_dont_have.clone()], false);
        let first = server.next_lookup().expect("first");
        let second = server.next_lookup().expect("second");
        assert_eq!(server.looked_up(first, LookupResult::Nothing), None);
        let answer = Answer { blocks: vec![], presences: vec![(with_dont_have.cid, false)] };
        assert_eq!(server.looked_up(second, LookupResult::Nothing), Some((peer, answer)));
    }
}
