//! [`Keystore`]: the private keys of published names, by operator-given names.
//!
//! One file per key, in libp2p's protobuf message, readable only by its owner; changes are durable when they are
//! acknowledged. The key `self` is the node's identity and cannot be renamed, removed or exported: copy its file
//! instead.
//!
//! Goals: a key name cannot escape the folder (path traversal); an unreadable file is left in place and its name stays
//! taken; two processes never change the folder concurrently. The process that has the keystore open holds a lock, and
//! may publish its admin address in the lock file, so that commands that find the lock held can use the admin API
//! instead.
//!
//! Non-goals: encryption at rest, which is up to the file system; the keys that the gateways of a site share
//! ([`super::shared`]).

use super::key_format::{FormatError, KEY_BYTES_MAX, KeyFormat, KeyKind, Secret};
use crate::durable;
use crate::identity::{self, IdentityError};
use content::names::Key;
use libp2p::identity::Keypair;
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The name of the node's own key.
pub const SELF: &str = "self";
/// The maximum length of a key name, in bytes.
pub const NAME_BYTES_MAX: usize = 100;
/// Maximum keys, except `self`.
pub const KEYS_MAX: usize = 1024;

const FOLDER: &str = "keys";
const SUFFIX: &str = ".key";
const LOCK_FILE: &str = "keys.lock";
/// The interval of retrying a held lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum length of the address in the lock file.
const ADDRESS_BYTES_MAX: usize = 1024;

/// The public information of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// The name of the key.
    pub name: String,
    /// The IPNS name that is published with it.
    pub key: Key,
    /// The algorithm.
    pub kind: KeyKind,
    /// Whether it is a key of all gateways of a site, and not of this one alone.
    pub of_site: bool,
}

/// Why an operation on a key failed, grouped by how to handle it.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The key name is invalid.
    #[error(
        "\"{0}\" cannot name a key: use 1 to {NAME_BYTES_MAX} letters, digits, dots, hyphens and underscores, \
         no leading dot"
    )]
    Name(String),
    /// The operation is not allowed for the node's own key.
    #[error(
        "the key \"self\" is the node's identity: it cannot be created, replaced, renamed, removed or \
         exported; copy the file identity.key of its data folder instead"
    )]
    Reserved,
    /// The key name is taken.
    #[error("the key \"{0}\" already exists: choose another name, or rename or remove that key first")]
    Exists(String),
    /// The same key exists with another name.
    #[error("the keystore already has this key, as \"{0}\"")]
    Known(String),
    /// There is no key with the name.
    #[error("there is no key \"{0}\"; \"causeway key list\" lists the keys")]
    Missing(String),
    /// Another key of this gateway alone has the name, in a site that shares names.
    #[error(
        "this gateway has another key \"{0}\" of its own, from before it shared the names of its site: choose another \
         name, or rename that key first"
    )]
    OfGateway(String),
    /// This gateway alone has the key, in a site that shares names.
    #[error(
        "this gateway has this key as one of its own, \"{0}\": to make it one of the site, export it and remove it \
         here (\"causeway key export {0}\", \"causeway key rm {0}\"), then import it again, and publish again what \
         was published with it"
    )]
    OwnKey(String),
    /// A key of this gateway alone and one of the site have the name.
    #[error(
        "two keys are named \"{name}\": {own}, which only this gateway has, and {of_site}, which is one of the site: \
         give the ID of the one that is meant"
    )]
    Ambiguous {
        /// The name.
        name: String,
        /// The IPNS name of the key of this gateway.
        own: Key,
        /// The IPNS name of the key of the site.
        of_site: Key,
    },
    /// The maximum number of keys is reached.
    #[error("the keystore has the maximum of {KEYS_MAX} keys: remove a key first")]
    Full,
    /// The key cannot be decoded or encoded.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Another process has the keystore open.
    #[error("the keystore in {folder} is in use by another process", folder = folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The admin address of that process, if it published one.
        admin_address: Option<String>,
    },
    /// The shared keys and publications cannot be reached, or are busy. The change may have been made; it can be
    /// repeated.
    #[error("the keys and names of the site cannot be changed or read: {reason}")]
    Unavailable {
        /// The cause.
        reason: String,
    },
    /// The shared keys and publications failed otherwise.
    #[error("the keys and names of the site cannot be changed or read: {reason}")]
    Shared {
        /// The cause.
        reason: String,
    },
    /// The node's own key is not available.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A file could not be read or written.
    #[error("could not access {path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The process that has a keystore open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockHolder {
    /// None.
    Unlocked,
    /// Another process: a node, or a short-running command.
    Process {
        /// Its admin address, if it has published one.
        admin_address: Option<String>,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> KeyError {
    let path = path.to_owned();
    move |source| KeyError::Io { path, source }
}

/// A key that was read.
pub(super) struct LoadedKey {
    keypair: Keypair,
    pub info: KeyInfo,
}

/// The keys of a node. All calls read or write files, so call them from blocking threads.
pub struct Keystore {
    folder: PathBuf,
    lock: Mutex<File>,
    keys: Mutex<BTreeMap<String, LoadedKey>>,
}

impl Keystore {
    /// Opens the keystore below a folder, which is created if it does not exist, and creates the node's own key if
    /// there is none. If another process has it open and has published no admin address, that process is a
    /// short-running command or a node that is starting: its lock is awaited, up to `patience`.
    ///
    /// # Errors
    /// [`KeyError::InUse`], or an error of reading the folder. An invalid key file is not an error.
    pub fn open(state_dir: &Path, patience: Duration) -> Result<Self, KeyError> {
        let folder = state_dir.join(FOLDER);
        durable::create_folder(&folder).map_err(at(&folder))?;
        let lock = lock(state_dir, patience)?;
        let keypair = identity::load_or_create(state_dir)?;
        let mut keys = BTreeMap::from([(SELF.to_owned(), LoadedKey::new(SELF, keypair))]);
        for entry in fs::read_dir(&folder).map_err(at(&folder))? {
            let path = entry.map_err(at(&folder))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(SUFFIX));
            let Some(name) = name.filter(|name| check(name).is_ok() && *name != SELF) else { continue };
            match read(&path).and_then(|secret| Ok(secret.keypair()?)) {
                Ok(keypair) => _ = keys.insert(name.to_owned(), LoadedKey::new(name, keypair)),
                Err(error) => tracing::error!(path = %path.display(), %error, "a key file is invalid: restore it"),
            }
        }
        Ok(Self { folder, lock: Mutex::new(lock), keys: Mutex::new(keys) })
    }

    /// Reads one key without the lock, which is safe because files are replaced atomically.
    ///
    /// # Errors
    /// [`KeyError::Missing`], or an error of reading it.
    pub fn peek(state_dir: &Path, name: &str, format: KeyFormat) -> Result<Vec<u8>, KeyError> {
        export(&state_dir.join(FOLDER), name, format)
    }

    /// Whether another process has the keystore open. Creates and changes nothing.
    ///
    /// # Errors
    /// [`KeyError::Io`]; a missing keystore is not an error.
    pub fn holder(state_dir: &Path) -> Result<LockHolder, KeyError> {
        let path = state_dir.join(LOCK_FILE);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LockHolder::Unlocked),
            file => file.map_err(at(&path))?,
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(LockHolder::Unlocked),
            Err(TryLockError::Error(error)) => Err(at(&path)(error)),
            Err(TryLockError::WouldBlock) => {
                Ok(LockHolder::Process { admin_address: read_address(&mut file).map_err(at(&path))? })
            }
        }
    }

    /// Publishes the admin address of this process in the lock file, for commands that find the keystore locked.
    ///
    /// # Errors
    /// [`KeyError::Io`] if the lock file cannot be written.
    pub fn publish_admin_address(&self, admin_address: &str) -> Result<(), KeyError> {
        let mut file = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(admin_address.as_bytes())
        };
        write(&mut file).map_err(at(&self.folder))
    }

    /// All keys including `self`, sorted by name.
    pub fn list(&self) -> Vec<KeyInfo> {
        self.keys().values().map(|loaded| loaded.info.clone()).collect()
    }

    /// The key with a name.
    ///
    /// # Errors
    /// [`KeyError::Missing`] if there is none.
    pub fn get(&self, name: &str) -> Result<(KeyInfo, Keypair), KeyError> {
        let keys = self.keys();
        Ok(keys.get(name).ok_or_else(|| missing(name))?.public_and_pair())
    }

    /// The key of an IPNS name.
    pub fn find(&self, key: &Key) -> Option<(KeyInfo, Keypair)> {
        let keys = self.keys();
        keys.values().find(|loaded| loaded.info.key == *key).map(LoadedKey::public_and_pair)
    }

    /// Creates a key.
    ///
    /// # Errors
    /// [`KeyError`] if the name is invalid or taken, or the keystore is full.
    pub fn create(&self, name: &str, kind: KeyKind) -> Result<KeyInfo, KeyError> {
        self.add(name, &Secret::generate(kind)?)
    }

    /// Imports a key. Without a format it is detected.
    ///
    /// # Errors
    /// [`KeyError`] if the name or the key is invalid or taken, or the keystore is full.
    pub fn import(&self, name: &str, format: Option<KeyFormat>, bytes: &[u8]) -> Result<KeyInfo, KeyError> {
        let format = format.unwrap_or_else(|| KeyFormat::guess(bytes));
        self.add(name, &Secret::read(format, bytes)?)
    }

    pub(super) fn add(&self, name: &str, secret: &Secret) -> Result<KeyInfo, KeyError> {
        check_not_self(name)?;
        let loaded = LoadedKey::new(name, secret.keypair()?);
        let mut keys = self.keys();
        let path = self.free_path(&keys, name)?;
        if let Some(known) = keys.values().find(|known| known.info.key == loaded.info.key) {
            return Err(KeyError::Known(known.info.name.clone()));
        }
        if keys.len() > KEYS_MAX {
            return Err(KeyError::Full);
        }
        durable::write(&path, &secret.write(KeyFormat::Protobuf)?).map_err(at(&path))?;
        let info = loaded.info.clone();
        keys.insert(name.to_owned(), loaded);
        Ok(info)
    }

    /// The encoded key.
    ///
    /// # Errors
    /// [`KeyError`] if the key is missing or reserved, or does not support the format.
    pub fn export(&self, name: &str, format: KeyFormat) -> Result<Vec<u8>, KeyError> {
        export(&self.folder, name, format)
    }

    /// Renames a key. Its publication is not affected.
    ///
    /// # Errors
    /// [`KeyError`] if a name is invalid, missing or taken.
    pub fn rename(&self, from: &str, to: &str) -> Result<KeyInfo, KeyError> {
        check_not_self(from)?;
        check_not_self(to)?;
        let mut keys = self.keys();
        if !keys.contains_key(from) {
            return Err(missing(from));
        }
        let path = self.free_path(&keys, to)?;
        durable::rename(&self.path(from), &path).map_err(at(&path))?;
        let Some(loaded) = keys.remove(from) else { return Err(missing(from)) };
        let info = KeyInfo { name: to.to_owned(), ..loaded.info };
        keys.insert(to.to_owned(), LoadedKey { info: info.clone(), ..loaded });
        Ok(info)
    }

    /// Removes a key permanently.
    ///
    /// # Errors
    /// [`KeyError`] if the key is missing or reserved, or the disk fails.
    pub fn remove(&self, name: &str) -> Result<KeyInfo, KeyError> {
        check_not_self(name)?;
        let mut keys = self.keys();
        let info = keys.get(name).map(|loaded| loaded.info.clone()).ok_or_else(|| missing(name))?;
        let path = self.path(name);
        durable::remove(&path).map_err(at(&path))?;
        keys.remove(name);
        Ok(info)
    }

    /// The path for a new key, if the name is free. Files that could not be read count as taken.
    fn free_path(&self, keys: &BTreeMap<String, LoadedKey>, name: &str) -> Result<PathBuf, KeyError> {
        let path = self.path(name);
        let taken = keys.contains_key(name) || path.try_exists().map_err(at(&path))?;
        if taken { Err(KeyError::Exists(name.to_owned())) } else { Ok(path) }
    }

    /// The file of a key.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        file(&self.folder, name)
    }

    fn keys(&self) -> MutexGuard<'_, BTreeMap<String, LoadedKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoadedKey {
    fn new(name: &str, keypair: Keypair) -> Self {
        use libp2p::identity::KeyType;
        let kind = match keypair.key_type() {
            KeyType::RSA => KeyKind::Rsa,
            KeyType::Ed25519 => KeyKind::Ed25519,
            KeyType::Secp256k1 => KeyKind::Secp256k1,
            KeyType::Ecdsa => KeyKind::Ecdsa,
        };
        let key = Key::from(keypair.public().to_peer_id());
        let info = KeyInfo { name: name.to_owned(), key, kind, of_site: false };
        Self { keypair, info }
    }

    /// A key of all gateways of a site.
    pub fn of_site(name: &str, keypair: Keypair) -> Self {
        let Self { keypair, info } = Self::new(name, keypair);
        Self { keypair, info: KeyInfo { of_site: true, ..info } }
    }

    pub fn public_and_pair(&self) -> (KeyInfo, Keypair) {
        (self.info.clone(), self.keypair.clone())
    }
}

/// Checks a key name, which becomes a part of a path: only portable characters are allowed.
fn check(name: &str) -> Result<(), KeyError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let fine = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(good);
    if fine { Ok(()) } else { Err(KeyError::Name(name.chars().take(NAME_BYTES_MAX).collect())) }
}

/// Checks the name of a key that is not the node's own.
pub(super) fn check_not_self(name: &str) -> Result<(), KeyError> {
    if name == SELF { Err(KeyError::Reserved) } else { check(name) }
}

pub(super) fn missing(name: &str) -> KeyError {
    KeyError::Missing(name.chars().take(NAME_BYTES_MAX).collect())
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}{SUFFIX}"))
}

fn read(path: &Path) -> Result<Secret, KeyError> {
    let bytes = durable::read(path, KEY_BYTES_MAX).map_err(at(path))?;
    Ok(Secret::read(KeyFormat::Protobuf, &bytes)?)
}

fn export(folder: &Path, name: &str, format: KeyFormat) -> Result<Vec<u8>, KeyError> {
    check_not_self(name)?;
    let secret = match read(&file(folder, name)) {
        Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Err(missing(name)),
        other => other?,
    };
    Ok(secret.write(format)?)
}

/// Takes the lock, and deletes the admin address of the previous holder.
fn lock(state_dir: &Path, patience: Duration) -> Result<File, KeyError> {
    let path = state_dir.join(LOCK_FILE);
    let mut file =
        File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(at(&path))?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0).map_err(at(&path))?;
                return Ok(file);
            }
            Err(TryLockError::Error(error)) => return Err(at(&path)(error)),
            Err(TryLockError::WouldBlock) => {}
        }
        let admin_address = read_address(&mut file).map_err(at(&path))?;
        if admin_address.is_some() || begun.elapsed() >= patience {
            return Err(KeyError::InUse { folder: state_dir.to_owned(), admin_address });
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

fn read_address(file: &mut File) -> io::Result<Option<String>> {
    let mut admin_address = String::new();
    file.rewind()?;
    file.take(ADDRESS_BYTES_MAX as u64).read_to_string(&mut admin_address)?;
    Ok(Some(admin_address).filter(|admin_address| !admin_address.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    fn folder() -> TempDir {
        tempfile::tempdir().expect("folder")
    }

    fn open(folder: &TempDir) -> Keystore {
        Keystore::open(folder.path(), Duration::ZERO).expect("opens")
    }

    fn names(keys: &Keystore) -> Vec<String> {
        keys.list().into_iter().map(|info| info.name).collect()
    }

    #[test]
    fn keys_are_created_renamed_and_removed_and_survive_a_restart() {
        let folder = folder();
        let keys = open(&folder);
        let site = keys.create("my-site.v1", KeyKind::Ed25519).expect("makes");
        let other = keys.create("other", KeyKind::Secp256k1).expect("makes");
        assert_eq!(names(&keys), ["my-site.v1", "other", "self"]);
        let file = folder.path().join("keys/my-site.v1.key");
        assert_eq!(fs::metadata(&file).expect("the file").permissions().mode() & 0o777, 0o600);
        let renamed = keys.rename("my-site.v1", "site").expect("renames");
        assert_eq!(renamed, KeyInfo { name: "site".to_owned(), ..site.clone() });
        assert!(!file.exists());
        assert_eq!(keys.remove("other").expect("removes"), other);
        let before = keys.list();
        drop(keys);
        let keys = open(&folder);
        assert_eq!(keys.list(), before);
        assert_eq!(keys.find(&site.key).expect("known").0, renamed);
        let own = identity::load_or_create(folder.path()).expect("the identity");
        assert_eq!(keys.get(SELF).expect("self").0.key, Key::from(own.public().to_peer_id()));
    }

    #[test]
    fn names_are_checked_and_conflicts_are_reported() {
        let folder = folder();
        let keys = open(&folder);
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", ".hidden", "../x", "a/b", "a\\b", "a b", "a\0", "ä", &long] {
            assert!(matches!(keys.create(name, KeyKind::Ed25519), Err(KeyError::Name(_))), "{name}");
            assert!(matches!(keys.export(name, KeyFormat::Pem), Err(KeyError::Name(_))), "{name}");
            assert!(matches!(keys.remove(name), Err(KeyError::Name(_))), "{name}");
        }
        keys.create("a", KeyKind::Ed25519).expect("makes");
        keys.create("b", KeyKind::Ed25519).expect("makes");
        assert!(matches!(keys.create("a", KeyKind::Ed25519), Err(KeyError::Exists(_))));
        assert!(matches!(keys.rename("a", "b"), Err(KeyError::Exists(_))));
        assert!(matches!(keys.rename("c", "d"), Err(KeyError::Missing(_))));
        assert!(matches!(keys.remove("c"), Err(KeyError::Missing(_))));
        let exported = keys.export("a", KeyFormat::Pem).expect("exports");
        assert!(matches!(keys.import("c", None, &exported), Err(KeyError::Known(name)) if name == "a"));
        for refused in [
            keys.create(SELF, KeyKind::Ed25519).err(),
            keys.rename("a", SELF).err(),
            keys.rename(SELF, "c").err(),
            keys.remove(SELF).err(),
            keys.export(SELF, KeyFormat::Pem).err(),
        ] {
            assert!(matches!(refused, Some(KeyError::Reserved)), "{refused:?}");
        }
    }

    #[test]
    fn an_exported_key_is_imported_as_the_same_key() {
        let (one, two) = (folder(), folder());
        let (from, to) = (open(&one), open(&two));
        for format in [KeyFormat::Protobuf, KeyFormat::Pem] {
            let name = format!("from-{format}");
            let made = from.create(&name, KeyKind::Ed25519).expect("makes");
            let bytes = from.export(&name, format).expect("exports");
            assert_eq!(Keystore::peek(one.path(), &name, format).expect("reads"), bytes);
            for given in [None, Some(format)] {
                assert_eq!(to.import(&name, given, &bytes).expect("imports"), made, "{format}");
                to.remove(&name).expect("removes");
            }
        }
    }

    #[test]
    fn a_corrupt_file_keeps_its_name_and_affects_no_other_key() {
        let folder = folder();
        let keys = open(&folder);
        keys.create("good", KeyKind::Ed25519).expect("makes");
        drop(keys);
        let corrupt = folder.path().join("keys/bad.key");
        fs::write(&corrupt, b"corrupt").expect("writes");
        fs::write(folder.path().join("keys/half.partial"), b"").expect("writes");
        let keys = open(&folder);
        assert_eq!(names(&keys), ["good", "self"]);
        assert!(matches!(keys.create("bad", KeyKind::Ed25519), Err(KeyError::Exists(_))));
        assert!(matches!(keys.rename("good", "bad"), Err(KeyError::Exists(_))));
        assert_eq!(fs::read(corrupt).expect("is there"), b"corrupt");
    }

    #[test]
    fn one_process_at_a_time_that_publishes_its_admin_address() {
        let folder = folder();
        let keys = open(&folder);
        let refusal = |patience| Keystore::open(folder.path(), patience).err();
        assert!(matches!(refusal(Duration::from_millis(50)), Some(KeyError::InUse { admin_address: None, .. })));
        keys.publish_admin_address("http://127.0.0.1:12345").expect("writes");
        let holder = || Keystore::holder(folder.path()).expect("reads");
        assert_eq!(holder(), LockHolder::Process { admin_address: Some("http://127.0.0.1:12345".to_owned()) });
        keys.publish_admin_address("http://[::1]:1").expect("writes");
        assert_eq!(holder(), LockHolder::Process { admin_address: Some("http://[::1]:1".to_owned()) });
        let refused = refusal(Duration::from_secs(3600));
        assert!(
            matches!(&refused, Some(KeyError::InUse { admin_address: Some(admin_address), .. }) if admin_address == "http://[::1]:1")
        );
        drop(keys);
        assert_eq!(holder(), LockHolder::Unlocked);
        let keys = open(&folder);
        assert!(
            matches!(refusal(Duration::ZERO), Some(KeyError::InUse { admin_address: None, .. })),
            "the address was deleted"
        );
        drop(keys);
    }
}
