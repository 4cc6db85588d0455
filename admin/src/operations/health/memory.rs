//! The memory limit of the container or service that the process runs in (cgroup v2,
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#memory>). At its limit the kernel ends the process.

use std::path::{Path, PathBuf};

/// Where cgroups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The memory of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit, in bytes.
    pub max_bytes: u64,
}

/// The lowest limit of the cgroups that the process is in; `None` without one, or on other systems.
pub async fn limit_of_container() -> Option<MemoryLimit> {
    let read = || {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        lowest_limit(&cgroup(&groups)?, |folder| std::fs::read_to_string(folder.join("memory.max")).ok())
    };
    tokio::task::spawn_blocking(read).await.ok().flatten()
}

/// The folder of the process's cgroup (cgroups(7): `0::PATH`).
fn cgroup(groups: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != "..");
    Some(parts.fold(PathBuf::from(MOUNT), |folder, part| folder.join(part)))
}

/// The lowest limit from a folder up to the mount point.
fn lowest_limit(folder: &Path, read: impl Fn(&Path) -> Option<String>) -> Option<MemoryLimit> {
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(MOUNT));
    // "max" is no limit.
    let limits = folders.filter_map(|folder| read(folder)?.trim().parse().ok());
    limits.min().map(|max_bytes| MemoryLimit { max_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_up_to_the_root_counts() {
        let service = "0::/system.slice/causeway.service\n";
        let limits = |of: &'static [(&'static str, &'static str)]| {
            move |folder: &Path| {
                let name = folder.strip_prefix(MOUNT).expect("below the mount point");
                of.iter().find(|(path, _)| Path::new(path) == name).map(|(_, limit)| (*limit).to_owned())
            }
        };
        let table = [
            (service, limits(&[("system.slice/causeway.service", "1000\n"), ("system.slice", "max\n")]), Some(1000)),
            (service, limits(&[("system.slice/causeway.service", "max\n"), ("system.slice", "900\n")]), Some(900)),
            (service, limits(&[("system.slice/causeway.service", "max\n")]), None),
            (service, limits(&[]), None),
            ("1:name=systemd:/x\n0::/\n", limits(&[("", "7\n")]), Some(7)),
            ("0::/../../x\n", limits(&[("x", "8")]), Some(8)),
            ("1:memory:/x\n", limits(&[("x", "8")]), None),
            ("", limits(&[]), None),
        ];
        for (groups, read, expected) in table {
            let found = cgroup(groups).and_then(|folder| lowest_limit(&folder, read));
            assert_eq!(found.map(|limit| limit.max_bytes), expected, "{groups}");
        }
    }
}
