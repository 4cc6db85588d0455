//! [`NoPeers`]: detects that there are no peers to ask.
//!
//! Goals: a search without peers to ask fails soon instead of timing out; a search during startup waits for the peers
//! that are being dialled; the log tells the operator after some seconds that the node has no peers, and what to do.
//!
//! A state machine; the caller passes the time in.

use std::time::{Duration, Instant};

/// How long searches wait for peers that are being dialled, after the start or after the last peer disconnected.
const DIALS_WAITED_FOR: Duration = Duration::from_secs(10);
/// The same if no peers are dialled: multicast DNS may find peers, or peers may connect.
const OTHERS_WAITED_FOR: Duration = Duration::from_secs(2);
/// How long the peers of the routing tables count as unreachable after they were tried. After that a search tries them
/// again: short, since little else does after an outage.
const TABLES_TRIED_FOR: Duration = Duration::from_secs(10);
/// The time after the start, or after the last peer disconnected, until the warning is logged.
const LOGGED_AFTER: Duration = Duration::from_secs(10);

/// Advice for the operator of a node without peers.
pub const ADVICE: &str = "check that p2p.bootstrap or p2p.peering lists reachable peers, that the machine can resolve \
    host names, and that a firewall allows outbound TCP and UDP; \"causeway peers connect ADDRESS\" shows why a peer \
    cannot be reached";

/// Which peers and other sources are available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Available {
    /// Connected peers.
    pub peers: usize,
    /// Whether other sources can be asked: routers, gateways, providers whose dials are not overdue.
    pub others: bool,
    /// Whether the routing tables have peers. They may be from an earlier run, so they count only until they were
    /// tried.
    pub tables: bool,
    /// Whether peers are being dialled or will be redialled.
    pub dials: bool,
}

/// A change to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// There have been no peers for some time.
    NoPeers,
    /// There are peers again.
    HasPeers,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct NoPeers {
    /// The time since which no peer has been connected.
    without_peers: Option<Instant>,
    /// The time since which there have been no sources to ask.
    without_sources_since: Option<Instant>,
    /// The time since which the peers of the routing tables are tried.
    tables_tried: Option<Instant>,
    dials: bool,
    logged: bool,
}

impl NoPeers {
    /// The state of a node that starts.
    pub fn new(now: Instant) -> Self {
        Self {
            without_peers: Some(now),
            without_sources_since: Some(now),
            tables_tried: None,
            dials: true,
            logged: false,
        }
    }

    /// Updates the availability. Called about every second, and before decisions.
    pub fn note(&mut self, available: Available, now: Instant) {
        let Available { peers, others, tables, dials } = available;
        let counts = |since: &Instant| now.saturating_duration_since(*since) < DIALS_WAITED_FOR + TABLES_TRIED_FOR;
        self.tables_tried = self.tables_tried.filter(|since| peers == 0 && counts(since));
        let in_vain = self.tables_tried.filter(|since| now.saturating_duration_since(*since) >= DIALS_WAITED_FOR);
        let without_sources = peers == 0 && !others && (!tables || in_vain.is_some());
        self.without_peers = (peers == 0).then(|| self.without_peers.unwrap_or(now));
        self.without_sources_since = without_sources.then(|| self.without_sources_since.or(in_vain).unwrap_or(now));
        self.dials = dials;
    }

    /// Records that a search asks the peers of the routing tables.
    pub fn searched(&mut self, now: Instant) {
        if self.without_peers.is_some() {
            self.tables_tried.get_or_insert(now);
        }
    }

    /// Whether waiting is useless: there are no sources to ask, and have not been for some time.
    pub fn is_settled(&self, now: Instant) -> bool {
        let patience = if self.dials { DIALS_WAITED_FOR } else { OTHERS_WAITED_FOR };
        self.without_sources_since.is_some_and(|since| now.saturating_duration_since(since) >= patience)
    }

    /// The change to log now, if any; each is returned once.
    pub fn change_to_log(&mut self, now: Instant) -> Option<Change> {
        let long = self.without_peers.map(|since| now.saturating_duration_since(since) >= LOGGED_AFTER);
        let change = match long {
            Some(true) if !self.logged => Change::NoPeers,
            None if self.logged => Change::HasPeers,
            _ => return None,
        };
        self.logged = change == Change::NoPeers;
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Available = Available { peers: 0, others: false, tables: false, dials: false };

    #[test]
    fn a_search_waits_for_initial_dials_with_a_limit() {
        // What is available, and for how many seconds a search waits; `None`: without limit.
        let table = [
            (NOTHING, Some(OTHERS_WAITED_FOR)),
            (Available { dials: true, ..NOTHING }, Some(DIALS_WAITED_FOR)),
            (Available { others: true, ..NOTHING }, None),
            (Available { tables: true, ..NOTHING }, None),
            (Available { peers: 1, ..NOTHING }, None),
        ];
        let start = Instant::now();
        for (available, patience) in table {
            let mut no_peers = NoPeers::new(start);
            let mut waited = None;
            for second in 0..60 {
                let now = start + Duration::from_secs(second);
                no_peers.note(available, now);
                if no_peers.is_settled(now) {
                    waited = waited.or(Some(Duration::from_secs(second)));
                }
            }
            assert_eq!(waited, patience, "{available:?}");
        }
    }

    #[test]
    fn the_wait_restarts_when_the_last_peer_disconnects() {
        let start = Instant::now();
        let mut no_peers = NoPeers::new(start);
        let later = start + Duration::from_secs(3600);
        no_peers.note(Available { peers: 1, ..NOTHING }, start);
        no_peers.note(NOTHING, later);
        assert!(!no_peers.is_settled(later));
        no_peers.note(NOTHING, later + OTHERS_WAITED_FOR);
        assert!(no_peers.is_settled(later + OTHERS_WAITED_FOR));
        no_peers.note(Available { others: true, ..NOTHING }, later + OTHERS_WAITED_FOR);
        assert!(!no_peers.is_settled(later + OTHERS_WAITED_FOR));
    }

    #[test]
    fn peers_of_an_earlier_run_count_until_they_prove_unreachable() {
        let (start, seconds) = (Instant::now(), Duration::from_secs);
        let known = Available { tables: true, ..NOTHING };
        let mut no_peers = NoPeers::new(start);
        let mut settled_at = |available: Available, from: u64, to: u64, searches: &[u64]| {
            let mut settled = Vec::new();
            for second in from..to {
                let now = start + seconds(second);
                if searches.contains(&second) {
                    no_peers.searched(now);
                }
                no_peers.note(available, now);
                settled.extend(no_peers.is_settled(now).then_some(second));
            }
            settled
        };
        assert_eq!(settled_at(known, 0, 100, &[]), [0; 0], "they were not tried yet");
        let in_vain: Vec<u64> = (110..120).chain(132..142).collect();
        assert_eq!(
            settled_at(known, 100, 300, &[100, 105, 115, 122]),
            in_vain,
            "for a while; then they are tried again"
        );
        assert_eq!(settled_at(Available { peers: 1, ..known }, 300, 310, &[300]), [0; 0]);
        assert_eq!(settled_at(known, 310, 330, &[]), [0; 0], "they were connected until a moment ago");
    }

    #[test]
    fn the_lack_of_peers_is_logged_once_and_its_end_too() {
        let start = Instant::now();
        let mut no_peers = NoPeers::new(start);
        let mut logged = Vec::new();
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            let peers = usize::from((30..50).contains(&second) || (55..60).contains(&second));
            no_peers.note(Available { peers, others: true, ..NOTHING }, now);
            logged.extend(no_peers.change_to_log(now).map(|change| (second, change)));
        }
        assert_eq!(logged, [(10, Change::NoPeers), (30, Change::HasPeers), (70, Change::NoPeers)]);
    }
}
