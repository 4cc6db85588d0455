//! [`Watermarks`]: the pin journal of a store, and how far its index has come on the disk as the journal has it.
//!
//! The number of the last write is noted after each sync of RocksDB's log: an index that is opened with a lower one lost
//! writes that were acknowledged, whatever RocksDB takes for the torn end of its log. The length of the manifest is noted a while
//! after it was seen, when it is on the disk for certain, and when the store is closed.

use super::index_files;
use crate::pin_journal::{JournalContents, PinJournal, Watermark};
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::debug;

/// A manifest that was seen so long ago is on the disk: RocksDB syncs each of its changes.
const MANIFEST_SETTLES: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(super) struct Watermarks {
    pub(super) journal: PinJournal,
    /// What it said when it was opened, until that has been compared.
    found: Option<JournalContents>,
    noted: Watermark,
    /// A manifest that is longer than what is noted, and when it was seen.
    seen: Option<(Instant, (u64, u64))>,
}

impl Watermarks {
    pub(super) fn new(journal: PinJournal, found: JournalContents) -> Self {
        Self { journal, noted: found.watermark.unwrap_or_default(), found: Some(found), seen: None }
    }

    pub(super) fn take_journal_contents(&mut self) -> Option<JournalContents> {
        self.found.take()
    }

    /// What is noted.
    pub(super) fn noted(&self) -> Watermark {
        self.noted
    }

    /// The index has so many writes on the disk.
    pub(super) fn note_sequence(&mut self, sequence: u64, dir: &Path) {
        let manifest = self.settled_manifest(dir);
        self.note(Watermark { sequence, manifest: manifest.0, manifest_bytes: manifest.1 });
    }

    /// The store is closed: what the manifest is now, it stays.
    pub(super) fn note_manifest(&mut self, dir: &Path) {
        if let Some((manifest, manifest_bytes)) = index_files::manifest(dir).filter(|_| self.noted.sequence > 0) {
            self.note(Watermark { manifest, manifest_bytes, ..self.noted });
        }
    }

    fn settled_manifest(&mut self, dir: &Path) -> (u64, u64) {
        let noted = (self.noted.manifest, self.noted.manifest_bytes);
        match self.seen {
            Some((at, _)) if at.elapsed() < MANIFEST_SETTLES => noted,
            seen => {
                self.seen = index_files::manifest(dir).map(|manifest| (Instant::now(), manifest));
                seen.map_or(noted, |(_, manifest)| manifest)
            }
        }
    }

    fn note(&mut self, watermark: Watermark) {
        if watermark == self.noted {
            return;
        }
        match self.journal.write_watermark(watermark) {
            Ok(()) => self.noted = watermark,
            // The former one stays true.
            Err(error) => debug!(%error, "how far the index has come could not be noted"),
        }
    }
}
