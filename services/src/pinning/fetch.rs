//! One attempt to have all of a DAG here and pinned, and what its failure means.

use crate::pinning::request::Progress;
use crate::pinning::walk::{Found, Places, Walk, WalkError};
use cache::pins::Attempt;
use cache::{BlockStore, PinError, PinSummary, StoreError};
use content::dag::{DagError, Visited};
use content::unixfs::NodeError;
use content::{Cid, SourceError};
use std::sync::Arc;

/// Blocks of a DAG that are fetched at a time.
const BLOCKS_IN_FLIGHT: usize = 16;

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The DAG could not be walked to its end.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// It could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// All of it is here but blocks that a rule of this gateway withholds.
    #[error("{}", withheld_words(.blocks, .first))]
    Withheld {
        /// How many those are.
        blocks: u64,
        /// One of them.
        first: Cid,
    },
    /// A defect of this program.
    #[error("something went wrong here: the log says what")]
    Broken,
}

impl From<StoreError> for FetchError {
    fn from(error: StoreError) -> Self {
        Self::Pin(error.into())
    }
}

/// What follows from a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Trying again may help.
    Later,
    /// It cannot succeed.
    Never,
    /// Somebody removed the pin meanwhile.
    Removed,
    /// What is missing is withheld: it is not fetched until the rules change.
    Withheld,
}

fn withheld_words(blocks: &u64, first: &Cid) -> String {
    let (are, others) = if *blocks == 1 { ("block is", "") } else { ("blocks are", " and others") };
    format!(
        "{blocks} {are} withheld by a rule of this gateway ({first}{others}); the rest is kept. When the rule is removed, \
         what is missing is fetched again"
    )
}

/// An attempt under way: whatever is not here of a DAG is fetched, as members of its pin. What an earlier attempt had
/// is not fetched again.
pub struct Fetch {
    store: Arc<dyn BlockStore>,
    attempt: Arc<Attempt>,
    walk: Walk,
    progress: Progress,
}

/// A block that was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What there is of the DAG now.
    pub progress: Progress,
    /// The length of the block, if it had to be fetched.
    pub fetched_bytes: Option<u64>,
}

impl Fetch {
    /// Begins, or goes on with what there is.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn begin(places: Places, root: Cid) -> Result<Self, FetchError> {
        let store = Arc::clone(&places.store);
        let attempt = store.begin_pin(root, None).await?;
        Ok(Self { store, attempt, walk: Walk::new(places, root, BLOCKS_IN_FLIGHT), progress: Progress::default() })
    }

    /// Takes the next block in; `None` when that was all.
    ///
    /// # Errors
    /// [`FetchError`]; what came stays, as a partial pin. [`FetchError::Withheld`] at the end of a walk that passes over what
    /// is withheld.
    pub async fn step(&mut self) -> Result<Option<Step>, FetchError> {
        let Some(Found { visited, bytes, fetched }) = self.walk.next().await? else {
            return self
                .walk
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

    /// Ends: the pin is complete, and on the disk, when this returns.
    ///
    /// # Errors
    /// [`FetchError`], as before.
    pub async fn finish(self) -> Result<PinSummary, FetchError> {
        Ok(self.store.finish_pin(self.attempt).await?)
    }
}

impl FetchError {
    /// What follows, and a word for statistics.
    pub fn verdict(&self) -> (Verdict, &'static str) {
        match self {
            Self::Walk(WalkError::TooLarge(_)) => (Verdict::Never, "too_large"),
            Self::Walk(WalkError::Dag(error)) => of_dag(error),
            Self::Broken => (Verdict::Later, "defect"),
            Self::Withheld { .. } => (Verdict::Withheld, "withheld"),
            Self::Pin(PinError::Removed { .. }) => (Verdict::Removed, "removed"),
            Self::Pin(PinError::Store(error)) if error.is_full() => (Verdict::Later, "full"),
            Self::Pin(PinError::NameTooLong { .. }) => (Verdict::Never, "name"),
            Self::Pin(
                PinError::Store(_) | PinError::Blocks(_) | PinError::RootMissing { .. } | PinError::Lost { .. },
            ) => (Verdict::Later, "store"),
        }
    }
}

fn of_dag(error: &DagError) -> (Verdict, &'static str) {
    match error {
        DagError::Node(NodeError::Unsupported { .. }) => (Verdict::Never, "unsupported"),
        DagError::Node(_) => (Verdict::Never, "malformed"),
        DagError::Memory => (Verdict::Later, "busy"),
        DagError::Source(error) => match error {
            SourceError::Refused { .. } => (Verdict::Never, "refused"),
            SourceError::Unacceptable(_) => (Verdict::Never, "unsupported"),
            SourceError::NotFound { .. } => (Verdict::Later, "not_found"),
            SourceError::Stalled { .. } => (Verdict::Later, "stalled"),
            SourceError::Busy => (Verdict::Later, "busy"),
            SourceError::Corrupt { .. } => (Verdict::Later, "corrupt"),
            // Pins have no such budget.
            SourceError::TooMuchWork { .. } => (Verdict::Never, "work"),
            SourceError::Store(_) => (Verdict::Later, "store"),
            SourceError::Closed => (Verdict::Later, "closed"),
        },
    }
}
