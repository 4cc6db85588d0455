//! What a server has to prove.

use crate::support::{Postgres, until};
use cache::metadata_store::MetadataLog as _;
use site::database::{Database, DatabaseError, DatabaseLog, DatabaseOptions, LogOptions};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// A server with a certificate for `localhost`, and the file of its authority.
async fn certified() -> (Postgres, PathBuf) {
    let mut server = Postgres::start().await;
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("is created");
    let (certificate, key) = (server.data().join("server.crt"), server.data().join("server.key"));
    fs::write(&certificate, certified.cert.pem()).expect("the folder is ours");
    fs::write(&key, certified.signing_key.serialize_pem()).expect("the folder is ours");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the file is ours");
    // The server owns its key.
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(server.data()).expect("is there"));
    std::os::unix::fs::chown(&key, Some(owner), None).expect("is ours");
    let settings = fs::read_to_string(server.data().join("causeway.conf")).expect("is ours");
    fs::write(server.data().join("causeway.conf"), format!("{settings}ssl = on\n")).expect("is ours");
    server.stop();
    server.restart().await;
    (server, certificate)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_proves_its_name_by_a_certificate() {
    let (server, authority) = certified().await;
    let url = |host: &str| format!("postgresql://causeway@{host}:{}/postgres?sslmode=require", server.port);
    let table = [
        (url("localhost"), authority.clone(), None),
        (url("127.0.0.1"), authority, Some("certificate")),
        (url("localhost"), PathBuf::new(), Some("certificate")),
    ];
    for (url, ca, expected) in table {
        let options = DatabaseOptions { site: "tls".to_owned(), url: url.clone(), ca };
        let database = Database::new(&options).expect("the settings are valid");
        match (DatabaseLog::open(database, LogOptions::default()).await, expected) {
            (Ok(log), None) => {
                log.read(&mut |_, _| {}).expect("reads");
                let plain = "SELECT count(*)::text FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                    WHERE application_name = 'causeway' AND NOT ssl";
                let encrypted = plain.replace("NOT ssl", "ssl");
                assert_eq!(server.sql(plain).await.expect("is asked"), ["0"]);
                assert_ne!(server.sql(&encrypted).await.expect("is asked"), ["0"]);
            }
            (Err(error @ DatabaseError::Unreachable { .. }), Some(words)) => {
                assert!(error.to_string().contains(words), "{url}: {error}");
            }
            (opened, _) => panic!("{url}: {opened:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_where_it_is_required() {
    let server = Postgres::start().await;
    let url = format!("postgresql://causeway@localhost:{}/postgres?sslmode=require", server.port);
    let options = DatabaseOptions { url, ..server.options("plain") };
    let database = Database::new(&options).expect("the settings are valid");
    let error = DatabaseLog::open(database, LogOptions::default()).await.expect_err("is not encrypted");
    assert!(error.to_string().contains("TLS"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_proved_and_not_shown() {
    let server = Postgres::start().await;
    server.sql("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right one'").await.expect("is created");
    let rules = server.data().join("pg_hba.conf");
    fs::write(&rules, "local all all trust\nhost all all all scram-sha-256\n").expect("is ours");
    server.sql("SELECT pg_reload_conf()").await.expect("is done");
    let open = async |password: &str| {
        let url = format!("postgresql://guarded:{password}@127.0.0.1:{}/postgres", server.port);
        let database = Database::new(&DatabaseOptions { url, ..server.options("guarded") });
        DatabaseLog::open(database.expect("the settings are valid"), LogOptions::default()).await
    };
    until("the rules are read", async || open("wrong").await.is_err()).await;
    let error = open("wrong").await.expect_err("is refused");
    assert!(error.to_string().contains("password authentication failed"), "{error}");
    assert!(!format!("{error} {error:?}").contains("wrong"), "{error:?}");
    let log = open("right%20one").await.expect("is accepted");
    log.read(&mut |_, _| {}).expect("reads");
}
