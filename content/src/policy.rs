//! [`Policy`]: whether content may be emitted, consulted by every tier before a block leaves it.
//!
//! Goals: one seam that the HTTP gateway and the Bitswap server both pass through, so that nothing refused on one way
//! out leaks through another; a generation number, so that answers remembered under an older policy can be told.

use crate::cid::{Cid, Multihash};
use crate::names::Name;
use crate::path::Root;
use std::collections::HashSet;

/// What a policy says about a piece of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// May be emitted.
    Allow,
    /// Removed by the operator (HTTP 410).
    Gone,
    /// Withheld for legal reasons (HTTP 451, RFC 7725).
    Legal,
    /// Not among what this node serves, which serves nothing else (HTTP 403).
    Unlisted,
}

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
