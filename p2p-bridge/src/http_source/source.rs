//! One gateway, and the load of an origin: what is owed, what waits, and how much may run at once.

use super::address::Base;
use super::client::Question;
use super::dialling::Trust;
use content::{BlockKey, Cid};
use libp2p::Multiaddr;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::{AbortHandle, Id};

/// Requests to one origin at once over HTTP/1.1, where each has a connection.
pub(crate) const ORIGIN_CONNECTIONS_MAX: usize = 16;
/// The same over HTTP/2, where they share one.
pub(crate) const ORIGIN_STREAMS_MAX: usize = 64;
/// Requests at once to an origin that strangers named and that gave nothing yet.
pub(crate) const UNPROVEN_MAX: usize = 4;

/// Something that a gateway is asked.
#[derive(Debug)]
pub(crate) struct Want {
    pub cid: Cid,
    pub question: Question,
    pub failures: u32,
    pub request: Option<AbortHandle>,
}

/// A gateway.
pub(crate) struct Source {
    pub base: Arc<Base>,
    pub origin: Arc<str>,
    pub trust: Trust,
    /// As the record that named it writes it; none for configured ones.
    pub address: Option<Multiaddr>,
    pub connected: bool,
    pub wants: HashMap<BlockKey, Want>,
    /// Wants without a request, in order.
    pub queue: VecDeque<BlockKey>,
    /// Whether it is in the queue of sources that may have something to start.
    pub listed: bool,
    /// When it was last asked or named.
    pub used: Instant,
}

impl Source {
    pub fn new(base: Base, trust: Trust, address: Option<Multiaddr>, now: Instant) -> Self {
        Self {
            origin: Arc::from(base.origin()),
            base: Arc::new(base),
            trust,
            address,
            connected: false,
            wants: HashMap::new(),
            queue: VecDeque::new(),
            listed: false,
            used: now,
        }
    }

    /// Adds a question. One for a block replaces one for its presence, and not the other way round.
    pub fn want(&mut self, key: BlockKey, cid: Cid, question: Question) {
        if let Some(known) = self.wants.get(&key)
            && (known.question == question || known.question == Question::Block)
        {
            return;
        }
        self.withdraw(&key);
        self.wants.insert(key, Want { cid, question, failures: 0, request: None });
        self.queue.push_back(key);
    }

    /// Puts a question that failed to the end of the queue.
    pub fn want_again(&mut self, key: BlockKey, want: Want) {
        self.wants.insert(key, Want { request: None, ..want });
        self.queue.push_back(key);
    }

    /// Takes a question back and ends its request.
    pub fn withdraw(&mut self, key: &BlockKey) {
        match self.wants.remove(key) {
            Some(Want { request: Some(request), .. }) => request.abort(),
            Some(_) => self.queue.retain(|queued| queued != key),
            None => {}
        }
    }

    /// Takes everything back.
    pub fn withdraw_all(&mut self) {
        self.queue.clear();
        for request in self.wants.drain().filter_map(|(_, want)| want.request) {
            request.abort();
        }
    }

    /// Removes the want that a request was for, unless it was withdrawn meanwhile.
    pub fn take_asked(&mut self, key: &BlockKey, id: Id) -> Option<Want> {
        let is_it = self.wants.get(key)?.request.as_ref().is_some_and(|request| request.id() == id);
        if is_it { self.wants.remove(key) } else { None }
    }
}

/// What is known of an origin while it is in use.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub running: usize,
    pub proven: bool,
    pub multiplexed: bool,
}

impl Load {
    /// Requests that may run at once.
    pub fn max(&self, trust: Trust) -> usize {
        match (trust, self.proven, self.multiplexed) {
            (Trust::Stranger, false, _) => UNPROVEN_MAX,
            (_, _, true) => ORIGIN_STREAMS_MAX,
            (_, _, false) => ORIGIN_CONNECTIONS_MAX,
        }
    }
}
