//! Signals of `causeway serve`. Goal: no signal is lost, whatever the process does when it arrives. Non-goal: handling
//! them ([`crate::serve`], [`crate::reload`]).

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The meaning of a signal.
#[derive(Debug, PartialEq, Eq)]
pub enum SignalAction {
    /// SIGTERM and SIGINT: stop.
    Stop,
    /// SIGHUP: reload the settings.
    Reload,
}

/// The signals that `causeway serve` handles.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Replaces the default actions of the signals. Signals are queued until they are awaited.
    pub fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("the signal handlers cannot be installed");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The next signal.
    pub async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.hang_up.recv() => SignalAction::Reload,
        }
    }

    /// The next SIGTERM or SIGINT. A SIGHUP that arrives meanwhile stays queued for [`Self::next`].
    pub async fn stop(&mut self) {
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
    async fn a_sighup_that_arrives_while_a_stop_is_awaited_stays_queued() {
        let mut signals = Signals::listen().expect("signals");
        let mut beside = signal(SignalKind::hangup()).expect("signals");
        raise(SIGHUP).expect("raises the signal");
        beside.recv().await.expect("it arrived");
        assert_eq!(signals.stop().now_or_never(), None, "it does not stop the process");
        assert_eq!(signals.next().now_or_never(), Some(SignalAction::Reload));
    }
}
