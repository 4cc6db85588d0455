//! Uploads over HTTP: streams become blocks, and the blocks of a complete upload are pinned.
//!
//! Goals: the same CIDs as `causeway add` and Kubo's `ipfs add` for the same content and options; memory that is
//! independent of the sizes and the number of files; a pin that is acknowledged is on the disk; an interrupted upload
//! leaves nothing pinned, and its blocks to the cache; content that the policy withholds is rejected.
//!
//! | module | concern |
//! |---|---|
//! | [`query`] | the parameters |
//! | [`work`] | one upload from its first byte to its pins |
//! | [`multipart`], [`tarball`] | streaming parsers of forms and archives |
//! | [`entries`] | the interface between the parsers and the pipeline |
//! | [`pipeline`] | chunking, hashing in parallel, and linking; also used by `causeway add` |
//! | [`tree`], [`sorter`] | building folders in bounded memory |
//! | [`names`] | validation of names and paths |
//! | [`body`] | a metered body with limits |
//! | [`keeping`] | where blocks are stored: pinned, cached, or nowhere |
//! | [`claims`] | quotas, and recording pins for their owner |
//! | [`resumable`] | resumable uploads |
//! | [`request_body`] | the body of a request, whose rest can be read or dropped after a rejection |
//! | [`views`] | API views |
//! | [`error`] | errors and their statuses |
//!
//! `POST /upload` and Kubo's `/api/v0/add` are two ways to [`Uploads::take`].
//!
//! Non-goals: fetching content; mutable files; decompression.

pub mod body;
pub mod claims;
pub mod entries;
pub mod error;
pub mod keeping;
pub mod multipart;
pub mod names;
pub mod pipeline;
pub mod query;
pub mod request_body;
pub mod resumable;
pub mod sorter;
pub mod tarball;
pub mod tree;
pub mod views;
mod work;

pub use self::error::UploadError;
pub use self::keeping::{Destination, DestinationWriter};

use self::body::{Meter, UploadLimits};
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

/// The maximum number of concurrent uploads, whatever the settings say. Each occupies one of tokio's 512 blocking
/// threads, and needs others for hashing.
const AT_ONCE_MAX: usize = 128;
/// The folder for temporary files of uploads in the data directory.
pub const FOLDER: &str = "uploads";

/// The upload service. There is one in the process, which limits concurrent uploads.
#[derive(Clone)]
pub struct Uploads {
    store: Arc<dyn BlockStore>,
    policy: Arc<dyn Policy>,
    pins: Arc<Pins>,
    limits: Limits,
    /// The folder for entries that exceed the memory.
    folder: PathBuf,
    uploads: Arc<Limiter>,
    memory: Arc<Budget>,
}

/// The limits of uploads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum size of an upload, in bytes.
    pub bytes_max: u64,
    /// The maximum number of files, folders and links of an upload.
    pub entries_max: u64,
    /// The maximum number of concurrent uploads.
    pub at_once_max: usize,
    /// The capacity of the block cache, in bytes.
    pub cache_bytes_max: u64,
    /// The disk space that uploads leave free, in bytes.
    pub free_bytes_min: u64,
    /// The memory budget of uploads and imports, in bytes.
    pub memory_bytes_max: usize,
}

impl Limits {
    /// The limits of the settings.
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

/// The options of an upload.
#[derive(Debug, Clone, Default)]
pub struct UploadOptions {
    /// The options that determine CIDs.
    pub profile: Profile,
    /// Wrap everything into a folder, so that files keep their names.
    pub wrap: bool,
    /// What happens to the blocks.
    pub keep: Destination,
    /// Preserve the modes of files.
    pub modes: bool,
    /// Preserve the modification times of files.
    pub times: bool,
    /// The name of the pins.
    pub pin_name: Option<String>,
    /// Metadata of the pins.
    pub meta: BTreeMap<String, String>,
}

/// The parameters of an upload.
pub struct UploadRequest {
    /// The owner.
    pub owner: Principal,
    /// The options.
    pub terms: UploadOptions,
    /// The format of the body.
    pub form: Form,
    /// The receivers of progress events.
    pub watchers: ProgressReceivers,
}

/// The format of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// One file.
    File {
        /// Its name; its CID by default.
        name: Option<String>,
    },
    /// A form (RFC 7578), each part a file, folder or symlink.
    Multipart {
        /// The boundary between the parts.
        boundary: String,
        /// Whether all names are percent-encoded, with `+` for a space, as Kubo's clients write them. Otherwise it is
        /// detected for each name.
        kubo: bool,
    },
    /// A TAR archive.
    Tar,
    /// A CAR archive.
    Car {
        /// Whether its last block names the roots, instead of its header.
        roots_last: bool,
    },
}

/// A progress event of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes of a file were read. Dropped while the channel is half full.
    Read {
        /// The path of the file in the upload; may be empty.
        path: Arc<str>,
        /// The number of its bytes that were read so far.
        bytes: u64,
    },
    /// An entry has its CID: files and symlinks in their order, then folders, each after its entries; a wrapping folder
    /// is the last and has an empty path. The upload waits for the receiver, for a minute at most.
    Added {
        /// Its path in the upload; the CID of a file without a path.
        path: String,
        /// Its root.
        part: Part,
    },
}

/// The channel of progress events. The receiver may be dropped.
pub type Events = mpsc::Sender<Event>;

/// The receivers of progress.
#[derive(Clone, Default)]
pub struct ProgressReceivers {
    /// The channel of all events.
    pub events: Option<Events>,
    /// The current progress.
    pub progress: Arc<Progress>,
}

/// The progress of an upload.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    bytes: AtomicU64,
    /// The file that is being read.
    path: Mutex<String>,
}

/// A snapshot of the progress of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressSnapshot {
    /// The number of complete files and symlinks.
    pub files: u64,
    /// The number of bytes of content that were read.
    pub bytes: u64,
    /// The file that is being read; may be empty.
    pub path: String,
}

impl Progress {
    /// The current progress.
    pub fn now(&self) -> ProgressSnapshot {
        ProgressSnapshot {
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

/// A complete upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadResult {
    /// The top-level entries, by name; or the wrapping folder; or the distinct roots of a CAR.
    pub roots: Vec<Root>,
    /// The bytes of content that were read: of files, or of a CAR's blocks.
    pub bytes: u64,
    /// The number of blocks, including repeated ones.
    pub blocks: u64,
}

/// A root of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// Its name in the upload; empty for a wrapping folder and in a CAR.
    pub name: String,
    /// Its CID.
    pub cid: Cid,
    /// The size of the files in it, in bytes; for a root of a CAR, that of its distinct blocks.
    pub bytes: u64,
    /// The ID of the pin request, if it was pinned.
    pub pin: Option<String>,
}

/// A failed upload.
pub struct Failed {
    /// The error.
    pub error: UploadError,
    /// The unread rest of the body.
    pub rest: RequestBody,
}

/// The permit and the memory of an upload in progress.
type Resources = (Permit, Share);

/// The interval at which a waiting upload checks for free memory.
const MEMORY_EVERY: Duration = Duration::from_millis(250);
/// The maximum memory for each byte of a body: a byte may become a link of an inner node, and an entry of a form a
/// record.
const MEMORY_PER_BYTE: usize = 64;
/// The memory of the smallest upload, in bytes.
const MEMORY_BYTES_MIN: usize = 1 << 20;

/// The memory for a body of at most so many bytes: `most`, or less for a short one, each piece of which needs `least`.
pub fn memory_for(most: usize, least: usize, body_bytes_max: Option<u64>) -> usize {
    let body = body_bytes_max.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    most.min(body.saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY_BYTES_MIN + least))
}

impl Uploads {
    /// The upload service of a store, with temporary files in `data_dir`.
    ///
    /// # Errors
    /// The error of the disk.
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

    /// The memory budget of uploads, imports and their DAG walks.
    pub fn memory(&self) -> &Arc<Budget> {
        &self.memory
    }

    /// Reserves memory for an upload or import.
    ///
    /// # Errors
    /// [`UploadError::Memory`] when too little is left.
    pub fn reserve(&self, bytes: usize) -> Result<Share, UploadError> {
        let mut share = Share::of(Some(Arc::clone(&self.memory)));
        if share.grow(bytes) { Ok(share) } else { Err(UploadError::Memory { bytes_max: self.limits.memory_bytes_max }) }
    }

    /// The maximum memory of an upload with a body of at most so many bytes.
    fn memory_bytes(
        &self,
        terms: &UploadOptions,
        form: &Form,
        body_bytes_max: Option<u64>,
    ) -> Result<usize, UploadError> {
        if matches!(form, Form::Car { .. }) {
            return Ok(memory_for(cache::import::IMPORT_MEMORY_BYTES_MAX, MAX_BLOCK_BYTES, body_bytes_max));
        }
        let importer = Importer::new(terms.profile.clone())?;
        let made = pipeline::memory_bytes_max(&importer, body_bytes_max.unwrap_or(self.limits.bytes_max));
        let least = 2 * terms.profile.chunking.bytes_max();
        Ok(memory_for(tree::MEMORY_BYTES_MAX + made, least, body_bytes_max))
    }

    /// Runs an upload to the end of its body. When this returns, pinned or cached blocks are on the disk, and pins
    /// count for the owner.
    ///
    /// Dropping the future does not cancel the upload; the end of the body does.
    ///
    /// # Errors
    /// [`Failed`], with the error and the rest of the body. Nothing new is pinned then.
    pub async fn take(&self, order: UploadRequest, body: RequestBody) -> Result<UploadResult, Failed> {
        let expected = http_body::Body::size_hint(&body).lower();
        let allowance = match self.allowance(&order.owner, order.terms.keep, expected) {
            Ok(allowance) => allowance,
            Err(error) => return Err(Failed { error, rest: body }),
        };
        let body_bytes_max = http_body::Body::size_hint(&body).upper();
        let meter = Meter::of_body(body, allowance);
        let taken = match self.try_acquire(&order, body_bytes_max) {
            Ok(resources) => self.run(resources, order, meter.clone()).await,
            Err(error) => Err(error),
        };
        taken.map_err(|error| Failed { error, rest: meter.into_rest() })
    }

    /// How much an owner may upload now, if at least `expected` bytes follow.
    ///
    /// # Errors
    /// [`UploadError`] when `expected` exceeds it.
    pub fn allowance(&self, owner: &Principal, keep: Destination, expected: u64) -> Result<UploadLimits, UploadError> {
        let quota = match keep {
            Destination::Pinned => claims::quota(&self.pins, owner)?,
            // Hashing without storing is limited by the quota too.
            Destination::Nothing => owner.quota.bytes_max.map(|bytes_max| (bytes_max, bytes_max)),
            Destination::Cached => None,
        };
        let allowance = UploadLimits { quota, ..self.bounds(keep) };
        allowance.check(expected)?;
        Ok(allowance)
    }

    /// How much any owner may upload. Content that exceeds the cache is rejected before it evicts other blocks.
    pub fn bounds(&self, keep: Destination) -> UploadLimits {
        let cache_bytes_max = (keep == Destination::Cached).then_some(self.limits.cache_bytes_max);
        UploadLimits { bytes_max: self.limits.bytes_max, quota: None, cache_bytes_max }
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// [`Uploads::take`] for bytes that are stored already and were checked against the allowance. Waits for a permit
    /// and memory.
    ///
    /// # Errors
    /// As [`Uploads::take`].
    pub async fn take_queued(
        &self,
        order: UploadRequest,
        meter: Meter,
        bytes: u64,
    ) -> Result<UploadResult, UploadError> {
        let permit = self.uploads.acquire(&order.owner).await.map_err(|_| UploadError::Stopping)?;
        let bytes = self.memory_bytes(&order.terms, &order.form, Some(bytes))?;
        let share = loop {
            match self.reserve(bytes) {
                Err(UploadError::Memory { bytes_max }) if bytes <= bytes_max => tokio::time::sleep(MEMORY_EVERY).await,
                reserved => break reserved?,
            }
        };
        self.run((permit, share), order, meter).await
    }

    fn try_acquire(&self, order: &UploadRequest, body_bytes_max: Option<u64>) -> Result<Resources, UploadError> {
        let permit = self.uploads.try_acquire(&order.owner).map_err(|full| match full {
            Full::Client => UploadError::TokenLimit,
            Full::All => UploadError::Busy(self.limits.at_once_max),
        })?;
        let bytes = self.memory_bytes(&order.terms, &order.form, body_bytes_max)?;
        Ok((permit, self.reserve(bytes)?))
    }

    async fn run(&self, resources: Resources, order: UploadRequest, meter: Meter) -> Result<UploadResult, UploadError> {
        let work = work::Work { uploads: self.clone(), order, meter };
        // Once the body is complete it is pinned, even if the client has disconnected.
        let working = tokio::spawn(async move {
            let taken = work.run().await;
            drop(resources);
            taken
        });
        working.await.unwrap_or(Err(UploadError::Stopping))
    }
}
