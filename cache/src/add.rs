//! Stores blocks whose roots become known last, and pins the roots.
//!
//! Goals: content may be larger than memory and than the cache's budget; stored blocks are not written again; pins are
//! durable, and blocks that end up in no pin do not stay protected.
//!
//! How: a temporary pin protects the blocks, since the first must still be stored when the last arrives. Then each
//! root's DAG is traversed in the store and pinned, and the temporary pin is released. If the process is killed, the
//! next start releases it.
//!
//! Non-goal: creating blocks. They are read from an archive ([`crate::import`]) or built from files
//! ([`content::importer`]).

use crate::disk::StoreError;
use crate::pins::{PinAttempt, PinError, PinSummary};
use crate::store::BlockStore;
use content::budget::Budget;
use content::dag::DagError;
use content::stored::Slice;
use content::{Block, Cid, SourceError, dag};
use futures::stream::{self, StreamExt as _};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Blocks that a traversal reads concurrently.
const WALK_CONCURRENCY: usize = 8;

/// Blocks that are being added. They are protected until this is dropped; after that, blocks without a pin are cached
/// blocks.
#[derive(Debug)]
pub struct Addition {
    store: Arc<dyn BlockStore>,
    temporary_pin: Arc<PinAttempt>,
    /// The memory budget of traversals, if there is one.
    memory: Option<Arc<Budget>>,
    /// The zstd files of roots of packed files.
    packed: HashMap<Cid, Cid>,
}

/// Why added blocks could not be pinned. Pins of earlier roots stay.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A block that the caller did not send is no longer stored.
    #[error("{missing} is no longer stored: send it as well")]
    Missing {
        /// That block.
        missing: Cid,
    },
    /// A root could not be pinned.
    #[error("{root} could not be pinned: {error}")]
    Pin {
        /// That root.
        root: Cid,
        /// The reason.
        error: Box<PinError>,
    },
}

impl Addition {
    /// Begins an addition.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn begin(store: &dyn BlockStore) -> Result<Self, StoreError> {
        let temporary_pin = store.begin_temporary_pin().await?;
        Ok(Self { store: store.handle(), temporary_pin, memory: None, packed: HashMap::new() })
    }

    /// Whether the store takes slices.
    pub fn takes_slices(&self) -> bool {
        self.store.takes_slices()
    }

    /// Adds a leaf as a slice of a block that was added before.
    ///
    /// # Errors
    /// [`AddError`], for this leaf or an earlier block; also if the store takes no slices.
    pub async fn put_slice(&self, leaf: &Cid, slice: Slice) -> Result<(), AddError> {
        self.store.put_slice(leaf, slice, &self.temporary_pin).await.map_err(failure)
    }

    /// Makes the pin of a root also that of the zstd file of the same packed file.
    pub fn set_packed(&mut self, root: Cid, zstd_file: Cid) {
        self.packed.insert(root, zstd_file);
    }

    /// Makes traversals take their memory from a budget, and fail when it is exhausted.
    #[must_use]
    pub fn within(mut self, memory: Arc<Budget>) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Adds a block, in any order, repeatedly if need be; waits while the disk is behind (backpressure). Blocks with an
    /// identity CID are not stored.
    ///
    /// # Errors
    /// [`AddError`], for this block or an earlier one.
    pub async fn put(&self, block: &Block) -> Result<(), AddError> {
        self.store.put_member(block, &self.temporary_pin).await.map_err(failure)
    }

    /// Adds a block that is already stored, without its bytes.
    ///
    /// # Errors
    /// The same; by this call or a later one, that the block is missing.
    pub async fn put_stored(&self, cid: &Cid) -> Result<(), AddError> {
        if Block::inline(cid).is_some() {
            return Ok(());
        }
        self.store.put_held_member(*cid, &self.temporary_pin).await.map_err(failure)
    }

    /// Completes when all blocks added before are readable. Does not sync.
    ///
    /// # Errors
    /// [`AddError`], for any of them.
    pub async fn written(&self) -> Result<(), AddError> {
        self.store.written().await?;
        self.temporary_pin.check().map_err(failure)
    }

    /// Finishes: pins each distinct root in the given order, all with `name` if there is one. The pins are durable when
    /// this returns.
    ///
    /// # Errors
    /// [`AddError`], also if a block below a root is missing.
    pub async fn pin(self, roots: &[Cid], name: Option<&str>) -> Result<Vec<PinSummary>, AddError> {
        // The traversal cannot read queued blocks.
        self.written().await?;
        let mut seen = HashSet::new();
        let mut pins = Vec::new();
        for root in roots.iter().filter(|root| seen.insert(**root)) {
            let walk =
                |root| dag::walk_links(Arc::clone(&self.store) as _, root, WALK_CONCURRENCY, self.memory.clone());
            let packed = self.packed.get(root).copied();
            let visited = stream::iter(packed.into_iter().chain([*root])).flat_map(walk);
            let pin = self.store.pin_visited(*root, packed, name.map(str::to_owned), visited).await;
            pins.push(pin.map_err(|error| AddError::Pin { root: *root, error: Box::new(error) })?);
        }
        Ok(pins)
    }
}

impl Drop for Addition {
    fn drop(&mut self) {
        self.store.release(&self.temporary_pin);
    }
}

/// A temporary pin has no root, so that it fails only for disk errors and missing blocks.
fn failure(error: PinError) -> AddError {
    match (missing(&error), error) {
        (Some(missing), _) => AddError::Missing { missing },
        (None, PinError::Store(error)) => error.into(),
        (None, other) => StoreError::io(other).into(),
    }
}

/// The missing block, if that is the reason.
pub(crate) fn missing(error: &PinError) -> Option<Cid> {
    let PinError::Blocks(error) = error else { return None };
    match error.downcast_ref::<DagError>()? {
        DagError::Source(SourceError::NotFound { cid }) => Some(*cid),
        _ => None,
    }
}
