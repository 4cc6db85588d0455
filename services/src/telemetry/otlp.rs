//! The messages of OTLP 1.x that traces are exported in
//! (<https://github.com/open-telemetry/opentelemetry-proto>, `trace/v1/trace.proto` and
//! `collector/trace/v1/trace_service.proto`), without the fields that are never set.
//!
//! The codec is derived by prost. The `opentelemetry-proto` crate has all of OTLP, and the SDK below it: it would change
//! the features of crates that libp2p is built on.

use super::trace::{AttributeValue, EndedTrace, Span as TraceSpan, SpanKind};
use prost::{Message, Oneof};
use std::borrow::Cow;

/// The parent is known to be of another process, or not (`SpanFlags`).
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;
/// The flag `sampled` of W3C Trace Context.
const SAMPLED: u32 = 1;
/// `Status.StatusCode`.
const STATUS_ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub error_message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3")]
    pub value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Boolean(bool),
    #[prost(int64, tag = "3")]
    Integer(i64),
}

/// An attribute with a text.
pub(super) fn text(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(Value::Text(value.to_owned())) }) }
}

/// The body of a request that exports traces.
pub(super) fn request(
    resource: &Resource,
    scope: &InstrumentationScope,
    traces: &[EndedTrace],
) -> ExportTraceServiceRequest {
    let spans = traces.iter().flat_map(|trace| trace.spans.iter().map(|span| message(trace, span))).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope.clone()), spans }];
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource: Some(resource.clone()), scope_spans }] }
}

fn message(trace: &EndedTrace, span: &TraceSpan) -> Span {
    let is_remote = span.parent.is_some() && span.parent == trace.remote_parent;
    Span {
        trace_id: trace.id.bytes().to_vec(),
        span_id: span.id.bytes().to_vec(),
        trace_state: trace.state.as_str().to_owned(),
        parent_span_id: span.parent.map(|parent| parent.bytes().to_vec()).unwrap_or_default(),
        name: span.name.to_string(),
        // `Span.SpanKind`.
        kind: match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        },
        start_time_unix_nano: trace.clock.unix_nanoseconds(span.start),
        end_time_unix_nano: trace.clock.unix_nanoseconds(span.end),
        attributes: span.attributes.iter().map(|(key, value)| attribute(key, value)).collect(),
        status: span.error.as_ref().map(|error| Status { message: error.to_string(), code: STATUS_ERROR }),
        flags: SAMPLED | HAS_IS_REMOTE | if is_remote { IS_REMOTE } else { 0 },
    }
}

fn attribute(key: &str, value: &AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(Cow::Borrowed(text)) => Value::Text((*text).to_owned()),
        AttributeValue::Text(Cow::Owned(text)) => Value::Text(text.clone()),
        AttributeValue::Integer(value) => Value::Integer(*value),
        AttributeValue::Boolean(value) => Value::Boolean(*value),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}
