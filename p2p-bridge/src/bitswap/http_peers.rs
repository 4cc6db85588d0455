//! [`HttpPeers`]: the gateways that are known, what each was asked, and how much is asked at once.
//!
//! Polled by the swarm task through [`crate::bitswap::behaviour`]. Requests run in tasks of their own; here is only
//! accounting.
//!
//! A gateway is "connected" from the moment it is known and its breaker lets it be asked. When its breaker opens, it
//! "disconnects", and whatever it was asked goes to others at once. A configured one comes back when its rest is over; one
//! that a stranger named comes back when it is named again after that, and leaves when it was not asked for a while.
//!
//! A request that fails is repeated at the end of the queue, up to as often as it takes to open the breaker: so a lone
//! gateway with a hiccup is either tried again or disconnects, and comes back, but never stays without an answer.
//!
//! Strangers' gateways and configured ones have a [`Lane`] each, and memory for bodies of their own ([`crate::http_source::client`]): however
//! slow strangers are, what the operator configured is asked at once, and its blocks find room.

use crate::bitswap::handler::Received;
use crate::bitswap::message::{Ask, WantEntry};
use crate::http_source::address::{AddressError, Base};
use crate::http_source::breaker::{Breakers, FAILURES_MAX, Fault};
use crate::http_source::client::{Answer, Asker, Outcome, Question};
use crate::http_source::dialling::{Clients, Trust};
use crate::http_source::metrics::{Ending, Metrics};
use crate::http_source::source::{Load, Source, Want};
use crate::wants::Wants;
use content::BlockKey;
use libp2p::{Multiaddr, PeerId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::{Id, JoinSet};

/// Requests that run at once, over all gateways of one trust.
const REQUESTS_MAX: usize = 128;
/// Gateways that strangers named and that are in use.
const STRANGERS_MAX: usize = 64;
/// Gateways that one provider record adds.
const PER_RECORD_MAX: usize = 2;
/// Origins whose failures are remembered.
const ORIGINS_MAX: usize = 1_024;
/// How long a stranger's gateway stays when nobody asks it anything.
const STRANGER_IDLE: Duration = Duration::from_secs(60);

/// How gateways are used.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Base URLs of gateways to ask for everything.
    pub gateways: Vec<String>,
    /// Whether those that provider records name are asked as well.
    pub from_records: bool,
    /// Whether provider records may lead into private networks: for tests and networks without an outside.
    pub dial_private: bool,
}

/// Why gateways cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A configured gateway is none.
    #[error("{url}: {error}")]
    Gateway {
        /// The URL as configured.
        url: String,
        /// What is wrong with it.
        error: AddressError,
    },
    /// There is no HTTP client to be had.
    #[error("cannot speak HTTP: {0}")]
    Client(#[from] reqwest::Error),
}

/// What happened, in the words of the Bitswap state machine.
#[derive(Debug)]
pub enum Event {
    /// A gateway can be asked.
    Connected {
        /// The name of the source.
        peer: PeerId,
        /// Whether it is to be asked first.
        favoured: bool,
    },
    /// A gateway is not asked any more; whatever it was asked is forgotten.
    Disconnected(PeerId),
    /// A gateway answered. Its blocks went to their waiters.
    Received(PeerId, Received),
}

/// A request that runs.
struct Running {
    peer: PeerId,
    trust: Trust,
    key: BlockKey,
    origin: Arc<str>,
}

/// The requests of all gateways of one trust.
#[derive(Default)]
struct Lane {
    running: usize,
    /// Sources that may have something to start, in turns.
    ready: VecDeque<PeerId>,
}

/// Every gateway. See the module's documentation.
pub struct HttpPeers {
    /// Nothing is asked without it.
    asker: Option<Arc<Asker>>,
    from_records: bool,
    dial_private: bool,
    metrics: Metrics,
    sources: HashMap<PeerId, Source>,
    loads: HashMap<Arc<str>, Load>,
    breakers: Breakers,
    configured: Lane,
    strange: Lane,
    requests: JoinSet<Answer>,
    running: HashMap<Id, Running>,
    events: VecDeque<Event>,
}

impl HttpPeers {
    /// The configured gateways, which are connected from now on. Blocks go to `wants`.
    ///
    /// # Errors
    /// [`SetupError`], unless no gateway is ever used.
    pub fn new(options: &Options, wants: Arc<Wants>, metrics: Metrics, now: Instant) -> Result<Self, SetupError> {
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
        peers.asker = Some(Arc::new(Asker::new(Clients::new(options.dial_private)?, wants)));
        Ok(peers)
    }

    /// No gateway, whatever anybody names.
    pub fn none(metrics: Metrics) -> Self {
        Self {
            asker: None,
            from_records: false,
            dial_private: false,
            metrics,
            sources: HashMap::new(),
            loads: HashMap::new(),
            breakers: Breakers::new(ORIGINS_MAX),
            configured: Lane::default(),
            strange: Lane::default(),
            requests: JoinSet::new(),
            running: HashMap::new(),
            events: VecDeque::new(),
        }
    }

    /// A provider record has these addresses. Returns the names of the gateways among them that can be asked.
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
                    tracing::debug!(%address, %error, "a provider's address is not used");
                    continue;
                }
            };
            let (id, configured) = (base.id(), self.is_configured(&base.id()));
            if names.len() >= PER_RECORD_MAX || names.contains(&id) {
                continue;
            }
            if configured || self.add_strange(base, address, now) {
                names.push(id);
            }
        }
        names
    }

    fn is_configured(&self, peer: &PeerId) -> bool {
        self.sources.get(peer).is_some_and(|source| source.trust == Trust::Configured)
    }

    /// Whether a gateway that a stranger named is in use from now on.
    fn add_strange(&mut self, base: Base, address: &Multiaddr, now: Instant) -> bool {
        if !self.dial_private
            && let Err(error) = base.check_as_strangers()
        {
            tracing::debug!(%base, %error, "a provider's gateway is not used");
            return false;
        }
        if let Some(known) = self.sources.get_mut(&base.id()) {
            known.used = now;
            return true;
        }
        // A stranger's record must not be able to get the operator's own gateway shut out.
        let origin = base.origin();
        let is_ours = |source: &Source| source.trust == Trust::Configured && *source.origin == *origin;
        if self.sources.values().any(is_ours) {
            return false;
        }
        if self.breakers.get(&origin).allows(1, now) == 0 || !self.make_room() {
            return false;
        }
        self.add(Source::new(base, Trust::Stranger, Some(address.clone()), now));
        true
    }

    /// Where a gateway is, in the words of the record that named it; `None` for configured ones, and for other peers.
    pub fn address(&self, peer: &PeerId) -> Option<&Multiaddr> {
        self.sources.get(peer)?.address.as_ref()
    }

    /// Whether there is room for another stranger's gateway, after the longest unused was put out if that was needed.
    fn make_room(&mut self) -> bool {
        let strange = || self.sources.iter().filter(|(_, source)| source.trust == Trust::Stranger);
        if strange().count() < STRANGERS_MAX {
            return true;
        }
        let idle = strange().filter(|(_, source)| source.wants.is_empty());
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
        if source.trust == Trust::Stranger {
            let origin = Arc::clone(&source.origin);
            self.sources.remove(&peer);
            self.forget_idle(&origin);
        }
    }

    /// Takes wantlist changes for a peer; `false` if the peer is none of these.
    pub fn send(&mut self, peer: PeerId, entries: &[WantEntry], now: Instant) -> bool {
        let Some(source) = self.sources.get_mut(&peer) else { return false };
        source.used = now;
        for entry in entries {
            let Some(key) = BlockKey::of(&entry.cid) else { continue };
            match entry.ask {
                Ask::Block => source.want(key, entry.cid, Question::Block),
                Ask::Have => source.want(key, entry.cid, Question::Presence),
                Ask::Cancel => source.withdraw(&key),
            }
        }
        self.list(peer);
        self.start_requests(now);
        true
    }

    /// Lets rested gateways come back and unused ones go. Call it about every 100 ms.
    pub fn tick(&mut self, now: Instant) {
        let rested = |source: &Source| {
            !source.connected
                && source.trust == Trust::Configured
                && self.breakers.get(&source.origin).allows(1, now) > 0
        };
        let unused = |source: &Source| {
            source.trust == Trust::Stranger
                && source.wants.is_empty()
                && now.saturating_duration_since(source.used) > STRANGER_IDLE
        };
        let select = |condition: &dyn Fn(&Source) -> bool| -> Vec<PeerId> {
            self.sources.iter().filter(|(_, source)| condition(source)).map(|(peer, _)| *peer).collect()
        };
        let (back, gone) = (select(&rested), select(&unused));
        back.into_iter().for_each(|peer| self.connect(peer));
        gone.into_iter().for_each(|peer| self.disconnect(peer));
    }

    /// The next event. Pending until there is one; the waker is kept.
    pub fn poll(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(event);
            }
            match self.requests.poll_join_next_with_id(cx) {
                Poll::Ready(Some(Ok((id, answer)))) => self.ended(id, Some(answer), now),
                // It was given up: nothing in it panics.
                Poll::Ready(Some(Err(error))) => self.ended(error.id(), None, now),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }

    // --- requests -----------------------------------------------------------------------------------------------------

    fn lane(&mut self, trust: Trust) -> &mut Lane {
        match trust {
            Trust::Configured => &mut self.configured,
            Trust::Stranger => &mut self.strange,
        }
    }

    /// Gives a source its turn, if it has something to start.
    fn list(&mut self, peer: PeerId) {
        if let Some(source) = self.sources.get_mut(&peer)
            && !source.queue.is_empty()
            && !std::mem::replace(&mut source.listed, true)
        {
            let trust = source.trust;
            self.lane(trust).ready.push_back(peer);
        }
    }

    /// Starts what may be started, one request of each source in turn.
    fn start_requests(&mut self, now: Instant) {
        self.start_requests_of(Trust::Configured, now);
        self.start_requests_of(Trust::Stranger, now);
    }

    fn start_requests_of(&mut self, trust: Trust, now: Instant) {
        while self.lane(trust).running < REQUESTS_MAX {
            let Some(peer) = self.lane(trust).ready.pop_front() else { return };
            if let Some(source) = self.sources.get_mut(&peer) {
                source.listed = false;
            }
            // Otherwise it gets its turn when a request to its origin has ended.
            if self.start_one(peer, now) {
                self.list(peer);
            }
        }
    }

    /// `false` if its origin is not to be asked more at the moment.
    fn start_one(&mut self, peer: PeerId, now: Instant) -> bool {
        let (Some(source), Some(asker)) = (self.sources.get_mut(&peer), &self.asker) else { return false };
        let load = self.loads.entry(source.origin.clone()).or_default();
        if load.running >= self.breakers.get(&source.origin).allows(load.max(source.trust), now) {
            return false;
        }
        let Some(key) = source.queue.pop_front() else { return false };
        let Some(want) = source.wants.get_mut(&key) else { return true };
        load.running += 1;
        let (asker, base, trust) = (asker.clone(), source.base.clone(), source.trust);
        let (cid, question) = (want.cid, want.question);
        let request = self.requests.spawn(async move { asker.ask(&base, trust, &cid, question).await });
        self.running.insert(request.id(), Running { peer, trust, key, origin: source.origin.clone() });
        want.request = Some(request);
        self.lane(trust).running += 1;
        true
    }

    /// A request ended, with an answer or because it was given up.
    fn ended(&mut self, id: Id, answer: Option<Answer>, now: Instant) {
        let Some(Running { peer, trust, key, origin }) = self.running.remove(&id) else { return };
        self.lane(trust).running -= 1;
        if let Some(load) = self.loads.get_mut(&origin) {
            load.running = load.running.saturating_sub(1);
            if let Some(answer) = &answer {
                load.multiplexed |= answer.multiplexed;
                load.proven |= matches!(answer.outcome, Outcome::Block { .. });
            }
        }
        self.metrics.ended(answer.as_ref().map_or(Ending::Cancelled, |answer| Ending::from(&answer.outcome)));
        if let Some(answer) = answer {
            self.answered(peer, key, id, &origin, answer.outcome, now);
        }
        self.sources_at(&origin).into_iter().for_each(|peer| self.list(peer));
        self.forget_idle(&origin);
        self.start_requests(now);
    }

    fn answered(&mut self, peer: PeerId, key: BlockKey, id: Id, origin: &str, outcome: Outcome, now: Instant) {
        let asked = self.sources.get_mut(&peer).and_then(|source| source.take_asked(&key, id));
        let strange = self.sources.get(&peer).is_none_or(|source| source.trust == Trust::Stranger);
        let mut received = Received::default();
        let mut deny = |asked: &Option<Want>| received.presences.extend(asked.as_ref().map(|want| (want.cid, false)));
        let mut opened = false;
        match outcome {
            Outcome::Block { key, bytes } => {
                self.metrics.block_bytes.inc_by(bytes as u64);
                self.breakers.change(origin, |breaker| breaker.answered());
                received.blocks.push((key, bytes));
            }
            Outcome::Has => {
                self.breakers.change(origin, |breaker| breaker.answered());
                received.presences.extend(asked.map(|want| (want.cid, true)));
            }
            Outcome::Lacks => {
                opened = self.breakers.change(origin, |breaker| breaker.missed(strange, now));
                deny(&asked);
            }
            Outcome::Lie { key: other, bytes } => {
                tracing::debug!(%origin, ?key, "sent other bytes than it was asked for");
                opened = self.breakers.change(origin, |breaker| breaker.failed(Fault::Lie, now));
                deny(&asked);
                received.blocks.push((other, bytes));
            }
            Outcome::Useless(reason) => {
                tracing::debug!(%origin, ?key, reason, "a useless answer");
                opened = self.breakers.change(origin, |breaker| breaker.failed(Fault::Failure, now));
                deny(&asked);
            }
            Outcome::Failed(reason) => {
                tracing::debug!(%origin, ?key, reason, "a request failed");
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
        self.metrics.breakers_open.set(i64::try_from(self.breakers.tripped()).unwrap_or(i64::MAX));
        if opened {
            self.open(origin);
        }
    }

    /// Queues a failed want again, or gives it back if it has failed too often.
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

    /// An origin's breaker opened: none of its gateways is asked any more.
    fn open(&mut self, origin: &str) {
        tracing::debug!(%origin, "left alone for a while");
        self.sources_at(origin).into_iter().for_each(|peer| self.disconnect(peer));
    }

    fn sources_at(&self, origin: &str) -> Vec<PeerId> {
        self.sources.iter().filter(|(_, source)| &*source.origin == origin).map(|(peer, _)| *peer).collect()
    }

    /// What is known of an origin's load is kept while something runs there or it is in use.
    fn forget_idle(&mut self, origin: &Arc<str>) {
        let idle = self.loads.get(origin).is_some_and(|load| load.running == 0);
        if idle && !self.sources.values().any(|source| source.origin == *origin) {
            self.loads.remove(origin);
        }
    }
}

#[cfg(test)]
#[path = "http_peers_tests.rs"]
mod tests;
