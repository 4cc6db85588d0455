//! What the store asks of the file system, one function for each call that changes something: so that tests can cut the power
//! before any of them, know what it takes away, and let calls fail (`power`).
//!
//! Everything here blocks.

#[cfg(test)]
use super::power::{Call, meet};
use crate::folder;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Makes a folder.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    let _met = meet(Call::Make(path))?;
    fs::create_dir(path)
}

/// Makes a file of these pieces. They are on the disk when this returns if it is to be `durable`; its name need not be.
pub(super) fn write_new(path: &Path, pieces: &[&[u8]], durable: bool) -> io::Result<()> {
    let file = write_pieces(path, pieces)?;
    if durable { sync(&file, path) } else { Ok(()) }
}

fn write_pieces(path: &Path, pieces: &[&[u8]]) -> io::Result<File> {
    #[cfg(test)]
    let _met = meet(Call::Write(path, 0))?;
    let mut file = File::create_new(path)?;
    pieces.iter().try_for_each(|piece| file.write_all(piece))?;
    Ok(file)
}

/// Writes behind the first `length` bytes of a file, which is made if need be; what came after those is gone. The file is to be
/// kept open until it is synced: the system tells of a write that failed later to who had it open meanwhile.
pub(super) fn append(path: &Path, length: u64, bytes: &[u8]) -> io::Result<File> {
    #[cfg(test)]
    let _met = meet(Call::Write(path, length))?;
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    file.set_len(length)?;
    file.write_all_at(bytes, length)?;
    Ok(file)
}

/// Forces the content of a file to the disk.
pub(super) fn sync(file: &File, path: &Path) -> io::Result<()> {
    #[cfg(test)]
    let _met = meet(Call::Sync(path))?;
    #[cfg(not(test))]
    let _ = path;
    file.sync_data()
}

/// Gives a file another name, in the place of whatever has that.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(test)]
    let _met = meet(Call::Rename(from, to))?;
    fs::rename(from, to)
}

/// Deletes a file.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    let _met = meet(Call::Remove(path))?;
    fs::remove_file(path)
}

/// Forces the names in a folder to the disk.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    let _met = meet(Call::SyncFolder(path))?;
    folder::sync(path)
}
