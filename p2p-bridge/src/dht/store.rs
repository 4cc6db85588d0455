//! [`Store`]: the record store of one scope of the DHT.
//!
//! Goals: libp2p's Kademlia answers from it without waiting, so it is all in memory; whatever comes in was checked; bounded
//! by [`Limits`]. Non-goals: the disk, which [`super::kept`] deals with away from the swarm task.
//!
//! It has no clock. [`Store::tick`] tells it the time once a second, and sweeps a bounded number of expired records.

use super::providers::{Added, PER_KEY_MAX, Providers, UNIT_BYTES, fitting};
use super::values::{ValueError, Values};
use super::{Moment, Network, digest};
use crate::obeyed::Obeyed;
use libp2p::kad::store::{Error as KadError, RecordStore, Result as KadResult};
use libp2p::kad::{ProviderRecord, Record, RecordKey};
use libp2p::{Multiaddr, PeerId};
use std::borrow::Cow;
use std::collections::HashMap;

/// The longest key, in bytes: Kubo's limit.
pub const KEY_BYTES_MAX: usize = 80;
/// Expired provider records that one tick forgets at most.
const SWEPT_MAX: usize = 4096;
/// How often value records are swept, in ticks.
const SWEEP_VALUES_EVERY: u32 = 60;

/// How much a store holds, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of provider records, as they are estimated.
    pub provider_bytes: usize,
    /// Bytes of value records.
    pub value_bytes: usize,
    /// Keys that this node provides.
    pub own_keys: usize,
    /// How long a provider record counts, in seconds.
    pub provider_ttl: Moment,
}

impl Default for Limits {
    fn default() -> Self {
        Self { provider_bytes: 32 << 20, value_bytes: 8 << 20, own_keys: 65_536, provider_ttl: 48 * 3600 }
    }
}

/// Why a record is not kept.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The key is empty or too long.
    #[error("the key has {0} bytes")]
    KeyLength(usize),
    /// The record says something about somebody else than who sent it.
    #[error("the record is about another peer")]
    OtherPeer,
    /// The policy refuses what it is about.
    #[error("it is withheld by this node's policy")]
    Withheld,
    /// None of the provider's addresses is of this scope.
    #[error("the provider has no address here")]
    NoAddress,
    /// The value record is refused.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// The records of one scope of the DHT.
#[derive(Debug)]
pub struct Store {
    local: PeerId,
    limits: Limits,
    now: Moment,
    ticks: u32,
    pub(super) providers: Providers,
    pub(super) values: Values,
    own: HashMap<RecordKey, ProviderRecord>,
    changed: bool,
    policy: Obeyed,
}

impl Store {
    /// An empty store of a node.
    pub fn new(local: PeerId, limits: Limits, now: Moment) -> Self {
        let units = u32::try_from(limits.provider_bytes / UNIT_BYTES).unwrap_or(u32::MAX - 1);
        Self {
            local,
            limits,
            now,
            ticks: 0,
            providers: Providers::new(units, limits.provider_ttl),
            values: Values::new(limits.value_bytes),
            own: HashMap::new(),
            changed: false,
            policy: Obeyed::default(),
        }
    }

    /// The same, which neither keeps nor tells what a policy refuses.
    pub fn obeying(self, policy: Obeyed) -> Self {
        Self { policy, ..self }
    }

    /// Tells the time, once a second, and forgets what has expired.
    pub fn tick(&mut self, now: Moment) {
        self.now = now;
        self.values.tick();
        self.ticks = (self.ticks + 1) % SWEEP_VALUES_EVERY;
        if self.ticks == 0 {
            self.values.sweep(now);
        }
        if self.providers.sweep(now, SWEPT_MAX) > 0 {
            self.changed = true;
        }
    }

    /// The time that it was told last.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// How many provider records of others it holds.
    pub fn provider_records(&self) -> usize {
        self.providers.len()
    }

    /// How many value records it holds.
    pub fn value_records(&self) -> usize {
        self.values.len()
    }

    /// What its records take, in bytes, as estimated.
    pub fn bytes(&self) -> usize {
        self.providers.units() as usize * UNIT_BYTES + self.values.bytes()
    }

    /// A peer of some network says that it has a key. The addresses are those of this scope already.
    ///
    /// # Errors
    /// [`Refusal`] says why the record is not kept.
    pub fn keep_provider(
        &mut self,
        key: &RecordKey,
        peer: PeerId,
        network: Network,
        addresses: Vec<Multiaddr>,
    ) -> Result<Added, Refusal> {
        check_key(key)?;
        if self.policy.refuses_block(key.as_ref()) {
            return Err(Refusal::Withheld);
        }
        let addresses = fitting(addresses);
        if addresses.is_empty() {
            return Err(Refusal::NoAddress);
        }
        self.changed = true;
        Ok(self.providers.add(digest(key.as_ref()), peer, network, addresses, self.now))
    }

    /// Where a provider is, as it stated last.
    pub fn addresses(&self, peer: &PeerId) -> Option<&[Multiaddr]> {
        self.providers.addresses(peer)
    }

    /// A peer of some network wants a value record kept.
    ///
    /// # Errors
    /// [`Refusal`] says why it is not.
    pub fn keep_value(&mut self, key: &RecordKey, value: Vec<u8>, network: Network) -> Result<(), Refusal> {
        check_key(key)?;
        if self.policy.refuses_record(key.as_ref()) {
            return Err(Refusal::Withheld);
        }
        self.values.put(key.as_ref(), value.into(), network, self.now, self.now)?;
        self.changed = true;
        Ok(())
    }

    /// Whether anything was written since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    fn as_record(&self, key: &[u8], value: &[u8]) -> Record {
        Record::new(RecordKey::new(&key), value.to_vec())
    }
}

fn check_key(key: &RecordKey) -> Result<(), Refusal> {
    match key.as_ref().len() {
        1..=KEY_BYTES_MAX => Ok(()),
        bytes => Err(Refusal::KeyLength(bytes)),
    }
}

impl RecordStore for Store {
    type RecordsIter<'a> = Box<dyn Iterator<Item = Cow<'a, Record>> + 'a>;
    type ProvidedIter<'a> = Box<dyn Iterator<Item = Cow<'a, ProviderRecord>> + 'a>;

    fn get(&self, key: &RecordKey) -> Option<Cow<'_, Record>> {
        let value = self.values.get(key.as_ref(), self.now).filter(|_| !self.policy.refuses_record(key.as_ref()))?;
        Some(Cow::Owned(self.as_record(key.as_ref(), value)))
    }

    /// Our own records are checked like everybody's, so that nothing else can ever be answered.
    fn put(&mut self, record: Record) -> KadResult<()> {
        self.keep_value(&record.key, record.value, Network::OURS).map_err(|error| {
            tracing::debug!(%error, "a value record was not stored");
            KadError::MaxRecords
        })
    }

    fn remove(&mut self, key: &RecordKey) {
        self.values.remove(key.as_ref());
        self.changed = true;
    }

    fn records(&self) -> Self::RecordsIter<'_> {
        Box::new(self.values.all().map(|(key, value, ..)| Cow::Owned(self.as_record(key, value))))
    }

    fn add_provider(&mut self, record: ProviderRecord) -> KadResult<()> {
        if record.provider != self.local {
            // Whoever has no connection to tell by shares one network.
            let kept = self.keep_provider(&record.key, record.provider, Network::default(), record.addresses);
            return kept.map(drop).map_err(|_| KadError::MaxProvidedKeys);
        }
        if self.own.len() >= self.limits.own_keys && !self.own.contains_key(&record.key) {
            return Err(KadError::MaxProvidedKeys);
        }
        self.own.insert(record.key.clone(), record);
        Ok(())
    }

    fn providers(&self, key: &RecordKey) -> Vec<ProviderRecord> {
        if self.policy.refuses_block(key.as_ref()) {
            return Vec::new();
        }
        let own = self.own.get(key).cloned();
        let digest = digest(key.as_ref());
        let others = self.providers.of(&digest, self.now);
        let others = others.map(|provider| ProviderRecord::new(key.clone(), provider.peer, provider.addresses));
        own.into_iter().chain(others).take(PER_KEY_MAX).collect()
    }

    fn provided(&self) -> Self::ProvidedIter<'_> {
        Box::new(self.own.values().map(Cow::Borrowed))
    }

    fn remove_provider(&mut self, key: &RecordKey, provider: &PeerId) {
        if *provider == self.local {
            self.own.remove(key);
        } else {
            self.providers.remove(&digest(key.as_ref()), provider);
            self.changed = true;
        }
    }
}

#[cfg(test)]
mod tests;
