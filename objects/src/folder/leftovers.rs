//! Temporary files of gateways that were killed. Those that a process could not complete it has removed itself; those
//! of others may still be written, and are removed a day after they were last changed.

use super::paths::{self, Root};
use super::writing::{TEMPORARY, Writer};
use crate::error::ObjectError;
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

/// The age in seconds from which a temporary file counts as left behind.
const AGE_SECONDS: i64 = 24 * 60 * 60;

/// Removes old temporary files, and proves that the folder can be written to.
pub(super) fn tidy_away(root: &Root, writer: &Writer) -> Result<(), ObjectError> {
    let failed = |errno| root.failed("creating a file", errno);
    let top = root.open()?;
    let (temporary, file) = writer.temporary_file(&top).map_err(failed)?;
    // The clock that counts is the one which the files' times are by.
    let now = rustix::fs::fstat(&file).map(|stat| stat.st_mtime);
    temporary.remove();
    let removed = remove_older(&top, now.map_err(failed)? - AGE_SECONDS)
        .map_err(|errno| root.failed("removing temporary files", errno))?;
    if removed > 0 {
        tracing::info!(removed, folder = %root.path().display(), "removed temporary files of killed gateways");
    }
    Ok(())
}

fn remove_older(top: &impl rustix::fd::AsFd, time: i64) -> Result<usize, Errno> {
    let folder = paths::open_folder(top, TEMPORARY)?;
    let mut removed = 0;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let Ok(stat) = rustix::fs::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_mtime < time {
            match rustix::fs::unlinkat(&folder, entry.file_name(), AtFlags::empty()) {
                Ok(()) => removed += 1,
                // Another gateway starts as well.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(removed)
}
