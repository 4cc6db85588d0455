//! [`UploadStore`]: where resumable uploads are kept, and which request may use one.
//!
//! | implementation | where |
//! |---|---|
//! | [`LocalUploads`](super::local::LocalUploads) | files of a gateway that is alone |
//! | `SharedUploads` (in the crate `site`) | rows and objects that the gateways of a site share |
//!
//! Goals: what the protocol says is decided in one place for both ([`super::parts`]); an offset that was acknowledged
//! is durable, and is that of all who ask; of the requests for one upload, the latest one uses it.
//!
//! Non-goals: what an upload becomes; who may create one.

use crate::pinning::RepeatableImport;
use crate::uploads::UploadError;
use crate::uploads::resumable::error::ResumableError;
use crate::uploads::resumable::record::{Record, UploadOutcome};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use std::io;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

/// How long a request waits for one that cannot be preempted: it imports the upload.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// All bytes of an upload. An error may wrap an [`UploadError`].
pub type StoredBytes = Pin<Box<dyn AsyncRead + Send>>;

/// Whether this gateway knows an owner's token, and it may pin.
pub type IsKnown<'a> = &'a (dyn Fn(&str) -> bool + Send + Sync);

/// A reader of bytes that come in pieces.
pub fn stored_bytes(pieces: BoxStream<'static, io::Result<Bytes>>) -> StoredBytes {
    Box::pin(StreamReader::new(pieces))
}

/// Where resumable uploads are kept. Of one that has expired, nothing is returned.
pub trait UploadStore: Send + Sync {
    /// Creates an upload with this ID, unless open uploads reach a limit, and returns its record. Removes expired ones
    /// before.
    ///
    /// # Errors
    /// [`ResumableError::Full`], and errors of the store.
    fn create<'a>(&'a self, id: &'a str, record: Record) -> BoxFuture<'a, Result<Record, ResumableError>>;

    /// The record of an owner's upload. Preempts no request.
    ///
    /// # Errors
    /// [`ResumableError::Missing`], and errors of the store.
    fn find<'a>(&'a self, owner: &'a str, id: &'a str) -> BoxFuture<'a, Result<Record, ResumableError>>;

    /// The uploads of an owner, oldest first.
    ///
    /// # Errors
    /// Errors of the store.
    fn list<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<Vec<(String, Record)>, ResumableError>>;

    /// Takes an owner's upload for a request. The request that has it is preempted: it changes nothing after this. One
    /// that imports it is waited for.
    ///
    /// # Errors
    /// [`ResumableError::Missing`], [`ResumableError::Locked`], and errors of the store.
    fn lock<'a>(&'a self, owner: &'a str, id: &'a str) -> BoxFuture<'a, Result<Box<dyn LockedUpload>, ResumableError>>;

    /// Takes uploads that are complete, without an outcome, and not being imported because a gateway has ended or could
    /// not: those that are this gateway's to import. A store of several gateways leaves those with other owners than
    /// known ones to the others.
    fn take_unfinished<'a>(&'a self, is_known: IsKnown<'a>) -> BoxFuture<'a, Vec<Box<dyn LockedUpload>>>;

    /// Removes expired uploads, and what else is left behind.
    fn sweep(&self) -> BoxFuture<'_, ()>;

    /// The interval at which both are to be done.
    fn sweep_interval(&self) -> Duration;
}

/// An upload that a request uses. It is released when this is dropped.
pub trait LockedUpload: Send + Sync {
    /// Its record, with the offset up to which bytes are durable.
    fn record(&self) -> Record;

    /// The maximum memory that writing or reading it takes, in bytes.
    fn memory_bytes(&self) -> usize;

    /// Adds bytes after those before. They are made durable at intervals.
    ///
    /// # Errors
    /// Errors of the store, and those of [`LockedUpload::check`].
    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, Result<(), ResumableError>>;

    /// Makes all added bytes durable, as far as the errors before allow it.
    ///
    /// # Errors
    /// The same.
    fn commit(&mut self) -> BoxFuture<'_, Result<(), ResumableError>>;

    /// Discards the bytes from an offset on, durable or not.
    ///
    /// # Errors
    /// The same.
    fn truncate(&mut self, offset: u64) -> BoxFuture<'_, Result<(), ResumableError>>;

    /// Completes when [`LockedUpload::check`] is due while nothing is received: another request may have taken the
    /// upload. It may be dropped at any time.
    fn check_due(&self) -> BoxFuture<'_, ()>;

    /// Checks whether the request still has the upload.
    ///
    /// # Errors
    /// [`ResumableError::Locked`], [`ResumableError::Offset`] or [`ResumableError::Missing`] if it does not.
    fn check(&mut self) -> BoxFuture<'_, Result<(), ResumableError>>;

    /// From now on no other request can take the upload, until one of the functions below ends the import, or the
    /// gateway has ended.
    ///
    /// # Errors
    /// The same, and errors of the store.
    fn begin_import(&mut self) -> BoxFuture<'_, Result<(), ResumableError>>;

    /// Completes if another request has taken the upload nevertheless, since its store could not be reached, or the
    /// gateway was paused. It has to be polled during the import.
    fn taken_over(&self) -> BoxFuture<'_, ()>;

    /// This run of the import. Its key is that of the upload, and its fence says no once another request has taken the
    /// upload.
    fn import_run(&self) -> RepeatableImport;

    /// All bytes up to the offset.
    ///
    /// # Errors
    /// Errors of the store.
    fn read(&self) -> BoxFuture<'_, Result<StoredBytes, UploadError>>;

    /// Ends the import with its outcome, which is durable when this completes. The bytes are removed if they are not
    /// needed any more, and so are the oldest of an owner's completed uploads.
    ///
    /// # Errors
    /// Errors of the store, and those of [`LockedUpload::check`].
    fn finish(&mut self, outcome: UploadOutcome) -> BoxFuture<'_, Result<(), ResumableError>>;

    /// Ends the import without an outcome: it is to be repeated.
    fn postpone(&mut self) -> BoxFuture<'_, ()>;

    /// Removes the upload.
    ///
    /// # Errors
    /// Errors of the store, and those of [`LockedUpload::check`].
    fn remove(self: Box<Self>) -> BoxFuture<'static, Result<(), ResumableError>>;
}
