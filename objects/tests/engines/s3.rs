//! TLS, addressing, refusals.

use crate::server::{BUCKET, KEY_ID, Server, open};
use crate::support::{assert_refused, assert_unavailable, certificate};
use bytes::Bytes;
use futures::StreamExt as _;
use objects::{Addressing, Environment, ObjectError, Objects, StoreOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The domain of the server.
const DOMAIN: &str = "s3.example";

/// The arguments of a server with a certificate for the domain.
fn certified(folder: &Path) -> Vec<String> {
    let files = certificate(folder, &[DOMAIN, &format!("*.{DOMAIN}")]);
    let path = |path: &Path| path.display().to_string();
    let args = ["--cert", &path(&files.certificate), "--key", &path(&files.key), "--virtual-domain", DOMAIN];
    args.map(str::to_owned).to_vec()
}

/// An operation of each kind.
async fn works(objects: &dyn Objects, name: &str) {
    objects.put(name, Bytes::from_static(b"data")).await.expect("puts");
    assert_eq!(objects.get(name).await, Ok(Some(Bytes::from_static(b"data"))));
    assert!(objects.list(name).next().await.expect("one").is_ok_and(|object| object.name == name));
    objects.delete(name).await.expect("deletes");
    assert_eq!(objects.get(name).await, Ok(None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_proves_its_name_in_both_styles() {
    let mut ca = PathBuf::new();
    let server = Server::with(|folder| {
        ca = folder.join("ca.pem");
        certified(folder)
    })
    .await;
    let address = SocketAddr::from(([127, 0, 0, 1], server.port));
    let options = |host: &str, addressing, ca: &Path| StoreOptions {
        endpoint: format!("https://{host}:{}", server.port),
        addresses: vec![(host.to_owned(), address), (format!("{BUCKET}.{host}"), address)],
        addressing,
        ca: ca.to_owned(),
        ..server.options()
    };
    works(&*open(&options(DOMAIN, Addressing::Path, &ca)), "path").await;
    works(&*open(&options(DOMAIN, Addressing::VirtualHost, &ca)), "v1/host").await;

    let other = open(&options("s3.other", Addressing::Path, &ca));
    assert_refused(other.get("a").await, "certificate");
    let unknown = open(&options(DOMAIN, Addressing::Path, Path::new("")));
    assert_refused(unknown.put("a", Bytes::new()).await, "certificate");
    assert_refused(unknown.list("").next().await.expect("an error"), "certificate");

    // A server without TLS, and a client without it.
    let plain = Server::start().await;
    let mut wrong = StoreOptions { attempts: 2, ..options(DOMAIN, Addressing::Path, &ca) };
    wrong.addresses[0].1.set_port(plain.port);
    wrong.endpoint = format!("https://{DOMAIN}:{}", plain.port);
    assert_unavailable(open(&wrong).get("a").await, "2 attempts");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_say_what_to_do() {
    let server = Server::start().await;
    let of = |bucket: &str, options: &StoreOptions| -> Arc<dyn Objects> {
        objects::open(&format!("s3://{bucket}/p"), options).expect("the options are valid")
    };
    let with = |id: &str, secret: &str| StoreOptions {
        environment: Environment::of([("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", secret)]),
        ..server.options()
    };
    let table = [
        (of("no-such-bucket", &server.options()), "bucket does not exist"),
        (of(BUCKET, &with("unknown", "secret")), "access key"),
        (of(BUCKET, &with(KEY_ID, "wrong")), "secret key is wrong"),
        (of(BUCKET, &StoreOptions { region: "eu-north-9".to_owned(), ..server.options() }), "region"),
    ];
    for (objects, words) in table {
        assert_refused(objects.get("a").await, words);
        assert_refused(objects.put("a", Bytes::from_static(b"x")).await, words);
        assert_refused(objects.delete("a").await, words);
        let mut listing = objects.list("a");
        assert_refused(listing.next().await.expect("an error"), words);
        assert!(listing.next().await.is_none());
        assert!(!format!("{objects:?}").contains("secret"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_goes_away_and_comes_back() {
    let mut server = Server::start().await;
    let options = StoreOptions { attempts: 2, ..server.options() };
    let objects = open(&options);
    works(&*objects, "before").await;
    objects.put("stays", Bytes::from_static(b"here")).await.expect("puts");
    server.stop();
    for result in [objects.get("stays").await.map(|_| ()), objects.put("b", Bytes::new()).await] {
        assert_unavailable(result, "refused");
    }
    let listed: Option<Result<_, ObjectError>> = objects.list("").next().await;
    assert_unavailable(listed.expect("an error"), "LIST");
    server.restart().await;
    assert_eq!(objects.get("stays").await, Ok(Some(Bytes::from_static(b"here"))));
    works(&*objects, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_outlive_a_restart_of_the_server() {
    let mut server = Server::start().await;
    let options = StoreOptions { attempts: 1_000, deadline: Duration::from_secs(30), ..server.options() };
    let objects = open(&StoreOptions { backoff_max: Duration::from_millis(50), ..options });
    server.stop();
    let putting = tokio::spawn({
        let objects = Arc::clone(&objects);
        async move { objects.put("patient", Bytes::from_static(b"x")).await }
    });
    server.restart().await;
    putting.await.expect("no panic").expect("puts");
    assert_eq!(objects.get("patient").await, Ok(Some(Bytes::from_static(b"x"))));
}
