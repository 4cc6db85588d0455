//! [`DatabaseIndex`]: the index of the blocks of a site, in its database.
//!
//! A change is one statement, or one call of a function whose statements are one transaction. Under `READ COMMITTED` a
//! statement that has waited for a row sees it as it is then, but the other rows as they were when it began. Where both
//! matter, as for the last pin that has a block, the row is locked by a statement before.
//!
//! *Order of locks*, so that transactions do not wait for each other in a circle: pins, pending objects, blocks in the
//! order of their keys. Should they nevertheless, the server ends one, which is repeated.

use super::address::Database;
use super::error::DatabaseError;
use super::locator::Locator;
use super::reconnecting::ReconnectingSession;
use super::session::Session;
use super::{Parameter, milliseconds};
use crate::blocks::{
    BlockIndex, BlockRow, Committed, EvictedObject, FinishedPin, Form, IndexFigures, IndexIdentity, Listed, LostBlock,
    ObjectId, PinAttempt, PinId, WrittenObject,
};
use cache::{PinState, PinSummary, StoreError};
use content::{BlockKey, Cid};
use futures::future::{BoxFuture, FutureExt as _};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

/// How often a statement is repeated that the server has ended because others waited for it and it for them.
const ATTEMPTS_MAX: usize = 5;
/// How long a look-up may take until the caller looks elsewhere.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The statements, with the name of the schema.
#[derive(Debug)]
struct Statements {
    register: String,
    commit: String,
    add_members: String,
    locate: String,
    mark_used: String,
    lose: String,
    pinned: String,
    lost: String,
    pins_with_losses: String,
    evict: String,
    evict_blocks: String,
    sweep: String,
    remove_pending: String,
    register_orphans: String,
    orphans: String,
    objects_of_slot: String,
    begin_pin: String,
    finish_pin: String,
    unfinished: String,
    remove_pin: String,
    release_members: String,
    pin: String,
    pins: String,
    identity: String,
    set_marked: String,
    figures: String,
}

impl Statements {
    fn of(schema: &str) -> Self {
        // A pin that accepts members. Its row is locked until the end, so that it is not removed meanwhile.
        let alive = |parameter: &str| {
            format!("SELECT id FROM \"{schema}\".pin WHERE id = {parameter} AND NOT removed FOR NO KEY UPDATE")
        };
        // The members that a statement adds, of its blocks.
        let added = |blocks: &str| {
            format!(
                "INSERT INTO \"{schema}\".member (pin, key) SELECT alive.id, {blocks}.key FROM alive, {blocks}
                ORDER BY {blocks}.key ON CONFLICT DO NOTHING RETURNING key"
            )
        };
        let counted = |blocks: &str| {
            format!(
                "UPDATE \"{schema}\".pin SET blocks = blocks + (SELECT count(*) FROM added),
                    bytes = bytes + (SELECT coalesce(sum({blocks}.block_bytes), 0) FROM added JOIN {blocks} USING (key))
                FROM alive WHERE pin.id = alive.id"
            )
        };
        let summary = "id, root, name, (extract(epoch FROM created) * 1000)::bigint, complete, blocks, bytes, packed";
        Self {
            register: format!(
                "INSERT INTO \"{schema}\".pending_object (generation, key) SELECT * FROM unnest($1::bigint[], $2::bytea[])"
            ),
            // $1 to $5: the objects; $6: the pin.
            commit: format!(
                "WITH alive AS ({alive}), written AS (
                    SELECT given.* FROM unnest($1::bigint[], $2::bytea[], $3::integer[], $4::integer[], $5::integer[])
                        AS given (generation, key, bytes, block_bytes, form)
                    JOIN \"{schema}\".pending_object AS pending USING (generation)
                    WHERE NOT pending.deleting AND pending.key = given.key
                        AND ($6::bigint IS NULL OR EXISTS (SELECT FROM alive))
                    ORDER BY given.key FOR UPDATE OF pending
                ), kept AS (
                    INSERT INTO \"{schema}\".block AS stored (key, generation, bytes, block_bytes, form, slot, pinned)
                    SELECT DISTINCT ON (key) key, generation, bytes, block_bytes, form,
                        get_byte(key, length(key) - 1), $6::bigint IS NOT NULL
                    FROM written ORDER BY key
                    ON CONFLICT (key) DO UPDATE SET
                        generation = coalesce(stored.generation, excluded.generation),
                        bytes = CASE WHEN stored.generation IS NULL THEN excluded.bytes ELSE stored.bytes END,
                        form = CASE WHEN stored.generation IS NULL THEN excluded.form ELSE stored.form END,
                        pinned = stored.pinned OR excluded.pinned
                    RETURNING key, generation, block_bytes
                ), settled AS (
                    DELETE FROM \"{schema}\".pending_object USING kept
                    WHERE pending_object.generation = kept.generation
                ), added AS ({added}), counted AS ({counted})
                SELECT EXISTS (SELECT FROM alive), kept.key, kept.generation
                FROM (VALUES (1)) AS one LEFT JOIN kept ON true",
                alive = alive("$6"),
                added = added("kept"),
                counted = counted("kept"),
            ),
            // $1: the keys; $2: the pin.
            add_members: format!(
                "WITH alive AS ({alive}), held AS (
                    SELECT key, generation, block_bytes, pinned FROM \"{schema}\".block
                    WHERE key = ANY($1::bytea[]) AND generation IS NOT NULL AND EXISTS (SELECT FROM alive)
                    ORDER BY key FOR NO KEY UPDATE
                ), marked AS (
                    UPDATE \"{schema}\".block SET pinned = true FROM held WHERE block.key = held.key AND NOT held.pinned
                ), added AS ({added}), counted AS ({counted})
                SELECT EXISTS (SELECT FROM alive), held.key, held.generation
                FROM (VALUES (1)) AS one LEFT JOIN held ON true",
                alive = alive("$2"),
                added = added("held"),
                counted = counted("held"),
            ),
            locate: format!(
                "SELECT key, generation, bytes, block_bytes, form FROM \"{schema}\".block
                WHERE key = ANY($1) AND generation IS NOT NULL"
            ),
            // $2: the precision, so that a block that is used often is not written each time.
            mark_used: format!(
                "WITH chosen AS (
                    SELECT key FROM \"{schema}\".block
                    WHERE key = ANY($1) AND NOT pinned AND used <= clock_timestamp() - $2 * interval '1 millisecond'
                    ORDER BY key FOR NO KEY UPDATE SKIP LOCKED
                ) UPDATE \"{schema}\".block SET used = clock_timestamp() FROM chosen WHERE block.key = chosen.key"
            ),
            lose: format!("SELECT \"{schema}\".lose_block($1, $2)"),
            pinned: format!("SELECT key FROM \"{schema}\".block WHERE key = ANY($1) AND pinned"),
            lost: format!(
                "SELECT key, block_bytes FROM \"{schema}\".member JOIN \"{schema}\".block USING (key)
                WHERE member.pin = (SELECT id FROM \"{schema}\".pin WHERE root = $1 AND NOT removed AND NOT complete)
                    AND member.key > $2 AND block.generation IS NULL
                ORDER BY key LIMIT $3"
            ),
            pins_with_losses: format!(
                "SELECT root FROM \"{schema}\".pin
                WHERE NOT removed AND lost_at > statement_timestamp() - $1 * interval '1 millisecond'"
            ),
            evict: format!("SELECT * FROM \"{schema}\".evict_blocks($1, $2)"),
            // A block that a pin gets meanwhile is pinned by the time that this has waited for it.
            evict_blocks: format!(
                "WITH chosen AS (
                    SELECT key FROM \"{schema}\".block WHERE key = ANY($1) AND NOT pinned ORDER BY key FOR UPDATE
                ), gone AS (
                    DELETE FROM \"{schema}\".block USING chosen WHERE block.key = chosen.key
                    RETURNING block.key, block.generation, block.bytes
                ), pending AS (
                    INSERT INTO \"{schema}\".pending_object (generation, key, deleting)
                    SELECT generation, key, true FROM gone
                )
                SELECT key, generation, bytes FROM gone"
            ),
            sweep: format!(
                "WITH due AS (
                    SELECT generation FROM \"{schema}\".pending_object
                    WHERE since <= statement_timestamp() - $1 * interval '1 millisecond'
                    ORDER BY since LIMIT $2 FOR UPDATE SKIP LOCKED
                )
                UPDATE \"{schema}\".pending_object AS pending SET deleting = true, since = clock_timestamp()
                FROM due WHERE pending.generation = due.generation
                RETURNING pending.key, pending.generation"
            ),
            remove_pending: format!("DELETE FROM \"{schema}\".pending_object WHERE generation = ANY($1)"),
            register_orphans: format!("SELECT * FROM \"{schema}\".register_orphans($1, $2)"),
            orphans: format!(
                "SELECT given.key, given.generation FROM unnest($1::bigint[], $2::bytea[]) AS given (generation, key)
                WHERE NOT EXISTS (SELECT FROM \"{schema}\".block
                        WHERE block.key = given.key AND block.generation = given.generation)
                    AND NOT EXISTS (SELECT FROM \"{schema}\".pending_object
                        WHERE pending_object.generation = given.generation)"
            ),
            objects_of_slot: format!(
                "SELECT key, generation FROM \"{schema}\".block
                WHERE slot = $1 AND key > $2 AND generation IS NOT NULL AND (pinned OR NOT $4)
                ORDER BY key LIMIT $3"
            ),
            begin_pin: format!(
                "INSERT INTO \"{schema}\".pin AS existing (id, root, name) VALUES ($1, $2, $3)
                ON CONFLICT (root) WHERE NOT removed DO UPDATE SET name = coalesce(excluded.name, existing.name)
                RETURNING id, losses"
            ),
            // $1: the pin; $2: its losses when the attempt began; $3: the key of the root.
            finish_pin: format!(
                "UPDATE \"{schema}\".pin SET complete = true
                WHERE id = $1 AND NOT removed AND losses = $2
                    AND ($3::bytea IS NULL
                        OR EXISTS (SELECT FROM \"{schema}\".member WHERE member.pin = $1 AND member.key = $3))
                RETURNING {summary}"
            ),
            unfinished: format!("SELECT losses = $2 FROM \"{schema}\".pin WHERE id = $1 AND NOT removed"),
            remove_pin: format!(
                "UPDATE \"{schema}\".pin SET removed = true
                    WHERE root = $1 AND NOT removed AND ($2 IS NULL OR id = $2) RETURNING id"
            ),
            release_members: format!("SELECT \"{schema}\".release_members($1)"),
            pin: format!("SELECT {summary} FROM \"{schema}\".pin WHERE root = $1 AND NOT removed"),
            pins: format!("SELECT {summary} FROM \"{schema}\".pin WHERE NOT removed AND id > $1 ORDER BY id LIMIT $2"),
            identity: format!("SELECT id, marked FROM \"{schema}\".site"),
            set_marked: format!("UPDATE \"{schema}\".site SET marked = true WHERE NOT marked"),
            // The pins are read once.
            figures: format!(
                "SELECT * FROM (
                    SELECT coalesce(sum(pinned_blocks), 0)::bigint, coalesce(sum(pinned_bytes), 0)::bigint,
                        coalesce(sum(pinned_block_bytes), 0)::bigint,
                        coalesce(sum(cached_blocks), 0)::bigint, coalesce(sum(cached_bytes), 0)::bigint,
                        (SELECT count(*) FROM \"{schema}\".pending_object)
                    FROM \"{schema}\".usage
                ) AS amounts, (
                    SELECT count(*) FILTER (WHERE complete), count(*) FILTER (WHERE NOT complete)
                    FROM \"{schema}\".pin WHERE NOT removed
                ) AS pins"
            ),
        }
    }
}

/// How the index is kept.
#[derive(Debug, Clone)]
pub struct IndexOptions {
    /// A block that is used counts as used again after this time only, so that it is seldom written.
    pub used_precision: Duration,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self { used_precision: Duration::from_secs(3600) }
    }
}

/// The index of a site. Each gateway has its own.
#[derive(Debug)]
pub struct DatabaseIndex {
    database: Database,
    /// Look-ups, which a client waits for.
    reads: Arc<ReconnectingSession>,
    /// Those of blocks.
    locator: Locator,
    /// Changes, which may wait for each other, and for standbys.
    changes: ReconnectingSession,
    /// What takes long: counting, and putting in order.
    upkeep: ReconnectingSession,
    statements: Statements,
    options: IndexOptions,
}

/// Columns of objects.
struct Columns {
    generations: Vec<i64>,
    keys: Vec<Vec<u8>>,
}

impl Columns {
    fn of(objects: &[ObjectId]) -> Self {
        let generations = objects.iter().map(|object| object.generation.cast_signed()).collect();
        Self { generations, keys: objects.iter().map(|object| object.key.to_bytes()).collect() }
    }

    fn parameters(&self) -> [Parameter<'_>; 2] {
        [(&self.generations, Type::INT8_ARRAY), (&self.keys, Type::BYTEA_ARRAY)]
    }
}

impl DatabaseIndex {
    /// The index in a database whose log was opened ([`super::DatabaseLog::open`]).
    pub fn new(database: Database, options: IndexOptions) -> Self {
        let statements = Statements::of(database.schema());
        let session = || ReconnectingSession::new(database.clone());
        let (reads, changes, upkeep) = (Arc::new(session().with_timeout(READ_TIMEOUT)), session(), session());
        let of_row = database.clone();
        let read_row = move |row: &Row| {
            let block = block_row(row).map_err(|error| of_row.error(&error))?;
            Ok(block.ok_or_else(|| invalid_key(&of_row))?)
        };
        let locator = Locator::new(Arc::clone(&reads), statements.locate.clone(), Box::new(read_row));
        Self { database, reads, locator, changes, upkeep, statements, options }
    }

    /// Runs a change, and again if the server has ended it because of others that waited.
    async fn change(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, DatabaseError> {
        self.changes.run(async |session| repeated(session, statement, parameters).await).await
    }

    /// The same for what takes long.
    async fn upkeep(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, DatabaseError> {
        self.upkeep.run(async |session| repeated(session, statement, parameters).await).await
    }

    async fn look_up(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, DatabaseError> {
        self.reads.run(async |session| session.query_typed(statement, parameters).await).await
    }

    /// The error of a row that is not as expected.
    fn wrong(&self) -> impl Fn(tokio_postgres::Error) -> DatabaseError {
        |error| self.database.error(&error)
    }

    fn objects(&self, rows: &[Row]) -> Result<Vec<ObjectId>, DatabaseError> {
        let read = rows.iter().map(|row| object(row, 0)).collect::<Result<Vec<_>, _>>().map_err(self.wrong())?;
        self.known(read)
    }

    /// All of them, unless a key in the tables is invalid.
    fn known<T>(&self, read: Vec<Option<T>>) -> Result<Vec<T>, DatabaseError> {
        let all = read.into_iter().collect::<Option<Vec<_>>>();
        all.ok_or_else(|| invalid_key(&self.database))
    }

    /// The rows of a commit: whether the pin exists, and objects.
    fn committed(&self, rows: &[Row], pin: Option<PinId>) -> Result<Committed, DatabaseError> {
        let is_alive = rows.first().map_or(Ok(false), |row| row.try_get::<_, bool>(0)).map_err(self.wrong())?;
        if pin.is_some() && !is_alive {
            return Ok(Committed::PinRemoved);
        }
        let is_object = |row: &&Row| !matches!(row.try_get::<_, Option<Vec<u8>>>(1), Ok(None));
        let read = rows.iter().filter(is_object).map(|row| object(row, 1)).collect::<Result<Vec<_>, _>>();
        Ok(Committed::Blocks(self.known(read.map_err(self.wrong())?)?))
    }

    fn evicted(&self, rows: &[Row]) -> Result<Vec<EvictedObject>, DatabaseError> {
        let read = rows.iter().map(|row| {
            let bytes = of_int4(row.try_get(2)?);
            Ok(object(row, 0)?.map(|object| EvictedObject { object, bytes }))
        });
        self.known(read.collect::<Result<Vec<_>, _>>().map_err(self.wrong())?)
    }

    fn summaries(&self, rows: &[Row]) -> Result<Vec<PinSummary>, DatabaseError> {
        let read = rows.iter().map(summary).collect::<Result<Vec<_>, _>>().map_err(self.wrong())?;
        self.known(read)
    }

    async fn commit_written(
        &self,
        written: Vec<WrittenObject>,
        pin: Option<PinId>,
    ) -> Result<Committed, DatabaseError> {
        let objects: Vec<ObjectId> = written.iter().map(|written| written.object).collect();
        let columns = Columns::of(&objects);
        let bytes: Vec<i32> = written.iter().map(|written| to_int4(written.bytes)).collect();
        let forms = written.iter().map(|written| Form::of(written.shape));
        let (block_bytes, forms): (Vec<i32>, Vec<i32>) =
            forms.map(|form| (to_int4(form.block_bytes), to_int4(form.number))).unzip();
        let id = pin.map(u64::cast_signed);
        let [generations, keys] = columns.parameters();
        let parameters = [
            generations,
            keys,
            (&bytes, Type::INT4_ARRAY),
            (&block_bytes, Type::INT4_ARRAY),
            (&forms, Type::INT4_ARRAY),
            (&id, Type::INT8),
        ];
        self.committed(&self.change(&self.statements.commit, &parameters).await?, pin)
    }

    async fn finish(&self, attempt: PinAttempt) -> Result<FinishedPin, DatabaseError> {
        let (id, losses) = (attempt.id.cast_signed(), attempt.losses.cast_signed());
        let root = BlockKey::of(&attempt.root).map(|key| key.to_bytes());
        let parameters: [Parameter<'_>; 3] = [(&id, Type::INT8), (&losses, Type::INT8), (&root, Type::BYTEA)];
        let rows = self.change(&self.statements.finish_pin, &parameters).await?;
        if let Some(summary) = self.summaries(&rows)?.pop() {
            return Ok(FinishedPin::Complete(Box::new(summary)));
        }
        let rows = self.change(&self.statements.unfinished, &parameters[..2]).await?;
        match rows.first().map(|row| row.try_get(0)).transpose().map_err(self.wrong())? {
            None => Ok(FinishedPin::Removed),
            Some(false) => Ok(FinishedPin::Lost),
            Some(true) => Ok(FinishedPin::RootMissing),
        }
    }

    async fn begin(&self, root: Cid, name: Option<String>) -> Result<PinAttempt, DatabaseError> {
        // Random, so that it is not that of another pin on a standby that was promoted without this one. Positive.
        let (id, root_bytes) = ((super::random_number()? >> 1).cast_signed(), root.to_bytes());
        let parameters: [Parameter<'_>; 3] = [(&id, Type::INT8), (&root_bytes, Type::BYTEA), (&name, Type::TEXT)];
        let rows = self.change(&self.statements.begin_pin, &parameters).await?;
        let Some(row) = rows.first() else { return Err(self.database.unreachable("it returned no pin")) };
        let number = |column| row.try_get::<_, i64>(column).map(i64::cast_unsigned).map_err(self.wrong());
        Ok(PinAttempt { id: number(0)?, root, losses: number(1)? })
    }

    async fn read_identity(&self) -> Result<IndexIdentity, DatabaseError> {
        let rows = self.look_up(&self.statements.identity, &[]).await?;
        let Some(row) = rows.first() else { return Err(self.database.unreachable("its tables are incomplete")) };
        let id: i64 = row.try_get(0).map_err(self.wrong())?;
        Ok(IndexIdentity { id: id.cast_unsigned(), is_marked: row.try_get(1).map_err(self.wrong())? })
    }

    async fn amounts(&self) -> Result<IndexFigures, DatabaseError> {
        let rows = self.upkeep(&self.statements.figures, &[]).await?;
        let Some(row) = rows.first() else { return Ok(IndexFigures::default()) };
        let number = |column| row.try_get::<_, i64>(column).map(i64::cast_unsigned).map_err(self.wrong());
        Ok(IndexFigures {
            pinned_blocks: number(0)?,
            pinned_bytes: number(1)?,
            pinned_block_bytes: number(2)?,
            cached_blocks: number(3)?,
            cached_bytes: number(4)?,
            pending_objects: number(5)?,
            pins: number(6)?,
            partial_pins: number(7)?,
        })
    }
}

impl BlockIndex for DatabaseIndex {
    fn register(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            self.change(&self.statements.register, &Columns::of(&objects).parameters()).await?;
            Ok(())
        }
        .boxed()
    }

    fn commit(&self, written: Vec<WrittenObject>, pin: Option<PinId>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        async move { Ok(self.commit_written(written, pin).await?) }.boxed()
    }

    fn add_members(&self, keys: Vec<BlockKey>, pin: PinId) -> BoxFuture<'_, Result<Committed, StoreError>> {
        async move {
            let (keys, id) = (to_bytea(&keys), pin.cast_signed());
            let parameters: [Parameter<'_>; 2] = [(&keys, Type::BYTEA_ARRAY), (&id, Type::INT8)];
            let rows = self.change(&self.statements.add_members, &parameters).await?;
            Ok(self.committed(&rows, Some(pin))?)
        }
        .boxed()
    }

    fn locate(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<BlockRow>, StoreError>> {
        self.locator.locate(keys).boxed()
    }

    fn mark_used(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let (keys, precision) = (to_bytea(&keys), milliseconds(self.options.used_precision));
            let parameters: [Parameter<'_>; 2] = [(&keys, Type::BYTEA_ARRAY), (&precision, Type::FLOAT8)];
            self.change(&self.statements.mark_used, &parameters).await?;
            Ok(())
        }
        .boxed()
    }

    fn lose(&self, object: ObjectId) -> BoxFuture<'_, Result<Option<Vec<Cid>>, StoreError>> {
        async move {
            let (key, generation) = (object.key.to_bytes(), object.generation.cast_signed());
            let parameters: [Parameter<'_>; 2] = [(&key, Type::BYTEA), (&generation, Type::INT8)];
            let rows = self.change(&self.statements.lose, &parameters).await?;
            let roots = rows.first().map_or(Ok(None), |row| row.try_get::<_, Option<Vec<Vec<u8>>>>(0));
            let Some(roots) = roots.map_err(self.wrong())? else { return Ok(None) };
            Ok(Some(self.known(roots.into_iter().map(|root| Cid::try_from(root).ok()).collect())?))
        }
        .boxed()
    }

    fn pinned(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<BlockKey>, StoreError>> {
        async move {
            let rows = self.look_up(&self.statements.pinned, &[(&to_bytea(&keys), Type::BYTEA_ARRAY)]).await?;
            let read = rows.iter().map(|row| Ok(BlockKey::from_bytes(row.try_get(0)?)));
            Ok(self.known(read.collect::<Result<Vec<_>, _>>().map_err(self.wrong())?)?)
        }
        .boxed()
    }

    fn lost(
        &self,
        root: Cid,
        after: Option<BlockKey>,
        blocks_max: u32,
    ) -> BoxFuture<'_, Result<Vec<LostBlock>, StoreError>> {
        async move {
            let (root, max) = (root.to_bytes(), i64::from(blocks_max));
            let after = after.map(|key| key.to_bytes()).unwrap_or_default();
            let parameters: [Parameter<'_>; 3] = [(&root, Type::BYTEA), (&after, Type::BYTEA), (&max, Type::INT8)];
            let rows = self.upkeep(&self.statements.lost, &parameters).await?;
            let read = rows.iter().map(|row| {
                let block_bytes = of_int4(row.try_get(1)?);
                Ok(BlockKey::from_bytes(row.try_get(0)?).map(|key| LostBlock { key, block_bytes }))
            });
            Ok(self.known(read.collect::<Result<Vec<_>, _>>().map_err(self.wrong())?)?)
        }
        .boxed()
    }

    fn pins_with_losses(&self, within: Duration) -> BoxFuture<'_, Result<Vec<Cid>, StoreError>> {
        async move {
            let parameters: [Parameter<'_>; 1] = [(&milliseconds(within), Type::FLOAT8)];
            let rows = self.upkeep(&self.statements.pins_with_losses, &parameters).await?;
            let read = rows.iter().map(|row| Ok(Cid::try_from(row.try_get::<_, &[u8]>(0)?).ok()));
            Ok(self.known(read.collect::<Result<Vec<_>, _>>().map_err(self.wrong())?)?)
        }
        .boxed()
    }

    fn evict(&self, cached_bytes_max: u64, blocks_max: u32) -> BoxFuture<'_, Result<Vec<EvictedObject>, StoreError>> {
        async move {
            let bytes_max = i64::try_from(cached_bytes_max).unwrap_or(i64::MAX);
            let parameters: [Parameter<'_>; 2] = [(&bytes_max, Type::INT8), (&i64::from(blocks_max), Type::INT8)];
            Ok(self.evicted(&self.upkeep(&self.statements.evict, &parameters).await?)?)
        }
        .boxed()
    }

    fn evict_blocks(&self, keys: Vec<BlockKey>) -> BoxFuture<'_, Result<Vec<EvictedObject>, StoreError>> {
        async move {
            let parameters: [Parameter<'_>; 1] = [(&to_bytea(&keys), Type::BYTEA_ARRAY)];
            Ok(self.evicted(&self.change(&self.statements.evict_blocks, &parameters).await?)?)
        }
        .boxed()
    }

    fn sweep(&self, age: Duration, objects_max: u32) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>> {
        async move {
            let (age, max) = (milliseconds(age), i64::from(objects_max));
            let parameters: [Parameter<'_>; 2] = [(&age, Type::FLOAT8), (&max, Type::INT8)];
            Ok(self.objects(&self.upkeep(&self.statements.sweep, &parameters).await?)?)
        }
        .boxed()
    }

    fn remove_pending(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let Columns { generations, .. } = Columns::of(&objects);
            self.change(&self.statements.remove_pending, &[(&generations, Type::INT8_ARRAY)]).await?;
            Ok(())
        }
        .boxed()
    }

    fn register_orphans(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>> {
        async move {
            Ok(self
                .objects(&self.upkeep(&self.statements.register_orphans, &Columns::of(&objects).parameters()).await?)?)
        }
        .boxed()
    }

    fn orphans(&self, objects: Vec<ObjectId>) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>> {
        async move {
            Ok(self.objects(&self.upkeep(&self.statements.orphans, &Columns::of(&objects).parameters()).await?)?)
        }
        .boxed()
    }

    fn objects_of_slot(
        &self,
        slot: u8,
        which: Listed,
        after: Option<BlockKey>,
        objects_max: u32,
    ) -> BoxFuture<'_, Result<Vec<ObjectId>, StoreError>> {
        async move {
            let after = after.map(|key| key.to_bytes()).unwrap_or_default();
            let (slot, max, pinned_only) = (i16::from(slot), i64::from(objects_max), which == Listed::Pinned);
            let parameters: [Parameter<'_>; 4] =
                [(&slot, Type::INT2), (&after, Type::BYTEA), (&max, Type::INT8), (&pinned_only, Type::BOOL)];
            Ok(self.objects(&self.upkeep(&self.statements.objects_of_slot, &parameters).await?)?)
        }
        .boxed()
    }

    fn begin_pin(&self, root: Cid, name: Option<String>) -> BoxFuture<'_, Result<PinAttempt, StoreError>> {
        async move { Ok(self.begin(root, name).await?) }.boxed()
    }

    fn finish_pin(&self, attempt: PinAttempt) -> BoxFuture<'_, Result<FinishedPin, StoreError>> {
        async move { Ok(self.finish(attempt).await?) }.boxed()
    }

    fn current_pin(&self, root: Cid) -> BoxFuture<'_, Result<Option<PinSummary>, StoreError>> {
        async move {
            // The session of the changes, which runs them in their order.
            let rows = self.change(&self.statements.pin, &[(&root.to_bytes(), Type::BYTEA)]).await?;
            Ok(self.summaries(&rows)?.pop())
        }
        .boxed()
    }

    fn remove_pin(&self, root: Cid, id: Option<u64>) -> BoxFuture<'_, Result<bool, StoreError>> {
        async move {
            let (root, id) = (root.to_bytes(), id.map(|id| i64::try_from(id).unwrap_or(i64::MAX)));
            let rows = self.change(&self.statements.remove_pin, &[(&root, Type::BYTEA), (&id, Type::INT8)]).await?;
            Ok(!rows.is_empty())
        }
        .boxed()
    }

    fn release_members(&self, members_max: u32) -> BoxFuture<'_, Result<bool, StoreError>> {
        async move {
            let parameters: [Parameter<'_>; 1] = [(&i64::from(members_max), Type::INT8)];
            let rows = self.upkeep(&self.statements.release_members, &parameters).await?;
            Ok(rows.first().map_or(Ok(false), |row| row.try_get(0)).map_err(self.wrong())?)
        }
        .boxed()
    }

    fn pin(&self, root: Cid) -> BoxFuture<'_, Result<Option<PinSummary>, StoreError>> {
        async move {
            let rows = self.look_up(&self.statements.pin, &[(&root.to_bytes(), Type::BYTEA)]).await?;
            Ok(self.summaries(&rows)?.pop())
        }
        .boxed()
    }

    fn pins(&self, after: Option<PinId>, pins_max: u32) -> BoxFuture<'_, Result<Vec<PinSummary>, StoreError>> {
        async move {
            let (after, max) = (after.map_or(-1, u64::cast_signed), i64::from(pins_max));
            let parameters: [Parameter<'_>; 2] = [(&after, Type::INT8), (&max, Type::INT8)];
            Ok(self.summaries(&self.upkeep(&self.statements.pins, &parameters).await?)?)
        }
        .boxed()
    }

    fn identity(&self) -> BoxFuture<'_, Result<IndexIdentity, StoreError>> {
        async move { Ok(self.read_identity().await?) }.boxed()
    }

    fn set_marked(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            self.change(&self.statements.set_marked, &[]).await?;
            Ok(())
        }
        .boxed()
    }

    fn figures(&self) -> BoxFuture<'_, Result<IndexFigures, StoreError>> {
        async move { Ok(self.amounts().await?) }.boxed()
    }
}

async fn repeated(
    session: &Session,
    statement: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    for _ in 1..ATTEMPTS_MAX {
        match session.query_typed(statement, parameters).await {
            Err(error) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => {}
            result => return result,
        }
    }
    session.query_typed(statement, parameters).await
}

/// The object in two columns of a row, the key and the generation.
fn object(row: &Row, column: usize) -> Result<Option<ObjectId>, tokio_postgres::Error> {
    let (key, generation): (&[u8], i64) = (row.try_get(column)?, row.try_get(column + 1)?);
    Ok(BlockKey::from_bytes(key).map(|key| ObjectId { key, generation: generation.cast_unsigned() }))
}

fn block_row(row: &Row) -> Result<Option<BlockRow>, tokio_postgres::Error> {
    let number = |column| row.try_get(column).map(of_int4);
    let (bytes, form) = (number(2)?, Form { block_bytes: number(3)?, number: number(4)? });
    Ok(object(row, 0)?.map(|object| BlockRow { object, bytes, shape: form.shape(&object.key, bytes) }))
}

fn invalid_key(database: &Database) -> DatabaseError {
    database.unreachable("a row of its index has an invalid key")
}

fn summary(row: &Row) -> Result<Option<PinSummary>, tokio_postgres::Error> {
    let number = |column| row.try_get::<_, i64>(column).map(i64::cast_unsigned);
    let Ok(root) = Cid::try_from(row.try_get::<_, &[u8]>(1)?) else { return Ok(None) };
    let packed = row.try_get::<_, Option<&[u8]>>(7)?.map(Cid::try_from);
    let Ok(packed) = packed.transpose() else { return Ok(None) };
    Ok(Some(PinSummary {
        root,
        id: number(0)?,
        name: row.try_get(2)?,
        created: UNIX_EPOCH + Duration::from_millis(number(3)?),
        state: if row.try_get(4)? { PinState::Complete } else { PinState::Partial },
        blocks: number(5)?,
        bytes: number(6)?,
        packed,
    }))
}

fn to_bytea(keys: &[BlockKey]) -> Vec<Vec<u8>> {
    keys.iter().map(BlockKey::to_bytes).collect()
}

/// Sizes of blocks are far from the limit.
fn to_int4(bytes: u32) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

fn of_int4(bytes: i32) -> u32 {
    u32::try_from(bytes).unwrap_or_default()
}
