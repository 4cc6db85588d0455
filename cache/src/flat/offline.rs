//! [`Offline`]: inspects a flat store that no gateway uses. It changes nothing, except that a check quarantines corrupt
//! files: their pins become partial, and the next start deletes them.
//!
//! All functions here block the thread.

use super::{Folder, is_in};
use crate::disk::{CheckReport, Fault, Figures, Finding, Inconsistencies, Repaired, ScrubProgress, StoreError};
use crate::indexed_store::backing::Backing as _;
use crate::indexed_store::step;
use crate::memory_index::{Key, MemoryIndex};
use crate::pins::PinSummary;
use content::BlockKey;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// An open store without a writer, exclusively locked.
#[derive(Debug)]
pub struct Offline {
    folder: Folder,
    index: MemoryIndex,
}

impl Offline {
    /// Opens the store in `dir`.
    ///
    /// # Errors
    /// [`StoreError::Missing`], and those of [`super::open`].
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        if !is_in(dir) {
            return Err(StoreError::Missing { dir: dir.to_owned() });
        }
        let folder = Folder::open(dir, 0)?;
        let index = folder.load(false)?;
        Ok(Self { folder, index })
    }

    /// The contents of the store. Reads the beginning of every file. There are no segments.
    ///
    /// # Errors
    /// I/O errors.
    pub fn figures(&self) -> Result<Figures, StoreError> {
        let mut figures = Figures::default();
        for (key, _, pinned) in self.index.keys() {
            match self.folder.shape(key) {
                Ok(Some(shape)) => figures.add_block(shape, pinned),
                // Reported by a check.
                Ok(None) | Err(StoreError::Corrupt(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.index.summaries().iter().for_each(|pin| figures.count_pin(pin.state));
        Ok(figures)
    }

    /// Verifies every value. After each step, `on_progress` is called with the progress and the step's findings. There
    /// is no index to check. Missing blocks that are withheld are counted as such.
    ///
    /// # Errors
    /// If a corrupt file could not be quarantined.
    pub fn check(
        &self,
        is_withheld: &dyn Fn(&BlockKey) -> bool,
        mut on_progress: impl FnMut(&ScrubProgress, &[Finding]),
    ) -> Result<CheckReport, StoreError> {
        let mut keys: Vec<Key> = self.index.keys().map(|(key, ..)| Arc::clone(key)).collect();
        keys.sort_unstable();
        let (mut progress, mut damaged, mut at) = (ScrubProgress::default(), HashSet::new(), 0);
        while at < keys.len() {
            let step = step(&self.folder, &keys, at, |_| true);
            progress.add_up(&step.progress);
            on_progress(&progress, &step.findings);
            for finding in &step.findings {
                let Some(key) = finding.key().map(|key| Key::from(key.to_bytes())) else { continue };
                if finding.fault == Fault::Damaged {
                    self.folder.quarantine(&key)?;
                }
                damaged.insert(key);
            }
            at = step.end;
        }
        let lacking = self.index.lacking(&damaged, is_withheld);
        Ok(CheckReport { progress, index: Inconsistencies::default(), lacking, unclaimed: 0 })
    }

    /// Every pin, complete or partial, by root.
    pub fn pins(&self) -> Vec<PinSummary> {
        self.index.summaries()
    }

    /// Recreates lost files of pins, as a start does. Values are verified by a scrub afterwards.
    ///
    /// # Errors
    /// [`StoreError::Missing`], and those of [`super::open`].
    pub fn repair(dir: &Path) -> Result<Repaired, StoreError> {
        if !is_in(dir) {
            return Err(StoreError::Missing { dir: dir.to_owned() });
        }
        Folder::open(dir, 0)?.load(true)?;
        Ok(Repaired::default())
    }
}
