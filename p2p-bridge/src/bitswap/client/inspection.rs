//! What a session knows, for whoever asks why something is slow: nothing is kept for this, and nothing is changed by it.

use super::Client;
use super::state::Search;
use crate::wants::SessionId;
use content::Cid;
use libp2p::PeerId;
use std::time::{Duration, Instant};

/// Wants that are told one by one.
const WANTS_MAX: usize = 32;

/// Whether providers are being searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchPhase {
    /// They were not yet.
    Idle,
    /// They are.
    Running,
    /// They were, so long ago.
    Done(Duration),
}

/// A peer that proved to hold a DAG.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberState {
    /// Who it is.
    pub peer: PeerId,
    /// Whether it sent a block of the DAG.
    pub gave: bool,
    /// Blocks that it owes us, of whatever DAG, and what they are expected to have in bytes.
    pub owes_blocks: usize,
    /// The same in bytes.
    pub owes_bytes: usize,
    /// How long it takes to answer, once that was measured.
    pub response: Option<Duration>,
    /// What it sends at best, in bytes a second, once that was measured.
    pub bytes_per_second: Option<u64>,
    /// Whether it lets us wait for too long.
    pub is_silent: bool,
}

/// A block that somebody waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantState {
    /// The block.
    pub cid: Cid,
    /// For how long.
    pub waited: Duration,
    /// Who owes it.
    pub debtors: Vec<PeerId>,
    /// Peers that were asked whether they have it and did not answer yet.
    pub probed: usize,
    /// Peers that said no.
    pub denied: usize,
}

/// What is known of one DAG.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionState {
    /// Connected peers that proved to hold it.
    pub members: Vec<MemberState>,
    /// Peers that routing named.
    pub providers: usize,
    /// Whether providers are being searched for.
    pub search: SearchPhase,
    /// Peers that were asked, and those that answered.
    pub asked: usize,
    /// The same.
    pub answered: usize,
    /// Blocks that somebody waits for: the first of them, and how many there are.
    pub wants: Vec<WantState>,
    /// The same.
    pub wanted: usize,
    /// How long ago it was last used.
    pub idle_for: Duration,
}

impl Client {
    /// What is known of a DAG; none if nobody has read it of late.
    pub fn inspect(&self, id: &SessionId, now: Instant) -> Option<SessionState> {
        let session = self.sessions.get(id)?;
        let mut wants: Vec<_> =
            session.wants.iter().filter_map(|(key, since)| Some((*since, self.wants.get(key)?))).collect();
        wants.sort_by_key(|(since, want)| (*since, want.order));
        let want = |(since, want): (Instant, &super::Want)| WantState {
            cid: want.cid,
            waited: now.saturating_duration_since(since),
            debtors: want.debtors().map(|question| question.peer).collect(),
            probed: want.asked.iter().filter(|question| !question.block).count(),
            denied: want.denied.len(),
        };
        Some(SessionState {
            members: session.members.iter().filter_map(|peer| self.member(session, peer, now)).collect(),
            providers: session.providers.len(),
            search: match session.search {
                Search::Idle => SearchPhase::Idle,
                Search::Running => SearchPhase::Running,
                Search::Done(at) => SearchPhase::Done(now.saturating_duration_since(at)),
            },
            asked: session.asked.len(),
            answered: session.answered.len(),
            wanted: wants.len(),
            wants: wants.into_iter().take(WANTS_MAX).map(want).collect(),
            idle_for: now.saturating_duration_since(session.used),
        })
    }

    fn member(&self, session: &super::Session, peer: &PeerId, now: Instant) -> Option<MemberState> {
        let known = self.peers.get(peer)?;
        Some(MemberState {
            peer: *peer,
            gave: session.givers.contains(peer),
            owes_blocks: known.owed().count(),
            owes_bytes: known.owed_bytes(),
            response: known.link.response(),
            bytes_per_second: known.link.measured_rate(),
            is_silent: known.is_silent(now),
        })
    }

    /// Sessions that are remembered, and blocks that somebody waits for.
    pub fn load(&self) -> (usize, usize) {
        (self.sessions.len(), self.wants.len())
    }
}
