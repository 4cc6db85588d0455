//! Certificates in files.

use std::fs;
use std::path::{Path, PathBuf};

/// Writes a new certificate and its key into a folder, and returns their paths. Each is replaced as a whole.
pub fn write(dir: &Path) -> (PathBuf, PathBuf) {
    let names = ["localhost", "*.ipfs.localhost"].map(str::to_owned);
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names).expect("is created");
    let (certificate, key) = (dir.join("certificate.pem"), dir.join("key.pem"));
    for (path, pem) in [(&key, signing_key.serialize_pem()), (&certificate, cert.pem())] {
        let partial = dir.join("partial.pem");
        fs::write(&partial, pem).expect("the folder is ours");
        fs::rename(&partial, path).expect("the folder is ours");
    }
    (certificate, key)
}
