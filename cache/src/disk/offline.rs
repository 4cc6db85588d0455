//! [`Offline`]: a store that no gateway runs on, opened without its writer, to look at it and to mend its index; and
//! [`Figures`], what any store holds.
//!
//! Goals: looking evicts nothing and forgets nothing; a check notes what it finds damaged, so that pins say that they lack it and
//! the writer forgets it when it next runs; what it says of sizes comes from the index alone.
//!
//! Everything of [`Offline`] blocks the thread.

use super::index_files;
use super::rebuild::{self, OnRebuild, Rebuilt};
use super::repair::{self, Disagreements};
use super::schema::{
    DAMAGED, INDEX, IndexRecord, Kind, META, PINS, PINS_BY_BLOCK, PinId, PinRecord, Place, pin_of_block, take_u64,
};
use super::scrub::{self, Fault, Finding, LackingPin, ScrubProgress};
use super::store::{self, Store};
use super::{Disk, DiskOptions, StoreError, open_store, parse_pin};
use crate::dag;
use crate::pins::{PinState, PinSummary};
pub use crate::reports::{Amount, Figures, SegmentsAmount};
use crate::stored::Shape;
use content::{BlockKey, Cid};
use rocksdb::WriteBatch;
use std::collections::BTreeMap;
use std::path::Path;

/// An open store without a writer. Nobody else can open it meanwhile.
#[derive(Debug)]
pub struct Offline {
    store: Store,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The values.
    pub progress: ScrubProgress,
    /// The index.
    pub index: Disagreements,
    /// Pins that lack blocks, damaged ones included.
    pub lacking: Vec<LackingPin>,
    /// Blocks that stay although no pin is known to have them, since an earlier rebuild of the index found the pin journal
    /// damaged too.
    pub unclaimed: u64,
}

/// What a repair came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Where the index disagreed, and does not any more.
    pub index: Disagreements,
    /// What became of an index that had to be rebuilt.
    pub rebuilt: Option<Rebuilt>,
}

impl Figures {
    fn add(&mut self, record: IndexRecord) {
        self.add_block(record.shape, record.pinned());
    }

    pub(crate) fn add_block(&mut self, shape: Shape, pinned: bool) {
        let of_kind = if pinned { &mut self.pinned } else { &mut self.cached };
        of_kind.add(shape);
        match shape {
            Shape::Raw { .. } => self.raw.add(shape),
            Shape::Frame { .. } => self.framed.add(shape),
            Shape::Envelope { .. } => self.enveloped.add(shape),
        }
    }

    pub(crate) fn count_pin(&mut self, state: PinState) {
        match state {
            PinState::Complete => self.pins += 1,
            PinState::Partial => self.partial_pins += 1,
        }
    }

    /// Whether the store keeps values in segments, and has any.
    pub fn has_segments(&self) -> bool {
        self.cached_segments.segments + self.pinned_segments.segments > 0
    }

    /// Blocks of every sort.
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
    fn add(&mut self, shape: Shape) {
        self.blocks += 1;
        self.block_bytes += shape.block_bytes() as u64;
        self.stored_bytes += shape.value_bytes() as u64;
    }
}

impl CheckReport {
    /// Whether nothing is wrong with the store.
    pub fn is_clean(&self) -> bool {
        self.progress.is_clean() && self.index.total() == 0 && self.lacking.is_empty() && self.unclaimed == 0
    }
}

impl Offline {
    /// Opens the store in `dir`. One that an earlier release wrote is brought up to date first.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::InUse`], [`StoreError::NewerSchema`], or what the file system said.
    pub fn open(dir: &Path, options: &DiskOptions) -> Result<Self, StoreError> {
        if !Store::is_in(dir) {
            return Err(StoreError::Missing { dir: dir.to_owned() });
        }
        Ok(Self { store: open_store(dir, options, &store::lock(dir)?)? })
    }

    /// Makes the index of the store in `dir` agree with itself and with the files; one that cannot be read, or that lacks
    /// blocks of pins, is rebuilt from the segments. Values are for [`super::Disk::scrub`] to judge, after this.
    ///
    /// # Errors
    /// Those of [`Offline::open`], or what the disk said. What was mended before stays so.
    pub fn repair(dir: &Path, options: &DiskOptions, on_progress: OnRebuild<'_>) -> Result<Repaired, StoreError> {
        if !Store::is_in(dir) {
            return Err(StoreError::Missing { dir: dir.to_owned() });
        }
        let lock = store::lock(dir)?;
        let mended = open_store(dir, options, &lock).and_then(|store| {
            let index = repair::check_index(&store, true)?;
            Ok((index, lacking(&store, &BTreeMap::new())?.len()))
        });
        let reason = match mended {
            Ok((index, 0)) => return Ok(Repaired { index, rebuilt: None }),
            Ok((_, pins)) => format!("pins that lack blocks, which segments may have: {pins}"),
            Err(StoreError::IndexDamaged(reason)) => reason.to_string(),
            Err(error) => return Err(error),
        };
        let rebuilt = rebuild::run(dir, options, &lock, &reason, on_progress)?;
        let store = open_store(dir, options, &lock)?;
        Ok(Repaired { index: repair::check_index(&store, true)?, rebuilt: Some(rebuilt) })
    }

    /// Lets go of the blocks that stay although no pin is known to have them ([`CheckReport::unclaimed`]), when the store is
    /// next opened to be written to.
    ///
    /// # Errors
    /// What the disk said.
    pub fn release_unclaimed(&self) -> Result<(), StoreError> {
        rebuild::release_unclaimed(&self.store)?;
        index_files::unmark_unclaimed(self.store.dir())
    }

    /// What the store holds.
    ///
    /// # Errors
    /// What the disk said.
    pub fn figures(&self) -> Result<Figures, StoreError> {
        figures(&self.store)
    }

    /// Every pin, complete or partial, by root.
    ///
    /// # Errors
    /// What the disk said.
    pub fn pins(&self) -> Result<Vec<PinSummary>, StoreError> {
        self.store.pins()
    }

    /// Reads every value and checks it, and the index against itself. After each step the progress is shown, with what the
    /// step found.
    ///
    /// # Errors
    /// What the disk said of the index; damaged values are no errors.
    pub fn check(&self, mut on_progress: impl FnMut(&ScrubProgress, &[Finding])) -> Result<CheckReport, StoreError> {
        let index = repair::check_index(&self.store, false)?;
        let (mut progress, mut damaged) = (ScrubProgress::default(), BTreeMap::new());
        let mut next = Some(Place::default());
        while let Some(from) = next {
            let step = scrub::step(&self.store, from, u32::MAX)?;
            progress.add(&step);
            on_progress(&progress, &step.findings);
            step.findings.iter().try_for_each(|finding| self.count_pins(finding, &mut damaged))?;
            self.note_damaged(&step.findings)?;
            next = step.next;
        }
        let lacking = lacking(&self.store, &damaged)?;
        self.note_lacking(&lacking)?;
        Ok(CheckReport { progress, index, lacking, unclaimed: rebuild::count_unclaimed(&self.store)? })
    }

    /// Makes pins partial that lack blocks.
    fn note_lacking(&self, lacking: &[LackingPin]) -> Result<(), StoreError> {
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

    /// Notes blocks whose values are damaged: the writer forgets them when the store is next opened, after it has read
    /// them again.
    fn note_damaged(&self, findings: &[Finding]) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        for key in findings.iter().filter(|finding| finding.fault == Fault::Damaged).filter_map(Finding::key) {
            batch.put_cf(self.store.family(META)?, [DAMAGED, &key.to_bytes()].concat(), []);
        }
        if batch.is_empty() { Ok(()) } else { self.store.write(batch, false) }
    }

    /// Counts a block for each pin that has it.
    fn count_pins(&self, finding: &Finding, by_pin: &mut BTreeMap<u64, u64>) -> Result<(), StoreError> {
        let block = finding.cid.hash().to_bytes();
        for row in self.store.keys_with_prefix(PINS_BY_BLOCK, &block)? {
            if let Some(pin) = take_u64(&mut &row?[block.len()..]) {
                *by_pin.entry(pin).or_default() += 1;
            }
        }
        Ok(())
    }

    /// What a check found damaged and noted, and the writer has not forgotten yet.
    ///
    /// # Errors
    /// What the disk said.
    pub fn noted(&self) -> Result<Vec<Finding>, StoreError> {
        let mut noted = Vec::new();
        for row in self.store.keys_with_prefix(META, DAMAGED)? {
            noted.extend(BlockKey::from_bytes(&row?[DAMAGED.len()..]).map(|key| Finding::new(&key, Fault::Damaged)));
        }
        Ok(noted)
    }

    #[cfg(test)]
    pub(crate) fn mend(&self) -> Result<Disagreements, StoreError> {
        repair::check_index(&self.store, true)
    }
}

/// The pins that lack blocks: members that are not held or are among `damaged`, which counts such by pin, and blocks of their
/// DAGs that are not even members.
fn lacking(store: &Store, damaged: &BTreeMap<u64, u64>) -> Result<Vec<LackingPin>, StoreError> {
    let mut strays = BTreeMap::new();
    for row in store.rows_from(PINS, &[])? {
        let (root, record) = parse_pin(&row?)?;
        if record.state == PinState::Complete {
            strays.insert(record.id.0, count_strays(store, root, record.id)?);
        }
    }
    for (pin, damaged) in damaged {
        *strays.entry(*pin).or_default() += damaged;
    }
    strays.retain(|_, blocks| *blocks > 0);
    scrub::lacking(store, &strays)
}

/// Blocks of a DAG that are not members of its pin.
fn count_strays(store: &Store, root: Cid, pin: PinId) -> Result<u64, StoreError> {
    let mut strays = 0;
    dag::walk(store, root, &mut |visited| {
        strays += u64::from(!store.holds(PINS_BY_BLOCK, &pin_of_block(&visited.key.to_bytes(), pin))?);
        Ok(())
    })?;
    Ok(strays)
}

impl Disk {
    /// What the store holds, from the index alone: about a second for a million blocks.
    ///
    /// # Errors
    /// What the disk said.
    pub async fn figures(&self) -> Result<Figures, StoreError> {
        self.read(figures).await
    }
}

fn figures(store: &Store) -> Result<Figures, StoreError> {
    let mut figures = Figures::default();
    for row in store.rows_from(INDEX, &[])? {
        // Malformed records are for a check to tell of.
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
