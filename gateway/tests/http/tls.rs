//! Listeners with TLS, with a certificate from files.

use crate::certificate::{Encrypted, Files};
use crate::site::{PATIENCE, until};
use gateway::listen::drain::Drain;
use gateway::listen::server::{ConnectionLimits, serve};
use gateway::listen::tls::{Tls, TlsError};
use gateway::metrics::{CertificateMetrics, HttpMetrics};
use http_body_util::Full;
use prometheus_client::registry::Registry;
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, ProtocolVersion};
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A listener that answers every request with "fine".
struct Listener {
    files: Files,
    metrics: CertificateMetrics,
    tls: Arc<Tls>,
    address: SocketAddr,
    drain: Drain,
}

async fn listen() -> (Listener, CertificateDer<'static>) {
    let (files, certificate) = Files::new();
    let http = config::Http { header_timeout_seconds: 1, ..config::Http::default() };
    let metrics = CertificateMetrics::default();
    let (listener, limits) = files.watched_listener(&ConnectionLimits::of(&http), &metrics).await;
    let address = listener.local_addr().expect("is bound");
    let tls = limits.tls.clone().expect("TLS");
    let handler = |_, _| async { http::Response::new(Full::new(bytes::Bytes::from_static(b"fine"))) };
    let drain = Drain::default();
    let of_http = Arc::new(HttpMetrics::register(&mut Registry::default()));
    tokio::spawn(serve(listener, limits, of_http, drain.clone(), handler));
    (Listener { files, metrics, tls, address, drain }, certificate)
}

impl Listener {
    fn trusting(&self, certificate: &CertificateDer<'static>) -> Encrypted {
        Encrypted { address: self.address, certificate: certificate.clone() }
    }

    /// Sends a request on a new connection that trusts only this certificate.
    async fn ask(&self, trusted: &CertificateDer<'static>) -> Result<String, reqwest::Error> {
        let encrypted = self.trusting(trusted);
        encrypted.client().build().expect("builds").get(encrypted.url("/")).send().await?.text().await
    }

    /// Waits until the listener has this certificate.
    async fn until_used(&self, trusted: &CertificateDer<'static>) {
        let using = async { while self.ask(trusted).await.is_err() {} };
        tokio::time::timeout(PATIENCE, using).await.expect("the certificate is used in time");
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_used_and_an_invalid_one_is_not() {
    let (listener, first) = listen().await;
    assert_eq!(listener.ask(&first).await.expect("answers"), "fine");
    // Detected without a signal.
    let second = listener.files.renew();
    listener.until_used(&second).await;
    listener.ask(&first).await.expect_err("it is another's now");
    assert_eq!(listener.metrics.failures.get(), 0);
    // Invalid files change nothing.
    std::fs::write(listener.files.certificate(), "nonsense").expect("writes");
    until(|| listener.metrics.failures.get() == 1, "a failed reload").await;
    assert_eq!(listener.ask(&second).await.expect("answers"), "fine");
    // They are read again only when they change, or on request.
    listener.tls.reload();
    until(|| listener.metrics.failures.get() == 2, "another failed reload").await;
    let third = listener.files.renew();
    listener.until_used(&third).await;
}

#[tokio::test]
async fn the_expiry_of_the_certificate_is_a_metric() {
    let (listener, _) = listen().await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let now = i64::try_from(now).expect("fits");
    // rcgen's default is the year 4096.
    until(|| listener.metrics.expiry.get() > now, "an expiry").await;
    let key = rcgen::KeyPair::generate().expect("makes");
    let mut short = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("names");
    short.not_after = rcgen::date_time_ymd(2031, 2, 3);
    let pem = short.self_signed(&key).expect("signs").pem();
    std::fs::write(listener.files.certificate(), pem).expect("writes");
    std::fs::write(listener.files.key(), key.serialize_pem()).expect("writes");
    listener.tls.reload();
    until(|| listener.metrics.expiry.get() == 1_927_843_200, "the expiry of the new certificate").await;
}

#[tokio::test]
async fn sessions_are_resumed_in_both_versions() {
    let (listener, certificate) = listen().await;
    let encrypted = listener.trusting(&certificate);
    for (version, expected) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
        let config = encrypted.trusting(&[version], &["http/1.1"]);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let mut stream = encrypted.connect(&config).await.expect("shakes hands");
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("sends");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an orderly end");
            assert!(answer.ends_with("fine"), "{answer}");
            let session = stream.get_ref().1;
            assert_eq!(session.protocol_version(), Some(expected));
            kinds.push(session.handshake_kind());
        }
        assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)], "{expected:?}");
    }
}

#[tokio::test]
async fn http2_is_spoken_only_where_it_is_turned_on() {
    let (files, certificate) = Files::new();
    for (http2, expected) in [(true, http::Version::HTTP_2), (false, http::Version::HTTP_11)] {
        let (listener, limits) = files.listener(&ConnectionLimits::of(&config::Http::default()), http2).await;
        let address = listener.local_addr().expect("is bound");
        let handler = |_, _| async { http::Response::new(Full::new(bytes::Bytes::from_static(b"fine"))) };
        let metrics = Arc::new(HttpMetrics::register(&mut Registry::default()));
        tokio::spawn(serve(listener, limits, metrics, Drain::default(), handler));
        let encrypted = Encrypted { address, certificate: certificate.clone() };
        let response = encrypted.client().build().expect("builds").get(encrypted.url("/")).send().await;
        assert_eq!(response.expect("answers").version(), expected);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn requests_are_answered_while_a_certificate_is_read() {
    let (listener, certificate) = listen().await;
    let (path, aside) = (listener.files.key(), listener.files.dir.path().join("aside.pem"));
    let key = std::fs::read(&path).expect("reads");
    std::fs::rename(&path, &aside).expect("moves");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().is_ok_and(|status| status.success()));
    let (is_read, begun) = tokio::sync::oneshot::channel();
    let (answered, awaited) = std::sync::mpsc::channel();
    // The read ends only when this thread has written the key. A later one finds the file.
    let writer = std::thread::spawn(move || {
        let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("is being read");
        std::fs::rename(aside, path).expect("moves");
        is_read.send(()).expect("is awaited");
        let was_answered = awaited.recv_timeout(Duration::from_secs(10)).is_ok();
        file.write_all(&key).expect("writes");
        was_answered
    });
    listener.tls.reload();
    begun.await.expect("is read");
    let answer = listener.ask(&certificate).await;
    _ = answered.send(());
    assert!(writer.join().expect("no panic"), "the runtime was blocked");
    assert_eq!(answer.expect("answers"), "fine");
}

#[tokio::test]
async fn clients_without_tls_are_disconnected() {
    let (listener, _) = listen().await;
    p2p_bridge::tls::use_ring();
    let plain = reqwest::get(format!("http://{}/", listener.address)).await;
    plain.expect_err("no plain answer comes from there");
    let mut silent = TcpStream::connect(listener.address).await.expect("connects");
    let mut read = Vec::new();
    // The timeout of a head applies to the handshake.
    let ended = tokio::time::timeout(Duration::from_secs(30), silent.read_to_end(&mut read)).await;
    assert!(ended.is_ok() && read.is_empty(), "{ended:?} {read:?}");
    assert!(listener.drain.finish(Duration::from_secs(30)).await, "nothing is left open");
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
        let loaded = Tls::load(Files::of(certificate, key, true));
        let error = loaded.err().unwrap_or_else(|| panic!("{certificate:?} {key:?} is refused"));
        assert_eq!(of_certificate(&error), is_certificate, "{error}");
        let named = if is_certificate { certificate } else { key };
        assert!(error.to_string().contains(&named.display().to_string()), "{error}");
    }
}
