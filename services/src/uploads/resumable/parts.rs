//! [`ResumableUploads`]: the resumable uploads.

use crate::access::Principal;
use crate::access::authenticator::PrincipalLookup;
use crate::supervision::Supervisor;
use crate::uploads::body::Meter;
use crate::uploads::limits::{COMPLETED_MAX, ResumableLimits, UploadAllowance};
use crate::uploads::request_body::{RequestBody, Upload, boxed, is_coding_error};
use crate::uploads::resumable::file::{Folder, Record, UploadOutcome};
use crate::uploads::views as upload_views;
use crate::uploads::{ProgressReceivers, UploadError, UploadRequest, Uploads, query};
use api::access::Scope;
use api::uploads::{FailureView, UploadView};
use http::StatusCode;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio_util::task::AbortOnDropHandle;

/// The number of bytes after which the file is synced and the offset written, which limits the loss of a crash.
const SYNC_EVERY: u64 = 32 << 20;
/// The read size, in bytes.
const READ_BYTES: usize = 256 * 1024;
/// How long a request waits for the one that it preempts.
const PREEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which expired uploads are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// The number of random bytes of an ID.
const ID_BYTES: usize = 16;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ResumableError {
    /// There is no such upload of this token.
    #[error("there is no such upload: it was removed, or has expired")]
    Missing,
    /// The request's offset is not that of the upload.
    #[error("the offset of the upload is {offset}: query it with HEAD, and continue from there")]
    Offset {
        /// The offset of the upload.
        offset: u64,
    },
    /// The client sent more than the declared length.
    #[error("the client sent more than the declared length of {length} bytes")]
    TooLong {
        /// The declared length.
        length: u64,
    },
    /// Another request uses the upload and did not end in time.
    #[error("another request is using this upload: try again later")]
    Locked,
    /// A limit of open uploads is reached.
    #[error("{0}")]
    Full(String),
    /// Reading the body failed.
    #[error("the body was interrupted: {0}")]
    BrokenOff(io::Error),
    /// The upload is complete, and importing it failed.
    #[error("{}", .0.error)]
    Failed(FailureView),
    /// Another error of uploads.
    #[error(transparent)]
    Uploads(Box<UploadError>),
}

impl From<UploadError> for ResumableError {
    fn from(error: UploadError) -> Self {
        Self::Uploads(Box::new(error))
    }
}

impl ResumableError {
    /// The status and the message for the client.
    pub fn failure(&self) -> (StatusCode, String) {
        let status = match self {
            ResumableError::Missing => StatusCode::NOT_FOUND,
            ResumableError::Offset { .. } => StatusCode::CONFLICT,
            ResumableError::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            ResumableError::Locked => StatusCode::LOCKED,
            ResumableError::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
            ResumableError::BrokenOff(error) if error.kind() == io::ErrorKind::TimedOut => StatusCode::REQUEST_TIMEOUT,
            ResumableError::BrokenOff(_) => StatusCode::BAD_REQUEST,
            ResumableError::Failed(failure) => {
                StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
            ResumableError::Uploads(error) => return error.failure(),
        };
        (status, self.to_string())
    }
}

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

/// The resumable uploads of all tokens.
pub struct ResumableUploads {
    service: Uploads,
    holders: PrincipalLookup,
    folder: Folder,
    limits: ResumableLimits,
    uploads: Mutex<HashMap<String, Arc<ResumableUpload>>>,
}

/// A resumable upload.
#[derive(Debug)]
struct ResumableUpload {
    id: String,
    record: Mutex<Record>,
    /// Locked by the request that uses it.
    lock: Arc<tokio::sync::Mutex<()>>,
    /// The number of requests that wait for the lock.
    waiting: AtomicUsize,
    preempted: Notify,
}

impl ResumableUpload {
    fn new(id: String, record: Record) -> Arc<Self> {
        let (lock, waiting, preempted) = (Arc::default(), AtomicUsize::new(0), Notify::new());
        Arc::new(Self { id, record: Mutex::new(record), lock, waiting, preempted })
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Preempts the request that uses the upload, and locks it.
    async fn lock(&self) -> Result<OwnedMutexGuard<()>, ResumableError> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.preempted.notify_one();
        let locked = tokio::time::timeout(PREEMPT_TIMEOUT, Arc::clone(&self.lock).lock_owned()).await;
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        locked.map_err(|_| ResumableError::Locked)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn new_id() -> io::Result<String> {
    let mut bytes = [0; ID_BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().fold(String::new(), |mut id, byte| {
        _ = write!(id, "{byte:02x}");
        id
    }))
}

/// Runs blocking work on another thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, UploadError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(UploadError::TemporaryFile),
        Err(_) => Err(UploadError::Stopping),
    }
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
        let folder = Folder::open(folder)?;
        let uploads =
            folder.load()?.into_iter().map(|(id, record)| (id.clone(), ResumableUpload::new(id, record))).collect();
        Ok(Arc::new(Self { service, holders, folder, limits, uploads: Mutex::new(uploads) }))
    }

    /// Imports uploads that were complete when the gateway stopped, and removes expired ones until the returned task is
    /// dropped.
    pub fn start(self: &Arc<Self>, supervisor: &Supervisor) -> AbortOnDropHandle<()> {
        for upload in self.lock().values().cloned().collect::<Vec<_>>() {
            let is_ready = {
                let record = upload.record();
                record.outcome.is_none() && record.offset == record.length
            };
            if is_ready {
                let parts = Arc::clone(self);
                tokio::spawn(async move {
                    if let Ok(guard) = upload.lock().await {
                        _ = parts.import(&upload, guard).await;
                    }
                });
            }
        }
        let parts = Arc::clone(self);
        supervisor.spawn("the task that removes expired uploads", async move {
            loop {
                tokio::time::sleep(SWEEP_EVERY).await;
                parts.sweep(now()).await;
            }
        })
    }

    /// The maximum length of a new upload, in bytes.
    pub fn length_max(&self) -> u64 {
        self.limits.bytes_max.min(self.limits.token_bytes_max).min(self.service.limits().bytes_max)
    }

    /// When an upload expires, in seconds since the Unix epoch.
    pub fn expires_at(&self, record: &Record) -> u64 {
        record.touched_at.saturating_add(self.limits.lifetime.as_secs())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<ResumableUpload>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds an upload of an owner.
    fn find(&self, owner: &Principal, id: &str) -> Result<Arc<ResumableUpload>, ResumableError> {
        let found = self.lock().get(id).cloned();
        let found = found.ok_or(ResumableError::Missing)?;
        let is_accessible = {
            let record = found.record();
            record.owner == *owner.id && self.expires_at(&record) > now()
        };
        if is_accessible { Ok(found) } else { Err(ResumableError::Missing) }
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
        self.sweep(now()).await;
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
        let upload = ResumableUpload::new(id.clone(), record.clone());
        // The upload is counted before it is written, so that concurrent requests cannot exceed the limits together.
        let guard = upload.lock().await?;
        {
            let mut uploads = self.lock();
            self.check_limits(&uploads, &record)?;
            uploads.insert(id.clone(), upload);
        }
        let (folder, written) = (self.folder.clone(), (id.clone(), record.clone()));
        let done = blocking(move || {
            folder.bytes(&written.0)?;
            folder.write(&written.0, &written.1)
        });
        if let Err(error) = done.await {
            self.lock().remove(&id);
            return Err(error.into());
        }
        drop(guard);
        if record.length > 0 {
            return Ok((id, record));
        }
        // An empty upload is complete.
        let record = self.append(owner, &id, Piece::new(0, boxed(http_body_util::Empty::new()))).await.0?;
        Ok((id, record))
    }

    fn check_limits(
        &self,
        uploads: &HashMap<String, Arc<ResumableUpload>>,
        wanted: &Record,
    ) -> Result<(), ResumableError> {
        let (mut all, mut own, mut count) = (wanted.length, wanted.length, 1);
        for upload in uploads.values() {
            let record = upload.record();
            if record.is_open() {
                all = all.saturating_add(record.length);
                if record.owner == wanted.owner {
                    own = own.saturating_add(record.length);
                    count += 1;
                }
            }
        }
        let ResumableLimits { bytes_max, token_bytes_max, token_max, .. } = self.limits;
        if count > token_max {
            let words = format!(
                "the limit of {token_max} open uploads is reached (uploads.parts_token_max): complete or remove one \
                 first"
            );
            return Err(ResumableError::Full(words));
        }
        if own > token_bytes_max || all > bytes_max {
            let words = "the open uploads leave too little space for this one (uploads.parts_token_bytes_max, \
                         parts_bytes_max): complete or remove one first";
            return Err(ResumableError::Full(words.to_owned()));
        }
        Ok(())
    }

    /// The record of an upload with its final offset: a running request is preempted, unless it imports the upload.
    ///
    /// # Errors
    /// [`ResumableError::Missing`], [`ResumableError::Locked`], and [`ResumableError::Failed`] when importing it
    /// failed.
    pub async fn offset(&self, owner: &Principal, id: &str) -> Result<Record, ResumableError> {
        let upload = self.find(owner, id)?;
        let _guard = upload.lock().await?;
        self.find(owner, id)?;
        let record = upload.record().clone();
        match record.outcome {
            Some(UploadOutcome::Failed(failure)) => Err(ResumableError::Failed(failure)),
            _ => Ok(record),
        }
    }

    /// The record of an upload, without preempting a request.
    ///
    /// # Errors
    /// [`ResumableError::Missing`].
    pub fn look(&self, owner: &Principal, id: &str) -> Result<Record, ResumableError> {
        Ok(self.find(owner, id)?.record().clone())
    }

    /// The uploads of an owner, oldest first.
    pub fn list(&self, owner: &Principal) -> Vec<(String, Record)> {
        let all = self.lock();
        let own = all.values().map(|upload| (upload.id.clone(), upload.record().clone()));
        let mut own: Vec<_> =
            own.filter(|(_, record)| record.owner == *owner.id && self.expires_at(record) > now()).collect();
        own.sort_by(|(one, a), (other, b)| (a.created_at, one).cmp(&(b.created_at, other)));
        own
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

    async fn append_piece(
        self: &Arc<Self>,
        owner: &Principal,
        id: &str,
        piece: &mut Piece,
    ) -> Result<Record, ResumableError> {
        let upload = self.find(owner, id)?;
        let guard = upload.lock().await?;
        self.find(owner, id)?;
        let record = upload.record().clone();
        if record.offset != piece.offset {
            return Err(ResumableError::Offset { offset: record.offset });
        }
        if !record.is_open() {
            return match record.outcome {
                Some(UploadOutcome::Failed(failure)) => Err(ResumableError::Failed(failure)),
                _ => Ok(record),
            };
        }
        // The current quota counts, not that when the upload was created.
        let options = query::parse_stored(&record.query, &record.media_type, record.name.as_deref())?;
        self.service.allowance(owner, &options.destination(), record.length)?;
        if piece.bytes > record.length - record.offset {
            return Err(ResumableError::TooLong { length: record.length });
        }
        let memory = self.service.reserve(piece.decoder_bytes_max)?;
        let written = self.write(&upload, &mut piece.reader).await;
        drop(memory);
        if upload.record().offset < record.length {
            written?;
        } else {
            // The upload is complete, even if the body was interrupted after its last byte.
            self.import(&upload, guard).await?;
        }
        let record = upload.record().clone();
        Ok(record)
    }

    /// Writes the received bytes. The offset is up to where they are synced, also after an error.
    async fn write(&self, upload: &Arc<ResumableUpload>, reader: &mut Upload) -> Result<(), ResumableError> {
        let (folder, id) = (self.folder.clone(), upload.id.clone());
        let (length, synced) = {
            let record = upload.record();
            (record.length, record.offset)
        };
        let file = blocking(move || {
            let file = folder.bytes(&id)?;
            // Bytes after the offset were not acknowledged.
            file.set_len(synced)?;
            Ok(file)
        });
        let mut file = tokio::fs::File::from_std(file.await?);
        file.seek(io::SeekFrom::Start(synced)).await.map_err(UploadError::TemporaryFile)?;
        let mut offset = synced;
        let copied = self.copy(upload, reader, &mut file, length, &mut offset).await;
        let is_discarded = match &copied {
            // The client probably means another upload.
            Err(ResumableError::TooLong { .. }) => true,
            // Nothing says that what was decoded before is right. An interrupted body is another matter.
            Err(ResumableError::BrokenOff(error)) => is_coding_error(error),
            _ => false,
        };
        if is_discarded {
            offset = synced;
        }
        if offset != upload.record().offset {
            self.commit_offset(upload, &mut file, offset).await?;
        }
        copied
    }

    async fn copy(
        &self,
        upload: &Arc<ResumableUpload>,
        reader: &mut Upload,
        file: &mut tokio::fs::File,
        length: u64,
        offset: &mut u64,
    ) -> Result<(), ResumableError> {
        let mut buffer = vec![0; READ_BYTES];
        let mut due = *offset + SYNC_EVERY;
        loop {
            let read = tokio::select! {
                read = reader.read(&mut buffer) => read.map_err(ResumableError::BrokenOff)?,
                () = self.preempted(upload) => return Err(ResumableError::Locked),
            };
            if read == 0 {
                return Ok(());
            }
            let fits = usize::try_from(length - *offset).unwrap_or(usize::MAX).min(read);
            file.write_all(&buffer[..fits]).await.map_err(UploadError::TemporaryFile)?;
            *offset += fits as u64;
            if fits < read {
                return Err(ResumableError::TooLong { length });
            }
            if *offset >= due {
                due = *offset + SYNC_EVERY;
                self.commit_offset(upload, file, *offset).await?;
            }
        }
    }

    async fn preempted(&self, upload: &ResumableUpload) {
        while upload.waiting.load(Ordering::SeqCst) == 0 {
            upload.preempted.notified().await;
        }
    }

    /// Syncs the received bytes, and then writes the offset.
    async fn commit_offset(
        &self,
        upload: &Arc<ResumableUpload>,
        file: &mut tokio::fs::File,
        offset: u64,
    ) -> Result<(), UploadError> {
        file.flush().await.map_err(UploadError::TemporaryFile)?;
        file.sync_data().await.map_err(UploadError::TemporaryFile)?;
        self.change(upload, |record| {
            record.offset = offset;
            record.touched_at = now();
        })
        .await
    }

    /// Changes a record, first on the disk.
    async fn change(&self, upload: &Arc<ResumableUpload>, change: impl FnOnce(&mut Record)) -> Result<(), UploadError> {
        let mut record = upload.record().clone();
        change(&mut record);
        let (folder, id, written) = (self.folder.clone(), upload.id.clone(), record.clone());
        blocking(move || folder.write(&id, &written)).await?;
        *upload.record() = record;
        Ok(())
    }

    /// Imports a complete upload, and records the outcome.
    async fn import(&self, upload: &Arc<ResumableUpload>, guard: OwnedMutexGuard<()>) -> Result<(), ResumableError> {
        let record = upload.record().clone();
        let outcome = match self.run_import(upload, &record).await {
            Ok(view) => UploadOutcome::Done(view),
            // The next start imports it.
            Err(error) if error.status() == StatusCode::SERVICE_UNAVAILABLE => return Err(error.into()),
            Err(error) => {
                let (status, error) = error.failure();
                UploadOutcome::Failed(FailureView { status: status.as_u16(), error })
            }
        };
        self.change(upload, |record| {
            record.outcome = Some(outcome.clone());
            record.touched_at = now();
        })
        .await?;
        if !upload.record().is_open() {
            let (folder, id) = (self.folder.clone(), upload.id.clone());
            blocking(move || folder.remove_bytes(&id)).await?;
        }
        self.prune_completed(&record.owner).await;
        drop(guard);
        match outcome {
            UploadOutcome::Done(_) => Ok(()),
            UploadOutcome::Failed(failure) => Err(ResumableError::Failed(failure)),
        }
    }

    async fn run_import(&self, upload: &ResumableUpload, record: &Record) -> Result<UploadView, UploadError> {
        let options = query::parse_stored(&record.query, &record.media_type, record.name.as_deref())?;
        // Since the upload was created, the token may have been revoked, or its quota changed.
        let owner = (self.holders)(&record.owner).filter(|owner| owner.may(Scope::Pin)).ok_or(UploadError::Revoked)?;
        let (folder, id) = (self.folder.clone(), upload.id.clone());
        let file = blocking(move || folder.bytes(&id)).await?;
        let allowance = self.service.allowance(&owner, &options.destination(), record.length)?;
        let meter =
            Meter::of_file(tokio::fs::File::from_std(file), UploadAllowance { bytes_max: u64::MAX, ..allowance });
        let request = UploadRequest { owner, options, watchers: ProgressReceivers::default() };
        let taken = self.service.take_queued(request, meter, record.length).await?;
        Ok(upload_views::upload(taken))
    }

    /// Removes the oldest completed uploads of an owner beyond the limit.
    async fn prune_completed(&self, owner: &str) {
        let mut completed: Vec<(u64, String)> = {
            let all = self.lock();
            let records = all.values().map(|upload| (upload.record().clone(), upload.id.clone()));
            let completed = records.filter(|(record, _)| record.owner == owner && !record.is_open());
            completed.map(|(record, id)| (record.touched_at, id)).collect()
        };
        completed.sort_unstable();
        let excess = completed.len().saturating_sub(COMPLETED_MAX);
        for (_, id) in completed.drain(..excess) {
            self.delete(&id).await;
        }
    }

    /// Removes an upload.
    ///
    /// # Errors
    /// [`ResumableError::Missing`], [`ResumableError::Locked`], and the error of the disk.
    pub async fn remove(&self, owner: &Principal, id: &str) -> Result<(), ResumableError> {
        let upload = self.find(owner, id)?;
        let _guard = upload.lock().await?;
        self.find(owner, id)?;
        let (folder, path) = (self.folder.clone(), id.to_owned());
        blocking(move || folder.remove(&path)).await?;
        self.lock().remove(id);
        Ok(())
    }

    /// Removes expired uploads that are not in use.
    async fn sweep(&self, now: u64) {
        let expired: Vec<Arc<ResumableUpload>> = {
            let all = self.lock();
            all.values().filter(|upload| self.expires_at(&upload.record()) <= now).cloned().collect()
        };
        for upload in expired {
            let Ok(_guard) = Arc::clone(&upload.lock).try_lock_owned() else { continue };
            if self.expires_at(&upload.record()) <= now {
                self.delete(&upload.id).await;
            }
        }
    }

    async fn delete(&self, id: &str) {
        let (folder, path) = (self.folder.clone(), id.to_owned());
        match blocking(move || folder.remove(&path)).await {
            Ok(()) => _ = self.lock().remove(id),
            Err(error) => tracing::warn!(id, %error, "removing a resumable upload failed"),
        }
    }
}
