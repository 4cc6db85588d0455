//! The flat store: one file for each block, in directories by key, and pins as files beside them.
//!
//! ```text
//! schema                 the schema version
//! pins.journal           the pin journal
//! causeway.lock, owner   the lock
//! scrub                  the position of the scrub
//! blocks/2i/afkrei…2ia   a block
//! pins/ID.pin, .members  a pin
//! ```
//!
//! Goals: usable on a network file system; needs only creating, renaming, deleting and syncing files, no memory
//! mapping, range locks or hard links; its contents are determined by the files alone, so that files may be copied in
//! or deleted. An acknowledged pin survives `kill -9` and power loss.
//!
//! Costs: memory for each block ([`crate::memory_index`]), reading every file's name and size at the start, files of
//! whole pages, and a sync for each block of a pin. On a local disk, [`crate::Disk`] needs less of all of these.
//!
//! | | cached | pinned |
//! |---|---|---|
//! | written | renamed, never synced | synced and renamed; names and members synced before the acknowledgement |
//! | power loss | empty files are deleted at the start; checksums detect others | nothing acknowledged is lost |
//! | deleted | oldest first, except blocks read since or in the RAM cache | when its last pin is removed |
//!
//! A file that disappears, or that the server does not know any more (`ESTALE`), counts as missing, and its block is
//! fetched again. A member of a pin that was partial when the store was opened is written again when the pin is
//! resumed, since its file may be older than the pin.
//!
//! Two gateways cannot use one directory at the same time (`lock`), since each would evict what the other has pinned.
//! Reading or copying the files while a gateway runs is safe.
//!
//! | module | concern |
//! |---|---|
//! | `names` | file names |
//! | `files` | blocks as files |
//! | `calls` | file system calls |
//! | `pins` | pins as files |
//! | `lock` | the lock on the directory |
//! | [`offline`] | inspects a store that no gateway uses |
//!
//! Non-goals: recency across restarts, other than the files' modification times; recompression.

mod calls;
mod files;
mod lock;
mod names;
pub mod offline;
mod pins;
#[cfg(test)]
pub(crate) mod power;

use self::files::{Files, FoundFile};
use self::lock::Lock;
use self::pins::{FoundPin, PinFiles};
use crate::disk::StoreError;
use crate::disk::store::check_hash;
use crate::indexed_store::backing::{Backing, NewValue, ScrubPosition};
use crate::indexed_store::{IndexedStore, StoreLimits};
use crate::memory_index::{Key, MemoryIndex, ValueInfo};
use crate::pin_journal::{self, JournalContents, PinJournal};
use crate::pins::{PinId, PinRecord, PinState};
use crate::space::{self, Space};
use crate::store::BlockStore;
use crate::{dag, folder};
use bytes::Bytes;
use content::stored::{self, Shape, Stored};
use content::{BlockKey, Cid};
use futures::future::BoxFuture;
use std::cmp::Reverse;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{debug, error, warn};

/// The schema version that this release reads and writes. It is incremented for changes that older releases would
/// misread.
const SCHEMA: u32 = 1;

const SCHEMA_FILE: &str = "schema";
const BLOCKS_DIR: &str = "blocks";
const PINS_DIR: &str = "pins";
const SCRUB_FILE: &str = "scrub";

/// Options of a store. The defaults suit a small server.
#[derive(Debug, Clone)]
pub struct FlatOptions {
    /// The budget of unpinned blocks, in bytes: files in pages of 4 KiB, and 512 bytes for each. It may be exceeded
    /// temporarily.
    pub cache_bytes_max: u64,
    /// The space to keep free on the file system, in bytes. With less, the cache shrinks; when there is none left,
    /// nothing is stored and pins fail.
    pub free_bytes_min: u64,
    /// How blocks are compressed.
    pub zstd: stored::CompressionOptions,
    /// The size of the write queue, in bytes.
    pub queue_bytes_max: usize,
    /// The number of concurrent reads.
    pub reads_max: usize,
}

impl Default for FlatOptions {
    fn default() -> Self {
        Self {
            cache_bytes_max: 20 * 1024 * 1024 * 1024,
            free_bytes_min: 1024 * 1024 * 1024,
            zstd: stored::CompressionOptions::default(),
            queue_bytes_max: 16 * 1024 * 1024,
            reads_max: 32,
        }
    }
}

/// Opens the store in `dir`, creating it if need be. Blocks the thread; reads the name and the size of every file.
///
/// # Errors
/// [`StoreError::InUse`], [`StoreError::InUseElsewhere`], [`StoreError::NewerSchema`], or I/O errors.
pub fn open(dir: &Path, options: &FlatOptions) -> Result<Arc<dyn BlockStore>, StoreError> {
    let limits = StoreLimits {
        cache_bytes_max: options.cache_bytes_max,
        bytes_max: u64::MAX,
        free_bytes_min: options.free_bytes_min,
        zstd: options.zstd,
        queue_bytes_max: options.queue_bytes_max,
        reads_max: options.reads_max,
    };
    folder::create(dir).map_err(|error| failed(dir, &error))?;
    let folder = Folder::open(dir, options.free_bytes_min)?;
    for part in [BLOCKS_DIR, PINS_DIR] {
        let part = dir.join(part);
        fs::create_dir_all(&part).map_err(|error| failed(&part, &error))?;
    }
    if read_schema(dir)? != Some(SCHEMA) {
        replace(&dir.join(SCHEMA_FILE), format!("{SCHEMA}\n").as_bytes())?;
    }
    // The previous process may have been killed before it synced these names, and the pins that are found must be
    // durable.
    sync_folder(dir)?;
    sync_folder(&dir.join(PINS_DIR))?;
    let index = folder.load(true)?;
    Ok(Arc::new(IndexedStore::start(folder, index, &limits)?))
}

/// Whether a directory contains a store.
pub fn is_in(dir: &Path) -> bool {
    dir.join(SCHEMA_FILE).exists() || dir.join(BLOCKS_DIR).exists()
}

/// The files of a store.
#[derive(Debug)]
struct Folder {
    dir: PathBuf,
    files: Files,
    pins: PinFiles,
    /// The contents of the pin journal when it was opened.
    journaled: JournalContents,
    /// The space to keep free, for error messages.
    free_bytes_min: u64,
    lock: Lock,
}

impl Folder {
    /// Locks an existing directory, and checks its schema.
    fn open(dir: &Path, free_bytes_min: u64) -> Result<Self, StoreError> {
        let lock = Lock::take(dir)?;
        let unread = |error: io::Error| failed(&dir.join(pin_journal::NAME), &error);
        check_schema(dir, &PinJournal::read(dir).map_err(unread)?)?;
        let (journal, journaled) = PinJournal::open(dir).map_err(unread)?;
        let (files, pins) = (Files::new(dir.join(BLOCKS_DIR)), PinFiles::new(dir.join(PINS_DIR), journal));
        Ok(Self { dir: dir.to_owned(), files, pins, journaled, free_bytes_min, lock })
    }

    /// Builds the index from the files. With `clean_up`, temporary and stale files are deleted.
    fn load(&self, clean_up: bool) -> Result<MemoryIndex, StoreError> {
        let mut found = self.files.list(clean_up)?;
        found.sort_unstable_by_key(|found| found.modified);
        let mut index = MemoryIndex::default();
        for FoundFile { key, bytes, .. } in found {
            index.put(&key, ValueInfo { bytes, shape: None, durable: false });
        }
        let mut pins = self.pins.load(&self.journaled, clean_up)?;
        pins.sort_unstable_by_key(|found| Reverse((found.record.state == PinState::Complete, found.record.id)));
        for found in pins {
            self.load_pin(&mut index, found, clean_up)?;
        }
        index.mark_lacking();
        Ok(index)
    }

    fn load_pin(&self, index: &mut MemoryIndex, found: FoundPin, clean_up: bool) -> Result<(), StoreError> {
        let FoundPin { root, record, members } = found;
        let (pin, acknowledged) = (record.id, acknowledged(&record));
        if root.is_some_and(|root| index.pin_of(&root).is_some()) {
            // A duplicate: the pin was begun while the disk failed, and begun once more.
            return if clean_up { self.pins.remove(pin) } else { Ok(()) };
        }
        let is_short = record.state == PinState::Complete && (members.len() as u64) < record.blocks;
        index.set_pin(root, record.clone());
        for (at, (key, block_bytes)) in members.iter().enumerate() {
            index.add_member(pin, key, *block_bytes);
            if (at as u64) < acknowledged {
                index.mark_durable(key);
            }
        }
        match root {
            Some(root) if is_short => self.find_members(index, root, record, clean_up),
            _ => Ok(()),
        }
    }

    /// Finds the members of a pin whose list is damaged, by traversing the stored blocks.
    fn find_members(
        &self,
        index: &mut MemoryIndex,
        root: Cid,
        record: PinRecord,
        clean_up: bool,
    ) -> Result<(), StoreError> {
        let (pin, mut found, mut missing) = (record.id, Vec::new(), 0);
        let walked = dag::walk(self, root, &mut |visited| {
            let (key, bytes) = (Key::from(visited.key.to_bytes()), visited.block_bytes.unwrap_or_default() as u64);
            missing += u64::from(visited.block_bytes.is_none());
            if index.add_member(pin, &key, bytes) {
                found.push((key, bytes));
            }
            Ok(())
        })?;
        let blocks = index.current(pin).map_or(0, |record| record.blocks);
        if walked && missing == 0 && blocks == record.blocks {
            warn!(%root, members = found.len(), "the list of a pin's members was damaged and has been rebuilt");
        } else {
            error!(%root, "members of a pin were lost: pin it again to complete it");
            index.set_pin(Some(root), PinRecord { state: PinState::Partial, ..record.clone() });
        }
        if clean_up {
            self.pins.add(pin, &found)?;
            self.pins.sync()?;
            found.iter().for_each(|(key, _)| index.mark_durable(key));
        }
        Ok(())
    }

    /// Quarantines a corrupt file.
    fn quarantine(&self, key: &[u8]) -> Result<(), StoreError> {
        self.files.quarantine(key)
    }

    /// Adds the free space to an error about lack of space.
    fn with_space_figures(&self, error: StoreError) -> StoreError {
        match (&error, self.space()) {
            (StoreError::Full { .. }, Ok(space)) => self.shortage_error(space, self.free_bytes_min),
            _ => error,
        }
    }
}

/// The number of a pin's members that are certainly synced.
fn acknowledged(record: &PinRecord) -> u64 {
    if record.state == PinState::Complete { record.blocks } else { 0 }
}

impl Backing for Folder {
    const READS_BLOCK: bool = true;

    fn cost(&self, key: &[u8], value_bytes: usize) -> u64 {
        Files::cost(key, value_bytes)
    }

    fn space(&self) -> Result<Space, StoreError> {
        Space::of(&self.dir).map_err(|error| failed(&self.dir, &error))
    }

    fn shortage_error(&self, space: Space, needed: u64) -> StoreError {
        space.shortage_error(&self.dir, needed)
    }

    fn probe(&self) -> Result<(), StoreError> {
        let path = temporary(&self.dir.join(PINS_DIR));
        let written = calls::write_new(&path, &[&[0; 4096]], true);
        _ = fs::remove_file(&path);
        written.map_err(|error| self.with_space_figures(failed(&path, &error)))
    }

    fn write(&self, values: &[NewValue]) -> Vec<Result<(), StoreError>> {
        self.files
            .write(values)
            .into_iter()
            .map(|written| written.map_err(|error| self.with_space_figures(error)))
            .collect()
    }

    fn read(&self, key: &[u8]) -> Result<Option<Stored>, StoreError> {
        self.files.read(key)
    }

    fn shape(&self, key: &[u8]) -> Result<Option<Shape>, StoreError> {
        self.files.shape(key)
    }

    fn delete(&self, key: &[u8]) -> Result<(), StoreError> {
        self.files.delete(key)
    }

    fn allocate_pin_id(&self) -> Result<PinId, StoreError> {
        self.pins.allocate_id().map_err(|error| self.with_space_figures(error))
    }

    fn write_pin(&self, root: &Cid, record: &PinRecord) -> Result<(), StoreError> {
        self.pins.write(root, record).map_err(|error| self.with_space_figures(error))
    }

    fn add_members(&self, pin: PinId, members: &[(Key, u64)]) -> Result<(), StoreError> {
        self.pins.add(pin, members).map_err(|error| self.with_space_figures(error))
    }

    fn remove_pin(&self, pin: PinId) -> Result<(), StoreError> {
        self.pins.remove(pin)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.files.sync()?;
        self.pins.sync()
    }

    fn mark_closed(&self) {
        self.lock.mark_closed();
    }

    fn released(&self) -> BoxFuture<'static, ()> {
        self.lock.released()
    }

    fn scrub_position(&self) -> ScrubPosition {
        let text = fs::read_to_string(self.dir.join(SCRUB_FILE)).unwrap_or_default();
        parse_scrub_position(&text).unwrap_or_default()
    }

    fn save_scrub_position(&self, position: &ScrubPosition) {
        let (path, temporary_path) = (self.dir.join(SCRUB_FILE), temporary(&self.dir));
        let text = format!("{} {}\n", position.ended_ms, names::place(&position.at).1);
        if let Err(error) = fs::write(&temporary_path, text).and_then(|()| fs::rename(&temporary_path, path)) {
            _ = fs::remove_file(&temporary_path);
            debug!(%error, "the position of the scrub could not be saved");
        }
    }
}

fn parse_scrub_position(text: &str) -> Option<ScrubPosition> {
    let (ended_ms, at) = text.trim_end_matches('\n').split_once(' ')?;
    Some(ScrubPosition { ended_ms: ended_ms.parse().ok()?, at: names::bytes(at)? })
}

impl dag::Stored for Folder {
    fn block_bytes(&self, key: &BlockKey) -> Result<Option<usize>, StoreError> {
        match self.shape(&key.to_bytes()) {
            Err(StoreError::Corrupt(_)) => Ok(None),
            shape => Ok(shape?.map(Shape::block_bytes)),
        }
    }

    fn block(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        match self.read(&key.to_bytes()) {
            Err(StoreError::Corrupt(_)) => Ok(None),
            Ok(Some(stored)) if check_hash(key, &stored).is_ok() => Ok(stored.block().ok()),
            read => read.map(|_| None),
        }
    }
}

/// Rejects the schema of a later release. If the schema file is damaged, the journal has the version as well.
fn check_schema(dir: &Path, journal: &JournalContents) -> Result<(), StoreError> {
    let newer = journal.schema.or(read_schema(dir)?).filter(|schema| *schema > SCHEMA);
    match newer {
        Some(found) => Err(StoreError::NewerSchema { dir: dir.to_owned(), found, known: SCHEMA }),
        None => Ok(()),
    }
}

/// The schema version, if it can be read.
fn read_schema(dir: &Path) -> Result<Option<u32>, StoreError> {
    let path = dir.join(SCHEMA_FILE);
    match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&path, &error)),
        Ok(text) => {
            let schema = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
            if schema.is_none() {
                warn!(path = %path.display(), "the store's schema file is damaged and is rewritten");
            }
            Ok(schema)
        }
    }
}

/// An unused temporary path in a directory. Files with the prefix that an ended process left are deleted at the next
/// start.
fn temporary(folder: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{}{}-{count}", names::TEMPORARY_PREFIX, std::process::id()))
}

/// Replaces a file, atomically and durably.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let folder = path.parent().unwrap_or(path);
    let temporary_path = temporary(folder);
    let written = calls::write_new(&temporary_path, &[bytes], true).and_then(|()| calls::rename(&temporary_path, path));
    written.map_err(|error| {
        _ = fs::remove_file(&temporary_path);
        failed(path, &error)
    })?;
    sync_folder(folder)
}

/// Syncs a directory's entries.
fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    calls::sync_folder(folder).map_err(|error| failed(folder, &error))
}

/// Converts an I/O error of a path. Lack of space is distinguished, without figures.
fn failed(path: &Path, error: &io::Error) -> StoreError {
    match space::is_full(error) {
        true => StoreError::Full { free: 0, needed: 0 },
        false => StoreError::io(format!("{}: {error}", path.display())),
    }
}
