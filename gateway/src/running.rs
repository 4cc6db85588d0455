//! [`Running`]: the requests that are being answered, for whoever wants to know what is going on.
//!
//! Goals: a request that is answered at once, out of memory, is never listed and pays nothing for those that are; one
//! that waits, or whose body takes more than one step, is listed from then on until its body ends. What is kept of one
//! is a few hundred bytes, and there are never more of them than connections.
//!
//! Non-goals: requests that have ended, which the access log tells of.

use crate::request::client::Client;
use http::StatusCode;
use http::request::Parts;
use services::limiter::Permit;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The longest path and host that are kept, in bytes.
const TEXT_BYTES_MAX: usize = 512;

/// What a request waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Waits {
    /// Where its host leads.
    #[default]
    Route,
    /// What a name stands for.
    Name,
    /// Blocks on the way to the content, or the first of it.
    Content,
    /// More of the content, after some of it was sent.
    More,
    /// The client, who has yet to take in what was sent.
    Client,
}

impl Waits {
    const ALL: [Self; 5] = [Self::Route, Self::Name, Self::Content, Self::More, Self::Client];

    /// Its name in answers.
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

/// What a request waits for at the moment. Changing it is one store and allocates nothing; once the request is listed, the list
/// shows each change.
#[derive(Debug, Default)]
pub struct Phase {
    waits: AtomicWaits,
    listed: OnceLock<Arc<Entry>>,
}

impl Phase {
    /// From now on the request waits for this, if it waits.
    pub fn enter(&self, waits: Waits) {
        self.listed.get().map_or(&self.waits, |entry| &entry.waits).set(waits);
    }
}

#[derive(Debug, Default)]
struct AtomicWaits(AtomicU8);

impl AtomicWaits {
    fn set(&self, waits: Waits) {
        self.0.store(waits as u8, Ordering::Relaxed);
    }

    fn get(&self) -> Waits {
        Waits::ALL.get(usize::from(self.0.load(Ordering::Relaxed))).copied().unwrap_or_default()
    }
}

/// A request, as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underway {
    /// Tells it from others, for as long as it is there.
    pub id: u64,
    /// Its method.
    pub method: String,
    /// Its path, cut if it is long.
    pub path: String,
    /// The host that it asks, as it was sent.
    pub host: String,
    /// Who asks, as limits count them.
    pub client: IpAddr,
    /// For how long it has been here.
    pub since: Duration,
    /// The status of the response, once that has begun.
    pub status: Option<StatusCode>,
    /// Bytes of the body that were handed over to be sent.
    pub sent_bytes: u64,
    /// What it waits for.
    pub waits_for: Waits,
}

#[derive(Debug)]
struct Entry {
    method: String,
    path: String,
    host: String,
    client: IpAddr,
    since: Instant,
    /// Zero until there is one.
    status: AtomicU16,
    sent_bytes: AtomicU64,
    waits: AtomicWaits,
}

/// The list. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Running {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next: AtomicU64,
    entries: Mutex<HashMap<u64, Arc<Entry>>>,
}

/// A request that is listed, until this is dropped.
#[derive(Debug)]
pub struct Listed {
    list: Arc<Inner>,
    id: u64,
    entry: Arc<Entry>,
    /// The request's part of what its client may have under way.
    permit: Option<Permit>,
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

impl Running {
    /// Lists a request that was received at `since`. Its entry shows what `phase` says from now on.
    pub fn list(&self, head: &Parts, client: &Client, since: Instant, phase: &Phase) -> Listed {
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(Entry {
            method: head.method.as_str().chars().take(16).collect(),
            path: cut(head.uri.path_and_query().map_or_else(|| head.uri.path(), |path| path.as_str())),
            host: cut(&client.authority),
            client: client.group(),
            since,
            status: AtomicU16::new(0),
            sent_bytes: AtomicU64::new(0),
            waits: AtomicWaits::default(),
        });
        entry.waits.set(phase.waits.get());
        // A request is listed once.
        let _ = phase.listed.set(Arc::clone(&entry));
        self.inner.entries().insert(id, Arc::clone(&entry));
        Listed { list: Arc::clone(&self.inner), id, entry, permit: None }
    }

    /// The requests, those first that have been here for longest; how many there are in all.
    pub fn requests(&self, max: usize) -> (Vec<Underway>, usize) {
        let mut entries: Vec<(u64, Arc<Entry>)> =
            self.inner.entries().iter().map(|(id, entry)| (*id, Arc::clone(entry))).collect();
        let all = entries.len();
        entries.sort_by_key(|(id, entry)| (entry.since, *id));
        (entries.into_iter().take(max).map(|(id, entry)| entry.tell(id)).collect(), all)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.inner.entries().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Inner {
    fn entries(&self) -> MutexGuard<'_, HashMap<u64, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn tell(&self, id: u64) -> Underway {
        Underway {
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

impl Listed {
    /// The same, which holds a permit until its end.
    #[must_use]
    pub fn holding(mut self, permit: Option<Permit>) -> Self {
        self.permit = permit;
        self
    }

    /// The response's head is handed over.
    pub fn answered(&self, status: StatusCode) {
        self.entry.status.store(status.as_u16(), Ordering::Relaxed);
    }

    /// Some of the body is handed over, and the client has yet to take it in.
    pub fn sent(&self, bytes: usize) {
        self.entry.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.entry.waits.set(Waits::Client);
    }

    /// The client is ready for more, and there is none yet.
    pub fn waits(&self) {
        self.entry.waits.set(Waits::More);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.list.entries().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn requests_are_listed_until_they_end() {
        let running = Running::default();
        let path = format!("/ipfs/{}", "ä".repeat(400));
        let encoded: String = path
            .bytes()
            .map(|byte| if byte.is_ascii() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
            .collect();
        let head = Request::builder().uri(format!("{encoded}?q")).body(()).expect("a request").into_parts().0;
        let client = Client::of(&head, [192, 0, 2, 1].into(), &[]);
        let phases = [Phase::default(), Phase::default()];
        let [first, second] = phases.each_ref().map(|phase| running.list(&head, &client, Instant::now(), phase));
        assert_eq!((running.len(), running.requests(1).0.len(), running.requests(1).1), (2, 1, 2));
        let told = |place: usize| running.requests(9).0[place].clone();
        assert_eq!((told(0).id, told(1).id), (first.id, second.id), "the oldest is first");
        assert_eq!((told(0).method.as_str(), told(0).status, told(0).waits_for), ("GET", None, Waits::Route));
        assert!(told(0).path.len() <= TEXT_BYTES_MAX && encoded.starts_with(&told(0).path));
        phases[0].enter(Waits::Name);
        assert_eq!((told(0).waits_for, told(1).waits_for), (Waits::Name, Waits::Route));
        first.answered(StatusCode::PARTIAL_CONTENT);
        first.sent(10);
        first.sent(5);
        let answered = told(0);
        assert_eq!((answered.status, answered.sent_bytes), (Some(StatusCode::PARTIAL_CONTENT), 15));
        assert_eq!(answered.waits_for, Waits::Client);
        first.waits();
        assert_eq!(told(0).waits_for, Waits::More);
        drop(first);
        assert_eq!((running.len(), told(0).id), (1, second.id));
        drop(second);
        assert!(running.is_empty());
    }
}
