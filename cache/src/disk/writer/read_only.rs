//! [`ReadOnlyWriter`]: the writer of a store whose index could not be opened for writing, because the disk is full.
//!
//! The store serves its blocks; writes fail with the reason. Before removals of pins and evictions, and once a second,
//! it tries to open the index: it releases the reserve, deletes cached segments and punches holes in pinned ones for
//! that. Then the normal writer takes over.

use super::super::schema::Kind;
use super::super::store::Store;
use super::super::{DiskOptions, StoreError};
use super::{Barrier, Change, Command, Writer};
use crate::pins::{MemberFailure, PinChanges, PinError};
use crate::queue::{PROBE_EVERY, Wait, next_command};
use crate::store::{DegradedReason, Stats};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;
use tokio::sync::Semaphore;
use tracing::{debug, error, info, warn};

/// The writer of a store.
pub(super) enum WriterState {
    Writable(Box<Writer>),
    ReadOnly(ReadOnlyWriter),
}

/// See the module documentation.
pub(super) struct ReadOnlyWriter {
    store: Arc<Store>,
    stats: Arc<Stats>,
    changes: Arc<PinChanges>,
    options: DiskOptions,
    room: Option<Arc<Semaphore>>,
    /// The error of the last attempt to open the index.
    full_error: StoreError,
    /// Segments in which holes were punched.
    punched: BTreeSet<u32>,
}

impl Drop for ReadOnlyWriter {
    fn drop(&mut self) {
        self.room.iter().for_each(|room| room.close());
    }
}

impl WriterState {
    pub(super) fn new(
        store: Arc<Store>,
        stats: Arc<Stats>,
        changes: Arc<PinChanges>,
        options: &DiskOptions,
        room: Arc<Semaphore>,
    ) -> Result<Self, StoreError> {
        if store.is_writable() {
            return Ok(Self::Writable(Box::new(Writer::new(store, stats, changes, options, room)?)));
        }
        let full_error = StoreError::Full { free: 0, needed: 0 };
        let (options, punched) = (options.clone(), BTreeSet::new());
        let mut writer = ReadOnlyWriter { store, stats, changes, options, room: Some(room), full_error, punched };
        if let Some(writable) = writer.try_open() {
            return Ok(Self::Writable(Box::new(writable)));
        }
        warn!(error = %writer.full_error, "the disk is full: the store is read-only until there is space");
        Ok(Self::ReadOnly(writer))
    }

    pub(super) fn run(self, commands: &Receiver<Command>) {
        match self {
            Self::Writable(writer) => writer.run(commands),
            Self::ReadOnly(writer) => writer.run(commands),
        }
    }
}

impl ReadOnlyWriter {
    fn run(mut self, commands: &Receiver<Command>) {
        let mut probe_at = Instant::now() + PROBE_EVERY;
        while let Some(command) = next_command(commands, Wait::For(PROBE_EVERY)) {
            // Also without such commands: with traffic, the queue is never empty.
            let is_due = Instant::now() >= probe_at;
            if is_due {
                probe_at = Instant::now() + PROBE_EVERY;
            }
            let reclaims = command.as_ref().is_none_or(Command::reclaims_space);
            if (reclaims || is_due)
                && let Some(writer) = self.try_open()
            {
                info!("there is space again: the store is writable");
                return writer.run_from(command, commands);
            }
            // The writer could not be started, and the queue is closed.
            if self.room.is_none() {
                return;
            }
            match command {
                Some(Command::Barrier(Barrier::Close { reply })) => {
                    drop(self);
                    _ = reply.send(Ok(()));
                    return;
                }
                Some(command) => self.reject(command),
                None => {}
            }
        }
    }

    /// Makes space and opens the index for writing, if there is enough.
    fn try_open(&mut self) -> Option<Writer> {
        let opened = self.make_space().and_then(|()| self.store.make_writable());
        let room = match opened {
            Ok(()) => self.room.take()?,
            Err(error) => {
                debug!(%error, "the store cannot be opened for writing yet");
                self.stats.set_trouble(Some(DegradedReason::of(&error)));
                self.full_error = error;
                return None;
            }
        };
        let writer = Writer::new(
            Arc::clone(&self.store),
            Arc::clone(&self.stats),
            Arc::clone(&self.changes),
            &self.options,
            room,
        );
        writer
            .inspect_err(|error| {
                error!(%error, "the store cannot be opened for writing: check the disk, and restart the gateway");
                self.stats.set_trouble(Some(DegradedReason::Broken));
            })
            .ok()
    }

    fn make_space(&mut self) -> Result<(), StoreError> {
        let store = Arc::clone(&self.store);
        let has_enough = || store.files.space().is_ok_and(|space| store.reserve.is_enough_to_open(space));
        if has_enough() {
            return Ok(());
        }
        store.reserve.release();
        let segments: BTreeMap<u32, _> = store.segments()?.into_iter().collect();
        if !has_enough() {
            for (segment, record) in segments.iter().filter(|(_, record)| record.kind == Kind::Pinned) {
                // A read-only index adds no dead values.
                if record.live == record.written || self.punched.contains(segment) {
                    continue;
                }
                match store.punch_dead(*segment, *record) {
                    Ok(_) => _ = self.punched.insert(*segment),
                    Err(error) => debug!(segment, %error, "holes could not be punched in a segment"),
                }
            }
        }
        while !has_enough() && store.drop_oldest_cached_file(&segments, None) {}
        let space = store.files.space()?;
        let needed = store.reserve.bytes_to_open();
        if store.reserve.is_enough_to_open(space) { Ok(()) } else { Err(store.files.shortage_error(space, needed)) }
    }

    /// Replies with the error.
    fn reject(&self, command: Command) {
        match command {
            Command::Change(change) => self.reject_change(change),
            Command::Barrier(barrier) => self.reject_barrier(barrier),
        }
    }

    fn reject_change(&self, change: Change) {
        let error = self.full_error.clone();
        match change {
            Change::Cache { .. } => _ = self.stats.dropped_writes.inc(),
            Change::Member { attempt, .. } | Change::Slice { attempt, .. } | Change::StoredMember { attempt, .. } => {
                attempt.fail(MemberFailure::Store(error))
            }
            Change::Begin { reply, .. } | Change::BeginTemporary { reply } => _ = reply.send(Err(error)),
            Change::Finish { reply, .. } => _ = reply.send(Err(PinError::Store(error))),
            // Advisory.
            Change::Replace { .. } | Change::PutMeta { .. } => {}
        }
    }

    fn reject_barrier(&self, barrier: Barrier) {
        let error = self.full_error.clone();
        match barrier {
            Barrier::Remove { reply, .. } | Barrier::Shrink { reply, .. } => _ = reply.send(Err(error)),
            Barrier::Evict { reply, .. } => _ = reply.send(Err(error)),
            Barrier::Compact { reply } | Barrier::MarkPartial { reply, .. } => _ = reply.send(Err(error)),
            // There are no unwritten changes.
            Barrier::Written { reply } => _ = reply.send(()),
            Barrier::Flush { reply } | Barrier::Close { reply } => _ = reply.send(Ok(())),
            // Corruption is detected again. A temporary pin is released when the store is reopened.
            Barrier::DropCorrupt { .. } | Barrier::Release { .. } => {}
        }
    }
}
