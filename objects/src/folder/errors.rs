//! What an error of the system means to the caller.

use crate::error::ObjectError;
use rustix::io::Errno;
use std::path::Path;

/// The error of a system call below the root.
pub(super) fn failed(root: &Path, doing: &str, errno: Errno) -> ObjectError {
    let root = root.display();
    let advice = match errno {
        Errno::ACCESS | Errno::PERM => "the process needs to read and write the folder and all that is in it",
        Errno::ROFS => "the file system is read-only",
        Errno::NOSPC => "the file system is full",
        Errno::DQUOT => "the quota of the user is exhausted",
        Errno::LOOP => "there is a symbolic link, and those are not followed",
        Errno::NOTDIR | Errno::ISDIR => "there is a file in place of a folder, or a folder in place of a file",
        Errno::NAMETOOLONG => "the file system does not support names of this length",
        Errno::NOTSUP | Errno::INVAL => "the file system does not support this",
        // Among others: ESTALE, EIO, ETIMEDOUT of NFS, and EMFILE.
        _ => return ObjectError::unavailable(format!("{doing} in {root} has failed: {errno}")),
    };
    ObjectError::refused(format!("{doing} in {root} has failed, {errno}: {advice}"))
}

/// The root is not what it was, or is none.
pub(super) fn no_folder(root: &Path) -> String {
    format!("{} is not a folder: is the file system mounted? It is not created", root.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_mean_what_the_caller_can_do() {
        let table = [
            (Errno::STALE, None),
            (Errno::IO, None),
            (Errno::TIMEDOUT, None),
            (Errno::MFILE, None),
            (Errno::NOENT, None),
            (Errno::ACCESS, Some("needs to read and write")),
            (Errno::ROFS, Some("read-only")),
            (Errno::NOSPC, Some("full")),
            (Errno::DQUOT, Some("quota")),
            (Errno::LOOP, Some("symbolic link")),
            (Errno::NOTDIR, Some("in place of")),
        ];
        for (errno, words) in table {
            match (failed(Path::new("/mnt/x"), "writing a/b", errno), words) {
                (ObjectError::Unavailable { reason }, None) => assert!(reason.contains("/mnt/x"), "{reason}"),
                (ObjectError::Refused { reason }, Some(words)) => assert!(reason.contains(words), "{reason}"),
                (error, _) => panic!("{errno}: {error}"),
            }
        }
    }
}
