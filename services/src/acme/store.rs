//! [`Store`]: the account and the certificates of one authority in the data folder.
//!
//! ```text
//! acme/HOST-HASH/account.json             the account and its key
//! acme/HOST-HASH/certificates/NAME.pem    a key and its chain, for `*.NAME` as _wildcard.NAME.pem
//! ```
//!
//! A folder for each directory URL, so that certificates of a test authority are never used beside real ones. Files are
//! replaced atomically and are readable only by their owner ([`durable`]). The modification time of a certificate is
//! when it was last used, to a day.
//!
//! All functions block.

use super::certificate::AcmeCertificate;
use config::acme::certificate_name;
use p2p_bridge::{durable, epoch};
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// The folder in the data folder.
const FOLDER: &str = "acme";
/// What a file name begins with instead of `*.`; no host name has an underscore.
const WILDCARD: &str = "_wildcard.";
const EXTENSION: &str = "pem";
/// The maximum size of a file, in bytes.
pub(super) const FILE_BYTES_MAX: usize = 1 << 20;

/// The files of one authority.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The files of the authority with this directory.
    pub fn new(data_dir: &Path, directory: &str) -> Self {
        let host = directory.split("//").nth(1).and_then(|rest| rest.split(['/', ':', '?']).next()).unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        let host: String = host.chars().take(64).map(|c| if is_plain(c) { c } else { '_' }).collect();
        let hash: String = Sha256::digest(directory).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Self { folder: data_dir.join(FOLDER).join(format!("{host}-{hash}")) }
    }

    /// Creates the folders.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(&self) -> io::Result<()> {
        durable::create_folder(&self.certificates())
    }

    /// The folder of this authority.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn certificates(&self) -> PathBuf {
        self.folder.join("certificates")
    }

    fn account_path(&self) -> PathBuf {
        self.folder.join("account.json")
    }

    fn path(&self, name: &str) -> PathBuf {
        let stem = name.strip_prefix("*.").map_or_else(|| name.to_owned(), |domain| format!("{WILDCARD}{domain}"));
        self.certificates().join(format!("{stem}.{EXTENSION}"))
    }

    /// The account, if there is one.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn account(&self) -> io::Result<Option<String>> {
        match durable::read(&self.account_path(), FILE_BYTES_MAX) {
            Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores the account.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn save_account(&self, account: &str) -> io::Result<()> {
        durable::write(&self.account_path(), account.as_bytes())
    }

    /// Removes the account, which the authority does not know any more.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn remove_account(&self) -> io::Result<()> {
        durable::remove(&self.account_path())
    }

    /// Stores a certificate: its key and its chain in PEM format.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn save(&self, name: &str, pem: &[u8]) -> io::Result<()> {
        durable::write(&self.path(name), pem)
    }

    /// Removes a certificate.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        durable::remove(&self.path(name))
    }

    /// Records when a certificate was last used. That need not survive a power cut.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn touch(&self, name: &str, used: i64) -> io::Result<()> {
        let time = UNIX_EPOCH + Duration::from_secs(u64::try_from(used).unwrap_or_default());
        File::options().write(true).open(self.path(name))?.set_modified(time)
    }

    /// All stored certificates, by name. Files that cannot be used are reported in the log and left as they are.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn load(&self) -> io::Result<Vec<(String, AcmeCertificate)>> {
        let mut found = Vec::new();
        for file in fs::read_dir(self.certificates())? {
            let path = file?.path();
            let Some(name) = name_of(&path) else { continue };
            match read(&name, &path) {
                Ok(certificate) => found.push((name, certificate)),
                Err(error) => {
                    let file = path.display();
                    tracing::warn!(%file, error, "a stored certificate cannot be used and is ignored");
                }
            }
        }
        Ok(found)
    }
}

/// The name of the certificate in a file, if it is one.
fn name_of(path: &Path) -> Option<String> {
    let stem = path.file_name()?.to_str()?.strip_suffix(EXTENSION)?.strip_suffix('.')?;
    let name = stem.strip_prefix(WILDCARD).map_or_else(|| stem.to_owned(), |domain| format!("*.{domain}"));
    certificate_name(&name).filter(|valid| *valid == name)
}

fn read(name: &str, path: &Path) -> Result<AcmeCertificate, String> {
    let text = |error: io::Error| error.to_string();
    let modified = fs::metadata(path).and_then(|file| file.modified()).map_err(text)?;
    let pem = durable::read(path, FILE_BYTES_MAX).map_err(text)?;
    AcmeCertificate::parse(name, &pem, i64::try_from(epoch::seconds(modified)).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::certificate::tests::pem;
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn accounts_and_certificates_are_private_and_survive() {
        let dir = tempfile::tempdir().expect("a folder");
        let url = "https://ca.example:14000/directory";
        let store = Store::new(dir.path(), url);
        store.create().expect("creates");
        let names = ["example.org", "*.ipfs.example.org"];
        for name in names {
            store.save(name, pem(name, 2031).as_bytes()).expect("writes");
        }
        assert_eq!(store.account().expect("reads"), None);
        store.save_account("{}").expect("writes");
        store.touch("example.org", 1_700_000_000).expect("is recorded");
        // What is no certificate, or one of another name, is ignored.
        fs::write(store.path("other.org"), pem("example.org", 2031)).expect("writes");
        fs::write(store.certificates().join("example.org.partial"), "x").expect("writes");
        fs::write(store.certificates().join("_dnslink.org.pem"), "x").expect("writes");

        let again = Store::new(dir.path(), url);
        let mut found = again.load().expect("reads");
        found.sort_by(|first, second| second.0.cmp(&first.0));
        assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), names);
        assert_eq!(found[0].1.used(), 1_700_000_000);
        assert_eq!(again.account().expect("reads").as_deref(), Some("{}"));
        let mode = |path: PathBuf| fs::metadata(path).expect("is there").permissions().mode() & 0o777;
        let modes = [again.account_path(), again.path(names[0]), again.path(names[1])].map(mode);
        assert_eq!((modes, mode(again.folder.clone())), ([0o600; 3], 0o700));

        again.remove("example.org").expect("removes");
        again.remove_account().expect("removes");
        assert_eq!((again.load().expect("reads").len(), again.account().expect("reads")), (1, None));
    }

    #[test]
    fn each_directory_has_a_folder_of_its_own_whatever_its_url() {
        let folder = |url: &str| {
            let store = Store::new(Path::new("/data"), url);
            store.folder.file_name().and_then(|name| name.to_str()).expect("a name").to_owned()
        };
        assert!(folder("https://ca.example/directory").starts_with("ca.example-"));
        assert!(folder("https://[::1]:14000/dir").starts_with("_-"), "{}", folder("https://[::1]:14000/dir"));
        assert_ne!(folder("https://ca.example/directory"), folder("https://ca.example/staging"));
        assert!(!folder("https://../../x").contains('/'));
    }
}
