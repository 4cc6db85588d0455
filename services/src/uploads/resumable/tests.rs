//! Imports of uploads that are killed, taken over or repeated.

use crate::access::Principal;
use crate::pinning::{Pins, QuotaUsage, RepeatableImport};
use crate::uploads::limits::{ResumableLimits, UploadLimits};
use crate::uploads::request_body::boxed;
use crate::uploads::resumable::local::LocalUploads;
use crate::uploads::resumable::parts::{Piece, Wanted};
use crate::uploads::resumable::record::{Record, UploadOutcome};
use crate::uploads::resumable::store::{IsKnown, StoredBytes};
use crate::uploads::resumable::{LockedUpload, ResumableError, ResumableUploads, UploadStore};
use crate::uploads::{UploadError, Uploads};
use api::access::Quota;
use bytes::Bytes;
use cache::memory::{self, MemoryOptions};
use cache::{BlockStore, StoreError};
use content::AllowAll;
use futures::future::{BoxFuture, FutureExt as _};
use http_body_util::{Empty, Full};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CONTENT: &str = "hello world\n";
/// The size of its only block, in bytes.
const BLOCK_BYTES: u64 = 20;
const TIMEOUT: Duration = Duration::from_secs(30);

/// What happens to the next import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Its bytes cannot be read.
    CannotRead,
    /// It does not end to read, and is taken over.
    IsTakenOver,
    /// Its outcome cannot be recorded, as if the gateway were killed before.
    CannotFinish,
}

/// The faults of a store, one for each import.
type Faults = Arc<Mutex<Option<Fault>>>;

struct Faulty {
    uploads: LocalUploads,
    faults: Faults,
}

struct FaultyUpload {
    upload: Box<dyn LockedUpload>,
    fault: Option<Fault>,
    /// The writer of bytes that do not end, while it is open.
    writer: Mutex<Option<tokio::io::DuplexStream>>,
}

fn unavailable() -> StoreError {
    StoreError::Unavailable { reason: "no route".into() }
}

impl Faulty {
    fn wrap(&self, upload: Box<dyn LockedUpload>) -> Box<dyn LockedUpload> {
        let fault = self.faults.lock().expect("is sound").take();
        Box::new(FaultyUpload { upload, fault, writer: Mutex::default() })
    }
}

impl UploadStore for Faulty {
    fn create<'a>(&'a self, id: &'a str, record: Record) -> BoxFuture<'a, Result<Record, ResumableError>> {
        self.uploads.create(id, record)
    }

    fn find<'a>(&'a self, owner: &'a str, id: &'a str) -> BoxFuture<'a, Result<Record, ResumableError>> {
        self.uploads.find(owner, id)
    }

    fn list<'a>(&'a self, owner: &'a str) -> BoxFuture<'a, Result<Vec<(String, Record)>, ResumableError>> {
        self.uploads.list(owner)
    }

    fn lock<'a>(&'a self, owner: &'a str, id: &'a str) -> BoxFuture<'a, Result<Box<dyn LockedUpload>, ResumableError>> {
        async move { Ok(self.wrap(self.uploads.lock(owner, id).await?)) }.boxed()
    }

    fn take_unfinished<'a>(&'a self, is_known: IsKnown<'a>) -> BoxFuture<'a, Vec<Box<dyn LockedUpload>>> {
        self.uploads.take_unfinished(is_known)
    }

    fn sweep(&self) -> BoxFuture<'_, ()> {
        self.uploads.sweep()
    }

    fn sweep_interval(&self) -> Duration {
        self.uploads.sweep_interval()
    }
}

impl LockedUpload for FaultyUpload {
    fn record(&self) -> Record {
        self.upload.record()
    }

    fn memory_bytes(&self) -> usize {
        self.upload.memory_bytes()
    }

    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, Result<(), ResumableError>> {
        self.upload.write(bytes)
    }

    fn commit(&mut self) -> BoxFuture<'_, Result<(), ResumableError>> {
        self.upload.commit()
    }

    fn truncate(&mut self, offset: u64) -> BoxFuture<'_, Result<(), ResumableError>> {
        self.upload.truncate(offset)
    }

    fn check_due(&self) -> BoxFuture<'_, ()> {
        self.upload.check_due()
    }

    fn check(&mut self) -> BoxFuture<'_, Result<(), ResumableError>> {
        self.upload.check()
    }

    fn begin_import(&mut self) -> BoxFuture<'_, Result<(), ResumableError>> {
        self.upload.begin_import()
    }

    fn taken_over(&self) -> BoxFuture<'_, ()> {
        if self.fault != Some(Fault::IsTakenOver) {
            return self.upload.taken_over();
        }
        // As soon as it reads.
        async {
            while self.writer.lock().expect("is sound").is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        .boxed()
    }

    fn import_run(&self) -> RepeatableImport {
        self.upload.import_run()
    }

    fn read(&self) -> BoxFuture<'_, Result<StoredBytes, UploadError>> {
        match self.fault {
            Some(Fault::CannotRead) => async { Err(unavailable().into()) }.boxed(),
            Some(Fault::IsTakenOver) => {
                let (writer, reader) = tokio::io::duplex(16);
                *self.writer.lock().expect("is sound") = Some(writer);
                async move { Ok(Box::pin(reader) as StoredBytes) }.boxed()
            }
            _ => self.upload.read(),
        }
    }

    fn finish(&mut self, outcome: UploadOutcome) -> BoxFuture<'_, Result<(), ResumableError>> {
        match self.fault {
            Some(Fault::CannotFinish) => async { Err(unavailable().into()) }.boxed(),
            _ => self.upload.finish(outcome),
        }
    }

    fn postpone(&mut self) -> BoxFuture<'_, ()> {
        self.upload.postpone()
    }

    fn remove(self: Box<Self>) -> BoxFuture<'static, Result<(), ResumableError>> {
        self.upload.remove()
    }
}

/// A gateway whose only client is "alice".
struct World {
    _dir: TempDir,
    store: Arc<dyn BlockStore>,
    pins: Arc<Pins>,
    service: Uploads,
    uploads: Arc<ResumableUploads>,
    faults: Faults,
    quota: Arc<Mutex<Quota>>,
}

fn alice(quota: Quota) -> Principal {
    Principal { id: "alice".into(), name: "alice".into(), quota, ..Principal::operator() }
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let store = memory::open(&MemoryOptions::default()).expect("opens");
        let pins = Pins::idle(&store);
        let settings = config::Uploads::default();
        let limits = UploadLimits::new(&settings, &config::Cache::default());
        let service = Uploads::new(&store, Arc::new(AllowAll), Arc::clone(&pins), limits, dir.path()).expect("opens");
        let (faults, quota) = (Faults::default(), Arc::new(Mutex::new(Quota::default())));
        let limits = ResumableLimits::from(&settings);
        let uploads = LocalUploads::open(&dir.path().join("parts"), limits).expect("opens");
        let faulty = Arc::new(Faulty { uploads, faults: Arc::clone(&faults) });
        let known = Arc::clone(&quota);
        let holders = Arc::new(move |id: &str| (id == "alice").then(|| alice(*known.lock().expect("is sound"))));
        let uploads = ResumableUploads::of_store(service.clone(), faulty, limits, holders);
        Self { _dir: dir, store, pins, service, uploads, faults, quota }
    }

    fn set_quota(&self, pins_max: Option<u64>, bytes_max: Option<u64>) {
        *self.quota.lock().expect("is sound") = Quota { pins_max, bytes_max };
    }

    fn client(&self) -> Principal {
        alice(*self.quota.lock().expect("is sound"))
    }

    async fn create(&self) -> String {
        let query = "pin-name=name&meta=%7B%22a%22%3A%22b%22%7D".to_owned();
        let wanted = Wanted { length: CONTENT.len() as u64, query, ..Wanted::default() };
        self.uploads.create(&self.client(), wanted).await.expect("is created").0
    }

    /// Sends all bytes, or no further ones, so that the upload is imported.
    async fn import(&self, id: &str, fault: Option<Fault>) -> Result<Record, ResumableError> {
        *self.faults.lock().expect("is sound") = fault;
        let piece = match self.uploads.look(&self.client(), id).await.expect("is found").offset {
            0 => Piece::new(0, boxed(Full::new(Bytes::from_static(CONTENT.as_bytes())))),
            offset => Piece::new(offset, boxed(Empty::new())),
        };
        self.uploads.append(&self.client(), id, piece).await.0
    }
}

/// The ID of the pin of an upload that was imported.
fn pin_of(record: &Record) -> String {
    let Some(UploadOutcome::Done(view)) = &record.outcome else { panic!("{record:?}") };
    view.roots[0].pin.clone().expect("is pinned")
}

fn status(imported: Result<Record, ResumableError>) -> u16 {
    imported.map_or_else(|error| error.failure().0.as_u16(), |record| panic!("{record:?}"))
}

/// The first run was killed after it had recorded the pin, and the quota of pins and bytes is used up by that.
#[tokio::test]
async fn an_import_that_is_repeated_uses_no_more_of_the_quota() {
    for (pins_max, bytes_max) in [(Some(1), None), (None, Some(BLOCK_BYTES)), (Some(1), Some(BLOCK_BYTES))] {
        let world = World::new();
        world.set_quota(pins_max, bytes_max);
        let id = world.create().await;
        assert_eq!(status(world.import(&id, Some(Fault::CannotFinish)).await), 503);
        let used = QuotaUsage { pins: 1, bytes: BLOCK_BYTES };
        assert_eq!(world.pins.used("alice"), used, "the pin is recorded");
        assert_eq!(world.uploads.look(&world.client(), &id).await.expect("is found").outcome, None);
        let record = world.import(&id, None).await.expect("is imported");
        assert_eq!(world.pins.used("alice"), used);
        assert!(world.pins.get("alice", &pin_of(&record)).is_some(), "it is that of the first run");
    }
}

/// The first run has recorded nothing: the quota counts when the pins are recorded.
#[tokio::test]
async fn an_import_that_is_repeated_exceeds_no_quota() {
    let world = World::new();
    let id = world.create().await;
    assert_eq!(status(world.import(&id, Some(Fault::CannotRead)).await), 503);
    for (pins_max, bytes_max) in [(Some(0), None), (None, Some(BLOCK_BYTES - 1))] {
        world.set_quota(pins_max, bytes_max);
        assert_eq!(status(world.import(&id, None).await), 507);
        assert_eq!(world.store.pins().await.expect("lists"), []);
    }
    world.set_quota(Some(1), Some(BLOCK_BYTES));
    world.import(&id, None).await.expect("is imported");
}

/// Nothing of a run that was taken over goes on, and the next one is as if it had not been.
#[tokio::test]
async fn an_import_that_is_taken_over_ends() {
    let world = World::new();
    let id = world.create().await;
    let memory = world.service.memory().left();
    assert_eq!(status(world.import(&id, Some(Fault::IsTakenOver)).await), 423);
    let begun = Instant::now();
    while world.service.memory().left() < memory {
        assert!(begun.elapsed() < TIMEOUT, "it goes on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((world.pins.used("alice").pins, world.store.pins().await.expect("lists")), (0, Vec::new()));
    world.import(&id, None).await.expect("is imported");
    assert_eq!(world.pins.used("alice").pins, 1);
}
