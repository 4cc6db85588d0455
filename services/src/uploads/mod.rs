//! Taking content in over HTTP: streams become blocks, and the blocks of a finished upload are pinned.
//!
//! Goals: the CIDs of `causeway add` and of Kubo's `ipfs add` for the same content and choices; memory that grows neither with
//! the sizes nor with the number of files; what is answered as pinned is on the disk; an upload that breaks off leaves nothing
//! pinned, and its blocks to the cache; nothing that the policy refuses is taken in.
//!
//! | module | concern |
//! |---|---|
//! | [`query`] | what its parameters say |
//! | [`work`] | one upload from its first byte to its pins |
//! | [`multipart`], [`tarball`] | forms and archives, read part by part |
//! | [`taker`] | what is done with each part |
//! | [`pipeline`] | from bytes to blocks: several chunks at a time, and links in the order of the files; also of `causeway add` |
//! | [`tree`], [`sorter`] | the folders around the files, in bounded memory |
//! | [`names`] | what things may be called |
//! | [`body`] | a body that is counted and has an end |
//! | [`keeping`] | where blocks go: to pins, to the cache, or nowhere |
//! | [`claims`] | whose the pins become |
//! | [`resumable`] | uploads that go on where they broke off |
//! | [`request_body`] | the body of a request, whose rest is read or dropped after a refusal |
//! | [`views`] | the JSON that an upload is answered with |
//! | [`error`] | what goes wrong, and its status |
//!
//! `POST /upload` and Kubo's `/api/v0/add` are two ways to [`Uploads::take`].
//!
//! Non-goals: fetching anything; mutable files; unpacking what is compressed.

pub mod body;
pub mod claims;
pub mod error;
pub mod keeping;
pub mod multipart;
pub mod names;
pub mod pipeline;
pub mod query;
pub mod request_body;
pub mod resumable;
pub mod sorter;
pub mod taker;
pub mod tarball;
pub mod tree;
pub mod views;
mod work;

pub use self::error::UploadError;
pub use self::keeping::{Keep, Keeping};

use self::body::{Allowance, Meter};
use self::request_body::RequestBody;
use crate::access::Principal;
use crate::limiter::{Full, Limiter, Permit};
use crate::pinning::Pins;
use cache::BlockStore;
use content::budget::{Budget, Share};
use content::importer::{Importer, Part, Profile};
use content::{Cid, MAX_BLOCK_BYTES, Policy};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// The most uploads at a time, whatever the settings say. Each has a thread of tokio's 512, and others of them have to hash for it.
const AT_ONCE_MAX: usize = 128;
/// The folder for what uploads put aside, in the data folder.
pub const FOLDER: &str = "uploads";

/// What takes uploads in. One for the process: it bounds how many run at a time.
#[derive(Clone)]
pub struct Uploads {
    store: Arc<dyn BlockStore>,
    policy: Arc<dyn Policy>,
    pins: Arc<Pins>,
    limits: Limits,
    /// Where entries wait that find no room in memory.
    folder: PathBuf,
    uploads: Arc<Limiter>,
    memory: Arc<Budget>,
}

/// How much is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one upload.
    pub bytes_max: u64,
    /// Files, folders and links of one upload.
    pub entries_max: u64,
    /// Uploads at a time.
    pub at_once_max: usize,
    /// Bytes of blocks that the cache has room for.
    pub cache_bytes_max: u64,
    /// Bytes that are left free where uploads put things aside.
    pub free_bytes_min: u64,
    /// Bytes of memory that uploads and imports take together.
    pub memory_bytes_max: usize,
}

impl Limits {
    /// What the settings say.
    pub fn new(uploads: &config::Uploads, cache: &config::Cache) -> Self {
        let in_memory = cache.store == config::StoreKind::Memory;
        let store_bytes_max = if in_memory { cache.memory_bytes_max } else { u64::MAX };
        Self {
            bytes_max: uploads.bytes_max,
            entries_max: uploads.entries_max,
            at_once_max: usize::try_from(uploads.at_once_max).unwrap_or(usize::MAX).min(AT_ONCE_MAX),
            cache_bytes_max: cache.disk_bytes_max.min(store_bytes_max),
            free_bytes_min: cache.disk_free_bytes_min,
            memory_bytes_max: usize::try_from(uploads.memory_bytes_max).unwrap_or(usize::MAX),
        }
    }
}

/// What an upload is to become.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// What decides about CIDs.
    pub profile: Profile,
    /// Put everything into a folder, so that each file keeps its name.
    pub wrap: bool,
    /// What becomes of the blocks.
    pub keep: Keep,
    /// Keep the modes that come with files.
    pub modes: bool,
    /// Keep the times that come with files.
    pub times: bool,
    /// What to call the pins.
    pub pin_name: Option<String>,
    /// What the owner says about the pins.
    pub meta: BTreeMap<String, String>,
}

/// An upload that is to be taken in.
pub struct Order {
    /// Whose it becomes.
    pub owner: Principal,
    /// What it is to become.
    pub terms: Terms,
    /// What its body is.
    pub form: Form,
    /// Who follows it.
    pub watchers: Watchers,
}

/// What a body is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// One file.
    File {
        /// What it is called. Without a name it is called by its CID.
        name: Option<String>,
    },
    /// Parts, each a file, folder or symlink (RFC 7578).
    Multipart {
        /// What stands between them.
        boundary: String,
        /// Whether all names are percent-encoded, and `+` is a space, as Kubo's clients write them. Otherwise that is told from
        /// the name.
        kubo: bool,
    },
    /// A TAR archive.
    Tar,
    /// A CAR archive.
    Car {
        /// Its last block names the roots, and not its header.
        roots_last: bool,
    },
}

/// What happens while an upload is taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes of a file were read. Left out while the channel is half full.
    Read {
        /// The file's path in the upload; empty if it has none.
        path: Arc<str>,
        /// How many of its bytes were read so far.
        bytes: u64,
    },
    /// Something has its CID: files and symlinks as they come, then folders, each after what is in it; the folder around
    /// everything is the last and has an empty path. Waits for whoever takes events, for a minute at most.
    Added {
        /// Its path in the upload; the CID of a file that has none.
        path: String,
        /// Its root.
        part: Part,
    },
}

/// Where events go. Dropping the other end is no error.
pub type Events = mpsc::Sender<Event>;

/// Who follows an upload.
#[derive(Clone, Default)]
pub struct Watchers {
    /// Every event, if somebody takes them.
    pub events: Option<Events>,
    /// The latest figures, for whoever looks now and then.
    pub progress: Arc<Progress>,
}

/// How far an upload has come.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    bytes: AtomicU64,
    /// The file that is being read.
    path: Mutex<String>,
}

/// How far an upload had come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glance {
    /// Files and symlinks that are complete.
    pub files: u64,
    /// Bytes of content that were read.
    pub bytes: u64,
    /// The file that is being read; empty if it has no name.
    pub path: String,
}

impl Progress {
    /// This moment's figures.
    pub fn now(&self) -> Glance {
        Glance {
            files: self.files.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            path: self.path.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    fn read(&self, name: Option<&[u8]>, more: usize) {
        self.bytes.fetch_add(more as u64, Ordering::Relaxed);
        let mut path = self.path.lock().unwrap_or_else(PoisonError::into_inner);
        let name = name.unwrap_or_default();
        if path.as_bytes() != name {
            *path = String::from_utf8_lossy(name).into_owned();
        }
    }

    fn added(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }
}

/// What became of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Each thing at the top of the upload, in the order of names; or the folder around them; or the distinct roots of a CAR.
    pub roots: Vec<Root>,
    /// Bytes of content that came: of files, or of a CAR's blocks.
    pub bytes: u64,
    /// Blocks that were made or came, repeated ones included.
    pub blocks: u64,
}

/// A root of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// Its name in the upload; empty for a folder around everything and in a CAR.
    pub name: String,
    /// Its CID.
    pub cid: Cid,
    /// The content of the files in it, in bytes; of a CAR's root, the bytes of its distinct blocks.
    pub bytes: u64,
    /// The request in the pin service that holds its pin, unless nothing was pinned.
    pub pin: Option<String>,
}

/// An upload that was not taken in.
pub struct Failed {
    /// Why.
    pub error: UploadError,
    /// What its sender has still to send.
    pub rest: RequestBody,
}

/// What an upload has while it is taken in: its slot, and its memory.
type Held = (Permit, Share);

/// How often is looked whether there is memory for what waits for it.
const MEMORY_EVERY: Duration = Duration::from_millis(250);
/// Bytes of memory for each byte of a body, at most: a byte may become a link of an inner node, and an entry of a form a record.
const HELD_PER_BYTE: usize = 64;
/// What even the smallest upload takes, in bytes.
const HELD_BYTES_MIN: usize = 1 << 20;

/// What is taken for a body that may have so many bytes: `most`, or less for a short one, of which each piece takes `least`.
pub fn memory_for(most: usize, least: usize, body_bytes_max: Option<u64>) -> usize {
    let body = body_bytes_max.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    most.min(body.saturating_mul(HELD_PER_BYTE).saturating_add(HELD_BYTES_MIN + least))
}

impl Uploads {
    /// What takes uploads into a store, and puts aside what it has to in `data_dir`.
    ///
    /// # Errors
    /// What the disk said.
    pub fn new(
        store: &Arc<dyn BlockStore>,
        policy: Arc<dyn Policy>,
        pins: Arc<Pins>,
        limits: Limits,
        data_dir: &Path,
    ) -> io::Result<Self> {
        let folder = data_dir.join(FOLDER);
        p2p_bridge::durable::create_folder(&folder)?;
        let uploads = Arc::new(Limiter::shared(limits.at_once_max));
        let memory = Arc::new(Budget::new(limits.memory_bytes_max));
        Ok(Self { store: Arc::clone(store), policy, pins, limits, folder, uploads, memory })
    }

    /// The memory that uploads, imports and their walks share.
    pub fn memory(&self) -> &Arc<Budget> {
        &self.memory
    }

    /// Takes memory for an upload or import.
    ///
    /// # Errors
    /// [`UploadError::Memory`] when too little is left.
    pub fn reserve(&self, bytes: usize) -> Result<Share, UploadError> {
        let mut share = Share::of(Some(Arc::clone(&self.memory)));
        if share.grow(bytes) { Ok(share) } else { Err(UploadError::Memory { bytes_max: self.limits.memory_bytes_max }) }
    }

    /// What an upload holds in memory at most, in bytes, if its body has so many at most.
    fn memory_bytes(&self, terms: &Terms, form: &Form, body_bytes_max: Option<u64>) -> Result<usize, UploadError> {
        if matches!(form, Form::Car { .. }) {
            return Ok(memory_for(cache::import::IMPORT_BYTES_MAX, MAX_BLOCK_BYTES, body_bytes_max));
        }
        let importer = Importer::new(terms.profile.clone())?;
        let made = pipeline::memory_bytes_max(&importer, body_bytes_max.unwrap_or(self.limits.bytes_max));
        let least = 2 * terms.profile.chunking.bytes_max();
        Ok(memory_for(tree::MEMORY_BYTES_MAX + made, least, body_bytes_max))
    }

    /// Takes a body in to its end. What is pinned or cached is on the disk when this returns; pins count for the owner.
    ///
    /// Dropping the future does not end the upload; the end of the body does.
    ///
    /// # Errors
    /// [`Failed`], whose error knows its status. Nothing is pinned then that was not before.
    pub async fn take(&self, order: Order, body: RequestBody) -> Result<Taken, Failed> {
        let expected = http_body::Body::size_hint(&body).lower();
        let allowance = match self.allowance(&order.owner, order.terms.keep, expected) {
            Ok(allowance) => allowance,
            Err(error) => return Err(Failed { error, rest: body }),
        };
        let body_bytes_max = http_body::Body::size_hint(&body).upper();
        let meter = Meter::of_body(body, allowance);
        let taken = match self.begin_at_once(&order, body_bytes_max) {
            Ok(held) => self.take_at(held, order, meter.clone()).await,
            Err(error) => Err(error),
        };
        taken.map_err(|error| Failed { error, rest: meter.into_rest() })
    }

    /// How much an owner may send now, if so much is known to come.
    ///
    /// # Errors
    /// [`UploadError`] when that is too much.
    pub fn allowance(&self, owner: &Principal, keep: Keep, expected: u64) -> Result<Allowance, UploadError> {
        let quota = match keep {
            Keep::Pinned => claims::quota(&self.pins, owner)?,
            // Nobody has more hashed at a time than it may keep.
            Keep::Nothing => owner.quota.bytes_max.map(|bytes_max| (bytes_max, bytes_max)),
            Keep::Cached => None,
        };
        let allowance = Allowance { quota, ..self.bounds(keep) };
        allowance.check(expected)?;
        Ok(allowance)
    }

    /// How much anybody may send at a time. What the cache could not hold is refused before it pushes out what is there.
    pub fn bounds(&self, keep: Keep) -> Allowance {
        let cache_bytes_max = (keep == Keep::Cached).then_some(self.limits.cache_bytes_max);
        Allowance { bytes_max: self.limits.bytes_max, quota: None, cache_bytes_max }
    }

    /// How much is taken in.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// [`Uploads::take`] of so many bytes that are here already, and were allowed. It waits for its turn.
    ///
    /// # Errors
    /// The same, without what is still to be sent.
    pub async fn take_in_turn(&self, order: Order, meter: Meter, bytes: u64) -> Result<Taken, UploadError> {
        let place = self.uploads.acquire(&order.owner).await.map_err(|_| UploadError::Stopping)?;
        let bytes = self.memory_bytes(&order.terms, &order.form, Some(bytes))?;
        let share = loop {
            match self.reserve(bytes) {
                Err(UploadError::Memory { bytes_max }) if bytes <= bytes_max => tokio::time::sleep(MEMORY_EVERY).await,
                reserved => break reserved?,
            }
        };
        self.take_at((place, share), order, meter).await
    }

    fn begin_at_once(&self, order: &Order, body_bytes_max: Option<u64>) -> Result<Held, UploadError> {
        let place = self.uploads.try_acquire(&order.owner).map_err(|full| match full {
            Full::Client => UploadError::Share,
            Full::All => UploadError::Busy(self.limits.at_once_max),
        })?;
        let bytes = self.memory_bytes(&order.terms, &order.form, body_bytes_max)?;
        Ok((place, self.reserve(bytes)?))
    }

    async fn take_at(&self, held: Held, order: Order, meter: Meter) -> Result<Taken, UploadError> {
        let work = work::Work { uploads: self.clone(), order, meter };
        // What has come whole is pinned, whether or not anybody waits to hear of it.
        let working = tokio::spawn(async move {
            let taken = work.run().await;
            drop(held);
            taken
        });
        working.await.unwrap_or(Err(UploadError::Stopping))
    }
}
