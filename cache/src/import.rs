//! CAR files into the store, pinned.
//!
//! Goals: an archive larger than memory and larger than the cache's budget imports; one that is incomplete is refused by
//! naming what is missing; blocks that nothing pins are not kept.
//!
//! How: an archive may be in any order, so its blocks are taken in as [`crate::add`] does it.

use crate::add::{AddError, Addition, missing};
use crate::disk::StoreError;
use crate::pins::{PinError, PinSummary};
use crate::store::BlockStore;
use content::car::{self, CarError, CarReader, Section};
use content::{Block, Cid, MAX_BLOCK_BYTES};
use futures::stream::{Stream, StreamExt as _};
use std::num::NonZero;
use std::pin::pin;
use std::{io, thread};
use tokio::io::AsyncRead;

/// A block of less, in bytes, is verified sooner than it is handed over.
const HANDED_BYTES_MIN: usize = 16 * 1024;

/// Where an archive names the roots that are to be pinned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RootsIn {
    /// In its header, as usual.
    #[default]
    Header,
    /// In its last block, which is not kept ([`content::car::roots_block`]); the header names none. Such an archive may name
    /// blocks without bringing them, which are here already ([`content::car::reference`]).
    LastBlock,
}

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
    /// A block that the archive names without bringing it is not here.
    #[error("{missing} was here, and is not any more: send it as well")]
    Gone {
        /// That block.
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
    /// Whoever looks at the archive's blocks does not want one, and says why.
    #[error(transparent)]
    Refused(Box<dyn std::error::Error + Send + Sync>),
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Looks at the CID of each block before it is kept, and of each root before it is pinned. An error ends the import.
pub type Look<'a> = &'a (dyn Fn(&Cid) -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Send + Sync);

/// Reads a CARv1, keeps its blocks and pins every root that it names, under `name` if there is one.
///
/// # Errors
/// [`ImportError`]. Blocks that were read are let go where no pin has them.
pub async fn import_car(
    store: &dyn BlockStore,
    reader: impl AsyncRead + Unpin,
    name: Option<String>,
) -> Result<ImportSummary, ImportError> {
    import_car_with(store, reader, name, RootsIn::Header, &|_| Ok(())).await
}

/// The same, with the roots where `roots_in` says, as long as `look` lets the blocks in.
///
/// # Errors
/// The same.
pub async fn import_car_with(
    store: &dyn BlockStore,
    reader: impl AsyncRead + Unpin,
    name: Option<String>,
    roots_in: RootsIn,
    look: Look<'_>,
) -> Result<ImportSummary, ImportError> {
    import_car_into(Addition::begin(store).await?, reader, name, roots_in, look).await
}

/// The same into what was begun already.
///
/// # Errors
/// The same.
pub async fn import_car_into(
    addition: Addition,
    reader: impl AsyncRead + Unpin,
    name: Option<String>,
    roots_in: RootsIn,
    look: Look<'_>,
) -> Result<ImportSummary, ImportError> {
    let taken = take_car(addition, reader, roots_in, look).await?;
    let pins = taken.addition.pin(&taken.roots, name.as_deref()).await?;
    Ok(ImportSummary { pins, blocks: taken.blocks, bytes: taken.bytes })
}

/// An archive that was read to its end, and nothing of which is pinned yet.
#[derive(Debug)]
pub struct TakenCar {
    /// Its blocks, protected.
    pub addition: Addition,
    /// The roots that it names, perhaps repeated; at least one.
    pub roots: Vec<Cid>,
    /// Blocks in the archive, repeated ones included.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Reads a CARv1 and keeps its blocks in an addition, as long as `look` lets them in.
///
/// # Errors
/// [`ImportError`]. Blocks that were read are let go.
pub async fn take_car(
    addition: Addition,
    reader: impl AsyncRead + Unpin,
    roots_in: RootsIn,
    look: Look<'_>,
) -> Result<TakenCar, ImportError> {
    let car = CarReader::new(reader).await?;
    let named = car.roots().to_vec();
    match roots_in {
        RootsIn::Header if named.is_empty() => return Err(ImportError::NoRoots),
        RootsIn::LastBlock if !named.is_empty() => {
            return Err(CarError::Roots("its header names roots already".to_owned()).into());
        }
        _ => {}
    }
    let (mut count, mut bytes) = (0, 0);
    // In the archive's order, which is that in which they will be read, as often as not.
    let items =
        car.into_sections().map(|section| async { item(section?, roots_in).await }).buffered(verified_at_once());
    let mut items = pin!(items);
    let mut last = None;
    while let Some(item) = items.next().await {
        let block = match item? {
            Item::Block(block) => block,
            Item::Held(cid) => {
                look(&cid).map_err(ImportError::Refused)?;
                addition.put_held(&cid).await?;
                continue;
            }
        };
        let block = match roots_in {
            RootsIn::Header => block,
            // It is the list of roots unless another one follows.
            RootsIn::LastBlock => match last.replace(block) {
                Some(before) => before,
                None => continue,
            },
        };
        look(block.cid()).map_err(ImportError::Refused)?;
        count += 1;
        bytes += block.data().len() as u64;
        addition.put(&block).await?;
    }
    let roots = last.as_ref().map_or(Ok(named), car::read_roots)?;
    if roots.is_empty() {
        return Err(ImportError::NoRoots);
    }
    roots.iter().try_for_each(look).map_err(ImportError::Refused)?;
    Ok(TakenCar { addition, roots, blocks: count, bytes })
}

/// The most blocks that are verified at a time: each may have 2 MiB.
const VERIFIED_AT_ONCE_MAX: usize = 8;

/// What one import holds of its archive, in bytes: the blocks that are verified, and the one that is read.
pub const IMPORT_BYTES_MAX: usize = (VERIFIED_AT_ONCE_MAX + 1) * MAX_BLOCK_BYTES;

/// Blocks that are verified at a time: enough that no processor waits for one that reads.
fn verified_at_once() -> usize {
    (2 * thread::available_parallelism().map_or(1, NonZero::get)).min(VERIFIED_AT_ONCE_MAX)
}

/// What an archive brings.
enum Item {
    Block(Block),
    /// It only names a block.
    Held(Cid),
}

async fn item(section: Section, roots_in: RootsIn) -> Result<Item, CarError> {
    let may_be_reference = roots_in == RootsIn::LastBlock && section.block_bytes() == 0;
    let cid = *section.cid();
    match verify(section).await {
        Err(CarError::Block(_)) if may_be_reference => Ok(Item::Held(cid)),
        block => block.map(Item::Block),
    }
}

/// The blocks of an archive, in its order, as many verified at a time as keep every processor busy.
pub fn verified(
    sections: impl Stream<Item = Result<Section, CarError>>,
) -> impl Stream<Item = Result<Block, CarError>> {
    sections.map(|section| async { verify(section?).await }).buffered(verified_at_once())
}

/// Hashing takes its time, so it is done on other threads, unless handing over would take longer.
async fn verify(section: Section) -> Result<Block, CarError> {
    if section.block_bytes() < HANDED_BYTES_MIN {
        return Ok(section.verify()?);
    }
    let verifying = tokio::task::spawn_blocking(move || section.verify());
    Ok(verifying.await.map_err(io::Error::other)??)
}

impl From<AddError> for ImportError {
    fn from(error: AddError) -> Self {
        match error {
            AddError::Store(error) => Self::Store(error),
            AddError::Missing { missing } => Self::Gone { missing },
            AddError::Pin { root, error } => match missing(&error) {
                Some(missing) => Self::Incomplete { root, missing },
                None => Self::Pin { root, error: *error },
            },
        }
    }
}
