//! IPNS over the DHT: the first valid record is the answer, and the search continues in the background for a newer one.
//!
//! Waiting for a quorum of peers, as is common, takes as long as the slowest of them. Instead the first caller gets the
//! first valid record; if another peer has a newer one, later callers get that. Only callers whose cached record has
//! been stale for long wait for a newer one, or until it is confirmed that there is none: by a quorum, or by all peers
//! that answered within [`QUORUM_WAIT`] after the first.

use super::cache::{Answer, CacheEntry, QUORUM};
use super::{FAILURE_TTL, Inner, QUORUM_WAIT};
use crate::bridge::Bridge;
use crate::lookups::{RecordOrigin, Search};
use content::ipns::Record;
use content::names::Key;
use content::{Name, NameError};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Valid records that end a search.
const GOOD_MAX: u32 = 16;
/// Invalid records that end a search: more than the number of peers close to a key.
const BAD_MAX: usize = 64;

/// The reason for rejecting an expired record.
pub(super) const EXPIRED: &str = "the record is past its end of life";

/// A source of IPNS records.
pub(super) trait RecordSource: Send + Sync {
    /// Starts a search.
    fn find(&self, key: Key) -> BoxFuture<'static, Search>;
}

impl RecordSource for Bridge {
    fn find(&self, key: Key) -> BoxFuture<'static, Search> {
        let bridge = self.clone();
        async move { bridge.find_records(&key).await }.boxed()
    }
}

/// Runs a search to its end; `answer` is called with the best answer so far for each valid record, the first as soon as
/// it arrives, or with the failure.
pub(super) async fn search(
    inner: &Inner,
    records: &dyn RecordSource,
    key: Key,
    mut answer: impl FnMut(Arc<CacheEntry>),
) {
    let begun = Instant::now();
    let name = Name::Key(key);
    let deadline = begun + inner.timeout;
    let (mut good, mut bad, mut refusal) = (0_u32, 0, None);
    // The newest record, until it is confirmed that there is no newer one.
    let mut best: Option<(Record, Instant)> = None;
    let Ok(mut search) = timeout_at(deadline, records.find(key)).await else {
        inner.metrics.busy(&name);
        return answer(inner.insert_failure(&name, NameError::Busy, Duration::ZERO));
    };
    while good < GOOD_MAX && bad < BAD_MAX {
        let until = best.as_ref().map_or(deadline, |(_, agreed_at)| deadline.min(*agreed_at));
        let Ok(next) = timeout_at(until, search.next()).await else {
            let Some((record, _)) = best.take() else { break };
            answer(inner.insert_newer(&name, record, QUORUM).0);
            continue;
        };
        let Some(found) = next else { break };
        match check(inner, &key, &found.bytes) {
            // A record that this node stores for the DHT confirms nothing.
            Ok(record) if found.holder == RecordOrigin::LocalNode && is_known(inner, &name, &record) => {}
            Ok(record) => {
                good += 1;
                if good == 1 {
                    inner.metrics.looked_up(&name, None, begun.elapsed());
                    best = Some((record.clone(), Instant::now() + QUORUM_WAIT));
                }
                best = best
                    .filter(|_| good < QUORUM)
                    .map(|(best, agreed_at)| (if record.newer_than(&best) { record.clone() } else { best }, agreed_at));
                // Callers of a refresh need the number of confirmations.
                let confirmations = if best.is_some() { good } else { QUORUM };
                answer(inner.insert_newer(&name, record, confirmations).0);
            }
            Err(reason) => {
                bad += 1;
                tracing::debug!(%key, holder = ?found.holder, reason, "rejected an IPNS record");
                refusal = Some(reason);
            }
        }
    }
    if let Some((record, _)) = best {
        // The search has ended: fewer peers than the quorum have a record.
        answer(inner.insert_newer(&name, record, QUORUM).0);
    }
    if good == 0 {
        let error = match refusal {
            Some(reason) => NameError::Refused { key, reason },
            None => NameError::NoRecord { key, waited: begun.elapsed(), peers_asked: search.peers_asked() },
        };
        inner.metrics.looked_up(&name, Some(&error), begun.elapsed());
        answer(inner.insert_failure(&name, error, FAILURE_TTL));
    }
}

/// Whether the cached record of a name is at least as new as a record.
fn is_known(inner: &Inner, name: &Name, record: &Record) -> bool {
    let known = inner.cache.get(name);
    let known = known.as_ref().and_then(|entry| entry.outcome.as_ref().ok());
    matches!(known, Some(Answer::Record(known)) if !record.newer_than(known))
}

/// Verifies a record and its end of life; the error is the reason for rejecting it.
fn check(inner: &Inner, key: &Key, bytes: &bytes::Bytes) -> Result<Record, String> {
    let record = Record::verify(key, bytes.clone()).map_err(|error| error.to_string())?;
    if record.is_valid_at((inner.clock.wall)()) { Ok(record) } else { Err(EXPIRED.to_owned()) }
}
