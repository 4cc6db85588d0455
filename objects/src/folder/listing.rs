//! The files below a prefix, page by page. Of folders, only those on the way to the current file are open.

use super::paths::{self, Root};
use crate::contract::ListedObject;
use crate::error::ObjectError;
use crate::names;
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

/// How many entries of folders are read for one page.
const PAGE_ENTRIES: usize = 1_000;

/// A listing that goes on.
#[derive(Debug)]
pub(super) struct Listing {
    /// What the names of listed objects begin with.
    prefix: String,
    /// The open folders, from the outermost one, each with its path that ends in `/` or is empty.
    open: Vec<(Dir, String)>,
}

impl Listing {
    /// Begins with the folder that has all names that begin with the prefix.
    pub(super) fn new(root: &Root, prefix: &str) -> Result<Self, ObjectError> {
        let (path, _) = prefix.rsplit_once('/').map_or(("", prefix), |(path, last)| (path, last));
        let mut listing = Self { prefix: prefix.to_owned(), open: Vec::new() };
        let failed = |errno| root.failed(&format!("listing {prefix}"), errno);
        let mut folder = root.open()?;
        if !path.is_empty() {
            let Some((parent, last)) = root.parent(path)? else { return Ok(listing) };
            folder = match paths::open_folder(&parent, last) {
                Ok(folder) => folder,
                Err(Errno::NOTDIR) if paths::is_link(&parent, last) => return Err(failed(Errno::LOOP)),
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(listing),
                Err(errno) => return Err(failed(errno)),
            };
        }
        let path = if path.is_empty() { String::new() } else { format!("{path}/") };
        listing.open.push((Dir::new(folder).map_err(failed)?, path));
        Ok(listing)
    }

    /// Whether all was listed.
    pub(super) fn is_done(&self) -> bool {
        self.open.is_empty()
    }

    /// The next objects: some, or none although there are more.
    pub(super) fn page(&mut self, root: &Root) -> Result<Vec<ListedObject>, ObjectError> {
        let mut page = Vec::new();
        for _ in 0..PAGE_ENTRIES {
            let Some((folder, path)) = self.open.last_mut() else { break };
            let failed = |errno| root.failed(&format!("listing {path}"), errno);
            let entry = match folder.read() {
                None => {
                    self.open.pop();
                    continue;
                }
                Some(Ok(entry)) => entry,
                // The folder was deleted in the meantime.
                Some(Err(Errno::NOENT)) => {
                    self.open.pop();
                    continue;
                }
                Some(Err(errno)) => return Err(failed(errno)),
            };
            let Ok(component) = entry.file_name().to_str() else { continue };
            let name = format!("{path}{component}");
            // A folder whose name is a part of the prefix leads to names that begin with it.
            let is_listed = name.starts_with(&self.prefix) || self.prefix.starts_with(&format!("{name}/"));
            if !is_listed || names::check(&name).is_err() {
                continue;
            }
            let descriptor = folder.fd().map_err(failed)?;
            let stat = match rustix::fs::statat(descriptor, component, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(failed(errno)),
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    page.push(ListedObject { name, bytes: u64::try_from(stat.st_size).unwrap_or_default() });
                }
                FileType::Directory => match paths::open_folder(descriptor, component).and_then(Dir::new) {
                    Ok(inner) => self.open.push((inner, format!("{name}/"))),
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(failed(errno)),
                },
                // Links and the like are no objects.
                _ => {}
            }
        }
        Ok(page)
    }
}
