//! Losses of pinned blocks: the batch that removes a block makes its pins partial, so that no incomplete pin is
//! reported complete.
//!
//! A loss needs a look-up of each pin that has the block. The index has no rows from pin IDs to roots, so the roots of
//! all pins are read at the first loss, and take some 100 bytes each in memory from then on.

use super::super::StoreError;
use super::super::schema::{DAMAGED, IndexRecord, KEY_MEMBERS, META, PINS, PINS_BY_BLOCK, PinId, PinRecord, take_u64};
use super::super::scrub;
use super::group::Group;
use super::{CHUNK_ROWS, Writer};
use crate::pins::PinState;
use content::{BlockKey, Cid};
use std::collections::{BTreeMap, HashMap};
use tracing::{error, warn};

/// The roots of pins, as they are written in the index.
pub(super) type Roots = HashMap<PinId, Box<[u8]>>;

impl Writer {
    /// Stages the removal of a block that pins may have.
    pub(super) fn stage_loss(&self, group: &mut Group, key: &BlockKey, indexed: IndexRecord) -> Result<(), StoreError> {
        for (pin, root) in self.pins_with(key)? {
            let Some(record) = self.pin(group, root)?.filter(|record| record.id == pin) else { continue };
            group.lost.push((pin, root));
            self.stage_partial(group, root, record)?;
        }
        self.stage_removal(group, key, indexed)
    }

    fn stage_partial(&self, group: &mut Group, root: Cid, record: PinRecord) -> Result<(), StoreError> {
        if record.state == PinState::Complete {
            self.stage_pin(group, root, PinRecord { state: PinState::Partial, ..record })?;
        }
        Ok(())
    }

    /// Stages the change notifications of pins that get a missing block back.
    pub(super) fn stage_return(&self, group: &mut Group, key: &BlockKey) -> Result<(), StoreError> {
        if self.losses.any() {
            group.returned.extend(self.pins_with(key)?.into_iter().map(|(_, root)| root));
        }
        Ok(())
    }

    /// The pins that have a block, without temporary pins, as far as they are written.
    fn pins_with(&self, key: &BlockKey) -> Result<Vec<(PinId, Cid)>, StoreError> {
        let block = key.to_bytes();
        let mut pins = Vec::new();
        for row in self.store.keys_with_prefix(PINS_BY_BLOCK, &block)? {
            let row = row?;
            let Some(pin) = row.get(block.len()..).and_then(|mut id| take_u64(&mut id)).map(PinId) else { continue };
            if let Some(root) = self.root_of(pin)? {
                pins.push((pin, root));
            }
        }
        Ok(pins)
    }

    fn root_of(&self, pin: PinId) -> Result<Option<Cid>, StoreError> {
        let mut roots = self.roots.borrow_mut();
        let known = match &mut *roots {
            Some(known) => known,
            unread => unread.insert(self.read_roots()?),
        };
        Ok(known.get(&pin).and_then(|root| Cid::try_from(&**root).ok()))
    }

    fn read_roots(&self) -> Result<Roots, StoreError> {
        let mut roots = Roots::new();
        for row in self.store.rows_from(PINS, &[])? {
            let (root, record) = row?;
            if let Some(record) = PinRecord::from_bytes(&record) {
                roots.insert(record.id, root);
            }
        }
        Ok(roots)
    }

    /// Records the root of a new pin.
    pub(super) fn add_root(&self, pin: PinId, root: &Cid) {
        if let Some(roots) = &mut *self.roots.borrow_mut() {
            roots.insert(pin, root.to_bytes().into());
        }
    }

    /// Removes the root and the loss count of a removed pin.
    pub(super) fn remove_root(&mut self, pin: PinId) {
        self.losses.remove(pin);
        if let Some(roots) = &mut *self.roots.borrow_mut() {
            roots.remove(&pin);
        }
    }

    /// Makes the pins of these roots partial, because blocks are missing.
    pub(super) fn mark_partial(&mut self, roots: &[Cid]) -> Result<(), StoreError> {
        for roots in roots.chunks(CHUNK_ROWS) {
            let mut group = self.begin();
            for root in roots {
                let Some(record) = self.pin(&group, *root)?.filter(|record| record.state == PinState::Complete) else {
                    continue;
                };
                group.lost.push((record.id, *root));
                self.stage_partial(&mut group, *root, record)?;
            }
            self.write(&mut group)?;
        }
        Ok(())
    }

    /// Checks done once when a store is opened: blocks that an offline check found corrupt are deleted; and if the
    /// index was repaired, rebuilt, or written by a release that did not record losses, every pin is compared with the
    /// stored blocks.
    pub(super) fn check_members(&mut self) -> Result<(), StoreError> {
        while self.delete_marked_corrupt()? {}
        if self.store.holds(META, KEY_MEMBERS)? {
            return Ok(());
        }
        // The policy is not known yet: the service that is notified tells withheld blocks from lost ones.
        let lacking = scrub::lacking(&self.store, &BTreeMap::new(), &|_| false)?;
        for pin in &lacking {
            warn!(
                root = %pin.root, missing = pin.missing, blocks = pin.blocks,
                "a pin is incomplete: blocks are missing"
            );
        }
        let roots: Vec<Cid> = lacking.iter().map(|pin| pin.root).collect();
        self.mark_partial(&roots)?;
        let mut group = self.begin();
        group.batch.put_cf(self.store.family(META)?, KEY_MEMBERS, []);
        self.write(&mut group)
    }

    /// Deletes some of the blocks marked as corrupt, and returns whether there were any.
    fn delete_marked_corrupt(&mut self) -> Result<bool, StoreError> {
        let rows = self.store.keys_with_prefix(META, DAMAGED)?.take(CHUNK_ROWS);
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let mut group = self.begin();
        for row in &rows {
            if let Some(key) = BlockKey::from_bytes(&row[DAMAGED.len()..]) {
                self.delete_if_corrupt(&key)
                    .inspect_err(|error| error!(?key, %error, "a corrupt block cannot be deleted"))?;
            }
            group.batch.delete_cf(self.store.family(META)?, row);
        }
        self.write(&mut group)?;
        Ok(!rows.is_empty())
    }

    /// Whether some pin is partial.
    pub(super) fn has_partial_pins(&self) -> Result<bool, StoreError> {
        for row in self.store.rows_from(PINS, &[])? {
            if PinRecord::from_bytes(&row?.1).is_some_and(|record| record.state == PinState::Partial) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
