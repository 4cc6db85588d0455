//! Certificates in files, and clients that trust them.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes a new certificate and its key into a folder, and returns their paths. Each is replaced as a whole.
pub fn write(dir: &Path) -> (PathBuf, PathBuf) {
    let names = ["localhost", "*.ipfs.localhost", "127.0.0.1"].map(str::to_owned);
    let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names).expect("is created");
    let (certificate, key) = (dir.join("certificate.pem"), dir.join("key.pem"));
    for (path, pem) in [(&key, signing_key.serialize_pem()), (&certificate, cert.pem())] {
        let partial = dir.join("partial.pem");
        fs::write(&partial, pem).expect("the folder is ours");
        fs::rename(&partial, path).expect("the folder is ours");
    }
    (certificate, key)
}

/// The configuration of a client that trusts this certificate and speaks this protocol (ALPN), with TLS 1.3.
pub fn trusting(certificate: &Path, protocol: &str) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).expect("a certificate")).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config
}
