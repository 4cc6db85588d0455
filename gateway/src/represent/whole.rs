//! [`Whole`]: the blocks of an archive, each checked against the policy.
//!
//! Goals: an archive of a DAG with withheld content is rejected before its head if the content is known by then
//! ([`Nearby`]), and is otherwise aborted; an incomplete archive never looks complete.
//!
//! Plain rules are checked at the root of each path. Rules that are hashes of paths can only be checked with the path:
//! so, while there are any, the paths of all directories are recorded, from their root and from each directory above
//! them, and each of their entries is checked. That costs some hashes for each path of an entry, and a few blocks can
//! have any number of paths: so each path is checked once, counts against the request's processor budget
//! ([`content::work`]), and a block with many paths is checked in `get`, which yields in between.
//!
//! Non-goals: hashes of paths through documents (such as dag-cbor), with more than [`DEPTH_MAX`] names, longer than
//! [`PATH_BYTES_MAX`], or in DAGs with more than [`PLACES_MAX`] directory paths.

use crate::resolve::source::RootSource;
use content::fingerprints::Fingerprints;
use content::unixfs::dir::{self, NamedLinks};
use content::walk::{Resolved, joined};
use content::{Block, BlockKey, BlockSource, Cid, Policy, SourceError, Verdict, Work, codec};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of names in a recorded path.
const DEPTH_MAX: usize = 16;
/// The maximum length of a checked path, in bytes: no URL has a longer one.
const PATH_BYTES_MAX: usize = 16 * 1024;
/// The maximum number of recorded directory paths, each of which needs some 100 bytes besides its text.
const PLACES_MAX: usize = 65_536;
/// The maximum size of these paths together, in bytes.
const PLACES_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The maximum number of paths that are checked without yielding.
const PATHS_AT_ONCE: usize = 256;
/// The processor cost of checking a path, in steps: five hashes.
const STEPS_PER_RULE: u64 = 32;

/// The blocks of one archive.
#[derive(Clone)]
pub struct Whole {
    source: Arc<dyn BlockSource>,
    policy: Arc<dyn Policy>,
    work: Work,
    /// The blocks that prove the path to the archive's root. What else is below them is not in the archive.
    way: Arc<[Cid]>,
    places: Arc<Mutex<Places>>,
}

/// The known paths of directories.
#[derive(Default)]
struct Places {
    /// By directory; those of an inner shard are those of its directory.
    of: HashMap<BlockKey, Known>,
    seen: Fingerprints,
    bytes: usize,
}

/// The known paths of one directory.
#[derive(Default)]
struct Known {
    places: Vec<Arc<Place>>,
    /// The number of paths with which its entries were checked.
    asked: usize,
    /// Whether the directory as its own root is among them.
    is_root: bool,
}

#[derive(Hash)]
struct Place {
    root: Cid,
    path: String,
    depth: usize,
    is_shard: bool,
}

/// The entries of a directory to check, with some of its paths.
struct Entries {
    links: NamedLinks,
    here: Vec<Arc<Place>>,
    /// The number of its paths that will have been checked.
    upto: usize,
    /// Whether the last path is the directory as its own root.
    is_root: bool,
    /// The entry that is being checked, and the index of the next path.
    at: Option<((String, Cid), usize)>,
}

impl Whole {
    /// The blocks below the end of a resolved path.
    ///
    /// # Errors
    /// [`SourceError::Refused`] if the policy is known to withhold something there.
    pub async fn below(
        source: Arc<dyn BlockSource>,
        policy: Arc<dyn Policy>,
        resolved: &Resolved,
        segments: &[String],
    ) -> Result<Self, SourceError> {
        resolved.check_below(&*policy, segments)?;
        let mut places = Places::default();
        for (root, rest) in resolved.ways(segments).filter(|(_, rest)| !rest.is_empty()) {
            let place = Place { root: *root, path: joined(rest, None), depth: rest.len(), is_shard: false };
            places.add(resolved.block.cid(), place);
        }
        let (work, way) = (source.work(), resolved.passed.as_slice().into());
        let whole = Self { source, policy, work, way, places: Arc::new(Mutex::new(places)) };
        whole.pass(&resolved.block).await?;
        Ok(whole)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a block of the archive.
    async fn pass(&self, block: &Block) -> Result<(), SourceError> {
        let Some(mut entries) = self.entries(block)? else { return Ok(()) };
        while self.ask(&mut entries)? {
            self.work.turn().await?;
        }
        self.places().asked(block.cid(), &entries);
        Ok(())
    }

    /// Checks a block with few paths without yielding; returns whether it was checked and is allowed.
    fn passes_at_once(&self, block: &Block) -> bool {
        let Ok(entries) = self.entries(block) else { return false };
        let Some(mut entries) = entries else { return true };
        if entries.links.left().saturating_mul(entries.here.len()) > PATHS_AT_ONCE {
            return false;
        }
        if !matches!(self.ask(&mut entries), Ok(false)) {
            return false;
        }
        self.places().asked(block.cid(), &entries);
        true
    }

    /// The entries of a block to check.
    fn entries(&self, block: &Block) -> Result<Option<Entries>, SourceError> {
        let (policy, cid) = (&*self.policy, block.cid());
        // A leaf has no links.
        if !policy.decides_paths() || cid.codec() == codec::RAW || self.way.contains(cid) {
            return Ok(None);
        }
        self.work.charge(STEPS_PER_RULE);
        match policy.check_below(cid, "") {
            Verdict::Allow => {}
            verdict => return Err(SourceError::Refused { cid: *cid, verdict }),
        }
        if !policy.hides_paths() || cid.codec() != codec::DAG_PB {
            return Ok(None);
        }
        self.work.charge_decoding(block);
        let links = dir::named_links(block);
        if links.left() == 0 {
            return Ok(None);
        }
        let (here, upto, is_root) = self.places().to_ask(cid);
        Ok(Some(Entries { links, here, upto, is_root, at: None }))
    }

    /// Checks entries until it is time to yield; returns whether there are more.
    fn ask(&self, entries: &mut Entries) -> Result<bool, SourceError> {
        let Entries { links, here, at, .. } = entries;
        while !self.work.is_due() {
            match at {
                None => match links.next() {
                    None => return Ok(false),
                    Some(link) => {
                        self.work.charge_text(link.0.len());
                        *at = Some((link, 0));
                    }
                },
                Some(((name, child), next)) => match here.get(*next) {
                    None => *at = None,
                    Some(place) => {
                        *next += 1;
                        self.ask_about(place, name, child)?;
                    }
                },
            }
        }
        Ok(true)
    }

    fn ask_about(&self, place: &Place, name: &str, child: &Cid) -> Result<(), SourceError> {
        let Place { root, path, depth, .. } = place;
        if name.is_empty() {
            self.work.charge_text(path.len());
            self.places().add(child, Place { root: *root, path: path.clone(), depth: *depth, is_shard: true });
            return Ok(());
        }
        let bytes = path.len() + 1 + name.len();
        if bytes > PATH_BYTES_MAX {
            return Ok(());
        }
        self.work.charge(STEPS_PER_RULE);
        self.work.charge_text(bytes);
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        match self.policy.check_path(root, &path) {
            Verdict::Allow => {}
            verdict => return Err(SourceError::Refused { cid: *root, verdict }),
        }
        if child.codec() == codec::DAG_PB && *depth < DEPTH_MAX {
            self.places().add(child, Place { root: *root, path, depth: depth + 1, is_shard: false });
        }
        Ok(())
    }
}

impl Places {
    /// The unchecked paths of a directory: those that were found since it was last checked, and, unless it is a shard,
    /// the directory as its own root, which is last then; and the number of its paths that will have been checked.
    fn to_ask(&self, cid: &Cid) -> (Vec<Arc<Place>>, usize, bool) {
        let itself = || Arc::new(Place { root: *cid, path: String::new(), depth: 0, is_shard: false });
        let Some(known) = BlockKey::of(cid).and_then(|key| self.of.get(&key)) else {
            return (vec![itself()], 0, true);
        };
        let mut here: Vec<Arc<Place>> = known.places.iter().skip(known.asked).cloned().collect();
        let is_root = !known.is_root && !known.places.iter().any(|place| place.is_shard);
        here.extend(is_root.then(itself));
        (here, known.places.len(), is_root)
    }

    /// Records that all entries of a directory were checked.
    fn asked(&mut self, cid: &Cid, entries: &Entries) {
        let Some(key) = BlockKey::of(cid) else { return };
        if self.of.len() >= PLACES_MAX && !self.of.contains_key(&key) {
            return;
        }
        let known = self.of.entry(key).or_default();
        known.is_root |= entries.is_root;
        // Another task may have checked the same paths meanwhile.
        known.asked = known.asked.max(entries.upto);
    }

    fn add(&mut self, cid: &Cid, place: Place) {
        let bytes = self.bytes + place.path.len();
        let Some(key) = BlockKey::of(cid).filter(|_| self.seen.len() < PLACES_MAX && bytes <= PLACES_BYTES_MAX) else {
            return;
        };
        if self.seen.insert((key, &place)) {
            self.bytes = bytes;
            self.of.entry(key).or_default().places.push(Arc::new(place));
        }
    }
}

impl BlockSource for Whole {
    /// A withheld block is not returned here, so that the reader calls `get` and receives the error.
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.source.peek(cid).filter(|block| self.passes_at_once(block))
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.source.inline(cid).filter(|block| self.passes_at_once(block))
    }

    fn work(&self) -> Work {
        self.work.clone()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (whole, fetched) = (self.clone(), self.source.get(cid));
        async move {
            let block = fetched.await?;
            whole.pass(&block).await?;
            Ok(block)
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.source.has(cid)
    }
}

/// The locally available blocks of a request, to check an archive before it begins.
pub struct Nearby {
    source: Arc<RootSource>,
    work: Work,
}

impl Nearby {
    /// The blocks of a request, with a processor budget of their own.
    pub fn new(source: &Arc<RootSource>, steps_max: u64) -> Self {
        Self { source: Arc::clone(source), work: Work::new(steps_max) }
    }
}

impl BlockSource for Nearby {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.source.peek(cid)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.source.inline(cid)
    }

    fn work(&self) -> Work {
        self.work.clone()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let found = self.source.inline(cid).or_else(|| self.source.peek(cid));
        let missing = || match self.source.policy().check(cid) {
            Verdict::Allow => SourceError::NotFound { cid: *cid },
            verdict => SourceError::Refused { cid: *cid, verdict },
        };
        ready(found.ok_or_else(missing)).boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(self.source.peek(cid).is_some())).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::MemoryBlocks;
    use content::work::{STEPS_PER_BLOCK_MAX, STEPS_PER_TURN};
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A policy with hashes of paths, one of which is of `withheld`; it counts how often each path is checked.
    #[derive(Default)]
    struct Hashes {
        withheld: Option<(Cid, String)>,
        asked: Mutex<HashMap<(Cid, String), u64>>,
        blocks: AtomicU64,
    }

    impl Policy for Hashes {
        fn generation(&self) -> u64 {
            0
        }

        fn check(&self, _cid: &Cid) -> Verdict {
            Verdict::Allow
        }

        fn decides_paths(&self) -> bool {
            true
        }

        fn hides_paths(&self) -> bool {
            true
        }

        fn check_path(&self, root: &Cid, path: &str) -> Verdict {
            *self.asked.lock().expect("is sound").entry((*root, path.to_owned())).or_default() += 1;
            let is_it = self.withheld.as_ref().is_some_and(|(of, below)| of == root && below == path);
            if is_it { Verdict::Gone } else { Verdict::Allow }
        }

        fn check_below(&self, _root: &Cid, _path: &str) -> Verdict {
            self.blocks.fetch_add(1, Ordering::Relaxed);
            Verdict::Allow
        }
    }

    /// Blocks with a processor budget.
    struct Metered(MemoryBlocks, Work);

    impl BlockSource for Metered {
        fn peek(&self, cid: &Cid) -> Option<Block> {
            self.0.peek(cid)
        }

        fn work(&self) -> Work {
            self.1.clone()
        }

        fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
            self.0.get(cid)
        }

        fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
            self.0.has(cid)
        }
    }

    fn field(tag: u8, value: &[u8], out: &mut Vec<u8>) {
        assert!(value.len() < 128, "one byte of length");
        out.extend([tag << 3 | 2, value.len() as u8]);
        out.extend_from_slice(value);
    }

    /// A directory of `count` identical entries, `n0` and so on.
    fn wide(blocks: &MemoryBlocks, count: usize, child: &Cid) -> Block {
        let mut data = Vec::new();
        for name in (0..count).map(|index| format!("n{index}")) {
            let mut link = Vec::new();
            field(1, &child.to_bytes(), &mut link);
            field(2, name.as_bytes(), &mut link);
            field(2, &link, &mut data);
        }
        field(1, &[8, 1], &mut data);
        let block = Block::of(codec::DAG_PB, 0x12, 32, data.into()).expect("a block");
        blocks.insert(&block);
        block
    }

    fn resolved(block: &Block) -> Resolved {
        Resolved { block: block.clone(), roots: vec![*block.cid()], passed: Vec::new(), remainder: Vec::new() }
    }

    struct World {
        source: Arc<Metered>,
        policy: Arc<Hashes>,
        root: Block,
        inner: Block,
        leaf: Cid,
    }

    /// `count` times the same directory of `count` times the same leaf.
    fn world(count: usize, steps_max: u64, withheld: Option<&str>) -> World {
        let blocks = MemoryBlocks::new();
        let leaf = *Block::of(codec::RAW, 0x12, 32, "leaf".into()).expect("a block").cid();
        let inner = wide(&blocks, count, &leaf);
        let root = wide(&blocks, count, inner.cid());
        let withheld = withheld.map(|path| (*root.cid(), path.to_owned()));
        let policy = Arc::new(Hashes { withheld, ..Hashes::default() });
        World { source: Arc::new(Metered(blocks, Work::new(steps_max))), policy, root, inner, leaf }
    }

    impl World {
        async fn whole(&self) -> Result<Whole, SourceError> {
            let (source, policy) = (Arc::clone(&self.source) as _, Arc::clone(&self.policy) as _);
            Whole::below(source, policy, &resolved(&self.root), &[]).await
        }
    }

    #[tokio::test]
    async fn each_path_is_asked_about_once_and_in_turns() {
        let world = world(200, u64::MAX, None);
        let whole = world.whole().await.expect("nothing is withheld");
        // So many paths need a yield.
        assert_eq!(whole.peek(world.inner.cid()), None);
        for _ in 0..3 {
            assert!(whole.get(world.inner.cid()).await.is_ok());
            world.source.1.turn().await.expect("without limit");
            assert!(whole.peek(world.inner.cid()).is_some(), "all of it was asked about");
        }
        let asked = world.policy.asked.lock().expect("is sound");
        // Each entry of the root, each of the other by its 200 paths, and each by its own directory.
        assert_eq!(asked.len(), 200 + 200 * 200 + 200);
        assert!(asked.values().all(|times| *times == 1));
        let longest = world.source.1.longest_turn();
        assert!(longest < STEPS_PER_TURN + STEPS_PER_BLOCK_MAX, "{longest}");
        assert!(!asked.contains_key(&(world.leaf, String::new())));
    }

    #[tokio::test]
    async fn whatever_is_withheld_is_found_wherever_it_stands() {
        for path in ["n0", "n199", "n0/n199", "n199/n0", "n199/n199"] {
            let world = world(200, u64::MAX, Some(path));
            let refused = match world.whole().await {
                Ok(whole) => whole.get(world.inner.cid()).await.map(|_| ()),
                Err(error) => Err(error),
            };
            let expected = SourceError::Refused { cid: *world.root.cid(), verdict: Verdict::Gone };
            assert_eq!(refused, Err(expected), "{path}");
        }
    }

    #[tokio::test]
    async fn more_paths_than_the_budget_has_steps_for_end_in_an_error() {
        let max = 100_000;
        let world = world(1000, max, None);
        let whole = world.whole().await.expect("nothing is withheld");
        assert_eq!(whole.get(world.inner.cid()).await, Err(SourceError::TooMuchWork { max }));
        let asked = world.policy.asked.lock().expect("is sound").len() as u64;
        assert!(asked < (max + STEPS_PER_TURN) / STEPS_PER_RULE, "{asked}");
    }
}
