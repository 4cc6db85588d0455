//! TLS handshakes: their timeout, and how many there are at a time.
//!
//! A handshake costs its client nothing until the server has computed its part, and holds some tens of kilobytes until
//! the client answers. So unfinished handshakes have limits of their own, in total and for each client, below those of
//! connections: when a limit is reached, a new handshake replaces the oldest one that has waited for its client for a
//! second ([`Admission`]), or waits itself. Those of a trusted proxy, which begins many at once after a restart, are
//! limited in total only, as its connections are.

use super::Tls;
use crate::listen::admission::{self, Admission, Bounds, Evictable, Slot};
use crate::listen::connection::Connection;
use crate::listen::monitored::MonitoredStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The maximum number of unfinished handshakes, in total and of one client.
pub(in crate::listen) const HANDSHAKES_MAX: usize = 2048;
const CLIENT_HANDSHAKES_MAX: usize = 64;
/// The time for a handshake, unless that for the head of a request is shorter.
pub(in crate::listen) const TIMEOUT: Duration = Duration::from_secs(10);
/// The time before a handshake can be replaced by another one.
const GRACE: Duration = Duration::from_secs(1);

/// The unfinished handshakes of a listener.
pub(super) struct Handshakes(Arc<Admission>);

impl Default for Handshakes {
    fn default() -> Self {
        let (all, each, patience) = (HANDSHAKES_MAX, CLIENT_HANDSHAKES_MAX, admission::PATIENCE);
        Self(Arc::new(Admission::new(Bounds { all, each, exempt: Vec::new(), patience })))
    }
}

impl Tls {
    /// Counts an unfinished handshake, over TCP or QUIC, until the slot is dropped: for the client that the connection
    /// counts for among `connections`.
    pub(in crate::listen) fn begin_handshake(&self, connection: &Arc<Connection>, connections: &Admission) -> Slot {
        let handshake = Arc::new(Handshake { since: Instant::now(), connection: Arc::clone(connection) });
        self.handshakes.0.register_for(connections.client_of(connection.peer().ip()), handshake)
    }

    /// Performs a handshake with a client, within the timeout.
    pub(in crate::listen) async fn accept(
        &self,
        stream: MonitoredStream,
        connection: &Arc<Connection>,
        (connections, header_timeout): (&Admission, Duration),
    ) -> Option<TlsStream<MonitoredStream>> {
        let slot = self.begin_handshake(connection, connections);
        let shaking = async {
            slot.admitted().await.ok()?;
            let shaken = match (&self.by_name, &self.files) {
                (Some(by_name), files) => by_name.accept(stream, connection.peer().ip(), files.as_deref()).await,
                (None, Some(files)) => TlsAcceptor::from(files.config()).accept(stream).await,
                (None, None) => return None,
            };
            shaken.inspect_err(|error| tracing::debug!(%error, "the TLS handshake failed")).ok()
        };
        tokio::select! {
            shaken = tokio::time::timeout(TIMEOUT.min(header_timeout), shaking) => shaken.ok().flatten(),
            () = connection.evicted() => None,
        }
    }
}

/// An unfinished handshake.
struct Handshake {
    since: Instant,
    connection: Arc<Connection>,
}

impl Evictable for Handshake {
    fn idle_since(&self) -> Option<Instant> {
        (self.since.elapsed() >= GRACE).then_some(self.since)
    }

    fn evict(&self) {
        self.connection.evict();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn a_handshake_can_be_replaced_after_a_second_and_takes_its_connection_with_it() {
        let connection = Arc::new(Connection::new(([127, 0, 0, 1], 1).into()));
        let begun = |ago| Handshake { since: Instant::now() - ago, connection: Arc::clone(&connection) };
        assert_eq!(begun(Duration::ZERO).idle_since(), None);
        let old = begun(GRACE);
        assert_eq!(old.idle_since(), Some(old.since));
        assert_eq!(connection.evicted().now_or_never(), None);
        old.evict();
        assert_eq!(connection.evicted().now_or_never(), Some(()));
    }

    #[test]
    fn a_client_has_64_unfinished_handshakes() {
        let handshakes = Handshakes::default();
        let begin = |client: [u8; 4]| {
            let connection = Arc::new(Connection::new((client, 1).into()));
            let handshake = Handshake { since: Instant::now() - GRACE, connection: Arc::clone(&connection) };
            (handshakes.0.register(client.into(), Arc::new(handshake)), connection)
        };
        let own: Vec<_> = (0..64).map(|_| begin([192, 0, 2, 1])).collect();
        let other = begin([192, 0, 2, 2]);
        let evicted =
            || own.iter().chain([&other]).map(|(_, connection)| connection.evicted().now_or_never().is_some());
        assert!(!evicted().any(|is_evicted| is_evicted));
        // One more replaces the client's oldest.
        let _more = begin([192, 0, 2, 1]);
        assert_eq!(evicted().filter(|is_evicted| *is_evicted).count(), 1);
        assert_eq!(evicted().next(), Some(true));
        // A proxy has as many as all clients together.
        let of_proxy: Vec<_> = (0..1_000)
            .map(|port| {
                let connection = Arc::new(Connection::new(([192, 0, 2, 3], port).into()));
                let handshake = Handshake { since: Instant::now() - GRACE, connection: Arc::clone(&connection) };
                (handshakes.0.register_for(None, Arc::new(handshake)), connection)
            })
            .collect();
        assert!(of_proxy.iter().all(|(_, connection)| connection.evicted().now_or_never().is_none()));
    }
}
