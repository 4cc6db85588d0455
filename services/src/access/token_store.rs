//! The tokens that the operator created: one file in the data directory, which commands change and the gateway reads.
//!
//! Goals: a command can create and revoke tokens whether the gateway runs or not, and an acknowledged change holds from
//! the next request on and after a power failure; the file has no secrets.
//!
//! The file is replaced atomically ([`p2p_bridge::durable`]) while a lock file is held. Readers compare the file's
//! fingerprint first: one `stat` for each request, on a listener where a few microseconds do not matter. If the file
//! cannot be parsed, no token in it is accepted; the operator's own tokens are not in it.
//!
//! In a site, tokens are created in the log that its gateways share ([`crate::control_log`]), and are valid at all of
//! them. Those in the file, from a time when the gateway was alone, stay valid at this gateway until they are revoked.
//! A token of the log that this release cannot parse is not accepted, and does not affect others. Those in the file are
//! revoked without the log.

use crate::access::secret::{Hash, Token};
use crate::control_log::{self, ControlLog, ControlLogError, TokenRecords};
use crate::fingerprint::FileFingerprint;
use api::access::{OPERATOR, Quota, Scopes};
use cache::metadata_store::Change;
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
use tokio::runtime::Handle;

/// The file in the data directory.
const FILE: &str = "tokens.json";
/// The lock file, which is held during changes.
const LOCK_FILE: &str = "tokens.lock";
/// The maximum size of the file: some ten thousand tokens.
const FILE_BYTES_MAX: usize = 4 << 20;
/// The maximum number of tokens.
const TOKENS_MAX: usize = 10_000;
/// The maximum length of a name, in characters.
const NAME_CHARS_MAX: usize = 64;
/// How often the removal of a token is attempted whose creation may have failed, how long it takes until the next
/// attempt, and how long all of them may take: the request is to be answered before its timeout.
const UNDO_ATTEMPTS: usize = 3;
const UNDO_INTERVAL: Duration = Duration::from_millis(500);
const UNDO_TIMEOUT: Duration = Duration::from_secs(3);

/// A stored token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredToken {
    /// The ID of the token, which owns its pins.
    pub id: String,
    /// The name, which is unique.
    pub name: String,
    /// The SHA-256 of its secret, in hexadecimal.
    pub hash: String,
    /// What it authorises.
    pub scopes: Scopes,
    /// Its quota.
    #[serde(default)]
    pub quota: Quota,
    /// When it was created, in seconds since the Unix epoch.
    pub created_at: u64,
    /// When it expires, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

impl StoredToken {
    /// Whether it has expired.
    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|end| epoch::seconds(now) >= end)
    }
}

/// The parameters of a new token.
#[derive(Debug, Clone)]
pub struct TokenParameters {
    /// The name; the first free one of "token-1", "token-2" and so on by default.
    pub name: Option<String>,
    /// What it authorises.
    pub scopes: Scopes,
    /// Its quota.
    pub quota: Quota,
    /// How long it is valid; without limit by default.
    pub lifetime: Option<Duration>,
}

/// Why reading or changing the token store failed.
#[derive(Debug, thiserror::Error)]
pub enum TokenStoreError {
    /// The name is invalid.
    #[error(
        "a token's name must have 1 to {NAME_CHARS_MAX} characters without control characters, and must not be \
         \"{OPERATOR}\""
    )]
    Name,
    /// Another token has the name.
    #[error("a token named \"{0}\" exists already: choose another name, or remove that token first")]
    Taken(String),
    /// It has no scope.
    #[error("a token needs at least one scope: read, pin, operate or takedown")]
    NoScopes,
    /// There are too many tokens.
    #[error("there are already {TOKENS_MAX} tokens, the maximum: remove some first")]
    Full,
    /// There is no such token.
    #[error("there is no token with the ID or name \"{0}\"; \"causeway token ls\" lists the tokens")]
    Missing(String),
    /// The gateway and its site have tokens of this name.
    #[error(
        "two tokens are named \"{name}\": {own}, which this gateway had before it was one of the site, and {of_site}, \
         which is one of the site: give the ID of the one to be revoked"
    )]
    Ambiguous {
        /// The name.
        name: String,
        /// The ID of the token in the file.
        own: String,
        /// The ID of the token of the site.
        of_site: String,
    },
    /// The file is corrupt.
    #[error("the token file {path} is invalid: {reason}", path = path.display())]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// Why it is invalid.
        reason: String,
    },
    /// The file system failed.
    #[error("reading or writing {path} failed: {said}", path = path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        said: io::Error,
    },
    /// The tokens of the site could not be changed.
    #[error(transparent)]
    Site(#[from] ControlLogError),
    /// Whether a token of the site was created is unknown. Its secret was not shown.
    #[error(
        "{error}; the token {id} may have been created nevertheless, but its secret was not shown: when the database \
         can be reached, \"causeway token rm {id}\" removes it if it is there"
    )]
    MaybeCreated {
        /// The ID of the token.
        id: String,
        /// Why its creation failed.
        error: ControlLogError,
    },
}

impl TokenStoreError {
    /// The HTTP status of the error.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Name | Self::NoScopes => StatusCode::BAD_REQUEST,
            Self::Taken(_) | Self::Ambiguous { .. } => StatusCode::CONFLICT,
            Self::Missing(_) => StatusCode::NOT_FOUND,
            Self::Full => StatusCode::INSUFFICIENT_STORAGE,
            Self::Site(error) | Self::MaybeCreated { error, .. } if error.is_unavailable() => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Damaged { .. } | Self::Io { .. } | Self::Site(_) | Self::MaybeCreated { .. } => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }
}

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    tokens: Vec<StoredToken>,
}

/// The token store of a data directory, or of a gateway of a site.
#[derive(Debug, Clone)]
pub struct TokenStore {
    dir: PathBuf,
    site: Option<Arc<ControlLog>>,
}

impl TokenStore {
    /// The token store of a data directory, which may not exist yet.
    pub fn of(data_dir: &Path) -> Self {
        Self { dir: data_dir.to_owned(), site: None }
    }

    /// The same with the tokens of the site of the gateway, if it belongs to one. Changes block the thread, which has
    /// to be one of Tokio's that may block.
    #[must_use]
    pub fn with_site(self, site: Option<Arc<ControlLog>>) -> Self {
        Self { site, ..self }
    }

    /// All tokens, in order of creation: first those of the site.
    ///
    /// # Errors
    /// [`TokenStoreError::Damaged`] and [`TokenStoreError::Io`]. A missing file is an empty store.
    pub fn list(&self) -> Result<Vec<StoredToken>, TokenStoreError> {
        let mut tokens = self.site.as_ref().map(|site| parse_all(&site.tokens())).unwrap_or_default();
        tokens.extend(self.list_own()?);
        Ok(tokens)
    }

    /// The tokens in the file.
    fn list_own(&self) -> Result<Vec<StoredToken>, TokenStoreError> {
        let path = self.path();
        let bytes = match durable::read(&path, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(|said| TokenStoreError::Io { path: path.clone(), said })?,
        };
        let file: TokenFile = serde_json::from_slice(&bytes)
            .map_err(|error| TokenStoreError::Damaged { path: path.clone(), reason: error.to_string() })?;
        match file.tokens.iter().find(|entry| Hash::from_hex(&entry.hash).is_none()) {
            Some(entry) => {
                Err(TokenStoreError::Damaged { path, reason: format!("the hash of {} is invalid", entry.id) })
            }
            None => Ok(file.tokens),
        }
    }

    /// Creates a token. Only its hash is stored.
    ///
    /// # Errors
    /// [`TokenStoreError`].
    pub fn create(&self, terms: TokenParameters) -> Result<(StoredToken, Token), TokenStoreError> {
        if terms.name.as_deref().is_some_and(|name| !is_name(name)) {
            return Err(TokenStoreError::Name);
        }
        if terms.scopes.is_empty() {
            return Err(TokenStoreError::NoScopes);
        }
        let token = Token::generate()
            .map_err(|said| TokenStoreError::Io { path: "the system's random number generator".into(), said })?;
        let Some(site) = &self.site else {
            return self.change(|tokens| {
                let entry = new_entry(&terms, tokens, tokens.len(), &token)?;
                tokens.push(entry.clone());
                Ok((entry, token))
            });
        };
        // A name means one token at each gateway.
        let own = self.list_own()?;
        let entry = Handle::current().block_on(create_in_site(site, &terms, &own, &token))?;
        Ok((entry, token))
    }

    /// Revokes a token, by its ID or its name. Its pins stay, and the operator can remove them. Tokens in the file are
    /// revoked also while the log of the site cannot be reached.
    ///
    /// # Errors
    /// [`TokenStoreError`].
    pub fn remove(&self, id_or_name: &str) -> Result<StoredToken, TokenStoreError> {
        let Some(site) = &self.site else { return self.remove_own(id_or_name) };
        // No token in a file that cannot be read is accepted, and those of the site can be revoked nevertheless.
        let listed = self.list_own();
        let own = listed.as_deref().ok().and_then(|own| find(own, id_or_name));
        match (own, find(&parse_all(&site.tokens()), id_or_name)) {
            (Some(own), of_site) if own.id == id_or_name || of_site.is_none() => self.remove_own(&own.id),
            (Some(own), Some(of_site)) if of_site.id != id_or_name => {
                let (name, own, of_site) = (id_or_name.to_owned(), own.id.clone(), of_site.id.clone());
                Err(TokenStoreError::Ambiguous { name, own, of_site })
            }
            _ => match Handle::current().block_on(remove_from_site(site, id_or_name))? {
                Some(removed) => Ok(removed),
                None => Err(listed.err().unwrap_or_else(|| TokenStoreError::Missing(id_or_name.to_owned()))),
            },
        }
    }

    /// Revokes a token in the file.
    fn remove_own(&self, id_or_name: &str) -> Result<StoredToken, TokenStoreError> {
        self.change(|tokens| {
            let id = find(tokens, id_or_name).map(|entry| entry.id.clone());
            let at = tokens.iter().position(|entry| id.as_ref() == Some(&entry.id));
            Ok(tokens.remove(at.ok_or_else(|| TokenStoreError::Missing(id_or_name.to_owned()))?))
        })
    }

    /// Changes the tokens under the lock.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Vec<StoredToken>) -> Result<T, TokenStoreError>,
    ) -> Result<T, TokenStoreError> {
        let _lock = self.lock()?;
        let mut tokens = self.list_own()?;
        let done = change(&mut tokens)?;
        let path = self.path();
        let written = serde_json::to_vec_pretty(&TokenFile { tokens }).map_err(io::Error::other);
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

/// The token with an ID or, if there is none, with a name.
fn find<'a>(tokens: &'a [StoredToken], id_or_name: &str) -> Option<&'a StoredToken> {
    let by_id = tokens.iter().find(|entry| entry.id == id_or_name);
    by_id.or_else(|| tokens.iter().find(|entry| entry.name == id_or_name))
}

/// Creates a token of the site, with a name that none of its tokens and none of `own` has.
async fn create_in_site(
    site: &Arc<ControlLog>,
    terms: &TokenParameters,
    own: &[StoredToken],
    token: &Token,
) -> Result<StoredToken, TokenStoreError> {
    // If the log cannot be reached, it is certain that nothing was created.
    site.change_tokens(|_| Ok::<_, TokenStoreError>((Vec::new(), ()))).await?;
    let decide = |known: &TokenRecords| {
        let mut taken = parse_all(known);
        taken.extend(own.iter().cloned());
        let entry = new_entry(terms, &taken, known.len(), token)?;
        let json = serde_json::to_vec(&entry);
        let json = json.map_err(|error| TokenStoreError::Io { path: FILE.into(), said: io::Error::other(error) })?;
        Ok((vec![control_log::put_token(&entry.id, json)], entry))
    };
    match site.change_tokens(decide).await {
        // It may have been appended.
        Err(TokenStoreError::Site(error @ ControlLogError::Log(_))) => {
            Err(undo_creation(site, token.id(), error).await)
        }
        created => created,
    }
}

/// Removes a token whose creation has failed with an error, and returns that error, or one with the ID if the token may
/// be left. The removal is an entry of its own, whether there is such a token or not: after it, a creation that is
/// still on its way is not appended.
async fn undo_creation(site: &Arc<ControlLog>, id: &str, error: ControlLogError) -> TokenStoreError {
    let (site, removed) = (Arc::clone(site), id.to_owned());
    // It may read all records again, which must not be cancelled.
    let removing = tokio::spawn(async move {
        for attempt in 0..UNDO_ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(UNDO_INTERVAL).await;
            }
            let changes = vec![control_log::remove_token(&removed)];
            let changed = site.change_tokens(|_| Ok::<_, ControlLogError>((changes.clone(), ())));
            if changed.await.is_ok() {
                return true;
            }
        }
        false
    });
    match tokio::time::timeout(UNDO_TIMEOUT, removing).await {
        Ok(Ok(true)) => error.into(),
        _ => TokenStoreError::MaybeCreated { id: id.to_owned(), error },
    }
}

/// Revokes a token of the site; `None` if it has no such token.
async fn remove_from_site(site: &ControlLog, id_or_name: &str) -> Result<Option<StoredToken>, TokenStoreError> {
    let decide = |known: &TokenRecords| -> Result<(Vec<Change>, Option<StoredToken>), TokenStoreError> {
        let found = find(&parse_all(known), id_or_name).cloned();
        let changes = found.iter().map(|entry| control_log::remove_token(&entry.id)).collect();
        Ok((changes, found))
    };
    site.change_tokens(decide).await
}

/// The tokens of the site that this release can parse, in order of creation.
fn parse_all(records: &TokenRecords) -> Vec<StoredToken> {
    let parse = |(id, json): (&String, &Vec<u8>)| {
        let token: Option<StoredToken> = serde_json::from_slice(json).ok();
        token.filter(|token| token.id == *id && Hash::from_hex(&token.hash).is_some())
    };
    let mut tokens: Vec<StoredToken> = records.iter().filter_map(parse).collect();
    tokens.sort_by(|one, other| (one.created_at, &one.id).cmp(&(other.created_at, &other.id)));
    tokens
}

/// The entry of a new token. `taken` are those whose names it must not have, and `count` those that count towards the
/// maximum.
fn new_entry(
    terms: &TokenParameters,
    taken: &[StoredToken],
    count: usize,
    token: &Token,
) -> Result<StoredToken, TokenStoreError> {
    let name = terms.name.clone().unwrap_or_else(|| free_name(taken));
    if taken.iter().any(|entry| entry.name == name || entry.id == name) {
        return Err(TokenStoreError::Taken(name));
    }
    if count >= TOKENS_MAX {
        return Err(TokenStoreError::Full);
    }
    let created_at = epoch::now();
    let expires_at = terms.lifetime.map(|lifetime| created_at.saturating_add(lifetime.as_secs()));
    let (id, hash, scopes) = (token.id().to_owned(), token.hash().to_hex(), terms.scopes);
    Ok(StoredToken { id, name, hash, scopes, quota: terms.quota, created_at, expires_at })
}

/// Whether a name is valid. The operator's is reserved.
fn is_name(name: &str) -> bool {
    name != OPERATOR && (1..=NAME_CHARS_MAX).contains(&name.chars().count()) && !name.chars().any(char::is_control)
}

/// The first free name of "token-1", "token-2" and so on.
fn free_name(tokens: &[StoredToken]) -> String {
    let taken: HashSet<&str> = tokens.iter().map(|entry| entry.name.as_str()).collect();
    let mut names = (1..=taken.len() + 1).map(|number| format!("token-{number}"));
    // Of one name more than are taken, one is free.
    names.find(|name| !taken.contains(name.as_str())).unwrap_or_default()
}

/// Changes the owner of a file to that of its folder, so that the gateway can read what a command wrote as root.
/// Symbolic links are not followed: the owner of the folder may have created one.
///
/// # Errors
/// The error of the file system.
pub(crate) fn hand_over(dir: &Path, path: &Path) -> io::Result<()> {
    let (folder, file) = (fs::metadata(dir)?, fs::symlink_metadata(path)?);
    if (folder.uid(), folder.gid()) == (file.uid(), file.gid()) || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    lchown(path, Some(folder.uid()), Some(folder.gid()))
}

/// The valid tokens by ID, each with the hash of its secret.
type Tokens = HashMap<String, (Hash, StoredToken)>;

/// What tokens were read from: the file, and the tokens of the site.
#[derive(Debug)]
struct TokenSource {
    fingerprint: Option<FileFingerprint>,
    site: Option<Arc<TokenRecords>>,
}

impl TokenSource {
    fn of(store: &TokenStore) -> Self {
        Self { fingerprint: FileFingerprint::at(&store.path()), site: store.site.as_ref().map(|site| site.tokens()) }
    }

    fn is_same(&self, other: &Self) -> bool {
        let is_same_site = match (&self.site, &other.site) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        is_same_site && self.fingerprint == other.fingerprint
    }

    /// The tokens by ID. If the file cannot be read, those of the site are valid nevertheless.
    fn read(&self, store: &TokenStore) -> Tokens {
        let own = store.list_own().unwrap_or_else(|error| {
            tracing::error!(%error, "the token file cannot be read: no token in it is accepted");
            Vec::new()
        });
        let of_site = self.site.as_ref().map(|site| parse_all(site)).unwrap_or_default();
        let hashed = |entry: StoredToken| Some((entry.id.clone(), (Hash::from_hex(&entry.hash)?, entry)));
        own.into_iter().chain(of_site).filter_map(hashed).collect()
    }
}

/// A cached token store, which is read again when the file or the tokens of the site change.
#[derive(Debug)]
pub struct CachedTokenStore {
    store: TokenStore,
    cached: Mutex<Option<(TokenSource, Arc<Tokens>)>>,
}

impl CachedTokenStore {
    /// The tokens are read when one is looked up for the first time.
    pub fn new(store: TokenStore) -> Self {
        Self { store, cached: Mutex::default() }
    }

    /// Finds a token by its ID. Reads a small file if it has changed.
    pub fn find(&self, id: &str) -> Option<(Hash, StoredToken)> {
        self.tokens().get(id).cloned()
    }

    fn tokens(&self) -> Arc<Tokens> {
        // The fingerprint is taken first: if the file is replaced in between, it is read again next time.
        let source = TokenSource::of(&self.store);
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, tokens)) = cached.as_ref().filter(|(known, _)| known.is_same(&source)) {
            return Arc::clone(tokens);
        }
        let tokens = Arc::new(source.read(&self.store));
        *cached = Some((source, Arc::clone(&tokens)));
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_log::{Connection, Fault};
    use api::access::Scope;
    use cache::MetadataStore;
    use std::time::UNIX_EPOCH;

    fn terms(name: &str) -> TokenParameters {
        let scopes = [Scope::Pin].into_iter().collect();
        TokenParameters {
            name: Some(name.to_owned()),
            scopes,
            quota: Quota { pins_max: Some(3), bytes_max: None },
            lifetime: None,
        }
    }

    #[test]
    fn tokens_are_created_found_and_revoked() {
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

    /// Runs `work` on a thread where it may block.
    async fn blocking<T: Send + 'static>(
        store: &TokenStore,
        work: impl FnOnce(&TokenStore) -> T + Send + 'static,
    ) -> T {
        let store = store.clone();
        tokio::task::spawn_blocking(move || work(&store)).await.expect("does not panic")
    }

    #[tokio::test]
    async fn tokens_of_a_site_are_valid_at_each_gateway() {
        let log = MetadataStore::memory().shared(1 << 20);
        let connection = Connection::new(&log);
        let (dirs, mut stores, mut sites) = ([(); 2].map(|()| tempfile::tempdir().expect("a folder")), vec![], vec![]);
        // One that was created before the gateway was one of the site.
        let (own, own_token) = TokenStore::of(dirs[1].path()).create(terms("own")).expect("makes");
        for dir in &dirs {
            let site = ControlLog::open(Arc::clone(&connection) as _, dir.path()).await.expect("opens");
            stores.push(TokenStore::of(dir.path()).with_site(Some(Arc::clone(&site))));
            sites.push(site);
        }
        let [one, other] = [0, 1].map(|n: usize| CachedTokenStore::new(stores[n].clone()));
        let (entry, token) = blocking(&stores[0], |store| store.create(terms("ci"))).await.expect("makes");
        assert!(!dirs[0].path().join(FILE).exists(), "it is in no file");
        assert_eq!(one.find(token.id()).expect("at once").1, entry);
        let taken = blocking(&stores[1], |store| store.create(terms("ci"))).await;
        assert!(matches!(taken, Err(TokenStoreError::Taken(_))), "{taken:?}");
        assert!(matches!(
            blocking(&stores[1], |store| store.create(terms("own"))).await,
            Err(TokenStoreError::Taken(_))
        ));
        let (hash, found) = other.find(token.id()).expect("it has caught up");
        assert!(found == entry && hash.is(&token.hash()) && found.quota == terms("").quota);
        assert_eq!(stores[1].list().expect("reads"), [entry.clone(), own.clone()]);
        assert!(other.find(own_token.id()).is_some() && one.find(own_token.id()).is_none(), "of one gateway only");
        // A record that this release cannot parse does no harm.
        let newer = control_log::put_token("newer", br#"{"id":"newer","color":"red"}"#.to_vec());
        sites[0].change_tokens(|_| Ok::<_, ControlLogError>((vec![newer.clone()], ()))).await.expect("writes");
        assert!(one.find("newer").is_none() && one.find(token.id()).is_some());
        connection.is_unreachable.store(true, std::sync::atomic::Ordering::Relaxed);
        for refused in [
            blocking(&stores[0], |store| store.create(terms("late"))).await.map(|_| ()),
            blocking(&stores[0], |store| store.remove("ci")).await.map(|_| ()),
        ] {
            assert_eq!(refused.expect_err("it cannot be reached").status(), StatusCode::SERVICE_UNAVAILABLE);
        }
        assert!(one.find(token.id()).is_some(), "it stays valid");
        connection.is_unreachable.store(false, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(blocking(&stores[1], |store| store.remove("ci")).await.expect("is there"), entry);
        assert!(other.find(token.id()).is_none());
        sites[0].catch_up().await.expect("catches up");
        assert!(one.find(token.id()).is_none(), "it is revoked");
        assert_eq!(blocking(&stores[1], |store| store.remove("own")).await.expect("is there"), own);
        assert!(other.find(own_token.id()).is_none());
        let missing = blocking(&stores[1], |store| store.remove("own")).await;
        assert!(matches!(missing, Err(TokenStoreError::Missing(_))), "{missing:?}");
    }

    /// A gateway that had a token named "ci" before it was one of a site, and the site has one of that name as well.
    async fn with_two_of_a_name() -> (tempfile::TempDir, Arc<Connection>, TokenStore, [StoredToken; 2]) {
        let (dir, elsewhere) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let log = MetadataStore::memory().shared(1 << 20);
        let connection = Connection::new(&log);
        let (own, _) = TokenStore::of(dir.path()).create(terms("ci")).expect("makes");
        let other = ControlLog::open(Connection::new(&log), elsewhere.path()).await.expect("opens");
        let other = TokenStore::of(elsewhere.path()).with_site(Some(other));
        let (of_site, _) = blocking(&other, |store| store.create(terms("ci"))).await.expect("makes");
        let site = ControlLog::open(Arc::clone(&connection) as _, dir.path()).await.expect("opens");
        let store = TokenStore::of(dir.path()).with_site(Some(site));
        (dir, connection, store, [own, of_site])
    }

    async fn remove(store: &TokenStore, id_or_name: &str) -> Result<StoredToken, TokenStoreError> {
        let id_or_name = id_or_name.to_owned();
        blocking(store, move |store| store.remove(&id_or_name)).await
    }

    #[tokio::test]
    async fn of_two_tokens_of_a_name_none_is_revoked_by_it() {
        for first in [0, 1] {
            let (_dir, _, store, tokens) = with_two_of_a_name().await;
            let refused = remove(&store, "ci").await.expect_err("it is ambiguous");
            assert_eq!(refused.status(), StatusCode::CONFLICT);
            assert!(tokens.iter().all(|token| refused.to_string().contains(&token.id)), "{refused}");
            assert_eq!(store.list().expect("reads").len(), 2);
            assert_eq!(remove(&store, &tokens[first].id).await.expect("by its ID"), tokens[first]);
            assert_eq!(remove(&store, "ci").await.expect("it is the last one"), tokens[1 - first]);
            assert_eq!(store.list().expect("reads"), []);
        }
    }

    #[tokio::test]
    async fn own_tokens_are_revoked_without_the_database() {
        let (dir, connection, store, [own, of_site]) = with_two_of_a_name().await;
        let (named, _) = TokenStore::of(dir.path()).create(terms("named")).expect("makes");
        connection.is_unreachable.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(remove(&store, &own.id).await.expect("by its ID"), own);
        assert_eq!(remove(&store, "named").await.expect("by its name"), named);
        let refused = remove(&store, &of_site.id).await.expect_err("it is one of the site");
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(store.list().expect("reads"), [of_site]);
    }

    #[tokio::test]
    async fn a_token_of_the_site_is_revoked_although_the_file_is_damaged() {
        let (dir, _, store, [_, of_site]) = with_two_of_a_name().await;
        fs::write(dir.path().join(FILE), "{").expect("writes");
        assert_eq!(remove(&store, "ci").await.expect("is revoked"), of_site);
        assert!(matches!(remove(&store, "ci").await, Err(TokenStoreError::Damaged { .. })));
    }

    /// What a creation leaves whose answer is lost: nothing, or an error with the ID.
    #[tokio::test]
    async fn a_token_whose_creation_is_uncertain_is_removed_or_named() {
        let (_dir, connection, store, former) = with_two_of_a_name().await;
        let create = async || blocking(&store, |store| store.create(terms("new"))).await.map(|(entry, _)| entry);
        for fault in [Fault::AnswerIsLost, Fault::Fails] {
            connection.fail(fault);
            let failed = create().await.expect_err("the answer is lost");
            assert!(matches!(failed, TokenStoreError::Site(ControlLogError::Log(_))), "{failed}");
            let removed = remove(&store, "new").await;
            assert!(matches!(removed, Err(TokenStoreError::Missing(_))), "{removed:?}");
        }
        connection.fail(Fault::AnswerIsLost);
        connection.fail(Fault::Fails);
        create().await.expect_err("the answer is lost, and the first removal fails");
        assert_eq!(store.list().expect("reads").len(), former.len());
        connection.fail(Fault::AnswerIsLost);
        (0..UNDO_ATTEMPTS).for_each(|_| connection.fail(Fault::Fails));
        let failed = create().await.expect_err("the answer is lost");
        let TokenStoreError::MaybeCreated { id, .. } = &failed else { panic!("{failed}") };
        assert!(failed.to_string().contains(id));
        assert_eq!(remove(&store, id).await.expect("it was created").name, "new");
        create().await.expect("the name is free");
    }

    #[test]
    fn files_that_root_writes_get_the_owner_of_the_folder() {
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
    fn the_owner_of_a_symlink_target_is_not_changed() {
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
    fn invalid_tokens_are_rejected() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = TokenStore::of(dir.path());
        store.create(terms("ci")).expect("makes");
        let none = TokenParameters { scopes: Scopes::default(), ..terms("none") };
        assert!(matches!(store.create(terms("ci")), Err(TokenStoreError::Taken(_))));
        assert!(matches!(store.create(none), Err(TokenStoreError::NoScopes)));
        for name in ["", "a\nb", &"a".repeat(65), OPERATOR] {
            assert!(matches!(store.create(terms(name)), Err(TokenStoreError::Name)), "{name:?}");
        }
        assert_eq!(store.list().expect("reads").len(), 1);
    }

    #[test]
    fn tokens_expire() {
        let dir = tempfile::tempdir().expect("a folder");
        let terms = TokenParameters { lifetime: Some(Duration::from_secs(60)), ..terms("short") };
        let (entry, _) = TokenStore::of(dir.path()).create(terms).expect("makes");
        let at = |after| UNIX_EPOCH + Duration::from_secs(entry.created_at + after);
        assert!(!entry.is_expired(at(59)) && entry.is_expired(at(60)));
    }

    #[test]
    fn no_token_of_a_damaged_file_is_accepted() {
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
    fn tokens_can_be_created_concurrently() {
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
