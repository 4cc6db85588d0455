//! Addresses of trustless gateways: parses a multiaddr or a configured URL into a [`Base`], and rejects unsafe ones.
//!
//! Goals: one normal form per gateway, so that a hundred records with the same gateway give one source; an untrusted
//! address becomes nothing but a scheme, a host, a port and path segments, and has neither a reserved port nor a
//! private IP address.
//!
//! Non-goals: name resolution. The IP addresses of a name are checked when it is dialled ([`super::dialling`]).
//!
//! Accepted forms (<https://github.com/multiformats/multiaddr/blob/master/protocols.csv>):
//!
//! ```text
//! /(ip4|ip6|dns|dns4|dns6)/HOST[/tcp/PORT](/http|/https|/tls[/sni/NAME]/http)[/http-path/PATH][/p2p/ID]
//! ```
//!
//! The port defaults to the scheme's. With `/sni/NAME` that name is the host, resolved by DNS: certificates are checked
//! against a name, so a separate IP address would add no trust. `/dns4` and `/dns6` are read as `/dns`.
//! [`crate::dialable`] parses the address.

use crate::dialable::{Host, Shape, TransportKind, is_free_port};
use crate::scope::is_public;
use content::scope::ScopeOptions;
use content::{Cid, hashes};
use libp2p::{Multiaddr, PeerId};
use reqwest::Url;
use std::net::IpAddr;

/// The maximum length of a base URL, in bytes.
const URL_BYTES_MAX: usize = 512;

/// The maximum length of the path in the URL of a CAR, in bytes: less than the request line that servers accept.
const PATH_BYTES_MAX: usize = 4 * 1024;

/// Why an address is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is an address of another protocol.
    #[error("it is not an HTTP address")]
    NotHttp,
    /// It is not the address of a gateway.
    #[error("it is not the base URL of a gateway, such as https://gateway.example.org: {0}")]
    Malformed(&'static str),
    /// Untrusted parties may not supply it.
    #[error("it is not allowed for untrusted sources: {0}")]
    Refused(&'static str),
}

/// Whether an address is an HTTP address, which libp2p transports cannot dial.
pub fn is_http(address: &Multiaddr) -> bool {
    HttpParts::read(address).is_ok()
}

/// The base URL of a trustless gateway in normal form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    url: Url,
    id: PeerId,
}

impl Base {
    /// Parses a configured URL: `http` or `https`, a host, optionally a port and a path.
    ///
    /// # Errors
    /// [`AddressError::Malformed`].
    pub fn from_url(text: &str) -> Result<Self, AddressError> {
        let url = Url::parse(text.trim()).map_err(|_| AddressError::Malformed("it is not a URL"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(AddressError::Malformed("its scheme is neither http nor https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AddressError::Malformed("it has a user name"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(AddressError::Malformed("it has a query or a fragment"));
        }
        Self::new(url)
    }

    /// Parses a multiaddr, for example of a provider record, in one of the forms above.
    ///
    /// # Errors
    /// [`AddressError::NotHttp`] for an address of another protocol, else [`AddressError::Malformed`].
    pub fn from_multiaddr(address: &Multiaddr) -> Result<Self, AddressError> {
        let parts = HttpParts::read(address)?;
        let scheme = if parts.tls { "https" } else { "http" };
        // The URL parser alone decides what the host is: it reads "0x7f.1" as 127.0.0.1, for example.
        let mut url = Url::parse(&format!("{scheme}://{}", parts.host))
            .map_err(|_| AddressError::Malformed("its host is invalid"))?;
        let nothing_else = url.username().is_empty() && url.password().is_none() && url.port().is_none();
        if !nothing_else || url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(AddressError::Malformed("its host is invalid"));
        }
        let bad_port = AddressError::Malformed("its port is invalid");
        if parts.port == Some(0) || url.set_port(parts.port).is_err() {
            return Err(bad_port);
        }
        url.path_segments_mut()
            .map_err(|()| AddressError::Malformed("it cannot have a path"))?
            .clear()
            .extend(parts.path.split('/').filter(|segment| !segment.is_empty()));
        Self::new(url)
    }

    fn new(mut url: Url) -> Result<Self, AddressError> {
        if url.host_str().is_none_or(str::is_empty) {
            return Err(AddressError::Malformed("it has no host"));
        }
        while url.path().len() > 1 && url.path().ends_with('/') {
            url.path_segments_mut().map_err(|()| AddressError::Malformed("it cannot have a path"))?.pop_if_empty();
        }
        if url.as_str().len() > URL_BYTES_MAX {
            return Err(AddressError::Malformed("it is too long"));
        }
        let id = id_of(&url).ok_or(AddressError::Malformed("its hash cannot be computed"))?;
        Ok(Self { url, id })
    }

    /// A peer ID that stands for the gateway. It is derived from the URL, and not the peer ID in the provider record:
    /// nothing proves that these belong together, so a record could blame another peer for a server's misbehaviour. It
    /// is no key's ID, so no peer can connect with it.
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// Scheme, host and port, by which limits and circuit breakers count.
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// The URL of a block
    /// (<https://specs.ipfs.tech/http-gateways/trustless-gateway/#block-responses-application-vnd-ipld-raw>).
    pub fn block_url(&self, cid: &Cid) -> Url {
        self.content_url(cid, "format=raw")
    }

    /// The URL of a part of a DAG as a CAR
    /// (<https://specs.ipfs.tech/http-gateways/trustless-gateway/#car-responses-application-vnd-ipld-car>); `None` if a
    /// URL cannot have the names of the path, or would be too long.
    pub fn car_url(&self, root: &Cid, path: &[String], scope: &ScopeOptions) -> Option<Url> {
        let mut query = format!("format=car&dag-scope={}", scope.scope.name());
        if let Some(bytes) = scope.entity_bytes.filter(|_| scope.scope.is_entity()) {
            query.push_str(&format!("&entity-bytes={bytes}"));
        }
        let mut url = self.content_url(root, &query);
        let mut whole = url.path().to_owned();
        for name in path {
            // Parsers of URLs remove the first two, and servers split a name with a slash.
            if matches!(name.as_str(), "." | ".." | "") || name.contains('/') {
                return None;
            }
            whole.push('/');
            whole.extend(name.bytes().map(encoded));
            if whole.len() > PATH_BYTES_MAX {
                return None;
            }
        }
        url.set_path(&whole);
        Some(url)
    }

    fn content_url(&self, cid: &Cid, query: &str) -> Url {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("ipfs").push(&cid.to_string());
        }
        url.set_query(Some(query));
        url
    }

    /// Checks that an untrusted source may supply this URL, as far as it is known without DNS.
    ///
    /// # Errors
    /// [`AddressError::Refused`] for private IP addresses and reserved ports.
    pub fn check_as_untrusted(&self) -> Result<(), AddressError> {
        check_as_untrusted(&self.url)
    }
}

/// Checks that an untrusted source may supply a URL, as far as it is known without DNS.
///
/// # Errors
/// [`AddressError::Refused`] for private IP addresses and reserved ports.
pub fn check_as_untrusted(url: &Url) -> Result<(), AddressError> {
    let host = url.host_str().unwrap_or_default();
    if let Ok(ip) = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>()
        && !is_public(ip)
    {
        return Err(AddressError::Refused("its host is a private IP address"));
    }
    match url.port_or_known_default() {
        Some(port) if is_free_port(port) => Ok(()),
        _ => Err(AddressError::Refused("its port is reserved for another service")),
    }
}

impl std::fmt::Display for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.url.as_str())
    }
}

/// A byte of a name as it is in a URL (<https://www.rfc-editor.org/rfc/rfc3986#section-2.3>).
fn encoded(byte: u8) -> String {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    }
}

fn id_of(url: &Url) -> Option<PeerId> {
    let named = format!("causeway http source {url}");
    let digest = hashes::digest(hashes::SHA2_256, 32, named.as_bytes()).ok()?;
    PeerId::from_bytes(&digest.to_bytes()).ok()
}

/// The parts of a multiaddr, not yet validated.
struct HttpParts {
    host: String,
    port: Option<u16>,
    tls: bool,
    path: String,
}

impl HttpParts {
    fn read(address: &Multiaddr) -> Result<Self, AddressError> {
        let shape = Shape::read(address).map_err(|_| AddressError::NotHttp)?;
        let TransportKind::Http { port, tls, sni, path } = shape.transport else { return Err(AddressError::NotHttp) };
        let host = match (sni, shape.host) {
            (Some(name), _) | (None, Host::Name(name)) => name.into_owned(),
            (None, Host::Ip(IpAddr::V4(ip))) => ip.to_string(),
            (None, Host::Ip(IpAddr::V6(ip))) => format!("[{ip}]"),
            (None, Host::Memory) => return Err(AddressError::NotHttp),
        };
        Ok(Self { host, port, tls, path: path.into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::cid::parse;
    use libp2p::multiaddr::Protocol;
    use proptest::prelude::*;

    fn base(address: &str) -> Result<Base, AddressError> {
        Base::from_multiaddr(&address.parse().expect(address))
    }

    #[test]
    fn all_forms_of_http_addresses_are_parsed() {
        let table = [
            ("/dns4/example.org/tcp/443/tls/http", "https://example.org/"),
            ("/dns/example.org/tcp/443/https", "https://example.org/"),
            ("/dns/example.org/https", "https://example.org/"),
            ("/dns/Example.ORG/http", "http://example.org/"),
            ("/dns6/example.org/tcp/8443/tls/http", "https://example.org:8443/"),
            ("/ip4/1.2.3.4/tcp/80/http", "http://1.2.3.4/"),
            ("/ip6/2606:4700::1111/tcp/8080/http", "http://[2606:4700::1111]:8080/"),
            ("/ip4/1.2.3.4/tcp/443/tls/sni/example.org/http", "https://example.org/"),
            ("/dns/example.org/https/http-path/a%2Fb", "https://example.org/a/b"),
            ("/dns/example.org/https/http-path/%2Fa%2F", "https://example.org/a"),
            ("/dns/example.org/https/http-path/..%2F..%2Fa%3Fb=c%23d", "https://example.org/a%3Fb=c%23d"),
            ("/dns/example.org/https/p2p/12D3KooWCRscMgHgEo3ojm8ovzheydpvTEqsDtq7Vby38cMHrYjt", "https://example.org/"),
        ];
        for (address, url) in table {
            assert_eq!(base(address).map(|base| base.to_string()), Ok(url.to_owned()), "{address}");
        }
    }

    #[test]
    fn other_addresses_are_not_parsed() {
        let others = [
            "/ip4/1.2.3.4/tcp/4001",
            "/ip4/1.2.3.4/udp/4001/quic-v1",
            "/dns/example.org/tcp/443/wss",
            "/dns/example.org/tcp/443/tls/ws",
            "/dns/example.org/tcp/443/tls/sni/example.org/ws",
            "/dnsaddr/example.org",
            "/dns/example.org/tcp/443/tls",
            "/dns/example.org/https/p2p-circuit",
            "/ip6/fe80::1/ip6zone/eth0/tcp/80/http",
            "/memory/1/http",
        ];
        for address in others {
            let read = address.parse::<Multiaddr>().map(|address| Base::from_multiaddr(&address));
            assert_eq!(read.ok(), Some(Err(AddressError::NotHttp)), "{address}");
        }
    }

    #[test]
    fn invalid_hosts_and_paths_are_rejected() {
        // The last two are other notations of 127.0.0.1.
        let hosts =
            ["user@a.b", "a.b:22", "a?b", "a#b", "", "exa mple", "[::1", "a\\b", "a\r\nb", "2130706433", "0x7f.1"];
        for host in hosts {
            let address = Multiaddr::empty().with(Protocol::Dns(host.into())).with(Protocol::Https);
            assert_eq!(Base::from_multiaddr(&address), Err(AddressError::NotHttp), "{host}");
        }
        for path in ["a\tb", "a\r\nHost: b"] {
            let address =
                "/dns/a.b/https".parse::<Multiaddr>().expect("an address").with(Protocol::HttpPath(path.into()));
            assert_eq!(Base::from_multiaddr(&address), Err(AddressError::NotHttp), "{path}");
        }
        let port_zero =
            Multiaddr::empty().with(Protocol::Dns("a.b".into())).with(Protocol::Tcp(0)).with(Protocol::Http);
        assert_eq!(Base::from_multiaddr(&port_zero), Err(AddressError::NotHttp));
    }

    #[test]
    fn configured_urls_are_parsed_and_invalid_ones_rejected() {
        let good = [
            ("https://example.org", "https://example.org/"),
            ("https://example.org/", "https://example.org/"),
            (" http://127.0.0.1:8080/deep/path/ ", "http://127.0.0.1:8080/deep/path"),
            ("https://example.org/path//", "https://example.org/path"),
            ("HTTPS://Example.org:443", "https://example.org/"),
        ];
        for (text, url) in good {
            assert_eq!(Base::from_url(text).map(|base| base.to_string()), Ok(url.to_owned()), "{text}");
        }
        let bad =
            ["", "example.org", "ftp://example.org", "https://u:p@example.org", "https://a.b/?c", "https://a.b/#c"];
        for text in bad {
            assert!(matches!(Base::from_url(text), Err(AddressError::Malformed(_))), "{text}");
        }
        assert!(Base::from_url(&format!("https://a.b/{}", "x".repeat(URL_BYTES_MAX))).is_err());
    }

    #[test]
    fn untrusted_sources_cannot_supply_private_addresses_or_reserved_ports() {
        let table = [
            ("/dns/example.org/https", true),
            ("/ip4/8.8.8.8/tcp/8080/http", true),
            ("/ip6/2606:4700::1111/https", true),
            ("/ip4/127.0.0.1/tcp/8080/http", false),
            ("/ip4/169.254.169.254/http", false),
            ("/ip4/10.0.0.1/https", false),
            ("/ip6/::1/https", false),
            ("/ip6/::ffff:192.168.0.1/https", false),
            ("/ip6/fe80::1/https", false),
            ("/dns/example.org/tcp/22/http", false),
            ("/dns/example.org/tcp/25/tls/http", false),
            ("/dns/example.org/tcp/1024/http", true),
        ];
        for (address, allowed) in table {
            let checked = base(address).expect(address).check_as_untrusted();
            assert_eq!(checked.is_ok(), allowed, "{address}: {checked:?}");
        }
    }

    #[test]
    fn a_gateway_has_one_id_and_one_url_per_block() {
        let cid = parse("bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy").expect("cid");
        let spellings = ["/dns/example.org/https", "/dns4/EXAMPLE.org/tcp/443/tls/http"];
        for address in spellings {
            assert_eq!(base(address).expect(address), Base::from_url("https://example.org/").expect("url"));
        }
        let table = [("https://example.org", "https://example.org"), ("http://a.b:81/c/", "http://a.b:81/c")];
        for (text, start) in table {
            let url = Base::from_url(text).expect(text).block_url(&cid);
            assert_eq!(url.as_str(), format!("{start}/ipfs/{cid}?format=raw"));
        }
        let [one, other] = ["https://a.b", "https://a.b/c"].map(|text| Base::from_url(text).expect(text));
        assert_ne!(one.id(), other.id());
        assert_eq!(one.origin(), other.origin());
    }

    proptest! {
        #[test]
        fn the_block_url_always_has_the_given_host(
            host in "\\PC{0,20}", path in "\\PC{0,40}", port in any::<u16>(),
        ) {
            let address = Multiaddr::empty()
                .with(Protocol::Dns(host.as_str().into()))
                .with(Protocol::Tcp(port))
                .with(Protocol::Https)
                .with(Protocol::HttpPath(path.as_str().into()));
            if let Ok(base) = Base::from_multiaddr(&address) {
                let cid = parse("bafkqaddjnzzxazldoqwxizltoq").expect("cid");
                let url = base.block_url(&cid);
                prop_assert_eq!(url.origin().ascii_serialization(), base.origin());
                prop_assert_eq!(url.query(), Some("format=raw"));
                let end = format!("/ipfs/{cid}");
                prop_assert!(url.path().ends_with(&end));
                prop_assert_eq!(Base::from_url(&base.to_string()), Ok(base));
            }
        }
    }
}
