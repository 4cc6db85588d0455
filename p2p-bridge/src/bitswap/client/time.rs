//! What happens because time passes: hedges, failures, searches, forgetting.

use super::state::{Peer, Question, Search, Session, Want};
use super::{Action, Client, Failure};
use crate::wants::SessionId;
use content::{BlockKey, SourceError, Stall};
use libp2p::PeerId;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Peers that may owe us the same block at once.
const HEDGES_MAX: usize = 3;
/// A want that its peers keep overtaking fails after this many stall timeouts, however busy they are.
const OVERTAKEN_STALLS: u32 = 4;
/// How long a session without wants keeps its search for providers going.
const SEARCH_LINGER: Duration = Duration::from_secs(2);
/// How long a search that found nothing rests at least, though something new turned up that nobody has.
const SEARCH_REST: Duration = Duration::from_secs(1);
/// What a late block may take beyond twice the time that it should, before it is asked of another.
const LATENESS_MIN: Duration = Duration::from_millis(250);

/// Why a block is asked of a second peer.
enum Hedge {
    /// Its debtors send nothing at all.
    Silent,
    /// They send, but not this.
    Late,
}

impl Client {
    /// Hedges, searches again, fails what stalled and forgets what nobody uses. Call it about every 100 ms.
    pub fn tick(&mut self, now: Instant) {
        let mut keys: Vec<(u64, BlockKey)> = self.wants.iter().map(|(key, want)| (want.order, *key)).collect();
        keys.sort_unstable_by_key(|(order, _)| *order);
        let mut stalled = HashSet::new();
        for (_, key) in keys {
            let owing: Vec<PeerId> = self.silent_debtors(&key, now).collect();
            if self.fail_if_stalled(key, now) {
                stalled.extend(owing);
            } else {
                self.tend_want(key, now);
            }
        }
        // Once for each peer, however much it owed.
        self.actions.extend(stalled.into_iter().map(Action::Stalled));
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            self.tend_session(id, now);
        }
        let again = self.peers.iter_mut().filter_map(|(peer, known)| known.is_to_be_asked_again(now).then_some(*peer));
        for peer in again.collect::<Vec<_>>() {
            self.ask_again(peer);
        }
    }

    fn silent_debtors(&self, key: &BlockKey, now: Instant) -> impl Iterator<Item = PeerId> {
        let debtors = self.wants.get(key).into_iter().flat_map(Want::debtors);
        let silent = move |peer: &PeerId| self.peers.get(peer).is_some_and(|known| known.is_silent(now));
        debtors.map(|question| question.peer).filter(silent)
    }

    fn tend_want(&mut self, key: BlockKey, now: Instant) {
        let Some(want) = self.wants.get(&key) else { return };
        if !want.is_owed() {
            return self.find_debtor(key, now);
        }
        let Some(hedge) = self.hedge(want, now) else { return };
        if let Some(peer) = self.second_choice(want, matches!(hedge, Hedge::Silent), now) {
            if matches!(hedge, Hedge::Late) {
                if self.hedges_saved < 1.0 {
                    return;
                }
                self.hedges_saved -= 1.0;
            }
            self.metrics.hedges.inc();
            self.ask(peer, key, true, now);
        } else if matches!(hedge, Hedge::Silent) && !want.probed_in_need {
            if let Some(want) = self.wants.get_mut(&key) {
                want.probed_in_need = true;
            }
            self.probe(key, now);
        }
    }

    /// Whether one more peer should be asked for a block that is owed, and why.
    fn hedge(&self, want: &Want, now: Instant) -> Option<Hedge> {
        let silent = |question: &Question| self.peers.get(&question.peer).is_none_or(|known| known.is_silent(now));
        // While nobody who owes it proved anything, and somebody else says that he has it, nobody is waited for.
        let unproven = !want.has.is_empty() && !want.debtors().any(|question| self.is_member(want, &question.peer));
        let late = |question: &Question| {
            let known = self.peers.get(&question.peer);
            let expected = known.map_or(Duration::ZERO, |known| known.link.time_for(question.queued_bytes));
            let grace = if unproven { Duration::ZERO } else { expected.max(LATENESS_MIN) };
            now.saturating_duration_since(question.at) > expected + grace
        };
        if want.debtors().count() >= HEDGES_MAX {
            return None;
        }
        if want.debtors().all(silent) {
            return Some(Hedge::Silent);
        }
        want.debtors().all(|question| late(question) || silent(question)).then_some(Hedge::Late)
    }

    fn is_member(&self, want: &Want, peer: &PeerId) -> bool {
        let mut sessions = want.sessions.iter().filter_map(|id| self.sessions.get(id));
        sessions.any(|session| session.members.contains(peer))
    }

    /// Fails a want for the sessions that saw no progress for too long; `true` if nobody is left who waits for it.
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
            // Whoever owes it and is silent may have answered in vain: for those who wait on, it is asked once more.
            if some_failed && stalled {
                for question in want.debtors() {
                    self.peers.get_mut(&question.peer).into_iter().for_each(Peer::answer_lost);
                }
            }
            return false;
        }
        if let Some(want) = self.wants.remove(&key) {
            self.retract(key, &want, None, now);
        }
        true
    }

    /// Fails every want at once if nobody is connected who could be asked: nobody is about to be either.
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
            // Whoever comes next begins anew.
            if std::mem::take(&mut session.search) == Search::Running {
                self.actions.push_back(Action::StopSearch(*id));
            }
        }
    }

    /// When anything last happened that may lead to this block: its debtors sent something, or, if it waits for its turn,
    /// the session got something.
    fn progress(want: &Want, peers: &HashMap<PeerId, Peer>, sessions: &HashMap<SessionId, Session>) -> Instant {
        let debtors = want.debtors().filter_map(|question| peers.get(&question.peer)?.link.heard()).max();
        let sessions = want.sessions.iter().filter_map(|id| sessions.get(id));
        let in_line = |members: &[PeerId]| members.iter().any(|member| !want.denied.contains(member));
        let turn = sessions.filter(|session| in_line(&session.members)).map(|session| session.progress).max();
        let progress = if want.is_owed() { debtors } else { turn };
        progress.map_or(want.since, |progress| progress.max(want.since))
    }

    fn tend_session(&mut self, id: SessionId, now: Instant) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if !session.wants.is_empty() {
            return self.search_if_needed(id, now);
        }
        let unused = now.saturating_duration_since(session.used);
        if session.search == Search::Running && unused > SEARCH_LINGER {
            // It was not heard to its end: whoever comes next has to begin anew.
            session.search = Search::Idle;
            self.actions.push_back(Action::StopSearch(id));
        }
        if unused > self.config.linger {
            self.forget_session(id);
        }
    }

    /// Searches for providers of a session that waits for something which no member has, or which gets nothing.
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
                // It found nobody for something that nobody had looked for then.
                let news = session.orphaned.is_some_and(|orphaned| orphaned > at) || session.started > at;
                let rest = if news { SEARCH_REST.min(self.config.search_again) } else { self.config.search_again };
                now.saturating_duration_since(at) > rest
            }
        };
        if rested {
            session.search = Search::Running;
            session.orphaned = None;
            session.strangers.clear();
            self.actions.push_back(Action::Search(id));
        }
    }
}
