//! [`Name`]: what may stand after `/ipns/`, and [`NameResolver`], the seam through which it becomes content.
//!
//! Goals: a name is one of two things, told apart without asking anybody: a key (<https://specs.ipfs.tech/ipns/ipns-record/#ipns-name>)
//! or a domain with a DNSLink (<https://dnslink.dev/>); whoever resolves it says how long the answer holds.
//!
//! Non-goals: how names are looked up, which takes a network. That is behind the trait.

use crate::cid::Cid;
use crate::ipns::Record;
pub use crate::key::Key;
use crate::key::TEXT_BYTES_MAX;
use crate::verdict::Verdict;
use futures::future::BoxFuture;
use std::fmt;
use std::time::Duration;

/// The longest label of a domain, in bytes.
const LABEL_BYTES_MAX: usize = 63;

/// What may stand after `/ipns/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Name {
    /// A public key, whose owner publishes records.
    Key(Key),
    /// A domain, whose owner publishes a DNSLink.
    Domain(Domain),
}

/// Why a text is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is neither an IPNS key nor a domain name")]
pub struct NotAName {
    /// The offending text, shortened.
    text: String,
}

impl Name {
    /// Reads a key in any spelling, or a domain.
    ///
    /// # Errors
    /// [`NotAName`] quotes what is neither.
    pub fn parse(text: &str) -> Result<Self, NotAName> {
        let key = || Key::parse(text).map(Self::Key);
        let domain = || Domain::parse(text).map(Self::Domain);
        key().or_else(domain).ok_or_else(|| NotAName { text: text.chars().take(80).collect() })
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

/// A fully qualified domain name in lower case, without the last dot: at least two labels of letters, digits, hyphens and
/// underscores. Names with other letters have to be in their ASCII form (punycode), as browsers send them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Domain(String);

impl Domain {
    /// Reads a domain; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let label_is_good = |label: &str| {
            (1..=LABEL_BYTES_MAX).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        let is_address = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let good =
            text.len() <= TEXT_BYTES_MAX && text.contains('.') && !is_address && text.split('.').all(label_is_good);
        good.then(|| Self(text.to_ascii_lowercase()))
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

/// What a name stands for, for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// Where the walk begins.
    pub root: Cid,
    /// What to follow from there, before anything that the request adds: decoded, none empty, `.` or `..`.
    pub segments: Vec<String>,
    /// How long the answer holds from now on: the shortest time to live of all that was resolved on the way, and never
    /// longer than until the end of life of a record among it.
    pub ttl: Duration,
    /// How long ago the oldest answer on the way was learnt, if there may be a newer one for which its time to live has
    /// passed: nobody could be asked in time.
    pub stale: Option<Duration>,
    /// The names on the way, the first one first, and what was to follow from what each stands for, before anything that the
    /// request adds: a path as policies have it.
    pub hops: Vec<(Name, String)>,
}

/// Why a name cannot be resolved, by what the caller can do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nobody who was asked in time has a record of the key that holds.
    #[error("no record of the name {key} was found ({peers_asked} peers asked in {:.1} s)", waited.as_secs_f32())]
    NoRecord {
        /// The name.
        key: Key,
        /// How long was waited.
        waited: Duration,
        /// How many peers were asked.
        peers_asked: usize,
    },
    /// Only records that do not hold were found.
    #[error("every record of the name {key} that was found is refused: {reason}")]
    Refused {
        /// The name.
        key: Key,
        /// Why the last of them is.
        reason: String,
    },
    /// The domain has no DNSLink.
    #[error("the domain {domain} has no DNSLink")]
    NoDnsLink {
        /// The domain.
        domain: Domain,
    },
    /// DNS did not answer, or not with sense.
    #[error("the DNSLink of {domain} cannot be looked up: {reason}")]
    Dns {
        /// The domain.
        domain: Domain,
        /// What went wrong.
        reason: String,
    },
    /// What the name stands for is no path to content.
    #[error("{name} stands for \"{value}\", which is no path to content")]
    Value {
        /// The name.
        name: Name,
        /// What it stands for, shortened.
        value: String,
    },
    /// Names stand for names stand for names.
    #[error("{name} stands for another name, and so on, more than {max} times")]
    TooManySteps {
        /// The first name.
        name: Name,
        /// How many are followed.
        max: usize,
    },
    /// It takes too long to follow the names that it stands for, one after the other.
    #[error("where {name} leads to was not found within {:.1} s", waited.as_secs_f32())]
    TooSlow {
        /// The first name.
        name: Name,
        /// How long was waited.
        waited: Duration,
    },
    /// The policy does not let the name be resolved, or not with this path.
    #[error("{name} is not served here")]
    Withheld {
        /// The name: the first one, or one that it leads to.
        name: Name,
        /// What the policy said.
        verdict: Verdict,
    },
    /// More look-ups are waiting than are allowed.
    #[error("too many names are being looked up at the moment")]
    Busy,
    /// The node is offline and does not know the name.
    #[error("the name {name} is not known here, and this gateway is offline")]
    Offline {
        /// The name.
        name: Name,
    },
}

/// Turns names into content.
pub trait NameResolver: Send + Sync {
    /// What a name stands for, following names that stand for names.
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>>;

    /// The best record of a key, verified.
    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_every_spelling_and_shown_in_one() {
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
    fn domains_have_labels_and_are_no_addresses() {
        let good = ["example.org", "EN.wikipedia-on-ipfs.org", "_dnslink.a.b", "xn--nxasmq6b.eth", "example.org."];
        for text in good {
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
