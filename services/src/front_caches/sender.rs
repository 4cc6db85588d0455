//! Sends to one cache in front what waits for it, one thing after the other. What fails is tried again after a
//! back-off, for as long as it takes; what the cache refuses is given up after some attempts.

use crate::front_caches::Inner;
use crate::front_caches::message::{self, Meaning, Message};
use crate::front_caches::queue::Item;
use crate::subject::Subject;
use config::{FrontCache, Secret};
use p2p_bridge::http_source::dialling;
use reqwest::Client;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// How long a request may take, and how much of an answer is read: nginx keeps what was read whole.
const TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The first pause after a failure, and the longest.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// How often a cache may refuse the same.
const REFUSALS_MAX: u32 = 5;

/// Why something was not told.
struct Failure {
    meaning: Meaning,
    /// Whether the cache was reached at all.
    reached: bool,
    /// The status, if there was one.
    status: Option<u16>,
    words: String,
}

/// What becomes of something that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// It is tried again.
    Waits,
    /// It is tried again when everything else was: it concerns this alone, for the cache answers.
    PutOff,
    /// The same, and the cache refused it.
    Refused,
    GivenUp,
}

impl Outcome {
    fn of(failure: &Failure, item: &Item) -> Self {
        match failure.meaning {
            Meaning::Refused if item.refusals + 1 >= REFUSALS_MAX => Self::GivenUp,
            Meaning::Refused => Self::Refused,
            // What Causeway itself cannot answer, say because nobody has it, must not keep take-downs behind it waiting.
            Meaning::Later | Meaning::Done if failure.reached => Self::PutOff,
            Meaning::Later | Meaning::Done => Self::Waits,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Waits | Self::PutOff | Self::Refused => "failed",
            Self::GivenUp => "refused",
        }
    }
}

/// The task of one cache.
///
/// # Errors
/// When there is no speaking HTTP.
pub(super) fn start(
    inner: Arc<Inner>,
    cache: FrontCache,
    token: Option<Secret>,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    // What the operator named may be anywhere. A host may be asked for that the address does not have.
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
            // Whoever adds something from here on wakes this.
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
                    self.settle(item, Outcome::Done).await;
                }
                Err(failure) => {
                    self.tell(&item, &failure, failures == 0).await;
                    let outcome = Outcome::of(&failure, &item);
                    self.settle(item, outcome).await;
                    failures += 1;
                    tokio::time::sleep(pause(failures)).await;
                }
            }
        }
    }

    /// Sends all that one thing takes.
    async fn send(&self, item: &Item) -> Result<(), Failure> {
        let refused = |words: String| Failure { meaning: Meaning::Refused, reached: false, status: None, words };
        let subject = Subject::of_path(&item.path).map_err(|error| refused(error.to_string()))?;
        let token = self.token.as_ref().and_then(Secret::reveal);
        let messages = message::messages(&self.cache, &self.inner.hosts, &subject, token);
        if messages.is_empty() {
            return Err(refused("there is no address under which the cache has it".to_owned()));
        }
        for message in messages {
            self.send_one(message).await?;
        }
        Ok(())
    }

    async fn send_one(&self, message: Message) -> Result<(), Failure> {
        let Message { method, url, headers, body } = message;
        let request = self.client.request(method, url).headers(headers);
        let request = body.into_iter().fold(request, |request, body| request.body(body));
        // Neither the address nor what was answered is repeated.
        let failed = |error: reqwest::Error| {
            let reached = error.is_timeout() && !error.is_connect();
            let words = innermost(&error.without_url());
            Failure { meaning: Meaning::Later, reached, status: None, words }
        };
        let mut response = request.send().await.map_err(failed)?;
        let (status, mut bytes) = (response.status(), 0);
        // What is not read to its end is not kept.
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            bytes += chunk.len();
            if bytes > ANSWER_BYTES_MAX {
                break;
            }
        }
        match message::meaning(self.cache.kind, status) {
            Meaning::Done => Ok(()),
            meaning => {
                let words = format!("it answered {status}");
                Err(Failure { meaning, reached: true, status: Some(status.as_u16()), words })
            }
        }
    }

    /// Writes down what became of something.
    async fn settle(&self, item: Item, outcome: Outcome) {
        self.inner.metrics.count(&self.cache, outcome.name());
        let told = |status| self.record(&item, status, json!({ "cache": item.cache, "result": outcome.name() }));
        match outcome {
            Outcome::Done => told(200).await,
            Outcome::GivenUp => told(502).await,
            Outcome::PutOff | Outcome::Refused => {}
            Outcome::Waits => return,
        }
        let inner = Arc::clone(&self.inner);
        let saving = tokio::task::spawn_blocking(move || {
            match outcome {
                Outcome::PutOff => inner.queue().put_off(&item),
                Outcome::Refused => inner.queue().put_off(&Item { refusals: item.refusals + 1, ..item.clone() }),
                _ => inner.queue().remove(&item),
            }
            inner.save();
            inner.show();
        });
        _ = saving.await;
    }

    /// The first failure in a row is told; the others are counted.
    async fn tell(&self, item: &Item, failure: &Failure, is_first: bool) {
        let Failure { status, words, .. } = failure;
        if is_first {
            tracing::warn!(cache = %self.cache, content = item.shown, error = words, "a purge request failed and is retried");
            let detail = json!({ "cache": item.cache, "result": "failed", "error": words });
            self.record(item, status.unwrap_or(502), detail).await;
        }
    }

    async fn record(&self, item: &Item, status: u16, detail: serde_json::Value) {
        self.inner.audit.record("purge", &item.shown, status, Some(detail)).await;
    }
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// How long to wait after so many failures in a row.
fn pause(failures: u32) -> Duration {
    PAUSE_FIRST.saturating_mul(1 << failures.clamp(1, 12).saturating_sub(1)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_one_thing_alone_keeps_nothing_else_waiting() {
        let item = |refusals| Item { cache: String::new(), path: String::new(), shown: String::new(), refusals };
        let failure = |meaning, reached| Failure { meaning, reached, status: None, words: String::new() };
        let table = [
            (failure(Meaning::Later, false), 0, Outcome::Waits),
            (failure(Meaning::Later, true), 0, Outcome::PutOff),
            (failure(Meaning::Later, true), 99, Outcome::PutOff),
            (failure(Meaning::Refused, true), 0, Outcome::Refused),
            (failure(Meaning::Refused, true), REFUSALS_MAX - 1, Outcome::GivenUp),
        ];
        for (failure, refusals, expected) in table {
            assert_eq!(Outcome::of(&failure, &item(refusals)), expected);
        }
    }

    #[test]
    fn a_cache_that_fails_is_spared_more_and_more() {
        let pauses: Vec<u64> = [1, 2, 3, 9, 10, 99].iter().map(|n| pause(*n).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300]);
    }
}
