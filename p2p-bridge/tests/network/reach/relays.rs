//! Nodes that are reached through a relay, and then directly.

use super::support::{Node, options, until};
use futures::StreamExt as _;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, SwarmBuilder, identify, noise, ping, relay, tcp, yamux};
use p2p_bridge::BridgeOptions;
use tempfile::TempDir;
use tokio::task::JoinHandle;

const TCP: &[&str] = &["/ip4/127.0.0.1/tcp/0"];
const QUIC: &[&str] = &["/ip4/127.0.0.1/udp/0/quic-v1"];
const NOWHERE: &[&str] = &[];

#[derive(NetworkBehaviour)]
struct RelayBehaviour {
    relay: relay::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
}

/// A relay that stops when it is dropped.
struct Relay {
    address: Multiaddr,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    async fn start() -> Self {
        Self::start_at(TCP).await
    }

    /// A relay of libp2p's own transports.
    async fn start_at(listen: &[&str]) -> Self {
        let mut swarm = SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
            .expect("keys")
            .with_quic()
            .with_behaviour(|key| {
                let peer = key.public().to_peer_id();
                RelayBehaviour {
                    relay: relay::Behaviour::new(peer, relay::Config::default()),
                    identify: identify::Behaviour::new(identify::Config::new("test".to_owned(), key.public())),
                    ping: ping::Behaviour::default(),
                }
            })
            .expect("a behaviour")
            .build();
        swarm.listen_on(listen[0].parse().expect("a multiaddr")).expect("listens");
        let address = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address;
            }
        };
        // A relay sends these addresses in its reservations.
        swarm.add_external_address(address.clone());
        let address = address.with(Protocol::P2p(*swarm.local_peer_id()));
        let run = async move {
            loop {
                swarm.select_next_some().await;
            }
        };
        Self { address, task: tokio::spawn(run) }
    }
}

/// Options for a node with a relay, which treats its loopback listeners as unreachable.
fn behind(relay: &Relay, listen: &[&str]) -> (BridgeOptions, TempDir) {
    let (mut options, dir) = options(listen);
    options.dial_private = true;
    options.nat.relays = vec![relay.address.clone()];
    (options, dir)
}

/// The address through the relay, once there is one.
async fn circuit(node: &Node) -> Multiaddr {
    until("a relay accepted", async || node.sample("causeway_p2p_relay_reservations") == 1.0).await;
    // The transport listens a moment after the relay has accepted.
    let is_circuit = |address: &Multiaddr| address.iter().any(|part| part == Protocol::P2pCircuit);
    let mut circuit = None;
    until("an address through the relay", async || {
        circuit = node.bridge.addresses().await.into_iter().find(is_circuit);
        circuit.is_some()
    })
    .await;
    circuit.expect("it was found")
}

fn peering(address: Multiaddr, hole_punching: bool, listen: &[&str]) -> (BridgeOptions, TempDir) {
    let (mut options, dir) = options(listen);
    options.dial_private = true;
    options.nat.hole_punching = hole_punching;
    options.peering = vec![address];
    (options, dir)
}

#[tokio::test]
async fn a_node_without_listeners_is_reached_through_a_relay() {
    let relay = Relay::start().await;
    let holder = Node::start(behind(&relay, NOWHERE)).await;
    let block = holder.hold(b"through a relay");
    let reader = Node::start(peering(circuit(&holder).await, false, NOWHERE)).await;
    reader.fetch(&block).await;
    assert_eq!(reader.sample("causeway_p2p_relayed_connections"), 1.0);
    assert_eq!(holder.sample("causeway_p2p_relayed_connections"), 1.0);
    assert_eq!(holder.sample("causeway_p2p_reachability{verdict=\"unknown\"}"), 1.0);
}

#[tokio::test]
async fn a_direct_connection_replaces_the_relayed_one() {
    replace_by_direct_connection(TCP).await;
}

/// All sockets are QUIC's, so the direct connection is as well.
#[tokio::test]
async fn a_direct_connection_over_quic_replaces_the_relayed_one() {
    replace_by_direct_connection(QUIC).await;
}

async fn replace_by_direct_connection(listen: &[&str]) {
    let relay = Relay::start_at(listen).await;
    let holder = Node::start(behind(&relay, listen)).await;
    let (first, second) = (holder.hold(b"through a relay, maybe"), holder.hold(b"not through a relay"));
    let reader = Node::start(peering(circuit(&holder).await, true, listen)).await;
    reader.fetch(&first).await;
    let punched = "causeway_p2p_hole_punches_total{outcome=\"succeeded\"}";
    until("a hole was punched", async || reader.sample(punched) + holder.sample(punched) >= 1.0).await;
    until("the relayed connection is closed", async || reader.sample("causeway_p2p_relayed_connections") == 0.0).await;
    reader.fetch(&second).await;
    assert_eq!(reader.sample("causeway_p2p_relayed_connections"), 0.0);
}

#[tokio::test]
async fn a_provider_with_only_a_circuit_address_is_found() {
    let relay = Relay::start().await;
    let third = Node::start(options(TCP)).await;
    let (mut provider, dir) = behind(&relay, NOWHERE);
    provider.bootstrap = vec![third.address("/tcp/")];
    let provider = Node::start((provider, dir)).await;
    circuit(&provider).await;
    let block = provider.hold(b"found by its record");
    provider.bridge.provide(block.cid()).await;
    let (mut reader, dir) = options(NOWHERE);
    reader.bootstrap = vec![third.address("/tcp/")];
    reader.nat.hole_punching = false;
    let reader = Node::start((reader, dir)).await;
    reader.fetch(&block).await;
    assert_eq!(reader.sample("causeway_p2p_relayed_connections"), 1.0);
}

#[tokio::test]
async fn the_relay_is_released_when_a_peer_proves_direct_reachability() {
    let relay = Relay::start().await;
    let (mut peer, dir) = options(TCP);
    peer.dial_private = true;
    let peer = Node::start((peer, dir)).await;
    let (mut options, dir) = behind(&relay, TCP);
    options.peering = vec![peer.address("/tcp/")];
    let node = Node::start((options, dir)).await;
    circuit(&node).await;
    until("the node is reachable", async || node.sample("causeway_p2p_reachability{verdict=\"reachable\"}") == 1.0)
        .await;
    until("the relay is released", async || node.sample("causeway_p2p_relay_reservations") == 0.0).await;
    let addresses = node.bridge.addresses().await;
    assert!(addresses.iter().all(|address| !address.to_string().contains("p2p-circuit")), "{addresses:?}");
}
