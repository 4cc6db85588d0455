//! Nodes on loopback: a name published by one node is resolved by another, over the DHT and through routers.

use content::names::Key;
use content::{MemoryBlocks, Name, NameResolver};
use p2p_bridge::names::keystore::{Keystore, SELF};
use p2p_bridge::names::publish::{self, Publisher};
use p2p_bridge::names::store::NameStore;
use p2p_bridge::options::PublishOptions;
use p2p_bridge::{Bridge, BridgeOptions, Names, NamesOptions};
use prometheus_client::registry::Registry;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);
const CID: &str = "bafkqaddjnzzxazldoqwxizltoq";

struct Node {
    bridge: Bridge,
    names: Arc<Names>,
    publisher: Publisher,
    address: String,
}

impl Node {
    async fn start(dir: &Path, set: impl FnOnce(&mut BridgeOptions)) -> Self {
        let mut options = BridgeOptions::new(dir);
        options.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")];
        set(&mut options);
        let registry = &mut Registry::default();
        let keys = NameStore::open(dir, Keystore::open(dir, PATIENCE).expect("opens"), None).expect("opens");
        let bridge = Bridge::start(options, Arc::new(MemoryBlocks::new()), registry).await.expect("starts");
        let names = Names::new(NamesOptions::default(), Some(bridge.clone()), registry).expect("good options");
        let targets = publish::targets(&bridge);
        let publisher = Publisher::start(PublishOptions::default(), keys, Arc::clone(&names), targets, registry);
        let address = bridge.addresses().await.first().expect("listens").to_string();
        Self { bridge, names, publisher, address }
    }

    async fn joining(dir: &Path, other: &Self) -> Self {
        let address = other.address.parse().expect("a multiaddr");
        Self::start(dir, |options| options.bootstrap = vec![address]).await
    }

    fn key(&self) -> Key {
        Key::from(self.bridge.peer_id())
    }

    /// The last segment of a name's resolution, once it resolves.
    async fn resolve(&self, key: Key) -> String {
        let begun = Instant::now();
        loop {
            match self.names.resolve(&Name::Key(key)).await {
                Ok(found) => return found.segments.join("/"),
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_published_by_one_node_is_resolved_by_another_through_a_third() {
    let dirs = [folder(), folder(), folder()];
    let hub = Node::start(dirs[0].path(), |_| {}).await;
    let owner = Node::start(dirs[1].path(), |_| {}).await;
    let path = |segment: &str| format!("/ipfs/{CID}/{segment}");
    let alone = owner.publisher.publish(SELF, &path("a"), None, None).await.expect("publishes");
    let alone = owner.publisher.settled(alone, Duration::from_millis(50)).await;
    assert!(alone.puts.is_empty(), "no peers");
    let key = owner.key();
    assert_eq!(owner.resolve(key).await, "a");
    owner.publisher.stop();
    owner.bridge.shutdown().await;
    drop(owner);

    let owner = Node::joining(dirs[1].path(), &hub).await;
    let entry = owner.publisher.list().remove(0).1;
    let put = owner.publisher.settled(entry, PATIENCE).await;
    assert_eq!(put.puts["lan"].peers, 1, "one peer");
    owner.bridge.shutdown().await;
    drop(owner);

    let reader = Node::joining(dirs[2].path(), &hub).await;
    assert_eq!(reader.resolve(key).await, "a", "its publisher is gone");
}

/// A router that accepts every record, and stores the requests.
async fn router() -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("is bound"));
    let taken = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&taken);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let all = Arc::clone(&all);
            tokio::spawn(async move {
                let mut request = Vec::new();
                while let Ok(read) = stream.read_buf(&mut request).await
                    && read > 0
                {
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
                    let length = head.lines().find_map(|line| {
                        let (name, value) = line.split_once(':')?;
                        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
                    });
                    if request.len() >= head.len() + 4 + length.unwrap_or_default() {
                        break;
                    }
                }
                let is_put = request.starts_with(b"PUT /routing/v1/ipns/");
                if is_put {
                    all.lock().expect("no panics").extend_from_slice(&request);
                }
                let status = if is_put { "200 OK" } else { "404 Not Found" };
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (url, taken)
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_published_through_routers() {
    let (url, taken) = router().await;
    let dir = folder();
    let node = Node::start(dir.path(), |options| options.http.routers = vec![url]).await;
    let published = node.publisher.publish(SELF, CID, None, None).await.expect("publishes");
    let put = node.publisher.settled(published.clone(), PATIENCE).await;
    assert_eq!(put.puts["routers"].peers, 1);
    let taken = taken.lock().expect("no panics").clone();
    let record = published.record.bytes();
    assert!(taken.windows(record.len()).any(|window| window == &record[..]), "the router got the record");
}
