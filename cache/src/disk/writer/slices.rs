//! Slices: blocks whose frames are parts of other blocks, their bases.
//!
//! Every pin that has a slice has its base, so that unpinning never removes the base of a pinned slice. A slice whose
//! base is lost stays in the index, but counts as missing until the base is stored again.

use super::super::StoreError;
use super::super::schema::{IndexRecord, KEY_SCHEMA, Kind, META, SCHEMA};
use super::Writer;
use super::group::{Group, NewValue};
use crate::pins::{MemberFailure, PinAttempt};
use crate::reports::raw_cid;
use bytes::Bytes;
use content::BlockKey;
use content::stored::Slice;

impl Writer {
    /// Stages a block as a slice and as a member of a pin. A block that is pinned already stays as it is stored.
    pub(super) fn stage_slice(
        &mut self,
        group: &mut Group,
        key: BlockKey,
        slice: &Slice,
        attempt: &PinAttempt,
    ) -> Result<(), MemberFailure> {
        let record = self.record_of(group, attempt)?;
        let missing = || MemberFailure::Missing(raw_cid(&slice.base));
        self.index(group, &slice.base)?.filter(|base| base.base.is_none()).ok_or_else(missing)?;
        if self.held(group, &key)?.is_none_or(|indexed| !indexed.pinned()) {
            self.stage_schema(group)?;
            self.stage_return(group, &key)?;
            let value = [slice.to_value().map_err(StoreError::io)?, Bytes::new()];
            let (kind, shape) = (Kind::Pinned, slice.shape());
            self.stage_record(group, key, NewValue { kind, shape, base: Some(slice.base), value })?;
        }
        self.stage_membership(group, key, slice.shape().block_bytes(), attempt, record)?;
        self.stage_base_membership(group, &key, attempt)
    }

    /// Stages the base of a member as a member too, if the member is a slice.
    pub(super) fn stage_base_membership(
        &mut self,
        group: &mut Group,
        key: &BlockKey,
        attempt: &PinAttempt,
    ) -> Result<(), MemberFailure> {
        let Some(base) = self.index(group, key)?.and_then(|indexed| indexed.base) else { return Ok(()) };
        let missing = || MemberFailure::Missing(raw_cid(&base));
        let indexed = self.index(group, &base)?.ok_or_else(missing)?;
        if !indexed.pinned() {
            self.stage_move(group, base, indexed, Kind::Pinned)?;
            // The move may have found it corrupt.
            self.index(group, &base)?.ok_or_else(missing)?;
        }
        let record = self.record_of(group, attempt)?;
        Ok(self.stage_membership(group, base, indexed.shape.block_bytes(), attempt, record)?)
    }

    /// The index record of a block that can be read, as with [`super::super::store::Store::held`].
    pub(super) fn held(&self, group: &Group, key: &BlockKey) -> Result<Option<IndexRecord>, StoreError> {
        let Some(record) = self.index(group, key)? else { return Ok(None) };
        match record.base {
            Some(base) if self.index(group, &base)?.is_none() => Ok(None),
            _ => Ok(Some(record)),
        }
    }

    /// Stages the schema version of a store with slices and packed pins.
    pub(super) fn stage_schema(&self, group: &mut Group) -> Result<(), StoreError> {
        if self.store.schema() < SCHEMA && !group.raises_schema {
            group.batch.put_cf(self.store.family(META)?, KEY_SCHEMA, SCHEMA.to_be_bytes());
            group.raises_schema = true;
        }
        Ok(())
    }
}
