//! The scrub of a [`IndexedStore`], like [`crate::disk::scrub`], but in the order of keys.

use super::backing::{Backing, ScrubPosition};
use super::writer::Command;
use super::{IndexedStore, Shared};
use crate::disk::scrub::{now_ms, pause_after};
use crate::disk::store::check_hash;
use crate::disk::{Fault, Finding, ScrubProgress, ScrubReport, StoreError};
use crate::memory_index::Key;
use crate::store::{OnProgress, ScrubPass};
use content::BlockKey;
use content::stored::Stored;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The maximum bytes read in a step.
const STEP_BYTES: u64 = 512 * 1024;
/// The maximum blocks examined in a step.
const STEP_BLOCKS: usize = 256;

/// The scrub's position is saved each time this many bytes have been checked.
const SAVE_EVERY_BYTES: u64 = 8 * 1024 * 1024;

/// The result of a step.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// The index of the next key.
    pub(crate) end: usize,
    pub(crate) progress: ScrubProgress,
    pub(crate) findings: Vec<Finding>,
}

impl<B: Backing> IndexedStore<B> {
    pub(super) async fn run_scrub(
        &self,
        pass: ScrubPass,
        bytes_per_second: Option<u64>,
        on_progress: OnProgress<'_>,
    ) -> Result<ScrubReport, StoreError> {
        let (note, keys) = self.read(move |shared| Ok(shared.plan(pass))).await?;
        let keys = Arc::new(keys);
        let (mut progress, mut unsaved_bytes, mut at) = (ScrubProgress::default(), 0, 0);
        while at < keys.len() {
            let start = Instant::now();
            let planned = Arc::clone(&keys);
            let step =
                self.read(move |shared| Ok(step(&shared.backing, &planned, at, |key| shared.holds(key)))).await?;
            self.delete_damaged(&step.findings).await?;
            self.count(&step.progress);
            progress.add_up(&step.progress);
            on_progress(&progress, &step.findings);
            at = step.end;
            unsaved_bytes += step.progress.bytes;
            if unsaved_bytes >= SAVE_EVERY_BYTES && at < keys.len() {
                let note = ScrubPosition { at: keys[at - 1].to_vec(), ..note };
                self.save_position(note).await?;
                unsaved_bytes = 0;
            }
            tokio::time::sleep(pause_after(step.progress.bytes, start.elapsed(), bytes_per_second)).await;
        }
        self.save_position(ScrubPosition { ended_ms: now_ms(), at: Vec::new() }).await?;
        self.inner.queue.ask(|reply| Command::Flush { reply }).await??;
        let lacking =
            self.read(|shared| Ok(shared.index().lacking(&HashSet::new(), &|key| shared.withheld.has(key)))).await?;
        let stats = &self.inner.shared.stats;
        stats.scrub_passes.inc();
        let damaged = lacking.iter().filter(|pin| pin.is_damaged()).count();
        stats.lacking_pins.store(damaged as u64, Ordering::Relaxed);
        Ok(ScrubReport { progress, lacking })
    }

    async fn save_position(&self, position: ScrubPosition) -> Result<(), StoreError> {
        let save = move |shared: &Shared<B>| {
            shared.backing.save_scrub_position(&position);
            Ok(())
        };
        self.read(save).await
    }

    async fn delete_damaged(&self, findings: &[Finding]) -> Result<(), StoreError> {
        for key in findings.iter().filter(|finding| finding.fault == Fault::Damaged).filter_map(Finding::key) {
            let room = self.inner.queue.room(0).await?;
            self.inner.queue.send(Command::DropCorrupt { key, room })?;
        }
        Ok(())
    }

    fn count(&self, step: &ScrubProgress) {
        self.inner.shared.stats.scrubbed_blocks.inc_by(step.blocks);
        self.inner.shared.stats.scrubbed_bytes.inc_by(step.bytes);
    }
}

impl<B: Backing> Shared<B> {
    /// The keys that a pass checks; blocks written later are left for the next pass.
    fn plan(&self, pass: ScrubPass) -> (ScrubPosition, Vec<Key>) {
        let note = self.backing.scrub_position();
        let after: &[u8] = if pass == ScrubPass::All { &[] } else { &note.at };
        let mut keys: Vec<Key> = self.index().keys().map(|(key, ..)| Arc::clone(key)).collect();
        keys.retain(|key| **key > *after);
        keys.sort_unstable();
        (note, keys)
    }

    fn holds(&self, key: &[u8]) -> bool {
        self.index().value(key).is_some()
    }
}

/// Checks some values, beginning with the one at `at`. A failed check of a value that has been deleted meanwhile does
/// not count.
pub(crate) fn step<B: Backing>(backing: &B, keys: &[Key], at: usize, holds: impl Fn(&[u8]) -> bool) -> Step {
    let mut step = Step { end: at, ..Step::default() };
    for key in keys.iter().skip(at).take(STEP_BLOCKS) {
        if step.progress.bytes >= STEP_BYTES {
            break;
        }
        step.end += 1;
        let Some(block) = BlockKey::from_bytes(key).filter(|_| holds(key)) else { continue };
        let (bytes, fault) = match verified(backing, &block) {
            Ok(Some(stored)) => (stored.value().len() as u64, None),
            Ok(None) | Err(StoreError::Corrupt(_)) => (0, Some(Fault::Damaged)),
            Err(_) => (0, Some(Fault::Unreadable)),
        };
        if fault.is_some() && !holds(key) {
            continue;
        }
        step.progress.blocks += 1;
        step.progress.bytes += bytes;
        step.progress.damaged += u64::from(fault == Some(Fault::Damaged));
        step.progress.unreadable += u64::from(fault == Some(Fault::Unreadable));
        step.findings.extend(fault.map(|fault| Finding::new(&block, fault)));
    }
    step
}

/// Reads a value and verifies its checksum, its form, and the hash of its block.
pub(crate) fn verified<B: Backing>(backing: &B, key: &BlockKey) -> Result<Option<Stored>, StoreError> {
    let Some(stored) = backing.read(&key.to_bytes())? else { return Ok(None) };
    check_hash(key, &stored)?;
    Ok(Some(stored))
}
