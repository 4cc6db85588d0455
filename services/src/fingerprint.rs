//! [`FileFingerprint`]: a fingerprint of a file, for change detection without reading it.
//!
//! One `stat` for each check. Callers take the fingerprint before they read the file, so that a replacement in between
//! is detected by the next check.
//!
//! Non-goals: detecting a change of the same file that keeps its length and modification time.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The fingerprint of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFingerprint {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl FileFingerprint {
    /// The fingerprint of an open file, or of metadata.
    pub fn of(file: &Metadata) -> Self {
        let modified = (file.mtime(), file.mtime_nsec());
        Self { device: file.dev(), inode: file.ino(), bytes: file.len(), modified }
    }

    /// The fingerprint of the file at a path, if it can be read.
    pub fn at(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|file| Self::of(&file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn states_of_a_file_are_distinguished() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        assert_eq!(FileFingerprint::at(&path), None);
        fs::write(&path, "one").expect("writes");
        let one = FileFingerprint::at(&path);
        assert!(one.is_some() && FileFingerprint::at(&path) == one);
        let open = fs::File::open(&path).expect("opens");
        assert_eq!(Some(FileFingerprint::of(&open.metadata().expect("reads"))), one);
        fs::write(&path, "longer").expect("writes");
        assert_ne!(FileFingerprint::at(&path), one);
        // Another file of the same length and time.
        let former = FileFingerprint::at(&path);
        let modified = fs::metadata(&path).and_then(|file| file.modified()).expect("reads");
        fs::write(&other, "others").expect("writes");
        fs::File::options().write(true).open(&other).and_then(|file| file.set_modified(modified)).expect("sets");
        fs::rename(&other, &path).expect("renames");
        assert_ne!(FileFingerprint::at(&path), former);
    }
}
