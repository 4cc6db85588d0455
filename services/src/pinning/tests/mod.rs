//! The service on real stores and registers, with an upstream that is told what it has.
//!
//! | module | shows |
//! |---|---|
//! | [`lives`] | what becomes of requests: fetched, shared, refused, tried again, given up |
//! | [`losing`] | pins that lose blocks, and what is withheld |
//! | [`restarts`] | what the next process finds, after an orderly end and without one |
//! | [`quotas`] | who may have how much |
//! | [`lists`] | filters, pages and times; how long 10,000 take |
//! | [`books`] | the index beside a plain account of the same requests |

mod books;
mod lists;
mod lives;
mod losing;
mod quotas;
mod restarts;
mod world;

use self::world::*;
use crate::pinning;
use crate::pinning::{Owner, Pins, PinsError, Request, Status, Wanted};
use bytes::Bytes;
use cache::Register;
use content::{Block, BlockKey, Cid, DenyList, Policy, SourceError, codec, hashes};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
