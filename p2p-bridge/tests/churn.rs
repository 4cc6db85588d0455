//! A network of a hundred nodes with the churn that *Design and Evaluation of IPFS* (SIGCOMM 2022) measured, section
//! 5.3: 87.6 % of sessions are under eight hours, 2.5 % over a day. An hour takes [`HOUR`] here.
//!
//! Every node is a complete [`Bridge`] over real sockets on loopback. Some nodes are slow, some announce content that
//! they do not have, and some leave a port behind that accepts connections and stays silent. Every DAG is on one node
//! that stays, so that every retrieval can succeed; the test asserts that all do. Its report (`--nocapture`) has the
//! retrieval times, and the number of peers that walks asked.
//!
//! All choices are derived from one seed, printed at the start; `CAUSEWAY_SEED` sets it, and `CAUSEWAY_NODES` the
//! number of nodes.

use bytes::Bytes;
use content::{Block, BlockSource, Cid, MemoryBlocks, SourceError, codec, hashes};
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use p2p_bridge::options::NatOptions;
use p2p_bridge::{Bridge, BridgeOptions};
use prometheus_client::registry::Registry;
use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const HOUR: Duration = Duration::from_millis(7_500);
/// The duration of the churn.
const RUN: Duration = Duration::from_secs(15);
/// The minimum number of retrievals, however slow the machine is.
const RETRIEVALS_MIN: usize = 100;
/// A limit against hanging. On two cores shared with two compilers, 60 retrievals took 90 seconds.
const RUN_MAX: Duration = Duration::from_secs(400);
/// Concurrent retrievals.
const READERS: usize = 16;
const DAGS: usize = 40;
const LEAVES: usize = 4;
/// The timeout of a retrieval: a limit against hanging, as the above.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a reader stays at least.
const READER_STAYS: Duration = Duration::from_secs(30);

/// A DAG, its reader, and how long the retrieval took.
type Retrieval = (usize, usize, Result<Duration, SourceError>);

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).expect("less than a usize")
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A session length with the distribution of the paper.
    fn session(&mut self) -> Duration {
        let hours = match self.below(1_000) {
            u @ 0..876 => 8.0 * (u as f64 + 1.0) / 876.0,
            u @ 876..975 => 8.0 + 16.0 * (u as f64 - 876.0) / 99.0,
            u => 24.0 + 2.0 * (u as f64 - 975.0),
        };
        HOUR.mul_f64(hours)
    }
}

/// A local store with latency.
struct Slow {
    blocks: Arc<MemoryBlocks>,
    delay: Duration,
}

impl BlockSource for Slow {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (delay, get) = (self.delay, self.blocks.get(cid));
        async move {
            tokio::time::sleep(delay).await;
            get.await
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.blocks.has(cid)
    }
}

struct Node {
    bridge: Bridge,
    address: Multiaddr,
    blocks: Arc<MemoryBlocks>,
    registry: Registry,
    leaves_at: Option<Instant>,
    _dir: TempDir,
}

impl Node {
    async fn start(bootstrap: Vec<Multiaddr>, slow: bool, leaves_at: Option<Instant>) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let blocks = Arc::new(MemoryBlocks::new());
        let delay = if slow { Duration::from_millis(300) } else { Duration::ZERO };
        let local = Arc::new(Slow { blocks: Arc::clone(&blocks), delay });
        let options = BridgeOptions {
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("address")],
            bootstrap,
            stall_timeout: STALL_TIMEOUT,
            nat: NatOptions { upnp: false, ..NatOptions::default() },
            ..BridgeOptions::new(dir.path())
        };
        let mut registry = Registry::default();
        let bridge = Bridge::start(options, local, &mut registry).await.expect("starts");
        let address = bridge.addresses().await.pop().expect("listens");
        Self { bridge, address, blocks, registry, leaves_at, _dir: dir }
    }

    fn sample(&self, name: &str) -> f64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("encodes");
        let values = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        values.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
    }

    fn table_size(&self) -> f64 {
        self.sample("causeway_dht_routing_table_peers{dht=\"lan\"}")
    }
}

/// A silent listener on the port of a node that left.
fn listen_silently(address: &Multiaddr) -> Option<TcpListener> {
    let port = address.iter().find_map(|part| match part {
        Protocol::Tcp(port) => Some(port),
        _ => None,
    })?;
    TcpListener::bind(("127.0.0.1", port)).ok()
}

struct Dag {
    root: Cid,
    blocks: Vec<Block>,
    holders: HashSet<usize>,
}

fn dag(n: usize) -> Dag {
    let block = |part: usize| {
        let mut data = vec![0; 16 * 1024];
        data[..16].copy_from_slice(&[n.to_be_bytes(), part.to_be_bytes()].concat());
        Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(data)).expect("block")
    };
    let blocks: Vec<Block> = (0..=LEAVES).map(block).collect();
    Dag { root: *blocks[0].cid(), blocks, holders: HashSet::new() }
}

async fn read(bridge: Bridge, dag_blocks: Vec<Block>) -> Result<Duration, SourceError> {
    let begun = Instant::now();
    let session = bridge.session(dag_blocks[0].cid());
    let root = session.get(dag_blocks[0].cid()).await?;
    assert_eq!(root, dag_blocks[0]);
    for leaf in join_all(dag_blocks[1..].iter().map(|block| session.get(block.cid()))).await {
        leaf?;
    }
    Ok(begun.elapsed())
}

/// Records a retrieval. One that fails because its reader has left in the meantime does not count.
fn record(times: &mut Vec<Retrieval>, generations: &[usize], (generation, retrieval): (usize, Retrieval)) {
    let (_, reader, result) = &retrieval;
    if result.is_ok() || generations[*reader] == generation {
        times.push(retrieval);
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_retrieval_that_can_succeed_does_while_nodes_come_and_go() {
    let set = |name: &str, default: u64| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let seed = set("CAUSEWAY_SEED", 6);
    let count = usize::try_from(set("CAUSEWAY_NODES", 100)).expect("fits");
    println!("seed {seed}, {count} nodes");
    let mut rng = Rng(seed);

    // A fifth of the nodes stays; the others leave when their sessions end.
    let stable = count / 5;
    let first = Node::start(Vec::new(), false, None).await;
    let entry = first.address.clone();
    let mut nodes = vec![first];
    let born = Instant::now();
    for n in 1..count {
        let leaves_at = (n >= stable).then(|| born + Duration::from_secs(8) + rng.session());
        nodes.push(Node::start(vec![entry.clone()], n >= stable && rng.chance(10), leaves_at).await);
    }
    let deadline = Instant::now() + RUN_MAX;
    while nodes.iter().any(|node| node.table_size() < 8.0) {
        assert!(Instant::now() < deadline, "the nodes did not connect to each other");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    let mut dags: Vec<Dag> = (0..DAGS).map(dag).collect();
    for dag in &mut dags {
        let honest = [rng.below(stable), stable + rng.below(count - stable), stable + rng.below(count - stable)];
        for holder in honest {
            dag.blocks.iter().for_each(|block| nodes[holder].blocks.insert(block));
            dag.holders.insert(holder);
            nodes[holder].bridge.provide(&dag.root).await;
        }
        // A node that announces content that it does not have.
        nodes[stable + rng.below(count - stable)].bridge.provide(&dag.root).await;
    }
    // The announcements are complete when each DAG is found through the DHT alone.
    let settled = join_all(dags.iter().map(|dag| {
        let asker = (0..stable).find(|n| !dag.holders.contains(n)).expect("another node");
        read(nodes[asker].bridge.clone(), dag.blocks.clone())
    }));
    for result in settled.await {
        result.expect("the DAG is found");
    }

    let mut silent_ports = Vec::new();
    let mut left = 0;
    let mut reads = FuturesUnordered::new();
    let mut times = Vec::new();
    // How many nodes have been in each place before.
    let mut generations = vec![0; count];
    let run = Instant::now();
    let mut asked = vec![HashSet::new(); DAGS];
    while run.elapsed() < RUN || times.len() < RETRIEVALS_MIN {
        assert!(run.elapsed() < RUN_MAX, "only {} retrievals", times.len());
        let leaving = (stable..count).find(|place| nodes[*place].leaves_at.is_some_and(|at| at <= Instant::now()));
        if let Some(place) = leaving {
            let entries = vec![nodes[rng.below(stable)].address.clone(), nodes[rng.below(stable)].address.clone()];
            let new = Node::start(entries, rng.chance(10), Some(Instant::now() + rng.session())).await;
            let old = std::mem::replace(&mut nodes[place], new);
            let address = old.address.clone();
            // The peers are not notified; the sockets are closed when this returns.
            old.bridge.shutdown().await;
            drop(old);
            left += 1;
            generations[place] += 1;
            if rng.chance(33) {
                silent_ports.extend(listen_silently(&address));
            }
            for (n, dag) in dags.iter_mut().enumerate() {
                dag.holders.remove(&place);
                asked[n].remove(&place);
            }
        }
        for _ in 0..4 {
            let (n, reader) = (rng.below(DAGS), rng.below(count));
            // A node that stays for longer than retrievals usually take, and does not have the DAG.
            let stays = nodes[reader].leaves_at.is_none_or(|at| at > Instant::now() + READER_STAYS);
            if reads.len() < READERS && stays && !dags[n].holders.contains(&reader) && asked[n].insert(reader) {
                let reading = read(nodes[reader].bridge.clone(), dags[n].blocks.clone());
                let generation = generations[reader];
                reads.push(tokio::spawn(async move { (generation, (n, reader, reading.await)) }));
            }
        }
        tokio::select! {
            Some(done) = reads.next(), if !reads.is_empty() => {
                record(&mut times, &generations, done.expect("no panic"));
            }
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
    while let Some(done) = reads.next().await {
        record(&mut times, &generations, done.expect("no panic"));
    }

    let failed: Vec<_> = times.iter().filter(|(_, _, result)| result.is_err()).collect();
    let mut taken: Vec<Duration> = times.iter().filter_map(|(_, _, result)| result.clone().ok()).collect();
    taken.sort();
    let [requests, walks] = ["causeway_dht_walk_requests_sum", "causeway_dht_walk_requests_count"]
        .map(|name| nodes.iter().map(|node| node.sample(name)).sum::<f64>());
    println!(
        "{} retrievals, {} failed; {left} nodes left meanwhile, {} of their ports are silent; \
         median {:?}, 90 % {:?}, 99 % {:?}, longest {:?}; {walks} walks of {:.1} requests",
        times.len(),
        failed.len(),
        silent_ports.len(),
        percentile(&taken, 50),
        percentile(&taken, 90),
        percentile(&taken, 99),
        percentile(&taken, 100),
        requests / walks.max(1.0),
    );
    assert!(failed.is_empty(), "{failed:?}");
    assert!(left > 5, "{left} nodes left");
}
