//! [`Keystore`]: the private keys that names are published with, by the names that the operator gave them.
//!
//! One file is one key, in libp2p's protobuf message, readable by its owner alone; what was acknowledged survives a power
//! cut. The key `self` is the node's identity, and cannot be renamed, removed or exported: its file is to be copied
//! instead.
//!
//! Goals: a name cannot lead out of the folder; a file that cannot be read is left alone and its name stays taken; two
//! processes never change the folder at once. Whoever has the keystore open holds a lock, and may leave word in the lock's
//! file where it can be talked to, so that a command that finds the lock held knows whom to ask.
//!
//! Non-goals: encryption at rest, which is the file system's.

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
/// The longest name of a key, in bytes.
pub const NAME_BYTES_MAX: usize = 100;
/// Keys that are kept, `self` aside.
pub const KEYS_MAX: usize = 1024;

const FOLDER: &str = "keys";
const SUFFIX: &str = ".key";
const LOCK_FILE: &str = "keys.lock";
/// How often a lock that is held is tried again.
const GLANCE: Duration = Duration::from_millis(20);
/// The longest word in the lock's file.
const WORD_BYTES_MAX: usize = 1024;

/// What may be known of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// What the operator calls it.
    pub name: String,
    /// The name that is published with it.
    pub key: Key,
    /// What it signs with.
    pub kind: KeyKind,
}

/// Why something cannot be done with a key, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text cannot name a key.
    #[error(
        "\"{0}\" cannot name a key: use 1 to {NAME_BYTES_MAX} letters, digits, dots, hyphens and underscores, with no dot in front"
    )]
    Name(String),
    /// The node's own key is meant.
    #[error(
        "the key \"self\" is the node's identity: it cannot be made, replaced, renamed, removed or exported; copy the file identity.key of its data folder instead"
    )]
    Reserved,
    /// There is a key of the name.
    #[error("there is a key \"{0}\" already; choose another name, or rename or remove that key first")]
    Exists(String),
    /// The key itself is there under another name.
    #[error("this key is there already, as \"{0}\"")]
    Known(String),
    /// There is no key of the name.
    #[error("there is no key \"{0}\"; \"causeway key list\" prints those that there are")]
    Missing(String),
    /// There are too many keys.
    #[error("there are {KEYS_MAX} keys already; remove some first")]
    Full,
    /// The bytes are no key, or cannot be had so.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Another process has the keys open.
    #[error("the keys of {folder} are in use by another process", folder = folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// Where to talk to that process, if it said so.
        word: Option<String>,
    },
    /// The node's own key cannot be had.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A file cannot be read or written.
    #[error("cannot access {path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Who has the keys of a folder open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// Another process: a node, or a command that will be done in a moment.
    Somebody {
        /// Where to talk to it, if it has said so already.
        word: Option<String>,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> KeyError {
    let path = path.to_owned();
    move |source| KeyError::Io { path, source }
}

struct Held {
    keypair: Keypair,
    info: KeyInfo,
}

/// The keys of a node. All calls read or write files, and are meant for threads that may block.
pub struct Keystore {
    folder: PathBuf,
    lock: Mutex<File>,
    keys: Mutex<BTreeMap<String, Held>>,
}

impl Keystore {
    /// Opens the keys below a folder, which is created if need be, and makes the node's own if there is none. If another
    /// process has them open and left no word where to find it, that process is a command that will be done in a moment,
    /// or a node that is starting: it is waited for, up to `patience`.
    ///
    /// # Errors
    /// [`KeyError::InUse`], or whatever stands against reading the folder. A file in it that is no key is no error.
    pub fn open(state_dir: &Path, patience: Duration) -> Result<Self, KeyError> {
        let folder = state_dir.join(FOLDER);
        durable::create_folder(&folder).map_err(at(&folder))?;
        let lock = lock(state_dir, patience)?;
        let keypair = identity::load_or_create(state_dir)?;
        let mut keys = BTreeMap::from([(SELF.to_owned(), Held::new(SELF, keypair))]);
        for entry in fs::read_dir(&folder).map_err(at(&folder))? {
            let path = entry.map_err(at(&folder))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(SUFFIX));
            let Some(name) = name.filter(|name| check(name).is_ok() && *name != SELF) else { continue };
            match read(&path).and_then(|secret| Ok(secret.keypair()?)) {
                Ok(keypair) => _ = keys.insert(name.to_owned(), Held::new(name, keypair)),
                Err(error) => tracing::error!(path = %path.display(), %error, "a key cannot be used; restore its file"),
            }
        }
        Ok(Self { folder, lock: Mutex::new(lock), keys: Mutex::new(keys) })
    }

    /// Reads one key of a folder that another process may have open: files are replaced whole.
    ///
    /// # Errors
    /// [`KeyError::Missing`] and what else stands against reading it.
    pub fn peek(state_dir: &Path, name: &str, format: KeyFormat) -> Result<Vec<u8>, KeyError> {
        export(&state_dir.join(FOLDER), name, format)
    }

    /// Who has the keys of a folder open at this moment. Nothing is created or changed.
    ///
    /// # Errors
    /// [`KeyError::Io`]; that there are no keys is none.
    pub fn holder(state_dir: &Path) -> Result<Holder, KeyError> {
        let path = state_dir.join(LOCK_FILE);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holder::Nobody),
            file => file.map_err(at(&path))?,
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Holder::Nobody),
            Err(TryLockError::Error(error)) => Err(at(&path)(error)),
            Err(TryLockError::WouldBlock) => Ok(Holder::Somebody { word: word(&mut file).map_err(at(&path))? }),
        }
    }

    /// Leaves word where this process can be talked to, for those who find the keys locked.
    ///
    /// # Errors
    /// [`KeyError::Io`].
    pub fn leave_word(&self, word: &str) -> Result<(), KeyError> {
        let mut file = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(word.as_bytes())
        };
        write(&mut file).map_err(at(&self.folder))
    }

    /// Every key, `self` included, sorted by name.
    pub fn list(&self) -> Vec<KeyInfo> {
        self.keys().values().map(|held| held.info.clone()).collect()
    }

    /// A key that signs.
    ///
    /// # Errors
    /// [`KeyError::Missing`].
    pub fn get(&self, name: &str) -> Result<(KeyInfo, Keypair), KeyError> {
        let keys = self.keys();
        let held = keys.get(name).ok_or_else(|| missing(name))?;
        Ok((held.info.clone(), held.keypair.clone()))
    }

    /// The key that a name is published with.
    pub fn find(&self, key: &Key) -> Option<(KeyInfo, Keypair)> {
        let keys = self.keys();
        let held = keys.values().find(|held| held.info.key == *key)?;
        Some((held.info.clone(), held.keypair.clone()))
    }

    /// Makes a key.
    ///
    /// # Errors
    /// [`KeyError`] says why there is none.
    pub fn create(&self, name: &str, kind: KeyKind) -> Result<KeyInfo, KeyError> {
        self.add(name, &Secret::generate(kind)?)
    }

    /// Takes in a key. Without a format the bytes are taken for what they look like.
    ///
    /// # Errors
    /// [`KeyError`] says why it is not taken.
    pub fn import(&self, name: &str, format: Option<KeyFormat>, bytes: &[u8]) -> Result<KeyInfo, KeyError> {
        let format = format.unwrap_or_else(|| KeyFormat::guess(bytes));
        self.add(name, &Secret::read(format, bytes)?)
    }

    fn add(&self, name: &str, secret: &Secret) -> Result<KeyInfo, KeyError> {
        check_own(name)?;
        let held = Held::new(name, secret.keypair()?);
        let mut keys = self.keys();
        let path = self.free_path(&keys, name)?;
        if let Some(known) = keys.values().find(|known| known.info.key == held.info.key) {
            return Err(KeyError::Known(known.info.name.clone()));
        }
        if keys.len() > KEYS_MAX {
            return Err(KeyError::Full);
        }
        durable::write(&path, &secret.write(KeyFormat::Protobuf)?).map_err(at(&path))?;
        let info = held.info.clone();
        keys.insert(name.to_owned(), held);
        Ok(info)
    }

    /// The bytes of a key.
    ///
    /// # Errors
    /// [`KeyError`] says why they cannot be had.
    pub fn export(&self, name: &str, format: KeyFormat) -> Result<Vec<u8>, KeyError> {
        export(&self.folder, name, format)
    }

    /// Gives a key another name. What is published with it stays published.
    ///
    /// # Errors
    /// [`KeyError`] says what stands against it.
    pub fn rename(&self, from: &str, to: &str) -> Result<KeyInfo, KeyError> {
        check_own(from)?;
        check_own(to)?;
        let mut keys = self.keys();
        if !keys.contains_key(from) {
            return Err(missing(from));
        }
        let path = self.free_path(&keys, to)?;
        durable::rename(&self.path(from), &path).map_err(at(&path))?;
        let Some(held) = keys.remove(from) else { return Err(missing(from)) };
        let info = KeyInfo { name: to.to_owned(), ..held.info };
        keys.insert(to.to_owned(), Held { info: info.clone(), ..held });
        Ok(info)
    }

    /// Removes a key for good.
    ///
    /// # Errors
    /// [`KeyError`] says what stands against it.
    pub fn remove(&self, name: &str) -> Result<KeyInfo, KeyError> {
        check_own(name)?;
        let mut keys = self.keys();
        let info = keys.get(name).map(|held| held.info.clone()).ok_or_else(|| missing(name))?;
        let path = self.path(name);
        durable::remove(&path).map_err(at(&path))?;
        keys.remove(name);
        Ok(info)
    }

    /// Where the key of a name goes, if that is free: also of files that could not be read.
    fn free_path(&self, keys: &BTreeMap<String, Held>, name: &str) -> Result<PathBuf, KeyError> {
        let path = self.path(name);
        let taken = keys.contains_key(name) || path.try_exists().map_err(at(&path))?;
        if taken { Err(KeyError::Exists(name.to_owned())) } else { Ok(path) }
    }

    fn path(&self, name: &str) -> PathBuf {
        file(&self.folder, name)
    }

    fn keys(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn new(name: &str, keypair: Keypair) -> Self {
        use libp2p::identity::KeyType;
        let kind = match keypair.key_type() {
            KeyType::RSA => KeyKind::Rsa,
            KeyType::Ed25519 => KeyKind::Ed25519,
            KeyType::Secp256k1 => KeyKind::Secp256k1,
            KeyType::Ecdsa => KeyKind::Ecdsa,
        };
        let info = KeyInfo { name: name.to_owned(), key: Key::from(keypair.public().to_peer_id()), kind };
        Self { keypair, info }
    }
}

/// Whether a text can name a key. Names are parts of paths: nothing that a file system may read otherwise.
fn check(name: &str) -> Result<(), KeyError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let fine = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(good);
    if fine { Ok(()) } else { Err(KeyError::Name(name.chars().take(NAME_BYTES_MAX).collect())) }
}

fn check_own(name: &str) -> Result<(), KeyError> {
    if name == SELF { Err(KeyError::Reserved) } else { check(name) }
}

fn missing(name: &str) -> KeyError {
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
    check_own(name)?;
    let secret = match read(&file(folder, name)) {
        Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Err(missing(name)),
        other => other?,
    };
    Ok(secret.write(format)?)
}

/// Takes the lock, and wipes off the word of who had it before.
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
        let word = word(&mut file).map_err(at(&path))?;
        if word.is_some() || begun.elapsed() >= patience {
            return Err(KeyError::InUse { folder: state_dir.to_owned(), word });
        }
        std::thread::sleep(GLANCE);
    }
}

fn word(file: &mut File) -> io::Result<Option<String>> {
    let mut word = String::new();
    file.rewind()?;
    file.take(WORD_BYTES_MAX as u64).read_to_string(&mut word)?;
    Ok(Some(word).filter(|word| !word.is_empty()))
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
    fn keys_are_made_renamed_removed_and_there_after_a_restart() {
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
    fn names_lead_nowhere_else_and_clashes_are_told() {
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
    fn what_was_exported_is_imported_as_the_same_key() {
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
    fn a_damaged_file_keeps_its_name_and_harms_no_other() {
        let folder = folder();
        let keys = open(&folder);
        keys.create("good", KeyKind::Ed25519).expect("makes");
        drop(keys);
        let damaged = folder.path().join("keys/bad.key");
        fs::write(&damaged, b"damaged").expect("writes");
        fs::write(folder.path().join("keys/half.partial"), b"").expect("writes");
        let keys = open(&folder);
        assert_eq!(names(&keys), ["good", "self"]);
        assert!(matches!(keys.create("bad", KeyKind::Ed25519), Err(KeyError::Exists(_))));
        assert!(matches!(keys.rename("good", "bad"), Err(KeyError::Exists(_))));
        assert_eq!(fs::read(damaged).expect("is there"), b"damaged");
    }

    #[test]
    fn one_process_at_a_time_and_word_of_where_it_is() {
        let folder = folder();
        let keys = open(&folder);
        let refusal = |patience| Keystore::open(folder.path(), patience).err();
        assert!(matches!(refusal(Duration::from_millis(50)), Some(KeyError::InUse { word: None, .. })));
        keys.leave_word("http://127.0.0.1:12345").expect("writes");
        let holder = || Keystore::holder(folder.path()).expect("reads");
        assert_eq!(holder(), Holder::Somebody { word: Some("http://127.0.0.1:12345".to_owned()) });
        keys.leave_word("http://[::1]:1").expect("writes");
        assert_eq!(holder(), Holder::Somebody { word: Some("http://[::1]:1".to_owned()) });
        let refused = refusal(Duration::from_secs(3600));
        assert!(matches!(&refused, Some(KeyError::InUse { word: Some(word), .. }) if word == "http://[::1]:1"));
        drop(keys);
        assert_eq!(holder(), Holder::Nobody);
        let keys = open(&folder);
        assert!(matches!(refusal(Duration::ZERO), Some(KeyError::InUse { word: None, .. })), "the word was wiped off");
        drop(keys);
    }
}
