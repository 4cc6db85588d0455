//! Emulation of a network link between two programs on one machine: it delays bytes, limits their rate, and counts
//! them.
//!
//! Goals: a precise delay at any rate (a queue with due times for each direction, not a sleep for each piece); bounded
//! queues with backpressure on TCP, which drop datagrams, but are large enough not to be the bottleneck by themselves;
//! a count of bytes each way, so that a measurement can prove that nothing bypassed it.
//!
//! Datagrams can be lost, every so many; that is all.
//!
//! Non-goals: loss of TCP, jitter and reordering. TCP is terminated on both sides, so that a sender's slow start sees
//! the loopback's round trip, not the relay's; its handshake does take a round trip, because the kernel's own response
//! to it is compensated for (`tcp`). QUIC and all else over UDP sees the whole round trip.
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
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// A relay for measurements by hand.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Where to listen; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where to forward to
    #[arg(long, value_name = "ADDRESS")]
    to: SocketAddr,
    /// Delay of each direction in milliseconds: half a round trip
    #[arg(long, value_name = "MS", default_value_t = 25.0)]
    delay_ms: f64,
    /// Limit of each direction in Mbit/s
    #[arg(long, value_name = "MBIT/S")]
    rate_mbit: Option<f64>,
    /// UDP instead of TCP
    #[arg(long)]
    udp: bool,
}

/// Relays until Ctrl-C.
pub async fn run(options: &Options) -> Result<()> {
    let delay = Duration::try_from_secs_f64(options.delay_ms / 1e3)?;
    let bits_per_second = options.rate_mbit.map(|rate| (rate * 1e6) as u64);
    let protocol = if options.udp { Protocol::Udp } else { Protocol::Tcp };
    let relay = Relay::bind(protocol, options.listen, Link { bits_per_second, ..Link::delay(delay) }).await?;
    relay.forward_to(options.to);
    println!("{} -> {} ({protocol:?})", relay.address(), options.to);
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminated.recv() => {}
    }
    println!("{:?}", relay.passed());
    Ok(())
}

/// What a relay carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// The network link that a relay emulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// One way: half of a round trip.
    pub delay: Duration,
    /// For each direction, and all connections together.
    pub bits_per_second: Option<u64>,
    /// Of so many datagrams one is lost, in each direction; TCP is terminated here, so that it loses nothing.
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
    /// From the clients of the relay.
    pub up: u64,
    /// To them.
    pub down: u64,
    /// Datagrams that were dropped by a full queue, or were to be lost.
    pub dropped: u64,
}

impl Passed {
    /// Since an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self { up: self.up - earlier.up, down: self.down - earlier.down, dropped: self.dropped - earlier.dropped }
    }
}

impl Relay {
    /// Listens. Nothing is forwarded before [`Relay::forward_to`]: earlier connections wait.
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

    /// Bytes that have passed so far.
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

/// Shared by all connections through a relay.
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

/// One direction through the relay.
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
