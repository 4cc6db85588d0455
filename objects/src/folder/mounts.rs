//! Whether the file system is one that shows new files to others at once.
//!
//! A client of NFS that is mounted with `lookupcache=all`, the default, caches that a file does not exist: for up to a
//! minute, a gateway would not find what another has written. <https://man7.org/linux/man-pages/man5/nfs.5.html>

use crate::error::OpenError;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// The mounts of this process. <https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html>
const MOUNTS: &str = "/proc/self/mountinfo";

/// Checks the mount that a folder is in.
pub(super) fn check(folder: &Path) -> Result<(), OpenError> {
    let Ok(mounts) = std::fs::read(MOUNTS) else {
        tracing::warn!("{MOUNTS} cannot be read: the options of the mount of {} are not checked", folder.display());
        return Ok(());
    };
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    refusal(&mounts, &real).map_or(Ok(()), |reason| Err(OpenError::new(reason)))
}

/// Why the mount of a folder cannot be used, if that is so.
fn refusal(mounts: &[u8], folder: &Path) -> Option<String> {
    let mut found: Option<Mount> = None;
    for mount in mounts.split(|byte| *byte == b'\n').filter_map(Mount::parse) {
        let is_closer = |known: &Mount| mount.point.components().count() >= known.point.components().count();
        // Of several mounts at one point the last covers the others.
        if folder.starts_with(&mount.point) && found.as_ref().is_none_or(is_closer) {
            found = Some(mount);
        }
    }
    let mount = found.filter(|mount| matches!(mount.kind.as_str(), "nfs" | "nfs4"))?;
    let is_safe = |option: &str| matches!(option, "lookupcache=pos" | "lookupcache=positive" | "lookupcache=none");
    let is_refused = !mount.options.iter().any(|option| is_safe(option));
    is_refused.then(|| {
        format!(
            "{} is in the NFS mount {}, whose client caches that files do not exist: mount it with the option \
             lookupcache=positive",
            folder.display(),
            mount.point.display()
        )
    })
}

/// A line of the file.
struct Mount {
    point: PathBuf,
    kind: String,
    options: Vec<String>,
}

impl Mount {
    /// `36 35 98:0 /root /point options optional… - type source super-options`
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
        let text = |index: usize| fields.get(index).map(|field| String::from_utf8_lossy(field).into_owned());
        let options = [text(5)?, text(separator + 3).unwrap_or_default()];
        Some(Self {
            point: OsStr::from_bytes(&unescaped(fields.get(4)?)).into(),
            kind: text(separator + 1)?,
            options: options.iter().flat_map(|list| list.split(',')).map(str::to_owned).collect(),
        })
    }
}

/// `\040` is a space.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nfs_must_not_cache_that_files_do_not_exist() {
        let nfs = |point: &str, options: &str, more: &str| {
            format!("50 20 0:45 / {point} rw,relatime shared:7 - nfs4 server:/x rw,vers=4.2,{options}hard\n{more}")
        };
        let local = "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            21 20 0:5 / /mnt/local rw - tmpfs tmpfs rw\n";
        // The lines after those of the local file systems, the folder, and whether it is refused.
        let table = [
            (String::new(), "/mnt/x", false),
            (nfs("/mnt/x", "", ""), "/mnt/x", true),
            (nfs("/mnt/x", "", ""), "/mnt/x/deeper", true),
            (nfs("/mnt/x", "", ""), "/mnt/xy", false),
            (nfs("/mnt/x", "", ""), "/mnt/local/a", false),
            (nfs("/mnt/x", "lookupcache=all,", ""), "/mnt/x", true),
            (nfs("/mnt/x", "lookupcache=pos,", ""), "/mnt/x", false),
            (nfs("/mnt/x", "lookupcache=positive,", ""), "/mnt/x", false),
            (nfs("/mnt/x", "lookupcache=none,", ""), "/mnt/x", false),
            (nfs("/mnt/x", "xlookupcache=none,", ""), "/mnt/x", true),
            (nfs("/mnt/a\\040b", "", ""), "/mnt/a b/c", true),
            (nfs("/mnt/a\\040b", "", ""), "/mnt/a", false),
            // Another file system below or above it.
            (nfs("/mnt/x", "", "51 50 8:2 / /mnt/x/in rw - xfs /dev/b rw\n"), "/mnt/x/in/a", false),
            (nfs("/mnt/x", "", "51 50 8:2 / /mnt/x/in rw - xfs /dev/b rw\n"), "/mnt/x/out", true),
            (nfs("/mnt/x", "", "51 20 8:2 / /mnt/x rw - xfs /dev/b rw\n"), "/mnt/x", false),
            (nfs("/mnt/x", "", &nfs("/mnt/x", "lookupcache=pos,", "")), "/mnt/x", false),
            (nfs("/mnt/x", "lookupcache=pos,", &nfs("/mnt/x", "", "")), "/mnt/x", true),
            (nfs("/", "", ""), "/mnt/x", true),
            ("50 20 0:45 / /mnt/x rw - nfs server:/x rw,vers=3\n".to_owned(), "/mnt/x", true),
            ("50 20 0:45 / /mnt/x rw - fuse.nfs server:/x rw\n".to_owned(), "/mnt/x", false),
            ("broken\n\n50 20 0:45 / /mnt/x rw - \n".to_owned(), "/mnt/x", false),
        ];
        for (lines, folder, is_refused) in table {
            let found = refusal(format!("{local}{lines}").as_bytes(), Path::new(folder));
            assert_eq!(found.is_some(), is_refused, "{folder} in {lines}");
            assert!(found.is_none_or(|reason| reason.contains("lookupcache=positive")));
        }
    }

    #[test]
    fn the_mounts_of_this_system_are_understood() {
        let mounts = std::fs::read(MOUNTS).expect("Linux has them");
        let lines = mounts.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        assert_eq!(mounts.split(|byte| *byte == b'\n').filter_map(Mount::parse).count(), lines);
        assert!(check(Path::new("/")).is_ok());
    }
}
