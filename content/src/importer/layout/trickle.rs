//! The trickle layout: a node has leaves, up to the maximum, and then sub-trees: four of depth one, four of depth two,
//! and so on. A sub-tree of depth n ends with sub-trees of depth n - 1; the root has no such limit.

use super::Inner;
use crate::importer::{Attributes, ImportError, Output, Part};

/// The number of consecutive sub-trees of the same depth.
pub(in crate::importer) const SUBTREES_OF_A_DEPTH: usize = 4;

/// A trickle file that is being imported.
#[derive(Debug)]
pub(super) struct Trickle {
    leaves_max: usize,
    /// The unfinished nodes below the root, down to the next leaf.
    open: Vec<Subtree>,
    root: Subtree,
}

/// A node that is being filled.
#[derive(Debug)]
struct Subtree {
    node: Inner,
    /// The number of its children that are sub-trees.
    subtrees: usize,
    /// The maximum depth; one for a node with leaves only.
    depth_max: usize,
}

impl Subtree {
    fn new(depth_max: usize) -> Self {
        Self { node: Inner::default(), subtrees: 0, depth_max }
    }

    /// The depth of the next sub-tree; `None` if the node is full.
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
                None => self.finish_deepest(output)?,
            }
        }
    }

    /// Finishes the deepest open node, and links it from its parent.
    fn finish_deepest(&mut self, output: &mut Output<'_>) -> Result<(), ImportError> {
        let Some(deepest) = self.open.pop() else { return Ok(()) };
        let part = deepest.node.finish(Attributes::default(), output)?;
        let parent = self.open.last_mut().unwrap_or(&mut self.root);
        parent.node.push(&part);
        parent.subtrees += 1;
        Ok(())
    }

    /// The memory of the unfinished nodes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.open.iter().chain([&self.root]).map(|subtree| subtree.node.memory_bytes()).sum()
    }

    pub(super) fn finish(mut self, attributes: Attributes, output: &mut Output<'_>) -> Result<Part, ImportError> {
        while !self.open.is_empty() {
            self.finish_deepest(output)?;
        }
        self.root.node.finish(attributes, output)
    }
}
