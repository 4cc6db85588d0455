//! DAG transfers between complete nodes over real sockets on loopback: what comes in them, and what is fetched by
//! Bitswap when they cannot bring it.

use bytes::{Bytes, BytesMut};
use content::importer::{Attributes, Importer, Profile};
use content::stored::{CompressionOptions, Encoder, Stored};
use content::unixfs::file::{FileReader, ReadLimits};
use content::walk::{self, Purpose};
use content::{AllowAll, Block, BlockKey, BlockSource, Cid, MemoryBlocks, ReadAhead, SourceError};
use futures::future::{BoxFuture, FutureExt as _, ready};
use futures::stream::StreamExt as _;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::connecting::AddressOrigin;
use p2p_bridge::options::{BitswapOptions, NatOptions};
use p2p_bridge::{Bridge, BridgeOptions};
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const LEAF_BYTES: usize = 256 * 1024;

/// A store: blocks, with the stored forms of those that are compressible.
#[derive(Default)]
struct Store {
    blocks: MemoryBlocks,
    stored: Mutex<HashMap<BlockKey, Stored>>,
}

impl Store {
    fn insert(&self, block: &Block) {
        self.blocks.insert(block);
        let stored = Encoder::new(CompressionOptions { level: 7 }).expect("zstd").encode(block);
        self.stored.lock().expect("no panic").insert(block.key().expect("a key"), stored);
    }

    /// A file, imported in chunks of 256 KiB.
    fn add(&self, bytes: &[u8]) -> Cid {
        let importer = Importer::new(Profile { raw_leaves: true, ..Profile::default().with_cid_v1() });
        let mut file = importer.expect("a profile").file(Attributes::default());
        let sink = &mut |block: Block| {
            self.insert(&block);
            Ok(())
        };
        file.write(bytes, sink).expect("writes");
        file.finish(sink).expect("finishes").cid
    }
}

impl BlockSource for Store {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.blocks.get(cid)
    }

    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        let key = BlockKey::of(cid).filter(|_| self.blocks.peek(cid).is_some());
        let stored = key.and_then(|key| self.stored.lock().expect("no panic").get(&key).cloned());
        ready(Ok(stored)).boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.blocks.has(cid)
    }
}

struct Node {
    bridge: Bridge,
    store: Arc<Store>,
    registry: Registry,
    /// What had been received when the node was ready for transfers.
    before: Mutex<(u64, u64, u64)>,
    _dir: TempDir,
}

impl Node {
    async fn start(listen: &str, peering: Vec<Multiaddr>, dag_protocol: bool) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Arc::new(Store::default());
        let options = BridgeOptions {
            listen: vec![listen.parse().expect("an address")],
            peering,
            stall_timeout: PATIENCE,
            nat: NatOptions { upnp: false, ..NatOptions::default() },
            bitswap: BitswapOptions { dag_protocol, ..BitswapOptions::default() },
            ..BridgeOptions::new(dir.path())
        };
        let mut registry = Registry::default();
        let bridge = Bridge::start(options, Arc::clone(&store) as _, &mut registry).await.expect("starts");
        Self { bridge, store, registry, before: Mutex::default(), _dir: dir }
    }

    async fn address(&self) -> Multiaddr {
        self.bridge.addresses().await.pop().expect("listens")
    }

    async fn connect(&self, other: &Node) {
        let (peer, addresses) = (other.bridge.peer_id(), other.bridge.addresses().await);
        self.bridge.connect(peer, addresses, AddressOrigin::Operator, PATIENCE).await.expect("connects");
        self.until_identified(&peer).await;
    }

    /// Connects to a node, and waits until blocks are received in transfers from it: that a peer has the protocol is
    /// known a moment after it is identified. What is received meanwhile does not count.
    async fn connect_for_transfers(&self, other: &Node) {
        self.connect(other).await;
        let mut reads = 0;
        eventually("a file is received in a transfer", async || {
            reads += 1;
            let bytes = content(1_000 + 2 * reads, 2 * LEAF_BYTES);
            let file = other.store.add(&bytes);
            assert!(self.read(&file, 0..bytes.len() as u64).await == bytes);
            let (plain, packed, _) = self.received();
            plain + packed > 0
        })
        .await;
        // Blocks are counted after they were delivered.
        eventually("all blocks are counted", async || {
            let (plain, packed, by_bitswap) = self.received();
            plain + packed + by_bitswap >= 3 * reads && self.sample("causeway_dag_transfers_running") == 0
        })
        .await;
        let received = self.received();
        *self.before.lock().expect("no panic") = received;
    }

    /// Waits until the protocols of a peer are known.
    async fn until_identified(&self, peer: &PeerId) {
        eventually("the peer is identified", async || {
            self.bridge.peers().await.iter().any(|known| known.peer == *peer && known.agent.is_some())
        })
        .await;
    }

    fn sample(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("encodes");
        let values = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        values.filter_map(|(_, value)| value.parse::<f64>().ok()).sum::<f64>() as u64
    }

    /// The blocks that came in transfers: plain and packed, and those by Bitswap.
    fn received(&self) -> (u64, u64, u64) {
        let of = |form: &str| self.sample(&format!("causeway_dag_received_blocks_total{{form=\"{form}\"}}"));
        let by_bitswap = self.sample("causeway_bitswap_blocks_total{kind=\"wanted\"}");
        let before = *self.before.lock().expect("no panic");
        (of("plain") - before.0, of("packed") - before.1, by_bitswap - before.2)
    }

    async fn read(&self, file: &Cid, range: std::ops::Range<u64>) -> Bytes {
        let source = self.bridge.session(file);
        let whole = ReadAhead::of_file(*file, range.start, range.end);
        let root = source.get_ahead(file, &whole).await.expect("is received");
        let mut reader = FileReader::new(source, root, range, ReadLimits::default()).expect("a file");
        let mut bytes = BytesMut::new();
        while let Some(part) = reader.next().await {
            bytes.extend_from_slice(&part.expect("is received"));
        }
        bytes.freeze()
    }
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !holds().await {
        assert!(since.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Noise, of which every second leaf is text instead.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let noise = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    });
    let mut bytes: Vec<u8> = noise.flat_map(u64::to_le_bytes).take(bytes).collect();
    for (n, leaf) in bytes.chunks_mut(LEAF_BYTES).enumerate().filter(|(n, _)| n % 2 == 1) {
        let text = format!("leaf {n} of the file {seed}, ");
        leaf.iter_mut().zip(text.bytes().cycle()).for_each(|(byte, letter)| *byte = letter);
    }
    bytes
}

const TCP: &str = "/ip4/127.0.0.1/tcp/0";
const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";

#[tokio::test(flavor = "multi_thread")]
async fn a_file_comes_in_one_transfer_over_each_transport() {
    for listen in [TCP, QUIC] {
        let (holder, asker) = (Node::start(listen, Vec::new(), true).await, Node::start(TCP, Vec::new(), true).await);
        let bytes = content(1, 10_000_000);
        let file = holder.store.add(&bytes);
        // The holder is a member of the session once the DAG's root was requested.
        asker.connect(&holder).await;
        assert!(asker.read(&file, 0..bytes.len() as u64).await == bytes, "{listen}");
        let (plain, packed, by_bitswap) = asker.received();
        // Forty leaves of which a half is text, and the root.
        assert!(plain >= 20 && packed >= 19, "{listen}: {plain} plain, {packed} packed");
        // The first block may be asked for before the peer's protocols are known.
        assert!(by_bitswap <= 1, "{listen}: {by_bitswap}");
        // On several streams, what a reader needs late may overtake much that it needs earlier.
        assert!(asker.sample("causeway_dag_dropped_blocks_total") <= 4, "{listen}");
        eventually("the transfer ends", async || asker.sample("causeway_dag_transfers_running") == 0).await;
        assert!(asker.sample("causeway_dag_transfers_total{end=\"complete\"}") >= 1, "{listen}");
        for node in [holder, asker] {
            assert_eq!(node.sample("causeway_p2p_offences_total"), 0, "{listen}");
            node.bridge.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_keep_the_form_in_which_the_peer_stores_them() {
    let (holder, asker) = (Node::start(TCP, Vec::new(), true).await, Node::start(TCP, Vec::new(), true).await);
    let file = holder.store.add(&content(2, 4 * LEAF_BYTES));
    asker.connect_for_transfers(&holder).await;
    let source = asker.bridge.session(&file);
    let root = source.get_ahead(&file, &ReadAhead::all(file)).await.expect("is received");
    for link in content::dag::links(&root).expect("links") {
        let block = source.get(&link).await.expect("is received");
        let at_holder = holder.store.get_stored(&link).await.expect("reads").expect("is stored");
        let is_compressed = at_holder.packed_parts().is_some();
        assert_eq!(block.stored().map(|stored| stored.value()), is_compressed.then(|| at_holder.value()));
    }
    assert_eq!(asker.received().2, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_without_the_protocol_are_asked_by_bitswap() {
    for (at_holder, at_asker) in [(false, true), (true, false), (false, false)] {
        let holder = Node::start(TCP, Vec::new(), at_holder).await;
        let asker = Node::start(TCP, Vec::new(), at_asker).await;
        let bytes = content(3, 2_000_000);
        let file = holder.store.add(&bytes);
        asker.connect(&holder).await;
        assert!(asker.read(&file, 0..bytes.len() as u64).await == bytes);
        // Blocks are counted after they were delivered.
        eventually("all are counted", async || asker.received() == (0, 0, 9)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_peer_lacks_comes_from_another() {
    let (part, whole) = (Node::start(TCP, Vec::new(), true).await, Node::start(TCP, Vec::new(), true).await);
    let bytes = content(4, 20 * LEAF_BYTES);
    let file = part.store.add(&bytes);
    whole.store.add(&bytes);
    let links = content::dag::links(&part.store.blocks.peek(&file).expect("is stored")).expect("links");
    for link in links.iter().skip(3).step_by(4) {
        assert!(part.store.blocks.remove(link));
    }
    // The peer that lacks blocks is asked first.
    let asker = Node::start(TCP, vec![part.address().await], true).await;
    asker.until_identified(&part.bridge.peer_id()).await;
    asker.connect(&whole).await;
    assert!(asker.read(&file, 0..bytes.len() as u64).await == bytes);
    assert_eq!(asker.sample("causeway_p2p_offences_total"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_costs_its_own_blocks() {
    let (holder, asker) = (Node::start(TCP, Vec::new(), true).await, Node::start(TCP, Vec::new(), true).await);
    let bytes = content(5, 100 * LEAF_BYTES);
    let file = holder.store.add(&bytes);
    asker.connect_for_transfers(&holder).await;
    let (start, end) = (50 * LEAF_BYTES, 54 * LEAF_BYTES);
    assert!(asker.read(&file, start as u64..end as u64).await == bytes[start..end]);
    eventually("the transfer ends", async || asker.sample("causeway_dag_transfers_running") == 0).await;
    let (plain, packed, by_bitswap) = asker.received();
    assert_eq!((plain + packed, by_bitswap), (5, 0), "the root and four leaves");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_is_resolved_and_its_file_read_in_one_transfer() {
    let (holder, asker) = (Node::start(TCP, Vec::new(), true).await, Node::start(TCP, Vec::new(), true).await);
    let bytes = content(6, 2_000_000);
    let file = holder.store.add(&bytes);
    let importer = Importer::new(Profile::default().with_cid_v1()).expect("a profile");
    let sink = &mut |block: Block| {
        holder.store.insert(&block);
        Ok(())
    };
    let mut tree = importer.tree(Attributes::default());
    let part = content::importer::Part { cid: file, file_bytes: bytes.len() as u64, dag_bytes: bytes.len() as u64 };
    tree.add(b"a/b/c/d/e/file", &part, sink).expect("adds");
    let root = tree.finish(sink).expect("finishes").cid;
    asker.connect_for_transfers(&holder).await;
    let complete = "causeway_dag_transfers_total{end=\"complete\"}";
    let before = (asker.sample(complete), asker.sample("causeway_dag_transfers_total"));
    let source = asker.bridge.session(&root);
    let scope = ReadAhead::of_file(file, 0, u64::MAX).scope;
    let names = ["a", "b", "c", "d", "e", "file"].map(str::to_owned);
    let purpose = Purpose { scope, further: None };
    let resolved = walk::resolve_for(&*source, &AllowAll, root, &names, &purpose).await.expect("resolves");
    let mut reader =
        FileReader::new(source, resolved.block, 0..bytes.len() as u64, ReadLimits::default()).expect("a file");
    let mut read = BytesMut::new();
    while let Some(part) = reader.next().await {
        read.extend_from_slice(&part.expect("is received"));
    }
    assert!(read == bytes);
    let (plain, packed, by_bitswap) = asker.received();
    assert_eq!((plain + packed, by_bitswap), (6 + 1 + 8, 0));
    eventually("the transfer ends", async || asker.sample(complete) > before.0).await;
    assert_eq!(asker.sample("causeway_dag_transfers_total") - before.1, 1, "one transfer for the path and the file");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_ends_when_its_reader_leaves() {
    let (holder, asker) = (Node::start(TCP, Vec::new(), true).await, Node::start(TCP, Vec::new(), true).await);
    let bytes = content(7, 60_000_000);
    let file = holder.store.add(&bytes);
    asker.connect_for_transfers(&holder).await;
    let cancelled = "causeway_dag_transfers_total{end=\"cancelled\"}";
    let before = asker.sample(cancelled);
    let source = asker.bridge.session(&file);
    let root = source.get_ahead(&file, &ReadAhead::all(file)).await.expect("is received");
    assert_eq!(asker.sample("causeway_dag_transfers_running"), 1);
    drop((source, root));
    eventually("the transfer ends", async || asker.sample("causeway_dag_transfers_running") == 0).await;
    assert_eq!(asker.sample(cancelled) - before, 1);
    let (plain, packed, _) = asker.received();
    assert!(plain + packed < 150, "{plain} and {packed} of 230");
    // The window is free again.
    assert!(asker.read(&file, 0..1_000_000).await == bytes[..1_000_000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_waits_for_long_goes_on() {
    let (holder, asker) = (Node::start(TCP, Vec::new(), true).await, Node::start(TCP, Vec::new(), true).await);
    let bytes = content(8, 40_000_000);
    let file = holder.store.add(&bytes);
    asker.connect_for_transfers(&holder).await;
    let source = asker.bridge.session(&file);
    let all = ReadAhead::of_file(file, 0, bytes.len() as u64);
    let root = source.get_ahead(&file, &all).await.expect("is received");
    let mut reader = FileReader::new(source, root, 0..bytes.len() as u64, ReadLimits::default()).expect("a file");
    let mut read = BytesMut::new();
    let mut pauses = 0;
    while let Some(part) = reader.next().await {
        read.extend_from_slice(&part.expect("is received"));
        if read.len() / 10_000_000 > pauses {
            pauses += 1;
            tokio::time::sleep(Duration::from_millis(1_500)).await;
        }
    }
    assert!(read == bytes);
    assert_eq!(asker.received().2, 0, "nothing was asked for twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_peers_send_parts_of_a_large_file() {
    let mut holders = Vec::new();
    for _ in 0..3 {
        holders.push(Node::start(TCP, Vec::new(), true).await);
    }
    let asker = Node::start(TCP, Vec::new(), true).await;
    for holder in &holders {
        asker.connect(holder).await;
    }
    // One peer may have sent everything before the others have said that they have the file, and what is late beside
    // load is requested twice.
    let mut attempts = Vec::new();
    for attempt in 1..=4 {
        let bytes = content(7 + 2 * attempt, 60_000_000);
        let stored: Vec<Cid> = holders.iter().map(|holder| holder.store.add(&bytes)).collect();
        let file = stored[0];
        let sent = || holders.iter().map(|holder| holder.sample("causeway_dag_sent_bytes_total")).collect::<Vec<_>>();
        let received = || {
            let (plain, packed, by_bitswap) = asker.received();
            plain + packed + by_bitswap + asker.sample("causeway_bitswap_blocks_total{kind=\"duplicate\"}")
        };
        let before = (sent(), received());
        assert!(asker.read(&file, 0..bytes.len() as u64).await == bytes);
        let senders = sent().iter().zip(before.0).filter(|(now, before)| *now - before > 1_000_000).count();
        let blocks = received() - before.1;
        if senders >= 2 && blocks < 231 * 5 / 4 {
            return;
        }
        attempts.push((senders, blocks));
    }
    panic!("the peers that have sent much, and the blocks that were received: {attempts:?}");
}
