//! The HTTP gateways among a provider's addresses ([`crate::http_source`]).

use super::Task;
use crate::http_source::address::is_http;
use crate::wants::SessionId;
use libp2p::Multiaddr;

impl Task {
    /// Adds the gateways among a provider's addresses as sources, and removes these addresses, which no transport of
    /// the swarm can dial. `false` if the provider is only a gateway.
    pub(super) fn offer_gateways(&mut self, session: SessionId, addresses: &mut Vec<Multiaddr>) -> bool {
        let gateways: Vec<Multiaddr> = addresses.extract_if(.., |address| is_http(address)).collect();
        if gateways.is_empty() {
            return true;
        }
        self.swarm.behaviour_mut().bitswap.addresses_found(session, &gateways);
        !addresses.is_empty()
    }
}
