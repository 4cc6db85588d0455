//! The Bitswap network behaviour: connects the state machines, the connection handlers and the local tiers.
//!
//! Decisions are in [`super::client`] and [`super::server`]. This runs in the swarm task, so nothing here hashes,
//! encodes or reads a disk; lookups in the local tiers are futures on other tasks.

use super::client::inspection::SessionState;
use super::client::{self, Action, BlockUse, Client};
use super::handler::{Command, Event as HandlerEvent, Handler, Received};
use super::message::{Ask, WantEntry};
use super::server::{Lookup, LookupResult, Server};
use crate::admission::reputation::Offence;
use crate::bitswap::http_peers::{Event as HttpEvent, HttpPeers};
use crate::dag::client::active::{ActiveTransfer, Context as DagContext, TransferEnd, TransferEvent};
use crate::dag::message::{EndStatus, TransferId};
use crate::fairness::{Service, SharedLedger};
use crate::framing::Memory;
use crate::metrics::{BlockKind, Metrics};
use crate::observers::{BlockTransport, HasObservers as _, Observers, SessionEvent};
use crate::options::ServeTo;
use crate::traffic::{BitswapBytes, Traffic};
use crate::wants::{SessionId, Wants};
use content::{BlockKey, BlockSource, Cid, ReadAhead};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use libp2p::swarm::{
    ConnectionClosed, ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler, THandlerInEvent, ToSwarm,
    behaviour::ConnectionEstablished,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Interval, MissedTickBehavior};

/// Stalls within this time count once: when a link fails, all its streams stall.
const STALL_PERIOD: Duration = Duration::from_secs(10);
/// The maximum number of session commands per poll.
const COMMANDS_PER_POLL: usize = 1_024;

/// A command of a session.
pub enum SessionCommand {
    /// A caller waits for a block.
    Want {
        /// The DAG it belongs to.
        session: SessionId,
        /// The block.
        cid: Cid,
        /// What will be requested after it, if that is known.
        ahead: Option<Arc<ReadAhead>>,
    },
    /// A caller was cancelled. The command has the permit, so that commands are bounded as waiters are.
    Cancel {
        /// The DAG it belongs to.
        session: SessionId,
        /// The block.
        key: BlockKey,
        /// Released when the command was processed.
        permit: OwnedSemaphorePermit,
    },
}

/// An event for the swarm task.
#[derive(Debug)]
pub enum Event {
    /// Search for the providers of a root.
    Search(SessionId),
    /// Stop searching.
    StopSearch(SessionId),
    /// A peer has blocks of a root's DAG.
    Joined(SessionId, PeerId),
    /// A peer misbehaved.
    Offence(PeerId, Offence),
}

/// The operator's settings for peers.
#[derive(Debug, Default)]
pub struct PeerSettings {
    /// Peers that are asked first.
    pub favoured: HashSet<PeerId>,
    /// Which peers are served blocks.
    pub serve_to: ServeTo,
}

/// The transfers of DAGs that this behaviour asks for.
pub struct Transfers {
    /// What transfers of the DAG protocol share, and where they are started; `None` if the protocol is not used.
    pub from_peers: Option<(Arc<DagContext>, mpsc::UnboundedSender<Arc<ActiveTransfer>>)>,
    /// What transfers from gateways share.
    pub from_gateways: Option<Arc<DagContext>>,
    /// What the transfers report.
    pub events: mpsc::UnboundedReceiver<TransferEvent>,
}

/// The network behaviour. See the module's documentation.
pub struct Behaviour {
    client: Client,
    server: Server,
    ledger: SharedLedger,
    metrics: Metrics,
    wants: Arc<Wants>,
    commands: mpsc::UnboundedReceiver<SessionCommand>,
    local: Arc<dyn BlockSource>,
    lookups: FuturesUnordered<BoxFuture<'static, (Lookup, LookupResult)>>,
    connections: HashMap<PeerId, Vec<ConnectionId>>,
    /// Owned by the peers' connections.
    traffic: HashMap<PeerId, Weak<Traffic>>,
    memory: Memory,
    peer_settings: PeerSettings,
    /// Gateways, which the client asks as peers.
    http: HttpPeers,
    /// The transfers, if any are used.
    transfers: Option<Transfers>,
    events: VecDeque<ToSwarm<Event, Command>>,
    ticker: Interval,
    /// The steps in which wants fail, between ticks.
    steps: Interval,
}

impl Behaviour {
    /// Takes wants from `commands`, delivers blocks to `wants` and serves peers from `local`. Messages that are being
    /// received use at most `memory`.
    pub fn new(
        config: client::Config,
        metrics: Metrics,
        wants: Arc<Wants>,
        commands: mpsc::UnboundedReceiver<SessionCommand>,
        local: Arc<dyn BlockSource>,
        memory: Memory,
        peer_settings: PeerSettings,
    ) -> Self {
        let [ticker, steps] = [client::TICK, client::STEP].map(|period| {
            let mut interval = tokio::time::interval(period);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        let ledger = SharedLedger::default();
        Self {
            client: Client::new(config, metrics.clone()),
            server: Server::new(ledger.clone()),
            ledger,
            metrics,
            wants,
            commands,
            local,
            lookups: FuturesUnordered::new(),
            connections: HashMap::new(),
            traffic: HashMap::new(),
            memory,
            peer_settings,
            http: HttpPeers::none(Default::default()),
            transfers: None,
            events: VecDeque::new(),
            ticker,
            steps,
        }
    }

    /// Asks peers and gateways for blocks below those that are requested.
    pub fn with_transfers(mut self, transfers: Transfers) -> Self {
        if let Some((context, _)) = &transfers.from_peers {
            self.client.use_transfers(Arc::clone(context));
        }
        if let Some(context) = &transfers.from_gateways {
            self.client.use_gateway_transfers(Arc::clone(context));
        }
        self.transfers = Some(transfers);
        self
    }

    /// Shares the ledger of what peers are served with other protocols.
    pub fn with_ledger(mut self, ledger: SharedLedger) -> Self {
        self.ledger = ledger.clone();
        self.server = Server::new(ledger);
        self
    }

    /// Adds gateways as sources.
    pub fn with_http(mut self, http: HttpPeers) -> Self {
        self.http = http;
        self
    }

    /// Adds the gateways among a provider's addresses as providers.
    pub fn addresses_found(&mut self, session: SessionId, addresses: &[Multiaddr]) {
        let now = Instant::now();
        for gateway in self.http.found(addresses, now) {
            self.client.provider_found(session, gateway, now);
        }
    }

    /// Adds a provider that routing found.
    pub fn provider_found(&mut self, session: SessionId, peer: PeerId) {
        self.client.provider_found(session, peer, Instant::now());
    }

    /// The search of [`Event::Search`] has finished.
    pub fn search_finished(&mut self, session: SessionId) {
        self.client.search_finished(session, Instant::now());
    }

    /// Fails all wants if no peer and no gateway is connected.
    pub fn fail_without_peers(&mut self) {
        self.client.fail_without_peers(Instant::now());
    }

    /// Whether there are sources to ask: connected peers with Bitswap, and gateways.
    pub fn has_sources(&self) -> bool {
        self.client.has_sources()
    }

    /// Whether a peer has outstanding requests, and when it last sent a wanted block.
    pub fn usefulness(&self, peer: &PeerId) -> (bool, Option<Instant>) {
        self.client.usefulness(peer)
    }

    /// The state of a session.
    pub fn inspect(&self, session: &SessionId) -> Option<SessionState> {
        self.client.inspect(session, Instant::now())
    }

    /// The number of open sessions and of wanted blocks.
    pub fn load(&self) -> (usize, usize) {
        self.client.load()
    }

    /// Bytes of a connected peer's messages.
    pub fn bytes(&self, peer: &PeerId) -> BitswapBytes {
        self.traffic.get(peer).and_then(Weak::upgrade).map(|traffic| traffic.bytes()).unwrap_or_default()
    }

    /// The number of connected peers that have blocks of a session's DAG.
    pub fn members(&self, session: &SessionId) -> usize {
        self.client.members(session)
    }

    /// A block other than the root that a session waits for.
    pub fn wanted_below(&self, session: &SessionId) -> Option<BlockKey> {
        self.client.wanted_below(session)
    }

    /// The connections to a peer.
    pub fn connections(&self, peer: &PeerId) -> &[ConnectionId] {
        self.connections.get(peer).map_or(&[], Vec::as_slice)
    }

    fn offended(&mut self, peer: PeerId, offence: Offence) {
        self.events.push_back(ToSwarm::GenerateEvent(Event::Offence(peer, offence)));
    }

    fn command(&mut self, command: SessionCommand, now: Instant) {
        match command {
            SessionCommand::Want { session, cid, ahead } => {
                // It may have been received while the command was queued.
                if BlockKey::of(&cid).is_some_and(|key| self.wants.is_waiting(&key, &session)) {
                    self.client.want_ahead(session, cid, ahead, now);
                }
            }
            SessionCommand::Cancel { session, key, permit } => {
                // Others in the session may wait for it; a cancelled waiter was withdrawn before.
                if !self.wants.is_waiting(&key, &session) {
                    self.client.cancel(session, key, now);
                }
                drop(permit);
            }
        }
    }

    fn take_commands(&mut self, cx: &mut Context<'_>, now: Instant) {
        for _ in 0..COMMANDS_PER_POLL {
            match self.commands.poll_recv(cx) {
                Poll::Ready(Some(command)) => self.command(command, now),
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
        // There may be more commands, for which there is no further wake-up.
        cx.waker().wake_by_ref();
    }

    fn received(&mut self, peer: PeerId, received: Received, now: Instant) {
        for (key, bytes) in received.blocks {
            let kind = match self.client.received_block(peer, key, bytes, now) {
                BlockUse::Wanted => BlockKind::Wanted,
                BlockUse::Duplicate => BlockKind::Duplicate,
                BlockUse::Invalid => BlockKind::Unsolicited,
            };
            self.metrics.block_received(kind, 1, bytes as u64);
            if kind == BlockKind::Unsolicited {
                tracing::debug!(%peer, ?key, "the peer sent an unsolicited block");
                self.offended(peer, Offence::InvalidBlock);
            }
            // A waiter may have been added after delivery and before this event.
            for (cid, session) in self.wants.waiting(&key) {
                self.client.want(session, cid, now);
            }
        }
        for (cid, has) in received.presences {
            self.client.received_presence(peer, &cid, has, now);
        }
        if !received.wants.is_empty() || received.full {
            self.asked(peer, received.wants, received.full);
        }
    }

    /// Processes a peer's wants. Peers that are not served get DONT_HAVE.
    fn asked(&mut self, peer: PeerId, wants: Vec<WantEntry>, full: bool) {
        if !self.peer_settings.serve_to.admits(&peer) {
            if let Some(answer) = self.server.refused(peer, wants) {
                self.notify(peer, Command::Answer(answer));
            }
            return;
        }
        if self.server.asked(peer, wants, full) > 0 {
            self.offended(peer, Offence::Flood);
        }
    }

    /// Whether a peer is served with lower priority.
    pub fn throttle(&mut self, peer: PeerId, throttled: bool) {
        self.server.throttle(peer, throttled);
    }

    fn start_lookups(&mut self) {
        while let Some(lookup) = self.server.next_lookup() {
            let cid = lookup.want.cid;
            let found = match lookup.want.ask {
                Ask::Block => {
                    let get = self.local.get(&cid);
                    async move { get.await.map_or(LookupResult::Nothing, LookupResult::Block) }.boxed()
                }
                Ask::Have | Ask::Cancel => {
                    let has = self.local.has(&cid);
                    async move { if has.await.unwrap_or(false) { LookupResult::Has } else { LookupResult::Nothing } }
                        .boxed()
                }
            };
            self.lookups.push(async move { (lookup, found.await) }.boxed());
        }
    }

    fn notify(&mut self, peer_id: PeerId, event: Command) {
        let Some(connection) = self.connections.get(&peer_id).and_then(|ids| ids.first()) else { return };
        self.events.push_back(ToSwarm::NotifyHandler { peer_id, handler: NotifyHandler::One(*connection), event });
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { peer, entries } => {
                self.tell_asked(peer, &entries);
                if !self.http.send(peer, &entries, Instant::now()) {
                    self.notify(peer, Command::Ask(entries));
                }
            }
            Action::Transfer(active) => self.start(active),
            Action::Search(session) => self.events.push_back(ToSwarm::GenerateEvent(Event::Search(session))),
            Action::StopSearch(session) => self.events.push_back(ToSwarm::GenerateEvent(Event::StopSearch(session))),
            Action::Joined(session, peer) => {
                self.events.push_back(ToSwarm::GenerateEvent(Event::Joined(session, peer)));
            }
            Action::Stalled(peer) => self.offended(peer, Offence::Stall),
            Action::Fail(failure) => {
                self.metrics.stalls.inc();
                self.wants.fail(&failure.key, &failure.session, &failure.error);
            }
        }
    }

    fn start(&mut self, active: Arc<ActiveTransfer>) {
        self.observers().tell(&active.session, SessionEvent::Asked(active.peer, active.over()));
        if active.over() == BlockTransport::Http {
            if !self.http.start(&active, Instant::now()) {
                active.reject(TransferEnd::Status(EndStatus::Busy));
            }
            return;
        }
        let start = self.transfers.as_ref().and_then(|transfers| transfers.from_peers.as_ref());
        let sent = start.map(|(_, start)| start.send(Arc::clone(&active)));
        if !matches!(sent, Some(Ok(()))) {
            active.lost();
        }
    }

    /// Takes the events of transfers.
    fn take_transfer_events(&mut self, cx: &mut Context<'_>, now: Instant) {
        for _ in 0..COMMANDS_PER_POLL {
            let Some(transfers) = &mut self.transfers else { return };
            match transfers.events.poll_recv(cx) {
                Poll::Ready(Some(event)) => self.on_transfer(event, now),
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
        // There may be more events, for which there is no further wake-up.
        cx.waker().wake_by_ref();
    }

    fn on_transfer(&mut self, event: TransferEvent, now: Instant) {
        match event {
            TransferEvent::Speaks { peer, speaks } => self.client.set_speaks_dag(peer, speaks),
            TransferEvent::Received { transfer, key, bytes } => {
                if let Some(gateway) = self.gateway_of(transfer) {
                    self.http.car_received(&gateway, bytes);
                }
                self.client.transfer_received(transfer, key, bytes, now);
                // A waiter may have been added after delivery and before this event.
                for (cid, session) in self.wants.waiting(&key) {
                    self.client.want(session, cid, now);
                }
            }
            TransferEvent::Absent { transfer, cid } => self.client.transfer_lacks(transfer, &cid, now),
            TransferEvent::Dropped { transfer, cid } => self.client.transfer_dropped(transfer, &cid, now),
            TransferEvent::Ended { transfer, end } => {
                let source = self.client.transfer_source(transfer);
                tracing::debug!(?source, ?end, "the transfer of a DAG has ended");
                self.client.transfer_ended(transfer, &end, now);
                match source {
                    Some((gateway, BlockTransport::Http)) => self.judge_gateway(gateway, &end, now),
                    Some((peer, _)) => self.judge(peer, &end, now),
                    None => {}
                }
            }
        }
    }

    /// The gateway of a transfer, if it is from one.
    fn gateway_of(&self, transfer: TransferId) -> Option<PeerId> {
        let (peer, over) = self.client.transfer_source(transfer)?;
        (over == BlockTransport::Http).then_some(peer)
    }

    /// What the end of a transfer means for the gateway.
    fn judge_gateway(&mut self, gateway: PeerId, end: &TransferEnd, now: Instant) {
        match end {
            TransferEnd::InvalidBlock => {
                tracing::debug!(%gateway, "the gateway sent an invalid block in a CAR");
                self.client.peer_lied(gateway, now);
            }
            TransferEnd::Fault(reason) => tracing::debug!(%gateway, reason, "the gateway sent an invalid CAR"),
            _ => {}
        }
        self.http.car_ended(&gateway, end, now);
    }

    /// Whether the end of a transfer is an offence of the peer.
    fn judge(&mut self, peer: PeerId, end: &TransferEnd, now: Instant) {
        match end {
            TransferEnd::InvalidBlock => {
                tracing::debug!(%peer, "the peer sent an invalid block in a transfer");
                self.client.peer_lied(peer, now);
                self.offended(peer, Offence::InvalidBlock);
            }
            TransferEnd::Fault(reason) => {
                tracing::debug!(%peer, reason, "the peer violated the DAG protocol");
                self.client.peer_failed(peer, now);
                self.offended(peer, Offence::Protocol);
            }
            TransferEnd::Stalled => self.stalled(peer),
            TransferEnd::Status(_)
            | TransferEnd::Lost
            | TransferEnd::GivenUp
            | TransferEnd::TooManyBlocks
            | TransferEnd::NamesLost
            | TransferEnd::Declined(_)
            | TransferEnd::Cancelled => {}
        }
    }

    /// A peer stopped in the middle of a message.
    fn stalled(&mut self, peer: PeerId) {
        let traffic = self.traffic.get(&peer).and_then(Weak::upgrade);
        if traffic.is_none_or(|traffic| traffic.note_stall(STALL_PERIOD)) {
            tracing::debug!(%peer, "the peer stalled in the middle of a message");
            self.offended(peer, Offence::Stall);
        }
    }

    /// The observers of sessions.
    pub fn observers(&self) -> &Observers {
        self.wants.observers()
    }

    /// Tells the observers of sessions which peer is asked for their blocks.
    fn tell_asked(&self, peer: PeerId, entries: &[WantEntry]) {
        if self.observers().is_empty() {
            return;
        }
        let over = if self.connections.contains_key(&peer) { BlockTransport::Bitswap } else { BlockTransport::Http };
        for key in entries.iter().filter(|entry| entry.ask != Ask::Cancel).filter_map(|entry| BlockKey::of(&entry.cid))
        {
            for session in self.client.sessions_of(&key) {
                self.observers().tell(session, SessionEvent::Asked(peer, over));
            }
        }
    }

    fn handler(&mut self, peer: PeerId) -> Handler {
        let shared = self.traffic.get(&peer).and_then(Weak::upgrade);
        let traffic = shared.unwrap_or_else(|| {
            let traffic = Arc::default();
            self.traffic.insert(peer, Arc::downgrade(&traffic));
            traffic
        });
        Handler::new(self.wants.clone(), self.memory.clone(), traffic)
    }

    /// Tells the client which peers are in the middle of sending a message.
    fn note_traffic(&mut self) {
        for (peer, traffic) in &self.traffic {
            if let Some(at) = traffic.upgrade().and_then(|traffic| traffic.received_at()) {
                self.client.peer_progressed(*peer, at);
            }
        }
    }

    /// The address of a gateway from a provider record, by its peer ID.
    pub fn gateway_address(&self, peer: &PeerId) -> Option<&Multiaddr> {
        self.http.address(peer)
    }

    fn on_http(&mut self, event: HttpEvent, now: Instant) {
        match event {
            HttpEvent::Connected { peer, favoured } => self.client.gateway_connected(peer, favoured, now),
            HttpEvent::Disconnected(peer) => self.client.peer_disconnected(peer, now),
            HttpEvent::Received(peer, received) => self.received(peer, received, now),
        }
    }

    fn connected(&mut self, peer: PeerId, connection: ConnectionId) {
        let connections = self.connections.entry(peer).or_default();
        connections.push(connection);
        let first = connections.len() == 1;
        if self.peer_settings.favoured.contains(&peer) {
            let handler = NotifyHandler::One(connection);
            self.events.push_back(ToSwarm::NotifyHandler { peer_id: peer, handler, event: Command::Keep(true) });
        }
        if first {
            self.client.peer_connected(peer, self.peer_settings.favoured.contains(&peer), Instant::now());
        }
    }

    fn disconnected(&mut self, peer: PeerId, connection: ConnectionId) {
        let Some(connections) = self.connections.get_mut(&peer) else { return };
        let was_used = connections.first() == Some(&connection);
        connections.retain(|id| *id != connection);
        if connections.is_empty() {
            self.connections.remove(&peer);
            self.client.peer_disconnected(peer, Instant::now());
            self.server.disconnected(peer);
        } else if was_used {
            self.client.resend_requests(peer);
            self.server.answers_lost(peer);
        }
    }
}

impl Drop for Behaviour {
    /// Fails the waiters when the network stops.
    fn drop(&mut self) {
        self.commands.close();
        self.wants.close();
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

    crate::handler_of_each_connection!(|behaviour, peer| behaviour.handler(peer));

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { peer_id, connection_id, .. }) => {
                self.connected(peer_id, connection_id);
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                self.disconnected(peer_id, connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, _: ConnectionId, event: HandlerEvent) {
        let now = Instant::now();
        match event {
            HandlerEvent::Received(received) => self.received(peer, received, now),
            HandlerEvent::Fault(reason) => {
                tracing::debug!(%peer, reason, "the peer violated the Bitswap protocol");
                self.metrics.faults.inc();
                self.client.peer_failed(peer, now);
                self.offended(peer, Offence::Protocol);
            }
            HandlerEvent::Unreachable => self.client.peer_failed(peer, now),
            HandlerEvent::Lost => self.client.answer_lost(peer, now),
            HandlerEvent::Declined => self.client.resend_requests(peer),
            HandlerEvent::Stalled => {
                self.stalled(peer);
                self.client.answer_lost(peer, now);
            }
            HandlerEvent::Answered { blocks, bytes, cost } => {
                self.metrics.sent_blocks.inc_by(blocks as u64);
                self.metrics.sent_bytes.inc_by(bytes as u64);
                self.server.sent(peer, cost);
            }
            HandlerEvent::Dropped { cost } => self.server.dropped(peer, cost),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Event, THandlerInEvent<Self>>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(event);
            }
            let now = Instant::now();
            self.take_commands(cx, now);
            self.take_transfer_events(cx, now);
            self.start_lookups();
            while let Poll::Ready(Some((lookup, found))) = self.lookups.poll_next_unpin(cx) {
                if let Some((peer, answer)) = self.server.looked_up(lookup, found) {
                    self.notify(peer, Command::Answer(answer));
                }
                self.start_lookups();
            }
            if self.ledger.get().is_turn_of(Service::Dag) {
                // The other protocol may have been polled before.
                cx.waker().wake_by_ref();
            }
            while self.ticker.poll_tick(cx).is_ready() {
                self.traffic.retain(|_, traffic| traffic.strong_count() > 0);
                if !self.client.is_idle() {
                    self.note_traffic();
                    self.client.tick(now);
                    // The tick was the first step.
                    self.steps.reset();
                }
                self.http.tick(now);
            }
            while self.client.is_failing() && self.steps.poll_tick(cx).is_ready() {
                self.client.fail_next(now);
            }
            while let Some(action) = self.client.poll_action() {
                self.act(action);
            }
            // Polled after the actions, which may have started requests.
            if let Poll::Ready(event) = self.http.poll(cx, now) {
                self.on_http(event, now);
            } else if self.events.is_empty() {
                return Poll::Pending;
            }
        }
    }
}

#[cfg(test)]
#[path = "behaviour_tests.rs"]
mod tests;
