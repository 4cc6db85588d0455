//! A sharded directory (HAMT, <https://specs.ipfs.tech/unixfs/#dag-pb-hamtdirectory>).
//!
//! Its shape follows from the names alone. With the entries in the order of their hashes, those below a shard stand next
//! to each other, so the shards are made in one pass, the lower ones first.

use super::dir::{Entry, lossy};
use super::pb::{Message, put_link};
use super::{Attributes, ImportError, Output, Part};
use crate::unixfs::Data;
use crate::unixfs::dir::{HASH_BITS, name_hash};

/// Makes the shards of a directory, with a fanout that is a power of two.
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

/// Makes the shard of entries whose hashes differ in their last `bits` bits at most. It calls itself until those are used
/// up, 21 times at most.
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
        let below = self::shard(group, bits_below, fanout, Attributes::default(), output)?;
        shard.put(slot, &below.cid.to_bytes(), &[], below.dag_bytes);
    }
    shard.finish(attributes, output)
}

fn collision(entries: &[(u64, Entry)]) -> ImportError {
    ImportError::HashCollision { name: entries.first().map(|(_, entry)| lossy(entry.name())).unwrap_or_default() }
}

/// A shard that is being filled, in the order of its slots.
struct Shard {
    fanout: usize,
    /// Big-endian, the lowest slot in the last bit.
    bitfield: Vec<u8>,
    links: Vec<u8>,
    linked_bytes: u64,
}

impl Shard {
    fn new(fanout: usize) -> Self {
        Self { fanout, bitfield: vec![0; fanout / 8], links: Vec::new(), linked_bytes: 0 }
    }

    /// Adds a link, whose name begins with its slot in hexadecimal. One to a shard has no more of a name.
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
    use crate::importer::{Importer, Profile};

    #[test]
    fn names_of_the_same_hash_are_an_error_and_no_endless_descent() {
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
}
