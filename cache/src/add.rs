//! Blocks whose roots are known last, into the store, and the roots pinned.
//!
//! Goals: content larger than memory and larger than the cache's budget is taken in; a block that is here already is not
//! written again; what is pinned is on the disk, and of what was not pinned nothing stays protected.
//!
//! How: blocks are protected by a scaffold as they come, since the first must still be there when the last has come. Then
//! each root is walked from the store and pinned, and the scaffold is let go. One that a killed process leaves standing is
//! let go when the store is next opened.
//!
//! Non-goal: making blocks. They come out of an archive ([`crate::import`]) or out of files ([`content::importer`]).

use crate::disk::StoreError;
use crate::pins::{Attempt, PinError, PinSummary};
use crate::store::BlockStore;
use content::budget::Budget;
use content::dag::DagError;
use content::{Block, Cid, SourceError, dag};
use std::collections::HashSet;
use std::sync::Arc;

/// Blocks that a walk reads from the store at the same time.
const WALK_CONCURRENCY: usize = 8;

/// Blocks that are being taken in. They are protected until this is dropped; after that those stay that a pin has, and the
/// rest is left to the cache.
#[derive(Debug)]
pub struct Addition {
    store: Arc<dyn BlockStore>,
    scaffold: Arc<Attempt>,
    /// What walks may take memory from, if there is a limit.
    memory: Option<Arc<Budget>>,
}

/// Why what was taken in is not pinned. Pins of roots before the one that failed stay.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A block was to be here already, and is not.
    #[error("{missing} was here, and is not any more")]
    Missing {
        /// That block.
        missing: Cid,
    },
    /// A root could not be pinned.
    #[error("{root} could not be pinned: {error}")]
    Pin {
        /// That root.
        root: Cid,
        /// What went wrong.
        error: Box<PinError>,
    },
}

impl Addition {
    /// Begins.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn begin(store: &dyn BlockStore) -> Result<Self, StoreError> {
        Ok(Self { store: store.handle(), scaffold: store.begin_scaffold().await?, memory: None })
    }

    /// The same, whose walks take their memory from a budget, and fail when it has no more.
    #[must_use]
    pub fn within(mut self, memory: Arc<Budget>) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Takes a block in, in any order and as often as it occurs; waits while the disk is behind. A block that is written
    /// into its CID needs no place.
    ///
    /// # Errors
    /// What the disk said, to this block or to one before it; or that one before it was not here.
    pub async fn put(&self, block: &Block) -> Result<(), AddError> {
        self.store.put_member(block, &self.scaffold).await.map_err(failure)
    }

    /// Takes a block in that is here already, and of which nobody has the bytes.
    ///
    /// # Errors
    /// The same; here or later, that it is not here.
    pub async fn put_held(&self, cid: &Cid) -> Result<(), AddError> {
        if Block::inline(cid).is_some() {
            return Ok(());
        }
        self.store.put_held_member(*cid, &self.scaffold).await.map_err(failure)
    }

    /// Done when everything that was put before is here. Nothing is synced by that.
    ///
    /// # Errors
    /// What the disk said to one of them; or that it was not here.
    pub async fn written(&self) -> Result<(), AddError> {
        self.store.written().await?;
        self.scaffold.check().map_err(failure)
    }

    /// Ends: pins each root, once, in the order given, all under `name` if there is one. The pins are on the disk when this
    /// returns.
    ///
    /// # Errors
    /// [`AddError`]: among them that a block below a root is not here.
    pub async fn pin(self, roots: &[Cid], name: Option<&str>) -> Result<Vec<PinSummary>, AddError> {
        // A walk reads what has been written, not what is queued.
        self.written().await?;
        let mut seen = HashSet::new();
        let mut pins = Vec::new();
        for root in roots.iter().filter(|root| seen.insert(**root)) {
            let visited = dag::walk_links(Arc::clone(&self.store) as _, *root, WALK_CONCURRENCY, self.memory.clone());
            let pin = self.store.pin_visited(*root, name.map(str::to_owned), visited).await;
            pins.push(pin.map_err(|error| AddError::Pin { root: *root, error: Box::new(error) })?);
        }
        Ok(pins)
    }
}

impl Drop for Addition {
    fn drop(&mut self) {
        self.store.release(&self.scaffold);
    }
}

/// A scaffold has no root, so only the disk can fail it, and a block that is not here.
fn failure(error: PinError) -> AddError {
    match (missing(&error), error) {
        (Some(missing), _) => AddError::Missing { missing },
        (None, PinError::Store(error)) => error.into(),
        (None, other) => StoreError::io(other).into(),
    }
}

/// The block that is not here, if that is what went wrong.
pub(crate) fn missing(error: &PinError) -> Option<Cid> {
    let PinError::Blocks(error) = error else { return None };
    match error.downcast_ref::<DagError>()? {
        DagError::Source(SourceError::NotFound { cid }) => Some(*cid),
        _ => None,
    }
}
