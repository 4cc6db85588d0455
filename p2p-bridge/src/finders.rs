//! Searches for providers, peers and the peers closest to a key on behalf of clients of the [`crate::routing_v1`] API:
//! which queries belong to a search, and which results were already sent.
//!
//! Goals: each peer is sent once, and again only if it had no addresses before; results go over a bounded channel; a
//! search ends when its receiver is dropped, or when it has enough results.
//!
//! Non-goals: searching, which `task::finding` does, and timeouts (the caller drops the [`PeerSearch`]).

use crate::routing_v1::PeerRecord;
use crate::scope::Scope;
use libp2p::PeerId;
use libp2p::kad::{QueryId, RecordKey};
use std::collections::{HashMap, HashSet};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// The capacity of a search's channel, in peers. When it is full, further peers are dropped: a slow client does not
/// need all of them.
const FOUND_WAITING_MAX: usize = 128;
/// The maximum number of results of a search.
const FOUND_MAX: usize = 1024;

/// What a search looks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SearchTarget {
    /// The providers of a key.
    Providers(RecordKey),
    /// The addresses of a peer.
    Peer(PeerId),
    /// The DHT servers closest to a key, which is the preimage of the DHT's hash.
    Closest(Vec<u8>),
}

/// The receiver of a search. Dropping it ends the search.
#[derive(Debug)]
pub struct PeerSearch {
    found: mpsc::Receiver<PeerRecord>,
    /// The permit of a concurrent search; `None` if the network has stopped.
    _permit: Option<OwnedSemaphorePermit>,
}

impl PeerSearch {
    /// Both ends of a search.
    pub(crate) fn new(permit: Option<OwnedSemaphorePermit>) -> (Self, mpsc::Sender<PeerRecord>) {
        let (sink, found) = mpsc::channel(FOUND_WAITING_MAX);
        (Self { found, _permit: permit }, sink)
    }

    /// The next peer; `None` when all relevant peers were asked. A peer without addresses is one whose addresses are
    /// unknown.
    pub async fn next(&mut self) -> Option<PeerRecord> {
        self.found.recv().await
    }
}

#[derive(Debug)]
struct Finder {
    sought: SearchTarget,
    sink: mpsc::Sender<PeerRecord>,
    running: HashSet<(Scope, QueryId)>,
    /// The peers that were sent, and whether with addresses.
    sent: HashMap<PeerId, bool>,
}

/// All running searches.
#[derive(Debug, Default)]
pub struct Finders {
    finders: HashMap<u64, Finder>,
    queries: HashMap<(Scope, QueryId), u64>,
    next: u64,
}

impl Finders {
    /// Adds a search. It ends if it has no queries at the next [`Finders::settle`].
    pub fn add(&mut self, sought: SearchTarget, sink: mpsc::Sender<PeerRecord>) -> u64 {
        self.next += 1;
        self.finders.insert(self.next, Finder { sought, sink, running: HashSet::new(), sent: HashMap::new() });
        self.next
    }

    /// Assigns a started query to its search.
    pub fn started(&mut self, id: u64, scope: Scope, query: QueryId) {
        if let Some(finder) = self.finders.get_mut(&id) {
            finder.running.insert((scope, query));
            self.queries.insert((scope, query), id);
        }
    }

    /// The search that a query belongs to, and what it looks for.
    pub fn owner(&self, scope: Scope, query: QueryId) -> Option<(u64, &SearchTarget)> {
        let id = *self.queries.get(&(scope, query))?;
        self.finders.get(&id).map(|finder| (id, &finder.sought))
    }

    /// Sends a peer, unless it was sent before. Returns whether the search continues.
    pub fn send(&mut self, id: u64, record: PeerRecord) -> bool {
        let Some(finder) = self.finders.get_mut(&id) else { return false };
        let has_addresses = !record.addresses.is_empty();
        let known = finder.sent.get(&record.id).copied();
        if known.is_none_or(|with_addresses| !with_addresses && has_addresses) {
            finder.sent.insert(record.id, has_addresses);
            // If the channel is full, the peer is dropped.
            let _ = finder.sink.try_send(record);
        }
        finder.sent.len() < FOUND_MAX && !finder.sink.is_closed()
    }

    /// The unfinished searches for a peer.
    pub fn seeking(&self, peer: &PeerId) -> Vec<u64> {
        let seeks = |finder: &Finder| finder.sought == SearchTarget::Peer(*peer);
        self.finders.iter().filter(|(_, finder)| seeks(finder)).map(|(id, _)| *id).collect()
    }

    /// All peers that are searched for.
    pub fn sought_peers(&self) -> HashSet<PeerId> {
        let peer = |finder: &Finder| match finder.sought {
            SearchTarget::Peer(peer) => Some(peer),
            SearchTarget::Providers(_) | SearchTarget::Closest(_) => None,
        };
        self.finders.values().filter_map(peer).collect()
    }

    /// A query has finished.
    pub fn finished(&mut self, scope: Scope, query: QueryId) {
        let Some(id) = self.queries.remove(&(scope, query)) else { return };
        if let Some(finder) = self.finders.get_mut(&id) {
            finder.running.remove(&(scope, query));
            self.settle(id);
        }
    }

    /// Ends a search that has no running queries.
    pub fn settle(&mut self, id: u64) {
        if self.finders.get(&id).is_some_and(|finder| finder.running.is_empty()) {
            self.finders.remove(&id);
        }
    }

    /// Ends a search. Returns its queries, which the caller ends.
    pub fn end(&mut self, id: u64) -> Vec<(Scope, QueryId)> {
        let Some(finder) = self.finders.remove(&id) else { return Vec::new() };
        let queries: Vec<_> = finder.running.into_iter().collect();
        queries.iter().for_each(|query| _ = self.queries.remove(query));
        queries
    }

    /// The searches whose receivers were dropped.
    pub fn abandoned(&self) -> Vec<u64> {
        self.finders.iter().filter(|(_, finder)| finder.sink.is_closed()).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::Multiaddr;
    use libp2p::kad::{self, store::MemoryStore};

    /// Only a behaviour can create query IDs.
    fn queries<const N: usize>() -> [QueryId; N] {
        let peer = PeerId::random();
        let mut dht = kad::Behaviour::new(peer, MemoryStore::new(peer));
        std::array::from_fn(|_| dht.get_record(RecordKey::new(b"key")))
    }

    fn somewhere() -> Vec<Multiaddr> {
        vec!["/ip4/127.0.0.1/tcp/1".parse().expect("an address")]
    }

    #[tokio::test]
    async fn a_search_ends_with_its_last_query_and_sends_each_peer_once() {
        let [wan, lan] = queries();
        let mut finders = Finders::default();
        let (mut search, sink) = PeerSearch::new(None);
        let sought = SearchTarget::Providers(RecordKey::new(b"key"));
        let id = finders.add(sought.clone(), sink);
        finders.started(id, Scope::Wan, wan);
        finders.started(id, Scope::Lan, lan);
        assert_eq!(finders.owner(Scope::Lan, lan), Some((id, &sought)));
        let [known, unknown, later] = std::array::from_fn(|_| PeerId::random());
        let sent = [
            (known, somewhere()),
            (known, somewhere()),
            (known, Vec::new()),
            (known, somewhere()),
            (unknown, Vec::new()),
            (unknown, Vec::new()),
            (later, Vec::new()),
            (later, somewhere()),
        ];
        for (peer, addresses) in sent {
            assert!(finders.send(id, PeerRecord::new(peer, addresses)));
        }
        finders.finished(Scope::Wan, wan);
        finders.settle(id);
        assert!(finders.owner(Scope::Lan, lan).is_some(), "the other scope is asked");
        finders.finished(Scope::Lan, lan);
        assert!(finders.finders.is_empty() && finders.queries.is_empty());
        let mut heard = Vec::new();
        while let Some(record) = search.next().await {
            heard.push((record.id, record.addresses.len()));
        }
        assert_eq!(heard, [(known, 1), (unknown, 0), (later, 0), (later, 1)]);
    }

    #[test]
    fn searches_end_without_a_receiver_or_with_enough_results() {
        let [query] = queries();
        let mut finders = Finders::default();
        let (search, sink) = PeerSearch::new(None);
        let id = finders.add(SearchTarget::Closest(vec![1]), sink);
        finders.started(id, Scope::Lan, query);
        let on = (0..FOUND_MAX).filter(|_| finders.send(id, PeerRecord::new(PeerId::random(), Vec::new()))).count();
        assert_eq!((on, search.found.len()), (FOUND_MAX - 1, FOUND_WAITING_MAX));
        assert!(finders.abandoned().is_empty());
        drop(search);
        assert_eq!(finders.abandoned(), [id]);
        assert!(!finders.send(id, PeerRecord::new(PeerId::random(), Vec::new())));
        assert_eq!(finders.end(id), [(Scope::Lan, query)]);
        assert!(finders.finders.is_empty() && finders.queries.is_empty() && finders.end(id).is_empty());
    }

    #[test]
    fn a_search_without_queries_ends_at_once() {
        let mut finders = Finders::default();
        let peer = PeerId::random();
        let (_search, sink) = PeerSearch::new(None);
        let id = finders.add(SearchTarget::Peer(peer), sink);
        assert_eq!((finders.seeking(&peer), finders.seeking(&PeerId::random())), (vec![id], vec![]));
        assert_eq!(finders.sought_peers(), HashSet::from([peer]));
        finders.settle(id);
        assert!(finders.finders.is_empty());
    }
}
