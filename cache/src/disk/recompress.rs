//! Recompresses pinned values in the background, with a higher level of zstd than there is time for when they are
//! written.
//!
//! Goals: at most a quarter of one core is used; a value is tried at most once per level; every block is on the disk at
//! every moment.
//!
//! Pinned values are only ever appended to the newest of their segments, so one place separates the values that were
//! tried from the others. Recompressed values are appended too, and tried once more without effect.
//!
//! Non-goals: cached values, which are evicted before it pays.

use super::schema::{KEY_TRIED, Kind, PLACES, Place, RecompressRecord};
use super::scrub::{PlaceCheck, check_place, pause_after};
use super::store::Store;
use super::writer::Change;
use super::{Disk, StoreError};
pub use crate::reports::Recompressed;
use crate::reports::raw_cid;
use content::BlockKey;
use content::stored::{CompressionOptions, Encoder, Stored};
use std::collections::VecDeque;
use std::time::Instant;

/// The maximum bytes read in a step: about a fifth of a second at the highest levels.
const STEP_BYTES: u64 = 256 * 1024;

/// Steps between two saves of the progress.
const SAVE_EVERY_STEPS: u64 = 32;

/// A value that became smaller.
struct Smaller {
    key: BlockKey,
    place: Place,
    value: Stored,
    saved_bytes: u64,
}

/// The remaining work.
struct Work {
    encoder: Encoder,
    /// Pinned segments and their lengths, oldest first.
    segments: VecDeque<(u32, u32)>,
    /// Values before this place are done.
    at: Place,
    read_bytes: u64,
    blocks: u64,
    smaller: Vec<Smaller>,
}

impl Disk {
    /// Recompresses pinned values with a zstd level that was not tried before, at `bytes_per_second` or unlimited, and
    /// replaces those that become sufficiently smaller. Dropping the future interrupts it; the next call resumes.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or an error of the index.
    pub async fn recompress_pinned(
        &self,
        level: u8,
        bytes_per_second: Option<u64>,
    ) -> Result<Recompressed, StoreError> {
        let mut done = Recompressed::default();
        let mut work = self.read(move |store| Work::find(store, level)).await?;
        for step in 1_u64.. {
            let start = Instant::now();
            work = self.read(move |store| work.step(store)).await?;
            done.blocks += std::mem::take(&mut work.blocks);
            for smaller in std::mem::take(&mut work.smaller) {
                done.smaller += 1;
                done.saved_bytes += smaller.saved_bytes;
                self.count_recompressed(smaller.saved_bytes);
                let Smaller { key, place, value, .. } = smaller;
                let room = self.queue().room(value.value().len()).await?;
                self.queue().send(Change::Replace { key, place, value, room })?;
            }
            let is_done = work.segments.is_empty();
            if is_done || step % SAVE_EVERY_STEPS == 0 {
                let record = RecompressRecord { level, before: work.at }.to_bytes().to_vec();
                self.queue().send(Change::PutMeta { key: KEY_TRIED, record })?;
            }
            if is_done {
                break;
            }
            let read_bytes = std::mem::take(&mut work.read_bytes);
            tokio::time::sleep(pause_after(read_bytes, start.elapsed(), bytes_per_second)).await;
        }
        self.flush().await?;
        Ok(done)
    }
}

impl Work {
    /// The values to try now; values pinned later are left for the next call.
    fn find(store: &Store, level: u8) -> Result<Self, StoreError> {
        let tried = store.recompress_record()?;
        let at = if tried.level == level { tried.before } else { Place::default() };
        let pinned = store.segments()?.into_iter().filter(|(_, record)| record.kind == Kind::Pinned);
        let left = pinned.filter(|(segment, record)| at < Place { segment: *segment, offset: record.written });
        Ok(Self {
            encoder: Encoder::new(CompressionOptions { level: i32::from(level) }).map_err(StoreError::io)?,
            segments: left.map(|(segment, record)| (segment, record.written)).collect(),
            at,
            read_bytes: 0,
            blocks: 0,
            smaller: Vec::new(),
        })
    }

    /// Tries some values of the first segment.
    fn step(mut self, store: &Store) -> Result<Self, StoreError> {
        let Some((segment, end)) = self.segments.front().copied() else { return Ok(self) };
        let end = Place { segment, offset: end };
        self.at = self.at.max(Place { segment, offset: 0 });
        for row in store.rows_from(PLACES, &self.at.to_key())? {
            let (place, block) = row?;
            let (Some(place), Some(key)) = (Place::from_key(&place), BlockKey::from_bytes(&block)) else { continue };
            if place >= end {
                break;
            }
            if self.read_bytes >= STEP_BYTES {
                self.at = place;
                return Ok(self);
            }
            self.try_value(store, key, place)?;
        }
        self.at = end;
        self.segments.pop_front();
        Ok(self)
    }

    fn try_value(&mut self, store: &Store, key: BlockKey, place: Place) -> Result<(), StoreError> {
        let PlaceCheck::Found { bytes, value } = check_place(store, &key, place)? else { return Ok(()) };
        self.read_bytes += bytes;
        self.blocks += 1;
        // Corrupt values are handled by the scrub. The frame of a slice is that of its base.
        let Ok(stored) = value else { return Ok(()) };
        if store.index(&key.to_bytes())?.is_some_and(|record| record.base.is_some()) {
            return Ok(());
        }
        if let Ok(Some(value)) = self.encoder.recompress(&raw_cid(&key), &stored) {
            let saved_bytes = stored.value().len().saturating_sub(value.value().len()) as u64;
            self.smaller.push(Smaller { key, place, value, saved_bytes });
        }
        Ok(())
    }
}
