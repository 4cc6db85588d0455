//! The site of a gateway: from the settings to its store, to what its pin service needs, and to its membership.
//!
//! Non-goals: a gateway that is alone, for which nothing of this is used.

use crate::network::{Network, Owners};
use crate::process::VERSION;
use admin::operations::health::{EngineFailure, EngineFailures, SiteEngine};
use admin::operations::site::{SiteLookup, SiteOperations, SiteReconciliation};
use api::site::{ReconcileLine, ReconcileRequest, ReconcileView, SiteGatewayView, SiteView};
use cache::tiers::SiteTier;
use cache::{BlockStore, StoreError};
use config::{ConfigError, Isolated, Loaded, SiteNames};
use content::stored::CompressionOptions;
use futures::future::FutureExt as _;
use p2p_bridge::Bridge;
use p2p_bridge::member_lookup::MemberAddress;
use p2p_bridge::member_lookup::dialling::best_addresses;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use services::control_log::{ControlLog, ControlLogError};
use services::isolation::Isolation;
use services::name_log::{NameCipher, NameLog};
use services::pinning::Coordination;
use services::pinning::coordination::Claims;
use services::uploads::limits::ResumableLimits;
use site::database::{Database, Identity, Member};
use site::members::{MemberOptions, Members, Reach};
use site::store::reconcile::ReconcileProgress;
use site::store::{SiteStore, SiteStoreOptions};
use site::uploads::{SharedUploadOptions, SharedUploads, UploadEngines};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;

/// How long a request waits for the shared storage before it is sent to the network.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The interval of progress lines of a long-running operation.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// What a gateway has of its site.
pub(super) struct Site {
    store: SiteStore,
    pub coordination: Coordination,
    /// The rules and tokens of all gateways.
    pub control: Arc<ControlLog>,
    /// The IPNS keys and published names of all gateways, if they share them.
    pub names: Option<Arc<NameLog>>,
    uploads: UploadEngines,
    database: Database,
    description: Description,
}

/// What the site is, in words.
#[derive(Clone)]
struct Description {
    name: String,
    database: Arc<str>,
    storage: Arc<str>,
    cache_bytes_max: u64,
}

impl Site {
    /// Opens the site of the settings, if there is one. `disk` is the gateway's own. The rules of the site are in their
    /// list when this returns.
    ///
    /// # Errors
    /// [`ConfigError`] about the setting that cannot be used.
    pub async fn open(loaded: &Loaded, disk: &Arc<dyn BlockStore>) -> Result<Option<Self>, ConfigError> {
        let (settings, cache) = (&loaded.config.site, &loaded.config.cache);
        if !settings.is_on() {
            return Ok(None);
        }
        let cipher = name_cipher(loaded)?;
        let engines = site::open(settings).await.map_err(|error| loaded.error(error.setting, error.reason))?;
        let options = SiteStoreOptions {
            cached_bytes_max: settings.cache_bytes_max,
            zstd: CompressionOptions { level: i32::from(cache.zstd_level) },
            ..SiteStoreOptions::default()
        };
        let store = SiteStore::new(Arc::clone(disk), engines.blocks, &options);
        let description = Description {
            name: settings.name.clone(),
            database: engines.database_name,
            storage: engines.store_name,
            cache_bytes_max: settings.cache_bytes_max,
        };
        let Description { name, database, storage, .. } = &description;
        tracing::info!(%name, %database, %storage, "this gateway is one of the site");
        log_own_pins(&**disk).await.map_err(|error| loaded.error("data_dir", error.to_string()))?;
        let coordination = Coordination { log: Arc::new(engines.log), claims: Arc::new(engines.claims) };
        let names = match engines.names.zip(cipher) {
            None => None,
            Some((log, cipher)) => {
                let opened = NameLog::open(Arc::new(log), Arc::clone(&coordination.claims), cipher).await;
                Some(opened.map_err(|error| loaded.error(error.setting(), error.to_string()))?)
            }
        };
        let control = ControlLog::open(Arc::new(engines.control), &loaded.config.data_dir).await;
        let control = control.map_err(|error| control_error(loaded, &error))?;
        let (uploads, database) = (engines.uploads, engines.database);
        Ok(Some(Self { store, coordination, control, names, uploads, database, description }))
    }

    /// The tier of the site.
    pub fn tier(&self) -> SiteTier {
        let source = self.store.source();
        SiteTier {
            store: self.store.handle(),
            blocks: Arc::new(source.clone()),
            blocks_for_peers: Arc::new(source.for_peers()),
            wait_max: WAIT_MAX,
        }
    }

    /// Refuses content while the gateway is cut off, if the settings say so.
    pub fn isolation(&self, settings: &config::Site) -> Option<Arc<Isolation>> {
        let (after, control) = (Duration::from_secs(settings.isolated_after_seconds), Arc::clone(&self.control));
        match settings.isolated {
            Isolated::Serve => None,
            Isolated::Refuse => Some(Arc::new(Isolation::new(after, move || control.age_in_force()))),
        }
    }

    /// The resumable uploads of the site, with the limits of this gateway.
    pub fn uploads(&self, limits: ResumableLimits) -> Arc<SharedUploads> {
        Arc::new(SharedUploads::new(self.uploads.clone(), SharedUploadOptions::new(limits)))
    }

    /// Makes the gateway a member, which the others reach at the addresses of its listeners for peers.
    ///
    /// # Errors
    /// Without random numbers.
    pub fn join(&self, network: &Network) -> anyhow::Result<Arc<Members>> {
        // Only Linux has the file.
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let me = Identity { peer_id: network.peer_id().to_string(), host, version: VERSION.to_owned() };
        let members = Members::join(self.database.clone(), me, reach(network.bridge()), &MemberOptions::default());
        let members = Arc::new(members?);
        self.store.set_members(Arc::clone(&members));
        Ok(members)
    }

    /// The engines that cannot be used.
    pub fn failures(&self, members: &Arc<Members>) -> EngineFailures {
        let (store, members, description) = (self.store.clone(), Arc::clone(members), self.description.clone());
        Arc::new(move || {
            let Description { database, storage, .. } = &description;
            let engines = [
                (SiteEngine::Database, database, members.database().failure()),
                (SiteEngine::Storage, storage, store.storage().failure()),
            ];
            let failure =
                |(engine, name, failure): (SiteEngine, &Arc<str>, Option<site::engine_state::EngineFailure>)| {
                    let site::engine_state::EngineFailure { lasting, reason } = failure?;
                    Some(EngineFailure { engine, name: name.to_string(), lasting, reason: reason.to_string() })
                };
            engines.into_iter().filter_map(failure).collect()
        })
    }

    /// The metrics of the site.
    pub fn metrics(&self, members: &Arc<Members>) -> SiteMetrics {
        let (store, members, control) = (self.store.clone(), Arc::clone(members), Arc::clone(&self.control));
        SiteMetrics { store, members, control }
    }

    /// The operations of the site.
    pub fn operations(&self, members: &Arc<Members>) -> SiteOperations {
        SiteOperations { lookup: self.lookup(members), reconcile: self.reconciliation() }
    }

    fn reconciliation(&self) -> SiteReconciliation {
        let (store, claims) = (self.store.clone(), Arc::clone(&self.coordination.claims));
        Arc::new(move |request, lines| reconcile(store.clone(), Arc::clone(&claims), request, lines).boxed())
    }

    /// Reads the state of the site.
    fn lookup(&self, members: &Arc<Members>) -> SiteLookup {
        let (store, members, description) = (self.store.clone(), Arc::clone(members), self.description.clone());
        Arc::new(move || {
            let (store, members, description) = (store.clone(), Arc::clone(&members), description.clone());
            async move { view(&store, &members, description).await }.boxed()
        })
    }
}

/// What encrypts the IPNS keys of the site, if the gateways share them.
fn name_cipher(loaded: &Loaded) -> Result<Option<NameCipher>, ConfigError> {
    let settings = &loaded.config.site;
    if settings.names == SiteNames::Own {
        return Ok(None);
    }
    let cipher = NameCipher::read(&settings.names_key_file, &settings.name);
    cipher.map(Some).map_err(|reason| loaded.error("site.names_key_file", reason))
}

/// Compares the storage with the index, and sends lines.
async fn reconcile(
    store: SiteStore,
    claims: Arc<dyn Claims>,
    request: ReconcileRequest,
    lines: mpsc::Sender<ReconcileLine>,
) {
    let ReconcileRequest { dry_run } = request;
    let mut sent: Option<Instant> = None;
    let report = |progress: &ReconcileProgress| {
        if sent.is_none_or(|sent| sent.elapsed() >= PROGRESS_EVERY) {
            sent = Some(Instant::now());
            // A slow client gets fewer of them.
            _ = lines.try_send(ReconcileLine::Progress(reconcile_view(progress, dry_run)));
        }
    };
    let line = match store.reconcile(claims, dry_run, report).await {
        Ok(done) => {
            let found = reconcile_view(&done, dry_run);
            tracing::info!(?found, "the storage of the site was compared with its index on request");
            ReconcileLine::Report(found)
        }
        Err(error) => ReconcileLine::Error(error.to_string()),
    };
    // Otherwise the client has disconnected.
    _ = lines.send(line).await;
}

fn reconcile_view(progress: &ReconcileProgress, dry_run: bool) -> ReconcileView {
    let ReconcileProgress { slots, found } = progress;
    ReconcileView {
        dry_run,
        parts: *slots,
        objects: found.objects,
        orphans: found.orphans,
        foreign: found.foreign,
        lost_blocks: found.lost,
    }
}

/// An error of the rules and tokens of the site, as an error of a setting.
fn control_error(loaded: &Loaded, error: &ControlLogError) -> ConfigError {
    let setting = match error {
        ControlLogError::Copy(_) => "data_dir",
        ControlLogError::Log(_)
        | ControlLogError::Busy
        | ControlLogError::ListFull { .. }
        | ControlLogError::NoNumbersLeft => "site.database",
    };
    loaded.error(setting, error.to_string())
}

async fn view(store: &SiteStore, members: &Members, description: Description) -> Result<SiteView, StoreError> {
    let (listed, figures) = tokio::try_join!(members.list(), store.shared_figures())?;
    let Description { name, database, storage, cache_bytes_max } = description;
    Ok(SiteView {
        name,
        database: database.to_string(),
        storage: storage.to_string(),
        gateways: listed.into_iter().map(|member| gateway_view(member, members.peer_id())).collect(),
        pins: figures.pins,
        partial_pins: figures.partial_pins,
        pinned_blocks: figures.pinned_blocks,
        pinned_bytes: figures.pinned_bytes,
        cached_blocks: figures.cached_blocks,
        cached_bytes: figures.cached_bytes,
        cache_bytes_max,
        pending_objects: figures.pending_objects,
    })
}

fn gateway_view(member: Member, this: &str) -> SiteGatewayView {
    let Member { peer_id, host, version, started, seen_ago, is_alive, addresses: _ } = member;
    SiteGatewayView {
        is_this: peer_id == this,
        peer_id,
        host,
        version,
        started: started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
        seen_seconds_ago: api::text::seconds(seen_ago),
        is_alive,
    }
}

/// Logs pins of a time when the gateway was alone, which are not those of the site.
async fn log_own_pins(disk: &dyn BlockStore) -> Result<(), StoreError> {
    let pins = disk.pins().await?.len();
    if pins > 0 {
        tracing::warn!(
            pins,
            "this gateway has pins of its own from before it was one of a site: their blocks stay on its disk, but \
             they are not listed, and cannot be removed; to move them into the site, run it without the [site] lines, \
             and \"causeway site import\" at another gateway of the site"
        );
    }
    Ok(())
}

/// Where the others reach this gateway, and who they are for the network. In offline mode neither.
fn reach(bridge: Option<Bridge>) -> Reach {
    let told = bridge.clone();
    Reach {
        addresses: Box::new(move || {
            let bridge = bridge.clone();
            async move {
                let Some(bridge) = bridge else { return Vec::new() };
                best_addresses(bridge.addresses().await).iter().map(ToString::to_string).collect()
            }
            .boxed()
        }),
        on_members: Box::new(move |members| {
            let peers = members.iter().filter_map(|member| member.peer_id.parse().ok()).collect();
            told.iter().for_each(|bridge| bridge.set_members(HashSet::clone(&peers)));
        }),
    }
}

/// The gateways that own roots, as they are asked.
pub(super) fn owners(members: &Arc<Members>) -> Owners {
    let members = Arc::clone(members);
    Arc::new(move |root| {
        let Member { peer_id, addresses, .. } = members.owner(&root.hash().to_bytes())?;
        // What is no address of this release is left out.
        let addresses = addresses.iter().filter_map(|address| address.parse().ok()).collect();
        Some(MemberAddress { peer: peer_id.parse().ok()?, addresses })
    })
}

/// Whether the engines of the site can be used, the age of its rules, and the number of its gateways.
#[derive(Debug)]
pub(super) struct SiteMetrics {
    store: SiteStore,
    members: Arc<Members>,
    control: Arc<ControlLog>,
}

impl Collector for SiteMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "1 while this gateway can use the database and the storage of its site, else 0";
        let mut family = encoder.encode_descriptor("causeway_site_engine_up", help, None, MetricType::Gauge)?;
        let engines = [("database", self.members.database().failure()), ("storage", self.store.storage().failure())];
        for (engine, failure) in engines {
            let up = ConstGauge::new(i64::from(failure.is_none()));
            up.encode(family.encode_family(&[("engine", engine)])?)?;
        }
        let age = ConstGauge::new(self.control.age_in_force().as_secs_f64());
        let help = "Seconds since the rules of the site were last read and put in force at this gateway";
        age.encode(encoder.encode_descriptor("causeway_site_rules_age_seconds", help, None, age.metric_type())?)?;
        // Left out while it is not known.
        let Some(gateways) = self.members.count_alive() else { return Ok(()) };
        let gateways = ConstGauge::new(i64::try_from(gateways).unwrap_or(i64::MAX));
        let help = "Running gateways of the site, this one included";
        gateways.encode(encoder.encode_descriptor("causeway_site_gateways", help, None, gateways.metric_type())?)
    }
}
