//! TLS with an admin listener: certificate verification.
//!
//! Goals: the certificate is signed by an authority that the system trusts, or by one of `--admin-ca`, which may be the
//! certificate itself; no option disables the verification.
//!
//! The gateway of the data folder may have a certificate for its public name, but is contacted at 127.0.0.1. It is
//! authenticated in another way: it holds the data folder's lock, and has published the address there
//! ([`own_gateway`]).
//!
//! The system's authorities are read as OpenSSL's programs do: from `SSL_CERT_FILE`, or from the first bundle that
//! exists.

use anyhow::{Context as _, ensure};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// The usual paths of the bundle of trusted authorities.
const BUNDLES: [&str; 4] = [
    // Debian, Ubuntu, Arch, Alpine.
    "/etc/ssl/certs/ca-certificates.crt",
    // Fedora, RHEL.
    "/etc/pki/tls/certs/ca-bundle.crt",
    // openSUSE.
    "/etc/ssl/ca-bundle.pem",
    // The BSDs, macOS.
    "/etc/ssl/cert.pem",
];

/// A connector that trusts the authorities of the system, and those in a file if there is one.
///
/// # Errors
/// When the file cannot be read or has no certificate, or no authority would be trusted.
pub fn connector(more: Option<&Path>) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    if let Some(bundle) = bundle() {
        // Certificates of the bundle that cannot be parsed are skipped.
        roots.add_parsable_certificates(CertificateDer::pem_file_iter(bundle).into_iter().flatten().flatten());
    }
    if let Some(path) = more {
        let unreadable = || format!("{} cannot be read as certificates in PEM", path.display());
        let given: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).with_context(unreadable)?.collect();
        let given = given.with_context(unreadable)?;
        ensure!(!given.is_empty(), "{} has no certificate in PEM", path.display());
        for certificate in given {
            roots.add(certificate).with_context(|| format!("{} has an invalid certificate", path.display()))?;
        }
    }
    ensure!(
        !roots.is_empty(),
        "this system has no trusted certificate authorities: trust the gateway's certificate with --admin-ca"
    );
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(connector_of(config.with_root_certificates(roots).with_no_client_auth()))
}

/// A connector for the gateway that runs on the data folder, at the loopback address that it has published.
///
/// # Errors
/// When the TLS provider does not support the protocol versions, which does not happen.
pub fn own_gateway() -> anyhow::Result<TlsConnector> {
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider())));
    Ok(connector_of(config.with_no_client_auth()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn connector_of(mut config: ClientConfig) -> TlsConnector {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// Accepts any certificate whose private key the server has.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn bundle() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    named.or_else(|| BUNDLES.iter().map(PathBuf::from).find(|path| path.is_file()))
}

/// The name that the certificate must have, for the host of a URL.
///
/// # Errors
/// When the host is neither a DNS name nor an IP address.
pub fn name(host: &str) -> anyhow::Result<ServerName<'static>> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(bare.to_owned()).with_context(|| format!("{host} is not a valid name for a certificate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses_of_certificates() {
        for (host, is_address) in [("127.0.0.1", true), ("[::1]", true), ("gateway.example.org", false)] {
            let name = name(host).expect("a name");
            assert_eq!(matches!(name, ServerName::IpAddress(_)), is_address, "{host}");
        }
        assert!(name("a b").is_err());
    }

    #[test]
    fn a_file_without_certificates_is_rejected() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("ca.pem");
        let words = |error: anyhow::Error| format!("{error:#}");
        let missing = connector(Some(&path)).err().map(words).expect("is rejected");
        assert!(missing.contains("ca.pem cannot be read"), "{missing}");
        std::fs::write(&path, "nothing").expect("writes");
        let empty = connector(Some(&path)).err().map(words).expect("is rejected");
        assert!(empty.contains("ca.pem has no certificate"), "{empty}");
    }
}
