//! What the two DHTs report: answers to our queries, and records that others want stored.

use super::{ADDRESSES_MAX, Task};
use crate::scope::Scope;
use libp2p::kad::store::RecordStore;
use libp2p::kad::{self, GetClosestPeersError, GetProvidersOk, GetRecordOk, ProviderRecord, QueryResult};
use std::time::Instant;

impl Task {
    pub(super) fn on_dht_event(&mut self, scope: Scope, event: kad::Event) {
        match event {
            kad::Event::OutboundQueryProgressed { id, result, step, stats } => {
                self.lookups.asked(scope, id, stats.num_requests() as usize);
                if let QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { key, providers })) = &result
                    && let Some(session) = self.queries.get(&(scope, id)).copied()
                {
                    self.on_providers(scope, session, key, providers.clone());
                }
                if let QueryResult::StartProviding(outcome) = &result
                    && let Some(key) = self.announcing.remove(&(scope, id))
                {
                    self.on_announced(scope, &key, outcome.is_ok());
                }
                if step.last
                    && let QueryResult::GetClosestPeers(outcome) = &result
                {
                    let peers = match outcome {
                        Ok(found) => found.peers.clone(),
                        Err(GetClosestPeersError::Timeout { peers, .. }) => peers.clone(),
                    };
                    self.on_peer_walk(scope, id, peers);
                }
                if let QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(found))) = result {
                    self.on_record(scope, id, found);
                }
                if step.last {
                    self.metrics.query_ended(stats.num_requests(), stats.duration());
                    self.lookups.finished(scope, id, stats.num_successes() > 0);
                    self.lookups.settle(Instant::now(), self.bootstraps.is_lonely());
                    self.on_query_finished(scope, id);
                }
            }
            kad::Event::InboundRequest { request: kad::InboundRequest::AddProvider { record: Some(record) } } => {
                self.keep_provider(scope, record);
            }
            kad::Event::RoutingUpdated { is_new_peer: true, .. } => {
                self.announce();
                self.look_up(scope);
            }
            _ => {}
        }
    }

    /// Stores a provider record that a peer sent about itself, less the addresses that do not belong in this scope.
    /// Value records are not stored yet: nothing here can validate them.
    pub(super) fn keep_provider(&mut self, scope: Scope, mut record: ProviderRecord) {
        record.addresses.retain(|address| scope.admits(address));
        record.addresses.truncate(ADDRESSES_MAX);
        if record.addresses.is_empty() {
            return;
        }
        if let Err(error) = self.swarm.behaviour_mut().dht(scope).store_mut().add_provider(record) {
            tracing::debug!(%error, "a provider record was not stored");
        }
    }
}
