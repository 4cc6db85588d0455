//! [`ByName`]: which certificate a handshake gets, if there are certificates by ACME.
//!
//! In this order: that of the name by ACME; that of the files, if it is for the name; one that is obtained on demand;
//! that of the files after all, as a client without a name gets it. If there is none, the handshake ends with the alert
//! `unrecognized_name` (RFC 6066, section 3). A validation of the authority (tls-alpn-01, RFC 8737) gets the
//! certificate of its challenge, and nothing is served over its connection.
//!
//! Over QUIC a handshake does not wait for a certificate: what there is not ends the handshake, or gets that of the
//! files. It is ordered nonetheless ([`MissingCertificate`]): the client connects over TCP after QUIC has failed, as it
//! should (RFC 9114, section 3.1), and waits for it there.

use super::FileCertificate;
use super::certificate::{quic_config, quic_tls_config, server_config};
use p2p_bridge::epoch;
use quinn::crypto::rustls::QuicServerConfig;
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::server::{Acceptor, ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use services::acme::Acme;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

/// The ALPN protocol of validations (RFC 8737, section 6.2).
const ACME_TLS: &[u8] = b"acme-tls/1";
/// A record with the fatal alert `unrecognized_name` (RFC 8446, sections 5.1 and 6). It is sent before the server has
/// sent anything, so that it is not encrypted.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Certificates by ACME, chosen by the name that a client asks for.
pub(super) struct ByName {
    acme: Arc<Acme>,
    config: Arc<ServerConfig>,
    quic: Option<QuicConfigs>,
}

/// The configuration of connections over QUIC.
struct QuicConfigs {
    shared: Arc<QuicServerConfig>,
    /// What that of a single connection is made from.
    tls: ServerConfig,
    files: Option<Arc<FileCertificate>>,
}

/// Where a certificate that there is already comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CertificateSource {
    Acme,
    Files,
}

/// How a handshake is continued.
enum Choice {
    Serve(Arc<ServerConfig>),
    Validate(Arc<ServerConfig>),
    Unrecognized,
}

/// Chooses a certificate that ACME has. Every handshake has been examined before, so that it has one, unless it is
/// removed at this moment.
struct AcmeCertificates(Arc<Acme>);

impl std::fmt::Debug for AcmeCertificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AcmeCertificates")
    }
}

impl ResolvesServerCert for AcmeCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match hello.server_name() {
            Some(name) => self.0.certificate(&name.to_ascii_lowercase()),
            None => self.0.any_certificate(),
        }
    }
}

/// Chooses a certificate for a handshake over QUIC, which cannot wait for one.
struct QuicCertificates {
    acme: AcmeCertificates,
    files: Option<Arc<FileCertificate>>,
    /// Where the name is left for which there is none.
    missing: Option<Arc<OnceLock<String>>>,
}

/// The certificate that a handshake over QUIC did not find, if certificates are obtained on demand.
pub(in crate::listen) struct MissingCertificate {
    acme: Arc<Acme>,
    name: Arc<OnceLock<String>>,
}

impl MissingCertificate {
    /// Has it ordered, within the rates of certificates on demand.
    pub async fn order(&self, client: IpAddr) {
        if let Some(name) = self.name.get() {
            self.acme.request(name, client).await;
        }
    }
}

impl std::fmt::Debug for QuicCertificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QuicCertificates")
    }
}

impl ResolvesServerCert for QuicCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        match existing(&self.acme.0, name.as_deref(), self.files.as_deref()) {
            Some(CertificateSource::Acme) => return self.acme.resolve(hello),
            Some(CertificateSource::Files) => {}
            None => {
                if let (Some(missing), Some(name)) = (&self.missing, name) {
                    // The first one, as a handshake has one.
                    _ = missing.set(name);
                }
            }
        }
        self.files.as_ref().map(|files| Arc::clone(&files.current().certificate.certified))
    }
}

impl ByName {
    pub(super) fn new(
        acme: Arc<Acme>,
        files: Option<Arc<FileCertificate>>,
        (http2, http3): (bool, bool),
    ) -> Result<Self, rustls::Error> {
        let config = Arc::new(server_config(Arc::new(AcmeCertificates(Arc::clone(&acme))), http2)?);
        let quic = http3.then(|| {
            let acme = AcmeCertificates(Arc::clone(&acme));
            let tls = quic_tls_config(Arc::new(QuicCertificates { acme, files: files.clone(), missing: None }))?;
            Ok::<_, rustls::Error>(QuicConfigs { shared: quic_config(tls.clone())?, tls, files })
        });
        Ok(Self { acme, config, quic: quic.transpose()? })
    }

    /// The configuration of connections over QUIC, if HTTP/3 is spoken.
    pub(super) fn quic(&self) -> Option<Arc<QuicServerConfig>> {
        self.quic.as_ref().map(|quic| Arc::clone(&quic.shared))
    }

    /// The configuration of a single connection over QUIC, and the certificate that its handshake may not find. `None`
    /// if certificates are not obtained on demand.
    pub(super) fn quic_on_demand(&self) -> Option<(Arc<QuicServerConfig>, MissingCertificate)> {
        let quic = self.quic.as_ref().filter(|_| self.acme.obtains_on_demand())?;
        let (mut tls, name) = (quic.tls.clone(), Arc::<OnceLock<String>>::default());
        tls.cert_resolver = Arc::new(QuicCertificates {
            acme: AcmeCertificates(Arc::clone(&self.acme)),
            files: quic.files.clone(),
            missing: Some(Arc::clone(&name)),
        });
        let missing = MissingCertificate { acme: Arc::clone(&self.acme), name };
        Some((quic_config(tls).ok()?, missing))
    }

    /// Has failed orders repeated.
    pub(super) fn retry(&self) {
        self.acme.retry();
    }

    /// Performs a handshake.
    ///
    /// # Errors
    /// When it fails, or was a validation.
    pub(super) async fn accept<S>(
        &self,
        stream: S,
        client: IpAddr,
        files: Option<&FileCertificate>,
    ) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let (name, is_validation) = {
            let hello = start.client_hello();
            let is_validation = hello.alpn().is_some_and(|mut protocols| protocols.any(|found| found == ACME_TLS));
            (hello.server_name().map(str::to_ascii_lowercase), is_validation)
        };
        match self.choose(name.as_deref(), is_validation, client, files).await {
            Choice::Serve(config) => start.into_stream(config).await,
            Choice::Validate(config) => {
                let mut validated = start.into_stream(config).await?;
                _ = validated.shutdown().await;
                Err(io::Error::other("the authority has validated a challenge"))
            }
            Choice::Unrecognized => {
                start.io.write_all(&UNRECOGNIZED_NAME).await?;
                _ = start.io.shutdown().await;
                Err(io::Error::other("there is no certificate for the name"))
            }
        }
    }

    async fn choose(
        &self,
        name: Option<&str>,
        is_validation: bool,
        client: IpAddr,
        files: Option<&FileCertificate>,
    ) -> Choice {
        let of_files = || files.map_or(Choice::Unrecognized, |files| Choice::Serve(files.config()));
        let own = || Choice::Serve(Arc::clone(&self.config));
        if let Some(name) = name.filter(|_| is_validation) {
            let challenge = self.acme.challenges().certificate(name).and_then(|found| validation_config(found).ok());
            return challenge.map_or(Choice::Unrecognized, |config| Choice::Validate(Arc::new(config)));
        }
        match (existing(&self.acme, name, files), name) {
            (Some(CertificateSource::Acme), _) => own(),
            (Some(CertificateSource::Files), _) | (None, None) => of_files(),
            (None, Some(name)) => match self.acme.obtain(name, client).await {
                Some(_) => own(),
                None => of_files(),
            },
        }
    }
}

/// The source of the certificate that there is for a name, or for a client that asks for none.
fn existing(acme: &Acme, name: Option<&str>, files: Option<&FileCertificate>) -> Option<CertificateSource> {
    let Some(name) = name else {
        let of_acme = || acme.any_certificate().map(|_| CertificateSource::Acme);
        return files.map(|_| CertificateSource::Files).or_else(of_acme);
    };
    let are_files_better = || acme.is_expired(name) && files.is_some_and(|files| is_valid(files, name));
    if acme.certificate(name).is_some() && !are_files_better() {
        return Some(CertificateSource::Acme);
    }
    let are_for_it = |files: &&FileCertificate| is_for(&files.current().certificate.certified, name);
    files.filter(are_for_it).map(|_| CertificateSource::Files)
}

/// The configuration of a validation, which offers no protocol of an application.
fn validation_config(certificate: Arc<CertifiedKey>) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate)));
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    Ok(config)
}

/// Whether the certificate of the files is for a host name, and has not expired.
fn is_valid(files: &FileCertificate, name: &str) -> bool {
    let current = files.current();
    current.certificate.expiry > epoch::signed_now() && is_for(&current.certificate.certified, name)
}

/// Whether a certificate is for a host name.
fn is_for(certified: &CertifiedKey, name: &str) -> bool {
    let parsed = certified.end_entity_cert().and_then(ParsedCertificate::try_from);
    let name = ServerName::try_from(name);
    parsed.is_ok_and(|parsed| name.is_ok_and(|name| verify_server_name(&parsed, &name).is_ok()))
}
