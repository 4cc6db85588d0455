//! [`Planner`]: the running transfers of all sessions, and when another one may be started.
//!
//! Without I/O and clock. It decides nothing about peers: [`crate::bitswap::client`] chooses a peer for a want, and asks
//! here whether a transfer brings the block, or can be started.
//!
//! The windows of all transfers are reserved from one budget, a part of the network's memory.

use super::active::{ActiveTransfer, Context, Decline, TransferEnd};
use super::metrics::EndKind;
use super::transfer::{CREDIT_PART, Prospect, expected_bytes, first_byte};
use crate::dag::message::{BUDGET_BYTES_MAX, BUDGET_BYTES_MIN, EndStatus, Request, TransferId};
use crate::observers::BlockTransport;
use crate::recent::{Recent, recent};
use crate::wants::SessionId;
use content::scope::{EntityBytes, ScopeOptions};
use content::{BlockKey, Cid, ReadAhead};
use libp2p::PeerId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The part of the network's memory that the windows of transfers may take: unpacked and packed, a block takes twice its
/// size at most.
const MEMORY_PART: u64 = 4;
/// The smallest window of a transfer, in bytes: a block of the maximum size fits when a part that is too small to be given
/// as credit is used.
const WINDOW_BYTES_MIN: u64 = (2 * 1024 + 192) * 1024;
const _: () = assert!(
    WINDOW_BYTES_MIN - WINDOW_BYTES_MIN / CREDIT_PART >= BUDGET_BYTES_MIN,
    "a server waits for credit that is never given"
);
/// The window of a transfer of unknown size, in bytes, while less than half of the budget is used.
const WINDOW_BYTES_START: u64 = 8 * 1024 * 1024;
/// The length of the parts of a file that several peers send: less than a reader's window, so that several are under way.
const STRIPE_BYTES: i64 = 4 * 1024 * 1024;
/// The maximum number of running transfers of a session, of a peer, and in all.
const PER_SESSION_MAX: usize = 32;
const PER_PEER_MAX: usize = 48;
const RUNNING_MAX: usize = 256;
/// The maximum number of pairs of a session and a peer that are not asked for transfers for a while.
const RESTING_MAX: usize = 4_096;
/// How long a peer is not asked after it has refused, or has failed.
const REST_REFUSED: Duration = Duration::from_secs(60);
/// The same after it had too many transfers.
const REST_BUSY: Duration = Duration::from_secs(2);
/// How long a peer that lacks a part of a DAG is asked for its blocks by Bitswap: each further transfer would begin with
/// what was missing before.
const REST_LACKING: Duration = Duration::from_secs(10);
/// How long a gateway that does not send CARs is not asked for them.
const REST_UNSUPPORTED: Duration = Duration::from_secs(3_600);
/// How long a transfer whose session has no readers goes on.
const LINGER: Duration = Duration::from_secs(2);

/// A running transfer.
struct Running {
    active: Arc<ActiveTransfer>,
    /// The wants that wait for it.
    wants: HashSet<BlockKey>,
    /// When it last brought a block.
    progress: Instant,
    /// Whether it has brought any.
    has_brought: bool,
    /// Whether the gateway takes long to begin.
    begins_late: bool,
    /// Since when its session has no readers.
    unread_since: Option<Instant>,
    /// Whether it has ended, and is kept for what is buffered.
    has_ended: bool,
}

impl Running {
    /// Whether it is not known when it begins.
    fn begins_late(&self) -> bool {
        self.begins_late && !self.has_brought && !self.has_ended
    }

    /// Whether nothing more is sent until readers take what is buffered, for which no want waits.
    fn is_full_of_unawaited(&self) -> bool {
        !self.has_ended && self.wants.is_empty() && self.active.state().is_full()
    }
}

/// The running transfers. See the module's documentation.
pub struct Planner {
    /// `None`: transfers from peers are not used.
    context: Option<Arc<Context>>,
    /// `None`: transfers from gateways are not used.
    gateway_context: Option<Arc<Context>>,
    /// The connected peers that speak the protocol.
    speakers: HashSet<PeerId>,
    /// The gateways in use, which send DAGs as CARs.
    gateways: HashSet<PeerId>,
    transfers: HashMap<TransferId, Running>,
    /// For one session, or for all.
    resting: Recent<(Option<SessionId>, PeerId), Instant>,
    next_id: u64,
    reserved_bytes: u64,
}

impl Default for Planner {
    fn default() -> Self {
        Self {
            context: None,
            gateway_context: None,
            speakers: HashSet::new(),
            gateways: HashSet::new(),
            transfers: HashMap::new(),
            resting: recent(RESTING_MAX),
            next_id: 0,
            reserved_bytes: 0,
        }
    }
}

impl Planner {
    /// Starts transfers from peers that speak the protocol.
    pub fn use_peers(&mut self, context: Arc<Context>) {
        self.context = Some(context);
    }

    /// Starts transfers from gateways.
    pub fn use_gateways(&mut self, context: Arc<Context>) {
        self.gateway_context = Some(context);
    }

    /// A gateway can be asked.
    pub fn add_gateway(&mut self, gateway: PeerId) {
        if self.gateway_context.is_some() {
            self.gateways.insert(gateway);
        }
    }

    /// Whether transfers from a gateway are used.
    pub fn is_gateway(&self, peer: &PeerId) -> bool {
        self.gateways.contains(peer)
    }

    /// What the transfers from a peer share, if there can be any.
    fn context_of(&self, peer: &PeerId) -> Option<&Arc<Context>> {
        match self.is_gateway(peer) {
            true => self.gateway_context.as_ref(),
            false => self.context.as_ref().filter(|_| self.speakers.contains(peer)),
        }
    }

    /// A peer speaks the protocol, or does not any more.
    pub fn set_speaks(&mut self, peer: PeerId, speaks: bool) {
        if speaks && self.context.is_some() {
            self.speakers.insert(peer);
        } else {
            self.speakers.remove(&peer);
        }
    }

    /// Whether transfers can be asked of any peer.
    pub fn is_used(&self) -> bool {
        !self.speakers.is_empty() || !self.gateways.is_empty() || !self.transfers.is_empty()
    }

    /// Whether there are transfers, running or buffered.
    pub fn has_any(&self) -> bool {
        !self.transfers.is_empty()
    }

    /// The peer of a transfer.
    pub fn peer(&self, id: TransferId) -> Option<PeerId> {
        self.source(id).map(|(peer, _)| peer)
    }

    /// The peer of a transfer, and how its blocks are transferred.
    pub fn source(&self, id: TransferId) -> Option<(PeerId, BlockTransport)> {
        self.transfers.get(&id).map(|running| (running.active.peer, running.active.over()))
    }

    /// The session of a transfer.
    pub fn session(&self, id: TransferId) -> Option<SessionId> {
        self.transfers.get(&id).map(|running| running.active.session)
    }

    /// Whether a session has transfers.
    pub fn has_transfers(&self, session: &SessionId) -> bool {
        self.transfers.values().any(|running| running.active.session == *session)
    }

    /// The running transfer of a session that will bring a block, and its peer. Not one that begins late, and not one
    /// that is full of what nobody waits for: its readers may be slow, and nothing follows until they have taken it.
    pub fn bringing(
        &self,
        session: &SessionId,
        key: &BlockKey,
        ahead: Option<&ReadAhead>,
    ) -> Option<(TransferId, PeerId)> {
        let of_session = self.transfers.iter().filter(|(_, running)| {
            running.active.session == *session
                && !running.has_ended
                && !running.begins_late()
                && self.takes_transfers(&running.active.peer)
        });
        let prospects = of_session.filter_map(|(id, running)| {
            let prospect = running.active.state().prospect(key, ahead);
            let is_soon = prospect == Prospect::Arrived || !running.is_full_of_unawaited();
            is_soon.then_some((prospect, *id, running.active.peer))
        });
        let best = prospects.filter(|(prospect, ..)| *prospect != Prospect::None);
        best.max_by_key(|(prospect, ..)| *prospect).map(|(_, id, peer)| (id, peer))
    }

    /// Whether a running transfer from a peer has brought a block that is wanted nevertheless, because it was not kept.
    /// It is to be requested alone: another transfer would bring again all that follows, beside the running one. A file
    /// is divided instead if a reader is back where no more can be buffered, or past the end of a divided transfer. A
    /// range of a file is requested as another CAR always, since a block alone is a request as well.
    fn has_passed(&self, session: &SessionId, peer: &PeerId, key: &BlockKey, ahead: &ReadAhead) -> bool {
        let (is_range, from) = (ahead.scope.entity_bytes.is_some(), first_byte(&ahead.scope));
        let divides_any = self.is_gateway(peer) && is_range;
        self.of_pair(session, peer).any(|running| {
            let state = running.active.state();
            let is_behind = |from: u64| state.is_far_past(from) || state.ends_before(from);
            let is_divided = || state.is_of_file(ahead) && from.is_some_and(is_behind);
            !divides_any && state.has_passed(key) && !is_divided()
        })
    }

    /// Starts a transfer from a peer for a block, and what a reader will request after it, unless it is not worth it or
    /// not possible. If several peers share the work (`is_shared`), it is for a part of a file that is [`STRIPE_BYTES`]
    /// long at most: the reader's next wants start others, from the peer that is the best by then. It takes the place of
    /// those from the peer that are full, whose blocks stay buffered.
    pub fn start(
        &mut self,
        session: SessionId,
        peer: PeerId,
        key: &BlockKey,
        ahead: &ReadAhead,
        is_shared: bool,
        now: Instant,
    ) -> Option<Arc<ActiveTransfer>> {
        let context = Arc::clone(self.context_of(&peer)?);
        let rests = [Some(session), None]
            .into_iter()
            .any(|session| self.resting.peek(&(session, peer)).is_some_and(|until| now < *until));
        // What the end of a gateway's last transfer means is about to be known, or whether it begins.
        let is_uncertain = |running: &Running| {
            let active = &running.active;
            let is_ending = !running.has_ended && active.state().has_ended();
            active.session == session && active.peer == peer && (is_ending || running.begins_late())
        };
        let waits = self.is_gateway(&peer) && self.transfers.values().any(is_uncertain);
        if rests || waits || ahead.is_single_block() || self.has_passed(&session, &peer, key, ahead) {
            return None;
        }
        let count = |is_such: &dyn Fn(&ActiveTransfer) -> bool| {
            self.transfers.values().filter(|running| !running.has_ended && is_such(&running.active)).count()
        };
        let is_full = count(&|_| true) >= RUNNING_MAX
            || count(&|active| active.session == session) >= PER_SESSION_MAX
            || count(&|active| active.peer == peer) >= PER_PEER_MAX;
        let scope = if is_shared { stripe(&ahead.scope) } else { ahead.scope };
        let scope = self.before_others(&session, &peer, ahead, scope);
        let budget_bytes = self.window(&context, expected_bytes(&scope, None))?;
        let request = Request {
            transfer: TransferId(self.next_id),
            root: ahead.root,
            path: ahead.path.clone(),
            scope,
            held: Vec::new(),
            budget_bytes,
            packed: true,
            fragments: true,
        };
        if is_full || !request.has_valid_path() {
            return None;
        }
        for full in self.of_pair(&session, &peer).filter(|running| running.is_full_of_unawaited()) {
            full.active.cancel();
        }
        self.next_id += 1;
        self.reserved_bytes += budget_bytes;
        context.metrics.running.inc();
        let active = ActiveTransfer::new(context, peer, session, request);
        if is_shared {
            active.state().cap();
        }
        let running = Running {
            active: Arc::clone(&active),
            wants: HashSet::new(),
            progress: now,
            has_brought: false,
            begins_late: false,
            unread_since: None,
            has_ended: false,
        };
        self.transfers.insert(active.id, running);
        Some(active)
    }

    /// The running transfers from a peer for a session.
    fn of_pair(&self, session: &SessionId, peer: &PeerId) -> impl Iterator<Item = &Running> {
        self.transfers.values().filter(move |running| {
            !running.has_ended && running.active.session == *session && running.active.peer == *peer
        })
    }

    /// A scope without what running transfers from the same peer bring that are later in the same file. Those that are
    /// full give way to the next one.
    fn before_others(
        &self,
        session: &SessionId,
        peer: &PeerId,
        ahead: &ReadAhead,
        scope: ScopeOptions,
    ) -> ScopeOptions {
        let Some((from @ 0.., to)) = scope.entity_bytes.map(|bytes| bytes.bounds()) else { return scope };
        let end = to.and_then(|to| u64::try_from(to).ok()).map_or(u64::MAX, |to| to.saturating_add(1));
        let others = self.of_pair(session, peer).filter(|other| !other.is_full_of_unawaited());
        let positions = others.filter_map(|other| {
            let state = other.active.state();
            let (position, its_end) = (state.position(), state.end_of_file());
            (state.is_of_file(ahead) && brings_rest((position, its_end), end)).then_some(position)
        });
        let next = positions.filter_map(|position| i64::try_from(position).ok()).filter(|next| from < *next).min();
        let ends_before = next.filter(|next| to.is_none_or(|to| to < 0 || *next <= to));
        let part = ends_before.and_then(|next| EntityBytes::new(from, Some(next - 1)).ok());
        ScopeOptions { entity_bytes: part.or(scope.entity_bytes), ..scope }
    }

    /// A transfer has begun to bring its part of a file. Those from the same peer that include it end where it begins; if
    /// one has got there in the meantime, the transfer ends where that one is.
    fn divide(&self, begun: &ActiveTransfer) {
        let request = begun.request();
        let Some(from) = first_byte(&request.scope) else { return };
        let ahead = ReadAhead { root: request.root, path: request.path.clone(), scope: request.scope };
        let (end, credit_ends) = (begun.state().end_of_file(), !self.is_gateway(&begun.peer));
        for other in self.of_pair(&begun.session, &begun.peer).filter(|other| other.active.id != begun.id) {
            let (position, its_end) = {
                let mut state = other.active.state();
                if state.has_ended() || !state.is_of_file(&ahead) || !state.includes(&ahead) {
                    continue;
                }
                let its_end = state.end_of_file();
                if state.position() <= from {
                    if brings_rest((from, end), its_end) {
                        state.end_at(from, credit_ends);
                    }
                    continue;
                }
                (state.position(), its_end)
            };
            if brings_rest((position, its_end), end) {
                begun.state().end_at(position, credit_ends);
            }
        }
    }

    /// The window of the next transfer, for so many bytes of a file if that is known, if the budget allows one.
    fn window(&self, context: &Context, expected: Option<u64>) -> Option<u64> {
        let budget = context.memory.bytes_max() as u64 / MEMORY_PART;
        let left = budget.saturating_sub(self.reserved_bytes);
        // One transfer takes no more than half of what is left.
        let most = (left / 2).clamp(WINDOW_BYTES_MIN, BUDGET_BYTES_MAX);
        let needed = match expected {
            Some(bytes) => bytes.saturating_add(WINDOW_BYTES_MIN),
            None if left >= budget / 2 => WINDOW_BYTES_START,
            None => WINDOW_BYTES_MIN,
        };
        (left >= WINDOW_BYTES_MIN).then(|| needed.clamp(WINDOW_BYTES_MIN, most))
    }

    /// Widens the window of a transfer whose size is known by now, if the budget allows.
    pub fn grow(&mut self, id: TransferId) {
        let Some(running) = self.transfers.get(&id).filter(|running| !running.has_ended) else { return };
        let active = Arc::clone(&running.active);
        let context = active.context();
        let (window, expected) = (active.window_bytes(), active.state().expected_bytes());
        let Some(expected) = expected.filter(|expected| *expected > window && window < BUDGET_BYTES_MAX) else {
            return;
        };
        // What it has is a part of the budget.
        self.reserved_bytes = self.reserved_bytes.saturating_sub(window);
        let wider = self.window(context, Some(expected)).unwrap_or(window).max(window);
        self.reserved_bytes = self.reserved_bytes.saturating_add(wider);
        active.widen_window(wider);
    }

    /// Another peer has the DAG of a session: the session's transfers bring what their budgets allow, and no more. If
    /// that peer cannot be asked for transfers, this holds for those of gateways: they cannot be told to leave out what
    /// the peer sends.
    pub fn share(&self, session: &SessionId, with: &PeerId) {
        let is_for_all = self.takes_transfers(with);
        for running in self.transfers.values().filter(|running| running.active.session == *session) {
            let peer = &running.active.peer;
            if is_for_all || self.is_gateway(peer) && peer != with {
                running.active.state().cap();
            }
        }
    }

    /// Whether a peer can be asked for transfers.
    pub fn takes_transfers(&self, peer: &PeerId) -> bool {
        self.context_of(peer).is_some()
    }

    /// A want waits for a transfer.
    pub fn attach(&mut self, id: TransferId, key: BlockKey, now: Instant) {
        if let Some(running) = self.transfers.get_mut(&id) {
            if running.wants.is_empty() {
                // Time without wants is no stall.
                running.progress = now;
            }
            running.wants.insert(key);
        }
    }

    /// A block without links was received from another peer.
    pub fn skip(&self, id: TransferId, cid: Cid) {
        if let Some(running) = self.transfers.get(&id).filter(|running| !running.has_ended) {
            running.active.skip(cid);
        }
    }

    /// A want does not wait for a transfer any more.
    pub fn detach(&mut self, id: TransferId, key: &BlockKey) {
        if let Some(running) = self.transfers.get_mut(&id) {
            running.wants.remove(key);
        }
    }

    /// Whether a want waits for a transfer that has not ended.
    #[cfg(test)]
    pub fn waits(&self, id: TransferId, key: &BlockKey) -> bool {
        self.transfers.get(&id).is_some_and(|running| !running.has_ended && running.wants.contains(key))
    }

    /// The wants that wait for transfers that have not ended.
    #[cfg(test)]
    pub fn waiting(&self) -> impl Iterator<Item = (TransferId, &BlockKey)> {
        let running = self.transfers.iter().filter(|(_, running)| !running.has_ended);
        running.flat_map(|(id, running)| running.wants.iter().map(|key| (*id, key)))
    }

    /// A transfer has brought a block.
    pub fn brought(&mut self, id: TransferId, now: Instant) {
        self.progressed(id, now);
        let Some(running) = self.transfers.get_mut(&id) else { return };
        if !std::mem::replace(&mut running.has_brought, true) {
            let active = Arc::clone(&running.active);
            self.divide(&active);
        }
    }

    /// Whether a transfer has brought a block.
    pub fn has_brought(&self, id: TransferId) -> bool {
        self.transfers.get(&id).is_some_and(|running| running.has_brought)
    }

    /// A transfer is late with a block, which is requested otherwise. If it has brought none so far, no further want
    /// waits for it, and no other one is started from its gateway for the session, until it brings one or has ended.
    pub fn note_late(&mut self, id: TransferId) {
        if let Some(running) = self.transfers.get_mut(&id) {
            running.begins_late = true;
        }
    }

    /// Whether a transfer has not begun in time.
    pub fn begins_late(&self, id: TransferId) -> bool {
        self.transfers.get(&id).is_some_and(Running::begins_late)
    }

    /// About how many bytes a gateway sends before a block, if that is known. Peers send in another order.
    pub fn distance(&self, id: TransferId, key: &BlockKey, ahead: Option<&ReadAhead>) -> Option<u64> {
        let active = &self.transfers.get(&id)?.active;
        if active.over() == BlockTransport::Http { active.state().distance(key, ahead) } else { None }
    }

    /// A transfer goes on.
    pub fn progressed(&mut self, id: TransferId, now: Instant) {
        if let Some(running) = self.transfers.get_mut(&id) {
            running.progress = now;
        }
    }

    /// A transfer has ended. Returns the wants that waited for it. What it has brought stays buffered while the session
    /// has readers.
    pub fn ended(&mut self, id: TransferId, end: &TransferEnd, now: Instant) -> Vec<BlockKey> {
        let Some(running) = self.transfers.get_mut(&id).filter(|running| !running.has_ended) else {
            return Vec::new();
        };
        running.has_ended = true;
        let (kind, rest) = kind_of(end);
        // A peer whose budget is not worth anything would end each further transfer so.
        let is_useless = kind == EndKind::Budget && !running.has_brought;
        let rest = rest.or(is_useless.then_some(REST_REFUSED));
        // A DAG that cannot be sent says nothing of others.
        let is_of_dag = match end {
            TransferEnd::Status(EndStatus::Failed) | TransferEnd::TooManyBlocks => true,
            TransferEnd::Declined(decline) => !matches!(decline, Decline::Unsupported | Decline::Busy(_)),
            _ => false,
        };
        let session = is_of_dag.then_some(running.active.session);
        let rest_key = (session, running.active.peer);
        let wants = running.wants.drain().collect();
        if let Some(rest) = rest {
            self.resting.insert(rest_key, now + rest);
        }
        let metrics = &running.active.context().metrics;
        metrics.ended(kind);
        metrics.running.dec();
        wants
    }

    /// The peer of a transfer lacks a part of the DAG. The transfer goes on.
    pub fn lacks(&mut self, id: TransferId, now: Instant) {
        if let Some(running) = self.transfers.get(&id) {
            let key = (Some(running.active.session), running.active.peer);
            self.resting.insert(key, now + REST_LACKING);
        }
    }

    /// A peer has disconnected: its transfers end with their streams.
    pub fn disconnected(&mut self, peer: &PeerId) {
        self.speakers.remove(peer);
        self.gateways.remove(peer);
        self.cancel_from(peer);
    }

    /// Cancels the transfers from a peer.
    pub fn cancel_from(&self, peer: &PeerId) {
        for running in self.transfers.values().filter(|running| running.active.peer == *peer && !running.has_ended) {
            running.active.cancel();
        }
    }

    /// Ends a transfer that stalls: its streams are reset, and the peer is not asked for others for a while.
    pub fn give_up(&mut self, id: TransferId) {
        if let Some(running) = self.transfers.get(&id) {
            running.active.give_up();
        }
    }

    /// Cancels the transfers of sessions without readers, and forgets those that have ended and been read. `has_wants`
    /// says whether a session waits for blocks.
    pub fn sweep(&mut self, has_wants: impl Fn(&SessionId) -> bool, now: Instant) {
        let mut reserved_bytes = self.reserved_bytes;
        self.transfers.retain(|_, running| {
            let session = running.active.session;
            let is_read = running.active.context().readers.has(&session) || has_wants(&session);
            let since = *running.unread_since.get_or_insert(now);
            if is_read {
                running.unread_since = None;
            } else if now.saturating_duration_since(since) >= LINGER && !running.has_ended {
                running.active.cancel();
            }
            if running.active.state().is_used_up() && running.wants.is_empty() && !running.has_ended {
                running.active.cancel();
            }
            let is_unread = running.unread_since.is_some() && now.saturating_duration_since(since) >= LINGER;
            let keep = !running.has_ended || !is_unread && running.active.has_buffered();
            if !keep {
                reserved_bytes = reserved_bytes.saturating_sub(running.active.window_bytes());
            }
            keep
        });
        self.reserved_bytes = reserved_bytes;
    }

    /// When the peers of the running transfers last sent bytes.
    pub fn received_at(&self) -> Vec<(PeerId, Instant)> {
        let running = self.transfers.values().filter(|running| !running.has_ended);
        running.filter_map(|running| Some((running.active.peer, running.active.received_at()?))).collect()
    }

    /// Transfers on which wants wait, with the time of their last progress.
    pub fn awaited(&self) -> impl Iterator<Item = (TransferId, PeerId, Instant)> + '_ {
        let awaited = self.transfers.iter().filter(|(_, running)| !running.has_ended && !running.wants.is_empty());
        awaited.map(|(id, running)| (*id, running.active.peer, running.progress))
    }

    /// Whether a transfer finds out itself that its peer stalls: a gateway may take long to begin, as it does for
    /// single blocks. Not while it has no budget, so that nothing is read.
    pub fn times_itself(&self, id: TransferId) -> bool {
        let active = self.transfers.get(&id).map(|running| &running.active);
        active.is_some_and(|active| active.over() == BlockTransport::Http && !active.state().is_blocked())
    }

    /// Ends a transfer that has brought all that its budget allows, and gets no more: its peer has done what it can.
    pub fn end_if_used_up(&self, id: TransferId) -> bool {
        let used_up = self.transfers.get(&id).filter(|running| running.active.state().is_used_up());
        used_up.inspect(|running| running.active.use_up()).is_some()
    }

    /// Makes room in a transfer that has no budget left, because nobody takes what it has brought.
    pub fn make_room(&self, id: TransferId) -> bool {
        let Some(running) = self.transfers.get(&id) else { return false };
        let is_blocked = running.active.state().is_blocked();
        is_blocked && running.active.has_buffered() && {
            running.active.evict(running.active.window_bytes() / 2);
            true
        }
    }
}

/// Whether a part of a file takes the place of the rest of a transfer that ends at `end`: it goes on as far, or for more
/// than is sent ahead. After a shorter one, the reader of the rest would have to begin again, which takes longer than what
/// is sent twice.
fn brings_rest((from, to): (u64, u64), end: u64) -> bool {
    to >= end || to.saturating_sub(from) >= BUDGET_BYTES_MAX
}

/// The first part of a range of a file that one of several peers is asked for.
fn stripe(scope: &ScopeOptions) -> ScopeOptions {
    let part = scope.entity_bytes.and_then(|bytes| match bytes.bounds() {
        (from @ 0.., to) if to.is_none_or(|to| to >= 0) => {
            let end = from.saturating_add(STRIPE_BYTES - 1);
            EntityBytes::new(from, Some(to.map_or(end, |to| to.min(end)))).ok()
        }
        _ => None,
    });
    ScopeOptions { entity_bytes: part.or(scope.entity_bytes), ..*scope }
}

/// How the metrics call an end, and how long the peer is not asked again for the session.
fn kind_of(end: &TransferEnd) -> (EndKind, Option<Duration>) {
    match end {
        TransferEnd::Status(EndStatus::Complete) => (EndKind::Complete, None),
        TransferEnd::Status(EndStatus::Refused) => (EndKind::Refused, Some(REST_REFUSED)),
        TransferEnd::Status(EndStatus::Busy) => (EndKind::Refused, Some(REST_BUSY)),
        TransferEnd::Status(EndStatus::Budget) => (EndKind::Budget, None),
        TransferEnd::Status(EndStatus::Failed) => (EndKind::Failed, Some(REST_REFUSED)),
        TransferEnd::Lost => (EndKind::Failed, Some(REST_BUSY)),
        TransferEnd::Stalled | TransferEnd::GivenUp => (EndKind::Stalled, Some(REST_REFUSED)),
        TransferEnd::TooManyBlocks => (EndKind::Failed, Some(REST_REFUSED)),
        TransferEnd::NamesLost => (EndKind::Failed, Some(REST_BUSY)),
        TransferEnd::InvalidBlock | TransferEnd::Fault(_) => (EndKind::Fault, Some(REST_REFUSED)),
        TransferEnd::Cancelled => (EndKind::Cancelled, None),
        TransferEnd::Declined(Decline::Unsupported) => (EndKind::Refused, Some(REST_UNSUPPORTED)),
        TransferEnd::Declined(Decline::Busy(_)) => (EndKind::Refused, Some(REST_BUSY)),
        TransferEnd::Declined(Decline::Failed | Decline::Incomplete) => (EndKind::Failed, Some(REST_REFUSED)),
        TransferEnd::Declined(Decline::Lacks | Decline::Refused) => (EndKind::Refused, Some(REST_REFUSED)),
    }
}
