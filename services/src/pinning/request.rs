//! [`PinRequest`]: a pin request.

use crate::access::Principal;
use cache::pins::NAME_CHARS_MAX;
use content::Cid;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::SystemTime;

/// The owner of pins without a request: those of commands that ran without a gateway, and of the gateway itself.
pub const OPERATOR: &str = "operator";

/// The maximum number of origins of a request (schema "Origins" of the Pinning Service API).
pub const ORIGINS_MAX: usize = 20;
/// The maximum number of pairs in a request's metadata (schema "PinMeta").
pub const META_PAIRS_MAX: usize = 1000;
/// The maximum size of all keys and values of a request's metadata, in bytes. A limit of this implementation.
pub const META_BYTES_MAX: usize = 16 * 1024;

/// Metadata that an application stores with a request.
pub type Meta = BTreeMap<String, String>;

/// The owner of requests, and its quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The ID of the token.
    pub id: Arc<str>,
    /// The maximum number of requests; `None` is unlimited.
    pub pins_max: Option<u64>,
    /// The maximum number of bytes of blocks, each DAG counted in full and once; `None` is unlimited.
    pub bytes_max: Option<u64>,
}

impl From<&Principal> for Owner {
    fn from(principal: &Principal) -> Self {
        let Principal { id, quota, .. } = principal;
        Self { id: Arc::clone(id), pins_max: quota.pins_max, bytes_max: quota.bytes_max }
    }
}

impl Owner {
    /// The operator, who has no quota.
    pub fn operator() -> Self {
        Self { id: OPERATOR.into(), pins_max: None, bytes_max: None }
    }
}

/// The parameters of a pin request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinParameters {
    /// The root of the DAG.
    pub root: Cid,
    /// The name.
    pub name: Option<String>,
    /// Addresses of known providers, which are dialled first.
    pub origins: Vec<Multiaddr>,
    /// Metadata.
    pub meta: Meta,
}

impl PinParameters {
    /// A request for a DAG without other parameters.
    pub fn new(root: Cid) -> Self {
        Self { root, name: None, origins: Vec::new(), meta: Meta::new() }
    }

    /// Validates the limits.
    ///
    /// # Errors
    /// A message for the client.
    pub fn check(&self) -> Result<(), String> {
        let chars = self.name.as_deref().map_or(0, |name| name.chars().count());
        if chars > NAME_CHARS_MAX {
            return Err(format!("the name of a pin must have at most {NAME_CHARS_MAX} characters; it has {chars}"));
        }
        if self.origins.len() > ORIGINS_MAX {
            return Err(format!("a pin must have at most {ORIGINS_MAX} origins; it has {}", self.origins.len()));
        }
        let nameless = |origin: &&Multiaddr| origin_peer(origin).is_none();
        if let Some(origin) = self.origins.iter().find(nameless) {
            return Err(format!("the origin {origin} must end in /p2p/PEERID"));
        }
        check_meta(&self.meta)
    }
}

/// The peer of an origin.
pub fn origin_peer(origin: &Multiaddr) -> Option<PeerId> {
    match origin.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    }
}

/// Validates the limits of metadata.
///
/// # Errors
/// A message for the client.
pub fn check_meta(meta: &Meta) -> Result<(), String> {
    if meta.len() > META_PAIRS_MAX {
        return Err(format!("meta must have at most {META_PAIRS_MAX} keys; it has {}", meta.len()));
    }
    let bytes: usize = meta.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > META_BYTES_MAX {
        return Err(format!("meta must have at most {META_BYTES_MAX} bytes of keys and values; it has {bytes}"));
    }
    Ok(())
}

/// The status of a request, as in the Pinning Service API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// It is queued, or waits for the next attempt.
    Queued,
    /// Its DAG is being fetched.
    Pinning,
    /// All blocks are stored and kept.
    Pinned,
    /// It failed, with the reason in [`PinRequest::details`].
    Failed,
}

/// How much of a DAG is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of distinct blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A snapshot of a request. Dereferences to its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinRequest {
    /// The ID: unguessable, and safe in a URL.
    pub id: Arc<str>,
    /// The ID of the owner's token.
    pub owner: Arc<str>,
    /// The parameters.
    pub wanted: Arc<PinParameters>,
    /// The creation time in whole milliseconds, which is unique.
    pub created: SystemTime,
    /// The status.
    pub status: Status,
    /// The stored blocks of its DAG.
    pub progress: Progress,
    /// Why it failed, or why the last attempt failed.
    pub details: Option<Arc<str>>,
    /// The number of failed attempts.
    pub attempts: u32,
    /// When the next attempt is due, after a failed one.
    pub next_attempt: Option<SystemTime>,
}

impl Deref for PinRequest {
    type Target = PinParameters;

    fn deref(&self) -> &PinParameters {
        &self.wanted
    }
}
