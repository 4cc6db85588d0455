//! [`DatabaseUploads`]: the rows of resumable uploads, and of the objects with their bytes.
//!
//! A change is one statement or one call of a function, which is one transaction. It locks the row of the upload before
//! those of its parts. Times are those of the database.
//!
//! *Terms.* Each request that takes an upload increases its term, and changes it only while the term is its own. So the
//! answer to the latest request stays true, whichever gateway the requests before it are sent to.

use super::address::Database;
use super::error::DatabaseError;
use super::reconnecting::ReconnectingSession;
use super::{Parameter, milliseconds};
use services::uploads::limits::ResumableLimits;
use services::uploads::resumable::record::{Record, UploadOutcome};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Uploads that are listed at most. An owner has fewer.
const LIST_MAX: i64 = 10_000;
/// The longest lifetime, which is within the range of PostgreSQL.
const LIFETIME_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The columns of an upload ([`upload_row`]).
const COLUMNS: &str = "id, owner, length, received, query, media_type, name, extract(epoch FROM created)::bigint,
    extract(epoch FROM touched)::bigint, outcome, term";

/// An upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRow {
    /// Its ID.
    pub id: String,
    /// What is known of it.
    pub record: Record,
    /// Increases with each request that takes it.
    pub term: i64,
}

/// The result of an attempt to create an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreatedUpload {
    /// It was created.
    Created,
    /// Its owner has as many open uploads as it may have.
    TooMany,
    /// The open uploads, those of the owner or all, leave too little space.
    TooLarge,
}

/// An object with bytes of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartRow {
    /// A random number, which names the object.
    pub generation: u64,
    /// The position of its first byte in the upload.
    pub start: u64,
    /// How many of its bytes are the upload's. It may have more, which were discarded.
    pub bytes: u64,
}

/// A part that was written, and is to become the last one of an upload.
#[derive(Debug, Clone, Copy)]
pub struct NewPart {
    /// The part.
    pub part: PartRow,
    /// The number of bytes that the upload has before.
    pub received_before: u64,
    /// The part that it replaces: it has the same bytes, and more.
    pub replaced: Option<u64>,
    /// For how long the upload is kept from others if it is complete then, since it is imported.
    pub lease: Duration,
}

/// The statements, with the name of the schema.
#[derive(Debug)]
struct Statements {
    create: String,
    find: String,
    list: String,
    take: String,
    unfinished: String,
    take_unfinished: String,
    progress: String,
    register: String,
    append: String,
    truncate: String,
    last_part: String,
    parts: String,
    renew: String,
    finish: String,
    remove: String,
    expired: String,
    sweep: String,
    remove_parts: String,
    register_orphans: String,
}

impl Statements {
    fn of(schema: &str) -> Self {
        let is_alive = |lifetime: &str| format!("touched > clock_timestamp() - {lifetime} * interval '1 millisecond'");
        let from_now = |ms: &str| format!("clock_timestamp() + {ms} * interval '1 millisecond'");
        // Complete, and imported by no gateway for so long.
        let is_unfinished = |ms: &str| {
            format!(
                "open AND outcome IS NULL AND received = length
                AND coalesce(import_until, touched) <= clock_timestamp() - {ms} * interval '1 millisecond'"
            )
        };
        Self {
            create: format!("SELECT \"{schema}\".create_upload($1, $2, $3, $4, $5, $6, $7, $8, $9)"),
            // $3: the lifetime; null: also one that has expired.
            find: format!(
                "SELECT {COLUMNS} FROM \"{schema}\".upload
                WHERE id = $1 AND owner = $2 AND ($3::float8 IS NULL OR {})",
                is_alive("$3")
            ),
            list: format!(
                "SELECT {COLUMNS} FROM \"{schema}\".upload WHERE owner = $1 AND {} ORDER BY created, id LIMIT $3",
                is_alive("$2")
            ),
            take: format!(
                "UPDATE \"{schema}\".upload SET term = term + 1, import_until = NULL
                WHERE id = $1 AND owner = $2 AND {}
                    AND (import_until IS NULL OR import_until <= clock_timestamp())
                RETURNING {COLUMNS}",
                is_alive("$3")
            ),
            unfinished: format!(
                "SELECT id, owner FROM \"{schema}\".upload WHERE {} ORDER BY touched LIMIT $2",
                is_unfinished("$1")
            ),
            take_unfinished: format!(
                "UPDATE \"{schema}\".upload SET term = term + 1, import_until = {}
                WHERE id = $1 AND {} RETURNING {COLUMNS}",
                from_now("$3"),
                is_unfinished("$2")
            ),
            progress: format!("SELECT term, received FROM \"{schema}\".upload WHERE id = $1"),
            register: format!(
                "INSERT INTO \"{schema}\".upload_part (generation, upload, sweep_at) VALUES ($1, $2, {})",
                from_now("$3")
            ),
            append: format!("SELECT \"{schema}\".append_part($1, $2, $3, $4, $5, $6, $7, $8)"),
            truncate: format!("SELECT \"{schema}\".truncate_upload($1, $2, $3)"),
            last_part: format!(
                "SELECT generation, start, bytes FROM \"{schema}\".upload_part
                WHERE upload = $1 AND start IS NOT NULL ORDER BY start DESC LIMIT 1"
            ),
            parts: format!(
                "SELECT generation, start, bytes FROM \"{schema}\".upload_part
                WHERE upload = $1 AND start >= $2 ORDER BY start LIMIT $3"
            ),
            renew: format!(
                "UPDATE \"{schema}\".upload SET import_until = {} WHERE id = $1 AND term = $2 RETURNING id",
                from_now("$3")
            ),
            finish: format!("SELECT \"{schema}\".finish_upload($1, $2, $3, $4, $5)"),
            remove: format!("SELECT \"{schema}\".remove_upload($1, $2, $3)"),
            expired: format!(
                "SELECT id FROM \"{schema}\".upload WHERE NOT {} ORDER BY touched LIMIT $2",
                is_alive("$1")
            ),
            sweep: format!(
                "WITH due AS (
                    SELECT generation FROM \"{schema}\".upload_part
                    WHERE start IS NULL AND sweep_at <= clock_timestamp()
                    ORDER BY sweep_at LIMIT $1 FOR UPDATE SKIP LOCKED
                )
                UPDATE \"{schema}\".upload_part AS part SET deleting = true, sweep_at = {}
                FROM due WHERE part.generation = due.generation
                RETURNING part.generation, part.upload",
                from_now("$2")
            ),
            // Of gateways that remove the same ones, none waits for another that waits for it.
            remove_parts: format!(
                "WITH gone AS (
                    SELECT generation FROM \"{schema}\".upload_part
                    WHERE generation = ANY($1) AND start IS NULL ORDER BY generation FOR UPDATE
                )
                DELETE FROM \"{schema}\".upload_part AS part USING gone WHERE part.generation = gone.generation"
            ),
            register_orphans: format!(
                "INSERT INTO \"{schema}\".upload_part (generation, upload, deleting, sweep_at)
                SELECT generation, upload, true, {} FROM unnest($1::bigint[], $2::text[]) AS given (generation, upload)
                ON CONFLICT DO NOTHING RETURNING generation, upload",
                from_now("$3")
            ),
        }
    }
}

/// The resumable uploads of a site. Each gateway has its own.
#[derive(Debug)]
pub struct DatabaseUploads {
    session: ReconnectingSession,
    statements: Statements,
}

impl DatabaseUploads {
    /// The uploads in a database whose log was opened ([`super::DatabaseLog::open`]).
    pub fn new(database: Database) -> Self {
        let statements = Statements::of(database.schema());
        Self { session: ReconnectingSession::new(database), statements }
    }

    async fn run(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, DatabaseError> {
        self.session.run(async |session| session.query_typed(statement, parameters).await).await
    }

    /// The error of a row that is not as expected.
    fn wrong(&self) -> impl Fn(tokio_postgres::Error) -> DatabaseError {
        |error| self.session.database().error(&error)
    }

    /// Whether a change was made, in the first column of the only row.
    async fn is_changed(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<bool, DatabaseError> {
        let rows = self.run(statement, parameters).await?;
        rows.first().map_or(Ok(false), |row| row.try_get(0)).map_err(self.wrong())
    }

    fn uploads(&self, rows: &[Row]) -> Result<Vec<UploadRow>, DatabaseError> {
        let read = rows.iter().map(upload_row).collect::<Result<Option<Vec<_>>, _>>().map_err(self.wrong())?;
        read.ok_or_else(|| self.session.database().unreachable("a row of its uploads is invalid"))
    }

    /// Creates an upload, unless the open ones reach a limit.
    ///
    /// # Errors
    /// [`DatabaseError`]. It may have been created.
    pub async fn create(
        &self,
        id: &str,
        record: &Record,
        limits: &ResumableLimits,
    ) -> Result<CreatedUpload, DatabaseError> {
        let Ok(length) = i64::try_from(record.length) else { return Ok(CreatedUpload::TooLarge) };
        let [bytes_max, owner_bytes_max] = [limits.bytes_max, limits.token_bytes_max].map(to_int8);
        let owner_max = to_int8(limits.token_max as u64);
        let Record { owner, query, media_type, name, .. } = record;
        let parameters: [Parameter<'_>; 9] = [
            (&id, Type::TEXT),
            (owner, Type::TEXT),
            (&length, Type::INT8),
            (query, Type::TEXT),
            (media_type, Type::TEXT),
            (name, Type::TEXT),
            (&bytes_max, Type::INT8),
            (&owner_bytes_max, Type::INT8),
            (&owner_max, Type::INT8),
        ];
        let rows = self.run(&self.statements.create, &parameters).await?;
        match rows.first().map_or(Ok(2), |row| row.try_get::<_, i32>(0)).map_err(self.wrong())? {
            0 => Ok(CreatedUpload::Created),
            1 => Ok(CreatedUpload::TooMany),
            _ => Ok(CreatedUpload::TooLarge),
        }
    }

    /// An owner's upload, unless it has not changed for so long.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn find(
        &self,
        owner: &str,
        id: &str,
        lifetime: Option<Duration>,
    ) -> Result<Option<UploadRow>, DatabaseError> {
        let lifetime = lifetime.map(lifetime_ms);
        let parameters: [Parameter<'_>; 3] = [(&id, Type::TEXT), (&owner, Type::TEXT), (&lifetime, Type::FLOAT8)];
        Ok(self.uploads(&self.run(&self.statements.find, &parameters).await?)?.pop())
    }

    /// The uploads of an owner that have changed within this time, oldest first.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn list(&self, owner: &str, lifetime: Duration) -> Result<Vec<UploadRow>, DatabaseError> {
        let lifetime = lifetime_ms(lifetime);
        let parameters: [Parameter<'_>; 3] = [(&owner, Type::TEXT), (&lifetime, Type::FLOAT8), (&LIST_MAX, Type::INT8)];
        self.uploads(&self.run(&self.statements.list, &parameters).await?)
    }

    /// Takes an owner's upload, unless it is being imported, or has not changed for so long.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn take(&self, owner: &str, id: &str, lifetime: Duration) -> Result<Option<UploadRow>, DatabaseError> {
        let lifetime = lifetime_ms(lifetime);
        let parameters: [Parameter<'_>; 3] = [(&id, Type::TEXT), (&owner, Type::TEXT), (&lifetime, Type::FLOAT8)];
        Ok(self.uploads(&self.run(&self.statements.take, &parameters).await?)?.pop())
    }

    /// Complete uploads without an outcome that no gateway has imported for so long: their IDs and owners.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn unfinished(&self, age: Duration, max: u32) -> Result<Vec<(String, String)>, DatabaseError> {
        let (age, max) = (milliseconds(age), i64::from(max));
        let rows = self.run(&self.statements.unfinished, &[(&age, Type::FLOAT8), (&max, Type::INT8)]).await?;
        let read = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        read.collect::<Result<_, _>>().map_err(self.wrong())
    }

    /// Takes one of them, and keeps it from others for the time of the lease.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn take_unfinished(
        &self,
        id: &str,
        age: Duration,
        lease: Duration,
    ) -> Result<Option<UploadRow>, DatabaseError> {
        let [age, lease] = [age, lease].map(milliseconds);
        let parameters: [Parameter<'_>; 3] = [(&id, Type::TEXT), (&age, Type::FLOAT8), (&lease, Type::FLOAT8)];
        Ok(self.uploads(&self.run(&self.statements.take_unfinished, &parameters).await?)?.pop())
    }

    /// The term of an upload, and the number of bytes that it has.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn progress(&self, id: &str) -> Result<Option<(i64, u64)>, DatabaseError> {
        let rows = self.run(&self.statements.progress, &[(&id, Type::TEXT)]).await?;
        let read = rows.first().map(|row| Ok((row.try_get(0)?, to_u64(row.try_get(1)?))));
        read.transpose().map_err(self.wrong())
    }

    /// Records an object that is about to be written. Any gateway deletes it after this time, unless it has become a
    /// part of the upload by then.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn register(&self, id: &str, generation: u64, within: Duration) -> Result<(), DatabaseError> {
        let (generation, within) = (generation.cast_signed(), milliseconds(within));
        let parameters: [Parameter<'_>; 3] = [(&generation, Type::INT8), (&id, Type::TEXT), (&within, Type::FLOAT8)];
        self.run(&self.statements.register, &parameters).await.map(|_| ())
    }

    /// Adds a part that was written. Returns whether it is one now: the term and the number of bytes have to be those
    /// that the caller knows, and the part must not have been swept.
    ///
    /// # Errors
    /// [`DatabaseError`]. It may have become a part.
    pub async fn append(&self, id: &str, term: i64, new: &NewPart) -> Result<bool, DatabaseError> {
        let [before, start, bytes] = [new.received_before, new.part.start, new.part.bytes].map(to_int8);
        let (generation, replaced) = (new.part.generation.cast_signed(), new.replaced.map(u64::cast_signed));
        let lease = i64::try_from(new.lease.as_millis()).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 8] = [
            (&id, Type::TEXT),
            (&term, Type::INT8),
            (&before, Type::INT8),
            (&generation, Type::INT8),
            (&start, Type::INT8),
            (&bytes, Type::INT8),
            (&replaced, Type::INT8),
            (&lease, Type::INT8),
        ];
        self.is_changed(&self.statements.append, &parameters).await
    }

    /// Removes the bytes from a position on. Returns whether the term was that of the upload.
    ///
    /// # Errors
    /// [`DatabaseError`]. They may have been removed.
    pub async fn truncate(&self, id: &str, term: i64, received: u64) -> Result<bool, DatabaseError> {
        let received = to_int8(received);
        let parameters: [Parameter<'_>; 3] = [(&id, Type::TEXT), (&term, Type::INT8), (&received, Type::INT8)];
        self.is_changed(&self.statements.truncate, &parameters).await
    }

    /// The last part of an upload.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn last_part(&self, id: &str) -> Result<Option<PartRow>, DatabaseError> {
        let rows = self.run(&self.statements.last_part, &[(&id, Type::TEXT)]).await?;
        rows.first().map(part_row).transpose().map_err(self.wrong())
    }

    /// At most so many parts of an upload from a position on, in their order.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn parts(&self, id: &str, start: u64, max: u32) -> Result<Vec<PartRow>, DatabaseError> {
        let (start, max) = (to_int8(start), i64::from(max));
        let parameters: [Parameter<'_>; 3] = [(&id, Type::TEXT), (&start, Type::INT8), (&max, Type::INT8)];
        let rows = self.run(&self.statements.parts, &parameters).await?;
        rows.iter().map(part_row).collect::<Result<_, _>>().map_err(self.wrong())
    }

    /// Keeps an upload from others for the time of the lease, or no longer. Returns whether the term was that of the
    /// upload.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn renew(&self, id: &str, term: i64, lease: Duration) -> Result<bool, DatabaseError> {
        let lease = milliseconds(lease);
        let parameters: [Parameter<'_>; 3] = [(&id, Type::TEXT), (&term, Type::INT8), (&lease, Type::FLOAT8)];
        Ok(!self.run(&self.statements.renew, &parameters).await?.is_empty())
    }

    /// Records the outcome of an upload, whose bytes are not needed any more unless it stays open. So many of the
    /// owner's that have ended are kept. Returns whether the term was that of the upload.
    ///
    /// # Errors
    /// [`DatabaseError`]. It may have been recorded.
    pub async fn finish(
        &self,
        id: &str,
        term: i64,
        (outcome, stays_open): (&UploadOutcome, bool),
        ended_max: usize,
    ) -> Result<bool, DatabaseError> {
        let (outcome, ended_max) = (outcome.to_json(), to_int8(ended_max as u64));
        let parameters: [Parameter<'_>; 5] = [
            (&id, Type::TEXT),
            (&term, Type::INT8),
            (&outcome, Type::TEXT),
            (&stays_open, Type::BOOL),
            (&ended_max, Type::INT8),
        ];
        self.is_changed(&self.statements.finish, &parameters).await
    }

    /// Removes an upload. Returns whether the term was that of the upload.
    ///
    /// # Errors
    /// [`DatabaseError`]. It may have been removed.
    pub async fn remove(&self, id: &str, term: i64) -> Result<bool, DatabaseError> {
        self.remove_if(id, Some(term), None).await
    }

    /// Removes at most so many uploads that have not changed for this time, and are not being imported. Returns how
    /// many.
    ///
    /// # Errors
    /// [`DatabaseError`]. Some may have been removed.
    pub async fn remove_expired(&self, lifetime: Duration, max: u32) -> Result<usize, DatabaseError> {
        let (lifetime, max) = (lifetime_ms(lifetime), i64::from(max));
        let rows = self.run(&self.statements.expired, &[(&lifetime, Type::FLOAT8), (&max, Type::INT8)]).await?;
        let mut removed = 0;
        for row in &rows {
            let id: &str = row.try_get(0).map_err(self.wrong())?;
            removed += usize::from(self.remove_if(id, None, Some(lifetime)).await?);
        }
        Ok(removed)
    }

    async fn remove_if(&self, id: &str, term: Option<i64>, unused_ms: Option<f64>) -> Result<bool, DatabaseError> {
        let parameters: [Parameter<'_>; 3] = [(&id, Type::TEXT), (&term, Type::INT8), (&unused_ms, Type::FLOAT8)];
        self.is_changed(&self.statements.remove, &parameters).await
    }

    /// Marks at most so many objects that are to be deleted, after which they cannot become parts. They are returned
    /// again after this time, unless their rows are removed.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn sweep(&self, max: u32, again: Duration) -> Result<Vec<(u64, String)>, DatabaseError> {
        let (max, again) = (i64::from(max), milliseconds(again));
        let rows = self.run(&self.statements.sweep, &[(&max, Type::INT8), (&again, Type::FLOAT8)]).await?;
        self.objects(&rows)
    }

    /// Removes the rows of objects that were deleted.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn remove_parts(&self, generations: &[u64]) -> Result<(), DatabaseError> {
        let generations: Vec<i64> = generations.iter().map(|generation| generation.cast_signed()).collect();
        self.run(&self.statements.remove_parts, &[(&generations, Type::INT8_ARRAY)]).await.map(|_| ())
    }

    /// Records those of the objects that are not known, to be deleted by the caller, or by any gateway after this time.
    /// Returns them. They have to have been listed before.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn register_orphans(
        &self,
        objects: &[(u64, String)],
        again: Duration,
    ) -> Result<Vec<(u64, String)>, DatabaseError> {
        let again = milliseconds(again);
        let (generations, ids): (Vec<i64>, Vec<&str>) =
            objects.iter().map(|(generation, id)| (generation.cast_signed(), id.as_str())).unzip();
        let parameters: [Parameter<'_>; 3] =
            [(&generations, Type::INT8_ARRAY), (&ids, Type::TEXT_ARRAY), (&again, Type::FLOAT8)];
        self.objects(&self.run(&self.statements.register_orphans, &parameters).await?)
    }

    fn objects(&self, rows: &[Row]) -> Result<Vec<(u64, String)>, DatabaseError> {
        let read = rows.iter().map(|row| Ok((row.try_get::<_, i64>(0)?.cast_unsigned(), row.try_get(1)?)));
        read.collect::<Result<_, _>>().map_err(self.wrong())
    }
}

fn upload_row(row: &Row) -> Result<Option<UploadRow>, tokio_postgres::Error> {
    let number = |column| row.try_get(column).map(to_u64);
    let outcome = match row.try_get::<_, Option<&str>>(9)? {
        None => None,
        Some(text) => match UploadOutcome::of_json(text) {
            None => return Ok(None),
            outcome => outcome,
        },
    };
    let record = Record {
        owner: row.try_get(1)?,
        length: number(2)?,
        offset: number(3)?,
        query: row.try_get(4)?,
        media_type: row.try_get(5)?,
        name: row.try_get(6)?,
        created_at: number(7)?,
        touched_at: number(8)?,
        outcome,
    };
    Ok(Some(UploadRow { id: row.try_get(0)?, record, term: row.try_get(10)? }))
}

fn part_row(row: &Row) -> Result<PartRow, tokio_postgres::Error> {
    let generation = row.try_get::<_, i64>(0)?.cast_unsigned();
    Ok(PartRow { generation, start: to_u64(row.try_get(1)?), bytes: to_u64(row.try_get(2)?) })
}

fn lifetime_ms(lifetime: Duration) -> f64 {
    milliseconds(lifetime.min(LIFETIME_MAX))
}

/// Numbers of bytes are far from the limit.
fn to_int8(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn to_u64(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
