//! Creates directories durably.
//!
//! After power loss, a synced file is found only if its directory entry was synced too, and so on up to the root. All
//! functions here block.

use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Creates a directory and its missing ancestors, and syncs their entries, up to the root of the file system: a process
/// that created one of them may have been killed before it synced.
pub(crate) fn create(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let dir = dir.canonicalize()?;
    let device = dir.metadata()?.dev();
    for parent in dir.ancestors().skip(1) {
        if parent.metadata()?.dev() != device {
            break;
        }
        match sync(parent) {
            // Another user's directory, which this process may traverse but not open.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => break,
            synced => synced?,
        }
    }
    Ok(())
}

/// Syncs a directory's entries. File systems without this operation fail with `EINVAL`; they write entries
/// synchronously.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_directories_are_created() {
        let dir = tempfile::tempdir().expect("a directory");
        for path in ["a/b/c", "a/b/c", "a/d", ""] {
            let path = dir.path().join(path);
            create(&path).expect("creates");
            assert!(path.is_dir());
        }
        fs::write(dir.path().join("file"), "in the way").expect("writes");
        create(&dir.path().join("file")).expect_err("it is a file");
        sync(&dir.path().join("nowhere")).expect_err("it is not there");
    }
}
