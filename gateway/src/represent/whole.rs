//! [`Whole`]: the blocks of an archive, in which nothing may be missing and nothing that is withheld may be.
//!
//! Goals: an archive of a DAG in which something is withheld is refused before its head if that is known by then
//! ([`Nearby`]), and else broken off; one that looks whole and is not is never made.
//!
//! What rules name in plain is found as soon as the root of such a path comes along. Rules that are hashes of paths say
//! nothing until somebody has the path: so, as long as there are any, the paths of all directories are remembered from
//! their root and from each directory above them, and each of their entries is asked about. That costs some hashes for
//! each path of an entry, and a few blocks have any number of paths: so each is asked about once, all of it counts as
//! the request's work ([`content::work`]), and a block with more than a few is not at hand but fetched, which yields in
//! between.
//!
//! Non-goals: hashes of paths that lead through documents (dag-cbor and its like), or deeper than [`DEPTH_MAX`] names,
//! or longer than [`PATH_BYTES_MAX`], or in DAGs of more than [`PLACES_MAX`] places of directories.

use crate::resolve::source::RootSource;
use content::fingerprints::Fingerprints;
use content::unixfs::dir::{self, NamedLinks};
use content::walk::{Resolved, joined};
use content::{Block, BlockKey, BlockSource, Cid, Policy, SourceError, Verdict, Work, codec};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many names of a path are remembered.
const DEPTH_MAX: usize = 16;
/// The longest path that is asked about, in bytes: no address has a longer one.
const PATH_BYTES_MAX: usize = 16 * 1024;
/// How many places of directories are remembered, which may take some 100 bytes each besides their paths.
const PLACES_MAX: usize = 65_536;
/// What the paths of these may take together, in bytes.
const PLACES_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Paths that are asked about without yielding in between.
const PATHS_AT_ONCE: usize = 256;
/// What asking about one path counts for, in steps: five hashes.
const STEPS_PER_RULE: u64 = 32;

/// The blocks of one archive.
#[derive(Clone)]
pub struct Whole {
    source: Arc<dyn BlockSource>,
    policy: Arc<dyn Policy>,
    work: Work,
    /// What leads to the archive's root, and is in it to prove that. What else lies below these blocks is not.
    way: Arc<[Cid]>,
    places: Arc<Mutex<Places>>,
}

/// Where directories are.
#[derive(Default)]
struct Places {
    /// By directory; those of an inner shard are its directory's.
    of: HashMap<BlockKey, Known>,
    seen: Fingerprints,
    bytes: usize,
}

/// The places of one directory.
#[derive(Default)]
struct Known {
    places: Vec<Arc<Place>>,
    /// How many of them have been asked about with each of its entries.
    asked: usize,
    /// Whether it is its own root among them.
    is_root: bool,
}

#[derive(Hash)]
struct Place {
    root: Cid,
    path: String,
    depth: usize,
    is_shard: bool,
}

/// The entries of a directory that are to be asked about, at some of its places.
struct Entries {
    links: NamedLinks,
    here: Vec<Arc<Place>>,
    /// How many of its places are asked about then.
    upto: usize,
    /// Whether the last of these is the directory as its own root.
    is_root: bool,
    /// The entry that is being asked about, and the place that comes next.
    at: Option<((String, Cid), usize)>,
}

impl Whole {
    /// The blocks below the end of a path that was walked.
    ///
    /// # Errors
    /// [`SourceError::Refused`] if something there is known to be withheld.
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

    /// Looks at a block that is about to be part of the archive.
    async fn pass(&self, block: &Block) -> Result<(), SourceError> {
        let Some(mut entries) = self.entries(block)? else { return Ok(()) };
        while self.ask(&mut entries)? {
            self.work.turn().await?;
        }
        self.places().asked(block.cid(), &entries);
        Ok(())
    }

    /// The same for a block that has few paths; whether it is one, and may be part of the archive.
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

    /// The entries of a block that are to be asked about.
    fn entries(&self, block: &Block) -> Result<Option<Entries>, SourceError> {
        let (policy, cid) = (&*self.policy, block.cid());
        // Below a leaf there is nothing.
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

    /// Asks about some of the entries, until others are to have a turn; whether there are more.
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
    /// The places of a directory that were not asked about: those that were found since it was met last, and if it is
    /// no shard of another, itself, which is the last then; and how many of its places are asked about with these.
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

    /// Remembers that all entries of a directory were asked about.
    fn asked(&mut self, cid: &Cid, entries: &Entries) {
        let Some(key) = BlockKey::of(cid) else { return };
        if self.of.len() >= PLACES_MAX && !self.of.contains_key(&key) {
            return;
        }
        let known = self.of.entry(key).or_default();
        known.is_root |= entries.is_root;
        // Others may have asked about the same places meanwhile.
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
    /// What must not be part of the archive is not at hand, so that it is asked for, and why it is refused is told.
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

/// What is at hand of a request's blocks, and nothing else: to find out what an archive would hold before it is begun.
pub struct Nearby {
    source: Arc<RootSource>,
    work: Work,
}

impl Nearby {
    /// The blocks of a request, within a processor budget of their own.
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

    /// Rules that are hashes of paths, one of which is of `withheld`; it counts how often each path is asked about.
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

    /// Blocks with a budget.
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

    /// A directory of `count` entries, `n0` and so on, that all are the same.
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
        // So many paths are not asked about without a yield.
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
