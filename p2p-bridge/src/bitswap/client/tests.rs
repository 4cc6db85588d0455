//! Tests of the client, one per rule.

use super::*;
use crate::bitswap::message::MAX_WANTS_PER_PEER;
use crate::dag::client::active::{Decline, TransferEnd, TransferEvent};
use crate::dag::client::fixture::context;
use crate::dag::client::pushed::{Reader, Readers};
use crate::dag::client::transfer::{Arrival, children};
use crate::dag::message::{Answer, EndStatus, TransferId};
use crate::dag::test_support::{Import, TestSource, noise, profile};
use crate::observers::BlockTransport;
use bytes::Bytes;
use content::importer::Part;
use content::{Block, codec, hashes};
use tokio::sync::mpsc;

const MS: Duration = Duration::from_millis(1);

fn cid(n: u32) -> Cid {
    *Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::copy_from_slice(&n.to_be_bytes())).expect("block").cid()
}

fn key(n: u32) -> BlockKey {
    BlockKey::of(&cid(n)).expect("key")
}

/// A client, a clock, and the recorded actions.
struct Bench {
    client: Client,
    now: Instant,
    asked: Vec<(PeerId, WantEntry)>,
    searches: Vec<SessionId>,
    stopped: Vec<SessionId>,
    stalled: Vec<PeerId>,
    failures: Vec<(BlockKey, SourceError)>,
    transfers: Vec<Arc<ActiveTransfer>>,
    /// How transfers have ended by themselves.
    ends: Vec<TransferEnd>,
    reports: mpsc::UnboundedReceiver<TransferEvent>,
    readers: Arc<Readers>,
}

impl Bench {
    fn new() -> Self {
        let config = Config { stall_timeout: Duration::from_secs(2), ..Config::default() };
        let ((events, reports), readers) = (mpsc::unbounded_channel(), Arc::<Readers>::default());
        let mut client = Client::new(config, Metrics::default());
        client.use_transfers(Arc::new(context(BlockTransport::Dag, &events, &readers)));
        client.use_gateway_transfers(Arc::new(context(BlockTransport::Http, &events, &readers)));
        Self {
            client,
            now: Instant::now(),
            asked: Vec::new(),
            searches: Vec::new(),
            stopped: Vec::new(),
            stalled: Vec::new(),
            failures: Vec::new(),
            transfers: Vec::new(),
            ends: Vec::new(),
            reports,
            readers,
        }
    }

    fn session(&self) -> SessionId {
        *cid(0).hash()
    }

    fn connect(&mut self, favoured: bool) -> PeerId {
        let peer = PeerId::random();
        self.client.peer_connected(peer, favoured, self.now);
        self.drain();
        peer
    }

    fn want(&mut self, n: u32) {
        self.client.want(self.session(), cid(n), self.now);
        self.drain();
    }

    fn block(&mut self, peer: PeerId, n: u32) -> BlockUse {
        let result = self.client.received_block(peer, key(n), 1_000, self.now);
        self.drain();
        result
    }

    fn presence(&mut self, peer: PeerId, n: u32, has: bool) {
        self.client.received_presence(peer, &cid(n), has, self.now);
        self.drain();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            self.client.tick(self.now);
            self.finish_failing();
        }
    }

    /// Takes the steps until the next tick at once.
    fn finish_failing(&mut self) {
        self.drain();
        while self.client.is_failing() {
            self.client.fail_next(self.now);
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Ok(event) = self.reports.try_recv() {
            if let TransferEvent::Ended { transfer, end } = event {
                self.client.transfer_ended(transfer, &end, self.now);
                self.ends.push(end);
            }
        }
        while let Some(action) = self.client.poll_action() {
            match action {
                Action::Send { peer, entries } => self.asked.extend(entries.into_iter().map(|entry| (peer, entry))),
                Action::Search(session) => self.searches.push(session),
                Action::StopSearch(session) => self.stopped.push(session),
                Action::Joined(..) => {}
                Action::Transfer(active) => self.transfers.push(active),
                Action::Stalled(peer) => self.stalled.push(peer),
                Action::Fail(failure) => self.failures.push((failure.key, failure.error)),
            }
        }
    }

    /// Takes the requests since the last call, as (peer, number, ask).
    fn take_asked(&mut self, numbers: u32) -> Vec<(PeerId, u32, Ask)> {
        let number = |cid: &Cid| (0..numbers).find(|n| self::cid(*n) == *cid).expect("a known number");
        self.asked.drain(..).map(|(peer, entry)| (peer, number(&entry.cid), entry.ask)).collect()
    }
}

#[test]
fn the_first_want_asks_a_favoured_peer_for_the_block_others_for_presence_and_searches() {
    let mut bench = Bench::new();
    let favoured = bench.connect(true);
    let other = bench.connect(false);
    bench.want(0);
    let mut asked = bench.take_asked(1);
    asked.sort_by_key(|(peer, ..)| *peer != favoured);
    assert_eq!(asked, vec![(favoured, 0, Ask::Block), (other, 0, Ask::Have)]);
    assert_eq!(bench.searches, vec![bench.session()]);
    assert_eq!(bench.block(favoured, 0), BlockUse::Wanted);
    assert_eq!(bench.take_asked(1), vec![(other, 0, Ask::Cancel)]);
    // From now on only the member is asked, and there is no further search.
    bench.want(1);
    assert_eq!(bench.take_asked(2), vec![(favoured, 1, Ask::Block)]);
    assert_eq!(bench.searches.len(), 1);
}

#[test]
fn a_provider_is_asked_for_the_block_as_soon_as_it_connects() {
    let mut bench = Bench::new();
    bench.want(0);
    let peer = PeerId::random();
    bench.client.provider_found(bench.session(), peer, bench.now);
    assert!(bench.asked.is_empty());
    bench.client.peer_connected(peer, false, bench.now);
    bench.drain();
    assert_eq!(bench.take_asked(1), vec![(peer, 0, Ask::Block)]);
}

#[test]
fn have_leads_to_a_block_request_and_dont_have_to_the_next_peer() {
    let mut bench = Bench::new();
    let favoured = bench.connect(true);
    let other = bench.connect(false);
    bench.want(0);
    bench.asked.clear();
    bench.presence(other, 0, true);
    assert_eq!(bench.asked, vec![], "it is requested from the favoured peer already");
    bench.presence(favoured, 0, false);
    assert_eq!(bench.take_asked(1), vec![(other, 0, Ask::Block)]);
    assert_eq!(bench.block(other, 0), BlockUse::Wanted);
}

#[test]
fn a_stalled_member_is_hedged_and_the_late_copy_is_a_duplicate() {
    let mut bench = Bench::new();
    let (a, b) = (bench.connect(true), bench.connect(true));
    bench.want(0);
    bench.now += 10 * MS;
    for peer in [a, b] {
        bench.presence(peer, 0, true);
    }
    let requested = bench.take_asked(1).into_iter().find(|(_, _, ask)| *ask == Ask::Block).expect("asked").0;
    let other = if requested == a { b } else { a };
    bench.pass(600 * MS);
    assert!(bench.take_asked(1).contains(&(other, 0, Ask::Block)));
    assert_eq!(bench.block(other, 0), BlockUse::Wanted);
    assert_eq!(bench.take_asked(1), vec![(requested, 0, Ask::Cancel)]);
    assert_eq!(bench.block(requested, 0), BlockUse::Duplicate);
}

#[test]
fn outstanding_blocks_move_to_other_peers_on_disconnect() {
    let mut bench = Bench::new();
    let (a, b) = (bench.connect(true), bench.connect(true));
    bench.want(0);
    let requested = bench.take_asked(1).into_iter().find(|(_, _, ask)| *ask == Ask::Block).expect("asked").0;
    let other = if requested == a { b } else { a };
    bench.presence(other, 0, true);
    bench.client.peer_disconnected(requested, bench.now);
    bench.drain();
    assert_eq!(bench.take_asked(1), vec![(other, 0, Ask::Block)]);
}

#[test]
fn unavailable_blocks_fail_with_the_state_of_the_search() {
    let mut bench = Bench::new();
    let peer = bench.connect(true);
    bench.want(0);
    bench.client.provider_found(bench.session(), PeerId::random(), bench.now);
    bench.presence(peer, 0, false);
    bench.pass(Duration::from_millis(2_100));
    assert_eq!(bench.stalled, [], "it answered");
    let [(failed, SourceError::Stalled { stall, .. })] = &bench.failures[..] else { panic!("{:?}", bench.failures) };
    assert_eq!(*failed, key(0));
    assert_eq!((stall.providers_found, stall.peers_asked, stall.peers_answered), (1, 1, 1));
    bench.pass(Duration::from_secs(120));
    assert!(bench.client.is_idle(), "all state expires");
    assert!(bench.client.wants.is_empty());
}

#[test]
fn a_peer_that_stalls_until_the_want_fails_is_reported_once() {
    let mut bench = Bench::new();
    let stalled = bench.connect(true);
    (0..3).for_each(|n| bench.want(n));
    bench.pass(Duration::from_millis(2_100));
    assert_eq!((bench.failures.len(), &bench.stalled[..]), (3, &[stalled][..]));
}

#[test]
fn invalid_blocks_fail_the_want_as_corrupt() {
    let mut bench = Bench::new();
    let misbehaving = bench.connect(true);
    bench.want(0);
    assert_eq!(bench.block(misbehaving, 99), BlockUse::Invalid);
    bench.pass(Duration::from_millis(2_100));
    assert_eq!(bench.failures, vec![(key(0), SourceError::Corrupt { cid: cid(0) })]);
}

#[test]
fn an_invalid_block_is_replaced_by_another_peers() {
    let mut bench = Bench::new();
    let misbehaving = bench.connect(true);
    bench.want(0);
    let honest = bench.connect(false);
    bench.client.provider_found(bench.session(), honest, bench.now);
    bench.asked.clear();
    bench.block(misbehaving, 99);
    bench.drain();
    assert!(bench.take_asked(1).contains(&(honest, 0, Ask::Block)));
    assert_eq!(bench.block(honest, 0), BlockUse::Wanted);
    assert!(bench.failures.is_empty());
}

#[test]
fn cancelling_the_last_want_cancels_the_requests_and_the_search() {
    let mut bench = Bench::new();
    let peer = bench.connect(true);
    bench.want(0);
    bench.asked.clear();
    bench.client.cancel(bench.session(), key(0), bench.now);
    bench.drain();
    assert_eq!(bench.take_asked(1), vec![(peer, 0, Ask::Cancel)]);
    bench.pass(Duration::from_secs(3));
    assert_eq!(bench.stopped, vec![bench.session()]);
}

#[test]
fn wants_beyond_a_peers_limit_are_queued_in_order() {
    let mut bench = Bench::new();
    let peer = bench.connect(true);
    bench.want(0);
    // Tiny blocks: the number of wants is the limit, not their bytes.
    for n in 0..100 {
        bench.want(n);
        bench.client.received_block(peer, key(n), 1, bench.now);
    }
    bench.drain();
    let total = u32::try_from(MAX_WANTS_PER_PEER + 100).expect("fits");
    for n in 100..100 + total {
        bench.client.want(bench.session(), cid(n), bench.now);
    }
    bench.drain();
    assert_eq!(bench.client.peers[&peer].outstanding().count(), MAX_WANTS_PER_PEER);
    for n in 100..100 + total {
        assert_eq!(bench.block(peer, n), BlockUse::Wanted, "{n} was requested");
    }
    assert!(bench.client.wants.is_empty());
}

#[test]
fn sessions_are_bounded() {
    let mut bench = Bench::new();
    bench.client.config.sessions_max = 8;
    for n in 0..100 {
        let id = *cid(n).hash();
        bench.client.want(id, cid(n), bench.now);
        bench.client.cancel(id, key(n), bench.now);
        bench.now += MS;
    }
    assert!(bench.client.sessions.len() <= 8);
}

#[test]
fn outstanding_bytes_are_bounded_by_the_window() {
    let mut bench = Bench::new();
    let peer = bench.connect(true);
    bench.want(0);
    bench.client.received_block(peer, key(0), 256 * 1024, bench.now);
    for n in 1..200 {
        bench.client.want(bench.session(), cid(n), bench.now);
    }
    let outstanding = bench.client.peers[&peer].outstanding().count();
    assert!((4..40).contains(&outstanding), "{outstanding}");
    for n in 1..200 {
        bench.client.received_block(peer, key(n), 256 * 1024, bench.now);
    }
    assert!(bench.client.wants.is_empty());
}

#[test]
fn a_session_whose_members_all_deny_searches_again_immediately() {
    let mut bench = Bench::new();
    let peer = bench.connect(true);
    bench.want(0);
    bench.client.search_finished(bench.session(), bench.now);
    bench.block(peer, 0);
    bench.now += 2_000 * MS;
    bench.want(1);
    assert_eq!(bench.searches.len(), 1, "the member is asked first");
    bench.presence(peer, 1, false);
    assert_eq!(bench.searches.len(), 2);
    // The search found no provider. Lack of progress is no reason for another one, for a while.
    bench.client.search_finished(bench.session(), bench.now);
    bench.pass(1_000 * MS);
    assert_eq!(bench.searches.len(), 2);
}

#[test]
fn without_peers_wants_fail_immediately_and_the_next_one_searches_again() {
    let mut bench = Bench::new();
    for round in 1..=2 {
        bench.want(0);
        bench.want(1);
        bench.client.search_finished(bench.session(), bench.now);
        bench.client.fail_without_peers(bench.now);
        bench.finish_failing();
        let stalls = bench.failures.drain(..).filter_map(|(_, error)| match error {
            SourceError::Stalled { stall, .. } => Some(stall),
            _ => None,
        });
        assert_eq!(stalls.filter(|stall| stall.no_peers).count(), 2, "{round}");
        assert_eq!(bench.searches.len(), round, "there is no back-off");
    }
    bench.connect(false);
    bench.want(0);
    bench.client.fail_without_peers(bench.now);
    bench.drain();
    assert!(bench.failures.is_empty(), "there is a peer to ask");
}

#[test]
fn a_stopped_search_restarts_immediately() {
    let mut bench = Bench::new();
    bench.want(0);
    bench.client.cancel(bench.session(), key(0), bench.now);
    bench.pass(Duration::from_secs(3));
    assert_eq!(bench.stopped, vec![bench.session()]);
    bench.want(0);
    assert_eq!(bench.searches.len(), 2);
}

#[test]
fn former_members_are_asked_first_also_after_reconnecting() {
    let mut bench = Bench::new();
    let peer = bench.connect(false);
    bench.want(0);
    bench.presence(peer, 0, true);
    assert_eq!(bench.block(peer, 0), BlockUse::Wanted);
    bench.pass(Duration::from_secs(30));
    bench.asked.clear();
    bench.want(1);
    assert_eq!(bench.take_asked(2), vec![(peer, 1, Ask::Block)]);
    bench.client.peer_disconnected(peer, bench.now);
    bench.client.peer_connected(peer, false, bench.now);
    bench.drain();
    assert_eq!(bench.take_asked(2), vec![(peer, 1, Ask::Block)], "no longer a member, but a known provider");
}

#[test]
fn recently_useful_peers_are_asked_for_blocks_of_other_sessions() {
    let mut bench = Bench::new();
    let (useful, unrelated) = (bench.connect(false), bench.connect(false));
    bench.want(0);
    bench.presence(useful, 0, true);
    bench.block(useful, 0);
    bench.asked.clear();
    bench.client.want(*cid(7).hash(), cid(7), bench.now);
    bench.drain();
    let mut asked = bench.take_asked(8);
    asked.sort_by_key(|(peer, ..)| *peer != useful);
    assert_eq!(asked, vec![(useful, 7, Ask::Block), (unrelated, 7, Ask::Have)]);
}

#[test]
fn dont_haves_of_earlier_connections_do_not_count() {
    let mut bench = Bench::new();
    let peer = bench.connect(true);
    bench.want(0);
    bench.presence(peer, 0, false);
    bench.client.peer_disconnected(peer, bench.now);
    bench.asked.clear();
    bench.client.peer_connected(peer, true, bench.now);
    bench.drain();
    assert_eq!(bench.take_asked(1), vec![(peer, 0, Ask::Block)]);
}

#[test]
fn late_blocks_are_not_invalid() {
    let mut bench = Bench::new();
    let peer = bench.connect(true);
    // Cancelled, denied, and dropped because the peer violated the protocol.
    bench.want(0);
    bench.client.cancel(bench.session(), key(0), bench.now);
    assert_eq!(bench.block(peer, 0), BlockUse::Duplicate);
    bench.want(1);
    bench.presence(peer, 1, false);
    assert_eq!(bench.block(peer, 1), BlockUse::Wanted);
    bench.want(2);
    bench.client.peer_failed(peer, bench.now);
    assert_eq!(bench.block(peer, 2), BlockUse::Wanted);
    assert_eq!(bench.block(peer, 3), BlockUse::Invalid);
}

#[test]
fn a_message_has_one_change_per_block() {
    let mut bench = Bench::new();
    let peer = bench.connect(true);
    bench.want(0);
    bench.asked.clear();
    bench.client.cancel(bench.session(), key(0), bench.now);
    bench.client.want(bench.session(), cid(0), bench.now);
    bench.drain();
    assert_eq!(bench.take_asked(1), vec![(peer, 0, Ask::Block)]);
}

#[test]
fn unrelated_peers_are_asked_about_few_wants_at_a_time() {
    let mut bench = Bench::new();
    for _ in 0..40 {
        bench.connect(false);
    }
    for n in 0..100 {
        bench.want(n);
    }
    bench.pass(1_000 * MS);
    let asked = bench.asked.len();
    assert!(asked <= 4 * 16, "{asked} requests");
}

#[test]
fn a_block_received_just_before_a_disconnect_ends_the_want() {
    let mut bench = Bench::new();
    let (a, b) = (bench.connect(true), bench.connect(false));
    bench.want(0);
    bench.client.peer_disconnected(a, bench.now);
    bench.drain();
    bench.asked.clear();
    assert_eq!(bench.block(a, 0), BlockUse::Wanted);
    assert_eq!(bench.take_asked(1), vec![(b, 0, Ask::Cancel)], "the request to the other peer is cancelled");
    assert!(bench.client.wants.is_empty());
    assert_eq!(bench.block(a, 0), BlockUse::Duplicate);
}

#[test]
fn each_session_of_a_want_has_its_own_timeout() {
    let mut bench = Bench::new();
    let late = *cid(7).hash();
    bench.want(0);
    bench.pass(1_500 * MS);
    bench.client.want(late, cid(0), bench.now);
    bench.pass(700 * MS);
    assert_eq!(bench.failures.len(), 1, "the first has waited for 2.2 s");
    assert_eq!(bench.client.wants[&key(0)].sessions, vec![late]);
    bench.pass(1_500 * MS);
    assert_eq!(bench.failures.len(), 2);
    assert!(bench.client.wants.is_empty());
}

#[test]
fn a_new_peer_is_asked_for_presence_of_stalled_wants() {
    let mut bench = Bench::new();
    bench.want(0);
    let unrelated = bench.connect(false);
    bench.pass(100 * MS);
    assert_eq!(bench.take_asked(1), vec![(unrelated, 0, Ask::Have)]);
    bench.presence(unrelated, 0, true);
    assert_eq!(bench.take_asked(1), vec![(unrelated, 0, Ask::Block)]);
    bench.block(unrelated, 0);
    bench.want(1);
    bench.asked.clear();
    bench.connect(false);
    bench.pass(100 * MS);
    assert_eq!(bench.asked, vec![], "there is a member to ask");
}

#[test]
fn lost_responses_are_requested_again_at_a_limited_rate() {
    let mut bench = Bench::new();
    let peer = bench.connect(true);
    bench.want(0);
    bench.asked.clear();
    for _ in 0..10 {
        bench.client.answer_lost(peer, bench.now);
        bench.drain();
    }
    assert_eq!(bench.take_asked(1), vec![(peer, 0, Ask::Block)]);
    bench.asked.clear();
    bench.pass(600 * MS);
    let again = bench.take_asked(1).into_iter().filter(|(to, ..)| *to == peer).count();
    assert_eq!(again, 1, "the other nine are merged");
}

#[test]
fn a_favoured_non_member_is_hedged_early_if_another_peer_has_the_block() {
    let mut bench = Bench::new();
    let favoured = bench.connect(true);
    let other = bench.connect(false);
    bench.want(0);
    assert!(bench.take_asked(1).contains(&(favoured, 0, Ask::Block)));
    bench.now += 20 * MS;
    bench.presence(other, 0, true);
    assert_eq!(bench.asked, vec![], "it is not late yet");
    bench.pass(200 * MS);
    assert_eq!(bench.take_asked(1), vec![(other, 0, Ask::Block)]);
}

#[test]
fn a_lost_response_is_requested_again_for_the_remaining_session() {
    let mut bench = Bench::new();
    let (peer, late) = (bench.connect(true), *cid(7).hash());
    bench.want(0);
    bench.pass(1_500 * MS);
    bench.client.want(late, cid(0), bench.now);
    bench.drain();
    bench.asked.clear();
    bench.pass(700 * MS);
    assert_eq!(bench.failures.len(), 1);
    assert!(bench.take_asked(1).contains(&(peer, 0, Ask::Block)), "its answer may have been lost");
    bench.pass(1_000 * MS);
    assert_eq!(bench.take_asked(1), vec![], "it is sent once");
}

#[test]
fn a_favoured_peer_that_connects_later_gets_its_share() {
    let mut bench = Bench::new();
    let first = bench.connect(true);
    bench.want(0);
    bench.client.received_block(first, key(0), 256 * 1024, bench.now);
    (1..100).for_each(|n| bench.want(n));
    let second = bench.connect(true);
    let asked = std::mem::take(&mut bench.asked).into_iter().find(|(peer, _)| *peer == second).expect("asked").1;
    bench.client.received_presence(second, &asked.cid, true, bench.now);
    bench.drain();
    assert!(bench.client.peers[&second].outstanding().count() > 1);
}

#[test]
fn a_new_peer_is_asked_about_the_newest_outstanding_wants() {
    let mut bench = Bench::new();
    let first = bench.connect(true);
    bench.want(0);
    bench.client.received_block(first, key(0), 1_000, bench.now);
    (1..5).for_each(|n| bench.want(n));
    assert_eq!(bench.client.peers[&first].outstanding().count(), 4);
    bench.asked.clear();
    let second = bench.connect(true);
    assert_eq!(bench.take_asked(5), vec![(second, 4, Ask::Have)]);
}

#[test]
fn a_presence_counts_even_if_the_block_was_received_before() {
    let mut bench = Bench::new();
    let (a, b) = (bench.connect(true), bench.connect(true));
    bench.want(0);
    let first = bench.take_asked(1).into_iter().find(|(_, _, ask)| *ask == Ask::Block).expect("asked").0;
    let second = if first == a { b } else { a };
    bench.client.received_block(first, key(0), 256 * 1024, bench.now);
    bench.drain();
    (1..100).for_each(|n| bench.want(n));
    assert_eq!(bench.client.peers[&second].outstanding().count(), 0);
    bench.presence(second, 0, true);
    assert!(bench.client.peers[&second].outstanding().count() > 1, "it gets its share");
    // A repeated or unsolicited answer proves nothing.
    assert!(bench.client.peers.get_mut(&second).expect("known").cancelled_probe_answered(&key(0)).is_empty());
}

/// A want whose reader needs everything below block 0.
fn want_ahead(bench: &mut Bench, n: u32) {
    let root = Cid::new_v1(codec::DAG_PB, *cid(0).hash());
    bench.client.want_ahead(bench.session(), cid(n), Some(Arc::new(ReadAhead::all(root))), bench.now);
    bench.drain();
}

/// A session with a transfer.
struct WithTransfer {
    bench: Bench,
    /// The favoured peer, which speaks the DAG protocol, and from which a transfer was started for the first want.
    peer: PeerId,
    /// Another peer, which was asked for the presence of the first block.
    other: PeerId,
    transfer: TransferId,
    reader: Reader,
}

fn with_transfer() -> WithTransfer {
    let mut bench = Bench::new();
    let reader = Reader::of(&bench.readers, bench.session());
    let (peer, other) = (bench.connect(true), bench.connect(false));
    bench.client.set_speaks_dag(peer, true);
    want_ahead(&mut bench, 0);
    assert_eq!(bench.take_asked(1), vec![(other, 0, Ask::Have)]);
    let transfer = bench.transfers[0].id;
    WithTransfer { bench, peer, other, transfer, reader }
}

fn brings(bench: &mut Bench, transfer: TransferId, n: u32) -> BlockUse {
    let used = bench.client.transfer_received(transfer, key(n), 1_000, bench.now);
    bench.drain();
    used
}

#[test]
fn a_transfer_takes_the_place_of_the_want_of_a_peer_that_speaks_the_protocol() {
    let WithTransfer { mut bench, peer, other, transfer, reader: _reader } = with_transfer();
    assert_eq!((bench.transfers.len(), bench.transfers[0].peer), (1, peer));
    // What the transfer brings is not asked for twice.
    for n in 1..4 {
        want_ahead(&mut bench, n);
    }
    assert_eq!((bench.asked.len(), bench.transfers.len()), (0, 1));
    for n in 0..4 {
        assert_eq!(brings(&mut bench, transfer, n), BlockUse::Wanted);
    }
    assert_eq!(brings(&mut bench, transfer, 4), BlockUse::Duplicate, "it is buffered");
    assert_eq!(bench.take_asked(1), vec![(other, 0, Ask::Cancel)]);
    assert_eq!(bench.client.members(&bench.session()), 1);
    assert!(bench.client.wants.is_empty());
    // Other wants of the session are entries.
    bench.want(9);
    assert_eq!(bench.take_asked(10), vec![(peer, 9, Ask::Block)]);
}

#[test]
fn peers_that_do_not_speak_it_and_wants_without_more_are_asked_as_before() {
    let mut bench = Bench::new();
    let peer = bench.connect(true);
    want_ahead(&mut bench, 0);
    assert_eq!(bench.take_asked(1), vec![(peer, 0, Ask::Block)]);
    bench.block(peer, 0);
    bench.client.set_speaks_dag(peer, true);
    bench.want(1);
    let alone = Some(Arc::new(ReadAhead::all(cid(2))));
    bench.client.want_ahead(bench.session(), cid(2), alone, bench.now);
    bench.drain();
    assert_eq!(bench.take_asked(3), vec![(peer, 1, Ask::Block), (peer, 2, Ask::Block)]);
    assert!(bench.transfers.is_empty(), "a raw block has nothing below it");
}

#[test]
fn what_a_transfer_does_not_bring_is_asked_for_at_once() {
    for end in [EndStatus::Refused, EndStatus::Busy, EndStatus::Complete, EndStatus::Failed] {
        let WithTransfer { mut bench, peer, transfer, reader: _reader, .. } = with_transfer();
        brings(&mut bench, transfer, 0);
        want_ahead(&mut bench, 1);
        want_ahead(&mut bench, 2);
        bench.asked.clear();
        bench.client.transfer_ended(transfer, &TransferEnd::Status(end), bench.now);
        bench.drain();
        assert_eq!(bench.take_asked(3), vec![(peer, 1, Ask::Block), (peer, 2, Ask::Block)], "{end:?}");
        // The peer is not asked for the next one again, if it has refused.
        want_ahead(&mut bench, 3);
        let again = end == EndStatus::Complete;
        assert_eq!(bench.transfers.len(), if again { 2 } else { 1 }, "{end:?}");
    }
    // The reader of a transfer whose budget was not renewed has come back: another one goes on.
    let WithTransfer { mut bench, peer, transfer, reader: _reader, .. } = with_transfer();
    brings(&mut bench, transfer, 0);
    want_ahead(&mut bench, 1);
    bench.asked.clear();
    bench.client.transfer_ended(transfer, &TransferEnd::Status(EndStatus::Budget), bench.now);
    bench.drain();
    assert_eq!((bench.transfers.len(), bench.asked.len()), (2, 0));
    // Not if it has brought nothing, which would go on for ever.
    let transfer = bench.transfers[1].id;
    bench.client.transfer_ended(transfer, &TransferEnd::Status(EndStatus::Budget), bench.now);
    bench.drain();
    want_ahead(&mut bench, 2);
    assert_eq!(bench.transfers.len(), 2);
    assert_eq!(bench.take_asked(3), vec![(peer, 1, Ask::Block), (peer, 2, Ask::Block)]);
}

#[test]
fn an_absent_block_is_asked_of_the_next_peer_and_a_dropped_one_of_the_same() {
    let WithTransfer { mut bench, peer, other, transfer, reader: _reader } = with_transfer();
    want_ahead(&mut bench, 1);
    want_ahead(&mut bench, 2);
    bench.presence(other, 0, true);
    bench.asked.clear();
    bench.client.transfer_lacks(transfer, &cid(1), bench.now);
    bench.drain();
    let asked = bench.take_asked(3);
    assert!(asked.iter().all(|(asked, n, _)| *asked == other && *n == 1) && !asked.is_empty(), "{asked:?}");
    bench.client.transfer_dropped(transfer, &cid(2), bench.now);
    bench.drain();
    let asked = bench.take_asked(3);
    assert!(asked.contains(&(peer, 2, Ask::Block)) || asked.contains(&(other, 2, Ask::Block)), "{asked:?}");
}

#[test]
fn a_transfer_that_stalls_is_hedged_and_given_up() {
    let WithTransfer { mut bench, other, transfer, reader: _reader, .. } = with_transfer();
    bench.presence(other, 0, true);
    brings(&mut bench, transfer, 0);
    want_ahead(&mut bench, 1);
    bench.asked.clear();
    bench.pass(Duration::from_millis(700));
    assert_eq!(bench.take_asked(2), vec![(other, 1, Ask::Block)], "as if it had been asked by an entry");
    assert!(!bench.transfers[0].state().has_ended());
    bench.pass(Duration::from_millis(1_000));
    assert!(bench.transfers[0].state().has_ended(), "it is given up");
    assert_eq!(bench.block(other, 1), BlockUse::Wanted);
}

#[test]
fn a_transfer_is_for_the_session_whose_reader_needs_more() {
    let mut bench = Bench::new();
    let (first, second) = (*cid(100).hash(), *cid(200).hash());
    let root = Cid::new_v1(codec::DAG_PB, *cid(200).hash());
    let ahead = || Some(Arc::new(ReadAhead::all(root)));
    bench.client.want(first, cid(1), bench.now);
    bench.client.want_ahead(second, cid(1), ahead(), bench.now);
    let peer = bench.connect(false);
    bench.client.set_speaks_dag(peer, true);
    bench.client.provider_found(second, peer, bench.now);
    bench.drain();
    assert_eq!(bench.transfers.iter().map(|active| active.session).collect::<Vec<_>>(), [second]);
    // Not for one that does not wait any more.
    let mut bench = Bench::new();
    bench.client.want(first, cid(1), bench.now);
    bench.client.want_ahead(second, cid(1), ahead(), bench.now);
    bench.client.cancel(second, key(1), bench.now);
    let peer = bench.connect(false);
    bench.client.set_speaks_dag(peer, true);
    bench.client.provider_found(first, peer, bench.now);
    bench.drain();
    assert!(bench.transfers.is_empty());
    assert_eq!(bench.take_asked(2), vec![(peer, 1, Ask::Block)]);
}

#[test]
fn a_denied_want_does_not_keep_its_transfer_awaited() {
    let WithTransfer { mut bench, peer, other, transfer, reader: _reader } = with_transfer();
    bench.presence(other, 0, true);
    brings(&mut bench, transfer, 0);
    want_ahead(&mut bench, 1);
    assert!(bench.client.planner.waits(transfer, &key(1)));
    bench.presence(peer, 1, false);
    assert!(!bench.client.planner.waits(transfer, &key(1)));
    bench.pass(Duration::from_millis(1_500));
    assert!(!bench.transfers[0].state().has_ended(), "nobody waits for it, so that it does not stall");
}

#[test]
fn a_peer_that_fails_brings_nothing_more() {
    let WithTransfer { mut bench, peer, other, reader: _reader, .. } = with_transfer();
    bench.presence(other, 0, true);
    bench.asked.clear();
    bench.client.peer_lied(peer, bench.now);
    bench.drain();
    assert!(bench.transfers[0].state().has_ended());
    assert_eq!(bench.take_asked(1), vec![(other, 0, Ask::Block)]);
}

/// Fills the window of a transfer with blocks that nobody takes, of which the first wait for their parents.
fn fill(active: &ActiveTransfer) {
    let mut n = 1_000;
    while !active.state().is_full() {
        let data = Bytes::copy_from_slice(&u32::to_be_bytes(n).repeat(64 * 1024));
        let block = Block::of(codec::RAW, hashes::SHA2_256, 32, data).expect("block");
        active.state().arrived(Answer::plain(&block), None).expect("is in the budget");
        n += 1;
    }
}

#[test]
fn a_want_does_not_wait_for_a_transfer_that_is_full_of_what_nobody_takes() {
    let WithTransfer { mut bench, peer, transfer, reader: _reader, .. } = with_transfer();
    fill(&bench.transfers[0]);
    want_ahead(&mut bench, 1);
    assert_eq!(bench.transfers.len(), 1, "the first want waits for it, so that room is made");
    brings(&mut bench, transfer, 0);
    brings(&mut bench, transfer, 1);
    want_ahead(&mut bench, 2);
    assert_eq!(bench.transfers.len(), 2, "another transfer takes its place");
    assert_eq!((bench.transfers[1].peer, bench.asked.iter().filter(|(_, want)| want.cid == cid(2)).count()), (peer, 0));
    assert!(bench.transfers[0].state().has_ended() && !bench.transfers[1].state().has_ended());
    want_ahead(&mut bench, 3);
    assert_eq!(bench.transfers.len(), 2);
}

#[test]
fn a_transfer_that_has_used_up_its_budget_says_nothing_about_its_peer() {
    let mut bench = Bench::new();
    let _reader = Reader::of(&bench.readers, bench.session());
    let (peer, other) = (bench.connect(true), bench.connect(false));
    bench.client.set_speaks_dag(peer, true);
    want_file(&mut bench, 0, 0);
    let transfer = bench.transfers[0].id;
    brings(&mut bench, transfer, 0);
    // Another member joins while a want waits: the transfer brings what its budget allows, which is not enough.
    want_file(&mut bench, 1, MIB);
    bench.client.set_speaks_dag(other, true);
    bench.presence(other, 1, true);
    bench.client.joined(bench.session(), other, true, bench.now);
    assert!(bench.client.planner.waits(transfer, &key(1)));
    fill(&bench.transfers[0]);
    assert!(bench.transfers[0].state().is_used_up());
    bench.pass(1_700 * MS);
    assert_eq!(bench.ends, [TransferEnd::Status(EndStatus::Budget)]);
    // The same peer is asked for the rest.
    bench.block(other, 1);
    bench.client.peer_disconnected(other, bench.now);
    bench.drain();
    let others = bench.transfers.len();
    want_file(&mut bench, 2, 50 * MIB);
    let last = bench.transfers.last().map(|active| active.peer);
    assert_eq!((bench.transfers.len(), last), (others + 1, Some(peer)));
}

#[test]
fn wants_move_on_when_the_peer_of_a_transfer_disconnects() {
    let WithTransfer { mut bench, peer, other, reader: _reader, .. } = with_transfer();
    bench.presence(other, 0, true);
    bench.asked.clear();
    bench.client.peer_disconnected(peer, bench.now);
    bench.drain();
    assert_eq!(bench.take_asked(1), vec![(other, 0, Ask::Block)]);
    assert!(bench.transfers[0].state().has_ended());
}

#[test]
fn a_transfer_ends_when_its_readers_have_left() {
    let WithTransfer { mut bench, transfer, reader, .. } = with_transfer();
    brings(&mut bench, transfer, 0);
    bench.pass(Duration::from_secs(10));
    assert!(!bench.transfers[0].state().has_ended(), "its reader may be slow");
    drop(reader);
    bench.pass(Duration::from_secs(3));
    assert!(bench.transfers[0].state().has_ended());
    bench.pass(Duration::from_secs(90));
    assert!(bench.client.is_idle());
}

#[test]
fn several_members_that_speak_the_protocol_send_parts_of_a_file() {
    let mut bench = Bench::new();
    let _reader = Reader::of(&bench.readers, bench.session());
    let (first, second) = (bench.connect(true), bench.connect(false));
    for peer in [first, second] {
        bench.client.set_speaks_dag(peer, true);
    }
    let root = Cid::new_v1(codec::DAG_PB, *cid(0).hash());
    let want = |bench: &mut Bench, n: u32, from: u64| {
        let ahead = Some(Arc::new(ReadAhead::of_file(root, from, 100 * MIB)));
        bench.client.want_ahead(bench.session(), cid(n), ahead, bench.now);
        bench.drain();
    };
    want(&mut bench, 0, 0);
    assert_eq!(bench.transfers.len(), 1);
    assert!(bench.transfers[0].state().covers(&ReadAhead::of_file(root, 20 * MIB, 100 * MIB)));
    // Another member: the first transfer brings what its budget allows, and parts of the rest are asked of both.
    bench.presence(second, 0, true);
    let first_transfer = bench.transfers[0].id;
    brings(&mut bench, first_transfer, 0);
    assert!(!bench.transfers[0].state().covers(&ReadAhead::of_file(root, 20 * MIB, 100 * MIB)));
    for (n, from) in [(1, 20), (2, 24), (3, 28), (4, 32)] {
        want(&mut bench, n, from * MIB);
    }
    let parts: Vec<_> = bench.transfers[1..].iter().map(|active| (active.peer, active.expected_bytes())).collect();
    assert_eq!(parts.len(), 4);
    assert!(parts.iter().all(|(_, bytes)| *bytes == Some(4 * MIB)), "{parts:?}");
    assert!([first, second].iter().all(|peer| parts.iter().any(|(asked, _)| asked == peer)), "{parts:?}");
    assert_eq!(bench.asked.iter().filter(|(_, entry)| entry.ask == Ask::Block).count(), 0);
}

const MIB: u64 = 1024 * 1024;

/// A want whose reader needs a file of 100 MiB from there on.
fn want_file(bench: &mut Bench, n: u32, from: u64) {
    let root = Cid::new_v1(codec::DAG_PB, *cid(0).hash());
    let ahead = Some(Arc::new(ReadAhead::of_file(root, from, 100 * MIB)));
    bench.client.want_ahead(bench.session(), cid(n), ahead, bench.now);
    bench.drain();
}

fn gateway(bench: &mut Bench) -> PeerId {
    let gateway = PeerId::random();
    bench.client.gateway_connected(gateway, true, bench.now);
    bench.drain();
    gateway
}

/// A gateway, or a peer that speaks the DAG protocol.
fn sender(bench: &mut Bench, is_gateway: bool) -> PeerId {
    if is_gateway {
        return gateway(bench);
    }
    let peer = bench.connect(true);
    bench.client.set_speaks_dag(peer, true);
    peer
}

/// A source, and a transfer of the file from it that has brought its first block.
struct WithFile {
    bench: Bench,
    sender: PeerId,
    first: Arc<ActiveTransfer>,
    reader: Reader,
}

fn with_file(from_gateway: bool) -> WithFile {
    let mut bench = Bench::new();
    let reader = Reader::of(&bench.readers, bench.session());
    let sender = sender(&mut bench, from_gateway);
    want_file(&mut bench, 0, 0);
    let first = Arc::clone(&bench.transfers[0]);
    brings(&mut bench, first.id, 0);
    WithFile { bench, sender, first, reader }
}

/// The bounds of the range of a transfer.
fn range(active: &ActiveTransfer) -> (i64, Option<i64>) {
    active.request().scope.entity_bytes.expect("a range").bounds()
}

/// An offset in MiB.
fn at(mib: u64) -> i64 {
    i64::try_from(mib * MIB).expect("small")
}

#[test]
fn a_gateway_sends_a_file_or_parts_of_it_while_there_are_other_members() {
    let mut bench = Bench::new();
    let _reader = Reader::of(&bench.readers, bench.session());
    let gateway = gateway(&mut bench);
    want_file(&mut bench, 0, 0);
    assert_eq!((bench.transfers.len(), bench.transfers[0].peer), (1, gateway));
    assert_eq!(bench.transfers[0].over(), BlockTransport::Http);
    let first = bench.transfers[0].id;
    brings(&mut bench, first, 0);
    let later = ReadAhead::of_file(Cid::new_v1(codec::DAG_PB, *cid(0).hash()), 20 * MIB, 100 * MIB);
    assert!(bench.transfers[0].state().covers(&later));
    // A peer that sends single blocks cannot share the transfer, but the parts after it.
    want_file(&mut bench, 1, 10 * MIB);
    let other = bench.connect(true);
    bench.presence(other, 1, true);
    assert!(!bench.transfers[0].state().covers(&later));
    for n in 2..12 {
        want_file(&mut bench, n, u64::from(n) * 10 * MIB);
    }
    let asked = bench.take_asked(12);
    let parts = &bench.transfers[1..];
    assert!(parts.iter().all(|part| part.peer == gateway && part.expected_bytes() == Some(4 * MIB)));
    let of_other = asked.iter().filter(|(peer, _, ask)| *peer == other && *ask == Ask::Block).count();
    assert!(!parts.is_empty() && of_other > 0, "{} parts, {of_other} blocks", parts.len());
    assert!(asked.iter().all(|(peer, ..)| *peer == other));
}

#[test]
fn transfers_of_a_file_do_not_overlap() {
    for from_gateway in [false, true] {
        let WithFile { mut bench, sender, reader: _reader, .. } = with_file(from_gateway);
        // Readers request nodes that are far ahead alone: what is below them is not needed yet.
        for n in 1..3 {
            let node = Cid::new_v1(codec::DAG_PB, *cid(n).hash());
            bench.client.want_ahead(bench.session(), node, Some(Arc::new(ReadAhead::block(node))), bench.now);
            bench.drain();
            bench.block(sender, n);
        }
        assert_eq!((bench.transfers.len(), bench.asked.len()), (1, 2));
        // Readers of other parts, whose leaves may be nodes.
        let leaf = Cid::new_v1(codec::DAG_PB, *cid(4).hash());
        bench.client.want_ahead(bench.session(), leaf, Some(Arc::new(file_from(60 * MIB))), bench.now);
        bench.drain();
        want_file(&mut bench, 5, 40 * MIB);
        let ranges: Vec<_> = bench.transfers.iter().map(|active| range(active)).collect();
        let expected = [(0, Some(at(100) - 1)), (at(60), Some(at(100) - 1)), (at(40), Some(at(60) - 1))];
        assert_eq!(ranges, expected, "{from_gateway}");
    }
}

/// The hint of a reader of that file.
fn file_from(from: u64) -> ReadAhead {
    ReadAhead::of_file(Cid::new_v1(codec::DAG_PB, *cid(0).hash()), from, 100 * MIB)
}

#[test]
fn a_transfer_that_is_ahead_goes_on_when_one_is_requested_behind_it() {
    for from_gateway in [false, true] {
        let WithFile { mut bench, sender, first, reader: _reader } = with_file(from_gateway);
        first.state().reach(50 * MIB);
        // What it brought there was not kept.
        let (session, behind) = (bench.session(), file_from(10 * MIB));
        let second = bench.client.planner.start(session, sender, &key(1), &behind, false, bench.now).expect("starts");
        assert_eq!(range(&second), (at(10), Some(at(50) - 1)), "the first one brings what follows");
        brings(&mut bench, second.id, 1);
        assert!(!first.state().is_needless() && !second.state().is_needless());
        assert!(first.state().covers(&file_from(60 * MIB)));
    }
}

#[test]
fn a_transfer_ends_where_another_one_begins_only_if_that_one_brings_something() {
    for (from_gateway, reached) in [(false, None), (false, Some(70 * MIB)), (true, None), (true, Some(70 * MIB))] {
        let WithFile { mut bench, first, reader: _reader, .. } = with_file(from_gateway);
        want_file(&mut bench, 1, 60 * MIB);
        let second = Arc::clone(&bench.transfers[1]);
        first.state().reach(40 * MIB);
        let is_brought = |active: &ActiveTransfer, mib: u64| active.state().covers(&file_from(mib * MIB));
        assert!(is_brought(&first, 60), "the other one may never start");
        reached.into_iter().for_each(|reached| first.state().reach(reached));
        brings(&mut bench, second.id, 1);
        match reached {
            None => assert_eq!((is_brought(&first, 59), is_brought(&first, 60)), (true, false)),
            // The first one was faster.
            Some(_) => assert!(is_brought(&first, 71)),
        }
        second.state().reach(69 * MIB);
        assert_eq!(is_brought(&second, 70), reached.is_none(), "{from_gateway}");
    }
    // It ends without a block.
    for (from_gateway, end) in [(false, TransferEnd::Lost), (true, TransferEnd::Declined(Decline::Failed))] {
        let WithFile { mut bench, first, reader: _reader, .. } = with_file(from_gateway);
        want_file(&mut bench, 1, 60 * MIB);
        let second = bench.transfers[1].id;
        bench.client.transfer_ended(second, &end, bench.now);
        bench.drain();
        first.state().reach(60 * MIB);
        assert!(!first.state().is_needless(), "{from_gateway}");
    }
}

#[test]
fn a_short_part_of_a_file_divides_no_transfer_unless_nothing_follows_it() {
    // The part, and whether the first transfer ends where that begins, in MiB.
    for (from_gateway, from, to, divides) in
        [(false, 60, 61, false), (false, 95, 100, true), (false, 60, 76, true), (true, 60, 61, false)]
    {
        let WithFile { mut bench, first, reader: _reader, .. } = with_file(from_gateway);
        let ahead = ReadAhead::of_file(first.request().root, from * MIB, to * MIB);
        bench.client.want_ahead(bench.session(), cid(1), Some(Arc::new(ahead)), bench.now);
        bench.drain();
        let second = bench.transfers[1].id;
        brings(&mut bench, second, 1);
        // Neither does it cut what is requested next.
        want_file(&mut bench, 2, 40 * MIB);
        let end = if divides { from } else { 100 };
        assert_eq!(range(&bench.transfers[2]), (at(40), Some(at(end) - 1)), "{from_gateway} {from} {to}");
        first.state().reach((from - 1) * MIB);
        assert_eq!(!first.state().covers(&file_from(from * MIB)), divides, "{from_gateway} {from} {to}");
    }
}

#[test]
fn a_transfer_is_started_for_a_reader_that_is_far_behind_the_running_one() {
    // Where the reader is, whether the running transfer is full, and the range of the next one, in MiB.
    let table = [
        (10, false, Some((10, 50))),
        (40, false, None),
        (10, true, Some((10, 100))),
        // What the reader needs is buffered, except for this block.
        (40, true, None),
    ];
    for (from, is_full, expected) in table {
        let mut bench = Bench::new();
        let (root, _) = directory(MIB);
        let session = *root.cid().hash();
        let _reader = Reader::of(&bench.readers, session);
        let peer = sender(&mut bench, false);
        let want = |bench: &mut Bench, from: u64| {
            let ahead = ReadAhead::of_file(*root.cid(), from * MIB, 100 * MIB);
            bench.client.want_ahead(session, *root.cid(), Some(Arc::new(ahead)), bench.now);
            bench.drain();
        };
        want(&mut bench, 0);
        let first = Arc::clone(&bench.transfers[0]);
        name_children(&first, &root);
        bench.client.transfer_received(first.id, root.key().expect("a key"), 1_000, bench.now);
        bench.drain();
        bench.asked.clear();
        first.state().reach(50 * MIB);
        if is_full {
            fill(&first);
        }
        // A block that it has brought, and that was not kept.
        want(&mut bench, from);
        let asked: Vec<_> = bench.asked.iter().map(|(asked, entry)| (*asked, entry.cid, entry.ask)).collect();
        let Some((from, to)) = expected else {
            assert_eq!((bench.transfers.len(), asked), (1, vec![(peer, *root.cid(), Ask::Block)]), "{from} {is_full}");
            continue;
        };
        assert_eq!((bench.transfers.len(), asked.len()), (2, 0), "{from} {is_full}");
        assert_eq!(range(&bench.transfers[1]), (at(from), Some(at(to) - 1)), "{from} {is_full}");
        assert_eq!(first.state().has_ended(), is_full, "one that is full is replaced");
    }
}

#[test]
fn a_gateway_may_take_long_to_begin_while_others_are_asked() {
    let mut bench = Bench::new();
    let _reader = Reader::of(&bench.readers, bench.session());
    gateway(&mut bench);
    want_file(&mut bench, 0, 0);
    let other = bench.connect(false);
    bench.pass(1_800 * MS);
    assert!(!bench.transfers[0].state().has_ended(), "it times itself");
    assert!(bench.take_asked(1).iter().any(|(peer, ..)| *peer == other), "as if a single block were late");
}

#[test]
fn a_gateway_that_is_slow_with_a_car_is_asked_for_single_blocks() {
    let mut bench = Bench::new();
    let _reader = Reader::of(&bench.readers, bench.session());
    let gateway = gateway(&mut bench);
    want_file(&mut bench, 0, 0);
    bench.pass(400 * MS);
    assert_eq!(bench.take_asked(1), vec![], "a gateway may take a while to begin");
    bench.pass(200 * MS);
    assert_eq!(bench.take_asked(1), vec![(gateway, 0, Ask::Block)]);
    assert_eq!(bench.block(gateway, 0), BlockUse::Wanted);
    // No want waits for it again, and no other CAR is requested.
    want_file(&mut bench, 1, MIB);
    assert_eq!((bench.take_asked(2), bench.transfers.len()), (vec![(gateway, 1, Ask::Block)], 1));
    // Until it has begun.
    let first = bench.transfers[0].id;
    assert_eq!(brings(&mut bench, first, 1), BlockUse::Wanted);
    assert_eq!(bench.take_asked(2), vec![(gateway, 1, Ask::Cancel)]);
    want_file(&mut bench, 2, 2 * MIB);
    assert_eq!((bench.take_asked(3), bench.transfers.len()), (vec![], 1));
    assert_eq!(bench.failures, vec![]);
}

/// A directory with two files, of which the first one has so many bytes, and the roots of the files.
fn directory(first_bytes: u64) -> (Block, [Cid; 2]) {
    let source = TestSource::default();
    let import = Import::new(&source, profile(false));
    let [first, second] = [1, 2].map(|seed| import.file(&noise(seed, 10_000)));
    let first = Part { file_bytes: first_bytes, dag_bytes: first_bytes, ..first };
    let root = import.tree(&[("a", first), ("b", second)]).cid;
    let root = source.all().into_iter().find(|block| *block.cid() == root).expect("is stored");
    (root, [first.cid, second.cid])
}

/// A transfer receives a block that it has named, and its children are named.
fn name_children(active: &ActiveTransfer, block: &Block) {
    let mut state = active.state();
    let Ok(Arrival::Verify(verify)) = state.arrived(Answer::plain(block), None) else { panic!("it is named") };
    let named = children(&verify, block);
    state.verified(&verify, block, &named).expect("is small");
    state.delivered(&verify);
}

#[test]
fn a_block_that_a_running_transfer_has_brought_is_requested_alone_if_it_is_wanted_again() {
    for from_gateway in [false, true] {
        let mut bench = Bench::new();
        let (root, _) = directory(MIB);
        let session = *root.cid().hash();
        let _reader = Reader::of(&bench.readers, session);
        let peer = if from_gateway { gateway(&mut bench) } else { bench.connect(true) };
        bench.client.set_speaks_dag(peer, !from_gateway);
        let want = |bench: &mut Bench| {
            bench.client.want_ahead(session, *root.cid(), Some(Arc::new(ReadAhead::all(*root.cid()))), bench.now);
            bench.drain();
        };
        want(&mut bench);
        let transfer = Arc::clone(&bench.transfers[0]);
        name_children(&transfer, &root);
        bench.client.transfer_received(transfer.id, root.key().expect("a key"), 1_000, bench.now);
        bench.drain();
        bench.asked.clear();
        // It was dropped to make room. A second transfer would bring all that follows again.
        want(&mut bench);
        assert_eq!(bench.transfers.len(), 1, "{from_gateway}");
        let asked: Vec<_> = bench.asked.iter().map(|(asked, entry)| (*asked, entry.cid, entry.ask)).collect();
        assert_eq!(asked, [(peer, *root.cid(), Ask::Block)], "{from_gateway}");
        // One that has ended has nothing to do with it.
        transfer.cancel();
        bench.drain();
        bench.client.received_block(peer, root.key().expect("a key"), 1_000, bench.now);
        want(&mut bench);
        assert_eq!(bench.transfers.len(), 2, "{from_gateway}");
    }
}

#[test]
fn a_file_that_a_car_of_its_directory_has_passed_may_be_requested_as_another_car() {
    for from_gateway in [false, true] {
        let (mut bench, source) = (Bench::new(), TestSource::default());
        let import = Import::new(&source, profile(false));
        let part = import.file(&noise(1, 10_000));
        let file = part.cid;
        let root = import.tree(&[("a", part)]).cid;
        let session = *root.hash();
        let _reader = Reader::of(&bench.readers, session);
        let peer = sender(&mut bench, from_gateway);
        bench.client.want_ahead(session, root, Some(Arc::new(ReadAhead::all(root))), bench.now);
        bench.drain();
        let transfer = Arc::clone(&bench.transfers[0]);
        for cid in [root, file] {
            let block = source.all().into_iter().find(|block| *block.cid() == cid).expect("is stored");
            name_children(&transfer, &block);
        }
        let wanted = BlockKey::of(&file).expect("a key");
        let ahead = ReadAhead::of_file(file, 0, 10_000);
        let again = bench.client.planner.start(session, peer, &wanted, &ahead, false, bench.now);
        assert_eq!(again.is_some(), from_gateway);
    }
}

#[test]
fn what_a_divided_transfer_has_brought_past_its_end_is_requested_with_what_follows() {
    let (mut bench, source) = (Bench::new(), TestSource::default());
    let file = Import::new(&source, profile(false)).file(&noise(1, 10_000)).cid;
    let block = |cid: Cid| source.all().into_iter().find(|block| *block.cid() == cid).expect("is stored");
    let session = *file.hash();
    let _reader = Reader::of(&bench.readers, session);
    let peer = sender(&mut bench, false);
    bench.client.want_ahead(session, file, Some(Arc::new(ReadAhead::of_file(file, 0, 10_000))), bench.now);
    bench.drain();
    let transfer = Arc::clone(&bench.transfers[0]);
    // Leaves of 4 KiB.
    let leaf = content::dag::links(&block(file)).expect("links")[1];
    [file, leaf].into_iter().for_each(|cid| name_children(&transfer, &block(cid)));
    let (wanted, ahead) = (BlockKey::of(&leaf).expect("a key"), ReadAhead::of_file(file, 4_096, 10_000));
    let mut start = || bench.client.planner.start(session, peer, &wanted, &ahead, false, bench.now);
    assert!(start().is_none(), "it is requested alone");
    transfer.state().end_at(4_096, true);
    assert!(start().is_some(), "it was not kept");
}

#[test]
fn a_block_that_is_not_known_to_be_close_is_not_waited_for_in_a_car() {
    for (first_bytes, is_close) in [(MIB, true), (1 << 40, false)] {
        let mut bench = Bench::new();
        let (root, [first, second]) = directory(first_bytes);
        let session = *root.cid().hash();
        let _reader = Reader::of(&bench.readers, session);
        let gateway = gateway(&mut bench);
        let want = |bench: &mut Bench, cid: Cid| {
            bench.client.want_ahead(session, cid, Some(Arc::new(ReadAhead::all(cid))), bench.now);
            bench.drain();
        };
        let receive = |bench: &mut Bench, key: BlockKey| {
            let transfer = bench.transfers[0].id;
            bench.client.transfer_received(transfer, key, 1_000_000, bench.now);
            bench.drain();
        };
        want(&mut bench, *root.cid());
        name_children(&bench.transfers[0], &root);
        receive(&mut bench, root.key().expect("a key"));
        want(&mut bench, first);
        want(&mut bench, second);
        assert_eq!((bench.asked.len(), bench.transfers.len()), (0, 1), "a CAR may bring them soon");
        // All that it brings is below the first file, whose root is late, but about to be brought.
        for n in 0..4 {
            bench.pass(TICK);
            receive(&mut bench, key(1_000 + n));
        }
        let asked: Vec<(PeerId, Cid, Ask)> =
            bench.asked.iter().map(|(peer, want)| (*peer, want.cid, want.ask)).collect();
        let expected = if is_close { vec![] } else { vec![(gateway, second, Ask::Block)] };
        assert_eq!(asked, expected, "{first_bytes}");
        assert_eq!(bench.transfers.len(), 1);
    }
}

#[test]
fn a_gateway_that_declines_is_asked_for_single_blocks() {
    let table = [
        (Decline::Lacks, true),
        (Decline::Incomplete, true),
        (Decline::Refused, true),
        (Decline::Failed, true),
        (Decline::Unsupported, false),
    ];
    for (decline, others_are_asked_for) in table {
        let mut bench = Bench::new();
        let _reader = Reader::of(&bench.readers, bench.session());
        let gateway = gateway(&mut bench);
        want_file(&mut bench, 0, 0);
        let transfer = bench.transfers[0].id;
        bench.client.transfer_ended(transfer, &TransferEnd::Declined(decline), bench.now);
        bench.drain();
        assert_eq!(bench.take_asked(1), vec![(gateway, 0, Ask::Block)], "{decline:?}");
        bench.block(gateway, 0);
        want_file(&mut bench, 1, MIB);
        assert_eq!(bench.take_asked(2), vec![(gateway, 1, Ask::Block)], "{decline:?}");
        assert_eq!(bench.transfers.len(), 1, "{decline:?}: not for this DAG");
        // Another DAG.
        let root = Cid::new_v1(codec::DAG_PB, *cid(5).hash());
        bench.client.want_ahead(*root.hash(), cid(5), Some(Arc::new(ReadAhead::all(root))), bench.now);
        bench.drain();
        assert_eq!(bench.transfers.len() == 2, others_are_asked_for, "{decline:?}");
    }
}
