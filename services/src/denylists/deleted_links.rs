//! The links of blocks that take-downs deleted: `DATA_DIR/denylists/deleted-links`, a line for each block with its CID,
//! those of its links, and their number, without which a line was not written completely. With them, a later deep
//! take-down finds the blocks below.
//!
//! A block's links never change, so no line becomes wrong. Take-downs that are written as double hashes leave none,
//! because the links would reveal the content. Deep ones leave none either, because they would displace the others.

use crate::line_file;
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
    _ = write!(line, " {}", links.len());
    append_line(path, line, FILE_BYTES_MAX)
}

fn append_line(path: &Path, line: String, bytes_max: usize) -> io::Result<()> {
    // The line ends with a newline, and may have to end an incomplete one before.
    let needed = line.len() + 2;
    let former = if path.try_exists()? { durable::read(path, bytes_max)? } else { Vec::new() };
    if former.is_empty() || former.len() + needed > bytes_max {
        durable::write(path, newest(&former, bytes_max.saturating_sub(needed) / 2))?;
    }
    if needed <= bytes_max { line_file::append(path, &[line]) } else { Ok(()) }
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
        let (cids, count) = str::from_utf8(line).ok()?.rsplit_once(' ')?;
        let mut cids = cids.split(' ').map(|text| cid::parse(text).ok());
        let (block, links) = (BlockKey::of(&cids.next()??)?, cids.collect::<Option<Vec<Cid>>>()?);
        (count.parse() == Ok(links.len())).then_some((block, links))
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
        // Power failures, within a CID and after one, and within the number.
        let many = [a; 11].iter().map(Cid::to_string).collect::<Vec<_>>().join(" ");
        for torn in
            [format!("{c} {}", &a.to_string()[..20]), format!("{c} {a}"), format!("{c} "), format!("{c} {many} 1")]
        {
            line_file::append(&path, &[torn]).expect("adds");
        }
        append(&path, &b, &[c]).expect("adds");
        let key = |cid: &Cid| BlockKey::of(cid).expect("a key");
        assert_eq!(load(&path).expect("reads"), HashMap::from([(key(&a), vec![b, c]), (key(&b), vec![c])]));
    }

    #[test]
    fn the_file_never_exceeds_its_maximum_size() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = path(&dir.path().join("local.deny"));
        const MAX: usize = 1_000;
        // A former line that is complete, or not, and a new one of each length near the maximum.
        for (former, length) in ["x\n", "x"].into_iter().flat_map(|end| (MAX - 8..MAX + 2).map(move |n| (end, n))) {
            std::fs::write(&path, former).expect("writes");
            append_line(&path, "y".repeat(length - former.len()), MAX).expect("adds");
            let bytes = durable::read(&path, MAX).expect("is no larger");
            append_line(&path, "z".to_owned(), MAX).expect("adds again");
            assert!(durable::read(&path, MAX).expect("is no larger").ends_with(b"z\n"), "{length} {}", bytes.len());
        }
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
