//! Certificates by ACME: the names that certificates are obtained for, and the challenges.
//!
//! Non-goals: obtaining certificates, which is `services::acme`.

use crate::values::Host;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The maximum length of a name in a certificate's common name and of a DNS name, in bytes.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
/// What the TXT record of dns-01 adds to a name.
const RECORD_PREFIX: &str = "_acme-challenge.";
/// The namespaces that have an origin for each of their roots.
const NAMESPACES: [&str; 2] = ["ipfs", "ipns"];

/// How control over a name is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AcmeChallenge {
    /// A file over HTTP on port 80 (RFC 8555, section 8.3).
    #[serde(rename = "http-01")]
    Http01,
    /// A certificate in a TLS handshake on port 443 (RFC 8737).
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    /// A TXT record (RFC 8555, section 8.4).
    #[serde(rename = "dns-01")]
    Dns01,
}

/// Validates a name that a certificate can be for: a host name of at least two labels of letters, digits and inner
/// hyphens whose last one is not a number, or such a name after `*.`. The result is in lower case.
pub fn certificate_name(text: &str) -> Option<String> {
    let domain = text.strip_prefix("*.").unwrap_or(text);
    let label_is_valid = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = domain.rsplit('.').next().unwrap_or_default();
    let is_valid = RECORD_PREFIX.len() + domain.len() <= NAME_BYTES_MAX
        && domain.contains('.')
        && domain.split('.').all(label_is_valid)
        && !last.bytes().all(|byte| byte.is_ascii_digit());
    is_valid.then(|| text.to_ascii_lowercase())
}

/// Whether no authority issues certificates for a name: its top-level domain is reserved for local use (RFC 6761,
/// RFC 6762, RFC 8375, RFC 9476).
pub fn is_local(name: &str) -> bool {
    let below = |suffix: &str| name == suffix || name.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.'));
    ["localhost", "local", "internal", "home.arpa", "onion", "alt"].into_iter().any(below)
}

/// The names of hosts that need certificates, without duplicates: those that are public host names, and for those with
/// subdomains the wildcards of their origins.
pub(crate) fn names_of_hosts(hosts: &[Host]) -> Vec<String> {
    let of_host = |host: &Host| {
        let served = NAMESPACES.iter().filter(|namespace| host.namespaces.iter().any(|served| served == *namespace));
        let wildcards = served.filter(|_| host.subdomains).map(|namespace| format!("*.{namespace}.{}", host.name));
        std::iter::once(host.name.clone()).chain(wildcards).collect::<Vec<_>>()
    };
    let public = hosts.iter().filter(|host| certificate_name(&host.name).is_some() && !is_local(&host.name));
    without_duplicates(public.flat_map(of_host))
}

/// The names in their order, each once.
pub(crate) fn without_duplicates(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = HashSet::new();
    names.filter(|name| seen.insert(name.clone())).collect()
}

/// Names of certificates.
pub(crate) fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parse = |text: &String| {
        certificate_name(text.trim()).ok_or_else(|| {
            D::Error::custom(format!(
                "\"{text}\" is not a name for a certificate, such as example.org or *.ipfs.example.org"
            ))
        })
    };
    texts.iter().map(parse).collect()
}

/// E-mail addresses. The authority decides whether it accepts them.
pub(crate) fn contacts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parse = |text: &String| {
        let address = text.trim();
        let address = address.strip_prefix("mailto:").unwrap_or(address);
        let is_address = address
            .split_once('@')
            .is_some_and(|(name, domain)| !name.is_empty() && domain.contains('.') && !domain.contains('@'));
        // Commas and question marks would add recipients or headers to a mailto URL (RFC 8555, section 7.3).
        let is_safe = address.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'?' | b'%'));
        match is_address && is_safe {
            true => Ok(address.to_owned()),
            false => Err(D::Error::custom(format!("\"{text}\" is not an e-mail address, such as you@example.org"))),
        }
    };
    texts.iter().map(parse).collect()
}

/// Whether a text is the URL of a directory: HTTPS with a host, without user information and fragment.
pub(crate) fn is_directory(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://") else { return false };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).map_or(authority, |(host, _)| host);
    !host.is_empty() && !authority.contains('@') && rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_certificates_are_host_names_and_wildcards() {
        let long = format!("{}.org", ["a"; 120].join("."));
        let label = format!("{}.org", "a".repeat(63));
        for name in ["example.org", "*.ipfs.Example.org", "xn--nxasmq6b.eth", "a-b.c1", &label] {
            assert_eq!(certificate_name(name), Some(name.to_ascii_lowercase()), "{name}");
        }
        let label = format!("{}.org", "a".repeat(64));
        let bad = [
            "",
            "*",
            "*.",
            "*.*.org",
            "a.*.org",
            "localhost",
            "127.0.0.1",
            "[::1]",
            "::1",
            "a_b.org",
            "a..b",
            ".a.b",
            "a.b.",
            "-a.org",
            "a-.org",
            "é.org",
            "a b.org",
            "../a.b",
            "a/b.c",
            &long,
            &label,
        ];
        for name in bad {
            assert_eq!(certificate_name(name), None, "{name}");
        }
    }

    #[test]
    fn names_are_those_of_public_hosts() {
        let mut plain = Host::named("plain.example");
        plain.subdomains = false;
        let mut ipfs_only = Host::named("only.example");
        ipfs_only.namespaces = vec!["ipfs".to_owned()];
        let hosts =
            ["localhost", "a.localhost", "gateway.example", "box.local", "intranet", "10.0.0.1", "gateway.example"];
        let hosts: Vec<Host> = hosts.map(Host::named).into_iter().chain([plain, ipfs_only]).collect();
        let expected = [
            "gateway.example",
            "*.ipfs.gateway.example",
            "*.ipns.gateway.example",
            "plain.example",
            "only.example",
            "*.ipfs.only.example",
        ];
        assert_eq!(names_of_hosts(&hosts), expected);
    }

    #[test]
    fn directories_have_https_urls() {
        for url in
            ["https://ca.example/directory", "https://127.0.0.1:14000/dir", "https://[::1]:1/d?x", "https://ca.example"]
        {
            assert!(is_directory(url), "{url}");
        }
        for url in [
            "",
            "ca.example",
            "http://ca.example/d",
            "https://",
            "https:///d",
            "https://a@ca.example/",
            "https://a/#b",
            "https://a/ b",
        ] {
            assert!(!is_directory(url), "{url}");
        }
    }
}
