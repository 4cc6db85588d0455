//! A stretch of network between two programs on one machine: it delays what passes, limits its rate, and counts it.
//!
//! Goals: a precise delay at any rate (a queue with due times for each direction, not a sleep for each piece); bounded
//! queues that push back on TCP and drop datagrams, but hold enough not to be the bottleneck by themselves; a count of
//! bytes each way, so that a measurement can prove that nothing went round it.
//!
//! Datagrams can be lost, every so many; that is all.
//!
//! Non-goals: loss of TCP, jitter and reordering. TCP is ended on both sides, so that a sender's slow start sees the loopback's
//! round trip, not the relay's; its handshake does take a round trip, because the kernel's own answer to it is made up for
//! (`tcp`). QUIC and all else over UDP sees the whole round trip.
//!
//! | module | concern |
//! |---|---|
//! | [`shape`] | when a piece leaves: delay and rate, on a clock that is handed in |
//! | [`line`](mod@line) | one direction: a bounded queue whose pieces come out when they are due |
//! | [`timer`] | waiting for microseconds, where the runtime's own timer counts milliseconds |
//! | `tcp`, `udp` | connections and flows over two such lines |

pub mod line;
pub mod shape;
pub mod timer;

mod tcp;
mod udp;

use anyhow::Result;
use shape::Shaper;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What a relay carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// The stretch of network that a relay stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// One way: half of what a round trip takes.
    pub delay: Duration,
    /// For each direction, and all connections together.
    pub bits_per_second: Option<u64>,
    /// Of so many datagrams one is lost, in each direction; TCP is ended here, so that it loses nothing.
    pub lose_one_in: Option<u64>,
}

impl Link {
    /// A round trip over it.
    pub fn round_trip(self) -> Duration {
        self.delay * 2
    }

    /// A delay without a limit of the rate.
    pub fn delay(delay: Duration) -> Self {
        Self { delay, bits_per_second: None, lose_one_in: None }
    }
}

/// A running relay. Dropping it ends it and every connection through it.
pub struct Relay {
    listen: SocketAddr,
    target: watch::Sender<Option<SocketAddr>>,
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// Bytes of payload that went through, each way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    /// From those who connected to the relay.
    pub up: u64,
    /// To them.
    pub down: u64,
    /// Datagrams that found a queue full, or were to be lost.
    pub dropped: u64,
}

impl Passed {
    /// What passed since an earlier look.
    pub fn since(self, earlier: Self) -> Self {
        Self { up: self.up - earlier.up, down: self.down - earlier.down, dropped: self.dropped - earlier.dropped }
    }
}

impl Relay {
    /// Listens. Nothing is forwarded before [`Relay::forward_to`]: a connection that comes earlier waits.
    pub async fn bind(protocol: Protocol, listen: SocketAddr, link: Link) -> Result<Self> {
        let (target, targets) = watch::channel(None);
        let shared = Arc::new(Shared::new(link));
        let (listen, task) = match protocol {
            Protocol::Tcp => {
                let listener = TcpListener::bind(listen).await?;
                (listener.local_addr()?, tokio::spawn(tcp::run(listener, targets, Arc::clone(&shared))))
            }
            Protocol::Udp => {
                let socket = udp::bind(listen)?;
                (socket.local_addr()?, tokio::spawn(udp::run(socket, targets, Arc::clone(&shared))))
            }
        };
        Ok(Self { listen, target, shared, task: task.abort_handle() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listen
    }

    /// Sets where new connections go.
    pub fn forward_to(&self, target: SocketAddr) {
        self.target.send_replace(Some(target));
    }

    /// What went through so far.
    pub fn passed(&self) -> Passed {
        let Shared { up, down, .. } = &*self.shared;
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Passed { up: load(&up.bytes), down: load(&down.bytes), dropped: load(&up.dropped) + load(&down.dropped) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What all connections through a relay share.
struct Shared {
    link: Link,
    up: Direction,
    down: Direction,
}

impl Shared {
    fn new(link: Link) -> Self {
        Self { link, up: Direction::new(link), down: Direction::new(link) }
    }
}

/// One way through the relay.
struct Direction {
    shaper: Mutex<Shaper>,
    bytes: AtomicU64,
    dropped: AtomicU64,
    datagrams: AtomicU64,
    lose_one_in: Option<u64>,
}

impl Direction {
    fn new(link: Link) -> Self {
        let [bytes, dropped, datagrams] = [0; 3].map(AtomicU64::new);
        Self { shaper: Mutex::new(Shaper::new(link)), bytes, dropped, datagrams, lose_one_in: link.lose_one_in }
    }

    /// When this many bytes come out at the other end.
    fn due(&self, now: Instant, bytes: usize) -> Instant {
        self.shaper.lock().unwrap_or_else(|broken| broken.into_inner()).due(now, bytes)
    }

    /// Whether the next datagram is lost.
    fn loses_one(&self) -> bool {
        let before = self.datagrams.fetch_add(1, Ordering::Relaxed);
        // The first of a connection is as likely to be lost as any other, over several connections.
        self.lose_one_in.is_some_and(|one_in| before % one_in.max(1) == one_in / 2)
    }

    fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
