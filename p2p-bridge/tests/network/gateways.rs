//! Nodes on loopback with trustless gateways: found through a router, remembered, and silent while a peer has the
//! block.

use content::{Block, BlockSource, Cid, MemoryBlocks, codec, hashes};
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::routing_v1::PeerRecord;
use p2p_bridge::{Bridge, BridgeOptions};
use prometheus_client::registry::Registry;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);

async fn start(dir: &Path, blocks: &[&Block], set: impl FnOnce(&mut BridgeOptions)) -> Bridge {
    let mut options = BridgeOptions::new(dir);
    options.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")];
    options.dial_private = true;
    set(&mut options);
    let held: MemoryBlocks = blocks.iter().map(|block| (*block).clone()).collect();
    Bridge::start(options, Arc::new(held), &mut Registry::default()).await.expect("starts")
}

async fn fetch(bridge: &Bridge, block: &Block) {
    let fetched = tokio::time::timeout(PATIENCE, bridge.session(block.cid()).get(block.cid())).await;
    assert_eq!(fetched.expect("in time").expect("is found").data(), block.data());
}

fn block(text: &str) -> Block {
    let hash = hashes::digest(hashes::SHA2_256, 32, text.as_bytes()).expect("a digest");
    Block::verify(Cid::new_v1(codec::RAW, hash), text.as_bytes().to_vec().into()).expect("its own hash")
}

/// A server with the same answer for every request, or none.
struct Server {
    port: u16,
}

impl Server {
    async fn saying(content_type: &'static str, body: Vec<u8>) -> Self {
        Self::start(Some((content_type, body))).await
    }

    async fn silent() -> Self {
        Self::start(None).await
    }

    async fn start(answer: Option<(&'static str, Vec<u8>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("is bound").port();
        tokio::spawn(async move {
            let mut open_streams = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let Some((content_type, body)) = &answer else {
                    open_streams.push(stream);
                    continue;
                };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
                     Connection: close\r\n\r\n"
                );
                let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
            }
        });
        Self { port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn multiaddr(&self) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{}/http", self.port).parse().expect("an address")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_from_a_router_is_used_and_remembered() {
    let held = block("behind a gateway");
    let gateway = Server::saying("application/vnd.ipld.raw", held.data().to_vec()).await;
    let mut record = PeerRecord::new(PeerId::random(), vec![gateway.multiaddr()]);
    record.protocols = vec!["transport-ipfs-gateway-http".to_owned()];
    let router = Server::saying("application/x-ndjson", record.to_json().into()).await;
    let dir = TempDir::new().expect("a temporary folder");

    // A node that is stopped while a block arrives may not save its source.
    let begun = Instant::now();
    while !dir.path().join("providers.json").exists() {
        let node = start(dir.path(), &[], |options| options.http.routers = vec![router.url()]).await;
        fetch(&node, &held).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        node.shutdown().await;
        assert!(begun.elapsed() < PATIENCE, "the gateway is not saved");
    }
    let again = start(dir.path(), &[], |_| ()).await;
    fetch(&again, &held).await;
    again.shutdown().await;

    let without = start(dir.path(), &[], |options| {
        options.http.routers = vec![router.url()];
        options.http.from_records = false;
        options.stall_timeout = Duration::from_secs(2);
    })
    .await;
    assert!(without.session(held.cid()).get(held.cid()).await.is_err(), "gateways from records are disabled");
    without.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_gateway_does_not_delay_a_peer() {
    let held = block("with a peer");
    let [one, two] = [(); 2].map(|()| TempDir::new().expect("a temporary folder"));
    let peer = start(one.path(), &[&held], |_| ()).await;
    let addresses = peer.addresses().await;
    let silent = Server::silent().await;
    let node = start(two.path(), &[], |options| {
        options.http.gateways = vec![silent.url()];
        options.peering = addresses;
    })
    .await;
    let begun = Instant::now();
    fetch(&node, &held).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "took {:?}", begun.elapsed());
    for bridge in [peer, node] {
        bridge.shutdown().await;
    }
}
