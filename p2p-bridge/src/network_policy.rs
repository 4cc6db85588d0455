//! [`NetworkPolicy`]: the network policy.
//!
//! Content that the policy refuses is not fetched, announced or named to other peers: neither its providers nor a
//! name's value. The block source that the bridge is given must not serve it either.

use content::names::Key;
use content::{AllowAll, Cid, Multihash, Name, Policy, SourceError, Verdict, codec};
use std::fmt;
use std::sync::Arc;

/// Prefix of the keys of IPNS records in the DHT.
const IPNS: &[u8] = b"/ipns/";

/// The policy as one of the options. All policies compare as equal, so that options can be compared.
#[derive(Clone)]
pub struct NetworkPolicy(pub Arc<dyn Policy>);

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self(Arc::new(AllowAll))
    }
}

impl PartialEq for NetworkPolicy {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for NetworkPolicy {}

impl fmt::Debug for NetworkPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Obeyed").field("generation", &self.0.generation()).finish_non_exhaustive()
    }
}

impl NetworkPolicy {
    /// Whether a block may be fetched.
    ///
    /// # Errors
    /// [`SourceError::Refused`].
    pub fn check(&self, cid: &Cid) -> Result<(), SourceError> {
        match self.0.check(cid) {
            Verdict::Allow => Ok(()),
            verdict => Err(SourceError::Refused { cid: *cid, verdict }),
        }
    }

    /// Whether a block, by its multihash in bytes, is refused.
    pub fn refuses_block(&self, multihash: &[u8]) -> bool {
        let hash = Multihash::from_bytes(multihash);
        hash.is_ok_and(|hash| self.0.check(&Cid::new_v1(codec::RAW, hash)) != Verdict::Allow)
    }

    /// Whether the name of a key is refused.
    pub fn refuses_name(&self, key: &Key) -> bool {
        self.0.check_name(&Name::Key(*key), "") != Verdict::Allow
    }

    /// Whether a value record of the DHT, given by its key, belongs to a refused name.
    pub fn refuses_record(&self, key: &[u8]) -> bool {
        let peer = key.strip_prefix(IPNS).and_then(|peer| libp2p::PeerId::from_bytes(peer).ok());
        peer.is_some_and(|peer| self.refuses_name(&Key::from(peer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::denylist::{List, Matcher, Source};

    #[test]
    fn blocks_names_and_records_are_recognised_by_their_bytes() {
        let key = Key::parse("k51qzi5uqu5dhmzyv3zac033i7rl9hkgczxyl81lwoukda2htteop7d3x0y1mf").expect("a key");
        let other = Key::parse("12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK").expect("a key");
        let cid = content::cid::parse("QmWvY6FaqFMS89YAQ9NAPjVP4WZKA1qbHbicc9HeSKQTgt").expect("a CID");
        let list = List::parse(format!("/ipns/{key}\n/ipfs/{cid}\n").as_bytes()).expect("a list");
        let obeyed = NetworkPolicy(Arc::new(Matcher::new([Source { id: "x".into(), list, status: Verdict::Legal }])));
        assert!(obeyed.refuses_name(&key) && !obeyed.refuses_name(&other));
        assert!(obeyed.refuses_record(&key.routing_key()) && !obeyed.refuses_record(&other.routing_key()));
        assert!(obeyed.refuses_block(&cid.hash().to_bytes()) && !obeyed.refuses_block(&key.routing_key()));
        assert_eq!(obeyed.check(&cid), Err(SourceError::Refused { cid, verdict: Verdict::Legal }));
        for bytes in [&b""[..], b"/ipns/", b"/pk/x", &[0x12, 0x20, 1]] {
            assert!(!obeyed.refuses_block(bytes) && !obeyed.refuses_record(bytes));
        }
        assert_eq!(NetworkPolicy::default().check(&cid), Ok(()));
    }
}
