//! The memory store: for tests, for benchmarks, and for gateways that must leave no data behind.
//!
//! Goals: all guarantees of a store except durability; one budget in bytes for all blocks: cached blocks are evicted to
//! make room for pinned ones, and a pin without room fails. Values are compressed with zstd where that saves space, as
//! on disk, so that a gateway sends the same bytes.
//!
//! Non-goals: the speed of [`crate::Ram`], which is in front of it and keeps blocks uncompressed; several processes.

use crate::disk::StoreError;
use crate::indexed_store::backing::{Backing, NewValue, ScrubPosition};
use crate::indexed_store::{IndexedStore, StoreLimits};
use crate::memory_index::{Key, MemoryIndex};
use crate::pins::{PinId, PinRecord};
use crate::space::Space;
use crate::store::BlockStore;
use bytes::Bytes;
use content::Cid;
use content::stored::{self, Shape, Stored};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The overhead of a block, in bytes: its entries in the map and in the index, the two copies of its key, and their
/// allocation headers.
const OVERHEAD_BYTES: u64 = 512;

/// Options of a memory store.
#[derive(Debug, Clone)]
pub struct MemoryOptions {
    /// The budget of all blocks, in bytes: their values, and 512 bytes for each. Temporarily up to 6 MiB more.
    pub bytes_max: u64,
    /// The part of it that unpinned blocks may take.
    pub cache_bytes_max: u64,
    /// How blocks are compressed.
    pub zstd: stored::CompressionOptions,
    /// The size of the write queue, in bytes.
    pub queue_bytes_max: usize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            bytes_max: 512 * 1024 * 1024,
            cache_bytes_max: 512 * 1024 * 1024,
            zstd: stored::CompressionOptions::default(),
            queue_bytes_max: 16 * 1024 * 1024,
        }
    }
}

/// Opens an empty store.
///
/// # Errors
/// If the writer thread cannot be started.
pub fn open(options: &MemoryOptions) -> Result<Arc<dyn BlockStore>, StoreError> {
    let limits = StoreLimits {
        cache_bytes_max: options.cache_bytes_max.min(options.bytes_max),
        bytes_max: options.bytes_max,
        free_bytes_min: 0,
        zstd: options.zstd,
        queue_bytes_max: options.queue_bytes_max,
        // For scrubs and figures, which read many blocks.
        reads_max: 2,
    };
    Ok(Arc::new(IndexedStore::start(Map::default(), MemoryIndex::default(), &limits)?))
}

/// Values by key. Pins exist only in the index.
#[derive(Debug, Default)]
struct Map {
    values: RwLock<HashMap<Key, Stored>>,
    pins: AtomicU64,
    scrub: Mutex<ScrubPosition>,
}

impl Map {
    /// The map stays consistent if a thread panics while it holds the lock.
    fn values(&self) -> RwLockReadGuard<'_, HashMap<Key, Stored>> {
        self.values.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn values_mut(&self) -> RwLockWriteGuard<'_, HashMap<Key, Stored>> {
        self.values.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value in a buffer of its own, since a block may be a slice of a larger message.
fn own(value: &NewValue) -> Result<Stored, StoreError> {
    Stored::read(Bytes::from(value.pieces.concat())).map_err(StoreError::corrupt)
}

impl Backing for Map {
    /// Decompressing a block takes a millisecond at most.
    const READS_BLOCK: bool = false;

    fn cost(&self, _: &[u8], value_bytes: usize) -> u64 {
        value_bytes as u64 + OVERHEAD_BYTES
    }

    /// Only the store's own budget applies.
    fn space(&self) -> Result<Space, StoreError> {
        Ok(Space { free_bytes: u64::MAX, free_inodes: None, total_bytes: u64::MAX })
    }

    fn shortage_error(&self, space: Space, needed: u64) -> StoreError {
        StoreError::Full { free: space.free_bytes, needed }
    }

    fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn write(&self, values: &[NewValue]) -> Vec<Result<(), StoreError>> {
        let owned: Vec<_> = values.iter().map(own).collect();
        let mut stored = self.values_mut();
        let insert = |(value, owned): (&NewValue, Result<Stored, StoreError>)| {
            stored.insert(Arc::clone(&value.key), owned?);
            Ok(())
        };
        values.iter().zip(owned).map(insert).collect()
    }

    fn read(&self, key: &[u8]) -> Result<Option<Stored>, StoreError> {
        Ok(self.values().get(key).cloned())
    }

    fn shape(&self, key: &[u8]) -> Result<Option<Shape>, StoreError> {
        Ok(self.values().get(key).map(Stored::shape))
    }

    fn delete(&self, key: &[u8]) -> Result<(), StoreError> {
        self.values_mut().remove(key);
        Ok(())
    }

    fn allocate_pin_id(&self) -> Result<PinId, StoreError> {
        Ok(PinId(self.pins.fetch_add(1, Ordering::Relaxed) + 1))
    }

    fn write_pin(&self, _: &Cid, _: &PinRecord) -> Result<(), StoreError> {
        Ok(())
    }

    fn add_members(&self, _: PinId, _: &[(Key, u64)]) -> Result<(), StoreError> {
        Ok(())
    }

    fn remove_pin(&self, _: PinId) -> Result<(), StoreError> {
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn scrub_position(&self) -> ScrubPosition {
        self.scrub.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn save_scrub_position(&self, position: &ScrubPosition) {
        *self.scrub.lock().unwrap_or_else(PoisonError::into_inner) = position.clone();
    }
}
