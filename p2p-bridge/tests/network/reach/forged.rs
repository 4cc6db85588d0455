//! Peers that try to make a node connect to addresses that it must not dial. Services on these addresses record
//! connections and what they receive.

use super::support::{NEVER, Node, PATIENCE, options, until};
use futures::StreamExt as _;
use libp2p::swarm::behaviour::NewExternalAddrCandidate;
use libp2p::swarm::{FromSwarm, NetworkBehaviour, Swarm, SwarmEvent};
use libp2p::{Multiaddr, PeerId, SwarmBuilder, autonat, identify, noise, tcp, yamux};
use p2p_bridge::connecting::{AddressOrigin, ConnectError};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const TCP: &[&str] = &["/ip4/127.0.0.1/tcp/0"];

/// A local service that is not meant for peers.
struct Service {
    port: u16,
    /// The bytes received on each connection.
    received: Arc<Mutex<Vec<Vec<u8>>>>,
    task: JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let received: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let all = Arc::clone(&received);
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut socket, _)) = listener.accept().await else { return };
                let mut bytes = vec![0; 4096];
                let read = tokio::time::timeout(Duration::from_secs(1), socket.read(&mut bytes)).await;
                bytes.truncate(read.map_or(0, |read| read.unwrap_or_default()));
                all.lock().expect("no panic before").push(bytes);
            }
        });
        Self { port, received, task }
    }

    /// The connections, by what they received.
    fn received(&self) -> Vec<String> {
        let received = self.received.lock().expect("no panic before");
        received.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }
}

#[derive(NetworkBehaviour)]
struct AttackerBehaviour {
    autonat: autonat::v2::client::Behaviour,
    identify: identify::Behaviour,
}

/// A peer that connects to a node.
async fn attacker(node: &Node) -> Swarm<AttackerBehaviour> {
    let mut swarm = SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
        .expect("keys")
        .with_behaviour(|key| AttackerBehaviour {
            autonat: autonat::v2::client::Behaviour::default(),
            identify: identify::Behaviour::new(identify::Config::new("test".to_owned(), key.public())),
        })
        .expect("a behaviour")
        .with_swarm_config(|config| config.with_idle_connection_timeout(PATIENCE))
        .build();
    swarm.dial(node.address("/tcp/")).expect("dials");
    swarm
}

/// Asks a node to dial back addresses, and returns those that it reports as reached.
async fn dial_back(node: &Node, addresses: &[Multiaddr]) -> Vec<Multiaddr> {
    let mut swarm = attacker(node).await;
    for addr in addresses {
        let candidate = FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr });
        swarm.behaviour_mut().autonat.on_swarm_event(candidate);
    }
    let (mut answers, mut reached) = (0, Vec::new());
    let answered = async {
        while answers < addresses.len() {
            if let SwarmEvent::Behaviour(AttackerBehaviourEvent::Autonat(event)) = swarm.select_next_some().await {
                answers += 1;
                reached.extend(event.result.is_ok().then_some(event.tested_addr));
            }
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.expect("the node answers");
    reached
}

#[tokio::test]
async fn no_dial_back_reaches_a_local_service() {
    let (service, node) = (Service::start().await, Node::start(options(TCP)).await);
    let port = service.port;
    let request = "%2F%20HTTP%2F1.1%0D%0AHost:%20localhost%0D%0A%0D%0APOST%20%2Fapi%2Fv0%2Fshutdown";
    let addresses = [
        format!("/ip4/127.0.0.1/tcp/{port}"),
        format!("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/{port}"),
        format!("/ip4/8.8.8.8/tcp/1/dns4/localhost/tcp/{port}"),
        format!("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/{port}/ws"),
        format!("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/{port}/x-parity-ws/{request}"),
        format!("/ip6/::ffff:127.0.0.1/tcp/{port}"),
    ];
    let addresses = addresses.map(|text| text.parse::<Multiaddr>().expect("a multiaddr"));
    let reached = dial_back(&node, &addresses).await;
    assert_eq!((reached, service.received()), (vec![], vec![]));
}

#[tokio::test]
async fn addresses_that_a_peer_announces_do_not_reach_a_local_service() {
    let (service, node) = (Service::start().await, Node::start(options(TCP)).await);
    let mut swarm = attacker(&node).await;
    // Identify sends these, and the node's identify reports them to its other behaviours.
    swarm.add_external_address(format!("/ip4/127.0.0.1/tcp/{}", service.port).parse().expect("a multiaddr"));
    let attacker_id = *swarm.local_peer_id();
    let is_identified = async || {
        let peers = node.bridge.peers().await;
        peers.iter().any(|peer| peer.peer == attacker_id && peer.agent.is_some())
    };
    let talk = tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    });
    until("the node has the peer's addresses", is_identified).await;
    talk.abort();
    until("the peer has disconnected", async || node.bridge.peers().await.is_empty()).await;
    let found = node.bridge.connect(attacker_id, Vec::new(), AddressOrigin::Untrusted, NEVER).await;
    assert_eq!((found, service.received()), (Err(ConnectError::Unknown), vec![]));
}

#[tokio::test]
async fn the_operator_gets_an_error_for_unsupported_addresses_and_may_use_dns_names() {
    let (service, node) = (Service::start().await, Node::start(options(TCP)).await);
    let connect = async |text: String, by| {
        let address = text.parse().expect("a multiaddr");
        node.bridge.connect(PeerId::random(), vec![address], by, NEVER).await
    };
    let port = service.port;
    let nested = connect(format!("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/{port}"), AddressOrigin::Operator).await;
    assert!(matches!(nested, Err(ConnectError::UnsupportedAddress(_))), "{nested:?}");
    let name = format!("/dns4/localhost/tcp/{port}");
    assert_eq!(connect(name.clone(), AddressOrigin::Untrusted).await, Err(ConnectError::NotAllowed));
    assert!(service.received().is_empty());
    assert!(connect(name, AddressOrigin::Operator).await.is_err(), "no peer answers there");
    until("the name was resolved", async || !service.received().is_empty()).await;
}
