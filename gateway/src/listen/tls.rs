//! [`Tls`]: a listener's certificate and key, from files.
//!
//! Goals: a renewed certificate is used from the next connection on, without a restart; one that cannot be used changes nothing.
//!
//! Non-goals: getting certificates (ACME clients write such files), client certificates, and HTTP/2.

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use services::fingerprint::Stamp;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio_rustls::TlsAcceptor;

/// The one protocol that is spoken inside (RFC 7301).
const HTTP_1_1: &[u8] = b"http/1.1";

/// Why the files cannot be used. Each names the file at fault.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificates cannot be read.
    #[error("{path} holds no certificates in PEM that can be read: {reason}", path = path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The key cannot be read, or is another's.
    #[error("{path} holds no private key in PEM that fits the certificate: {reason}", path = path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// A certificate and its key, read again when the files change.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    /// As both files were found.
    current: Mutex<([Option<Stamp>; 2], Arc<ServerConfig>)>,
}

impl Tls {
    /// Reads both files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let found = [certificate, key].map(Stamp::at);
        let current = Mutex::new((found, read(certificate, key)?));
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), current })
    }

    /// What the next connection is accepted with. Reads small files, at times.
    pub fn acceptor(&self) -> TlsAcceptor {
        let found = [&self.certificate, &self.key].map(|path| Stamp::at(path));
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != found {
            current.0 = found;
            match read(&self.certificate, &self.key) {
                Ok(config) => {
                    tracing::info!(certificate = %self.certificate.display(), "the certificate was read again");
                    current.1 = config;
                }
                // Whoever replaces both files one after the other is in the middle of it.
                Err(error) => tracing::warn!(%error, "the certificate that was read before is used"),
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
        return Err(of_certificate("there is none in it".to_owned()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| of_key(error.to_string()))?;
    let versions =
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
    let builder = versions.map_err(|error| of_key(error.to_string()))?.with_no_client_auth();
    let mut config = builder.with_single_cert(chain, secret).map_err(|error| of_key(error.to_string()))?;
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}
