//! Searches for the value records of a key in the DHT: which queries belong to which search, and what is still to be asked.
//!
//! Goals: a search that begins before any peer is known, as it does when the node was just started, waits for the first
//! one instead of failing; a scope whose first peers turn out to be gone is asked again when a new one comes; and that the
//! neighbours know nothing does not end a search before the first peer outside had a moment to be connected. What is
//! found goes over a bounded channel, and a search that nobody listens to any more ends.
//!
//! Non-goals: whether what is found is any good (whoever searches checks it), and when to give up (drop the [`Search`]).

use crate::scope::Scope;
use bytes::Bytes;
use libp2p::PeerId;
use libp2p::kad::{QueryId, RecordKey};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Records that may wait for whoever searches. Further ones are lost: there are never so many that differ.
const FOUND_WAITING_MAX: usize = 32;

/// How long a search that has found nothing lets peers outside have to be connected.
const HOPE: Duration = Duration::from_secs(3);

/// Who had a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// This node, among those that it keeps for the DHT.
    Ourselves,
    /// A peer of the DHT.
    Peer(PeerId),
    /// A router.
    Router,
}

/// A record that somebody had: nobody has checked it yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Who had it.
    pub holder: Holder,
    /// The record.
    pub bytes: Bytes,
}

/// A running search, as seen by whoever searches. Dropping it ends the search.
#[derive(Debug)]
pub struct Search {
    found: mpsc::Receiver<Found>,
    peers_asked: Arc<AtomicUsize>,
    /// One of the searches that may run at once; none if the network has stopped.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Search {
    /// Both ends of a search.
    pub(crate) fn new(permit: Option<OwnedSemaphorePermit>) -> (Self, Sink) {
        let (sender, found) = mpsc::channel(FOUND_WAITING_MAX);
        let peers_asked = Arc::new(AtomicUsize::new(0));
        let sink = Sink { sender, peers_asked: Arc::clone(&peers_asked) };
        (Self { found, peers_asked, _permit: permit }, sink)
    }

    /// The next record, as it is found; `None` when every peer that matters was asked.
    pub async fn next(&mut self) -> Option<Found> {
        self.found.recv().await
    }

    /// How many peers were asked so far.
    pub fn peers_asked(&self) -> usize {
        self.peers_asked.load(Ordering::Relaxed)
    }
}

/// Where the swarm task puts what it finds.
#[derive(Debug)]
pub struct Sink {
    sender: mpsc::Sender<Found>,
    peers_asked: Arc<AtomicUsize>,
}

impl Sink {
    /// Another end of the same search, for whoever searches elsewhere: the search is not over before it is dropped.
    pub(crate) fn feeder(&self) -> mpsc::Sender<Found> {
        self.sender.clone()
    }

    /// Hands over a record.
    pub(crate) fn put(&self, found: Found) {
        // Full means that whoever searches has enough to do.
        let _ = self.sender.try_send(found);
    }
}

#[cfg(test)]
impl Sink {
    /// Whether whoever searched no longer does.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// What became of a search in one scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody was there to ask.
    Waiting,
    /// The query, and how many peers it asked so far.
    Running(QueryId, usize),
    /// Somebody answered, whatever the answer was.
    Heard,
}

#[derive(Debug)]
struct Lookup {
    key: RecordKey,
    sink: Sink,
    scopes: HashMap<Scope, State>,
    begun: Instant,
    found: bool,
}

impl Lookup {
    /// Whether all that was started has ended with an answer. `hope` says that more peers may be there in a moment.
    fn is_over(&self, now: Instant, hope: bool) -> bool {
        let any = |state: fn(&State) -> bool| self.scopes.values().any(state);
        let worth_waiting = hope && !self.found && now.saturating_duration_since(self.begun) < HOPE;
        any(|state| *state == State::Heard)
            && !any(|state| matches!(state, State::Running(..)))
            && !(worth_waiting && any(|state| *state == State::Waiting))
    }
}

/// Every running search.
#[derive(Debug, Default)]
pub struct Lookups {
    lookups: HashMap<u64, Lookup>,
    queries: HashMap<(Scope, QueryId), u64>,
    next: u64,
}

impl Lookups {
    /// A new search; [`Lookups::due`] says where to ask.
    pub fn add(&mut self, key: RecordKey, sink: Sink, now: Instant) {
        self.next += 1;
        let scopes = Scope::ALL.map(|scope| (scope, State::Waiting)).into();
        self.lookups.insert(self.next, Lookup { key, sink, scopes, begun: now, found: false });
    }

    /// The searches that wait for somebody to ask in a scope, and their keys.
    pub fn due(&self, scope: Scope) -> Vec<(u64, RecordKey)> {
        let waiting = |lookup: &&Lookup| lookup.scopes.get(&scope) == Some(&State::Waiting);
        let due = self.lookups.iter().map(|(id, lookup)| (*id, lookup));
        due.filter(|(_, lookup)| waiting(lookup)).map(|(id, lookup)| (id, lookup.key.clone())).collect()
    }

    /// A search's query was started.
    pub fn started(&mut self, id: u64, scope: Scope, query: QueryId) {
        if let Some(lookup) = self.lookups.get_mut(&id) {
            lookup.scopes.insert(scope, State::Running(query, 0));
            self.queries.insert((scope, query), id);
        }
    }

    /// A query found a record.
    pub fn found(&mut self, scope: Scope, query: QueryId, found: Found) {
        if let Some(lookup) = self.queries.get(&(scope, query)).and_then(|id| self.lookups.get_mut(id)) {
            lookup.found = true;
            lookup.sink.put(found);
        }
    }

    /// A query has asked so many peers by now.
    pub fn asked(&mut self, scope: Scope, query: QueryId, peers: usize) {
        let lookup = self.queries.get(&(scope, query)).and_then(|id| self.lookups.get_mut(id));
        if let Some(lookup) = lookup
            && let Some(State::Running(_, before)) = lookup.scopes.get_mut(&scope)
        {
            lookup.sink.peers_asked.fetch_add(peers.saturating_sub(*before), Ordering::Relaxed);
            *before = peers.max(*before);
        }
    }

    /// The queries that run.
    pub fn running(&self) -> Vec<(Scope, QueryId)> {
        self.queries.keys().copied().collect()
    }

    /// A query ended. Without any answer the scope waits for another peer.
    pub fn finished(&mut self, scope: Scope, query: QueryId, answered: bool) {
        let Some(id) = self.queries.remove(&(scope, query)) else { return };
        let Some(lookup) = self.lookups.get_mut(&id) else { return };
        lookup.scopes.insert(scope, if answered { State::Heard } else { State::Waiting });
    }

    /// Ends the searches that are over: all that was started has ended with an answer. With `hope`, which says that peers
    /// outside may be connected in a moment, those that found nothing wait that moment for them.
    pub fn settle(&mut self, now: Instant, hope: bool) {
        self.lookups.retain(|_, lookup| !lookup.is_over(now, hope));
    }

    /// Ends the searches that nobody was asked for: nobody is there, nor about to be.
    pub fn fail_without_peers(&mut self) {
        self.lookups.retain(|_, lookup| lookup.scopes.values().any(|state| *state != State::Waiting));
    }

    /// Forgets the searches that nobody listens to any more. Returns their queries, which are to be ended.
    pub fn sweep(&mut self) -> Vec<(Scope, QueryId)> {
        self.lookups.retain(|_, lookup| !lookup.sink.sender.is_closed());
        let orphans: Vec<_> =
            self.queries.iter().filter(|(_, id)| !self.lookups.contains_key(id)).map(|(query, _)| *query).collect();
        for query in &orphans {
            self.queries.remove(query);
        }
        orphans
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::kad::{self, store::MemoryStore};

    /// Query ids can be made by a behaviour only.
    fn queries<const N: usize>() -> [QueryId; N] {
        let peer = PeerId::random();
        let mut dht = kad::Behaviour::new(peer, MemoryStore::new(peer));
        std::array::from_fn(|_| dht.get_record(RecordKey::new(b"key")))
    }

    fn key() -> RecordKey {
        RecordKey::new(b"key")
    }

    fn found() -> Found {
        Found { holder: Holder::Peer(PeerId::random()), bytes: Bytes::from_static(b"record") }
    }

    #[tokio::test]
    async fn a_search_waits_for_a_peer_hears_both_scopes_and_ends() {
        let [wan, lan] = queries();
        let mut lookups = Lookups::default();
        let (mut search, sink) = Search::new(None);
        lookups.add(key(), sink, Instant::now());
        for scope in Scope::ALL {
            assert_eq!(lookups.due(scope).len(), 1, "nobody was asked yet");
        }
        let id = lookups.due(Scope::Wan)[0].0;
        lookups.started(id, Scope::Wan, wan);
        assert!(lookups.due(Scope::Wan).is_empty());
        lookups.started(id, Scope::Lan, lan);
        let record = found();
        lookups.found(Scope::Lan, lan, record.clone());
        assert_eq!(search.next().await, Some(record));
        for (scope, query, peers) in [(Scope::Wan, wan, 2), (Scope::Lan, lan, 1), (Scope::Wan, wan, 5)] {
            lookups.asked(scope, query, peers);
        }
        assert_eq!(search.peers_asked(), 6);
        lookups.finished(Scope::Lan, lan, true);
        lookups.settle(Instant::now(), true);
        assert_eq!(lookups.lookups.len(), 1, "the other scope is asked");
        lookups.finished(Scope::Wan, wan, true);
        lookups.settle(Instant::now(), true);
        assert_eq!(search.next().await, None);
        assert!(lookups.lookups.is_empty() && lookups.running().is_empty());
    }

    #[test]
    fn a_scope_without_answers_waits_for_another_peer() {
        let [first, second] = queries();
        let mut lookups = Lookups::default();
        let (_search, sink) = Search::new(None);
        lookups.add(key(), sink, Instant::now());
        let id = lookups.due(Scope::Wan)[0].0;
        lookups.started(id, Scope::Wan, first);
        lookups.finished(Scope::Wan, first, false);
        lookups.settle(Instant::now(), false);
        assert_eq!(lookups.due(Scope::Wan).len(), 1);
        lookups.started(id, Scope::Wan, second);
        lookups.finished(Scope::Wan, second, true);
        lookups.settle(Instant::now(), false);
        assert!(lookups.lookups.is_empty(), "the other scope has nobody");
    }

    #[test]
    fn neighbours_that_know_nothing_do_not_end_a_search_while_there_is_hope() {
        let begun = Instant::now();
        // Whether something was found, whether there is hope, how long it takes, and whether the search is over then.
        let table = [
            (false, true, Duration::ZERO, false),
            (false, true, HOPE, true),
            (false, false, Duration::ZERO, true),
            (true, true, Duration::ZERO, true),
        ];
        for (finds, hope, after, over) in table {
            let [lan] = queries();
            let mut lookups = Lookups::default();
            let (_search, sink) = Search::new(None);
            lookups.add(key(), sink, begun);
            lookups.started(lookups.next, Scope::Lan, lan);
            if finds {
                lookups.found(Scope::Lan, lan, found());
            }
            lookups.finished(Scope::Lan, lan, true);
            lookups.settle(begun + after, hope);
            assert_eq!(lookups.lookups.is_empty(), over, "{finds} {hope} {after:?}");
        }
    }

    #[test]
    fn searches_without_listeners_are_ended_and_floods_are_cut() {
        let [query] = queries();
        let mut lookups = Lookups::default();
        let (search, sink) = Search::new(None);
        lookups.add(key(), sink, Instant::now());
        let id = lookups.due(Scope::Lan)[0].0;
        lookups.started(id, Scope::Lan, query);
        for _ in 0..10 * FOUND_WAITING_MAX {
            lookups.found(Scope::Lan, query, found());
        }
        assert_eq!(search.found.len(), FOUND_WAITING_MAX);
        assert_eq!(lookups.sweep(), []);
        drop(search);
        assert_eq!(lookups.sweep(), [(Scope::Lan, query)]);
        assert!(lookups.lookups.is_empty() && lookups.running().is_empty());
    }

    #[tokio::test]
    async fn a_search_that_nobody_was_asked_for_ends_when_nobody_will_come() {
        let [query] = queries();
        let mut lookups = Lookups::default();
        let (_asks, sink) = Search::new(None);
        lookups.add(key(), sink, Instant::now());
        lookups.started(lookups.next, Scope::Lan, query);
        let (mut alone, sink) = Search::new(None);
        lookups.add(key(), sink, Instant::now());
        lookups.fail_without_peers();
        assert_eq!(alone.next().await, None);
        assert_eq!(lookups.lookups.len(), 1, "somebody was asked for the other");
    }
}
