//! NAT traversal: finds out whether the node is reachable, and works around NAT if it is not.
//!
//! Goals: peers behind home routers can serve each other; untrusted peers cannot make the node dial arbitrary addresses
//! or fill its memory with addresses. Non-goals: relaying for others, which would use the gateway's bandwidth.
//!
//! | module | concern |
//! |---|---|
//! | [`guarded`] | address filter for libp2p's behaviours that act on peers' addresses |
//! | [`port_mapping`] | UPnP, once there is a listener to map |
//! | [`relays`] | selection of relays |
//! | [`metrics`] | metrics |
//!
//! [`crate::reachability`] decides whether the node is reachable.

pub mod guarded;
pub mod metrics;
pub mod port_mapping;
pub mod relays;

use crate::dialable::{Host, Shape};
use crate::options::{BridgeOptions, NatOptions};
use crate::scope::{AddressPolicy, Scope};
use guarded::AddressFiltered;
use libp2p::autonat::{v1, v2};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{Multiaddr, PeerId, dcutr};
use port_mapping::PortMapping;
use std::time::Duration;

/// The interval of probes while the verdict is open. Each asks another peer.
const PROBE_EVERY: Duration = Duration::from_secs(30);
/// The maximum number of dial-backs for untrusted peers per minute, in all and for one peer.
const DIAL_BACKS_MAX: usize = 30;
const DIAL_BACKS_PER_PEER_MAX: usize = 3;

/// The maximum number of candidates for external addresses per protocol and period.
const CANDIDATES_MAX: usize = 32;
/// The same for AutoNAT v1, whose servers try sixteen addresses, candidates first: the rest is for listeners.
const CANDIDATES_V1_MAX: usize = 8;

/// The behaviours for NAT traversal. Some may be disabled.
pub struct Behaviours {
    /// AutoNAT v2 client.
    pub autonat: Toggle<AddressFiltered<v2::client::Behaviour>>,
    /// AutoNAT v2 server.
    pub autonat_server: Toggle<AddressFiltered<v2::server::Behaviour>>,
    /// AutoNAT v1 client and server, which all implementations support.
    pub autonat_v1: Toggle<AddressFiltered<v1::Behaviour>>,
    /// Hole punching.
    pub dcutr: Toggle<AddressFiltered<dcutr::Behaviour>>,
    /// UPnP.
    pub upnp: Toggle<PortMapping>,
}

impl Behaviours {
    /// Behaviours as configured. On a private network, AutoNAT is off: members are trusted.
    pub fn new(local: PeerId, options: &BridgeOptions) -> Self {
        let rules = Rules { private: options.dial_private };
        let public = options.private.key_file.is_none();
        let NatOptions { hole_punching, upnp, .. } = options.nat;
        Self {
            autonat: public.then(|| AddressFiltered::new(autonat(), rules, CANDIDATES_MAX)).into(),
            autonat_server: public.then(|| AddressFiltered::new(v2::server::Behaviour::default(), rules, 0)).into(),
            autonat_v1: public.then(|| AddressFiltered::new(autonat_v1(local, rules), rules, CANDIDATES_V1_MAX)).into(),
            dcutr: hole_punching
                .then(|| AddressFiltered::new(dcutr::Behaviour::new(local), rules, CANDIDATES_MAX))
                .into(),
            upnp: upnp.then(PortMapping::default).into(),
        }
    }
}

/// The AutoNAT v2 client.
pub fn autonat() -> v2::client::Behaviour {
    v2::client::Behaviour::default()
}

fn autonat_v1(local: PeerId, rules: Rules) -> v1::Behaviour {
    let config = v1::Config {
        retry_interval: PROBE_EVERY,
        throttle_clients_global_max: DIAL_BACKS_MAX,
        throttle_clients_peer_max: DIAL_BACKS_PER_PEER_MAX,
        throttle_clients_period: Duration::from_secs(60),
        only_global_ips: !rules.private,
        ..v1::Config::default()
    };
    v1::Behaviour::new(local, config)
}

/// Which addresses untrusted peers may supply.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Private ones too: for tests and private networks.
    pub private: bool,
}

impl Rules {
    /// Whether an address from an untrusted peer may be the node's. Host names are rejected as private addresses are,
    /// since they may resolve to any address, and circuits, since they lead to another peer.
    pub fn admit(self, address: &Multiaddr) -> bool {
        let is_direct = |shape: Shape<'_>| matches!(shape.host, Host::Ip(_)) && !shape.is_circuit();
        Shape::read(address).is_ok_and(is_direct) && self.borders().admits(Scope::Wan, address)
    }

    /// Whether an address from an untrusted peer may be dialled.
    pub fn admit_dial(self, address: &Multiaddr) -> bool {
        self.admit(address) && self.borders().may_dial(Scope::Wan, address)
    }

    fn borders(self) -> AddressPolicy {
        AddressPolicy { dial_private: self.private }
    }
}

/// Whether an address is a circuit through a relay.
pub fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_peers_may_supply_only_public_addresses() {
        let relayed = format!("/ip4/8.8.8.8/tcp/4001/p2p/{}/p2p-circuit", PeerId::random());
        let table = [
            ("/ip4/8.8.8.8/tcp/4001", true, true),
            ("/ip6/2606:4700::1/udp/4001/quic-v1", true, true),
            ("/ip4/10.0.0.1/tcp/4001", false, true),
            ("/ip4/127.0.0.1/tcp/4001", false, true),
            ("/ip6/::ffff:192.168.1.1/tcp/22", false, true),
            ("/dns4/localhost/tcp/22", false, false),
            ("/dns4/example.org/tcp/4001", false, false),
            (&relayed, false, false),
            ("/memory/1", false, false),
            ("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/5001", false, false),
            ("/ip4/8.8.8.8/tcp/1/dns4/localhost/tcp/5001", false, false),
            ("/ip4/0.0.0.0/tcp/4001", false, false),
        ];
        for (address, public, private) in table {
            let parsed: Multiaddr = address.parse().expect("a multiaddr");
            for (rules, expected) in [(Rules { private: false }, public), (Rules { private: true }, private)] {
                assert_eq!((rules.admit(&parsed), rules.admit_dial(&parsed)), (expected, expected), "{address}");
            }
        }
        let service: Multiaddr = "/ip4/8.8.8.8/tcp/25".parse().expect("a multiaddr");
        let strict = Rules { private: false };
        assert_eq!(
            (strict.admit(&service), strict.admit_dial(&service)),
            (true, false),
            "the node's address may have any port"
        );
    }

    #[test]
    fn disabled_behaviours_are_absent() {
        let local = PeerId::random();
        let mut options = BridgeOptions::new("data");
        let on = |options: &BridgeOptions| {
            let b = Behaviours::new(local, options);
            let autonat = [b.autonat.is_enabled(), b.autonat_server.is_enabled(), b.autonat_v1.is_enabled()];
            (autonat, b.dcutr.is_enabled(), b.upnp.is_enabled())
        };
        assert_eq!(on(&options), ([true; 3], true, true));
        options.nat.hole_punching = false;
        options.nat.upnp = false;
        assert_eq!(on(&options), ([true; 3], false, false));
        options.private.key_file = Some("swarm.key".into());
        assert_eq!(on(&options), ([false; 3], false, false));
    }
}
