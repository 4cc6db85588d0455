//! [`Offline`]: a store that no gateway uses, opened without its writer, to inspect it and to repair its index; and
//! [`Figures`], the contents of any store.
//!
//! Goals: inspection evicts and deletes nothing; a check marks corrupt blocks, so that their pins become partial and
//! the writer deletes them at the next start; sizes are read from the index alone.
//!
//! All functions of [`Offline`] block the thread.

use super::index_files;
use super::rebuild::{self, OnRebuild, Rebuilt};
use super::repair::{self, Inconsistencies};
use super::schema::{
    DAMAGED, INDEX, IndexRecord, Kind, META, PINS, PINS_BY_BLOCK, PinId, PinRecord, Place, pin_of_block, take_u64,
};
use super::scrub::{self, Fault, Finding, IncompletePin, ScrubProgress};
use super::store::{self, Store};
use super::{Disk, DiskOptions, StoreError, open_store, parse_pin};
use crate::dag;
use crate::pins::{PinState, PinSummary};
pub use crate::reports::{Amount, Figures, SegmentsAmount};
use content::stored::Shape;
use content::{BlockKey, Cid};
use rocksdb::WriteBatch;
use std::collections::BTreeMap;
use std::path::Path;

/// An open store without a writer, exclusively locked.
#[derive(Debug)]
pub struct Offline {
    store: Store,
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The check of the values.
    pub progress: ScrubProgress,
    /// The check of the index.
    pub index: Inconsistencies,
    /// Pins with missing or corrupt blocks.
    pub lacking: Vec<IncompletePin>,
    /// Blocks kept without a known pin, because an earlier rebuild of the index found the pin journal damaged too.
    pub unclaimed: u64,
}

/// The result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// The repaired inconsistencies of the index.
    pub index: Inconsistencies,
    /// The result of rebuilding the index, if that was necessary.
    pub rebuilt: Option<Rebuilt>,
}

impl Figures {
    fn add(&mut self, record: IndexRecord) {
        self.add_value(record.shape, record.value_bytes(), record.pinned());
    }

    pub(crate) fn add_block(&mut self, shape: Shape, pinned: bool) {
        self.add_value(shape, shape.value_bytes(), pinned);
    }

    fn add_value(&mut self, shape: Shape, value_bytes: usize, pinned: bool) {
        let of_kind = if pinned { &mut self.pinned } else { &mut self.cached };
        let of_form = match shape {
            Shape::Raw { .. } => &mut self.raw,
            Shape::Frame { .. } => &mut self.framed,
            Shape::Envelope { .. } => &mut self.enveloped,
        };
        [of_kind, of_form].into_iter().for_each(|amount| amount.add(shape, value_bytes));
    }

    pub(crate) fn count_pin(&mut self, state: PinState) {
        match state {
            PinState::Complete => self.pins += 1,
            PinState::Partial => self.partial_pins += 1,
        }
    }

    /// Whether the store has segments.
    pub fn has_segments(&self) -> bool {
        self.cached_segments.segments + self.pinned_segments.segments > 0
    }

    /// All blocks.
    pub fn all(&self) -> Amount {
        let Self { cached, pinned, .. } = self;
        Amount {
            blocks: cached.blocks + pinned.blocks,
            block_bytes: cached.block_bytes + pinned.block_bytes,
            stored_bytes: cached.stored_bytes + pinned.stored_bytes,
        }
    }
}

impl Amount {
    fn add(&mut self, shape: Shape, value_bytes: usize) {
        self.blocks += 1;
        self.block_bytes += shape.block_bytes() as u64;
        self.stored_bytes += value_bytes as u64;
    }
}

impl CheckReport {
    /// Whether the check found no problems. Missing blocks that are withheld are none.
    pub fn is_clean(&self) -> bool {
        let is_whole = !self.lacking.iter().any(IncompletePin::is_damaged);
        self.progress.is_clean() && self.index.total() == 0 && is_whole && self.unclaimed == 0
    }
}

impl Offline {
    /// Opens the store in `dir`.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::InUse`], [`StoreError::NewerSchema`], or I/O errors.
    pub fn open(dir: &Path, options: &DiskOptions) -> Result<Self, StoreError> {
        if !Store::is_in(dir) {
            return Err(StoreError::Missing { dir: dir.to_owned() });
        }
        Ok(Self { store: open_store(dir, options, &store::lock(dir)?)? })
    }

    /// Repairs inconsistencies of the index of the store in `dir`; an index that cannot be read, or that lacks blocks
    /// of pins that are not withheld, is rebuilt from the segments. Values are verified by [`super::Disk::scrub`]
    /// afterwards.
    ///
    /// # Errors
    /// Those of [`Offline::open`]. Earlier repairs are kept.
    pub fn repair(
        dir: &Path,
        options: &DiskOptions,
        is_withheld: &dyn Fn(&BlockKey) -> bool,
        on_progress: OnRebuild<'_>,
    ) -> Result<Repaired, StoreError> {
        if !Store::is_in(dir) {
            return Err(StoreError::Missing { dir: dir.to_owned() });
        }
        let lock = store::lock(dir)?;
        let repaired = open_store(dir, options, &lock).and_then(|store| {
            let index = repair::check_index(&store, true)?;
            let lacking = lacking(&store, &BTreeMap::new(), is_withheld)?;
            Ok((index, lacking.iter().filter(|pin| pin.is_damaged()).count()))
        });
        let reason = match repaired {
            Ok((index, 0)) => return Ok(Repaired { index, rebuilt: None }),
            Ok((_, pins)) => format!("pins with missing blocks, which segments may have: {pins}"),
            Err(StoreError::IndexDamaged(reason)) => reason.to_string(),
            Err(error) => return Err(error),
        };
        let rebuilt = rebuild::run(dir, options, &lock, &reason, on_progress)?;
        let store = open_store(dir, options, &lock)?;
        Ok(Repaired { index: repair::check_index(&store, true)?, rebuilt: Some(rebuilt) })
    }

    /// Schedules the deletion of blocks kept without a known pin ([`CheckReport::unclaimed`]), at the next start of the
    /// writer.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn release_unclaimed(&self) -> Result<(), StoreError> {
        rebuild::release_unclaimed(&self.store)?;
        index_files::unmark_unclaimed(self.store.dir())
    }

    /// The contents of the store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn figures(&self) -> Result<Figures, StoreError> {
        figures(&self.store)
    }

    /// Every pin, complete or partial, by root.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn pins(&self) -> Result<Vec<PinSummary>, StoreError> {
        self.store.pins()
    }

    /// Verifies every value, and the consistency of the index. After each step, `on_progress` is called with the
    /// progress and the step's findings. Missing blocks that are withheld are counted as such.
    ///
    /// # Errors
    /// Errors of the index; corrupt values are not errors.
    pub fn check(
        &self,
        is_withheld: &dyn Fn(&BlockKey) -> bool,
        mut on_progress: impl FnMut(&ScrubProgress, &[Finding]),
    ) -> Result<CheckReport, StoreError> {
        let index = repair::check_index(&self.store, false)?;
        let (mut progress, mut damaged) = (ScrubProgress::default(), BTreeMap::new());
        let mut next = Some(Place::default());
        while let Some(from) = next {
            let step = scrub::step(&self.store, from, u32::MAX)?;
            progress.add(&step);
            on_progress(&progress, &step.findings);
            step.findings.iter().try_for_each(|finding| self.count_pins(finding, &mut damaged))?;
            self.mark_damaged(&step.findings)?;
            next = step.next;
        }
        let lacking = lacking(&self.store, &damaged, is_withheld)?;
        self.mark_partial(&lacking)?;
        Ok(CheckReport { progress, index, lacking, unclaimed: rebuild::count_unclaimed(&self.store)? })
    }

    /// Makes pins with missing blocks partial.
    fn mark_partial(&self, lacking: &[IncompletePin]) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        for pin in lacking {
            let root = pin.root.to_bytes();
            if let Some(record) = self.store.pin(&root)?.filter(|record| record.state == PinState::Complete) {
                let record = PinRecord { state: PinState::Partial, ..record };
                batch.put_cf(self.store.family(PINS)?, root, record.to_bytes());
            }
        }
        if batch.is_empty() { Ok(()) } else { self.store.write(batch, true) }
    }

    /// Marks corrupt blocks: the writer verifies them again and deletes them when the store is next opened.
    fn mark_damaged(&self, findings: &[Finding]) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        for key in findings.iter().filter(|finding| finding.fault == Fault::Damaged).filter_map(Finding::key) {
            batch.put_cf(self.store.family(META)?, [DAMAGED, &key.to_bytes()].concat(), []);
        }
        if batch.is_empty() { Ok(()) } else { self.store.write(batch, false) }
    }

    /// Increments the count of each pin that has a block.
    fn count_pins(&self, finding: &Finding, by_pin: &mut BTreeMap<u64, u64>) -> Result<(), StoreError> {
        let block = finding.cid.hash().to_bytes();
        for row in self.store.keys_with_prefix(PINS_BY_BLOCK, &block)? {
            if let Some(pin) = take_u64(&mut &row?[block.len()..]) {
                *by_pin.entry(pin).or_default() += 1;
            }
        }
        Ok(())
    }

    /// The blocks that a check marked as corrupt and the writer has not deleted yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn noted(&self) -> Result<Vec<Finding>, StoreError> {
        let mut marked = Vec::new();
        for row in self.store.keys_with_prefix(META, DAMAGED)? {
            marked.extend(BlockKey::from_bytes(&row?[DAMAGED.len()..]).map(|key| Finding::new(&key, Fault::Damaged)));
        }
        Ok(marked)
    }

    #[cfg(test)]
    pub(crate) fn repair_index(&self) -> Result<Inconsistencies, StoreError> {
        repair::check_index(&self.store, true)
    }
}

/// The pins with missing blocks: members that are not stored or are among `damaged`, which counts them by pin, and
/// blocks of their DAGs that are not listed as members.
fn lacking(
    store: &Store,
    damaged: &BTreeMap<u64, u64>,
    is_withheld: &dyn Fn(&BlockKey) -> bool,
) -> Result<Vec<IncompletePin>, StoreError> {
    let mut unlisted = BTreeMap::new();
    for row in store.rows_from(PINS, &[])? {
        let (root, record) = parse_pin(&row?)?;
        if record.state == PinState::Complete {
            unlisted.insert(record.id.0, count_unlisted(store, root, record.id)?);
        }
    }
    for (pin, damaged) in damaged {
        *unlisted.entry(*pin).or_default() += damaged;
    }
    unlisted.retain(|_, blocks| *blocks > 0);
    scrub::lacking(store, &unlisted, is_withheld)
}

/// Blocks of a DAG that are not members of its pin.
fn count_unlisted(store: &Store, root: Cid, pin: PinId) -> Result<u64, StoreError> {
    let mut unlisted = 0;
    dag::walk(store, root, &mut |visited| {
        unlisted += u64::from(!store.holds(PINS_BY_BLOCK, &pin_of_block(&visited.key.to_bytes(), pin))?);
        Ok(())
    })?;
    Ok(unlisted)
}

impl Disk {
    /// The contents of the store, from the index alone: about a second for a million blocks.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn figures(&self) -> Result<Figures, StoreError> {
        self.read(figures).await
    }
}

fn figures(store: &Store) -> Result<Figures, StoreError> {
    let mut figures = Figures::default();
    for row in store.rows_from(INDEX, &[])? {
        // Malformed records are reported by a check.
        if let Some(record) = IndexRecord::from_bytes(&row?.1) {
            figures.add(record);
        }
    }
    for (_, record) in store.segments()? {
        let segments = match record.kind {
            Kind::Cached => &mut figures.cached_segments,
            Kind::Pinned => &mut figures.pinned_segments,
        };
        segments.segments += 1;
        segments.bytes += u64::from(record.written);
        segments.dead_bytes += u64::from(record.written.saturating_sub(record.live));
    }
    for pin in store.pins()? {
        match pin.state {
            PinState::Complete => figures.pins += 1,
            PinState::Partial => figures.partial_pins += 1,
        }
    }
    Ok(figures)
}
