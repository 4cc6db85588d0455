//! [`LocalUploads`]: the resumable uploads of a gateway that is alone, in files.
//!
//! Records are in memory, and are changed after their files. A lock for each upload orders the requests that use it.

use crate::pinning::RepeatableImport;
use crate::uploads::UploadError;
use crate::uploads::limits::{COMPLETED_MAX, ResumableLimits};
use crate::uploads::resumable::error::ResumableError;
use crate::uploads::resumable::file::Folder;
use crate::uploads::resumable::record::{Record, UploadOutcome, now};
use crate::uploads::resumable::store::{IsKnown, LOCK_TIMEOUT, LockedUpload, StoredBytes, UploadStore};
use futures::future::{self, BoxFuture, FutureExt as _};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, OwnedMutexGuard};

/// The number of bytes after which the file is synced and the offset written, which limits the loss of a crash.
const SYNC_EVERY: u64 = 32 << 20;
/// The interval at which expired uploads are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(300);

/// The resumable uploads in a folder. Clones share them.
#[derive(Debug, Clone)]
pub struct LocalUploads(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: Folder,
    limits: ResumableLimits,
    uploads: Mutex<HashMap<String, Arc<ResumableUpload>>>,
    /// Those that were complete when the gateway stopped.
    unfinished: Mutex<Vec<Arc<ResumableUpload>>>,
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

    fn is_unfinished(&self) -> bool {
        let record = self.record();
        record.outcome.is_none() && record.offset == record.length
    }

    /// Preempts the request that uses the upload, and locks it.
    async fn lock(&self) -> Result<OwnedMutexGuard<()>, ResumableError> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.preempted.notify_one();
        let locked = tokio::time::timeout(LOCK_TIMEOUT, Arc::clone(&self.lock).lock_owned()).await;
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        locked.map_err(|_| ResumableError::Locked)
    }

    async fn preempted(&self) {
        while self.waiting.load(Ordering::SeqCst) == 0 {
            self.preempted.notified().await;
        }
    }
}

/// Runs blocking work on another thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, UploadError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(UploadError::TemporaryFile),
        Err(_) => Err(UploadError::Stopping),
    }
}

impl LocalUploads {
    /// Loads the uploads in a folder. Blocks the thread.
    ///
    /// # Errors
    /// The error of the disk.
    pub fn open(folder: &Path, limits: ResumableLimits) -> io::Result<Self> {
        let folder = Folder::open(folder)?;
        let uploads: HashMap<_, _> =
            folder.load()?.into_iter().map(|(id, record)| (id.clone(), ResumableUpload::new(id, record))).collect();
        let unfinished = uploads.values().filter(|upload| upload.is_unfinished()).cloned().collect();
        let (uploads, unfinished) = (Mutex::new(uploads), Mutex::new(unfinished));
        Ok(Self(Arc::new(Inner { folder, limits, uploads, unfinished })))
    }
}

impl Inner {
    fn uploads(&self) -> MutexGuard<'_, HashMap<String, Arc<ResumableUpload>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_expired(&self, record: &Record) -> bool {
        record.touched_at.saturating_add(self.limits.lifetime.as_secs()) <= now()
    }

    fn find(&self, owner: &str, id: &str) -> Result<Arc<ResumableUpload>, ResumableError> {
        let found = self.uploads().get(id).cloned();
        let found = found.ok_or(ResumableError::Missing)?;
        let is_accessible = {
            let record = found.record();
            record.owner == owner && !self.has_expired(&record)
        };
        if is_accessible { Ok(found) } else { Err(ResumableError::Missing) }
    }

    async fn create(&self, id: &str, record: Record) -> Result<Record, ResumableError> {
        self.sweep().await;
        let upload = ResumableUpload::new(id.to_owned(), record.clone());
        // The upload is counted before it is written, so that concurrent requests cannot exceed the limits together.
        let guard = upload.lock().await?;
        {
            let mut uploads = self.uploads();
            self.check_limits(&uploads, &record)?;
            uploads.insert(id.to_owned(), upload);
        }
        let (folder, written) = (self.folder.clone(), (id.to_owned(), record.clone()));
        let done = blocking(move || {
            folder.bytes(&written.0)?;
            folder.write(&written.0, &written.1)
        });
        if let Err(error) = done.await {
            self.uploads().remove(id);
            return Err(error.into());
        }
        drop(guard);
        Ok(record)
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
            return Err(ResumableError::too_many(token_max));
        }
        if own > token_bytes_max || all > bytes_max {
            return Err(ResumableError::too_little_space());
        }
        Ok(())
    }

    fn list(&self, owner: &str) -> Vec<(String, Record)> {
        let all = self.uploads();
        let own = all.values().map(|upload| (upload.id.clone(), upload.record().clone()));
        let mut own: Vec<_> = own.filter(|(_, record)| record.owner == owner && !self.has_expired(record)).collect();
        own.sort_by(|(one, a), (other, b)| (a.created_at, one).cmp(&(b.created_at, other)));
        own
    }

    /// Changes a record, first on the disk.
    async fn change(&self, upload: &ResumableUpload, change: impl FnOnce(&mut Record)) -> Result<(), UploadError> {
        let mut record = upload.record().clone();
        change(&mut record);
        let (folder, id, written) = (self.folder.clone(), upload.id.clone(), record.clone());
        blocking(move || folder.write(&id, &written)).await?;
        *upload.record() = record;
        Ok(())
    }

    /// Removes the oldest completed uploads of an owner beyond the limit.
    async fn prune_completed(&self, owner: &str) {
        let mut completed: Vec<(u64, String)> = {
            let all = self.uploads();
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

    /// Removes expired uploads that are not in use.
    async fn sweep(&self) {
        let expired: Vec<Arc<ResumableUpload>> = {
            let all = self.uploads();
            all.values().filter(|upload| self.has_expired(&upload.record())).cloned().collect()
        };
        for upload in expired {
            let Ok(_guard) = Arc::clone(&upload.lock).try_lock_owned() else { continue };
            if self.has_expired(&upload.record()) {
                self.delete(&upload.id).await;
            }
        }
    }

    async fn delete(&self, id: &str) {
        if let Err(error) = self.remove(id).await {
            tracing::warn!(id, %error, "removing a resumable upload failed");
        }
    }

    async fn remove(&self, id: &str) -> Result<(), UploadError> {
        let (folder, path) = (self.folder.clone(), id.to_owned());
        blocking(move || folder.remove(&path)).await?;
        self.uploads().remove(id);
        Ok(())
    }
}

impl UploadStore for LocalUploads {
    fn create<'a>(&'a self, id: &'a str, record: Record) -> BoxFuture<'a, Result<Record, ResumableError>> {
        self.0.create(id, record).boxed()
    }

    fn find<'a>(&'a self, owner: &'a str, id: &'a str) -> BoxFuture<'a, Result<Record, ResumableError>> {
        future::ready(self.0.find(owner, id).map(|upload| upload.record().clone())).boxed()
    }

    fn list<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<Vec<(String, Record)>, ResumableError>> {
        future::ready(Ok(self.0.list(owner))).boxed()
    }

    fn lock<'a>(&'a self, owner: &'a str, id: &'a str) -> BoxFuture<'a, Result<Box<dyn LockedUpload>, ResumableError>> {
        async move {
            let upload = self.0.find(owner, id)?;
            let guard = upload.lock().await?;
            self.0.find(owner, id)?;
            Ok(LocalUpload::boxed(&self.0, upload, guard))
        }
        .boxed()
    }

    fn take_unfinished<'a>(&'a self, _: IsKnown<'a>) -> BoxFuture<'a, Vec<Box<dyn LockedUpload>>> {
        let unfinished = std::mem::take(&mut *self.0.unfinished.lock().unwrap_or_else(PoisonError::into_inner));
        async move {
            let mut taken = Vec::new();
            for upload in unfinished {
                if let Ok(guard) = upload.lock().await
                    && upload.is_unfinished()
                {
                    taken.push(LocalUpload::boxed(&self.0, upload, guard));
                }
            }
            taken
        }
        .boxed()
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        self.0.sweep().boxed()
    }

    fn sweep_interval(&self) -> Duration {
        SWEEP_EVERY
    }
}

/// An upload that is locked, with its file when it is written.
struct LocalUpload {
    uploads: Arc<Inner>,
    upload: Arc<ResumableUpload>,
    _guard: OwnedMutexGuard<()>,
    writer: Option<Writer>,
}

struct Writer {
    file: tokio::fs::File,
    position: u64,
    /// The position from which on the file is to be synced.
    due: u64,
}

impl LocalUpload {
    fn boxed(uploads: &Arc<Inner>, upload: Arc<ResumableUpload>, guard: OwnedMutexGuard<()>) -> Box<dyn LockedUpload> {
        Box::new(Self { uploads: Arc::clone(uploads), upload, _guard: guard, writer: None })
    }

    async fn writer(&mut self) -> Result<&mut Writer, UploadError> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.open_writer().await?,
        };
        Ok(self.writer.insert(writer))
    }

    async fn open_writer(&self) -> Result<Writer, UploadError> {
        let (folder, id, position) = (self.uploads.folder.clone(), self.upload.id.clone(), self.upload.record().offset);
        let file = blocking(move || {
            let file = folder.bytes(&id)?;
            // Bytes after the offset were not acknowledged.
            file.set_len(position)?;
            Ok(file)
        });
        let mut file = tokio::fs::File::from_std(file.await?);
        file.seek(io::SeekFrom::Start(position)).await.map_err(UploadError::TemporaryFile)?;
        Ok(Writer { file, position, due: position + SYNC_EVERY })
    }

    async fn write_all(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        let writer = self.writer().await?;
        writer.file.write_all(bytes).await.map_err(UploadError::TemporaryFile)?;
        writer.position += bytes.len() as u64;
        if writer.position >= writer.due {
            writer.due = writer.position + SYNC_EVERY;
            self.commit_offset().await?;
        }
        Ok(())
    }

    /// Syncs the received bytes, and then writes the offset.
    async fn commit_offset(&mut self) -> Result<(), UploadError> {
        let Some(Writer { file, position, .. }) = &mut self.writer else { return Ok(()) };
        let offset = *position;
        if self.upload.record().offset == offset {
            return Ok(());
        }
        file.flush().await.map_err(UploadError::TemporaryFile)?;
        file.sync_data().await.map_err(UploadError::TemporaryFile)?;
        let change = |record: &mut Record| {
            record.offset = offset;
            record.touched_at = now();
        };
        self.uploads.change(&self.upload, change).await
    }

    async fn finish_import(&self, outcome: UploadOutcome) -> Result<(), UploadError> {
        let change = |record: &mut Record| {
            record.outcome = Some(outcome);
            record.touched_at = now();
        };
        self.uploads.change(&self.upload, change).await?;
        let (owner, is_open) = {
            let record = self.upload.record();
            (record.owner.clone(), record.is_open())
        };
        if !is_open {
            let (folder, id) = (self.uploads.folder.clone(), self.upload.id.clone());
            blocking(move || folder.remove_bytes(&id)).await?;
        }
        self.uploads.prune_completed(&owner).await;
        Ok(())
    }
}

impl LockedUpload for LocalUpload {
    fn record(&self) -> Record {
        self.upload.record().clone()
    }

    fn memory_bytes(&self) -> usize {
        0
    }

    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, Result<(), ResumableError>> {
        async move { Ok(self.write_all(bytes).await?) }.boxed()
    }

    fn commit(&mut self) -> BoxFuture<'_, Result<(), ResumableError>> {
        async move { Ok(self.commit_offset().await?) }.boxed()
    }

    fn truncate(&mut self, offset: u64) -> BoxFuture<'_, Result<(), ResumableError>> {
        async move {
            // Bytes after the offset are removed by the next request, or the next start.
            if let Some(writer) = &mut self.writer {
                writer.position = offset;
            }
            Ok(self.commit_offset().await?)
        }
        .boxed()
    }

    fn check_due(&self) -> BoxFuture<'_, ()> {
        self.upload.preempted().boxed()
    }

    fn check(&mut self) -> BoxFuture<'_, Result<(), ResumableError>> {
        let is_preempted = self.upload.waiting.load(Ordering::SeqCst) > 0;
        future::ready(if is_preempted { Err(ResumableError::Locked) } else { Ok(()) }).boxed()
    }

    fn begin_import(&mut self) -> BoxFuture<'_, Result<(), ResumableError>> {
        future::ready(Ok(())).boxed()
    }

    fn taken_over(&self) -> BoxFuture<'_, ()> {
        future::pending().boxed()
    }

    /// No other request takes the upload before this one has ended.
    fn import_run(&self) -> RepeatableImport {
        RepeatableImport { key: self.upload.id.as_str().into(), fence: Arc::new(|| future::ready(Ok(true)).boxed()) }
    }

    fn read(&self) -> BoxFuture<'_, Result<StoredBytes, UploadError>> {
        let (folder, id, offset) = (self.uploads.folder.clone(), self.upload.id.clone(), self.upload.record().offset);
        async move {
            let file = blocking(move || folder.bytes(&id)).await?;
            // Discarded bytes may follow.
            Ok(Box::pin(tokio::fs::File::from_std(file).take(offset)) as StoredBytes)
        }
        .boxed()
    }

    fn finish(&mut self, outcome: UploadOutcome) -> BoxFuture<'_, Result<(), ResumableError>> {
        async move { Ok(self.finish_import(outcome).await?) }.boxed()
    }

    /// The next start repeats it, or a request.
    fn postpone(&mut self) -> BoxFuture<'_, ()> {
        future::ready(()).boxed()
    }

    fn remove(self: Box<Self>) -> BoxFuture<'static, Result<(), ResumableError>> {
        async move { Ok(self.uploads.remove(&self.upload.id).await?) }.boxed()
    }
}
