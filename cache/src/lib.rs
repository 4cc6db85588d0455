//! The local tiers: RAM cache, block store, singleflight and pins.
//!
//! Goals: a block in RAM is returned without waiting; concurrent requests for a missing block share one fetch; every
//! cache, queue and buffer has a byte budget; a pinned block is never evicted, and an acknowledged pin survives `kill
//! -9` and power loss.
//!
//! Non-goals: HTTP, peers and providers. The upstream is a [`content::BlockSource`] that the caller supplies.
//!
//! | module | concern |
//! |---|---|
//! | [`ram`] | [`Ram`]: the RAM cache, weighed in bytes |
//! | [`store`] | [`BlockStore`]: the interface of block stores |
//! | [`disk`] | [`Disk`]: RocksDB index, segment files, one writer thread, eviction by age, schema |
//! | [`flat`] | a store with one file for each block |
//! | [`memory`] | a store in memory |
//! | `memory_index`, `indexed_store` | an in-memory index, and a store that uses it |
//! | `folder` | creates directories durably |
//! | `space` | free space of a file system |
//! | `database` | a RocksDB that serves reads when there is no space to open it for writing |
//! | `lock` | exclusive lock on a store's directory |
//! | [`pins`] | recursive pins |
//! | [`metadata_store`] | metadata records beside the store |
//! | [`add`] | stores blocks whose roots become known last, and pins the roots |
//! | [`import`] | imports and pins CAR files |
//! | [`singleflight`] | singleflight: concurrent calls with the same key share one result |
//! | [`tiers`] | [`Tiers`]: policy, RAM, store, shared storage of a site and upstream combined |
//! | [`metrics`] | metrics of all of these |

#![allow(clippy::result_large_err, reason = "errors name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod add;
mod dag;
mod database;
pub mod disk;
mod error;
pub mod flat;
mod folder;
pub mod import;
mod indexed_store;
mod lock;
pub mod memory;
mod memory_index;
pub mod metadata_store;
pub mod metrics;
mod pin_journal;
pub mod pins;
mod queue;
pub mod ram;
mod reports;
pub mod singleflight;
mod space;
pub mod store;
mod store_pins;
pub mod tiers;

pub use crate::add::{AddError, Addition};
pub use crate::disk::{
    CheckReport, Disk, DiskOptions, Fault, Figures, Finding, IncompletePin, Inconsistencies, Offline, RebuildProgress,
    Rebuilt, Recompressed, Repaired, ScrubProgress, ScrubReport, StoreError,
};
pub use crate::import::{
    ImportError, ImportSummary, ReadCar, RootsIn, import_car, import_car_into, import_car_with, take_car,
};
pub use crate::metadata_store::{MetadataLog, MetadataStore, Salvage};
pub use crate::metrics::{TierFigures, TierMetrics, TiersFigures};
pub use crate::pins::{PinError, PinState, PinSummary};
pub use crate::ram::{Ram, RamPolicy};
pub use crate::reports::{MissingBlocks, raw_cid};
pub use crate::singleflight::Singleflight;
pub use crate::store::{BlockStore, DegradedReason, Evict, Evicted, Held, ScrubPass, Stats, StoreStats, withheld_by};
pub use crate::tiers::{Counted, Local, LookupObserver, SiteTier, Through, Tiers};

#[cfg(test)]
mod tests;
