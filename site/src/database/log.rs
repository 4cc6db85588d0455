//! [`DatabaseLog`]: a log of changes of metadata records, in the database of a site, which has three of them
//! ([`LogKind`]).
//!
//! Goals: an append is one statement, which is one transaction and one round trip; it moves the log only from the entry
//! that the caller knows, so that of appends at the same time one succeeds and the others learn of it; after a failover
//! that has lost entries no gateway goes on as if it had seen the log that is there now.
//!
//! Non-goals: history. The latest entries are kept for gateways that are behind, and the records contain all of them.
//!
//! *Tags.* A standby that is promoted without the latest entries gives their numbers to others. Each entry has a random
//! tag, which is part of its position, and the tag of the entry before it. A caller whose entry is not in the log reads
//! the records again. (That entries are lost at all is a matter of `synchronous_standby_names`.)
//!
//! *Notifications* are hints. They are sent after the append, in a statement of their own: a transaction that notifies
//! holds a lock of the whole server while it commits. They are received in a session of their own, which reads the
//! position now and then, so that its end is noticed.

use super::Parameter;
use super::address::Database;
use super::error::DatabaseError;
use super::reconnecting::ReconnectingSession;
use super::schema;
use super::session::Session;
use cache::StoreError;
use cache::metadata_store::{Appended, Change, LogEntry, LogPosition, MetadataLog};
use futures::future::{BoxFuture, FutureExt as _};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The number of entries that one append returns at most.
const ENTRIES_MAX: i64 = 256;
/// The size of their changes, in bytes. A larger entry is returned alone.
const ENTRIES_BYTES_MAX: i64 = 8 << 20;
/// How often an append is repeated because the head has changed and is now what it should be: after a failover.
const ATTEMPTS_MAX: usize = 4;
/// After how many entries those that are too old are removed, and how many at a time.
const TRIM_INTERVAL: u64 = 1024;
const TRIMMED_MAX: i64 = 4 * 1024;
/// The number of records that are read at a time, and of such pages that wait for the caller.
const PAGE: i64 = 512;
const PAGES: usize = 2;
/// How long a page of records may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long it takes until another attempt to listen for notifications.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// How often the position is read without a notification, and how long that may take.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long a session may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);

type Record = (Vec<u8>, Vec<u8>);

/// Which of the logs of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogKind {
    /// The log of pin metadata.
    Pins,
    /// The log of the rules and tokens of all gateways.
    Control,
    /// The log of the IPNS keys and published names of all gateways.
    Names,
}

impl LogKind {
    /// The name of its channel of notifications, in the schema.
    fn channel(self) -> &'static str {
        match self {
            Self::Pins => "log",
            Self::Control => "control",
            Self::Names => "names",
        }
    }

    /// The tables of its head, its entries and its records.
    fn tables(self) -> [&'static str; 3] {
        match self {
            Self::Pins => ["log_head", "log_entry", "record"],
            Self::Control => ["control_head", "control_entry", "control_record"],
            Self::Names => ["name_head", "name_entry", "name_record"],
        }
    }
}

/// The statements, with the names of the schema and the tables.
#[derive(Debug)]
struct Statements {
    append: String,
    after: String,
    head: String,
    first_page: String,
    next_page: String,
    trim: String,
}

impl Statements {
    fn of(schema: &str, kind: LogKind) -> Self {
        let [head, entry, record] = kind.tables().map(|table| format!("\"{schema}\".{table}"));
        Self {
            // $1, $2: the position and tag of the latest entry; $3: the new tag; $4: the session; $5, $6, $7: the
            // changes, with their size.
            //
            // The update of the head waits for another append, and is then judged on what that has written; the other
            // parts change nothing without it. No other append can come in between, because it needs the row of the
            // head. The last change of a record counts, since a statement can change a row once.
            append: format!(
                "WITH head AS (
                    UPDATE {head} SET position = position + 1, tag = $3
                    WHERE position = $1 AND tag = $2 AND current_setting('causeway.session', true) = $4
                    RETURNING position
                ), entry AS (
                    INSERT INTO {entry} (position, tag, previous, bytes, keys, contents)
                    SELECT position, $3, $2, $5, $6, $7 FROM head
                ), final AS (
                    SELECT DISTINCT ON (key) key, content
                    FROM unnest($6::bytea[], $7::bytea[]) WITH ORDINALITY AS change (key, content, number)
                    ORDER BY key, number DESC
                ), removed AS (
                    DELETE FROM {record} AS record USING head, final
                    WHERE record.key = final.key AND final.content IS NULL
                ), written AS (
                    INSERT INTO {record} (key, content)
                    SELECT final.key, final.content FROM head, final WHERE final.content IS NOT NULL
                    ON CONFLICT (key) DO UPDATE SET content = excluded.content
                )
                SELECT position FROM head"
            ),
            // $1: the position; $2, $3: the limits; $4: the session.
            after: format!(
                "SELECT head.position, head.tag, coalesce(current_setting('causeway.session', true) = $4, false),
                    {READ_ONLY}, entry.position, entry.tag, entry.previous, entry.keys, entry.contents
                FROM {head} AS head LEFT JOIN LATERAL (
                    SELECT * FROM (
                        SELECT *, sum(bytes) OVER (ORDER BY position) - bytes AS bytes_before FROM (
                            SELECT * FROM {entry} WHERE position > $1 ORDER BY position LIMIT $2
                        ) AS following
                    ) AS sized WHERE bytes_before < $3 OR bytes_before = 0
                ) AS entry ON true
                ORDER BY entry.position"
            ),
            head: format!("SELECT position, tag, {READ_ONLY} FROM {head}"),
            first_page: format!("SELECT key, content FROM {record} ORDER BY key LIMIT $1"),
            next_page: format!("SELECT key, content FROM {record} WHERE key > $2 ORDER BY key LIMIT $1"),
            trim: format!(
                "DELETE FROM {entry} WHERE position IN (
                    SELECT position FROM {entry} WHERE position <= $1 ORDER BY position LIMIT $2
                )"
            ),
        }
    }
}

/// Whether the server accepts no changes: another one may have taken over.
const READ_ONLY: &str = "(pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean)";
/// Why one is given up.
const IS_READ_ONLY: &str = "it accepts no changes";
/// Why statements are refused that reach several sessions.
const IS_POOLED: &str = "a connection pooler runs the statements of one connection in several sessions: \
    set it to session pooling (PgBouncer: pool_mode = session), or connect to the server itself";

/// Which log it is, and how much it keeps.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Which log.
    pub kind: LogKind,
    /// The number of entries that are kept for gateways that are behind. One that is further behind reads all records
    /// again.
    pub entries_kept: u32,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { kind: LogKind::Pins, entries_kept: 65_536 }
    }
}

impl LogOptions {
    /// Those of the log of rules and tokens. Its changes are rare, and an entry of a deep take-down is large.
    pub fn control() -> Self {
        Self { kind: LogKind::Control, entries_kept: 1_024 }
    }

    /// Those of the log of keys and names, whose entries are small.
    pub fn names() -> Self {
        Self { kind: LogKind::Names, entries_kept: 1_024 }
    }
}

/// A log of a site. Each gateway opens its own.
#[derive(Debug)]
pub struct DatabaseLog {
    appending: Arc<Appending>,
    latest: watch::Receiver<LogPosition>,
    listening: JoinHandle<()>,
}

/// What appends share.
#[derive(Debug)]
struct Appending {
    session: ReconnectingSession,
    statements: Arc<Statements>,
    /// The channel of notifications.
    channel: String,
    options: LogOptions,
}

impl DatabaseLog {
    /// Opens a log of a site, and creates the tables if there are none.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub async fn open(database: Database, options: LogOptions) -> Result<Self, DatabaseError> {
        schema::prepare(&database.connect().await?, &database).await?;
        let statements = Arc::new(Statements::of(database.schema(), options.kind));
        let channel = format!("{}.{}", database.schema(), options.kind.channel());
        let (hints, latest) = watch::channel(LogPosition::default());
        let listener = Listener { database: database.clone(), statements: Arc::clone(&statements), hints };
        let listening = tokio::spawn(listener.listen(channel.clone()));
        let session = ReconnectingSession::new(database);
        Ok(Self { appending: Arc::new(Appending { session, statements, channel, options }), latest, listening })
    }
}

impl Drop for DatabaseLog {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl MetadataLog for DatabaseLog {
    /// Reads over a connection of its own, in one transaction that sees one state.
    fn read(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<LogPosition, StoreError> {
        let (pages, received) = mpsc::sync_channel(PAGES);
        let (database, statements) = (self.appending.session.database(), &self.appending.statements);
        // A runtime of its own: the caller may be on a thread of the one that it would wait for.
        std::thread::scope(|scope| {
            let reading = std::thread::Builder::new().name("site-read".into()).spawn_scoped(scope, move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(|error| StoreError::Io(error.to_string().into()))?;
                runtime.block_on(read_records(database, statements, pages)).map_err(StoreError::from)
            });
            let reading = reading.map_err(|error| StoreError::Io(error.to_string().into()))?;
            for page in received {
                page.iter().for_each(|(key, content)| visit(key, content));
            }
            reading.join().map_err(|_| StoreError::Closed)?
        })
    }

    fn append(&self, after: LogPosition, changes: Vec<Change>) -> BoxFuture<'static, Result<Appended, StoreError>> {
        let appending = Arc::clone(&self.appending);
        async move { Ok(appending.append(after, changes).await?) }.boxed()
    }

    fn watch(&self) -> Option<watch::Receiver<LogPosition>> {
        Some(self.latest.clone())
    }
}

impl Appending {
    async fn append(self: Arc<Self>, after: LogPosition, changes: Vec<Change>) -> Result<Appended, DatabaseError> {
        let entry = (!changes.is_empty()).then(|| EntryParameters::of(changes));
        for _ in 0..ATTEMPTS_MAX {
            if let Some(entry) = &entry
                && let Some(position) = self.try_append(after, entry).await?
            {
                tokio::spawn(async move { self.finish(position).await });
                return Ok(Appended::At(position));
            }
            match self.entries_after(after).await? {
                // Another server has answered.
                Following::None if entry.is_some() => {}
                Following::None => return Ok(Appended::At(after)),
                Following::Entries(entries) => return Ok(Appended::Behind(entries)),
                Following::Unknown => return Ok(Appended::Truncated),
            }
        }
        Err(self.session.database().unreachable("the log moves back and forth"))
    }

    /// Appends an entry, unless the latest one is another.
    async fn try_append(
        &self,
        after: LogPosition,
        entry: &EntryParameters,
    ) -> Result<Option<LogPosition>, DatabaseError> {
        let (new_tag, number, tag) = (super::random_number()?, to_sql(after.number), to_sql(after.tag));
        let sql_tag = to_sql(new_tag);
        let rows = self.session.run(async |session| {
            let parameters: [Parameter<'_>; 7] = [
                (&number, Type::INT8),
                (&tag, Type::INT8),
                (&sql_tag, Type::INT8),
                (session.marker(), Type::TEXT),
                (&entry.bytes, Type::INT8),
                (&entry.keys, Type::BYTEA_ARRAY),
                (&entry.contents, Type::BYTEA_ARRAY),
            ];
            session.query_typed(&self.statements.append, &parameters).await
        });
        let number = rows.await?.first().map(|row| row.try_get(0)).transpose();
        let number = number.map_err(|error| self.session.database().error(&error))?;
        Ok(number.map(|number| LogPosition { number: of_sql(number), tag: new_tag }))
    }

    /// The entries after a position.
    async fn entries_after(&self, after: LogPosition) -> Result<Following, DatabaseError> {
        let number = to_sql(after.number);
        let read = self.session.run(async |session| {
            let parameters: [Parameter<'_>; 4] = [
                (&number, Type::INT8),
                (&ENTRIES_MAX, Type::INT8),
                (&ENTRIES_BYTES_MAX, Type::INT8),
                (session.marker(), Type::TEXT),
            ];
            let rows = session.query_typed(&self.statements.after, &parameters).await?;
            let state = rows.first().map(LogState::of).transpose()?;
            let is_entry = |row: &&Row| !matches!(row.try_get::<_, Option<i64>>(4), Ok(None));
            let entries = rows.iter().filter(is_entry).map(StoredEntry::of).collect::<Result<Vec<_>, _>>()?;
            Ok((state, entries))
        });
        let (state, entries) = read.await?;
        let database = self.session.database();
        let Some(state) = state else { return Err(database.unreachable("its tables are incomplete")) };
        if !state.is_own_session {
            return Err(database.unreachable(IS_POOLED));
        }
        if state.is_read_only {
            self.session.reconnect();
            return Err(database.unreachable(IS_READ_ONLY));
        }
        Ok(Following::of(after, state.head, entries))
    }

    /// Notifies other gateways of an entry, and removes old ones now and then.
    async fn finish(&self, position: LogPosition) {
        let payload = format!("{} {}", position.number, position.tag);
        let trimmed = to_sql(position.number).saturating_sub(i64::from(self.options.entries_kept));
        let is_due = position.number.is_multiple_of(TRIM_INTERVAL);
        let done = self.session.run(async |session| {
            let notification: [Parameter<'_>; 2] = [(&self.channel, Type::TEXT), (&payload, Type::TEXT)];
            session.query_typed("SELECT pg_notify($1, $2)", &notification).await?;
            if is_due {
                let old: [Parameter<'_>; 2] = [(&trimmed, Type::INT8), (&TRIMMED_MAX, Type::INT8)];
                session.query_typed(&self.statements.trim, &old).await?;
            }
            Ok(())
        });
        if let Err(error) = done.await {
            tracing::debug!(%error, "other gateways could not be notified of a change; they will find it");
        }
    }
}

/// What follows a position in a log.
#[derive(Debug, PartialEq, Eq)]
enum Following {
    /// It is that of the latest entry.
    None,
    /// The next entries, at least one.
    Entries(Vec<LogEntry>),
    /// The log does not have the entry at the position, or not the one after it.
    Unknown,
}

impl Following {
    fn of(after: LogPosition, head: LogPosition, entries: Vec<StoredEntry>) -> Self {
        if head == after {
            return Self::None;
        }
        let mut last = after;
        let mut following = Vec::new();
        for StoredEntry { previous, entry } in entries {
            if entry.position.number != last.number + 1 || previous != last.tag {
                break;
            }
            last = entry.position;
            following.push(entry);
        }
        if following.is_empty() { Self::Unknown } else { Self::Entries(following) }
    }
}

/// The state of a log, and of the session that has read it.
struct LogState {
    head: LogPosition,
    is_own_session: bool,
    is_read_only: bool,
}

impl LogState {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self { head: position(row, 0)?, is_own_session: row.try_get(2)?, is_read_only: row.try_get(3)? })
    }
}

/// An entry as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StoredEntry {
    /// The tag of the entry before it.
    previous: u64,
    entry: LogEntry,
}

impl StoredEntry {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let (keys, contents): (Vec<Vec<u8>>, Vec<Option<Vec<u8>>>) = (row.try_get(7)?, row.try_get(8)?);
        let changes = keys.into_iter().zip(contents).map(|(key, content)| match content {
            Some(content) => Change::Put(key, content),
            None => Change::Delete(key),
        });
        let entry = LogEntry { position: position(row, 4)?, changes: changes.collect() };
        Ok(Self { previous: of_sql(row.try_get(6)?), entry })
    }
}

/// The changes of an entry as parameters; without a content: removed.
#[derive(Debug)]
struct EntryParameters {
    bytes: i64,
    keys: Vec<Vec<u8>>,
    contents: Vec<Option<Vec<u8>>>,
}

impl EntryParameters {
    fn of(changes: Vec<Change>) -> Self {
        let changes = changes.into_iter().map(|change| match change {
            Change::Put(key, content) => (key, Some(content)),
            Change::Delete(key) => (key, None),
        });
        let (keys, contents): (Vec<Vec<u8>>, Vec<Option<Vec<u8>>>) = changes.unzip();
        let size = |content: &Option<Vec<u8>>| content.as_ref().map_or(0, Vec::len);
        let bytes: usize = keys.iter().map(Vec::len).chain(contents.iter().map(size)).sum();
        Self { bytes: i64::try_from(bytes).unwrap_or(i64::MAX), keys, contents }
    }
}

/// The position in a column, and its tag in the next one.
fn position(row: &Row, column: usize) -> Result<LogPosition, tokio_postgres::Error> {
    Ok(LogPosition { number: of_sql(row.try_get(column)?), tag: of_sql(row.try_get(column + 1)?) })
}

/// The same bits as a signed number, which PostgreSQL has.
fn to_sql(number: u64) -> i64 {
    number.cast_signed()
}

fn of_sql(number: i64) -> u64 {
    number.cast_unsigned()
}

/// Reads all records in the order of their keys, as of the position that is returned.
async fn read_records(
    database: &Database,
    statements: &Statements,
    pages: mpsc::SyncSender<Vec<Record>>,
) -> Result<LogPosition, DatabaseError> {
    let session = database.connect().await?;
    let query = async |statement: &str, parameters: &[Parameter<'_>]| {
        database.within(PAGE_TIMEOUT, session.query_typed(statement, parameters)).await
    };
    let column = |error: tokio_postgres::Error| database.error(&error);
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    database.within(PAGE_TIMEOUT, session.batch_execute(begin)).await?;
    let head = query(&statements.head, &[]).await?;
    let head = head.first().ok_or_else(|| database.unreachable("its tables are incomplete"))?;
    let head = position(head, 0).map_err(column)?;
    let mut rows = query(&statements.first_page, &[(&PAGE, Type::INT8)]).await?;
    loop {
        let is_last = rows.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
        let page = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let page: Vec<Record> = page.collect::<Result<_, _>>().map_err(column)?;
        let last = page.last().map(|(key, _)| key.clone()).unwrap_or_default();
        // It fails only if the caller has panicked.
        if pages.send(page).is_err() || is_last {
            break;
        }
        rows = query(&statements.next_page, &[(&PAGE, Type::INT8), (&last, Type::BYTEA)]).await?;
    }
    // The server logs sessions that end within a transaction.
    _ = timeout(END_TIMEOUT, async {
        _ = session.batch_execute("COMMIT").await;
    })
    .await;
    Ok(head)
}

/// Passes on the positions that others append, for as long as the log is open.
struct Listener {
    database: Database,
    statements: Arc<Statements>,
    hints: watch::Sender<LogPosition>,
}

impl Listener {
    async fn listen(self, channel: String) {
        loop {
            if let Err(error) = self.listen_once(&channel).await {
                tracing::debug!(%error, "changes of other gateways are not notified now");
            }
            sleep(RECONNECT_INTERVAL).await;
        }
    }

    /// Listens until the session ends or the server accepts no changes any more.
    async fn listen_once(&self, channel: &str) -> Result<(), DatabaseError> {
        let session = self.database.connect().await?;
        let mut latest = session.latest_notification();
        let listen = format!("LISTEN \"{channel}\"");
        self.database.within(HEARTBEAT, session.batch_execute(&listen)).await?;
        loop {
            self.hint(self.head(&session).await?);
            while let Ok(changed) = timeout(HEARTBEAT, latest.changed()).await {
                if changed.is_err() {
                    return Ok(());
                }
                let position = parse_notification(&latest.borrow_and_update());
                position.into_iter().for_each(|position| self.hint(position));
            }
        }
    }

    async fn head(&self, session: &Session) -> Result<LogPosition, DatabaseError> {
        let rows = self.database.within(HEARTBEAT, session.query_typed(&self.statements.head, &[])).await?;
        let row = rows.first().ok_or_else(|| self.database.unreachable("its tables are incomplete"))?;
        let column = |error: tokio_postgres::Error| self.database.error(&error);
        match row.try_get(2).map_err(column)? {
            true => Err(self.database.unreachable(IS_READ_ONLY)),
            false => position(row, 0).map_err(column),
        }
    }

    fn hint(&self, position: LogPosition) {
        self.hints.send_if_modified(|latest| std::mem::replace(latest, position) != position);
    }
}

fn parse_notification(payload: &str) -> Option<LogPosition> {
    let (number, tag) = payload.split_once(' ')?;
    Some(LogPosition { number: number.parse().ok()?, tag: tag.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64, tag: u64) -> LogPosition {
        LogPosition { number, tag }
    }

    fn entry(number: u64, previous: u64, tag: u64) -> StoredEntry {
        let changes = vec![Change::Delete(number.to_string().into())];
        StoredEntry { previous, entry: LogEntry { position: at(number, tag), changes } }
    }

    #[test]
    fn only_entries_that_follow_the_one_that_is_known_are_returned() {
        let (six, seven, nine) = (entry(6, 50, 60), entry(7, 60, 70), entry(9, 80, 90));
        let entries =
            |stored: &[&StoredEntry]| Following::Entries(stored.iter().map(|stored| stored.entry.clone()).collect());
        let both = || vec![six.clone(), seven.clone()];
        let table = [
            ("up to date", 50, at(5, 50), vec![], Following::None),
            ("another entry there", 51, at(5, 50), vec![], Following::Unknown),
            ("entries were lost", 50, at(3, 30), vec![], Following::Unknown),
            ("behind", 50, at(7, 70), both(), entries(&[&six, &seven])),
            ("after another entry", 51, at(7, 70), both(), Following::Unknown),
            ("older ones were removed", 50, at(7, 70), vec![seven.clone()], Following::Unknown),
            ("a gap", 50, at(9, 90), vec![six.clone(), seven.clone(), nine], entries(&[&six, &seven])),
            ("another branch", 50, at(7, 70), vec![six.clone(), entry(7, 61, 70)], entries(&[&six])),
        ];
        for (what, tag, head, stored, expected) in table {
            assert_eq!(Following::of(at(5, tag), head, stored), expected, "{what}");
        }
    }

    #[test]
    fn notifications_of_others_are_ignored() {
        let table = [
            ("7 18446744073709551615", Some(at(7, u64::MAX))),
            ("", None),
            ("7", None),
            ("7 x", None),
            ("-7 1", None),
            ("7 1 1", None),
        ];
        for (payload, expected) in table {
            assert_eq!(parse_notification(payload), expected, "{payload:?}");
        }
    }
}
