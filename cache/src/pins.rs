//! Recursive pins: no block of a pinned DAG is evicted until the pin is removed.
//!
//! Goals: an acknowledged pin survives `kill -9` and power loss; an interrupted pin keeps its blocks and can be
//! resumed; memory does not grow with the DAG.
//!
//! Non-goals: traversing DAGs. The caller supplies the blocks, from any source ([`content::dag::walk_all`]), and is
//! responsible for supplying the whole DAG.

use crate::error::StoreError;
use content::dag::DagError;
use content::{Cid, SourceError};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// The maximum length of a pin's name, in characters
/// (<https://ipfs.github.io/pinning-services-api-spec/>, schema "Pin").
pub const NAME_CHARS_MAX: usize = 255;

/// Whether a pin is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinState {
    /// Some blocks are missing; the others are protected. Pinning the root again resumes. A complete pin that loses a
    /// block becomes partial.
    Partial,
    /// Every block is stored.
    Complete,
}

/// A pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinSummary {
    /// The root of the DAG.
    pub root: Cid,
    /// Identifies the pin within the store; never reused.
    pub id: u64,
    /// The pin's name.
    pub name: Option<String>,
    /// When it was first requested, with a precision of a millisecond.
    pub created: SystemTime,
    /// Whether every block is stored.
    pub state: PinState,
    /// Distinct blocks so far.
    pub blocks: u64,
    /// Their size as blocks, not as stored, in bytes.
    pub bytes: u64,
    /// The root of the zstd file, which is pinned too, if the root is that of a packed file ([`content::packed`]).
    pub packed: Option<Cid>,
}

/// Why a pin was not completed.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The blocks could not be supplied. Earlier blocks stay protected; pin again to resume.
    #[error("the DAG could not be read completely: {0}")]
    Blocks(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The root was not among the blocks.
    #[error("the root block {root} is missing from its DAG")]
    RootMissing {
        /// The root of the pin.
        root: Cid,
    },
    /// The pin was removed while it was in progress.
    #[error("the pin of {root} was removed while it was in progress")]
    Removed {
        /// The root of the pin.
        root: Cid,
    },
    /// Blocks of the pin were found corrupt or were deleted while it was in progress.
    #[error("blocks of {root} were lost while it was being pinned: pin it again to resume")]
    Lost {
        /// The root of the pin.
        root: Cid,
    },
    /// The name exceeds [`NAME_CHARS_MAX`].
    #[error("a pin's name has at most {NAME_CHARS_MAX} characters, this one has {chars}")]
    NameTooLong {
        /// The length of the name.
        chars: usize,
    },
}

impl PinError {
    /// A block of the DAG is missing.
    pub fn missing(cid: Cid) -> Self {
        Self::unread(SourceError::NotFound { cid })
    }

    /// A block of the DAG could not be read.
    pub fn unread(error: SourceError) -> Self {
        Self::Blocks(Box::new(DagError::Source(error)))
    }
}

/// Checks the length of a pin's name.
///
/// # Errors
/// [`PinError::NameTooLong`].
pub fn check_name(name: Option<&str>) -> Result<(), PinError> {
    let chars = name.map_or(0, |name| name.chars().count());
    if chars > NAME_CHARS_MAX { Err(PinError::NameTooLong { chars }) } else { Ok(()) }
}

/// A pin operation in progress. Members are queued without waiting for each write, so the first failure is recorded
/// here.
#[derive(Debug)]
pub struct PinAttempt {
    pub(crate) pin: PinId,
    /// The pin's loss count when this began.
    losses: u64,
    /// `None` for a temporary pin.
    pub(crate) root: Option<Cid>,
    /// The root of the zstd file, once the pin is known to be that of a packed file.
    packed: OnceLock<Cid>,
    failure: OnceLock<MemberFailure>,
}

/// Why a member was not written.
#[derive(Debug, Clone)]
pub enum MemberFailure {
    /// The store failed.
    Store(StoreError),
    /// The pin was removed.
    Removed,
    /// The block is not stored.
    Missing(Cid),
}

impl From<StoreError> for MemberFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl PinAttempt {
    pub(crate) fn new(begun: BegunPin, root: Option<Cid>) -> Arc<Self> {
        let BegunPin { pin, losses } = begun;
        Arc::new(Self { pin, losses, root, packed: OnceLock::new(), failure: OnceLock::new() })
    }

    /// An attempt of a pin that several gateways share, for a store of theirs: the pin's number, and how many blocks it had
    /// lost when the attempt began.
    pub fn shared(id: u64, losses: u64, root: Cid) -> Arc<Self> {
        Self::new(BegunPin { pin: PinId(id), losses }, Some(root))
    }

    /// Identifies the pin within its store.
    pub fn id(&self) -> u64 {
        self.pin.0
    }

    /// The root of the pin; `None` if it is temporary.
    pub fn root(&self) -> Option<&Cid> {
        self.root.as_ref()
    }

    /// The pin's loss count when the attempt began.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Makes the pin that of a packed file with this zstd file, whose blocks are members too, when it is finished.
    pub fn set_packed(&self, zstd_file: Cid) {
        _ = self.packed.set(zstd_file);
    }

    pub(crate) fn packed(&self) -> Option<Cid> {
        self.packed.get().copied()
    }

    /// Records that a member was not written. The first failure counts.
    pub fn fail(&self, failure: MemberFailure) {
        _ = self.failure.set(failure);
    }

    /// Checks that every member so far was written, or is queued.
    ///
    /// # Errors
    /// The first failure.
    pub fn check(&self) -> Result<(), PinError> {
        match (self.failure.get(), self.root) {
            (None, _) => Ok(()),
            (Some(MemberFailure::Store(error)), _) => Err(PinError::Store(error.clone())),
            (Some(MemberFailure::Missing(cid)), _) => Err(PinError::missing(*cid)),
            (Some(MemberFailure::Removed), Some(root)) => Err(PinError::Removed { root }),
            (Some(MemberFailure::Removed), None) => Err(PinError::Store(StoreError::Closed)),
        }
    }
}

/// Identifies a pin within the store; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PinId(pub(crate) u64);

impl PinId {
    /// Whether it is the ID of a pin that is asked for; any, if none is given.
    pub(crate) fn is_asked_for(self, id: Option<u64>) -> bool {
        id.is_none_or(|id| id == self.0)
    }
}

/// A pin that was begun or resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BegunPin {
    pub(crate) pin: PinId,
    /// Its loss count at that time.
    pub(crate) losses: u64,
}

/// Change notifications for the pin service: the roots of pins that lost blocks or got some back. Each root is listed
/// once, so that memory is bounded by the number of pins.
#[derive(Debug, Default)]
pub struct PinChanges {
    roots: Mutex<BTreeSet<Cid>>,
    noted: Notify,
}

impl PinChanges {
    /// Reports a change of a root's pin.
    pub fn note(&self, root: Cid) {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner).insert(root);
        self.noted.notify_one();
    }

    /// Waits for changes and returns the roots reported since the last call. For one caller at a time.
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

/// Loss counts of pins since the store was opened; owned by the writer.
#[derive(Debug, Default)]
pub(crate) struct PinLosses {
    counts: HashMap<PinId, u64>,
    /// Whether some pin may lack blocks: only then are new blocks looked up among the members.
    any: bool,
    changes: Arc<PinChanges>,
}

impl PinLosses {
    /// `any` says whether some pin is partial already.
    pub(crate) fn new(changes: Arc<PinChanges>, any: bool) -> Self {
        Self { counts: HashMap::new(), any, changes }
    }

    /// A pin that begins now.
    pub(crate) fn begin(&self, pin: PinId) -> BegunPin {
        BegunPin { pin, losses: self.count(pin) }
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

    /// Reports that a pin may have got a block back.
    pub(crate) fn returned(&self, root: Cid) {
        self.changes.note(root);
    }

    /// Whether some pin may lack blocks.
    pub(crate) fn any(&self) -> bool {
        self.any
    }

    /// Checks that a pin lost no blocks since an attempt began.
    pub(crate) fn check(&self, attempt: &PinAttempt) -> Result<(), PinError> {
        match attempt.root {
            Some(root) if self.count(attempt.pin) != attempt.losses => Err(PinError::Lost { root }),
            _ => Ok(()),
        }
    }

    pub(crate) fn remove(&mut self, pin: PinId) {
        self.counts.remove(&pin);
    }
}

/// The stored record of a recursive pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinRecord {
    pub(crate) id: PinId,
    pub(crate) created: SystemTime,
    pub(crate) state: PinState,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) name: Option<String>,
    /// The root of the zstd file of a packed file.
    pub(crate) packed: Option<Cid>,
}

/// The bits of a record's flags.
const NAMED: u8 = 1;
const PACKED: u8 = 2;

impl PinRecord {
    pub(crate) fn new(id: PinId, name: Option<String>) -> Self {
        Self { id, created: SystemTime::now(), state: PinState::Partial, blocks: 0, bytes: 0, name, packed: None }
    }

    pub(crate) fn summary(&self, root: Cid) -> PinSummary {
        let Self { id, created, state, blocks, bytes, name, packed } = self.clone();
        PinSummary { root, id: id.0, name, created, state, blocks, bytes, packed }
    }

    /// The roots of everything that the pin has, if its own root is `root`.
    pub(crate) fn roots(&self, root: Cid) -> impl Iterator<Item = Cid> + use<> {
        [root].into_iter().chain(self.packed)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let created_ms = self.created.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let mut out = Vec::with_capacity(64);
        for number in [self.id.0, u64::try_from(created_ms).unwrap_or(u64::MAX), self.blocks, self.bytes] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(u8::from(self.state == PinState::Complete));
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.push(flag(self.name.is_some(), NAMED) | flag(self.packed.is_some(), PACKED));
        if let Some(packed) = &self.packed {
            let packed = packed.to_bytes();
            out.push(u8::try_from(packed.len()).unwrap_or(u8::MAX));
            out.extend_from_slice(&packed);
        }
        out.extend_from_slice(self.name.as_deref().unwrap_or_default().as_bytes());
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let (id, created_ms) = (take(&mut rest)?, take(&mut rest)?);
        let (blocks, bytes) = (take(&mut rest)?, take(&mut rest)?);
        let (complete, flags, name) = match rest {
            [complete @ 0..=1, flags @ 0..=3, name @ ..] => (*complete == 1, *flags, name),
            _ => return None,
        };
        let (packed, name) = match flags & PACKED {
            0 => (None, name),
            _ => {
                let (length, rest) = name.split_first()?;
                let (packed, name) = rest.split_at_checked(usize::from(*length))?;
                (Some(Cid::try_from(packed).ok()?), name)
            }
        };
        let name = std::str::from_utf8(name).ok()?.to_owned();
        Some(Self {
            id: PinId(id),
            created: UNIX_EPOCH.checked_add(Duration::from_millis(created_ms))?,
            state: if complete { PinState::Complete } else { PinState::Partial },
            blocks,
            bytes,
            name: (flags & NAMED != 0).then_some(name),
            packed,
        })
    }
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u64::from_be_bytes(*head))
}
