//! Recursive pins: DAGs whose every block stays in the store until the pin is removed.
//!
//! Goals: an acknowledged pin survives `kill -9` and power loss; a pin that was interrupted keeps what it has and can be
//! taken up again; memory does not grow with the DAG.
//!
//! Non-goals: walking. The caller supplies the blocks, from a walk over any source ([`content::dag::walk_all`]), and
//! answers for their being the whole DAG.

use crate::error::StoreError;
use content::dag::DagError;
use content::{Cid, SourceError};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// The longest name of a pin, in characters
/// (<https://ipfs.github.io/pinning-services-api-spec/>, schema "Pin").
pub const NAME_CHARS_MAX: usize = 255;

/// How far a pin has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinState {
    /// Some blocks are missing, those that are here are protected. Pinning the root again goes on from here. A complete
    /// pin that loses a block is partial from then on.
    Partial,
    /// Every block is here.
    Complete,
}

/// What is known of a pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinSummary {
    /// The root of the DAG.
    pub root: Cid,
    /// Names the pin for as long as the store lives; never used twice.
    pub id: u64,
    /// What the operator calls it.
    pub name: Option<String>,
    /// When it was first asked for, to the millisecond.
    pub created: SystemTime,
    /// Whether every block is here.
    pub state: PinState,
    /// Distinct blocks so far.
    pub blocks: u64,
    /// Their bytes, as blocks rather than as stored.
    pub bytes: u64,
}

/// Why a pin was not completed.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The blocks could not be supplied. What came before is kept and protected; pin again to go on.
    #[error("the DAG could not be read to its end: {0}")]
    Blocks(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The blocks ended without the root being among them.
    #[error("the block of {root} itself is missing from its DAG")]
    RootMissing {
        /// The root that was to be pinned.
        root: Cid,
    },
    /// Somebody removed the pin while it was being made.
    #[error("the pin of {root} was removed while it was being made")]
    Removed {
        /// The root that was to be pinned.
        root: Cid,
    },
    /// Blocks of the pin turned out damaged, or were deleted, while it was being made.
    #[error("blocks of {root} were lost while it was being pinned: pin it again to go on")]
    Lost {
        /// The root that was to be pinned.
        root: Cid,
    },
    /// The name is too long.
    #[error("a pin's name has at most {NAME_CHARS_MAX} characters, this one has {chars}")]
    NameTooLong {
        /// The length found.
        chars: usize,
    },
}

impl PinError {
    /// Part of the DAG is not here.
    pub(crate) fn missing(cid: Cid) -> Self {
        Self::unread(SourceError::NotFound { cid })
    }

    /// Part of the DAG could not be read.
    pub(crate) fn unread(error: SourceError) -> Self {
        Self::Blocks(Box::new(DagError::Source(error)))
    }
}

/// Whether a pin may be called this.
///
/// # Errors
/// [`PinError::NameTooLong`].
pub fn check_name(name: Option<&str>) -> Result<(), PinError> {
    let chars = name.map_or(0, |name| name.chars().count());
    if chars > NAME_CHARS_MAX { Err(PinError::NameTooLong { chars }) } else { Ok(()) }
}

/// One effort to pin something: its members go to the writer without waiting for each, so the first failure is kept here.
#[derive(Debug)]
pub struct Attempt {
    pub(crate) pin: PinId,
    /// How often the pin had lost blocks when this began.
    losses: u64,
    /// `None` for a scaffold.
    pub(crate) root: Option<Cid>,
    failure: OnceLock<Failure>,
}

/// Why a member was not written.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    Store(StoreError),
    Removed,
    Missing(Cid),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Attempt {
    pub(crate) fn new(begun: Begun, root: Option<Cid>) -> Arc<Self> {
        let Begun { pin, losses } = begun;
        Arc::new(Self { pin, losses, root, failure: OnceLock::new() })
    }

    pub(crate) fn fail(&self, failure: Failure) {
        _ = self.failure.set(failure);
    }

    /// The first thing that went wrong, if anything did.
    pub(crate) fn check(&self) -> Result<(), PinError> {
        match (self.failure.get(), self.root) {
            (None, _) => Ok(()),
            (Some(Failure::Store(error)), _) => Err(PinError::Store(error.clone())),
            (Some(Failure::Missing(cid)), _) => Err(PinError::missing(*cid)),
            (Some(Failure::Removed), Some(root)) => Err(PinError::Removed { root }),
            (Some(Failure::Removed), None) => Err(PinError::Store(StoreError::Closed)),
        }
    }
}

/// Names one pin for as long as the store lives; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PinId(pub(crate) u64);

/// A pin that was begun or is gone on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) pin: PinId,
    /// How often it had lost blocks by then.
    pub(crate) losses: u64,
}

/// The roots of pins that lost blocks or got some of them back, for the pin service: each root once, however often
/// that happened, so that the memory is bounded by the number of pins.
#[derive(Debug, Default)]
pub struct PinChanges {
    roots: Mutex<BTreeSet<Cid>>,
    noted: Notify,
}

impl PinChanges {
    /// Has the pin of a root looked at.
    pub fn note(&self, root: Cid) {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner).insert(root);
        self.noted.notify_one();
    }

    /// The roots that were noted since this was last called. Waits until there are some. For one caller at a time.
    pub async fn next(&self) -> BTreeSet<Cid> {
        loop {
            let roots = std::mem::take(&mut *self.roots.lock().unwrap_or_else(PoisonError::into_inner));
            if !roots.is_empty() {
                return roots;
            }
            self.noted.notified().await;
        }
    }
}

/// How often pins lost blocks since the store was opened. Kept by the writer.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    counts: HashMap<PinId, u64>,
    /// Whether some pin lacks blocks, or may: blocks that come are looked up among the members only then.
    any: bool,
    changes: Arc<PinChanges>,
}

impl Losses {
    /// `any` says whether some pin is partial already.
    pub(crate) fn new(changes: Arc<PinChanges>, any: bool) -> Self {
        Self { counts: HashMap::new(), any, changes }
    }

    /// A pin that is begun now.
    pub(crate) fn begun(&self, pin: PinId) -> Begun {
        Begun { pin, losses: self.count(pin) }
    }

    fn count(&self, pin: PinId) -> u64 {
        self.counts.get(&pin).copied().unwrap_or_default()
    }

    /// Counts that a pin lost a block.
    pub(crate) fn lost(&mut self, pin: PinId, root: Cid) {
        *self.counts.entry(pin).or_default() += 1;
        self.any = true;
        self.changes.note(root);
    }

    /// Notes that a pin may have a block back.
    pub(crate) fn returned(&self, root: Cid) {
        self.changes.note(root);
    }

    /// Whether some pin may lack blocks.
    pub(crate) fn any(&self) -> bool {
        self.any
    }

    /// Whether a pin lost nothing since an attempt began.
    pub(crate) fn check(&self, attempt: &Attempt) -> Result<(), PinError> {
        match attempt.root {
            Some(root) if self.count(attempt.pin) != attempt.losses => Err(PinError::Lost { root }),
            _ => Ok(()),
        }
    }

    pub(crate) fn forget(&mut self, pin: PinId) {
        self.counts.remove(&pin);
    }
}

/// One recursive pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinRecord {
    pub(crate) id: PinId,
    pub(crate) created: SystemTime,
    pub(crate) state: PinState,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) name: Option<String>,
}

impl PinRecord {
    pub(crate) fn new(id: PinId, name: Option<String>) -> Self {
        Self { id, created: SystemTime::now(), state: PinState::Partial, blocks: 0, bytes: 0, name }
    }

    pub(crate) fn summary(&self, root: Cid) -> PinSummary {
        let Self { id, created, state, blocks, bytes, name } = self.clone();
        PinSummary { root, id: id.0, name, created, state, blocks, bytes }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let created_ms = self.created.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let mut out = Vec::with_capacity(64);
        for number in [self.id.0, u64::try_from(created_ms).unwrap_or(u64::MAX), self.blocks, self.bytes] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(u8::from(self.state == PinState::Complete));
        out.push(u8::from(self.name.is_some()));
        out.extend_from_slice(self.name.as_deref().unwrap_or_default().as_bytes());
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let (id, created_ms) = (take(&mut rest)?, take(&mut rest)?);
        let (blocks, bytes) = (take(&mut rest)?, take(&mut rest)?);
        let (complete, named, name) = match rest {
            [complete @ 0..=1, named @ 0..=1, name @ ..] => (*complete == 1, *named == 1, name),
            _ => return None,
        };
        let name = std::str::from_utf8(name).ok()?.to_owned();
        Some(Self {
            id: PinId(id),
            created: UNIX_EPOCH.checked_add(Duration::from_millis(created_ms))?,
            state: if complete { PinState::Complete } else { PinState::Partial },
            blocks,
            bytes,
            name: named.then_some(name),
        })
    }
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u64::from_be_bytes(*head))
}
