//! [`Keeping`]: what becomes of blocks as they come or are made.
//!
//! Goals: what was taken in is there when that is said, whether it is pinned or cached; memory that does not grow with the number of
//! blocks.
//!
//! Non-goals: pinning, which has to know whose the pins become ([`crate::uploads::claims`]); protecting what is cached: it goes when the cache
//! needs the room, like everything in there; waiting for what else the store has to do.

use crate::uploads::{Limits, UploadError, Uploads};
use cache::{Addition, BlockStore, StoreError};
use content::{Block, BlockKey};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _, BufReader};

/// How many bytes of keys are in memory.
const KEYS_BYTES_MAX: usize = 256 * 1024;
/// What any store takes for a block beside its bytes, at least, in bytes.
const BLOCK_BYTES_MIN: u64 = 160;
/// How many keys are looked up at a time.
const LOOKED_UP_AT_ONCE: usize = 1024;

/// What is to become of blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Keep {
    /// They are pinned with their roots.
    #[default]
    Pinned,
    /// They are left to the cache, count for nobody, and go when it needs the room. That may be at once: a block that was held
    /// already and is about to be evicted, or to go with a pin that was removed, is there when that is looked at, and gone soon
    /// after.
    Cached,
    /// Nothing is kept.
    Nothing,
}

/// Where blocks go.
#[derive(Debug)]
pub enum Keeping {
    /// They are protected until somebody has pinned them, or this is dropped.
    Pinned(Addition),
    /// To the cache.
    Cached(Box<Cached>),
    /// Nowhere.
    Nothing,
}

impl Keeping {
    /// Takes a block; waits while the disk is behind.
    ///
    /// # Errors
    /// What the disk said, to this block or to one before it.
    pub async fn put(&mut self, block: &Block) -> Result<(), UploadError> {
        match self {
            Self::Pinned(addition) => Ok(addition.put(block).await?),
            Self::Cached(cached) => cached.put(block).await,
            Self::Nothing => Ok(()),
        }
    }

    /// Done when everybody finds what was put. What is to be pinned is not pinned by this.
    ///
    /// # Errors
    /// [`UploadError::NotCached`], and what the disk said.
    pub async fn settle(&mut self) -> Result<(), UploadError> {
        match self {
            Self::Pinned(addition) => Ok(addition.written().await?),
            Self::Cached(cached) => cached.settle().await,
            Self::Nothing => Ok(()),
        }
    }
}

impl Uploads {
    /// Begins to take blocks that are to be pinned. Walks over their DAGs take from the memory of uploads.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn begin_addition(&self) -> Result<Addition, StoreError> {
        Ok(Addition::begin(&*self.store).await?.within(Arc::clone(&self.memory)))
    }

    /// Begins to take blocks.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn begin(&self, keep: Keep) -> Result<Keeping, UploadError> {
        Ok(match keep {
            Keep::Pinned => Keeping::Pinned(self.begin_addition().await?),
            Keep::Cached => {
                let cached = Cached::new(Arc::clone(&self.store), self.folder.clone(), &self.limits);
                Keeping::Cached(Box::new(cached))
            }
            Keep::Nothing => Keeping::Nothing,
        })
    }
}

/// Blocks that are left to the cache.
///
/// A cache says nothing when it drops a block, since whoever fetched it has it. Here nobody has: so the keys of all that came are
/// put down, in a file that has no name if they are many, and looked up in the end. There are no more of them than the cache has
/// room for blocks, and none where the disk has little left.
#[derive(Debug)]
pub struct Cached {
    store: Arc<dyn BlockStore>,
    /// Where the file is made.
    folder: PathBuf,
    /// What is left free there, in bytes.
    free_bytes_min: u64,
    /// What the cache has room for, in bytes.
    bytes_max: u64,
    /// What the blocks take of it, at least, if each is counted as often as it comes and none shrinks.
    bytes: u64,
    blocks: u64,
    /// The key of the block that came last.
    last: Option<BlockKey>,
    /// The last keys, each behind a byte with its length.
    keys: Vec<u8>,
    /// Those before them.
    file: Option<File>,
}

impl Cached {
    fn new(store: Arc<dyn BlockStore>, folder: PathBuf, limits: &Limits) -> Self {
        let Limits { cache_bytes_max: bytes_max, free_bytes_min, .. } = *limits;
        let (bytes, blocks, last) = (0, 0, None);
        Self { store, folder, free_bytes_min, bytes_max, bytes, blocks, last, keys: Vec::new(), file: None }
    }

    async fn put(&mut self, block: &Block) -> Result<(), UploadError> {
        // One that its CID holds needs no place.
        let Some(key) = block.key() else { return Ok(()) };
        self.blocks += 1;
        // Runs of one block, such as the zeros of a sparse file, are looked up once.
        if self.last == Some(key) {
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(block.data().len() as u64 + BLOCK_BYTES_MIN);
        if self.bytes > self.bytes_max {
            return Err(UploadError::LargerThanCache { bytes_max: self.bytes_max });
        }
        self.note(&key).await.map_err(UploadError::Scratch)?;
        self.store.put_cached(block.clone()).await;
        self.last = Some(key);
        Ok(())
    }

    async fn note(&mut self, key: &BlockKey) -> io::Result<()> {
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
        let mut gone = self.count_gone(&self.keys[..]).await?;
        if let Some(mut file) = self.file.take() {
            file.flush().await.map_err(UploadError::Scratch)?;
            file.rewind().await.map_err(UploadError::Scratch)?;
            gone += self.count_gone(BufReader::with_capacity(KEYS_BYTES_MAX, file)).await?;
        }
        match gone {
            0 => Ok(()),
            gone => Err(UploadError::NotCached { gone, blocks: self.blocks }),
        }
    }

    /// How many of these keys are of blocks that are not here.
    async fn count_gone(&self, mut keys: impl AsyncRead + Unpin) -> Result<u64, UploadError> {
        let mut gone = 0;
        loop {
            let next = read_keys(&mut keys).await.map_err(UploadError::Scratch)?;
            if next.is_empty() {
                return Ok(gone);
            }
            let shapes = self.store.shapes(next).await?;
            gone += shapes.iter().filter(|shape| shape.is_none()).count() as u64;
        }
    }
}

/// That enough stays free where a folder is if some more keys are written there.
fn check_free(folder: &Path, free_bytes_min: u64) -> io::Result<()> {
    let stat = rustix::fs::statvfs(folder)?;
    let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free_bytes >= free_bytes_min.saturating_add(KEYS_BYTES_MAX as u64) {
        return Ok(());
    }
    let [free, needed] = [free_bytes, free_bytes_min].map(|bytes| bytes >> 20);
    let words = format!("its disk has {free} MiB left, and {needed} MiB are to stay free (cache.disk_free_bytes_min)");
    Err(io::Error::new(io::ErrorKind::StorageFull, words))
}

/// The next keys; none at the end.
async fn read_keys(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<BlockKey>> {
    let mut keys = Vec::new();
    while keys.len() < LOOKED_UP_AT_ONCE {
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
        let limits = Limits::new(&config::Uploads::default(), &settings);
        (Arc::clone(&store), Cached::new(store, std::env::temp_dir(), &limits))
    }

    /// As many as find no room in memory: their keys are in a file.
    const MANY: u32 = 20_000;

    #[tokio::test]
    async fn any_number_of_blocks_is_found_again() {
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
    async fn what_the_cache_let_go_of_is_counted() {
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
    async fn a_cache_that_keeps_nothing_is_no_place() {
        let (store, mut cached) = cached(&MemoryOptions { cache_bytes_max: 0, ..MemoryOptions::default() });
        cached.settle().await.expect("nothing is not too much");
        let error = cached.put(&block(1)).await.expect_err("it has no room");
        assert!(matches!(error, UploadError::LargerThanCache { bytes_max: 0 }), "{error}");
        assert_eq!(error.status(), 507);
        // One that was given less room than is known here.
        cached.bytes_max = 1 << 20;
        cached.put(&block(1)).await.expect("is taken");
        store.flush().await.expect("writes");
        let error = cached.settle().await.expect_err("it is gone");
        assert!(matches!(error, UploadError::NotCached { gone: 1, .. }) && error.status() == 507, "{error}");
        assert!(error.to_string().contains("once more"), "{error}");
    }

    #[tokio::test]
    async fn repeated_blocks_fill_no_disk() {
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
    async fn what_is_to_stay_free_on_the_disk_stays_free() {
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
    async fn a_refused_write_of_what_is_to_be_pinned_shows_when_it_is_settled() {
        let store = memory::open(&MemoryOptions { bytes_max: 4096, ..MemoryOptions::default() }).expect("opens");
        let mut keeping = Keeping::Pinned(Addition::begin(&*store).await.expect("begins"));
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
