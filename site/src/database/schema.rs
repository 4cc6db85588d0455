//! The tables of a site, and how those of earlier releases become current.
//!
//! | table | a row for |
//! |---|---|
//! | `version` | the version of the tables (one row) |
//! | `log_head` | the number and tag of the latest entry of the log (one row) |
//! | `log_entry` | each of the latest entries: the keys that it has changed, and their contents; null: removed |
//! | `record` | each record as of the latest entry |
//! | `claim` | each root that a gateway works on, or whose work a gateway has left behind |

use super::address::Database;
use super::error::DatabaseError;
use super::session::Session;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::types::Type;

/// The statements that bring the tables from each version to the next. A released one never changes.
const MIGRATIONS: [&str; 1] = ["
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
"];
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
