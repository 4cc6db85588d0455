//! [`Space`]: what a file system has left, in bytes and in files; and what a refusal for lack of it says.
//!
//! A file system without space and one without inodes refuse with the same error (`ENOSPC`), and only its figures tell which it
//! was: who is told to make room deletes large files, who is told of inodes deletes many.

use crate::error::StoreError;
use rustix::fs::statvfs;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

/// What is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    /// What this process may use, in bytes.
    pub(crate) free_bytes: u64,
    /// How many files may be made. `None` where the file system makes inodes as they are needed.
    pub(crate) free_files: Option<u64>,
    /// What the file system has in all, in bytes.
    pub(crate) total_bytes: u64,
}

impl Space {
    /// Of the file system that a path is on.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let stat = statvfs(path)?;
        Ok(Self {
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            free_files: (stat.f_files > 0).then_some(stat.f_favail),
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }

    /// Whether no file can be made.
    pub(crate) fn has_no_files(&self) -> bool {
        self.free_files == Some(0)
    }

    /// Why there is no space, for who needs so many bytes left.
    pub(crate) fn refusal(&self, path: &Path, needed: u64) -> StoreError {
        match self.has_no_files() {
            true => StoreError::NoInodes { dir: path.to_owned() },
            false => StoreError::Full { free: self.free_bytes, needed },
        }
    }
}

/// Makes the space of what was deleted available. File systems with a journal count it as free at once, and do not give it to
/// anybody before the journal is written.
pub(crate) fn settle(path: &Path) {
    #[cfg(target_os = "linux")]
    let settled = File::open(path).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
    #[cfg(not(target_os = "linux"))]
    let settled = crate::folder::sync(path);
    if let Err(error) = settled {
        tracing::debug!(path = %path.display(), %error, "the file system could not be synced");
    }
}

/// Whether a call was refused for lack of space.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_is_lacking() {
        let path = Path::new("/data/store");
        for (free_bytes, free_files, inodes) in [
            (0, Some(0), true),
            (5 << 30, Some(0), true),
            (0, Some(1), false),
            (0, None, false),
            (7 << 20, Some(9), false),
        ] {
            let space = Space { free_bytes, free_files, total_bytes: 10 << 30 };
            let said = space.refusal(path, 10 << 20).to_string();
            assert_eq!(said.contains("inodes") && said.contains("/data/store"), inodes, "{said}");
            assert_eq!(said.contains("MiB left"), !inodes, "{said}");
        }
        let here = Space::of(&std::env::temp_dir()).expect("is there");
        assert!(here.total_bytes >= here.free_bytes);
    }
}
