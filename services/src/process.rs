//! The resource usage of this process, from `/proc`, and the space of a file system.
//!
//! Without `/proc`, the usage is unknown. Each figure is read when it is asked for; none needs a scan, so that the
//! metrics, the statistics and the health of the node may ask each second.

use std::io;
use std::path::Path;

/// The resource usage of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessUsage {
    /// CPU time in user space and in the kernel, in seconds.
    pub cpu_seconds: f64,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// Virtual memory, in bytes.
    pub virtual_bytes: u64,
    /// Threads.
    pub threads: i64,
    /// Open file descriptors.
    pub open_files: Option<u64>,
    /// The maximum number of open file descriptors; `None` without a limit.
    pub open_files_max: Option<u64>,
}

/// The resource usage of this process; `None` without `/proc`.
#[cfg(target_os = "linux")]
pub fn usage() -> Option<ProcessUsage> {
    use procfs::WithCurrentSystemInfo as _;
    use procfs::process::{LimitValue, Process};
    let process = Process::myself().ok()?;
    let stat = process.stat().ok()?;
    let open_files_max = process.limits().ok().and_then(|limits| match limits.max_open_files.soft_limit {
        LimitValue::Value(files) => Some(files),
        LimitValue::Unlimited => None,
    });
    Some(ProcessUsage {
        cpu_seconds: (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64,
        resident_bytes: stat.rss_bytes().get(),
        virtual_bytes: stat.vsize,
        threads: stat.num_threads,
        open_files: open_files().or_else(|| process.fd_count().ok().map(|files| files as u64)),
        open_files_max,
    })
}

#[cfg(not(target_os = "linux"))]
pub fn usage() -> Option<ProcessUsage> {
    None
}

/// The number of open file descriptors, which Linux reports since 6.2 as the size of this folder; `None` before, when
/// they must be counted, of which there may be thousands.
#[cfg(target_os = "linux")]
fn open_files() -> Option<u64> {
    std::fs::metadata("/proc/self/fd").ok().map(|metadata| metadata.len()).filter(|files| *files > 0)
}

/// The resident memory of this process, in bytes; `None` without `/proc`.
#[cfg(target_os = "linux")]
pub fn resident_bytes() -> Option<u64> {
    let statm = procfs::process::Process::myself().ok()?.statm().ok()?;
    Some(statm.resident.saturating_mul(procfs::page_size()))
}

#[cfg(not(target_os = "linux"))]
pub fn resident_bytes() -> Option<u64> {
    None
}

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// Bytes that this process may still use.
    pub available_bytes: u64,
    /// The size, in bytes.
    pub size_bytes: u64,
}

/// The space of the file system that contains a path. Blocks the thread while the file system does not answer.
///
/// # Errors
/// When the path cannot be read.
pub fn space_of(path: &Path) -> io::Result<FileSystemSpace> {
    let found = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(FileSystemSpace { available_bytes: bytes(found.f_bavail), size_bytes: bytes(found.f_blocks) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_is_that_of_this_process() {
        let space = space_of(&std::env::temp_dir()).expect("is there");
        assert!(space.size_bytes > 0 && space.available_bytes <= space.size_bytes);
        assert!(space_of(Path::new("/nowhere/at/all")).is_err());
        let before = usage();
        assert_eq!(before.is_some(), cfg!(target_os = "linux"));
        let Some(before) = before else { return };
        let files: Vec<_> = (0..50).map(|_| tempfile::tempfile().expect("opens")).collect();
        let after = usage().expect("is known");
        // Other tests of this process open and close files meanwhile.
        assert!(after.open_files > before.open_files.map(|files| files + 25), "{before:?} {after:?}");
        assert!(after.open_files <= after.open_files_max, "{after:?}");
        assert!(after.cpu_seconds >= before.cpu_seconds && after.threads >= 1);
        let resident = resident_bytes().expect("is known");
        assert!(resident > 1 << 20 && resident < after.virtual_bytes, "{resident} {after:?}");
        drop(files);
    }
}
