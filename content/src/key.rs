//! [`Key`]: the public key that an IPNS name is, as a libp2p peer id.

use crate::cid::{Cid, Multihash, codec};
use ::cid::multibase::Base;
use libp2p_identity::PeerId;
use std::fmt;

/// The longest text that can be a name, in bytes: a domain's limit (RFC 1035, section 2.3.4) and every spelling of a key.
pub(crate) const TEXT_BYTES_MAX: usize = 253;

/// The name of a key: the multihash of its public half. Displayed as a CIDv1 in base36, which is the same in upper and
/// lower case and, of an Ed25519 key, fits into a label of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(PeerId);

impl Key {
    /// Reads the base58 of a peer id, or a CIDv1 in any multibase. Beside `libp2p-key` the codec may be `dag-pb`, which
    /// names were once written with.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        if let Ok(peer) = text.parse::<PeerId>() {
            return Some(Self(peer));
        }
        let cid = Cid::try_from(text).ok().filter(|cid| matches!(cid.codec(), codec::LIBP2P_KEY | codec::DAG_PB))?;
        PeerId::from_bytes(&cid.hash().to_bytes()).ok().map(Self)
    }

    /// The peer who would have the key.
    pub fn peer_id(&self) -> &PeerId {
        &self.0
    }

    /// The name as a CID of the codec `libp2p-key`.
    pub fn to_cid(&self) -> Cid {
        // A peer id is a multihash of at most 42 bytes of digest.
        let hash = Multihash::from_bytes(&self.0.to_bytes()).unwrap_or_default();
        Cid::new_v1(codec::LIBP2P_KEY, hash)
    }

    /// What records are stored under in the DHT (<https://specs.ipfs.tech/ipns/ipns-record/#routing-record>).
    pub fn routing_key(&self) -> Vec<u8> {
        [b"/ipns/", &self.0.to_bytes()[..]].concat()
    }
}

impl From<PeerId> for Key {
    fn from(peer: PeerId) -> Self {
        Self(peer)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_cid().to_string_of_base(Base::Base36Lower).unwrap_or_default())
    }
}
