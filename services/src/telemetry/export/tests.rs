use super::*;
use crate::telemetry::otlp::{ExportTraceServiceRequest, PartialSuccess, Value};
use crate::telemetry::trace::{BLOCK_SPANS_MAX, CANCELLED, DROPPED_SPANS, SpanGroup};
use crate::telemetry::{Sampler, Span, SpanKind, Trace, TraceParent, TraceState, Tracer, settings};
use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(30);

/// A collector that answers with a status, and passes on what it has accepted.
struct Collector {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    received: mpsc::UnboundedReceiver<(HeaderMap, ExportTraceServiceRequest)>,
}

impl Collector {
    async fn start(rejected_spans: i64) -> Self {
        let (sender, received) = mpsc::unbounded_channel();
        let status = Arc::new(AtomicU16::new(200));
        let answered = Arc::clone(&status);
        let export = async move |headers: HeaderMap, body: Bytes| {
            let status = StatusCode::from_u16(answered.load(Ordering::Relaxed)).expect("a status");
            if status == StatusCode::OK {
                let request = ExportTraceServiceRequest::decode(body).expect("is decoded");
                sender.send((headers, request)).expect("the test has not ended");
            }
            let partial = PartialSuccess { rejected_spans, error_message: "no".to_owned() };
            let answer = ExportTraceServiceResponse { partial_success: Some(partial) };
            (status, [("retry-after", "1")], answer.encode_to_vec())
        };
        let router = Router::new().route("/base/v1/traces", post(export));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("is bound");
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, status, received }
    }

    async fn next(&mut self) -> (HeaderMap, ExportTraceServiceRequest) {
        tokio::time::timeout(PATIENCE, self.received.recv()).await.expect("in time").expect("a request")
    }
}

fn exporter(address: SocketAddr) -> (Tracer, Exporter, TelemetryMetrics) {
    let mut loaded = config::load(&config::Flags::default(), []).expect("the defaults are valid");
    loaded.config.telemetry.otlp_endpoint = format!("http://{address}/base");
    loaded.config.telemetry.otlp_headers = config::Secret::from("authorization=Bearer%20token");
    loaded.config.telemetry.sample_ratio = 1.0;
    let metrics = TelemetryMetrics::default();
    let target = settings::target(&loaded, "1.2.3").expect("is valid").expect("a target");
    let queue = Arc::new(Queue::new(metrics.clone()));
    let exporter = Exporter::start(target, Arc::clone(&queue));
    (Tracer::new(Sampler::new(1.0), queue), exporter, metrics)
}

fn finish(trace: &Trace) {
    trace.finish(|id, parent| Span {
        id,
        parent,
        name: "GET".into(),
        kind: SpanKind::Server,
        start: Instant::now(),
        end: Instant::now(),
        attributes: vec![("http.response.status_code", 200_u16.into())],
        error: None,
    });
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waits = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waits).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

#[tokio::test]
async fn a_trace_is_exported_with_its_spans_and_a_remote_parent() {
    let mut collector = Collector::start(0).await;
    let (tracer, exporter, metrics) = exporter(collector.address);
    let parent = TraceParent::parse(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").expect("is valid");
    let state = TraceState::parse([&b"a=1"[..]].into_iter()).expect("is valid");
    let trace = tracer.begin(Some((parent, state))).expect("is sampled");
    let mut path = trace.begin(SpanGroup::Other, trace.root(), "path", SpanKind::Internal).expect("has room");
    path.add("causeway.steps", 7_u64);
    let block = trace.begin(SpanGroup::Block, path.id(), "block", SpanKind::Client).expect("has room");
    let cancelled = trace.begin(SpanGroup::Block, path.id(), "block", SpanKind::Client).expect("has room");
    block.end(Some("it was not found"));
    drop(cancelled);
    path.end(None::<String>);
    let late = trace.begin(SpanGroup::Other, trace.root(), "late", SpanKind::Internal).expect("has room");
    finish(&trace);
    finish(&trace);
    drop(late);

    let (headers, request) = collector.next().await;
    assert_eq!(headers["authorization"], "Bearer token");
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let [resource] = &request.resource_spans[..] else { panic!("{request:?}") };
    let [scope] = &resource.scope_spans[..] else { panic!("{request:?}") };
    let [root, failed, cancelled, path] = &scope.spans[..] else { panic!("{:?}", scope.spans) };
    assert_eq!(root.parent_span_id, parent.span_id.bytes());
    assert_eq!((root.kind, root.flags, root.trace_state.as_str()), (2, 0x301, "a=1"));
    assert!(scope.spans.iter().all(|span| span.trace_id == parent.trace_id.bytes()));
    assert!(scope.spans.iter().all(|span| span.start_time_unix_nano <= span.end_time_unix_nano));
    assert_eq!((&path.parent_span_id, path.flags), (&root.span_id, 0x101));
    assert_eq!((&failed.parent_span_id, failed.kind), (&path.span_id, 3));
    let status = failed.status.as_ref().expect("an error");
    assert_eq!((status.code, status.message.as_str()), (2, "it was not found"));
    assert_eq!((cancelled.attributes[0].key.as_str(), cancelled.status.is_none()), (CANCELLED, true));
    let value = path.attributes[0].value.as_ref().and_then(|value| value.value.clone());
    assert_eq!(value, Some(Value::Integer(7)));
    until("the spans are counted", || metrics.exported.get() == 4).await;
    assert_eq!(metrics.late.get(), 1);
    assert!(exporter.close().await);
}

#[tokio::test]
async fn the_spans_of_a_trace_are_bounded_and_counted() {
    let mut collector = Collector::start(3).await;
    let (tracer, exporter, metrics) = exporter(collector.address);
    let trace = tracer.begin(None).expect("is sampled");
    for _ in 0..BLOCK_SPANS_MAX + 7 {
        let span = trace.begin(SpanGroup::Block, trace.root(), "block", SpanKind::Internal);
        span.into_iter().for_each(|span| span.end(None::<String>));
    }
    let other = trace.begin(SpanGroup::Other, trace.root(), "path", SpanKind::Internal).expect("has room of its own");
    other.end(None::<String>);
    finish(&trace);
    let (_, request) = collector.next().await;
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    assert_eq!(spans.len(), BLOCK_SPANS_MAX + 2);
    let dropped = spans[0].attributes.iter().find(|attribute| attribute.key == DROPPED_SPANS).expect("is told");
    assert_eq!(dropped.value.as_ref().and_then(|value| value.value.clone()), Some(Value::Integer(7)));
    // The collector has rejected three.
    until("the spans are counted", || metrics.exported.get() == BLOCK_SPANS_MAX as u64 - 1).await;
    assert_eq!((metrics.limit.get(), metrics.export.get()), (7, 3));
    assert!(exporter.close().await);
}

#[tokio::test]
async fn a_busy_collector_is_retried_and_a_rejection_is_not() {
    let mut collector = Collector::start(0).await;
    let (tracer, exporter, metrics) = exporter(collector.address);
    for (status, retries) in [(503, true), (400, false), (429, true)] {
        collector.status.store(status, Ordering::Relaxed);
        let (failures, dropped) = (metrics.failures.get(), metrics.export.get());
        finish(&tracer.begin(None).expect("is sampled"));
        until("the export fails", || metrics.failures.get() > failures).await;
        collector.status.store(200, Ordering::Relaxed);
        if retries {
            collector.next().await;
            assert_eq!(metrics.export.get(), dropped, "{status}");
        } else {
            until("the span is dropped", || metrics.export.get() == dropped + 1).await;
        }
    }
    until("the spans are counted", || metrics.exported.get() == 2).await;
    assert!(exporter.close().await);
}

#[tokio::test]
async fn a_dead_collector_costs_a_bounded_queue_and_no_time() {
    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (tracer, exporter, metrics) = exporter(unused.local_addr().expect("is bound"));
    // Connections are accepted by the kernel, and no process answers.
    let start = Instant::now();
    for _ in 0..100_000 {
        finish(&tracer.begin(None).expect("is sampled"));
    }
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert!(metrics.queue.get() > 0, "the queue is full");
    assert!(tracer.queue.traces().bytes <= QUEUE_BYTES_MAX);
    let start = Instant::now();
    assert!(!exporter.close().await, "it does not wait for the collector");
    assert!(start.elapsed() < CLOSE_MAX + PATIENCE);
    finish(&tracer.begin(None).expect("is sampled"));
}

#[tokio::test]
async fn what_is_queued_is_sent_at_the_end() {
    let mut collector = Collector::start(0).await;
    let (tracer, exporter, metrics) = exporter(collector.address);
    for _ in 0..3 * BATCH_SPANS {
        finish(&tracer.begin(None).expect("is sampled"));
    }
    assert!(exporter.close().await);
    assert_eq!(metrics.exported.get(), 3 * BATCH_SPANS as u64);
    let mut sizes = Vec::new();
    while let Ok((_, request)) = collector.received.try_recv() {
        sizes.push(request.resource_spans[0].scope_spans[0].spans.len());
    }
    assert_eq!(sizes.iter().sum::<usize>(), 3 * BATCH_SPANS);
    assert!(sizes.iter().all(|size| *size <= BATCH_SPANS), "{sizes:?}");
}
