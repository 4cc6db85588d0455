//! [`Running`]: the list of requests in progress, for operators.
//!
//! Goals: a request that is answered at once from memory is never listed and costs nothing; one that waits, or whose
//! body needs more than one step, is listed until its body ends. An entry has a few hundred bytes, and there are never
//! more entries than connections.
//!
//! Non-goals: ended requests, which the access log records.

use crate::request::client::Client;
use crate::trace::RequestTrace;
use http::StatusCode;
use http::request::Parts;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The maximum length of recorded paths and hosts, in bytes.
const TEXT_BYTES_MAX: usize = 512;

/// The state of a request in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum WaitReason {
    /// Routing by its host.
    #[default]
    Route,
    /// Name resolution.
    Name,
    /// Path resolution, or the first block of the content.
    Content,
    /// More blocks, after some content was sent.
    More,
    /// The client has not received all that was sent.
    Client,
}

impl WaitReason {
    const ALL: [Self; 5] = [Self::Route, Self::Name, Self::Content, Self::More, Self::Client];

    /// The name in the admin API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Name => "name",
            Self::Content => "content",
            Self::More => "more",
            Self::Client => "client",
        }
    }
}

/// A step of a request on the way to the head of its response, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Waiting for a connection slot.
    Admission,
    /// Routing by its host, which may have a DNSLink.
    Host,
    /// Resolution of the name that its path begins with.
    Name,
    /// Resolution of its path.
    Path,
    /// The rest, of which the first block of the content takes the most.
    FirstBlock,
}

impl Step {
    const ALL: [Self; 5] = [Self::Admission, Self::Host, Self::Name, Self::Path, Self::FirstBlock];

    /// The name of its span in traces.
    pub const fn span_name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Host => "host",
            Self::Name => "name resolution",
            Self::Path => "path resolution",
            Self::FirstBlock => "first block",
        }
    }

    /// The step after it.
    pub fn next(self) -> Option<Self> {
        Self::ALL.get(self as usize + 1).copied()
    }
}

/// When the steps of a request ended.
#[derive(Debug)]
pub struct StepClock {
    started: Instant,
    /// Microseconds after the start, plus one; zero if the step has not ended.
    ends: [AtomicU64; Step::ALL.len()],
}

impl StepClock {
    /// The clock of a request that was received at `started`.
    pub fn new(started: Instant) -> Self {
        Self { started, ends: Default::default() }
    }

    fn ended(&self, step: Step) {
        let micros = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.ends[step as usize].store(micros.saturating_add(1), Ordering::Relaxed);
    }

    /// How long each step took that the request had, if the response began, or the client disconnected, after `took`.
    /// The time since the last step that has ended is that of the next step.
    pub fn steps(&self, took: Duration) -> Vec<(Step, Duration)> {
        let ends = self.ends.each_ref().map(|end| end.load(Ordering::Relaxed));
        let last = ends.iter().rposition(|end| *end > 0);
        let (mut steps, mut before) = (Vec::new(), Duration::ZERO);
        for (step, end) in Step::ALL.into_iter().zip(ends).filter(|(_, end)| *end > 0) {
            let end = Duration::from_micros(end - 1);
            steps.push((step, end.saturating_sub(before)));
            before = end.max(before);
        }
        let unfinished = last.map_or(0, |last| last + 1);
        steps.extend(Step::ALL.get(unfinished).map(|step| (*step, took.saturating_sub(before))));
        steps
    }
}

/// The current state of a request. A change is one store without allocation; once the request is listed, its entry
/// shows each change.
#[derive(Debug, Default)]
pub struct Phase {
    waits: AtomicWaitReason,
    listed: OnceLock<Arc<RequestState>>,
    /// If its steps are timed.
    clock: Option<Arc<StepClock>>,
    /// If it is traced.
    trace: Option<Arc<RequestTrace>>,
}

impl Phase {
    /// The state of a request that has just been received, with the clock of its steps if they are timed, and its trace
    /// if it is traced.
    pub fn timed(clock: Option<Arc<StepClock>>, trace: Option<Arc<RequestTrace>>) -> Self {
        Self { clock, trace, ..Self::default() }
    }

    /// Records that a step has ended, if steps are timed or traced.
    pub fn ended(&self, step: Step) {
        if let Some(trace) = &self.trace {
            trace.step_ended(step.span_name(), step.next().map_or("", Step::span_name));
        }
        if let Some(clock) = &self.clock {
            clock.ended(step);
        }
    }

    /// Changes the state.
    pub fn enter(&self, reason: WaitReason) {
        self.listed.get().map_or(&self.waits, |entry| &entry.waits).set(reason);
    }
}

#[derive(Debug, Default)]
struct AtomicWaitReason(AtomicU8);

impl AtomicWaitReason {
    fn set(&self, reason: WaitReason) {
        self.0.store(reason as u8, Ordering::Relaxed);
    }

    fn get(&self) -> WaitReason {
        WaitReason::ALL.get(usize::from(self.0.load(Ordering::Relaxed))).copied().unwrap_or_default()
    }
}

/// A snapshot of a request in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestSnapshot {
    /// An identifier, unique among requests in progress.
    pub id: u64,
    /// The method.
    pub method: String,
    /// The path and query, truncated if long.
    pub path: String,
    /// The requested host, as sent.
    pub host: String,
    /// The client's address, as limits count it.
    pub client: IpAddr,
    /// The time since the request was received.
    pub since: Duration,
    /// The status of the response, once it has begun.
    pub status: Option<StatusCode>,
    /// Bytes of the body that were passed to the connection.
    pub sent_bytes: u64,
    /// The state.
    pub waits_for: WaitReason,
}

#[derive(Debug)]
struct RequestState {
    method: String,
    path: String,
    host: String,
    client: IpAddr,
    since: Instant,
    /// Zero before the response begins.
    status: AtomicU16,
    sent_bytes: AtomicU64,
    waits: AtomicWaitReason,
}

/// The list of requests in progress. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Running {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next: AtomicU64,
    entries: Mutex<HashMap<u64, Arc<RequestState>>>,
}

/// An entry of the list; dropping it removes the entry.
#[derive(Debug)]
pub struct RunningRequest {
    list: Arc<Inner>,
    id: u64,
    entry: Arc<RequestState>,
}

/// A text of a client, cut to the maximum length of what is recorded.
pub(crate) fn truncated(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

impl Running {
    /// Adds a request that was received at `since`. Its entry shows the changes of `phase`.
    pub fn list(&self, head: &Parts, client: &Client, since: Instant, phase: &Phase) -> RunningRequest {
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(RequestState {
            method: head.method.as_str().chars().take(16).collect(),
            path: truncated(head.uri.path_and_query().map_or_else(|| head.uri.path(), |path| path.as_str())),
            host: truncated(&client.authority),
            client: client.group(),
            since,
            status: AtomicU16::new(0),
            sent_bytes: AtomicU64::new(0),
            waits: AtomicWaitReason::default(),
        });
        entry.waits.set(phase.waits.get());
        // Each request is listed only once.
        let _ = phase.listed.set(Arc::clone(&entry));
        self.inner.entries().insert(id, Arc::clone(&entry));
        RunningRequest { list: Arc::clone(&self.inner), id, entry }
    }

    /// At most `max` requests, the oldest first, and the total number.
    pub fn requests(&self, max: usize) -> (Vec<RequestSnapshot>, usize) {
        let mut entries: Vec<(u64, Arc<RequestState>)> =
            self.inner.entries().iter().map(|(id, entry)| (*id, Arc::clone(entry))).collect();
        let all = entries.len();
        entries.sort_by_key(|(id, entry)| (entry.since, *id));
        (entries.into_iter().take(max).map(|(id, entry)| entry.snapshot(id)).collect(), all)
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.inner.entries().len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Inner {
    fn entries(&self) -> MutexGuard<'_, HashMap<u64, Arc<RequestState>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestState {
    fn snapshot(&self, id: u64) -> RequestSnapshot {
        RequestSnapshot {
            id,
            method: self.method.clone(),
            path: self.path.clone(),
            host: self.host.clone(),
            client: self.client,
            since: self.since.elapsed(),
            status: StatusCode::from_u16(self.status.load(Ordering::Relaxed)).ok(),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            waits_for: self.waits.get(),
        }
    }
}

impl RunningRequest {
    /// The present state.
    pub fn snapshot(&self) -> RequestSnapshot {
        self.entry.snapshot(self.id)
    }

    /// Records the status of the response.
    pub fn answered(&self, status: StatusCode) {
        self.entry.status.store(status.as_u16(), Ordering::Relaxed);
    }

    /// Counts bytes of the body; the state is now [`WaitReason::Client`].
    pub fn sent(&self, bytes: usize) {
        self.entry.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.entry.waits.set(WaitReason::Client);
    }

    /// The client is ready for more bytes, which are not available yet.
    pub fn waits(&self) {
        self.entry.waits.set(WaitReason::More);
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.list.entries().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn the_time_of_a_request_is_that_of_its_steps() {
        let ms = Duration::from_millis;
        // Ends in milliseconds after the start; zero if a step has not ended.
        let table = [
            ([0, 0, 0, 0, 0], vec![(Step::Admission, 100)]),
            ([10, 0, 0, 0, 0], vec![(Step::Admission, 10), (Step::Host, 90)]),
            ([10, 20, 0, 0, 0], vec![(Step::Admission, 10), (Step::Host, 10), (Step::Name, 80)]),
            (
                [1, 2, 30, 60, 0],
                vec![(Step::Admission, 1), (Step::Host, 1), (Step::Name, 28), (Step::Path, 30), (Step::FirstBlock, 40)],
            ),
            // A path that is cached has no step for its name.
            ([1, 2, 0, 3, 0], vec![(Step::Admission, 1), (Step::Host, 1), (Step::Path, 1), (Step::FirstBlock, 97)]),
        ];
        for (ends, expected) in table {
            let clock = StepClock::new(Instant::now());
            for (end, at) in clock.ends.iter().zip(ends) {
                end.store(if at == 0 { 0 } else { at * 1000 + 1 }, Ordering::Relaxed);
            }
            let expected: Vec<_> = expected.into_iter().map(|(step, took)| (step, ms(took))).collect();
            assert_eq!(clock.steps(ms(100)), expected, "{ends:?}");
        }
    }

    #[test]
    fn requests_are_listed_until_they_end() {
        let running = Running::default();
        let path = format!("/ipfs/{}", "ä".repeat(400));
        let encoded: String = path
            .bytes()
            .map(|byte| if byte.is_ascii() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
            .collect();
        let head = Request::builder().uri(format!("{encoded}?q")).body(()).expect("a request").into_parts().0;
        let client = Client::of(&head, ([192, 0, 2, 1].into(), false), &[]);
        let phases = [Phase::default(), Phase::default()];
        let [first, second] = phases.each_ref().map(|phase| running.list(&head, &client, Instant::now(), phase));
        assert_eq!((running.len(), running.requests(1).0.len(), running.requests(1).1), (2, 1, 2));
        let snapshot = |place: usize| running.requests(9).0[place].clone();
        assert_eq!((snapshot(0).id, snapshot(1).id), (first.id, second.id), "the oldest is first");
        assert_eq!(
            (snapshot(0).method.as_str(), snapshot(0).status, snapshot(0).waits_for),
            ("GET", None, WaitReason::Route)
        );
        assert!(snapshot(0).path.len() <= TEXT_BYTES_MAX && encoded.starts_with(&snapshot(0).path));
        phases[0].enter(WaitReason::Name);
        assert_eq!((snapshot(0).waits_for, snapshot(1).waits_for), (WaitReason::Name, WaitReason::Route));
        first.answered(StatusCode::PARTIAL_CONTENT);
        first.sent(10);
        first.sent(5);
        let answered = snapshot(0);
        assert_eq!((answered.status, answered.sent_bytes), (Some(StatusCode::PARTIAL_CONTENT), 15));
        assert_eq!(answered.waits_for, WaitReason::Client);
        first.waits();
        assert_eq!(snapshot(0).waits_for, WaitReason::More);
        drop(first);
        assert_eq!((running.len(), snapshot(0).id), (1, second.id));
        drop(second);
        assert!(running.is_empty());
    }
}
