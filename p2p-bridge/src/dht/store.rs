//! [`Store`]: the record store of one scope of the DHT.
//!
//! Goals: libp2p's Kademlia reads it without blocking, so everything is in memory; records are verified before they
//! enter; bounded by [`RecordStoreLimits`]. Non-goals: the disk, which [`super::kept`] handles outside of the swarm
//! task.
//!
//! It has no clock: [`Store::tick`] advances its time once a second, and sweeps a bounded number of expired records.

use super::providers::{Added, PER_KEY_MAX, Providers, UNIT_BYTES, within_limits};
use super::values::{ValueError, Values};
use super::{Moment, Network, digest};
use crate::network_policy::NetworkPolicy;
use libp2p::kad::store::{Error as KadError, RecordStore, Result as KadResult};
use libp2p::kad::{ProviderRecord, Record, RecordKey};
use libp2p::{Multiaddr, PeerId};
use std::borrow::Cow;
use std::collections::HashMap;

/// The maximum length of a key, in bytes: Kubo's limit.
pub const KEY_BYTES_MAX: usize = 80;
/// Maximum expired provider records that one tick sweeps.
const SWEEP_MAX: usize = 4096;
/// How often value records are swept, in ticks.
const SWEEP_VALUES_EVERY: u32 = 60;

/// The capacity of a store, and the lifetime of provider records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordStoreLimits {
    /// Estimated bytes of provider records.
    pub provider_bytes: usize,
    /// Bytes of value records.
    pub value_bytes: usize,
    /// Keys that this node provides.
    pub own_keys: usize,
    /// Lifetime of a provider record, in seconds.
    pub provider_ttl: Moment,
}

impl Default for RecordStoreLimits {
    fn default() -> Self {
        Self { provider_bytes: 32 << 20, value_bytes: 8 << 20, own_keys: 65_536, provider_ttl: 48 * 3600 }
    }
}

/// Why a record is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Rejection {
    /// The key is empty or too long.
    #[error("the key has {0} bytes instead of 1 to {KEY_BYTES_MAX}")]
    KeyLength(usize),
    /// The record names another peer than its sender as the provider.
    #[error("the record is about another peer")]
    OtherPeer,
    /// The policy withholds the content.
    #[error("this node's policy withholds the content")]
    Withheld,
    /// None of the provider's addresses is of this scope.
    #[error("the provider has no address in this scope")]
    NoAddress,
    /// The value record is invalid, or the rate limit is exceeded.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// The records of one scope of the DHT.
#[derive(Debug)]
pub struct Store {
    local: PeerId,
    limits: RecordStoreLimits,
    now: Moment,
    ticks: u32,
    pub(super) providers: Providers,
    pub(super) values: Values,
    own: HashMap<RecordKey, ProviderRecord>,
    changed: bool,
    policy: NetworkPolicy,
}

impl Store {
    /// An empty store of a node.
    pub fn new(local: PeerId, limits: RecordStoreLimits, now: Moment) -> Self {
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
            policy: NetworkPolicy::default(),
        }
    }

    /// The same store with a policy: what it withholds is neither stored nor served.
    pub fn with_policy(self, policy: NetworkPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Advances the clock, once a second, and sweeps expired records.
    pub fn tick(&mut self, now: Moment) {
        self.now = now;
        self.values.tick();
        self.ticks = (self.ticks + 1) % SWEEP_VALUES_EVERY;
        if self.ticks == 0 {
            self.values.sweep(now);
        }
        if self.providers.sweep(now, SWEEP_MAX) > 0 {
            self.changed = true;
        }
    }

    /// The time of the last tick.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// The number of provider records of other peers.
    pub fn provider_records(&self) -> usize {
        self.providers.len()
    }

    /// The number of value records.
    pub fn value_records(&self) -> usize {
        self.values.len()
    }

    /// The estimated size of the records, in bytes.
    pub fn bytes(&self) -> usize {
        self.providers.units() as usize * UNIT_BYTES + self.values.bytes()
    }

    /// Stores a provider record. The addresses are already those of this scope.
    ///
    /// # Errors
    /// [`Rejection`] says why the record is not stored.
    pub fn put_provider(
        &mut self,
        key: &RecordKey,
        peer: PeerId,
        network: Network,
        addresses: Vec<Multiaddr>,
    ) -> Result<Added, Rejection> {
        check_key(key)?;
        if self.policy.refuses_block(key.as_ref()) {
            return Err(Rejection::Withheld);
        }
        let addresses = within_limits(addresses);
        if addresses.is_empty() {
            return Err(Rejection::NoAddress);
        }
        self.changed = true;
        Ok(self.providers.add(digest(key.as_ref()), peer, network, addresses, self.now))
    }

    /// The addresses of a provider, as it sent them last.
    pub fn addresses(&self, peer: &PeerId) -> Option<&[Multiaddr]> {
        self.providers.addresses(peer)
    }

    /// Stores a value record of a peer of some network.
    ///
    /// # Errors
    /// [`Rejection`] says why the record is not stored.
    pub fn put_value(&mut self, key: &RecordKey, value: Vec<u8>, network: Network) -> Result<(), Rejection> {
        check_key(key)?;
        if self.policy.refuses_record(key.as_ref()) {
            return Err(Rejection::Withheld);
        }
        self.values.put(key.as_ref(), value.into(), network, self.now, self.now)?;
        self.changed = true;
        Ok(())
    }

    /// Whether records changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    fn as_record(&self, key: &[u8], value: &[u8]) -> Record {
        Record::new(RecordKey::new(&key), value.to_vec())
    }
}

fn check_key(key: &RecordKey) -> Result<(), Rejection> {
    match key.as_ref().len() {
        1..=KEY_BYTES_MAX => Ok(()),
        bytes => Err(Rejection::KeyLength(bytes)),
    }
}

impl RecordStore for Store {
    type RecordsIter<'a> = Box<dyn Iterator<Item = Cow<'a, Record>> + 'a>;
    type ProvidedIter<'a> = Box<dyn Iterator<Item = Cow<'a, ProviderRecord>> + 'a>;

    fn get(&self, key: &RecordKey) -> Option<Cow<'_, Record>> {
        let value = self.values.get(key.as_ref(), self.now).filter(|_| !self.policy.refuses_record(key.as_ref()))?;
        Some(Cow::Owned(self.as_record(key.as_ref(), value)))
    }

    /// The node's own records are verified too, so that only valid records are ever served.
    fn put(&mut self, record: Record) -> KadResult<()> {
        self.put_value(&record.key, record.value, Network::OURS).map_err(|error| {
            tracing::debug!(%error, "a value record was rejected");
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
            // The network is unknown without a connection; all such records share one.
            let kept = self.put_provider(&record.key, record.provider, Network::default(), record.addresses);
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
