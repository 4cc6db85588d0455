//! Traces of requests, exported to a collector by the OpenTelemetry protocol (OTLP/HTTP in protobuf).
//!
//! | module | concern |
//! |---|---|
//! | [`context`] | W3C Trace Context: `traceparent` and `tracestate`; without I/O |
//! | [`sampling`] | which requests are traced, and the identifiers of traces and spans |
//! | [`trace`] | the spans of one request, bounded in number |
//! | `otlp` | the messages of OTLP |
//! | [`export`] | the bounded queue of ended traces, and the task that sends them in batches |
//! | `settings` | the endpoint, headers and certificates of the settings |
//!
//! Goals: without an endpoint, a request costs one branch, and one that is not sampled a hash; a request never waits for the collector, however slow or
//! dead that is: spans are dropped and counted; memory is bounded; the log says once that exports fail, and once that
//! they succeed again; a shutdown flushes for a few seconds at most.
//!
//! The batches, the queue and the requests are our own. The SDK's batch processor does not tell how many spans it
//! drops, and logs each failed export; its exporters come with an HTTP client or gRPC stack of their own.
//!
//! Non-goals: metrics and logs by OTLP, since Prometheus scrapes and the log's JSON exist; OTLP over gRPC; the
//! propagation of trace contexts to other servers, which are not the operator's and must not learn them.

pub mod context;
pub mod export;
mod otlp;
pub mod sampling;
mod settings;
pub mod trace;

pub use self::context::{SpanId, TraceId, TraceParent, TraceState};
pub use self::export::{Exporter, TelemetryMetrics};
pub use self::sampling::Sampler;
pub use self::settings::check;
pub use self::trace::{AttributeValue, Attributes, Span, SpanKind, Trace};

use self::export::Queue;
use config::{ConfigError, Loaded};
use std::sync::Arc;

/// Begins the traces of requests. There is none if tracing is off.
#[derive(Debug)]
pub struct Tracer {
    sampler: Sampler,
    queue: Arc<Queue>,
}

impl Tracer {
    /// A tracer whose traces go to a queue.
    pub fn new(sampler: Sampler, queue: Arc<Queue>) -> Self {
        Self { sampler, queue }
    }

    /// The trace of a request that has been received, if it is sampled. `parent` is the span of a trusted proxy.
    pub fn begin(&self, parent: Option<(TraceParent, TraceState)>) -> Option<Arc<Trace>> {
        let trace_id = self.sampler.sample(parent.as_ref().map(|(parent, _)| parent))?;
        Some(Arc::new(Trace::new(&self.sampler, Arc::clone(&self.queue), trace_id, parent)))
    }
}

/// Starts the export, if the settings name a collector. Must be called inside a Tokio runtime.
///
/// # Errors
/// [`ConfigError`] about a setting that cannot be used.
pub fn start(
    loaded: &Loaded,
    version: &str,
    metrics: TelemetryMetrics,
) -> Result<Option<(Arc<Tracer>, Exporter)>, ConfigError> {
    let Some(target) = settings::target(loaded, version)? else { return Ok(None) };
    let queue = Arc::new(Queue::new(metrics));
    let exporter = Exporter::start(target, Arc::clone(&queue));
    let sampler = Sampler::new(loaded.config.telemetry.sample_ratio);
    Ok(Some((Arc::new(Tracer::new(sampler, queue)), exporter)))
}
