//! [`Policy`]: whether content may be emitted, consulted by every tier before a block leaves it.
//!
//! Goals: one seam that the HTTP gateway and the Bitswap server both pass through, so that nothing refused on one way
//! out leaks through another; a generation number, so that answers remembered under an older policy can be told.

use crate::block::Block;
use crate::cid::{Cid, Multihash, is_identity};
use crate::dag;
use crate::dagpb::{PbLink, PbNode};
use crate::ipld;
use crate::names::Name;
use crate::path::Root;
use crate::source::{BlockSource, SourceError};
pub use crate::verdict::Verdict;
use crate::work::Work;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use std::collections::HashSet;
use std::sync::Arc;

/// Decides whether content may leave this node.
///
/// A block is withheld from everybody, whatever it is asked for as. A path is withheld from whoever asks for it; what
/// lies there may be had by other paths, and by its own CID. Paths are decoded, without slashes at their ends.
pub trait Policy: Send + Sync {
    /// Changes whenever an earlier verdict may no longer hold.
    fn generation(&self) -> u64;

    /// The verdict on a block, whatever codec or CID version it is asked for by. Called for every block: it must not block
    /// or allocate, unless what it finds is rare.
    fn check(&self, cid: &Cid) -> Verdict;

    /// Whether anything at all may be refused: if not, nobody needs to look for what is.
    fn withholds(&self) -> bool {
        true
    }

    /// Whether a path may have another verdict than its root: if not, nobody needs to ask about any.
    fn decides_paths(&self) -> bool {
        false
    }

    /// The verdict on what lies at a path below a root. A walk asks at every step, for the rest of its path.
    fn check_path(&self, root: &Cid, path: &str) -> Verdict {
        if path.is_empty() { self.check(root) } else { Verdict::Allow }
    }

    /// The verdict on an answer that holds everything below a path: refused, if something there is known to be withheld.
    fn check_below(&self, root: &Cid, path: &str) -> Verdict {
        _ = (root, path);
        Verdict::Allow
    }

    /// The verdict on a name, or on a path below what it stands for. Each name is asked about that leads to another.
    fn check_name(&self, name: &Name, path: &str) -> Verdict {
        _ = (name, path);
        Verdict::Allow
    }

    /// The verdict on a request that begins here: where only what is on a list is served, whether this is.
    fn check_entry(&self, root: &Root, path: &str) -> Verdict {
        _ = (root, path);
        Verdict::Allow
    }

    /// Whether only what is on a list is served: over HTTP what requests begin with, and to peers, beside those, what is pinned.
    fn serves_only_listed(&self) -> bool {
        false
    }

    /// Whether rules may name paths by hashes alone, so that nobody can tell beforehand what lies below a path.
    fn hides_paths(&self) -> bool {
        false
    }

    /// Whether a block is on a list of what is served: for other peers, where nothing else is.
    fn lists_block(&self, cid: &Cid) -> bool {
        self.check(cid) == Verdict::Allow
    }
}

/// Whether a block may be taken in, or given to an operator: not if a list withholds it. That it is on no list of what
/// is served is no reason, for such a list is about requests of the public.
///
/// # Errors
/// [`SourceError::Refused`].
pub fn admit(policy: &dyn Policy, cid: &Cid) -> Result<(), SourceError> {
    match policy.check(cid) {
        verdict @ (Verdict::Gone | Verdict::Legal) => Err(SourceError::Refused { cid: *cid, verdict }),
        Verdict::Allow | Verdict::Unlisted => Ok(()),
    }
}

/// Blocks of a source, but for those that are withheld.
#[derive(Clone)]
pub struct Permitted {
    source: Arc<dyn BlockSource>,
    policy: Arc<dyn Policy>,
    /// Whether a block is refused below which a path is withheld: of what is given as a whole.
    whole: bool,
}

impl Permitted {
    /// Blocks that are asked for one by one.
    pub fn blocks(source: Arc<dyn BlockSource>, policy: Arc<dyn Policy>) -> Self {
        Self { source, policy, whole: false }
    }

    /// Blocks of a DAG that is given as a whole, in which no path may be withheld either. Rules that are hashes of
    /// paths are not found by this.
    pub fn whole(source: Arc<dyn BlockSource>, policy: Arc<dyn Policy>) -> Self {
        Self { source, policy, whole: true }
    }

    fn check(&self, cid: &Cid) -> Result<(), SourceError> {
        admit(&*self.policy, cid)?;
        if !self.whole || !self.policy.decides_paths() {
            return Ok(());
        }
        match self.policy.check_below(cid, "") {
            Verdict::Allow => Ok(()),
            verdict => Err(SourceError::Refused { cid: *cid, verdict }),
        }
    }
}

impl BlockSource for Permitted {
    /// What is refused is not at hand, so that it is asked for, and why it is refused is told.
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.check(cid).ok().and_then(|()| self.source.peek(cid))
    }

    fn read_now(&self, cid: &Cid) -> Option<Block> {
        self.check(cid).ok().and_then(|()| self.source.read_now(cid))
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.check(cid).ok().and_then(|()| self.source.inline(cid))
    }

    fn work(&self) -> Work {
        self.source.work()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        match self.check(cid) {
            Ok(()) => self.source.get(cid),
            Err(error) => ready(Err(error)).boxed(),
        }
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        match self.check(cid) {
            Ok(()) => self.source.has(cid),
            Err(error) => ready(Err(error)).boxed(),
        }
    }
}

/// Allows everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl Policy for AllowAll {
    fn generation(&self) -> u64 {
        0
    }

    fn check(&self, _cid: &Cid) -> Verdict {
        Verdict::Allow
    }

    fn withholds(&self) -> bool {
        false
    }
}

/// Asks a policy about the blocks that a block carries in its links, by identity CIDs: whoever gets the one has the
/// others. The bytes count, whatever codec they are asked for by.
///
/// # Errors
/// [`SourceError::Refused`] names the first that is refused.
pub fn check_inlined(policy: &dyn Policy, block: &Block) -> Result<(), SourceError> {
    if !policy.withholds() {
        return Ok(());
    }
    // Each is shorter than the one that carries it.
    let check = |cid: Cid| match (policy.check(&cid), Block::inline(&cid)) {
        (Verdict::Allow, Some(inlined)) => check_inlined(policy, &inlined),
        (Verdict::Allow, None) => Ok(()),
        (verdict, _) => Err(SourceError::Refused { cid, verdict }),
    };
    if ipld::is_document(block.cid().codec()) {
        // What cannot be read has no links to anybody.
        let links = dag::links(block).unwrap_or_default();
        return links.into_iter().filter(is_identity).try_for_each(check);
    }
    let Ok(node) = PbNode::decode(block.data().clone()) else { return Ok(()) };
    let inlined = node.links().flatten().filter(PbLink::is_inline).filter_map(|link| link.cid().ok());
    inlined.into_iter().try_for_each(check)
}

/// Refuses a fixed set of blocks, by multihash, with [`Verdict::Gone`].
#[derive(Debug, Clone, Default)]
pub struct DenyList {
    hashes: HashSet<Multihash>,
}

impl DenyList {
    /// A list of the given CIDs; codec and version do not matter.
    pub fn new(cids: impl IntoIterator<Item = Cid>) -> Self {
        Self { hashes: cids.into_iter().map(|cid| *cid.hash()).collect() }
    }
}

impl Policy for DenyList {
    fn generation(&self) -> u64 {
        0
    }

    fn check(&self, cid: &Cid) -> Verdict {
        let denied = self.hashes.contains(cid.hash());
        if denied { Verdict::Gone } else { Verdict::Allow }
    }
}
