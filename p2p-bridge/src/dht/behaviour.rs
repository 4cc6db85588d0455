//! [`Scoped`]: libp2p's Kademlia behind the wall between the two scopes of the DHT.
//!
//! Goals: a DHT is spoken only over connections of its scope: whoever comes from outside never reaches the local DHT, and
//! what a neighbour says never enters the public one; addresses of the other scope are neither dialled, nor told, nor
//! stored; records are stored after a check only, and the answer to a refused one is what is kept in its place. Non-goals: who enters the routing
//! table, which identify decides.
//!
//! Over a connection of the other scope the protocol does not exist: its handler is a dummy, and Kademlia is not told of the
//! connection. If a query wants such a peer all the same, another connection is dialled, at its addresses of this scope.

use super::metrics::DhtMetrics;
use super::providers::fitting;
use super::store::{Limits, Refusal, Store};
use super::values::ValueError;
use super::{Moment, Network, kept, moment};
use crate::announced::Announced;
use crate::options::{BridgeOptions, DhtMode};
use crate::scope::{Borders, Scope, is_literal};
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

/// Addresses of one peer that a dial tries.
const DIALLED_ADDRESSES_MAX: usize = 16;
/// Failures in a row to reach a peer after which it leaves the routing table.
const FAILURES_MAX: u8 = 3;
/// Peers whose failures are counted: more than a routing table has.
const FAILING_MAX: usize = 4096;

/// The largest message, in bytes. Kubo sends all providers that it knows of with all their addresses, so that a hundred of
/// them do not fit into the 16 KiB that libp2p has by default, and the whole answer would be lost. A peer may be in the
/// middle of 32 messages at a time.
const MESSAGE_BYTES_MAX: usize = 128 << 10;
/// How often the records are written, if they changed.
const SAVE_EVERY: Duration = Duration::from_secs(600);
/// How long one query may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Peers that one query asks at a time. Peers that are gone cost a time-out each, and many are: as many as Kubo asks.
const PARALLELISM: NonZeroUsize = NonZeroUsize::new(10).expect("ten is not zero");
/// How often the routing table is refreshed: we look for ourselves, and for somebody in every bucket.
const REFRESH_EVERY: Duration = Duration::from_secs(600);
/// The part of the room for records that the local DHT has.
const LAN_SHARE: usize = 8;

type Kad = kad::Behaviour<Store>;
type KadIn = THandlerInEvent<Kad>;
type KadOut = THandlerOutEvent<Kad>;
type Handler = Either<THandler<Kad>, dummy::ConnectionHandler>;

/// A Kademlia behaviour that hears and speaks of addresses of one scope only, over connections of that scope only.
pub struct Scoped {
    scope: Scope,
    borders: Borders,
    announced: Announced,
    /// `false`: this DHT is not spoken at all.
    on: bool,
    inner: Kad,
    metrics: DhtMetrics,
    file: PathBuf,
    saved: SystemTime,
    /// The connections over which this DHT is spoken, and the networks that they come from.
    open: HashMap<PeerId, Vec<(ConnectionId, Network)>>,
    /// Where connected peers that are no servers of the DHT say they are.
    clients: HashMap<PeerId, Vec<Multiaddr>>,
    failures: HashMap<PeerId, u8>,
    answers: VecDeque<ToSwarm<kad::Event, KadIn>>,
}

impl Scoped {
    /// The DHT of a scope, with the records that it kept. It reads a file and checks signatures.
    pub fn start(scope: Scope, local: PeerId, options: &BridgeOptions, metrics: DhtMetrics) -> Self {
        let now = SystemTime::now();
        let file = kept::path(&options.data_dir, scope);
        let mut store = Store::new(local, limits(scope, options), moment(now)).obeying(options.policy.clone());
        let on = options.dht.mode != DhtMode::Off;
        if on {
            kept::load(&file, &mut store);
        }
        let mut inner = kad::Behaviour::with_config(local, store, config(scope, options));
        inner.set_mode(mode(scope, options.dht.mode));
        let borders = Borders { dial_private: options.dial_private };
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

    /// Whether an address belongs to this scope. None does to one that is off.
    pub fn admits(&self, address: &Multiaddr) -> bool {
        self.on && self.borders.admits(self.scope, address)
    }

    /// Whether an address of ours is told in this DHT.
    fn tells(&self, address: &Multiaddr) -> bool {
        self.admits(address) && self.announced.tells(address)
    }

    /// Whether what we listen on is where those of this scope reach us, without anybody's confirmation.
    pub fn trusts_listeners(&self) -> bool {
        self.scope == Scope::Lan || self.borders.dial_private
    }

    /// Tells the time, once a second: expired records are forgotten.
    pub fn tick(&mut self, now: SystemTime) {
        let store = self.inner.store_mut();
        store.tick(moment(now));
        self.metrics.set_records(self.scope, store.provider_records(), store.value_records(), store.bytes());
        self.metrics.set_server(self.scope, self.on && self.inner.mode() == kad::Mode::Server);
    }

    /// What to write for the next start and where, if anything changed and the last time was long ago, or always if it is
    /// `urgent`. Writing is left to [`kept::save`], away from the swarm task.
    pub fn take_changes(&mut self, now: SystemTime, urgent: bool) -> Option<(PathBuf, Vec<u8>)> {
        let long_ago = now.duration_since(self.saved).map_or(true, |since| since >= SAVE_EVERY);
        if !self.on || !(urgent || long_ago) {
            return None;
        }
        self.saved = now;
        let store = self.inner.store_mut();
        store.take_changed().then(|| (self.file.clone(), kept::encode(store)))
    }

    /// Whether this DHT is spoken over a connection with this remote address.
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

    /// A connected peer, which is no server of this DHT, says where it is. Whoever looks for it by its id is told.
    pub fn note_client(&mut self, peer: PeerId, addresses: impl IntoIterator<Item = Multiaddr>) {
        let addresses = fitting(addresses.into_iter().filter(|address| self.admits(address)));
        if self.open.contains_key(&peer) && !addresses.is_empty() {
            self.clients.insert(peer, addresses);
        }
    }

    /// Who is asked about by id, if it is not in the routing table and we know where it is all the same. Only servers are in
    /// the table, but whoever looks for a peer looks for any
    /// (<https://specs.ipfs.tech/routing/kad-dht/#peer-routing>).
    fn wanted(&mut self, key: &[u8]) -> Option<kad::KadPeer> {
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

    /// A peer that was not reached several times in a row leaves the table: whom we name to others should be there. Unless we
    /// reach nobody: then it is us.
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

    /// Over which connection to talk to a peer: the latest.
    fn connection(&self, peer: &PeerId) -> Option<ConnectionId> {
        self.open.get(peer).and_then(|open| open.last()).map(|(connection, _)| *connection)
    }

    fn network(&self, peer: &PeerId, connection: ConnectionId) -> Network {
        let open = self.open.get(peer).into_iter().flatten();
        let mut found = open.filter(|(known, _)| *known == connection).map(|(_, network)| *network);
        found.next().unwrap_or_default()
    }

    /// Where Kademlia knows a peer to be, in this scope.
    fn known(
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

    /// Whether an address that an untrusted peer named may be dialled.
    pub fn may_dial(&self, address: &Multiaddr) -> bool {
        self.on && self.borders.may_dial(self.scope, address)
    }

    /// Replaces what the routing table knows of a peer's addresses by what the peer says itself, so that no peer can make the
    /// table grow by saying something else every time. A peer that says nothing useful stays as it is.
    pub fn note_server(&mut self, peer: &PeerId, addresses: &[Multiaddr]) {
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
            let said = |address: &&Multiaddr| addresses.iter().any(|other| is_same(other, address));
            stale.extend(known.filter(|address| !said(address)).cloned());
        }
        for address in stale {
            self.inner.remove_address(peer, &address);
        }
    }

    /// Where the routing table and the running queries know a peer to be. The behaviour tells that only to whoever is about
    /// to dial.
    pub fn addresses_of(&mut self, peer: PeerId) -> Vec<Multiaddr> {
        let nobody = ConnectionId::new_unchecked(usize::MAX);
        let known = self.inner.handle_pending_outbound_connection(nobody, Some(peer), &[], Endpoint::Dialer);
        let mut known = known.unwrap_or_default();
        // Gateways over HTTP are among them, which the swarm does not dial.
        let tells = |address: &Multiaddr| self.admits(address) && (self.borders.dial_private || is_literal(address));
        known.retain(tells);
        known.truncate(DIALLED_ADDRESSES_MAX);
        known
    }

    /// Kademlia dials peers that it is not connected to; there may be a connection all the same, of the other scope.
    fn dial(&mut self, opts: DialOpts) -> DialOpts {
        let Some(peer) = opts.get_peer_id() else { return opts };
        let known = self.known(opts.connection_id(), Some(peer), &[], Endpoint::Dialer).unwrap_or_default();
        DialOpts::peer_id(peer).condition(PeerCondition::NotDialing).addresses(known).build()
    }

    fn keep_provider(&mut self, key: &kad::RecordKey, about: kad::KadPeer, source: PeerId, connection: ConnectionId) {
        let network = self.network(&source, connection);
        let kept = if about.node_id == source {
            let addresses = about.multiaddrs.into_iter().filter(|address| self.borders.admits(self.scope, address));
            self.inner.store_mut().keep_provider(key, source, network, addresses.collect())
        } else {
            Err(Refusal::OtherPeer)
        };
        self.count(&kept.map(drop));
    }

    fn keep_value(&mut self, record: kad::Record, source: PeerId, connection: ConnectionId) {
        let network = self.network(&source, connection);
        let kept = self.inner.store_mut().keep_value(&record.key, record.value, network);
        self.count(&kept);
    }

    fn count(&self, kept: &Result<(), Refusal>) {
        match kept {
            Ok(()) => self.metrics.kept(self.scope),
            Err(refusal) => {
                tracing::debug!(dht = ?self.scope, %refusal, "a record was not stored");
                self.metrics.refused(self.scope, reason(refusal));
            }
        }
    }

    /// What a peer sent over a connection. Records to be stored never get to Kademlia, which would acknowledge what is refused.
    fn on_message(&mut self, peer: PeerId, connection: ConnectionId, event: KadOut) {
        let answer = match event {
            KadOut::AddProvider { key, provider } => return self.keep_provider(&key, provider, peer, connection),
            KadOut::FindNodeReq { key, request_id } => match self.wanted(&key) {
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
                self.keep_value(record, peer, connection);
                // Whoever compares sees whether it is its own. To reset the stream would say it better, but libp2p resets
                // it only when something else happens to it, and the sender would wait until its patience ends.
                let value = self.inner.store_mut().get(&key).map_or_else(Vec::new, |kept| kept.into_owned().value);
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

/// Whether two addresses lead to the same place, with or without the peer's id at the end.
fn is_same(a: &Multiaddr, b: &Multiaddr) -> bool {
    let place = |part: &Protocol<'_>| !matches!(part, Protocol::P2p(_));
    a.iter().filter(place).eq(b.iter().filter(place))
}

/// How libp2p's Kademlia is set up. Peers enter its table only through identify, with addresses of the scope; records enter
/// its store only through [`Scoped`]. It neither caches nor publishes what others put here: that is for whoever has the key.
fn config(scope: Scope, options: &BridgeOptions) -> kad::Config {
    let on = options.dht.mode != DhtMode::Off;
    let mut config = kad::Config::new(scope.protocol());
    config
        .set_kbucket_inserts(kad::BucketInserts::Manual)
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        .set_caching(kad::Caching::Disabled)
        .set_replication_interval(None)
        .set_publication_interval(None)
        // Ours are announced by `providing`, all of one neighbourhood at once.
        .set_provider_publication_interval(None)
        .set_periodic_bootstrap_interval(on.then_some(REFRESH_EVERY))
        .set_parallelism(PARALLELISM)
        .set_max_packet_size(MESSAGE_BYTES_MAX)
        .set_query_timeout(QUERY_TIMEOUT);
    config
}

fn limits(scope: Scope, options: &BridgeOptions) -> Limits {
    let provider_ttl = Moment::try_from(options.provide.record_lifetime.as_secs()).unwrap_or(Moment::MAX);
    let all = Limits { provider_ttl, ..Limits::default() };
    match scope {
        Scope::Wan => all,
        Scope::Lan => {
            Limits { provider_bytes: all.provider_bytes / LAN_SHARE, value_bytes: all.value_bytes / LAN_SHARE, ..all }
        }
    }
}

/// The part that is taken in a scope; `None`: a server while a public address of ours is confirmed.
fn mode(scope: Scope, mode: DhtMode) -> Option<kad::Mode> {
    match (mode, scope) {
        // Whoever shares our network can reach us.
        (DhtMode::Auto, Scope::Lan) | (DhtMode::Server, _) => Some(kad::Mode::Server),
        (DhtMode::Auto, Scope::Wan) => None,
        (DhtMode::Client | DhtMode::Off, _) => Some(kad::Mode::Client),
    }
}

/// What a refusal is called in the metrics.
fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::KeyLength(_) | Refusal::Value(ValueError::Namespace) => "key",
        Refusal::OtherPeer => "other_peer",
        Refusal::Withheld => "withheld",
        Refusal::NoAddress => "no_address",
        Refusal::Value(ValueError::Busy) => "busy",
        Refusal::Value(ValueError::Invalid(_) | ValueError::OtherKey) => "invalid",
        Refusal::Value(ValueError::Expired) => "expired",
        Refusal::Value(ValueError::Older) => "older",
    }
}

impl Deref for Scoped {
    type Target = Kad;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl DerefMut for Scoped {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

impl NetworkBehaviour for Scoped {
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
        self.known(connection, peer, addresses, role)
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
            // Kademlia would take the new address into its table.
            FromSwarm::AddressChange(change) if !self.speaks_over(change.new.get_remote_address()) => {}
            FromSwarm::DialFailure(failure) => {
                self.inner.on_swarm_event(event);
                if let Some(peer) = failure.peer_id {
                    self.on_unreachable(peer, failure.error);
                }
            }
            FromSwarm::ExternalAddrConfirmed(confirmed) if !self.tells(confirmed.addr) => {}
            FromSwarm::ExternalAddrExpired(expired) if !self.tells(expired.addr) => {}
            FromSwarm::NewListenAddr(listen) if !self.tells(listen.addr) => {}
            FromSwarm::ExpiredListenAddr(listen) if !self.tells(listen.addr) => {}
            // An address that we listen on is as good as confirmed to whoever shares its network, and without it our
            // provider records on the local DHT would name no address at all. On the public one others have to confirm it.
            FromSwarm::NewListenAddr(listen) if self.trusts_listeners() => {
                self.inner.on_swarm_event(event);
                let confirmed = ExternalAddrConfirmed { addr: listen.addr };
                self.inner.on_swarm_event(FromSwarm::ExternalAddrConfirmed(confirmed));
            }
            FromSwarm::ExpiredListenAddr(listen) if self.trusts_listeners() => {
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
                // Any of the peer's connections may be one over which this DHT is not spoken.
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
