//! A sharded directory (HAMT, <https://specs.ipfs.tech/unixfs/#dag-pb-hamtdirectory>).
//!
//! Its shape follows from the names alone. With the entries sorted by hash, those below a shard are adjacent, so the
//! shards are made in one pass, from the bottom up. [`Sharded`] does this without all entries in memory: the caller
//! sorts them.

use super::dir::{Entry, check_name, lossy};
use super::pb::{Message, put_link};
use super::{Attributes, BlockSink, ImportError, Naming, Output, Part};
use crate::unixfs::Data;
use crate::unixfs::dir::{HASH_BITS, name_hash};

/// Makes the shards of a directory. The fanout is a power of two.
pub(super) fn finish(
    entries: Vec<Entry>,
    fanout: usize,
    attributes: Attributes,
    output: &mut Output<'_>,
) -> Result<Part, ImportError> {
    let mut hashed: Vec<(u64, Entry)> = entries.into_iter().map(|entry| (name_hash(entry.name()), entry)).collect();
    hashed.sort_unstable_by_key(|(hash, _)| *hash);
    shard(&hashed, HASH_BITS, fanout, attributes, output)
}

/// Makes the shard of entries whose hashes differ only in their last `bits` bits. Recursive, up to 21 levels.
fn shard(
    entries: &[(u64, Entry)],
    bits: u32,
    fanout: usize,
    attributes: Attributes,
    output: &mut Output<'_>,
) -> Result<Part, ImportError> {
    let bits_below = bits.checked_sub(fanout.ilog2()).ok_or_else(|| collision(entries))?;
    let slot_of = |hash: u64| (hash >> bits_below) as usize & (fanout - 1);
    let mut shard = Shard::new(fanout);
    for group in entries.chunk_by(|(one, _), (other, _)| slot_of(*one) == slot_of(*other)) {
        let slot = slot_of(group[0].0);
        if let [(_, entry)] = group {
            shard.put(slot, entry.cid(), entry.name(), entry.tsize);
            continue;
        }
        let child = self::shard(group, bits_below, fanout, Attributes::default(), output)?;
        shard.put(slot, &child.cid.to_bytes(), &[], child.dag_bytes);
    }
    shard.finish(attributes, output)
}

fn collision(entries: &[(u64, Entry)]) -> ImportError {
    ImportError::HashCollision { name: entries.first().map(|(_, entry)| lossy(entry.name())).unwrap_or_default() }
}

/// A sharded directory whose entries are added in the order of [`Sharded::order`]. Only the shards from the root to the
/// last entry are in memory.
#[derive(Debug)]
pub struct Sharded {
    naming: Naming,
    fanout: usize,
    attributes: Attributes,
    /// The unfinished shards, the root first.
    open: Vec<Shard>,
    /// The last entry. Its depth depends on the slots of its neighbours on both sides.
    pending: Option<(u64, Entry)>,
    file_bytes: u64,
}

impl Sharded {
    pub(super) fn new(fanout: usize, naming: Naming, attributes: Attributes) -> Self {
        Self { naming, fanout, attributes, open: vec![Shard::new(fanout)], pending: None, file_bytes: 0 }
    }

    /// The sort key of a name. Names with the same key, which practically do not exist, may be in any order.
    pub fn order(name: &[u8]) -> u64 {
        name_hash(name)
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`ImportError`], such as for a duplicate name, or one out of order.
    pub fn add(&mut self, name: &[u8], part: &Part, sink: &mut dyn BlockSink) -> Result<(), ImportError> {
        check_name(name)?;
        let (hash, entry) = (name_hash(name), Entry::new(name, part));
        if let Some((before, pending)) = &self.pending {
            if pending.name() == name {
                return Err(ImportError::Repeated { name: lossy(name) });
            }
            if *before > hash {
                let reason = "it was not added in the order of the name hashes";
                return Err(ImportError::Name { name: lossy(name), reason });
            }
        }
        self.file_bytes = self.file_bytes.saturating_add(part.file_bytes);
        match self.pending.replace((hash, entry)) {
            Some(pending) => self.insert_pending(&pending, Some(hash), sink),
            None => Ok(()),
        }
    }

    /// Finishes the directory; returns its root.
    ///
    /// # Errors
    /// [`ImportError`].
    pub fn finish(mut self, sink: &mut dyn BlockSink) -> Result<Part, ImportError> {
        if let Some(pending) = self.pending.take() {
            self.insert_pending(&pending, None, sink)?;
        }
        let root = self.open.pop().unwrap_or_else(|| Shard::new(self.fanout));
        let part = root.finish(self.attributes, &mut Output { naming: &self.naming, sink })?;
        Ok(Part { file_bytes: self.file_bytes, ..part })
    }

    /// Inserts an entry into the deepest shard that it shares with a neighbour, and finishes shards that the next entry
    /// is not in.
    fn insert_pending(
        &mut self,
        (hash, entry): &(u64, Entry),
        next: Option<u64>,
        sink: &mut dyn BlockSink,
    ) -> Result<(), ImportError> {
        let (fanout, slot_bits) = (self.fanout, self.fanout.ilog2());
        let slot = |level: usize| (hash >> (HASH_BITS - slot_bits * (level as u32 + 1))) as usize & (fanout - 1);
        let shared = next.map_or(0, |next| (hash ^ next).leading_zeros() / slot_bits) as usize;
        if shared >= (HASH_BITS / slot_bits) as usize {
            return Err(ImportError::HashCollision { name: lossy(entry.name()) });
        }
        while self.open.len() <= shared {
            self.open.push(Shard::new(self.fanout));
        }
        let level = self.open.len() - 1;
        self.open[level].put(slot(level), entry.cid(), entry.name(), entry.tsize);
        while self.open.len() > shared + 1
            && let Some(shard) = self.open.pop()
        {
            let child = shard.finish(Attributes::default(), &mut Output { naming: &self.naming, sink })?;
            let level = self.open.len() - 1;
            self.open[level].put(slot(level), &child.cid.to_bytes(), &[], child.dag_bytes);
        }
        Ok(())
    }
}

/// A shard that is being filled, in the order of its slots.
#[derive(Debug)]
struct Shard {
    fanout: usize,
    /// Big-endian, with the lowest slot in the last bit.
    bitfield: Vec<u8>,
    links: Vec<u8>,
    linked_bytes: u64,
}

impl Shard {
    fn new(fanout: usize) -> Self {
        Self { fanout, bitfield: vec![0; fanout / 8], links: Vec::new(), linked_bytes: 0 }
    }

    /// Adds a link, whose name begins with its slot in hexadecimal. The name of a link to a shard is only that prefix.
    fn put(&mut self, slot: usize, cid: &[u8], name: &[u8], tsize: u64) {
        let digits = self.fanout.ilog2().div_ceil(4) as usize;
        let prefix = format!("{slot:0digits$X}");
        put_link(&mut self.links, cid, [prefix.as_bytes(), name], tsize);
        self.bitfield[(self.fanout - 1 - slot) / 8] |= 1 << (slot % 8);
        self.linked_bytes = self.linked_bytes.saturating_add(tsize);
    }

    fn finish(self, attributes: Attributes, output: &mut Output<'_>) -> Result<Part, ImportError> {
        let leading = self.bitfield.iter().take_while(|byte| **byte == 0).count();
        let message = Message {
            kind: Data::HAMT_SHARD,
            data: self.bitfield.get(leading..),
            fanout: Some(self.fanout),
            attributes,
            ..Message::default()
        };
        output.node(message.into_node(self.links), 0, self.linked_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::importer::{Estimate, Importer, Profile, Sharding};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn hash_collisions_are_errors() {
        let discard = &mut |_| Ok(());
        let importer = Importer::new(Profile::default()).expect("a profile");
        let part = importer.symlink(b"x", Attributes::default(), discard).expect("short");
        let mut output = Output { naming: &importer.naming, sink: discard };
        for fanout in [8, 256, 1024] {
            let entries = ["a", "b"].map(|name| (7, Entry::new(name.as_bytes(), &part)));
            let result = shard(&entries, HASH_BITS, fanout, Attributes::default(), &mut output);
            assert!(matches!(result, Err(ImportError::HashCollision { .. })), "{fanout}");
        }
    }

    /// The root of a directory, with the CIDs of its blocks.
    fn made(make: impl FnOnce(&mut dyn BlockSink) -> Part) -> (Part, BTreeSet<String>) {
        let mut cids = BTreeSet::new();
        let part = make(&mut |block: Block| {
            cids.insert(block.cid().to_string());
            Ok(())
        });
        (part, cids)
    }

    proptest! {
        #[test]
        fn streaming_in_order_gives_the_same_directory(
            names in prop::collection::btree_set("[a-z]{1,3}", 0..300),
            fanout_bits in 3_u32..=10,
        ) {
            let discard = &mut |_| Ok(());
            let (estimate, links_max, fanout) = (Estimate::Off, Some(0), 1 << fanout_bits);
            let sharding = Sharding { estimate, links_max, threshold_bytes: 0, fanout };
            let importer = Importer::new(Profile { sharding, ..Profile::UNIXFS_V1_2025 }).expect("a profile");
            let entries: Vec<(String, Part)> = names.into_iter().map(|name| {
                let part = importer.symlink(name.as_bytes(), Attributes::default(), discard).expect("short");
                (name, part)
            }).collect();
            prop_assume!(!entries.is_empty());
            let attributes = Attributes { mode: Some(0o755), ..Attributes::default() };
            let whole = made(|sink| {
                let mut directory = importer.directory(attributes);
                entries.iter().for_each(|(name, part)| directory.add(name.as_bytes(), part).expect("a name"));
                directory.finish(sink).expect("finishes")
            });
            let mut ordered = entries.clone();
            ordered.sort_by_key(|(name, _)| Sharded::order(name.as_bytes()));
            let streamed = made(|sink| {
                let mut sharded = importer.sharded(attributes);
                ordered.iter().for_each(|(name, part)| sharded.add(name.as_bytes(), part, sink).expect("a name"));
                sharded.finish(sink).expect("finishes")
            });
            prop_assert_eq!(whole, streamed);
        }
    }

    #[test]
    fn duplicates_and_entries_out_of_order_are_rejected() {
        let discard = &mut |_| Ok(());
        let importer = Importer::new(Profile::default()).expect("a profile");
        let part = importer.symlink(b"x", Attributes::default(), discard).expect("short");
        let mut names = ["a", "b"];
        names.sort_by_key(|name| std::cmp::Reverse(Sharded::order(name.as_bytes())));
        let mut sharded = importer.sharded(Attributes::default());
        sharded.add(names[0].as_bytes(), &part, discard).expect("the first");
        for (name, words) in
            [(names[0], "two entries"), (names[1], "in the order of the name hashes"), ("..", "special meaning")]
        {
            let error = sharded.add(name.as_bytes(), &part, discard).expect_err(name).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
