//! [`Bridge`]: the handle by which the rest of the process uses the network.

use crate::admission::Admission;
use crate::admission::budget::Limits;
use crate::bitswap::{behaviour, client};
use crate::discovery::memory::Memory;
use crate::identity;
use crate::lookups::Search;
use crate::metrics::Metrics;
use crate::nat::metrics::NatMetrics;
use crate::options::{BridgeOptions, ConnectionBudget};
use crate::peerbook::Peerbook;
use crate::private_network::{KeyError, SwarmKey};
use crate::redial::Redial;
use crate::session::{Session, Shared};
use crate::swarm::{self, Behaviour};
use crate::task::nat::Nat;
use crate::task::{Command, Known, Task};
use crate::tls;
use crate::wants::Wants;
use content::names::Key;
use content::{BlockKey, BlockSource, Cid};
use futures::StreamExt;
use libp2p::core::transport::ListenerId;
use libp2p::kad::RecordKey;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, Swarm};
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Commands that may wait for the swarm task.
const COMMANDS_MAX: usize = 64;
/// Searches for value records that run at once. Callers beyond it wait for their turn.
const SEARCHES_MAX: usize = 256;
/// How long a listener may take to report its address.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// A wildcard listener reports one address after another; after this long without a further one, that was all.
const MORE_ADDRESSES: Duration = Duration::from_millis(20);

/// Why the bridge did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The key pair is not to be had.
    #[error(transparent)]
    Identity(#[from] identity::IdentityError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address as configured.
        address: Multiaddr,
        /// What the system said.
        reason: String,
    },
    /// The key of the private network is not to be had.
    #[error("cannot use the swarm key {path}: {error}", path = path.display())]
    Private {
        /// The file as configured.
        path: PathBuf,
        /// What is wrong with it.
        error: KeyError,
    },
    /// The transports cannot be built.
    #[error("cannot build the network transports: {0}")]
    Transport(String),
}

/// A handle to the network. Cloning shares it; the network stops when [`Bridge::shutdown`] is called or every handle is
/// gone.
#[derive(Clone)]
pub struct Bridge {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    searches: Arc<Semaphore>,
    peer_id: PeerId,
}

impl Bridge {
    /// Binds every listener and starts the swarm task. Questions of other peers are answered from `local`, which must
    /// never ask the network itself.
    ///
    /// # Errors
    /// [`StartError`] names the file or the address at fault.
    pub async fn start(
        options: BridgeOptions,
        local: Arc<dyn BlockSource>,
        registry: &mut Registry,
    ) -> Result<Self, StartError> {
        tls::use_ring();
        let private = private_key(&options)?;
        let options = if private.is_some() { options.confined() } else { options };
        let keypair = identity::load_or_create(&options.data_dir)?;
        let peer_id = keypair.public().to_peer_id();
        let metrics = Metrics::register(registry);
        let wants = Arc::new(Wants::default());
        let (to_sessions, from_sessions) = mpsc::unbounded_channel();
        let now = Instant::now();
        let peerings = Redial::new(&options.peering, now);
        let bootstraps = Redial::new(&options.bootstrap, now);
        let client = client::Config { stall_timeout: options.stall_timeout, ..client::Config::default() };
        let bitswap = behaviour::Behaviour::new(
            client,
            metrics.clone(),
            wants.clone(),
            from_sessions,
            local,
            peerings.peers().collect(),
            options.bitswap.serve_to.clone(),
        );
        let trusted = peerings.peers().chain(bootstraps.peers()).collect();
        let admission = Admission::new(limits(&options.budget), options.budget.ban, trusted);
        let mut swarm = swarm::build(keypair, private, admission, bitswap, &options)
            .await
            .map_err(|error| StartError::Transport(error.to_string()))?;
        for address in &options.announce {
            swarm.add_external_address(address.clone());
        }
        listen(&mut swarm, &options.listen).await?;
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let nat = Nat::new(&options, NatMetrics::register(registry));
        let peerbook = Peerbook::load(&options.data_dir);
        let memory = Memory::load(&options.data_dir);
        let known = Known { peerings, bootstraps, peerbook, memory };
        tokio::spawn(Task::new(swarm, inbox, metrics, known, nat).run());
        let searches = Arc::new(Semaphore::new(SEARCHES_MAX));
        Ok(Self { shared: Arc::new(Shared::new(wants, to_sessions)), commands, searches, peer_id })
    }

    /// The network as a source of one DAG's blocks. Everybody who reads that DAG shares what is learnt about it.
    pub fn session(&self, root: &Cid) -> Arc<dyn BlockSource> {
        Arc::new(Session::new(self.shared.clone(), root))
    }

    /// Who we are.
    pub fn peer_id(&self) -> PeerId {
        self.peer_id
    }

    /// Every address that peers can use, each ending in our peer id. Empty if the network has stopped.
    pub async fn addresses(&self) -> Vec<Multiaddr> {
        let (reply, addresses) = oneshot::channel();
        if self.commands.send(Command::Addresses(reply)).await.is_err() {
            return Vec::new();
        }
        addresses.await.unwrap_or_default()
    }

    /// Announces in the DHT that we hold a DAG, as soon as there is anybody to hear it, and again before that expires.
    pub async fn provide(&self, root: &Cid) {
        let Some(key) = BlockKey::of(root) else { return };
        // A stopped network announces nothing.
        let _ = self.commands.send(Command::Provide(RecordKey::new(&key.to_bytes()))).await;
    }

    /// Searches the DHT for the IPNS records of a key. While no peer is known, the search waits for the first; it goes on
    /// until every peer that matters was asked, or the [`Search`] is dropped.
    pub async fn find_records(&self, key: &Key) -> Search {
        // The semaphore is never closed, and a stopped network finds nothing: its sink is gone at once.
        let permit = Arc::clone(&self.searches).acquire_owned().await.ok();
        let (search, sink) = Search::new(permit);
        let _ = self.commands.send(Command::FindRecords(RecordKey::from(key.routing_key()), sink)).await;
        search
    }

    /// Stops the network. Returns when everything that outlives a restart is written.
    pub async fn shutdown(&self) {
        let (reply, stopped) = oneshot::channel();
        if self.commands.send(Command::Shutdown(reply)).await.is_ok() {
            let _ = stopped.await;
        }
    }
}

/// The key of the private network, if the node is to be on one.
fn private_key(options: &BridgeOptions) -> Result<Option<SwarmKey>, StartError> {
    let Some(path) = &options.private.key_file else { return Ok(None) };
    let key = SwarmKey::read(path).map_err(|error| StartError::Private { path: path.clone(), error })?;
    tracing::info!(fingerprint = %key.fingerprint(), "on a private network: only peers that hold its key are spoken to");
    Ok(Some(key))
}

fn limits(budget: &ConnectionBudget) -> Limits {
    let size = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
    let ConnectionBudget { connections_max, per_ip_max, per_subnet_max, pending_dials_max, .. } = budget;
    Limits::of(size(*connections_max), size(*per_ip_max), size(*per_subnet_max), size(*pending_dials_max))
}

/// libp2p listens with SO_REUSEPORT, which would share a TCP port with another program of the same user in silence: half
/// of the connections would reach the wrong one.
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

/// What the system said: libp2p's own layers of errors say nothing of their own.
fn innermost(mut error: &(dyn std::error::Error + 'static)) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Binds every address and waits until each is known to be bound.
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
                    Some(address) => {
                        Err(StartError::Listen { address, reason: "the system did not answer".to_owned() })
                    }
                };
            }
        }
    }
}
