//! The HTTP gateways among a provider's addresses ([`crate::http_source`]).

use super::Task;
use crate::http_source::address::is_http;
use crate::wants::SessionId;
use libp2p::Multiaddr;

impl Task {
    /// Has the gateways among a provider's addresses asked, and takes them out: no transport of the swarm could dial them.
    /// `false` if the provider is nothing but a gateway.
    pub(super) fn offer_gateways(&mut self, session: SessionId, addresses: &mut Vec<Multiaddr>) -> bool {
        let gateways: Vec<Multiaddr> = addresses.extract_if(.., |address| is_http(address)).collect();
        if gateways.is_empty() {
            return true;
        }
        self.swarm.behaviour_mut().bitswap.addresses_found(session, &gateways);
        !addresses.is_empty()
    }
}
