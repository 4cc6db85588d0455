//! [`DestinationWriter`]: where the blocks of an upload are stored.
//!
//! Goals: acknowledged blocks are stored, pinned or cached; memory that is independent of the number of blocks.
//!
//! Non-goals: pinning, which needs an owner ([`crate::uploads::claims`]); protecting cached blocks from eviction;
//! waiting for other work of the store.

use crate::pinning::Meta;
use crate::uploads::limits::UploadLimits;
use crate::uploads::{UploadError, Uploads};
use cache::{Addition, BlockStore, StoreError};
use content::stored::Slice;
use content::{Block, BlockKey, Cid};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _, BufReader};

/// The maximum memory for keys, in bytes.
const KEYS_BYTES_MAX: usize = 256 * 1024;
/// The minimum overhead of a block in any store, in bytes.
const BLOCK_BYTES_MIN: u64 = 160;
/// The number of keys in one look-up.
const LOOKUP_BATCH: usize = 1024;

/// What happens to the blocks of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// They are pinned.
    Pinned(PinDetails),
    /// They are cached, count for no quota, and may be evicted at any time. A block that was already cached may be
    /// evicted soon after it was checked.
    Cached,
    /// They are not stored: only CIDs are computed.
    Nothing,
}

/// What the pins of an upload have besides their roots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PinDetails {
    /// Their name.
    pub name: Option<String>,
    /// Their metadata.
    pub meta: Meta,
}

/// Stores the blocks of an upload at their destination.
#[derive(Debug)]
pub enum DestinationWriter {
    /// Temporary pins, until the roots are pinned or this is dropped.
    Pinned(Addition, PinDetails),
    /// The cache.
    Cached(Box<Cached>),
    /// Nowhere.
    Nothing,
}

impl DestinationWriter {
    /// Stores a block; waits while the disk is behind (backpressure).
    ///
    /// # Errors
    /// An error of the disk, for this block or an earlier one.
    pub async fn put(&mut self, block: &Block) -> Result<(), UploadError> {
        match self {
            Self::Pinned(addition, _) => Ok(addition.put(block).await?),
            Self::Cached(cached) => cached.put(block).await,
            Self::Nothing => Ok(()),
        }
    }

    /// Stores a leaf as a slice of a block that was stored before.
    ///
    /// # Errors
    /// As [`Self::put`]; also if the destination has no packed files.
    pub async fn put_slice(&mut self, leaf: &Cid, slice: Slice) -> Result<(), UploadError> {
        match self {
            Self::Pinned(addition, _) => Ok(addition.put_slice(leaf, slice).await?),
            Self::Cached(_) => Err(UploadError::Invalid("a packed file must be pinned".to_owned())),
            Self::Nothing => Ok(()),
        }
    }

    /// Whether packed files can be stored.
    pub fn takes_slices(&self) -> bool {
        match self {
            Self::Pinned(addition, _) => addition.takes_slices(),
            Self::Cached(_) => false,
            Self::Nothing => true,
        }
    }

    /// Waits until all blocks are stored. This does not pin them.
    ///
    /// # Errors
    /// [`UploadError::NotCached`], and errors of the disk.
    pub async fn settle(&mut self) -> Result<(), UploadError> {
        match self {
            Self::Pinned(addition, _) => Ok(addition.written().await?),
            Self::Cached(cached) => cached.settle().await,
            Self::Nothing => Ok(()),
        }
    }
}

impl Uploads {
    /// Begins to store blocks that will be pinned. DAG walks use the memory of uploads.
    ///
    /// # Errors
    /// The error of the disk.
    pub async fn begin_addition(&self) -> Result<Addition, StoreError> {
        Ok(Addition::begin(&*self.store).await?.within(Arc::clone(&self.memory)))
    }

    /// Begins to store blocks.
    ///
    /// # Errors
    /// The error of the disk.
    pub async fn begin(&self, destination: Destination) -> Result<DestinationWriter, UploadError> {
        Ok(match destination {
            Destination::Pinned(pin) => DestinationWriter::Pinned(self.begin_addition().await?, pin),
            Destination::Cached => {
                let cached = Cached::new(Arc::clone(&self.store), self.folder.clone(), &self.limits);
                DestinationWriter::Cached(Box::new(cached))
            }
            Destination::Nothing => DestinationWriter::Nothing,
        })
    }
}

/// Blocks that are cached.
///
/// A cache may drop a block without an error, but an upload is the only source of its blocks. So the keys of all blocks
/// are recorded, in an unnamed temporary file if there are many, and looked up at the end. The capacity of the cache
/// and the free disk space bound their number.
#[derive(Debug)]
pub struct Cached {
    store: Arc<dyn BlockStore>,
    /// The folder of the temporary file.
    folder: PathBuf,
    /// The disk space to leave free, in bytes.
    free_bytes_min: u64,
    /// The capacity of the cache, in bytes.
    bytes_max: u64,
    /// The minimum size of the blocks in the cache, if repeated ones count and none is compressed.
    bytes: u64,
    blocks: u64,
    /// The key of the last block.
    last: Option<BlockKey>,
    /// The last keys, each after a byte with its length.
    keys: Vec<u8>,
    /// The earlier keys.
    file: Option<File>,
}

impl Cached {
    fn new(store: Arc<dyn BlockStore>, folder: PathBuf, limits: &UploadLimits) -> Self {
        let UploadLimits { cache_bytes_max: bytes_max, free_bytes_min, .. } = *limits;
        let (bytes, blocks, last) = (0, 0, None);
        Self { store, folder, free_bytes_min, bytes_max, bytes, blocks, last, keys: Vec::new(), file: None }
    }

    async fn put(&mut self, block: &Block) -> Result<(), UploadError> {
        // A block whose CID has an identity hash is not stored.
        let Some(key) = block.key() else { return Ok(()) };
        self.blocks += 1;
        // Runs of the same block, such as the zeros of a sparse file, are looked up once.
        if self.last == Some(key) {
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(block.data().len() as u64 + BLOCK_BYTES_MIN);
        if self.bytes > self.bytes_max {
            return Err(UploadError::LargerThanCache { bytes_max: self.bytes_max });
        }
        self.record(&key).await.map_err(UploadError::TemporaryFile)?;
        self.store.put_cached(block.clone()).await;
        self.last = Some(key);
        Ok(())
    }

    async fn record(&mut self, key: &BlockKey) -> io::Result<()> {
        let key = key.to_bytes();
        self.keys.push(u8::try_from(key.len()).map_err(io::Error::other)?);
        self.keys.extend_from_slice(&key);
        if self.keys.len() < KEYS_BYTES_MAX {
            return Ok(());
        }
        check_free(&self.folder, self.free_bytes_min)?;
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile_in(&self.folder)?.into()),
        };
        file.write_all(&self.keys).await?;
        self.keys.clear();
        Ok(())
    }

    async fn settle(&mut self) -> Result<(), UploadError> {
        self.store.written().await?;
        let mut gone = self.count_evicted(&self.keys[..]).await?;
        if let Some(mut file) = self.file.take() {
            file.flush().await.map_err(UploadError::TemporaryFile)?;
            file.rewind().await.map_err(UploadError::TemporaryFile)?;
            gone += self.count_evicted(BufReader::with_capacity(KEYS_BYTES_MAX, file)).await?;
        }
        match gone {
            0 => Ok(()),
            gone => Err(UploadError::NotCached { gone, blocks: self.blocks }),
        }
    }

    /// The number of keys whose blocks are not stored.
    async fn count_evicted(&self, mut keys: impl AsyncRead + Unpin) -> Result<u64, UploadError> {
        let mut gone = 0;
        loop {
            let next = read_keys(&mut keys).await.map_err(UploadError::TemporaryFile)?;
            if next.is_empty() {
                return Ok(gone);
            }
            let shapes = self.store.shapes(next).await?;
            gone += shapes.iter().filter(|shape| shape.is_none()).count() as u64;
        }
    }
}

/// Checks that enough disk space stays free if more keys are written.
fn check_free(folder: &Path, free_bytes_min: u64) -> io::Result<()> {
    let stat = rustix::fs::statvfs(folder)?;
    let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free_bytes >= free_bytes_min.saturating_add(KEYS_BYTES_MAX as u64) {
        return Ok(());
    }
    let [free, needed] = [free_bytes, free_bytes_min].map(|bytes| bytes >> 20);
    let words = format!("the disk has {free} MiB left, and {needed} MiB must stay free (cache.disk_free_bytes_min)");
    Err(io::Error::new(io::ErrorKind::StorageFull, words))
}

/// Reads the next keys; none at the end.
async fn read_keys(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<BlockKey>> {
    let mut keys = Vec::new();
    while keys.len() < LOOKUP_BATCH {
        let length = match from.read_u8().await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            length => length?,
        };
        let mut key = vec![0; length.into()];
        from.read_exact(&mut key).await?;
        keys.push(BlockKey::from_bytes(&key).ok_or(io::ErrorKind::InvalidData)?);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cache::Evict;
    use cache::memory::{self, MemoryOptions};
    use content::{codec, hashes};

    fn block(number: u32) -> Block {
        let data = number.to_be_bytes().to_vec();
        Block::of(codec::RAW, hashes::SHA2_256, 32, data.into()).expect("a block")
    }

    fn cached(options: &MemoryOptions) -> (Arc<dyn BlockStore>, Cached) {
        let store = memory::open(options).expect("opens");
        let settings = config::Cache {
            disk_bytes_max: options.cache_bytes_max,
            disk_free_bytes_min: 0,
            ..config::Cache::default()
        };
        let limits = UploadLimits::new(&config::Uploads::default(), &settings);
        (Arc::clone(&store), Cached::new(store, std::env::temp_dir(), &limits))
    }

    /// More blocks than there is memory for: their keys are in a file.
    const MANY: u32 = 20_000;

    #[tokio::test]
    async fn any_number_of_blocks_is_verified() {
        let (store, mut cached) = cached(&MemoryOptions::default());
        for number in 0..MANY {
            cached.put(&block(number)).await.expect("is taken");
            assert!(cached.keys.len() < KEYS_BYTES_MAX);
        }
        assert!(cached.file.is_some() && !cached.keys.is_empty());
        cached.settle().await.expect("all are there");
        assert_eq!((store.stats().blocks, store.stats().pinned_bytes), (MANY.into(), 0));
    }

    #[tokio::test]
    async fn evicted_blocks_are_counted() {
        let (store, mut cached) = cached(&MemoryOptions::default());
        for number in 0..MANY {
            cached.put(&block(number)).await.expect("is taken");
        }
        store.flush().await.expect("writes");
        let lost = [0, 1_500, MANY - 1].map(|number| block(number).key().expect("a key"));
        store.evict(lost.to_vec(), Evict::Unpinned).await.expect("evicts");
        let error = cached.settle().await.expect_err("some are gone");
        assert!(matches!(error, UploadError::NotCached { gone: 3, blocks } if blocks == u64::from(MANY)), "{error}");
    }

    #[tokio::test]
    async fn a_cache_that_is_too_small_rejects_the_upload() {
        let (store, mut cached) = cached(&MemoryOptions { cache_bytes_max: 0, ..MemoryOptions::default() });
        cached.settle().await.expect("nothing is not too much");
        let error = cached.put(&block(1)).await.expect_err("it has no room");
        assert!(matches!(error, UploadError::LargerThanCache { bytes_max: 0 }), "{error}");
        assert_eq!(error.status(), 507);
        // The cache is smaller than the limits say.
        cached.bytes_max = 1 << 20;
        cached.put(&block(1)).await.expect("is taken");
        store.flush().await.expect("writes");
        let error = cached.settle().await.expect_err("it is gone");
        assert!(matches!(error, UploadError::NotCached { gone: 1, .. }) && error.status() == 507, "{error}");
        assert!(error.to_string().contains("try again"), "{error}");
    }

    #[tokio::test]
    async fn repeated_blocks_use_no_disk_space() {
        let room = 100 * (4 + BLOCK_BYTES_MIN);
        let (_, mut cached) = cached(&MemoryOptions { cache_bytes_max: room, ..MemoryOptions::default() });
        for _ in 0..MANY {
            cached.put(&block(7)).await.expect("is taken");
        }
        let key_bytes = 1 + block(7).key().expect("a key").to_bytes().len();
        assert_eq!((cached.keys.len(), cached.file.is_none(), cached.blocks), (key_bytes, true, MANY.into()));
        for number in 1..100 {
            cached.put(&block(number % 2)).await.expect("is taken");
        }
        let error = cached.put(&block(0)).await.expect_err("so many blocks have no room");
        assert!(matches!(error, UploadError::LargerThanCache { .. }), "{error}");
        assert_eq!(cached.keys.len(), 100 * key_bytes);
    }

    #[tokio::test]
    async fn the_reserved_disk_space_stays_free() {
        let (_, mut cached) = cached(&MemoryOptions::default());
        cached.free_bytes_min = u64::MAX;
        let mut put = 0;
        let error = loop {
            match cached.put(&block(put)).await {
                Ok(()) if put < MANY => put += 1,
                Ok(()) => panic!("{put} keys were taken"),
                Err(error) => break error,
            }
        };
        assert!(cached.file.is_none() && error.to_string().contains("disk_free_bytes_min"), "{error}");
        assert_eq!(error.status(), 507);
    }

    #[tokio::test]
    async fn a_failed_write_of_a_pinned_block_is_reported_at_the_end() {
        let store = memory::open(&MemoryOptions { bytes_max: 4096, ..MemoryOptions::default() }).expect("opens");
        let mut keeping =
            DestinationWriter::Pinned(Addition::begin(&*store).await.expect("begins"), PinDetails::default());
        keeping.put(&block(1)).await.expect("is taken");
        keeping.settle().await.expect("has room");
        let mut seed = 1_u64;
        let mut noise = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        };
        let data: Vec<u8> = (0..8192).map(|_| noise()).collect();
        let large = Block::of(codec::RAW, hashes::SHA2_256, 32, data.into()).expect("a block");
        keeping.put(&large).await.expect("is queued");
        let error = keeping.settle().await.expect_err("it has no room");
        assert!(matches!(error, UploadError::Store(_)) && error.status() == 507, "{error}");
    }
}
