//! Values that are checked as they are read, with messages for the person who typed them.

use crate::schema::Host;
use ipnet::IpNet;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};

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

/// Reads a list of texts and checks each.
fn each<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| parse(text.trim())).collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// Socket addresses.
pub(crate) fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    each(deserializer, |text| {
        text.parse().map_err(|_| format!("\"{text}\" is not an address and port, such as 127.0.0.1:8080 or [::1]:8080"))
    })
}

/// Networks (10.0.0.0/8) and single addresses.
pub(crate) fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    each(deserializer, |text| {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        address
            .or_else(|_| text.parse())
            .map_err(|_| format!("\"{text}\" is neither an address nor a network, such as 127.0.0.1 or 10.0.0.0/8"))
    })
}

/// A host as it is written: its name, or a table.
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
            Some(other) => Err(D::Error::custom(format!("\"{other}\" is not a namespace; there are ipfs and ipns"))),
            None => Ok(host),
        }
    }
}

/// A host name without scheme, port and path.
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

/// Multiaddrs that end in a peer id.
pub(crate) fn peers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Multiaddr>, D::Error> {
    each(deserializer, |text| {
        let address = multiaddr(text)?;
        match address.iter().last() {
            Some(Protocol::P2p(_)) => Ok(address),
            _ => Err(format!("\"{text}\" names no peer: it must end in /p2p/PEERID")),
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
    each(deserializer, |text| Cid::try_from(text).map_err(|error| format!("\"{text}\" is not a CID: {error}")))
}

/// Writes a list of values as texts.
pub(crate) fn as_text<S: Serializer, T: Display>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(ToString::to_string))
}

/// Whom to ask about the domains below a suffix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The suffix: "eth", "example.org", or "." for everything.
    pub suffix: String,
    /// The URL of a service.
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
