//! In a site: the rules that other gateways add and remove are put in force here, and what they withhold is deleted.
//!
//! Goals: a rule is in force here a moment after another gateway has acknowledged it; what it names is then deleted
//! from RAM and the own disk, as that gateway has deleted it from its own and from the shared storage.
//!
//! Non-goals: pins, which are those of the site; the shared storage; caches in front, which are those of the site, and
//! which the gateway purges that was asked.

use crate::control_log::{ArrivedBlocks, ControlLog};
use crate::denylists::Control;
use crate::supervision::Supervisor;
use cache::metadata_store::LogPosition;
use content::{BlockKey, Cid};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;

/// How often changes of others are asked for without a hint.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// The number of blocks that are deleted at a time.
const EVICTED_AT_ONCE: usize = 1024;

impl Control {
    /// Starts to obey the rules of the site, until the returned value is dropped. `None` if the gateway is alone.
    pub fn obey_site(self: &Arc<Self>, supervisor: &Supervisor) -> Option<AbortOnDropHandle<()>> {
        let site = Arc::clone(self.lists.site()?);
        Some(supervisor.spawn("the task that reads the rules of the site", follow(Arc::clone(self), site)))
    }

    /// Applies the changes of others so far, and deletes what new rules withhold.
    ///
    /// # Errors
    /// Why the changes could not be read. Former rules stay in force.
    pub async fn obey(&self, site: &ControlLog) -> Result<(), String> {
        site.catch_up().await.map_err(|error| error.to_string())?;
        let arrived = site.take_arrived();
        self.lists.look_at_site(!arrived.is_empty()).await?;
        self.delete_arrived(arrived).await;
        Ok(())
    }

    async fn delete_arrived(&self, arrived: ArrivedBlocks) {
        for root in arrived.single.iter().filter(|root| self.is_refused(root)) {
            if let Some(links) = self.links(&root).await {
                self.keep_links(root, links).await;
            }
        }
        let ArrivedBlocks { single, many } = &arrived;
        let mut roots = single.iter().chain(many.iter()).filter(|root| self.is_refused(root));
        loop {
            let batch: Vec<Cid> = roots.by_ref().take(EVICTED_AT_ONCE).collect();
            if batch.is_empty() {
                return;
            }
            let keys: Vec<BlockKey> = batch.iter().filter_map(BlockKey::of).collect();
            if let Err(error) = self.tiers.evict_from_own(&keys).await {
                tracing::warn!(%error, "blocks that the site withholds could not be deleted; they are not served");
                return;
            }
        }
    }
}

async fn follow(control: Arc<Control>, site: Arc<ControlLog>) {
    let mut hints = site.watch();
    let mut poll = tokio::time::interval(POLL_EVERY);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_failing = false;
    loop {
        tokio::select! {
            () = hint(&mut hints) => {}
            _ = poll.tick() => {}
        }
        let obeyed = control.obey(&site).await;
        match &obeyed {
            Err(error) if !is_failing => {
                tracing::warn!(
                    %error,
                    "changes of the site's rules and tokens cannot be read: the known ones stay in force"
                );
            }
            Ok(()) if is_failing => tracing::info!("changes of the site's rules and tokens are read again"),
            _ => {}
        }
        is_failing = obeyed.is_err();
    }
}

/// Waits for a hint that others have appended; forever if there are none.
async fn hint(hints: &mut Option<watch::Receiver<LogPosition>>) {
    if let Some(latest) = hints
        && latest.changed().await.is_ok()
    {
        return;
    }
    *hints = None;
    std::future::pending().await
}
