//! [`EntryWriter`]: receives the entries of forms and archives from their parsers; [`CatalogueWatch`]: records what is
//! complete.

use crate::uploads::names::Path;
use crate::uploads::pipeline::{Added, BareEntry, PackingResult, Pipeline, Watch};
use crate::uploads::tree::Catalogue;
use crate::uploads::{Event, Events, Progress, UploadError};
use content::Cid;
use content::importer::{Attributes, Part};
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// The timeout of sending a progress event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Imports files, folders and links.
pub struct EntryWriter<'a, 'b> {
    /// The pipeline.
    pub pipeline: &'b mut Pipeline<'a>,
    /// Whether modes are preserved.
    pub modes: bool,
    /// Whether modification times are preserved.
    pub times: bool,
}

impl EntryWriter<'_, '_> {
    /// Imports a file, to the end of its reader. Without a path, its CID is its name.
    ///
    /// # Errors
    /// [`UploadError`], possibly of an earlier file.
    pub fn file(&mut self, path: Option<&Path>, attributes: Attributes, content: impl Read) -> Result<(), UploadError> {
        let attributes = self.filtered(attributes);
        self.pipeline.file(path.map(|path| path.as_bytes().to_vec()), attributes, content)
    }

    /// Imports a folder; its entries have their own paths.
    ///
    /// # Errors
    /// As [`Self::file`].
    pub fn folder(&mut self, path: &Path, attributes: Attributes) -> Result<(), UploadError> {
        let attributes = self.filtered(attributes);
        self.pipeline.bare_entry(BareEntry::Folder { path: path.clone(), attributes })
    }

    /// Imports a symlink.
    ///
    /// # Errors
    /// As [`Self::file`].
    pub fn symlink(&mut self, path: &Path, target: &[u8], attributes: Attributes) -> Result<(), UploadError> {
        let attributes = self.filtered(attributes);
        self.pipeline.symlink(path.as_bytes().to_vec(), target.to_vec(), attributes)
    }

    /// Imports a hard link to a file of the same upload.
    ///
    /// # Errors
    /// As [`Self::file`].
    pub fn hard_link(&mut self, path: &Path, target: &Path) -> Result<(), UploadError> {
        self.pipeline.bare_entry(BareEntry::HardLink { path: path.clone(), target: target.clone() })
    }

    fn filtered(&self, attributes: Attributes) -> Attributes {
        let Attributes { mode, modified } = attributes;
        Attributes { mode: mode.filter(|_| self.modes), modified: modified.filter(|_| self.times) }
    }
}

/// Records what is complete in a catalogue, and sends progress events.
pub struct CatalogueWatch {
    /// The catalogue.
    pub catalogue: Catalogue,
    /// The progress events.
    pub progress: ProgressSender,
    /// The files that were to be packed, by their roots.
    pub packing: HashMap<Cid, PackingResult>,
}

/// Sends progress events.
pub struct ProgressSender {
    /// The current progress.
    pub progress: Arc<Progress>,
    /// The channel of all events, if there is a receiver.
    pub events: Option<Events>,
    /// The runtime, for waiting.
    pub runtime: Handle,
}

impl ProgressSender {
    /// Reports a complete entry.
    ///
    /// # Errors
    /// [`UploadError::EventsStalled`] when the receiver does not take the event for a minute.
    pub fn added(&self, path: &[u8], part: &Part) -> Result<(), UploadError> {
        let Some(events) = &self.events else { return Ok(()) };
        let event = Event::Added { path: String::from_utf8_lossy(path).into_owned(), part: *part };
        match events.try_send(event) {
            Ok(()) | Err(tokio::sync::mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(tokio::sync::mpsc::error::TrySendError::Full(event)) => self.wait(events, event),
        }
    }

    fn wait(&self, events: &Events, event: Event) -> Result<(), UploadError> {
        use tokio::sync::mpsc::error::SendTimeoutError;
        match self.runtime.block_on(async { events.send_timeout(event, EVENT_TIMEOUT).await }) {
            // The receiver was dropped.
            Ok(()) | Err(SendTimeoutError::Closed(_)) => Ok(()),
            Err(SendTimeoutError::Timeout(_)) => Err(UploadError::EventsStalled),
        }
    }
}

impl Watch for CatalogueWatch {
    fn read(&mut self, name: Option<&[u8]>, more: usize, so_far: u64) {
        let ProgressSender { progress, events, .. } = &self.progress;
        progress.read(name, more);
        if let Some(events) = events
            && events.capacity() > events.max_capacity() / 2
        {
            let path = Arc::from(String::from_utf8_lossy(name.unwrap_or_default()));
            // A dropped event does not matter: the next one has later figures.
            _ = events.try_send(Event::Read { path, bytes: so_far });
        }
    }

    fn added(&mut self, added: Added<'_>) -> Result<(), UploadError> {
        self.catalogue.complete(&Path::of(&added.path)?, added.part)?;
        if added.packing != PackingResult::NotRequested {
            self.packing.insert(added.part.cid, added.packing);
        }
        self.progress.progress.added();
        self.progress.added(&added.path, added.part)
    }

    fn bare_entry(&mut self, entry: BareEntry) -> Result<(), UploadError> {
        match entry {
            BareEntry::Folder { path, attributes } => self.catalogue.folder(&path, attributes),
            BareEntry::HardLink { path, target } => self.catalogue.hard_link(&path, &target),
        }
    }
}
