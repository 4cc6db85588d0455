//! The tables of a site, and how those of earlier releases become current.
//!
//! | table | a row for |
//! |---|---|
//! | `version` | the version of the tables (one row) |
//! | `log_head` | the number and tag of the latest entry of the log (one row) |
//! | `log_entry` | each of the latest entries: the keys that it has changed, and their contents; null: removed |
//! | `record` | each record as of the latest entry |
//! | `control_head`, `control_entry`, `control_record` | the same of the log of the site's rules and tokens |
//! | `name_head`, `name_entry`, `name_record` | the same of the log of the site's IPNS keys and published names |
//! | `claim` | each root that a gateway works on, or whose work a gateway has left behind |
//! | `site` | what tells these tables from others of the same name, and whether the storage is marked with it (one row) |
//! | `gateway` | each gateway, with its lease |
//! | `block` | each block in the shared storage, or that a pin has: the generation and size of its object |
//! | `pending_object` | each object that may be in the storage, and that no block refers to |
//! | `usage` | changes of the amounts of blocks, of which the sum is what there is |
//! | `pin` | each pin of blocks: its root, and whether it is complete |
//! | `member` | each block of each pin |
//! | `upload` | each resumable upload |
//! | `upload_part` | each object with bytes of an upload, also those that are being written or are to be deleted |

use super::address::Database;
use super::error::DatabaseError;
use super::session::Session;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::types::Type;

/// The statements that bring the tables from each version to the next. A released one never changes.
const MIGRATIONS: [&str; 7] = [
    "
    CREATE TABLE log_head (
        single boolean PRIMARY KEY DEFAULT true CHECK (single),
        position bigint NOT NULL,
        tag bigint NOT NULL
    ) WITH (fillfactor = 10);
    INSERT INTO log_head (position, tag) VALUES (0, 0);
    CREATE TABLE log_entry (
        position bigint PRIMARY KEY,
        tag bigint NOT NULL,
        previous bigint NOT NULL,
        bytes bigint NOT NULL,
        keys bytea[] NOT NULL,
        contents bytea[] NOT NULL
    );
    CREATE TABLE record (key bytea PRIMARY KEY, content bytea NOT NULL);
    CREATE TABLE claim (
        root bytea PRIMARY KEY,
        member bigint NOT NULL,
        term bigint NOT NULL,
        lease_end timestamptz NOT NULL
    );
",
    "
    CREATE TABLE site (
        single boolean PRIMARY KEY DEFAULT true CHECK (single),
        id bigint NOT NULL,
        marked boolean NOT NULL DEFAULT false
    );
    INSERT INTO site (id) VALUES (('x' || left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint);
    CREATE TABLE gateway (
        peer_id text PRIMARY KEY,
        process bigint NOT NULL,
        host text NOT NULL,
        version text NOT NULL,
        started timestamptz NOT NULL DEFAULT clock_timestamp(),
        seen timestamptz NOT NULL DEFAULT clock_timestamp(),
        lease_end timestamptz NOT NULL
    );
    CREATE TABLE pin (
        id bigint PRIMARY KEY,
        root bytea NOT NULL,
        name text,
        created timestamptz NOT NULL DEFAULT clock_timestamp(),
        complete boolean NOT NULL DEFAULT false,
        losses bigint NOT NULL DEFAULT 0,
        lost_at timestamptz,
        blocks bigint NOT NULL DEFAULT 0,
        bytes bigint NOT NULL DEFAULT 0,
        packed bytea,
        removed boolean NOT NULL DEFAULT false,
        -- The members of a removed pin up to this key have been released.
        released bytea NOT NULL DEFAULT ''
    ) WITH (fillfactor = 50);
    CREATE UNIQUE INDEX pin_root ON pin (root) WHERE NOT removed;
    CREATE INDEX pin_removed ON pin (id) WHERE removed;
    CREATE INDEX pin_lost ON pin (lost_at) WHERE lost_at IS NOT NULL AND NOT removed;
    -- A block with members always has a row, without a generation if the block was lost: the row is what transactions
    -- that concern the block wait for.
    CREATE TABLE block (
        key bytea PRIMARY KEY,
        generation bigint,
        bytes integer NOT NULL,
        block_bytes integer NOT NULL,
        form integer NOT NULL,
        slot smallint NOT NULL,
        pinned boolean NOT NULL,
        used timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE INDEX block_slot ON block (slot, key);
    CREATE INDEX block_cached ON block (used) WHERE NOT pinned;
    CREATE INDEX block_lost ON block (key) WHERE generation IS NULL;
    CREATE TABLE member (pin bigint NOT NULL, key bytea NOT NULL, PRIMARY KEY (pin, key));
    CREATE INDEX member_key ON member (key);
    CREATE TABLE pending_object (
        generation bigint PRIMARY KEY,
        key bytea NOT NULL,
        deleting boolean NOT NULL DEFAULT false,
        since timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE INDEX pending_object_since ON pending_object (since);
    -- What a statement changes is a row of its own, so that transactions do not wait for each other because of it.
    CREATE TABLE usage (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        pinned_blocks bigint NOT NULL,
        pinned_bytes bigint NOT NULL,
        pinned_block_bytes bigint NOT NULL,
        cached_blocks bigint NOT NULL,
        cached_bytes bigint NOT NULL
    );
    CREATE FUNCTION count_new_blocks() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    BEGIN
        INSERT INTO usage (pinned_blocks, pinned_bytes, pinned_block_bytes, cached_blocks, cached_bytes)
        SELECT count(*) FILTER (WHERE pinned), coalesce(sum(bytes) FILTER (WHERE pinned), 0),
            coalesce(sum(block_bytes) FILTER (WHERE pinned), 0),
            count(*) FILTER (WHERE NOT pinned), coalesce(sum(bytes) FILTER (WHERE NOT pinned), 0)
        FROM new_rows WHERE generation IS NOT NULL HAVING count(*) > 0;
        RETURN NULL;
    END
    $$;
    CREATE FUNCTION count_old_blocks() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    BEGIN
        INSERT INTO usage (pinned_blocks, pinned_bytes, pinned_block_bytes, cached_blocks, cached_bytes)
        SELECT -count(*) FILTER (WHERE pinned), -coalesce(sum(bytes) FILTER (WHERE pinned), 0),
            -coalesce(sum(block_bytes) FILTER (WHERE pinned), 0),
            -count(*) FILTER (WHERE NOT pinned), -coalesce(sum(bytes) FILTER (WHERE NOT pinned), 0)
        FROM old_rows WHERE generation IS NOT NULL HAVING count(*) > 0;
        RETURN NULL;
    END
    $$;
    -- A block that is used changes no amount.
    CREATE FUNCTION count_changed_blocks() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    BEGIN
        INSERT INTO usage (pinned_blocks, pinned_bytes, pinned_block_bytes, cached_blocks, cached_bytes)
        SELECT * FROM (
            SELECT coalesce(sum(sign) FILTER (WHERE pinned), 0) AS a,
                coalesce(sum(sign * bytes) FILTER (WHERE pinned), 0) AS b,
                coalesce(sum(sign * block_bytes) FILTER (WHERE pinned), 0) AS c,
                coalesce(sum(sign) FILTER (WHERE NOT pinned), 0) AS d,
                coalesce(sum(sign * bytes) FILTER (WHERE NOT pinned), 0) AS e
            FROM (
                SELECT 1::bigint AS sign, pinned, bytes, block_bytes FROM new_rows WHERE generation IS NOT NULL
                UNION ALL
                SELECT -1, pinned, bytes, block_bytes FROM old_rows WHERE generation IS NOT NULL
            ) AS signed
        ) AS changed WHERE (a, b, c, d, e) <> (0, 0, 0, 0, 0);
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER count_inserted AFTER INSERT ON block REFERENCING NEW TABLE AS new_rows
        FOR EACH STATEMENT EXECUTE FUNCTION count_new_blocks();
    CREATE TRIGGER count_deleted AFTER DELETE ON block REFERENCING OLD TABLE AS old_rows
        FOR EACH STATEMENT EXECUTE FUNCTION count_old_blocks();
    CREATE TRIGGER count_updated AFTER UPDATE ON block REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
        FOR EACH STATEMENT EXECUTE FUNCTION count_changed_blocks();

    -- The statements of these functions rely on seeing what was committed before each of them.
    CREATE FUNCTION require_read_committed() RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION 'the isolation level is % in place of read committed',
                current_setting('transaction_isolation');
        END IF;
    END
    $$;

    CREATE FUNCTION lose_block(lost_key bytea, lost_generation bigint) RETURNS bytea[]
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    DECLARE
        roots bytea[];
    BEGIN
        PERFORM require_read_committed();
        PERFORM FROM pin WHERE id IN (SELECT member.pin FROM member WHERE key = lost_key) ORDER BY id FOR NO KEY UPDATE;
        PERFORM FROM block WHERE key = lost_key AND generation = lost_generation FOR UPDATE;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        DELETE FROM block WHERE key = lost_key AND NOT pinned;
        UPDATE block SET generation = NULL WHERE key = lost_key;
        INSERT INTO pending_object (generation, key, deleting) VALUES (lost_generation, lost_key, true);
        -- It sees the members that were added before the row was locked.
        WITH partial AS (
            UPDATE pin SET losses = losses + 1, complete = false, lost_at = clock_timestamp()
            WHERE NOT removed AND id IN (SELECT member.pin FROM member WHERE key = lost_key) RETURNING root
        ) SELECT array_agg(root) INTO roots FROM partial;
        RETURN coalesce(roots, '{}');
    END
    $$;

    -- One at a time, so that no more is evicted than is necessary; others return nothing.
    CREATE FUNCTION evict_blocks(cached_bytes_max bigint, blocks_max bigint)
    RETURNS TABLE (evicted_key bytea, evicted_generation bigint, evicted_bytes integer)
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    DECLARE
        excess bigint;
    BEGIN
        PERFORM require_read_committed();
        IF NOT pg_try_advisory_xact_lock(hashtext(current_schema()), 1) THEN
            RETURN;
        END IF;
        WITH merged AS (DELETE FROM usage WHERE id IN (SELECT id FROM usage ORDER BY id LIMIT 100000) RETURNING *)
        INSERT INTO usage (pinned_blocks, pinned_bytes, pinned_block_bytes, cached_blocks, cached_bytes)
            SELECT sum(pinned_blocks), sum(pinned_bytes), sum(pinned_block_bytes), sum(cached_blocks), sum(cached_bytes)
            FROM merged HAVING count(*) > 0;
        SELECT coalesce(sum(cached_bytes), 0) - cached_bytes_max INTO excess FROM usage;
        -- A block that is about to become a member is locked, or pinned by the time that this has waited for it.
        RETURN QUERY WITH oldest AS (
            SELECT key, bytes, used FROM block WHERE NOT pinned AND excess > 0
            ORDER BY used LIMIT blocks_max FOR UPDATE SKIP LOCKED
        ), summed AS (
            SELECT key, sum(bytes) OVER (ORDER BY used, key) - bytes AS bytes_before FROM oldest
        ), gone AS (
            DELETE FROM block USING summed WHERE block.key = summed.key AND summed.bytes_before < excess
            RETURNING block.key, block.generation, block.bytes
        ), pending AS (
            INSERT INTO pending_object (generation, key, deleting) SELECT generation, key, true FROM gone
        )
        SELECT key, generation, bytes FROM gone;
    END
    $$;

    CREATE FUNCTION release_members(members_max bigint) RETURNS boolean
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    DECLARE
        chosen pin%ROWTYPE;
        keys bytea[];
    BEGIN
        PERFORM require_read_committed();
        SELECT * INTO chosen FROM pin WHERE removed ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        SELECT array_agg(page.key ORDER BY page.key) INTO keys FROM (
            SELECT key FROM member WHERE pin = chosen.id AND key > chosen.released ORDER BY key LIMIT members_max
        ) AS page;
        IF keys IS NULL THEN
            DELETE FROM pin WHERE id = chosen.id;
            RETURN true;
        END IF;
        DELETE FROM member WHERE pin = chosen.id AND key = ANY(keys);
        UPDATE pin SET released = keys[cardinality(keys)] WHERE id = chosen.id;
        PERFORM FROM block WHERE key = ANY(keys) ORDER BY key FOR UPDATE;
        -- They see the members that were added before the rows were locked, and each of the blocks has a row.
        DELETE FROM block
            WHERE key = ANY(keys) AND generation IS NULL AND NOT EXISTS (SELECT FROM member WHERE member.key = block.key);
        UPDATE block SET pinned = false, used = clock_timestamp()
            WHERE key = ANY(keys) AND NOT EXISTS (SELECT FROM member WHERE member.key = block.key);
        RETURN true;
    END
    $$;
",
    "
    CREATE TABLE control_head (LIKE log_head INCLUDING ALL) WITH (fillfactor = 10);
    INSERT INTO control_head (position, tag) VALUES (0, 0);
    CREATE TABLE control_entry (LIKE log_entry INCLUDING ALL);
    CREATE TABLE control_record (LIKE record INCLUDING ALL);
",
    "
    ALTER TABLE gateway ADD COLUMN addresses text[] NOT NULL DEFAULT '{}';
",
    "
    CREATE TABLE upload (
        id text PRIMARY KEY,
        owner text NOT NULL,
        length bigint NOT NULL,
        received bigint NOT NULL DEFAULT 0,
        query text NOT NULL,
        media_type text NOT NULL,
        name text,
        created timestamptz NOT NULL DEFAULT clock_timestamp(),
        touched timestamptz NOT NULL DEFAULT clock_timestamp(),
        -- Whether it is still to be received or imported; and how the import ended, in JSON.
        open boolean NOT NULL DEFAULT true,
        outcome text,
        -- Increases with each request that takes the upload. Those before it change nothing any more.
        term bigint NOT NULL DEFAULT 0,
        -- Until then the request of this term imports it, and no other takes it.
        import_until timestamptz
    ) WITH (fillfactor = 50);
    CREATE INDEX upload_owner ON upload (owner);
    CREATE INDEX upload_touched ON upload (touched);
    -- An object with bytes of an upload. Without a start it is none of the upload's: it is being written, or is to be
    -- deleted.
    CREATE TABLE upload_part (
        generation bigint PRIMARY KEY,
        upload text NOT NULL,
        start bigint,
        bytes bigint NOT NULL DEFAULT 0,
        deleting boolean NOT NULL DEFAULT false,
        -- From then on any gateway deletes an object without a start.
        sweep_at timestamptz NOT NULL
    );
    CREATE INDEX upload_part_start ON upload_part (upload, start);
    CREATE INDEX upload_part_sweep ON upload_part (sweep_at) WHERE start IS NULL;

    -- In each of these functions the row of the upload is locked before those of its parts. Parts that are being deleted
    -- are left to what deletes them, which locks no upload.

    -- 0: it was created; 1: the owner has too many; 2: there is too little space. One at a time.
    CREATE FUNCTION create_upload(new_id text, new_owner text, new_length bigint, new_query text, new_media_type text,
        new_name text, bytes_max bigint, owner_bytes_max bigint, owner_max bigint) RETURNS integer
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    DECLARE
        own_count bigint;
        own_bytes numeric;
        all_bytes numeric;
    BEGIN
        PERFORM require_read_committed();
        PERFORM pg_advisory_xact_lock(hashtext(current_schema()), 2);
        SELECT count(*) FILTER (WHERE owner = new_owner), coalesce(sum(length) FILTER (WHERE owner = new_owner), 0),
                coalesce(sum(length), 0)
            INTO own_count, own_bytes, all_bytes FROM upload WHERE open;
        IF own_count >= owner_max THEN
            RETURN 1;
        END IF;
        IF own_bytes + new_length > owner_bytes_max OR all_bytes + new_length > bytes_max THEN
            RETURN 2;
        END IF;
        INSERT INTO upload (id, owner, length, query, media_type, name)
            VALUES (new_id, new_owner, new_length, new_query, new_media_type, new_name);
        RETURN 0;
    END
    $$;

    -- Makes a part that was written the last one of an upload that has so many bytes before, in place of another one if
    -- one is given. With the last byte, the import begins. Returns false if it has changed nothing.
    CREATE FUNCTION append_part(to_id text, to_term bigint, before bigint, new_generation bigint, new_start bigint,
        new_bytes bigint, replaced bigint, lease_ms bigint) RETURNS boolean
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    BEGIN
        PERFORM require_read_committed();
        PERFORM FROM upload WHERE id = to_id AND term = to_term AND received = before FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        -- Unless it has been swept.
        UPDATE upload_part SET start = new_start, bytes = new_bytes
            WHERE generation = new_generation AND upload = to_id AND NOT deleting;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        UPDATE upload_part SET start = NULL, deleting = true, sweep_at = clock_timestamp()
            WHERE generation = replaced AND upload = to_id;
        UPDATE upload SET received = new_start + new_bytes, touched = clock_timestamp(),
                import_until = CASE WHEN new_start + new_bytes = length
                    THEN clock_timestamp() + lease_ms * interval '1 millisecond' END
            WHERE id = to_id;
        RETURN true;
    END
    $$;

    -- Removes the bytes of an upload from a position on.
    CREATE FUNCTION truncate_upload(of_id text, of_term bigint, new_received bigint) RETURNS boolean
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    BEGIN
        PERFORM require_read_committed();
        PERFORM FROM upload WHERE id = of_id AND term = of_term FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        UPDATE upload_part SET start = NULL, deleting = true, sweep_at = clock_timestamp()
            WHERE upload = of_id AND start >= new_received;
        UPDATE upload_part SET bytes = new_received - start
            WHERE upload = of_id AND start < new_received AND start + bytes > new_received;
        UPDATE upload SET received = new_received, touched = clock_timestamp(), import_until = NULL WHERE id = of_id;
        RETURN true;
    END
    $$;

    -- Records how the import of an upload ended. Of those of the owner that have ended, the latest are kept.
    CREATE FUNCTION finish_upload(of_id text, of_term bigint, new_outcome text, stays_open boolean, ended_max bigint)
    RETURNS boolean LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    DECLARE
        of_owner text;
    BEGIN
        PERFORM require_read_committed();
        UPDATE upload SET outcome = new_outcome, open = stays_open, touched = clock_timestamp(), import_until = NULL
            WHERE id = of_id AND term = of_term RETURNING owner INTO of_owner;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        IF NOT stays_open THEN
            UPDATE upload_part SET start = NULL, deleting = true, sweep_at = clock_timestamp()
                WHERE upload = of_id AND NOT deleting;
            DELETE FROM upload WHERE id IN (
                SELECT id FROM upload WHERE owner = of_owner AND NOT open AND id <> of_id
                ORDER BY touched DESC, id OFFSET ended_max - 1 FOR UPDATE SKIP LOCKED
            );
        END IF;
        RETURN true;
    END
    $$;

    -- Removes an upload, of which this is the term, or which nothing has used for so long.
    CREATE FUNCTION remove_upload(of_id text, of_term bigint, unused_ms double precision) RETURNS boolean
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    BEGIN
        PERFORM require_read_committed();
        PERFORM FROM upload WHERE id = of_id AND (term = of_term OR (
                touched <= clock_timestamp() - unused_ms * interval '1 millisecond'
                AND (import_until IS NULL OR import_until <= clock_timestamp())))
            FOR UPDATE;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        UPDATE upload_part SET start = NULL, deleting = true, sweep_at = clock_timestamp()
            WHERE upload = of_id AND NOT deleting;
        DELETE FROM upload WHERE id = of_id;
        RETURN true;
    END
    $$;
",
    "
    -- Registers those of the objects that are no block's, and not pending, to be deleted. Returns them.
    CREATE FUNCTION register_orphans(generations bigint[], keys bytea[])
    RETURNS TABLE (orphan_key bytea, orphan_generation bigint)
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    DECLARE
        registered bigint[];
    BEGIN
        PERFORM require_read_committed();
        -- It waits for a commit that is deleting the row of a pending object, but does not see the block of it.
        WITH new AS (
            INSERT INTO pending_object (generation, key, deleting)
            SELECT given.generation, given.key, true FROM unnest(generations, keys) AS given (generation, key)
            WHERE NOT EXISTS (SELECT FROM block WHERE block.key = given.key AND block.generation = given.generation)
            ON CONFLICT DO NOTHING RETURNING generation
        ) SELECT array_agg(generation) INTO registered FROM new;
        -- These statements see it. From now on, none of the objects becomes that of a block.
        DELETE FROM pending_object USING block
            WHERE pending_object.generation = ANY(registered)
                AND block.key = pending_object.key AND block.generation = pending_object.generation;
        RETURN QUERY SELECT key, generation FROM pending_object WHERE generation = ANY(registered);
    END
    $$;
",
    "
    CREATE TABLE name_head (LIKE log_head INCLUDING ALL) WITH (fillfactor = 10);
    INSERT INTO name_head (position, tag) VALUES (0, 0);
    CREATE TABLE name_entry (LIKE log_entry INCLUDING ALL);
    CREATE TABLE name_record (LIKE record INCLUDING ALL);
",
];
/// Migrations last as long as they need, and other gateways wait for them.
const BEGIN: &str = "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0";
/// How long a statement may take that migrates nothing.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Creates the tables, or brings them up to date. Gateways that start together do so one after the other. Current tables
/// need no rights but those to use them.
///
/// # Errors
/// [`DatabaseError::NewerSchema`], or the error of the database.
pub async fn prepare(session: &Session, database: &Database) -> Result<(), DatabaseError> {
    let known = i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX);
    let found = database.within(TIMEOUT, version(session, database.schema())).await?;
    if found < known {
        let migrated = migrate(session, database.schema(), known).await;
        migrated.map_err(|error| database.error(&error))?;
    }
    let found = found.max(database.within(TIMEOUT, version(session, database.schema())).await?);
    match found > known {
        true => Err(DatabaseError::NewerSchema { database: Arc::clone(database.display_name()), found, known }),
        false => Ok(()),
    }
}

/// The version of the tables; 0 if there are none.
async fn version(session: &Session, schema: &str) -> Result<i32, tokio_postgres::Error> {
    let table = format!("\"{schema}\".version");
    let exists = session.query_typed("SELECT to_regclass($1) IS NOT NULL", &[(&table, Type::TEXT)]).await?;
    if !exists.first().map_or(Ok(false), |row| row.try_get(0))? {
        return Ok(0);
    }
    let rows = session.query_typed(&format!("SELECT version FROM {table}"), &[]).await?;
    rows.first().map_or(Ok(0), |row| row.try_get(0))
}

async fn migrate(session: &Session, schema: &str, known: i32) -> Result<(), tokio_postgres::Error> {
    session.batch_execute(BEGIN).await?;
    // Released at the end of the transaction.
    session.query_typed("SELECT pg_advisory_xact_lock(hashtext($1), 0)", &[(&schema, Type::TEXT)]).await?;
    // A role that may not create schemas can use one that exists.
    let exists = session.query_typed("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[(&schema, Type::TEXT)]).await?;
    if exists.is_empty() {
        session.batch_execute(&format!("CREATE SCHEMA \"{schema}\"")).await?;
    }
    session
        .batch_execute(&format!(
            "SET LOCAL search_path = \"{schema}\"; CREATE TABLE IF NOT EXISTS version \
             (single boolean PRIMARY KEY DEFAULT true CHECK (single), version integer NOT NULL)"
        ))
        .await?;
    // Another gateway may have been faster.
    let found = usize::try_from(version(session, schema).await?).unwrap_or(0);
    if found < MIGRATIONS.len() {
        for migration in &MIGRATIONS[found..] {
            session.batch_execute(migration).await?;
        }
        let update = "INSERT INTO version (version) VALUES ($1) \
            ON CONFLICT (single) DO UPDATE SET version = excluded.version";
        session.query_typed(update, &[(&known, Type::INT4)]).await?;
    }
    session.batch_execute("COMMIT").await
}
