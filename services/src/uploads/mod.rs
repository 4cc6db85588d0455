//! Uploads over HTTP: streams become blocks, and the blocks of a complete upload are pinned.
//!
//! Goals: the same CIDs as `causeway add` and Kubo's `ipfs add` for the same content and options; memory that is
//! independent of the sizes and the number of files; a pin that is acknowledged is on the disk; an interrupted upload
//! leaves nothing pinned, and its blocks to the cache; content that the policy withholds is rejected.
//!
//! | module | concern |
//! |---|---|
//! | [`query`] | the parameters |
//! | `run` | one upload from its first byte to its pins |
//! | [`multipart`], [`tarball`] | streaming parsers of forms and archives |
//! | [`entries`] | the interface between the parsers and the pipeline |
//! | [`pipeline`] | chunking, hashing in parallel, and linking; also used by `causeway add` |
//! | [`tree`], [`sorter`] | building folders in bounded memory |
//! | [`names`] | validation of names and paths |
//! | [`limits`] | what limits an upload |
//! | [`body`] | a metered body |
//! | [`keeping`] | where blocks are stored: pinned, cached, or nowhere |
//! | [`claims`] | quotas, and recording pins for their owner |
//! | [`resumable`] | resumable uploads |
//! | [`request_body`] | the body of a request, decoded; after a rejection, its rest can be read or dropped |
//! | [`views`] | API views |
//! | [`error`] | errors and their statuses |
//!
//! `POST /upload` and Kubo's `/api/v0/add` are two ways to [`Uploads::take`].
//!
//! Non-goals: fetching content; mutable files; decompressing archives.

pub mod body;
pub mod claims;
pub mod entries;
pub mod error;
pub mod keeping;
pub mod limits;
pub mod multipart;
pub mod names;
pub mod pipeline;
pub mod query;
pub mod request_body;
pub mod resumable;
mod run;
pub mod sorter;
pub mod tarball;
pub mod tree;
pub mod views;

pub use self::error::UploadError;
pub use self::keeping::{Destination, DestinationWriter, PinDetails};
pub use self::limits::{UploadLimits, memory_for};
pub use self::pipeline::PackingResult;

use self::body::Meter;
use self::limits::UploadAllowance;
use self::request_body::RequestBody;
use crate::access::Principal;
use crate::limiter::{Full, Limiter, Permit};
use crate::pinning::{Pins, RepeatableImport};
use cache::{BlockStore, RootsIn};
use content::budget::{Budget, Share};
use content::importer::{Part, Profile};
use content::{Cid, Policy};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// The folder for temporary files of uploads in the data directory.
pub const FOLDER: &str = "uploads";

/// The upload service. There is one in the process, which limits concurrent uploads.
#[derive(Clone)]
pub struct Uploads {
    store: Arc<dyn BlockStore>,
    policy: Arc<dyn Policy>,
    pins: Arc<Pins>,
    limits: UploadLimits,
    /// The folder for entries that exceed the memory.
    folder: PathBuf,
    uploads: Arc<Limiter>,
    memory: Arc<Budget>,
}

/// An upload to run.
pub struct UploadRequest {
    /// The owner.
    pub owner: Principal,
    /// The options.
    pub options: UploadOptions,
    /// The receivers of progress events.
    pub watchers: ProgressReceivers,
    /// The import, if it may run again.
    pub import: Option<RepeatableImport>,
}

/// What the body of an upload is, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UploadOptions {
    /// Files, which become DAGs.
    Files(FileOptions),
    /// A CAR archive. Its blocks have their CIDs, and its roots are pinned.
    Car {
        /// Where it names its roots.
        roots_in: RootsIn,
        /// The details of the pins.
        pin: PinDetails,
    },
}

impl UploadOptions {
    /// What happens to the blocks.
    pub fn destination(&self) -> Destination {
        match self {
            Self::Files(files) => files.destination.clone(),
            Self::Car { pin, .. } => Destination::Pinned(pin.clone()),
        }
    }
}

/// The options of an upload of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// The format of the body.
    pub format: FileFormat,
    /// The options that determine CIDs.
    pub profile: Profile,
    /// Wrap everything into a folder, so that files keep their names.
    pub wrap: bool,
    /// What happens to the blocks.
    pub destination: Destination,
    /// Preserve the modes of files.
    pub modes: bool,
    /// Preserve the modification times of files.
    pub times: bool,
    /// Pack the file, if it shrinks ([`content::packed`]).
    pub packed: bool,
}

/// The format of a body with files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileFormat {
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
    /// Whether it is a packed file.
    pub packing: PackingResult,
}

/// A failed upload.
pub struct Failed {
    /// The error.
    pub error: UploadError,
    /// The unread rest of the body.
    pub rest: RequestBody,
}

/// Ends the reading of a body when it is dropped.
struct EndOfReading(Meter);

impl Drop for EndOfReading {
    fn drop(&mut self) {
        drop(self.0.clone().into_rest());
    }
}

/// The permit and the memory of an upload in progress.
type Resources = (Permit, Share);

/// The interval at which a waiting upload checks for free memory.
const MEMORY_EVERY: Duration = Duration::from_millis(250);
impl Uploads {
    /// The upload service of a store, with temporary files in `data_dir`.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn new(
        store: &Arc<dyn BlockStore>,
        policy: Arc<dyn Policy>,
        pins: Arc<Pins>,
        limits: UploadLimits,
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

    /// Runs an upload to the end of its body. When this returns, pinned or cached blocks are on the disk, and pins
    /// count for the owner.
    ///
    /// Dropping the future does not cancel the upload; the end of the body does.
    ///
    /// # Errors
    /// [`Failed`], with the error and the rest of the body. Nothing new is pinned then.
    pub async fn take(&self, request: UploadRequest, body: RequestBody) -> Result<UploadResult, Failed> {
        let expected = http_body::Body::size_hint(&body).lower();
        let allowance = match self.allowance(&request.owner, &request.options.destination(), expected) {
            Ok(allowance) => allowance,
            Err(error) => return Err(Failed { error, rest: body.into_rest() }),
        };
        let body_bytes_max = http_body::Body::size_hint(&body).upper();
        let decoder_bytes_max = body.decoder_bytes_max();
        let meter = Meter::of_body(body, allowance);
        let taken = match self.try_acquire(&request, body_bytes_max, decoder_bytes_max) {
            Ok(resources) => self.run(resources, request, meter.clone()).await,
            Err(error) => Err(error),
        };
        taken.map_err(|error| Failed { error, rest: meter.into_rest() })
    }

    /// How much an owner may upload now, if at least `expected` bytes follow.
    ///
    /// # Errors
    /// [`UploadError`] when `expected` exceeds it.
    pub fn allowance(
        &self,
        owner: &Principal,
        destination: &Destination,
        expected: u64,
    ) -> Result<UploadAllowance, UploadError> {
        let quota = match destination {
            Destination::Pinned(_) => claims::quota(&self.pins, owner)?,
            // Hashing without storing is limited by the quota too.
            Destination::Nothing => owner.quota.bytes_max.map(|bytes_max| (bytes_max, bytes_max)),
            Destination::Cached => None,
        };
        let allowance = UploadAllowance { quota, ..self.limits.allowance(destination) };
        allowance.check(expected)?;
        Ok(allowance)
    }

    /// The limits.
    pub fn limits(&self) -> UploadLimits {
        self.limits
    }

    /// [`Uploads::take`] for so many bytes that are stored already and were checked against the allowance, and whose
    /// reader takes so much memory. Waits for a permit and memory.
    ///
    /// If the future is dropped, no more bytes are read, so that the upload fails. One whose bytes have all been read
    /// may still be pinned, unless the fence of its import prevents it.
    ///
    /// # Errors
    /// As [`Uploads::take`].
    pub async fn take_queued(
        &self,
        request: UploadRequest,
        meter: Meter,
        (bytes, reader_bytes): (u64, usize),
    ) -> Result<UploadResult, UploadError> {
        let permit = self.uploads.acquire(&request.owner).await.map_err(|_| UploadError::Stopping)?;
        let bytes = self.limits.memory_bytes(&request.options, Some(bytes))? + reader_bytes;
        let share = loop {
            match self.reserve(bytes) {
                Err(UploadError::Memory { bytes_max }) if bytes <= bytes_max => tokio::time::sleep(MEMORY_EVERY).await,
                reserved => break reserved?,
            }
        };
        let _reading = EndOfReading(meter.clone());
        self.run((permit, share), request, meter).await
    }

    fn try_acquire(
        &self,
        request: &UploadRequest,
        body_bytes_max: Option<u64>,
        decoder_bytes_max: usize,
    ) -> Result<Resources, UploadError> {
        let permit = self.uploads.try_acquire(&request.owner).map_err(|full| match full {
            Full::Client => UploadError::TokenLimit,
            Full::All => UploadError::Busy(self.limits.at_once_max),
        })?;
        let bytes = self.limits.memory_bytes(&request.options, body_bytes_max)?;
        Ok((permit, self.reserve(bytes + decoder_bytes_max)?))
    }

    async fn run(
        &self,
        resources: Resources,
        request: UploadRequest,
        meter: Meter,
    ) -> Result<UploadResult, UploadError> {
        let uploads = self.clone();
        // Once the body is complete it is pinned, even if the client has disconnected.
        let working = tokio::spawn(async move {
            let taken = uploads.import(request, meter).await;
            drop(resources);
            taken
        });
        working.await.unwrap_or(Err(UploadError::Stopping))
    }
}
