//! [`DatabaseClaims`]: which gateway of a site works on which root.
//!
//! Goals: at any time at most one gateway has a valid claim on a root, by whatever clock; what a gateway that has ended
//! leaves behind can be claimed when its lease ends.
//!
//! Non-goals: fairness; what the work is. That a result is not recorded twice is a matter of the log.
//!
//! The database's clock alone decides when a lease ends, so that clocks of gateways may be wrong. A gateway counts its
//! own lease from before it asked for it, and so gives it up before others can take it over, as long as its clock does
//! not run slower than the database's by more than the time of an answer.

use super::Parameter;
use super::address::Database;
use super::error::DatabaseError;
use super::reconnecting::ReconnectingSession;
use content::Cid;
use futures::future::{BoxFuture, FutureExt as _};
use services::pinning::coordination::{Claim, Claimed, Claims};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::types::Type;

/// How long a claim lasts without being renewed.
const LEASE: Duration = Duration::from_secs(30);

/// The statements, with the name of the schema. $1 is a root, $2 a member.
#[derive(Debug)]
struct Statements {
    claim: String,
    rest: String,
    renew: String,
    release: String,
}

impl Statements {
    fn of(schema: &str) -> Self {
        let lease_end = "clock_timestamp() + $3 * interval '1 millisecond'";
        Self {
            // Unless another member has it. A claim that is taken over has a higher term, as has one that the same
            // member asks for again, because an answer was lost.
            claim: format!(
                "INSERT INTO \"{schema}\".claim AS held (root, member, term, lease_end) VALUES ($1, $2, 1, {lease_end})
                ON CONFLICT (root) DO UPDATE
                SET member = excluded.member, term = held.term + 1, lease_end = {lease_end}
                WHERE held.member = excluded.member OR held.lease_end <= clock_timestamp()
                RETURNING term"
            ),
            // In milliseconds.
            rest: format!(
                "SELECT ceil(extract(epoch FROM lease_end - clock_timestamp()) * 1000)::bigint
                FROM \"{schema}\".claim WHERE root = $1"
            ),
            renew: format!(
                "UPDATE \"{schema}\".claim SET lease_end = {lease_end}
                WHERE root = $1 AND member = $2 AND term = $4 RETURNING term"
            ),
            release: format!("DELETE FROM \"{schema}\".claim WHERE root = $1 AND member = $2 AND term = $3"),
        }
    }
}

/// How long claims last.
#[derive(Debug, Clone)]
pub struct ClaimOptions {
    /// The lease: how long a gateway that has ended keeps others from its work.
    pub lease: Duration,
}

impl Default for ClaimOptions {
    fn default() -> Self {
        Self { lease: LEASE }
    }
}

/// The claims of one gateway.
#[derive(Debug)]
pub struct DatabaseClaims {
    claiming: Arc<Claiming>,
}

#[derive(Debug)]
struct Claiming {
    session: ReconnectingSession,
    statements: Statements,
    /// Names this process, and none before it.
    member: i64,
    lease: Duration,
}

impl DatabaseClaims {
    /// The claims of this process, in a database whose log was opened ([`super::DatabaseLog::open`]).
    ///
    /// # Errors
    /// [`DatabaseError::Settings`] without random numbers.
    pub fn new(database: Database, options: &ClaimOptions) -> Result<Self, DatabaseError> {
        let (member, statements) = (super::random_number()?.cast_signed(), Statements::of(database.schema()));
        let session = ReconnectingSession::new(database);
        Ok(Self { claiming: Arc::new(Claiming { session, statements, member, lease: options.lease }) })
    }
}

impl Claims for DatabaseClaims {
    fn claim(&self, root: &Cid) -> BoxFuture<'static, Result<Claimed, cache::StoreError>> {
        let (claiming, root) = (Arc::clone(&self.claiming), *root);
        async move { Ok(claiming.claim(root).await?) }.boxed()
    }

    fn renew(&self, claim: &Claim) -> BoxFuture<'static, Result<Option<Claim>, cache::StoreError>> {
        let (claiming, claim) = (Arc::clone(&self.claiming), claim.clone());
        async move { Ok(claiming.renew(claim).await?) }.boxed()
    }

    fn release(&self, claim: Claim) -> BoxFuture<'static, ()> {
        let claiming = Arc::clone(&self.claiming);
        async move {
            if let Err(error) = claiming.release(&claim).await {
                tracing::debug!(root = %claim.root, %error, "a claim could not be released, and ends with its lease");
            }
        }
        .boxed()
    }
}

impl Claiming {
    async fn claim(&self, root: Cid) -> Result<Claimed, DatabaseError> {
        let asked = Instant::now();
        let (key, lease) = (root.to_bytes(), self.lease_ms());
        let rows = self.session.run(async |session| {
            let parameters: [Parameter<'_>; 3] =
                [(&key, Type::BYTEA), (&self.member, Type::INT8), (&lease, Type::INT8)];
            match session.query_typed(&self.statements.claim, &parameters).await?.first() {
                Some(row) => Ok(Ok(row.try_get::<_, i64>(0)?)),
                // Released meanwhile: at once.
                None => {
                    let rest = session.query_typed(&self.statements.rest, &[(&key, Type::BYTEA)]).await?;
                    Ok(Err(rest.first().map_or(Ok(0), |row| row.try_get::<_, i64>(0))?))
                }
            }
        });
        Ok(match rows.await? {
            Ok(term) => Claimed::Granted(Claim {
                root,
                term: u64::try_from(term).unwrap_or_default(),
                lease_end: Some(asked + self.lease),
            }),
            Err(rest_ms) => {
                Claimed::Held { retry_after: Duration::from_millis(u64::try_from(rest_ms).unwrap_or_default()) }
            }
        })
    }

    async fn renew(&self, claim: Claim) -> Result<Option<Claim>, DatabaseError> {
        let asked = Instant::now();
        let (key, term, lease) = (claim.root.to_bytes(), stored(claim.term), self.lease_ms());
        let rows = self.session.run(async |session| {
            let of_claim: [Parameter<'_>; 4] =
                [(&key, Type::BYTEA), (&self.member, Type::INT8), (&lease, Type::INT8), (&term, Type::INT8)];
            session.query_typed(&self.statements.renew, &of_claim).await
        });
        let is_renewed = !rows.await?.is_empty();
        Ok(match is_renewed {
            true => Some(Claim { lease_end: Some(asked + self.lease), ..claim }),
            false => None,
        })
    }

    async fn release(&self, claim: &Claim) -> Result<(), DatabaseError> {
        let (key, term) = (claim.root.to_bytes(), stored(claim.term));
        let rows = self.session.run(async |session| {
            let of_claim: [Parameter<'_>; 3] = [(&key, Type::BYTEA), (&self.member, Type::INT8), (&term, Type::INT8)];
            session.query_typed(&self.statements.release, &of_claim).await
        });
        rows.await.map(|_| ())
    }

    fn lease_ms(&self) -> i64 {
        i64::try_from(self.lease.as_millis()).unwrap_or(i64::MAX)
    }
}

fn stored(term: u64) -> i64 {
    i64::try_from(term).unwrap_or(i64::MAX)
}
