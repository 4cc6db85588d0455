//! [`DatabaseMembers`]: which gateways are members of a site, with a lease each.
//!
//! Times are those of the database: the clocks of gateways do not matter.

use super::address::Database;
use super::error::DatabaseError;
use super::reconnecting::ReconnectingSession;
use super::{Parameter, milliseconds};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Members that are returned at most.
const MEMBERS_MAX: i64 = 1000;

/// A gateway that is one of a site, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its peer ID, by which it is one.
    pub peer_id: String,
    /// The host that it runs on.
    pub host: String,
    /// Its release.
    pub version: String,
    /// The addresses of its listeners for peers, as multiaddrs.
    pub addresses: Vec<String>,
    /// When the process was started.
    pub started: SystemTime,
    /// The time since it renewed its lease.
    pub seen_ago: Duration,
    /// Whether its lease lasts.
    pub is_alive: bool,
}

/// What a gateway says of itself.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its peer ID.
    pub peer_id: String,
    /// The host that it runs on.
    pub host: String,
    /// Its release.
    pub version: String,
}

#[derive(Debug)]
struct Statements {
    renew: String,
    remove_old: String,
    list: String,
    leave: String,
}

impl Statements {
    fn of(schema: &str) -> Self {
        Self {
            // Returns the process of the row before. $1 to $4 and $6: what the gateway is; $5: the lease.
            renew: format!(
                "INSERT INTO \"{schema}\".gateway AS known (peer_id, process, host, version, lease_end, addresses)
                VALUES ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 millisecond', $6)
                ON CONFLICT (peer_id) DO UPDATE SET
                    process = excluded.process, host = excluded.host, version = excluded.version,
                    addresses = excluded.addresses,
                    seen = clock_timestamp(), lease_end = excluded.lease_end,
                    started = CASE WHEN known.process = excluded.process THEN known.started ELSE clock_timestamp() END
                RETURNING (SELECT process FROM \"{schema}\".gateway WHERE peer_id = $1)"
            ),
            remove_old: format!(
                "DELETE FROM \"{schema}\".gateway WHERE lease_end < clock_timestamp() - $1 * interval '1 millisecond'"
            ),
            list: format!(
                "SELECT peer_id, host, version, (extract(epoch FROM started) * 1000)::bigint,
                    (extract(epoch FROM clock_timestamp() - seen) * 1000)::bigint, lease_end > clock_timestamp(), addresses
                FROM \"{schema}\".gateway ORDER BY peer_id LIMIT $1"
            ),
            leave: format!("DELETE FROM \"{schema}\".gateway WHERE peer_id = $1 AND process = $2"),
        }
    }
}

/// The members of a site, for one of them.
#[derive(Debug)]
pub struct DatabaseMembers {
    database: Database,
    session: ReconnectingSession,
    statements: Statements,
    me: Identity,
    /// Names this process.
    process: i64,
}

/// What a renewal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The row was that of this process, or there was none.
    Own,
    /// The row was that of another process with the same peer ID: the gateway was started again, or two run at the same
    /// time.
    Other,
}

impl DatabaseMembers {
    /// The members, in a database whose log was opened ([`super::DatabaseLog::open`]).
    ///
    /// # Errors
    /// [`DatabaseError::Settings`] without random numbers.
    pub fn new(database: Database, me: Identity) -> Result<Self, DatabaseError> {
        let process = super::random_number()?.cast_signed();
        let (statements, session) = (Statements::of(database.schema()), ReconnectingSession::new(database.clone()));
        Ok(Self { database, session, statements, me, process })
    }

    /// The peer ID of this gateway.
    pub fn peer_id(&self) -> &str {
        &self.me.peer_id
    }

    /// Begins or renews the lease of this gateway, which listens for peers at these addresses.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn renew(&self, lease: Duration, addresses: &[String]) -> Result<Renewed, DatabaseError> {
        let (Identity { peer_id, host, version }, lease) = (&self.me, milliseconds(lease));
        let rows = self.session.run(async |session| {
            let parameters: [Parameter<'_>; 6] = [
                (peer_id, Type::TEXT),
                (&self.process, Type::INT8),
                (host, Type::TEXT),
                (version, Type::TEXT),
                (&lease, Type::FLOAT8),
                (&addresses, Type::TEXT_ARRAY),
            ];
            session.query_typed(&self.statements.renew, &parameters).await
        });
        let rows = rows.await?;
        let before = rows.first().map_or(Ok(None), |row| row.try_get::<_, Option<i64>>(0));
        match before.map_err(|error| self.database.error(&error))? {
            Some(process) if process != self.process => Ok(Renewed::Other),
            _ => Ok(Renewed::Own),
        }
    }

    /// Removes gateways whose lease ended longer ago than this.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn remove_old(&self, age: Duration) -> Result<(), DatabaseError> {
        let age = milliseconds(age);
        let removed = self
            .session
            .run(async |session| session.query_typed(&self.statements.remove_old, &[(&age, Type::FLOAT8)]).await);
        removed.await.map(|_| ())
    }

    /// All of them, also those whose lease has ended, in the order of their peer IDs; at most a thousand.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn list(&self) -> Result<Vec<Member>, DatabaseError> {
        let rows = self
            .session
            .run(async |session| session.query_typed(&self.statements.list, &[(&MEMBERS_MAX, Type::INT8)]).await)
            .await?;
        rows.iter().map(member).collect::<Result<_, _>>().map_err(|error| self.database.error(&error))
    }

    /// Ends the lease of this gateway.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn leave(&self) -> Result<(), DatabaseError> {
        let left = self.session.run(async |session| {
            let parameters: [Parameter<'_>; 2] = [(&self.me.peer_id, Type::TEXT), (&self.process, Type::INT8)];
            session.query_typed(&self.statements.leave, &parameters).await
        });
        left.await.map(|_| ())
    }
}

fn member(row: &Row) -> Result<Member, tokio_postgres::Error> {
    let duration = |column| row.try_get::<_, i64>(column).map(|ms| Duration::from_millis(ms.try_into().unwrap_or(0)));
    Ok(Member {
        peer_id: row.try_get(0)?,
        host: row.try_get(1)?,
        version: row.try_get(2)?,
        started: UNIX_EPOCH + duration(3)?,
        seen_ago: duration(4)?,
        is_alive: row.try_get(5)?,
        addresses: row.try_get(6)?,
    })
}
