//! File names. No I/O.
//!
//! A block's file name is its binary multihash in base32 (RFC 4648, lower case, no padding), like Kubo's flatfs in
//! upper case: it can be decoded without an index, and works on case-insensitive file systems. The directory is the two
//! characters before the last (next-to-last/2 in flatfs). The first characters are the hash function, which is nearly
//! always the same, and the last one has only the remaining bits, four values of 32 for sha2-256; the two before it are
//! distributed evenly over 1,024 directories, so that a million blocks are a thousand files each.

use crate::memory_index::Key;
use cid::multibase::Base;
use content::BlockKey;
use std::path::{Path, PathBuf};

/// The prefix of temporary files.
pub(super) const TEMPORARY_PREFIX: &str = ".new-";

/// The directory and the file name of a block, below the directory of blocks.
pub(super) fn place(key: &[u8]) -> (String, String) {
    let name = Base::Base32Lower.encode(key);
    let shard = shard(&name).unwrap_or("__").to_owned();
    (shard, name)
}

/// The path of a block's file.
pub(super) fn path(blocks: &Path, key: &[u8]) -> PathBuf {
    let (shard, name) = place(key);
    blocks.join(shard).join(name)
}

/// Decodes a name.
pub(super) fn bytes(name: &str) -> Option<Vec<u8>> {
    Base::Base32Lower.decode(name).ok()
}

/// The key of a block's file. `None` for other files, and for files in the wrong directory.
pub(super) fn key(folder: &str, name: &str) -> Option<Key> {
    let key = bytes(name)?;
    let is_valid = BlockKey::from_bytes(&key).is_some() && place(&key) == (folder.to_owned(), name.to_owned());
    is_valid.then(|| Key::from(key))
}

fn shard(name: &str) -> Option<&str> {
    name.get(name.len().checked_sub(3)?..name.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// One directory for each value of two base32 characters.
    const SHARDS: usize = 32 * 32;

    fn sha2(seed: u64) -> Vec<u8> {
        let digest = content::hashes::digest(content::hashes::SHA2_256, 32, &seed.to_be_bytes());
        digest.expect("sha2-256 is accepted").to_bytes()
    }

    proptest! {
        #[test]
        fn file_names_round_trip(seed: u64, noise in "\\PC{0,80}", folder in "[a-z2-7]{2}") {
            let hash = sha2(seed);
            let (shard, name) = place(&hash);
            prop_assert_eq!((shard.len(), name.len()), (2, 55));
            prop_assert_eq!(key(&shard, &name), Some(Key::from(hash.clone())));
            prop_assert_eq!(path(Path::new("/b"), &hash), Path::new("/b").join(&shard).join(&name));
            prop_assert_eq!(key(&shard, &name.to_uppercase()), None, "one block has one name");
            prop_assert_eq!(key(&shard, &format!("{TEMPORARY_PREFIX}{name}")), None);
            if folder != shard {
                prop_assert_eq!(key(&folder, &name), None);
            }
            prop_assert_eq!(key(&shard, &noise), None);
        }
    }

    #[test]
    fn blocks_are_distributed_evenly_over_directories() {
        let mut folders: HashMap<String, usize> = HashMap::new();
        for seed in 0..32 * SHARDS as u64 {
            *folders.entry(place(&sha2(seed)).0).or_default() += 1;
        }
        assert_eq!(folders.len(), SHARDS);
        assert!(folders.values().all(|files| (8..72).contains(files)), "about 32 in each");
    }
}
