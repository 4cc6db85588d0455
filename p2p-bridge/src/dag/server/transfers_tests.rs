//! Tests of the state machine: limits, budgets, shares over transfers, peers and protocols, and what a cancelled transfer
//! leaves.

use super::super::outbox::Next;
use super::*;
use crate::bitswap::message::{Ask, WantEntry};
use crate::bitswap::server::{LookupResult, Server as BitswapServer};
use crate::dag::test_support::{TestSource, links, noise, raw};
use crate::fairness::{ALLOWANCE_MAX, ALLOWANCE_MIN, LOOKUPS_MAX};
use content::scope::ScopeOptions;
use content::{Block, BlockSource as _};
use futures::FutureExt as _;
use futures::executor::block_on;

struct Bench {
    transfers: Transfers,
    source: TestSource,
    now: Instant,
    connection_next: usize,
}

impl Bench {
    fn new() -> Self {
        let transfers = Transfers::new(SharedLedger::default());
        Self { transfers, source: TestSource::default(), now: Instant::now(), connection_next: 0 }
    }

    fn connect(&mut self, peer: PeerId) -> Asker {
        self.connection_next += 1;
        let asker = Asker { peer, connection: ConnectionId::new_unchecked(self.connection_next) };
        self.transfers.connected(asker);
        asker
    }

    /// A document with links to so many leaves of so many bytes.
    fn dag(&self, seed: u64, leaves: u64, bytes: usize) -> Cid {
        let leaves: Vec<Block> = (0..leaves).map(|n| raw(noise(seed * 10_000 + n, bytes))).collect();
        leaves.iter().for_each(|leaf| self.source.insert(leaf));
        let root = links(&leaves.iter().map(|leaf| *leaf.cid()).collect::<Vec<_>>());
        self.source.insert(&root);
        *root.cid()
    }

    fn request(&mut self, asker: Asker, id: u64, root: Cid, budget_bytes: u64) -> Admission {
        let request = Request {
            transfer: TransferId(id),
            root,
            path: Vec::new(),
            scope: ScopeOptions::default(),
            held: Vec::new(),
            budget_bytes,
            packed: false,
            fragments: false,
        };
        self.transfers.request(asker, &request, self.now)
    }

    fn accepted(&mut self, asker: Asker, id: u64, root: Cid, budget_bytes: u64) -> (Serial, Arc<Outbox>) {
        match self.request(asker, id, root, budget_bytes) {
            Admission::Accepted(serial, outbox) => (serial, outbox),
            other => panic!("{other:?}"),
        }
    }

    /// Runs one turn; returns its transfer.
    fn turn(&mut self) -> Option<Serial> {
        let TurnJob { serial, turn, mut traversal, limits } = self.transfers.next_turn()?;
        let result = block_on(traversal.turn(&self.source, limits));
        self.transfers.turn_ended(serial, turn, Some((traversal, result)), self.now);
        Some(serial)
    }

    /// Runs turns until there is none.
    fn turns(&mut self) -> usize {
        std::iter::from_fn(|| self.turn()).count()
    }

    /// Writes what the outbox has; returns the bytes, and the end.
    fn write(&mut self, serial: Serial, outbox: &Outbox) -> (usize, Option<EndStatus>) {
        let mut bytes = 0;
        loop {
            match outbox.stream(true).next().now_or_never() {
                Some(Next::Write(batch)) => {
                    bytes += batch.written().wire_bytes;
                    self.transfers.written(serial, batch.written().wire_bytes);
                    outbox.written();
                }
                Some(Next::End(status)) => {
                    assert!(self.transfers.ended(serial));
                    return (bytes, Some(status));
                }
                Some(Next::Close) | None => return (bytes, None),
            }
        }
    }

    /// Runs turns and writes what they found, until there is nothing more.
    fn serve(&mut self, serial: Serial, outbox: &Outbox) -> (usize, Option<EndStatus>) {
        let mut sent = 0;
        loop {
            self.turns();
            let (bytes, status) = self.write(serial, outbox);
            sent += bytes;
            if bytes == 0 || status.is_some() {
                return (sent, status);
            }
        }
    }

    /// Asserts that nothing is left of any transfer.
    fn assert_idle(&self) {
        assert_eq!((self.transfers.transfers.len(), self.transfers.by_id.len()), (0, 0));
        assert_eq!(self.transfers.ledger.get().in_flight_bytes(), 0);
        assert_eq!(self.transfers.memory.left(), MEMORY_MAX);
        assert!(self.transfers.peers.values().all(|peer| peer.transfers == 0 && peer.ready.is_empty()));
        assert!(self.transfers.connections.values().all(|connection| connection.transfers == 0));
    }
}

#[test]
fn a_transfer_is_served_to_its_end() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let root = bench.dag(0, 40, 100_000);
    let (serial, outbox) = bench.accepted(asker, 1, root, BUDGET_BYTES_MAX);
    let mut sent = 0;
    let status = loop {
        bench.turns();
        let (bytes, status) = bench.write(serial, &outbox);
        sent += bytes;
        if let Some(status) = status {
            break status;
        }
    };
    assert_eq!(status, EndStatus::Complete);
    assert!((4_000_000..4_100_000).contains(&sent), "{sent}");
    bench.assert_idle();
}

#[test]
fn transfers_are_limited_for_each_connection_and_peer_and_in_all() {
    let mut bench = Bench::new();
    let peer = PeerId::random();
    // More than the budget.
    let root = bench.dag(0, 2, 1_200_000);
    let mut accepted = Vec::new();
    let askers = [bench.connect(peer), bench.connect(peer), bench.connect(peer)];
    for (at, asker) in askers.into_iter().enumerate() {
        for id in 0..TRANSFERS_PER_CONNECTION as u64 {
            match bench.request(asker, id, root, BUDGET_BYTES_MIN) {
                Admission::Accepted(serial, outbox) => accepted.push((serial, outbox)),
                other => assert!(at == 2 && matches!(other, Admission::Busy), "{at} {id}: {other:?}"),
            }
        }
        assert!(matches!(bench.request(asker, 1_000, root, BUDGET_BYTES_MIN), Admission::Busy));
    }
    assert_eq!(bench.transfers.count(), TRANSFERS_PER_PEER);
    let mut others = 0;
    while bench.transfers.count() < TRANSFERS_MAX {
        let asker = bench.connect(PeerId::random());
        let ids = 0..TRANSFERS_PER_CONNECTION as u64;
        accepted.extend(ids.map(|id| bench.accepted(asker, id, root, BUDGET_BYTES_MIN)));
        others += 1;
    }
    assert_eq!(others, (TRANSFERS_MAX - TRANSFERS_PER_PEER) / TRANSFERS_PER_CONNECTION);
    let last = bench.connect(PeerId::random());
    assert!(matches!(bench.request(last, 0, root, BUDGET_BYTES_MIN), Admission::Busy));
    // All wait for credit. Those that have waited for a while make room, one for each request.
    while bench.turns() > 0 {
        accepted.iter().for_each(|(serial, outbox)| _ = bench.write(*serial, outbox));
    }
    bench.now += CREDIT_TIMEOUT_UNDER_PRESSURE;
    assert!(matches!(bench.request(last, 0, root, BUDGET_BYTES_MIN), Admission::Accepted(..)));
    assert!(matches!(bench.request(last, 1, root, BUDGET_BYTES_MIN), Admission::Accepted(..)));
    assert_eq!(bench.transfers.count(), TRANSFERS_MAX);
}

#[test]
fn requests_are_limited_in_time_and_a_flood_is_an_offence() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let root = bench.dag(0, 1, 10);
    let request = |bench: &mut Bench| match bench.request(asker, 1, root, BUDGET_BYTES_MIN) {
        Admission::Accepted(serial, _) => {
            bench.transfers.cancelled(serial);
            "accepted"
        }
        Admission::Busy => "busy",
        Admission::Flood => "flood",
        Admission::Duplicate => "duplicate",
        Admission::NoBudget => "no budget",
    };
    let count = |outcomes: &[&str], of: &str| outcomes.iter().filter(|outcome| **outcome == of).count();
    let outcomes: Vec<_> = (0..2 * REQUESTS_BURST).map(|_| request(&mut bench)).collect();
    assert_eq!(count(&outcomes, "accepted"), REQUESTS_BURST as usize);
    assert_eq!((count(&outcomes, "busy"), count(&outcomes, "flood")), (255, 1));
    bench.now += REQUEST_REFILL;
    assert_eq!([request(&mut bench), request(&mut bench)], ["accepted", "busy"]);
    bench.now += Duration::from_secs(60);
    let outcomes: Vec<_> = (0..REQUESTS_BURST).map(|_| request(&mut bench)).collect();
    assert_eq!(count(&outcomes, "accepted"), REQUESTS_BURST as usize);
    bench.assert_idle();
}

#[test]
fn a_number_is_used_once_at_a_time_on_each_connection() {
    let mut bench = Bench::new();
    let peer = PeerId::random();
    let (first, second) = (bench.connect(peer), bench.connect(peer));
    let root = bench.dag(0, 1, 10);
    let (serial, _) = bench.accepted(first, 7, root, BUDGET_BYTES_MIN);
    assert!(matches!(bench.request(first, 7, root, BUDGET_BYTES_MIN), Admission::Duplicate));
    bench.accepted(second, 7, root, BUDGET_BYTES_MIN);
    bench.transfers.cancelled(serial);
    bench.accepted(first, 7, root, BUDGET_BYTES_MIN);
    assert!(matches!(bench.transfers.join(first, TransferId(7)), Joining::Accepted(..)), "it is not the ended one");
}

#[test]
fn streams_join_a_running_transfer_up_to_a_limit() {
    let mut bench = Bench::new();
    let (asker, other) = (bench.connect(PeerId::random()), bench.connect(PeerId::random()));
    let root = bench.dag(0, 1, 10);
    let id = TransferId(7);
    assert!(matches!(bench.transfers.join(asker, id), Joining::Unknown));
    let (serial, _) = bench.accepted(asker, 7, root, BUDGET_BYTES_MIN);
    for _ in 1..STREAMS_PER_TRANSFER {
        assert!(matches!(bench.transfers.join(asker, id), Joining::Accepted(of, _) if of == serial));
    }
    assert!(matches!(bench.transfers.join(asker, id), Joining::NotNeeded));
    assert!(matches!(bench.transfers.join(other, id), Joining::Unknown), "another connection");
    bench.transfers.cancelled(serial);
    assert!(matches!(bench.transfers.join(asker, id), Joining::NotNeeded));
    // Only the latest are remembered.
    for n in 0..ENDED_MAX as u64 {
        bench.now += REQUEST_REFILL;
        let (serial, _) = bench.accepted(asker, 100 + n, root, BUDGET_BYTES_MIN);
        bench.transfers.cancelled(serial);
    }
    assert!(matches!(bench.transfers.join(asker, id), Joining::Unknown));
    assert_eq!(bench.transfers.connections[&asker.connection].ended.len(), ENDED_MAX);
}

#[test]
fn nothing_is_sent_beyond_the_budget_and_a_transfer_without_credit_ends() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let root = bench.dag(0, 10, 700_000);
    let (serial, outbox) = bench.accepted(asker, 1, root, BUDGET_BYTES_MIN);
    let (first, _) = bench.serve(serial, &outbox);
    assert!((1_400_000..=BUDGET_BYTES_MIN as usize).contains(&first), "{first}");
    let reads = bench.source.reads();
    // Credit that does not suffice for the next block is not progress.
    bench.now += CREDIT_TIMEOUT / 2;
    bench.transfers.control(serial, Control::Credit(10), bench.now);
    assert_eq!((bench.turns(), bench.source.reads()), (0, reads), "nothing is read again");
    bench.transfers.control(serial, Control::Credit(100_000), bench.now);
    let (second, status) = bench.serve(serial, &outbox);
    assert!((700_000..710_000).contains(&second) && status.is_none(), "{second}");
    bench.now += CREDIT_TIMEOUT - Duration::from_millis(1);
    bench.transfers.tick(bench.now);
    assert_eq!(bench.write(serial, &outbox), (0, None));
    bench.now += Duration::from_millis(1);
    bench.transfers.tick(bench.now);
    assert_eq!(bench.write(serial, &outbox), (0, Some(EndStatus::Budget)));
    bench.assert_idle();
}

#[test]
fn a_request_whose_budget_does_not_suffice_for_any_block_is_rejected() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let root = bench.dag(0, 1, 10);
    for budget_bytes in [0, 1_000, BUDGET_BYTES_MIN - 1] {
        assert!(matches!(bench.request(asker, 1, root, budget_bytes), Admission::NoBudget));
    }
    assert_eq!((bench.turns(), bench.source.reads()), (0, 0));
    bench.assert_idle();
    bench.accepted(asker, 1, root, BUDGET_BYTES_MIN);
}

#[test]
fn what_is_read_and_not_sent_is_charged() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let root = bench.dag(0, 10, 700_000);
    let (serial, outbox) = bench.accepted(asker, 1, root, BUDGET_BYTES_MIN);
    bench.serve(serial, &outbox);
    let debt = |bench: &Bench| bench.transfers.ledger.get().debt(&asker.peer);
    // Blocks are read again once the budget suffices for the next one, of which the second is not sent.
    bench.transfers.control(serial, Control::Credit(10_000), bench.now);
    assert_eq!(bench.turns(), 1);
    assert!(debt(&bench) >= 1_400_000, "{}", debt(&bench));
    // It is not known what an aborted turn has read.
    let (serial, _) = bench.accepted(asker, 2, root, BUDGET_BYTES_MIN);
    let TurnJob { turn, .. } = bench.transfers.next_turn().expect("it is ready");
    let before = debt(&bench);
    assert!(bench.transfers.cancelled(serial));
    bench.transfers.turn_ended(serial, turn, None, bench.now);
    assert!(debt(&bench) >= before + QUANTUM);
}

#[test]
fn a_request_and_a_join_of_a_closed_connection_leave_nothing() {
    let mut bench = Bench::new();
    let peer = PeerId::random();
    let (closed, open) = (bench.connect(peer), bench.connect(peer));
    let root = bench.dag(0, 1, 10);
    bench.transfers.disconnected(closed);
    assert!(matches!(bench.request(closed, 1, root, BUDGET_BYTES_MIN), Admission::Busy));
    assert!(matches!(bench.transfers.join(closed, TransferId(2)), Joining::NotNeeded));
    assert_eq!(bench.transfers.connections.len(), 1);
    bench.accepted(open, 1, root, BUDGET_BYTES_MIN);
}

#[test]
fn credit_is_limited() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let root = bench.dag(0, 1, 10);
    let (serial, _) = bench.accepted(asker, 1, root, u64::MAX);
    let budget = |bench: &Bench| bench.transfers.transfers[&serial].budget_bytes;
    assert_eq!(budget(&bench), BUDGET_BYTES_MAX);
    bench.transfers.control(serial, Control::Credit(u64::MAX), bench.now);
    assert_eq!(budget(&bench), BUDGET_BYTES_MAX);
}

#[test]
fn a_peer_that_does_not_read_has_its_allowance_in_flight_and_no_more() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    for id in 0..8 {
        let root = bench.dag(id, 40, 100_000);
        bench.accepted(asker, id, root, BUDGET_BYTES_MAX);
    }
    bench.turns();
    let in_flight = bench.transfers.ledger.get().in_flight_to(&asker.peer);
    let slack = LOOKUPS_PER_TURN * (QUANTUM + 100_000);
    assert!((ALLOWANCE_MIN..=ALLOWANCE_MIN + slack).contains(&in_flight), "{in_flight}");
    let reads = bench.source.reads();
    assert_eq!((bench.turns(), bench.source.reads()), (0, reads));
    // One of them stalls: it is dropped, and the others go on.
    let stalled = *bench.transfers.transfers.iter().max_by_key(|(_, of)| of.in_flight_bytes).expect("some").0;
    assert_eq!(bench.transfers.stalled(stalled), Some(asker.peer));
    assert_eq!(bench.transfers.ledger.get().allowance(&asker.peer), ALLOWANCE_MIN);
    assert!(bench.transfers.ledger.get().in_flight_to(&asker.peer) < in_flight);
}

#[test]
fn the_allowance_grows_with_what_streams_take() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let root = bench.dag(0, 120, 200_000);
    let (serial, outbox) = bench.accepted(asker, 1, root, BUDGET_BYTES_MAX);
    let mut rounds = Vec::new();
    loop {
        bench.turns();
        let (bytes, status) = bench.write(serial, &outbox);
        rounds.push(bytes);
        bench.transfers.control(serial, Control::Credit(bytes as u64), bench.now);
        if status.is_some() {
            break;
        }
    }
    // Half a megabyte at first, and all that is left after a few rounds.
    assert!(rounds.len() <= 8 && rounds[0] < 2 * ALLOWANCE_MIN, "{rounds:?}");
    assert!(bench.transfers.ledger.get().allowance(&asker.peer) <= ALLOWANCE_MAX);
}

#[test]
fn a_cancelled_transfer_leaves_nothing() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let root = bench.dag(0, 40, 100_000);
    // With answers in the outbox.
    let (serial, outbox) = bench.accepted(asker, 1, root, BUDGET_BYTES_MAX);
    bench.turns();
    assert!(bench.transfers.ledger.get().in_flight_bytes() > 0);
    assert!(bench.transfers.cancelled(serial) && !bench.transfers.cancelled(serial));
    assert_eq!(outbox.stream(true).next().now_or_never(), Some(Next::Close));
    bench.assert_idle();
    // During a turn, whose result is dropped.
    let (serial, _) = bench.accepted(asker, 2, root, BUDGET_BYTES_MAX);
    let TurnJob { turn, mut traversal, limits, .. } = bench.transfers.next_turn().expect("it is ready");
    assert!(bench.transfers.cancelled(serial));
    let result = block_on(traversal.turn(&bench.source, limits));
    bench.transfers.turn_ended(serial, turn, Some((traversal, result)), bench.now);
    bench.assert_idle();
    // During a turn that is aborted.
    let (serial, _) = bench.accepted(asker, 3, root, BUDGET_BYTES_MAX);
    let TurnJob { turn, .. } = bench.transfers.next_turn().expect("it is ready");
    assert!(bench.transfers.cancelled(serial));
    bench.transfers.turn_ended(serial, turn, None, bench.now);
    bench.assert_idle();
    // With its connection.
    bench.accepted(asker, 4, root, BUDGET_BYTES_MAX);
    bench.accepted(asker, 5, root, BUDGET_BYTES_MIN);
    bench.turns();
    assert_eq!(bench.transfers.disconnected(asker), 2);
    bench.assert_idle();
    assert!(bench.transfers.peers.is_empty() && bench.transfers.connections.is_empty());
    // All look-ups are free again.
    let other = bench.connect(PeerId::random());
    let root = bench.dag(1, 1, 10);
    for id in 0..LOOKUPS_MAX as u64 {
        bench.accepted(other, id, root, BUDGET_BYTES_MAX);
    }
    assert!(bench.turns() >= LOOKUPS_MAX);
}

#[test]
fn a_turn_that_panics_ends_its_transfer() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let root = bench.dag(0, 1, 10);
    let (serial, outbox) = bench.accepted(asker, 1, root, BUDGET_BYTES_MAX);
    let TurnJob { turn, .. } = bench.transfers.next_turn().expect("it is ready");
    bench.transfers.turn_ended(serial, turn, None, bench.now);
    assert_eq!(bench.write(serial, &outbox), (0, Some(EndStatus::Failed)));
    bench.assert_idle();
}

#[test]
fn subtrees_that_are_skipped_during_a_turn_are_not_sent_after_it() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let below: Vec<Cid> = (0..4).map(|seed| bench.dag(seed, 3, 200_000)).collect();
    let root = links(&below);
    bench.source.insert(&root);
    let (serial, outbox) = bench.accepted(asker, 1, *root.cid(), BUDGET_BYTES_MAX);
    let TurnJob { turn, mut traversal, limits, .. } = bench.transfers.next_turn().expect("it is ready");
    bench.transfers.control(serial, Control::Skip(below[2]), bench.now);
    bench.transfers.control(serial, Control::Skip(below[3]), bench.now);
    let limits = TurnLimits { wire_bytes: 1, ..limits };
    let result = block_on(traversal.turn(&bench.source, limits));
    assert_eq!(result.answers.len(), 1, "the root");
    bench.transfers.turn_ended(serial, turn, Some((traversal, result)), bench.now);
    let mut sent = 0;
    loop {
        bench.turns();
        let (bytes, status) = bench.write(serial, &outbox);
        sent += bytes;
        if status.is_some() {
            break;
        }
    }
    assert!((1_200_000..1_300_000).contains(&sent), "two of four: {sent}");
}

#[test]
fn peers_have_equal_shares_whatever_the_number_of_their_transfers() {
    let mut bench = Bench::new();
    let (greedy, modest) = (bench.connect(PeerId::random()), bench.connect(PeerId::random()));
    let mut outboxes = HashMap::new();
    for id in 0..10 {
        let root = bench.dag(id, 60, 64_000);
        outboxes.extend([bench.accepted(greedy, id, root, BUDGET_BYTES_MAX)]);
    }
    let root = bench.dag(99, 60, 64_000);
    let (of_modest, outbox) = bench.accepted(modest, 1, root, BUDGET_BYTES_MAX);
    outboxes.insert(of_modest, outbox);
    let mut sent: HashMap<bool, usize> = HashMap::new();
    while let Some(serial) = bench.turn() {
        let (bytes, status) = bench.write(serial, &outboxes[&serial]);
        *sent.entry(serial == of_modest).or_default() += bytes;
        if serial == of_modest && status.is_some() {
            break;
        }
    }
    let (modest, greedy) = (sent[&true], sent[&false]);
    assert!(greedy < 2 * modest, "{greedy} to ten transfers, {modest} to one");
}

/// A peer with transfers and peers with Bitswap wants share the ledger.
#[test]
fn transfers_and_wants_of_bitswap_have_equal_shares() {
    let mut bench = Bench::new();
    let mut bitswap = BitswapServer::new(bench.transfers.ledger.clone());
    let asker = bench.connect(PeerId::random());
    let bitswap_peer = PeerId::random();
    let root = bench.dag(0, 200, 128_000);
    let (serial, outbox) = bench.accepted(asker, 1, root, BUDGET_BYTES_MAX);
    let leaves: Vec<Block> = (0..200).map(|n| raw(noise(500_000 + n, 128_000))).collect();
    leaves.iter().for_each(|leaf| bench.source.insert(leaf));
    let wants = leaves.iter().map(|leaf| WantEntry { cid: *leaf.cid(), ask: Ask::Block, send_dont_have: true });
    bitswap.asked(bitswap_peer, wants.collect(), false);
    let (mut by_transfer, mut by_bitswap) = (0, 0);
    for _ in 0..60 {
        // Each protocol is polled in turn, and takes the turns that are its own.
        bench.turn();
        let (bytes, _) = bench.write(serial, &outbox);
        by_transfer += bytes;
        bench.transfers.control(serial, Control::Credit(bytes as u64), bench.now);
        while let Some(lookup) = bitswap.next_lookup() {
            let block = block_on(bench.source.get(&lookup.want.cid)).expect("is stored");
            if let Some((peer, answer)) = bitswap.looked_up(lookup, LookupResult::Block(block)) {
                by_bitswap += answer.bytes();
                bitswap.sent(peer, answer.cost());
            }
        }
    }
    assert!(by_bitswap > 4 << 20 && by_transfer > 4 << 20, "{by_transfer} and {by_bitswap}");
    assert!(by_transfer < 3 * by_bitswap && by_bitswap < 3 * by_transfer, "{by_transfer} and {by_bitswap}");
}

#[test]
fn a_throttled_peer_has_one_turn_at_a_time() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    bench.transfers.ledger.get().throttle(asker.peer, true);
    for id in 0..3 {
        let root = bench.dag(id, 20, 100_000);
        bench.accepted(asker, id, root, BUDGET_BYTES_MAX);
    }
    let job = bench.transfers.next_turn().expect("one");
    assert_eq!((job.turn.lookups, job.limits.wire_bytes), (1, QUANTUM));
    assert!(bench.transfers.next_turn().is_none());
}

#[test]
fn traversals_share_a_memory_budget() {
    let mut bench = Bench::new();
    let asker = bench.connect(PeerId::random());
    let peer_memory = Arc::clone(&bench.transfers.peers[&asker.peer].memory);
    let root = bench.dag(0, 2_000, 10);
    let (serial, _) = bench.accepted(asker, 1, root, BUDGET_BYTES_MAX);
    bench.turn();
    let taken = MEMORY_MAX - bench.transfers.memory.left();
    assert!(taken > 80_000 && MEMORY_PER_PEER - peer_memory.left() == taken, "{taken} for the links of the root");
    assert!(bench.transfers.cancelled(serial));
    assert_eq!((bench.transfers.memory.left(), peer_memory.left()), (MEMORY_MAX, MEMORY_PER_PEER));
    // Without memory, a transfer ends.
    assert!(peer_memory.try_reserve(MEMORY_PER_PEER - taken / 2));
    let (serial, outbox) = bench.accepted(asker, 2, root, BUDGET_BYTES_MAX);
    bench.turn();
    assert_eq!(bench.write(serial, &outbox).1, Some(EndStatus::Failed));
    assert_eq!(peer_memory.left(), taken / 2);
}
