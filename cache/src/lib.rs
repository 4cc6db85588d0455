//! The local tiers: RAM, disk, single flight and pins.
//!
//! Goals: a block that is at hand is answered without waiting; a block that is not is fetched once however many ask;
//! every cache, queue and buffer has a byte budget; a pinned block is never evicted, and an acknowledged pin survives
//! `kill -9` and power loss.
//!
//! Non-goals: HTTP, peers and providers. What lies behind the disk is a [`content::BlockSource`] that the caller hands in.
//!
//! | module | concern |
//! |---|---|
//! | [`ram`] | [`Ram`]: the hot set, weighed in bytes |
//! | [`store`] | [`BlockStore`]: what the store below owes everybody above |
//! | [`disk`] | [`Disk`]: RocksDB, one writer thread, eviction by age, schema |
//! | [`flat`] | a store of one file for each block |
//! | [`memory`] | a store in memory |
//! | `ledger`, `ledger_store` | a store's index in memory, and a store over it |
//! | `folder` | folders whose names outlive power loss |
//! | `space` | what a file system has left |
//! | `database` | a RocksDB that serves reads where there is no space to open it for writing |
//! | `lock` | a store's directory belongs to one owner at a time |
//! | [`stored`] | how a block lies on disk, compressed where that pays, and goes from there to a browser |
//! | [`pins`] | recursive pins on the disk |
//! | [`register`] | small records beside the store |
//! | [`add`] | blocks whose roots are known last, into the store and pinned |
//! | [`import`] | CAR files into the store, pinned |
//! | [`flight`] | one piece of work for one key, however many wait: a block's fetch, and in the gateway a walk or a listing |
//! | [`tiers`] | [`Tiers`]: policy, RAM, disk and an upstream put together |
//! | [`metrics`] | what a scrape says of all of these |

#![allow(clippy::result_large_err, reason = "errors name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod add;
mod dag;
mod database;
pub mod disk;
mod error;
pub mod flat;
pub mod flight;
mod folder;
pub mod import;
mod ledger;
mod ledger_store;
mod lock;
pub mod memory;
pub mod metrics;
mod pin_journal;
pub mod pins;
mod queue;
pub mod ram;
pub mod register;
mod reports;
mod space;
pub mod store;
mod store_pins;
pub mod stored;
pub mod tiers;

pub use crate::add::{AddError, Addition};
pub use crate::disk::{
    CheckReport, Disagreements, Disk, DiskOptions, Fault, Figures, Finding, LackingPin, Offline, RebuildProgress,
    Rebuilt, Recompressed, Repaired, ScrubProgress, ScrubReport, StoreError,
};
pub use crate::flight::Flights;
pub use crate::import::{
    ImportError, ImportSummary, RootsIn, TakenCar, import_car, import_car_into, import_car_with, take_car,
};
pub use crate::metrics::{TierFigures, TierMetrics, TiersFigures};
pub use crate::pins::{PinError, PinState, PinSummary};
pub use crate::ram::{Ram, RamPolicy};
pub use crate::register::{Register, Salvage};
pub use crate::store::{BlockStore, Evict, Evicted, Held, ScrubPass, Stats, StoreStats, Trouble};
pub use crate::tiers::{Local, Through, Tiers};

#[cfg(test)]
mod tests;
