//! Connections, what peers say about themselves, and the table of good peers.

use super::{ADDRESSES_MAX, Task};
use crate::peerbook;
use crate::scope::{Scope, is_public};
use libp2p::core::ConnectedPoint;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId, identify};
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

/// Remembered peers that the routing tables start with.
const REMEMBERED_MAX: usize = 200;

impl Task {
    pub(super) fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        self.metrics.connections.inc();
        self.remotes.insert(connection, endpoint.get_remote_address().clone());
        self.peerings.connected(&peer);
        self.bootstraps.connected(&peer);
    }

    /// A peer said which protocols it speaks and where it listens: the only way into a routing table.
    pub(super) fn on_identified(&mut self, connection: ConnectionId, peer: PeerId, info: identify::Info) {
        let remote = self.remotes.get(&connection).cloned();
        for scope in Scope::ALL {
            if !info.protocols.contains(&scope.protocol()) {
                continue;
            }
            // A stranger from outside has no say about our own network.
            if scope == Scope::Lan && !remote.as_ref().is_some_and(|remote| scope.admits(remote)) {
                continue;
            }
            let good: Vec<Multiaddr> =
                info.listen_addrs.iter().filter(|address| scope.admits(address)).take(ADDRESSES_MAX).cloned().collect();
            for address in &good {
                self.swarm.behaviour_mut().dht(scope).add_address(&peer, address.clone());
            }
            self.peerbook.saw(peer, good, SystemTime::now());
            self.look_up(scope);
            self.put(scope);
        }
    }

    pub(super) fn on_listening(&mut self, address: Multiaddr) {
        tracing::info!(%address, "listening for peers");
        // An interface with a public address of its own needs nobody's confirmation.
        let own = match address.iter().next() {
            Some(Protocol::Ip4(ip)) => is_public(IpAddr::V4(ip)),
            Some(Protocol::Ip6(ip)) => is_public(IpAddr::V6(ip)),
            _ => false,
        };
        if own {
            self.swarm.add_external_address(address);
        }
    }

    pub(super) fn remember_peers(&mut self) {
        for (peer, known) in self.peerbook.peers().into_iter().take(REMEMBERED_MAX) {
            for address in known {
                for scope in Scope::ALL {
                    if scope.admits(&address) {
                        self.swarm.behaviour_mut().dht(scope).add_address(&peer, address.clone());
                    }
                }
            }
        }
        for scope in Scope::ALL {
            // Without any peer this fails, and the first peer that turns up starts it.
            let _ = self.swarm.behaviour_mut().dht(scope).bootstrap();
        }
    }

    pub(super) fn table_sizes(&mut self) -> [(Scope, usize); 2] {
        let behaviour = self.swarm.behaviour_mut();
        Scope::ALL.map(|scope| (scope, behaviour.dht(scope).kbuckets().map(|bucket| bucket.num_entries()).sum()))
    }

    pub(super) async fn save_peers(&mut self) {
        if let Some((path, bytes)) = self.peerbook.take_changes(SystemTime::now()) {
            let _ = tokio::task::spawn_blocking(move || save(&path, &bytes)).await;
        }
    }
}

/// Writes the table of good peers, away from the swarm task.
pub(super) fn save(path: &Path, bytes: &[u8]) {
    if let Err(error) = peerbook::save(path, bytes) {
        tracing::warn!(path = %path.display(), %error, "could not write the table of good peers");
    }
}
