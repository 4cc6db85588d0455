//! [`Keeper`]: tasks that look after lists: files every few seconds, whether they have changed; addresses as often as the settings
//! say, and sooner after a failure, at first after some seconds and then twice as long each time.

use crate::denylists::lists::{Entry, Kind, Lists};
use crate::supervision::Supervisor;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// How often a file is looked at.
const FILES_EVERY: Duration = Duration::from_secs(2);
/// How long after the first failure a source is asked again.
const RETRY_FIRST: Duration = Duration::from_secs(5);

/// The tasks. Dropping them ends them.
#[derive(Debug)]
pub struct Keeper {
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Keeper {
    /// Begins, at once with what has an address.
    pub(super) fn start(lists: &Arc<Lists>, supervisor: &Supervisor) -> Self {
        let keep = |entry: &Arc<Entry>| {
            supervisor.spawn("the task that looks after a denylist", keep(Arc::clone(lists), Arc::clone(entry)))
        };
        Self { _tasks: lists.entries().iter().map(keep).collect() }
    }
}

async fn keep(lists: Arc<Lists>, entry: Arc<Entry>) {
    let fetches = matches!(entry.kind, Kind::Subscription(_));
    if !fetches {
        tokio::time::sleep(FILES_EVERY).await;
    }
    loop {
        // What is wrong is noted with the list.
        _ = lists.look(&entry).await;
        let pause = if fetches { pause(lists.refresh_every(), entry.state().failures) } else { FILES_EVERY };
        tokio::time::sleep(pause).await;
    }
}

/// How long until a source is asked again that failed so often in a row.
fn pause(every: Duration, failures: u32) -> Duration {
    match failures {
        0 => every,
        failures => RETRY_FIRST.saturating_mul(1 << failures.min(12).saturating_sub(1)).min(every),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_fails_is_spared_more_and_more() {
        let hour = Duration::from_secs(3600);
        let pauses: Vec<u64> = [0, 1, 2, 3, 4, 12, 99].iter().map(|n| pause(hour, *n).as_secs()).collect();
        assert_eq!(pauses, [3600, 5, 10, 20, 40, 3600, 3600]);
        assert_eq!(pause(Duration::from_secs(1), 9), Duration::from_secs(1));
    }
}
