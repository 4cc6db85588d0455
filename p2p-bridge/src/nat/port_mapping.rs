//! [`PortMapping`]: has the local router forward our ports (UPnP), from when there is anything to forward.
//!
//! libp2p's behaviour searches the router as soon as it exists, by multicast. This one waits for a listener on an address
//! that a home or office router could forward to: a private IPv4 address. Nodes that listen on loopback or on a public
//! address alone never send a packet. The address that the router names is a candidate until a peer has dialled it: there may
//! be a second router behind the first.

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
    dummy,
};
use libp2p::{Multiaddr, PeerId, upnp};
use std::task::{Context, Poll};

/// See the module's documentation.
#[derive(Default)]
pub struct PortMapping {
    inner: Option<upnp::tokio::Behaviour>,
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

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::NewListenAddr(listen) if is_mappable(listen.addr) => {
                self.inner.get_or_insert_with(upnp::tokio::Behaviour::default).on_swarm_event(event);
            }
            FromSwarm::ExpiredListenAddr(listen) if is_mappable(listen.addr) => {
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
        let Some(inner) = &mut self.inner else { return Poll::Pending };
        match inner.poll(cx) {
            Poll::Ready(ToSwarm::ExternalAddrConfirmed(address)) => {
                Poll::Ready(ToSwarm::NewExternalAddrCandidate(address))
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_behind_a_router_have_it_searched() {
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
}
