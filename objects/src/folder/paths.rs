//! Folders and files below the root, without following symbolic links.
//!
//! Each path is opened component by component from the root. The root itself is opened again for each operation: a
//! file system may be mounted again. It must have the marker if it had it before, or if it is another file system, or
//! else it is the local folder below the mount point. The number of a file system alone does not tell: a system gives
//! the number of one that was unmounted to the next.

use super::{errors, mounts};
use crate::error::{ObjectError, OpenError};
use crate::marker::MARKER_NAME;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How folders are opened: to open others from them, and to sync them if that is needed.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// How folders are opened that only lead to others.
const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// The folder that the objects are in.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    /// The number of the file system.
    device: AtomicU64,
    /// Whether it has had a marker.
    was_marked: AtomicBool,
}

impl Root {
    pub(super) fn new(path: PathBuf) -> Result<Self, OpenError> {
        let root = Self { path, device: AtomicU64::new(0), was_marked: AtomicBool::new(false) };
        let folder = root.descriptor().map_err(|error| OpenError::new(error.to_string()))?;
        let stat =
            rustix::fs::fstat(&folder).map_err(|errno| OpenError::new(root.failed("opening", errno).to_string()))?;
        root.device.store(stat.st_dev, Ordering::Relaxed);
        Ok(root)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The error of a system call below the root.
    pub(super) fn failed(&self, doing: &str, errno: Errno) -> ObjectError {
        errors::failed(&self.path, doing, errno)
    }

    fn descriptor(&self) -> Result<OwnedFd, ObjectError> {
        rustix::fs::openat(CWD, &self.path, FOLDER, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR => ObjectError::refused(errors::no_folder(&self.path)),
            other => self.failed("opening the folder", other),
        })
    }

    /// The root, if it has the marker, or is on the same file system as before and has had none.
    pub(super) fn open(&self) -> Result<OwnedFd, ObjectError> {
        let folder = self.descriptor()?;
        let device = rustix::fs::fstat(&folder).map_err(|errno| self.failed("opening the folder", errno))?.st_dev;
        let is_other = device != self.device.load(Ordering::Relaxed);
        if self.is_marked(&folder)? {
            self.was_marked.store(true, Ordering::Relaxed);
        } else if is_other || self.was_marked.load(Ordering::Relaxed) {
            return Err(ObjectError::refused(format!(
                "{} is not the file system that it was, and has no {MARKER_NAME}: is the file system mounted?",
                self.path.display()
            )));
        }
        if is_other {
            mounts::check(&self.path).map_err(|error| ObjectError::refused(error.to_string()))?;
            self.device.store(device, Ordering::Relaxed);
        }
        Ok(folder)
    }

    /// Whether the folder has a marker.
    pub(super) fn has_marker(&self) -> Result<bool, ObjectError> {
        self.open()?;
        Ok(self.was_marked.load(Ordering::Relaxed))
    }

    fn is_marked(&self, folder: &OwnedFd) -> Result<bool, ObjectError> {
        match rustix::fs::statat(folder, MARKER_NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.failed("looking for the marker", errno)),
        }
    }

    /// The folder that has an object, and the last component of its name; `None` if there is no such folder.
    pub(super) fn parent<'a>(&self, name: &'a str) -> Result<Option<(OwnedFd, &'a str)>, ObjectError> {
        let (folders, last) = split(name);
        let mut folder = self.open()?;
        for component in folders {
            folder = match step(&folder, component) {
                Ok(next) => next,
                Err(Errno::NOENT | Errno::NOTDIR) => return self.link_or_absent(&folder, component),
                Err(errno) => return Err(self.failed(&format!("looking for {name}"), errno)),
            };
        }
        Ok(Some((folder, last)))
    }

    /// What is no folder is a link, which is refused, or there is nothing below it. A link is reported as either error,
    /// by the version of the kernel.
    fn link_or_absent<T>(&self, folder: &OwnedFd, component: &str) -> Result<Option<T>, ObjectError> {
        match is_link(folder, component) {
            true => Err(self.failed(&format!("opening {component}"), Errno::LOOP)),
            false => Ok(None),
        }
    }
}

/// The components of the folders of a name, and the last component.
pub(super) fn split(name: &str) -> (impl Iterator<Item = &str>, &str) {
    let (folders, last) = name.rsplit_once('/').map_or(("", name), |(folders, last)| (folders, last));
    (folders.split('/').filter(|component| !component.is_empty()), last)
}

/// Opens a folder in a folder, to open others from it.
pub(super) fn step(folder: impl AsFd, component: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(folder, component, STEP, Mode::empty())
}

/// Opens a folder in a folder, to read or sync it.
pub(super) fn open_folder(folder: impl AsFd, component: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(folder, component, FOLDER.union(OFlags::NOFOLLOW), Mode::empty())
}

/// Whether there is a symbolic link.
pub(super) fn is_link(folder: impl AsFd, component: &str) -> bool {
    rustix::fs::statat(folder, component, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink())
}
