//! The task that owns the swarm: control only.
//!
//! It starts and ends searches, dials, maintains the routing tables and the peer table, and announces provider records.
//! Blocks never pass through it ([`crate::wants`]). Other code uses a [`crate::Bridge`], which sends commands over a
//! bounded channel.
//!
//! | module | concern |
//! |---|---|
//! | [`search`] | searches for the providers of a session's root, and their dials |
//! | [`routers`] | requests to delegated routers, in parallel with the DHT |
//! | [`finding`] | searches for providers and peers on behalf of clients |
//! | [`gateways`] | the HTTP gateways among a provider's addresses |
//! | [`no_peers`] | searches without peers to ask |
//! | [`values`] | value records |
//! | [`dht`] | events of the DHTs, and stored records |
//! | [`announce`] | announcing provider records |
//! | [`nat`] | reachability, relays, hole punching |
//! | [`peers`] | connections, identify, the peer table |
//! | [`connecting`] | connections on request, and the state of peers |

pub mod announce;
mod connecting;
mod dht;
mod finding;
mod gateways;
pub mod nat;
mod no_peers;
mod peers;
mod routers;
mod search;
mod values;

use crate::bitswap::behaviour::Event as BitswapEvent;
use crate::connecting::{PendingConnects, Reply};
use crate::dag::behaviour::Event as DagEvent;
use crate::discovery::dialer::Dialer;
use crate::discovery::history::History;
use crate::discovery::memory::Memory;
use crate::discovery::plan::Provider;
use crate::finders::{Finders, SearchTarget};
use crate::lookups::{Lookups, Sink};
use crate::metrics::Metrics;
use crate::no_peers::NoPeers;
use crate::peerbook::Peerbook;
use crate::peers::{ConnectedPeer, Identity, Load, RootState};
use crate::providing::KeySource;
use crate::puts::{self, Puts};
use crate::reachability::Verdict;
use crate::recent::{Recent, recent};
use crate::redial::Redial;
use crate::routing_v1::PeerRecord;
use crate::scope::Scope;
use crate::swarm::{Behaviour, BehaviourEvent};
use crate::wants::SessionId;
use announce::Announcing;
use futures::StreamExt;
use libp2p::kad::{QueryId, Record, RecordKey};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, identify, mdns, ping};
use nat::Nat;
pub use routers::Delegation;
use search::{EndedDial, Search};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::MissedTickBehavior;

/// The interval of housekeeping: peerings, announcements and the peer table.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// How often the peer table is saved, in rounds of housekeeping.
const SAVE_EVERY: u32 = 60;
/// The maximum number of inbound connections that wait for their receivers.
const INBOUND_WAITING_MAX: usize = 256;
/// The maximum number of addresses from one identify message.
const ADDRESSES_MAX: usize = 8;

/// A command of the handle.
pub enum Command {
    /// Announce a key in both scopes.
    Provide(Vec<u8>),
    /// Stop announcing a key.
    Withdraw(Vec<u8>),
    /// Announce all keys of a source, once per interval.
    ProvideFrom(Arc<dyn KeySource>),
    /// Search for the value records of a key in both scopes.
    FindRecords(RecordKey, Sink),
    /// Put a value record into a scope, as soon as it has peers.
    PutRecord(Scope, Record, puts::Reply),
    /// Search for providers or peers on behalf of a client.
    FindPeers(SearchTarget, mpsc::Sender<PeerRecord>),
    /// Connect to a peer, by the given addresses and the known ones.
    Connect(PeerId, Vec<Multiaddr>, Reply),
    /// Close all connections to a peer; returns whether there was any.
    Disconnect(PeerId, oneshot::Sender<bool>),
    /// The connected peers, limited to a number.
    Peers(usize, oneshot::Sender<Vec<ConnectedPeer>>),
    /// Suggest a provider of a DAG.
    Suggest(SessionId, Provider),
    /// Whether a put in a scope would start now, since its DHT has peers.
    HasDhtPeers(Scope, oneshot::Sender<bool>),
    /// The state of a DAG and its providers.
    Inspect(SessionId, oneshot::Sender<RootState>),
    /// The load of the network.
    Load(oneshot::Sender<Load>),
    /// The addresses that peers can use, each ending in the node's peer ID.
    Addresses(oneshot::Sender<Vec<Multiaddr>>),
    /// Whether peers can open connections to the node, and at which addresses.
    Reachability(oneshot::Sender<(Verdict, Vec<Multiaddr>)>),
    /// Stop; the reply is sent when all state is written and the connections have ended.
    Shutdown(oneshot::Sender<()>),
}

/// Peers that are known from the start.
pub struct KnownPeers {
    /// Peers to stay connected to.
    pub peerings: Redial,
    /// Bootstrap peers.
    pub bootstraps: Redial,
    /// Known peers of earlier runs.
    pub peerbook: Peerbook,
    /// Cached providers of DAGs.
    pub memory: Memory,
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
    /// Queries for peers without known addresses.
    peer_walks: HashMap<(Scope, QueryId), PeerId>,
    memory: Memory,
    /// Dials that ended since the searches were last notified.
    ended_dials: Vec<EndedDial>,
    lookups: Lookups,
    puts: Puts,
    delegation: Delegation,
    finders: Finders,
    /// The listening addresses that connected peers report, without implausible ones.
    listening: HashMap<PeerId, Vec<Multiaddr>>,
    announcing: Announcing,
    remotes: HashMap<ConnectionId, Multiaddr>,
    /// The addresses of outbound connections.
    dialled: HashMap<ConnectionId, Multiaddr>,
    /// The connected peers, and since when.
    connected: HashMap<PeerId, Instant>,
    /// Reports peers that connect to this node.
    inbound: broadcast::Sender<PeerId>,
    /// The connected peers that are throttled.
    throttled: HashSet<PeerId>,
    /// What connected peers reported by identify.
    identities: HashMap<PeerId, Identity>,
    /// The round-trip time of each connected peer's last ping.
    round_trips: HashMap<PeerId, Duration>,
    /// Requests that wait for a connection.
    connects: PendingConnects,
    /// Dials of providers.
    dialer: Dialer,
    /// The results of the last searches for providers.
    history: History,
    /// Suggested providers of DAGs.
    suggestions: Recent<SessionId, Vec<Provider>>,
    nat: Nat,
    no_peers: NoPeers,
    round: u32,
}

impl Task {
    /// Creates the task of a swarm with listeners.
    pub fn new(
        swarm: Swarm<Behaviour>,
        commands: mpsc::Receiver<Command>,
        metrics: Metrics,
        known_peers: KnownPeers,
        delegation: Delegation,
        announcing: Announcing,
        nat: Nat,
    ) -> Self {
        let KnownPeers { peerings, bootstraps, peerbook, memory } = known_peers;
        let dialer = Dialer::new(swarm.behaviour().admission.pending_dials_max());
        Self {
            swarm,
            commands,
            metrics,
            peerings,
            bootstraps,
            peerbook,
            searches: HashMap::new(),
            queries: HashMap::new(),
            peer_walks: HashMap::new(),
            memory,
            ended_dials: Vec::new(),
            lookups: Lookups::default(),
            puts: Puts::default(),
            delegation,
            finders: Finders::default(),
            listening: HashMap::new(),
            announcing,
            remotes: HashMap::new(),
            dialled: HashMap::new(),
            connected: HashMap::new(),
            inbound: broadcast::Sender::new(INBOUND_WAITING_MAX),
            throttled: HashSet::new(),
            identities: HashMap::new(),
            round_trips: HashMap::new(),
            connects: PendingConnects::default(),
            dialer,
            history: History::default(),
            suggestions: recent(connecting::SUGGESTED_ROOTS_MAX),
            nat,
            no_peers: NoPeers::new(Instant::now()),
            round: 0,
        }
    }

    /// The sender of [`crate::Bridge::inbound_connections`].
    pub fn inbound_connections(&self) -> broadcast::Sender<PeerId> {
        self.inbound.clone()
    }

    /// Runs until shutdown, or until all handles are dropped. Returns whom to tell of the end, if anyone.
    pub async fn run(mut self) -> Option<oneshot::Sender<()>> {
        // The swarm already listens, and these events were consumed at startup.
        let listeners: Vec<Multiaddr> = self.swarm.listeners().cloned().collect();
        listeners.iter().for_each(|address| self.on_listening(address));
        self.settle_reachability();
        self.load_known_peers();
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut dial_timer = tokio::time::interval(search::DIAL_INTERVAL);
        dial_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stopped = loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event),
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown(reply)) => break Some(reply),
                    Some(command) => self.on_command(command),
                    None => break None,
                },
                record = self.delegation.next() => self.on_routed_record(record),
                Some((scope, keys)) = self.announcing.next_loaded() => self.on_keys_read(scope, keys),
                _ = housekeeping.tick() => self.housekeeping_round(),
                _ = dial_timer.tick(), if !self.searches.is_empty() => self.start_due_dials(Instant::now()),
            }
            self.settle_dials();
        };
        self.save_all().await;
        self.save_records().await;
        stopped
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Provide(key) => self.provide(&key),
            Command::Withdraw(key) => self.withdraw(&key),
            Command::ProvideFrom(source) => {
                self.announcing.announce_from(source);
                self.announce();
            }
            Command::FindRecords(key, sink) => self.find_records(key, sink),
            Command::PutRecord(scope, record, reply) => {
                self.puts.add(scope, record, reply);
                self.put(scope);
            }
            Command::FindPeers(sought, sink) => self.find(sought, sink),
            Command::Connect(peer, addresses, reply) => self.connect(peer, addresses, reply),
            Command::Disconnect(peer, reply) => {
                let was_connected = self.disconnect(peer);
                let _ = reply.send(was_connected);
            }
            Command::Peers(max, reply) => {
                let _ = reply.send(self.peers(max));
            }
            Command::Suggest(root, provider) => self.suggest(root, provider),
            Command::Inspect(root, reply) => {
                let _ = reply.send(self.inspect(&root));
            }
            Command::HasDhtPeers(scope, reply) => {
                let _ = reply.send(self.has_dht_peers(scope));
            }
            Command::Load(reply) => {
                let _ = reply.send(self.load());
            }
            Command::Addresses(reply) => {
                let _ = reply.send(addresses(&self.swarm));
            }
            Command::Reachability(reply) => {
                let _ = reply.send(self.reachability());
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
            SwarmEvent::Behaviour(BehaviourEvent::Bitswap(BitswapEvent::Joined(session, peer))) => {
                self.on_joined(session, peer);
            }
            SwarmEvent::Behaviour(
                BehaviourEvent::Bitswap(BitswapEvent::Offence(peer, offence))
                | BehaviourEvent::Dag(DagEvent::Offence(peer, offence)),
            ) => self.on_offence(peer, offence),
            SwarmEvent::Behaviour(BehaviourEvent::Wan(event)) => self.on_dht_event(Scope::Wan, event),
            SwarmEvent::Behaviour(BehaviourEvent::Lan(event)) => self.on_dht_event(Scope::Lan, event),
            SwarmEvent::Behaviour(BehaviourEvent::Announcer(done)) => self.on_announced(done),
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                connection_id,
                peer_id,
                info,
            })) => {
                self.on_identified(connection_id, peer_id, info);
            }
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                concurrent_dial_errors,
                established_in,
                ..
            } => {
                let failed = concurrent_dial_errors.unwrap_or_default();
                let failed: Vec<Multiaddr> = failed.into_iter().map(|(address, _)| address).collect();
                let dialled = endpoint.is_dialer().then(|| (endpoint.get_remote_address(), established_in));
                self.dialer.connected(peer_id, dialled, &failed, Instant::now());
                self.on_connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, .. } => {
                self.on_disconnected(peer_id, connection_id, num_established == 0);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { peer, result: Ok(took), .. }))
                if self.connected.contains_key(&peer) =>
            {
                self.round_trips.insert(peer, took);
            }
            // Two consecutive pings were lost: the peer does not answer, whatever the state of TCP.
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { connection, result: Err(error), .. }))
                if !matches!(error, ping::Failure::Unsupported) =>
            {
                self.swarm.close_connection(connection);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Mdns(mdns::Event::Discovered(found))) => {
                self.on_mdns_discovered(found)
            }
            SwarmEvent::Dialing { peer_id: Some(peer), .. } => self.on_dialling(peer),
            SwarmEvent::NewListenAddr { address, .. } => self.on_listening(&address),
            SwarmEvent::ExpiredListenAddr { address, .. } | SwarmEvent::ExternalAddrExpired { address } => {
                self.nat_lost(&address);
            }
            SwarmEvent::ListenerClosed { listener_id, .. } => self.on_listener_closed(listener_id),
            SwarmEvent::Behaviour(BehaviourEvent::Autonat(event)) => self.on_autonat(event),
            SwarmEvent::Behaviour(BehaviourEvent::AutonatV1(event)) => self.on_autonat_v1(event),
            SwarmEvent::Behaviour(BehaviourEvent::Upnp(event)) => self.on_upnp(event),
            SwarmEvent::Behaviour(BehaviourEvent::Relay(event)) => self.on_relay(event),
            SwarmEvent::Behaviour(BehaviourEvent::Dcutr(event)) => self.on_hole_punch(event),
            SwarmEvent::OutgoingConnectionError { peer_id, error, connection_id } => {
                tracing::debug!(?peer_id, %error, "cannot connect");
                self.on_dial_failed(peer_id, connection_id, &error);
            }
            _ => {}
        }
    }

    fn housekeeping_round(&mut self) {
        let now = Instant::now();
        let mut due = self.peerings.due(now);
        due.extend(self.bootstraps_due(now));
        for (peer, known) in due {
            self.dial(peer, known);
        }
        self.maintain_announcements();
        self.maintain_lookups();
        self.keep_records(SystemTime::now());
        self.maintain_puts();
        self.maintain_finders();
        self.maintain_reachability(now);
        self.maintain_relays(now);
        self.maintain_searches();
        self.maintain_no_peers(now);
        self.connects.sweep();
        self.trim(now);
        self.sweep_offences(now);
        for (scope, peers) in self.table_sizes() {
            self.metrics.set_table_size(scope, peers);
        }
        self.round = (self.round + 1) % SAVE_EVERY;
        if self.round == 0 {
            for (path, bytes) in self.take_changes() {
                tokio::task::spawn_blocking(move || peers::save(&path, &bytes));
            }
        }
    }
}

/// The addresses that peers can use, each ending in the node's peer ID: announced ones first.
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
