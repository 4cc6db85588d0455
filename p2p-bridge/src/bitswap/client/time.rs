//! Timers: hedged requests, searches, expiry. What fails is in [`super::failing`].

use super::failing::Due;
use super::state::{Request, Search, Want};
use super::{Action, Client};
use crate::wants::SessionId;
use content::BlockKey;
use libp2p::PeerId;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The interval of [`Client::tick`].
pub const TICK: Duration = Duration::from_millis(100);
/// The maximum number of peers that are asked for the same block at once.
const HEDGES_MAX: usize = 3;
/// How long a session without wants continues its search for providers.
const SEARCH_LINGER: Duration = Duration::from_secs(2);
/// The minimum time between searches without result, if there are new wants.
const SEARCH_BACK_OFF: Duration = Duration::from_secs(1);
/// The minimum delay beyond the expected time before a late block is hedged.
pub(super) const LATENESS_MIN: Duration = Duration::from_millis(250);

/// Why a block is hedged.
enum Hedge {
    /// The asked peers send nothing.
    Stalled,
    /// They send other data.
    Late,
}

impl Client {
    /// Hedges, searches again, finds the wants that are to fail, of which the first ones fail now
    /// ([`Client::fail_next`]), and expires unused state. Called about every [`TICK`].
    pub fn tick(&mut self, now: Instant) {
        let mut keys: Vec<(u64, BlockKey)> = self.wants.iter().map(|(key, want)| (want.order, *key)).collect();
        keys.sort_unstable_by_key(|(order, _)| *order);
        let (mut due, mut stalled) = (Vec::new(), HashSet::new());
        for (order, key) in keys {
            match self.due_since(&key, now) {
                Some(since) => {
                    due.push(Due { since, order, key });
                    stalled.extend(self.newly_due(&key, now));
                }
                None => {
                    self.wants.get_mut(&key).into_iter().for_each(|want| want.due = false);
                    self.check_want(key, now);
                }
            }
        }
        // Once for each peer, whatever its number of outstanding blocks.
        self.actions.extend(stalled.into_iter().map(Action::Stalled));
        self.failing.replace(due);
        self.fail_next(now);
        self.check_transfers(now);
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            self.check_session(id, now);
        }
        let again = self
            .peers
            .iter_mut()
            .filter_map(|(peer, peer_state)| peer_state.must_resend_requests(now).then_some(*peer));
        for peer in again.collect::<Vec<_>>() {
            self.resend_requests(peer);
        }
    }

    pub(super) fn stalled_peers(&self, key: &BlockKey, now: Instant) -> impl Iterator<Item = PeerId> {
        let requests = self.wants.get(key).into_iter().flat_map(Want::block_requests);
        let stalled = move |peer: &PeerId| self.peers.get(peer).is_some_and(|peer_state| peer_state.is_stalled(now));
        requests.map(|request| request.peer).filter(stalled)
    }

    pub(super) fn check_want(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        if !want.is_requested() {
            return self.assign(key, now);
        }
        self.hedge_if_late(key, now);
        self.overtake_late_car(key, now);
    }

    /// Requests a block from another peer if those that were asked are late.
    fn hedge_if_late(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        let Some(hedge) = self.hedge(want, now) else { return };
        if let Some(peer) = self.second_choice(want, matches!(hedge, Hedge::Stalled), now) {
            if matches!(hedge, Hedge::Late) {
                if self.hedge_budget < 1.0 {
                    return;
                }
                self.hedge_budget -= 1.0;
            }
            self.metrics.hedges.inc();
            // A transfer for one late block would bring what another one brings.
            self.request(peer, key, true, None, now);
        } else if matches!(hedge, Hedge::Stalled) && !want.probed_when_stalled {
            if let Some(want) = self.wants.get_mut(&key) {
                want.probed_when_stalled = true;
            }
            self.probe(key, now);
        }
    }

    /// Whether and why another peer should be asked for an outstanding block.
    fn hedge(&self, want: &Want, now: Instant) -> Option<Hedge> {
        let stalled =
            |request: &Request| self.peers.get(&request.peer).is_none_or(|peer_state| peer_state.is_stalled(now));
        // If no asked peer is a member, and another peer sent HAVE, the expected time suffices.
        let unproven =
            !want.has.is_empty() && !want.block_requests().any(|request| self.is_member(want, &request.peer));
        let late = |request: &Request| {
            let expected = self.expected_time(request);
            let grace = if unproven { Duration::ZERO } else { expected.max(LATENESS_MIN) };
            now.saturating_duration_since(request.at) > expected + grace
        };
        if want.block_requests().count() >= HEDGES_MAX {
            return None;
        }
        if want.block_requests().all(stalled) {
            return Some(Hedge::Stalled);
        }
        want.block_requests().all(|request| late(request) || stalled(request)).then_some(Hedge::Late)
    }

    /// The time that a request was expected to take.
    pub(super) fn expected_time(&self, request: &Request) -> Duration {
        let peer_state = self.peers.get(&request.peer);
        peer_state.map_or(Duration::ZERO, |peer_state| peer_state.link.time_for(request.queued_bytes))
    }

    fn is_member(&self, want: &Want, peer: &PeerId) -> bool {
        let mut sessions = want.sessions.iter().filter_map(|id| self.sessions.get(id));
        sessions.any(|session| session.members.contains(peer))
    }

    fn check_session(&mut self, id: SessionId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if !session.wants.is_empty() {
            return self.search_if_needed(id, now);
        }
        let unused = now.saturating_duration_since(session.used);
        if session.search == Search::Running && unused > SEARCH_LINGER {
            // It was not completed, so a later want starts a new search.
            session.search = Search::Idle;
            self.actions.push_back(Action::StopSearch(id));
        }
        if unused > self.config.linger && !self.planner.has_transfers(&id) {
            self.remove_session(id);
        }
    }

    /// Starts a search for providers if the session waits for a block that no member has, or makes no progress.
    pub(super) fn search_if_needed(&mut self, id: SessionId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let stuck = now.saturating_duration_since(session.progress) > self.config.search_again / 2;
        if session.wants.is_empty() || !(session.members.is_empty() || session.orphaned.is_some() || stuck) {
            return;
        }
        let rested = match session.search {
            Search::Idle => true,
            Search::Running => false,
            Search::Done(at) => {
                // Some wants did not exist when the last search found no provider.
                let has_new_wants = session.orphaned.is_some_and(|orphaned| orphaned > at) || session.started > at;
                let back_off = if has_new_wants {
                    SEARCH_BACK_OFF.min(self.config.search_again)
                } else {
                    self.config.search_again
                };
                now.saturating_duration_since(at) > back_off
            }
        };
        if rested {
            session.search = Search::Running;
            session.orphaned = None;
            session.probed_peers.clear();
            self.actions.push_back(Action::Search(id));
        }
    }
}
