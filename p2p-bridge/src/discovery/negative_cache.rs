//! The negative cache of blocks that no provider had.
//!
//! Clients repeat a request at once after a search failed, and each repetition would wait as long as the first one,
//! half a minute. So the failure is cached for a short time: requests meanwhile fail at once, and one search at a time
//! runs in the background, so that a later request succeeds once a provider has the block.
//!
//! A state machine that is passed the clock; bounded, the oldest failure is evicted first.

use crate::wants::SessionId;
use content::{BlockKey, SourceError};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a failure is cached.
const TTL: Duration = Duration::from_secs(60);
/// The minimum interval between the end of a search and the next background search.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum cached failures.
const FAILURES_MAX: usize = 4_096;

/// A block of a DAG: another DAG that holds the same block may have other providers.
pub type Missing = (SessionId, BlockKey);

#[derive(Debug)]
struct Failure {
    error: SourceError,
    at: Instant,
    searching: bool,
}

/// How to handle a request for a block.
#[derive(Debug, Clone, PartialEq)]
pub enum Advice {
    /// No failure is cached: fetch the block.
    Fetch,
    /// Fail with the cached error. A background search runs, or ended less than [`SEARCH_INTERVAL`] ago.
    Fail(SourceError),
    /// Fail with the cached error, and search in the background. Call [`NegativeCache::looked`] when the search has ended.
    FailAndSearch(SourceError),
}

/// The cached failures.
#[derive(Debug, Default)]
pub struct NegativeCache {
    failures: HashMap<Missing, Failure>,
    order: VecDeque<(Instant, Missing)>,
}

impl NegativeCache {
    /// How to handle a request for a block.
    pub fn advise(&mut self, missing: &Missing, now: Instant) -> Advice {
        let Some(failure) = self.failures.get_mut(missing) else { return Advice::Fetch };
        let age = now.saturating_duration_since(failure.at);
        if age >= TTL && !failure.searching {
            self.failures.remove(missing);
            return Advice::Fetch;
        }
        if failure.searching || age < SEARCH_INTERVAL {
            return Advice::Fail(failure.error.clone());
        }
        failure.searching = true;
        Advice::FailAndSearch(failure.error.clone())
    }

    /// Records the result of a fetch.
    pub fn looked(&mut self, missing: Missing, outcome: Result<(), &SourceError>, now: Instant) {
        match outcome {
            // Only blocks without a provider are cached. A stalled peer or a full queue is temporary, and a node
            // without peers proves nothing.
            Err(error @ SourceError::Stalled { stall, .. })
                if !stall.no_peers && (stall.peers_answered == 0 || stall.providers_found == 0) =>
            {
                self.evict(now);
                self.order.push_back((now, missing));
                self.failures.insert(missing, Failure { error: error.clone(), at: now, searching: false });
            }
            Err(_) => {
                let Some(failure) = self.failures.get_mut(&missing) else { return };
                failure.searching = false;
                // Its entry in the order may be gone, and nothing else would remove the failure.
                if now.saturating_duration_since(failure.at) >= TTL {
                    self.failures.remove(&missing);
                }
            }
            Ok(()) => _ = self.failures.remove(&missing),
        }
    }

    fn evict(&mut self, now: Instant) {
        while let Some((at, missing)) = self.order.front().copied() {
            if self.order.len() < FAILURES_MAX && now.saturating_duration_since(at) < TTL {
                return;
            }
            self.order.pop_front();
            // A later failure of the same block has a later entry in the order.
            if self.failures.get(&missing).is_some_and(|failure| failure.at == at && !failure.searching) {
                self.failures.remove(&missing);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use content::{Block, Stall, codec, hashes};

    fn missing(n: u64) -> (Missing, SourceError) {
        let data = Bytes::copy_from_slice(&n.to_be_bytes());
        let block = Block::of(codec::RAW, hashes::SHA2_256, 32, data).expect("block");
        let stall = Stall { waited: Duration::from_secs(30), peers_asked: 1, peers_answered: 1, ..Stall::default() };
        ((*block.cid().hash(), block.key().expect("key")), SourceError::Stalled { cid: *block.cid(), stall })
    }

    #[test]
    fn a_cached_failure_is_returned_at_once_with_one_background_search_at_a_time() {
        let start = Instant::now();
        let (missing, error) = missing(1);
        let mut absent = NegativeCache::default();
        assert_eq!(absent.advise(&missing, start), Advice::Fetch);
        absent.looked(missing, Err(&error), start);
        assert_eq!(absent.advise(&missing, start), Advice::Fail(error.clone()), "a search ended just now");
        let later = start + SEARCH_INTERVAL;
        assert_eq!(absent.advise(&missing, later), Advice::FailAndSearch(error.clone()));
        assert_eq!(absent.advise(&missing, later), Advice::Fail(error.clone()), "one search at a time");
        let stale = start + TTL * 2;
        assert_eq!(absent.advise(&missing, stale), Advice::Fail(error.clone()), "while a search runs");
        absent.looked(missing, Err(&error), stale);
        assert_eq!(absent.advise(&missing, stale + TTL), Advice::Fetch, "expired");
        absent.looked(missing, Err(&error), stale);
        absent.looked(missing, Ok(()), stale);
        assert_eq!(absent.advise(&missing, stale), Advice::Fetch, "the block was found");
    }

    #[test]
    fn failures_of_peers_that_have_the_block_are_not_cached() {
        let now = Instant::now();
        let (missing, error) = missing(1);
        let SourceError::Stalled { cid, mut stall } = error else { unreachable!() };
        stall.providers_found = 2;
        let alone = Stall { no_peers: true, ..Stall::default() };
        let mut absent = NegativeCache::default();
        let stalled = |stall| SourceError::Stalled { cid, stall };
        for error in
            [stalled(stall), stalled(alone), SourceError::Busy { retry_after: Duration::ZERO }, SourceError::Closed]
        {
            absent.looked(missing, Err(&error), now);
            assert_eq!(absent.advise(&missing, now), Advice::Fetch, "{error:?}");
        }
    }

    #[test]
    fn cached_failures_are_bounded() {
        let now = Instant::now();
        let mut absent = NegativeCache::default();
        for n in 0..3 * FAILURES_MAX as u64 {
            let (missing, error) = missing(n);
            absent.looked(missing, Err(&error), now);
        }
        assert!(absent.failures.len() <= FAILURES_MAX && absent.order.len() <= FAILURES_MAX);
        assert_eq!(absent.advise(&missing(0).0, now), Advice::Fetch, "the oldest is evicted first");
    }
}
