//! Announcing provider records ([`crate::providing`]): carries out the sweeps' decisions in both scopes.

use super::{ADDRESSES_MAX, Task};
use crate::announced::Announced;
use crate::dht::behaviour::ScopedKad;
use crate::epoch;
use crate::options::{BridgeOptions, ProvideOptions, ProvideStrategy};
use crate::providing::desk::Action;
use crate::providing::handler::{CommandOutcome, Done};
use crate::providing::job::Table;
use crate::providing::keys::{KeySource, WINDOW_KEYS_MAX, Window};
use crate::providing::keyspace::{Position, REPLICATION};
use crate::providing::message::Provider;
use crate::providing::metrics::Metrics;
use crate::providing::schedule::Schedule;
use crate::providing::sweep::Sweep;
use crate::providing::walk::Peer;
use crate::scope::Scope;
use libp2p::kad::store::RecordStore;
use libp2p::kad::{KBucketKey, ProviderRecord, RecordKey};
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// The maximum number of the node's own keys in the record store of one scope, for requests to the node as one of the
/// closest peers. There are more only in a network so small that all peers know all keys.
const OWN_KEYS_MAX: usize = 16_384;

/// The sweeps and their state.
pub struct Announcing {
    sweeps: HashMap<Scope, Sweep>,
    source: Option<Arc<dyn KeySource>>,
    providers: HashMap<Scope, Arc<Provider>>,
    loads: mpsc::UnboundedSender<(Scope, Window)>,
    loaded: mpsc::UnboundedReceiver<(Scope, Window)>,
    metrics: Metrics,
    directory: PathBuf,
    options: ProvideOptions,
    announced: Announced,
    ourselves: PeerId,
    /// The runtime that reads keys: a store may be locked meanwhile, against readers that wait for it.
    readers: Handle,
    /// The hour of the last search for expired records.
    hour: u64,
}

impl Announcing {
    /// Announces single keys only, until [`Announcing::announce_from`] adds a source of all keys, which is read on
    /// `readers`.
    pub fn new(ourselves: PeerId, options: &BridgeOptions, metrics: Metrics, readers: Handle) -> Self {
        let sweep = || Sweep::new(ourselves, Schedule::new(0, epoch::now()), false);
        let (loads, loaded) = mpsc::unbounded_channel();
        Self {
            sweeps: Scope::ALL.map(|scope| (scope, sweep())).into(),
            source: None,
            providers: HashMap::new(),
            loads,
            loaded,
            metrics,
            directory: options.data_dir.clone(),
            options: options.provide.clone(),
            announced: Announced::new(options),
            ourselves,
            readers,
            hour: 0,
        }
    }

    /// Announces all keys of a source from now on, once per interval.
    pub fn announce_from(&mut self, source: Arc<dyn KeySource>) {
        let (now, interval) = (epoch::now(), self.options.every);
        for scope in Scope::ALL {
            let schedule = Schedule::load(&file(&self.directory, scope), interval.as_secs(), now);
            self.sweeps.insert(scope, Sweep::new(self.ourselves, schedule, true));
        }
        self.source = Some(source);
    }

    /// The next window of keys that was read.
    pub async fn next_loaded(&mut self) -> Option<(Scope, Window)> {
        self.loaded.recv().await
    }

    fn load(&self, scope: Scope, first: u16) {
        let (Some(source), loads) = (self.source.clone(), self.loads.clone()) else { return };
        // One window per scope at a time. If the task has stopped, the window is dropped.
        let load = move || loads.send((scope, Window::load(&*source, first, WINDOW_KEYS_MAX)));
        // A thread has the priority of the thread that starts it, which must be one of that runtime.
        self.readers.spawn(async move { _ = tokio::task::spawn_blocking(load).await });
    }

    /// The changed files to write.
    pub fn take_changes(&mut self) -> Vec<(PathBuf, Vec<u8>)> {
        if self.source.is_none() {
            return Vec::new();
        }
        let directory = &self.directory;
        let changes =
            self.sweeps.iter_mut().map(|(scope, sweep)| Some((file(directory, *scope), sweep.take_changes()?)));
        changes.flatten().collect()
    }
}

fn file(directory: &Path, scope: Scope) -> PathBuf {
    directory.join(match scope {
        Scope::Wan => "provided-wan",
        Scope::Lan => "provided-lan",
    })
}

/// A routing table, for sweeps.
struct RoutingTable<'a> {
    dht: &'a mut ScopedKad,
    ourselves: PeerId,
}

impl Table for RoutingTable<'_> {
    fn closest(&mut self, target: &[u8]) -> Vec<Peer> {
        let key = KBucketKey::new(target.to_vec());
        let closest = self.dht.get_closest_local_peers(&key).take(REPLICATION);
        // The table has the addresses, and adds them to every dial.
        closest.map(|key| Peer { id: key.into_preimage(), addresses: Vec::new() }).collect()
    }

    fn estimate(&mut self) -> Option<f64> {
        let key = KBucketKey::from(self.ourselves);
        let farthest = self.dht.get_closest_local_peers(&key).nth(REPLICATION - 1)?.into_preimage();
        let radius = Position::of_peer(&self.ourselves).distance(&Position::of_peer(&farthest));
        Some(REPLICATION as f64 / radius.share().max(f64::MIN_POSITIVE))
    }
}

impl Task {
    /// Advances all sweeps.
    pub(super) fn announce(&mut self) {
        Scope::ALL.into_iter().for_each(|scope| self.announce_in(scope));
    }

    fn announce_in(&mut self, scope: Scope) {
        let now = epoch::now();
        let Some(sweep) = self.announcing.sweeps.get_mut(&scope) else { return };
        let ourselves = self.announcing.ourselves;
        let dht = self.swarm.behaviour_mut().dht(scope);
        let has_peers = dht.kbuckets().any(|bucket| !bucket.is_empty());
        let open = has_peers && self.announcing.providers.contains_key(&scope);
        sweep.advance(now, open, &mut RoutingTable { dht, ourselves });
        while let Some(action) = self.announcing.sweeps.get_mut(&scope).and_then(Sweep::poll_action) {
            self.carry_out(scope, action);
        }
    }

    fn carry_out(&mut self, scope: Scope, action: Action) {
        match action {
            Action::Load { first } => self.announcing.load(scope, first),
            Action::Ask { id, peer, target } => self.swarm.behaviour_mut().announcer.ask(scope, id, peer, target),
            Action::Announce { id, peer, batch } => {
                let provider = self.announcing.providers.get(&scope).cloned().unwrap_or_default();
                self.swarm.behaviour_mut().announcer.announce(scope, id, peer, batch, provider);
            }
            Action::Keep(key) => self.store_own_record(scope, &key),
        }
    }

    /// Stores the node's own provider record for a key that it is among the closest to.
    fn store_own_record(&mut self, scope: Scope, key: &[u8]) {
        let mut record = ProviderRecord::new(RecordKey::new(&key), self.announcing.ourselves, Vec::new());
        record.expires = Some(Instant::now() + self.announcing.options.record_lifetime);
        let store = self.swarm.behaviour_mut().dht(scope).store_mut();
        if store.provided().size_hint().0 < OWN_KEYS_MAX {
            // A full store has enough records.
            let _ = store.add_provider(record);
        }
    }

    /// Removes own records that were not announced again.
    fn remove_expired_own(&mut self, scope: Scope) {
        let (now, ourselves) = (Instant::now(), self.announcing.ourselves);
        let store = self.swarm.behaviour_mut().dht(scope).store_mut();
        let expired = store.provided().filter(|record| record.is_expired(now)).map(|record| record.key.clone());
        let expired: Vec<RecordKey> = expired.collect();
        expired.iter().for_each(|key| store.remove_provider(key, &ourselves));
    }

    pub(super) fn provide(&mut self, key: &[u8]) {
        if self.announcing.options.strategy == ProvideStrategy::Nothing {
            return;
        }
        let now = epoch::now();
        self.announcing.sweeps.values_mut().for_each(|sweep| sweep.provide(key, now));
        self.announce();
    }

    pub(super) fn withdraw(&mut self, key: &[u8]) {
        let ourselves = self.announcing.ourselves;
        for (scope, sweep) in &mut self.announcing.sweeps {
            sweep.withdraw(key);
            self.swarm.behaviour_mut().dht(*scope).store_mut().remove_provider(&RecordKey::new(&key), &ourselves);
        }
    }

    pub(super) fn on_announced(&mut self, done: Done) {
        let (scope, id) = done.id;
        let Some(sweep) = self.announcing.sweeps.get_mut(&scope) else { return };
        match done.outcome {
            CommandOutcome::Answered(mut closer) => {
                let dht = self.swarm.behaviour_mut().dht(scope);
                for peer in &mut closer {
                    peer.addresses.retain(|address| dht.may_dial(address));
                    peer.addresses.truncate(ADDRESSES_MAX);
                }
                sweep.answered(id, Some(closer));
            }
            CommandOutcome::Announced => sweep.announced(id, true),
            // The announcement or the query failed; the sweep knows which.
            CommandOutcome::Failed(_) => sweep.failed(id),
        }
        self.announce_in(scope);
    }

    pub(super) fn on_keys_read(&mut self, scope: Scope, window: Window) {
        if let Some(sweep) = self.announcing.sweeps.get_mut(&scope) {
            sweep.loaded(window, epoch::now());
        }
        self.announce_in(scope);
    }

    /// Updates the addresses, the expiry of records and the metrics.
    pub(super) fn maintain_announcements(&mut self) {
        let now = epoch::now();
        for scope in Scope::ALL {
            let addresses = self.announced_addresses(scope);
            if addresses.is_empty() {
                self.announcing.providers.remove(&scope);
            } else {
                let provider = Arc::new(Provider::new(&self.announcing.ourselves, &addresses));
                self.announcing.providers.insert(scope, provider);
            }
        }
        self.announce();
        if std::mem::replace(&mut self.announcing.hour, now / 3600) != now / 3600 {
            Scope::ALL.into_iter().for_each(|scope| self.remove_expired_own(scope));
        }
        for (scope, sweep) in &mut self.announcing.sweeps {
            self.announcing.metrics.count(*scope, sweep.take_counts());
            self.announcing.metrics.set(*scope, sweep.status(now));
        }
    }

    /// The addresses to announce in a scope. In the public scope, these are the confirmed ones.
    fn announced_addresses(&mut self, scope: Scope) -> Vec<Multiaddr> {
        let listeners: Vec<Multiaddr> = self.swarm.listeners().cloned().collect();
        let external: Vec<Multiaddr> = self.swarm.external_addresses().cloned().collect();
        let dht = self.swarm.behaviour_mut().dht(scope);
        let listeners = listeners.into_iter().filter(|_| dht.confirms_listen_addresses());
        let mut all: Vec<Multiaddr> = Vec::new();
        for address in external.into_iter().chain(listeners) {
            if dht.admits(&address) && self.announcing.announced.tells(&address) && !all.contains(&address) {
                all.push(address);
            }
        }
        all
    }
}
