//! Pin services that share a list of pins, as the gateways of a site do, and the storage of blocks.

use crate::store;
use crate::support::until;
use bytes::Bytes;
use cache::{BlockStore, PinState, Ram, StoreError, TierMetrics, Tiers};
use content::{Block, BlockSource, Cid, DenyList, MemoryBlocks, Policy, SourceError, codec, hashes};
use futures::future::{BoxFuture, FutureExt as _};
use prometheus_client::registry::Registry;
use services::pinning::coordination::SingleService;
use services::pinning::{
    Coordination, Owner, PinMetrics, PinNetwork, PinOptions, PinParameters, Pins, PinsError, Status,
};
use site::database::{ClaimOptions, Database, DatabaseClaims};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const OWNER: &str = "alice";

/// The network, which counts the blocks that it is asked for.
struct Network {
    blocks: MemoryBlocks,
    asked: AtomicUsize,
}

struct Session(Arc<Network>);

impl BlockSource for Session {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        self.0.blocks.get(cid)
    }

    fn has(&self, _: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        async { Ok(false) }.boxed()
    }
}

/// A root and its leaves.
fn dag(name: &str, leaves: usize) -> Vec<Block> {
    let leaf = |number| {
        let content = Bytes::from(format!("{name} {number}"));
        Block::of(codec::RAW, hashes::SHA2_256, 32, content).expect("a block")
    };
    let mut blocks: Vec<Block> = (0..leaves).map(leaf).collect();
    let links: Vec<String> = blocks.iter().map(|leaf| format!("{{\"/\":\"{}\"}}", leaf.cid())).collect();
    let root = Bytes::from(format!("{{\"links\":[{}]}}", links.join(",")));
    blocks.insert(0, Block::of(codec::DAG_JSON, hashes::SHA2_256, 32, root).expect("a block"));
    blocks
}

/// What the services of a site have in common.
struct Site {
    site: store::Site,
    /// A store of none of them.
    store: Arc<dyn BlockStore>,
    network: Arc<Network>,
}

impl Site {
    async fn new() -> Self {
        Self::of(store::Site::new().await).await
    }

    async fn of(site: store::Site) -> Self {
        let network = Network { blocks: MemoryBlocks::new(), asked: AtomicUsize::new(0) };
        Self { store: site.store().await, site, network: Arc::new(network) }
    }

    /// Starts a service with connections of its own.
    async fn start(&self) -> Arc<Pins> {
        self.start_on(self.site.store().await).await
    }

    /// The same on the store of a gateway.
    async fn start_on(&self, store: Arc<dyn BlockStore>) -> Arc<Pins> {
        let log = Arc::new(self.site.server.open("pins").await);
        let database = Database::new(&self.site.server.options("pins")).expect("the settings are valid");
        let claims = DatabaseClaims::new(database, &ClaimOptions::default()).expect("has random numbers");
        let coordination = Coordination { log, claims: Arc::new(claims) };
        let policy: Arc<dyn Policy> = Arc::new(DenyList::default());
        let metrics = TierMetrics::register(&mut Registry::default());
        let tiers = Tiers::new(Ram::new(1 << 20), Arc::clone(&store), Arc::clone(&policy), metrics);
        let network = Arc::clone(&self.network);
        let reach = PinNetwork {
            session: Box::new(move |_| Arc::new(Session(Arc::clone(&network)))),
            ..PinNetwork::local_only(&tiers, policy)
        };
        let metrics = PinMetrics::register(&mut Registry::default());
        Pins::start(PinOptions::default(), coordination, store, reach, metrics).await.expect("starts")
    }

    async fn pinned(&self) -> Vec<Cid> {
        self.store.pins().await.expect("reads").into_iter().map(|pin| pin.root).collect()
    }
}

fn owner() -> Owner {
    Owner { id: OWNER.into(), pins_max: None, bytes_max: None }
}

async fn is_pinned(pins: &Pins, id: &str) {
    until("it is pinned", async || pins.get(OWNER, id).is_some_and(|request| request.status == Status::Pinned)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_are_requested_and_removed_at_any_gateway_and_fetched_once() {
    let site = Site::new().await;
    let members = [site.start().await, site.start().await, site.start().await];
    let dags: Vec<Vec<Block>> = (0..12).map(|number| dag(&format!("dag {number}"), 5)).collect();
    dags.iter().flatten().for_each(|block| site.network.blocks.insert(block));
    let mut requests = Vec::new();
    for (number, blocks) in dags.iter().enumerate() {
        let wanted = PinParameters::new(*blocks[0].cid());
        requests.push(members[number % 3].request(&owner(), wanted).await.expect("is accepted"));
    }
    for request in &requests {
        for member in &members {
            is_pinned(member, &request.id).await;
        }
    }
    assert_eq!(site.network.asked.load(Ordering::Relaxed), 12 * 6, "each block is fetched once");
    assert_eq!(site.pinned().await.len(), 12);
    for (number, request) in requests.iter().enumerate() {
        members[(number + 1) % 3].remove(OWNER, &request.id).await.expect("removes");
    }
    for member in &members {
        until("it is removed", async || requests.iter().all(|request| member.get(OWNER, &request.id).is_none())).await;
    }
    until("all pins are removed", async || site.pinned().await.is_empty()).await;
    // One that joins later knows what is there.
    let request = members[0].request(&owner(), PinParameters::new(*dags[0][0].cid())).await.expect("is accepted");
    is_pinned(&members[0], &request.id).await;
    is_pinned(&*site.start().await, &request.id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_pins_are_shown_and_cannot_be_changed() {
    let mut site = Site::new().await;
    let members = [site.start().await, site.start().await];
    let blocks = dag("dag", 3);
    blocks.iter().for_each(|block| site.network.blocks.insert(block));
    let wanted = || PinParameters::new(*blocks[0].cid());
    let request = members[0].request(&owner(), wanted()).await.expect("is accepted");
    for member in &members {
        is_pinned(member, &request.id).await;
    }
    site.site.server.stop();
    let unavailable = |result: Result<(), PinsError>| {
        assert!(matches!(result, Err(PinsError::Store(StoreError::Unavailable { .. }))), "{result:?}");
    };
    unavailable(members[0].request(&owner(), wanted()).await.map(|_| ()));
    unavailable(members[1].remove(OWNER, &request.id).await);
    for member in &members {
        is_pinned(member, &request.id).await;
    }
    site.site.server.restart().await;
    until("changes are accepted again", async || members[1].remove(OWNER, &request.id).await.is_ok()).await;
    until("the other one learns of it", async || members[0].get(OWNER, &request.id).is_none()).await;
    // Its connections are tried again at intervals.
    until("the pin is removed", async || site.store.pins().await.is_ok_and(|pins| pins.is_empty())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_whose_object_is_found_to_be_missing_is_stored_again_at_once() {
    // Upkeep, by which gateways learn of what others have found, is too seldom to help.
    let site = Site::of(store::Site::with_upkeep(Duration::from_hours(1)).await).await;
    let stores = [site.site.site_store().await, site.site.site_store().await];
    let members = [site.start_on(stores[0].handle()).await, site.start_on(stores[1].handle()).await];
    let blocks = dag("dag", 5);
    blocks.iter().for_each(|block| site.network.blocks.insert(block));
    let request = members[0].request(&owner(), PinParameters::new(*blocks[0].cid())).await.expect("is accepted");
    for member in &members {
        is_pinned(member, &request.id).await;
    }
    let (shared, key) = (site.site.shared().await, blocks[3].key().expect("has a key"));
    let object = async || shared.locate(&[key]).await.expect("is looked up").get(&key).map(|row| row.object);
    let lost = object().await.expect("it is stored");
    std::fs::remove_file(site.site.dir.path().join(lost.name())).expect("is lost");
    let done = stores[1].reconcile(Arc::new(SingleService), false, |_| ()).await.expect("compares");
    assert_eq!(done.found.lost, 1);
    until("it has another object", async || object().await.is_some_and(|object| object != lost)).await;
    let pin = async || site.store.pin(blocks[0].cid()).await.expect("is read");
    until("it is complete", async || pin().await.is_some_and(|pin| pin.state == PinState::Complete)).await;
    for member in &members {
        is_pinned(member, &request.id).await;
    }
}
