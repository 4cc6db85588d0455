//! [`Queue`]: the way to the one thread that changes a store, bounded in bytes.
//!
//! Goals: who brings a block waits for room instead of filling memory; what has room is written, also if everybody has let go
//! of the store since.

use crate::error::StoreError;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

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
    /// The thread holds the other end.
    ended: watch::Receiver<()>,
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
        let (running, ended) = watch::channel(());
        let work = move || {
            let _running = running;
            run(writer, &receiver);
        };
        let thread = thread.spawn(work).map_err(StoreError::io)?;
        Ok(Self { sender: Some(sender), room, bytes_max, thread: Some(thread), ended })
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

    /// Waits until the writer has ended: it was closed, or panicked.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<C> {
        let mut ended = self.ended.clone();
        async move {
            // Nothing is ever sent: the only news is that the other end is gone.
            while ended.changed().await.is_ok() {}
        }
    }

    /// Sends a command and waits for its answer.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> C) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply))?;
        answer.await.map_err(|_| StoreError::Closed)
    }
}

/// How often a store that cannot write looks whether it can again.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long a writer waits for its next command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: there is background work.
    Never,
    /// Until it is time to look at the disk again.
    For(Duration),
    /// As long as it takes.
    Forever,
}

/// A writer's next command; `Some(None)` when it is time for background work; `None` when all handles are gone.
pub(crate) fn next_command<C>(commands: &Receiver<C>, wait: Wait) -> Option<Option<C>> {
    let next = match wait {
        Wait::Forever => return commands.recv().ok().map(Some),
        Wait::For(time) => commands.recv_timeout(time),
        Wait::Never => commands.try_recv().map_err(|error| match error {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        }),
    };
    match next {
        Ok(command) => Some(Some(command)),
        Err(RecvTimeoutError::Timeout) => Some(None),
        // What is left to do is done when the store is opened again.
        Err(RecvTimeoutError::Disconnected) => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn start(run: impl FnOnce(Arc<Semaphore>, &Receiver<()>) + Send + 'static) -> Queue<()> {
        Queue::start(1 << 20, Ok, run).expect("threads can be started")
    }

    #[tokio::test]
    async fn the_end_of_a_writer_is_told_whatever_ended_it() {
        let works = |_: Arc<Semaphore>, commands: &Receiver<()>| while commands.recv().is_ok() {};
        let queue = start(works);
        let ended = queue.ended();
        assert!(queue.ended().now_or_never().is_none(), "it waits for commands");
        drop(queue);
        ended.await;

        let queue = start(|_, commands| {
            _ = commands.recv();
            panic!("a defect");
        });
        assert!(queue.ended().now_or_never().is_none());
        queue.send(()).expect("the writer waits");
        queue.ended().await;
        queue.ended().await;
    }
}
