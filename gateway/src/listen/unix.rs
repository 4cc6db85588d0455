//! Binding Unix sockets: files that a previous process left are replaced, files of others are not.
//!
//! Non-goal: protection from users who may write to the folder of the socket.

use crate::listen::socket::{BACKLOG, Listener};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use thiserror::Error;
use tokio::net::{UnixSocket, UnixStream};

/// Why a Unix socket cannot be bound. Each message says what to do.
#[derive(Debug, Error)]
pub enum UnixBindError {
    /// Another process listens there.
    #[error("{} is in use: stop the program that listens there, or choose another path", .0.display())]
    InUse(PathBuf),
    /// The file is no socket.
    #[error("{} exists and is not a socket: remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// There is no such folder.
    #[error("the folder of {} does not exist: create it, or have systemd do so with RuntimeDirectory=", .0.display())]
    NoFolder(PathBuf),
    /// Permissions.
    #[error("this user may not create {}: check the permissions of its folder", .0.display())]
    Forbidden(PathBuf),
    /// Anything else.
    #[error("cannot listen on {}: {error}", path.display())]
    Other {
        /// The path of the socket.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

/// Listens on a Unix socket whose file has these permissions. The file is removed when the listener is closed.
///
/// # Errors
/// [`UnixBindError`]: another process listens there, or the file cannot be created.
pub async fn bind(path: &Path, mode: u32) -> Result<Listener, UnixBindError> {
    let other = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => UnixBindError::NoFolder(path.to_owned()),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            UnixBindError::Forbidden(path.to_owned())
        }
        // Another process has bound it at the same time.
        io::ErrorKind::AddrInUse => UnixBindError::InUse(path.to_owned()),
        _ => UnixBindError::Other { path: path.to_owned(), error },
    };
    remove_stale(path).await?;
    let socket = UnixSocket::new_stream().map_err(other)?;
    socket.bind(path).map_err(other)?;
    let file = SocketFile::created_at(path).map_err(other)?;
    // Before anyone can connect: that is refused until the socket listens.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(other)?;
    let listener = socket.listen(BACKLOG).map_err(other)?;
    Ok(Listener::from(listener).on_close(Box::new(file)))
}

/// Removes the socket of a process that has ended.
async fn remove_stale(path: &Path) -> Result<(), UnixBindError> {
    match fs::symlink_metadata(path) {
        // The bind reports what is wrong with the folder.
        Err(_) => return Ok(()),
        Ok(file) if !file.file_type().is_socket() => return Err(UnixBindError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "replacing the socket of a process that has ended");
            let removed = fs::remove_file(path);
            removed.map_err(|error| UnixBindError::Other { path: path.to_owned(), error })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Permission denied, or a full queue: somebody listens.
        Ok(_) | Err(_) => Err(UnixBindError::InUse(path.to_owned())),
    }
}

/// The file of a bound socket, which is removed when this is dropped, unless another process has replaced it.
struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl SocketFile {
    fn created_at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), device_and_inode: device_and_inode(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if device_and_inode(&self.path).is_ok_and(|current| current == self.device_and_inode) {
            _ = fs::remove_file(&self.path);
        }
    }
}

fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    fn mode_of(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("it exists").permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn a_socket_is_removed_when_it_is_closed_unless_it_is_another_ones() {
        let dir = TempDir::new().expect("a folder");
        let path = dir.path().join("http.sock");
        let listener = bind(&path, 0o640).await.expect("binds");
        assert_eq!(mode_of(&path), 0o640);
        drop(listener);
        assert!(!path.exists());

        let listener = bind(&path, 0o600).await.expect("binds again");
        fs::remove_file(&path).expect("the folder is ours");
        let another = UnixListener::bind(&path).expect("binds");
        drop(listener);
        assert!(path.exists(), "the socket of another process stays");
        drop(another);
    }

    #[tokio::test]
    async fn only_the_socket_of_an_ended_process_is_replaced() {
        let dir = TempDir::new().expect("a folder");
        let path = dir.path().join("http.sock");
        // std leaves the file.
        drop(UnixListener::bind(&path).expect("binds"));
        assert!(path.exists());
        let listener = bind(&path, 0o600).await.expect("replaces it");

        fs::write(dir.path().join("file"), "text").expect("writes");
        fs::create_dir(dir.path().join("folder")).expect("creates");
        let table = [
            ("http.sock", "is in use"),
            ("file", "is not a socket"),
            ("folder", "is not a socket"),
            ("missing/http.sock", "the folder of"),
        ];
        for (name, expected) in table {
            let error = bind(&dir.path().join(name), 0o600).await.err().expect("is refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(fs::read(dir.path().join("file")).expect("is still there"), b"text");
        drop(listener);
        // A symbolic link is not followed.
        std::os::unix::fs::symlink(dir.path().join("file"), &path).expect("links");
        assert!(matches!(bind(&path, 0o600).await.err(), Some(UnixBindError::NotASocket(_))));
    }
}
