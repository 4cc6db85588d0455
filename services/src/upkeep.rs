//! [`Upkeep`]: what keeps the store in order while the gateway runs.
//!
//! Goals: damage is found while the content can still be had from elsewhere; pinned content takes less room over time; a
//! restart neither puts a pass off nor brings it forward.
//!
//! Non-goals: how it is done without getting in the way, which [`BlockStore::scrub`] sees to; what is over budget, which the
//! store sees to as it writes.

use crate::supervision::Supervisor;
use cache::{BlockStore, ScrubPass, ScrubReport, StoreError};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_util::task::AbortOnDropHandle;

/// How long to wait after the disk failed.
const RETRY: Duration = Duration::from_secs(3600);

/// Pins that lack blocks that are logged one by one.
const PINS_LOGGED_MAX: usize = 20;

/// The task. Dropping it ends it; what it had done is not lost.
pub struct Upkeep {
    task: Option<AbortOnDropHandle<()>>,
}

/// How often, how fast and how hard.
#[derive(Debug, Clone, Copy)]
struct Pace {
    every: Duration,
    bytes_per_second: u64,
    /// 0 for no recompression.
    pinned_level: u8,
}

impl Upkeep {
    /// Begins, if the settings want it.
    pub fn start(store: &dyn BlockStore, cache: &config::Cache, supervisor: &Supervisor) -> Self {
        let pace = Pace {
            every: Duration::from_secs(cache.scrub_hours.saturating_mul(3600)),
            bytes_per_second: cache.scrub_bytes_per_second,
            pinned_level: cache.zstd_pinned_level,
        };
        let task = (pace.bytes_per_second > 0)
            .then(|| supervisor.spawn("the upkeep of the store", keep(store.handle(), pace)));
        Self { task }
    }

    /// Ends it.
    pub fn stop(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn keep(store: Arc<dyn BlockStore>, pace: Pace) {
    loop {
        match round(&*store, pace).await {
            Ok(()) => {}
            // Its writer has ended, which is watched by itself, and told as the cause.
            Err(StoreError::Closed) => std::future::pending().await,
            Err(error) => {
                tracing::warn!(%error, "the store could not be checked");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Makes smaller what was pinned meanwhile, waits until a pass is due, and makes it.
async fn round(store: &dyn BlockStore, pace: Pace) -> Result<(), StoreError> {
    let bytes_per_second = Some(pace.bytes_per_second);
    if pace.pinned_level > 0 {
        let done = store.recompress_pinned(pace.pinned_level, bytes_per_second).await?;
        tracing::info!(done.blocks, done.smaller, done.saved_bytes, "pinned blocks were compressed anew");
    }
    let ended = store.scrubbed_at().await?;
    tokio::time::sleep(due_in(ended, SystemTime::now(), pace.every)).await;
    report(&store.scrub(ScrubPass::GoOn, bytes_per_second, &mut |_, _| ()).await?);
    Ok(())
}

/// A clock that was set back puts a pass off by one interval at most.
fn due_in(ended: Option<SystemTime>, now: SystemTime, every: Duration) -> Duration {
    let since = ended.map(|ended| now.duration_since(ended).unwrap_or_default());
    since.map_or(Duration::ZERO, |since| every.saturating_sub(since))
}

/// Each damaged block was logged when it was forgotten.
fn report(report: &ScrubReport) {
    let ScrubReport { progress, lacking } = report;
    let (blocks, bytes) = (progress.blocks, progress.bytes);
    tracing::info!(blocks, bytes, progress.damaged, progress.unreadable, "the store was checked");
    for pin in lacking.iter().take(PINS_LOGGED_MAX) {
        let (root, missing) = (pin.root, pin.missing);
        tracing::warn!(%root, name = pin.name, missing, "a pin lacks blocks: they are fetched again");
    }
    if lacking.len() > PINS_LOGGED_MAX {
        tracing::warn!(pins = lacking.len(), "that many pins lack blocks; causeway store check lists them");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_due_when_the_last_is_long_enough_ago() {
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let table = [
            (None, Duration::ZERO),
            (Some(now), 2 * hour),
            (Some(now - hour), hour),
            (Some(now - 2 * hour), Duration::ZERO),
            (Some(now - 50 * hour), Duration::ZERO),
            (Some(now + 50 * hour), 2 * hour),
        ];
        for (ended, expected) in table {
            assert_eq!(due_in(ended, now, 2 * hour), expected, "{ended:?}");
        }
    }
}
