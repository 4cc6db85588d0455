//! The one task that owns the swarm: control only.
//!
//! It starts and ends searches, dials, keeps the routing tables and the table of good peers, and announces what is pinned.
//! Blocks never pass through it ([`crate::wants`]). Everybody else holds a [`crate::Bridge`], which sends it commands over
//! a bounded channel.

use crate::bitswap::behaviour::Event as BitswapEvent;
use crate::lookups::{Found, Lookups, Sink};
use crate::metrics::Metrics;
use crate::peerbook::{self, Peerbook};
use crate::providing::Providing;
use crate::redial::Redial;
use crate::scope::{Scope, is_public};
use crate::swarm::{Behaviour, BehaviourEvent};
use crate::wants::SessionId;
use futures::StreamExt;
use libp2p::core::ConnectedPoint;
use libp2p::kad::store::RecordStore;
use libp2p::kad::{self, GetProvidersOk, GetRecordOk, PeerRecord, ProviderRecord, QueryId, QueryResult, RecordKey};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, identify, ping};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

/// How often peerings, announcements and the table of good peers are looked after.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// How often the table of good peers is written, in rounds of housekeeping.
const SAVE_EVERY: u32 = 60;
/// Remembered peers that the routing tables start with.
const REMEMBERED_MAX: usize = 200;
/// Addresses taken from one statement of a peer about itself.
const ADDRESSES_MAX: usize = 8;
/// Providers of one session that are dialled.
const PROVIDERS_DIALLED_MAX: usize = 16;

/// What the handle asks of the task.
pub enum Command {
    /// Announce a key in both scopes.
    Provide(RecordKey),
    /// Search for the value records of a key in both scopes.
    FindRecords(RecordKey, Sink),
    /// Every address that peers can use, ending in our peer id.
    Addresses(oneshot::Sender<Vec<Multiaddr>>),
    /// Stop; answered when everything is written.
    Shutdown(oneshot::Sender<()>),
}

/// A search for the providers of one root, over both scopes.
#[derive(Default)]
struct Search {
    queries: Vec<(Scope, QueryId)>,
    dialled: usize,
}

/// The task's state.
pub struct Task {
    swarm: Swarm<Behaviour>,
    commands: mpsc::Receiver<Command>,
    metrics: Metrics,
    peerings: Redial,
    bootstraps: Redial,
    peerbook: Peerbook,
    searches: HashMap<SessionId, Search>,
    queries: HashMap<(Scope, QueryId), SessionId>,
    lookups: Lookups,
    providing: HashMap<Scope, Providing>,
    announcing: HashMap<(Scope, QueryId), RecordKey>,
    remotes: HashMap<ConnectionId, Multiaddr>,
    round: u32,
}

impl Task {
    /// A task for a swarm that already listens.
    pub fn new(
        swarm: Swarm<Behaviour>,
        commands: mpsc::Receiver<Command>,
        metrics: Metrics,
        peerings: Redial,
        bootstraps: Redial,
        peerbook: Peerbook,
    ) -> Self {
        Self {
            swarm,
            commands,
            metrics,
            peerings,
            bootstraps,
            peerbook,
            searches: HashMap::new(),
            queries: HashMap::new(),
            lookups: Lookups::default(),
            providing: Scope::ALL.map(|scope| (scope, Providing::default())).into(),
            announcing: HashMap::new(),
            remotes: HashMap::new(),
            round: 0,
        }
    }

    /// Runs until told to stop, or until every handle is gone.
    pub async fn run(mut self) {
        self.remember_peers();
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stopped = loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event),
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown(reply)) => break Some(reply),
                    Some(command) => self.on_command(command),
                    None => break None,
                },
                _ = housekeeping.tick() => self.keep_house(),
            }
        };
        self.save_peers().await;
        if let Some(reply) = stopped {
            let _ = reply.send(());
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Provide(key) => {
                for providing in self.providing.values_mut() {
                    providing.add(key.clone());
                }
                self.announce();
            }
            Command::FindRecords(key, sink) => {
                self.lookups.add(key, sink, Instant::now());
                Scope::ALL.into_iter().for_each(|scope| self.look_up(scope));
            }
            Command::Addresses(reply) => {
                let _ = reply.send(addresses(&self.swarm));
            }
            Command::Shutdown(_) => {}
        }
    }

    fn on_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Bitswap(BitswapEvent::Search(session))) => self.start_search(session),
            SwarmEvent::Behaviour(BehaviourEvent::Bitswap(BitswapEvent::StopSearch(session))) => {
                self.stop_search(session)
            }
            SwarmEvent::Behaviour(BehaviourEvent::Wan(event)) => self.on_dht_event(Scope::Wan, event),
            SwarmEvent::Behaviour(BehaviourEvent::Lan(event)) => self.on_dht_event(Scope::Lan, event),
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                connection_id,
                peer_id,
                info,
            })) => {
                self.on_identified(connection_id, peer_id, info);
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, .. } => {
                self.metrics.connections.dec();
                self.remotes.remove(&connection_id);
                if num_established == 0 {
                    let now = Instant::now();
                    self.peerings.disconnected(&peer_id, now);
                    self.bootstraps.disconnected(&peer_id, now);
                }
            }
            // Two in a row were lost: whoever is there no longer answers, whatever TCP believes.
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { connection, result: Err(error), .. }))
                if !matches!(error, ping::Failure::Unsupported) =>
            {
                self.swarm.close_connection(connection);
            }
            SwarmEvent::NewListenAddr { address, .. } => self.on_listening(address),
            SwarmEvent::OutgoingConnectionError { peer_id, error, .. } => {
                tracing::debug!(?peer_id, %error, "could not connect");
            }
            _ => {}
        }
    }

    // --- searching ----------------------------------------------------------------------------------------------------

    fn start_search(&mut self, session: SessionId) {
        let key = RecordKey::new(&session.to_bytes());
        self.stop_search(session);
        for scope in Scope::ALL {
            let dht = self.swarm.behaviour_mut().dht(scope);
            if dht.kbuckets().all(|bucket| bucket.is_empty()) {
                continue;
            }
            let query = dht.get_providers(key.clone());
            self.metrics.query_started(scope);
            self.queries.insert((scope, query), session);
            self.searches.entry(session).or_default().queries.push((scope, query));
        }
        if !self.searches.contains_key(&session) {
            // Nobody to ask yet. The session asks again.
            self.swarm.behaviour_mut().bitswap.search_finished(session);
        }
    }

    fn stop_search(&mut self, session: SessionId) {
        let Some(search) = self.searches.remove(&session) else { return };
        for (scope, query) in search.queries {
            self.queries.remove(&(scope, query));
            if let Some(mut query) = self.swarm.behaviour_mut().dht(scope).query_mut(&query) {
                query.finish();
            }
        }
    }

    /// Routing named providers. They are dialled at once: their addresses live in the running query.
    fn on_providers(&mut self, scope: Scope, session: SessionId, key: &RecordKey, providers: HashSet<PeerId>) {
        self.metrics.providers_found(scope, providers.len());
        for peer in providers {
            if peer == *self.swarm.local_peer_id() {
                continue;
            }
            self.swarm.behaviour_mut().bitswap.provider_found(session, peer);
            let Some(search) = self.searches.get_mut(&session) else { return };
            if search.dialled >= PROVIDERS_DIALLED_MAX || self.swarm.is_connected(&peer) {
                continue;
            }
            search.dialled += 1;
            let stored = self.swarm.behaviour_mut().dht(scope).store_mut().providers(key);
            let mut known: Vec<Multiaddr> = stored
                .into_iter()
                .filter(|record| record.provider == peer)
                .flat_map(|record| record.addresses)
                .collect();
            known.extend(self.peerbook.addresses(&peer));
            self.dial(peer, known);
        }
    }

    fn dial(&mut self, peer: PeerId, known: Vec<Multiaddr>) {
        let opts = DialOpts::peer_id(peer)
            .condition(PeerCondition::DisconnectedAndNotDialing)
            .addresses(known)
            .extend_addresses_through_behaviour()
            .build();
        if let Err(error) = self.swarm.dial(opts) {
            tracing::debug!(%peer, %error, "not dialled");
        }
    }

    fn on_query_finished(&mut self, scope: Scope, query: QueryId) {
        let Some(session) = self.queries.remove(&(scope, query)) else { return };
        let Some(search) = self.searches.get_mut(&session) else { return };
        search.queries.retain(|running| *running != (scope, query));
        if search.queries.is_empty() {
            self.searches.remove(&session);
            self.swarm.behaviour_mut().bitswap.search_finished(session);
        }
    }

    // --- value records ------------------------------------------------------------------------------------------------

    /// Starts the queries of the searches that have not asked in this scope, if there is anybody to ask.
    fn look_up(&mut self, scope: Scope) {
        let due = self.lookups.due(scope);
        let dht = self.swarm.behaviour_mut().dht(scope);
        if due.is_empty() || dht.kbuckets().all(|bucket| bucket.is_empty()) {
            return;
        }
        for (id, key) in due {
            let query = dht.get_record(key);
            self.metrics.query_started(scope);
            self.lookups.started(id, scope, query);
        }
    }

    fn on_record(&mut self, scope: Scope, query: QueryId, found: PeerRecord) {
        // Ours come from nobody, and we keep none.
        let Some(peer) = found.peer else { return };
        self.lookups.found(scope, query, Found { peer, bytes: found.record.value.into() });
        self.end_unheard_lookups();
    }

    /// Queries tell how far they are only when they find something, which may take long; and a peer that is known already
    /// makes no event when it can be asked again.
    fn tend_lookups(&mut self) {
        self.end_unheard_lookups();
        self.lookups.settle(Instant::now(), self.bootstraps.is_lonely());
        Scope::ALL.into_iter().for_each(|scope| self.look_up(scope));
        for (scope, query) in self.lookups.running() {
            let asked = self.swarm.behaviour_mut().dht(scope).query(&query).map(|query| query.stats().num_requests());
            self.lookups.asked(scope, query, asked.unwrap_or_default() as usize);
        }
    }

    fn end_unheard_lookups(&mut self) {
        for (scope, query) in self.lookups.sweep() {
            if let Some(mut query) = self.swarm.behaviour_mut().dht(scope).query_mut(&query) {
                query.finish();
            }
        }
    }

    // --- the DHT ------------------------------------------------------------------------------------------------------

    fn on_dht_event(&mut self, scope: Scope, event: kad::Event) {
        match event {
            kad::Event::OutboundQueryProgressed { id, result, step, stats } => {
                self.lookups.asked(scope, id, stats.num_requests() as usize);
                if let QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { key, providers })) = &result
                    && let Some(session) = self.queries.get(&(scope, id)).copied()
                {
                    self.on_providers(scope, session, key, providers.clone());
                }
                if let QueryResult::StartProviding(outcome) = &result
                    && let Some(key) = self.announcing.remove(&(scope, id))
                {
                    self.on_announced(scope, &key, outcome.is_ok());
                }
                if let QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(found))) = result {
                    self.on_record(scope, id, found);
                }
                if step.last {
                    self.lookups.finished(scope, id, stats.num_successes() > 0);
                    self.lookups.settle(Instant::now(), self.bootstraps.is_lonely());
                    self.on_query_finished(scope, id);
                }
            }
            kad::Event::InboundRequest { request: kad::InboundRequest::AddProvider { record: Some(record) } } => {
                self.keep_provider(scope, record);
            }
            kad::Event::RoutingUpdated { is_new_peer: true, .. } => {
                self.announce();
                self.look_up(scope);
            }
            _ => {}
        }
    }

    /// Stores a provider record that a peer sent about itself, less the addresses that do not belong in this scope.
    /// Value records are not stored yet: nothing here can validate them.
    fn keep_provider(&mut self, scope: Scope, mut record: ProviderRecord) {
        record.addresses.retain(|address| scope.admits(address));
        record.addresses.truncate(ADDRESSES_MAX);
        if record.addresses.is_empty() {
            return;
        }
        if let Err(error) = self.swarm.behaviour_mut().dht(scope).store_mut().add_provider(record) {
            tracing::debug!(%error, "a provider record was not stored");
        }
    }

    fn announce(&mut self) {
        let now = Instant::now();
        for scope in Scope::ALL {
            let Some(providing) = self.providing.get_mut(&scope) else { continue };
            let reachable = scope == Scope::Lan || self.swarm.external_addresses().any(|address| scope.admits(address));
            let dht = self.swarm.behaviour_mut().dht(scope);
            let deaf = !reachable || dht.kbuckets().all(|bucket| bucket.is_empty());
            while let Some(key) = providing.next(deaf, now) {
                match dht.start_providing(key.clone()) {
                    Ok(query) => _ = self.announcing.insert((scope, query), key),
                    Err(error) => {
                        tracing::warn!(%error, "cannot announce any more content at the moment");
                        providing.finished(&key, false, now);
                    }
                }
            }
        }
    }

    fn on_announced(&mut self, scope: Scope, key: &RecordKey, succeeded: bool) {
        if let Some(providing) = self.providing.get_mut(&scope) {
            providing.finished(key, succeeded, Instant::now());
        }
        self.announce();
    }

    // --- peers --------------------------------------------------------------------------------------------------------

    fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        self.metrics.connections.inc();
        self.remotes.insert(connection, endpoint.get_remote_address().clone());
        self.peerings.connected(&peer);
        self.bootstraps.connected(&peer);
    }

    /// A peer said which protocols it speaks and where it listens: the only way into a routing table.
    fn on_identified(&mut self, connection: ConnectionId, peer: PeerId, info: identify::Info) {
        let remote = self.remotes.get(&connection).cloned();
        for scope in Scope::ALL {
            if !info.protocols.contains(&scope.protocol()) {
                continue;
            }
            // A stranger from outside has no say about our own network.
            if scope == Scope::Lan && !remote.as_ref().is_some_and(|remote| scope.admits(remote)) {
                continue;
            }
            let good: Vec<Multiaddr> =
                info.listen_addrs.iter().filter(|address| scope.admits(address)).take(ADDRESSES_MAX).cloned().collect();
            for address in &good {
                self.swarm.behaviour_mut().dht(scope).add_address(&peer, address.clone());
            }
            self.peerbook.saw(peer, good, SystemTime::now());
            self.look_up(scope);
        }
    }

    fn on_listening(&mut self, address: Multiaddr) {
        tracing::info!(%address, "listening for peers");
        // An interface with a public address of its own needs nobody's confirmation.
        let own = match address.iter().next() {
            Some(Protocol::Ip4(ip)) => is_public(IpAddr::V4(ip)),
            Some(Protocol::Ip6(ip)) => is_public(IpAddr::V6(ip)),
            _ => false,
        };
        if own {
            self.swarm.add_external_address(address);
        }
    }

    fn remember_peers(&mut self) {
        for (peer, known) in self.peerbook.peers().into_iter().take(REMEMBERED_MAX) {
            for address in known {
                for scope in Scope::ALL {
                    if scope.admits(&address) {
                        self.swarm.behaviour_mut().dht(scope).add_address(&peer, address.clone());
                    }
                }
            }
        }
        for scope in Scope::ALL {
            // Without any peer this fails, and the first peer that turns up starts it.
            let _ = self.swarm.behaviour_mut().dht(scope).bootstrap();
        }
    }

    fn keep_house(&mut self) {
        let now = Instant::now();
        let mut due = self.peerings.due(now);
        if self.table_sizes().iter().all(|(_, peers)| *peers == 0) {
            due.extend(self.bootstraps.due(now));
        }
        for (peer, known) in due {
            self.dial(peer, known);
        }
        self.announce();
        self.tend_lookups();
        for (scope, peers) in self.table_sizes() {
            self.metrics.set_table_size(scope, peers);
        }
        self.round = (self.round + 1) % SAVE_EVERY;
        if self.round == 0
            && let Some((path, bytes)) = self.peerbook.take_changes(SystemTime::now())
        {
            tokio::task::spawn_blocking(move || save(&path, &bytes));
        }
    }

    fn table_sizes(&mut self) -> [(Scope, usize); 2] {
        let behaviour = self.swarm.behaviour_mut();
        Scope::ALL.map(|scope| (scope, behaviour.dht(scope).kbuckets().map(|bucket| bucket.num_entries()).sum()))
    }

    async fn save_peers(&mut self) {
        if let Some((path, bytes)) = self.peerbook.take_changes(SystemTime::now()) {
            let _ = tokio::task::spawn_blocking(move || save(&path, &bytes)).await;
        }
    }
}

fn save(path: &std::path::Path, bytes: &[u8]) {
    if let Err(error) = peerbook::save(path, bytes) {
        tracing::warn!(path = %path.display(), %error, "could not write the table of good peers");
    }
}

/// Every address that peers can use, ending in our peer id: announced ones first.
pub fn addresses(swarm: &Swarm<Behaviour>) -> Vec<Multiaddr> {
    let mut listeners: Vec<&Multiaddr> = swarm.listeners().collect();
    listeners.sort_by_key(|address| address.to_string());
    let mut all: Vec<Multiaddr> = Vec::new();
    for address in swarm.external_addresses().chain(listeners) {
        let full = match address.iter().last() {
            Some(Protocol::P2p(_)) => address.clone(),
            _ => address.clone().with(Protocol::P2p(*swarm.local_peer_id())),
        };
        if !all.contains(&full) {
            all.push(full);
        }
    }
    all
}
