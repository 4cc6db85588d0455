//! Waiting until an instant to within some tens of microseconds. The runtime's timer rounds up to whole milliseconds,
//! which would add up to 4 % to a delay of 25 ms; Linux's timer descriptors do not round.

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Shorter waits are not worth a system call.
const CLOSE_ENOUGH: Duration = Duration::from_micros(20);

/// One waiter's timer.
pub struct Timer(AsyncFd<Descriptor>);

struct Descriptor(TimerFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Timer {
    /// A timer for the runtime that runs now.
    pub fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let descriptor = Descriptor(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?);
        #[expect(
            deprecated,
            reason = "its successor is unsafe; a descriptor that is owned and never replaced meets its terms"
        )]
        let registered = AsyncFd::with_interest(descriptor, Interest::READABLE)?;
        Ok(Self(registered))
    }

    /// Returns when `due` has come, at once if it has passed.
    pub async fn until(&self, due: Instant) -> io::Result<()> {
        let wait = due.saturating_duration_since(Instant::now());
        if wait < CLOSE_ENOUGH {
            return Ok(());
        }
        let timer = self.0.get_ref();
        timer.0.set(Expiration::OneShot(TimeSpec::from_duration(wait)), TimerSetTimeFlags::empty())?;
        // Reading it makes it unready again until it is set anew.
        self.0.async_io(Interest::READABLE, |timer| Ok(timer.0.wait()?)).await
    }
}
