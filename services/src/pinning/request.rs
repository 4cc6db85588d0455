//! [`Request`]: one wish to keep a DAG.

use crate::access::Principal;
use cache::pins::NAME_CHARS_MAX;
use content::Cid;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::SystemTime;

/// Who owns what was pinned without asking anybody: by commands while no gateway ran, and by the gateway itself.
pub const OPERATOR: &str = "operator";

/// The most addresses of providers that a request names (schema "Origins" of the pinning service API).
pub const ORIGINS_MAX: usize = 20;
/// The most pairs in a request's metadata (schema "PinMeta").
pub const META_PAIRS_MAX: usize = 1000;
/// The most bytes of all keys and values of a request's metadata. The specification has no such limit; memory has one.
pub const META_BYTES_MAX: usize = 16 * 1024;

/// Texts that an application keeps with a request.
pub type Meta = BTreeMap<String, String>;

/// Who asks, and how much of it they may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The identifier of the token.
    pub id: Arc<str>,
    /// The most requests; `None` is no limit but the service's own.
    pub pins_max: Option<u64>,
    /// The most bytes of blocks, each DAG counted in full and once; `None` is no limit.
    pub bytes_max: Option<u64>,
}

impl From<&Principal> for Owner {
    fn from(bearer: &Principal) -> Self {
        let Principal { id, quota, .. } = bearer;
        Self { id: Arc::clone(id), pins_max: quota.pins_max, bytes_max: quota.bytes_max }
    }
}

impl Owner {
    /// The operator, who has no limits.
    pub fn operator() -> Self {
        Self { id: OPERATOR.into(), pins_max: None, bytes_max: None }
    }
}

/// What somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The root of the DAG.
    pub root: Cid,
    /// What it is called.
    pub name: Option<String>,
    /// Who is known to have it: dialled first.
    pub origins: Vec<Multiaddr>,
    /// Kept with the request.
    pub meta: Meta,
}

impl Wanted {
    /// A DAG without anything else.
    pub fn new(root: Cid) -> Self {
        Self { root, name: None, origins: Vec::new(), meta: Meta::new() }
    }

    /// Whether everything is within its limits.
    ///
    /// # Errors
    /// Words for whoever asked.
    pub fn check(&self) -> Result<(), String> {
        let chars = self.name.as_deref().map_or(0, |name| name.chars().count());
        if chars > NAME_CHARS_MAX {
            return Err(format!("a pin's name has at most {NAME_CHARS_MAX} characters, this one has {chars}"));
        }
        if self.origins.len() > ORIGINS_MAX {
            return Err(format!("there are at most {ORIGINS_MAX} origins, not {}", self.origins.len()));
        }
        let nameless = |origin: &&Multiaddr| !matches!(origin.iter().last(), Some(Protocol::P2p(_)));
        if let Some(origin) = self.origins.iter().find(nameless) {
            return Err(format!("the origin {origin} does not end in /p2p/ and a peer id"));
        }
        check_meta(&self.meta)
    }
}

/// Whether what is kept with a request is within its limits.
///
/// # Errors
/// Words for whoever asked.
pub fn check_meta(meta: &Meta) -> Result<(), String> {
    if meta.len() > META_PAIRS_MAX {
        return Err(format!("meta has at most {META_PAIRS_MAX} keys, not {}", meta.len()));
    }
    let bytes: usize = meta.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > META_BYTES_MAX {
        return Err(format!("meta has at most {META_BYTES_MAX} bytes of keys and values, not {bytes}"));
    }
    Ok(())
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// It waits for its turn, or for the next attempt.
    Queued,
    /// Its DAG is being fetched.
    Pinning,
    /// Every block is here and stays.
    Pinned,
    /// It will not come. The reason is in [`Request::details`].
    Failed,
}

/// What there is of a DAG.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Distinct blocks so far.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A request at one moment. Reads as what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What it is called by; cannot be guessed, and is safe in a URL.
    pub id: Arc<str>,
    /// The identifier of the token that asked.
    pub owner: Arc<str>,
    /// What was asked for.
    pub wanted: Arc<Wanted>,
    /// When it was asked for, in whole milliseconds; no other request has the same time.
    pub created: SystemTime,
    /// How far it has come.
    pub status: Status,
    /// What there is of its DAG.
    pub progress: Progress,
    /// Why it failed, or what stopped the last attempt.
    pub details: Option<Arc<str>>,
    /// Attempts that failed.
    pub attempts: u32,
    /// When the next attempt is due, if one was made and another will be.
    pub next_attempt: Option<SystemTime>,
}

impl Deref for Request {
    type Target = Wanted;

    fn deref(&self) -> &Wanted {
        &self.wanted
    }
}
