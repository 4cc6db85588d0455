//! Certificates by ACME: the names that certificates are obtained for, the challenges, and what the settings need.
//!
//! Non-goals: obtaining certificates, which is `services::acme`.

use crate::loaded::{ConfigError, Loaded};
use crate::schema::{Config, Http};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

/// The maximum length of a name in a certificate's common name and of a DNS name, in bytes.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
/// What the TXT record of dns-01 adds to a name.
const RECORD_PREFIX: &str = "_acme-challenge.";
/// The maximum number of names: authorities limit the orders of an account.
const NAMES_MAX: usize = 200;
/// The namespaces that have an origin for each of their roots.
const NAMESPACES: [&str; 2] = ["ipfs", "ipns"];
/// The longest stored number of certificates on demand: each takes some kilobytes of memory.
const ON_DEMAND_MAX: u64 = 100_000;

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

impl Http {
    /// The names that certificates are obtained for, without duplicates: `acme_names`, or those of `hosts`.
    pub fn certificate_names(&self) -> Vec<String> {
        let of_hosts = || {
            let public =
                self.hosts.iter().filter(|host| certificate_name(&host.name).is_some() && !is_local(&host.name));
            public.flat_map(|host| {
                let wildcards = NAMESPACES
                    .iter()
                    .filter(|namespace| host.subdomains && host.namespaces.iter().any(|served| served == *namespace));
                let wildcards = wildcards.map(|namespace| format!("*.{namespace}.{}", host.name));
                std::iter::once(host.name.clone()).chain(wildcards).collect::<Vec<_>>()
            })
        };
        let mut names = if self.acme_names.is_empty() { of_hosts().collect() } else { self.acme_names.clone() };
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }
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
fn is_directory(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://") else { return false };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).map_or(authority, |(host, _)| host);
    !host.is_empty() && !authority.contains('@') && rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

/// Validates the settings of ACME together.
///
/// # Errors
/// [`ConfigError`] about the first setting that is invalid or missing.
pub(crate) fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    let Config { http, .. } = &loaded.config;
    if http.acme_directory.is_empty() {
        return match http.acme_on_demand {
            true => Err(loaded.error("http.acme_on_demand", "certificates on demand need http.acme_directory as well")),
            false => Ok(()),
        };
    }
    if !is_directory(&http.acme_directory) {
        let reason = format!(
            "\"{}\" is not the URL of a directory, such as https://acme-v02.api.letsencrypt.org/directory",
            http.acme_directory
        );
        return Err(loaded.error("http.acme_directory", reason));
    }
    if !http.acme_terms_agreed {
        let reason = "read the terms of service of the certificate authority, and set http.acme_terms_agreed = true if \
                      you agree to them";
        return Err(loaded.error("http.acme_directory", reason));
    }
    if http.acme_on_demand && !http.dnslink_sites {
        let reason = "certificates on demand are for websites under their own domains: they need http.dnslink_sites as \
                      well";
        return Err(loaded.error("http.acme_on_demand", reason));
    }
    if http.acme_on_demand_max > ON_DEMAND_MAX {
        let reason = format!("{} is too large: the maximum is {ON_DEMAND_MAX}", http.acme_on_demand_max);
        return Err(loaded.error("http.acme_on_demand_max", reason));
    }
    if http.acme_challenges.is_empty() {
        return Err(loaded.error("http.acme_challenges", "needs at least one challenge, such as \"tls-alpn-01\""));
    }
    names_can_be_proved(loaded)
}

fn names_can_be_proved(loaded: &Loaded) -> Result<(), ConfigError> {
    let Config { http, .. } = &loaded.config;
    let names = http.certificate_names();
    if names.is_empty() && !http.acme_on_demand {
        let reason = "there is no name to obtain a certificate for: set http.hosts to the public host names of the \
                      gateway, or set http.acme_names";
        return Err(loaded.error("http.acme_directory", reason));
    }
    if names.len() > NAMES_MAX {
        let reason = format!("{} names are too many: the maximum is {NAMES_MAX}", names.len());
        return Err(loaded.error(if http.acme_names.is_empty() { "http.hosts" } else { "http.acme_names" }, reason));
    }
    if http.acme_dns_hook.as_os_str().is_empty() {
        if let Some(wildcard) = names.iter().find(|name| name.starts_with("*.")) {
            let reason = format!(
                "a certificate for {wildcard} needs http.acme_dns_hook as well, a program that sets DNS records. \
                 Without one, set subdomains = false for the host in http.hosts, or list the other names in http.acme_names"
            );
            return Err(loaded.error("http.acme_directory", reason));
        }
        if http.acme_challenges.contains(&AcmeChallenge::Dns01) {
            return Err(loaded.error("http.acme_challenges", "dns-01 needs http.acme_dns_hook as well"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Host;

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
    fn names_are_those_of_public_hosts_unless_they_are_listed() {
        let mut plain = Host::named("plain.example");
        plain.subdomains = false;
        let mut ipfs_only = Host::named("only.example");
        ipfs_only.namespaces = vec!["ipfs".to_owned()];
        let hosts =
            ["localhost", "a.localhost", "gateway.example", "box.local", "intranet", "10.0.0.1", "gateway.example"];
        let mut http = Http { hosts: hosts.map(Host::named).to_vec(), ..Http::default() };
        http.hosts.extend([plain, ipfs_only]);
        let expected = [
            "gateway.example",
            "*.ipfs.gateway.example",
            "*.ipns.gateway.example",
            "plain.example",
            "only.example",
            "*.ipfs.only.example",
        ];
        assert_eq!(http.certificate_names(), expected);
        http.acme_names = ["b.example", "a.example", "b.example"].map(str::to_owned).to_vec();
        assert_eq!(http.certificate_names(), ["b.example", "a.example"]);
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
