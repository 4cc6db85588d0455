//! [`Queue`]: the command queue of a store's writer thread, bounded in bytes.
//!
//! Goals: backpressure: callers wait for room in the queue instead of filling memory; what is queued is written even if
//! all handles of the store are dropped.

use crate::error::StoreError;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

/// The size of a command in the queue without its block, in bytes.
pub(crate) const COMMAND_BYTES: usize = 512;

/// A command's permit: room in the queue until the command is done.
pub(crate) type Room = OwnedSemaphorePermit;

/// The channel for a command's reply.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// A queue of commands of type `C`. Dropping it ends the writer after the queued commands, and waits for it.
pub(crate) struct Queue<C> {
    sender: Option<Sender<C>>,
    room: Arc<Semaphore>,
    bytes_max: usize,
    thread: Option<JoinHandle<()>>,
    /// Closed when the writer thread ends.
    ended: watch::Receiver<()>,
}

impl<C> fmt::Debug for Queue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("room", &self.room).field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl<C: Send + 'static> Queue<C> {
    /// Creates a writer and runs it in a thread. The writer must close the semaphore it is given when it ends.
    pub(crate) fn start<W: Send + 'static>(
        bytes_max: usize,
        writer: impl FnOnce(Arc<Semaphore>) -> Result<W, StoreError>,
        run: impl FnOnce(W, &Receiver<C>) + Send + 'static,
    ) -> Result<Self, StoreError> {
        let (sender, receiver) = channel();
        // The largest block must fit, and tokio's permits are counted in 32 bits.
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
    /// Waits for room for a block of this size.
    pub(crate) async fn room(&self, data_bytes: usize) -> Result<Room, StoreError> {
        let room = Arc::clone(&self.room).acquire_many_owned(self.permits(data_bytes));
        room.await.map_err(|_| StoreError::Closed)
    }

    /// Room for a block of this size, if available now.
    pub(crate) fn try_room(&self, data_bytes: usize) -> Option<Room> {
        Arc::clone(&self.room).try_acquire_many_owned(self.permits(data_bytes)).ok()
    }

    fn permits(&self, data_bytes: usize) -> u32 {
        u32::try_from((data_bytes + COMMAND_BYTES).min(self.bytes_max)).unwrap_or(u32::MAX)
    }

    pub(crate) fn send(&self, command: impl Into<C>) -> Result<(), StoreError> {
        let sender = self.sender.as_ref().ok_or(StoreError::Closed)?;
        sender.send(command.into()).map_err(|_| StoreError::Closed)
    }

    /// Completes when the writer has ended: it was closed, or panicked.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<C> {
        let mut ended = self.ended.clone();
        async move {
            // Nothing is ever sent; the channel only closes.
            while ended.changed().await.is_ok() {}
        }
    }

    /// Sends a command and waits for its reply.
    pub(crate) async fn ask<T, I: Into<C>>(&self, command: impl FnOnce(Reply<T>) -> I) -> Result<T, StoreError> {
        let (reply, receiver) = oneshot::channel();
        self.send(command(reply))?;
        receiver.await.map_err(|_| StoreError::Closed)
    }
}

/// Interval at which a degraded store probes whether it can write again.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long a writer waits for its next command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Does not wait: there is background work.
    Never,
    /// Until the next probe of the disk.
    For(Duration),
    /// Until a command arrives.
    Forever,
}

/// A writer's next command; `Some(None)` when it is time for background work; `None` when all handles are dropped.
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
        // The remaining background work is done when the store is next opened.
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

impl<C> Drop for Queue<C> {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // The panic was logged already.
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
    async fn ended_completes_when_the_writer_returns_or_panics() {
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
