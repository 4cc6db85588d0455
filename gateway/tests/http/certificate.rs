//! Certificates in files, and clients that trust them.

use gateway::listen::http3;
use gateway::listen::server::ConnectionLimits;
use gateway::listen::tls::{Tls, TlsFiles};
use gateway::metrics::CertificateMetrics;
use rcgen::CertifiedKey;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ALL_VERSIONS, ClientConfig, RootCertStore, SupportedProtocolVersion};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The names of all certificates.
const NAMES: [&str; 3] = ["localhost", "*.ipfs.localhost", "127.0.0.1"];

/// The files of a certificate and its key.
pub struct Files {
    pub dir: TempDir,
}

impl Files {
    /// Files with a new certificate.
    pub fn new() -> (Self, CertificateDer<'static>) {
        let files = Self { dir: tempfile::tempdir().expect("a folder") };
        let certificate = files.renew();
        (files, certificate)
    }

    /// Replaces the certificate.
    pub fn renew(&self) -> CertificateDer<'static> {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(NAMES.map(str::to_owned)).expect("makes");
        for (path, pem) in [(self.key(), signing_key.serialize_pem()), (self.certificate(), cert.pem())] {
            let partial = path.with_extension("partial");
            std::fs::write(&partial, pem).expect("writes");
            std::fs::rename(partial, path).expect("moves");
        }
        cert.der().clone()
    }

    pub fn certificate(&self) -> PathBuf {
        self.dir.path().join("certificate.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.dir.path().join("key.pem")
    }

    /// The settings of these files.
    pub fn of(certificate: &Path, key: &Path, http2: bool) -> TlsFiles {
        TlsFiles { certificate: certificate.to_owned(), key: key.to_owned(), http2, http3: true }
    }

    /// A bound socket, and the limits with which it serves this certificate.
    pub async fn listener(&self, limits: &ConnectionLimits, http2: bool) -> (TcpListener, ConnectionLimits) {
        let tls = Tls::load(Self::of(&self.certificate(), &self.key(), http2)).expect("a certificate and its key");
        let limits = ConnectionLimits { tls: Some(Arc::new(tls)), ..limits.clone() };
        (TcpListener::bind("127.0.0.1:0").await.expect("a free port"), limits)
    }

    /// The same with HTTP/2, and a socket for HTTP/3 at the same address.
    pub async fn listeners(&self, limits: &ConnectionLimits) -> (TcpListener, ConnectionLimits, UdpSocket) {
        loop {
            let (listener, limits) = self.listener(limits, true).await;
            let address = listener.local_addr().expect("is bound");
            // Another program may have the UDP port of the same number.
            if let Ok(socket) = UdpSocket::bind(address) {
                socket.set_nonblocking(true).expect("is set");
                let alt_svc = Some(http3::alt_svc(address.port()));
                return (listener, ConnectionLimits { alt_svc, ..limits }, socket);
            }
        }
    }

    /// The same as by [`Self::listener`], with reloads.
    pub async fn watched_listener(
        &self,
        limits: &ConnectionLimits,
        metrics: &CertificateMetrics,
    ) -> (TcpListener, ConnectionLimits) {
        let (listener, limits) = self.listener(limits, true).await;
        tokio::spawn(limits.tls.clone().expect("TLS").watch(metrics.clone()));
        (listener, limits)
    }
}

/// A listener with TLS.
pub struct Encrypted {
    pub address: SocketAddr,
    pub certificate: CertificateDer<'static>,
}

impl Encrypted {
    /// A client that trusts the certificate.
    pub fn client(&self) -> reqwest::ClientBuilder {
        p2p_bridge::tls::use_ring();
        let trusted = reqwest::Certificate::from_der(&self.certificate).expect("a certificate");
        let redirects = reqwest::redirect::Policy::none();
        reqwest::Client::builder().tls_certs_only([trusted]).redirect(redirects).no_proxy()
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    /// A client's configuration with these versions and ALPN protocols.
    pub fn trusting(&self, versions: &[&'static SupportedProtocolVersion], protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// A new connection.
    pub async fn connect(&self, config: &Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await.expect("connects");
        Self::encrypt(config, stream).await
    }

    async fn encrypt(config: &Arc<ClientConfig>, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::clone(config)).connect(name, stream).await
    }

    /// A new connection that speaks HTTP/2.
    pub async fn connect_http2(&self) -> TlsStream<TcpStream> {
        self.encrypt_http2(TcpStream::connect(self.address).await.expect("connects")).await
    }

    /// The same over a connected socket.
    pub async fn encrypt_http2(&self, stream: TcpStream) -> TlsStream<TcpStream> {
        let config = self.trusting(ALL_VERSIONS, &["h2"]);
        let stream = Self::encrypt(&config, stream).await.expect("shakes hands");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        stream
    }
}
