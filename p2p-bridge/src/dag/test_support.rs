//! DAGs and block sources for the tests of the protocol.

use bytes::Bytes;
use content::importer::{Attributes, Importer, Part, Profile, SinkError};
use content::scope::{self, DagScope, EntityBytes, ScopeLimits, ScopeOptions};
use content::stored::{CompressionOptions, Encoder, Stored};
use content::{Block, BlockKey, BlockSource, Cid, MemoryBlocks, SourceError, codec, hashes};
use futures::future::{BoxFuture, FutureExt as _, ready};
use futures::stream::TryStreamExt as _;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Blocks with their stored forms; some may be withheld. Counts what is read.
#[derive(Default)]
pub struct TestSource {
    /// The blocks.
    pub blocks: MemoryBlocks,
    inserted: Mutex<Vec<Block>>,
    stored: Mutex<HashMap<BlockKey, Stored>>,
    /// The blocks that are not served.
    pub withheld: Mutex<HashSet<BlockKey>>,
    /// The blocks that are in memory.
    hot: Mutex<HashSet<BlockKey>>,
    reads: AtomicUsize,
}

impl TestSource {
    /// Stores a block.
    pub fn insert(&self, block: &Block) {
        self.blocks.insert(block);
        self.inserted.lock().expect("no panic").push(block.clone());
        let Some(key) = block.key() else { return };
        let stored = Encoder::new(CompressionOptions::default()).expect("zstd").encode(block);
        self.stored.lock().expect("no panic").insert(key, stored);
    }

    /// Replaces the stored form of a block.
    pub fn set_stored(&self, cid: &Cid, stored: Stored) {
        self.stored.lock().expect("no panic").insert(BlockKey::of(cid).expect("is stored"), stored);
    }

    /// All blocks that were inserted.
    pub fn all(&self) -> Vec<Block> {
        self.inserted.lock().expect("no panic").clone()
    }

    /// Withholds a block.
    pub fn withhold(&self, cid: &Cid) {
        self.withheld.lock().expect("no panic").insert(BlockKey::of(cid).expect("is stored"));
    }

    /// Keeps a block in memory, where it is not read.
    pub fn heat(&self, cid: &Cid) {
        self.hot.lock().expect("no panic").insert(BlockKey::of(cid).expect("is stored"));
    }

    /// The number of blocks that were read.
    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    fn is_withheld(&self, cid: &Cid) -> bool {
        BlockKey::of(cid).is_some_and(|key| self.withheld.lock().expect("no panic").contains(&key))
    }
}

impl BlockSource for TestSource {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        let is_hot = BlockKey::of(cid).is_some_and(|key| self.hot.lock().expect("no panic").contains(&key));
        self.blocks.peek(cid).filter(|_| is_hot && !self.is_withheld(cid))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let found = if self.is_withheld(cid) { None } else { self.blocks.peek(cid) };
        ready(found.ok_or(SourceError::NotFound { cid: *cid })).boxed()
    }

    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let key = BlockKey::of(cid).filter(|_| !self.is_withheld(cid));
        let found = key.and_then(|key| self.stored.lock().expect("no panic").get(&key).cloned());
        ready(Ok(found)).boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(!self.is_withheld(cid) && self.blocks.peek(cid).is_some())).boxed()
    }
}

/// Pseudo-random bytes, which do not compress.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    });
    word.flat_map(u64::to_le_bytes).take(bytes).collect()
}

/// Text, which compresses well.
pub fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let line = |n: u64| format!("line {n} of the text {seed}, which is long enough to compress\n");
    (0..).flat_map(|n| line(n).into_bytes()).take(bytes).collect()
}

/// A profile with small blocks, so that small files have several levels.
pub fn profile(v0: bool) -> Profile {
    let profile = if v0 { Profile::UNIXFS_V0_2015 } else { Profile::UNIXFS_V1_2025 };
    Profile { chunking: "size-4096".parse().expect("a chunking"), file_links_max: 5, ..profile }
}

/// Imports files into a source.
pub struct Import<'a> {
    /// The source.
    pub source: &'a TestSource,
    /// The importer.
    pub importer: Importer,
}

impl<'a> Import<'a> {
    /// Imports with a profile.
    pub fn new(source: &'a TestSource, profile: Profile) -> Self {
        Self { source, importer: Importer::new(profile).expect("a profile") }
    }

    /// Imports a file.
    pub fn file(&self, data: &[u8]) -> Part {
        let mut sink = |block: Block| -> Result<(), SinkError> {
            self.source.insert(&block);
            Ok(())
        };
        let mut file = self.importer.file(Attributes::default());
        file.write(data, &mut sink).expect("writes");
        file.finish(&mut sink).expect("finishes")
    }

    /// Imports a tree of files.
    pub fn tree(&self, entries: &[(&str, Part)]) -> Part {
        let mut sink = |block: Block| -> Result<(), SinkError> {
            self.source.insert(&block);
            Ok(())
        };
        let mut tree = self.importer.tree(Attributes::default());
        for (path, part) in entries {
            tree.add(path.as_bytes(), part, &mut sink).expect("adds");
        }
        tree.finish(&mut sink).expect("finishes")
    }
}

/// A site: files of several kinds, nested directories, and a sharded directory.
pub fn site(v0: bool) -> (Arc<TestSource>, Cid) {
    let source = TestSource::default();
    let profile = profile(v0);
    let sharding = content::importer::Sharding { threshold_bytes: 1_000, fanout: 8, ..profile.sharding };
    let import = Import::new(&source, content::importer::Profile { sharding, ..profile });
    let noise_file = import.file(&noise(1, 200_000));
    let text_file = import.file(&text(2, 300_000));
    let small: Vec<Part> = (0..60).map(|n| import.file(&text(n, 700))).collect();
    let names: Vec<String> = (0..60).map(|n| format!("many/entry number {n}")).collect();
    let mut entries = vec![
        ("a/b/c/page.html", import.file(&text(9, 10_000))),
        ("a/b/noise.bin", noise_file),
        ("copy.bin", noise_file),
        ("empty", import.file(b"")),
    ];
    entries.extend(names.iter().map(String::as_str).zip(small));
    entries.push(("text.txt", text_file));
    let root = import.tree(&entries).cid;
    (Arc::new(source), root)
}

/// The paths of interest in [`site`].
pub const PATHS: [&str; 9] =
    ["", "text.txt", "a/b/noise.bin", "a/b", "a/b/c/page.html", "many", "many/entry number 17", "empty", "copy.bin"];

/// The names of a path.
pub fn names(path: &str) -> Vec<String> {
    path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Scopes and ranges of interest.
pub fn scopes() -> Vec<ScopeOptions> {
    let ranges = ["0:*", "0:0", "5000:90000", "-5000:*", "100000:100000", "9999999:*"];
    let ranges = ranges.map(|range| Some(range.parse::<EntityBytes>().expect(range)));
    let of = |scope, entity_bytes| ScopeOptions { scope, entity_bytes, duplicates: false };
    let entities = ranges.into_iter().chain([None]).map(|range| of(DagScope::Entity, range));
    let others = [DagScope::Block, DagScope::File, DagScope::All].map(|scope| of(scope, None));
    let part = "5000:90000".parse::<EntityBytes>().ok();
    others.into_iter().chain(entities).chain([of(DagScope::File, part)]).collect()
}

/// The blocks of a request as in an archive.
pub async fn expected(source: &TestSource, root: Cid, path: &str, options: ScopeOptions) -> Vec<Block> {
    let blocks: Arc<MemoryBlocks> = {
        let all = MemoryBlocks::new();
        for cid in content_of(source, root).await {
            all.insert(&source.blocks.peek(&cid).expect("is stored"));
        }
        Arc::new(all)
    };
    let resolved = content::walk::resolve(&*blocks, root, &names(path)).await.expect(path);
    let limits = ScopeLimits::default();
    let stream = scope::blocks(blocks, resolved.passed, resolved.block, options, limits);
    stream.try_collect().await.expect("is complete")
}

/// All CIDs below a root.
async fn content_of(source: &TestSource, root: Cid) -> HashSet<Cid> {
    let (mut found, mut stack) = (HashSet::new(), vec![root]);
    while let Some(cid) = stack.pop() {
        if BlockKey::of(&cid).is_some()
            && found.insert(cid)
            && let Some(block) = source.blocks.peek(&cid)
        {
            stack.extend(content::dag::links(&block).unwrap_or_default());
        }
    }
    found.retain(|cid| source.blocks.peek(cid).is_some());
    found
}

/// A dag-cbor block that is a list of links.
pub fn links(cids: &[Cid]) -> Block {
    let [high, low] = u16::try_from(cids.len()).expect("few").to_be_bytes();
    let mut out = match cids.len() {
        ..24 => vec![0x80 | low],
        24..256 => vec![0x98, low],
        _ => vec![0x99, high, low],
    };
    for cid in cids {
        let bytes = cid.to_bytes();
        out.extend_from_slice(&[0xd8, 42, 0x58, u8::try_from(bytes.len() + 1).expect("short"), 0]);
        out.extend_from_slice(&bytes);
    }
    Block::of(codec::DAG_CBOR, hashes::SHA2_256, 32, Bytes::from(out)).expect("a block")
}

/// A raw block.
pub fn raw(data: Vec<u8>) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, data.into()).expect("a block")
}
