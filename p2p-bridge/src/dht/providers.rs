//! Provider records of other peers.
//!
//! Goals: bounded bytes; a new record evicts older records of the same origin first, so that an untrusted peer with a
//! million keys or a million peer IDs evicts only its own; each operation costs a few look-ups, independent of the
//! number of records. Non-goals: clocks, disks and addresses of other scopes, which the caller handles.
//!
//! Space is counted in units. When it is exhausted, the heaviest network loses a record: the oldest of its peer with
//! the most records. So a network loses nothing while a heavier one exists, and may use all free space. A key has at
//! most [`PER_KEY_MAX`] providers, with the same rule: the oldest provider of the network with the most of them is
//! evicted.
//!
//! A key is stored as its hash, which is its position in the DHT. Records are in one array and in two linked lists,
//! oldest first: all records, for expiry, and those of one peer. Addresses are stored once per peer, as it sent them
//! last.

use super::{Digest, Moment, Network};
use libp2p::{Multiaddr, PeerId};
use std::collections::{BTreeSet, HashMap};

/// Maximum providers of one key: as many as one response has.
pub const PER_KEY_MAX: usize = 20;
/// Maximum addresses of one provider.
pub const ADDRESSES_MAX: usize = 16;
/// Maximum bytes of addresses of one provider.
pub const ADDRESS_BYTES_MAX: usize = 1024;
/// Bytes per unit of space. A record has 60 bytes in the array and up to 68 in the index of keys.
pub const UNIT_BYTES: usize = 128;
/// Units of a peer in addition to its records and addresses: its entries in four indexes.
const PEER_UNITS: u32 = 3;

/// The null index.
const NIL: u32 = u32::MAX;
/// The list of all records by age.
const BY_AGE: usize = 0;
/// The list of one peer's records.
const BY_PEER: usize = 1;

#[derive(Debug, Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Debug)]
struct Record {
    key: Digest,
    holder: u32,
    received: Moment,
    /// The next older record of the same key.
    sibling: u32,
    links: [Link; 2],
}

/// The ends of a list.
#[derive(Debug, Clone, Copy)]
struct Chain {
    head: u32,
    tail: u32,
}

const EMPTY: Chain = Chain { head: NIL, tail: NIL };

#[derive(Debug)]
struct Holder {
    peer: PeerId,
    network: Network,
    addresses: Vec<Multiaddr>,
    records: Chain,
    count: u32,
}

impl Holder {
    fn units(&self) -> u32 {
        let bytes: usize = self.addresses.iter().map(|address| address.len() + size_of::<Multiaddr>() + 32).sum();
        PEER_UNITS + self.count + u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX / 2)
    }
}

/// A provider of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// The peer that has the block.
    pub peer: PeerId,
    /// Its addresses.
    pub addresses: Vec<Multiaddr>,
    /// When the record was received.
    pub received: Moment,
}

/// The result of adding a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The record is new.
    New,
    /// The record existed, and its lifetime starts again.
    Renewed,
}

/// All provider records of a scope.
#[derive(Debug)]
pub struct Providers {
    units_max: u32,
    ttl: Moment,
    units: u32,
    records: Vec<Record>,
    free: Vec<u32>,
    keys: HashMap<Digest, u32>,
    by_age: Chain,
    holders: HashMap<u32, Holder>,
    ids: HashMap<PeerId, u32>,
    next_holder: u32,
    weights: HashMap<Network, u32>,
    /// Networks by units.
    networks: BTreeSet<(u32, Network)>,
    /// The peers of each network by their record count.
    peers: BTreeSet<(Network, u32, u32)>,
}

/// The first addresses of a provider that are within the limits.
pub fn within_limits(addresses: impl IntoIterator<Item = Multiaddr>) -> Vec<Multiaddr> {
    let mut bytes = 0;
    let mut kept: Vec<Multiaddr> = Vec::new();
    for address in addresses {
        if kept.len() == ADDRESSES_MAX {
            break;
        }
        if bytes + address.len() <= ADDRESS_BYTES_MAX && !kept.contains(&address) {
            bytes += address.len();
            kept.push(address);
        }
    }
    kept
}

impl Providers {
    /// An empty table of up to `units_max` units; records expire `ttl` seconds after they were received.
    pub fn new(units_max: u32, ttl: Moment) -> Self {
        Self {
            units_max,
            ttl,
            units: 0,
            records: Vec::new(),
            free: Vec::new(),
            keys: HashMap::new(),
            by_age: EMPTY,
            holders: HashMap::new(),
            ids: HashMap::new(),
            next_holder: 0,
            weights: HashMap::new(),
            networks: BTreeSet::new(),
            peers: BTreeSet::new(),
        }
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The used space, in units.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Adds or renews a provider record, with the addresses of the peer.
    pub fn add(
        &mut self,
        key: Digest,
        peer: PeerId,
        network: Network,
        addresses: Vec<Multiaddr>,
        received: Moment,
    ) -> Added {
        let holder = self.holder(peer, network, addresses);
        let known = self.siblings(&key).find(|id| self.records[*id as usize].holder == holder);
        if let Some(known) = known {
            self.remove_record(known, false);
        }
        self.insert(key, holder, received);
        if self.siblings(&key).count() > PER_KEY_MAX {
            self.evict_from_key(&key);
        }
        while self.units > self.units_max && self.evict_oldest() {}
        if known.is_some() { Added::Renewed } else { Added::New }
    }

    /// The providers of a key whose records have not expired, the latest first.
    pub fn of(&self, key: &Digest, now: Moment) -> impl Iterator<Item = Provider> {
        let fresh = self.siblings(key).map(|id| &self.records[id as usize]);
        let fresh = fresh.filter(move |record| !self.has_expired(record, now));
        fresh.filter_map(|record| {
            let holder = self.holders.get(&record.holder)?;
            Some(Provider { peer: holder.peer, addresses: holder.addresses.clone(), received: record.received })
        })
    }

    /// The addresses of a peer that has records.
    pub fn addresses(&self, peer: &PeerId) -> Option<&[Multiaddr]> {
        let holder = self.ids.get(peer).and_then(|id| self.holders.get(id));
        holder.map(|holder| &holder.addresses[..]).filter(|addresses| !addresses.is_empty())
    }

    /// Removes the record of a peer for a key.
    pub fn remove(&mut self, key: &Digest, peer: &PeerId) {
        let Some(holder) = self.ids.get(peer).copied() else { return };
        let found = self.siblings(key).find(|id| self.records[*id as usize].holder == holder);
        if let Some(found) = found {
            self.remove_record(found, true);
        }
    }

    /// Removes up to `at_most` expired records, and returns how many.
    pub fn sweep(&mut self, now: Moment, at_most: usize) -> usize {
        for swept in 0..at_most {
            match self.records.get(self.by_age.head as usize) {
                Some(oldest) if self.has_expired(oldest, now) => self.remove_record(self.by_age.head, true),
                _ => return swept,
            }
        }
        at_most
    }

    /// The peers that have records, each with its internal number, network and addresses.
    pub fn holders(&self) -> impl Iterator<Item = (u32, &PeerId, Network, &[Multiaddr])> {
        self.holders.iter().map(|(id, holder)| (*id, &holder.peer, holder.network, &holder.addresses[..]))
    }

    /// All records: key, number of the peer and time of receipt, the oldest first.
    pub fn all(&self) -> impl Iterator<Item = (&Digest, u32, Moment)> {
        let next = |id: u32| self.records.get(id as usize).map(|record| (id, record));
        let chain = std::iter::successors(next(self.by_age.head), move |(_, record)| next(record.links[BY_AGE].next));
        chain.map(|(_, record)| (&record.key, record.holder, record.received))
    }

    fn has_expired(&self, record: &Record, now: Moment) -> bool {
        now.saturating_sub(record.received) >= self.ttl
    }

    /// The records of a key, the latest first; at most [`PER_KEY_MAX`].
    fn siblings(&self, key: &Digest) -> impl Iterator<Item = u32> {
        let existing = |id: u32| (id != NIL).then_some(id);
        let first = self.keys.get(key).copied().and_then(existing);
        std::iter::successors(first, move |id| existing(self.records[*id as usize].sibling))
    }

    fn holder(&mut self, peer: PeerId, network: Network, addresses: Vec<Multiaddr>) -> u32 {
        let addresses = within_limits(addresses);
        let id = match self.ids.get(&peer) {
            Some(id) => *id,
            None => {
                let id = self.next_holder;
                // Wraps around after 2^32 peers, when the first ones have expired long ago.
                self.next_holder = self.next_holder.wrapping_add(1);
                self.ids.insert(peer, id);
                id
            }
        };
        if self.holders.get(&id).is_some_and(|known| known.network == network && known.addresses == addresses) {
            return id;
        }
        self.remove_from_indexes(id);
        let known = self.holders.remove(&id);
        let (records, count) = known.map_or((EMPTY, 0), |known| (known.records, known.count));
        self.holders.insert(id, Holder { peer, network, addresses, records, count });
        self.add_to_indexes(id);
        id
    }

    /// Removes a peer from the indexes by weight, before its weight changes.
    fn remove_from_indexes(&mut self, id: u32) {
        let Some(holder) = self.holders.get(&id) else { return };
        self.peers.remove(&(holder.network, holder.count, id));
        self.change_weight(holder.network, |weight, units| weight.saturating_sub(units), holder.units());
    }

    /// Adds it again.
    fn add_to_indexes(&mut self, id: u32) {
        let Some(holder) = self.holders.get(&id) else { return };
        self.peers.insert((holder.network, holder.count, id));
        self.change_weight(holder.network, u32::saturating_add, holder.units());
    }

    fn change_weight(&mut self, network: Network, change: fn(u32, u32) -> u32, units: u32) {
        let before = self.weights.get(&network).copied().unwrap_or(0);
        let after = change(before, units);
        self.units = change(self.units, units);
        self.networks.remove(&(before, network));
        if after == 0 {
            self.weights.remove(&network);
        } else {
            self.weights.insert(network, after);
            self.networks.insert((after, network));
        }
    }

    fn insert(&mut self, key: Digest, holder: u32, received: Moment) {
        let sibling = self.keys.get(&key).copied().unwrap_or(NIL);
        let unlinked = Link { prev: NIL, next: NIL };
        let record = Record { key, holder, received, sibling, links: [unlinked; 2] };
        let id = match self.free.pop() {
            Some(id) => {
                self.records[id as usize] = record;
                id
            }
            None => {
                self.records.push(record);
                (self.records.len() - 1) as u32
            }
        };
        self.keys.insert(key, id);
        self.by_age = push_back(&mut self.records, BY_AGE, self.by_age, id);
        self.remove_from_indexes(holder);
        if let Some(known) = self.holders.get_mut(&holder) {
            known.records = push_back(&mut self.records, BY_PEER, known.records, id);
            known.count += 1;
        }
        self.add_to_indexes(holder);
    }

    /// Removes a record, and its peer if this was its last record and `with_holder` is set.
    fn remove_record(&mut self, id: u32, with_holder: bool) {
        let Record { key, holder, sibling, .. } = self.records[id as usize];
        let before = self.siblings(&key).find(|other| self.records[*other as usize].sibling == id);
        match before {
            Some(before) => self.records[before as usize].sibling = sibling,
            None if sibling == NIL => _ = self.keys.remove(&key),
            None => _ = self.keys.insert(key, sibling),
        }
        self.by_age = unlink(&mut self.records, BY_AGE, self.by_age, id);
        self.remove_from_indexes(holder);
        let mut gone = false;
        if let Some(known) = self.holders.get_mut(&holder) {
            known.records = unlink(&mut self.records, BY_PEER, known.records, id);
            known.count -= 1;
            gone = known.count == 0 && with_holder;
        }
        if gone {
            if let Some(holder) = self.holders.remove(&holder) {
                self.ids.remove(&holder.peer);
            }
        } else {
            self.add_to_indexes(holder);
        }
        self.free.push(id);
    }

    /// Evicts a provider of a key that has too many: the oldest of the network with the most. The list is the latest
    /// first.
    fn evict_from_key(&mut self, key: &Digest) {
        let network = |id: u32| self.holders.get(&self.records[id as usize].holder).map(|holder| holder.network);
        let networks: Vec<(u32, Option<Network>)> = self.siblings(key).map(|id| (id, network(id))).collect();
        let crowd = |network: &Option<Network>| networks.iter().filter(|(_, other)| other == network).count();
        // Of equal elements, `max_by_key` returns the last, which is the oldest.
        if let Some((id, _)) = networks.iter().max_by_key(|(_, network)| crowd(network)) {
            self.remove_record(*id, true);
        }
    }

    /// Evicts the oldest record of the peer with the most records in the heaviest network. `false`: there is none.
    fn evict_oldest(&mut self) -> bool {
        let Some((_, network)) = self.networks.last().copied() else { return false };
        let peers = self.peers.range((network, 0, 0)..=(network, u32::MAX, u32::MAX));
        let Some((_, _, holder)) = peers.last().copied() else { return false };
        let Some(oldest) = self.holders.get(&holder).map(|holder| holder.records.head) else { return false };
        if oldest == NIL {
            return false;
        }
        self.remove_record(oldest, true);
        true
    }
}

fn push_back(records: &mut [Record], list: usize, chain: Chain, id: u32) -> Chain {
    records[id as usize].links[list] = Link { prev: chain.tail, next: NIL };
    match records.get_mut(chain.tail as usize) {
        Some(last) => {
            last.links[list].next = id;
            Chain { head: chain.head, tail: id }
        }
        None => Chain { head: id, tail: id },
    }
}

fn unlink(records: &mut [Record], list: usize, mut chain: Chain, id: u32) -> Chain {
    let Link { prev, next } = records[id as usize].links[list];
    match records.get_mut(prev as usize) {
        Some(before) => before.links[list].next = next,
        None => chain.head = next,
    }
    match records.get_mut(next as usize) {
        Some(after) => after.links[list].prev = prev,
        None => chain.tail = prev,
    }
    chain
}

#[cfg(test)]
mod tests;
