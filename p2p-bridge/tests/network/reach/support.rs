//! Nodes in this process, and a helper that waits for conditions.

use content::{Block, BlockSource, MemoryBlocks, codec};
use libp2p::Multiaddr;
use p2p_bridge::{Bridge, BridgeOptions};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Generous, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);
const SHA2_256: u64 = 0x12;
/// How long to wait for something that must not happen.
pub const NEVER: Duration = Duration::from_secs(2);

/// A running node that connects only to its peerings, all on loopback.
pub struct Node {
    pub bridge: Bridge,
    pub local: Arc<MemoryBlocks>,
    pub addresses: Vec<Multiaddr>,
    registry: Registry,
    _dir: TempDir,
}

/// Options for a passive node that listens on `listen`, with a folder that must outlive it.
pub fn options(listen: &[&str]) -> (BridgeOptions, TempDir) {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let mut options = BridgeOptions::new(dir.path());
    options.listen = listen.iter().map(|address| address.parse().expect(address)).collect();
    options.nat.upnp = false;
    options.stall_timeout = PATIENCE;
    (options, dir)
}

impl Node {
    /// Starts a node.
    pub async fn start((options, dir): (BridgeOptions, TempDir)) -> Self {
        let (mut registry, local) = (Registry::default(), Arc::new(MemoryBlocks::new()));
        let source: Arc<dyn BlockSource> = local.clone();
        let bridge = Bridge::start(options, source, &mut registry).await.expect("starts");
        let addresses = bridge.addresses().await;
        Self { bridge, local, addresses, registry, _dir: dir }
    }

    /// Its first address with this text in it.
    pub fn address(&self, part: &str) -> Multiaddr {
        let found = self.addresses.iter().find(|address| address.to_string().contains(part));
        found.unwrap_or_else(|| panic!("no {part} in {:?}", self.addresses)).clone()
    }

    /// Adds a block with these bytes to the local store.
    pub fn hold(&self, bytes: &[u8]) -> Block {
        let block = block(bytes);
        self.local.insert(&block);
        block
    }

    /// Gets a block from the network.
    pub async fn fetch(&self, block: &Block) {
        let got = tokio::time::timeout(PATIENCE, self.bridge.session(block.cid()).get(block.cid())).await;
        assert_eq!(got.expect("in time").expect("found").data(), block.data());
    }

    /// The sample with this name and these labels, such as `causeway_p2p_connections`.
    pub fn sample(&self, name: &str) -> f64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("encodes");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
    }
}

/// A raw block.
pub fn block(bytes: &[u8]) -> Block {
    Block::of(codec::RAW, SHA2_256, 32, bytes.to_vec().into()).expect("a small block")
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
