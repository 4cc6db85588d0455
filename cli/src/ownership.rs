//! Who owns what a command leaves in a data folder.
//!
//! An operator who types a command as root beside a gateway that runs as another user would leave files that the gateway can
//! neither read nor replace. So whatever in the data folder belongs to root afterwards is given to the owner of the folder.
//!
//! Dropping privileges instead would keep root's own files, which `causeway add` is to read, from being read.

use rustix::fs::{AtFlags, CWD, Gid, Uid, chownat};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, pipe};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// How often the folder is gone through at most: a command that is interrupted may still write meanwhile.
const PASSES_MAX: usize = 4;

/// What one look at all files came to.
#[derive(Default)]
struct Pass {
    given: u64,
    failure: Option<io::Error>,
}

/// The owner of a data folder that a command of root's works on.
#[derive(Debug)]
pub struct Ownership {
    folder: PathBuf,
    owner: Uid,
    group: Gid,
}

impl Ownership {
    /// Notes the owner of a data folder; `None` unless this process is root's and the folder is not.
    pub fn of(folder: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let found = fs::metadata(folder).ok().filter(|found| found.uid() != 0)?;
        let (owner, group) = (Uid::from_raw(found.uid()), Gid::from_raw(found.gid()));
        Some(Self { folder: folder.to_owned(), owner, group })
    }

    /// Gives every file and folder of root's below the data folder to its owner, again while there are new ones. Links are not
    /// followed.
    ///
    /// # Errors
    /// What the system said of one that could not be given. The others were.
    pub fn restore(&self) -> io::Result<()> {
        for _ in 0..PASSES_MAX {
            let mut pass = Pass::default();
            self.pass(&mut pass);
            match pass.failure {
                Some(error) => return Err(error),
                None if pass.given == 0 => break,
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
                // A gateway that runs may remove folders and files meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    pass.failure = Some(error);
                    continue;
                }
            };
            for entry in entries.flatten() {
                let Ok(found) = entry.metadata() else { continue };
                if found.uid() == 0 {
                    match self.give(&entry.path()) {
                        Ok(()) => pass.given += 1,
                        Err(error) => pass.failure = Some(error),
                    }
                }
                if found.is_dir() {
                    folders.push(entry.path());
                }
            }
        }
    }

    /// Has the same done when the process is ended by Ctrl-C or SIGTERM, and ends it then as if it were not. A second signal ends
    /// it at once.
    ///
    /// # Errors
    /// What the system said.
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

    fn give(&self, path: &Path) -> io::Result<()> {
        match chownat(CWD, path, Some(self.owner), Some(self.group), AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) | Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root alone can give files away, so that another user finds out only that nothing is done.
    #[test]
    fn what_root_leaves_belongs_to_the_owner_of_the_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        if !rustix::process::geteuid().is_root() {
            assert!(Ownership::of(dir.path()).is_none());
            return;
        }
        assert!(Ownership::of(dir.path()).is_none(), "root's own folder stays as it is");
        let (owner, group) = (Uid::from_raw(12_345), Gid::from_raw(12_346));
        chownat(CWD, dir.path(), Some(owner), Some(group), AtFlags::empty()).expect("gives");
        let ownership = Ownership::of(dir.path()).expect("is another's");
        fs::create_dir_all(dir.path().join("store/deep")).expect("makes");
        fs::write(dir.path().join("store/deep/file"), "").expect("writes");
        let outside = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).expect("links");
        ownership.restore().expect("gives");
        for below in ["store", "store/deep", "store/deep/file", "link"] {
            let found = fs::symlink_metadata(dir.path().join(below)).expect("is there");
            assert_eq!((found.uid(), found.gid()), (12_345, 12_346), "{below}");
        }
        assert_eq!(fs::metadata(outside.path()).expect("is there").uid(), 0, "links are not followed");
    }
}
