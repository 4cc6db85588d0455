//! One direction of a connection: a bounded queue whose pieces are delivered, in order, when they are due.

use super::timer::Timer;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The sender's end.
pub struct Entrance {
    pieces: mpsc::UnboundedSender<Piece>,
    /// A permit is a byte: the queue is bounded by these.
    room: Arc<Semaphore>,
    capacity: usize,
}

/// The receiver's end.
pub struct Exit {
    pieces: mpsc::UnboundedReceiver<Piece>,
    timer: Timer,
}

/// Some bytes in flight. They count against the capacity until this is dropped.
pub struct Piece {
    pub data: Bytes,
    due: Instant,
    _room: OwnedSemaphorePermit,
}

/// A permit for a piece, acquired before it is known when the piece is due.
pub struct Room(OwnedSemaphorePermit);

/// A line with a capacity in bytes.
///
/// # Errors
/// When the process has no more file descriptors.
pub fn line(capacity: usize) -> io::Result<(Entrance, Exit)> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let capacity = capacity.min(Semaphore::MAX_PERMITS);
    let entrance = Entrance { pieces: sender, room: Arc::new(Semaphore::new(capacity)), capacity };
    Ok((entrance, Exit { pieces: receiver, timer: Timer::new()? }))
}

impl Entrance {
    /// Waits until there is capacity for this many bytes: backpressure. `None` when the line is gone.
    pub async fn room(&self, bytes: usize) -> Option<Room> {
        let wanted = Arc::clone(&self.room).acquire_many_owned(self.permits(bytes));
        tokio::select! {
            permit = wanted => permit.ok().map(Room),
            () = self.pieces.closed() => None,
        }
    }

    /// A permit at once, or none.
    pub fn try_room(&self, bytes: usize) -> Option<Room> {
        Arc::clone(&self.room).try_acquire_many_owned(self.permits(bytes)).ok().map(Room)
    }

    /// Sends bytes that are due at an instant. False if the exit is gone.
    pub fn send(&self, data: Bytes, room: Room, due: Instant) -> bool {
        self.pieces.send(Piece { data, due, _room: room.0 }).is_ok()
    }

    /// An oversized piece takes the whole line.
    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.capacity)).unwrap_or(u32::MAX)
    }
}

impl Exit {
    /// The next piece, once it is due. `None` when the entrance is gone and nothing is left.
    pub async fn next(&mut self) -> io::Result<Option<Piece>> {
        let Some(piece) = self.pieces.recv().await else { return Ok(None) };
        self.timer.until(piece.due).await?;
        Ok(Some(piece))
    }
}
