//! A site that is opened from its settings.

use crate::server::{BUCKET, KEY_ID, SECRET, Server};
use crate::support::{Postgres, records, until};
use cache::metadata_store::{Appended, Change, LogPosition, MetadataLog as _};
use config::{Secret, Site};
use content::{Block, Cid, codec, hashes};
use services::pinning::coordination::{Claimed, Claims as _};
use site::database::Database;
use site::{Engines, OpenError};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// The settings of a site whose objects are in a folder.
fn settings(server: &Postgres, name: &str, folder: &Path) -> Site {
    let options = server.options(name);
    Site {
        name: name.to_owned(),
        database: Secret::from(&*options.url),
        store: format!("file://{}", folder.display()),
        ..Site::default()
    }
}

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

async fn open(settings: &Site) -> Engines {
    site::open(settings).await.expect("opens")
}

/// Asserts that a site is not opened because of a setting, in a sentence with these words.
async fn assert_refused(settings: &Site, setting: &str, words: &str) {
    let error: OpenError = site::open(settings).await.expect_err(words);
    assert_eq!(error.setting, setting, "{error}");
    let text = error.to_string();
    assert!(text.contains(words) && !text.contains('\n'), "{words:?} is not in: {text}");
    for secret in ["hunter2", SECRET] {
        assert!(!format!("{text} {error:?}").contains(secret), "{text}");
    }
}

fn root() -> Cid {
    *Block::of(codec::RAW, hashes::SHA2_256, 32, "root".into()).expect("a block").cid()
}

/// Two gateways share pins, claims and blocks.
async fn assert_shared(one: &Engines, other: &Engines) {
    let change = Change::Put("key".into(), "content".into());
    let appended = one.log.append(LogPosition::default(), vec![change]).await.expect("appends");
    assert!(matches!(appended, Appended::At(LogPosition { number: 1, .. })), "{appended:?}");
    assert_eq!(records(&other.log), [("key".to_owned(), "content".to_owned())]);
    let claimed = one.claims.claim(&root()).await.expect("is asked");
    assert!(matches!(claimed, Claimed::Granted(_)), "{claimed:?}");
    let claimed = other.claims.claim(&root()).await.expect("is asked");
    assert!(matches!(claimed, Claimed::Held { .. }), "{claimed:?}");
    one.blocks.begin_pin(root(), None).await.expect("begins");
    assert!(other.blocks.pin(root()).await.expect("is asked").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_with_the_same_settings_are_one_site() {
    let (server, dir) = (Postgres::start().await, folder());
    // The longest name that the settings allow.
    let settings = settings(&server, &"x".repeat(40), dir.path());
    let (one, other) = (open(&settings).await, open(&settings).await);
    assert_shared(&one, &other).await;
    assert!(one.database_name.contains(&format!("127.0.0.1:{}", server.port)), "{}", one.database_name);
    assert_eq!(*one.store_name, settings.store);
    // With the URL in a file.
    let file = dir.path().join("url");
    fs::write(&file, format!("{}\n", server.options("x").url)).expect("writes");
    let from_file = Site { database: Secret::default(), database_file: file, ..settings };
    let third = open(&from_file).await;
    assert_eq!(records(&third.log).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_belongs_to_one_site() {
    let (server, dir, empty) = (Postgres::start().await, folder(), folder());
    let berlin = settings(&server, "berlin", dir.path());
    drop(open(&berlin).await);
    let munich = settings(&server, "munich", dir.path());
    assert_refused(&munich, "site.store", "needs a folder, or a prefix of a bucket, of its own").await;
    // Another database that has a site of the same name.
    server.sql("CREATE DATABASE other").await.expect("is created");
    let url = server.options("berlin").url.replace("/postgres", "/other");
    let of_other = Site { database: Secret::from(&*url), ..berlin.clone() };
    assert_refused(&of_other, "site.store", "the store is that of the site").await;
    // What a folder looks like whose file system is not mounted.
    let unmounted = Site { store: format!("file://{}", empty.path().display()), ..berlin.clone() };
    assert_refused(&unmounted, "site.store", "is the file system mounted").await;
    assert_eq!(fs::read_dir(empty.path()).expect("reads").count(), 0, "nothing is written");
    let foreign = folder();
    fs::write(foreign.path().join("file"), "of another program").expect("writes");
    let foreign = settings(&server, "new", foreign.path());
    assert_refused(&foreign, "site.store", "use an empty folder").await;
    drop(open(&berlin).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_be_used_are_named() {
    let (server, dir) = (Postgres::start().await, folder());
    let valid = settings(&server, "wrong", dir.path());
    let missing = dir.path().join("missing");
    let s3 = |change: fn(&mut Site)| {
        let mut settings = Site { store: "s3://bucket".to_owned(), ..valid.clone() };
        change(&mut settings);
        settings
    };
    let table = [
        (Site { database: Secret::from("postgresql:///hunter2"), ..valid.clone() }, "site.database", "names no host"),
        (
            Site { database: Secret::default(), database_file: missing.clone(), ..valid.clone() },
            "site.database_file",
            "missing cannot be used",
        ),
        (Site { database_ca: missing.clone(), ..valid.clone() }, "site.database_ca", "certificates in"),
        (
            Site { store: format!("file://{}", missing.display()), ..valid.clone() },
            "site.store",
            "is the file system mounted? It is not created",
        ),
        (s3(|settings| settings.store = "s3://B".to_owned()), "site.store", "3 to 63 lowercase letters"),
        (s3(|settings| settings.s3_endpoint = "http://s3.example".to_owned()), "site.s3_endpoint", "allow_http"),
        (s3(|settings| settings.s3_ca = "/missing/ca.pem".into()), "site.s3_ca", "/missing/ca.pem"),
        (
            s3(|settings| settings.s3_credentials_file = "/missing/keys".into()),
            "site.s3_credentials_file",
            "/missing/keys",
        ),
    ];
    for (settings, setting, words) in table {
        assert_refused(&settings, setting, words).await;
    }
    assert!(!missing.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_be_used_is_reported_without_its_password() {
    let (mut server, dir) = (Postgres::start().await, folder());
    let valid = settings(&server, "guarded", dir.path());
    drop(open(&valid).await);
    for statement in [
        "CREATE ROLE guarded LOGIN PASSWORD 'right'",
        "CREATE SCHEMA \"causeway_newer\" AUTHORIZATION guarded",
        "CREATE TABLE \"causeway_newer\".version (single boolean DEFAULT true, version integer)",
        "INSERT INTO \"causeway_newer\".version (version) VALUES (99)",
        "GRANT SELECT ON \"causeway_newer\".version TO guarded",
    ] {
        server.sql(statement).await.expect("is done");
    }
    let rules = server.data().join("pg_hba.conf");
    fs::write(&rules, "local all all trust\nhost all all all scram-sha-256\n").expect("is ours");
    server.sql("SELECT pg_reload_conf()").await.expect("is done");
    let url = |password: &str, database: &str| {
        let url = format!("postgresql://guarded:{password}@127.0.0.1:{}/{database}", server.port);
        Secret::from(&*url)
    };
    let with = |name: &str, database: Secret| Site { name: name.to_owned(), database, ..valid.clone() };
    let wrong = with("guarded", url("hunter2", "postgres"));
    // Before that, the role lacks rights.
    let is_unproved = |error: &OpenError| error.to_string().contains("password authentication failed");
    until("the rules are read", async || site::open(&wrong).await.is_err_and(|error| is_unproved(&error))).await;
    assert_refused(&wrong, "site.database", "The user and the password in the URL").await;
    let table = [
        (with("guarded", url("right", "absent")), "Create the database"),
        (with("unprepared", url("right", "postgres")), "right to create a schema in the database"),
        (with("newer", url("right", "postgres")), "were written by a newer release"),
    ];
    for (settings, words) in &table {
        assert_refused(settings, "site.database", words).await;
    }
    server.stop();
    assert_refused(&wrong, "site.database", "cannot be reached").await;
    assert_refused(&wrong, "site.database", "A server has to run").await;
    let file = dir.path().join("url");
    fs::write(&file, wrong.database.reveal().expect("is set")).expect("writes");
    let from_file = Site { database: Secret::default(), database_file: file, ..wrong };
    assert_refused(&from_file, "site.database_file", "cannot be reached").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_is_the_storage_of_a_site() {
    let (server, s3, dir) = (Postgres::start().await, Server::start().await, folder());
    let keys = dir.path().join("keys");
    let write = |secret: &str| {
        let text = format!("[site]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {secret}\n");
        fs::write(&keys, text).expect("writes");
    };
    write(SECRET);
    let settings = |name: &str| Site {
        store: format!("s3://{BUCKET}/shared"),
        s3_endpoint: format!("http://127.0.0.1:{}", s3.port),
        s3_credentials_file: keys.clone(),
        s3_credentials_profile: "site".to_owned(),
        ..settings(&server, name, dir.path())
    };
    let (one, other) = (open(&settings("berlin")).await, open(&settings("berlin")).await);
    assert_shared(&one, &other).await;
    assert_refused(&settings("munich"), "site.store", "a prefix of a bucket, of its own").await;
    let absent = Site { store: "s3://absent".to_owned(), ..settings("munich") };
    assert_refused(&absent, "site.store", "the bucket does not exist").await;
    write("hunter2");
    assert_refused(&settings("berlin"), "site.store", "the secret key is wrong").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standbys_that_commits_do_not_wait_for_are_known() {
    let server = Postgres::start().await;
    let database = Database::new(&server.options("state")).expect("the settings are valid");
    let state = async || database.server_state().await.expect("is asked");
    assert!(!state().await.has_asynchronous_standbys);
    // The same machine.
    assert!(state().await.clock_difference < Duration::from_secs(1), "{:?}", state().await);
    let mut several = server.options("state");
    several.url = several.url.replace("/postgres", ",localhost/postgres");
    let several = Database::new(&several).expect("the settings are valid");
    assert!(several.server_state().await.expect("is asked").has_asynchronous_standbys);
    let _standby = server.standby().await;
    assert!(state().await.has_asynchronous_standbys);
    for statement in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
        server.sql(statement).await.expect("is done");
    }
    until("the setting is read", async || !state().await.has_asynchronous_standbys).await;
    assert!(!several.server_state().await.expect("is asked").has_asynchronous_standbys);
}
