//! [`PackedPins`]: which plain file is that of a zstd file, for packed files that are pinned.
//!
//! The records of pins have this; here it is in memory the other way round, in some 400 bytes for each packed pin. It
//! is read when the store is opened, and changed after the records are.

use content::{BlockKey, Cid};
use std::collections::{BTreeSet, HashMap};

/// The packed files among the pins.
#[derive(Debug, Default)]
pub(crate) struct PackedPins {
    /// The roots of plain files by the root of the zstd file. Files that differ only in their envelopes share one.
    plain: HashMap<BlockKey, BTreeSet<Cid>>,
    /// The root of the zstd file by that of the plain file.
    zstd: HashMap<Cid, Cid>,
}

impl PackedPins {
    /// Sets the zstd file of a pinned root, or that it has none.
    pub(crate) fn set(&mut self, root: Cid, zstd_file: Option<&Cid>) {
        let key = zstd_file.and_then(BlockKey::of);
        let former = match zstd_file {
            Some(zstd_file) => self.zstd.insert(root, *zstd_file),
            None => self.zstd.remove(&root),
        };
        let former = former.as_ref().and_then(BlockKey::of);
        if let Some(former) = former.filter(|former| Some(*former) != key)
            && let Some(roots) = self.plain.get_mut(&former)
        {
            roots.remove(&root);
            if roots.is_empty() {
                self.plain.remove(&former);
            }
        }
        if let Some(key) = key {
            self.plain.entry(key).or_default().insert(root);
        }
    }

    /// A plain file that this zstd file decompresses to.
    pub(crate) fn plain_file(&self, zstd_file: &BlockKey) -> Option<Cid> {
        self.plain.get(zstd_file)?.first().copied()
    }

    /// The zstd file of a pinned root, if it is that of a packed file.
    pub(crate) fn zstd_file(&self, root: &Cid) -> Option<Cid> {
        self.zstd.get(root).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::{codec, hashes};

    fn cid(number: u8) -> Cid {
        Cid::new_v1(codec::RAW, hashes::digest(hashes::SHA2_256, 32, &[number]).expect("sha2-256 is accepted"))
    }

    #[test]
    fn a_zstd_file_has_a_plain_file_while_one_is_pinned() {
        let mut packed = PackedPins::default();
        let plain_file = |packed: &PackedPins, number| packed.plain_file(&BlockKey::of(&cid(number)).expect("a key"));
        packed.set(cid(1), Some(&cid(10)));
        packed.set(cid(2), Some(&cid(10)));
        packed.set(cid(3), None);
        assert!([cid(1), cid(2)].contains(&plain_file(&packed, 10).expect("two of them")));
        packed.set(cid(1), None);
        assert_eq!(plain_file(&packed, 10), Some(cid(2)));
        packed.set(cid(2), Some(&cid(11)));
        assert_eq!((plain_file(&packed, 10), plain_file(&packed, 11)), (None, Some(cid(2))));
        packed.set(cid(2), Some(&cid(11)));
        assert_eq!((packed.zstd_file(&cid(2)), packed.zstd_file(&cid(1))), (Some(cid(11)), None));
        packed.set(cid(2), None);
        assert!(packed.plain.is_empty() && packed.zstd.is_empty());
    }
}
