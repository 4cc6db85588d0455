//! [`ScopedKad`]: libp2p's Kademlia, restricted to one of the two scopes of the DHT.
//!
//! Goals: a DHT runs only over connections of its scope, so that peers on the internet never reach the local DHT, and
//! messages of local peers never enter the public one; addresses of the other scope are neither dialled, sent nor
//! stored; records are verified before they are stored, and a rejected `PUT_VALUE` is answered with the record that is
//! stored instead. Non-goals: which peers enter the routing table; identify decides that.
//!
//! Connections of the other scope get a dummy handler, and Kademlia does not learn of them. If a query needs such a
//! peer, another connection is dialled, to its addresses in this scope.

use super::metrics::DhtMetrics;
use super::providers::within_limits;
use super::store::{RecordStoreLimits, Rejection, Store};
use super::values::ValueError;
use super::{Moment, Network, kept, moment};
use crate::announced::Announced;
use crate::options::{BridgeOptions, DhtMode};
use crate::scope::{AddressPolicy, Scope, is_literal};
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::kad::{self, store::RecordStore};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::{
    ConnectionClosed, ConnectionEstablished, ExternalAddrConfirmed, ExternalAddrExpired, FromSwarm,
};
use libp2p::swarm::derive_prelude::Either;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, DialError, NetworkBehaviour, NotifyHandler, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::{HashMap, VecDeque};
use std::iter;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

/// Maximum addresses of one peer that a dial tries.
const DIALLED_ADDRESSES_MAX: usize = 16;
/// Consecutive failures to dial a peer after which it is removed from the routing table.
const FAILURES_MAX: u8 = 3;
/// Maximum peers whose failures are counted: more than a routing table has.
const FAILING_MAX: usize = 4096;

/// The maximum length of a message, in bytes. Kubo sends all providers that it knows with all their addresses; a
/// hundred of them exceed libp2p's default of 16 KiB, and the whole response would be lost. A peer may have 32 messages
/// in flight.
const MESSAGE_BYTES_MAX: usize = 128 << 10;
/// How often changed records are saved.
const SAVE_EVERY: Duration = Duration::from_secs(600);
/// The timeout of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Peers that a query asks in parallel. Many peers are gone, and each of those costs a timeout; Kubo's value.
const PARALLELISM: NonZeroUsize = NonZeroUsize::new(10).expect("ten is not zero");
/// How often the routing table is refreshed: by a look-up of the node's own ID, and one in every bucket.
const REFRESH_EVERY: Duration = Duration::from_secs(600);
/// The space for records is divided by this for the local DHT.
const LAN_SHARE: usize = 8;

type Kad = kad::Behaviour<Store>;
type KadIn = THandlerInEvent<Kad>;
type KadOut = THandlerOutEvent<Kad>;
type Handler = Either<THandler<Kad>, dummy::ConnectionHandler>;

/// A Kademlia behaviour that uses only connections and addresses of one scope.
pub struct ScopedKad {
    scope: Scope,
    borders: AddressPolicy,
    announced: Announced,
    /// Whether this DHT is enabled.
    on: bool,
    inner: Kad,
    metrics: DhtMetrics,
    file: PathBuf,
    saved: SystemTime,
    /// The connections of this scope, with the networks of the remote addresses.
    open: HashMap<PeerId, Vec<(ConnectionId, Network)>>,
    /// The addresses that connected DHT clients announce through identify.
    clients: HashMap<PeerId, Vec<Multiaddr>>,
    failures: HashMap<PeerId, u8>,
    answers: VecDeque<ToSwarm<kad::Event, KadIn>>,
}

impl ScopedKad {
    /// The DHT of a scope, with the saved records. Reads a file and verifies signatures.
    pub fn start(scope: Scope, local: PeerId, options: &BridgeOptions, metrics: DhtMetrics) -> Self {
        let now = SystemTime::now();
        let file = kept::path(&options.data_dir, scope);
        let mut store = Store::new(local, limits(scope, options), moment(now)).with_policy(options.policy.clone());
        let on = options.dht.mode != DhtMode::Off;
        if on {
            kept::load(&file, &mut store);
        }
        let mut inner = kad::Behaviour::with_config(local, store, config(scope, options));
        inner.set_mode(mode(scope, options.dht.mode));
        let borders = AddressPolicy { dial_private: options.dial_private };
        let announced = Announced::new(options);
        let (open, clients, failures) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self {
            scope,
            borders,
            announced,
            on,
            inner,
            metrics,
            file,
            saved: now,
            open,
            clients,
            failures,
            answers: VecDeque::new(),
        }
    }

    /// Whether an address belongs to this scope. Always `false` if the DHT is disabled.
    pub fn admits(&self, address: &Multiaddr) -> bool {
        self.on && self.borders.admits(self.scope, address)
    }

    /// Whether one of the node's own addresses is announced in this DHT.
    fn announces(&self, address: &Multiaddr) -> bool {
        self.admits(address) && self.announced.tells(address)
    }

    /// Whether listen addresses count as external addresses in this scope without confirmation by other peers.
    pub fn confirms_listen_addresses(&self) -> bool {
        self.scope == Scope::Lan || self.borders.dial_private
    }

    /// Advances the clock, once a second, and expires records.
    pub fn tick(&mut self, now: SystemTime) {
        let store = self.inner.store_mut();
        store.tick(moment(now));
        self.metrics.set_records(self.scope, store.provider_records(), store.value_records(), store.bytes());
        self.metrics.set_server(self.scope, self.on && self.inner.mode() == kad::Mode::Server);
    }

    /// The file and content to save, if records changed and the last save is [`SAVE_EVERY`] ago or `urgent` is set. The
    /// caller writes it with [`kept::save`], outside of the swarm task.
    pub fn take_changes(&mut self, now: SystemTime, urgent: bool) -> Option<(PathBuf, Vec<u8>)> {
        let long_ago = now.duration_since(self.saved).map_or(true, |since| since >= SAVE_EVERY);
        if !self.on || !(urgent || long_ago) {
            return None;
        }
        self.saved = now;
        let store = self.inner.store_mut();
        store.take_changed().then(|| (self.file.clone(), kept::encode(store)))
    }

    /// Whether this DHT runs over a connection with this remote address.
    pub fn speaks_over(&self, remote: &Multiaddr) -> bool {
        self.on && self.borders.speaks_over(self.scope, remote)
    }

    fn on_established(&mut self, established: ConnectionEstablished<'_>) {
        let remote = established.endpoint.get_remote_address();
        if !self.speaks_over(remote) {
            return;
        }
        self.failures.remove(&established.peer_id);
        let open = self.open.entry(established.peer_id).or_default();
        let other_established = open.len();
        open.push((established.connection_id, Network::of(remote)));
        let established = ConnectionEstablished { other_established, ..established };
        self.inner.on_swarm_event(FromSwarm::ConnectionEstablished(established));
    }

    fn on_closed(&mut self, closed: ConnectionClosed<'_>) {
        let Some(open) = self.open.get_mut(&closed.peer_id) else { return };
        let before = open.len();
        open.retain(|(connection, _)| *connection != closed.connection_id);
        let remaining_established = open.len();
        if remaining_established == before {
            return;
        }
        if remaining_established == 0 {
            self.open.remove(&closed.peer_id);
            self.clients.remove(&closed.peer_id);
        }
        self.inner.on_swarm_event(FromSwarm::ConnectionClosed(ConnectionClosed { remaining_established, ..closed }));
    }

    /// Stores the addresses of a connected DHT client. They are returned to peers that look up its ID.
    pub fn set_client_addresses(&mut self, peer: PeerId, addresses: impl IntoIterator<Item = Multiaddr>) {
        let addresses = within_limits(addresses.into_iter().filter(|address| self.admits(address)));
        if self.open.contains_key(&peer) && !addresses.is_empty() {
            self.clients.insert(peer, addresses);
        }
    }

    /// The peer that a `FIND_NODE` asks for, if it is not in the routing table but its addresses are known. Only DHT
    /// servers are in the table, but peers look up clients too
    /// (<https://specs.ipfs.tech/routing/kad-dht/#peer-routing>).
    fn find_known_peer(&mut self, key: &[u8]) -> Option<kad::KadPeer> {
        let node_id = PeerId::from_bytes(key).ok()?;
        if self.is_in_table(node_id) {
            return None;
        }
        let known = self.clients.get(&node_id).map(Vec::as_slice);
        let known = known.or_else(|| self.inner.store_mut().addresses(&node_id)).map(<[_]>::to_vec);
        let connection_ty = match self.open.contains_key(&node_id) {
            true => kad::ConnectionType::Connected,
            false => kad::ConnectionType::NotConnected,
        };
        known.map(|multiaddrs| kad::KadPeer { node_id, multiaddrs, connection_ty })
    }

    /// Removes a peer from the routing table after several consecutive dial failures, so that other peers are not sent
    /// to it. Failures do not count while the node has no connection: then the node itself is offline.
    fn on_unreachable(&mut self, peer: PeerId, error: &DialError) {
        let DialError::Transport(tried) = error else { return };
        let here = tried.iter().any(|(address, _)| self.admits(address));
        if !here || self.open.is_empty() || self.open.contains_key(&peer) || !self.is_in_table(peer) {
            return;
        }
        if self.failures.len() > FAILING_MAX {
            self.failures.clear();
        }
        let failures = self.failures.entry(peer).or_default();
        *failures += 1;
        if *failures >= FAILURES_MAX {
            self.failures.remove(&peer);
            self.inner.remove_peer(&peer);
        }
    }

    fn is_in_table(&mut self, peer: PeerId) -> bool {
        let bucket = self.inner.kbucket(peer);
        bucket.is_some_and(|bucket| bucket.iter().any(|entry| *entry.node.key.preimage() == peer))
    }

    /// The connection for requests to a peer: the latest.
    fn connection(&self, peer: &PeerId) -> Option<ConnectionId> {
        self.open.get(peer).and_then(|open| open.last()).map(|(connection, _)| *connection)
    }

    fn network(&self, peer: &PeerId, connection: ConnectionId) -> Network {
        let open = self.open.get(peer).into_iter().flatten();
        let mut found = open.filter(|(known, _)| *known == connection).map(|(_, network)| *network);
        found.next().unwrap_or_default()
    }

    /// The addresses of a peer in this scope that Kademlia knows.
    fn dial_addresses(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        let mut known = self.inner.handle_pending_outbound_connection(connection, peer, addresses, role)?;
        known.retain(|address| self.may_dial(address));
        known.truncate(DIALLED_ADDRESSES_MAX);
        Ok(known)
    }

    /// Whether an address from an untrusted peer may be dialled.
    pub fn may_dial(&self, address: &Multiaddr) -> bool {
        self.on && self.borders.may_dial(self.scope, address)
    }

    /// Replaces the addresses of a peer in the routing table by those that it announces, so that a peer cannot grow the
    /// table with ever new addresses. If it announces none, the table is not changed.
    pub fn set_server_addresses(&mut self, peer: &PeerId, addresses: &[Multiaddr]) {
        for address in addresses {
            self.inner.add_address(peer, address.clone());
        }
        if addresses.is_empty() {
            return;
        }
        let mut stale = Vec::new();
        if let Some(bucket) = self.inner.kbucket(*peer) {
            let entry = bucket.iter().find(|entry| entry.node.key.preimage() == peer);
            let known = entry.iter().flat_map(|entry| entry.node.value.iter());
            let is_announced = |address: &&Multiaddr| addresses.iter().any(|other| is_same(other, address));
            stale.extend(known.filter(|address| !is_announced(address)).cloned());
        }
        for address in stale {
            self.inner.remove_address(peer, &address);
        }
    }

    /// The addresses of a peer in the routing table and the running queries. The behaviour exposes them only through a
    /// pending dial.
    pub fn addresses_of(&mut self, peer: PeerId) -> Vec<Multiaddr> {
        let unused = ConnectionId::new_unchecked(usize::MAX);
        let known = self.inner.handle_pending_outbound_connection(unused, Some(peer), &[], Endpoint::Dialer);
        let mut known = known.unwrap_or_default();
        // The addresses include HTTP gateways, which the swarm does not dial.
        let is_usable =
            |address: &Multiaddr| self.admits(address) && (self.borders.dial_private || is_literal(address));
        known.retain(is_usable);
        known.truncate(DIALLED_ADDRESSES_MAX);
        known
    }

    /// Kademlia dials peers that it has no connection to; the swarm may have a connection of the other scope.
    fn dial(&mut self, opts: DialOpts) -> DialOpts {
        let Some(peer) = opts.get_peer_id() else { return opts };
        let known = self.dial_addresses(opts.connection_id(), Some(peer), &[], Endpoint::Dialer).unwrap_or_default();
        DialOpts::peer_id(peer).condition(PeerCondition::NotDialing).addresses(known).build()
    }

    fn store_provider(&mut self, key: &kad::RecordKey, about: kad::KadPeer, source: PeerId, connection: ConnectionId) {
        let network = self.network(&source, connection);
        let stored = if about.node_id == source {
            let addresses = about.multiaddrs.into_iter().filter(|address| self.borders.admits(self.scope, address));
            self.inner.store_mut().put_provider(key, source, network, addresses.collect())
        } else {
            Err(Rejection::OtherPeer)
        };
        self.count(&stored.map(drop));
    }

    fn store_value(&mut self, record: kad::Record, source: PeerId, connection: ConnectionId) {
        let network = self.network(&source, connection);
        let stored = self.inner.store_mut().put_value(&record.key, record.value, network);
        self.count(&stored);
    }

    fn count(&self, stored: &Result<(), Rejection>) {
        match stored {
            Ok(()) => self.metrics.stored(self.scope),
            Err(rejection) => {
                tracing::debug!(dht = ?self.scope, %rejection, "a record was rejected");
                self.metrics.rejected(self.scope, reason(rejection));
            }
        }
    }

    /// Handles a message of a peer. `ADD_PROVIDER` and `PUT_VALUE` never reach Kademlia, which would acknowledge
    /// rejected records.
    fn on_message(&mut self, peer: PeerId, connection: ConnectionId, event: KadOut) {
        let answer = match event {
            KadOut::AddProvider { key, provider } => return self.store_provider(&key, provider, peer, connection),
            KadOut::FindNodeReq { key, request_id } => match self.find_known_peer(&key) {
                Some(wanted) => {
                    let target = kad::KBucketKey::new(key);
                    let closest = self.inner.find_closest_local_peers(&target, &peer);
                    KadIn::FindNodeRes { closer_peers: iter::once(wanted).chain(closest).collect(), request_id }
                }
                None => {
                    let event = KadOut::FindNodeReq { key, request_id };
                    return self.inner.on_connection_handler_event(peer, connection, event);
                }
            },
            KadOut::PutRecord { record, request_id } => {
                let key = record.key.clone();
                self.store_value(record, peer, connection);
                // The sender compares the value with its own. Resetting the stream would be clearer, but libp2p delays
                // the reset until the next event of the stream, and the sender would wait for its timeout.
                let value = self.inner.store_mut().get(&key).map_or_else(Vec::new, |record| record.into_owned().value);
                KadIn::PutRecordRes { key, value, request_id }
            }
            other => return self.inner.on_connection_handler_event(peer, connection, other),
        };
        let handler = NotifyHandler::One(connection);
        self.answers.push_back(ToSwarm::NotifyHandler { peer_id: peer, handler, event: answer });
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<kad::Event, KadIn>> {
        match self.answers.pop_front() {
            Some(answer) => Poll::Ready(answer),
            None => self.inner.poll(cx),
        }
    }
}

/// Whether two addresses are equal except for a `/p2p` component.
fn is_same(a: &Multiaddr, b: &Multiaddr) -> bool {
    let place = |part: &Protocol<'_>| !matches!(part, Protocol::P2p(_));
    a.iter().filter(place).eq(b.iter().filter(place))
}

/// The configuration of libp2p's Kademlia. Peers enter the routing table only through identify, with addresses of the
/// scope; records enter the store only through [`ScopedKad`]. Records of other peers are neither cached nor republished:
/// that is up to their publishers.
fn config(scope: Scope, options: &BridgeOptions) -> kad::Config {
    let on = options.dht.mode != DhtMode::Off;
    let mut config = kad::Config::new(scope.protocol());
    config
        .set_kbucket_inserts(kad::BucketInserts::Manual)
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_caching(kad::Caching::Disabled)
        .set_replication_interval(None)
        .set_publication_interval(None)
        // `providing` announces the node's own keys, a key-space region at a time.
        .set_provider_publication_interval(None)
        .set_periodic_bootstrap_interval(on.then_some(REFRESH_EVERY))
        .set_parallelism(PARALLELISM)
        .set_max_packet_size(MESSAGE_BYTES_MAX)
        .set_query_timeout(QUERY_TIMEOUT);
    config
}

fn limits(scope: Scope, options: &BridgeOptions) -> RecordStoreLimits {
    let provider_ttl = Moment::try_from(options.provide.record_lifetime.as_secs()).unwrap_or(Moment::MAX);
    let all = RecordStoreLimits { provider_ttl, ..RecordStoreLimits::default() };
    match scope {
        Scope::Wan => all,
        Scope::Lan => RecordStoreLimits {
            provider_bytes: all.provider_bytes / LAN_SHARE,
            value_bytes: all.value_bytes / LAN_SHARE,
            ..all
        },
    }
}

/// The mode in a scope; `None`: server while a public address of the node is confirmed.
fn mode(scope: Scope, mode: DhtMode) -> Option<kad::Mode> {
    match (mode, scope) {
        // Peers on the local network can reach the node.
        (DhtMode::Auto, Scope::Lan) | (DhtMode::Server, _) => Some(kad::Mode::Server),
        (DhtMode::Auto, Scope::Wan) => None,
        (DhtMode::Client | DhtMode::Off, _) => Some(kad::Mode::Client),
    }
}

/// The metric label of a rejection.
fn reason(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::KeyLength(_) | Rejection::Value(ValueError::Namespace) => "key",
        Rejection::OtherPeer => "other_peer",
        Rejection::Withheld => "withheld",
        Rejection::NoAddress => "no_address",
        Rejection::Value(ValueError::Busy) => "busy",
        Rejection::Value(ValueError::Invalid(_) | ValueError::OtherKey) => "invalid",
        Rejection::Value(ValueError::Expired) => "expired",
        Rejection::Value(ValueError::Older) => "older",
    }
}

impl Deref for ScopedKad {
    type Target = Kad;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl DerefMut for ScopedKad {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

impl NetworkBehaviour for ScopedKad {
    type ConnectionHandler = Handler;
    type ToSwarm = kad::Event;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        if !self.speaks_over(remote) {
            return Ok(Handler::Right(dummy::ConnectionHandler));
        }
        self.inner.handle_established_inbound_connection(connection, peer, local, remote).map(Handler::Left)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        self.dial_addresses(connection, peer, addresses, role)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port_use: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        if !self.speaks_over(address) {
            return Ok(Handler::Right(dummy::ConnectionHandler));
        }
        let inner = &mut self.inner;
        inner.handle_established_outbound_connection(connection, peer, address, role, port_use).map(Handler::Left)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(established) => self.on_established(established),
            FromSwarm::ConnectionClosed(closed) => self.on_closed(closed),
            // Kademlia would add the new address to its table.
            FromSwarm::AddressChange(change) if !self.speaks_over(change.new.get_remote_address()) => {}
            FromSwarm::DialFailure(failure) => {
                self.inner.on_swarm_event(event);
                if let Some(peer) = failure.peer_id {
                    self.on_unreachable(peer, failure.error);
                }
            }
            FromSwarm::ExternalAddrConfirmed(confirmed) if !self.announces(confirmed.addr) => {}
            FromSwarm::ExternalAddrExpired(expired) if !self.announces(expired.addr) => {}
            FromSwarm::NewListenAddr(listen) if !self.announces(listen.addr) => {}
            FromSwarm::ExpiredListenAddr(listen) if !self.announces(listen.addr) => {}
            // Peers on the local network can reach a listen address, so it counts as confirmed; without it the node's
            // provider records in the local DHT would have no address. In the public DHT other peers must confirm it.
            FromSwarm::NewListenAddr(listen) if self.confirms_listen_addresses() => {
                self.inner.on_swarm_event(event);
                let confirmed = ExternalAddrConfirmed { addr: listen.addr };
                self.inner.on_swarm_event(FromSwarm::ExternalAddrConfirmed(confirmed));
            }
            FromSwarm::ExpiredListenAddr(listen) if self.confirms_listen_addresses() => {
                self.inner.on_swarm_event(event);
                self.inner.on_swarm_event(FromSwarm::ExternalAddrExpired(ExternalAddrExpired { addr: listen.addr }));
            }
            _ => self.inner.on_swarm_event(event),
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, connection: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {
            Either::Left(event) => self.on_message(peer, connection, event),
            Either::Right(never) => match never {},
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        loop {
            let event = std::task::ready!(self.next(cx));
            return Poll::Ready(match event {
                ToSwarm::Dial { opts } => ToSwarm::Dial { opts: self.dial(opts) },
                // Some of the peer's connections may be of the other scope.
                ToSwarm::NotifyHandler { peer_id, handler: NotifyHandler::Any, event } => {
                    let Some(connection) = self.connection(&peer_id) else { continue };
                    let handler = NotifyHandler::One(connection);
                    ToSwarm::NotifyHandler { peer_id, handler, event: Either::Left(event) }
                }
                other => other.map_in(Either::Left),
            });
        }
    }
}

#[cfg(test)]
mod tests;
