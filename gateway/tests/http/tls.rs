//! A listener with TLS, with a certificate from files.

use gateway::listen::server::{ConnectionLimits, Drain, serve};
use gateway::listen::tls::{Tls, TlsError};
use gateway::metrics::HttpMetrics;
use http_body_util::Full;
use prometheus_client::registry::Registry;
use rcgen::CertifiedKey;
use reqwest::{Certificate, Client};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

/// The files of a certificate and its key.
struct Files {
    dir: TempDir,
}

impl Files {
    /// Files with a new certificate.
    fn new() -> (Self, Certificate) {
        let files = Self { dir: tempfile::tempdir().expect("a folder") };
        let certificate = files.renew();
        (files, certificate)
    }

    /// Replaces the certificate.
    fn renew(&self) -> Certificate {
        let CertifiedKey { cert, key_pair } =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("makes");
        for (path, pem) in [(self.key(), key_pair.serialize_pem()), (self.certificate(), cert.pem())] {
            let partial = path.with_extension("partial");
            std::fs::write(&partial, pem).expect("writes");
            std::fs::rename(partial, path).expect("moves");
        }
        Certificate::from_pem(cert.pem().as_bytes()).expect("a certificate")
    }

    fn certificate(&self) -> PathBuf {
        self.dir.path().join("certificate.pem")
    }

    fn key(&self) -> PathBuf {
        self.dir.path().join("key.pem")
    }
}

/// A listener that answers every request with "fine".
async fn listen(files: &Files) -> (SocketAddr, Drain) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    let http = config::Http { header_timeout_seconds: 1, ..config::Http::default() };
    let tls = Tls::load(&files.certificate(), &files.key()).expect("a certificate and its key");
    let limits = ConnectionLimits { tls: Some(Arc::new(tls)), ..ConnectionLimits::of(&http) };
    let metrics = Arc::new(HttpMetrics::register(&mut Registry::default()));
    let handler = |_, _| async { http::Response::new(Full::new(bytes::Bytes::from_static(b"fine"))) };
    let drain = Drain::default();
    tokio::spawn(serve(listener, limits, metrics, drain.clone(), handler));
    (address, drain)
}

/// Sends a request on a new connection that trusts only this certificate.
async fn ask(address: SocketAddr, trusted: &Certificate) -> Result<String, reqwest::Error> {
    p2p_bridge::tls::use_ring();
    let client = Client::builder().tls_certs_only([trusted.clone()]).resolve("localhost", address).no_proxy().build();
    let url = format!("https://localhost:{}/", address.port());
    client.expect("builds").get(url).send().await?.text().await
}

#[tokio::test]
async fn requests_succeed_and_a_renewed_certificate_is_used_at_once() {
    let (files, first) = Files::new();
    let (address, _drain) = listen(&files).await;
    assert_eq!(ask(address, &first).await.expect("answers"), "fine");
    let second = files.renew();
    assert_eq!(ask(address, &second).await.expect("answers"), "fine");
    ask(address, &first).await.expect_err("it is another's now");
    // Invalid files change nothing.
    std::fs::write(files.certificate(), "nonsense").expect("writes");
    assert_eq!(ask(address, &second).await.expect("answers"), "fine");
}

#[tokio::test(flavor = "current_thread")]
async fn other_tasks_run_while_a_certificate_is_read() {
    let (files, certificate) = Files::new();
    let (address, _drain) = listen(&files).await;
    let (key, path) = (std::fs::read(files.key()).expect("reads"), files.key());
    std::fs::remove_file(&path).expect("removes");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().is_ok_and(|status| status.success()));
    let (is_read, begun) = tokio::sync::oneshot::channel();
    let (another_task_runs, awaited) = std::sync::mpsc::channel();
    // The read ends only when this thread has written the key.
    let writer = std::thread::spawn(move || {
        let mut file = std::fs::OpenOptions::new().write(true).open(path).expect("is being read");
        is_read.send(()).expect("is awaited");
        let ran = awaited.recv_timeout(Duration::from_secs(10)).is_ok();
        file.write_all(&key).expect("writes");
        ran
    });
    let another_task = async {
        begun.await.expect("is read");
        another_task_runs.send(()).is_ok()
    };
    let (_, answer) = tokio::join!(another_task, ask(address, &certificate));
    assert!(writer.join().expect("no panic"), "the runtime was blocked");
    assert_eq!(answer.expect("answers"), "fine");
}

#[tokio::test]
async fn clients_without_tls_are_disconnected() {
    let (files, _) = Files::new();
    let (address, drain) = listen(&files).await;
    let plain = reqwest::get(format!("http://{address}/")).await;
    plain.expect_err("no plain answer comes from there");
    let mut silent = TcpStream::connect(address).await.expect("connects");
    let mut read = Vec::new();
    // The timeout of a head applies to the handshake.
    let ended = tokio::time::timeout(Duration::from_secs(30), silent.read_to_end(&mut read)).await;
    assert!(ended.is_ok() && read.is_empty(), "{ended:?} {read:?}");
    assert!(drain.finish(Duration::from_secs(30)).await, "nothing is left open");
}

#[test]
fn errors_name_the_invalid_file() {
    let ((one, _), (other, _)) = (Files::new(), Files::new());
    let nowhere = one.dir.path().join("nowhere.pem");
    let empty = one.dir.path().join("empty.pem");
    std::fs::write(&empty, "").expect("writes");
    let of_certificate = |error: &TlsError| matches!(error, TlsError::Certificate { .. });
    let table = [
        (&nowhere, &one.key(), true),
        (&empty, &one.key(), true),
        (&one.key(), &one.key(), true),
        (&one.certificate(), &nowhere, false),
        (&one.certificate(), &empty, false),
        (&one.certificate(), &other.key(), false),
    ];
    for (certificate, key, is_certificate) in table {
        let error = Tls::load(certificate, key).err().unwrap_or_else(|| panic!("{certificate:?} {key:?} is refused"));
        assert_eq!(of_certificate(&error), is_certificate, "{error}");
        let named = if is_certificate { certificate } else { key };
        assert!(error.to_string().contains(&named.display().to_string()), "{error}");
    }
}
