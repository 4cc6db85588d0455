//! Files that are written whole or not at all, for their owner's eyes only, and that outlive a power cut from the moment
//! that a call here has returned.
//!
//! A file is written beside its place, synced, and moved there; then the folder is synced, for until that is done the move
//! itself may be undone. Non-goal: several writers of one file, whom the caller has to keep apart.
//!
//! When that last step fails, the change is made all the same: everybody who reads sees it, and so does the next start, unless
//! the power fails first. A caller who took it for not made would hold to what is no longer so: keep a key that is removed,
//! or miss a file under its new name. So that is no error, but told of in the log; nothing else can be done about it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Makes a folder, with those above it, that nobody else can look into.
///
/// # Errors
/// Whatever the file system says.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Writes a file, which may be there already.
///
/// # Errors
/// Whatever the file system says. The file is then as it was.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    rename(&partial, path)
}

/// Moves a file within its folder, over another if there is one.
///
/// # Errors
/// Whatever the file system says. Nothing has changed then.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    finish(to, fs::rename(from, to), sync_folder)
}

/// Removes a file; that it is not there is no error.
///
/// # Errors
/// Whatever the file system says. Nothing has changed then.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    finish(path, removed, sync_folder)
}

/// Reads a file that may have so many bytes at most.
///
/// # Errors
/// Whatever the file system says, and that there is more.
pub fn read(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max { Err(io::Error::other("the file is too large")) } else { Ok(bytes) }
}

/// Makes the change of a file outlive a power cut, if there was one.
fn finish(path: &Path, changed: io::Result<()>, sync: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    changed?;
    if let Some(Err(error)) = path.parent().map(sync) {
        tracing::error!(path = %path.display(), %error, "a file was changed, but a power cut may still undo that");
    }
    Ok(())
}

fn sync_folder(path: &Path) -> io::Result<()> {
    // What is above "folder" is the folder that the process is in.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_replaced_whole_and_are_the_owners() {
        let folder = tempfile::tempdir().expect("folder");
        let inside = folder.path().join("a/b");
        create_folder(&inside).expect("makes");
        let path = inside.join("file.key");
        for text in ["one", "another"] {
            write(&path, text.as_bytes()).expect("writes");
            assert_eq!(read(&path, 7).expect("reads"), text.as_bytes());
        }
        assert!(read(&path, 6).is_err(), "too large");
        let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&inside)), (0o600, 0o700));
        assert_eq!(fs::read_dir(&inside).expect("reads").count(), 1, "nothing is left beside it");
        for _ in 0..2 {
            remove(&path).expect("removes, or there is nothing to remove");
        }
    }

    #[test]
    fn a_name_alone_has_a_folder_too() {
        let above = Path::new("name").parent().expect("an empty path");
        assert!(above.as_os_str().is_empty() && sync_folder(above).is_ok());
    }

    #[test]
    fn a_change_that_was_made_is_no_failure() {
        let error = || io::Error::other("the disk is in trouble");
        // Whether the file was changed, whether its folder was synced, and whether the caller is to go by the change.
        for (changed, synced, made) in [(true, true, true), (true, false, true), (false, true, false)] {
            let mut asked = false;
            let outcome = finish(Path::new("/folder/file"), if changed { Ok(()) } else { Err(error()) }, |folder| {
                asked = folder == Path::new("/folder");
                if synced { Ok(()) } else { Err(error()) }
            });
            assert_eq!((outcome.is_ok(), asked), (made, changed), "{changed} {synced}");
        }
    }
}
