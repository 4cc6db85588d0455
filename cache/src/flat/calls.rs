//! The file system calls of the store, one function for each that changes something, so that tests can simulate power
//! loss before any of them and inject faults (`power`).
//!
//! All functions here block.

#[cfg(test)]
use super::power::{Call, intercept};
use crate::folder;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Creates a directory.
pub(super) fn create_dir(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    let _guard = intercept(Call::Make(path))?;
    fs::create_dir(path)
}

/// Creates a file with these pieces. If `durable`, its contents are synced when this returns, but not its name.
pub(super) fn write_new(path: &Path, pieces: &[&[u8]], durable: bool) -> io::Result<()> {
    let file = write_pieces(path, pieces)?;
    if durable { sync(&file, path) } else { Ok(()) }
}

fn write_pieces(path: &Path, pieces: &[&[u8]]) -> io::Result<File> {
    #[cfg(test)]
    let _guard = intercept(Call::Write(path, 0))?;
    let mut file = File::create_new(path)?;
    pieces.iter().try_for_each(|piece| file.write_all(piece))?;
    Ok(file)
}

/// Truncates a file to `length` bytes, creating it if need be, and appends `bytes`. The caller keeps the file open
/// until it is synced, since the kernel reports asynchronous write errors only to open descriptors.
pub(super) fn append(path: &Path, length: u64, bytes: &[u8]) -> io::Result<File> {
    #[cfg(test)]
    let _guard = intercept(Call::Write(path, length))?;
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    file.set_len(length)?;
    file.write_all_at(bytes, length)?;
    Ok(file)
}

/// Syncs a file's contents.
pub(super) fn sync(file: &File, path: &Path) -> io::Result<()> {
    #[cfg(test)]
    let _guard = intercept(Call::Sync(path))?;
    #[cfg(not(test))]
    let _ = path;
    file.sync_data()
}

/// Renames a file, replacing an existing one.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(test)]
    let _guard = intercept(Call::Rename(from, to))?;
    fs::rename(from, to)
}

/// Deletes a file.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    let _guard = intercept(Call::Remove(path))?;
    fs::remove_file(path)
}

/// Syncs a directory's entries.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    let _guard = intercept(Call::SyncFolder(path))?;
    folder::sync(path)
}
