//! Parsing of requests to the routing API.

use crate::errors::{Problem, RoutingProblem};
use crate::request::{ROUTING, RequestError, negotiate};
use content::names::Key;
use content::{Cid, cid};
use http::HeaderMap;
use http::header::ACCEPT;
use libp2p::PeerId;
use p2p_bridge::routing_v1::client::{IPNS_RECORD, JSON, NDJSON};
use p2p_bridge::routing_v1::types::{PEERS, PROVIDERS};

/// A request to the routing API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoutingRequest {
    /// The providers of a block.
    Providers(Cid),
    /// The addresses of a peer.
    Peer(PeerId),
    /// The DHT servers closest to a key, which is the multihash that the DHT hashes (IPIP-0476).
    Closest(Vec<u8>),
    /// An IPNS record.
    Record(Key),
}

impl RoutingRequest {
    /// Parses a path.
    ///
    /// # Errors
    /// [`RoutingProblem`] when the key is invalid, [`RequestError::NoSuchPage`] when the endpoint does not exist.
    pub fn read(path: &str) -> Result<Self, Problem> {
        let below = path.strip_prefix(ROUTING).ok_or(RequestError::NoSuchPage)?;
        let (endpoint, text) = below.rsplit_once('/').ok_or(RequestError::NoSuchPage)?;
        let shown = || text.chars().take(80).collect::<String>();
        Ok(match endpoint {
            "providers" => Self::Providers(cid::parse(text).map_err(RoutingProblem::from)?),
            "peers" => Self::Peer(
                Key::parse(text).map(|key| *key.peer_id()).ok_or_else(|| RoutingProblem::Peer { text: shown() })?,
            ),
            "ipns" => Self::Record(Key::parse(text).ok_or_else(|| RoutingProblem::Name { text: shown() })?),
            "dht/closest/peers" => {
                Self::Closest(closest_key(text).ok_or_else(|| RoutingProblem::Key { text: shown() })?)
            }
            _ => return Err(RequestError::NoSuchPage.into()),
        })
    }

    /// The endpoint's name in metrics.
    pub fn endpoint(&self) -> &'static str {
        match self {
            Self::Providers(_) => "providers",
            Self::Peer(_) => "peers",
            Self::Closest(_) => "closest",
            Self::Record(_) => "ipns",
        }
    }

    /// The name of the list in a JSON response.
    pub fn list(&self) -> &'static str {
        if matches!(self, Self::Providers(_)) { PROVIDERS } else { PEERS }
    }
}

/// The multihash of a CID or a peer ID.
fn closest_key(text: &str) -> Option<Vec<u8>> {
    let peer = Key::parse(text).map(|key| key.peer_id().to_bytes());
    peer.or_else(|| cid::parse(text).ok().map(|cid| cid.hash().to_bytes()))
}

/// The format of peer records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A JSON object with a list, sent when the search has ended.
    List,
    /// NDJSON: one JSON object a line, sent as records are found.
    Lines,
}

impl Format {
    /// Negotiates the format; prefers NDJSON at equal weights.
    ///
    /// # Errors
    /// [`RoutingProblem::NotAcceptable`].
    pub fn of_peers(headers: &HeaderMap) -> Result<Self, RoutingProblem> {
        if !headers.contains_key(ACCEPT) {
            return Ok(Self::List);
        }
        let mut best: Option<(f32, Self)> = None;
        for (media_type, weight) in negotiate::media_ranges(headers) {
            let format = match media_type.to_ascii_lowercase().as_str() {
                NDJSON => Self::Lines,
                JSON | "*/*" | "application/*" => Self::List,
                _ => continue,
            };
            let beats = |(best, _): (f32, Self)| weight > best || weight >= best && format == Self::Lines;
            if weight > 0.0 && best.is_none_or(beats) {
                best = Some((weight, format));
            }
        }
        let available = "application/json or application/x-ndjson";
        best.map(|(_, format)| format).ok_or(RoutingProblem::NotAcceptable { available })
    }
}

/// Whether a request accepts an IPNS record.
///
/// # Errors
/// [`RoutingProblem::NotAcceptable`].
pub fn accepts_record(headers: &HeaderMap) -> Result<(), RoutingProblem> {
    let is_record = |(media_type, weight): (&str, f32)| {
        weight > 0.0
            && [IPNS_RECORD, "*/*", "application/*"].iter().any(|accepted| media_type.eq_ignore_ascii_case(accepted))
    };
    let accepted = !headers.contains_key(ACCEPT) || negotiate::media_ranges(headers).any(is_record);
    if accepted { Ok(()) } else { Err(RoutingProblem::NotAcceptable { available: IPNS_RECORD }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const CID: &str = "bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am";
    const PEER: &str = "12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK";
    const NAME: &str = "k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8";

    #[test]
    fn paths_are_parsed() {
        let cid = cid::parse(CID).expect("a CID");
        let key = Key::parse(PEER).expect("a key");
        let peer = *key.peer_id();
        let good = [
            (format!("providers/{CID}"), RoutingRequest::Providers(cid)),
            (format!("peers/{PEER}"), RoutingRequest::Peer(peer)),
            (format!("peers/{NAME}"), RoutingRequest::Peer(peer)),
            (format!("ipns/{NAME}"), RoutingRequest::Record(key)),
            (format!("ipns/{}", key.to_cid()), RoutingRequest::Record(key)),
            (format!("dht/closest/peers/{CID}"), RoutingRequest::Closest(cid.hash().to_bytes())),
            (format!("dht/closest/peers/{PEER}"), RoutingRequest::Closest(peer.to_bytes())),
            (format!("dht/closest/peers/{NAME}"), RoutingRequest::Closest(peer.to_bytes())),
        ];
        for (path, expected) in good {
            assert_eq!(RoutingRequest::read(&format!("{ROUTING}{path}")), Ok(expected), "{path}");
        }
        let long = format!("providers/{}", "b".repeat(10_000));
        let bad = [
            "providers/",
            "providers/x",
            "peers/x",
            &format!("peers/{CID}"),
            "ipns/example.org",
            "dht/closest/peers/x",
            &long,
        ];
        for path in bad {
            let problem = RoutingRequest::read(&format!("{ROUTING}{path}")).expect_err(path);
            assert!(matches!(problem, Problem::Routing(_)) && problem.to_string().len() < 200, "{path}: {problem}");
            assert_eq!(problem.status(), 400, "{path}");
        }
        for path in ["", "providers", "elsewhere/x", &format!("providers/{CID}/"), &format!("dht/{CID}")] {
            let problem = RoutingRequest::read(&format!("{ROUTING}{path}")).expect_err(path);
            assert!(matches!(problem.status().as_u16(), 400 | 404), "{path}: {problem}");
        }
    }

    #[test]
    fn formats_are_negotiated() {
        let headers = |accept: &str| {
            let value = HeaderValue::from_str(accept).expect("a header");
            HeaderMap::from_iter((!accept.is_empty()).then_some((ACCEPT, value)))
        };
        let table = [
            ("", Some(Format::List), true),
            ("*/*", Some(Format::List), true),
            ("application/json", Some(Format::List), false),
            ("application/x-ndjson", Some(Format::Lines), false),
            ("application/json, application/x-ndjson", Some(Format::Lines), false),
            ("application/x-ndjson,application/json", Some(Format::Lines), false),
            ("application/json, application/x-ndjson;q=0.5", Some(Format::List), false),
            ("Application/X-NDJSON; q=0.9, */*;q=0.1", Some(Format::Lines), true),
            ("application/x-ndjson;q=0", None, false),
            ("text/html, application/*;q=0.1", Some(Format::List), true),
            ("text/html", None, false),
            ("application/vnd.ipfs.ipns-record", None, true),
        ];
        for (accept, peers, record) in table {
            assert_eq!(Format::of_peers(&headers(accept)).ok(), peers, "{accept}");
            assert_eq!(accepts_record(&headers(accept)).is_ok(), record, "{accept}");
        }
    }
}
