//! [`SmallDisk`]: a file system that can be full, for tests.

use rustix::fs::fstatvfs;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// A small file system, if this process may mount one.
pub(crate) struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts a file system of so many MiB; `None`, with a line on standard error, if this process may not mount.
    pub(crate) fn mount(mebibytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a folder");
        let words = format!(
            "truncate -s {mebibytes}M \"$1/image\" && mkfs.ext4 -q -F -m 0 \"$1/image\" && mkdir \"$1/mounted\" && \
             mount -o loop \"$1/image\" \"$1/mounted\""
        );
        let made = Command::new("sh").args(["-c", &words, "sh"]).arg(dir.path()).output().expect("there is a shell");
        if !made.status.success() {
            eprintln!("this needs to mount a file system: {}", String::from_utf8_lossy(&made.stderr));
            return None;
        }
        Some(Self { dir })
    }

    /// The mount point.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    /// Fills it to the last byte.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.path().join("filling");
        let mut file = File::create(&path).expect("opens");
        while fstatvfs(&file).expect("is there").f_bavail > 0 {
            for bytes in [1 << 16, 1 << 10, 1] {
                while file.write_all(&vec![7; bytes]).is_ok() {}
            }
            // Allocates what the file system has promised.
            file.sync_all().ok();
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}
