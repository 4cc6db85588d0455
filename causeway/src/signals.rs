//! What signals ask of `causeway serve`. Goal: none is lost, whatever the process does when it arrives. Not here: what is done about
//! them ([`crate::serve`], [`crate::reload`]).

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    /// SIGTERM and SIGINT ask it to end.
    End,
    /// SIGHUP asks it to read its settings again.
    Reload,
}

/// The signals that `causeway serve` follows.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From here on none of them ends the process by itself. One that arrives before it is waited for is kept.
    pub fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("signals cannot be listened for");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The next one of any kind.
    pub async fn next(&mut self) -> Wanted {
        tokio::select! {
            _ = self.terminate.recv() => Wanted::End,
            _ = self.interrupt.recv() => Wanted::End,
            _ = self.hang_up.recv() => Wanted::Reload,
        }
    }

    /// The next one that asks the process to end. A SIGHUP that arrives meanwhile is kept for [`Self::next`].
    pub async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use nix::sys::signal::{Signal::SIGHUP, raise};

    #[tokio::test]
    async fn a_hang_up_that_arrives_while_only_an_end_is_waited_for_is_kept() {
        let mut signals = Signals::listen().expect("signals");
        let mut beside = signal(SignalKind::hangup()).expect("signals");
        raise(SIGHUP).expect("is raised");
        beside.recv().await.expect("it arrived");
        assert_eq!(signals.end().now_or_never(), None, "it asks for no end");
        assert_eq!(signals.next().now_or_never(), Some(Wanted::Reload));
    }
}
