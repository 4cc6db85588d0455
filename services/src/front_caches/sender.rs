//! Sends the queued requests of one cache in front, one after the other. Failures are retried with back-off without
//! limit; a request that the cache rejects is dropped after some attempts. Of a request for several blocks, only the
//! blocks that failed are retried.

use crate::front_caches::Inner;
use crate::front_caches::message::{self, Message, PurgeResult};
use crate::front_caches::queue::Item;
use crate::subject::{InvalidSubject, Subject};
use config::{FrontCache, Secret};
use p2p_bridge::back_off;
use p2p_bridge::errors::innermost;
use p2p_bridge::http_source::dialling;
use reqwest::Client;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// The timeout of a request, and the maximum size of a response that is read: nginx caches only complete responses.
const TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The first back-off, and the longest.
const BACK_OFF_MIN: Duration = Duration::from_secs(1);
const BACK_OFF_MAX: Duration = Duration::from_secs(300);
/// How often a cache may reject a request before it is dropped.
const REFUSALS_MAX: u32 = 5;

/// Why sending a request failed.
struct Failure {
    meaning: PurgeResult,
    /// Whether the cache was reached.
    reached: bool,
    /// The status, if there was one.
    status: Option<u16>,
    words: String,
}

/// What happens to a request after it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// It is retried.
    Waits,
    /// It is retried after all others: the cache responds, so the failure concerns this request alone.
    PutOff,
    /// The same, and the cache rejected it.
    Refused,
    GivenUp,
}

impl Failure {
    /// Whether other requests would fail as well: the cache did not respond, or rejects the token or the rate.
    fn concerns_all(&self) -> bool {
        self.meaning == PurgeResult::Retry && matches!(self.status, None | Some(401 | 429 | 503))
    }

    /// The one of two failures that decides what happens to the request: a rejection must not end the retries of its
    /// other parts.
    fn decisive(former: Option<Self>, latest: Self) -> Self {
        match former {
            Some(former) if former.meaning == PurgeResult::Retry && !latest.concerns_all() => former,
            _ => latest,
        }
    }
}

/// What failed of a request.
struct Unsent {
    failure: Failure,
    /// The blocks that are retried, first those that were not attempted.
    blocks: Vec<String>,
}

const DONE: &str = "done";
const FAILED: &str = "failed";
const REFUSED: &str = "refused";

/// The results of requests in the metrics and in the audit log.
pub(super) const RESULTS: [&str; 3] = [DONE, FAILED, REFUSED];

impl Outcome {
    fn of(failure: &Failure, item: &Item) -> Self {
        match failure.meaning {
            PurgeResult::Rejected if item.refusals + 1 >= REFUSALS_MAX => Self::GivenUp,
            PurgeResult::Rejected => Self::Refused,
            // Content that Causeway itself cannot serve must not block later take-downs.
            PurgeResult::Retry | PurgeResult::Done if failure.reached => Self::PutOff,
            PurgeResult::Retry | PurgeResult::Done => Self::Waits,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Done => DONE,
            Self::Waits | Self::PutOff | Self::Refused => FAILED,
            Self::GivenUp => REFUSED,
        }
    }
}

/// Creates the task of one cache.
///
/// # Errors
/// When the HTTP client cannot be created.
pub(super) fn start(
    inner: Arc<Inner>,
    cache: FrontCache,
    token: Option<Secret>,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    // The operator's URL may be at any address. The Host header may differ from the URL.
    let builder = || dialling::builder(true).http1_only().timeout(TIMEOUT);
    let client = builder().build().or_else(|_| builder().tls_certs_only([]).build())?;
    Ok(Sender { inner, cache, token, client }.run())
}

struct Sender {
    inner: Arc<Inner>,
    cache: FrontCache,
    token: Option<Secret>,
    client: Client,
}

impl Sender {
    async fn run(self) {
        let name = self.cache.to_string();
        let mut failures = 0;
        loop {
            // Requests that are added from here on wake this task.
            let changed = self.inner.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let next = self.inner.queue().next(&name);
            let Some(item) = next else {
                changed.await;
                continue;
            };
            match self.send(&item).await {
                Ok(()) => {
                    failures = 0;
                    self.settle(item, Outcome::Done, Vec::new()).await;
                }
                Err(Unsent { failure, blocks }) => {
                    self.report(&item, &failure, failures == 0).await;
                    let outcome = Outcome::of(&failure, &item);
                    self.settle(item, outcome, blocks).await;
                    let back_off = back_off::exponential(BACK_OFF_MIN, BACK_OFF_MAX, failures);
                    failures += 1;
                    tokio::time::sleep(back_off::with_jitter(back_off)).await;
                }
            }
        }
    }

    /// Sends all HTTP requests for one item.
    async fn send(&self, item: &Item) -> Result<(), Unsent> {
        if item.blocks.is_empty() {
            let sent = self.send_all(Subject::of_path(&item.path).map(|subject| vec![subject])).await;
            return sent.map_err(|failure| Unsent { failure, blocks: Vec::new() });
        }
        let (mut failed, mut failure) = (Vec::new(), None);
        let mut groups = item.blocks.chunks(message::subjects_max(self.cache.kind));
        for group in groups.by_ref() {
            let subjects = group.iter().map(|block| Subject::of_cid(block)).collect();
            let Err(latest) = self.send_all(subjects).await else { continue };
            failed.extend_from_slice(group);
            let ends = latest.concerns_all();
            failure = Some(Failure::decisive(failure, latest));
            if ends {
                break;
            }
        }
        // A block that fails always is then the last.
        let blocks: Vec<String> = groups.flatten().cloned().chain(failed).collect();
        failure.map_or(Ok(()), |failure| Err(Unsent { failure, blocks }))
    }

    /// Sends the HTTP requests for some subjects, also after one fails.
    async fn send_all(&self, subjects: Result<Vec<Subject>, InvalidSubject>) -> Result<(), Failure> {
        let rejected = |words: String| Failure { meaning: PurgeResult::Rejected, reached: false, status: None, words };
        let subjects = subjects.map_err(|error| rejected(error.to_string()))?;
        let token = self.token.as_ref().and_then(Secret::reveal);
        let messages = message::messages(&self.cache, &self.inner.hosts, &subjects, token);
        if messages.is_empty() {
            return Err(rejected("the cache has no URL for the content".to_owned()));
        }
        let mut failure = None;
        for message in messages {
            let Err(latest) = self.send_one(message).await else { continue };
            let ends = latest.concerns_all();
            failure = Some(Failure::decisive(failure, latest));
            if ends {
                break;
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn send_one(&self, message: Message) -> Result<(), Failure> {
        let Message { method, url, headers, body } = message;
        let request = self.client.request(method, url).headers(headers);
        let request = body.into_iter().fold(request, |request, body| request.body(body));
        // The message repeats neither the URL nor the response, which may have secrets.
        let failed = |error: reqwest::Error| {
            let reached = error.is_timeout() && !error.is_connect();
            let words = innermost(&error.without_url());
            Failure { meaning: PurgeResult::Retry, reached, status: None, words }
        };
        let mut response = request.send().await.map_err(failed)?;
        let (status, mut bytes) = (response.status(), 0);
        // nginx does not cache a response that is not read to its end.
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            bytes += chunk.len();
            if bytes > ANSWER_BYTES_MAX {
                break;
            }
        }
        match message::purge_result(self.cache.kind, status) {
            PurgeResult::Done => Ok(()),
            meaning => {
                let words = format!("the cache answered {status}");
                Err(Failure { meaning, reached: true, status: Some(status.as_u16()), words })
            }
        }
    }

    /// Records the outcome of a request, of which these blocks failed, if it has any.
    async fn settle(&self, item: Item, outcome: Outcome, failed: Vec<String>) {
        self.inner.metrics.count(&self.cache, outcome.name());
        let audit = |status| self.record(&item, status, json!({ "cache": item.cache, "result": outcome.name() }));
        let refusals = item.refusals + u32::from(outcome == Outcome::Refused);
        let left = Item { blocks: failed, refusals, ..item.clone() };
        match outcome {
            Outcome::Done => audit(200).await,
            Outcome::GivenUp => audit(502).await,
            Outcome::PutOff | Outcome::Refused => {}
            // The order of the blocks alone is not worth a write: the cache may be unreachable for long.
            Outcome::Waits if left.blocks.len() == item.blocks.len() => {
                return self.inner.queue().replace(&item, left);
            }
            Outcome::Waits => {}
        }
        let inner = Arc::clone(&self.inner);
        let saving = tokio::task::spawn_blocking(move || {
            match outcome {
                Outcome::PutOff | Outcome::Refused => inner.queue().put_off(&item, left),
                Outcome::Waits => inner.queue().replace(&item, left),
                Outcome::Done | Outcome::GivenUp => inner.queue().remove(&item),
            }
            inner.save();
            inner.update_metrics();
        });
        _ = saving.await;
    }

    /// Logs the first of consecutive failures; the others are only counted.
    async fn report(&self, item: &Item, failure: &Failure, is_first: bool) {
        let Failure { status, words, .. } = failure;
        if is_first {
            let Self { cache, .. } = self;
            tracing::warn!(%cache, content = item.shown, error = words, "a purge request failed and is retried");
            let detail = json!({ "cache": item.cache, "result": FAILED, "error": words });
            self.record(item, status.unwrap_or(502), detail).await;
        }
    }

    async fn record(&self, item: &Item, status: u16, detail: serde_json::Value) {
        self.inner.audit.record("purge", &item.shown, status, Some(detail)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_of_a_request_with_several_is_the_decisive_one() {
        use PurgeResult::{Rejected, Retry};
        let failure = |(meaning, status)| Failure { meaning, reached: true, status, words: String::new() };
        let (rejected, own, rate) = ((Rejected, Some(400)), (Retry, Some(403)), (Retry, Some(429)));
        let (invalid, timeout) = ((Rejected, None), (Retry, None));
        for (former, latest, expected, ends) in [
            (None, rejected, rejected, false),
            (Some(rejected), own, own, false),
            (Some(own), rejected, own, false),
            (Some(own), invalid, own, false),
            (Some(own), rate, rate, true),
            (Some(rejected), timeout, timeout, true),
        ] {
            let latest = failure(latest);
            assert_eq!(latest.concerns_all(), ends, "{former:?} {expected:?}");
            let decisive = Failure::decisive(former.map(failure), latest);
            assert_eq!((decisive.meaning, decisive.status), expected, "{former:?}");
        }
    }

    #[test]
    fn a_request_that_fails_alone_does_not_block_others() {
        let item = |refusals| Item {
            cache: String::new(),
            path: String::new(),
            blocks: Vec::new(),
            shown: String::new(),
            refusals,
        };
        let failure = |meaning, reached| Failure { meaning, reached, status: None, words: String::new() };
        let table = [
            (failure(PurgeResult::Retry, false), 0, Outcome::Waits),
            (failure(PurgeResult::Retry, true), 0, Outcome::PutOff),
            (failure(PurgeResult::Retry, true), 99, Outcome::PutOff),
            (failure(PurgeResult::Rejected, true), 0, Outcome::Refused),
            (failure(PurgeResult::Rejected, true), REFUSALS_MAX - 1, Outcome::GivenUp),
        ];
        for (failure, refusals, expected) in table {
            assert_eq!(Outcome::of(&failure, &item(refusals)), expected);
        }
    }
}
