//! Resumable uploads that gateways share, with their bytes in a folder.

use crate::blocks::folder;
use crate::support::{Postgres, TIMEOUT, until};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use objects::{ListedObject, ObjectError, Objects};
use services::uploads::UploadError;
use services::uploads::limits::ResumableLimits;
use services::uploads::resumable::record::Record;
use services::uploads::resumable::suite::{self, create, done, lock, noise, read, record, write};
use services::uploads::resumable::{LockedUpload, ResumableError, UploadStore};
use site::blocks::SharedBlocks;
use site::database::{Database, DatabaseUploads, NewPart, PartRow};
use site::uploads::{PART_BYTES_MIN, SharedUploadOptions, SharedUploads, UploadEngines};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::Notify;

const NAME: &str = "uploads";
const OWNER: &str = "alice";
const MIB: usize = 1 << 20;
const LIMITS: ResumableLimits = ResumableLimits {
    bytes_max: 1 << 30,
    token_bytes_max: 1 << 30,
    token_max: 100,
    lifetime: Duration::from_secs(86_400),
};

/// A site, without its gateways.
struct Site {
    server: Postgres,
    dir: TempDir,
    mark: Arc<str>,
}

impl Site {
    async fn new() -> Self {
        let server = Postgres::start().await;
        drop(server.open(NAME).await);
        let dir = TempDir::new().expect("the temporary folder is writable");
        let blocks = SharedBlocks::open(crate::blocks::index(&server, NAME), folder(&dir), NAME).await;
        Self { mark: Arc::clone(blocks.expect("opens").mark()), server, dir }
    }

    fn database(&self) -> Database {
        Database::new(&self.server.options(NAME)).expect("the settings are valid")
    }

    fn with(&self, objects: Arc<dyn Objects>, options: SharedUploadOptions) -> SharedUploads {
        let mark = Arc::clone(&self.mark);
        SharedUploads::new(UploadEngines { database: self.database(), objects, mark }, options)
    }

    fn gateway(&self) -> SharedUploads {
        self.with(folder(&self.dir), SharedUploadOptions::new(LIMITS))
    }

    /// A gateway for which everything that others have left behind is old.
    fn impatient(&self) -> SharedUploads {
        let short = Duration::from_millis(1);
        let options =
            SharedUploadOptions { lease: short, unfinished_after: Duration::ZERO, pending_age: short, limits: LIMITS };
        self.with(folder(&self.dir), options)
    }

    async fn objects(&self) -> usize {
        folder(&self.dir).list("v1/uploads/").count().await
    }

    async fn until_objects(&self, count: usize) {
        until("so many objects are left", async || self.objects().await == count).await;
    }

    /// The number of rows that a statement counts.
    async fn count(&self, rows: &str) -> usize {
        let counted = self.server.sql(&format!("SELECT count(*)::text FROM \"causeway_{NAME}\".{rows}")).await;
        counted.expect("is asked")[0].parse().expect("a number")
    }
}

async fn offset(store: &SharedUploads, id: &str) -> u64 {
    store.find(OWNER, id).await.expect("is found").offset
}

/// The folder of a gateway that stops after it has written an object, and before anything else.
#[derive(Debug)]
struct Stopping {
    folder: Arc<dyn Objects>,
    written: Notify,
}

impl Objects for Stopping {
    fn put<'a>(&'a self, name: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            self.folder.put(name, data).await?;
            self.written.notify_one();
            std::future::pending().await
        })
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, ObjectError>> {
        self.folder.get(name)
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), ObjectError>> {
        self.folder.delete(name)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListedObject, ObjectError>> {
        self.folder.list(prefix)
    }
}

/// The folder of a gateway in which each part is replaced by another gateway before it is read.
#[derive(Debug)]
struct Replacing {
    folder: Arc<dyn Objects>,
    other: SharedUploads,
}

impl Objects for Replacing {
    fn put<'a>(&'a self, name: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), ObjectError>> {
        self.folder.put(name, data)
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, ObjectError>> {
        Box::pin(async move {
            if name.starts_with("v1/uploads/") && self.folder.get(name).await?.is_some() {
                write(&mut *lock(&self.other, "a").await, b"45", 2).await;
                while self.folder.get(name).await?.is_some() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            self.folder.get(name).await
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), ObjectError>> {
        self.folder.delete(name)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListedObject, ObjectError>> {
        self.folder.list(prefix)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_and_objects_are_a_store_of_uploads() {
    let (server, dir) = (Postgres::start().await, TempDir::new().expect("the temporary folder is writable"));
    let sites = AtomicUsize::new(0);
    let open = |limits: ResumableLimits| -> [Arc<dyn UploadStore>; 2] {
        let options = server.options(&format!("site-{}", sites.fetch_add(1, Ordering::Relaxed)));
        // Each gateway has connections of its own.
        let gateway = || -> Arc<dyn UploadStore> {
            let database = Database::new(&options).expect("the settings are valid");
            let engines = UploadEngines { database, objects: folder(&dir), mark: NAME.into() };
            Arc::new(SharedUploads::new(engines, SharedUploadOptions::new(limits)))
        };
        let preparing = async { drop(crate::support::open(&options).await) };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(preparing));
        [gateway(), gateway()]
    };
    suite::check_all(&open).await;
}

/// Of two requests that append at the same offset at two gateways, the later one has the upload, and the other one
/// leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_requests_appends() {
    let site = Site::new().await;
    let (one, other) = (site.gateway(), site.gateway());
    create(&one, "a", OWNER, 10).await.expect("is created");
    let (mut first, mut second) = (lock(&one, "a").await, lock(&other, "a").await);
    first.write(b"1111").await.expect("is received");
    second.write(b"2222").await.expect("is received");
    // The other one has not appended yet: what it has sent may be lost, and then the offset is the same.
    let error = first.commit().await.expect_err("it has the upload no more");
    assert!(matches!(error, ResumableError::Locked), "{error}");
    assert_eq!((offset(&one, "a").await, site.objects().await, site.count("upload_part").await), (0, 0, 0));
    second.commit().await.expect("is appended");
    // A request that has lost the upload changes nothing, whatever it does.
    first.commit().await.expect("nothing is written");
    first.truncate(0).await.expect("nothing is removed");
    let finished = first.finish(done()).await.expect_err("it has the upload no more");
    assert!(matches!(finished, ResumableError::Offset { offset: 4 }), "{finished}");
    assert!(first.remove().await.is_err());
    assert_eq!((offset(&one, "a").await, read(&*second).await), (4, b"2222".to_vec()));
    assert_eq!((site.objects().await, site.count("upload_part").await), (1, 1));
    // One that has sent its bytes after another one has appended.
    let (mut first, mut second) = (lock(&one, "a").await, lock(&other, "a").await);
    first.write(b"33").await.expect("is received");
    write(&mut *second, b"44", 2).await;
    let error = first.commit().await.expect_err("it has the upload no more");
    assert!(matches!(error, ResumableError::Offset { offset: 6 }), "{error}");
    assert_eq!(read(&*second).await, b"222244");
    site.until_objects(1).await;
}

/// The short part that a request is about to continue is replaced by a later request, and deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_reads_a_part_which_another_one_replaces_has_lost_the_upload() {
    let site = Site::new().await;
    let one = site.gateway();
    create(&one, "a", OWNER, 10).await.expect("is created");
    write(&mut *lock(&one, "a").await, b"123", 3).await;
    let replacing: Arc<Replacing> = Arc::new(Replacing { folder: folder(&site.dir), other: one.clone() });
    let other = site.with(replacing, SharedUploadOptions::new(LIMITS));
    let error = lock(&other, "a").await.write(b"4").await.expect_err("it has the upload no more");
    assert!(matches!(error, ResumableError::Offset { offset: 5 }), "{error}");
    assert_eq!(read(&*lock(&one, "a").await).await, b"12345");
}

/// A gateway writes an object, and stops before the object is a part: its bytes were not acknowledged, and the object
/// is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_before_its_object_is_a_part_leaves_nothing() {
    let site = Site::new().await;
    let stopping = Arc::new(Stopping { folder: folder(&site.dir), written: Notify::new() });
    let options = SharedUploadOptions { pending_age: Duration::from_millis(1), ..SharedUploadOptions::new(LIMITS) };
    let (one, other) = (site.with(Arc::clone(&stopping) as _, options), site.gateway());
    create(&one, "a", OWNER, 10).await.expect("is created");
    let appending = tokio::spawn(async move { write(&mut *lock(&one, "a").await, b"12345", 5).await });
    stopping.written.notified().await;
    appending.abort();
    assert!(appending.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!((offset(&other, "a").await, site.objects().await), (0, 1));
    let mut upload = lock(&other, "a").await;
    write(&mut *upload, b"67890", 5).await;
    assert_eq!(site.objects().await, 2);
    until("it is deleted", async || other.delete_due().await.expect("is swept") == 1).await;
    assert_eq!((site.objects().await, site.count("upload_part").await), (1, 1));
    assert_eq!(read(&*upload).await, b"67890");
}

/// An object that was swept because its gateway was slow does not become a part.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_was_swept_is_no_part() {
    let site = Site::new().await;
    let one = site.gateway();
    create(&one, "a", OWNER, 10).await.expect("is created");
    let database = DatabaseUploads::new(site.database());
    let row = database.take(OWNER, "a", LIMITS.lifetime).await.expect("is asked").expect("is taken");
    let append = async |generation: u64| {
        let part = PartRow { generation, start: 0, bytes: 5 };
        let new = NewPart { part, received_before: 0, replaced: None, lease: Duration::from_secs(30) };
        database.append("a", row.term, &new).await.expect("is asked")
    };
    assert!(!append(1).await, "it was not registered");
    for generation in [2, 3] {
        database.register("a", generation, Duration::ZERO).await.expect("is registered");
    }
    database.register("b", 4, Duration::ZERO).await.expect("is registered");
    assert_eq!(database.sweep(1, TIMEOUT).await.expect("is swept"), [(2, "a".to_owned())]);
    assert_eq!((append(2).await, append(4).await, append(3).await), (false, false, true));
    // Those that are being deleted are not returned again at once, and one that is a part is not at all.
    assert_eq!(database.sweep(100, TIMEOUT).await.expect("is swept"), [(4, "b".to_owned())]);
    assert_eq!(database.sweep(100, TIMEOUT).await.expect("is swept"), []);
    database.remove_parts(&[2, 3, 4]).await.expect("are removed");
    assert_eq!(database.parts("a", 0, 10).await.expect("are read"), [PartRow { generation: 3, start: 0, bytes: 5 }]);
}

/// However small the pieces are in which an upload is received, it has few parts.
#[tokio::test(flavor = "multi_thread")]
async fn small_pieces_become_few_parts() {
    let site = Site::new().await;
    let gateways = [site.gateway(), site.gateway()];
    let bytes = noise(3 * MIB);
    // One byte is missing at the end: a complete upload is imported.
    create(&gateways[0], "a", OWNER, bytes.len() + 1).await.expect("is created");
    for (turn, piece) in bytes.chunks(100_000).enumerate() {
        write(&mut *lock(&gateways[turn % 2], "a").await, piece, piece.len()).await;
    }
    let upload = lock(&gateways[0], "a").await;
    assert!(read(&*upload).await == bytes);
    let parts = site.count("upload_part WHERE start IS NOT NULL").await;
    assert!((2..=bytes.len() / PART_BYTES_MIN + 1).contains(&parts), "{parts}");
    // Those that were replaced are deleted.
    site.until_objects(parts).await;
}

/// What a slow client has sent is written before its request ends.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_a_slow_client_become_durable() {
    let site = Site::new().await;
    let (one, other) = (site.gateway(), site.gateway());
    create(&one, "a", OWNER, 10).await.expect("is created");
    let mut upload = lock(&one, "a").await;
    upload.write(b"123").await.expect("is received");
    assert_eq!(offset(&other, "a").await, 0);
    let receiving = async {
        loop {
            upload.check_due().await;
            upload.check().await.expect("it has the upload");
        }
    };
    tokio::select! {
        () = receiving => {}
        () = until("they are written", async || offset(&other, "a").await == 3) => {}
    }
    assert_eq!(read(&*lock(&other, "a").await).await, b"123");
}

/// Parts that are being deleted are not touched by the end of their upload: nothing waits for their rows.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_upload_does_not_wait_for_deletions() {
    let site = Site::new().await;
    let one = site.gateway();
    let database = DatabaseUploads::new(site.database());
    let rows = async || {
        let columns = "generation || ' ' || sweep_at || ' ' || xmin";
        let sql = format!("SELECT {columns} FROM \"causeway_{NAME}\".upload_part WHERE deleting ORDER BY generation");
        site.server.sql(&sql).await.expect("is asked")
    };
    for id in ["a", "b"] {
        create(&one, id, OWNER, 10).await.expect("is created");
        for generation in [1, 2] {
            let generation = generation + 2 * u64::from(id == "b");
            database.register(id, generation, Duration::ZERO).await.expect("is registered");
        }
    }
    assert_eq!(database.sweep(100, TIMEOUT).await.expect("is swept").len(), 4);
    let before = rows().await;
    let row = database.take(OWNER, "a", LIMITS.lifetime).await.expect("is asked").expect("is taken");
    assert!(database.finish("a", row.term, (&done(), false), 2).await.expect("ends"));
    let row = database.take(OWNER, "b", LIMITS.lifetime).await.expect("is asked").expect("is taken");
    assert!(database.remove("b", row.term).await.expect("is removed"));
    assert_eq!((rows().await, before.len()), (before, 4));
    database.remove_parts(&[4, 1, 3, 2]).await.expect("are removed");
    assert_eq!(site.count("upload_part").await, 0);
}

/// Expired uploads are removed by any gateway, with their objects, and only once.
#[tokio::test(flavor = "multi_thread")]
async fn expired_uploads_are_removed_by_any_gateway() {
    let site = Site::new().await;
    let (one, other) = (site.gateway(), site.gateway());
    for id in ["a", "b", "c"] {
        create(&one, id, OWNER, 10).await.expect("is created");
        write(&mut *lock(&one, id).await, b"12345", 5).await;
    }
    let importing = {
        create(&one, "d", OWNER, 5).await.expect("is created");
        let mut upload = lock(&one, "d").await;
        write(&mut *upload, b"12345", 5).await;
        upload
    };
    let age = format!("UPDATE \"causeway_{NAME}\".upload SET touched = touched - interval '2 days' WHERE id <> 'c'");
    site.server.sql(&age).await.expect("is changed");
    assert!(matches!(other.find(OWNER, "a").await, Err(ResumableError::Missing)));
    tokio::join!(one.sweep(), other.sweep());
    assert_eq!(
        site.server.sql(&format!("SELECT id FROM \"causeway_{NAME}\".upload ORDER BY id")).await,
        Ok(vec![
            "c".to_owned(),
            // It is being imported.
            "d".to_owned(),
        ])
    );
    site.until_objects(2).await;
    until("the rows are removed", async || site.count("upload_part").await == 2).await;
    assert_eq!(offset(&other, "c").await, 5);
    drop(importing);
}

/// What is in the storage and has no row is deleted, and nothing else: neither parts nor blocks.
#[tokio::test(flavor = "multi_thread")]
async fn objects_without_a_row_are_deleted() {
    let site = Site::new().await;
    let blocks = SharedBlocks::open(crate::blocks::index(&site.server, NAME), folder(&site.dir), NAME).await;
    let (blocks, one) = (blocks.expect("opens"), site.gateway());
    create(&one, "ab", OWNER, 10).await.expect("is created");
    let mut upload = lock(&one, "ab").await;
    write(&mut *upload, b"12345", 5).await;
    let objects = folder(&site.dir);
    let others = ["v1/blocks/ab/x.0000000000000001", "v1/uploads/README", "v1/uploads/xy/xy.1"];
    let orphans = ["v1/uploads/ab/ab.0000000000000001", "v1/uploads/xy/xyz.00000000000000ff"];
    for name in others.iter().chain(&orphans) {
        objects.put(name, Bytes::from_static(b"x")).await.expect("is written");
    }
    assert_eq!(one.reconcile().await.expect("is compared"), 2);
    assert_eq!((site.objects().await, site.count("upload_part").await), (3, 1));
    for name in others {
        assert!(objects.get(name).await.expect("is read").is_some(), "{name}");
    }
    assert_eq!(read(&*upload).await, b"12345");
    assert_eq!(one.reconcile().await.expect("is compared"), 0);
    // Nor do objects of uploads concern the index of blocks.
    for slot in 0..=u8::MAX {
        let found = blocks.reconcile(slot, u64::MAX).await.expect("is compared");
        assert_eq!((found.objects, found.orphans), (0, 0), "{slot}");
    }
    assert_eq!((blocks.sweep().await.expect("is swept"), site.objects().await), (0, 3));
}

/// A gateway that stops while it imports leaves an upload to the others.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_is_taken_over_from_a_gateway_that_has_stopped() {
    let site = Site::new().await;
    let options =
        |lease| SharedUploadOptions { lease, unfinished_after: Duration::ZERO, ..SharedUploadOptions::new(LIMITS) };
    let lease = Duration::from_secs(3);
    let (one, other) = (site.with(folder(&site.dir), options(lease)), site.with(folder(&site.dir), options(lease)));
    for (id, owner) in [("a", OWNER), ("b", "bob"), ("open", OWNER)] {
        create(&one, id, owner, 5).await.expect("is created");
    }
    write(&mut *lock(&one, "open").await, b"123", 3).await;
    let mut first = lock(&one, "a").await;
    write(&mut *first, b"12345", 5).await;
    first.begin_import().await.expect("is to be imported");
    write(&mut *one.lock("bob", "b").await.expect("is taken"), b"12345", 5).await;
    // While it lives, it has it for longer than the lease.
    let known = |owner: &str| owner == OWNER;
    let living = async { tokio::time::timeout(2 * lease, first.taken_over()).await.is_err() };
    let waiting = async {
        let until = Instant::now() + 2 * lease;
        while Instant::now() < until {
            assert_eq!(other.take_unfinished(&known).await.len(), 0);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (lives, ()) = tokio::join!(living, waiting);
    assert!(lives);
    let mut taken = Vec::new();
    while taken.is_empty() {
        taken = other.take_unfinished(&known).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let [second] = &mut taken[..] else { panic!("{} are taken", taken.len()) };
    assert_eq!((second.record().owner.as_str(), read(&**second).await), (OWNER, b"12345".to_vec()));
    assert_eq!(one.take_unfinished(&known).await.len(), 0, "the other one imports it");
    second.begin_import().await.expect("is imported");
    second.finish(done()).await.expect("ends");
    // The first one, which was only slow, learns of it, and does not record its pins.
    let runs = [first.import_run(), second.import_run()];
    assert!(runs[0].key == runs[1].key && &*runs[0].key == "a", "it is one import");
    assert_eq!(((runs[0].fence)().await.ok(), (runs[1].fence)().await.ok()), (Some(false), Some(true)));
    tokio::time::timeout(TIMEOUT, first.taken_over()).await.expect("was taken over");
    assert!(first.finish(done()).await.is_err());
    assert_eq!(other.take_unfinished(&|owner| owner == "bob").await.len(), 1, "those of other owners");
}

/// Of an owner's uploads that have ended, the latest are kept.
#[tokio::test(flavor = "multi_thread")]
async fn the_latest_results_of_an_owner_are_kept() {
    let site = Site::new().await;
    let one = site.gateway();
    let database = DatabaseUploads::new(site.database());
    for (id, owner) in [("a", OWNER), ("b", OWNER), ("x", "bob"), ("open", OWNER), ("c", OWNER), ("d", OWNER)] {
        create(&one, id, owner, 0).await.expect("is created");
        if id != "open" {
            let row = database.take(owner, id, LIMITS.lifetime).await.expect("is asked").expect("is taken");
            assert!(database.finish(id, row.term, (&done(), false), 2).await.expect("ends"));
        }
    }
    let ids = async |owner: &str| -> Vec<String> {
        one.list(owner).await.expect("is listed").into_iter().map(|(id, _)| id).collect()
    };
    assert_eq!((ids(OWNER).await, ids("bob").await), (vec!["open".into(), "c".into(), "d".into()], vec!["x".into()]));
}

/// A part that is missing or damaged is an error of the gateway, and not the end of the upload.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_part_is_an_error() {
    let site = Site::new().await;
    let one = site.gateway();
    create(&one, "a", OWNER, 10).await.expect("is created");
    let mut upload = lock(&one, "a").await;
    write(&mut *upload, b"12345", 5).await;
    let mut files = Vec::new();
    for slot in std::fs::read_dir(site.dir.path().join("v1/uploads")).expect("is read") {
        let slot = slot.expect("an entry").path();
        files.extend(std::fs::read_dir(slot).expect("is read").map(|file| file.expect("an entry").path()));
    }
    let [file] = &files[..] else { panic!("{files:?}") };
    let read_error = async |upload: &dyn LockedUpload| {
        let mut bytes = Vec::new();
        let mut reader = upload.read().await.expect("is opened");
        let error = tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut bytes).await.expect_err("is damaged");
        UploadError::from(error)
    };
    let object = std::fs::read(file).expect("is read");
    std::fs::write(file, &object[..object.len() - 1]).expect("is written");
    let error = read_error(&*upload).await;
    assert!(matches!(error, UploadError::PartLost) && error.status() == 500, "{error}");
    std::fs::remove_file(file).expect("is removed");
    // A folder that is not the storage of the site has no parts, and says nothing of them.
    let marker = site.dir.path().join(objects::MARKER_NAME);
    let mark = std::fs::read(&marker).expect("is read");
    std::fs::remove_file(&marker).expect("is removed");
    let error = read_error(&*upload).await;
    assert!(matches!(error, UploadError::Store(_)) && error.status() == 503, "{error}");
    let error = lock(&one, "a").await.write(b"6").await.expect_err("it cannot be continued");
    assert_eq!(error.failure().0, 503, "{error}");
    std::fs::write(&marker, mark).expect("is written");
    assert!(matches!(read_error(&*upload).await, UploadError::PartLost));
    // A short part is read to be continued.
    let error = lock(&one, "a").await.write(b"6").await.expect_err("it cannot be continued");
    assert_eq!(error.failure().0, 500, "{error}");
}

/// While the database is away, nothing is acknowledged, and all of it can be repeated.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_nothing_is_acknowledged() {
    let mut site = Site::new().await;
    let one = site.gateway();
    create(&one, "a", OWNER, 10).await.expect("is created");
    let mut upload = lock(&one, "a").await;
    write(&mut *upload, b"12345", 5).await;
    upload.write(b"67").await.expect("is received");
    site.server.stop();
    let status = |error: ResumableError| error.failure().0.as_u16();
    assert_eq!(upload.commit().await.map_err(status), Err(503));
    assert_eq!(upload.record().offset, 5);
    assert_eq!(create(&one, "b", OWNER, 10).await.map(|_| ()).map_err(status), Err(503));
    assert_eq!(one.find(OWNER, "a").await.map(|_| ()).map_err(status), Err(503));
    assert_eq!(one.list(OWNER).await.map(|_| ()).map_err(status), Err(503));
    assert_eq!(one.lock(OWNER, "a").await.map(|_| ()).map_err(status), Err(503));
    one.sweep().await;
    assert_eq!(one.take_unfinished(&|_| true).await.len(), 0);
    site.server.restart().await;
    until("it can be reached again", async || one.find(OWNER, "a").await.is_ok()).await;
    let mut upload = lock(&one, "a").await;
    write(&mut *upload, b"67890", 5).await;
    assert_eq!(read(&*upload).await, b"1234567890");
}

/// An outcome that cannot be recorded at once is recorded when the database can be reached again.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_is_recorded_when_the_database_is_back() {
    let mut site = Site::new().await;
    let (one, other) = (site.gateway(), site.gateway());
    create(&one, "a", OWNER, 5).await.expect("is created");
    let mut upload = lock(&one, "a").await;
    write(&mut *upload, b"12345", 5).await;
    upload.begin_import().await.expect("is to be imported");
    site.server.stop();
    let finishing = async { upload.finish(done()).await };
    // It is begun before the server is.
    let (finished, _) = tokio::join!(finishing, async { site.server.restart().await });
    finished.expect("is recorded");
    until("all see it", async || other.find(OWNER, "a").await.is_ok_and(|record| record.outcome == Some(done()))).await;
}

/// An upload that the database creates after its client has gone does not count against the limits of its owner.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_creation_is_not_answered_is_removed() {
    let site = Site::new().await;
    let limits = ResumableLimits { token_max: 1, ..LIMITS };
    let one = site.with(folder(&site.dir), SharedUploadOptions::new(limits));
    let url = site.server.options(NAME).url;
    let (holder, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    // What creates an upload waits for this lock.
    let lock = format!("(hashtext('causeway_{NAME}'), 2)");
    let abandon = async |id: &'static str| {
        holder.batch_execute(&format!("SELECT pg_advisory_lock{lock}")).await.expect("is held");
        let creating = {
            let one = one.clone();
            tokio::spawn(async move { create(&one, id, OWNER, 10).await.map(|_| ()) })
        };
        let waiting = "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        until("it waits", async || site.server.sql(waiting).await.is_ok_and(|count| count == ["1"])).await;
        creating.abort();
        assert!(creating.await.is_err_and(|error| error.is_cancelled()));
        holder.batch_execute(&format!("SELECT pg_advisory_unlock{lock}")).await.expect("is released");
        until("it is created", async || site.count(&format!("upload WHERE id = '{id}'")).await == 1).await;
    };
    // The client asks again.
    abandon("a").await;
    create(&one, "b", OWNER, 10).await.expect("is created");
    let ids =
        async || -> Vec<String> { one.list(OWNER).await.expect("is listed").into_iter().map(|(id, _)| id).collect() };
    assert_eq!(ids().await, ["b"]);
    lock_and_remove(&one, "b").await;
    // The client asks another gateway.
    abandon("c").await;
    one.sweep().await;
    assert_eq!(ids().await.len(), 0);
    create(&site.with(folder(&site.dir), SharedUploadOptions::new(limits)), "d", OWNER, 10).await.expect("is created");
}

async fn lock_and_remove(store: &SharedUploads, id: &str) {
    lock(store, id).await.remove().await.expect("is removed");
}

/// What clients send does not become errors of the database.
#[tokio::test(flavor = "multi_thread")]
async fn what_clients_send_is_checked() {
    let site = Site::new().await;
    let one = site.gateway();
    let with = |change: fn(&mut Record)| {
        let mut wanted = record(OWNER, 5);
        change(&mut wanted);
        wanted
    };
    let invalid: [fn(&mut Record); 3] = [
        |record| record.query = "a\0".into(),
        |record| record.media_type = "\0".into(),
        |record| record.name = Some("\0".into()),
    ];
    for change in invalid {
        let error = one.create("a", with(change)).await.expect_err("is invalid");
        assert_eq!(error.failure().0, 400, "{error}");
    }
    let long = one.create("a", with(|record| record.length = u64::MAX)).await.expect_err("is too long");
    assert!(matches!(long, ResumableError::Full(_)), "{long}");
    for id in ["a\0", "", "../a", "ä", &"a".repeat(1000)] {
        assert!(matches!(one.find(OWNER, id).await, Err(ResumableError::Missing)), "{id:?}");
        assert!(matches!(one.lock(OWNER, id).await.map(|_| ()), Err(ResumableError::Missing)), "{id:?}");
    }
    let odd = "\u{1F980}'; DROP TABLE upload; --\\";
    let mut wanted = record(OWNER, 5);
    wanted.name = Some(odd.to_owned());
    assert_eq!(one.create("a", wanted).await.expect("is created").name.as_deref(), Some(odd));
}

/// Gateways append to the same upload as fast as they can, each at the offset that it is told: no byte is lost or twice
/// there, whichever of them is faster.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gateways_that_compete_write_each_byte_once() {
    let site = Site::new().await;
    let bytes = Arc::new(noise(2 * MIB));
    let gateways: Vec<_> = (0..3).map(|_| site.impatient()).collect();
    create(&gateways[0], "a", OWNER, bytes.len()).await.expect("is created");
    let competing = gateways.iter().enumerate().map(|(number, gateway)| {
        let (gateway, bytes) = (gateway.clone(), Arc::clone(&bytes));
        tokio::spawn(async move {
            loop {
                let mut upload = match gateway.lock(OWNER, "a").await {
                    Ok(upload) => upload,
                    Err(ResumableError::Locked) => continue,
                    Err(error) => panic!("{error}"),
                };
                let from = usize::try_from(upload.record().offset).expect("fits");
                if from == bytes.len() {
                    return;
                }
                let end = bytes.len().min(from + 40_000 * (number + 1));
                let added = match upload.write(&bytes[from..end]).await {
                    Ok(()) => upload.commit().await,
                    failed => failed,
                };
                match added {
                    Ok(()) | Err(ResumableError::Locked | ResumableError::Offset { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                // The others have their turn.
                tokio::time::sleep(Duration::from_millis(10 * number as u64 + 3)).await;
            }
        })
    });
    for gateway in futures::future::join_all(competing).await {
        gateway.expect("no panic");
    }
    let upload = lock(&gateways[1], "a").await;
    assert!(read(&*upload).await == *bytes);
    let parts = site.count("upload_part WHERE start IS NOT NULL").await;
    until("what is not needed is deleted", async || {
        gateways[2].delete_due().await.expect("is swept");
        site.objects().await == parts && site.count("upload_part").await == parts
    })
    .await;
}
