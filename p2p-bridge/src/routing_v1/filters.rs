//! [`Filters`]: the peers and addresses that a client asks for (IPIP-484,
//! <https://specs.ipfs.tech/routing/http-routing-v1/#filter-addrs-providers-request-query-parameter>).
//!
//! Both sides apply them: a server to its results, and a client to the response, because servers may ignore the
//! parameters.

use super::types::PeerRecord;
use libp2p::Multiaddr;

/// Maximum terms of one parameter; further ones are ignored.
const TERMS_MAX: usize = 32;
/// The term that matches records without addresses or protocols.
const UNKNOWN: &str = "unknown";

/// The query parameter that filters addresses.
pub const FILTER_ADDRS: &str = "filter-addrs";
/// The query parameter that filters peers by transfer protocol.
pub const FILTER_PROTOCOLS: &str = "filter-protocols";

/// The filters of a request. The default matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    /// Names of multiaddr protocols; excluded ones start with `!`.
    addrs: Vec<String>,
    /// Names of transfer protocols.
    protocols: Vec<String>,
}

impl Filters {
    /// Parses the percent-decoded values of the two parameters.
    pub fn read(addrs: Option<&str>, protocols: Option<&str>) -> Self {
        Self { addrs: terms(addrs), protocols: terms(protocols) }
    }

    /// The filtered record; `None` if the filters exclude it.
    pub fn apply(&self, mut record: PeerRecord) -> Option<PeerRecord> {
        if !self.wants_protocols(&record.protocols) {
            return None;
        }
        let is_unknown = record.addresses.is_empty();
        if self.addrs.is_empty() || is_unknown && self.addrs.iter().any(|term| term == UNKNOWN) {
            return Some(record);
        }
        record.addresses.retain(|address| self.wants_address(address));
        (!record.addresses.is_empty()).then_some(record)
    }

    /// The filters as the query of a URL, without a question mark; empty without filters.
    pub fn to_query(&self) -> String {
        let pair = |name: &str, terms: &[String]| (!terms.is_empty()).then(|| format!("{name}={}", terms.join(",")));
        let pairs = [pair(FILTER_ADDRS, &self.addrs), pair(FILTER_PROTOCOLS, &self.protocols)];
        pairs.into_iter().flatten().collect::<Vec<_>>().join("&")
    }

    fn wants_protocols(&self, protocols: &[String]) -> bool {
        self.protocols.is_empty()
            || protocols.is_empty() && self.protocols.iter().any(|term| term == UNKNOWN)
            || protocols.iter().any(|protocol| self.protocols.iter().any(|term| term.eq_ignore_ascii_case(protocol)))
    }

    /// An address must have no excluded protocol and, if protocols are requested, one of them.
    fn wants_address(&self, address: &Multiaddr) -> bool {
        let has = |name: &str| address.protocol_stack().any(|protocol| protocol == name);
        let mut wanted = self.addrs.iter().filter(|term| !term.starts_with('!')).peekable();
        let refused = self.addrs.iter().filter_map(|term| term.strip_prefix('!')).any(has);
        !refused && (wanted.peek().is_none() || wanted.any(|term| has(term)))
    }
}

/// The terms of a parameter. Terms that cannot be a protocol name are skipped, because terms are put into URLs.
fn terms(parameter: Option<&str>) -> Vec<String> {
    let is_name = |term: &&str| {
        let name = term.strip_prefix('!').unwrap_or(term);
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
    };
    let terms = parameter.unwrap_or_default().split(',').map(str::trim).filter(is_name);
    terms.take(TERMS_MAX).map(str::to_ascii_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::PeerId;
    use proptest::prelude::*;

    const TCP: &str = "/ip4/1.2.3.4/tcp/4001";
    const QUIC: &str = "/ip4/1.2.3.4/udp/4001/quic-v1";
    const RELAY: &str = "/ip4/1.2.3.4/tcp/1/p2p/QmcJM7PRfkSbcM5cf1QugM5R37TLRKyJGgBEhXjLTB8uA2/p2p-circuit";
    const HTTP: &str = "/dns4/a.example/tcp/443/tls/http";

    fn record(addresses: &[&str], protocols: &[&str]) -> PeerRecord {
        PeerRecord {
            id: PeerId::random(),
            addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
            protocols: protocols.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    #[test]
    fn addresses_are_filtered_and_peers_without_matching_addresses_are_excluded() {
        let all = [TCP, QUIC, RELAY, HTTP];
        type Row<'a> = (&'a str, &'a [&'a str], Option<&'a [&'a str]>);
        let table: [Row<'_>; 14] = [
            ("", &all, Some(&all)),
            ("tcp", &all, Some(&[TCP, RELAY, HTTP])),
            ("tcp,!p2p-circuit", &all, Some(&[TCP, HTTP])),
            ("!p2p-circuit", &all, Some(&[TCP, QUIC, HTTP])),
            ("QUIC-v1, http", &all, Some(&[QUIC, HTTP])),
            ("!tcp,!udp", &all, None),
            ("webrtc-direct", &all, None),
            ("no such thing", &all, Some(&all)),
            ("unknown", &all, None),
            ("unknown,udp", &all, Some(&[QUIC])),
            ("unknown", &[], Some(&[])),
            ("!tcp", &[], None),
            ("tcp", &[], None),
            ("", &[], Some(&[])),
        ];
        for (filter, addresses, expected) in table {
            let record = record(addresses, &[]);
            let expected =
                expected.map(|left| left.iter().map(|text| text.parse().expect("one")).collect::<Vec<Multiaddr>>());
            let left = Filters::read(Some(filter), None).apply(record).map(|record| record.addresses);
            assert_eq!(left, expected, "{filter} of {addresses:?}");
        }
    }

    #[test]
    fn peers_are_filtered_by_transfer_protocol() {
        let table: [(&str, &[&str], bool); 7] = [
            ("", &["transport-x"], true),
            ("transport-bitswap", &["transport-x", "Transport-Bitswap"], true),
            ("Transport-Bitswap", &["transport-bitswap"], true),
            ("transport-bitswap", &["transport-x"], false),
            ("transport-bitswap", &[], false),
            ("unknown,transport-bitswap", &[], true),
            ("unknown", &["transport-x"], false),
        ];
        for (filter, protocols, passes) in table {
            let left = Filters::read(None, Some(filter)).apply(record(&[TCP], protocols));
            assert_eq!(left.is_some(), passes, "{filter} of {protocols:?}");
        }
    }

    #[test]
    fn filters_become_a_query() {
        let both = Filters::read(Some("!TCP,quic-v1"), Some("unknown,a&b=c"));
        assert_eq!(both.to_query(), "filter-addrs=!tcp,quic-v1&filter-protocols=unknown");
        assert_eq!(Filters::default().to_query(), "");
        let flood = Filters::read(Some(&"tcp,".repeat(10_000)), None);
        assert_eq!(flood.addrs.len(), TERMS_MAX);
    }

    proptest! {
        #[test]
        fn a_query_is_parsed_as_the_same_filters(
            addrs in "[!a-zA-Z0-9,. &=-]{0,60}", protocols in "[a-z,&=% -]{0,60}",
        ) {
            let filters = Filters::read(Some(&addrs), Some(&protocols));
            let query = filters.to_query();
            let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            prop_assert_eq!(Filters::read(value(FILTER_ADDRS), value(FILTER_PROTOCOLS)), filters);
        }

        #[test]
        fn filters_are_idempotent(
            filter in "(!?(tcp|udp|http|unknown|ip4),){0,4}", picks in prop::collection::vec(0_usize..4, 0..5),
        ) {
            let addresses: Vec<&str> = picks.iter().map(|pick| [TCP, QUIC, RELAY, HTTP][*pick]).collect();
            let filters = Filters::read(Some(&filter), None);
            if let Some(left) = filters.apply(record(&addresses, &[])) {
                prop_assert_eq!(filters.apply(left.clone()), Some(left));
            }
        }
    }
}
