//! Ownership of the files that a command run as root leaves in a data folder.
//!
//! A command that root runs beside a gateway of another user would leave files that the gateway can neither read nor
//! replace. So after the command, all files of root's in the data folder are chowned to the owner of the folder.
//!
//! The command does not drop its privileges instead, since `causeway add` may have to read files of root's.

use rustix::fs::{AtFlags, CWD, Gid, Uid, chownat};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, pipe};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The maximum number of passes over the folder: an interrupted command may still create files during a pass.
const PASSES_MAX: usize = 4;

/// The result of one pass over all files.
#[derive(Default)]
struct Pass {
    chowned: u64,
    failure: Option<io::Error>,
}

/// The owner of a data folder that a command run as root works on.
#[derive(Debug)]
pub struct Ownership {
    folder: PathBuf,
    owner: Uid,
    group: Gid,
}

impl Ownership {
    /// The owner of a data folder; `None` unless this process runs as root and the folder belongs to another user.
    pub fn of(folder: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let found = fs::metadata(folder).ok().filter(|found| found.uid() != 0)?;
        let (owner, group) = (Uid::from_raw(found.uid()), Gid::from_raw(found.gid()));
        Some(Self { folder: folder.to_owned(), owner, group })
    }

    /// Chowns every file and folder of root's below the data folder to its owner, and repeats that while there are new
    /// ones. Symlinks are not followed.
    ///
    /// # Errors
    /// The error of the last file that could not be chowned. All others were.
    pub fn restore(&self) -> io::Result<()> {
        for _ in 0..PASSES_MAX {
            let mut pass = Pass::default();
            self.pass(&mut pass);
            match pass.failure {
                Some(error) => return Err(error),
                None if pass.chowned == 0 => break,
                None => {}
            }
        }
        Ok(())
    }

    fn pass(&self, pass: &mut Pass) {
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                // A running gateway may remove folders and files meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    pass.failure = Some(error);
                    continue;
                }
            };
            for entry in entries.flatten() {
                let Ok(found) = entry.metadata() else { continue };
                if found.uid() == 0 {
                    match self.chown(&entry.path()) {
                        Ok(()) => pass.chowned += 1,
                        Err(error) => pass.failure = Some(error),
                    }
                }
                if found.is_dir() {
                    folders.push(entry.path());
                }
            }
        }
    }

    /// On SIGINT or SIGTERM, calls [`Ownership::restore`] before the signal's default action ends the process. A second
    /// signal ends it at once.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn restore_when_ended(&'static self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM] {
            let (mut arrived, sender) = UnixStream::pair()?;
            pipe::register(signal, sender)?;
            std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
                for is_first in [true, false] {
                    if arrived.read_exact(&mut [0]).is_err() {
                        return;
                    }
                    let end = move || {
                        if is_first {
                            // The process ends now, so an error cannot be reported.
                            _ = self.restore();
                        }
                        _ = emulate_default_handler(signal);
                    };
                    if !is_first || std::thread::Builder::new().spawn(end).is_err() {
                        _ = emulate_default_handler(signal);
                    }
                }
            })?;
        }
        Ok(())
    }

    fn chown(&self, path: &Path) -> io::Result<()> {
        match chownat(CWD, path, Some(self.owner), Some(self.group), AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only root can chown files; run as another user, this tests that nothing is done.
    #[test]
    fn files_of_root_are_chowned_to_the_owner_of_the_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        if !rustix::process::geteuid().is_root() {
            assert!(Ownership::of(dir.path()).is_none());
            return;
        }
        assert!(Ownership::of(dir.path()).is_none(), "root's own folder stays as it is");
        let (owner, group) = (Uid::from_raw(12_345), Gid::from_raw(12_346));
        chownat(CWD, dir.path(), Some(owner), Some(group), AtFlags::empty()).expect("chowns");
        let ownership = Ownership::of(dir.path()).expect("the folder belongs to another user");
        fs::create_dir_all(dir.path().join("store/deep")).expect("is created");
        fs::write(dir.path().join("store/deep/file"), "").expect("writes");
        let outside = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).expect("links");
        ownership.restore().expect("chowns");
        for below in ["store", "store/deep", "store/deep/file", "link"] {
            let found = fs::symlink_metadata(dir.path().join(below)).expect("is there");
            assert_eq!((found.uid(), found.gid()), (12_345, 12_346), "{below}");
        }
        assert_eq!(fs::metadata(outside.path()).expect("is there").uid(), 0, "links are not followed");
    }
}
