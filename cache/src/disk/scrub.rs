//! The scrub: every value is read and checked, in the order in which values lie on the disk, before somebody asks for it.
//!
//! Goals: damage is found while the content can still be had from elsewhere; a pass costs readers nothing that they
//! notice: it goes in steps of half a megabyte, each of which is one read among many, at a rate, and works for at most a
//! quarter of the time; a pass goes on where it stood when the process ended; memory does not grow with the store.
//!
//! A value is checked by its checksum, its form and the hash of its block ([`Store::verified`]). One that fails is forgotten
//! through the writer, which reads it again first: what moves while it is looked at is not damaged. What the system cannot
//! read at all is counted and left where it is, since it may be the wire and not the disk.
//!
//! Pins that lack blocks are partial from then on, and whoever looks after pins is told ([`crate::pins::PinChanges`]).
//!
//! Non-goals: fetching anew what was forgotten, which the pin service does for pins, and readers do for the rest; what lies in the page cache and not on the disk yet, which the next pass sees.

use super::record;
use super::schema::{BLOCKS_BY_PIN, INDEX, KEY_SCRUB, PLACES, Place, ScrubRecord, take_u64};
use super::store::Store;
use super::writer::Command;
use super::{Disk, StoreError};
use crate::pins::PinSummary;
pub use crate::reports::{Fault, Finding, LackingPin, ScrubProgress, ScrubReport};
use crate::stored::Stored;
use content::{BlockKey, Cid};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A step ends when it has read this much,
const STEP_BYTES: u64 = 512 * 1024;
/// or has looked at this many rows.
const STEP_ROWS: u32 = 256;

/// How much is checked between two notes of how far the pass has come, in bytes.
const REMEMBER_BYTES: u64 = 8 * 1024 * 1024;

/// Of the time that work with a rate takes, it rests at least this many times as long: a quarter of a core at most.
const REST: u32 = 3;

impl ScrubProgress {
    pub(super) fn add(&mut self, step: &Step) {
        let count = |fault| step.findings.iter().filter(|finding| finding.fault == fault).count() as u64;
        self.blocks += step.blocks;
        self.bytes += step.bytes;
        self.damaged += count(Fault::Damaged);
        self.unreadable += count(Fault::Unreadable);
    }

    /// Adds what came after.
    pub(crate) fn add_up(&mut self, more: &Self) {
        let Self { blocks, bytes, damaged, unreadable } = more;
        self.blocks += blocks;
        self.bytes += bytes;
        self.damaged += damaged;
        self.unreadable += unreadable;
    }

    /// Whether everything that was checked is as it should be.
    pub fn is_clean(&self) -> bool {
        self.damaged == 0 && self.unreadable == 0
    }
}

impl Disk {
    /// Checks every value that is here now, at `bytes_per_second` or as fast as it goes, and forgets what is damaged. Goes on
    /// where a pass was left that did not reach the end. After each step the progress of this call is shown, with what
    /// the step found. Dropping the future interrupts the pass.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or what the disk said of the index; damaged values are no errors.
    pub async fn scrub(
        &self,
        bytes_per_second: Option<u64>,
        on_progress: impl FnMut(&ScrubProgress, &[Finding]) + Send,
    ) -> Result<ScrubReport, StoreError> {
        let record = self.read(Store::scrub_record).await?;
        self.scrub_from(record, bytes_per_second, on_progress).await
    }

    /// The same from the beginning.
    ///
    /// # Errors
    /// As [`Disk::scrub`].
    pub async fn scrub_all(
        &self,
        bytes_per_second: Option<u64>,
        on_progress: impl FnMut(&ScrubProgress, &[Finding]) + Send,
    ) -> Result<ScrubReport, StoreError> {
        let record = self.read(Store::scrub_record).await?;
        self.scrub_from(ScrubRecord { at: Place::default(), ..record }, bytes_per_second, on_progress).await
    }

    async fn scrub_from(
        &self,
        record: ScrubRecord,
        bytes_per_second: Option<u64>,
        mut on_progress: impl FnMut(&ScrubProgress, &[Finding]) + Send,
    ) -> Result<ScrubReport, StoreError> {
        let counters = self.read(Store::counters).await?;
        let mut progress = ScrubProgress::default();
        let (mut next, mut unnoted_bytes) = (Some(record.at), 0);
        while let Some(from) = next {
            let begun = Instant::now();
            // What is written from now on is not waited for: a pass has an end.
            let step = self.read(move |store| step(store, from, counters.segment)).await?;
            self.forget_damaged(&step.findings).await?;
            self.count_scrubbed(&step);
            progress.add(&step);
            on_progress(&progress, &step.findings);
            next = step.next;
            unnoted_bytes += step.bytes;
            if let Some(at) = next.filter(|_| unnoted_bytes >= REMEMBER_BYTES) {
                self.remember_scrub(ScrubRecord { at, ..record })?;
                unnoted_bytes = 0;
            }
            tokio::time::sleep(rest(step.bytes, begun.elapsed(), bytes_per_second)).await;
        }
        self.remember_scrub(ScrubRecord { ended_ms: now_ms(), at: Place::default() })?;
        self.flush().await?;
        let lacking = self.read(|store| lacking(store, &BTreeMap::new())).await?;
        self.count_pass(lacking.len());
        let roots: Vec<Cid> = lacking.iter().map(|pin| pin.root).collect();
        if !roots.is_empty() {
            self.queue().ask(|reply| Command::Lacking { roots, reply }).await??;
        }
        Ok(ScrubReport { progress, lacking })
    }

    /// When a pass last reached the end, if one has.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn scrubbed_at(&self) -> Result<Option<SystemTime>, StoreError> {
        let ended_ms = self.read(Store::scrub_record).await?.ended_ms;
        Ok(UNIX_EPOCH.checked_add(Duration::from_millis(ended_ms)).filter(|_| ended_ms > 0))
    }

    async fn forget_damaged(&self, findings: &[Finding]) -> Result<(), StoreError> {
        for key in findings.iter().filter(|finding| finding.fault == Fault::Damaged).filter_map(Finding::key) {
            let room = self.queue().room(0).await?;
            self.queue().send(Command::Forget { key, room })?;
        }
        Ok(())
    }

    fn remember_scrub(&self, record: ScrubRecord) -> Result<(), StoreError> {
        self.queue().send(Command::Remember { key: KEY_SCRUB, record: record.to_bytes().to_vec() })
    }
}

/// What a step did.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// Where the next one begins; `None` at the end.
    pub(super) next: Option<Place>,
    pub(super) blocks: u64,
    pub(super) bytes: u64,
    pub(super) findings: Vec<Finding>,
    rows: u32,
}

/// Checks some values from a place on, in segments before `segments_end`.
pub(super) fn step(store: &Store, from: Place, segments_end: u32) -> Result<Step, StoreError> {
    let mut step = Step::default();
    for row in store.rows_from(PLACES, &from.to_key())? {
        let (place, block) = row?;
        // Rows that are malformed or that the index disagrees with are for the repair of the index.
        let (Some(place), Some(key)) = (Place::from_key(&place), BlockKey::from_bytes(&block)) else { continue };
        if place.segment >= segments_end {
            break;
        }
        if step.bytes >= STEP_BYTES || step.rows >= STEP_ROWS {
            step.next = Some(place);
            break;
        }
        step.rows += 1;
        if let Looked::Found { bytes, value } = look(store, &key, place)? {
            step.blocks += 1;
            step.bytes += bytes;
            step.findings.extend(value.err().map(|fault| Finding::new(&key, fault)));
        }
    }
    Ok(step)
}

/// What is at a place.
pub(super) enum Looked {
    /// Nothing that the index names: it moved or went.
    Gone,
    /// A block's value.
    Found {
        /// What it takes in its segment.
        bytes: u64,
        value: Result<Stored, Fault>,
    },
}

/// Reads and checks the value of a block that is said to be at a place.
pub(super) fn look(store: &Store, key: &BlockKey, place: Place) -> Result<Looked, StoreError> {
    let block = key.to_bytes();
    let held = match store.index(&block) {
        Ok(Some(held)) if held.place == place => held,
        Err(StoreError::Corrupt(_)) => return Ok(Looked::Found { bytes: 0, value: Err(Fault::Damaged) }),
        other => return other.map(|_| Looked::Gone),
    };
    let bytes = record::record_bytes(&block, held.shape.value_bytes()) as u64;
    let found = |value| Ok(Looked::Found { bytes, value });
    match store.verified(key, held) {
        Ok(stored) => found(Ok(stored)),
        Err(_) if store.index(&block)? != Some(held) => Ok(Looked::Gone),
        Err(StoreError::Corrupt(_)) => found(Err(Fault::Damaged)),
        Err(_) => found(Err(Fault::Unreadable)),
    }
}

/// How long to wait after a step that took `worked`. Without a rate there is no waiting.
pub(crate) fn rest(bytes: u64, worked: Duration, bytes_per_second: Option<u64>) -> Duration {
    let Some(rate) = bytes_per_second else { return Duration::ZERO };
    let due = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
    due.saturating_sub(worked).max(worked * REST)
}

/// The pins of which members are not in the index, or not even known any more, or are among `damaged`, which counts such by
/// pin.
pub(super) fn lacking(store: &Store, damaged: &BTreeMap<u64, u64>) -> Result<Vec<LackingPin>, StoreError> {
    let (mut missing, mut members) = (damaged.clone(), BTreeMap::<u64, u64>::new());
    for row in store.rows_from(BLOCKS_BY_PIN, &[])? {
        let (row, _) = row?;
        let mut block = &*row;
        let pin = take_u64(&mut block).ok_or_else(|| StoreError::corrupt("a pin's member is malformed"))?;
        *members.entry(pin).or_default() += 1;
        if !store.holds(INDEX, block)? {
            *missing.entry(pin).or_default() += 1;
        }
    }
    let lacks = |pin: PinSummary| {
        let unknown = pin.blocks.saturating_sub(members.get(&pin.id).copied().unwrap_or_default());
        let missing = missing.get(&pin.id).copied().unwrap_or_default() + unknown;
        (missing > 0).then_some(LackingPin { root: pin.root, name: pin.name, missing, blocks: pin.blocks })
    };
    Ok(store.pins()?.into_iter().filter_map(lacks).collect())
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_and_most_of_the_time_is_rest() {
        let ms = Duration::from_millis;
        let table = [
            (1 << 20, 0, None, 0),
            (1 << 20, 500, None, 0),
            (1 << 20, 0, Some(1 << 20), 1_000),
            (1 << 20, 100, Some(1 << 20), 900),
            // Slow work, such as compressing: the rate is not reached.
            (1 << 20, 400, Some(1 << 20), 1_200),
            (1 << 20, 3_000, Some(1 << 20), 9_000),
            (0, 0, Some(1), 0),
            (2, 0, Some(0), 2_000),
        ];
        for (bytes, worked, rate, expected) in table {
            assert_eq!(rest(bytes, ms(worked), rate), ms(expected), "{bytes} bytes in {worked} ms at {rate:?}");
        }
    }
}
