//! [`Following`]: when a gateway reads what others have appended to a log of the site.
//!
//! Goals: changes are read within a second, or at once where the log notifies; a failure that lasts is logged once, and
//! so is its end. Non-goals: what the changes are, and how they are applied.

use cache::metadata_store::LogPosition;
use std::fmt::Display;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};

/// The interval at which changes of others are polled without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The times at which a log is read, and whether that fails.
#[derive(Debug)]
pub(crate) struct Following {
    notifications: Option<watch::Receiver<LogPosition>>,
    poll: Interval,
    is_failing: bool,
}

impl Following {
    /// Call it in a Tokio runtime. Without notifications the log is polled.
    pub fn new(notifications: Option<watch::Receiver<LogPosition>>) -> Self {
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { notifications, poll, is_failing: false }
    }

    /// Waits until the log is to be read: at once at first.
    pub async fn next(&mut self) {
        tokio::select! {
            () = notified(&mut self.notifications) => {}
            _ = self.poll.tick() => {}
        }
    }

    /// Logs the first failure in a row, and the success after it.
    pub fn log<T, E: Display>(&mut self, applied: &Result<T, E>, failure: &str, success: &str) {
        match applied {
            Err(error) if !self.is_failing => tracing::warn!(%error, "{failure}"),
            Ok(_) if self.is_failing => tracing::info!("{success}"),
            _ => {}
        }
        self.is_failing = applied.is_err();
    }
}

/// Waits for a notification that others have appended to a log; without end if there are none.
async fn notified(notifications: &mut Option<watch::Receiver<LogPosition>>) {
    if let Some(latest) = notifications
        && latest.changed().await.is_ok()
    {
        return;
    }
    *notifications = None;
    std::future::pending().await
}
