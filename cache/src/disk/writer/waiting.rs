//! [`Waiting`]: the writer of a store whose index could not be opened for writing, because the disk has no space for that.
//!
//! The store serves what it holds. What is to be stored is refused and says why. Before pins are removed or blocks evicted, and
//! once a second, it is tried to open the index: the reserve, cached segments and the dead parts of pinned ones are given up
//! for that. Then the store goes on as if it had been open all the time.

use super::super::schema::Kind;
use super::super::store::Store;
use super::super::{DiskOptions, StoreError};
use super::{Command, Writer};
use crate::pins::{MemberFailure, PinChanges, PinError};
use crate::queue::{PROBE_EVERY, Wait, next_command};
use crate::store::{Stats, Trouble};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;
use tokio::sync::Semaphore;
use tracing::{debug, error, info, warn};

/// What a store is written by.
pub(super) enum Start {
    Now(Box<Writer>),
    Later(Waiting),
}

/// See the module.
pub(super) struct Waiting {
    store: Arc<Store>,
    stats: Arc<Stats>,
    changes: Arc<PinChanges>,
    options: DiskOptions,
    room: Option<Arc<Semaphore>>,
    /// What is missing.
    refusal: StoreError,
    /// Segments whose dead parts were given back.
    punched: BTreeSet<u32>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.room.iter().for_each(|room| room.close());
    }
}

impl Start {
    pub(super) fn new(
        store: Arc<Store>,
        stats: Arc<Stats>,
        changes: Arc<PinChanges>,
        options: &DiskOptions,
        room: Arc<Semaphore>,
    ) -> Result<Self, StoreError> {
        if store.is_writable() {
            return Ok(Self::Now(Box::new(Writer::new(store, stats, changes, options, room)?)));
        }
        let refusal = StoreError::Full { free: 0, needed: 0 };
        let (options, punched) = (options.clone(), BTreeSet::new());
        let mut waiting = Waiting { store, stats, changes, options, room: Some(room), refusal, punched };
        if let Some(writer) = waiting.try_open() {
            return Ok(Self::Now(Box::new(writer)));
        }
        warn!(error = %waiting.refusal, "the store is open for reading only until there is space");
        Ok(Self::Later(waiting))
    }

    pub(super) fn run(self, commands: &Receiver<Command>) {
        match self {
            Self::Now(writer) => writer.run(commands),
            Self::Later(waiting) => waiting.run(commands),
        }
    }
}

impl Waiting {
    fn run(mut self, commands: &Receiver<Command>) {
        let mut probe_at = Instant::now() + PROBE_EVERY;
        while let Some(command) = next_command(commands, Wait::For(PROBE_EVERY)) {
            // A gateway with traffic has something to cache all the time.
            let is_due = Instant::now() >= probe_at;
            if is_due {
                probe_at = Instant::now() + PROBE_EVERY;
            }
            let gives_back = matches!(
                command,
                None | Some(
                    Command::Remove { .. } | Command::Evict { .. } | Command::Shrink { .. } | Command::Compact { .. }
                )
            );
            if (gives_back || is_due)
                && let Some(writer) = self.try_open()
            {
                info!("there is space again: the store is open for writing");
                return writer.run_from(command, commands);
            }
            // It was opened in vain, and closed for good.
            if self.room.is_none() {
                return;
            }
            match command {
                Some(Command::Close { reply }) => {
                    drop(self);
                    _ = reply.send(Ok(()));
                    return;
                }
                Some(command) => self.refuse(command),
                None => {}
            }
        }
    }

    /// Gives up what can be done without and opens the index for writing, if that is enough.
    fn try_open(&mut self) -> Option<Writer> {
        let opened = self.make_space().and_then(|()| self.store.make_writable());
        let room = match opened {
            Ok(()) => self.room.take()?,
            Err(error) => {
                debug!(%error, "the store cannot be opened for writing yet");
                self.stats.set_trouble(Some(Trouble::of(&error)));
                self.refusal = error;
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
                error!(%error, "the store cannot be written");
                self.stats.set_trouble(Some(Trouble::Broken));
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
                // Nothing of it dies while the index is not written.
                if record.live == record.written || self.punched.contains(segment) {
                    continue;
                }
                match store.punch_dead(*segment, *record) {
                    Ok(_) => _ = self.punched.insert(*segment),
                    Err(error) => debug!(segment, %error, "the dead part of a segment could not be given back"),
                }
            }
        }
        while !has_enough() && store.give_up_cached(&segments, None) {}
        let space = store.files.space()?;
        let needed = store.reserve.bytes_to_open();
        if store.reserve.is_enough_to_open(space) { Ok(()) } else { Err(store.files.shortage_error(space, needed)) }
    }

    /// Answers that there is no space.
    fn refuse(&self, command: Command) {
        let error = || self.refusal.clone();
        match command {
            Command::Cache { .. } => _ = self.stats.dropped_writes.inc(),
            Command::Member { attempt, .. } | Command::Held { attempt, .. } => attempt.fail(MemberFailure::Store(error())),
            Command::Begin { reply, .. } => _ = reply.send(Err(error())),
            Command::BeginTemporary { reply } => _ = reply.send(Err(error())),
            Command::Finish { reply, .. } => _ = reply.send(Err(PinError::Store(error()))),
            Command::Remove { reply, .. } => _ = reply.send(Err(error())),
            Command::Evict { reply, .. } => _ = reply.send(Err(error())),
            Command::Shrink { reply, .. } => _ = reply.send(Err(error())),
            Command::Compact { reply } => _ = reply.send(Err(error())),
            Command::Lacking { reply, .. } => _ = reply.send(Err(error())),
            // Nothing was taken that would have to be written.
            Command::Written { reply } => _ = reply.send(()),
            Command::Flush { reply } => _ = reply.send(Ok(())),
            Command::Close { reply } => _ = reply.send(Ok(())),
            // Damage is found again, and what is advice is advice.
            Command::Forget { .. } | Command::Replace { .. } | Command::Remember { .. } | Command::Release { .. } => {}
        }
    }
}
