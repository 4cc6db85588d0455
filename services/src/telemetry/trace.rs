//! [`Trace`]: the spans of one request, until it ends.
//!
//! Goals: bounded in memory, however many blocks a request reads: each group of spans has its own maximum, beyond which
//! spans are counted in place of being kept; a span whose work was cancelled is recorded as such.
//!
//! Non-goals: what the spans are, which the code that does the work decides; sending them ([`super::export`]).

use super::context::{SpanId, TraceId, TraceParent, TraceState};
use super::export::Queue;
use super::sampling::Sampler;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The maximum number of spans of one request that are about single blocks, and of all its other spans.
pub const BLOCK_SPANS_MAX: usize = 48;
/// The maximum number of spans of one request that are not about single blocks.
pub const OTHER_SPANS_MAX: usize = 48;
/// The maximum length of an error's text, in bytes.
const ERROR_BYTES_MAX: usize = 256;

/// The attribute of a request's span that tells how many of its spans were not kept.
pub const DROPPED_SPANS: &str = "causeway.trace.dropped_spans";
/// The attribute of a span whose work was cancelled, because its result was no longer needed.
pub const CANCELLED: &str = "causeway.cancelled";

/// A value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// A text.
    Text(Cow<'static, str>),
    /// A number.
    Integer(i64),
    /// Yes or no.
    Boolean(bool),
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<bool> for AttributeValue {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

macro_rules! from_integer {
    ($($Integer:ty),*) => {
        $(impl From<$Integer> for AttributeValue {
            /// A larger number is saturated.
            fn from(value: $Integer) -> Self {
                Self::Integer(i64::try_from(value).unwrap_or(i64::MAX))
            }
        })*
    };
}

from_integer!(u16, u32, u64, usize);

/// Attributes of a span, by name.
pub type Attributes = Vec<(&'static str, AttributeValue)>;

/// The kind of a span (<https://opentelemetry.io/docs/specs/otel/trace/api/#spankind>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work in this process.
    Internal,
    /// A request of a client.
    Server,
    /// A request to another node.
    Client,
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Its identifier.
    pub id: SpanId,
    /// The span that it is part of; `None` if that is not known.
    pub parent: Option<SpanId>,
    /// Its name, of which there are few.
    pub name: Cow<'static, str>,
    /// Its kind.
    pub kind: SpanKind,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// Its attributes.
    pub attributes: Attributes,
    /// Why it failed, if it did.
    pub error: Option<Cow<'static, str>>,
}

impl Span {
    /// Its size in memory, in bytes.
    fn bytes(&self) -> usize {
        let of_value = |value: &AttributeValue| match value {
            AttributeValue::Text(Cow::Owned(text)) => text.capacity(),
            _ => 0,
        };
        let attributes = self.attributes.iter().map(|(_, value)| size_of::<(&str, AttributeValue)>() + of_value(value));
        size_of::<Self>() + self.error.as_ref().map_or(0, |error| error.len()) + attributes.sum::<usize>()
    }
}

/// The group of a span, which bounds how many there are in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanGroup {
    /// About one block.
    Block,
    /// Anything else.
    Other,
}

/// The trace of one request.
#[derive(Debug)]
pub struct Trace {
    id: TraceId,
    /// The span of the request.
    root: SpanId,
    parent: Option<SpanId>,
    state: TraceState,
    sampler: Sampler,
    queue: Arc<Queue>,
    clock: Clock,
    spans: Mutex<Spans>,
}

#[derive(Debug, Default)]
struct Spans {
    ended: Vec<Span>,
    /// The spans that have begun, of each group.
    begun: [usize; 2],
    dropped: u64,
    /// The request has ended.
    is_over: bool,
}

/// Relates the monotonic clock to the time of day.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    at: Instant,
    since_epoch: Duration,
}

impl Clock {
    /// The clocks as they are now.
    pub fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { at: Instant::now(), since_epoch }
    }

    /// A time as nanoseconds since the Unix epoch.
    pub fn unix_nanoseconds(&self, at: Instant) -> u64 {
        let since = match at.checked_duration_since(self.at) {
            Some(after) => self.since_epoch.saturating_add(after),
            None => self.since_epoch.saturating_sub(self.at.saturating_duration_since(at)),
        };
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A trace whose request has ended.
#[derive(Debug)]
pub struct EndedTrace {
    /// Its identifier.
    pub id: TraceId,
    /// The span of the caller, if a trusted proxy sent one.
    pub remote_parent: Option<SpanId>,
    /// The `tracestate` of the caller.
    pub state: TraceState,
    /// Its clock.
    pub clock: Clock,
    /// Its spans, that of the request first.
    pub spans: Vec<Span>,
    /// Its size in memory, in bytes.
    pub bytes: usize,
}

impl Trace {
    pub(super) fn new(
        sampler: &Sampler,
        queue: Arc<Queue>,
        id: TraceId,
        parent: Option<(TraceParent, TraceState)>,
    ) -> Self {
        let (parent, state) = parent.map_or((None, TraceState::default()), |(parent, state)| (Some(parent), state));
        Self {
            id,
            root: sampler.span_id(),
            parent: parent.map(|parent| parent.span_id),
            state,
            sampler: sampler.clone(),
            queue,
            clock: Clock::now(),
            spans: Mutex::default(),
        }
    }

    /// Its identifier.
    pub fn id(&self) -> TraceId {
        self.id
    }

    /// The span of the request.
    pub fn root(&self) -> SpanId {
        self.root
    }

    /// The identifier of a span that is about to begin; `None` if there are too many, which is counted.
    pub fn reserve(&self, group: SpanGroup) -> Option<SpanId> {
        let max = match group {
            SpanGroup::Block => BLOCK_SPANS_MAX,
            SpanGroup::Other => OTHER_SPANS_MAX,
        };
        let mut spans = self.spans();
        let begun = &mut spans.begun[group as usize];
        if *begun >= max {
            spans.dropped += 1;
            return None;
        }
        *begun += 1;
        drop(spans);
        Some(self.sampler.span_id())
    }

    /// Counts a span that is not kept, because the one above it is not.
    pub fn drop_below(&self) {
        self.spans().dropped += 1;
    }

    /// Begins a span; `None` if there are too many.
    pub fn begin(
        self: &Arc<Self>,
        group: SpanGroup,
        parent: SpanId,
        name: &'static str,
        kind: SpanKind,
    ) -> Option<OpenSpan> {
        let now = Instant::now();
        let span = Span {
            id: self.reserve(group)?,
            parent: Some(parent),
            name: name.into(),
            kind,
            start: now,
            end: now,
            attributes: Vec::new(),
            error: None,
        };
        Some(OpenSpan { trace: Arc::clone(self), span: Some(span) })
    }

    /// Keeps a span that has ended, whose identifier was reserved.
    pub fn record(&self, span: Span) {
        let mut spans = self.spans();
        if spans.is_over {
            drop(spans);
            return self.queue.dropped_late();
        }
        spans.ended.push(span);
    }

    /// Ends the trace, and queues it for export. `request` makes the span of the request.
    pub fn finish(&self, request: impl FnOnce(SpanId, Option<SpanId>) -> Span) {
        let mut request = request(self.root, self.parent);
        let mut spans = self.spans();
        if std::mem::replace(&mut spans.is_over, true) {
            return;
        }
        let (children, dropped) = (std::mem::take(&mut spans.ended), spans.dropped);
        drop(spans);
        if dropped > 0 {
            request.attributes.push((DROPPED_SPANS, dropped.into()));
            self.queue.dropped_by_limit(dropped);
        }
        let mut spans = Vec::with_capacity(children.len() + 1);
        spans.push(request);
        spans.extend(children);
        let bytes = size_of::<EndedTrace>() + self.state.as_str().len() + spans.iter().map(Span::bytes).sum::<usize>();
        let (id, remote_parent, state, clock) = (self.id, self.parent, self.state.clone(), self.clock);
        self.queue.push(EndedTrace { id, remote_parent, state, clock, spans, bytes });
    }

    fn spans(&self) -> MutexGuard<'_, Spans> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A span that has not ended. Dropping it records that its work was cancelled.
#[derive(Debug)]
pub struct OpenSpan {
    trace: Arc<Trace>,
    span: Option<Span>,
}

impl OpenSpan {
    /// Its identifier.
    pub fn id(&self) -> SpanId {
        self.span.as_ref().map_or(self.trace.root, |span| span.id)
    }

    /// Adds an attribute.
    pub fn add(&mut self, name: &'static str, value: impl Into<AttributeValue>) {
        if let Some(span) = &mut self.span {
            span.attributes.push((name, value.into()));
        }
    }

    /// Ends it, with the error that it failed with, if it did.
    pub fn end(mut self, error: Option<impl ToString>) {
        let Some(mut span) = self.span.take() else { return };
        span.end = Instant::now();
        span.error = error.map(|error| error_text(&error));
        self.trace.record(span);
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let Some(mut span) = self.span.take() else { return };
        span.end = Instant::now();
        span.attributes.push((CANCELLED, true.into()));
        self.trace.record(span);
    }
}

/// The beginning of an error's text.
pub fn error_text(error: &impl ToString) -> Cow<'static, str> {
    let mut text = error.to_string();
    text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
    text.into()
}
