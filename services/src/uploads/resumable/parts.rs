//! [`ResumableUploads`]: the resumable uploads.

use crate::access::Principal;
use crate::access::authenticator::PrincipalLookup;
use crate::supervision::Supervisor;
use crate::uploads::body::Meter;
use crate::uploads::limits::{ResumableLimits, UploadAllowance};
use crate::uploads::request_body::{RequestBody, Upload, boxed, is_coding_error};
use crate::uploads::resumable::error::ResumableError;
use crate::uploads::resumable::local::LocalUploads;
use crate::uploads::resumable::memory::PiecesMemory;
use crate::uploads::resumable::record::{Record, UploadOutcome, now};
use crate::uploads::resumable::store::{LockedUpload, UploadStore};
use crate::uploads::views as upload_views;
use crate::uploads::{ProgressReceivers, UploadError, UploadOptions, UploadRequest, Uploads, query};
use api::access::Scope;
use api::uploads::{FailureView, UploadView};
use http::StatusCode;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::io::AsyncReadExt as _;
use tokio_util::task::AbortOnDropHandle;

/// The read size, in bytes.
const READ_BYTES: usize = 256 * 1024;
/// The number of random bytes of an ID.
const ID_BYTES: usize = 16;

/// The parameters of a new upload.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Its length, in bytes.
    pub length: u64,
    /// The parameters of `POST /upload`.
    pub query: String,
    /// Its media type.
    pub media_type: String,
    /// Its name.
    pub name: Option<String>,
}

/// A piece of an upload.
pub struct Piece {
    /// The offset that the client assumes.
    offset: u64,
    /// The minimum number of bytes that follow.
    bytes: u64,
    /// The maximum memory that decoding takes, in bytes.
    decoder_bytes_max: usize,
    reader: Upload,
}

impl Piece {
    /// The body of a request, which begins at an offset.
    pub fn new(offset: u64, body: RequestBody) -> Self {
        let (bytes, decoder_bytes_max) = (http_body::Body::size_hint(&body).lower(), body.decoder_bytes_max());
        Self { offset, bytes, decoder_bytes_max, reader: Upload::new(body) }
    }
}

/// Whether a run before may have recorded the pins of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImportRun {
    /// None has: the last byte was just received, or the owner had too little space.
    First,
    /// One that was killed, or whose outcome was not recorded, may have.
    Repeated,
}

impl ImportRun {
    /// The run of an upload that was complete before. If there was too little space, that is checked before it takes
    /// some again.
    fn of_complete(record: &Record) -> Self {
        match &record.outcome {
            Some(UploadOutcome::Failed(failure)) if failure.status == StatusCode::INSUFFICIENT_STORAGE => Self::First,
            _ => Self::Repeated,
        }
    }
}

/// The resumable uploads of all tokens.
pub struct ResumableUploads {
    service: Uploads,
    holders: PrincipalLookup,
    store: Arc<dyn UploadStore>,
    limits: ResumableLimits,
    memory: PiecesMemory,
}

fn new_id() -> io::Result<String> {
    let mut bytes = [0; ID_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().fold(String::new(), |mut id, byte| {
        _ = write!(id, "{byte:02x}");
        id
    }))
}

impl ResumableUploads {
    /// Loads the uploads in `folder`; `holders` finds the principals of their owners. Blocks the thread.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn open(
        service: Uploads,
        folder: &Path,
        limits: ResumableLimits,
        holders: PrincipalLookup,
    ) -> io::Result<Arc<Self>> {
        Ok(Self::of_store(service, Arc::new(LocalUploads::open(folder, limits)?), limits, holders))
    }

    /// The uploads in a store with these limits.
    pub fn of_store(
        service: Uploads,
        store: Arc<dyn UploadStore>,
        limits: ResumableLimits,
        holders: PrincipalLookup,
    ) -> Arc<Self> {
        let memory = PiecesMemory::new(service.memory(), service.limits().memory_bytes_max);
        Arc::new(Self { service, holders, store, limits, memory })
    }

    /// Imports uploads that were complete when a gateway stopped, and removes expired ones until the returned task is
    /// dropped.
    pub fn start(self: &Arc<Self>, supervisor: &Supervisor) -> AbortOnDropHandle<()> {
        let parts = Arc::clone(self);
        supervisor.spawn("the task that removes expired uploads", async move {
            loop {
                parts.import_unfinished().await;
                tokio::time::sleep(parts.store.sweep_interval()).await;
                parts.store.sweep().await;
            }
        })
    }

    async fn import_unfinished(self: &Arc<Self>) {
        let is_known = |owner: &str| self.pinning_owner(owner).is_some();
        for upload in self.store.take_unfinished(&is_known).await {
            let parts = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(error) = parts.import(upload, ImportRun::Repeated).await {
                    tracing::debug!(%error, "a resumable upload that was complete could not be imported");
                }
            });
        }
    }

    /// The maximum length of a new upload, in bytes.
    pub fn length_max(&self) -> u64 {
        self.limits.bytes_max.min(self.limits.token_bytes_max).min(self.service.limits().bytes_max)
    }

    /// When an upload expires, in seconds since the Unix epoch.
    pub fn expires_at(&self, record: &Record) -> u64 {
        record.touched_at.saturating_add(self.limits.lifetime.as_secs())
    }

    /// Creates an upload, and returns its ID.
    ///
    /// # Errors
    /// [`ResumableError::Full`], and errors of the parameters.
    pub async fn create(
        self: &Arc<Self>,
        owner: &Principal,
        wanted: Wanted,
    ) -> Result<(String, Record), ResumableError> {
        let options = query::parse_stored(&wanted.query, &wanted.media_type, wanted.name.as_deref())?;
        self.service.allowance(owner, &options.destination(), wanted.length)?;
        let at = now();
        let record = Record {
            owner: owner.id.to_string(),
            length: wanted.length,
            offset: 0,
            query: wanted.query,
            media_type: wanted.media_type,
            name: wanted.name,
            created_at: at,
            touched_at: at,
            outcome: None,
        };
        let id = new_id().map_err(UploadError::TemporaryFile)?;
        let record = self.store.create(&id, record).await?;
        if record.length > 0 {
            return Ok((id, record));
        }
        // An empty upload is complete.
        let record = self.append(owner, &id, Piece::new(0, boxed(http_body_util::Empty::new()))).await.0?;
        Ok((id, record))
    }

    /// The record of an upload with its final offset: a running request is preempted, unless it imports the upload.
    ///
    /// # Errors
    /// [`ResumableError::Missing`], [`ResumableError::Locked`], and [`ResumableError::Failed`] when importing it
    /// failed.
    pub async fn offset(&self, owner: &Principal, id: &str) -> Result<Record, ResumableError> {
        let record = self.store.lock(&owner.id, id).await?.record();
        match record.outcome {
            Some(UploadOutcome::Failed(failure)) => Err(ResumableError::Failed(failure)),
            _ => Ok(record),
        }
    }

    /// The record of an upload, without preempting a request.
    ///
    /// # Errors
    /// [`ResumableError::Missing`], and errors of the store.
    pub async fn look(&self, owner: &Principal, id: &str) -> Result<Record, ResumableError> {
        self.store.find(&owner.id, id).await
    }

    /// The uploads of an owner, oldest first.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn list(&self, owner: &Principal) -> Result<Vec<(String, Record)>, ResumableError> {
        self.store.list(&owner.id).await
    }

    /// Appends a piece to an upload, and imports it when it is complete. Received bytes are kept even if the body is
    /// interrupted or the caller is cancelled; an invalid encoded body is discarded. The offset counts decoded bytes:
    /// after an interruption, the client encodes the rest as a new body. Also returns the unread rest of the body.
    ///
    /// # Errors
    /// [`ResumableError`].
    pub async fn append(
        self: &Arc<Self>,
        owner: &Principal,
        id: &str,
        mut piece: Piece,
    ) -> (Result<Record, ResumableError>, Option<RequestBody>) {
        let (parts, owner, id) = (Arc::clone(self), owner.clone(), id.to_owned());
        let appending = tokio::spawn(async move {
            let appended = parts.append_piece(&owner, &id, &mut piece).await;
            (appended, Some(piece.reader.into_rest()))
        });
        appending.await.unwrap_or((Err(UploadError::Stopping.into()), None))
    }

    async fn append_piece(&self, owner: &Principal, id: &str, piece: &mut Piece) -> Result<Record, ResumableError> {
        let mut upload = self.store.lock(&owner.id, id).await?;
        let record = upload.record();
        if record.offset != piece.offset {
            return Err(ResumableError::Offset { offset: record.offset });
        }
        if !record.is_open() {
            return match record.outcome {
                Some(UploadOutcome::Failed(failure)) => Err(ResumableError::Failed(failure)),
                _ => Ok(record),
            };
        }
        let is_complete = record.offset == record.length;
        // Afterwards that is a matter of the import.
        if !is_complete {
            // The current quota counts, not that when the upload was created.
            let options = query::parse_stored(&record.query, &record.media_type, record.name.as_deref())?;
            self.service.allowance(owner, &options.destination(), record.length)?;
        }
        if piece.bytes > record.length - record.offset {
            return Err(ResumableError::TooLong { length: record.length });
        }
        let memory =
            (self.service.reserve(piece.decoder_bytes_max)?, self.memory.reserve(owner, upload.memory_bytes())?);
        let received = receive(&mut *upload, &mut piece.reader).await;
        drop(memory);
        let record = upload.record();
        if record.offset < record.length {
            return received.map(|()| record);
        }
        // The upload is complete, even if the body was interrupted after its last byte.
        let run = if is_complete { ImportRun::of_complete(&record) } else { ImportRun::First };
        self.import(upload, run).await
    }

    /// Imports a complete upload, and records the outcome.
    async fn import(&self, mut upload: Box<dyn LockedUpload>, run: ImportRun) -> Result<Record, ResumableError> {
        upload.begin_import().await?;
        let imported = tokio::select! {
            imported = self.run_import(&*upload, run) => imported,
            () = upload.taken_over() => return Err(ResumableError::Locked),
        };
        let outcome = match imported {
            Ok(view) => UploadOutcome::Done(view),
            // The other run records the outcome.
            Err(UploadError::TakenOver) => return Err(ResumableError::Locked),
            // It is repeated later.
            Err(error) if error.status() == StatusCode::SERVICE_UNAVAILABLE => {
                upload.postpone().await;
                return Err(error.into());
            }
            Err(error) => {
                let (status, error) = error.failure();
                UploadOutcome::Failed(FailureView { status: status.as_u16(), error })
            }
        };
        upload.finish(outcome.clone()).await?;
        match outcome {
            UploadOutcome::Done(_) => Ok(upload.record()),
            UploadOutcome::Failed(failure) => Err(ResumableError::Failed(failure)),
        }
    }

    /// The principal of an owner that may pin. Since an upload was created, its token may have been revoked, or its
    /// quota changed.
    fn pinning_owner(&self, owner: &str) -> Option<Principal> {
        (self.holders)(owner).filter(|owner| owner.may(Scope::Pin))
    }

    async fn run_import(&self, upload: &dyn LockedUpload, run: ImportRun) -> Result<UploadView, UploadError> {
        let record = upload.record();
        let options = query::parse_stored(&record.query, &record.media_type, record.name.as_deref())?;
        let owner = self.pinning_owner(&record.owner).ok_or(UploadError::Revoked)?;
        let bytes = upload.read().await?;
        let allowance = match run {
            ImportRun::First => self.service.allowance(&owner, &options.destination(), record.length)?,
            // The run before may have used up the quota with the same pins. It is checked when they are recorded.
            ImportRun::Repeated => self.service.limits().allowance(&options.destination()),
        };
        let meter = Meter::of_stored(bytes, UploadAllowance { bytes_max: u64::MAX, ..allowance });
        let is_whole = matches!(options, UploadOptions::Files(_));
        let (watchers, import) = (ProgressReceivers::default(), Some(upload.import_run()));
        let request = UploadRequest { owner, options, watchers, import };
        let taken = self.service.take_queued(request, meter, (record.length, upload.memory_bytes())).await;
        Ok(upload_views::upload(taken.map_err(|error| error.of_stored(is_whole))?))
    }

    /// Removes an upload.
    ///
    /// # Errors
    /// [`ResumableError::Missing`], [`ResumableError::Locked`], and errors of the store.
    pub async fn remove(&self, owner: &Principal, id: &str) -> Result<(), ResumableError> {
        self.store.lock(&owner.id, id).await?.remove().await
    }
}

/// Adds the received bytes to an upload. They are durable up to its offset, also after an error.
async fn receive(upload: &mut dyn LockedUpload, reader: &mut Upload) -> Result<(), ResumableError> {
    let Record { offset, length, .. } = upload.record();
    let copied = copy(upload, reader, length - offset).await;
    let is_discarded = match &copied {
        // The client probably means another upload.
        Err(ResumableError::TooLong { .. }) => true,
        // Nothing says that what was decoded before is right. An interrupted body is another matter.
        Err(ResumableError::BrokenOff(error)) => is_coding_error(error),
        _ => false,
    };
    if is_discarded {
        upload.truncate(offset).await?;
    } else {
        upload.commit().await?;
    }
    copied
}

/// Copies a body of at most so many bytes.
async fn copy(upload: &mut dyn LockedUpload, reader: &mut Upload, mut left: u64) -> Result<(), ResumableError> {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = tokio::select! {
            read = reader.read(&mut buffer) => read.map_err(ResumableError::BrokenOff)?,
            () = upload.check_due() => {
                upload.check().await?;
                continue;
            }
        };
        if read == 0 {
            return Ok(());
        }
        let fits = usize::try_from(left).unwrap_or(usize::MAX).min(read);
        upload.write(&buffer[..fits]).await?;
        left -= fits as u64;
        if fits < read {
            return Err(ResumableError::TooLong { length: upload.record().length });
        }
    }
}
