//! Searches for value records ([`crate::lookups`]), and puts ([`crate::puts`]).

use super::Task;
use crate::lookups::{FoundRecord, RecordOrigin, Sink};
use crate::puts::PutError;
use crate::scope::Scope;
use libp2p::kad::store::RecordStore;
use libp2p::kad::{PeerRecord, PutRecordResult, QueryId, Quorum, RecordKey};
use std::time::Instant;

impl Task {
    /// Starts a search. A stored record is returned immediately, even without peers; other peers are asked for a newer
    /// one.
    pub(super) fn find_records(&mut self, key: RecordKey, sink: Sink) {
        for scope in Scope::ALL {
            if let Some(record) = self.swarm.behaviour_mut().dht(scope).store_mut().get(&key) {
                sink.put(FoundRecord { holder: RecordOrigin::LocalNode, bytes: record.into_owned().value.into() });
            }
        }
        self.lookups.add(key, sink, Instant::now());
        Scope::ALL.into_iter().for_each(|scope| self.look_up(scope));
    }

    /// Starts the queries of the searches that have not asked this scope, if it has peers.
    pub(super) fn look_up(&mut self, scope: Scope) {
        let due = self.lookups.due(scope);
        let dht = self.swarm.behaviour_mut().dht(scope);
        if due.is_empty() || dht.kbuckets().all(|bucket| bucket.is_empty()) {
            return;
        }
        self.no_peers.searched(Instant::now());
        for (id, key) in due {
            let query = dht.get_record(key);
            self.metrics.query_started(scope);
            self.lookups.started(id, scope, query);
        }
    }

    pub(super) fn on_record(&mut self, scope: Scope, query: QueryId, found: PeerRecord) {
        // A record without a peer is a stored one, which was returned when the search started.
        let Some(peer) = found.peer else { return };
        self.lookups.found(
            scope,
            query,
            FoundRecord { holder: RecordOrigin::Peer(peer), bytes: found.record.value.into() },
        );
        self.end_abandoned_lookups();
    }

    /// Updates the progress of queries, which only report it with results; and starts queries of waiting searches,
    /// because there is no event when a known peer can be asked again.
    pub(super) fn maintain_lookups(&mut self) {
        self.end_abandoned_lookups();
        self.lookups.settle(Instant::now(), self.bootstraps.has_none_connected());
        Scope::ALL.into_iter().for_each(|scope| self.look_up(scope));
        for (scope, query) in self.lookups.running() {
            let asked = self.swarm.behaviour_mut().dht(scope).query(&query).map(|query| query.stats().num_requests());
            self.lookups.asked(scope, query, asked.unwrap_or_default() as usize);
        }
    }

    pub(super) fn end_abandoned_lookups(&mut self) {
        for (scope, query) in self.lookups.sweep() {
            if let Some(mut query) = self.swarm.behaviour_mut().dht(scope).query_mut(&query) {
                query.finish();
            }
        }
    }

    /// Whether the DHT of a scope has peers.
    pub(super) fn has_dht_peers(&mut self, scope: Scope) -> bool {
        self.swarm.behaviour_mut().dht(scope).kbuckets().any(|bucket| !bucket.is_empty())
    }

    /// Starts the puts that have a slot in this scope, if it has peers.
    pub(super) fn put(&mut self, scope: Scope) {
        let dht = self.swarm.behaviour_mut().dht(scope);
        if !self.puts.is_waiting(scope) || dht.kbuckets().all(|bucket| bucket.is_empty()) {
            return;
        }
        while let Some((record, reply)) = self.puts.next(scope) {
            // All peers close to the key are asked; the query's timeout limits the wait for the others.
            match dht.put_record(record, Quorum::All) {
                Ok(query) => {
                    self.metrics.query_started(scope);
                    self.puts.started(scope, query, reply);
                }
                Err(error) => _ = reply.send(Err(PutError::Refused(error.to_string()))),
            }
        }
    }

    pub(super) fn on_put(&mut self, scope: Scope, query: QueryId, result: &PutRecordResult) {
        self.puts.finished(scope, query, result);
        self.put(scope);
    }

    /// Cancels abandoned puts, and starts queued ones at known peers.
    pub(super) fn maintain_puts(&mut self) {
        for (scope, query) in self.puts.sweep() {
            if let Some(mut query) = self.swarm.behaviour_mut().dht(scope).query_mut(&query) {
                query.finish();
            }
        }
        Scope::ALL.into_iter().for_each(|scope| self.put(scope));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dht::store::{RecordStoreLimits, Store};
    use crate::dht::{Network, kept, moment};
    use crate::{Bridge, BridgeOptions};
    use content::ipns::{Draft, Record};
    use content::names::Key;
    use libp2p::identity::Keypair;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};
    use tokio::time::timeout;

    #[tokio::test]
    async fn stored_records_are_found_without_peers() {
        let pair = Keypair::generate_ed25519();
        let (key, now) = (Key::from(pair.public().to_peer_id()), SystemTime::now());
        let draft = Draft {
            value: "/ipfs/bafkqaddjnzzxazldoqwxizltoq".to_owned(),
            sequence: 1,
            end_of_life: now + Duration::from_secs(3600),
            ttl: Duration::from_secs(60),
        };
        let record = Record::sign(&pair, &draft).expect("signs");
        for scope in Scope::ALL {
            let directory = tempfile::tempdir().expect("directory");
            let mut store = Store::new(pair.public().to_peer_id(), RecordStoreLimits::default(), moment(now));
            let value = record.bytes().to_vec();
            store.put_value(&RecordKey::from(key.routing_key()), value, Network::default()).expect("a good record");
            kept::save(&kept::path(directory.path(), scope), kept::encode(&store));
            let mut options = BridgeOptions::new(directory.path());
            options.nat.upnp = false;
            let mut registry = prometheus_client::registry::Registry::default();
            let started = Bridge::start(options, Arc::new(content::MemoryBlocks::default()), &mut registry).await;
            let bridge = started.expect("starts");
            let mut search = bridge.find_records(&key).await;
            let found = timeout(Duration::from_secs(30), search.next()).await.expect("at once");
            let expected = FoundRecord { holder: RecordOrigin::LocalNode, bytes: record.bytes().clone() };
            assert_eq!((found, search.peers_asked()), (Some(expected), 0), "{scope:?}");
            bridge.shutdown().await;
        }
    }
}
