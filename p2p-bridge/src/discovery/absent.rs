//! What nobody had a moment ago.
//!
//! A block that was searched for in vain for half a minute is asked for again at once by browsers, crawlers and impatient people. Each
//! of them would wait as long. So a failure is remembered for a short time: whoever asks meanwhile is told at once, and one search at
//! a time looks again behind, so that the block is there for the next one when somebody has it.
//!
//! A state machine that is handed the clock; bounded, the oldest failure goes first.

use crate::wants::SessionId;
use content::{BlockKey, SourceError};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a failure is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);
/// How long nobody looks again after a search has ended.
const REST: Duration = Duration::from_secs(2);
/// Failures that are remembered.
const FAILURES_MAX: usize = 4_096;

/// A block of a DAG: another DAG that holds the same block may have other providers.
pub type Missing = (SessionId, BlockKey);

#[derive(Debug)]
struct Failure {
    error: SourceError,
    at: Instant,
    looking: bool,
}

/// What to do about somebody who asks for a block.
#[derive(Debug, Clone, PartialEq)]
pub enum Advice {
    /// Nothing is known against it.
    Fetch,
    /// Nobody had it a moment ago, and somebody looks again, or did just now.
    Fail(SourceError),
    /// Nobody had it a moment ago: fail, and look again behind. [`Absent::looked`] is to be called when that has ended.
    FailAndLook(SourceError),
}

/// The failures of the last minute.
#[derive(Debug, Default)]
pub struct Absent {
    failures: HashMap<Missing, Failure>,
    order: VecDeque<(Instant, Missing)>,
}

impl Absent {
    /// Somebody asks for a block.
    pub fn advise(&mut self, missing: &Missing, now: Instant) -> Advice {
        let Some(failure) = self.failures.get_mut(missing) else { return Advice::Fetch };
        let age = now.saturating_duration_since(failure.at);
        if age >= REMEMBERED && !failure.looking {
            self.failures.remove(missing);
            return Advice::Fetch;
        }
        if failure.looking || age < REST {
            return Advice::Fail(failure.error.clone());
        }
        failure.looking = true;
        Advice::FailAndLook(failure.error.clone())
    }

    /// A fetch ended: with an error, or with the block.
    pub fn looked(&mut self, missing: Missing, outcome: Result<(), &SourceError>, now: Instant) {
        match outcome {
            // Only what nobody had is worth remembering. A peer that stalled, or a place in a queue, is another matter.
            // Nor is it worth anything that a node without peers found nothing.
            Err(error @ SourceError::Stalled { stall, .. })
                if !stall.no_peers && (stall.peers_answered == 0 || stall.providers_found == 0) =>
            {
                self.make_room(now);
                self.order.push_back((now, missing));
                self.failures.insert(missing, Failure { error: error.clone(), at: now, looking: false });
            }
            Err(_) => {
                let Some(failure) = self.failures.get_mut(&missing) else { return };
                failure.looking = false;
                // Its place in the order may be gone, and nothing else would remove it.
                if now.saturating_duration_since(failure.at) >= REMEMBERED {
                    self.failures.remove(&missing);
                }
            }
            Ok(()) => _ = self.failures.remove(&missing),
        }
    }

    fn make_room(&mut self, now: Instant) {
        while let Some((at, missing)) = self.order.front().copied() {
            if self.order.len() < FAILURES_MAX && now.saturating_duration_since(at) < REMEMBERED {
                return;
            }
            self.order.pop_front();
            // A later failure of the same block has a later place in the order.
            if self.failures.get(&missing).is_some_and(|failure| failure.at == at && !failure.looking) {
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
    fn a_failure_is_told_at_once_and_looked_after_behind_one_at_a_time() {
        let start = Instant::now();
        let (missing, error) = missing(1);
        let mut absent = Absent::default();
        assert_eq!(absent.advise(&missing, start), Advice::Fetch);
        absent.looked(missing, Err(&error), start);
        assert_eq!(absent.advise(&missing, start), Advice::Fail(error.clone()), "somebody looked just now");
        let later = start + REST;
        assert_eq!(absent.advise(&missing, later), Advice::FailAndLook(error.clone()));
        assert_eq!(absent.advise(&missing, later), Advice::Fail(error.clone()), "one is enough");
        let stale = start + REMEMBERED * 2;
        assert_eq!(absent.advise(&missing, stale), Advice::Fail(error.clone()), "as long as somebody looks");
        absent.looked(missing, Err(&error), stale);
        assert_eq!(absent.advise(&missing, stale + REMEMBERED), Advice::Fetch, "forgotten");
        absent.looked(missing, Err(&error), stale);
        absent.looked(missing, Ok(()), stale);
        assert_eq!(absent.advise(&missing, stale), Advice::Fetch, "somebody has it");
    }

    #[test]
    fn what_peers_had_but_did_not_send_is_not_absent() {
        let now = Instant::now();
        let (missing, error) = missing(1);
        let SourceError::Stalled { cid, mut stall } = error else { unreachable!() };
        stall.providers_found = 2;
        let alone = Stall { no_peers: true, ..Stall::default() };
        let mut absent = Absent::default();
        let stalled = |stall| SourceError::Stalled { cid, stall };
        for error in [stalled(stall), stalled(alone), SourceError::Busy, SourceError::Closed] {
            absent.looked(missing, Err(&error), now);
            assert_eq!(absent.advise(&missing, now), Advice::Fetch, "{error:?}");
        }
    }

    #[test]
    fn a_crowd_of_failures_costs_bounded_memory() {
        let now = Instant::now();
        let mut absent = Absent::default();
        for n in 0..3 * FAILURES_MAX as u64 {
            let (missing, error) = missing(n);
            absent.looked(missing, Err(&error), now);
        }
        assert!(absent.failures.len() <= FAILURES_MAX && absent.order.len() <= FAILURES_MAX);
        assert_eq!(absent.advise(&missing(0).0, now), Advice::Fetch, "the oldest goes first");
    }
}
