//! Pinned values made smaller in the background, by a higher level of zstd than there is time for when they come.
//!
//! Goals: the processor works at it for at most a quarter of the time; what was tried once is not tried again; a block is
//! at every moment on the disk.
//!
//! Pinned values are only ever appended to the youngest of their segments, so one place tells which of them were tried. What
//! became smaller is appended too, and tried once more, in vain.
//!
//! Non-goals: cached values, which are gone before it pays.

use super::schema::{KEY_TRIED, Kind, PLACES, Place, TriedRecord};
use super::scrub::{Looked, look, rest};
use super::store::Store;
use super::writer::Command;
use super::{Disk, StoreError};
pub use crate::reports::Recompressed;
use crate::reports::raw_cid;
use crate::stored::{Encoder, Options, Stored};
use content::BlockKey;
use std::collections::VecDeque;
use std::time::Instant;

/// A step ends when it has read this much: about a fifth of a second at the highest levels.
const STEP_BYTES: u64 = 256 * 1024;

/// Steps between two notes of how far it has come.
const REMEMBER_STEPS: u64 = 32;

/// One value that became smaller.
struct Smaller {
    key: BlockKey,
    place: Place,
    value: Stored,
    saved_bytes: u64,
}

/// What is still to be done, and with what.
struct Work {
    encoder: Encoder,
    /// Pinned segments and where they end, oldest first.
    segments: VecDeque<(u32, u32)>,
    /// What lies before it is done.
    at: Place,
    read_bytes: u64,
    blocks: u64,
    smaller: Vec<Smaller>,
}

impl Disk {
    /// Tries a level of zstd on every pinned value that was not tried at it before, at `bytes_per_second` or as fast as it
    /// goes, and replaces those that become smaller by enough. Dropping the future interrupts it; it goes on from there when it
    /// is called again.
    ///
    /// # Errors
    /// [`StoreError::Closed`], or what the disk said of the index.
    pub async fn recompress_pinned(
        &self,
        level: u8,
        bytes_per_second: Option<u64>,
    ) -> Result<Recompressed, StoreError> {
        let mut done = Recompressed::default();
        let mut work = self.read(move |store| Work::find(store, level)).await?;
        for step in 1_u64.. {
            let begun = Instant::now();
            work = self.read(move |store| work.step(store)).await?;
            done.blocks += std::mem::take(&mut work.blocks);
            for smaller in std::mem::take(&mut work.smaller) {
                done.smaller += 1;
                done.saved_bytes += smaller.saved_bytes;
                self.count_recompressed(smaller.saved_bytes);
                let Smaller { key, place, value, .. } = smaller;
                let room = self.queue().room(value.value().len()).await?;
                self.queue().send(Command::Replace { key, place, value, room })?;
            }
            let is_done = work.segments.is_empty();
            if is_done || step % REMEMBER_STEPS == 0 {
                let record = TriedRecord { level, before: work.at }.to_bytes().to_vec();
                self.queue().send(Command::Remember { key: KEY_TRIED, record })?;
            }
            if is_done {
                break;
            }
            let read_bytes = std::mem::take(&mut work.read_bytes);
            tokio::time::sleep(rest(read_bytes, begun.elapsed(), bytes_per_second)).await;
        }
        self.flush().await?;
        Ok(done)
    }
}

impl Work {
    /// What there is to do now; what is pinned from now on is for the next time.
    fn find(store: &Store, level: u8) -> Result<Self, StoreError> {
        let tried = store.tried_record()?;
        let at = if tried.level == level { tried.before } else { Place::default() };
        let pinned = store.segments()?.into_iter().filter(|(_, record)| record.kind == Kind::Pinned);
        let left = pinned.filter(|(segment, record)| at < Place { segment: *segment, offset: record.written });
        Ok(Self {
            encoder: Encoder::new(Options { level: i32::from(level) }).map_err(StoreError::io)?,
            segments: left.map(|(segment, record)| (segment, record.written)).collect(),
            at,
            read_bytes: 0,
            blocks: 0,
            smaller: Vec::new(),
        })
    }

    /// Some values of the first segment.
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
        let Looked::Found { bytes, value } = look(store, &key, place)? else { return Ok(()) };
        self.read_bytes += bytes;
        self.blocks += 1;
        // What is damaged is for the scrub.
        let Ok(stored) = value else { return Ok(()) };
        if let Ok(Some(value)) = self.encoder.recompress(&raw_cid(&key), &stored) {
            let saved_bytes = stored.value().len().saturating_sub(value.value().len()) as u64;
            self.smaller.push(Smaller { key, place, value, saved_bytes });
        }
        Ok(())
    }
}
