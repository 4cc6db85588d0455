//! [`Policy`]: whether content may be emitted, consulted by every tier before a block leaves it.
//!
//! Goals: one seam that the HTTP gateway and the Bitswap server both pass through, so that nothing refused on one way
//! out leaks through another; a generation number, so that answers remembered under an older policy can be told.

use crate::cid::{Cid, Multihash};
use std::collections::HashSet;

/// What a policy says about a piece of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// May be emitted.
    Allow,
    /// Removed by the operator (HTTP 410).
    Gone,
    /// Withheld for legal reasons (HTTP 451, RFC 7725).
    Legal,
}

/// Decides whether content may leave this node. Called for every block: it must not block or allocate.
pub trait Policy: Send + Sync {
    /// Changes whenever an earlier verdict may no longer hold.
    fn generation(&self) -> u64;

    /// The verdict on a block, whatever codec or CID version it is asked for by.
    fn check(&self, cid: &Cid) -> Verdict;
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
