//! The contract of [`BlockStore`], tested with every store.
//!
//! | module | concern |
//! |---|---|
//! | [`blocks`] | storing and reading; corruption; opening and closing |
//! | [`budget`] | eviction order and budgets |
//! | [`pins`] | pins |
//! | [`losses`] | pins that lose blocks |
//! | [`upkeep`] | the scrub |
//! | [`histories`] | random histories, compared with a model |
//!
//! Tests of a single store: [`super::disk`], [`super::flat`], [`super::memory`].

mod blocks;
mod budget;
mod histories;
mod losses;
mod pins;
mod upkeep;

use super::audit::audit_lacking;
use crate::disk::schema::ROW_OVERHEAD_BYTES;
use crate::flat::{self, FlatOptions};
use crate::memory::{self, MemoryOptions};
use crate::{BlockStore, Disk, DiskOptions, StoreError};
use content::{Block, SourceError};
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Runs tests with a [`Home`] of every store.
macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {
        mod rocksdb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() {
                super::$test($crate::tests::suite::Home::new($crate::tests::suite::Kind::Rocksdb)).await;
            })*
        }

        mod flat {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() {
                super::$test($crate::tests::suite::Home::new($crate::tests::suite::Kind::Flat)).await;
            })*
        }

        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $test() {
                super::$test($crate::tests::suite::Home::new($crate::tests::suite::Kind::Memory)).await;
            })*
        }
    };
}
use on_every_store;

/// The kinds of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Rocksdb,
    Flat,
    Memory,
}

/// Options of a store.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) cache_bytes_max: u64,
    pub(super) free_bytes_min: u64,
    pub(super) queue_bytes_max: usize,
    /// The maximum size of a segment, in a store with segments.
    pub(super) segment_bytes_max: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            cache_bytes_max: 1 << 30,
            free_bytes_min: 1 << 20,
            queue_bytes_max: 16 << 20,
            segment_bytes_max: 256 << 20,
        }
    }
}

/// A store's directory and kind.
pub(super) struct Home {
    pub(super) kind: Kind,
    pub(super) dir: TempDir,
}

/// A store of any kind.
pub(super) struct Opened {
    pub(super) store: Arc<dyn BlockStore>,
    disk: Option<Disk>,
}

impl Deref for Opened {
    type Target = dyn BlockStore;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

impl Home {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, dir: tempfile::tempdir().expect("a directory") }
    }

    /// Opens the store with a budget for cached blocks.
    pub(super) async fn open_for(&self, cache_bytes_max: u64) -> Opened {
        self.open(Setup { cache_bytes_max, ..Setup::default() }).await
    }

    pub(super) async fn open(&self, setup: Setup) -> Opened {
        self.try_open(setup).expect("opens")
    }

    pub(super) fn try_open(&self, setup: Setup) -> Result<Opened, StoreError> {
        open(self.kind, self.dir.path(), setup)
    }

    /// Whether the store is durable.
    pub(super) fn lasts(&self) -> bool {
        self.kind != Kind::Memory
    }

    /// The size in the store of an incompressible block.
    pub(super) fn cost(&self, block_bytes: u64) -> u64 {
        let record = 10 + 34 + 5 + block_bytes;
        match self.kind {
            Kind::Rocksdb => record + ROW_OVERHEAD_BYTES,
            Kind::Flat => record.next_multiple_of(4096) + 512,
            Kind::Memory => 5 + block_bytes + 512,
        }
    }

    /// Flips one bit of an incompressible block's stored value.
    pub(super) fn damage(&self, block: &Block) {
        let sample = &block.data()[..block.data().len().min(64)];
        let mut files = Vec::new();
        collect(self.dir.path(), &mut files);
        for path in files {
            let mut bytes = fs::read(&path).expect("reads");
            if let Some(at) = bytes.windows(sample.len()).position(|window| window == sample) {
                bytes[at + block.data().len() / 2] ^= 1;
                fs::write(&path, bytes).expect("writes");
                return;
            }
        }
        panic!("the block is in no file");
    }
}

/// Opens a store.
pub(super) fn open(kind: Kind, dir: &Path, setup: Setup) -> Result<Opened, StoreError> {
    let Setup { cache_bytes_max, free_bytes_min, queue_bytes_max, segment_bytes_max } = setup;
    let (store, disk): (Arc<dyn BlockStore>, _) = match kind {
        Kind::Rocksdb => {
            let options = DiskOptions {
                cache_bytes_max,
                free_bytes_min,
                queue_bytes_max,
                segment_bytes_max,
                ..DiskOptions::default()
            };
            let disk = Disk::open(dir, options)?;
            (disk.handle(), Some(disk))
        }
        Kind::Flat => {
            let options = FlatOptions { cache_bytes_max, free_bytes_min, queue_bytes_max, ..FlatOptions::default() };
            (flat::open(dir, &options)?, None)
        }
        Kind::Memory => {
            let options = MemoryOptions { cache_bytes_max, queue_bytes_max, ..MemoryOptions::default() };
            (memory::open(&options)?, None)
        }
    };
    Ok(Opened { store, disk })
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("lists") {
        let path = entry.expect("lists").path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}

impl Opened {
    /// Waits until the store is idle, and checks its internal consistency.
    pub(super) async fn settle(&self) {
        self.settle_lacking(0).await;
    }

    /// The same for a store whose pins have `lacking` missing blocks.
    pub(super) async fn settle_lacking(&self, lacking: usize) {
        self.flush().await.expect("flushes");
        self.disk.iter().for_each(|disk| audit_lacking(disk, lacking));
    }

    /// Caches blocks and waits until they are written.
    pub(super) async fn cache(&self, blocks: &[Block]) {
        for block in blocks {
            self.put_cached(block.clone()).await;
        }
        self.flush().await.expect("flushes");
    }

    /// Whether a block is stored; checks its bytes.
    pub(super) async fn holds(&self, block: &Block) -> bool {
        match self.get(block.cid()).await {
            Ok(got) => {
                assert_eq!(got.data(), block.data());
                true
            }
            Err(SourceError::NotFound { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) async fn holds_all(&self, blocks: &[Block]) -> bool {
        for block in blocks {
            if !self.holds(block).await {
                return false;
            }
        }
        true
    }

    /// Closes the store, and waits until this process has released it.
    pub(super) async fn shut(self) {
        self.close().await.expect("closes");
        let released = self.released();
        drop(self);
        tokio::time::timeout(Duration::from_secs(60), released).await.expect("the store is released soon");
    }
}
