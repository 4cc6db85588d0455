//! [`Tls`]: a listener's certificates: one from files, which is reloaded when they change, and those by ACME.
//!
//! Goals: a renewed certificate is used by the next connection, without a restart; if the new files are invalid, the
//! previous certificate stays in use, and the log and a metric tell.
//!
//! Non-goals: obtaining certificates (`services::acme`), and client certificates.
//!
//! | module | concern |
//! |---|---|
//! | [`certificate`] | reading the files, and the configuration of connections |
//! | [`by_name`] | which certificate a handshake gets, with ACME |
//! | [`handshake`] | handshakes: their timeout, and how many there are at a time |

mod by_name;
pub mod certificate;
pub(in crate::listen) mod handshake;

pub(in crate::listen) use self::by_name::MissingCertificate;
pub use self::certificate::{TlsError, TlsFiles};

use self::by_name::ByName;
use self::certificate::{LoadedCertificate, quic_config, quic_tls_config, server_config};
use self::handshake::Handshakes;
use crate::metrics::CertificateMetrics;
use quinn::crypto::rustls::QuicServerConfig;
use rustls::ServerConfig;
use rustls::sign::SingleCertAndKey;
use services::acme::Acme;
use services::fingerprint::FileFingerprint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The interval at which the files are checked for changes.
const FILES_EVERY: Duration = Duration::from_secs(2);

/// The certificates of a listener.
pub struct Tls {
    /// The files of a certificate, and what was read; a listener with certificates by ACME may have none.
    files: Option<Arc<FileCertificate>>,
    /// Certificates by ACME, and the configuration for them.
    by_name: Option<ByName>,
    /// Notified when the files must be read again.
    reload: Notify,
    handshakes: Handshakes,
}

/// A certificate and its key, reloaded when the files change.
struct FileCertificate {
    files: TlsFiles,
    current: Mutex<Current>,
}

/// The state of a certificate from files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStatus {
    /// When the certificate in use expires, in seconds since 1970.
    pub expires_at: i64,
    /// Why the present files are not in use, if they are not.
    pub failure: Option<String>,
}

type Fingerprints = [Option<FileFingerprint>; 2];

struct Current {
    /// The fingerprints of both files when the certificate in use was read.
    read: Fingerprints,
    /// The last valid certificate.
    certificate: LoadedCertificate,
    /// The configuration of the next connection with it.
    config: Arc<ServerConfig>,
    /// The same over QUIC, if HTTP/3 is spoken.
    quic: Option<Arc<QuicServerConfig>>,
    /// Why the last read failed.
    failure: Option<Failure>,
}

/// A failed read. It is repeated by each check, because corrected permissions do not change the fingerprints.
struct Failure {
    found: Fingerprints,
    error: String,
    is_reported: bool,
}

impl Current {
    /// Whether the files with these fingerprints are in use.
    fn is_read(&self, found: &Fingerprints) -> bool {
        self.failure.is_none() && self.read == *found
    }

    /// Records a failed read; returns whether to report it: once, when it lasts from one check to the next, because
    /// both files are not replaced at the same time.
    fn fail(&mut self, found: Fingerprints, error: String, is_asked: bool) -> bool {
        let former = self.failure.take().filter(|failure| failure.found == found && failure.error == error);
        let reports = is_asked || former.as_ref().is_some_and(|failure| !failure.is_reported);
        let is_reported = reports || former.is_some();
        self.failure = Some(Failure { found, error, is_reported });
        reports
    }
}

impl Tls {
    /// Reads both files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let (reload, handshakes) = (Notify::new(), Handshakes::default());
        Ok(Self { files: Some(Arc::new(FileCertificate::load(files)?)), by_name: None, reload, handshakes })
    }

    /// The certificates by ACME, and that of the files, if there are any, for other names; whether clients may choose
    /// HTTP/2 and HTTP/3.
    ///
    /// # Errors
    /// [`TlsError`] about the files.
    pub fn with_acme(files: Option<TlsFiles>, acme: Arc<Acme>, versions: (bool, bool)) -> Result<Self, TlsError> {
        let files = files.map(FileCertificate::load).transpose()?.map(Arc::new);
        let by_name =
            ByName::new(acme, files.clone(), versions).map_err(|error| TlsError::Configuration(error.to_string()))?;
        Ok(Self { files, by_name: Some(by_name), reload: Notify::new(), handshakes: Handshakes::default() })
    }

    /// Whether it has a certificate from files.
    pub fn has_files(&self) -> bool {
        self.files.is_some()
    }

    /// The state of the certificate from files, if there is one.
    pub fn file_status(&self) -> Option<FileStatus> {
        let current = self.files.as_ref()?.current();
        // A failure that is not reported may be that of a moment, in which one of both files is replaced.
        let failure = current.failure.as_ref().filter(|failure| failure.is_reported);
        let failure = failure.map(|failure| failure.error.clone());
        Some(FileStatus { expires_at: current.certificate.expiry, failure })
    }

    /// Has [`Self::watch`] read the files again, even if they seem unchanged, and failed orders of certificates
    /// repeated.
    pub fn reload(&self) {
        self.reload.notify_one();
        self.by_name.iter().for_each(ByName::retry);
    }

    /// The configuration of the next connection over QUIC; `None` if HTTP/3 is not spoken.
    pub(in crate::listen) fn quic(&self) -> Option<Arc<QuicServerConfig>> {
        match (&self.by_name, &self.files) {
            (Some(by_name), _) => by_name.quic(),
            (None, Some(files)) => files.current().quic.clone(),
            (None, None) => None,
        }
    }

    /// The configuration of a single connection over QUIC, and the certificate that its handshake may not find; `None`
    /// if that of [`Self::quic`] is used.
    pub(in crate::listen) fn quic_on_demand(&self) -> Option<(Arc<QuicServerConfig>, MissingCertificate)> {
        self.by_name.as_ref()?.quic_on_demand()
    }

    /// Checks the files for changes, for as long as the listener serves.
    pub async fn watch(self: Arc<Self>, metrics: CertificateMetrics) {
        let Some(files) = &self.files else { return std::future::pending().await };
        metrics.expiry.set(files.current().certificate.expiry);
        loop {
            let is_asked = tokio::time::timeout(FILES_EVERY, self.reload.notified()).await.is_ok();
            let (tls, of_task) = (Arc::clone(&self), metrics.clone());
            let read = move || tls.files.iter().for_each(|files| files.read_if_changed(is_asked, &of_task));
            if tokio::task::spawn_blocking(read).await.is_err() {
                return;
            }
        }
    }
}

impl FileCertificate {
    fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let read = files.fingerprints();
        let current = Self::read(&files, read)?;
        Ok(Self { current: Mutex::new(current), files })
    }

    /// Reads the files, whose fingerprints are these.
    fn read(files: &TlsFiles, read: Fingerprints) -> Result<Current, TlsError> {
        let certificate = files.read()?;
        let only = Arc::new(SingleCertAndKey::from(Arc::clone(&certificate.certified)));
        let unusable = |error: rustls::Error| TlsError::Configuration(error.to_string());
        let config = Arc::new(server_config(Arc::clone(&only) as _, files.http2).map_err(unusable)?);
        let quic = files.http3.then(|| quic_tls_config(only).and_then(quic_config)).transpose().map_err(unusable)?;
        Ok(Current { read, certificate, config, quic, failure: None })
    }

    fn read_if_changed(&self, is_asked: bool, metrics: &CertificateMetrics) {
        let found = self.files.fingerprints();
        if !is_asked && self.current().is_read(&found) {
            return;
        }
        let read = Self::read(&self.files, found);
        let mut current = self.current();
        match read {
            Ok(new) => {
                tracing::info!(certificate = %self.files.certificate.display(), "the certificate was reloaded");
                metrics.expiry.set(new.certificate.expiry);
                *current = new;
            }
            Err(error) if current.fail(found, error.to_string(), is_asked) => {
                metrics.failures.inc();
                tracing::error!(%error, "the new certificate or key is invalid: the previous certificate stays in use");
            }
            Err(_) => {}
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration of the next connection.
    fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current().config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::CertifiedKey;
    use std::fs;
    use std::path::Path;

    /// A new certificate and its key, in PEM format.
    fn pair() -> (String, String) {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        (cert.pem(), signing_key.serialize_pem())
    }

    /// Checks the files; returns whether another certificate is in use now, and the failures so far.
    fn check(tls: &FileCertificate, is_asked: bool, metrics: &CertificateMetrics) -> (bool, u64) {
        let before = tls.config();
        tls.read_if_changed(is_asked, metrics);
        (!Arc::ptr_eq(&before, &tls.config()), metrics.failures.get())
    }

    /// Overwrites a file in place, and keeps its modification time.
    fn overwrite(path: &Path, content: &str) {
        let modified = fs::metadata(path).and_then(|file| file.modified()).expect("reads");
        fs::write(path, content).expect("writes");
        fs::File::options().write(true).open(path).and_then(|file| file.set_modified(modified)).expect("sets");
    }

    #[test]
    fn a_failed_read_is_repeated_and_counts_once_if_it_lasts() {
        let dir = tempfile::tempdir().expect("a folder");
        let (certificate, key) = (dir.path().join("certificate.pem"), dir.path().join("key.pem"));
        let write = |path, content: &str| fs::write(path, content).expect("writes");
        let ((first, first_key), (second, second_key)) = (pair(), pair());
        write(&certificate, &first);
        write(&key, &first_key);
        let files = TlsFiles { certificate: certificate.clone(), key: key.clone(), http2: false, http3: false };
        let (listener, metrics) = (Tls::load(files).expect("loads"), CertificateMetrics::default());
        let tls = listener.files.as_ref().expect("has files");
        let failure = || listener.file_status().expect("has files").failure;
        // A check between the writes of both files is no failure.
        fs::remove_file(&key).expect("removes");
        assert_eq!(check(tls, false, &metrics), (false, 0));
        assert_eq!(failure(), None);
        write(&key, &second_key);
        assert_eq!(check(tls, false, &metrics), (false, 0));
        fs::remove_file(&certificate).expect("removes");
        write(&certificate, &second);
        assert_eq!(check(tls, false, &metrics), (true, 0));
        assert_eq!(check(tls, false, &metrics), (false, 0));
        // A failure that lasts counts once, unless a reload is requested.
        write(&certificate, &"x".repeat(second.len() + 1));
        assert_eq!([(); 3].map(|()| check(tls, false, &metrics)), [(false, 0), (false, 1), (false, 1)]);
        assert_eq!(check(tls, true, &metrics), (false, 2));
        assert_eq!(check(tls, false, &metrics), (false, 2));
        assert!(failure().is_some_and(|failure| failure.contains("certificate.pem")), "{:?}", failure());
        // Its end is detected even if the fingerprint is the same, as after a change of permissions.
        let invalid = tls.files.fingerprints();
        overwrite(&certificate, &format!("{second}\n"));
        assert_eq!(tls.files.fingerprints(), invalid);
        assert_eq!(check(tls, false, &metrics), (true, 2));
        assert_eq!(check(tls, false, &metrics), (false, 2));
        assert_eq!(failure(), None);
        assert!(listener.file_status().is_some_and(|status| status.expires_at > p2p_bridge::epoch::signed_now()));
    }
}
