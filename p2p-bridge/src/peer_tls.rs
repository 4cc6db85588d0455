//! TLS between peers, by version 1.0 of the [libp2p TLS specification], over TCP, WebSocket and QUIC.
//!
//! Certificates are generated and read by libp2p, which keeps its configuration of rustls to itself: it offers ChaCha20
//! before AES, and other implementations take what the client offers first. Where the processor has instructions for
//! AES, AES-GCM costs a fraction of the processor time. So the configuration is our own, and differs in this:
//!
//! - Cipher suites are ordered by the processor ([`cipher_suites`]). As a server, our order counts, because clients
//!   that use libp2p's configuration offer ChaCha20 first whatever their processor has.
//! - Sessions are not resumed. All peers have the same (empty) server name, so that a ticket would mostly be presented
//!   to a peer that cannot read it.
//! - Secrets are never written to the file that `SSLKEYLOGFILE` names.
//!
//! Non-goal: muxers in the ALPN extension. The dialer proposes one muxer and does not wait for the answer
//! (`Version::V1Lazy`), so negotiating it earlier saves no round trip.
//!
//! [libp2p TLS specification]: https://github.com/libp2p/specs/blob/master/tls/tls.md

use futures::future::{BoxFuture, FutureExt as _};
use futures::{AsyncRead, AsyncWrite};
use futures_rustls::{TlsAcceptor, TlsConnector};
use libp2p::PeerId;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
use libp2p::tls::{TlsStream, certificate};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, PeerIncompatible, ServerConfig,
    SignatureScheme, SupportedCipherSuite,
};
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// The protocol's name where security is negotiated.
const PROTOCOL: &str = "/tls/1.0.0";

/// The application protocol.
const ALPN: &[u8] = b"libp2p";

/// The signature schemes of certificates that libp2p can verify, in the order of preference.
const SIGNATURE_SCHEMES: [SignatureScheme; 9] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];

/// Whether the processor has instructions for AES-GCM.
pub fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// The cipher suites in the order of preference, for a processor with or without instructions for AES.
fn cipher_suites(has_aes: bool) -> [SupportedCipherSuite; 3] {
    if has_aes {
        [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256]
    } else {
        [TLS13_CHACHA20_POLY1305_SHA256, TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384]
    }
}

/// Why the TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The certificate cannot be generated.
    #[error("cannot generate a certificate: {0}")]
    Certificate(#[from] certificate::GenError),
    /// rustls refuses the configuration.
    #[error(transparent)]
    Configuration(#[from] rustls::Error),
}

/// The certificate of this node, and the cryptography in the order that suits its processor.
#[derive(Debug, Clone)]
pub struct TlsIdentity {
    certificate: Arc<SingleCertAndKey>,
    provider: Arc<CryptoProvider>,
}

impl TlsIdentity {
    /// Generates a certificate that proves the identity.
    ///
    /// # Errors
    /// If the identity cannot sign.
    pub fn new(keypair: &Keypair) -> Result<Self, ConfigError> {
        Self::with_suites(keypair, &cipher_suites(has_aes()))
    }

    fn with_suites(keypair: &Keypair, suites: &[SupportedCipherSuite]) -> Result<Self, ConfigError> {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.cipher_suites = suites.to_vec();
        let (certificate, key) = certificate::generate(keypair)?;
        let key = provider.key_provider.load_private_key(key)?;
        let certificate = CertifiedKey::new(vec![certificate], key);
        Ok(Self { certificate: Arc::new(SingleCertAndKey::from(certificate)), provider: Arc::new(provider) })
    }

    /// The configuration of a dialer. It accepts any peer: the swarm knows which one it expects.
    ///
    /// # Errors
    /// If rustls refuses the configuration.
    pub fn client(&self) -> Result<ClientConfig, ConfigError> {
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PeerVerifier))
            .with_client_cert_resolver(self.certificate.clone());
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// The configuration of a listener.
    ///
    /// # Errors
    /// If rustls refuses the configuration.
    pub fn server(&self) -> Result<ServerConfig, ConfigError> {
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(PeerVerifier))
            .with_cert_resolver(self.certificate.clone());
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.ignore_client_order = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

/// The server name for rustls. The specification forbids the extension, and rustls sends none for an IP address.
pub fn no_server_name() -> ServerName<'static> {
    ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into())
}

/// The peer that the certificates of a finished handshake belong to.
///
/// # Errors
/// If there is not exactly one valid certificate, which the handshake has ensured.
pub fn peer_of(certificates: &[CertificateDer<'_>]) -> Result<PeerId, rustls::Error> {
    let [certificate] = certificates else { return Err(CertificateError::BadEncoding.into()) };
    Ok(certificate::parse(certificate)?.peer_id())
}

/// Verifies that a peer sends exactly one certificate, which is self-signed and proves the peer's identity.
#[derive(Debug)]
struct PeerVerifier;

impl PeerVerifier {
    fn verify(leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        if !others.is_empty() {
            return Err(rustls::Error::General("a peer must send exactly one certificate".to_owned()));
        }
        peer_of(std::slice::from_ref(leaf)).map(drop)
    }
}

/// TLS 1.2 is not enabled, so its signatures are never verified.
fn tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
    Err(PeerIncompatible::Tls12NotOffered.into())
}

fn tls13(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    certificate::parse(certificate)?.verify_signature(signed.scheme, message, signed.signature())?;
    Ok(HandshakeSignatureValid::assertion())
}

impl ServerCertVerifier for PeerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Self::verify(leaf, others).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SIGNATURE_SCHEMES.to_vec()
    }
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Self::verify(leaf, others).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SIGNATURE_SCHEMES.to_vec()
    }
}

/// The upgrade of a byte stream to an authenticated and encrypted one.
#[derive(Clone)]
pub struct TlsUpgrade {
    server: TlsAcceptor,
    client: TlsConnector,
}

impl TlsUpgrade {
    /// Generates a certificate that proves the identity.
    ///
    /// # Errors
    /// If the identity cannot sign.
    pub fn new(keypair: &Keypair) -> Result<Self, ConfigError> {
        Self::with_identity(&TlsIdentity::new(keypair)?)
    }

    fn with_identity(identity: &TlsIdentity) -> Result<Self, ConfigError> {
        let (server, client) = (identity.server()?, identity.client()?);
        Ok(Self { server: Arc::new(server).into(), client: Arc::new(client).into() })
    }
}

impl UpgradeInfo for TlsUpgrade {
    type Info = &'static str;
    type InfoIter = std::iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once(PROTOCOL)
    }
}

/// A finished handshake, with the peer's id.
fn authenticated<S>(stream: impl Into<TlsStream<S>>) -> io::Result<(PeerId, TlsStream<S>)> {
    let stream = stream.into();
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let peer = peer_of(certificates).map_err(io::Error::other)?;
    Ok((peer, stream))
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> InboundConnectionUpgrade<S> for TlsUpgrade {
    type Output = (PeerId, TlsStream<S>);
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Output>>;

    fn upgrade_inbound(self, socket: S, _: Self::Info) -> Self::Future {
        async move { authenticated(self.server.accept(socket).await?) }.boxed()
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> OutboundConnectionUpgrade<S> for TlsUpgrade {
    type Output = (PeerId, TlsStream<S>);
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Output>>;

    fn upgrade_outbound(self, socket: S, _: Self::Info) -> Self::Future {
        async move { authenticated(self.client.connect(no_server_name(), socket).await?) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _};
    use libp2p::core::Endpoint;
    use libp2p::core::transport::memory::{Channel, MemoryTransport};
    use libp2p::core::transport::{DialOpts, ListenerId, PortUse, Transport as _, TransportEvent};
    use libp2p::core::upgrade::Version;
    use libp2p::swarm::{DialError, Swarm, SwarmEvent, dial_opts, dummy};
    use libp2p::{swarm, tls, yamux};
    use rustls::CipherSuite::{self, TLS13_AES_128_GCM_SHA256 as AES, TLS13_CHACHA20_POLY1305_SHA256 as CHACHA20};
    use std::future::poll_fn;
    use std::pin::Pin;

    type Pipe = Channel<Vec<u8>>;
    type Handshake = io::Result<(PeerId, TlsStream<Pipe>)>;

    /// Both ends of a connection in memory.
    async fn pipe() -> (Pipe, Pipe) {
        let mut transport = MemoryTransport::default();
        transport.listen_on(ListenerId::next(), "/memory/0".parse().expect("address")).expect("listens");
        let listening = poll_fn(|cx| Pin::new(&mut transport).poll(cx)).await;
        let TransportEvent::NewAddress { listen_addr, .. } = listening else { panic!("not listening: {listening:?}") };
        let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
        let dial = MemoryTransport::default().dial(listen_addr, opts).expect("dials");
        let accept = async {
            match poll_fn(|cx| Pin::new(&mut transport).poll(cx)).await {
                TransportEvent::Incoming { upgrade, .. } => upgrade.await,
                other => panic!("no connection: {other:?}"),
            }
        };
        let (dialled, accepted) = futures::join!(dial, accept);
        (dialled.expect("dialled"), accepted.expect("accepted"))
    }

    async fn handshake<C, S>(client: C, server: S) -> (Handshake, Handshake)
    where
        C: OutboundConnectionUpgrade<Pipe, Info = &'static str, Output = (PeerId, TlsStream<Pipe>)>,
        S: InboundConnectionUpgrade<Pipe, Info = &'static str, Output = (PeerId, TlsStream<Pipe>)>,
        C::Error: std::error::Error + Send + Sync + 'static,
        S::Error: std::error::Error + Send + Sync + 'static,
    {
        let (dialled, accepted) = pipe().await;
        let client = async { client.upgrade_outbound(dialled, PROTOCOL).await.map_err(io::Error::other) };
        let server = async { server.upgrade_inbound(accepted, PROTOCOL).await.map_err(io::Error::other) };
        futures::join!(client, server)
    }

    /// The cipher suite of a handshake that succeeds, after data was sent both ways.
    async fn suite((client, server): (Handshake, Handshake), ids: (PeerId, PeerId)) -> CipherSuite {
        let ((server_id, mut client), (client_id, mut server)) =
            (client.expect("the client's handshake"), server.expect("the server's handshake"));
        assert_eq!((client_id, server_id), ids);
        let mut read = [0; 4];
        client.write_all(b"ping").await.expect("written");
        client.flush().await.expect("flushed");
        server.read_exact(&mut read).await.expect("read");
        assert_eq!(&read, b"ping");
        server.write_all(b"pong").await.expect("written");
        server.flush().await.expect("flushed");
        client.read_exact(&mut read).await.expect("read");
        assert_eq!(&read, b"pong");
        client.get_ref().1.negotiated_cipher_suite().expect("negotiated").suite()
    }

    fn upgrade(keypair: &Keypair, has_aes: bool) -> TlsUpgrade {
        let identity = TlsIdentity::with_suites(keypair, &cipher_suites(has_aes)).expect("a certificate");
        TlsUpgrade::with_identity(&identity).expect("a configuration")
    }

    fn keypairs() -> (Keypair, Keypair) {
        (Keypair::generate_ed25519(), Keypair::generate_ed25519())
    }

    fn ids((one, other): &(Keypair, Keypair)) -> (PeerId, PeerId) {
        (one.public().to_peer_id(), other.public().to_peer_id())
    }

    #[test]
    fn the_processor_decides_about_the_order() {
        let suites = |has_aes| cipher_suites(has_aes).map(|suite| suite.suite());
        assert_eq!(suites(true), [AES, CipherSuite::TLS13_AES_256_GCM_SHA384, CHACHA20]);
        assert_eq!(suites(false), [CHACHA20, AES, CipherSuite::TLS13_AES_256_GCM_SHA384]);
    }

    #[tokio::test]
    async fn the_listener_s_processor_decides_about_the_suite() {
        // Whether the client and the server have AES, and the suite.
        for (client, server, expected) in
            [(true, true, AES), (false, true, AES), (true, false, CHACHA20), (false, false, CHACHA20)]
        {
            let keys = keypairs();
            let shaken = handshake(upgrade(&keys.0, client), upgrade(&keys.1, server)).await;
            assert_eq!(suite(shaken, ids(&keys)).await, expected, "{client} {server}");
        }
    }

    #[tokio::test]
    async fn libp2p_s_own_tls_is_understood_in_both_directions() {
        for has_aes in [true, false] {
            let expected = if has_aes { AES } else { CHACHA20 };
            let keys = keypairs();
            let theirs = tls::Config::new(&keys.1).expect("a certificate");
            let shaken = handshake(upgrade(&keys.0, has_aes), theirs).await;
            assert_eq!(suite(shaken, ids(&keys)).await, expected, "as the client");
            let theirs = tls::Config::new(&keys.0).expect("a certificate");
            let shaken = handshake(theirs, upgrade(&keys.1, has_aes)).await;
            assert_eq!(suite(shaken, ids(&keys)).await, expected, "as the server");
        }
    }

    #[tokio::test]
    async fn the_order_of_this_processor_is_used() {
        let keys = keypairs();
        let of = |keypair| TlsUpgrade::new(keypair).expect("a configuration");
        let shaken = handshake(of(&keys.0), of(&keys.1)).await;
        assert_eq!(suite(shaken, ids(&keys)).await, if has_aes() { AES } else { CHACHA20 });
    }

    #[tokio::test]
    async fn a_swarm_refuses_another_peer_than_it_dialled() {
        let swarm = |keypair: Keypair| {
            let upgrade = TlsUpgrade::new(&keypair).expect("a configuration");
            let transport = MemoryTransport::default().upgrade(Version::V1Lazy).authenticate(upgrade);
            let transport = transport.multiplex(yamux::Config::default()).boxed();
            let id = keypair.public().to_peer_id();
            Swarm::new(transport, dummy::Behaviour, id, swarm::Config::with_tokio_executor())
        };
        let (mut dialer, mut listener) = (swarm(Keypair::generate_ed25519()), swarm(Keypair::generate_ed25519()));
        let (server, other) = (*listener.local_peer_id(), PeerId::random());
        listener.listen_on("/memory/0".parse().expect("address")).expect("listens");
        let SwarmEvent::NewListenAddr { address, .. } = listener.select_next_some().await else { panic!("no address") };
        let serving = tokio::spawn(async move { while listener.next().await.is_some() {} });
        for (expected, is_accepted) in [(other, false), (server, true)] {
            let opts = dial_opts::DialOpts::peer_id(expected).addresses(vec![address.clone()]).build();
            dialer.dial(opts).expect("dials");
            let accepted = loop {
                match dialer.select_next_some().await {
                    SwarmEvent::ConnectionEstablished { peer_id, .. } => break peer_id == expected,
                    SwarmEvent::OutgoingConnectionError { error: DialError::WrongPeerId { obtained, .. }, .. } => {
                        assert_eq!(obtained, server);
                        break false;
                    }
                    SwarmEvent::OutgoingConnectionError { error, .. } => panic!("{error}"),
                    _ => {}
                }
            };
            assert_eq!(accepted, is_accepted);
        }
        serving.abort();
    }

    #[tokio::test]
    async fn certificates_that_prove_no_identity_are_refused() {
        let made = rcgen::generate_simple_self_signed(Vec::new()).expect("a certificate");
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
        let mut forged = TlsIdentity::new(&Keypair::generate_ed25519()).expect("a certificate");
        let key = forged.provider.key_provider.load_private_key(key).expect("a key");
        forged.certificate = Arc::new(CertifiedKey::new(vec![made.cert.der().clone()], key).into());
        let honest = Keypair::generate_ed25519();
        let forged = TlsUpgrade::with_identity(&forged).expect("a configuration");
        let (client, server) = handshake(upgrade(&honest, true), forged.clone()).await;
        assert!(client.is_err() && server.is_err(), "a server without an identity");
        // A client of TLS 1.3 is finished before the server has verified its certificate.
        let (_, server) = handshake(forged, upgrade(&honest, true)).await;
        assert!(server.is_err(), "a client without an identity");
    }

    /// A certificate is public: only the signature of the handshake proves that the peer has its key.
    #[tokio::test]
    async fn the_certificate_of_another_peer_is_refused() {
        let mut impostor = TlsIdentity::new(&Keypair::generate_ed25519()).expect("a certificate");
        let (_, own_key) = certificate::generate(&Keypair::generate_ed25519()).expect("a certificate");
        let (stolen, _) = certificate::generate(&Keypair::generate_ed25519()).expect("a certificate");
        let own_key = impostor.provider.key_provider.load_private_key(own_key).expect("a key");
        impostor.certificate = Arc::new(CertifiedKey::new(vec![stolen], own_key).into());
        let impostor = TlsUpgrade::with_identity(&impostor).expect("a configuration");
        let honest = upgrade(&Keypair::generate_ed25519(), true);
        let (client, _) = handshake(honest.clone(), impostor.clone()).await;
        assert!(client.is_err(), "a server with the certificate of another peer");
        let (_, server) = handshake(impostor, honest).await;
        assert!(server.is_err(), "a client with the certificate of another peer");
    }

    #[test]
    fn several_certificates_are_refused() {
        let (certificate, _) = certificate::generate(&Keypair::generate_ed25519()).expect("a certificate");
        assert!(PeerVerifier::verify(&certificate, &[]).is_ok());
        assert!(PeerVerifier::verify(&certificate, std::slice::from_ref(&certificate)).is_err());
    }
}
