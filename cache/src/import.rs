//! Imports CAR files into the store, and pins their roots.
//!
//! Goals: an archive may be larger than memory and than the cache's budget; an incomplete archive is rejected with the
//! CID of a missing block; blocks that no pin has are not kept.
//!
//! How: the blocks of an archive may be in any order, so they are added with [`crate::add`].

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

/// Smaller blocks are verified inline, since that is faster than passing them to another thread.
const OFFLOADED_BYTES_MIN: usize = 16 * 1024;

/// Where an archive lists the roots to pin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RootsIn {
    /// In its header, as CARv1 specifies.
    #[default]
    Header,
    /// In its last block, which is not stored ([`content::car::roots_block`]); the header has no roots. Such an archive
    /// may refer to blocks that are already stored ([`content::car::reference`]).
    LastBlock,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportSummary {
    /// The pin of each distinct root, in the archive's order.
    pub pins: Vec<PinSummary>,
    /// Blocks in the archive, repeated ones included.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Why an archive was not imported. Pins of earlier roots stay.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The archive cannot be read.
    #[error(transparent)]
    Car(#[from] CarError),
    /// The archive has no roots.
    #[error("the archive has no roots, so there is nothing to pin")]
    NoRoots,
    /// Part of a DAG is neither in the archive nor in the store.
    #[error("the DAG of {root} is incomplete: {missing} is neither in the archive nor in the store")]
    Incomplete {
        /// The root of that DAG.
        root: Cid,
        /// The first block found missing.
        missing: Cid,
    },
    /// A block that the archive refers to is no longer stored.
    #[error("{missing} is no longer stored: send it as well")]
    Gone {
        /// That block.
        missing: Cid,
    },
    /// A root could not be pinned for another reason.
    #[error("{root} could not be pinned: {error}")]
    Pin {
        /// That root.
        root: Cid,
        /// The reason.
        error: PinError,
    },
    /// The caller's check rejected a block.
    #[error(transparent)]
    Refused(Box<dyn std::error::Error + Send + Sync>),
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Checks the CID of each block before it is stored, and of each root before it is pinned. An error ends the import.
pub type CidCheck<'a> = &'a (dyn Fn(&Cid) -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Send + Sync);

/// Imports a CARv1 and pins each of its roots, with `name` if there is one.
///
/// # Errors
/// [`ImportError`]. Stored blocks that no pin has are no longer protected.
pub async fn import_car(
    store: &dyn BlockStore,
    reader: impl AsyncRead + Unpin,
    name: Option<String>,
) -> Result<ImportSummary, ImportError> {
    import_car_with(store, reader, name, RootsIn::Header, &|_| Ok(())).await
}

/// The same, with the roots in `roots_in`, if `check` accepts every block.
///
/// # Errors
/// The same.
pub async fn import_car_with(
    store: &dyn BlockStore,
    reader: impl AsyncRead + Unpin,
    name: Option<String>,
    roots_in: RootsIn,
    check: CidCheck<'_>,
) -> Result<ImportSummary, ImportError> {
    import_car_into(Addition::begin(store).await?, reader, name, roots_in, check).await
}

/// The same into an existing addition.
///
/// # Errors
/// The same.
pub async fn import_car_into(
    addition: Addition,
    reader: impl AsyncRead + Unpin,
    name: Option<String>,
    roots_in: RootsIn,
    check: CidCheck<'_>,
) -> Result<ImportSummary, ImportError> {
    let taken = take_car(addition, reader, roots_in, check).await?;
    let pins = taken.addition.pin(&taken.roots, name.as_deref()).await?;
    Ok(ImportSummary { pins, blocks: taken.blocks, bytes: taken.bytes })
}

/// An archive that was read completely and is not pinned yet.
#[derive(Debug)]
pub struct ReadCar {
    /// Its blocks, protected from eviction.
    pub addition: Addition,
    /// Its roots, at least one, perhaps repeated.
    pub roots: Vec<Cid>,
    /// Blocks in the archive, repeated ones included.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Reads a CARv1 and adds its blocks to an addition, if `check` accepts them.
///
/// # Errors
/// [`ImportError`]. The stored blocks are no longer protected.
pub async fn take_car(
    addition: Addition,
    reader: impl AsyncRead + Unpin,
    roots_in: RootsIn,
    check: CidCheck<'_>,
) -> Result<ReadCar, ImportError> {
    let car = CarReader::new(reader).await?;
    let named = car.roots().to_vec();
    match roots_in {
        RootsIn::Header if named.is_empty() => return Err(ImportError::NoRoots),
        RootsIn::LastBlock if !named.is_empty() => {
            return Err(CarError::Roots("its header must have no roots".to_owned()).into());
        }
        _ => {}
    }
    let (mut count, mut bytes) = (0, 0);
    // In the archive's order, which is often the order of later reads.
    let items =
        car.into_sections().map(|section| async { item(section?, roots_in).await }).buffered(verify_concurrency());
    let mut items = pin!(items);
    let mut last = None;
    while let Some(item) = items.next().await {
        let block = match item? {
            Item::Block(block) => block,
            Item::Reference(cid) => {
                check(&cid).map_err(ImportError::Refused)?;
                addition.put_stored(&cid).await?;
                continue;
            }
        };
        let block = match roots_in {
            RootsIn::Header => block,
            // The last block is the list of roots.
            RootsIn::LastBlock => match last.replace(block) {
                Some(before) => before,
                None => continue,
            },
        };
        check(block.cid()).map_err(ImportError::Refused)?;
        count += 1;
        bytes += block.data().len() as u64;
        addition.put(&block).await?;
    }
    let roots = last.as_ref().map_or(Ok(named), car::read_roots)?;
    if roots.is_empty() {
        return Err(ImportError::NoRoots);
    }
    roots.iter().try_for_each(check).map_err(ImportError::Refused)?;
    Ok(ReadCar { addition, roots, blocks: count, bytes })
}

/// The most blocks that are verified concurrently, each of up to 2 MiB.
const VERIFY_CONCURRENCY_MAX: usize = 8;

/// The memory of one import, in bytes: the blocks being verified, and the one being read.
pub const IMPORT_MEMORY_BYTES_MAX: usize = (VERIFY_CONCURRENCY_MAX + 1) * MAX_BLOCK_BYTES;

/// Blocks that are verified concurrently: enough to keep every processor busy.
fn verify_concurrency() -> usize {
    (2 * thread::available_parallelism().map_or(1, NonZero::get)).min(VERIFY_CONCURRENCY_MAX)
}

/// An entry of an archive.
enum Item {
    Block(Block),
    /// A reference to a block that is already stored.
    Reference(Cid),
}

async fn item(section: Section, roots_in: RootsIn) -> Result<Item, CarError> {
    let may_be_reference = roots_in == RootsIn::LastBlock && section.block_bytes() == 0;
    let cid = *section.cid();
    match verify(section).await {
        Err(CarError::Block(_)) if may_be_reference => Ok(Item::Reference(cid)),
        block => block.map(Item::Block),
    }
}

/// The verified blocks of an archive, in its order. Verification runs concurrently on several threads.
pub fn verified(
    sections: impl Stream<Item = Result<Section, CarError>>,
) -> impl Stream<Item = Result<Block, CarError>> {
    sections.map(|section| async { verify(section?).await }).buffered(verify_concurrency())
}

/// Hashes large blocks on blocking threads, and small ones inline.
async fn verify(section: Section) -> Result<Block, CarError> {
    if section.block_bytes() < OFFLOADED_BYTES_MIN {
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
