//! Value records of other peers: IPNS records and public keys.
//!
//! Goals: a record is stored only after its signature was verified, replaces only an older one, and expires at its end
//! of life or after [`LIFETIME`]; records and bytes are bounded, and when the space is exhausted, the oldest record of
//! the network with the most bytes is evicted; verification is rate-limited. Non-goals: republishing records of others,
//! which is up to the owners of the keys.
//!
//! The rules are those of Kubo's validators, so that both store the same records
//! (<https://specs.ipfs.tech/ipns/ipns-record/#record-verification>).

use super::{Moment, Network, moment};
use bytes::Bytes;
use content::ipns::{self, RECORD_BYTES_MAX, RecordError};
use content::names::Key;
use libp2p::PeerId;
use libp2p::identity::PublicKey;
use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

/// The maximum time that a record is stored, in seconds; its end of life may be earlier.
pub const LIFETIME: Moment = 48 * 3600;
/// Rate limit of signature verification, per second over all peers: one or two per cent of a processor.
pub const CHECKS_MAX: u32 = 256;
/// Rate limit of signature verification, per second and network.
pub const CHECKS_PER_NETWORK_MAX: u32 = 64;
/// Estimated memory of a record in addition to its bytes.
const OVERHEAD_BYTES: usize = 256;

const IPNS: &[u8] = b"/ipns/";
const PUBLIC_KEY: &[u8] = b"/pk/";

/// Why a value record is not stored.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// The key is in an unsupported namespace, or has no valid peer ID.
    #[error("the key is in neither the /ipns/ nor the /pk/ namespace")]
    Namespace,
    /// The rate limit of signature verification is exceeded.
    #[error("the rate limit of signature verification is exceeded")]
    Busy,
    /// The IPNS record is invalid.
    #[error(transparent)]
    Invalid(#[from] RecordError),
    /// The public key does not match the peer ID in the key.
    #[error("the public key does not match the peer ID")]
    OtherKey,
    /// The record has reached its end of life.
    #[error("the record is past its end of life")]
    Expired,
    /// The stored record is newer.
    #[error("a newer record is stored")]
    Older,
}

/// The subject of a key.
#[derive(Debug, PartialEq, Eq)]
enum Subject {
    Ipns(Key),
    PublicKey(PeerId),
}

impl Subject {
    fn of(key: &[u8]) -> Option<Self> {
        let peer = |bytes: &[u8]| PeerId::from_bytes(bytes).ok();
        let ipns = key.strip_prefix(IPNS).and_then(peer).map(|peer| Self::Ipns(peer.into()));
        ipns.or_else(|| key.strip_prefix(PUBLIC_KEY).and_then(peer).map(Self::PublicKey))
    }
}

#[derive(Debug)]
enum Kind {
    Ipns(ipns::Record),
    PublicKey(Bytes),
}

impl Kind {
    fn bytes(&self) -> &Bytes {
        match self {
            Self::Ipns(record) => record.bytes(),
            Self::PublicKey(bytes) => bytes,
        }
    }
}

#[derive(Debug)]
struct Value {
    kind: Kind,
    network: Network,
    received: Moment,
    /// The first moment at which it is no longer served.
    ends: Moment,
}

impl Value {
    fn weight(&self, key: &[u8]) -> usize {
        OVERHEAD_BYTES + key.len() + self.kind.bytes().len()
    }
}

/// All value records of a scope.
#[derive(Debug)]
pub struct Values {
    bytes_max: usize,
    bytes: usize,
    values: HashMap<Vec<u8>, Value>,
    checks: HashMap<Network, u32>,
    checked: u32,
}

impl Values {
    /// An empty table of up to `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, values: HashMap::new(), checks: HashMap::new(), checked: 0 }
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The estimated size of the records, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Resets the rate limits, once a second.
    pub fn tick(&mut self) {
        self.checks.clear();
        self.checked = 0;
    }

    /// Verifies and stores a record of a peer of some network. `received` is before `now` for records from before a
    /// restart.
    ///
    /// # Errors
    /// [`ValueError`] says why the record is not stored. The stored record stays.
    pub fn put(
        &mut self,
        key: &[u8],
        bytes: Bytes,
        network: Network,
        received: Moment,
        now: Moment,
    ) -> Result<(), ValueError> {
        let subject = Subject::of(key).ok_or(ValueError::Namespace)?;
        // A copy of the stored record needs no verification.
        let known = self.values.get(key).filter(|known| known.kind.bytes() == &bytes && known.ends > now);
        let kind = match (known, subject) {
            (Some(_), _) => None,
            (None, subject) => Some(self.check(subject, bytes, network)?),
        };
        let lifetime = received.saturating_add(LIFETIME);
        let Some(kind) = kind else {
            if let Some(known) = self.values.get_mut(key) {
                known.ends = lifetime.min(end_of_life(&known.kind)).max(known.ends);
                known.received = received.max(known.received);
            }
            return Ok(());
        };
        let ends = lifetime.min(end_of_life(&kind));
        if ends <= now {
            return Err(ValueError::Expired);
        }
        if self.values.get(key).is_some_and(|known| known.ends > now && is_better(&known.kind, &kind)) {
            return Err(ValueError::Older);
        }
        self.remove(key);
        let value = Value { kind, network, received, ends };
        self.bytes += value.weight(key);
        self.values.insert(key.to_vec(), value);
        while self.bytes > self.bytes_max && self.evict_oldest() {}
        Ok(())
    }

    fn check(&mut self, subject: Subject, bytes: Bytes, network: Network) -> Result<Kind, ValueError> {
        if network != Network::OURS {
            let here = self.checks.entry(network).or_default();
            if self.checked >= CHECKS_MAX || *here >= CHECKS_PER_NETWORK_MAX {
                return Err(ValueError::Busy);
            }
            (*here, self.checked) = (*here + 1, self.checked + 1);
        }
        match subject {
            Subject::Ipns(name) => Ok(Kind::Ipns(ipns::Record::verify(&name, bytes)?)),
            Subject::PublicKey(_) if bytes.len() > RECORD_BYTES_MAX => Err(ValueError::OtherKey),
            Subject::PublicKey(peer) => {
                let public = PublicKey::try_decode_protobuf(&bytes).map_err(|_| ValueError::OtherKey)?;
                // Only the canonical encoding is accepted, so that unknown fields cannot carry other data.
                let same = public.to_peer_id() == peer && public.encode_protobuf() == bytes;
                if same { Ok(Kind::PublicKey(bytes)) } else { Err(ValueError::OtherKey) }
            }
        }
    }

    /// The unexpired record of a key.
    pub fn get(&self, key: &[u8], now: Moment) -> Option<&Bytes> {
        self.values.get(key).filter(|value| value.ends > now).map(|value| value.kind.bytes())
    }

    /// Removes the record of a key.
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(gone) = self.values.remove(key) {
            self.bytes -= gone.weight(key);
        }
    }

    /// Sweeps expired records. It scans all records, so it is called rarely.
    pub fn sweep(&mut self, now: Moment) {
        let bytes = &mut self.bytes;
        self.values.retain(|key, value| {
            let stays = value.ends > now;
            if !stays {
                *bytes -= value.weight(key);
            }
            stays
        });
    }

    /// All records: key, bytes, network and time of receipt.
    pub fn all(&self) -> impl Iterator<Item = (&[u8], &Bytes, Network, Moment)> {
        self.values.iter().map(|(key, value)| (&key[..], value.kind.bytes(), value.network, value.received))
    }

    /// Evicts the oldest record of the network with the most bytes. `false`: there is none. It scans all records, which
    /// is cheap beside the verification of a signature.
    fn evict_oldest(&mut self) -> bool {
        let mut weights: HashMap<Network, usize> = HashMap::new();
        for (key, value) in &self.values {
            *weights.entry(value.network).or_default() += value.weight(key);
        }
        let Some((heaviest, _)) = weights.into_iter().max_by_key(|(network, weight)| (*weight, *network)) else {
            return false;
        };
        let theirs = self.values.iter().filter(|(_, value)| value.network == heaviest);
        let Some(oldest) = theirs.min_by_key(|(_, value)| value.received).map(|(key, _)| key.clone()) else {
            return false;
        };
        self.remove(&oldest);
        true
    }
}

/// The first moment after a record's end of life.
fn end_of_life(kind: &Kind) -> Moment {
    match kind {
        Kind::Ipns(record) => {
            let end = record.end_of_life();
            let beyond =
                end.duration_since(UNIX_EPOCH).is_ok_and(|since| since > Duration::from_secs(Moment::MAX.into()));
            if beyond { Moment::MAX } else { moment(end).saturating_add(1) }
        }
        Kind::PublicKey(_) => Moment::MAX,
    }
}

/// Whether the stored record stays. A peer has only one public key.
fn is_better(known: &Kind, other: &Kind) -> bool {
    match (known, other) {
        (Kind::Ipns(known), Kind::Ipns(other)) => known.newer_than(other),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
