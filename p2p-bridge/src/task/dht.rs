//! Events of the two DHTs, and the records of other peers, which survive a restart.

use super::Task;
use crate::dht::kept;
use crate::scope::Scope;
use libp2p::kad::{self, GetClosestPeersError, GetProvidersOk, GetRecordOk, QueryResult};
use std::time::{Instant, SystemTime};

impl Task {
    pub(super) fn on_dht_event(&mut self, scope: Scope, event: kad::Event) {
        match event {
            kad::Event::OutboundQueryProgressed { id, result, step, stats } => {
                self.lookups.asked(scope, id, stats.num_requests() as usize);
                self.on_found(scope, id, &result);
                if let QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { key, providers })) = &result
                    && let Some(session) = self.queries.get(&(scope, id)).copied()
                {
                    self.on_providers(scope, session, key, providers.clone());
                }
                if let QueryResult::PutRecord(outcome) = &result {
                    self.on_put(scope, id, outcome);
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
                    self.finders.finished(scope, id);
                    self.lookups.finished(scope, id, stats.num_successes() > 0);
                    self.lookups.settle(Instant::now(), self.bootstraps.has_none_connected());
                    self.on_query_finished(scope, id, stats.num_requests());
                }
            }
            kad::Event::RoutingUpdated { is_new_peer: true, .. } => {
                self.announce();
                self.look_up(scope);
                self.put(scope);
            }
            _ => {}
        }
    }

    /// Removes expired records, and saves the others regularly.
    pub(super) fn keep_records(&mut self, now: SystemTime) {
        for scope in Scope::ALL {
            let dht = self.swarm.behaviour_mut().dht(scope);
            dht.tick(now);
            if let Some((path, bytes)) = dht.take_changes(now, false) {
                tokio::task::spawn_blocking(move || kept::save(&path, bytes));
            }
        }
    }

    /// Saves the records at shutdown.
    pub(super) async fn save_records(&mut self) {
        for scope in Scope::ALL {
            if let Some((path, bytes)) = self.swarm.behaviour_mut().dht(scope).take_changes(SystemTime::now(), true) {
                let _ = tokio::task::spawn_blocking(move || kept::save(&path, bytes)).await;
            }
        }
    }
}
