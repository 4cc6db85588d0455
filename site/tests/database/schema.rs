//! The tables of a site.

use crate::support::{Postgres, open, records};
use cache::metadata_store::{Appended, Change, LogPosition, MetadataLog};
use site::database::{Database, DatabaseError, DatabaseLog, DatabaseOptions, LogOptions};

/// Appends to a log without entries.
async fn append_first(log: &DatabaseLog, content: &str) {
    let appended = log.append(LogPosition::default(), put(content)).await.expect("appends");
    assert!(matches!(appended, Appended::At(LogPosition { number: 1, .. })), "{appended:?}");
}

fn put(content: &str) -> Vec<Change> {
    vec![Change::Put("key".into(), content.into())]
}

#[tokio::test(flavor = "multi_thread")]
async fn sites_in_one_database_have_tables_of_their_own() {
    let server = Postgres::start().await;
    let (one, other) = (server.open("berlin").await, server.open("munich").await);
    for (log, content) in [(&one, "1"), (&other, "2")] {
        append_first(log, content).await;
    }
    assert_eq!(records(&one), [("key".to_owned(), "1".to_owned())]);
    assert_eq!(records(&server.open("munich").await), [("key".to_owned(), "2".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_that_start_together_create_the_tables_once() {
    let server = Postgres::start().await;
    let options = server.options("together");
    let logs = futures::future::join_all((0..8).map(|_| open(&options))).await;
    append_first(&logs[0], "1").await;
    assert_eq!(records(&logs[7]).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_a_newer_release_are_left_alone() {
    let server = Postgres::start().await;
    drop(server.open("newer").await);
    server.sql("UPDATE \"causeway_newer\".version SET version = 99").await.expect("is changed");
    let database = Database::new(&server.options("newer")).expect("the settings are valid");
    let error = DatabaseLog::open(database, LogOptions::default()).await.expect_err("is newer");
    assert!(matches!(error, DatabaseError::NewerSchema { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("run that release"), "{error}");
}

/// An administrator has created the schema for a role that can create none.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_the_right_to_create_schemas_uses_its_own() {
    let server = Postgres::start().await;
    for statement in ["CREATE ROLE gateway LOGIN", "CREATE SCHEMA \"causeway_granted\" AUTHORIZATION gateway"] {
        server.sql(statement).await.expect("is done");
    }
    let mut options = server.options("granted");
    options.url = options.url.replace("causeway@", "gateway@");
    let log = open(&options).await;
    append_first(&log, "1").await;
    // Nor does one that may only use current tables need more rights.
    for statement in [
        "CREATE ROLE user_only LOGIN",
        "GRANT USAGE ON SCHEMA \"causeway_granted\" TO user_only",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"causeway_granted\" TO user_only",
    ] {
        server.sql(statement).await.expect("is done");
    }
    let of_user = DatabaseOptions { url: options.url.replace("gateway@", "user_only@"), ..options.clone() };
    let log = open(&of_user).await;
    let position = log.read(&mut |_, _| {}).expect("reads");
    assert!(matches!(log.append(position, put("2")).await.expect("appends"), Appended::At(_)));
    options.site = "other".to_owned();
    let database = Database::new(&options).expect("the settings are valid");
    let error = DatabaseLog::open(database, LogOptions::default()).await.expect_err("it may not");
    assert!(matches!(error, DatabaseError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("permission denied"), "{error}");
}

/// Whatever an administrator has set as defaults, commits are durable and appends see what others have committed.
#[tokio::test(flavor = "multi_thread")]
async fn defaults_of_the_server_do_not_weaken_commits() {
    let settings = "synchronous_commit = off\ndefault_transaction_isolation = 'serializable'";
    let server = Postgres::with_settings(settings).await;
    let (one, other) = (server.open("defaults").await, server.open("defaults").await);
    // Appends at the same time, of which each succeeds after it has learned of those before it.
    let count = |log: DatabaseLog| async move {
        let mut position = LogPosition::default();
        for _ in 0..50 {
            loop {
                match log.append(position, put("x")).await.expect("appends") {
                    Appended::At(at) => break position = at,
                    Appended::Behind(entries) => position = entries.last().expect("at least one").position,
                    Appended::Truncated => panic!("entries are kept"),
                }
            }
        }
    };
    futures::future::join(count(one), count(other)).await;
    let head = "SELECT position::text FROM \"causeway_defaults\".log_head";
    assert_eq!(server.sql(head).await.expect("is asked"), ["100"]);
    // A trigger sees the settings of the session that appends.
    let trigger = "CREATE TABLE public.seen (settings text); \
        CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        INSERT INTO public.seen VALUES (current_setting('synchronous_commit') || ', ' || \
        current_setting('transaction_isolation')); RETURN NULL; END $$; \
        CREATE TRIGGER see AFTER UPDATE ON \"causeway_defaults\".log_head \
        FOR EACH ROW EXECUTE FUNCTION public.see()";
    server.sql(trigger).await.expect("is created");
    let log = server.open("defaults").await;
    let position = log.read(&mut |_, _| {}).expect("reads");
    assert!(matches!(log.append(position, put("y")).await.expect("appends"), Appended::At(_)));
    let seen = server.sql("SELECT settings FROM public.seen").await.expect("is asked");
    assert_eq!(seen, ["on, read committed"]);
    // Not by a later change either.
    for statement in ["ALTER SYSTEM SET synchronous_commit = local", "SELECT pg_reload_conf()"] {
        server.sql(statement).await.expect("is done");
    }
    crate::support::until("the setting is read", async || {
        server.sql("SHOW synchronous_commit").await.is_ok_and(|found| found == ["local"])
    })
    .await;
    let position = log.read(&mut |_, _| {}).expect("reads");
    assert!(matches!(log.append(position, put("z")).await.expect("appends"), Appended::At(_)));
    let seen = server.sql("SELECT settings FROM public.seen").await.expect("is asked");
    assert_eq!(seen, ["on, read committed"; 2]);
}
