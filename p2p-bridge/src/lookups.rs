//! Searches for value records in the DHT: which queries belong to a search, and which scopes are still to be asked.
//!
//! Goals: a search that starts before any peer is known, as after a restart, waits for the first peer instead of
//! failing; a scope without any answer is asked again when a new peer connects; a search that found nothing in the
//! local network waits a moment for peers of the public one. Results go over a bounded channel, and a search ends when
//! its receiver is dropped.
//!
//! Non-goals: validating records, and timeouts (the caller drops the [`Search`]).

use crate::scope::Scope;
use bytes::Bytes;
use libp2p::PeerId;
use libp2p::kad::{QueryId, RecordKey};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// The capacity of a search's channel, in records. When it is full, further records are dropped: there are never so
/// many that differ.
const FOUND_WAITING_MAX: usize = 32;

/// How long a search that found nothing waits for peers of the public network to be connected.
const PUBLIC_PEERS_WAIT: Duration = Duration::from_secs(3);

/// The source of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOrigin {
    /// The node's own record store.
    LocalNode,
    /// A peer of the DHT.
    Peer(PeerId),
    /// A delegated router.
    Router,
}

/// A record that was found, not yet validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRecord {
    /// The source of the record.
    pub holder: RecordOrigin,
    /// The record.
    pub bytes: Bytes,
}

/// The receiver of a search. Dropping it ends the search.
#[derive(Debug)]
pub struct Search {
    found: mpsc::Receiver<FoundRecord>,
    peers_asked: Arc<AtomicUsize>,
    /// The permit of a concurrent search; `None` if the network has stopped.
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

    /// The next record; `None` when all relevant peers were asked.
    pub async fn next(&mut self) -> Option<FoundRecord> {
        self.found.recv().await
    }

    /// How many peers were asked so far.
    pub fn peers_asked(&self) -> usize {
        self.peers_asked.load(Ordering::Relaxed)
    }
}

/// The sender of a search, for the swarm task.
#[derive(Debug)]
pub struct Sink {
    sender: mpsc::Sender<FoundRecord>,
    peers_asked: Arc<AtomicUsize>,
}

impl Sink {
    /// A further sender for a search outside the DHT. The search does not end before it is dropped.
    pub(crate) fn feeder(&self) -> mpsc::Sender<FoundRecord> {
        self.sender.clone()
    }

    /// Sends a record.
    pub(crate) fn put(&self, found: FoundRecord) {
        // If the channel is full, the record is dropped.
        let _ = self.sender.try_send(found);
    }
}

#[cfg(test)]
impl Sink {
    /// Whether the receiver was dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// The state of a search in one scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScopeState {
    /// There was no peer to ask.
    Waiting,
    /// The running query, and the number of peers asked so far.
    Running(QueryId, usize),
    /// A peer answered, with or without a record.
    Answered,
}

#[derive(Debug)]
struct Lookup {
    key: RecordKey,
    sink: Sink,
    scopes: HashMap<Scope, ScopeState>,
    started_at: Instant,
    found: bool,
}

impl Lookup {
    /// Whether all queries have finished with an answer. `expects_peers`: more peers may be connected soon.
    fn is_over(&self, now: Instant, expects_peers: bool) -> bool {
        let any = |state: fn(&ScopeState) -> bool| self.scopes.values().any(state);
        let worth_waiting =
            expects_peers && !self.found && now.saturating_duration_since(self.started_at) < PUBLIC_PEERS_WAIT;
        any(|state| *state == ScopeState::Answered)
            && !any(|state| matches!(state, ScopeState::Running(..)))
            && !(worth_waiting && any(|state| *state == ScopeState::Waiting))
    }
}

/// All running searches.
#[derive(Debug, Default)]
pub struct Lookups {
    lookups: HashMap<u64, Lookup>,
    queries: HashMap<(Scope, QueryId), u64>,
    next: u64,
}

impl Lookups {
    /// Adds a search; [`Lookups::due`] returns where to ask.
    pub fn add(&mut self, key: RecordKey, sink: Sink, now: Instant) {
        self.next += 1;
        let scopes = Scope::ALL.map(|scope| (scope, ScopeState::Waiting)).into();
        self.lookups.insert(self.next, Lookup { key, sink, scopes, started_at: now, found: false });
    }

    /// The searches that have not asked a scope yet, and their keys.
    pub fn due(&self, scope: Scope) -> Vec<(u64, RecordKey)> {
        let waiting = |lookup: &&Lookup| lookup.scopes.get(&scope) == Some(&ScopeState::Waiting);
        let due = self.lookups.iter().map(|(id, lookup)| (*id, lookup));
        due.filter(|(_, lookup)| waiting(lookup)).map(|(id, lookup)| (id, lookup.key.clone())).collect()
    }

    /// Assigns a started query to its search.
    pub fn started(&mut self, id: u64, scope: Scope, query: QueryId) {
        if let Some(lookup) = self.lookups.get_mut(&id) {
            lookup.scopes.insert(scope, ScopeState::Running(query, 0));
            self.queries.insert((scope, query), id);
        }
    }

    /// A query found a record.
    pub fn found(&mut self, scope: Scope, query: QueryId, found: FoundRecord) {
        if let Some(lookup) = self.queries.get(&(scope, query)).and_then(|id| self.lookups.get_mut(id)) {
            lookup.found = true;
            lookup.sink.put(found);
        }
    }

    /// Updates the number of peers that a query has asked.
    pub fn asked(&mut self, scope: Scope, query: QueryId, peers: usize) {
        let lookup = self.queries.get(&(scope, query)).and_then(|id| self.lookups.get_mut(id));
        if let Some(lookup) = lookup
            && let Some(ScopeState::Running(_, before)) = lookup.scopes.get_mut(&scope)
        {
            lookup.sink.peers_asked.fetch_add(peers.saturating_sub(*before), Ordering::Relaxed);
            *before = peers.max(*before);
        }
    }

    /// The running queries.
    pub fn running(&self) -> Vec<(Scope, QueryId)> {
        self.queries.keys().copied().collect()
    }

    /// A query has finished. Without any answer, the scope waits for another peer.
    pub fn finished(&mut self, scope: Scope, query: QueryId, answered: bool) {
        let Some(id) = self.queries.remove(&(scope, query)) else { return };
        let Some(lookup) = self.lookups.get_mut(&id) else { return };
        lookup.scopes.insert(scope, if answered { ScopeState::Answered } else { ScopeState::Waiting });
    }

    /// Ends the searches whose queries have all finished with an answer. If `expects_peers`, because peers of the
    /// public network may be connected soon, searches without results wait for them for a while.
    pub fn settle(&mut self, now: Instant, expects_peers: bool) {
        self.lookups.retain(|_, lookup| !lookup.is_over(now, expects_peers));
    }

    /// Ends the searches that asked no peer: there are none, and none are expected.
    pub fn fail_without_peers(&mut self) {
        self.lookups.retain(|_, lookup| lookup.scopes.values().any(|state| *state != ScopeState::Waiting));
    }

    /// Removes the searches whose receivers were dropped. Returns their queries, which the caller ends.
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

    /// Only a behaviour can create query IDs.
    fn queries<const N: usize>() -> [QueryId; N] {
        let peer = PeerId::random();
        let mut dht = kad::Behaviour::new(peer, MemoryStore::new(peer));
        std::array::from_fn(|_| dht.get_record(RecordKey::new(b"key")))
    }

    fn key() -> RecordKey {
        RecordKey::new(b"key")
    }

    fn found() -> FoundRecord {
        FoundRecord { holder: RecordOrigin::Peer(PeerId::random()), bytes: Bytes::from_static(b"record") }
    }

    #[tokio::test]
    async fn a_search_waits_for_a_peer_asks_both_scopes_and_ends() {
        let [wan, lan] = queries();
        let mut lookups = Lookups::default();
        let (mut search, sink) = Search::new(None);
        lookups.add(key(), sink, Instant::now());
        for scope in Scope::ALL {
            assert_eq!(lookups.due(scope).len(), 1, "no peer was asked yet");
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
        assert!(lookups.lookups.is_empty(), "the other scope has no peers");
    }

    #[test]
    fn local_peers_without_the_record_do_not_end_a_search_while_peers_may_connect() {
        let started_at = Instant::now();
        // Whether a record was found, whether peers may connect, the time passed, and whether the search has ended.
        let table = [
            (false, true, Duration::ZERO, false),
            (false, true, PUBLIC_PEERS_WAIT, true),
            (false, false, Duration::ZERO, true),
            (true, true, Duration::ZERO, true),
        ];
        for (finds, expects_peers, after, over) in table {
            let [lan] = queries();
            let mut lookups = Lookups::default();
            let (_search, sink) = Search::new(None);
            lookups.add(key(), sink, started_at);
            lookups.started(lookups.next, Scope::Lan, lan);
            if finds {
                lookups.found(Scope::Lan, lan, found());
            }
            lookups.finished(Scope::Lan, lan, true);
            lookups.settle(started_at + after, expects_peers);
            assert_eq!(lookups.lookups.is_empty(), over, "{finds} {expects_peers} {after:?}");
        }
    }

    #[test]
    fn searches_end_without_a_receiver_and_drop_excess_records() {
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
    async fn a_search_that_asked_no_peer_fails_without_peers() {
        let [query] = queries();
        let mut lookups = Lookups::default();
        let (_asks, sink) = Search::new(None);
        lookups.add(key(), sink, Instant::now());
        lookups.started(lookups.next, Scope::Lan, query);
        let (mut alone, sink) = Search::new(None);
        lookups.add(key(), sink, Instant::now());
        lookups.fail_without_peers();
        assert_eq!(alone.next().await, None);
        assert_eq!(lookups.lookups.len(), 1, "the other search asked a peer");
    }
}
