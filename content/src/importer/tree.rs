//! [`Tree`]: imports nested directories, from the paths of their entries.
//!
//! Paths are added depth first: everything below a directory together, otherwise in any order. So only the directories
//! from the root to the current path are in memory.

use super::dir::{Directory, check_name};
use super::{Attributes, BlockSink, ImportError, Importer, Part};

/// A tree that is being imported.
#[derive(Debug)]
pub struct Tree {
    importer: Importer,
    root: Directory,
    /// The directories from the root's child to the current one, with their names.
    open: Vec<(Vec<u8>, Directory)>,
}

impl Tree {
    pub(super) fn new(importer: Importer, attributes: Attributes) -> Self {
        let root = importer.directory(attributes);
        Self { importer, root, open: Vec::new() }
    }

    /// Adds an imported file, symlink or directory at a path (names separated by slashes, relative to the root). Parent
    /// directories that were not added have no attributes.
    ///
    /// # Errors
    /// [`ImportError`], after which the tree cannot be finished.
    pub fn add(&mut self, path: &[u8], part: &Part, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        let (parent, name) = split(path);
        self.enter_path(parent, sink)?;
        self.current().add(name, part)
    }

    /// Adds a directory at a path, before its entries.
    ///
    /// # Errors
    /// As for [`Tree::add`].
    pub fn directory(
        &mut self,
        path: &[u8],
        attributes: Attributes,
        sink: &mut dyn BlockSink,
    ) -> Result<(), ImportError> {
        let (parent, name) = split(path);
        self.enter_path(parent, sink)?;
        self.enter(name, attributes)
    }

    /// Finishes the tree; returns its root directory.
    ///
    /// # Errors
    /// As for [`Tree::add`]. Paths that were not added depth first are detected here at the latest, as
    /// [`ImportError::Repeated`].
    pub fn finish(mut self, sink: &mut dyn BlockSink) -> Result<Part, ImportError> {
        self.finish_to_depth(0, sink)?;
        self.root.finish(sink)
    }

    /// The current directory, to which entries are added.
    fn current(&mut self) -> &mut Directory {
        self.open.last_mut().map_or(&mut self.root, |(_, directory)| directory)
    }

    /// Makes the directory at a path the current one, and finishes those that are not its parents.
    fn enter_path(&mut self, path: Option<&[u8]>, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        let names: Vec<&[u8]> = path.into_iter().flat_map(|path| path.split(|byte| *byte == b'/')).collect();
        let shared = self.open.iter().zip(&names).take_while(|((open, _), name)| open == *name).count();
        self.finish_to_depth(shared, sink)?;
        names[shared..].iter().try_for_each(|name| self.enter(name, Attributes::default()))
    }

    fn enter(&mut self, name: &[u8], attributes: Attributes) -> Result<(), ImportError> {
        check_name(name)?;
        self.open.push((name.to_vec(), self.importer.directory(attributes)));
        Ok(())
    }

    /// Finishes open directories, the deepest first, until `depth` of them are left.
    fn finish_to_depth(&mut self, depth: usize, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        while self.open.len() > depth {
            let Some((name, directory)) = self.open.pop() else { break };
            let part = directory.finish(sink)?;
            self.current().add(&name, &part)?;
        }
        Ok(())
    }
}

/// The path of the parent, unless it is the root, and the last name.
fn split(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (Some(&path[..slash]), &path[slash + 1..]),
        None => (None, path),
    }
}
