//! The balanced layout: all nodes except the last of each level are full, and all leaves have the same depth.

use super::Inner;
use crate::importer::{Attributes, ImportError, Output, Part};
use std::mem;

/// A balanced file that is being imported.
#[derive(Debug)]
pub(super) struct Balanced {
    links_max: usize,
    /// The first leaf, until there is a second one: a file of one leaf has no inner nodes.
    only: Option<Part>,
    /// The unfinished node of each level, the lowest first. None is empty: a full node is finished when its next
    /// sibling begins.
    levels: Vec<Inner>,
}

impl Balanced {
    pub(super) fn new(links_max: usize) -> Self {
        Self { links_max, only: None, levels: Vec::new() }
    }

    pub(super) fn push(&mut self, leaf: Part, output: &mut Output<'_>) -> Result<(), ImportError> {
        if let Some(first) = self.only.take() {
            self.link(0, &first, output)?;
        } else if self.levels.is_empty() {
            self.only = Some(leaf);
            return Ok(());
        }
        self.link(0, &leaf, output)
    }

    /// Adds a child to the node of a level.
    fn link(&mut self, level: usize, child: &Part, output: &mut Output<'_>) -> Result<(), ImportError> {
        if level == self.levels.len() {
            self.levels.push(Inner::default());
        }
        if self.levels[level].len() == self.links_max {
            let full = mem::take(&mut self.levels[level]).finish(Attributes::default(), output)?;
            self.link(level + 1, &full, output)?;
        }
        self.levels[level].push(child);
        Ok(())
    }

    /// The memory of the unfinished nodes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.levels.iter().map(Inner::memory_bytes).sum()
    }

    /// The root; `None` if there are no leaves.
    pub(super) fn finish(
        mut self,
        attributes: Attributes,
        output: &mut Output<'_>,
    ) -> Result<Option<Part>, ImportError> {
        let mut level = 0;
        while level + 1 < self.levels.len() {
            let last = mem::take(&mut self.levels[level]).finish(Attributes::default(), output)?;
            level += 1;
            self.link(level, &last, output)?;
        }
        match self.levels.pop() {
            Some(root) => root.finish(attributes, output).map(Some),
            None => Ok(self.only),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::importer::{Importer, Profile};

    #[test]
    fn memory_grows_with_the_depth_and_not_with_the_file() {
        let discard = &mut |_| Ok(());
        let importer = Importer::new(Profile::default()).expect("a profile");
        let leaf = importer.symlink(b"x", Attributes::default(), discard).expect("short");
        let mut output = Output { naming: &importer.naming, sink: discard };
        let mut file = Balanced::new(10);
        for _ in 0..20_000 {
            file.push(leaf, &mut output).expect("small");
            assert!(file.levels.len() <= 5 && file.levels.iter().all(|node| node.links.capacity() <= 10 * 100));
        }
    }
}
