//! [`NoPeers`]: whether there is anybody to ask, and what is done when there is not.
//!
//! Goals: a search with nobody to ask fails soon instead of running into its time-out; one that begins while the node starts
//! waits for the peers that are being dialled; an operator hears of a node without peers after some seconds, with what to do.
//!
//! A state machine that is handed the clock.

use std::time::{Duration, Instant};

/// How long peers that are being dialled are waited for after the start, or after the last one left.
const DIALS_WAITED_FOR: Duration = Duration::from_secs(10);
/// The same when nobody is dialled: neighbours may be found by multicast DNS, or somebody may connect.
const OTHERS_WAITED_FOR: Duration = Duration::from_secs(2);
/// How long it counts that no peer of the routing tables could be reached. After that a search tries them again: not long, for
/// little else does after an outage.
const TABLES_TRIED_FOR: Duration = Duration::from_secs(10);
/// How long after the start, or after the last peer left, it is said that there are none.
const SAID_AFTER: Duration = Duration::from_secs(10);

/// What an operator can do about a node that has no peers.
pub const ADVICE: &str = "check that p2p.bootstrap or p2p.peering names peers that are reachable, that the machine can resolve \
    host names, and that a firewall lets TCP and UDP out; \"causeway peers connect ADDRESS\" says why a peer cannot be reached";

/// Who is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Available {
    /// Connected peers.
    pub peers: usize,
    /// Whether anybody else can be asked: routers, gateways, providers whose dials are not overdue.
    pub others: bool,
    /// Whether the routing tables have peers: from an earlier run, it may be, so that they count only until they were tried.
    pub tables: bool,
    /// Whether peers are being dialled, now or again in a moment.
    pub dials: bool,
}

/// What is to be told of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// There have been no peers for a while.
    None,
    /// There are some again.
    Some,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct NoPeers {
    /// Since when no peer has been connected.
    without_peers: Option<Instant>,
    /// Since when there has been nobody to ask at all.
    without_anybody: Option<Instant>,
    /// Since when the peers of the routing tables are tried.
    tables_tried: Option<Instant>,
    dials: bool,
    said: bool,
}

impl NoPeers {
    /// A node that starts.
    pub fn new(now: Instant) -> Self {
        Self { without_peers: Some(now), without_anybody: Some(now), tables_tried: None, dials: true, said: false }
    }

    /// Tells who is there. Call it about every second, and before a decision.
    pub fn note(&mut self, available: Available, now: Instant) {
        let Available { peers, others, tables, dials } = available;
        let counts = |since: &Instant| now.saturating_duration_since(*since) < DIALS_WAITED_FOR + TABLES_TRIED_FOR;
        self.tables_tried = self.tables_tried.filter(|since| peers == 0 && counts(since));
        let in_vain = self.tables_tried.filter(|since| now.saturating_duration_since(*since) >= DIALS_WAITED_FOR);
        let lonely = peers == 0 && !others && (!tables || in_vain.is_some());
        self.without_peers = (peers == 0).then(|| self.without_peers.unwrap_or(now));
        self.without_anybody = lonely.then(|| self.without_anybody.or(in_vain).unwrap_or(now));
        self.dials = dials;
    }

    /// A search asks the peers of the routing tables.
    pub fn searched(&mut self, now: Instant) {
        if self.without_peers.is_some() {
            self.tables_tried.get_or_insert(now);
        }
    }

    /// Whether it is no use to wait: nobody is there to ask, and has not been for a while.
    pub fn is_settled(&self, now: Instant) -> bool {
        let patience = if self.dials { DIALS_WAITED_FOR } else { OTHERS_WAITED_FOR };
        self.without_anybody.is_some_and(|since| now.saturating_duration_since(since) >= patience)
    }

    /// What is to be said now; each thing once.
    pub fn news(&mut self, now: Instant) -> Option<News> {
        let long = self.without_peers.map(|since| now.saturating_duration_since(since) >= SAID_AFTER);
        let news = match long {
            Some(true) if !self.said => News::None,
            None if self.said => News::Some,
            _ => return None,
        };
        self.said = news == News::None;
        Some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Available = Available { peers: 0, others: false, tables: false, dials: false };

    #[test]
    fn a_search_waits_for_dials_of_the_start_and_not_for_ever() {
        // Who is there, and for how many seconds of that a search waits; none: for as long as it takes.
        let table = [
            (NOBODY, Some(OTHERS_WAITED_FOR)),
            (Available { dials: true, ..NOBODY }, Some(DIALS_WAITED_FOR)),
            (Available { others: true, ..NOBODY }, None),
            (Available { tables: true, ..NOBODY }, None),
            (Available { peers: 1, ..NOBODY }, None),
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
    fn the_patience_begins_anew_when_the_last_peer_leaves() {
        let start = Instant::now();
        let mut no_peers = NoPeers::new(start);
        let later = start + Duration::from_secs(3600);
        no_peers.note(Available { peers: 1, ..NOBODY }, start);
        no_peers.note(NOBODY, later);
        assert!(!no_peers.is_settled(later));
        no_peers.note(NOBODY, later + OTHERS_WAITED_FOR);
        assert!(no_peers.is_settled(later + OTHERS_WAITED_FOR));
        no_peers.note(Available { others: true, ..NOBODY }, later + OTHERS_WAITED_FOR);
        assert!(!no_peers.is_settled(later + OTHERS_WAITED_FOR));
    }

    #[test]
    fn peers_of_an_earlier_run_count_until_they_were_tried_in_vain() {
        let (start, seconds) = (Instant::now(), Duration::from_secs);
        let known = Available { tables: true, ..NOBODY };
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
        assert_eq!(settled_at(known, 0, 100, &[]), [0; 0], "nobody has tried them yet");
        let in_vain: Vec<u64> = (110..120).chain(132..142).collect();
        assert_eq!(
            settled_at(known, 100, 300, &[100, 105, 115, 122]),
            in_vain,
            "for a while; then they are tried again"
        );
        assert_eq!(settled_at(Available { peers: 1, ..known }, 300, 310, &[300]), [0; 0]);
        assert_eq!(settled_at(known, 310, 330, &[]), [0; 0], "they were there a moment ago");
    }

    #[test]
    fn that_there_are_no_peers_is_said_once_and_taken_back() {
        let start = Instant::now();
        let mut no_peers = NoPeers::new(start);
        let mut said = Vec::new();
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            let peers = usize::from((30..50).contains(&second) || (55..60).contains(&second));
            no_peers.note(Available { peers, others: true, ..NOBODY }, now);
            said.extend(no_peers.news(now).map(|news| (second, news)));
        }
        assert_eq!(said, [(10, News::None), (30, News::Some), (70, News::None)]);
    }
}
