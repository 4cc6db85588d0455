//! [`client_tls`]: TLS to the servers that the gateways of a site share.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use std::path::Path;
use std::sync::Arc;

/// A client that verifies servers by the authorities in a file in PEM format, or by those that the system trusts if the
/// path is empty. A system that trusts none can use servers without TLS nevertheless; `servers` names them in the
/// warning about that.
///
/// # Errors
/// A sentence for the operator: the file cannot be read, or has no valid certificate.
pub fn client_tls(ca: &Path, servers: &str) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    if ca.as_os_str().is_empty() {
        return Ok(match builder.clone().with_platform_verifier() {
            Ok(verified) => verified.with_no_client_auth(),
            // A server on this machine can be used nevertheless.
            Err(error) => {
                tracing::warn!(%error, "the system has no certificates of authorities to verify {servers} with");
                builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
            }
        });
    }
    let failed = |error: String| format!("the certificates in {} cannot be used: {error}", ca.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).map_err(|error| failed(error.to_string()))? {
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        roots.add(certificate).map_err(|error| failed(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(failed("the file has no certificate in PEM format".to_owned()));
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_authorities_must_have_a_certificate() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("ca.pem");
        assert!(client_tls(&file, "servers").is_err(), "there is no file");
        std::fs::write(&file, "nonsense").expect("writes");
        assert!(client_tls(&file, "servers").expect_err("is refused").contains("no certificate"));
        let own = rcgen::generate_simple_self_signed(["s3.example".to_owned()]).expect("is created");
        std::fs::write(&file, own.cert.pem()).expect("writes");
        assert!(client_tls(&file, "servers").is_ok());
    }
}
