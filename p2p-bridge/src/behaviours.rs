//! Methods that several network behaviours share. They belong in an `impl NetworkBehaviour`.

/// Gives each connection the handler that an expression of the behaviour and the peer ID returns.
///
/// ```ignore
/// p2p_bridge::handler_of_each_connection!(|behaviour, peer| behaviour.handler(peer));
/// ```
#[macro_export]
macro_rules! handler_of_each_connection {
    (|$behaviour:pat_param, $peer:pat_param| $handler:expr) => {
        fn handle_established_inbound_connection(
            &mut self,
            _: ::libp2p::swarm::ConnectionId,
            $peer: ::libp2p::PeerId,
            _: &::libp2p::Multiaddr,
            _: &::libp2p::Multiaddr,
        ) -> Result<::libp2p::swarm::THandler<Self>, ::libp2p::swarm::ConnectionDenied> {
            let $behaviour = self;
            Ok($handler)
        }

        fn handle_established_outbound_connection(
            &mut self,
            _: ::libp2p::swarm::ConnectionId,
            $peer: ::libp2p::PeerId,
            _: &::libp2p::Multiaddr,
            _: ::libp2p::core::Endpoint,
            _: ::libp2p::core::transport::PortUse,
        ) -> Result<::libp2p::swarm::THandler<Self>, ::libp2p::swarm::ConnectionDenied> {
            let $behaviour = self;
            Ok($handler)
        }
    };
}

/// Forwards connections, and the events of their handlers, to the behaviour in the field `inner`. Dials and the events
/// of the swarm are left to the wrapper.
macro_rules! forward_connections {
    () => {
        fn handle_pending_inbound_connection(
            &mut self,
            connection: ConnectionId,
            local: &Multiaddr,
            remote: &Multiaddr,
        ) -> Result<(), ConnectionDenied> {
            self.inner.handle_pending_inbound_connection(connection, local, remote)
        }

        fn handle_established_inbound_connection(
            &mut self,
            connection: ConnectionId,
            peer: PeerId,
            local: &Multiaddr,
            remote: &Multiaddr,
        ) -> Result<THandler<Self>, ConnectionDenied> {
            self.inner.handle_established_inbound_connection(connection, peer, local, remote)
        }

        fn handle_established_outbound_connection(
            &mut self,
            connection: ConnectionId,
            peer: PeerId,
            address: &Multiaddr,
            role: Endpoint,
            port_use: PortUse,
        ) -> Result<THandler<Self>, ConnectionDenied> {
            self.inner.handle_established_outbound_connection(connection, peer, address, role, port_use)
        }

        fn on_connection_handler_event(
            &mut self,
            peer: PeerId,
            connection: ConnectionId,
            event: THandlerOutEvent<Self>,
        ) {
            self.inner.on_connection_handler_event(peer, connection, event);
        }
    };
}
pub(crate) use forward_connections;
