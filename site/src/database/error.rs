//! [`DatabaseError`]: errors of the database of a site, with what the operator can do about them.

use cache::StoreError;
use std::error::Error as _;
use std::sync::Arc;

/// Why the database cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DatabaseError {
    /// The settings are invalid.
    #[error("{0}")]
    Settings(Arc<str>),
    /// No connection, or no answer in time.
    #[error("the database of the site ({database}) cannot be reached: {reason}")]
    Unreachable {
        /// Its hosts and name.
        database: Arc<str>,
        /// Why, in words of the system or of the server.
        reason: Arc<str>,
    },
    /// The server refuses a statement.
    #[error("the database of the site ({database}) refuses: {reason}")]
    Refused {
        /// Its hosts and name.
        database: Arc<str>,
        /// Why, in the words of the server.
        reason: Arc<str>,
        /// The code of its error (SQLSTATE).
        code: Arc<str>,
    },
    /// A later release has changed the tables.
    #[error(
        "the tables of the site in {database} were written by a newer release (version {found}; this release knows \
         {known}): run that release or a later one"
    )]
    NewerSchema {
        /// The hosts and name of the database.
        database: Arc<str>,
        /// The version of the tables.
        found: i32,
        /// The latest version that this release knows.
        known: i32,
    },
}

impl DatabaseError {
    /// The error of a statement or of a connection attempt.
    pub(super) fn of(database: &Arc<str>, error: &tokio_postgres::Error) -> Self {
        let database = Arc::clone(database);
        let reason: Arc<str> = message(error).into();
        match error.as_db_error() {
            // Class 08: connection exceptions; 57: the server is stopping or starting, or has ended the statement or the
            // connection; 53: it lacks resources; 55P03 and 40: others hold locks; 25006: it accepts no changes.
            Some(refusal)
                if !["08", "57", "53", "55P03", "40", "25006"]
                    .iter()
                    .any(|class| refusal.code().code().starts_with(class)) =>
            {
                Self::Refused { database, reason, code: refusal.code().code().into() }
            }
            _ => Self::Unreachable { database, reason },
        }
    }
}

impl From<DatabaseError> for StoreError {
    fn from(error: DatabaseError) -> Self {
        tracing::debug!(%error, "the database of the site has failed");
        Self::Unavailable { reason: error.to_string().into() }
    }
}

/// The innermost cause of an error: the library's own words ("db error", "error connecting to server") say little.
fn message(error: &tokio_postgres::Error) -> String {
    if let Some(refusal) = error.as_db_error() {
        return format!("{} ({})", refusal.message(), refusal.code().code());
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match error.source() {
        Some(_) => cause.to_string(),
        None => error.to_string(),
    }
}
