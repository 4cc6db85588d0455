//! [`Transfer`]: one transfer as a state machine: what its request covers, what has been named, the budget and its
//! credit, blocks that are waiting for their parents, and its end.
//!
//! Without I/O and clock. Stream tasks pass answers in ([`Transfer::arrived`]), verify the blocks that they are told to,
//! and report them ([`Transfer::verified`]); the swarm task asks whether a want will be brought ([`Transfer::prospect`]).
//!
//! *The budget.* The server may have sent as many bytes as were granted ([`Answer::budget_bytes`]). What was released,
//! because a reader has taken it or nobody will, is granted again ([`Transfer::credit`]). So the bytes of a transfer that
//! are under way or buffered never exceed its window.

use super::naming::{BlockId, Known, Naming, PENDING_MAX, TooManyBlocks};
use crate::dag::message::{ANSWER_OVERHEAD_BYTES, Answer, BUDGET_BYTES_MIN, EndStatus, Request};
use bytes::Bytes;
use content::scope::{self, Child, ChildIter, DagScope, EntityBytes, Role, ScopeOptions};
use content::stored::Stored;
use content::{Block, BlockKey, Cid, ReadAhead};
use std::collections::{HashMap, HashSet};
use tokio::sync::OwnedSemaphorePermit;

/// The maximum number of blocks that wait for their parents.
const EARLY_MAX: usize = 512;
/// The part of the window that blocks which wait for their parents may take.
const EARLY_PART: u64 = 2;
/// Credit is given when this part of the window was released.
pub(super) const CREDIT_PART: u64 = 16;
/// The maximum number of refused blocks that are recorded: a server skips no more of them.
const REFUSED_MAX: usize = 1024;
/// A transfer with more unsolicited blocks than this ends as an offence. One may be a block that was named in a way that
/// is not known here.
pub const UNSOLICITED_MAX: usize = 8;
/// What the last blocks of a transfer without further credit may leave of its budget, because the next one does not fit.
const CAPPED_MARGIN_BYTES: u64 = 512 * 1024;
/// The nodes above the leaves of a file, and what each block counts in addition, are less than this part of them.
const INNER_PART: u64 = 16;
/// How far from the last received byte of a file a block may be, in windows, for a reader to wait for it.
const REACH_WINDOWS: u64 = 2;

/// A block that has arrived, and is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// Its bytes.
    Plain(Bytes),
    /// Its stored form.
    Packed(Stored),
}

impl Payload {
    /// Its bytes on the wire.
    pub fn wire_bytes(&self) -> usize {
        match self {
            Self::Plain(data) => data.len(),
            Self::Packed(stored) => stored.value().len(),
        }
    }
}

/// A block that is to be verified: unpacked, hashed, and expanded.
#[derive(Debug)]
pub struct Verify {
    /// Its CID, by which the server named it.
    pub cid: Cid,
    /// What has arrived.
    pub payload: Payload,
    /// The memory of the payload, if it is counted.
    pub memory: Option<OwnedSemaphorePermit>,
    /// What it takes of the budget.
    pub budget_bytes: u64,
    id: BlockId,
    roles: Vec<(u64, Role)>,
}

/// Whether a block can have others below it.
pub fn has_links(cid: &Cid) -> bool {
    cid.codec() != content::codec::RAW
}

/// A violation of the protocol, which ends the transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More was sent than the budget allows.
    #[error("the peer sent more than the budget of the transfer")]
    OverBudget,
    /// Too many blocks were sent that nothing has named.
    #[error("the peer sent blocks that were not requested")]
    Unsolicited,
    /// The same, but the peer may know more names than are known here, so it is no offence.
    #[error("the peer sent blocks whose parents are not known")]
    Unnamed,
}

/// What is to be done with an answer.
#[derive(Debug)]
pub enum Arrival {
    /// Verify the block.
    Verify(Box<Verify>),
    /// Nothing: it waits for its parent, or is dropped.
    Nothing,
    /// The server does not have a named block.
    Absent(Cid),
    /// The server has sent all that it will, on this stream.
    End(EndStatus),
}

/// What follows from a verified block.
#[derive(Debug, Default)]
pub struct Expanded {
    /// Blocks that were waiting for it, to be verified now.
    pub verify: Vec<Verify>,
    /// Named blocks that the server does not have.
    pub absent: Vec<Cid>,
    /// Named blocks that were dropped for lack of room.
    pub dropped: Vec<Cid>,
}

/// Whether a transfer will bring a block, the better the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prospect {
    /// It will not be brought, or not soon.
    None,
    /// It is covered by the request, but its parent has not arrived.
    Covered,
    /// It is named, and not far from what is being sent.
    Named,
    /// It has arrived, and is verified soon.
    Arrived,
}

/// A block that waits for its parent.
#[derive(Debug)]
struct EarlyBlock {
    cid: Cid,
    payload: Payload,
    budget_bytes: u64,
    memory: Option<OwnedSemaphorePermit>,
}

/// An answer that waits for its parent.
#[derive(Debug)]
enum Early {
    Block(Box<EarlyBlock>),
    Absent(Cid),
    /// It was dropped for lack of room. Its bytes are given back when it is named, so a peer cannot send ever more.
    Dropped {
        cid: Cid,
        budget_bytes: u64,
    },
}

/// One transfer. See the module's documentation.
#[derive(Debug)]
pub struct Transfer {
    root: Cid,
    path: Vec<String>,
    scope: ScopeOptions,
    naming: Naming,
    /// The blocks at the beginning of the path, after the names that are resolved: the root first.
    way: Vec<Cid>,
    early: HashMap<BlockId, Early>,
    early_bytes: u64,
    /// Blocks that are dropped when they arrive: those that the policy refuses, and named ones that are not needed.
    refused: HashSet<BlockId>,
    window_bytes: u64,
    granted_bytes: u64,
    received_bytes: u64,
    released_bytes: u64,
    unsolicited: usize,
    /// The largest block that has arrived, as it counts in the budget.
    largest_bytes: u64,
    /// The end of the last part of the file that has arrived.
    reached: u64,
    /// The end of the last block that has arrived, in depth-first order, by the sizes that nodes declare.
    passed: u64,
    /// Where in the file another transfer begins, which brings the rest.
    until: Option<u64>,
    /// Whether credit is given for what precedes that only, to a peer that sends as far as its budget goes.
    credit_ends: bool,
    /// The size of the file, once its root has arrived.
    file_bytes: Option<u64>,
    blocks: u64,
    /// Blocks that were verified, and are yet to be delivered or buffered.
    delivering: HashSet<BlockId>,
    /// Whether the server may know of blocks that nothing has named here: what is below a block that was dropped, or
    /// that was named again for another part of it. Then a block without a name is no offence.
    names_are_partial: bool,
    /// Whether no more credit is given, because other peers send the rest.
    is_capped: bool,
    /// Whether it has ended, so that it brings nothing more.
    has_ended: bool,
}

impl Transfer {
    /// The transfer of a request, whose budget is the window.
    pub fn new(request: &Request) -> Self {
        let Request { root, path, scope, budget_bytes, .. } = request;
        Self {
            root: *root,
            path: path.clone(),
            scope: *scope,
            naming: Naming::new(&Child::root(*root, path.clone(), *scope)),
            way: vec![*root],
            early: HashMap::new(),
            early_bytes: 0,
            refused: HashSet::new(),
            window_bytes: *budget_bytes,
            granted_bytes: *budget_bytes,
            received_bytes: 0,
            released_bytes: 0,
            unsolicited: 0,
            largest_bytes: 0,
            reached: 0,
            passed: 0,
            until: None,
            credit_ends: false,
            file_bytes: None,
            blocks: 0,
            delivering: HashSet::new(),
            names_are_partial: false,
            is_capped: false,
            has_ended: false,
        }
    }

    /// Takes an answer, and the memory that is counted for it.
    ///
    /// # Errors
    /// [`Violation`], with which the transfer has ended.
    pub fn arrived(&mut self, answer: Answer, memory: Option<OwnedSemaphorePermit>) -> Result<Arrival, Violation> {
        let bytes = answer.budget_bytes();
        self.received_bytes = self.received_bytes.saturating_add(bytes);
        if self.received_bytes > self.granted_bytes {
            self.has_ended = true;
            return Err(Violation::OverBudget);
        }
        self.largest_bytes = self.largest_bytes.max(bytes);
        match answer {
            Answer::Block { cid, data } => self.block_arrived(cid, Payload::Plain(data), bytes, memory),
            Answer::Packed(packed) => self.block_arrived(packed.cid, Payload::Packed(packed.stored), bytes, memory),
            Answer::Absent(cid) => self.absent(cid, bytes),
            Answer::End(status) => Ok(Arrival::End(status)),
            // It is put together before.
            Answer::Fragment(_) => self.unsolicited(bytes),
        }
    }

    fn block_arrived(
        &mut self,
        cid: Cid,
        payload: Payload,
        bytes: u64,
        memory: Option<OwnedSemaphorePermit>,
    ) -> Result<Arrival, Violation> {
        let Some(id) = self.naming.id(&cid) else { return self.unsolicited(bytes) };
        if self.is_refused(id, bytes) {
            return Ok(Arrival::Nothing);
        }
        match self.naming.known(id) {
            Known::Pending => {
                let early = EarlyBlock { cid, payload, budget_bytes: bytes, memory };
                Ok(Arrival::Verify(Box::new(self.begin_to_verify(id, early))))
            }
            Known::Verifying | Known::Past => self.unsolicited(bytes),
            Known::Unnamed if self.early.contains_key(&id) => self.unsolicited(bytes),
            Known::Unnamed if self.early.len() >= EARLY_MAX => self.unsolicited(bytes),
            Known::Unnamed => {
                if self.early_bytes.saturating_add(bytes) > self.window_bytes / EARLY_PART {
                    self.early.insert(id, Early::Dropped { cid, budget_bytes: bytes });
                } else {
                    self.early_bytes += bytes;
                    let early = EarlyBlock { cid, payload, budget_bytes: bytes, memory };
                    self.early.insert(id, Early::Block(Box::new(early)));
                }
                Ok(Arrival::Nothing)
            }
        }
    }

    fn begin_to_verify(&mut self, id: BlockId, block: EarlyBlock) -> Verify {
        let EarlyBlock { cid, payload, budget_bytes, memory } = block;
        let roles = self.naming.roles(id);
        self.naming.verify(id);
        Verify { cid, payload, memory, budget_bytes, id, roles }
    }

    /// A named block was dropped before it was verified, for lack of memory.
    pub fn dropped(&mut self, verify: &Verify) {
        self.names_are_partial |= has_links(&verify.cid);
        self.release(verify.budget_bytes);
        self.has_ended |= self.naming.settle(verify.id).is_err();
    }

    /// Counts a block that nothing has named.
    fn unsolicited(&mut self, bytes: u64) -> Result<Arrival, Violation> {
        self.release(bytes);
        self.unsolicited += 1;
        if self.unsolicited > UNSOLICITED_MAX {
            self.has_ended = true;
            return Err(if self.names_are_partial { Violation::Unnamed } else { Violation::Unsolicited });
        }
        Ok(Arrival::Nothing)
    }

    fn absent(&mut self, cid: Cid, bytes: u64) -> Result<Arrival, Violation> {
        let Some(id) = self.naming.id(&cid) else { return self.unsolicited(bytes) };
        if self.is_refused(id, bytes) {
            return Ok(Arrival::Nothing);
        }
        match self.naming.known(id) {
            Known::Pending => {
                self.release(bytes);
                self.has_ended |= self.naming.settle(id).is_err();
                Ok(Arrival::Absent(cid))
            }
            Known::Unnamed if !self.early.contains_key(&id) && self.early.len() < EARLY_MAX => {
                self.release(bytes);
                self.early.insert(id, Early::Absent(cid));
                Ok(Arrival::Nothing)
            }
            Known::Verifying | Known::Past | Known::Unnamed => self.unsolicited(bytes),
        }
    }

    /// A block was verified, and names its children. They are expanded by [`children`] without this state.
    ///
    /// # Errors
    /// [`TooManyBlocks`]: the transfer must end. The block is valid nevertheless.
    pub fn verified(&mut self, verify: &Verify, block: &Block, children: &[Child]) -> Result<Expanded, TooManyBlocks> {
        self.blocks += 1;
        if self.has_ended {
            return Ok(Expanded::default());
        }
        self.delivering.insert(verify.id);
        self.advance(verify, block, children);
        let mut expanded = Expanded::default();
        let mut place = self.naming.place(verify.id).map(|place| place.saturating_add(block.data().len() as u64));
        self.passed = self.passed.max(place.unwrap_or_default());
        let mut result = self.naming.settle(verify.id);
        for child in children {
            if result.is_err() {
                break;
            }
            self.names_are_partial |= self.is_named_again(child);
            match self.naming.name(child, place) {
                Ok(Some(id)) => self.wake(id, &mut expanded),
                Ok(None) => {}
                Err(error) => result = Err(error),
            }
            place = place.zip(child.declared_bytes).map(|(place, bytes)| place.saturating_add(bytes));
        }
        self.has_ended |= result.is_err();
        result.map(|()| expanded)
    }

    /// A verified block was delivered or buffered, so that a reader who has not received it will not.
    pub fn delivered(&mut self, verify: &Verify) {
        self.delivering.remove(&verify.id);
    }

    /// Children of a verified block that the policy refuses: they are neither named nor kept. Returns those that the
    /// server is to skip. What it has sent of them before it knows, and of what is below them, is no offence.
    pub fn refuse(&mut self, children: &[Child]) -> Vec<Cid> {
        let mut skipped = Vec::new();
        for child in children {
            let Some(id) = self.naming.id(&child.cid) else { continue };
            if self.naming.known(id) != Known::Unnamed {
                // It was named before the policy refused it. Its reader will be told.
                continue;
            }
            if self.refused.len() >= REFUSED_MAX {
                self.names_are_partial = true;
            } else if self.refused.insert(id) {
                self.names_are_partial |= has_links(&child.cid);
                skipped.push(child.cid);
                self.discard_early(id);
            }
        }
        skipped
    }

    /// A named block is not needed any more, of a server that cannot be told: it is dropped when it arrives.
    pub fn skip(&mut self, cid: &Cid) {
        let Some(id) = self.naming.id(cid) else { return };
        if self.naming.known(id) == Known::Pending && self.refused.len() < REFUSED_MAX {
            self.refused.insert(id);
        }
    }

    /// Another transfer brings the rest of the file from there on. A CAR is not read further; a peer gets no more credit
    /// than for what precedes it (`credit_ends`).
    pub fn end_at(&mut self, offset: u64, credit_ends: bool) {
        self.until = Some(self.until.map_or(offset, |until| until.min(offset)));
        self.credit_ends = credit_ends;
    }

    /// Whether it brings only what is dropped, or what another one brings.
    pub fn is_needless(&self) -> bool {
        self.until.is_some_and(|until| until <= self.reached) || !self.refused.is_empty() && self.missing() == 0
    }

    /// Whether another transfer brings the file from that byte on.
    pub fn ends_before(&self, offset: u64) -> bool {
        self.until.is_some_and(|until| until <= offset)
    }

    /// Whether a block lies where another transfer brings the rest, in all files of which it is a part.
    pub fn is_past_end(&self, verify: &Verify) -> bool {
        let mut ranges = verify.roles.iter().map(|(_, role)| role.range());
        !verify.roles.is_empty() && ranges.all(|range| range.is_some_and(|range| self.ends_before(range.start)))
    }

    /// Drops what has arrived of a refused block.
    fn discard_early(&mut self, id: BlockId) {
        let bytes = match self.early.remove(&id) {
            Some(Early::Block(block)) => {
                self.early_bytes -= block.budget_bytes;
                block.budget_bytes
            }
            Some(Early::Dropped { budget_bytes, .. }) => budget_bytes,
            Some(Early::Absent(_)) => 0,
            None => return,
        };
        self.is_refused(id, bytes);
    }

    /// Whether a block that has arrived is a refused one, which is dropped. It is expected once.
    fn is_refused(&mut self, id: BlockId, bytes: u64) -> bool {
        let is_refused = self.refused.remove(&id);
        if is_refused {
            self.release(bytes);
            self.has_ended |= self.naming.settle(id).is_err();
        }
        is_refused
    }

    /// Whether an inner node is named after it has arrived: perhaps for another part of it.
    fn is_named_again(&self, child: &Child) -> bool {
        let known = self.naming.id(&child.cid).map(|id| self.naming.known(id));
        has_links(&child.cid) && matches!(known, Some(Known::Verifying | Known::Past))
    }

    /// What arrived before it was named.
    fn wake(&mut self, id: BlockId, expanded: &mut Expanded) {
        match self.early.remove(&id) {
            Some(Early::Block(block)) => {
                self.early_bytes -= block.budget_bytes;
                expanded.verify.push(self.begin_to_verify(id, *block));
            }
            Some(Early::Absent(cid)) => {
                // The number of blocks is checked when the next one is settled.
                let _ = self.naming.settle(id);
                expanded.absent.push(cid);
            }
            Some(Early::Dropped { cid, budget_bytes }) => {
                self.release(budget_bytes);
                self.names_are_partial |= has_links(&cid);
                let _ = self.naming.settle(id);
                expanded.dropped.push(cid);
            }
            None => {}
        }
    }

    /// Notes how far the answer has got, in the file and on the path.
    fn advance(&mut self, verify: &Verify, block: &Block, children: &[Child]) {
        for (_, role) in &verify.roles {
            if let Some(range) = role.range() {
                self.reached = self.reached.max(range.start.saturating_add(block.data().len() as u64));
            }
            if role.is_entity() && self.file_bytes.is_none() {
                self.file_bytes = content::unixfs::file::file_size(block).ok();
            }
            let left = role.names_left();
            // A child shard is on the way of the same name.
            let next = children.iter().find(|child| child.role.names_left() < left);
            if let Some(next) = next {
                let resolved = self.path.len().saturating_sub(next.role.names_left());
                while self.way.len() < resolved {
                    // Names inside of a document.
                    self.way.push(verify.cid);
                }
                if self.way.len() == resolved {
                    self.way.push(next.cid);
                }
            }
        }
    }

    /// Bytes that were received are not kept any more.
    pub fn release(&mut self, budget_bytes: u64) {
        self.released_bytes = self.released_bytes.saturating_add(budget_bytes);
    }

    /// The credit that is to be given now, if it is enough to be worth a message.
    pub fn credit(&mut self) -> Option<u64> {
        let due = self.due()?;
        self.granted_bytes = self.granted_bytes.saturating_add(due);
        Some(due)
    }

    fn due(&self) -> Option<u64> {
        let due = self.released_bytes.saturating_add(self.window_bytes).saturating_sub(self.granted_bytes);
        let due = due.min(self.credit_left());
        let is_given = !self.has_ended && !self.is_capped && due >= self.window_bytes / CREDIT_PART;
        (due > 0 && is_given).then_some(due)
    }

    /// How much more credit may be given, if another transfer brings the rest: enough for what precedes that, with the
    /// nodes above it, for a block of any size, and for what is too little to be given as credit.
    fn credit_left(&self) -> u64 {
        let Some(until) = self.until.filter(|_| self.credit_ends) else { return u64::MAX };
        let rest = until.saturating_sub(self.position());
        let margin = BUDGET_BYTES_MIN.saturating_add(self.window_bytes / CREDIT_PART);
        let needed = if rest == 0 { 0 } else { rest.saturating_add(rest / INNER_PART).saturating_add(margin) };
        needed.saturating_sub(self.granted_bytes.saturating_sub(self.received_bytes))
    }

    /// The bytes that may be under way or buffered.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Widens the window.
    pub fn widen_window(&mut self, bytes: u64) {
        self.window_bytes = self.window_bytes.max(bytes);
    }

    /// Gives no more credit: the transfer brings what its budget allows, and other peers are asked for the rest.
    pub fn cap(&mut self) {
        self.is_capped = true;
    }

    /// Whether it has brought all that its budget allows, and gets no more.
    pub fn is_used_up(&self) -> bool {
        let is_past_end = self.credit_ends && self.until.is_some_and(|until| until <= self.position());
        (self.is_capped || is_past_end) && self.is_blocked()
    }

    /// Whether the server may not send more until something is released. Credit that is due is given soon.
    pub fn is_blocked(&self) -> bool {
        let granted = self.granted_bytes.saturating_add(self.due().unwrap_or(0));
        granted.saturating_sub(self.received_bytes) < BUDGET_BYTES_MIN
    }

    /// Whether the server cannot send another block as large as those before until a reader takes some of them.
    pub fn is_full(&self) -> bool {
        let granted = self.granted_bytes.saturating_add(self.due().unwrap_or(0));
        granted.saturating_sub(self.received_bytes) < self.largest_bytes
    }

    /// Whether the budget allows a block of so many bytes.
    pub fn has_room_for(&self, block_bytes: u64) -> bool {
        let after = self.received_bytes.saturating_add(block_bytes).saturating_add(ANSWER_OVERHEAD_BYTES);
        after <= self.granted_bytes
    }

    /// Whether blocks that wait for their parents leave no room for a block of so many bytes.
    pub fn is_full_of_early(&self, block_bytes: u64) -> bool {
        let early = self.early.values().map(|early| match early {
            Early::Block(block) => block.budget_bytes,
            Early::Dropped { budget_bytes, .. } => *budget_bytes,
            Early::Absent(_) => 0,
        });
        early.sum::<u64>().saturating_add(block_bytes).saturating_add(ANSWER_OVERHEAD_BYTES) > self.window_bytes
    }

    /// Whether blocks have arrived that nothing has named so far.
    pub fn has_unnamed(&self) -> bool {
        self.unsolicited > 0 || !self.early.is_empty()
    }

    /// Whether what is at the end of the path is named.
    pub fn has_resolved_path(&self) -> bool {
        self.way.len() > self.path.len()
    }

    /// Whether the server may know of blocks that nothing has named here.
    pub fn names_are_partial(&self) -> bool {
        self.names_are_partial
    }

    /// Whether a block has arrived before, or is an inline one, which need not arrive.
    pub fn is_repeat(&self, cid: &Cid) -> bool {
        let known = self.naming.id(cid).map(|id| self.naming.known(id));
        !matches!(known, Some(Known::Pending | Known::Unnamed))
    }

    /// The number of named blocks that have not arrived, and are needed.
    pub fn missing(&self) -> usize {
        let skipped = self.refused.iter().filter(|id| self.naming.known(**id) == Known::Pending).count();
        self.naming.pending().saturating_sub(skipped)
    }

    /// The request for the part of a file that has not arrived; `None` if something else is missing, or nothing.
    pub fn rest_of_file(&self) -> Option<ScopeOptions> {
        let from = self.naming.missing_from()?;
        let wanted = match self.scope.entity_bytes {
            Some(range) => Some(range.resolve(self.file_bytes?)?),
            None => None,
        };
        let from = i64::try_from(wanted.as_ref().map_or(from, |wanted| wanted.start.max(from))).ok()?;
        let to = wanted.and_then(|wanted| i64::try_from(wanted.end - 1).ok());
        Some(ScopeOptions { entity_bytes: Some(EntityBytes::new(from, to).ok()?), ..self.scope })
    }

    /// Whether it will bring a block that a reader has requested, with what the reader will request after it.
    pub fn prospect(&self, key: &BlockKey, ahead: Option<&ReadAhead>) -> Prospect {
        if self.has_ended {
            return Prospect::None;
        }
        let id = self.naming.id_of(key);
        match self.naming.known(id) {
            Known::Pending if self.refused.contains(&id) => Prospect::None,
            Known::Pending if self.is_near(self.naming.offset(id)) => Prospect::Named,
            Known::Verifying => Prospect::Arrived,
            Known::Past if self.delivering.contains(&id) => Prospect::Arrived,
            Known::Pending | Known::Past => Prospect::None,
            Known::Unnamed if matches!(self.early.get(&id), Some(Early::Block(..))) => Prospect::Arrived,
            Known::Unnamed if ahead.is_some_and(|ahead| self.covers(ahead)) => Prospect::Covered,
            Known::Unnamed => Prospect::None,
        }
    }

    /// Whether it has brought a block, and does not bring it again.
    pub fn has_passed(&self, key: &BlockKey) -> bool {
        let id = self.naming.id_of(key);
        !self.has_ended && self.naming.known(id) == Known::Past && !self.delivering.contains(&id)
    }

    /// About how many bytes come before a block that it brings, in depth-first order. `None` if that is not known, or
    /// more than a reader waits for.
    pub fn distance(&self, key: &BlockKey, ahead: Option<&ReadAhead>) -> Option<u64> {
        let id = self.naming.id_of(key);
        let in_file = |offset: u64| offset.saturating_sub(self.position());
        let distance = match self.naming.known(id) {
            Known::Pending => match self.naming.offset(id) {
                Some(offset) => in_file(offset),
                None => self.naming.place(id)?.saturating_sub(self.passed),
            },
            Known::Verifying | Known::Past => 0,
            Known::Unnamed => in_file(first_byte(&ahead?.scope)?),
        };
        (distance <= self.window_bytes * REACH_WINDOWS).then_some(distance)
    }

    fn is_near(&self, offset: Option<u64>) -> bool {
        if self.until.zip(offset).is_some_and(|(until, offset)| until <= offset) {
            return false;
        }
        let rest = self.granted_bytes.saturating_sub(self.received_bytes);
        let reach = match self.is_capped {
            true => rest.checked_sub(CAPPED_MARGIN_BYTES),
            false => Some(self.window_bytes * REACH_WINDOWS),
        };
        reach.is_some_and(|reach| offset.is_none_or(|offset| offset.saturating_sub(self.position()) <= reach))
    }

    /// The first byte of the range.
    pub fn begin(&self) -> u64 {
        first_byte(&self.scope).unwrap_or(0)
    }

    /// The end of what it brings of a file, as far as that is known.
    pub fn end_of_file(&self) -> u64 {
        let range = self.scope.entity_bytes;
        let end = match range.map(|range| range.bounds().1) {
            Some(Some(to @ 0..)) => u64::try_from(to).ok().map(|to| to.saturating_add(1)),
            _ => None,
        };
        let rest = self.granted_bytes.saturating_sub(self.received_bytes);
        let budget_end = self.is_capped.then(|| self.position().saturating_add(rest));
        [end, self.file_bytes, self.until, budget_end].into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Where it is in the file: what precedes it was brought, or was not requested.
    pub fn position(&self) -> u64 {
        self.reached.max(self.begin())
    }

    /// The answer has got to that byte of the file.
    #[cfg(test)]
    pub fn reach(&mut self, offset: u64) {
        self.reached = offset;
    }

    /// Whether the request covers what a reader requests first, and that is not far from what is being sent.
    pub fn covers(&self, ahead: &ReadAhead) -> bool {
        self.includes(ahead) && self.is_near(first_byte(&ahead.scope))
    }

    /// The names that are left from a block on, which is on the way to the end of the path.
    fn path_from(&self, root: &Cid) -> Option<&[String]> {
        let at = self.way.iter().position(|cid| cid.hash() == root.hash())?;
        self.path.get(at..)
    }

    /// Whether it brings a part of the file, or all of it, of which a reader requests a part.
    pub fn is_of_file(&self, ahead: &ReadAhead) -> bool {
        let are_files = [&self.scope, &ahead.scope].into_iter().all(|scope| scope.scope.is_entity());
        are_files && self.path_from(&ahead.root).is_some_and(|rest| *rest == ahead.path[..])
    }

    /// Whether it is past that byte of its file by more than what can be buffered.
    pub fn is_far_past(&self, offset: u64) -> bool {
        self.position().saturating_sub(offset) > self.window_bytes
    }

    /// Whether the request covers what a reader requests first.
    pub fn includes(&self, ahead: &ReadAhead) -> bool {
        let Some(rest) = self.path_from(&ahead.root) else { return false };
        if *rest != ahead.path[..] {
            // The reader requests fewer names, for their blocks alone.
            return ahead.scope.scope == DagScope::Block && rest.starts_with(&ahead.path);
        }
        scope_includes(&self.scope, &ahead.scope)
    }

    /// Ends it from this side.
    pub fn stop(&mut self) {
        self.has_ended = true;
        self.forget();
    }

    /// Releases what only a transfer that goes on needs.
    fn forget(&mut self) {
        self.early = HashMap::new();
        self.early_bytes = 0;
        self.refused = HashSet::new();
        self.naming.clear();
    }

    /// The approximate memory of what is named, in bytes.
    pub fn names_bytes(&self) -> usize {
        self.naming.memory_bytes()
    }

    /// The number of blocks that were verified.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The bytes of the file that are in the range, once its size is known: for the number of streams.
    pub fn expected_bytes(&self) -> Option<u64> {
        expected_bytes(&self.scope, self.file_bytes)
    }

    /// Ends it: blocks that still wait for their parents were unsolicited.
    ///
    /// # Errors
    /// [`Violation::Unsolicited`] if there are too many of them after a complete answer.
    pub fn end(&mut self, status: EndStatus) -> Result<(), Violation> {
        self.has_ended = true;
        let early = self.early.len();
        // If a block cannot be decoded here, its children are not known here.
        let is_offence = status == EndStatus::Complete && self.naming.pending() == 0 && !self.names_are_partial;
        self.forget();
        if is_offence && self.unsolicited + early > UNSOLICITED_MAX { Err(Violation::Unsolicited) } else { Ok(()) }
    }

    /// Whether it brings nothing more.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The root of the request.
    pub fn root(&self) -> &Cid {
        &self.root
    }
}

impl Verify {
    /// Where it begins in its file, if it is a part of one.
    pub fn offset(&self) -> Option<u64> {
        self.roles.iter().find_map(|(_, role)| role.range().map(|range| range.start))
    }

    /// Where it and what is below it end in their file, if it is a part of one.
    pub fn end(&self) -> Option<u64> {
        self.roles.iter().filter_map(|(_, role)| role.range().map(|range| range.end)).max()
    }

    /// Takes the payload, to be unpacked and hashed.
    pub fn take_payload(&mut self) -> Payload {
        std::mem::replace(&mut self.payload, Payload::Plain(Bytes::new()))
    }
}

/// The children of a block that is verified, for all ways in which it is named.
pub fn children(verify: &Verify, block: &Block) -> Vec<Child> {
    let mut all = Vec::new();
    for (codec, role) in &verify.roles {
        let cid = if *codec == block.cid().codec() { *block.cid() } else { Cid::new_v1(*codec, *block.cid().hash()) };
        let Some(block) = block.under(&cid) else { continue };
        // A block that cannot be decoded names nothing; its reader gets the error.
        let Ok(Some(children)) = scope::expand(&block, role) else { continue };
        collect(children, &mut all);
    }
    all
}

/// Adds children, and one more than can be pending at most.
fn collect(mut children: ChildIter, all: &mut Vec<Child>) {
    while all.len() <= PENDING_MAX
        && let Ok(Some(child)) = children.next_child()
    {
        all.push(child);
    }
}

/// The bytes of a file that a scope needs, if they are known.
pub fn expected_bytes(scope: &ScopeOptions, file_bytes: Option<u64>) -> Option<u64> {
    match (scope.entity_bytes, file_bytes) {
        (Some(range), Some(size)) => Some(range.resolve(size).map_or(0, |range| range.end - range.start)),
        (None, size) => size,
        (Some(range), None) => match range.bounds() {
            (from @ 0.., Some(to @ 0..)) => Some(u64::try_from(to - from).unwrap_or(0).saturating_add(1)),
            (from @ ..0, None) => Some(from.unsigned_abs()),
            _ => None,
        },
    }
}

/// The first byte of the range of a scope, if it is not counted from the end of the file.
pub(super) fn first_byte(scope: &ScopeOptions) -> Option<u64> {
    scope.entity_bytes.and_then(|bytes| u64::try_from(bytes.bounds().0).ok())
}

/// Whether the blocks of a scope include those of another, or the first of them.
fn scope_includes(all: &ScopeOptions, part: &ScopeOptions) -> bool {
    match (all.scope, part.scope) {
        (_, DagScope::Block) | (DagScope::All, _) => true,
        (DagScope::Entity, DagScope::Entity | DagScope::File) | (DagScope::File, DagScope::File) => {
            begins_within(all.entity_bytes, part.entity_bytes)
        }
        (DagScope::Entity | DagScope::File | DagScope::Block, _) => false,
    }
}

/// Whether a range begins within another. That is enough for the block that a reader requests, which is the first one.
fn begins_within(all: Option<EntityBytes>, part: Option<EntityBytes>) -> bool {
    let Some((from, to)) = all.map(|all| all.bounds()) else { return true };
    let part_from = part.map_or(0, |part| part.bounds().0);
    // Both count from the same end of the file, or the other range begins at its beginning.
    let begins_after = (from < 0) == (part_from < 0) && from <= part_from || from == 0;
    let is_before_end = to.is_none_or(|to| (to < 0) == (part_from < 0) && part_from <= to);
    begins_after && is_before_end
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
