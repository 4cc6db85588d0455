//! [`ServerState`]: what a gateway checks of the server when it starts.

use super::address::Database;
use super::error::DatabaseError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The clock in microseconds, whether commits wait for standbys, and whether there are some.
const STATEMENT: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    current_setting('synchronous_standby_names') <> '', EXISTS (SELECT FROM pg_stat_replication)";

/// The state of the server of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerState {
    /// How far its clock and that of this machine are apart, at least.
    pub clock_difference: Duration,
    /// Whether one of its standbys may take over without commits that were acknowledged.
    pub has_asynchronous_standbys: bool,
}

impl Database {
    /// Asks the server that accepts changes, over a connection of its own.
    ///
    /// # Errors
    /// [`DatabaseError::Unreachable`], [`DatabaseError::Refused`].
    pub async fn server_state(&self) -> Result<ServerState, DatabaseError> {
        let session = self.connect().await?;
        let before = SystemTime::now();
        let rows = self.within(TIMEOUT, session.query_typed(STATEMENT, &[])).await?;
        let after = SystemTime::now();
        let row = rows.first().ok_or_else(|| self.unreachable("its answer is empty"))?;
        let columns = (row.try_get::<_, i64>(0), row.try_get::<_, bool>(1), row.try_get::<_, bool>(2));
        let (Ok(clock), Ok(is_synchronous), Ok(has_standbys)) = columns else {
            return Err(self.unreachable("its answer is not understood"));
        };
        let clock = UNIX_EPOCH + Duration::from_micros(u64::try_from(clock).unwrap_or_default());
        Ok(ServerState {
            clock_difference: difference(clock, before, after),
            has_asynchronous_standbys: !is_synchronous && (has_standbys || self.has_several_hosts()),
        })
    }
}

/// How far a time that was read between two others is from both.
fn difference(read: SystemTime, before: SystemTime, after: SystemTime) -> Duration {
    before.duration_since(read).or_else(|_| read.duration_since(after)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_differ_by_more_than_the_time_of_an_answer() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let table = [(100, 0), (103, 0), (105, 0), (106, 1), (1105, 1000), (99, 1), (0, 100)];
        for (read, expected) in table {
            assert_eq!(difference(at(read), at(100), at(105)), Duration::from_secs(expected), "{read}");
        }
    }
}
