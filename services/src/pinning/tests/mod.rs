//! Tests of the service with real stores, and an upstream with given blocks.
//!
//! | module | tests |
//! |---|---|
//! | [`lifecycle`] | requests: fetched, shared, rejected, retried, failed |
//! | [`block_loss`] | pins that lose blocks, and withheld blocks |
//! | [`restarts`] | restarts after a regular end, and after a crash |
//! | [`quotas`] | quotas |
//! | [`lists`] | filters, pages and times; the duration of listing 10,000 requests |
//! | [`model`] | the index compared with a simple model |
//! | [`shared`] | several services that append to one log |
//! | [`late_store`] | their block store, with faults |
//! | [`repeated_imports`] | imports that run again at another of these services |
//! | [`log_failures`] | a single gateway whose log fails |
//! | [`claims`] | several services that share the work |

mod block_loss;
mod claims;
mod late_store;
mod lifecycle;
mod lists;
mod log_failures;
mod model;
mod quotas;
mod repeated_imports;
mod restarts;
mod shared;
mod world;

use self::world::*;
use crate::pinning;
use crate::pinning::{Owner, PinParameters, PinRequest, Pins, PinsError, Status};
use bytes::Bytes;
use cache::MetadataStore;
use content::{Block, BlockKey, Cid, DenyList, Policy, SourceError, codec, hashes};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
