//! [`Whole`]: the blocks of an archive, each checked against the policy.
//!
//! Goals: an archive of a DAG with withheld content is rejected before its head if the content is known by then
//! ([`LocalBlocks`]), and is otherwise aborted; an incomplete archive never looks complete.
//!
//! Plain rules are checked at the root of each path. Rules that are hashes of paths can only be checked with the path:
//! so, while there are any, the paths of all directories are recorded, from their root and from each directory above
//! them, and each of their entries is checked. That costs some hashes for each path of an entry, and a few blocks can
//! have any number of paths: so each path is checked once, counts against the request's processor budget
//! ([`content::work`]), and a block with many paths is checked in `get`, which yields in between.
//!
//! Non-goals: hashes of paths through documents (such as dag-cbor), with more than [`DEPTH_MAX`] names, longer than
//! [`PATH_BYTES_MAX`], or in DAGs with more than [`DIRECTORY_PATHS_MAX`] directory paths.

use crate::resolve::source::RootSource;
use content::fingerprints::Fingerprints;
use content::unixfs::dir::{self, NamedLinks};
use content::walk::{Resolved, joined};
use content::{Block, BlockKey, BlockSource, Cid, Policy, ReadAhead, SourceError, Verdict, Work, codec};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of names in a recorded path.
const DEPTH_MAX: usize = 16;
/// The maximum length of a checked path, in bytes: no URL has a longer one.
const PATH_BYTES_MAX: usize = 16 * 1024;
/// The maximum number of recorded directory paths, each of which needs some 100 bytes besides its text.
const DIRECTORY_PATHS_MAX: usize = 65_536;
/// The maximum size of these paths together, in bytes.
const DIRECTORY_PATHS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The maximum number of paths that are checked without yielding.
const PATHS_WITHOUT_YIELD_MAX: usize = 256;
/// The processor cost of checking a path, in steps: five hashes.
const STEPS_PER_RULE: u64 = 32;

/// The blocks of one archive.
#[derive(Clone)]
pub struct Whole {
    source: Arc<dyn BlockSource>,
    policy: Arc<dyn Policy>,
    work: Work,
    /// The blocks that prove the path to the archive's root. What else is below them is not in the archive.
    proof: Arc<[Cid]>,
    paths: Arc<Mutex<DirectoryPaths>>,
}

/// The known paths of directories.
#[derive(Default)]
struct DirectoryPaths {
    /// By directory; those of an inner shard are those of its directory.
    of: HashMap<BlockKey, PathsOfDirectory>,
    seen: Fingerprints,
    bytes: usize,
}

/// The known paths of one directory.
#[derive(Default)]
struct PathsOfDirectory {
    paths: Vec<Arc<DirectoryPath>>,
    /// The number of paths with which its entries were checked.
    checked: usize,
    /// Whether the directory as its own root is among them.
    is_root: bool,
}

#[derive(Hash)]
struct DirectoryPath {
    root: Cid,
    path: String,
    depth: usize,
    is_shard: bool,
}

/// The entries of a directory to check, with some of its paths.
struct Entries {
    links: NamedLinks,
    paths_to_check: Vec<Arc<DirectoryPath>>,
    /// The number of its paths that will have been checked.
    checked_after: usize,
    /// Whether the last path is the directory as its own root.
    is_root: bool,
    /// The entry that is being checked, and the index of the next path.
    at: Option<((String, Cid), usize)>,
}

impl Whole {
    /// The blocks below the end of a resolved path.
    ///
    /// # Errors
    /// [`SourceError::Refused`] or [`SourceError::RefusedPath`] if the policy is known to withhold something there.
    pub async fn below(
        source: Arc<dyn BlockSource>,
        policy: Arc<dyn Policy>,
        resolved: &Resolved,
        segments: &[String],
    ) -> Result<Self, SourceError> {
        resolved.check_below(&*policy, segments)?;
        let mut paths = DirectoryPaths::default();
        for (root, rest) in resolved.ways(segments).filter(|(_, rest)| !rest.is_empty()) {
            let directory = DirectoryPath { root: *root, path: joined(rest, None), depth: rest.len(), is_shard: false };
            paths.add(resolved.block.cid(), directory);
        }
        let (work, proof) = (source.work(), resolved.passed.as_slice().into());
        let whole = Self { source, policy, work, proof, paths: Arc::new(Mutex::new(paths)) };
        whole.check_block(&resolved.block).await?;
        Ok(whole)
    }

    fn paths(&self) -> MutexGuard<'_, DirectoryPaths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a block of the archive.
    async fn check_block(&self, block: &Block) -> Result<(), SourceError> {
        let Some(mut entries) = self.entries(block)? else { return Ok(()) };
        while self.check_entries(&mut entries)? {
            self.work.turn().await?;
        }
        self.paths().mark_checked(block.cid(), &entries);
        Ok(())
    }

    /// Checks a block with few paths without yielding; returns whether it was checked and is allowed.
    fn check_without_yield(&self, block: &Block) -> bool {
        let Ok(entries) = self.entries(block) else { return false };
        let Some(mut entries) = entries else { return true };
        if entries.links.left().saturating_mul(entries.paths_to_check.len()) > PATHS_WITHOUT_YIELD_MAX {
            return false;
        }
        if !matches!(self.check_entries(&mut entries), Ok(false)) {
            return false;
        }
        self.paths().mark_checked(block.cid(), &entries);
        true
    }

    /// The entries of a block to check.
    fn entries(&self, block: &Block) -> Result<Option<Entries>, SourceError> {
        let (policy, cid) = (&*self.policy, block.cid());
        // A leaf has no links.
        if !policy.decides_paths() || cid.codec() == codec::RAW || self.proof.contains(cid) {
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
        let (paths_to_check, checked_after, is_root) = self.paths().unchecked(cid);
        Ok(Some(Entries { links, paths_to_check, checked_after, is_root, at: None }))
    }

    /// Checks entries until it is time to yield; returns whether there are more.
    fn check_entries(&self, entries: &mut Entries) -> Result<bool, SourceError> {
        let Entries { links, paths_to_check, at, .. } = entries;
        while !self.work.is_due() {
            match at {
                None => match links.next() {
                    None => return Ok(false),
                    Some(link) => {
                        self.work.charge_text(link.0.len());
                        *at = Some((link, 0));
                    }
                },
                Some(((name, child), next)) => match paths_to_check.get(*next) {
                    None => *at = None,
                    Some(directory) => {
                        *next += 1;
                        self.check_entry(directory, name, child)?;
                    }
                },
            }
        }
        Ok(true)
    }

    fn check_entry(&self, directory: &DirectoryPath, name: &str, child: &Cid) -> Result<(), SourceError> {
        let DirectoryPath { root, path, depth, .. } = directory;
        if name.is_empty() {
            self.work.charge_text(path.len());
            self.paths().add(child, DirectoryPath { root: *root, path: path.clone(), depth: *depth, is_shard: true });
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
            // The path is not named: the rule may be its hash, which does not disclose it.
            verdict => return Err(SourceError::Refused { cid: *root, verdict }),
        }
        if child.codec() == codec::DAG_PB && *depth < DEPTH_MAX {
            self.paths().add(child, DirectoryPath { root: *root, path, depth: depth + 1, is_shard: false });
        }
        Ok(())
    }
}

impl DirectoryPaths {
    /// The unchecked paths of a directory: those that were found since it was last checked, and, unless it is a shard,
    /// the directory as its own root, which is last then; and the number of its paths that will have been checked.
    fn unchecked(&self, cid: &Cid) -> (Vec<Arc<DirectoryPath>>, usize, bool) {
        let itself = || Arc::new(DirectoryPath { root: *cid, path: String::new(), depth: 0, is_shard: false });
        let Some(known) = BlockKey::of(cid).and_then(|key| self.of.get(&key)) else {
            return (vec![itself()], 0, true);
        };
        let mut paths_to_check: Vec<Arc<DirectoryPath>> = known.paths.iter().skip(known.checked).cloned().collect();
        let is_root = !known.is_root && !known.paths.iter().any(|directory| directory.is_shard);
        paths_to_check.extend(is_root.then(itself));
        (paths_to_check, known.paths.len(), is_root)
    }

    /// Records that all entries of a directory were checked.
    fn mark_checked(&mut self, cid: &Cid, entries: &Entries) {
        let Some(key) = BlockKey::of(cid) else { return };
        if self.of.len() >= DIRECTORY_PATHS_MAX && !self.of.contains_key(&key) {
            return;
        }
        let known = self.of.entry(key).or_default();
        known.is_root |= entries.is_root;
        // Another task may have checked the same paths meanwhile.
        known.checked = known.checked.max(entries.checked_after);
    }

    fn add(&mut self, cid: &Cid, directory: DirectoryPath) {
        let bytes = self.bytes + directory.path.len();
        let Some(key) =
            BlockKey::of(cid).filter(|_| self.seen.len() < DIRECTORY_PATHS_MAX && bytes <= DIRECTORY_PATHS_BYTES_MAX)
        else {
            return;
        };
        if self.seen.insert((key, &directory)) {
            self.bytes = bytes;
            self.of.entry(key).or_default().paths.push(Arc::new(directory));
        }
    }
}

impl Whole {
    /// A block that is being fetched, unless it is withheld.
    fn checked(
        &self,
        fetched: BoxFuture<'static, Result<Block, SourceError>>,
    ) -> BoxFuture<'static, Result<Block, SourceError>> {
        let whole = self.clone();
        async move {
            let block = fetched.await?;
            whole.check_block(&block).await?;
            Ok(block)
        }
        .boxed()
    }
}

impl BlockSource for Whole {
    /// A withheld block is not returned here, so that the reader calls `get` and receives the error.
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.source.peek(cid).filter(|block| self.check_without_yield(block))
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.source.inline(cid).filter(|block| self.check_without_yield(block))
    }

    fn work(&self) -> Work {
        self.work.clone()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.checked(self.source.get(cid))
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.checked(self.source.get_ahead(cid, ahead))
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.source.has(cid)
    }
}

/// The locally available blocks of a request, to check an archive before it begins.
pub struct LocalBlocks {
    source: Arc<RootSource>,
    work: Work,
}

impl LocalBlocks {
    /// The blocks of a request, with a processor budget of their own.
    pub fn new(source: &Arc<RootSource>, steps_max: u64) -> Self {
        Self { source: Arc::clone(source), work: Work::new(steps_max) }
    }
}

impl BlockSource for LocalBlocks {
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
    use content::work::{STEPS_PER_BLOCK_MAX, STEPS_PER_YIELD};
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
    async fn each_path_is_checked_once_with_yields() {
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
        let longest = world.source.1.longest_run();
        assert!(longest < STEPS_PER_YIELD + STEPS_PER_BLOCK_MAX, "{longest}");
        assert!(!asked.contains_key(&(world.leaf, String::new())));
    }

    #[tokio::test]
    async fn withheld_paths_are_found_in_any_position() {
        for path in ["n0", "n199", "n0/n199", "n199/n0", "n199/n199"] {
            let world = world(200, u64::MAX, Some(path));
            let refused = match world.whole().await {
                Ok(whole) => whole.get(world.inner.cid()).await.map(|_| ()),
                Err(error) => Err(error),
            };
            // The rule is a hash, so the error must not tell which of the paths it withholds.
            let expected = SourceError::Refused { cid: *world.root.cid(), verdict: Verdict::Gone };
            assert_eq!(refused, Err(expected), "{path}");
        }
    }

    #[tokio::test]
    async fn more_paths_than_the_budget_allows_are_an_error() {
        let max = 100_000;
        let world = world(1000, max, None);
        let whole = world.whole().await.expect("nothing is withheld");
        assert_eq!(whole.get(world.inner.cid()).await, Err(SourceError::TooMuchWork { max }));
        let asked = world.policy.asked.lock().expect("is sound").len() as u64;
        assert!(asked < (max + STEPS_PER_YIELD) / STEPS_PER_RULE, "{asked}");
    }
}
