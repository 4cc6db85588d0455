//! A malicious peer and a client name addresses that lead to a local service. The node must not connect to it: not to
//! test whether an address of the peer can be reached (AutoNAT), not to fetch from a provider that the peer invents,
//! and not for the origins of a pin.

use crate::support::causeway::{Causeway, Launch};
use crate::support::{client, eventually};
use content::{Block, Cid, codec, hashes};
use futures::StreamExt as _;
use libp2p::kad::store::{MemoryStore, RecordStore as _};
use libp2p::kad::{self, ProviderRecord, RecordKey};
use libp2p::swarm::behaviour::NewExternalAddrCandidate;
use libp2p::swarm::{FromSwarm, NetworkBehaviour, Swarm, SwarmEvent};
use libp2p::{Multiaddr, PeerId, StreamProtocol, SwarmBuilder, autonat, identify, noise, tcp, yamux};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const TIMEOUT: Duration = Duration::from_secs(60);
const LAN_DHT: StreamProtocol = StreamProtocol::new("/ipfs/lan/kad/1.0.0");

/// A local service, which records who connects to it.
struct Service {
    port: u16,
    accepted: Arc<Mutex<Vec<SocketAddr>>>,
    task: JoinHandle<()>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let accepted = Arc::<Mutex<Vec<SocketAddr>>>::default();
        let all = Arc::clone(&accepted);
        let task = tokio::spawn(async move {
            while let Ok((_, from)) = listener.accept().await {
                all.lock().expect("no panic before").push(from);
            }
        });
        Self { port, accepted, task }
    }

    fn accepted(&self) -> Vec<SocketAddr> {
        self.accepted.lock().expect("no panic before").clone()
    }

    /// The address at which peers in the local network may dial it.
    fn multiaddr(&self) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{}", self.port).parse().expect("a multiaddr")
    }

    /// Waits until a peer has connected to it.
    async fn is_reached(&self, what: &str) {
        let reached = async || if self.accepted().is_empty() { Err("not reached") } else { Ok(()) };
        eventually(what, TIMEOUT, reached).await;
    }

    /// The connections that were opened before this call: they are accepted before the one that this opens.
    async fn connections(&self) -> Vec<SocketAddr> {
        let own = TcpStream::connect(("127.0.0.1", self.port)).await.expect("it listens");
        let own = own.local_addr().expect("it is connected");
        let accepted = async || Some(self.accepted()).filter(|all| all.contains(&own)).ok_or("not accepted");
        let all = eventually("the connection is accepted", TIMEOUT, accepted).await;
        all.into_iter().filter(|from| *from != own).collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Addresses that begin with a public host or name a host by DNS, and lead to a local port; and a path that ends the
/// head of the WebSocket handshake and begins another request.
fn forged(port: u16) -> Vec<Multiaddr> {
    let path = "%2F%20HTTP%2F1.1%0D%0AHost:%20localhost%0D%0A%0D%0APOST%20%2Fapi%2Fv0%2Fshutdown";
    let addresses = [
        format!("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/{port}"),
        format!("/ip4/8.8.8.8/tcp/1/dns4/localhost/tcp/{port}"),
        format!("/dns4/localhost/tcp/{port}"),
        format!("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/{port}/ws"),
        format!("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/{port}/x-parity-ws/{path}"),
        format!("/ip4/127.0.0.1/tcp/{port}/x-parity-ws/{path}"),
    ];
    addresses.iter().map(|text| text.parse().expect("a multiaddr")).collect()
}

#[derive(NetworkBehaviour)]
struct ForgerBehaviour {
    autonat: autonat::v2::client::Behaviour,
    kad: kad::Behaviour<MemoryStore>,
    identify: identify::Behaviour,
}

/// A peer that is connected to a node, and a server of its DHT.
struct Forger {
    /// The number of addresses that the node was asked to dial and reported as not reached.
    unreached: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Forger {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Forger {
    /// Connects to a node, claims that `addresses` are its own, and has provider records.
    async fn start(node: &Causeway, addresses: &[Multiaddr], providers: Vec<ProviderRecord>) -> Self {
        let mut swarm = SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
            .expect("a fresh key suits Noise")
            .with_behaviour(|key| {
                let peer = key.public().to_peer_id();
                let config = kad::Config::new(LAN_DHT);
                let mut kad = kad::Behaviour::with_config(peer, MemoryStore::new(peer), config);
                kad.set_mode(Some(kad::Mode::Server));
                ForgerBehaviour {
                    autonat: autonat::v2::client::Behaviour::default(),
                    kad,
                    identify: identify::Behaviour::new(identify::Config::new("ipfs/0.1.0".to_owned(), key.public())),
                }
            })
            .expect("the behaviour cannot fail")
            .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(600)))
            .build();
        swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().expect("a multiaddr")).expect("loopback has a free port");
        while !matches!(swarm.select_next_some().await, SwarmEvent::NewListenAddr { .. }) {}
        for provider in providers {
            swarm.behaviour_mut().kad.store_mut().add_provider(provider).expect("there is room");
        }
        for addr in addresses {
            // Identify announces it.
            swarm.add_external_address(addr.clone());
            let candidate = FromSwarm::NewExternalAddrCandidate(NewExternalAddrCandidate { addr });
            swarm.behaviour_mut().autonat.on_swarm_event(candidate);
        }
        swarm.dial(node.tcp().parse::<Multiaddr>().expect("a multiaddr")).expect("dials");
        let unreached = Arc::<AtomicUsize>::default();
        let task = tokio::spawn(run(swarm, Arc::clone(&unreached)));
        Self { unreached, task }
    }

    /// Waits until the node has reported so many addresses as not reached.
    async fn reports_unreached(&self, addresses: usize) {
        let reported = async || match self.unreached.load(Ordering::Relaxed) {
            reported if reported >= addresses => Ok(()),
            reported => Err(format!("{reported} of {addresses}")),
        };
        eventually("the node reports on each address", TIMEOUT, reported).await;
    }
}

async fn run(mut swarm: Swarm<ForgerBehaviour>, unreached: Arc<AtomicUsize>) {
    loop {
        if let SwarmEvent::Behaviour(ForgerBehaviourEvent::Autonat(event)) = swarm.select_next_some().await {
            assert!(event.result.is_err(), "{} was reached", event.tested_addr);
            unreached.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The CID of a block that no node has, and provider records for it: one for each address, by a peer of its own.
fn provided(content: &'static [u8], addresses: impl IntoIterator<Item = Multiaddr>) -> (Cid, Vec<ProviderRecord>) {
    let cid = *Block::of(codec::RAW, hashes::SHA2_256, 32, content.into()).expect("a block").cid();
    let key = RecordKey::from(cid.hash().to_bytes());
    let record = |address| ProviderRecord::new(key.clone(), PeerId::random(), vec![address]);
    (cid, addresses.into_iter().map(record).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_address_of_a_peer_or_client_leads_to_a_local_service() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(dir.path()).set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", 2);
    let token = launch.run(&["token", "create", "--scope", "pin"]).expect("is created");
    let node = launch.start().await;
    let service = Service::start().await;
    let forged = forged(service.port);
    // Providers in the local network may be dialled: these show that the records are used.
    let (of_get, of_pin) = (Service::start().await, Service::start().await);
    let (requested, mut providers) = provided(b"requested", forged.iter().cloned().chain([of_get.multiaddr()]));
    let (pinned, others) = provided(b"pinned", forged.iter().cloned().chain([of_pin.multiaddr()]));
    providers.extend(others);
    let forger = Forger::start(&node, &forged, providers).await;
    forger.reports_unreached(forged.len()).await;
    node.metrics_when(|metrics| metrics.sample("causeway_dht_routing_table_peers{dht=\"lan\"}") > 0).await;

    let answer = node.get(&format!("/ipfs/{requested}")).await;
    assert!([502, 504].contains(&answer.status), "{}: {}", answer.status, answer.text());
    of_get.is_reached("a provider of the requested block is dialled").await;

    let origins: Vec<_> = forged.iter().map(|address| format!("{address}/p2p/{}", PeerId::random())).collect();
    let pin = json!({ "cid": pinned.to_string(), "origins": origins }).to_string();
    let request = client().post(format!("{}/psa/pins", node.admin_url())).bearer_auth(token).body(pin);
    let response = request.send().await.expect("is answered");
    assert_eq!(response.status(), 202, "{:?}", response.text().await);
    // The origins are dialled before the DHT is asked for providers.
    of_pin.is_reached("a provider of the pinned block is dialled").await;

    node.assert_healthy().await;
    assert_eq!(service.connections().await, []);
    node.stop().await;
}
