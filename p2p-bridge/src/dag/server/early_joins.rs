//! [`EarlyJoins`]: streams that were opened for a transfer before its request was read, which comes on another stream.
//!
//! Bounded by the inbound streams of each connection; a transfer keeps no more of them than it can use. They are found by
//! their connection and transfer, so that the joins of other peers do not matter.

use super::streams::{Asker, InboundStream};
use super::transfers::STREAMS_PER_TRANSFER;
use crate::dag::message::TransferId;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a stream waits for the request of its transfer.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of streams that wait for one request, which has a stream of its own.
const PER_TRANSFER_MAX: usize = STREAMS_PER_TRANSFER - 1;

/// A stream whose transfer has not been requested so far.
struct EarlyJoin<S> {
    stream: InboundStream<S>,
    since: Instant,
}

/// The streams that wait for requests, by connection and transfer.
pub struct EarlyJoins<S>(HashMap<Asker, HashMap<TransferId, Vec<EarlyJoin<S>>>>);

impl<S> Default for EarlyJoins<S> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<S> EarlyJoins<S> {
    /// Keeps a stream, or returns it if its transfer has enough of them.
    pub fn push(
        &mut self,
        asker: Asker,
        transfer: TransferId,
        stream: InboundStream<S>,
        now: Instant,
    ) -> Option<InboundStream<S>> {
        let joins = self.0.entry(asker).or_default().entry(transfer).or_default();
        if joins.len() >= PER_TRANSFER_MAX {
            return Some(stream);
        }
        joins.push(EarlyJoin { stream, since: now });
        None
    }

    /// The streams of a transfer, oldest first.
    pub fn take(&mut self, asker: Asker, transfer: TransferId) -> impl Iterator<Item = InboundStream<S>> + use<S> {
        let joins = self.0.get_mut(&asker).and_then(|transfers| transfers.remove(&transfer)).unwrap_or_default();
        if self.0.get(&asker).is_some_and(HashMap::is_empty) {
            self.0.remove(&asker);
        }
        joins.into_iter().map(|join| join.stream)
    }

    /// A connection was closed: its streams are dropped.
    pub fn disconnected(&mut self, asker: Asker) {
        self.0.remove(&asker);
    }

    /// Drops the streams that have waited too long, which resets them.
    pub fn expire(&mut self, now: Instant) {
        self.0.retain(|_, transfers| {
            transfers.retain(|_, joins| {
                joins.retain(|join| now.saturating_duration_since(join.since) < JOIN_TIMEOUT);
                !joins.is_empty()
            });
            !transfers.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::PeerId;
    use libp2p::swarm::ConnectionId;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    fn asker(connection: usize) -> Asker {
        Asker { peer: PeerId::random(), connection: ConnectionId::new_unchecked(connection) }
    }

    fn stream(stream: u32) -> InboundStream<u32> {
        let permits = Arc::new(Semaphore::new(1));
        InboundStream { stream, permit: permits.try_acquire_owned().expect("is free") }
    }

    fn taken(joins: &mut EarlyJoins<u32>, asker: Asker, transfer: u64) -> Vec<u32> {
        joins.take(asker, TransferId(transfer)).map(|inbound| inbound.stream).collect()
    }

    #[test]
    fn streams_wait_for_their_own_transfer_up_to_a_limit() {
        let (mut joins, now) = (EarlyJoins::default(), Instant::now());
        let (one, other) = (asker(1), asker(2));
        let most = u32::try_from(PER_TRANSFER_MAX).expect("few");
        for n in 0..most {
            assert!(joins.push(one, TransferId(7), stream(n), now).is_none());
        }
        let refused = joins.push(one, TransferId(7), stream(most), now);
        assert_eq!(refused.map(|inbound| inbound.stream), Some(most));
        assert!(joins.push(one, TransferId(8), stream(100), now).is_none(), "another transfer");
        assert!(joins.push(other, TransferId(7), stream(200), now).is_none(), "another connection");
        assert_eq!(taken(&mut joins, one, 7), (0..most).collect::<Vec<_>>());
        assert_eq!((taken(&mut joins, one, 7), taken(&mut joins, one, 8)), (vec![], vec![100]));
        assert_eq!(taken(&mut joins, other, 7), [200]);
        assert!(joins.0.is_empty());
    }

    #[test]
    fn streams_are_dropped_with_their_connection_and_at_a_timeout() {
        let (mut joins, now) = (EarlyJoins::default(), Instant::now());
        let (one, other) = (asker(1), asker(2));
        for (asker, transfer, at) in [(one, 1, now), (other, 1, now), (other, 1, now + JOIN_TIMEOUT / 2)] {
            assert!(joins.push(asker, TransferId(transfer), stream(0), at).is_none());
        }
        joins.disconnected(one);
        assert_eq!(joins.0.len(), 1);
        joins.expire(now + JOIN_TIMEOUT - Duration::from_millis(1));
        assert_eq!(joins.0[&other][&TransferId(1)].len(), 2);
        joins.expire(now + JOIN_TIMEOUT);
        assert_eq!(joins.0[&other][&TransferId(1)].len(), 1);
        joins.expire(now + JOIN_TIMEOUT * 2);
        assert!(joins.0.is_empty());
    }
}
