//! Announcing what is pinned: which keys still have to be published in one scope of the DHT, a few at a time.
//!
//! Goals: nothing is announced into an empty routing table, where it would be lost; a failed announcement is tried again.
//! Republication of what was announced is Kademlia's own job. Non-goal: large sets; sweeps over the key space come later.

use libp2p::kad::RecordKey;
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Announcements under way at once.
const CONCURRENT: usize = 8;
/// How long to wait after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// The announcements of one scope.
#[derive(Debug, Default)]
pub struct Providing {
    waiting: VecDeque<RecordKey>,
    under_way: HashSet<RecordKey>,
    resting_until: Option<Instant>,
}

impl Providing {
    /// Adds a key to announce.
    pub fn add(&mut self, key: RecordKey) {
        if !self.waiting.contains(&key) && !self.under_way.contains(&key) {
            self.waiting.push_back(key);
        }
    }

    /// The next key to announce, given whether anybody is there to hear it.
    pub fn next(&mut self, table_is_empty: bool, now: Instant) -> Option<RecordKey> {
        let resting = self.resting_until.is_some_and(|until| now < until);
        if table_is_empty || resting || self.under_way.len() >= CONCURRENT {
            return None;
        }
        let key = self.waiting.pop_front()?;
        self.under_way.insert(key.clone());
        Some(key)
    }

    /// An announcement ended.
    pub fn finished(&mut self, key: &RecordKey, succeeded: bool, now: Instant) {
        if self.under_way.remove(key) && !succeeded {
            self.waiting.push_back(key.clone());
            self.resting_until = Some(now + AFTER_FAILURE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_wait_for_a_peer_go_out_a_few_at_a_time_and_failures_come_again() {
        let now = Instant::now();
        let mut providing = Providing::default();
        for n in 0..20_u8 {
            providing.add(RecordKey::new(&[n]));
        }
        assert_eq!(providing.next(true, now), None);
        let first: Vec<RecordKey> = std::iter::from_fn(|| providing.next(false, now)).collect();
        assert_eq!(first.len(), CONCURRENT);
        providing.finished(&first[0], true, now);
        assert!(providing.next(false, now).is_some());
        providing.finished(&first[1], false, now);
        assert_eq!(providing.next(false, now), None, "rests after a failure");
        let mut later = HashSet::new();
        let mut clock = now;
        for _ in 0..100 {
            clock += AFTER_FAILURE;
            while let Some(key) = providing.next(false, clock) {
                providing.finished(&key, true, clock);
                later.insert(key);
            }
            for key in &first[2..] {
                providing.finished(key, true, clock);
            }
        }
        assert!(later.contains(&first[1]));
    }
}
