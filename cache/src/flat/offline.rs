//! [`Offline`]: a flat store that no gateway runs on, to look at. Nothing is changed, but that files which a check finds damaged
//! are set aside: the pins that have them lack them from then on, and the next start deletes them.
//!
//! Everything here blocks the thread.

use super::{Folder, is_in};
use crate::disk::{CheckReport, Disagreements, Fault, Figures, Finding, Repaired, ScrubProgress, StoreError};
use crate::ledger::{Key, Ledger};
use crate::ledger_store::backing::Backing as _;
use crate::ledger_store::step;
use crate::pins::PinSummary;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// A store without a writer. Nobody else can open it meanwhile.
#[derive(Debug)]
pub struct Offline {
    folder: Folder,
    ledger: Ledger,
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
        let ledger = folder.load(false)?;
        Ok(Self { folder, ledger })
    }

    /// What the store holds. The beginning of every file is read. There are no segments.
    ///
    /// # Errors
    /// What the file system said.
    pub fn figures(&self) -> Result<Figures, StoreError> {
        let mut figures = Figures::default();
        for (key, _, pinned) in self.ledger.keys() {
            match self.folder.shape(key) {
                Ok(Some(shape)) => figures.add_block(shape, pinned),
                // For a check to tell of.
                Ok(None) | Err(StoreError::Corrupt(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.ledger.summaries().iter().for_each(|pin| figures.count_pin(pin.state));
        Ok(figures)
    }

    /// Reads every value and checks it. After each step the progress is shown, with what the step found. There is no index that
    /// could disagree.
    ///
    /// # Errors
    /// That a damaged file could not be set aside.
    pub fn check(&self, mut on_progress: impl FnMut(&ScrubProgress, &[Finding])) -> Result<CheckReport, StoreError> {
        let mut keys: Vec<Key> = self.ledger.keys().map(|(key, ..)| Arc::clone(key)).collect();
        keys.sort_unstable();
        let (mut progress, mut damaged, mut at) = (ScrubProgress::default(), HashSet::new(), 0);
        while at < keys.len() {
            let step = step(&self.folder, &keys, at, |_| true);
            progress.add_up(&step.progress);
            on_progress(&progress, &step.findings);
            for finding in &step.findings {
                let Some(key) = finding.key().map(|key| Key::from(key.to_bytes())) else { continue };
                if finding.fault == Fault::Damaged {
                    self.folder.set_aside(&key)?;
                }
                damaged.insert(key);
            }
            at = step.end;
        }
        let lacking = self.ledger.lacking(&damaged);
        Ok(CheckReport { progress, index: Disagreements::default(), lacking, unclaimed: 0 })
    }

    /// Every pin, complete or partial, by root.
    pub fn pins(&self) -> Vec<PinSummary> {
        self.ledger.summaries()
    }

    /// Makes anew what was lost of the pins' files, as a start does. Values are for a scrub to judge, after this.
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
