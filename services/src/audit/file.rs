//! [`AuditFile`]: the audit log on the disk, and its reserved space.
//!
//! Several processes may append concurrently: the gateway, and commands on its data directory. Each append is one call
//! with `O_APPEND`, so that lines do not mix.
//!
//! Reserve: blocks after the end of the file are preallocated (`FALLOC_FL_KEEP_SIZE`), so that changes that free space
//! on a full disk can be recorded. If the file system does not support that, its free space is checked instead.

use crate::audit::AuditError;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstatvfs};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The file in the data directory.
pub(super) const FILE: &str = "audit.log";
/// The rotated file. It replaces the previous one.
pub(super) const OLDER_FILE: &str = "audit.log.1";
/// The next file, during rotation.
const NEXT_FILE: &str = "audit.log.next";
/// The size at which the file is rotated, in bytes.
pub(super) const FILE_BYTES_MAX: u64 = 64 << 20;
/// The size of the reserve after the end of the file, in bytes.
pub(super) const RESERVE_BYTES: u64 = 4 << 20;
/// Allocations end at a multiple of this, so that most appends allocate nothing.
const STEP_BYTES: u64 = 1 << 20;

/// How much of the reserve is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReserveLevel {
    /// Not enough for the record.
    None,
    /// Enough for the record, but half of the reserve is used up.
    Low,
    /// At least half.
    Enough,
}

/// The audit log files of a data directory.
pub(super) struct AuditFile {
    dir: PathBuf,
    file: File,
}

impl AuditFile {
    /// Opens the log of a data directory for appending. An incomplete last line is terminated.
    pub fn open(dir: &Path) -> io::Result<Self> {
        p2p_bridge::durable::create_folder(dir)?;
        let mut opened = Self { dir: dir.to_owned(), file: open(dir, FILE)? };
        sync_folder(dir)?;
        opened.terminate_last_line()?;
        if opened.reserve_level(0)? < ReserveLevel::Enough {
            tracing::warn!("the disk is too full to reserve space for the audit log: changes may be rejected");
        }
        Ok(opened)
    }

    /// Checks whether so many bytes can be appended, and what is then left of the reserve.
    pub fn reserve_level(&mut self, bytes: u64) -> io::Result<ReserveLevel> {
        let end = self.file.metadata()?.len();
        if self.allocate(end, bytes + RESERVE_BYTES) || self.allocate(end, bytes + RESERVE_BYTES / 2) {
            return Ok(ReserveLevel::Enough);
        }
        Ok(if self.allocate(end, bytes) { ReserveLevel::Low } else { ReserveLevel::None })
    }

    /// Preallocates blocks after the end of the file. Idempotent.
    fn allocate(&self, end: u64, bytes: u64) -> bool {
        let wanted = (end + bytes).next_multiple_of(STEP_BYTES);
        let allocate = |length: u64| fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, length);
        match allocate(wanted).or_else(|_| allocate(end + bytes)) {
            Ok(()) => true,
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => false,
            // The file system does not support it. No other process is expected to use the free space during the
            // append.
            Err(_) => fstatvfs(&self.file).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= bytes),
        }
    }

    /// Appends whole lines. They are durable after [`Self::sync`].
    ///
    /// # Errors
    /// [`AuditError`]. Part of the lines may have been written.
    pub fn append(&mut self, lines: &[u8]) -> Result<(), AuditError> {
        _ = self.follow_rotation()?;
        let bytes = self.file.metadata()?.len();
        if bytes > 0 && bytes + lines.len() as u64 > FILE_BYTES_MAX {
            // If there is no space for another file, there may be some for a longer one.
            match self.rotate() {
                Err(error) if bytes > 2 * FILE_BYTES_MAX => return Err(error.into()),
                Err(error) => tracing::warn!(%error, "the audit log exceeds its maximum size, and rotating it failed"),
                Ok(()) => {}
            }
        }
        self.terminate_last_line()?;
        Ok(self.file.write_all(lines)?)
    }

    /// Makes appended lines durable.
    pub fn sync(&mut self) -> io::Result<()> {
        match self.file.sync_data() {
            // A device that is not a disk has nothing to sync.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }

    /// Terminates a last line that a power failure or a full disk left incomplete, so that the next one is not appended
    /// to it.
    fn terminate_last_line(&mut self) -> io::Result<()> {
        let bytes = self.file.metadata()?.len();
        let mut last = [b'\n'];
        if bytes == 0 || self.file.read_at(&mut last, bytes - 1)? == 0 || last == [b'\n'] {
            return Ok(());
        }
        tracing::warn!(file = FILE, "the last record of the audit log is incomplete and is kept as it is");
        self.file.write_all(b"\n")
    }

    /// Reopens the log if another process has rotated it. Returns whether it has.
    fn follow_rotation(&mut self) -> io::Result<bool> {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let newest = fs::metadata(self.dir.join(FILE)).map(identity);
        let is_older = newest.is_ok_and(|newest| self.file.metadata().map(identity).is_ok_and(|own| own != newest));
        if is_older {
            self.file = open(&self.dir, FILE)?;
        }
        Ok(is_older)
    }

    /// Rotates the log, unless another process has done so meanwhile.
    fn rotate(&mut self) -> io::Result<()> {
        let former = self.file.try_clone()?;
        // On a file system without locks, two commands that rotate at the same moment may race.
        _ = flock(&former, FlockOperation::LockExclusive);
        let rotated = match self.follow_rotation() {
            Ok(false) => self.start_next_file(),
            gone_on => gone_on.map(drop),
        };
        _ = flock(&former, FlockOperation::Unlock);
        rotated
    }

    /// Starts the next file. If the process ends at any point, either file exists under its old or its new name. The
    /// new file needs a reserve of its own: without space for it, the current file is used further.
    fn start_next_file(&mut self) -> io::Result<()> {
        let place = |name: &str| self.dir.join(name);
        let next = open(&self.dir, NEXT_FILE)?;
        next.set_len(0)?;
        let mut next = Self { dir: self.dir.clone(), file: next };
        if next.reserve_level(0)? < ReserveLevel::Enough {
            fs::remove_file(place(NEXT_FILE))?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        fs::rename(place(FILE), place(OLDER_FILE))?;
        fs::rename(place(NEXT_FILE), place(FILE))?;
        self.file = next.file;
        sync_folder(&self.dir)
    }
}

/// Opens a file of the data directory for appending, and gives it the owner of the folder, so that the gateway can
/// write what a command created as root.
fn open(dir: &Path, name: &str) -> io::Result<File> {
    let path = dir.join(name);
    let link = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_symlink);
    if link.is_some_and(|link| link.uid() != 0) && rustix::process::geteuid().is_root() {
        let words = format!("{} is a symbolic link that root did not create, and is not followed", path.display());
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
    fn a_full_file_is_rotated() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = AuditFile::open(dir.path()).expect("opens");
        file.append(b"one\n").expect("fits");
        file.file.set_len(FILE_BYTES_MAX - 4).expect("a long file");
        // Left by an earlier process that ended during the rotation.
        fs::write(dir.path().join(NEXT_FILE), "left over\n").expect("writes");
        file.append(b"two\nthree\n").expect("into a new one");
        assert!(read(dir.path(), OLDER_FILE).starts_with("one\n"));
        assert_eq!(read(dir.path(), FILE), "two\nthree\n");
        assert!(!dir.path().join(NEXT_FILE).exists());
    }

    #[test]
    fn the_older_file_stays_when_another_process_rotated() {
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
    fn an_incomplete_line_is_terminated() {
        // The content before, and the content after another line.
        let table = [("", "{}\n"), ("{}\n", "{}\n{}\n"), ("{\"at\":1", "{\"at\":1\n{}\n"), ("\n", "\n{}\n")];
        for (former, latter) in table {
            // The line was incomplete before the log was opened, or another process left it so since.
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
