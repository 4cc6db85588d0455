//! [`Queue`]: the way to the one thread that changes a store, bounded in bytes.
//!
//! Goals: who brings a block waits for room instead of filling memory; what has room is written, also if everybody has let go
//! of the store since.

use crate::disk::StoreError;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// What a command takes in the queue beside its block, in bytes.
pub(crate) const COMMAND_BYTES: usize = 512;

/// Room that a command holds in the queue until it has been dealt with.
pub(crate) type Room = OwnedSemaphorePermit;

/// The way back of an answer.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// Commands of type `C` on their way. Dropping it ends the writer after what is queued, and waits for that.
pub(crate) struct Queue<C> {
    sender: Option<Sender<C>>,
    room: Arc<Semaphore>,
    bytes_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl<C> fmt::Debug for Queue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("room", &self.room).field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl<C: Send + 'static> Queue<C> {
    /// Makes a writer, which has to close the room that it is given when it ends, and runs it in a thread of its own.
    pub(crate) fn start<W: Send + 'static>(
        bytes_max: usize,
        writer: impl FnOnce(Arc<Semaphore>) -> Result<W, StoreError>,
        run: impl FnOnce(W, &Receiver<C>) + Send + 'static,
    ) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        // The largest block must fit, and tokio counts permits of one caller in 32 bits.
        let bytes_max = bytes_max.clamp(content::MAX_BLOCK_BYTES + COMMAND_BYTES, 1 << 30);
        let room = Arc::new(Semaphore::new(bytes_max));
        let writer = writer(Arc::clone(&room))?;
        let thread = std::thread::Builder::new().name("disk-writer".to_owned());
        let thread = thread.spawn(move || run(writer, &receiver)).map_err(StoreError::io)?;
        Ok(Self { sender: Some(sender), room, bytes_max, thread: Some(thread) })
    }
}

impl<C> Queue<C> {
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

    pub(crate) fn send(&self, command: C) -> Result<(), StoreError> {
        let sender = self.sender.as_ref().ok_or(StoreError::Closed)?;
        sender.send(command).map_err(|_| StoreError::Closed)
    }

    /// Sends a command and waits for its answer.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> C) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.map_err(|_| StoreError::Closed)
    }
}

/// A writer's next command, waited for if the writer `is_tidy`; `Some(None)` when there is only background work; `None` when
/// all handles are gone.
pub(crate) fn next_command<C>(commands: &Receiver<C>, is_tidy: bool) -> Option<Option<C>> {
    if is_tidy {
        return commands.recv().ok().map(Some);
    }
    match commands.try_recv() {
        Ok(command) => Some(Some(command)),
        Err(TryRecvError::Empty) => Some(None),
        // What is left to do is done when the store is opened again.
        Err(TryRecvError::Disconnected) => None,
    }
}

impl<C> Drop for Queue<C> {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has said so already.
            _ = thread.join();
        }
    }
}
