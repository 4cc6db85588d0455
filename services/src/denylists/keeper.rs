//! [`ListUpdater`]: tasks that keep lists up to date. Files are checked for changes every few seconds. Subscriptions are
//! fetched at the interval of the settings, and after failures with exponential back-off.

use crate::denylists::lists::{ListEntry, ListKind, Lists};
use crate::supervision::Supervisor;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// The interval at which files are checked for changes.
const FILES_EVERY: Duration = Duration::from_secs(2);
/// The back-off after the first failure.
const RETRY_FIRST: Duration = Duration::from_secs(5);

/// The update tasks. Dropping it aborts them.
#[derive(Debug)]
pub struct ListUpdater {
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl ListUpdater {
    /// Starts the tasks. Subscriptions are fetched immediately.
    pub(super) fn start(lists: &Arc<Lists>, supervisor: &Supervisor) -> Self {
        let spawn = |entry: &Arc<ListEntry>| {
            supervisor.spawn("the update task of a denylist", update(Arc::clone(lists), Arc::clone(entry)))
        };
        Self { _tasks: lists.entries().iter().map(spawn).collect() }
    }
}

async fn update(lists: Arc<Lists>, entry: Arc<ListEntry>) {
    let fetches = matches!(entry.kind, ListKind::Subscription(_));
    if !fetches {
        tokio::time::sleep(FILES_EVERY).await;
    }
    loop {
        // The state of the list has the error.
        _ = lists.look(&entry).await;
        let pause = if fetches { interval(lists.refresh_every(), entry.state().failures) } else { FILES_EVERY };
        tokio::time::sleep(pause).await;
    }
}

/// The time until the next fetch of a source, after so many consecutive failures.
fn interval(every: Duration, failures: u32) -> Duration {
    match failures {
        0 => every,
        failures => RETRY_FIRST.saturating_mul(1 << failures.min(12).saturating_sub(1)).min(every),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_sources_are_backed_off() {
        let hour = Duration::from_secs(3600);
        let pauses: Vec<u64> = [0, 1, 2, 3, 4, 12, 99].iter().map(|n| interval(hour, *n).as_secs()).collect();
        assert_eq!(pauses, [3600, 5, 10, 20, 40, 3600, 3600]);
        assert_eq!(interval(Duration::from_secs(1), 9), Duration::from_secs(1));
    }
}
