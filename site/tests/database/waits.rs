//! Changes of the index that wait for each other, in every order that matters: a transaction of the test holds the row
//! of a block until both of them wait for it, or one of them has to be behind the other.

use crate::support::{Postgres, until};
use cache::PinState;
use content::BlockKey;
use content::stored::Shape;
use futures::future::BoxFuture;
use site::blocks::{BlockIndex, Committed, FinishedPin, ObjectId, PinAttempt, WrittenObject, index_suite};
use site::database::{Database, DatabaseIndex, IndexOptions};
use std::sync::Arc;
use tokio_postgres::{Client, NoTls};

/// The block of each test, a root of its own pin.
const BLOCK: u64 = 1;

/// A server, and gateways whose statements do not wait for each other in one session.
struct World<'a> {
    server: &'a Postgres,
    schema: String,
    gateways: [Arc<DatabaseIndex>; 3],
    holder: Client,
}

/// A change that runs while the test goes on.
type Running<T> = tokio::task::JoinHandle<T>;

impl<'a> World<'a> {
    /// A site of its own.
    async fn new(server: &'a Postgres, site: &str) -> Self {
        drop(server.open(site).await);
        let database = Database::new(&server.options(site)).expect("the settings are valid");
        let gateway = || Arc::new(DatabaseIndex::new(database.clone(), IndexOptions::default()));
        let gateways = [gateway(), gateway(), gateway()];
        let (holder, connection) = tokio_postgres::connect(&server.options(site).url, NoTls).await.expect("connects");
        tokio::spawn(connection);
        Self { server, schema: format!("\"causeway_{site}\""), gateways, holder }
    }

    /// Holds the row of the block.
    async fn hold(&self) {
        let held = format!("BEGIN; SELECT FROM {}.block FOR UPDATE", self.schema);
        self.holder.batch_execute(&held).await.expect("is held");
    }

    async fn release(&self) {
        self.holder.batch_execute("COMMIT").await.expect("is released");
    }

    /// Starts a change, which waits for others.
    async fn start<T: Send + 'static>(
        &self,
        gateway: usize,
        waiting: usize,
        change: impl FnOnce(Arc<DatabaseIndex>) -> BoxFuture<'static, T>,
    ) -> Running<T> {
        let running = tokio::spawn(change(Arc::clone(&self.gateways[gateway])));
        let count = "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let expected = [waiting.to_string()];
        until("it waits", async || self.server.sql(count).await.is_ok_and(|count| count == expected)).await;
        running
    }

    fn index(&self) -> &dyn BlockIndex {
        &*self.gateways[0]
    }

    /// Stores the block with an object of this generation.
    async fn store(&self, generation: u64, pin: Option<PinAttempt>) {
        self.index().register(vec![object(generation)]).await.expect("registers");
        let stored = self.index().commit(vec![written(generation)], pin.map(|pin| pin.id)).await.expect("commits");
        assert_eq!(stored, Committed::Blocks(vec![object(generation)]));
    }

    async fn begin(&self, root: u64) -> PinAttempt {
        self.index().begin_pin(index_suite::cid(root), None).await.expect("begins")
    }

    /// A block that a pin has is not evicted, and one that none has is.
    async fn check(&self, is_pinned: bool, is_stored: bool) {
        let wrong = format!(
            "SELECT count(*)::text FROM {0}.block
            WHERE pinned <> EXISTS (SELECT FROM {0}.member WHERE member.key = block.key)",
            self.schema
        );
        assert_eq!(self.server.sql(&wrong).await.expect("is asked"), ["0"]);
        let evicted = self.index().evict(0, 10).await.expect("evicts");
        assert_eq!(evicted.len(), usize::from(is_stored && !is_pinned), "{evicted:?}");
    }
}

fn key() -> BlockKey {
    index_suite::key(BLOCK)
}

fn object(generation: u64) -> ObjectId {
    ObjectId { key: key(), generation }
}

fn written(generation: u64) -> WrittenObject {
    WrittenObject { object: object(generation), bytes: 100, shape: Shape::Raw { block_bytes: 10 } }
}

macro_rules! change {
    ($index:ident => $call:expr) => {
        |$index: Arc<DatabaseIndex>| Box::pin(async move { $call.await.expect("is made") })
    };
}

/// One server for all, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_wait_for_each_other_agree() {
    let server = Postgres::start().await;
    a_block_that_is_released_and_added_again_stays_pinned(&server).await;
    a_lost_block_that_is_stored_and_added_while_it_is_released_stays_pinned(&server).await;
    a_block_that_is_stored_again_while_it_is_released_can_be_evicted(&server).await;
    a_pin_that_gets_a_block_while_it_is_lost_is_not_completed(&server).await;
    a_block_is_evicted_or_becomes_a_member(&server).await;
    an_object_is_swept_or_committed(&server).await;
    an_object_that_is_being_committed_is_no_orphan(&server).await;
}

/// The last pin is removed while another one gets the block.
async fn a_block_that_is_released_and_added_again_stays_pinned(server: &Postgres) {
    for added_first in [false, true] {
        let world = World::new(server, &format!("0-{added_first}")).await;
        let (first, second) = (world.begin(BLOCK).await, world.begin(9).await);
        world.store(1, Some(first)).await;
        world.index().remove_pin(first.root, None).await.expect("is removed");
        world.hold().await;
        let id = second.id;
        let (releasing, adding);
        if added_first {
            adding = world.start(1, 1, change!(index => index.add_members(vec![key()], id))).await;
            releasing = world.start(2, 2, change!(index => index.release_members(10))).await;
        } else {
            releasing = world.start(2, 1, change!(index => index.release_members(10))).await;
            adding = world.start(1, 2, change!(index => index.add_members(vec![key()], id))).await;
        }
        world.release().await;
        assert_eq!(adding.await.expect("runs"), Committed::Blocks(vec![object(1)]));
        assert!(releasing.await.expect("runs"));
        world.check(true, true).await;
    }
}

/// A lost block is stored again while its only pin is released and another pin gets it.
async fn a_lost_block_that_is_stored_and_added_while_it_is_released_stays_pinned(server: &Postgres) {
    let world = World::new(server, "1").await;
    let (first, second) = (world.begin(BLOCK).await, world.begin(9).await);
    world.store(1, Some(first)).await;
    assert_eq!(world.index().lose(object(1)).await.expect("is asked"), Some(vec![first.root]));
    world.index().remove_pin(first.root, None).await.expect("is removed");
    world.index().register(vec![object(2)]).await.expect("registers");
    world.hold().await;
    let releasing = world.start(2, 1, change!(index => index.release_members(10))).await;
    let id = second.id;
    let storing = world.start(1, 2, change!(index => index.commit(vec![written(2)], Some(id)))).await;
    world.release().await;
    assert!(releasing.await.expect("runs"));
    assert_eq!(storing.await.expect("runs"), Committed::Blocks(vec![object(2)]));
    world.check(true, true).await;
}

/// A block is stored without a pin while its last pin is released: it can be evicted.
async fn a_block_that_is_stored_again_while_it_is_released_can_be_evicted(server: &Postgres) {
    let world = World::new(server, "2").await;
    let first = world.begin(BLOCK).await;
    world.store(1, Some(first)).await;
    world.index().remove_pin(first.root, None).await.expect("is removed");
    world.index().register(vec![object(2)]).await.expect("registers");
    world.hold().await;
    let releasing = world.start(2, 1, change!(index => index.release_members(10))).await;
    let storing = world.start(1, 2, change!(index => index.commit(vec![written(2)], None))).await;
    world.release().await;
    assert!(releasing.await.expect("runs"));
    assert_eq!(storing.await.expect("runs"), Committed::Blocks(vec![object(1)]));
    world.check(false, true).await;
}

/// A block is lost while a pin gets it: the pin cannot be completed with it.
async fn a_pin_that_gets_a_block_while_it_is_lost_is_not_completed(server: &Postgres) {
    for added_first in [false, true] {
        let world = World::new(server, &format!("3-{added_first}")).await;
        let (first, second) = (world.begin(BLOCK).await, world.begin(BLOCK + 1).await);
        world.store(1, Some(first)).await;
        assert!(matches!(world.index().finish_pin(first).await, Ok(FinishedPin::Complete(_))));
        world.hold().await;
        let id = second.id;
        let (losing, adding);
        if added_first {
            adding = world.start(1, 1, change!(index => index.add_members(vec![key()], id))).await;
            losing = world.start(2, 2, change!(index => index.lose(object(1)))).await;
        } else {
            losing = world.start(2, 1, change!(index => index.lose(object(1)))).await;
            adding = world.start(1, 2, change!(index => index.add_members(vec![key()], id))).await;
        }
        world.release().await;
        let roots = losing.await.expect("runs").expect("is lost");
        let is_added = adding.await.expect("runs") == Committed::Blocks(vec![object(1)]);
        assert_eq!(roots.contains(&second.root), is_added, "a pin that has the block learns of its loss");
        assert!(roots.contains(&first.root));
        let pin = world.index().pin(first.root).await.expect("is read").expect("exists");
        assert_eq!(pin.state, PinState::Partial);
        if is_added {
            assert_eq!(world.index().finish_pin(second).await.expect("is asked"), FinishedPin::Lost);
        }
        world.check(true, false).await;
    }
}

/// A block is evicted while a pin gets it: it is either.
async fn a_block_is_evicted_or_becomes_a_member(server: &Postgres) {
    let world = World::new(server, "4").await;
    let pin = world.begin(BLOCK).await;
    world.store(1, None).await;
    world.hold().await;
    let id = pin.id;
    let adding = world.start(1, 1, change!(index => index.add_members(vec![key()], id))).await;
    // It does not wait, and finds nothing.
    assert_eq!(world.gateways[2].evict(0, 10).await.expect("evicts"), Vec::new());
    world.release().await;
    assert_eq!(adding.await.expect("runs"), Committed::Blocks(vec![object(1)]));
    world.check(true, true).await;
}

/// An object that is about to be deleted does not become that of a block.
async fn an_object_is_swept_or_committed(server: &Postgres) {
    let world = World::new(server, "5").await;
    world.store(1, None).await;
    world.index().register(vec![object(2)]).await.expect("registers");
    assert_eq!(world.index().evict(0, 10).await.expect("evicts").len(), 1);
    let held = format!("BEGIN; SELECT FROM {}.pending_object WHERE NOT deleting FOR UPDATE", world.schema);
    world.holder.batch_execute(&held).await.expect("is held");
    let storing = world.start(1, 1, change!(index => index.commit(vec![written(2)], None))).await;
    let marked = format!("UPDATE {}.pending_object SET deleting = true; COMMIT", world.schema);
    world.holder.batch_execute(&marked).await.expect("is marked");
    assert_eq!(storing.await.expect("runs"), Committed::Blocks(Vec::new()));
    world.check(false, false).await;
}

/// An object that was listed becomes that of its block.
async fn an_object_that_is_being_committed_is_no_orphan(server: &Postgres) {
    let world = World::new(server, "6").await;
    world.index().register(vec![object(1), object(2)]).await.expect("registers");
    let commit = format!(
        "BEGIN;
        INSERT INTO {0}.block (key, generation, bytes, block_bytes, form, slot, pinned)
            SELECT key, generation, 100, 10, 0, 0, false FROM {0}.pending_object WHERE generation = 1;
        DELETE FROM {0}.pending_object",
        world.schema
    );
    world.holder.batch_execute(&commit).await.expect("is made");
    // The object 2 is that of no block, and is not pending any more.
    let listed = vec![object(1), object(2)];
    let registering = world.start(1, 1, change!(index => index.register_orphans(listed))).await;
    world.release().await;
    assert_eq!(registering.await.expect("runs"), [object(2)]);
    let pending = format!("SELECT generation::text FROM {}.pending_object", world.schema);
    assert_eq!(server.sql(&pending).await.expect("is asked"), ["2"]);
    world.check(false, true).await;
}
