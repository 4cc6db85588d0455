//! [`Node`]: wires everything together, from the listeners to the store, and drains it.
//!
//! The order of the start lets it fail early: ports are bound before the store is opened, and the store is opened
//! before the node joins the network. Readiness comes last. A drain goes the other way.

use crate::network::Network;
use crate::process::{self, VERSION_AND_COMMIT};
use admin::kubo_rpc::{self, Rpc};
use admin::operations::{self, NodeAddresses, Operations};
use admin::{self, Admin};
use anyhow::Context as _;
use axum::body::Body;
use cache::{BlockStore, Ram, RamPolicy, TierMetrics, Tiers};
use config::{Config, ConfigError, Loaded};
use content::{Cid, Policy};
use gateway::limits::Limits;
use gateway::listen::admission::{Admission, Bounds, PATIENCE};
use gateway::listen::server::{Connection, ConnectionLimits, Drain, RequestBody, serve};
use gateway::listen::tls::{Tls, TlsError};
use gateway::metrics::HttpMetrics;
use gateway::pipeline::{Gateway, Wiring};
use gateway::represent::encoded::Encoded;
use p2p_bridge::names::Names;
use p2p_bridge::names::publish::Publisher;
use prometheus_client::registry::Registry;
use services::access::authenticator::{self, Authenticator, NO_ADMIN};
use services::audit::AuditLog;
use services::denylists::served::Served;
use services::denylists::takedown::{Answers, InFront};
use services::denylists::{Control, Keeper, Lists, Running};
use services::front_caches::{Caches, Senders};
use services::health::{Degraded, Health, Stage};
use services::limiter::Limiter;
use services::logging::chain;
use services::pinning::{PinMetrics, PinOptions, Pins, Reach};
use services::supervision::{EssentialTaskEnded, Supervisor};
use services::upkeep::Upkeep;
use services::uploads::resumable::Parts;
use services::uploads::{self, Uploads};
use services::{p2p, stores, welcome};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// A node that serves.
pub struct Node {
    health: Arc<Health>,
    disk: Arc<dyn BlockStore>,
    supervisor: Supervisor,
    upkeep: Upkeep,
    keeper: Keeper,
    senders: Senders,
    lists: Arc<Lists>,
    _sweeper: AbortOnDropHandle<()>,
    network: Network,
    pins: Arc<Pins>,
    names: Arc<Names>,
    publisher: Arc<Publisher>,
    public: Drain,
    admin: Drain,
    drain_timeout: Duration,
    /// Cancelled when an operator stops the process through the admin API.
    stop: CancellationToken,
    /// The addresses of its listeners.
    pub addresses: NodeAddresses,
}

/// The maximum number of concurrent fetches for operators, which have a limit of their own.
const OPERATOR_FETCHES: usize = 2 * operations::OPERATIONS_MAX * operations::warm::FETCHES_MAX;

/// Displays the addresses of a node, as `serve` prints them when the node is ready.
pub struct Ready<'a>(pub &'a NodeAddresses);

impl fmt::Display for Ready<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(addresses) = self;
        writeln!(f, "Causeway {} is ready.", *VERSION_AND_COMMIT)?;
        addresses.gateway.iter().try_for_each(|address| writeln!(f, "  gateway   http://{address}"))?;
        addresses
            .admin
            .iter()
            .try_for_each(|address| writeln!(f, "  admin     {}://{address}", addresses.admin_scheme))?;
        writeln!(f, "  peer id   {}", addresses.peer_id)?;
        addresses.p2p.iter().try_for_each(|address| writeln!(f, "  p2p       {address}"))?;
        if addresses.p2p.is_empty() {
            writeln!(f, "  p2p       offline")?;
        }
        let reachable = addresses.gateway.first().copied().map(reachable);
        match (reachable, addresses.welcome) {
            (Some(address), Some(root)) => writeln!(f, "  welcome   http://{address}/ipfs/{root}/"),
            (Some(_), None) => writeln!(f, "  welcome   not pinned"),
            (None, _) => Ok(()),
        }
    }
}

/// An address that a browser on this machine can open.
fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

impl Node {
    /// Starts everything. When this returns, the listeners answer requests.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting that cannot be used, such as a port in use; other errors are about the store
    /// or the network.
    pub async fn start(loaded: &Loaded) -> anyhow::Result<Self> {
        let Config { data_dir, http, cache, .. } = &loaded.config;
        let public = bind(loaded, "http.listen", &http.listen).await?;
        let operator = bind(loaded, "admin.listen", &loaded.config.admin.listen).await?;
        let tls = admin_tls(loaded)?;
        let disk = stores::open(data_dir, cache).await.map_err(|error| data_dir_error(loaded, &error))?;
        stores::note_unused(data_dir, cache);

        let keys = p2p::open_keys(loaded).await?;

        let mut registry = Registry::default();
        process::register(&mut registry);
        let lists = Lists::open(&loaded.config.policy, data_dir).await;
        let lists = lists.map_err(|error| loaded.error(error.setting, error.to_string()))?;
        let policy: Arc<dyn Policy> = Arc::clone(lists.running()) as _;
        let tier_metrics = TierMetrics::register(&mut registry);
        let ram = Ram::with_policy(cache.ram_bytes_max, ram_policy(cache.ram_policy));
        let tiers = Tiers::new(ram, Arc::clone(&disk), Arc::clone(&policy), tier_metrics);
        let network = Network::start(loaded, Arc::new(Served::of(&tiers)), &policy, &mut registry).await?;
        let welcome = welcome_site(loaded, &*disk).await;
        network.provide(&*disk, loaded.config.p2p.provide).await;

        let pins = start_pins(loaded, &disk, network.reach(loaded, &tiers, Arc::clone(&policy)), &mut registry).await?;
        let control = Arc::new(Control::new(Arc::clone(&lists), tiers.clone()).telling(&pins));

        let recheck = Arc::downgrade(&pins);
        lists.on_change(move || recheck.upgrade().iter().for_each(|pins| pins.rules_changed()));

        let metrics = Arc::new(HttpMetrics::register(&mut registry));
        let health = Arc::<Health>::default();
        watch_store(&health, disk.live_stats());
        let supervisor = Supervisor::new(Arc::clone(&health));
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let fetches = Limiter::new(size(http.misses_max), size(http.client_misses_max));
        let encoded = http.zstd.then(|| Encoded::new(tiers.clone(), cache.encoded_bytes_max));
        let names = network.names(loaded, &policy, &mut registry)?;
        let publisher = network.publisher(loaded, keys, &names, &mut registry).await?;
        let routing = network.routing(loaded, &tiers, Arc::clone(&names) as _, &mut registry);
        let sources = Arc::new(network.sources(&tiers, fetches));
        let limits =
            Limits { client_lookups_max: size(loaded.config.names.client_lookups_max), ..Limits::of(http, cache) };
        let (uploads, parts) = open_uploads(loaded, &disk, &pins, Arc::clone(&policy))?;
        let rpc = Rpc::new(kubo_rpc::Dependencies {
            sources: Arc::clone(&sources),
            names: Arc::clone(&names) as _,
            policy: Arc::clone(&policy),
            store: Arc::clone(&disk),
            publisher: Arc::clone(&publisher),
            bridge: network.bridge(),
            peer_id: network.peer_id(),
            pins: Arc::clone(&pins),
            uploads: uploads.clone(),
            limits: limits.clone(),
        });
        let wiring = Wiring {
            sources: Arc::clone(&sources),
            encoded,
            routing,
            names: Arc::clone(&names) as _,
            policy: Arc::clone(&policy),
            metrics: Arc::clone(&metrics),
            health: Arc::clone(&health),
            welcome,
        };
        let gateway = Arc::new(Gateway::new(wiring, http, limits));
        let caches_of = Arc::downgrade(&gateway);
        lists.on_change(move || caches_of.upgrade().iter().for_each(|gateway| gateway.forget()));
        let addresses = NodeAddresses {
            gateway: local_addresses(&public)?,
            admin: local_addresses(&operator)?,
            admin_scheme: if tls.is_some() { "https" } else { "http" },
            peer_id: network.peer_id(),
            p2p: network.addresses().await,
            welcome,
        };
        let limits = ConnectionLimits::of(http);
        let stop = CancellationToken::new();
        let audit = Arc::new(AuditLog::open(data_dir).map_err(|error| unwritable(loaded, "audit.log", &error))?);
        let (caches, senders) = Caches::start(&loaded.config, &audit, &mut registry, &supervisor)?;
        control.with_in_front(in_front(&caches, &gateway));
        let operations = Operations::new(operations::Dependencies {
            gateway: Arc::clone(&gateway),
            tiers: tiers.clone(),
            sources: Arc::new(network.sources(&tiers, Limiter::new(OPERATOR_FETCHES, OPERATOR_FETCHES))),
            names: Arc::clone(&names),
            bridge: network.bridge(),
            health: Arc::clone(&health),
            metrics: Arc::clone(&metrics),
            loaded: Arc::new(loaded.clone()),
            addresses: addresses.clone(),
            stop: stop.clone(),
            pins: Some(count_pins(&pins)),
            decide: Some(decider(lists.running())),
            caches,
        });
        control.answered_by(predicted(&operations));
        supervisor.watch("the store's writer", disk.ended());
        supervisor.watch("the pin service", pins.ended());
        supervisor.watch("the publisher of names", publisher.failed());
        supervisor.watch("the audit log's writer", audit.ended());
        if let Some(bridge) = network.bridge() {
            supervisor.watch("the peer-to-peer network", bridge.ended());
        }
        let admin = Admin {
            registry,
            health: Arc::clone(&health),
            publisher: Some(Arc::clone(&publisher)),
            store: Arc::clone(&disk),
            sources,
            pins: Arc::clone(&pins),
            authenticator: authenticator(loaded)?,
            audit,
            data_dir: data_dir.clone(),
            rpc,
            operations: Some(operations),
            control: Arc::clone(&control),
            uploads,
            parts: Arc::clone(&parts),
        };
        let node = Self {
            public: serve_public(public, &limits, &metrics, gateway, &supervisor),
            admin: serve_admin(operator, &limits, tls, &metrics, admin, &supervisor),
            drain_timeout: Duration::from_secs(http.drain_timeout_seconds),
            health,
            upkeep: Upkeep::start(&*disk, cache, &supervisor),
            keeper: lists.keep(&supervisor),
            senders,
            lists,
            _sweeper: parts.start(&supervisor),
            supervisor,
            disk,
            network,
            pins,
            names,
            publisher,
            stop,
            addresses,
        };
        node.publish_admin_address().await?;
        node.health.enter(Stage::Serving);
        Ok(node)
    }

    /// Publishes the address of the admin listener in the data folder, for commands that find the keys locked.
    async fn publish_admin_address(&self) -> anyhow::Result<()> {
        let admin = self.addresses.admin.first().copied().map(reachable);
        let word =
            admin.map_or_else(|| NO_ADMIN.to_owned(), |address| format!("{}://{address}", self.addresses.admin_scheme));
        let keys = Arc::clone(self.publisher.keys());
        let written = tokio::task::spawn_blocking(move || keys.leave_word(&word)).await;
        written.context("the keys cannot be used")?.context("the keys cannot be used")
    }

    /// Applies the settings that can change at run time. `running` has the settings of the start, `read` the current
    /// ones.
    pub async fn reload(&self, running: &Loaded, read: Result<Loaded, ConfigError>) {
        crate::reload::reload(running, read, &self.lists, &self.names).await;
    }

    /// Waits until an operator stops the process through the admin API.
    pub async fn asked_to_stop(&self) {
        self.stop.cancelled().await;
    }

    /// Waits until an essential task has ended.
    pub async fn failed(&self) -> EssentialTaskEnded {
        self.supervisor.failed().await
    }

    /// Graceful drain: stops accepting connections, finishes open requests, leaves the network and closes the store.
    ///
    /// # Errors
    /// When the store could not be flushed.
    pub async fn drain(self) -> anyhow::Result<()> {
        self.health.enter(Stage::Ending);
        self.supervisor.expect_end();
        if !self.public.finish(self.drain_timeout).await {
            tracing::warn!(connections = self.public.open(), "connections were still open after the drain timeout");
        }
        self.upkeep.stop();
        drop(self.keeper);
        drop(self.senders);
        self.publisher.stop();
        self.pins.stop().await;
        self.network.shutdown().await;
        self.names.save().await;
        self.disk.close().await.context("the store did not close cleanly")?;
        // Last, so that operators can watch the drain. Requests of this listener are short.
        self.admin.finish(Duration::from_secs(1)).await;
        Ok(())
    }
}

/// Pins the welcome site, if it is enabled, and returns its root. A failure does not prevent the start.
async fn welcome_site(loaded: &Loaded, store: &dyn BlockStore) -> Option<Cid> {
    let Config { data_dir, http, cache, .. } = &loaded.config;
    if !http.welcome_site {
        return None;
    }
    let note = stores::welcome_note(data_dir, cache);
    let offered = welcome::offer(store, note.as_deref()).await;
    offered.unwrap_or_else(|error| {
        tracing::warn!(error = chain(&error), "the welcome site cannot be pinned; the next start will try again");
        None
    })
}

/// Reports on `/readyz` when the store cannot write.
fn watch_store(health: &Health, stats: Arc<cache::store::Stats>) {
    health.watch(move || {
        let trouble = stats.trouble()?;
        Some(Degraded { part: "store", reason: trouble.word(), message: trouble.to_string() })
    });
}

/// Starts the pin service.
async fn start_pins(
    loaded: &Loaded,
    store: &Arc<dyn BlockStore>,
    reach: Reach,
    registry: &mut Registry,
) -> anyhow::Result<Arc<Pins>> {
    let Config { data_dir, cache, pinning, .. } = &loaded.config;
    let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let options = PinOptions {
        workers_max: size(pinning.workers_max),
        pins_max: size(pinning.pins_max),
        give_up: Duration::from_hours(pinning.give_up_hours),
        ..PinOptions::default()
    };
    let register = stores::open_register(data_dir, cache).await.map_err(|error| data_dir_error(loaded, &error))?;
    let metrics = PinMetrics::register(registry);
    let pins = Pins::start(options, register, Arc::clone(store), reach, metrics).await;
    pins.context("the pin metadata cannot be used")
}

async fn bind(loaded: &Loaded, key: &str, addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, ConfigError> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for address in addresses {
        let listener = TcpListener::bind(address).await;
        listeners.push(listener.map_err(|error| loaded.error(key, why_not_bound(address, &error)))?);
    }
    Ok(listeners)
}

fn why_not_bound(address: &SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is in use: stop the program that has it, or choose another port")
        }
        io::ErrorKind::PermissionDenied => format!("this user may not listen on {address}"),
        io::ErrorKind::AddrNotAvailable => format!("{address} is not an address of this machine"),
        _ => format!("cannot listen on {address}: {error}"),
    }
}

fn local_addresses(listeners: &[TcpListener]) -> io::Result<Vec<SocketAddr>> {
    listeners.iter().map(TcpListener::local_addr).collect()
}

/// The authenticator of the admin listener. Creates the token for commands on this data folder if there is none.
fn authenticator(loaded: &Loaded) -> Result<Authenticator, ConfigError> {
    let Config { data_dir, admin, .. } = &loaded.config;
    let local = authenticator::local(data_dir).map_err(|error| unwritable(loaded, "admin.token", &error))?;
    Ok(Authenticator::new(admin.token.reveal(), Some(local), data_dir))
}

fn unwritable(loaded: &Loaded, file: &str, error: &io::Error) -> ConfigError {
    loaded.error("data_dir", format!("{} cannot be used: {error}", loaded.config.data_dir.join(file).display()))
}

/// The caches in front of the gateway, and the paths by which they may have cached a block.
fn in_front(caches: &Caches, gateway: &Arc<Gateway>) -> InFront {
    let gateway = Arc::downgrade(gateway);
    let paths_through = move |cid: &Cid| {
        let gateway = gateway.upgrade();
        gateway.map_or_else(Vec::new, |gateway| gateway.paths_through(cid, PURGED_PATHS_MAX))
    };
    InFront { caches: caches.clone(), paths_through: Arc::new(paths_through) }
}

/// The maximum number of paths through one block that are purged from caches in front.
const PURGED_PATHS_MAX: usize = 256;

/// The predicted answers of the gateway, for checks of denylists.
fn predicted(operations: &Operations) -> Answers {
    let operations = operations.clone();
    Box::new(move |subject| {
        let operations = operations.clone();
        Box::pin(async move { operations.predict(&subject).await })
    })
}

/// The upload service, and its resumable uploads.
fn open_uploads(
    loaded: &Loaded,
    store: &Arc<dyn BlockStore>,
    pins: &Arc<Pins>,
    policy: Arc<dyn Policy>,
) -> Result<(Uploads, Arc<Parts>), ConfigError> {
    let Config { data_dir, uploads, cache, .. } = &loaded.config;
    let limits = uploads::Limits::new(uploads, cache);
    let service = Uploads::new(store, policy, Arc::clone(pins), limits, data_dir);
    let service = service.map_err(|error| unwritable(loaded, uploads::FOLDER, &error))?;
    let (folder, holders) = (data_dir.join(uploads::FOLDER).join("parts"), authenticator::holders(data_dir));
    let parts = Parts::open(service.clone(), &folder, uploads.into(), holders);
    let parts = parts.map_err(|error| unwritable(loaded, uploads::FOLDER, &error))?;
    Ok((service, parts))
}

/// The TLS configuration of the admin listener, if TLS is enabled.
///
/// # Errors
/// [`ConfigError`] about the file that cannot be used.
pub fn admin_tls(loaded: &Loaded) -> Result<Option<Arc<Tls>>, ConfigError> {
    let config::Admin { tls_certificate, tls_key, .. } = &loaded.config.admin;
    if tls_certificate.as_os_str().is_empty() {
        return Ok(None);
    }
    let wrong = |error: TlsError| {
        let key = if matches!(error, TlsError::Certificate { .. }) { "admin.tls_certificate" } else { "admin.tls_key" };
        loaded.error(key, error.to_string())
    };
    Tls::load(tls_certificate, tls_key).map(|tls| Some(Arc::new(tls))).map_err(wrong)
}

/// Looks up the list and line that block content.
fn decider(rules: &Arc<Running>) -> operations::RuleLookup {
    let rules = Arc::clone(rules);
    Arc::new(move |root, path| {
        let hit = if path.is_empty() { rules.find_block(root) } else { rules.find_path(root, path) };
        hit.map(|hit| format!("{}:{}", hit.list, hit.line))
    })
}

/// Counts of pins by status.
fn count_pins(pins: &Arc<Pins>) -> operations::PinCounts {
    let pins = Arc::clone(pins);
    Arc::new(move || {
        let counts = pins.counts();
        let by_status = [
            ("pending", counts.pending),
            ("pinned", counts.pinned),
            ("failed", counts.failed),
            ("withheld", counts.withheld),
            ("incomplete_roots", counts.incomplete_roots),
            ("queued_roots", counts.queued_roots),
            ("active_roots", counts.active_roots),
        ];
        by_status.into_iter().map(|(status, count)| (status.to_owned(), count)).collect()
    })
}

fn ram_policy(policy: config::RamPolicy) -> RamPolicy {
    match policy {
        config::RamPolicy::TinyLfu => RamPolicy::TinyLfu,
        config::RamPolicy::Lru => RamPolicy::Lru,
    }
}

/// An error of the store as an error of the setting `data_dir`.
fn data_dir_error(loaded: &Loaded, error: &anyhow::Error) -> ConfigError {
    loaded.error("data_dir", chain(error))
}

fn serve_public(
    listeners: Vec<TcpListener>,
    limits: &ConnectionLimits,
    metrics: &Arc<HttpMetrics>,
    gateway: Arc<Gateway>,
    supervisor: &Supervisor,
) -> Drain {
    let drain = Drain::default();
    for listener in listeners {
        let gateway = Arc::clone(&gateway);
        let handler = move |request, connection| {
            let gateway = Arc::clone(&gateway);
            async move { gateway.handle(request, connection).await }
        };
        let serving = serve(listener, limits.clone(), Arc::clone(metrics), drain.clone(), handler);
        supervisor.spawn("a public listener", serving).detach();
    }
    drain
}

/// The maximum number of connections of the admin listener, which are not counted as public ones.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// The maximum number of connections of one client of the admin listener.
const ADMIN_CLIENT_CONNECTIONS_MAX: usize = 48;

fn serve_admin(
    listeners: Vec<TcpListener>,
    limits: &ConnectionLimits,
    tls: Option<Arc<Tls>>,
    metrics: &Arc<HttpMetrics>,
    admin: Admin,
    supervisor: &Supervisor,
) -> Drain {
    let drain = Drain::default();
    let (all, each) = (ADMIN_CONNECTIONS_MAX, ADMIN_CLIENT_CONNECTIONS_MAX);
    let admission = Arc::new(Admission::new(Bounds { all, each, exempt: Vec::new(), patience: PATIENCE }));
    let limits = ConnectionLimits { admission, tls, ..limits.clone() };
    let router = admin::router(admin);
    for listener in listeners {
        let router = router.clone();
        let handler = move |request: http::Request<RequestBody>, connection: Arc<Connection>| {
            admin::answer(router.clone(), request.map(Body::new), connection)
        };
        let serving = serve(listener, limits.clone(), Arc::clone(metrics), drain.clone(), handler);
        supervisor.spawn("an admin listener", serving).detach();
    }
    drain
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_secs(60);

    async fn readiness(address: SocketAddr) -> String {
        let mut socket = tokio::net::TcpStream::connect(address).await.expect("it listens");
        let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        socket.write_all(request).await.expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("it answers");
        answer
    }

    fn settings(set: impl FnOnce(&mut config::Config)) -> Loaded {
        let mut loaded = config::load(&config::Flags::default(), []).expect("the defaults are valid");
        set(&mut loaded.config);
        loaded
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_node_whose_store_writer_has_ended_reports_it_and_fails() {
        let dir = tempfile::tempdir().expect("the temporary folder is writable");
        let anywhere = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))];
        let loaded = settings(|config| {
            config.data_dir = dir.path().to_owned();
            config.http.listen = anywhere.clone();
            config.admin.listen = anywhere.clone();
            config.p2p.offline = true;
        });
        let node = Node::start(&loaded).await.expect("it starts");
        let listeners = [node.addresses.gateway[0], node.addresses.admin[0]];
        for address in listeners {
            assert!(readiness(address).await.starts_with("HTTP/1.1 200"));
        }
        // The writer has ended without a drain.
        node.disk.close().await.expect("it writes what is queued");
        let failure = timeout(PATIENCE, node.failed()).await.expect("in time");
        assert_eq!(failure, EssentialTaskEnded("the store's writer"));
        for address in listeners {
            let answer = readiness(address).await;
            let reports_failure =
                answer.starts_with("HTTP/1.1 503") && answer.contains("failed: the store's writer has ended");
            assert!(reports_failure, "{answer}");
        }
        timeout(PATIENCE, node.drain()).await.expect("it ends in time").expect("drains without an error");
    }
}
