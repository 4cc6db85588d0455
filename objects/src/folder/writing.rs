//! An object becomes durable under its name: a new file in `.tmp` is written and synced, then renamed, then the folder
//! is synced, and before that every folder on the way whose name may not be on the disk yet.

use super::paths::{self, Root};
use crate::error::ObjectError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The folder of temporary files.
pub(super) const TEMPORARY: &str = ".tmp";
/// How many folders are known to be durable. After that, all are synced again.
const KNOWN_MAX: usize = 4_096;
/// How many names of a folder become known by one sync of it: those of all folders of blocks.
const LEARNED_MAX: usize = 512;

/// Writes objects.
#[derive(Debug)]
pub(super) struct Writer {
    /// Begins the names of this process's temporary files.
    id: u64,
    written: AtomicU64,
    /// The folders whose names are on the disk. Another gateway may have made one and not synced it yet, so that it
    /// exists says nothing.
    known: Mutex<HashSet<String>>,
}

impl Writer {
    pub(super) fn new() -> Result<Self, getrandom::Error> {
        Ok(Self { id: getrandom::u64()?, written: AtomicU64::new(0), known: Mutex::default() })
    }

    /// A new name of a temporary file.
    fn temporary_name(&self) -> String {
        format!("{:016x}-{}", self.id, self.written.fetch_add(1, Ordering::Relaxed))
    }

    /// Writes an object.
    pub(super) fn write(&self, root: &Root, name: &str, data: &[u8]) -> Result<(), ObjectError> {
        let failed = |errno| root.failed(&format!("writing {name}"), errno);
        let top = root.open()?;
        let (folder, last) = self.made_folder(&top, name).map_err(failed)?;
        let (temporary, file) = self.temporary_file(&top).map_err(failed)?;
        let result = fill(file, data).and_then(|()| {
            rustix::fs::renameat(&temporary.folder, &temporary.name, &folder, last)?;
            rustix::fs::fsync(&folder)
        });
        result.map_err(|errno| {
            temporary.remove();
            failed(errno)
        })
    }

    /// Creates a temporary file.
    pub(super) fn temporary_file(&self, top: &OwnedFd) -> Result<(Temporary, File), Errno> {
        let folder = match paths::step(top, TEMPORARY) {
            Err(Errno::NOENT) => {
                make(top, TEMPORARY)?;
                paths::step(top, TEMPORARY)?
            }
            other => other?,
        };
        let name = self.temporary_name();
        let new = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, &name, new, Mode::from_raw_mode(0o666))?;
        Ok((Temporary { folder, name }, File::from(file)))
    }

    /// The folder of an object, whose path is on the disk, and the last component of the name.
    fn made_folder<'a>(&self, top: &OwnedFd, name: &'a str) -> Result<(OwnedFd, &'a str), Errno> {
        let (components, last) = paths::split(name);
        let mut folder = rustix::io::fcntl_dupfd_cloexec(top, 0)?;
        let mut path = String::new();
        for component in components {
            path.push_str(component);
            let next = match paths::open_folder(&folder, component) {
                Err(Errno::NOENT) => {
                    self.forget(&path);
                    make(&folder, component)?;
                    paths::open_folder(&folder, component)?
                }
                Err(Errno::NOTDIR) if paths::is_link(&folder, component) => return Err(Errno::LOOP),
                other => other?,
            };
            if !self.is_known(&path) {
                self.sync_names(&folder, &path[..path.len() - component.len()])?;
                self.learn(&path);
            }
            folder = next;
            path.push('/');
        }
        Ok((folder, last))
    }

    /// Syncs a folder. All folders that it has by then are known from then on, so that each of them costs no sync.
    fn sync_names(&self, folder: &OwnedFd, path: &str) -> Result<(), Errno> {
        // Before it is synced.
        let folders = Dir::read_from(folder)?.take(LEARNED_MAX).filter_map(|entry| {
            let entry = entry.ok().filter(|entry| entry.file_type() == FileType::Directory)?;
            Some(format!("{path}{}", entry.file_name().to_str().ok().filter(|name| !name.starts_with('.'))?))
        });
        let folders: Vec<String> = folders.collect();
        rustix::fs::fsync(folder)?;
        folders.iter().for_each(|path| self.learn(path));
        Ok(())
    }

    fn is_known(&self, path: &str) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(path)
    }

    fn learn(&self, path: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(path.to_owned());
    }

    fn forget(&self, path: &str) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
    }
}

/// A temporary file that has no other name yet.
pub(super) struct Temporary {
    folder: OwnedFd,
    name: String,
}

impl Temporary {
    /// Removes it. What cannot be removed is a leftover for the next start.
    pub(super) fn remove(&self) {
        _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}

/// Deletes an object, if there is one.
pub(super) fn delete(root: &Root, name: &str) -> Result<(), ObjectError> {
    let Some((folder, last)) = root.parent(name)? else { return Ok(()) };
    match rustix::fs::unlinkat(&folder, last, AtFlags::empty()) {
        // A folder is no object.
        Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => Ok(()),
        Err(errno) => Err(root.failed(&format!("deleting {name}"), errno)),
    }
}

/// Writes and syncs.
fn fill(mut file: File, data: &[u8]) -> Result<(), Errno> {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    file.write_all(data).map_err(errno)?;
    file.sync_all().map_err(errno)
}

/// Makes a folder, unless somebody else has in the meantime.
fn make(folder: impl AsFd, component: &str) -> Result<(), Errno> {
    match rustix::fs::mkdirat(folder, component, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_are_there_become_durable_by_one_sync() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["v1/blocks/00", "v1/blocks/01", "v1/blocks/.tmp"] {
            std::fs::create_dir_all(dir.path().join(name)).expect("is made");
        }
        std::fs::write(dir.path().join("v1/blocks/file"), "no folder").expect("is written");
        let (root, writer) = (Root::new(dir.path().to_owned()).expect("opens"), Writer::new().expect("random numbers"));
        writer.write(&root, "v1/blocks/02/object", b"content").expect("is written");
        assert_eq!(std::fs::read(dir.path().join("v1/blocks/02/object")).expect("is there"), b"content");
        for known in ["v1", "v1/blocks", "v1/blocks/00", "v1/blocks/01", "v1/blocks/02"] {
            assert!(writer.is_known(known), "{known}");
        }
        for unknown in ["v1/blocks/.tmp", "v1/blocks/file", "v1/blocks/03", "00"] {
            assert!(!writer.is_known(unknown), "{unknown}");
        }
    }
}
