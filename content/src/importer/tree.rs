//! [`Tree`]: directories in directories, from the paths of what is in them.
//!
//! Paths come depth first: what is in a directory comes together, with everything below, in any order otherwise. So only
//! the directories from the root to the current path are in memory.

use super::dir::{Directory, check_name};
use super::{Attributes, BlockSink, ImportError, Importer, Part};

/// A tree that is being made.
#[derive(Debug)]
pub struct Tree {
    importer: Importer,
    root: Directory,
    /// The directories from the root's child to the current one, and their names.
    open: Vec<(Vec<u8>, Directory)>,
}

impl Tree {
    pub(super) fn new(importer: Importer, attributes: Attributes) -> Self {
        let root = importer.directory(attributes);
        Self { importer, root, open: Vec::new() }
    }

    /// Adds a file, a symlink or a directory that is finished already at a path (names with slashes between them, relative
    /// to the root). Directories on the way that were not added have no attributes.
    ///
    /// # Errors
    /// [`ImportError`], after which the tree cannot be finished.
    pub fn add(&mut self, path: &[u8], part: &Part, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        let (above, name) = split(path);
        self.go_to(above, sink)?;
        self.current().add(name, part)
    }

    /// Adds a directory at a path. It has to come before what is in it.
    ///
    /// # Errors
    /// As for [`Tree::add`].
    pub fn directory(
        &mut self,
        path: &[u8],
        attributes: Attributes,
        sink: &mut dyn BlockSink,
    ) -> Result<(), ImportError> {
        let (above, name) = split(path);
        self.go_to(above, sink)?;
        self.enter(name, attributes)
    }

    /// Ends the tree: its root directory.
    ///
    /// # Errors
    /// As for [`Tree::add`]. A path that came back to a directory which others had left shows here at the latest, as
    /// [`ImportError::Repeated`].
    pub fn finish(mut self, sink: &mut dyn BlockSink) -> Result<Part, ImportError> {
        self.leave_to(0, sink)?;
        self.root.finish(sink)
    }

    /// The directory that entries are added to.
    fn current(&mut self) -> &mut Directory {
        self.open.last_mut().map_or(&mut self.root, |(_, directory)| directory)
    }

    /// Makes the directory at a path the current one. Those that are not above it are finished.
    fn go_to(&mut self, path: Option<&[u8]>, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        let names: Vec<&[u8]> = path.into_iter().flat_map(|path| path.split(|byte| *byte == b'/')).collect();
        let shared = self.open.iter().zip(&names).take_while(|((open, _), name)| open == *name).count();
        self.leave_to(shared, sink)?;
        names[shared..].iter().try_for_each(|name| self.enter(name, Attributes::default()))
    }

    fn enter(&mut self, name: &[u8], attributes: Attributes) -> Result<(), ImportError> {
        check_name(name)?;
        self.open.push((name.to_vec(), self.importer.directory(attributes)));
        Ok(())
    }

    /// Finishes open directories, the innermost first, until `depth` of them are left.
    fn leave_to(&mut self, depth: usize, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        while self.open.len() > depth {
            let Some((name, directory)) = self.open.pop() else { break };
            let part = directory.finish(sink)?;
            self.current().add(&name, &part)?;
        }
        Ok(())
    }
}

/// The path of what holds the last name, unless it is the root, and that name.
fn split(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (Some(&path[..slash]), &path[slash + 1..]),
        None => (None, path),
    }
}
