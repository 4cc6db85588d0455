//! The scrub: reads and verifies every value, in disk order.
//!
//! Goals: corruption is found while the content is still available elsewhere; readers are not delayed noticeably: a
//! pass runs in steps of half a megabyte, at a limited rate, and uses at most a quarter of one core; an interrupted
//! pass resumes after a restart; memory does not grow with the store.
//!
//! A value is verified by its checksum, its form and the hash of its block ([`Store::verified`]). A corrupt value is
//! deleted by the writer, which verifies it again first, since it may have been moved during the check. A value whose
//! read fails is counted and kept, since the cause may be the connection and not the disk.
//!
//! Pins with missing blocks become partial, and the pin service is notified ([`crate::pins::PinChanges`]).
//!
//! Non-goals: refetching deleted blocks, which the pin service does for pins, and clients' requests for the rest;
//! values in the page cache that are not yet on the disk, which the next pass checks.

use super::record;
use super::schema::{BLOCKS_BY_PIN, KEY_SCRUB, PLACES, PinRecord, Place, ScrubRecord, take_u64};
use super::store::Store;
use super::writer::{Barrier, Change};
use super::{Disk, StoreError};
use crate::pins::PinSummary;
use crate::reports::MissingBlocks;
pub use crate::reports::{Fault, Finding, IncompletePin, ScrubProgress, ScrubReport};
use content::stored::Stored;
use content::{BlockKey, Cid};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The maximum bytes read in a step.
const STEP_BYTES: u64 = 512 * 1024;
/// The maximum rows examined in a step.
const STEP_ROWS: u32 = 256;

/// The scrub's position is saved each time this many bytes have been checked.
const SAVE_EVERY_BYTES: u64 = 8 * 1024 * 1024;

/// Rate-limited work pauses at least this many times as long as it runs: it uses at most a quarter of a core.
const PAUSE_FACTOR: u32 = 3;

impl ScrubProgress {
    pub(super) fn add(&mut self, step: &Step) {
        let count = |fault| step.findings.iter().filter(|finding| finding.fault == fault).count() as u64;
        self.blocks += step.blocks;
        self.bytes += step.bytes;
        self.damaged += count(Fault::Damaged);
        self.unreadable += count(Fault::Unreadable);
    }

    /// Adds the progress of a later step.
    pub(crate) fn add_up(&mut self, more: &Self) {
        let Self { blocks, bytes, damaged, unreadable } = more;
        self.blocks += blocks;
        self.bytes += bytes;
        self.damaged += damaged;
        self.unreadable += unreadable;
    }

    /// Whether no faults were found.
    pub fn is_clean(&self) -> bool {
        self.damaged == 0 && self.unreadable == 0
    }
}

impl Disk {
    /// Verifies every stored value, at `bytes_per_second` or unlimited, and deletes corrupt blocks. Resumes an
    /// interrupted pass. After each step, `on_progress` is called with the progress of this call and the step's
    /// findings. Dropping the future interrupts the pass.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or an error of the index; corrupt values are not errors.
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
    /// Those of [`Disk::scrub`].
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
        let (mut next, mut unsaved_bytes) = (Some(record.at), 0);
        while let Some(from) = next {
            let start = Instant::now();
            // Values written later are left for the next pass, so that this one ends.
            let step = self.read(move |store| step(store, from, counters.segment)).await?;
            self.delete_damaged(&step.findings).await?;
            self.count_scrubbed(&step);
            progress.add(&step);
            on_progress(&progress, &step.findings);
            next = step.next;
            unsaved_bytes += step.bytes;
            if let Some(at) = next.filter(|_| unsaved_bytes >= SAVE_EVERY_BYTES) {
                self.save_scrub_record(ScrubRecord { at, ..record })?;
                unsaved_bytes = 0;
            }
            tokio::time::sleep(pause_after(step.bytes, start.elapsed(), bytes_per_second)).await;
        }
        self.save_scrub_record(ScrubRecord { ended_ms: now_ms(), at: Place::default() })?;
        self.flush().await?;
        let withheld = Arc::clone(self.withheld());
        let lacking = self.read(move |store| lacking(store, &BTreeMap::new(), &|key| withheld.has(key))).await?;
        self.count_pass(&lacking);
        let roots: Vec<Cid> = lacking.iter().map(|pin| pin.root).collect();
        if !roots.is_empty() {
            self.queue().ask(|reply| Barrier::MarkPartial { roots, reply }).await??;
        }
        Ok(ScrubReport { progress, lacking })
    }

    /// When the last complete pass ended.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn scrubbed_at(&self) -> Result<Option<SystemTime>, StoreError> {
        let ended_ms = self.read(Store::scrub_record).await?.ended_ms;
        Ok(UNIX_EPOCH.checked_add(Duration::from_millis(ended_ms)).filter(|_| ended_ms > 0))
    }

    async fn delete_damaged(&self, findings: &[Finding]) -> Result<(), StoreError> {
        for key in findings.iter().filter(|finding| finding.fault == Fault::Damaged).filter_map(Finding::key) {
            let room = self.queue().room(0).await?;
            self.queue().send(Barrier::DropCorrupt { key, room })?;
        }
        Ok(())
    }

    fn save_scrub_record(&self, record: ScrubRecord) -> Result<(), StoreError> {
        self.queue().send(Change::PutMeta { key: KEY_SCRUB, record: record.to_bytes().to_vec() })
    }
}

/// The result of a step.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// The start of the next step; `None` at the end.
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
        // Malformed and inconsistent rows are handled by the repair of the index.
        let (Some(place), Some(key)) = (Place::from_key(&place), BlockKey::from_bytes(&block)) else { continue };
        if place.segment >= segments_end {
            break;
        }
        if step.bytes >= STEP_BYTES || step.rows >= STEP_ROWS {
            step.next = Some(place);
            break;
        }
        step.rows += 1;
        if let PlaceCheck::Found { bytes, value } = check_place(store, &key, place)? {
            step.blocks += 1;
            step.bytes += bytes;
            step.findings.extend(value.err().map(|fault| Finding::new(&key, fault)));
        }
    }
    Ok(step)
}

/// The result of checking a place.
pub(super) enum PlaceCheck {
    /// The value was moved or deleted.
    Gone,
    /// A block's value.
    Found {
        /// The size of its record.
        bytes: u64,
        value: Result<Stored, Fault>,
    },
}

/// Reads and verifies the value of a block at a place.
pub(super) fn check_place(store: &Store, key: &BlockKey, place: Place) -> Result<PlaceCheck, StoreError> {
    let block = key.to_bytes();
    let record = match store.index(&block) {
        Ok(Some(record)) if record.place == place => record,
        Err(StoreError::Corrupt(_)) => return Ok(PlaceCheck::Found { bytes: 0, value: Err(Fault::Damaged) }),
        other => return other.map(|_| PlaceCheck::Gone),
    };
    // A slice is checked when its base is stored again.
    if !store.has_base(record)? {
        return Ok(PlaceCheck::Gone);
    }
    let bytes = record::record_bytes(&block, record.value_bytes()) as u64;
    let found = |value| Ok(PlaceCheck::Found { bytes, value });
    match store.verified(key, record) {
        Ok(stored) => found(Ok(stored)),
        Err(_) if store.index(&block)? != Some(record) => Ok(PlaceCheck::Gone),
        Err(StoreError::Corrupt(_)) => found(Err(Fault::Damaged)),
        Err(_) => found(Err(Fault::Unreadable)),
    }
}

/// The pause after a step that took `worked`. Without a rate there is none.
pub(crate) fn pause_after(bytes: u64, worked: Duration, bytes_per_second: Option<u64>) -> Duration {
    let Some(rate) = bytes_per_second else { return Duration::ZERO };
    let due = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
    due.saturating_sub(worked).max(worked * PAUSE_FACTOR)
}

/// The pins with missing members: not in the index, no longer listed, or among `damaged`, which counts them by pin.
pub(super) fn lacking(
    store: &Store,
    damaged: &BTreeMap<u64, u64>,
    is_withheld: &dyn Fn(&BlockKey) -> bool,
) -> Result<Vec<IncompletePin>, StoreError> {
    let (mut missing, mut members) = (damaged.clone(), BTreeMap::<u64, u64>::new());
    let mut withheld = BTreeMap::<u64, u64>::new();
    for row in store.rows_from(BLOCKS_BY_PIN, &[])? {
        let (row, _) = row?;
        let mut block = &*row;
        let pin = take_u64(&mut block).ok_or_else(|| StoreError::corrupt("a pin's member is malformed"))?;
        *members.entry(pin).or_default() += 1;
        if !store.counts(block)? {
            *missing.entry(pin).or_default() += 1;
            *withheld.entry(pin).or_default() +=
                u64::from(BlockKey::from_bytes(block).as_ref().is_some_and(is_withheld));
        }
    }
    let lacks = |pin: PinSummary| {
        let count = |of: &BTreeMap<u64, u64>| of.get(&pin.id).copied().unwrap_or_default();
        let missing = count(&missing) + pin.blocks.saturating_sub(count(&members));
        let withheld = count(&withheld);
        (missing > 0).then_some(IncompletePin { root: pin.root, name: pin.name, missing, withheld, blocks: pin.blocks })
    };
    Ok(store.pins()?.into_iter().filter_map(lacks).collect())
}

/// The members of a pin that are not in the index.
pub(super) fn missing(
    store: &Store,
    pin: &PinRecord,
    is_withheld: &dyn Fn(&BlockKey) -> bool,
) -> Result<MissingBlocks, StoreError> {
    let mut missing = MissingBlocks { blocks: pin.blocks, bytes: pin.bytes, withheld: 0 };
    let prefix = pin.id.0.to_be_bytes();
    for row in store.keys_with_prefix(BLOCKS_BY_PIN, &prefix)? {
        let row = row?;
        let block = row.get(prefix.len()..).unwrap_or_default();
        match store.held(block)? {
            Some(record) => {
                missing.blocks = missing.blocks.saturating_sub(1);
                missing.bytes = missing.bytes.saturating_sub(record.shape.block_bytes() as u64);
            }
            None => missing.withheld += u64::from(BlockKey::from_bytes(block).as_ref().is_some_and(is_withheld)),
        }
    }
    Ok(missing)
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_and_most_of_the_time_is_paused() {
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
            assert_eq!(pause_after(bytes, ms(worked), rate), ms(expected), "{bytes} bytes in {worked} ms at {rate:?}");
        }
    }
}
