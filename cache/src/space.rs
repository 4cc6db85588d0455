//! [`Space`]: free space and inodes of a file system, and the error when they run out.
//!
//! A file system without space and one without inodes both fail with `ENOSPC`. Only `statvfs` tells them apart, and the
//! operator's remedy differs: delete large files, or delete many files.

use crate::error::StoreError;
use rustix::fs::statvfs;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Figures of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    /// Space that this process may use, in bytes.
    pub(crate) free_bytes: u64,
    /// Free inodes; `None` if the file system allocates inodes dynamically.
    pub(crate) free_inodes: Option<u64>,
    /// Total size, in bytes.
    pub(crate) total_bytes: u64,
}

impl Space {
    /// The figures of the file system that contains `path`.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let stat = statvfs(path)?;
        Ok(Self {
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            free_inodes: (stat.f_files > 0).then_some(stat.f_favail),
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }

    /// Whether no inodes are left.
    pub(crate) fn is_out_of_inodes(&self) -> bool {
        self.free_inodes == Some(0)
    }

    /// The error for an operation that needs `needed` bytes free.
    pub(crate) fn shortage_error(&self, path: &Path, needed: u64) -> StoreError {
        match self.is_out_of_inodes() {
            true => StoreError::NoInodes { dir: path.to_owned() },
            false => StoreError::Full { free: self.free_bytes, needed },
        }
    }
}

/// Makes the space of deleted files available. Journalling file systems count it as free at once, but allocate it only
/// after the journal is written.
pub(crate) fn settle(path: &Path) {
    #[cfg(target_os = "linux")]
    let settled = File::open(path).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
    #[cfg(not(target_os = "linux"))]
    let settled = crate::folder::sync(path);
    if let Err(error) = settled {
        tracing::debug!(
            path = %path.display(), %error,
            "syncing the file system failed, so that deleted space may become available later"
        );
    }
}

/// Whether an I/O error means lack of space.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_says_whether_space_or_inodes_are_missing() {
        let path = Path::new("/data/store");
        for (free_bytes, free_inodes, inodes) in [
            (0, Some(0), true),
            (5 << 30, Some(0), true),
            (0, Some(1), false),
            (0, None, false),
            (7 << 20, Some(9), false),
        ] {
            let space = Space { free_bytes, free_inodes, total_bytes: 10 << 30 };
            let message = space.shortage_error(path, 10 << 20).to_string();
            assert_eq!(message.contains("inodes") && message.contains("/data/store"), inodes, "{message}");
            assert_eq!(message.contains("MiB left"), !inodes, "{message}");
        }
        let here = Space::of(&std::env::temp_dir()).expect("is there");
        assert!(here.total_bytes >= here.free_bytes);
    }
}
