//! The HTTP gateways among a provider's addresses.

use super::Task;
use crate::scope::Scope;
use crate::wants::SessionId;
use libp2p::core::Endpoint;
use libp2p::kad::RecordKey;
use libp2p::kad::store::RecordStore;
use libp2p::swarm::{ConnectionId, NetworkBehaviour};
use libp2p::{Multiaddr, PeerId};

impl Task {
    /// The DHT named a provider: what it says of the provider's addresses may name gateways, which are asked at once.
    pub(super) fn offer_gateways(&mut self, scope: Scope, session: SessionId, key: &RecordKey, peer: PeerId) {
        let dht = self.swarm.behaviour_mut().dht(scope);
        let stored = dht.store_mut().providers(key).into_iter().filter(|record| record.provider == peer);
        let mut addresses: Vec<Multiaddr> = stored.flat_map(|record| record.addresses).collect();
        // The addresses in answers live in the running query, which shows them to whoever would dial. Nobody does here, so
        // the connection's number means nothing.
        let number = ConnectionId::new_unchecked(0);
        let running = dht.handle_pending_outbound_connection(number, Some(peer), &[], Endpoint::Dialer);
        addresses.extend(running.into_iter().flatten());
        self.swarm.behaviour_mut().bitswap.addresses_found(session, &addresses);
    }
}
