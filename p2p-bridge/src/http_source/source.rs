//! One gateway with its wants, and the load of an origin.

use super::address::Base;
use super::client::RequestKind;
use super::dialling::Trust;
use content::{BlockKey, Cid};
use libp2p::Multiaddr;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::{AbortHandle, Id};

/// The maximum number of concurrent requests to one origin over HTTP/1.1, each with a connection.
pub(crate) const ORIGIN_CONNECTIONS_MAX: usize = 16;
/// The same over HTTP/2, with a shared connection.
pub(crate) const ORIGIN_STREAMS_MAX: usize = 64;
/// The maximum number of concurrent requests to an untrusted origin that has not sent a block yet.
pub(crate) const UNPROVEN_REQUESTS_MAX: usize = 4;

/// The part of the concurrent requests that may be for CARs, which take long: single blocks are requested beside them.
pub(crate) const CARS_PART: usize = 2;

/// A want at a gateway.
#[derive(Debug)]
pub(crate) struct Want {
    pub cid: Cid,
    pub kind: RequestKind,
    pub failures: u32,
    pub request: Option<AbortHandle>,
}

/// A gateway.
pub(crate) struct Source {
    pub base: Arc<Base>,
    pub origin: Arc<str>,
    pub trust: Trust,
    /// The address in its provider record; `None` for configured gateways.
    pub address: Option<Multiaddr>,
    pub connected: bool,
    pub wants: HashMap<BlockKey, Want>,
    /// Wants without a request, in order.
    pub queue: VecDeque<BlockKey>,
    /// Whether it is scheduled.
    pub scheduled: bool,
    /// Running requests for CARs.
    pub cars: usize,
    /// When it was last asked or found.
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
            scheduled: false,
            cars: 0,
            used: now,
        }
    }

    /// Adds a want. A request for the block replaces one for its presence, and not vice versa.
    pub fn want(&mut self, key: BlockKey, cid: Cid, kind: RequestKind) {
        if let Some(known) = self.wants.get(&key)
            && (known.kind == kind || known.kind == RequestKind::Block)
        {
            return;
        }
        self.withdraw(&key);
        self.wants.insert(key, Want { cid, kind, failures: 0, request: None });
        self.queue.push_back(key);
    }

    /// Whether it has neither wants nor running requests.
    pub fn is_unused(&self) -> bool {
        self.wants.is_empty() && self.cars == 0
    }

    /// Queues a failed want again.
    pub fn want_again(&mut self, key: BlockKey, want: Want) {
        self.wants.insert(key, Want { request: None, ..want });
        self.queue.push_back(key);
    }

    /// Cancels a want and aborts its request.
    pub fn withdraw(&mut self, key: &BlockKey) {
        match self.wants.remove(key) {
            Some(Want { request: Some(request), .. }) => request.abort(),
            Some(_) => self.queue.retain(|queued| queued != key),
            None => {}
        }
    }

    /// Cancels all wants.
    pub fn withdraw_all(&mut self) {
        self.queue.clear();
        for request in self.wants.drain().filter_map(|(_, want)| want.request) {
            request.abort();
        }
    }

    /// Removes the want of a request, unless it was cancelled.
    pub fn take_asked(&mut self, key: &BlockKey, id: Id) -> Option<Want> {
        let is_it = self.wants.get(key)?.request.as_ref().is_some_and(|request| request.id() == id);
        if is_it { self.wants.remove(key) } else { None }
    }
}

/// The state of an origin while it is in use.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Running requests.
    pub running: usize,
    /// Those of them that are for CARs.
    pub cars: usize,
    pub proven: bool,
    pub multiplexed: bool,
}

impl Load {
    /// The maximum number of concurrent requests.
    pub fn max(&self, trust: Trust) -> usize {
        match (trust, self.proven, self.multiplexed) {
            (Trust::Untrusted, false, _) => UNPROVEN_REQUESTS_MAX,
            (_, _, true) => ORIGIN_STREAMS_MAX,
            (_, _, false) => ORIGIN_CONNECTIONS_MAX,
        }
    }
}
