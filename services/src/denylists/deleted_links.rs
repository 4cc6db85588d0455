//! The links of blocks that take-downs deleted: `DATA_DIR/denylists/deleted-links`, a line for each block with its CID
//! and those of its links. With them, a later deep take-down finds the blocks below.
//!
//! A block's links never change, so no line becomes wrong. Take-downs that are written as double hashes leave none,
//! because the links would reveal the content.

use crate::denylists::local;
use content::{BlockKey, Cid, cid};
use p2p_bridge::durable;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// The maximum size of the file, in bytes: some 250,000 links. The oldest lines are dropped.
const FILE_BYTES_MAX: usize = 16 << 20;

/// The path of the file beside the local list.
pub fn path(local_list: &Path) -> PathBuf {
    local_list.with_file_name("deleted-links")
}

/// Adds the links of a block, durably.
///
/// # Errors
/// The error of the file system.
pub fn append(path: &Path, block: &Cid, links: &[Cid]) -> io::Result<()> {
    let mut line = block.to_string();
    links.iter().for_each(|link| _ = write!(line, " {link}"));
    let former = if path.try_exists()? { durable::read(path, FILE_BYTES_MAX)? } else { Vec::new() };
    if former.is_empty() || former.len() + line.len() >= FILE_BYTES_MAX {
        durable::write(path, newest(&former, FILE_BYTES_MAX.saturating_sub(line.len()) / 2))?;
    }
    if line.len() < FILE_BYTES_MAX { local::append(path, &[line]) } else { Ok(()) }
}

/// The last lines of a text, of at most `bytes_max`.
fn newest(text: &[u8], bytes_max: usize) -> &[u8] {
    let rest = text.get(text.len().saturating_sub(bytes_max)..).unwrap_or_default();
    if rest.len() == text.len() {
        return rest;
    }
    let end_of_line = rest.iter().position(|byte| *byte == b'\n');
    end_of_line.and_then(|end| rest.get(end + 1..)).unwrap_or_default()
}

/// Reads the links of all blocks. Nothing of a line that was not written completely is used.
///
/// # Errors
/// The error of the file system.
pub fn load(path: &Path) -> io::Result<HashMap<BlockKey, Vec<Cid>>> {
    if !path.try_exists()? {
        return Ok(HashMap::new());
    }
    let text = durable::read(path, FILE_BYTES_MAX)?;
    let links = |line: &[u8]| {
        let mut cids = str::from_utf8(line).ok()?.split(' ').map(|text| cid::parse(text).ok());
        Some((BlockKey::of(&cids.next()??)?, cids.collect::<Option<Vec<Cid>>>()?))
    };
    Ok(text.split(|byte| *byte == b'\n').filter_map(links).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::{Block, codec, hashes};

    fn cid_of(text: &str) -> Cid {
        *Block::of(codec::RAW, hashes::SHA2_256, 32, text.to_owned().into()).expect("a block").cid()
    }

    #[test]
    fn links_are_read_as_they_were_added() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = path(&dir.path().join("local.deny"));
        assert!(load(&path).expect("there is none").is_empty());
        let (a, b, c) = (cid_of("a"), cid_of("b"), cid_of("c"));
        append(&path, &a, &[b, c]).expect("adds");
        // A power failure.
        local::append(&path, &[format!("{c} {}", &a.to_string()[..20])]).expect("adds");
        append(&path, &b, &[c]).expect("adds");
        let key = |cid: &Cid| BlockKey::of(cid).expect("a key");
        assert_eq!(load(&path).expect("reads"), HashMap::from([(key(&a), vec![b, c]), (key(&b), vec![c])]));
    }

    #[test]
    fn the_oldest_links_are_dropped() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = path(&dir.path().join("local.deny"));
        let links = vec![cid_of("link"); 100_000];
        let blocks: Vec<Cid> = (0..6).map(|n| cid_of(&n.to_string())).collect();
        blocks.iter().for_each(|block| append(&path, block, &links).expect("adds"));
        assert!(std::fs::metadata(&path).expect("is there").len() <= FILE_BYTES_MAX as u64);
        let kept = load(&path).expect("reads");
        let is_kept = |block: &Cid| kept.contains_key(&BlockKey::of(block).expect("a key"));
        assert!(is_kept(&blocks[5]) && !is_kept(&blocks[0]), "{}", kept.len());
    }
}
