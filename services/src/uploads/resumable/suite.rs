//! The contract of [`UploadStore`], as a suite of checks for the tests of every implementation, in whichever crate.
//!
//! A check uses two handles to a store that is empty. It panics if the contract is violated.

use crate::uploads::limits::ResumableLimits;
use crate::uploads::resumable::error::ResumableError;
use crate::uploads::resumable::record::{Record, UploadOutcome};
use crate::uploads::resumable::store::{LockedUpload, UploadStore};
use api::uploads::{FailureView, UploadView};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;

/// Opens two handles to a new, empty store with these limits.
pub type OpenStores<'a> = &'a (dyn Fn(ResumableLimits) -> [Arc<dyn UploadStore>; 2] + Sync);

const OWNER: &str = "alice";
const MIB: usize = 1 << 20;
/// How long something has to last that lasts until the check ends it.
const WHILE: Duration = Duration::from_millis(300);
const LIMITS: ResumableLimits = ResumableLimits {
    bytes_max: 1 << 30,
    token_bytes_max: 1 << 30,
    token_max: 100,
    lifetime: Duration::from_secs(86_400),
};

/// Runs all checks.
pub async fn check_all(open: OpenStores<'_>) {
    uploads_are_those_of_their_owners(&open(LIMITS)).await;
    open_uploads_are_limited(open).await;
    bytes_are_read_as_they_were_written(&open(LIMITS)).await;
    bytes_are_discarded_from_an_offset_on(&open(LIMITS)).await;
    the_latest_request_has_the_upload(&open(LIMITS)).await;
    an_import_is_waited_for(&open(LIMITS)).await;
    an_outcome_is_that_of_all(&open(LIMITS)).await;
    an_import_that_failed_can_be_repeated(&open(LIMITS)).await;
    expired_uploads_are_gone(open).await;
}

/// The record of a new upload.
pub fn record(owner: &str, length: usize) -> Record {
    Record {
        owner: owner.to_owned(),
        length: length as u64,
        offset: 0,
        query: "cid-version=1".to_owned(),
        media_type: "text/plain".to_owned(),
        name: Some("a name".to_owned()),
        created_at: 0,
        touched_at: 0,
        outcome: None,
    }
}

fn now() -> u64 {
    super::record::now()
}

/// Creates an upload.
pub async fn create(store: &dyn UploadStore, id: &str, owner: &str, length: usize) -> Result<Record, ResumableError> {
    let times = |record| Record { created_at: now(), touched_at: now(), ..record };
    store.create(id, times(record(owner, length))).await
}

async fn created(store: &dyn UploadStore, id: &str, length: usize) {
    create(store, id, OWNER, length).await.expect("is created");
}

/// Takes an upload.
pub async fn lock(store: &dyn UploadStore, id: &str) -> Box<dyn LockedUpload> {
    store.lock(OWNER, id).await.unwrap_or_else(|error| panic!("{id}: {error}"))
}

/// Bytes that do not repeat in parts of some MiB.
pub fn noise(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

/// Reads all bytes of an upload.
pub async fn read(upload: &dyn LockedUpload) -> Vec<u8> {
    let mut bytes = Vec::new();
    upload.read().await.expect("is opened").read_to_end(&mut bytes).await.expect("is read");
    bytes
}

/// Adds bytes in pieces of so many, and makes them durable.
pub async fn write(upload: &mut dyn LockedUpload, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        upload.write(piece).await.expect("is written");
    }
    upload.commit().await.expect("is durable");
}

/// The outcome of an upload that is pinned.
pub fn done() -> UploadOutcome {
    UploadOutcome::Done(UploadView { roots: Vec::new(), bytes: 5, blocks: 1 })
}

fn is_missing<T>(found: &Result<T, ResumableError>) -> bool {
    matches!(found, Err(ResumableError::Missing))
}

async fn uploads_are_those_of_their_owners([one, other]: &[Arc<dyn UploadStore>; 2]) {
    let new = create(&**one, "a", OWNER, 5).await.expect("is created");
    let found = other.find(OWNER, "a").await.expect("is found");
    assert_eq!(found, new);
    let age = now().abs_diff(found.created_at);
    assert!(age < 600 && found.touched_at == found.created_at, "{found:?}");
    assert_eq!(Record { created_at: 0, touched_at: 0, ..found }, record(OWNER, 5));
    create(&**other, "b", "bob", 6).await.expect("is created");
    create(&**other, "c", OWNER, 7).await.expect("is created");
    for store in [one, other] {
        let listed = store.list(OWNER).await.expect("is listed");
        assert_eq!(listed.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        assert!(is_missing(&store.find("bob", "a").await) && is_missing(&store.find(OWNER, "d").await));
        assert!(is_missing(&store.lock("bob", "a").await) && is_missing(&store.lock(OWNER, "d").await));
        assert_eq!(store.list("carol").await.expect("is listed"), []);
    }
    lock(&**one, "a").await.remove().await.expect("is removed");
    for store in [one, other] {
        assert!(is_missing(&store.find(OWNER, "a").await) && is_missing(&store.lock(OWNER, "a").await));
    }
}

async fn open_uploads_are_limited(open: OpenStores<'_>) {
    let [one, other] = open(ResumableLimits { bytes_max: 1500, token_bytes_max: 1000, token_max: 3, ..LIMITS });
    let words = async |store: &Arc<dyn UploadStore>, id: &str, owner: &str, length: usize| match create(
        &**store, id, owner, length,
    )
    .await
    {
        Ok(_) => "created",
        Err(ResumableError::Full(words)) if words.contains("token_max") => "too many",
        Err(ResumableError::Full(_)) => "too large",
        Err(error) => panic!("{error}"),
    };
    let table = [
        (&one, "a", OWNER, 900, "created"),
        (&other, "b", OWNER, 101, "too large"),
        (&other, "c", OWNER, 100, "created"),
        (&one, "d", "bob", 501, "too large"),
        (&one, "e", "bob", 500, "created"),
        (&other, "f", OWNER, 0, "created"),
        (&one, "g", OWNER, 0, "too many"),
    ];
    for (store, id, owner, length, expected) in table {
        assert_eq!(words(store, id, owner, length).await, expected, "{id}");
    }
    let mut ended = lock(&*other, "f").await;
    ended.begin_import().await.expect("is to be imported");
    ended.finish(done()).await.expect("ends");
    assert_eq!(words(&one, "h", OWNER, 0).await, "created");
    // Of requests at the same time no more are accepted than one after the other.
    let [one, other] = open(ResumableLimits { token_max: 3, ..LIMITS });
    let ids: Vec<String> = (0..8).map(|number| format!("same-{number}")).collect();
    let creating = ids.iter().enumerate().map(|(number, id)| {
        let store = if number % 2 == 0 { &one } else { &other };
        create(&**store, id, OWNER, 10)
    });
    let results = futures::future::join_all(creating).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3);
}

async fn bytes_are_read_as_they_were_written([one, other]: &[Arc<dyn UploadStore>; 2]) {
    let bytes = noise(11 * MIB + 5);
    created(&**one, "a", bytes.len()).await;
    // By two gateways in turn, in parts of many sizes.
    let ends = [1, 2, 3, 1000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 9 * MIB + 100, bytes.len()];
    let mut from = 0;
    for (turn, end) in ends.into_iter().enumerate() {
        let store = if turn % 2 == 0 { one } else { other };
        let mut upload = lock(&**store, "a").await;
        assert_eq!(upload.record().offset, from as u64);
        write(&mut *upload, &bytes[from..end], 100_000).await;
        assert_eq!(upload.record().offset, end as u64);
        assert!(read(&*upload).await == bytes[..end], "up to {end}");
        from = end;
    }
    for store in [one, other] {
        assert_eq!(store.find(OWNER, "a").await.expect("is found").offset, bytes.len() as u64);
    }
    created(&**one, "b", 10).await;
    let mut upload = lock(&**one, "b").await;
    upload.commit().await.expect("there is nothing to do");
    assert_eq!((upload.record().offset, read(&*upload).await), (0, Vec::new()));
}

async fn bytes_are_discarded_from_an_offset_on([one, other]: &[Arc<dyn UploadStore>; 2]) {
    let bytes = noise(10 * MIB);
    created(&**one, "a", bytes.len()).await;
    write(&mut *lock(&**one, "a").await, &bytes[..1000], 1000).await;
    // Some of it is durable when it is discarded, and some not.
    let mut upload = lock(&**other, "a").await;
    let discarded = vec![7; 9 * MIB];
    for piece in discarded.chunks(MIB) {
        upload.write(piece).await.expect("is written");
    }
    upload.truncate(1000).await.expect("is discarded");
    assert_eq!(upload.record().offset, 1000);
    drop(upload);
    assert_eq!(one.find(OWNER, "a").await.expect("is found").offset, 1000);
    let mut upload = lock(&**one, "a").await;
    assert!(read(&*upload).await == bytes[..1000]);
    // Nothing of it was durable.
    upload.write(&[9; 10]).await.expect("is written");
    upload.truncate(1000).await.expect("is discarded");
    drop(upload);
    let mut upload = lock(&**other, "a").await;
    assert_eq!(upload.record().offset, 1000);
    write(&mut *upload, &bytes[1000..], MIB).await;
    assert!(read(&*upload).await == bytes);
}

async fn the_latest_request_has_the_upload([one, other]: &[Arc<dyn UploadStore>; 2]) {
    for (id, second) in [("a", other), ("b", one)] {
        created(&**one, id, 10).await;
        let mut first = lock(&**one, id).await;
        write(&mut *first, b"12345", 5).await;
        let preempted = async move {
            loop {
                first.check_due().await;
                if let Err(error) = first.check().await {
                    // A request that has lost the upload changes nothing any more.
                    return error;
                }
            }
        };
        let (error, mut second) = tokio::join!(preempted, lock(&**second, id));
        assert!(matches!(error, ResumableError::Locked), "{error}");
        assert_eq!(second.record().offset, 5);
        write(&mut *second, b"67890", 5).await;
        assert_eq!(read(&*second).await, b"1234567890");
    }
}

async fn an_import_is_waited_for([one, other]: &[Arc<dyn UploadStore>; 2]) {
    for (id, second) in [("a", other), ("b", one)] {
        created(&**one, id, 5).await;
        let mut first = lock(&**one, id).await;
        write(&mut *first, b"12345", 5).await;
        first.begin_import().await.expect("is to be imported");
        let mut waiting = second.lock(OWNER, id);
        let waits = async { tokio::time::timeout(WHILE, &mut waiting).await.is_err() };
        let stays = async { tokio::time::timeout(WHILE, first.taken_over()).await.is_err() };
        assert_eq!(tokio::join!(waits, stays), (true, true));
        assert_eq!(second.find(OWNER, id).await.expect("is found").offset, 5);
        assert_eq!(read(&*first).await, b"12345");
        first.finish(done()).await.expect("ends");
        assert_eq!(first.record().outcome, Some(done()));
        drop(first);
        assert_eq!(waiting.await.expect("is released").record().outcome, Some(done()));
    }
}

async fn an_outcome_is_that_of_all([one, other]: &[Arc<dyn UploadStore>; 2]) {
    let failed = |status| UploadOutcome::Failed(FailureView { status, error: "a reason".to_owned() });
    for (id, outcome) in [("a", done()), ("b", failed(400)), ("c", failed(500))] {
        created(&**one, id, 5).await;
        let mut upload = lock(&**one, id).await;
        write(&mut *upload, b"12345", 5).await;
        upload.begin_import().await.expect("is to be imported");
        upload.finish(outcome.clone()).await.expect("ends");
        drop(upload);
        for store in [one, other] {
            assert_eq!(store.find(OWNER, id).await.expect("is found").outcome, Some(outcome.clone()));
        }
    }
    // The bytes are kept if the gateway is the cause.
    let mut upload = lock(&**other, "c").await;
    assert_eq!(read(&*upload).await, b"12345");
    upload.begin_import().await.expect("is imported again");
    upload.finish(done()).await.expect("ends");
    drop(upload);
    assert_eq!(one.find(OWNER, "c").await.expect("is found").outcome, Some(done()));
}

async fn an_import_that_failed_can_be_repeated([one, other]: &[Arc<dyn UploadStore>; 2]) {
    created(&**one, "a", 5).await;
    let mut upload = lock(&**one, "a").await;
    write(&mut *upload, b"12345", 5).await;
    upload.begin_import().await.expect("is to be imported");
    upload.postpone().await;
    drop(upload);
    let mut upload = lock(&**other, "a").await;
    assert_eq!((upload.record().outcome, read(&*upload).await), (None, b"12345".to_vec()));
    upload.begin_import().await.expect("is imported again");
    upload.finish(done()).await.expect("ends");
}

async fn expired_uploads_are_gone(open: OpenStores<'_>) {
    let [one, other] = open(ResumableLimits { lifetime: Duration::ZERO, token_max: 1, ..LIMITS });
    created(&*one, "a", 5).await;
    for store in [&one, &other] {
        assert!(is_missing(&store.find(OWNER, "a").await) && is_missing(&store.lock(OWNER, "a").await));
        assert_eq!(store.list(OWNER).await.expect("is listed"), []);
    }
    // It does not count any more.
    created(&*other, "b", 5).await;
    one.sweep().await;
    created(&*one, "c", 5).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uploads::resumable::local::LocalUploads;

    #[tokio::test]
    async fn files_are_a_store_of_uploads() {
        let dir = tempfile::tempdir().expect("a folder");
        let stores = std::sync::atomic::AtomicUsize::new(0);
        let open = |limits| -> [Arc<dyn UploadStore>; 2] {
            let number = stores.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let store = LocalUploads::open(&dir.path().join(number.to_string()), limits).expect("opens");
            [Arc::new(store.clone()), Arc::new(store)]
        };
        check_all(&open).await;
    }
}
