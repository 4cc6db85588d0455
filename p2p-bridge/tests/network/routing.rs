//! Nodes on loopback: they find providers, peers and closest peers, and find content through routers.

use content::names::Key;
use content::{Block, BlockKey, BlockSource, Cid, MemoryBlocks, codec, hashes};
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::finders::PeerSearch;
use p2p_bridge::lookups::RecordOrigin;
use p2p_bridge::routing_v1::PeerRecord;
use p2p_bridge::{Bridge, BridgeOptions};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);

struct Node {
    bridge: Bridge,
    addresses: Vec<Multiaddr>,
    registry: Registry,
    _dir: TempDir,
}

impl Node {
    /// A node with these blocks.
    async fn start(blocks: &[&Block], set: impl FnOnce(&mut BridgeOptions)) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let mut options = BridgeOptions::new(dir.path());
        options.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")];
        set(&mut options);
        let held: MemoryBlocks = blocks.iter().map(|block| (*block).clone()).collect();
        let mut registry = Registry::default();
        let bridge = Bridge::start(options, Arc::new(held), &mut registry).await.expect("starts");
        let addresses = bridge.addresses().await;
        Self { bridge, addresses, registry, _dir: dir }
    }

    fn peer(&self) -> PeerId {
        self.bridge.peer_id()
    }

    fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("encodes");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
    }
}

fn block(text: &str) -> Block {
    let hash = hashes::digest(hashes::SHA2_256, 32, text.as_bytes()).expect("a digest");
    Block::verify(Cid::new_v1(codec::RAW, hash), text.as_bytes().to_vec().into()).expect("its own hash")
}

async fn all(mut search: PeerSearch) -> Vec<PeerRecord> {
    let collect = async {
        let mut records = Vec::new();
        while let Some(record) = search.next().await {
            records.push(record);
        }
        records
    };
    tokio::time::timeout(PATIENCE, collect).await.expect("the search ends")
}

/// Searches until a peer is found.
async fn until_found(what: &str, peer: PeerId, search: impl AsyncFn() -> PeerSearch) -> PeerRecord {
    let begun = Instant::now();
    loop {
        let found = all(search().await).await;
        if let Some(record) = found.into_iter().find(|record| record.id == peer) {
            return record;
        }
        assert!(begun.elapsed() < PATIENCE, "{what} was not found");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A router with a fixed answer.
async fn router(content_type: &'static str, body: impl Into<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("is bound"));
    let body: Vec<u8> = body.into();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let _ = stream.read(&mut request).await;
            let length = body.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
                 Connection: close\r\n\r\n"
            );
            let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn providers_peers_and_closest_peers_are_found_with_their_addresses() {
    let hub = Node::start(&[], |_| ()).await;
    let through_hub = |options: &mut BridgeOptions| options.bootstrap = hub.addresses.clone();
    let held = block("with one provider");
    let provider = Node::start(&[&held], through_hub).await;
    let asker = Node::start(&[], through_hub).await;
    provider.bridge.provide(held.cid()).await;
    let key = BlockKey::of(held.cid()).expect("a key");
    let at = |node: &Node| {
        let mut address = node.addresses[0].clone();
        address.pop();
        vec![address]
    };

    for node in [&asker, &hub] {
        let record =
            until_found("the provider", provider.peer(), async || node.bridge.find_providers(&key).await).await;
        assert_eq!(record.addresses, at(&provider));
    }
    let itself =
        until_found("the provider", provider.peer(), async || provider.bridge.find_providers(&key).await).await;
    assert_eq!(itself.addresses, at(&provider), "the node itself is a provider");
    let unprovided = BlockKey::of(block("without providers").cid()).expect("a key");
    assert_eq!(all(asker.bridge.find_providers(&unprovided).await).await, []);

    for (node, peer) in [(&asker, &provider), (&asker, &hub), (&asker, &asker), (&hub, &asker)] {
        let record = until_found("the peer", peer.peer(), async || node.bridge.find_peer(peer.peer()).await).await;
        assert_eq!(record.addresses, at(peer));
    }
    assert_eq!(all(asker.bridge.find_peer(PeerId::random()).await).await, []);

    let close = async || asker.bridge.closest_peers(key.to_bytes()).await;
    assert_eq!(until_found("the hub", hub.peer(), close).await.addresses, at(&hub));
    for node in [hub, provider, asker] {
        node.bridge.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_found_through_routers_and_private_addresses_only_if_allowed() {
    let held = block("known to a router");
    let provider = Node::start(&[&held], |_| ()).await;
    let record = PeerRecord::new(provider.peer(), provider.addresses.clone()).to_json();
    let good = router("application/x-ndjson", record).await;
    // One router is gone, and one sends invalid records.
    let nonsense = router("application/json", "<html>").await;
    let routers = vec!["http://127.0.0.1:1".to_owned(), nonsense, good];

    let set = |options: &mut BridgeOptions| options.http.routers = routers.clone();
    let cautious = Node::start(&[], |options| {
        set(options);
        options.stall_timeout = Duration::from_secs(2);
    })
    .await;
    let bold = Node::start(&[], |options| {
        set(options);
        options.dial_private = true;
    })
    .await;
    let fetched = bold.bridge.session(held.cid()).get(held.cid()).await.expect("is found");
    assert_eq!(fetched.data(), held.data());
    assert_eq!(bold.metric("causeway_router_requests_total{endpoint=\"providers\",result=\"found\"}"), 1);
    assert!(cautious.bridge.session(held.cid()).get(held.cid()).await.is_err(), "private addresses are not dialled");
    assert!(cautious.metric("causeway_router_requests_total{endpoint=\"providers\",result=\"found\"}") > 0);
    for node in [provider, bold, cautious] {
        node.bridge.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_provider_is_found_behind_many_that_accept_and_stay_silent() {
    const DEAD: usize = 40;
    /// The timeout of a dial that is not aborted.
    const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
    let held = block("of the last of many providers");
    let provider = Node::start(&[&held], |_| ()).await;
    let (mut silent, mut records) = (Vec::new(), Vec::new());
    for _ in 0..DEAD {
        // The kernel accepts connections for it.
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("/ip4/127.0.0.1/tcp/{}", listener.local_addr().expect("is bound").port());
        records.push(PeerRecord::new(PeerId::random(), vec![address.parse().expect("an address")]).to_json());
        silent.push(listener);
    }
    records.push(PeerRecord::new(provider.peer(), provider.addresses.clone()).to_json());
    let url = router("application/x-ndjson", records.join("\n")).await;
    let asker = Node::start(&[], |options| {
        options.http.routers = vec![url];
        options.dial_private = true;
    })
    .await;
    let begun = Instant::now();
    let fetched = asker.bridge.session(held.cid()).get(held.cid()).await.expect("is found");
    assert_eq!(fetched.data(), held.data());
    assert!(begun.elapsed() < DIAL_TIMEOUT, "after {:?}", begun.elapsed());
    drop(silent);
    for node in [provider, asker] {
        node.bridge.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ipns_records_are_found_through_routers() {
    let key = Key::parse("k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8").expect("a key");
    let url = router("application/vnd.ipfs.ipns-record", "a record").await;
    let node = Node::start(&[], |options| options.http.routers = vec![url]).await;
    let mut search = node.bridge.find_records(&key).await;
    let found = tokio::time::timeout(PATIENCE, search.next()).await.expect("in time").expect("a record");
    assert_eq!((found.holder, &found.bytes[..]), (RecordOrigin::Router, &b"a record"[..]), "not verified here");
    node.bridge.shutdown().await;
}
