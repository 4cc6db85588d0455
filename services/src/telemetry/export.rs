//! [`Exporter`]: sends ended traces to the collector, in batches, from a bounded queue.
//!
//! Retries are those of OTLP/HTTP (<https://opentelemetry.io/docs/specs/otlp/#failures-1>): after 429, 502, 503 and
//! 504, and when the collector cannot be reached, with back-off and as `Retry-After` says. A batch is retried for
//! [`RETRY_MAX`]; meanwhile the queue fills, and then new spans are dropped.

use super::otlp::{self, ExportTraceServiceResponse};
use super::settings::Target;
use super::trace::EndedTrace;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use p2p_bridge::back_off;
use p2p_bridge::errors::innermost;
use p2p_bridge::retry_after::retry_after;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use prost::Message as _;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The maximum size of queued traces, in bytes of memory.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;
/// Traces are sent at once when they have so many spans, and the maximum size of a batch in bytes of memory.
const BATCH_SPANS: usize = 512;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// How long fewer spans are collected.
const BATCH_TIME: Duration = Duration::from_secs(2);
/// How long the export of a batch is retried.
pub const RETRY_MAX: Duration = Duration::from_secs(60);
/// The first back-off after a failure, and the longest.
const BACK_OFF_MIN: Duration = Duration::from_secs(1);
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// The maximum of the `Retry-After` that is honoured.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// The maximum size of a response that is read, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 << 10;
/// How long a shutdown waits for the last export.
pub const CLOSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

p2p_bridge::metrics! {
    struct Families {
        exported: Counter = "causeway_trace_spans_exported", "Spans that the collector of traces has accepted";
        failures: Counter = "causeway_trace_exports_failed", "Requests to the collector of traces that failed";
        dropped: Family<ReasonLabel, Counter> = "causeway_trace_spans_dropped",
            "Spans that were not exported, by reason: a request had too many (limit), they ended after their request \
             (late), the queue was full (queue), or the collector was unreachable or did not accept them (export)";
    }
}

/// Metrics of the export of traces.
#[derive(Debug, Clone, Default)]
pub struct TelemetryMetrics {
    /// Spans that the collector has accepted.
    pub exported: Counter,
    /// Failed requests to the collector.
    pub failures: Counter,
    /// Spans beyond the maximum of their request.
    pub limit: Counter,
    /// Spans that ended after their request.
    pub late: Counter,
    /// Spans for which the queue had no room.
    pub queue: Counter,
    /// Spans that could not be exported.
    pub export: Counter,
}

impl TelemetryMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let Families { exported, failures, dropped } = Families::registered(registry);
        let of = |reason| dropped.get_or_create_owned(&ReasonLabel { reason });
        Self { exported, failures, limit: of("limit"), late: of("late"), queue: of("queue"), export: of("export") }
    }
}

/// The queue of ended traces.
#[derive(Debug, Default)]
pub struct Queue {
    traces: Mutex<Traces>,
    /// There is something to send, or the exporter closes.
    wake: Notify,
    closing: CancellationToken,
    metrics: TelemetryMetrics,
}

#[derive(Debug, Default)]
struct Traces {
    queued: VecDeque<EndedTrace>,
    bytes: usize,
    spans: usize,
}

impl Queue {
    /// An empty queue.
    pub fn new(metrics: TelemetryMetrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    /// Queues a trace, or drops it if there is no room. Never waits.
    pub(super) fn push(&self, trace: EndedTrace) {
        let mut traces = self.traces();
        if self.closing.is_cancelled() || traces.bytes + trace.bytes > QUEUE_BYTES_MAX {
            drop(traces);
            self.metrics.queue.inc_by(trace.spans.len() as u64);
            return;
        }
        let was_empty = traces.queued.is_empty();
        traces.bytes += trace.bytes;
        traces.spans += trace.spans.len();
        let is_due = traces.spans >= BATCH_SPANS;
        traces.queued.push_back(trace);
        drop(traces);
        if was_empty || is_due {
            self.wake.notify_one();
        }
    }

    /// Counts spans beyond the maximum of their request.
    pub(super) fn dropped_by_limit(&self, spans: u64) {
        self.metrics.limit.inc_by(spans);
    }

    /// Counts a span that ended after its request.
    pub(super) fn dropped_late(&self) {
        self.metrics.late.inc();
    }

    /// Removes the traces of the next batch, at least one if there is any.
    pub fn take(&self) -> Vec<EndedTrace> {
        let mut traces = self.traces();
        let (mut batch, mut bytes, mut spans) = (Vec::new(), 0, 0);
        while let Some(next) = traces.queued.front() {
            bytes += next.bytes;
            if !batch.is_empty() && (bytes > BATCH_BYTES_MAX || spans >= BATCH_SPANS) {
                break;
            }
            let Some(next) = traces.queued.pop_front() else { break };
            spans += next.spans.len();
            traces.bytes -= next.bytes;
            traces.spans -= next.spans.len();
            batch.push(next);
        }
        batch
    }

    /// Waits for the next batch; `None` when the queue is closed and empty.
    async fn next(&self) -> Option<Vec<EndedTrace>> {
        let mut due: Option<Instant> = None;
        loop {
            let (is_empty, spans) = {
                let traces = self.traces();
                (traces.queued.is_empty(), traces.spans)
            };
            if self.closing.is_cancelled() || spans >= BATCH_SPANS || due.is_some_and(|due| Instant::now() >= due) {
                return Some(self.take()).filter(|batch| !batch.is_empty());
            }
            if is_empty {
                self.wake.notified().await;
            } else {
                let due = *due.get_or_insert_with(|| Instant::now() + BATCH_TIME);
                // The result is whether there are enough spans before the time is over.
                _ = tokio::time::timeout_at(due.into(), self.wake.notified()).await;
            }
        }
    }

    fn traces(&self) -> MutexGuard<'_, Traces> {
        self.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that exports traces. Dropping it aborts the task.
#[derive(Debug)]
pub struct Exporter {
    queue: Arc<Queue>,
    task: AbortOnDropHandle<()>,
}

impl Exporter {
    /// Starts the task. Must be called inside a Tokio runtime.
    pub fn start(target: Target, queue: Arc<Queue>) -> Self {
        let sender = Sender { target, queue: Arc::clone(&queue), failures: 0 };
        Self { queue, task: AbortOnDropHandle::new(tokio::spawn(sender.run())) }
    }

    /// Sends what is queued, without retries, for at most [`CLOSE_MAX`]. Returns whether the task has ended in time.
    pub async fn close(self) -> bool {
        self.queue.closing.cancel();
        self.queue.wake.notify_one();
        tokio::time::timeout(CLOSE_MAX, self.task).await.is_ok()
    }
}

/// Why an export failed.
#[derive(Debug)]
struct Failure {
    reason: String,
    /// Whether it may be retried, and when the collector wants that.
    retries: bool,
    after: Option<Duration>,
}

struct Sender {
    target: Target,
    queue: Arc<Queue>,
    /// The number of consecutive failures.
    failures: u32,
}

impl Sender {
    async fn run(mut self) {
        while let Some(batch) = self.queue.next().await {
            let spans = batch.iter().map(|trace| trace.spans.len() as u64).sum();
            let body = otlp::request(&self.target.resource, &self.target.scope, &batch).encode_to_vec();
            drop(batch);
            self.deliver(body.into(), spans).await;
        }
    }

    /// Sends a batch until the collector has accepted or rejected it, or for [`RETRY_MAX`].
    async fn deliver(&mut self, body: bytes::Bytes, spans: u64) {
        let until = Instant::now() + RETRY_MAX;
        loop {
            let failure = match self.send(body.clone()).await {
                Ok(rejected) => {
                    let rejected = rejected.min(spans);
                    self.queue.metrics.exported.inc_by(spans - rejected);
                    self.queue.metrics.export.inc_by(rejected);
                    return self.succeeded();
                }
                Err(failure) => failure,
            };
            self.queue.metrics.failures.inc();
            self.report(&failure);
            let back_off = back_off::with_jitter(back_off::exponential(BACK_OFF_MIN, BACK_OFF_MAX, self.failures));
            self.failures = self.failures.saturating_add(1);
            let wait = failure.after.map_or(back_off, |after| after.min(RETRY_AFTER_MAX)).max(BACK_OFF_MIN);
            let is_over = !failure.retries || Instant::now() + wait >= until || self.queue.closing.is_cancelled();
            if is_over {
                self.queue.metrics.export.inc_by(spans);
            }
            // Also after a rejection, since the next batch is likely to meet the same.
            _ = tokio::time::timeout(wait, self.queue.closing.cancelled()).await;
            if is_over {
                return;
            }
        }
    }

    /// Sends a batch once. Returns the number of spans that the collector rejected.
    async fn send(&self, body: bytes::Bytes) -> Result<u64, Failure> {
        let Target { url, headers, client, .. } = &self.target;
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        let request = client.post(url.clone()).headers(headers.clone()).header(CONTENT_TYPE, protobuf).body(body);
        // The message repeats neither the headers nor the response, which may have secrets.
        let failed = |error: reqwest::Error| {
            let reason = if error.is_timeout() {
                "the collector did not answer in time".to_owned()
            } else {
                innermost(&error.without_url())
            };
            Failure { reason, retries: true, after: None }
        };
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status();
        if !status.is_success() {
            let retries = [
                StatusCode::TOO_MANY_REQUESTS,
                StatusCode::BAD_GATEWAY,
                StatusCode::SERVICE_UNAVAILABLE,
                StatusCode::GATEWAY_TIMEOUT,
            ];
            return Err(Failure {
                reason: format!("the collector answered {status}"),
                retries: retries.contains(&status),
                after: retry_after(response.headers(), SystemTime::now()),
            });
        }
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if answer.len() + chunk.len() > RESPONSE_BYTES_MAX {
                // It has accepted the spans, whatever else it says.
                return Ok(0);
            }
            answer.extend_from_slice(&chunk);
        }
        let answer = ExportTraceServiceResponse::decode(&*answer).unwrap_or_default();
        let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
        Ok(u64::try_from(rejected).unwrap_or_default())
    }

    /// Logs the first of consecutive failures; the others are only counted.
    fn report(&self, failure: &Failure) {
        if self.failures == 0 {
            tracing::warn!(
                collector = %self.target.url, error = failure.reason,
                "traces cannot be exported (telemetry.otlp_endpoint); spans are queued, then dropped and counted \
                 (causeway_trace_spans_dropped)"
            );
        }
    }

    fn succeeded(&mut self) {
        if std::mem::take(&mut self.failures) > 0 {
            tracing::info!(collector = %self.target.url, "traces are exported again");
        }
    }
}

#[cfg(test)]
mod tests;
