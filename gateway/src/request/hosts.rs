//! [`Hosts`]: the meaning of host names (<https://specs.ipfs.tech/http-gateways/subdomain-gateway/>,
//! <https://specs.ipfs.tech/http-gateways/dnslink-gateway/>).
//!
//! Goals: pure functions from a host name to its site, and from a path to its origin; on a host that is configured with
//! subdomains, no two sites share an origin.
//!
//! Non-goals: look-ups. The caller finds out whether a domain has a DNSLink.

use config::{Host, Http};
use content::names::{Domain, Name};
use content::path::{Namespace, Root};
use content::subdomain::LabelError;
use content::subdomain::label;
use content::subdomain::root_of_label;

/// The configured hosts, and the defaults for other host names.
#[derive(Debug, Clone)]
pub struct Hosts {
    hosts: Vec<Host>,
    /// Whether domains with a DNSLink are served as websites.
    pub dnslink_sites: bool,
    /// Whether deserialised responses are served under other host names.
    pub deserialized: bool,
}

/// The meaning of a host name.
#[derive(Debug, Clone, PartialEq)]
pub enum Site<'a> {
    /// A configured host.
    Configured(&'a Host),
    /// `LABEL.ipfs.HOST` or `LABEL.ipns.HOST`.
    Subdomain(Subdomain<'a>),
    /// A domain that may have a DNSLink.
    Domain(Domain),
    /// An IP address, or a name without a dot: a path gateway.
    Other,
}

/// An origin below a configured host.
#[derive(Debug, Clone, PartialEq)]
pub struct Subdomain<'a> {
    /// The configured host.
    pub host: &'a Host,
    /// The namespace of the label.
    pub namespace: Namespace,
    /// The part before `.ipfs.HOST`, in lower case.
    pub label: String,
}

impl Hosts {
    /// The configured hosts.
    pub fn of(http: &Http) -> Self {
        Self { hosts: http.hosts.clone(), dnslink_sites: http.dnslink_sites, deserialized: http.deserialized }
    }

    /// The meaning of a host name (without port, in lower case).
    pub fn site(&self, name: &str) -> Site<'_> {
        if let Some(host) = self.hosts.iter().find(|host| host.name == name) {
            return Site::Configured(host);
        }
        let subdomain = self.hosts.iter().find_map(|host| {
            let below = name.strip_suffix(host.name.as_str())?.strip_suffix('.')?;
            let (label, namespace) = below.rsplit_once('.')?;
            let namespace = match namespace {
                "ipfs" => Namespace::Ipfs,
                "ipns" => Namespace::Ipns,
                _ => return None,
            };
            host.subdomains.then(|| Subdomain { host, namespace, label: label.to_owned() })
        });
        match subdomain {
            Some(subdomain) => Site::Subdomain(subdomain),
            None => self.domain(name).map_or(Site::Other, Site::Domain),
        }
    }

    fn domain(&self, name: &str) -> Option<Domain> {
        self.dnslink_sites.then(|| Domain::parse(name)).flatten()
    }
}

/// Whether a host serves a namespace.
pub fn serves(host: &Host, namespace: Namespace) -> bool {
    host.namespaces.iter().any(|served| served == namespace.name())
}

impl Subdomain<'_> {
    /// The root that the label names.
    ///
    /// # Errors
    /// [`LabelError`] when the label is not valid in its namespace.
    pub fn root(&self) -> Result<Root, LabelError> {
        root_of_label(self.namespace, &self.label)
    }

    /// The canonical label of the root, if this one differs.
    ///
    /// # Errors
    /// [`LabelError::TooLong`] when the root does not fit a label.
    pub fn canonical_label(&self, root: &Root) -> Result<Option<String>, LabelError> {
        // A domain with dots instead of an inlined label is accepted too: that is the form without TLS.
        let label = match root {
            Root::Name(Name::Domain(_)) => return Ok(None),
            root => label(root, true)?,
        };
        Ok((label != self.label).then_some(label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::ContentPath;
    use content::subdomain::inline;
    use proptest::prelude::*;

    fn hosts() -> Hosts {
        let mut plain = Host::named("plain.example");
        plain.subdomains = false;
        let hosts = vec![Host::named("example.com"), Host::named("localhost"), plain];
        Hosts { hosts, dnslink_sites: true, deserialized: true }
    }

    fn root(path: &str) -> Root {
        ContentPath::parse(path, 4).expect("a path").root
    }

    const B32: &str = "bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am";
    const KEY: &str = "k51qzi5uqu5dk3v4rmjber23h16xnr23bsggmqqil9z2gduiis5se8dht36dam";

    #[test]
    fn host_names_are_classified() {
        let hosts = hosts();
        let site = |name: &str| match hosts.site(name) {
            Site::Configured(host) => format!("known {}", host.name),
            Site::Subdomain(sub) => format!("{}{} of {}", sub.namespace.prefix(), sub.label, sub.host.name),
            Site::Domain(domain) => format!("domain {domain}"),
            Site::Other => "other".to_owned(),
        };
        let table = [
            ("example.com", "known example.com"),
            ("localhost", "known localhost"),
            ("bafy.ipfs.example.com", "/ipfs/bafy of example.com"),
            ("bafy.ipfs.localhost", "/ipfs/bafy of localhost"),
            ("en.wikipedia-on-ipfs.org.ipns.example.com", "/ipns/en.wikipedia-on-ipfs.org of example.com"),
            ("ipfs.example.com", "domain ipfs.example.com"),
            ("x.example.com", "domain x.example.com"),
            ("bafy.ipfs.plain.example", "domain bafy.ipfs.plain.example"),
            ("notexample.com", "domain notexample.com"),
            ("127.0.0.1", "other"),
            ("[::1]", "other"),
            ("intranet", "other"),
            ("", "other"),
        ];
        for (name, expected) in table {
            assert_eq!(site(name), expected, "{name}");
        }
        let without = Hosts { dnslink_sites: false, ..hosts.clone() };
        assert_eq!(without.site("x.example.com"), Site::Other);
    }

    #[test]
    fn roots_have_canonical_labels() {
        let table = [
            (format!("/ipfs/{B32}"), Some(B32)),
            (format!("/ipfs/{}", B32.to_uppercase()), Some(B32)),
            (
                "/ipfs/QmWvY6FaqFMS89YAQ9NAPjVP4WZKA1qbHbicc9HeSKQTgt".to_owned(),
                Some("bafybeid7hhyfiju476mrreagi4gzqsdw2fjoyeaml6g7u77a36lkjt5q3u"),
            ),
            ("/ipns/12D3KooWLQzUv2FHWGVPXTXSZpdHs7oHbXub2G5WC8Tx4NQhyd2d".to_owned(), Some(KEY)),
            ("/ipns/en.wikipedia-on-ipfs.org".to_owned(), Some("en-wikipedia--on--ipfs-org")),
            (format!("/ipns/{}.org", ["a"; 32].join(".")), None),
        ];
        for (path, expected) in table {
            let label = label(&root(&path), true);
            match expected {
                Some("bafybeid7hhyfiju476mrreagi4gzqsdw2fjoyeaml6g7u77a36lkjt5q3u") => {
                    assert!(label.expect("fits").starts_with("bafybei"));
                }
                expected => assert_eq!(label.ok().as_deref(), expected, "{path}"),
            }
        }
        assert_eq!(label(&root("/ipns/a-b.org"), false).as_deref(), Ok("a-b.org"));
    }

    #[test]
    fn labels_lead_back_to_their_roots() {
        let hosts = hosts();
        let table = [
            (format!("{B32}.ipfs.localhost"), format!("/ipfs/{B32}"), None),
            (format!("{KEY}.ipns.localhost"), format!("/ipns/{KEY}"), None),
            ("dnslink--test-example-org.ipns.localhost".to_owned(), "/ipns/dnslink-test.example.org".to_owned(), None),
            ("dnslink-test.example.org.ipns.localhost".to_owned(), "/ipns/dnslink-test.example.org".to_owned(), None),
        ];
        for (name, path, better) in table {
            let Site::Subdomain(subdomain) = hosts.site(&name) else { panic!("{name}") };
            let found = subdomain.root().expect("a root");
            assert_eq!(found, root(&path), "{name}");
            assert_eq!(subdomain.canonical_label(&found), Ok(better), "{name}");
        }
        for name in ["hello.ipfs.localhost", "hello.ipns.localhost", ".ipns.localhost"] {
            let Site::Subdomain(subdomain) = hosts.site(name) else { panic!("{name}") };
            assert!(subdomain.root().is_err(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn inlining_can_be_undone(domain in "[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?){1,3}") {
            prop_assert_eq!(content::dnslink::domain_of_label(&inline(&domain)), domain);
        }
    }
}
