//! Searching for value records ([`crate::lookups`]), and putting them ([`crate::puts`]).

use super::Task;
use crate::lookups::Found;
use crate::puts::PutError;
use crate::scope::Scope;
use libp2p::kad::{PeerRecord, PutRecordResult, QueryId, Quorum};
use std::time::Instant;

impl Task {
    /// Starts the queries of the searches that have not asked in this scope, if there is anybody to ask.
    pub(super) fn look_up(&mut self, scope: Scope) {
        let due = self.lookups.due(scope);
        let dht = self.swarm.behaviour_mut().dht(scope);
        if due.is_empty() || dht.kbuckets().all(|bucket| bucket.is_empty()) {
            return;
        }
        for (id, key) in due {
            let query = dht.get_record(key);
            self.metrics.query_started(scope);
            self.lookups.started(id, scope, query);
        }
    }

    pub(super) fn on_record(&mut self, scope: Scope, query: QueryId, found: PeerRecord) {
        // One from nobody is among those that we keep for others.
        let peer = found.peer.unwrap_or(*self.swarm.local_peer_id());
        self.lookups.found(scope, query, Found { peer: Some(peer), bytes: found.record.value.into() });
        self.end_unheard_lookups();
    }

    /// Queries tell how far they are only when they find something, which may take long; and a peer that is known already
    /// makes no event when it can be asked again.
    pub(super) fn tend_lookups(&mut self) {
        self.end_unheard_lookups();
        self.lookups.settle(Instant::now(), self.bootstraps.is_lonely());
        Scope::ALL.into_iter().for_each(|scope| self.look_up(scope));
        for (scope, query) in self.lookups.running() {
            let asked = self.swarm.behaviour_mut().dht(scope).query(&query).map(|query| query.stats().num_requests());
            self.lookups.asked(scope, query, asked.unwrap_or_default() as usize);
        }
    }

    pub(super) fn end_unheard_lookups(&mut self) {
        for (scope, query) in self.lookups.sweep() {
            if let Some(mut query) = self.swarm.behaviour_mut().dht(scope).query_mut(&query) {
                query.finish();
            }
        }
    }

    /// Starts the puts whose turn it is in this scope, if there is anybody to take them.
    pub(super) fn put(&mut self, scope: Scope) {
        let dht = self.swarm.behaviour_mut().dht(scope);
        if !self.puts.is_waiting(scope) || dht.kbuckets().all(|bucket| bucket.is_empty()) {
            return;
        }
        while let Some((record, reply)) = self.puts.next(scope) {
            // All who are near the key are to take it, and who does not is not waited for longer than a query lasts.
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

    /// Ends what nobody waits for, and starts what a peer that is known already can take.
    pub(super) fn tend_puts(&mut self) {
        for (scope, query) in self.puts.sweep() {
            if let Some(mut query) = self.swarm.behaviour_mut().dht(scope).query_mut(&query) {
                query.finish();
            }
        }
        Scope::ALL.into_iter().for_each(|scope| self.put(scope));
    }
}
