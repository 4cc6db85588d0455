//! CAR files into the store, pinned.
//!
//! Goals: an archive larger than memory and larger than the cache's budget imports; one that is incomplete is refused by
//! naming what is missing; blocks that nothing pins are not kept.
//!
//! How: blocks go to the disk as they are read, protected by a scaffold, since an archive may be in any order and its
//! first blocks must still be there when its last has come. Then each root is walked from the disk and pinned, and the
//! scaffold is let go. One that a killed process leaves standing is let go when the store is next opened.

use crate::disk::writer::{Attempt, Command};
use crate::disk::{Disk, StoreError};
use crate::pins::{PinError, PinSummary};
use content::car::{CarError, CarReader};
use content::dag::{self, DagError};
use content::{Cid, SourceError};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::io::AsyncRead;

/// Blocks that a walk reads from the disk at the same time.
const WALK_CONCURRENCY: usize = 8;

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportSummary {
    /// The pin of each distinct root, in the archive's order.
    pub pins: Vec<PinSummary>,
    /// Blocks in the archive, repeated ones included.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Why an archive was not imported. Pins of roots before the one that failed stay.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The archive cannot be read.
    #[error(transparent)]
    Car(#[from] CarError),
    /// The archive names no roots, so there is nothing to pin.
    #[error("the archive names no roots, so there is nothing to pin")]
    NoRoots,
    /// Part of a DAG is neither in the archive nor in the store.
    #[error("the DAG of {root} is incomplete: {missing} is neither in the archive nor in the store")]
    Incomplete {
        /// The root of that DAG.
        root: Cid,
        /// The first block found missing.
        missing: Cid,
    },
    /// A root could not be pinned for another reason.
    #[error("{root} could not be pinned: {error}")]
    Pin {
        /// That root.
        root: Cid,
        /// What went wrong.
        error: PinError,
    },
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads a CARv1, keeps its blocks and pins every root that it names, under `name` if there is one.
///
/// # Errors
/// [`ImportError`]. Blocks that were read are let go where no pin has them.
pub async fn import_car(
    disk: &Disk,
    reader: impl AsyncRead + Unpin,
    name: Option<String>,
) -> Result<ImportSummary, ImportError> {
    let mut car = CarReader::new(reader).await?;
    if car.roots().is_empty() {
        return Err(ImportError::NoRoots);
    }
    let scaffold = Scaffold::raise(disk).await?;
    let (mut blocks, mut bytes) = (0, 0);
    while let Some(block) = car.next_block().await {
        let block = block?;
        blocks += 1;
        bytes += block.data().len() as u64;
        scaffold.put(&block).await?;
    }
    // A walk reads what has been written, not what is queued.
    disk.flush().await?;
    scaffold.check()?;
    let mut seen = HashSet::new();
    let mut pins = Vec::new();
    for root in car.roots().iter().filter(|root| seen.insert(**root)) {
        pins.push(pin(disk, *root, name.clone()).await?);
    }
    Ok(ImportSummary { pins, blocks, bytes })
}

async fn pin(disk: &Disk, root: Cid, name: Option<String>) -> Result<PinSummary, ImportError> {
    let blocks = dag::walk_all(Arc::new(disk.clone()), root, WALK_CONCURRENCY);
    disk.pin_recursive(root, name, blocks).await.map_err(|error| match missing(&error) {
        Some(missing) => ImportError::Incomplete { root, missing },
        None => ImportError::Pin { root, error },
    })
}

fn missing(error: &PinError) -> Option<Cid> {
    let PinError::Blocks(error) = error else { return None };
    match error.downcast_ref::<DagError>()? {
        DagError::Source(SourceError::NotFound { cid }) => Some(*cid),
        _ => None,
    }
}

/// Protects blocks until it is dropped.
struct Scaffold<'a> {
    disk: &'a Disk,
    attempt: Arc<Attempt>,
}

impl<'a> Scaffold<'a> {
    async fn raise(disk: &'a Disk) -> Result<Self, StoreError> {
        let pin = disk.queue().ask(|reply| Command::Scaffold { reply }).await??;
        Ok(Self { disk, attempt: Attempt::new(pin, None) })
    }

    async fn put(&self, block: &content::Block) -> Result<(), ImportError> {
        self.disk.put_member(block, &self.attempt).await.map_err(store_failure)
    }

    fn check(&self) -> Result<(), ImportError> {
        self.attempt.check().map_err(store_failure)
    }
}

impl Drop for Scaffold<'_> {
    fn drop(&mut self) {
        // If the store is closed already, the scaffold goes when it is opened again.
        _ = self.disk.queue().send(Command::Release { pin: self.attempt.pin });
    }
}

/// A scaffold has no root, so only the disk can fail it.
fn store_failure(error: PinError) -> ImportError {
    match error {
        PinError::Store(error) => ImportError::Store(error),
        other => ImportError::Store(StoreError::io(other)),
    }
}
