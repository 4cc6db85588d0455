//! [`Taker`]: what the readers of forms and archives hand their files to; [`Keeper`], which puts down what became of them.

use crate::uploads::names::Path;
use crate::uploads::pipeline::{Added, Note, Pipeline, Watch};
use crate::uploads::tree::Catalogue;
use crate::uploads::{Event, Events, Progress, UploadError};
use content::importer::{Attributes, Part};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// How long nobody may take an event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes in files, folders and links.
pub struct Taker<'a, 'b> {
    /// Where bytes become blocks.
    pub pipeline: &'b mut Pipeline<'a>,
    /// Whether modes are kept.
    pub modes: bool,
    /// Whether times are kept.
    pub times: bool,
}

impl Taker<'_, '_> {
    /// Takes in a file, to the end of its reader. Without a path it is called by its CID.
    ///
    /// # Errors
    /// [`UploadError`], perhaps about a file before this one.
    pub fn file(&mut self, path: Option<&Path>, attributes: Attributes, content: impl Read) -> Result<(), UploadError> {
        let attributes = self.kept(attributes);
        self.pipeline.file(path.map(|path| path.as_bytes().to_vec()), attributes, content)
    }

    /// Takes in a folder; what is in it has paths of its own.
    ///
    /// # Errors
    /// The same.
    pub fn folder(&mut self, path: &Path, attributes: Attributes) -> Result<(), UploadError> {
        let attributes = self.kept(attributes);
        self.pipeline.note(Note::Folder { path: path.clone(), attributes })
    }

    /// Takes in a symlink.
    ///
    /// # Errors
    /// The same.
    pub fn symlink(&mut self, path: &Path, target: &[u8], attributes: Attributes) -> Result<(), UploadError> {
        let attributes = self.kept(attributes);
        self.pipeline.symlink(path.as_bytes().to_vec(), target.to_vec(), attributes)
    }

    /// Takes in another path for a file of the same upload.
    ///
    /// # Errors
    /// The same.
    pub fn hard_link(&mut self, path: &Path, target: &Path) -> Result<(), UploadError> {
        self.pipeline.note(Note::HardLink { path: path.clone(), target: target.clone() })
    }

    fn kept(&self, attributes: Attributes) -> Attributes {
        let Attributes { mode, modified } = attributes;
        Attributes { mode: mode.filter(|_| self.modes), modified: modified.filter(|_| self.times) }
    }
}

/// Puts down what is complete, and tells of it.
pub struct Keeper {
    /// What came.
    pub catalogue: Catalogue,
    /// Who wants to hear of it.
    pub herald: Herald,
}

/// Tells of what happens.
pub struct Herald {
    /// The figures that others look at.
    pub progress: Arc<Progress>,
    /// Who wants to hear of everything.
    pub events: Option<Events>,
    /// Where waiting is done.
    pub runtime: Handle,
}

impl Herald {
    /// Something is complete.
    ///
    /// # Errors
    /// [`UploadError::Unheard`] when nobody takes the event for a minute.
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
        match self.runtime.block_on(async { events.send_timeout(event, PATIENCE).await }) {
            // Whoever has gone wants to hear nothing.
            Ok(()) | Err(SendTimeoutError::Closed(_)) => Ok(()),
            Err(SendTimeoutError::Timeout(_)) => Err(UploadError::Unheard),
        }
    }
}

impl Watch for Keeper {
    fn read(&mut self, name: Option<&[u8]>, more: usize, so_far: u64) {
        let Herald { progress, events, .. } = &self.herald;
        progress.read(name, more);
        if let Some(events) = events
            && events.capacity() > events.max_capacity() / 2
        {
            let path = Arc::from(String::from_utf8_lossy(name.unwrap_or_default()));
            // One that finds no room is not missed: the next one says more.
            _ = events.try_send(Event::Read { path, bytes: so_far });
        }
    }

    fn added(&mut self, added: Added<'_>) -> Result<(), UploadError> {
        self.catalogue.whole(&Path::of(&added.path)?, added.part)?;
        self.herald.progress.added();
        self.herald.added(&added.path, added.part)
    }

    fn noted(&mut self, note: Note) -> Result<(), UploadError> {
        match note {
            Note::Folder { path, attributes } => self.catalogue.folder(&path, attributes),
            Note::HardLink { path, target } => self.catalogue.hard_link(&path, &target),
        }
    }
}
