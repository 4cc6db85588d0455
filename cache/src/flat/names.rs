//! What files are called. Without I/O.
//!
//! A block's file is named by its binary multihash in base32 (RFC 4648, lower case, not padded), as Kubo's flatfs does in upper
//! case: it is read back without an index, and it survives file systems that do not tell cases apart. The folder is
//! the two characters before the last (flatfs calls that next-to-last/2). The first characters name the hash function, which is
//! nearly always the same, and the last one holds what is left of the bits, four values of 32 for sha2-256; the two before are
//! even over 1,024 folders, so that a million blocks are a thousand files each.

use crate::ledger::Key;
use cid::multibase::Base;
use content::BlockKey;
use std::path::{Path, PathBuf};

/// What files that are not finished begin with. Nothing that counts does.
pub(super) const UNFINISHED: &str = ".new-";

/// Where a block's file is, below the folder of blocks: its own folder, and its name there.
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

/// What a name stands for, whatever it is a name of.
pub(super) fn bytes(name: &str) -> Option<Vec<u8>> {
    Base::Base32Lower.decode(name).ok()
}

/// The block that a file in a folder is of. `None` for one that is not ours, or not where it belongs.
pub(super) fn key(folder: &str, name: &str) -> Option<Key> {
    let key = bytes(name)?;
    let ours = BlockKey::from_bytes(&key).is_some() && place(&key) == (folder.to_owned(), name.to_owned());
    ours.then(|| Key::from(key))
}

fn shard(name: &str) -> Option<&str> {
    name.get(name.len().checked_sub(3)?..name.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// A folder for each value of two characters of base32.
    const SHARDS: usize = 32 * 32;

    fn sha2(seed: u64) -> Vec<u8> {
        let digest = content::hashes::digest(content::hashes::SHA2_256, 32, &seed.to_be_bytes());
        digest.expect("sha2-256 is accepted").to_bytes()
    }

    proptest! {
        #[test]
        fn a_file_is_found_by_its_key_and_tells_it(seed: u64, noise in "\\PC{0,80}", folder in "[a-z2-7]{2}") {
            let hash = sha2(seed);
            let (shard, name) = place(&hash);
            prop_assert_eq!((shard.len(), name.len()), (2, 55));
            prop_assert_eq!(key(&shard, &name), Some(Key::from(hash.clone())));
            prop_assert_eq!(path(Path::new("/b"), &hash), Path::new("/b").join(&shard).join(&name));
            prop_assert_eq!(key(&shard, &name.to_uppercase()), None, "one block has one name");
            prop_assert_eq!(key(&shard, &format!("{UNFINISHED}{name}")), None);
            if folder != shard {
                prop_assert_eq!(key(&folder, &name), None);
            }
            prop_assert_eq!(key(&shard, &noise), None);
        }
    }

    #[test]
    fn blocks_are_even_over_the_folders() {
        let mut folders: HashMap<String, usize> = HashMap::new();
        for seed in 0..32 * SHARDS as u64 {
            *folders.entry(place(&sha2(seed)).0).or_default() += 1;
        }
        assert_eq!(folders.len(), SHARDS);
        assert!(folders.values().all(|files| (8..72).contains(files)), "about 32 in each");
    }
}
