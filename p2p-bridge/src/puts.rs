//! Puts of value records into the DHT: the queue, the running queries and their results.
//!
//! Goals: a put before any peer of its scope is known waits for the first instead of failing; a put whose caller has
//! gone is cancelled; the number of concurrent puts is limited, so that other work proceeds.
//!
//! Non-goals: the records, and retries (the caller does both).

use crate::scope::Scope;
use libp2p::kad::{self, PutRecordError, PutRecordResult, QueryId, Record};
use std::collections::{HashMap, VecDeque};
use tokio::sync::oneshot;

/// The maximum number of concurrent puts in a scope: each asks twenty peers.
const RUNNING_MAX: usize = 16;
/// The maximum number of queued puts in a scope.
const WAITING_MAX: usize = 4096;

/// Why a record was not put.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// No peer stored it.
    #[error("no peer accepted the record")]
    NotAccepted,
    /// The node's own store, which is asked first, rejected it.
    #[error("this node's record store rejected the record: {0}")]
    Refused(String),
    /// The policy refuses the name.
    #[error("the name is withheld by this node's policy")]
    Withheld,
    /// The queue is full.
    #[error("too many records are queued: try again later")]
    Busy,
    /// The network has stopped.
    #[error("the network has stopped")]
    Stopped,
}

/// The minimum number of peers that stored a record.
pub type PutOutcome = Result<usize, PutError>;

/// Receives the result. Dropping the receiver cancels the put.
pub(crate) type Reply = oneshot::Sender<PutOutcome>;

/// The puts of both scopes.
#[derive(Debug, Default)]
pub struct Puts {
    waiting: HashMap<Scope, VecDeque<(Record, Reply)>>,
    running: HashMap<(Scope, QueryId), Reply>,
}

impl Puts {
    /// Queues a put; [`Puts::next`] returns it when there is a slot.
    pub(crate) fn add(&mut self, scope: Scope, record: Record, reply: Reply) {
        let waiting = self.waiting.entry(scope).or_default();
        if waiting.len() >= WAITING_MAX {
            waiting.retain(|(_, reply)| !reply.is_closed());
        }
        if waiting.len() >= WAITING_MAX {
            let _ = reply.send(Err(PutError::Busy));
        } else {
            waiting.push_back((record, reply));
        }
    }

    /// The next put of a scope that has peers, if a slot is free.
    pub(crate) fn next(&mut self, scope: Scope) -> Option<(Record, Reply)> {
        if self.running.keys().filter(|(running, _)| *running == scope).count() >= RUNNING_MAX {
            return None;
        }
        let waiting = self.waiting.get_mut(&scope)?;
        std::iter::from_fn(|| waiting.pop_front()).find(|(_, reply)| !reply.is_closed())
    }

    /// Whether puts are queued in a scope.
    pub fn is_waiting(&self, scope: Scope) -> bool {
        self.waiting.get(&scope).is_some_and(|waiting| !waiting.is_empty())
    }

    /// A put's query was started.
    pub(crate) fn started(&mut self, scope: Scope, query: QueryId, reply: Reply) {
        self.running.insert((scope, query), reply);
    }

    /// A query has finished.
    pub fn finished(&mut self, scope: Scope, query: QueryId, result: &PutRecordResult) {
        if let Some(reply) = self.running.remove(&(scope, query)) {
            let takers = takers(result);
            let _ = reply.send(if takers == 0 { Err(PutError::NotAccepted) } else { Ok(takers) });
        }
    }

    /// Removes the puts whose callers have gone. Returns their queries, which the caller ends.
    pub fn sweep(&mut self) -> Vec<(Scope, QueryId)> {
        let left: Vec<_> =
            self.running.iter().filter(|(_, reply)| reply.is_closed()).map(|(query, _)| *query).collect();
        for query in &left {
            self.running.remove(query);
        }
        for waiting in self.waiting.values_mut() {
            waiting.retain(|(_, reply)| !reply.is_closed());
        }
        left
    }
}

/// The number of peers that stored the record. All peers closest to the key are asked, and it is no failure if some do
/// not accept: the network may have fewer peers.
fn takers(result: &PutRecordResult) -> usize {
    match result {
        Ok(_) => kad::K_VALUE.get(),
        Err(PutRecordError::QuorumFailed { success, .. } | PutRecordError::Timeout { success, .. }) => success.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::PeerId;
    use libp2p::kad::store::MemoryStore;
    use libp2p::kad::{PutRecordOk, RecordKey};

    fn record() -> Record {
        Record::new(RecordKey::new(b"key"), b"value".to_vec())
    }

    /// Only a behaviour can create query IDs.
    fn queries<const N: usize>() -> [QueryId; N] {
        let peer = PeerId::random();
        let mut dht = kad::Behaviour::new(peer, MemoryStore::new(peer));
        std::array::from_fn(|_| dht.get_record(RecordKey::new(b"key")))
    }

    fn failed(takers: usize) -> PutRecordResult {
        let success = (0..takers).map(|_| PeerId::random()).collect();
        Err(PutRecordError::QuorumFailed { key: RecordKey::new(b"key"), success, quorum: kad::K_VALUE })
    }

    #[test]
    fn a_put_returns_how_many_peers_accepted() {
        let table = [
            (Ok(PutRecordOk { key: RecordKey::new(b"key") }), Ok(20)),
            (failed(3), Ok(3)),
            (failed(0), Err(PutError::NotAccepted)),
        ];
        for (result, expected) in table {
            let [query] = queries();
            let mut puts = Puts::default();
            let (reply, mut outcome) = oneshot::channel();
            puts.add(Scope::Lan, record(), reply);
            assert!(puts.is_waiting(Scope::Lan) && puts.next(Scope::Wan).is_none());
            let (_, reply) = puts.next(Scope::Lan).expect("its turn");
            puts.started(Scope::Lan, query, reply);
            assert!(!puts.is_waiting(Scope::Lan) && outcome.try_recv().is_err());
            puts.finished(Scope::Wan, query, &result);
            assert!(outcome.try_recv().is_err(), "that was another scope's");
            puts.finished(Scope::Lan, query, &result);
            assert_eq!(outcome.try_recv(), Ok(expected));
        }
    }

    #[test]
    fn concurrency_is_limited_and_abandoned_puts_are_cancelled() {
        let ids: [QueryId; RUNNING_MAX + 1] = queries();
        let mut puts = Puts::default();
        let mut outcomes = Vec::new();
        for _ in 0..=RUNNING_MAX {
            let (reply, outcome) = oneshot::channel();
            puts.add(Scope::Lan, record(), reply);
            outcomes.push(outcome);
        }
        for query in &ids[..RUNNING_MAX] {
            let (_, reply) = puts.next(Scope::Lan).expect("there is room");
            puts.started(Scope::Lan, *query, reply);
        }
        assert!(puts.next(Scope::Lan).is_none() && puts.sweep().is_empty());
        outcomes.remove(0);
        assert_eq!(puts.sweep(), [(Scope::Lan, ids[0])]);
        outcomes.pop();
        assert!(puts.next(Scope::Lan).is_none(), "the caller of the last one has gone");
    }

    #[test]
    fn a_full_queue_rejects_puts() {
        let mut puts = Puts::default();
        let mut outcomes = Vec::new();
        let mut put = |puts: &mut Puts| {
            let (reply, outcome) = oneshot::channel();
            puts.add(Scope::Wan, record(), reply);
            outcomes.push(outcome);
            outcomes.last_mut().and_then(|outcome| outcome.try_recv().ok())
        };
        for _ in 0..WAITING_MAX {
            assert_eq!(put(&mut puts), None);
        }
        assert_eq!(put(&mut puts), Some(Err(PutError::Busy)));
        outcomes.clear();
        let (reply, mut outcome) = oneshot::channel();
        puts.add(Scope::Wan, record(), reply);
        assert!(outcome.try_recv().is_err(), "abandoned puts freed slots");
    }
}
