//! Wants that fail: when, in which order, and how many at a time.
//!
//! Goals: the failures of many wants are spread over time. Each wakes a request, which renders an error and is followed
//! by another request; a thousand at once would occupy HTTP for a tenth of a second, during which cache hits wait. And
//! clients that repeat a request when it fails would do so together, and their wants would fail together again.
//!
//! How: a tick finds the wants that are due and sorts them by deadline. They fail in steps of [`STEP`]: as many in each
//! as let all of them fail before the next tick, and [`FAILURES_PER_STEP_MAX`] at most. A want that is due remains a
//! want until then, so that a block that is received meanwhile is delivered, and one that a peer answers is not failed.
//!
//! The last of the wants that a tick finds fails within one [`TICK`] for each 400 of them ([`FAILURES_PER_STEP_MAX`] in
//! each of [`STEPS_PER_TICK`]): within 0.3 s for 1,024, and within 4.1 s for the most that there can be (16,384).

use super::state::{Peer, Search, Want};
use super::{Action, Client, Failure};
use crate::wants::SessionId;
use content::{BlockKey, SourceError, Stall};
use libp2p::PeerId;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The interval of [`Client::fail_next`] while wants are due.
pub const STEP: Duration = Duration::from_millis(2);
/// The maximum number of wants that fail in a step.
pub const FAILURES_PER_STEP_MAX: usize = 8;
/// The steps between two ticks.
const STEPS_PER_TICK: usize = 50;
/// A want that later wants keep overtaking fails after this many stall timeouts, whatever the progress.
const OVERTAKEN_STALLS: u32 = 4;

/// A want that is to fail.
#[derive(Debug)]
pub(super) struct Due {
    /// Its deadline.
    pub since: Instant,
    /// Its position in the order of wants.
    pub order: u64,
    pub key: BlockKey,
}

/// The wants that are to fail, by deadline. Some may have ended since they were found.
#[derive(Debug, Default)]
pub(super) struct Failing {
    keys: VecDeque<BlockKey>,
    per_step: usize,
}

impl Failing {
    /// Replaces all of them with those that are due now, which include the former ones that have not ended.
    pub fn replace(&mut self, mut due: Vec<Due>) {
        due.sort_unstable_by_key(|want| (want.since, want.order));
        self.per_step = due.len().div_ceil(STEPS_PER_TICK).min(FAILURES_PER_STEP_MAX);
        self.keys = due.into_iter().map(|want| want.key).collect();
    }
}

impl Client {
    /// Whether wants are to fail: [`Client::fail_next`] is to be called after [`STEP`].
    pub fn is_failing(&self) -> bool {
        !self.failing.keys.is_empty()
    }

    /// Fails the next wants that are due.
    pub fn fail_next(&mut self, now: Instant) {
        for _ in 0..self.failing.per_step {
            let Some(key) = self.failing.keys.pop_front() else { break };
            self.fail_if_due(key, now);
        }
        if self.is_without_peers && !self.is_failing() {
            // Those that were added meanwhile, if any.
            self.all_are_due();
        }
    }

    /// The deadline of a want, if it has passed for a session that waits for it.
    pub(super) fn due_since(&self, key: &BlockKey, now: Instant) -> Option<Instant> {
        let want = self.wants.get(key)?;
        let progress = self.progress(want);
        let deadlines = want.sessions.iter().map(|id| self.deadline(key, want, id, progress));
        deadlines.min().filter(|deadline| *deadline <= now)
    }

    /// Notes that a want is due. Returns the stalled peers that were asked for it, if this is new and the want fails for
    /// all sessions.
    pub(super) fn newly_due(&mut self, key: &BlockKey, now: Instant) -> Vec<PeerId> {
        let Some(want) = self.wants.get(key).filter(|want| !want.due) else { return Vec::new() };
        let progress = self.progress(want);
        let fails = |id: &SessionId| self.deadline(key, want, id, progress) <= now;
        let stalled = if want.sessions.iter().all(fails) { self.stalled_peers(key, now).collect() } else { Vec::new() };
        if let Some(want) = self.wants.get_mut(key) {
            want.due = true;
        }
        stalled
    }

    /// When a want fails for a session unless there is progress after `progress`.
    fn deadline(&self, key: &BlockKey, want: &Want, id: &SessionId, progress: Instant) -> Instant {
        let session = self.sessions.get(id).and_then(|session| session.wants.get(key));
        let since = session.copied().unwrap_or(want.since);
        if self.is_without_peers {
            return since;
        }
        let timeout = self.config.stall_timeout;
        (since.max(progress) + timeout).min(since + timeout * OVERTAKEN_STALLS)
    }

    /// Fails a want for the sessions whose deadline has passed. What no other session waits for ends.
    fn fail_if_due(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        let progress = self.progress(want);
        let is_stalled = now.saturating_duration_since(progress) >= self.config.stall_timeout;
        let fails = |id: &&SessionId| self.deadline(&key, want, id, progress) <= now;
        let failed: Vec<SessionId> = want.sessions.iter().filter(fails).copied().collect();
        let Some(want) = self.wants.get_mut(&key) else { return };
        want.due = false;
        failed.iter().for_each(|id| want.remove_session(id));
        let some_failed = !failed.is_empty();
        for id in failed {
            self.fail(key, id, now);
        }
        let Some(want) = self.wants.get(&key) else { return };
        if want.sessions.is_empty() {
            if let Some(want) = self.wants.remove(&key) {
                self.retract(key, &want, None, now);
            }
            return;
        }
        // A stalled peer may have answered a waiter that has failed: it is asked again for the remaining ones.
        if some_failed && is_stalled {
            for request in want.block_requests() {
                self.peers.get_mut(&request.peer).into_iter().for_each(Peer::answer_lost);
            }
        }
        self.check_want(key, now);
    }

    /// Fails a want for one session, which no longer waits for it.
    fn fail(&mut self, key: BlockKey, id: SessionId, now: Instant) {
        let (Some(want), Some(session)) = (self.wants.get(&key), self.sessions.get_mut(&id)) else { return };
        let since = session.wants.get(&key).copied().unwrap_or(want.since);
        session.ended(&key, want.order, now);
        let no_peers = self.is_without_peers;
        let error = if want.corrupt && !no_peers {
            SourceError::Corrupt { cid: want.cid }
        } else {
            let stall = Stall { no_peers, ..session.stall(now.saturating_duration_since(since)) };
            SourceError::Stalled { cid: want.cid, stall }
        };
        self.actions.push_back(Action::Fail(Box::new(Failure { key, session: id, error })));
        if no_peers && session.wants.is_empty() {
            self.end_search(id);
        }
    }

    /// Fails all wants if no peers are connected, and none are expected, in steps as those that are stalled.
    pub fn fail_without_peers(&mut self, now: Instant) {
        if !self.peers.is_empty() || self.is_without_peers {
            return;
        }
        let was_failing = self.is_failing();
        self.all_are_due();
        let unused = self.sessions.iter().filter(|(_, session)| session.wants.is_empty());
        for id in unused.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end_search(id);
        }
        // Otherwise the next step is due soon.
        if !was_failing {
            self.fail_next(now);
        }
    }

    /// All wants are due, because there are no peers to ask, until all of them have failed or a peer connects.
    fn all_are_due(&mut self) {
        let due = self.wants.iter().map(|(key, want)| Due { since: want.since, order: want.order, key: *key });
        self.failing.replace(due.collect());
        self.is_without_peers = self.is_failing();
    }

    /// A session's search is of no use. Later wants start a new one.
    fn end_search(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if std::mem::take(&mut session.search) == Search::Running {
            self.actions.push_back(Action::StopSearch(id));
        }
    }

    /// The last progress towards a block: data from the asked peers or, if it is queued, data for the session.
    fn progress(&self, want: &Want) -> Instant {
        let last_received = |peer: &PeerId| self.peers.get(peer)?.link.last_received();
        let debtors = want.block_requests().filter_map(|request| last_received(&request.peer)).max();
        let sessions = want.sessions.iter().filter_map(|id| self.sessions.get(id));
        let can_send = |members: &[PeerId]| members.iter().any(|member| !want.denied.contains(member));
        let turn = sessions.filter(|session| can_send(&session.members)).map(|session| session.progress).max();
        let progress = if want.is_requested() { debtors } else { turn };
        progress.map_or(want.since, |progress| progress.max(want.since))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, TICK};
    use super::*;
    use crate::metrics::Metrics;
    use content::{Block, Cid, codec, hashes};
    use proptest::prelude::*;
    use std::collections::HashMap;

    const TIMEOUT: Duration = Duration::from_secs(2);
    const MS: Duration = Duration::from_millis(1);

    fn cid(n: usize) -> Cid {
        *Block::of(codec::RAW, hashes::SHA2_256, 32, n.to_be_bytes().to_vec().into()).expect("a block").cid()
    }

    /// A want that failed, and when.
    type Failed = (Instant, BlockKey);

    /// A client whose caller keeps the intervals of ticks and steps.
    struct Run {
        client: Client,
        start: Instant,
        now: Instant,
        failed: Vec<Failed>,
        /// The most failures in one call.
        at_once: usize,
    }

    impl Run {
        fn new() -> Self {
            let config = Config { stall_timeout: TIMEOUT, ..Config::default() };
            let (client, start) = (Client::new(config, Metrics::default()), Instant::now());
            Self { client, start, now: start, failed: Vec::new(), at_once: 0 }
        }

        fn want(&mut self, session: usize, n: usize) -> BlockKey {
            self.client.want(*cid(session).hash(), cid(n), self.now);
            self.take();
            BlockKey::of(&cid(n)).expect("a key")
        }

        fn take(&mut self) {
            let before = self.failed.len();
            while let Some(action) = self.client.poll_action() {
                if let Action::Fail(failure) = action {
                    self.failed.push((self.now, failure.key));
                }
            }
            self.at_once = self.at_once.max(self.failed.len() - before);
        }

        /// The next step, which is a tick if one is due.
        fn step(&mut self) {
            self.now += STEP;
            if (self.now - self.start).as_millis().is_multiple_of(TICK.as_millis()) {
                self.client.tick(self.now);
            } else if self.client.is_failing() {
                self.client.fail_next(self.now);
            }
            self.take();
        }

        fn run_until(&mut self, end: Instant) {
            while self.now < end {
                self.step();
            }
        }
    }

    /// The longest time after its deadline at which one of so many wants fails.
    fn lateness_max(wants: usize) -> Duration {
        let ticks = wants.div_ceil(FAILURES_PER_STEP_MAX * STEPS_PER_TICK);
        // Until a tick finds it, and until it has its turn.
        TICK + TICK * u32::try_from(ticks).expect("few")
    }

    #[test]
    fn a_tick_is_a_whole_number_of_steps() {
        assert_eq!(STEP * u32::try_from(STEPS_PER_TICK).expect("few"), TICK);
    }

    #[test]
    fn wants_that_are_due_at_the_same_time_fail_one_after_the_other() {
        // How many there are, how many fail in a step, and the time from the first to the last.
        let table = [(1, 1, 0), (50, 1, 98), (51, 2, 50), (400, 8, 98), (1024, 8, 288), (16_384, 8, 4094)];
        for (count, each, milliseconds) in table {
            let mut run = Run::new();
            let keys: Vec<BlockKey> = (0..count).map(|n| run.want(0, n)).collect();
            run.run_until(run.start + TIMEOUT + lateness_max(count));
            let failed: Vec<BlockKey> = run.failed.iter().map(|(_, key)| *key).collect();
            assert!(failed == keys, "{count}: each once, in order");
            assert_eq!(run.at_once, each, "{count}");
            let took = run.failed[count - 1].0 - run.failed[0].0;
            assert_eq!(took, MS * milliseconds, "{count}");
            assert_eq!(run.failed[0].0, run.start + TIMEOUT, "{count}: the first does not wait");
        }
    }

    #[test]
    fn a_want_that_is_due_can_still_end_otherwise() {
        let mut run = Run::new();
        let keys: Vec<BlockKey> = (0..100).map(|n| run.want(0, n)).collect();
        run.run_until(run.start + TIMEOUT);
        assert_eq!(run.failed.len(), 2, "the others are due");
        let (cancelled, received) = (keys[50], keys[60]);
        run.client.cancel(*cid(0).hash(), cancelled, run.now);
        let used = run.client.received_block(PeerId::random(), received, 1_000, run.now);
        assert_eq!(used, super::super::BlockUse::Wanted);
        // One of them is wanted again, which begins a new time.
        run.want(0, 50);
        run.run_until(run.start + TIMEOUT + TICK);
        let others: Vec<BlockKey> = keys.into_iter().filter(|key| ![cancelled, received].contains(key)).collect();
        assert_eq!(run.failed.iter().map(|(_, key)| *key).collect::<Vec<_>>(), others);
        run.run_until(run.now + TIMEOUT + TICK);
        assert_eq!(run.failed.last().map(|(_, key)| *key), Some(cancelled));
        assert!(run.client.wants.is_empty() && !run.client.is_failing());
    }

    #[test]
    fn without_peers_all_wants_fail_in_steps_until_a_peer_connects() {
        let mut run = Run::new();
        let keys: Vec<BlockKey> = (0..1_000).map(|n| run.want(n / 10, n)).collect();
        run.client.fail_without_peers(run.now);
        run.take();
        assert_eq!(run.failed.len(), FAILURES_PER_STEP_MAX);
        for _ in 0..9 {
            // A new search finds out again.
            run.client.fail_without_peers(run.now);
            run.step();
        }
        let later = run.want(7, 2_000);
        assert_eq!(run.failed.len(), 10 * FAILURES_PER_STEP_MAX, "calls between the steps change nothing");
        run.run_until(run.start + TICK * 3);
        assert_eq!(run.failed.len(), keys.len() + 1, "also what was added meanwhile");
        assert_eq!(run.failed.last().map(|(_, key)| *key), Some(later));
        assert!(run.client.sessions.values().all(|session| session.search == Search::Idle));
        let again: Vec<BlockKey> = (0..100).map(|n| run.want(n, n)).collect();
        run.client.fail_without_peers(run.now);
        run.take();
        let failed = run.failed.len() - keys.len() - 1;
        assert_eq!(failed, 2);
        run.client.peer_connected(PeerId::random(), false, run.now);
        run.run_until(run.now + TIMEOUT / 2);
        assert_eq!(run.failed.len() - keys.len() - 1, failed, "there is a peer to ask");
        assert_eq!(run.client.wants.len(), again.len() - failed);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Wants of several sessions begin in bursts at any time, and no peer has them.
        #[test]
        fn every_want_fails_once_by_deadline_and_a_few_at_a_time(
            bursts in proptest::collection::vec((0..3_000_u64, 1..250_usize, 0..4_usize), 1..8),
        ) {
            let mut run = Run::new();
            let mut bursts = bursts;
            bursts.sort_by_key(|(at, ..)| *at);
            let mut since: HashMap<BlockKey, Instant> = HashMap::new();
            let mut count = 0;
            for (at, wants, session) in bursts {
                run.run_until(run.start + MS * u32::try_from(at).expect("few"));
                for _ in 0..wants {
                    let key = run.want(session, count);
                    since.insert(key, run.now);
                    count += 1;
                }
            }
            run.run_until(run.now + TIMEOUT + lateness_max(count));
            prop_assert_eq!(run.failed.len(), count);
            prop_assert!(run.client.wants.is_empty() && !run.client.is_failing());
            prop_assert!(run.at_once <= FAILURES_PER_STEP_MAX);
            let deadlines: Vec<Instant> = run.failed.iter().map(|(_, key)| since[key] + TIMEOUT).collect();
            prop_assert!(deadlines.is_sorted());
            for ((at, key), deadline) in run.failed.iter().zip(deadlines) {
                prop_assert!(*at >= deadline && *at <= deadline + lateness_max(count), "{:?}", at.duration_since(deadline));
                prop_assert!(since.remove(key).is_some(), "fails once");
            }
        }
    }
}
