//! Migrates a store from schema 1 to 2: moves values from RocksDB's blob files to segments.
//!
//! Each value is moved together with its index record, whose length differs between the schemas, so that an interrupted
//! migration continues where it stopped; the new schema version is written when everything has been moved. RocksDB
//! reclaims the space of moved values only then, so there must be room for a second copy of the pinned blocks; cached
//! blocks are deleted if space is short. Older releases do not open the store any more once the migration has begun.

use super::schema::{INDEX, INDEX_BYTES, Kind, META, take_u64};
use super::store::Store;
use super::writer::Writer;
use super::{DiskOptions, StoreError};
use crate::stored::Stored;
use bytes::Bytes;
use content::BlockKey;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tracing::{info, warn};

/// The column families that only schema 1 has.
pub(crate) const FAMILIES: [&str; 2] = [BLOCKS, FIFO];
const BLOCKS: &str = "blocks";
const FIFO: &str = "fifo";
const KEY_TOTALS: &[u8] = b"totals";

/// Blocks between two progress messages.
const PROGRESS_BLOCKS: u64 = 100_000;

/// Migrates the store and returns it.
pub(crate) fn run(store: Store, options: &DiskOptions) -> Result<Store, StoreError> {
    info!(
        "the store was written by an earlier release and is being migrated; the migration may be interrupted without \
         losing data"
    );
    let store = Arc::new(store);
    let blocks = Writer::new(Arc::clone(&store), Arc::default(), Arc::default(), options, Arc::new(Semaphore::new(0)))?
        .migrate()?;
    let mut store = Arc::into_inner(store).ok_or(StoreError::Closed)?;
    store.write_schema()?;
    store.drop_legacy()?;
    info!(blocks, "the store was migrated");
    Ok(store)
}

impl Writer {
    fn migrate(mut self) -> Result<u64, StoreError> {
        let store = Arc::clone(&self.store);
        if let Some(totals) = store.pinned(META, KEY_TOTALS)? {
            self.counters.pin = self.counters.pin.max(next_pin(&totals).unwrap_or_default());
        }
        let begin = |writer: &Self| {
            let mut group = writer.begin();
            (group.values_first, group.into_reserve) = (true, true);
            group
        };
        let (mut group, mut blocks) = (begin(&self), 0);
        for row in store.rows_from(INDEX, &[])? {
            let (block, record) = row?;
            if record.len() == INDEX_BYTES {
                continue;
            }
            let key = BlockKey::from_bytes(&block).ok_or_else(|| StoreError::corrupt("a key is malformed"))?;
            group.index.insert(key, None);
            let kind = kind(&record);
            let is_kept = kind == Kind::Pinned || self.shortage_bytes() == 0;
            match store
                .pinned(BLOCKS, &block)?
                .filter(|_| is_kept)
                .and_then(|value| Stored::read(Bytes::copy_from_slice(&value)).ok())
            {
                Some(stored) => {
                    let (shape, value) = stored.into_pieces();
                    self.stage_value(&mut group, key, kind, shape, value)?;
                    group.batch.delete_cf(store.family(BLOCKS)?, &block);
                }
                None => {
                    if is_kept {
                        warn!(?key, "a block on disk is corrupt; it was deleted and is fetched again on demand");
                    }
                    group.batch.delete_cf(store.family(INDEX)?, &block);
                    group.batch.delete_cf(store.family(BLOCKS)?, &block);
                }
            }
            blocks += 1;
            if blocks % PROGRESS_BLOCKS == 0 {
                info!(blocks, "migrating the store");
            }
            if group.full() {
                self.write(&mut group)?;
                group = begin(&self);
            }
        }
        group.batch.delete_cf(store.family(META)?, KEY_TOTALS);
        self.write(&mut group)?;
        self.sync()?;
        Ok(blocks)
    }
}

/// The kind in a record of schema 1: the sizes of the block and of its value, then its position in the eviction order,
/// 0 if pinned.
fn kind(record: &[u8]) -> Kind {
    match record.get(8..).and_then(|mut rest| take_u64(&mut rest)) {
        Some(0) => Kind::Pinned,
        _ => Kind::Cached,
    }
}

/// The last of six numbers.
fn next_pin(totals: &[u8]) -> Option<u64> {
    take_u64(&mut totals.get(40..)?)
}
