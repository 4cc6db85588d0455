//! The bytes of an object.

use super::paths::Root;
use crate::error::ObjectError;
use bytes::Bytes;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read as _;

/// How often a file is opened that the server no longer knows: another machine has deleted it, or the server has
/// restarted.
const ATTEMPTS: u32 = 3;

/// Reads an object; `None` if there is none.
pub(super) fn read(root: &Root, name: &str, bytes_max: u64) -> Result<Option<Bytes>, ObjectError> {
    let mut number = 1;
    loop {
        match read_once(root, name, bytes_max)? {
            Ok(read) => return Ok(read),
            Err(Errno::STALE) if number < ATTEMPTS => number += 1,
            Err(errno) => return Err(root.failed(&format!("reading {name}"), errno)),
        }
    }
}

fn read_once(root: &Root, name: &str, bytes_max: u64) -> Result<Result<Option<Bytes>, Errno>, ObjectError> {
    let Some((folder, last)) = root.parent(name)? else { return Ok(Ok(None)) };
    // Without waiting, if somebody has put a pipe there.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&folder, last, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Ok(None)),
        Err(errno) => return Ok(Err(errno)),
    };
    let stat = match rustix::fs::fstat(&file) {
        Ok(stat) => stat,
        Err(errno) => return Ok(Err(errno)),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        // The name of a folder is that of no object.
        FileType::Directory => return Ok(Ok(None)),
        _ => {
            return Err(ObjectError::refused(format!("{name} in {} is not a file", root.path().display())));
        }
    }
    let expected = u64::try_from(stat.st_size).unwrap_or_default();
    if expected > bytes_max {
        return Err(ObjectError::too_long(name, expected, bytes_max));
    }
    let mut data = Vec::with_capacity(usize::try_from(expected).unwrap_or_default());
    if let Err(error) = File::from(file).take(expected + 1).read_to_end(&mut data) {
        return Ok(Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)));
    }
    if data.len() as u64 != expected {
        // Files of objects do not change.
        return Err(ObjectError::unavailable(format!(
            "{name} in {} has changed while it was read",
            root.path().display()
        )));
    }
    Ok(Ok(Some(data.into())))
}
