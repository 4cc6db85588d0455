//! [`Whole`]: the blocks of an archive, in which nothing may be missing and nothing that is withheld may be.
//!
//! Goals: an archive of a DAG in which some path is withheld is refused, before its head if that is known by then, and else broken
//! off; one that looks whole and is not is never made.
//!
//! What rules name in plain is found as soon as the root of such a path comes along. Rules that are hashes of paths say nothing
//! until somebody has the path: so, as long as there are any, the paths of all directories are remembered from their root and
//! from each directory above them, and each of their entries is asked about. That costs some hashes for an entry.
//!
//! Non-goals: hashes of paths that lead through documents (dag-cbor and its like), or deeper than [`DEPTH_MAX`] names, or in
//! DAGs of more than [`PLACES_MAX`] directories.

use crate::source::RootSource;
use content::unixfs::dir;
use content::walk::{Resolved, check_path};
use content::{Block, BlockKey, BlockSource, Cid, Policy, SourceError, Verdict, codec};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How many names of a path are remembered.
const DEPTH_MAX: usize = 16;
/// How many places of directories are remembered, which may take some 100 bytes each.
const PLACES_MAX: usize = 65_536;

/// The blocks of one archive.
#[derive(Clone)]
pub struct Whole {
    source: Arc<RootSource>,
    /// What leads to the archive's root, and is in it to prove that. What else lies below these blocks is not.
    way: Arc<[Cid]>,
    places: Arc<Mutex<Places>>,
}

/// Where directories are.
#[derive(Default)]
struct Places {
    /// By directory; those of an inner shard are its directory's.
    of: HashMap<BlockKey, Vec<Place>>,
    count: usize,
}

#[derive(Clone, PartialEq, Eq)]
struct Place {
    root: Cid,
    path: Vec<String>,
    is_shard: bool,
}

impl Whole {
    /// The blocks below the end of a path that was walked.
    ///
    /// # Errors
    /// [`SourceError::Refused`] if something there is known to be withheld.
    pub fn below(source: &Arc<RootSource>, resolved: &Resolved, segments: &[String]) -> Result<Self, SourceError> {
        let policy = source.policy();
        resolved.check_below(policy, segments)?;
        let mut places = Places::default();
        for (root, rest) in resolved.ways(segments).filter(|(_, rest)| !rest.is_empty()) {
            places.add(resolved.block.cid(), Place { root: *root, path: rest.to_vec(), is_shard: false });
        }
        let way = resolved.passed.as_slice().into();
        let whole = Self { source: Arc::clone(source), way, places: Arc::new(Mutex::new(places)) };
        whole.pass(&resolved.block)?;
        Ok(whole)
    }

    /// Looks at a block that is about to be part of the archive.
    fn pass(&self, block: &Block) -> Result<(), SourceError> {
        let policy = self.source.policy();
        let cid = block.cid();
        if !policy.decides_paths() || self.way.contains(cid) {
            return Ok(());
        }
        match policy.check_below(cid, "") {
            Verdict::Allow => {}
            verdict => return Err(SourceError::Refused { cid: *cid, verdict }),
        }
        if policy.hides_paths() && cid.codec() == codec::DAG_PB { self.pass_entries(policy, block) } else { Ok(()) }
    }

    fn pass_entries(&self, policy: &dyn Policy, block: &Block) -> Result<(), SourceError> {
        let links = dir::named_links(block);
        if links.is_empty() {
            return Ok(());
        }
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut here = places.of(block.cid());
        if !here.iter().any(|place| place.is_shard) {
            here.push(Place { root: *block.cid(), path: Vec::new(), is_shard: false });
        }
        for (name, child) in &links {
            for place in &here {
                if name.is_empty() {
                    places.add(child, Place { is_shard: true, ..place.clone() });
                    continue;
                }
                check_path(policy, &place.root, &place.path, Some(name.as_str()))?;
                if child.codec() == codec::DAG_PB && place.path.len() < DEPTH_MAX {
                    let path = [&place.path[..], std::slice::from_ref(name)].concat();
                    places.add(child, Place { root: place.root, path, is_shard: false });
                }
            }
        }
        Ok(())
    }

    /// The block, unless it must not be part of the archive.
    fn passed(&self, fetched: Result<Block, SourceError>) -> Result<Block, SourceError> {
        let block = fetched?;
        self.pass(&block)?;
        Ok(block)
    }
}

impl Places {
    fn of(&self, cid: &Cid) -> Vec<Place> {
        BlockKey::of(cid).and_then(|key| self.of.get(&key)).cloned().unwrap_or_default()
    }

    fn add(&mut self, cid: &Cid, place: Place) {
        let Some(key) = BlockKey::of(cid).filter(|_| self.count < PLACES_MAX) else { return };
        let known = self.of.entry(key).or_default();
        if !known.contains(&place) {
            known.push(place);
            self.count += 1;
        }
    }
}

impl BlockSource for Whole {
    /// What must not be part of the archive is not at hand, so that it is asked for, and why it is refused is told.
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.source.peek(cid).filter(|block| self.pass(block).is_ok())
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (whole, fetched) = (self.clone(), self.source.get(cid));
        async move { whole.passed(fetched.await) }.boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.source.has(cid)
    }
}
