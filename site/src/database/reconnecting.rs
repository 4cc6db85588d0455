//! [`ReconnectingSession`]: one session, which is established again when it was lost.
//!
//! A task of its own connects, every [`RETRY_INTERVAL`] while the database cannot be reached. Meanwhile callers get the
//! error of the last attempt at once, so that changes are refused quickly, however long an attempt lasts. Only the first
//! attempt after a session was lost is waited for.

use super::address::Database;
use super::error::DatabaseError;
use super::session::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;

/// How long it takes until the next attempt to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How long a statement may take, until its connection counts as lost. Longer than the server allows it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the first attempt is waited for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A session of a database.
#[derive(Debug)]
pub struct ReconnectingSession {
    database: Database,
    state: watch::Receiver<State>,
    connecting: AbortHandle,
    answer_timeout: Duration,
}

#[derive(Debug, Clone)]
enum State {
    Connecting,
    Open(Arc<Session>),
    Failed(DatabaseError),
}

impl ReconnectingSession {
    /// Begins to connect.
    pub fn new(database: Database) -> Self {
        let (publish, state) = watch::channel(State::Connecting);
        let connecting = tokio::spawn(keep_connected(database.clone(), publish)).abort_handle();
        Self { database, state, connecting, answer_timeout: ANSWER_TIMEOUT }
    }

    /// The same with another time in which statements have to be answered.
    #[must_use]
    pub fn with_timeout(mut self, answer_timeout: Duration) -> Self {
        self.answer_timeout = answer_timeout;
        self
    }

    /// Its database.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Runs statements on the session. It ends if they are not answered in time, or fail for another reason than that
    /// other transactions had to be waited for.
    ///
    /// # Errors
    /// [`DatabaseError`]. What the statements were to change may have been changed.
    pub async fn run<T>(
        &self,
        statements: impl AsyncFnOnce(&Session) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, DatabaseError> {
        let session = self.session().await?;
        let Ok(answer) = tokio::time::timeout(self.answer_timeout, statements(&session)).await else {
            session.end();
            return Err(self.database.timed_out(self.answer_timeout));
        };
        answer.map_err(|error| {
            // Also for a refusal: a server that has become a standby keeps its sessions.
            if !has_waited(&error) {
                session.end();
            }
            self.database.error(&error)
        })
    }

    /// Ends the session, so that another one is established.
    pub fn reconnect(&self) {
        if let State::Open(session) = &*self.state.borrow() {
            session.end();
        }
    }

    async fn session(&self) -> Result<Arc<Session>, DatabaseError> {
        let mut state = self.state.clone();
        let known = state.wait_for(|state| match state {
            State::Connecting => false,
            // It is about to be replaced.
            State::Open(session) => !session.is_closed(),
            State::Failed(_) => true,
        });
        match tokio::time::timeout(CONNECT_TIMEOUT, known).await {
            Ok(Ok(state)) => match &*state {
                State::Open(session) => Ok(Arc::clone(session)),
                State::Failed(error) => Err(error.clone()),
                State::Connecting => Err(self.database.unreachable("it is being connected to")),
            },
            Ok(Err(_)) => Err(self.database.unreachable("this gateway is stopping")),
            Err(_) => Err(self.database.timed_out(CONNECT_TIMEOUT)),
        }
    }
}

impl Drop for ReconnectingSession {
    fn drop(&mut self) {
        self.connecting.abort();
    }
}

/// Whether the server has ended a statement because of other transactions, or because it took too long: the session can
/// be used nevertheless, and others may be using it.
fn has_waited(error: &tokio_postgres::Error) -> bool {
    const CODES: [SqlState; 4] = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::QUERY_CANCELED,
    ];
    error.code().is_some_and(|code| CODES.contains(code))
}

/// Connects whenever there is no session.
async fn keep_connected(database: Database, publish: watch::Sender<State>) {
    let mut is_reported = false;
    loop {
        match database.connect().await {
            Ok(session) => {
                if std::mem::take(&mut is_reported) {
                    tracing::info!(database = %database.display_name(), "the database of the site can be reached again");
                }
                let (session, since) = (Arc::new(session), Instant::now());
                publish.send_replace(State::Open(Arc::clone(&session)));
                session.ended().await;
                publish.send_replace(State::Connecting);
                // A server that ends each session is not asked for one after the other.
                tokio::time::sleep(RETRY_INTERVAL.saturating_sub(since.elapsed())).await;
            }
            Err(error) => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!(%error, "changes are refused until the database of the site can be used");
                }
                publish.send_replace(State::Failed(error));
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}
