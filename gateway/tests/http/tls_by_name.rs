//! Listeners with TLS and certificates by ACME: which certificate a handshake gets, over TCP and QUIC. The certificates are stored ones;
//! the authority is never asked.

use crate::certificate::Files;
use config::{Flags, Loaded};
use content::ipns::Record;
use content::names::{Key, Name};
use content::{NameError, NameResolver, Resolution};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use gateway::listen::drain::Drain;
use gateway::listen::http3;
use gateway::listen::server::{ConnectionLimits, serve};
use gateway::listen::tls::{Tls, TlsFiles};
use gateway::metrics::HttpMetrics;
use http_body_util::Full;
use prometheus_client::registry::Registry;
use quinn::crypto::rustls::QuicClientConfig;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig, Error, RootCertStore};
use services::acme::store::Store;
use services::acme::{Acme, AcmeMetrics};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

const DIRECTORY: &str = "https://127.0.0.1:1/directory";
const HOSTS: &str = "gateway.example";
const WILDCARD: &str = "*.ipfs.gateway.example";

/// A resolver that knows no names.
struct NoNames;

impl NameResolver for NoNames {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        ready(Err(NameError::Offline { name: name.clone() })).boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        ready(Err(NameError::Offline { name: Name::Key(*key) })).boxed()
    }
}

/// A listener with stored certificates for [`HOSTS`] and [`WILDCARD`].
struct Listener {
    dir: TempDir,
    address: SocketAddr,
    quic: SocketAddr,
    certificates: [CertificateDer<'static>; 2],
    _drain: Drain,
}

fn settings(dir: &TempDir) -> Loaded {
    let mut loaded = config::load(&Flags::default(), []).expect("the defaults are valid");
    loaded.config.data_dir = dir.path().to_owned();
    let http = &mut loaded.config.http;
    http.acme_directory = DIRECTORY.to_owned();
    http.acme_names = [HOSTS, WILDCARD].map(str::to_owned).to_vec();
    http.acme_on_demand = true;
    loaded
}

fn stored(store: &Store, name: &str) -> CertificateDer<'static> {
    let key = KeyPair::generate().expect("is created");
    let certificate = CertificateParams::new([name.to_owned()]).and_then(|parameters| parameters.self_signed(&key));
    let certificate = certificate.expect("is signed");
    let pem = key.serialize_pem() + &certificate.pem();
    store.save(name, pem.as_bytes()).expect("is stored");
    certificate.der().clone()
}

async fn listen(files: Option<TlsFiles>) -> Listener {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Store::new(dir.path(), DIRECTORY);
    store.create().expect("creates");
    let certificates = [HOSTS, WILDCARD].map(|name| stored(&store, name));
    let loaded = settings(&dir);
    let metrics = AcmeMetrics::register(&mut Registry::default());
    let acme = Acme::open(&loaded, Arc::new(NoNames), metrics).expect("opens").expect("is turned on");
    assert_eq!(acme.missing(), [""; 0]);
    let tls = Tls::with_acme(files, acme, (false, true)).expect("TLS");
    let limits = ConnectionLimits { tls: Some(Arc::new(tls)), ..ConnectionLimits::of(&loaded.config.http) };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.set_nonblocking(true).expect("is set");
    let quic = socket.local_addr().expect("is bound");
    let handler = |_, _| async { http::Response::new(Full::new(bytes::Bytes::from_static(b"fine"))) };
    let drain = Drain::default();
    let of_http = Arc::new(HttpMetrics::register(&mut Registry::default()));
    tokio::spawn(http3::serve(socket, limits.clone(), Arc::clone(&of_http), drain.clone(), handler));
    tokio::spawn(serve(listener, limits, of_http, drain.clone(), handler));
    Listener { dir, address, quic, certificates, _drain: drain }
}

fn trusting(trusted: &CertificateDer<'static>, protocol: Option<&str>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocol.into_iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    config
}

impl Listener {
    /// The same as [`Self::shake`] over QUIC; whether it succeeds.
    async fn shakes_over_quic(&self, name: &str, trusted: &CertificateDer<'static>) -> bool {
        let tls = QuicClientConfig::try_from(trusting(trusted, Some("h3"))).expect("TLS 1.3");
        let endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let config = quinn::ClientConfig::new(Arc::new(tls));
        endpoint.connect_with(config, self.quic, name).expect("can connect").await.is_ok()
    }

    /// The result of a handshake for a name by a client that trusts this certificate.
    async fn shake(&self, name: &str, trusted: &CertificateDer<'static>, protocol: Option<&str>) -> Result<(), Error> {
        // An address is not sent as a name (RFC 6066, section 3).
        let config = trusting(trusted, protocol);
        let stream = TcpStream::connect(self.address).await.expect("connects");
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let shaken = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        shaken.map(drop).map_err(|error| {
            let inner = error.into_inner().expect("an error of TLS");
            *inner.downcast::<Error>().expect("an error of TLS")
        })
    }
}

fn is_unrecognized(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::AlertReceived(AlertDescription::UnrecognisedName)))
}

#[tokio::test]
async fn a_handshake_gets_the_certificate_of_its_name_or_an_alert() {
    let listener = listen(None).await;
    let [own, wildcard] = &listener.certificates;
    for name in [HOSTS, "GATEWAY.example"] {
        assert_eq!(listener.shake(name, own, None).await, Ok(()), "{name}");
        assert!(listener.shakes_over_quic(name, own).await, "{name}");
    }
    assert_eq!(listener.shake("bafkqaaa.ipfs.gateway.example", wildcard, None).await, Ok(()));
    // A client that names nothing gets the first: that it is for another name is the client's to judge.
    let nameless = listener.shake("127.0.0.1", own, None).await;
    assert!(matches!(nameless, Err(Error::InvalidCertificate(_))), "{nameless:?}");
    // No wildcard of two labels, no other names, and none without a DNSLink.
    for name in ["a.b.ipfs.gateway.example", "ipfs.gateway.example", "example.org", "localhost"] {
        let result = listener.shake(name, own, None).await;
        assert!(is_unrecognized(&result), "{name}: {result:?}");
        assert!(!listener.shakes_over_quic(name, own).await, "{name}");
    }
    // A validation without a pending challenge, also for a name with a certificate.
    let result = listener.shake(HOSTS, own, Some("acme-tls/1")).await;
    assert!(is_unrecognized(&result), "{result:?}");
    assert!(listener.dir.path().join("acme").exists());
}

#[tokio::test]
async fn the_certificate_of_the_files_is_for_all_other_names() {
    let (files, certificate) = Files::new();
    let listener = listen(Some(Files::of(&files.certificate(), &files.key(), false))).await;
    let own = &listener.certificates[0];
    assert_eq!(listener.shake(HOSTS, own, None).await, Ok(()));
    assert_eq!(listener.shake("localhost", &certificate, None).await, Ok(()));
    assert!(listener.shakes_over_quic(HOSTS, own).await && listener.shakes_over_quic("localhost", &certificate).await);
    assert!(
        !listener.shakes_over_quic(HOSTS, &certificate).await && !listener.shakes_over_quic("localhost", own).await
    );
    let other = listener.shake("example.org", &certificate, None).await;
    assert!(matches!(other, Err(Error::InvalidCertificate(_))), "{other:?}");
}
