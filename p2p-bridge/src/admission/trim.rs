//! Trimming: selects the connections to close when there are too many.
//!
//! A pure function. A node that only denies new connections would keep the oldest peers, useful or not. So slightly
//! below the limit the least useful peers are disconnected, down to a level with some reserve: never those that the
//! operator configured or that have outstanding requests, nor new ones that could not be useful yet.

use libp2p::PeerId;
use std::time::{Duration, Instant};

/// New peers are not trimmed for this long.
const GRACE: Duration = Duration::from_secs(20);

/// A connected peer as a candidate for trimming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The peer.
    pub peer: PeerId,
    /// When its first connection was established.
    pub since: Instant,
    /// When it last sent a wanted block.
    pub useful: Option<Instant>,
    /// Whether it is in a routing table, which the DHT depends on.
    pub in_table: bool,
    /// Whether it must not be trimmed.
    pub kept: bool,
}

/// The peers to disconnect when `open` of `limit` connections are used: none up to 15/16 of the limit, else as many as
/// reduce it to 7/8. The longest useless are first, those in a routing table last.
pub fn trim(mut candidates: Vec<Candidate>, open: usize, limit: usize, now: Instant) -> Vec<PeerId> {
    let (high, low) = (limit - limit / 16, limit - limit / 8);
    if open <= high {
        return Vec::new();
    }
    candidates.retain(|candidate| !candidate.kept && now.saturating_duration_since(candidate.since) > GRACE);
    candidates.sort_by_key(|candidate| (candidate.in_table, candidate.useful, candidate.since));
    candidates.into_iter().take(open - low).map(|candidate| candidate.peer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_useful_are_trimmed_first_and_some_never() {
        let start = Instant::now();
        let now = start + Duration::from_secs(1_000);
        let peer = |useful: Option<u64>, since: u64, in_table: bool, kept: bool| Candidate {
            peer: PeerId::random(),
            since: start + Duration::from_secs(since),
            useful: useful.map(|seconds| start + Duration::from_secs(seconds)),
            in_table,
            kept,
        };
        let new = peer(None, 990, false, false);
        let kept = peer(None, 0, false, true);
        let table = peer(None, 0, true, false);
        let recently_useful = peer(Some(900), 0, false, false);
        let once_useful = peer(Some(100), 0, false, false);
        let old_useless = peer(None, 0, false, false);
        let useless = peer(None, 10, false, false);
        let all = vec![new, kept, table, recently_useful, once_useful, useless, old_useless];
        assert_eq!(trim(all.clone(), 60, 64, now), vec![], "not yet");
        let order = [old_useless, useless, once_useful, recently_useful, table].map(|candidate| candidate.peer);
        assert_eq!(trim(all.clone(), 61, 64, now), order, "as many as may go");
        assert_eq!(trim(all, 30, 32, now), vec![]);
        let many: Vec<Candidate> = (0..100).map(|_| peer(None, 0, false, false)).collect();
        assert_eq!(trim(many, 100, 100, now).len(), 12, "down to seven eighths");
    }
}
