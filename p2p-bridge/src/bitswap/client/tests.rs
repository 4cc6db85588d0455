//! Tests of the client, one per rule.

use super::*;
use crate::bitswap::message::MAX_WANTS_PER_PEER;
use bytes::Bytes;
use content::{Block, codec, hashes};

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
}

impl Bench {
    fn new() -> Self {
        let config = Config { stall_timeout: Duration::from_secs(2), ..Config::default() };
        Self {
            client: Client::new(config, Metrics::default()),
            now: Instant::now(),
            asked: Vec::new(),
            searches: Vec::new(),
            stopped: Vec::new(),
            stalled: Vec::new(),
            failures: Vec::new(),
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
        while let Some(action) = self.client.poll_action() {
            match action {
                Action::Send { peer, entries } => self.asked.extend(entries.into_iter().map(|entry| (peer, entry))),
                Action::Search(session) => self.searches.push(session),
                Action::StopSearch(session) => self.stopped.push(session),
                Action::Joined(..) => {}
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
