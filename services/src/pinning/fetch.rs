//! One attempt to fetch and pin a DAG, and the classification of its failures.

use crate::pinning::request::Progress;
use crate::pinning::walk::{BlockSources, PinTraversal, VisitedBlock};
use cache::pins::PinAttempt;
use cache::{BlockStore, PinError, PinSummary, StoreError};
use content::dag::{DagError, Visited};
use content::unixfs::NodeError;
use content::{Cid, SourceError};
use std::sync::Arc;

/// The number of blocks of a DAG that are fetched concurrently.
const BLOCKS_IN_FLIGHT: usize = 16;

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The DAG could not be traversed.
    #[error(transparent)]
    Dag(#[from] DagError),
    /// Pinning failed.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The DAG is complete except for blocks that the policy withholds.
    #[error("{}", withheld_words(.blocks, .first))]
    Withheld {
        /// The number of withheld blocks.
        blocks: u64,
        /// One of them.
        first: Cid,
    },
    /// A defect of the gateway.
    #[error("internal error: see the log of the gateway")]
    Internal,
}

impl From<StoreError> for FetchError {
    fn from(error: StoreError) -> Self {
        Self::Pin(error.into())
    }
}

/// The classification of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// A retry may succeed.
    Temporary,
    /// The store failed, or has lost a block of the pin since the attempt began: a retry may succeed soon.
    Store,
    /// Retries cannot succeed.
    Permanent,
    /// The pin was removed meanwhile.
    Removed,
    /// The missing blocks are withheld, and are not fetched until the rules change.
    Withheld,
}

fn withheld_words(blocks: &u64, first: &Cid) -> String {
    let (are, others) = if *blocks == 1 { ("block is", "") } else { ("blocks are", " and others") };
    format!(
        "{blocks} {are} withheld by a rule of this gateway ({first}{others}); the rest is kept. The missing blocks are \
         fetched when the rule is removed"
    )
}

/// An attempt in progress: fetches the missing blocks of a DAG as members of its pin. Blocks from earlier attempts are
/// not fetched again.
pub struct Fetch {
    store: Arc<dyn BlockStore>,
    attempt: Arc<PinAttempt>,
    sources: BlockSources,
    traversal: PinTraversal,
    /// The root, if the zstd file of a packed file is traversed first: the leaves of the plain file are parts of it.
    next_root: Option<Cid>,
    progress: Progress,
}

/// A block that was added to the pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The progress of the DAG.
    pub progress: Progress,
    /// The length of the block, if it was fetched.
    pub fetched_bytes: Option<u64>,
}

impl Fetch {
    /// Starts the attempt, or continues a partial pin.
    ///
    /// # Errors
    /// The error of the disk.
    pub async fn begin(sources: BlockSources, root: Cid) -> Result<Self, FetchError> {
        let store = Arc::clone(&sources.store);
        let attempt = store.begin_pin(root, None).await?;
        let packed = store.pin(&root).await?.and_then(|pin| pin.packed);
        let (first, next_root) = packed.map_or((root, None), |zstd_file| (zstd_file, Some(root)));
        let traversal = PinTraversal::new(sources.clone(), first, BLOCKS_IN_FLIGHT);
        Ok(Self { store, attempt, sources, traversal, next_root, progress: Progress::default() })
    }

    /// Adds the next block to the pin; `None` when the DAG is complete.
    ///
    /// # Errors
    /// [`FetchError`]; the received blocks stay as a partial pin. [`FetchError::Withheld`] at the end of a traversal
    /// that skips withheld blocks.
    pub async fn step(&mut self) -> Result<Option<Step>, FetchError> {
        let Some(VisitedBlock { visited, bytes, fetched }) = self.next_block().await? else {
            return self
                .traversal
                .withheld()
                .map_or(Ok(None), |(blocks, first)| Err(FetchError::Withheld { blocks, first }));
        };
        match visited {
            Visited::Block(block) => self.store.put_member(&block, &self.attempt).await?,
            Visited::Leaf(cid) => self.store.put_held_member(cid, &self.attempt).await?,
        }
        self.progress.blocks += 1;
        self.progress.bytes += bytes;
        Ok(Some(Step { progress: self.progress, fetched_bytes: fetched.then_some(bytes) }))
    }

    async fn next_block(&mut self) -> Result<Option<VisitedBlock>, FetchError> {
        if let Some(next) = self.traversal.next().await? {
            return Ok(Some(next));
        }
        let Some(root) = self.next_root.take() else { return Ok(None) };
        // A leaf of the plain file is missing until its frame is written.
        self.store.written().await?;
        let withheld = self.traversal.withheld();
        self.traversal = PinTraversal::new(self.sources.clone(), root, BLOCKS_IN_FLIGHT).after(withheld);
        Ok(self.traversal.next().await?)
    }

    /// Completes the pin, which is on the disk when this returns.
    ///
    /// # Errors
    /// [`FetchError`].
    pub async fn finish(self) -> Result<PinSummary, FetchError> {
        Ok(self.store.finish_pin(self.attempt).await?)
    }
}

/// The reasons in the metrics of failed attempts: those of [`FetchError::kind`], without pins that were removed or are
/// withheld, which did not fail.
pub const FAILURE_REASONS: [&str; 14] = [
    "busy",
    "closed",
    "corrupt",
    "defect",
    "full",
    "malformed",
    "name",
    "not_found",
    "refused",
    "stalled",
    "store",
    "too_large",
    "unsupported",
    "work",
];

impl FetchError {
    /// The classification, and the reason in the metrics.
    pub fn kind(&self) -> (FailureKind, &'static str) {
        match self {
            Self::Dag(error) => of_dag(error),
            Self::Internal => (FailureKind::Temporary, "defect"),
            Self::Withheld { .. } => (FailureKind::Withheld, "withheld"),
            Self::Pin(PinError::Removed { .. }) => (FailureKind::Removed, "removed"),
            Self::Pin(PinError::Store(error)) if error.is_full() => (FailureKind::Temporary, "full"),
            Self::Pin(PinError::NameTooLong { .. }) => (FailureKind::Permanent, "name"),
            Self::Pin(
                PinError::Store(_) | PinError::Blocks(_) | PinError::RootMissing { .. } | PinError::Lost { .. },
            ) => (FailureKind::Store, "store"),
        }
    }
}

fn of_dag(error: &DagError) -> (FailureKind, &'static str) {
    match error {
        DagError::Node(NodeError::Unsupported { .. }) => (FailureKind::Permanent, "unsupported"),
        DagError::Node(_) => (FailureKind::Permanent, "malformed"),
        DagError::TooManyBlocks { .. } | DagError::TooManyLinks { .. } => (FailureKind::Permanent, "too_large"),
        DagError::Memory => (FailureKind::Temporary, "busy"),
        DagError::Source(error) => match error {
            SourceError::Refused { .. } | SourceError::RefusedPath { .. } => (FailureKind::Permanent, "refused"),
            SourceError::Unacceptable(_) => (FailureKind::Permanent, "unsupported"),
            SourceError::NotFound { .. } => (FailureKind::Temporary, "not_found"),
            SourceError::Stalled { .. } => (FailureKind::Temporary, "stalled"),
            SourceError::Busy { .. } | SourceError::RateLimited { .. } => (FailureKind::Temporary, "busy"),
            SourceError::Corrupt { .. } => (FailureKind::Temporary, "corrupt"),
            // Pins have no work budget.
            SourceError::TooMuchWork { .. } => (FailureKind::Permanent, "work"),
            SourceError::Store(_) => (FailureKind::Store, "store"),
            SourceError::Closed => (FailureKind::Temporary, "closed"),
        },
    }
}
