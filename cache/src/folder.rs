//! Folders whose names outlive power loss.
//!
//! A file that was synced is found again if its name was too, and the name of its folder, and so on upwards. Everything here blocks.

use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Makes a folder, and those above it that are missing, and forces their names to the disk: all the way up on its file
/// system, since whoever made one of them may have been killed before that.
pub(crate) fn make(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let dir = dir.canonicalize()?;
    let device = dir.metadata()?.dev();
    for parent in dir.ancestors().skip(1) {
        if parent.metadata()?.dev() != device {
            break;
        }
        match sync(parent) {
            // Somebody else's, who lets us in and does not let us look.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => break,
            synced => synced?,
        }
    }
    Ok(())
}

/// Forces the names in a folder to the disk. File systems that have no such thing refuse it, and have them there at once.
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
    fn folders_are_made_where_they_are_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        for path in ["a/b/c", "a/b/c", "a/d", ""] {
            let path = dir.path().join(path);
            make(&path).expect("makes");
            assert!(path.is_dir());
        }
        fs::write(dir.path().join("file"), "in the way").expect("writes");
        make(&dir.path().join("file")).expect_err("it is a file");
        sync(&dir.path().join("nowhere")).expect_err("it is not there");
    }
}
