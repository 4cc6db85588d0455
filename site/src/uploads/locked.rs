//! [`SharedUpload`]: an upload that a request of this gateway has taken.

use super::part::{self, PART_BYTES_MAX, PART_BYTES_MIN};
use super::{BATCH, Inner, unavailable};
use crate::database::{NewPart, PartRow, UploadRow};
use bytes::Bytes;
use cache::StoreError;
use futures::future::{self, BoxFuture, FutureExt as _};
use futures::stream::{self, BoxStream, StreamExt as _};
use services::pinning::RepeatableImport;
use services::uploads::UploadError;
use services::uploads::limits::COMPLETED_MAX;
use services::uploads::resumable::record::{Record, UploadOutcome};
use services::uploads::resumable::store::{StoredBytes, stored_bytes};
use services::uploads::resumable::{LockedUpload, ResumableError};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Received bytes are written after this time although they are few, so that a slow client that loses its connection
/// does not have to send them again.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);
/// How often a request that receives nothing looks whether another one has taken the upload.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The time between the first two attempts to record an outcome, and at most between others.
const FINISH_AGAIN: Duration = Duration::from_millis(250);
const FINISH_AGAIN_MAX: Duration = Duration::from_secs(4);

/// An upload that is taken.
pub(super) struct SharedUpload {
    inner: Arc<Inner>,
    id: String,
    term: i64,
    /// With the bytes that are durable.
    record: Record,
    /// The last part, once bytes are added.
    tail: Option<Tail>,
    /// The upload was taken by another request, or it is not known what was written.
    is_lost: bool,
    /// It is kept from others, since it is imported.
    is_kept: bool,
}

/// The last part of an upload, to which bytes are added.
struct Tail {
    /// Its position in the upload.
    start: u64,
    /// Its bytes, of which some may be durable.
    bytes: Vec<u8>,
    /// The object that has those that are durable, if there are some.
    stored: Option<u64>,
    flushed: Instant,
}

impl Tail {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl SharedUpload {
    pub(super) fn boxed(inner: &Arc<Inner>, row: UploadRow, is_kept: bool) -> Box<dyn LockedUpload> {
        let UploadRow { id, record, term } = row;
        Box::new(Self { inner: Arc::clone(inner), id, term, record, tail: None, is_lost: false, is_kept })
    }

    /// Why this request has the upload no more, by what has become of it.
    async fn lost(&mut self) -> ResumableError {
        self.is_lost = true;
        match self.inner.database.progress(&self.id).await {
            Ok(None) => ResumableError::Missing,
            Ok(Some((_, offset))) if offset != self.record.offset => ResumableError::Offset { offset },
            Ok(Some(_)) => ResumableError::Locked,
            Err(error) => StoreError::from(error).into(),
        }
    }

    /// The result of a change that is made only while the upload is this request's.
    async fn require(&mut self, is_changed: bool) -> Result<(), ResumableError> {
        if is_changed { Ok(()) } else { Err(self.lost().await) }
    }

    /// The last part, which is read if it is short.
    async fn open_tail(&mut self) -> Result<Tail, ResumableError> {
        let (flushed, offset) = (Instant::now(), self.record.offset);
        let last = match offset {
            0 => None,
            _ => self.inner.database.last_part(&self.id).await.map_err(StoreError::from)?,
        };
        match last.filter(|last| last.bytes < PART_BYTES_MIN as u64) {
            None => Ok(Tail { start: offset, bytes: self.buffer(offset), stored: None, flushed }),
            Some(last) => {
                let mut bytes = self.buffer(last.start);
                bytes.extend_from_slice(&self.read_last(last).await?);
                Ok(Tail { start: last.start, bytes, stored: Some(last.generation), flushed })
            }
        }
    }

    /// The bytes of the last part. Another request that has taken the upload may have replaced it meanwhile.
    async fn read_last(&mut self, last: PartRow) -> Result<Bytes, ResumableError> {
        match self.inner.read(&self.id, last).await {
            Err(UploadError::PartLost) if !self.has_term().await? => Err(self.lost().await),
            read => Ok(read?),
        }
    }

    /// Whether the upload is still this request's.
    async fn has_term(&self) -> Result<bool, StoreError> {
        let progress = self.inner.database.progress(&self.id).await?;
        Ok(progress.is_some_and(|(term, _)| term == self.term))
    }

    /// Room for a part that begins at a position. It does not grow.
    fn buffer(&self, start: u64) -> Vec<u8> {
        let rest = usize::try_from(self.record.length.saturating_sub(start)).unwrap_or(usize::MAX);
        Vec::with_capacity(rest.min(PART_BYTES_MAX))
    }

    async fn add(&mut self, mut bytes: &[u8]) -> Result<(), ResumableError> {
        if self.is_lost {
            return Err(ResumableError::Locked);
        }
        let length = self.record.length;
        let end = self.tail.as_ref().map_or(self.record.offset, Tail::end);
        if bytes.len() as u64 > length.saturating_sub(end) {
            return Err(ResumableError::TooLong { length });
        }
        while !bytes.is_empty() {
            let mut tail = match self.tail.take() {
                Some(tail) => tail,
                None => self.open_tail().await?,
            };
            // A full part that is not the last one has been written.
            let (now, rest) = bytes.split_at(bytes.len().min(PART_BYTES_MAX - tail.bytes.len()));
            tail.bytes.extend_from_slice(now);
            bytes = rest;
            let is_due = tail.bytes.len() >= PART_BYTES_MAX || tail.flushed.elapsed() >= FLUSH_INTERVAL;
            // The last bytes may yet be discarded, and the import begins with them.
            let is_last = tail.end() >= length;
            self.tail = Some(tail);
            if is_due && !is_last {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Writes the added bytes, and moves the offset.
    async fn flush(&mut self) -> Result<(), ResumableError> {
        let Some(mut tail) = self.tail.take().filter(|_| !self.is_lost) else { return Ok(()) };
        if tail.end() > self.record.offset {
            let flushed = self.write_tail(&mut tail).await;
            self.is_lost |= flushed.is_err();
            flushed?;
        }
        self.tail = Some(tail);
        Ok(())
    }

    async fn write_tail(&mut self, tail: &mut Tail) -> Result<(), ResumableError> {
        let generation = random_number()?;
        let options = &self.inner.options;
        self.inner.database.register(&self.id, generation, options.pending_age).await.map_err(StoreError::from)?;
        let object = part::encode(&tail.bytes).ok_or_else(|| StoreError::Io("a part cannot be hashed".into()))?;
        if let Err(error) = self.inner.objects.put(&part::name(&self.id, generation), object).await {
            self.inner.discard(&self.id, generation).await;
            return Err(unavailable(error).into());
        }
        let new = NewPart {
            part: PartRow { generation, start: tail.start, bytes: tail.bytes.len() as u64 },
            received_before: self.record.offset,
            replaced: tail.stored,
            lease: options.lease,
        };
        // It is not known whether it is a part if this fails.
        if !self.inner.database.append(&self.id, self.term, &new).await.map_err(StoreError::from)? {
            self.inner.discard(&self.id, generation).await;
            return Err(self.lost().await);
        }
        self.record.offset = tail.end();
        self.record.touched_at = now();
        self.is_kept = self.record.offset == self.record.length;
        if tail.stored.replace(generation).is_some() {
            self.delete_due();
        }
        if tail.bytes.len() >= PART_BYTES_MIN {
            tail.start = tail.end();
            tail.bytes.clear();
            tail.stored = None;
        }
        tail.flushed = Instant::now();
        Ok(())
    }

    /// Deletes objects in the background that are not needed any more.
    fn delete_due(&self) {
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move {
            if let Err(error) = inner.delete_due().await {
                tracing::debug!(%error, "objects of uploads could not be deleted, which is repeated");
            }
        });
    }

    async fn discard_from(&mut self, offset: u64) -> Result<(), ResumableError> {
        self.tail = None;
        if self.is_lost || self.record.offset <= offset {
            return Ok(());
        }
        let truncated = self.inner.database.truncate(&self.id, self.term, offset).await.map_err(StoreError::from)?;
        self.require(truncated).await?;
        self.record.offset = offset;
        self.is_kept = false;
        self.delete_due();
        Ok(())
    }

    async fn check_term(&mut self) -> Result<(), ResumableError> {
        let is_due = |tail: &Tail| tail.end() > self.record.offset && tail.flushed.elapsed() >= FLUSH_INTERVAL;
        if self.tail.as_ref().is_some_and(|tail| is_due(tail) && tail.end() < self.record.length) {
            return self.flush().await;
        }
        match self.inner.database.progress(&self.id).await {
            Ok(Some((term, _))) if term == self.term => Ok(()),
            Ok(_) => Err(self.lost().await),
            // Only what is written needs the database.
            Err(_) => Ok(()),
        }
    }

    async fn keep(&mut self) -> Result<(), ResumableError> {
        self.tail = None;
        if !self.is_kept {
            let kept = self.inner.database.renew(&self.id, self.term, self.inner.options.lease).await;
            self.require(kept.map_err(StoreError::from)?).await?;
            self.is_kept = true;
        }
        Ok(())
    }

    async fn renew_until_taken_over(&self) {
        let lease = self.inner.options.lease;
        loop {
            tokio::time::sleep(lease / 3).await;
            match self.inner.database.renew(&self.id, self.term, lease).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::debug!(%error, "the lease of an upload could not be renewed, which is repeated"),
            }
        }
    }

    async fn end(&mut self, outcome: UploadOutcome) -> Result<(), ResumableError> {
        let stays_open = outcome.leaves_open();
        let ended = self.record_outcome(&outcome).await?;
        self.require(ended).await?;
        self.record.outcome = Some(outcome);
        self.record.touched_at = now();
        self.is_kept = false;
        if !stays_open {
            self.delete_due();
        }
        Ok(())
    }

    /// Records an outcome, unless another request has the upload. An import may have taken long: it is not to be repeated
    /// because of a connection that was lost.
    async fn record_outcome(&self, outcome: &UploadOutcome) -> Result<bool, StoreError> {
        let until = Instant::now() + self.inner.options.lease;
        let mut wait = FINISH_AGAIN;
        loop {
            let ended = (outcome, outcome.leaves_open());
            match self.inner.database.finish(&self.id, self.term, ended, COMPLETED_MAX).await {
                Err(error) if Instant::now() + wait < until => {
                    tracing::debug!(%error, "the outcome of an upload could not be recorded, which is repeated");
                }
                ended => return Ok(ended?),
            }
            tokio::time::sleep(wait).await;
            wait = (2 * wait).min(FINISH_AGAIN_MAX);
        }
    }

    async fn postpone_import(&mut self) {
        if let Err(error) = self.inner.database.renew(&self.id, self.term, Duration::ZERO).await {
            tracing::debug!(%error, "the lease of an upload could not be ended, and ends by itself");
        }
        self.is_kept = false;
    }

    async fn delete(&mut self) -> Result<(), ResumableError> {
        let removed = self.inner.database.remove(&self.id, self.term).await.map_err(StoreError::from)?;
        self.require(removed).await?;
        self.delete_due();
        Ok(())
    }
}

impl LockedUpload for SharedUpload {
    fn record(&self) -> Record {
        self.record.clone()
    }

    /// A part, and the object that is made of it.
    fn memory_bytes(&self) -> usize {
        let rest = usize::try_from(self.record.length).unwrap_or(usize::MAX);
        2 * PART_BYTES_MAX.min(rest)
    }

    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, Result<(), ResumableError>> {
        self.add(bytes).boxed()
    }

    fn commit(&mut self) -> BoxFuture<'_, Result<(), ResumableError>> {
        self.flush().boxed()
    }

    fn truncate(&mut self, offset: u64) -> BoxFuture<'_, Result<(), ResumableError>> {
        self.discard_from(offset).boxed()
    }

    fn check_due(&self) -> BoxFuture<'_, ()> {
        tokio::time::sleep(CHECK_INTERVAL).boxed()
    }

    fn check(&mut self) -> BoxFuture<'_, Result<(), ResumableError>> {
        self.check_term().boxed()
    }

    fn begin_import(&mut self) -> BoxFuture<'_, Result<(), ResumableError>> {
        self.keep().boxed()
    }

    fn taken_over(&self) -> BoxFuture<'_, ()> {
        self.renew_until_taken_over().boxed()
    }

    /// The lease is renewed when the fence is asked.
    fn import_run(&self) -> RepeatableImport {
        let (inner, id, term) = (Arc::clone(&self.inner), self.id.clone(), self.term);
        let key = self.id.as_str().into();
        let fence = move || {
            let (inner, id) = (Arc::clone(&inner), id.clone());
            async move { inner.database.renew(&id, term, inner.options.lease).await.map_err(StoreError::from) }.boxed()
        };
        RepeatableImport { key, fence: Arc::new(fence) }
    }

    fn read(&self) -> BoxFuture<'_, Result<StoredBytes, UploadError>> {
        future::ready(Ok(stored_bytes(parts(Arc::clone(&self.inner), self.id.clone(), self.record.offset)))).boxed()
    }

    fn finish(&mut self, outcome: UploadOutcome) -> BoxFuture<'_, Result<(), ResumableError>> {
        self.end(outcome).boxed()
    }

    fn postpone(&mut self) -> BoxFuture<'_, ()> {
        self.postpone_import().boxed()
    }

    fn remove(mut self: Box<Self>) -> BoxFuture<'static, Result<(), ResumableError>> {
        async move { self.delete().await }.boxed()
    }
}

/// The position of a reader of parts.
struct Reading {
    inner: Arc<Inner>,
    id: String,
    position: u64,
    length: u64,
    /// The next parts.
    page: VecDeque<PartRow>,
}

impl Reading {
    async fn next(&mut self) -> Result<Bytes, UploadError> {
        if self.page.is_empty() {
            let page = self.inner.database.parts(&self.id, self.position, BATCH).await.map_err(StoreError::from)?;
            self.page = page.into();
        }
        let next = self.page.pop_front().filter(|part| part.start == self.position && part.bytes > 0);
        let bytes = self.inner.read(&self.id, next.ok_or(UploadError::PartLost)?).await?;
        self.position += bytes.len() as u64;
        Ok(bytes)
    }
}

/// The bytes of an upload up to a length.
fn parts(inner: Arc<Inner>, id: String, length: u64) -> BoxStream<'static, io::Result<Bytes>> {
    let reading = Reading { inner, id, position: 0, length, page: VecDeque::new() };
    let next = |mut reading: Reading| async move {
        if reading.position >= reading.length {
            return Ok(None);
        }
        let bytes = reading.next().await.map_err(io::Error::other)?;
        Ok(Some((bytes, reading)))
    };
    stream::try_unfold(reading, next).boxed()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn random_number() -> Result<u64, StoreError> {
    getrandom::u64().map_err(|error| StoreError::Io(error.to_string().into()))
}
