//! IPNS over the DHT: the first good record answers, and the search goes on behind for a better one.
//!
//! Waiting for many peers to agree, as is common, takes the slowest of them. Instead whoever asked first gets the first
//! record that holds; should another peer have a newer one, everybody who asks from then on gets that. Only those whose known
//! record has been stale for long wait for a newer one, or until it counts as agreed that there is none: by some peers, or by
//! those that were heard within a moment of the first.

use super::cache::{AGREED, Answer, Entry};
use super::{FAILURE_TTL, Inner, SETTLE};
use crate::bridge::Bridge;
use crate::lookups::{Holder, Search};
use content::ipns::Record;
use content::names::Key;
use content::{Name, NameError};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Good records that end a search.
const GOOD_MAX: u32 = 16;
/// Bad records that end a search: more peers than that are never near a key.
const BAD_MAX: usize = 64;

/// Why a record that was good once is refused.
pub(super) const EXPIRED: &str = "the record is past its end of life";

/// Whoever finds records.
pub(super) trait Records: Send + Sync {
    /// Starts a search.
    fn find(&self, key: Key) -> BoxFuture<'static, Search>;
}

impl Records for Bridge {
    fn find(&self, key: Key) -> BoxFuture<'static, Search> {
        let bridge = self.clone();
        async move { bridge.find_records(&key).await }.boxed()
    }
}

/// Searches to the end; `answer` is called with the best answer so far for each good record, the first as soon as it is there,
/// or with the failure.
pub(super) async fn search(inner: &Inner, records: &dyn Records, key: Key, mut answer: impl FnMut(Arc<Entry>)) {
    let begun = Instant::now();
    let name = Name::Key(key);
    let deadline = begun + inner.timeout;
    let (mut good, mut bad, mut refusal) = (0_u32, 0, None);
    // The best record, until it counts as agreed that there is nothing newer.
    let mut best: Option<(Record, Instant)> = None;
    let Ok(mut search) = timeout_at(deadline, records.find(key)).await else {
        inner.metrics.busy(&name);
        return answer(inner.fail(&name, NameError::Busy, Duration::ZERO));
    };
    while good < GOOD_MAX && bad < BAD_MAX {
        let until = best.as_ref().map_or(deadline, |(_, agreed_at)| deadline.min(*agreed_at));
        let Ok(next) = timeout_at(until, search.next()).await else {
            let Some((record, _)) = best.take() else { break };
            answer(inner.improve(&name, record, AGREED).0);
            continue;
        };
        let Some(found) = next else { break };
        match check(inner, &key, &found.bytes) {
            // A copy that was put here some time ago confirms nothing.
            Ok(record) if found.holder == Holder::Ourselves && is_known(inner, &name, &record) => {}
            Ok(record) => {
                good += 1;
                if good == 1 {
                    inner.metrics.looked_up(&name, None, begun.elapsed());
                    best = Some((record.clone(), Instant::now() + SETTLE));
                }
                best = best
                    .filter(|_| good < AGREED)
                    .map(|(best, agreed_at)| (if record.newer_than(&best) { record.clone() } else { best }, agreed_at));
                // Whoever waits for a refresh wants to know how many peers agree.
                let agreed = if best.is_some() { good } else { AGREED };
                answer(inner.improve(&name, record, agreed).0);
            }
            Err(reason) => {
                bad += 1;
                tracing::debug!(%key, holder = ?found.holder, reason, "refused a record");
                refusal = Some(reason);
            }
        }
    }
    if let Some((record, _)) = best {
        // The search has ended: fewer than that many peers have a record.
        answer(inner.improve(&name, record, AGREED).0);
    }
    if good == 0 {
        let error = match refusal {
            Some(reason) => NameError::Refused { key, reason },
            None => NameError::NoRecord { key, waited: begun.elapsed(), peers_asked: search.peers_asked() },
        };
        inner.metrics.looked_up(&name, Some(&error), begun.elapsed());
        answer(inner.fail(&name, error, FAILURE_TTL));
    }
}

/// Whether what is remembered of a name is as new as a record.
fn is_known(inner: &Inner, name: &Name, record: &Record) -> bool {
    let known = inner.cache.get(name);
    let known = known.as_ref().and_then(|entry| entry.outcome.as_ref().ok());
    matches!(known, Some(Answer::Record(known)) if !record.newer_than(known))
}

/// The record, if it is one and still holds; otherwise why not.
fn check(inner: &Inner, key: &Key, bytes: &bytes::Bytes) -> Result<Record, String> {
    let record = Record::verify(key, bytes.clone()).map_err(|error| error.to_string())?;
    if record.is_valid_at((inner.clock.wall)()) { Ok(record) } else { Err(EXPIRED.to_owned()) }
}
