//! Shared test code: an encoder of UnixFS DAGs in every layout, a source that behaves like a network, and the fixtures.

use bytes::Bytes;
use content::car::CarReader;
use content::{Block, BlockSource, Cid, MemoryBlocks, SourceError, codec, hashes};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use prost::encoding::{WireType, encode_key, encode_varint};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

/// Runs a future that needs no runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    futures::executor::block_on(future)
}

/// The content formula of `fixtures/make.sh`: the words splitmix64(seed * 2^32 + i), truncated.
pub fn content(seed: u64, size: usize) -> Bytes {
    let words = (0..=size as u64 / 8).map(|i| split_mix((seed << 32) + i));
    words.flat_map(u64::to_le_bytes).take(size).collect()
}

pub fn split_mix(n: u64) -> u64 {
    let z = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A protobuf message under construction.
#[derive(Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    pub fn varint(mut self, tag: u32, value: u64) -> Self {
        encode_key(tag, WireType::Varint, &mut self.0);
        encode_varint(value, &mut self.0);
        self
    }

    pub fn bytes(mut self, tag: u32, value: &[u8]) -> Self {
        encode_key(tag, WireType::LengthDelimited, &mut self.0);
        encode_varint(value.len() as u64, &mut self.0);
        self.0.extend_from_slice(value);
        self
    }

    pub fn packed(self, tag: u32, values: &[u64]) -> Self {
        let mut packed = Vec::new();
        values.iter().for_each(|value| encode_varint(*value, &mut packed));
        self.bytes(tag, &packed)
    }
}

pub const RAW: u64 = 0;
pub const DIRECTORY: u64 = 1;
pub const FILE: u64 = 2;
pub const METADATA: u64 = 3;
pub const SYMLINK: u64 = 4;
pub const HAMT_SHARD: u64 = 5;

/// A link of a node to be encoded.
pub struct Link {
    pub cid: Cid,
    pub name: String,
    pub tsize: Option<u64>,
}

impl Link {
    pub fn to(cid: Cid, name: &str) -> Self {
        Self { cid, name: name.to_owned(), tsize: Some(0) }
    }

    pub fn encode(&self) -> Vec<u8> {
        let message = Message::default().bytes(1, &self.cid.to_bytes()).bytes(2, self.name.as_bytes());
        self.tsize.map_or(Message(message.0.clone()), |tsize| message.varint(3, tsize)).0
    }
}

/// A dag-pb node: links first, or data first as from old importers.
pub fn pb_node(links: &[Link], data: Option<&[u8]>, data_first: bool) -> Vec<u8> {
    let with_data = |message: Message| match data {
        Some(data) => message.bytes(1, data),
        None => message,
    };
    let with_links = |message: Message| links.iter().fold(message, |message, link| message.bytes(2, &link.encode()));
    if data_first { with_links(with_data(Message::default())).0 } else { with_data(with_links(Message::default())).0 }
}

/// A verified block, stored in `blocks`.
pub fn add(blocks: &MemoryBlocks, codec: u64, data: Vec<u8>) -> Block {
    let block = Block::of(codec, hashes::SHA2_256, 32, data.into()).expect("accepted hash");
    blocks.insert(&block);
    block
}

/// A block that is inline in its CID.
pub fn inline(codec: u64, data: &[u8]) -> Block {
    Block::of(codec, hashes::IDENTITY, data.len(), Bytes::copy_from_slice(data)).expect("at most 128 bytes")
}

/// A file node: its own data, then children with their sizes.
pub fn file_node(data: &[u8], children: &[(Cid, u64)], packed: bool, data_first: bool) -> Vec<u8> {
    let sizes: Vec<u64> = children.iter().map(|(_, size)| *size).collect();
    let total = data.len() as u64 + sizes.iter().sum::<u64>();
    let message = Message::default().varint(1, FILE).bytes(2, data).varint(3, total);
    let message = if packed {
        message.packed(4, &sizes)
    } else {
        sizes.iter().fold(message, |message, size| message.varint(4, *size))
    };
    let links: Vec<Link> = children.iter().map(|(cid, _)| Link::to(*cid, "")).collect();
    pb_node(&links, Some(&message.0), data_first)
}

/// How a leaf is encoded.
#[derive(Debug, Clone, Copy)]
pub enum LeafKind {
    RawCodec,
    PbFile,
    PbRaw,
    Inline,
}

pub const LEAF_KINDS: [LeafKind; 4] = [LeafKind::RawCodec, LeafKind::PbFile, LeafKind::PbRaw, LeafKind::Inline];

pub fn leaf(blocks: &MemoryBlocks, kind: LeafKind, data: &[u8]) -> Block {
    let pb = |data_type| {
        let message = Message::default().varint(1, data_type).bytes(2, data).varint(3, data.len() as u64);
        add(blocks, codec::DAG_PB, pb_node(&[], Some(&message.0), false))
    };
    match kind {
        LeafKind::Inline if data.len() <= 100 => inline(codec::RAW, data),
        LeafKind::Inline | LeafKind::RawCodec => add(blocks, codec::RAW, data.to_vec()),
        LeafKind::PbFile => pb(FILE),
        LeafKind::PbRaw => pb(RAW),
    }
}

/// The root of a balanced file with `chunk`-sized leaves and inner nodes of up to `width` children.
pub fn balanced(blocks: &MemoryBlocks, data: &[u8], chunk: usize, width: usize, kind: LeafKind) -> Block {
    let mut level: Vec<(Block, u64)> =
        data.chunks(chunk).map(|chunk| (leaf(blocks, kind, chunk), chunk.len() as u64)).collect();
    while level.len() > 1 {
        level = level.chunks(width).map(|nodes| inner(blocks, nodes)).collect();
    }
    level.pop().map_or_else(|| leaf(blocks, kind, &[]), |(root, _)| root)
}

/// A trickle file: each node has a few leaves, then ever deeper sub-trees.
pub fn trickle(blocks: &MemoryBlocks, data: &[u8], chunk: usize, width: usize, kind: LeafKind) -> Block {
    let mut rest: Vec<&[u8]> = data.chunks(chunk).rev().collect();
    let mut children = Vec::new();
    let mut depth = 0;
    while !rest.is_empty() {
        children.push(trickle_subtree(blocks, &mut rest, width, depth, kind));
        depth += 1;
    }
    inner(blocks, &children).0
}

fn trickle_subtree(
    blocks: &MemoryBlocks,
    rest: &mut Vec<&[u8]>,
    width: usize,
    depth: usize,
    kind: LeafKind,
) -> (Block, u64) {
    let mut children = Vec::new();
    for _ in 0..width {
        let Some(chunk) = rest.pop() else { break };
        children.push((leaf(blocks, kind, chunk), chunk.len() as u64));
    }
    for below in 0..depth {
        if !rest.is_empty() {
            children.push(trickle_subtree(blocks, rest, width, below, kind));
        }
    }
    inner(blocks, &children)
}

fn inner(blocks: &MemoryBlocks, children: &[(Block, u64)]) -> (Block, u64) {
    let size = children.iter().map(|(_, size)| size).sum();
    let links: Vec<(Cid, u64)> = children.iter().map(|(block, size)| (*block.cid(), *size)).collect();
    (add(blocks, codec::DAG_PB, file_node(&[], &links, false, false)), size)
}

/// A remote source: no block is available at once, and each takes a pseudorandom number of polls, so that blocks arrive
/// out of order. It counts requests.
#[derive(Default)]
pub struct RemoteSource {
    pub blocks: Arc<MemoryBlocks>,
    pub counts: Arc<Counts>,
    seed: u64,
    polls_max: u64,
    /// Whether fetches never complete.
    never: bool,
}

#[derive(Default)]
pub struct Counts {
    pub gets: AtomicUsize,
    pub peeks: AtomicUsize,
    pub in_flight: AtomicUsize,
    pub in_flight_max: AtomicUsize,
    /// The bytes of all requested blocks.
    pub requested_bytes: AtomicUsize,
    /// The bytes that the reader consumed, as reported by the test.
    pub consumed_bytes: AtomicUsize,
    /// The maximum difference of the two.
    pub prefetched_bytes_max: AtomicUsize,
    pub requested: Mutex<Vec<Cid>>,
}

impl Counts {
    pub fn get(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::Relaxed)
    }
}

impl RemoteSource {
    pub fn new(blocks: impl Into<Arc<MemoryBlocks>>, seed: u64, polls_max: u64) -> Self {
        Self { blocks: blocks.into(), seed, polls_max, ..Self::default() }
    }

    pub fn stalled(blocks: impl Into<Arc<MemoryBlocks>>) -> Self {
        Self { blocks: blocks.into(), never: true, ..Self::default() }
    }
}

/// A fetch in flight. Dropping it decrements the counter.
struct Fetch {
    result: Option<Result<Block, SourceError>>,
    polls_left: u64,
    never: bool,
    counts: Arc<Counts>,
}

impl Future for Fetch {
    type Output = Result<Block, SourceError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.never {
            return Poll::Pending;
        }
        if self.polls_left > 0 {
            self.polls_left -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.result.take().expect("polled once after the end"))
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.counts.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BlockSource for RemoteSource {
    fn peek(&self, _cid: &Cid) -> Option<Block> {
        self.counts.peeks.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let result = self.blocks.peek(cid).ok_or(SourceError::NotFound { cid: *cid });
        let counts = self.counts.clone();
        let number = counts.gets.fetch_add(1, Ordering::Relaxed) as u64;
        let in_flight = counts.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        counts.in_flight_max.fetch_max(in_flight, Ordering::Relaxed);
        let bytes = result.as_ref().map_or(0, |block| block.data().len());
        let requested = counts.requested_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let ahead = requested.saturating_sub(Counts::get(&counts.consumed_bytes));
        counts.prefetched_bytes_max.fetch_max(ahead, Ordering::Relaxed);
        counts.requested.lock().expect("no panic").push(*cid);
        let polls_left = split_mix(self.seed ^ (number << 20)) % (self.polls_max + 1);
        Fetch { result: Some(result), polls_left, never: self.never, counts }.boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.blocks.has(cid)
    }
}

/// The roots and blocks of an archive.
pub fn load_car(bytes: &[u8]) -> (Vec<Cid>, MemoryBlocks) {
    block_on(async {
        let mut car = CarReader::new(bytes).await.expect("a CARv1");
        let blocks = MemoryBlocks::new();
        while let Some(block) = car.next_block().await {
            blocks.insert(&block.expect("a good section"));
        }
        (car.roots().to_vec(), blocks)
    })
}

/// A file below `tests/fixtures`.
pub fn fixture(path: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The only root and the blocks of an archive below `tests/fixtures`.
pub fn fixture_car(path: &str) -> (Cid, Arc<MemoryBlocks>) {
    let (roots, blocks) = load_car(&fixture(path));
    let [root] = roots[..] else { panic!("{path} has {} roots", roots.len()) };
    (root, Arc::new(blocks))
}

/// A CARv1 with the given header and sections.
pub fn write_car<'a>(header: &[u8], sections: impl IntoIterator<Item = (Cid, &'a [u8])>) -> Vec<u8> {
    let mut car = Vec::new();
    encode_varint(header.len() as u64, &mut car);
    car.extend_from_slice(header);
    for (cid, data) in sections {
        let cid = cid.to_bytes();
        encode_varint((cid.len() + data.len()) as u64, &mut car);
        car.extend_from_slice(&cid);
        car.extend_from_slice(data);
    }
    car
}

/// The dag-cbor header of a CARv1 with at most 23 roots.
pub fn car_header(roots: &[Cid]) -> Vec<u8> {
    let mut header = vec![0xa2, 0x65];
    header.extend_from_slice(b"roots");
    header.push(0x80 | u8::try_from(roots.len()).expect("few roots"));
    for root in roots {
        let bytes = root.to_bytes();
        let length = u8::try_from(bytes.len() + 1).expect("short");
        header.extend_from_slice(&[0xd8, 42]);
        header.extend_from_slice(if length < 24 { &[0x40][..] } else { &[0x58, 0][..] });
        *header.last_mut().expect("not empty") |= length;
        header.push(0);
        header.extend_from_slice(&bytes);
    }
    header.push(0x67);
    header.extend_from_slice(b"version");
    header.push(1);
    header
}
