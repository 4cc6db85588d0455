//! [`Bridge`]: the handle through which other crates use the network.

use crate::address_filter::OperatorAddresses;
use crate::admission::Admission;
use crate::admission::budget::ConnectionLimits;
use crate::announced::Announced;
use crate::bitswap;
use crate::bitswap::http_peers::HttpPeers;
use crate::bitswap::http_peers::SetupError;
use crate::bitswap::{behaviour, client};
use crate::connecting::{self, AddressOrigin, ConnectError, Connected};
use crate::counted::{Bandwidth, TransportBytes};
use crate::dag;
use crate::dag::client::pushed::{Pushed, Readers};
use crate::dht::behaviour::ScopedKad;
use crate::dht::metrics::DhtMetrics;
use crate::discovery::memory::Memory;
use crate::discovery::plan::Provider;
use crate::errors::innermost;
use crate::fairness::SharedLedger;
use crate::finders::{PeerSearch, SearchTarget};
use crate::framing;
use crate::known_members::KnownMembers;
use crate::lookups::Search;
use crate::member_lookup::behaviour::FromPeer;
use crate::member_lookup::client::{Client, FoundBlock, LookupError};
use crate::member_lookup::dialling::Dialler;
use crate::member_lookup::server::Answering;
use crate::member_lookup::{self, Lookup, MemberAddress};
use crate::metrics::Metrics;
use crate::nat::metrics::NatMetrics;
use crate::network_policy::NetworkPolicy;
use crate::observers::{BlockTransport, SessionObserver};
use crate::options::{BridgeOptions, ConnectionBudget};
use crate::peerbook::Peerbook;
use crate::peers::{ConnectedPeer, Latency, Load, RootState};
use crate::private_network::{KeyError, SwarmKey};
use crate::providing::{self, KeySource};
use crate::puts::{PutError, PutOutcome};
use crate::reachability::Verdict;
use crate::redial::Redial;
use crate::routing_v1::{Routers, RoutersError};
use crate::runtime::{NetworkRuntime, SpawnedSource};
use crate::scope::Scope;
use crate::session::{Session, Shared};
use crate::swarm::{self, Behaviour};
use crate::task::announce::Announcing;
use crate::task::nat::Nat;
use crate::task::{Command, Delegation, KnownPeers, Task};
use crate::wants::Wants;
use crate::{http_source, identity, quic, tls, transport};
use bytes::Bytes;
use content::names::Key;
use content::{BlockKey, BlockSource, Cid, ipns};
use futures::FutureExt as _;
use futures::StreamExt;
use futures::future::BoxFuture;
use libp2p::core::transport::ListenerId;
use libp2p::kad::{Record, RecordKey};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, Swarm};
use prometheus_client::registry::Registry;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, broadcast, mpsc, oneshot};
use tokio_util::context::TokioContext;
use tokio_util::task::AbortOnDropHandle;

/// The maximum number of commands in the swarm task's queue.
const COMMANDS_MAX: usize = 64;
/// The maximum number of concurrent searches for value records. Further callers wait.
const SEARCHES_MAX: usize = 256;
/// The maximum number of concurrent searches for providers and peers on behalf of clients. Further callers wait.
const FINDERS_MAX: usize = 256;
/// The maximum number of connections that are opened on request at once. Further callers wait.
const CONNECTS_MAX: usize = 32;
/// The maximum number of peers in [`Bridge::peers`].
const PEERS_MAX: usize = 10_000;
/// How long connections may take to end after the network was stopped.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// How long a listener may take to report its address.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// A wildcard listener reports one address after another. After this long without a new address, the list is complete.
const MORE_ADDRESSES: Duration = Duration::from_millis(20);

/// Why the bridge cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system cannot start the network's threads.
    #[error("cannot start the threads of the network: {0}")]
    Threads(std::io::Error),
    /// The key pair cannot be loaded or created.
    #[error(transparent)]
    Identity(#[from] identity::IdentityError),
    /// The node cannot listen on an address.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address as configured.
        address: Multiaddr,
        /// The error of the operating system.
        reason: String,
    },
    /// The delegated routers cannot be used.
    #[error(transparent)]
    Routers(#[from] RoutersError),
    /// The key of the private network cannot be read.
    #[error("cannot use the swarm key {path}: {error}", path = path.display())]
    Private {
        /// The file as configured.
        path: PathBuf,
        /// The error.
        error: KeyError,
    },
    /// The transports cannot be built.
    #[error("cannot build the network transports: {0}")]
    Transport(String),
    /// The configured gateways cannot be used.
    #[error("cannot use the trustless gateways: {0}")]
    Gateways(#[from] SetupError),
}

/// A handle to the network. Clones share it; the network stops when [`Bridge::shutdown`] is called or all handles are
/// dropped.
#[derive(Clone)]
pub struct Bridge {
    /// The runtime that the network runs on.
    runtime: Handle,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    searches: Arc<Semaphore>,
    finders: Arc<Semaphore>,
    connects: Arc<Semaphore>,
    routers: Routers,
    peer_id: PeerId,
    policy: NetworkPolicy,
    dial_private: bool,
    operator: OperatorAddresses,
    inbound: broadcast::Sender<PeerId>,
    bandwidth: Arc<Bandwidth>,
    metrics: Arc<Metrics>,
    members: Arc<Members>,
}

/// Look-ups between the gateways of a site.
struct Members {
    known: KnownMembers,
    client: Client,
    metrics: member_lookup::metrics::Metrics,
    /// The streams that peers open, until they are served.
    inbound: Mutex<Option<mpsc::Receiver<FromPeer>>>,
}

impl Members {
    /// The behaviour, and its other ends.
    fn start(
        enabled: bool,
        operator: OperatorAddresses,
        memory: framing::Memory,
        registry: &mut Registry,
    ) -> (member_lookup::behaviour::Behaviour, Self) {
        let metrics = match enabled {
            true => member_lookup::metrics::Metrics::register(registry),
            false => member_lookup::metrics::Metrics::default(),
        };
        let known = KnownMembers::default();
        let (behaviour, ends) = member_lookup::behaviour::Behaviour::new(enabled, known.clone());
        let dialler = Dialler::new(&ends, operator);
        let client = Client::new(&ends, dialler, memory, metrics.clone());
        (behaviour, Self { known, client, metrics, inbound: Mutex::new(Some(ends.inbound)) })
    }
}

impl Bridge {
    /// Binds all listeners and starts the swarm task, on threads of its own ([`crate::runtime`]). Requests of peers are
    /// answered from `local`, which must not fetch from the network; it is read on the caller's runtime.
    ///
    /// # Errors
    /// [`StartError`] names the file or the address.
    pub fn start(
        options: BridgeOptions,
        local: Arc<dyn BlockSource>,
        registry: &mut Registry,
    ) -> BoxFuture<'_, Result<Self, StartError>> {
        async move {
            tls::use_ring();
            tokio::task::spawn_blocking(tls::gather_entropy);
            let runtime = NetworkRuntime::start().map_err(StartError::Threads)?;
            let network = runtime.handle().clone();
            let caller = Handle::current();
            let local = Arc::new(SpawnedSource::new(local, caller.clone()));
            // Sockets, timers and tasks belong to the runtime in whose context they are created.
            TokioContext::new(Self::start_on(runtime, caller, options, local, registry), network).await
        }
        .boxed()
    }

    async fn start_on(
        runtime: NetworkRuntime,
        caller: Handle,
        options: BridgeOptions,
        local: Arc<dyn BlockSource>,
        registry: &mut Registry,
    ) -> Result<Self, StartError> {
        let private = private_key(&options)?;
        let options = if private.is_some() { options.for_private_network() } else { options };
        let keypair = identity::load_or_create(&options.data_dir)?;
        let peer_id = keypair.public().to_peer_id();
        let metrics = Metrics::register(registry);
        let routers = Routers::new(&options.http.routers, registry)?;
        let wants = Arc::new(Wants::default());
        let (to_sessions, from_sessions) = mpsc::unbounded_channel();
        let now = Instant::now();
        let peerings = Redial::new(&options.peering, now);
        let bootstraps = Redial::new(&options.bootstrap, now);
        let memory = framing::Memory::new(options.budget.memory_bytes_max);
        let client = client::Config { stall_timeout: options.stall_timeout, ..client::Config::default() };
        let bitswap = behaviour::Behaviour::new(
            client,
            metrics.clone(),
            wants.clone(),
            from_sessions,
            Arc::clone(&local),
            memory.clone(),
            behaviour::PeerSettings {
                favoured: peerings.peers().collect(),
                serve_to: options.bitswap.serve_to.clone(),
            },
        );
        let ledger = SharedLedger::default();
        let bitswap = bitswap.with_http(gateways(&options, wants.clone(), registry)?).with_ledger(ledger.clone());
        let serving = dag::behaviour::Settings {
            enabled: options.bitswap.dag_protocol,
            serve_to: options.bitswap.serve_to.clone(),
        };
        let served = dag::server::metrics::Metrics::register(registry);
        let dag = dag::behaviour::Behaviour::new(serving, local, ledger, served);
        let (pushed, readers) = (Arc::<Pushed>::default(), Arc::<Readers>::default());
        let (start, transfers) = mpsc::unbounded_channel();
        let (reports, events) = mpsc::unbounded_channel();
        let names = dag::client::active::names_budget(&memory);
        let context = |over, metrics| {
            Arc::new(dag::client::active::Context {
                wants: wants.clone(),
                pushed: Arc::clone(&pushed),
                readers: Arc::clone(&readers),
                policy: options.policy.clone(),
                memory: memory.clone(),
                names: Arc::clone(&names),
                events: reports.clone(),
                metrics,
                over,
            })
        };
        let of_peers = context(BlockTransport::Dag, dag::client::metrics::Metrics::register(registry));
        // Those from gateways are counted as such.
        let of_gateways = || context(BlockTransport::Http, dag::client::metrics::Metrics::default());
        let from_gateways = options.http.cars.then(of_gateways);
        let dag = dag.asking(dag::behaviour::Asking { context: Arc::clone(&of_peers), transfers });
        let from_peers = options.bitswap.dag_protocol.then_some((of_peers, start));
        let bitswap = bitswap.with_transfers(behaviour::Transfers { from_peers, from_gateways, events });
        let trusted = peerings.peers().chain(bootstraps.peers()).collect();
        let settings = options.peering.iter().chain(&options.bootstrap).chain(&options.nat.relays);
        let operator = OperatorAddresses::new(options.dial_private, settings);
        let (member_lookup, members) =
            Members::start(options.member_lookups, operator.clone(), memory.clone(), registry);
        let admission = Admission::new(limits(&options.budget), options.budget.ban, trusted);
        let admission = admission.with_members(members.known.clone());
        let dhts = start_dhts(peer_id, &options, DhtMetrics::register(registry)).await?;
        let bandwidth = Bandwidth::register(registry);
        // In addition to what messages have, because these bytes are not messages yet, or no longer.
        let quic = quic::Budget::register(options.budget.memory_bytes_max, registry);
        let shared = transport::Shared { bandwidth: &bandwidth, operator: operator.clone(), quic };
        let blocks = (bitswap, dag, member_lookup);
        let mut swarm = swarm::build(keypair, private, admission, blocks, dhts, &options, shared)
            .map_err(|error| StartError::Transport(error.to_string()))?;
        for address in Announced::new(&options).named() {
            swarm.add_external_address(address.clone());
        }
        listen(&mut swarm, &options.listen).await?;
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let delegation = Delegation::new(routers.clone(), options.dial_private);
        let peerbook = Peerbook::load(&options.data_dir);
        let memory = Memory::load(&options.data_dir);
        let known_peers = KnownPeers { peerings, bootstraps, peerbook, memory };
        let provided = providing::metrics::Metrics::register(registry);
        let announcing = Announcing::new(peer_id, &options, provided, caller);
        let nat = Nat::new(&options, NatMetrics::register(registry));
        let (of_task, metrics, bandwidth) = (metrics.clone(), Arc::new(metrics), Arc::new(bandwidth));
        let task = Task::new(swarm, inbox, of_task, known_peers, delegation, announcing, nat);
        let inbound = task.inbound_connections();
        let handle = runtime.handle().clone();
        // The runtime ends with the task, whether that was told to stop or has panicked.
        handle.spawn(async move {
            let stopped = task.run().await;
            // The connections send their last packets after the swarm is dropped. A peer that does not receive them
            // would send what it owes this node to the old connection, also when the node has connected again.
            runtime.others_ended(CLOSE_TIME).await;
            drop(runtime);
            if let Some(reply) = stopped {
                let _ = reply.send(());
            }
        });
        let searches = Arc::new(Semaphore::new(SEARCHES_MAX));
        let finders = Arc::new(Semaphore::new(FINDERS_MAX));
        let connects = Arc::new(Semaphore::new(CONNECTS_MAX));
        let policy = options.policy.clone();
        let shared = Arc::new(Shared::new(wants, to_sessions, policy.clone(), (pushed, readers)));
        let dial_private = options.dial_private;
        Ok(Self {
            runtime: handle,
            shared,
            commands,
            searches,
            finders,
            connects,
            routers,
            peer_id,
            policy,
            dial_private,
            operator,
            inbound,
            bandwidth,
            metrics,
            members: Arc::new(members),
        })
    }

    /// A block source for one DAG, which serves no blocks that the policy refuses. All sessions of a DAG share what is
    /// learnt about its providers.
    pub fn session(&self, root: &Cid) -> Arc<dyn BlockSource> {
        self.observed_session(root, None)
    }

    /// The same, with an observer of what happens in the session, until the source is dropped.
    pub fn observed_session(&self, root: &Cid, observer: Option<Arc<dyn SessionObserver>>) -> Arc<dyn BlockSource> {
        Arc::new(Session::new(self.shared.clone(), root, observer))
    }

    /// Replaces the gateways of the site, which are answered, and admitted beyond the limits of connections.
    pub fn set_members(&self, members: HashSet<PeerId>) {
        self.members.known.replace(members);
    }

    /// Answers the other gateways of a site with what they ask for. Call it once; before, and if
    /// [`BridgeOptions::member_lookups`] is not set, they get no answer. Blocks are read on the caller's runtime.
    pub fn answer_members(&self, answering: Answering) {
        let inbound = self.members.inbound.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(inbound) = inbound else { return };
        let (runtime, Answering { stored, open_session }) = (Handle::current(), answering);
        let on_caller = runtime.clone();
        let answering = Answering {
            stored: Arc::new(SpawnedSource::new(stored, runtime)),
            open_session: Box::new(move |root, has_fetched| {
                Arc::new(SpawnedSource::new(open_session(root, has_fetched), on_caller.clone()))
            }),
        };
        let Members { known, metrics, .. } = &*self.members;
        self.runtime.spawn(member_lookup::server::serve(inbound, known.clone(), answering, metrics.clone()));
    }

    /// Asks another gateway of the site for a block; `None` if it is not stored there and was not to be fetched. A
    /// connection is opened if there is none. Dropping the future ends the look-up, also at the other gateway.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn look_up_at(
        &self,
        member: MemberAddress,
        lookup: Lookup,
    ) -> BoxFuture<'static, Result<Option<FoundBlock>, LookupError>> {
        let bridge = self.clone();
        let asking = self.runtime.spawn(async move { bridge.members.client.look_up(member, &lookup).await });
        let stopped = || Err(LookupError::lasting("the network has stopped"));
        let asking = AbortOnDropHandle::new(asking);
        async move { asking.await.unwrap_or_else(|_| stopped()) }.boxed()
    }

    /// The metrics of look-ups between the gateways of a site.
    #[cfg(test)]
    pub(crate) fn member_metrics(&self) -> &member_lookup::metrics::Metrics {
        &self.members.metrics
    }

    /// The node's peer ID.
    pub fn peer_id(&self) -> PeerId {
        self.peer_id
    }

    /// The addresses that peers can use, each ending in the node's peer ID. Empty if the network has stopped.
    pub async fn addresses(&self) -> Vec<Multiaddr> {
        let (reply, addresses) = oneshot::channel();
        if self.commands.send(Command::Addresses(reply)).await.is_err() {
            return Vec::new();
        }
        addresses.await.unwrap_or_default()
    }

    /// Whether peers can open connections to this node, and the addresses that are confirmed or announced. Unknown if
    /// the network has stopped.
    pub async fn reachability(&self) -> (Verdict, Vec<Multiaddr>) {
        let (reply, reachability) = oneshot::channel();
        if self.commands.send(Command::Reachability(reply)).await.is_err() {
            return Default::default();
        }
        reachability.await.unwrap_or_default()
    }

    /// Connects to a peer, unless it is connected, and waits for the result. Dials the given addresses, with or without
    /// a `/p2p/ID` at the end, and the known ones; asks the DHT if there are none. Dropping the future stops waiting,
    /// but does not cancel the dial.
    ///
    /// # Errors
    /// [`ConnectError`] with the reason.
    pub async fn connect(
        &self,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        named_by: AddressOrigin,
        patience: Duration,
    ) -> Result<Connected, ConnectError> {
        let addresses = connecting::allowed(addresses, named_by, self.dial_private)?;
        let _trusted = (named_by == AddressOrigin::Operator).then(|| self.operator.trust(&addresses));
        let connecting = async {
            let _permit = self.connects.acquire().await.map_err(|_| ConnectError::Stopped)?;
            let (reply, outcome) = oneshot::channel();
            let sent = self.commands.send(Command::Connect(peer, addresses, reply)).await;
            sent.map_err(|_| ConnectError::Stopped)?;
            outcome.await.unwrap_or(Err(ConnectError::Stopped))
        };
        tokio::time::timeout(patience, connecting).await.unwrap_or(Err(ConnectError::TimedOut(patience)))
    }

    /// Closes all connections to a peer. Returns whether there was any.
    pub async fn disconnect(&self, peer: PeerId) -> bool {
        let (reply, outcome) = oneshot::channel();
        let sent = self.commands.send(Command::Disconnect(peer, reply)).await;
        sent.is_ok() && outcome.await.unwrap_or_default()
    }

    /// The connected peers, longest connected first. Empty if the network has stopped.
    pub async fn peers(&self) -> Vec<ConnectedPeer> {
        let (reply, peers) = oneshot::channel();
        if self.commands.send(Command::Peers(PEERS_MAX, reply)).await.is_err() {
            return Vec::new();
        }
        peers.await.unwrap_or_default()
    }

    /// The peers that connect to this node from now on, unless they are connected already. A receiver that is too slow
    /// misses some, and gets [`RecvError::Lagged`](broadcast::error::RecvError::Lagged).
    pub fn inbound_connections(&self) -> broadcast::Receiver<PeerId> {
        self.inbound.subscribe()
    }

    /// Suggests a provider of a DAG before it is fetched. The peer is dialled as soon as the search for providers
    /// starts, as if routing had named it.
    ///
    /// # Errors
    /// [`ConnectError`] if none of the addresses may be dialled.
    pub async fn suggest(
        &self,
        root: &Cid,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        named_by: AddressOrigin,
    ) -> Result<(), ConnectError> {
        let addresses = connecting::allowed(addresses, named_by, self.dial_private)?;
        let suggestion = Command::Suggest(*root.hash(), Provider { peer, addresses });
        self.commands.send(suggestion).await.map_err(|_| ConnectError::Stopped)
    }

    /// The state of a DAG's session and its known providers, without asking peers; `None` if the network has stopped.
    pub async fn inspect(&self, root: &Cid) -> Option<RootState> {
        let (reply, state) = oneshot::channel();
        self.commands.send(Command::Inspect(*root.hash(), reply)).await.ok()?;
        state.await.ok()
    }

    /// The load of the network; zero if it has stopped.
    pub async fn load(&self) -> Load {
        let (reply, load) = oneshot::channel();
        if self.commands.send(Command::Load(reply)).await.is_err() {
            return Load::default();
        }
        load.await.unwrap_or_default()
    }

    /// Latencies since the start.
    pub fn latency(&self) -> Latency {
        let Metrics { discovery_seconds, transfer_seconds, .. } = &*self.metrics;
        Latency { discovery: discovery_seconds.total(), transfer: transfer_seconds.total() }
    }

    /// Bytes read and written by protocols since the start, by transport.
    pub fn carried(&self) -> Vec<TransportBytes> {
        self.bandwidth.carried().to_vec()
    }

    /// Announces a block in the DHT, as soon as a peer is known. It is reannounced only if the source of
    /// [`Bridge::provide_from`] has it too.
    pub async fn provide(&self, cid: &Cid) {
        let Some(key) = BlockKey::of(cid).filter(|_| self.policy.check(cid).is_ok()) else { return };
        // A stopped network announces nothing.
        let _ = self.commands.send(Command::Provide(key.to_bytes())).await;
    }

    /// Stops announcing a block. Records at other peers expire within two days.
    pub async fn withdraw(&self, cid: &Cid) {
        let Some(key) = BlockKey::of(cid) else { return };
        let _ = self.commands.send(Command::Withdraw(key.to_bytes())).await;
    }

    /// Announces all keys of a source, and reannounces them at the configured interval. After a restart, keys are
    /// reannounced when their turn comes.
    pub async fn provide_from(&self, source: Arc<dyn KeySource>) {
        let source = Arc::new(Permitted { source, policy: self.policy.clone() });
        let _ = self.commands.send(Command::ProvideFrom(source)).await;
    }

    /// Searches the DHT and the routers for the IPNS records of a key. While no peer is known, the search waits for the
    /// first. It ends when all relevant peers were asked, or the [`Search`] is dropped.
    pub async fn find_records(&self, key: &Key) -> Search {
        // The semaphore is never closed. If the network has stopped, the sink is dropped and the search ends.
        let permit = Arc::clone(&self.searches).acquire_owned().await.ok();
        let (search, sink) = Search::new(permit);
        if !self.routers.is_empty() {
            self.runtime.spawn(self.routers.clone().feed(*key, sink.feeder()));
        }
        let _ = self.commands.send(Command::FindRecords(RecordKey::from(key.routing_key()), sink)).await;
        search
    }

    /// Puts an IPNS record into the DHT of a scope, at the peers closest to its key. While no peer is known, this waits
    /// for the first. Dropping the future cancels the put.
    ///
    /// [`PutError`] if no peer stored it.
    /// [`PutError`] if no peer stored it.
    pub async fn put_record(&self, scope: Scope, key: &Key, record: &ipns::Record) -> PutOutcome {
        if self.policy.refuses_name(key) {
            return Err(PutError::Withheld);
        }
        let mut stored = Record::new(RecordKey::from(key.routing_key()), record.bytes().to_vec());
        let life = record.end_of_life().duration_since(SystemTime::now()).unwrap_or_default();
        stored.expires = Instant::now().checked_add(life);
        let (reply, outcome) = oneshot::channel();
        let sent = self.commands.send(Command::PutRecord(scope, stored, reply)).await;
        sent.map_err(|_| PutError::Stopped)?;
        outcome.await.unwrap_or(Err(PutError::Stopped))
    }

    /// Whether [`Bridge::put_record`] would start in a scope now, since its DHT has peers.
    pub async fn has_dht_peers(&self, scope: Scope) -> bool {
        let (reply, has_peers) = oneshot::channel();
        self.commands.send(Command::HasDhtPeers(scope, reply)).await.is_ok() && has_peers.await.unwrap_or_default()
    }

    /// Searches for the providers of a block on behalf of a client, in the DHT and among known providers. Routers are
    /// not asked, so that two routers cannot ask each other in a loop.
    pub async fn find_providers(&self, key: &BlockKey) -> PeerSearch {
        self.find(SearchTarget::Providers(RecordKey::new(&key.to_bytes()))).await
    }

    /// Searches for a peer's addresses on behalf of a client.
    pub async fn find_peer(&self, peer: PeerId) -> PeerSearch {
        self.find(SearchTarget::Peer(peer)).await
    }

    /// Searches for the DHT servers closest to a key, which is the preimage of the DHT's hash: usually a multihash.
    pub async fn closest_peers(&self, key: Vec<u8>) -> PeerSearch {
        self.find(SearchTarget::Closest(key)).await
    }

    async fn find(&self, sought: SearchTarget) -> PeerSearch {
        let permit = Arc::clone(&self.finders).acquire_owned().await.ok();
        let (search, sink) = PeerSearch::new(permit);
        let _ = self.commands.send(Command::FindPeers(sought, sink)).await;
        search
    }

    /// Whether any router is configured.
    pub fn has_routers(&self) -> bool {
        !self.routers.is_empty()
    }

    /// Publishes an IPNS record through all routers. Returns how many accepted it.
    pub async fn publish_through_routers(&self, key: &Key, record: Bytes) -> usize {
        if self.policy.refuses_name(key) {
            return 0;
        }
        let (routers, key) = (self.routers.clone(), *key);
        let published = self.runtime.spawn(async move { routers.publish(key, record).await });
        AbortOnDropHandle::new(published).await.unwrap_or_default()
    }

    /// Waits until the swarm task has ended, because the network was stopped or the task panicked.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let commands = self.commands.clone();
        async move { commands.closed().await }
    }

    /// Stops the network. Returns when all persistent state is written and the connections have ended, which peers are
    /// told, so that the process may end. That takes a second at most, and no time without connections.
    pub async fn shutdown(&self) {
        let (reply, stopped) = oneshot::channel();
        if self.commands.send(Command::Shutdown(reply)).await.is_ok() {
            let _ = stopped.await;
        }
    }
}

/// The keys of a source that the policy does not refuse.
struct Permitted {
    source: Arc<dyn KeySource>,
    policy: NetworkPolicy,
}

impl KeySource for Permitted {
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.source.visit(&mut |key| {
            if !self.policy.refuses_block(key) {
                visit(key);
            }
        })
    }
}

/// Starts both DHTs, public and local. Loading their records blocks, so it runs on a blocking thread.
async fn start_dhts(local: PeerId, options: &BridgeOptions, metrics: DhtMetrics) -> Result<[ScopedKad; 2], StartError> {
    let options = options.clone();
    let start = move || Scope::ALL.map(|scope| ScopedKad::start(scope, local, &options, metrics.clone()));
    tokio::task::spawn_blocking(start).await.map_err(|error| StartError::Transport(error.to_string()))
}

/// The key of the private network, if one is configured.
fn private_key(options: &BridgeOptions) -> Result<Option<SwarmKey>, StartError> {
    let Some(path) = &options.private.key_file else { return Ok(None) };
    let key = SwarmKey::read(path).map_err(|error| StartError::Private { path: path.clone(), error })?;
    let fingerprint = key.fingerprint();
    tracing::info!(%fingerprint, "private network: this node connects only to peers with the same key");
    Ok(Some(key))
}

fn limits(budget: &ConnectionBudget) -> ConnectionLimits {
    let size = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
    let ConnectionBudget { connections_max, per_ip_max, per_subnet_max, pending_dials_max, .. } = budget;
    ConnectionLimits::of(size(*connections_max), size(*per_ip_max), size(*per_subnet_max), size(*pending_dials_max))
}

/// The trustless gateways. If the HTTP client cannot be built and no gateway is configured, gateways in provider
/// records are not used, and the node starts without.
fn gateways(options: &BridgeOptions, wants: Arc<Wants>, registry: &mut Registry) -> Result<HttpPeers, SetupError> {
    let metrics = http_source::metrics::Metrics::register(registry);
    let http = bitswap::http_peers::HttpPeersOptions {
        gateways: options.http.gateways.clone(),
        from_records: options.http.from_records,
        dial_private: options.dial_private,
        cars: options.http.cars,
    };
    match HttpPeers::new(&http, wants, metrics.clone(), Instant::now()) {
        Err(error) if http.gateways.is_empty() => {
            tracing::warn!(%error, "trustless gateways in provider records are not used");
            Ok(HttpPeers::none(metrics))
        }
        peers => peers,
    }
}

/// libp2p listens with SO_REUSEPORT, which would silently share a TCP port with another program of the same user: half
/// of the connections would reach the wrong program.
fn check_port_is_free(address: &Multiaddr) -> std::io::Result<()> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    match parts.next() {
        Some(Protocol::Tcp(port)) if port != 0 => std::net::TcpListener::bind((ip, port)).map(drop),
        _ => Ok(()),
    }
}

/// Binds all addresses and waits until each listener reports an address.
async fn listen(swarm: &mut Swarm<Behaviour>, addresses: &[Multiaddr]) -> Result<(), StartError> {
    let mut pending: HashMap<ListenerId, Multiaddr> = HashMap::new();
    for address in addresses {
        let failed = |reason: String| StartError::Listen { address: address.clone(), reason };
        check_port_is_free(address).map_err(|error| failed(error.to_string()))?;
        let id = swarm.listen_on(address.clone()).map_err(|error| failed(innermost(&error)))?;
        pending.insert(id, address.clone());
    }
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    loop {
        let patience =
            if pending.is_empty() { MORE_ADDRESSES } else { deadline.saturating_duration_since(Instant::now()) };
        match tokio::time::timeout(patience, swarm.select_next_some()).await {
            Ok(SwarmEvent::NewListenAddr { listener_id, .. }) => _ = pending.remove(&listener_id),
            Ok(SwarmEvent::ListenerClosed { listener_id, reason, .. }) => {
                if let Some(address) = pending.remove(&listener_id) {
                    let reason = reason.err().map_or_else(|| "closed".to_owned(), |error| innermost(&error));
                    return Err(StartError::Listen { address, reason });
                }
            }
            Ok(_) => {}
            Err(_) => {
                return match pending.into_values().next() {
                    None => Ok(()),
                    Some(address) => Err(StartError::Listen {
                        address,
                        reason: "the listener reported no address in time".to_owned(),
                    }),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::MemoryBlocks;
    use tempfile::TempDir;

    const PATIENCE: Duration = Duration::from_secs(60);
    /// Half of the time after which a connection over QUIC ends whose peer is silent.
    const AT_ONCE: Duration = Duration::from_secs(5);

    async fn start(listen: &[&str]) -> (Bridge, TempDir) {
        let directory = tempfile::tempdir().expect("directory");
        let mut options = BridgeOptions::new(directory.path());
        options.listen = listen.iter().map(|address| address.parse().expect("an address")).collect();
        options.nat.upnp = false;
        let bridge = Bridge::start(options, Arc::new(MemoryBlocks::new()), &mut Registry::default()).await;
        (bridge.expect("starts"), directory)
    }

    async fn until_connected(bridge: &Bridge, peers: usize, patience: Duration) {
        let reached = async {
            while bridge.peers().await.len() != peers {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(patience, reached).await.expect("in time");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn connections_have_ended_when_shutdown_returns_and_the_peers_know() {
        let listen = "/ip4/127.0.0.1/udp/0/quic-v1";
        for stops_first in [false, true] {
            let ((dialling, _of_dialling), (listening, _of_listening)) = (start(&[]).await, start(&[listen]).await);
            let addresses = listening.addresses().await;
            let connected = dialling.connect(listening.peer_id(), addresses, AddressOrigin::Operator, PATIENCE).await;
            connected.expect("connects");
            until_connected(&listening, 1, PATIENCE).await;
            let (stops, stays) = if stops_first { (&dialling, &listening) } else { (&listening, &dialling) };
            stops.shutdown().await;
            // The tasks that send packets have ended: what they had to send is sent.
            assert!(stops.runtime.metrics().num_alive_tasks() <= 1, "but for the one that tells of the end");
            until_connected(stays, 0, AT_ONCE).await;
            stays.shutdown().await;
        }
    }
}
