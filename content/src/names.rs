//! [`Name`]: the root of an `/ipns/` path, and [`NameResolver`], the interface that resolves it.
//!
//! Goals: a name is parsed without a look-up, as a public key (<https://specs.ipfs.tech/ipns/ipns-record/#ipns-name>)
//! or as a domain with a DNSLink (<https://dnslink.dev/>); every resolution has a TTL.
//!
//! Non-goals: looking names up, which takes a network. Implementations of the trait do that.

use crate::cid::Cid;
use crate::ipns::Record;
pub use crate::key::Key;
use crate::key::TEXT_BYTES_MAX;
use crate::verdict::Verdict;
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The maximum length of a domain's label, in bytes.
const LABEL_BYTES_MAX: usize = 63;

/// The root of an `/ipns/` path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Name {
    /// A public key, whose owner publishes IPNS records.
    Key(Key),
    /// A domain, whose owner publishes a DNSLink.
    Domain(Domain),
}

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is neither an IPNS key nor a domain name")]
pub struct InvalidName {
    /// The text, truncated.
    text: String,
}

impl Name {
    /// Parses a key in any encoding, or a domain.
    ///
    /// # Errors
    /// [`InvalidName`] when the text is neither.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let key = || Key::parse(text).map(Self::Key);
        let domain = || Domain::parse(text).map(Self::Domain);
        key().or_else(domain).ok_or_else(|| InvalidName { text: text.chars().take(80).collect() })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => key.fmt(f),
            Self::Domain(domain) => domain.fmt(f),
        }
    }
}

/// A fully qualified domain name in lower case, without the trailing dot: at least two labels of letters, digits,
/// hyphens and underscores. Internationalised names must be in punycode, as browsers send them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Domain(String);

impl Domain {
    /// Parses a domain; `None` if the text is not a domain.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let label_is_valid = |label: &str| {
            (1..=LABEL_BYTES_MAX).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        let is_address = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let is_valid =
            text.len() <= TEXT_BYTES_MAX && text.contains('.') && !is_address && text.split('.').all(label_is_valid);
        is_valid.then(|| Self(text.to_ascii_lowercase()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The path that a name resolves to, with its TTL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// The root of the path.
    pub root: Cid,
    /// The segments of the path, before those of the request: decoded, none empty, `.` or `..`.
    pub segments: Vec<String>,
    /// The remaining TTL: the minimum of those of all names on the way, and never beyond the end of life of a record
    /// among them.
    pub ttl: Duration,
    /// The age of the oldest answer on the way, if its TTL has passed and a look-up of a newer one did not succeed in
    /// time.
    pub stale: Option<Duration>,
    /// The names on the way, the first one first, each with the path that follows it, without that of the request; in
    /// the form that policies take.
    pub hops: Vec<(Name, String)>,
}

/// A name, or a path below it.
fn shown(name: &Name, path: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("/ipns/{name}/{path}") }
}

/// Why a name cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No peer that answered in time has a valid record of the key.
    #[error("no record of the name {key} was found ({peers_asked} peers asked in {:.1} s)", waited.as_secs_f32())]
    NoRecord {
        /// The name.
        key: Key,
        /// The duration of the look-up.
        waited: Duration,
        /// The number of peers asked.
        peers_asked: usize,
    },
    /// Only invalid or expired records were found.
    #[error("every record of the name {key} that was found was rejected: {reason}")]
    Refused {
        /// The name.
        key: Key,
        /// Why the last record was rejected.
        reason: String,
    },
    /// The domain has no DNSLink.
    #[error("the domain {domain} has no DNSLink")]
    NoDnsLink {
        /// The domain.
        domain: Domain,
    },
    /// DNS did not answer, or its answer is invalid.
    #[error("the DNSLink of {domain} cannot be resolved: {reason}")]
    Dns {
        /// The domain.
        domain: Domain,
        /// The error.
        reason: String,
    },
    /// The value of the name is not a content path.
    #[error("{name} resolves to \"{value}\", which is not a content path")]
    Value {
        /// The name.
        name: Name,
        /// The value, truncated.
        value: String,
    },
    /// The chain of names is too long.
    #[error("{name} resolves to a chain of more than {max} names")]
    ChainTooLong {
        /// The first name.
        name: Name,
        /// The maximum.
        max: usize,
    },
    /// Resolving the chain of names takes too long.
    #[error("{name} was not resolved within {:.1} s", waited.as_secs_f32())]
    TooSlow {
        /// The first name.
        name: Name,
        /// The duration of the look-ups.
        waited: Duration,
    },
    /// The policy denies the name, or this path below it.
    #[error("{} is not served here", shown(name, path))]
    Withheld {
        /// The denied name: the first one, or one on the way.
        name: Name,
        /// The denied path below it, decoded; empty for the name itself.
        path: String,
        /// The decision of the policy.
        verdict: Verdict,
    },
    /// The limit of concurrent look-ups is reached.
    #[error("too many names are being looked up; retry later")]
    Busy,
    /// The node is offline and has no cached record of the name.
    #[error("no record of the name {name} is stored locally, and this gateway is offline")]
    Offline {
        /// The name.
        name: Name,
    },
}

/// Resolves names to content.
pub trait NameResolver: Send + Sync {
    /// Resolves a name, and the chain of names that it may begin.
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>>;

    /// The newest valid record of a key.
    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>>;

    /// The same resolver, which tells an observer of look-ups; `None` if it does none.
    fn observed(&self, _observer: Arc<dyn NameObserver>) -> Option<Arc<dyn NameResolver>> {
        None
    }
}

/// Learns of the look-ups that a resolution waits for, one after the other.
pub trait NameObserver: Send + Sync {
    /// The resolution waits for a look-up: a search for records of a key, or a DNS query for a domain. Another resolution
    /// has begun it if `is_shared`.
    fn look_up_began(&self, name: &Name, is_shared: bool);

    /// The wait has ended with the result of the look-up, or before it if there is none.
    fn look_up_ended(&self, result: Option<Result<(), &NameError>>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_in_every_encoding_and_displayed_in_one() {
        let table = [
            (
                "12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK",
                "k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8",
            ),
            (
                "QmcJM7PRfkSbcM5cf1QugM5R37TLRKyJGgBEhXjLTB8uA2",
                "k2k4r8ol4m8kkcqz509c1rcjwunebj02gcnm5excpx842u736nja8ger",
            ),
            (
                "K51QZI5UQU5DLVJ2BAXNQNDEPEB86CBK3NG7N3I46UZYXZYQJ2XJONZLLNV0V8",
                "k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8",
            ),
        ];
        for (text, shown) in table {
            assert_eq!(Key::parse(text).map(|key| key.to_string()).as_deref(), Some(shown), "{text}");
            let cid = Key::parse(text).expect("a key").to_cid();
            assert_eq!(Key::parse(&cid.to_string()), Key::parse(text));
        }
        for text in ["", "k51", "bafkqaddjnzzxazldoqwxizltoq", "example.org", &"k".repeat(300)] {
            assert_eq!(Key::parse(text), None, "{text}");
        }
    }

    #[test]
    fn domains_have_valid_labels_and_are_not_addresses() {
        let valid = ["example.org", "EN.wikipedia-on-ipfs.org", "_dnslink.a.b", "xn--nxasmq6b.eth", "example.org."];
        for text in valid {
            let expected = text.to_ascii_lowercase();
            assert_eq!(Domain::parse(text).expect(text).as_str(), expected.trim_end_matches('.'));
        }
        let label = "a".repeat(64);
        let bad =
            ["", ".", "localhost", "127.0.0.1", "a..b", ".a.b", "a b.c", "a/b.c", "é.org", &format!("{label}.org")];
        for text in bad {
            assert_eq!(Domain::parse(text), None, "{text}");
        }
    }
}
