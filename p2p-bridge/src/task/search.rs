//! Searching for the providers of a session's root, and dialling them.

use super::Task;
use crate::scope::Scope;
use crate::wants::SessionId;
use libp2p::kad::store::RecordStore;
use libp2p::kad::{QueryId, RecordKey};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId};
use std::collections::HashSet;

/// Providers of one session that are dialled.
const PROVIDERS_DIALLED_MAX: usize = 16;

/// A search for the providers of one root, over both scopes.
#[derive(Default)]
pub(super) struct Search {
    queries: Vec<(Scope, QueryId)>,
    dialled: usize,
}

impl Task {
    pub(super) fn start_search(&mut self, session: SessionId) {
        let key = RecordKey::new(&session.to_bytes());
        self.stop_search(session);
        for scope in Scope::ALL {
            let dht = self.swarm.behaviour_mut().dht(scope);
            if dht.kbuckets().all(|bucket| bucket.is_empty()) {
                continue;
            }
            let query = dht.get_providers(key.clone());
            self.metrics.query_started(scope);
            self.queries.insert((scope, query), session);
            self.searches.entry(session).or_default().queries.push((scope, query));
        }
        if !self.searches.contains_key(&session) {
            // Nobody to ask yet. The session asks again.
            self.swarm.behaviour_mut().bitswap.search_finished(session);
        }
    }

    pub(super) fn stop_search(&mut self, session: SessionId) {
        let Some(search) = self.searches.remove(&session) else { return };
        for (scope, query) in search.queries {
            self.queries.remove(&(scope, query));
            if let Some(mut query) = self.swarm.behaviour_mut().dht(scope).query_mut(&query) {
                query.finish();
            }
        }
    }

    /// Routing named providers. They are dialled at once: their addresses live in the running query.
    pub(super) fn on_providers(
        &mut self,
        scope: Scope,
        session: SessionId,
        key: &RecordKey,
        providers: HashSet<PeerId>,
    ) {
        self.metrics.providers_found(scope, providers.len());
        for peer in providers {
            if peer == *self.swarm.local_peer_id() {
                continue;
            }
            self.offer_gateways(scope, session, key, peer);
            self.swarm.behaviour_mut().bitswap.provider_found(session, peer);
            let Some(search) = self.searches.get_mut(&session) else { return };
            if search.dialled >= PROVIDERS_DIALLED_MAX || self.swarm.is_connected(&peer) {
                continue;
            }
            search.dialled += 1;
            let stored = self.swarm.behaviour_mut().dht(scope).store_mut().providers(key);
            let mut known: Vec<Multiaddr> = stored
                .into_iter()
                .filter(|record| record.provider == peer)
                .flat_map(|record| record.addresses)
                .collect();
            known.extend(self.peerbook.addresses(&peer));
            self.dial(peer, known);
        }
    }

    pub(super) fn dial(&mut self, peer: PeerId, known: Vec<Multiaddr>) {
        let opts = DialOpts::peer_id(peer)
            .condition(PeerCondition::DisconnectedAndNotDialing)
            .addresses(known)
            .extend_addresses_through_behaviour()
            .build();
        if let Err(error) = self.swarm.dial(opts) {
            tracing::debug!(%peer, %error, "not dialled");
        }
    }

    pub(super) fn on_query_finished(&mut self, scope: Scope, query: QueryId) {
        let Some(session) = self.queries.remove(&(scope, query)) else { return };
        let Some(search) = self.searches.get_mut(&session) else { return };
        search.queries.retain(|running| *running != (scope, query));
        if search.queries.is_empty() {
            self.searches.remove(&session);
            self.swarm.behaviour_mut().bitswap.search_finished(session);
        }
    }
}
