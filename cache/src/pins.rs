//! Recursive pins: DAGs whose every block stays on the disk until the pin is removed.
//!
//! Goals: an acknowledged pin survives `kill -9` and power loss; a pin that was interrupted keeps what it has and can be
//! taken up again; memory does not grow with the DAG.
//!
//! Non-goals: walking. The caller supplies the blocks, from a walk over any source ([`content::dag::walk_all`]), and
//! answers for their being the whole DAG.

use crate::disk::writer::{Attempt, Command};
use crate::disk::{Disk, StoreError};
use content::dag::{DagError, Visited};
use content::{Block, Cid, SourceError};
use futures::stream::{Stream, StreamExt as _};
use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

/// The longest name of a pin, in characters
/// (<https://ipfs.github.io/pinning-services-api-spec/>, schema "Pin").
pub const NAME_CHARS_MAX: usize = 255;

/// How far a pin has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinState {
    /// Some blocks are missing, those that are here are protected. Pinning the root again goes on from here.
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
        Self::Blocks(Box::new(DagError::Source(SourceError::NotFound { cid })))
    }
}

impl Disk {
    /// Pins a DAG: writes its blocks as members of the pin and, when they have all been written, marks it complete. The
    /// pin is on the disk when this returns. Blocks that are here already are not written again.
    ///
    /// A root that has a pin keeps it: a partial one is gone on with, a complete one stays complete. A `name` replaces
    /// the one that it has.
    ///
    /// # Errors
    /// [`PinError`]; blocks written before stay protected, as a partial pin.
    pub async fn pin_recursive<E>(
        &self,
        root: Cid,
        name: Option<String>,
        blocks: impl Stream<Item = Result<Block, E>> + Send,
    ) -> Result<PinSummary, PinError>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        self.pin_visited(root, name, blocks.map(|block| block.map(Visited::Block))).await
    }

    /// The same for a DAG whose blocks are here: leaves that were not read are members as they are.
    ///
    /// # Errors
    /// The same; among them that a leaf is not here.
    pub(crate) async fn pin_visited<E>(
        &self,
        root: Cid,
        name: Option<String>,
        visited: impl Stream<Item = Result<Visited, E>> + Send,
    ) -> Result<PinSummary, PinError>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        check_name(name.as_deref())?;
        let pin = self.queue().ask(|reply| Command::Begin { root, name, reply }).await??;
        let attempt = Attempt::new(pin, Some(root));
        let mut visited = pin!(visited);
        while let Some(visited) = visited.next().await {
            match visited.map_err(|error| PinError::Blocks(Box::new(error)))? {
                Visited::Block(block) => self.put_member(&block, &attempt).await?,
                Visited::Leaf(cid) => self.put_held(cid, &attempt).await?,
            }
        }
        self.queue().ask(|reply| Command::Finish { attempt, reply }).await?
    }

    /// Removes a pin and says whether there was one. That is on the disk when this returns; the blocks that no other pin
    /// has are deleted soon after, but for those that readers have in memory, which become the newest of the cache.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn remove_pin(&self, root: &Cid) -> Result<bool, StoreError> {
        let root = *root;
        self.queue().ask(|reply| Command::Remove { root, reply }).await?
    }

    /// Queues a block that is here as a member.
    async fn put_held(&self, cid: Cid, attempt: &Arc<Attempt>) -> Result<(), PinError> {
        attempt.check()?;
        let room = self.queue().room(0).await?;
        Ok(self.queue().send(Command::Held { cid, attempt: Arc::clone(attempt), room })?)
    }

    /// Queues a block as a member. Whether it is written, the attempt tells.
    pub(crate) async fn put_member(&self, block: &Block, attempt: &Arc<Attempt>) -> Result<(), PinError> {
        attempt.check()?;
        let room = self.queue().room(block.data().len()).await?;
        let (block, attempt) = (block.clone(), Arc::clone(attempt));
        Ok(self.queue().send(Command::Member { block, attempt, room })?)
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
