//! The way to the writer: what it can be asked for, and a queue that is bounded in bytes.

use super::super::schema::{PinId, Place};
use super::super::store::Store;
use super::super::{DiskOptions, Stats, StoreError};
use super::Writer;
use crate::pins::{PinError, PinSummary};
use crate::stored::Stored;
use content::{Block, BlockKey, Cid};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// What a command takes in the queue beside its block, in bytes.
const COMMAND_BYTES: usize = 512;

/// Room that a command holds in the queue until its group is written.
pub(crate) type Room = OwnedSemaphorePermit;

pub(super) type Reply<T> = oneshot::Sender<T>;

pub(crate) enum Command {
    /// Keep a block while there is room.
    Cache { block: Block, room: Room },
    /// Forget a block whose value could not be read.
    Forget { key: BlockKey, room: Room },
    /// Put another value in the place of a pinned one, if that is still there.
    Replace { key: BlockKey, place: Place, value: Stored, room: Room },
    /// Write a row of `meta`, with no hurry.
    Remember { key: &'static [u8], record: Vec<u8> },
    /// Collect every pinned segment that is worth it, and answer as to `Flush`.
    Compact { reply: Reply<Result<(), StoreError>> },
    /// Begin a pin, or go on with the one that this root has.
    Begin { root: Cid, name: Option<String>, reply: Reply<Result<PinId, StoreError>> },
    /// Begin a scaffold: a pin without a root or record that protects blocks until it is released or the store reopened.
    Scaffold { reply: Reply<Result<PinId, StoreError>> },
    /// Keep a block as a member of a pin.
    Member { block: Block, attempt: Arc<Attempt>, room: Room },
    /// The same for a block without links that is here and was not read for it.
    Held { cid: Cid, attempt: Arc<Attempt>, room: Room },
    /// Mark a pin complete, if all of its members were written.
    Finish { attempt: Arc<Attempt>, reply: Reply<Result<PinSummary, PinError>> },
    /// Take a pin away; its members are let go later.
    Remove { root: Cid, reply: Reply<Result<bool, StoreError>> },
    /// Let go of a scaffold.
    Release { pin: PinId },
    /// Answer when everything before is on the disk.
    Flush { reply: Reply<Result<(), StoreError>> },
    /// The same, and stop.
    Close { reply: Reply<Result<(), StoreError>> },
}

/// One effort to pin something: its members go to the writer without waiting for each, so the first failure is kept here.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) pin: PinId,
    /// `None` for a scaffold.
    pub(crate) root: Option<Cid>,
    failure: OnceLock<Failure>,
}

#[derive(Debug, Clone)]
pub(super) enum Failure {
    Store(StoreError),
    Removed,
    Missing(Cid),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Attempt {
    pub(crate) fn new(pin: PinId, root: Option<Cid>) -> Arc<Self> {
        Arc::new(Self { pin, root, failure: OnceLock::new() })
    }

    pub(super) fn fail(&self, failure: Failure) {
        _ = self.failure.set(failure);
    }

    /// The first thing that went wrong, if anything did.
    pub(crate) fn check(&self) -> Result<(), PinError> {
        match (self.failure.get(), self.root) {
            (None, _) => Ok(()),
            (Some(Failure::Store(error)), _) => Err(PinError::Store(error.clone())),
            (Some(Failure::Missing(cid)), _) => Err(PinError::missing(*cid)),
            (Some(Failure::Removed), Some(root)) => Err(PinError::Removed { root }),
            (Some(Failure::Removed), None) => Err(PinError::Store(StoreError::Closed)),
        }
    }
}

/// The way to the writer: bounded in bytes. Dropping it ends the writer after what is queued, and waits for that.
#[derive(Debug)]
pub(crate) struct Queue {
    sender: Option<Sender<Command>>,
    room: Arc<Semaphore>,
    bytes_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    pub(crate) fn start(store: Arc<Store>, stats: Arc<Stats>, options: &DiskOptions) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        // The largest block must fit, and tokio counts permits of one caller in 32 bits.
        let bytes_max = options.queue_bytes_max.clamp(content::MAX_BLOCK_BYTES + COMMAND_BYTES, 1 << 30);
        let room = Arc::new(Semaphore::new(bytes_max));
        let writer = Writer::new(store, stats, options, Arc::clone(&room))?;
        let thread = std::thread::Builder::new().name("disk-writer".to_owned());
        let thread = thread.spawn(move || writer.run(&receiver)).map_err(StoreError::io)?;
        Ok(Self { sender: Some(sender), room, bytes_max, thread: Some(thread) })
    }

    /// Waits until a block of this size has room.
    pub(crate) async fn room(&self, data_bytes: usize) -> Result<Room, StoreError> {
        let room = Arc::clone(&self.room).acquire_many_owned(self.permits(data_bytes));
        room.await.map_err(|_| StoreError::Closed)
    }

    /// Room for a block of this size, if there is some now.
    pub(crate) fn try_room(&self, data_bytes: usize) -> Option<Room> {
        Arc::clone(&self.room).try_acquire_many_owned(self.permits(data_bytes)).ok()
    }

    fn permits(&self, data_bytes: usize) -> u32 {
        u32::try_from((data_bytes + COMMAND_BYTES).min(self.bytes_max)).unwrap_or(u32::MAX)
    }

    pub(crate) fn send(&self, command: Command) -> Result<(), StoreError> {
        let sender = self.sender.as_ref().ok_or(StoreError::Closed)?;
        sender.send(command).map_err(|_| StoreError::Closed)
    }

    /// Sends a command and waits for its answer.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.map_err(|_| StoreError::Closed)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has said so already.
            _ = thread.join();
        }
    }
}
