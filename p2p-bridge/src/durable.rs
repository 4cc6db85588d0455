//! Files that are written whole or not at all, for their owner's eyes only, and that outlive a power cut from the moment
//! that a call here has returned.
//!
//! A file is written beside its place, synced, and moved there; then the folder is synced, for until that is done the move
//! itself may be undone. Non-goal: several writers of one file, whom the caller has to keep apart.
//!
//! When that last step fails, the change is undone and the call fails, so that what everybody reads is what the caller was told:
//! the former file, which is kept beside its place until then, is moved back. What a power cut leaves then is the one
//! or the other. The sync is not tried again: systems tell of a write that failed once, and say that all is well the next time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a former file is called until its successor is on the disk.
const FORMER: &str = "former";

/// Makes a folder, with those above it, that nobody else can look into. Their names are on the disk when this returns: all the
/// way up on the file system, since whoever made one of them may have been killed before it was synced.
///
/// # Errors
/// Whatever the file system says.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let path = path.canonicalize()?;
    let device = path.metadata()?.dev();
    for parent in path.ancestors().skip(1) {
        if parent.metadata()?.dev() != device {
            break;
        }
        match sync_folder(parent) {
            // Somebody else's, who lets us in and does not let us look.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => break,
            synced => synced?,
        }
    }
    Ok(())
}

/// Writes a file, which may be there already.
///
/// # Errors
/// Whatever the file system says. The file is then as it was.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(path, bytes, sync_folder)
}

fn write_with(path: &Path, bytes: &[u8], sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.and_then(|()| rename_with(&partial, path, sync)).inspect_err(|_| _ = fs::remove_file(&partial))
}

/// Moves a file within its folder, over another if there is one.
///
/// # Errors
/// Whatever the file system says. Nothing has changed then.
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

/// Removes a file; that it is not there is no error.
///
/// # Errors
/// Whatever the file system says. Nothing has changed then.
pub fn remove(path: &Path) -> io::Result<()> {
    remove_with(path, sync_folder)
}

fn remove_with(path: &Path, sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let former = former_of(path);
    match fs::rename(path, &former) {
        Err(error) if error.kind() == ErrorKind::NotFound => return sync_parent(path, sync),
        // A full disk may have no room for another name. Whoever removes something gives space back, and cannot have both.
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
    // It has lost its name for good. That what was in it is gone too may be a secret's due, but is no part of the promise.
    fs::remove_file(&former)
}

/// Gives the file at a place a second name, if there is one, under which it can be had back.
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
        // A file system without second names.
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
    tracing::error!(path = %path.display(), %error, "a change of a file was refused, and could not be undone");
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

fn sync_parent(path: &Path, sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync)
}

/// Forces the names in a folder to the disk. File systems that have no such thing refuse it, and have them there at once.
fn sync_folder(path: &Path) -> io::Result<()> {
    // What is above "folder" is the folder that the process is in.
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

    /// What is in a folder, by name.
    fn content(folder: &Path) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(folder).expect("reads").map(|entry| entry.expect("reads").path());
        let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
        let mut content: Vec<_> = entries.map(|path| (name(&path), fs::read(&path).expect("reads"))).collect();
        content.sort();
        content
    }

    type Change = fn(&Path, fn(&Path) -> io::Result<()>) -> io::Result<()>;

    #[test]
    fn a_change_that_is_not_on_the_disk_is_refused_and_undone() {
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
    fn what_a_killed_process_left_is_in_nobodys_way() {
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
