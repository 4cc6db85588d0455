//! [`Authenticator`]: authenticates the bearer token of a request, and limits the rate of failed attempts.
//!
//! The token of the settings may be a guessable word, so failures are limited: a client with [`FAILURES_MAX`] wrong
//! tokens within [`FAILURES_WITHIN`] is answered with 429, also for the right one, until that time is over. Tokens with
//! 256 bits of randomness need no such limit and are always accepted: an untrusted client behind the same proxy must
//! not lock the operator out.

use crate::access::Principal;
use crate::access::secret::{Hash, Token};
use crate::access::token_store::{CachedTokenStore, StoredToken, TokenStore};
use api::access::OPERATOR;
use moka::sync::Cache;
use p2p_bridge::durable;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// The maximum number of failed attempts of one client…
pub const FAILURES_MAX: u32 = 20;
/// … within this time of the first.
pub const FAILURES_WITHIN: Duration = Duration::from_secs(60);
/// The maximum number of clients whose failures are counted.
const CLIENTS_MAX: u64 = 16 * 1024;
/// The file of the local token in the data directory.
const LOCAL_FILE: &str = "admin.token";
/// The maximum size of that file.
const LOCAL_BYTES_MAX: usize = 1024;
/// The ID of the local token.
const LOCAL_ID: &str = "local";

/// The content of the admin address file of a node without an admin listener.
pub const NO_ADMIN: &str = "none";

/// Why a request was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// It has no token.
    Missing,
    /// Its token is wrong, revoked or expired.
    Wrong,
    /// The client failed too often.
    RateLimited,
}

/// Authenticates tokens.
#[derive(Debug)]
pub struct Authenticator {
    /// The hash of the settings' token, for constant-time comparison.
    settings: Option<Hash>,
    local: Option<Token>,
    store: CachedTokenStore,
    failures: Cache<IpAddr, Arc<AtomicU32>>,
}

impl Authenticator {
    /// Accepts the settings' token, if there is one, the local token, and those in the token store.
    pub fn new(settings: Option<&str>, local: Option<Token>, store: TokenStore) -> Self {
        Self {
            settings: settings.map(Hash::of),
            local,
            store: CachedTokenStore::new(store),
            failures: Cache::builder().max_capacity(CLIENTS_MAX).time_to_live(FAILURES_WITHIN).build(),
        }
    }

    /// Authenticates a token: the text after "Bearer" in a request of the client at `from`. May read a small file.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn admit(&self, token: Option<&str>, from: IpAddr, now: SystemTime) -> Result<Principal, Rejected> {
        let text = token.ok_or(Rejected::Missing)?;
        if let Some(principal) = Token::parse(text).and_then(|token| self.find(&token, now)) {
            return Ok(principal);
        }
        let client = client_network(from);
        let failures = self.failures.get_with(client, Arc::default);
        if failures.load(Ordering::Relaxed) >= FAILURES_MAX {
            return Err(Rejected::RateLimited);
        }
        if self.settings.as_ref().is_some_and(|secret| secret.is(&Hash::of(text))) {
            return Ok(Principal::operator());
        }
        failures.fetch_add(1, Ordering::Relaxed);
        Err(Rejected::Wrong)
    }

    fn find(&self, token: &Token, now: SystemTime) -> Option<Principal> {
        let hash = token.hash();
        if let Some(local) = self.local.as_ref().filter(|local| local.id() == token.id()) {
            return local.hash().is(&hash).then(Principal::operator);
        }
        let (stored, entry) = self.store.find(token.id())?;
        // The operator's ID is never issued, but a file that was edited by hand could have it.
        let is_valid = stored.is(&hash) && !entry.is_expired(now) && entry.id != OPERATOR;
        is_valid.then(|| principal_of(entry))
    }
}

/// Finds the current principal of a token by the token's ID; `None` if it was revoked or has expired. For work that
/// continues after the request that the token came with.
pub type PrincipalLookup = Arc<dyn Fn(&str) -> Option<Principal> + Send + Sync>;

/// The principals of the tokens in a token store.
pub fn principal_lookup(store: TokenStore) -> PrincipalLookup {
    let store = CachedTokenStore::new(store);
    Arc::new(move |id| match id {
        OPERATOR => Some(Principal::operator()),
        id => {
            let (_, entry) = store.find(id)?;
            (!entry.is_expired(SystemTime::now())).then(|| principal_of(entry))
        }
    })
}

fn principal_of(entry: StoredToken) -> Principal {
    Principal { id: entry.id.into(), name: entry.name.into(), scopes: entry.scopes, quota: entry.quota }
}

/// The unit in which failures are counted: an IPv4 address, or an IPv6 /64 network.
fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

/// The path of the local token.
pub fn local_path(data_dir: &Path) -> PathBuf {
    data_dir.join(LOCAL_FILE)
}

/// Reads the token for commands on this data directory, which the file's permissions protect.
///
/// # Errors
/// The error of the file system, including that the file does not exist.
pub fn read_local(data_dir: &Path) -> io::Result<Token> {
    let bytes = durable::read(&local_path(data_dir), LOCAL_BYTES_MAX)?;
    let text = String::from_utf8_lossy(&bytes);
    Token::parse(text.trim()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the file has no valid token"))
}

/// Reads the local token, and creates it if there is none, or no valid one.
///
/// # Errors
/// The error of the file system.
pub fn local(data_dir: &Path) -> io::Result<Token> {
    match read_local(data_dir) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {}
        read => return read,
    }
    let token = Token::named(LOCAL_ID)?;
    durable::create_folder(data_dir)?;
    durable::write(&local_path(data_dir), format!("{}\n", token.reveal()).as_bytes())?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::token_store::TokenParameters;
    use api::access::{Quota, Scope};
    use std::os::unix::fs::PermissionsExt as _;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn terms() -> TokenParameters {
        let scopes = [Scope::Pin, Scope::Read].into_iter().collect();
        let lifetime = Some(Duration::from_secs(3600));
        TokenParameters {
            name: Some("ci".to_owned()),
            scopes,
            quota: Quota { pins_max: Some(1), bytes_max: Some(2) },
            lifetime,
        }
    }

    #[test]
    fn every_kind_of_token_is_accepted() {
        let dir = tempfile::tempdir().expect("a folder");
        let local = local(dir.path()).expect("makes");
        assert_eq!(super::local(dir.path()).expect("is there"), local, "it stays");
        assert_eq!(read_local(dir.path()).expect("is there"), local);
        let mode = std::fs::metadata(local_path(dir.path())).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (entry, given) = TokenStore::of(dir.path()).create(terms()).expect("makes");
        let keeper = Authenticator::new(Some("word"), Some(local.clone()), TokenStore::of(dir.path()));
        let now = SystemTime::now();
        let ask = |text: &str| keeper.admit(Some(text), HERE, now);
        assert_eq!(ask("word"), Ok(Principal::operator()));
        assert_eq!(ask(&local.reveal()), Ok(Principal::operator()));
        let bearer = ask(&given.reveal()).expect("is known");
        assert_eq!((&*bearer.id, &*bearer.name, bearer.quota), (&*entry.id, "ci", entry.quota));
        assert!(bearer.may(Scope::Pin) && !bearer.may(Scope::Operate) && !bearer.is_operator());
        let (local_text, given_text) = (local.reveal(), given.reveal());
        let others =
            ["", "wor", "words", &local_text[1..], &format!("{given_text}a"), &given_text.replace("cw_", "cw_a")];
        for text in others {
            assert_eq!(ask(text), Err(Rejected::Wrong), "{text}");
        }
        assert_eq!(keeper.admit(None, HERE, now), Err(Rejected::Missing));
        let later = now + Duration::from_secs(3601);
        assert_eq!(keeper.admit(Some(&given_text), HERE, later), Err(Rejected::Wrong), "it has expired");
        TokenStore::of(dir.path()).remove("ci").expect("is there");
        assert_eq!(ask(&given_text), Err(Rejected::Wrong), "it is revoked");
        let none = Authenticator::new(None, None, TokenStore::of(dir.path()));
        assert_eq!(none.admit(Some(""), HERE, now), Err(Rejected::Wrong), "no token is not an empty one");
    }

    #[test]
    fn failures_are_limited_for_each_network() {
        let dir = tempfile::tempdir().expect("a folder");
        let local = local(dir.path()).expect("makes");
        let keeper = Authenticator::new(Some("word"), Some(local.clone()), TokenStore::of(dir.path()));
        let ask =
            |text: &str, from: &str| keeper.admit(Some(text), from.parse().expect("an address"), SystemTime::now());
        for _ in 0..FAILURES_MAX {
            assert_eq!(ask("guess", "2001:db8::1"), Err(Rejected::Wrong));
        }
        assert_eq!(ask("guess", "2001:db8::2"), Err(Rejected::RateLimited), "the same network");
        assert_eq!(ask("word", "2001:db8::1"), Err(Rejected::RateLimited), "the right one is not told from others");
        assert_eq!(ask(&local.reveal(), "2001:db8::1"), Ok(Principal::operator()), "this one cannot be guessed");
        assert_eq!(ask("word", "2001:db8:0:1::1"), Ok(Principal::operator()));
        assert_eq!(ask("guess", "192.0.2.1"), Err(Rejected::Wrong));
    }
}
