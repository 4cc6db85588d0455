//! Who has what: the provider records that other peers entrust to us.
//!
//! Goals: bounded bytes; an older record makes room for a newer one of the same origin first, so that a stranger with a
//! million keys, or with a million peer ids, displaces nobody but himself; every step costs a few look-ups, whatever is
//! stored. Non-goals: clocks, disks and addresses of other scopes, which the caller deals with.
//!
//! Room is counted in units. When they are used up, the heaviest network gives way; in it the peer with the most records;
//! and of those the oldest. So a network loses nothing while a heavier one is there, and may use all that is free. For one
//! key, [`PER_KEY_MAX`] providers are kept, with the same rule: the network with the most of them gives way, the oldest first.
//!
//! Keys are stored as the hash that the DHT orders them by. Records lie in one array and are chained in two lists, oldest
//! first: all of them, for expiry, and those of one peer. Addresses are kept once a peer, as it stated them last.

use super::{Digest, Moment, Network};
use libp2p::{Multiaddr, PeerId};
use std::collections::{BTreeSet, HashMap};

/// Providers kept for one key: as many as are answered.
pub const PER_KEY_MAX: usize = 20;
/// Addresses kept of one provider.
pub const ADDRESSES_MAX: usize = 16;
/// Bytes of addresses kept of one provider.
pub const ADDRESS_BYTES_MAX: usize = 1024;
/// Bytes that one unit of room stands for. A record has 60 bytes in the array and up to 68 in the index of keys.
pub const UNIT_BYTES: usize = 128;
/// Units that a peer takes beside its records and addresses: its entries in four indexes.
const PEER_UNITS: u32 = 3;

/// No record.
const NIL: u32 = u32::MAX;
/// The list of all records.
const AGES: usize = 0;
/// The list of one peer's records.
const OWN: usize = 1;

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

/// One record, as it goes out and as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// Who has it.
    pub peer: PeerId,
    /// Where the peer is.
    pub addresses: Vec<Multiaddr>,
    /// When it said so.
    pub received: Moment,
}

/// What came of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It was not known.
    New,
    /// It was known, and counts from now on again.
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
    ages: Chain,
    holders: HashMap<u32, Holder>,
    ids: HashMap<PeerId, u32>,
    next_holder: u32,
    weights: HashMap<Network, u32>,
    /// Networks by weight.
    networks: BTreeSet<(u32, Network)>,
    /// The peers of each network by the number of their records.
    peers: BTreeSet<(Network, u32, u32)>,
}

/// The addresses of a provider that are kept: the first ones that fit.
pub fn fitting(addresses: impl IntoIterator<Item = Multiaddr>) -> Vec<Multiaddr> {
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
    /// An empty table that takes up to `units_max` units and forgets records `ttl` seconds after they were received.
    pub fn new(units_max: u32, ttl: Moment) -> Self {
        Self {
            units_max,
            ttl,
            units: 0,
            records: Vec::new(),
            free: Vec::new(),
            keys: HashMap::new(),
            ages: EMPTY,
            holders: HashMap::new(),
            ids: HashMap::new(),
            next_holder: 0,
            weights: HashMap::new(),
            networks: BTreeSet::new(),
            peers: BTreeSet::new(),
        }
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The room that is taken, in units.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// A peer of some network says that it has a key, and where it can be reached.
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
            self.forget(known, false);
        }
        self.insert(key, holder, received);
        if self.siblings(&key).count() > PER_KEY_MAX {
            self.thin_out(&key);
        }
        while self.units > self.units_max && self.give_way() {}
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

    /// Where a peer is that has records here.
    pub fn addresses(&self, peer: &PeerId) -> Option<&[Multiaddr]> {
        let holder = self.ids.get(peer).and_then(|id| self.holders.get(id));
        holder.map(|holder| &holder.addresses[..]).filter(|addresses| !addresses.is_empty())
    }

    /// Forgets that a peer has a key.
    pub fn remove(&mut self, key: &Digest, peer: &PeerId) {
        let Some(holder) = self.ids.get(peer).copied() else { return };
        let found = self.siblings(key).find(|id| self.records[*id as usize].holder == holder);
        if let Some(found) = found {
            self.forget(found, true);
        }
    }

    /// Forgets expired records, as many as are said at most, and says how many.
    pub fn sweep(&mut self, now: Moment, at_most: usize) -> usize {
        for swept in 0..at_most {
            match self.records.get(self.ages.head as usize) {
                Some(oldest) if self.has_expired(oldest, now) => self.forget(self.ages.head, true),
                _ => return swept,
            }
        }
        at_most
    }

    /// The peers that have records, and what is known of them, by a number that is theirs for now.
    pub fn holders(&self) -> impl Iterator<Item = (u32, &PeerId, Network, &[Multiaddr])> {
        self.holders.iter().map(|(id, holder)| (*id, &holder.peer, holder.network, &holder.addresses[..]))
    }

    /// Every record: its key, its peer's number and when it was received, the oldest first.
    pub fn all(&self) -> impl Iterator<Item = (&Digest, u32, Moment)> {
        let next = |id: u32| self.records.get(id as usize).map(|record| (id, record));
        let chain = std::iter::successors(next(self.ages.head), move |(_, record)| next(record.links[AGES].next));
        chain.map(|(_, record)| (&record.key, record.holder, record.received))
    }

    fn has_expired(&self, record: &Record, now: Moment) -> bool {
        now.saturating_sub(record.received) >= self.ttl
    }

    /// The records of a key, the latest first. They are [`PER_KEY_MAX`] at most.
    fn siblings(&self, key: &Digest) -> impl Iterator<Item = u32> {
        let existing = |id: u32| (id != NIL).then_some(id);
        let first = self.keys.get(key).copied().and_then(existing);
        std::iter::successors(first, move |id| existing(self.records[*id as usize].sibling))
    }

    fn holder(&mut self, peer: PeerId, network: Network, addresses: Vec<Multiaddr>) -> u32 {
        let addresses = fitting(addresses);
        let id = match self.ids.get(&peer) {
            Some(id) => *id,
            None => {
                let id = self.next_holder;
                // Comes round after four thousand million peers, long after the first are gone.
                self.next_holder = self.next_holder.wrapping_add(1);
                self.ids.insert(peer, id);
                id
            }
        };
        if self.holders.get(&id).is_some_and(|known| known.network == network && known.addresses == addresses) {
            return id;
        }
        self.lift(id);
        let known = self.holders.remove(&id);
        let (records, count) = known.map_or((EMPTY, 0), |known| (known.records, known.count));
        self.holders.insert(id, Holder { peer, network, addresses, records, count });
        self.put_down(id);
        id
    }

    /// Takes a peer out of the balance, so that its weight may change.
    fn lift(&mut self, id: u32) {
        let Some(holder) = self.holders.get(&id) else { return };
        self.peers.remove(&(holder.network, holder.count, id));
        self.weigh(holder.network, |weight, units| weight.saturating_sub(units), holder.units());
    }

    /// Puts it back.
    fn put_down(&mut self, id: u32) {
        let Some(holder) = self.holders.get(&id) else { return };
        self.peers.insert((holder.network, holder.count, id));
        self.weigh(holder.network, u32::saturating_add, holder.units());
    }

    fn weigh(&mut self, network: Network, change: fn(u32, u32) -> u32, units: u32) {
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
        self.ages = push_back(&mut self.records, AGES, self.ages, id);
        self.lift(holder);
        if let Some(known) = self.holders.get_mut(&holder) {
            known.records = push_back(&mut self.records, OWN, known.records, id);
            known.count += 1;
        }
        self.put_down(holder);
    }

    /// Takes a record out; with it the peer, if that was its last one and `with_holder` says so.
    fn forget(&mut self, id: u32, with_holder: bool) {
        let Record { key, holder, sibling, .. } = self.records[id as usize];
        let before = self.siblings(&key).find(|other| self.records[*other as usize].sibling == id);
        match before {
            Some(before) => self.records[before as usize].sibling = sibling,
            None if sibling == NIL => _ = self.keys.remove(&key),
            None => _ = self.keys.insert(key, sibling),
        }
        self.ages = unlink(&mut self.records, AGES, self.ages, id);
        self.lift(holder);
        let mut gone = false;
        if let Some(known) = self.holders.get_mut(&holder) {
            known.records = unlink(&mut self.records, OWN, known.records, id);
            known.count -= 1;
            gone = known.count == 0 && with_holder;
        }
        if gone {
            if let Some(holder) = self.holders.remove(&holder) {
                self.ids.remove(&holder.peer);
            }
        } else {
            self.put_down(holder);
        }
        self.free.push(id);
    }

    /// One provider too many: of the network that has most of them, the oldest goes. The list is the latest first.
    fn thin_out(&mut self, key: &Digest) {
        let network = |id: u32| self.holders.get(&self.records[id as usize].holder).map(|holder| holder.network);
        let networks: Vec<(u32, Option<Network>)> = self.siblings(key).map(|id| (id, network(id))).collect();
        let crowd = |network: &Option<Network>| networks.iter().filter(|(_, other)| other == network).count();
        // The last of equals is the oldest.
        if let Some((id, _)) = networks.iter().max_by_key(|(_, network)| crowd(network)) {
            self.forget(*id, true);
        }
    }

    /// Forgets the oldest record of the peer with the most of them in the heaviest network. `false`: there is none.
    fn give_way(&mut self) -> bool {
        let Some((_, network)) = self.networks.last().copied() else { return false };
        let peers = self.peers.range((network, 0, 0)..=(network, u32::MAX, u32::MAX));
        let Some((_, _, holder)) = peers.last().copied() else { return false };
        let Some(oldest) = self.holders.get(&holder).map(|holder| holder.records.head) else { return false };
        if oldest == NIL {
            return false;
        }
        self.forget(oldest, true);
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
