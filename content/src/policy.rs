//! [`Policy`]: whether content may be served. Every tier checks it before it returns a block.
//!
//! Goals: the HTTP gateway and the Bitswap server check the same policy, so that content withheld by one is not served
//! by the other; a generation number, so that answers cached under an older policy can be invalidated.

use crate::block::Block;
use crate::cid::{Cid, Multihash, is_identity};
use crate::dag;
use crate::dagpb::{PbLink, PbNode};
use crate::ipld;
use crate::names::Name;
use crate::path::Root;
use crate::read_ahead::ReadAhead;
use crate::source::{BlockSource, SourceError};
use crate::stored::Stored;
pub use crate::verdict::Verdict;
use crate::work::Work;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use std::collections::HashSet;
use std::sync::Arc;

/// Decides whether content may be served.
///
/// A block is withheld from all clients, under every CID of its multihash. A path is withheld only under this path: its
/// content can be served under other paths, and under its own CID. Paths are decoded and have no trailing slash.
pub trait Policy: Send + Sync {
    /// The generation of the rules. It changes whenever an earlier verdict may be outdated.
    fn generation(&self) -> u64;

    /// The verdict on a block, whatever the codec and version of its CID. Called for every block: it must not block,
    /// and allocate only in rare cases.
    fn check(&self, cid: &Cid) -> Verdict;

    /// Whether the policy may deny anything. If not, callers skip expensive checks.
    fn withholds(&self) -> bool {
        true
    }

    /// Whether a path may have another verdict than its root. If not, callers skip the checks of paths.
    fn decides_paths(&self) -> bool {
        false
    }

    /// The verdict on a path below a root. Path resolution calls it at every step, with the rest of the path.
    fn check_path(&self, root: &Cid, path: &str) -> Verdict {
        if path.is_empty() { self.check(root) } else { Verdict::Allow }
    }

    /// The verdict on a response with all content below a path: denied if some of the content is known to be withheld.
    fn check_below(&self, root: &Cid, path: &str) -> Verdict {
        _ = (root, path);
        Verdict::Allow
    }

    /// The verdict on a name, or on a path below it. Called for every name of a chain.
    fn check_name(&self, name: &Name, path: &str) -> Verdict {
        _ = (name, path);
        Verdict::Allow
    }

    /// The verdict on the root of a request, if there is an allowlist: whether it is listed.
    fn check_entry(&self, root: &Root, path: &str) -> Verdict {
        _ = (root, path);
        Verdict::Allow
    }

    /// Whether only listed content is served: over HTTP the roots of requests, and to peers also what is pinned.
    fn serves_only_listed(&self) -> bool {
        false
    }

    /// Whether rules may have hashed paths, so that the withheld paths below a path cannot be enumerated.
    fn hides_paths(&self) -> bool {
        false
    }

    /// Whether a block is on an allowlist, for peers if only listed content is served.
    fn lists_block(&self, cid: &Cid) -> bool {
        self.check(cid) == Verdict::Allow
    }
}

/// Whether a block may be imported, or shown to an operator: unless a denylist withholds it. Allowlists do not matter,
/// because they are about public requests.
///
/// # Errors
/// [`SourceError::Refused`].
pub fn admit(policy: &dyn Policy, cid: &Cid) -> Result<(), SourceError> {
    match policy.check(cid) {
        verdict @ (Verdict::Gone | Verdict::Legal) => Err(SourceError::Refused { cid: *cid, verdict }),
        Verdict::Allow | Verdict::Unlisted => Ok(()),
    }
}

/// A source that returns only blocks that the policy does not withhold.
#[derive(Clone)]
pub struct Permitted {
    source: Arc<dyn BlockSource>,
    policy: Arc<dyn Policy>,
    /// Whether a block is denied if a path below it is withheld: for responses with a whole DAG.
    whole: bool,
}

impl Permitted {
    /// For blocks that are requested one by one.
    pub fn blocks(source: Arc<dyn BlockSource>, policy: Arc<dyn Policy>) -> Self {
        Self { source, policy, whole: false }
    }

    /// For the blocks of a whole DAG, in which no path may be withheld either. Rules with hashed paths are not
    /// detected.
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
    /// A denied block is not returned, so that the caller uses `get`, which returns the error.
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

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        match self.check(cid) {
            Ok(()) => self.source.get_ahead(cid, ahead),
            Err(error) => ready(Err(error)).boxed(),
        }
    }

    fn get_stored(&self, cid: &Cid) -> BoxFuture<'static, Result<Option<Stored>, SourceError>> {
        match self.check(cid) {
            Ok(()) => self.source.get_stored(cid),
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

/// Checks the blocks that a block has inlined in its links by identity CIDs, because they are served with it. The
/// codecs of the links do not matter.
///
/// # Errors
/// [`SourceError::Refused`] for the first denied block.
pub fn check_inlined(policy: &dyn Policy, block: &Block) -> Result<(), SourceError> {
    if !policy.withholds() {
        return Ok(());
    }
    // The recursion ends because each inlined block is shorter than the block that has it.
    let check = |cid: Cid| match (policy.check(&cid), Block::inline(&cid)) {
        (Verdict::Allow, Some(inlined)) => check_inlined(policy, &inlined),
        (Verdict::Allow, None) => Ok(()),
        (verdict, _) => Err(SourceError::Refused { cid, verdict }),
    };
    if ipld::is_document(block.cid().codec()) {
        // A block that cannot be decoded has no links.
        let links = dag::links(block).unwrap_or_default();
        return links.into_iter().filter(is_identity).try_for_each(check);
    }
    let Ok(node) = PbNode::decode(block.data().clone()) else { return Ok(()) };
    let inlined = node.links().flatten().filter(PbLink::is_inline).filter_map(|link| link.cid().ok());
    inlined.into_iter().try_for_each(check)
}

/// Denies a fixed set of blocks, by multihash, with [`Verdict::Gone`].
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
