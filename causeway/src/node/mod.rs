//! [`Node`]: wires everything together, from the listeners to the store, and drains it.
//!
//! | module | concern |
//! |---|---|
//! | `sockets`, `activation` | listening sockets, bound here or passed by systemd |
//! | `listeners` | the tasks that serve them, and their certificates |
//! | `assembly` | all other parts, in the order of their start |
//! | `site` | the site of the gateway, if it is one of several |
//!
//! The order of the start lets it fail early: ports are bound before the store is opened, and the store is opened
//! before the node joins the network. Readiness comes last. A drain goes the other way.

pub use self::listeners::Certificates;

mod activation;
mod assembly;
mod listeners;
mod site;
mod sockets;

use self::assembly::Assembly;
use self::listeners::Listeners;
use crate::network::Network;
use crate::process::VERSION_AND_COMMIT;
use ::site::members::Members;
use admin::operations::NodeAddresses;
use anyhow::Context as _;
use cache::BlockStore;
use config::{Flags, ListenAddress, Loaded};
use gateway::listen::drain::Drain;
use gateway::prefetch::Prefetcher;
use p2p_bridge::names::Names;
use p2p_bridge::names::publish::Publisher;
use services::access::authenticator::NO_ADMIN;
use services::access_log::writer::AccessLogWriter;
use services::audit::AuditLog;
use services::denylists::{ListUpdater, Lists};
use services::front_caches::Senders;
use services::health::{Health, Stage};
use services::p2p;
use services::pinning::Pins;
use services::supervision::{EssentialTaskEnded, Supervisor};
use services::telemetry::Exporter;
use services::upkeep::Upkeep;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// What a secret of the node is derived for: the stateless resets of HTTP/3.
const RESET_SECRET: &str = "Causeway: stateless resets of HTTP/3";
/// How long the drain waits for the last lines of the access log.
const ACCESS_LOG_CLOSE_MAX: Duration = Duration::from_secs(5);

/// A node that serves.
pub struct Node {
    health: Arc<Health>,
    store: Arc<dyn BlockStore>,
    /// The members of the site, if the gateway belongs to one.
    members: Option<Arc<Members>>,
    supervisor: Supervisor,
    upkeep: Upkeep,
    keeper: ListUpdater,
    /// The task that applies the rules of the site, if the gateway belongs to one.
    site_rules: Option<AbortOnDropHandle<()>>,
    site_names: Option<AbortOnDropHandle<()>>,
    senders: Senders,
    lists: Arc<Lists>,
    _sweeper: AbortOnDropHandle<()>,
    network: Network,
    pins: Arc<Pins>,
    names: Arc<Names>,
    publisher: Arc<Publisher>,
    certificates: Certificates,
    access_log: Option<Arc<AccessLogWriter>>,
    exporter: Option<Exporter>,
    public: Drain,
    prefetcher: Prefetcher,
    admin: Drain,
    drain_delay: Duration,
    drain_timeout: Duration,
    /// Cancelled when an operator stops the process through the admin API.
    stop: CancellationToken,
    /// The addresses of its listeners.
    pub addresses: NodeAddresses,
}

/// Displays the addresses of a node, as `serve` prints them when the node is ready.
pub struct Ready<'a>(pub &'a NodeAddresses);

impl fmt::Display for Ready<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(addresses) = self;
        writeln!(f, "Causeway {} is ready.", *VERSION_AND_COMMIT)?;
        // The URL of a Unix socket is that of nginx: http://unix:PATH.
        addresses.gateway.iter().try_for_each(|address| writeln!(f, "  gateway   http://{address}"))?;
        addresses.gateway_tls.iter().try_for_each(|address| writeln!(f, "  gateway   https://{address}"))?;
        if !addresses.missing_certificates.is_empty() {
            writeln!(f, "  acme      obtaining certificates for {}", addresses.missing_certificates.join(", "))?;
        }
        addresses.admin.iter().try_for_each(|address| writeln!(f, "  admin     {}", admin_url(addresses, address)))?;
        let console = addresses.admin.iter().find_map(ListenAddress::tcp).map(reachable).filter(|_| addresses.console);
        if let Some(address) = console {
            let url = format!("{}://{address}/", addresses.admin_scheme);
            writeln!(f, "  console   {url} (\"causeway console\" prints it with a token)")?;
        }
        writeln!(f, "  peer id   {}", addresses.peer_id)?;
        addresses.p2p.iter().try_for_each(|address| writeln!(f, "  p2p       {address}"))?;
        if addresses.p2p.is_empty() {
            writeln!(f, "  p2p       offline")?;
        }
        let reachable = addresses.gateway.iter().find_map(ListenAddress::tcp).map(reachable);
        match (reachable, addresses.welcome) {
            (Some(address), Some(root)) => writeln!(f, "  welcome   http://{address}/ipfs/{root}/"),
            // A browser cannot open a Unix socket.
            (None, Some(root)) => writeln!(f, "  welcome   /ipfs/{root}/"),
            (_, None) => writeln!(f, "  welcome   not pinned"),
        }
    }
}

/// The URL of an admin listener, which `--admin` takes.
fn admin_url(addresses: &NodeAddresses, address: &ListenAddress) -> String {
    let scheme = address.tcp().map_or("http", |_| addresses.admin_scheme);
    format!("{scheme}://{address}")
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
    /// [`config::ConfigError`] with the setting that cannot be used, such as a port in use; other errors are about the
    /// store or the network.
    pub async fn start(loaded: &Loaded) -> anyhow::Result<Self> {
        let mut listeners = Listeners::bind(loaded).await?;
        let mut assembly = Assembly::new(loaded)?;
        let (storage, keys) = assembly.storage().await?;
        let reached = assembly.network(&storage, keys).await?;
        let services = assembly.services(&storage, &reached).await?;
        let acme = assembly.acme(&reached)?;
        if acme.is_some() {
            listeners.certificates = Certificates::load(loaded, acme.clone())?;
        }
        let gateway = assembly.gateway(&storage, &reached, acme.as_ref());
        let prefetcher = gateway.prefetcher().clone();
        let addresses = NodeAddresses {
            gateway: listeners.public_addresses(),
            gateway_tls: listeners.public_tls_addresses(),
            admin: listeners.admin_addresses(),
            admin_scheme: listeners.admin_scheme(),
            console: loaded.config.admin.console,
            peer_id: reached.network.peer_id(),
            p2p: reached.network.addresses().await,
            missing_certificates: acme.map(|acme| acme.missing()).unwrap_or_default(),
            welcome: reached.welcome,
        };
        let (health, supervisor) = (Arc::clone(&assembly.health), assembly.supervisor.clone());
        let (metrics, stop) = (Arc::clone(&assembly.metrics), assembly.stop.clone());
        let (access_log, exporter) = (assembly.access_log.clone(), assembly.exporter.take());
        let certificates = listeners.certificates.clone();
        let admin = assembly.admin(&storage, &reached, &services, &gateway, (&addresses, &certificates))?;
        let http = &loaded.config.http;
        let reset_secret = match http.http3 {
            true => p2p::derive_secret(&loaded.config.data_dir, RESET_SECRET)?,
            false => None,
        };
        let (public, admin) = listeners.serve((http, reset_secret), &metrics, (gateway, admin), &supervisor);
        let node = Self {
            certificates,
            access_log,
            exporter,
            public,
            prefetcher,
            admin,
            drain_delay: Duration::from_secs(http.drain_delay_seconds),
            drain_timeout: Duration::from_secs(http.drain_timeout_seconds),
            health,
            upkeep: Upkeep::start(&*storage.store, &loaded.config.cache, &supervisor),
            keeper: storage.lists.keep(&supervisor),
            site_rules: services.site_rules,
            site_names: services.site_names,
            senders: services.senders,
            lists: storage.lists,
            _sweeper: services.parts.start(&supervisor),
            supervisor,
            store: storage.store,
            members: reached.members,
            network: reached.network,
            pins: services.pins,
            names: reached.names,
            publisher: reached.publisher,
            stop,
            addresses,
        };
        node.publish_admin_address().await?;
        node.watch_essential_tasks(&services.audit);
        node.health.enter(Stage::Serving);
        Ok(node)
    }

    /// Has the process end with the first task that it cannot do without. Last, since a start that fails ends them as
    /// well.
    fn watch_essential_tasks(&self, audit: &AuditLog) {
        self.supervisor.watch("the store's writer", self.store.ended());
        self.supervisor.watch("the pin service", self.pins.ended());
        self.supervisor.watch("the publisher of names", self.publisher.failed());
        self.supervisor.watch("the audit log's writer", audit.ended());
        if let Some(bridge) = self.network.bridge() {
            self.supervisor.watch("the peer-to-peer network", bridge.ended());
        }
    }

    /// Publishes the address of the admin listener to commands that find the keys locked.
    async fn publish_admin_address(&self) -> anyhow::Result<()> {
        let first = self.addresses.admin.first();
        let local = first.map(|address| address.tcp().map_or_else(|| address.clone(), |tcp| reachable(tcp).into()));
        let address = local.map_or_else(|| NO_ADMIN.to_owned(), |address| admin_url(&self.addresses, &address));
        let publisher = Arc::clone(&self.publisher);
        let written = tokio::task::spawn_blocking(move || publisher.keys().publish_admin_address(&address)).await;
        written.context("the keys cannot be used")?.context("the keys cannot be used")
    }

    /// Opens the access log again, reads the settings and certificates again, and applies what can change at run time.
    /// `running` has the settings of the start, `flags` those of the command line.
    pub async fn reload(&self, running: &Loaded, flags: &Flags) {
        self.access_log.iter().for_each(|log| log.reopen());
        self.certificates.reload();
        crate::reload::reload(running, flags, &self.lists, &self.names).await;
    }

    /// Waits until an operator stops the process through the admin API.
    pub async fn asked_to_stop(&self) {
        self.stop.cancelled().await;
    }

    /// Waits until an essential task has ended.
    pub async fn failed(&self) -> EssentialTaskEnded {
        self.supervisor.failed().await
    }

    /// Answers `/readyz` with 503 and everything else as before, until load balancers have noticed.
    pub async fn announce_end(&self) {
        self.health.enter(Stage::Ending);
        if !self.drain_delay.is_zero() {
            tracing::info!(
                seconds = self.drain_delay.as_secs(),
                "/readyz answers 503; connections are still accepted (http.drain_delay_seconds)"
            );
            tokio::time::sleep(self.drain_delay).await;
        }
    }

    /// Graceful drain: stops accepting connections, finishes open requests, leaves the network and closes the store.
    ///
    /// # Errors
    /// When the store could not be flushed.
    pub async fn drain(self) -> anyhow::Result<()> {
        self.health.enter(Stage::Ending);
        self.supervisor.expect_end();
        self.prefetcher.stop();
        if !self.public.finish(self.drain_timeout).await {
            tracing::warn!(connections = self.public.open(), "connections were still open after the drain timeout");
        }
        self.upkeep.stop();
        drop(self.keeper);
        drop(self.site_rules);
        drop(self.senders);
        self.publisher.stop();
        drop(self.site_names);
        self.pins.stop().await;
        self.network.shutdown().await;
        if let Some(members) = self.members {
            members.leave().await;
        }
        self.names.save().await;
        if let Some(log) = self.access_log {
            close_access_log(log).await;
        }
        // The store does not wait for a collector.
        let (closed, ()) = tokio::join!(self.store.close(), close_exporter(self.exporter));
        closed.context("the store did not close cleanly")?;
        // Last, so that operators can watch the drain. Requests of this listener are short.
        self.admin.finish(Duration::from_secs(1)).await;
        Ok(())
    }
}

/// Exports the queued traces. A collector that hangs is given a few seconds.
async fn close_exporter(exporter: Option<Exporter>) {
    if let Some(exporter) = exporter
        && !exporter.close().await
    {
        tracing::warn!("the last traces were not exported in time");
    }
}

/// Writes the queued lines of the access log. A disk that hangs delays the drain for a few seconds.
async fn close_access_log(log: Arc<AccessLogWriter>) {
    let closed = tokio::task::spawn_blocking(move || log.close(ACCESS_LOG_CLOSE_MAX)).await;
    if !closed.unwrap_or(false) {
        tracing::warn!("the last lines of the access log were not written in time");
    }
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
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let loaded = settings(|config| {
            config.data_dir = dir.path().to_owned();
            config.http.listen = vec![anywhere.into()];
            config.admin.listen = vec![anywhere.into()];
            config.p2p.offline = true;
        });
        let node = Node::start(&loaded).await.expect("it starts");
        let gateway = node.addresses.gateway[0].tcp().expect("an address");
        let listeners = [gateway, node.addresses.admin[0].tcp().expect("an address")];
        for address in listeners {
            assert!(readiness(address).await.starts_with("HTTP/1.1 200"));
        }
        // The writer has ended without a drain.
        node.store.close().await.expect("it writes what is queued");
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
