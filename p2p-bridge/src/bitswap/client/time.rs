//! Timers: hedged requests, failures, searches, expiry.

use super::state::{Peer, Request, Search, Session, Want};
use super::{Action, Client, Failure};
use crate::wants::SessionId;
use content::{BlockKey, SourceError, Stall};
use libp2p::PeerId;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// The maximum number of peers that are asked for the same block at once.
const HEDGES_MAX: usize = 3;
/// A want that later wants keep overtaking fails after this many stall timeouts, whatever the progress.
const OVERTAKEN_STALLS: u32 = 4;
/// How long a session without wants continues its search for providers.
const SEARCH_LINGER: Duration = Duration::from_secs(2);
/// The minimum time between searches without result, if there are new wants.
const SEARCH_REST: Duration = Duration::from_secs(1);
/// The minimum delay beyond the expected time before a late block is hedged.
const LATENESS_MIN: Duration = Duration::from_millis(250);

/// Why a block is hedged.
enum Hedge {
    /// The asked peers send nothing.
    Stalled,
    /// They send other data.
    Late,
}

impl Client {
    /// Hedges, searches again, fails stalled wants and expires unused state. Called about every 100 ms.
    pub fn tick(&mut self, now: Instant) {
        let mut keys: Vec<(u64, BlockKey)> = self.wants.iter().map(|(key, want)| (want.order, *key)).collect();
        keys.sort_unstable_by_key(|(order, _)| *order);
        let mut stalled = HashSet::new();
        for (_, key) in keys {
            let peers: Vec<PeerId> = self.stalled_peers(&key, now).collect();
            if self.fail_if_stalled(key, now) {
                stalled.extend(peers);
            } else {
                self.check_want(key, now);
            }
        }
        // Once for each peer, whatever its number of outstanding blocks.
        self.actions.extend(stalled.into_iter().map(Action::Stalled));
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            self.check_session(id, now);
        }
        let again = self.peers.iter_mut().filter_map(|(peer, known)| known.must_resend_requests(now).then_some(*peer));
        for peer in again.collect::<Vec<_>>() {
            self.resend_requests(peer);
        }
    }

    fn stalled_peers(&self, key: &BlockKey, now: Instant) -> impl Iterator<Item = PeerId> {
        let requests = self.wants.get(key).into_iter().flat_map(Want::block_requests);
        let stalled = move |peer: &PeerId| self.peers.get(peer).is_some_and(|known| known.is_stalled(now));
        requests.map(|request| request.peer).filter(stalled)
    }

    fn check_want(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        if !want.is_requested() {
            return self.assign(key, now);
        }
        let Some(hedge) = self.hedge(want, now) else { return };
        if let Some(peer) = self.second_choice(want, matches!(hedge, Hedge::Stalled), now) {
            if matches!(hedge, Hedge::Late) {
                if self.hedge_budget < 1.0 {
                    return;
                }
                self.hedge_budget -= 1.0;
            }
            self.metrics.hedges.inc();
            self.ask(peer, key, true, now);
        } else if matches!(hedge, Hedge::Stalled) && !want.probed_when_stalled {
            if let Some(want) = self.wants.get_mut(&key) {
                want.probed_when_stalled = true;
            }
            self.probe(key, now);
        }
    }

    /// Whether and why another peer should be asked for an outstanding block.
    fn hedge(&self, want: &Want, now: Instant) -> Option<Hedge> {
        let stalled = |request: &Request| self.peers.get(&request.peer).is_none_or(|known| known.is_stalled(now));
        // If no asked peer is a member, and another peer sent HAVE, the expected time suffices.
        let unproven =
            !want.has.is_empty() && !want.block_requests().any(|request| self.is_member(want, &request.peer));
        let late = |request: &Request| {
            let known = self.peers.get(&request.peer);
            let expected = known.map_or(Duration::ZERO, |known| known.link.time_for(request.queued_bytes));
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

    fn is_member(&self, want: &Want, peer: &PeerId) -> bool {
        let mut sessions = want.sessions.iter().filter_map(|id| self.sessions.get(id));
        sessions.any(|session| session.members.contains(peer))
    }

    /// Fails a want for the sessions without progress; returns whether no session waits for it any more.
    fn fail_if_stalled(&mut self, key: BlockKey, now: Instant) -> bool {
        let Some(want) = self.wants.get_mut(&key) else { return true };
        let progress = Self::progress(want, &self.peers, &self.sessions);
        let timeout = self.config.stall_timeout;
        let waited = |id: &SessionId| {
            let since = self.sessions.get(id).and_then(|session| session.wants.get(&key));
            now.saturating_duration_since(since.copied().unwrap_or(want.since))
        };
        let stalled = now.saturating_duration_since(progress) >= timeout;
        let fails = |id: &SessionId| waited(id) > timeout * OVERTAKEN_STALLS || (stalled && waited(id) >= timeout);
        let failed: Vec<(SessionId, Duration)> =
            want.sessions.iter().filter(|id| fails(id)).map(|id| (*id, waited(id))).collect();
        let some_failed = !failed.is_empty();
        want.sessions.retain(|id| !failed.iter().any(|(failed, _)| failed == id));
        for (session_id, waited) in failed {
            let Some(session) = self.sessions.get_mut(&session_id) else { continue };
            session.ended(&key, want.order, now);
            let error = if want.corrupt {
                SourceError::Corrupt { cid: want.cid }
            } else {
                SourceError::Stalled { cid: want.cid, stall: session.stall(waited) }
            };
            self.actions.push_back(Action::Fail(Box::new(Failure { key, session: session_id, error })));
        }
        if !want.sessions.is_empty() {
            // A stalled peer may have answered a waiter that has failed: it is asked again for the remaining ones.
            if some_failed && stalled {
                for request in want.block_requests() {
                    self.peers.get_mut(&request.peer).into_iter().for_each(Peer::answer_lost);
                }
            }
            return false;
        }
        if let Some(want) = self.wants.remove(&key) {
            self.retract(key, &want, None, now);
        }
        true
    }

    /// Fails all wants if no peers are connected, and none are expected.
    pub fn fail_without_peers(&mut self, now: Instant) {
        if !self.peers.is_empty() {
            return;
        }
        for (key, want) in self.wants.drain() {
            for id in want.sessions {
                let Some(session) = self.sessions.get_mut(&id) else { continue };
                let since = session.wants.get(&key).copied().unwrap_or(want.since);
                session.ended(&key, want.order, now);
                let stall = Stall { no_peers: true, ..session.stall(now.saturating_duration_since(since)) };
                let error = SourceError::Stalled { cid: want.cid, stall };
                self.actions.push_back(Action::Fail(Box::new(Failure { key, session: id, error })));
            }
        }
        for (id, session) in &mut self.sessions {
            // Later wants start a new search.
            if std::mem::take(&mut session.search) == Search::Running {
                self.actions.push_back(Action::StopSearch(*id));
            }
        }
    }

    /// The last progress towards this block: data from the asked peers or, if it is queued, data for the session.
    fn progress(want: &Want, peers: &HashMap<PeerId, Peer>, sessions: &HashMap<SessionId, Session>) -> Instant {
        let debtors = want.block_requests().filter_map(|request| peers.get(&request.peer)?.link.last_received()).max();
        let sessions = want.sessions.iter().filter_map(|id| sessions.get(id));
        let can_send = |members: &[PeerId]| members.iter().any(|member| !want.denied.contains(member));
        let turn = sessions.filter(|session| can_send(&session.members)).map(|session| session.progress).max();
        let progress = if want.is_requested() { debtors } else { turn };
        progress.map_or(want.since, |progress| progress.max(want.since))
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
        if unused > self.config.linger {
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
                let news = session.orphaned.is_some_and(|orphaned| orphaned > at) || session.started > at;
                let rest = if news { SEARCH_REST.min(self.config.search_again) } else { self.config.search_again };
                now.saturating_duration_since(at) > rest
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
