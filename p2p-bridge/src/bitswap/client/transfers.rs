//! Wants that are brought by transfers, of the DAG protocol ([`crate::dag::client`]) or as CARs of gateways
//! ([`crate::http_source::car`]).
//!
//! A peer that speaks the protocol and is chosen for a want, or a gateway, gets a request for all that the reader will
//! need, in place of the wantlist entry. Further wants that a running transfer of the session brings count as requested
//! from its peer, and no entry is sent. So what the client knows of its peers (outstanding bytes, rates, stalls) holds
//! for both protocols, and hedged requests, which are entries always, go on as they do. A want that its transfer does
//! not bring becomes an ordinary request at once.

use super::state::{Request, Want};
use super::time::LATENESS_MIN;
use super::{Action, BlockUse, Client};
use crate::bitswap::message::{Ask, WantEntry};
use crate::dag::client::active::{Context, TransferEnd};
use crate::dag::message::{EndStatus, TransferId};
use crate::observers::BlockTransport;
use crate::wants::SessionId;
use content::{BlockKey, Cid};
use libp2p::PeerId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A transfer that is awaited is given up when it has brought nothing for so many stall thresholds of its peer.
const STALLS_MAX: u32 = 3;
/// The least time without progress after which a transfer is given up.
const STALLED_MIN: Duration = Duration::from_millis(750);
/// How long wants wait for a CAR that has not begun, or that is about to bring them, and a quarter of the stall timeout
/// at most. A gateway may have to find the blocks of a path first, and a single block costs it another request.
const CAR_PATIENCE: Duration = Duration::from_secs(2);

impl Client {
    /// Uses the DAG protocol.
    pub fn use_transfers(&mut self, context: Arc<Context>) {
        self.planner.use_peers(context);
    }

    /// Asks gateways for whole DAGs.
    pub fn use_gateway_transfers(&mut self, context: Arc<Context>) {
        self.planner.use_gateways(context);
    }

    /// A gateway can be asked. It is a peer that sends whole DAGs as well.
    pub fn gateway_connected(&mut self, gateway: PeerId, favoured: bool, now: Instant) {
        self.planner.add_gateway(gateway);
        self.peer_connected(gateway, favoured, now);
    }

    /// A connected peer speaks the DAG protocol, or does not any more.
    pub fn set_speaks_dag(&mut self, peer: PeerId, speaks: bool) {
        self.planner.set_speaks(peer, speaks && self.peers.contains_key(&peer));
    }

    /// Has a want wait for a running transfer that brings it; `false` if there is none.
    pub(super) fn attach(&mut self, key: BlockKey, now: Instant) -> bool {
        if !self.planner.is_used() {
            return false;
        }
        let Some(want) = self.wants.get(&key).filter(|want| !want.is_untransferable) else { return false };
        let ahead = want.ahead.as_ref().map(|(_, ahead)| &**ahead);
        let found = want.sessions.iter().find_map(|session| self.planner.bringing(session, &key, ahead));
        let Some((transfer, peer)) = found.filter(|(_, peer)| !want.denied.contains(peer)) else { return false };
        self.request(peer, key, true, Some(transfer), now);
        self.wants.get(&key).is_some_and(Want::is_requested)
    }

    /// Starts a transfer from the peer that is asked for a block, if it speaks the protocol and the reader needs more.
    pub(super) fn start_transfer(&mut self, peer: PeerId, key: &BlockKey, now: Instant) -> Option<TransferId> {
        if !self.planner.is_used() {
            return None;
        }
        let want = self.wants.get(key).filter(|want| !want.is_untransferable)?;
        let (session, ahead) = want.ahead.as_ref()?;
        let is_shared = self.is_shared(session, &peer);
        let active = self.planner.start(*session, peer, key, ahead, is_shared, now)?;
        let transfer = active.id;
        self.actions.push_back(Action::Transfer(active));
        Some(transfer)
    }

    /// Whether a peer shares the transfers of a session with other members. A gateway shares them with all, since it
    /// cannot be told to leave out what another one sends.
    fn is_shared(&self, session: &SessionId, peer: &PeerId) -> bool {
        let members = self.sessions.get(session).map_or(&[][..], |session| &session.members);
        match self.planner.is_gateway(peer) {
            true => members.iter().any(|member| member != peer),
            false => members.iter().filter(|member| self.planner.takes_transfers(member)).count() > 1,
        }
    }

    /// A peer has become a member of a session. If it shares the work with another one, both are asked for parts.
    pub(super) fn member_joined(&self, session: &SessionId, peer: &PeerId) {
        if !self.planner.takes_transfers(peer) || self.is_shared(session, peer) {
            self.planner.share(session, peer);
        }
    }

    /// A transfer has brought a block, which was delivered or buffered.
    pub fn transfer_received(&mut self, transfer: TransferId, key: BlockKey, bytes: usize, now: Instant) -> BlockUse {
        let (Some(peer), Some(session_id)) = (self.planner.peer(transfer), self.planner.session(transfer)) else {
            return if self.fulfilled(key, bytes, None, now) { BlockUse::Wanted } else { BlockUse::Duplicate };
        };
        self.planner.brought(transfer, now);
        self.planner.detach(transfer, &key);
        let want = self.wants.get(&key);
        let request = want.and_then(|want| want.asked.iter().find(|request| request.peer == peer));
        let asked = request.map(|request| (request.at, request.idle));
        if let (Some(want), Some(Request { transfer: None, block: true, .. })) = (want, request) {
            // It was requested by an entry as well.
            let cancel = WantEntry { cid: want.cid, ask: Ask::Cancel, send_dont_have: false };
            self.outbox.entry(peer).or_default().push(cancel);
        }
        if let Some(peer_state) = self.peers.get_mut(&peer) {
            if let Some((at, _)) = asked {
                self.metrics.transfer_seconds.observe(now.saturating_duration_since(at).as_secs_f64());
            }
            let asked_at = asked.and_then(|(at, idle)| idle.then_some(at));
            peer_state.delivered(bytes, asked_at, now);
            peer_state.settle(&key, now);
            peer_state.expect_late(key);
            peer_state.useful = Some(now);
        }
        if let Some(session) = self.sessions.get_mut(&session_id) {
            session.received(bytes, now);
            session.used = now;
        }
        self.planner.grow(transfer);
        self.joined(session_id, peer, true, now);
        let was_wanted = self.fulfilled(key, bytes, Some(peer), now);
        self.fill(peer, now);
        if was_wanted { BlockUse::Wanted } else { BlockUse::Duplicate }
    }

    /// A transfer will not bring a block that it has named: the next peer is asked.
    pub fn transfer_lacks(&mut self, transfer: TransferId, cid: &Cid, now: Instant) {
        let (Some(key), Some(peer)) = (BlockKey::of(cid), self.planner.peer(transfer)) else { return };
        self.planner.progressed(transfer, now);
        self.planner.detach(transfer, &key);
        self.planner.lacks(transfer, now);
        if self.waits_for(&key, transfer) {
            self.deny(key, peer, now);
        }
    }

    /// A block of a transfer was dropped here: it is requested by an entry.
    pub fn transfer_dropped(&mut self, transfer: TransferId, cid: &Cid, now: Instant) {
        let (Some(key), Some(peer)) = (BlockKey::of(cid), self.planner.peer(transfer)) else { return };
        self.planner.progressed(transfer, now);
        self.planner.detach(transfer, &key);
        if self.waits_for(&key, transfer) {
            self.release(key, peer, true, now);
            self.assign(key, now);
        }
    }

    /// A transfer has ended: the wants that waited for it become ordinary requests.
    pub fn transfer_ended(&mut self, transfer: TransferId, end: &TransferEnd, now: Instant) {
        let Some(peer) = self.planner.peer(transfer) else { return };
        let mut wants = self.planner.ended(transfer, end, now);
        wants.retain(|key| self.waits_for(key, transfer));
        wants.sort_by_key(|key| self.wants.get(key).map(|want| want.order));
        // The reader of a transfer whose budget was not renewed has come back.
        let is_renewed = matches!(end, TransferEnd::Status(EndStatus::Budget)) && self.planner.has_brought(transfer);
        let is_final = !is_renewed;
        for key in &wants {
            self.release(*key, peer, is_final, now);
        }
        for key in wants {
            self.assign(key, now);
        }
    }

    /// The peer of a transfer, and how its blocks are transferred.
    pub fn transfer_source(&self, transfer: TransferId) -> Option<(PeerId, BlockTransport)> {
        self.planner.source(transfer)
    }

    /// A peer sent an invalid block in a transfer. Its outstanding blocks are requested from others.
    pub fn peer_lied(&mut self, peer: PeerId, now: Instant) {
        self.sent_invalid_block(peer, now);
    }

    /// Requests a block of a late CAR as a single one from the same gateway. The CAR may still bring it.
    pub(super) fn overtake_late_car(&mut self, key: BlockKey, now: Instant) {
        let late = self.wants.get(&key).and_then(|want| self.late_car(want, now));
        if let Some((gateway, transfer)) = late {
            self.planner.note_late(transfer);
            self.request(gateway, key, true, None, now);
        }
    }

    /// The gateway whose CAR is late with a block that nobody else is about to send.
    fn late_car(&self, want: &Want, now: Instant) -> Option<(PeerId, TransferId)> {
        let is_stalled = |request: &Request| self.peers.get(&request.peer).is_none_or(|peer| peer.is_stalled(now));
        if want.block_requests().any(|request| request.transfer.is_none() && !is_stalled(request)) {
            return None;
        }
        want.block_requests().find_map(|request| {
            let car = request.transfer.filter(|_| self.planner.is_gateway(&request.peer))?;
            self.is_late(car, request, now).then_some((request.peer, car))
        })
    }

    /// Whether a CAR is late with a block. One that has begun brings a block after those before it, if their bytes are
    /// known; otherwise as soon as it is expected from a gateway that is asked for it alone, or the block may be behind
    /// all that the reader does not need yet.
    fn is_late(&self, car: TransferId, request: &Request, now: Instant) -> bool {
        let waited = now.saturating_duration_since(request.at);
        let patience = CAR_PATIENCE.min(self.config.stall_timeout / 4);
        if !self.planner.has_brought(car) {
            return waited >= patience || self.planner.begins_late(car);
        }
        let expected = self.expected_time(request);
        waited > expected + expected.max(if request.is_placed { patience } else { LATENESS_MIN })
    }

    fn waits_for(&self, key: &BlockKey, transfer: TransferId) -> bool {
        let requests = self.wants.get(key).into_iter().flat_map(|want| &want.asked);
        requests.into_iter().any(|request| request.transfer == Some(transfer))
    }

    /// A want does not wait for a peer any more, which may be asked by an entry.
    fn release(&mut self, key: BlockKey, peer: PeerId, is_final: bool, now: Instant) {
        if let Some(peer_state) = self.peers.get_mut(&peer) {
            peer_state.settle(&key, now);
        }
        let Some(want) = self.wants.get_mut(&key) else { return };
        if let Some(transfer) = want.discard_answers(&peer) {
            self.planner.detach(transfer, &key);
        }
        want.is_untransferable |= is_final;
        if !want.is_requested() {
            for id in &want.sessions {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.queued.insert(want.order, key);
                }
            }
        }
    }

    /// A request has ended: it does not wait for its transfer any more.
    pub(super) fn detach(&mut self, request: &Request, key: &BlockKey) {
        if let Some(transfer) = request.transfer {
            self.planner.detach(transfer, key);
        }
    }

    /// Gives up transfers that stall, makes room in those that are full of what nobody takes, and ends those without
    /// readers.
    pub(super) fn check_transfers(&mut self, now: Instant) {
        if !self.planner.is_used() {
            return;
        }
        for (peer, at) in self.planner.received_at() {
            self.peer_progressed(peer, at);
        }
        let awaited: Vec<(TransferId, PeerId, Instant)> = self.planner.awaited().collect();
        for (transfer, peer, progress) in awaited {
            let Some(peer_state) = self.peers.get(&peer) else { continue };
            let threshold = (peer_state.link.stall_threshold() * STALLS_MAX).max(STALLED_MIN);
            let silent = now.saturating_duration_since(progress);
            // A large block may take long over a slow link.
            let receives = !peer_state.link.is_stalled(now) && silent < self.config.stall_timeout / 2;
            if silent < threshold || receives {
                continue;
            }
            if self.planner.end_if_used_up(transfer) {
                continue;
            }
            if self.planner.make_room(transfer) {
                self.planner.progressed(transfer, now);
            } else if !self.planner.times_itself(transfer) {
                self.planner.give_up(transfer);
            }
        }
        let sessions = &self.sessions;
        self.planner.sweep(|id| sessions.get(id).is_some_and(|session| !session.wants.is_empty()), now);
    }
}
