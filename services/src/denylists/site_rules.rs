//! In a site: the rules that other gateways add and remove are put in force here, and what they withhold is deleted.
//!
//! Goals: a rule is in force here a moment after another gateway has acknowledged it; what it names is then deleted
//! from RAM and the own disk, as that gateway has deleted it from its own and from the shared storage; neither a large
//! rule set nor a disk that fails holds up later rules and revocations.
//!
//! Non-goals: pins, which are those of the site; the shared storage; caches in front, which are those of the site, and
//! which the gateway purges that was asked.

use crate::control_log::following::Following;
use crate::control_log::{ControlLog, PendingDeletions};
use crate::denylists::Control;
use crate::supervision::Supervisor;
use content::{BlockKey, Cid};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// How long it takes until a deletion that has failed is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Deletions that wait. Further ones wait in the control log.
const DELETIONS_MAX: usize = 16;
/// The number of roots that are examined, and whose blocks are deleted, at a time. The task then yields.
const BATCH_ROOTS: usize = 1024;

impl Control {
    /// Starts to follow the rules of the site, until the returned value is dropped. `None` if the gateway is alone.
    pub fn follow_site(self: &Arc<Self>, supervisor: &Supervisor) -> Option<AbortOnDropHandle<()>> {
        let site = Arc::clone(self.lists.site()?);
        Some(supervisor.spawn("the task that reads the rules of the site", follow(Arc::clone(self), site)))
    }

    /// Puts the changes of others so far in force. Returns the blocks that new rules name if they are `taken`: those of
    /// rules that are not in force yet would not be deleted, so they are taken before.
    ///
    /// # Errors
    /// Why the changes could not be read. Former rules stay in force.
    pub(super) async fn apply_changes(&self, site: &ControlLog, taken: bool) -> Result<PendingDeletions, String> {
        let as_of = Instant::now();
        site.poll(as_of).await.map_err(|error| error.to_string())?;
        let pending = if taken { site.take_pending() } else { PendingDeletions::default() };
        match self.lists.read_site().await {
            Ok(()) => {
                site.set_in_force(as_of);
                Ok(pending)
            }
            Err(error) => {
                site.put_back(pending);
                Err(error)
            }
        }
    }

    /// Puts the changes of others so far in force, and deletes what new rules withhold.
    #[cfg(test)]
    pub(super) async fn catch_up(&self, site: &ControlLog) -> Result<(), String> {
        let pending = self.apply_changes(site, true).await?;
        self.delete_pending(&pending).await;
        Ok(())
    }

    /// Deletes blocks that the policy withholds. Repeats what fails, because nothing else deletes them.
    pub(super) async fn delete_pending(&self, pending: &PendingDeletions) {
        let PendingDeletions { single, many } = pending;
        let mut roots = single.iter();
        while let Some(withheld) = self.next_withheld(&mut roots).await {
            for root in withheld {
                if let Some(links) = self.links(&root).await {
                    self.keep_links(root, links).await;
                }
            }
        }
        let mut roots = single.iter().chain(many.iter());
        while let Some(withheld) = self.next_withheld(&mut roots).await {
            let keys: Vec<BlockKey> = withheld.iter().filter_map(BlockKey::of).collect();
            if keys.is_empty() {
                continue;
            }
            while let Err(error) = self.tiers.evict_from_own(&keys).await {
                let message = "deleting blocks that the site withholds failed and is repeated: they are not served";
                tracing::warn!(%error, "{message}");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }

    /// Those of the next roots that the policy withholds; `None` at the end.
    async fn next_withheld(&self, roots: &mut (dyn Iterator<Item = Cid> + Send + '_)) -> Option<Vec<Cid>> {
        let batch: Vec<Cid> = roots.take(BATCH_ROOTS).collect();
        // Examining a million roots takes a good while, in which the rules that follow would not be read.
        tokio::task::yield_now().await;
        let is_last = batch.is_empty();
        let withheld = batch.into_iter().filter(|root| self.is_refused(root)).collect();
        (!is_last).then_some(withheld)
    }
}

/// Deletions take long, so they do not hold up the rules and revocations that follow.
async fn follow(control: Arc<Control>, site: Arc<ControlLog>) {
    let (deletions, waiting) = mpsc::channel(DELETIONS_MAX);
    tokio::join!(apply_all(&control, &site, deletions), delete_all(&control, waiting));
}

async fn delete_all(control: &Control, mut waiting: mpsc::Receiver<PendingDeletions>) {
    while let Some(pending) = waiting.recv().await {
        control.delete_pending(&pending).await;
    }
}

/// Applies the changes of others one after the other, and queues what is to be deleted.
pub(super) async fn apply_all(control: &Control, site: &ControlLog, deletions: mpsc::Sender<PendingDeletions>) {
    let mut following = Following::new(site.watch());
    loop {
        following.next().await;
        // Without a permit the blocks wait in the control log. This is their one sender.
        let permit = deletions.try_reserve().ok();
        let applied = control.apply_changes(site, permit.is_some()).await;
        following.log(
            &applied,
            "changes of the site's rules and tokens cannot be applied: what is known is in force",
            "changes of the site's rules and tokens are applied again",
        );
        if let Some((permit, pending)) = permit.zip(applied.ok().filter(|pending| !pending.is_empty())) {
            permit.send(pending);
        }
    }
}
