//! What a log does when its server fails.

use crate::support::{Postgres, TIMEOUT, open, records, until};
use cache::StoreError;
use cache::metadata_store::{Appended, Change, LogPosition, MetadataLog};
use site::database::{DatabaseLog, DatabaseOptions};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

fn put(key: impl ToString, content: impl ToString) -> Change {
    Change::Put(key.to_string().into(), content.to_string().into())
}

/// A member that knows which of its appends were acknowledged.
struct Writer {
    log: Arc<DatabaseLog>,
    position: LogPosition,
    acknowledged: Vec<u32>,
}

impl Writer {
    fn new(log: DatabaseLog) -> Self {
        let position = log.read(&mut |_, _| {}).expect("reads");
        Self { log: Arc::new(log), position, acknowledged: Vec::new() }
    }

    /// Appends a record until it is acknowledged or the server fails.
    async fn write(&mut self, number: u32) -> Result<(), StoreError> {
        loop {
            match self.log.append(self.position, vec![put(format!("{number:05}"), number)]).await? {
                Appended::At(position) => {
                    self.position = position;
                    self.acknowledged.push(number);
                    return Ok(());
                }
                Appended::Behind(entries) => self.position = entries.last().expect("at least one").position,
                Appended::Truncated => {
                    let log = Arc::clone(&self.log);
                    let reading = tokio::task::spawn_blocking(move || log.read(&mut |_, _| {}));
                    self.position = reading.await.expect("no panic")?;
                }
            }
        }
    }
}

/// Members write while the server is killed again and again: what was acknowledged is there, whatever else is.
#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_change_is_lost_when_the_server_is_killed() {
    let mut server = Postgres::start().await;
    let options = server.options("killed");
    let writers = (0..3).map(async |_| Writer::new(open(&options).await));
    let mut writers = futures::future::join_all(writers).await;
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let mut running = Vec::new();
    for (index, mut writer) in writers.drain(..).enumerate() {
        let stopping = stopping.clone();
        running.push(tokio::spawn(async move {
            let mut failures = 0;
            for number in (0..).map(|count| count * 3 + u32::try_from(index).expect("few")) {
                if *stopping.borrow() {
                    break;
                }
                while let Err(error) = writer.write(number).await {
                    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
                    failures += 1;
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            }
            (writer, failures)
        }));
    }
    for _ in 0..4 {
        let count = "SELECT position::text FROM \"causeway_killed\".log_head";
        let before: u64 = server.sql(count).await.expect("is asked")[0].parse().expect("a number");
        until("they write", async || {
            server.sql(count).await.expect("is asked")[0].parse::<u64>().expect("a number") > before + 30
        })
        .await;
        server.kill();
        server.restart().await;
    }
    stop.send(true).expect("they are running");
    let stored = {
        let (mut acknowledged, mut failures) = (Vec::new(), 0);
        for writer in running {
            let (writer, failed) = writer.await.expect("no panic");
            failures += failed;
            acknowledged.extend(writer.acknowledged);
        }
        assert!(failures > 0, "appends have failed");
        let stored: Vec<u32> = records(&server.open("killed").await)
            .into_iter()
            .map(|(_, number)| number.parse().expect("ours"))
            .collect();
        assert!(acknowledged.len() > 100);
        let lost: Vec<_> = acknowledged.iter().filter(|number| stored.binary_search(number).is_err()).collect();
        assert!(lost.is_empty(), "{lost:?} of {} are lost", acknowledged.len());
        stored
    };
    // The entries are those that made the records.
    let entries = "SELECT count(*)::text FROM \"causeway_killed\".log_entry";
    assert!(server.sql(entries).await.expect("is asked")[0].parse::<usize>().expect("a number") >= stored.len());
}

/// Appends, as the only writer.
async fn appended(log: &DatabaseLog, after: LogPosition, key: impl ToString, content: &str) -> LogPosition {
    match log.append(after, vec![put(key, content)]).await.expect("appends") {
        Appended::At(position) => position,
        other => panic!("{other:?}"),
    }
}

fn position(log: &DatabaseLog) -> LogPosition {
    log.read(&mut |_, _| {}).expect("reads")
}

/// While the server cannot be reached, changes fail soon and in words; then the same log goes on, and its hints as well.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_reported_at_once() {
    let mut server = Postgres::start().await;
    let (log, other) = (server.open("stopped").await, server.open("stopped").await);
    let mut hints = other.watch().expect("a log of several members");
    let first = appended(&log, LogPosition::default(), "a", "1").await;
    server.stop();
    for _ in 0..3 {
        let asked = Instant::now();
        let error = log.append(first, vec![put("a", 2)]).await.expect_err("it is stopped");
        let StoreError::Unavailable { reason } = error else { panic!("{error}") };
        assert!(reason.contains("postgres at 127.0.0.1"), "{reason}");
        assert!(asked.elapsed() < TIMEOUT / 4, "{:?}", asked.elapsed());
    }
    assert!(matches!(log.read(&mut |_, _| {}), Err(StoreError::Unavailable { .. })));
    server.restart().await;
    until("it goes on", async || log.append(first, vec![]).await.is_ok()).await;
    let second = appended(&log, first, "a", "3").await;
    let hint = hints.wait_for(|position| *position >= second);
    drop(tokio::time::timeout(TIMEOUT, hint).await.expect("a hint").expect("is open"));
    assert_eq!(records(&other), [("a".to_owned(), "3".to_owned())]);
}

/// All sessions are ended by an administrator, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_are_ended_are_replaced() {
    let server = Postgres::start().await;
    let (log, other) = (server.open("ended").await, server.open("ended").await);
    let mut hints = other.watch().expect("a log of several members");
    let mut at = position(&log);
    let end = "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity \
        WHERE application_name = 'causeway' AND backend_type = 'client backend'";
    for round in 0..3 {
        let ended = server.sql(end).await.expect("is asked");
        assert!(ended[0].parse::<u32>().expect("a number") >= 2, "{ended:?}");
        until("it is connected again", async || log.append(at, vec![]).await.is_ok()).await;
        at = appended(&log, at, round, "x").await;
        let hint = hints.wait_for(|position| *position >= at);
        drop(tokio::time::timeout(TIMEOUT, hint).await.expect("a hint").expect("is open"));
    }
}

/// A host that accepts connections and does not answer does not keep members from the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_host_is_passed_over() {
    let stalled = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let server = Postgres::start().await;
    let mut options = server.options("stalled");
    let port = stalled.local_addr().expect("is bound").port();
    options.url = format!("postgresql://causeway@127.0.0.1:{port},127.0.0.1:{}/postgres", server.port);
    let log = open(&options).await;
    appended(&log, LogPosition::default(), "a", "1").await;
    assert_eq!(records(&log).len(), 1);
}

/// The server is fenced off while another one takes over: its sessions accept no changes any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_accepts_no_changes_any_more_is_left() {
    let server = Postgres::start().await;
    let log = server.open("fenced").await;
    let first = appended(&log, LogPosition::default(), "a", "1").await;
    let set = async |value: &str| {
        for statement in
            [&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"), "SELECT pg_reload_conf()"]
        {
            server.sql(&format!("SET default_transaction_read_only = off; {statement}")).await.ok();
            server.sql(statement).await.ok();
        }
    };
    set("on").await;
    // Also a member that only asks for entries notices it.
    until("it is noticed", async || log.append(first, vec![]).await.is_err()).await;
    let error = log.append(first, vec![put("a", 2)]).await.expect_err("accepts no changes");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    set("off").await;
    until("it goes on", async || log.append(first, vec![]).await.is_ok()).await;
    appended(&log, first, "a", "3").await;
}

/// Servers of which the second was promoted without the latest two of five entries; the position of the third entry, and
/// of the fifth.
async fn promoted() -> (Postgres, Postgres, DatabaseOptions, DatabaseLog, [LogPosition; 2]) {
    // Not synchronous: entries can be lost.
    let mut server = Postgres::with_settings("wal_level = replica").await;
    let standby = server.standby().await;
    let mut options = server.options("promoted");
    options.url = format!("postgresql://causeway@127.0.0.1:{},127.0.0.1:{}/postgres", server.port, standby.port);
    let log = open(&options).await;
    let mut at = LogPosition::default();
    for key in 0..3 {
        at = appended(&log, at, key, "both").await;
    }
    let head = "SELECT position::text FROM \"causeway_promoted\".log_head";
    until("the standby has them", async || standby.sql(head).await.is_ok_and(|found| found == ["3"])).await;
    server.cut_off_standbys().await;
    let kept = at;
    for key in 3..5 {
        at = appended(&log, at, key, "lost").await;
    }
    server.kill();
    standby.promote().await;
    (server, standby, options, log, [kept, at])
}

/// A standby that is promoted without the latest entries gives their numbers to others: a member that has seen the
/// former ones reads the records again.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_has_seen_lost_entries_reads_the_records_again() {
    let (_killed, _standby, options, log, [kept, lost]) = promoted().await;
    until("it is connected again", async || log.append(kept, vec![]).await.is_ok()).await;
    // The log is shorter.
    assert_eq!(log.append(lost, vec![put(9, "stale")]).await.expect("is asked"), Appended::Truncated);
    // Another member writes as many entries as were lost.
    let other = open(&options).await;
    let mut at = position(&other);
    assert_eq!(at, kept);
    for key in 3..5 {
        at = appended(&other, at, key, "new").await;
    }
    assert_eq!(at.number, lost.number);
    for changes in [vec![], vec![put(9, "stale")]] {
        assert_eq!(log.append(lost, changes).await.expect("is asked"), Appended::Truncated, "another entry is there");
    }
    at = appended(&other, at, 5, "new").await;
    assert_eq!(log.append(lost, vec![put(9, "stale")]).await.expect("is asked"), Appended::Truncated);
    assert_eq!(position(&log), at);
    appended(&log, at, 9, "fresh").await;
    let contents: Vec<_> = records(&other).into_iter().map(|(_, content)| content).collect();
    assert_eq!(contents, ["both", "both", "both", "new", "new", "new", "fresh"]);
}

/// The primary does not answer any more and is not dead; its standby is promoted.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute; make test-long runs it"]
async fn a_stalled_primary_is_left_for_the_one_that_was_promoted() {
    let server = Postgres::with_settings("wal_level = replica").await;
    let standby = server.standby().await;
    let mut options = server.options("frozen");
    options.url = format!("postgresql://causeway@127.0.0.1:{},127.0.0.1:{}/postgres", server.port, standby.port);
    let log = Arc::new(open(&options).await);
    let first = appended(&log, LogPosition::default(), "a", "1").await;
    let head = "SELECT position::text FROM \"causeway_frozen\".log_head";
    until("the standby has it", async || standby.sql(head).await.is_ok_and(|found| found == ["1"])).await;
    server.suspend();
    let reading = tokio::task::spawn_blocking({
        let log = Arc::clone(&log);
        move || log.read(&mut |_, _| {})
    });
    let error = log.append(first, vec![put("a", 2)]).await.expect_err("no answer");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert!(tokio::time::timeout(TIMEOUT, reading).await.expect("ends").expect("no panic").is_err());
    standby.promote().await;
    until("it is connected to the other one", async || log.append(first, vec![]).await.is_ok()).await;
    appended(&log, first, "a", "3").await;
    server.resume();
}
