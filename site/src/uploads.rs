//! [`SharedUploads`]: the resumable uploads of a site. Any gateway continues what another one has begun.
//!
//! ```text
//! ResumableUploads ── UploadStore ──→ SharedUploads ─┬─ DatabaseUploads ──→ PostgreSQL     uploads, and their parts
//!                                                    └─ Objects ──────────→ S3, a folder   the bytes of parts
//! ```
//!
//! Goals: an offset that was acknowledged is that of all gateways, and the bytes before it are objects, whichever
//! gateways stop or lose their disks; of requests for one upload at several gateways, the latest one changes it; what a
//! gateway leaves behind in the storage is found and deleted.
//!
//! Non-goals: what the protocol says (`services`); keeping bytes that were received and not written yet when a gateway
//! stops, or another request takes the upload.
//!
//! *Parts.* A request gathers up to [`PART_BYTES_MAX`] bytes, which become an object. A part that is shorter than
//! [`PART_BYTES_MIN`] is replaced by the next one, which has its bytes as well, so that an upload has few parts however
//! small the pieces are in which it is received. As for blocks, each attempt to write an object has a name of its own,
//! and a row that is older: so no object is overwritten, and each one is deleted unless it is that of a part.
//!
//! | module | concern |
//! |---|---|
//! | `abandoned` | uploads whose creation was not answered |
//! | `locked` | an upload that a request has taken |
//! | `part` | names of objects, and what is in them |

mod abandoned;
mod locked;
mod part;

pub use part::{PART_BYTES_MAX, PART_BYTES_MIN};

use self::abandoned::{Abandoned, Which};
use self::locked::SharedUpload;
use crate::database::{CreatedUpload, Database, DatabaseUploads, PartRow, UploadRow};
use bytes::Bytes;
use cache::StoreError;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use objects::{ObjectError, Objects};
use services::uploads::UploadError;
use services::uploads::limits::ResumableLimits;
use services::uploads::resumable::record::Record;
use services::uploads::resumable::store::{IsKnown, LOCK_TIMEOUT};
use services::uploads::resumable::{LockedUpload, ResumableError, UploadStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How often a gateway looks for what is to be done for all.
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);
/// For how long an upload that is imported is kept from others unless that is renewed: how long a gateway that has
/// stopped keeps others from it.
const LEASE: Duration = Duration::from_secs(30);
/// For how long a complete upload has to be imported by no gateway until another one imports it.
const UNFINISHED_AFTER: Duration = Duration::from_secs(15);
/// Complete uploads that are looked at, and that are taken, in one round.
const UNFINISHED_MAX: u32 = 1000;
const TAKEN_MAX: usize = 4;
/// The time between two attempts to take an upload that is being imported.
const LOCK_INTERVAL: Duration = Duration::from_millis(500);
/// For how long an object may be without being that of a part before it counts as left behind. That no bytes are lost
/// does not depend on it.
const PENDING_AGE: Duration = Duration::from_secs(3600);
/// Deletions of an object are repeated after this time by another gateway.
const DELETE_AGAIN: Duration = Duration::from_secs(60);
/// Objects that are deleted or compared with the rows at a time, how many of such batches a round has, and how many
/// requests are sent to the storage at the same time.
const BATCH: u32 = 256;
const BATCHES_MAX: usize = 64;
const CONCURRENCY: usize = 16;
/// Expired uploads that are removed in a round.
const EXPIRED_MAX: u32 = 64;
/// The storage is compared with the rows in one of so many rounds, chosen at random: about once an hour.
const RECONCILE_ROUNDS: u32 = 240;
/// Objects without a row are deleted up to this number in a round. More are not a gateway's leavings.
const ORPHANS_MAX: usize = 256;

/// The resumable uploads of a site. Clones are handles to the same ones.
#[derive(Debug, Clone)]
pub struct SharedUploads(Arc<Inner>);

/// What resumable uploads need of a site.
#[derive(Debug, Clone)]
pub struct UploadEngines {
    /// The database, whose log was opened.
    pub database: Database,
    /// The storage.
    pub objects: Arc<dyn Objects>,
    /// What it is marked with ([`SharedBlocks::mark`](crate::blocks::SharedBlocks::mark)).
    pub mark: Arc<str>,
}

/// How a gateway uses them.
#[derive(Debug, Clone)]
pub struct SharedUploadOptions {
    /// The limits, for all gateways together. Each gateway applies its own.
    pub limits: ResumableLimits,
    /// For how long an upload that is imported is kept from others unless that is renewed.
    pub lease: Duration,
    /// For how long a complete upload has to be imported by no gateway until another one imports it.
    pub unfinished_after: Duration,
    /// For how long an object may be without being that of a part before it counts as left behind.
    pub pending_age: Duration,
}

impl SharedUploadOptions {
    /// The options with these limits.
    pub fn new(limits: ResumableLimits) -> Self {
        Self { limits, lease: LEASE, unfinished_after: UNFINISHED_AFTER, pending_age: PENDING_AGE }
    }
}

#[derive(Debug)]
struct Inner {
    database: DatabaseUploads,
    objects: Arc<dyn Objects>,
    mark: Arc<str>,
    options: SharedUploadOptions,
    abandoned: Abandoned,
    /// Locked by what deletes objects: one at a time in this process.
    deleting: Mutex<()>,
}

impl SharedUploads {
    /// The uploads in a database, with their bytes in a storage. Call it in a Tokio runtime.
    pub fn new(engines: UploadEngines, options: SharedUploadOptions) -> Self {
        let UploadEngines { database, objects, mark } = engines;
        let database = DatabaseUploads::new(database);
        let (abandoned, deleting) = (Abandoned::default(), Mutex::default());
        Self(Arc::new(Inner { database, objects, mark, options, abandoned, deleting }))
    }

    /// Deletes objects that gateways have left behind, a round of them. Returns how many.
    ///
    /// # Errors
    /// [`StoreError`]; some may have been deleted.
    pub async fn delete_due(&self) -> Result<usize, StoreError> {
        self.0.delete_due().await
    }

    /// Compares the objects in the storage with the rows, and deletes those that have none, but not more than a gateway
    /// leaves behind. Returns how many.
    ///
    /// # Errors
    /// [`StoreError`]; some may have been deleted.
    pub async fn reconcile(&self) -> Result<usize, StoreError> {
        self.0.reconcile().await
    }
}

impl Inner {
    async fn create(&self, id: &str, record: Record) -> Result<Record, ResumableError> {
        let Record { query, media_type, name, .. } = &record;
        if [query, media_type].into_iter().chain(name).any(|text| text.contains('\0')) {
            return Err(UploadError::Invalid("the parameters and the metadata have a NUL character".to_owned()).into());
        }
        self.remove_abandoned(Which::New).await?;
        self.remove_expired().await?;
        let creation = self.abandoned.begin(id);
        let created = self.create_row(id, &record).await;
        if matches!(created, Ok(_) | Err(ResumableError::Full(_))) {
            creation.answered();
        }
        created
    }

    async fn create_row(&self, id: &str, record: &Record) -> Result<Record, ResumableError> {
        let limits = &self.options.limits;
        match self.database.create(id, record, limits).await.map_err(StoreError::from)? {
            CreatedUpload::Created => {}
            CreatedUpload::TooMany => return Err(ResumableError::too_many(limits.token_max)),
            CreatedUpload::TooLarge => return Err(ResumableError::too_little_space()),
        }
        let found = self.database.find(&record.owner, id, None).await.map_err(StoreError::from)?;
        found.map(|row| row.record).ok_or(ResumableError::Missing)
    }

    /// Removes uploads of this gateway whose creation was not answered.
    async fn remove_abandoned(&self, which: Which) -> Result<(), StoreError> {
        for id in self.abandoned.due(which) {
            // No request has used it.
            let is_removed = self.database.remove(&id, 0).await?;
            self.abandoned.looked_for(&id, is_removed, Instant::now());
        }
        Ok(())
    }

    async fn find(&self, owner: &str, id: &str) -> Result<UploadRow, ResumableError> {
        if !is_id(id) {
            return Err(ResumableError::Missing);
        }
        let found = self.database.find(owner, id, Some(self.options.limits.lifetime)).await;
        found.map_err(StoreError::from)?.ok_or(ResumableError::Missing)
    }

    async fn list(&self, owner: &str) -> Result<Vec<(String, Record)>, ResumableError> {
        let rows = self.database.list(owner, self.options.limits.lifetime).await.map_err(StoreError::from)?;
        Ok(rows.into_iter().map(|row| (row.id, row.record)).collect())
    }

    /// Takes an upload, after it was imported if it is.
    async fn take(&self, owner: &str, id: &str) -> Result<UploadRow, ResumableError> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        while is_id(id) {
            let taken = self.database.take(owner, id, self.options.limits.lifetime).await;
            if let Some(row) = taken.map_err(StoreError::from)? {
                return Ok(row);
            }
            // It is being imported, or there is none.
            self.find(owner, id).await?;
            if Instant::now() >= deadline {
                return Err(ResumableError::Locked);
            }
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
        Err(ResumableError::Missing)
    }

    async fn take_unfinished(&self, is_known: IsKnown<'_>) -> Result<Vec<UploadRow>, StoreError> {
        let SharedUploadOptions { lease, unfinished_after, .. } = self.options;
        let mut taken = Vec::new();
        for (id, owner) in self.database.unfinished(unfinished_after, UNFINISHED_MAX).await? {
            if taken.len() >= TAKEN_MAX {
                break;
            }
            if is_known(&owner) {
                taken.extend(self.database.take_unfinished(&id, unfinished_after, lease).await?);
            }
        }
        Ok(taken)
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        self.remove_abandoned(Which::All).await?;
        self.remove_expired().await?;
        self.delete_due().await?;
        let round = getrandom::u32().unwrap_or_default();
        if round.is_multiple_of(RECONCILE_ROUNDS) {
            let orphans = self.reconcile().await?;
            if orphans > 0 {
                tracing::warn!(orphans, "the site's storage had objects of uploads that no row was known of");
            }
        }
        Ok(())
    }

    async fn remove_expired(&self) -> Result<(), StoreError> {
        let removed = self.database.remove_expired(self.options.limits.lifetime, EXPIRED_MAX).await?;
        if removed > 0 {
            tracing::debug!(removed, "expired uploads of the site were removed");
        }
        Ok(())
    }

    async fn delete_due(&self) -> Result<usize, StoreError> {
        let Ok(_deleting) = self.deleting.try_lock() else { return Ok(0) };
        let mut deleted = 0;
        for _ in 0..BATCHES_MAX {
            let due = self.database.sweep(BATCH, DELETE_AGAIN).await?;
            if due.is_empty() {
                break;
            }
            deleted += due.len();
            self.delete(due).await?;
        }
        Ok(deleted)
    }

    /// Deletes objects that are not those of parts.
    async fn delete(&self, objects: Vec<(u64, String)>) -> Result<(), StoreError> {
        let deletions = objects.iter().map(|(generation, id)| self.delete_object(id, *generation).boxed());
        let deletions: Vec<BoxFuture<'_, _>> = deletions.collect();
        stream::iter(deletions).buffered(CONCURRENCY).try_collect::<Vec<()>>().await?;
        let generations: Vec<u64> = objects.iter().map(|(generation, _)| *generation).collect();
        Ok(self.database.remove_parts(&generations).await?)
    }

    async fn delete_object(&self, id: &str, generation: u64) -> Result<(), StoreError> {
        self.objects.delete(&part::name(id, generation)).await.map_err(unavailable)
    }

    /// Deletes an object that has not become a part.
    async fn discard(&self, id: &str, generation: u64) {
        if let Err(error) = self.delete(vec![(generation, id.to_owned())]).await {
            tracing::debug!(%error, "an object that is not needed could not be deleted, and is swept later");
        }
    }

    /// An object has a row before it is written: one that is listed, and has none afterwards, had one once, and cannot
    /// become a part.
    async fn reconcile(&self) -> Result<usize, StoreError> {
        let mut orphans = 0;
        let mut pages = self.objects.list(part::FOLDER).chunks(BATCH as usize);
        while let Some(page) = pages.next().await {
            let page = page.into_iter().collect::<Result<Vec<_>, _>>().map_err(unavailable)?;
            let listed: Vec<_> = page.iter().filter_map(|object| part::of_name(&object.name)).collect();
            let found = self.database.register_orphans(&listed, DELETE_AGAIN).await?;
            orphans += found.len();
            self.delete(found).await?;
            if orphans >= ORPHANS_MAX {
                break;
            }
        }
        Ok(orphans)
    }

    /// The bytes of a part.
    async fn read(&self, id: &str, row: PartRow) -> Result<Bytes, UploadError> {
        if let Some(bytes) = self.read_object(id, row).await? {
            return Ok(bytes);
        }
        // Nothing is lost because another bucket or folder is there instead, or was when it was read.
        objects::require_marker(&*self.objects, &self.mark).await.map_err(unavailable)?;
        self.read_object(id, row).await?.ok_or_else(|| {
            tracing::warn!(object = part::name(id, row.generation), "a part of an upload is missing or damaged");
            UploadError::PartLost
        })
    }

    /// The bytes of a part; `None` if there is no object, or it is damaged.
    async fn read_object(&self, id: &str, row: PartRow) -> Result<Option<Bytes>, StoreError> {
        let object = match self.objects.get(&part::name(id, row.generation)).await {
            Ok(object) => object,
            Err(ObjectError::TooLong { .. }) => None,
            Err(error) => return Err(unavailable(error)),
        };
        let bytes = object.and_then(|object| part::decode(&object));
        Ok(bytes.and_then(|bytes| {
            let length = usize::try_from(row.bytes).ok()?;
            (length <= bytes.len()).then(|| bytes.slice(..length))
        }))
    }
}

impl UploadStore for SharedUploads {
    fn create<'a>(&'a self, id: &'a str, record: Record) -> BoxFuture<'a, Result<Record, ResumableError>> {
        self.0.create(id, record).boxed()
    }

    fn find<'a>(&'a self, owner: &'a str, id: &'a str) -> BoxFuture<'a, Result<Record, ResumableError>> {
        async move { Ok(self.0.find(owner, id).await?.record) }.boxed()
    }

    fn list<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<Vec<(String, Record)>, ResumableError>> {
        self.0.list(owner).boxed()
    }

    fn lock<'a>(&'a self, owner: &'a str, id: &'a str) -> BoxFuture<'a, Result<Box<dyn LockedUpload>, ResumableError>> {
        async move {
            let row = self.0.take(owner, id).await?;
            Ok(SharedUpload::boxed(&self.0, row, false))
        }
        .boxed()
    }

    fn take_unfinished<'a>(&'a self, is_known: IsKnown<'a>) -> BoxFuture<'a, Vec<Box<dyn LockedUpload>>> {
        async move {
            let taken = self.0.take_unfinished(is_known).await.unwrap_or_else(|error| {
                tracing::debug!(%error, "uploads that gateways have left behind could not be looked for");
                Vec::new()
            });
            taken.into_iter().map(|row| SharedUpload::boxed(&self.0, row, true)).collect()
        }
        .boxed()
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        async move {
            if let Err(error) = self.0.sweep().await {
                tracing::debug!(%error, "the uploads of the site could not be put in order, which is repeated");
            }
        }
        .boxed()
    }

    fn sweep_interval(&self) -> Duration {
        SWEEP_INTERVAL
    }
}

/// Whether this can be the ID of an upload.
fn is_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn unavailable(error: ObjectError) -> StoreError {
    StoreError::Unavailable { reason: format!("the storage of the site: {error}").into() }
}
