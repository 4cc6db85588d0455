//! The trickle layout: a node has leaves first, as many as it may, then sub-trees: four that are one level deep, four that
//! are two levels deep, and so on. A sub-tree that is n levels deep ends with sub-trees of n - 1 levels; the root never ends.

use super::Inner;
use crate::importer::{Attributes, ImportError, Output, Part};

/// How many sub-trees of the same depth come one after the other.
pub(in crate::importer) const SUBTREES_OF_A_DEPTH: usize = 4;

/// A trickle file that is being built.
#[derive(Debug)]
pub(super) struct Trickle {
    leaves_max: usize,
    /// The unfinished nodes above the next leaf, below the root.
    open: Vec<Subtree>,
    root: Subtree,
}

/// A node that is being filled.
#[derive(Debug)]
struct Subtree {
    node: Inner,
    /// How many of its children are sub-trees.
    subtrees: usize,
    /// How deep it may become; one is for a node of leaves.
    depth_max: usize,
}

impl Subtree {
    fn new(depth_max: usize) -> Self {
        Self { node: Inner::default(), subtrees: 0, depth_max }
    }

    /// The depth of the sub-tree that comes next, if there is room for one.
    fn next_depth(&self) -> Option<usize> {
        let depth = 1 + self.subtrees / SUBTREES_OF_A_DEPTH;
        (depth < self.depth_max).then_some(depth)
    }
}

impl Trickle {
    pub(super) fn new(leaves_max: usize) -> Self {
        Self { leaves_max, open: Vec::new(), root: Subtree::new(usize::MAX) }
    }

    pub(super) fn push(&mut self, leaf: &Part, output: &mut Output<'_>) -> Result<(), ImportError> {
        loop {
            let last = self.open.last_mut().unwrap_or(&mut self.root);
            if last.subtrees == 0 && last.node.len() < self.leaves_max {
                last.node.push(leaf);
                return Ok(());
            }
            match last.next_depth() {
                Some(depth) => self.open.push(Subtree::new(depth)),
                None => self.close(output)?,
            }
        }
    }

    /// Finishes the innermost open node, and links to it from the one above.
    fn close(&mut self, output: &mut Output<'_>) -> Result<(), ImportError> {
        let Some(closed) = self.open.pop() else { return Ok(()) };
        let part = closed.node.finish(Attributes::default(), output)?;
        let above = self.open.last_mut().unwrap_or(&mut self.root);
        above.node.push(&part);
        above.subtrees += 1;
        Ok(())
    }

    /// What the unfinished nodes hold, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.open.iter().chain([&self.root]).map(|subtree| subtree.node.held_bytes()).sum()
    }

    pub(super) fn finish(mut self, attributes: Attributes, output: &mut Output<'_>) -> Result<Part, ImportError> {
        while !self.open.is_empty() {
            self.close(output)?;
        }
        self.root.node.finish(attributes, output)
    }
}
