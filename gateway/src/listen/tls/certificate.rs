//! [`TlsFiles`]: the files of a certificate and its key, and the configuration of connections.

use p2p_bridge::epoch;
use quinn::crypto::rustls::QuicServerConfig;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ResolvesServerCert;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use services::fingerprint::FileFingerprint;
use std::path::PathBuf;
use std::sync::Arc;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The ALPN protocols (RFC 7301).
pub(in crate::listen) const HTTP_2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";
const HTTP_3: &[u8] = b"h3";

/// A certificate or key file is invalid. The message names the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate file cannot be read or parsed.
    #[error("{path} is not a readable PEM file with certificates: {reason}", path = path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The key file cannot be read or parsed, or the key does not match the certificate.
    #[error("{path} is not a readable PEM file with the certificate's private key: {reason}", path = path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Configuration(String),
}

/// The files of a listener's certificate.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate chain in PEM format, the server certificate first.
    pub certificate: PathBuf,
    /// The private key of the certificate in PEM format.
    pub key: PathBuf,
    /// Whether clients may choose HTTP/2.
    pub http2: bool,
    /// Whether the certificate is used over QUIC as well, for HTTP/3.
    pub http3: bool,
}

/// A certificate as it is used.
pub(super) struct LoadedCertificate {
    /// The chain and the key.
    pub certified: Arc<CertifiedKey>,
    /// When the server certificate expires, in seconds since 1970.
    pub expiry: i64,
}

impl TlsFiles {
    /// Whether there are files.
    pub fn is_set(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }

    /// The fingerprints of both files.
    pub(super) fn fingerprints(&self) -> [Option<FileFingerprint>; 2] {
        [&self.certificate, &self.key].map(|path| FileFingerprint::at(path))
    }

    /// Reads both files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub(super) fn read(&self) -> Result<LoadedCertificate, TlsError> {
        let chain = CertificateDer::pem_file_iter(&self.certificate).map_err(|error| self.certificate_error(&error))?;
        let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(|error| self.certificate_error(&error))?;
        let server = chain.first().ok_or_else(|| self.certificate_error(&"the file has no certificate"))?;
        let expiry = expiry(server).map_err(|error| self.certificate_error(&error))?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| self.key_error(&error))?;
        let certified = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider());
        let certified = certified.map_err(|error| self.key_error(&error))?;
        // After the last error, because failed reads are repeated.
        if expiry < epoch::signed_now() {
            tracing::warn!(certificate = %self.certificate.display(), "the certificate has expired: renew it");
        }
        Ok(LoadedCertificate { certified: Arc::new(certified), expiry })
    }

    fn certificate_error(&self, reason: &dyn ToString) -> TlsError {
        TlsError::Certificate { path: self.certificate.clone(), reason: reason.to_string() }
    }

    fn key_error(&self, reason: &dyn ToString) -> TlsError {
        TlsError::Key { path: self.key.clone(), reason: reason.to_string() }
    }
}

/// The configuration of connections, with the certificates that the resolver chooses: TLS 1.2 and 1.3, in the order of
/// cipher suites that the client prefers, because it knows its hardware. Sessions are resumed with tickets; there is no
/// early data, which could be replayed.
pub(super) fn server_config(
    certificates: Arc<dyn ResolvesServerCert>,
    http2: bool,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(certificates);
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    let protocols = if http2 { &[HTTP_2, HTTP_1_1][..] } else { &[HTTP_1_1] };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// The same over QUIC, for HTTP/3: TLS 1.3 (RFC 9001, section 4.2).
pub(super) fn quic_tls_config(certificates: Arc<dyn ResolvesServerCert>) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(certificates);
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    config.alpn_protocols = vec![HTTP_3.to_vec()];
    Ok(config)
}

/// The configuration of connections over QUIC with that of TLS.
pub(super) fn quic_config(config: ServerConfig) -> Result<Arc<QuicServerConfig>, rustls::Error> {
    let config = QuicServerConfig::try_from(config).map_err(|error| rustls::Error::General(error.to_string()))?;
    Ok(Arc::new(config))
}

/// When a certificate expires, in seconds since 1970.
fn expiry(certificate: &CertificateDer<'_>) -> Result<i64, String> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
    Ok(parsed.validity().not_after.timestamp())
}
