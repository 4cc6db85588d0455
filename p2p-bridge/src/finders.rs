//! Searches of others, by the [`crate::routing_v1`] API, for providers, peers and the neighbours of a key: what was told
//! already, and which queries belong to which search.
//!
//! Goals: each peer is told once, and a second time only if its addresses were not known before; what is found goes over a
//! bounded channel; a search that nobody listens to any more ends, and so does one that has found enough.
//!
//! Non-goals: finding anything, which `task::finding` does, and when to give up (drop the [`PeerSearch`]).

use crate::routing_v1::PeerRecord;
use crate::scope::Scope;
use libp2p::PeerId;
use libp2p::kad::{QueryId, RecordKey};
use std::collections::{HashMap, HashSet};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Peers that may wait for whoever searches. Further ones are lost: whoever is so slow does not need them all.
const FOUND_WAITING_MAX: usize = 128;
/// Peers that end a search.
const FOUND_MAX: usize = 1024;

/// What is searched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sought {
    /// Who provides a key.
    Providers(RecordKey),
    /// Where a peer is.
    Peer(PeerId),
    /// The servers of the DHT that are closest to a key, given as what the DHT hashes.
    Closest(Vec<u8>),
}

/// A running search, as seen by whoever searches. Dropping it ends the search.
#[derive(Debug)]
pub struct PeerSearch {
    found: mpsc::Receiver<PeerRecord>,
    /// One of the searches that may run at once; none if the network has stopped.
    _permit: Option<OwnedSemaphorePermit>,
}

impl PeerSearch {
    /// Both ends of a search.
    pub(crate) fn new(permit: Option<OwnedSemaphorePermit>) -> (Self, mpsc::Sender<PeerRecord>) {
        let (sink, found) = mpsc::channel(FOUND_WAITING_MAX);
        (Self { found, _permit: permit }, sink)
    }

    /// The next peer, as it is found; `None` when everybody who matters was asked. A peer without addresses is one of whom
    /// nobody said where it is.
    pub async fn next(&mut self) -> Option<PeerRecord> {
        self.found.recv().await
    }
}

#[derive(Debug)]
struct Finder {
    sought: Sought,
    sink: mpsc::Sender<PeerRecord>,
    running: HashSet<(Scope, QueryId)>,
    /// Who was told, and whether with addresses.
    told: HashMap<PeerId, bool>,
}

/// Every running search.
#[derive(Debug, Default)]
pub struct Finders {
    finders: HashMap<u64, Finder>,
    queries: HashMap<(Scope, QueryId), u64>,
    next: u64,
}

impl Finders {
    /// A new search. It is over when it has no queries at the next [`Finders::settle`].
    pub fn add(&mut self, sought: Sought, sink: mpsc::Sender<PeerRecord>) -> u64 {
        self.next += 1;
        self.finders.insert(self.next, Finder { sought, sink, running: HashSet::new(), told: HashMap::new() });
        self.next
    }

    /// A search's query was started.
    pub fn started(&mut self, id: u64, scope: Scope, query: QueryId) {
        if let Some(finder) = self.finders.get_mut(&id) {
            finder.running.insert((scope, query));
            self.queries.insert((scope, query), id);
        }
    }

    /// Whose query it is, and what that searches for.
    pub fn owner(&self, scope: Scope, query: QueryId) -> Option<(u64, &Sought)> {
        let id = *self.queries.get(&(scope, query))?;
        self.finders.get(&id).map(|finder| (id, &finder.sought))
    }

    /// Hands over a peer, unless that is no news. Returns whether the search goes on.
    pub fn tell(&mut self, id: u64, record: PeerRecord) -> bool {
        let Some(finder) = self.finders.get_mut(&id) else { return false };
        let has_addresses = !record.addresses.is_empty();
        let known = finder.told.get(&record.id).copied();
        if known.is_none_or(|with_addresses| !with_addresses && has_addresses) {
            finder.told.insert(record.id, has_addresses);
            // Full means that whoever searches has enough to do.
            let _ = finder.sink.try_send(record);
        }
        finder.told.len() < FOUND_MAX && !finder.sink.is_closed()
    }

    /// The searches for a peer that have not found it.
    pub fn seeking(&self, peer: &PeerId) -> Vec<u64> {
        let seeks = |finder: &Finder| finder.sought == Sought::Peer(*peer);
        self.finders.iter().filter(|(_, finder)| seeks(finder)).map(|(id, _)| *id).collect()
    }

    /// Every peer that is searched for.
    pub fn sought_peers(&self) -> HashSet<PeerId> {
        let peer = |finder: &Finder| match finder.sought {
            Sought::Peer(peer) => Some(peer),
            Sought::Providers(_) | Sought::Closest(_) => None,
        };
        self.finders.values().filter_map(peer).collect()
    }

    /// A query ended.
    pub fn finished(&mut self, scope: Scope, query: QueryId) {
        let Some(id) = self.queries.remove(&(scope, query)) else { return };
        if let Some(finder) = self.finders.get_mut(&id) {
            finder.running.remove(&(scope, query));
            self.settle(id);
        }
    }

    /// Ends a search that asks nobody any more.
    pub fn settle(&mut self, id: u64) {
        if self.finders.get(&id).is_some_and(|finder| finder.running.is_empty()) {
            self.finders.remove(&id);
        }
    }

    /// Ends a search. Returns its queries, which are to be ended.
    pub fn end(&mut self, id: u64) -> Vec<(Scope, QueryId)> {
        let Some(finder) = self.finders.remove(&id) else { return Vec::new() };
        let queries: Vec<_> = finder.running.into_iter().collect();
        queries.iter().for_each(|query| _ = self.queries.remove(query));
        queries
    }

    /// The searches that nobody listens to any more.
    pub fn unheard(&self) -> Vec<u64> {
        self.finders.iter().filter(|(_, finder)| finder.sink.is_closed()).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::Multiaddr;
    use libp2p::kad::{self, store::MemoryStore};

    /// Query ids can be made by a behaviour only.
    fn queries<const N: usize>() -> [QueryId; N] {
        let peer = PeerId::random();
        let mut dht = kad::Behaviour::new(peer, MemoryStore::new(peer));
        std::array::from_fn(|_| dht.get_record(RecordKey::new(b"key")))
    }

    fn somewhere() -> Vec<Multiaddr> {
        vec!["/ip4/127.0.0.1/tcp/1".parse().expect("an address")]
    }

    #[tokio::test]
    async fn a_search_ends_with_its_last_query_and_tells_each_peer_once() {
        let [wan, lan] = queries();
        let mut finders = Finders::default();
        let (mut search, sink) = PeerSearch::new(None);
        let sought = Sought::Providers(RecordKey::new(b"key"));
        let id = finders.add(sought.clone(), sink);
        finders.started(id, Scope::Wan, wan);
        finders.started(id, Scope::Lan, lan);
        assert_eq!(finders.owner(Scope::Lan, lan), Some((id, &sought)));
        let [known, unknown, later] = std::array::from_fn(|_| PeerId::random());
        let told = [
            (known, somewhere()),
            (known, somewhere()),
            (known, Vec::new()),
            (known, somewhere()),
            (unknown, Vec::new()),
            (unknown, Vec::new()),
            (later, Vec::new()),
            (later, somewhere()),
        ];
        for (peer, addresses) in told {
            assert!(finders.tell(id, PeerRecord::new(peer, addresses)));
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
    fn searches_that_nobody_hears_or_that_found_enough_go_no_further() {
        let [query] = queries();
        let mut finders = Finders::default();
        let (search, sink) = PeerSearch::new(None);
        let id = finders.add(Sought::Closest(vec![1]), sink);
        finders.started(id, Scope::Lan, query);
        let on = (0..FOUND_MAX).filter(|_| finders.tell(id, PeerRecord::new(PeerId::random(), Vec::new()))).count();
        assert_eq!((on, search.found.len()), (FOUND_MAX - 1, FOUND_WAITING_MAX));
        assert!(finders.unheard().is_empty());
        drop(search);
        assert_eq!(finders.unheard(), [id]);
        assert!(!finders.tell(id, PeerRecord::new(PeerId::random(), Vec::new())));
        assert_eq!(finders.end(id), [(Scope::Lan, query)]);
        assert!(finders.finders.is_empty() && finders.queries.is_empty() && finders.end(id).is_empty());
    }

    #[test]
    fn a_search_without_queries_is_over_at_once_and_peers_are_known_by_their_searches() {
        let mut finders = Finders::default();
        let peer = PeerId::random();
        let (_search, sink) = PeerSearch::new(None);
        let id = finders.add(Sought::Peer(peer), sink);
        assert_eq!((finders.seeking(&peer), finders.seeking(&PeerId::random())), (vec![id], vec![]));
        assert_eq!(finders.sought_peers(), HashSet::from([peer]));
        finders.settle(id);
        assert!(finders.finders.is_empty());
    }
}
