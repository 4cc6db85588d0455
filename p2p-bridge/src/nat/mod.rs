//! Getting through address translation: who finds out whether we can be reached, and what is done when we cannot.
//!
//! Goals: peers behind home routers can serve each other; no stranger can use us to knock at doors of its choice, or fill our
//! memory with addresses. Non-goals: relaying for others, which costs bandwidth that a gateway has better uses for.
//!
//! | module | concern |
//! |---|---|
//! | [`guarded`] | libp2p's behaviours, kept from dialling what strangers name and from believing it |
//! | [`port_mapping`] | UPnP, from when there is anything to map |
//! | [`relays`] | which relays to listen through |
//! | [`metrics`] | what an operator sees of it |
//!
//! Whether we can be reached is decided in [`crate::reachability`].

pub mod guarded;
pub mod metrics;
pub mod port_mapping;
pub mod relays;

use crate::dialable::{Host, Shape};
use crate::options::{BridgeOptions, NatOptions};
use crate::scope::{Borders, Scope};
use guarded::Guarded;
use libp2p::autonat::{v1, v2};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{Multiaddr, PeerId, dcutr};
use port_mapping::PortMapping;
use std::time::Duration;

/// Between two probes while it is not settled whether we can be reached. Each asks another peer.
const PROBE_EVERY: Duration = Duration::from_secs(30);
/// Dials that strangers may have us make in a minute, over all of them and for one.
const DIAL_BACKS_MAX: usize = 30;
const DIAL_BACKS_PER_PEER_MAX: usize = 3;

/// Candidates for our own address that each protocol is told of in a while.
const CANDIDATES_MAX: usize = 32;
/// The same for AutoNAT v1, whose servers try sixteen addresses, candidates first: some are left for our listeners.
const CANDIDATES_V1_MAX: usize = 8;

/// The behaviours that deal with address translation. Some are off.
pub struct Behaviours {
    /// Asks peers to dial us back, and takes proof.
    pub autonat: Toggle<Guarded<v2::client::Behaviour>>,
    /// Dials peers back that ask for it.
    pub autonat_server: Toggle<Guarded<v2::server::Behaviour>>,
    /// Both, in the older protocol that everybody speaks.
    pub autonat_v1: Toggle<Guarded<v1::Behaviour>>,
    /// Replaces relayed connections.
    pub dcutr: Toggle<Guarded<dcutr::Behaviour>>,
    /// Has the router forward ports.
    pub upnp: Toggle<PortMapping>,
}

impl Behaviours {
    /// As the options say. On a private network nobody is asked whether we can be reached: members are who has the key.
    pub fn new(local: PeerId, options: &BridgeOptions) -> Self {
        let rules = Rules { private: options.dial_private };
        let public = options.private.key_file.is_none();
        let NatOptions { hole_punching, upnp, .. } = options.nat;
        Self {
            autonat: public.then(|| Guarded::new(autonat(), rules, CANDIDATES_MAX)).into(),
            autonat_server: public.then(|| Guarded::new(v2::server::Behaviour::default(), rules, 0)).into(),
            autonat_v1: public.then(|| Guarded::new(autonat_v1(local, rules), rules, CANDIDATES_V1_MAX)).into(),
            dcutr: hole_punching.then(|| Guarded::new(dcutr::Behaviour::new(local), rules, CANDIDATES_MAX)).into(),
            upnp: upnp.then(PortMapping::default).into(),
        }
    }
}

/// Who asks peers for proof.
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

/// Which addresses untrusted peers may name.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Private ones too: a test, or a network of one's own.
    pub private: bool,
}

impl Rules {
    /// Whether an address that an untrusted peer names may be ours. Names are refused with the private addresses: nothing is
    /// known about where they lead. So are circuits, which lead on to somebody else.
    pub fn admit(self, address: &Multiaddr) -> bool {
        let is_direct = |shape: Shape<'_>| matches!(shape.host, Host::Ip(_)) && !shape.is_circuit();
        Shape::read(address).is_ok_and(is_direct) && self.borders().admits(Scope::Wan, address)
    }

    /// Whether an address that an untrusted peer names may be dialled.
    pub fn admit_dial(self, address: &Multiaddr) -> bool {
        self.admit(address) && self.borders().may_dial(Scope::Wan, address)
    }

    fn borders(self) -> Borders {
        Borders { dial_private: self.private }
    }
}

/// Whether an address leads through a relay.
pub fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_may_name_public_addresses_only() {
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
        assert_eq!((strict.admit(&service), strict.admit_dial(&service)), (true, false), "ours may be at any port");
    }

    #[test]
    fn what_is_switched_off_is_absent() {
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
