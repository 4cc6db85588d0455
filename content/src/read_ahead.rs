//! [`ReadAhead`]: what a reader will request after a block, so that a source can fetch it at once.
//!
//! A reader learns the CIDs below a block when it has the block. A source that is far away can be told beforehand what
//! will be asked for: the names of a path that are left, and then the part of the DAG at its end. It is a hint: a
//! source may ignore it, and a reader may stop early or request other blocks.

use crate::cid::{Cid, codec, is_identity};
use crate::dag_scope::{DagScope, EntityBytes, ScopeOptions};

/// What a reader will request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadAhead {
    /// The block where the path begins. The requested block is this one, or one below it.
    pub root: Cid,
    /// The names from there on.
    pub path: Vec<String>,
    /// The part of the DAG at the end of the path, without duplicates.
    pub scope: ScopeOptions,
}

impl ReadAhead {
    /// The blocks of a scope below a root.
    pub fn below(root: Cid, scope: ScopeOptions) -> Self {
        Self { root, path: Vec::new(), scope: ScopeOptions { duplicates: false, ..scope } }
    }

    /// All blocks below a root, and the root.
    pub fn all(root: Cid) -> Self {
        Self::below(root, ScopeOptions::default())
    }

    /// A block alone.
    pub fn block(cid: Cid) -> Self {
        Self::below(cid, ScopeOptions { scope: DagScope::Block, ..ScopeOptions::default() })
    }

    /// The blocks of a file that have its bytes from `from` up to `end`, which is exclusive.
    pub fn of_file(root: Cid, from: u64, end: u64) -> Self {
        let bound = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        // Only an empty range is reversed.
        let entity_bytes = EntityBytes::new(bound(from), Some(bound(end.saturating_sub(1)))).ok();
        Self::below(root, ScopeOptions { scope: DagScope::File, entity_bytes, duplicates: false })
    }

    /// The shards of a directory.
    pub fn of_directory(root: Cid) -> Self {
        Self::below(root, ScopeOptions { scope: DagScope::Entity, ..ScopeOptions::default() })
    }

    /// Whether it is only the root: then there is nothing to read ahead.
    pub fn is_single_block(&self) -> bool {
        self.path.is_empty() && (self.scope.scope == DagScope::Block || !has_links(&self.root))
    }
}

/// Whether a block can have links, by its codec.
pub(crate) fn has_links(cid: &Cid) -> bool {
    !is_identity(cid) && !matches!(cid.codec(), codec::RAW | codec::CBOR | codec::JSON)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashes;

    #[test]
    fn only_a_block_without_path_and_links_is_alone() {
        let hash = hashes::digest(hashes::SHA2_256, 32, b"x").expect("a hash");
        let (raw, node) = (Cid::new_v1(codec::RAW, hash), Cid::new_v1(codec::DAG_PB, hash));
        let block = ScopeOptions { scope: DagScope::Block, ..ScopeOptions::default() };
        let named = ReadAhead { path: vec!["a".to_owned()], ..ReadAhead::below(node, block) };
        let table = [
            (ReadAhead::all(raw), true),
            (ReadAhead::all(node), false),
            (ReadAhead::of_file(node, 0, 10), false),
            (ReadAhead::of_file(raw, 0, 10), true),
            (ReadAhead::block(node), true),
            (named, false),
        ];
        for (ahead, expected) in table {
            assert_eq!(ahead.is_single_block(), expected, "{ahead:?}");
        }
    }

    #[test]
    fn the_range_of_a_file_has_an_inclusive_end() {
        let root = Cid::new_v1(codec::DAG_PB, hashes::digest(hashes::SHA2_256, 32, b"x").expect("a hash"));
        let range =
            |from, end| ReadAhead::of_file(root, from, end).scope.entity_bytes.and_then(|bytes| bytes.resolve(100));
        assert_eq!(range(10, 20), Some(10..20));
        assert_eq!(range(0, u64::MAX), Some(0..100));
        assert_eq!(range(30, 30), None);
    }
}
