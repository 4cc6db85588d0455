//! Puts of value records into the DHT: which wait for somebody to take them, which are under way, and what came of them.
//!
//! Goals: a put before any peer of its scope is known waits for the first instead of failing; a put that nobody waits for
//! any more ends; few enough are under way for the rest of the node to get on.
//!
//! Non-goals: what is put, and trying again (whoever puts decides both).

use crate::scope::Scope;
use libp2p::kad::{self, PutRecordError, PutRecordResult, QueryId, Record};
use std::collections::{HashMap, VecDeque};
use tokio::sync::oneshot;

/// Puts of one scope that are under way at once: each talks to twenty peers.
const RUNNING_MAX: usize = 16;
/// Puts that may wait, in each scope.
const WAITING_MAX: usize = 4096;

/// Why a record is with nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// Whoever was asked did not take it, or did not answer.
    #[error("no peer took the record")]
    NobodyTookIt,
    /// Our own store, which comes first, refused it.
    #[error("the record was refused here: {0}")]
    Refused(String),
    /// The policy does not let the name out.
    #[error("the name is withheld by this node's policy")]
    Withheld,
    /// Too many puts wait.
    #[error("too many records wait to be put")]
    Busy,
    /// The network has stopped.
    #[error("the network has stopped")]
    Stopped,
}

/// How many peers took a record, at least.
pub type PutOutcome = Result<usize, PutError>;

/// Where the outcome goes. Dropping the other end ends the put.
pub(crate) type Reply = oneshot::Sender<PutOutcome>;

/// The puts of all scopes.
#[derive(Debug, Default)]
pub struct Puts {
    waiting: HashMap<Scope, VecDeque<(Record, Reply)>>,
    running: HashMap<(Scope, QueryId), Reply>,
}

impl Puts {
    /// A new put; [`Puts::next`] says when it is its turn.
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

    /// The next record to put in a scope that has peers, if there is room for it.
    pub(crate) fn next(&mut self, scope: Scope) -> Option<(Record, Reply)> {
        if self.running.keys().filter(|(running, _)| *running == scope).count() >= RUNNING_MAX {
            return None;
        }
        let waiting = self.waiting.get_mut(&scope)?;
        std::iter::from_fn(|| waiting.pop_front()).find(|(_, reply)| !reply.is_closed())
    }

    /// Whether anything waits in a scope.
    pub fn is_waiting(&self, scope: Scope) -> bool {
        self.waiting.get(&scope).is_some_and(|waiting| !waiting.is_empty())
    }

    /// A record's query was started.
    pub(crate) fn started(&mut self, scope: Scope, query: QueryId, reply: Reply) {
        self.running.insert((scope, query), reply);
    }

    /// A query has ended.
    pub fn finished(&mut self, scope: Scope, query: QueryId, result: &PutRecordResult) {
        if let Some(reply) = self.running.remove(&(scope, query)) {
            let takers = takers(result);
            let _ = reply.send(if takers == 0 { Err(PutError::NobodyTookIt) } else { Ok(takers) });
        }
    }

    /// Forgets the puts that nobody waits for any more. Returns their queries, which are to be ended.
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

/// Every peer near the key is asked to take a record, and it is no failure that some do not: there may be fewer peers than
/// that in the world.
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

    /// Query ids can be made by a behaviour only.
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
    fn whoever_puts_hears_how_many_took_it() {
        let table = [
            (Ok(PutRecordOk { key: RecordKey::new(b"key") }), Ok(20)),
            (failed(3), Ok(3)),
            (failed(0), Err(PutError::NobodyTookIt)),
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
    fn few_are_under_way_and_those_left_alone_are_ended() {
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
        assert!(puts.next(Scope::Lan).is_none(), "nobody waits for the last one any more");
    }

    #[test]
    fn a_crowd_is_turned_away() {
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
        assert!(outcome.try_recv().is_err(), "those who left made room");
    }
}
