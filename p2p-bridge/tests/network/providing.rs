//! Announcing to a network of real Kademlia servers on loopback: swept keys are found through every server, a new key
//! is announced within a few round trips, and the cost of both is measured.
//!
//! The servers run `libp2p-kad` alone, so that there can be many of them. The measurements are ignored tests: `cargo
//! test --release -p causeway-p2p-bridge --test network providing -- --ignored --nocapture`.

use content::MemoryBlocks;
use content::{Block, codec, hashes};
use futures::StreamExt;
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig, RecordStore};
use libp2p::kad::{self, GetProvidersOk, InboundRequest, QueryResult, RecordKey, StoreInserts};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm, SwarmBuilder, identify, noise, tcp, yamux};
use p2p_bridge::options::NatOptions;
use p2p_bridge::{Bridge, BridgeOptions, KeySource};
use prometheus_client::registry::Registry;
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

const PATIENCE: Duration = Duration::from_secs(300);

fn key(n: u64) -> Vec<u8> {
    let mut key = vec![0x12, 0x20];
    key.resize(34, 0);
    key[10..18].copy_from_slice(&n.to_be_bytes());
    key
}

struct Numbers(u64);

impl KeySource for Numbers {
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) -> Result<(), Box<dyn Error + Send + Sync>> {
        (0..self.0).for_each(|n| visit(&key(n)));
        Ok(())
    }
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    kad: kad::Behaviour<MemoryStore>,
    identify: identify::Behaviour,
}

enum Ask {
    Providers(RecordKey, oneshot::Sender<HashSet<PeerId>>),
    Known(oneshot::Sender<usize>),
}

/// A server of the local DHT. It stops when it is dropped.
struct Server {
    address: Multiaddr,
    ask: mpsc::Sender<Ask>,
    records: Arc<AtomicU64>,
}

impl Server {
    /// `keeps` says whether records are stored or only counted; `delay` is the one-way latency.
    async fn start(bootstrap: Option<Multiaddr>, keeps: bool, delay: Option<Duration>) -> Self {
        let behaviour = |keypair: &libp2p::identity::Keypair| {
            let peer = keypair.public().to_peer_id();
            let about = identify::Config::new("ipfs/0.1.0".to_owned(), keypair.public())
                .with_hide_listen_addrs(delay.is_some());
            let mut config = kad::Config::new(StreamProtocol::new("/ipfs/lan/kad/1.0.0"));
            if !keeps {
                config.set_record_filtering(StoreInserts::FilterBoth);
            }
            let store = MemoryStoreConfig { max_provided_keys: usize::MAX, ..MemoryStoreConfig::default() };
            let mut kad = kad::Behaviour::with_config(peer, MemoryStore::with_config(peer, store), config);
            kad.set_mode(Some(kad::Mode::Server));
            Behaviour { kad, identify: identify::Behaviour::new(about) }
        };
        let mut swarm = SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)
            .expect("transport")
            .with_behaviour(behaviour)
            .expect("behaviour")
            .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(60)))
            .build();
        swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().expect("address")).expect("listens");
        let listening = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address;
            }
        };
        let outside = match delay {
            Some(delay) => delayed(&listening, delay).await,
            None => listening,
        };
        swarm.add_external_address(outside.clone());
        if let Some(bootstrap) = bootstrap {
            swarm.dial(bootstrap).expect("dials");
        }
        let address = outside.with(Protocol::P2p(*swarm.local_peer_id()));
        let (ask, asked) = mpsc::channel(8);
        let records = Arc::<AtomicU64>::default();
        tokio::spawn(serve(swarm, asked, Arc::clone(&records)));
        Self { address, ask, records }
    }

    fn peer_id(&self) -> PeerId {
        self.address
            .iter()
            .find_map(|part| if let Protocol::P2p(peer) = part { Some(peer) } else { None })
            .expect("one")
    }

    async fn providers(&self, key: &[u8]) -> HashSet<PeerId> {
        let (reply, found) = oneshot::channel();
        self.ask.send(Ask::Providers(RecordKey::new(&key), reply)).await.expect("runs");
        found.await.expect("answers")
    }

    async fn known(&self) -> usize {
        let (reply, known) = oneshot::channel();
        self.ask.send(Ask::Known(reply)).await.expect("runs");
        known.await.expect("answers")
    }
}

async fn serve(mut swarm: Swarm<Behaviour>, mut asked: mpsc::Receiver<Ask>, records: Arc<AtomicU64>) {
    let mut searches: HashMap<kad::QueryId, (HashSet<PeerId>, oneshot::Sender<HashSet<PeerId>>)> = HashMap::new();
    loop {
        let event = tokio::select! {
            event = swarm.select_next_some() => event,
            ask = asked.recv() => {
                let kad = &mut swarm.behaviour_mut().kad;
                match ask {
                    Some(Ask::Providers(key, reply)) => {
                        let query = kad.get_providers(key);
                        searches.insert(query, (HashSet::new(), reply));
                    }
                    Some(Ask::Known(reply)) => {
                        let _ = reply.send(kad.kbuckets().map(|bucket| bucket.num_entries()).sum());
                    }
                    None => return,
                }
                continue;
            }
        };
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. })) => {
                let kad = &mut swarm.behaviour_mut().kad;
                info.listen_addrs.into_iter().for_each(|address| _ = kad.add_address(&peer_id, address));
            }
            SwarmEvent::Behaviour(BehaviourEvent::Kad(kad::Event::InboundRequest {
                request: InboundRequest::AddProvider { .. },
            })) => _ = records.fetch_add(1, Ordering::Relaxed),
            SwarmEvent::Behaviour(BehaviourEvent::Kad(kad::Event::OutboundQueryProgressed {
                id,
                result,
                step,
                ..
            })) => {
                if let QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { providers, .. })) = result
                    && let Some((found, _)) = searches.get_mut(&id)
                {
                    found.extend(providers);
                }
                if step.last
                    && let Some((found, reply)) = searches.remove(&id)
                {
                    let _ = reply.send(found);
                }
            }
            _ => {}
        }
        // Only records stored for other peers matter here.
        debug_assert!(swarm.behaviour_mut().kad.store_mut().provided().next().is_none());
    }
}

/// An address that forwards to another one with latency.
async fn delayed(to: &Multiaddr, delay: Duration) -> Multiaddr {
    let port = to.iter().find_map(|part| if let Protocol::Tcp(port) = part { Some(port) } else { None }).expect("TCP");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let outside = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((inbound, _)) = listener.accept().await {
            tokio::spawn(async move {
                // The TCP handshake takes a round trip too.
                tokio::time::sleep(2 * delay).await;
                let Ok(outbound) = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await else { return };
                let (in_read, in_write) = inbound.into_split();
                let (out_read, out_write) = outbound.into_split();
                tokio::join!(pass(in_read, out_write, delay), pass(out_read, in_write, delay));
            });
        }
    });
    format!("/ip4/127.0.0.1/tcp/{}", outside.port()).parse().expect("address")
}

async fn pass(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, delay: Duration) {
    let (late, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let _ = late.send((Instant::now() + delay, buffer[..count].to_vec())).await;
        }
    };
    let write = async move {
        while let Some((when, bytes)) = due.recv().await {
            tokio::time::sleep_until(when.into()).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}

async fn network(size: usize, keeps: bool, delay: Option<Duration>) -> Vec<Server> {
    let first = Server::start(None, keeps, delay).await;
    let mut servers = vec![first];
    for _ in 1..size {
        let bootstrap = servers[0].address.clone();
        servers.push(Server::start(Some(bootstrap), keeps, delay).await);
    }
    let known_max = known_max(&servers);
    until("the first server knows the others", async || servers[0].known().await >= known_max).await;
    servers
}

/// How many of the others the routing table of the first server has room for: a bucket holds twenty of them.
fn known_max(servers: &[Server]) -> usize {
    let keys: Vec<_> = servers.iter().map(|server| kad::KBucketKey::from(server.peer_id())).collect();
    let mut buckets = HashMap::<_, usize>::new();
    for key in &keys[1..] {
        *buckets.entry(keys[0].distance(key).ilog2()).or_default() += 1;
    }
    buckets.into_values().map(|count| count.min(kad::K_VALUE.get())).sum()
}

async fn until(what: &str, done: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !done().await {
        assert!(begun.elapsed() < PATIENCE, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

struct Node {
    bridge: Bridge,
    registry: Registry,
    _dir: TempDir,
}

impl Node {
    async fn start(servers: &[Server], bootstraps: usize) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let options = BridgeOptions {
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("address")],
            bootstrap: servers.iter().take(bootstraps).map(|server| server.address.clone()).collect(),
            nat: NatOptions { upnp: false, ..NatOptions::default() },
            ..BridgeOptions::new(dir.path())
        };
        let mut registry = Registry::default();
        let local = Arc::new(MemoryBlocks::new());
        let bridge = Bridge::start(options, local, &mut registry).await.expect("starts");
        Self { bridge, registry, _dir: dir }
    }

    fn sample(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("encodes");
        let mut values =
            text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix("{dht=\"lan\"} ")?.parse().ok());
        values.next().expect("the metric exists")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_sweep_all_servers_find_the_node_and_new_keys() {
    const KEYS: u64 = 10_000;
    let servers = network(30, true, None).await;
    let node = Node::start(&servers, 1).await;
    let begun = Instant::now();
    node.bridge.provide_from(Arc::new(Numbers(KEYS))).await;
    until("all keys are announced", async || node.sample("causeway_provide_announced_total") >= KEYS).await;
    println!("{KEYS} keys after {:?}, {} walks", begun.elapsed(), node.sample("causeway_provide_walks_total"));
    assert_eq!((node.sample("causeway_provide_keys"), node.sample("causeway_provide_slots_done")), (KEYS, 4_096));
    assert!(node.sample("causeway_provide_records_total") >= 19 * KEYS);
    for (index, server) in servers.iter().enumerate() {
        let found = server.providers(&key(index as u64 * 331)).await;
        assert!(found.contains(&node.bridge.peer_id()), "server {index} found {found:?}");
    }
    let block = Block::of(codec::RAW, hashes::SHA2_256, 32, bytes::Bytes::from_static(b"new")).expect("a block");
    let multihash = block.key().expect("has one").to_bytes();
    assert!(servers[7].providers(&multihash).await.is_empty());
    node.bridge.provide(block.cid()).await;
    until("a new key is found", async || servers[7].providers(&multihash).await.contains(&node.bridge.peer_id())).await;
    node.bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn many_keys() {
    for keys in [100_000, 1_000_000] {
        let servers = network(100, false, None).await;
        let node = Node::start(&servers, 1).await;
        let begun = Instant::now();
        node.bridge.provide_from(Arc::new(Numbers(keys))).await;
        until("all keys are announced", async || node.sample("causeway_provide_announced_total") >= keys).await;
        let arrived: u64 = servers.iter().map(|server| server.records.load(Ordering::Relaxed)).sum();
        println!(
            "{keys} keys at 100 peers after {:?}: {} walks, {} records accepted, {arrived} arrived, {} failures",
            begun.elapsed(),
            node.sample("causeway_provide_walks_total"),
            node.sample("causeway_provide_records_total"),
            node.sample("causeway_provide_failures_total"),
        );
        node.bridge.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn one_record_at_twenty_peers_fifty_milliseconds_away() {
    for (bootstraps, settle) in [(1, 0), (1, 5)] {
        let servers = network(20, true, Some(Duration::from_millis(25))).await;
        let node = Node::start(&servers, bootstraps).await;
        until("the node has joined", async || node.sample("causeway_dht_routing_table_peers") > 0).await;
        tokio::time::sleep(Duration::from_secs(settle)).await;
        let known = node.sample("causeway_dht_routing_table_peers");
        let block = Block::of(codec::RAW, hashes::SHA2_256, 32, bytes::Bytes::from_static(b"new")).expect("a block");
        let begun = Instant::now();
        node.bridge.provide(block.cid()).await;
        let mut next = 1;
        while next <= 20 {
            let placed = servers.iter().filter(|server| server.records.load(Ordering::Relaxed) > 0).count();
            while next <= placed {
                println!("{settle} s after the start, {known} peers known: {next} records after {:?}", begun.elapsed());
                next += 1;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{placed} of 20");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        node.bridge.shutdown().await;
    }
}
