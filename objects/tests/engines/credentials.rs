//! Files, the environment, the metadata service.

use crate::server::{KEY_ID, SECRET, Server, open};
use crate::support::{assert_refused, assert_unavailable, certificate};
use bytes::Bytes;
use objects::{Credentials, Environment, StoreOptions};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

#[tokio::test(flavor = "multi_thread")]
async fn keys_in_a_file_are_rotated_without_a_restart() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("credentials");
    let write = |secret: &str| {
        let keys = format!("aws_access_key_id = {KEY_ID}\naws_secret_access_key = {secret}\n");
        std::fs::write(&file, format!("[other]\nregion = x\n\n[site]\n{keys}")).expect("writes");
    };
    write("former-secret");
    let named = Credentials::File { path: file.clone(), profile: "site".to_owned() };
    let objects = open(&StoreOptions { credentials: named, ..server.options() });
    assert_refused(objects.put("a", Bytes::new()).await, "secret key is wrong");
    write(SECRET);
    objects.put("a", Bytes::from_static(b"x")).await.expect("puts");
    std::fs::write(&file, "[site]\nhalf").expect("writes");
    assert_eq!(objects.get("a").await, Ok(Some(Bytes::from_static(b"x"))), "the former keys remain");

    // The same by the variables of the environment.
    write(SECRET);
    let path = file.display().to_string();
    let environment = Environment::of([("AWS_SHARED_CREDENTIALS_FILE", path.as_str()), ("AWS_PROFILE", "site")]);
    let automatic = StoreOptions { credentials: Credentials::Automatic, environment, ..server.options() };
    assert_eq!(open(&automatic).get("a").await, Ok(Some(Bytes::from_static(b"x"))));
    let wrong = Environment::of([("AWS_SHARED_CREDENTIALS_FILE", path.as_str()), ("AWS_PROFILE", "absent")]);
    let error =
        objects::open("s3://bucket", &StoreOptions { environment: wrong, ..automatic }).expect_err("is refused");
    assert!(error.to_string().contains("[absent]") && !error.to_string().contains(SECRET), "{error}");
}

/// What the metadata service does.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Gives(&'static str),
    HasNoRole,
    IsBusy,
}

/// A metadata service of instances (IMDSv2) and of containers, which ends with this.
struct Metadata {
    port: u16,
    mode: Arc<Mutex<Mode>>,
    requests: Arc<Mutex<Vec<String>>>,
    accepting: JoinHandle<()>,
}

impl Metadata {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (mode, requests) = (Arc::new(Mutex::new(Mode::Gives(SECRET))), Arc::new(Mutex::new(Vec::new())));
        let (theirs, log) = (Arc::clone(&mode), Arc::clone(&requests));
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mode = *theirs.lock().expect("no panic");
                tokio::spawn(answer(client, mode, Arc::clone(&log)));
            }
        });
        Self { port, mode, requests, accepting }
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().expect("no panic") = mode;
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers one request.
async fn answer(mut client: TcpStream, mode: Mode, log: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match client.read(&mut buffer).await {
            Ok(read @ 1..) => request.extend_from_slice(&buffer[..read]),
            _ => return,
        }
    }
    let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
    let line = text.lines().next().unwrap_or_default().trim_end_matches(" http/1.1").to_owned();
    let has = |header: &str| text.lines().any(|line| line == header);
    let keys = |secret: &str| {
        format!(
            "{{\"Code\":\"Success\",\"AccessKeyId\":\"{KEY_ID}\",\"SecretAccessKey\":\"{secret}\",\"Token\":\"\",\
             \"Expiration\":\"2100-01-01T00:00:00Z\"}}"
        )
    };
    let (status, body) = match (line.as_str(), mode) {
        (_, Mode::IsBusy) => ("503 Busy", String::new()),
        ("put /latest/api/token", _) if has("x-aws-ec2-metadata-token-ttl-seconds: 600") => {
            ("200 OK", "session".to_owned())
        }
        ("get /container", Mode::Gives(secret)) if has("authorization: container-token") => ("200 OK", keys(secret)),
        _ if !has("x-aws-ec2-metadata-token: session") => ("401 Unauthorized", String::new()),
        (_, Mode::HasNoRole) => ("404 Not Found", "<html>".to_owned()),
        ("get /latest/meta-data/iam/security-credentials/", _) => ("200 OK", "gateway".to_owned()),
        ("get /latest/meta-data/iam/security-credentials/gateway", Mode::Gives(secret)) => ("200 OK", keys(secret)),
        _ => ("404 Not Found", String::new()),
    };
    log.lock().expect("no panic").push(line);
    let len = body.len();
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}");
    _ = client.write_all(answer.as_bytes()).await;
    _ = client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_get_keys_from_the_metadata_service() {
    let server = Server::start().await;
    let metadata = Metadata::start().await;
    let endpoint = format!("http://127.0.0.1:{}/", metadata.port);
    let options = StoreOptions {
        credentials: Credentials::Metadata { endpoint },
        environment: Environment::of([]),
        attempts: 2,
        ..server.options()
    };
    metadata.set(Mode::HasNoRole);
    let objects = open(&options);
    assert_refused(objects.put("a", Bytes::new()).await, "Does this machine have a role");
    assert_refused(objects.get("a").await, "Does this machine have a role");
    metadata.set(Mode::IsBusy);
    assert_unavailable(objects.get("a").await, "503");
    metadata.set(Mode::Gives(SECRET));
    objects.put("a", Bytes::from_static(b"x")).await.expect("puts");
    metadata.requests.lock().expect("no panic").clear();
    assert_eq!(objects.get("a").await, Ok(Some(Bytes::from_static(b"x"))));
    assert!(metadata.requests.lock().expect("no panic").is_empty(), "keys are used until they expire");
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_get_keys_with_their_token() {
    let server = Server::start().await;
    let metadata = Metadata::start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let token = dir.path().join("token");
    std::fs::write(&token, "container-token").expect("writes");
    let (uri, token) = (format!("http://127.0.0.1:{}/container", metadata.port), token.display().to_string());
    let environment = Environment::of([
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.as_str()),
    ]);
    let options = StoreOptions { credentials: Credentials::Automatic, environment, ..server.options() };
    open(&options).put("a", Bytes::from_static(b"x")).await.expect("puts");
    assert_eq!(server.objects().get("a").await, Ok(Some(Bytes::from_static(b"x"))));
}

/// A token service (STS), which is always reached with TLS.
async fn token_service(folder: &Path) -> (u16, PathBuf) {
    let files = certificate(folder, &["localhost"]);
    let certificates = vec![CertificateDer::from_pem_file(&files.certificate).expect("is one")];
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("is one");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.expect("is valid").with_no_client_auth().with_single_cert(certificates, key);
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("is valid")));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(mut client) = acceptor.accept(client).await else { continue };
            let mut request = vec![0; 4096];
            let read = client.read(&mut request).await.unwrap_or_default();
            let request = String::from_utf8_lossy(&request[..read]).into_owned();
            let is_right = ["Action=AssumeRoleWithWebIdentity", "RoleArn=the-role", "WebIdentityToken=pod-token"]
                .iter()
                .all(|parameter| request.contains(parameter));
            let (status, body) = match is_right {
                true => ("200 OK", SESSION.replace("ID", KEY_ID).replace("SECRET", SECRET)),
                false => ("403 Forbidden", String::new()),
            };
            let len = body.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}");
            _ = client.write_all(answer.as_bytes()).await;
            _ = client.shutdown().await;
        }
    });
    (port, files.ca)
}

/// What the token service gives.
const SESSION: &str = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
    <SessionToken></SessionToken><SecretAccessKey>SECRET</SecretAccessKey><AccessKeyId>ID</AccessKeyId>\
    <Expiration>2100-01-01T00:00:00Z</Expiration>\
    </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_keys_for_their_identity() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let token = dir.path().join("token");
    let (port, ca) = token_service(dir.path()).await;
    let (sts, path) = (format!("https://localhost:{port}"), token.display().to_string());
    let environment = Environment::of([
        ("AWS_WEB_IDENTITY_TOKEN_FILE", path.as_str()),
        ("AWS_ROLE_ARN", "the-role"),
        ("AWS_ENDPOINT_URL_STS", sts.as_str()),
    ]);
    let options = StoreOptions { credentials: Credentials::Automatic, environment, ca, ..server.options() };
    let objects = open(&options);
    std::fs::write(&token, "another-token").expect("writes");
    assert_refused(objects.put("a", Bytes::new()).await, "no credentials");
    std::fs::write(&token, "pod-token").expect("writes");
    objects.put("a", Bytes::from_static(b"x")).await.expect("puts");
    assert_eq!(server.objects().get("a").await, Ok(Some(Bytes::from_static(b"x"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_metadata_service_that_is_away_is_no_reason_to_give_up() {
    let server = Server::start().await;
    let credentials = Credentials::Metadata { endpoint: "http://127.0.0.1:1".to_owned() };
    let options = StoreOptions { credentials, environment: Environment::of([]), attempts: 2, ..server.options() };
    assert_unavailable(open(&options).get("a").await, "refused");
}
