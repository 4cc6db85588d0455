//! [`AcmeCertificate`]: a certificate of an authority and its key, as they are stored and used.

use super::schedule::Validity;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// A certificate with its key.
#[derive(Debug)]
pub struct AcmeCertificate {
    /// The chain and the key.
    pub certified: Arc<CertifiedKey>,
    /// When it is valid.
    pub validity: Validity,
    /// When it was last used in a handshake, in seconds since 1970.
    used: AtomicI64,
}

impl AcmeCertificate {
    /// Parses the key and the chain in PEM format, in any order.
    ///
    /// # Errors
    /// When they cannot be used, or the certificate is for another name.
    pub fn parse(name: &str, pem: &[u8], used: i64) -> Result<Self, String> {
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("no usable key: {error}"))?;
        let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| format!("no usable certificates: {error}"))?;
        let leaf = chain.first().ok_or("there is no certificate")?;
        let validity = validity_for(name, leaf)?;
        let certified = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider());
        let certified = certified.map_err(|error| format!("the key and the certificate cannot be used: {error}"))?;
        Ok(Self { certified: Arc::new(certified), validity, used: AtomicI64::new(used) })
    }

    /// The certificate itself, without its chain.
    pub fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.certified.cert.first()
    }

    /// When it was last used in a handshake.
    pub fn used(&self) -> i64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Records a use.
    pub fn use_at(&self, now: i64) {
        self.used.fetch_max(now, Ordering::Relaxed);
    }
}

fn validity_for(name: &str, certificate: &CertificateDer<'_>) -> Result<Validity, String> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|error| format!("no usable certificate: {error}"))?;
    let names = parsed.subject_alternative_name().map_err(|error| error.to_string())?;
    let is_named = names.is_some_and(|names| {
        names
            .value
            .general_names
            .iter()
            .any(|found| matches!(found, GeneralName::DNSName(found) if found.eq_ignore_ascii_case(name)))
    });
    match is_named {
        true => {
            let validity = parsed.validity();
            Ok(Validity { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() })
        }
        false => Err(format!("the certificate is not for {name}")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    /// A key and a certificate in PEM format, valid from 2020 until the end of a year.
    pub fn pem(name: &str, until: i32) -> String {
        let key = KeyPair::generate().expect("is created");
        let mut parameters = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (parameters.not_before, parameters.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until, 12, 31));
        key.serialize_pem() + &parameters.self_signed(&key).expect("is signed").pem()
    }

    #[test]
    fn a_certificate_is_used_only_with_its_key_and_for_its_name() {
        let first = pem("*.ipfs.example.org", 2031);
        let parsed = AcmeCertificate::parse("*.ipfs.example.org", first.as_bytes(), 7).expect("is valid");
        assert_eq!(parsed.validity, Validity { not_before: 1_577_836_800, not_after: 1_956_441_600 });
        for (now, used) in [(9, 9), (8, 9)] {
            parsed.use_at(now);
            assert_eq!(parsed.used(), used);
        }
        let (key, certificate) = first.split_once("-----BEGIN CERTIFICATE").expect("both");
        let second = pem("*.ipfs.example.org", 2031);
        let other_key = second.split_once("-----BEGIN CERTIFICATE").expect("both").0;
        let certificate = format!("-----BEGIN CERTIFICATE{certificate}");
        assert!(AcmeCertificate::parse("*.ipfs.example.org", format!("{certificate}{key}").as_bytes(), 0).is_ok());
        let table = [
            (String::new(), "no usable key"),
            (key.to_owned(), "there is no certificate"),
            (certificate.clone(), "no usable key"),
            (format!("{other_key}{certificate}"), "cannot be used"),
            (pem("example.org", 2031), "not for *.ipfs.example.org"),
            (first.replacen("MII", "AAA", 1), "no usable"),
        ];
        for (text, expected) in table {
            let error = AcmeCertificate::parse("*.ipfs.example.org", text.as_bytes(), 0).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
