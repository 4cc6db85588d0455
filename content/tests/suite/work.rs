//! The cost of malicious content: steps for what is read and emitted, and between two yields. Steps instead of time, so
//! that the load of the machine does not matter.

use crate::dags::directory;
use crate::directories::shard_node;
use crate::support::*;
use content::dag::walk_all;
use content::redirects::{self, Rules};
use content::scope::{DagScope, ScopeLimits, ScopeOptions};
use content::tar::{TarError, TarLimits};
use content::unixfs::dir;
use content::unixfs::file::{FileReader, ReadError, ReadLimits, file_size};
use content::work::{STEPS_PER_BLOCK_MAX, STEPS_PER_YIELD};
use content::{Block, BlockSource, Cid, MemoryBlocks, SourceError, Work, codec, ipld};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::StreamExt as _;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const LIMITS: TarLimits =
    TarLimits { depth_max: 1024, entries_max: 4_000, bytes_max: 1 << 30, window_bytes_max: 8 << 20 };
const SCOPE: ScopeLimits =
    ScopeLimits { depth_max: 1024, seen_max: 100_000, repeated_bytes_max: 1 << 18, look_ahead_bytes_max: 4 << 20 };

/// The blocks of one request, with its budget. Counts the blocks taken, repeats included.
struct Metered {
    source: Arc<dyn BlockSource>,
    blocks: Arc<MemoryBlocks>,
    work: Work,
    taken: AtomicU64,
    consumed_bytes: AtomicU64,
}

impl Metered {
    fn new(blocks: &Arc<MemoryBlocks>, remote: bool, steps_max: u64) -> Arc<Self> {
        let source: Arc<dyn BlockSource> = match remote {
            true => Arc::new(RemoteSource::new(blocks.clone(), 3, 2)),
            false => blocks.clone(),
        };
        let work = Work::new(steps_max);
        Arc::new(Self {
            source,
            blocks: blocks.clone(),
            work,
            taken: AtomicU64::new(0),
            consumed_bytes: AtomicU64::new(0),
        })
    }

    fn count(&self, block: Option<&Block>) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.consumed_bytes.fetch_add(block.map_or(0, |block| block.data().len() as u64), Ordering::Relaxed);
    }

    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Checks the two rules of [`content::work`], and that steps are counted for every block.
    fn check(&self, what: &str, root: &Block) -> Result<(), TestCaseError> {
        let (spent, emitted) = (self.work.spent(), self.work.emitted_bytes());
        let read = self.consumed_bytes.load(Ordering::Relaxed) + root.data().len() as u64;
        let bound = 64 + 8 * self.taken() + read / 2 + emitted / 4;
        prop_assert!(
            spent <= bound,
            "{what}: {spent} steps for {} blocks, {read} bytes, {emitted} emitted",
            self.taken()
        );
        prop_assert!(self.taken() <= 8 + 4 * spent, "{what}: {} blocks in {spent} steps", self.taken());
        let longest = self.work.longest_run();
        prop_assert!(longest <= STEPS_PER_YIELD + 2 * STEPS_PER_BLOCK_MAX, "{what}: {longest} steps without a yield");
        Ok(())
    }
}

impl BlockSource for Metered {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        let block = self.source.peek(cid);
        if block.is_some() {
            self.count(block.as_ref());
        }
        block
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        let block = self.source.inline(cid);
        self.count(block.as_ref());
        block
    }

    fn work(&self) -> Work {
        self.work.clone()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.count(self.blocks.peek(cid).as_ref());
        self.source.get(cid)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.source.has(cid)
    }
}

/// Reads a DAG in all ways, each with a budget of its own.
fn read_in_every_way(blocks: &Arc<MemoryBlocks>, root: &Block, remote: bool) -> Result<(), TestCaseError> {
    let with = |what: &str, read: &mut dyn FnMut(&Arc<Metered>)| {
        let source = Metered::new(blocks, remote, u64::MAX);
        read(&source);
        source.check(what, root)
    };
    with("a TAR", &mut |source| {
        let limits = TarLimits { entries_max: 1_000, ..LIMITS };
        let archive = content::tar::stream(source.clone(), "root".to_owned(), root.clone(), limits);
        block_on(archive.count());
    })?;
    for (scope, duplicates) in [(DagScope::All, false), (DagScope::All, true), (DagScope::Entity, false)] {
        let options = ScopeOptions { scope, entity_bytes: None, duplicates };
        with("a CAR", &mut |source| {
            block_on(content::scope::blocks(source.clone(), Vec::new(), root.clone(), options, SCOPE).count());
        })?;
    }
    with("a listing", &mut |source| {
        block_on(dir::list(source.clone(), root.clone()).take(20_000).count());
    })?;
    with("a page of it", &mut |source| {
        if let Ok(Some(page)) = block_on(dir::list_after(source.clone(), root.clone(), b"e1", None)) {
            block_on(page.take(20_000).count());
        }
    })?;
    with("a path", &mut |source| {
        let segments: Vec<String> = (0..64).map(|_| "e0".to_owned()).collect();
        _ = block_on(content::walk::resolve(&**source, *root.cid(), &segments));
    })?;
    with("a pin", &mut |source| {
        block_on(walk_all(source.clone(), *root.cid(), 8).count());
    })?;
    let Ok(size) = file_size(root) else { return Ok(()) };
    for range in [0..size, size / 2..(size / 2 + 1).min(size)] {
        with("a file", &mut |source| {
            let limits = ReadLimits { window_bytes_max: 1 << 20, shared: None };
            let reader = FileReader::new(source.clone(), root.clone(), range.clone(), limits).expect("a file");
            block_on(reader.count());
        })?;
    }
    Ok(())
}

/// A node of a malicious DAG. Children are earlier nodes, by their number.
#[derive(Debug, Clone)]
enum Spec {
    Raw(usize),
    Inline(usize),
    Symlink(&'static str),
    Directory { entries: Vec<(Name, usize)>, more: usize },
    Chain { levels: usize, child: usize },
    Shard { children: Vec<usize>, below: bool },
    File { children: Vec<usize>, empty: usize },
    Cbor { links: Vec<usize>, broken: bool },
}

#[derive(Debug, Clone)]
enum Name {
    Plain,
    Long(usize),
    Slashes(usize),
    Climbing(usize),
}

impl Name {
    fn text(&self, index: usize) -> String {
        match self {
            Self::Plain => format!("e{index}"),
            Self::Long(bytes) => format!("e{index}{}", "x".repeat(*bytes)),
            Self::Slashes(count) => format!("e{index}{}", "/x".repeat(*count)),
            Self::Climbing(count) => format!("{}e{index}", "../".repeat(*count)),
        }
    }
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        6 => Just(Name::Plain),
        1 => (0_usize..5_000).prop_map(Name::Long),
        1 => (0_usize..200).prop_map(Name::Slashes),
        1 => (0_usize..4).prop_map(Name::Climbing),
    ]
}

fn spec() -> impl Strategy<Value = Spec> {
    let child = || any::<prop::sample::Index>().prop_map(|index| index.index(usize::MAX));
    let children = |max| prop::collection::vec(child(), 0..max);
    prop_oneof![
        (0_usize..3_000).prop_map(Spec::Raw),
        (0_usize..90).prop_map(Spec::Inline),
        prop::sample::select(vec!["e1", "..", "../../..", "/etc/passwd", "a/../b"]).prop_map(Spec::Symlink),
        (prop::collection::vec((name(), child()), 0..12), 0_usize..600)
            .prop_map(|(entries, more)| Spec::Directory { entries, more }),
        (0_usize..300, child()).prop_map(|(levels, child)| Spec::Chain { levels, child }),
        (children(8), any::<bool>()).prop_map(|(children, below)| Spec::Shard { children, below }),
        (children(12), 0_usize..2_000).prop_map(|(children, empty)| Spec::File { children, empty }),
        (children(20), any::<bool>()).prop_map(|(links, broken)| Spec::Cbor { links, broken }),
    ]
}

fn build(blocks: &MemoryBlocks, specs: &[Spec]) -> Vec<Block> {
    let mut built = vec![leaf(blocks, LeafKind::RawCodec, b"leaf")];
    for spec in specs {
        let at = |index: &usize| built[index % built.len()].clone();
        let block = match spec {
            Spec::Raw(bytes) => add(blocks, codec::RAW, vec![7; *bytes]),
            Spec::Inline(bytes) => inline(codec::RAW, &vec![7; *bytes]),
            Spec::Symlink(target) => {
                let data = Message::default().varint(1, SYMLINK).bytes(2, target.as_bytes()).0;
                add(blocks, codec::DAG_PB, pb_node(&[], Some(&data), false))
            }
            Spec::Directory { entries, more } => {
                let some = entries.iter().enumerate().map(|(index, (name, child))| (name.text(index), at(child)));
                let same = at(&entries.len());
                let all: Vec<(String, Block)> =
                    some.chain((0..*more).map(|index| (format!("m{index}"), same.clone()))).collect();
                directory(blocks, &all.iter().map(|(name, block)| (&**name, block)).collect::<Vec<_>>())
            }
            Spec::Chain { levels, child } => {
                (0..*levels).fold(at(child), |below, _| directory(blocks, &[("e0", &below)]))
            }
            Spec::Shard { children, below } => {
                let name = |slot| if *below { format!("{slot}") } else { format!("{slot}e{slot}") };
                let links: Vec<Link> =
                    children.iter().enumerate().map(|(slot, child)| Link::to(*at(child).cid(), &name(slot))).collect();
                let bits = (1_u16 << children.len()) - 1;
                add(blocks, codec::DAG_PB, shard_node(&links, &[bits as u8], 8))
            }
            Spec::File { children, empty } => {
                let files = children.iter().map(at).filter_map(|block| Some((*block.cid(), file_size(&block).ok()?)));
                let nothing = *leaf(blocks, LeafKind::PbFile, b"").cid();
                let mut children: Vec<(Cid, u64)> = files.collect();
                children.extend((0..*empty).map(|_| (nothing, 0)));
                let total = children.iter().try_fold(1_u64, |sum, (_, size)| sum.checked_add(*size));
                // The maximum that the readers traverse.
                match total.is_some_and(|total| total < 1 << 14) {
                    true => add(blocks, codec::DAG_PB, file_node(b"x", &children, true, false)),
                    false => leaf(blocks, LeafKind::PbFile, b"too large"),
                }
            }
            Spec::Cbor { links, broken } => {
                let links: Vec<Cid> = links.iter().map(|child| *at(child).cid()).collect();
                let mut bytes = crate::scopes::cbor_links(&links);
                bytes.extend(broken.then_some(0));
                add(blocks, codec::DAG_CBOR, bytes)
            }
        };
        built.push(block);
    }
    built
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_cost_of_malicious_content_is_linear_in_what_is_read_and_emitted(
        specs in prop::collection::vec(spec(), 1..24), remote: bool,
    ) {
        let blocks = Arc::new(MemoryBlocks::new());
        let built = build(&blocks, &specs);
        let entries: Vec<(String, &Block)> =
            built.iter().rev().enumerate().map(|(index, block)| (format!("e{index}"), block)).collect();
        let top = directory(&blocks, &entries.iter().map(|(name, block)| (&**name, *block)).collect::<Vec<_>>());
        for root in [&top, built.last().expect("not empty")] {
            read_in_every_way(&blocks, root, remote)?;
        }
    }
}

/// A pattern or a path, as repeated segments with an end.
fn repeated() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["/a", "/:a", "/:ab", "/aa", "/b", "/", "/:", "/aaaaaaaaaaaaaaaa"]);
    let end = prop::sample::select(vec!["", "/", "/*", "/x", "/:a"]);
    (part, 1_usize..4_000, end).prop_map(|(part, times, end)| format!("{}{end}", part.repeat(times)))
}

proptest! {
    #[test]
    fn the_cost_of_redirects_is_linear_in_the_file_and_the_path(
        lines in prop::collection::vec((repeated(), repeated(), 1_usize..5_000), 1..6), path in repeated(),
    ) {
        let mut file = String::new();
        for (from, to, times) in lines {
            let room = (redirects::FILE_BYTES_MAX - file.len()) / (from.len() + to.len() + 2);
            file.push_str(&format!("{from} {to}\n").repeat(times.min(room)));
        }
        if let Ok(rules) = Rules::parse(file.as_bytes()) {
            let work = Work::unlimited();
            rules.find(&path, &work);
            // Each placeholder may have the whole path as its value, with three bytes for each.
            let bound = 4 + (file.len() + path.len()) as u64 / 8 + 3 * path.len() as u64;
            prop_assert!(work.spent() <= bound, "{} steps, and not {bound}", work.spent());
            let uninterrupted = 2 * STEPS_PER_YIELD + STEPS_PER_BLOCK_MAX;
            prop_assert!(work.spent() <= uninterrupted, "{} steps without a yield", work.spent());
        }
    }

    #[test]
    fn pages_and_conversions_of_documents_have_bounded_length(
        part in prop::sample::select(vec![
            &b"\x80"[..], b"\xa0", b"\x40", b"\x60", b"\x61\x00", b"\x61\x22", b"\xf6", b"\xf4", b"\x20",
            b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff", b"\xfb\x00\x0f\xff\xff\xff\xff\xff\xff", b"\x81\x81\x81\x80",
            b"\xd8\x2a\x45\x00\x01\x55\x00\x00",
        ]),
        times in 1_u32..60_000, levels in 0_usize..200,
    ) {
        let mut data = b"\x81".repeat(levels);
        data.push(0x9a);
        data.extend(times.to_be_bytes());
        data.extend(part.repeat(times as usize));
        let document = add(&MemoryBlocks::new(), codec::DAG_CBOR, data.clone());
        if let Ok(json) = ipld::convert(&document, codec::DAG_JSON) {
            prop_assert!(json.len() <= 64 + 24 * data.len(), "{} bytes of {}", json.len(), data.len());
        }
        if let Ok(value) = ipld::decode(&document) {
            let limits = ipld::OutlineLimits::default();
            let outline = ipld::outline(&value, limits);
            prop_assert!(outline.lines.len() <= limits.lines, "{} lines", outline.lines.len());
        }
    }
}

/// A directory with `count` entries that all link to `child`.
fn wide(blocks: &MemoryBlocks, count: usize, child: &Block) -> Block {
    let names: Vec<String> = (0..count).map(|index| format!("{index:06}")).collect();
    directory(blocks, &names.iter().map(|name| (&**name, child)).collect::<Vec<_>>())
}

#[test]
fn a_name_with_many_slashes_is_rejected_before_its_entries_are_read() {
    let blocks = Arc::new(MemoryBlocks::new());
    let many = wide(&blocks, 20_000, &leaf(&blocks, LeafKind::RawCodec, b"leaf"));
    let root = directory(&blocks, &[(&*vec!["a"; 8_000].join("/"), &many)]);
    let source = Metered::new(&blocks, false, u64::MAX);
    let first = block_on(content::tar::stream(source.clone(), "root".to_owned(), root.clone(), LIMITS).next());
    assert!(matches!(first, Some(Err(TarError::Name { .. }))), "{first:?}");
    assert!(source.taken() == 0 && source.work.spent() < 5_000, "{} steps", source.work.spent());
    source.check("the TAR", &root).expect("within bounds");
}

#[test]
fn the_cost_of_many_levels_and_a_symlink_is_linear_in_the_paths() {
    let blocks = Arc::new(MemoryBlocks::new());
    let file = leaf(&blocks, LeafKind::RawCodec, b"leaf");
    let data = Message::default().varint(1, SYMLINK).bytes(2, b"x").0;
    let link = add(&blocks, codec::DAG_PB, pb_node(&[], Some(&data), false));
    let many = wide(&blocks, 3_000, &file);
    for jump in [("plain", &file), ("jump/x", &file)] {
        let low = directory(&blocks, &[("link", &link), jump, ("many", &many)]);
        let root = (0..900).fold(low, |below, _| directory(&blocks, &[("d", &below)]));
        let source = Metered::new(&blocks, false, u64::MAX);
        let archive = content::tar::stream(source.clone(), "root".to_owned(), root.clone(), LIMITS);
        assert!(block_on(archive.all(|chunk| std::future::ready(chunk.is_ok()))));
        source.check("the TAR", &root).expect("within bounds");
    }
}

#[test]
fn inner_nodes_without_content_are_not_decoded_for_each_byte() {
    let blocks = Arc::new(MemoryBlocks::new());
    let nothing = leaf(&blocks, LeafKind::PbFile, b"");
    let empty: Vec<(Cid, u64)> = (0..20_000).map(|_| (*nothing.cid(), 0)).collect();
    let inner = add(&blocks, codec::DAG_PB, file_node(b"x", &empty, true, false));
    let children: Vec<(Cid, u64)> = (0..1_000).map(|_| (*inner.cid(), 1)).collect();
    let root = add(&blocks, codec::DAG_PB, file_node(&[], &children, true, false));
    let source = Metered::new(&blocks, false, u64::MAX);
    let reader = FileReader::new(source.clone(), root.clone(), 0..1_000, ReadLimits::default()).expect("a file");
    let last = block_on(reader.fold(None, |_, chunk| std::future::ready(Some(chunk))));
    assert!(matches!(last, Some(Err(ReadError::TooDeep { .. }))), "{last:?}");
    assert!(source.taken() < 40, "{} nodes were decoded", source.taken());
    source.check("the file", &root).expect("within bounds");
}

#[test]
fn path_resolution_fails_when_the_budget_is_used_up() {
    let blocks = Arc::new(MemoryBlocks::new());
    let leaves = wide(&blocks, 10_000, &leaf(&blocks, LeafKind::RawCodec, b"leaf"));
    let root = wide(&blocks, 10_000, &leaves);
    let source = Metered::new(&blocks, false, 1_000);
    let found = block_on(content::walk::resolve(&*source, *root.cid(), &["000000".to_owned(), "000000".to_owned()]));
    assert_eq!(found.err(), Some(SourceError::TooMuchWork { max: 1_000 }.into()));
    let file = balanced(&blocks, &content(1, 100_000), 10, 20, LeafKind::RawCodec);
    let source = Metered::new(&blocks, false, 1_000);
    let reader = FileReader::new(source, file, 0..100_000, ReadLimits::default()).expect("a file");
    let last = block_on(reader.fold(None, |_, chunk| std::future::ready(Some(chunk))));
    assert_eq!(last, Some(Err(SourceError::TooMuchWork { max: 1_000 }.into())));
}

#[test]
fn work_continues_after_a_yield_and_ends_when_dropped() {
    let blocks = Arc::new(MemoryBlocks::new());
    let root = wide(&blocks, 20_000, &leaf(&blocks, LeafKind::RawCodec, b"leaf"));
    let source = Metered::new(&blocks, false, u64::MAX);
    let mut archive = content::tar::stream(source.clone(), "root".to_owned(), root, LIMITS);
    // The names are checked first, with several yields.
    assert!(archive.next().now_or_never().is_none());
    let spent = source.work.spent();
    assert!(spent < STEPS_PER_YIELD + STEPS_PER_BLOCK_MAX, "{spent}");
    let mut turns = 1;
    while archive.next().now_or_never().is_none() {
        turns += 1;
    }
    assert!(turns > 2 && source.work.spent() > spent, "{turns}");
    let spent = source.work.spent();
    drop(archive);
    assert_eq!(source.work.spent(), spent);
}
