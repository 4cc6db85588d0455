//! The exclusive lock on a store's directory, also across machines.
//!
//! Goals: two gateways never use one directory concurrently, even over a network file system; a gateway that was killed
//! does not block its successor on the same machine.
//!
//! A directory is locked in two ways. `flock` is released with its process, and excludes processes on this machine;
//! over a network it may fail or be local, so nothing depends on it there. The owner file is created exclusively
//! (`O_EXCL`), which every file system does atomically. An owner file of this machine is valid as long as its process
//! runs. One of another machine is always valid, since its process cannot be checked: it is deleted when the store is
//! closed, and otherwise by the operator. On a local file system, only `flock` is used, so that a container that
//! restarts with another host name is not locked out.

use crate::disk::StoreError;
use crate::lock::{DirLock, LockError};
use futures::future::{BoxFuture, FutureExt as _, ready};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

const OWNER_FILE: &str = "owner";

/// The magic numbers of local file systems (statfs(2)); all others may be shared.
const LOCAL_FILE_SYSTEMS: [u32; 10] = [
    0xef53,      // ext2 to ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlayfs
    0x4d44,      // FAT
];

/// A locked directory. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct Lock {
    /// `None` if the file system does not support locks.
    dir: Option<DirLock>,
    /// The owner file, if there is one.
    owner: Option<PathBuf>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.owner.iter().for_each(|owner| _ = fs::remove_file(owner));
    }
}

impl Lock {
    /// Locks a directory.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::InUseElsewhere`], or I/O errors.
    pub(super) fn take(dir: &Path) -> Result<Self, StoreError> {
        let locked = match DirLock::take(dir) {
            Ok(lock) => Some(lock),
            Err(LockError::Unsupported) => None,
            Err(LockError::InUse) => return Err(StoreError::InUse { dir: dir.to_owned() }),
            Err(LockError::Io(error)) => return Err(StoreError::io(format!("{}: {error}", dir.display()))),
        };
        let is_enough = locked.as_ref().and_then(DirLock::file).is_some_and(is_local);
        let owner = if is_enough { None } else { Some(create_owner_file(dir)?) };
        Ok(Self { dir: locked, owner })
    }

    /// Records that the store is closed.
    pub(super) fn mark_closed(&self) {
        self.dir.iter().for_each(DirLock::mark_closed);
    }

    /// Completes when the lock is released.
    pub(super) fn released(&self) -> BoxFuture<'static, ()> {
        self.dir.as_ref().map_or_else(|| ready(()).boxed(), |lock| lock.released().boxed())
    }
}

fn is_local(file: &File) -> bool {
    let kind = rustix::fs::fstatfs(file).ok().and_then(|stat| u32::try_from(stat.f_type).ok());
    kind.is_some_and(|kind| LOCAL_FILE_SYSTEMS.contains(&kind))
}

/// Creates the owner file.
fn create_owner_file(dir: &Path) -> Result<PathBuf, StoreError> {
    let (path, me) = (dir.join(OWNER_FILE), Owner::me());
    let failed = |error: io::Error| StoreError::io(format!("{}: {error}", path.display()));
    // Another process may delete a stale owner file concurrently, and create its own.
    for _ in 0..3 {
        match File::options().write(true).create_new(true).open(&path) {
            Ok(mut file) => {
                file.write_all(me.to_string().as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
                return Ok(path);
            }
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            Err(_) => {}
        }
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            text => text.map_err(failed)?,
        };
        match Owner::parse(&text) {
            Some(owner) if owner.is_gone(&me) => fs::remove_file(&path).map_err(failed)?,
            Some(owner) if owner.machine == me.machine => return Err(StoreError::InUse { dir: dir.to_owned() }),
            owner => {
                let owner = owner.map_or_else(|| "an unknown process".to_owned(), |owner| owner.description());
                return Err(StoreError::InUseElsewhere { dir: dir.to_owned(), owner, file: path });
            }
        }
    }
    Err(StoreError::InUse { dir: dir.to_owned() })
}

/// A process on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    machine: String,
    /// Identifies the boot of the machine.
    boot: String,
    process: u32,
    /// When the process was started, in the kernel's ticks, since process IDs are reused.
    started: u64,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {} {}", self.machine, self.boot, self.process, self.started)
    }
}

impl Owner {
    fn me() -> Self {
        let read = |path: &str| fs::read_to_string(path).map_or_else(|_| "?".to_owned(), |text| text.trim().to_owned());
        let process = std::process::id();
        Self {
            machine: read("/proc/sys/kernel/hostname"),
            boot: read("/proc/sys/kernel/random/boot_id"),
            process,
            started: started(process).unwrap_or_default(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let [machine, boot, process, started] = text.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
        let (process, started) = (process.parse().ok()?, started.parse().ok()?);
        Some(Self { machine: machine.to_owned(), boot: boot.to_owned(), process, started })
    }

    /// Whether this process has certainly ended.
    fn is_gone(&self, me: &Self) -> bool {
        self.machine == me.machine && (self.boot != me.boot || started(self.process) != Some(self.started))
    }

    fn description(&self) -> String {
        format!("process {} on {}", self.process, self.machine)
    }
}

/// When a process was started (proc_pid_stat(5), field 22), if it exists.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The process name, in parentheses, may contain anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_gone_when_it_is_certain_that_it_is() {
        let me = Owner::me();
        assert_eq!(Owner::parse(&me.to_string()), Some(me.clone()));
        let table = [
            (me.clone(), false),
            (Owner { started: me.started + 1, ..me.clone() }, true),
            (Owner { process: u32::MAX, ..me.clone() }, true),
            (Owner { boot: "another".to_owned(), ..me.clone() }, true),
            (Owner { machine: "another".to_owned(), process: u32::MAX, ..me.clone() }, false),
        ];
        for (owner, gone) in table {
            assert_eq!(owner.is_gone(&me), gone, "{owner:?}");
        }
        for text in ["", "a b c", "a b c d", "a b 1 2 3"] {
            assert_eq!(Owner::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn owner_files_of_running_processes_and_of_other_machines_are_valid() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, me) = (dir.path().join(OWNER_FILE), Owner::me());
        assert_eq!(create_owner_file(dir.path()).expect("is free"), path);
        assert!(matches!(create_owner_file(dir.path()), Err(StoreError::InUse { .. })), "this process runs");
        for (owner, free) in [
            (Owner { process: u32::MAX, ..me.clone() }.to_string(), true),
            (Owner { boot: "earlier".to_owned(), ..me.clone() }.to_string(), true),
            (Owner { machine: "other".to_owned(), process: 7, ..me.clone() }.to_string(), false),
            (String::new(), false),
        ] {
            fs::write(&path, &owner).expect("writes");
            match create_owner_file(dir.path()) {
                Ok(_) => assert!(free, "{owner:?}"),
                Err(error) => {
                    assert!(!free && matches!(error, StoreError::InUseElsewhere { .. }), "{owner:?}: {error}");
                    assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_folder_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let lock = Lock::take(dir.path()).expect("is free");
        assert!(matches!(Lock::take(dir.path()), Err(StoreError::InUse { .. })));
        drop(lock);
        assert!(!dir.path().join(OWNER_FILE).exists());
        drop(Lock::take(dir.path()).expect("is free again"));
    }
}
