//! The audit log as a whole: its content, its order, and its behaviour on a full disk.

use crate::access::Principal;
use crate::audit::file::{FILE_BYTES_MAX, RESERVE_BYTES};
use crate::audit::*;
use crate::small_disk::SmallDisk;
use api::access::Scope;
use serde_json::json;
use std::fs;

fn begun(path: &str) -> PendingChange {
    let uri = path.parse().expect("a path");
    let from = Some(([127, 0, 0, 1], 7).into());
    PendingChange::new(&Principal::operator(), Scope::Operate, from, &http::Method::POST, &uri)
}

async fn change(log: &AuditLog, path: &str, space: Space) -> Result<(), AuditError> {
    let mut change = log.begin(begun(path), AuditContext::default(), space).await?;
    change.end(202, Some(json!({"evicted": 3}))).await;
    Ok(())
}

fn paths(entries: Vec<AuditEntry>) -> Vec<String> {
    entries.into_iter().map(|entry| entry.path).collect()
}

#[tokio::test]
async fn changes_are_read_the_newest_first() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(dir.path()).expect("opens");
    assert_eq!(log.last(9).expect("reads"), []);
    for number in 0..5 {
        change(&log, &format!("/{number}"), Space::Taken).await.expect("is written");
    }
    let entry = log.last(1).expect("reads").swap_remove(0);
    assert_eq!((entry.status, entry.detail), (Some(202), Some(json!({"evicted": 3}))));
    assert_eq!(paths(log.last(3).expect("reads")), ["/4", "/3", "/2"]);
    assert_eq!(log.last(0).expect("reads"), []);
    drop(log);
    // The last outcome is incomplete: that change has no outcome, and the next record is not affected.
    let text = fs::read_to_string(dir.path().join(FILE)).expect("reads");
    fs::write(dir.path().join(FILE), &text[..text.len() - 9]).expect("writes");
    let log = AuditLog::open(dir.path()).expect("opens");
    change(&log, "/5", Space::Taken).await.expect("is written");
    let entries = log.last(9).expect("reads");
    assert_eq!(entries.iter().map(|entry| entry.status).take(3).collect::<Vec<_>>(), [Some(202), None, Some(202)]);
    assert_eq!(paths(entries), ["/5", "/4", "/3", "/2", "/1", "/0"]);
}

#[tokio::test]
async fn a_change_is_on_the_disk_before_it_is_made() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(dir.path()).expect("opens");
    let mut change = log.begin(begun("/x"), AuditContext::default(), Space::Taken).await.expect("is written");
    let entry = log.last(9).expect("reads").swap_remove(0);
    assert_eq!((entry.path.as_str(), entry.status, entry.seconds), ("/x", None, None));
    change.end(200, None).await;
    let entries = log.last(9).expect("reads");
    assert_eq!((entries.len(), entries[0].status, &entries[0].id), (1, Some(200), &entry.id));
}

#[tokio::test]
async fn a_change_whose_client_disconnects_is_recorded() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(dir.path()).expect("opens");
    let mut answered = log.begin(begun("/a"), AuditContext::default(), Space::Taken).await.expect("is written");
    answered.end(200, None).await;
    drop(answered);
    let noted = AuditContext::default();
    let left = log.begin(begun("/b"), noted.clone(), Space::Taken).await.expect("is written");
    noted.note(&json!({"name": "site"}));
    drop(left);
    let told = |entry: AuditEntry| (entry.status, entry.detail);
    let both = || log.last(9).expect("reads").into_iter().map(told).collect::<Vec<_>>();
    while both().first().is_none_or(|(status, _)| status.is_none()) {
        tokio::task::yield_now().await;
    }
    assert_eq!(both(), [(Some(CLIENT_DISCONNECTED), Some(json!({"name": "site"}))), (Some(200), None)]);
    // No space is reserved after the record is written.
    while log.open.load(Ordering::SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn many_changes_are_written_at_a_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(dir.path()).expect("opens");
    let mut sent: Vec<String> = (0..2 * LINES_MAX).map(|number| format!("/{number}")).collect();
    futures::future::join_all(sent.iter().map(|path| change(&log, path, Space::Taken))).await;
    let mut kept = paths(log.last(usize::MAX).expect("reads"));
    kept.sort_unstable();
    sent.sort_unstable();
    assert_eq!(kept, sent);
}

#[tokio::test]
async fn a_log_whose_thread_has_ended_rejects_changes() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut log = AuditLog::open(dir.path()).expect("opens");
    log.lines = mpsc::channel(1).0;
    assert_eq!(change(&log, "/x", Space::Returned).await, Err(AuditError::Closed));
}

/// A file that cannot be written.
#[tokio::test]
async fn changes_that_cannot_be_recorded_are_rejected() {
    let dir = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink("/dev/full", dir.path().join(FILE)).expect("links");
    let log = AuditLog::open(dir.path()).expect("opens");
    for space in [Space::Taken, Space::Returned] {
        assert_eq!(change(&log, "/x", space).await, Err(AuditError::Full));
    }
    assert!(LocalChange::begin(dir.path(), "token rm ci", &()).is_err());
}

#[test]
fn a_command_leaves_its_record_beside_a_gateway() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = AuditLog::open(dir.path()).expect("opens");
    let command = LocalChange::begin(dir.path(), "token rm ci", &json!({"token": "ci"})).expect("is written");
    assert_eq!(log.last(9).expect("reads")[0].status, None);
    command.end(200, &json!({"id": "x"})).expect("is written");
    let entries = log.last(9).expect("reads");
    let entry = &entries[0];
    assert_eq!((entries.len(), entry.method.as_str(), entry.path.as_str()), (1, "command", "token rm ci"));
    assert!(entry.from.as_ref().is_some_and(|from| from.starts_with("uid ")), "{entry:?}");
    assert_eq!(entry.detail, Some(json!({"id": "x"})));
}

#[tokio::test]
async fn on_a_full_disk_every_change_that_is_made_is_recorded() {
    let Some(disk) = SmallDisk::mount(24) else { return };
    let data = disk.path().join("data");
    let log = AuditLog::open(&data).expect("opens");
    let filling = disk.fill();
    let long = "x".repeat(2000);
    let until_refused = async |space: Space| {
        let mut made = Vec::new();
        loop {
            let path = format!("/{space:?}/{}/{long}", made.len());
            match change(&log, &path, space).await {
                Ok(()) => made.push(path),
                Err(error) => {
                    assert_eq!(error, AuditError::Full);
                    return made;
                }
            }
        }
    };
    let taken = until_refused(Space::Taken).await;
    let returned = until_refused(Space::Returned).await;
    // Two records for each change; a record is some 2.3 kB.
    let half = RESERVE_BYTES / 2 / 5_000;
    assert!(taken.len() as u64 > half / 2 && returned.len() as u64 > half / 2, "{} {}", taken.len(), returned.len());
    let all: Vec<_> = log.last(usize::MAX).expect("reads");
    assert!(all.iter().all(|entry| entry.status == Some(202)), "each has its outcome");
    let made: Vec<String> =
        taken.into_iter().chain(returned).rev().map(|path| path[..PATH_SHOWN.min(path.len())].to_owned()).collect();
    let shown: Vec<String> = paths(all).into_iter().map(|path| path[..PATH_SHOWN.min(path.len())].to_owned()).collect();
    assert!(shown == made, "{} {}", shown.len(), made.len());
    // Records of the gateway itself do not use the half of the reserve for changes that free space.
    let before = std::fs::metadata(data.join(FILE)).expect("is there").len();
    log.record("purge", "a cache", 200, None).await;
    assert_eq!(std::fs::metadata(data.join(FILE)).expect("is there").len(), before);
    // It works again as soon as there is space, and after a restart.
    fs::remove_file(filling).expect("removes");
    change(&log, "/again", Space::Taken).await.expect("is written");
    drop(log);
    let filling = disk.fill();
    let log = AuditLog::open(&data).expect("opens on a full disk");
    change(&log, "/restarted", Space::Returned).await.expect("the reserve outlives its process");
    fs::remove_file(filling).expect("removes");
}

#[tokio::test]
async fn a_long_log_is_used_further_when_a_full_disk_prevents_rotation() {
    let Some(disk) = SmallDisk::mount(96) else { return };
    let data = disk.path().join("data");
    std::fs::create_dir(&data).expect("makes");
    fs::write(data.join(FILE), vec![b'\n'; FILE_BYTES_MAX as usize - 4]).expect("a long file");
    let log = AuditLog::open(&data).expect("opens");
    let filling = disk.fill();
    for n in 0..20 {
        change(&log, &format!("/{n}"), Space::Returned).await.expect("the reserve is for this");
    }
    assert!(!data.join(OLDER_FILE).exists(), "its reserve would not have come along");
    fs::remove_file(filling).expect("removes");
    change(&log, "/last", Space::Taken).await.expect("is written");
    assert!(data.join(OLDER_FILE).exists());
    assert_eq!(log.last(1).expect("reads")[0].path, "/last");
}

/// The length at which paths are compared.
const PATH_SHOWN: usize = 40;
