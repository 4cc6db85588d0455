//! [`Upkeep`]: background maintenance of the store: scrubbing and recompression.
//!
//! Goals: corruption is found while the content can still be fetched from elsewhere; pinned content takes less space
//! over time; restarts do not change the schedule.
//!
//! Non-goals: throttling, which [`BlockStore::scrub`] does; eviction, which the store does as it writes.

use crate::supervision::Supervisor;
use cache::{BlockStore, ScrubPass, ScrubReport, StoreError};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_util::task::AbortOnDropHandle;

/// The back-off after the disk failed.
const RETRY: Duration = Duration::from_secs(3600);

/// The maximum number of pins with missing blocks that are logged individually.
const PINS_LOGGED_MAX: usize = 20;

/// The maintenance task. Dropping it aborts the task; completed work is kept.
pub struct Upkeep {
    task: Option<AbortOnDropHandle<()>>,
}

/// The schedule, the rate, and the compression level.
#[derive(Debug, Clone, Copy)]
struct Pace {
    every: Duration,
    bytes_per_second: u64,
    /// 0 turns recompression off.
    pinned_level: u8,
}

impl Upkeep {
    /// Starts the task, if the settings enable it.
    pub fn start(store: &dyn BlockStore, cache: &config::Cache, supervisor: &Supervisor) -> Self {
        let pace = Pace {
            every: Duration::from_secs(cache.scrub_hours.saturating_mul(3600)),
            bytes_per_second: cache.scrub_bytes_per_second,
            pinned_level: cache.zstd_pinned_level,
        };
        let task = (pace.bytes_per_second > 0)
            .then(|| supervisor.spawn("the maintenance task of the store", run(store.handle(), pace)));
        Self { task }
    }

    /// Stops the task.
    pub fn stop(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn run(store: Arc<dyn BlockStore>, pace: Pace) {
    loop {
        match round(&*store, pace).await {
            Ok(()) => {}
            // The store's writer has ended, which is supervised and reported itself.
            Err(StoreError::Closed) => std::future::pending().await,
            Err(error) => {
                tracing::warn!(%error, "scrubbing the store failed");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Recompresses what was pinned meanwhile, waits until a scrub is due, and scrubs.
async fn round(store: &dyn BlockStore, pace: Pace) -> Result<(), StoreError> {
    let bytes_per_second = Some(pace.bytes_per_second);
    if pace.pinned_level > 0 {
        let done = store.recompress_pinned(pace.pinned_level, bytes_per_second).await?;
        tracing::info!(done.blocks, done.smaller, done.saved_bytes, "pinned blocks were recompressed");
    }
    let ended = store.scrubbed_at().await?;
    tokio::time::sleep(due_in(ended, SystemTime::now(), pace.every)).await;
    report(&store.scrub(ScrubPass::GoOn, bytes_per_second, &mut |_, _| ()).await?);
    Ok(())
}

/// The time until the next scrub. A clock that was set back delays it by one interval at most.
fn due_in(ended: Option<SystemTime>, now: SystemTime, every: Duration) -> Duration {
    let since = ended.map(|ended| now.duration_since(ended).unwrap_or_default());
    since.map_or(Duration::ZERO, |since| every.saturating_sub(since))
}

/// Logs a scrub. Each corrupt block was logged when it was deleted.
fn report(report: &ScrubReport) {
    let ScrubReport { progress, lacking } = report;
    let (blocks, bytes) = (progress.blocks, progress.bytes);
    tracing::info!(blocks, bytes, progress.damaged, progress.unreadable, "the store was scrubbed");
    let (damaged, withheld): (Vec<_>, Vec<_>) = lacking.iter().partition(|pin| pin.is_damaged());
    for pin in damaged.iter().take(PINS_LOGGED_MAX) {
        let (root, missing) = (pin.root, pin.missing - pin.withheld);
        tracing::warn!(%root, name = pin.name, missing, "a pin has missing blocks: they are fetched again");
    }
    if damaged.len() > PINS_LOGGED_MAX {
        tracing::warn!(pins = damaged.len(), "more pins have missing blocks; \"causeway store check\" lists them");
    }
    if !withheld.is_empty() {
        tracing::info!(pins = withheld.len(), "pins lack blocks that rules withhold");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_is_due_after_the_interval() {
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
