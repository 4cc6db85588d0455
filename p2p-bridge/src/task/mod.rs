//! The one task that owns the swarm: control only.
//!
//! It starts and ends searches, dials, keeps the routing tables and the table of good peers, and announces what is pinned.
//! Blocks never pass through it ([`crate::wants`]). Everybody else holds a [`crate::Bridge`], which sends it commands over
//! a bounded channel.
//!
//! | module | concern |
//! |---|---|
//! | [`search`] | providers of a session's root, and dialling them |
//! | [`values`] | value records |
//! | [`dht`] | what the DHTs report, and records that others want stored |
//! | [`announce`] | what we provide |
//! | [`nat`] | whether peers reach us, relays, hole punching |
//! | [`peers`] | connections, what peers say of themselves, the table of good peers |

mod announce;
mod dht;
pub mod nat;
mod peers;
mod search;
mod values;

use crate::bitswap::behaviour::Event as BitswapEvent;
use crate::discovery::memory::Memory;
use crate::lookups::{Lookups, Sink};
use crate::metrics::Metrics;
use crate::peerbook::Peerbook;
use crate::providing::Providing;
use crate::redial::Redial;
use crate::scope::Scope;
use crate::swarm::{Behaviour, BehaviourEvent};
use crate::wants::SessionId;
use futures::StreamExt;
use libp2p::kad::{QueryId, RecordKey};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, identify, ping};
use nat::Nat;
use search::Search;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

/// How often peerings, announcements and the table of good peers are looked after.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// How often the table of good peers is written, in rounds of housekeeping.
const SAVE_EVERY: u32 = 60;
/// Addresses taken from one statement of a peer about itself.
const ADDRESSES_MAX: usize = 8;

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

/// Peers that are known from the start.
pub struct Known {
    /// Peers to stay connected to.
    pub peerings: Redial,
    /// Peers to join the network through.
    pub bootstraps: Redial,
    /// Peers that were good when the node ran last.
    pub peerbook: Peerbook,
    /// Who provided what.
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
    /// Walks to peers whose addresses nobody knows.
    peer_walks: HashMap<(Scope, QueryId), PeerId>,
    memory: Memory,
    lookups: Lookups,
    providing: HashMap<Scope, Providing>,
    announcing: HashMap<(Scope, QueryId), RecordKey>,
    remotes: HashMap<ConnectionId, Multiaddr>,
    /// The addresses of connections that we opened.
    dialled: HashMap<ConnectionId, Multiaddr>,
    /// The connected peers, and since when.
    connected: HashMap<PeerId, Instant>,
    /// The connected peers that are served last.
    throttled: HashSet<PeerId>,
    nat: Nat,
    round: u32,
}

impl Task {
    /// A task for a swarm that already listens.
    pub fn new(
        swarm: Swarm<Behaviour>,
        commands: mpsc::Receiver<Command>,
        metrics: Metrics,
        known: Known,
        nat: Nat,
    ) -> Self {
        let Known { peerings, bootstraps, peerbook, memory } = known;
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
            lookups: Lookups::default(),
            providing: Scope::ALL.map(|scope| (scope, Providing::default())).into(),
            announcing: HashMap::new(),
            remotes: HashMap::new(),
            dialled: HashMap::new(),
            connected: HashMap::new(),
            throttled: HashSet::new(),
            nat,
            round: 0,
        }
    }

    /// Runs until told to stop, or until every handle is gone.
    pub async fn run(mut self) {
        // The swarm listens already, and said so to whoever started it.
        let listeners: Vec<Multiaddr> = self.swarm.listeners().cloned().collect();
        listeners.iter().for_each(|address| self.on_listening(address));
        self.settle_reachability();
        self.remember_peers();
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pace = tokio::time::interval(search::PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stopped = loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event),
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown(reply)) => break Some(reply),
                    Some(command) => self.on_command(command),
                    None => break None,
                },
                _ = housekeeping.tick() => self.keep_house(),
                _ = pace.tick(), if !self.searches.is_empty() => self.pace_all(Instant::now()),
            }
        };
        self.save_all().await;
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
            SwarmEvent::Behaviour(BehaviourEvent::Bitswap(BitswapEvent::Joined(session, peer))) => {
                self.on_joined(session, peer);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Bitswap(BitswapEvent::Offence(peer, offence))) => {
                self.on_offence(peer, offence);
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
                self.on_disconnected(peer_id, connection_id, num_established == 0);
            }
            // Two in a row were lost: whoever is there no longer answers, whatever TCP believes.
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { connection, result: Err(error), .. }))
                if !matches!(error, ping::Failure::Unsupported) =>
            {
                self.swarm.close_connection(connection);
            }
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
            SwarmEvent::OutgoingConnectionError { peer_id, error, .. } => {
                tracing::debug!(?peer_id, %error, "could not connect");
                if let Some(peer) = peer_id {
                    self.on_dial_ended(&peer, false);
                }
            }
            _ => {}
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
        self.tend_relays(now);
        self.tend_searches();
        self.trim(now);
        self.forgive(now);
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
