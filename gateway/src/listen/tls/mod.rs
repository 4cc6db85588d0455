//! [`Tls`]: a listener's certificate and key, loaded from files.
//!
//! Goals: a renewed certificate is used by the next connection, without a restart; if the new files are invalid, the
//! old certificate stays in use.
//!
//! Non-goals: obtaining certificates (ACME clients write such files), client certificates, and HTTP/2.

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use services::fingerprint::FileFingerprint;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_rustls::TlsAcceptor;

/// The only ALPN protocol (RFC 7301).
const HTTP_1_1: &[u8] = b"http/1.1";

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
}

/// A certificate and its key, reloaded when the files change.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    /// The fingerprints of both files, and the configuration that was loaded from them.
    current: Mutex<([Option<FileFingerprint>; 2], Arc<ServerConfig>)>,
}

impl Tls {
    /// Reads both files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let found = [certificate, key].map(FileFingerprint::at);
        let current = Mutex::new((found, read(certificate, key)?));
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), current })
    }

    /// The acceptor for the next connection. Reads both files if they have changed.
    pub fn acceptor(&self) -> TlsAcceptor {
        let found = [&self.certificate, &self.key].map(|path| FileFingerprint::at(path));
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != found {
            current.0 = found;
            match read(&self.certificate, &self.key) {
                Ok(config) => {
                    tracing::info!(certificate = %self.certificate.display(), "the certificate was reloaded");
                    current.1 = config;
                }
                // Both files may not have been replaced yet.
                Err(error) => {
                    tracing::warn!(%error, "the new certificate or key is invalid: the previous certificate stays in use")
                }
            }
        }
        Arc::clone(&current.1).into()
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let of_certificate = |reason: String| TlsError::Certificate { path: certificate.to_owned(), reason };
    let of_key = |reason: String| TlsError::Key { path: key.to_owned(), reason };
    let chain = CertificateDer::pem_file_iter(certificate).map_err(|error| of_certificate(error.to_string()))?;
    let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(|error| of_certificate(error.to_string()))?;
    if chain.is_empty() {
        return Err(of_certificate("the file has no certificate".to_owned()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| of_key(error.to_string()))?;
    let versions =
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
    let builder = versions.map_err(|error| of_key(error.to_string()))?.with_no_client_auth();
    let mut config = builder.with_single_cert(chain, secret).map_err(|error| of_key(error.to_string()))?;
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}
