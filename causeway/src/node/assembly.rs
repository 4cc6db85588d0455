//! [`Assembly`]: the parts of a node, started in order and wired together.
//!
//! Each stage is a method that takes the stages before it: storage, network, services, gateway, admin. The metrics of
//! all stages are in one registry, and one supervisor watches the essential tasks.
//!
//! Non-goals: the parts themselves; sockets ([`super::listeners`]); the drain of a node ([`super::Node::drain`]).

use super::Certificates;
use super::site::{Site, owners};
use crate::network::Network;
use crate::process;
use admin::Admin;
use admin::kubo_rpc::{self, Rpc};
use admin::operations::health::HealthSources;
use admin::operations::{self, NodeAddresses, Operations};
use anyhow::Context as _;
use cache::{BlockStore, Ram, RamPolicy, TierMetrics, Tiers};
use config::{AccessFormat, AccessLog, Config, ConfigError, Loaded};
use content::{Cid, Policy};
use gateway::access_log::RequestLog;
use gateway::limits::RequestLimits;
use gateway::metrics::HttpMetrics;
use gateway::pipeline::{Gateway, Wiring};
use gateway::represent::encoded::Encoded;
use gateway::resolve::source::Sources;
use p2p_bridge::names::Names;
use p2p_bridge::names::publish::Publisher;
use p2p_bridge::names::store::NameStore;
use prometheus_client::registry::Registry;
use services::access::authenticator::{self, Authenticator};
use services::access::token_store::TokenStore;
use services::access_log::writer::{AccessLogMetrics, AccessLogWriter};
use services::acme::{Acme, AcmeMetrics};
use services::audit::AuditLog;
use services::denylists::served::PeerSource;
use services::denylists::takedown::{FrontCaches, Predictor};
use services::denylists::{Control, Lists, Running};
use services::front_caches::{Caches, Senders};
use services::health::{Degraded, Health};
use services::isolation::Isolation;
use services::limiter::Limiter;
use services::logging::chain;
use services::pinning::{Coordination, PinMetrics, PinNetwork, PinOptions, Pins};
use services::supervision::Supervisor;
use services::telemetry::{self, Exporter, TelemetryMetrics, Tracer};
use services::uploads::resumable::ResumableUploads;
use services::uploads::{self, Uploads};
use services::{p2p, stores, welcome};
use site::members::Members;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The maximum number of concurrent fetches for operators, which have a limit of their own.
const OPERATOR_FETCHES: usize = 2 * operations::OPERATIONS_MAX * operations::warm::FETCHES_MAX;

/// The version of this service in traces.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The maximum number of paths through one block that are purged from caches in front.
const PURGED_PATHS_MAX: usize = 256;

/// The shared state of all stages.
pub(super) struct Assembly<'a> {
    loaded: &'a Loaded,
    registry: Registry,
    pub health: Arc<Health>,
    pub supervisor: Supervisor,
    pub metrics: Arc<HttpMetrics>,
    /// Cancelled when an operator stops the process through the admin API.
    pub stop: CancellationToken,
    /// The queue of access log lines, if they have a format of their own.
    pub access_log: Option<Arc<AccessLogWriter>>,
    /// Begins the traces of requests, if they are exported.
    tracer: Option<Arc<Tracer>>,
    /// The export of traces.
    pub exporter: Option<Exporter>,
}

/// The local tiers, the content policy, and the tokens.
pub(super) struct Storage {
    /// The store with the pins: the own disk, or that of the site.
    pub store: Arc<dyn BlockStore>,
    /// The site of the gateway, if it belongs to one.
    site: Option<Site>,
    /// Refuses content while the gateway is cut off from its site.
    isolation: Option<Arc<Isolation>>,
    pub lists: Arc<Lists>,
    /// The tokens that were created.
    tokens: TokenStore,
    pub tiers: Tiers,
    policy: Arc<dyn Policy>,
}

/// The network, the name resolver, and the welcome site.
pub(super) struct Reached {
    pub network: Network,
    pub names: Arc<Names>,
    pub publisher: Arc<Publisher>,
    pub welcome: Option<Cid>,
    /// The members of the site, if the gateway belongs to one.
    pub members: Option<Arc<Members>>,
    sources: Arc<Sources>,
}

/// Background services: pins, uploads, take-downs, the audit log, front caches.
pub(super) struct Services {
    pub pins: Arc<Pins>,
    pub parts: Arc<ResumableUploads>,
    pub senders: Senders,
    control: Arc<Control>,
    /// The task that applies the rules of the site, if the gateway belongs to one.
    pub site_rules: Option<AbortOnDropHandle<()>>,
    /// The task that applies the changes of other gateways to keys and published names, if they are those of the site.
    pub site_names: Option<AbortOnDropHandle<()>>,
    uploads: Uploads,
    pub audit: Arc<AuditLog>,
    caches: Caches,
}

impl<'a> Assembly<'a> {
    /// An assembly with the settings, and a registry with the metrics that need nothing else. Opens the access log, and
    /// starts the export of traces.
    ///
    /// # Errors
    /// [`ConfigError`] when the file of the access log cannot be written, or a file that the export needs cannot be
    /// read.
    pub fn new(loaded: &'a Loaded) -> Result<Self, ConfigError> {
        let mut registry = Registry::default();
        let health = Arc::<Health>::default();
        process::register(&mut registry, &health, &loaded.config.data_dir);
        let metrics = Arc::new(HttpMetrics::register(&mut registry));
        let supervisor = Supervisor::new(Arc::clone(&health));
        let access_log = access_log(loaded, AccessLogMetrics::register(&mut registry))?;
        let telemetry = telemetry::start(loaded, VERSION, TelemetryMetrics::register(&mut registry))?;
        let (tracer, exporter) = telemetry.unzip();
        let stop = CancellationToken::new();
        Ok(Self { loaded, registry, health, supervisor, metrics, stop, access_log, tracer, exporter })
    }

    /// Opens the store, the site, the keys and the denylists.
    pub async fn storage(&mut self) -> anyhow::Result<(Storage, NameStore)> {
        let Config { data_dir, cache, policy, .. } = &self.loaded.config;
        let disk = stores::open(data_dir, cache).await.map_err(|error| self.data_dir_error(&error))?;
        stores::log_unused(data_dir, cache);
        let keys = p2p::open_keys(self.loaded).await?;
        let site = Site::open(self.loaded, &disk).await?;
        let shared = site.as_ref().and_then(|site| site.names.clone()).map(|names| names as _);
        let keys = NameStore::open(&p2p::state_dir(data_dir), keys, shared);
        let keys = keys.map_err(|error| self.loaded.error("data_dir", error.to_string()))?;
        let lists = match &site {
            None => Lists::open(policy, data_dir).await,
            Some(site) => Lists::open_in_site(policy, data_dir, Arc::clone(&site.control)).await,
        };
        let lists = lists.map_err(|error| self.loaded.error(error.setting, error.to_string()))?;
        let policy: Arc<dyn Policy> = Arc::clone(lists.running()) as _;
        let ram = Ram::with_policy(cache.ram_bytes_max, ram_policy(cache.ram_policy));
        watch_store(&self.health, disk.live_stats());
        let isolation = site.as_ref().and_then(|site| site.isolation(&self.loaded.config.site));
        if let Some(isolation) = isolation.clone() {
            self.health.watch(move || isolation.degraded());
        }
        let (metrics, shared_policy) = (TierMetrics::register(&mut self.registry), Arc::clone(&policy));
        let tiers = match &site {
            None => Tiers::new(ram, disk, shared_policy, metrics),
            Some(site) => Tiers::of_site(ram, disk, site.tier(), shared_policy, metrics),
        };
        let tokens = TokenStore::of(data_dir).with_site(site.as_ref().map(|site| Arc::clone(&site.control)));
        Ok((Storage { store: Arc::clone(tiers.store()), site, isolation, lists, tokens, tiers, policy }, keys))
    }

    /// Joins the network, and resolves and publishes names over it.
    pub async fn network(&mut self, storage: &Storage, keys: NameStore) -> anyhow::Result<Reached> {
        let (loaded, registry) = (self.loaded, &mut self.registry);
        let Storage { store, tiers, policy, .. } = storage;
        let served = PeerSource::of(tiers).refusing_while(storage.isolation.clone());
        let network = Network::start(loaded, Arc::new(served), policy, registry).await?;
        let members = storage.site.as_ref().map(|site| site.join(&network)).transpose()?;
        if let Some((site, members)) = storage.site.as_ref().zip(members.as_ref()) {
            registry.register_collector(Box::new(site.metrics(members)));
            network.answer_members(tiers);
        }
        let welcome = welcome_site(loaded, &**store).await;
        network.provide(&**store, loaded.config.p2p.provide).await;
        let names = network.names(loaded, policy, registry)?;
        let publisher = network.publisher(loaded, keys, &names, registry);
        let http = &loaded.config.http;
        let fetches = Limiter::new(size(http.misses_max), size(http.client_misses_max));
        let sources = Arc::new(network.sources(tiers, fetches, members.as_ref().map(owners)));
        Ok(Reached { network, names, publisher, welcome, members, sources })
    }

    /// Starts the pin service, uploads, take-downs, the audit log, and the purge requests to front caches.
    pub async fn services(&mut self, storage: &Storage, reached: &Reached) -> anyhow::Result<Services> {
        let loaded = self.loaded;
        let Storage { lists, tiers, policy, .. } = storage;
        let pins = self.pins(storage, reached.network.reach(loaded, tiers, Arc::clone(policy))).await?;
        let recheck = Arc::downgrade(&pins);
        lists.on_change(move || recheck.upgrade().iter().for_each(|pins| pins.recheck_withheld()));
        let control = Arc::new(Control::new(Arc::clone(lists), tiers.clone()).with_pins(&pins));
        let (uploads, parts) = self.uploads(storage, &pins)?;
        let site_rules = control.follow_site(&self.supervisor);
        let names = storage.site.as_ref().and_then(|site| site.names.as_ref());
        let site_names = names.map(|names| names.follow(&self.supervisor));
        let audit = AuditLog::open(&loaded.config.data_dir);
        let audit = Arc::new(audit.map_err(|error| self.unwritable("audit.log", &error))?);
        let (caches, senders) = Caches::start(&loaded.config, &audit, &mut self.registry, &self.supervisor)?;
        Ok(Services { pins, parts, senders, control, site_rules, site_names, uploads, audit, caches })
    }

    async fn pins(&mut self, storage: &Storage, reach: PinNetwork) -> anyhow::Result<Arc<Pins>> {
        let Config { data_dir, cache, pinning, .. } = &self.loaded.config;
        let options = PinOptions {
            workers_max: size(pinning.workers_max),
            pins_max: size(pinning.pins_max),
            give_up: Duration::from_hours(pinning.give_up_hours),
            ..PinOptions::default()
        };
        let coordination = match &storage.site {
            Some(site) => site.coordination.clone(),
            None => Coordination::single(
                stores::open_register(data_dir, cache).await.map_err(|error| self.data_dir_error(&error))?,
            ),
        };
        let metrics = PinMetrics::register(&mut self.registry);
        let pins = Pins::start(options, coordination, Arc::clone(&storage.store), reach, metrics).await;
        pins.context("the pin metadata cannot be used")
    }

    /// The upload service, and its resumable uploads.
    fn uploads(&self, storage: &Storage, pins: &Arc<Pins>) -> Result<(Uploads, Arc<ResumableUploads>), ConfigError> {
        let Config { data_dir, uploads, cache, .. } = &self.loaded.config;
        let limits = uploads::UploadLimits::new(uploads, cache);
        let policy = Arc::clone(&storage.policy);
        let service = Uploads::new(&storage.store, policy, Arc::clone(pins), limits, data_dir);
        let service = service.map_err(|error| self.unwritable(uploads::FOLDER, &error))?;
        let (limits, holders) = (uploads.into(), authenticator::principal_lookup(storage.tokens.clone()));
        if let Some(site) = &storage.site {
            let parts = ResumableUploads::of_store(service.clone(), site.uploads(limits), limits, holders);
            return Ok((service, parts));
        }
        let parts =
            ResumableUploads::open(service.clone(), &data_dir.join(uploads::FOLDER).join("parts"), limits, holders);
        let parts = parts.map_err(|error| self.unwritable(uploads::FOLDER, &error))?;
        Ok((service, parts))
    }

    /// Certificates by ACME, if they are turned on.
    ///
    /// # Errors
    /// [`ConfigError`] about the setting that cannot be used.
    pub fn acme(&mut self, reached: &Reached) -> Result<Option<Arc<Acme>>, ConfigError> {
        let metrics = AcmeMetrics::register(&mut self.registry);
        Acme::open(self.loaded, Arc::clone(&reached.names) as Arc<_>, metrics)
    }

    /// The gateway.
    pub fn gateway(&mut self, storage: &Storage, reached: &Reached, acme: Option<&Arc<Acme>>) -> Arc<Gateway> {
        let Config { http, cache, .. } = &self.loaded.config;
        let names = Arc::clone(&reached.names) as Arc<_>;
        let wiring = Wiring {
            sources: Arc::clone(&reached.sources),
            encoded: http.zstd.then(|| Encoded::new(storage.tiers.clone(), cache.encoded_bytes_max)),
            routing: reached.network.routing(self.loaded, &storage.tiers, Arc::clone(&names), &mut self.registry),
            names,
            policy: Arc::clone(&storage.policy),
            metrics: Arc::clone(&self.metrics),
            health: Arc::clone(&self.health),
            welcome: reached.welcome,
        };
        let log = RequestLog::new(&self.loaded.config.log, self.access_log.clone());
        let challenges = acme.map(|acme| Arc::clone(acme.challenges())).unwrap_or_default();
        let gateway = Gateway::new(wiring, http, self.limits()).logging_to(log).tracing_with(self.tracer.clone());
        let store = Arc::clone(storage.tiers.store());
        let gateway = gateway.with_plain_files(Arc::new(move |zstd_file| store.plain_file(zstd_file)));
        let gateway = gateway.with_challenges(challenges).refusing_while(storage.isolation.clone());
        let gateway = Arc::new(gateway);
        let caches = Arc::downgrade(&gateway);
        storage.lists.on_change(move || caches.upgrade().iter().for_each(|gateway| gateway.invalidate_caches()));
        gateway
    }

    /// The state of the admin listener.
    pub fn admin(
        self,
        storage: &Storage,
        reached: &Reached,
        services: &Services,
        gateway: &Arc<Gateway>,
        (addresses, certificates): (&NodeAddresses, &Certificates),
    ) -> anyhow::Result<Admin> {
        let health_sources = health_sources(storage, reached, services, certificates);
        let operations = self.operations(storage, reached, services, gateway, addresses, health_sources);
        operations.sample_statistics();
        services.control.with_front_caches(in_front(&services.caches, gateway));
        services.control.with_predictor(predicted(&operations));
        let rpc = self.kubo_rpc(storage, reached, services);
        Ok(Admin {
            authenticator: self.authenticator(storage.tokens.clone())?,
            registry: self.registry,
            health: self.health,
            publisher: Some(Arc::clone(&reached.publisher)),
            store: Arc::clone(&storage.store),
            sources: Arc::clone(&reached.sources),
            pins: Arc::clone(&services.pins),
            audit: Arc::clone(&services.audit),
            tokens: storage.tokens.clone(),
            rpc,
            operations: Some(operations),
            control: Arc::clone(&services.control),
            uploads: services.uploads.clone(),
            parts: Arc::clone(&services.parts),
            console: self.loaded.config.admin.console,
        })
    }

    fn operations(
        &self,
        storage: &Storage,
        reached: &Reached,
        services: &Services,
        gateway: &Arc<Gateway>,
        addresses: &NodeAddresses,
        health_sources: HealthSources,
    ) -> Operations {
        let fetches = Limiter::new(OPERATOR_FETCHES, OPERATOR_FETCHES);
        Operations::new(operations::Dependencies {
            gateway: Arc::clone(gateway),
            tiers: storage.tiers.clone(),
            sources: Arc::new(reached.network.sources(&storage.tiers, fetches, reached.members.as_ref().map(owners))),
            names: Arc::clone(&reached.names),
            bridge: reached.network.bridge(),
            health: Arc::clone(&self.health),
            metrics: Arc::clone(&self.metrics),
            loaded: Arc::new(self.loaded.clone()),
            addresses: addresses.clone(),
            stop: self.stop.clone(),
            pins: Some(count_pins(&services.pins)),
            site: storage.site.as_ref().zip(reached.members.as_ref()).map(|(site, members)| site.operations(members)),
            decide: Some(decider(storage.lists.running())),
            caches: services.caches.clone(),
            health_sources,
            principals: authenticator::principal_lookup(storage.tokens.clone()),
        })
    }

    fn kubo_rpc(&self, storage: &Storage, reached: &Reached, services: &Services) -> Rpc {
        Rpc::new(kubo_rpc::Dependencies {
            sources: Arc::clone(&reached.sources),
            names: Arc::clone(&reached.names) as _,
            policy: Arc::clone(&storage.policy),
            store: Arc::clone(&storage.store),
            publisher: Arc::clone(&reached.publisher),
            bridge: reached.network.bridge(),
            peer_id: reached.network.peer_id(),
            pins: Arc::clone(&services.pins),
            uploads: services.uploads.clone(),
            limits: self.limits(),
        })
    }

    fn limits(&self) -> RequestLimits {
        let Config { http, cache, names, .. } = &self.loaded.config;
        RequestLimits { client_lookups_max: size(names.client_lookups_max), ..RequestLimits::of(http, cache) }
    }

    /// The authenticator of the admin listener. Creates the token for commands on this data folder if there is none.
    fn authenticator(&self, tokens: TokenStore) -> Result<Authenticator, ConfigError> {
        let Config { data_dir, admin, .. } = &self.loaded.config;
        let local = authenticator::local(data_dir).map_err(|error| self.unwritable("admin.token", &error))?;
        Ok(Authenticator::new(admin.token.reveal(), Some(local), tokens))
    }

    /// An error of the store as an error of the setting `data_dir`.
    fn data_dir_error(&self, error: &anyhow::Error) -> ConfigError {
        self.loaded.error("data_dir", chain(error))
    }

    fn unwritable(&self, file: &str, error: &io::Error) -> ConfigError {
        let path = self.loaded.config.data_dir.join(file);
        self.loaded.error("data_dir", format!("{} cannot be used: {error}", path.display()))
    }
}

/// Opens the access log, if it is enabled and is not part of the log.
fn access_log(loaded: &Loaded, metrics: AccessLogMetrics) -> Result<Option<Arc<AccessLogWriter>>, ConfigError> {
    let log = &loaded.config.log;
    if log.access == AccessLog::Off || log.access_format == AccessFormat::Log {
        if !log.access_file.as_os_str().is_empty() {
            tracing::warn!("log.access_file is set, but nothing is written there: set log.access = \"log\"");
        }
        return Ok(None);
    }
    AccessLogWriter::start(log, metrics).map(Some).map_err(|reason| loaded.error("log.access_file", reason))
}

/// Pins the welcome site, if it is enabled, and returns its root. A failure does not prevent the start.
async fn welcome_site(loaded: &Loaded, store: &dyn BlockStore) -> Option<Cid> {
    let Config { data_dir, http, cache, .. } = &loaded.config;
    if !http.welcome_site {
        return None;
    }
    let note = stores::welcome_record_path(data_dir, cache);
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

/// The caches in front of the gateway, and the paths by which they may have cached a block.
fn in_front(caches: &Caches, gateway: &Arc<Gateway>) -> FrontCaches {
    let gateway = Arc::downgrade(gateway);
    let paths_through = move |cid: &Cid| {
        let gateway = gateway.upgrade();
        gateway.map_or_else(Vec::new, |gateway| gateway.paths_through(cid, PURGED_PATHS_MAX))
    };
    FrontCaches { caches: caches.clone(), paths_through: Arc::new(paths_through) }
}

/// The predicted answers of the gateway, for checks of denylists.
fn predicted(operations: &Operations) -> Predictor {
    let operations = operations.clone();
    Box::new(move |subject| {
        let operations = operations.clone();
        Box::pin(async move { operations.predict(&subject).await })
    })
}

/// Looks up the list and line that block content.
fn decider(rules: &Arc<Running>) -> operations::RuleLookup {
    let rules = Arc::clone(rules);
    Arc::new(move |root, path| {
        let hit = if path.is_empty() { rules.find_block(root) } else { rules.find_path(root, path) };
        hit.map(|hit| format!("{}:{}", hit.list, hit.line))
    })
}

/// What the health of the node reads besides what operations read anyway.
fn health_sources(
    storage: &Storage,
    reached: &Reached,
    services: &Services,
    certificates: &Certificates,
) -> HealthSources {
    let site = storage.site.as_ref().zip(reached.members.as_ref());
    let certificates = certificates.clone();
    HealthSources {
        certificates: Some(Arc::new(move || certificates.states())),
        lists: Some(Arc::clone(&storage.lists)),
        pins: Some(Arc::clone(&services.pins)),
        site: site.map(|(site, members)| site.failures(members)),
    }
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

/// A number of the settings as a `usize`, saturated.
fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
