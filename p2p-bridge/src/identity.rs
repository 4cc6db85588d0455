//! The node's key pair: created once, kept permanently, readable only by its owner.

use crate::durable;
use libp2p::identity::Keypair;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file of the private key, in libp2p's protobuf encoding
/// (<https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md#keys>).
const KEY_FILE: &str = "identity.key";

/// Why the key pair cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read or written.
    #[error("cannot access {path}: {source}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file has no valid private key.
    #[error(
        "{path} does not contain a libp2p private key: restore it from a backup, or delete it to create a new peer ID",
        path = path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

/// Loads the key pair of a directory, or creates an Ed25519 key pair if there is none.
///
/// # Errors
/// [`IdentityError`] names the file. An invalid key is never replaced.
pub fn load_or_create(directory: &Path) -> Result<Keypair, IdentityError> {
    let path = directory.join(KEY_FILE);
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| IdentityError::Io { path, source }
    };
    match fs::read(&path) {
        Ok(bytes) => Keypair::from_protobuf_encoding(&bytes).map_err(|_| IdentityError::Malformed { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            durable::create_folder(directory).map_err(at(directory))?;
            let keypair = Keypair::generate_ed25519();
            let bytes = keypair.to_protobuf_encoding().map_err(|_| IdentityError::Malformed { path: path.clone() })?;
            durable::write(&path, &bytes).map_err(at(&path))?;
            Ok(keypair)
        }
        Err(source) => Err(IdentityError::Io { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_keeps_its_key_pair() {
        let directory = tempfile::tempdir().expect("directory");
        let inside = directory.path().join("p2p");
        let first = load_or_create(&inside).expect("creates");
        let second = load_or_create(&inside).expect("reads");
        assert_eq!(first.public(), second.public());
        let mode = fs::metadata(inside.join(KEY_FILE)).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_key_is_reported_and_kept() {
        let directory = tempfile::tempdir().expect("directory");
        fs::write(directory.path().join(KEY_FILE), b"damaged").expect("writes");
        let error = load_or_create(directory.path()).expect_err("refuses");
        assert!(error.to_string().contains(KEY_FILE), "{error}");
        assert_eq!(fs::read(directory.path().join(KEY_FILE)).expect("reads"), b"damaged");
    }
}
