//! The scrub of a [`LedgerStore`], as [`crate::disk::scrub`] has it: in the order of keys, which is no order of a disk.

use super::backing::{Backing, ScrubNote};
use super::writer::Command;
use super::{LedgerStore, Shared};
use crate::disk::scrub::{now_ms, rest};
use crate::disk::store::check_hash;
use crate::disk::{Fault, Finding, ScrubProgress, ScrubReport, StoreError};
use crate::ledger::Key;
use crate::store::{OnProgress, ScrubPass};
use crate::stored::Stored;
use content::BlockKey;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A step ends when it has read this much,
const STEP_BYTES: u64 = 512 * 1024;
/// or has looked at this many blocks.
const STEP_BLOCKS: usize = 256;

/// How much is checked between two notes of how far the pass has come, in bytes.
const REMEMBER_BYTES: u64 = 8 * 1024 * 1024;

/// What a step did.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// How far it got.
    pub(crate) end: usize,
    pub(crate) progress: ScrubProgress,
    pub(crate) findings: Vec<Finding>,
}

impl<B: Backing> LedgerStore<B> {
    pub(super) async fn make_pass(
        &self,
        pass: ScrubPass,
        bytes_per_second: Option<u64>,
        on_progress: OnProgress<'_>,
    ) -> Result<ScrubReport, StoreError> {
        let (note, keys) = self.read(move |shared| Ok(shared.plan(pass))).await?;
        let keys = Arc::new(keys);
        let (mut progress, mut unnoted_bytes, mut at) = (ScrubProgress::default(), 0, 0);
        while at < keys.len() {
            let begun = Instant::now();
            let planned = Arc::clone(&keys);
            let step =
                self.read(move |shared| Ok(step(&shared.backing, &planned, at, |key| shared.holds(key)))).await?;
            self.forget_damaged(&step.findings).await?;
            self.count(&step.progress);
            progress.add_up(&step.progress);
            on_progress(&progress, &step.findings);
            at = step.end;
            unnoted_bytes += step.progress.bytes;
            if unnoted_bytes >= REMEMBER_BYTES && at < keys.len() {
                let note = ScrubNote { at: keys[at - 1].to_vec(), ..note };
                self.note_scrub(note).await?;
                unnoted_bytes = 0;
            }
            tokio::time::sleep(rest(step.progress.bytes, begun.elapsed(), bytes_per_second)).await;
        }
        self.note_scrub(ScrubNote { ended_ms: now_ms(), at: Vec::new() }).await?;
        self.inner.queue.ask(|reply| Command::Flush { reply }).await??;
        let lacking = self.read(|shared| Ok(shared.ledger().lacking(&HashSet::new()))).await?;
        let stats = &self.inner.shared.stats;
        stats.scrub_passes.inc();
        stats.lacking_pins.store(lacking.len() as u64, Ordering::Relaxed);
        Ok(ScrubReport { progress, lacking })
    }

    async fn note_scrub(&self, note: ScrubNote) -> Result<(), StoreError> {
        let noted = move |shared: &Shared<B>| {
            shared.backing.note_scrub(&note);
            Ok(())
        };
        self.read(noted).await
    }

    async fn forget_damaged(&self, findings: &[Finding]) -> Result<(), StoreError> {
        for key in findings.iter().filter(|finding| finding.fault == Fault::Damaged).filter_map(Finding::key) {
            let room = self.inner.queue.room(0).await?;
            self.inner.queue.send(Command::Forget { key, room })?;
        }
        Ok(())
    }

    fn count(&self, step: &ScrubProgress) {
        self.inner.shared.stats.scrubbed_blocks.inc_by(step.blocks);
        self.inner.shared.stats.scrubbed_bytes.inc_by(step.bytes);
    }
}

impl<B: Backing> Shared<B> {
    /// The keys that a pass has to look at; what is written from now on is for the next one.
    fn plan(&self, pass: ScrubPass) -> (ScrubNote, Vec<Key>) {
        let note = self.backing.scrub_note();
        let after: &[u8] = if pass == ScrubPass::All { &[] } else { &note.at };
        let mut keys: Vec<Key> = self.ledger().keys().map(|(key, ..)| Arc::clone(key)).collect();
        keys.retain(|key| **key > *after);
        keys.sort_unstable();
        (note, keys)
    }

    fn holds(&self, key: &[u8]) -> bool {
        self.ledger().held(key).is_some()
    }
}

/// Checks some values, beginning with the one at `at`. One that is not held any more when it turns out bad was let go of
/// meanwhile.
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

/// A value, checked in every way: its checksum, its form, and the hash of its block.
pub(crate) fn verified<B: Backing>(backing: &B, key: &BlockKey) -> Result<Option<Stored>, StoreError> {
    let Some(stored) = backing.read(&key.to_bytes())? else { return Ok(None) };
    check_hash(key, &stored)?;
    Ok(Some(stored))
}
