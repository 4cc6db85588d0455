//! Snapshots of sessions for the API. They are computed on request and change nothing.

use super::Client;
use super::state::Search;
use crate::wants::SessionId;
use content::Cid;
use libp2p::PeerId;
use std::time::{Duration, Instant};

/// The maximum number of wants in a snapshot.
const WANTS_MAX: usize = 32;

/// The state of the search for providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchPhase {
    /// Not started.
    Idle,
    /// Running.
    Running,
    /// Finished this long ago.
    Done(Duration),
}

/// A peer that has blocks of a DAG.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberState {
    /// The peer.
    pub peer: PeerId,
    /// Whether it sent a block of the DAG.
    pub gave: bool,
    /// The number of its outstanding blocks, of all DAGs.
    pub owes_blocks: usize,
    /// Their expected size, in bytes.
    pub owes_bytes: usize,
    /// The response time, once measured.
    pub response: Option<Duration>,
    /// The best rate in bytes per second, once measured.
    pub bytes_per_second: Option<u64>,
    /// Whether it is stalled.
    pub is_silent: bool,
}

/// A wanted block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantState {
    /// The block.
    pub cid: Cid,
    /// How long it has been wanted.
    pub waited: Duration,
    /// The peers that were asked for it.
    pub debtors: Vec<PeerId>,
    /// The number of peers that were asked for its presence and have not answered.
    pub probed: usize,
    /// The number of peers that do not have it.
    pub denied: usize,
}

/// The state of one DAG.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionState {
    /// Connected peers that have blocks of it.
    pub members: Vec<MemberState>,
    /// The number of providers that routing found.
    pub providers: usize,
    /// The search for providers.
    pub search: SearchPhase,
    /// The number of peers that were asked.
    pub asked: usize,
    /// The number of peers that answered.
    pub answered: usize,
    /// Wanted blocks, limited to the first ones.
    pub wants: Vec<WantState>,
    /// The number of wanted blocks.
    pub wanted: usize,
    /// How long ago it was last used.
    pub idle_for: Duration,
}

impl Client {
    /// The state of a DAG; `None` if it was not read recently.
    pub fn inspect(&self, id: &SessionId, now: Instant) -> Option<SessionState> {
        let session = self.sessions.get(id)?;
        let mut wants: Vec<_> =
            session.wants.iter().filter_map(|(key, since)| Some((*since, self.wants.get(key)?))).collect();
        wants.sort_by_key(|(since, want)| (*since, want.order));
        let want = |(since, want): (Instant, &super::Want)| WantState {
            cid: want.cid,
            waited: now.saturating_duration_since(since),
            debtors: want.block_requests().map(|request| request.peer).collect(),
            probed: want.asked.iter().filter(|request| !request.block).count(),
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
            gave: session.senders.contains(peer),
            owes_blocks: known.outstanding().count(),
            owes_bytes: known.outstanding_bytes(),
            response: known.link.response(),
            bytes_per_second: known.link.measured_rate(),
            is_silent: known.is_stalled(now),
        })
    }

    /// The number of sessions and of wanted blocks.
    pub fn load(&self) -> (usize, usize) {
        (self.sessions.len(), self.wants.len())
    }
}
