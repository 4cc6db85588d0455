//! Values that are validated when they are read, with messages for the operator.

use ipnet::IpNet;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use toml::Value;

/// How requests to a host name are answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// The name, in lower case and without a port.
    pub name: String,
    /// Subdomain gateway: give each CID and name its own origin, `CID.ipfs.NAME`, and redirect requests by path there.
    pub subdomains: bool,
    /// Inline DNSLink names into one label, `en-wikipedia--on--ipfs-org.ipns.NAME`, which a wildcard certificate
    /// covers.
    pub inline_dnslink: bool,
    /// The namespaces that are served: "ipfs", "ipns".
    pub namespaces: Vec<String>,
    /// Serve deserialised responses (files, pages and archives), not only verifiable ones.
    pub deserialized: bool,
}

impl Host {
    /// A subdomain gateway for everything.
    pub fn named(name: &str) -> Self {
        let namespaces = ["ipfs", "ipns"].map(str::to_owned).to_vec();
        let name = name.to_ascii_lowercase();
        Self { name, subdomains: true, inline_dnslink: true, namespaces, deserialized: true }
    }
}

/// A denylist or allowlist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListSetting {
    /// The file or URL.
    pub from: ListSource,
    /// The status for withheld content: 410 or 451.
    pub status: u16,
}

/// The source of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListSource {
    /// In a file.
    File(PathBuf),
    /// At an address.
    Url(String),
}

/// The maximum size of an attribute of the resource, in bytes.
const ATTRIBUTE_BYTES_MAX: usize = 1024;

/// A CID with room for the longest accepted digest: the same type as `content::Cid`.
pub type Cid = cid::CidGeneric<128>;

/// A text that is never shown: not in logs, not by `config show`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself, or `None` if it is not set.
    pub fn reveal(&self) -> Option<&str> {
        (!self.0.is_empty()).then_some(self.0.as_str())
    }

    fn mask(&self) -> &'static str {
        if self.0.is_empty() { "" } else { "***" }
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.mask())
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.mask())
    }
}

/// A URL without parts that may be secret: user information, and the query and fragment, where services take keys. Any
/// other text is returned unchanged.
pub fn without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let (place, hidden) = (&rest[..end], rest[end..].chars().next());
    let hidden = hidden.map(|mark| format!("{mark}***")).unwrap_or_default();
    let authority = place.split('/').next().unwrap_or_default();
    match authority.rsplit_once('@') {
        Some((secret, _)) => format!("{scheme}://***{}{hidden}", &place[secret.len()..]),
        None => format!("{scheme}://{place}{hidden}"),
    }
}

/// Reads a list of strings and validates each.
fn each<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| parse(text.trim())).collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// Socket addresses.
pub(crate) fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    each(deserializer, address)
}

/// Attributes of a resource: NAME=VALUE.
pub(crate) fn attributes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    each(deserializer, |text| match text.split_once('=') {
        Some((name, _)) if !name.trim().is_empty() && text.len() <= ATTRIBUTE_BYTES_MAX => Ok(text.to_owned()),
        Some((name, _)) if !name.trim().is_empty() => {
            Err(format!("an attribute has more than {ATTRIBUTE_BYTES_MAX} bytes"))
        }
        _ => Err(format!("\"{text}\" is not NAME=VALUE, such as deployment.environment.name=production")),
    })
}

/// An IP address and a port. `localhost` stands for 127.0.0.1 without a lookup (RFC 6761, section 6.3).
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let loopback = |(host, port): (&str, &str)| {
        let port = port.parse().ok().filter(|_| host.eq_ignore_ascii_case("localhost"))?;
        Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    };
    text.parse().ok().or_else(|| text.rsplit_once(':').and_then(loopback)).ok_or_else(|| {
        format!("\"{text}\" is not an address and port, such as 127.0.0.1:8080, localhost:8080 or [::1]:8080")
    })
}

/// A network (10.0.0.0/8) or a single address.
pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address
        .or_else(|_| text.parse())
        .map_err(|_| format!("\"{text}\" is neither an address nor a network, such as 127.0.0.1 or 10.0.0.0/8"))
}

/// A host in the configuration file: its name, or a table.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a host is a name, or a table with a name")]
enum HostSetting {
    Name(String),
    Table(HostTable),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    name: String,
    subdomains: Option<bool>,
    inline_dnslink: Option<bool>,
    namespaces: Option<Vec<String>>,
    deserialized: Option<bool>,
}

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if *self == Self::named(&self.name) {
            return HostSetting::Name(self.name.clone()).serialize(serializer);
        }
        let Self { name, subdomains, inline_dnslink, namespaces, deserialized } = self.clone();
        let table = HostTable {
            name,
            subdomains: Some(subdomains),
            inline_dnslink: Some(inline_dnslink),
            namespaces: Some(namespaces),
            deserialized: Some(deserialized),
        };
        HostSetting::Table(table).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Host {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = match HostSetting::deserialize(deserializer)? {
            HostSetting::Name(name) => return host_name(&name).map(Self::named).map_err(D::Error::custom),
            HostSetting::Table(table) => table,
        };
        let mut host = host_name(&table.name).map(Self::named).map_err(D::Error::custom)?;
        host.subdomains = table.subdomains.unwrap_or(host.subdomains);
        host.inline_dnslink = table.inline_dnslink.unwrap_or(host.inline_dnslink);
        host.deserialized = table.deserialized.unwrap_or(host.deserialized);
        host.namespaces = table.namespaces.unwrap_or(host.namespaces);
        match host.namespaces.iter().find(|name| !matches!(name.as_str(), "ipfs" | "ipns")) {
            Some(other) => Err(D::Error::custom(format!("\"{other}\" is not a namespace: use ipfs or ipns"))),
            None => Ok(host),
        }
    }
}

/// A list in the configuration file: its file or URL, or a table.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a list is a file or a URL, or a table with one")]
enum ListText {
    From(String),
    Table(ListTable),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListTable {
    from: String,
    status: Option<u16>,
}

/// The default status of a list.
const GONE: u16 = 410;

impl Serialize for ListSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let from = self.from.to_string();
        match self.status {
            GONE => ListText::From(from).serialize(serializer),
            status => ListText::Table(ListTable { from, status: Some(status) }).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ListSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = match ListText::deserialize(deserializer)? {
            ListText::From(from) => ListTable { from, status: None },
            ListText::Table(table) => table,
        };
        let status = table.status.unwrap_or(GONE);
        if !matches!(status, 410 | 451) {
            return Err(D::Error::custom(format!("{status} is not a status of a list: use 410 or 451")));
        }
        let from = list_place(table.from.trim()).map_err(D::Error::custom)?;
        Ok(Self { from, status })
    }
}

fn list_place(text: &str) -> Result<ListSource, String> {
    match text.split_once("://") {
        Some(("http" | "https", rest)) if names_a_host(rest) => Ok(ListSource::Url(text.to_owned())),
        Some(("http" | "https", _)) => Err(format!(
            "the URL of a list that begins with {:?} has no valid host and port: percent-encode / ? # and @ in a \
             password as %2F %3F %23 and %40",
            text.chars().take(12).collect::<String>()
        )),
        Some(_) => Err(format!("\"{text}\" is not a URL of a list: it must begin with http:// or https://")),
        None if text.is_empty() => Err("a list must have a file or a URL".to_owned()),
        None => Ok(ListSource::File(text.into())),
    }
}

/// Whether the text after the scheme begins with a host and an optional port. A password that is not percent-encoded
/// would be taken for a path, and shown.
fn names_a_host(rest: &str) -> bool {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (place, ""),
    };
    !host.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

impl Display for ListSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url(url) => f.write_str(url),
        }
    }
}

/// Validates a host name without scheme, port and path.
fn host_name(text: &str) -> Result<&str, String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let text = text.trim();
    if !text.is_empty() && text.len() <= 253 && text.bytes().all(good) {
        return Ok(text);
    }
    Err(format!("\"{text}\" is not a host name; write it without scheme and port, such as example.com"))
}

/// Multiaddrs (<https://github.com/multiformats/multiaddr>).
pub(crate) fn multiaddrs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Multiaddr>, D::Error> {
    each(deserializer, multiaddr)
}

/// Multiaddrs that end in a peer ID.
pub(crate) fn peers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Multiaddr>, D::Error> {
    each(deserializer, |text| {
        let address = multiaddr(text)?;
        match address.iter().last() {
            Some(Protocol::P2p(_)) => Ok(address),
            _ => Err(format!("\"{text}\" has no peer ID: it must end in /p2p/PEERID")),
        }
    })
}

fn multiaddr(text: &str) -> Result<Multiaddr, String> {
    let no = |why: &str| format!("\"{text}\" is not a multiaddr such as /ip4/127.0.0.1/tcp/4001: {why}");
    match text.parse::<Multiaddr>() {
        Ok(address) if address.is_empty() => Err(no("it is empty")),
        Ok(address) => Ok(address),
        Err(error) => Err(no(&error.to_string())),
    }
}

/// CIDs in any form.
pub(crate) fn cids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Cid>, D::Error> {
    each(deserializer, |text| Cid::try_from(text).map_err(|_| format!("\"{text}\" is not a CID, such as bafkqaaa")))
}

/// Serialises a list of values as strings.
pub(crate) fn as_text<S: Serializer, T: Display>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(ToString::to_string))
}

/// The DNS-over-HTTPS resolver of a domain suffix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The suffix: "eth", "example.org", or "." for every domain.
    pub suffix: String,
    /// The URL of the resolver.
    pub url: String,
}

impl Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.suffix, self.url)
    }
}

/// Pairs of a suffix and a URL.
pub(crate) fn routes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Route>, D::Error> {
    each(deserializer, |text| {
        let parts = text.split_once('=').filter(|(suffix, url)| !suffix.is_empty() && url.starts_with("https://"));
        let route = parts.map(|(suffix, url)| Route { suffix: suffix.to_owned(), url: url.to_owned() });
        route.ok_or_else(|| format!("\"{text}\" is not SUFFIX=URL, such as eth=https://dns.example.org/dns-query"))
    })
}

/// A pattern that matches addresses of peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressPattern {
    /// Every address with an IP address in this network.
    Network(IpNet),
    /// Every address that begins with this one.
    Prefix(Multiaddr),
}

impl Display for AddressPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Prefix(address) => address.fmt(f),
        }
    }
}

/// Networks, IP addresses and multiaddrs.
pub(crate) fn patterns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AddressPattern>, D::Error> {
    each(deserializer, |text| match text.starts_with('/') {
        true => multiaddr(text).map(AddressPattern::Prefix),
        false => network(text).map(AddressPattern::Network),
    })
}

/// Base URLs of /routing/v1 services (<https://specs.ipfs.tech/routing/http-routing-v1/>).
pub(crate) fn routers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    each(deserializer, |text| base_url(text, "/routing/v1"))
}

/// Base URLs of trustless gateways (<https://specs.ipfs.tech/http-gateways/trustless-gateway/>).
pub(crate) fn gateways<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    each(deserializer, |text| base_url(text, "/ipfs"))
}

/// Validates a base URL, to which `service` and more are appended, and removes trailing slashes.
fn base_url(text: &str, service: &str) -> Result<String, String> {
    let no = |why: &str| Err(format!("\"{text}\" is not a base URL such as https://example.org: {why}"));
    let Some(rest) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else {
        return no("it begins with neither https:// nor http://");
    };
    if !rest.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#')) {
        return no("it has a query, a fragment, or a character that needs percent-encoding");
    }
    if !is_authority(rest.split('/').next().unwrap_or_default()) {
        return no("it has no valid host and port");
    }
    let base = text.trim_end_matches('/');
    if base.ends_with(service) {
        return no(&format!("leave out {service}, which is appended"));
    }
    Ok(base.to_owned())
}

/// Whether a text is a host with an optional port, and without user information.
fn is_authority(text: &str) -> bool {
    let host = match text.rsplit_once(':') {
        Some((host, port)) if !port.starts_with('+') && port.parse::<u16>().is_ok() => host,
        _ => text,
    };
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(ip) => ip.parse::<Ipv6Addr>().is_ok(),
        None => host_name(host).is_ok(),
    }
}

/// The peers that are served blocks. Written as a list: "everyone", or any of "peerings" and peer IDs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServeTo {
    /// All peers.
    #[default]
    Everyone,
    /// Only these peers.
    Only {
        /// The peers that are configured as peerings.
        peerings: bool,
        /// Peers by ID.
        peers: Vec<PeerId>,
    },
}

const EVERYONE: &str = "everyone";
const PEERINGS: &str = "peerings";

impl Serialize for ServeTo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self::Only { peerings, peers } = self else { return serializer.collect_seq([EVERYONE]) };
        let word = peerings.then(|| PEERINGS.to_owned());
        serializer.collect_seq(word.into_iter().chain(peers.iter().map(ToString::to_string)))
    }
}

impl<'de> Deserialize<'de> for ServeTo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        serve_to(texts.iter().map(|text| text.trim()).collect()).map_err(D::Error::custom)
    }
}

fn serve_to(mut texts: Vec<&str>) -> Result<ServeTo, String> {
    if texts == [EVERYONE] {
        return Ok(ServeTo::Everyone);
    }
    if texts.contains(&EVERYONE) {
        return Err(format!("\"{EVERYONE}\" cannot be combined with other values"));
    }
    let all = texts.len();
    texts.retain(|text| *text != PEERINGS);
    let peerings = texts.len() < all;
    let peer = |text: &&str| {
        text.parse::<PeerId>()
            .map_err(|_| format!("\"{text}\" is neither \"{EVERYONE}\" nor \"{PEERINGS}\" nor a peer ID"))
    };
    Ok(ServeTo::Only { peerings, peers: texts.iter().map(peer).collect::<Result<_, _>>()? })
}

/// A list of strings as a value; "none" alone, or nothing, is the empty list.
pub(crate) fn list<'a>(texts: impl Iterator<Item = &'a str>) -> Value {
    let texts: Vec<&str> = texts.map(str::trim).filter(|text| !text.is_empty()).collect();
    if texts == ["none"] {
        return Value::Array(Vec::new());
    }
    Value::Array(texts.into_iter().map(|text| Value::String(text.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_numeric_or_localhost() {
        let table = [
            ("127.0.0.1:8080", Some("127.0.0.1:8080")),
            ("[::1]:0", Some("[::1]:0")),
            ("localhost:8080", Some("127.0.0.1:8080")),
            ("LocalHost:1", Some("127.0.0.1:1")),
            ("localhost", None),
            ("localhost:", None),
            ("localhost:65536", None),
            ("localhost.example.com:80", None),
            ("example.com:80", None),
            (":8080", None),
        ];
        for (text, expected) in table {
            assert_eq!(address(text).ok().map(|address| address.to_string()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn base_urls_have_a_host_and_no_query() {
        let table = [
            ("https://example.org", Some("https://example.org")),
            ("https://example.org/", Some("https://example.org")),
            ("http://127.0.0.1:8190", Some("http://127.0.0.1:8190")),
            ("http://[::1]:8190/some/path/", Some("http://[::1]:8190/some/path")),
            ("http://[::1]", Some("http://[::1]")),
            ("example.org", None),
            ("ftp://example.org", None),
            ("https://", None),
            ("https:///path", None),
            ("https://user@example.org", None),
            ("https://example.org:99999", None),
            ("https://example.org:+80", None),
            ("https://[example]", None),
            ("https://example.org?x", None),
            ("https://example.org/a b", None),
            ("https://example.org/routing/v1", None),
            ("https://example.org/routing/v1/", None),
        ];
        for (text, expected) in table {
            assert_eq!(base_url(text, "/routing/v1").ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn served_peers_are_everyone_or_a_list() {
        const PEER: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        let peers = vec![PEER.parse().expect("a peer id")];
        let table = [
            (vec!["everyone"], Some(ServeTo::Everyone)),
            (vec![], Some(ServeTo::Only { peerings: false, peers: Vec::new() })),
            (vec!["peerings"], Some(ServeTo::Only { peerings: true, peers: Vec::new() })),
            (vec![PEER, "peerings"], Some(ServeTo::Only { peerings: true, peers: peers.clone() })),
            (vec![PEER], Some(ServeTo::Only { peerings: false, peers })),
            (vec!["everyone", PEER], None),
            (vec!["everybody"], None),
        ];
        for (texts, expected) in table {
            assert_eq!(serve_to(texts.clone()).ok(), expected, "{texts:?}");
        }
    }

    #[test]
    fn secrets_in_urls_are_masked() {
        let table = [
            ("https://user:password@host/path", "https://***@host/path"),
            ("https://token@host", "https://***@host"),
            ("https://host/a@b", "https://host/a@b"),
            ("https://host?a@b", "https://host?***"),
            ("https://user@host/list?key=1#a", "https://***@host/list?***"),
            ("https://host/path#a", "https://host/path#***"),
            ("not a@url", "not a@url"),
        ];
        for (text, expected) in table {
            assert_eq!(without_secrets(text), expected);
        }
    }

    #[test]
    fn urls_of_lists_have_a_host() {
        let table = [
            ("https://host/list", true),
            ("http://user:pass%2Fword@host:8080/list?a@b", true),
            ("https://[::1]:80/list", true),
            ("https://[::1]", true),
            ("https://user:pa?ss@host/list", false),
            ("https://user:pa/ss@host/list", false),
            ("https://user:pa#ss@host/list", false),
            ("https://", false),
            ("https://:80/list", false),
            ("ftp://host/list", false),
        ];
        for (text, good) in table {
            let place = list_place(text);
            assert_eq!(place.is_ok(), good, "{text}: {place:?}");
            assert!(!place.is_err_and(|error| error.contains("ss@host")), "{text}");
        }
    }
}
