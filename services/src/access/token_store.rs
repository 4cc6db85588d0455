//! The tokens that the operator has given out: one file in the data folder, which commands change and the gateway reads.
//!
//! Goals: a token is made and revoked by a command, whether the gateway runs or not, and what the command acknowledged holds from
//! the next request on and after a power cut; the file tells a thief nothing that opens anything.
//!
//! The file is replaced whole ([`p2p_bridge::durable`]), under a lock of its own. Whoever reads it looks first whether it is still
//! the same file: that is one `stat` a request, on a listener where a few microseconds do not matter. A file that cannot be
//! understood lets nobody in; the operator's own tokens are not in it.

use crate::access::secret::{Hash, Token};
use crate::fingerprint::Stamp;
use api::access::{OPERATOR, Quota, Scopes};
use http::StatusCode;
use p2p_bridge::{durable, epoch};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The file, in the data folder.
const FILE: &str = "tokens.json";
/// Whom it belongs to while it is changed.
const LOCK_FILE: &str = "tokens.lock";
/// The largest file that is read: some ten thousand tokens.
const FILE_BYTES_MAX: usize = 4 << 20;
/// How many tokens there may be.
const TOKENS_MAX: usize = 10_000;
/// The longest name, in characters.
const NAME_CHARS_MAX: usize = 64;

/// What is kept of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// By what it is found, and what its pins belong to.
    pub id: String,
    /// What the operator calls it: one of its own for each.
    pub name: String,
    /// The SHA-256 of its secret, in hexadecimal.
    pub hash: String,
    /// What it is good for.
    pub scopes: Scopes,
    /// How much may be kept for it.
    #[serde(default)]
    pub quota: Quota,
    /// When it was made, in seconds since the Unix epoch.
    pub created_at: u64,
    /// From when on it is good for nothing, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

impl Entry {
    /// Whether it has ended by itself.
    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|end| epoch::seconds(now) >= end)
    }
}

/// What a token is to be.
#[derive(Debug, Clone)]
pub struct Terms {
    /// What to call it; the first of "token-1", "token-2" and so on that none is called if that is left out.
    pub name: Option<String>,
    /// What it is to be good for.
    pub scopes: Scopes,
    /// How much may be kept for it.
    pub quota: Quota,
    /// For how long it is to be good; for ever if that is left out.
    pub lifetime: Option<Duration>,
}

/// Why the token store was not changed or read.
#[derive(Debug, thiserror::Error)]
pub enum TokenStoreError {
    /// The name cannot be used.
    #[error(
        "a token's name has 1 to {NAME_CHARS_MAX} characters, none of them a control character, and is not \"{OPERATOR}\""
    )]
    Name,
    /// Another has the name.
    #[error("there is a token called \"{0}\" already: choose another name, or remove that one first")]
    Taken(String),
    /// It would be good for nothing.
    #[error("a token needs at least one scope: read, pin, operate or takedown")]
    NoScopes,
    /// There are too many.
    #[error("there are {TOKENS_MAX} tokens already: remove some first")]
    Full,
    /// There is none.
    #[error("there is no token with the id or name \"{0}\"; \"causeway token ls\" lists them")]
    Missing(String),
    /// The file is not what was written.
    #[error("{path} cannot be understood: {reason}", path = path.display())]
    Damaged {
        /// Where it is.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system refused.
    #[error("{path}: {said}", path = path.display())]
    Io {
        /// What was to be read or written.
        path: PathBuf,
        /// What it said.
        said: io::Error,
    },
}

impl TokenStoreError {
    /// What HTTP has for it.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Name | Self::NoScopes => StatusCode::BAD_REQUEST,
            Self::Taken(_) => StatusCode::CONFLICT,
            Self::Missing(_) => StatusCode::NOT_FOUND,
            Self::Full => StatusCode::INSUFFICIENT_STORAGE,
            Self::Damaged { .. } | Self::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// The file's content.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    tokens: Vec<Entry>,
}

/// The tokens of a data folder.
#[derive(Debug, Clone)]
pub struct TokenStore {
    dir: PathBuf,
}

impl TokenStore {
    /// The token store of a data folder, which need not be there yet.
    pub fn of(data_dir: &Path) -> Self {
        Self { dir: data_dir.to_owned() }
    }

    /// Every token, in the order in which they were made.
    ///
    /// # Errors
    /// [`TokenStoreError::Damaged`] and [`TokenStoreError::Io`]; that there is no file is none.
    pub fn list(&self) -> Result<Vec<Entry>, TokenStoreError> {
        let path = self.path();
        let bytes = match durable::read(&path, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(|said| TokenStoreError::Io { path: path.clone(), said })?,
        };
        let page: Page = serde_json::from_slice(&bytes)
            .map_err(|error| TokenStoreError::Damaged { path: path.clone(), reason: error.to_string() })?;
        match page.tokens.iter().find(|entry| Hash::from_hex(&entry.hash).is_none()) {
            Some(entry) => Err(TokenStoreError::Damaged { path, reason: format!("the hash of {} is none", entry.id) }),
            None => Ok(page.tokens),
        }
    }

    /// Makes a token. This is the only time that it is seen in the clear.
    ///
    /// # Errors
    /// [`TokenStoreError`].
    pub fn create(&self, terms: Terms) -> Result<(Entry, Token), TokenStoreError> {
        let Terms { name, scopes, quota, lifetime } = terms;
        if name.as_deref().is_some_and(|name| !is_name(name)) {
            return Err(TokenStoreError::Name);
        }
        if scopes.is_empty() {
            return Err(TokenStoreError::NoScopes);
        }
        self.change(|tokens| {
            let name = name.unwrap_or_else(|| free_name(tokens));
            if tokens.iter().any(|entry| entry.name == name || entry.id == name) {
                return Err(TokenStoreError::Taken(name));
            }
            if tokens.len() >= TOKENS_MAX {
                return Err(TokenStoreError::Full);
            }
            let token = Token::generate()
                .map_err(|said| TokenStoreError::Io { path: "the system's randomness".into(), said })?;
            let created_at = epoch::now();
            let expires_at = lifetime.map(|lifetime| created_at.saturating_add(lifetime.as_secs()));
            let (id, hash) = (token.id().to_owned(), token.hash().to_hex());
            let entry = Entry { id, name, hash, scopes, quota, created_at, expires_at };
            tokens.push(entry.clone());
            Ok((entry, token))
        })
    }

    /// Revokes a token, by its id or its name. What it has pinned stays, and the operator may remove it.
    ///
    /// # Errors
    /// [`TokenStoreError`].
    pub fn remove(&self, id_or_name: &str) -> Result<Entry, TokenStoreError> {
        self.change(|tokens| {
            let is_meant = |entry: &Entry| entry.id == id_or_name || entry.name == id_or_name;
            let at = tokens.iter().position(is_meant).ok_or_else(|| TokenStoreError::Missing(id_or_name.to_owned()))?;
            Ok(tokens.remove(at))
        })
    }

    /// Changes the tokens while nobody else does.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Vec<Entry>) -> Result<T, TokenStoreError>,
    ) -> Result<T, TokenStoreError> {
        let _lock = self.lock()?;
        let mut tokens = self.list()?;
        let done = change(&mut tokens)?;
        let path = self.path();
        let written = serde_json::to_vec_pretty(&Page { tokens }).map_err(io::Error::other);
        let written =
            written.and_then(|bytes| durable::write(&path, &bytes)).and_then(|()| hand_over(&self.dir, &path));
        written.map(|()| done).map_err(|said| TokenStoreError::Io { path, said })
    }

    fn lock(&self) -> Result<File, TokenStoreError> {
        let path = self.dir.join(LOCK_FILE);
        let open = || {
            durable::create_folder(&self.dir)?;
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            hand_over(&self.dir, &path)?;
            file.lock()?;
            Ok(file)
        };
        open().map_err(|said| TokenStoreError::Io { path: path.clone(), said })
    }

    fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }
}

/// No token is called as the operator is.
fn is_name(name: &str) -> bool {
    name != OPERATOR && (1..=NAME_CHARS_MAX).contains(&name.chars().count()) && !name.chars().any(char::is_control)
}

/// The first of "token-1", "token-2" and so on that none is called.
fn free_name(tokens: &[Entry]) -> String {
    let taken: HashSet<&str> = tokens.iter().map(|entry| entry.name.as_str()).collect();
    let mut names = (1..=taken.len() + 1).map(|number| format!("token-{number}"));
    // Of one more than are taken, one is free.
    names.find(|name| !taken.contains(name.as_str())).unwrap_or_default()
}

/// Gives a file to whoever has its folder: a command that root runs must not keep the gateway from reading it. Whoever has the folder
/// may have put a link there, and what that leads to is not given away.
///
/// # Errors
/// Whatever the file system says.
pub(crate) fn hand_over(dir: &Path, path: &Path) -> io::Result<()> {
    let (folder, file) = (fs::metadata(dir)?, fs::symlink_metadata(path)?);
    if (folder.uid(), folder.gid()) == (file.uid(), file.gid()) || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    lchown(path, Some(folder.uid()), Some(folder.gid()))
}

/// The tokens that hold now, each with the hash of its secret.
type Held = HashMap<String, (Hash, Entry)>;

/// A token store that is read again when it has changed.
#[derive(Debug)]
pub struct CachedTokenStore {
    store: TokenStore,
    read: Mutex<Option<(Option<Stamp>, Arc<Held>)>>,
}

impl CachedTokenStore {
    /// Reads it when it is asked for the first time.
    pub fn new(store: TokenStore) -> Self {
        Self { store, read: Mutex::default() }
    }

    /// What is kept of a token. Reads a small file, at times.
    pub fn find(&self, id: &str) -> Option<(Hash, Entry)> {
        self.held().get(id).cloned()
    }

    fn held(&self) -> Arc<Held> {
        // The stamp comes first: if the file is replaced in between, it is read once more next time.
        let stamp = Stamp::at(&self.store.path());
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, held)) = read.as_ref().filter(|(known, _)| *known == stamp) {
            return Arc::clone(held);
        }
        let tokens = self.store.list().unwrap_or_else(|error| {
            tracing::error!(%error, "no token that was given out is accepted");
            Vec::new()
        });
        let hashed = |entry: Entry| Some((entry.id.clone(), (Hash::from_hex(&entry.hash)?, entry)));
        let held: Arc<Held> = Arc::new(tokens.into_iter().filter_map(hashed).collect());
        *read = Some((stamp, Arc::clone(&held)));
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::access::Scope;
    use std::time::UNIX_EPOCH;

    fn terms(name: &str) -> Terms {
        let scopes = [Scope::Pin].into_iter().collect();
        Terms {
            name: Some(name.to_owned()),
            scopes,
            quota: Quota { pins_max: Some(3), bytes_max: None },
            lifetime: None,
        }
    }

    #[test]
    fn tokens_are_made_found_and_revoked() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = TokenStore::of(&dir.path().join("data"));
        assert_eq!(store.list().expect("there is nothing to read"), []);
        let open = CachedTokenStore::new(store.clone());
        assert!(open.find("nobody").is_none());
        let (entry, token) = store.create(terms("ci")).expect("makes");
        let (hash, found) = open.find(token.id()).expect("it is read again");
        assert!(found == entry && hash.is(&token.hash()));
        let text = fs::read_to_string(dir.path().join("data").join(FILE)).expect("reads");
        let secret = token.reveal().rsplit_once('_').expect("a secret").1.to_owned();
        assert!(!text.contains(&secret), "{text}");
        let mode = fs::metadata(dir.path().join("data").join(FILE)).expect("is there").mode();
        assert_eq!(mode & 0o777, 0o600);
        let (other, _) = store.create(terms("other")).expect("makes");
        assert_eq!(store.list().expect("reads"), [entry.clone(), other.clone()]);
        assert_eq!(store.remove("ci").expect("is there"), entry);
        assert!(open.find(token.id()).is_none());
        assert_eq!(store.remove(&other.id).expect("by its id"), other);
        assert!(matches!(store.remove("ci"), Err(TokenStoreError::Missing(_))));
    }

    #[test]
    fn what_root_writes_belongs_to_whoever_has_the_folder() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("only root can try this");
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        lchown(dir.path(), Some(12345), Some(12346)).expect("root may");
        TokenStore::of(dir.path()).create(terms("ci")).expect("makes");
        for file in [FILE, LOCK_FILE] {
            let metadata = fs::metadata(dir.path().join(file)).expect("is there");
            assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (12345, 12346, 0o600), "{file}");
        }
    }

    #[test]
    fn what_a_link_leads_to_is_not_given_away() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("only root can try this");
            return;
        }
        let (dir, elsewhere) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let target = elsewhere.path().join("shadow");
        fs::write(&target, "root's").expect("writes");
        lchown(dir.path(), Some(12345), Some(12346)).expect("root may");
        std::os::unix::fs::symlink(&target, dir.path().join(LOCK_FILE)).expect("links");
        TokenStore::of(dir.path()).create(terms("ci")).expect("makes");
        assert_eq!(fs::metadata(&target).expect("is there").uid(), 0);
    }

    #[test]
    fn what_cannot_be_a_token_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = TokenStore::of(dir.path());
        store.create(terms("ci")).expect("makes");
        let none = Terms { scopes: Scopes::default(), ..terms("none") };
        assert!(matches!(store.create(terms("ci")), Err(TokenStoreError::Taken(_))));
        assert!(matches!(store.create(none), Err(TokenStoreError::NoScopes)));
        for name in ["", "a\nb", &"a".repeat(65), OPERATOR] {
            assert!(matches!(store.create(terms(name)), Err(TokenStoreError::Name)), "{name:?}");
        }
        assert_eq!(store.list().expect("reads").len(), 1);
    }

    #[test]
    fn tokens_end_by_themselves() {
        let dir = tempfile::tempdir().expect("a folder");
        let terms = Terms { lifetime: Some(Duration::from_secs(60)), ..terms("short") };
        let (entry, _) = TokenStore::of(dir.path()).create(terms).expect("makes");
        let at = |after| UNIX_EPOCH + Duration::from_secs(entry.created_at + after);
        assert!(!entry.is_expired(at(59)) && entry.is_expired(at(60)));
    }

    #[test]
    fn a_damaged_book_lets_nobody_in() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = TokenStore::of(dir.path());
        let (_, token) = store.create(terms("ci")).expect("makes");
        let open = CachedTokenStore::new(store.clone());
        assert!(open.find(token.id()).is_some());
        let whole = fs::read_to_string(store.path()).expect("reads");
        let hash = token.hash().to_hex();
        for damaged in [&whole[1..], "", "{}", "{\"tokens\": 1}", &whole.replace(&hash, "00")] {
            fs::write(store.path(), damaged).expect("writes");
            assert!(open.find(token.id()).is_none(), "{damaged}");
            assert!(matches!(store.create(terms("new")), Err(TokenStoreError::Damaged { .. })), "{damaged}");
            assert_eq!(fs::read_to_string(store.path()).expect("reads"), damaged, "nothing is lost");
        }
        fs::write(store.path(), &whole).expect("writes");
        assert!(open.find(token.id()).is_some());
    }

    #[test]
    fn many_may_make_tokens_at_the_same_time() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = TokenStore::of(dir.path());
        std::thread::scope(|scope| {
            for number in 0..8 {
                let store = store.clone();
                scope.spawn(move || store.create(terms(&format!("token {number}"))).expect("makes"));
            }
        });
        assert_eq!(store.list().expect("reads").len(), 8);
    }
}
