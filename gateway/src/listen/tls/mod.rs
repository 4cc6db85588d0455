//! [`Tls`]: a listener's certificate and key, loaded from files and reloaded when they change.
//!
//! Goals: a renewed certificate is used by the next connection, without a restart; if the new files are invalid, the
//! previous certificate stays in use, and the log and a metric tell.
//!
//! Non-goals: obtaining certificates (ACME clients write such files), and client certificates.
//!
//! | module | concern |
//! |---|---|
//! | [`certificate`] | reading the files |
//! | [`handshake`] | handshakes: their timeout, and how many there are at a time |

pub mod certificate;
mod handshake;

pub use self::certificate::{TlsError, TlsFiles};

use self::certificate::LoadedCertificate;
use self::handshake::Handshakes;
use crate::metrics::CertificateMetrics;
use services::fingerprint::FileFingerprint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

/// The interval at which the files are checked for changes.
const FILES_EVERY: Duration = Duration::from_secs(2);

/// A certificate and its key, reloaded when the files change.
pub struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
    /// Notified when the files must be read again.
    reload: Notify,
    handshakes: Handshakes,
}

struct Current {
    /// The fingerprints of both files when they were read last.
    read: [Option<FileFingerprint>; 2],
    /// The last valid certificate.
    certificate: LoadedCertificate,
}

impl Tls {
    /// Reads both files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let read = files.fingerprints();
        let certificate = files.read()?;
        let current = Mutex::new(Current { read, certificate });
        Ok(Self { files, current, reload: Notify::new(), handshakes: Handshakes::default() })
    }

    /// The acceptor for the next connection.
    fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.current().certificate.config).into()
    }

    /// Has [`Self::watch`] read the files again, even if they seem unchanged.
    pub fn reload(&self) {
        self.reload.notify_one();
    }

    /// Checks the files for changes, for as long as the listener serves.
    pub async fn watch(self: Arc<Self>, metrics: CertificateMetrics) {
        metrics.expiry.set(self.current().certificate.expiry);
        loop {
            let is_asked = tokio::time::timeout(FILES_EVERY, self.reload.notified()).await.is_ok();
            let (tls, of_task) = (Arc::clone(&self), metrics.clone());
            let read = tokio::task::spawn_blocking(move || tls.read_if_changed(is_asked, &of_task)).await;
            if read.is_err() {
                return;
            }
        }
    }

    fn read_if_changed(&self, is_asked: bool, metrics: &CertificateMetrics) {
        let found = self.files.fingerprints();
        if !is_asked && self.current().read == found {
            return;
        }
        let read = self.files.read();
        let mut current = self.current();
        current.read = found;
        match read {
            Ok(certificate) => {
                tracing::info!(certificate = %self.files.certificate.display(), "the certificate was reloaded");
                metrics.expiry.set(certificate.expiry);
                current.certificate = certificate;
            }
            Err(error) => {
                metrics.failures.inc();
                tracing::error!(%error, "the new certificate or key is invalid: the previous certificate stays in use");
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds since 1970.
fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
