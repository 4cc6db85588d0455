//! [`AuditFile`]: the lines on the disk, and room for more of them.
//!
//! Several processes may append at a time: the gateway, and commands on its data folder. Each append is one call with
//! `O_APPEND`, so that lines do not mix, and the file's end is looked at anew before each.
//!
//! Reserve: blocks behind the end of the file are allocated ahead of time (`FALLOC_FL_KEEP_SIZE`), so that a full disk
//! does not keep changes from being recorded that make room on it. Where the file system cannot do that, its free space
//! is looked at instead.

use crate::audit::AuditError;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstatvfs};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The file, in the data folder.
pub(super) const FILE: &str = "audit.log";
/// Where the file goes when it is full; what was there is gone.
pub(super) const OLDER_FILE: &str = "audit.log.1";
/// What becomes the file when it is full.
const NEXT_FILE: &str = "audit.log.next";
/// How large a file may become, in bytes.
pub(super) const FILE_BYTES_MAX: u64 = 64 << 20;
/// What is allocated behind the end of the file, in bytes.
pub(super) const RESERVE_BYTES: u64 = 4 << 20;
/// The end of what is allocated is a multiple of this, so that most appends allocate nothing.
const STEP_BYTES: u64 = 1 << 20;

/// How much of the reserve is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Room {
    /// Not enough for what is to be written.
    None,
    /// Enough for that; half of the reserve has been used up.
    Low,
    /// At least half.
    Enough,
}

/// The files.
pub(super) struct AuditFile {
    dir: PathBuf,
    file: File,
}

impl AuditFile {
    /// Opens the log of a data folder, for more. A last line that was cut off is ended.
    pub fn open(dir: &Path) -> io::Result<Self> {
        p2p_bridge::durable::create_folder(dir)?;
        let mut opened = Self { dir: dir.to_owned(), file: open(dir, FILE)? };
        sync_folder(dir)?;
        opened.end_last_line()?;
        if opened.room(0)? < Room::Enough {
            tracing::warn!("there is no room on the disk to keep some for the audit log: changes may be refused");
        }
        Ok(opened)
    }

    /// Whether so many bytes can be appended, and what is left of the reserve then.
    pub fn room(&mut self, bytes: u64) -> io::Result<Room> {
        let end = self.file.metadata()?.len();
        if self.allocate(end, bytes + RESERVE_BYTES) || self.allocate(end, bytes + RESERVE_BYTES / 2) {
            return Ok(Room::Enough);
        }
        Ok(if self.allocate(end, bytes) { Room::Low } else { Room::None })
    }

    /// Allocates blocks behind the end of the file. What is allocated already costs nothing.
    fn allocate(&self, end: u64, bytes: u64) -> bool {
        let wanted = (end + bytes).next_multiple_of(STEP_BYTES);
        let allocate = |length: u64| fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, length);
        match allocate(wanted).or_else(|_| allocate(end + bytes)) {
            Ok(()) => true,
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => false,
            // The file system cannot do this. Nobody else may take what is free, for the time of one append.
            Err(_) => fstatvfs(&self.file).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= bytes),
        }
    }

    /// Appends whole lines. They are on the disk after [`Self::sync`].
    ///
    /// # Errors
    /// [`AuditError`]. A part of the lines may have been written.
    pub fn append(&mut self, lines: &[u8]) -> Result<(), AuditError> {
        _ = self.go_on_in_the_newest()?;
        let bytes = self.file.metadata()?.len();
        if bytes > 0 && bytes + lines.len() as u64 > FILE_BYTES_MAX {
            // A disk that has no room for another file may have some for a longer one.
            match self.rotate() {
                Err(error) if bytes > 2 * FILE_BYTES_MAX => return Err(error.into()),
                Err(error) => tracing::warn!(%error, "the audit log is too long, and another file cannot be begun"),
                Ok(()) => {}
            }
        }
        self.end_last_line()?;
        Ok(self.file.write_all(lines)?)
    }

    /// Sees to it that what was appended outlives a power cut.
    pub fn sync(&mut self) -> io::Result<()> {
        match self.file.sync_data() {
            // A device that is no disk has nothing to sync.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }

    /// A line that was cut off by a power cut or a full disk must not swallow the next one.
    fn end_last_line(&mut self) -> io::Result<()> {
        let bytes = self.file.metadata()?.len();
        let mut last = [b'\n'];
        if bytes == 0 || self.file.read_at(&mut last, bytes - 1)? == 0 || last == [b'\n'] {
            return Ok(());
        }
        tracing::warn!(file = FILE, "the last record of the audit log was cut off: it is left as it is, and ended");
        self.file.write_all(b"\n")
    }

    /// Another process may have begun another file: this one is then the older, and would take its place. Whether it has.
    fn go_on_in_the_newest(&mut self) -> io::Result<bool> {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let newest = fs::metadata(self.dir.join(FILE)).map(identity);
        let is_older = newest.is_ok_and(|newest| self.file.metadata().map(identity).is_ok_and(|own| own != newest));
        if is_older {
            self.file = open(&self.dir, FILE)?;
        }
        Ok(is_older)
    }

    /// Begins another file, unless another process has done so meanwhile.
    fn rotate(&mut self) -> io::Result<()> {
        let former = self.file.try_clone()?;
        // Where the file system knows no locks, two commands at the same moment are left to chance.
        _ = flock(&former, FlockOperation::LockExclusive);
        let rotated = match self.go_on_in_the_newest() {
            Ok(false) => self.begin_another(),
            gone_on => gone_on.map(drop),
        };
        _ = flock(&former, FlockOperation::Unlock);
        rotated
    }

    /// Begins another file. Whenever the process ends, either file is there under its former or its latter name. The reserve of
    /// this one does not come along: where there is no room for another, it goes on.
    fn begin_another(&mut self) -> io::Result<()> {
        let place = |name: &str| self.dir.join(name);
        let next = open(&self.dir, NEXT_FILE)?;
        next.set_len(0)?;
        let mut next = Self { dir: self.dir.clone(), file: next };
        if next.room(0)? < Room::Enough {
            fs::remove_file(place(NEXT_FILE))?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        fs::rename(place(FILE), place(OLDER_FILE))?;
        fs::rename(place(NEXT_FILE), place(FILE))?;
        self.file = next.file;
        sync_folder(&self.dir)
    }
}

/// Opens a file of the data folder for more, and gives it to whoever has the folder: a command that root runs must not
/// keep the gateway from writing.
fn open(dir: &Path, name: &str) -> io::Result<File> {
    let path = dir.join(name);
    let link = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_symlink);
    if link.is_some_and(|link| link.uid() != 0) && rustix::process::geteuid().is_root() {
        let words = format!("{} is a link that root did not make, and does not follow", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
    }
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
    crate::access::token_store::hand_over(dir, &path)?;
    Ok(file)
}

fn sync_folder(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dir: &Path, file: &str) -> String {
        fs::read_to_string(dir.join(file)).expect("reads")
    }

    #[test]
    fn a_full_file_makes_room_for_another() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = AuditFile::open(dir.path()).expect("opens");
        file.append(b"one\n").expect("fits");
        file.file.set_len(FILE_BYTES_MAX - 4).expect("a long file");
        // What an earlier process left when it ended in between.
        fs::write(dir.path().join(NEXT_FILE), "left over\n").expect("writes");
        file.append(b"two\nthree\n").expect("into a new one");
        assert!(read(dir.path(), OLDER_FILE).starts_with("one\n"));
        assert_eq!(read(dir.path(), FILE), "two\nthree\n");
        assert!(!dir.path().join(NEXT_FILE).exists());
    }

    #[test]
    fn the_older_file_stays_when_another_process_began_a_new_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut gateway = AuditFile::open(dir.path()).expect("opens");
        gateway.append(b"one\n").expect("fits");
        gateway.file.set_len(FILE_BYTES_MAX - 4).expect("a long file");
        let mut command = AuditFile::open(dir.path()).expect("opens");
        command.append(b"two\n two\n").expect("into a new one");
        gateway.append(b"three\n").expect("into the same");
        assert!(read(dir.path(), OLDER_FILE).starts_with("one\n"));
        assert_eq!(read(dir.path(), FILE), "two\n two\nthree\n");
    }

    #[test]
    fn a_line_that_was_cut_off_swallows_none() {
        // What is there, and what is there after another line.
        let table = [("", "{}\n"), ("{}\n", "{}\n{}\n"), ("{\"at\":1", "{\"at\":1\n{}\n"), ("\n", "\n{}\n")];
        for (former, latter) in table {
            // It was cut off before the log was opened, or by another process since.
            for opened_before in [false, true] {
                let dir = tempfile::tempdir().expect("a folder");
                let open = || AuditFile::open(dir.path()).expect("opens");
                let early = opened_before.then(open);
                fs::write(dir.path().join(FILE), former).expect("writes");
                let mut file = early.unwrap_or_else(open);
                file.append(b"{}\n").expect("fits");
                assert_eq!(read(dir.path(), FILE), latter, "{former:?} {opened_before}");
            }
        }
    }
}
