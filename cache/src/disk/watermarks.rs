//! [`Watermarks`]: the pin journal of a store, and the synced position of its index as recorded there.
//!
//! The sequence number of the last write is recorded after each sync of RocksDB's log: an index that is opened with a
//! lower one lost acknowledged writes, even if RocksDB takes this for a torn end of its log. The length of the manifest
//! is recorded some time after it was read, when it is certainly synced, and when the store is closed.

use super::index_files;
use crate::pin_journal::{JournalContents, PinJournal, Watermark};
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::debug;

/// A manifest that was read this long ago is synced: RocksDB syncs each of its changes.
const MANIFEST_SETTLES: Duration = Duration::from_secs(10);

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Watermarks {
    pub(super) journal: PinJournal,
    /// The journal's contents when it was opened, until they were compared with the index.
    opened: Option<JournalContents>,
    current: Watermark,
    /// A manifest that is not recorded yet, and when it was read.
    seen: Option<(Instant, (u64, u64))>,
}

impl Watermarks {
    pub(super) fn new(journal: PinJournal, found: JournalContents) -> Self {
        Self { journal, current: found.watermark.unwrap_or_default(), opened: Some(found), seen: None }
    }

    pub(super) fn take_journal_contents(&mut self) -> Option<JournalContents> {
        self.opened.take()
    }

    /// The recorded watermark.
    pub(super) fn current(&self) -> Watermark {
        self.current
    }

    /// Records the sequence number of the last synced write.
    pub(super) fn record_sequence(&mut self, sequence: u64, dir: &Path) {
        let manifest = self.settled_manifest(dir);
        self.record(Watermark { sequence, manifest: manifest.0, manifest_bytes: manifest.1 });
    }

    /// Records the manifest when the store is closed, since it does not change any more.
    pub(super) fn record_manifest(&mut self, dir: &Path) {
        if let Some((manifest, manifest_bytes)) = index_files::manifest(dir).filter(|_| self.current.sequence > 0) {
            self.record(Watermark { manifest, manifest_bytes, ..self.current });
        }
    }

    fn settled_manifest(&mut self, dir: &Path) -> (u64, u64) {
        let current = (self.current.manifest, self.current.manifest_bytes);
        match self.seen {
            Some((at, _)) if at.elapsed() < MANIFEST_SETTLES => current,
            seen => {
                self.seen = index_files::manifest(dir).map(|manifest| (Instant::now(), manifest));
                seen.map_or(current, |(_, manifest)| manifest)
            }
        }
    }

    fn record(&mut self, watermark: Watermark) {
        if watermark == self.current {
            return;
        }
        match self.journal.write_watermark(watermark) {
            Ok(()) => self.current = watermark,
            // The previous watermark stays valid.
            Err(error) => debug!(%error, "the watermark of the index could not be recorded"),
        }
    }
}
