//! [`Announced`]: which of the node's addresses are announced by identify, in the DHT, in provider records and by
//! multicast DNS.
//!
//! Goals: the operator's settings take precedence: what is announced instead, in addition, and never. One rule for all
//! protocols, which [`AnnounceFilter`] applies to libp2p's behaviours. Non-goals: whether peers can reach an address,
//! and which scope of the DHT it belongs to ([`crate::scope`]).

use crate::behaviours::forward_connections;
use crate::options::{BridgeOptions, NoAnnounce};
use crate::scope::AddressPolicy;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::{ExternalAddrConfirmed, ExternalAddrExpired};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use std::ops::{Deref, DerefMut};
use std::task::{Context, Poll};

/// The operator's settings for announced addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announced {
    instead: Vec<Multiaddr>,
    also: Vec<Multiaddr>,
    hidden: NoAnnounce,
}

impl Announced {
    /// The settings of the options.
    pub fn new(options: &BridgeOptions) -> Self {
        let (instead, also) = (options.announce.clone(), options.announce_also.clone());
        Self { instead, also, hidden: options.no_announce.clone() }
    }

    /// Whether an address may be announced: a listening address, a confirmed one, or one that the operator configured.
    /// Hidden addresses are never announced.
    pub fn tells(&self, address: &Multiaddr) -> bool {
        !self.hidden.hides(address) && (self.names(address) || self.instead.is_empty())
    }

    /// Whether an address is announced only because peers confirmed it, so that it is withdrawn when they no longer do.
    /// Configured addresses stay.
    pub fn depends_on_peers(&self, address: &Multiaddr) -> bool {
        self.tells(address) && !self.names(address)
    }

    fn names(&self, address: &Multiaddr) -> bool {
        self.instead.contains(address) || self.also.contains(address)
    }

    /// The configured addresses, without hidden ones.
    pub fn named(&self) -> impl Iterator<Item = &Multiaddr> {
        self.instead.iter().chain(&self.also).filter(|address| self.tells(address))
    }

    /// Whether all addresses are announced.
    pub fn announces_all(&self) -> bool {
        self.instead.is_empty() && self.hidden == NoAnnounce::default()
    }
}

/// An address-filtering wrapper for a behaviour. The behaviour learns only those of the node's addresses that may be
/// announced, and the peer addresses that it supplies are dialled only if an untrusted peer may supply them.
///
/// A behaviour that hides its listening addresses may still need them: identify compares them with observed addresses.
/// With `as_external` it receives all listening addresses, and those that may be announced also as external addresses.
pub struct AnnounceFilter<B> {
    inner: B,
    announced: Announced,
    as_external: bool,
}

impl<B> AnnounceFilter<B> {
    /// Wraps a behaviour. `as_external` is for behaviours that hide their listening addresses.
    pub fn new(inner: B, announced: Announced, as_external: bool) -> Self {
        Self { inner, announced, as_external }
    }
}

impl<B> Deref for AnnounceFilter<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.inner
    }
}

impl<B> DerefMut for AnnounceFilter<B> {
    fn deref_mut(&mut self) -> &mut B {
        &mut self.inner
    }
}

impl<B: NetworkBehaviour> NetworkBehaviour for AnnounceFilter<B> {
    type ConnectionHandler = THandler<B>;
    type ToSwarm = B::ToSwarm;

    forward_connections!();

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        let mut known = self.inner.handle_pending_outbound_connection(connection, peer, addresses, role)?;
        // Multicast DNS returns any address that a packet contains.
        known.retain(|address| AddressPolicy::default().may_dial_in_any(address));
        Ok(known)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ExternalAddrConfirmed(confirmed) if !self.announced.tells(confirmed.addr) => {}
            FromSwarm::ExternalAddrExpired(expired) if !self.announced.tells(expired.addr) => {}
            FromSwarm::NewListenAddr(listen) if self.as_external => {
                self.inner.on_swarm_event(event);
                if self.announced.tells(listen.addr) {
                    let confirmed = ExternalAddrConfirmed { addr: listen.addr };
                    self.inner.on_swarm_event(FromSwarm::ExternalAddrConfirmed(confirmed));
                }
            }
            FromSwarm::ExpiredListenAddr(listen) if self.as_external => {
                self.inner.on_swarm_event(event);
                self.inner.on_swarm_event(FromSwarm::ExternalAddrExpired(ExternalAddrExpired { addr: listen.addr }));
            }
            FromSwarm::NewListenAddr(listen) if !self.announced.tells(listen.addr) => {}
            FromSwarm::ExpiredListenAddr(listen) if !self.announced.tells(listen.addr) => {}
            _ => self.inner.on_swarm_event(event),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<B::ToSwarm, THandlerInEvent<B>>> {
        self.inner.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use libp2p::identify;
    use libp2p::swarm::SwarmEvent;
    use std::sync::Arc;
    use std::time::Duration;

    fn address(text: &str) -> Multiaddr {
        text.parse().expect("address")
    }

    #[test]
    fn configured_addresses_take_precedence() {
        const HOME: &str = "/ip4/10.0.0.1/tcp/4001";
        const SEEN: &str = "/ip4/198.51.100.1/tcp/4001";
        const NAME: &str = "/dns4/peer.example.org/tcp/4001";
        let hidden =
            |network: &str| NoAnnounce { networks: vec![network.parse().expect("a network")], prefixes: vec![] };
        // `announce`, `announce_also`, `no_announce`, and which of the three addresses are announced.
        let table = [
            (vec![], vec![], NoAnnounce::default(), [true, true, true]),
            (vec![NAME], vec![], NoAnnounce::default(), [false, false, true]),
            (vec![], vec![NAME], NoAnnounce::default(), [true, true, true]),
            (vec![NAME], vec![SEEN], NoAnnounce::default(), [false, true, true]),
            (vec![], vec![], hidden("10.0.0.0/8"), [false, true, true]),
            (vec![HOME], vec![SEEN], hidden("10.0.0.0/8"), [false, true, false]),
        ];
        for (instead, also, no_announce, expected) in table {
            let mut options = BridgeOptions::new("/nowhere");
            options.announce = instead.iter().map(|text| address(text)).collect();
            options.announce_also = also.iter().map(|text| address(text)).collect();
            options.no_announce = no_announce;
            let announced = Announced::new(&options);
            assert_eq!([HOME, SEEN, NAME].map(|text| announced.tells(&address(text))), expected, "{options:?}");
            assert!(announced.named().all(|address| announced.tells(address)));
            // Configured addresses are announced even when they are no longer confirmed.
            let dependent = [HOME, SEEN, NAME].map(|text| announced.depends_on_peers(&address(text)));
            let named = [HOME, SEEN, NAME].map(|text| instead.contains(&text) || also.contains(&text));
            assert_eq!(dependent, std::array::from_fn(|i| expected[i] && !named[i]), "{options:?}");
            assert_eq!(announced.announces_all(), expected == [true; 3]);
        }
    }

    /// The addresses of a node, asked by identify.
    async fn announced_addresses(options: BridgeOptions) -> Vec<Multiaddr> {
        let mut registry = prometheus_client::registry::Registry::default();
        let bridge = crate::Bridge::start(options, Arc::new(content::MemoryBlocks::default()), &mut registry).await;
        let bridge = bridge.expect("starts");
        let tcp = libp2p::tcp::Config::default();
        let builder = libp2p::SwarmBuilder::with_new_identity().with_tokio();
        let builder = builder.with_tcp(tcp, libp2p::noise::Config::new, libp2p::yamux::Config::default);
        let about = |keypair: &libp2p::identity::Keypair| {
            identify::Behaviour::new(identify::Config::new("/test".to_owned(), keypair.public()))
        };
        let mut asking = builder.expect("transport").with_behaviour(about).expect("behaviour").build();
        let local = |address: &Multiaddr| address.to_string().starts_with("/ip4/127.0.0.1/");
        let addresses = bridge.addresses().await;
        asking.dial(addresses.into_iter().find(local).expect("it listens")).expect("dials");
        let identified = async {
            loop {
                let event = asking.select_next_some().await;
                if let SwarmEvent::Behaviour(identify::Event::Received { info, .. }) = event {
                    return info.listen_addrs;
                }
            }
        };
        let announced = tokio::time::timeout(Duration::from_secs(30), identified).await.expect("it says who it is");
        bridge.shutdown().await;
        announced
    }

    #[tokio::test]
    async fn identify_sends_only_announced_addresses() {
        const NAME: &str = "/dns4/peer.example.org/tcp/4001";
        let directory = tempfile::tempdir().expect("directory");
        let options = |change: &dyn Fn(&mut BridgeOptions)| {
            let mut options = BridgeOptions::new(directory.path());
            options.listen = vec![address("/ip4/127.0.0.1/tcp/0")];
            options.nat.upnp = false;
            change(&mut options);
            options
        };
        let listens = |addresses: &[Multiaddr]| {
            addresses.iter().any(|address| address.to_string().starts_with("/ip4/127.0.0.1/"))
        };
        let as_is = announced_addresses(options(&|_| {})).await;
        assert!(listens(&as_is) && as_is.len() == 1, "{as_is:?}");
        let instead = announced_addresses(options(&|options| options.announce = vec![address(NAME)])).await;
        assert_eq!(instead, [address(NAME)]);
        let also = announced_addresses(options(&|options| options.announce_also = vec![address(NAME)])).await;
        assert!(listens(&also) && also.contains(&address(NAME)), "{also:?}");
        let hidden = announced_addresses(options(&|options| {
            options.announce_also = vec![address(NAME)];
            options.no_announce.networks = vec!["127.0.0.0/8".parse().expect("a network")];
        }));
        assert_eq!(hidden.await, [address(NAME)]);
    }
}
