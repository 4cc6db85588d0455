//! Searches for the providers of a session's root, and their dials.
//!
//! All sources are asked in parallel: cached providers, both DHTs and the routers. Each provider that is found goes
//! through [`Task::provider_named`] into the search's [`Plan`] of dials. A provider without known addresses is looked
//! up in the DHT. [`crate::discovery::dialer`] decides on the number of dials and their addresses. If no peer has
//! blocks of the root's DAG, a block below the root is searched for once: parts of a DAG may be announced without the
//! root.

use super::routers::RouterRequest;
use super::{ADDRESSES_MAX, Task};
use crate::admission::budget::Denial;
use crate::admission::ip_of;
use crate::connecting::ConnectError;
use crate::discovery::dialer::{Failure, Start};
use crate::discovery::history::ProviderSource;
use crate::discovery::plan::{Plan, Provider};
use crate::observers::{SearchSource, SessionEvent};
use crate::scope::{AddressPolicy, Scope};
use crate::wants::SessionId;
use libp2p::core::transport::TransportError;
use libp2p::kad::store::RecordStore;
use libp2p::kad::{PeerInfo, QueryId, RecordKey};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionDenied, ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId};
use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime};

/// The interval at which searches check for due dials.
pub(super) const DIAL_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum number of queries for providers without addresses.
const PEER_WALKS_MAX: usize = 32;
/// The maximum number of providers from one response.
const PROVIDERS_PER_RESPONSE_MAX: usize = 256;

/// The result of starting a provider's dial.
#[derive(Debug)]
enum DialStart {
    /// The dial has started, or its result is reported by [`Task::settle_dials`].
    Started { rest: Vec<Multiaddr>, deadline: Instant },
    /// The limit of dials is reached.
    LimitReached,
    /// It was dialled too often; try again later.
    TooOften,
}

fn is_dial_limit(cause: &ConnectionDenied) -> bool {
    cause.downcast_ref::<Denial>() == Some(&Denial::PendingOutgoing)
}

/// The end of a peer's dials, to be reported to the searches.
#[derive(Debug)]
pub(super) struct EndedDial {
    peer: PeerId,
    succeeded: bool,
    /// It was aborted before it could succeed.
    was_aborted: bool,
    /// Addresses that were not tried.
    untried: Vec<Multiaddr>,
}

impl EndedDial {
    /// The peer is connected.
    pub(super) fn succeeded(peer: PeerId) -> Self {
        Self { peer, succeeded: true, was_aborted: false, untried: Vec::new() }
    }

    /// The dial failed, without these addresses being tried.
    pub(super) fn failed(peer: PeerId, untried: Vec<Multiaddr>) -> Self {
        Self { peer, succeeded: false, was_aborted: false, untried }
    }

    /// The dial failed with an error. If this node aborted or denied it, this says nothing about the peer.
    pub(super) fn of(peer: PeerId, error: &DialError, untried: Vec<Multiaddr>) -> Self {
        let was_aborted = matches!(error, DialError::Aborted | DialError::Denied { .. });
        Self { was_aborted, ..Self::failed(peer, untried) }
    }
}

/// A search for the providers of one root, in both scopes.
#[derive(Default)]
pub(super) struct Search {
    queries: Vec<(Scope, QueryId)>,
    /// The running request to the routers.
    pub(super) routers: Option<RouterRequest>,
    plan: Plan,
    /// Whether any provider was found.
    pub(super) found: bool,
    /// Whether a block below the root was searched for.
    went_below: bool,
}

impl Task {
    pub(super) fn start_search(&mut self, session: SessionId) {
        self.stop_search(session);
        self.history.began(session, Instant::now());
        let routers = self.ask_routers(session, session);
        self.searches.insert(session, Search { routers, ..Search::default() });
        for provider in self.memory.providers(&session) {
            self.provider_named(session, provider, ProviderSource::Memory);
        }
        for provider in self.suggestions.peek(&session).cloned().unwrap_or_default() {
            self.provider_named(session, provider, ProviderSource::Caller);
        }
        self.ask_dht(session, &RecordKey::new(&session.to_bytes()));
        self.end_search_if_over(session);
        self.fail_if_no_peers(Instant::now());
    }

    fn ask_dht(&mut self, session: SessionId, key: &RecordKey) {
        for scope in Scope::ALL {
            let dht = self.swarm.behaviour_mut().dht(scope);
            if dht.kbuckets().all(|bucket| bucket.is_empty()) {
                continue;
            }
            let query = dht.get_providers(key.clone());
            self.metrics.query_started(scope);
            self.no_peers.searched(Instant::now());
            self.queries.insert((scope, query), session);
            self.history.asked(&session, ProviderSource::Dht(scope));
            self.tell(&session, SessionEvent::SearchStarted(SearchSource::Dht(scope)));
            if let Some(search) = self.searches.get_mut(&session) {
                search.queries.push((scope, query));
            }
        }
    }

    pub(super) fn stop_search(&mut self, session: SessionId) {
        let Some(search) = self.searches.remove(&session) else { return };
        self.history.ended(&session, Instant::now());
        for (scope, query) in search.queries {
            self.queries.remove(&(scope, query));
            let mut asked = None;
            if let Some(mut query) = self.swarm.behaviour_mut().dht(scope).query_mut(&query) {
                asked = Some(query.stats().num_requests());
                query.finish();
            }
            let source = SearchSource::Dht(scope);
            self.tell(&session, SessionEvent::SearchEnded { source, peers_asked: asked, is_complete: false });
        }
        if search.routers.is_some() {
            let source = SearchSource::Routers;
            self.tell(&session, SessionEvent::SearchEnded { source, peers_asked: None, is_complete: false });
        }
    }

    /// Tells the observers of a session of an event.
    pub(super) fn tell(&self, session: &SessionId, event: SessionEvent) {
        self.swarm.behaviour().bitswap.observers().tell(session, event);
    }

    /// The DHT returned providers. Most of their addresses are in the running query, which adds them to dials.
    pub(super) fn on_providers(
        &mut self,
        scope: Scope,
        session: SessionId,
        key: &RecordKey,
        providers: HashSet<PeerId>,
    ) {
        self.metrics.providers_found(scope, providers.len());
        for peer in providers.into_iter().take(PROVIDERS_PER_RESPONSE_MAX) {
            let stored = self.swarm.behaviour_mut().dht(scope).store_mut().providers(key);
            let stored = stored.into_iter().filter(|record| record.provider == peer);
            let addresses = stored.flat_map(|record| record.addresses).collect();
            self.provider_named(session, Provider { peer, addresses }, ProviderSource::Dht(scope));
        }
    }

    /// A provider of a session's root was found: the only way into the search's plan.
    pub(super) fn provider_named(&mut self, session: SessionId, mut provider: Provider, by: ProviderSource) {
        if provider.peer == *self.swarm.local_peer_id() {
            return;
        }
        let is_connected = self.swarm.is_connected(&provider.peer);
        self.history.named(&session, provider.peer, by, is_connected, Instant::now());
        self.tell(&session, SessionEvent::ProviderFound(by.into()));
        if !is_connected && self.searches.contains_key(&session) {
            self.add_known_addresses(&mut provider);
        }
        let is_peer = self.offer_gateways(session, &mut provider.addresses);
        let Some(search) = self.searches.get_mut(&session) else { return };
        search.found = true;
        if !is_peer {
            return;
        }
        self.swarm.behaviour_mut().bitswap.provider_found(session, provider.peer);
        if is_connected {
            return;
        }
        let borders = AddressPolicy { dial_private: self.delegation.dial_private };
        provider.addresses.retain(|address| borders.may_dial_in_any(address));
        let (dialer, now) = (&self.dialer, Instant::now());
        search.plan.add(provider, |provider| dialer.rank(provider, now));
        self.start_due_dials_of(session, now);
    }

    /// Adds other known addresses of a provider: previously successful ones first.
    fn add_known_addresses(&mut self, Provider { peer, addresses }: &mut Provider) {
        addresses.splice(0..0, self.peerbook.addresses(peer));
        for scope in Scope::ALL {
            addresses.extend(self.swarm.behaviour_mut().dht(scope).addresses_of(*peer));
        }
    }

    /// Starts the due dials of all searches.
    pub(super) fn start_due_dials(&mut self, now: Instant) {
        let overdue = self.dialer.tick(now);
        self.metrics.overdue_dials.inc_by(overdue as u64);
        let waiting = self.searches.iter().filter(|(_, search)| search.plan.is_waiting());
        let waiting: Vec<SessionId> = waiting.map(|(session, _)| *session).collect();
        for session in waiting {
            self.start_due_dials_of(session, now);
        }
    }

    fn start_due_dials_of(&mut self, session: SessionId, now: Instant) {
        let members = self.swarm.behaviour().bitswap.members(&session);
        let under_way_max = self.dialer.search_max();
        let next = |task: &mut Self| task.searches.get_mut(&session)?.plan.next(members, under_way_max, now);
        while let Some((provider, rank)) = next(self) {
            let start = self.dial_provider(&provider, now);
            let Some(search) = self.searches.get_mut(&session) else { return };
            match start {
                DialStart::Started { rest, deadline } => {
                    search.plan.began(&provider, rank, rest, deadline, now);
                    if !self.swarm.is_connected(&provider.peer) {
                        self.history.dialled(&session, provider.peer, now);
                    }
                }
                DialStart::LimitReached => return search.plan.postpone(provider, rank),
                DialStart::TooOften => search.plan.delay(provider, rank, now),
            }
        }
        let search = self.searches.get(&session);
        let displaced = search.map(|search| search.plan.displaced(members, under_way_max, now)).unwrap_or_default();
        for peer in displaced {
            if self.is_wanted_only_by_searches(&peer) {
                self.abort_dial(peer);
            }
        }
    }

    /// Whether only searches wait for a connection to this peer.
    fn is_wanted_only_by_searches(&self, peer: &PeerId) -> bool {
        !self.connects.is_waited_for(peer) && !self.peerings.peers().any(|known| known == *peer)
    }

    /// Aborts a provider's dial; its end is reported later.
    fn abort_dial(&mut self, peer: PeerId) {
        if !self.swarm.is_connected(&peer) && self.dialer.abort(&peer) {
            self.metrics.displaced_dials.inc();
            // An error means that no connection was established; pending dials are aborted all the same.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
    }

    /// Dials a provider, if there is a free slot, by its most promising addresses.
    fn dial_provider(&mut self, provider: &Provider, now: Instant) -> DialStart {
        let peer = provider.peer;
        match self.dialer.start(provider, now) {
            Start::Dial { addresses, rest, deadline } => self.dial_by(provider, addresses, rest, deadline, now),
            Start::UnderWay { deadline } => DialStart::Started { rest: Vec::new(), deadline },
            Start::LookUp { deadline } => {
                self.dialer.dialling(peer, None, Vec::new(), deadline, now);
                self.look_up_peer(peer);
                DialStart::Started { rest: Vec::new(), deadline }
            }
            Start::Full => {
                let displaced = self.dialer.oldest_overdue(now, |peer| self.is_wanted_only_by_searches(peer));
                displaced.into_iter().for_each(|peer| self.abort_dial(peer));
                DialStart::LimitReached
            }
            Start::Limited => DialStart::TooOften,
        }
    }

    fn dial_by(
        &mut self,
        provider: &Provider,
        addresses: Vec<Multiaddr>,
        rest: Vec<Multiaddr>,
        deadline: Instant,
        now: Instant,
    ) -> DialStart {
        let peer = provider.peer;
        // A second dial in parallel is for addresses that the first does not try.
        let condition = match self.dialer.is_under_way(&peer) {
            true => PeerCondition::Disconnected,
            false => PeerCondition::DisconnectedAndNotDialing,
        };
        let opts = DialOpts::peer_id(peer).condition(condition).addresses(addresses.clone()).build();
        let dial = opts.connection_id();
        match self.swarm.dial(opts) {
            Ok(()) => {
                self.dialer.dialling(peer, Some(dial), addresses, deadline, now);
                return DialStart::Started { rest, deadline };
            }
            Err(DialError::DialPeerConditionFalse(_)) if self.swarm.is_connected(&peer) => {
                self.ended_dials.push(EndedDial::succeeded(peer));
            }
            // The DHT dials it, maybe by other addresses: these are tried when that dial is overdue.
            Err(DialError::DialPeerConditionFalse(_)) => {
                self.dialer.not_begun(&addresses);
                return DialStart::Started { rest: provider.addresses.clone(), deadline };
            }
            Err(DialError::Denied { ref cause }) if is_dial_limit(cause) => {
                self.dialer.not_begun(&addresses);
                return DialStart::LimitReached;
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "not dialled");
                // A pending lookup of its addresses has ended too.
                self.dialer.not_found(&peer);
                self.ended_dials.push(EndedDial::of(peer, &error, Vec::new()));
            }
        }
        self.dialer.not_begun(&addresses);
        DialStart::Started { rest, deadline }
    }

    /// Dials a peer that is no provider: a local or a configured one. The result is reported later, so that a failure
    /// cannot start another dial from within this one.
    pub(super) fn dial(&mut self, peer: PeerId, known: Vec<Multiaddr>) {
        let opts = DialOpts::peer_id(peer)
            .condition(PeerCondition::DisconnectedAndNotDialing)
            .addresses(known)
            .extend_addresses_through_behaviour()
            .build();
        match self.swarm.dial(opts) {
            Ok(()) => {}
            Err(DialError::NoAddresses) => self.look_up_peer(peer),
            // It is connected, which ends its dial, or it is being dialled.
            Err(DialError::DialPeerConditionFalse(_)) if self.swarm.is_connected(&peer) => {
                self.ended_dials.push(EndedDial::succeeded(peer));
            }
            Err(DialError::DialPeerConditionFalse(_)) => {}
            Err(error) => {
                tracing::debug!(%peer, %error, "not dialled");
                self.ended_dials.push(EndedDial::failed(peer, Vec::new()));
            }
        }
    }

    /// Looks up a provider without addresses at the peers closest to its ID.
    pub(super) fn look_up_peer(&mut self, peer: PeerId) {
        for scope in Scope::ALL {
            let dht = self.swarm.behaviour_mut().dht(scope);
            if self.peer_walks.len() >= PEER_WALKS_MAX || dht.kbuckets().all(|bucket| bucket.is_empty()) {
                continue;
            }
            let query = dht.get_closest_peers(peer);
            self.metrics.query_started(scope);
            self.peer_walks.insert((scope, query), peer);
        }
        if !self.peer_walks.values().any(|other| *other == peer) {
            self.not_found(peer);
        }
    }

    /// A lookup of a provider's addresses has finished.
    pub(super) fn on_peer_walk(&mut self, scope: Scope, query: QueryId, peers: Vec<PeerInfo>) {
        let Some(wanted) = self.peer_walks.remove(&(scope, query)) else { return };
        let dht = self.swarm.behaviour_mut().dht(scope);
        let mut addresses: Vec<Multiaddr> = peers
            .into_iter()
            .filter(|info| info.peer_id == wanted)
            .flat_map(|info| info.addrs)
            .filter(|address| dht.may_dial(address))
            .collect();
        addresses.truncate(ADDRESSES_MAX);
        let last = !self.peer_walks.values().any(|other| *other == wanted);
        if addresses.is_empty() {
            if last {
                self.not_found(wanted);
            }
            return;
        }
        if !self.dialer.is_under_way(&wanted) {
            // It is wanted, but not by a search.
            return self.dial(wanted, addresses);
        }
        let start = self.dial_provider(&Provider { peer: wanted, addresses }, Instant::now());
        if !matches!(start, DialStart::Started { .. }) && last {
            self.not_found(wanted);
        }
    }

    /// No address of a peer was found, which fails its requests unless it is being dialled.
    fn not_found(&mut self, peer: PeerId) {
        self.dialer.not_found(&peer);
        if !self.dialer.is_under_way(&peer) && !self.swarm.is_connected(&peer) {
            self.ended_dials.push(EndedDial::failed(peer, Vec::new()));
        }
    }

    /// Records a failed dial: see [`crate::discovery::dialer::Dialer::failed`].
    pub(super) fn record_failure(
        &mut self,
        peer: &PeerId,
        dial: ConnectionId,
        error: &DialError,
    ) -> Option<Vec<Multiaddr>> {
        let now = Instant::now();
        match error {
            DialError::Transport(tried) => {
                // An address that no transport supports says nothing about its host.
                let answered = |error: &TransportError<_>| matches!(error, TransportError::Other(_));
                let tried = tried.iter().filter(|(_, error)| answered(error));
                let tried: Vec<Multiaddr> = tried.map(|(address, _)| address.clone()).collect();
                self.dialer.failed(peer, dial, Failure::Addresses(&tried), now)
            }
            DialError::WrongPeerId { obtained, address } => {
                self.searches.values_mut().for_each(|search| search.plan.hasten(obtained, address));
                self.dialer.failed(peer, dial, Failure::AnotherPeer { address, found: *obtained }, now)
            }
            _ => self.dialer.failed(peer, dial, Failure::Ours, now),
        }
    }

    /// Reports ended dials to the searches, which may start others. Called between events, and never from within a
    /// dial.
    pub(super) fn settle_dials(&mut self) {
        if self.ended_dials.is_empty() {
            return;
        }
        for EndedDial { peer, succeeded, was_aborted, untried } in std::mem::take(&mut self.ended_dials) {
            if !succeeded {
                self.connects.not_found(&peer);
                let why = || Some(ConnectError::Unknown.to_string());
                self.history.dial_ended(&peer, Instant::now(), why);
            }
            for (session, search) in &mut self.searches {
                search.plan.ended(&peer, succeeded, &untried);
                if !succeeded && !was_aborted && !self.swarm.is_connected(&peer) {
                    self.memory.failed(session, &peer);
                }
            }
        }
        self.start_due_dials(Instant::now());
    }

    /// A peer has blocks of a DAG: the next search for it starts there.
    pub(super) fn on_joined(&mut self, session: SessionId, peer: PeerId) {
        self.history.proved(&session, peer, Instant::now());
        if let Some(gateway) = self.swarm.behaviour().bitswap.gateway_address(&peer).cloned() {
            return self.memory.proved(session, Provider { peer, addresses: vec![gateway] }, SystemTime::now());
        }
        let connections = self.swarm.behaviour().bitswap.connections(&peer).iter();
        let dialled = connections.filter_map(|connection| self.dialled.get(connection).cloned());
        let mut addresses: Vec<Multiaddr> = dialled.filter(|address| ip_of(address).is_some()).collect();
        for address in self.peerbook.addresses(&peer) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        self.memory.proved(session, Provider { peer, addresses }, SystemTime::now());
    }

    /// A query of a search has finished, after so many peers were asked.
    pub(super) fn on_query_finished(&mut self, scope: Scope, query: QueryId, peers_asked: u32) {
        let Some(session) = self.queries.remove(&(scope, query)) else { return };
        let Some(search) = self.searches.get_mut(&session) else { return };
        search.queries.retain(|running| *running != (scope, query));
        self.history.answered(&session, ProviderSource::Dht(scope), Instant::now());
        let source = SearchSource::Dht(scope);
        self.tell(&session, SessionEvent::SearchEnded { source, peers_asked: Some(peers_asked), is_complete: true });
        self.end_search_if_over(session);
    }

    /// Ends a search when all sources have answered, unless a block below the root is still to be searched for.
    pub(super) fn end_search_if_over(&mut self, session: SessionId) {
        let Some(search) = self.searches.get_mut(&session) else { return };
        if !search.queries.is_empty() || search.routers.is_some() {
            return;
        }
        let bitswap = &self.swarm.behaviour().bitswap;
        let (below, proved) = (bitswap.wanted_below(&session), bitswap.members(&session) > 0);
        if let Some(key) = below
            && !proved
            && !std::mem::replace(&mut search.went_below, true)
        {
            let routers = self.ask_routers(session, *key.multihash());
            if let Some(search) = self.searches.get_mut(&session) {
                search.routers = routers;
            }
            self.ask_dht(session, &RecordKey::new(&key.to_bytes()));
        }
        let over = |search: &Search| search.queries.is_empty() && search.routers.is_none() && !search.plan.is_waiting();
        if self.searches.get(&session).is_some_and(over) {
            self.searches.remove(&session);
            self.history.ended(&session, Instant::now());
            // If there was no peer to ask, the session searches again.
            self.swarm.behaviour_mut().bitswap.search_finished(session);
        }
    }

    /// Ends the searches whose last provider was dialled.
    pub(super) fn maintain_searches(&mut self) {
        let sessions: Vec<SessionId> = self.searches.keys().copied().collect();
        for session in sessions {
            self.end_search_if_over(session);
        }
    }
}
