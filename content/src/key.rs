//! [`Key`]: the public key of an IPNS name, as a libp2p peer ID.

use crate::cid::{Cid, Multihash, codec};
use ::cid::multibase::Base;
use libp2p_identity::PeerId;
use std::fmt;

/// The maximum length of a name, in bytes: that of a domain (RFC 1035, section 2.3.4). Every encoding of a key is
/// shorter.
pub(crate) const TEXT_BYTES_MAX: usize = 253;

/// The name of a key: the multihash of the public key. Displayed as a CIDv1 in base36, which is case-insensitive and,
/// for Ed25519 keys, fits into a DNS label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(PeerId);

impl Key {
    /// Parses a peer ID in base58, or a CIDv1 in any multibase. The codec is `libp2p-key`, or `dag-pb` for names in the
    /// old form.
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

    /// The peer ID of the key.
    pub fn peer_id(&self) -> &PeerId {
        &self.0
    }

    /// The name as a CID with the codec `libp2p-key`.
    pub fn to_cid(&self) -> Cid {
        // A peer ID is a multihash with a digest of at most 42 bytes.
        let hash = Multihash::from_bytes(&self.0.to_bytes()).unwrap_or_default();
        Cid::new_v1(codec::LIBP2P_KEY, hash)
    }

    /// The DHT key of the records (<https://specs.ipfs.tech/ipns/ipns-record/#routing-record>).
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
