//! [`Parts`]: the resumable uploads that there are.

use crate::access::Principal;
use crate::access::authenticator::Holders;
use crate::supervision::Supervisor;
use crate::uploads::body::{Allowance, Meter};
use crate::uploads::request_body::{RequestBody, Upload, boxed};
use crate::uploads::resumable::file::{Folder, Outcome, Record};
use crate::uploads::views as upload_views;
use crate::uploads::{Order, UploadError, Uploads, Watchers, query};
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

/// How many bytes come before they are synced and the offset is written, so that a killed gateway loses no more than that.
const SYNC_EVERY: u64 = 32 << 20;
/// What is read at a time, in bytes.
const READ_BYTES: usize = 256 * 1024;
/// How long whoever comes later waits for what is under way to end.
const YIELD: Duration = Duration::from_secs(10);
/// How often uploads are looked at that nobody goes on with.
const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// How many ends of uploads are remembered for a token.
const ENDED_MAX: usize = 256;
/// The bytes of an identifier's randomness.
const ID_BYTES: usize = 16;

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of uploads that are open, in all, as long as they will be.
    pub bytes_max: u64,
    /// Of one token.
    pub token_bytes_max: u64,
    /// Uploads of one token that are open.
    pub token_max: usize,
    /// How long one is kept with which nothing is done.
    pub lifetime: Duration,
}

impl From<&config::Uploads> for Bounds {
    fn from(settings: &config::Uploads) -> Self {
        Self {
            bytes_max: settings.parts_bytes_max,
            token_bytes_max: settings.parts_token_bytes_max,
            token_max: usize::try_from(settings.parts_token_max).unwrap_or(usize::MAX),
            lifetime: Duration::from_secs(settings.parts_hours.saturating_mul(3600)),
        }
    }
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum ResumableError {
    /// Nobody has such an upload, or somebody else has.
    #[error("there is no such upload: it was removed, or has expired")]
    Missing,
    /// The client is elsewhere.
    #[error("the upload is at byte {offset}: ask for the offset with HEAD, and go on from there")]
    Offset {
        /// Where the upload is.
        offset: u64,
    },
    /// More came than was announced.
    #[error("more bytes came than the {length} that were announced")]
    TooLong {
        /// What was announced.
        length: u64,
    },
    /// Something is under way that does not end.
    #[error("something is being done with this upload: try again in a moment")]
    Locked,
    /// There is no room.
    #[error("{0}")]
    Full(String),
    /// The body ended before its end.
    #[error("the body broke off: {0}")]
    BrokenOff(io::Error),
    /// It was complete, and was not taken in.
    #[error("{}", .0.error)]
    Failed(FailureView),
    /// Anything else.
    #[error(transparent)]
    Uploads(Box<UploadError>),
}

impl From<UploadError> for ResumableError {
    fn from(error: UploadError) -> Self {
        Self::Uploads(Box::new(error))
    }
}

impl ResumableError {
    /// What the client is answered with: a status, and what went wrong.
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

/// What is to be uploaded.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// How many bytes it will have.
    pub length: u64,
    /// The parameters of `POST /upload`.
    pub query: String,
    /// What it is.
    pub media_type: String,
    /// What it is called.
    pub name: Option<String>,
}

/// Bytes that are to be added.
pub struct Piece {
    /// Where the sender believes the upload to be.
    offset: u64,
    /// How many bytes are known to come.
    bytes: u64,
    reader: Upload,
}

impl Piece {
    /// A request's body, from an offset on.
    pub fn new(offset: u64, body: RequestBody) -> Self {
        let bytes = http_body::Body::size_hint(&body).lower();
        Self { offset, bytes, reader: Upload::new(body) }
    }
}

/// The resumable uploads of everybody.
pub struct Parts {
    service: Uploads,
    holders: Holders,
    folder: Folder,
    bounds: Bounds,
    uploads: Mutex<HashMap<String, Arc<One>>>,
}

/// One upload.
#[derive(Debug)]
struct One {
    id: String,
    record: Mutex<Record>,
    /// Whoever does something with it holds this.
    busy: Arc<tokio::sync::Mutex<()>>,
    /// How many wait for that.
    waiting: AtomicUsize,
    came: Notify,
}

impl One {
    fn new(id: String, record: Record) -> Arc<Self> {
        let (busy, waiting, came) = (Arc::default(), AtomicUsize::new(0), Notify::new());
        Arc::new(Self { id, record: Mutex::new(record), busy, waiting, came })
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what is under way, and takes its place.
    async fn take_over(&self) -> Result<OwnedMutexGuard<()>, ResumableError> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.came.notify_one();
        let locked = tokio::time::timeout(YIELD, Arc::clone(&self.busy).lock_owned()).await;
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

/// Does what blocks, on another thread.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, UploadError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(UploadError::Scratch),
        Err(_) => Err(UploadError::Stopping),
    }
}

impl Parts {
    /// Opens the uploads that lie in `folder`, of those whom `holders` knows; those that are complete and were not taken in are, from now on. Blocks the thread.
    ///
    /// # Errors
    /// What the disk said.
    pub fn open(service: Uploads, folder: &Path, bounds: Bounds, holders: Holders) -> io::Result<Arc<Self>> {
        let folder = Folder::open(folder)?;
        let uploads = folder.load()?.into_iter().map(|(id, record)| (id.clone(), One::new(id, record))).collect();
        Ok(Arc::new(Self { service, holders, folder, bounds, uploads: Mutex::new(uploads) }))
    }

    /// Goes on with what was complete when the gateway ended, and removes what has expired, for as long as the task is held that
    /// is returned.
    pub fn start(self: &Arc<Self>, supervisor: &Supervisor) -> AbortOnDropHandle<()> {
        for upload in self.lock().values().cloned().collect::<Vec<_>>() {
            let is_ready = {
                let record = upload.record();
                record.outcome.is_none() && record.offset == record.length
            };
            if is_ready {
                let parts = Arc::clone(self);
                tokio::spawn(async move {
                    if let Ok(guard) = upload.take_over().await {
                        _ = parts.take_in(&upload, guard).await;
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

    /// The largest upload that may be begun, in bytes.
    pub fn length_max(&self) -> u64 {
        self.bounds.bytes_max.min(self.bounds.token_bytes_max).min(self.service.limits().bytes_max)
    }

    /// When an upload expires that was touched at `touched_at`, in seconds since the Unix epoch.
    pub fn expires_at(&self, record: &Record) -> u64 {
        record.touched_at.saturating_add(self.bounds.lifetime.as_secs())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<One>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An owner's upload.
    fn find(&self, owner: &Principal, id: &str) -> Result<Arc<One>, ResumableError> {
        let found = self.lock().get(id).cloned();
        let found = found.ok_or(ResumableError::Missing)?;
        let is_alive = {
            let record = found.record();
            record.owner == *owner.id && self.expires_at(&record) > now()
        };
        if is_alive { Ok(found) } else { Err(ResumableError::Missing) }
    }

    /// Begins an upload: its identifier.
    ///
    /// # Errors
    /// [`ResumableError::Full`], and what is wrong with what is wanted.
    pub async fn create(
        self: &Arc<Self>,
        owner: &Principal,
        wanted: Wanted,
    ) -> Result<(String, Record), ResumableError> {
        let (terms, _) = query::stored(&wanted.query, &wanted.media_type, wanted.name.as_deref())?;
        self.service.allowance(owner, terms.keep, wanted.length)?;
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
        let id = new_id().map_err(UploadError::Scratch)?;
        let upload = One::new(id.clone(), record.clone());
        // Its room is taken before it is written, so that two at a time cannot have the same.
        let guard = upload.take_over().await?;
        {
            let mut uploads = self.lock();
            self.check_room(&uploads, &record)?;
            uploads.insert(id.clone(), upload);
        }
        let (folder, written) = (self.folder.clone(), (id.clone(), record.clone()));
        let done = apart(move || {
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
        // Its last byte is here already.
        let record = self.append(owner, &id, Piece::new(0, boxed(http_body_util::Empty::new()))).await.0?;
        Ok((id, record))
    }

    fn check_room(&self, uploads: &HashMap<String, Arc<One>>, wanted: &Record) -> Result<(), ResumableError> {
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
        let Bounds { bytes_max, token_bytes_max, token_max, .. } = self.bounds;
        if count > token_max {
            let words = format!("{token_max} uploads are open (uploads.parts_token_max): complete or remove one first");
            return Err(ResumableError::Full(words));
        }
        if own > token_bytes_max || all > bytes_max {
            let words = "the uploads that are open leave no room for this one (uploads.parts_token_bytes_max, parts_bytes_max): \
                         complete or remove one first";
            return Err(ResumableError::Full(words.to_owned()));
        }
        Ok(())
    }

    /// Where an upload is. What is under way with it is ended first, so that this stands; unless it is being taken in.
    ///
    /// # Errors
    /// [`ResumableError::Missing`], [`ResumableError::Locked`], and [`ResumableError::Failed`] when it was not taken in.
    pub async fn offset(&self, owner: &Principal, id: &str) -> Result<Record, ResumableError> {
        let upload = self.find(owner, id)?;
        let _guard = upload.take_over().await?;
        self.find(owner, id)?;
        let record = upload.record().clone();
        match record.outcome {
            Some(Outcome::Failed(failure)) => Err(ResumableError::Failed(failure)),
            _ => Ok(record),
        }
    }

    /// What is known of an upload, without ending anything.
    ///
    /// # Errors
    /// [`ResumableError::Missing`].
    pub fn look(&self, owner: &Principal, id: &str) -> Result<Record, ResumableError> {
        Ok(self.find(owner, id)?.record().clone())
    }

    /// An owner's uploads, the oldest first.
    pub fn list(&self, owner: &Principal) -> Vec<(String, Record)> {
        let all = self.lock();
        let own = all.values().map(|upload| (upload.id.clone(), upload.record().clone()));
        let mut own: Vec<_> =
            own.filter(|(_, record)| record.owner == *owner.id && self.expires_at(record) > now()).collect();
        own.sort_by(|(one, a), (other, b)| (a.created_at, one).cmp(&(b.created_at, other)));
        own
    }

    /// Adds a piece to an upload, and takes the content in when that was the last of it. What came is kept also if the body breaks
    /// off, or nobody waits for this. What was not read of the body comes back.
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
            let appended = parts.append_here(&owner, &id, &mut piece).await;
            (appended, Some(piece.reader.into_rest()))
        });
        appending.await.unwrap_or((Err(UploadError::Stopping.into()), None))
    }

    async fn append_here(
        self: &Arc<Self>,
        owner: &Principal,
        id: &str,
        piece: &mut Piece,
    ) -> Result<Record, ResumableError> {
        let upload = self.find(owner, id)?;
        let guard = upload.take_over().await?;
        self.find(owner, id)?;
        let record = upload.record().clone();
        if record.offset != piece.offset {
            return Err(ResumableError::Offset { offset: record.offset });
        }
        if !record.is_open() {
            return match record.outcome {
                Some(Outcome::Failed(failure)) => Err(ResumableError::Failed(failure)),
                _ => Ok(record),
            };
        }
        // What the token may keep now, and not when the upload was begun.
        let (terms, _) = query::stored(&record.query, &record.media_type, record.name.as_deref())?;
        self.service.allowance(owner, terms.keep, record.length)?;
        if piece.bytes > record.length - record.offset {
            return Err(ResumableError::TooLong { length: record.length });
        }
        let came = self.write(&upload, &mut piece.reader).await;
        if upload.record().offset < record.length {
            came?;
        } else {
            // All of it is here, also if the body broke off behind that.
            self.take_in(&upload, guard).await?;
        }
        let record = upload.record().clone();
        Ok(record)
    }

    /// Writes what comes. The offset is where everything is synced, however this ends.
    async fn write(&self, upload: &Arc<One>, reader: &mut Upload) -> Result<(), ResumableError> {
        let (folder, id) = (self.folder.clone(), upload.id.clone());
        let (length, synced) = {
            let record = upload.record();
            (record.length, record.offset)
        };
        let file = apart(move || {
            let file = folder.bytes(&id)?;
            // Bytes behind the offset were never acknowledged.
            file.set_len(synced)?;
            Ok(file)
        });
        let mut file = tokio::fs::File::from_std(file.await?);
        file.seek(io::SeekFrom::Start(synced)).await.map_err(UploadError::Scratch)?;
        let mut offset = synced;
        let said = self.copy(upload, reader, &mut file, length, &mut offset).await;
        if matches!(said, Err(ResumableError::TooLong { .. })) {
            // Whoever sends that means something else: nothing of the piece counts, and nothing of it was acknowledged.
            offset = synced;
        }
        if offset != upload.record().offset {
            self.note_offset(upload, &mut file, offset).await?;
        }
        said
    }

    async fn copy(
        &self,
        upload: &Arc<One>,
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
                () = self.somebody_waits(upload) => return Err(ResumableError::Locked),
            };
            if read == 0 {
                return Ok(());
            }
            let fits = usize::try_from(length - *offset).unwrap_or(usize::MAX).min(read);
            file.write_all(&buffer[..fits]).await.map_err(UploadError::Scratch)?;
            *offset += fits as u64;
            if fits < read {
                return Err(ResumableError::TooLong { length });
            }
            if *offset >= due {
                due = *offset + SYNC_EVERY;
                self.note_offset(upload, file, *offset).await?;
            }
        }
    }

    async fn somebody_waits(&self, upload: &One) {
        while upload.waiting.load(Ordering::SeqCst) == 0 {
            upload.came.notified().await;
        }
    }

    /// Syncs what came, and then says so.
    async fn note_offset(&self, upload: &Arc<One>, file: &mut tokio::fs::File, offset: u64) -> Result<(), UploadError> {
        file.flush().await.map_err(UploadError::Scratch)?;
        file.sync_data().await.map_err(UploadError::Scratch)?;
        self.change(upload, |record| {
            record.offset = offset;
            record.touched_at = now();
        })
        .await
    }

    /// Changes a record, on the disk first.
    async fn change(&self, upload: &Arc<One>, change: impl FnOnce(&mut Record)) -> Result<(), UploadError> {
        let mut record = upload.record().clone();
        change(&mut record);
        let (folder, id, written) = (self.folder.clone(), upload.id.clone(), record.clone());
        apart(move || folder.write(&id, &written)).await?;
        *upload.record() = record;
        Ok(())
    }

    /// Takes a complete upload in.
    async fn take_in(&self, upload: &Arc<One>, guard: OwnedMutexGuard<()>) -> Result<(), ResumableError> {
        let record = upload.record().clone();
        let outcome = match self.taken(upload, &record).await {
            Ok(view) => Outcome::Done(view),
            // It is taken in at the next start.
            Err(error) if error.status() == StatusCode::SERVICE_UNAVAILABLE => return Err(error.into()),
            Err(error) => {
                let (status, error) = error.failure();
                Outcome::Failed(FailureView { status: status.as_u16(), error })
            }
        };
        self.change(upload, |record| {
            record.outcome = Some(outcome.clone());
            record.touched_at = now();
        })
        .await?;
        if !upload.record().is_open() {
            let (folder, id) = (self.folder.clone(), upload.id.clone());
            apart(move || folder.remove_bytes(&id)).await?;
        }
        self.forget_old_ends(&record.owner).await;
        drop(guard);
        match outcome {
            Outcome::Done(_) => Ok(()),
            Outcome::Failed(failure) => Err(ResumableError::Failed(failure)),
        }
    }

    async fn taken(&self, upload: &One, record: &Record) -> Result<UploadView, UploadError> {
        let (terms, form) = query::stored(&record.query, &record.media_type, record.name.as_deref())?;
        // The token may have been revoked, or have another quota, since the upload was begun.
        let owner = (self.holders)(&record.owner).filter(|owner| owner.may(Scope::Pin)).ok_or(UploadError::Revoked)?;
        let (folder, id) = (self.folder.clone(), upload.id.clone());
        let file = apart(move || folder.bytes(&id)).await?;
        let allowance = self.service.allowance(&owner, terms.keep, record.length)?;
        let meter = Meter::of_file(tokio::fs::File::from_std(file), Allowance { bytes_max: u64::MAX, ..allowance });
        let order = Order { owner, terms, form, watchers: Watchers::default() };
        let taken = self.service.take_in_turn(order, meter, record.length).await?;
        Ok(upload_views::upload(taken))
    }

    /// Ends of uploads are told for a while, and not without bound.
    async fn forget_old_ends(&self, owner: &str) {
        let mut ended: Vec<(u64, String)> = {
            let all = self.lock();
            let records = all.values().map(|upload| (upload.record().clone(), upload.id.clone()));
            let ended = records.filter(|(record, _)| record.owner == owner && !record.is_open());
            ended.map(|(record, id)| (record.touched_at, id)).collect()
        };
        ended.sort_unstable();
        let excess = ended.len().saturating_sub(ENDED_MAX);
        for (_, id) in ended.drain(..excess) {
            self.forget(&id).await;
        }
    }

    /// Removes an upload.
    ///
    /// # Errors
    /// [`ResumableError::Missing`], [`ResumableError::Locked`], and what the disk said.
    pub async fn remove(&self, owner: &Principal, id: &str) -> Result<(), ResumableError> {
        let upload = self.find(owner, id)?;
        let _guard = upload.take_over().await?;
        self.find(owner, id)?;
        let (folder, path) = (self.folder.clone(), id.to_owned());
        apart(move || folder.remove(&path)).await?;
        self.lock().remove(id);
        Ok(())
    }

    /// Removes what has expired and is not being used.
    async fn sweep(&self, now: u64) {
        let expired: Vec<Arc<One>> = {
            let all = self.lock();
            all.values().filter(|upload| self.expires_at(&upload.record()) <= now).cloned().collect()
        };
        for upload in expired {
            let Ok(_guard) = Arc::clone(&upload.busy).try_lock_owned() else { continue };
            if self.expires_at(&upload.record()) <= now {
                self.forget(&upload.id).await;
            }
        }
    }

    async fn forget(&self, id: &str) {
        let (folder, path) = (self.folder.clone(), id.to_owned());
        match apart(move || folder.remove(&path)).await {
            Ok(()) => _ = self.lock().remove(id),
            Err(error) => tracing::warn!(id, %error, "an upload could not be removed"),
        }
    }
}
