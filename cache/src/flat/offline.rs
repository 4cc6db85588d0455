//! [`Offline`]: a flat store that no gateway runs on, to look at. Nothing is changed.
//!
//! Everything here blocks the thread.

use super::{Folder, is_in};
use crate::disk::{CheckReport, Disagreements, Figures, Finding, ScrubProgress, StoreError};
use crate::ledger::{Key, Ledger};
use crate::ledger_store::backing::Backing as _;
use crate::ledger_store::step;
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
    pub fn check(&self, mut on_progress: impl FnMut(&ScrubProgress, &[Finding])) -> CheckReport {
        let mut keys: Vec<Key> = self.ledger.keys().map(|(key, ..)| Arc::clone(key)).collect();
        keys.sort_unstable();
        let (mut progress, mut damaged, mut at) = (ScrubProgress::default(), HashSet::new(), 0);
        while at < keys.len() {
            let step = step(&self.folder, &keys, at, |_| true);
            progress.add_up(&step.progress);
            on_progress(&progress, &step.findings);
            damaged.extend(step.findings.iter().filter_map(Finding::key).map(|key| Key::from(key.to_bytes())));
            at = step.end;
        }
        CheckReport { progress, index: Disagreements::default(), lacking: self.ledger.lacking(&damaged) }
    }
}
