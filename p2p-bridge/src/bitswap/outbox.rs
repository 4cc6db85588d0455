//! [`Outbox`]: pending wantlist changes, of which only the latest for each CID is sent.
//!
//! Go peers treat a cancel and a want of the same CID in one message as a cancel, whatever the order.

use super::message::WantEntry;
use content::Cid;
use std::collections::HashMap;

/// Wantlist changes for one peer, in the order of the latest change of each CID.
#[derive(Debug, Default)]
pub struct Outbox {
    entries: Vec<Option<WantEntry>>,
    at: HashMap<Cid, usize>,
}

impl Outbox {
    /// Adds a change, which replaces a pending one of the same CID.
    pub fn push(&mut self, entry: WantEntry) {
        if let Some(earlier) = self.at.insert(entry.cid, self.entries.len()) {
            self.entries[earlier] = None;
        }
        self.entries.push(Some(entry));
        if self.entries.len() > 2 * self.at.len() + 16 {
            self.close_gaps();
        }
    }

    /// Adds changes.
    pub fn extend(&mut self, entries: impl IntoIterator<Item = WantEntry>) {
        entries.into_iter().for_each(|entry| self.push(entry));
    }

    /// Whether no change is pending.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Removes and returns all changes.
    pub fn take(&mut self) -> Vec<WantEntry> {
        self.at.clear();
        std::mem::take(&mut self.entries).into_iter().flatten().collect()
    }

    /// Removes gaps, so that repeated changes of a CID take the memory of one.
    fn close_gaps(&mut self) {
        self.entries.retain(Option::is_some);
        let places = self.entries.iter().flatten().enumerate().map(|(place, entry)| (entry.cid, place));
        self.at = places.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitswap::message::Ask;
    use bytes::Bytes;
    use content::{Block, codec, hashes};

    fn entry(n: u8, ask: Ask) -> WantEntry {
        let block = Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(vec![n])).expect("block");
        WantEntry { cid: *block.cid(), ask, send_dont_have: false }
    }

    #[test]
    fn only_the_latest_change_of_each_cid_is_sent() {
        use Ask::{Block, Cancel, Have};
        let table = [
            (vec![(1, Cancel), (2, Block), (1, Block)], vec![(2, Block), (1, Block)]),
            (vec![(1, Block), (1, Cancel)], vec![(1, Cancel)]),
            (vec![(1, Have), (2, Have), (1, Block), (2, Cancel)], vec![(1, Block), (2, Cancel)]),
            (vec![], vec![]),
        ];
        for (said, expected) in table {
            let mut outbox = Outbox::default();
            outbox.extend(said.into_iter().map(|(n, ask)| entry(n, ask)));
            assert_eq!(outbox.is_empty(), expected.is_empty());
            assert_eq!(outbox.take(), expected.into_iter().map(|(n, ask)| entry(n, ask)).collect::<Vec<_>>());
            assert!(outbox.is_empty() && outbox.take().is_empty());
        }
    }

    #[test]
    fn repeated_changes_take_bounded_memory() {
        let mut outbox = Outbox::default();
        for _ in 0..1_000 {
            outbox.extend([entry(1, Ask::Block), entry(1, Ask::Cancel), entry(2, Ask::Have)]);
        }
        assert!(outbox.entries.len() < 32);
        assert_eq!(outbox.take(), vec![entry(1, Ask::Cancel), entry(2, Ask::Have)]);
    }
}
