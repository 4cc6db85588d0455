//! Pins, their members and temporary pins. A temporary pin has no root and no record: `meta` lists it as a pin whose
//! members are to be unpinned, so that nothing stays behind if the process is killed.

use super::super::StoreError;
use super::super::schema::{
    BLOCKS_BY_PIN, Kind, META, PINS, PINS_BY_BLOCK, PinId, PinRecord, block_of_pin, member, pin_of_block, release_key,
};
use super::group::Group;
use super::{CHUNK_ROWS, Writer};
use crate::pins::{MemberFailure, PinAttempt, PinError, PinState, PinSummary};
use crate::queue::Reply;
use content::{Block, BlockKey, Cid};
use std::sync::Arc;
use tracing::warn;

impl Writer {
    pub(super) fn stage_begin(&self, group: &mut Group, root: Cid, name: Option<String>) -> Result<PinId, StoreError> {
        let record = match self.pin(group, root)? {
            Some(record) if name.is_none() => return Ok(record.id),
            Some(record) => PinRecord { name, ..record },
            None => PinRecord::new(group.counters.allocate_pin_id(), name),
        };
        let pin = record.id;
        self.add_root(pin, &root);
        self.stage_pin(group, root, record.clone())?;
        group.journal_entries.push((root, record));
        Ok(pin)
    }

    pub(super) fn stage_temporary_pin(&self, group: &mut Group) -> Result<PinId, StoreError> {
        let meta = self.store.family(META)?;
        let pin = group.counters.allocate_pin_id();
        group.batch.put_cf(meta, release_key(pin), []);
        Ok(pin)
    }

    pub(super) fn stage_member(
        &mut self,
        group: &mut Group,
        block: &Block,
        attempt: &PinAttempt,
    ) -> Result<(), MemberFailure> {
        let Some(key) = block.key() else { return Ok(()) };
        let record = self.record_of(group, attempt)?;
        if self.held(group, &key)?.is_none_or(|indexed| !indexed.pinned()) {
            self.stage_block(group, key, block, Kind::Pinned)?;
        }
        self.stage_membership(group, key, block.data().len(), attempt, record)?;
        self.stage_base_membership(group, &key, attempt)
    }

    /// Stages a block that is already stored as a member, without reading it unless it must be moved to a pinned
    /// segment.
    pub(super) fn stage_stored_member(
        &mut self,
        group: &mut Group,
        cid: &Cid,
        attempt: &PinAttempt,
    ) -> Result<(), MemberFailure> {
        let Some(key) = BlockKey::of(cid) else { return Ok(()) };
        let record = self.record_of(group, attempt)?;
        let indexed = self.held(group, &key)?.ok_or(MemberFailure::Missing(*cid))?;
        if !indexed.pinned() {
            self.stage_move(group, key, indexed, Kind::Pinned)?;
            // The move may have found it corrupt.
            self.index(group, &key)?.ok_or(MemberFailure::Missing(*cid))?;
        }
        self.stage_membership(group, key, indexed.shape.block_bytes(), attempt, record)?;
        self.stage_base_membership(group, &key, attempt)
    }

    /// Stages the rows that make a block a member, unless it is one.
    pub(super) fn stage_membership(
        &self,
        group: &mut Group,
        key: BlockKey,
        block_bytes: usize,
        attempt: &PinAttempt,
        record: Option<PinRecord>,
    ) -> Result<(), StoreError> {
        let bytes = key.to_bytes();
        let rows = (pin_of_block(&bytes, attempt.pin), block_of_pin(attempt.pin, &bytes));
        if group.members.contains(&(key, attempt.pin)) || self.store.holds(PINS_BY_BLOCK, &rows.0)? {
            return Ok(());
        }
        group.batch.put_cf(self.store.family(PINS_BY_BLOCK)?, rows.0, []);
        group.batch.put_cf(self.store.family(BLOCKS_BY_PIN)?, rows.1, []);
        group.members.insert((key, attempt.pin));
        if let (Some(root), Some(mut record)) = (attempt.root, record) {
            record.blocks += 1;
            record.bytes += block_bytes as u64;
            self.stage_pin(group, root, record)?;
        }
        Ok(())
    }

    /// The record of an attempt's pin; `None` for a temporary pin.
    pub(super) fn record_of(&self, group: &Group, attempt: &PinAttempt) -> Result<Option<PinRecord>, MemberFailure> {
        let Some(root) = attempt.root else { return Ok(None) };
        match self.pin(group, root)? {
            Some(record) if record.id == attempt.pin => Ok(Some(record)),
            _ => Err(MemberFailure::Removed),
        }
    }

    pub(super) fn stage_finish(
        &self,
        group: &mut Group,
        attempt: Arc<PinAttempt>,
        reply: Reply<Result<PinSummary, PinError>>,
    ) {
        let summary = match self.finished(group, &attempt) {
            Ok(summary) => summary,
            Err(error) => {
                _ = reply.send(Err(error));
                return;
            }
        };
        group.sync = true;
        let notice = move |written: Result<(), StoreError>| {
            // Members of the same group succeed or fail with it; failures in earlier groups are recorded in the
            // attempt.
            _ = reply.send(written.map_err(PinError::Store).and_then(|()| attempt.check()).map(|()| summary));
        };
        group.notices.push(Box::new(notice));
    }

    fn finished(&self, group: &mut Group, attempt: &PinAttempt) -> Result<PinSummary, PinError> {
        attempt.check()?;
        self.losses.check(attempt)?;
        let Some(root) = attempt.root else { return Err(PinError::Store(StoreError::Closed)) };
        let record = self.pin(group, root)?.filter(|record| record.id == attempt.pin);
        let record = record.ok_or(PinError::Removed { root })?;
        let record = PinRecord { packed: attempt.packed().or(record.packed), ..record };
        for root in record.roots(root) {
            if let Some(key) = BlockKey::of(&root)
                && !group.members.contains(&(key, attempt.pin))
                && !self.store.holds(PINS_BY_BLOCK, &pin_of_block(&key.to_bytes(), attempt.pin))?
            {
                return Err(PinError::RootMissing { root });
            }
        }
        if record.packed.is_some() {
            self.stage_schema(group)?;
        }
        let record = PinRecord { state: PinState::Complete, ..record };
        let summary = record.summary(root);
        self.stage_pin(group, root, record.clone())?;
        group.journal_entries.push((root, record));
        Ok(summary)
    }

    /// Removes a pin durably, with this ID if one is given, then replies; its members are unpinned later, in chunks.
    pub(super) fn remove(&mut self, root: Cid, id: Option<u64>, reply: Reply<Result<bool, StoreError>>) {
        let removed = self.remove_record(root, id);
        if let Ok(Some(pin)) = removed {
            self.remove_root(pin);
            self.unpin_queue.push_back(pin);
        }
        _ = reply.send(removed.map(|pin| pin.is_some()));
    }

    fn remove_record(&mut self, root: Cid, id: Option<u64>) -> Result<Option<PinId>, StoreError> {
        let found = self.store.pin(&root.to_bytes())?;
        let Some(record) = found.filter(|record| record.id.is_asked_for(id)) else { return Ok(None) };
        let mut group = self.begin();
        group.batch.delete_cf(self.store.family(PINS)?, root.to_bytes());
        group.batch.put_cf(self.store.family(META)?, release_key(record.id), []);
        group.sync = true;
        self.store.mark_pin_removed(record.id)?;
        self.write(&mut group).inspect_err(|_| self.store.restore_pin(record.id))?;
        self.store.set_packed(root, None);
        Ok(Some(record.id))
    }

    pub(super) fn has_to_unpin(&self) -> bool {
        self.may_unpin && !self.unpin_queue.is_empty()
    }

    /// Unpins some members of the first pin in the queue.
    pub(super) fn unpin_chunk(&mut self) {
        let Some(pin) = self.unpin_queue.front().copied() else { return };
        match self.unpin_members(pin) {
            Ok(members) => {
                self.unpin_error = None;
                if members == 0 {
                    self.unpin_queue.pop_front();
                    self.unpin_cursor.clear();
                }
            }
            Err(error) => {
                // Retried after another command; or, because of its row in `meta`, when the store is opened.
                if self.unpin_error.is_none() {
                    warn!(pin = pin.0, %error, "the members of a removed pin cannot be unpinned now; this is retried");
                }
                (self.may_unpin, self.unpin_error) = (false, Some(error));
            }
        }
    }

    fn unpin_members(&mut self, pin: PinId) -> Result<usize, StoreError> {
        let mut group = self.begin();
        let prefix = pin.0.to_be_bytes();
        let (mut members, mut last) = (0, None);
        // Without space, no value can be moved.
        let spare_hot = self.shortage_bytes() == 0;
        let from = if self.unpin_cursor.is_empty() { &prefix[..] } else { &self.unpin_cursor };
        for row in self.store.keys_with_prefix_from(BLOCKS_BY_PIN, &prefix, from)?.take(CHUNK_ROWS) {
            let row = row?;
            self.stage_unpin(&mut group, pin, &row, spare_hot)?;
            members += 1;
            last = Some(row);
            if group.full() {
                break;
            }
        }
        if members == 0 {
            group.batch.delete_cf(self.store.family(META)?, release_key(pin));
        }
        self.write(&mut group)?;
        if let Some(last) = last {
            self.unpin_cursor = last.into_vec();
        }
        Ok(members)
    }

    /// Unpins one member. If no other pin has the block, it is removed, or moved to the cache if it is in the RAM
    /// cache.
    fn stage_unpin(&self, group: &mut Group, pin: PinId, row: &[u8], spare_hot: bool) -> Result<(), StoreError> {
        let block = member(row, pin).unwrap_or_default();
        let key = BlockKey::from_bytes(block).ok_or_else(|| StoreError::corrupt("a pin's member is malformed"))?;
        let indexed = self.index(group, &key)?.filter(|indexed| indexed.pinned());
        group.batch.delete_cf(self.store.family(PINS_BY_BLOCK)?, pin_of_block(block, pin));
        group.batch.delete_cf(self.store.family(BLOCKS_BY_PIN)?, row);
        match indexed {
            Some(_) if self.has_pin(&key, Some(pin))? => Ok(()),
            // A block that cannot be moved is removed.
            Some(indexed)
                if spare_hot
                    && indexed.base.is_none()
                    && self.store.reference_bits.is_hot(&key)
                    && self.stage_move(group, key, indexed, Kind::Cached).is_ok() =>
            {
                Ok(())
            }
            Some(indexed) => self.stage_removal(group, &key, indexed),
            None => Ok(()),
        }
    }
}
