//! The contract of a log of metadata.

use crate::support::{Postgres, open_with, records};
use cache::metadata_store::{Appended, Change, LogPosition, MetadataLog, log_suite};
use site::database::{Database, DatabaseLog, LogOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_logs_of_a_site_are_logs_of_metadata() {
    for options in [LogOptions::default(), LogOptions::control(), LogOptions::names()] {
        check_contract(options).await;
    }
}

async fn check_contract(log_options: LogOptions) {
    let server = Postgres::start().await;
    let sites = AtomicUsize::new(0);
    // Each member has connections of its own, as a gateway has.
    let open_members = |members: usize| -> Vec<Arc<dyn MetadataLog>> {
        let options = server.options(&format!("site-{}", sites.fetch_add(1, Ordering::Relaxed)));
        let opening = async {
            let mut logs: Vec<Arc<dyn MetadataLog>> = Vec::new();
            for _ in 0..members {
                logs.push(Arc::new(open_with(&options, log_options.clone()).await));
            }
            logs
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(opening))
    };
    log_suite::check_all(&open_members).await;
}

/// No log of a site has the entries, the records or the notifications of another.
#[tokio::test(flavor = "multi_thread")]
async fn the_logs_of_a_site_are_independent() {
    let server = Postgres::start().await;
    let options = server.options("two");
    let (pins, control) = (server.open("two").await, open_with(&options, LogOptions::control()).await);
    let at_pins = appended(&pins, LogPosition::default(), vec![put("key", "a pin")]).await;
    let at_control = appended(&control, LogPosition::default(), vec![put("key", "a rule")]).await;
    let names = open_with(&options, LogOptions::names()).await;
    let at_names = appended(&names, LogPosition::default(), vec![put("key", "a name")]).await;
    for (log, position, content) in
        [(&pins, at_pins, "a pin"), (&control, at_control, "a rule"), (&names, at_names, "a name")]
    {
        assert_eq!(append(log, position, vec![]).await, Appended::At(position));
        assert_eq!(records(log), [("key".to_owned(), content.to_owned())]);
        let latest = log.watch().expect("others may append");
        crate::support::until("it is notified", async || *latest.borrow() == position).await;
    }
}

fn put(key: &str, content: &str) -> Change {
    Change::Put(key.into(), content.into())
}

async fn append(log: &DatabaseLog, after: LogPosition, changes: Vec<Change>) -> Appended {
    log.append(after, changes).await.expect("appends")
}

/// Appends, as the only writer.
async fn appended(log: &DatabaseLog, after: LogPosition, changes: Vec<Change>) -> LogPosition {
    match append(log, after, changes).await {
        Appended::At(position) => position,
        other => panic!("{other:?}"),
    }
}

/// A gateway that is further behind than entries are kept, and one that is behind by more than one append returns.
#[tokio::test(flavor = "multi_thread")]
async fn old_entries_are_removed_and_gateways_that_need_them_read_the_records() {
    let server = Postgres::start().await;
    let database = Database::new(&server.options("trimmed")).expect("the settings are valid");
    let log =
        DatabaseLog::open(database, LogOptions { entries_kept: 300, ..LogOptions::default() }).await.expect("opens");
    let mut positions = vec![LogPosition::default()];
    for _ in 0..1024 {
        positions.push(appended(&log, positions[positions.len() - 1], vec![put("key", "value")]).await);
    }
    crate::support::until("old entries are removed", async || {
        let oldest = server.sql("SELECT min(position)::text FROM \"causeway_trimmed\".log_entry").await;
        oldest.expect("is asked") == ["725"]
    })
    .await;
    let other = server.open("trimmed").await;
    assert_eq!(append(&other, LogPosition::default(), vec![put("key", "other")]).await, Appended::Truncated);
    let position = other.read(&mut |_, _| {}).expect("reads");
    assert_eq!(append(&other, position, vec![]).await, Appended::At(positions[1024]));
    // From the oldest entry on, in parts.
    let (mut at, mut parts) = (positions[724], 0);
    while let Appended::Behind(entries) = append(&other, at, vec![]).await {
        assert!(entries.len() <= 256);
        at = entries.last().expect("at least one").position;
        parts += 1;
    }
    assert_eq!((at, parts), (positions[1024], 2));
}

/// What one append returns is bounded in size, but for a single entry.
#[tokio::test(flavor = "multi_thread")]
async fn large_entries_are_returned_in_parts() {
    const MIB: usize = 1 << 20;
    let server = Postgres::start().await;
    let log = server.open("large").await;
    let mut position = LogPosition::default();
    for bytes in [3 * MIB, 3 * MIB, 3 * MIB, 20 * MIB, 10] {
        let change = Change::Put(b"key".to_vec(), vec![7; bytes]);
        position = appended(&log, position, vec![change]).await;
    }
    let (mut at, mut parts) = (LogPosition::default(), Vec::new());
    while let Appended::Behind(entries) = append(&log, at, vec![]).await {
        at = entries.last().expect("at least one").position;
        parts.push(entries.len());
    }
    assert_eq!((at, parts), (position, vec![3, 1, 1]));
}

/// More records than are read at a time, and contents of any bytes.
#[tokio::test(flavor = "multi_thread")]
async fn many_records_are_read_in_the_order_of_their_keys() {
    let server = Postgres::start().await;
    let log = server.open("many").await;
    let key = |number: u32| number.wrapping_mul(2_654_435_761).to_be_bytes().to_vec();
    let changes = (0..5_000).map(|number| Change::Put(key(number), vec![0xff; number as usize % 300])).collect();
    appended(&log, LogPosition::default(), changes).await;
    let mut read: Vec<(Vec<u8>, usize)> = Vec::new();
    log.read(&mut |key, content| read.push((key.to_vec(), content.len()))).expect("reads");
    let mut expected: Vec<_> = (0..5_000).map(|number| (key(number), number as usize % 300)).collect();
    expected.sort();
    assert!(read == expected);
}
