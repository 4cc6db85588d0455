//! [`Session`]: a connection to the database with the settings that statements rely on.

use futures::future::poll_fn;
use std::fmt;
use std::ops::Deref;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

/// What statements rely on, whatever the defaults of the server, the database and the role are, also if they change.
///
/// - An append relies on READ COMMITTED: a statement that has waited for a row sees it as it is then.
/// - A commit is acknowledged only when it is durable, and on synchronous standbys if there are any.
/// - A statement that takes long is ended by the server as well, so that its locks do not outlive the client's timeout.
const SETTINGS: &str = "
    SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET statement_timeout = '15s'; SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s';
    SELECT set_config('synchronous_commit', CASE
        WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
        ELSE current_setting('synchronous_commit') END, false)";
/// Names the session of the server ([`Session::marker`]).
const MARK: &str = "SELECT set_config('causeway.session', $1, false)";

/// An open connection. It ends when this is dropped.
pub struct Session {
    client: Client,
    driver: AbortHandle,
    latest: watch::Receiver<String>,
    marker: String,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("is_closed", &self.client.is_closed()).finish_non_exhaustive()
    }
}

impl Session {
    /// Connects, and sets what statements rely on.
    pub async fn establish(
        config: &Config,
        tls: MakeRustlsConnect,
        marker: String,
    ) -> Result<Self, tokio_postgres::Error> {
        let (client, mut connection) = config.connect(tls).await?;
        let (sender, latest) = watch::channel(String::new());
        let driver = tokio::spawn(async move {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                match message {
                    Ok(AsyncMessage::Notification(notification)) => {
                        _ = sender.send(notification.payload().to_owned());
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "the connection to the database has ended");
                        break;
                    }
                }
            }
        });
        let session = Self { client, driver: driver.abort_handle(), latest, marker };
        session.client.batch_execute(SETTINGS).await?;
        session.client.query_typed(MARK, &[(&session.marker, tokio_postgres::types::Type::TEXT)]).await?;
        Ok(session)
    }

    /// The value of the setting `causeway.session` in the session of the server. Another value means that a connection
    /// pooler runs the statements of this connection in several sessions, whose settings are not these.
    pub fn marker(&self) -> &String {
        &self.marker
    }

    /// The payload of the latest notification; closed when the connection has ended.
    pub fn latest_notification(&self) -> watch::Receiver<String> {
        self.latest.clone()
    }

    /// Waits until the connection has ended.
    pub async fn ended(&self) {
        let mut latest = self.latest.clone();
        while latest.changed().await.is_ok() {}
    }

    /// Ends the connection at once.
    pub fn end(&self) {
        self.driver.abort();
    }
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
