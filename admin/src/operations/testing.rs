//! A node of real components without a network, for tests of the operations.

use crate::operations::{Dependencies, NodeAddresses, Operations};
use cache::memory::{self, MemoryOptions};
use cache::{BlockStore, Ram, TierMetrics, Tiers};
use config::Loaded;
use content::car::CarReader;
use content::{Block, BlockSource, Cid, DenyList, MemoryBlocks, Policy};
use gateway::limits::RequestLimits;
use gateway::metrics::HttpMetrics;
use gateway::pipeline::{Gateway, Wiring};
use gateway::represent::encoded::Encoded;
use gateway::resolve::source::{PermitSource, Sources};
use libp2p::PeerId;
use p2p_bridge::names::NamesOptions;
use prometheus_client::registry::Registry;
use services::access::Principal;
use services::health::{Health, Stage};
use services::limiter::Limiter;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_util::sync::CancellationToken;

/// The welcome site, as a source of blocks.
const SITE: &[u8] = include_bytes!("../../../services/assets/welcome.car");

/// A serving node without a network.
pub(crate) struct World {
    pub operations: Operations,
    pub gateway: Arc<Gateway>,
    pub tiers: Tiers,
    pub store: Arc<dyn BlockStore>,
    pub health: Arc<Health>,
    pub stop: CancellationToken,
    /// The blocks that the simulated network provides.
    pub network: Arc<MemoryBlocks>,
    /// Whether the token of the clients is revoked.
    pub is_revoked: Arc<AtomicBool>,
}

/// The root of the welcome site, and its blocks.
pub(crate) async fn site() -> (Cid, Vec<Block>) {
    let mut reader = CarReader::new(SITE).await.expect("an archive");
    let root = reader.roots()[0];
    let mut blocks = Vec::new();
    while let Some(block) = reader.next_block().await {
        blocks.push(block.expect("it is whole"));
    }
    (root, blocks)
}

/// The default settings, changed by `set`.
pub(crate) fn settings(set: impl FnOnce(&mut config::Config)) -> Loaded {
    let mut loaded = config::load(&config::Flags::default(), []).expect("the defaults are good");
    set(&mut loaded.config);
    loaded
}

/// A node over an empty store in memory.
pub(crate) fn world(loaded: Loaded, denied: &[Cid], names: NamesOptions) -> World {
    let store = memory::open(&MemoryOptions::default()).expect("opens");
    world_over(store, Arc::default(), loaded, denied, names)
}

/// A node over a store.
pub(crate) fn world_over(
    store: Arc<dyn BlockStore>,
    health: Arc<Health>,
    loaded: Loaded,
    denied: &[Cid],
    names: NamesOptions,
) -> World {
    let mut registry = Registry::default();
    let policy: Arc<dyn Policy> = Arc::new(DenyList::new(denied.iter().copied()));
    let tier_metrics = TierMetrics::register(&mut registry);
    let tiers = Tiers::new(Ram::new(64 << 20), Arc::clone(&store), Arc::clone(&policy), tier_metrics);
    let network = Arc::new(MemoryBlocks::new());
    let sources = || {
        let (held, tiers, network) = (Arc::new(tiers.held()), tiers.clone(), Arc::clone(&network));
        let upstream = move || Arc::clone(&network) as Arc<dyn BlockSource>;
        Arc::new(Sources {
            local: held,
            open_session: Box::new(move |_: &Cid, gate| {
                Arc::new(tiers.through(Arc::new(PermitSource::new(upstream(), gate))))
            }),
            fetches: Arc::new(Limiter::new(512, 512)),
            policy: Arc::clone(&policy),
        })
    };
    let options = NamesOptions { offline: true, ..names };
    let names = p2p_bridge::Names::new(options, None, &mut registry).expect("good options");
    let metrics = Arc::new(HttpMetrics::register(&mut registry));
    let encoded = Encoded::new(tiers.clone(), 1 << 20);
    let wiring = Wiring {
        sources: sources(),
        encoded: Some(encoded),
        names: Arc::clone(&names) as _,
        policy: Arc::clone(&policy),
        metrics: Arc::clone(&metrics),
        health: Arc::clone(&health),
        routing: None,
        welcome: None,
    };
    let limits = RequestLimits::of(&loaded.config.http, &loaded.config.cache);
    let gateway = Arc::new(Gateway::new(wiring, &loaded.config.http, limits));
    let root = content::cid::parse("bafkqaaa").expect("an empty block");
    let addresses = NodeAddresses {
        gateway: vec![SocketAddr::from(([127, 0, 0, 1], 8080)).into()],
        gateway_tls: Vec::new(),
        missing_certificates: Vec::new(),
        admin: Vec::new(),
        admin_scheme: "http",
        console: true,
        peer_id: PeerId::random(),
        p2p: Vec::new(),
        welcome: Some(root),
    };
    let stop = CancellationToken::new();
    let is_revoked = Arc::new(AtomicBool::new(false));
    let operations = Operations::new(Dependencies {
        gateway: Arc::clone(&gateway),
        tiers: tiers.clone(),
        sources: sources(),
        names,
        bridge: None,
        health: Arc::clone(&health),
        metrics,
        loaded: Arc::new(loaded),
        addresses,
        stop: stop.clone(),
        pins: None,
        site: None,
        decide: None,
        caches: services::front_caches::Caches::default(),
        health_sources: Default::default(),
        principals: {
            let is_revoked = Arc::clone(&is_revoked);
            Arc::new(move |_| (!is_revoked.load(Ordering::Relaxed)).then(Principal::operator))
        },
    });
    health.enter(Stage::Serving);
    World { operations, gateway, tiers, store, health, stop, network, is_revoked }
}
