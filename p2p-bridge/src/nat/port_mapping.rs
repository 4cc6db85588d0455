//! [`PortMapping`]: maps the listening ports at the local router (UPnP), once there is a listener to map.
//!
//! libp2p's behaviour searches for the router by multicast as soon as it is created. This wrapper waits for a listener
//! on a private IPv4 address, which a router could forward to, so nodes that only listen on loopback or public
//! addresses never send a packet. The mapped address is a candidate while it is mapped, and is confirmed only by
//! dial-backs: there may be a second router behind the first.
//!
//! libp2p's behaviour drops the mapping of a closed listener without an event. This wrapper emits one.

use libp2p::multiaddr::Protocol;
use libp2p::swarm::{ConnectionId, FromSwarm, NetworkBehaviour, THandlerInEvent, THandlerOutEvent, ToSwarm, dummy};
use libp2p::{Multiaddr, PeerId, upnp};
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::task::{Context, Poll};

/// See the module's documentation.
#[derive(Default)]
pub struct PortMapping {
    inner: Option<upnp::tokio::Behaviour>,
    /// Listening addresses and their mapped external addresses.
    mapped: HashMap<Multiaddr, Multiaddr>,
    /// Pending events about mappings that ended with their listeners.
    events: VecDeque<ToSwarm<upnp::Event, Infallible>>,
}

impl PortMapping {
    /// The mapped external addresses.
    pub fn mapped(&self) -> impl ExactSizeIterator<Item = &Multiaddr> {
        self.mapped.values()
    }

    /// Updates the mappings by an event of the inner behaviour.
    fn note(&mut self, event: &upnp::Event) {
        match event {
            upnp::Event::NewExternalAddr { local_addr, external_addr } => {
                self.mapped.insert(local_addr.clone(), external_addr.clone());
            }
            upnp::Event::ExpiredExternalAddr { local_addr, .. } => {
                self.mapped.retain(|local, _| port(local) != port(local_addr));
            }
            upnp::Event::GatewayNotFound | upnp::Event::NonRoutableGateway => {}
        }
    }

    /// Ends the mapping of a closed listener.
    fn listener_closed(&mut self, listener: &Multiaddr) {
        for (local_addr, external_addr) in self.mapped.extract_if(|local, _| port(local) == port(listener)) {
            self.events.push_back(ToSwarm::ExternalAddrExpired(external_addr.clone()));
            let expired = upnp::Event::ExpiredExternalAddr { local_addr, external_addr };
            self.events.push_back(ToSwarm::GenerateEvent(expired));
        }
    }
}

/// The key of mappings in libp2p's behaviour: transport and port, without the interface.
fn port(address: &Multiaddr) -> Option<Protocol<'_>> {
    address.iter().nth(1)
}

/// Whether a router could forward to an address.
fn is_mappable(address: &Multiaddr) -> bool {
    let mut parts = address.iter();
    let private = matches!(parts.next(), Some(Protocol::Ip4(ip)) if ip.is_private());
    private && matches!(parts.next(), Some(Protocol::Tcp(_) | Protocol::Udp(_)))
}

impl NetworkBehaviour for PortMapping {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = upnp::Event;

    crate::handler_of_each_connection!(|_, _| dummy::ConnectionHandler);

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::NewListenAddr(listen) if is_mappable(listen.addr) => {
                self.inner.get_or_insert_with(upnp::tokio::Behaviour::default).on_swarm_event(event);
            }
            FromSwarm::ExpiredListenAddr(listen) if is_mappable(listen.addr) => {
                self.listener_closed(listen.addr);
                if let Some(inner) = &mut self.inner {
                    inner.on_swarm_event(event);
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<upnp::Event, THandlerInEvent<Self>>> {
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(event);
        }
        let Some(inner) = &mut self.inner else { return Poll::Pending };
        match inner.poll(cx) {
            Poll::Ready(ToSwarm::ExternalAddrConfirmed(address)) => {
                Poll::Ready(ToSwarm::NewExternalAddrCandidate(address))
            }
            Poll::Ready(ToSwarm::GenerateEvent(event)) => {
                self.note(&event);
                Poll::Ready(ToSwarm::GenerateEvent(event))
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_listeners_start_the_search() {
        let table = [
            ("/ip4/192.168.1.2/tcp/4001", true),
            ("/ip4/10.1.2.3/udp/4001/quic-v1", true),
            ("/ip4/127.0.0.1/tcp/4001", false),
            ("/ip4/8.8.8.8/tcp/4001", false),
            ("/ip4/169.254.1.1/tcp/4001", false),
            ("/ip6/fd00::1/tcp/4001", false),
            ("/ip4/10.1.2.3/p2p-circuit", false),
        ];
        for (address, expected) in table {
            assert_eq!(is_mappable(&address.parse().expect(address)), expected, "{address}");
        }
    }

    #[tokio::test]
    async fn loopback_sends_nothing() {
        let mut mapping = PortMapping::default();
        let addr: Multiaddr = "/ip4/127.0.0.1/tcp/4001".parse().expect("a multiaddr");
        let listener_id = libp2p::core::transport::ListenerId::next();
        let event = libp2p::swarm::behaviour::NewListenAddr { listener_id, addr: &addr };
        mapping.on_swarm_event(FromSwarm::NewListenAddr(event));
        assert!(mapping.inner.is_none());
    }

    fn address(text: &str) -> Multiaddr {
        text.parse().expect(text)
    }

    fn next(mapping: &mut PortMapping) -> Option<ToSwarm<upnp::Event, Infallible>> {
        match mapping.poll(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(event) => Some(event),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_mapping_ends_when_the_router_expires_it() {
        let mut mapping = PortMapping::default();
        let [local_addr, external_addr] = ["/ip4/192.168.1.2/tcp/4001", "/ip4/8.8.8.8/tcp/4001"].map(address);
        mapping.note(&upnp::Event::NewExternalAddr {
            local_addr: local_addr.clone(),
            external_addr: external_addr.clone(),
        });
        assert!(mapping.mapped().eq([&external_addr]));
        mapping.note(&upnp::Event::ExpiredExternalAddr { local_addr, external_addr });
        assert_eq!(mapping.mapped().len(), 0);
    }

    #[test]
    fn a_mapping_ends_with_its_listener_with_an_event() {
        // Closed listeners, and whether the mapping of 192.168.1.2/udp/4001 ends with them.
        let table = [
            ("/ip4/192.168.1.2/udp/4001/quic-v1", true),
            ("/ip4/172.17.0.1/udp/4001/quic-v1", true),
            ("/ip4/192.168.1.2/udp/4002/quic-v1", false),
            ("/ip4/192.168.1.2/tcp/4001", false),
            ("/ip4/127.0.0.1/udp/4001/quic-v1", false),
        ];
        for (listener, ends) in table {
            let mut mapping = PortMapping::default();
            let external = address("/ip4/8.8.8.8/udp/4001/quic-v1");
            mapping.note(&upnp::Event::NewExternalAddr {
                local_addr: address("/ip4/192.168.1.2/udp/4001/quic-v1"),
                external_addr: external.clone(),
            });
            let (addr, listener_id) = (address(listener), libp2p::core::transport::ListenerId::next());
            let gone = libp2p::swarm::behaviour::ExpiredListenAddr { listener_id, addr: &addr };
            mapping.on_swarm_event(FromSwarm::ExpiredListenAddr(gone));
            assert_eq!(mapping.mapped().len(), usize::from(!ends), "{listener}");
            if ends {
                let lost = next(&mut mapping);
                assert!(matches!(lost, Some(ToSwarm::ExternalAddrExpired(lost)) if lost == external), "{listener}");
                let Some(ToSwarm::GenerateEvent(upnp::Event::ExpiredExternalAddr { external_addr, .. })) =
                    next(&mut mapping)
                else {
                    panic!("{listener}: there is no event");
                };
                assert_eq!(external_addr, external, "{listener}");
            }
            assert!(next(&mut mapping).is_none(), "{listener}");
        }
    }
}
