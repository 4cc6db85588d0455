//! [`AddressAnonymiser`]: addresses of clients in logs, as `log.access_addresses` has them.
//!
//! | setting | in the log | what it allows |
//! |---|---|---|
//! | full | the address | everything, also to find an abusive client; it is personal data |
//! | truncated | its network: 24 bits of IPv4, 48 of IPv6 | counts by network and country |
//! | hashed | a pseudonym, which changes at midnight UTC | counts of clients of a day, and requests of one client |
//! | none | `-` | neither |
//!
//! A pseudonym is the beginning of a SHA-256 of a random key and the address. The key is in memory only and replaced
//! each day, so that addresses cannot be found by trial later.

use config::{AccessAddresses, ShownAddress, UNIX_PEER};
use ipnet::{Ipv4Net, Ipv6Net};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of bits of a network that are kept of an address.
const IPV4_BITS: u8 = 24;
const IPV6_BITS: u8 = 48;
const DAY_SECONDS: u64 = 24 * 3600;
/// The length of a pseudonym in bytes. Two of a million clients have the same one with a probability of 1 in 37
/// million.
const PSEUDONYM_BYTES: usize = 8;

/// A keyed hash function with a random key.
pub struct KeyedHash {
    key: [u8; 32],
}

impl KeyedHash {
    /// A new random key.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn random() -> std::io::Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(std::io::Error::other)?;
        Ok(Self { key })
    }

    /// The pseudonym of a value, in hexadecimal digits. `kind` separates values that may be equal by chance.
    pub fn pseudonym(&self, kind: &str, value: &[u8]) -> String {
        let mut hash = Sha256::new();
        hash.update(self.key);
        hash.update(kind);
        hash.update([0]);
        hash.update(value);
        let digest = hash.finalize();
        let mut text = String::with_capacity(2 * PSEUDONYM_BYTES);
        // Writing to a string does not fail.
        digest.iter().take(PSEUDONYM_BYTES).for_each(|byte| _ = write!(text, "{byte:02x}"));
        text
    }
}

/// Anonymises addresses of clients.
pub struct AddressAnonymiser {
    mode: AccessAddresses,
    /// The day since the Unix epoch, and its key.
    key: Mutex<Option<(u64, KeyedHash)>>,
}

impl AddressAnonymiser {
    /// Anonymises as configured.
    pub const fn new(mode: AccessAddresses) -> Self {
        Self { mode, key: Mutex::new(None) }
    }

    /// An address as it is logged; empty if it is not.
    pub fn text(&self, address: IpAddr) -> String {
        self.text_at(address, SystemTime::now())
    }

    fn text_at(&self, address: IpAddr, now: SystemTime) -> String {
        match self.mode {
            // A peer of a Unix socket has no address.
            _ if address == UNIX_PEER => ShownAddress(address).to_string(),
            AccessAddresses::Full => address.to_string(),
            AccessAddresses::Truncated => truncated(address).to_string(),
            AccessAddresses::Hashed => self.pseudonym(address, now),
            AccessAddresses::None => String::new(),
        }
    }

    fn pseudonym(&self, address: IpAddr, now: SystemTime) -> String {
        let day = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / DAY_SECONDS);
        let mut key = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        if key.as_ref().is_none_or(|(of, _)| *of != day) {
            // Without randomness, nothing is logged of an address.
            *key = KeyedHash::random().ok().map(|key| (day, key));
        }
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        key.as_ref().map(|(_, key)| key.pseudonym("address", &octets)).unwrap_or_default()
    }
}

impl std::fmt::Debug for AddressAnonymiser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddressAnonymiser").field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// The network of an address.
fn truncated(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    match address {
        IpAddr::V4(v4) => Ipv4Net::new(v4, IPV4_BITS).map_or(address, |network| network.network().into()),
        IpAddr::V6(v6) => Ipv6Net::new(v6, IPV6_BITS).map_or(address, |network| network.network().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn addresses_are_logged_as_configured() {
        let table = [
            (AccessAddresses::Full, "203.0.113.7", "203.0.113.7"),
            (AccessAddresses::Truncated, "203.0.113.7", "203.0.113.0"),
            (AccessAddresses::Truncated, "2001:db8:1:2:3:4:5:6", "2001:db8:1::"),
            (AccessAddresses::Truncated, "::ffff:203.0.113.7", "203.0.113.0"),
            (AccessAddresses::None, "203.0.113.7", ""),
        ];
        for (mode, from, expected) in table {
            assert_eq!(AddressAnonymiser::new(mode).text(address(from)), expected, "{mode:?} {from}");
        }
    }

    #[test]
    fn pseudonyms_are_those_of_a_client_and_a_day() {
        let at = |days: u64| UNIX_EPOCH + Duration::from_secs(days * DAY_SECONDS + 5);
        let anonymiser = AddressAnonymiser::new(AccessAddresses::Hashed);
        let (one, another) = (address("203.0.113.7"), address("203.0.113.8"));
        let first = anonymiser.text_at(one, at(20_000));
        assert!(first.len() == 16 && first.bytes().all(|byte| byte.is_ascii_hexdigit()), "{first}");
        assert_eq!(anonymiser.text_at(one, at(20_000)), first);
        assert_ne!(anonymiser.text_at(another, at(20_000)), first);
        assert_ne!(anonymiser.text_at(one, at(20_001)), first, "the key is replaced");
        assert_ne!(anonymiser.text_at(one, at(20_000)), first, "and not kept");
        let other_process = AddressAnonymiser::new(AccessAddresses::Hashed);
        assert_ne!(other_process.text_at(one, at(20_000)), first);
        assert!(!format!("{anonymiser:?}").contains("key"));
    }

    #[test]
    fn values_of_different_kinds_have_different_pseudonyms() {
        let hash = KeyedHash::random().expect("randomness");
        assert_ne!(hash.pseudonym("a", b"b"), hash.pseudonym("b", b"b"));
        assert_ne!(hash.pseudonym("a", b"bc"), hash.pseudonym("ab", b"c"));
    }
}
