//! The Bitswap server as a state machine: which peer's want is looked up next, and when a response is sent.
//!
//! Goals: bounds for the entries that are queued for one peer; responses of a useful size; no I/O and no clock. Fair
//! shares, and the bounds of bytes, are those of [`crate::fairness`].
//!
//! Non-goals: fetching. Wants are answered from the local tiers only, never by fetching on behalf of an untrusted peer.
//! A want that cannot be served is answered (or dropped) immediately, and not kept until the block is stored.

use super::message::{Ask, MAX_WANTS_PER_PEER, WantEntry};
use crate::fairness::{ALLOWANCE_MIN, Service, SharedLedger};
use content::{Block, Cid};
use hashlink::LinkedHashMap;
use libp2p::PeerId;
use std::collections::HashMap;
use std::hash::RandomState;

/// The overhead of a block, and the cost of a presence: CIDs and their containers.
const ENTRY_COST: usize = 256;
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

/// A peer's wants, and the response that is being collected.
#[derive(Default)]
struct Client {
    queue: Queue,
    lookups: usize,
    answer: Answer,
}

impl Client {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.lookups == 0 && self.answer.is_empty()
    }
}

/// The state machine.
#[derive(Default)]
pub struct Server {
    clients: HashMap<PeerId, Client>,
    ledger: SharedLedger,
}

impl Server {
    /// A server that shares a ledger with other protocols.
    pub fn new(ledger: SharedLedger) -> Self {
        Self { clients: HashMap::new(), ledger }
    }

    /// Updates a peer's wantlist. Returns the number of dropped wants, which exceeded [`MAX_WANTS_PER_PEER`];
    /// conforming peers keep that limit.
    pub fn asked(&mut self, peer: PeerId, wants: Vec<WantEntry>, full: bool) -> usize {
        let client = self.clients.entry(peer).or_default();
        if full {
            client.queue = Queue::default();
        }
        let mut dropped = 0;
        for want in wants {
            if want.ask == Ask::Cancel {
                client.queue.cancel(&want.cid);
                client.answer.blocks.retain(|block| *block.cid() != want.cid);
            } else if !client.queue.push(want) {
                dropped += 1;
            }
        }
        self.ledger.get().set_collected(peer, client.answer.cost());
        self.settle(peer);
        dropped
    }

    /// The next lookup, in round robin over peers.
    pub fn next_lookup(&mut self) -> Option<Lookup> {
        loop {
            let turn = self.ledger.get().next_turn(Service::Bitswap, 1)?;
            let want = self.clients.get_mut(&turn.peer).and_then(|client| {
                let want = client.queue.pop()?;
                client.lookups += 1;
                Some(want)
            });
            if want.is_none() {
                self.ledger.get().looked_up(turn.peer, turn.lookups, 0, 0);
            }
            self.settle(turn.peer);
            if let Some(want) = want {
                return Some(Lookup { peer: turn.peer, want });
            }
        }
    }

    /// Completes a lookup. Returns the peer's response once it should be sent.
    pub fn looked_up(&mut self, lookup: Lookup, found: LookupResult) -> Option<(PeerId, Answer)> {
        let Lookup { peer, want } = lookup;
        let bytes = if let LookupResult::Block(block) = &found { block.data().len() } else { 0 };
        let Some(client) = self.clients.get_mut(&peer) else {
            // The peer has disconnected.
            self.ledger.get().looked_up(peer, 1, 1, bytes);
            return None;
        };
        client.lookups = client.lookups.saturating_sub(1);
        match found {
            LookupResult::Block(block) => client.answer.blocks.push(block),
            LookupResult::Has => client.answer.presences.push((want.cid, true)),
            LookupResult::Nothing if want.send_dont_have => client.answer.presences.push((want.cid, false)),
            LookupResult::Nothing => {}
        }
        let mut ledger = self.ledger.get();
        ledger.set_collected(peer, client.answer.cost());
        ledger.looked_up(peer, 1, 1, bytes);
        let last = client.lookups == 0 && (client.queue.is_empty() || !ledger.may_look_up(&peer));
        let ready = !client.answer.is_empty() && (client.answer.is_full() || last);
        let answer = ready.then(|| std::mem::take(&mut client.answer));
        if let Some(answer) = &answer {
            ledger.queued(peer, Service::Bitswap, answer.cost());
            ledger.set_collected(peer, 0);
        }
        drop(ledger);
        self.settle(peer);
        answer.map(|answer| (peer, answer))
    }

    /// A response of that [cost](Answer::cost) was sent.
    pub fn sent(&mut self, peer: PeerId, cost: usize) {
        self.ledger.get().sent(peer, Service::Bitswap, cost);
    }

    /// A response of that cost was dropped, because the peer does not read. Its limit is reset.
    pub fn dropped(&mut self, peer: PeerId, cost: usize) {
        self.ledger.get().dropped(peer, Service::Bitswap, cost);
        if let Some(client) = self.clients.get_mut(&peer) {
            client.queue = Queue::default();
        }
        self.settle(peer);
    }

    /// Answers a peer that is not served: DONT_HAVE for its wants, within the usual limits.
    pub fn refused(&mut self, peer: PeerId, wants: Vec<WantEntry>) -> Option<Answer> {
        let absent = wants.into_iter().filter(|want| want.ask != Ask::Cancel && want.send_dont_have);
        let mut ledger = self.ledger.get();
        let room = ALLOWANCE_MIN.saturating_sub(ledger.in_flight_to(&peer)) / ENTRY_COST;
        let presences: Vec<_> = absent.take(room.min(MAX_WANTS_PER_PEER)).map(|want| (want.cid, false)).collect();
        let answer = Answer { presences, ..Answer::default() };
        if answer.is_empty() {
            return None;
        }
        ledger.queued(peer, Service::Bitswap, answer.cost());
        Some(answer)
    }

    /// A connection was closed, and the responses on it will not be reported as sent.
    pub fn answers_lost(&mut self, peer: PeerId) {
        self.ledger.get().lost(peer, Service::Bitswap);
    }

    /// Removes a disconnected peer.
    pub fn disconnected(&mut self, peer: PeerId) {
        self.clients.remove(&peer);
        self.ledger.get().disconnected(peer);
    }

    /// Limits a peer to one lookup at a time, or lifts the limit.
    pub fn throttle(&mut self, peer: PeerId, throttled: bool) {
        self.ledger.get().throttle(peer, throttled);
    }

    /// Tells the ledger whether a peer has pending lookups, and removes an idle one.
    fn settle(&mut self, peer: PeerId) {
        let client = self.clients.get(&peer);
        let waiting = client.is_some_and(|client| !client.queue.is_empty());
        self.ledger.get().set_waiting(peer, Service::Bitswap, waiting);
        if client.is_some_and(Client::is_idle) {
            self.clients.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::{ALLOWANCE_MAX, IN_FLIGHT_TOTAL_MAX, LOOKUPS_MAX, LOOKUPS_PER_PEER};
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
        let ledger = server.ledger.get();
        assert_eq!(ledger.allowance(&peer), ALLOWANCE_MIN, "a new connection starts with the initial limit");
        assert_eq!(ledger.in_flight_bytes(), 0);
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
        assert_eq!(server.ledger.get().in_flight_bytes(), 0);
    }

    #[test]
    fn turns_are_charged_in_bytes() {
        let (bulky, modest) = (PeerId::random(), PeerId::random());
        let mut server = Server::default();
        let (large, small) = (block(0, 1024 * 1024), block(1, 64 * 1024));
        server.asked(bulky, wants(0..256), false);
        server.asked(modest, wants(0..256), false);
        let mut served: HashMap<PeerId, usize> = HashMap::new();
        while server.clients.get(&modest).is_some_and(|client| !client.queue.is_empty()) {
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
        assert!(server.clients.get(&peer).is_none_or(|client| client.queue.is_empty()));
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
        assert!(server.clients.is_empty() && server.ledger.get().len() == 0);
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
