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
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;

/// How often changes of others are asked for without a hint.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// How long it takes until a deletion that has failed is repeated.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Deletions that wait. Further ones wait in the control log.
const DELETIONS_MAX: usize = 16;
/// The number of blocks that are deleted at a time.
const EVICTED_AT_ONCE: usize = 1024;

impl Control {
    /// Starts to obey the rules of the site, until the returned value is dropped. `None` if the gateway is alone.
    pub fn obey_site(self: &Arc<Self>, supervisor: &Supervisor) -> Option<AbortOnDropHandle<()>> {
        let site = Arc::clone(self.lists.site()?);
        Some(supervisor.spawn("the task that reads the rules of the site", follow(Arc::clone(self), site)))
    }

    /// Puts the changes of others so far in force. Returns the blocks that new rules name.
    ///
    /// # Errors
    /// Why the changes could not be read. Former rules stay in force.
    async fn apply_changes(&self, site: &ControlLog) -> Result<ArrivedBlocks, String> {
        site.catch_up().await.map_err(|error| error.to_string())?;
        let arrived = site.take_arrived();
        match self.lists.look_at_site(!arrived.is_empty()).await {
            Ok(()) => Ok(arrived),
            Err(error) => {
                site.put_back(&arrived);
                Err(error)
            }
        }
    }

    /// Puts the changes of others so far in force, and deletes what new rules withhold.
    #[cfg(test)]
    pub(super) async fn obey(&self, site: &ControlLog) -> Result<(), String> {
        let arrived = self.apply_changes(site).await?;
        self.delete_arrived(&arrived).await;
        Ok(())
    }

    /// Deletes blocks that the policy withholds. Repeats what fails, because nothing else deletes them.
    async fn delete_arrived(&self, arrived: &ArrivedBlocks) {
        for root in arrived.single.iter().filter(|root| self.is_refused(root)) {
            if let Some(links) = self.links(&root).await {
                self.keep_links(root, links).await;
            }
        }
        let ArrivedBlocks { single, many } = arrived;
        let mut roots = single.iter().chain(many.iter()).filter(|root| self.is_refused(root));
        loop {
            let batch: Vec<Cid> = roots.by_ref().take(EVICTED_AT_ONCE).collect();
            if batch.is_empty() {
                return;
            }
            let keys: Vec<BlockKey> = batch.iter().filter_map(BlockKey::of).collect();
            while let Err(error) = self.tiers.evict_from_own(&keys).await {
                tracing::warn!(%error, "deleting blocks that the site withholds failed, and is repeated; they are not served");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

/// Deletions take long, so they do not hold up the rules and revocations that follow.
async fn follow(control: Arc<Control>, site: Arc<ControlLog>) {
    let (deletions, waiting) = mpsc::channel(DELETIONS_MAX);
    tokio::join!(apply_all(&control, &site, deletions), delete_all(&control, waiting));
}

async fn delete_all(control: &Control, mut waiting: mpsc::Receiver<ArrivedBlocks>) {
    while let Some(arrived) = waiting.recv().await {
        control.delete_arrived(&arrived).await;
    }
}

async fn apply_all(control: &Control, site: &ControlLog, deletions: mpsc::Sender<ArrivedBlocks>) {
    let mut hints = site.watch();
    let mut poll = tokio::time::interval(POLL_EVERY);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_failing = false;
    loop {
        tokio::select! {
            () = hint(&mut hints) => {}
            _ = poll.tick() => {}
        }
        let applied = control.apply_changes(site).await;
        match &applied {
            Err(error) if !is_failing => {
                tracing::warn!(%error, "changes of the site's rules and tokens cannot be read; what is known is in force");
            }
            Ok(_) if is_failing => tracing::info!("changes of the site's rules and tokens are read again"),
            _ => {}
        }
        is_failing = applied.is_err();
        if let Some(arrived) = applied.ok().filter(|arrived| !arrived.is_empty())
            && let Err(TrySendError::Full(arrived)) = deletions.try_send(arrived)
        {
            site.put_back(&arrived);
        }
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
