//! [`HttpPeers`]: the known trustless gateways, their requests, and the limits of concurrent requests.
//!
//! Polled by the swarm task through [`crate::bitswap::behaviour`]. Requests run in their own tasks; this module does
//! the bookkeeping.
//!
//! A gateway is "connected" while it is known and its circuit breaker is closed. When the breaker opens, it
//! "disconnects", and its wants go to other sources immediately. A configured gateway reconnects when the breaker
//! closes; one from a provider record reconnects when it is found again after that, and is removed when it was not used
//! for a while.
//!
//! A failed request is retried at the end of the queue, up to the number of failures that open the breaker: so the only
//! gateway with a temporary failure is either retried or disconnects and reconnects, and every want is answered.
//!
//! Untrusted and configured gateways have separate [`RequestQueue`]s and memory budgets for bodies
//! ([`crate::http_source::client`]), so that slow untrusted gateways do not delay configured ones.

use crate::bitswap::handler::Received;
use crate::bitswap::message::{Ask, WantEntry};
use crate::dag::client::active::{ActiveTransfer, Decline, TransferEnd};
use crate::http_source::address::{AddressError, Base};
use crate::http_source::breaker::{Breakers, FAILURES_MAX, Fault};
use crate::http_source::client::{Answer, GatewayClient, Outcome, RequestKind};
use crate::http_source::dialling::{Clients, Trust};
use crate::http_source::metrics::{CarOutcome, Metrics, OutcomeKind};
use crate::http_source::source::{CARS_PART, Load, Source, Want};
use crate::wants::Wants;
use content::BlockKey;
use libp2p::{Multiaddr, PeerId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::{Id, JoinSet};

/// The maximum number of concurrent requests to all gateways of one trust level.
const REQUESTS_MAX: usize = 128;
/// The maximum number of untrusted gateways in use.
const UNTRUSTED_MAX: usize = 64;
/// The maximum number of gateways that one provider record adds.
const PER_RECORD_MAX: usize = 2;
/// The maximum number of origins with a circuit breaker.
const ORIGINS_MAX: usize = 1_024;
/// How long an unused untrusted gateway is kept.
const UNTRUSTED_IDLE: Duration = Duration::from_secs(60);

/// Options of the gateways.
#[derive(Debug, Clone, Default)]
pub struct HttpPeersOptions {
    /// Base URLs of the configured gateways.
    pub gateways: Vec<String>,
    /// Whether gateways in provider records are used.
    pub from_records: bool,
    /// Whether provider records may refer to private networks: for tests and isolated networks.
    pub dial_private: bool,
    /// Whether gateways are asked for CARs.
    pub cars: bool,
}

/// Why gateways cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A configured gateway is invalid.
    #[error("{url}: {error}")]
    Gateway {
        /// The URL as configured.
        url: String,
        /// The error.
        error: AddressError,
    },
    /// The HTTP client cannot be built.
    #[error("cannot build the HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

/// An event for the Bitswap client.
#[derive(Debug)]
pub enum Event {
    /// A gateway can be asked.
    Connected {
        /// The peer ID that stands for the gateway.
        peer: PeerId,
        /// Whether it is asked first.
        favoured: bool,
    },
    /// A gateway cannot be asked any more; its wants are dropped.
    Disconnected(PeerId),
    /// A gateway responded. Its blocks were delivered.
    Received(PeerId, Received),
}

/// A running request.
struct Running {
    peer: PeerId,
    trust: Trust,
    key: BlockKey,
    origin: Arc<str>,
}

/// A running request for a CAR.
struct RunningCar {
    peer: PeerId,
    trust: Trust,
    origin: Arc<str>,
}

/// The requests to all gateways of one trust level.
#[derive(Default)]
struct RequestQueue {
    running: usize,
    /// Those of them that are for CARs.
    cars: usize,
    /// Gateways with queued wants, in round robin.
    ready: VecDeque<PeerId>,
}

/// All gateways. See the module's documentation.
pub struct HttpPeers {
    /// The HTTP client; without it, no gateway is used.
    gateway_client: Option<Arc<GatewayClient>>,
    from_records: bool,
    dial_private: bool,
    metrics: Metrics,
    sources: HashMap<PeerId, Source>,
    loads: HashMap<Arc<str>, Load>,
    breakers: Breakers,
    configured: RequestQueue,
    untrusted: RequestQueue,
    requests: JoinSet<Answer>,
    running: HashMap<Id, Running>,
    /// Requests for CARs, which end with whether their connection is multiplexed.
    cars: JoinSet<bool>,
    running_cars: HashMap<Id, RunningCar>,
    events: VecDeque<Event>,
}

impl HttpPeers {
    /// The configured gateways, which are connected at once. Blocks go to `wants`.
    ///
    /// # Errors
    /// [`SetupError`], unless no gateways are used at all.
    pub fn new(
        options: &HttpPeersOptions,
        wants: Arc<Wants>,
        metrics: Metrics,
        now: Instant,
    ) -> Result<Self, SetupError> {
        let mut peers = Self::none(metrics);
        if options.gateways.is_empty() && !options.from_records {
            return Ok(peers);
        }
        peers.from_records = options.from_records;
        peers.dial_private = options.dial_private;
        for url in &options.gateways {
            let base = Base::from_url(url).map_err(|error| SetupError::Gateway { url: url.clone(), error })?;
            peers.add(Source::new(base, Trust::Configured, None, now));
        }
        let clients = Clients::new(options.dial_private, options.cars)?;
        peers.gateway_client = Some(Arc::new(GatewayClient::new(clients, wants)));
        Ok(peers)
    }

    /// No gateways, not even from provider records.
    pub fn none(metrics: Metrics) -> Self {
        Self {
            gateway_client: None,
            from_records: false,
            dial_private: false,
            metrics,
            sources: HashMap::new(),
            loads: HashMap::new(),
            breakers: Breakers::new(ORIGINS_MAX),
            configured: RequestQueue::default(),
            untrusted: RequestQueue::default(),
            requests: JoinSet::new(),
            running: HashMap::new(),
            cars: JoinSet::new(),
            running_cars: HashMap::new(),
            events: VecDeque::new(),
        }
    }

    /// Adds the gateways among the addresses of a provider record. Returns the peer IDs of those that can be asked.
    pub fn found(&mut self, addresses: &[Multiaddr], now: Instant) -> Vec<PeerId> {
        if !self.from_records {
            return Vec::new();
        }
        let mut names = Vec::new();
        for address in addresses {
            let base = match Base::from_multiaddr(address) {
                Ok(base) => base,
                Err(AddressError::NotHttp) => continue,
                Err(error) => {
                    tracing::debug!(%address, %error, "an HTTP address in a provider record is not used");
                    continue;
                }
            };
            let (id, configured) = (base.id(), self.is_configured(&base.id()));
            if names.len() >= PER_RECORD_MAX || names.contains(&id) {
                continue;
            }
            if configured || self.add_untrusted(base, address, now) {
                names.push(id);
            }
        }
        names
    }

    fn is_configured(&self, peer: &PeerId) -> bool {
        self.sources.get(peer).is_some_and(|source| source.trust == Trust::Configured)
    }

    /// Adds an untrusted gateway; returns whether it is used.
    fn add_untrusted(&mut self, base: Base, address: &Multiaddr, now: Instant) -> bool {
        if !self.dial_private
            && let Err(error) = base.check_as_untrusted()
        {
            tracing::debug!(%base, %error, "a gateway in a provider record is not used");
            return false;
        }
        if let Some(known) = self.sources.get_mut(&base.id()) {
            known.used = now;
            return true;
        }
        // Otherwise a provider record could trip the breaker of a configured gateway.
        let origin = base.origin();
        let is_configured = |source: &Source| source.trust == Trust::Configured && *source.origin == *origin;
        if self.sources.values().any(is_configured) {
            return false;
        }
        if self.breakers.get(&origin).allows(1, now) == 0 || !self.evict_unused() {
            return false;
        }
        self.add(Source::new(base, Trust::Untrusted, Some(address.clone()), now));
        true
    }

    /// The address of a gateway in its provider record; `None` for configured gateways and other peers.
    pub fn address(&self, peer: &PeerId) -> Option<&Multiaddr> {
        self.sources.get(peer)?.address.as_ref()
    }

    /// Evicts the least recently used untrusted gateway if necessary; returns whether another can be added.
    fn evict_unused(&mut self) -> bool {
        let untrusted = || self.sources.iter().filter(|(_, source)| source.trust == Trust::Untrusted);
        if untrusted().count() < UNTRUSTED_MAX {
            return true;
        }
        let idle = untrusted().filter(|(_, source)| source.is_unused());
        let Some(longest) = idle.min_by_key(|(_, source)| source.used).map(|(peer, _)| *peer) else { return false };
        self.disconnect(longest);
        true
    }

    fn add(&mut self, source: Source) {
        let peer = source.base.id();
        self.sources.entry(peer).or_insert(source);
        self.connect(peer);
    }

    fn connect(&mut self, peer: PeerId) {
        let Some(source) = self.sources.get_mut(&peer) else { return };
        if !std::mem::replace(&mut source.connected, true) {
            self.metrics.gateways.inc();
            let favoured = source.trust == Trust::Configured;
            self.events.push_back(Event::Connected { peer, favoured });
        }
    }

    fn disconnect(&mut self, peer: PeerId) {
        let Some(source) = self.sources.get_mut(&peer) else { return };
        source.withdraw_all();
        if std::mem::take(&mut source.connected) {
            self.metrics.gateways.dec();
            self.events.push_back(Event::Disconnected(peer));
        }
        if source.trust == Trust::Untrusted {
            let origin = Arc::clone(&source.origin);
            self.sources.remove(&peer);
            self.remove_idle(&origin);
        }
    }

    /// Takes wantlist changes for a gateway; `false` if the peer is not a gateway.
    pub fn send(&mut self, peer: PeerId, entries: &[WantEntry], now: Instant) -> bool {
        let Some(source) = self.sources.get_mut(&peer) else { return false };
        source.used = now;
        if !source.connected {
            // The client is about to learn that its wants are dropped.
            return true;
        }
        for entry in entries {
            let Some(key) = BlockKey::of(&entry.cid) else { continue };
            match entry.ask {
                Ask::Block => source.want(key, entry.cid, RequestKind::Block),
                Ask::Have => source.want(key, entry.cid, RequestKind::Presence),
                Ask::Cancel => source.withdraw(&key),
            }
        }
        self.schedule(peer);
        self.start_requests(now);
        true
    }

    /// Reconnects gateways whose breakers have closed, and removes unused ones. Called about every 100 ms.
    pub fn tick(&mut self, now: Instant) {
        let closed = |source: &Source| {
            !source.connected
                && source.trust == Trust::Configured
                && self.breakers.get(&source.origin).allows(1, now) > 0
        };
        let unused = |source: &Source| {
            source.trust == Trust::Untrusted
                && source.is_unused()
                && now.saturating_duration_since(source.used) > UNTRUSTED_IDLE
        };
        let select = |condition: &dyn Fn(&Source) -> bool| -> Vec<PeerId> {
            self.sources.iter().filter(|(_, source)| condition(source)).map(|(peer, _)| *peer).collect()
        };
        let (back, gone) = (select(&closed), select(&unused));
        back.into_iter().for_each(|peer| self.connect(peer));
        gone.into_iter().for_each(|peer| self.disconnect(peer));
    }

    /// The next event. Registers the waker if there is none.
    pub fn poll(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(event);
            }
            match self.requests.poll_join_next_with_id(cx) {
                Poll::Ready(Some(Ok((id, answer)))) => self.ended(id, Some(answer), now),
                // It was aborted: requests do not panic.
                Poll::Ready(Some(Err(error))) => self.ended(error.id(), None, now),
                Poll::Ready(None) | Poll::Pending => match self.cars.poll_join_next_with_id(cx) {
                    Poll::Ready(Some(Ok((id, multiplexed)))) => self.car_task_ended(id, multiplexed, now),
                    Poll::Ready(Some(Err(error))) => self.car_task_ended(error.id(), false, now),
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                },
            }
        }
    }

    // --- requests ---------------------------------------------------------------------------------------------------

    fn queue(&mut self, trust: Trust) -> &mut RequestQueue {
        match trust {
            Trust::Configured => &mut self.configured,
            Trust::Untrusted => &mut self.untrusted,
        }
    }

    /// Schedules a gateway that has queued wants.
    fn schedule(&mut self, peer: PeerId) {
        if let Some(source) = self.sources.get_mut(&peer)
            && !source.queue.is_empty()
            && !std::mem::replace(&mut source.scheduled, true)
        {
            let trust = source.trust;
            self.queue(trust).ready.push_back(peer);
        }
    }

    /// Starts the requests that the limits allow, in round robin over gateways.
    fn start_requests(&mut self, now: Instant) {
        self.start_requests_of(Trust::Configured, now);
        self.start_requests_of(Trust::Untrusted, now);
    }

    fn start_requests_of(&mut self, trust: Trust, now: Instant) {
        while self.queue(trust).running < REQUESTS_MAX {
            let Some(peer) = self.queue(trust).ready.pop_front() else { return };
            if let Some(source) = self.sources.get_mut(&peer) {
                source.scheduled = false;
            }
            // Otherwise it is scheduled when a request to its origin ends.
            if self.start_one(peer, now) {
                self.schedule(peer);
            }
        }
    }

    /// Starts a request; `false` if the limits of its origin do not allow it.
    fn start_one(&mut self, peer: PeerId, now: Instant) -> bool {
        let (Some(source), Some(gateway_client)) = (self.sources.get_mut(&peer), &self.gateway_client) else {
            return false;
        };
        let load = self.loads.entry(source.origin.clone()).or_default();
        if load.running >= self.breakers.get(&source.origin).allows(load.max(source.trust), now) {
            return false;
        }
        let Some(key) = source.queue.pop_front() else { return false };
        let Some(want) = source.wants.get_mut(&key) else { return true };
        load.running += 1;
        let (gateway_client, base, trust) = (gateway_client.clone(), source.base.clone(), source.trust);
        let (cid, kind) = (want.cid, want.kind);
        let request = self.requests.spawn(async move { gateway_client.ask(&base, trust, &cid, kind).await });
        self.running.insert(request.id(), Running { peer, trust, key, origin: source.origin.clone() });
        want.request = Some(request);
        self.queue(trust).running += 1;
        true
    }

    /// Starts a transfer, as a request for a CAR; `false` if the limits of the gateway's origin do not allow another
    /// one. A half-open breaker waits for a single block, which takes less time.
    pub fn start(&mut self, active: &Arc<ActiveTransfer>, now: Instant) -> bool {
        let peer = active.peer;
        let (Some(source), Some(gateway_client)) = (self.sources.get_mut(&peer), &self.gateway_client) else {
            return false;
        };
        let (trust, origin) = (source.trust, Arc::clone(&source.origin));
        let queue = match trust {
            Trust::Configured => &mut self.configured,
            Trust::Untrusted => &mut self.untrusted,
        };
        let load = self.loads.entry(Arc::clone(&origin)).or_default();
        let allowed = self.breakers.get(&origin).allows(load.max(trust), now);
        let has_room = load.running < allowed && load.cars < allowed / CARS_PART;
        if !source.connected || !has_room || queue.running >= REQUESTS_MAX || queue.cars >= REQUESTS_MAX / CARS_PART {
            return false;
        }
        for (running, cars) in [(&mut load.running, &mut load.cars), (&mut queue.running, &mut queue.cars)] {
            *running += 1;
            *cars += 1;
        }
        source.cars += 1;
        source.used = now;
        let (gateway_client, base) = (Arc::clone(gateway_client), Arc::clone(&source.base));
        let (active, metrics) = (Arc::clone(active), self.metrics.clone());
        let request = self.cars.spawn(async move { gateway_client.transfer(&base, trust, active, &metrics).await });
        self.running_cars.insert(request.id(), RunningCar { peer, trust, origin });
        true
    }

    /// The task of a request for a CAR has ended.
    fn car_task_ended(&mut self, id: Id, multiplexed: bool, now: Instant) {
        let Some(RunningCar { peer, trust, origin }) = self.running_cars.remove(&id) else { return };
        let queue = self.queue(trust);
        (queue.running, queue.cars) = (queue.running - 1, queue.cars - 1);
        if let Some(load) = self.loads.get_mut(&origin) {
            load.running = load.running.saturating_sub(1);
            load.cars = load.cars.saturating_sub(1);
            load.multiplexed |= multiplexed;
        }
        if let Some(source) = self.sources.get_mut(&peer) {
            source.cars = source.cars.saturating_sub(1);
            source.used = now;
        }
        self.request_ended(&origin, now);
    }

    /// A request to an origin has ended, so that others may start.
    fn request_ended(&mut self, origin: &Arc<str>, now: Instant) {
        self.sources_at(origin).into_iter().for_each(|peer| self.schedule(peer));
        self.remove_idle(origin);
        self.start_requests(now);
    }

    /// A block of a CAR was verified.
    pub fn car_received(&mut self, peer: &PeerId, bytes: usize) {
        self.metrics.block_bytes.inc_by(bytes as u64);
        self.metrics.car_blocks.inc();
        let Some(origin) = self.sources.get(peer).map(|source| Arc::clone(&source.origin)) else { return };
        self.succeeded(peer, &origin);
        if let Some(load) = self.loads.get_mut(&origin) {
            load.proven = true;
        }
    }

    /// A request to a gateway succeeded. If its breaker has opened since, that is known too late to close it.
    fn succeeded(&mut self, peer: &PeerId, origin: &str) {
        if self.is_connected(peer) {
            self.breakers.change(origin, |breaker| breaker.answered());
        }
    }

    fn is_connected(&self, peer: &PeerId) -> bool {
        self.sources.get(peer).is_some_and(|source| source.connected)
    }

    /// A transfer has ended.
    pub fn car_ended(&mut self, peer: &PeerId, end: &TransferEnd, now: Instant) {
        self.metrics.car_ended(CarOutcome::from(end));
        let Some(source) = self.sources.get(peer) else { return };
        let (origin, is_untrusted) = (Arc::clone(&source.origin), source.trust == Trust::Untrusted);
        let fault = match end {
            TransferEnd::InvalidBlock => Fault::InvalidBlock,
            TransferEnd::Declined(Decline::Busy(asked_for)) => Fault::Busy(*asked_for),
            TransferEnd::Declined(Decline::Failed)
            | TransferEnd::Lost
            | TransferEnd::Stalled
            | TransferEnd::GivenUp
            | TransferEnd::Fault(_) => Fault::Failure,
            TransferEnd::Declined(Decline::Lacks) => {
                let is_connected = source.connected;
                if is_connected && self.breakers.change(&origin, |breaker| breaker.missed(is_untrusted, now)) {
                    self.open(&origin);
                }
                return self.count_open_breakers();
            }
            TransferEnd::Declined(Decline::Incomplete | Decline::Unsupported | Decline::Refused)
            | TransferEnd::Status(_)
            | TransferEnd::TooManyBlocks
            | TransferEnd::NamesLost
            | TransferEnd::Cancelled => return,
        };
        if self.breakers.change(&origin, |breaker| breaker.failed(fault, now)) {
            self.open(&origin);
        }
        self.count_open_breakers();
    }

    fn count_open_breakers(&self) {
        self.metrics.breakers_open.set(i64::try_from(self.breakers.tripped()).unwrap_or(i64::MAX));
    }

    /// A request ended with a result, or was aborted.
    fn ended(&mut self, id: Id, answer: Option<Answer>, now: Instant) {
        let Some(Running { peer, trust, key, origin }) = self.running.remove(&id) else { return };
        self.queue(trust).running -= 1;
        if let Some(load) = self.loads.get_mut(&origin) {
            load.running = load.running.saturating_sub(1);
            if let Some(answer) = &answer {
                load.multiplexed |= answer.multiplexed;
                load.proven |= matches!(answer.outcome, Outcome::Block { .. });
            }
        }
        self.metrics.ended(answer.as_ref().map_or(OutcomeKind::Cancelled, |answer| OutcomeKind::from(&answer.outcome)));
        if let Some(answer) = answer {
            self.answered(peer, key, id, &origin, answer.outcome, now);
        }
        self.request_ended(&origin, now);
    }

    fn answered(&mut self, peer: PeerId, key: BlockKey, id: Id, origin: &str, outcome: Outcome, now: Instant) {
        let asked = self.sources.get_mut(&peer).and_then(|source| source.take_asked(&key, id));
        let untrusted = self.sources.get(&peer).is_none_or(|source| source.trust == Trust::Untrusted);
        let mut received = Received::default();
        let mut deny = |asked: &Option<Want>| received.presences.extend(asked.as_ref().map(|want| (want.cid, false)));
        let mut opened = false;
        match outcome {
            Outcome::Block { key, bytes, body_bytes } => {
                self.metrics.block_bytes.inc_by(bytes as u64);
                self.metrics.body_bytes.inc_by(body_bytes as u64);
                self.succeeded(&peer, origin);
                // The client's windows count the bytes of blocks.
                received.blocks.push((key, bytes));
            }
            Outcome::Has => {
                self.succeeded(&peer, origin);
                received.presences.extend(asked.map(|want| (want.cid, true)));
            }
            Outcome::Lacks => {
                opened =
                    self.is_connected(&peer) && self.breakers.change(origin, |breaker| breaker.missed(untrusted, now));
                deny(&asked);
            }
            Outcome::InvalidBlock { key: other, bytes } => {
                tracing::debug!(%origin, ?key, "the gateway sent an invalid block");
                opened = self.breakers.change(origin, |breaker| breaker.failed(Fault::InvalidBlock, now));
                deny(&asked);
                received.blocks.push((other, bytes));
            }
            Outcome::Useless(reason) => {
                tracing::debug!(%origin, ?key, reason, "the gateway sent an unusable response");
                opened = self.breakers.change(origin, |breaker| breaker.failed(Fault::Failure, now));
                deny(&asked);
            }
            Outcome::Failed(reason) => {
                tracing::debug!(%origin, ?key, reason, "the request to the gateway failed");
                opened = self.breakers.change(origin, |breaker| breaker.failed(Fault::Failure, now));
                if let Some(want) = asked.filter(|_| !opened)
                    && let Err(want) = self.again(peer, key, want)
                {
                    deny(&Some(want));
                }
            }
            Outcome::Busy(asked_for) => {
                opened = self.breakers.change(origin, |breaker| breaker.failed(Fault::Busy(asked_for), now));
                deny(&asked);
            }
        }
        if !received.blocks.is_empty() || !received.presences.is_empty() {
            self.events.push_back(Event::Received(peer, received));
        }
        self.count_open_breakers();
        if opened {
            self.open(origin);
        }
    }

    /// Queues a failed want again, or returns it if it has failed too often.
    fn again(&mut self, peer: PeerId, key: BlockKey, mut want: Want) -> Result<(), Want> {
        want.failures += 1;
        match self.sources.get_mut(&peer) {
            Some(source) if want.failures < FAILURES_MAX => {
                source.want_again(key, want);
                Ok(())
            }
            _ => Err(want),
        }
    }

    /// The breaker of an origin opened: disconnects its gateways.
    fn open(&mut self, origin: &str) {
        tracing::debug!(%origin, "the circuit breaker of the gateway opened");
        self.sources_at(origin).into_iter().for_each(|peer| self.disconnect(peer));
    }

    fn sources_at(&self, origin: &str) -> Vec<PeerId> {
        self.sources.iter().filter(|(_, source)| &*source.origin == origin).map(|(peer, _)| *peer).collect()
    }

    /// Removes the load of an origin that has no requests and no gateways.
    fn remove_idle(&mut self, origin: &Arc<str>) {
        let idle = self.loads.get(origin).is_some_and(|load| load.running == 0);
        if idle && !self.sources.values().any(|source| source.origin == *origin) {
            self.loads.remove(origin);
        }
    }
}

#[cfg(test)]
#[path = "http_peers_tests.rs"]
mod tests;
