//! Atomic and durable file writes: a file is replaced as a whole, is readable only by its owner, and is on the disk
//! when the call returns.
//!
//! The new content is written to a temporary file, synced and renamed; then the folder is synced, since a power cut
//! could undo the rename before that. Non-goal: concurrent writers of one file; the caller serialises them.
//!
//! If the folder cannot be synced, the change is undone and the call fails, so that readers see what the caller was
//! told: the former file, which is kept beside it until then, is moved back. After a power cut the file is either the
//! former or the new one. The sync is not retried: systems report a failed write only once, and later syncs succeed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Suffix of the former file until the new one is on the disk.
const FORMER: &str = "former";

/// Creates a folder and its parents, accessible only to the owner. All their names are synced when this returns, up to
/// the root of the file system, since a process that created a parent may have been killed before it synced.
///
/// # Errors
/// Errors of the file system.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let path = path.canonicalize()?;
    let device = path.metadata()?.dev();
    for parent in path.ancestors().skip(1) {
        if parent.metadata()?.dev() != device {
            break;
        }
        match sync_folder(parent) {
            // A folder of another user, which can be traversed but not read.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => break,
            synced => synced?,
        }
    }
    Ok(())
}

/// Writes or replaces a file.
///
/// # Errors
/// Errors of the file system. The file is unchanged then.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(path, bytes, sync_folder)
}

fn write_with(path: &Path, bytes: &[u8], sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.and_then(|()| rename_with(&partial, path, sync)).inspect_err(|_| _ = fs::remove_file(&partial))
}

/// Renames a file within its folder, replacing another if there is one.
///
/// # Errors
/// Errors of the file system. Nothing has changed then.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    rename_with(from, to, sync_folder)
}

fn rename_with(from: &Path, to: &Path, sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let former = keep_former(to)?;
    let renamed = fs::rename(from, to);
    if renamed.is_ok()
        && let Err(error) = sync_parent(to, sync)
    {
        let undone =
            fs::rename(to, from).and_then(|()| former.as_ref().map_or(Ok(()), |former| fs::rename(former, to)));
        undone.inspect_err(|error| not_undone(to, error)).ok();
        return Err(error);
    }
    former.into_iter().for_each(|former| _ = fs::remove_file(former));
    renamed
}

/// Removes a file. A missing file is no error.
///
/// # Errors
/// Errors of the file system. Nothing has changed then.
pub fn remove(path: &Path) -> io::Result<()> {
    remove_with(path, sync_folder)
}

fn remove_with(path: &Path, sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let former = former_of(path);
    match fs::rename(path, &former) {
        Err(error) if error.kind() == ErrorKind::NotFound => return sync_parent(path, sync),
        // A full disk may have no space for another directory entry. Removing must still work there, without a way to
        // undo it.
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            fs::remove_file(path)?;
            return sync_parent(path, sync);
        }
        renamed => renamed?,
    }
    if let Err(error) = sync_parent(path, sync) {
        fs::rename(&former, path).inspect_err(|error| not_undone(path, error)).ok();
        return Err(error);
    }
    // The removal is durable. Deleting the former file, which may have a secret, need not be durable.
    fs::remove_file(&former)
}

/// Creates a hard link to the file, if there is one, so that the change can be undone.
fn keep_former(path: &Path) -> io::Result<Option<PathBuf>> {
    let former = former_of(path);
    // Left by a process that was killed.
    match fs::remove_file(&former) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match fs::hard_link(path, &former) {
        Ok(()) => Ok(Some(former)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        // The file system has no hard links.
        Err(_) => fs::copy(path, &former).map(|_| Some(former)),
    }
}

fn former_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(FORMER);
    path.with_file_name(name)
}

fn not_undone(path: &Path, error: &io::Error) {
    tracing::error!(path = %path.display(), %error, "cannot undo a failed file change: a power cut may revert it");
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// Errors of the file system, or the file is longer.
pub fn read(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max { Err(io::Error::other("the file is too large")) } else { Ok(bytes) }
}

fn sync_parent(path: &Path, sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync)
}

/// Syncs a folder. File systems that do not support this return an error, and need no sync.
fn sync_folder(path: &Path) -> io::Result<()> {
    // The parent of a relative path "name" is the current directory.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match File::open(path).and_then(|folder| folder.sync_all()) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_replaced_atomically_and_are_private() {
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
    fn a_relative_name_has_a_parent_folder() {
        let above = Path::new("name").parent().expect("an empty path");
        assert!(above.as_os_str().is_empty() && sync_folder(above).is_ok());
    }

    /// The files of a folder, by name.
    fn content(folder: &Path) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(folder).expect("reads").map(|entry| entry.expect("reads").path());
        let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
        let mut content: Vec<_> = entries.map(|path| (name(&path), fs::read(&path).expect("reads"))).collect();
        content.sort();
        content
    }

    type Change = fn(&Path, fn(&Path) -> io::Result<()>) -> io::Result<()>;

    #[test]
    fn a_change_that_cannot_be_synced_fails_and_is_undone() {
        let changes: [(&str, Change); 6] = [
            ("a file is replaced", |folder, sync| write_with(&folder.join("a.json"), b"new", sync)),
            ("a file is made", |folder, sync| write_with(&folder.join("c.json"), b"new", sync)),
            ("a file is moved", |folder, sync| rename_with(&folder.join("a.json"), &folder.join("c.json"), sync)),
            ("over another", |folder, sync| rename_with(&folder.join("a.json"), &folder.join("b.json"), sync)),
            ("a file is removed", |folder, sync| remove_with(&folder.join("a.json"), sync)),
            ("one that is not there is removed", |folder, sync| remove_with(&folder.join("c.json"), sync)),
        ];
        for (what, change) in changes {
            let folder = tempfile::tempdir().expect("folder");
            for name in ["a.json", "b.json"] {
                write(&folder.path().join(name), name.as_bytes()).expect("writes");
            }
            let before = content(folder.path());
            let error = change(folder.path(), |_| Err(io::Error::other("the disk is in trouble")));
            assert_eq!(error.expect_err(what).to_string(), "the disk is in trouble");
            assert_eq!(content(folder.path()), before, "{what}");
            change(folder.path(), sync_folder).expect(what);
            let after = content(folder.path());
            assert_eq!(after == before, what.contains("not there"), "{what}");
            let names = after.iter().filter(|(name, _)| !name.ends_with(".json"));
            assert_eq!(names.count(), 0, "{what}: nothing is left beside it");
        }
    }

    #[test]
    fn leftovers_of_a_killed_process_do_no_harm() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a.json");
        for left in ["a.json.former", "a.partial"] {
            fs::write(folder.path().join(left), b"left").expect("writes");
        }
        write(&path, b"one").expect("writes");
        write(&path, b"two").expect("writes");
        assert_eq!(content(folder.path()), [("a.json".to_owned(), b"two".to_vec())]);
        fs::write(folder.path().join("a.json.former"), b"left").expect("writes");
        remove(&path).expect("removes");
        assert_eq!(content(folder.path()), []);
    }
}
